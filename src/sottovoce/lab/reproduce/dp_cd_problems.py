"""DP-CD on the five problems of its paper (Mangold, Bellet, Salmon and Tommasi 2022).

Logistic regression on Electricity, raw and standardised; LASSO on California Housing, raw and standardised, and on
Gaussian entries. No intercept. A figure is the mean of F/F* - 1 over runs: F is the objective on the data as they are,
uncut, and F* its minimum. What tuning the settings would cost is not counted, as in the paper.

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
from sottovoce import algorithms
from sottovoce.algorithms.cd.walk import CoordinateAlgorithm, Moves, visits
from sottovoce.federation.federation import Federation
from sottovoce.lab.datasets import PublicDataset
from sottovoce.lab.reproduce import SETTINGS
from sottovoce.plan import Plan
from sottovoce.solvers import Order

Array = NDArray[np.float64]
Load = Callable[..., PublicDataset]  # of a name and a split

MARKS = 20  # of a curve


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

    def model(self, **options: Any) -> Any:
        given = {"epsilon": self.epsilon, "delta": self.delta, "alpha": self.alpha, "fit_intercept": False}
        estimator = sv.PrivateLasso if self.lasso else sv.PrivateLogisticRegression
        return estimator(**(given | self.bounds | options))

    def fit(self, **options: Any) -> Array:
        return np.ravel(self.model(**options).fit(self.X, self.y).coef_)

    def laplace_squares(self, seed: int) -> Array:
        """(1/n) sum_i min(x_ij^2, B_j) + Lap(B_j / (n epsilon)), as printed; at least the scale of the noise."""
        bound = np.broadcast_to(np.asarray(self.bounds["entry_bound"], dtype=np.float64), self.X.shape[1]) ** 2
        scale = bound / (len(self.X) * self.epsilon)
        noisy = np.minimum(self.X**2, bound).mean(axis=0) + np.random.default_rng(seed).laplace(scale=scale)
        return np.asarray(np.clip(noisy, scale, bound))

    def curve(self, **options: Any) -> dict[float, float]:
        """F by passes on the data, of the model that a run would return if it ended there; the last is its own."""
        model, federation = self.model(**options), Federation.central(self.X, self.y)
        plan, coordinator = model.plan(federation), federation.coordinator(insecure_seed=options["insecure_seed"])
        coordinator.transcript = []
        form = algorithms.of(plan)
        solution, _ = coordinator.run(plan, form)
        told = [message.payload for message in coordinator.transcript if plan.has(message.name)]
        text = form.coordinate(plan)  # once more, for what it asked
        asks = [next(text), *(text.send({"": value}) for value in told[:-1])]
        way = (_walked if isinstance(form, CoordinateAlgorithm) else _descended)(plan, asks, told)
        way[max(way)] = solution.weights
        return {at: self.objective(plan.preparation.unprepare(weights)[0]) for at, weights in way.items()}


def _walked(plan: Plan, asks: list[algorithms.Ask], told: list[Array]) -> dict[float, Array]:
    """Of coordinate descent: the mean of the last share of the iterates of the current loop so far."""
    numbers, walked, found, iterates = plan.numbers, 0, dict[float, Array](), list[Array]()
    marks = {numbers.inner * plan.rounds * k // MARKS for k in range(1, MARKS + 1)}
    for ask, sums in zip(asks, told, strict=True):
        if not ask.arrays:
            continue  # of the curvatures
        moves, weights = Moves(plan, ask.arrays["curvatures"]), np.array(ask.arrays["weights"])
        for k, j in enumerate(visits(plan, walked, len(sums))):
            iterates = iterates if walked % numbers.inner else []
            moves.replay(weights, np.array([j]), sums[k : k + 1], np.zeros(plan.dimension), 0)
            iterates.append(np.array(weights))
            walked += 1
            if walked in marks:
                kept = max(1, round(numbers.averaged / numbers.inner * len(iterates)))
                found[walked / plan.dimension] = np.mean(iterates[-kept:], axis=0)
    return found


def _descended(plan: Plan, asks: list[algorithms.Ask], _told: list[Array]) -> dict[float, Array]:
    """Of gradients: the mean of the second half of the iterates so far."""
    iterates = [ask.arrays["weights"] for ask in asks]
    marks = sorted({max(1, plan.rounds * k // MARKS) for k in range(1, MARKS + 1)})
    rate = plan.releases[0].rate or 1.0
    return {rate * mark: np.mean(iterates[mark // 2 + 1 : mark + 1] or iterates[-1:], axis=0) for mark in marks}


def electricity(load: Load, *, standardised: bool) -> Task:
    """45,312 x 8, logistic, alpha = 1/n. The bounds are public ranges of the features.

    Standardised, as in the paper, by mean and deviation read off the data; the ranges are in those units, two prices
    clipped at 15 and 60 deviations (chosen by tuning).
    """
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
    signs, n = np.where(data.y == "UP", 1.0, -1.0), len(X)
    squares = np.mean(X**2, axis=0)
    return Task(X, data.y, signs, 1 / n, 1.0, n**-2.0, {"entry_bound": bound}, squares, lasso=False)


def california(load: Load, *, standardised: bool) -> Task:
    """20,640 x 8, LASSO; the bounds are ranges that a geographer would declare, labels up to 500,001 USD.

    Standardised, as in the paper, by mean and deviation read off the data, as are the largest entries, clipped at 40
    deviations (chosen by tuning).
    """
    data = load("california_housing", "all")
    X, y = np.asarray(data.X, dtype=np.float64), np.asarray(data.y, dtype=np.float64)
    bound = np.array([15.0, 52, 20, 5, 10000, 10, 42, 125])
    if standardised:
        X = (X - X.mean(axis=0)) / X.std(axis=0)
        bound = np.minimum(np.abs(X).max(axis=0), 40.0)
    bounds, alpha = {"entry_bound": bound, "label_bound": 5.00001}, 0.1 if standardised else 1.0
    return Task(X, y, y, alpha, 1.0, len(X) ** -2.0, bounds, np.mean(X**2, axis=0), scale=5.00001)


def sparse_lasso(load: Load) -> Task:
    """1000 x 1000, ten columns informative, LASSO; drawn, since the authors' own draw is not known. Bounds declared."""
    del load
    X, y = make_regression(1000, 1000, n_informative=10, noise=1, random_state=0)
    bounds = {"entry_bound": 4.0, "row_norm": 36.0, "label_bound": 1000.0}
    return Task(X, y, y, 30.0, 10.0, 1e-6, bounds, np.ones(1000), scale=1000.0)


@dataclass(frozen=True)
class DpCd:
    """Tuned coordinate descent: C_j = clip times the root mean square of feature j, in units of the slope."""

    clip: float
    step: float
    passes: int
    averaged: float  # share of the steps whose mean is the answer

    def options(self, task: Task, *, known: bool, order: Order = "cyclic") -> dict[str, Any]:
        given: dict[str, Any] = {"curvatures": task.squares} if known else {"curvature_share": 0.1}
        given |= {"clip": self.clip / task.scale, "inner": self.passes * task.X.shape[1]}
        return {"solver": sv.solvers.CD(step=self.step, averaged=self.averaged, order=order, **given)}

    def __str__(self) -> str:
        return f"clip {self.clip:g}, step {self.step:g}, {self.passes} passes, mean of the last {self.averaged:.3g}"


@dataclass(frozen=True)
class Printed:
    """The tuned constants of the poster's algorithm; the rest is `calibration="paper"`."""

    clip: float
    step: float
    loops: int
    passes: float  # of each loop

    def options(self, task: Task, squares: Array) -> dict[str, Any]:
        inner, clip = round(self.passes * task.X.shape[1]), self.clip / task.scale
        solver = sv.solvers.CD(clip=clip, step=self.step, rounds=self.loops, inner=inner, curvatures=squares)
        return {"solver": solver, "calibration": "paper"}

    def __str__(self) -> str:
        return f"clip {self.clip:g}, step {self.step:g}, T = {self.loops}, K = {self.passes:g} p"


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
class PaperProblem:
    """A problem, its published errors (DP-CD, the same with private curvatures, DP-SGD), and what was tuned.

    `passes` is where the published curves of DP-CD and of DP-SGD end.
    """

    title: str
    make: Callable[[Load], Task]
    published: tuple[float, float | None, float]
    printed: Printed
    known: DpCd
    private: DpCd
    descent: DpSgd
    full: DpSgd | None  # with full batches, where they are better
    passes: tuple[float, float]


def read_problem(name: str, make: Callable[[Load], Task]) -> PaperProblem:
    """A problem as the settings have it."""
    said = SETTINGS["dp-cd"][name]
    known, told = DpCd(**said["known"]), said["published"]
    private = DpCd(**said["private"]) if "private" in said else known
    full = DpSgd(**said["full"]) if "full" in said else None
    published = (told["cd"], told.get("private"), told["sgd"])
    tuned = (Printed(**said["printed"]), known, private, DpSgd(**said["descent"]), full)
    return PaperProblem(said["title"], make, published, *tuned, tuple(told["passes"]))


MAKERS: dict[str, Callable[[Load], Task]] = {
    "electricity-raw": partial(electricity, standardised=False),
    "electricity-standardised": partial(electricity, standardised=True),
    "california-raw": partial(california, standardised=False),
    "california-standardised": partial(california, standardised=True),
    "sparse": sparse_lasso,
}
PROBLEMS = {name: read_problem(name, make) for name, make in MAKERS.items()}
