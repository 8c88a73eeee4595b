"""Coordinate descent without privacy, in a public order or greedy: until no coordinate moves."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sottovoce.algorithms.base import MOST_ROUNDS, Coordination, Solution, answer, given, how_far, limited, total
from sottovoce.algorithms.cd.greedy import GreedyNumbers, PrivateGreedyCD, greedy_queries
from sottovoce.algorithms.cd.private import PrivateCD
from sottovoce.algorithms.cd.walk import STILL, BoundedSquares, CoordinateWalk, Moves, StepNumbers, visits
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.plan.release import Count
from sottovoce.solvers import CD, GreedyCD, Order, Rule

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
