"""Prepared rows on a CUDA device: the sums of a `Block`, bit for bit, at the speed of the device's memory.

Rows are prepared on the host, as everywhere, chunk by chunk, and copied once; noise is drawn on the host. Dense rows
lie in one array. What does not fit into the device's memory stays in pinned memory of the host and is copied piece by
piece in every pass.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.block import Block
from sottovoce.data.device.pieces import (
    CHUNK,
    DENSE_THREADS,
    GRAM_ROWS,
    SHARED,
    WIDEST,
    Arrays,
    DevicePiece,
    Loops,
    cupy,
    fours,
    gathered,
    has_products,
    loop_numbers,
    loop_shape,
    memory_in_words,
    on_device,
    processors,
    resident_blocks,
    sent_to,
    shared_memory,
    stored,
)
from sottovoce.data.matrix import Slope, Term, exact_weights, toward_zero
from sottovoce.data.preparation import Preparation
from sottovoce.data.projection import Projected
from sottovoce.data.resources import NO_RESOURCES, Resources
from sottovoce.errors import InputError, LeakError
from sottovoce.losses.kernels import SIGMOID

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

MANY: Final = 128  # columns up to which products are made by loops of our own
WIDE: Final = 1 << 25  # entries that are made float64 at once


class DeviceBlock:
    """`SumRows` on a device.

    A batch (`take`) names its rows in `chosen` and copies none that are on the device.
    """

    def __init__(
        self,
        pieces: list[DevicePiece],
        host: list[DevicePiece],
        about: Block,
        chosen: Integers | None = None,
        *,
        whole: DeviceBlock | None = None,
    ) -> None:
        self._pieces, self._host, self._chosen, self._whole = pieces, host, chosen, whole
        self._about = about  # an empty block: the layout, the grid and the number of records
        self.bits, self.layout = about.bits, about.layout
        self.row_norm, self.dimension = about.row_norm, about.dimension
        self.records = about.records if chosen is None else len(chosen)
        self._cuts = np.cumsum([0, *map(len, pieces), *map(len, host)])
        self._parts: list[Integers] | None = None
        if chosen is not None:
            order = np.sort(chosen)
            ends = np.searchsorted(order, self._cuts)
            self._parts = [order[a:b] - start for a, b, start in zip(ends[:-1], ends[1:], self._cuts[:-1], strict=True)]

    @classmethod
    def prepare(cls, X: Any, y: Any, recipe: Preparation, resources: Resources = NO_RESOURCES) -> DeviceBlock:
        """Rows and labels by the recipe, chunk by chunk.

        X is a matrix, y its labels; or X has a `shape` and `pieces(rows)`, which give rows with their labels one piece
        after the other, and y is not looked at.
        """
        if not recipe.exact or recipe.bits > 24 or recipe.arrangement.order != "C":
            raise InputError('device="cuda" is for sums of private runs on more than 32 records; take device="cpu".')
        if recipe.beside:
            raise InputError('device="cuda" takes no exposures and no weights; take device="cpu".')
        source = X if hasattr(X, "pieces") else Arrays(X, y)
        count, features = source.shape
        if count > recipe.records:
            raise InputError(f"X has {count} rows but the plan is for {recipe.records} records; make a new plan.")
        about = Block.prepare(np.zeros((0, features)), np.zeros(0), recipe, records=count)
        with memory_in_words():
            return cls(*stored(source, recipe, resources), about)

    def __len__(self) -> int:
        return int(self._cuts[-1]) if self._chosen is None else len(self._chosen)

    @property
    def whole(self) -> DeviceBlock:
        """The holder's block. It does not hold itself: the device's memory is given back as soon as nobody needs it."""
        return self if self._whole is None else self._whole

    def digest(self) -> bytes:
        """Of all rows, labels and marks of null rows, however much of them the device has room for."""
        found = [hashlib.blake2b() for _ in range(5)]
        for piece in (*self._pieces, *self._host):
            for to, array in zip(found, piece.arrays, strict=False):
                step = max(1, CHUNK * len(array) // max(array.size, 1))
                for start in range(0, len(array), step):
                    part = np.ascontiguousarray(cupy().asnumpy(array[start : start + step]))
                    to.update(f"{part.dtype.str}{part.shape[1:]}".encode() if not start else b"")
                    to.update(part.data)
        return hashlib.blake2b(b"".join(each.digest() for each in found), digest_size=32).digest()

    def take(self, indices: Integers) -> DeviceBlock:
        """The named rows as a batch, in any order, each as often as it is named."""
        chosen, count = np.asarray(indices, dtype=np.int64), len(self)
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < count:
            raise IndexError(f"indices must be from 0 to {count - 1}, those of the rows.")
        if self._chosen is not None:
            chosen = self._chosen[chosen]
        return DeviceBlock(self._pieces, self._host, self._about, chosen, whole=self.whole)

    def _each(self) -> Iterator[tuple[DevicePiece, Any, int]]:
        """Pieces on the device, those of the host copied one ahead; which rows are chosen, and the piece's place."""
        first = len(self._pieces)
        if self._parts is None:
            yield from ((piece, None, place) for place, piece in enumerate(self._pieces) if len(piece))
            yield from self._from_host(first)
            return
        for place, chosen in enumerate(self._parts):
            if not len(chosen):
                continue
            if place < first:
                yield self._pieces[place], cupy().asarray(chosen), place
            else:
                yield on_device(gathered(self._host[place - first], chosen, self.dimension)), None, place

    def _from_host(self, first: int) -> Iterator[tuple[DevicePiece, Any, int]]:
        """Piece by piece in two places of the device's memory, by turns.

        A copy waits for the sums over what lies in its place, and sums wait for the copy.
        """
        if not self._host:
            return
        xp, pieces = cupy(), self._host
        summing, copying = xp.cuda.get_current_stream(), xp.cuda.Stream(non_blocking=True)
        places = [xp.empty(max(piece.size for piece in pieces), dtype=np.uint8) for _ in pieces[:2]]
        free, there = ([xp.cuda.Event(disable_timing=True) for _ in range(2)] for _ in range(2))
        for event in free:
            event.record(summing)

        def sent(number: int) -> DevicePiece:
            turn = number % 2
            copying.wait_event(free[turn])
            piece = sent_to(pieces[number], places[turn], copying)
            there[turn].record(copying)
            return piece

        try:
            ahead = sent(0)
            for number in range(len(pieces)):
                now, turn = ahead, number % 2
                if number + 1 < len(pieces):
                    ahead = sent(number + 1)
                summing.wait_event(there[turn])
                yield now, None, first + number
                free[turn].record(summing)
        finally:
            copying.synchronize()  # before its places are given back

    def weighted_sum(self, weights: Array, term: Term, shares: Mapping[int, Any] | None = None) -> Array:
        """sum_i term(x_i'w, y_i) x_i in one pass; `shares`, if any, are those of each piece.

        Terms that no loop of the device knows are computed by the host, from scores of the device.
        """
        with memory_in_words():
            xp, exact = cupy(), self._about._exact(weights)
            told, total = xp.asarray(exact), xp.zeros(exact.shape)
            for piece, chosen, place in self._each():
                self._add(piece, chosen, term, (told, None if shares is None else shares[place], total))
            return np.asarray(xp.asnumpy(total)) + 0.0

    def _add(self, piece: DevicePiece, chosen: Any, term: Term, told: tuple[Any, Any, Any]) -> None:
        weights, shares, total = told
        labels = piece.labels if chosen is None else piece.labels[chosen]
        if not _coded(term) or (piece.sparse is None and self.dimension > WIDEST):
            for part, rows in _chunks(piece, chosen, self.dimension, math.prod(weights.shape[1:])):
                total += rows.T @ _device_terms(
                    term, rows @ weights, labels[part], None if shares is None else shares[part]
                )
            return
        slope = cast("Slope", term)
        fixed = {"PICKED": int(chosen is not None), "SHARED": int(shares is not None)}
        size = (np.int64(len(labels)), np.int32(self.dimension), loop_numbers(slope))
        if piece.sparse is not None:
            near = 8 * self.dimension if 8 * self.dimension <= SHARED else 0  # a larger one leaves too few threads
            loops, blocks = Loops.of_terms(slope, labels, **fixed), 16 * processors()
            last = (*told, *size, np.int32(near > 0))
            loops("slope_sum_sparse", blocks, *piece.sparse, chosen, labels, *last, shared=near)
            return
        columns, rows, shared = loop_shape(self.dimension, shared_memory())
        loops = Loops.of_terms(slope, labels, COLUMNS=columns, ROWS=rows, **fixed)
        arguments = (piece.rows, chosen, labels, *told, *size)
        blocks = 4 * processors() * resident_blocks(shared, 16)
        loops("slope_sum_dense", blocks, *arguments, threads=DENSE_THREADS, shared=shared)

    def gram(self) -> Array:
        with memory_in_words():
            xp, width = cupy(), self.dimension
            total, upper = xp.zeros((width, width)), xp.zeros((width, width))
            for piece, chosen, _ in self._each():
                if piece.sparse is None and chosen is None and width <= MANY and has_products():
                    tiles = _tiles(width)
                    shared = 2 * fours(GRAM_ROWS * width + 8 * tiles) * 4
                    arguments = (piece.rows, upper, np.int64(len(piece)), np.int32(width))
                    Loops(TILES=tiles)("gram_dense", 12 * processors(), *arguments, threads=16 * tiles, shared=shared)
                    continue
                for _, rows in _chunks(piece, chosen, width):
                    square = rows.T @ rows
                    total += square if piece.sparse is None else square.toarray()
            found = np.asarray(xp.asnumpy(total + upper + xp.triu(upper, 1).T))
        return found + 0.0

    def gram_diagonal(self) -> Array:
        with memory_in_words():
            xp = cupy()
            total = xp.zeros(self.dimension)
            for piece, chosen, _ in self._each():
                for _, rows in _chunks(piece, chosen, self.dimension):
                    if piece.sparse is None:
                        total += (rows * rows).sum(axis=0)
                    else:
                        total += xp.bincount(rows.indices, weights=rows.data * rows.data, minlength=self.dimension)
            return np.asarray(xp.asnumpy(total))

    def number_sum(
        self, term: Callable[[Any, Any], Any], low: float = 0.0, weights: Array | None = None, numbers: Any = None
    ) -> float:
        """sum_i of term(x_i'w, y_i) clipped to [low, 1], 0 for a null row; `numbers` of each piece stand for scores."""
        if self._chosen is not None:
            raise LeakError("a batch does not say which of its rows are null rows.")
        with memory_in_words():
            xp = cupy()
            exact, total = None if weights is None else xp.asarray(self._about._exact(weights)), xp.zeros(1)
            for piece, _, place in self._each():
                for part, given in _given(piece, exact, None if numbers is None else numbers[place], self.dimension):
                    labels = piece.labels[part].astype(np.float64)
                    try:
                        found = term(given, labels)
                    except TypeError:  # a term that knows arrays of NumPy alone is computed by the host
                        found = xp.asarray(term(xp.asnumpy(given), xp.asnumpy(labels)))
                    found = toward_zero(np.fmax(np.fmin(found.astype(np.float64), 1.0), low), self._about.sum_bits)
                    found[piece.null[part]] = 0.0
                    total += found.sum()
            return float(total[0])

    def projected(self, matrix: Array, *, made: bool = False) -> DeviceProjected:
        if self._chosen is not None:
            raise LeakError("projected rows are those of a whole block, never of a batch.")
        with memory_in_words():
            return (DeviceProjectedRows if made else DeviceProjected)(self, matrix)  # type: ignore[arg-type]


class DeviceProjected(Projected):
    """`Projected` on the device: lengths and shares are there, one array for each piece."""

    lengths: Any
    _block: Any
    _shares: Any

    def _find(self, _: Any) -> None:
        told, block = cupy().asarray(self._matrix), self._block
        self.lengths = {place: _device_lengths(piece, told, block.dimension) for piece, _, place in block._each()}

    def cut(self, length: float) -> None:
        if self.ready:
            raise LeakError("the rows were cut already.")
        xp = cupy()
        room = 1.0 - (self._matrix.shape[-1] + self._block.records + 8) * 2.0**-50
        with memory_in_words():
            own = {place: room * length / xp.maximum(sizes, length) for place, sizes in self.lengths.items()}
        self._length, self._shares, self.ready = length, own, length > 0.0


class DeviceProjectedRows(DeviceProjected):
    """`ProjectedRows` on the device."""

    triangular: ClassVar[bool] = False

    def _find(self, _: Any) -> None:
        told, block = cupy().asarray(self._matrix), self._block
        self._made, self._labels = dict[int, Any](), dict[int, Any]()
        for piece, _, place in block._each():
            self._made[place], self._labels[place] = _product(piece, told, block.dimension), piece.labels.copy()
        self.lengths = {place: _lengths_of(rows.T) for place, rows in self._made.items()}

    def cut(self, length: float) -> None:
        super().cut(length)
        for place, own in self._shares.items():
            own /= self._length
            rows = self._made[place]
            rows *= own[:, None]
            toward_zero(rows, self.bits)

    def exact_sum(self, point: Array, term: Term) -> Array:
        """The score is that of the cut row times what it was divided by."""
        with memory_in_words():
            xp = cupy()
            exact, total = xp.asarray(exact_weights(point, self.bits)), xp.zeros(point.shape)
            for place, rows in self._made.items():
                total += rows.T @ _device_terms(term, (rows @ exact) / self._shares[place], self._labels[place], None)
            return np.asarray(xp.asnumpy(total))

    def finished(self, total: Array) -> Array:
        return total


def _slices(count: int, width: int) -> Iterator[slice]:
    step = max(1, WIDE // max(width, 1))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def _chunks(piece: DevicePiece, chosen: Any, width: int, wide: int = 1) -> Iterator[tuple[slice, Any]]:
    """Rows in float64, dense or sparse; so many at once that they, and `wide` numbers for each, take little memory."""
    count = len(piece) if chosen is None else len(chosen)
    if piece.sparse is None:
        for part in _slices(count, max(width, wide)):
            yield part, piece.rows[part if chosen is None else chosen[part]].astype(np.float64)
        return
    from cupyx.scipy import sparse

    starts, columns, entries = piece.sparse
    parts = (entries.astype(np.float64), columns, starts.astype(np.int32))
    rows = sparse.csr_matrix(parts, shape=(len(piece), width))
    rows = rows if chosen is None else rows[chosen]
    for part in _slices(count, wide):
        yield part, rows if part == slice(0, count) else rows[part]


def _given(piece: DevicePiece, weights: Any, numbers: Any, width: int) -> Iterator[tuple[slice, Any]]:
    """What a number of each row is computed from: numbers that were told, scores, or zeros."""
    if numbers is None and weights is not None:
        yield from ((part, rows @ weights) for part, rows in _chunks(piece, None, width))
        return
    for part in _slices(len(piece), 1):
        yield part, cupy().zeros(part.stop - part.start) if numbers is None else numbers[part]


def _product(piece: DevicePiece, matrix: Any, width: int) -> Any:
    """x_i'P of every row, exact in any order."""
    found = cupy().empty((len(piece), *matrix.shape[1:]))
    for part, rows in _chunks(piece, None, width, matrix.shape[-1]):
        found[part] = rows @ matrix
    return found


def _tiles(width: int) -> int:
    """An even number of tiles of 8 columns."""
    return 2 * max(1, math.ceil(width / 16))


def _device_lengths(piece: DevicePiece, matrix: Any, width: int) -> Any:
    xp = cupy()
    found = xp.empty(len(piece))
    if piece.sparse is None and matrix.ndim == 2 and width <= MANY and has_products():
        tiles = _tiles(width)
        shared = 8 * tiles * (8 * tiles + 4) * 8
        blocks = processors() * resident_blocks(shared, 4)
        arguments = (piece.rows, matrix, found, np.int64(len(piece)), np.int32(width))
        Loops(TILES=tiles)("lengths_triangular", blocks, *arguments, shared=shared)
        return found
    if piece.sparse is not None and matrix.ndim == 1:
        starts, columns, entries = piece.sparse
        told = (starts, entries.astype(np.float64) * matrix[columns], found, np.int64(len(found)))
        Loops()("lengths_sparse", processors() * 8, *told)
        return found
    for part, rows in _chunks(piece, None, width, width):
        if piece.sparse is not None:
            found[part] = _lengths_of((rows @ matrix).T)
            continue
        seen = rows.T * matrix[:, None] if matrix.ndim == 1 else matrix.T @ rows.T
        found[part] = _lengths_of(seen)
    return found


def _lengths_of(columns: Any) -> Any:
    """Of rows that are given as columns of their entries."""
    xp = cupy()
    found = xp.empty(columns.shape[1])
    arguments = (xp.ascontiguousarray(columns), found, np.int64(len(found)), np.int32(len(columns)))
    Loops()("lengths_dense", processors() * 8, *arguments)
    return found


def _coded(term: Any) -> bool:
    return isinstance(term, Slope) and term.code is not None and term.code <= SIGMOID


def _device_terms(term: Term, scores: Any, labels: Any, shares: Any) -> Any:
    xp = cupy()
    if not _coded(term):
        told = () if shares is None else (xp.asnumpy(shares),)
        with np.errstate(all="ignore"):
            return xp.asarray(term(xp.asnumpy(scores), xp.asnumpy(labels).astype(np.float64), *told))
    slope, found = cast("Slope", term), xp.empty(len(scores))
    loops = Loops.of_terms(slope, labels, SHARED=int(shares is not None))
    loops("terms", 8 * processors(), scores, labels, shares, found, np.int64(len(scores)), loop_numbers(slope))
    return found
