"""Ordered classes at a budget: `python benchmarks/ordinal.py`.

Made-up records of proportional odds with five grades, two of them rare: 4,000 x 11, as a set of wines is, 50,000 x 40,
and 50,000 x 5 with one strong column that a tenth of the records have (weight 4), where scores are far from normal.
For each epsilon the log-loss on 20,000 others, mean and deviation of some fits, beside that of the constant model and
of the maximum-likelihood fit; the mean distance of the probabilities from the true ones; and the largest distance of
the mean probability of a grade from its true mean, apart for both values of the strong column where there is one.
"""

from __future__ import annotations

import argparse
import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sottovoce as sv
from sottovoce.errors import RepeatedFitWarning

Array = NDArray[np.float64]
SHARES = np.array([0.04, 0.30, 0.44, 0.18, 0.04])  # of the grades
OTHERS = 20_000
SETS = {"4,000 x 11": (4_000, 11, False), "50,000 x 40": (50_000, 40, False), "one strong column": (50_000, 5, True)}


def made(count: int, features: int, *, strong: bool, rng: np.random.Generator) -> tuple[Array, NDArray[Any], Array]:
    """Rows, grades and their true probabilities."""
    X = np.clip(rng.normal(0, 0.5, (count, features)) + 0.3 * rng.normal(0, 0.5, (count, 1)), -1, 1)
    weights = np.linspace(2, -2, features)
    if strong:
        X[:, 0], weights = rng.random(count) < 0.1, np.append([4.0, 0.5], np.zeros(features - 2))
    scores, noise = X @ weights, rng.logistic(size=count)
    thresholds = np.quantile(scores + noise, np.cumsum(SHARES)[:-1])
    below = 1 / (1 + np.exp(scores[:, None] - thresholds))
    shares = np.diff(np.pad(below, ((0, 0), (1, 1)), constant_values=((0, 0), (0, 1))), axis=1)
    return X, (scores[:, None] + noise[:, None] > thresholds).sum(axis=1), shares


def told(model: Any, X: Array, y: NDArray[Any], true: Array, *, strong: bool) -> tuple[float, float, float]:
    """Log-loss, mean distance of the probabilities, and of their means in groups."""
    found = model.predict_proba(X)
    groups = [X[:, 0] > 0, X[:, 0] <= 0] if strong else [np.ones(len(X), dtype=bool)]
    apart = max(float(np.abs((found - true)[own].mean(axis=0)).max()) for own in groups)
    return -float(np.log(found[np.arange(len(y)), y]).mean()), float(np.abs(found - true).mean()), apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.1, 1.0, 3.0, 8.0])
    parser.add_argument("--repeats", type=int, default=6)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", RepeatedFitWarning)
    for name, (count, features, strong) in SETS.items():
        X, y, true = made(count + OTHERS, features, strong=strong, rng=np.random.default_rng(1))
        test = (X[count:], y[count:], true[count:])
        X, y = X[:count], y[:count]
        declared: dict[str, Any] = {"classes": range(5), "entry_bound": 1.0}
        shares = np.bincount(y, minlength=5) / count
        constant = -float(np.log(shares)[test[1]].mean())
        exact = told(sv.PrivateOrdinalClassifier(math.inf, **declared).fit(X, y), *test, strong=strong)
        print(f"{name}: constant {constant:.4f}, without privacy {exact[0]:.4f} ({exact[1]:.4f}, {exact[2]:.4f})")
        for epsilon in arguments.epsilon:
            fits = (
                sv.PrivateOrdinalClassifier(epsilon, 1e-6, insecure_seed=seed, **declared).fit(X, y)
                for seed in range(arguments.repeats)
            )
            rows = np.array([told(model, *test, strong=strong) for model in fits])
            loss, off, apart = rows.mean(axis=0)
            share = (constant - loss) / (constant - exact[0])
            print(
                f"   epsilon {epsilon:4g}: log-loss {loss:.4f} +- {rows[:, 0].std():.4f} ({share:.0%} of the gain), "
                f"probabilities off by {off:.4f}, their means by {apart:.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
