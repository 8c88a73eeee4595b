# mypy: allow-untyped-decorators
"""Loops of coordinate descent over records (dual) and over columns (primal), dense and sparse.

A loss is a code and one parameter, since a function as an argument would defeat numba's cache.

What is computed for one record is a function of that record and of public numbers alone, bit for bit, wherever the
record stands: such code is compiled without leave to reorder or to fuse operations, so that vectorised and scalar
instructions agree. Leave to reorder is given to sums only, and these are exact: their terms lie on public grids.
A function that is not told otherwise is compiled with its caller's leave, so every one is told.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

Array = NDArray[np.float64]
Entries = NDArray[Any]  # float32 or float64
Integers = NDArray[Any]  # the int32 or int64 of a sparse matrix

SQUARED, HUBER, HINGE, SMOOTHED_HINGE, LOGISTIC, LOGISTIC_EXACT, LOGISTIC_SLOPE = range(7)
BOX = 1e-4  # the Newton step of the logistic loss keeps its dual variable this far from 0 and 1

_ONE, _TWO = np.uint64(1), np.uint64(2)
_CHUNK = 1024  # records whose scores, labels, slopes and entries stay in the first cache together
_BATCH = 64  # rows scored before any of them steps: their memory is fetched side by side, and is still near later
_AHEAD = 16  # rows asked for before their turn
_SLACK = 1.0 + 2.0**-50  # more than the rounding of a square root, a product and a quotient
_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # the first has 33 bits
_SHIFT = 1.5 * 2.0**52  # adding it rounds to an integer and leaves that integer in the last bits
_EXACT_SUM = {"reassoc", "contract", "nsz"}


@njit(cache=True, fastmath=False, error_model="numpy")
def _clamp(value: float, low: float, high: float) -> float:
    """The value cut to [low, high]; NaN stays NaN."""
    value = low if value < low else value
    return high if value > high else value


def _ask_for(_context: Any, array: Any, _place: Any) -> Any:
    """Code that asks for the memory of array[place] and waits for nothing; any place will do."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.bitcast(builder.gep(view.data, [arguments[1]]), cgutils.voidptr_t)
        flags = [context.get_constant(types.int32, flag) for flag in (0, 3, 1)]  # to read, to keep near, data
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, *(flag.type for flag in flags)])
        builder.call(builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], kind), [pointer, *flags])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


_prefetch: Any = intrinsic(_ask_for)


# --- dual coordinate descent: records ---------------------------------------------------------------------------


@njit(cache=True, fastmath=False, error_model="numpy")
def dual_step(code: int, a: float, y: float, m: float, s: float, parameter: float) -> float:
    """The step z from the stored dual a that minimises l*(-a - z) + m z + s z^2 / 2 (LOGISTIC: one Newton step).

    LOGISTIC_SLOPE goes from a toward -l'(m), by 1 / (1 + s / 4) of the way: it never lowers the dual objective.
    Parameter: the threshold of the Huber loss, the smoothing of the smoothed hinge.
    """
    if code == SQUARED:
        return (y - a - m) / (1.0 + s)
    if code == HUBER:
        return _clamp(a + (y - a - m) / (1.0 + s), -parameter, parameter) - a
    b, m = y * a, y * m
    if code == LOGISTIC:
        b = _clamp(b, BOX, 1.0 - BOX)
        slope = math.log(b / (1.0 - b)) + m
        return y * _clamp(b - slope / (1.0 / (b * (1.0 - b)) + s), BOX, 1.0 - BOX) - a
    if code == LOGISTIC_SLOPE:
        return y * (_logistic_weight(m) - b) / (1.0 + 0.25 * s)
    if code == LOGISTIC_EXACT:
        return y * _logistic_dual(s * b - m, s) - a
    g = 0.0 if code == HINGE else parameter
    return y * _clamp(b + (1.0 - m - g * b) / max(g + s, 1e-200), 0.0, 1.0) - a


@njit(cache=True, fastmath=False, error_model="numpy")
def _logistic_dual(target: float, s: float) -> float:
    """sigma(t), where t + s sigma(t) = target. Convex below t = 0, concave above: Newton from 0 never overshoots."""
    t, b = 0.0, 0.5
    for _ in range(50):
        step = (target - t - s * b) / (1.0 + s * b * (1.0 - b))
        t += step
        e = math.exp(-abs(t))
        b = 1.0 / (1.0 + e) if t >= 0.0 else e / (1.0 + e)
        if not abs(step) > 1e-14 * (1.0 + abs(t)):
            break
    return b


@njit(cache=True, fastmath=False, error_model="numpy")
def _step_all(
    batch: NDArray[np.int64],
    scores: Array,
    labels: Array,
    norms_squared: Array,
    duals: Array,
    code: int,
    parameter: float,
    factor: float,
    clip: float,
    grid: int,
) -> None:
    """Overwrite the scores of the rows of a batch with their steps z, and add these to the duals.

    |z| |x| <= clip, and z is rounded toward zero to a multiple of 2^-grid; 0 where it is no number.
    """
    unit = 2.0**grid if grid >= 0 else 0.0
    for k in range(len(batch)):
        i = np.uint64(batch[k])
        bound = clip / (math.sqrt(norms_squared[i]) * _SLACK)
        z = dual_step(code, duals[i], labels[i], scores[k], factor * norms_squared[i], parameter)
        z = _clamp(z, -bound, bound)
        if unit > 0.0:
            z = np.trunc(z * unit) / unit
        usable = 0.0 < norms_squared[i] < math.inf and abs(z) < math.inf
        scores[k] = z if usable else 0.0
        duals[i] += scores[k]


@njit(cache=True, fastmath=_EXACT_SUM, error_model="numpy")
def dual_rows_dense(
    rows: Entries,
    chosen: NDArray[np.int64],
    labels: Array,
    norms_squared: Array,
    weights: Array,
    duals: Array,
    code: int,
    parameter: float,
    factor: float,
    clip: float,
    grid: int,
    scale: float,
) -> Array:
    """Step the duals of the chosen rows in place and return sum_i z_i x_i, in one pass.

    Args:
        rows: All rows of the holder, C order.
        chosen: Which rows step.
        labels: Of all rows.
        norms_squared: |x_i|^2 of all rows; a row for which it is 0 or not finite takes no step.
        weights: A score is x'weights.
        duals: Of all rows; z_i is added to those of the chosen rows.
        code: The loss.
        parameter: Its parameter.
        factor: The step minimises with s = factor |x|^2.
        clip: |z| |x| <= clip; infinite for none.
        grid: z is rounded toward zero to a multiple of 2^-grid; negative for no rounding.
        scale: 0 when all steps start from the same weights; else scale z x is added to the weights, in place, after
            every row, in the order chosen.
    """
    total = np.zeros(rows.shape[1])
    size = _BATCH if scale == 0.0 else 1
    steps = np.empty(size)
    entries, line = rows.ravel(), 64 // rows.itemsize
    for start in range(0, len(chosen), size):
        batch = chosen[start : start + size]
        for k in range(len(batch)):
            ahead = chosen[min(start + k + _AHEAD, len(chosen) - 1)]
            for place in range(ahead * len(total), (ahead + 1) * len(total), line):
                _prefetch(entries, place)
            row, score = rows[batch[k]], 0.0
            for j in range(len(total)):
                score += row[j] * weights[j]
            steps[k] = score
        _step_all(batch, steps, labels, norms_squared, duals, code, parameter, factor, clip, grid)
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
    code: int,
    parameter: float,
    factor: float,
    clip: float,
    grid: int,
    scale: float,
) -> Array:
    """As `dual_rows_dense`, for the rows of a CSR matrix."""
    # Two sums for each of a row's products: with one, every addition would wait for the one before. Places are
    # unsigned, so that no check for negative ones is made, and the loops stand here, since a call would cost as much.
    total, other = np.zeros(len(weights)), np.zeros(len(weights))
    size = _BATCH if scale == 0.0 else 1
    steps = np.empty(size)
    for start in range(0, len(chosen), size):
        batch = chosen[start : start + size]
        for k in range(len(batch)):
            ahead = indptr[chosen[min(start + k + _AHEAD, len(chosen) - 1)]]
            _prefetch(data, ahead)
            _prefetch(data, ahead + 8)
            _prefetch(indices, ahead)
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
        _step_all(batch, steps, labels, norms_squared, duals, code, parameter, factor, clip, grid)
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


# --- proximal coordinate descent: columns -----------------------------------------------------------------------


@njit(cache=True, fastmath=False, error_model="numpy")
def _logistic_weight(t: float) -> float:
    """1 / (1 + exp(t)) to about 1e-15, t first cut to [-690, 690]; no branches or calls, so that a loop is vectorised.

    t = k ln 2 + r, and exp(r) = (A + B) / (A - B) by Pade's formula of order 5, whose error is below 1e-15.
    """
    t = _clamp(t, -690.0, 690.0)
    shifted = t * _LOG2_E + _SHIFT
    k = shifted - _SHIFT
    r = (t - k * _LN2_HIGH) - k * _LN2_LOW
    q = r * r
    even = 30240.0 + q * (3360.0 + q * 30.0)
    odd = r * (15120.0 + q * (420.0 + q))
    power = np.int64((np.float64(shifted).view(np.int64) + 1023) << 52).view(np.float64)
    low = even - odd
    return float(low / (low + power * (even + odd)))


@njit(cache=True, fastmath=False, error_model="numpy")
def _fill_slopes(
    code: int, parameter: float, scores: Array, labels: Array, start: int, count: int, slopes: Array
) -> None:
    """Overwrite slopes with l'(score, label) of records start, ..., start + count - 1."""
    u, y = scores[start : start + count], labels[start : start + count]
    if code == SQUARED:
        for i in range(count):
            slopes[i] = u[i] - y[i]
    elif code == HUBER:
        for i in range(count):
            slopes[i] = _clamp(u[i] - y[i], -parameter, parameter)
    elif code == SMOOTHED_HINGE:
        steep = 1.0 / parameter
        for i in range(count):
            slopes[i] = y[i] * _clamp((y[i] * u[i] - 1.0) * steep, -1.0, 0.0)
    elif code == LOGISTIC:
        for i in range(count):
            slopes[i] = -y[i] * _logistic_weight(y[i] * u[i])
    else:
        slopes[:] = math.nan


@njit(cache=True, fastmath=False, error_model="numpy")
def fill_slopes(code: int, parameter: float, scores: Array, labels: Array, slopes: Array) -> None:
    """Overwrite slopes with l'(score, label). Losses: SQUARED, HUBER, SMOOTHED_HINGE, LOGISTIC; else NaN."""
    _fill_slopes(code, parameter, scores, labels, 0, len(slopes), slopes)


@njit(cache=True, fastmath=False, error_model="numpy")
def _term(slope: float, entry: float, scale: float, limit: float) -> float:
    """trunc(cut(slope entry scale, -limit, limit)); 0 where that is no number, so that a null row always adds 0."""
    value = slope * entry * scale
    value = value if value == value else 0.0
    value = value if value > -limit else -limit
    return float(np.trunc(value if value < limit else limit))


@njit(cache=True, fastmath=_EXACT_SUM, error_model="numpy")
def _clipped_sum(slopes: Array, entries: Entries, start: int, count: int, scale: float, limit: float) -> float:
    """The sum of slope entry scale, each term cut to [-limit, limit] and rounded toward zero; limit 0 for neither."""
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
def _release(
    k: int, total: float, released: NDArray[Any], noise: NDArray[Any], grid_step: float, limit: float, clip: float
) -> float:
    """Release step k from its sum of terms and return the sum of slopes that this stands for."""
    if limit == 0.0:
        released[k] = total + noise[k]
        return float(released[k])
    released[k] = np.int64(np.rint(total / limit / grid_step)) + noise[k]
    return float(released[k] * grid_step * clip)


@njit(cache=True, fastmath=False, error_model="numpy")
def _prox(u: float, step: float, l1: float, l2: float, low: float, high: float) -> float:
    """The minimiser of l1 |w| + l2 w^2 / 2 + (w - u)^2 / (2 step) over low <= w <= high."""
    shrunk = math.copysign(max(abs(u) - step * l1, 0.0), u)
    return _clamp(shrunk / (1.0 + step * l2), low, high)


@njit(cache=True, fastmath=False, error_model="numpy")
def coordinate_walk_dense(
    columns: Entries,
    labels: Array,
    scores: Array,
    weights: Array,
    order: NDArray[np.int64],
    clip: Array,
    steps: Array,
    l1: Array,
    l2: Array,
    low: Array,
    high: Array,
    code: int,
    parameter: float,
    records: float,
    noise: NDArray[Any],
    grid_step: float,
    bits: int,
) -> NDArray[Any]:
    """Proximal steps on the coordinates of `order`, one after another, each from what the one before released.

    Step k on coordinate j releases R_k = rint(sum_i c_i / grid_step) + noise_k, where c_i is l'_i x_ij / clip_j cut
    to [-1, 1] (0 where it is no number) and rounded toward zero to a multiple of 2^-bits. With at most
    2^(53 - bits) records the sum is exact. The gradient is g = R_k grid_step clip_j / records, and w_j becomes
    cut(soft(u, step_j l1_j) / (1 + step_j l2_j), low_j, high_j) with u = w_j - step_j g.

    Args:
        columns: The transpose of the rows, C order.
        labels: Of all records.
        scores: Xw, kept up to date in place.
        weights: Updated in place.
        order: The coordinate of each step.
        clip: Of each coordinate.
        steps: The step size of each coordinate.
        l1: Of each coordinate.
        l2: Of each coordinate.
        low: Of each coordinate.
        high: Of each coordinate.
        code: The loss.
        parameter: Its parameter.
        records: The divisor of the gradient.
        noise: Integers, one for each step.
        grid_step: The grid of a release, in units of clip.
        bits: Negative for a run without privacy: then R_k = sum_i l'_i x_ij + noise_k and g = R_k / records; the
            noise is made of floats, zeros as a rule.

    Returns:
        R, of the type of the noise.
    """
    released = np.empty_like(noise)
    limit = 2.0**bits if bits >= 0 else 0.0
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
                _fill_slopes(code, parameter, scores, labels, start, count, slopes)
            total += _clipped_sum(slopes, entries, j * len(scores) + start, count, limit / clip[j], limit)
        gradient = _release(k, total, released, noise, grid_step, limit, clip[j]) / records
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
    clip: Array,
    steps: Array,
    l1: Array,
    l2: Array,
    low: Array,
    high: Array,
    code: int,
    parameter: float,
    records: float,
    noise: NDArray[Any],
    grid_step: float,
    bits: int,
) -> NDArray[Any]:
    """As `coordinate_walk_dense`, for a CSC matrix; touches the records of a column only."""
    released = np.empty_like(noise)
    limit = 2.0**bits if bits >= 0 else 0.0
    near, sign, slopes = np.empty(_CHUNK), np.empty(_CHUNK), np.empty(_CHUNK)
    for k in range(len(order)):
        j = order[k]
        total = 0.0
        for start in range(indptr[j], indptr[j + 1], _CHUNK):
            count = min(_CHUNK, indptr[j + 1] - start)
            for i in range(count):
                near[i], sign[i] = scores[indices[start + i]], labels[indices[start + i]]
            _fill_slopes(code, parameter, near, sign, 0, count, slopes)
            total += _clipped_sum(slopes, data, start, count, limit / clip[j], limit)
        gradient = _release(k, total, released, noise, grid_step, limit, clip[j]) / records
        moved = _prox(weights[j] - steps[j] * gradient, steps[j], l1[j], l2[j], low[j], high[j])
        change, weights[j] = moved - weights[j], moved
        if change != 0.0:
            for place in range(indptr[j], indptr[j + 1]):
                scores[indices[place]] += change * data[place]
    return released


@njit(cache=True, fastmath=False, error_model="numpy")
def all_coordinate_sums_dense(columns: Entries, slopes: Array, clip: Array, bits: int) -> Array:
    """For every coordinate j the sum of `coordinate_walk_dense`, from given slopes l'_i, in one pass.

    With negative bits the plain sums of l'_i x_ij.
    """
    sums = np.zeros(len(columns))
    limit = 2.0**bits if bits >= 0 else 0.0
    for start in range(0, len(slopes), _CHUNK):
        for j in range(len(columns)):
            sums[j] += _clipped_sum(
                slopes[start : start + _CHUNK],
                columns[j],
                start,
                min(_CHUNK, len(slopes) - start),
                limit / clip[j],
                limit,
            )
    return sums / limit if limit > 0.0 else sums


@njit(cache=True, fastmath=False, error_model="numpy")
def all_coordinate_sums_sparse(
    indptr: Integers, indices: Integers, data: Entries, slopes: Array, clip: Array, bits: int
) -> Array:
    """As `all_coordinate_sums_dense`, for a CSC matrix."""
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


@njit(cache=True, fastmath=_EXACT_SUM, error_model="numpy")
def _squares(entries: Entries, start: int, stop: int, limit: float) -> float:
    """The sum of squares, each cut to 1 and rounded toward zero to a multiple of 1 / limit; limit 0 for neither."""
    total = 0.0
    for place in range(start, stop):
        total += _term(entries[place], entries[place], limit, limit) if limit > 0.0 else entries[place] ** 2
    return total / limit if limit > 0.0 else total


@njit(cache=True, fastmath=False, error_model="numpy")
def squares_dense(columns: Entries, limit: float) -> Array:
    """For every column the sum of `_squares`."""
    sums = np.empty(len(columns))
    for j in range(len(columns)):
        sums[j] = _squares(columns[j], 0, columns.shape[1], limit)
    return sums


@njit(cache=True, fastmath=False, error_model="numpy")
def squares_sparse(indptr: Integers, indices: Integers, data: Entries, limit: float) -> Array:  # noqa: ARG001
    """As `squares_dense`, for a CSC matrix."""
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
