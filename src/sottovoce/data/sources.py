"""Sources of rows: arrays, memory maps, files and parts of files, each read piece by piece, anywhere, and again.

A record is read as the readers of whole files read it, by itself: neither the piece that it is in nor any other record
decides what becomes of it. A source can be pickled, and holds no rows of a file.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.data import readers
from sottovoce.data.matrix import Matrix, is_sparse
from sottovoce.data.room import in_words
from sottovoce.data.schema import Schema, columns_of
from sottovoce.errors import InputError
from sottovoce.files import check_plain

Labels = NDArray[Any]
Piece = tuple[Matrix, Labels | None]  # rows, and labels where they are known
Mark = tuple[Any, ...]  # of a file as it is now: another if it is written again

CELLS = 1 << 19  # of a table that are texts at once: ten times the size of the numbers that they become
BYTES = 1 << 23  # of lines that are read at once


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


class LineSource(FileSource):
    """Lines of a text file: those from `offset` on, of a compressed one all after the first `skipped`."""

    declared = False  # whether nobody has counted them

    def __init__(self, path: Path, records: int, offset: int | None, skipped: int) -> None:
        super().__init__(path, records)
        self.offset, self.skipped = offset, skipped

    def _lines(self, stream: IO[bytes]) -> Iterator[bytes]:
        if self.offset is None:
            return itertools.islice(readers.Lines(stream), self.skipped, None)
        stream.seek(self.offset)
        return iter(readers.Lines(stream))


class CsvSource(LineSource):
    """Records of a CSV file, each a line."""

    texts = True

    def __init__(  # noqa: PLR0913
        self, path: Path, header: tuple[str, ...], columns: Columns, records: int, offset: int | None, skipped: int
    ) -> None:
        super().__init__(path, records, offset, skipped)
        self.header, self.columns = header, columns

    def _chunks(self, rows: int) -> Iterator[tuple[int, list[bytes]]]:
        """Some lines, and the number of the first."""
        width, step = len(self.header), max(1, min(rows, CELLS // len(self.header)))
        with readers.open_data(self.path) as stream:
            lines, done = self._lines(stream), 0
            for chunk in batched(itertools.islice(lines, self.records), step, 8 * BYTES):
                yield self.skipped + done + 1, chunk
                done += len(chunk)
            more = self.declared and any(line.strip() or width == 1 for line in lines)
            self.check(done + more)

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Numbers, or features by the schema."""
        places = {name: place for place, name in enumerate(self.header)}
        kept, count, first = [places[name] for name in self.columns.features], 0, list[int]()
        label = None if self.columns.label is None else places[self.columns.label]
        for number, chunk in self._chunks(rows):
            if self.columns.schema is None:
                block, whole, labels = readers.numeric_lines(chunk, len(self.header), kept, label)
                piece = block, None if label is None else label_cells(labels)
            else:
                found = readers.rows_of(chunk, len(self.header))
                whole = np.array([row is not None for row in found])
                cells = readers.cells_by_column(found, len(self.header))
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
        for _, chunk in self._chunks(rows):
            _, _, cells = readers.numeric_lines(chunk, len(self.header), (), place)
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
        opened = readers.parquet_file(self.path, pre_buffer=False, buffer_size=1 << 16)
        with opened as file, readers.reading_parquet(self.path):
            for batch in file.iter_batches(step, list(self.groups), list(names), use_threads=False):
                found += batch.num_rows
                held = [pyarrow.Table.from_batches([batch])]
                del batch  # nobody has it while the next is read
                yield held.pop()
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
            for chunk in batched(self._lines(stream), rows):
                held = [(place, line) for place, line in enumerate(chunk, number + 1) if holds(line)]
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


def holds(line: bytes) -> bool:
    """Whether there is something before a comment."""
    return bool(line.split(b"#", 1)[0].strip())


def batched(lines: Iterable[bytes], rows: int, most: int = BYTES) -> Iterator[list[bytes]]:
    """Lines, at most so many and about so many bytes at once."""
    chunk, size = list[bytes](), 0
    for line in lines:
        chunk.append(line)
        size += len(line)
        if size >= most or len(chunk) == rows:
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


def mapped(path: Path, dimensions: int) -> NDArray[Any]:
    """The array of an .npy file, as a map."""
    try:
        check_plain(path)
        found = np.load(path, mmap_mode="r")
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file.") from None
    except Exception as error:  # NumPy reads the header as Python, and has the errors of that
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            raise InputError(
                f"{path} of {in_words(path.stat().st_size)} cannot be mapped within this process's limit (ulimit -v"
                f"{_addresses()}); raise it, or limit data (ulimit -d) instead."
            ) from None
        raise InputError(f"{path} is damaged, or not a file of np.save with numbers or texts. Save it again.") from None
    kinds = "fiub" if dimensions == 2 else "fiubU"
    if not isinstance(found, np.ndarray) or found.ndim != dimensions or found.dtype.kind not in kinds:
        what = "rows, an array of numbers with two dimensions" if dimensions == 2 else "labels, with one dimension"
        raise InputError(f"{path} has not {what}; save such an array there.")
    return found


def _addresses() -> str:
    """The limit of addresses, in the unit of ulimit; "" where there is none."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        if soft != resource.RLIM_INFINITY:
            return f" {soft // 1024}"
    return ""


def as_it_is(path: Path) -> Mark | None:
    """What tells that a file was written again, or another put in its place; None where there is none.

    The time of its last change nobody can set back.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
