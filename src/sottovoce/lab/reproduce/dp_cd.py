"""DP-CD on the five problems of its paper (Mangold, Bellet, Salmon and Tommasi 2022).

Logistic regression on Electricity, raw and standardised, alpha = 1/n. LASSO on California Housing, raw (alpha = 1) and
standardised (alpha = 0.1). LASSO on 1000 x 1000 Gaussian entries, ten columns informative (alpha = 30). No intercept.
Epsilon = 1 and delta = 1/n^2; for the last epsilon = 10 and delta = 1e-6. A figure is the mean of F/F* - 1 over runs: F
is the objective on the data as they are, uncut, and F* its minimum.

Settings were chosen with other seeds than the figures' own, 1000 and on; what tuning itself would cost is not counted,
as in the paper. What the bounds rest on:
* Electricity, raw: public ranges of the features (declared).
* Electricity, standardised: mean and deviation of each column are read off the data, as in the paper; the bounds are
  the public ranges in those units, the two prices clipped at 15 and 60 deviations (chosen by tuning).
* California, raw: ranges a geographer would declare, labels up to 500,001 USD (declared).
* California, standardised: mean, deviation and largest entry of each column are read off the data, the last clipped at
  40 deviations (chosen by tuning); labels up to 500,001 USD (declared).
* sparse: entries up to 4, rows up to 36, labels up to 1000 (declared).
"Known curvatures" takes the mean square of each feature as public: read off the raw data; by standardising, or by
design, it is 1. "Private" spends a tenth of the budget on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_regression
from sklearn.linear_model import Lasso, LogisticRegression

import sottovoce as sv
from sottovoce.federation.federation import Federation
from sottovoce.lab.datasets import PublicDataset
from sottovoce.lab.reproduce import Paper, PaperTable, Row, Setup, true_epsilon
from sottovoce.solvers import Order

Array = NDArray[np.float64]
Load = Callable[..., PublicDataset]  # of a name and a split

SEED = 1000  # of the first run
RUNS = {"DP-SGD": 5}  # as it is slow; 10 otherwise


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

    def objective(self, w: Array) -> float:
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
        given = {"epsilon": self.epsilon, "delta": self.delta, "alpha": self.alpha, "fit_intercept": False}
        estimator = sv.PrivateLasso if self.lasso else sv.PrivateLogisticRegression
        return np.ravel(estimator(**(given | self.bounds | options)).fit(self.X, self.y).coef_)


def electricity(load: Load, *, standardised: bool) -> Task:
    """45,312 x 8, logistic."""
    data = load("electricity", "all")
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


def california(load: Load, *, standardised: bool) -> Task:
    """20,640 x 8, LASSO."""
    data = load("california_housing", "all")
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


def sparse_lasso(load: Load) -> Task:
    """1000 x 1000, LASSO; drawn, since the authors' own draw is not known."""
    del load
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
    )


@dataclass(frozen=True)
class DpCd:
    """Tuned coordinate descent: C_j = clip times the root mean square of feature j, in units of the slope."""

    clip: float
    step: float
    passes: int
    averaged: float  # share of the steps whose mean is the answer

    def options(self, task: Task, *, known: bool, order: Order = "cyclic") -> dict[str, Any]:
        return {
            "solver": sv.solvers.CD(
                clip=self.clip / task.scale,
                step=self.step,
                inner=self.passes * task.X.shape[1],
                averaged=self.averaged,
                order=order,
                curvatures=task.squares if known else None,
                curvature_share=0.0 if known else 0.1,
            )
        }

    def __str__(self) -> str:
        return f"clip {self.clip:g}, step {self.step:g}, {self.passes} passes, mean of the last {self.averaged:.3g}"


@dataclass(frozen=True)
class DpSgd:
    """Tuned full gradients, or with `rate` secret batches; rows beyond the norm are scaled back."""

    row_norm: float
    slope_bound: float
    step: float
    rounds: int
    rate: float | None = None

    def options(self) -> dict[str, Any]:
        tuned = {name: getattr(self, name) for name in ("slope_bound", "step", "rounds")}
        solver = sv.solvers.Gradient(**tuned) if self.rate is None else sv.solvers.SGD(rate=self.rate, **tuned)
        return {"entry_bound": None, "row_norm": self.row_norm, "solver": solver}

    def __str__(self) -> str:
        batches = "full batches" if self.rate is None else f"rate {self.rate:g}"
        cuts = f"rows to {self.row_norm:g}, slopes to {self.slope_bound:g}"
        return f"{batches}, {cuts}, step {self.step:g}, {self.rounds} rounds"


@dataclass(frozen=True)
class Tuned:
    """What was tuned for one relation."""

    known: DpCd
    private: DpCd
    descent: DpSgd


@dataclass(frozen=True)
class PaperProblem:
    """A problem, its published errors (DP-CD, DP-CD with private curvatures, DP-SGD) and the tuned settings."""

    title: str
    make: Callable[[Load], Task]
    published: tuple[float, float | None, float]
    tuned: dict[str, Tuned]
    printed: DpCd  # for random coordinates and the printed noise


PROBLEMS = {
    "electricity-raw": PaperProblem(
        "Electricity, raw",
        partial(electricity, standardised=False),
        (2.4e-3, 2.4e-3, 0.15),
        {
            relation: Tuned(DpCd(1.3, 1.2, 80, 0.5), DpCd(1.3, 1.2, 80, 0.5), DpSgd(7.25, 1.0, 20.0, 5000, rate=0.01))
            for relation in ("zero-out", "replace-one")
        },
        DpCd(1.3, 2.0, 50, 0.5),
    ),
    "electricity-standardised": PaperProblem(
        "Electricity, standardised",
        partial(electricity, standardised=True),
        (2.5e-3, None, 7.2e-3),
        {
            "zero-out": Tuned(DpCd(1.5, 1.4, 40, 0.5), DpCd(1.5, 2.0, 50, 0.5), DpSgd(3.0, 1.0, 19.0, 150)),
            "replace-one": Tuned(
                DpCd(1.5, 2.3, 15, 0.5), DpCd(1.5, 1.8, 40, 0.5), DpSgd(5.0, 1.0, 4.36, 1000, rate=0.01)
            ),
        },
        DpCd(1.5, 1.8, 50, 0.5),
    ),
    "california-raw": PaperProblem(
        "California, raw",
        partial(california, standardised=False),
        (1.4e-2, 1.7e-2, 0.11),
        {
            "zero-out": Tuned(
                DpCd(5, 0.65, 80, 1 / 80), DpCd(5, 0.65, 80, 1 / 80), DpSgd(6000.0, 0.4, 15.0, 3000, rate=0.01)
            ),
            "replace-one": Tuned(
                DpCd(4, 0.5, 80, 1 / 80), DpCd(4, 0.5, 80, 1 / 80), DpSgd(6000.0, 0.4, 15.0, 3000, rate=0.01)
            ),
        },
        DpCd(5, 0.3, 50, 1 / 50),
    ),
    "california-standardised": PaperProblem(
        "California, standardised",
        partial(california, standardised=True),
        (8e-4, None, 5.4e-3),
        {
            "zero-out": Tuned(DpCd(10, 1.0, 3, 1 / 3), DpCd(10, 1.0, 3, 1 / 3), DpSgd(5.0, 0.7, 17.5, 6)),
            "replace-one": Tuned(DpCd(10, 0.85, 3, 1 / 3), DpCd(10, 0.85, 3, 1 / 3), DpSgd(5.0, 0.7, 17.5, 6)),
        },
        DpCd(10, 0.3, 20, 0.3),
    ),
    "sparse": PaperProblem(
        "sparse, 1000 x 1000",
        sparse_lasso,
        (0.32, None, 0.875),
        {
            "zero-out": Tuned(DpCd(300, 1.4, 2, 0.5), DpCd(300, 1.4, 2, 0.5), DpSgd(33.0, 0.2, 2200.0, 3)),
            "replace-one": Tuned(DpCd(300, 1.2, 1, 0.0), DpCd(300, 1.2, 1, 0.0), DpSgd(33.0, 0.2, 1000.0, 2)),
        },
        DpCd(300, 1.2, 1, 0.01),
    ),
}


def errors(name: str, setup: Setup) -> PaperTable:
    """F/F* - 1 of DP-CD as printed, of `cd` and of DP-SGD, replace-one."""
    problem = PROBLEMS[name]
    task = problem.make(setup.load)
    best, start = task.optimum(), task.objective(np.zeros(task.X.shape[1]))
    tuned = problem.tuned["replace-one"]
    published, private, sgd = problem.published
    printed = problem.printed.options(task, known=True, order="random") | {"calibration": "paper"}
    methods: list[tuple[str, float | None, dict[str, Any], str]] = [
        ("DP-CD as printed", published, printed, f"calibration='paper', order='random', {problem.printed}"),
        ("DP-CD", published, tuned.known.options(task, known=True), f"solver='cd', {tuned.known}"),
        (
            "DP-CD, private curvatures",
            private,
            tuned.private.options(task, known=False),
            f"solver='cd', {tuned.private}",
        ),
        ("DP-SGD", sgd, tuned.descent.options(), str(tuned.descent)),
    ]
    rows = []
    for series, value, options, how in methods:
        runs = setup.of(RUNS.get(series, 10), 2)
        figures = []
        for run in range(runs):
            setup.say(f"{problem.title}: {series}, run {run + 1} of {runs}")
            fitted = task.fit(relation="replace-one", insecure_seed=SEED + run, **options)
            figures.append(task.objective(fitted) / best - 1)
        mean, spread = float(np.mean(figures)), float(np.std(figures))
        rows.append(Row("", series, value, mean, f"{how}; {runs} runs", spread))
    note = (
        f"Epsilon = {task.epsilon:g}, delta = {task.delta:.2g}, replace-one. The zero model has {start / best - 1:.4g}"
    )
    if name == "sparse":
        shares = ", ".join(f"{row.at} {row.ours / (start / best - 1):.2f}" for row in rows)
        note += f" on this draw, 0.875 in the paper; as shares of it: published 0.37 and 1.00, here {shares}"
    return PaperTable(problem.title, "Relative error F/F* - 1", "method", tuple(rows), log=True, note=note + ".")


CLAIMS = ((1000, 0.1), (1000, 1.0), (1000, 10.0), (10_000, 1.0), (10_000, 10.0))
LOOPS = 100  # inner steps


def compare_dp_cd_claims(setup: Setup) -> PaperTable:
    """The true epsilon of the printed noise, delta = n^-2, by the plans of `calibration="paper"`."""
    del setup
    rows = []
    for counted, wanted in (("all", CLAIMS), ("outer", ((1000, 0.1), (1000, 1.0)))):
        series = "every step counted" if counted == "all" else f"T as printed, {LOOPS} inner steps"
        for n, claimed in wanted:
            for relation in ("zero-out", "replace-one"):
                options: dict[str, Any] = {"inner": LOOPS, "counted": counted, "curvatures": np.ones(2)}
                model = sv.PrivateLogisticRegression(
                    claimed,
                    delta=n**-2.0,
                    relation=relation,
                    entry_bound=1.0,
                    classes=(0, 1),
                    solver=sv.solvers.CD(curvature_share=0.0, **options),
                    calibration="paper",
                )
                true = true_epsilon(model, Federation.central(np.ones((n, 2)), np.arange(n) % 2), "world")
                how = f"calibration='paper', counted={counted!r}"
                rows.append(Row(series, f"n = {n:,}, {relation}", claimed, true, how))
    return PaperTable(
        "True epsilon of the printed noise", "Epsilon", "setting", tuple(rows), ("claimed", "true"), log=True
    )


PAPER = Paper(
    "P. Mangold, A. Bellet, J. Salmon and M. Tommasi (2022), Differentially Private Coordinate Descent for Composite "
    "Empirical Risk Minimization. The published errors were read off the figures of the paper, at their right end.",
    {**{name: partial(errors, name) for name in PROBLEMS}, "claims": compare_dp_cd_claims},
    (
        "The draw of the sparse problem, the weight of the Electricity penalty and the tuned steps, clips and passes "
        "are not in the paper: make_regression(1000, 1000, n_informative=10, noise=1), 1/n and settings tuned here "
        "stand in.",
        "The curves on the way: only the errors at the end were read off the figures.",
    ),
)
