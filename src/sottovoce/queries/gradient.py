"""Sums of clipped slopes times rows. Proof: `gate/proofs/queries.md`, at row norm 1."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.block import Block, SumRows
from sottovoce.data.matrix import Slope, Slopes
from sottovoce.errors import InputError, LeakError
from sottovoce.gate.query import Array, Plain, Query, Reals, Round
from sottovoce.losses import ClassesLoss, Loss


class GradientSum(Query):
    """sum_i l'(x_i'w, y_i) x_i with |l'| <= slope_bound and |x_i| <= 1.

    Guarantee: zero-out moves it by at most slope_bound, replace-one by twice that, in l2.
    Edges: a null row and an empty block contribute 0; derivatives are clipped in code, a NaN to the bound.
    """

    name = "gradient"
    title: ClassVar[str] = "gradients of the loss"
    needs: ClassVar[type] = SumRows
    samples: ClassVar[bool] = True

    def __init__(self, dimension: int, slope_bound: float, loss: Loss) -> None:
        if not 1e-100 <= slope_bound <= 1e100:
            raise InputError(f"slope_bound={slope_bound!r} must be a positive finite number.")
        self.slope_bound, self.loss = slope_bound, loss
        self.bound, self.length, self.rounding_entries = slope_bound, dimension, float(dimension)
        self.takes = {"weights": Reals((dimension,))}

    def message(self, weights: Array, _gram: Array | None = None) -> dict[str, NDArray[Any]]:
        """What asks for it at these weights; the second argument is an opened Gram matrix, where there is one."""
        return {"weights": weights.ravel()}

    def joint_step(self, bits: int) -> float | None:
        return float(2.0 ** (math.ceil(math.log2(self.slope_bound)) - 2 * bits))

    def value(self, round: Round) -> Array:
        check_norm(round.rows)
        term = clipped_derivative(self.loss, self.slope_bound, round.rows.bits)
        return round.rows.weighted_sum(self.weights(round), term).ravel()

    def weights(self, round: Round) -> Array:
        return round.told["weights"]


class ColumnSizes(Plain):
    """sum_i x_ij^2 of every column j, the constant's too: what steps are measured by in a run without privacy."""

    name = "sizes"
    title: ClassVar[str] = "mean squares of the columns"
    needs: ClassVar[type] = SumRows

    def __init__(self, dimension: int) -> None:
        self.length = dimension

    def value(self, round: Round) -> Array:
        return round.rows.gram_diagonal()


class ClassesSum(GradientSum):
    """sum_i x_i l'(x_i'W, y_i) of several classes, a matrix: |l'| <= slope_bound, row by row, and |x_i| <= 1.

    Guarantee: zero-out moves it by at most slope_bound, replace-one by twice that, in the Frobenius norm.
    Edges: as of one score; a row of slopes with a NaN counts as (slope_bound, 0, ...).
    """

    samples: ClassVar[bool] = False

    def __init__(self, dimension: int, slope_bound: float, loss: ClassesLoss) -> None:
        super().__init__(dimension * loss.outputs, slope_bound, loss)

    def weights(self, round: Round) -> Array:
        return np.asarray(round.told["weights"].reshape(-1, self.loss.outputs))


def gradient_sum(dimension: int, slope_bound: float, loss: Loss) -> GradientSum:
    """Of one score for each record, or of several."""
    if isinstance(loss, ClassesLoss):
        return ClassesSum(dimension, slope_bound, loss)
    return GradientSum(dimension, slope_bound, loss)


def clipped_derivative(loss: Loss, bound: float, bits: int | None) -> Any:
    """The slopes of a sum. Without bits (a run without privacy) nothing is cut; the gate takes no such rows then."""
    if bits is None:
        return loss.derivative
    return Slopes(loss, bound, bits) if isinstance(loss, ClassesLoss) else Slope(loss, bound, bits)


def check_norm(rows: Block) -> None:
    """Refuse rows that may be longer than 1, which the bounds of sums over rows count on."""
    if rows.row_norm > 1.0:
        raise LeakError("the rows of the block are longer than the query's sensitivity allows for.")
