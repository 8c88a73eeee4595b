# mypy: allow-untyped-decorators
"""Loops over raw rows: what cuts their entries, what puts them on the grid, and what tells rows from one another.

What is computed for an entry is what NumPy would compute step by step, to the last bit; only memory is read less often.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sottovoce.data.kernels.common import Array


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def cut_rows(
    raw: Array, shift: Array, factor: Array, low: Array, high: Array, usable: NDArray[np.bool_], made: Array
) -> None:
    """(x + shift) factor cut to [low, high]; with a NaN or an infinity, 0 in its place, a row is not usable."""
    for row in range(len(raw)):
        entries, cut = raw[row], made[row]
        lost = 0
        for column in range(len(shift)):
            entry = (entries[column] + shift[column]) * factor[column]
            finite = entry - entry == 0.0
            lost |= 0 if finite else 1
            entry = entry if finite else 0.0
            entry = entry if entry > low[column] else low[column]
            cut[column] = entry if entry < high[column] else high[column]
        if lost:
            usable[row] = False


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def round_rows(cut: Array, factors: Array, grid: float, made: NDArray[np.float32]) -> None:
    """Factor x rounded toward zero to multiples of 1 / grid, into the first columns of `made`."""
    fine = 1.0 / grid
    for row in range(len(cut)):
        entries, rounded, factor = cut[row], made[row], factors[row]
        for column in range(cut.shape[1]):
            rounded[column] = np.trunc(entries[column] * factor * grid) * fine
