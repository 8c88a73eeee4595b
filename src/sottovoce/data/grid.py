"""The public grids on which sums are exact.

With b bits for rows and for derivatives and at most 2^(53 - 2b) rows, every product is a multiple of 2^-2b and every
partial sum fits in 53 bits, so float64 adds without rounding in any order: two neighbouring data sets differ by exactly
one record's term. Weights are put on a grid too, on which a score is exact: else its last bit would depend on where the
row stands in a batch, hence on which others were drawn.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import LeakError

Array = NDArray[np.float64]


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


def bounded(numbers: Array, low: float, bits: int) -> Array:
    """Numbers cut to [low, 1] and put on the grid, in an array of their own; a NaN counts as 1."""
    return toward_zero(np.fmax(np.fmin(numbers.astype(np.float64), 1.0), low), bits)


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
    return np.array([math.fsum(sums) for sums in (matrix.T @ np.column_stack(digits)).tolist()])
