"""Coordinate descent: what one record moves, what a walk says, what it costs, and where it ends without noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression

import sottovoce as sv
from covering import pairwise
from plans import small_problem
from sottovoce import algorithms
from sottovoce.algorithms.cd.walk import BoundedSquares, CoordinateWalk, HeldScores, Moves, most_squares, shrunk, visits
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.errors import InputError
from sottovoce.federation.party import Party
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.gate.gate import Gate
from sottovoce.gate.query import Round
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.privacy.accounting import epsilon_of
from sottovoce.privacy.calibration import mu_for
from sottovoce.privacy.events import Gaussian
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.solvers import by_name
from support import at, epsilons_of, events_of, forged, handle, neighbour, plan_of, query_of

RECORDS, FEATURES = 60, 5
LOSSES = {
    "squared": Named(name="squared"),
    "huber": Named(name="huber", parameters={"threshold": 0.4}),
    "smoothed_hinge": Named(name="smoothed_hinge", parameters={"smoothing": 0.5}),
    "logistic": Named(name="logistic"),
}
PENALTIES = {
    "none": Named(name="none"),
    "l1": Named(name="l1", parameters={"alpha": 0.05}),
    "elastic_net": Named(name="elastic_net", parameters={"alpha": 0.05, "l1_ratio": 0.4}),
    "box": Named(name="box", parameters={"low": -0.1, "high": 0.3}),
}


def problem_for(loss: str = "logistic", penalty: str = "none", **fields: Any) -> Problem:
    numbers = loss in ("squared", "huber")
    usual: dict[str, Any] = {
        "regulariser": PENALTIES.get(penalty, Named(name=penalty, parameters={"radius": 1.0})),
        "parties": (("data", RECORDS),),
        "features": FEATURES,
        "bounds": Bounds.declare(entry_bound=2.0, row_norm=3.0, label_bound=1.5 if numbers else None),
        "epsilon": 2.0,
    }
    return small_problem(LOSSES.get(loss, loss), **usual | fields)


def plan_for(solver: str = "cd", coin: str = "coin", options: Any = None, **fields: Any) -> Plan:
    return plan_of(problem_for(**fields), solver, coin=coin, **options or {})


def rows_for(plan: Plan, seed: int = 0, count: int = RECORDS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = 1.2 * rng.standard_normal((count, FEATURES))
    y = rng.standard_normal(count) if plan.classes is None else rng.choice([-1, 1], count)
    return X, y


def asked_at(plan: Plan, block: Block, memory: HeldScores, weights: Any, curvatures: Any) -> Round:
    """The first round of the walk."""
    told = {"weights": weights, "curvatures": curvatures}
    return Round(plan, plan.release("coordinates").first, told, block, memory)


def walk(plan: Plan, block: Block, noise: Any, step: float, weights: Any, curvatures: Any) -> Any:
    query = CoordinateWalk(plan.dimension, len(noise))
    return query.walk(asked_at(plan, block, HeldScores(block), weights, curvatures), noise, step)


# --- sensitivities ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_null_row_adds_nothing_even_where_scores_overflow(loss: str, kind: str) -> None:
    plan = plan_for(loss=loss, options={"inner": 6})
    X, y = rows_for(plan)
    X[:] = math.nan
    block = Block.prepare(sp.csr_matrix(X) if kind == "sparse" else X, y, plan.preparation)
    noise = np.zeros(6, dtype=np.int64)
    for scores in (0.0, math.inf, -math.inf, math.nan):
        memory = HeldScores(block)
        memory.values[:] = scores
        round_ = asked_at(plan, block, memory, np.zeros(plan.dimension), np.ones(plan.dimension))
        found = query_of(plan, "coordinates").walk(round_, noise, 2.0**-10)
        assert not found.any()


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
@pytest.mark.parametrize(
    "bounds",
    [
        {"entry_bound": 2.0},
        {"row_norm": 3.0},
        {"entry_bound": (2.0, 0.5, 1.0, 5.0, 0.1), "row_norm": 1.7},
        {"entry_bound": 1.0, "row_norm": 1e-3},
    ],
)
def test_squares_of_columns_move_within_their_bound(bounds: Any, relation: Any) -> None:
    plan = plan_for(bounds=Bounds.declare(**bounds))
    query = query_of(plan, "curvatures")
    limit = query.sensitivity(relation)
    furthest = 0.0
    for seed in range(40):
        X, y = rows_for(plan, seed)
        if seed % 2:
            X[: RECORDS // 2] = 1e9 * np.sign(X[: RECORDS // 2]) * (np.arange(FEATURES) == seed % FEATURES)
        values = [
            at(query, Block.prepare(rows, labels, plan.preparation))
            for rows, labels in ((X, y), neighbour(X, y, relation, seed))
        ]
        furthest = max(furthest, float(np.linalg.norm(values[0] - values[1])))
    assert furthest <= limit
    # the cheapest columns filled first, which no row beats
    cost = plan.bounds.columns(FEATURES)
    row = np.zeros(FEATURES)
    left = math.inf if plan.bounds.row_norm is None else plan.bounds.row_norm
    for j in np.argsort(cost):
        row[j] = min(cost[j], left)
        left = math.sqrt(max(left**2 - row[j] ** 2, 0.0)) if math.isfinite(left) else left
    X, y = np.zeros((RECORDS, FEATURES)), rows_for(plan)[1]
    X[0] = row
    value = at(query, Block.prepare(X, y, plan.preparation))
    assert value.sum() == pytest.approx(most_squares(plan.bounds, FEATURES), rel=1e-6)
    assert np.linalg.norm(value) <= query.sensitivity("zero-out")


def test_constants_of_the_squares() -> None:
    assert most_squares(Bounds.declare(entry_bound=2.0), 7) == 7.0
    assert most_squares(Bounds.declare(row_norm=3.0), 7) == 1.0
    assert most_squares(Bounds.declare(row_norm=3.0, entry_bound=1.0), 20) == pytest.approx(9.0)
    assert most_squares(Bounds.declare(row_norm=9.0, entry_bound=1.0), 20) == 20.0
    assert most_squares(Bounds.declare(row_norm=2.5, entry_bound=(1.0, 2.0, 3.0)), 3) == pytest.approx(2.2)
    whole = BoundedSquares(Bounds.declare(entry_bound=1.0), FEATURES)
    assert whole.sensitivity("zero-out") == pytest.approx(math.sqrt(FEATURES), rel=1e-5)
    assert whole.sensitivity("replace-one") == math.sqrt(FEATURES)
    narrow = BoundedSquares(Bounds.declare(row_norm=1.0), FEATURES)
    assert narrow.sensitivity("zero-out") == pytest.approx(1.0, rel=1e-5)
    assert narrow.sensitivity("replace-one") == pytest.approx(math.sqrt(2), rel=1e-5)


# --- the walk -----------------------------------------------------------------------------------------------------


def gate_for(plan: Plan, seed: int = 0) -> Gate:
    return Gate(plan, SeededRandomness(seed))


@pytest.mark.parametrize("order", ["cyclic", "shuffled", "random"])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_a_walk_is_what_its_prefix_says_and_the_coordinator_ends_where_the_party_does(penalty: str, order: str) -> None:
    plan = plan_for(loss="squared", penalty=penalty, options={"inner": 36, "order": order, "averaged": 0.0})
    X, y = rows_for(plan)
    block = Block.prepare(X, y, plan.preparation)
    form, query = algorithms.of(plan), query_of(plan, "coordinates")
    memory, gate, text = form.remember(plan, block), gate_for(plan), form.coordinate(plan)
    assert next(text).query == "curvatures"
    squares = gate.release(query_of(plan, "curvatures"), Round(plan, 0, {}, block))
    ask = text.send({"data": squares.arrays["grid"] * plan.release("curvatures").step})
    release = plan.release("coordinates")
    released = gate.release(query, Round(plan, 1, ask.arrays, block, memory)).arrays["grid"]
    with pytest.raises(StopIteration) as stop:
        text.send({"data": released * release.step})
    np.testing.assert_array_equal(stop.value.value, memory.weights)

    curvatures = ask.arrays["curvatures"]
    moves = Moves(plan, curvatures)
    l1, l2, low, high = moves.terms
    rows, w = block.rows.astype(np.float64), np.zeros(plan.dimension)
    scores, bits = np.zeros(RECORDS), 52 - 6
    noise = np.empty(36, dtype=np.int64)
    for k, j in enumerate(visits(plan, 0, 36)):
        terms = np.trunc(
            np.clip((scores - block.labels) * rows[:, j] * (2.0**bits / moves.clip[j]), -(2.0**bits), 2.0**bits)
        )
        noise[k] = released[k] - np.rint(terms.sum() / 2.0**bits / release.step)
        u = w[j] - moves.steps[j] * (released[k] * release.step * moves.clip[j] / RECORDS)
        new = np.sign(u) * max(abs(u) - moves.steps[j] * l1[j], 0.0) / (1 + moves.steps[j] * l2[j])
        new = min(max(new, low[j]), high[j])
        scores += (new - w[j]) * rows[:, j]
        w[j] = new
    np.testing.assert_array_equal(w, memory.weights)
    again = gate_for(plan)
    again.release(query_of(plan, "curvatures"), Round(plan, 0, {}, block))
    null = Block.prepare(np.full_like(X, math.nan), y, plan.preparation)
    silent = again.release(query, Round(plan, 1, ask.arrays, null, form.remember(plan, null)))
    np.testing.assert_array_equal(silent.arrays["grid"], noise)  # null rows say the noise alone, and it is the same


def test_orders_are_derived_from_the_plan_alone() -> None:
    d = FEATURES + 1
    cyclic, shuffled, chance = (
        plan_for(options={"inner": 40, "order": order}) for order in ("cyclic", "shuffled", "random")
    )
    np.testing.assert_array_equal(visits(cyclic, 0, 40), np.arange(40) % d)
    for plan in (shuffled, chance):
        whole = visits(plan, 0, 40)
        assert whole.dtype == np.int64
        for start in range(0, 40, 7):
            count = min(7, 40 - start)
            np.testing.assert_array_equal(visits(plan, start, count), whole[start : start + count])
        again = Plan.from_json(plan.to_json())
        np.testing.assert_array_equal(visits(again, 0, 40), whole)
    passes = visits(shuffled, 0, 36).reshape(6, d)
    np.testing.assert_array_equal(np.sort(passes), np.tile(np.arange(d), (6, 1)))
    assert not np.array_equal(passes[0], passes[1])
    drawn = chance.public_coin("coordinates of pass 0").integers(d, size=d)
    np.testing.assert_array_equal(visits(chance, 0, d), drawn)
    assert not np.array_equal(visits(shuffled, 0, 36), visits(plan_for(coin="o", options={"order": "shuffled"}), 0, 36))


@pytest.mark.parametrize("parties", [1, 3])
@pytest.mark.parametrize(("outer", "inner", "averaged"), [(1, 20, 0.5), (3, 18, 1.0), (2, 7, 0.3), (4, 12, 0.0)])
def test_the_mean_of_the_last_iterates(outer: int, inner: int, averaged: float, parties: int) -> None:
    split = {} if parties == 1 else {"split": "rows", "parties": tuple((f"p{k}", 20) for k in range(parties))}
    options = {"rounds": outer, "inner": inner, "averaged": averaged, "curvature_share": 0.0}
    plan = plan_for(loss="squared", penalty="l1", options=options, **split)
    text, rng = algorithms.of(plan).coordinate(plan), np.random.default_rng(1)
    ask, said = next(text), []
    names = [name for name, _ in plan.parties]
    length = plan.numbers.stride
    try:
        while True:
            values = {name: 5 * rng.standard_normal(length) for name in names}
            said.extend(sum(values.values()))
            ask = text.send(values)
    except StopIteration as stop:
        found = stop.value
    assert len(said) == outer * inner
    moves = Moves(plan, ask.arrays["curvatures"])
    w, kept = np.zeros(plan.dimension), max(1, round(averaged * inner))
    for t in range(outer):
        iterates = []
        for k in range(t * inner, (t + 1) * inner):
            j = k % plan.dimension
            u = w[j] - moves.steps[j] * said[k] * moves.clip[j] / plan.records
            w[j] = np.sign(u) * max(abs(u) - moves.steps[j] * moves.terms[0][j], 0.0)
            iterates.append(w.copy())
        w = np.mean(iterates[-kept:], axis=0)
    np.testing.assert_allclose(found, w, rtol=1e-12, atol=1e-15)


# --- without noise ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((150, 8)) * [1.0, 30.0, 0.02, 1.0, 5.0, 1.0, 1.0, 400.0] * (rng.random((150, 8)) < 0.7)
    return X, X @ (np.array([1.0, -0.5, 3.0, 0, 0, 2.0, 0.1, 0.01]) / X.std(axis=0)) + rng.standard_normal(150)


@pairwise(solver=["cd", "greedy-cd"], kind=[np.asarray, sp.csc_matrix], fit_intercept=[True, False])
def test_without_noise_it_is_scikit_learns_lasso_and_elastic_net(
    table: Any, solver: str, kind: Any, fit_intercept: bool
) -> None:
    X, y = table
    options = {"epsilon": math.inf, "solver": solver, "fit_intercept": fit_intercept}
    ours = sv.PrivateLasso(alpha=0.2, **options).fit(kind(X), y)
    theirs = Lasso(alpha=0.2, fit_intercept=fit_intercept, tol=1e-12, max_iter=100_000).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-6)
    ours = sv.PrivateElasticNet(alpha=0.3, l1_ratio=0.6, **options).fit(kind(X), y)
    theirs = ElasticNet(alpha=0.3, l1_ratio=0.6, fit_intercept=fit_intercept, tol=1e-12, max_iter=100_000).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-6, atol=1e-9)
    assert ours.certificates_["violation"] < 1e-6


@pytest.mark.parametrize("solver", ["cd", "greedy-cd"])
@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix])
def test_without_noise_it_is_scikit_learns_logistic_regression(classification: Any, solver: str, kind: Any) -> None:
    X, y = (part[:200] for part in classification)
    ours = sv.PrivateLogisticRegression(epsilon=math.inf, solver=solver, l1_ratio=1, alpha=0.01).fit(kind(X), y)
    theirs = LogisticRegression(solver="saga", l1_ratio=1.0, C=1 / (200 * 0.01), tol=1e-12, max_iter=100_000).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-6)


@pytest.mark.parametrize("solver", ["cd", "greedy-cd"])
@pytest.mark.parametrize("order", ["cyclic", "shuffled", "random"])
def test_without_noise_a_box_holds_the_coefficients(solver: str, order: str) -> None:
    options = (
        {"order": order} if solver == "cd" else {"rule": {"cyclic": "GS-r", "shuffled": "GS-s"}.get(order, "GS-q")}
    )
    plan = plan_for(solver, loss="squared", penalty="box", epsilon=math.inf, options=options, bounds=Bounds())
    X, y = rows_for(plan)
    y = y + X @ [1.0, -1.0, 0.2, 0.0, 0.3]
    party = sv.Federation.central(X, y)
    coordinator = party.coordinator(without_privacy=True)
    solution, _ = coordinator.run(plan, algorithms.of(plan))
    coef, intercept = plan.preparation.unprepare(solution.weights)
    one = np.column_stack([X, np.ones(RECORDS)])
    limits = [(-0.1, 0.3)] * FEATURES + [(None, None)]
    best = minimize(
        lambda w: 0.5 * np.sum((one @ w - y) ** 2),
        np.zeros(FEATURES + 1),
        jac=lambda w: one.T @ (one @ w - y),
        bounds=limits,
        options={"ftol": 1e-15, "gtol": 1e-12},
    ).x
    np.testing.assert_allclose([*coef, intercept], best, atol=1e-6)
    assert np.any(np.isclose(np.abs(coef), 0.1) | np.isclose(coef, 0.3))


@pytest.mark.parametrize("solver", ["cd", "greedy-cd"])
def test_split_by_rows_equals_central_with_the_noise_off(table: Any, solver: str) -> None:
    X, y = table
    parts = [(X[:20], y[:20]), (X[20:90], y[20:90]), (X[90:], y[90:])]
    central = sv.PrivateLasso(alpha=0.2, epsilon=math.inf, solver=solver).fit(X, y)
    split = sv.PrivateLasso(alpha=0.2, epsilon=math.inf, solver=solver).fit(sv.Federation.by_rows(parts))
    np.testing.assert_allclose(split.coef_, central.coef_, rtol=1e-8, atol=1e-10)


# --- curvatures ---------------------------------------------------------------------------------------------------


def test_noisy_squares_are_drawn_to_their_average() -> None:
    rng = np.random.default_rng(0)
    noise = 0.05 * rng.standard_normal(1000)
    alike = shrunk(0.05 + noise, 0.05, 1.0)  # nothing but noise tells the entries apart
    assert np.abs(alike - 0.05).max() < 0.03
    truth = np.where(np.arange(1000) % 2, 0.9, 0.1)
    np.testing.assert_allclose(shrunk(truth + noise / 10, 0.005, 1.0), truth, atol=0.03)
    assert shrunk(np.full(8, -3.0), 0.1, 1.0).min() == pytest.approx(0.1 / math.sqrt(8))
    assert shrunk(np.full(8, 5.0), 0.1, 0.4).max() < 5.0
    np.testing.assert_array_equal(shrunk(truth, 0.0, math.inf), truth)


def test_without_a_release_the_bounds_say_the_curvatures() -> None:
    for bounds, mean in (
        ({"row_norm": 2.0}, 0.2),
        ({"entry_bound": 2.0}, 1.0),
        ({"entry_bound": 1.0, "row_norm": 1.5}, 0.45),
    ):
        plan = plan_for(bounds=Bounds.declare(**bounds), options={"curvature_share": 0.0})
        assert [release.query for release in plan.releases] == ["coordinates"]
        curvatures = next(algorithms.of(plan).coordinate(plan)).arrays["curvatures"]
        np.testing.assert_allclose(curvatures, 0.25 * np.array([mean] * FEATURES + [1.0]))
    known = plan_for(options={"curvatures": [0.4, 1, 2, 40.0, 1e-30]}, bounds=Bounds.declare(entry_bound=2.0))
    curvatures = next(algorithms.of(known).coordinate(known)).arrays["curvatures"]
    np.testing.assert_allclose(curvatures, 0.25 * np.array([0.1, 0.25, 0.5, 1.0, 1e-12, 1.0]))
    assert [release.query for release in known.releases] == ["coordinates"]


# --- what it costs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("relation", "distance"), [("zero-out", 1.0), ("replace-one", 2.0)])
@pytest.mark.parametrize("parties", [1, 4])
def test_the_cost_is_that_of_all_steps(relation: Any, distance: float, parties: int) -> None:
    split = {} if parties == 1 else {"split": "rows", "parties": tuple((f"p{k}", 15) for k in range(parties))}
    plan = plan_for(relation=relation, options={"rounds": 3, "inner": 30}, **split)
    walked = plan.release("coordinates")
    assert walked.count * plan.numbers.stride == 90
    assert plan.numbers.stride == (1 if parties > 1 else 30)
    mu = mu_for(2.0, 0.99e-5)
    squares, steps = events_of(plan, relation)
    assert isinstance(steps, Gaussian)
    assert isinstance(squares, Gaussian)
    assert steps.mu**2 == pytest.approx(90 * (distance * (1 + walked.step / distance)) ** 2 / walked.std**2)
    assert squares.mu**2 == pytest.approx(0.1 * mu**2)
    assert squares.mu**2 + steps.mu**2 == pytest.approx(mu**2)
    epsilons = epsilons_of(plan, relation)
    assert epsilons["coordinator"] == pytest.approx(2.0, rel=1e-6)
    assert epsilons["world"] == pytest.approx(epsilon_of([Gaussian(mu / math.sqrt(parties))], 0.99e-5, relation))


@pytest.mark.parametrize(
    ("records", "epsilon", "counted", "rounds", "true"),
    [(1000, 10.0, "all", 4, 10.35), (1000, 1.0, "all", 4, 0.79), (1000, 1.0, "outer", 1, 10.4)],
)
def test_the_published_calibration(records: int, epsilon: float, counted: str, rounds: int, true: float) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((records, 3)), rng.choice([-1, 1], records)
    model = sv.PrivateLogisticRegression(
        epsilon=epsilon,
        delta=float(records) ** -2,
        relation="replace-one",
        solver=by_name("cd", counted=counted, rounds=rounds, inner=100),
        calibration="paper",
        entry_bound=3.0,
        insecure_seed=0,
    ).fit(X, y)
    release = model.plan_.release("coordinates")
    steps = rounds * (100 if counted == "all" else 1)
    assert release.std == pytest.approx(math.sqrt(8 * steps * 2 * math.log(records)) / epsilon)
    assert model.privacy_.claimed_epsilon == epsilon
    # the grid and the samplers' share of delta add a little
    assert model.privacy_.epsilon == pytest.approx(true, rel=0.02)
    assert [each.query for each in model.plan_.releases] == ["coordinates"]


@pytest.mark.parametrize(
    ("records", "epsilon", "rounds", "inner", "counted"),
    [
        (60, 2.0, 1, 20, "all"),
        (1000, 0.1, 3, 40, "all"),
        (400, 10.0, 7, 12, "all"),
        (60, 0.5, 4, 9, "outer"),
        (90, 1.0, 1, 1, "outer"),
    ],
)
def test_the_printed_noise(records: int, epsilon: float, rounds: int, inner: int, counted: str) -> None:
    """sigma_j^2 = 8 T L_j^2 log(1/delta) / (n epsilon)^2 on the mean gradient, L_j = C_j."""
    delta = float(records) ** -2
    options = {"rounds": rounds, "inner": inner, "counted": counted, "clip": 0.3, "curvatures": [0.4, 1, 2, 3, 0.1]}
    fields = {"calibration": "paper", "parties": (("data", records),), "epsilon": epsilon, "delta": delta}
    plan = plan_for(options=options, **fields)
    moves = Moves(plan, next(algorithms.of(plan).coordinate(plan)).arrays["curvatures"])
    steps = rounds * (inner if counted == "all" else 1)
    printed = 8 * steps * moves.clip**2 * math.log(1 / delta) / (records * epsilon) ** 2
    found = (plan.release("coordinates").std * moves.clip / records) ** 2
    np.testing.assert_allclose(found, printed, rtol=1e-12)


def test_as_published_it_is_the_posters_algorithm() -> None:
    """j ~ U(1 ... p); theta_j <- prox(theta_j - gamma_j (g_j + eta_j)); w_bar = (1/K) sum_{k=1..K} theta^k; T loops."""
    options = {"rounds": 3, "inner": 24, "curvatures": [0.4, 1, 2, 3, 0.1]}
    plan = plan_for(loss="squared", penalty="l1", options=options, calibration="paper")
    assert (plan.numbers.order, plan.numbers.step) == ("random", 1.0)
    block = Block.prepare(*rows_for(plan), plan.preparation)
    form, query, gate = algorithms.of(plan), query_of(plan, "coordinates"), gate_for(plan)
    memory, text, release = form.remember(plan, block), form.coordinate(plan), plan.release("coordinates")
    ask, w_bar = next(text), np.zeros(plan.dimension)
    moves, rows = Moves(plan, ask.arrays["curvatures"]), block.rows.astype(np.float64)
    noises, drawn = np.empty(72), visits(plan, 0, 72)
    for t in range(3):
        said = gate.release(query, Round(plan, t, ask.arrays, block, memory)).arrays["grid"] * release.step
        theta, iterates = w_bar, []
        for k in range(24):
            j = drawn[24 * t + k]
            slopes = (rows @ theta - block.labels) * rows[:, j]
            clipped = np.clip(slopes, -moves.clip[j], moves.clip[j])
            gradient = said[k] * moves.clip[j] / RECORDS
            noises[24 * t + k] = (gradient - clipped.mean()) * RECORDS / moves.clip[j] / release.std
            u = theta[j] - moves.steps[j] * gradient
            theta = theta.copy()
            theta[j] = np.sign(u) * max(abs(u) - moves.steps[j] * moves.terms[0][j], 0.0)
            iterates.append(theta)
        w_bar = np.mean(iterates, axis=0)
        try:
            ask = text.send({"data": said})
        except StopIteration as stop:
            np.testing.assert_allclose(stop.value, w_bar, rtol=1e-12, atol=1e-15)
        else:
            np.testing.assert_allclose(ask.arrays["weights"], w_bar, rtol=1e-12, atol=1e-15)
    # 72 standard normal numbers; the bounds are passed by chance once in 1e7 times
    assert abs(noises.mean()) < 5.5 / math.sqrt(72)
    assert 0.45 < noises.std() < 1.6
    assert not np.array_equal(drawn, np.arange(72) % plan.dimension)
    sound = plan_for(loss="squared", penalty="l1", options=options)
    assert (sound.numbers.order, sound.numbers.averaged) == ("cyclic", 12)


def test_uniform_coordinates_are_uniform() -> None:
    plan = plan_for(options={"inner": 60_000}, calibration="paper")
    counts = np.bincount(visits(plan, 0, 60_000), minlength=6)
    assert np.abs(counts - 10_000).max() < 5.5 * math.sqrt(60_000 * 5 / 36)
    shuffled = plan_for(options={"inner": 60_000, "order": "shuffled"})
    assert np.ptp(np.bincount(visits(shuffled, 0, 60_000))) == 0  # these are not drawn one by one


@pytest.mark.parametrize("option", [{"order": "cyclic"}, {"averaged": 0.5}])
def test_what_the_poster_prints_is_no_option(option: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"means nothing to solver='cd' here; it takes rounds, inner, step, clip"):
        plan_for(options=option, calibration="paper")


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"order": "backwards"}, "order='backwards' must be one of 'cyclic', 'shuffled', 'random'"),
        ({"counted": "some"}, "counted='some' must be one of 'all', 'outer'"),
        ({"clip": -1.0}, r"clip=-1.0 must be a number from 1e-100 to 1e\+100; leave it out"),
        ({"clip": math.nan}, "clip=nan must be a number"),
        ({"step": math.inf}, "step=inf must be a number"),
        ({"step": 0.0}, "step=0.0 must be a number"),
        ({"inner": 2**20, "rounds": 2**20}, "inner=1048576 times rounds=1048576 is more than 2147483647 steps"),
        ({"averaged": 1.5}, "averaged=1.5 must be a number from 0.0 to 1.0"),
        ({"curvature_share": 1.0}, "curvature_share=1.0 must be a number from 0.0 to 0.9"),
        ({"curvatures": [1.0, 2.0]}, r"curvatures=\[1.0, 2.0\] must be the mean square of each of the 5 features"),
        ({"curvatures": [1.0, 2.0, 3.0, 4.0, -1.0]}, "must be a list of positive finite numbers, one for each feature"),
        ({"curvatures": "many"}, "curvatures='many' must be a list of positive finite numbers"),
        ({"curvatures": [1.0] * 5, "curvature_share": 0.2}, "curvature_share=0.2: curvatures are given"),
    ],
)
def test_bad_options_are_told(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        plan_for(options=options)


def test_what_it_cannot_serve_is_told_before_data_is_touched() -> None:
    with pytest.raises(InputError, match="solver='cd': penalty='l1_ball' is not a sum over the coordinates; choose l1"):
        plan_for(penalty="l1_ball")
    from sottovoce import losses

    with pytest.raises(InputError, match="solver='cd' needs a smooth loss and 'hinge' is not"):
        algorithms.check("cd", losses.get("hinge"), "central")
    with pytest.raises(InputError, match="serves the losses squared, huber, smoothed_hinge, logistic, not 'sigmoid'"):
        algorithms.check("cd", losses.get("sigmoid"), "central")


def proposed(plan: Plan, **fields: Any) -> Frame:
    """What a party says to the plan with other fields."""
    digest, text = forged(plan, **fields)
    party = Party("data", *rows_for(plan), randomness=SeededRandomness(0))
    return decode(handle(party, encode(Frame("plan", 1, digest, text=text))).data)


def answered(plan: Plan, query: str, number: int = 1, **arrays: Any) -> Frame:
    """What a party that took the plan says to a message."""
    party = Party("data", *rows_for(plan), randomness=SeededRandomness(0))
    assert decode(handle(party, encode(Frame("plan", 1, plan.digest, text=plan.to_json()))).data).kind == "accept"
    return decode(handle(party, encode(Frame("ask", 2, plan.digest, number, query, arrays))).data)


@pytest.mark.parametrize(
    "changed",
    [
        {"stride": 0},
        {"stride": 1.5},
        {"stride": math.nan},
        {"stride": 2**31},
        {"clip": 0.0},
        {"clip": math.nan},
        {"step": math.inf},
        {"order": "backwards"},
        {"order": 1},
    ],
)
def test_a_plan_with_absurd_numbers_is_refused(changed: dict[str, Any]) -> None:
    plan = plan_for()
    reply = proposed(plan, numbers=plan.numbers.model_dump() | changed)
    assert reply.kind == "refuse"
    assert f"not a plan of this version: {next(iter(changed))}: Input should be" in reply.text


def test_a_plan_that_walks_further_than_it_pays_for_is_refused() -> None:
    plan = plan_for(options={"inner": 12})
    reply = proposed(plan, numbers=plan.numbers.model_dump() | {"stride": 13})
    assert reply.kind == "refuse"
    assert "more sensitive than the plan charged for" in reply.text
    for fields in ({"layout": "rows"}, {"loss": {"name": "hinge", "parameters": {}}}):
        assert proposed(plan, **fields).kind == "refuse"
