"""`newton`: gradients in the metric of one noisy Gram matrix. No learning rate, nothing to tune."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sottovoce.algorithms.base import (
    CONVEX,
    MOST_ROUNDS,
    SMOOTH,
    Algorithm,
    Array,
    Asking,
    Coordination,
    Need,
    Solution,
    TailAverage,
    given,
    how_far,
    limited,
    slope_bound,
    spread_of,
    total,
)
from sottovoce.data.block import BlockRows
from sottovoce.gate.query import Plain, Query, Reals, Round
from sottovoce.losses import Kind, Loss
from sottovoce.penalties.base import ScaledRegulariser
from sottovoce.penalties.quadratic import ExactQuadratic, PenalisedStep, Quadratic, QuadraticMetric
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


class ExactNewtonNumbers(Numbers):
    """G, which nothing is clipped to here."""

    slope_bound: float


STILL = 1e-10  # it has converged when a step lowers the objective by no more than this share of it


class AtWeights(Plain):
    """A sum over the records at public weights."""

    needs: ClassVar[type] = BlockRows

    def __init__(self, loss: Loss, dimension: int) -> None:
        self.loss, self.dimension = loss, dimension
        self.takes = {"weights": Reals((dimension,))}


class CurvatureSum(AtWeights):
    """X' diag(l'') X as its upper triangle."""

    name = "curvature"
    title: ClassVar[str] = "curvatures of the loss"

    def __init__(self, loss: Loss, dimension: int) -> None:
        super().__init__(loss, dimension)
        self.length = dimension * (dimension + 1) // 2

    def value(self, round: Round) -> Array:
        weights, curvature = round.told["weights"], self.loss.curvature
        return round.rows.over(lambda block: block.gram(weights, curvature))[np.triu_indices(self.dimension)]


class LossSum(AtWeights):
    """sum_i l(x_i'w, y_i)."""

    name = "loss"
    title: ClassVar[str] = "sums of the loss"

    def value(self, round: Round) -> Array:
        weights, value = round.told["weights"], self.loss.value
        return round.rows.over(lambda block: np.array([block.scalar_sum(weights, value)]))


class ExactNewton(PrivateNewton):
    """w <- w + scale (u - w), u = argmin <g, u> + 1/2 |u - w|^2_H + N pen(u), H the exact curvature.

    The scale is halved until the objective falls. It ends when that falls no more: weights may go on for ever, where a
    level has one class alone.

    Guarantee: none; a party answers only where its holder allows runs without privacy.
    """

    form: ClassVar[str] = "exact"
    title: ClassVar[str] = "Newton's method with step halving, without privacy"
    private: ClassVar[bool | None] = False
    kinds: ClassVar[tuple[Kind, ...]] = ("classification", "regression", "count")
    takes_weights: ClassVar[bool] = True
    numbers: ClassVar[type[Numbers]] = ExactNewtonNumbers
    asks: ClassVar[tuple[type[Query], ...]] = (GradientSum, CurvatureSum, LossSum)

    def design(self, problem: Problem, options: Any) -> Design:
        """At most 100 steps, each of them halved at most 40 times."""
        rounds, numbers = given(options.rounds, 100), ExactNewtonNumbers(slope_bound=slope_bound(problem, options))
        queries = self._queries(problem, numbers.slope_bound)
        releases = tuple(Release.of(query, 0, min(50 * rounds, MOST_ROUNDS), 0.0, 1.0) for query in queries)
        return Design(rounds=rounds, numbers=numbers, releases=releases)

    def queries(self, plan: Plan, _party: str) -> tuple[Query, ...]:
        return self._queries(plan, plan.numbers.slope_bound)

    @staticmethod
    def _queries(problem: Problem, slope: float) -> tuple[Query, ...]:
        loss, dimension = problem.scaled_loss, problem.dimension
        return GradientSum(dimension, slope, loss), CurvatureSum(loss, dimension), LossSum(loss, dimension)

    def coordinate(self, plan: Plan) -> Coordination:
        """Until the weights stand still; without privacy a stopping rule may read the data."""
        regulariser, asked = plan.scaled_regulariser, itertools.count()  # all queries share one count of rounds
        weights = regulariser.prox(np.zeros(plan.dimension), 1.0)
        objective = yield from self.objective(plan, weights, asked)
        for t in range(plan.rounds):
            gradient = yield from total("gradient", round=next(asked), weights=weights)
            triangle = yield from total("curvature", round=next(asked), weights=weights)
            curvature = GramMatrix(plan.dimension).matrix(triangle)
            target = PenalisedStep(curvature, regulariser, plan.records, 1.0)(weights, gradient)
            model = ExactQuadratic.of(curvature, weights, gradient) if plan.scaled_loss.quadratic else None
            before = objective
            weights, objective = yield from self.halve(plan, weights, target, objective, asked)
            share = (before - objective) / before if before > 0.0 else 0.0
            far = how_far(t + 1, share, "the last fall of the objective, as a share of it,", STILL)
            if share <= STILL:
                break
        return Solution(weights, model=model, unfinished=far)

    @staticmethod
    def objective(plan: Plan, weights: Array, asked: Iterator[int]) -> Asking[float]:
        """sum_i l(x_i'w, y_i) + N pen(w)."""
        loss = yield from total("loss", round=next(asked), weights=weights)
        return float(loss[0]) + plan.records * plan.scaled_regulariser.value(weights)

    def halve(
        self, plan: Plan, weights: Array, target: Array, objective: float, asked: Iterator[int]
    ) -> Asking[tuple[Array, float]]:
        """The first point on the way back from the target at which the objective is no higher, and its value there.

        Where there is none the weights stay.
        """
        for halvings in range(40):
            trial = weights + 0.5**halvings * (target - weights)
            reached = yield from self.objective(plan, trial, asked)
            if reached <= objective + 1e-12 * abs(objective):
                return trial, reached
        return weights, objective


FORMS: tuple[Algorithm, ...] = (PrivateNewton(), ExactNewton())
