# mypy: allow-untyped-decorators
"""Inner loops of block-coordinate Frank-Wolfe over chosen columns and blocks; they run beside other threads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sottovoce.data.kernels import watch

Vector = NDArray[np.float64]
Integers = NDArray[Any]

OTHER, BOX, L1, L2, SIMPLEX = range(5)  # kinds of blocks; for the first, the set itself is asked
_ANY_ORDER = {"reassoc", "contract", "nsz"}

watch()


@njit(cache=True, nogil=True)
def list_columns(chosen: Integers, offsets: Integers) -> Integers:
    """The coordinates of the chosen blocks, block after block; likewise the entries of chosen columns of a matrix."""
    total = 0
    for i in chosen:
        total += offsets[i + 1] - offsets[i]
    columns = np.empty(total, dtype=np.int64)
    place = 0
    for i in chosen:
        for j in range(offsets[i], offsets[i + 1]):
            columns[place] = j
            place += 1
    return columns


@njit(cache=True, nogil=True, fastmath=_ANY_ORDER)
def dense_dots(rows: NDArray[Any], columns: Integers, slopes: Vector) -> Vector:
    """<a_j, slopes> for the chosen columns a_j, which are rows here."""
    found = np.empty(len(columns))
    for place in range(len(columns)):
        row = rows[columns[place]]
        total = 0.0
        for i in range(len(slopes)):
            total += row[i] * slopes[i]
        found[place] = total
    return found


@njit(cache=True, nogil=True, fastmath=_ANY_ORDER)
def dense_add(rows: NDArray[Any], columns: Integers, weights: Vector, step: float, q: Vector) -> None:
    """Add step sum_j weights_j a_j to q."""
    for place in range(len(columns)):
        weight = step * weights[place]
        if weight != 0.0:
            row = rows[columns[place]]
            for i in range(len(q)):
                q[i] += weight * row[i]


@njit(cache=True, nogil=True)
def sparse_dots(indptr: Integers, data: Vector, columns: Integers, slopes: Vector) -> Vector:
    """<a_j, slopes> for the chosen columns, the slopes given entry by entry, column after column."""
    found = np.empty(len(columns))
    place = 0
    for k in range(len(columns)):
        total = 0.0
        for entry in range(indptr[columns[k]], indptr[columns[k] + 1]):
            total += data[entry] * slopes[place]
            place += 1
        found[k] = total
    return found


@njit(cache=True, nogil=True)
def sparse_add(
    indptr: Integers, indices: Integers, data: Vector, columns: Integers, weights: Vector, step: float, q: Vector
) -> None:
    """Add step sum_j weights_j a_j to q."""
    for k in range(len(columns)):
        weight = step * weights[k]
        if weight != 0.0:
            for entry in range(indptr[columns[k]], indptr[columns[k] + 1]):
                q[indices[entry]] += weight * data[entry]


@njit(cache=True, nogil=True)
def oracle(
    kinds: Integers, low: Vector, high: Vector, offsets: Integers, chosen: Integers, gradient: Vector, out: Vector
) -> None:
    """The vertices of the chosen blocks with the least <s, gradient>; blocks of kind OTHER are left alone.

    The gradient and the answer have the chosen blocks one after the other. ``high`` is the radius of a ball.
    """
    start = 0
    for i in chosen:
        size = offsets[i + 1] - offsets[i]
        part, answer = gradient[start : start + size], out[start : start + size]
        start += size
        radius = high[i]
        if kinds[i] == BOX:
            for j in range(size):
                answer[j] = low[i] if part[j] > 0.0 else high[i]
        elif kinds[i] == L1 or kinds[i] == SIMPLEX:
            best, either_sign = 0, kinds[i] == L1
            for j in range(size):
                answer[j] = 0.0
                if abs(part[j]) > abs(part[best]) if either_sign else part[j] < part[best]:
                    best = j
            answer[best] = math.copysign(radius, -part[best]) if either_sign else radius
        elif kinds[i] == L2:
            largest = 0.0
            for j in range(size):
                largest = max(largest, abs(part[j]))
            squares = 0.0
            for j in range(size):
                # Scaled, so that no square overflows or vanishes.
                answer[j] = part[j] / largest if largest > 0.0 else 0.0
                squares += answer[j] * answer[j]
            scale = -radius / math.sqrt(squares) if squares > 0.0 else 0.0
            for j in range(size):
                answer[j] *= scale
