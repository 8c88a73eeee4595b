"""Loops over chosen rows, without copying the rows first. Compiled once and kept in numba's cache.

Rows, weights and slopes are on the grids of `data/grid.py`, so every sum is exact and its order does not matter; that
is why the compiler may reorder it. The lengths are not, and are added in order.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sottovoce.data.kernels.common import EXACT_SUM, Array, Entries, Integers


@njit(cache=True, fastmath=EXACT_SUM)
def scores(rows: Entries, chosen: NDArray[np.int64], weights: Array) -> Array:
    """x_i'w for the chosen rows."""
    found = np.empty(len(chosen))
    for place in range(len(chosen)):
        row = rows[chosen[place]]
        total = 0.0
        for column in range(len(weights)):
            total += row[column] * weights[column]
        found[place] = total
    return found


@njit(cache=True, fastmath=EXACT_SUM)
def weighted_sum(rows: Entries, chosen: NDArray[np.int64], slopes: Array) -> Array:
    """sum_i slopes_i x_i over the chosen rows."""
    total = np.zeros(rows.shape[1])
    for place in range(len(chosen)):
        row, slope = rows[chosen[place]], slopes[place]
        for column in range(len(total)):
            total[column] += slope * row[column]
    return total


@njit(cache=True, fastmath=False, error_model="numpy")
def lengths_dense(rows: Entries) -> Array:
    """|x_i| of every row, its squares added in the order of the columns: no leave to reorder, they are on no grid."""
    found = np.empty(len(rows))
    for place in range(len(rows)):
        total = 0.0
        for column in range(rows.shape[1]):
            entry = np.float64(rows[place, column])
            total += entry * entry
        found[place] = np.sqrt(total)
    return found


@njit(cache=True, fastmath=False, error_model="numpy")
def lengths_sparse(starts: Integers, entries: Entries) -> Array:
    """The same of the rows of a CSR matrix."""
    found = np.empty(len(starts) - 1)
    for place in range(len(found)):
        total = 0.0
        for k in range(starts[place], starts[place + 1]):
            entry = np.float64(entries[k])
            total += entry * entry
        found[place] = np.sqrt(total)
    return found
