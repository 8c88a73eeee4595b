"""Raw cells and labels, each read by itself: none changes what another one means, and none is an error.

The type of an array, and that of a column of a table, is public: it holds for every cell. Without a schema one of texts
or dates is refused. Where there is no type (objects, lists) what is no number is NaN: the record becomes a null row. So
does a row of a list that has another number of cells than most (of two numbers that are as frequent the smaller
counts): how many columns a list has follows from most of its rows, and is public.
"""

from __future__ import annotations

import functools
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.matrix import is_sparse
from sottovoce.errors import InputError
from sottovoce.files import LONGEST_LINE

Array = NDArray[np.float64]
Cells = NDArray[Any]  # of one column

MISSING: Final = frozenset({"", "na", "nan", "?"})  # what a missing cell or label may be written as, in any capitals
# What pandas takes for a missing cell: of a file that it has read, nobody sees any more which of them was there.
NULLS: Final = frozenset(
    ["", "NA", "nan", "NaN", "-nan", "-NaN", "None", "null", "NULL", "N/A", "n/a", "<NA>", "#N/A", "#N/A N/A", "#NA"]
)
DATES: Final = ...  # a cell of a column of dates, or of another kind that no schema has
NUMBERS: Final = "fiub"  # kinds of NumPy

_PLAIN: Final = frozenset({float, int, bool, str})  # of these `float` says all that there is to say
SAME: Final = _PLAIN | {bytes, type(None)}  # of these equal cells have one key
_READ: Final = (str, bytes, Real, Decimal, np.bool_)  # what may be a number; of others `float` could warn
_NO_NUMBERS: Final = ("str", "large_str", "date", "time", "duration")  # types of columns that begin so
_TRUE: Final = {"true": 1.0, "false": 0.0}
_ARROW_NUMBERS: Final = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)} | {"float", "double"}
_ARROW_TEXTS: Final = ("string", "large_string", "dictionary")
_ARROW_PLAIN: Final = ("bool", "decimal", "null")


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


def cell_key(cell: Any) -> float | str | None:
    """The same of a cell that a schema describes: true is 1 and false 0, and a text is one whatever it says.

    A column of 1 and 2 with one text in it, or one missing cell, is of another type in every library, and the
    other cells must not be read differently for that.
    """
    key = label_key(cell)
    if isinstance(cell, str) and not isinstance(key, float):  # also "nan", which may be declared as a level
        text = cell.strip()
        return _TRUE.get(text.lower(), text)
    return key  # type: ignore[no-any-return]


def is_missing(cell: Any) -> bool:
    """Whether a cell that is no number is a missing one, however it is written."""
    if not isinstance(cell, str):
        key = label_key(cell)  # `math.isinf` would raise an error for an integer of 400 digits, or a time
        return not (isinstance(key, float) and math.isinf(key))
    return (text := cell.strip()) in NULLS or text.lower() in MISSING


def is_class(label: Any) -> bool:
    """Whether a label can be one of the classes: a text, or a finite number."""
    key = label_key(label)
    return key is not None and not (isinstance(key, float) and math.isinf(key))


def class_places(labels: NDArray[Any], classes: Sequence[Any]) -> NDArray[np.int64]:
    """The place of the class that each label equals, by its own key; -1: of none. A missing label equals nothing."""
    keys = dict(zip(map(label_key, classes), range(len(classes)), strict=True))
    keys.pop(None, None)
    if labels.dtype.kind not in NUMBERS:
        return look_up(labels, lambda label: keys.get(label_key(label), -1))
    places = np.full(labels.shape, -1)
    for key, place in keys.items():
        if isinstance(key, float):
            np.copyto(places, place, where=labels == key)
    return places


def look_up(cells: Cells, place: Callable[[Any], int]) -> NDArray[np.int64]:
    """The place of each cell, which is asked for once for each distinct one."""
    if cells.dtype.kind in NUMBERS:
        distinct, back = np.unique(cells, return_inverse=True)
        return np.fromiter(map(place, distinct.tolist()), np.int64, len(distinct))[back]
    listed = cells.ravel().tolist()
    odd = [] if SAME.issuperset(map(type, listed)) else [k for k, cell in enumerate(listed) if type(cell) not in SAME]
    others = [place(listed[row]) for row in odd]  # which may equal a cell with another key
    for row in odd:
        listed[row] = None
    places = np.fromiter(map(functools.cache(place), listed), np.int64, len(listed))
    places[odd] = others
    return places.reshape(cells.shape)


def read_numbers(cells: NDArray[Any] | Sequence[Any], key: Callable[[Any], Any] = label_key) -> Array:
    """Cells as float64, each by its key; one that is no number is NaN, since an error would tell that there is one."""
    if isinstance(cells, np.ndarray):
        if cells.dtype.kind in NUMBERS:
            with np.errstate(all="ignore"):  # a warning that a cell caused could be turned into an error
                return cells.astype(np.float64)
        return read_numbers(cells.ravel().tolist(), key).reshape(cells.shape)
    if set(map(type, cells)) <= _PLAIN:
        try:
            return np.fromiter(map(float, cells), np.float64, len(cells))
        except (ValueError, OverflowError):
            pass
    keys = map(key, cells)
    return np.fromiter((own if isinstance(own, float) else math.nan for own in keys), np.float64, len(cells))


def number_rows(X: Any) -> Any:
    """X with numbers for cells: as it is where its type says that they are, else an array of float64 (CSR of sparse).

    Shapes and complex arrays are left to the caller.
    """
    if is_sparse(X):
        if X.dtype.kind == "O":
            X = X.tocsr(copy=True)
            X.data = read_numbers(X.data)
        return X
    if isinstance(X, list | tuple):
        return _read_lists(X)
    columns: list[Any] | None = None
    if hasattr(X, "iloc") and getattr(X, "ndim", 0) == 2:  # pandas
        columns, names = [X.iloc[:, place] for place in range(X.shape[1])], X.columns
    elif hasattr(X, "get_columns"):  # Polars
        columns, names = list(X.get_columns()), X.columns
    elif hasattr(X, "column_names"):  # Arrow
        columns, names = list(X.columns), X.column_names
    if columns is not None:
        names = list(map(str, _check_distinct(names)))
        if all(getattr(getattr(column, "dtype", None), "kind", "") in tuple(NUMBERS) for column in columns):
            return X
        types = [str(getattr(column, "dtype", getattr(column, "type", ""))).lower() for column in columns]
        if others := [name for name, kind in zip(names, types, strict=True) if kind.startswith(_NO_NUMBERS)]:
            raise no_numbers(others)
        return np.column_stack([read_numbers(column_cells(column), cell_key) for column in columns])
    rows = np.asanyarray(X)
    if rows.dtype.kind == "O" or (rows.dtype.itemsize > 8 and rows.dtype.kind == "f"):  # of which a cell may overflow
        return read_numbers(rows)
    if rows.dtype.kind not in f"{NUMBERS}c":
        raise no_numbers()
    return rows


def real_rows(X: Any) -> Any:
    """Rows of real numbers that can be sliced; an error does not say what a cell holds."""
    rows = number_rows(X)
    rows = rows.tocsr() if is_sparse(rows) else np.asanyarray(rows)
    if rows.dtype.kind not in NUMBERS:
        raise no_numbers()
    return rows


def no_numbers(names: Sequence[str] = ()) -> InputError:
    """What is said of a type that is of no numbers, texts or dates."""
    which = f" ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''})" if names else ""
    return InputError(
        f"X has columns that are not numbers{which}; declare what they hold in a schema, schema=sv.Schema(...), or "
        "encode them first."
    )


def _read_lists(rows: Sequence[Any]) -> Array:
    """Of rows that are lists; one-dimensional where most of them are none."""
    widths = Counter(map(_width, rows))
    width = max(widths, key=lambda one: (widths[one], one >= 0, -one), default=-1)
    if width < 0:
        return np.zeros(len(rows))
    nothing = [None] * width
    cells = [cell for row in rows for cell in (row if _width(row) == width else nothing)]
    return read_numbers(cells).reshape(len(rows), width)


def _width(row: Any) -> int:
    """How many cells a row has, of lists, arrays and Series; -1 if it is none."""
    if isinstance(row, list | tuple | array):
        return len(row)
    try:
        (width,) = row.shape
    except Exception:  # whatever it is, it is no row
        return -1
    return width if type(width) is int and isinstance(row, Iterable) else -1


def label_array(y: Any) -> NDArray[Any]:
    """Labels as an array; a plain list keeps each label as it is, since NumPy would give all of them one type."""
    if hasattr(y, "to_pylist"):  # Arrow
        return column_cells(y)
    if hasattr(y, "dtype") or hasattr(y, "__array__"):
        return np.asarray(y)
    return np.fromiter(y, dtype=object) if isinstance(y, Sequence) else np.array(y, dtype=object)


class TableColumns(Mapping[str, Cells]):
    """Columns by their names. The cells of one are made when it is asked for, so those of few are there at once."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        made = {name: each if _is_column(each) else column_cells(each) for name, each in columns.items()}
        lengths = {len(each) for each in made.values()}
        if len(lengths) > 1:
            raise InputError(
                f"the columns of the table have {sorted(lengths)} cells; give each record one in every column."
            )
        self._columns, self.records = made, lengths.pop() if lengths else 0

    def __getitem__(self, name: str) -> Cells:
        return column_cells(self._columns[name])

    def __contains__(self, name: object) -> bool:
        return name in self._columns  # a mapping's own would make the cells

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def without(self, name: str | None) -> TableColumns:
        return TableColumns({other: each for other, each in self._columns.items() if other != name})


def _is_column(values: Any) -> bool:
    """Whether its length is known before its cells are."""
    return getattr(values, "ndim", 1) == 1 and hasattr(values, "__len__")


def table_columns(table: Any) -> TableColumns:
    """The columns of a pandas or Polars frame, an Arrow table, a mapping, or a CSV or Parquet file, by their names."""
    if isinstance(table, TableColumns):
        return table
    if isinstance(table, str | PathLike):
        from sottovoce.data.files import read_cells  # formats import schemas

        table = read_cells(Path(table))
    if isinstance(table, Mapping):
        columns = {str(name): values for name, values in table.items()}
    elif hasattr(table, "column_names"):  # Arrow
        named = enumerate(_check_distinct(table.column_names))
        columns = {name: table.column(j) for j, name in named if not is_index(name)}
    elif not hasattr(table, "collect") and hasattr(table, "columns") and hasattr(table, "__getitem__"):
        columns = {str(name): table[name] for name in _check_distinct(table.columns)}
    else:
        raise InputError(
            f"X is of type {type(table).__name__}; with a schema it must be a table with named columns: a pandas or "
            "Polars data frame, an Arrow table, a dict of columns, or the path of a CSV or Parquet file."
        )
    return TableColumns(columns)


def is_index(name: str) -> bool:
    """Whether a column of Arrow or Parquet is the index that pandas wrote beside the columns of a data frame."""
    return name.startswith("__index_level_") and name.endswith("__")


def _check_distinct(names: Iterable[Any]) -> Iterator[Any]:
    listed = list(names)
    texts = Counter(map(str, listed))
    if len(texts) < len(listed):
        raise InputError(
            f"two columns of the table have the same name, {max(texts, key=texts.__getitem__)!r}; rename one."
        )
    yield from listed


def column_cells(values: Any) -> Cells:
    """One column as an array of one dimension; what has a type of its own (Arrow, Polars, pandas) gives its cells."""
    if hasattr(values, "to_pylist"):  # Arrow: by the type alone; no cell, such as a text that is none, stops anything
        kind = str(values.type)
        if kind in _ARROW_NUMBERS:
            return np.asarray(values.to_numpy(zero_copy_only=False))
        if kind.startswith(_ARROW_PLAIN):
            return np.fromiter(values.to_pylist(), dtype=object)
        if not kind.startswith(_ARROW_TEXTS) or (kind.startswith("dictionary") and "string" not in kind):
            return np.full(len(values), DATES, dtype=object)
        if kind.startswith("dictionary"):
            values = values.cast(values.type.value_type)
        return np.fromiter(arrow_texts(values), dtype=object)
    if hasattr(values, "to_numpy"):
        cells = values.to_numpy()
    elif isinstance(values, np.ndarray):
        cells = values
    elif isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InputError(
            "a column of the table is a single value; give a list with a cell for each record, [3] for one."
        )
    else:  # a plain list keeps each cell as it is, since NumPy would give all of them one type
        cells = np.fromiter(values, dtype=object)
    if cells.ndim != 1:
        raise InputError("a column of the table has several values in a cell; give one column for each.")
    if cells.dtype.kind in "MmV":  # with one text among them they would be cells of any kind, and none of them known
        return np.full(len(cells), DATES, dtype=object)
    return np.asarray(cells)


def arrow_texts(column: Any) -> list[str | None]:
    """The cells of a column of texts; one of more than `LONGEST_LINE` bytes is missing.

    What a cell holds stops nothing: bytes that are no UTF-8 become U+FFFD.
    """
    import pyarrow
    from pyarrow import compute

    cells = column.cast(pyarrow.large_binary())
    too_long = compute.greater(compute.binary_length(cells), LONGEST_LINE)
    if compute.any(too_long).as_py():
        cells = compute.if_else(too_long, None, cells)
    return [None if cell is None else cell.decode(errors="replace") for cell in cells.to_pylist()]
