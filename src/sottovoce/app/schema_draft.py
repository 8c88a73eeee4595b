"""A first draft of a schema, from the header and the types of a file.

The file is private, so nothing that a cell holds goes into the draft: ranges and levels stay empty, and a schema with
an empty one is refused until a person has filled it in from public knowledge. Of a public file they are copied.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np

from sottovoce.app.sources import is_large
from sottovoce.data.cells import MISSING, Cells, cell_key, read_numbers, table_columns
from sottovoce.data.column_kinds import Number
from sottovoce.data.files import list_files, read_cells
from sottovoce.data.schema import toml_text
from sottovoce.errors import InputError, did_you_mean

FIRST: Final = 10_000  # records of a large file that a draft looks at
MOST_LEVELS: Final = 100  # of a public column: with more it is hardly a category

_PRIVATE = """Draft of a schema for {file}, from its header and the types of its columns. No value was copied.
Replace every [] by public knowledge: a code book, units, the law; never by what these records hold.
Where nobody knows a range, write range = "private": a fit then buys it with a share of its budget.
Move columns that are no features (numbers of records, names) to identifiers. With missing = true
missing cells have a feature of their own, with other = true undeclared levels too."""
_PUBLIC = """Schema for {file}, with ranges and levels copied from it: right only if the file itself is public."""
_KINDS = {
    "number": "a number: lowest and highest value that is publicly known",
    "category": "text: the levels that are publicly known",
    "flag": "true or false",
}


def draft(path: Path, *, label: str | None = None, public: bool = False) -> str:
    """The text of a TOML file with a table [schema]."""
    large = is_large(path, cells=True)
    if large and public:
        raise InputError(f"--public copies from all records, and {path} is read in pieces; give one file that fits.")
    columns = table_columns(read_cells(list_files(path)[0], most=FIRST) if large else path)
    if label is not None and label not in columns:
        meant = did_you_mean(label, tuple(columns))
        raise InputError(f"--label {label}: {path.name} has no such column{meant} They are: {', '.join(columns)}.")
    entries: dict[str, dict[str, Any]] = {}
    identifiers, remarks = [], {}
    for name, cells in columns.items():
        kind = _guess_kind(cells)
        entry = _copied(kind, cells) if public else _empty(kind)
        if entry is None:
            identifiers.append(name)
            continue
        entries[name] = entry
        if not public:
            remarks[f"columns.{name}"] = _KINDS[kind] + (", the label" if name == label else "")
    table = {"label": label or "", "identifiers": identifiers, "columns": entries}
    if label is None:
        remarks["label"] = "the name of the label column, or leave this line out"
    return toml_text(table, remarks, head=(_PUBLIC if public else _PRIVATE).format(file=path.name))


def _guess_kind(cells: Cells) -> str:
    """What most cells are, so that no single one decides it."""
    if cells.dtype.kind in "fiu":
        return "number"
    present = [cell for cell in cells.tolist() if not _missing(cell)]
    if present and all(isinstance(cell, bool) for cell in present):
        return "flag"
    return (
        "number"
        if 2 * np.isfinite(read_numbers(np.fromiter(present, dtype=object), cell_key)).sum() > len(present)
        else "category"
    )


def _missing(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and cell.strip().lower() in MISSING)


def _empty(kind: str) -> dict[str, Any]:
    if kind == "flag":
        return {"yes": True, "no": False}
    return {"range": []} if kind == "number" else {"levels": []}


def _copied(kind: str, cells: Cells) -> dict[str, Any] | None:
    """The entry of a public column; None where it is no feature: texts that hardly repeat, or one number alone."""
    if kind == "flag":
        return _empty(kind)
    if kind == "number":
        values = read_numbers(cells, cell_key)
        finite = values[np.isfinite(values)]
        if not finite.size or finite.min() == finite.max():
            return None
        entry: dict[str, Any] = {"range": Number("", float(finite.min()), float(finite.max())).entry()["range"]}
        return entry | ({"missing": True} if finite.size < values.size else {})
    counts = Counter(str(cell).strip() for cell in cells.tolist() if not _missing(cell))
    if not counts or len(counts) > MOST_LEVELS:
        return None
    return {"levels": sorted(counts)} | ({"missing": True} if counts.total() < len(cells) else {})
