"""Gradient descent without privacy, accelerated."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sottovoce.algorithms.base import Array, Asking, Coordination, Solution, how_far, total
from sottovoce.algorithms.gradient.private import (
    GradientNumbers,
    PrivateGradient,
    choose_descent,
    prox_of,
    weights_shape,
)
from sottovoce.gate.query import Query
from sottovoce.plan import Design, Plan, Problem, Release
from sottovoce.queries.sums import ColumnSizes, GradientSum
from sottovoce.solvers import Gradient


@dataclass(frozen=True)
class Accelerated:
    """w <- step(v, g(v)), v = w + momentum (w - w before), begun anew when a step turns back.

    It ends when no step is longer than the share `still` of the longest weights. Of several classes the weights are a
    matrix with a column for each.
    """

    step: Callable[[int, Array, Array], Array]  # of the number of steps before, v and the sum of gradients at v
    length: Callable[[Array], float]
    still: float
    momentum: bool = True

    def run(self, shape: tuple[int, ...], rounds: int) -> Asking[Solution]:
        """At most so many rounds; the solution has a row for each class."""
        weights = ahead = np.zeros(shape)
        speed, size, share = 1.0, 0.0, math.inf
        for t in range(rounds):
            gradient = (yield from total("gradient", weights=ahead.ravel())).reshape(shape)
            fresh = self.step(t, ahead, gradient)
            moved, turned = fresh - weights, float(np.vdot(ahead - fresh, fresh - weights)) > 0.0
            faster = (1 + math.sqrt(1 + 4 * speed * speed)) / 2 if self.momentum and not turned else 1.0
            size = max(size, self.length(fresh))
            share = max(self.length(moved), self.length(fresh - ahead)) / size if size > 0.0 else 0.0
            ahead = fresh + (0.0 if faster == 1.0 else (speed - 1) / faster) * moved
            weights, speed = fresh, faster
            if share <= self.still:
                break
        return Solution(weights.T, unfinished=how_far(t + 1, share, "the last step, as a share of the scores,"))


STILL = 1e-12  # it has converged when no round moves a feature's part of the scores by more than this share


class ExactGradient(PrivateGradient):
    """u <- prox(v - step g(v) / R^2, step / R^2), v = u + momentum (u - u before), begun anew when a step turns back.

    R^2 is the mean square of the rows' norms, which the parties tell first, column by column: so no bound decides how
    long a step is. A loss that is not smooth has no momentum, and steps that fall like 1 / sqrt(round).

    Guarantee: none; a party answers only where its holder allows runs without privacy.
    """

    form: ClassVar[str] = "exact"
    title: ClassVar[str] = "accelerated gradient descent, without privacy"
    private: ClassVar[bool | None] = False
    asks: ClassVar[tuple[type[Query], ...]] = (GradientSum, ColumnSizes)

    def design(self, problem: Problem, options: Gradient) -> Design:
        query, step, rounds = choose_descent(problem, options)
        sizes = Release.of(ColumnSizes(problem.dimension), 0, 1, 0.0, 1.0)
        numbers = GradientNumbers(slope_bound=query.slope_bound, step=step)
        return Design(rounds=rounds, numbers=numbers, releases=(sizes, Release.of(query, 0, rounds, 0.0, 1.0)))

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:
        return (*super().queries(plan, party), ColumnSizes(plan.dimension))

    def coordinate(self, plan: Plan) -> Coordination:
        """Until the weights stand still."""
        squares = (yield from total("sizes")) / plan.records
        roots, mean_square = np.sqrt(squares), float(squares.sum())
        length = plan.numbers.step / mean_square if mean_square > 0.0 else 0.0
        smooth, shape = math.isfinite(plan.scaled_loss.curvature_bound), weights_shape(plan)

        def step(t: int, ahead: Array, gradient: Array) -> Array:
            here = length if smooth else length / math.sqrt(t + 1)
            return prox_of(plan.scaled_regulariser, ahead - here * (gradient / plan.records), here)

        def longest(move: Array) -> float:
            return float(np.abs(roots * move.T).max())

        return (yield from Accelerated(step, longest, STILL, smooth).run(shape, plan.rounds))


class ExactGradientClasses(ExactGradient):
    """The same with a matrix W."""

    form: ClassVar[str] = "exact-classes"
    title: ClassVar[str] = "accelerated gradient descent for several classes, without privacy"
    several: ClassVar[bool] = True
