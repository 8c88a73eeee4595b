"""Greedy coordinate descent: scores and their sensitivity, choices and their law, turns and what they cost."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, get_args

import mpmath
import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats

import sottovoce as sv
from sottovoce.algorithms.cd.private import greedy_scores
from sottovoce.algorithms.cd.walk import HeldScores, Moves
from sottovoce.data.block import Block
from sottovoce.errors import InputError
from sottovoce.gate.query import Round
from sottovoce.plan.plan import Plan
from sottovoce.privacy.accounting import epsilon_of
from sottovoce.privacy.calibration import rho_for
from sottovoce.privacy.events import Gaussian, Selection
from sottovoce.solvers import Rule, by_name
from support import at, epsilons_of, events_of, query_of, world_events_of

from .test_cd import FEATURES, RECORDS, answered, gate_for, neighbour, plan_for, proposed, rows_for

RULES: tuple[Rule, ...] = get_args(Rule)
FALSE_ALARM = 1e-7


def greedy_plan(**fields: Any) -> Plan:
    return plan_for("greedy-cd", **fields)


def scores_of(plan: Plan, block: Block, weights: Any, curvatures: Any) -> np.ndarray:
    """The score of every coordinate, without noise."""
    said = {"weights": weights, "curvatures": curvatures}
    return at(query_of(plan, "choice"), block, plan=plan, memory=HeldScores(block), **said)


# --- scores -------------------------------------------------------------------------------------------------------

PIECES = {
    "none": (0.0, 0.0, -math.inf, math.inf),
    "l1": (0.7, 0.0, -math.inf, math.inf),
    "elastic net": (0.3, 1.5, -math.inf, math.inf),
    "box": (0.0, 0.0, -0.5, 0.8),
    "all": (0.4, 0.6, -0.3, 2.0),
    "one sided": (0.2, 0.0, 0.0, math.inf),
    "point": (0.2, 0.1, 0.5, 0.5),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("piece", PIECES)
def test_a_score_is_lipschitz_in_its_gradient(rule: Rule, piece: str) -> None:
    rng = np.random.default_rng(1)
    size = 40_000
    curvatures = 10.0 ** rng.uniform(-3, 3, size)
    weights = rng.choice([0.0, 0.5, -0.3, 0.8, 1.0, -2.0], size) + rng.choice([0.0, 1e-9, 0.1], size)
    gradient = rng.standard_normal(size) * 10.0 ** rng.uniform(-3, 2, size)
    change = rng.standard_normal(size) * 10.0 ** rng.uniform(-6, 2, size)
    terms = tuple(np.full(size, value) for value in PIECES[piece])
    one = greedy_scores(rule, gradient, weights, curvatures, terms)
    other = greedy_scores(rule, gradient + change, weights, curvatures, terms)
    moved = np.abs(one - other) * np.sqrt(curvatures)
    noise = 2.0**-48 * (np.abs(weights) * (curvatures + terms[1]) + terms[0] + np.abs(gradient) + np.abs(change))
    assert (moved <= np.abs(change) + noise).all()
    if piece != "point":
        assert (moved / np.abs(change)).max() > 0.99
    assert (one >= 0.0).all()


def test_scores_by_hand() -> None:
    g, w, m = np.array([0.5, -0.2, 2.0, 0.0]), np.array([0.0, 0.0, 1.0, -1.0]), np.array([4.0, 1.0, 4.0, 1.0])
    l1, l2, low, high = (np.full(4, value) for value in (0.3, 0.0, -math.inf, math.inf))
    step = np.array([-0.05, 0.0, -0.575, 0.3])  # soft(w - g / m, l1 / m) - w
    np.testing.assert_allclose(greedy_scores("GS-r", g, w, m, (l1, l2, low, high)), np.sqrt(m) * np.abs(step))
    np.testing.assert_allclose(greedy_scores("GS-s", g, w, m, (l1, l2, low, high)), [0.1, 0.0, 1.15, 0.3])
    drop = -(g * step + m / 2 * step**2 + l1 * (np.abs(w + step) - np.abs(w)))
    np.testing.assert_allclose(greedy_scores("GS-q", g, w, m, (l1, l2, low, high)), np.sqrt(2 * drop))


@pytest.mark.parametrize("rule", RULES)
def test_scores_are_accurate_to_what_the_sensitivity_allows_for(rule: Rule) -> None:
    """Against 200-bit arithmetic, near the kinks where digits cancel."""
    rng = np.random.default_rng(2)
    size = 300
    weights = rng.choice([0.0, 1.0, -1.0], size) * 10.0 ** rng.uniform(-3, 3, size)
    curvatures = 10.0 ** rng.uniform(-3, 3, size)
    l1, l2 = 10.0 ** rng.uniform(-3, 3, size), 10.0 ** rng.uniform(-3, 3, size) * rng.integers(0, 2, size)
    kink = -(l2 * weights + np.sign(weights) * l1)
    gradient = kink * (1 + rng.choice([0.0, 1e-15, -1e-15, 1e-12, 1e-8, -0.3], size))
    low, high = np.full(size, -math.inf), np.full(size, math.inf)
    found = greedy_scores(rule, gradient, weights, curvatures, (l1, l2, low, high))
    bound = 2.0**-48 * (np.abs(weights) * (curvatures + l2) + l1 + np.abs(gradient)) / np.sqrt(curvatures)
    with mpmath.workprec(200):
        for k in range(size):
            g, w, m, b, c = (mpmath.mpf(float(v[k])) for v in (gradient, weights, curvatures, l1, l2))
            u = w - g / m
            target = mpmath.sign(u) * max(abs(u) - b / m, 0) / (1 + c / m)
            move = target - w
            slope = g + c * w
            near = slope + mpmath.sign(w) * b if w else mpmath.sign(slope) * max(abs(slope) - b, 0)
            drop = -(g * move + m / 2 * move**2 + b * (abs(target) - abs(w)) + c / 2 * (target**2 - w**2))
            exact = {
                "GS-r": abs(move) * mpmath.sqrt(m),
                "GS-s": abs(near) / mpmath.sqrt(m),
                "GS-q": mpmath.sqrt(2 * drop),
            }[rule]
            assert abs(exact - mpmath.mpf(float(found[k]))) <= float(bound[k])


def test_dense_and_sparse_scores_are_equal() -> None:
    plan = greedy_plan(loss="squared", penalty="l1")
    X, y = rows_for(plan)
    blocks = [Block.prepare(kind(X), y, plan.preparation) for kind in (np.asarray, sp.csr_matrix)]
    weights, curvatures = np.linspace(-1, 1, FEATURES + 1), np.linspace(0.1, 1, FEATURES + 1)
    one, two = (scores_of(plan, block, weights, curvatures) for block in blocks)
    np.testing.assert_array_equal(one, two)


def test_a_holder_scores_by_its_own_mean_gradient() -> None:
    """A penalty is weighed against the mean over the holder's records, however many others have."""
    plan = greedy_plan(loss="squared", penalty="l1", options={"clip": 100.0})
    many = greedy_plan(
        loss="squared", penalty="l1", options={"clip": 100.0}, split="rows", parties=(("data", RECORDS), ("else", 9000))
    )
    X, y = rows_for(plan)
    weights, curvatures = np.zeros(FEATURES + 1), np.ones(FEATURES + 1)
    found = []
    for each in (plan, many):
        block = Block.prepare(X, y, each.preparation)
        found.append(scores_of(each, block, weights, curvatures))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)
    assert found[0].max() > 0.0


# --- choices ------------------------------------------------------------------------------------------------------


def chosen(plan: Plan, block: Block, size: int) -> np.ndarray:
    query, memory = query_of(plan, "choice"), HeldScores(block)
    said = {"weights": np.zeros(plan.dimension), "curvatures": np.full(plan.dimension, 0.3)}
    drawn = []
    for seed in range(size // plan.rounds):
        gate, first = gate_for(plan, seed), plan.release("choice").first
        for t in range(plan.rounds):
            drawn.append(int(gate.release(query, Round(plan, first + t, said, block, memory)).arrays["grid"][0]))
    return np.bincount(drawn, minlength=plan.dimension)


@pytest.mark.slow
def test_choices_have_their_law_and_a_wrong_rate_is_noticed() -> None:
    size = 12_000
    plan = greedy_plan(loss="squared", epsilon=8.0, options={"rounds": 100, "clip": 0.2})
    X, y = rows_for(plan)
    y = y + X[:, 0]
    block = Block.prepare(X, y, plan.preparation)
    scores = scores_of(plan, block, np.zeros(6), np.full(6, 0.3))
    release, counts = plan.release("choice"), chosen(plan, block, size)

    def accepts(rate: float) -> bool:
        weights = np.exp(rate * np.rint(scores / release.step) * release.step)
        return bool(stats.chisquare(counts, weights / weights.sum() * size).pvalue > FALSE_ALARM)

    assert accepts(1 / release.std)
    assert not accepts(1.5 / release.std)
    assert not accepts(1 / (1.5 * release.std))


def test_neighbours_choose_alike_up_to_what_is_charged() -> None:
    """The log-probabilities of all choices move within an interval of length 2 Delta / std."""
    plan = greedy_plan(options={"rounds": 4})
    release = plan.release("choice")
    rate, widest = 1 / release.std, 0.0
    X, y = rows_for(plan)
    for seed in range(40):
        logs = []
        for rows, labels in ((X, y), neighbour(X, y, "zero-out", seed)):
            block = Block.prepare(rows, labels, plan.preparation)
            scores = scores_of(plan, block, np.zeros(6), np.full(6, 0.05))
            grid = rate * np.rint(scores / release.step) * release.step
            logs.append(grid - np.logaddexp.reduce(grid))
        ratio = logs[0] - logs[1]
        widest = max(widest, float(np.ptp(ratio)))
    assert 0.0 < widest <= 2 * rate * release.charged_zero_out


# --- the run ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_few_of_many_coordinates_are_found(rule: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((800, 300))
    y = X[:, [3, 70, 150]] @ [1.0, -0.8, 0.6] + 0.05 * rng.standard_normal(800)
    solver = by_name("greedy-cd", rule=rule)
    model = sv.PrivateLasso(
        alpha=0.05, epsilon=8.0, delta=1e-6, entry_bound=4.5, label_bound=4.0, solver=solver
    ).set_params(insecure_seed=0)
    model.fit(X, y)
    assert np.mean((model.predict(X) - y) ** 2) < 0.15 * np.var(y)
    assert {3, 70, 150} <= set(np.argsort(-np.abs(model.coef_))[:5])


def test_no_signal_does_no_harm() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((100, 20)), rng.choice([-1, 1], 100)
    for solver in ("cd", "greedy-cd"):
        model = sv.PrivateLogisticRegression(
            epsilon=0.05, delta=1e-4, entry_bound=4.0, classes=(-1, 1), l1_ratio=1, alpha=0.01, solver=solver
        ).set_params(insecure_seed=3)
        model.fit(X, y)
        assert np.mean(np.logaddexp(0, -y * model.decision_function(X))) < 1.5


def test_the_rule_for_steps_and_shares() -> None:
    few = greedy_plan(epsilon=0.1)
    many = greedy_plan(parties=(("data", 10**6),))
    strict = greedy_plan(parties=(("data", 10**6),), relation="replace-one")
    assert few.rounds < 5
    assert few.numbers.step < 0.2
    assert many.numbers.step == strict.numbers.step == 1.0
    assert many.rounds == pytest.approx(math.sqrt(2) * strict.rounds, rel=0.01)
    assert many.numbers.clip == 1.2
    assert greedy_plan(loss="squared").numbers.clip == 0.9


# --- what it costs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_the_budget_is_shared_as_asked(relation: Any) -> None:
    options = {"rounds": 12, "choice_share": 0.6, "curvature_share": 0.2}
    plan = greedy_plan(relation=relation, options=options)
    rho = rho_for(2.0, 0.99e-5)
    squares, choices, steps = events_of(plan, relation)
    assert isinstance(choices, Selection)
    assert isinstance(squares, Gaussian)
    assert isinstance(steps, Gaussian)
    assert squares.mu**2 / 2 == pytest.approx(0.2 * rho)
    assert choices.rho == pytest.approx(0.8 * 0.6 * rho)
    assert steps.mu**2 / 2 == pytest.approx(0.8 * 0.4 * rho)
    release = plan.release("choice")
    charged = (1.0 if relation == "zero-out" else 2.0) + 2.0**-20 + release.step
    assert choices.rho == pytest.approx(12 * (charged / release.std) ** 2 / 2)
    assert epsilon_of([squares, choices, steps], 0.99e-5, relation) <= 2.0


@pytest.mark.parametrize(("parties", "rounds"), [(3, 10), (4, 4), (5, 3), (2, 1)])
def test_turns_go_round_and_each_pays_for_its_own(parties: int, rounds: int) -> None:
    names = tuple((f"p{k}", 20 + k) for k in range(parties))
    plan = greedy_plan(split="rows", parties=names, options={"rounds": rounds})
    release, walked, squares = (plan.release(name) for name in ("choice", "coordinates", "curvatures"))
    turns = {name: 0 for name, _ in names}
    for t in range(rounds):
        answering = list(query_of(plan, "choice").answered_by.parties(plan, release.first + t))
        assert answering == [names[t % parties][0]]
        turns[answering[0]] += 1
        assert query_of(plan, "coordinates").answered_by.parties(plan, release.first + t) == plan.names
    for name, _ in names:
        assert query_of(plan, "choice").answered_by.rounds(plan, name, release.first, rounds) == turns[name]
        events = events_of(plan, "zero-out", name)
        expected = [squares.event("zero-out")]
        if turns[name]:
            expected.append(Selection(turns[name] * (release.charged_zero_out / release.std) ** 2 / 2))
        expected.append(walked.event("zero-out"))
        assert events == tuple(expected)
    most = -(-rounds // parties)
    assert max(turns.values()) == most
    assert epsilons_of(plan, "zero-out")["coordinator"] <= 2.0
    world = world_events_of(plan, "zero-out")  # of the first party, whose turns are the most
    assert world[1] == Selection(most * (release.charged_zero_out / release.std) ** 2 / 2)
    assert isinstance(world[2], Gaussian)
    assert world[2].mu == pytest.approx(walked.charged_zero_out * math.sqrt(rounds / parties) / walked.std)


def test_turns_are_counted_without_a_list_of_them() -> None:
    """A plan of another's making may have as many rounds as a frame can number."""
    plan = greedy_plan(split="rows", parties=(("a", 20), ("b", 20), ("c", 20)), options={"rounds": 10})
    turn = query_of(plan, "choice").answered_by
    assert turn.one_a_round
    for first, count in ((1, 10), (2, 5), (4, 1), (3, 2**31 - 1), (7, 0)):
        counted = [turn.rounds(plan, name, first, count) for name in plan.names]
        assert sum(counted) == count
        if count < 100:
            assert counted == [sum(turn(plan, name, first + t) for t in range(count)) for name in plan.names]


def test_by_rows_only_the_one_whose_turn_it_is_chooses(classification: Any) -> None:
    X, y = classification
    parts = [(X[k::3], y[k::3]) for k in range(3)]
    solver = by_name("greedy-cd", rounds=7)
    model = sv.PrivateLogisticRegression(
        epsilon=8.0, row_norm=1.0, classes=(-1, 1), solver=solver, insecure_seed=0
    ).fit(sv.Federation.by_rows(parts, record=True))
    said = [message.sender for message in model.transcript_ if message.name == "choice"]
    assert said == ["party-1", "party-2", "party-3", "party-1", "party-2", "party-3", "party-1"]
    sums = [message.round for message in model.transcript_ if message.name == "coordinates"]
    assert sums == [1 + t for t in range(7) for _ in range(3)]


def test_choices_so_many_that_the_sampler_shows_are_refused() -> None:
    sparse = greedy_plan(epsilon=10.0, delta=1e-6, features=1000, options={"rounds": 20})
    assert sparse.rounds == 20
    with pytest.raises(
        InputError, match=r"rounds=40: so many choices among 100001 coordinates leave an error of .* in"
    ):
        greedy_plan(epsilon=18.0, delta=1e-9, features=100_000, options={"rounds": 40})


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rule": "GS-x"}, "rule='GS-x' must be one of 'GS-r', 'GS-s', 'GS-q'"),
        ({"clip": -2.0}, "clip=-2.0 must be a number from 1e-100"),
        ({"choice_share": 1.0}, "choice_share=1.0 must be a number from 0.01 to 0.99; leave it out"),
        ({"rounds": 0}, "rounds=0 must be a whole number"),
        ({"curvatures": [1.0]}, "must be the mean square of each of the 5 features"),
        ({"curvatures": [1.0] * 5, "curvature_share": 0.1}, "leave out one"),
    ],
)
def test_bad_options_are_told(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        greedy_plan(options=options)


def test_a_constraint_set_is_told_to_be_none_of_its_penalties() -> None:
    with pytest.raises(InputError, match="solver='greedy-cd': penalty='l2_ball' is not a sum over the coordinates"):
        greedy_plan(penalty="l2_ball")


@pytest.mark.parametrize(
    "changed", [{"rule": "GS-x"}, {"rule": 0}, {"clip": math.nan}, {"clip": 1e101}, {"step": -1.0}, {"step": None}]
)
def test_a_plan_with_absurd_numbers_is_refused(changed: dict[str, Any]) -> None:
    plan = greedy_plan()
    reply = proposed(plan, numbers=plan.numbers.model_dump() | changed)
    assert reply.kind == "refuse"
    assert f"not a plan of this version: {next(iter(changed))}: Input should be" in reply.text


def test_noise_beyond_the_room_for_rounding_is_refused_whatever_the_plan_claims() -> None:
    """The room is in units of what a record moves a score by, not of what a plan says that it does."""
    plan = greedy_plan(options={"rounds": 3, "curvature_share": 0.0})
    for std, kind in ((2.0**15, "accept"), (1.001 * 2.0**15, "refuse"), (2.0**16, "refuse")):
        choice = {"std": std, "step": 2.0**-9, "charged_zero_out": 4.0, "charged_replace_one": 8.0}
        releases = [release.model_dump() | (choice if release.query == "choice" else {}) for release in plan.releases]
        reply = proposed(plan, releases=releases)
        assert reply.kind == kind
        assert kind == "accept" or "tell nothing" in reply.text


def told(**arrays: Any) -> dict[str, Any]:
    return {"weights": np.zeros(FEATURES + 1), "curvatures": np.ones(FEATURES + 1), **arrays}


@pytest.mark.parametrize("weights", [1e12, 1e100])
def test_weights_at_which_scores_lose_their_digits_are_refused(weights: float) -> None:
    reply = answered(greedy_plan(), "choice", **told(weights=np.full(FEATURES + 1, weights)))
    assert reply.kind == "refuse"
    assert "too large for exact scores" in json.loads(reply.text)["refused"]


def test_the_walk_of_a_choice_has_the_clip_of_its_coordinate() -> None:
    plan = greedy_plan(options={"clip": 0.5})
    moves = Moves(plan, np.array([0.25, 0.01, 25.0, 1.0, 1.0, 1.0]))
    np.testing.assert_allclose(moves.clip[:3], [0.5, 0.1, 1.0])  # no slope of the logistic loss is above 1


def test_an_account_counts_the_sampler_under_its_own_relation(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    X, y = generator.uniform(-1, 1, (4000, 300)), generator.uniform(-1, 1, 4000)
    ledger = sv.Ledger.create(tmp_path / "holder.ledger")
    options: dict[str, Any] = {"epsilon": 10.0, "delta": 1e-6, "solver": by_name("greedy-cd", rounds=500)}
    model = sv.PrivateLasso(entry_bound=1.0, label_bound=1.0, **options)
    model.plan(sv.Federation.central(X, y))  # within its own terms
    strict = ledger.open("strict", 100.0, 1e-6, relation="replace-one")
    with pytest.raises(sv.RefusedError, match="so many choices among 301 coordinates"):
        model.set_params(ledger=strict).fit(X, y)
    assert strict.balance().plans == 0
