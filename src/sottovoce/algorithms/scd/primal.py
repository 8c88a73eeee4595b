"""`scd-primal`: clipped coordinate minimisers with noise (primal DP-SCD, accounted soundly)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Ask, Coordination, Design, Problem, Solution, TailAverage, draft, option
from sottovoce.algorithms.cd.private import CoordinateAlgorithm, Moves, on_columns, visits
from sottovoce.data.block import Block
from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.data.kernels import coordinates as kernels
from sottovoce.door.gate import Gate, Released
from sottovoce.door.query import Query, Walk
from sottovoce.errors import InputError, RefusedError
from sottovoce.losses import Loss
from sottovoce.plan.plan import Plan, Release, Split
from sottovoce.privacy.accounting import Relation

Array = NDArray[np.float64]


class PrimalSCD(CoordinateAlgorithm):
    """w_j <- w_j + z_j + noise for L coordinates a round, z_j = cut(-(grad_j) / (L kappa |x_j|^2 / N + c_j), C).

    z_j minimises the quadratic model of F along coordinate j with the curvature multiplied by L, since L coordinates
    move at once. Only w leaves; the scores Xw are recomputed from it by their holder.

    Guarantee: z_j is a ratio of sums over all records, so nothing but the cut bounds it: a release moves by 2 C sqrt L
    in both relations, and mu^2 = rounds (2 C sqrt L / std)^2 (`proof.md`). The noise does not fall with the
    number of records; `cd` has what this method lacks. Edges: null rows add 0; data in one place only.
    """

    name: ClassVar[str] = "scd-primal"
    title: ClassVar[str] = "primal stochastic coordinate descent (DP-SCD, Algorithm 2)"
    splits: ClassVar[tuple[Split, ...]] = ("central",)
    options: ClassVar[tuple[str, ...]] = ("rounds", "lot", "clip")

    def mismatch(self, loss: Loss, split: Split) -> str | None:
        """By rows the minimiser is no sum over holders."""
        if split == "rows":
            return f"solver={self.name!r} serves data in one place: its steps are no sums over records; take 'cd'"
        return super().mismatch(loss, split)

    def design(self, problem: Problem) -> Design:
        """Ten passes; a coordinate of the scaled features can travel 4 in all."""
        if problem.regulariser.name not in ("l2", "none"):
            raise InputError(f"solver={self.name!r} needs an l2 penalty or none, not {problem.regulariser.name!r}.")
        private = math.isfinite(problem.epsilon)
        lot = option(problem, "lot", 1, low=1, high=problem.dimension, whole=True)
        passes = 10 if private else 2000
        rounds = option(problem, "rounds", math.ceil(passes * problem.dimension / lot), low=1, whole=True)
        travel = 4.0 * problem.dimension / (lot * rounds)
        clip = option(problem, "clip", min(1.0, travel), low=SMALLEST, high=LARGEST)
        numbers = {"lot": lot, "clip": clip, "order": 0, "step": 1.0}
        query = Minimisers(draft(problem, numbers, "columns"))
        release = (
            Release.at_mu(query, 0, rounds, problem.mu, problem.relation)
            if private
            else Release.of(query, 0, rounds, 0.0, 1.0)
        )
        return Design(rounds, numbers, (release,), layout="columns")

    def queries(self, plan: Plan) -> Mapping[str, Query | Walk]:
        """The clipped minimisers."""
        return {"minimisers": Minimisers(plan)}

    def coordinate(self, plan: Plan) -> Coordination:
        """Take the steps; return the mean of the second half."""
        weights = np.zeros(plan.dimension)
        tail = TailAverage(plan.dimension, plan.rounds // 2 if plan.private else plan.rounds - 1)
        passes, largest = math.ceil(plan.dimension / plan["lot"]), 0.0
        for t in range(plan.rounds):
            (steps,) = (yield Ask("minimisers", {"weights": weights})).values()
            weights = np.array(weights)
            np.add.at(weights, self._turn(plan, t), steps)
            tail.add(t, weights)
            largest = max(largest, float(np.abs(steps).max()))
            if (t + 1) % passes == 0 and not plan.private:
                if largest <= 1e-13 * max(1.0, float(np.abs(weights).max())):
                    return Solution(weights, {"violation": largest})
                largest = 0.0
        return tail.value

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
        """The next coordinates of the public order."""
        return gate.gaussian(query, round_, block, arrays["weights"], memory, self._turn(plan, round_))

    def example(self, plan: Plan, query: str) -> Ask:
        """Weights alone: the curvatures stay at the holder."""
        return Ask(query, {"weights": np.zeros(plan.dimension)})

    def _turn(self, plan: Plan, round_: int) -> NDArray[np.int64]:
        lot = int(plan["lot"])
        return visits(plan, lot * round_, lot)


class Minimisers:
    """z_j of `lot` coordinates, each cut to [-clip, clip].

    Guarantee: any two data sets give values at most 2 clip sqrt(lot) apart, in l2.
    """

    name = "minimisers"

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        lot, self.clip = plan["lot"], plan["clip"]
        if not 1 <= lot <= plan.dimension or int(lot) != lot:
            raise InputError(f"lot={lot!r} must be a whole number from 1 to {plan.dimension}, the coordinates.")
        if not SMALLEST <= self.clip <= LARGEST:
            raise InputError(f"clip={self.clip!r} must be a number from {SMALLEST:g} to {LARGEST:g}.")
        if plan.layout != "columns":
            raise InputError(f"layout={plan.layout!r} must be 'columns': the sums are over columns.")
        self.lot = int(lot)
        self.moves = Moves(plan, np.ones(plan.dimension))
        self.entries = float(self.lot)
        self.weights = np.ones(self.lot)

    def sensitivity(self, relation: Relation) -> float:  # noqa: ARG002
        """2 C sqrt L under both relations."""
        return 2 * self.clip * math.sqrt(self.lot) * (1 + 2.0**-40)  # the last bits of its own rounding

    def value(self, block: Block, *arguments: Any) -> Array:
        """Sums over the columns of the lot alone."""
        weights, memory, order = arguments
        if len(order) != self.lot:
            raise RefusedError("the round has other coordinates than the plan.")
        moves = self.moves
        scores = memory.follow(block, weights)
        slopes = np.empty(len(scores))
        kernels.fill_slopes(moves.code, moves.parameter, scores, block.labels, slopes)
        sums, squares = on_columns(block, kernels.column_sums_dense, kernels.column_sums_sparse, slopes, order)
        ridge = moves.terms[1][order]
        bend = np.maximum(self.lot * moves.loss.curvature_bound * squares / moves.records + ridge, 1e-100)
        steps = np.nan_to_num(-(sums / moves.records + ridge * weights[order]) / bend, nan=0.0)
        return np.clip(steps, -self.clip, self.clip) if self.plan.private else np.asarray(steps)
