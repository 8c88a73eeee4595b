"""Rows with noise once, and noisy gradients: what a record moves, what all of it costs, and what a coordinator can try.

Attacks know everything but one record, and all that was sent. If a run is mu-GDP, they guess a bit right with
probability Phi(mu / 2) at most; thresholds are such that a sound run fails them with probability 1e-6.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import binom, norm

import sottovoce as sv
from covering import pairwise
from plans import columns_problem
from sottovoce import algorithms
from sottovoce.algorithms.base import Ask, Rounds
from sottovoce.algorithms.sharing.gradients import NoisyRowScores, OwnGradients, bound_of
from sottovoce.algorithms.sharing.private import FreshADMM, FreshScores, NoisyRowsADMM
from sottovoce.app.previews import cost_of
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.errors import BudgetError, InputError, RefusedError
from sottovoce.federation.coordinator import Coordinator
from sottovoce.federation.party import Party
from sottovoce.federation.policy import Policy
from sottovoce.gate import gate as gates
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.gate.query import Derived, Round
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Labels, Named
from sottovoce.privacy.accounting import epsilon_of
from sottovoce.privacy.calibration import mu_for
from sottovoce.privacy.events import SAMPLER_SHARE, Relation
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.queries.pricing import queries_of
from sottovoce.solvers import by_name
from support import at, epsilons_of, events_of, forged, handle, plan_of, query_of
from wires import over_grpc

RELATIONS: tuple[Relation, ...] = ("zero-out", "replace-one")
FORMS: dict[str, OwnGradients] = {"persistent": NoisyRowsADMM(), "fresh": FreshADMM()}
FORM = FORMS["persistent"]
SCORES = {"persistent": NoisyRowScores, "fresh": FreshScores}
RECORDS, COLUMNS = 14, (2, 3)
LOSSES: dict[str, dict[str, Any]] = {
    "logistic": {"classes": (-1, 1)},
    "hinge": {"classes": (-1, 1)},
    "smoothed_hinge": {"classes": (-1, 1)},
    "squared": {"classes": None},
    "huber": {"classes": None},
    "sigmoid": {"classes": (-1, 1)},
}


def plan_for(form: str = "persistent", loss: str = "logistic", **fields: Any) -> Plan:
    """A plan of parties of which the last holds the labels."""
    bounds = fields.pop("bounds", Bounds.declare(entry_bound=1.0, label_bound=1.0))
    columns, records = fields.pop("columns", COLUMNS), fields.pop("records", RECORDS)
    options = fields.pop("options", {"rounds": 6})
    named = Named(name=loss, parameters={"threshold": 0.5} if loss == "huber" else {})
    fields = {"loss": named, "label_party": len(columns) - 1, **LOSSES[loss]} | fields
    return plan_of(columns_problem(columns, records, bounds, first=1, **fields), "admm", rows=form, **options)


def with_releases(plan: Plan, **updates: Mapping[str, Any] | None) -> Plan:
    """The plan with other fields in some releases; None takes one out."""
    found = [
        release.model_copy(update=dict(updates.get(release.query, {}) or {}))
        for release in plan.releases
        if updates.get(release.query, {}) is not None
    ]
    return plan.model_copy(update={"releases": tuple(found)})


def people(generator: np.random.Generator, plan: Plan, sparse: bool = False) -> tuple[list[Any], np.ndarray]:
    """Columns of all sizes, some beyond the bounds, and labels."""
    X = np.round(generator.standard_normal((plan.records, plan.features)) * 10.0 ** generator.uniform(-1, 1), 3)
    X[generator.random(X.shape) < 0.3] = 0.0
    y = generator.uniform(-1, 1, plan.records)
    shape = sp.csr_matrix if sparse else np.asarray
    edges = np.cumsum(plan.columns)[:-1]
    return [shape(part) for part in np.split(X, edges, axis=1)], np.sign(y) if plan.classes else y


def changed(parts: list[Any], y: np.ndarray, person: int, relation: Relation) -> tuple[list[Any], np.ndarray]:
    """The neighbour: a record that is blank everywhere, or has other signs."""
    sparse = sp.issparse(parts[0])
    found, labels = [part.toarray() if sparse else part.copy() for part in parts], y.copy()
    for part in found:
        part[person] = math.nan if relation == "zero-out" else -part[person]
    labels[person] = math.nan if relation == "zero-out" else -labels[person]
    return [sp.csr_matrix(part) if sparse else part for part in found], labels


class Quiet:
    """Parties whose gate adds no noise but to the kept rows and to what the record's own vectors have: always the same.

    The answers are made by the solver's own code.
    """

    def __init__(self, plan: Plan, form: OwnGradients, parts: list[Any], y: np.ndarray, coins: int | None) -> None:
        self.plan, self.form = plan, form
        self.blocks, self.memories, self.queries = {}, {}, {}
        for (name, _), X in zip(plan.parties, parts, strict=True):
            recipe = plan.part(name).preparation
            self.blocks[name] = Block.prepare(X, y if recipe.labelled else np.zeros(len(y)), recipe)
            self.memories[name] = form.remember(plan, self.blocks[name])
            self.queries[name] = queries_of(form, plan, name)
        self.coins = coins

    def coin(self, name: str, query: str, shape: Any) -> Any:
        """Noise that does not depend on the data."""
        if self.coins is None:
            return 0.0
        release = next(release for release in self.plan.releases if release.query == query)
        generator = np.random.default_rng([self.coins, *name.encode(), *query.encode()])
        return release.std * generator.standard_normal(shape)

    def answer(self, name: str, ask: Ask, number: int) -> np.ndarray:
        """What a party says to an ask."""
        query, rows = self.queries[name][ask.query], self.blocks[name]
        told = {**ask.arrays, **ask.each.get(name, {})}
        round = Round(self.plan, number, told, rows, self.memories[name])
        if isinstance(query, Derived):
            exact = query.source.value(round)
            return query.derive(np.asarray(exact + self.coin(name, "rows", exact.shape), dtype=np.float32), told)
        value = np.asarray(query.value(round))
        return value + self.coin(name, query.name, value.shape) if value.shape == (len(rows),) else value


@pairwise(form=FORMS, loss=LOSSES, labels=["shared", "held"], relation=RELATIONS, tier=["world", "parties"])
def test_a_record_moves_its_own_slope_and_no_more_than_is_charged(
    form: str, loss: str, labels: Labels, relation: Relation, tier: str
) -> None:
    """In a whole run, duals and all. For the world, scores and noisy labels differ too, by the record's own entries."""
    sparse, intercept = relation == "zero-out" and loss == "logistic", labels == "shared"
    plan = plan_for(form, loss, labels=labels, relation=relation, fit_intercept=intercept)
    algorithm, generator = FORMS[form], np.random.default_rng(2)
    largest = 0.0
    for trial in range(4):
        parts, y = people(generator, plan, sparse)
        person = int(generator.integers(RECORDS))
        sides = [Quiet(plan, algorithm, *side, trial) for side in ((parts, y), changed(parts, y, person, relation))]
        texts = [algorithm.coordinate(plan) for _ in sides]
        asks, rounds = [next(text) for text in texts], Rounds(plan, algorithm)
        asked: dict[str, int] = {}
        while True:
            query, (round_, names) = asks[0].query, rounds.assign(asks[0])
            values: list[dict[str, np.ndarray]] = [{}, {}]
            for name in names:
                one, other = (side.answer(name, ask, round_) for side, ask in zip(sides, asks, strict=True))
                rule = sides[0].queries[name][query]
                if query in ("scores", "labels"):
                    assert np.count_nonzero(np.delete(one - other, person)) == 0
                if query != "scores" or form == "fresh":
                    moved = float(np.linalg.norm((one - other) * rule.noise_weights))
                    assert moved <= rule.sensitivity(relation) * (1 + 1e-9)
                    largest = max(largest, moved / rule.sensitivity(relation))
                if query == "gradient":
                    slopes = [side.memories[name].current for side in sides]
                    assert np.count_nonzero(np.delete(slopes[0] - slopes[1], person)) == 0
                noise = generator.standard_normal(one.shape) * plan.release(query).std
                own = tier == "world" and query in ("scores", "labels")
                values[0][name] = one + (0.0 if own else noise)
                values[1][name] = other if own else values[0][name]
            asked[query] = asked.get(query, 0) + 1
            try:
                asks = [text.send(value) for text, value in zip(texts, values, strict=True)]
            except StopIteration:
                break
        assert asked["gradient"] == 6
    assert largest > 0.5


@pairwise(
    form=FORMS,
    relation=RELATIONS,
    labels=["public", "shared", "held"],
    columns=[(2, 3), (1, 2, 3), (1, 2, 3, 1, 1, 4, 2, 2)],
    epsilon=[0.1, 8.0],
)
def test_the_joint_cost_is_the_budget_and_the_world_pays_less(
    form: str, relation: Relation, labels: Labels, columns: tuple[int, ...], epsilon: float
) -> None:
    bounds = Bounds.declare(row_norm=2.0) if len(columns) == 3 else Bounds.declare(entry_bound=1.0)
    plan = plan_for(form, relation=relation, labels=labels, columns=columns, epsilon=epsilon, bounds=bounds)
    share, delta = SCORES[form].share, 1e-5 * (1 - SAMPLER_SHARE)
    spent = {epsilon_of(events_of(plan, relation, name), delta, relation) for name in plan.names}
    assert len(spent) == 1
    assert 0.985 * epsilon <= max(spent) <= epsilon
    found = epsilons_of(plan, relation)
    assert found["coordinator"] == found["parties"] == max(spent)
    share = (1 - share) * (0.7 if labels == "held" else 1.0)
    assert mu_for(found["world"], delta) == pytest.approx(mu_for(epsilon, delta) * math.sqrt(share), rel=2e-3)
    assert events_of(plan, relation, "party-1") == events_of(plan, relation, "party-2")
    assert algorithms.of(plan).title == FORMS[form].title


@pytest.mark.parametrize("form", FORMS)
def test_both_tiers_can_be_asked_for(form: str) -> None:
    plan = plan_for(form, epsilon=8.0, options={"world_epsilon": 0.5})
    found = epsilons_of(plan, "zero-out")
    assert found["world"] == pytest.approx(0.5, rel=1e-3)
    assert found["world"] <= 0.5
    assert 0.985 * 8 <= found["coordinator"] <= 8.0
    with pytest.raises(InputError, match="leaves nothing for the rows"):
        plan_for(form, epsilon=1.0, options={"world_epsilon": 1.0})
    with pytest.raises(InputError, match="give one of them"):
        plan_for(form, options={"world_epsilon": 0.5, "row_share": 0.5})


def evidence(plan: Plan, form: OwnGradients, transcript: list[Any], sides: list[Quiet], person: int) -> float:
    """The log-likelihood ratio of everything that was sent, between two data sets that differ in one record.

    The messages of the coordinator follow from the answers. Scores of kept rows give the record's noisy row, by least
    squares; for all else the mean of the noise is what the parties would have said.
    """
    answers = {(m.name, m.round, m.sender): m.payload for m in transcript if isinstance(m.payload, np.ndarray)}
    text, rounds, total = form.coordinate(plan), Rounds(plan, form), 0.0
    weights: dict[str, list[np.ndarray]] = {name: [] for name in dict(plan.parties)}
    scores: dict[str, list[float]] = {name: [] for name in weights}
    ask = next(text)
    while True:
        round_, names = rounds.assign(ask)
        values = {name: answers[ask.query, round_, name] for name in names}
        release = plan.release(ask.query)
        for name, value in values.items():
            if release.mechanism == "derived":
                weights[name].append(ask.each[name]["weights"])
                scores[name].append(float(value[person]))
                continue
            size = sides[0].queries[name][ask.query].noise_weights
            apart = [float(np.sum(((value - side.answer(name, ask, round_)) * size) ** 2)) for side in sides]
            total += (apart[1] - apart[0]) / (2 * release.std**2)
        try:
            ask = text.send(values)
        except StopIteration:
            break
    for name in weights:
        if weights[name]:
            row = np.linalg.lstsq(np.array(weights[name]), np.array(scores[name]), rcond=None)[0]
            means = [at(side.queries[name]["rows"], side.blocks[name])[person] for side in sides]
            apart = [float(np.sum((row - mean) ** 2)) for mean in means]
            total += (apart[1] - apart[0]) / (2 * plan.release("rows").std ** 2)
    return total


def guessed(form: str, plan: Plan, runs: int, kind: str) -> int:
    """How often the likelier of two neighbours is the true one. They differ in a record's columns, or in its label."""
    algorithm, generator, right = FORMS[form], np.random.default_rng(5), 0
    policy = Policy(max_epsilon=1e4)
    for run in range(runs):
        parts, y = people(generator, plan)
        for part in parts:
            part[3] = 1.0
        other, z = [part.copy() for part in parts], y.copy()
        if kind == "columns":
            for part in other:
                part[3] = -part[3]
        else:
            z[3] = -z[3]
        truth = int(generator.integers(2))
        mine = (other, z) if truth else (parts, y)
        federation = sv.Federation.by_columns(
            *mine, labels=plan.labels, label_party=plan.label_party, record=True, policy=policy
        )
        coordinator = federation.coordinator(insecure_seed=run)
        coordinator.run(plan, algorithm)
        assert coordinator.transcript is not None
        sides = [Quiet(plan, algorithm, *side, None) for side in ((parts, y), (other, z))]
        found = evidence(plan, algorithm, coordinator.transcript, sides, 3)
        right += int((found < 0) == bool(truth))
    return right


def most(runs: int, epsilon: float) -> int:
    return int(binom(runs, norm.cdf(mu_for(epsilon, 1e-5) / 2)).isf(1e-6))


def louder(plan: Plan, factor: float) -> Plan:
    """The same plan with noise multiplied."""
    return with_releases(plan, **{r.query: {"std": r.std * factor} for r in plan.releases if r.std > 0})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "labels", "kind"),
    [
        ("persistent", "shared", "columns"),
        ("fresh", "shared", "columns"),
        ("persistent", "held", "label"),
        ("fresh", "held", "label"),
    ],
)
def test_all_that_was_sent_tells_no_more_than_epsilon_allows(form: str, labels: Labels, kind: str) -> None:
    """The best attack there is, at epsilon 4. With a tenth of the noise it goes beyond what is allowed."""
    runs, epsilon = 80, 4.0
    plan = plan_for(form, epsilon=epsilon, labels=labels, relation="replace-one", options={"rounds": 4})
    right = guessed(form, plan, runs, kind)
    assert right <= most(runs, epsilon)
    assert guessed(form, louder(plan, 1 / 10), runs, kind) > most(runs, epsilon)


def test_with_the_noise_off_held_labels_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the reading that finds every label without noise finds about half of them with it."""
    plan = plan_for(labels="held", records=200, epsilon=1.0)
    parts, y = people(np.random.default_rng(0), plan)

    def read() -> int:
        federation = sv.Federation.by_columns(parts, y, labels="held", label_party=1, record=True)
        coordinator = federation.coordinator(insecure_seed=0)
        coordinator.run(plan, FORM)
        assert coordinator.transcript is not None
        (said,) = (m.payload for m in coordinator.transcript if m.name == "labels")
        return int(np.count_nonzero(np.sign(said) == y))

    # 0.3 of mu^2 on the labels: a sign is right with probability Phi(mu sqrt(0.3)) for every person on their own
    chance = norm.cdf(mu_for(1.0, 1e-5) * math.sqrt(0.3))
    assert read() <= binom(200, chance).isf(1e-6) < 160

    def silence(scale: Any, count: int, randomness: Any) -> np.ndarray:
        del scale, randomness
        return np.zeros(count, dtype=np.int64)

    monkeypatch.setattr(gates, "rounded_gaussian", silence)
    assert read() == 200


def sizes(transcript: list[Any] | None) -> list[Any]:
    said = {"accept": lambda payload: len(str(payload)), "done": str}  # a signature is another one each time
    return [
        (m.round, m.sender, m.name, np.shape(m.payload), said.get(m.name, lambda _: "")(m.payload))
        for m in transcript or []
    ]


@pairwise(form=FORMS, relation=RELATIONS, sparse=[False, True])
def test_neighbours_have_messages_of_the_same_sizes(form: str, relation: Relation, sparse: bool) -> None:
    plan = plan_for(form, labels="held")
    parts, y = people(np.random.default_rng(1), plan, sparse)
    seen = []
    for side in ((parts, y), changed(parts, y, 3, relation), changed(parts, 1e300 * y, 3, relation)):
        federation = sv.Federation.by_columns(*side, labels="held", label_party=1, record=True)
        coordinator = federation.coordinator(insecure_seed=0)
        coordinator.run(plan, FORMS[form])
        seen.append((sizes(coordinator.transcript), vars(federation.transport.communication)))
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0][0]) > 20


def party_of(plan: Plan, name: str = "party-1", policy: Policy | None = None, **fields: Any) -> Party:
    parts, y = people(np.random.default_rng(3), plan)
    place = list(dict(plan.parties)).index(name)
    known = plan.part(name).preparation.labelled
    fields = {"randomness": SeededRandomness(0, name), **fields}
    return Party(name, parts[place], y if known else None, policy=policy, **fields)


def say(party: Party, plan: Plan, query: str = "", round_: int = 0, **arrays: np.ndarray) -> Frame:
    kind, text = ("ask", "") if query else ("plan", plan.to_json())
    return decode(handle(party, encode(Frame(kind, 1, plan.digest, round_, query, arrays, text))).data)


def propose(party: Party, digest: bytes, text: str) -> Frame:
    return decode(handle(party, encode(Frame("plan", 1, digest, text=text))).data)


@pytest.mark.parametrize("form", FORMS)
def test_plans_of_a_coordinator_that_cheats(form: str) -> None:
    plan = plan_for(form, labels="held")
    names = {release.query: release for release in plan.releases}
    policy = Policy(max_epsilon=1.0)
    assert say(party_of(plan, policy=policy), plan).kind == "accept"

    def refused(lying: Plan) -> bool:
        party = party_of(plan, policy=policy)
        assert party_of(plan, policy=policy).features == plan.columns[0]
        return say(party, lying).kind == "refuse" and party.failure is None

    less = {query: {"std": release.std * 0.9} for query, release in names.items() if release.std > 0}
    for query, update in less.items():
        assert refused(with_releases(plan, **{query: update})), query
        lie = update | {"charged_zero_out": names[query].charged_zero_out * 0.5}
        assert refused(with_releases(plan, **{query: lie})), query
        huge = update | {"charged_zero_out": 1e9, "charged_replace_one": 1e9}
        assert refused(with_releases(plan, **{query: huge})), query
    for query in names:
        free = form == "persistent" and query == "scores"
        if not free:
            assert refused(with_releases(plan, **{query: None})), query
            assert refused(with_releases(plan, **{query: {"std": 0.0}})), query
            if query != "rows":  # no plan keeps rows twice
                assert refused(with_releases(plan, **{query: {"count": names[query].count + 1}})), query
        for mechanism in {"gaussian", "kept", "derived", "selection", "noisy-max"} - {names[query].mechanism}:
            one = {"mechanism": mechanism, "count": 1}
            try:
                lying = with_releases(plan, **{query: one})
            except RefusedError:
                continue
            assert refused(lying), (query, mechanism)
        if names[query].mechanism == "gaussian":
            assert refused(with_releases(plan, **{query: {"rate": 0.5}}))
    numbers = plan.numbers.fields()
    for name, value in itertools.product(("slope_bound", "held_bound"), (0.0, -1.0, math.nan, math.inf)):
        party = party_of(plan, name="party-2" if name == "slope_bound" else "party-1", policy=policy)
        assert propose(party, *forged(plan, numbers=numbers | {name: value})).kind == "refuse", (name, value)
    if form == "fresh":
        for clip in (0.0, -1.0, 1e10, math.nan, math.inf):
            assert propose(party_of(plan), *forged(plan, numbers=numbers | {"clip": clip})).kind == "refuse", clip
    updates: tuple[dict[str, Any], ...] = (
        {"numbers": {}},
        {"numbers": numbers | {"surprise": 1.0}},
        {"form": "exact"},
        {"layout": "rows"},
        {"columns": (3, 2)},
        {"labels": "shared"},
        {"label_party": 0},
    )
    for update in updates:
        party = party_of(plan, policy=policy)
        assert propose(party, *forged(plan, **update)).kind == "refuse", update
        assert party.failure is None


def test_rows_cannot_be_asked_for_in_clear() -> None:
    """A party with one column, a plan that keeps something else: one draw for all people cancels in differences."""
    plan = plan_for(columns=(1, 2))
    lying = with_releases(plan, rows={"mechanism": "gaussian", "count": 5}, gram={"mechanism": "kept"})
    party = party_of(plan, policy=Policy(max_epsilon=1.0))
    assert say(party, lying).kind == "refuse"
    assert say(party, plan).kind == "accept"
    assert say(party, plan, "rows").kind == "refuse"


@pytest.mark.parametrize("form", FORMS)
def test_messages_of_a_coordinator_that_cheats(form: str) -> None:
    """A forged message is refused, and nothing happened; the largest numbers that are allowed move no bound."""
    plan, held = plan_for(form), plan_for(form, labels="held")
    whole: dict[str, Any] = {"weights": np.zeros(2), "offset": np.zeros(RECORDS)}
    party = party_of(plan)
    assert say(party, plan).kind == "accept"
    assert say(party, plan, "gradient", 0, **whole, labels=np.zeros(RECORDS)).kind == "refuse"
    assert party.failure is None
    assert say(party, plan, "gradient", 0, **whole).kind == "answer"
    party = party_of(held)
    assert say(party, held).kind == "accept"
    told = np.full(RECORDS, 1e100)
    frame = say(party, held, "gradient", 0, weights=np.full(2, 1e100), offset=told, labels=-told)
    assert frame.kind == "answer"
    query = query_of(held, "gradient", "party-1")
    value = frame.arrays["grid"] * held.release("gradient").step
    assert np.all(np.abs(value) <= RECORDS * query.norm_with_intercept + 8 * held.release("gradient").std)


@pytest.mark.parametrize("form", FORMS)
def test_who_asks_again_gets_what_was_said_and_the_duals_stay(form: str) -> None:
    plan = plan_for(form)
    generator = np.random.default_rng(0)
    first, second, third = (
        {"weights": generator.standard_normal(2), "offset": generator.standard_normal(RECORDS)} for _ in range(3)
    )
    answers = []
    for again in (False, True):
        party = party_of(plan)
        say(party, plan)
        found = [say(party, plan, "gradient", 0, **first).arrays["grid"]]
        if again:
            np.testing.assert_array_equal(say(party, plan, "gradient", 0, **third).arrays["grid"], found[0])
        found.append(say(party, plan, "gradient", 1, **second).arrays["grid"])
        answers.append(found)
    np.testing.assert_array_equal(answers[0], answers[1])


def problem(records: int, features: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    X = np.clip(
        (generator.standard_normal((records, features)) + 0.5 * generator.standard_normal((records, 1))) / 3, -1, 1
    )
    return X, X @ np.where(np.arange(features) % 2, -1.0, 1.0)


MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "logistic": (sv.PrivateLogisticRegression, {}),
    "logistic l1": (sv.PrivateLogisticRegression, {"l1_ratio": 1, "alpha": 1e-3}),
    "smoothed hinge": (sv.PrivateLinearSVC, {}),
    "hinge": (sv.PrivateLinearSVC, {"loss": "hinge"}),
    "ridge": (sv.PrivateRidge, {"alpha": 1e-3}),
    "lasso": (sv.PrivateLasso, {"alpha": 1e-3}),
    "elastic net": (sv.PrivateElasticNet, {"alpha": 1e-3}),
    "l2 ball": (sv.PrivateRidge, {"radius": 1.0}),
    "l1 ball": (sv.PrivateLasso, {"radius": 1.0}),
}


@pairwise(rows=["persistent", "fresh"], labels=["shared", "held"], name=MODELS)
def test_it_learns_and_its_size_is_known(name: str, labels: Labels, rows: str) -> None:
    """Three parties, one of them sparse."""
    X, scores = problem(3000)
    estimator, parameters = MODELS[name]
    classes = issubclass(estimator, sv.PrivateLogisticRegression | sv.PrivateLinearSVC)
    noise = 0.2 * np.random.default_rng(1).standard_normal(3000)
    y = np.where(scores + noise > 0, 1, -1) if classes else np.clip(scores / 3 + noise / 3, -1, 1)
    bounds: dict[str, Any] = {"classes": (-1, 1)} if classes else {"label_bound": 1.0}
    model = estimator(
        20.0,
        1e-5,
        entry_bound=1.0,
        solver=by_name("admm", rows=rows, rounds=20),
        insecure_seed=0,
        **bounds,
        **parameters,
    )
    parts = [X[:, :2], sp.csr_matrix(X[:, 2:4]), X[:, 4:]]
    federation = sv.Federation.by_columns(parts, y, labels=labels, label_party=2)
    model.fit(federation)
    assert model.score(X, y) > (0.75 if classes else 0.35)
    coef = np.ravel(model.coef_)
    if "ball" in name:
        sizes = [np.linalg.norm(part, 1 if "l1" in name else 2) for part in np.split(coef, 3)]
        assert max(sizes) <= 1.0 + 1e-9
    form = algorithms.of(model.plan_)
    assert form.title == FORMS[rows].title
    cost, done = cost_of(model.plan_, form), model.communication_
    assert cost.rounds == done.rounds
    assert cost.uplink_bytes == pytest.approx(done.uplink_bytes, rel=0.1)
    assert cost.downlink_bytes == pytest.approx(done.downlink_bytes, rel=0.1)
    assert model.privacy_.world.epsilon < model.privacy_.coordinator.epsilon <= 20.0


@pairwise(
    parties=[1, 2, 8],
    regulariser=[Named(name="box", parameters={"low": -0.5, "high": 0.5}), Named(name="none")],
    loss=["huber", "squared", "logistic"],
)
def test_any_number_of_parties_and_a_box(parties: int, regulariser: Named, loss: str) -> None:
    X, scores = problem(600, 8)
    y = np.sign(scores) if loss == "logistic" else np.clip(scores / 3, -1, 1)
    columns = tuple(len(part) for part in np.array_split(np.arange(8), parties))
    plan = plan_for(
        loss=loss, columns=columns, records=600, epsilon=30.0, regulariser=regulariser, options={"rounds": 16}
    )
    parts = np.split(X, np.cumsum(columns)[:-1], axis=1)
    federation = sv.Federation.by_columns(parts, y, label_party=parties - 1)
    solution, rounds = federation.coordinator(insecure_seed=0).run(plan, FORM)
    coef, intercept = plan.unprepare(solution.weights)
    assert rounds == 33
    assert np.corrcoef(X @ coef + intercept, scores)[0, 1] > 0.5
    if regulariser.name == "box":
        assert np.abs(coef).max() <= 0.5 + 1e-9


def test_every_account_pays_for_all_parties_and_for_the_rows_of_each_fit(tmp_path: Path) -> None:
    X, scores = problem(400)
    y = np.where(scores > 0, 1, -1)
    accounts = [sv.Ledger.create(tmp_path / f"{k}.db").open("people", epsilon=1.5, delta=1e-5) for k in range(2)]
    federation = sv.Federation.by_columns([X[:, :3], X[:, 3:]], y, ledgers=accounts)
    model = sv.PrivateLogisticRegression(1.0, 1e-5, entry_bound=1.0, classes=(-1, 1), solver=by_name("admm", rounds=4))
    model.fit(federation)
    assert {round(account.balance().spent, 9) for account in accounts} == {round(accounts[0].balance().spent, 9)}
    first = accounts[0].balance().spent
    assert first == pytest.approx(1.0, rel=0.015)
    again = sv.PrivateLogisticRegression(0.5, 1e-5, entry_bound=1.0, classes=(-1, 1), solver=by_name("admm", rounds=4))
    again.fit(federation)
    assert again.privacy_.coordinator.epsilon == pytest.approx(0.5, rel=0.015)
    assert accounts[0].balance().spent > 1.1 * first  # 1.22 of mu^2
    with pytest.raises(BudgetError):
        again.set_params(epsilon=1.0).fit(federation)


@pytest.mark.parametrize("form", FORMS)
def test_the_wire_gives_what_the_process_gives(form: str, tmp_path: Path) -> None:
    """gRPC with mutual TLS, the same seeds: the same weights to the last bit, and the same bytes."""
    plan = plan_for(form, labels="held", records=60)
    parts, y = people(np.random.default_rng(0), plan)
    local = sv.Federation.by_columns(parts, y, labels="held", label_party=1)
    expected, rounds = local.coordinator(insecure_seed=7).run(plan, FORMS[form])
    known = zip(dict(plan.parties), parts, (None, y), strict=True)
    parties = [Party(name, X, labels, randomness=SeededRandomness(7, name)) for name, X, labels in known]
    with over_grpc(tmp_path, parties) as wire:
        found, again = Coordinator(wire).run(plan, FORMS[form])
    np.testing.assert_array_equal(found.weights, expected.weights)
    assert again == rounds


def test_bad_input_is_told() -> None:
    for options, words in (
        ({"row_share": 1.5}, r"row_share=1\.5 must be a number"),
        ({"rounds": 1}, "rounds=1 must be from 2 to"),
        ({"world_epsilon": -1.0}, r"world_epsilon=-1\.0 must be a number"),
        ({"slope_bound": math.nan}, "slope_bound=nan must be"),
    ):
        with pytest.raises(InputError, match=words):
            plan_for(options=options)
    plan = plan_for(labels="held")
    assert bound_of(plan, "party-1") > bound_of(plan, "party-2") == 1.0
    with pytest.raises(InputError, match="means nothing to solver='admm' here"):
        sv.PrivateRidge(1.0, entry_bound=1.0, label_bound=1.0, solver=by_name("admm", proximal=1.0)).fit(
            sv.Federation.by_columns([np.zeros((9, 1)), np.zeros((9, 1))], np.zeros(9))
        )
