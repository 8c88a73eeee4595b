"""Raw labels, each read by itself: no label changes what another one means."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def label_key(label: Any) -> Any:
    """What a label is compared by: its number if it is one or reads as one, else its text, else None.

    A function of the one label alone, never of the array it came in: NumPy gives a column one type, so a single odd
    label would otherwise turn every other number into text.
    """
    try:
        number = float(label)
    except Exception:
        return label.strip() if isinstance(label, str) else None
    return number if number == number else None  # NaN is no label


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
        return labels.astype(np.float64)
    keys = [label_key(label) for label in labels.ravel()]
    return np.array([key if isinstance(key, float) else math.nan for key in keys]).reshape(labels.shape)
