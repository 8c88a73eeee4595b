"""Prepared rows of a data set: in memory where they fit, else in a file that is read in every pass.

The file has pieces of a few megabytes: labels, rows and which of them are no null rows, as a `Block` has them. A pass
reads one piece after the other into a few buffers, the next ones while a piece is summed, so memory is bounded whatever
the number of rows. Sums over pieces are exact, and so are those of all rows, bit for bit.

Guarantee: what bounds a release is that prepared rows are bounded. A file without a name is this process's alone. One
that was kept is checked against the digest of every piece before it is used, and written anew if one does not agree.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import mmap
import os
import stat
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sottovoce.data import progress, room
from sottovoce.data.block import Block, tell_null_rows
from sottovoce.data.dataset import Dataset
from sottovoce.data.matrix import Matrix, is_sparse
from sottovoce.data.parts import VIEWS, Array, Found, Integers, Part, Parts, View, Work, empty
from sottovoce.data.preparation import Preparation
from sottovoce.data.projection import Projected
from sottovoce.errors import InputError, LeakError

FORMAT: Final = 1
PIECE = 1 << 22  # bytes of a piece, about
AHEAD: Final = 2  # pieces that are read while one is summed
FEW: Final = 32  # of so many rows of a piece one is chosen, or fewer: they are read alone
_EDGE, _PAGE = 64, 4096  # bytes to which sections and pieces are padded
_END: Final = 80  # bytes that end a kept file: where its index begins, and the digest of that

_log = logging.getLogger("sottovoce.holder")


class PartsInMemory(Parts):
    """Blocks of this process."""

    def __init__(self, about: Block, blocks: Sequence[Block]) -> None:
        super().__init__(about, list(map(len, blocks)))
        self._parts = [Part(block) for block in blocks]

    def each(self, work: Work[Found], chosen: Sequence[Integers] | None = None) -> Iterator[Found]:
        """One after the other; each of them has threads of its own."""
        for place, part in enumerate(self._parts):
            yield work(part if chosen is None else Part(part.block.take(chosen[place])))


def in_memory_or_file(data: Dataset, recipe: Preparation, beside: Path | None) -> Parts:
    """The rows of a data set by the recipe; by public sizes alone in memory, or in a file."""
    about = empty(recipe, data.shape[0])
    if not (data.keep or data.in_file) and room.fits(prepared_size(data, recipe)):
        return PartsInMemory(about, list(_blocks(data, recipe, PIECE)))
    return PartsInFile(about, _file(data, recipe, room.place_for(data.folder, beside)))


def prepared_size(data: Dataset, recipe: Preparation) -> int:
    """Bytes of the prepared rows, with labels and marks of null rows; of sparse ones at most."""
    records, width = data.shape[0], recipe.arrangement.kind(recipe.bits if recipe.exact else None)(0).nbytes
    sparse = sum(source.entries or 0 for source in data.sources)
    dense = sum(source.records for source in data.sources if source.entries is None)
    wide = 8 if recipe.layout == "raw" else width
    return dense * recipe.dimension * wide + 12 * sparse + (records - dense) * (4 + 12) + 9 * records


def _blocks(data: Dataset, recipe: Preparation, size: int) -> Iterator[Block]:
    """Prepared blocks of about so many bytes. The holder is told once how many rows are null rows."""
    held, done, null, records = list[Block](), 0, 0, data.shape[0]
    progress.say(progress.PREPARING, 0, records)
    for rows, labels in data.pieces():
        known = np.zeros(rows.shape[0]) if labels is None else labels
        block = Block.prepare(rows, known, recipe, records=records)
        del rows, labels, known  # nobody has them while the next are read
        held, done, null = [*held, block], done + len(block), null + int(block.null_rows.sum())
        del block
        if sum(_size(each) for each in held) >= size * 3 // 4:
            made = _joined(held)
            held = []
            yield made
            del made
        progress.say(progress.PREPARING, done, records)
    if held:
        yield _joined(held)
    if done != records:
        raise InputError(f"the data set had {records} records when it was counted, and has {done} now; make it anew.")
    tell_null_rows(null, records)


def _size(block: Block) -> int:
    return int(block.rows.data.nbytes) + 13 * len(block)


def _joined(blocks: Sequence[Block]) -> Block:
    """One block of several."""
    if len(blocks) == 1:
        return blocks[0]
    parts: Any = [block.rows for block in blocks]
    rows = sp.vstack(parts, format="csr") if any(map(is_sparse, parts)) else np.concatenate(parts)
    first, labels = blocks[0], np.concatenate([block.labels for block in blocks])
    usable = np.concatenate([block.usable_rows for block in blocks])
    return Block(rows, labels, first.bits, layout=first.layout, usable=usable, records=first.records)


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


class _Read:
    """A buffer with a piece, and the bytes of it until somebody takes them; all arrays of it hold these."""

    def __init__(self, buffer: mmap.mmap, raw: NDArray[np.uint8]) -> None:
        self.buffer, self._raw = buffer, [raw]

    def taken(self) -> NDArray[np.uint8]:
        """The bytes, which then are the caller's alone."""
        return self._raw.pop()


class RowFile:
    """An open file of prepared rows, of which pieces are read."""

    def __init__(self, handle: int, folder: Path, form: _Form, pieces: Sequence[_Piece]) -> None:
        self.handle, self.folder, self.form, self.pieces = handle, folder, form, tuple(pieces)
        self._free: list[mmap.mmap] = []
        self._most = max(map(form.size, pieces), default=0)
        weakref.finalize(self, os.close, handle)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def read(self, piece: _Piece) -> _Read:
        """A piece in a buffer that nobody else has."""
        buffer = self._free.pop() if self._free else _buffer(max(self._most, 1))
        size = self.form.size(piece)
        with memoryview(buffer) as whole, whole[:size] as part:
            self._fill(part, piece.offset)
        return _Read(buffer, np.frombuffer(buffer, np.uint8))

    def give_back(self, read: _Read, held: Callable[[], Any]) -> None:
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


class PartOfFile(Part):
    """A piece that was read; of its views what takes long to find is kept elsewhere."""

    def __init__(self, block: Block, place: int, views: Views) -> None:
        super().__init__(block)
        self._place, self._kept = place, views

    def seen(self, view: View) -> Projected:
        """Its rows in a view."""
        return self._kept.seen(self._place, self.block, view)


class Views:
    """What was found of the rows of every piece in the views of a stage, in memory where that fits, else in a file."""

    def __init__(self, about: Block, sizes: Sequence[int], folder: Path) -> None:
        self._about, self._starts, self._folder = about, np.cumsum([0, *sizes]).tolist(), folder
        self._found: dict[str, tuple[Projected, _Numbers]] = {}

    def seen(self, place: int, block: Block, view: View) -> Projected:
        """Rows of a piece in a view, found when it is first asked for, and cut if that is said."""
        if view.name not in self._found:
            form = self._about.projected(view.matrix, made=view.made)
            self._found[view.name] = (form, _Numbers(self._starts, form.width, self._folder))
            for name in list(self._found)[:-VIEWS]:
                del self._found[name]
        form, numbers = self._found[view.name]
        found = form.of(block, numbers.get(place))
        if not numbers.known[place]:
            numbers.put(place, found.found)
        if view.length:
            found.cut(view.length)
        return found


class _Numbers:
    """Some numbers for every row, by pieces. Where there is no room for them nothing is kept: a run goes on."""

    def __init__(self, starts: Sequence[int], width: int, folder: Path) -> None:
        self.known = [False] * (len(starts) - 1)
        self._starts, self._width, self._folder, size = starts, width, folder, 8 * width * starts[-1]
        self._full = False
        self._held: list[Array] | None = [np.zeros(0)] * len(self.known) if room.fits(size) else None
        self._handle = -1
        if self._held is None:
            try:
                room.check_free(folder, size)
                self._handle = room.Scratch(folder).handle
                weakref.finalize(self, os.close, self._handle)
            except InputError:
                self._without_room()

    def _without_room(self) -> None:
        """What was found so far stays, and the rest is found anew in every pass: the run may be charged already."""
        self._full = True
        _log.warning("%s has no room for what is known of rows; it is found anew in every pass", self._folder)

    def put(self, place: int, numbers: Array) -> None:
        if self._full:
            return
        if self._held is not None:
            self._held[place] = numbers.copy()
        else:
            try:
                _write(self._handle, numbers, 8 * self._width * self._starts[place])
            except OSError:
                self._without_room()
                return
        self.known[place] = True

    def get(self, place: int) -> Array | None:
        if not self.known[place]:
            return None
        if self._held is not None:
            return self._held[place]
        count = self._width * (self._starts[place + 1] - self._starts[place])
        found = np.frombuffer(os.pread(self._handle, 8 * count, 8 * self._width * self._starts[place]), np.float64)
        if found.size != count:
            raise LeakError("a file of what is known of rows is shorter than it was; nothing was released.")
        return found


class PartsInFile(Parts):
    """Pieces of a file, each read when it is summed."""

    def __init__(self, about: Block, file: RowFile) -> None:
        sizes = [piece.rows for piece in file.pieces]
        super().__init__(about, sizes)
        self._file, self._views = file, Views(about, sizes, file.folder)

    def each(self, work: Work[Found], chosen: Sequence[Integers] | None = None) -> Iterator[Found]:
        """One after the other, the next ones read ahead by a thread of their own."""
        done, total = 0, len(self)
        for place, found in self._pass(work, chosen):
            done += self._sizes[place]
            progress.say(progress.READING, done, total)
            yield found

    @functools.cached_property
    def labels(self) -> Array:
        """Those of all rows, apart from the buffers."""
        return np.concatenate(list(self.each(lambda part: part.block.labels.copy())))

    @functools.cached_property
    def usable_rows(self) -> NDArray[np.bool_]:
        """Which rows are no null rows, likewise."""
        return np.concatenate(list(self.each(lambda part: part.block.usable_rows.copy())))

    def _pass(self, work: Work[Found], chosen: Sequence[Integers] | None) -> Iterator[tuple[int, Found]]:
        waiting: deque[tuple[int, Future[_Read | Block] | None]] = deque()
        rest = iter(range(len(self._sizes)))

        def submit() -> None:
            for place in rest:
                waiting.append((place, self._asked(place, None if chosen is None else chosen[place])))
                return

        for _ in range(AHEAD + 1):
            submit()
        try:
            while waiting:
                place, future = waiting.popleft()
                read = self._about if future is None else future.result()
                found = self._worked(work, place, None if chosen is None else chosen[place], read)
                submit()
                yield place, found
                del found
        finally:
            for _, future in waiting:
                if future is not None and not future.cancel():
                    self._dropped(future)

    def _asked(self, place: int, chosen: Integers | None) -> Future[_Read | Block] | None:
        """A piece, or the chosen rows of it where they are few; None where there are none."""
        piece = self._file.pieces[place]
        if chosen is not None and not len(chosen):
            return None
        if chosen is not None and FEW * len(chosen) <= piece.rows:
            return _reader(os.getpid()).submit(self._file.few, piece, chosen, self._about)
        self._file.expect(piece)
        return _reader(os.getpid()).submit(self._file.read, piece)

    def _worked(self, work: Work[Found], place: int, chosen: Integers | None, read: _Read | Block) -> Found:
        """What the work makes of a piece; its buffer is then given back, unless that has arrays of it."""
        if isinstance(read, Block):
            return work(Part(read))
        raw = read.taken()
        held = weakref.ref(raw)
        part: Part | None = None
        try:
            block = self._file.form.block(self._file.pieces[place], raw, self._about)
            del raw
            part = PartOfFile(block, place, self._views) if chosen is None else Part(block.take(chosen))
            del block
            return work(part)
        finally:
            part = None
            self._file.give_back(read, held)

    def _dropped(self, future: Future[_Read | Block]) -> None:
        """Of a pass that is left in the middle."""
        with contextlib.suppress(Exception):
            read = future.result()
            if isinstance(read, _Read):
                self._file.give_back(read, weakref.ref(read.taken()))


@functools.lru_cache(maxsize=1)
def _reader(process: int) -> ThreadPoolExecutor:  # noqa: ARG001
    """The thread that reads ahead; a fork has its own."""
    return ThreadPoolExecutor(1, thread_name_prefix="sottovoce-read-ahead")


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


def _write(handle: int, array: NDArray[Any], offset: int) -> None:
    part = _bytes(np.ascontiguousarray(array))
    while len(part):
        count = os.pwrite(handle, part, offset)
        part, offset = part[count:], offset + count


def _file(data: Dataset, recipe: Preparation, folder: Path) -> RowFile:
    """One that was kept, if it is whole, else a new one."""
    if not hasattr(os, "pread"):
        raise InputError("rows that do not fit in memory need pread, which this system lacks; give arrays that fit.")
    path, mark = folder / "none", ""
    if data.keep:
        mark = _mark(data, recipe)
        path = folder / f"sottovoce-{mark[:32]}.rows"
        kept = _kept(path, mark)
        if kept is not None and sum(piece.rows for piece in kept.pieces) == data.shape[0]:
            return kept
    needed = prepared_size(data, recipe)
    room.check_free(folder, needed + needed // 50 + VIEWS * 8 * data.shape[0])
    scratch = room.Scratch(folder, to_keep=data.keep)
    try:
        form, pieces, end = _written(scratch.handle, _blocks(data, recipe, PIECE), digests=data.keep)
        if data.keep:
            _finish(scratch.handle, form, pieces, end, mark)
            scratch.keep(path)
        return RowFile(os.dup(scratch.handle), folder, form, pieces)
    except OSError as error:
        raise room.full(folder, error) from None
    finally:
        scratch.close()


def _written(handle: int, blocks: Iterator[Block], *, digests: bool) -> tuple[_Form, list[_Piece], int]:
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
        _write(handle, raw, offset)
        digest = hashlib.sha256(_bytes(raw)).hexdigest() if digests else ""
        pieces.append(_Piece(piece.offset, piece.rows, piece.entries, digest))
        offset += _up(len(raw), _PAGE)
    return form, pieces, offset


def _finish(handle: int, form: _Form, pieces: Sequence[_Piece], end: int, mark: str) -> None:
    """The index of a file that is kept: what it is of, and the pieces with their digests."""
    index = {"format": FORMAT, "mark": mark, "form": asdict(form), "pieces": [list(asdict(p).values()) for p in pieces]}
    text = json.dumps(index).encode()
    last = f"{end:016x}".encode() + hashlib.sha256(text).hexdigest().encode()
    _write(handle, np.frombuffer(text + last, np.uint8), end)


def _mark(data: Dataset, recipe: Preparation) -> str:
    """Of the files as they are now, of what is read of them and of the recipe: a digest."""
    schema = None if data.schema is None else data.schema.table()
    facts = [FORMAT, [source.mark() for source in data.sources], data.feature_names, schema, repr(recipe)]
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()


def _kept(path: Path, mark: str) -> RowFile | None:
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
