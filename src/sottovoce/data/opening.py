"""Files become sources: which files are meant, which columns are features, where large files are cut into parts.

Shapes are read and lines are counted; no value is parsed.
"""

from __future__ import annotations

import codecs
import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sottovoce.data import readers
from sottovoce.data.schema import Schema, columns_of
from sottovoce.data.sources import (
    BYTES,
    Columns,
    CsvSource,
    Mark,
    NumpySource,
    ParquetSource,
    Source,
    SvmlightSource,
    as_it_is,
    batched,
    holds,
    mapped,
)
from sottovoce.errors import InputError
from sottovoce.files import LONGEST_LINE, MOST_FEATURES

NUMPY = (".npy",)
PART = 1 << 27  # bytes of a large file that are a source of their own


@dataclass(frozen=True)
class Asked:
    """What is asked of files beside their names."""

    label: str | int | None = None
    schema: Schema | None = None
    features: int | None = None
    left_out: str | None = None
    records: int | None = None
    only: tuple[str, ...] | None = None  # the features, of which labels and other columns are beside the point


@dataclass(frozen=True)
class Found:
    """The sources of files, the names of the features or how many there are, and whether there are labels."""

    sources: tuple[Source, ...]
    features: int
    names: tuple[str, ...]
    labelled: bool
    before: dict[Path, Mark | None] = field(default_factory=dict)  # the files as they were before they were counted


def listed(files: Any) -> list[Path]:
    """The files of a path, a folder, a pattern or a list of them, in the order of their names, each once."""
    given = [files] if isinstance(files, str | Path) or hasattr(files, "__fspath__") else list(files)
    named = [path for one in given for path in _expanded(Path(one).expanduser())]
    found = list({_itself(path): path for path in reversed(named)}.values())[::-1]  # a link to one of them is that one
    if not found:
        raise InputError(f"files={files!r} names no file; give a path, a folder, a pattern or a list of them.")
    return found


def _itself(path: Path) -> Any:
    """What two names of one file have in common, links of both kinds and mounts included."""
    try:
        found = path.stat()
    except OSError:
        return path.resolve()
    return (found.st_dev, found.st_ino) if found.st_ino else path.resolve()


def is_pattern(path: Path) -> bool:
    """Whether a path stands for several: it has *, ? or [ in it, and there is no file of that very name."""
    return any(mark in str(path) for mark in "*?[") and not path.exists()


def _expanded(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(each for each in path.iterdir() if each.name[0] not in "._" and each.is_file())
        if not found:
            raise InputError(f"{path} has no files; give a folder of CSV, Parquet, LIBSVM or .npy files.")
        return found
    if not is_pattern(path):
        return [path]
    anchor = Path(path.anchor)
    found = sorted(each for each in anchor.glob(str(path.relative_to(anchor))) if each.is_file())
    if not found:
        raise InputError(f"{path}: no file is of this pattern; look at the folder, or give another pattern.")
    return found


def opened(files: Any, asked: Asked) -> Found:
    """The sources of files: their shapes are read, and lines are counted; no value is parsed."""
    paths = listed(files)
    before = {path: as_it_is(path) for path in paths}
    found = _opened(paths, asked)
    return replace(found, before=found.before | before)


def _opened(paths: list[Path], asked: Asked) -> Found:
    kinds = {path: path.suffix.lower() if path.suffix.lower() in NUMPY else readers.kind_of(path) for path in paths}
    tables = [kind in readers.CSV + readers.PARQUET for kind in kinds.values()]
    if len(paths) > 1 and asked.records is not None:
        asked = Asked(asked.label, asked.schema, asked.features, asked.left_out)
    if all(tables):
        return _tables(kinds, asked)
    if asked.only is None and (asked.schema is not None or asked.left_out is not None):
        what = "schema" if asked.schema is not None else f"id={asked.left_out!r}"
        odd = next(path for path, table in zip(paths, tables, strict=True) if not table)
        raise InputError(f"{what} is for CSV and Parquet files, whose columns have names, and {odd.name} is none.")
    if set(kinds.values()) <= set(NUMPY):
        return _arrays(paths, asked)
    if set(kinds.values()) <= set(readers.LIBSVM):
        return _sparse(paths, asked)
    raise InputError(
        f"files are of several formats ({', '.join(sorted(set(kinds.values())))}); CSV and Parquet go together, LIBSVM "
        "and .npy files each alone. Give a pattern that names one format."
    )


def table_size(path: Path) -> int:
    """Records times columns of a CSV or Parquet file, both of them public; no value is parsed."""
    if readers.kind_of(path) in readers.PARQUET:
        found = _parquet_layout(path)
        return sum(rows for rows, _ in found.groups) * len(found.header)
    layout = _csv_layout(path)
    counted = _counted(path, layout.start, one_column=len(layout.header) == 1)
    return sum(lines for _, lines in counted) * len(layout.header)


def _tables(kinds: dict[Path, str], asked: Asked) -> Found:
    """CSV and Parquet files, whose columns are found by their names."""
    layouts = {path: (_csv_layout if kind in readers.CSV else _parquet_layout)(path) for path, kind in kinds.items()}
    first, header = next((path, layout.header) for path, layout in layouts.items())
    label, features = _chosen(first, header, asked)
    names = features if asked.schema is None else asked.schema.feature_names
    readers.check_features(asked.features, len(names), first)
    columns = Columns(features, label, asked.schema, asked.left_out, asked.only is not None)
    sources: list[Source] = []
    for path, layout in layouts.items():
        if asked.schema is None:
            _check_same(path, layout.header, first, header if asked.only is None else features, asked.only is not None)
        else:
            _check_schema(path, layout.header, columns)
        sources += layout.sources(columns, asked.records)
    if not sum(source.records for source in sources):
        raise InputError(f"{first} has no rows.")
    return Found(tuple(sources), len(names), names, label is not None)


def _chosen(path: Path, header: tuple[str, ...], asked: Asked) -> tuple[str | None, tuple[str, ...]]:
    """The label column and the columns of features of the first file."""
    if asked.only is not None:
        return None, asked.only if asked.schema is None else tuple(asked.schema.columns)
    if asked.schema is not None:
        if asked.label is not None:
            raise InputError(f"label={asked.label!r}: the schema names the label column; leave label out.")
        label = asked.schema.label if asked.schema.label in header else None
        return label, tuple(asked.schema.columns)
    place = readers.column_place(asked.label, header, path)
    unused = (place, readers.column_place(asked.left_out, header, path, "id"))
    return None if place is None else header[place], tuple(name for j, name in enumerate(header) if j not in unused)


def _check_same(path: Path, header: tuple[str, ...], first: Path, names: tuple[str, ...], others: bool) -> None:
    for name in names:
        if name not in header:
            who = "the model" if others else first
            raise InputError(f"{path} lacks the column {name!r}, which {who} has; give all files the same columns.")
    for name in header:
        if name not in names and not others:
            raise InputError(f"{path} has a column {name!r}, which {first} lacks; give all files the same columns.")


def _check_schema(path: Path, header: tuple[str, ...], columns: Columns) -> None:
    """Each file has the columns of the schema and no others, and the label if the first has it."""
    if columns.left_out is not None and columns.left_out not in header:
        raise InputError(f"id={columns.left_out!r} is no column of {path}; its columns are: {', '.join(header)}.")
    if columns.left_out is not None and columns.left_out in columns.read:
        raise InputError(f"id={columns.left_out!r} is a feature or the label in the schema; an identifier is neither.")
    if columns.label is not None and columns.label not in header:
        raise InputError(f"{path} lacks the label column {columns.label!r}; give it labels too.")
    try:
        columns.encoded({name: [] for name in header})
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def first_records(path: Path, count: int = 10_000) -> dict[str, Any]:
    """The columns of the first records of a table, as they are written."""
    if not readers.has_columns(path):
        raise InputError(f"{path.name}: a schema is for CSV and Parquet files, whose columns have names.")
    if readers.kind_of(path) in readers.PARQUET:
        with readers.parquet_file(path) as file, readers.reading_parquet(path):
            return columns_of(next(file.iter_batches(count), file.schema_arrow.empty_table()))
    layout = _csv_layout(path)
    with readers.open_data(path) as stream:
        rows = readers.rows_of(
            itertools.islice(readers.Lines(stream), layout.skipped, layout.skipped + count), len(layout.header)
        )
    cells = readers.cells_by_column(rows, len(layout.header))
    return columns_of(dict(zip(layout.header, cells, strict=True)))


class _Layout(ABC):
    """What was read of a table: its header, and where its rows are."""

    header: tuple[str, ...]

    @abstractmethod
    def sources(self, columns: Columns, records: int | None) -> list[Source]:
        """Its parts."""


class _CsvLayout(_Layout):
    def __init__(self, path: Path, header: tuple[str, ...], start: int, skipped: int) -> None:
        self.path, self.header, self.start, self.skipped = path, header, start, skipped

    def sources(self, columns: Columns, records: int | None) -> list[Source]:
        """Of a plain file parts of some size; a compressed one has to be read from its beginning."""
        made = functools.partial(CsvSource, self.path, self.header, columns)
        plain = _is_plain(self.path)
        if records is not None:
            whole = made(records, self.start if plain else None, self.skipped)
            whole.declared = True
            return [whole]
        sources, skipped = list[Source](), self.skipped
        for offset, lines in _counted(self.path, self.start, one_column=len(self.header) == 1):
            sources.append(made(lines, offset if plain else None, skipped))
            skipped += lines
        return sources


def _csv_layout(path: Path) -> _CsvLayout:
    start = skipped = 0
    with readers.open_data(path) as stream:
        while line := stream.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                readers.header_names(None, path)
            names = line.removeprefix(codecs.BOM_UTF8) if skipped == 0 else line
            start, skipped = start + len(line), skipped + 1
            if not readers.is_empty(names):
                return _CsvLayout(path, readers.header_names(readers.cells_of(names), path), start, skipped)
    return _CsvLayout(path, readers.header_names([], path), start, skipped)


def _counted(path: Path, start: int, *, one_column: bool) -> Iterator[tuple[int, int]]:
    """(offset, lines) of the parts of a CSV file from `start` on; empty lines at the end are none.

    In a file of one column an empty line is a missing cell, also at the end.
    """
    plain = _is_plain(path)
    with readers.open_data(path) as stream:
        stream.seek(start)
        begin, held_lines = start, readers.Lines(stream)
        lines = empty = 0  # of this part: those that hold a record, and empty ones that may be at the end
        while block := held_lines.block(BYTES):  # parts end where lines do
            offset = stream.tell()
            count = block.count(b"\n") + (not block.endswith(b"\n"))
            held = block.rstrip(readers.SPACES)
            full = count if one_column else (held.count(b"\n") + 1 if held else 0)
            if full:
                lines, empty = lines + empty + full, count - full
            else:
                empty += count
            if plain and offset - begin >= PART and lines and not empty:
                yield begin, lines
                begin, lines = offset, 0
        if lines:
            yield begin, lines


def _is_plain(path: Path) -> bool:
    return path.suffix.lower() not in readers.COMPRESSED


class _ParquetLayout(_Layout):
    def __init__(self, path: Path, types: dict[str, Any], groups: Sequence[tuple[int, int]]) -> None:
        self.path, self.types, self.groups, self.header = path, types, groups, tuple(types)

    def sources(self, columns: Columns, records: int | None) -> list[Source]:
        """Some row groups each."""
        if columns.schema is None:
            for name in columns.features:
                if readers.is_text(self.path, name, self.types[name]):
                    raise readers.not_numeric(self.path, name)
            if columns.label is not None:
                readers.is_text(self.path, columns.label, self.types[columns.label])
        total = sum(rows for rows, _ in self.groups)
        if records not in (None, total):
            raise InputError(f"records={records} is declared for {self.path}, which has {total}; correct it.")
        sources, held, size = list[Source](), list[int](), 0
        for place, (_, group) in enumerate(self.groups):
            held, size = [*held, place], size + group
            if size >= PART or place == len(self.groups) - 1:
                count = sum(self.groups[own][0] for own in held)
                if count:
                    sources.append(ParquetSource(self.path, columns, count, held))
                held, size = [], 0
        return sources


def _parquet_layout(path: Path) -> _ParquetLayout:
    with readers.parquet_file(path) as file:
        meta = file.metadata
        groups = [meta.row_group(place) for place in range(meta.num_row_groups)]
        types = {field.name: field.type for field in file.schema_arrow}
        return _ParquetLayout(path, types, [(group.num_rows, group.total_byte_size) for group in groups])


def _sparse(paths: Sequence[Path], asked: Asked) -> Found:
    if asked.label not in (None, 0):
        raise InputError(
            f"label={asked.label!r} for {paths[0].name}: the label of a LIBSVM file is what each line begins with. "
            "Leave label out."
        )
    if asked.features is None:
        raise InputError(
            f"{paths[0]} needs features, the number of its columns: a LIBSVM file does not say it, and the largest "
            "index in it would reveal whether some record has that feature."
        )
    if asked.features > MOST_FEATURES:
        raise InputError(f"features={asked.features} for {paths[0]}: at most {MOST_FEATURES} are read; give fewer.")
    sources: list[Source] = []
    for path in paths:
        begin = offset = skipped = number = count = entries = 0
        with readers.open_data(path) as stream:
            for chunk in batched(readers.Lines(stream), 1 << 62):
                offset, number = stream.tell(), number + len(chunk)
                count += sum(map(holds, chunk))
                entries += sum(line.count(b":") for line in chunk)
                if _is_plain(path) and offset - begin >= PART and count:
                    sources.append(SvmlightSource(path, asked.features, count, entries, begin, skipped))
                    begin, skipped, count, entries = offset, number, 0, 0
        if count:
            start = begin if _is_plain(path) else None
            sources.append(SvmlightSource(path, asked.features, count, entries, start, skipped))
    if not sources:
        raise InputError(f"{paths[0]} has no rows.")
    return Found(tuple(sources), asked.features, tuple(map(str, range(1, asked.features + 1))), labelled=True)


def _arrays(paths: Sequence[Path], asked: Asked) -> Found:
    """Files of np.save; `label` names those of the labels, one for each in the order of their names."""
    if isinstance(asked.label, int):
        raise InputError(f"label={asked.label!r}: labels of .npy files are in another, label='y.npy'.")
    labels: Sequence[Path | None] = [None] * len(paths) if asked.label is None else listed(asked.label)
    before = {path: as_it_is(path) for path in labels if path is not None}
    paths = [path for path in paths if path not in labels]
    if len(labels) != len(paths):
        raise InputError(f"label={asked.label!r} names {len(labels)} files for {len(paths)}; give one for each.")
    sources, width = list[Source](), mapped(paths[0], 2).shape[1]
    readers.check_features(asked.features, width, paths[0])
    for path, own in zip(paths, labels, strict=True):
        rows, columns = mapped(path, 2).shape
        if columns != width:
            raise InputError(f"{path} has {columns} columns and {paths[0]} {width}; give all files the same columns.")
        if own is not None and mapped(own, 1).shape != (rows,):
            raise InputError(f"{own} has {mapped(own, 1).shape[0]} labels for {rows} rows of {path}; one for each.")
        step = max(1, PART // (8 * width))
        sources += [NumpySource(path, own, at, min(at + step, rows)) for at in range(0, rows, step)]
    if not sources:
        raise InputError(f"{paths[0]} has no rows.")
    return Found(tuple(sources), width, (), asked.label is not None, before)
