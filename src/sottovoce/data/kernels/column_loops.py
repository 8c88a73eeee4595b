# mypy: allow-untyped-decorators
"""Loops over columns, one after another or all at once, dense and sparse. A loss is a code and one parameter."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sottovoce.data.kernels import EXACT_SUM, Array, Entries, Integers
from sottovoce.losses.kernels import SQUARED, clamp, fill_slopes_from

_CHUNK = 1024  # records whose scores, labels, slopes and entries stay in the first cache together
_TERMS = 2048  # terms whose factors stay in the first cache while all columns pass


class CoordinateSteps(NamedTuple):
    """The public numbers of proximal steps along single coordinates; `coordinate_walk_dense` has the formulas."""

    clip: Array  # of each coordinate, like all arrays here
    sizes: Array
    l1: Array
    l2: Array
    low: Array
    high: Array
    code: int  # of the loss
    parameter: float
    records: float  # what a sum is divided by


@njit(cache=True, fastmath=False, error_model="numpy")
def _term(slope: float, entry: float, scale: float, limit: float) -> float:
    """trunc(cut(slope entry scale, -limit, limit)); 0 where that is no number, so that a null row always adds 0."""
    value = slope * entry * scale
    value = value if value == value else 0.0
    value = value if value > -limit else -limit
    return float(np.trunc(value if value < limit else limit))


@njit(cache=True, fastmath=EXACT_SUM, error_model="numpy")
def _clipped_sum(slopes: Array, entries: Entries, start: int, count: int, scale: float, limit: float) -> float:
    """The sum of slope entry scale, each clipped to [-limit, limit] and rounded toward zero; limit 0 for neither."""
    total, column = 0.0, entries[start : start + count]
    if limit == 0.0:
        for i in range(count):
            total += slopes[i] * column[i]
    else:
        for i in range(count):
            total += _term(slopes[i], column[i], scale, limit)
    return total


@njit(cache=True, fastmath=False, error_model="numpy")
def _add(scores: Array, start: int, entries: Entries, place: int, count: int, change: float) -> None:
    part, column = scores[start : start + count], entries[place : place + count]
    for i in range(count):
        part[i] += change * column[i]


@njit(cache=True, fastmath=False, error_model="numpy")
def _add_and_fill(
    scores: Array, labels: Array, start: int, entries: Entries, place: int, count: int, change: float, slopes: Array
) -> None:
    """`_add`, then the slopes of the squared loss, in one loop."""
    u, y, column = scores[start : start + count], labels[start : start + count], entries[place : place + count]
    for i in range(count):
        moved = u[i] + change * column[i]
        u[i] = moved
        slopes[i] = moved - y[i]


@njit(cache=True, fastmath=False, error_model="numpy")
def _release_step(
    k: int, total: float, released: NDArray[Any], noise: NDArray[Any], grid_step: float, limit: float, clip: float
) -> float:
    """Release step k from its sum of terms and return the sum of slopes that it means."""
    if limit == 0.0:
        released[k] = total + noise[k]
        return float(released[k])
    released[k] = np.int64(np.rint(total / limit / grid_step)) + noise[k]
    return float(released[k] * grid_step * clip)


@njit(cache=True, fastmath=False, error_model="numpy")
def _prox(u: float, step: float, l1: float, l2: float, low: float, high: float) -> float:
    """The minimiser of l1 |w| + l2 w^2 / 2 + (w - u)^2 / (2 step) over low <= w <= high."""
    shrunk = math.copysign(max(abs(u) - step * l1, 0.0), u)
    return clamp(shrunk / (1.0 + step * l2), low, high)


@njit(cache=True, fastmath=False, error_model="numpy")
def coordinate_walk_dense(
    columns: Entries,
    labels: Array,
    scores: Array,
    weights: Array,
    order: NDArray[np.int64],
    how: CoordinateSteps,
    noise: NDArray[Any],
    grid_step: float,
    bits: int,
) -> NDArray[Any]:
    """Proximal steps on the coordinates of `order`, one after another, each from what the one before released.

    Step k on coordinate j releases R_k = rint(sum_i c_i / grid_step) + noise_k, where c_i is l'_i x_ij / clip_j cut
    to [-1, 1] (0 where it is no number) and rounded toward zero to a multiple of 2^-bits. With at most
    2^(53 - bits) records the sum is exact. The gradient is g = R_k grid_step clip_j / records, and w_j becomes
    cut(soft(u, step_j l1_j) / (1 + step_j l2_j), low_j, high_j) with u = w_j - step_j g.

    `columns` is the transpose of the rows, C order; `scores` = Xw and `weights` are updated in place. `noise` has an
    integer for each step, in units of grid_step, and `grid_step` is in units of clip. R has the type of the noise. With
    negative bits, for a run without privacy, R_k = sum_i l'_i x_ij + noise_k and g = R_k / records; the noise is made
    of floats, zeros as a rule.
    """
    clip, steps, l1, l2, low, high, code, parameter, records = how
    released, limit = np.empty_like(noise), 2.0**bits if bits >= 0 else 0.0
    slopes, entries = np.empty(_CHUNK), columns.ravel()
    last, change = 0, 0.0
    for k in range(len(order)):
        j = order[k]
        total = 0.0
        for start in range(0, len(scores), _CHUNK):
            count = min(_CHUNK, len(scores) - start)
            place = last * len(scores) + start
            if change != 0.0 and code == SQUARED:
                _add_and_fill(scores, labels, start, entries, place, count, change, slopes)
            else:
                if change != 0.0:  # of the step before: each piece of the scores is fetched once a step
                    _add(scores, start, entries, place, count, change)
                fill_slopes_from(code, parameter, scores, labels, start, count, slopes)
            total += _clipped_sum(slopes, entries, j * len(scores) + start, count, limit / clip[j], limit)
        gradient = _release_step(k, total, released, noise, grid_step, limit, clip[j]) / records
        moved = _prox(weights[j] - steps[j] * gradient, steps[j], l1[j], l2[j], low[j], high[j])
        change, weights[j] = moved - weights[j], moved
        last = j
    if change != 0.0:
        _add(scores, 0, entries, last * len(scores), len(scores), change)
    return released


@njit(cache=True, fastmath=False, error_model="numpy")
def coordinate_walk_sparse(
    indptr: Integers,
    indices: Integers,
    data: Entries,
    labels: Array,
    scores: Array,
    weights: Array,
    order: NDArray[np.int64],
    how: CoordinateSteps,
    noise: NDArray[Any],
    grid_step: float,
    bits: int,
) -> NDArray[Any]:
    """As `coordinate_walk_dense`, for a CSC matrix; touches the records of a column only."""
    clip, steps, l1, l2, low, high, code, parameter, records = how
    released, limit = np.empty_like(noise), 2.0**bits if bits >= 0 else 0.0
    near, sign, slopes = np.empty(_CHUNK), np.empty(_CHUNK), np.empty(_CHUNK)
    for k in range(len(order)):
        j = order[k]
        total = 0.0
        for start in range(indptr[j], indptr[j + 1], _CHUNK):
            count = min(_CHUNK, indptr[j + 1] - start)
            for i in range(count):
                near[i], sign[i] = scores[indices[start + i]], labels[indices[start + i]]
            fill_slopes_from(code, parameter, near, sign, 0, count, slopes)
            total += _clipped_sum(slopes, data, start, count, limit / clip[j], limit)
        gradient = _release_step(k, total, released, noise, grid_step, limit, clip[j]) / records
        moved = _prox(weights[j] - steps[j] * gradient, steps[j], l1[j], l2[j], low[j], high[j])
        change, weights[j] = moved - weights[j], moved
        if change != 0.0:
            for place in range(indptr[j], indptr[j + 1]):
                scores[indices[place]] += change * data[place]
    return released


@njit(cache=True, fastmath=False, error_model="numpy")
def clipped_column_sums_dense(columns: Entries, slopes: Array, clip: Array, bits: int) -> Array:
    """For every coordinate j the sum of `coordinate_walk_dense`, from given slopes l'_i, in one pass.

    With negative bits the plain sums of l'_i x_ij.
    """
    sums = np.zeros(len(columns))
    limit = 2.0**bits if bits >= 0 else 0.0
    for start in range(0, len(slopes), _CHUNK):
        for j in range(len(columns)):
            part = slopes[start : start + _CHUNK]
            sums[j] += _clipped_sum(part, columns[j], start, len(part), limit / clip[j], limit)
    return sums / limit if limit > 0.0 else sums


@njit(cache=True, fastmath=False, error_model="numpy")
def clipped_column_sums_sparse(
    indptr: Integers, indices: Integers, data: Entries, slopes: Array, clip: Array, bits: int
) -> Array:
    """As `clipped_column_sums_dense`, for a CSC matrix."""
    sums = np.zeros(len(indptr) - 1)
    limit = 2.0**bits if bits >= 0 else 0.0
    near = np.empty(_CHUNK)
    for j in range(len(sums)):
        for start in range(indptr[j], indptr[j + 1], _CHUNK):
            count = min(_CHUNK, indptr[j + 1] - start)
            for i in range(count):
                near[i] = slopes[indices[start + i]]
            sums[j] += _clipped_sum(near, data, start, count, limit / clip[j], limit)
    return sums / limit if limit > 0.0 else sums


@njit(cache=True, fastmath=False, error_model="numpy")
def add_columns_dense(columns: Entries, changes: Array, scores: Array) -> None:
    """Add sum_j change_j x_j to the scores, in place."""
    for start in range(0, len(scores), _CHUNK):
        for j in range(len(columns)):
            if changes[j] != 0.0:
                _add(scores, start, columns[j], start, min(_CHUNK, len(scores) - start), changes[j])


@njit(cache=True, fastmath=False, error_model="numpy")
def add_columns_sparse(indptr: Integers, indices: Integers, data: Entries, changes: Array, scores: Array) -> None:
    """As `add_columns_dense`, for a CSC matrix."""
    for j in range(len(changes)):
        if changes[j] != 0.0:
            for place in range(indptr[j], indptr[j + 1]):
                scores[indices[place]] += changes[j] * data[place]


@njit(cache=True, fastmath=EXACT_SUM, error_model="numpy")
def _squares(entries: Entries, start: int, stop: int, limit: float) -> float:
    """The sum of squares, each clipped to 1 and rounded toward zero to a multiple of 1 / limit; limit 0 for neither."""
    total = 0.0
    for place in range(start, stop):
        total += _term(entries[place], entries[place], limit, limit) if limit > 0.0 else entries[place] ** 2
    return total / limit if limit > 0.0 else total


@njit(cache=True, fastmath=False, error_model="numpy")
def column_squares_dense(columns: Entries, limit: float) -> Array:
    """For every column the sum of `_squares`."""
    sums = np.empty(len(columns))
    for j in range(len(columns)):
        sums[j] = _squares(columns[j], 0, columns.shape[1], limit)
    return sums


@njit(cache=True, fastmath=False, error_model="numpy")
def column_squares_sparse(indptr: Integers, indices: Integers, data: Entries, limit: float) -> Array:  # noqa: ARG001
    """As `column_squares_dense`, for a CSC matrix."""
    sums = np.empty(len(indptr) - 1)
    for j in range(len(sums)):
        sums[j] = _squares(data, indptr[j], indptr[j + 1], limit)
    return sums


@njit(cache=True, fastmath=False, error_model="numpy")
def column_sums_dense(columns: Entries, slopes: Array, order: NDArray[np.int64]) -> tuple[Array, Array]:
    """(sum_i slope_i x_ij, sum_i x_ij^2) for the columns of `order`."""
    sums, squares = np.empty(len(order)), np.empty(len(order))
    for k in range(len(order)):
        sums[k] = _clipped_sum(slopes, columns[order[k]], 0, len(slopes), 0.0, 0.0)
        squares[k] = _squares(columns[order[k]], 0, len(slopes), 0.0)
    return sums, squares


@njit(cache=True, fastmath=False, error_model="numpy")
def column_sums_sparse(
    indptr: Integers, indices: Integers, data: Entries, slopes: Array, order: NDArray[np.int64]
) -> tuple[Array, Array]:
    """As `column_sums_dense`, for a CSC matrix."""
    sums, squares = np.zeros(len(order)), np.empty(len(order))
    for k in range(len(order)):
        start, stop = indptr[order[k]], indptr[order[k] + 1]
        for place in range(start, stop):
            sums[k] += slopes[indices[place]] * data[place]
        squares[k] = _squares(data, start, stop, 0.0)
    return sums, squares


@njit(cache=True, fastmath=False, error_model="numpy")
def coordinate_replay(
    weights: Array,
    order: NDArray[np.int64],
    sums: Array,
    steps: Array,
    l1: Array,
    l2: Array,
    low: Array,
    high: Array,
    records: float,
    total: Array,
    skipped: int,
) -> float:
    """Take the steps of a walk again from the sums it released, in place.

    The iterates after the first `skipped` steps are added to `total`: each weight when it changes, times the number
    of iterates it was in. Returns the largest |move| / step.
    """
    since = np.full(len(weights), skipped)
    largest = 0.0
    for k in range(len(order)):
        j = order[k]
        moved = _prox(weights[j] - steps[j] * (sums[k] / records), steps[j], l1[j], l2[j], low[j], high[j])
        if k > since[j]:
            total[j] += weights[j] * (k - since[j])
            since[j] = k
        largest = max(largest, abs(moved - weights[j]) / steps[j])
        weights[j] = moved
    for j in range(len(weights)):
        total[j] += weights[j] * max(len(order) - since[j], 0)
    return largest


@njit(cache=True, fastmath=EXACT_SUM, error_model="numpy")
def column_dots_dense(columns: Entries, factors: Array) -> Array:
    """sum_i factors[i] columns[j, i] for every j."""
    count, length = columns.shape
    found = np.zeros(count)
    for start in range(0, length, _TERMS):
        part = factors[start : start + _TERMS]  # a loop from 0 needs no test for negative places, and is vectorised
        for j in range(count):
            entries = columns[j, start : start + _TERMS]
            total = 0.0
            for i in range(len(part)):
                total += entries[i] * part[i]
            found[j] += total
    return found


@njit(cache=True, fastmath=EXACT_SUM, error_model="numpy")
def column_dots_sparse(indptr: Integers, indices: Integers, data: Entries, factors: Array) -> Array:
    """The same for the columns of a CSC matrix."""
    found = np.zeros(len(indptr) - 1)
    for j in range(len(found)):
        total = 0.0
        for place in range(indptr[j], indptr[j + 1]):
            total += data[place] * factors[indices[place]]
        found[j] = total
    return found


@njit(cache=True, fastmath=False, error_model="numpy")
def add_rows_sparse(
    indptr: Integers, indices: Integers, data: Entries, rows: Integers, factors: Array, found: Array
) -> None:
    """Add factors[k] times row rows[k] of a CSR matrix to `found`."""
    for k in range(len(rows)):
        factor = factors[k]
        if factor == 0.0:
            continue
        for place in range(indptr[rows[k]], indptr[rows[k] + 1]):
            found[indices[place]] += factor * data[place]


@njit(cache=True, fastmath=False, error_model="numpy")
def add_chosen_columns_sparse(
    indptr: Integers,
    indices: Integers,
    data: Entries,
    places: Integers,
    factors: Array,
    scores: Array,
    marks: Integers,
    touched: Integers,
) -> int:
    """Add factors[k] times column places[k] of a CSC matrix to `scores`; whose entries these are, and how many.

    `marks` is zero before and after.
    """
    count = 0
    for k in range(len(places)):
        factor = factors[k]
        for place in range(indptr[places[k]], indptr[places[k] + 1]):
            record = indices[place]
            scores[record] += factor * data[place]
            if marks[record] == 0:
                marks[record] = 1
                touched[count] = record
                count += 1
    for k in range(count):
        marks[touched[k]] = 0
    return count
