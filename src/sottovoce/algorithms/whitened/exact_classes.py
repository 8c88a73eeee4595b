"""Several classes without noise: accelerated steps in the metric of a bound of the curvature."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Algorithm, Ask, Coordination, Solution, given, how_far, summed
from sottovoce.algorithms.whitened.classes import centred, check_penalty
from sottovoce.door.query import Plain, Query, Round
from sottovoce.penalties.quadratic import Metric
from sottovoce.plan.plan import Design, Numbers, Plan
from sottovoce.plan.problem import Problem
from sottovoce.plan.release import Release
from sottovoce.queries.gradient import ClassesGradient

Array = NDArray[np.float64]

ROUNDS = 2000
STILL = 1e-9  # it has converged when no step moves the scores by more than this share of their size


class ExactClassesNumbers(Numbers, solver="whitened", form="exact-classes"):
    """None."""


class ExactClasses(Algorithm):
    """W <- prox(V - M^-1 g(V)), V = W + momentum (W - W before), M = X'X / 2, begun anew when a step turns back.

    diag(p) - p p' <= 1/2, so X'X / 2 is above every curvature (Boehning 1992), whatever the columns' units are.

    Guarantee: none; a party answers only where its holder allows runs without privacy.
    """

    name: ClassVar[str] = "whitened"
    form: ClassVar[str] = "exact-classes"
    title: ClassVar[str] = "accelerated descent for several classes, without privacy"
    private: ClassVar[bool | None] = False
    several: ClassVar[bool] = True

    def design(self, problem: Problem, options: Any) -> Design:
        """At most 2000 rounds, by default."""
        check_penalty(problem)
        rounds = given(options.rounds, ROUNDS)
        products, gradient = self._queries(problem)
        releases = (Release.of(products, 0, 1, 0.0, 1.0), Release.of(gradient, 1, rounds, 0.0, 1.0))
        return Design(rounds=rounds, numbers=ExactClassesNumbers(), releases=releases)

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:  # noqa: ARG002
        """Products of columns and gradients, as they are."""
        return self._queries(plan)

    @staticmethod
    def _queries(problem: Problem) -> tuple[Query, Query]:
        return Products(problem.dimension), ClassesGradient(problem.dimension, problem.scaled_loss)

    def coordinate(self, plan: Plan) -> Coordination:
        """Until the weights stand still."""
        d, outputs = plan.dimension, plan.scaled_loss.outputs
        values, vectors = np.linalg.eigh(summed((yield Ask("products"))).reshape(d, d))
        values = np.maximum(values / 2, 1e-12 * max(float(values.max()), 1e-300))
        metric, weights = Metric(values, vectors), np.zeros((d, outputs))
        ahead, speed, size, share = weights, 1.0, 0.0, math.inf

        def length(move: Array) -> float:
            return math.sqrt(float(values @ (vectors.T @ move) ** 2 @ np.ones(outputs)))

        for asked in range(1, plan.rounds + 1):
            gradient = summed((yield Ask("gradient", {"weights": ahead.ravel()}))).reshape(d, outputs)
            steps = zip(ahead.T, gradient.T, strict=True)
            fresh = np.column_stack([metric.step(w, g, plan.scaled_regulariser, plan.records) for w, g in steps])
            moved, turned = fresh - weights, float(np.sum((ahead - fresh) * (fresh - weights))) > 0.0
            faster = 1.0 if turned else (1 + math.sqrt(1 + 4 * speed * speed)) / 2
            size = max(size, length(fresh))
            share = max(length(moved), length(fresh - ahead)) / size if size > 0.0 else 0.0
            ahead = fresh + (0.0 if faster == 1.0 else (speed - 1) / faster) * moved
            weights, speed = fresh, faster
            if share <= STILL or asked == plan.rounds:
                break
        found = centred(weights) if plan.scaled_regulariser.is_none else weights
        return Solution(found.T, unfinished=how_far(asked, share, "the last step, as a share of the scores,"))


class Products(Plain):
    """X'X, all of it."""

    name = "products"
    title: ClassVar[str] = "products of every two features"

    def __init__(self, dimension: int) -> None:
        self.length = dimension**2

    def value(self, round: Round) -> Array:
        """One pass over the rows."""
        return np.asarray(round.rows.gram(), dtype=np.float64).ravel()
