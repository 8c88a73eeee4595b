# mypy: allow-untyped-decorators
"""Loops over words modulo 2^64, scores modulo 2^8 and tables of bits. Compiled once and kept in numba's cache.

Words are int64, whose sums and products wrap around. The way of a loop does not depend on what the words say, but for
the place of a looked-up bit, which every party knows.

A score is added in the order of its columns, without leave to reorder: what is computed for one record is a function of
that record and of public numbers, bit for bit, wherever the record stands.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sottovoce.data.kernels import watch
from sottovoce.errors import InputError

Signed = NDArray[np.int64]
Entries = NDArray[Any]  # int32 or int64
Bits = NDArray[np.uint8]
Scores = NDArray[np.int8]

TAIL: Final = 64.0  # standard deviations that an opened sum has room for
_WRAPS = 2.0**62  # a score beyond it is no int64
_PERIOD = 2.0**8
_CHUNK = 2048  # records whose products are added together: what is read twice stays in the cache
_LANES = 16  # columns that the innermost loop takes at a time

watch()


def check_ring_room(records: int, bound: float, step: float, std: float) -> None:
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
    masked = np.zeros((_CHUNK, total.shape[1]), dtype=np.int64)
    for start in range(0, len(left), _CHUNK):
        piece = np.ascontiguousarray(left[start : start + _CHUNK], np.int64)
        masked[: len(piece), :wide] = right[start : start + _CHUNK]
        _add_cross(total, piece, masked)
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
def sum_weighted(rows: Entries, weights: Signed) -> Signed:
    """sum_i weights_i x_i modulo 2^64, in one pass over the rows."""
    total = np.zeros(rows.shape[1], dtype=np.int64)
    for n in range(len(rows)):
        row, weight = rows[n], weights[n]
        for j in range(len(row)):
            total[j] += weight * np.int64(row[j])
    return total


@njit(cache=True)
def through(rows: Entries, matrix: Signed) -> Signed:
    """The rows times a matrix, modulo 2^64."""
    found = np.zeros((len(rows), matrix.shape[1]), dtype=np.int64)
    for n in range(len(rows)):
        out = found[n]
        for i in range(rows.shape[1]):
            entry, row = np.int64(rows[n, i]), matrix[i]
            for j in range(matrix.shape[1]):
                out[j] += entry * row[j]
    return found


@njit(cache=True, fastmath=False, error_model="numpy")
def score_rows(rows: Entries, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """x_i'w, each added in the order of the columns."""
    found = np.empty(len(rows))
    for n in range(len(rows)):
        total = 0.0
        for j in range(rows.shape[1]):
            total += rows[n, j] * weights[j]
        found[n] = total
    return found


@njit(cache=True, fastmath=False, error_model="numpy")
def wrapped(values: NDArray[np.float64], dithers: NDArray[np.uint8]) -> Scores:
    """floor(v + (u + 1/2) / 2^8) modulo 2^8, u the dither; 0 for what is not finite."""
    found = np.empty(len(values), dtype=np.int8)
    for n in range(len(values)):
        value = np.floor(values[n] + (dithers[n] + 0.5) / 256.0)
        if not abs(value) < _WRAPS:
            value = np.fmod(value, _PERIOD) if abs(value) < np.inf else 0.0
        found[n] = np.int8(np.int64(value) & 0xFF)
    return found


@njit(cache=True)
def tables(chances: Signed, uniform: NDArray[np.uint16], shifts: Signed, swaps: Bits) -> Bits:
    """(records, halves, outputs, levels / 8): bit v is [U < chance of level v + shift], the halves swapped or not."""
    halves, outputs, levels = chances.shape
    found = np.zeros((len(shifts), halves, outputs, levels // 8), dtype=np.uint8)
    for n in range(len(shifts)):
        for half in range(halves):
            for o in range(outputs):
                row, drawn = chances[half ^ swaps[n], o], np.int64(uniform[n, o])
                for v in range(levels):
                    bit = np.uint8(drawn < row[(v + shifts[n]) % levels])
                    found[n, half, o, v >> 3] |= np.uint8(bit << (v & 7))
    return found


@njit(cache=True)
def looked_up(table: Bits, halves: Bits, places: Signed) -> Bits:
    """(records, outputs): bit v of each output, in the half of the record."""
    found = np.empty((len(places), table.shape[2]), dtype=np.uint8)
    for n in range(len(places)):
        v = places[n]
        for o in range(table.shape[2]):
            found[n, o] = (table[n, halves[n], o, v >> 3] >> (v & 7)) & 1
    return found
