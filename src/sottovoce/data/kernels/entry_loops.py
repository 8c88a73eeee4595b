"""Loops that make entries of rows from cells. They hold no lock of Python's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from sottovoce.data.kernels import Array, Integers


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def fill_levels(levels: Integers, places: Integers, columns: Integers, entries: Any) -> None:
    """Of each row and category the column of its level with a 1; of no level the category's first column with a 0.

    `places` has for each category its first column, how many it has, and its place among the entries of a row.
    """
    for row in range(levels.shape[0]):
        for category in range(levels.shape[1]):
            level, entry = np.int64(levels[row, category]), places[category, 2]
            found = level < places[category, 1]
            columns[row, entry] = places[category, 0] + (level if found else 0)
            entries[row, entry] = 1 if found else 0


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def fill_curve(steps: Array, basis: Array, rises: Array, made: Array) -> None:
    """The row of the basis below each step, and what is left of the step times the rise to the next row."""
    for row in range(len(steps)):
        below = min(max(int(steps[row]), 0), len(rises) - 1)
        first, rise, left, own = basis[below], rises[below], steps[row] - below, made[row]
        for column in range(len(own)):
            own[column] = first[column] + left * rise[column]
