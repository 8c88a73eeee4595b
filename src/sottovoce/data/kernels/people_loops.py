"""Loops over people, whose rows lie together: sums of a person's rows that are cut, means of its cells, keys of rows.

Rows and slopes are on the grids of `matrix`, so the sum of a person's terms is exact in any order. What follows from it
is compiled without leave to reorder: it is a function of that person's records, bit for bit.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sottovoce.data.kernels import Array, Entries, Integers

_START = np.uint64(0x9E3779B97F4A7C15)  # of keys: the constants of SplitMix64, public
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_MISSING = np.uint64(0x7FF8000000000000)  # every NaN


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def _mixed(key: np.uint64, place: np.uint64, entry: float) -> np.uint64:
    """The key with one more entry that is not 0."""
    bits = np.float64(entry).view(np.uint64)
    key = (key ^ (_MISSING if entry != entry else bits)) + _START * (place + np.uint64(1))
    key = (key ^ (key >> np.uint64(30))) * _FIRST
    key = (key ^ (key >> np.uint64(27))) * _SECOND
    return key ^ (key >> np.uint64(31))


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def row_keys_dense(rows: Entries, labels: Array) -> NDArray[np.uint64]:
    """A hash of the entries of every row and of its label."""
    found = np.empty(len(rows), dtype=np.uint64)
    for row in range(len(rows)):
        key = _mixed(_START, np.uint64(0), labels[row])
        for column in range(rows.shape[1]):
            entry = np.float64(rows[row, column])
            if entry != 0.0:
                key = _mixed(key, np.uint64(column), entry)
        found[row] = key
    return found


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def row_keys_sparse(starts: Integers, columns: Integers, entries: Entries, labels: Array) -> NDArray[np.uint64]:
    """The same of the rows of a CSR matrix, whose columns go up."""
    found = np.empty(len(labels), dtype=np.uint64)
    for row in range(len(labels)):
        key = _mixed(_START, np.uint64(0), labels[row])
        for k in range(starts[row], starts[row + 1]):
            entry = np.float64(entries[k])
            if entry != 0.0:
                key = _mixed(key, np.uint64(columns[k]), entry)
        found[row] = key
    return found


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def add_cut_sums(
    rows: Array, slopes: Array, starts: Integers, limits: tuple[float, float, float], total: Array
) -> None:
    """Total += sum_i h_i T_i over people, T_i = sum_j slope_j x z_j a matrix, h_i = room min(1, most / |T_i|).

    `limits` are most, room and the grid 2^bits: T_i and h_i are rounded toward zero to it, T_i before its length is
    taken, whose squares are added in the order of the columns. `total` has a row for each column of slopes.
    """
    most, room, grid = limits
    own = np.zeros_like(total)
    for person in range(len(starts) - 1):
        own[:] = 0.0
        for row in range(starts[person], starts[person + 1]):
            for output in range(own.shape[0]):
                slope = slopes[row, output]
                for column in range(own.shape[1]):
                    own[output, column] += slope * rows[row, column]
        square = 0.0
        for output in range(own.shape[0]):
            for column in range(own.shape[1]):
                entry = np.trunc(own[output, column] * grid) / grid
                own[output, column] = entry
                square += entry * entry
        share = np.trunc(room * most / max(np.sqrt(square), most) * grid) / grid
        for output in range(own.shape[0]):
            for column in range(own.shape[1]):
                total[output, column] += share * own[output, column]


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def add_mean_cells(places: Integers, values: Array, starts: Integers, grid: float, total: Array) -> None:
    """Total += for each person the mean, over its records, of what they have in cells: values at places.

    The mean of a cell is rounded toward zero to 1 / grid, unless the grid is 0. A place below 0 is no cell.
    """
    own, touched = np.zeros(len(total)), np.empty(len(total), dtype=np.int64)
    marked = np.zeros(len(total), dtype=np.bool_)
    for person in range(len(starts) - 1):
        count, size = 0, starts[person + 1] - starts[person]
        for row in range(starts[person], starts[person + 1]):
            for k in range(places.shape[1]):
                place = places[row, k]
                if place >= 0:
                    if not marked[place]:
                        marked[place] = True
                        touched[count] = place
                        count += 1
                    own[place] += values[row, k]
        for k in range(count):
            place = touched[k]
            mean = own[place] / size
            total[place] += np.trunc(mean * grid) / grid if grid > 0.0 else mean
            own[place], marked[place] = 0.0, False
