"""What a holder gives: rows, labels and the names of columns; checked for the holder's own eyes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.data.cells import MISSING, is_class, label_array, label_key, no_numbers, number_rows
from sottovoce.data.dataset import Dataset
from sottovoce.data.matrix import Matrix, is_sparse
from sottovoce.errors import InputError, RefusedError

MOST_READ: Final = 20  # classes that are read from labels which nobody declared


def label_values(labels: np.ndarray[Any, Any]) -> list[Any]:
    """The distinct labels of a classification, at most a few; missing ones do not count."""
    if labels.dtype.kind not in "fiub":
        values = sorted(
            {_plain(value) for value in labels.tolist() if _present(value)}, key=lambda value: (str(type(value)), value)
        )
    else:
        values = list(np.unique(labels[np.isfinite(labels)]).tolist())
    if len(values) > 2 and not (len(values) <= MOST_READ and all(map(_names_a_class, values))):
        raise RefusedError(
            f"the labels have more than {MOST_READ} distinct values, or numbers that are not whole; declare those to "
            "tell apart with classes=(one, other, ...)."
        )
    return values


def _names_a_class(label: Any) -> bool:
    """Texts and whole numbers do; of other numbers there are as many as people."""
    return isinstance(label, str) or (isinstance(label, int | float) and float(label).is_integer())


def _present(value: Any) -> bool:
    return is_class(value) and not (isinstance(value, str) and value.strip().lower() in MISSING)


def _plain(value: Any) -> Any:
    """The label as it is, of another type than a plan has by its number."""
    return value if isinstance(value, str | int | float) else label_key(value)


def check_rows(X: Matrix, y: ArrayLike | None, name: str) -> tuple[Matrix, np.ndarray[Any, Any]]:
    """Shapes, for the holder's eyes: two-dimensional rows, one label each, at least one of both.

    `y=None`, of a holder that does not know the labels, gives a 0 for each row. A `Dataset` has its own labels.
    """
    if isinstance(X, Dataset):
        if y is not None:
            raise InputError(f"{name}: y must be None where X is a Dataset, which has its own labels.")
        return X, np.zeros(0)
    try:
        rows = number_rows(X)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    rows = rows if is_sparse(rows) else np.asarray(rows)
    labels = label_array(np.zeros(rows.shape[:1] or 1) if y is None else y)
    if rows.ndim != 2 or labels.ndim != 1:
        raise InputError(
            f"{name}: X must be two-dimensional and y one-dimensional; they are {rows.shape} and {labels.shape}."
        )
    if rows.shape[0] == 0 or rows.shape[1] == 0:
        raise InputError(f"{name}: X is empty, with shape {rows.shape}; give at least one row and one feature.")
    if rows.shape[0] != labels.shape[0]:
        raise InputError(f"{name}: X has {rows.shape[0]} rows and y {labels.shape[0]} labels; give one label per row.")
    if rows.dtype.kind not in "fiub":
        raise InputError(f"{name}: {no_numbers()}")
    return rows, labels


def column_names(X: Matrix) -> tuple[str, ...]:
    """The column names of a data frame; arrays have none."""
    return tuple(str(name) for name in getattr(X, "columns", ()))
