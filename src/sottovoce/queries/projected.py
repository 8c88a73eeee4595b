"""Rows seen through a public matrix: how long they are, and gradients in which no record weighs more than another.

The matrix P is made of earlier releases and told once; what it makes of the rows stays at the holder. A sum is divided
by what bounds a term, so every release here has sensitivity 1 whatever P and the clips are: the plan is fixed before
the run, and the coordinator multiplies. Proof: `algorithms/whitened/proof.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.block import SumRows
from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.data.matrix import Slope, Slopes
from sottovoce.data.projection import Projected
from sottovoce.gate.query import Array, ForgottenError, MessageArrays, Query, Reals, Round, Wholes, misfit
from sottovoce.losses import ClassesLoss, Loss
from sottovoce.plan import Plan, Problem
from sottovoce.queries.sums import NumberSum

Kind = Literal["triangular", "diagonal", "vectors"]

STEEPEST = 2.0**40  # entry of a projection
FINEST = 2**31 - 1  # whole numbers either side of 0 that an entry is told in
POSITIVE = Reals((1,), SMALLEST, LARGEST)


@dataclass(frozen=True)
class ProjectionShape:
    """How a projection of rows of `dimension` columns is told."""

    dimension: int
    kind: Kind  # as its lower triangle, as a diagonal, or as `columns` vectors
    columns: int = 0

    @property
    def takes(self) -> dict[str, Reals]:
        """What a message has of P: whole numbers of 4 bytes, and what one of them stands for."""
        d = self.dimension
        shape = {"triangular": (d * (d + 1) // 2,), "diagonal": (d,), "vectors": (d, self.columns)}[self.kind]
        return {"projection": Wholes(shape, -FINEST, FINEST), "unit": Reals((1,), SMALLEST, STEEPEST / FINEST)}

    def message(self, matrix: Array) -> dict[str, NDArray[Any]]:
        """What is sent for a matrix, or for the diagonal of one."""
        numbers = matrix[np.tril_indices(self.dimension)] if self.kind == "triangular" else matrix
        unit = max(float(np.abs(numbers).max()) / FINEST, SMALLEST)
        whole = np.clip(np.rint(numbers / unit), -FINEST, FINEST).astype(np.int64)
        return {"projection": whole, "unit": np.array([unit])}

    def matrix(self, told: MessageArrays) -> Array:
        """The matrix that was told, or the diagonal of it."""
        numbers = np.asarray(told["projection"] * float(told["unit"][0]))
        if self.kind != "triangular":
            return numbers
        full = np.zeros((self.dimension, self.dimension))
        full[np.tril_indices(self.dimension)] = numbers
        return full


class Seen(NamedTuple):
    """Rows seen through a P, and what was told of it and, once they are cut, of C."""

    rows: Projected
    told: dict[str, NDArray[Any]]


class LengthSum(NumberSum):
    """sum_i min(1, |P'x_i| / radius); the holder keeps P and the lengths for `ProjectedGradient`."""

    name = "length"
    title: ClassVar[str] = "the mean length of the whitened rows"

    def __init__(self, shape: ProjectionShape) -> None:
        self.shape, self.takes = shape, {**shape.takes, "radius": POSITIVE}

    def value(self, round: Round) -> Array:
        rows = round.rows.projected(self.shape.matrix(round.told), made=self.shape.kind == "vectors")
        told = {"projection": round.told["projection"], "unit": round.told["unit"]}
        round.memory["gradient"] = Seen(rows, told)
        radius = float(round.told["radius"][0])
        return np.array([rows.number_sum(lambda lengths, _: lengths / radius)])


class ProjectedGradient(Query):
    """sum_i z_i / C min(1, C / |z_i|) r(z_i'u + a, y_i), z_i = P'x_i, with |.| <= 1 for each record.

    r is the slope l' in units of G, `cut`. Of several classes u is a matrix with a column for each, a and r are vectors
    (`clip_rows`), and so the sum is a matrix, in the Frobenius norm.
    Guarantee: zero-out moves it by at most 1, replace-one by 2, whatever P, C, G, u and a are.
    Edges: a null row and an empty block contribute 0; a NaN slope counts as G. The first round is told C and, unless
    `LengthSum` was told it, P; a holder that has lost them asks for both, which any round may tell again.
    """

    name = "gradient"
    title: ClassVar[str] = "gradients of the loss on whitened rows"
    needs: ClassVar[type] = SumRows
    told_before: ClassVar[bool] = True  # whether `LengthSum` was told P
    bound = 1.0

    def __init__(self, shape: ProjectionShape, loss: Loss, first: float = math.inf) -> None:
        self.shape, self.loss, self.first = shape, loss, first  # the last is the first round
        self.length = (shape.columns or shape.dimension) * loss.outputs
        self.rounding_entries = float(self.length)
        self.takes = {"point": Reals((self.length,)), "offset": Reals((loss.outputs,)), "slope": POSITIVE}

    def takes_at(self, number: int) -> Mapping[str, Reals]:
        """u, a and G; in the first round C, and P where this query is told it."""
        if number > self.first:
            return self.takes
        return {**self.takes, "cut": POSITIVE, **({} if self.told_before else self.shape.takes)}

    def objection(self, number: int, told: MessageArrays) -> str | None:
        """Any round may tell P and C, both of them, again."""
        takes = self.takes_at(number)
        if "projection" in told:
            takes = {**takes, "cut": POSITIVE, **self.shape.takes}
        return misfit(takes, told)

    def value(self, round: Round) -> Array:
        memory, told, loss = round.memory, round.told, self.loss
        public = self.follows_from(told, memory)
        if "projection" in told:
            memory.clear()  # the rows of the stage before
            kept = {"projection": told["projection"], "unit": told["unit"]}
            matrix = self.shape.matrix(told)
            memory[self.name] = Seen(round.rows.projected(matrix, made=self.shape.kind == "vectors"), kept)
        seen: Seen = memory[self.name]
        rows = seen.rows
        if not rows.ready:
            rows.cut(float(public["cut"][0]))
            seen.told["cut"] = public["cut"]
        most, point, offset = float(told["slope"][0]), told["point"], told["offset"].tolist()
        if isinstance(loss, ClassesLoss):
            several = Slopes(loss, self.bound, rows.bits, most, tuple(offset))
            return rows.weighted_sum(point.reshape(-1, loss.outputs), several).ravel()
        return rows.weighted_sum(point, Slope(loss, self.bound, rows.bits, most, offset[0]))

    def follows_from(self, told: MessageArrays, memory: dict[str, Seen]) -> MessageArrays:
        """With P and C, as the rows were seen through them."""
        if "projection" in told:
            return told
        seen = memory.get(self.name)
        if seen is None or seen.rows.ready == ("cut" in told):  # a C for rows that have theirs comes with a P
            raise ForgottenError(f"query {self.name!r} needs rows that were projected and cut; tell P and C.")
        return {**seen.told, **told}


class ScaleGradient(ProjectedGradient):
    """The same for rows (score, 1): the derivatives by the slope and the intercept of a score."""

    name = "rescale"
    title: ClassVar[str] = "gradients of the slope and the intercept of the score"
    told_before: ClassVar[bool] = False


def first_round(problem: Problem, query: str) -> float:
    """The first round of a release; infinite where there is none yet."""
    return problem.release(query).first if isinstance(problem, Plan) and problem.has(query) else math.inf
