"""`greedy-cd`: coordinate descent on the coordinate that promises most (Mangold et al., DP-GCD)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import (
    Ask,
    Coordination,
    Design,
    Problem,
    Solution,
    check_choice_errors,
    choice,
    draft,
    make_plan,
    option,
    problem_loss,
    summed,
)
from sottovoce.algorithms.cd.private import (
    STILL,
    ColumnSquares,
    CoordinateAlgorithm,
    CoordinateWalk,
    Moves,
    check_numbers,
    curvatures_of,
    known_squares,
    on_columns,
    separable,
    sum_bits,
    usable_curvatures,
)
from sottovoce.data.block import Block
from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.data.kernels import coordinates as kernels
from sottovoce.door.gate import Gate, Released
from sottovoce.door.query import Query, Walk
from sottovoce.errors import InputError, RefusedError
from sottovoce.plan.plan import Plan, Release
from sottovoce.privacy.accounting import SAMPLER_SHARE, Event, Relation, Selection, epsilon_of, rho_for

Array = NDArray[np.float64]

RULES = ("GS-r", "GS-s", "GS-q")
LARGEST_CHOICE_STD = 2.0**15
MOST_STEPS = 100_000  # of a run without privacy


class GreedyCD(CoordinateAlgorithm):
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
    title: ClassVar[str] = "greedy coordinate descent (DP-GCD)"
    options: ClassVar[tuple[str, ...]] = (
        "rounds",
        "step",
        "clip",
        "rule",
        "curvatures",
        "curvature_share",
        "choice_share",
    )

    def design(self, problem: Problem) -> Design:
        """Steps, clip and shares of the budget by public rules."""
        separable(self.name, problem)
        rule = choice(problem, "rule", RULES)
        defaults = default_rule(problem)
        known, share = known_squares(problem)
        part = option(problem, "choice_share", defaults["choice_share"], low=0.01, high=0.99)
        private = math.isfinite(problem.epsilon)
        rounds = option(problem, "rounds", defaults["rounds"], low=1, whole=True)
        numbers = {
            "rule": RULES.index(rule),
            "step": option(problem, "step", defaults["step"], low=SMALLEST, high=LARGEST),
            "clip": option(problem, "clip", defaults["clip"], low=SMALLEST, high=LARGEST),
        }
        plan = draft(problem, numbers, "columns")
        squares, scores, walk = ColumnSquares(plan), GreedyScores(plan), CoordinateWalk(plan, 1)
        releases: tuple[Release, ...]
        if not private:
            releases = (
                Release.of(squares, 0, 1, 0.0, 1.0),
                Release.of(scores, 1, rounds, 0.0, 1.0, mechanism="selection"),
                Release.of(walk, 1, rounds, 0.0, 1.0),
            )
            return Design(rounds, numbers, releases, layout="columns")
        mu = math.sqrt(2 * rho_for(problem.epsilon, problem.delta * (1 - SAMPLER_SHARE)))
        curvature, choose, step = (
            mu * math.sqrt(each) for each in (share, (1 - share) * part, (1 - share) * (1 - part))
        )
        turns = -(-rounds // len(problem.parties))
        first = 1 if share > 0 else 0
        one_turn = choose / math.sqrt(turns)
        releases = (
            Release.at_mu(scores, first, 1, one_turn, problem.relation, "selection").times(rounds),
            Release.at_mu(walk, first, rounds, step, problem.relation),
        )
        if share > 0:
            releases = (Release.at_mu(squares, 0, 1, curvature, problem.relation), *releases)
        design = Design(rounds, numbers, releases, layout="columns", vectors=known)
        plan = make_plan(self.name, problem, design, run="draft", coin="draft")
        check_choices(plan, problem.relation, problem.delta)
        return design

    def queries(self, plan: Plan) -> Mapping[str, Query | Walk]:
        """Squares of the columns once, then choices and coordinate sums."""
        self.check_samplers(plan, plan.relation, plan.delta)
        return {"curvatures": ColumnSquares(plan), "choice": GreedyScores(plan), "coordinates": CoordinateWalk(plan, 1)}

    def check_samplers(self, plan: Plan, relation: Relation, delta: float, epsilon: float = 0.0) -> None:
        """The Gumbel variables of all choices."""
        if plan.private and any(release.query == "choice" for release in plan.releases):
            check_choices(plan, relation, delta, epsilon)

    def coordinate(self, plan: Plan) -> Coordination:
        """Choose, step, and once more; without privacy until no coordinate promises anything."""
        curvatures = yield from curvatures_of(plan)
        moves = Moves(plan, curvatures)
        weights = np.zeros(plan.dimension)
        first = plan.release("choice").first
        names = [name for name, _ in plan.parties]
        moved, size, still, tried = math.inf, 0.0, 0, 0
        for t in range(plan.rounds):
            arrays = {"weights": weights, "curvatures": curvatures}
            chooser = names[t % len(names)]
            (place,) = (yield Ask("choice", arrays, to=(chooser,), round=first + t)).values()
            # Without privacy: a holder's own choice may lead nowhere, so the coordinates are also tried in turn.
            in_turn = not plan.private and (still > 0 or (len(names) > 1 and t % 2 == 1))
            order = np.array([tried % plan.dimension]) if in_turn else place.astype(np.int64)
            tried += in_turn
            sums = yield Ask("coordinates", arrays | {"index": order}, round=first + t)
            before, weights = weights, np.array(weights)
            moved = moves.replay(weights, order, summed(sums), np.zeros(plan.dimension), 0)
            size = max(size, moves.length(weights))
            still = still + 1 if moves.length(weights - before) <= STILL * size and not plan.private else 0
            if still > plan.dimension:
                break
        return Solution(weights, {} if plan.private else {"violation": moved})

    def answer(
        self,
        plan: Plan,
        query: Any,
        block: Block,
        gate: Gate,
        round_: int,
        arrays: Mapping[str, NDArray[Any]],
        memory: Any,
    ) -> Released:
        """The holder whose turn it is chooses; every holder says its sum at the chosen coordinate."""
        if query.name == "curvatures":
            return gate.gaussian(query, round_, block)
        curvatures = usable_curvatures(arrays, plan.dimension)
        if query.name == "choice":
            return gate.select(query, round_, block, arrays["weights"], curvatures, memory)
        order = arrays.get("index", np.zeros(0))
        if order.dtype != np.int64 or order.shape != (1,) or not 0 <= order[0] < plan.dimension:
            raise RefusedError(f"round {round_} needs the index of one of {plan.dimension} coordinates.")
        return gate.walk(query, round_, block, arrays["weights"], curvatures, memory, order)

    def serves(self, plan: Plan, party: str, query: str, round_: int) -> bool:
        """A choice is for the holder whose turn it is."""
        return super().serves(plan, party, query, round_) and (query != "choice" or _turn(plan, round_) == party)

    def example(self, plan: Plan, query: str) -> Ask:
        """One holder is asked to choose."""
        ask = super().example(plan, query)
        if query == "choice":
            return Ask(query, ask.arrays, to=(plan.parties[0][0],))
        return ask if query == "curvatures" else Ask(query, {**ask.arrays, "index": np.zeros(1, dtype=np.int64)})

    def events(self, plan: Plan, relation: Relation, party: str) -> tuple[Event, ...]:
        """A holder pays for the choices of its own turns."""
        place = [name for name, _ in plan.parties].index(party)
        turns = max(0, -(-(plan.release("choice").count - place) // len(plan.parties)))
        return tuple(
            release.event(relation, count=turns if release.query == "choice" else None)
            for release in plan.releases
            if turns or release.query != "choice"
        )

    def world_events(self, plan: Plan, relation: Relation) -> tuple[Event, ...]:
        """What is summed carries every holder's noise; of the choices the worst holder's count."""
        turns = -(-plan.release("choice").count // len(plan.parties))
        return tuple(
            release.event(relation, count=turns)
            if release.query == "choice"
            else release.event(relation, parties=len(plan.parties))
            for release in plan.releases
        )


class GreedyScores:
    """The score of every coordinate by the plan's rule, in units of clip / (n sqrt kappa), n the holder's records.

    Guarantee: zero-out moves each score by at most 1, replace-one by at most 2; 2^-20 covers floating point.
    Edges: a null row adds 0 to every gradient. The gradient is the mean over the holder's own records.
    """

    name = "choice"
    weights = 1.0
    entries = 1.0

    def __init__(self, plan: Plan) -> None:
        if plan["rule"] not in range(len(RULES)):
            raise InputError(f"rule={plan['rule']!r} must be the place of one of {', '.join(RULES)}.")
        check_numbers(plan)
        self.plan = plan

    def sensitivity(self, relation: Relation) -> float:
        """Of one score."""
        return (2.0 if relation == "replace-one" else 1.0) + 2.0**-20

    def value(self, block: Block, *arguments: Any) -> Array:
        """All clipped coordinate gradients in one pass, then the rule."""
        weights, curvatures, memory = arguments
        moves = Moves(self.plan, curvatures)
        unit = self.plan["clip"] / (len(block) * math.sqrt(moves.loss.curvature_bound))
        if self.plan.private:
            check_resolution(moves, weights, curvatures, unit)
        scores = memory.follow(block, weights)
        slopes = np.empty(len(scores))
        kernels.fill_slopes(moves.code, moves.parameter, scores, block.labels, slopes)
        bits = sum_bits(block) if self.plan.private else -1
        sums = on_columns(
            block, kernels.all_coordinate_sums_dense, kernels.all_coordinate_sums_sparse, slopes, moves.clip, bits
        )
        gradient = (sums * moves.clip if self.plan.private else sums) / len(block)
        found = greedy_scores(int(self.plan["rule"]), gradient, weights, curvatures, *moves.terms)
        return found / unit if self.plan.private else found


def check_choices(plan: Plan, relation: Relation, delta: float, least: float = 0.0) -> None:
    """Refuse more choices than the share of delta set aside for them covers, or ones that the rounding would blur."""
    release = plan.release("choice")
    rho = 0.0
    for each in plan.releases:
        count = -(-each.count // len(plan.parties)) if each.query == "choice" else each.count
        rho += count * (each.charged(relation) / each.std) ** 2 / 2 if each.std > 0.0 else 0.0
    epsilon = max(epsilon_of([Selection(rho)], delta, relation), least)
    check_choice_errors(release.count, plan.dimension, "coordinates", epsilon, delta)
    if release.std > LARGEST_CHOICE_STD:
        raise InputError(
            f"rounds={release.count}: choices with a noise of {release.std:.3g} tell nothing; take fewer rounds."
        )


def check_resolution(moves: Moves, weights: Array, curvatures: Array, unit: float) -> None:
    """Refuse public numbers so large that the rounding of a score would exceed what the sensitivity allows for."""
    l1, l2, low, high = moves.terms
    size = np.abs(np.clip(weights, low, high)) * (curvatures + l2) + l1 + moves.clip
    if not bool(np.all(size * 2.0**-48 <= 2.0**-22 * unit * moves.roots)):
        raise RefusedError("the weights or the penalty are too large for exact scores; nothing was released.")


def greedy_scores(
    rule: int, gradient: Array, weights: Array, curvatures: Array, l1: Array, l2: Array, low: Array, high: Array
) -> Array:
    """GS-r, GS-s or GS-q for the penalty l1 |w| + l2 w^2 / 2 on [low, high]; each 1/sqrt(M)-Lipschitz in g.

    Weights beyond the ends count as the ends: from outside, GS-q would not be Lipschitz.
    """
    root, weights = np.sqrt(curvatures), np.clip(weights, low, high)
    if RULES[rule] == "GS-s":
        least = np.where(weights <= low, -math.inf, l2 * weights + np.where(weights > 0, l1, -l1))
        most = np.where(weights >= high, math.inf, l2 * weights + np.where(weights < 0, -l1, l1))
        return np.asarray(np.maximum(np.maximum(least + gradient, -gradient - most), 0.0) / root)
    u = weights - gradient / curvatures
    target = np.clip((u - np.clip(u, -l1 / curvatures, l1 / curvatures)) / (1 + l2 / curvatures), low, high)
    move = target - weights
    if RULES[rule] == "GS-r":
        return np.asarray(np.abs(move) * root)
    decrease = -gradient * move - curvatures / 2 * move**2
    decrease -= l1 * (np.abs(target) - np.abs(weights)) + l2 / 2 * move * (target + weights)
    return np.sqrt(np.maximum(2 * decrease, 0.0))


def default_rule(problem: Problem) -> dict[str, Any]:
    """Steps, step factor, clip and the share of the choices, from public numbers.

    s = N mu sqrt(kappa), halved for replace-one, is the largest score in units of what noise a single step would have.
    T steps lose about T^2 / s^2 to noise, so T grows like sqrt s; a small s shortens the steps too. The slope of a
    squared loss is counted in label bounds. Chosen on six problems, public and synthetic.
    """
    loss = problem_loss(problem)
    if math.isinf(problem.epsilon):
        return {"rounds": MOST_STEPS, "step": 1.0, "clip": 1.0, "choice_share": 0.5}
    distance = (2.0 if problem.relation == "replace-one" else 1.0) * math.sqrt(len(problem.parties))
    s = problem.records * problem.mu * math.sqrt(loss.curvature_bound) / distance
    clip = 0.9 if loss.kind == "regression" else 1.2
    return {"rounds": max(1, round(math.sqrt(s))), "step": min(1.0, s / 100), "clip": clip, "choice_share": 0.75}


def _turn(plan: Plan, round_: int) -> str:
    return plan.parties[(round_ - plan.release("choice").first) % len(plan.parties)][0]
