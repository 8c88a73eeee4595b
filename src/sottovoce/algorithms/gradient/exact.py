"""Gradient descent without privacy, accelerated."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from sottovoce.algorithms.base import Ask, Coordination, Solution, how_far, summed
from sottovoce.algorithms.gradient.private import GradientNumbers, PrivateGradient, rule
from sottovoce.door.query import Query
from sottovoce.plan.plan import Design, Plan
from sottovoce.plan.problem import Problem
from sottovoce.plan.release import Release
from sottovoce.queries.gradient import ColumnSizes
from sottovoce.solvers import Gradient

STILL = 1e-12  # it has converged when no round moves a feature's part of the scores by more than this share


class ExactNumbers(GradientNumbers, solver="gradient", form="exact"):
    """G, which nothing is clipped to here, and the length of a step on rows of mean square 1."""


class ExactGradient(PrivateGradient):
    """u <- prox(v - step g(v) / R^2, step / R^2), v = u + momentum (u - u before), begun anew when a step turns back.

    R^2 is the mean square of the rows' norms, which the parties tell first, column by column: so no bound decides how
    long a step is. A loss that is not smooth has no momentum, and steps that fall like 1 / sqrt(round).

    Guarantee: none; a party answers only where its holder allows runs without privacy.
    """

    form: ClassVar[str] = "exact"
    title: ClassVar[str] = "accelerated gradient descent, without privacy"
    private: ClassVar[bool | None] = False

    def design(self, problem: Problem, options: Gradient) -> Design:
        """At most 1000 rounds, by default."""
        query, step, rounds = rule(problem, options)
        sizes = Release.of(ColumnSizes(problem.dimension), 0, 1, 0.0, 1.0)
        numbers = ExactNumbers(slope_bound=query.slope_bound, step=step)
        return Design(rounds=rounds, numbers=numbers, releases=(sizes, Release.of(query, 0, rounds, 0.0, 1.0)))

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:
        """The gradient sum and the sizes of the columns."""
        return (*super().queries(plan, party), ColumnSizes(plan.dimension))

    def coordinate(self, plan: Plan) -> Coordination:
        """Until the weights stand still."""
        squares = summed((yield Ask("sizes", round=0))) / plan.records
        roots, total = np.sqrt(squares), float(squares.sum())
        length = plan.numbers.step / total if total > 0.0 else 0.0
        smooth = math.isfinite(plan.scaled_loss.curvature_bound)
        weights = ahead = np.zeros(plan.dimension)
        speed, size, share = 1.0, 0.0, math.inf
        for t in range(plan.rounds):
            gradient = summed((yield Ask("gradient", {"weights": ahead}, round=t))) / plan.records
            here = length if smooth else length / math.sqrt(t + 1)
            fresh = plan.scaled_regulariser.prox(ahead - here * gradient, here)
            moved, turned = fresh - weights, float((ahead - fresh) @ (fresh - weights)) > 0.0
            faster = 1.0 if turned or not smooth else (1 + math.sqrt(1 + 4 * speed * speed)) / 2
            size = max(size, float(np.abs(roots * fresh).max()))
            share = float(np.abs(roots * np.stack([moved, fresh - ahead])).max()) / size if size > 0.0 else 0.0
            ahead = fresh + (0.0 if faster == 1.0 else (speed - 1) / faster) * moved
            weights, speed = fresh, faster
            if share <= STILL:
                break
        return Solution(weights, unfinished=how_far(t + 1, share, "the last step, as a share of the scores,"))
