# mypy: allow-untyped-decorators
"""Loops over the candidates of a selection: their weights exp(rate (score - top)), and sums of them by blocks.

Compiled without leave to reorder or to fuse operations, so a weight is the same number wherever it is computed. The
exponential is their own: its error is proved, and a loop over it is vectorised. Errors: ``proofs/noise.md``.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEAST = -64.0  # weights below exp(-64) of the largest are taken for 0

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # the first has 33 bits
_SHIFT = 1.5 * 2.0**52  # adding it rounds to an integer and leaves that integer in the last bits


@njit(cache=True, fastmath=False, error_model="numpy")
def exponential(x: float) -> float:
    """exp(x) for -128 <= x <= 0, with a relative error below 2^-50; no branches or calls.

    x = k ln 2 + r, and exp(r) by its Taylor polynomial of degree 13.
    """
    shifted = x * _LOG2_E + _SHIFT
    k = shifted - _SHIFT
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    p = 1 / 479001600.0 + r * (1 / 6227020800.0)
    p = 1 / 3628800.0 + r * (1 / 39916800.0 + r * p)
    p = 1 / 40320.0 + r * (1 / 362880.0 + r * p)
    p = 1 / 720.0 + r * (1 / 5040.0 + r * p)
    p = 1 / 24.0 + r * (1 / 120.0 + r * p)
    p = 0.5 + r * (1 / 6.0 + r * p)
    p = 1.0 + r * (1.0 + r * p)
    power = np.int64((np.float64(shifted).view(np.int64) + 1023) << 52).view(np.float64)
    return float(p * power)


@njit(cache=True, fastmath=False, error_model="numpy")
def fill_weights(scores: Array, rate: float, top: float, weights: Array) -> None:
    """weights[i] = exp(rate (scores[i] - top)), 0 where that is below exp(LEAST); top is the largest score or more."""
    for i in range(len(scores)):
        x = rate * (scores[i] - top)
        kept = x >= LEAST
        weight = exponential(x if kept else LEAST)
        weights[i] = weight if kept else 0.0


@njit(cache=True, fastmath=False, error_model="numpy")
def fill_signed(values: Array, rate: float, top: float, both: float, larger: Array, smaller: Array) -> None:
    """The weights of |value| and of -|value|: their product is `both` = exp(-2 rate top), so one exponential does."""
    for i in range(len(values)):
        x = rate * (abs(values[i]) - top)
        kept = x >= LEAST
        weight = exponential(x if kept else LEAST)
        larger[i] = weight if kept else 0.0
        smaller[i] = both / weight if kept else 0.0


@njit(cache=True, fastmath=False, error_model="numpy")
def _sum(terms: Array) -> float:
    """The sum, by halves, in place: its relative error is below ceil(log2 n) 2^-53, for terms >= 0."""
    count = len(terms)
    while count > 1:
        half = (count + 1) // 2
        low, high = terms[: count - half], terms[half:count]
        for i in range(count - half):
            low[i] += high[i]
        count = half
    return float(terms[0])


@njit(cache=True, fastmath=False, error_model="numpy")
def fill_block_sums(scores: Array, rate: float, top: float, length: int, sums: Array) -> None:
    """sums[b]: the weights of candidates b length, ..., (b + 1) length - 1."""
    weights = np.empty(length)
    for b in range(len(sums)):
        part = scores[b * length : (b + 1) * length]
        fill_weights(part, rate, top, weights[: len(part)])
        sums[b] = _sum(weights[: len(part)])


@njit(cache=True, fastmath=False, error_model="numpy")
def fill_signed_block_sums(values: Array, rate: float, top: float, both: float, length: int, sums: Array) -> None:
    """sums[b]: the weights of both signs of values b length, ..., (b + 1) length - 1; as many sums as blocks."""
    larger, smaller = np.empty(length), np.empty(length)
    for b in range(-(-len(values) // length)):
        part = values[b * length : (b + 1) * length]
        count = len(part)
        fill_signed(part, rate, top, both, larger[:count], smaller[:count])
        for i in range(count):
            larger[i] += smaller[i]
        sums[b] = _sum(larger[:count])
