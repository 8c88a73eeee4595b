"""`newton`: one noisy Gram matrix, then noisy gradients in its metric. No learning rate, nothing to tune."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sottovoce.algorithms.base import (
    CONVEX,
    MOST_ROUNDS,
    SMOOTH,
    Algorithm,
    Array,
    Coordination,
    Need,
    Solution,
    TailAverage,
    given,
    limited,
    slope_bound,
    spread_of,
    total,
)
from sottovoce.gate.query import Query
from sottovoce.penalties.base import ScaledRegulariser
from sottovoce.penalties.quadratic import Quadratic, QuadraticMetric
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.queries.joint import make_gradient_sum
from sottovoce.queries.sums import GradientSum, GramMatrix
from sottovoce.solvers import Newton

FLOOR = 0.4  # of the curvature bound: below it a step could run away


@dataclass(frozen=True)
class DampingRule:
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


RULES = {"classification": DampingRule(0.10, 200.0, 0.35), "regression": DampingRule(0.15, 20.0, 1.4)}


class NewtonDescent:
    """Steps in the metric k H + lam0 I of a released Gram matrix H; `mean` is that of the iterates from `start` on."""

    def __init__(
        self, gram: Array, damping: float, problem: Problem, regulariser: ScaledRegulariser, start: int
    ) -> None:
        values, self.vectors = np.linalg.eigh(gram)
        self.values = np.maximum(values, 0.0)
        self.damping, self.regulariser = damping, regulariser
        self.loss, self.records = problem.scaled_loss, problem.records
        self.weights = np.zeros(len(gram))
        self._tail = TailAverage(len(gram), start)

    def mean_square(self, weights: Array) -> float:
        """The mean square of the scores, w'Hw / N."""
        return float(self.values @ (self.vectors.T @ weights) ** 2) / self.records

    def step(self, number: int, gradient: Array) -> None:
        """From `weights`, at which the gradient was asked, to the next ones."""
        k = max(FLOOR * self.loss.curvature_bound, self.loss.mean_curvature(self.mean_square(self.weights)))
        metric = QuadraticMetric(k * self.values + self.damping, self.vectors)
        self.weights = metric.step(self.weights, gradient, self.regulariser, self.records)
        self._tail.add(number, self.weights)

    @property
    def mean(self) -> Array:
        """Of the second half of the iterates, if `start` is half of the rounds."""
        return self._tail.value


SOFTENING = 0.1  # of the damping: enough where a path leaves the weights at which gradients were asked


class NewtonNumbers(Numbers):
    """G and lam0."""

    slope_bound: float
    damping: float


class PrivateNewton(Algorithm):
    """w <- argmin <g, u> + 1/2 |u - w|^2_M + N pen(u), M = k H + lam0 I.

    H = X'X + symmetric noise, released once with the share `gram_share` of mu^2; g = gradient sum + noise, `rounds`
    times. k is the mean curvature of the loss at scores of the variance w'Hw/N, and lam0 is public:
    max(rounds s0 d / c1, c2 std_H sqrt d, std_g^2 d / N), s0 = std_g / sqrt(rounds), (c1, c2) = (200, 0.35) for
    classification and (20, 1.4) for regression; the last term holds the steps back where records are few for the noise.
    Everything after the two releases is post-processing.

    Guarantee: mu^2 = (Delta_H / std_H)^2 + rounds (Delta_g / std_g)^2, exactly (`proof.md`).
    """

    name: ClassVar[str] = "newton"
    form: ClassVar[str] = "private"
    title: ClassVar[str] = "private Newton: one noisy Gram matrix, noisy gradients in its metric"
    secure = ("rows", "columns")
    weighted: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = (CONVEX, SMOOTH)
    numbers: ClassVar[type[Numbers]] = NewtonNumbers
    asks: ClassVar[tuple[type[Query], ...]] = (GradientSum, GramMatrix)

    def design(self, problem: Problem, options: Newton) -> Design:
        gradient = make_gradient_sum(problem, slope_bound(problem, options))
        gram, rule = GramMatrix(problem.dimension, problem.row_square), RULES[gradient.loss.kind]
        share = given(options.gram_share, rule.gram_share)
        rounds = limited("rounds", given(options.rounds, 64), 2, MOST_ROUNDS)
        releases = (
            Release.at_mu(gram, 0, 1, math.sqrt(share) * problem.mu, problem.relation),
            Release.at_mu(gradient, 1, rounds, math.sqrt(1 - share) * problem.mu, problem.relation),
        )
        std_gram, std_gradient = (release.std * math.sqrt(problem.channel.variance) for release in releases)
        damping = rule.damping(problem.dimension, problem.records, rounds, std_gram, std_gradient)
        numbers = NewtonNumbers(slope_bound=gradient.slope_bound, damping=damping)
        return Design(rounds=rounds, numbers=numbers, releases=releases)

    def queries(self, plan: Plan, _party: str) -> tuple[Query, ...]:
        return make_gradient_sum(plan, plan.numbers.slope_bound), GramMatrix(plan.dimension, plan.row_square)

    def coordinate(self, plan: Plan) -> Coordination:
        """Steps in the metric of the released Gram matrix; the mean of the second half of the iterates."""
        damping, query = plan.numbers.damping, make_gradient_sum(plan, plan.numbers.slope_bound)
        gram = GramMatrix(plan.dimension).matrix((yield from total("gram")))
        descent = NewtonDescent(gram, damping, plan, plan.scaled_regulariser, plan.rounds // 2)
        centre, slope = TailAverage(plan.dimension, 0), TailAverage(plan.dimension, 0)
        for t in range(plan.rounds):
            gradient = yield from total("gradient", **query.message(descent.weights, gram))
            centre.add(t, descent.weights)
            slope.add(t, gradient)
            descent.step(t, gradient)
        metric = QuadraticMetric(descent.values + SOFTENING * damping, descent.vectors)
        model = Quadratic(metric, centre.value, slope.value)
        spread = spread_of(gram / plan.records, descent.mean, plan.preparation.intercept_entry)
        return Solution(descent.mean, model=model if plan.scaled_loss.quadratic else None, spread=spread)
