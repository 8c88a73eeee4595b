"""A split by columns: who has which part, who knows the labels, what is charged where, and what a party refuses."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.algorithms import Ask
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.errors import BudgetError, InputError, RefusedError, SottovoceError
from sottovoce.estimators import model_file
from sottovoce.federation.coordinator import Coordinator, PlainAnswers
from sottovoce.federation.federation import Federation
from sottovoce.federation.party import Party
from sottovoce.federation.policy import Policy
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named
from sottovoce.privacy.accounting import epsilon_of
from sottovoce.privacy.events import Gaussian, inside
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.solvers import by_name
from sottovoce.transports.base import InProcess
from support import declared, events_of, handle, query_of, renewed

MakePlan = Callable[..., Plan]
serials = itertools.count(1)
NAMES = ("anna", "ben", "carl")
WIDTHS = (3, 2, 1)
PEOPLE = 40
ROOT = math.sqrt(1 / 6)
NORMS = tuple(ROOT * math.sqrt(width) for width in WIDTHS)
BALL = Named(name="l1_ball", parameters={"radius": 2.0})


def rows(seed: int = 0, count: int = PEOPLE) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-0.5, 0.5, (count, 6))
    return X, np.where(X @ [3.0, 0, 0, -2.0, 0, 1.0] > 0, 1, 0)


def split(X: Any) -> list[Any]:
    edges = np.cumsum([0, *WIDTHS])
    return [X[:, a:b] for a, b in itertools.pairwise(edges)]


def federation_of(**options: Any) -> Federation:
    X, y = rows()
    return Federation.by_columns(split(X), y, **{"names": NAMES} | options)


@pytest.fixture
def columns_plan(small_plan: MakePlan) -> MakePlan:
    """A function that makes the plan of three parties with 3, 2 and 1 columns."""

    def make(**fields: Any) -> Plan:
        usual: dict[str, Any] = {
            "regulariser": BALL,
            "split": "columns",
            "parties": tuple((name, PEOPLE) for name in NAMES),
            "features": 6,
            "columns": WIDTHS,
            "norms": NORMS,
            "options": {"rounds": 12},
        }
        return small_plan("frank-wolfe", **usual | fields)

    return make


def party_of(name: str = "anna", *, labelled: bool = True, **options: Any) -> Party:
    X, y = rows()
    part = split(X)[NAMES.index(name)]
    options.setdefault("randomness", SeededRandomness(0, name))
    return Party(name, part, y if labelled else None, **options)


def send(party: Party, kind: str, **fields: Any) -> Frame:
    return decode(handle(party, encode(Frame(kind, next(serials), **fields))).data)


def propose(party: Party, plan: Plan, **fields: Any) -> Frame:
    return send(party, "plan", plan=plan.digest, text=plan.to_json(), **fields)


def said(frame: Frame) -> dict[str, Any]:
    text: dict[str, Any] = json.loads(frame.text)
    return text


# What a plan must say.

BAD_PLANS: dict[str, tuple[dict[str, Any], str]] = {
    "a party without columns": ({"columns": (3, 3)}, "how many of the columns each party has"),
    "no columns": ({"columns": ()}, "how many of the columns each party has"),
    "too many columns": ({"columns": (3, 2, 2)}, "how many of the columns each party has"),
    "columns of nobody": ({"columns": (3, 3, 0)}, "columns"),
    "a column less than none": ({"columns": (4, 3, -1)}, "columns"),
    "other people": ({"parties": (("anna", 40), ("ben", 40), ("carl", 41))}, "the same people"),
    "a holder beyond the last": ({"label_party": 3}, "one of them holds the labels"),
    "a holder before the first": ({"label_party": -1}, "label_party"),
    "unknown labels": ({"labels": "secret"}, "labels"),
    "a row norm that nobody shares": ({"norms": ()}, "a row norm is shared among the parties"),
    "norms of no row norm": ({"bounds": {"entry_bound": 1.0}}, "only a declared one is"),
    "norms that make up more": ({"norms": (0.7, 0.7, 0.2)}, "row_norm squared"),
    "a norm for each but one": ({"norms": (0.6, 0.8)}, "one positive number per party (3)"),
    "a negative norm": ({"norms": (-0.6, 0.8, 1e-9)}, "one positive number per party (3)"),
    "a norm that is no number": ({"norms": (math.nan, 0.8, 0.6)}, "norms"),
}


@pytest.mark.parametrize(("change", "reason"), BAD_PLANS.values(), ids=BAD_PLANS)
def test_a_plan_that_does_not_share_out_the_columns_is_refused(
    change: dict[str, Any], reason: str, columns_plan: MakePlan
) -> None:
    plan = columns_plan()
    fields = json.loads(plan.to_json()) | json.loads(json.dumps(change))
    with pytest.raises((SottovoceError, ValueError)):
        Plan.from_json(json.dumps(fields))
    answer = send(party_of(), "plan", plan=plan.digest, text=json.dumps(fields))
    assert answer.kind == "refuse"
    assert reason in said(answer)["refused"]


def test_the_plan_of_three_parties_is_accepted_by_each(columns_plan: MakePlan) -> None:
    for fields in (
        {},
        {"norms": (), "bounds": Bounds.declare(entry_bound=0.5)},
        {"labels": "public", "label_party": 2},
    ):
        plan = columns_plan(**fields)
        assert Plan.from_json(plan.to_json()) == plan
        for name in NAMES:
            assert propose(party_of(name), plan).kind == "accept"


# Who has what.


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("holder", [0, 1, 2])
def test_the_parts_are_all_coefficients_each_once(holder: int, fit_intercept: bool, columns_plan: MakePlan) -> None:
    plan = columns_plan(label_party=holder, fit_intercept=fit_intercept)
    parts = {name: plan.part(name) for name in NAMES}
    assert [(part.start, part.stop) for part in parts.values()] == [(0, 3), (3, 5), (5, 6)]
    assert [part.constant for part in parts.values()] == [fit_intercept and place == holder for place in range(3)]
    places = []
    for part in parts.values():
        for local in range(part.stop - part.start + part.constant):
            place = part.place(local, plan.features)
            places.append(place)
            assert part.local(place, plan.features) == local
            others = [other for other in parts.values() if other is not part]
            assert all(other.local(place, plan.features) is None for other in others)
    assert sorted(places) == list(range(plan.dimension))


def test_a_part_says_how_its_rows_are_prepared(columns_plan: MakePlan) -> None:
    bounds = Bounds.declare(row_norm=1.0, entry_bound=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    plan = columns_plan(bounds=bounds, labels="held", label_party=1)
    recipes = [plan.part(name).preparation for name in NAMES]
    assert [recipe.features for recipe in recipes] == list(WIDTHS)
    assert [recipe.fit_intercept for recipe in recipes] == [False, True, False]
    assert [recipe.labelled for recipe in recipes] == [False, True, False]
    assert [recipe.bounds.entry_bound for recipe in recipes] == [(0.1, 0.2, 0.3), (0.4, 0.5), (0.6,)]
    assert [recipe.bounds.row_norm for recipe in recipes] == list(NORMS)
    assert {recipe.unit for recipe in recipes} == {plan.preparation.unit} == {0.6}
    assert {recipe.records for recipe in recipes} == {PEOPLE}
    for labels in ("public", "shared"):
        assert all(columns_plan(labels=labels).part(name).preparation.labelled for name in NAMES)


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_labels_are_scaled_alike_wherever_the_constant_column_is(fit_intercept: bool, columns_plan: MakePlan) -> None:
    bounds = Bounds.declare(row_norm=1.0, label_bound=(0.0, 5.0))
    squared = {"loss": Named(name="squared"), "classes": None, "bounds": bounds}
    plan = columns_plan(fit_intercept=fit_intercept, **squared)
    expected = plan.preparation.labels([0.0, 1.0, 5.0])[0]
    np.testing.assert_array_equal(expected, [-1.0, -0.6, 1.0] if fit_intercept else [0.0, 0.2, 1.0])
    for name in NAMES:
        np.testing.assert_array_equal(plan.part(name).preparation.labels([0.0, 1.0, 5.0])[0], expected)


def test_by_rows_a_part_is_everything(small_plan: MakePlan) -> None:
    plan = small_plan()
    part = plan.part("ben")
    assert (part.start, part.stop, part.constant) == (0, 3, True)
    assert part.preparation == plan.preparation
    assert [part.place(local, 3) for local in range(4)] == [part.local(place, 3) for place in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("rescale", ["symmetric", "unit"])
def test_bounds_of_a_part_are_those_of_its_columns(rescale: Any) -> None:
    ranges = ([0, 1, 2, 3], [10, 11, 12, 13])
    whole = Bounds.declare(row_norm=2.0, label_bound=(1, 5), feature_ranges=ranges, rescale=rescale)
    part = whole.part(1, 3, 1.5)
    assert (part.feature_low, part.feature_high, part.row_norm) == ((1, 2), (11, 12), 1.5)
    assert (part.label_low, part.label_high, part.rescale) == (1, 5, rescale)
    assert whole.part(0, 4, 2.0) == whole
    one = Bounds.declare(entry_bound=0.5).part(2, 4, None)
    assert (one.entry_bound, one.row_norm, one.feature_low) == (0.5, None, None)
    assert Bounds.declare(entry_bound=[1, 2, 3]).part(2, 3, None).entry_bound == (3.0,)


# Who knows the labels.


@pytest.mark.parametrize("make", [np.asarray, np.ndarray.tolist, sp.csr_matrix], ids=["array", "lists", "sparse"])
def test_a_holder_of_columns_may_not_know_the_labels(make: Callable[..., Any]) -> None:
    X, _ = rows()
    party = Party("anna", make(X[:, :3]), None)
    assert party.features == 3
    assert said(send(party, "hello")) == {"records": PEOPLE, "features": 3, "feature_names": []}
    assert said(send(party, "hello", query="classes"))["classes"] == []  # it has none to tell, so it need not refuse


@pytest.mark.parametrize("X", [np.zeros(3), np.zeros((0, 3)), np.zeros((3, 0)), np.zeros(()), np.zeros((1, 1, 1))])
def test_rows_without_labels_are_checked_like_others(X: Any) -> None:
    with pytest.raises(InputError, match="anna"):
        Party("anna", X, None)


def test_the_classes_come_from_those_who_know_them() -> None:
    for labels in ("public", "shared", "held"):
        federation = federation_of(labels=labels, label_party=1)
        facts = federation.coordinator().facts(classes=True)
        told = [fact["classes"] for fact in facts.values()]
        assert told == ([[], [0, 1], []] if labels == "held" else [[0, 1]] * 3)
    remote = Federation.connect(InProcess(federation._parties), split="columns", labels="held", label_party=1)
    model = sv.PrivateLogisticRegression(radius=1.0, solver=by_name("frank-wolfe", rounds=4), row_norm=1.0)
    assert model.fit(federation).classes_.tolist() == [0, 1]
    federation._parties[1].policy = Policy()
    with pytest.raises(RefusedError, match="ben does not tell which labels"):
        model.fit(remote)
    assert model.set_params(classes=(0, 1)).fit(remote).classes_.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("labels", "holder", "labelled", "reason"),
    [
        ("shared", 0, False, "anna does not know the labels, and the plan says otherwise (labels='shared')"),
        ("public", 1, False, "anna does not know the labels, and the plan says otherwise (labels='public')"),
        ("held", 0, False, "anna does not know the labels, and the plan says otherwise (labels='held')"),
        ("held", 1, True, "anna knows the labels, and the plan says otherwise (labels='held')"),
    ],
)
def test_a_plan_that_is_wrong_about_who_knows_the_labels_is_refused(
    labels: str, holder: int, labelled: bool, reason: str, columns_plan: MakePlan
) -> None:
    plan = columns_plan(labels=labels, label_party=holder)
    answer = propose(party_of(labelled=labelled), plan)
    assert answer.kind == "refuse"
    assert said(answer)["refused"] == reason + "."
    assert propose(party_of(labelled=not labelled), plan).kind == "accept"


def test_by_rows_a_party_needs_labels(small_plan: MakePlan) -> None:
    answer = propose(Party("anna", rows()[0][:, :3], None), small_plan())
    assert "does not know the labels" in said(answer)["refused"]


def test_labels_that_are_held_are_with_their_holder_alone() -> None:
    federation = federation_of(labels="held", label_party=1)
    assert [bool(np.any(party.labels)) for party in federation._parties] == [False, True, False]
    plan = model_of().plan(federation)
    blocks = [
        Block.prepare(party.rows, party.labels, plan.part(party.name).preparation) for party in federation._parties
    ]
    assert [bool(np.any(block.labels)) for block in blocks] == [False, True, False]


# What is charged.

GUARDED: dict[str, dict[str, Any]] = {
    "row norm": {"row_norm": 1.0},
    "caps": {"entry_bound": 0.5, "cap": 2},
    "replace-one": {"entry_bound": 0.5, "relation": "replace-one"},
    "held": {"row_norm": 1.0, "labels": "held", "label_party": 2},
}


def model_of(**options: Any) -> Any:
    usual = {"radius": 2.0, "epsilon": 0.8, "classes": (0, 1), "rounds": 6}
    if "entry_bound" not in options:
        usual["row_norm"] = 1.0
    return sv.PrivateLogisticRegression(**declared("frank-wolfe", **usual | options))


@pytest.mark.parametrize("options", GUARDED.values(), ids=GUARDED)
def test_the_joint_cost_is_charged_at_every_party(options: dict[str, Any], tmp_path: Path) -> None:
    options = dict(options)
    who = {key: options.pop(key) for key in ("labels", "label_party") if key in options}
    relation = options.get("relation", "zero-out")
    accounts = [sv.Ledger.create(tmp_path / f"{name}.db").open(name, 1.0, 1e-5, relation=relation) for name in NAMES]
    federation = federation_of(ledgers=accounts, **who)
    fitted = model_of(**options).fit(federation)
    plan = fitted.plan_
    costs = {name: events_of(plan, relation, name) for name in NAMES}
    assert len(set(costs.values())) == 1
    joint = epsilon_of(costs["anna"], inside(plan.delta), relation)
    assert 0.7 < joint <= 0.8
    for account in accounts:
        assert account.balance().plans == 1
        assert account.balance().spent == pytest.approx(joint, rel=2e-3)
    assert {fitted.privacy_.against(who).epsilon for who in ("world", "coordinator", "parties")} == {
        fitted.privacy_.epsilon
    }
    assert fitted.privacy_.epsilon == pytest.approx(joint, rel=2e-3)
    # all of a party's releases are in its own ledger, and together they are the rounds of the run
    stored = [[entry for entry in account.history() if entry.kind == "release"] for account in accounts]
    assert sum(map(len, stored)) == fitted.communication_.rounds
    with pytest.raises(BudgetError):
        model_of(**options).fit(federation)


def test_as_published_every_party_pays_for_all_messages_of_all(tmp_path: Path) -> None:
    X, y = rows()
    accounts = [sv.Ledger.create(tmp_path / f"{name}.db").open(name, 1e6, 1e-5) for name in NAMES]
    federation = Federation.by_columns(split(X), y, names=NAMES, ledgers=accounts)
    options = {"row_norm": 1.0, "label_bound": 1.0, "calibration": "paper", "rounds": 3}
    fitted = sv.PrivateLasso(radius=2.0, **declared("frank-wolfe", **options)).fit(federation)
    one = sum(release.event("zero-out", count=1).rho for release in fitted.plan_.releases[:1])  # type: ignore[union-attr]
    (choices, features) = events_of(fitted.plan_, "zero-out", "anna")
    assert choices.rho == pytest.approx(3 * 3 * one)  # type: ignore[union-attr]
    assert features == fitted.plan_.releases[1].event("zero-out", count=9)
    spent = [account.balance().spent for account in accounts]
    assert spent[0] == spent[1] == spent[2] == pytest.approx(fitted.privacy_.epsilon, rel=2e-3)


def test_one_refusal_and_nobody_has_paid(tmp_path: Path) -> None:
    accounts = [sv.Ledger.create(tmp_path / f"{name}.db").open(name, 1.0, 1e-5) for name in NAMES]
    accounts[1].reserve("earlier", [Gaussian(0.2)])
    with pytest.raises(BudgetError, match="'ben'"):
        model_of().fit(federation_of(ledgers=accounts))
    assert [account.balance().plans for account in accounts] == [0, 1, 0]
    assert [account.balance().spent for account in accounts][::2] == [0.0, 0.0]


def test_a_policy_counts_the_joint_cost(columns_plan: MakePlan) -> None:
    plan = columns_plan(epsilon=1.0)
    assert propose(party_of("carl", policy=Policy(max_epsilon=1.01)), plan).kind == "accept"
    answer = propose(party_of("carl", policy=Policy(max_epsilon=0.95)), plan)
    assert "limit 0.95" in said(answer)["refused"]


# A federation.

WIRE = InProcess([Party(name, np.zeros((4, 1)), np.zeros(4)) for name in NAMES])


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"split": "diagonal"}, "split='diagonal' must be 'rows'"),
        ({"split": "central"}, "split='central' must be 'rows'"),
        ({"split": None}, "split=None must be 'rows'"),
        ({"labels": "secret"}, "'public', 'shared' or 'held'"),
        ({"labels": None}, "'public', 'shared' or 'held'"),
        ({"label_party": 3}, "label_party=3 must be the number of a party, 0 to 2"),
        ({"label_party": -1}, "label_party=-1 must be the number of a party"),
        ({"label_party": True}, "label_party=True must be the number of a party"),
        ({"label_party": "anna"}, "label_party='anna' must be the number of a party"),
        ({"label_party": None}, "label_party=None must be the number of a party"),
        ({"norms": ["wide"]}, "norms=.*one positive number per party"),
        ({"norms": 0.5}, "norms=0.5 must be one positive number per party"),
        ({"split": "rows", "labels": "held"}, "for split='columns'"),
        ({"split": "rows", "label_party": 1}, "for split='columns'"),
        ({"split": "rows", "norms": [1.0, 1.0, 1.0]}, "for split='columns'"),
    ],
)
def test_bad_arguments_of_a_connection_are_told_by_name(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        Federation.connect(WIRE, **{"split": "columns"} | options)


def test_a_connection_keeps_what_was_declared() -> None:
    federation = Federation.connect(WIRE, split="columns", labels="held", label_party=2, norms=[0.6, 0.48, 0.64])
    assert (federation.split, federation.labels, federation.label_party) == ("columns", "held", 2)
    assert federation.party_norms(1.0, [1, 1, 1]) == [0.6, 0.48, 0.64]
    plain = Federation.connect(WIRE)
    assert (plain.split, plain.norms) == ("rows", None)


def test_norms_are_parts_of_a_row_norm() -> None:
    federation = federation_of(norms=[0.6, 0.48, 0.64])
    assert model_of().plan(federation).norms == (0.6, 0.48, 0.64)
    with pytest.raises(InputError, match=r"norms=\(0.6, 0.48, 0.64\) are the parties' parts of row_norm"):
        model_of(row_norm=None, entry_bound=0.5).plan(federation)
    with pytest.raises(InputError, match="row_norm squared"):
        model_of(row_norm=2.0).plan(federation)


@pytest.mark.parametrize("epsilon", [1.0, math.inf])
def test_parties_elsewhere_without_common_rows_are_told_how_many_each_has(epsilon: float, tmp_path: Path) -> None:
    X, y = rows()
    account = sv.Ledger.create(tmp_path / "a.db").open("rows", 2.0, 1e-5)
    policy = Policy(allow_without_privacy=True)
    parties = [
        Party("anna", X[:, :3], y, account=account if epsilon == 1.0 else None, policy=policy),
        Party("ben", X[:-1, 3:], y[:-1], policy=policy),
    ]
    remote = Federation.connect(InProcess(parties), split="columns")
    with pytest.raises(InputError, match=r"\[39, 40\] rows \(anna 40, ben 39\).*same people.*Align the records first"):
        model_of(epsilon=epsilon).fit(remote)
    assert account.balance().plans == 0


def test_a_fit_over_a_connection_is_that_of_one_process() -> None:
    federation = federation_of(labels="held", label_party=1)
    remote = Federation.connect(InProcess(federation._parties), split="columns", labels="held", label_party=1)
    fitted = model_of().fit(remote)
    assert fitted.coef_.shape == (1, 6)
    assert np.isfinite(fitted.coef_).all()
    assert (fitted.plan_.labels, fitted.plan_.label_party, fitted.plan_.columns) == ("held", 1, WIDTHS)
    assert "who is in the data is known to all parties" in fitted.privacy_.assumptions


def test_a_fitted_model_goes_into_a_file_and_comes_back(tmp_path: Path) -> None:
    fitted = model_of().fit(federation_of(labels="public"))
    fitted.save(tmp_path / "model.json")
    again = model_file.load_model(tmp_path / "model.json")
    np.testing.assert_array_equal(again.coef_, fitted.coef_)
    assert vars(again.communication_) == vars(fitted.communication_)
    assert (again.plan_.columns, again.plan_.labels) == (WIDTHS, "public")
    assert again.charged_as_ == fitted.charged_as_


# Messages.


def sketched_atom(plan: Plan, **changes: Any) -> dict[str, Any]:
    size = plan.numbers.sketch_size
    arrays = {"places": np.zeros(0, dtype=np.int64), "values": np.zeros(0), "sketch": np.zeros(size)}
    return {name: value for name, value in (arrays | changes).items() if value is not None}


def integers(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


Messages = dict[str, Callable[[Plan], dict[str, Any]]]

CENTRAL: Messages = {
    "nothing": lambda _: {},
    "another name": lambda _: {"weights": np.zeros(7)},
    "floats": lambda _: {"atoms": np.zeros(0)},
    "too many": lambda _: {"atoms": integers(1)},
    "two dimensions": lambda _: {"atoms": np.zeros((0, 2), dtype=np.int64)},
}
SKETCHED: Messages = {
    "nothing": lambda _: {},
    "no places": lambda p: sketched_atom(p, places=None),
    "no values": lambda p: sketched_atom(p, values=None),
    "no sketch": lambda p: sketched_atom(p, sketch=None),
    "places that are no integers": lambda p: sketched_atom(p, places=np.zeros(1), values=np.zeros(1)),
    "values that are integers": lambda p: sketched_atom(p, places=integers(1), values=integers(1)),
    "a place twice": lambda p: sketched_atom(p, places=integers(1, 1), values=np.zeros(2)),
    "a place below": lambda p: sketched_atom(p, places=integers(-1), values=np.zeros(1)),
    "a place beyond": lambda p: sketched_atom(p, places=integers(7), values=np.zeros(1)),
    "a value more": lambda p: sketched_atom(p, places=integers(1), values=np.zeros(2)),
    "places in two dimensions": lambda p: sketched_atom(p, places=integers(1)[None], values=np.zeros((1, 1))),
    "a point outside": lambda p: sketched_atom(p, places=integers(1, 2), values=np.full(2, 0.6 * p.numbers.radius)),
    "a point far outside": lambda p: sketched_atom(p, places=integers(1), values=np.array([-1e200])),
    "a short sketch": lambda p: sketched_atom(p, sketch=np.zeros(p.numbers.sketch_size - 1)),
    "a sketch of integers": lambda p: sketched_atom(p, sketch=np.zeros(p.numbers.sketch_size, dtype=np.int64)),
    "a huge sketch": lambda p: sketched_atom(p, sketch=np.full(p.numbers.sketch_size, 1.1e100)),
    "short labels": lambda p: sketched_atom(p, labels=np.zeros(3)),
    "huge labels": lambda p: sketched_atom(p, labels=np.full(p.numbers.sketch_size, -1e101)),
}
FEATURE: Messages = {
    "nothing": lambda _: {},
    "a float": lambda _: {"place": np.zeros(1)},
    "two": lambda _: {"place": integers(0, 1)},
    "none": lambda _: {"place": integers()},
    "no dimension": lambda _: {"place": np.array(0, dtype=np.int64)},
    "below": lambda _: {"place": integers(-1)},
    "beyond everybody's": lambda _: {"place": integers(4)},
    "beyond its own": lambda _: {"place": integers(2)},
}
PUBLISHED: Messages = {
    "nothing": lambda _: {},
    "short": lambda p: {"sketch": np.zeros(p.numbers.sketch_size - 1)},
    "integers": lambda p: {"sketch": np.zeros(p.numbers.sketch_size, dtype=np.int64)},
    "huge": lambda p: {"sketch": np.full(p.numbers.sketch_size, 1.1e100)},
}
SCORES = {"scores": np.zeros(PEOPLE)}
POINT = SCORES | {"places": integers(), "values": np.zeros(0)}
EXACT: Messages = {
    "nothing": lambda _: {},
    "scores of others": lambda _: POINT | {"scores": np.zeros(PEOPLE - 1)},
    "integers": lambda _: POINT | {"scores": np.zeros(PEOPLE, dtype=np.int64)},
    "a value more": lambda _: POINT | {"values": np.zeros(1)},
    "places in two dimensions": lambda _: POINT | {"places": integers(1)[None], "values": np.zeros((1, 1))},
    "a place beyond": lambda _: POINT | {"places": integers(7), "values": np.zeros(1)},
    "a huge score": lambda _: POINT | {"scores": np.full(PEOPLE, 1.1e100)},
}
SLOPES = {name: message for name, message in EXACT.items() if name in ("nothing", "scores of others", "integers")}
HELD: Messages = {
    "no slopes": lambda _: POINT,
    "slopes of others": lambda _: POINT | {"slopes": np.zeros(3)},
    "slopes of integers": lambda _: POINT | {"slopes": np.zeros(PEOPLE, dtype=np.int64)},
}
FORMS: dict[str, tuple[dict[str, Any], str, Messages, Callable[[Plan], dict[str, Any]]]] = {
    "central": (
        {"split": "central", "parties": (("ben", PEOPLE),), "features": 2, "columns": (), "norms": ()},
        "atom",
        CENTRAL,
        lambda _: {"atoms": integers()},
    ),
    "central, as published": (
        {
            "split": "central",
            "parties": (("ben", PEOPLE),),
            "features": 2,
            "columns": (),
            "norms": (),
            "calibration": "paper",
        },
        "atom",
        CENTRAL,
        lambda _: {"atoms": integers()},
    ),
    "atoms": ({}, "atom", SKETCHED, sketched_atom),
    "features": (
        {"norms": (), "bounds": Bounds.declare(entry_bound=0.5), "label_party": 0},
        "feature",
        FEATURE,
        lambda _: {"place": integers(1)},
    ),
    "features under a row norm": ({}, "feature", FEATURE, lambda _: {"place": integers(0)}),
    "published atoms": (
        {"calibration": "paper"},
        "atom",
        PUBLISHED,
        lambda p: {"sketch": np.zeros(p.numbers.sketch_size)},
    ),
    "published features": ({"calibration": "paper"}, "feature", FEATURE, lambda _: {"place": integers(1)}),
    "slopes": (
        {"epsilon": math.inf, "labels": "held", "label_party": 1},
        "slopes",
        SLOPES,
        lambda _: {"scores": np.zeros(PEOPLE)},
    ),
    "offers, labels held": (
        {"epsilon": math.inf, "labels": "held", "label_party": 1},
        "gap",
        HELD,
        lambda _: POINT | {"slopes": np.zeros(PEOPLE)},
    ),
    "offers": ({"epsilon": math.inf}, "gap", EXACT, lambda _: POINT),
    "columns": ({"epsilon": math.inf}, "column", FEATURE, lambda _: {"place": integers(1)}),
}
BAD_MESSAGES = [(form, name) for form, (_, _, messages, _) in FORMS.items() for name in messages]


@pytest.mark.parametrize(("form", "name"), BAD_MESSAGES, ids=[f"{form}-{name}" for form, name in BAD_MESSAGES])
def test_a_message_that_says_something_else_is_refused(
    form: str, name: str, columns_plan: MakePlan, tmp_path: Path
) -> None:
    fields, query, messages, good = FORMS[form]
    if fields.get("calibration") == "paper":
        bounds = Bounds.declare(row_norm=1.0, label_bound=1.0)
        fields = {"loss": Named(name="squared"), "classes": None, "bounds": bounds} | fields
    plan = columns_plan(**fields)
    account = sv.Ledger.create(tmp_path / "a.db").open("rows", 5.0, 1e-5) if plan.private else None
    party = party_of("ben", account=account, policy=Policy(allow_without_privacy=True))
    assert propose(party, plan).kind == "accept"
    turn = next(t for t in range(plan.rounds) if query_of(plan, query, "ben").answered_by(plan, "ben", t))
    if form.startswith("central"):
        turn = 0
    answer = send(party, "ask", plan=plan.digest, round=turn, query=query, arrays=messages[name](plan))
    assert answer.kind == "refuse", answer.text
    assert not answer.arrays
    reason = said(answer)["refused"]
    assert f"query {query!r} in round {turn}" in reason
    assert account is None or not [entry for entry in account.history() if entry.kind == "release"]
    assert send(party, "ask", plan=plan.digest, round=turn, query=query, arrays=good(plan)).kind == "answer"


def test_a_feature_under_a_row_norm_is_that_of_the_round(columns_plan: MakePlan) -> None:
    """Each column leaves once: B bounds them together, and one of them twice would cost more."""
    plan = columns_plan()
    assert plan.numbers.cap is None
    party = party_of()
    propose(party, plan)
    for place in (0, 1):
        wrong = {"place": integers(1 - place)}
        assert send(party, "ask", plan=plan.digest, round=place, query="feature", arrays=wrong).kind == "refuse"
        right = {"place": integers(place)}
        assert send(party, "ask", plan=plan.digest, round=place, query="feature", arrays=right).kind == "answer"


def test_under_a_row_norm_the_constant_column_is_no_feature(columns_plan: MakePlan) -> None:
    plan = columns_plan(label_party=1)
    party = party_of("ben")
    propose(party, plan)
    answer = send(party, "ask", plan=plan.digest, round=2, query="feature", arrays={"place": integers(2)})
    assert answer.kind == "refuse"
    assert "needs 'place'" in said(answer)["refused"]


def test_a_party_sends_no_more_features_than_its_cap(columns_plan: MakePlan) -> None:
    plan = columns_plan(norms=(), bounds=Bounds.declare(entry_bound=0.5), options={"rounds": 12, "cap": 2})
    party = party_of()
    propose(party, plan)
    kinds = [
        send(party, "ask", plan=plan.digest, round=slot, query="feature", arrays={"place": integers(slot)}).kind
        for slot in range(3)
    ]
    assert kinds == ["answer", "answer", "refuse"]


def test_a_choice_is_for_the_party_that_the_coin_names(columns_plan: MakePlan) -> None:
    plan = columns_plan(options={"rounds": 30})
    parties = {name: party_of(name) for name in NAMES}
    for party in parties.values():
        propose(party, plan)
    for turn in range(8):
        asked = {"plan": plan.digest, "round": turn, "query": "atom", "arrays": sketched_atom(plan)}
        kinds = [send(party, "ask", **asked).kind for party in parties.values()]
        assert sorted(kinds) == ["answer", "refuse", "refuse"]


def test_labels_leave_their_holder_alone(columns_plan: MakePlan) -> None:
    plan = columns_plan(labels="held", label_party=1)
    for name, kind in zip(NAMES, ("refuse", "answer", "refuse"), strict=True):
        party = party_of(name, labelled=name == "ben")
        propose(party, plan)
        assert send(party, "ask", plan=plan.digest, round=0, query="labels").kind == kind
    shared = columns_plan(label_party=1)
    party = party_of("ben")
    propose(party, shared)
    assert send(party, "ask", plan=shared.digest, round=0, query="labels").kind == "refuse"


class Recorded(InProcess):
    """A wire that keeps what passes."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.down: list[tuple[str, Frame]] = []
        self.up: list[tuple[str, Frame]] = []
        self.asks = 0

    def exchange(self, messages: Any) -> dict[str, bytes]:
        replies = super().exchange(messages)
        self.asks += any(decode(data).kind == "ask" for data in messages.values())
        self.down += [(name, decode(data)) for name, data in messages.items()]
        self.up += [(name, decode(data)) for name, data in replies.items()]
        return replies


def published(federation: Federation, **options: Any) -> Any:
    usual = {"row_norm": 1.0, "label_bound": 1.0, "calibration": "paper", "rounds": 5} | options
    return sv.PrivateLasso(radius=2.0, **declared("frank-wolfe", **usual)).fit(federation)


def test_what_is_for_one_party_is_said_to_that_one() -> None:
    federation = federation_of()
    federation.transport = wire = Recorded(federation._parties)
    published(federation)
    atoms = [(frame.round, name, frame) for name, frame in wire.down if frame.query == "atom" and frame.kind == "ask"]
    features = [(frame.round, name, frame) for name, frame in wire.down if frame.query == "feature"]
    assert len(atoms) == len(features) == 5 * 3
    for _, name, frame in features:
        assert set(frame.arrays) == {"place"}
        assert 0 <= frame.arrays["place"][0] <= WIDTHS[NAMES.index(name)]
    for round_ in range(5):
        shared = [frame.arrays["sketch"] for t, _, frame in atoms if t == round_]
        assert all(np.array_equal(sketch, shared[0]) for sketch in shared)


def test_what_is_for_one_party_comes_with_what_is_for_all(small_plan: MakePlan) -> None:
    plan = small_plan(parties=(("anna", PEOPLE), ("ben", PEOPLE)))
    X, y = rows()
    wire = Recorded([Party(name, X[:, :3], y) for name in ("anna", "ben")])
    coordinator = Coordinator(wire)
    coordinator.open(plan, ("anna", "ben"))
    wire.down.clear()
    own = {"ben": {"weights": np.ones(4)}, "nobody": {"extra": integers(8)}}
    queries = {name: query_of(plan, "gradient", name) for name in ("anna", "ben")}
    values = PlainAnswers(coordinator, plan).values(0, Ask("gradient", {"weights": np.zeros(4)}, each=own), queries)
    assert set(values) == {"anna", "ben"}
    frames = dict(wire.down)
    assert {name: sorted(frame.arrays) for name, frame in frames.items()} == {"anna": ["weights"], "ben": ["weights"]}
    assert [frames[name].arrays["weights"].tolist() for name in ("anna", "ben")] == [[0.0] * 4, [1.0] * 4]
    with pytest.raises(RefusedError, match=r"ben: .* takes no 'extra'"):
        PlainAnswers(coordinator, plan).values(
            1, Ask("gradient", {"weights": np.zeros(4)}, each={"ben": {"extra": integers(7)}}), queries
        )
    assert frames["anna"].serial == frames["ben"].serial


def test_a_party_that_was_restarted_is_told_its_own_again(columns_plan: MakePlan, tmp_path: Path) -> None:
    bounds = Bounds.declare(row_norm=1.0, label_bound=1.0)
    plan = columns_plan(loss=Named(name="squared"), classes=None, bounds=bounds, calibration="paper")
    accounts = {name: sv.Ledger.create(tmp_path / f"{name}.db").open(name, 1e7, 1e-5) for name in NAMES}
    wire = Recorded([party_of(name, account=accounts[name]) for name in NAMES])

    def restart(done: int, _total: int) -> None:
        if done in (3, 4):  # before a feature, and before a choice
            renewed(wire, party_of("ben", account=accounts["ben"], randomness=SeededRandomness(done)))

    solution, rounds = Coordinator(wire).run(plan, algorithms.of(plan), restart)
    assert rounds == 2 * plan.rounds
    assert np.isfinite(solution.weights).all()
    assert sum(frame.kind == "unknown-plan" for _, frame in wire.up) == 2
    repeated = [frame for name, frame in wire.down if name == "ben" and (frame.query, frame.round) == ("feature", 1)]
    assert len(repeated) == 2
    np.testing.assert_array_equal(repeated[0].arrays["place"], repeated[1].arrays["place"])
    assert all(account.balance().plans == 1 for account in accounts.values())


RUNS: dict[str, tuple[Callable[[Federation], Any], dict[str, Any], dict[str, set[str]]]] = {
    "row norm": (lambda f: model_of(rounds=20).fit(f), {}, {"indices": {"atom"}, "features": {"feature"}}),
    "held": (
        lambda f: model_of(rounds=20).fit(f),
        {"labels": "held", "label_party": 1},
        {"indices": {"atom"}, "features": {"feature"}, "labels": {"labels"}},
    ),
    "published": (published, {}, {"indices": {"atom"}, "features": {"feature"}}),
    "without privacy": (
        lambda f: model_of(epsilon=math.inf, rounds=None).fit(f),
        {"labels": "held"},
        {"gap": {"gap"}, "features": {"column"}, "slopes": {"slopes"}},
    ),
}


@pytest.mark.parametrize(("fit", "who", "kinds"), RUNS.values(), ids=RUNS)
def test_bytes_up_are_told_by_what_they_are(
    fit: Callable[[Federation], Any], who: dict[str, Any], kinds: dict[str, set[str]]
) -> None:
    federation = federation_of(**who)
    federation.transport = wire = Recorded(federation._parties)
    found = fit(federation).communication_
    for kind, queries in kinds.items():
        sizes = [len(encode(frame)) for _, frame in wire.up if frame.kind == "answer" and frame.query in queries]
        assert found.uplink.get(kind, 0) == sum(sizes)
    assert set(found.uplink) <= set(kinds)
    rest = sum(len(encode(frame)) for _, frame in wire.up if frame.kind in ("accept", "done"))
    assert sum(found.uplink.values()) + rest == found.uplink_bytes
    assert found.rounds == wire.asks


def test_other_solvers_name_their_bytes_by_their_queries() -> None:
    X, y = rows()
    fitted = sv.PrivateLogisticRegression(solver=by_name("newton", rounds=3), row_norm=1.0, classes=(0, 1)).fit(X, y)
    assert set(fitted.communication_.uplink) == {release.query for release in fitted.plan_.releases}


# Rows for solvers on the l1 ball.


def entries_of(X: Any, y: np.ndarray, plan: Plan) -> list[Block]:
    return [Block.prepare(part, y, plan.part(name).preparation) for name, part in zip(NAMES, split(X), strict=True)]


def dense(block: Block) -> np.ndarray:
    return np.asarray(block.rows.toarray() if sp.issparse(block.rows) else block.rows, dtype=np.float64)


def hostile() -> tuple[np.ndarray, np.ndarray]:
    """Rows within the bounds, beyond them, with holes, and labels that were not declared."""
    X, y = rows()
    X[3] *= 1e6
    X[4] = 1e300
    X[5, 0] = math.nan
    X[6, 4] = math.inf
    X[7] = 0.0
    y = y.astype(float)
    y[8] = 7.0
    return X, y


BOUNDS: dict[str, dict[str, Any]] = {
    "row norm": {"bounds": Bounds.declare(row_norm=1.0), "norms": NORMS},
    "entries": {"bounds": Bounds.declare(entry_bound=0.3), "norms": ()},
    "each entry": {"bounds": Bounds.declare(entry_bound=[0.1, 0.2, 0.3, 0.4, 0.5, 3.0]), "norms": ()},
    "ranges": {"bounds": Bounds.declare(feature_ranges=([-1] * 6, [1] * 6)), "norms": ()},
    "both": {"bounds": Bounds.declare(row_norm=0.5, entry_bound=0.2), "norms": tuple(n / 2 for n in NORMS)},
}


@pytest.mark.parametrize("fields", BOUNDS.values(), ids=BOUNDS)
def test_entries_are_at_most_one_and_on_the_grid(fields: dict[str, Any], columns_plan: MakePlan) -> None:
    plan = columns_plan(**fields)
    X, y = hostile()
    for block in entries_of(X, y, plan):
        assert block.layout == "entries"
        assert block.bits is not None
        entries = dense(block)
        assert np.abs(entries).max() <= 1.0
        scaled = entries * 2.0**block.bits
        np.testing.assert_array_equal(scaled, np.round(scaled))
        assert math.isinf(block.row_norm)  # nothing may rely on the norm of a row


@pytest.mark.parametrize("fields", BOUNDS.values(), ids=BOUNDS)
def test_null_rows_are_empty_and_known(fields: dict[str, Any], columns_plan: MakePlan) -> None:
    plan = columns_plan(**fields, label_party=1)
    X, y = hostile()
    blocks = entries_of(X, y, plan)
    usable = [np.ones(PEOPLE, dtype=bool) for _ in blocks]
    for known in usable:
        known[8] = False  # everybody knows the labels
    usable[0][5] = usable[1][6] = False
    for block, known in zip(blocks, usable, strict=True):
        assert block.usable is not None
        np.testing.assert_array_equal(block.usable, known)
        assert not dense(block)[~known].any()
    constant = dense(blocks[1])[:, -1]
    np.testing.assert_array_equal(constant, usable[1].astype(float))
    assert [dense(block).shape[1] for block in blocks] == [3, 3, 1]


@pytest.mark.parametrize("fields", BOUNDS.values(), ids=BOUNDS)
def test_sparse_and_dense_rows_are_one(fields: dict[str, Any], columns_plan: MakePlan) -> None:
    plan = columns_plan(**fields)
    X, y = hostile()
    X[np.random.default_rng(1).random(X.shape) < 0.5] = 0.0
    for one, other in zip(entries_of(X, y, plan), entries_of(sp.csr_matrix(X), y, plan), strict=True):
        np.testing.assert_array_equal(dense(one), dense(other))
        np.testing.assert_array_equal(one.labels, other.labels)
        assert one.rows.dtype == other.rows.dtype
        assert other.rows.format == "csc"
        assert one.rows.flags.f_contiguous


@pytest.mark.parametrize("fields", BOUNDS.values(), ids=BOUNDS)
def test_all_holders_divide_by_one_number(fields: dict[str, Any], columns_plan: MakePlan) -> None:
    """So that a coefficient means the same at each, and the ball is one for all."""
    plan = columns_plan(**fields, fit_intercept=False)
    X, y = rows()
    X *= 0.05  # within every bound: nothing is cut
    blocks = entries_of(X, y, plan)
    together = np.column_stack([dense(block) for block in blocks])
    rescaled = X if plan.bounds.feature_low is None else X.clip(-1, 1)
    step = 2.0 ** -(blocks[0].bits or 0)
    np.testing.assert_allclose(together, rescaled / plan.preparation.unit, rtol=0, atol=1.01 * step)
    whole = Block.prepare(X, y, plan.preparation)
    np.testing.assert_allclose(together, dense(whole), rtol=0, atol=1.01 * step)
    coef, _ = plan.preparation.unprepare(np.arange(6.0))
    np.testing.assert_allclose(together @ np.arange(6.0), rescaled @ coef, rtol=0, atol=16 * step)


def test_each_holder_cuts_its_part_of_a_row_to_its_share_of_the_norm(columns_plan: MakePlan) -> None:
    norms = (0.6, 0.48, 0.64)
    plan = columns_plan(bounds=Bounds.declare(row_norm=1.0), norms=norms, fit_intercept=False)
    X, y = rows()
    blocks = entries_of(100 * X, y, plan)
    for block, norm in zip(blocks, norms, strict=True):
        lengths = np.linalg.norm(dense(block), axis=1)
        assert lengths.max() <= norm / plan.preparation.unit
        np.testing.assert_allclose(lengths, norm / plan.preparation.unit, rtol=1e-5)
    assert np.linalg.norm(np.column_stack([dense(block) for block in blocks]), axis=1).max() <= 1.0
    within = entries_of(0.01 * X, y, plan)
    np.testing.assert_allclose(
        np.column_stack([dense(b) for b in within]), 0.01 * X / plan.preparation.unit, rtol=0, atol=1e-6
    )
