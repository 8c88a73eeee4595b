"""Rows seen through a public matrix and cut to a public length, on a grid on which sums over them are exact."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.block import ROWS, Block
from sottovoce.data.grid import exact_weights, toward_zero
from sottovoce.data.kernels import rows as kernels
from sottovoce.data.matrix import Matrix, is_sparse, rows_at_once
from sottovoce.errors import LeakError

Array = NDArray[np.float64]

BITS = 24  # of a projected entry: what float32 holds without loss


class Projected:
    """z_i = P'x_i of every row, for a matrix P or, as a vector, the diagonal of one (sparse rows then stay sparse).

    Guarantee: z_i and its length are functions of x_i and P alone, to the last bit, wherever the row stands: P is put
    on a grid on which x'P is exact, entries are rounded one by one, and squares are added in the order of the columns.
    Edges: a null row is 0; entries of P are at most 2^40, so no square overflows.
    """

    def __init__(self, block: Block, projection: Array) -> None:
        if block.bits is None or block.row_norm > 1.0:
            raise LeakError("the rows were not prepared for exact scores.")
        self._labels, self._bits = block.labels, min(block.bits, BITS)
        self._rows = _times(block, projection)
        self.lengths = _lengths(self._rows)
        self._cut: Block | None = None
        self._unit = np.ones(0)

    @property
    def ready(self) -> bool:
        """Whether the rows were cut."""
        return self._cut is not None

    def cut(self, length: float) -> None:
        """Make each row z min(1, C / |z|) / C, C the length, rounded toward zero on the grid; once, in place.

        Guarantee: no row is longer than 1 from then on. A factor just below 1 absorbs the rounding of the lengths.
        """
        if self.ready:
            raise LeakError("the rows were cut already.")
        slack = 1.0 - (self._rows.shape[1] + 8) * 2.0**-50
        factor = slack / np.maximum(self.lengths, length)
        if is_sparse(self._rows):
            wide = self._rows.data * np.repeat(factor, np.diff(self._rows.indptr))
            self._rows.data = toward_zero(wide, self._bits).astype(np.float32)
        else:
            step = rows_at_once(self._rows.shape[1])
            for start in range(0, len(factor), step):
                part = self._rows[start : start + step]
                part[...] = toward_zero(part * factor[start : start + step, None], self._bits)
        self._cut, self._unit = Block(self._rows, self._labels, self._bits), 1.0 / factor

    def weighted_sum(self, point: Array, offset: float, term: Callable[[Array, Array], Array]) -> Array:
        """sum_i term(z_i'u + offset, y_i) times the cut row, u the point, in one pass; exact for terms on the grid.

        The score is taken from the cut row and its length: nobody needs the rows as they were before.
        """
        if self._cut is None:
            raise LeakError("the rows were not cut.")
        exact = exact_weights(point, self._bits)
        total, start = np.zeros(self._cut.dimension), 0
        for rows, labels in self._cut.chunks():
            scores = (rows @ exact) * self._unit[start : start + len(labels)] + offset
            total += rows.T @ term(scores, labels)
            start += len(labels)
        return total

    @property
    def bits(self) -> int:
        """Of the grid of rows and terms."""
        return self._bits


def _times(block: Block, projection: Array) -> Matrix:
    """X P in float32; of a diagonal P as sparse as X."""
    rows, bits = block.rows, block.bits or 0
    if projection.ndim == 1:
        if not is_sparse(rows):
            return np.multiply(rows, projection, out=np.empty(rows.shape, dtype=np.float32), casting="same_kind")
        found = rows.astype(np.float32)
        found.data[...] = rows.data * projection[rows.indices]
        return found
    norm = math.sqrt(float(np.einsum("ij,ij->j", projection, projection).max(initial=0.0)))
    exact = exact_weights(projection, bits, norm)
    made = np.empty((len(block), projection.shape[1]), dtype=np.float32)
    for start in range(0, len(block), ROWS):
        made[start : start + ROWS] = rows[start : start + ROWS].astype(np.float64, copy=False) @ exact
    return made


def _lengths(rows: Matrix) -> Array:
    if is_sparse(rows):
        return np.asarray(kernels.lengths_sparse(rows.indptr, rows.data))
    return np.asarray(kernels.lengths_dense(rows))
