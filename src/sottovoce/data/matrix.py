"""Matrices, dense and sparse alike: what preparation and block both need, and plain products on no grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Array = NDArray[np.float64]
Matrix = Any  # a C-ordered array or a CSR matrix: both answer to @, .T and row slices

CHUNK = 1 << 16  # entries of a dense chunk: small enough to stay in cache between its two products
MANY_ROWS = 1024  # of a product of matrices at once: enough for its blocks, and for a matrix that is added to


def is_sparse(matrix: Matrix) -> bool:
    """Whether a matrix is sparse; a plain answer that narrows no type."""
    return bool(sp.issparse(matrix))


def dense(matrix: Matrix) -> Array:
    """The matrix in float64, with its zeros."""
    return np.asarray(matrix.toarray() if is_sparse(matrix) else matrix, dtype=np.float64)


def csr(matrix: Matrix) -> Matrix:
    """A CSR copy in float64 that has each entry once."""
    rows = sp.csr_matrix(matrix, dtype=np.float64, copy=True)
    rows.sum_duplicates()
    return rows


def row_squares(matrix: Matrix) -> Array:
    """|x_i|^2 of every row, the same whatever rows it is among."""
    if not is_sparse(matrix) and len(matrix) == 1:  # NumPy adds a long row that is alone in another order
        return row_squares(np.concatenate([matrix, matrix]))[:1]
    squares = matrix.multiply(matrix).sum(axis=1) if is_sparse(matrix) else np.einsum("ij,ij->i", matrix, matrix)
    return np.asarray(squares, dtype=np.float64).ravel()


def column_squares(matrix: Matrix) -> Array:
    """sum_i x_ij^2 of every column."""
    squares = matrix.multiply(matrix).sum(axis=0) if is_sparse(matrix) else np.einsum("ij,ij->j", matrix, matrix)
    return np.asarray(squares, dtype=np.float64).ravel()


def rows_at_once(dimension: int) -> int:
    """Rows of a dense chunk."""
    return max(64, CHUNK // max(dimension, 1))


class Products:
    """D w, D'v, and D'D through products with D: `products @ u` and `products.diagonal()`, as of a matrix.

    As a library multiplies, on no grid: for runs without privacy, and for what is bounded by other means.
    """

    def __init__(self, rows: Any) -> None:
        self._rows, self._back = rows, rows.T
        self.shape = (rows.shape[1], rows.shape[1])

    def scores(self, weights: Array) -> Array:
        """D w."""
        return np.asarray(self._rows @ weights)

    def sums(self, factors: Array) -> Array:
        """D'v."""
        return np.asarray(self._back @ factors)

    def __matmul__(self, weights: Array) -> Array:
        return np.asarray(self._back @ (self._rows @ weights))

    def diagonal(self) -> Array:
        return column_squares(self._rows)

    def square(self, most: int) -> Any:
        """D'D: a matrix up to so many columns; beyond, these products, which answer to the same calls."""
        if self.shape[0] > most:
            return self
        square = self._back @ self._rows
        return np.ascontiguousarray(square.toarray() if is_sparse(self._rows) else square, dtype=np.float64)

    def by_row(self) -> Products:
        """The same D with its rows lying together, so that `take` is fast."""
        return Products(self._rows.tocsr() if is_sparse(self._rows) else np.ascontiguousarray(self._rows))

    def take(self, indices: NDArray[np.int64] | slice) -> Products:
        return Products(self._rows[indices])

    def sum_of_squares(self) -> float:
        """|D|^2, all entries together."""
        entries = self._rows.data if is_sparse(self._rows) else self._rows.ravel()
        return float(entries @ entries)
