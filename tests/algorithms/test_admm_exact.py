"""ADMM sharing without privacy: where it ends, as published and by its own rule, and what it refuses."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sottovoce as sv
from plans import columns_problem
from sottovoce import losses
from sottovoce.algorithms import Solution
from sottovoce.algorithms.sharing.admm_exact import CHECK, ExactADMM, defaults
from sottovoce.data.bounds import Bounds
from sottovoce.errors import InputError, RefusedError
from sottovoce.federation.coordinator import Coordinator
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.penalties.sets import L2Ball
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from support import forged, handle, plan_of

FORM = ExactADMM()
INF = math.inf
PUBLISHED = {"rho": 1.0, "proximal": 0.0, "relaxation": 1.0, "tolerance": 0.0}


def problem_for(
    columns: tuple[int, ...], records: int, loss: str = "logistic", penalty: str = "none", **fields: Any
) -> Problem:
    classification = losses.get(loss).kind == "classification"
    parameters = {name: fields.pop(name) for name in ("alpha", "l1_ratio", "radius", "low", "high") if name in fields}
    declared: dict[str, Any] = {
        "loss": Named(name=loss),
        "regulariser": Named(name=penalty, parameters=parameters),
        "epsilon": INF,
        "classes": (-1, 1) if classification else None,
    }
    bounds = fields.pop("bounds", Bounds.declare())
    return columns_problem(columns, records, bounds, first=1, **declared | fields)


def run(
    parts: list[Any], y: np.ndarray, options: dict[str, float] | None = None, **fields: Any
) -> tuple[Plan, Solution, Coordinator]:
    holder = fields.get("label_party", 0)
    columns = tuple(part.shape[1] for part in parts)
    label_party = fields.pop("label_party", 0)
    plan = plan_of(problem_for(columns, len(y), label_party=label_party, **fields), "admm", **options or {})
    federation = sv.Federation.by_columns(parts, y, label_party=holder)
    coordinator = federation.coordinator(without_privacy=True)
    solution, _ = coordinator.run(plan, FORM)
    return plan, solution, coordinator


def split(X: Any, parties: int) -> list[Any]:
    edges = np.linspace(0, X.shape[1], parties + 1).astype(int)
    return [X[:, a:b] for a, b in itertools.pairwise(edges)]


@pytest.fixture(scope="module")
def wide() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Twenty-four features, some alike, and labels of both kinds."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((400, 24)) + 0.7 * rng.standard_normal((400, 1))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    scores = X @ np.linspace(-4, 4, 24) + 0.5
    classes = np.where(rng.random(400) < 1 / (1 + np.exp(-scores)), 1, -1)
    return X, classes, np.clip(scores / 8 + 0.1 * rng.standard_normal(400), -1, 1)


MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "logistic": (sv.PrivateLogisticRegression(INF, alpha=0.01), {"penalty": "l2", "alpha": 0.01}),
    "logistic l1": (sv.PrivateLogisticRegression(INF, alpha=0.002, l1_ratio=1), {"penalty": "l1", "alpha": 0.002}),
    "logistic free": (sv.PrivateLogisticRegression(INF, fit_intercept=False), {"fit_intercept": False}),
    "svm": (sv.PrivateLinearSVC(INF, alpha=0.01), {"loss": "smoothed_hinge", "penalty": "l2", "alpha": 0.01}),
    "ridge": (sv.PrivateRidge(INF, alpha=0.01), {"loss": "squared", "penalty": "l2", "alpha": 0.01}),
    "ridge in other units": (
        sv.PrivateRidge(INF, alpha=0.01, row_norm=5.0, label_bound=3.0),
        {"loss": "squared", "penalty": "l2", "alpha": 0.01, "bounds": Bounds.declare(row_norm=5.0, label_bound=3.0)},
    ),
    "lasso": (sv.PrivateLasso(INF, alpha=0.003), {"loss": "squared", "penalty": "l1", "alpha": 0.003}),
    "elastic net": (
        sv.PrivateElasticNet(INF, alpha=0.003, l1_ratio=0.3),
        {"loss": "squared", "penalty": "elastic_net", "alpha": 0.003, "l1_ratio": 0.3},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("parties", [1, 2, 8])
@pytest.mark.parametrize("name", list(MODELS))
def test_it_equals_the_central_solver(name: str, parties: int, wide: Any) -> None:
    model, fields = MODELS[name]
    X, classes, numbers = wide
    y = numbers if "loss" in fields and fields["loss"] == "squared" else classes
    central = model.set_params(solver="newton").fit(X, y)
    parts = split(X, parties)
    if "bounds" in fields:
        shares = [5.0 * math.sqrt(part.shape[1] / 24) for part in parts]
        fields = fields | {"norms": tuple(shares)}
    plan, solution, _ = run(parts, y, **fields, label_party=parties - 1)
    coef, intercept = plan.preparation.unprepare(solution.weights)
    np.testing.assert_allclose(coef, central.coef_.ravel(), atol=1e-6)
    assert intercept == pytest.approx(float(np.ravel(central.intercept_)[0]), abs=1e-6)
    if "l1" in name or name in ("lasso", "elastic net"):
        assert 0 < np.count_nonzero(coef) < 24


@pytest.mark.slow
def test_by_the_estimator(wide: Any) -> None:
    """The solver `admm` at epsilon = inf is this form, and says what it found."""
    X, y, _ = wide
    central = sv.PrivateLogisticRegression(INF, alpha=0.01, solver="newton").fit(X, y)
    model = sv.PrivateLogisticRegression(INF, alpha=0.01, solver="admm")
    model.fit(sv.Federation.by_columns(split(X, 8), y))
    np.testing.assert_allclose(model.coef_, central.coef_, atol=1e-6)
    with pytest.raises(InputError, match="labels='held'"):
        model.fit(sv.Federation.by_columns(split(X, 8), y, labels="held"))


@pytest.mark.parametrize("penalty", ["l2", "l1"])
def test_sparse_rows_are_the_dense_ones(penalty: str, wide: Any) -> None:
    X, y, _ = wide
    X = np.where(np.abs(X) > 0.15, X, 0.0)
    options = {"rounds": 60, "tolerance": 0.0}
    found = [
        run(split(rows, 3), y, options, penalty=penalty, alpha=0.002)[1]
        for rows in (X, sp.csr_matrix(X), sp.csc_matrix(X))
    ]
    for other in found[1:]:
        np.testing.assert_allclose(other.weights, found[0].weights, atol=1e-9)


def published(
    parts: list[np.ndarray], y: np.ndarray, alpha: float, epochs: int, relaxation: float = 1.0, proximal: float = 0.0
) -> tuple[np.ndarray, float]:
    """The method as it is printed, with matrices and bisection; the weights and the Lyapunov function before the last.

    x_m <- argmin N alpha/2 |x|^2 + <y, D_m x> + rho/2 |sum_{k != m} D_k x_k + D_m x - z|^2, then z, then y; rho = 1.
    """
    records = len(y)
    xs = [np.zeros(part.shape[1]) for part in parts]
    z, dual, scores = np.zeros(records), np.zeros(records), np.zeros(records)
    lyapunov = 0.0
    for epoch in range(epochs):
        if epoch == epochs - 1:
            gradients = [part.T @ (dual + scores - z) for part in parts]
            # prox of N alpha/2 |.|^2 at x - gradient
            moves = [x - (x - gradient) / (1 + records * alpha) for x, gradient in zip(xs, gradients, strict=True)]
            slopes = -y / (1 + np.exp(y * z)) - dual + (z - scores)
            lyapunov = sum(float(m @ m) for m in moves) + float(slopes @ slopes) + float((scores - z) @ (scores - z))
        fresh = []
        for part, x in zip(parts, xs, strict=True):
            others = scores - part @ x
            left = records * alpha * np.eye(part.shape[1]) + (1 + proximal) * part.T @ part
            right = part.T @ ((z - others) - dual + proximal * part @ x)
            fresh.append(np.linalg.solve(left, right))
        xs = fresh
        scores = sum(part @ x for part, x in zip(parts, xs, strict=True))
        mixed = relaxation * scores + (1 - relaxation) * z
        low, high = mixed + dual - 1, mixed + dual + 1
        for _ in range(100):
            middle = (low + high) / 2
            up = -y / (1 + np.exp(y * middle)) - dual + (middle - mixed) > 0
            low, high = np.where(up, low, middle), np.where(up, middle, high)
        z = (low + high) / 2
        dual = dual + mixed - z
    return np.concatenate(xs), lyapunov


@pytest.mark.parametrize("relaxation", [1.0, 1.6])
@pytest.mark.parametrize("proximal", [0.0, 2.0])
def test_the_published_update(relaxation: float, proximal: float, wide: Any) -> None:
    """Against its text. The first epoch, in which x stays 0, is not run."""
    X, y, _ = wide
    parts = split(X, 3)
    options = PUBLISHED | {"rounds": 11, "relaxation": relaxation, "proximal": proximal}
    _, solution, coordinator = run(parts, y, options, penalty="l2", alpha=0.01, fit_intercept=False)
    expected, lyapunov = published(parts, y, 0.01, 12, relaxation, proximal)
    np.testing.assert_allclose(solution.weights, expected, atol=1e-9)
    assert solution.certificates["lyapunov"] == pytest.approx(lyapunov, rel=1e-9)
    assert coordinator.asked["scores"] == 11
    other, _ = published(parts, y, 0.01, 12, relaxation, proximal + 0.5)
    assert np.abs(other - expected).max() > 1e-3


def excess(parts: list[Any], y: np.ndarray, weights: np.ndarray, best: np.ndarray, alpha: float) -> float:
    X = np.hstack([*parts, np.ones((len(y), 1))])

    def objective(w: np.ndarray) -> float:
        return float(np.logaddexp(0, -y * (X @ w)).mean() + alpha / 2 * w[:-1] @ w[:-1])

    return objective(weights) - objective(best)


@pytest.mark.slow
def test_eight_similar_parties() -> None:
    """Blocks that nearly coincide: the rule arrives, the published update crawls, stalls or diverges."""
    rng = np.random.default_rng(4)
    base = rng.standard_normal((300, 3))
    parts = [base + 0.1 * rng.standard_normal(base.shape) for _ in range(8)]
    y = np.where(base @ np.array([1.0, -1.0, 0.5]) + 0.5 * rng.standard_normal(300) > 0, 1, -1)
    alpha = 1e-4
    central = sv.PrivateLogisticRegression(INF, alpha=alpha, solver="newton").fit(np.hstack(parts), y)
    best = np.append(central.coef_.ravel(), central.intercept_)
    fields: dict[str, Any] = {"penalty": "l2", "alpha": alpha}
    _, solution, _ = run(parts, y, {"rounds": 1000}, **fields)
    assert excess(parts, y, solution.weights, best, alpha) < 1e-6
    _, solution, _ = run(parts, y, PUBLISHED | {"rounds": 1000}, **fields)
    assert excess(parts, y, solution.weights, best, alpha) > 1e-3
    _, solution, coordinator = run(parts, y, PUBLISHED | {"rho": 0.1, "rounds": 3000, "tolerance": 1e-8}, **fields)
    assert excess(parts, y, solution.weights, best, alpha) > 0.1
    assert solution.certificates["primal_residual"] > 0.1
    assert coordinator.asked["scores"] < 3000  # the Lyapunov function does not fall
    with pytest.raises(InputError, match=r"proximal=0.*the scores diverge.*take 7"):
        run(parts, y, PUBLISHED | {"rounds": 500, "relaxation": 1.6}, **fields)


def test_it_ends_when_the_residuals_are_small(wide: Any) -> None:
    X, y, _ = wide
    asked = {}
    for tolerance in (1e-3, 1e-6, 0.0):
        options = {"rounds": 400, "tolerance": tolerance}
        _, solution, coordinator = run(split(X, 2), y, options, penalty="l2", alpha=0.01)
        asked[tolerance] = coordinator.asked["scores"]
        assert coordinator.asked["dual"] == asked[tolerance]
        if tolerance:
            found = solution.certificates
            assert max(found["primal_residual"], found["dual_residual"]) <= tolerance
            assert asked[tolerance] % CHECK == 0
            assert coordinator.asked["residuals"] == asked[tolerance] // CHECK
    assert asked[1e-3] < asked[1e-6] < asked[0.0] == 400


@pytest.mark.slow
def test_sets_bound_each_party(wide: Any) -> None:
    """Against projected gradients on the product of the balls."""
    X, y, _ = wide
    parts = split(X, 2)
    _, solution, _ = run(parts, y, penalty="l2_ball", radius=1.5, fit_intercept=False)
    w = np.zeros(24)
    for _ in range(6000):
        w = w + 4 / np.linalg.norm(X, 2) ** 2 * X.T @ (y / (1 + np.exp(y * (X @ w))))
        w = np.concatenate([L2Ball(1.5).project(w[:12]), L2Ball(1.5).project(w[12:])])
    assert np.linalg.norm(w[:12]) == pytest.approx(1.5)
    np.testing.assert_allclose(solution.weights, w, atol=1e-6)
    for penalty, parameters in (("box", {"low": 0.0, "high": 0.5}), ("l1_ball", {"radius": 1.0})):
        _, solution, _ = run(parts, y, {"rounds": 300}, penalty=penalty, **parameters)
        for part in (solution.weights[:12], solution.weights[12:24]):
            assert (part.min() >= 0.0 and part.max() <= 0.5 + 1e-12) or np.abs(part).sum() <= 1.0 + 1e-9
        assert abs(solution.weights[24]) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("parties", [2])
def test_losses_without_a_central_form_here(parties: int, wide: Any) -> None:
    X, classes, numbers = wide
    parts = split(X, parties)
    # Huber and sigmoid: the gradient of the objective is 0
    for loss, y, alpha in (("huber", numbers, 0.01), ("sigmoid", classes, 0.001)):
        plan, solution, _ = run(parts, y, {"rounds": 5000}, loss=loss, penalty="l2", alpha=alpha)
        rows = np.hstack([X, np.ones((len(y), 1))])
        slopes = plan.scaled_loss.derivative(rows @ solution.weights, y.astype(float))
        gradient = rows.T @ slopes / len(y) + alpha * np.append(solution.weights[:-1], 0.0)
        assert np.abs(gradient).max() < 1e-7
        assert np.abs(solution.weights).max() > 0.1
    # hinge: no smaller value beside it, by coordinates and at random
    _, solution, _ = run(parts, classes, {"rounds": 5000}, loss="hinge", penalty="l2", alpha=0.01)
    rng = np.random.default_rng(0)

    def value(w: np.ndarray) -> float:
        return float(np.maximum(0, 1 - classes * (X @ w[:-1] + w[-1])).mean() + 0.005 * w[:-1] @ w[:-1])

    here = value(solution.weights)
    directions = [*np.eye(25), *(d / np.linalg.norm(d) for d in rng.standard_normal((200, 25)))]
    for step in (-1e-2, 1e-2, -1e-3, 1e-3):
        assert all(value(solution.weights + step * d) >= here - 1e-8 for d in directions)


@pytest.mark.slow
def test_many_columns_by_products(monkeypatch: pytest.MonkeyPatch, wide: Any) -> None:
    """Without Gram matrices it arrives at the same models."""
    X, y, _ = wide
    for penalty in ("l2", "l1"):
        fields: dict[str, Any] = {"penalty": penalty, "alpha": 0.005}
        expected = run(split(X, 2), y, **fields)[1].weights
        monkeypatch.setattr("sottovoce.algorithms.sharing.admm_exact.GRAM", 3)
        found = run([sp.csr_matrix(part) for part in split(X, 2)], y, **fields)[1].weights
        monkeypatch.undo()
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_labels_that_are_held_are_refused() -> None:
    """And rightly: from the dual that parties are told they are read off."""
    with pytest.raises(InputError, match=r"labels='held'.*finite epsilon, or labels='shared'"):
        plan_of(problem_for((2, 2), 10, labels="held"), "admm")
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((200, 4)), rng.choice([-1, 1], 200)
    plan = plan_of(problem_for((2, 2), 200), "admm", rounds=5, tolerance=0.0)
    coordinator = sv.Federation.by_columns(split(X, 2), y, record=True).coordinator(without_privacy=True)
    coordinator.run(plan, FORM)
    assert coordinator.transcript is not None
    duals = [message.payload for message in coordinator.transcript if message.name == "dual"]
    assert (np.sign(duals[0]) == -y).all()


@pytest.mark.parametrize(
    ("options", "fields", "match"),
    [
        ({"rho": 0.05}, {"loss": "sigmoid"}, r"rho=0\.05 must be above 0\.09623"),
        ({"rho": 0.0}, {}, "rho=0"),
        ({"proximal": -1}, {}, "proximal=-1"),
        ({"relaxation": 2.0}, {}, "relaxation=2"),
        ({"tolerance": -1e-3}, {}, "tolerance=-0.001"),
        ({"rounds": 0}, {}, "rounds=0"),
        ({}, {"penalty": "product"}, "penalty='product'"),
    ],
)
def test_what_design_refuses(options: dict[str, float], fields: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        plan_of(problem_for((2, 2), 10, **fields), "admm", **options)


def test_kept_weights_are_sent_to_nobody(wide: Any) -> None:
    X, y, _ = wide
    options: dict[str, Any] = {"rounds": 40, "tolerance": 0.0}
    _, expected, _ = run(split(X, 2), y, options, penalty="l2", alpha=0.01)
    problem = problem_for((12, 12), len(y), penalty="l2", alpha=0.01)
    plan = plan_of(problem, "admm", **options, models="kept")
    assert (plan.models, plan.has("weights")) == ("kept", False)
    federation = sv.Federation.by_columns(split(X, 2), y)
    coordinator = federation.coordinator(without_privacy=True)
    solution, _ = coordinator.run(plan, FORM)
    assert solution.weights.size == 0
    assert solution.certificates == expected.certificates
    assert coordinator.asked["weights"] == 0
    scores = coordinator.predict(plan, plan.digest, "coordinator")
    assert scores is not None
    np.testing.assert_allclose(scores, X @ expected.weights[:-1] + expected.weights[-1], atol=1e-6)


def test_what_a_party_refuses(wide: Any) -> None:
    X, y, _ = wide
    plan, policy = plan_of(problem_for((12, 12), len(y)), "admm", rounds=3), sv.Policy(allow_without_privacy=True)
    first, second = (sv.Party(f"party-{m + 1}", part, y, policy=policy) for m, part in enumerate(split(X, 2)))

    def say(party: sv.Party, query: str, number: int = 0, **told: np.ndarray) -> Frame:
        return decode(handle(party, encode(Frame("ask", 1, plan.digest, number, query, told))).data)

    def propose(party: sv.Party, digest: bytes, text: str) -> str:
        return decode(handle(party, encode(Frame("plan", 1, digest, text=text))).data).kind

    good = np.zeros(len(y))
    for party in (first, second):
        numbers = plan.numbers.fields()
        for name, value in (
            ("rho", 0.0),
            ("rho", math.nan),
            ("proximal", -1.0),
            ("relaxation", 2.0),
            ("surprise", 1.0),
        ):
            assert propose(party, *forged(plan, numbers=numbers | {name: value})) == "refuse"
        assert propose(party, plan.digest, plan.to_json()) == "accept"
        for query, name in (("dual", "scores"), ("scores", "dual")) if party is first else (("scores", "dual"),):
            assert say(party, query, **{name: good}).kind == "answer"
    assert say(second, "dual", scores=good).kind == "refuse"  # it comes from who has the labels
    assert say(second, "scores", 2, dual=good).kind == "answer"
    assert say(second, "scores", 3, dual=good).kind == "refuse"
    assert say(second, "weights").kind == "answer"
    federation = sv.Federation.by_columns(split(X, 2), y)
    with pytest.raises(RefusedError, match="without noise"):
        federation.coordinator().run(plan, FORM)


def test_the_rule() -> None:
    assert defaults(losses.get("logistic"), 8) == (pytest.approx(0.05 / 8), 7.0, 1.6)
    assert defaults(losses.get("squared"), 1) == (0.5, 0.0, 1.6)
    assert defaults(losses.get("hinge"), 2) == (pytest.approx(0.1), 1.0, 1.6)
    rho, proximal, relaxation = defaults(losses.get("sigmoid"), 3)
    assert rho > 2 * losses.get("sigmoid").curvature_bound
    assert (proximal, relaxation) == (2.0, 1.0)
