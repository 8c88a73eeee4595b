"""Prepared rows in several parts, such as pieces of a file or partitions at the workers of a cluster.

Every sum of a private run is exact in any order (`matrix`), so the sum over all rows is that of the parts' sums, bit
for bit. A part is a `Block`; work comes to the parts, and what is small comes back. Where the parts are is one method,
`each`; all that `BlockRows` answer follows from that.

Rows of a data set are in memory where they fit, else in a file that is read in every pass: one piece after the other
into a few buffers, the next ones while a piece is summed, so memory is bounded whatever the number of rows.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import secrets
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from sottovoce.data import resources as room
from sottovoce.data.beside import columns_beside
from sottovoce.data.block import Block, tell_null_rows
from sottovoce.data.coded import Coded
from sottovoce.data.dataset import Dataset
from sottovoce.data.matrix import Matrix, Term, is_sparse
from sottovoce.data.preparation import Preparation
from sottovoce.data.projection import Projected
from sottovoce.data.resources import NO_RESOURCES, PREPARING, READING, Resources
from sottovoce.data.row_file import AHEAD, Read, RowFile, write
from sottovoce.errors import InputError, LeakError

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Found = TypeVar("Found")

VIEWS = 2  # of its rows that a part keeps: those of the stage, and those of the one before while they change
PIECE = 1 << 22  # bytes of a piece, about
FEW: Final = 32  # rows of a piece for each chosen one: if there are more, the chosen ones are read alone

_log = logging.getLogger("sottovoce.holder")


@dataclass(frozen=True, eq=False)
class RowView:
    """Rows seen through a public matrix and, once its length is known, clipped to it; every part makes its own."""

    matrix: Array
    made: bool
    length: float = 0.0
    name: str = field(default_factory=functools.partial(secrets.token_hex, 16))


class BlockPart:
    """A block of some of the rows, with the views of it that were made."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self._views: dict[str, Projected] = {}

    def seen(self, view: RowView) -> Projected:
        """Its rows in a view, made when it is first asked for."""
        found = self._views.get(view.name)
        if found is None:
            found = self._views[view.name] = self.block.projected(view.matrix, made=view.made)
            for name in list(self._views)[:-VIEWS]:
                del self._views[name]
        if view.length and not found.ready:
            del self._views[view.name]  # a cut that fails leaves nothing half done
            found.cut(view.length)
            self._views[view.name] = found
        return found


Work = Callable[[BlockPart], Found]


class Parts(ABC):
    """`BlockRows` in several blocks, which answer what a `Block` does.

    `about` is a block without rows, on the grid of all; `sizes` are the numbers of rows of the parts. A batch (`take`)
    names its rows and copies none.
    """

    def __init__(self, about: Block, sizes: Sequence[int]) -> None:
        self._about, self._sizes = about, tuple(sizes)
        self.bits, self.records, self.layout = about.bits, about.records, about.layout
        self.row_norm, self.dimension = about.row_norm, about.dimension

    @abstractmethod
    def each(self, work: Work[Found], chosen: Sequence[Integers] | None = None) -> Iterator[Found]:
        """What `work` makes of each part, in their order; of `chosen`, if given, the named rows of each part alone."""

    def summed(self, work: Work[Any], chosen: Sequence[Integers] | None = None) -> Any:
        """The sum of what `work` makes of the parts."""
        total: Any = 0.0
        for found in self.each(work, chosen):
            total = total + found
        return total

    def __len__(self) -> int:
        return sum(self._sizes)

    @property
    def whole(self) -> Parts:
        return self

    @property
    def sum_bits(self) -> int:
        return self._about.sum_bits

    def digest(self) -> bytes:
        return hashlib.blake2b(b"".join(self.each(lambda part: part.block.digest())), digest_size=32).digest()

    def over(self, work: Callable[[Block], Array]) -> Array:
        """The sum of what `work` makes of each part: exact, if its own sums are."""
        return np.asarray(self.summed(lambda part: work(part.block)))

    def weighted_sum(self, weights: Array, term: Callable[..., Array]) -> Array:
        return np.asarray(self.summed(lambda part: part.block.weighted_sum(weights, term)))

    def gram(self) -> Array:
        return np.asarray(self.summed(lambda part: part.block.gram()))

    def gram_diagonal(self) -> Array:
        return np.asarray(self.summed(lambda part: part.block.gram_diagonal()))

    def number_sum(
        self, term: Callable[[Array, Array], Array], low: float = 0.0, weights: Array | None = None
    ) -> float:
        return float(self.summed(lambda part: part.block.number_sum(term, low, weights)))

    def projected(self, matrix: Array, *, made: bool = False) -> ProjectedParts:
        return ProjectedParts(self, RowView(matrix, made))

    def chunks(self, least: int = 1, scores: int = 1) -> Iterator[tuple[Matrix, Array]]:
        for block in self.each(lambda part: part.block):
            yield from block.chunks(least, scores)

    def cells(self, columns: Sequence[int]) -> Iterator[Array]:
        for pieces in self.each(lambda part: list(part.block.cells(columns))):
            yield from pieces

    def take(self, indices: Integers) -> Parts:
        return Batch(self, indices)


class PartsInMemory(Parts):
    """Blocks of this process."""

    def __init__(self, about: Block, blocks: Sequence[Block]) -> None:
        super().__init__(about, list(map(len, blocks)))
        self._parts = [BlockPart(block) for block in blocks]

    def each(self, work: Work[Found], chosen: Sequence[Integers] | None = None) -> Iterator[Found]:
        """One after the other; each of them has threads of its own."""
        for place, part in enumerate(self._parts):
            yield work(part if chosen is None else BlockPart(part.block.take(chosen[place])))


class PartsOfTable(Parts):
    """Rows of a table, most of them 0 or too many for the memory: each piece is made from its cells in every pass.

    What is kept of a row is its cells, its label and, of each view, its length. Pieces are shared by threads.
    """

    def __init__(self, X: Coded, y: ArrayLike, recipe: Preparation, resources: Resources) -> None:
        self._recipe, self._X, labels = recipe, X, np.asarray(y)
        self._usable, made, shares = np.zeros(len(X), np.bool_), list[Array](), list[Array]()
        self._beside = columns_beside(labels)
        step = X.step(whole=recipe.layout == "raw")
        self._starts = list(range(0, len(X), step))
        about = empty(recipe, len(X), replace(resources, n_jobs=1))
        super().__init__(about, [min(step, len(X) - start) for start in self._starts])
        found = hashlib.blake2b(digest_size=32)
        for start in self._starts:
            own = slice(start, start + step)
            block = Block.prepare(X[own].made(), labels[own], recipe, len(X), resources)
            self._usable[own] = block.usable_rows
            made.append(block.labels)
            shares += [] if block.shares is None else [block.shares]
            found.update(block.digest())
        self._labels, self._shares = np.concatenate(made), np.concatenate(shares) if shares else None
        self._digest, self._resources = found.digest(), resources
        self._views, self._lock = Views(about, self._sizes, room.named_place(None, None)), threading.Lock()
        if null := len(X) - int(self._usable.sum()):
            tell_null_rows(null, len(X), resources)

    def digest(self) -> bytes:
        return self._digest

    def each(self, work: Work[Found], chosen: Sequence[Integers] | None = None) -> Iterator[Found]:
        return (work(self._part(place, chosen)) for place in range(len(self._starts)))

    def summed(self, work: Work[Any], chosen: Sequence[Integers] | None = None) -> Any:
        def part(first: int, last: int) -> Any:
            return sum((work(self._part(place, chosen)) for place in range(first, last)), start=0.0)

        most = len(self._X) * self._X.entries
        cuts = self._resources.cuts(len(self._starts), most, len(self._starts))
        return room.sum_parts(part, cuts, blas=True)

    def _part(self, place: int, chosen: Sequence[Integers] | None) -> BlockPart:
        start = self._starts[place]
        own: Any = slice(start, start + self._sizes[place]) if chosen is None else start + chosen[place]
        usable = self._usable[own].copy()
        with np.errstate(all="ignore"):
            rows, shares = self._recipe.prepared(self._X[own].made(), usable), self._shares
            about: Any = {"beside": {name: column[own] for name, column in self._beside.items()}}
            about |= {} if shares is None else {"shares": shares[own]}
            block = self._about.with_rows(rows, self._labels[own], usable, **about)
        return PartOfFile(block, place, self._views) if chosen is None else BlockPart(block)


class Batch(Parts):
    """Named rows of parts."""

    def __init__(self, whole: Parts, indices: Integers) -> None:
        cuts = np.cumsum([0, *whole._sizes])
        order = np.sort(indices)
        ends = np.searchsorted(order, cuts)
        self._chosen = [order[a:b] - start for a, b, start in zip(ends, ends[1:], cuts, strict=False)]
        super().__init__(whole._about, [len(own) for own in self._chosen])
        self._whole = whole

    def each(self, work: Work[Found], chosen: Sequence[Integers] | None = None) -> Iterator[Found]:
        if chosen is not None:
            raise LeakError("a batch of a batch is none that a plan draws.")
        return self._whole.each(work, self._chosen)

    def summed(self, work: Work[Any], chosen: Sequence[Integers] | None = None) -> Any:
        return self._whole.summed(work, self._chosen) if chosen is None else super().summed(work, chosen)

    @property
    def whole(self) -> Parts:
        return self._whole


class ProjectedParts:
    """`Projected` of rows in parts: each part has its own lengths and shares, and the sums are finished here."""

    def __init__(self, parts: Parts, view: RowView) -> None:
        self._parts, self._view = parts, view
        self._empty = parts._about.projected(view.matrix, made=view.made)
        self.bits = self._empty.bits

    @property
    def ready(self) -> bool:
        return self._empty.ready

    def number_sum(self, term: Callable[[Array, Array], Array]) -> float:
        view = self._view
        return float(self._parts.summed(lambda part: part.seen(view).number_sum(term)))

    def cut(self, length: float) -> None:
        self._empty.cut(length)
        self._view = replace(self._view, length=length)

    def weighted_sum(self, point: Array, term: Term) -> Array:
        self._empty.weighted_sum(point, term)  # refuses what no part may sum
        view = self._view
        return self._empty.finished(np.asarray(self._parts.summed(lambda part: part.seen(view).exact_sum(point, term))))


def empty(recipe: Preparation, records: int, resources: Resources = NO_RESOURCES) -> Block:
    """A block without rows, on the grid of all `records`: what is public of a block with them."""
    return Block.prepare(np.zeros((0, recipe.features)), np.zeros(0), recipe, records, resources)


def in_memory_or_file(
    data: Dataset, recipe: Preparation, beside: Path | None, resources: Resources = NO_RESOURCES
) -> Parts:
    """The rows of a data set by the recipe; by public sizes alone in memory, or in a file."""
    about = empty(recipe, data.shape[0], resources)
    dense = sum(source.records for source in data.sources if source.entries is None)
    size = recipe.size_of(dense, data.shape[0] - dense, sum(source.entries or 0 for source in data.sources))
    if not data.in_file and room.fits_in_memory(size):
        return PartsInMemory(about, list(_blocks(data, recipe, PIECE, resources)))
    if not hasattr(os, "pread"):
        raise InputError("rows that do not fit in memory need pread, which this system lacks; give arrays that fit.")
    folder = room.place_for(data.folder, beside)
    check_row_room(folder, size, data.shape[0])
    try:
        return PartsInFile(about, RowFile(folder, _blocks(data, recipe, PIECE, resources)))
    except OSError as error:
        raise room.full(folder, error) from None


def check_row_room(folder: Path, size: int, records: int) -> None:
    """Refuse a folder without room for `size` bytes of rows, with marks of pieces and what is known of rows."""
    room.check_free(folder, size + size // 50 + VIEWS * 8 * records)


class PreparedRows(NamedTuple):
    """So many bytes of prepared rows in "memory", in a "file" of a folder, on a "device" or at a "cluster"."""

    size: int
    where: str
    folder: Path | None = None
    records: int = 0  # in that file
    workers: int = 0  # of that cluster

    def check(self) -> None:
        """Refuse a folder that is none, or has no room for the file."""
        if self.folder is not None:
            check_row_room(room.place_for(self.folder, None), self.size, self.records)


def _blocks(data: Dataset, recipe: Preparation, size: int, resources: Resources) -> Iterator[Block]:
    """Prepared blocks of about `size` bytes. The holder is told once how many rows are null rows."""
    held, done, null, records = list[Block](), 0, 0, data.shape[0]
    resources.tell(PREPARING, 0, records)
    for rows, labels in data.pieces():
        known = np.zeros(rows.shape[0]) if labels is None else labels
        block = Block.prepare(rows, known, recipe, records, resources)
        del rows, labels, known  # nobody has them while the next are read
        held, done, null = [*held, block], done + len(block), null + int(block.null_rows.sum())
        del block
        if sum(int(each.rows.data.nbytes) + 13 * len(each) for each in held) >= size * 3 // 4:
            made = _one_block(held)
            held = []
            yield made
            del made
        resources.tell(PREPARING, done, records)
    if held:
        yield _one_block(held)
    if done != records:
        raise InputError(f"the data set had {records} records when it was counted, and has {done} now; make it anew.")
    if null:
        tell_null_rows(null, records, resources)


def _one_block(blocks: Sequence[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    parts: Any = [block.rows for block in blocks]
    rows = sp.vstack(parts, format="csr") if any(map(is_sparse, parts)) else np.concatenate(parts)
    labels = np.concatenate([block.labels for block in blocks])
    shares = [block.shares for block in blocks if block.shares is not None]
    usable = np.concatenate([block.usable_rows for block in blocks])
    beside = {name: np.concatenate([block.beside[name] for block in blocks]) for name in blocks[0].beside}
    joined = np.concatenate(shares) if shares else None
    return blocks[0].with_rows(rows, labels, usable, beside=beside, shares=joined)


class PartOfFile(BlockPart):
    """A piece that was read; of its views what takes long to find is kept elsewhere."""

    def __init__(self, block: Block, place: int, views: Views) -> None:
        super().__init__(block)
        self._place, self._kept = place, views

    def seen(self, view: RowView) -> Projected:
        return self._kept.seen(self._place, self.block, view)


class Views:
    """What was found of the rows of every piece in the views of a stage, in memory where that fits, else in a file."""

    def __init__(self, about: Block, sizes: Sequence[int], folder: Path) -> None:
        self._about, self._starts, self._folder = about, np.cumsum([0, *sizes]).tolist(), folder
        self._found: dict[str, tuple[Projected, _Numbers]] = {}

    def seen(self, place: int, block: Block, view: RowView) -> Projected:
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
        self._held: list[Array] | None = [np.zeros(0)] * len(self.known) if room.fits_in_memory(size) else None
        self._handle = -1
        if self._held is None:
            try:
                room.check_free(folder, size)
                self._handle = room.open_scratch(folder)
                weakref.finalize(self, os.close, self._handle)
            except InputError:
                self._without_room()

    def _without_room(self) -> None:
        """What was found so far stays, and the rest is found again in every pass: the run may be charged already."""
        self._full = True
        _log.warning("%s has no room for what is known of rows; it is found anew in every pass", self._folder)

    def put(self, place: int, numbers: Array) -> None:
        if self._full:
            return
        if self._held is not None:
            self._held[place] = numbers.copy()
        else:
            try:
                write(self._handle, numbers, 8 * self._width * self._starts[place])
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
        waiting: deque[tuple[int, Future[Read | Block] | None]] = deque()
        rest, done = iter(range(len(self._sizes))), 0

        def submit() -> None:
            """Ask for the next piece, or for the chosen rows of it where they are few; not where there are none."""
            for place in rest:
                piece, own = self._file.pieces[place], None if chosen is None else chosen[place]
                read: Any = None
                if own is None or FEW * len(own) > piece.rows:
                    self._file.expect(piece)
                    read = _reader(os.getpid()).submit(self._file.read, piece)
                elif len(own):
                    read = _reader(os.getpid()).submit(self._file.few, piece, own, self._about)
                waiting.append((place, read))
                return

        for _ in range(AHEAD + 1):
            submit()
        try:
            while waiting:
                place, future = waiting.popleft()
                read = self._about if future is None else future.result()
                found = self._worked(work, place, None if chosen is None else chosen[place], read)
                submit()
                done += self._sizes[place]
                self._about.resources.tell(READING, done, len(self))
                yield found
                del found
        finally:
            for _, future in waiting:
                if future is not None and not future.cancel():  # a pass that is left in the middle
                    with contextlib.suppress(Exception):
                        read = future.result()
                        if isinstance(read, Read):
                            self._file.give_back(read, weakref.ref(read.taken()))

    def _worked(self, work: Work[Found], place: int, chosen: Integers | None, read: Read | Block) -> Found:
        """What the work makes of a piece; its buffer is then given back, unless that has arrays of it."""
        if isinstance(read, Block):
            return work(BlockPart(read))
        raw = read.taken()
        held = weakref.ref(raw)
        part: BlockPart | None = None
        try:
            block = self._file.form.block(self._file.pieces[place], raw, self._about)
            del raw
            part = PartOfFile(block, place, self._views) if chosen is None else BlockPart(block.take(chosen))
            del block
            return work(part)
        finally:
            part = None
            self._file.give_back(read, held)


@functools.lru_cache(maxsize=1)
def _reader(process: int) -> ThreadPoolExecutor:  # noqa: ARG001
    """The thread that reads ahead; a fork has its own."""
    return ThreadPoolExecutor(1, thread_name_prefix="sottovoce-read-ahead")
