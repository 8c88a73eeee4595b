"""`gradient`: every party's clipped gradient sum with noise, each round (SGD2 of the multi-party SGD paper)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sottovoce.algorithms.base import (
    WALK,
    Algorithm,
    Array,
    Asking,
    Coordination,
    Solution,
    TailAverage,
    given,
    how_far,
    slope_bound,
    total,
)
from sottovoce.errors import InputError, warn
from sottovoce.gate.query import Query
from sottovoce.penalties.base import ScaledRegulariser
from sottovoce.penalties.sets import Ball, L1Ball
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.queries.joint import make_gradient_sum
from sottovoce.queries.sums import ColumnSizes, GradientSum
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
            step = float(plan.numbers.step)
            weights = prox_of(plan.scaled_regulariser, weights - step / plan.records * gradient, step)
            tail.add(t, weights)
        return tail.value.T


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
    """w <- Proj(w - eta(k) sum_m G_m) from a uniform point of C to the last iterate, SGD2 as printed.

    std = Delta sqrt(2 ln(1.25 T / delta)) sqrt(T ln(1/delta)) / epsilon: Lemma 2 (eq. 8) at the share of a round that
    Theorem 3 names, (epsilon / sqrt(T log 1/delta), delta / T). Theorem 4 leaves eta to "pick appropriately": of the
    mean objective it is `step`, and with a ridge alpha at most the 1/(alpha k) that Theorem 2.2 prints for SGD1.
    """

    form: ClassVar[str] = "published"
    title: ClassVar[str] = "SGD2 with its published noise"
    published: ClassVar[bool] = True

    def design(self, problem: Problem, options: Gradient) -> Design:
        query, step, rounds = choose_descent(problem, options)
        shares = math.sqrt(rounds * math.log(1 / problem.delta))
        if problem.epsilon >= shares:
            warn(
                f"epsilon={problem.epsilon:g} is outside the domain that the paper states: a round's epsilon, a share "
                f"1/sqrt(rounds ln(1/delta)) of it, is below 1 in Lemma 2. Take less than {shares:.3g}."
            )
        std = query.sensitivity(problem.relation) * math.sqrt(2 * math.log(1.25 * rounds / problem.delta)) * shares
        std /= problem.epsilon
        numbers = GradientNumbers(slope_bound=query.slope_bound, step=step)
        return Design(rounds=rounds, numbers=numbers, releases=(Release.of(query, 0, rounds, std),))

    def coordinate(self, plan: Plan) -> Coordination:
        """Descend; return the last iterate."""
        radius, ridge = ball_radius(plan, math.inf), plan.scaled_regulariser.ridge
        weights = start_in(plan, radius)
        for k in range(1, plan.rounds + 1):
            gradient = yield from total("gradient", weights=weights)
            step = min(plan.numbers.step, 1 / (ridge * k)) if ridge else plan.numbers.step
            weights = step_in(plan, weights, gradient, step / plan.records, radius)
        return weights


def ball_radius(problem: Problem, unbounded: float) -> float:
    """The radius of the user's ball C, seen from prepared rows; `unbounded` where there is none."""
    regulariser = problem.scaled_regulariser
    return regulariser.inner.radius / float(regulariser.scale) if isinstance(regulariser.inner, Ball) else unbounded


def start_in(plan: Plan, radius: float) -> Array:
    """A uniform point of C by a public coin, the free intercept from [-radius, radius]; 0 where C is unbounded."""
    coin, p = plan.public_coin("start"), plan.features
    if math.isinf(radius):
        return np.zeros(plan.dimension)
    if plan.regulariser.name == L1Ball.name:
        parts = coin.exponential(size=p + 1)
        weights = coin.choice((-radius, radius), size=p) * parts[:p] / parts.sum()
    else:
        weights = coin.standard_normal(p)
        weights *= radius * coin.random() ** (1 / p) / float(np.linalg.norm(weights))
    return np.append(weights, coin.uniform(-radius, radius, size=plan.dimension - p))


def step_in(plan: Plan, weights: Array, gradient: Array, step: float, radius: float) -> Array:
    """Proj(w - step (G + N a w)) onto C, G of the sum of losses: a ridge a/2 |w|^2 is part of each loss, as printed.

    The paper has no other penalty; such a one is served by its prox.
    """
    regulariser, p = plan.scaled_regulariser, plan.features
    moved = weights - step * gradient
    if regulariser.ridge:
        moved[:p] -= step * plan.records * regulariser.ridge * weights[:p]
    else:
        moved = np.array(regulariser.prox(moved, step * plan.records))
    moved[:p] *= min(1.0, radius / max(float(np.linalg.norm(moved[:p])), 1e-300))
    moved[p:] = np.clip(moved[p:], -radius, radius)
    return moved


def check_penalty(problem: Problem) -> None:
    """Refuse a ball for several classes: it would bind them together."""
    if problem.regulariser.name not in PENALTIES:
        raise InputError("radius: balls are for two classes; for several give alpha and a penalty, or neither.")


def prox_of(regulariser: ScaledRegulariser, weights: Array, step: float) -> Array:
    """The prox of a penalty that is a sum over the classes, column by column."""
    if weights.ndim == 1:
        return regulariser.prox(weights, step)
    return np.column_stack([regulariser.prox(column, step) for column in weights.T])


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


FORMS: tuple[Algorithm, ...] = (
    PrivateGradient(),
    ExactGradient(),
    PublishedGradient(),
    GradientClasses(),
    ExactGradientClasses(),
)
