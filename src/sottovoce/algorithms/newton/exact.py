"""Newton's method without privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import MOST_ROUNDS, Ask, Coordination, Solution, given, how_far, slope_bound, summed
from sottovoce.algorithms.newton.private import PrivateNewton
from sottovoce.data.block import BlockRows
from sottovoce.door.query import Plain, Query, Reals, Round, Told
from sottovoce.losses import Loss
from sottovoce.penalties.quadratic import ExactQuadratic, PenalisedStep
from sottovoce.plan.plan import Design, Numbers, Plan
from sottovoce.plan.problem import Problem
from sottovoce.plan.release import Release
from sottovoce.queries.gradient import GradientSum
from sottovoce.queries.gram import GramMatrix

Array = NDArray[np.float64]


class ExactNumbers(Numbers, solver="newton", form="exact"):
    """G, which nothing is clipped to here."""

    slope_bound: float


STILL = 1e-12  # it has converged when no step moves the scores by more than this share of their size


class ExactNewton(PrivateNewton):
    """w <- w + scale (u - w), u = argmin <g, u> + 1/2 |u - w|^2_H + N pen(u), H the exact curvature.

    The scale is halved until the objective falls. It ends when a step is a trifle of w, both in the norm of the sum of
    all curvatures so far, which depends neither on the units of a feature nor on those of the label.

    Guarantee: none; a party answers only where its holder allows runs without privacy.
    """

    form: ClassVar[str] = "exact"
    title: ClassVar[str] = "Newton's method with step halving, without privacy"
    private: ClassVar[bool | None] = False
    numbers: ClassVar[type[ExactNumbers]] = ExactNumbers

    def design(self, problem: Problem, options: Any) -> Design:
        """At most 100 steps, each of them halved at most 40 times."""
        rounds, numbers = given(options.rounds, 100), self.numbers(slope_bound=slope_bound(problem, options))
        queries = self._queries(problem, numbers.slope_bound)
        releases = tuple(Release.of(query, 0, min(50 * rounds, MOST_ROUNDS), 0.0, 1.0) for query in queries)
        return Design(rounds=rounds, numbers=numbers, releases=releases)

    @classmethod
    def asks(cls) -> tuple[type[Query], ...]:
        return GradientSum, Curvature, LossSum

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:  # noqa: ARG002
        """Gradient, curvature and loss, as they are."""
        return self._queries(plan, plan.numbers.slope_bound)

    @staticmethod
    def _queries(problem: Problem, slope: float) -> tuple[Query, ...]:
        loss, dimension = problem.scaled_loss, problem.dimension
        return GradientSum(dimension, slope, loss), Curvature(loss, dimension), LossSum(loss, dimension)

    def coordinate(self, plan: Plan) -> Coordination:
        """Until the weights stand still; without privacy a stopping rule may read the data."""
        regulariser, records = plan.scaled_regulariser, plan.records
        weights = regulariser.prox(np.zeros(plan.dimension), 1.0)
        model, share, seen, taken = None, math.inf, np.zeros((plan.dimension, plan.dimension)), 0
        losses = yield Ask("loss", {"weights": weights})
        objective = float(summed(losses)[0]) + records * regulariser.value(weights)
        for _ in range(plan.rounds):
            taken += 1
            gradients = yield Ask("gradient", {"weights": weights})
            triangles = yield Ask("curvature", {"weights": weights})
            curvature = GramMatrix(plan.dimension).matrix(summed(triangles))
            target = PenalisedStep(curvature, regulariser, records, 1.0)(weights, summed(gradients))
            if plan.scaled_loss.quadratic:
                model = ExactQuadratic.of(curvature, weights, summed(gradients))
            seen, scale = seen + curvature, 1.0
            share = relative_length(target - weights, (weights, target), seen)
            if share <= STILL:
                break
            for _ in range(40):
                trial = weights + scale * (target - weights)
                losses = yield Ask("loss", {"weights": trial})
                reached = float(summed(losses)[0]) + records * regulariser.value(trial)
                if reached <= objective + 1e-12 * abs(objective):
                    break
                scale /= 2
            else:
                break
            weights, objective = trial, reached
        far = how_far(taken, share, "the last step, as a share of the scores,")
        return Solution(weights, model=model, unfinished=far)


def relative_length(move: Array, points: tuple[Array, ...], metric: Array) -> float:
    """|move| in the metric, as a share of the longest of the points; infinite where the metric sees none of it."""
    whole = max(float(point @ metric @ point) for point in points)
    if whole <= 0.0:
        return math.inf if move.any() else 0.0
    return math.sqrt(max(float(move @ metric @ move), 0.0) / whole)


class AtWeights(Plain):
    """A sum over the records at public weights."""

    needs: ClassVar[type] = BlockRows

    def __init__(self, loss: Loss, dimension: int) -> None:
        self.loss, self.dimension = loss, dimension

    def takes(self, plan: Plan, number: int) -> Mapping[str, Reals]:  # noqa: ARG002
        """The weights."""
        return {"weights": Reals((self.dimension,))}


class Curvature(AtWeights):
    """X' diag(l'') X as its upper triangle."""

    name = "curvature"
    title: ClassVar[str] = "curvatures of the loss"

    def gives(self, plan: Plan, number: int, told: Told) -> Reals:  # noqa: ARG002
        """The upper triangle."""
        return Reals((self.dimension * (self.dimension + 1) // 2,))

    def value(self, round: Round) -> Array:
        """The upper triangle, row by row."""
        weights, curvature = round.told["weights"], self.loss.curvature
        return round.rows.over(lambda block: block.gram(weights, curvature))[np.triu_indices(self.dimension)]


class LossSum(AtWeights):
    """sum_i l(x_i'w, y_i)."""

    name = "loss"
    title: ClassVar[str] = "sums of the loss"

    def value(self, round: Round) -> Array:
        """One number."""
        weights, value = round.told["weights"], self.loss.value
        return round.rows.over(lambda block: np.array([block.scalar_sum(weights, value)]))
