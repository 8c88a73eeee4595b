# mypy: allow-untyped-decorators
"""Loops over words modulo 2^64 and scores modulo 2^16. Compiled once and kept in numba's cache.

Words are unsigned; the loops see them as int64, whose sums and products wrap around alike. The way of a loop does not
depend on what the words say, but for the place of a looked-up word, which every party knows.

A score is added in the order of its columns, without leave to reorder: what is computed for one record is a function of
that record and of public numbers, bit for bit, wherever the record stands.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sottovoce.data.kernels.compiling import watch
from sottovoce.errors import InputError

Signed = NDArray[np.int64]
Entries = NDArray[Any]  # int32 or int64
Words = NDArray[np.uint64]
Scores = NDArray[np.uint16]

FINE: Final = 16  # bits of a score
TAIL: Final = 64.0  # standard deviations that an opened sum has room for
_WRAPS = 2.0**62  # a score beyond it is no int64
_PERIOD = 2.0**FINE
_CHUNK = 2048  # records whose products are added together: what is read twice stays in the cache
_LANES = 16  # columns that the innermost loop takes at a time

watch()


def check_room(records: int, bound: float, step: float, std: float) -> None:
    """Refuse sums that wrap around: (N G + 64 std) / step must be below 2^63, else what is opened is garbage.

    `bound` is the most that one record adds to an entry and `std` the noise of the sum, both in units of the data.
    """
    if not (records * bound + TAIL * std) / step < 2.0**63:
        raise InputError(
            f"the grid {step:g} leaves no room in 64 bits for {records} records of at most {bound:g} and noise of "
            f"std={std:g}; take fewer bits, which is coarser and not less private."
        )


def cross(left: Entries, right: Entries) -> Signed:
    """A'B modulo 2^64."""
    wide = right.shape[1]
    spare = -wide % _LANES  # a few columns over are dearer than a whole step
    total = np.zeros((left.shape[1], wide + (spare if spare < 12 else 0)), dtype=np.int64)
    padded = np.zeros((_CHUNK, total.shape[1]), dtype=np.int64)
    for start in range(0, len(left), _CHUNK):
        piece = np.ascontiguousarray(left[start : start + _CHUNK], np.int64)
        padded[: len(piece), :wide] = right[start : start + _CHUNK]
        _add_cross(total, piece, padded)
    return np.ascontiguousarray(total[:, :wide])


@njit(cache=True)
def _add_cross(total: Signed, left: Signed, right: Signed) -> None:
    wide, whole = right.shape[1], len(left) - len(left) % 4
    for n in range(0, whole, 4):
        r0, r1, r2, r3 = right[n], right[n + 1], right[n + 2], right[n + 3]
        for i in range(left.shape[1]):
            a0, a1, a2, a3 = left[n, i], left[n + 1, i], left[n + 2, i], left[n + 3, i]
            out = total[i]
            for j in range(wide):
                out[j] += a0 * r0[j] + a1 * r1[j] + a2 * r2[j] + a3 * r3[j]
    for n in range(whole, len(left)):
        for i in range(left.shape[1]):
            a, row, out = left[n, i], right[n], total[i]
            for j in range(wide):
                out[j] += a * row[j]


@njit(cache=True)
def weighted_rows(rows: Entries, weights: Signed) -> Signed:
    """sum_i weights_io x_ij, (outputs, columns), modulo 2^64, in one pass over the rows."""
    total = np.zeros((weights.shape[1], rows.shape[1]), dtype=np.int64)
    for n in range(len(rows)):
        row = rows[n]
        for o in range(weights.shape[1]):
            weight, out = weights[n, o], total[o]
            for j in range(len(row)):
                out[j] += weight * np.int64(row[j])
    return total


@njit(cache=True, fastmath=False, error_model="numpy")
def scores(rows: Entries, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """x_i'w, each added in the order of the columns."""
    found = np.empty(len(rows))
    for n in range(len(rows)):
        total = 0.0
        for j in range(rows.shape[1]):
            total += rows[n, j] * weights[j]
        found[n] = total
    return found


@njit(cache=True, fastmath=False, error_model="numpy")
def wrapped(values: NDArray[np.float64]) -> Scores:
    """The nearest integers modulo 2^16; 0 for what is not finite."""
    found = np.empty(len(values), dtype=np.uint16)
    for n in range(len(values)):
        value = np.rint(values[n])
        if not abs(value) < _WRAPS:
            value = np.fmod(value, _PERIOD) if abs(value) < np.inf else 0.0
        found[n] = np.int64(value) & 0xFFFF
    return found


@njit(cache=True)
def add_tables(table: Signed, nodes: Signed, masks: Scores, fine: int) -> None:
    """Add f_{v + floor(a_n / 2^fine)} to table[n, o, v], v < W; f_{k + W} = -f_k where W is half of a period."""
    outputs, width = nodes.shape
    period = 1 << (FINE - fine)
    twice = np.empty((outputs, 2 * period), dtype=np.int64)
    for o in range(outputs):
        for k in range(2 * period):
            place = k % period
            twice[o, k] = nodes[o, place] if place < width else -nodes[o, place - width]
    for n in range(len(masks)):
        first = np.int64(masks[n]) >> fine
        for o in range(outputs):
            row, values = table[n, o], twice[o, first : first + width]
            for v in range(width):
                row[v] += values[v]


@njit(cache=True)
def looked_up(table: Signed, deltas: Scores, fine: int) -> Signed:
    """table[n, :, v] with v = floor(delta_n / 2^fine); beyond its width it is minus that of half a period before."""
    records, outputs, width = table.shape
    found = np.empty((records, outputs), dtype=np.int64)
    for n in range(records):
        place = np.int64(deltas[n]) >> fine
        beyond = place // width
        for o in range(outputs):
            found[n, o] = table[n, o, place - beyond * width] * (1 - 2 * beyond)
    return found
