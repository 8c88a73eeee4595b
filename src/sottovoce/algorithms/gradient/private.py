"""`gradient`: every party's clipped gradient sum with noise, each round (SGD2 of the multi-party SGD paper)."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from sottovoce.algorithms.accelerated import prox_of
from sottovoce.algorithms.base import (
    WALK,
    Algorithm,
    Coordination,
    TailAverage,
    check_penalty,
    given,
    slope_bound,
    total,
)
from sottovoce.door.query import Query
from sottovoce.plan.plan import Design, Numbers, Plan
from sottovoce.plan.problem import Problem
from sottovoce.plan.release import Release
from sottovoce.queries.gradient import GradientSum
from sottovoce.queries.joint import gradient_sum
from sottovoce.solvers import Gradient


class GradientNumbers(Numbers):
    """G, which nothing is clipped to without privacy, and the length of a step; there on rows of mean square 1."""

    slope_bound: float
    step: float


class PrivateGradient(Algorithm):
    """w <- prox(w - step/N sum_m G_m, step), G_m = sum_i clip(l'_i) x_i + N(0, std^2).

    Guarantee: mu^2 = rounds (Delta / std)^2, exactly (`proof.md`). The noise of the average gradient does
    not depend on the number of rounds. Edges: a null row adds 0; every round is answered.
    """

    name: ClassVar[str] = "gradient"
    form: ClassVar[str] = "private"
    title: ClassVar[str] = "gradient descent with noisy gradient sums (SGD2)"
    sealed: ClassVar[tuple[str, ...]] = ("rows", "columns")
    weighted: ClassVar[bool] = True
    numbers: ClassVar[type[Numbers]] = GradientNumbers

    def design(self, problem: Problem, options: Gradient) -> Design:
        """As many rounds, up to 1000, as keep the noise's random walk below WALK; step 1 / curvature."""
        query, step, rounds = rule(problem, options)
        release = Release.at_mu(query, 0, rounds, problem.mu, problem.relation)
        numbers = GradientNumbers(slope_bound=query.slope_bound, step=step)
        return Design(rounds=rounds, numbers=numbers, releases=(release,))

    @classmethod
    def asks(cls) -> tuple[type[Query], ...]:
        return (GradientSum,)

    def queries(self, plan: Plan, _party: str) -> tuple[Query, ...]:
        return (gradient_sum(plan, plan.numbers.slope_bound),)

    def coordinate(self, plan: Plan) -> Coordination:
        """Descend; return the mean of the second half of the iterates."""
        weights, query = np.zeros(shape_of(plan)), gradient_sum(plan, plan.numbers.slope_bound)
        tail = TailAverage(weights.shape, plan.rounds // 2)
        for t in range(plan.rounds):
            gradient = (yield from total("gradient", **query.message(weights))).reshape(weights.shape)
            step = self.step(plan, t)
            weights = prox_of(plan.scaled_regulariser, weights - step / plan.records * gradient, step)
            tail.add(t, weights)
        return tail.value.T

    def step(self, plan: Plan, _t: int) -> float:
        """The same in every round."""
        return float(plan.numbers.step)


def shape_of(problem: Problem) -> tuple[int, ...]:
    """Of the weights: a vector, of several classes a matrix with a column for each."""
    outputs = problem.scaled_loss.outputs
    return (problem.dimension,) if outputs == 1 else (problem.dimension, outputs)


def rule(problem: Problem, options: Gradient) -> tuple[GradientSum, float, int]:
    """The query, the step and the rounds, where options do not say otherwise."""
    if problem.scaled_loss.outputs > 1:
        check_penalty(problem)
    query = gradient_sum(problem, slope_bound(problem, options))
    curvature = query.loss.curvature_bound
    step = given(options.step, 1 / curvature if math.isfinite(curvature) else 1.0)
    if not problem.private:
        return query, step, given(options.rounds, 1000)
    walk = step * query.slope_bound * math.sqrt(problem.noises() * problem.dimension) / problem.mu
    return query, step, given(options.rounds, min(1000, max(10, round(WALK * problem.records / walk))))
