"""Lines of decimal numbers between commas, read without a text for every cell.

A number is what Python's `float` makes of its text, to the last bit. A line that has anything but plain numbers and
empty cells in the columns that are read, or a number that is not settled here, is left to who reads texts.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sottovoce.data.kernels.common import Array

Text = NDArray[np.uint8]

_TENS = 10.0 ** np.arange(23)  # every power of ten that is a double
_EXACT = 2**53  # whole numbers up to this one are doubles
_DIGITS = 19  # so many always fit in 64 bits
_HALVES = 2.0**27 + 1.0
_SPACE, _TAB, _LINE_FEED, _RETURN, _QUOTE, _COMMA, _POINT = 32, 9, 10, 13, 34, 44, 46
_PLUS, _MINUS, _ZERO, _NINE = 43, 45, 48, 57
_LOWER_CASE = 32  # "E" | 32 is "e"


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
