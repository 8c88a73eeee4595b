"""Raw rows made ready in one pass, dense and sparse: filled, rescaled, cut, measured, scaled, put on the grid.

What is done to an entry, in this order and none fused, so that a row is the same bit for bit wherever it stands:

    x = middle if x is no finite number, else x cut to [least, most]    in columns that are filled, else x stays
    x = (x + shift) factor, cut to [low, high]                          0 if it is not finite: the row is lost
    x = x scale_j c_i                                                   scale_j of the column, c_i of the row
    x = trunc(x grid) / grid                                            toward zero; unless the grid is 0

c_i is the scale of all rows, times limit / |x_i| if the row as it was cut is longer than the limit; 0 of a row that is
lost, or was not usable before. Behind the features, where there is room, is the constant of the intercept.

A loop takes rows start, ..., stop - 1 of arrays of any numbers, in any order, and holds no lock of Python's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sottovoce.data.kernels import Array, Entries, SparseRows

TILE = 128  # most rows that are prepared together
NEAR = 1 << 17  # entries of them that stay in the second cache
_BLOCK = 128  # entries that are added without halving them
LINE = 8  # entries that are read at once where a column lies together
LEAST, MOST, MIDDLE, SHIFT, FACTOR, LOW, HIGH, SCALE = range(8)  # rows of `columns`, a number for each column

Marks = NDArray[np.bool_]
Numbers = tuple[float, float, float, float]  # of all rows: scale, limit, grid, constant


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def _filled(entry: Any, columns: Array, column: Any) -> Any:
    """An entry of a column that is filled cut, or the middle; of another column as it is."""
    known = entry - entry == 0.0
    entry = entry if entry > columns[LEAST, column] else columns[LEAST, column]
    entry = entry if entry < columns[MOST, column] else columns[MOST, column]
    return entry if known else columns[MIDDLE, column]


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def _rescaled(entry: Any, columns: Array, column: Any) -> Any:
    return (entry + columns[SHIFT, column]) * columns[FACTOR, column]


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def _cut(entry: Any, columns: Array, column: Any) -> Any:
    """A rescaled entry cut; 0 where it is not finite."""
    entry = entry if entry - entry == 0.0 else 0.0
    entry = entry if entry > columns[LOW, column] else columns[LOW, column]
    return entry if entry < columns[HIGH, column] else columns[HIGH, column]


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def _cut_rows(cut: Array, filled: bool, columns: Array, usable: Marks) -> None:
    """Rows filled, rescaled and cut; one with an entry that is lost is not usable."""
    for row in range(len(usable)):
        if filled:
            for column in range(cut.shape[1]):
                cut[row, column] = _filled(cut[row, column], columns, column)
        lost = 0
        for column in range(cut.shape[1]):
            entry = _rescaled(cut[row, column], columns, column)
            lost |= 0 if entry - entry == 0.0 else 1
            cut[row, column] = _cut(entry, columns, column)
        if lost:
            usable[row] = False


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def _row_factor(square: float, numbers: Numbers, usable: bool) -> float:
    """c_i of a row with that squared norm."""
    scale, limit, _, _ = numbers
    norm = np.sqrt(square)
    factor = scale if usable else 0.0
    return factor * (limit / norm) if norm > limit else factor


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def _fill_factors(cut: Array, numbers: Numbers, usable: Marks, factors: Array) -> None:
    """c_i of rows; squares are added even and odd places by themselves, eights from behind, as `numpy.einsum` does."""
    features = cut.shape[1]
    eights = features // 8 * 8
    for row in range(len(usable)):
        even = odd = 0.0
        for k in range(0, eights, 8):
            even = even + cut[row, k + 6] ** 2 + cut[row, k + 4] ** 2 + cut[row, k + 2] ** 2 + cut[row, k] ** 2
            odd = odd + cut[row, k + 7] ** 2 + cut[row, k + 5] ** 2 + cut[row, k + 3] ** 2 + cut[row, k + 1] ** 2
        for k in range(eights, features - 1, 2):
            even += cut[row, k] ** 2
            odd += cut[row, k + 1] ** 2
        if features % 2:
            even += cut[row, features - 1] ** 2
        factors[row] = _row_factor(even + odd, numbers, usable[row])


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def _store(cut: Array, factors: Array, scale: Array, grid: float, made: Entries) -> None:
    """Entries times what their row and their column are multiplied by, on the grid; what lies together together."""
    fine = 1.0 / grid
    if made.strides[0] < made.strides[1]:
        for column in range(len(scale)):
            for row in range(len(made)):
                entry = cut[row, column] * scale[column] * factors[row]
                made[row, column] = np.trunc(entry * grid) * fine if grid > 0.0 else entry
    elif grid > 0.0:
        for row in range(len(made)):
            for column in range(len(scale)):
                made[row, column] = np.trunc(cut[row, column] * scale[column] * factors[row] * grid) * fine
    else:
        for row in range(len(made)):
            for column in range(len(scale)):
                made[row, column] = cut[row, column] * scale[column] * factors[row]


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def prepare_dense(
    raw: Entries, columns: Array, numbers: Numbers, usable: Marks, made: Entries, start: int, stop: int
) -> None:
    """Rows of an array, into the same rows of `made`."""
    (_, _, grid, constant), features = numbers, columns.shape[1]
    filled = not np.isnan(columns[MIDDLE]).all()
    tile = min(TILE, max(16, NEAR // max(features, 1)))
    cut, factors = np.empty((tile, features)), np.empty(tile)
    for first in range(start, stop, tile):
        count = min(tile, stop - first)
        if abs(raw.strides[0]) < abs(raw.strides[1]):
            for line in range(0, features, LINE):
                for row in range(count):
                    for column in range(line, min(line + LINE, features)):
                        cut[row, column] = raw[first + row, column]
        else:
            for row in range(count):
                for column in range(features):
                    cut[row, column] = raw[first + row, column]
        own = usable[first : first + count]
        _cut_rows(cut, filled, columns, own)
        _fill_factors(cut, numbers, own, factors)
        _store(cut, factors, columns[SCALE], grid, made[first : first + count])
        if made.shape[1] > features:
            for row in range(count):
                made[first + row, features] = constant if own[row] else 0.0


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def _sum_of_squares(entries: Array, first: Any, count: Any, eight: Array) -> Any:
    """Of `count` entries from the first on, added as `numpy.add.reduce` does: halves of many, else eight by eight."""
    if count > _BLOCK:
        half = count // 2 - count // 2 % 8
        rest = _sum_of_squares(entries, first + half, count - half, eight)
        return _sum_of_squares(entries, first, half, eight) + rest
    eight[:] = 0.0
    eights = count // 8 * 8
    for k in range(eights):
        eight[k % 8] += entries[first + k] * entries[first + k]
    total = ((eight[0] + eight[1]) + (eight[2] + eight[3])) + ((eight[4] + eight[5]) + (eight[6] + eight[7]))
    for k in range(eights, count):
        total += entries[first + k] * entries[first + k]
    return total


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def prepare_sparse(
    raw: SparseRows, columns: Array, numbers: Numbers, usable: Marks, made: SparseRows, start: int, stop: int
) -> None:
    """The same of rows of a CSR matrix, whose zeros stay 0; squares are added as `numpy.add.reduceat` does."""
    (starts, places, entries), (made_starts, made_places, made_entries) = raw, made
    (_, _, grid, constant), features = numbers, columns.shape[1]
    fine, eight = 1.0 / grid, np.empty(8)
    for row in range(start, stop):
        first, count = np.uint64(starts[row]), np.uint64(starts[row + 1] - starts[row])
        to, lost = np.uint64(made_starts[row]), 0
        for k in range(count):
            column = np.uint64(places[first + k])
            entry = _rescaled(_filled(np.float64(entries[first + k]), columns, column), columns, column)
            lost |= 0 if entry - entry == 0.0 else 1
            entry = _cut(entry, columns, column)
            made_places[to + k], made_entries[to + k] = places[first + k], entry
        if lost:
            usable[row] = False
        square, at = 0.0, made_starts[row]
        if count > 0:
            square = made_entries[at] ** 2 + _sum_of_squares(
                made_entries, at + 1, starts[row + 1] - starts[row] - 1, eight
            )
        factor = _row_factor(square, numbers, usable[row])
        for k in range(count):
            entry = made_entries[to + k] * columns[SCALE, np.uint64(places[first + k])] * factor
            made_entries[to + k] = np.trunc(entry * grid) * fine if grid > 0.0 else entry
        if made_starts[row + 1] - made_starts[row] > count:
            made_places[to + count], made_entries[to + count] = features, constant if usable[row] else 0.0
