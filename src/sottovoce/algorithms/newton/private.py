"""`newton`: one noisy Gram matrix, then noisy gradients in its metric. No learning rate, nothing to tune."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import (
    MOST_ROUNDS,
    Algorithm,
    Ask,
    Coordination,
    Design,
    Problem,
    Solution,
    TailAverage,
    gradient_query,
    option,
    public_gradient,
    summed,
)
from sottovoce.door.query import Curvature, GramMatrix, LossSum, Query
from sottovoce.losses import Loss
from sottovoce.plan.plan import Plan, Release, ScaledRegulariser, Split

Array = NDArray[np.float64]
SOFTENING = 0.1  # of the damping: enough where a path leaves the weights at which gradients were asked
FLOOR = 0.4  # of the curvature bound: below it a step could run away


class Newton(Algorithm):
    """w <- argmin <g, u> + 1/2 |u - w|^2_M + N pen(u), M = k H + lam0 I.

    H = X'X + symmetric noise, released once with the share `gram_share` of mu^2; g = gradient sum + noise, `rounds`
    times. k is the mean curvature of the loss at scores of the variance w'Hw/N, and lam0 is public:
    max(rounds s0 d / c1, c2 std_H sqrt d, std_g^2 d / N), s0 = std_g / sqrt(rounds), (c1, c2) = (200, 0.35) for
    classification and (20, 1.4) for regression; the last term holds the steps back where records are few for the noise.
    Everything after the two releases is post-processing.

    Guarantee: mu^2 = (Delta_H / std_H)^2 + rounds (Delta_g / std_g)^2, exactly (`proof.md`).
    Without privacy (epsilon = inf) it is Newton's method with the exact curvature and step halving.
    """

    name: ClassVar[str] = "newton"
    title: ClassVar[str] = "private Newton: one noisy Gram matrix, noisy gradients in its metric"
    needs_smooth: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...]] = ("rounds", "gram_share", "slope_bound")

    def mismatch(self, loss: Loss, split: Split) -> str | None:
        """A curvature that may be negative is no metric."""
        if not loss.convex:
            return f"solver={self.name!r} needs a convex loss and {loss.name!r} is not"
        return super().mismatch(loss, split)

    def design(self, problem: Problem) -> Design:
        """The rule above; it needs no tuning."""
        gradient, gram = public_gradient(problem), GramMatrix(problem.dimension)
        numbers = {"slope_bound": gradient.slope_bound}
        if math.isinf(problem.epsilon):
            rounds = option(problem, "rounds", 100, low=1, whole=True)
            exact: list[Query] = [
                gradient,
                Curvature(gradient.loss, problem.dimension),
                LossSum(gradient.loss),
            ]
            most = min(50 * rounds, MOST_ROUNDS)
            return Design(rounds, numbers, tuple(Release.of(q, 0, most, 0.0, 1.0) for q in exact))
        rule = RULES[gradient.loss.kind]
        share = option(problem, "gram_share", rule.gram_share, low=1e-6, high=1 - 1e-6)
        rounds = option(problem, "rounds", 64, low=2, whole=True)
        releases = (
            Release.at_mu(gram, 0, 1, math.sqrt(share) * problem.mu, problem.relation),
            Release.at_mu(gradient, 1, rounds, math.sqrt(1 - share) * problem.mu, problem.relation),
        )
        parties = math.sqrt(len(problem.parties))
        std_gram, std_gradient = (release.std * parties for release in releases)
        damping = rule.damping(problem.dimension, problem.records, rounds, std_gram, std_gradient)
        return Design(rounds, {**numbers, "damping": damping}, releases)

    def queries(self, plan: Plan) -> dict[str, Query]:
        """The Gram matrix and the gradient sum; without privacy also curvature and loss."""
        queries: list[Query] = [gradient_query(plan), GramMatrix(plan.dimension)]
        if not plan.private:
            queries += [Curvature(plan.scaled_loss, plan.dimension), LossSum(plan.scaled_loss)]
        return {query.name: query for query in queries}

    def coordinate(self, plan: Plan) -> Coordination:
        """Steps in the metric of the released Gram matrix; the mean of the second half of the iterates."""
        if not plan.private:
            return (yield from _exact_newton(plan))
        triangles = yield Ask("gram", {"weights": np.zeros(plan.dimension)})
        gram = GramMatrix(plan.dimension).matrix(summed(triangles))
        descent = Descent(
            gram, plan["damping"], plan.scaled_loss, plan.scaled_regulariser, plan.records, plan.rounds // 2
        )
        centre, slope = TailAverage(plan.dimension, 0), TailAverage(plan.dimension, 0)
        for t in range(plan.rounds):
            gradients = yield Ask("gradient", {"weights": descent.weights})
            centre.add(t, descent.weights)
            slope.add(t, summed(gradients))
            descent.step(t, summed(gradients))
        metric = Metric(descent.values + SOFTENING * plan["damping"], descent.vectors)
        model = Quadratic(metric, centre.value, slope.value)
        return Solution(descent.mean, model=model if plan.scaled_loss.name == "squared" else None)


@dataclass(frozen=True)
class Rule:
    """The constants of the rule for one kind of loss."""

    gram_share: float
    per_round: float
    per_gram: float

    def damping(self, dimension: int, records: int, rounds: int, std_gram: float, std_gradient: float) -> float:
        """lam0, from public numbers."""
        return max(
            std_gradient * math.sqrt(rounds) * dimension / self.per_round,
            self.per_gram * std_gram * math.sqrt(dimension),
            std_gradient**2 * dimension / records,
        )


RULES = {"classification": Rule(0.10, 200.0, 0.35), "regression": Rule(0.15, 20.0, 1.4)}


class Descent:
    """Steps in the metric k H + lam0 I of a released Gram matrix H; `mean` is that of the iterates from `start` on."""

    def __init__(
        self, gram: Array, damping: float, loss: Loss, regulariser: ScaledRegulariser, records: int, start: int
    ) -> None:
        values, self.vectors = np.linalg.eigh(gram)
        self.values = np.maximum(values, 0.0)
        self.damping, self.loss, self.regulariser, self.records = damping, loss, regulariser, records
        self.weights = np.zeros(len(gram))
        self._tail = TailAverage(len(gram), start)

    def mean_square(self, weights: Array) -> float:
        """The mean square of the scores, w'Hw / N."""
        return float(self.values @ (self.vectors.T @ weights) ** 2) / self.records

    def step(self, round_: int, gradient: Array) -> None:
        """From `weights`, at which the gradient was asked, to the next ones."""
        k = max(FLOOR * self.loss.curvature_bound, self.loss.mean_curvature(self.mean_square(self.weights)))
        metric = Metric(k * self.values + self.damping, self.vectors)
        self.weights = metric.step(self.weights, gradient, self.regulariser, self.records)
        self._tail.add(round_, self.weights)

    @property
    def mean(self) -> Array:
        """The answer."""
        return self._tail.value


@dataclass(frozen=True)
class Quadratic:
    """1/2 |u - centre|^2_M + <gradient, u - centre>: a sum of squared losses as far as its releases tell.

    The gradient of a squared loss is linear, so the mean of the released ones belongs to the mean of the weights they
    were asked at. A function of released values: minimising it for any number of penalties costs nothing.
    """

    metric: Metric
    centre: Array
    gradient: Array

    def minimise(self, regulariser: ScaledRegulariser, records: int) -> Array:
        """Argmin over u of this + records * regulariser(u)."""
        return self.metric.step(self.centre, self.gradient, regulariser, records)

    def slope_at_zero(self) -> Array:
        """Its gradient at u = 0."""
        vectors = self.metric.vectors
        return self.gradient - vectors @ (self.metric.values * (vectors.T @ self.centre))


class Metric:
    """M = V diag(values) V', positive definite."""

    def __init__(self, values: Array, vectors: Array) -> None:
        self.values = values
        self.vectors = vectors

    def step(self, weights: Array, gradient: Array, regulariser: ScaledRegulariser, records: int) -> Array:
        """argmin_u <gradient, u - w> + 1/2 |u - w|^2_M + records * regulariser(u)."""
        free = weights - self.vectors @ ((self.vectors.T @ gradient) / self.values)
        if regulariser.is_none:
            return free
        matrix = (self.vectors * self.values) @ self.vectors.T
        if regulariser.ridge is not None:
            ridge = np.zeros(len(weights))
            ridge[: regulariser.features] = records * regulariser.ridge
            return np.asarray(np.linalg.solve(matrix + np.diag(ridge), matrix @ free))
        return self._proximal(matrix, free, weights, regulariser, records)

    def _proximal(
        self, matrix: Array, free: Array, start: Array, regulariser: ScaledRegulariser, records: int
    ) -> Array:
        """Accelerated proximal gradient on 1/2 |u - free|^2_M + records pen(u), with restarts."""
        step = 1.0 / float(self.values.max())
        point = momentum = start
        speed = 1.0
        for _ in range(5000):
            fresh = regulariser.prox(momentum - step * (matrix @ (momentum - free)), step * records)
            faster = (1 + math.sqrt(1 + 4 * speed * speed)) / 2
            moved = fresh - point
            restart = float((momentum - fresh) @ moved) > 0
            momentum = fresh if restart else fresh + (speed - 1) / faster * moved
            speed = 1.0 if restart else faster
            point = fresh
            if np.abs(moved).max() <= 1e-12 * max(1.0, np.abs(fresh).max()):
                break
        return point


def _exact_newton(plan: Plan) -> Coordination:
    """Newton's method with step halving; without privacy a stopping rule may read the data."""
    regulariser, records = plan.scaled_regulariser, plan.records
    weights = regulariser.prox(np.zeros(plan.dimension), 1.0)
    model = None
    losses = yield Ask("loss", {"weights": weights})
    objective = float(sum(losses.values())[0]) + records * regulariser.value(weights)  # type: ignore[index]
    for _ in range(plan.rounds):
        gradients = yield Ask("gradient", {"weights": weights})
        triangles = yield Ask("curvature", {"weights": weights})
        values, vectors = np.linalg.eigh(GramMatrix(plan.dimension).matrix(summed(triangles)))
        metric = Metric(np.maximum(values, 1e-9 * max(values.max(), 1.0)), vectors)
        target = metric.step(weights, summed(gradients), regulariser, records)
        model = Quadratic(metric, weights, summed(gradients))
        scale = 1.0
        for _ in range(40):
            trial = weights + scale * (target - weights)
            losses = yield Ask("loss", {"weights": trial})
            reached = float(sum(losses.values())[0]) + records * regulariser.value(trial)  # type: ignore[index]
            if reached <= objective + 1e-12 * abs(objective):
                break
            scale /= 2
        else:
            break
        moved = float(np.abs(trial - weights).max())
        weights, objective = trial, reached
        if moved <= 1e-12 * max(1.0, float(np.abs(weights).max())):
            break
    return Solution(weights, model=model if plan.scaled_loss.name == "squared" else None)
