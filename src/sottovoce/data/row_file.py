"""Files of this process alone: prepared rows, read piece by piece, and records in the order of their words.

A file of rows has pieces of a few megabytes: labels, rows and which of them are no null rows, as a `Block` has them.
Records that are more than fit in memory are sorted runs, merged whenever they are read.

Guarantee: what bounds a release is that prepared rows are bounded. A file has no name: it is this process's alone,
and gone with it, also if it is killed. What is in memory of it does not grow with the number of records.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sottovoce.data.block import Block
from sottovoce.data.matrix import Matrix, is_sparse
from sottovoce.data.resources import open_scratch
from sottovoce.errors import InputError, LeakError, RefusedError

Integers = NDArray[np.int64]

RingArray = NDArray[np.bytes_]  # WORD bytes each
Records = NDArray[np.void]

WORD: Final = 16  # bytes
WORD_KIND: Final = f"S{WORD}"
_KIND: Final = np.dtype([("word", WORD_KIND), ("place", "<i8")])
_HELD: Final = 2**18  # records in memory while runs are merged
_LEAST: Final = 64  # records of a run that are read at a time

AHEAD: Final = 2  # pieces that are read while one is summed
_EDGE, _PAGE = 64, 4096  # bytes to which sections and pieces are padded


@dataclass(frozen=True)
class _Piece:
    """Where a piece is, how many rows it has and, of sparse ones, how many entries."""

    offset: int
    rows: int
    entries: int = -1


@dataclass(frozen=True)
class _Form:
    """What all pieces of a file have in common."""

    dimension: int
    kind: str  # of an entry
    label: Any = "<f8"
    shared: bool = False  # whether rows have shares
    beside: tuple[tuple[str, str], ...] = ()  # what stands beside labels: name and kind

    def sections(self, piece: _Piece) -> dict[str, tuple[Any, int, int]]:
        """(type, count, offset in the piece) of each array."""
        count = piece.rows * self.dimension if piece.entries < 0 else piece.entries
        parts: list[tuple[str, Any, int]]
        parts = [("labels", self.label, piece.rows), ("data", self.kind, count), ("usable", "|b1", piece.rows)]
        parts += [("shares", "<f8", piece.rows)] if self.shared else []
        parts += [(f"beside {name}", kind, piece.rows) for name, kind in self.beside]
        if piece.entries >= 0:
            parts += [("indptr", "<i4", piece.rows + 1), ("indices", "<i4", piece.entries)]
        found, offset = dict[str, tuple[Any, int, int]](), 0
        for name, kind, length in parts:
            found[name] = (kind, length, offset)
            offset = _up(offset + length * np.dtype(kind).itemsize, _EDGE)
        return found

    def size(self, piece: _Piece) -> int:
        sections = self.sections(piece).values()
        return max(_up(offset + count * np.dtype(kind).itemsize, _EDGE) for kind, count, offset in sections)

    def block(self, piece: _Piece, raw: NDArray[np.uint8], about: Block) -> Block:
        """The block of a piece that was read, of arrays in the buffer."""
        found = {
            name: raw[offset : offset + count * np.dtype(kind).itemsize].view(kind)
            for name, (kind, count, offset) in self.sections(piece).items()
        }
        shape = (piece.rows, self.dimension)
        rows: Matrix = found["data"].reshape(shape) if piece.entries < 0 else _csr(found, shape)
        beside = {name: found[f"beside {name}"] for name, _ in self.beside}
        return about.with_rows(rows, found["labels"], found["usable"], beside=beside, shares=found.get("shares"))


def _csr(found: dict[str, NDArray[Any]], shape: tuple[int, int]) -> Matrix:
    return sp.csr_matrix((found["data"], found["indices"], found["indptr"]), shape=shape, copy=False)


def _up(size: int, edge: int) -> int:
    return -(-size // edge) * edge


class Read:
    """A buffer with a piece, and the bytes of it until somebody takes them; all arrays of it hold these."""

    def __init__(self, buffer: mmap.mmap, raw: NDArray[np.uint8]) -> None:
        self.buffer, self._raw = buffer, [raw]

    def taken(self) -> NDArray[np.uint8]:
        """The bytes, which then are the caller's alone."""
        return self._raw.pop()


class RowFile:
    """A file of blocks, in a folder; its pieces are read one by one."""

    def __init__(self, folder: Path, blocks: Iterator[Block]) -> None:
        self.handle, self.folder = open_scratch(folder), folder
        weakref.finalize(self, os.close, self.handle)
        self.form, self.pieces = _Form(0, "<f4"), list[_Piece]()
        self._free: list[mmap.mmap] = []
        offset = 0
        for block in blocks:
            offset += self._write(block, offset)
        self._most = max(map(self.form.size, self.pieces), default=0)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.handle, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def _write(self, block: Block, offset: int) -> int:
        """A block as the next piece; the bytes that it takes."""
        rows = block.rows
        if is_sparse(rows) and rows.format != "csr":
            raise InputError("sparse rows in files serve solvers that take rows; give arrays that fit in memory.")
        values = rows.data if is_sparse(rows) else rows
        if not self.pieces:
            kind = values.dtype.newbyteorder("<").str if values.dtype.kind == "f" else "<f8"
            beside = tuple((name, column.dtype.str) for name, column in block.beside.items())
            self.form = _Form(int(rows.shape[1]), kind, block.labels.dtype, block.shares is not None, beside)
        piece = _Piece(offset, len(block), int(rows.nnz) if is_sparse(rows) else -1)
        arrays: dict[str, Any] = {"labels": block.labels, "data": values, "usable": block.usable_rows}
        arrays |= {"shares": block.shares, **{f"beside {name}": column for name, column in block.beside.items()}}
        if is_sparse(rows):
            arrays |= {"indptr": rows.indptr, "indices": rows.indices}
        raw = np.zeros(self.form.size(piece), np.uint8)
        for name, (kind, count, start) in self.form.sections(piece).items():
            raw[start : start + count * np.dtype(kind).itemsize] = (
                np.ascontiguousarray(arrays[name], dtype=kind).reshape(-1).view(np.uint8)
            )
        write(self.handle, raw, offset)
        self.pieces.append(piece)
        return _up(len(raw), _PAGE)

    def read(self, piece: _Piece) -> Read:
        """A piece in a buffer that nobody else has."""
        buffer = self._free.pop() if self._free else _buffer(max(self._most, 1))
        size = self.form.size(piece)
        with memoryview(buffer) as whole, whole[:size] as part:
            self._fill(part, piece.offset)
        return Read(buffer, np.frombuffer(buffer, np.uint8))

    def give_back(self, read: Read, held: Callable[[], Any]) -> None:
        """Use a buffer again, unless somebody still has arrays of it."""
        if held() is None and len(self._free) <= AHEAD:
            self._free.append(read.buffer)

    def few(self, piece: _Piece, chosen: Integers, about: Block) -> Block:
        sections = self.form.sections(piece)
        labels = self._section(piece, "labels")[chosen]
        if piece.entries < 0:
            kind, _, offset = sections["data"]
            width = self.form.dimension * np.dtype(kind).itemsize
            raw = self._ranges(piece.offset + offset, chosen * width, (chosen + 1) * width)
            rows: Matrix = raw.view(kind).reshape(len(chosen), self.form.dimension)
        else:
            starts = self._section(piece, "indptr").astype(np.int64)
            first, last = starts[chosen], starts[chosen + 1]
            found = {"indptr": np.concatenate([[0], np.cumsum(last - first)]).astype(np.int32)}
            for name in ("data", "indices"):
                kind, _, offset = sections[name]
                width = np.dtype(kind).itemsize
                found[name] = self._ranges(piece.offset + offset, first * width, last * width).view(kind)
            rows = _csr(found, (len(chosen), self.form.dimension))
        return about.with_rows(rows, labels)

    def _section(self, piece: _Piece, name: str) -> NDArray[Any]:
        kind, count, offset = self.form.sections(piece)[name]
        found = np.empty(count, dtype=kind)
        self._fill(_bytes(found), piece.offset + offset)
        return found

    def _ranges(self, offset: int, starts: Integers, stops: Integers) -> NDArray[np.uint8]:
        """The bytes of several ranges, one after the other; those that touch are read at once."""
        found = np.empty(int((stops - starts).sum()), np.uint8)
        view, done = _bytes(found), 0
        firsts = np.flatnonzero(np.concatenate([[True], starts[1:] != stops[:-1]])).tolist()
        for first, last in zip(firsts, [*firsts[1:], len(starts)], strict=True):
            size = int(stops[last - 1] - starts[first])
            self._fill(view[done : done + size], offset + int(starts[first]))
            done += size
        return found

    def _fill(self, part: memoryview, offset: int) -> None:
        while len(part):
            if hasattr(os, "preadv"):
                count = os.preadv(self.handle, [part], offset)
            else:  # a system that copies the bytes
                found = os.pread(self.handle, len(part), offset)
                count = len(found)
                part[:count] = found
            if count == 0:
                raise LeakError("a file of prepared rows is shorter than it was; nothing was released.")
            part, offset = part[count:], offset + count

    def expect(self, piece: _Piece) -> None:
        """Tell the system that a piece is read soon."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.handle, piece.offset, self.form.size(piece), os.POSIX_FADV_WILLNEED)


def _buffer(size: int) -> mmap.mmap:
    """Memory of this process, in large pages where the system has them."""
    made = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            made.madvise(mmap.MADV_HUGEPAGE)
    return made


def _bytes(array: NDArray[Any]) -> memoryview:
    found: Any = array.reshape(-1).view(np.uint8)
    return memoryview(found)


def write(handle: int, array: NDArray[Any], offset: int) -> None:
    """All bytes of an array, from the offset on."""
    part = _bytes(np.ascontiguousarray(array))
    while len(part):
        count = os.pwrite(handle, part, offset)
        part, offset = part[count:], offset + count


class SortedFile:
    """Words, each with a place, added in pieces that have no word twice, read in the order of all words."""

    def __init__(self, folder: Path) -> None:
        try:
            self._handle = open_scratch(folder)
        except InputError as error:
            raise _no_room(error) from None
        self._runs: list[tuple[int, int]] = []  # the first record of each, and that after its last
        self.close = weakref.finalize(self, os.close, self._handle)

    def __len__(self) -> int:
        return self._runs[-1][1] if self._runs else 0

    def add(self, words: RingArray, places: NDArray[np.int64] | int) -> None:
        """A piece; equal words of several pieces are read in the order in which they were added."""
        order = np.argsort(words, kind="stable")
        run = np.empty(len(words), dtype=_KIND)
        run["word"], run["place"] = words[order], places if isinstance(places, int) else places[order]
        first = len(self)
        try:
            write(self._handle, run, first * _KIND.itemsize)
        except OSError as error:
            raise _no_room(error) from None
        self._runs.append((first, first + len(run)))

    def __iter__(self) -> Iterator[Records]:
        """All records, sorted, a part at a time; equal words are in the same part."""
        count = max(_LEAST, _HELD // max(1, len(self._runs)))
        runs = [self._parts(first, end, count) for first, end in self._runs]
        held = [(part, rest) for rest in runs if (part := next(rest, None)) is not None]
        while held:
            last = min(part["word"][-1] for part, _ in held)  # all records up to it are here
            ready, left = list[Records](), list[tuple[Records, Iterator[Records]]]()
            for part, rest in held:
                end = int(np.searchsorted(part["word"], last, side="right"))
                ready.append(part[:end])
                more = part[end:] if end < len(part) else next(rest, None)
                if more is not None:
                    left.append((more, rest))
            held, together = left, np.concatenate(ready)
            yield together[np.argsort(together["word"], kind="stable")]

    def shared(self, lists: int) -> Iterator[Records]:
        """Of every word that was added so often, and at most so often, the record that was added first."""
        for part in self:
            firsts = part[: max(0, len(part) - lists + 1)]
            yield firsts[firsts["word"] == part["word"][lists - 1 :]]

    def words(self, lists: int = 1) -> Iterator[RingArray]:
        """The words that were added so often."""
        return (part["word"] for part in self.shared(lists))

    def _parts(self, first: int, end: int, count: int) -> Iterator[Records]:
        for at in range(first, end, count):
            size = _KIND.itemsize * min(count, end - at)
            data = os.pread(self._handle, size, at * _KIND.itemsize)
            if len(data) != size:
                raise RefusedError("the file of an alignment is shorter than it was; start the alignment again.")
            yield np.frombuffer(data, dtype=_KIND)


def cut_pieces(parts: Iterable[NDArray[Any]], size: int) -> Iterator[NDArray[Any]]:
    """The same in arrays of that size, the last one shorter."""
    left: NDArray[Any] | None = None
    for part in parts:
        left = part if left is None else np.concatenate([left, part])
        while len(left) >= size:
            yield left[:size]
            left = left[size:]
    if left is not None and len(left):
        yield left


def _no_room(error: Exception) -> RefusedError:
    why = error.strerror if isinstance(error, OSError) else "no file can be made"
    return RefusedError(f"there is no room on the disk for an alignment ({why}); make room, and start it again.")
