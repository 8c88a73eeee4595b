"""What counts as a number in an argument: one answer for the whole package."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TypeGuard


def is_number(value: object) -> bool:
    """Whether it is a real number, of Python or numpy, that float64 can hold; infinite ones are numbers too.

    NaN is none, nor are True, False and texts, though these can be read as one.
    """
    if type(value) is float:  # most are, and an abstract class is slow to ask
        return not math.isnan(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return not math.isnan(value)
    except OverflowError:  # an integer beyond float64
        return False


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is an integer of Python or numpy, of any size; True, False and 1.0 are none."""
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))
