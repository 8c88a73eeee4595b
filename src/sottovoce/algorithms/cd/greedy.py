"""`greedy-cd`: coordinate descent on the coordinate that promises most (Mangold et al., DP-GCD)."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from sottovoce.algorithms.base import Array, Coordination, answer, given, total
from sottovoce.algorithms.cd.walk import (
    BoundedSquares,
    CoordinateAlgorithm,
    CoordinateWalk,
    Moves,
    StepNumbers,
    at_weights,
    slopes,
)
from sottovoce.errors import RefusedError
from sottovoce.gate.query import Choice, Integers, InTurn, Query, Round, Wholes, World
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.privacy.calibration import rho_for
from sottovoce.privacy.events import Relation, distance, inside
from sottovoce.solvers import GreedyCD, Rule

CHOICE_SHARE = 0.75  # of what the curvatures leave of the budget


class GreedyNumbers(StepNumbers):
    """By which rule a coordinate promises most."""

    rule: Rule


class PrivateGreedyCD(CoordinateAlgorithm):
    """j = argmax of score_j + Gumbel, then w_j <- prox(w_j - gamma_j g_j, gamma_j) with a noisy g_j.

    The scores follow a rule of composite greedy descent, with g the clipped gradient (Nutini et al. 2015):
    GS-s: dist(-g_j, subgradient of the penalty) / sqrt M_j; GS-r: sqrt M_j |length of the step|;
    GS-q: sqrt(2 decrease of the quadratic model). By rows the holders choose in turn, and all of them say their sum at
    the chosen coordinate.

    Guarantee: every score is 1/sqrt(M_j)-Lipschitz in g_j, so one record moves each by at most clip/(N sqrt kappa); a
    choice costs rho = (Delta/std)^2 / 2, a step as much with its own std (`proof.md`). Edges: a null row adds 0;
    candidates are all coordinates, the intercept too.
    """

    name: ClassVar[str] = "greedy-cd"
    form: ClassVar[str] = "private"
    title: ClassVar[str] = "greedy coordinate descent (DP-GCD)"
    numbers: ClassVar[type[Numbers]] = GreedyNumbers

    def design(self, problem: Problem, options: GreedyCD) -> Design:
        """Steps, clip and shares of the budget from public numbers.

        s = N mu sqrt(kappa), halved for replace-one, is the largest score in units of what noise a single step would
        have. T steps lose about T^2 / s^2 to noise, so T grows like sqrt s; a small s shortens the steps too. The slope
        of a squared loss is counted in label bounds. Chosen on six problems, public and synthetic.
        """
        self.check_separable(problem)
        loss, parties = problem.scaled_loss, len(problem.parties)
        apart = distance(problem.relation) * math.sqrt(parties)
        s = problem.records * problem.mu * math.sqrt(loss.curvature_bound) / apart
        rounds = given(options.rounds, max(1, round(math.sqrt(s))))
        squares, share = self.known_squares(problem, options)
        numbers = GreedyNumbers(
            rule=given(options.rule, "GS-r"),
            step=given(options.step, min(1.0, s / 100)),
            clip=given(options.clip, 0.9 if loss.kind == "regression" else 1.2),
            squares=squares,
        )
        part = given(options.choice_share, CHOICE_SHARE)
        mu = math.sqrt(2 * rho_for(problem.epsilon, inside(problem.delta)))
        curvature, choose, step = (
            mu * math.sqrt(each) for each in (share, (1 - share) * part, (1 - share) * (1 - part))
        )
        first, one_turn = int(share > 0), choose / math.sqrt(-(-rounds // parties))
        estimated, choices, walk = greedy_queries(problem, numbers.rule)
        releases: tuple[Release, ...] = (
            Release.at_mu(choices, first, 1, one_turn, problem.relation, "selection").times(rounds),
            Release.at_mu(walk, first, rounds, step, problem.relation),
        )
        if share > 0:
            releases = (Release.at_mu(estimated, 0, 1, curvature, problem.relation), *releases)
        return Design(rounds=rounds, numbers=numbers, releases=releases)

    def queries(self, plan: Plan, _party: str) -> tuple[Query, ...]:
        return *self.estimates(plan), *greedy_queries(plan, plan.numbers.rule)[1:]

    def coordinate(self, plan: Plan) -> Coordination:
        """Choose, step, and once more."""
        curvatures = yield from self.curvatures(plan)
        moves, weights = Moves(plan, curvatures), np.zeros(plan.dimension)
        for _ in range(plan.rounds):
            here = {"weights": weights, "curvatures": curvatures}
            index = (yield from answer("choice", **here)).astype(np.int64)
            sums = yield from total("coordinates", **here, index=index)
            weights = np.array(weights)
            moves.replay(weights, index, sums, np.zeros(plan.dimension), 0)
        return weights


def greedy_queries(problem: Problem, rule: Rule) -> tuple[BoundedSquares, GreedyScores, ChosenCoordinate]:
    """What a greedy run may ask."""
    squares = BoundedSquares(problem.bounds, problem.features)
    return squares, GreedyScores(problem.dimension, rule), ChosenCoordinate(problem.dimension)


class ChosenCoordinate(CoordinateWalk):
    """The sum along the one coordinate that was chosen."""

    def __init__(self, dimension: int) -> None:
        super().__init__(dimension, 1)
        self.takes = {**self.takes, "index": Wholes((1,), 0, dimension - 1)}

    def order(self, round: Round) -> Integers:
        return np.asarray(round.told["index"])


class GreedyScores(Choice):
    """The score of every coordinate by the plan's rule, in units of clip / (n sqrt kappa), n the holder's records.

    Guarantee: zero-out moves each score by at most 1, replace-one by at most 2; 2^-20 covers floating point.
    Edges: a null row adds 0 to every gradient. The gradient is the mean over the holder's own records.
    """

    name = "choice"
    title: ClassVar[str] = "which coordinate to move"
    answered_by = InTurn("choice")
    world_sees: ClassVar[World] = "each"
    candidate: ClassVar[str] = "coordinates"
    bound = 1.0
    largest_std = 2.0**15

    def __init__(self, dimension: int, rule: Rule) -> None:
        self.candidates = self.places = dimension
        self.rule, self.takes = rule, at_weights(dimension)

    def sensitivity(self, relation: Relation) -> float:
        return distance(relation) * self.bound + 2.0**-20

    def value(self, round: Round) -> Array:
        """All clipped coordinate gradients in one pass, then the rule.

        Public numbers so large that the rounding of a score would exceed what the sensitivity allows for are refused.
        """
        plan, rows = round.plan, round.rows
        weights, curvatures = round.told["weights"], round.told["curvatures"]
        moves = Moves(plan, curvatures)
        unit = plan.numbers.clip / (len(rows) * math.sqrt(moves.loss.curvature_bound))
        if plan.private:
            l1, l2, low, high = moves.terms
            size = np.abs(np.clip(weights, low, high)) * (curvatures + l2) + l1 + moves.clip
            if not bool(np.all(size * 2.0**-48 <= 2.0**-22 * unit * moves.roots)):
                raise RefusedError("the weights or the penalty are too large for exact scores; nothing was released.")
        scores = round.memory.follow(rows, weights)
        bits = rows.sum_bits if plan.private else -1
        sums = rows.clipped_column_sums(slopes(moves.loss, scores, rows.labels), moves.clip, bits)
        gradient = (sums * moves.clip if plan.private else sums) / len(rows)
        found = greedy_scores(self.rule, gradient, weights, curvatures, moves.terms)
        return found / unit if plan.private else found


def greedy_scores(rule: Rule, gradient: Array, weights: Array, curvatures: Array, terms: tuple[Array, ...]) -> Array:
    """GS-r, GS-s or GS-q for the penalty l1 |w| + l2 w^2 / 2 on [low, high]; each 1/sqrt(M)-Lipschitz in g.

    Weights beyond the ends count as the ends: from outside, GS-q would not be Lipschitz.
    """
    l1, l2, low, high = terms
    root, weights = np.sqrt(curvatures), np.clip(weights, low, high)
    if rule == "GS-s":
        least = np.where(weights <= low, -math.inf, l2 * weights + np.where(weights > 0, l1, -l1))
        most = np.where(weights >= high, math.inf, l2 * weights + np.where(weights < 0, -l1, l1))
        return np.asarray(np.maximum(np.maximum(least + gradient, -gradient - most), 0.0) / root)
    u = weights - gradient / curvatures
    target = np.clip((u - np.clip(u, -l1 / curvatures, l1 / curvatures)) / (1 + l2 / curvatures), low, high)
    move = target - weights
    if rule == "GS-r":
        return np.asarray(np.abs(move) * root)
    decrease = -gradient * move - curvatures / 2 * move**2
    decrease -= l1 * (np.abs(target) - np.abs(weights)) + l2 / 2 * move * (target + weights)
    return np.sqrt(np.maximum(2 * decrease, 0.0))
