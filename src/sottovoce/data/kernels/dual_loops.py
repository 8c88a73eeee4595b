# mypy: allow-untyped-decorators
"""Loops of dual coordinate descent over records, dense and sparse. A loss is a code and one parameter."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sottovoce.data.kernels import EXACT_SUM, Array, Entries, Integers, prefetch
from sottovoce.losses.kernels import clamp, dual_step

_ONE, _TWO = np.uint64(1), np.uint64(2)
_BATCH = 64  # rows scored before any of them steps: their memory is fetched side by side, and is still near later
_AHEAD = 16  # rows asked for before their turn
_SLACK = 1.0 + 2.0**-50  # more than the rounding of a square root, a product and a quotient


class DualMoves(NamedTuple):
    """The public numbers of dual steps, which minimise with s = factor |x|^2.

    Loops get them as a plain tuple: numba's cache on disk would name the class, and fail where it is another one.
    """

    code: int  # of the loss
    parameter: float
    factor: float
    clip: float  # |z| |x| is at most this; infinite for none
    grid: int  # z is rounded toward zero to a multiple of 2^-grid; negative for no rounding
    scale: float = 0.0  # scale z x is added to the weights after every row; 0: all steps start from the same


@njit(cache=True, fastmath=False, error_model="numpy")
def _step_all(
    batch: NDArray[np.int64], scores: Array, labels: Array, norms_squared: Array, duals: Array, how: DualMoves
) -> None:
    """Overwrite the scores of the rows of a batch with their steps z, and add these to the duals.

    |z| |x| <= clip, and z is rounded toward zero to a multiple of 2^-grid; 0 where it is no number.
    """
    code, parameter, factor, clip, grid, _ = how
    unit = 2.0**grid if grid >= 0 else 0.0
    for k in range(len(batch)):
        i = np.uint64(batch[k])
        bound = clip / (math.sqrt(norms_squared[i]) * _SLACK)
        z = dual_step(code, duals[i], labels[i], scores[k], factor * norms_squared[i], parameter)
        z = clamp(z, -bound, bound)
        if unit > 0.0:
            z = np.trunc(z * unit) / unit
        usable = 0.0 < norms_squared[i] < math.inf and abs(z) < math.inf
        scores[k] = z if usable else 0.0
        duals[i] += scores[k]


@njit(cache=True, fastmath=EXACT_SUM, error_model="numpy")
def dual_rows_dense(
    rows: Entries,
    chosen: NDArray[np.int64],
    labels: Array,
    norms_squared: Array,
    weights: Array,
    duals: Array,
    how: DualMoves,
) -> Array:
    """Step the duals of the chosen rows in place and return sum_i z_i x_i, in one pass.

    Rows (C order), labels, squared norms and duals are those of all rows of the holder; `chosen` says which step, and
    z_i is added to their duals. A row with a squared norm of 0, or not finite, takes no step. A score is x'weights.
    """
    total, scale = np.zeros(rows.shape[1]), how[5]
    size = _BATCH if scale == 0.0 else 1
    steps = np.empty(size)
    entries, line = rows.ravel(), 64 // rows.itemsize
    for start in range(0, len(chosen), size):
        batch = chosen[start : start + size]
        for k in range(len(batch)):
            ahead = chosen[min(start + k + _AHEAD, len(chosen) - 1)]
            for place in range(ahead * len(total), (ahead + 1) * len(total), line):
                prefetch(entries, place)
            row, score = rows[batch[k]], 0.0
            for j in range(len(total)):
                score += row[j] * weights[j]
            steps[k] = score
        _step_all(batch, steps, labels, norms_squared, duals, how)
        for k in range(len(batch)):
            row, z = rows[batch[k]], steps[k]
            if z == 0.0:  # an unusable row may hold anything
                continue
            for j in range(len(total)):
                total[j] += z * row[j]
            if scale != 0.0:
                for j in range(len(total)):
                    weights[j] += scale * z * row[j]
    return total


@njit(cache=True, fastmath=False, error_model="numpy")
def dual_rows_sparse(
    indptr: Integers,
    indices: Integers,
    data: Entries,
    chosen: NDArray[np.int64],
    labels: Array,
    norms_squared: Array,
    weights: Array,
    duals: Array,
    how: DualMoves,
) -> Array:
    """As `dual_rows_dense`, for the rows of a CSR matrix."""
    # Two sums for each of a row's products: with one, every addition would wait for the one before. Places are
    # unsigned, so that no check for negative ones is made, and the loops are written out: a call would cost as much.
    total, other, scale = np.zeros(len(weights)), np.zeros(len(weights)), how[5]
    size = _BATCH if scale == 0.0 else 1
    steps = np.empty(size)
    for start in range(0, len(chosen), size):
        batch = chosen[start : start + size]
        for k in range(len(batch)):
            ahead = indptr[chosen[min(start + k + _AHEAD, len(chosen) - 1)]]
            prefetch(data, ahead)
            prefetch(data, ahead + 8)
            prefetch(indices, ahead)
            i = np.uint64(batch[k])
            place, end = np.uint64(indptr[i]), np.uint64(indptr[i + _ONE])
            even, odd = 0.0, 0.0
            while place + _ONE < end:
                even += data[place] * weights[np.uint64(indices[place])]
                odd += data[place + _ONE] * weights[np.uint64(indices[place + _ONE])]
                place += _TWO
            if place < end:
                even += data[place] * weights[np.uint64(indices[place])]
            steps[k] = even + odd
        _step_all(batch, steps, labels, norms_squared, duals, how)
        for k in range(len(batch)):
            z, i = steps[k], np.uint64(batch[k])
            if z == 0.0:
                continue
            place, end = np.uint64(indptr[i]), np.uint64(indptr[i + _ONE])
            if scale != 0.0:
                for there in range(place, end):
                    weights[np.uint64(indices[there])] += scale * z * data[there]
            while place + _ONE < end:
                total[np.uint64(indices[place])] += z * data[place]
                other[np.uint64(indices[place + _ONE])] += z * data[place + _ONE]
                place += _TWO
            if place < end:
                total[np.uint64(indices[place])] += z * data[place]
    return total + other
