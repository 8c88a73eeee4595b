"""Frank-Wolfe without privacy reaches the optimum on the l1 ball, however the columns are split, and certifies it.

Also over gRPC with mutual TLS, with and without privacy.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import Lasso

import sottovoce as sv
from sottovoce.errors import BudgetError, InputError, RefusedError
from sottovoce.federation.federation import Federation
from sottovoce.solvers import by_name
from sottovoce.transports.base import InProcess

CLOSE = 1e-6  # of the optimum
OPTIONS: dict[str, Any] = {"solver": "frank-wolfe", "epsilon": math.inf}


def people(count: int = 160, features: int = 20, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Correlated columns, a third of the entries, and labels that some of them tell."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((count, features)) * (rng.random((count, features)) < 0.35)
    X[:, 1] += 0.7 * X[:, 0]
    weights = np.zeros(features)
    weights[[0, 3, 7, 12]] = [1.5, -2.0, 1.0, 0.5]
    return X, X @ weights + 0.5 * rng.standard_normal(count) + 0.6


def split(X: Any, parties: int) -> list[Any]:
    """Parts of different widths."""
    edges = np.linspace(0, 1, parties + 1) ** 1.3 * X.shape[1]
    edges = np.maximum(np.round(edges).astype(int), np.arange(parties + 1))
    return [X[:, a:b] for a, b in itertools.pairwise(edges)]


def with_constant(X: np.ndarray, unit: float) -> np.ndarray:
    """The intercept is one more column inside the ball, of the size of the largest entry."""
    return np.column_stack([X, np.full(len(X), unit)])


def lasso(X: np.ndarray, y: np.ndarray, alpha: float) -> tuple[float, float]:
    """(radius, optimum) of scikit-learn's solution."""
    coef = Lasso(alpha=alpha, fit_intercept=False, tol=1e-13, max_iter=100_000).fit(X, y).coef_
    return float(np.abs(coef).sum()), squared(X, y, coef)


def squared(X: np.ndarray, y: np.ndarray, coef: np.ndarray) -> float:
    return float(np.mean((X @ coef - y) ** 2) / 2)


def logistic(X: np.ndarray, y: np.ndarray, coef: np.ndarray) -> float:
    return float(np.mean(np.logaddexp(0.0, -y * (X @ coef))))


def on_the_ball(values: np.ndarray, radius: float) -> np.ndarray:
    """The nearest point of the l1 ball."""
    if np.abs(values).sum() <= radius:
        return values
    sizes = np.sort(np.abs(values))[::-1]
    excess = (np.cumsum(sizes) - radius) / np.arange(1, len(sizes) + 1)
    threshold = excess[np.nonzero(sizes > excess)[0][-1]]
    return np.asarray(np.sign(values) * np.maximum(np.abs(values) - threshold, 0.0))


def projected_gradient(X: np.ndarray, y: np.ndarray, radius: float) -> float:
    """The logistic optimum on the ball, by accelerated projected gradient steps that restart; checked by its gap."""
    step = 4 * len(y) / np.linalg.norm(X, 2) ** 2

    def gradient(w: np.ndarray) -> np.ndarray:
        return np.asarray(X.T @ (-y / (1 + np.exp(y * (X @ w)))) / len(y))

    w = ahead = np.zeros(X.shape[1])
    momentum = 1.0
    for _ in range(20_000):
        moved = on_the_ball(ahead - step * gradient(ahead), radius)
        if (ahead - moved) @ (moved - w) > 0:
            momentum, ahead = 1.0, w
            continue
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead = moved + (momentum - 1) / following * (moved - w)
        w, momentum = moved, following
    slopes = gradient(w)
    assert slopes @ w + radius * np.abs(slopes).max() < 1e-9
    return logistic(X, y, w)


@functools.cache
def logistic_optimum(radius: float, fit_intercept: bool) -> float:
    X, y = people()
    return projected_gradient(with_constant(X, 1.0) if fit_intercept else X, np.where(y > 0.3, 1, -1), radius)


def assert_optimal(model: Any, optimum: float, reached: float, radius: float) -> None:
    """Within 1e-6 of the optimum, inside the ball, and the certificate covers what is missing."""
    assert -1e-9 * optimum <= reached - optimum <= CLOSE * optimum
    assert reached - optimum <= model.certificates_["duality_gap"] + 1e-12
    assert model.certificates_["duality_gap"] < 1e-3 * optimum
    size = np.abs(model.coef_).sum() + abs(float(np.ravel(model.intercept_)[0]))
    assert size <= radius * (1 + 1e-9)


def columns_of(parts: Sequence[Any], y: np.ndarray, labels: Any) -> Federation:
    return Federation.by_columns(parts, y, labels=labels, label_party=len(parts) - 1)


@pytest.mark.slow
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
@pytest.mark.parametrize("labels", ["public", "shared", "held"])
@pytest.mark.parametrize("parties", [2, 8])
def test_the_lasso_is_solved(parties: int, labels: str, make: Callable[..., Any], fit_intercept: bool) -> None:
    X, y = people()
    whole = with_constant(X, 1.0) if fit_intercept else X
    for alpha in (0.2, 0.03):
        radius, optimum = lasso(whole, y, alpha)
        federation = columns_of(split(make(X), parties), y, labels)
        model = sv.PrivateLasso(radius=radius, fit_intercept=fit_intercept, **OPTIONS).fit(federation)
        reached = squared(with_constant(X, 1.0), y, np.append(model.coef_, model.intercept_))
        assert_optimal(model, optimum, reached, radius)
        assert ("slopes" in model.communication_.uplink) == (labels == "held")


@pytest.mark.slow
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
@pytest.mark.parametrize("labels", ["public", "shared", "held"])
@pytest.mark.parametrize("parties", [2, 8])
def test_logistic_regression_is_solved(
    parties: int, labels: str, make: Callable[..., Any], fit_intercept: bool
) -> None:
    X, y = people()
    y = np.where(y > 0.3, 1, -1)
    optimum = logistic_optimum(4.0, fit_intercept)
    federation = columns_of(split(make(X), parties), y, labels)
    model = sv.PrivateLogisticRegression(radius=4.0, classes=(-1, 1), fit_intercept=fit_intercept, **OPTIONS)
    model.fit(federation)
    reached = logistic(with_constant(X, 1.0), y, np.append(model.coef_, model.intercept_))
    assert_optimal(model, optimum, reached, 4.0)


def test_one_place_and_any_split_give_one_solution() -> None:
    X, y = people()
    federations = [Federation.central(X, y), *(columns_of(split(X, parties), y, "shared") for parties in (1, 3, 20))]
    models = [sv.PrivateLasso(radius=3.0, **OPTIONS).fit(federation) for federation in federations]
    for other in models[1:]:
        np.testing.assert_allclose(other.coef_, models[0].coef_, rtol=0, atol=1e-4)
        assert other.intercept_ == pytest.approx(models[0].intercept_, abs=1e-4)


def test_declared_bounds_do_not_change_the_solution() -> None:
    """Without privacy they cut and do nothing else; the intercept's column is 1."""
    X, y = people()
    radius, optimum = lasso(with_constant(X, 1.0), y, 0.1)
    bounds = {"entry_bound": [8.0] + [7.0] * 19, "label_bound": 50.0}
    model = sv.PrivateLasso(radius=radius, **bounds, **OPTIONS).fit(columns_of(split(X, 3), y, "held"))
    reached = squared(with_constant(X, 1.0), y, np.append(model.coef_, model.intercept_))
    assert -1e-9 * optimum <= reached - optimum <= CLOSE * optimum
    assert reached - optimum <= model.certificates_["duality_gap"] < 1e-3 * optimum
    assert np.abs(model.coef_).sum() + abs(model.intercept_) <= radius * (1 + 1e-9)


@pytest.mark.filterwarnings("ignore:.*has not converged")
def test_the_certificate_covers_what_a_short_run_misses() -> None:
    X, y = people()
    radius, optimum = lasso(X, y, 0.05)
    for rounds in (1, 2, 3, 5, 8, 13):
        short = OPTIONS | {"solver": by_name("frank-wolfe", rounds=rounds)}
        model = sv.PrivateLasso(radius=radius, fit_intercept=False, **short)
        model.fit(columns_of(split(X, 4), y, "shared"))
        missing = squared(X, y, model.coef_) - optimum
        assert -1e-12 < missing <= model.certificates_["duality_gap"]
    assert missing < 0.05 * optimum


@pytest.mark.filterwarnings("ignore:.*has not converged")
@pytest.mark.parametrize("labels", ["shared", "held"])
def test_the_published_steps_keep_their_bound(labels: str) -> None:
    """F(w_T) - F* <= 2 C / (T + 2), C = 4 radius^2 max_j mean_i x_ij^2; the iterates are those of Frank-Wolfe."""
    X, y = people()
    radius, optimum = lasso(X, y, 0.05)
    curvature = 4 * radius**2 * float((X**2).mean(axis=0).max())
    w, best = np.zeros(20), optimum
    for t in range(40):
        g = X.T @ (X @ w - y) / len(y)
        j, step = int(np.argmax(np.abs(g))), 2 / (t + 2)
        w *= 1 - step
        w[j] -= step * radius * np.sign(g[j])
        if t + 1 in (1, 2, 5, 40):
            short = OPTIONS | {"solver": by_name("frank-wolfe", rounds=t + 1, step="printed")}
            model = sv.PrivateLasso(radius=radius, fit_intercept=False, **short)
            model.fit(columns_of(split(X, 4), y, labels))
            np.testing.assert_allclose(model.coef_, w, rtol=0, atol=1e-12 * radius)
            missing = squared(X, y, model.coef_) - best
            assert 0 < missing <= 2 * curvature / (t + 3)
            assert missing <= model.certificates_["duality_gap"]
    pairwise = OPTIONS | {"solver": by_name("frank-wolfe", rounds=40, step="pairwise")}
    other = sv.PrivateLasso(radius=radius, fit_intercept=False, **pairwise).fit(columns_of(split(X, 4), y, labels))
    assert squared(X, y, other.coef_) - best < missing
    model = sv.PrivateLasso(
        1.0, delta=1e-6, entry_bound=9.0, label_bound=9.0, radius=1.0, solver=by_name("frank-wolfe", step="printed")
    )
    with pytest.raises(InputError, match="step='printed' means nothing to solver='frank-wolfe' here"):
        model.fit(X, y)


@pytest.mark.filterwarnings("ignore:.*has not converged")
def test_the_certificate_is_of_the_point_after_a_published_step_that_goes_up() -> None:
    X, y = people()
    short = OPTIONS | {"solver": by_name("frank-wolfe", rounds=1, step="printed")}
    model = sv.PrivateLasso(radius=30.0, fit_intercept=False, **short).fit(columns_of(split(X, 4), y, "shared"))
    g = X.T @ y / len(y)
    optimum = squared(X, y, sv.PrivateLasso(radius=30.0, fit_intercept=False, **OPTIONS).fit(X, y).coef_)
    missing = squared(X, y, model.coef_) - optimum
    before = 30.0 * np.abs(g).max()  # the gap at w = 0
    assert before < missing <= model.certificates_["duality_gap"]


def test_each_feature_is_sent_once() -> None:
    X, y = people()
    federation = columns_of(split(X, 2), y, "shared")
    federation.record = True
    model = sv.PrivateLasso(radius=4.0, **OPTIONS).fit(federation)
    sent = [message.payload for message in model.transcript_ if message.name == "column"]
    assert len({column.tobytes() for column in sent}) == len(sent) < X.shape[1] + 1
    assert model.communication_.rounds == model.n_iter_ + len(sent)
    assert all(any(np.allclose(column, known, rtol=1e-12) for known in with_constant(X, 1.0).T) for column in sent)


def test_a_ball_that_holds_everything_gives_least_squares() -> None:
    X, y = people(200, 14)
    best = np.linalg.lstsq(with_constant(X, 1.0), y, rcond=None)[0]
    model = sv.PrivateLasso(radius=3 * np.abs(best).sum(), **OPTIONS).fit(columns_of(split(X, 2), y, "held"))
    optimum = squared(with_constant(X, 1.0), y, best)
    reached = squared(with_constant(X, 1.0), y, np.append(model.coef_, model.intercept_))
    assert reached - optimum <= model.certificates_["duality_gap"] + 1e-12
    assert reached - optimum <= 1e-4 * optimum


@pytest.mark.parametrize("labels", ["shared", "held"])
def test_a_policy_that_forbids_runs_without_privacy_refuses(labels: Any) -> None:
    X, y = people()
    inside = columns_of(split(X, 2), y, labels)
    remote = Federation.connect(InProcess(inside._parties), split="columns", labels=labels, label_party=1)
    with pytest.raises(RefusedError, match="releases values without noise"):
        sv.PrivateLasso(radius=1.0, **OPTIONS).fit(remote)


@pytest.mark.slow
@pytest.mark.parametrize(("parties", "labels"), [(2, "shared"), (8, "held")])
def test_over_grpc(parties: int, labels: Any, sites_of: Callable[..., Any]) -> None:
    """Every party a process of its own, both ends with certificates; the numbers are those of one process."""
    X, y = people()
    names = [f"holder-{number}" for number in range(parties)]
    sites, parts = sites_of(names), split(X, parties)
    for place, (name, part) in enumerate(zip(names, parts, strict=True)):
        known = {"y": y} if labels != "held" or place == 1 else {}
        sites.save(name, X=part, **known)
        sites.start(name, ledger=False)
    sites.wire.wait_for_parties(60)
    radius, optimum = lasso(with_constant(X, 1.0), y, 0.1)
    model = sv.PrivateLasso(radius=radius, **OPTIONS)
    model.fit(Federation.connect(sites.wire, split="columns", labels=labels, label_party=1))
    reached = squared(with_constant(X, 1.0), y, np.append(model.coef_, model.intercept_))
    assert_optimal(model, optimum, reached, radius)
    local = sv.PrivateLasso(radius=radius, **OPTIONS)
    local.fit(Federation.by_columns(parts, y, labels=labels, label_party=1, names=names))
    np.testing.assert_array_equal(model.coef_, local.coef_)
    assert model.communication_.uplink == local.communication_.uplink
    assert model.communication_.rounds == local.communication_.rounds


@pytest.mark.slow
def test_over_grpc_with_ledgers(sites_of: Callable[..., Any]) -> None:
    """Each party pays for both; a run that one of them does not allow is paid by nobody."""
    X, y = people()
    names = ("clinic", "lab")
    sites = sites_of(names)
    sites.save("clinic", X=X[:, :12], y=y)
    sites.save("lab", X=X[:, 12:])
    budgets = {"clinic": 3.0, "lab": 1.5}
    accounts = [
        sv.Ledger.create(sites.folder / f"{name}.db").open(name, epsilon=budgets[name], delta=1e-5) for name in names
    ]
    for name in names:
        sites.start(name, ledger=True)
    sites.wire.wait_for_parties(60)
    federation = Federation.connect(sites.wire, split="columns", labels="held", label_party=0)
    solver = by_name("frank-wolfe", rounds=9)
    private: dict[str, Any] = {"radius": 3.0, "solver": solver, "entry_bound": 2.0, "label_bound": 8.0}
    with pytest.raises(RefusedError, match="without noise"):
        sv.PrivateLasso(radius=3.0, **OPTIONS).fit(federation)
    with pytest.raises(BudgetError, match="lab"):
        sv.PrivateLasso(epsilon=1.9, **private).fit(federation)
    assert [account.balance().plans for account in accounts] == [0, 0]
    model = sv.PrivateLasso(epsilon=1.0, **private).fit(federation)
    assert np.isfinite(model.coef_).all()
    assert [account.balance().spent for account in accounts] == pytest.approx([1.0, 1.0], rel=2e-3)
    releases = sum(entry.kind == "release" for account in accounts for entry in account.history())
    assert releases == model.communication_.rounds
