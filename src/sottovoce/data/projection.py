"""Rows times a public matrix, clipped to a public length, and sums over them in which a record has its own term.

Proof: `algorithms/whitened/proof.md`.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.kernels import row_loops as kernels
from sottovoce.data.matrix import (
    COSTLY,
    NONE,
    NUMBERS,
    Slope,
    Term,
    dense,
    exact_product,
    exact_weights,
    is_sparse,
    rows_at_once,
    toward_zero,
)
from sottovoce.data.resources import run_parts, sum_parts
from sottovoce.errors import LeakError

if TYPE_CHECKING:
    from sottovoce.data.block import Block

Array = NDArray[np.float64]

PANEL = 64  # columns of a triangular matrix that are taken together


class Projected:
    """z_i = P'x_i for a lower triangular matrix P or, as a vector, the diagonal of one; made for their lengths alone.

    z'u = x'(P u), and a sum of c_i z_i is P' times that of c_i x_i: rows stay as they are, and sparse ones sparse.
    Guarantee: lengths and scores are functions of x_i and public numbers alone, to the last bit, wherever the row
    stands: P is put on a grid on which x'P is exact, and squares are added in the order of the columns.
    Edges: a null row is 0; entries of P are at most 2^40, so no square overflows.
    """

    triangular: ClassVar[bool] = True
    found: Array  # what takes long to find, of rows that are not cut: for each its length
    width: int = 1  # how many numbers that are for a row

    def __init__(self, block: Block, projection: Array) -> None:
        self._block, self.ready = block, False  # whether the rows were cut
        matrix = np.tril(projection) if projection.ndim == 2 and self.triangular else projection
        self.bits, self._matrix = _put_on_grid(block, matrix)
        self._find(None)

    def of(self, block: Block, found: Array | None = None) -> Self:
        """The same view of other rows, not cut yet; `found` is what was found of them before, if anything was."""
        other = copy.copy(self)
        other._block, other.ready = block, False
        other._find(found)
        return other

    def _find(self, found: Array | None) -> None:
        block, matrix, rows = self._block, self._matrix, self._block.rows
        if found is None and is_sparse(rows) and matrix.ndim == 1:
            found = np.asarray(kernels.lengths_sparse(rows.indptr, rows.data * matrix[rows.indices]))
        if found is not None:
            self.lengths = self.found = found
            return
        lengths = self.lengths = self.found = np.empty(len(block))
        least = rows_at_once(block.dimension, product=True)

        def fill(first: int, last: int) -> None:
            spare = np.empty((min(PANEL, len(matrix)), min(least, last - first)))
            for piece, labels in block.pieces(rows, first, last, least, block.dimension):
                own = slice(first, first + len(labels))
                if matrix.ndim == 1 or is_sparse(piece):
                    lengths[own] = kernels.lengths_dense(piece * matrix if matrix.ndim == 1 else piece @ matrix)
                else:  # without what is 0, and as NumPy does it, since SciPy's triangular product holds Python's lock
                    squares = np.zeros(len(labels))
                    for column in range(0, len(matrix), PANEL):
                        panel = matrix[column:, column : column + PANEL].T
                        part = np.matmul(panel, piece[:, column:].T, out=spare[: len(panel), : len(labels)])
                        kernels.add_squares(part, squares)
                    lengths[own] = np.sqrt(squares)
                first = own.stop

        run_parts(fill, block.resources.cuts(len(block), len(block) * block.dimension), blas=matrix.size)

    def number_sum(self, term: Callable[[Array, Array], Array]) -> float:
        """sum_i of term(|z_i|, y_i) clipped to [0, 1], as `Block.number_sum`."""
        return self._block.number_sum(term, numbers=self.lengths)

    def cut(self, length: float) -> None:
        """Count each row as z min(1, C / |z|), C the length; once. The sums are in units of C.

        Guarantee: a row is shorter than C by what rounding can add to its length and to a sum of all rows.
        """
        if self.ready:
            raise LeakError("the rows were cut already.")
        room = 1.0 - (self._matrix.shape[-1] + self._block.records + 8) * 2.0**-50
        self._length, self._shares = length, room * length / np.maximum(self.lengths, length)
        self.ready = length > 0.0

    def weighted_sum(self, point: Array, term: Term) -> Array:
        """sum_i term(z_i'u, y_i) times the cut row, u the point; exact but for a last rounding of the sum.

        Of a matrix u the terms of a record are a row, and the sum is a matrix. No term is larger than 1.
        """
        if not self.ready:
            raise LeakError("the rows were not cut.")
        if term.bound > 1.0 or term.bits != self.bits:
            raise LeakError("the slopes are larger than the query's sensitivity allows for, or on another grid.")
        return self.finished(self.exact_sum(point, term))

    def exact_sum(self, point: Array, term: Term) -> Array:
        """What is exact of it: those of parts of the rows add up to that of all."""
        times = functools.partial(np.multiply if self._matrix.ndim == 1 else np.matmul, self._matrix)
        return self._block.weighted_sum(_each(times, point), term, self._shares)

    def finished(self, total: Array) -> Array:
        """Seen through the matrix, in units of C: the last rounding."""
        times = functools.partial(exact_product, self._matrix, bits=self.bits, size=self._block.records)
        return _each(times, total) / self._length


class ProjectedRows(Projected):
    """The same for any matrix P of few columns: rows z_i are made once, cut, put on the grid, and summed exactly."""

    triangular: ClassVar[bool] = False

    def _find(self, found: Array | None) -> None:
        block, matrix, self.width = self._block, self._matrix, int(self._matrix.shape[1])
        rows = self._rows = (
            np.empty((len(block), self.width)) if found is None else found.reshape(-1, self.width).copy()
        )
        lengths = self.lengths = np.empty(len(rows))
        self.found = rows

        def fill(first: int, last: int) -> None:
            start = first
            if found is None:
                least = rows_at_once(block.dimension, product=True)
                for piece, labels in block.pieces(block.rows, first, last, least, self.width):
                    rows[start : start + len(labels)] = piece @ matrix
                    start += len(labels)
            lengths[first:last] = kernels.lengths_dense(rows[first:last])

        run_parts(fill, block.resources.cuts(len(rows), len(rows) * block.dimension), blas=True)

    def cut(self, length: float) -> None:
        super().cut(length)
        self._shares /= length
        self._rows *= self._shares[:, None]
        toward_zero(self._rows, self.bits)

    def exact_sum(self, point: Array, term: Term) -> Array:
        """The score is that of the cut row times what it was divided by."""
        block, exact = self._block, exact_weights(point, self.bits)
        own_shares, cuts = block.shares, block.resources.cuts(len(block), COSTLY * len(block))
        if isinstance(term, Slope) and term.serves(block.labels):
            told: Any = (term.code, term.numbers, NONE if own_shares is None else own_shares)
            work = functools.partial(kernels.slope_sum_few, self._rows, self._shares, block.labels, exact, told)
            return np.asarray(sum_parts(work, cuts))

        def part(start: int, stop: int) -> Array:
            total = np.zeros(self.width)
            for first in range(start, stop, NUMBERS):
                own = slice(first, min(first + NUMBERS, stop))
                rows = self._rows[own]
                counted = () if own_shares is None else (own_shares[own],)
                total += rows.T @ term((rows @ exact) / self._shares[own], block.labels[own], *counted)
            return total

        return np.asarray(sum_parts(part, cuts, blas=True))

    def finished(self, total: Array) -> Array:
        return total


def short_rows(block: Block, projection: Array, weights: Array) -> Iterator[tuple[Array, Array, Array, Array]]:
    """Piece by piece z_i = c_i P'x_i, c_i = min(1, 1 / |P'x_i|), P triangular; c_i, the scores x_i'w and the labels.

    Guarantee: each is a function of its own record and of public numbers, to the last bit. z_i is on the grid of the
    rows and no longer than 1, so sums of products of two of its entries are exact. Edges: a null row has z_i = 0; in a
    run without privacy z_i = x_i and c_i = 1.
    """
    if block.bits is None:
        for rows, labels in block.chunks(rows_at_once(block.dimension, product=True), block.dimension):
            yield dense(rows), np.ones(len(labels)), rows @ weights, labels
        return
    bits, matrix = _put_on_grid(block, np.tril(projection))
    exact, room = exact_weights(weights, bits), 1.0 - (block.dimension + 8) * 2.0**-50
    for narrow, labels in block.chunks(rows_at_once(block.dimension, product=True), block.dimension):
        rows = narrow.astype(np.float64, copy=False)
        short = np.ascontiguousarray(dense(rows @ matrix))
        shares = 1.0 / np.maximum(kernels.lengths_dense(short), 1.0)
        short *= (room * shares)[:, None]
        yield toward_zero(short, bits), shares, rows @ exact, labels


def _each(function: Callable[[Array], Array], vectors: Array) -> Array:
    """Of a vector, or of each column of a matrix."""
    return function(vectors) if vectors.ndim == 1 else np.column_stack([function(column) for column in vectors.T])


def _put_on_grid(block: Block, projection: Array) -> tuple[int, Array]:
    """The bits of the rows, and P such that every entry of x'P is exact in any order.

    A diagonal has columns of one entry each. Rows that are not on a grid, or may be longer than 1, are refused.
    """
    if block.bits is None or block.row_norm > 1.0:
        raise LeakError("the rows were not prepared for exact scores.")
    columns = np.abs(projection) if projection.ndim == 1 else np.sqrt(np.einsum("ij,ij->j", projection, projection))
    return block.bits, exact_weights(projection, block.bits, float(columns.max(initial=0.0)))
