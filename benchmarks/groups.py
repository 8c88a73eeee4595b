"""Coverage of the intervals of evaluations by group: `python benchmarks/groups.py`.

Made-up people in three groups, of 300, 3,000 and 30,000 test records, whose outcomes have other rates and other noise.
A model is fitted to people of all groups at epsilon 1. Test parts are drawn from a population of each group with
replacement; `sottovoce.evaluate` evaluates one, by group. Cells are sums over records, so those of the next parts are
made of how often each record was drawn, with noise of the same size (`benchmarks/evaluation.py`); the command stops if
the first one's are no such sums. For every group and metric: the share of 95% intervals that hold the value of the
group's population, their mean width, the bias in widths, and how often the metric could be told.
"""

from __future__ import annotations

import argparse
import math
import warnings
from typing import Any

import numpy as np
from evaluation import of_classes, of_numbers
from numpy.typing import NDArray

import sottovoce as sv
from sottovoce.errors import RepeatedFitWarning
from sottovoce.estimators.evaluation import estimate_metrics

Array = NDArray[np.float64]
SIZES = (300, 3_000, 30_000)
POPULATION = 20_000  # of each group
FEATURES = 6


def people(group: int, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Records and log-odds of one group: of other means, slopes and rates than the others."""
    X = np.clip(rng.normal(0.2 * (group - 1), 0.5, (count, FEATURES)), -1, 1)
    slopes = np.array([2.0, -1.5, 1.0, 0.5, 0.0, -0.5]) * (1.0, 0.7, 1.2)[group]
    return X, X @ slopes + (-1.0, 0.5, 0.0)[group]


def cover(kind: str, epsilon: float, repeats: int, rng: np.random.Generator) -> None:
    """A line for each group and metric."""
    drawn = [people(group, 2 * POPULATION, rng) for group in range(len(SIZES))]
    if kind == "classes":
        labels: list[Any] = [(s + rng.logistic(size=len(s)) > 0).astype(int) for _, s in drawn]
        model: Any = sv.PrivateLogisticRegression(1.0, 1e-6, entry_bound=1.0, classes=(0, 1), insecure_seed=1)
    else:
        labels = [np.clip(s + rng.normal(0, 1 + k / 2, len(s)), -8, 8) for k, (_, s) in enumerate(drawn)]
        model = sv.PrivateRidge(1.0, 1e-6, entry_bound=1.0, label_bound=(-8, 8), insecure_seed=1)
    model.fit(np.concatenate([X[:POPULATION] for X, _ in drawn]), np.concatenate([y[:POPULATION] for y in labels]))
    populations = [(X[POPULATION:], y[POPULATION:]) for (X, _), y in zip(drawn, labels, strict=True)]
    chosen = [rng.integers(POPULATION, size=size) for size in SIZES]
    X, y = (np.concatenate([part[k][own] for part, own in zip(populations, chosen, strict=True)]) for k in (0, 1))
    names = tuple(f"{size:,}" for size in SIZES)
    told = sv.evaluate(model, X, y, epsilon=epsilon, delta=1e-6, by=np.repeat(names, SIZES), groups=names)
    true, cells = dict[Any, dict[str, float]](), []
    for name, (rows, own) in zip(names, populations, strict=True):
        scores = np.ravel(model.scores(rows))
        about = of_classes(told, model, scores, own) if kind == "classes" else of_numbers(scores, own, -8.0, 8.0)
        true[name], matrix = about
        cells.append(matrix)
    length = cells[0].shape[0]
    noise = told.groups[names[0]].noise

    def counted(picks: list[Any]) -> Array:
        each = [m @ np.bincount(pick, minlength=POPULATION) for m, pick in zip(cells, picks, strict=True)]
        return np.concatenate([*each, np.zeros(length)])

    first = counted(chosen).reshape(len(SIZES) + 1, length)
    for place, name in enumerate(names):
        found = told.groups[name].cells
        assert (np.abs(found - first[place][: len(found)]) < 7 * noise).all(), "other cells"
    held: dict[tuple[Any, str], list[tuple[float, ...]]] = {}
    for _ in range(repeats):
        sums = counted([rng.integers(POPULATION, size=size) for size in SIZES])
        again = estimate_metrics(told.plan_, sums + noise * rng.standard_normal(len(sums)), told.privacy_)
        for name in names:
            for metric, value in true[name].items():
                own = again.groups[name][metric]
                error = own.value - value if math.isfinite(own.width) else math.nan
                held.setdefault((name, metric), []).append((own.low <= value <= own.high, own.width, error))
    print(f"{kind}, epsilon {epsilon:g}, noise {noise:.3g}, {length} cells a group")
    for (name, metric), rows in held.items():
        inside, width, error = np.array(rows, dtype=float).T
        known = np.isfinite(error)
        wide = width[known].mean() if known.any() else math.inf
        bias = error[known].mean() / wide if known.any() else math.nan
        print(f"   {name:>7} {metric:20}{inside.mean():7.3f}{wide:9.4f}{bias:+7.2f}{known.mean():6.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", RepeatedFitWarning)
    rng = np.random.default_rng(arguments.seed)
    print("coverage, mean width, bias in widths, share that is told")
    for kind in ("classes", "numbers"):
        for epsilon in arguments.epsilon:
            cover(kind, epsilon, arguments.repeats, rng)


if __name__ == "__main__":
    main()
