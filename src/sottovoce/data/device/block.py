"""Prepared rows on a CUDA device: the sums of a `Block`, bit for bit, at the speed of the device's memory.

Rows are prepared on the host, as everywhere, and copied once; noise is drawn on the host. What does not fit into the
device's memory stays in pinned memory of the host and is copied piece by piece in every pass.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.data.block import Block
from sottovoce.data.grid import bounded, exact_weights, toward_zero
from sottovoce.data.matrix import Matrix, is_sparse
from sottovoce.data.preparation import Preparation
from sottovoce.data.projection import Projected, _checked, _on_grid
from sottovoce.data.slopes import Slope
from sottovoce.errors import InputError, LeakError

Array = NDArray[np.float64]

PIECE: Final = 1 << 28  # entries of a piece: a gigabyte of float32
WIDEST: Final = 512  # columns of a dense row that the fused loop holds in registers
RESERVE: Final = 0.25  # of the device's memory that rows leave free
_WIDE: Final = 1 << 25  # entries that are made float64 at once
_THREADS: Final = 256
_NAMES: Final = ("parameter", "low", "high", "unit", "bound", "scale", "offset")  # of `Slope.numbers`
_NUMBERS: Final = np.dtype([(name, np.float64) for name in _NAMES])
_SHARED: Final = 48 * 1024  # bytes of a block of threads


def cupy() -> Any:
    """CuPy, with a device; else an error that says what is missing."""
    try:
        import cupy as found
    except ImportError:
        raise InputError('device="cuda" needs CuPy: install sottovoce[gpu].') from None
    try:
        count = found.cuda.runtime.getDeviceCount()
    except found.cuda.runtime.CUDARuntimeError:
        count = 0
    if count < 1:
        raise InputError('device="cuda": this machine has no CUDA device that CuPy can use; take device="cpu".')
    return found


@functools.cache
def _source() -> str:
    return (resources.files(__package__) / "kernels.cu").read_text(encoding="utf-8")


def shape_of(width: int) -> tuple[int, int, int]:
    """Of the fused loop over rows of that width: columns a lane, rows a warp, blocks of threads a multiprocessor."""
    columns = max(1, math.ceil(min(width, WIDEST) / 32))
    rows = 8 if columns == 1 else 4 if columns <= 8 else 2
    return columns, rows, 3 if columns == 1 else 4 if columns <= 4 else 2


class Loops:
    """The loops of `kernels.cu` for rows of a width and a slope, compiled when they are first needed."""

    def __init__(self, width: int, slope: Slope, labels: Any, *, picked: bool = False, shared: bool = False) -> None:
        columns, rows, self.blocks = shape_of(width)
        unit = slope.numbers[3]
        self._numbers = np.array(slope.numbers, dtype=np.float64).view(_NUMBERS)[0]
        self._module = _compiled(
            f"-DCOLUMNS={columns}",
            f"-DROWS={rows}",
            f"-DBLOCKS={self.blocks}",
            f"-DCODE={slope.code}",
            f"-DUNIT={int(unit > 0) - int(unit < 0)}",
            f"-DPICKED={int(picked)}",
            f"-DSHARED={int(shared)}",
            f"-DLabel={'signed char' if labels.dtype == np.int8 else 'double'}",
        )

    def __call__(self, name: str, blocks: int, *arguments: Any, last: tuple[Any, ...] = (), shared: int = 0) -> None:
        """Run a loop on so many blocks of threads; no array is a null pointer."""
        told = tuple(np.intp(0) if argument is None else argument for argument in arguments)
        loop = self._module.get_function(name)
        loop((blocks,), (_THREADS,), (*told, self._numbers, *last), shared_mem=shared)


@functools.cache
def _compiled(*options: str) -> Any:
    return cupy().RawModule(code=_source(), options=(*options, "--std=c++14"))


@functools.cache
def _plain(name: str) -> Any:
    """A loop that knows no slope."""
    numbers = (f"-D{name}=1" for name in ("COLUMNS", "ROWS", "BLOCKS", "CODE", "UNIT", "PICKED", "SHARED"))
    return _compiled(*numbers, "-DLabel=double").get_function(name)


@functools.cache
def _processors() -> int:
    return int(cupy().cuda.runtime.getDeviceProperties(0)["multiProcessorCount"])


class Piece:
    """Rows with labels, on the device or on their way to it."""

    def __init__(self, rows: Any, labels: Any, null: Any, *, sparse: tuple[Any, Any, Any] | None = None) -> None:
        self.rows, self.labels, self.null, self.sparse = rows, labels, null, sparse

    def __len__(self) -> int:
        return len(self.labels)


class DeviceBlock:
    """Stands where a `Block` stands, for the solvers whose queries ask for what `data/block.py` lists.

    A batch (`take`) names its rows in `chosen` and copies none.
    """

    def __init__(
        self,
        pieces: list[Piece],
        host: list[Piece],
        about: Block,
        chosen: list[Any] | None = None,
        *,
        whole: Any = None,
    ) -> None:
        self._pieces, self._host, self._chosen = pieces, host, chosen
        self._about = about  # an empty block: the layout, the grid and the number of records
        self.whole = self if whole is None else whole
        self.bits, self.records, self.layout = about.bits, about.records, about.layout
        self.row_norm, self.dimension = about.row_norm, about.dimension

    @classmethod
    def prepare(cls, X: Matrix, y: ArrayLike, recipe: Preparation) -> DeviceBlock:
        """Rows and labels by the recipe, piece by piece."""
        xp = cupy()
        if not recipe.exact or recipe.bits > 24 or recipe.arrangement.order != "C":
            raise InputError(
                'device="cuda" is for private runs of newton, gradient, sgd and whitened on more than 32 records; take '
                'device="cpu".'
            )
        labels, count = np.asarray(y), X.shape[0]
        about = Block.prepare(_rows(X, 0, 0), labels[:0], recipe, records=count)
        room = (1.0 - RESERVE) * xp.cuda.runtime.memGetInfo()[0]
        pieces, host = list[Piece](), list[Piece]()
        step = max(1, PIECE // max(about.dimension, 1))
        for start in range(0, count, step):
            part = Block.prepare(_rows(X, start, start + step), labels[start : start + step], recipe, records=count)
            piece, size = _on_host(part), part.rows.nnz * 8 if is_sparse(part.rows) else part.rows.nbytes
            if not host and size + 16 * len(part) < room:
                room -= size + 16 * len(part)
                pieces.append(_copied(xp, piece))
            else:
                host.append(_pinned(xp, piece))
        return cls(pieces, host, about)

    def __len__(self) -> int:
        if self._chosen is not None:
            return sum(map(len, self._chosen))
        return sum(map(len, self._pieces)) + sum(map(len, self._host))

    def _each(self) -> Iterator[tuple[Piece, Any, int]]:
        """Pieces on the device, those of the host copied one ahead; which rows are chosen, and the piece's place."""
        xp = cupy()
        for place, piece in enumerate(self._pieces):
            yield piece, self._of(place), place
        streams = [xp.cuda.Stream(non_blocking=True) for _ in range(min(2, len(self._host)))]
        ahead: list[Any] = []
        for number, piece in enumerate(self._host):
            if not ahead:
                ahead.append(_copied(xp, piece, streams[number % 2]))
            now = ahead.pop()
            streams[number % 2].synchronize()
            if number + 1 < len(self._host):
                ahead.append(_copied(xp, self._host[number + 1], streams[(number + 1) % 2]))
            place = len(self._pieces) + number
            yield now, self._of(place), place

    def _of(self, place: int) -> Any:
        return None if self._chosen is None else self._chosen[place]

    def take(self, indices: NDArray[np.int64]) -> DeviceBlock:
        """The named rows as a batch."""
        xp, cuts = cupy(), np.cumsum([0, *map(len, self._pieces), *map(len, self._host)])
        order = np.sort(indices)
        ends = np.searchsorted(order, cuts)
        parts = [xp.asarray(order[a:b] - start) for a, b, start in zip(ends, ends[1:], cuts, strict=False)]
        return DeviceBlock(self._pieces, self._host, self._about, parts, whole=self.whole)

    def weighted_sum(self, weights: Array, term: Any, shares: Any = None) -> Array:
        """sum_i term(x_i'w, y_i) x_i in one pass; `shares`, if any, are those of each piece."""
        if not isinstance(term, Slope) or term.code is None or weights.ndim != 1:
            raise InputError('device="cuda" has loops for losses of one score that have a code; take device="cpu".')
        xp = cupy()
        exact, total = xp.asarray(self._about._exact(weights)), xp.zeros(self.dimension)
        for piece, chosen, place in self._each():
            own = shares[place] if shares is not None and len(shares) else None
            if len(piece if chosen is None else chosen):
                self._add(piece, chosen, term, (exact, own, total))
        return np.asarray(xp.asnumpy(total)) + 0.0

    def _add(self, piece: Piece, chosen: Any, slope: Slope, told: tuple[Any, Any, Any]) -> None:
        weights, shares, total = told
        labels = piece.labels if chosen is None else piece.labels[chosen]
        loops = Loops(self.dimension, slope, labels, picked=chosen is not None, shared=shares is not None)
        size = (np.int64(len(labels)), np.int32(self.dimension))
        if piece.sparse is not None:
            near = 8 * self.dimension if 8 * self.dimension <= _SHARED else 0
            arguments = (*piece.sparse, chosen, labels, *told, *size)
            loops("slope_sum_sparse", 4 * _processors(), *arguments, last=(np.int32(near > 0),), shared=near)
        elif self.dimension <= WIDEST:
            loops("slope_sum_dense", 4 * loops.blocks * _processors(), piece.rows, chosen, labels, *told, *size)
        else:  # wider than registers: two products of pieces that are made float64, exact in any order
            for start, rows in _float64(piece.rows if chosen is None else piece.rows[chosen]):
                part = slice(start, start + len(rows))
                own = None if shares is None else shares[part]
                total += rows.T @ _terms(slope, rows @ weights, labels[part], own)

    def gram(self) -> Array:
        """X'X."""
        xp = cupy()
        total = xp.zeros((self.dimension, self.dimension))
        for piece, chosen, _ in self._each():
            if piece.sparse is not None:
                rows = _csr(piece, self.dimension)
                total += (rows.T @ rows).toarray()
                continue
            for _, part in _float64(piece.rows if chosen is None else piece.rows[chosen]):
                total += part.T @ part
        return np.asarray(xp.asnumpy(total))

    def gram_diagonal(self) -> Array:
        """sum_i x_ij^2 of every column j."""
        xp = cupy()
        total = xp.zeros(self.dimension)
        for piece, _, _ in self._each():
            if piece.sparse is not None:
                _, columns, entries = piece.sparse
                squares = entries.astype(np.float64) ** 2
                total += xp.bincount(columns, weights=squares, minlength=self.dimension)
                continue
            for _, part in _float64(piece.rows):
                total += (part * part).sum(axis=0)
        return np.asarray(xp.asnumpy(total))

    def number_sum(
        self, term: Callable[[Any, Any], Any], low: float = 0.0, weights: Array | None = None, numbers: Any = None
    ) -> float:
        """sum_i of term(x_i'w, y_i) cut to [low, 1], 0 for a null row; `numbers` of each piece stand for scores."""
        xp, total = cupy(), 0.0
        exact = None if weights is None else xp.asarray(self._about._exact(weights))
        for piece, _, place in self._each():
            if numbers is not None:
                given = numbers[place]
            else:
                given = xp.zeros(len(piece)) if exact is None else _scores(piece, exact, self.dimension)
            found = bounded(term(given, piece.labels.astype(np.float64)), low, self._about.sum_bits)
            found[piece.null] = 0.0
            total += float(found.sum())
        return total

    def projected(self, matrix: Array, *, made: bool = False) -> DeviceProjected:
        """Rows seen through a triangular or diagonal matrix, or `made` once, by any matrix of few columns."""
        return (DeviceProjectedRows if made else DeviceProjected)(self, matrix)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise InputError(
            'device="cuda" serves the solvers newton, gradient, sgd and whitened with privacy; for another take '
            'device="cpu".'
        )


class DeviceProjected(Projected):
    """`Projected` on the device: lengths and shares are there, one array for each piece."""

    def __init__(self, block: DeviceBlock, projection: Array) -> None:
        self._block, self.bits = block, _checked(block)  # type: ignore[assignment, arg-type]
        self._matrix = _on_grid(projection if projection.ndim == 1 else np.tril(projection), self.bits)
        self._rows_on_device = block
        self._length, self._own = 0.0, list[Any]()
        xp = cupy()
        told = xp.asarray(self._matrix)
        self._sizes = [_lengths(piece, told, block.dimension) for piece, _, _ in block._each()]

    def number_sum(self, term: Callable[[Any, Any], Any]) -> float:
        """sum_i of term(|z_i|, y_i) cut to [0, 1]."""
        return self._rows_on_device.number_sum(term, numbers=self._sizes)

    def cut(self, length: float) -> None:
        """As of the host."""
        if self.ready:
            raise LeakError("the rows were cut already.")
        xp = cupy()
        room = 1.0 - (self._matrix.shape[-1] + self._block.records + 8) * 2.0**-50
        self._length, self._own = length, [room * length / xp.maximum(sizes, length) for sizes in self._sizes]
        self._cut()

    def exact_sum(self, point: Array, term: Any) -> Array:
        """What is exact of it."""
        weights = self._matrix * point if self._matrix.ndim == 1 else self._matrix @ point
        return self._rows_on_device.weighted_sum(weights, term, self._own)


class DeviceProjectedRows(DeviceProjected):
    """`ProjectedRows` on the device."""

    def __init__(self, block: DeviceBlock, projection: Array) -> None:
        self._block, self.bits = block, _checked(block)  # type: ignore[assignment, arg-type]
        self._matrix = _on_grid(projection, self.bits)
        self._rows_on_device = block
        self._length, self._own = 0.0, list[Any]()
        xp = cupy()
        told = xp.asarray(self._matrix)
        pieces = [piece for piece, _, _ in block._each()]
        self._made = [_product(piece, told, block.dimension) for piece in pieces]
        self._labels = [piece.labels for piece in pieces]
        self._sizes = [_lengths_of(rows) for rows in self._made]

    def _cut(self) -> None:
        for own, rows in zip(self._own, self._made, strict=True):
            own /= self._length
            rows *= own[:, None]
            toward_zero(rows, self.bits)

    def exact_sum(self, point: Array, term: Any) -> Array:
        """The score is that of the cut row times what it was divided by."""
        xp = cupy()
        exact, total = xp.asarray(exact_weights(point, self.bits)), xp.zeros(len(point))
        for rows, labels, own in zip(self._made, self._labels, self._own, strict=True):
            total += rows.T @ _terms(term, (rows @ exact) / own, labels, None)
        return np.asarray(xp.asnumpy(total))

    def finished(self, total: Array) -> Array:
        """As it is."""
        return total


def _rows(X: Matrix, start: int, stop: int) -> Matrix:
    """Rows of the host, also of an array that is on the device."""
    part = X[start:stop]
    return part.get() if hasattr(part, "get") and not is_sparse(part) else part


def _on_host(block: Block) -> Piece:
    labels = block.labels
    if np.all(np.abs(labels) == 1.0):  # of two classes: an eighth of the traffic
        labels = labels.astype(np.int8)
    if is_sparse(block.rows):
        sparse = (block.rows.indptr.astype(np.int64), block.rows.indices.astype(np.int32), block.entries)
        return Piece(None, labels, block.null_rows, sparse=sparse)
    return Piece(block.rows, labels, block.null_rows)


def _copied(xp: Any, piece: Piece, stream: Any = None) -> Piece:
    """On the device; by a stream of its own while another piece is summed."""
    with stream or xp.cuda.Stream.null:
        sparse = None if piece.sparse is None else tuple(xp.asarray(part) for part in piece.sparse)
        rows = None if piece.rows is None else xp.asarray(piece.rows)
        return Piece(rows, xp.asarray(piece.labels), xp.asarray(piece.null), sparse=sparse)


def _pinned(xp: Any, piece: Piece) -> Piece:
    """In memory of the host from which the device reads at full speed."""

    def pinned(array: Any) -> Any:
        memory = xp.cuda.alloc_pinned_memory(max(array.nbytes, 1))
        made = np.frombuffer(memory, array.dtype, array.size).reshape(array.shape)
        made[...] = array
        return made

    sparse = None if piece.sparse is None else tuple(map(pinned, piece.sparse))
    rows = None if piece.rows is None else pinned(piece.rows)
    return Piece(rows, pinned(piece.labels), pinned(piece.null), sparse=sparse)


def _float64(rows: Any) -> Iterator[tuple[int, Any]]:
    step = max(1, _WIDE // max(rows.shape[1], 1))
    for start in range(0, len(rows), step):
        yield start, rows[start : start + step].astype(np.float64)


def _csr(piece: Piece, width: int) -> Any:
    from cupyx.scipy import sparse

    starts, columns, entries = piece.sparse or (None, None, None)
    parts = (entries.astype(np.float64), columns, starts.astype(np.int32))  # type: ignore[union-attr]
    return sparse.csr_matrix(parts, shape=(len(piece), width))


def _product(piece: Piece, matrix: Any, width: int) -> Any:
    """x_i'P of every row, exact in any order."""
    if piece.sparse is not None:
        return _csr(piece, width) @ matrix
    found = cupy().empty((len(piece), *matrix.shape[1:]))
    for start, rows in _float64(piece.rows):
        found[start : start + len(rows)] = rows @ matrix
    return found


def _scores(piece: Piece, weights: Any, width: int) -> Any:
    return _product(piece, weights, width)


def _lengths(piece: Piece, matrix: Any, width: int) -> Any:
    """|P'x_i| of every row, piece by piece."""
    xp = cupy()
    if piece.sparse is not None:
        if matrix.ndim == 2:
            return _lengths_of(_csr(piece, width) @ matrix)
        starts, columns, entries = piece.sparse
        return _sparse_lengths(xp, starts, entries.astype(np.float64) * matrix[columns])
    found = xp.empty(len(piece))
    for start, rows in _float64(piece.rows):
        seen = rows * matrix if matrix.ndim == 1 else rows @ matrix
        found[start : start + len(rows)] = _lengths_of(seen)
    return found


def _sparse_lengths(xp: Any, starts: Any, entries: Any) -> Any:
    found = xp.empty(len(starts) - 1)
    _plain("lengths_sparse")((_processors() * 8,), (_THREADS,), (starts, entries, found, np.int64(len(found))))
    return found


def _lengths_of(rows: Any) -> Any:
    xp = cupy()
    found, columns = xp.empty(len(rows)), xp.ascontiguousarray(rows.T)
    arguments = (columns, found, np.int64(len(rows)), np.int32(rows.shape[1]))
    _plain("lengths_dense")((_processors() * 8,), (_THREADS,), arguments)
    return found


def _terms(slope: Slope, scores: Any, labels: Any, shares: Any) -> Any:
    found = cupy().empty(len(scores))
    loops = Loops(1, slope, labels, shared=shares is not None)
    loops("terms", 8 * _processors(), scores, labels, shares, found, np.int64(len(scores)))
    return found
