"""`whitened`: how far a record moves what it releases, that sums are exact, and what it makes of the answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import norm

import sottovoce as sv
from plans import small_problem as problem
from sottovoce import algorithms, losses
from sottovoce.algorithms.whitened import private, rule
from sottovoce.data import projection
from sottovoce.data.block import Block
from sottovoce.data.matrix import exact_bits, exact_product, exact_weights, toward_zero
from sottovoce.errors import LeakError, RefusedError
from sottovoce.gate.query import Round
from sottovoce.penalties.base import ScaledRegulariser
from sottovoce.penalties.quadratic import DiagonalMetric, QuadraticMetric
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named
from sottovoce.queries.sums import ProjectionShape, ScaleGradient, Seen
from support import REGULARISERS, at, plan_of

FEATURES, RECORDS = 3, 7
D = FEATURES + 1


def block_of(rows: np.ndarray, labels: np.ndarray, *, sparse: bool = False, **changes: Any) -> Block:
    return Block.prepare(sp.csr_matrix(rows) if sparse else rows, labels, problem(**changes).preparation)


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


def straight(
    X: np.ndarray, y: np.ndarray, noise: Mapping[str, float], rounds: int, logistic: bool, full: bool
) -> np.ndarray:
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

    nodes = np.linspace(-6, 6, 241)
    normal = norm.pdf(nodes) / norm.pdf(nodes).sum()

    def k_at(v: float, mean: float | None, least: float) -> float:
        if not logistic:
            return 1.0
        if mean is None:
            return max(k0 / 4, losses.get("logistic").mean_curvature(v))
        p = 1 / (1 + np.exp(-mean - math.sqrt(max(v - mean**2, 0)) * nodes))
        return max(least, normal @ (p * (1 - p)))

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

    def descend(Z, u, offset, CG, h, damp, prior, v, z, T, S, mean, chance) -> np.ndarray:
        spoiled = (S * (z / (h / S)) ** 2).sum() / v
        W, least = np.clip(4 * T * spoiled / k0**2, 1, T), min(k0 / 4, 16 * math.sqrt(spoiled))
        U, Gm, K, taken, before, last, gain, stiff, moves = 0 * u, 0 * u, 0.0, [], (u, u), 0.0, 1.0, 1 + 0 * u, []
        weight = np.minimum(1, CG[0] / np.linalg.norm(Z, axis=1))
        for n in range(1, T + 1):
            g, k = (
                Z.T @ (weight * slope(Z @ u + offset, CG[1])) / N,
                k_at(S @ u**2, None if mean is None else mean @ u, least),
            )
            if mean is not None:
                k = last = max(k, last / 2)
                W = np.clip(4 * T * spoiled / last**2, W, T)
            if n > 1:
                s, y, model, e = u - before[0], g - before[1], k * (h + damp), T * z**2
                size, echo, hidden = s @ (model * s), e * gain * (1 / stiff).sum(), 2 * e * s @ s
                excess = s @ y - echo - size
                sure = size**2 / (size**2 + (1 if excess > 0 else 30) * hidden)
                across = size / (size + 2 * e * (1 / model).sum())
                bent = max(1 + sure * excess / size, 0.2) * model * s
                moves.append((s, bent + across * (y - (s @ y) / size * model * s)))
            before, gain = (u, g), max(3 / (2 * n + 1), 1 / W)
            U, Gm, K = U + (u - U) * gain, Gm + (g - Gm) * gain, K + (k - K) * (gain if n > 1 else 1.0)
            noise = max(1, W / n) * z**2 + chance * h * (K if logistic else G**2)
            R = noise / (prior * K * h)
            stiff = K * (h + damp) + R
            B = np.diag(stiff)  # BFGS, from the first move on
            for s, y in moves:
                y = y + R * s
                B = B - np.outer(B @ s, B @ s) / (s @ B @ s) + np.outer(y, y) / (s @ y)
            u = U - np.linalg.solve(B, Gm + R * U)
            taken += [u] if n >= max(T / 2, W) else []
        return np.mean(taken, axis=0)

    C = 0.7 * n1

    def widened(C, noise, m2, longest) -> tuple[float, float]:
        grow = max(1, math.sqrt(2 * tol * k0) / (noise * G * C * (m2 if logistic else math.sqrt(m2))))
        a = min(top / G, grow)
        return min(C * grow / a, longest), G * a

    CG = widened(C, s["gradient"], m2, math.sqrt(q.max()))
    b = min(1, CG[0] / n1)
    row = np.sqrt(q) * lam * U[-1] / c if full else None
    given = (
        q * lam * b,
        0.15 * hidden * q * b,
        tau / q,
        v0,
        s["gradient"] * CG[0] * CG[1],
        rounds,
        q * lam,
        row,
        d / N**2,
    )
    f = U @ (np.sqrt(q) * descend(Z, np.zeros(d), start, CG, *given))
    icpt, f[-1] = c * f[-1], 0.0
    score, along = X @ f, U.T @ f
    m, second, doubt = -icpt / 2, lam @ along**2, abs(icpt) / 2
    if full:
        doubt, m = 0.0, (lam * U[-1]) @ along / c
        second = max(second - m * m, 0.1 * second)
    R = 2.5 * math.sqrt(second)
    wide = R + doubt
    m += wide * np.clip((score - m) / wide, -1, 1).mean() / (1 + (2.5 * s["score"]) ** 2)
    R = math.hypot(R, 2 * wide * s["score"]) if doubt else R
    found = np.minimum(((score - m) / R) ** 2, 1).mean()
    sd = R * math.sqrt(max((found + s["square"] ** 2) / (1 + (2.5 * s["square"]) ** 2), 0.048))
    CG, one, t = widened(1.0, s["rescale"], 2, 4.5), np.ones(2), np.linspace(-6, 6, 241)
    density = norm.pdf(t) / norm.pdf(t).sum() * np.minimum(1, CG[0] / np.hypot(t, 1))
    left = np.array([density @ t**2, density.sum()])
    given = (left, 0 * one, v0, v0 / 2, s["rescale"] * CG[0] * CG[1], 12, one, np.eye(2)[1], 0.0)
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
    wanted = straight(block.rows.astype(float), y.astype(float), noise, plan.rounds, loss == "logistic", full)
    np.testing.assert_allclose(silent(plan, {"anna": block}), wanted, rtol=0, atol=2e-3 * np.abs(wanted).max())


def test_a_cut_leaves_the_intercept_where_it_is() -> None:
    """At the odds of the labels the slopes cancel however short they are cut; cut one by one they would not."""
    labels = np.repeat([-1.0, 1.0], [58, 42])
    known = {"loss": Named(name="logistic"), "classes": (-1, 1), "parties": (("anna", 100),)}
    block = block_of(np.full((100, FEATURES), 0.1), labels, **known)
    one = np.where(np.arange(D) < FEATURES, 0.0, 1.0)[:, None]
    query = ScaleGradient(ProjectionShape(D, "vectors", 1), losses.get("logistic"))
    odds = np.array([math.log(42 / 58)])
    for slope in (0.1, 0.5, 0.55, 1.0):
        told = {**query.shape.message(one), "cut": [0.1], "point": [0.0], "offset": odds, "slope": np.array([slope])}
        assert abs(at(query, block, memory={}, **told)[0]) < 1e-3
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
    np.testing.assert_allclose(silent(four, parts), silent(one, {"a": whole}), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("signal", [3.0, 30.0, 1e3, 1e6])
@pytest.mark.parametrize("numbers", [2, 3, 5])
def test_shares_are_above_zero_and_sum_to_one(signal: float, numbers: int) -> None:
    for moments, share in rule.MOMENTS.items():
        names = [moments, *map(str, range(numbers)), "gradient", "rescale"]
        found = private.PrivateWhitened().shares(signal, names)
        assert list(found) == names
        assert found[moments] == share
        assert min(found.values()) > 0.0
        assert sum(found.values()) == pytest.approx(1.0)
        more = private.PrivateWhitened().shares(signal, [*names, "prior_score", "prior_square", "prior"])
        assert sum(more.values()) == pytest.approx(1.0)
        assert 0.0 < more["gradient"] < found["gradient"]


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


@pytest.mark.slow
def test_rare_labels_are_calibrated() -> None:
    """Steps follow the curvature where the scores are; by that around 0 they would be far too short to arrive."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100_000, 8)) / 3
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True) / 1.5, 1)
    y = np.where(rng.random(len(X)) < 1 / (1 + np.exp(7 - 3 * X @ np.repeat([1.0, -0.7], 4))), 1, -1)
    given: dict[str, Any] = {"row_norm": 1.5, "classes": (-1, 1), "solver": "whitened", "insecure_seed": 0}
    exact = sv.PrivateLogisticRegression(math.inf, row_norm=1.5, classes=(-1, 1), alpha=0.0, solver="newton").fit(X, y)

    def told() -> tuple[float, float]:
        """The mean probability by the share, and the length of the coefficients by those without privacy."""
        model = sv.PrivateLogisticRegression(epsilon=8.0, delta=1e-6, **given).fit(X, y)
        length = float((model.coef_ @ exact.coef_.T).item() / (exact.coef_ @ exact.coef_.T).item())
        return float(model.predict_proba(X)[:, 1].mean() / (y > 0).mean()), length

    share, length = told()
    assert 0.9 < share < 1.1
    assert 0.85 < length < 1.15
    with pytest.MonkeyPatch.context() as patch:  # negative control
        of_gram = rule.of_gram
        patch.setattr(rule, "of_gram", lambda *given: replace(of_gram(*given), mean=None))
        patch.setattr(losses.get("logistic").__class__, "affine_in_label", False)
        patch.setattr(rule.Descent, "_learn", lambda self, gradient, model: None)
        share, length = told()
        assert share > 1.1
        assert length < 0.85


@pytest.mark.slow
def test_rare_labels_do_not_hide_where_scores_are() -> None:
    """Above 2,000 columns the intercept makes up for rare labels, or for the mean of the scores: nobody knows which."""
    rng = np.random.default_rng(3)
    X = sp.random(6000, 5000, density=0.008, random_state=0, format="csr", data_rvs=lambda n: 0.5 + rng.random(n))
    X = sp.diags(1 / np.sqrt(np.maximum(X.power(2).sum(axis=1).A1, 1e-9))) @ X
    y = np.where(rng.random(6000) < 0.07, 1, -1)
    given: dict[str, Any] = {"row_norm": 1.0, "classes": (-1, 1), "solver": "whitened", "delta": 1e-5}

    def loss() -> float:
        models = (sv.PrivateLogisticRegression(0.1, insecure_seed=seed, **given).fit(X, y) for seed in range(4))
        return float(np.mean([np.logaddexp(0, -y * model.decision_function(X)).mean() for model in models]))

    constant = -0.07 * math.log(0.07) - 0.93 * math.log(0.93)
    assert loss() < constant + 0.03
    expected = rule.FittedScore.expected
    with pytest.MonkeyPatch.context() as patch:  # negative control: all of the intercept makes up for the mean
        patch.setattr(rule.FittedScore, "expected", lambda score, moments, b: (-b, expected(score, moments, b)[1], 0.0))
        assert loss() > constant + 0.03


@pytest.mark.slow
def test_several_classes_of_columns_that_add_up_do_not_diverge() -> None:
    """One column for each level, scaled one by one: they add up to the number of attributes. It is no noise."""
    rng = np.random.default_rng(0)
    hidden, popular = rng.standard_normal((6000, 3)), -1.2 * np.log(np.arange(8) + 1.0)
    chances = [0.7 * hidden @ rng.standard_normal((3, 8)) + popular for _ in range(45)]
    X = np.hstack([np.eye(8)[(each + rng.gumbel(size=each.shape)).argmax(axis=1)] for each in chances]) / math.sqrt(45)
    scores = hidden @ rng.standard_normal((3, 3)) + 2 * X @ rng.standard_normal((360, 3)) + [0.0, 0.9, -1.2]
    y = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    given: dict[str, Any] = {"row_norm": 1.0, "classes": range(3), "solver": "whitened", "insecure_seed": 0}

    def loss() -> float:
        model = sv.PrivateLogisticRegression(1e6, delta=1e-6, **given).fit(X, y)
        return float(-np.log(model.predict_proba(X)[np.arange(len(y)), y]).mean())

    best = loss()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(private, "NEWTON_FEATURES", 2)
        kept = loss()
        assert kept < best + 0.15
        patch.setattr(rule.Descent, "_learn", lambda self, gradient, model: None)  # negative control
        assert loss() > kept + 0.5


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
        patch.setattr(rule.Descent, "_learn", lambda self, gradient, model: None)  # negative control
        assert loss() > best + 0.1
