"""Loops over rows: scores, and sums of slopes times rows that read every row once; over raw rows, and lines of text.

Rows, weights and slopes are on the grids of `matrix`: products and sums of them are exact, so the order of a sum
does not matter, nor does it whether a product and a sum are fused. That is why the compiler may reorder sums here,
and why several threads may share rows. Slopes are made by `fill_terms`, which has no such leave. Rows of a run without
privacy are on no grid, and no thread shares them.

A loop takes rows start, ..., stop - 1 of a block, or of a batch with the places `chosen` in the block; of None, or
without any, they are the rows themselves. It holds no lock of Python's.

Decimal numbers between commas are read without a text for every cell. A number is what Python's `float` makes of its
text, to the last bit. A line that has anything but plain numbers and empty cells in the columns that are read, or a
number that is not settled here, is left to who reads texts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sottovoce.data.kernels import EXACT_SUM, Array, Entries, Integers, SparseRows, prefetch
from sottovoce.losses.kernels import fill_terms

TILE = 256  # most rows that get their slopes together
_NEAR = 32768  # entries of rows that stay in the second cache from their scores to their sum
_LINE = 16  # entries of float32; a number that the compiler knows
_ONE = np.uint64(1)

Term = tuple[int, Array, Array]  # what `fill_terms` takes: the code of a loss, its numbers, and shares of rows if any
Text = NDArray[np.uint8]

_TENS = 10.0 ** np.arange(23)  # every power of ten that is a double
_EXACT = 2**53  # whole numbers up to this one are doubles
_DIGITS = 19  # so many always fit in 64 bits
_HALVES = 2.0**27 + 1.0
_SPACE, _TAB, _LINE_FEED, _RETURN, _QUOTE, _COMMA, _POINT = 32, 9, 10, 13, 34, 44, 46
_PLUS, _MINUS, _ZERO, _NINE = 43, 45, 48, 57
_LOWER_CASE = 32  # "E" | 32 is "e"


@njit(cache=True, fastmath=False, nogil=True)
def _row_place(chosen: Integers | None, row: int) -> Any:
    """The place of a row. Of None the compiler knows that rows follow one another."""
    if chosen is None:
        return np.uint64(row)
    return np.uint64(chosen[row]) if len(chosen) > 0 else np.uint64(row)


@njit(cache=True, fastmath=False, nogil=True)
def _rows_near(width: int) -> int:
    """How many rows of `width` entries are taken together: a multiple of 16, so that slopes fill whole vectors."""
    return min(TILE, max(64, _NEAR // max(width, 1) // 16 * 16))


@njit(cache=True, fastmath=False, nogil=True)
def _ask_for_two(rows: Entries, chosen: Integers | None, first: int, stop: int) -> None:
    """Ask for the memory of up to two rows before their turn."""
    if chosen is None:
        entries = rows[_row_place(chosen, first)]  # memory behind the last row may be asked for too
        for column in range(0, 2 * len(entries), _LINE):
            prefetch(entries, column)
    else:
        for row in range(first, min(first + 2, stop)):
            entries = rows[_row_place(chosen, row)]
            for column in range(0, len(entries), _LINE):
                prefetch(entries, column)


@njit(cache=True, fastmath=EXACT_SUM, error_model="numpy", nogil=True)
def _fill_scores(
    rows: Entries, chosen: Integers | None, weights: Array, start: int, count: int, stop: int, found: Array
) -> None:
    """x_i'w of `count` rows, four rows at a time: a weight is read once for four.

    Two of the four rows that follow `count` rows later are asked for on the way, so that memory is read all the time;
    `_add_rows` asks for the others.
    """
    fours = count - count % 4
    for row in range(0, fours, 4):
        _ask_for_two(rows, chosen, start + row + count, stop)
        a, b = rows[_row_place(chosen, start + row)], rows[_row_place(chosen, start + row + 1)]
        c, d = rows[_row_place(chosen, start + row + 2)], rows[_row_place(chosen, start + row + 3)]
        sum_a = sum_b = sum_c = sum_d = 0.0
        for column in range(len(weights)):
            weight = weights[column]
            sum_a += a[column] * weight
            sum_b += b[column] * weight
            sum_c += c[column] * weight
            sum_d += d[column] * weight
        found[row], found[row + 1], found[row + 2], found[row + 3] = sum_a, sum_b, sum_c, sum_d
    for row in range(fours, count):
        a = rows[_row_place(chosen, start + row)]
        total = 0.0
        for column in range(len(weights)):
            total += a[column] * weights[column]
        found[row] = total


@njit(cache=True, fastmath=EXACT_SUM, error_model="numpy", nogil=True)
def _add_rows(
    rows: Entries, chosen: Integers | None, factors: Array, start: int, count: int, stop: int, total: Array
) -> None:
    """Total += sum of factor x_i over `count` rows, likewise."""
    fours = count - count % 4
    for row in range(0, fours, 4):
        _ask_for_two(rows, chosen, start + row + count + 2, stop)
        a, b = rows[_row_place(chosen, start + row)], rows[_row_place(chosen, start + row + 1)]
        c, d = rows[_row_place(chosen, start + row + 2)], rows[_row_place(chosen, start + row + 3)]
        by_a, by_b, by_c, by_d = factors[row], factors[row + 1], factors[row + 2], factors[row + 3]
        for column in range(len(total)):
            total[column] += (by_a * a[column] + by_b * b[column]) + (by_c * c[column] + by_d * d[column])
    for row in range(fours, count):
        a, by_a = rows[_row_place(chosen, start + row)], factors[row]
        for column in range(len(total)):
            total[column] += by_a * a[column]


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def scores_dense(rows: Entries, chosen: Integers, weights: Array, found: Array, start: int, stop: int) -> None:
    """x_i'w of rows start, ..., stop - 1, into the same places of `found`."""
    tile = _rows_near(rows.shape[1])
    for first in range(start, stop, tile):
        count = min(tile, stop - first)
        _fill_scores(rows, chosen, weights, first, count, stop, found[first : first + count])


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def slope_sum_dense(
    rows: Entries, chosen: Integers | None, labels: Array, weights: Array, term: Term, start: int, stop: int
) -> Array:
    """sum_i term(x_i'w, y_i) x_i of rows start, ..., stop - 1, in tiles: scores, `fill_terms`, sum."""
    code, numbers, shares = term
    total = np.zeros(rows.shape[1])
    tile = _rows_near(rows.shape[1])
    scores, spare, terms = np.empty(tile), np.empty(tile), np.empty(tile)
    for first in range(start, stop, tile):
        count = min(tile, stop - first)
        own = shares[first : first + count] if len(shares) > 0 else shares
        _fill_scores(rows, chosen, weights, first, count, stop, scores)
        fill_terms(code, numbers, scores[:count], labels[first : first + count], own, spare[:count], terms[:count])
        _add_rows(rows, chosen, terms, first, count, stop, total)
    return total


@njit(cache=True, fastmath=EXACT_SUM, error_model="numpy", nogil=True)
def _sum_of_products(a: Array, b: Array) -> float:
    total = 0.0
    for place in range(len(a)):
        total += a[place] * b[place]
    return total


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def slope_sum_few(rows: Array, cuts: Array, labels: Array, weights: Array, term: Term, start: int, stop: int) -> Array:
    """sum_i term(z_i'u / cut_i, y_i) z_i of rows z_i of few columns, likewise; a tile of them lies by columns."""
    (code, numbers, shares), tile = term, 4 * TILE
    total, part = np.zeros(len(weights)), np.empty((len(weights), tile))
    scores, spare, terms = np.empty(tile), np.empty(tile), np.empty(tile)
    for first in range(start, stop, tile):
        count = min(tile, stop - first)
        here, by, at = rows[first : first + count], cuts[first : first + count], scores[:count]
        at[:] = 0.0
        for column in range(len(weights)):
            entries = part[column, :count]
            for row in range(count):
                entries[row] = here[row, column]
            for row in range(count):
                at[row] += entries[row] * weights[column]
        for row in range(count):
            at[row] /= by[row]
        own = shares[first : first + count] if len(shares) > 0 else shares
        fill_terms(code, numbers, at, labels[first : first + count], own, spare[:count], terms[:count])
        for column in range(len(weights)):
            total[column] += _sum_of_products(part[column, :count], terms[:count])
    return total


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def number_sum(numbers: Array, low: float, shares: Array, usable: NDArray[np.bool_], scale: float) -> float:
    """The sum of numbers cut to [low, 1], a NaN to 1, times shares if any, on the grid 1 / scale; 0 if not usable."""
    total = 0.0
    for row in range(len(numbers)):
        number = numbers[row] if numbers[row] < 1.0 else 1.0
        number = number if number > low else low
        number = number * shares[row] if len(shares) > 0 else number
        total += np.trunc(number * scale) if usable[row] else 0.0
    return total / scale


@njit(cache=True, fastmath=EXACT_SUM)
def chosen_scores(rows: Entries, chosen: NDArray[np.int64], weights: Array) -> Array:
    """x_i'w for the chosen rows, for a function that has no code; also of rows on no grid."""
    found = np.empty(len(chosen))
    for place in range(len(chosen)):
        row = rows[chosen[place]]
        total = 0.0
        for column in range(len(weights)):
            total += row[column] * weights[column]
        found[place] = total
    return found


@njit(cache=True, fastmath=EXACT_SUM)
def chosen_sum(rows: Entries, chosen: NDArray[np.int64], slopes: Array) -> Array:
    """sum_i slopes_i x_i over the chosen rows, likewise."""
    total = np.zeros(rows.shape[1])
    for place in range(len(chosen)):
        row, slope = rows[chosen[place]], slopes[place]
        for column in range(len(total)):
            total[column] += slope * row[column]
    return total


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def _fill_scores_sparse(
    rows: SparseRows, chosen: Integers, weights: Array, start: int, count: int, found: Array
) -> None:
    """x_i'w of `count` rows of a CSR matrix. Places without a sign need no test for negative ones: half of the time."""
    starts, columns, entries = rows
    for row in range(count):
        place = _row_place(chosen, start + row)
        total = 0.0
        for k in range(np.uint64(starts[place]), np.uint64(starts[place + _ONE])):
            total += entries[k] * weights[np.uint64(columns[k])]
        found[row] = total


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def scores_sparse(rows: SparseRows, chosen: Integers, weights: Array, found: Array, start: int, stop: int) -> None:
    """As `scores_dense`, of the rows of a CSR matrix."""
    _fill_scores_sparse(rows, chosen, weights, start, stop - start, found[start:stop])


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def slope_sum_sparse(
    rows: SparseRows, chosen: Integers, labels: Array, weights: Array, term: Term, start: int, stop: int
) -> Array:
    """As `slope_sum_dense`, of the rows of a CSR matrix."""
    (starts, columns, entries), (code, numbers, shares) = rows, term
    total = np.zeros(len(weights))
    scores, spare, terms = np.empty(TILE), np.empty(TILE), np.empty(TILE)
    for first in range(start, stop, TILE):
        count = min(TILE, stop - first)
        own = shares[first : first + count] if len(shares) > 0 else shares
        _fill_scores_sparse(rows, chosen, weights, first, count, scores)
        fill_terms(code, numbers, scores[:count], labels[first : first + count], own, spare[:count], terms[:count])
        for row in range(count):
            place, slope = _row_place(chosen, first + row), terms[row]
            for k in range(np.uint64(starts[place]), np.uint64(starts[place + _ONE])):
                total[np.uint64(columns[k])] += slope * entries[k]
    return total


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def gram_sparse(rows: SparseRows, chosen: Integers, width: int, start: int, stop: int) -> Array:
    """The upper triangle of sum_i x_i x_i' of the rows of a CSR matrix; below the diagonal it is 0."""
    (starts, columns, entries), total = rows, np.zeros((width, width))
    for row in range(start, stop):
        place = _row_place(chosen, row)
        last = np.uint64(starts[place + _ONE])
        for k in range(np.uint64(starts[place]), last):
            for other in range(k, last):
                low, high = min(columns[k], columns[other]), max(columns[k], columns[other])
                total[np.uint64(low), np.uint64(high)] += entries[k] * entries[other]
    return total


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
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


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def add_squares(columns: Array, total: Array) -> None:
    """Total += the squares of each row's entries, in the order of the columns; what is contiguous is a column."""
    for column in range(len(columns)):
        for row in range(len(total)):
            total[row] += columns[column, row] * columns[column, row]


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
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


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def _error_of(a: float, b: float) -> float:
    """What a b, as a double, is short of the product, exactly: halves of 26 bits, whose products are exact (Dekker)."""
    shifted = _HALVES * a
    a_high = shifted - (shifted - a)
    shifted = _HALVES * b
    b_high = shifted - (shifted - b)
    a_low, b_low = a - a_high, b - b_high
    return ((a_high * b_high - a * b) + a_high * b_low + a_low * b_high) + a_low * b_low


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def decimal(digits: np.uint64, power: int) -> tuple[float, bool]:
    """The double nearest to digits 10^power, and whether it is settled; digits are below 10^19.

    Where both numbers are doubles one operation rounds once. Else digits = h + l, h the nearest double, and

        digits / p = q + (h - q p + l) / p,    q = h / p rounded.

    h - q p is a double, and so is l; their sum and its quotient are rounded once each. What that can be wrong by, less
    than 2^-50 of the quotient, decides nothing if both ends round to the same double.
    """
    if digits <= _EXACT:
        if 0 <= power <= 22:
            return digits * _TENS[power], True
        if -22 <= power < 0:
            return digits / _TENS[-power], True
        return 0.0, digits == 0
    if not -22 <= power <= 0:
        return 0.0, False
    high = np.float64(digits)
    low, by = np.float64(np.int64(digits - np.uint64(high))), _TENS[-power]
    quotient = high / by
    rest = ((high - quotient * by) - _error_of(quotient, by) + low) / by
    slack = abs(rest) * 2.0**-50
    least, most = quotient + (rest - slack), quotient + (rest + slack)
    return least, least == most


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def _past_blanks(text: Text, place: int, stop: int) -> int:
    while place < stop and (text[place] == _SPACE or text[place] == _TAB):
        place += 1
    return place


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def _past_sign(text: Text, place: int, stop: int) -> tuple[bool, int]:
    """Whether there is a minus, and where what follows a sign begins."""
    if place < stop and (text[place] == _MINUS or text[place] == _PLUS):
        return text[place] == _MINUS, place + 1
    return False, place


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def _exponent(text: Text, place: int, stop: int) -> tuple[int, int]:
    """What follows an "e", up to some thousands, and where it ends; -1: it is none."""
    below, place = _past_sign(text, place, stop)
    found, first = 0, place
    while place < stop and _ZERO <= text[place] <= _NINE and found < 1000:
        found, place = 10 * found + (text[place] - _ZERO), place + 1
    return -found if below else found, -1 if place == first else place


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def _read_decimal(text: Text, place: int, stop: int) -> tuple[float, int]:
    """A number or an empty cell (NaN) from `place` on, and where its cell ends; -1: it is not plain."""
    place = _past_blanks(text, place, stop)
    if place == stop or text[place] == _COMMA:
        return np.nan, place
    negative, place = _past_sign(text, place, stop)
    digits, count, point, first = np.uint64(0), 0, -1, place
    while place < stop and (_ZERO <= text[place] <= _NINE or (text[place] == _POINT and point < 0)):
        if text[place] == _POINT:
            point = place
        else:
            digits = digits * np.uint64(10) + np.uint64(text[place] - _ZERO)
            if count > 0 or digits > 0:  # zeros before the first other digit do not count
                count += 1
        place += 1
    power = 0 if point < 0 else point + 1 - place
    if count > _DIGITS or place - first == (point >= 0):
        return 0.0, -1
    if place < stop and text[place] | _LOWER_CASE == ord("e"):
        exponent, place = _exponent(text, place + 1, stop)
        if place < 0:
            return 0.0, -1
        power += exponent
    place = _past_blanks(text, place, stop)
    value, settled = decimal(digits, power)
    if not settled or (place < stop and text[place] != _COMMA):
        return 0.0, -1
    return -value if negative else value, place


@njit(cache=True, fastmath=False, error_model="numpy", nogil=True)
def fill_numbers(
    text: Text,
    starts: NDArray[np.int64],
    places: NDArray[np.int64],
    made: Array,
    label: int,
    spans: NDArray[np.int64],
    plain: NDArray[np.bool_],
) -> None:
    """The numbers of lines: cell j into the column places[j] of `made`, unless that is below 0.

    Line i is text[starts[i]:starts[i + 1]]. `spans` is where the cell of the label begins and ends; `plain` says which
    lines were read, the rows of others are undefined. Columns that are not read may hold anything but quotes.
    """
    for line in range(len(plain)):
        place, stop, column = starts[line], starts[line + 1], 0
        while stop > place and (text[stop - 1] == _LINE_FEED or text[stop - 1] == _RETURN):
            stop -= 1
        plain[line] = False
        while column < len(places):
            begin = place
            if places[column] >= 0:
                value, place = _read_decimal(text, place, stop)
                if place < 0:
                    break
                made[line, places[column]] = value
            else:
                while place < stop and text[place] != _COMMA and text[place] != _QUOTE:
                    place += 1
            if column == label:
                spans[line, 0], spans[line, 1] = begin, place
            column += 1
            if place == stop or text[place] != _COMMA:
                plain[line] = place == stop and column == len(places)
                break
            place += 1
