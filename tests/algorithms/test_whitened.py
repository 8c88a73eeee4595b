"""`whitened`: how far a record moves what it releases, that sums are exact, and what it makes of the answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import norm

import sottovoce as sv
from sottovoce import algorithms, losses
from sottovoce.algorithms.whitened import private, rule
from sottovoce.data import projection
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.data.matrix import exact_bits, exact_product, exact_weights, toward_zero
from sottovoce.data.slopes import Slope
from sottovoce.door.query import Query, Round
from sottovoce.errors import LeakError, RefusedError
from sottovoce.penalties.base import ScaledRegulariser
from sottovoce.penalties.quadratic import DiagonalMetric, QuadraticMetric
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.privacy.relation import RELATIONS, Relation, either
from sottovoce.queries.gram import ColumnSquares
from sottovoce.queries.numbers import LabelSum, ResidualSum, ScoreSum, SquareSum
from sottovoce.queries.projected import LengthSum, ProjectedGradient, ScaleGradient, Seen, Shape
from support import REGULARISERS, at, plan_of, told_to

FEATURES, RECORDS = 3, 7
D = FEATURES + 1
NULL = (np.full(FEATURES, math.nan), 0.0)
SHAPES = {"triangular": Shape(D, "triangular"), "diagonal": Shape(D, "diagonal"), "vectors": Shape(D, "vectors", 2)}
Values = Callable[[Block], np.ndarray]


def problem(**changes: Any) -> Problem:
    fields: dict[str, Any] = {
        "loss": Named(name="squared"),
        "regulariser": Named(name="none"),
        "split": "central",
        "parties": (("anna", RECORDS),),
        "features": FEATURES,
        "bounds": Bounds.declare(row_norm=1.0, label_bound=1.0),
        "epsilon": 1.0,
        "delta": 1e-5,
    }
    return Problem(**{**fields, **changes})


def block_of(rows: np.ndarray, labels: np.ndarray, *, sparse: bool = False, **changes: Any) -> Block:
    return Block.prepare(sp.csr_matrix(rows) if sparse else rows, labels, problem(**changes).preparation)


def valued(query: Query, told: Mapping[str, np.ndarray]) -> Values:
    """The value on a block; a gradient's rows are projected on the way."""

    def value(block: Block) -> np.ndarray:
        memory: dict[str, Any] = {}
        if isinstance(query, ProjectedGradient) and query.name == "gradient":
            seen = query.shape.message(PROJECTIONS[query.shape.kind])
            memory["gradient"] = Seen(query.shape.project(block, seen), seen)
        return at(query, block, plan=PLAN, memory=memory, **told)

    return value


PLAN = plan_of(problem(), "whitened", rounds=2).model_copy(update={"releases": ()})  # every round is a first one
PROJECTIONS = {
    "triangular": np.zeros((D, D)),
    "diagonal": np.arange(1.0, D + 1),
}
PROJECTIONS["triangular"][np.tril_indices(D)] = np.random.default_rng(5).standard_normal(D * (D + 1) // 2) * 20
QUERIES: dict[str, Query] = {
    "squares": ColumnSquares(D),
    "label": LabelSum(),
    "residual": ResidualSum(D),
    "score": ScoreSum(D),
    "square": SquareSum(D),
    "length": LengthSum(SHAPES["triangular"]),
    "length, diagonal": LengthSum(SHAPES["diagonal"]),
    **{
        f"gradient, {name}": ProjectedGradient(SHAPES["triangular"], losses.get(name))
        for name in ("squared", "huber", "logistic", "hinge")
    },
    "gradient, diagonal": ProjectedGradient(SHAPES["diagonal"], losses.get("logistic")),
    "rescale": ScaleGradient(SHAPES["vectors"], losses.get("logistic")),
}


def random_record(rng: np.random.Generator) -> tuple[np.ndarray, float]:
    row = rng.standard_normal(FEATURES) * 10.0 ** rng.integers(-2, 3)
    if rng.random() < 0.1:
        row[rng.integers(FEATURES)] = rng.choice([math.nan, math.inf, 1e300, 5e-324])
    return row, float(rng.choice([-1.0, 1.0, 0.3, math.nan], p=[0.45, 0.4, 0.1, 0.05]))


def far(query: Query, rng: np.random.Generator) -> dict[Relation, float]:
    """The largest distance of neighbours, as a share of the sensitivity, over random and over extreme records."""
    found: dict[Relation, float] = dict.fromkeys(RELATIONS, 0.0)
    for _ in range(200):
        told = told_to(query, rng)
        if rng.random() < 0.3:  # a score of 0, at which both labels have slopes of the same size
            told |= {name: 0 * told[name] for name in ("point", "offset") if name in told}
        value = valued(query, told)
        records = [random_record(rng) for _ in range(RECORDS)]
        one = np.eye(FEATURES)[rng.integers(FEATURES)] * 9.0 * rng.choice([-1, 1])
        other = np.eye(FEATURES)[rng.integers(FEATURES)] * 9.0 * rng.choice([-1, 1])
        mine, theirs = [(one, 1.0), (other, -1.0)] if rng.random() < 0.8 else [random_record(rng) for _ in range(2)]

        def sums(record: tuple[np.ndarray, float], records: Any = records, value: Values = value) -> np.ndarray:
            rows = [*records[:2], record, *records[3:]]
            return value(block_of(np.array([row for row, _ in rows]), np.array([label for _, label in rows])))

        here = sums(mine)
        for relation in RELATIONS:
            moved = np.linalg.norm(here - sums(either(relation, zero_out=NULL, replace_one=theirs)))
            found[relation] = max(found[relation], float(moved) / query.sensitivity(relation))
    return found


# With a constant column, whose square is 1/17, the other squares of a row sum to at most 16/17 (proof.md).
REACHED = {"squares": 16 / 17}


@pytest.mark.slow
@pytest.mark.parametrize("name", QUERIES)
def test_neighbours_reach_the_bound_and_never_pass_it(name: str) -> None:
    found = far(QUERIES[name], np.random.default_rng(len(name)))
    assert all(0.99 * REACHED.get(name, 1.0) <= share <= 1.0 for share in found.values()), found


numbers_of: Any = Slope.__dict__["numbers"].func
BOUND_ONLY = np.array([1.0, 1.0, 1.0, 1.0, 1.1, 1.0, 1.0])


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        ("sottovoce.data.projection._lengths", lambda rows, matrix, _: 0.9 * np.linalg.norm(rows @ matrix, axis=1)),
        ("sottovoce.data.slopes.Slope.numbers", property(lambda slope: numbers_of(slope) * BOUND_ONLY)),
    ],
)
def test_a_term_that_is_too_long_is_found(monkeypatch: pytest.MonkeyPatch, place: str, wrong: Any) -> None:
    """Negative control: rows or slopes that are cut a little too late."""
    monkeypatch.setattr(place, wrong)
    assert max(far(QUERIES["gradient, squared"], np.random.default_rng(1)).values()) > 1.0


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("sparse", [False, True])
def test_a_sum_is_that_of_its_records_to_the_last_bit(monkeypatch: pytest.MonkeyPatch, name: str, sparse: bool) -> None:
    """In any order, alone or together, dense or sparse: a record adds its own term.

    The product of the sum with P, and its division by C, come after: they are rounded, each once (next test).
    """
    monkeypatch.setattr(projection, "exact_product", lambda matrix, vector, bits, size: vector)
    rng = np.random.default_rng(3)
    rows, labels = rng.standard_normal((RECORDS, FEATURES)), rng.choice([-1.0, 1.0, 0.4], RECORDS)
    told = told_to(QUERIES[name], rng)
    value = valued(QUERIES[name], told | {"cut": np.array([2.0**-3])} if "cut" in told else told)
    whole = value(block_of(rows, labels))
    others = [np.where(np.arange(RECORDS)[:, None] == k, rows, math.nan) for k in range(RECORDS)]
    each = [value(block_of(alone, labels, sparse=sparse)) for alone in others]
    for order in (np.arange(RECORDS), rng.permutation(RECORDS)):
        np.testing.assert_array_equal(sum(each[k] for k in order), whole)
        np.testing.assert_array_equal(value(block_of(rows[order], labels[order], sparse=sparse)), whole)


@pytest.mark.parametrize(("records", "columns"), [(7, 4), (30_000, 40), (10**9, 90)])
def test_a_product_is_rounded_once(records: int, columns: int) -> None:
    """Each entry of P'v is the float64 nearest to the exact sum of its products, though large ones cancel."""
    rng, bits = np.random.default_rng(records), exact_bits(records)
    matrix = rng.standard_normal((columns, columns)) * 10.0 ** rng.uniform(-3, 3, columns)
    matrix = exact_weights(matrix, bits, float(np.linalg.norm(matrix, axis=0).max()))
    small = np.linalg.svd(matrix)[0][:, -1]  # which the matrix takes nearly to 0
    for direction in (small, rng.standard_normal(columns), np.eye(columns)[0]):
        vector = toward_zero(direction / np.linalg.norm(direction) * (records - 1), 2 * bits)
        exact = [sum(Fraction(a) * Fraction(b) for a, b in zip(column, vector, strict=True)) for column in matrix.T]
        np.testing.assert_array_equal(exact_product(matrix, vector, bits, records), [float(entry) for entry in exact])
        if direction is small and records > 7:  # negative control
            assert (matrix.T @ vector != [float(entry) for entry in exact]).any()
    with pytest.raises(LeakError, match="not exact with 4 bits"):
        exact_product(np.eye(300), np.zeros(300), 4, 2**45)


@pytest.mark.parametrize("name", QUERIES)
def test_null_rows_and_empty_blocks_add_nothing(name: str) -> None:
    value = valued(QUERIES[name], told_to(QUERIES[name], np.random.default_rng(4)))
    nothing = np.tile(NULL[0], (RECORDS, 1))
    assert not value(block_of(nothing, np.ones(RECORDS))).any()
    assert not value(block_of(nothing[:0], np.ones(0))).any()


def test_rows_are_asked_for_in_order() -> None:
    """Nothing is released of rows that were not projected and cut, and rows are cut once."""
    plan = plan_of(problem(), "whitened", rounds=3)
    query = {query.name: query for query in algorithms.of(plan).queries(plan, "anna")}["gradient"]
    told = {name: np.ones(wanted.largest) for name, wanted in query.takes_at(plan.release("gradient").first).items()}
    block, first = block_of(np.eye(3), np.ones(3)), plan.release("gradient").first
    memory = {"gradient": Seen(projection.Projected(block, np.ones(D)), {})}
    for missing in ({}, memory):
        with pytest.raises(RefusedError, match="needs rows that were projected and cut"):
            query.value(Round(plan, first + 1, {k: v for k, v in told.items() if k != "cut"}, block, missing))
    query.value(Round(plan, first, told, block, memory))
    with pytest.raises(RefusedError, match="tell P and C"):  # another C would be taken for the first
        query.value(Round(plan, first, told, block, memory))
    with pytest.raises(LeakError, match="cut already"):
        memory["gradient"].rows.cut(1.0)
    with pytest.raises(LeakError, match="not prepared for exact scores"):
        projection.Projected(block_of(np.eye(3), np.ones(3), epsilon=math.inf), np.ones(D))


def silent(plan: Plan, blocks: Mapping[str, Block]) -> np.ndarray:
    """The weights of a run whose answers carry no noise, though the coordinator thinks that they do."""
    form = algorithms.of(plan)
    queries = {query.name: query for query in form.queries(plan, plan.names[0])}
    memories = {name: form.remember(plan, block) for name, block in blocks.items()}
    text, number = form.coordinate(plan), 0
    ask = next(text)
    try:
        while True:
            query = queries[ask.query]
            assert query.objection(number, ask.arrays) is None
            answers = {
                name: query.value(Round(plan, number, ask.arrays, block, memories[name]))
                for name, block in blocks.items()
            }
            number += 1
            ask = text.send(answers)
    except StopIteration as stop:
        return np.asarray(stop.value.weights)


def straight(X: np.ndarray, y: np.ndarray, noise: Mapping[str, float], logistic: bool, full: bool) -> np.ndarray:
    """The rule written down in one go, in plain floating point, for rows with a last constant column."""
    N, d, c = *X.shape, X[0, -1]
    s = {name: value / N for name, value in noise.items()}
    if full:
        ev, U = np.linalg.eigh(X.T @ X / N)
        D_ = ev[:, None] - ev
        lam = np.maximum(ev - s["gram"] ** 2 * (D_ / (D_**2 + s["gram"] ** 2 / 2)).sum(1), 0.5 * s["gram"])
        hidden = s["gram"] * math.sqrt(d / 2)
    else:
        h, U, sH = (X**2).mean(0), np.eye(d), s["squares"]
        z = np.maximum((h - sH**2 / max(h[:-1].mean(), 0.05 * sH)) / sH, -30)
        lam, hidden = np.maximum(sH * (z + norm.pdf(z) / norm.cdf(z)), 1e-6 / d), sH
        lam[-1] = c**2
    lam = lam / max(1, lam.sum())
    start, G, top, v0, k0, tol = 0.0, 0.5, 1.0, 2.0, losses.get("logistic").mean_curvature(2.0), 5e-5
    if not logistic:
        start = y.mean() / (1 + 4 * s["label"] ** 2)
        G = min(np.minimum(np.abs(start - y), 1).mean() + s["residual"], 1)
        v0, k0, tol = G * G / 2, 1.0, 5e-5 * G * G

    def slope(u: np.ndarray, limit: float) -> np.ndarray:
        if not logistic:
            return np.clip(u - y, -limit, limit)
        right = 1 / (1 + np.exp(-y * u))
        return -y * (1 - right) * np.minimum(1, limit / np.maximum(right, 1 - right))

    def k_at(v: float) -> float:
        return max(k0 / 4, losses.get("logistic").mean_curvature(v)) if logistic else 1.0

    rest = np.arange(d) != lam.argmax()
    tau, a2 = v0 / lam[rest].sum(), (0.7 * s["gradient"] * G / k0) ** 2
    kappa = 1.0
    for _ in range(20000):  # a fixed point, by damped steps
        kappa = math.sqrt(kappa * a2 * (lam * tau / (lam * tau + kappa)).sum())
    q = tau / (lam * tau + kappa)
    Z = X @ U * np.sqrt(q)
    length = np.linalg.norm(Z, axis=1)
    R = min(math.sqrt(q.max()), 2 * math.sqrt(q @ lam))
    n1 = R * np.clip(np.minimum(1, length / R).mean(), 0.05, 1)
    m2 = q @ lam

    def descend(Z, u, offset, CG, h, damp, prior, v, z, T, S) -> np.ndarray:
        W = np.clip(T * (S * (z / k0 / (h / S)) ** 2).sum() / (v / 4), 1, T)
        b, K, taken, before = np.zeros_like(u), 0.0, [], (u, u)
        weight = np.minimum(1, CG[0] / np.linalg.norm(Z, axis=1))
        for n in range(1, T + 1):
            g, k = Z.T @ (weight * slope(Z @ u + offset, CG[1])) / N, k_at(S @ u**2)
            if n > 1:
                move = u - before[0]
                bent = (g - before[1]) @ move - 2 * z * math.sqrt(2 * T * move @ move)
                W = np.clip(max(W, bent / (k * (h + damp) @ move**2)), 1, T)
            before = u, g
            gain = max(3 / (2 * n + 1), 1 / W)
            b, K = b + (k * (h + damp) * u - g - b) * gain, K + (k - K) * gain
            u = b / (K * (h + damp) + max(1, W / n) * z**2 / (prior * K * h))
            taken += [u] if n >= max(T / 2, W) else []
        return np.mean(taken, axis=0)

    C = 0.7 * n1

    def widened(C, noise, m2, longest) -> tuple[float, float]:
        grow = max(1, math.sqrt(2 * tol * k0 / m2) / (noise * G * C))
        a = min(top / G, math.sqrt(grow))
        return min(C * grow / a, longest), G * a

    CG = widened(C, s["gradient"], m2, math.sqrt(q.max()))
    b = min(1, CG[0] / n1)
    given = (q * lam * b, 0.15 * hidden * q * b, tau / q, v0, s["gradient"] * CG[0] * CG[1], 32, q * lam)
    f = U @ (np.sqrt(q) * descend(Z, np.zeros(d), start, CG, *given))
    icpt, f[-1] = c * f[-1], 0.0
    score, along = X @ f, U.T @ f
    m, second = -icpt, lam @ along**2
    if full:
        m = (lam * U[-1]) @ along / c
        second = max(second - m * m, 0.1 * second)
    R = 2.5 * math.sqrt(second)
    m += R * np.clip((score - m) / R, -1, 1).mean() / (1 + (2.5 * s["score"]) ** 2)
    found = np.minimum(((score - m) / R) ** 2, 1).mean()
    sd = R * math.sqrt(max((found + s["square"] ** 2) / (1 + (2.5 * s["square"]) ** 2), 0.048))
    CG, one, t = widened(1.0, s["rescale"], 2, 4.5), np.ones(2), np.linspace(-6, 6, 241)
    density = norm.pdf(t) / norm.pdf(t).sum() * np.minimum(1, CG[0] / np.hypot(t, 1))
    left = np.array([density @ t**2, density.sum()])
    given = (left, 0 * one, v0, v0 / 2, s["rescale"] * CG[0] * CG[1], 12, one)
    u = descend(np.c_[(score - m) / sd, np.ones(N)], np.array([sd, m + icpt]), start, CG, *given)
    f = f * max(u[0], 0) / sd
    f[-1] = (start + u[1] - max(u[0], 0) * m / sd) / c
    return f


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("full", [True, False], ids=["matrix", "diagonal"])
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_the_rule_is_what_it_says(
    monkeypatch: pytest.MonkeyPatch, classification: Any, regression: Any, loss: str, full: bool, epsilon: float
) -> None:
    """Against the rule written in one go: at little signal and at much, with a Gram matrix and with its diagonal."""
    monkeypatch.setattr(private, "NEWTON_FEATURES", 2000 if full else 2)
    X, y = classification if loss == "logistic" else regression
    X = X * np.array([1.0, 1.0, 0.5, 0.3, 0.1, 0.05])
    known = {"loss": Named(name=loss), "features": 6, "epsilon": epsilon, "parties": (("anna", len(y)),)}
    asked = problem(**known, classes=(-1, 1) if loss == "logistic" else None)
    plan = plan_of(asked, "whitened")
    block = Block.prepare(X, y, plan.preparation)
    noise = {release.query: release.std / math.sqrt(release.count) for release in plan.releases}
    wanted = straight(block.rows.astype(float), y.astype(float), noise, loss == "logistic", full)
    np.testing.assert_allclose(silent(plan, {"anna": block}), wanted, rtol=0, atol=2e-3 * np.abs(wanted).max())


def test_a_cut_leaves_the_intercept_where_it_is() -> None:
    """At the odds of the labels the slopes cancel however short they are cut; cut one by one they would not."""
    labels = np.repeat([-1.0, 1.0], [58, 42])
    known = {"loss": Named(name="logistic"), "classes": (-1, 1), "parties": (("anna", 100),)}
    block = block_of(np.full((100, FEATURES), 0.1), labels, **known)
    one = np.where(np.arange(D) < FEATURES, 0.0, 1.0)[:, None]
    query = ScaleGradient(Shape(D, "vectors", 1), losses.get("logistic"))
    odds = np.array([math.log(42 / 58)])
    for slope in (0.1, 0.5, 0.55, 1.0):
        told = {**query.shape.message(one), "cut": [0.1], "point": [0.0], "offset": odds, "slope": np.array([slope])}
        assert abs(at(query, block, plan=PLAN, memory={}, **told)[0]) < 1e-3
    cut = np.clip(losses.get("logistic").derivative(np.full(100, odds[0]), labels), -0.5, 0.5)  # negative control
    assert cut.sum() > 1.0


@pytest.mark.slow
def test_where_noise_rules_the_constant_model_is_left() -> None:
    """Unequal classes, features that say nothing, and little budget: above all the intercept is right."""
    X, y = np.random.default_rng(0).standard_normal((600, 4)) / 4, np.where(np.arange(600) % 10 < 3, 1, -1)
    given: dict[str, Any] = {"row_norm": 1.0, "classes": (-1, 1), "solver": "whitened"}

    def loss(seed: int) -> float:
        model = sv.PrivateLogisticRegression(epsilon=0.2, insecure_seed=seed, **given).fit(X, y)
        return float(np.logaddexp(0, -y * model.decision_function(X)).mean())

    constant = -0.3 * math.log(0.3) - 0.7 * math.log(0.7)
    assert np.mean([loss(seed) for seed in range(20)]) < constant + 0.02  # even odds: + 0.08


def test_noise_is_judged_by_the_number_of_parties(classification: Any) -> None:
    """Four parties that each add noise are as one that adds twice as much."""
    X, y = classification
    known = {"loss": Named(name="logistic"), "classes": (-1, 1), "features": 6, "epsilon": 2.0}
    names, count = "abcd", len(y) // 4
    four = plan_of(problem(**known, split="rows", parties=tuple((name, count) for name in names)), "whitened")
    doubled = tuple(release.model_copy(update={"std": 2 * release.std}) for release in four.releases)
    one = four.model_copy(update={"split": "central", "parties": (("a", len(y)),), "releases": doubled})
    parts = {name: Block.prepare(X[k::4], y[k::4], four.preparation) for k, name in enumerate(names)}
    whole = Block.prepare(X, y, one.preparation)
    np.testing.assert_allclose(silent(four, parts), silent(one, {"a": whole}), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("signal", [3.0, 30.0, 1e3, 1e6])
@pytest.mark.parametrize("numbers", [2, 3, 5])
def test_shares_are_above_zero_and_sum_to_one(signal: float, numbers: int) -> None:
    for moments in (rule.GRAM, rule.SQUARES):
        one, rescale, rest = rule.shares(signal, numbers, moments)
        assert min(one, rescale, rest) > 0.0
        assert moments + numbers * one + rescale + rest == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("estimator", "loss"),
    [
        (sv.PrivateLinearSVC, {"loss": "hinge"}),
        (sv.PrivateLinearSVC, {"loss": "smoothed_hinge"}),
        (sv.PrivateRidge, {}),
    ],
)
@pytest.mark.parametrize("intercept", [True, False])
def test_other_losses_learn(
    estimator: Any, loss: dict[str, Any], intercept: bool, classification: Any, regression: Any
) -> None:
    X, y = classification if loss else regression
    more = {"classes": (-1, 1), **loss} if loss else {"label_bound": 1.0}
    given = {"row_norm": 1.0, "fit_intercept": intercept, "solver": "whitened", **more}
    model = estimator(epsilon=8.0, insecure_seed=0, alpha=1e-4, **given).fit(X, y)
    reference = sv.PrivateLogisticRegression if loss else sv.PrivateRidge
    best = reference(epsilon=math.inf, fit_intercept=intercept, alpha=1e-4, solver="newton").fit(X, y)
    assert model.score(X, y) > best.score(X, y) - 0.05


@pytest.mark.parametrize("given", [{"alpha": 1.0, "l1_ratio": 1}, {"alpha": 1.0, "l1_ratio": 0}, {"alpha": 0.0}])
def test_more_columns_than_a_matrix_has_room_for(given: dict[str, Any]) -> None:
    """Sparse rows stay sparse, and penalties and balls are kept."""
    X = sp.random(400, 2100, density=0.01, random_state=0, format="csr")
    X.data[:] = 0.2
    y = np.where(np.asarray(X[:, :700].sum(axis=1)).ravel() > 1.3, 1, -1)
    known: dict[str, Any] = {"row_norm": 1.0, "classes": (-1, 1), "solver": "whitened", "insecure_seed": 1}
    model = sv.PrivateLogisticRegression(epsilon=8.0, **known, **given).fit(X, y)
    assert {release.query for release in model.plan_.releases} >= {"squares", "length"}
    dense = sv.PrivateLogisticRegression(epsilon=8.0, **known, **given).fit(X.toarray(), y)
    np.testing.assert_array_equal(model.coef_, dense.coef_)
    if given.get("l1_ratio") == 1:
        assert not model.coef_.any()
    ball = sv.PrivateLogisticRegression(epsilon=8.0, **known, radius=0.5).fit(X, y)
    assert np.linalg.norm(ball.coef_) <= 0.5 * (1 + 1e-9)


@pytest.mark.parametrize("regulariser", REGULARISERS)
def test_a_diagonal_metric_is_the_matrix(regulariser: Any) -> None:
    rng = np.random.default_rng(0)
    values, w, g = np.array([0.5, 1.0, 2.0, 5.0, 40.0]), rng.standard_normal(5), rng.standard_normal(5)
    scaled = ScaledRegulariser(regulariser, features=4, scale=0.7, objective=1.3)
    wanted = QuadraticMetric(values, np.eye(5)).step(w, g, scaled, 3)
    np.testing.assert_allclose(DiagonalMetric(values).step(w, g, scaled, 3), wanted, atol=1e-9)


def test_columns_that_add_up_do_not_diverge() -> None:
    """Columns are scaled one by one though they have a large mean in common: the steps are as short as that needs."""
    rng = np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0], (20_000, 12))
    X = (1 + 0.5 * signs) / (1.5 * math.sqrt(12))
    y = np.where(rng.random(len(X)) < 1 / (1 + np.exp(-signs @ np.linspace(-1, 1, 12))), 1, -1)
    given: dict[str, Any] = {"row_norm": 1.0, "classes": (-1, 1), "solver": "whitened", "insecure_seed": 0}

    def loss(**more: Any) -> float:
        model = sv.PrivateLogisticRegression(epsilon=8.0, delta=1e-6, **given, **more).fit(X, y)
        return float(np.logaddexp(0, -y * model.decision_function(X)).mean())

    best = loss()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(private, "NEWTON_FEATURES", 2)
        assert loss() < best + 0.01
        patch.setattr(rule.Descent, "_widen", lambda self, gradient: None)  # negative control
        assert loss() > best + 0.1
