"""A file of prepared rows: what is written in it, how a piece is read, and how one that was kept is known again.

The file has pieces of a few megabytes: labels, rows and which of them are no null rows, as a `Block` has them.

Guarantee: what bounds a release is that prepared rows are bounded. A file without a name is this process's alone. One
that was kept is checked against the digest of every piece before it is used, and written anew if one does not agree.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import mmap
import os
import stat
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sottovoce.data import progress
from sottovoce.data.block import Block
from sottovoce.data.matrix import Matrix, is_sparse
from sottovoce.errors import InputError, LeakError

Integers = NDArray[np.int64]

FORMAT: Final = 1
AHEAD: Final = 2  # pieces that are read while one is summed
_EDGE, _PAGE = 64, 4096  # bytes to which sections and pieces are padded
_END: Final = 80  # bytes that end a kept file: where its index begins, and the digest of that

_log = logging.getLogger("sottovoce.holder")


@dataclass(frozen=True)
class _Piece:
    """Where a piece is, how many rows it has and, of sparse ones, how many entries; its digest where it is kept."""

    offset: int
    rows: int
    entries: int = -1
    digest: str = ""


@dataclass(frozen=True)
class _Form:
    """What all pieces of a file have in common."""

    dimension: int
    kind: str  # of an entry

    def sections(self, piece: _Piece) -> dict[str, tuple[str, int, int]]:
        """(type, count, offset in the piece) of each array."""
        count = piece.rows * self.dimension if piece.entries < 0 else piece.entries
        parts = [("labels", "<f8", piece.rows), ("data", self.kind, count), ("usable", "|b1", piece.rows)]
        if piece.entries >= 0:
            parts += [("indptr", "<i4", piece.rows + 1), ("indices", "<i4", piece.entries)]
        found, offset = dict[str, tuple[str, int, int]](), 0
        for name, kind, length in parts:
            found[name] = (kind, length, offset)
            offset = _up(offset + length * np.dtype(kind).itemsize, _EDGE)
        return found

    def size(self, piece: _Piece) -> int:
        """Bytes of a piece."""
        return max(
            _up(offset + count * np.dtype(kind).itemsize, _EDGE)
            for kind, count, offset in self.sections(piece).values()
        )

    def block(self, piece: _Piece, raw: NDArray[np.uint8], about: Block) -> Block:
        """The block of a piece that was read, of arrays in the buffer."""
        found = {
            name: raw[offset : offset + count * np.dtype(kind).itemsize].view(kind)
            for name, (kind, count, offset) in self.sections(piece).items()
        }
        shape = (piece.rows, self.dimension)
        rows: Matrix = found["data"].reshape(shape) if piece.entries < 0 else _csr(found, shape)
        told: dict[str, Any] = {"layout": about.layout, "usable": found["usable"], "records": about.records}
        return Block(rows, found["labels"], about.bits, **told)


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


def _state(handle: int) -> tuple[int, ...]:
    """Size and times of an open file; names that it gets or loses do not count."""
    found = os.fstat(handle)
    return found.st_size, found.st_mtime_ns


class RowFile:
    """An open file of prepared rows, of which pieces are read."""

    def __init__(self, handle: int, folder: Path, form: _Form, pieces: Sequence[_Piece]) -> None:
        self.handle, self.folder, self.form, self.pieces = handle, folder, form, tuple(pieces)
        self._free: list[mmap.mmap] = []
        self._state = _state(handle)
        self._most = max(map(form.size, pieces), default=0)
        weakref.finalize(self, os.close, handle)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def read(self, piece: _Piece) -> Read:
        """A piece in a buffer that nobody else has."""
        buffer = self._free.pop() if self._free else _buffer(max(self._most, 1))
        size = self.form.size(piece)
        with memoryview(buffer) as whole, whole[:size] as part:
            self._fill(part, piece.offset)
        return Read(buffer, np.frombuffer(buffer, np.uint8))

    def check_unchanged(self) -> None:
        """Refuse what was read of a file that somebody wrote to: a kept one has a name."""
        if _state(self.handle) != self._state:
            raise LeakError("a file of prepared rows was written to while it was used; nothing was released.")

    def give_back(self, read: Read, held: Callable[[], Any]) -> None:
        """Use a buffer again, unless somebody still has arrays of it."""
        if held() is None and len(self._free) <= AHEAD:
            self._free.append(read.buffer)

    def few(self, piece: _Piece, chosen: Integers, about: Block) -> Block:
        """A block of the chosen rows alone."""
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
        return Block(rows, labels, about.bits, layout=about.layout, records=about.records)

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
            count = _read(self.handle, part, offset)
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


def _read(handle: int, part: memoryview, offset: int) -> int:
    """Read into a buffer: how many bytes; a system without preadv copies them."""
    if hasattr(os, "preadv"):
        return os.preadv(handle, [part], offset)
    found = os.pread(handle, len(part), offset)
    part[: len(found)] = found
    return len(found)


def _bytes(array: NDArray[Any]) -> memoryview:
    found: Any = array.reshape(-1).view(np.uint8)
    return memoryview(found)


def write(handle: int, array: NDArray[Any], offset: int) -> None:
    """All bytes of an array, from the offset on."""
    part = _bytes(np.ascontiguousarray(array))
    while len(part):
        count = os.pwrite(handle, part, offset)
        part, offset = part[count:], offset + count


def written(handle: int, blocks: Iterator[Block], *, digests: bool) -> tuple[_Form, list[_Piece], int]:
    """Write one piece after the other."""
    form, pieces, offset = _Form(0, "<f4"), list[_Piece](), 0
    for block in blocks:
        rows = block.rows
        if is_sparse(rows) and rows.format != "csr":
            raise InputError("sparse rows in files serve solvers that take rows; give arrays that fit in memory.")
        values = rows.data if is_sparse(rows) else rows
        if not pieces:
            kind = values.dtype.newbyteorder("<").str if values.dtype.kind == "f" else "<f8"
            form = _Form(int(rows.shape[1]), kind)
        piece = _Piece(offset, len(block), int(rows.nnz) if is_sparse(rows) else -1)
        arrays: dict[str, Any] = {"labels": block.labels, "data": values, "usable": block.usable_rows}
        if is_sparse(rows):
            arrays |= {"indptr": rows.indptr, "indices": rows.indices}
        raw = np.zeros(form.size(piece), np.uint8)
        for name, (kind, count, start) in form.sections(piece).items():
            raw[start : start + count * np.dtype(kind).itemsize] = (
                np.ascontiguousarray(arrays[name], dtype=kind).reshape(-1).view(np.uint8)
            )
        write(handle, raw, offset)
        digest = hashlib.sha256(_bytes(raw)).hexdigest() if digests else ""
        pieces.append(_Piece(piece.offset, piece.rows, piece.entries, digest))
        offset += _up(len(raw), _PAGE)
    return form, pieces, offset


def finish(handle: int, form: _Form, pieces: Sequence[_Piece], end: int, mark: str) -> None:
    """The index of a file that is kept: what it is of, and the pieces with their digests."""
    index = {"format": FORMAT, "mark": mark, "form": asdict(form), "pieces": [list(asdict(p).values()) for p in pieces]}
    text = json.dumps(index).encode()
    last = f"{end:016x}".encode() + hashlib.sha256(text).hexdigest().encode()
    write(handle, np.frombuffer(text + last, np.uint8), end)


def kept(path: Path, mark: str) -> RowFile | None:
    """A file that was kept, if it is of these rows, this user's alone, and every piece is as it was written."""
    try:
        # Not even a pipe that somebody put there is waited for.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        return None
    except OSError:
        handle = -1
    try:
        if handle >= 0 and (file := _checked(os.dup(handle), path.parent, mark)) is not None:
            return file
    finally:
        if handle >= 0:
            os.close(handle)
    _log.warning("%s is damaged, or not this user's alone, and is not used; the rows are prepared anew", path)
    return None


def _checked(handle: int, folder: Path, mark: str) -> RowFile | None:
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode) or about.st_mode & 0o077 or about.st_uid != os.geteuid():
        os.close(handle)
        return None
    try:
        last = os.pread(handle, _END, about.st_size - _END)
        start = int(last[:16], 16)
        text = os.pread(handle, about.st_size - _END - start, start)
        if hashlib.sha256(text).hexdigest().encode() != last[16:]:
            raise ValueError
        index = json.loads(text)
        if index["format"] != FORMAT or index["mark"] != mark:
            raise ValueError
        file = RowFile(handle, folder, _Form(**index["form"]), [_Piece(*piece) for piece in index["pieces"]])
    except (OSError, ValueError, KeyError, TypeError):
        os.close(handle)
        return None
    return file if _is_whole(file) else None


def _is_whole(file: RowFile) -> bool:
    """Whether every piece has its digest."""
    done, total = 0, sum(piece.rows for piece in file.pieces)
    progress.say(progress.CHECKING, done, total)
    for piece in file.pieces:
        try:
            read = file.read(piece)
        except (OSError, LeakError):
            return False
        raw = read.taken()
        held, found = weakref.ref(raw), hashlib.sha256(_bytes(raw[: file.form.size(piece)])).hexdigest()
        del raw
        file.give_back(read, held)
        if found != piece.digest:
            return False
        done += piece.rows
        progress.say(progress.CHECKING, done, total)
    return True
