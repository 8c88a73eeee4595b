"""Tables from files: CSV, Parquet and LIBSVM, plain or compressed.

Everything here runs at the holder of the data. A record is a line (of Parquet: a row), and no record decides whether a
file can be read or how another record is read: a record that is not of the form, or of a line beyond `LONGEST_LINE`,
becomes a null row, all NaN, which counts and contributes nothing; a text of Parquet beyond it is a missing cell. The
holder is told by the log, and nobody else.
Errors are about the file and its header; they name columns and never hold what a cell holds.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import itertools
import logging
import lzma
import math
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sottovoce.errors import InputError
from sottovoce.files import LONGEST_LINE, MOST_COLUMNS, MOST_FEATURES, check_plain

Matrix = NDArray[np.float64] | sparse.csr_matrix
PathLike = str | Path
_Row = list[str] | None  # the cells of a line, or None if it is not of the form

CSV = (".csv",)
PARQUET = (".parquet", ".pq")
LIBSVM = (".svm", ".libsvm", ".svmlight", ".txt")
COMPRESSED = (".gz", ".bz2", ".xz")

MISSING = frozenset({"", "na", "nan", "?"})
_ROWS_AT_ONCE = 20_000  # strings are ten times the size of the numbers they become
_BYTES_AT_ONCE = 1 << 26  # of lines
TOO_LONG = b'""\rx\n'  # what stands for a line beyond the limit: one that no reader can read
LINES_NAMED = 5  # of those that became null rows, in the log
_NEEDS_SCHEMA = "; a column of texts needs a schema: `sottovoce schema FILE` drafts one"
_log = logging.getLogger("sottovoce.readers")
SPACES = b" \t\r\n\x0b\x0c"  # a line of these alone is empty
_NOT_DATA = ("@", "%", "|")  # what opens a comment or a declaration in an ARFF or a UCI file


@dataclass(frozen=True, eq=False)
class Table:
    """Rows `X` (dense; CSR from LIBSVM), labels `y` (float, or text where one is not a number) and names."""

    X: Matrix
    y: NDArray[Any] | None
    feature_names: tuple[str, ...]


def read_table(
    path: PathLike, *, label: str | int | None = None, features: int | None = None, left_out: str | None = None
) -> Table:
    """A numeric table, its format told by the suffix of the file.

    `.csv`: a header line, then numbers; `.parquet`, `.pq`: numeric columns; `.svm`, `.libsvm`, `.svmlight`,
    `.txt`: lines `label index:value ...` with indices from 1. CSV and LIBSVM may be compressed
    (`.gz`, `.bz2`, `.xz`).

    `label` is the name or the position (-1 for the last) of the label column of a CSV or Parquet file;
    without it every column is a feature and `y` is None. `features` is the number of features: a LIBSVM file
    whose last columns are empty does not tell it, and elsewhere it is checked. `left_out` names a column that is no
    feature, such as one of identifiers. A missing cell (empty, `NA`,
    `nan`, `?`) becomes NaN. A line with a cell that is no number, with too few or too many cells, or not of the form of
    LIBSVM, becomes a row of NaN, and the log says how many there are and on which lines.

    A line of CSV is one record: cells in double quotes may hold commas and no line ends, so a quote that is never
    closed spoils its own line alone. An empty line among the records of a CSV file is one of missing cells; before the
    header, at the end of a file of several columns, and in a LIBSVM file it is none.
    """
    path = Path(path)
    kind = kind_of(path)
    if kind in CSV:
        return read_csv(path, label=label, features=features, left_out=left_out)
    if kind in PARQUET:
        return read_parquet(path, label=label, features=features, left_out=left_out)
    if left_out is not None:
        raise InputError(f"id={left_out!r} for {path.name}: a LIBSVM file has no column with a name. Leave id out.")
    if label not in (None, 0):
        raise InputError(
            f"label={label!r} for {path.name}: the label of a LIBSVM file is what each line begins with. "
            "Leave label out."
        )
    return read_svmlight(path, features=features)


def read_columns(path: PathLike) -> dict[str, NDArray[Any]]:
    """The columns of a mixed CSV or Parquet file: float where every cell is a number or missing, else text.

    Text columns are object arrays of `str`, with the cells as they are written (a missing one too), ready for
    scikit-learn's OneHotEncoder in a ColumnTransformer.
    """
    path = Path(path)
    if not has_columns(path):
        raise InputError(f"{path.name}: columns are read from {', '.join(CSV + PARQUET)} files; use read_table here.")
    return csv_columns(path) if kind_of(path) in CSV else _parquet_columns(path)


def has_columns(path: Path) -> bool:
    """Whether a file of that name has columns with names; a name that no reader knows is an error."""
    return kind_of(path) in CSV + PARQUET


def read_csv(  # noqa: PLR0913
    path: PathLike,
    *,
    label: str | int | None = None,
    features: int | None = None,
    names: Sequence[str] | None = None,
    member: str | None = None,
    left_out: str | None = None,
) -> Table:
    """A numeric CSV file; `names` are its columns where it has no header, `member` the file in an archive."""
    path = Path(path)
    blocks: list[NDArray[np.float64]] = []
    labels: list[str] = []
    spoilt: list[int] = []
    with _csv_chunks(path, names, member) as (columns, chunks):
        position = column_place(label, columns, path)
        kept = [j for j in range(len(columns)) if j not in (position, column_place(left_out, columns, path, "id"))]
        check_features(features, len(kept), path)
        for numbers, lines in chunks:
            block, whole, cells = numeric_lines(lines, len(columns), kept, position)
            blocks.append(block)
            spoilt.extend(number for number, good in zip(numbers, whole, strict=True) if not good)
            labels.extend(cells)
    tell_spoilt(path, sum(map(len, blocks)), spoilt)
    y = None if position is None else _labels(labels)
    return Table(np.concatenate(blocks), y, tuple(columns[j] for j in kept))


def csv_columns(
    path: PathLike, *, names: Sequence[str] | None = None, member: str | None = None
) -> dict[str, NDArray[Any]]:
    """The columns of a CSV file; `names` and `member` as for `read_csv`."""
    cells = _csv_cells(Path(path), names, member)
    return {name: _number_or_text(column) for name, column in cells.items()}


def read_cells(path: PathLike) -> Any:
    """The cells of a CSV or Parquet file as they are written, for a schema to read each by itself.

    Of CSV a mapping of columns, all text: a type that all cells of a column share would let one decide how another is
    read. Of Parquet an Arrow table.
    """
    path = Path(path)
    if not has_columns(path):
        raise InputError(f"{path.name}: a schema is for {', '.join(CSV + PARQUET)} files, whose columns have names.")
    return _csv_cells(path) if kind_of(path) in CSV else _parquet_table(path)


def _csv_cells(path: Path, names: Sequence[str] | None = None, member: str | None = None) -> dict[str, list[str]]:
    with _csv_chunks(path, names, member) as (columns, chunks):
        cells: list[list[str]] = [[] for _ in columns]
        spoilt: list[int] = []
        for numbers, lines in chunks:
            rows = rows_of(lines, len(columns))
            spoilt.extend(number for number, row in zip(numbers, rows, strict=True) if row is None)
            for column, part in zip(cells, cells_by_column(rows, len(columns)), strict=True):
                column.extend(part)
    tell_spoilt(path, len(cells[0]), spoilt)
    return dict(zip(columns, cells, strict=True))


def read_svmlight(path: PathLike, *, features: int | None = None) -> Table:
    """A LIBSVM file as CSR; features are named by their index, from 1.

    Indices start at 1, always: guessing it from the smallest index in the file would let two parties with the
    same columns read them shifted.
    """
    from sklearn.datasets import load_svmlight_file  # slow to import, and CSV readers do without

    path = Path(path)
    try:
        with open_data(path) as stream:
            X, y = load_svmlight_file(Lines(stream), n_features=features, zero_based=False)
        if X.shape[1] > MOST_FEATURES:
            raise OverflowError
    except InputError:
        raise
    except (ValueError, OverflowError):
        with open_data(path) as stream:
            X, y, spoilt = svmlight_rows(Lines(stream), features)
        tell_spoilt(path, X.shape[0], spoilt)
    if X.shape[0] == 0:
        raise InputError(f"{path} has no rows.")
    return Table(X, y, tuple(str(index) for index in range(1, X.shape[1] + 1)))


def read_parquet(
    path: PathLike, *, label: str | int | None = None, features: int | None = None, left_out: str | None = None
) -> Table:
    """The numeric columns of a Parquet file; needs the `parquet` extra."""
    path = Path(path)
    columns = _parquet_columns(path)
    names = tuple(columns)
    position = column_place(label, names, path)
    unused = (position, column_place(left_out, names, path, "id"))
    kept = [name for j, name in enumerate(names) if j not in unused]
    check_features(features, len(kept), path)
    for name in kept:
        if columns[name].dtype == object:
            raise not_numeric(path, name)
    y = None if position is None else columns[names[position]]
    return Table(np.column_stack([columns[name] for name in kept]), y, tuple(kept))


@contextmanager
def open_data(path: PathLike, member: str | None = None) -> Iterator[IO[bytes]]:
    """The bytes of a file, decompressed by its suffix; `member` of a `.zip` or `.tgz` archive.

    What goes wrong while the block reads from it (not there, damaged, cut short) becomes an `InputError`.
    """
    path = Path(path)
    check_data(path)
    try:
        with _opened(path, member) as stream:
            yield stream
    except EOFError:
        raise InputError(
            f"{path} is cut short: the compressed data end too early. Copy or download it again."
        ) from None
    except (lzma.LZMAError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile, tarfile.TarError, KeyError):
        raise InputError(f"{path} is damaged, or not what its suffix says. Copy or download it again.") from None
    except OSError as error:
        # The text of an OSError can quote bytes of the file; its type and number cannot.
        raise InputError(
            f"{path} cannot be read ({type(error).__name__}). Is it damaged, or not yours to read?"
        ) from None


def check_data(path: Path) -> None:
    """Raise unless there is a plain file."""
    try:
        check_plain(path)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from None


class Lines:
    """The lines of a stream, of which none takes more memory than the limit: a longer one is `TOO_LONG`."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def read(self) -> bytes:
        """Of no use: what has it passes for a file."""
        raise io.UnsupportedOperation

    def __iter__(self) -> Iterator[bytes]:
        while line := self._stream.readline(LONGEST_LINE + 1):
            yield line if len(line) <= LONGEST_LINE else self._rest(line)

    def _rest(self, line: bytes) -> bytes:
        while line and not line.endswith(b"\n"):
            line = self._stream.readline(LONGEST_LINE)
        return TOO_LONG

    def block(self, size: int) -> bytes:
        """So many bytes or a few more, up to the end of a line."""
        block = self._stream.read(size)
        if not block or block.endswith(b"\n"):
            return block
        begun = len(block) - block.rfind(b"\n") - 1  # of the last line
        block += self._stream.readline(LONGEST_LINE + 1 - begun) if begun <= LONGEST_LINE else b""
        start = block.rfind(b"\n", 0, -1) + 1
        return block if len(block) - start <= LONGEST_LINE else block[:start] + self._rest(block[start:])


@contextmanager
def _opened(path: Path, member: str | None) -> Iterator[IO[bytes]]:
    if member is not None and path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive, archive.open(member) as stream:
            yield stream
    elif member is not None:
        with tarfile.open(path) as bundle, cast("IO[bytes]", bundle.extractfile(member)) as stream:
            yield stream
    else:
        openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
        with openers.get(path.suffix.lower(), open)(path, "rb") as stream:
            yield stream


def kind_of(path: Path) -> str:
    """The suffix that tells the format; one that no reader knows is an error."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compressed = bool(suffixes) and suffixes[-1] in COMPRESSED
    kind = "".join(suffixes[:-1][-1:] if compressed else suffixes[-1:])
    if kind not in CSV + LIBSVM + (() if compressed else PARQUET):
        raise InputError(
            f"{path.name}: unknown suffix. Known are {', '.join(CSV + PARQUET + LIBSVM)}, and after "
            f"{', '.join(CSV + LIBSVM)} one of {', '.join(COMPRESSED)}; a Dataset and a job take .npy too."
        )
    return kind


@contextmanager
def _csv_chunks(
    path: Path, names: Sequence[str] | None, member: str | None
) -> Iterator[tuple[tuple[str, ...], Iterator[tuple[list[int], list[bytes]]]]]:
    """The column names, then (numbers, lines) of some thousands of records at a time."""
    with csv_lines(path, member) as lines:
        columns = header_names(cells_of(next(lines, (1, b""))[1]), path) if names is None else tuple(names)
        records = csv_records(lines, len(columns), declarations=names is not None)
        first = next(records, None)
        if first is None:
            raise InputError(f"{path} has a header line but no rows." if names is None else f"{path} has no rows.")
        yield columns, _chunks(itertools.chain([first], records))


@contextmanager
def csv_lines(path: PathLike, member: str | None = None) -> Iterator[Iterator[tuple[int, bytes]]]:
    """(number, line) of each line from the first that is not empty on."""
    with open_data(path, member) as stream:
        lines = iter(Lines(stream))
        marked = itertools.chain([next(lines, b"").removeprefix(codecs.BOM_UTF8)], lines)
        yield itertools.dropwhile(lambda numbered: is_empty(numbered[1]), enumerate(marked, 1))


def is_empty(line: bytes) -> bool:
    """Whether a line has no record."""
    return not line.strip(SPACES)


def cells_of(line: bytes) -> list[str] | None:
    """The cells of one line, none of an empty one; None where it cannot be read.

    Bytes that are no UTF-8 become U+FFFD: they spoil the cell that they are in.
    """
    if is_empty(line):
        return []
    if line.count(b",") >= MOST_COLUMNS:
        return None
    text = line.decode("utf-8", "replace")
    if '"' not in text:
        return [cell.lstrip(" ") for cell in text.rstrip("\r\n").split(",")]
    try:
        return next(csv.reader([text], skipinitialspace=True))
    except csv.Error:  # a cell of more than 131,072 characters, or a line that is too long
        return None


def header_names(cells: list[str] | None, path: Path) -> tuple[str, ...]:
    """The names of the columns by the first line."""
    if cells is None:
        raise InputError(
            f"{path} has a first line that cannot be read, or of more than {MOST_COLUMNS} columns or {LONGEST_LINE} "
            "bytes. Is it CSV? Rows of so many columns are read from LIBSVM files."
        )
    names = tuple(cell.strip() for cell in cells)
    if any("\ufffd" in name for name in names):
        raise InputError(f"{path} is not UTF-8 text. Save it as UTF-8.")
    if not any(names):
        raise InputError(f"{path} is empty: a header line with the column names, then rows, were expected.")
    # A first line with a number in it is far more likely a record than names, and a record must not be
    # quoted as names by the errors below.
    if any(_numbers([name]) is not None for name in names):
        raise InputError(
            f"{path} has no header line: its first line has numbers or blanks. Add a line of column names."
        )
    if len(set(names)) < len(names):
        twice = next(name for name, times in Counter(names).items() if times > 1)
        first = names.index(twice)
        second = names.index(twice, first + 1)
        raise InputError(f"{path}: columns {first + 1} and {second + 1} have the same name.")
    return names


def csv_records(
    lines: Iterator[tuple[int, bytes]], width: int, *, declarations: bool = False
) -> Iterator[tuple[int, bytes]]:
    """The lines that are records, with their numbers.

    An empty line is a record like any other: dropped, it would change how many there are. At the end of a file of
    several columns, and in a file that is no table alone (`declarations`), it is none.
    """
    empty: list[tuple[int, bytes]] = []
    for number, line in lines:
        if declarations and (is_empty(line) or (cells_of(line) or [""])[0].startswith(_NOT_DATA)):
            continue
        if is_empty(line) and width > 1:
            empty.append((number, line))
            continue
        yield from empty
        empty.clear()
        yield number, line


def _chunks(records: Iterator[tuple[int, bytes]]) -> Iterator[tuple[list[int], list[bytes]]]:
    numbers, lines, size = list[int](), list[bytes](), 0
    for number, line in records:
        numbers.append(number)
        lines.append(line)
        size += len(line)
        if size >= _BYTES_AT_ONCE or len(lines) == _ROWS_AT_ONCE:
            yield numbers, lines
            numbers, lines, size = [], [], 0
    if lines:
        yield numbers, lines


def rows_of(lines: Iterable[bytes], width: int) -> list[_Row]:
    """The cells of lines; None for one that has too few or too many. An empty line is one missing cell."""
    found = (cells_of(line) for line in lines)
    return [
        row if row is not None and len(row) == width else None
        for row in (([""] if row == [] else row) for row in found)
    ]


def _numbers(cells: Sequence[str]) -> NDArray[np.float64] | None:
    """The cells as floats, NaN where missing; None where one of them is neither a number nor missing."""
    try:
        return np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        filled = ("nan" if cell.strip().lower() in MISSING else cell for cell in cells)
        try:
            return np.fromiter(map(float, filled), np.float64, len(cells))
        except ValueError:
            return None


def each_number(cells: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The cells as floats, each read by itself, and which of them are numbers or missing; NaN where they are not."""
    values = _numbers(cells)
    if values is not None:
        return values, np.ones(len(cells), dtype=np.bool_)
    alone = [_numbers([cell]) for cell in cells]
    found = np.array([math.nan if value is None else value[0] for value in alone])
    return found, np.array([value is not None for value in alone])


def cells_by_column(rows: Sequence[_Row], width: int) -> list[tuple[str, ...]]:
    """The cells of each column; those of a row that is none are missing."""
    nothing = [""] * width
    return list(zip(*(row or nothing for row in rows), strict=True))


def numeric_lines(
    lines: Sequence[bytes], width: int, kept: Sequence[int], label: int | None
) -> tuple[NDArray[np.float64], NDArray[np.bool_], list[str]]:
    """The numbers of the kept columns, which lines are whole, and the cells of the label.

    A line with a cell that is no number is all NaN. Lines of plain numbers are read by a compiled loop, all others cell
    by cell; both find the same numbers.
    """
    from sottovoce.data.kernels import decimals  # slow to import, and who reads texts does without

    starts, places = np.cumsum([0, *map(len, lines)]), np.full(width, -1)
    places[list(kept)] = np.arange(len(kept))
    block, whole = np.empty((len(lines), len(kept))), np.empty(len(lines), dtype=np.bool_)
    spans, text = np.zeros((len(lines), 2), dtype=np.int64), b"".join(lines)
    at = -1 if label is None else label
    decimals.fill_numbers(np.frombuffer(text, np.uint8), starts, places, block, at, spans, whole)
    others = np.flatnonzero(~whole).tolist()
    rows = rows_of((lines[place] for place in others), width)
    cells = cells_by_column(rows, width)
    if others:
        block[others], whole[others] = _numeric_rows(rows, cells, kept)
    if label is None:
        return block, whole, []
    labels = [text[start:stop].decode("utf-8", "replace").lstrip(" ") for start, stop in spans.tolist()]
    for place, row in zip(others, rows, strict=True):
        labels[place] = "" if row is None else row[label]
    return block, whole, labels


def _numeric_rows(
    rows: Sequence[_Row], cells: Sequence[Sequence[str]], kept: Sequence[int]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The numbers of the kept columns, and which rows are whole; one with a cell that is no number is all NaN."""
    whole = np.array([row is not None for row in rows])
    block = np.empty((len(rows), len(kept)))
    for column, place in enumerate(kept):
        block[:, column], numeric = each_number(cells[place])
        whole &= numeric
    block[~whole] = np.nan
    return block, whole


def tell_spoilt(path: PathLike, records: int, spoilt: Sequence[int], count: int | None = None) -> None:
    """Tell the holder which lines became null rows: the first of them, where `count` says how many there are."""
    if spoilt:
        count = len(spoilt) if count is None else count
        first = ", ".join(map(str, spoilt[:LINES_NAMED]))
        more = ", ..." if count > LINES_NAMED else ""
        texts = count == records and any(suffix.lower() in CSV for suffix in Path(path).suffixes)
        _log.warning(
            "%s: %d of %d records cannot be read (a cell that is no number, or too few or too many cells); they count "
            "as null rows, which contribute nothing. Lines: %s%s%s",
            path,
            count,
            records,
            first,
            more,
            _NEEDS_SCHEMA if texts else "",
        )


def _number_or_text(cells: Sequence[str]) -> NDArray[Any]:
    values = _numbers(cells)
    return np.array([cell.strip() for cell in cells], dtype=object) if values is None else values


def _labels(cells: Sequence[str]) -> NDArray[Any]:
    """Numbers or texts; what marks a missing cell stays a text among both, which may be declared as a class."""
    values = _number_or_text(cells)
    lost = np.flatnonzero(np.isnan(values)).tolist() if values.dtype != object else []
    marks = {place: cells[place].strip() for place in lost if cells[place].strip().lower() != "nan"}
    if marks:
        values = values.astype(object)
        for place, mark in marks.items():
            values[place] = mark
    return values


def column_place(label: str | int | None, columns: Sequence[str], path: Path, what: str = "label") -> int | None:
    """The place of a column by its name or position."""
    if label is None:
        return None
    if isinstance(label, str) and label in columns:
        return columns.index(label)
    if isinstance(label, int) and -len(columns) <= label < len(columns):
        return label % len(columns)
    raise InputError(f"{what}={label!r} is no column of {path}. Its columns are: {', '.join(columns)}.")


def check_features(features: int | None, found: int, path: Path) -> None:
    """Refuse a table with no feature, or with another number than declared."""
    if found == 0:
        raise InputError(f"{path} has no column but the label: there is nothing to learn from.")
    if features is not None and features != found:
        raise InputError(f"features={features} but {path} has {found} feature columns. Is the label column named?")


def not_numeric(path: Path, column: str) -> InputError:
    """What is said of a text column that is a feature."""
    return InputError(
        f"{path}: column {column!r} is not numeric. Name it as the label, or declare what the columns hold in a schema "
        "(`sottovoce schema FILE` drafts one), which encodes text columns."
    )


def svmlight_rows(lines: Iterable[bytes], features: int | None) -> tuple[sparse.csr_matrix, NDArray[Any], list[int]]:
    """Rows and labels of lines that scikit-learn refused, each that is not of the form all NaN; and which these are."""
    from sklearn.datasets import load_svmlight_file

    kept: list[bytes] = []
    spoilt: list[int] = []
    for number, line in enumerate(lines, 1):
        whole = line.split(b"#")[0].split()
        if not whole:
            continue
        if not _is_svmlight(whole, MOST_FEATURES if features is None else features):
            whole = [b"nan", b"1:nan"]
            spoilt.append(number)
        kept.append(b" ".join(whole))
    X, y = load_svmlight_file(io.BytesIO(b"\n".join(kept)), n_features=features, zero_based=False)
    return X, y, spoilt


def _is_svmlight(parts: list[bytes], features: int) -> bool:
    """`label index:value index:value ...`, indices from 1 to the number of features, each above the one before."""
    try:
        query = any(part.startswith(b"qid") and b":" in part for part in parts[1:2])  # as scikit-learn has it
        pairs = [part.split(b":") for part in parts[2 if query else 1 :]]
        indices = [int(index) for index, _ in pairs]
        _ = [float(parts[0]), *(float(value) for _, value in pairs)]
    except ValueError:
        return False
    return all(a < b for a, b in itertools.pairwise([0, *indices, features + 1]))


def parquet_file(path: Path, **options: Any) -> Any:
    """An open Parquet file, of which its footer was read."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            f'{path}: reading Parquet needs pyarrow. Install it with: pip install "sottovoce[parquet]"'
        ) from None
    check_data(path)
    try:
        file = parquet.ParquetFile(path, **options)
        if file.metadata.num_columns > MOST_COLUMNS:
            raise InputError(f"{path} has {file.metadata.num_columns} columns, and at most {MOST_COLUMNS} are read.")
        names = file.schema_arrow.names
    except UnicodeDecodeError:
        raise InputError(f"{path} has a column whose name is no UTF-8; write it again with another name.") from None
    except (pyarrow.ArrowException, OSError, EOFError):
        raise _damaged_parquet(path) from None
    if len(set(names)) < len(names):
        raise InputError(f"{path}: two columns have the same name.")
    return file


def _damaged_parquet(path: Path) -> InputError:
    """What is said of a file that is none."""
    return InputError(f"{path} is damaged, or not a Parquet file. Copy or write it again.")


@contextmanager
def reading_parquet(path: Path) -> Iterator[None]:
    """What Arrow says of the file while it reads rows becomes an `InputError`."""
    import pyarrow

    try:
        yield
    except pyarrow.ArrowMemoryError:
        raise
    except (pyarrow.ArrowException, OSError, EOFError):
        raise _damaged_parquet(path) from None


def _parquet_table(path: Path) -> Any:
    with parquet_file(path) as file, reading_parquet(path):
        table = file.read()
    if table.num_rows == 0 or table.num_columns == 0:
        raise InputError(f"{path} has no rows.")
    return table


def _parquet_columns(path: Path) -> dict[str, NDArray[Any]]:
    table = _parquet_table(path)
    return {
        name: arrow_column(path, name, column) for name, column in zip(table.column_names, table.columns, strict=True)
    }


def is_text(path: Path, name: str, arrow_type: Any) -> bool:
    """Whether a column of an Arrow table is of texts; else it is of numbers, and any other type is an error."""
    from pyarrow import types

    kind = arrow_type.value_type if types.is_dictionary(arrow_type) else arrow_type
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return False
    if types.is_string(kind) or types.is_large_string(kind):
        return True
    raise InputError(f"{path}: column {name!r} has the type {kind}. Convert it to a number or to text first.")


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


def arrow_column(path: Path, name: str, column: Any) -> NDArray[Any]:
    """Numbers as floats, NaN where one is missing; texts as they are."""
    import pyarrow
    from pyarrow import types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if is_text(path, name, kind):
        return np.array([cell or "" for cell in arrow_texts(column.cast(kind))], dtype=object)
    # Arrow has no cast from a Boolean to a float; the first cast undoes dictionary encoding.
    number = pyarrow.int8() if types.is_boolean(kind) else kind
    return np.asarray(column.cast(kind).cast(number).cast(pyarrow.float64(), safe=False).to_numpy())
