"""Newton's method without privacy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import MOST_ROUNDS, Ask, Coordination, Solution, given, slope_bound, summed
from sottovoce.algorithms.newton.private import PrivateNewton
from sottovoce.door.query import Plain, Query, Reals, Round
from sottovoce.losses import Loss
from sottovoce.penalties.quadratic import Metric, Quadratic
from sottovoce.plan.plan import Design, Numbers, Plan
from sottovoce.plan.problem import Problem
from sottovoce.plan.release import Release
from sottovoce.queries.gradient import GradientSum
from sottovoce.queries.gram import GramMatrix

Array = NDArray[np.float64]


class ExactNumbers(Numbers, solver="newton", form="exact"):
    """G, which nothing is clipped to here."""

    slope_bound: float


class ExactNewton(PrivateNewton):
    """w <- w + scale (u - w), u = argmin <g, u> + 1/2 |u - w|^2_H + N pen(u), H the exact curvature.

    The scale is halved until the objective falls.

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
        model = None
        losses = yield Ask("loss", {"weights": weights})
        objective = float(summed(losses)[0]) + records * regulariser.value(weights)
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
                reached = float(summed(losses)[0]) + records * regulariser.value(trial)
                if reached <= objective + 1e-12 * abs(objective):
                    break
                scale /= 2
            else:
                break
            moved = float(np.abs(trial - weights).max())
            weights, objective = trial, reached
            if moved <= 1e-12 * max(1.0, float(np.abs(weights).max())):
                break
        return Solution(weights, model=model if plan.scaled_loss.quadratic else None)


class AtWeights(Plain):
    """A sum over the records at public weights."""

    def __init__(self, loss: Loss, dimension: int) -> None:
        self.loss, self.dimension = loss, dimension

    def takes(self, plan: Plan, number: int) -> Mapping[str, Reals]:  # noqa: ARG002
        """The weights."""
        return {"weights": Reals((self.dimension,))}


class Curvature(AtWeights):
    """X' diag(l'') X as its upper triangle."""

    name = "curvature"
    title: ClassVar[str] = "curvatures of the loss"

    def value(self, round: Round) -> Array:
        """The upper triangle, row by row."""
        return round.rows.gram(round.told["weights"], self.loss.curvature)[np.triu_indices(self.dimension)]


class LossSum(AtWeights):
    """sum_i l(x_i'w, y_i)."""

    name = "loss"
    title: ClassVar[str] = "sums of the loss"

    def value(self, round: Round) -> Array:
        """One number."""
        return np.array([round.rows.scalar_sum(round.told["weights"], self.loss.value)])
