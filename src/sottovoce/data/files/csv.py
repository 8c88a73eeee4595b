"""CSV: a header line, then a record on each line.

Cells in double quotes may hold commas and no line ends: a parser that lets them would let the open quote of one record
swallow the records after it. So a quote that is never closed spoils its own line alone. An empty line among the records
is one of missing cells; before the header and at the end of a file of several columns it is none.

Cells are between commas, semicolons or tabs: whichever the header has most of. Between semicolons a number may have a
decimal comma or a point, each by itself: 7,4 and 7.4 are one number.
"""

from __future__ import annotations

import codecs
import csv
import itertools
import math
import operator
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.cells import is_missing
from sottovoce.data.files import format as formats
from sottovoce.data.files.format import FilePart, FileShape, Labels, TableFormat, cut_parts
from sottovoce.data.matrix import Matrix
from sottovoce.errors import InputError
from sottovoce.files import LONGEST_LINE, MOST_COLUMNS

SEPARATORS: Final = (",", ";", "\t")
_QUOTED: Final = re.compile('"[^"]*"')
_DECIMAL: Final = re.compile(r"(\s*[+-]?[0-9]*),([0-9]+(?:[eE][+-]?[0-9]+)?\s*)")
# A line of numbers as the compiled loop reads it; a comma is none of its signs where it is in no number.
_PLAIN: Final = {";": bytes.maketrans(b";,", b",."), "\t": bytes.maketrans(b"\t,", b",;")}


class Csv(TableFormat):
    """A record is a line of cells between commas, semicolons or tabs."""

    suffixes: ClassVar[tuple[str, ...]] = (".csv", ".tsv")
    compressible: ClassVar[bool] = True

    @classmethod
    def shape(cls, path: Path, records: int | None = None) -> FileShape:
        start = before = 0
        separator = ","
        with formats.open_data(path) as stream:
            while line := stream.readline(LONGEST_LINE + 1):
                names = line if before else line.removeprefix(codecs.BOM_UTF8)
                start, before, separator = start + len(line), before + 1, _separator_of(names)
                if (cells := None if len(line) > LONGEST_LINE else split_cells(names, separator)) != []:
                    break
            header = header_names(cells if line else [], path)
            if records is not None:
                part = FilePart(records, start, before=before, declared=True)
                return FileShape(header, len(header), (part,), separator=separator)
            blocks = (
                (n := formats.count_lines(text), n, None, end)
                for text, end in _record_blocks(stream, len(header), separator)
            )
            parts = cut_parts(FilePart(0, start, before=before), blocks, path)
            return FileShape(header, len(header), parts, separator=separator)

    def _texts(self, rows: int) -> Iterator[tuple[int, bytes, NDArray[np.int64]]]:
        """Some records: the number of their first line, a text, and where in it their lines begin."""
        done, step = 0, max(1, min(rows, self.most_cells // len(self.names)))
        with formats.open_data(self.path) as stream:
            stream.seek(self.part.start)
            for text, _ in _record_blocks(stream, len(self.names), self.separator):
                starts, left = formats.line_starts(text), self.records - done
                if len(starts) > left + 1 and self.part.declared:
                    done += len(starts)
                    break
                for at in range(0, min(len(starts) - 1, left), step):
                    own = starts[at : min(at + step, left) + 1]
                    yield self.part.before + done + 1, text, own
                    done += len(own) - 1
                if done == self.records and not self.part.declared:
                    break
        self.check(done)

    def written(self, rows: int) -> Iterator[tuple[Matrix, list[str] | None]]:
        self.spoilt, label = (0, ()), self.wanted.label
        places = dict(zip(self.names, itertools.count(), strict=False))
        kept, place = list(map(places.__getitem__, self.wanted.features)), None if label is None else places[label]
        for number, text, starts in self._texts(rows):
            block, whole, labels = numeric_lines(text, starts, len(self.names), kept, place, self.separator)
            self.note_spoilt(number, whole)
            yield block, None if label is None else labels

    def cells(self, names: Sequence[str], rows: int) -> Iterator[Mapping[str, Sequence[str]]]:
        self.spoilt, width, wanted = (0, ()), len(self.names), set(names)
        places = [place for place, name in enumerate(self.names) if name in wanted]
        for number, text, starts in self._texts(rows):
            columns: Sequence[Sequence[str]]
            if len(places) == 1:  # the compiled loop finds the cells of one column
                _, whole, only = numeric_lines(text, starts, width, (), places[0], self.separator)
                columns = [only]
            else:
                ends = starts.tolist()
                found, whole = rows_of(map(text.__getitem__, map(slice, ends, ends[1:])), width, self.separator)
                columns = list(zip(*found, strict=True))
                columns = [columns[place] for place in places]
            self.note_spoilt(number, whole)
            named = zip(places, columns, strict=True)
            yield {self.names[place]: _pointed(column, self.separator) for place, column in named}

    @staticmethod
    def join_cells(cells: Sequence[Sequence[str]]) -> list[str]:
        return list(itertools.chain.from_iterable(cells))

    def label_values(self, cells: Sequence[str], *, whole: bool = False) -> Labels:
        """What marks a missing cell stays a text, which may be declared as a class."""
        try:
            return np.fromiter(map(float, cells), np.float64, len(cells))
        except ValueError:
            texts = whole and read_or_none(cells) is None
            return np.fromiter((cell.strip() if texts else _label(cell) for cell in cells), object, len(cells))


def _separator_of(header: bytes) -> str:
    """The one that the header has most of, outside of quotes."""
    text = _QUOTED.sub("", header.decode("utf-8", "replace"))
    return max(SEPARATORS, key=text.count)


def _blanks(separator: str) -> bytes:
    """What a line that is empty may hold."""
    return formats.SPACES.replace(separator.encode(), b"")


def _pointed(cells: Iterable[str], separator: str) -> list[str]:
    """Cells with a point for a decimal comma, where that separates nothing."""
    if separator != ";":
        return list(cells)
    return [_DECIMAL.sub(r"\1.\2", cell) if "," in cell and _DECIMAL.fullmatch(cell) else cell for cell in cells]


def _record_blocks(stream: IO[bytes], width: int, separator: str) -> Iterator[tuple[bytes, int]]:
    """Lines that are records, some megabytes at once, and where in the file the last of them ends.

    An empty line is a record like any other: dropped, it would change how many there are. At the end of a file of
    several columns it is none.
    """
    empty = 0
    for text in formats.read_blocks(stream):
        held = len(text.rstrip(_blanks(separator))) if width > 1 else len(text)
        if not held:
            empty += formats.count_lines(text)
            continue
        while empty:
            yield b"\n" * min(empty, formats.BYTES), 0
            empty -= min(empty, formats.BYTES)
        end = text.find(b"\n", held - (width == 1)) + 1 or len(text)
        empty = formats.count_lines(text[end:])
        yield text[:end], stream.tell() - len(text) + end


def header_names(cells: list[str] | None, path: Path) -> tuple[str, ...]:
    """The names of the columns by the first line."""
    if cells is None:
        raise InputError(
            f"{path} has a first line that cannot be read, or of more than {MOST_COLUMNS} columns or {LONGEST_LINE} "
            "bytes. Is it CSV? Rows of so many columns are read from LIBSVM files."
        )
    names = tuple(map(str.strip, cells))
    if "\ufffd" in "".join(names):
        raise InputError(f"{path} is not UTF-8 text. Save it as UTF-8.")
    if not any(names):
        raise InputError(f"{path} is empty: a header line with the column names, then rows, were expected.")
    # A first line with a number in it is far more likely a record than names, and a record must not be
    # quoted as names by the errors below.
    if names[0] == "" and len(names) > 1:
        raise InputError(
            f"{path}: the first column has no name, as where pandas wrote its index: write it again with "
            "to_csv(..., index=False), or name that column in the header."
        )
    for name in names:
        if read_or_none([name]) is not None:
            raise InputError(
                f"{path} has no header line: its first line has numbers or blanks. Add a line of column names."
            )
    if len(set(names)) < len(names):
        twice = next(name for name, times in Counter(names).items() if times > 1)
        first = names.index(twice) + 1
        raise InputError(f"{path}: columns {first} and {names.index(twice, first) + 1} have the same name.")
    return names


def split_cells(line: bytes, separator: str = ",") -> list[str] | None:
    """The cells of one line, none of an empty one; None where it cannot be read.

    Bytes that are no UTF-8 become U+FFFD: they spoil the cell that they are in.
    """
    if not line.strip(_blanks(separator)):
        return []
    if line.count(separator.encode()) >= MOST_COLUMNS:
        return None
    text = line.decode("utf-8", "replace")
    if '"' not in text:
        return list(map(operator.methodcaller("lstrip", " "), text.rstrip("\r\n").split(separator)))
    try:
        return next(csv.reader([text], skipinitialspace=True, delimiter=separator))
    except csv.Error:  # a cell of more than 131,072 characters, or a line that is too long
        return None


def rows_of(texts: Iterable[bytes], width: int, separator: str = ",") -> tuple[list[list[str]], NDArray[np.bool_]]:
    """The cells of lines, and which lines are of the form; one that is not has missing cells.

    An empty line is one missing cell.
    """
    rows = [[""] if row == [] else row for row in (split_cells(text, separator) for text in texts)]
    whole = np.array([row is not None and len(row) == width for row in rows], dtype=np.bool_)
    return [row if own and row else [""] * width for row, own in zip(rows, whole, strict=True)], whole


def numeric_lines(  # noqa: PLR0913
    text: bytes, starts: NDArray[np.int64], width: int, kept: Sequence[int], label: int | None, separator: str = ","
) -> tuple[NDArray[np.float64], NDArray[np.bool_], list[str]]:
    """The numbers of the kept columns, which lines are whole, and the cells of the label.

    A line with a cell that is no number is all NaN. Lines of plain numbers are read by a compiled loop, all others cell
    by cell; both find the same numbers.
    """
    from sottovoce.data.kernels import row_loops  # slow to import, and who reads texts does without

    count, places = len(starts) - 1, np.full(width, -1)
    places[list(kept)] = np.arange(len(kept))
    block, whole = np.empty((count, len(kept))), np.empty(count, dtype=np.bool_)
    spans, at = np.zeros((count, 2), dtype=np.int64), -1 if label is None else label
    plain = text.translate(_PLAIN[separator]) if separator in _PLAIN else text
    row_loops.fill_numbers(np.frombuffer(plain, np.uint8), starts, places, block, at, spans, whole)
    others = np.flatnonzero(~whole)
    labels = list[str]()
    if label is not None:
        labels = [text[start:stop].decode("utf-8", "replace").lstrip(" ") for start, stop in spans.tolist()]
    if len(others):
        rows, usable = rows_of((text[starts[line] : starts[line + 1]] for line in others.tolist()), width, separator)
        cells, numbers = list(zip(*rows, strict=True)), np.empty((len(rows), len(kept)))
        for line, row in zip(others.tolist() if label is not None else (), rows, strict=False):
            labels[line] = row[at]
        for column, place in enumerate(kept):
            numbers[:, column], numeric = read_each_number(_pointed(cells[place], separator))
            usable &= numeric
        numbers[~usable] = np.nan
        block[others], whole[others] = numbers, usable
    return block, whole, _pointed(labels, separator)


def read_or_none(cells: Sequence[str]) -> NDArray[np.float64] | None:
    """The cells as floats, NaN where missing; None where one of them is neither a number nor missing."""
    try:
        return np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        filled = list(cells)
        for place, cell in enumerate(cells):
            if is_missing(cell):
                filled[place] = "nan"
        try:
            return np.fromiter(map(float, filled), np.float64, len(cells))
        except ValueError:
            return None


def read_each_number(cells: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The cells as floats, each read by itself, and which of them are numbers or missing; NaN where they are not."""
    values = read_or_none(cells)
    if values is not None:
        return values, np.ones(len(cells), dtype=np.bool_)
    alone = [read_or_none([cell]) for cell in cells]
    found = np.array([math.nan if value is None else value[0] for value in alone])
    return found, np.array([value is not None for value in alone])


def _label(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell.strip()
