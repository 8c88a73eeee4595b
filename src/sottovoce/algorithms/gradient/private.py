"""`gradient`: every party's clipped gradient sum with noise, each round (SGD2 of the multi-party SGD paper)."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from sottovoce.algorithms.base import WALK, Algorithm, Coordination, TailAverage, given, slope_bound, total
from sottovoce.errors import InputError
from sottovoce.gate.query import Array, Query
from sottovoce.penalties.base import ScaledRegulariser
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.plan.release import grid_step
from sottovoce.queries.joint import make_gradient_sum
from sottovoce.queries.sums import GradientSum
from sottovoce.solvers import Gradient

PENALTIES = ("none", "l2", "l1", "elastic_net")  # which are sums over the classes


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
    secure: ClassVar[tuple[str, ...]] = ("rows", "columns")
    weighted: ClassVar[bool] = True
    numbers: ClassVar[type[Numbers]] = GradientNumbers
    asks: ClassVar[tuple[type[Query], ...]] = (GradientSum,)

    def design(self, problem: Problem, options: Gradient) -> Design:
        """As many rounds, up to 1000, as keep the noise's random walk below WALK; step 1 / curvature."""
        query, step, rounds = choose_descent(problem, options)
        release = Release.at_mu(query, 0, rounds, problem.mu, problem.relation)
        numbers = GradientNumbers(slope_bound=query.slope_bound, step=step)
        return Design(rounds=rounds, numbers=numbers, releases=(release,))

    def queries(self, plan: Plan, _party: str) -> tuple[Query, ...]:
        return (make_gradient_sum(plan, plan.numbers.slope_bound),)

    def coordinate(self, plan: Plan) -> Coordination:
        """Descend; return the mean of the second half of the iterates."""
        weights, query = np.zeros(weights_shape(plan)), make_gradient_sum(plan, plan.numbers.slope_bound)
        tail = TailAverage(weights.shape, plan.rounds // 2)
        for t in range(plan.rounds):
            gradient = (yield from total("gradient", **query.message(weights))).reshape(weights.shape)
            step = self.step(plan, t)
            weights = prox_of(plan.scaled_regulariser, weights - step / plan.records * gradient, step)
            tail.add(t, weights)
        return tail.value.T

    def step(self, plan: Plan, _t: int) -> float:
        return float(plan.numbers.step)


def weights_shape(problem: Problem) -> tuple[int, ...]:
    """Of the weights: a vector, of several classes a matrix with a column for each."""
    outputs = problem.scaled_loss.outputs
    return (problem.dimension,) if outputs == 1 else (problem.dimension, outputs)


def choose_descent(problem: Problem, options: Gradient) -> tuple[GradientSum, float, int]:
    """The query, the step and the rounds, where options do not say otherwise."""
    if problem.scaled_loss.outputs > 1:
        check_penalty(problem)
    query = make_gradient_sum(problem, slope_bound(problem, options))
    curvature = query.loss.curvature_bound
    step = given(options.step, 1 / curvature if math.isfinite(curvature) else 1.0)
    if not problem.private:
        return query, step, given(options.rounds, 1000)
    walk = step * query.slope_bound * math.sqrt(problem.channel.variance * problem.dimension) / problem.mu
    return query, step, given(options.rounds, min(1000, max(10, round(WALK * problem.records / walk))))


class GradientClasses(PrivateGradient):
    """The same with a matrix W; a term x l'(x'W, y) of the sum is as long as the product of the two.

    Guarantee: as of two classes, with G the bound of a row of slopes (`proof.md`).
    """

    form: ClassVar[str] = "classes"
    title: ClassVar[str] = "gradient descent for several classes"
    several: ClassVar[bool] = True
    secure = ("rows",)


class PublishedGradient(PrivateGradient):
    """std = Delta sqrt(2 ln(1.25 T / delta)) sqrt(T ln(1/delta)) / epsilon, steps 1/(alpha k): as printed."""

    form: ClassVar[str] = "published"
    title: ClassVar[str] = "SGD2 with its published noise"
    published: ClassVar[bool] = True

    def design(self, problem: Problem, options: Gradient) -> Design:
        query, step, rounds = choose_descent(problem, options)
        share = math.sqrt(2 * math.log(1.25 * rounds / problem.delta)) * math.sqrt(rounds * math.log(1 / problem.delta))
        std = query.sensitivity(problem.relation) * share / problem.epsilon
        return Design(
            rounds=rounds,
            numbers=GradientNumbers(slope_bound=query.slope_bound, step=step),
            releases=(Release.of(query, 0, rounds, std, grid_step(query, std)),),
            claimed_epsilon=problem.epsilon,
        )

    def step(self, plan: Plan, t: int) -> float:
        """1 / (alpha t), where there is an alpha; the printed steps are for strongly convex problems."""
        decay = plan.scaled_regulariser.ridge
        return min(plan.numbers.step, 1 / (decay * (t + 1))) if decay else float(plan.numbers.step)


def check_penalty(problem: Problem) -> None:
    """Refuse a ball for several classes: it would bind them together."""
    if problem.regulariser.name not in PENALTIES:
        raise InputError("radius: balls are for two classes; for several give alpha and a penalty, or neither.")


def prox_of(regulariser: ScaledRegulariser, weights: Array, step: float) -> Array:
    """The prox of a penalty that is a sum over the classes, column by column."""
    if weights.ndim == 1:
        return regulariser.prox(weights, step)
    return np.column_stack([regulariser.prox(column, step) for column in weights.T])
