"""Newton's method without privacy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from sottovoce.algorithms.base import MOST_ROUNDS, Asking, Coordination, Solution, given, how_far, slope_bound, total
from sottovoce.algorithms.newton.private import PrivateNewton
from sottovoce.data.block import BlockRows
from sottovoce.gate.query import Array, Plain, Query, Reals, Round
from sottovoce.losses import Loss
from sottovoce.penalties.quadratic import ExactQuadratic, PenalisedStep
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.queries.sums import GradientSum, GramMatrix


class ExactNewtonNumbers(Numbers):
    """G, which nothing is clipped to here."""

    slope_bound: float


STILL = 1e-12  # it has converged when no step moves the scores by more than this share of their size


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

    The scale is halved until the objective falls. It ends when a step is a trifle of w, both in the norm of the sum of
    all curvatures so far, which depends neither on the units of a feature nor on those of the label.

    Guarantee: none; a party answers only where its holder allows runs without privacy.
    """

    form: ClassVar[str] = "exact"
    title: ClassVar[str] = "Newton's method with step halving, without privacy"
    private: ClassVar[bool | None] = False
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
        weights, seen = regulariser.prox(np.zeros(plan.dimension), 1.0), np.zeros((plan.dimension, plan.dimension))
        objective = yield from self.objective(plan, weights, asked)
        for t in range(plan.rounds):
            gradient = yield from total("gradient", round=next(asked), weights=weights)
            triangle = yield from total("curvature", round=next(asked), weights=weights)
            curvature = GramMatrix(plan.dimension).matrix(triangle)
            target = PenalisedStep(curvature, regulariser, plan.records, 1.0)(weights, gradient)
            model = ExactQuadratic.of(curvature, weights, gradient) if plan.scaled_loss.quadratic else None
            seen = seen + curvature
            share = relative_length(target - weights, (weights, target), seen)
            far = how_far(t + 1, share, "the last step, as a share of the scores,")
            if share <= STILL:
                break
            lower = yield from self.halve(plan, weights, target, objective, asked)
            if lower is None:
                break
            weights, objective = lower
        return Solution(weights, model=model, unfinished=far)

    @staticmethod
    def objective(plan: Plan, weights: Array, asked: Iterator[int]) -> Asking[float]:
        """sum_i l(x_i'w, y_i) + N pen(w)."""
        loss = yield from total("loss", round=next(asked), weights=weights)
        return float(loss[0]) + plan.records * plan.scaled_regulariser.value(weights)

    def halve(
        self, plan: Plan, weights: Array, target: Array, objective: float, asked: Iterator[int]
    ) -> Asking[tuple[Array, float] | None]:
        """The first point on the way back from the target at which the objective is no higher, and its value there."""
        for halvings in range(40):
            trial = weights + 0.5**halvings * (target - weights)
            reached = yield from self.objective(plan, trial, asked)
            if reached <= objective + 1e-12 * abs(objective):
                return trial, reached
        return None


def relative_length(move: Array, points: tuple[Array, ...], metric: Array) -> float:
    """|move| in the metric, as a share of the longest of the points; infinite where the metric sees none of it."""
    whole = max(float(point @ metric @ point) for point in points)
    if whole <= 0.0:
        return math.inf if move.any() else 0.0
    return math.sqrt(max(float(move @ metric @ move), 0.0) / whole)
