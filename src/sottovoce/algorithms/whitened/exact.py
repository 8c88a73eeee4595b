"""Several classes without noise: accelerated steps in the metric of a bound of the curvature."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from sottovoce.algorithms.base import CONVEX, SMOOTH, Algorithm, Array, Coordination, Need, NoNumbers, given, total
from sottovoce.algorithms.gradient.exact import Accelerated
from sottovoce.algorithms.gradient.private import check_penalty
from sottovoce.algorithms.newton.exact import ExactNewton
from sottovoce.algorithms.whitened.classes import centred, loss_of
from sottovoce.data.block import SumRows
from sottovoce.gate.query import Plain, Query, Round
from sottovoce.penalties.quadratic import QuadraticMetric
from sottovoce.plan import Design, Plan, Problem, Release
from sottovoce.queries.sums import GradientSum, gradient_sum


class WholeGram(Plain):
    """X'X, all of it."""

    name = "products"
    title: ClassVar[str] = "products of every two features"
    needs: ClassVar[type] = SumRows

    def __init__(self, dimension: int) -> None:
        self.length = dimension**2

    def value(self, round: Round) -> Array:
        return np.asarray(round.rows.gram(), dtype=np.float64).ravel()


class ExactWhitened(ExactNewton):
    """Newton's method with step halving: whitening changes nothing where nothing is noisy."""

    name: ClassVar[str] = "whitened"


ROUNDS = 2000
STILL = 1e-9  # it has converged when no step moves the scores by more than this share of their size


class ExactClasses(Algorithm):
    """W <- prox(V - M^-1 g(V)), V = W + momentum (W - W before), M = b X'X, begun anew when a step turns back.

    b bounds the curvature of the loss, so M is above every curvature, whatever the columns' units are. Of the softmax
    it is 1/2, since diag(p) - p p' <= 1/2 (Boehning 1992).

    Guarantee: none; a party answers only where its holder allows runs without privacy.
    """

    name: ClassVar[str] = "whitened"
    form: ClassVar[str] = "exact-classes"
    title: ClassVar[str] = "accelerated descent for several classes, without privacy"
    private: ClassVar[bool | None] = False
    several: ClassVar[bool] = True
    weighted: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = (CONVEX, SMOOTH)
    asks: ClassVar[tuple[type[Query], ...]] = (WholeGram, GradientSum)

    def design(self, problem: Problem, options: Any) -> Design:
        check_penalty(problem)
        rounds = given(options.rounds, ROUNDS)
        products, gradient = self._queries(problem)
        releases = (Release.of(products, 0, 1, 0.0, 1.0), Release.of(gradient, 1, rounds, 0.0, 1.0))
        return Design(rounds=rounds, numbers=NoNumbers(), releases=releases)

    def queries(self, plan: Plan, _party: str) -> tuple[Query, ...]:
        return self._queries(plan)

    @staticmethod
    def _queries(problem: Problem) -> tuple[Query, Query]:
        loss = problem.scaled_loss
        return WholeGram(problem.dimension), gradient_sum(problem.dimension, loss.slope_bound, loss)

    def coordinate(self, plan: Plan) -> Coordination:
        d, loss = plan.dimension, loss_of(plan)
        values, vectors = np.linalg.eigh((yield from total("products")).reshape(d, d))
        values = np.maximum(values * loss.curvature_bound, 1e-12 * max(float(values.max()), 1e-300))
        metric = QuadraticMetric(values, vectors)

        def step(_t: int, ahead: Array, gradient: Array) -> Array:
            pairs = zip(ahead.T, gradient.T, strict=True)
            return np.column_stack([metric.step(w, g, plan.scaled_regulariser, plan.records) for w, g in pairs])

        def length(move: Array) -> float:
            return math.sqrt(float((values @ (vectors.T @ move) ** 2).sum()))

        found = yield from Accelerated(step, length, STILL).run((d, loss.outputs), plan.rounds)
        if plan.scaled_regulariser.inner.is_none:
            return replace(found, weights=centred(loss, found.weights.T).T)
        return found
