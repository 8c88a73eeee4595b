"""Without privacy bounds cut and do nothing else, and a run that has not converged says so."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, Ridge

import sottovoce as sv
from sottovoce.solvers import by_name

N, ALPHA = 200, 0.1
BOUNDS: list[dict[str, Any]] = [
    {},
    *({"row_norm": bound} for bound in (30.0, 1e6, 1e12)),
    *({"entry_bound": bound} for bound in (30.0, 1e9)),
    {"entry_bound": [30.0, 1e3, 1e6, 1e9, 1e12]},
]
LABELS: list[Any] = [None, 40.0, 1e3, 1e6, 1e12, (-50.0, 1e7)]

REFERENCES: dict[str, Any] = {
    "ridge": Ridge(alpha=ALPHA * N, tol=1e-14),
    "lasso": Lasso(alpha=ALPHA, tol=1e-14, max_iter=10**5),
    "elastic net": ElasticNet(alpha=ALPHA, l1_ratio=0.3, tol=1e-14, max_iter=10**5),
    "logistic": LogisticRegression(C=1 / (ALPHA * N), tol=1e-12, max_iter=10**4, solver="newton-cg"),
}
ESTIMATORS: dict[str, Any] = {
    "ridge": sv.PrivateRidge(math.inf, alpha=ALPHA),
    "lasso": sv.PrivateLasso(math.inf, alpha=ALPHA),
    "elastic net": sv.PrivateElasticNet(math.inf, alpha=ALPHA, l1_ratio=0.3),
    "logistic": sv.PrivateLogisticRegression(math.inf, alpha=ALPHA, classes=(0, 1)),
}
# Solvers that minimise the stated objective, for which split.
EXACT = {"central": ("newton", "gradient", "cd"), "rows": ("newton", "gradient"), "columns": ("admm",)}


def problem(name: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((N, 5)) * [1.0, 3.0, 0.2, 1.0, 1.0]
    y = X @ [1.0, -2.0, 0.0, 0.5, 0.0] + 3.0 + rng.standard_normal(N)
    return X, (y > 3.0).astype(int) if name == "logistic" else y


def federation(X: np.ndarray, y: np.ndarray, split: str) -> sv.Federation:
    if split == "central":
        return sv.Federation.central(X, y)
    if split == "rows":
        return sv.Federation.by_rows([(X[:90], y[:90]), (X[90:], y[90:])])
    return sv.Federation.by_columns([X[:, :2], X[:, 2:]], y)


def fitted(name: str, split: str, solver: str, **bounds: Any) -> np.ndarray:
    X, y = problem(name)
    model = clone(ESTIMATORS[name]).set_params(solver=solver, **bounds)
    model.fit(federation(X, y, split))
    return np.append(model.coef_, model.intercept_)


@pytest.mark.slow
@pytest.mark.parametrize(("split", "solver"), [(split, solver) for split, names in EXACT.items() for solver in names])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_no_bound_changes_the_answer(name: str, split: str, solver: str) -> None:
    best = REFERENCES[name].fit(*problem(name))
    expected = np.append(best.coef_, best.intercept_)
    labels = [None] if name == "logistic" else LABELS
    for k, bounds in enumerate(BOUNDS):
        label = {} if name == "logistic" else {"label_bound": labels[k % len(labels)]}
        found = fitted(name, split, solver, **bounds, **label)
        np.testing.assert_allclose(found, expected, rtol=0, atol=3e-7, err_msg=f"{bounds} {label}")


@pytest.mark.parametrize("solver", ["scd", "scd-sequential"])
@pytest.mark.parametrize("name", ["ridge", "logistic"])
def test_dual_solvers_penalise_the_intercept_alike_whatever_the_bounds(name: str, solver: str) -> None:
    labels = [None] if name == "logistic" else LABELS
    found = [
        fitted(name, "central", solver, **bounds, **({} if name == "logistic" else {"label_bound": labels[k % 6]}))
        for k, bounds in enumerate(BOUNDS)
    ]
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("split", "solver"), [("central", "sgd"), ("columns", "fdml")])
def test_solvers_on_batches_end_as_near_with_huge_bounds_as_without(split: str, solver: str) -> None:
    best = REFERENCES["ridge"].fit(*problem("ridge"))
    for bounds in ({}, {"row_norm": 1e9, "label_bound": 1e9}):
        found = fitted("ridge", split, solver, insecure_seed=2, **bounds)
        np.testing.assert_allclose(found, np.append(best.coef_, best.intercept_), rtol=0, atol=0.25)


def test_a_bound_that_cuts_does_change_the_answer() -> None:
    free = fitted("lasso", "central", "newton")
    assert np.abs(fitted("lasso", "central", "newton", row_norm=1.0) - free).max() > 0.1
    assert np.abs(fitted("lasso", "central", "newton", label_bound=1.0) - free).max() > 0.1


def test_columns_of_unlike_sizes_are_no_trouble() -> None:
    X, y = problem("lasso")
    sizes = np.array([1e-6, 1e6, 1.0, 1e3, 1e-3])
    best = Ridge(alpha=0.0, solver="svd").fit(X, y)
    for solver in ("newton", "cd", "scd-primal"):
        found = sv.PrivateRidge(math.inf, solver=solver).fit(X * sizes, y)
        np.testing.assert_allclose(found.coef_ * sizes, best.coef_, rtol=1e-6, atol=1e-8)


SHORT = {
    "newton": {"rounds": 1},
    "gradient": {"rounds": 5},
    "cd": {"rounds": 1},
    "greedy-cd": {"rounds": 2},
    "scd": {"rounds": 1},
    "scd-primal": {"rounds": 6},
    "scd-sequential": {"rounds": 1},
    "sgd": {"rounds": 20, "step": 0.001},
}


@pytest.mark.parametrize("solver", SHORT)
def test_a_run_that_has_not_converged_says_how_far_it_is(solver: str) -> None:
    X, y = problem("logistic")
    model = sv.PrivateLogisticRegression(math.inf, alpha=1e-3, solver=by_name(solver, **SHORT[solver]))
    with pytest.warns(
        ConvergenceWarning, match=rf"{solver}' has not converged: after \d+ rounds .* is [0-9.e+-]+, and"
    ):
        model.fit(X, y)


@pytest.mark.parametrize(("solver", "options"), [("admm", {"rounds": 3}), ("fdml", {"rounds": 9})])
def test_so_does_one_over_columns(solver: str, options: dict[str, Any]) -> None:
    X, y = problem("ridge")
    with pytest.warns(ConvergenceWarning, match=rf"{solver}' has not converged: after \d+ rounds"):
        sv.PrivateRidge(math.inf, alpha=1e-3, solver=by_name(solver, **options)).fit(federation(X, y, "columns"))


def test_a_minimum_at_infinity_is_not_reached() -> None:
    X, _ = problem("logistic")
    with pytest.warns(ConvergenceWarning, match="newton' has not converged"):
        sv.PrivateLogisticRegression(math.inf).fit(X, (X[:, 0] > 0).astype(int))


def test_private_runs_do_not_speak_of_convergence() -> None:
    X, y = problem("logistic")
    sv.PrivateLogisticRegression(1.0, 1e-4, row_norm=10.0, solver=by_name("gradient", rounds=2)).fit(X, y)
