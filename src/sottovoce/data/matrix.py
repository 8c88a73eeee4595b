"""Matrices, dense and sparse alike, and the public grids on which sums over their rows are exact.

With b bits for rows and for derivatives and at most 2^(53 - 2b) rows, every product is a multiple of 2^-2b and every
partial sum fits in 53 bits, so float64 adds without rounding in any order: two neighbouring data sets differ by exactly
one record's term. Weights are put on a grid too, on which a score is exact: else its last bit would depend on where the
row is in a batch, hence on which others were drawn.

What a sum multiplies each row by is the slope of its loss, clipped to a bound and put on the grid. It is data, not a
closure: a block may run it in a fused loop, on other machines or on a device, and every block must arrive at the same
bits. `losses/kernels.fill_terms` is the one definition of those that have a code.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sottovoce.errors import LeakError
from sottovoce.losses import ClassesLoss, Loss, Weighted
from sottovoce.losses.kernels import fill_terms

Array = NDArray[np.float64]
Matrix = Any  # a C-ordered array or a CSR matrix: both answer to @, .T and row slices

is_sparse: Callable[[Any], bool] = sp.issparse  # a plain answer that narrows no type
NONE = np.zeros(0)
CHUNK = 1 << 16  # entries of a dense chunk: small enough to stay in cache between its two products
MANY_ROWS, MANY = 1024, 1 << 18  # the same of a product of matrices: rows at least, and entries

NUMBERS = 1 << 14  # records whose numbers are worked on together: they stay in cache from step to step
COSTLY = 16  # entries of dense rows that take as long as these steps on one record


def dense(matrix: Matrix) -> Array:
    """The matrix in float64, with its zeros."""
    return np.asarray(matrix.toarray() if is_sparse(matrix) else matrix, dtype=np.float64)


def csr(matrix: Matrix) -> Matrix:
    """A CSR matrix that has each entry once; its arrays may be those of the matrix."""
    rows = sp.csr_matrix(matrix)
    if not rows.has_canonical_format:
        rows = rows.astype(np.float64, copy=True)
        rows.sum_duplicates()
    return rows


def readable(entries: NDArray[Any]) -> NDArray[Any]:
    """Entries that loops can read: as they are, or in float64."""
    kind = entries.dtype
    known = kind.kind in "fiub" and kind.isnative and kind != np.float16 and kind.itemsize <= 8
    return entries if known else entries.astype(np.float64)


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


def rows_at_once(dimension: int, *, product: bool = False) -> int:
    """Rows of a dense chunk; of one for a `product` with a matrix, enough for its blocks and for a sum of matrices."""
    least, entries = (MANY_ROWS, MANY) if product else (64, CHUNK)
    return max(least, entries // max(dimension, 1))


def exact_bits(records: int) -> int:
    """Bits b such that sums of `records` products of two b-bit numbers are exact in float64."""
    return (53 - math.ceil(math.log2(max(records, 2)))) // 2


def toward_zero(values: Array, bits: int) -> Array:
    """Round to multiples of 2^-bits toward zero, in place."""
    scale = 2.0**bits
    values *= scale
    np.trunc(values, out=values)
    values *= 1.0 / scale
    return values


def exact_weights(weights: Array, bits: int, norm: float | None = None) -> Array:
    """Weights rounded toward zero so that x'w is exact in float64, in any order, for rows on the grid 2^-bits.

    With |x| <= 1 and |w| <= 2^e every sum of terms x_j w_j is at most 2^e; on the grid 2^(e + bits - 52) it is a
    multiple of 2^(e - 52). The grid is never finer than for e = -400, so that no product is subnormal. `norm` is |w| in
    the norm dual to the one that bounds x; by default both are Euclidean.
    """
    exact = np.array(weights, dtype=np.float64)
    exponent = max(math.frexp(math.sqrt(float(exact @ exact)) if norm is None else norm)[1], -400)
    return toward_zero(exact, 52 - bits - exponent)


def exact_product(matrix: Array, vector: Array, bits: int, size: int) -> Array:
    """P'v, each entry the float64 nearest to the exact one: v of multiples of 2^-2bits, |v| <= size.

    P is as `exact_weights` leaves it, with the norm of its longest column; as a vector it is a diagonal. v is cut into
    digits so short that the product with each is exact in any order; their sum is rounded once.
    """
    if matrix.ndim == 1:
        return matrix * vector
    top, digit = math.ceil(math.log2(max(size, 2))), bits - math.ceil(math.log2(len(vector)) / 2)
    if digit < 1:
        raise LeakError(f"sums of {len(vector)} columns are not exact with {bits} bits; use fewer records or columns.")
    rest, digits = vector.copy(), list[Array]()
    for place in range(digit, top + 2 * bits + digit, digit):
        digits.append(toward_zero(rest.copy(), place - top))
        rest -= digits[-1]
    return np.array(list(map(math.fsum, (matrix.T @ np.column_stack(digits)).tolist())))


class Products:
    """D w, D'v, and D'D through products with D: `products @ u` and `products.diagonal()`, as of a matrix.

    As a library multiplies, on no grid: for runs without privacy, and for what is bounded by other means.
    """

    def __init__(self, rows: Any) -> None:
        self._rows, self._back = rows, rows.T
        self.shape = (rows.shape[1], rows.shape[1])

    def scores(self, weights: Array) -> Array:
        return np.asarray(self._rows @ weights)

    def sums(self, factors: Array) -> Array:
        return np.asarray(self._back @ factors)

    def __matmul__(self, weights: Array) -> Array:
        return np.asarray(self._back @ (self._rows @ weights))

    def diagonal(self) -> Array:
        return column_squares(self._rows)

    def square(self, most: int) -> Any:
        """D'D: a matrix up to `most` columns; beyond, these products, which answer to the same calls."""
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


@dataclass(frozen=True)
class Slope:
    """l'(u + offset, y) clipped to [-bound, bound] and rounded toward zero on the exact grid: enforced, not assumed.

    With `most` slopes are in units of it, and clipped to [-1, 1] (`shrink_slopes`); the bound is 1.

    Guarantee: |slope| <= bound for any record, loss and score; a NaN counts as the bound.
    """

    loss: Loss
    bound: float
    bits: int  # of the grid of the rows
    most: float | None = None
    offset: float = 0.0

    @functools.cached_property
    def code(self) -> int | None:
        """What a fused loop knows the loss by; None: it knows no such loss, and the slopes are asked of the loss."""
        kind = type(self.loss.inner if isinstance(self.loss, Weighted) else self.loss)
        return kind.slope_code if "slope_code" in vars(kind) else None  # one that inherits it may have another slope

    def serves(self, labels: NDArray[Any]) -> bool:
        """Whether a fused loop takes these labels: those with exposures are asked of the loss."""
        return self.code is not None and labels.dtype.names is None

    @functools.cached_property
    def numbers(self) -> Array:
        """What `fill_terms` takes after the code."""
        loss, weights = self.loss, (1.0, 1.0)
        if isinstance(self.loss, Weighted):
            loss, weights = self.loss.inner, (self.loss.weights[0], self.loss.weights[1])
        unit = 0.0 if self.most is None else -self.most if self.loss.kind == "classification" else self.most
        grid = self.bits - math.ceil(math.log2(self.bound))  # as many bits as rows have, below the bound
        return np.array([loss.parameter, *weights, unit, self.bound, 2.0**grid, self.offset])

    def __call__(self, scores: Array, labels: Array, shares: Array = NONE) -> Array:
        """The slopes of records; times their `shares`, of which none is above 1, before they are rounded."""
        if self.serves(labels):
            found = np.empty(len(scores))
            at = np.array(scores, dtype=np.float64)
            fill_terms(self.code or 0, self.numbers, at, labels, shares, np.empty_like(found), found)
            return found
        at = np.asarray(scores) + self.offset if self.offset else scores
        if self.most is None:
            found = _clip_slopes(slopes_of(self.loss, at, labels), self.bound)
        else:
            found = shrink_slopes(self.loss, self.most, at, labels)
        if len(shares):
            found *= shares
        return toward_zero(found, self.bits - math.ceil(math.log2(self.bound)))


@dataclass(frozen=True)
class Slopes:
    """The same of several classes, a row of slopes for each record: no row is longer than the bound."""

    loss: ClassesLoss
    bound: float
    bits: int
    most: float | None = None
    offset: tuple[float, ...] = ()

    def __call__(self, scores: Array, labels: Array, shares: Array = NONE) -> Array:
        """The rows of slopes of records; times their `shares`, of which none is above 1, before they are rounded."""
        if self.offset:
            scores = scores + np.array(self.offset)
        slopes = self.bound * clip_rows(self.loss, self.bound if self.most is None else self.most, scores, labels)
        if len(shares):
            slopes *= shares[:, None]
        return toward_zero(slopes, self.bits - math.ceil(math.log2(self.bound)))


Term = Slope | Slopes


def slopes_of(loss: Loss, scores: Array, labels: Array) -> Array:
    """l'(u, y) as numbers of their own in double precision, whatever a registered loss returns.

    What follows is done in place: a float32 would round past a bound, and an array that is also the labels would
    change them.
    """
    with np.errstate(all="ignore"):  # a warning that a record caused could be turned into an error
        return np.array(loss.derivative(scores, labels), dtype=np.float64)


def shrink_slopes(loss: Loss, most: float, scores: Array, labels: Array) -> Array:
    """Slopes in units of `most`, within [-1, 1]; a NaN counts as 1.

    Residuals are cut one by one. Of classes the slopes of both labels at a score are scaled alike, so that the larger
    is 1 at most: there the right odds still make the mean slope 0, and a cut moves no intercept. Cut one by one at 1/2,
    a share of .42 would get the intercept of .36.
    """
    slopes = slopes_of(loss, scores, labels)
    if loss.kind == "classification":
        other = np.abs(slopes_of(loss, scores, -labels))
        slopes /= np.maximum(np.maximum(np.abs(slopes), other, out=other), most, out=other)
    else:
        with np.errstate(all="ignore"):
            slopes /= most
    return _clip_slopes(slopes, 1.0)


def _clip_slopes(slopes: Array, bound: float) -> Array:
    """Cut to [-bound, bound] in place: fmin takes the bound where a slope is NaN, which clip would let through."""
    np.fmin(slopes, bound, out=slopes)
    return np.fmax(slopes, -bound, out=slopes)


def clip_rows(loss: ClassesLoss, most: float, scores: Array, labels: Array) -> Array:
    """Rows of slopes of several classes in units of `most`, no longer than 1; with a NaN a row is (1, 0, ...).

    Those of all labels at a row of scores are scaled alike, so that the longest is 1 at most: there the right shares
    still make the mean row 0, and a cut moves no intercept.
    """
    with np.errstate(all="ignore"):
        slopes, lengths = loss.slopes(scores, labels)
        longest = np.maximum(lengths.max(axis=1), np.sqrt((slopes * slopes).sum(axis=1)))
        slopes *= ((1.0 - 2.0**-40) / np.maximum(longest, most))[:, None]
    unusable = ~np.isfinite(slopes).all(axis=1)
    slopes[unusable] = 0.0
    slopes[unusable, 0] = 1.0
    return slopes
