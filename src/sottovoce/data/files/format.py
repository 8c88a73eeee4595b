"""Sources of rows, read piece by piece, and file formats: a class knows the shape of a file, its objects read parts.

Neither the piece that a record is in nor any other record decides how it is read. A source can be pickled, holds no
rows of a file, and can be read anywhere, and again.

Everything here runs at the holder of the data. A record is a line (of Parquet and NumPy: a row), and no record decides
whether a file can be read or how another record is read: a record that is not of the form, or of a line beyond
`LONGEST_LINE`, becomes a null row, all NaN, which counts and contributes nothing; a text of Parquet beyond it is a
missing cell. The log tells the holder, and nobody else.
Errors are about the file and its header; they name columns and never hold what a cell holds.
"""

from __future__ import annotations

import bz2
import copy
import gzip
import itertools
import logging
import lzma
import operator
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.beside import labels_of
from sottovoce.data.cells import table_columns
from sottovoce.data.matrix import Matrix
from sottovoce.data.misfits import Misfits, tell_all
from sottovoce.data.schema import Schema
from sottovoce.errors import InputError
from sottovoce.files import LONGEST_LINE, check_plain

Labels = NDArray[Any]
Piece = tuple[Matrix, Labels | None]  # rows, and labels where they are known
Mark = tuple[Any, ...]  # of a file as it is now: another if it is written again

COMPRESSED: Final[dict[str, Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
BYTES = 1 << 23  # of lines that are read at once; fewer than a line may have
PART = 1 << 27  # bytes of a large file that are a source of their own
SPACES: Final = b" \t\r\n\x0b\x0c"  # a line of these alone is empty
TOO_LONG: Final = b'""\rx\n'  # in the place of a line beyond the limit: one that no format can read
UNCOUNTED: Final = 1 << 62  # records of a file that is read to its end
LINES_NAMED: Final = 5  # of those that became null rows, in the log
_log = logging.getLogger("sottovoce.readers")


class Source(ABC):
    """Some of the rows, with their labels: a file, a part of one, a partition.

    `entries` is how many entries sparse rows have at most; None where rows are dense. After a reading to the end
    `spoilt` has how many lines became null rows, and the numbers of the first of them.
    """

    path: Path | None = None  # of the file that it reads, if it is one
    records: int
    entries: int | None = None
    texts: bool = False  # whether a label that is no number makes labels texts
    spoilt: tuple[int, tuple[int, ...]] = (0, ())
    misfits: Misfits | None = None  # with the last rows that were read, of the first reading to the end
    told: bool = False  # whether the holder knows

    @abstractmethod
    def pieces(self, rows: int) -> Iterator[Piece]:
        """Rows and labels in their order, at most `rows` at once."""

    def labels(self, rows: int) -> Iterator[Labels]:
        for _, labels in self.pieces(rows):
            if labels is not None:
                yield labels

    def check(self, count: int) -> None:
        """Refuse a file that has other records than it had, or than were declared; note how many nobody counted."""
        if self.records == UNCOUNTED:
            self.records = count
        if self.records != count:
            raise InputError(
                f"{self.path} has not the {self.records} records that it had when it was opened, or that were "
                "declared; leave it as it is while it is read, and correct records."
            )


def file_state(path: Path) -> Mark | None:
    """What tells that a file was written again, or another put in its place; None where there is none.

    The time of its last change nobody can set back.
    """
    try:
        state = path.stat()
    except (OSError, ValueError):  # of a name that no file has
        return None
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


@dataclass(frozen=True)
class FileOptions:
    """What is asked of files besides their names; `records=UNCOUNTED`: one file, read to its end."""

    label: str | int | None = None
    schema: Schema | None = None
    features: int | None = None
    left_out: str | None = None
    records: int | None = None
    only: tuple[str, ...] | None = None  # the features, if labels and other columns do not matter


@dataclass(frozen=True)
class FilePart:
    """Where some of the records of a file are."""

    records: int
    start: int = 0  # the byte, the row or the row group that it begins with
    count: int = 0  # of lines or row groups, where they are not as many as records
    before: int = 0  # lines before it
    entries: int | None = None  # of sparse rows, at most
    declared: bool = False  # whether nobody has counted the records


@dataclass(frozen=True)
class FileShape:
    """What is public of a file: names or number of its columns, and the parts in which its records are read."""

    names: tuple[str, ...]
    columns: int
    parts: tuple[FilePart, ...]
    types: tuple[Any, ...] = ()  # of the columns, where the file has them
    separator: str = ","  # of the cells of a line, where it is of text

    @property
    def records(self) -> int:
        return sum(map(operator.attrgetter("records"), self.parts))


@dataclass(frozen=True)
class Wanted:
    """Which columns are features and which is the label; with a schema it says so."""

    features: tuple[str, ...] = ()
    label: str | None = None
    schema: Schema | None = None
    left_out: str | None = None
    others: bool = False  # whether there may be columns that the schema does not name
    width: int | None = None  # how many features there are, where columns have no names

    @property
    def names(self) -> tuple[str, ...]:
        return self.features if self.label is None else (*self.features, *self.beside_features)

    @property
    def beside_features(self) -> tuple[str, ...]:
        """The label, and what the schema has beside it."""
        beside = () if self.schema is None else self.schema.names_beside.values()
        return tuple(name for name in (self.label, *beside) if name is not None)

    def encode(self, cells: Any, misfits: Misfits | None = None) -> Piece:
        """The features and labels of a table, by the schema; what does not fit it is added to `misfits`."""
        if self.schema is None:
            raise InputError("schema: there is none to encode by.")
        table = table_columns(cells).without(self.left_out)
        if misfits is not None:
            misfits.add(table)
        return self.schema.rows(table, others=self.others), None if self.label is None else self.schema.labels(table)


class Format(Source):
    """A file format; an object of it reads one part of a file."""

    suffixes: ClassVar[tuple[str, ...]]
    compressible: ClassVar[bool] = False
    tabular: ClassVar[bool] = False  # whether columns have names; such files go together
    sparse: ClassVar[bool] = False
    mapped: ClassVar[bool] = False  # whether it is an array, with labels in a file of their own
    path: Path
    most_cells: ClassVar[int] = 1 << 19  # that are texts at once: ten times the size of the numbers that they become

    def __init__(self, path: Path, shape: FileShape, part: FilePart, wanted: Wanted) -> None:
        self.path, self.names, self.part, self.wanted = path, shape.names, part, wanted
        self.separator = shape.separator
        self.records, self.entries = part.records, part.entries
        if wanted.schema is not None and wanted.schema.sparse:
            self.entries = part.records * wanted.schema.entries

    @classmethod
    @abstractmethod
    def shape(cls, path: Path, records: int | None = None) -> FileShape:
        """What is public of a file; no value is parsed, and lines are counted unless `records` says how many."""

    @classmethod
    @abstractmethod
    def choose(cls, path: Path, shape: FileShape, asked: FileOptions) -> Wanted:
        """The columns that are meant, by the first of the files."""

    @classmethod
    def check_alike(cls, path: Path, shape: FileShape, wanted: Wanted, first: Path) -> None:
        """Refuse a file that has other columns than the first one."""

    def note_spoilt(self, number: int, whole: Any) -> None:
        """Remember which lines, from that number on, became null rows."""
        count, first = self.spoilt
        places = np.flatnonzero(~whole)
        self.spoilt = count + len(places), (*first, *(places[: LINES_NAMED - len(first)] + number).tolist())


class TableFormat(Format):
    """A table with named columns, read as numbers, or as cells for a schema."""

    tabular: ClassVar[bool] = True
    texts = True

    @abstractmethod
    def cells(self, names: Sequence[str], rows: int) -> Iterator[Mapping[str, Any]]:
        """Columns of these names piece by piece, each cell as it is written."""

    @staticmethod
    @abstractmethod
    def join_cells(cells: Sequence[Any]) -> Any:
        """The cells of a column in all pieces."""

    @abstractmethod
    def written(self, rows: int) -> Iterator[tuple[Matrix, Any]]:
        """Numbers of the features, and the cells of the label as they are written."""

    @abstractmethod
    def label_values(self, cells: Any, *, whole: bool = False) -> Labels:
        """Labels, each by its own cell; of `whole` files one that is no number makes all of them texts."""

    def pieces(self, rows: int) -> Iterator[Piece]:
        if self.wanted.schema is not None:
            self.misfits = None if self.wanted.others or self.told else Misfits(self.wanted.schema)
            return (self.wanted.encode(cells, self.misfits) for cells in self.cells(self.wanted.names, rows))
        return ((X, None if cells is None else self.label_values(cells)) for X, cells in self.written(rows))

    def labels(self, rows: int) -> Iterator[Labels]:
        if (label := self.wanted.label) is None:
            return
        schema, alone = self.wanted.schema, copy.copy(self)
        if schema is not None:
            found = map(schema.labels, alone.cells(self.wanted.beside_features, rows))
            yield from (labels_of(labels) for labels in found if labels is not None)
            return
        alone.wanted = Wanted((), label)
        yield from (labels for _, labels in alone.pieces(rows) if labels is not None)

    @classmethod
    def choose(cls, path: Path, shape: FileShape, asked: FileOptions) -> Wanted:
        schema, others = asked.schema, asked.only is not None
        label: str | None = None
        if others and asked.only is not None:
            features = asked.only if schema is None else tuple(schema.columns)
        elif schema is not None:
            if asked.label is not None:
                raise InputError(f"label={asked.label!r}: the schema names the label column; leave label out.")
            label, features = schema.label if schema.label in shape.names else None, tuple(schema.columns)
        else:
            label = _column_name(asked.label, shape.names, path, "label")
            columns: dict[str | None, None] = dict.fromkeys(shape.names)
            for name in (label, _column_name(asked.left_out, shape.names, path, "id")):
                columns.pop(name, None)
            features = tuple(columns)  # type: ignore[arg-type]
        check_features(asked.features, len(features if schema is None else schema.feature_names), path)
        return Wanted(features, label, schema, asked.left_out, others)

    @classmethod
    def check_alike(cls, path: Path, shape: FileShape, wanted: Wanted, first: Path) -> None:
        if wanted.schema is not None:  # the columns of the schema and no others, and the label if the first has it
            left_out, header = wanted.left_out, shape.names
            if left_out is not None and left_out not in header:
                raise InputError(f"id={left_out!r} is no column of {path}; its columns are: {', '.join(header)}.")
            if left_out is not None and left_out in wanted.names:
                raise InputError(f"id={left_out!r} is a feature or the label in the schema; an identifier is neither.")
            if wanted.label is not None and wanted.label not in header:
                raise InputError(f"{path} lacks the label column {wanted.label!r}; give it labels too.")
            try:
                wanted.encode(dict.fromkeys(header, ()))
            except InputError as error:
                raise InputError(f"{path}: {error}") from None
            return
        own, read = set(shape.names), {*wanted.names, wanted.left_out}
        missing = list(itertools.filterfalse(own.__contains__, wanted.names))
        if missing and wanted.others:
            raise InputError(f"{path} lacks {len(missing)} of the model's columns: {', '.join(missing)}. Add them.")
        if missing:
            raise InputError(f"{path} lacks the column {missing[0]!r}, which {first} has; give all the same columns.")
        for name in () if wanted.others else shape.names:
            if name not in read:
                raise InputError(f"{path} has a column {name!r}, which {first} lacks; give all the same columns.")


def _column_name(label: str | int | None, columns: Sequence[str], path: Path, what: str) -> str | None:
    """The name of a column that is given by name or position."""
    if label is None or (isinstance(label, str) and label in columns):
        return label
    if isinstance(label, int) and -len(columns) <= label < len(columns):
        return columns[label]
    raise InputError(f"{what}={label!r} is no column of {path}. Its columns are: {', '.join(columns)}.")


def cut_parts(part: FilePart, blocks: Iterable[tuple[int, int, int | None, int]], path: Path) -> tuple[FilePart, ...]:
    """Parts of some size, by the records, lines and entries of blocks and where each ends; a compressed file is one."""
    parts = list[FilePart]()
    for records, count, entries, end in blocks:
        entries = None if entries is None else (part.entries or 0) + entries
        part = FilePart(part.records + records, part.start, part.count + count, part.before, entries)
        if part.records and path.suffix.lower() not in COMPRESSED and end - part.start >= PART:
            parts.append(part)
            part = FilePart(0, end, before=part.before + part.count)
    return (*parts, part) if part.records else tuple(parts)


def check_features(features: int | None, count: int, path: Path) -> None:
    """Refuse a table with no feature, or with another number than declared."""
    if count == 0:
        raise InputError(f"{path} has no column but the label: there is nothing to learn from.")
    if features is not None and features != count:
        raise InputError(f"features={features} but {path} has {count} feature columns. Is the label column named?")


def report_spoilt(sources: Sequence[Source]) -> None:
    """Tell the holder of each file which lines became null rows, how many and the first, and what fits no schema."""
    by_file: dict[Path, list[Source]] = {}
    for source in sources:
        if source.path is not None:
            by_file.setdefault(source.path, []).append(source)
        source.told = True
    for path, parts in by_file.items():
        tell_all([part.misfits for part in parts if part.misfits is not None], str(path))
        count = sum(part.spoilt[0] for part in parts)
        if not count:
            continue
        records = sum(source.records for source in sources if source.path == path)
        text = ", ".join([str(line) for part in parts for line in part.spoilt[1]][:LINES_NAMED])
        text += ", ..." if count > LINES_NAMED else ""
        if count == records and parts[0].texts:
            text += "; a column of texts needs a schema: `sottovoce schema FILE` drafts one"
        why = "a cell that is no number, or too few or too many cells"
        text = f"cannot be read ({why}); they count as null rows, which contribute nothing. Lines: {text}"
        _log.warning("%s: %d of %d records %s", path, count, records, text)


def check_data(path: Path) -> None:
    """Raise unless there is a plain file."""
    try:
        check_plain(path)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from None


@contextmanager
def open_data(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a file, decompressed by its suffix.

    What goes wrong while the block reads from it (not there, damaged, cut short) becomes an `InputError`.
    """
    check_data(path)
    try:
        with COMPRESSED.get(path.suffix.lower(), open)(path, "rb") as stream:
            yield stream
    except EOFError:
        raise InputError(
            f"{path} is cut short: the compressed data end too early. Copy or download it again."
        ) from None
    except (lzma.LZMAError, zlib.error, gzip.BadGzipFile):
        raise InputError(f"{path} is damaged, or not what its suffix says. Copy or download it again.") from None
    except OSError as error:
        # The text of an OSError can quote bytes of the file; its type and number cannot.
        raise InputError(
            f"{path} cannot be read ({type(error).__name__}). Is it damaged, or not yours to read?"
        ) from None


def read_blocks(stream: IO[bytes]) -> Iterator[bytes]:
    """Whole lines, some megabytes at once, from where the stream is; one beyond the limit is `TOO_LONG`."""
    while block := stream.read(BYTES):
        if not block.endswith(b"\n"):
            begun = len(block) - block.rfind(b"\n") - 1  # bytes of the last line
            block += stream.readline(LONGEST_LINE + 1 - begun) if begun <= LONGEST_LINE else b""
            start = block.rfind(b"\n", 0, -1) + 1
            if len(block) - start > LONGEST_LINE:
                rest = block[-1:]
                while rest and not rest.endswith(b"\n"):
                    rest = stream.readline(LONGEST_LINE)
                block = block[:start] + TOO_LONG
        yield block


def line_starts(text: bytes) -> NDArray[np.int64]:
    """Where each line begins, and where the last one ends."""
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")) + 1
    return np.concatenate([[0], ends if text.endswith(b"\n") else np.append(ends, len(text))])


def count_lines(text: bytes) -> int:
    """How many lines there are; the last need not end."""
    return text.count(b"\n") + (not text.endswith(b"\n") and text != b"")
