"""What a prior gains, and what a useless one costs: `python benchmarks/priors.py --only adult --epsilon 0.1 1`.

Test log-loss, means over `--runs` seeds of the noise with their standard errors; delta = 1e-6, zero-out, one place. The
prior is scikit-learn's logistic regression on a tenth of the training rows, which the private fits do not have; "rare"
is the same on a tenth where most positives of one half are missing. The wild ones: random weights as long as its own,
all its signs changed, 300 times as large, an intercept 50 too large, and weights in the units of other features.
SOTTOVOCE_DATA may name a folder that has adult; else it is downloaded.
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

import sottovoce as sv

DELTA = 1e-6


class Case(NamedTuple):
    """Rows to fit on, the tenth of the prior, test rows, and the declared ranges."""

    X: Any
    y: Any
    earlier: tuple[Any, Any]
    test: tuple[Any, Any]
    ranges: Any


def made_up() -> Case:
    """15 independent columns, all of use, and 35% positives."""
    rng = np.random.default_rng(0)
    X, w = np.clip(rng.normal(size=(25_400, 15)), -3, 3), rng.normal(size=15)
    w *= 1.6 / np.std(X @ w)
    y = (rng.random(len(X)) < 1 / (1 + np.exp(0.7 - X @ w))).astype(int)
    ends = ([-3.0] * 15, [3.0] * 15)
    return Case(X[:14_000], y[:14_000], (X[14_000:15_400], y[14_000:15_400]), (X[15_400:], y[15_400:]), ends)


def adult() -> Case:
    train, test = (sv.load("adult", split=split) for split in ("train", "test"))
    X, T = (np.asarray(part.X.todense() if hasattr(part.X, "todense") else part.X) for part in (train, test))
    y, truth = (np.array([">50K" in str(label) for label in part.y], dtype=int) for part in (train, test))
    apart = np.random.default_rng(0).random(len(X)) < 0.1
    return Case(X[~apart], y[~apart], (X[apart], y[apart]), (T, truth), train.feature_ranges)


CASES: dict[str, Callable[[], Case]] = {"made-up, 14,000 x 15": made_up, "adult": adult}


def priors_of(case: Case) -> dict[str, Any]:
    """By name, as (coef, intercept) in the units of the features."""
    lows, highs = (np.array(ends) for ends in case.ranges)
    centre, half = (lows + highs) / 2, (highs - lows) / 2

    def fitted(X: Any, y: Any) -> tuple[Any, float]:
        model = LogisticRegression(max_iter=2000).fit((X - centre) / half, y)
        coef = model.coef_[0] / half
        return coef, float(model.intercept_[0] - coef @ centre)

    X, y = case.earlier
    rng = np.random.default_rng(1)
    kept = (y == 0) | (X[:, 0] < np.median(X[:, 0])) | (rng.random(len(y)) < 0.2)
    (coef, intercept), random = fitted(X, y), rng.normal(size=X.shape[1]) / half
    random *= np.linalg.norm(coef * half) / np.linalg.norm(random * half)
    return {
        "none": None,
        "prior": (coef, intercept),
        "rare": fitted(X[kept], y[kept]),
        "random": (random, 0.0),
        "flipped": (-coef, -intercept),
        "300 times": (300 * coef, 300 * intercept),
        "intercept + 50": (coef, intercept + 50),
        "other units": (coef * half, intercept),
    }


def loss_of(case: Case, prior: Any, epsilon: float, seed: int) -> float:
    solver = sv.solvers.Whitened(prior=prior)
    model = sv.PrivateLogisticRegression(
        epsilon, DELTA, feature_ranges=case.ranges, classes=(0, 1), solver=solver, insecure_seed=seed
    )
    return float(log_loss(case.test[1], model.fit(case.X, case.y).predict_proba(case.test[0])))


def main() -> None:
    """Print a table for each data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--epsilon", nargs="*", type=float, default=[0.1, 1.0])
    parser.add_argument("--runs", type=int, default=10)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for name, make in CASES.items():
        if not any(name.startswith(each) for each in arguments.only):
            continue
        case = make()
        priors = priors_of(case)
        coef, intercept = priors["prior"]
        alone = log_loss(case.test[1], 1 / (1 + np.exp(-(case.test[0] @ coef + intercept))))
        print(f"{name}: {len(case.X)} x {case.X.shape[1]}, the prior alone {alone:.4f}")
        for epsilon in arguments.epsilon:
            found = {
                kind: np.array([loss_of(case, prior, epsilon, seed) for seed in range(arguments.runs)])
                for kind, prior in priors.items()
            }
            for kind, losses in found.items():
                error = losses.std() / np.sqrt(len(losses))
                print(f"  epsilon {epsilon:g}  {kind:15} {losses.mean():.4f} +- {error:.4f}", end="")
                print("" if kind == "none" else f"  {losses.mean() - found['none'].mean():+.4f}")


if __name__ == "__main__":
    main()
