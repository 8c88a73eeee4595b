"""`cd`: proximal coordinate descent (Mangold et al., DP-CD); it and `greedy-cd` without privacy."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from sottovoce.algorithms.base import MOST_ROUNDS, Coordination, Solution, answer, given, how_far, limited, total
from sottovoce.algorithms.cd.greedy import GreedyNumbers, PrivateGreedyCD, greedy_queries
from sottovoce.algorithms.cd.walk import (
    STILL,
    BoundedSquares,
    CoordinateAlgorithm,
    CoordinateWalk,
    Moves,
    StepNumbers,
    visits,
)
from sottovoce.errors import InputError
from sottovoce.gate.query import Query
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.plan.release import Count, grid_step
from sottovoce.privacy.events import distance
from sottovoce.solvers import CD, GreedyCD, Order, Rule

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


PASSES, STEPS = 10_000, 100_000  # at most


class ExactCDNumbers(StepNumbers):
    """Steps between two messages, and the order; nothing is clipped here."""

    stride: Count
    order: Order


class ExactCD(PrivateCD):
    """w_j <- prox(w_j - g_j / M_j, 1 / M_j) with the exact gradient, until all coordinates were tried and none moved.

    Guarantee: none; a party answers only where its holder allows runs without privacy. The certificate `violation` is
    the largest M_j |move| of the last pass.
    """

    form: ClassVar[str] = "exact"
    title: ClassVar[str] = "proximal coordinate descent, without privacy"
    numbers: ClassVar[type[Numbers]] = ExactCDNumbers
    private: ClassVar[bool | None] = False

    def design(self, problem: Problem, options: CD) -> Design:
        """Passes in which a holder that is alone takes every step of one message."""
        self.check_separable(problem)
        d = problem.dimension
        passes = limited("rounds", given(options.rounds, PASSES), 1, MOST_ROUNDS // d)
        stride = d if len(problem.parties) == 1 else 1
        numbers = ExactCDNumbers(step=1.0, clip=1.0, stride=stride, order=given(options.order, "cyclic"))
        squares, walk = BoundedSquares(problem.bounds, problem.features), CoordinateWalk(d, stride)
        releases = (Release.of(squares, 0, 1, 0.0, 1.0), Release.of(walk, 1, passes * d // stride, 0.0, 1.0))
        return Design(rounds=passes, numbers=numbers, releases=releases)

    def coordinate(self, plan: Plan) -> Coordination:
        """Pass after pass; one drawn at random may miss a coordinate, so several may be needed to try all."""
        curvatures = yield from self.curvatures(plan)
        moves, d, stride = Moves(plan, curvatures), plan.dimension, plan.numbers.stride
        weights, size, still = np.zeros(d), 0.0, set[int]()  # the last: coordinates tried since one last moved
        for t in range(plan.rounds):
            before, violation = np.array(weights), 0.0
            for start in range(t * d, (t + 1) * d, stride):
                sums = yield from total("coordinates", weights=weights, curvatures=curvatures)
                weights = np.array(weights)
                moved = moves.replay(weights, visits(plan, start, stride), sums, np.zeros(d), 0)
                violation = max(violation, moved)
            size = max(size, moves.length(weights))
            share = moves.length(weights - before) / size if size > 0.0 else 0.0
            if share > STILL:
                still.clear()
                continue
            still.update(visits(plan, t * d, d).tolist())
            if len(still) == d:
                break
        far = how_far(t + 1, share, "the last pass, as a share of the scores,")
        return Solution(weights, {"violation": violation}, unfinished=far)


class ExactGreedyCD(PrivateGreedyCD):
    """The coordinate of the largest score, then an exact step on it, until no coordinate promises anything.

    Guarantee: none; a party answers only where its holder allows runs without privacy.
    """

    form: ClassVar[str] = "exact"
    title: ClassVar[str] = "greedy coordinate descent, without privacy"
    private: ClassVar[bool | None] = False

    def design(self, problem: Problem, options: GreedyCD) -> Design:
        self.check_separable(problem)
        rounds = given(options.rounds, STEPS)
        rule: Rule = options.rule or "GS-r"
        numbers = GreedyNumbers(rule=rule, step=given(options.step, 1.0), clip=1.0)
        squares, scores, walk = greedy_queries(problem, rule)
        releases = (
            Release.of(squares, 0, 1, 0.0, 1.0),
            Release.of(scores, 1, rounds, 0.0, 1.0, mechanism="selection"),
            Release.of(walk, 1, rounds, 0.0, 1.0),
        )
        return Design(rounds=rounds, numbers=numbers, releases=releases)

    def coordinate(self, plan: Plan) -> Coordination:
        """A holder's own choice may lead nowhere, so the coordinates are also tried in turn."""
        curvatures = yield from self.curvatures(plan)
        moves, weights = Moves(plan, curvatures), np.zeros(plan.dimension)
        size, still, tried, largest = 0.0, 0, 0, 0.0
        for t in range(plan.rounds):
            here = {"weights": weights, "curvatures": curvatures}
            place = yield from answer("choice", **here)
            in_turn = still > 0 or (len(plan.names) > 1 and t % 2 == 1)
            index = np.array([tried % plan.dimension]) if in_turn else place.astype(np.int64)
            tried += in_turn
            sums = yield from total("coordinates", **here, index=index)
            before, weights = weights, np.array(weights)
            moved = moves.replay(weights, index, sums, np.zeros(plan.dimension), 0)
            size = max(size, moves.length(weights))
            step = moves.length(weights - before)
            still, largest = (still + 1, max(largest, step)) if step <= STILL * size else (0, step)
            if still > plan.dimension:
                break
        far = how_far(t + 1, largest / size if size > 0.0 else 0.0, "the last step, as a share of the scores,")
        return Solution(weights, {"violation": moved}, unfinished=far)
