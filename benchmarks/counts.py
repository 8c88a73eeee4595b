"""Counts and positive amounts against fits without privacy: `python benchmarks/counts.py`.

Test deviance on a fifth of the records that no fit saw. The gain is that of the fit without privacy over one mean (one
rate) for everybody; what is printed is the share of it that the private fit has, and its mean prediction over that of
the fit without privacy. Each figure is the mean over runs with fresh noise, delta = 1e-6, zero-out. Made-up sets have a
fixed seed; adult and California come from the folder named by SOTTOVOCE_DATA, else they are downloaded. With
`--columns` two parties share the columns, over secure products, and exposures are left out.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import sottovoce as sv
from sottovoce.lab import datasets

Array = NDArray[np.float64]


class Case(NamedTuple):
    """Records with public ranges."""

    X: Array
    y: Array
    most: float
    ranges: tuple[list[float], list[float]]
    exposure: Array | None = None
    amounts: bool = False


def claims(rare: float = 1.0) -> Case:
    """Negative binomial, in a tenth to a whole year; at `rare` .1 one policy of a hundred has a claim."""
    rng = np.random.default_rng(1)
    n, d = 60_000 if rare < 1 else 30_000, 12
    X = rng.uniform(-1, 1, (n, d))
    exposure = rng.uniform(0.1, 1, n)
    mean = exposure * rare * 0.18 * np.exp(X @ (0.45 * rng.standard_normal(d)))
    y = rng.negative_binomial(2, 2 / (2 + mean)).astype(float)
    return Case(X, y, 10, ([-1.0] * d, [1.0] * d), exposure)


def hours() -> Case:
    """Adult: hours worked in a week, by numbers and a few levels."""
    data = datasets.load("adult", split="train")
    X = np.asarray(data.X, dtype=float)
    names = list(data.feature_names)
    place = next(k for k, name in enumerate(names) if name.startswith("hours"))
    y, rest = X[:, place], np.delete(X, place, axis=1)
    low, high = (np.delete(np.array(ends), place).tolist() for ends in data.feature_ranges)
    return Case(rest, y, 99, (low, high))


def houses() -> Case:
    """California: the median value of a block, a positive amount."""
    data = datasets.load("california_housing", split="all")
    ranges = [0.0, 0, 0, 0, 0, 0, 3.4, 4.7], [3.0, 4, 5, 4, 11, 7, 3.8, 4.9]  # of logarithms, wide ones
    return Case(np.log1p(np.abs(data.X)), np.asarray(data.y, dtype=float), 5.1, ranges, amounts=True)


def costs() -> Case:
    """Made-up amounts of the gamma law, shape .8."""
    rng = np.random.default_rng(2)
    n, d = 30_000, 12
    X = rng.uniform(-1, 1, (n, d))
    mean = np.exp(X @ (0.5 * rng.standard_normal(d)))
    return Case(X, mean * rng.gamma(0.8, 1 / 0.8, n), 30, ([-1.0] * d, [1.0] * d), amounts=True)


CASES: dict[str, Callable[[], Case]] = {
    "claims with exposure": claims,
    "rare claims": lambda: claims(0.1),
    "adult, hours": hours,
    "made-up costs (gamma)": costs,
    "California values (gamma)": houses,
}


def deviance(case: Case, means: Array, rows: Any) -> float:
    y = case.y[rows]
    if case.amounts:
        return float(2 * np.mean(y / means - 1 - np.log(y / means)))
    return float(2 * np.mean(np.where(y > 0, y * np.log(np.where(y > 0, y, 1) / means), 0.0) - y + means))


def figures(
    case: Case, epsilons: list[float], runs: int, *, columns: bool = False
) -> Iterator[tuple[float, float, float, float]]:
    """For each epsilon the share of the gain, the ratio of means, and seconds a fit."""
    order = np.random.default_rng(0).permutation(len(case.y))
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    kind: Any = sv.PrivateGammaRegressor if case.amounts else sv.PrivatePoissonRegressor
    exposure = np.ones(len(case.y)) if case.exposure is None else case.exposure
    given = {} if case.exposure is None else {"exposure": exposure[train]}

    def means(model: Any) -> Array:
        return np.maximum(exposure[test] * np.exp(model.scores(case.X[test])), 1e-12)

    declared: dict[str, Any] = {"label_bound": (0, case.most), "feature_ranges": case.ranges}
    if case.exposure is not None:
        declared["exposure_bound"] = 1.0
    data: tuple[Any, ...] = (case.X[train], case.y[train])
    if columns:
        parts = np.array_split(case.X[train], 2, axis=1)
        data = (sv.Federation.by_columns(parts, case.y[train], labels="held", products="secure"),)
    plain = means(kind(epsilon=math.inf, **declared).fit(case.X[train], case.y[train], **given))
    one = exposure[test] * case.y[train].sum() / exposure[train].sum()
    constant, best = deviance(case, one, test), deviance(case, plain, test)
    for epsilon in epsilons:
        shares, ratios, begun = [], [], time.perf_counter()
        for _ in range(runs):
            found = means(kind(epsilon=epsilon, delta=1e-6, **declared).fit(*data, **given))
            shares.append((constant - deviance(case, found, test)) / (constant - best))
            ratios.append(found.mean() / plain.mean())
        yield epsilon, float(np.mean(shares)), float(np.mean(ratios)), (time.perf_counter() - begun) / runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 1.0, 3.0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=list(CASES))
    parser.add_argument("--columns", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{'':<28}{'records':>8}{'mean':>8}{'epsilon':>9}{'gain':>7}{'mean ratio':>12}{'seconds':>9}")
    for name in options.only:
        case = CASES[name]()
        case = case._replace(exposure=None) if options.columns else case
        for epsilon, share, ratio, seconds in figures(case, options.epsilons, options.runs, columns=options.columns):
            print(
                f"{name:<28}{len(case.y):>8}{case.y.mean():>8.3f}{epsilon:>9g}{share:>7.0%}{ratio:>12.3f}{seconds:>9.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
