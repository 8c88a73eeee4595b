"""`cd`, `greedy-cd`: coordinate descent (Mangold et al., DP-CD and DP-GCD), with noise, without, and as published."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from sottovoce.algorithms.base import MOST_ROUNDS, Array, Coordination, Solution, answer, given, how_far, limited, total
from sottovoce.algorithms.cd.walk import (
    STILL,
    BoundedSquares,
    CoordinateAlgorithm,
    CoordinateWalk,
    Moves,
    StepNumbers,
    at_weights,
    slopes,
    visits,
)
from sottovoce.errors import InputError, RefusedError
from sottovoce.gate.query import Choice, Integers, InTurn, Query, Round, Wholes, World
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.plan.release import Count
from sottovoce.privacy.calibration import rho_for
from sottovoce.privacy.events import Relation, distance, inside
from sottovoce.solvers import CD, GreedyCD, Order, Rule

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
        """A tenth of the budget estimates the curvatures; steps from public numbers.

        r = N mu / d, halved for replace-one, is the signal of one visit in units of its noise. Larger r affords more
        passes and a wider clip; where it does not pay for one pass, a shorter step costs less than it gains. The slope
        of a squared loss is counted in half label bounds. Chosen on eight problems, public and synthetic.
        """
        self.check_separable(problem)
        squares, share = self.known_squares(problem, options)
        loss, d, regression = problem.scaled_loss, problem.dimension, problem.scaled_loss.kind == "regression"
        r = problem.records * problem.mu / (distance(problem.relation) * d * math.sqrt(problem.channel.variance))
        clip = max(1.0, 0.55 * r**0.25) if regression else 1.5
        signal = math.sqrt(loss.curvature_bound) * r / clip
        rounds = given(options.rounds, 1)
        inner = given(options.inner, min(max(round(0.3 * signal), 1), 80) * d)
        if rounds * inner > MOST_ROUNDS:
            raise InputError(f"inner={inner!r} times rounds={rounds!r} is more than {MOST_ROUNDS} steps; take fewer.")
        numbers = CDNumbers(
            inner=inner,
            averaged=max(1, round(given(options.averaged, 0.5 if inner > 2 * d else 0.0) * inner)),
            stride=stride(problem, inner) if len(problem.parties) == 1 else 1,
            order=given(options.order, "cyclic"),
            step=given(options.step, min(1.0, signal**2 / 4)),
            clip=given(options.clip, 0.5 * clip if regression else clip),
            squares=squares,
        )
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


def stride(problem: Problem, inner: int) -> int:
    """Steps between two messages of a holder that is alone: whole passes that divide the loop, about ENTRIES."""
    passes, rest = divmod(inner, problem.dimension)
    if rest or not passes:
        return inner
    most = max(1, ENTRIES // (problem.records * problem.dimension))
    return problem.dimension * max(count for count in range(1, passes + 1) if passes % count == 0 and count <= most)


class PublishedCD(PrivateCD):
    """sigma_j^2 = 8 T L_j^2 log(1/delta) / (n epsilon)^2 (the poster, "Privacy"), L_j the clip C_j.

    The steps are those of "DP-CD Algorithm": j uniform, w = (1/K) sum of all K iterates after each outer loop, begun at
    w^0 = 0. T is read as all steps, or (`counted`) as the outer loops alone. What the poster leaves open are options;
    the step is 1 / M_j where it is not given. No curvatures are counted: a share for them is charged on top.
    """

    form: ClassVar[str] = "published"
    title: ClassVar[str] = "DP-CD with its published noise"
    published: ClassVar[bool] = True
    curvature_share: ClassVar[float] = 0.0
    options = ("rounds", "inner", "step", "clip", "curvatures", "curvature_share", "counted")

    def design(self, problem: Problem, options: CD) -> Design:
        printed = options.replace(order="random", averaged=1.0, step=given(options.step, 1.0))
        design = super().design(problem, printed)
        *estimate, release = design.releases
        walk = CoordinateWalk(problem.dimension, design.numbers.stride)
        steps = design.rounds * (design.numbers.inner if given(options.counted, "all") == "all" else 1)
        std = math.sqrt(8 * steps * math.log(1 / problem.delta)) / problem.epsilon
        published = Release.of(walk, release.first, release.count, std)
        return design.changed(releases=(*estimate, published))


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
