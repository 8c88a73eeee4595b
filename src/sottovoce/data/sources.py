"""Sources of rows: arrays, memory maps, files and parts of files, each read piece by piece, anywhere, and again.

A record is read as the readers of whole files read it, by itself: neither the piece that it is in nor any other record
decides what becomes of it. A source can be pickled, and holds no rows of a file.
"""

from __future__ import annotations

import functools
import itertools
import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.data import readers
from sottovoce.data.matrix import Matrix, is_sparse
from sottovoce.data.schema import Schema, columns_of
from sottovoce.errors import InputError

Labels = NDArray[Any]
Piece = tuple[Matrix, Labels | None]  # rows, and labels where they are known
Mark = tuple[Any, ...]  # of a file as it is now: another if it is written again

CELLS = 1 << 19  # of a table that are texts at once: ten times the size of the numbers that they become
BYTES = 1 << 23  # of lines that are read at once
ALLOCATION: Final = mmap.ALLOCATIONGRANULARITY  # bytes: where a memory map may begin in its file
PART = 1 << 27  # bytes of a large file that are a source of their own


class Source(ABC):
    """Some of the rows, with their labels: a file, a part of one, a partition.

    `entries` is how many entries sparse rows have at most; None where rows are dense. After a reading to the end
    `spoilt` has how many lines became null rows, and the numbers of the first of them.
    """

    records: int
    entries: int | None = None
    texts: bool = False  # whether a label that is no number makes labels texts
    spoilt: tuple[int, tuple[int, ...]] = (0, ())

    @abstractmethod
    def pieces(self, rows: int) -> Iterator[Piece]:
        """Rows and labels in their order, at most so many at once."""

    def labels(self, rows: int) -> Iterator[Labels]:
        """The labels alone."""
        for _, labels in self.pieces(rows):
            if labels is not None:
                yield labels

    @property
    def place(self) -> Path | None:
        """The file that it reads, if it is one."""
        return None

    def mark(self) -> Mark | None:
        """What tells the same file, unchanged, and the same part of it; None of what is in memory alone."""
        return None

    def check(self, found: int) -> None:
        """Refuse a file that has other records than it had, or than were declared."""
        if found != self.records:
            raise InputError(
                f"{self.place} has not the {self.records} records that it had when it was opened, or that were "
                "declared; leave it as it is while it is read, and correct records."
            )


class ArraySource(Source):
    """Arrays, which may be memory maps."""

    def __init__(self, X: Matrix, y: Labels | None) -> None:
        self.X, self.y, self.records = X, y, int(X.shape[0])
        self.entries = int(X.nnz) if is_sparse(X) else None

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Slices."""
        for start in range(0, self.records, rows):
            part = slice(start, start + rows)
            yield self.X[part], None if self.y is None else self.y[part]
            forget(self.X)

    def mark(self) -> Mark | None:
        """That of the files of memory maps."""
        maps: list[Any] = [one for one in (self.X, self.y) if one is not None]
        if not all(isinstance(one, np.memmap) and one.filename is not None and one.mode == "r" for one in maps):
            return None  # what was written to a map need not be in its file
        return tuple((*_stat(Path(one.filename)), _start(one), str(one.dtype), one.shape, one.strides) for one in maps)


def _start(rows: np.memmap[Any, Any]) -> int:
    """Where an array that is a slice of a memory map begins in the file: a slice has the offset of the whole."""
    held: Any = rows._mmap  # type: ignore[attr-defined]
    within = int(rows.ctypes.data) - int(np.frombuffer(held, np.uint8).ctypes.data)
    return within + rows.offset - rows.offset % ALLOCATION


def forget(rows: Matrix) -> None:
    """Let go of the pages of a memory map that were read: they are read again where they are needed."""
    pages: Any = getattr(rows, "_mmap", None)
    if getattr(rows, "mode", None) in ("r", "r+") and hasattr(pages, "madvise"):
        pages.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True)
class Columns:
    """Which columns of a table with names are features and which is the label; with a schema it says so."""

    features: tuple[str, ...]
    label: str | None = None
    schema: Schema | None = None
    left_out: str | None = None
    others: bool = False  # whether there may be columns that the schema does not name

    @property
    def read(self) -> list[str]:
        """Their names."""
        return [*self.features, *(() if self.label is None else (self.label,))]

    def encoded(self, cells: Any) -> Piece:
        """By the schema."""
        if self.schema is None:
            raise InputError("schema: there is none to encode by.")
        table = columns_of(cells)
        table.pop(self.left_out or "", None)
        return self.schema.encode(table, others=self.others), None if self.label is None else self.schema.labels(table)


class FileSource(Source):
    """A file, or a part of one."""

    def __init__(self, path: Path, records: int) -> None:
        self.path, self.records = path, records

    @property
    def place(self) -> Path:
        """The file."""
        return self.path

    def mark(self) -> Mark | None:
        """Path, size and time, and all else that decides which rows these are."""
        own = {key: _known(value) for key, value in vars(self).items() if key not in ("path", "spoilt")}
        return (*_stat(self.path), type(self).__name__, tuple(sorted(own.items())))


def _known(value: Any) -> str:
    """A text that tells what a source is told, in any process; a schema is known by what it declares."""
    if not isinstance(value, Columns):
        return repr(value)
    schema = None if value.schema is None else value.schema.table()
    return repr((value.features, value.label, schema, value.left_out, value.others))


class LineSource(FileSource):
    """Lines of a text file: those from `offset` on, of a compressed one all after the first `skipped`."""

    declared = False  # whether nobody has counted them

    def __init__(self, path: Path, records: int, offset: int | None, skipped: int) -> None:
        super().__init__(path, records)
        self.offset, self.skipped = offset, skipped

    def _lines(self, stream: IO[bytes]) -> Iterator[bytes]:
        if self.offset is None:
            return itertools.islice(stream, self.skipped, None)
        stream.seek(self.offset)
        return iter(stream)


class CsvSource(LineSource):
    """Records of a CSV file, each a line."""

    texts = True

    def __init__(  # noqa: PLR0913
        self, path: Path, header: tuple[str, ...], columns: Columns, records: int, offset: int | None, skipped: int
    ) -> None:
        super().__init__(path, records, offset, skipped)
        self.header, self.columns = header, columns

    def _rows(self, rows: int) -> Iterator[tuple[int, list[list[str] | None]]]:
        """The cells of some lines, and the number of the first; None for a line of another length."""
        width, step = len(self.header), max(1, min(rows, CELLS // len(self.header)))
        with readers.open_data(self.path) as stream:
            lines, done = self._lines(stream), 0
            while chunk := list(itertools.islice(lines, min(step, self.records - done))):
                found: list[list[str] | None] = []
                for line in chunk:
                    cells = readers.cells_of(line.decode("utf-8", "replace"))
                    cells = [""] if cells == [] and width == 1 else cells
                    found.append(cells if cells is not None and len(cells) == width else None)
                yield self.skipped + done + 1, found
                done += len(found)
            more = self.declared and any(line.strip() or width == 1 for line in lines)
            self.check(done + more)

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Numbers, or features by the schema."""
        places = {name: place for place, name in enumerate(self.header)}
        kept, count, first = [places[name] for name in self.columns.features], 0, list[int]()
        label = None if self.columns.label is None else places[self.columns.label]
        for number, chunk in self._rows(rows):
            cells, whole = (
                readers.cells_by_column(chunk, len(self.header)),
                np.array([row is not None for row in chunk]),
            )
            if self.columns.schema is None:
                block, whole = readers.numeric_rows(chunk, cells, kept)
                piece = block, None if label is None else label_cells(cells[label])
            else:
                piece = self.columns.encoded(dict(zip(self.header, cells, strict=True)))
            count += len(chunk) - int(whole.sum())
            first += (np.flatnonzero(~whole)[: readers.LINES_NAMED - len(first)] + number).tolist()
            yield piece
        self.spoilt = count, tuple(first)

    def labels(self, rows: int) -> Iterator[Labels]:
        """Of which the label's cells alone are looked at."""
        if self.columns.label is None:
            return
        place = self.header.index(self.columns.label)
        for _, chunk in self._rows(rows):
            cells = ["" if row is None else row[place] for row in chunk]
            if self.columns.schema is None:
                yield label_cells(cells)
            elif (found := self.columns.schema.labels({self.columns.label: cells})) is not None:
                yield found


def label_cells(cells: Sequence[str]) -> Labels:
    """Labels of a file, each a number if it is one, else its text, also one that marks a missing cell."""
    try:
        return np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        return np.fromiter(map(_label, cells), dtype=object, count=len(cells))


def _label(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell.strip()


class ParquetSource(FileSource):
    """Some row groups of a Parquet file."""

    texts = True

    def __init__(self, path: Path, columns: Columns, records: int, groups: Sequence[int]) -> None:
        super().__init__(path, records)
        self.columns, self.groups = columns, tuple(groups)

    def _batches(self, rows: int, names: Sequence[str]) -> Iterator[Any]:
        """Arrow tables of these columns; of a column chunk a page is read at a time."""
        import pyarrow

        found, step = 0, max(1, min(rows, (CELLS if self.columns.schema else 8 * CELLS) // max(len(names), 1)))
        with readers.parquet_file(self.path, pre_buffer=False, buffer_size=1 << 16) as file:
            try:
                for batch in file.iter_batches(step, list(self.groups), list(names), use_threads=False):
                    found += batch.num_rows
                    held = [pyarrow.Table.from_batches([batch])]
                    del batch  # nobody has it while the next is read
                    yield held.pop()
            except pyarrow.ArrowMemoryError:
                raise
            except (pyarrow.ArrowException, OSError, EOFError):
                raise readers.damaged_parquet(self.path) from None
        self.check(found)

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Numbers, or features by the schema."""
        for table in self._batches(rows, self.columns.read):
            held = [self._piece(table)]
            del table
            yield held.pop()

    def _piece(self, table: Any) -> Piece:
        if self.columns.schema is not None:
            return self.columns.encoded(table)
        block = np.empty((table.num_rows, len(self.columns.features)))
        for place, name in enumerate(self.columns.features):
            block[:, place] = readers.arrow_column(self.path, name, table.column(name))
        return block, None if self.columns.label is None else self._labels(table)

    def labels(self, rows: int) -> Iterator[Labels]:
        """Of which the label's column alone is read."""
        if self.columns.label is None:
            return
        for table in self._batches(rows, [self.columns.label]):
            if self.columns.schema is None:
                yield self._labels(table)
            elif (found := self.columns.schema.labels(table)) is not None:
                yield found

    def _labels(self, table: Any) -> Labels:
        label = str(self.columns.label)
        return readers.arrow_column(self.path, label, table.column(label))


class SvmlightSource(LineSource):
    """Records of a LIBSVM file, each a line with something in it."""

    def __init__(  # noqa: PLR0913
        self, path: Path, features: int, records: int, entries: int, offset: int | None, skipped: int
    ) -> None:
        super().__init__(path, records, offset, skipped)
        self.features, self.entries = features, entries

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Sparse rows."""
        from io import BytesIO

        from sklearn.datasets import load_svmlight_file

        count, first, number, done = 0, list[int](), self.skipped, 0
        with readers.open_data(self.path) as stream:
            for chunk in _batched(self._lines(stream), rows):
                held = [(place, line) for place, line in enumerate(chunk, number + 1) if _holds(line)]
                held, lines = held[: self.records - done], [line for _, line in held[: self.records - done]]
                number, done = number + len(chunk), done + len(lines)
                if not lines:
                    continue
                try:
                    X, y = load_svmlight_file(BytesIO(b"".join(lines)), n_features=self.features, zero_based=False)
                except (ValueError, OverflowError):
                    X, y, spoilt = readers.svmlight_rows(lines, self.features)
                    count += len(spoilt)
                    first += [held[line - 1][0] for line in spoilt[: readers.LINES_NAMED - len(first)]]
                yield X, y
                if done == self.records:
                    break
            self.check(done)
        self.spoilt = count, tuple(first)


def _holds(line: bytes) -> bool:
    """Whether there is something before a comment."""
    return bool(line.split(b"#", 1)[0].strip())


def _batched(lines: Iterable[bytes], rows: int) -> Iterator[list[bytes]]:
    """Lines, at most so many and about so many bytes at once."""
    chunk, size = list[bytes](), 0
    for line in lines:
        chunk.append(line)
        size += len(line)
        if size >= BYTES or len(chunk) == rows:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class NumpySource(FileSource):
    """Rows start, ..., stop - 1 of an .npy file, and their labels in another."""

    def __init__(self, path: Path, labels: Path | None, start: int, stop: int) -> None:
        super().__init__(path, stop - start)
        self.label_path, self.start, self.stop = labels, start, stop

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Copies, so that no page of a map is held."""
        for start in range(self.start, self.stop, rows):
            part = slice(start, min(start + rows, self.stop))
            X = np.array(mapped(self.path, 2)[part])
            self.check(self.records if len(X) == part.stop - start else start - self.start + len(X))
            yield X, None if self.label_path is None else np.array(mapped(self.label_path, 1)[part])

    def labels(self, rows: int) -> Iterator[Labels]:
        """Of the other file."""
        if self.label_path is not None:
            yield from (
                np.array(mapped(self.label_path, 1)[at : at + rows]) for at in range(self.start, self.stop, rows)
            )

    def mark(self) -> Mark | None:
        """Of both files."""
        return (super().mark(), None if self.label_path is None else _stat(self.label_path))


def mapped(path: Path, dimensions: int) -> NDArray[Any]:
    """The array of an .npy file, as a map."""
    try:
        found = np.load(path, mmap_mode="r")
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file.") from None
    except (OSError, ValueError, EOFError):
        raise InputError(f"{path} is damaged, or not a file of np.save with numbers or texts. Save it again.") from None
    kinds = "fiub" if dimensions == 2 else "fiubU"
    if not isinstance(found, np.ndarray) or found.ndim != dimensions or found.dtype.kind not in kinds:
        what = "rows, an array of numbers with two dimensions" if dimensions == 2 else "labels, with one dimension"
        raise InputError(f"{path} has not {what}; save such an array there.")
    return found


def _stat(path: Path) -> Mark:
    """Size and times of a file; that of its last change nobody can set back."""
    found = path.stat()
    return str(path.resolve()), found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def as_it_is(path: Path) -> Mark | None:
    """What tells that a file was written again, or another put in its place; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


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


NUMPY = (".npy",)


def listed(files: Any) -> list[Path]:
    """The files of a path, a folder, a pattern or a list of them, in the order of their names, each once."""
    given = [files] if isinstance(files, str | Path) or hasattr(files, "__fspath__") else list(files)
    named = [path for one in given for path in _expanded(Path(one).expanduser())]
    found = list({path.resolve(): path for path in reversed(named)}.values())[::-1]  # a link to one of them is that one
    if not found:
        raise InputError(f"files={files!r} names no file; give a path, a folder, a pattern or a list of them.")
    return found


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
    return replace(_opened(paths, asked), before=before)


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
        with readers.parquet_file(path) as file:
            return columns_of(next(file.iter_batches(count), file.schema_arrow.empty_table()))
    layout = _csv_layout(path)
    with readers.open_data(path) as stream:
        lines = (line.decode("utf-8", "replace") for line in itertools.islice(stream, layout.skipped, None))
        rows = [readers.cells_of(line) for line in itertools.islice(lines, count)]
    width = len(layout.header)
    cells = readers.cells_by_column([row if row is not None and len(row) == width else None for row in rows], width)
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
        for line in stream:
            text = line.decode("utf-8-sig" if skipped == 0 else "utf-8", "replace")
            start, skipped = start + len(line), skipped + 1
            if text.strip(readers.SPACES):
                return _CsvLayout(path, readers.header_names(readers.cells_of(text), path), start, skipped)
    return _CsvLayout(path, readers.header_names(None, path), start, skipped)


def _counted(path: Path, start: int, *, one_column: bool) -> Iterator[tuple[int, int]]:
    """(offset, lines) of the parts of a CSV file from `start` on; empty lines at the end are none.

    In a file of one column an empty line is a missing cell, also at the end.
    """
    spaces, plain = readers.SPACES.encode(), _is_plain(path)
    with readers.open_data(path) as stream:
        stream.seek(start)
        begin = offset = start
        lines = empty = 0  # of this part: those that hold a record, and empty ones that may be at the end
        while block := stream.read(BYTES):
            block += stream.readline()  # parts end where lines do
            offset += len(block)
            count = block.count(b"\n") + (not block.endswith(b"\n"))
            held = block.rstrip(spaces)
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
    sources: list[Source] = []
    for path in paths:
        begin = offset = skipped = number = count = entries = 0
        with readers.open_data(path) as stream:
            for chunk in _batched(stream, 1 << 62):
                offset, number = offset + sum(map(len, chunk)), number + len(chunk)
                count += sum(map(_holds, chunk))
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
    return Found(tuple(sources), width, (), labelled=asked.label is not None)
