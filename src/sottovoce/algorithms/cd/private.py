"""`cd`: proximal coordinate descent with noisy coordinate gradients (Mangold et al., DP-CD)."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from sottovoce.algorithms.base import MOST_ROUNDS, Coordination, given, total
from sottovoce.algorithms.cd.walk import BoundedSquares, CoordinateAlgorithm, CoordinateWalk, Moves, StepNumbers, visits
from sottovoce.errors import InputError
from sottovoce.gate.query import Query
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.plan.release import Count, grid_step
from sottovoce.privacy.events import distance
from sottovoce.solvers import CD, Order

ENTRIES = 2**26  # of a matrix touched between two messages, about


class CDNumbers(StepNumbers):
    """Steps of a loop, the last of them that are averaged, steps between two messages, and the order."""

    inner: Count
    averaged: Count
    stride: Count
    order: Order


class PrivateCD(CoordinateAlgorithm):
    """w_j <- prox(w_j - gamma_j g_j, gamma_j), g_j = (1/N) (sum_i cut(l'_i x_ij, C_j) + N(0, (C_j sigma)^2)).

    Outer loops of `inner` steps each; after a loop w is the mean of its last iterates. The coordinates come in a
    public order, so every visit is counted exactly. gamma_j = step / M_j. A holder that is alone walks through many
    coordinates between two messages; several holders send one coordinate's sums at a time.

    Guarantee: mu^2 = rounds inner / sigma^2 (zero-out), four times that for replace-one, plus the curvatures'
    share (`proof.md`). Edges: a null row adds 0; a curvature released near or below 0 is raised to a floor.
    """

    name: ClassVar[str] = "cd"
    form: ClassVar[str] = "private"
    title: ClassVar[str] = "proximal coordinate descent (DP-CD)"
    secure = ("rows",)
    numbers: ClassVar[type[Numbers]] = CDNumbers

    def design(self, problem: Problem, options: CD) -> Design:
        """Steps by `choose_steps`; a tenth of the budget estimates the curvatures."""
        self.check_separable(problem)
        squares, share = self.known_squares(problem, options)
        rounds, numbers = choose_steps(problem, options, squares)
        releases: tuple[Release, ...] = ()
        if share > 0:
            estimate = BoundedSquares(problem.bounds, problem.features)
            releases = (Release.at_mu(estimate, 0, 1, problem.mu * math.sqrt(share), problem.relation),)
        walk, count = CoordinateWalk(problem.dimension, numbers.stride), rounds * numbers.inner // numbers.stride
        mu = problem.mu * math.sqrt(1 - share)
        releases += (Release.at_mu(walk, len(releases), count, mu, problem.relation),)
        return Design(rounds=rounds, numbers=numbers, releases=releases)

    def queries(self, plan: Plan, _party: str) -> tuple[Query, ...]:
        return *self.estimates(plan), CoordinateWalk(plan.dimension, plan.numbers.stride)

    def coordinate(self, plan: Plan) -> Coordination:
        """Replay at the coordinator what was released; several holders' sums are added first."""
        curvatures = yield from self.curvatures(plan)
        moves, numbers, weights = Moves(plan, curvatures), plan.numbers, np.zeros(plan.dimension)
        for t in range(plan.rounds):
            mean = np.zeros(plan.dimension)
            for start in range(0, numbers.inner, numbers.stride):
                sums = yield from total("coordinates", weights=weights, curvatures=curvatures)
                order = visits(plan, t * numbers.inner + start, numbers.stride)
                weights = np.array(weights)
                moves.replay(weights, order, sums, mean, max(0, numbers.inner - numbers.averaged - start))
            weights = mean / numbers.averaged
        return weights


def choose_steps(problem: Problem, options: CD, squares: tuple[float, ...]) -> tuple[int, CDNumbers]:
    """(outer loops, the numbers of their steps): what was asked for, else from public numbers.

    r = N mu / d, halved for replace-one, is the signal of one visit in units of its noise. Larger r affords more passes
    and a wider clip; where it does not pay for one pass, a shorter step costs less than it gains. The slope of a
    squared loss is counted in half label bounds. Chosen on eight problems, public and synthetic.
    """
    loss, dimension = problem.scaled_loss, problem.dimension
    regression = loss.kind == "regression"
    r = problem.records * problem.mu / (distance(problem.relation) * dimension * math.sqrt(problem.channel.variance))
    clip = max(1.0, 0.55 * r**0.25) if regression else 1.5
    signal = math.sqrt(loss.curvature_bound) * r / clip
    rounds = given(options.rounds, 1)
    inner = given(options.inner, min(max(round(0.3 * signal), 1), 80) * dimension)
    if rounds * inner > MOST_ROUNDS:
        raise InputError(f"inner={inner!r} times rounds={rounds!r} is more than {MOST_ROUNDS} steps; take fewer.")
    return rounds, CDNumbers(
        inner=inner,
        averaged=max(1, round(given(options.averaged, 0.5 if inner > 2 * dimension else 0.0) * inner)),
        stride=stride(problem, inner) if len(problem.parties) == 1 else 1,
        order=given(options.order, "cyclic"),
        step=given(options.step, min(1.0, signal**2 / 4)),
        clip=given(options.clip, 0.5 * clip if regression else clip),
        squares=squares,
    )


def stride(problem: Problem, inner: int) -> int:
    """Steps between two messages of a holder that is alone: whole passes that divide the loop, about ENTRIES."""
    passes, rest = divmod(inner, problem.dimension)
    if rest or not passes:
        return inner
    most = max(1, ENTRIES // (problem.records * problem.dimension))
    return problem.dimension * max(count for count in range(1, passes + 1) if passes % count == 0 and count <= most)


class PublishedCD(PrivateCD):
    """sigma^2 = 8 T log(1/delta) / epsilon^2, T read as all steps or (`counted`) as the outer loops alone.

    It counts no curvatures: a share for them is charged on top.
    """

    form: ClassVar[str] = "published"
    title: ClassVar[str] = "DP-CD with its published noise"
    published: ClassVar[bool] = True
    curvature_share: ClassVar[float] = 0.0

    def design(self, problem: Problem, options: CD) -> Design:
        design = super().design(problem, options)
        *estimate, release = design.releases
        walk = CoordinateWalk(problem.dimension, design.numbers.stride)
        steps = design.rounds * (design.numbers.inner if given(options.counted, "all") == "all" else 1)
        std = math.sqrt(8 * steps * math.log(1 / problem.delta)) / problem.epsilon
        published = Release.of(walk, release.first, release.count, std, grid_step(walk, std))
        return design.changed(releases=(*estimate, published), claimed_epsilon=problem.epsilon)
