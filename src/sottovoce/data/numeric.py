"""Rows of numbers without a schema: no cell is an error, and none decides how another one is read.

The type of an array, and that of a column of a table, is public: it holds for every cell, and one of texts or dates is
refused. Where there is no type (objects, lists) each cell is read by itself, and what is no number is NaN: the record
becomes a null row. So does a row of a list that has another number of cells than most (of two numbers of which there
are as many the smaller counts): how many columns a list has follows from the most of its rows, and is public.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.labels import each_number, numbers
from sottovoce.data.matrix import is_sparse
from sottovoce.data.schema import cells_of, numbers_of
from sottovoce.errors import InputError

_NUMBERS: Final = "fiub"  # kinds of NumPy
_NO_NUMBERS: Final = ("str", "large_str", "date", "time", "duration")  # types of columns that begin so


def number_rows(X: Any) -> Any:
    """X with numbers for cells: as it is where its type says that they are, else an array of float64 (CSR of sparse).

    Shapes and complex arrays are not looked at; whoever calls does.
    """
    if is_sparse(X):
        if X.dtype.kind == "O":
            X = X.tocsr(copy=True)
            X.data = numbers(X.data)
        return X
    if isinstance(X, list | tuple):
        return _of_lists(X)
    if (columns := _columns(X)) is not None:
        return X if all(map(_is_numeric, columns)) else _of_columns(columns)
    rows = np.asanyarray(X)
    if rows.dtype.kind == "O" or (rows.dtype.itemsize > 8 and rows.dtype.kind == "f"):  # of which a cell may overflow
        return numbers(rows)
    if rows.dtype.kind not in f"{_NUMBERS}c":
        raise no_numbers()
    return rows


def label_array(y: Any) -> NDArray[Any]:
    """Labels as an array; a plain list keeps each label as it is, since NumPy would give all of them one type."""
    if hasattr(y, "to_pylist"):  # Arrow
        return cells_of(y)
    if hasattr(y, "dtype") or hasattr(y, "__array__"):
        return np.asarray(y)
    return np.fromiter(y, dtype=object) if isinstance(y, Sequence) else np.array(y, dtype=object)


def no_numbers() -> InputError:
    """What is said of a type that is of no numbers."""
    return InputError(
        "X has columns that are not numbers; declare what they hold in a schema, schema=sv.Schema(...), or encode them "
        "first."
    )


def _columns(X: Any) -> list[Any] | None:
    """The columns of a pandas or Polars data frame or of an Arrow table; None of anything else."""
    if hasattr(X, "iloc") and getattr(X, "ndim", 0) == 2:
        return [X.iloc[:, place] for place in range(X.shape[1])]
    if hasattr(X, "get_columns"):
        return list(X.get_columns())
    return list(X.columns) if hasattr(X, "column_names") else None


def _is_numeric(column: Any) -> bool:
    return getattr(getattr(column, "dtype", None), "kind", "") in tuple(_NUMBERS)


def _of_columns(columns: Sequence[Any]) -> NDArray[np.float64]:
    types = [str(getattr(column, "dtype", getattr(column, "type", ""))).lower() for column in columns]
    if any(kind.startswith(_NO_NUMBERS) for kind in types):
        raise no_numbers()
    return np.column_stack([numbers_of(cells_of(column)) for column in columns])


def _of_lists(rows: Sequence[Any]) -> NDArray[np.float64]:
    """Of rows that are lists; one-dimensional where most of them are none."""
    widths = Counter(map(_width, rows))
    width = max(widths, key=lambda one: (widths[one], one >= 0, -one), default=-1)
    if width < 0:
        return np.zeros(len(rows))
    nothing = [None] * width
    cells = [cell for row in rows for cell in (row if _width(row) == width else nothing)]
    return each_number(cells).reshape(len(rows), width)


def _width(row: Any) -> int:
    """How many cells a row has, of lists, arrays and Series; -1 if it is none."""
    if isinstance(row, list | tuple | array):
        return len(row)
    try:
        (width,) = row.shape
    except Exception:  # whatever it is, it is no row
        return -1
    return width if type(width) is int and isinstance(row, Iterable) else -1
