"""Raw labels and cells, each read by itself: none changes what another one means, and none is an error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MISSING: Final = frozenset({"", "na", "nan", "?"})  # what a missing cell may be written as

_PLAIN: Final = frozenset({float, int, bool, str})  # of which `float` says all that there is to say
_READ: Final = (str, bytes, Real, Decimal, np.bool_)  # what may be a number; of others `float` could warn


def label_key(label: Any) -> Any:
    """What a label is compared by: its number if it is one or reads as one, else its text, else None.

    A function of the one label alone, never of the array it came in: NumPy gives a column one type, so a single odd
    label would otherwise turn every other number into text. For that a complex number without an imaginary part is its
    real part: one that is complex makes all others so.
    """
    if isinstance(label, complex | np.complexfloating):
        label = label.real if label.imag == 0 else None
    if not isinstance(label, _READ) or isinstance(label, np.timedelta64):
        return None
    try:
        number = float(label)
    except Exception:
        return label.strip() if isinstance(label, str) else None
    return number if number == number else None  # NaN is no label


def is_class(label: Any) -> bool:
    """Whether a label can be one of the classes: a text, or a finite number."""
    key = label_key(label)
    return key is not None and not (isinstance(key, float) and math.isinf(key))


def equal(labels: NDArray[Any], value: Any) -> NDArray[np.bool_]:
    """Which labels equal the value, each by its own key; a missing label equals nothing."""
    key = label_key(value)
    if key is None:
        return np.zeros(labels.shape, np.bool_)
    if labels.dtype.kind in "fiub":
        return np.asarray(labels == key, dtype=np.bool_) if isinstance(key, float) else np.zeros(labels.shape, np.bool_)
    return np.array([label_key(label) == key for label in labels.ravel()], dtype=np.bool_).reshape(labels.shape)


def numbers(labels: NDArray[Any]) -> Array:
    """Labels as float64; one that is no number is NaN, since an error would tell that there is one."""
    if labels.dtype.kind in "fiub":
        with np.errstate(all="ignore"):  # a warning that a label caused could be turned into an error
            return labels.astype(np.float64)
    return each_number(labels.ravel().tolist()).reshape(labels.shape)


def each_number(cells: Sequence[Any], key: Callable[[Any], Any] = label_key) -> Array:
    """The number of each cell by its key, NaN where it is none."""
    if set(map(type, cells)) <= _PLAIN:
        try:
            return np.fromiter(map(float, cells), np.float64, len(cells))
        except (ValueError, OverflowError):
            pass
    keys = map(key, cells)
    return np.fromiter((own if isinstance(own, float) else math.nan for own in keys), np.float64, len(cells))
