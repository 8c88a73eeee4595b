"""Files of records: which files are meant, in which format each is, and what they hold, by pieces or as a whole.

A format is a class: `Csv`, `Parquet`, `Libsvm`, `Npy`. Its suffixes say which files are its own.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sottovoce.data.cells import column_cells, table_columns
from sottovoce.data.coded import Coded
from sottovoce.data.files.csv import Csv, read_or_none
from sottovoce.data.files.format import (
    COMPRESSED,
    UNCOUNTED,
    FileOptions,
    Format,
    Mark,
    TableFormat,
    Wanted,
    file_state,
    report_spoilt,
)
from sottovoce.data.files.libsvm import Libsvm
from sottovoce.data.files.npy import Npy
from sottovoce.data.files.parquet import Parquet
from sottovoce.data.matrix import Matrix
from sottovoce.data.schema import Schema
from sottovoce.errors import InputError

FORMATS: Final[dict[str, type[Format]]] = {
    suffix: kind for kind in (Csv, Parquet, Libsvm, Npy) for suffix in kind.suffixes
}


@dataclass(frozen=True, eq=False)
class FileTable:
    """Rows `X` (CSR from LIBSVM, cells of a sparse schema), labels `y` (float, or text where one is none) and names."""

    X: Matrix
    y: NDArray[Any] | None
    feature_names: tuple[str, ...]


@dataclass(frozen=True)
class OpenedFiles:
    """The sources of files, the names of the features or how many there are, and whether there are labels."""

    sources: tuple[Format, ...]
    features: int
    names: tuple[str, ...]
    labelled: bool
    before: dict[Path, Mark | None]  # the files as they were before they were counted


def find_format(path: Path) -> type[Format] | None:
    """The format of a file by its suffix, before which it may have one of compressed files; None of no format."""
    suffixes = list(map(str.lower, path.suffixes))
    compressed = bool(suffixes) and suffixes[-1] in COMPRESSED
    kind = FORMATS.get("".join(suffixes[-2:-1] if compressed else suffixes[-1:]))
    return None if kind is None or (compressed and not kind.compressible) else kind


def format_of(path: Path) -> type[Format]:
    """The format of a file by its suffix; one that no format has is an error."""
    kind = find_format(path)
    if kind is None:
        text = ", ".join(suffix for suffix, kind in FORMATS.items() if kind.compressible)
        raise InputError(
            f"{path.name}: unknown suffix. Known are {', '.join(FORMATS)}, and after {text} one of "
            f"{', '.join(COMPRESSED)}."
        )
    return kind


def list_files(files: Any) -> list[Path]:
    """The files of a path, a folder, a pattern or a list of them, in the order of their names, each once."""
    given = [files] if isinstance(files, str | Path) or hasattr(files, "__fspath__") else list(files)
    named = list[Path]()
    for path in (Path(one).expanduser() for one in given):
        if path.is_dir():
            found = sorted(file for file in path.iterdir() if file.name[0] not in "._" and file.is_file())
            if not found:
                raise InputError(f"{path} has no files; give a folder of CSV, Parquet, LIBSVM or .npy files.")
        elif is_pattern(path):
            anchor = Path(path.anchor)
            found = sorted(file for file in anchor.glob(str(path.relative_to(anchor))) if file.is_file())
            if not found:
                raise InputError(f"{path}: no file is of this pattern; look at the folder, or give another pattern.")
        else:
            found = [path]
        named += found
    paths = list({_identity(path): path for path in reversed(named)}.values())[::-1]  # a link to one is that one
    if not paths:
        raise InputError(f"files={files!r} names no file; give a path, a folder, a pattern or a list of them.")
    return paths


def _identity(path: Path) -> Any:
    """What two names of one file have in common, links of both kinds and mounts included."""
    state = file_state(path)
    return state[:2] if state is not None and state[1] else path.resolve()


def is_pattern(path: Path) -> bool:
    """Whether a path means several files: it has *, ? or [ in it, and there is no file of that very name."""
    return not set("*?[").isdisjoint(str(path)) and not path.exists()


def open_files(files: Any, asked: FileOptions) -> OpenedFiles:
    """The sources of files: their shapes are read, and lines are counted; no value is parsed."""
    paths = list_files(files)
    return _open_paths(
        {path: format_of(path) for path in paths}, asked if len(paths) == 1 else replace(asked, records=None)
    )


def _open_paths(formats: dict[Path, type[Format]], asked: FileOptions) -> OpenedFiles:
    odd: Path | None = None  # the first file that is no table
    for path, kind in formats.items():
        odd = path if odd is None and not kind.tabular else odd
    if odd is not None and asked.only is None and (asked.schema is not None or asked.left_out is not None):
        what = "schema" if asked.schema is not None else f"id={asked.left_out!r}"
        raise InputError(f"{what} is for CSV and Parquet files, whose columns have names, and {odd.name} is none.")
    if odd is not None and len(set(formats.values())) > 1:
        kinds = ", ".join(sorted({kind.suffixes[0] for kind in formats.values()}))
        raise InputError(
            f"files are of several formats ({kinds}); CSV and Parquet go together, LIBSVM and .npy files each alone. "
            "Give a pattern that names one format."
        )
    labels: dict[Path, Path] = _label_files(list(formats), asked) if odd is not None and formats[odd].mapped else {}
    paths = list(labels or formats)
    every = (*paths, *labels.values())
    before = dict(zip(every, map(file_state, every), strict=True))
    first, sources = paths[0], list[Format]()
    wanted = formats[first].choose(first, formats[first].shape(first, UNCOUNTED), asked)  # before lines are counted
    for path in paths:
        shape = formats[path].shape(path, asked.records)
        own = replace(wanted, label=str(labels[path])) if path in labels else wanted
        formats[path].check_alike(path, shape, own, first)
        sources += [formats[path](path, shape, part, own) for part in shape.parts]
    if not sources:
        raise InputError(f"{first} has no rows.")
    names, labelled = wanted.features, wanted.label is not None or bool(labels)
    if wanted.schema is not None:
        names = wanted.schema.feature_names
    elif formats[first].sparse:
        names, labelled = tuple(map(str, range(1, (wanted.width or 0) + 1))), True
    return OpenedFiles(tuple(sources), wanted.width or len(names), names, labelled, before)


def _label_files(paths: Sequence[Path], asked: FileOptions) -> dict[Path, Path]:
    """The file of the labels of each .npy file, in the order of their names; none where `label` names none."""
    if isinstance(asked.label, int):
        raise InputError(f"label={asked.label!r}: labels of .npy files are in another, label='y.npy'.")
    if asked.label is None:
        return {}
    labels = list_files(asked.label)
    rows = [path for path in paths if path not in labels]
    if len(labels) != len(rows):
        raise InputError(f"label={asked.label!r} names {len(labels)} files for {len(rows)}; give one for each.")
    return dict(zip(rows, labels, strict=True))


def read_table(  # noqa: PLR0913
    path: str | Path,
    *,
    label: str | int | None = None,
    features: int | None = None,
    left_out: str | None = None,
    schema: Schema | None = None,
    only: tuple[str, ...] | None = None,
    kind: type[Format] | None = None,
) -> FileTable:
    """All rows of a file; its suffix, before which may be one of a compressed text, tells the format, or `kind` does.

    `label` is the name or the position (-1 for the last) of the label column of a CSV or Parquet file, and the file of
    the labels of an array; without it every column is a feature and `y` is None. `features` is the number of features:
    a LIBSVM file does not tell it, and elsewhere it is checked. `left_out` names a column that is no feature. A
    `schema` says which column is the label, and encodes the others. `only` names the features where labels and other
    columns do not matter. A missing cell (empty, `NA`, `nan`, `?`) becomes
    NaN. A line with a cell that is no number, with too few or too many cells, or not of the form of LIBSVM, becomes a
    row of NaN, and the log says how many there are and on which lines.
    """
    path, kind = Path(path), kind or format_of(Path(path))
    opened = _open_paths({path: kind}, FileOptions(label, schema, features, left_out, UNCOUNTED, only))
    tables, rows, labels = list[TableFormat](), list[Matrix](), list[Any]()
    for source in opened.sources:
        read = source.pieces
        if schema is None and isinstance(source, TableFormat):
            tables.append(source)
            read = source.written
        for X, y in read(UNCOUNTED):
            rows.append(X)
            labels.append(y)
    if not rows:
        raise InputError(f"{path} has no rows.")
    report_spoilt(opened.sources)
    join: Any = functools.partial(sp.vstack, format="csr") if kind.sparse else np.concatenate
    X, y = Coded.joined(rows) if isinstance(rows[0], Coded) else join(rows), None
    if opened.labelled:  # what they are in a table follows from all of them
        y = tables[0].label_values(tables[0].join_cells(labels), whole=True) if tables else np.concatenate(labels)
    return FileTable(X, y, opened.names)


def read_cells(path: str | Path, names: Sequence[str] | None = None, most: int = UNCOUNTED) -> dict[str, Any]:
    """Columns of a CSV or Parquet file, each cell as it is written, for a schema to read each by itself.

    Of CSV they are all text: a type that all cells of a column share would let one decide how another is read. Of
    Parquet they are Arrow's. With `most` those of about that many records.
    """
    path, kind = Path(path), format_of(Path(path))
    if not issubclass(kind, TableFormat):
        tables = ", ".join(suffix for suffix, own in FORMATS.items() if own.tabular)
        raise InputError(f"{path.name}: a schema is for {tables} files, whose columns have names.")
    shape, pieces, count = kind.shape(path, UNCOUNTED), list[Mapping[str, Any]](), 0
    sources, wanted = [kind(path, shape, part, Wanted()) for part in shape.parts], names or shape.names
    for piece in itertools.chain.from_iterable(source.cells(wanted, most) for source in sources):
        pieces.append(piece)
        count += len(piece[wanted[0]])
        if count >= most:
            break
    if not count:
        raise InputError(f"{path} has no rows.")
    if most == UNCOUNTED:
        report_spoilt(sources)
    return {name: kind.join_cells([piece[name] for piece in pieces]) for name in wanted}


def column_names(path: Path) -> tuple[str, ...]:
    """The header of a file, or of the first of several."""
    first = list_files(path)[0]
    return format_of(first).shape(first, UNCOUNTED).names


def cell_rows(path: Path, names: Sequence[str], rows: int = 2**16) -> Iterator[tuple[Any, ...]]:
    """The cells of these columns record by record, as they are written, of a file or of all that a folder has."""
    for file in list_files(path):
        kind = format_of(file)
        assert issubclass(kind, TableFormat), "columns have names"  # noqa: S101
        shape = kind.shape(file, UNCOUNTED)
        for part in shape.parts:
            for piece in kind(file, shape, part, Wanted()).cells(names, rows):
                yield from zip(*(column_cells(piece[name]).tolist() for name in names), strict=True)


def read_columns(path: str | Path) -> dict[str, NDArray[Any]]:
    """The columns of a mixed CSV or Parquet file: float where every cell is a number or missing, else text.

    Text columns are object arrays of `str`, with the cells as they are written (a missing one too), ready for
    scikit-learn's OneHotEncoder in a ColumnTransformer.
    """
    columns = dict(table_columns(read_cells(path)))
    for name, column in columns.items():
        if column.dtype.kind in "fiu":
            columns[name] = column.astype(np.float64)
        else:
            cells = ["" if cell is None else str(cell).strip() for cell in column.tolist()]
            values = read_or_none(cells)
            columns[name] = np.array(cells, dtype=object) if values is None else values
    return columns
