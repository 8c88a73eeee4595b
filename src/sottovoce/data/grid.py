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


def exact_weights(weights: Array, bits: int, norm: float | None = None) -> Array:
    """Weights rounded toward zero so that x'w is exact in float64, in any order, for rows on the grid 2^-bits.

    With |x| <= 1 and |w| <= 2^e every sum of terms x_j w_j is at most 2^e; on the grid 2^(e + bits - 52) it is a
    multiple of 2^(e - 52). The grid is never finer than for e = -400, so that no product is subnormal. `norm` is |w| in
    the norm dual to the one that bounds x; by default both are Euclidean.
    """
    exact = np.array(weights, dtype=np.float64)
    exponent = max(math.frexp(math.sqrt(float(exact @ exact)) if norm is None else norm)[1], -400)
    return toward_zero(exact, 52 - bits - exponent)
