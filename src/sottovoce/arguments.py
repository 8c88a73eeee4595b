"""What counts as a number in an argument, and which parameters something has: one answer for the whole package."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, TypeGuard

from sottovoce.errors import InputError


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


def check_parameters(what: str, kind: Callable[..., Any], parameters: Mapping[str, object]) -> None:
    """Refuse parameters that a class or function does not take, or lacks."""
    signature = _signature(kind)
    try:
        signature.bind(**parameters)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "none"
        raise InputError(f"{what} with parameters {parameters}: {error}; it takes: {takes}") from None


@functools.cache
def _signature(kind: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(kind)
