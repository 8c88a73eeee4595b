"""What the dual solvers share: duals that stay with their holders, steps of them, and the descent on their sum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sottovoce.algorithms.base import Algorithm, Array, Coordination, Need, TailAverage, answers
from sottovoce.data.block import Block, exact_bits, exact_weights
from sottovoce.data.kernels.dual_loops import DualMoves
from sottovoce.errors import InputError, LeakError
from sottovoce.gate.query import Query, Reals, Round
from sottovoce.losses import coded
from sottovoce.plan import Numbers, Plan, Problem
from sottovoce.plan.release import Count
from sottovoce.solvers import DualStep

SMALLEST_CLIP, LARGEST_CLIP = 1e-90, 1024.0
WITH_DUAL = Need(
    lambda loss: loss.code is not None and loss.convex,
    f"needs a loss with a dual step ({', '.join(each.name for each in coded() if each.convex)}), not {{!r}}",
)

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Clip = Annotated[float, Field(ge=SMALLEST_CLIP, le=LARGEST_CLIP)]


class DualNumbers(Numbers):
    """lam, the weight of the squares, and the step that duals of the logistic loss take."""

    ridge: Positive
    dual_step: DualStep


class ClippedNumbers(DualNumbers):
    """C, and over how many rounds at the end the weights are averaged."""

    clip: Clip
    averaged: Count


class DualAlgorithm(Algorithm):
    """v <- v + what the holders' records moved it by, with noise; w = v / (lam N), v = sum_i a_i x_i.

    The objective is (1/N) sum_i l(x_i'w, y_i) + (lam/2) |w|^2, intercept included. There is a dual a_i per record.
    """

    needs: ClassVar[tuple[Need, ...]] = (WITH_DUAL,)
    query: ClassVar[type[DualQuery]]
    lasts: ClassVar[tuple[str, ...]] = ("duals",)  # they follow from coins that are forgotten

    def queries(self, plan: Plan, _party: str) -> tuple[Query, ...]:
        return (self.query(plan, plan.numbers),)

    def remember(self, _plan: Plan, rows: Block) -> Array:
        """The duals of the holder's records: they stay here."""
        return np.zeros(len(rows))

    def lasting(self, memory: Array) -> dict[str, NDArray[Any]]:
        return {"duals": memory}

    def recall(self, memory: Array, lasting: Mapping[str, NDArray[Any]]) -> Array:
        memory[:] = lasting["duals"]
        return memory

    def coordinate(self, plan: Plan) -> Coordination:
        """The mean over the last part of the rounds: the duals have not yet answered the newest noise."""
        v, release = np.zeros(plan.dimension), plan.releases[0]
        tail = TailAverage(plan.dimension, plan.rounds - plan.numbers.averaged)
        for t in range(0, plan.rounds, release.batches):
            moves = yield from answers(release.query, weights=weights_of(plan, v))
            together = np.asarray(sum(move[: release.batches * plan.dimension] for move in moves.values()))
            for k, move in enumerate(together.reshape(release.batches, plan.dimension)):
                v += move
                tail.add(t + k, weights_of(plan, v))
        return tail.value


class DualQuery(Query):
    """Steps of duals at public weights; it moves the duals in `Round.memory`."""

    def __init__(self, problem: Problem, numbers: Numbers) -> None:
        self.dimension = self.length = problem.dimension
        self.rounding_entries = float(problem.dimension)
        loss = problem.scaled_loss
        code = loss.dual_codes.get(numbers.dual_step, loss.code)
        if code is None:
            raise InputError(f"loss={loss.name!r} has no dual step.")
        self.code: int = code  # of the loss and its step, in the kernels
        self.takes = {"weights": Reals((self.dimension,))}


class ClippedSteps(DualQuery):
    """sum of z_i x_i over some records, z_i their dual steps clipped to |z_i x_i| <= clip.

    Edges: a null row takes no step, and neither does one whose step is no number. A clip at which sums over the plan's
    records would not be exact is refused.
    """

    def __init__(self, problem: Problem, numbers: Numbers) -> None:
        super().__init__(problem, numbers)
        self.bound = clip = numbers.clip
        if exact_bits(problem.records) < math.ceil(math.log2(clip)):
            raise InputError(
                f"clip={clip!r}: sums of such steps are not exact over {problem.records} records; take fewer records "
                "or a smaller clip."
            )


def move(round: Round, *, code: int, factor: float, clip: float, scale: float = 0.0) -> Array:
    """Step the duals of the round's rows and return sum_i z_i x_i; with `scale` the weights follow each step."""
    rows, weights, grid = round.rows, np.array(round.told["weights"], dtype=np.float64), -1
    if round.plan.private:
        if rows.bits is None or rows.row_norm > 1.0:
            raise LeakError("the rows were not prepared for dual steps with noise.")
        grid = rows.bits - math.ceil(math.log2(clip))
        weights = exact_weights(weights, rows.bits)
    steps = DualMoves(code, round.plan.scaled_loss.parameter, factor, clip, grid, scale)
    return rows.dual_rows(weights, round.memory, steps)


def weights_of(plan: Plan, v: Array) -> Array:
    """W = v / (lam N)."""
    return np.asarray(v / (plan.numbers.ridge * plan.records))


def ridge_of(solver: str, problem: Problem) -> float:
    """lam, the weight of the squares; without it there is no dual."""
    lam = problem.scaled_regulariser.ridge
    if lam is None or not lam > 0:
        raise InputError(
            f"solver={solver!r} needs an l2 penalty with alpha > 0, not {problem.regulariser.name!r} with "
            f"{problem.regulariser.parameters}: its duals exist for a strongly convex objective alone. Try alpha=1e-3."
        )
    if not 1e-80 <= lam <= 1e80:
        raise InputError(
            f"alpha={problem.regulariser.parameters['alpha']!r} weighs {lam:.3g} on prepared rows, outside 1e-80 to "
            "1e80, where dual steps can be told from zero. Try alpha=1e-3."
        )
    return lam
