"""What stands beside a label: whose record it is, its exposure, its weight, its group.

Labels with any of it are one structured array, with the field `label`, so that they are cut, sent and kept as labels
are. A field is a function of its own cell alone, whatever the cells of other records are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.cells import cell_key, column_cells, label_array, label_key, read_numbers
from sottovoce.data.identifiers import RULES, identifier_text
from sottovoce.errors import InputError

NOTHING: Final[Mapping[str, NDArray[Any]]] = {}  # a plain one: rows go to workers
NOBODY: Final = 0  # whose record it is where the identifier is missing


def people_of(identifiers: Any) -> NDArray[np.int64]:
    """64 bits of a hash of each identifier, written as usual (`data/identifiers.py`); `NOBODY` where it is missing.

    Two people have one number with a chance of 2^-64 for each pair of them, and are then protected as one person.
    """
    known, cells = {"": NOBODY}, column_cells(identifiers)
    found = np.empty(len(cells), dtype=np.int64)
    for place, cell in enumerate(cells.tolist()):
        text = RULES["usual"](identifier_text(cell))
        if text not in known:
            known[text] = _hashed(text)
        found[place] = known[text]
    return found


def groups_of(cells: Any) -> NDArray[np.int64]:
    """64 bits of a hash of each cell as a class is compared (`label_key`); `NOBODY` where it is missing."""
    known: dict[Any, int] = {None: NOBODY}
    keys = list(map(label_key, column_cells(cells).tolist()))
    for key in set(keys) - {None}:
        known[key] = _hashed(f"text {key}" if isinstance(key, str) else f"{key + 0.0!r}")
    return np.fromiter(map(known.__getitem__, keys), np.int64, len(keys))


def _hashed(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True) or 1


def _numbers(cells: Any) -> NDArray[np.float64]:
    return np.asarray(read_numbers(column_cells(cells), cell_key), dtype=np.float64)


_READ: Final[Mapping[str, Callable[[Any], NDArray[Any]]]] = {
    "person": people_of,
    "exposure": _numbers,
    "weight": _numbers,
    "group": groups_of,
    "time": _numbers,
    "entry": _numbers,
}


def labels_with(y: Any, *, person: Any = None, exposure: Any = None, weight: Any = None, **others: Any) -> Any:
    """Labels with what stands beside them, an entry for each; as they are where nothing does.

    `person` has identifiers of people with several records, `exposure` the time or amount in which a count was made,
    `weight` how much a record counts, `group` whose figures it goes into when a model is evaluated by groups. Where
    labels are events, 1, or none, 0, `time` has when each came or the person was last seen, and `entry` since when it
    was seen, if not since 0.
    """
    if strange := others.keys() - {"group", "time", "entry"}:
        raise TypeError(f"labels_with() got an unexpected keyword argument {min(strange)!r}")
    given = {"person": person, "exposure": exposure, "weight": weight, **others}
    columns = {name: _READ[name](cells) for name, cells in given.items() if cells is not None}
    return _joined(label_array(y), columns) if columns else y


def relabelled(y: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
    """Other labels, beside which the same stands."""
    columns = columns_beside(y)
    return _joined(labels, columns) if columns else labels


def _joined(y: NDArray[Any], columns: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    labels = labels_of(y)
    for name, column in columns.items():
        if labels.shape != column.shape:
            raise InputError(
                f"{name} has shape {column.shape} and y {labels.shape}; give one entry of {name} for each label."
            )
    columns = {**columns_beside(y), **columns}
    kinds = [("label", labels.dtype), *((name, column.dtype) for name, column in columns.items())]
    found = np.empty(len(labels), dtype=kinds)
    found["label"] = labels
    for name, column in columns.items():
        found[name] = column
    return found


def labels_of(y: NDArray[Any]) -> NDArray[Any]:
    """The labels alone."""
    return np.ascontiguousarray(y["label"]) if y.dtype.names else y


def columns_beside(y: Any) -> Mapping[str, NDArray[Any]]:
    """What stands beside them, by name."""
    names = getattr(getattr(y, "dtype", None), "names", None) or ("label",)
    return {name: np.ascontiguousarray(y[name]) for name in names if name != "label"} or NOTHING
