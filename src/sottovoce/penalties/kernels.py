# mypy: allow-untyped-decorators
"""Coordinate descent on a Gram matrix, in numba."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sottovoce.losses.kernels import clamp

Array = NDArray[np.float64]


@njit(cache=True, fastmath=False, error_model="numpy")
def descend(
    square: Array,
    factor: float,
    gradient: Array,
    weights: Array,
    absolute: Array,
    squared: Array,
    low: Array,
    high: Array,
    precision: float,
    sweeps: int,
) -> Array:
    """argmin_u sum_j (absolute_j |u_j| + squared_j u_j^2 / 2) + g'(u - x) + factor/2 (u - x)'G(u - x) on [low, high].

    Coordinate descent from x = weights on. It ends with a sweep whose largest step, in units of the curvature, is at
    most `precision` of the largest of the first. A coordinate without curvature stays, or goes where its penalty pulls.
    """
    found, slope = weights.copy(), gradient.copy()
    first = 0.0
    for sweep in range(sweeps):
        largest = 0.0
        for j in range(len(found)):
            bend = factor * square[j, j]
            total = bend + squared[j]
            here = found[j]
            if total > 0.0:
                aim = bend * here - slope[j]
                aim -= clamp(aim, -absolute[j], absolute[j])
                there = clamp(aim / total, low[j], high[j])
            else:
                there = clamp(0.0 if absolute[j] > 0.0 else here, low[j], high[j])
            step = there - here
            if step != 0.0:
                found[j] = there
                moved = factor * step
                for k in range(len(slope)):
                    slope[k] += moved * square[j, k]
                largest = max(largest, abs(step) * math.sqrt(total))
        if sweep == 0:
            first = largest
        if not largest > precision * first:
            break
    return found
