"""Loops over chosen rows, without copying the rows first. Compiled once and kept in numba's cache.

Rows, weights and slopes are on the grids of `data/grid.py`, so every sum is exact and its order does not matter; that
is why the compiler may reorder it.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sottovoce.data.kernels.common import EXACT_SUM, Array, Entries


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
