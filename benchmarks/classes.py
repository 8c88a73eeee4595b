"""Seven classes of unequal size: `python benchmarks/classes.py [--estimator svm] [--solver gradient]`.

100,000 people for training, 20,000 for testing, 54 columns: ten correlated numbers in [-1, 1], four and forty levels
whose shares depend on the numbers. Classes are drawn from a softmax of linear scores with a part that is no linear
function of the columns; the rarest class has 2% of the people. Accuracy and log-loss beside the model without privacy;
of the support vector machine, which tells each class from the rest, accuracy alone.
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse
import math
import warnings

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

import sottovoce as sv

TRAINING, TESTING, CLASSES = 100_000, 20_000, 7
Array = NDArray[np.float64]
ESTIMATORS = {"logistic": sv.PrivateLogisticRegression, "svm": sv.PrivateLinearSVC}


def drawn(scores: Array, rng: np.random.Generator) -> NDArray[np.int64]:
    """One of the columns for each row, by the softmax of the scores."""
    edges = np.cumsum(softmax(scores, axis=1), axis=1)
    return (rng.random((len(scores), 1)) > edges).sum(axis=1).clip(0, scores.shape[1] - 1)


def people(rng: np.random.Generator) -> tuple[Array, NDArray[np.int64]]:
    """Rows of norm at most sqrt 12, and classes."""
    count = TRAINING + TESTING
    mixed = rng.standard_normal((count, 10)) @ (0.5 * rng.standard_normal((10, 10)) + np.eye(10)).T
    numbers = np.clip(mixed / mixed.std(axis=0), -3, 3) / 3
    few = drawn(2 * numbers[:, :3] @ rng.standard_normal((3, 4)), rng)
    many = drawn(3 * numbers[:, 2:7] @ rng.standard_normal((5, 40)) + rng.standard_normal(40), rng)
    X = np.hstack([numbers, np.eye(4)[few], np.eye(40)[many]])
    sizes = np.repeat([2.5, 1.0, 0.8], [10, 4, 40])[:, None]
    scores = X @ (sizes * rng.standard_normal((54, CLASSES))) + [1.6, 2.2, 0.2, -2.0, -0.9, -0.4, -0.1]
    scores += 0.8 * np.sin(3 * numbers[:, :1]) * rng.standard_normal((1, CLASSES))
    return X, drawn(scores, rng)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.1, 1.0, 8.0, math.inf])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--parties", type=int, default=1)
    parser.add_argument("--estimator", choices=ESTIMATORS, default="logistic")
    parser.add_argument("--solver", default="auto")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # the same people again and again
    X, y = people(np.random.default_rng(0))
    print("shares:", (np.bincount(y[:TRAINING]) / TRAINING).round(3).tolist())
    parts = [
        (X[k : TRAINING : arguments.parties], y[k : TRAINING : arguments.parties]) for k in range(arguments.parties)
    ]
    for epsilon in arguments.epsilon:
        found = []
        for seed in range(arguments.runs if math.isfinite(epsilon) else 1):
            given = {"row_norm": math.sqrt(12), "classes": range(CLASSES), "insecure_seed": seed}
            model = ESTIMATORS[arguments.estimator](epsilon, 1e-6, solver=arguments.solver, **given)
            model.fit(sv.Federation.by_rows(parts))
            right, measured = y[TRAINING:], {"accuracy": (model.predict(X[TRAINING:]) == y[TRAINING:]).mean()}
            if arguments.estimator == "logistic":
                shares = model.predict_proba(X[TRAINING:])
                measured["log-loss"] = -np.log(shares[np.arange(TESTING), right]).mean()
            found.append(measured)
        means = {name: [each[name] for each in found] for name in found[0]}
        print(
            f"epsilon {epsilon:g}:",
            ", ".join(f"{name} {np.mean(values):.4f} +- {np.std(values):.4f}" for name, values in means.items()),
            flush=True,
        )


if __name__ == "__main__":
    main()
