"""`scd-primal`: clipped coordinate minimisers with noise (primal DP-SCD), accounted soundly and as published."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Array, Coordination, Solution, TailAverage, answer, given, how_far, limited
from sottovoce.algorithms.cd.walk import STILL, CoordinateAlgorithm, Size, slopes
from sottovoce.errors import InputError, LeakError
from sottovoce.gate.query import Integers, Query, Reals, Round, Walk
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.plan.release import Count
from sottovoce.privacy.calibration import moments_noise_for
from sottovoce.privacy.events import Relation, either
from sottovoce.queries.sums import ColumnSizes
from sottovoce.solvers import PrimalSCD


class PrimalNumbers(Numbers):
    """L and C."""

    lot: Count
    clip: Size


class PrivatePrimalSCD(CoordinateAlgorithm):
    """w_j <- w_j + z_j + noise for L coordinates a round, z_j = cut(-(grad_j) / (L kappa |x_j|^2 / N + c_j), C).

    z_j minimises the quadratic model of F along coordinate j with the curvature multiplied by L, since L coordinates
    move at once. Only w leaves; the scores Xw are recomputed from it by their holder. Without privacy nothing is cut.

    Guarantee: z_j is a ratio of sums over all records, so nothing but the cut bounds it: a release moves by 2 C sqrt L
    in both relations, and mu^2 = rounds (2 C sqrt L / std)^2 (`proof.md`). The noise does not fall with the
    number of records; `cd` has what this method lacks. Edges: null rows add 0; data in one place only, since by rows
    the minimiser is no sum over holders.
    """

    name: ClassVar[str] = "scd-primal"
    form: ClassVar[str] = "private"
    title: ClassVar[str] = "primal stochastic coordinate descent (DP-SCD, Algorithm 2)"
    splits = ("central",)
    private: ClassVar[bool | None] = None
    numbers: ClassVar[type[Numbers]] = PrimalNumbers

    def design(self, problem: Problem, options: PrimalSCD) -> Design:
        """Ten passes; a coordinate of the scaled features can travel 4 in all."""
        if problem.regulariser.name not in ("l2", "none"):
            raise InputError(f"solver={self.name!r} needs an l2 penalty or none, not {problem.regulariser.name!r}.")
        lot = limited("lot", given(options.lot, 1), 1, problem.dimension)
        passes = 10 if problem.private else 2000
        rounds = given(options.rounds, math.ceil(passes * problem.dimension / lot))
        clip = given(options.clip, min(1.0, 4.0 * problem.dimension / (lot * rounds)))
        numbers = PrimalNumbers(lot=lot, clip=clip)
        release = Release.at_mu(Minimisers(problem, numbers), 0, rounds, problem.mu, problem.relation)
        sizes = () if problem.private else (Release.of(ColumnSizes(problem.dimension), 0, 1, 0.0, 1.0),)
        return Design(rounds=rounds, numbers=numbers, releases=(*sizes, release))

    def queries(self, plan: Plan, _party: str) -> tuple[Query, ...]:
        return Minimisers(plan, plan.numbers), *(() if plan.private else (ColumnSizes(plan.dimension),))

    def coordinate(self, plan: Plan) -> Coordination:
        """Take the steps; return the mean of the second half, or where they end without noise."""
        weights, tail = np.zeros(plan.dimension), TailAverage(plan.dimension, plan.rounds // 2)
        still = None if plan.private else StandingStill(plan, (yield from answer("sizes")))
        for t in range(plan.rounds):
            steps = yield from answer("minimisers", weights=weights)
            weights = np.array(weights)
            np.add.at(weights, coordinates_of(plan, t), steps)
            tail.add(t, weights)
            if still is not None and still.after(t, weights, steps):
                break
        if still is None:
            return tail.value
        far = how_far(t + 1, still.share, "the last pass, as a share of the scores,")
        return Solution(weights, {"violation": still.share}, unfinished=far)


class StandingStill:
    """How far the weights moved in the last pass over all coordinates, as a share of the largest so far."""

    def __init__(self, plan: Plan, squares: Array) -> None:
        self.plan, self.roots = plan, np.sqrt(squares)
        self.share, self._size, self._largest = math.inf, 0.0, 0.0

    def after(self, t: int, weights: Array, steps: Array) -> bool:
        """Whether a pass ends with this round, and moved nothing."""
        moved = self.roots[coordinates_of(self.plan, t)] * steps
        self._size = max(self._size, float(np.abs(self.roots * weights).max()))
        self._largest = max(self._largest, float(np.abs(moved).max()))
        if (t + 1) % math.ceil(self.plan.dimension / self.plan.numbers.lot):
            return False
        self.share, self._largest = self._largest / self._size if self._size > 0.0 else 0.0, 0.0
        return self.share <= STILL


def coordinates_of(plan: Plan, number: int) -> NDArray[np.int64]:
    """Those that move in a round: one lot after the other, in their order."""
    lot = plan.numbers.lot
    return np.arange(lot * number, lot * (number + 1), dtype=np.int64) % plan.dimension


class Minimisers(Query):
    """z_j of `lot` coordinates, each clipped to [-clip, clip].

    Guarantee: any two data sets give values at most 2 clip sqrt(lot) apart, in l2.
    """

    name = "minimisers"
    title: ClassVar[str] = "clipped minimisers along coordinates"
    replacement: ClassVar[float | None] = 1.0

    def __init__(self, problem: Problem, numbers: Numbers) -> None:
        if numbers.lot > problem.dimension:
            raise InputError(f"lot={numbers.lot} must be at most {problem.dimension}, the coordinates.")
        self.dimension, self.clip = problem.dimension, numbers.clip
        self.lot = self.length = numbers.lot
        self.rounding_entries = float(self.length)
        self.bound = 2 * self.clip * math.sqrt(self.length) * (1 + 2.0**-40)  # the last bits of its own rounding
        self.takes = {"weights": Reals((self.dimension,))}

    def value(self, round: Round) -> Array:
        plan, weights = round.plan, round.told["weights"]
        steps = self.steps(round, round.memory.follow(round.rows, weights), coordinates_of(plan, round.number))
        return np.clip(steps, -self.clip, self.clip) if plan.private else steps

    def steps(self, round: Round, scores: Array, order: NDArray[np.int64]) -> Array:
        """-(grad_j) / (L kappa |x_j|^2 / N + c_j) at these scores; 0 where it is no number."""
        plan, rows, weights, loss = round.plan, round.rows, round.told["weights"], round.plan.scaled_loss
        sums, squares = rows.column_sums(slopes(loss, scores, rows.labels), order)
        ridge = plan.scaled_regulariser.by_coordinate(self.dimension)[1][order]
        curvature = np.maximum(self.lot * loss.curvature_bound * squares / float(plan.records) + ridge, 1e-100)
        return np.asarray(np.nan_to_num(-(sums / float(plan.records) + ridge * weights[order]) / curvature, nan=0.0))


class PrimalState(Walk, Minimisers):
    """The paper's release: z_j sqrt N of `lot` coordinates, cut to C, and what they add to the noisy scores v.

    Columns are divided by sqrt N, so that their norm is at most 1, as in the paper.

    Guarantee: any two data sets give steps 2 C sqrt L apart and sums of L columns 2 C L apart at most: together
    2 C sqrt(L (L + 1)), the printed bound (Lemma 4). Zero-out moves the record's own score by half as much, so
    C sqrt(4 L + L^2 (4 - 3 / N)). Every entry has noise, also those of v.
    """

    name = "state"
    title: ClassVar[str] = "clipped minimisers along coordinates, with the scores of all records"
    each_person: ClassVar[bool] = True

    def __init__(self, problem: Problem, numbers: Numbers) -> None:
        super().__init__(problem, numbers)
        self.records, self.length = problem.records, self.lot + problem.records
        self.rounding_entries = float(self.length)

    def sensitivity(self, relation: Relation) -> float:
        own = either(relation, zero_out=3.0 / self.records, replace_one=0.0)
        return self.bound * math.sqrt(1 + self.lot * (1 - own / 4))

    def walk(self, round: Round, noise: Integers | None, step: float) -> Integers:
        rows, scores = round.rows, round.memory.values
        order, root = drawn_coordinates(round.plan, round.number), math.sqrt(round.plan.records)
        if noise is None:
            raise LeakError("the published release has noise.")
        steps = np.clip(root * self.steps(round, scores, order), -self.clip, self.clip)
        changes, moved = np.zeros(self.dimension), np.zeros(len(rows))
        changes[order] = steps / root
        rows.add_columns(changes, moved)
        grid = np.array(noise)
        grid[: self.lot] += np.rint(steps / step).astype(np.int64)
        grid[self.lot : self.lot + len(rows)] += np.rint(moved / step).astype(np.int64)
        round.memory.values = scores + grid[self.lot : self.lot + len(rows)] * step
        return grid


def drawn_coordinates(plan: Plan, number: int) -> NDArray[np.int64]:
    """L coordinates of a round, drawn without replacement by the public coin: coordinates are nobody's secret."""
    drawn = plan.public_coin(f"coordinates {number}").choice(plan.dimension, plan.numbers.lot, replace=False)
    return np.asarray(drawn, dtype=np.int64)


class PublishedPrimalSCD(PrivatePrimalSCD):
    """Noise of std 2 C sqrt(L (L + 1)) sigma on L weights and all N scores, MA(delta, sigma, 1, T) = epsilon.

    Section 3.2. L random coordinates a round, each step from the noisy scores; the last iterate. C is for columns of
    norm at most 1: the declared bound of an entry, times sqrt N.

    Guarantee: T Gaussians of that sensitivity, against everybody, cost mu = sqrt T / sigma (`proof.md`): less than the
    accountant says.
    """

    form: ClassVar[str] = "published"
    title: ClassVar[str] = "primal DP-SCD as published, with its scores in the open"
    private: ClassVar[bool | None] = True
    published: ClassVar[bool] = True
    lasts: ClassVar[tuple[str, ...]] = ("values",)  # the scores, whose noise is forgotten

    def design(self, problem: Problem, options: PrimalSCD) -> Design:
        design = super().design(problem, options)
        lot, rounds = design.numbers.lot, design.rounds
        clip = given(options.clip, math.sqrt(problem.records) * design.numbers.clip)
        numbers = PrimalNumbers(lot=lot, clip=clip)
        std = 2 * clip * math.sqrt(lot * (lot + 1)) * moments_noise_for(problem.epsilon, problem.delta, 1.0, rounds)
        release = Release.of(PrimalState(problem, numbers), 0, rounds, std)
        return Design(rounds=rounds, numbers=numbers, releases=(release,))

    def queries(self, plan: Plan, _party: str) -> tuple[Query, ...]:
        return (PrimalState(plan, plan.numbers),)

    def coordinate(self, plan: Plan) -> Coordination:
        weights, lot = np.zeros(plan.dimension), plan.numbers.lot
        for t in range(plan.rounds):
            state = yield from answer("state", weights=weights)
            weights = np.array(weights)
            weights[drawn_coordinates(plan, t)] += state[:lot] / math.sqrt(plan.records)
        return weights
