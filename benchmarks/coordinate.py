"""Coordinate descent on the five published problems: `python benchmarks/coordinate.py`.

A, B: logistic regression on Electricity, raw and standardised, alpha = 1/n. C, D: LASSO on California Housing, raw
(alpha = 1) and standardised (alpha = 0.1). E: LASSO on 1000 x 1000 Gaussian entries, ten columns informative
(alpha = 30). No intercept. Epsilon = 1 and delta = 1/n^2; for E epsilon = 10 and delta = 1e-6.

A figure is the mean of F/F* - 1 over runs, for E of (F - F*)/(F(0) - F*): F is the objective on the data as they
are, uncut, and F* its minimum. Everything runs through the estimators. Tuned settings were chosen with other seeds
than the figures' own, 1000 and on; what tuning itself would cost is not counted, as in the papers.

What the bounds rest on:
A  public ranges of the features (declared).
B  mean and deviation of each column are read off the data, as in the papers; the bounds are the public ranges in
   those units, the two prices cut at 15 and 60 deviations (chosen by tuning).
C  ranges a geographer would declare, labels up to 500,001 USD (declared).
D  mean, deviation and largest entry of each column are read off the data, the last cut at 40 deviations (chosen by
   tuning); labels up to 500,001 USD (declared).
E  entries up to 4, rows up to 36, labels up to 1000 (declared).
"Known curvatures" takes the mean square of each feature as public: read off the data in A and C, in B and D it is 1
by standardising, in E it is 1 by design. "Private" spends a tenth of the budget on them.
DP-SGD is `gradient` or `sgd`; its row norm and slope bound are tuned like its steps and rounds.
Random order has the settings that were tuned for the cyclic one; few passes then miss some coordinates.
"Untuned" passes the bounds and nothing else; `auto` on E is slow and has two runs.

Data sets come from the folder named by SOTTOVOCE_DATA, else they are downloaded.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_regression
from sklearn.linear_model import Lasso, LogisticRegression

import sottovoce as sv
from sottovoce.errors import InputError

Array = NDArray[np.float64]
RELATIONS = ("zero-out", "replace-one")
METHODS = ("known", "private", "random", "DP-SGD", "cd", "auto", "greedy")
TITLES = {
    "known": "tuned, known curvatures",
    "private": "tuned, private curvatures",
    "random": "the same, random order",
    "DP-SGD": "DP-SGD, tuned",
    "cd": "cd, untuned",
    "auto": "auto, untuned",
    "greedy": "greedy, tuned",
}
SLOW = 2  # runs of a method that takes more than ten seconds each


@dataclass(frozen=True)
class Task:
    """Data, objective, budget and declared bounds of one problem."""

    X: Array
    y: NDArray[Any]
    signs: Array  # labels as the objective wants them
    alpha: float
    epsilon: float
    delta: float
    bounds: dict[str, Any]
    squares: Array
    lasso: bool = True
    scale: float = 1.0  # labels are divided by it in a fit, and slopes with them
    share: bool = False  # of the initial error, instead of F/F* - 1

    def objective(self, w: Array) -> float:
        """F."""
        scores = self.X @ w
        if self.lasso:
            return float(np.mean((scores - self.signs) ** 2) / 2 + self.alpha * np.abs(w).sum())
        return float(np.mean(np.logaddexp(0, -self.signs * scores)) + self.alpha / 2 * (w @ w))

    def optimum(self) -> float:
        """F*, by scikit-learn."""
        if self.lasso:
            model: Any = Lasso(alpha=self.alpha, fit_intercept=False, tol=1e-12, max_iter=1_000_000)
        else:
            weight = 1 / (len(self.y) * self.alpha)
            model = LogisticRegression(C=weight, fit_intercept=False, solver="newton-cholesky", tol=1e-10, max_iter=200)
        return self.objective(np.ravel(model.fit(self.X, self.signs).coef_))

    def fit(self, **options: Any) -> Array:
        """Coefficients of one private fit."""
        given = {"epsilon": self.epsilon, "delta": self.delta, "alpha": self.alpha, "fit_intercept": False}
        estimator = sv.PrivateLasso if self.lasso else sv.PrivateLogisticRegression
        return np.ravel(estimator(**(given | self.bounds | options)).fit(self.X, self.y).coef_)


def electricity(standardised: bool) -> Task:
    data = sv.load("electricity", split="all")
    X = np.asarray(data.X, dtype=np.float64)
    lows, highs = np.asarray(data.feature_ranges)
    if standardised:
        mean, deviation = X.mean(axis=0), X.std(axis=0)
        X, lows, highs = ((values - mean) / deviation for values in (X, lows, highs))
    bound = np.maximum(-lows, highs)
    if standardised:
        for name, most in (("nswprice", 15.0), ("vicprice", 60.0)):
            place = data.feature_names.index(name)
            bound[place] = min(bound[place], most)
    n = len(X)
    return Task(
        X,
        data.y,
        np.where(data.y == "UP", 1.0, -1.0),
        alpha=1 / n,
        epsilon=1.0,
        delta=n**-2.0,
        bounds={"entry_bound": bound},
        squares=np.mean(X**2, axis=0),
        lasso=False,
    )


def california(standardised: bool) -> Task:
    data = sv.load("california_housing", split="all")
    X, y = np.asarray(data.X, dtype=np.float64), np.asarray(data.y, dtype=np.float64)
    bound = np.array([15.0, 52, 20, 5, 10000, 10, 42, 125])
    if standardised:
        X = (X - X.mean(axis=0)) / X.std(axis=0)
        bound = np.minimum(np.abs(X).max(axis=0), 40.0)
    return Task(
        X,
        y,
        y,
        alpha=0.1 if standardised else 1.0,
        epsilon=1.0,
        delta=len(X) ** -2.0,
        bounds={"entry_bound": bound, "label_bound": 5.00001},
        squares=np.mean(X**2, axis=0),
        scale=5.00001,
    )


def sparse_lasso() -> Task:
    X, y = make_regression(1000, 1000, n_informative=10, noise=1, random_state=0)
    return Task(
        X,
        y,
        y,
        alpha=30.0,
        epsilon=10.0,
        delta=1e-6,
        bounds={"entry_bound": 4.0, "row_norm": 36.0, "label_bound": 1000.0},
        squares=np.ones(1000),
        scale=1000.0,
        share=True,
    )


@dataclass(frozen=True)
class Walk:
    """Tuned coordinate descent: C_j = clip times the root mean square of feature j, in units of the slope."""

    clip: float
    step: float
    passes: int
    averaged: float  # share of the steps whose mean is the answer

    def options(self, task: Task, *, known: bool, order: str = "cyclic") -> dict[str, Any]:
        return {
            "solver": "cd",
            "clip": self.clip / task.scale,
            "step": self.step,
            "inner": self.passes * task.X.shape[1],
            "averaged": self.averaged,
            "order": order,
            "curvatures": task.squares if known else None,
            "curvature_share": 0.0 if known else 0.1,
        }


@dataclass(frozen=True)
class Setting:
    """What was tuned for one relation, and the figure to reach."""

    limit: float
    known: Walk
    private: Walk
    descent: dict[str, Any]
    greedy: dict[str, Any] | None = None

    def methods(self, task: Task) -> dict[str, dict[str, Any]]:
        found = {
            "known": self.known.options(task, known=True),
            "private": self.private.options(task, known=False),
            "random": self.known.options(task, known=True, order="random"),
            "DP-SGD": {"entry_bound": None} | self.descent,
            "cd": {"solver": "cd"},
            "auto": {"solver": "auto"},
        }
        return found | ({"greedy": {"solver": "greedy-cd"} | self.greedy} if self.greedy else {})


@dataclass(frozen=True)
class Experiment:
    title: str
    make: Callable[[], Task]
    published: tuple[float, float]  # DP-CD, DP-SGD
    settings: dict[str, Setting]
    slow: tuple[str, ...] = field(default=())


def descent(row_norm: float, slope_bound: float, step: float, rounds: int) -> dict[str, Any]:
    """Tuned full gradients; rows beyond the norm are scaled back."""
    return {
        "solver": "gradient",
        "row_norm": row_norm,
        "slope_bound": slope_bound,
        "step": step,
        "rounds": rounds,
    }


def sgd(row_norm: float, slope_bound: float, step: float, rounds: int) -> dict[str, Any]:
    """Tuned secret batches of a hundredth of the records."""
    return descent(row_norm, slope_bound, step, rounds) | {"solver": "sgd", "rate": 0.01}


GREEDY = {"rounds": 20, "clip": 0.4, "step": 1.0, "choice_share": 0.75}  # private curvatures; clip 400 in label units

EXPERIMENTS = {
    "A": Experiment(
        "Electricity, raw",
        lambda: electricity(standardised=False),
        (2.4e-3, 0.15),
        {
            "zero-out": Setting(1.5e-3, Walk(1.3, 1.2, 80, 0.5), Walk(1.3, 1.2, 80, 0.5), sgd(7.25, 1.0, 20.0, 5000)),
            "replace-one": Setting(
                2.4e-3, Walk(1.3, 1.2, 80, 0.5), Walk(1.3, 1.2, 80, 0.5), sgd(7.25, 1.0, 20.0, 5000)
            ),
        },
    ),
    "B": Experiment(
        "Electricity, standardised",
        lambda: electricity(standardised=True),
        (2.5e-3, 7.2e-3),
        {
            "zero-out": Setting(1.5e-3, Walk(1.5, 1.4, 40, 0.5), Walk(1.5, 2.0, 50, 0.5), descent(3.0, 1.0, 19.0, 150)),
            "replace-one": Setting(2e-3, Walk(1.5, 2.3, 15, 0.5), Walk(1.5, 1.8, 40, 0.5), sgd(5.0, 1.0, 4.36, 1000)),
        },
    ),
    "C": Experiment(
        "California, raw",
        lambda: california(standardised=False),
        (1.4e-2, 0.11),
        {
            "zero-out": Setting(
                1e-2, Walk(5, 0.65, 80, 1 / 80), Walk(5, 0.65, 80, 1 / 80), sgd(6000.0, 0.4, 15.0, 3000)
            ),
            "replace-one": Setting(
                1.8e-2, Walk(4, 0.5, 80, 1 / 80), Walk(4, 0.5, 80, 1 / 80), sgd(6000.0, 0.4, 15.0, 3000)
            ),
        },
    ),
    "D": Experiment(
        "California, standardised",
        lambda: california(standardised=True),
        (8e-4, 5.4e-3),
        {
            "zero-out": Setting(4e-4, Walk(10, 1.0, 3, 1 / 3), Walk(10, 1.0, 3, 1 / 3), descent(5.0, 0.7, 17.5, 6)),
            "replace-one": Setting(
                8e-4, Walk(10, 0.85, 3, 1 / 3), Walk(10, 0.85, 3, 1 / 3), descent(5.0, 0.7, 17.5, 6)
            ),
        },
    ),
    "E": Experiment(
        "sparse, 1000 x 1000",
        sparse_lasso,
        (0.37, 0.875),
        {
            "zero-out": Setting(
                0.2, Walk(300, 1.4, 2, 0.5), Walk(300, 1.4, 2, 0.5), descent(33.0, 0.2, 2200.0, 3), GREEDY
            ),
            "replace-one": Setting(
                0.5, Walk(300, 1.2, 1, 0.0), Walk(300, 1.2, 1, 0.0), descent(33.0, 0.2, 1000.0, 2), GREEDY
            ),
        },
        slow=("auto",),
    ),
}


def measure(name: str, relation: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each method."""
    experiment = EXPERIMENTS[name]
    task = experiment.make()
    best, start = task.optimum(), task.objective(np.zeros(task.X.shape[1]))
    rows = []
    for method, options in experiment.settings[relation].methods(task).items():
        if method not in arguments.methods:
            continue
        budget = {} if arguments.epsilon is None else {"epsilon": arguments.epsilon}
        figures, began = [], time.perf_counter()
        for run in range(min(arguments.runs, SLOW) if method in experiment.slow else arguments.runs):
            fitted = task.fit(relation=relation, insecure_seed=arguments.seed + run, **(options | budget))
            figures.append((task.objective(fitted) - best) / ((start - best) if task.share else best))
        rows.append(
            {
                "experiment": name,
                "relation": relation,
                "epsilon": budget.get("epsilon", task.epsilon),
                "method": method,
                "mean": float(np.mean(figures)),
                "std": float(np.std(figures)),
                "largest": float(np.max(figures)),
                "runs": len(figures),
                "seconds": (time.perf_counter() - began) / len(figures),
                "limit": experiment.settings[relation].limit,
                "published": experiment.published,
            }
        )
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """A line for each problem."""
    by = {row["method"]: row for row in rows}
    experiment = EXPERIMENTS[rows[0]["experiment"]]
    cells = [f"{by[method]['mean']:8.1e}" if method in by else " " * 8 for method in METHODS]
    published = " ".join(f"{value:8.1e}" for value in experiment.published)
    first = rows[0]
    print(
        f"{first['experiment']} {first['relation']:11s} {first['limit']:8.1e} {' '.join(cells)} {published}", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--only", nargs="+", default=list(EXPERIMENTS), choices=list(EXPERIMENTS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--relation", nargs="+", default=list(RELATIONS), choices=RELATIONS)
    parser.add_argument(
        "--epsilon", type=float, help="instead of the papers'; tuned settings and limits are for theirs"
    )
    parser.add_argument("--seed", type=int, default=1000, help="of the first run")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", help="draw the figures to this PNG file (needs the extra `plots`)")
    arguments = parser.parse_args()
    if not arguments.json:
        print("F/F* - 1, for E share of the initial error; known to DP-SGD tuned, cd and auto untuned, then published")
        heads = ("limit", *METHODS, "DP-CD", "DP-SGD")
        print(" " * 13 + " ".join(f"{head:>8s}" for head in heads))
    found = []
    for name in arguments.only:
        for relation in arguments.relation:
            try:
                rows = measure(name, relation, arguments)
            except InputError as error:
                print(f"{name}: skipped, {error}")
                break
            found += rows
            if not arguments.json:
                show(rows)
    if arguments.json:
        print(json.dumps(found, indent=2))
    if arguments.plot:
        draw(found, arguments.plot)


def draw(rows: list[dict[str, Any]], path: str) -> None:
    """One panel for each problem and relation: a bar for each method, the limit and the published figures as lines."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = list(dict.fromkeys((row["relation"], row["experiment"]) for row in rows))
    names, relations = (list(dict.fromkeys(panel[k] for panel in panels)) for k in (1, 0))
    figure, axes = plt.subplots(
        len(relations), len(names), figsize=(3.0 * len(names), 3.6 * len(relations)), squeeze=False, sharex=True
    )
    for relation, name in panels:
        axis = axes[relations.index(relation)][names.index(name)]
        mine = [row for row in rows if (row["relation"], row["experiment"]) == (relation, name)]
        places = [METHODS.index(row["method"]) for row in mine]
        axis.bar(places, [row["mean"] for row in mine], color="tab:blue")
        axis.axhline(mine[0]["limit"], color="black", label="to reach")
        for value, style, label in zip(
            mine[0]["published"], ("--", ":"), ("DP-CD, published", "DP-SGD, published"), strict=True
        ):
            axis.axhline(value, color="tab:red", linestyle=style, label=label)
        axis.set_yscale("log")
        axis.set_xticks(range(len(METHODS)), [TITLES[method] for method in METHODS], rotation=90, fontsize=7)
        axis.set_title(f"{name}: {EXPERIMENTS[name].title}\n{relation}", fontsize=8)
    for line in axes[:, 0]:
        line.set_ylabel("F/F* - 1 (E: share of the initial error)", fontsize=7)
    axes[0][0].legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
