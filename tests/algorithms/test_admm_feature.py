"""Noise for one column of a party: how far a column moves a message, whatever the others are, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sottovoce as sv
from plans import columns_problem
from sottovoce import algorithms
from sottovoce.algorithms.sharing.admm_feature import CONDITION, FeatureADMM, FeatureNumbers, check_numbers
from sottovoce.app.previews import cost_of
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.errors import InputError, RefusedError
from sottovoce.federation.party import Party
from sottovoce.federation.policy import Policy
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.privacy.calibration import mu_for
from sottovoce.privacy.events import SAMPLER_SHARE, Unbounded
from sottovoce.solvers import by_name
from support import at, epsilons_of, events_of, forged, handle, plan_of, query_of, world_events_of

FORM = FeatureADMM()
RECORDS, COLUMNS = 30, (5, 2)


def problem_for(alpha: float = 0.1, loss: str = "squared", records: int = RECORDS, **fields: Any) -> Problem:
    declared: dict[str, Any] = {
        "loss": Named(name=loss),
        "regulariser": Named(name="l2", parameters={"alpha": alpha}),
        "parties": (("anna", records), ("ben", records)),
        "labels": "public",
        "classes": None if loss == "squared" else (-1, 1),
    }
    bounds = fields.pop("bounds", Bounds.declare(entry_bound=1.0, label_bound=1.0))
    return columns_problem(COLUMNS, records, bounds, **declared | fields)


def plan_for(alpha: float = 0.1, loss: str = "squared", **fields: Any) -> Plan:
    options = {"unit": "feature", **fields.pop("options", {})}
    return plan_of(problem_for(alpha, loss, **fields), "admm", **options)


def said(plan: Plan, X: Any, y: np.ndarray, messages: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """The values, before their noise, of a party that is told these (sum, others) one after another."""
    query, block = query_of(plan, "scores", "anna"), Block.prepare(X, y, plan.part("anna").preparation)
    memory = FORM.remember(plan, block)
    return [at(query, block, plan=plan, memory=memory, sum=total, others=others) for total, others in messages]


def columns(generator: np.random.Generator, kind: str) -> np.ndarray:
    X: np.ndarray = generator.standard_normal((RECORDS, 5)) * 10.0 ** generator.uniform(-3, 2)
    if kind == "alike":
        X = X[:, [0]] + 10.0 ** generator.uniform(-8, 0) * X
    if kind == "few":
        X[generator.random((RECORDS, 5)) < 0.9] = 0.0
    if kind == "flat":
        X = np.sign(X) * 10.0 ** generator.uniform(-6, 0)
    return X


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["random", "alike", "few", "flat"])
@pytest.mark.parametrize("alpha", [1e-6, 1e-3, 1.0, 1e4])
@pytest.mark.parametrize("column_norm", [None, 1.5])
def test_a_column_moves_a_message_by_at_most_one(kind: str, alpha: float, column_norm: float | None) -> None:
    """Taken out or replaced, also by a copy of another; for whatever the coordinator says. 32,000 messages in all."""
    plan = plan_for(alpha, options={"column_norm": column_norm, "slope_bound": 0.5})
    generator = np.random.default_rng(1)
    largest = 0.0
    for trial in range(250):
        X = columns(generator, kind)
        y = generator.uniform(-1, 1, RECORDS)
        place, neighbour = int(generator.integers(5)), X.copy()
        changes = (0.0 * X[:, place], -X[:, place], columns(generator, kind)[:, 0], X[:, place - 1])
        neighbour[:, place] = changes[trial % 4]
        size = 10.0 ** generator.uniform(-3, 3)
        along = generator.choice([0.0, 1.0]) * X[:, place] / max(np.abs(X[:, place]).max(), 1e-9)
        messages = [
            (size * generator.standard_normal(RECORDS), size * (along + generator.standard_normal(RECORDS)))
            for _ in range(2)
        ]
        if trial % 5 == 0:
            messages[0] = (messages[0][0], 1e99 * along)
        for one, other in zip(said(plan, X, y, messages), said(plan, neighbour, y, messages), strict=True):
            largest = max(largest, float(np.linalg.norm(one - other)))
    assert largest <= 1 + 2.0**-20  # well within the room that is charged
    query = query_of(plan, "scores", "anna")
    assert query.sensitivity("zero-out") == query.sensitivity("replace-one") == 1 + 2.0**-16


@pytest.mark.parametrize("alpha", [1e-5, 1e-2, 10.0])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_canary_attains_the_bound(alpha: float, sparse: bool) -> None:
    """One column as long as it may be, alone, along the pull."""
    plan = plan_for(alpha, fit_intercept=False)
    X = np.zeros((RECORDS, 5))
    X[:, 2] = np.where(np.arange(RECORDS) % 2, 1.0, -1.0)
    shape = sp.csr_matrix if sparse else np.asarray
    messages = [(np.zeros(RECORDS), 1e6 * X[:, 2])]
    (one,), (other,) = (said(plan, shape(rows), np.zeros(RECORDS), messages) for rows in (X, 0 * X))
    assert np.count_nonzero(other) == 0
    assert 0.99 <= np.linalg.norm(one) <= 1 + 2.0**-20


def test_a_row_norm_would_tie_columns_together() -> None:
    """Negative control: where rows are cut, a column moves the others, and a message by more than the bound."""
    with pytest.raises(InputError, match=r"row_norm=1\.0: unit='feature' bounds each column on its own"):
        plan_for(bounds=Bounds.declare(row_norm=1.0, label_bound=1.0), norms=(0.8, 0.6))
    plan = plan_for(1.0, fit_intercept=False, options={"column_norm": 1.0})
    X = np.zeros((RECORDS, 5))
    X[:, :4] = 1 / math.sqrt(RECORDS)
    long = X.copy()
    long[:, 4] = 10.0
    pull = [(np.zeros(RECORDS), np.full(RECORDS, 1e6))]

    def apart(*pair: np.ndarray) -> float:
        one, other = (said(plan, part, np.zeros(RECORDS), pull)[0] for part in pair)
        return float(np.linalg.norm(one - other))

    assert apart(X, long) <= 1 + 2.0**-20
    assert apart(*(part * 0.36 / np.linalg.norm(part, axis=1, keepdims=True) for part in (X, long))) > 2.5


def test_numbers_that_are_none_show_nothing() -> None:
    """Sums that overflow are public, so they may count as anything; but not as NaN where a column is not 0."""
    plan = plan_for(1.0)
    generator = np.random.default_rng(2)
    X, y = columns(generator, "few"), np.zeros(RECORDS)
    huge = np.full(RECORDS, 1e100)
    for shape in (np.asarray, sp.csr_matrix):
        for value in said(plan, shape(X), y, [(huge, -huge), (-huge, huge), (huge, huge)]):
            assert np.all(np.isfinite(value))


def test_without_noise_it_ends_at_the_regression() -> None:
    """Messages are scores: many rounds with next to no noise lead to the minimum, in the units of the data."""
    generator = np.random.default_rng(3)
    X = np.clip(generator.standard_normal((400, 7)) / 3, -1, 1)
    y = np.clip(X @ np.linspace(-1, 1, 7) + 0.1 * generator.standard_normal(400), -1, 1)
    federation = sv.Federation.by_columns([X[:, :5], X[:, 5:]], y, labels="public")
    shared: dict[str, Any] = {"entry_bound": 1.0, "label_bound": 1.0, "alpha": 0.5, "fit_intercept": False}
    solver = by_name("admm", unit="feature", rounds=150, slope_bound=2.0)
    model = sv.PrivateRidge(1e9, 1e-5, solver=solver, insecure_seed=0, **shared).fit(federation)
    found = model.predict(federation.people([X[:, :5], X[:, 5:]]))
    exact = sv.PrivateRidge(math.inf, solver="newton", **shared).fit(X, y).predict(X)
    np.testing.assert_allclose(found, exact, atol=2e-3)
    assert np.abs(exact).max() > 0.1
    report = model.privacy_
    assert report.coordinator.unit == report.world.unit == "feature"


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_the_noise_is_that_of_the_budget_and_no_record_is_promised_anything(epsilon: float, loss: str) -> None:
    plan = plan_for(loss=loss, epsilon=epsilon, options={"rounds": 7})
    release = plan.release("scores")
    mu = mu_for(epsilon, 1e-5 * (1 - SAMPLER_SHARE))
    query = query_of(plan, "scores", "ben")
    charged = query.sensitivity("zero-out") + release.step * math.sqrt(RECORDS)
    assert charged * math.sqrt(7) / release.std == pytest.approx(mu, rel=1e-9)
    assert epsilons_of(plan, "zero-out")["coordinator"] == pytest.approx(epsilon, rel=1e-6)
    assert all(isinstance(event, Unbounded) for event in (*events_of(plan), *world_events_of(plan)))
    assert plan.protects == "feature"
    assert plan.models == "kept"
    assert algorithms.of(plan).title == FORM.title


def test_parties_refuse_it_where_people_are_to_be_protected_and_numbers_without_proof() -> None:
    X, y = np.zeros((RECORDS, 5)), np.zeros(RECORDS)
    plan = plan_for()

    def answer(party: Party, plan: Plan, *asks: tuple[str, int, dict[str, np.ndarray]]) -> list[Frame]:
        frames = [Frame("plan", 1, plan.digest, text=plan.to_json())]
        frames += [
            Frame("ask", k, plan.digest, round_, query, arrays) for k, (query, round_, arrays) in enumerate(asks)
        ]
        return [decode(handle(party, encode(frame)).data) for frame in frames]

    (reply,) = answer(Party("anna", X, y, policy=Policy(max_epsilon=100.0)), plan)
    assert reply.kind == "refuse"
    assert "without noise" in reply.text
    open_minded = Policy(allow_without_privacy=True)

    def propose(**fields: Any) -> str:
        digest, text = forged(plan, **fields)
        party = Party("anna", X, y, policy=open_minded)
        return decode(handle(party, encode(Frame("plan", 1, digest, text=text))).data).kind

    numbers = plan.numbers.fields()
    for name, value in (
        ("column_norm", 1e9),
        ("column_norm", -1.0),
        ("rho", math.inf),
        ("rho", math.nan),
        ("ridge", 0.0),
        ("ridge", 1e-12),
        ("slope_bound", 0.0),
        ("slope_bound", math.nan),
    ):
        assert propose(numbers=numbers | {name: value}) == "refuse", name
    ridge = {"regulariser": {"name": "none", "parameters": {}}}
    for update in ({"labels": "shared"}, {"numbers": {}}, {"numbers": numbers | {"surprise": 1.0}}, ridge):
        assert propose(**update) == "refuse"
    assert propose() == "accept"
    good = {"sum": np.zeros(RECORDS), "others": np.zeros(RECORDS)}
    replies = answer(Party("anna", X, y, policy=open_minded), plan, ("scores", 0, good), ("scores", 9, good))
    assert [frame.kind for frame in replies] == ["accept", "answer", "refuse"]


def test_bad_input_is_told_and_sizes_are_known() -> None:
    with pytest.raises(InputError, match="labels='shared': unit='feature' protects columns"):
        plan_for(labels="shared")
    with pytest.raises(InputError, match="needs the squared norm with alpha > 0"):
        plan_for(regulariser=Named(name="none"))
    with pytest.raises(InputError, match="alpha is too small"):
        plan_for(1e-12)
    with pytest.raises(InputError, match="models='shared'"):
        plan_for(options={"models": "shared"})
    with pytest.raises(InputError, match="the curvature of the loss"):
        check_numbers(
            problem_for(loss="sigmoid"), FeatureNumbers(rho=0.01, ridge=1.0, column_norm=1.0, slope_bound=1.0)
        )
    assert CONDITION == 2.0**32
    generator = np.random.default_rng(4)
    parts = [generator.uniform(-1, 1, (RECORDS, width)) for width in COLUMNS]
    shared: dict[str, Any] = {"entry_bound": 1.0, "label_bound": 1.0, "alpha": 1.0, "insecure_seed": 0}
    federation = sv.Federation.by_columns(parts, np.zeros(RECORDS), labels="public")
    model = sv.PrivateRidge(1.0, 1e-5, solver=by_name("admm", unit="feature"), **shared).fit(federation)
    cost, done = cost_of(model.plan_, FORM), model.communication_
    assert cost.rounds == 5
    assert cost.uplink_bytes == pytest.approx(done.uplink_bytes, rel=0.1)
    assert cost.downlink_bytes == pytest.approx(done.downlink_bytes, rel=0.1)
    strict = sv.Federation.by_columns(
        parts, np.zeros(RECORDS), labels="public", names=("anna", "ben"), policy=Policy(max_epsilon=1.0)
    )
    with pytest.raises(RefusedError, match="without noise"):
        strict.coordinator().run(plan_for(), FORM)
