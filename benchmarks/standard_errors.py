"""Coverage of the intervals of `coefficients()`: `python benchmarks/standard_errors.py`.

Made-up records first: 20,000 rows of 10 normal columns, independent or correlated by 0.7, labels by a model whose
coefficients are known; every fit draws its records anew. Then real ones (California, adult's numbers, electricity): the
truth is the model without privacy on all rows as the bounds cut them, and each fit draws as many rows with replacement.
For each case: the share of 95% intervals that hold the truth, that of the worst coefficient, the share of coefficients
that are told, their mean width against that of intervals without privacy, and the root mean square errors of the
one-step estimate and of the model in units of the standard error.
"""

from __future__ import annotations

import argparse
import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sottovoce as sv
from sottovoce.lab import datasets

Array = NDArray[np.float64]
RECORDS, FEATURES = 20_000, 10


def made_up(rng: np.random.Generator, coef: Array, correlation: float, loss: str) -> tuple[Array, Array]:
    """Rows and labels; the intercept is 0.3."""
    X = rng.standard_normal((RECORDS, FEATURES)) * math.sqrt(1 - correlation)
    X += math.sqrt(correlation) * rng.standard_normal((RECORDS, 1))
    scores = X @ coef + 0.3
    if loss == "logistic":
        return X, (rng.random(RECORDS) < 1 / (1 + np.exp(-scores))).astype(float)
    return X, scores + rng.standard_normal(RECORDS)


def estimator(loss: str, epsilon: float, **bounds: Any) -> Any:
    if loss == "logistic":
        return sv.PrivateLogisticRegression(epsilon=epsilon, classes=(0, 1), standard_errors=True, **bounds)
    return sv.PrivateRidge(epsilon=epsilon, standard_errors=True, **bounds)


def report(name: str, tables: list[Any], truth: Array, plain: Array) -> None:
    """One line of figures over all fits of a case."""
    told = np.array([[row.identified for row in table] for table, _ in tables])
    numbers = np.array(
        [[(row.estimate or 0.0, row.standard_error or 1.0) for row in table] for table, _ in tables], dtype=float
    )
    estimates, errors = numbers[..., 0], numbers[..., 1]
    off = (estimates - truth) / errors
    held = np.abs(off) <= 1.96
    each = [held[told[:, j], j].mean() for j in range(len(truth)) if told[:, j].sum() >= len(tables) / 4]
    model = (np.array([weights for _, weights in tables]) - truth) / errors
    cells = [
        f"{held[told].mean():.3f}" if told.any() else "-",
        f"{min(each):.3f}" if each else "-",
        f"{told.mean():.2f}",
        f"{(errors / plain)[told].mean():.2f}" if told.any() else "-",
        f"{math.sqrt(float((off[told] ** 2).mean())):.2f}" if told.any() else "-",
        f"{math.sqrt(float((model[told] ** 2).mean())):.2f}" if told.any() else "-",
    ]
    print(f"{name:48}" + "".join(f"{cell:>9}" for cell in cells), flush=True)


def fitted(model: Any, X: Array, y: Array) -> tuple[Any, Array]:
    """The table of a fit, and its model."""
    model.fit(X, y)
    return list(model.coefficients()), np.append(model.coef_.ravel(), model.intercept_)


def real(name: str) -> tuple[str, Array, Array, dict[str, Any]]:
    """Loss, rows, labels and declared bounds of a set of real rows."""
    if name == "california":
        data = datasets.load("california_housing", split="all")
        ranges = ([0, 1, 0, 0, 0, 0, 32, -125], [15, 52, 20, 5, 10_000, 10, 42, -114])
        return "squares", data.X, data.y, {"feature_ranges": ranges, "label_bound": (0.0, 5.0)}
    if name == "electricity":
        data = datasets.load("electricity", split="all")
        return "logistic", data.X, (data.y == "UP").astype(float), {"feature_ranges": data.feature_ranges}
    data = datasets.load("adult")
    ranges = ([17, 0, 1, 0, 0, 1], [90, 1_500_000, 16, 100_000, 5_000, 99])
    return "logistic", np.asarray(data.X[:, :6]), (data.y == ">50K").astype(float), {"feature_ranges": ranges}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fits", type=int, default=200)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--sets", nargs="+", default=["made-up", "california", "adult", "electricity"])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    titles = ("held", "least", "told", "width", "rmse", "model's")
    print(" " * 48 + "".join(f"{title:>9}" for title in titles))
    for epsilon in options.epsilon:
        for loss in ("logistic", "squares") if "made-up" in options.sets else ():
            for correlation in (0.0, 0.7):
                rng = np.random.default_rng(options.seed)
                coef = rng.standard_normal(FEATURES) / math.sqrt(FEATURES)
                bounds: dict[str, Any] = {"entry_bound": 4.0}
                bounds |= {"label_bound": 8.0} if loss == "squares" else {}
                model = estimator(loss, epsilon, **bounds)
                tables = [fitted(model, *made_up(rng, coef, correlation, loss)) for _ in range(options.fits)]
                free = estimator(loss, math.inf, **bounds).fit(*made_up(rng, coef, correlation, loss))
                plain = np.array([row.standard_error for row in free.coefficients()])
                name = f"{loss}, correlated {correlation:g}, epsilon {epsilon:g}"
                report(name, tables, np.append(coef, 0.3), plain)
        for name in [name for name in options.sets if name != "made-up"]:
            loss, X, y, bounds = real(name)
            rng = np.random.default_rng(options.seed)
            free = estimator(loss, math.inf, **bounds).fit(X, y)
            truth = np.append(free.coef_.ravel(), free.intercept_)
            plain = np.array([row.standard_error for row in free.coefficients()])
            model, tables = estimator(loss, epsilon, **bounds), []
            for _ in range(options.fits):
                drawn = rng.integers(len(y), size=len(y))
                tables.append(fitted(model, X[drawn], y[drawn]))
            report(f"{name}, epsilon {epsilon:g}", tables, truth, plain)


if __name__ == "__main__":
    main()
