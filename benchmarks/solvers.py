"""Every solver's defaults on the same problems, and what `solver="auto"` would have chosen.

`python benchmarks/solvers.py`. Test error (mean squared error, or log-loss, or the share of wrong labels for the hinge)
as a mean over runs with fresh noise, delta = 1e-5, zero-out. The last column is the regret of "auto": its error over
that of the best solver. Data sets as in `accuracy.py`.
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse
import json
import math
import warnings
from collections.abc import Callable
from typing import Any

import accuracy
import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import log_loss

import sottovoce as sv
from sottovoce.errors import InputError

Array = NDArray[Any]
SOLVERS = ("whitened", "newton", "gradient", "sgd", "scd", "cd", "greedy-cd", "frank-wolfe")


def sparse_truth(records: int, features: int, *, classify: bool) -> Callable[[], accuracy.Job]:
    """Entries +-1, ten features matter; the first 80% train."""

    def make() -> accuracy.Job:
        r = np.random.default_rng(0)
        X = r.choice([-1.0, 1.0], size=(records, features))
        z = X[:, :10] @ np.where(np.arange(10) % 2, 1.0, -1.0)
        cut = records * 4 // 5
        if classify:
            y = np.where(r.random(records) < 1 / (1 + np.exp(-z)), 1, -1)
            return X[:cut], y[:cut], X[cut:], y[cut:], {"entry_bound": 1.0, "classes": (-1, 1)}
        y = np.clip(z + r.standard_normal(records), -12, 12)
        return X[:cut], y[:cut], X[cut:], y[cut:], {"entry_bound": 1.0, "label_bound": 12.0}

    return make


def uneven(records: int, features: int) -> Callable[[], accuracy.Job]:
    """Columns whose declared bounds go from 1 to 50, all of them of the same use; the first 80% train."""

    def make() -> accuracy.Job:
        r = np.random.default_rng(0)
        bounds = np.geomspace(1.0, 50.0, features)
        X = bounds * r.uniform(-1.0, 1.0, size=(records, features))
        z = 1.5 * (X / bounds) @ np.where(np.arange(features) % 2, 1.0, -1.0)
        y = np.where(r.random(records) < 1 / (1 + np.exp(-z)), 1, -1)
        cut = records * 4 // 5
        return X[:cut], y[:cut], X[cut:], y[cut:], {"entry_bound": tuple(bounds), "classes": (-1, 1)}

    return make


def penalised(name: str, **parameters: Any) -> tuple[Callable[[], accuracy.Job], Any, dict[str, Any]]:
    """A job of `accuracy.py` with other parameters."""
    make, estimator = accuracy.JOBS[name]
    return make, parameters.pop("estimator", estimator), parameters


SVC = sv.PrivateLinearSVC
PROBLEMS: dict[str, tuple[Callable[[], accuracy.Job], Any, dict[str, Any]]] = {
    "a9a, logistic, l2 1e-5": penalised("a9a", alpha=1e-5),
    "a9a, logistic, l2 1e-4": penalised("a9a", alpha=1e-4),
    "a9a, logistic, l1 1e-4": penalised("a9a", alpha=1e-4, l1_ratio=1),
    "a9a, smoothed hinge, l2 1e-4": penalised("a9a", alpha=1e-4, estimator=SVC),
    "phishing, logistic, l2 1e-3": penalised("phishing", alpha=1e-3),
    "phishing, hinge, l2 1e-3": penalised("phishing", alpha=1e-3, estimator=SVC, loss="hinge"),
    "phishing, smoothed hinge, l2 1e-4": penalised("phishing", alpha=1e-4, estimator=SVC),
    "electricity, logistic, l2 1e-4": penalised("electricity", alpha=1e-4),
    "california, ridge 1e-4": penalised("california_housing", alpha=1e-4),
    "california, ridge 1e-3": penalised("california_housing", alpha=1e-3),
    "california, lasso 1e-2": penalised("california_housing", alpha=1e-2, estimator=sv.PrivateLasso),
    "30,000 x 100, logistic, l2 1e-4": penalised("30,000 x 100", alpha=1e-4),
    "30,000 x 100, ridge 1e-5": penalised("30,000 x 100, linear", alpha=1e-5),
    "30,000 x 100, lasso 1e-4": penalised("30,000 x 100, linear", alpha=1e-4, estimator=sv.PrivateLasso),
    "16,000 x 20, logistic, uneven": (uneven(20000, 20), sv.PrivateLogisticRegression, {"alpha": 0.0}),
    "16,000 x 20, logistic, uneven, l1": (
        uneven(20000, 20),
        sv.PrivateLogisticRegression,
        {"alpha": 1e-3, "l1_ratio": 1},
    ),
    "8,000 x 1,000, l1 ball": (sparse_truth(10000, 1000, classify=False), sv.PrivateLasso, {"radius": 10.0}),
    "8,000 x 200, l1 ball": (sparse_truth(10000, 200, classify=False), sv.PrivateLasso, {"radius": 10.0}),
    "2,000 x 2,000, lasso 0.1": (sparse_truth(2500, 2000, classify=False), sv.PrivateLasso, {"alpha": 0.1}),
    "4,000 x 4,000, lasso 0.1": (sparse_truth(5000, 4000, classify=False), sv.PrivateLasso, {"alpha": 0.1}),
    "8,000 x 1,000, lasso 0.05": (sparse_truth(10000, 1000, classify=False), sv.PrivateLasso, {"alpha": 0.05}),
    "16,000 x 500, logistic, l1 0.01": (
        sparse_truth(20000, 500, classify=True),
        sv.PrivateLogisticRegression,
        {"alpha": 0.01, "l1_ratio": 1},
    ),
}


def error(model: Any, X: Any, y: Array) -> float:
    """Mean squared error, log-loss, or the share of wrong labels."""
    if hasattr(model, "predict_proba"):
        return float(log_loss(y, model.predict_proba(X), labels=list(model.classes_)))
    if hasattr(model, "classes_"):
        return float(1 - model.score(X, y))
    return float(np.mean((model.predict(X) - y) ** 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.1, 1.0, 4.0])
    parser.add_argument("--relation", default="zero-out")
    parser.add_argument("--only", default="", help="problems whose name contains this")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # a delta of 1e-5 is kept for the small problems too
    rows = []
    if not arguments.json:
        print(f"{'problem':34s} {'eps':>5s} {'signal':>7s} " + " ".join(f"{name[:9]:>9s}" for name in SOLVERS), " auto")
    for name, (make, estimator, parameters) in PROBLEMS.items():
        if arguments.only not in name:
            continue
        X, y, X_test, y_test, declared = make()
        options = {**declared, **parameters, "relation": arguments.relation}
        for epsilon in arguments.epsilon:
            found: dict[str, float] = {}
            for solver in SOLVERS:
                if solver == "newton" and X.shape[1] > 2000:
                    continue  # hours, and "auto" never takes it there
                try:
                    models = (estimator(epsilon=epsilon, solver=solver, **options) for _ in range(arguments.runs))
                    found[solver] = float(np.mean([error(model.fit(X, y), X_test, y_test) for model in models]))
                except InputError:
                    continue
            plan = estimator(epsilon=epsilon, **options).plan(sv.Federation.central(X, y))
            mu = sv.privacy.calibration.mu_for(epsilon, 1e-5)
            row = {
                "problem": name,
                "epsilon": epsilon,
                "signal": plan.records * mu / math.sqrt(plan.dimension),
                "errors": found,
                "auto": plan.algorithm,
                "regret": found[plan.algorithm] / min(found.values()),
            }
            rows.append(row)
            if not arguments.json:
                cells = " ".join(f"{found[solver]:9.4f}" if solver in found else f"{'-':>9s}" for solver in SOLVERS)
                print(
                    f"{name:34s} {epsilon:5g} {row['signal']:7.0f} {cells}  {plan.algorithm} {row['regret']:.3f}",
                    flush=True,
                )
    if arguments.json:
        print(json.dumps(rows, indent=2))
    elif rows:
        regrets = np.array([row["regret"] for row in rows])
        print(f"regret of auto: median {np.median(regrets):.3f}, largest {regrets.max():.3f}")
        for solver in SOLVERS:
            alone = [row["errors"][solver] / min(row["errors"].values()) for row in rows if solver in row["errors"]]
            if alone:
                print(
                    f"  always {solver}: median {np.median(alone):.3f}, largest {max(alone):.3f},"
                    f" of {len(alone)} problems"
                )


if __name__ == "__main__":
    main()
