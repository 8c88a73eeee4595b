"""Rows on the device or on the host, where they are put and how they are copied; the loops of `kernels.cu`."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources as files
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from sottovoce.data.block import Block, tell_null_rows
from sottovoce.data.coded import Coded
from sottovoce.data.matrix import Matrix, Slope, is_sparse
from sottovoce.data.preparation import Preparation
from sottovoce.data.resources import Resources
from sottovoce.errors import InputError

Integers = NDArray[np.int64]

CHUNK: Final = 1 << 26  # entries that are prepared at once, and of a piece of sparse rows or of one on the host
READ: Final = 1 << 24  # the same of rows that are read from somewhere
LEAST_ROWS: Final = 1024  # of a chunk
RESERVE: Final = 0.25  # of the device's memory that rows leave free
_ALIGNED: Final = 512  # bytes
WIDEST: Final = 512  # columns of a dense row that the fused loop takes
THREADS: Final = 256  # of a block of threads
DENSE_THREADS: Final = 128  # the same of the fused loop over dense rows
GRAM_ROWS: Final = 32
SHARED: Final = 48 * 1024  # bytes of shared memory that any block of threads may have
STAGES: Final = 2  # tiles of a warp: one is summed while the next one comes
_RESERVED: Final = 1024  # bytes of shared memory that each block of threads takes besides
_NAMES: Final = ("parameter", "low", "high", "unit", "bound", "scale", "offset", "back")
_NUMBERS: Final = np.dtype([(name, np.float64) for name in _NAMES])
_PLAIN: Final = {  # what loops are compiled for where nothing else is said
    "COLUMNS": 1,
    "ROWS": 1,
    "TILES": 2,
    "CODE": 0,
    "UNIT": 0,
    "PICKED": 0,
    "SHARED": 0,
    "Label": "double",
    "STAGES": STAGES,
    "GRAM_ROWS": GRAM_ROWS,
}


def cupy() -> Any:
    """CuPy, with a device; else an error that says what is missing."""
    try:
        import cupy as found
    except ImportError:
        raise InputError('device="cuda" needs CuPy (pip install sottovoce[gpu]) and an NVIDIA GPU.') from None
    try:
        count = found.cuda.runtime.getDeviceCount()
    except found.cuda.runtime.CUDARuntimeError:
        count = 0
    if count < 1:
        raise InputError('device="cuda": this machine has no CUDA device that CuPy can use; take device="cpu".')
    return found


@contextmanager
def memory_in_words() -> Iterator[None]:
    """A device, or a host, that has too little memory says so in our words."""
    xp = cupy()
    try:
        yield
    except (MemoryError, xp.cuda.runtime.CUDARuntimeError) as error:  # CuPy's own is a MemoryError
        if not isinstance(error, MemoryError) and "MemoryAllocation" not in str(error):
            raise
        raise InputError(
            'device="cuda": the device, or this machine, has too little free memory for sums over these rows; end what '
            'else uses it, or take device="cpu".'
        ) from None


def loop_shape(width: int, shared: int) -> tuple[int, int, int]:
    """Of the fused loop over rows of that width: columns a lane, rows of a tile, bytes of a block of threads.

    As many rows as leave room for three blocks of threads in so many bytes of shared memory.
    """
    columns = max(1, math.ceil(min(width, WIDEST) / 32))
    for rows in (32, 16, 8, 4, 2, 1):
        size = DENSE_THREADS // 32 * STAGES * fours(rows * width) * 4
        if 3 * (size + _RESERVED) <= shared:
            return columns, rows, size
    return columns, 1, size


def fours(entries: int) -> int:
    """So many and up to three more, a multiple of four."""
    return -(-entries // 4) * 4


class Loops:
    """The loops of `kernels.cu` for what was fixed, compiled when they are first needed."""

    def __init__(self, **fixed: Any) -> None:
        told = {**_PLAIN, **fixed}
        self._module = _compiled(*(f"-D{name}={value}" for name, value in told.items()))

    @classmethod
    def of_terms(cls, slope: Slope, labels: Any, **fixed: Any) -> Loops:
        """Of a slope, and a type of labels."""
        unit, label = slope.numbers[3], "signed char" if labels.dtype == np.int8 else "double"
        return cls(CODE=slope.code, UNIT=int(unit > 0) - int(unit < 0), Label=label, **fixed)

    def __call__(self, name: str, blocks: int, *arguments: Any, threads: int = THREADS, shared: int = 0) -> None:
        """Run a loop on so many blocks of threads; no array is a null pointer."""
        loop = self._module.get_function(name)
        if shared > SHARED:
            loop.max_dynamic_shared_size_bytes = shared
        told = tuple(np.intp(0) if argument is None else argument for argument in arguments)
        loop((blocks,), (threads,), told, shared_mem=shared)


@functools.cache
def _compiled(*options: str) -> Any:
    source = (files.files(__package__) / "kernels.cu").read_text(encoding="utf-8")
    return cupy().RawModule(code=source, options=(*options, "--std=c++14"))


@functools.cache
def _properties(device: int) -> tuple[int, int, int]:
    """Multiprocessors, bytes of shared memory that a block of threads may ask for, and the generation."""
    found = cupy().cuda.runtime.getDeviceProperties(device)
    return int(found["multiProcessorCount"]), int(found["sharedMemPerBlockOptin"]), int(found["major"])


def processors() -> int:
    """Multiprocessors of the device."""
    return _properties(cupy().cuda.runtime.getDevice())[0]


def shared_memory() -> int:
    """Bytes that a block of threads may have."""
    return _properties(cupy().cuda.runtime.getDevice())[1]


def resident_blocks(shared: int, most: int) -> int:
    """Blocks of threads of a multiprocessor that have so many bytes of shared memory each."""
    return max(1, min(shared_memory() // (shared + _RESERVED), most))


def has_products() -> bool:
    """Whether the device multiplies matrices in float64."""
    return _properties(cupy().cuda.runtime.getDevice())[2] >= 8


def loop_numbers(slope: Slope) -> Any:
    """What `fill_terms` is told, as the loops take it."""
    told = np.append(slope.numbers, 1.0 / slope.numbers[5])
    return told.view(_NUMBERS)[0]


@dataclass(eq=False)
class DevicePiece:
    """Rows with labels, on the device or on the host; of sparse rows starts, columns and entries."""

    rows: Any
    labels: Any
    null: Any
    sparse: tuple[Any, Any, Any] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def arrays(self) -> tuple[Any, ...]:
        return (*(self.sparse or (self.rows,)), self.labels, self.null)

    @classmethod
    def of(cls, arrays: list[Any]) -> DevicePiece:
        if len(arrays) == 3:
            return cls(*arrays)
        return cls(None, arrays[3], arrays[4], (arrays[0], arrays[1], arrays[2]))

    @property
    def size(self) -> int:
        """Bytes, each array at an aligned place."""
        return sum(map(_padded_size, self.arrays))


def _padded_size(array: Any) -> int:
    return -(-int(array.nbytes) // _ALIGNED) * _ALIGNED


class Arrays:
    """Rows and labels in memory as a source of pieces."""

    def __init__(self, X: Matrix, y: ArrayLike) -> None:
        self._rows: Matrix = X.tocsr() if is_sparse(X) else X if isinstance(X, Coded) else np.asarray(X)
        self._labels, self.shape = np.asarray(y), self._rows.shape
        if self._labels.shape != self.shape[:1]:
            raise InputError(
                f"y has shape {self._labels.shape} but X has {self.shape[0]} rows; give one label per row."
            )

    @property
    def density(self) -> float:
        if isinstance(self._rows, Coded):
            return float(self._rows.entries)
        return float(self._rows.nnz / max(self.shape[0], 1) if is_sparse(self._rows) else self.shape[1])

    def pieces(self, rows: int) -> Iterator[tuple[Matrix, NDArray[Any]]]:
        for start in range(0, self.shape[0], rows):
            yield self._rows[start : start + rows], self._labels[start : start + rows]


def stored(source: Any, recipe: Preparation, resources: Resources) -> tuple[list[DevicePiece], list[DevicePiece]]:
    """The rows of a source by the recipe, chunk by chunk: pieces on the device, and those of the host.

    A source has a `shape` and `pieces(rows)`, which gives rows with their labels, at most so many at once.
    """
    count, features = source.shape
    entries = CHUNK / (source.density + 1) if isinstance(source, Arrays) else READ / (features + 1)
    store = _Store(recipe, count)
    for rows, labels in source.pieces(max(LEAST_ROWS, int(entries))):
        known = np.zeros(rows.shape[0]) if labels is None else labels
        store.add(Block.prepare(rows, known, recipe, count, resources))
    store.join()
    if store.filled != count:
        raise InputError(f"X was said to have {count} rows but gave {store.filled}; read it again.")
    if store.null:
        tell_null_rows(store.null, count, resources)
    return store.pieces, store.host


class _Store:
    """Where prepared rows are put as they come: on the device while there is room, then in pinned memory."""

    def __init__(self, recipe: Preparation, count: int) -> None:
        self._xp, self._count, self._width = cupy(), count, recipe.dimension
        two = recipe.labelled and recipe.classes is not None and len(recipe.classes) == 2
        self._label = np.dtype(np.int8 if two else np.float64)  # -1 and 1 take an eighth of the traffic
        free = self._xp.cuda.runtime.memGetInfo()[0] + self._xp.get_default_memory_pool().free_bytes()
        self._room = (1.0 - RESERVE) * free
        self._dense: DevicePiece | None = None
        self.filled, self.null = 0, 0  # rows, and how many of them are null rows
        self.pieces, self.host = list[DevicePiece](), list[DevicePiece]()
        self._waiting = list[DevicePiece]()  # sparse parts that are too small for a piece

    def add(self, part: Block) -> None:
        self.filled += len(part)
        self.null += int(part.null_rows.sum())
        if self.filled > self._count:
            return
        labels = part.labels.astype(self._label)
        if is_sparse(part.rows):
            sparse = (part.rows.indptr.astype(np.int64), part.rows.indices.astype(np.int32), part.entries)
            self._waiting.append(DevicePiece(None, labels, part.null_rows, sparse=sparse))
            if sum(len(each.sparse[2]) for each in self._waiting if each.sparse is not None) >= CHUNK:
                self.join()
            return
        if self._dense is None:
            self._dense = self._allocated()
        start = self.filled - len(part)
        fit = min(max(len(self._dense) - start, 0), len(part))
        for target, array in zip(self._dense.arrays, (part.rows, labels, part.null_rows), strict=True):
            _send(target[start : start + fit], array[:fit])
        if fit < len(part):
            self.host.append(pinned(DevicePiece(part.rows[fit:], labels[fit:], part.null_rows[fit:])))

    def _allocated(self) -> DevicePiece:
        """Room for as many dense rows as fit beside their lengths and shares."""
        xp, each = self._xp, 4 * self._width + self._label.itemsize + 1 + 16
        fit = min(self._count, int(self._room / each))
        while True:
            try:
                rows = xp.empty((fit, self._width), dtype=np.float32)
                dense = DevicePiece(rows, xp.empty(fit, dtype=self._label), xp.empty(fit, dtype=bool))
            except xp.cuda.memory.OutOfMemoryError:  # another program was faster
                rows = None
                fit //= 2
            else:
                self.pieces.append(dense)
                return dense

    def join(self) -> None:
        """The sparse parts that wait as one piece."""
        parts, self._waiting = self._waiting, []
        if not parts:
            return
        starts, shift = [np.zeros(1, dtype=np.int64)], 0
        for part in parts:
            own = part.arrays[0]
            starts.append(own[1:] + shift)
            shift += int(own[-1])
        if shift >= 1 << 31:
            raise InputError('device="cuda" takes sparse rows in pieces of at most 2^31 entries; take device="cpu".')
        columns, entries, labels, null = (
            np.concatenate([part.arrays[place] for part in parts]) for place in (1, 2, 3, 4)
        )
        piece = DevicePiece(None, labels, null, sparse=(np.concatenate(starts), columns, entries))
        if not self.host and piece.size + 16 * len(piece) < self._room:
            try:
                self.pieces.append(on_device(piece))
            except self._xp.cuda.memory.OutOfMemoryError:
                self._room = 0.0
            else:
                self._room -= piece.size + 16 * len(piece)
                return
        self.host.append(pinned(piece))


def _send(target: Any, array: NDArray[Any], stream: Any = None) -> None:
    """An array of the host into one of the device that lies together, byte by byte."""
    array = np.ascontiguousarray(array, dtype=target.dtype)
    runtime = cupy().cuda.runtime
    if array.nbytes:
        told = (target.data.ptr, array.ctypes.data, array.nbytes, runtime.memcpyHostToDevice)
        runtime.memcpy(*told) if stream is None else runtime.memcpyAsync(*told, stream.ptr)


def on_device(piece: DevicePiece) -> DevicePiece:
    """A copy of a piece of the host; done when this returns."""
    xp, made = cupy(), []
    for array in piece.arrays:
        made.append(xp.empty(array.shape, dtype=array.dtype))
        _send(made[-1], array)
    return DevicePiece.of(made)


def sent_to(piece: DevicePiece, place: Any, stream: Any) -> DevicePiece:
    """A copy of a piece of the host in a place of the device's memory, under way when this returns."""
    made, start = [], 0
    for array in piece.arrays:
        target = place[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        _send(target, array, stream)
        made.append(target)
        start += _padded_size(array)
    return DevicePiece.of(made)


def pinned(piece: DevicePiece) -> DevicePiece:
    """In memory of the host from which the device reads at full speed; in any other if there is too little of it."""
    xp = cupy()

    def kept(array: Any) -> Any:
        try:
            memory = xp.cuda.alloc_pinned_memory(max(array.nbytes, 1))
        except xp.cuda.runtime.CUDARuntimeError:
            return np.array(array, order="C")
        made = np.frombuffer(memory, array.dtype, array.size).reshape(array.shape)
        made[...] = array
        return made

    return DevicePiece.of([kept(array) for array in piece.arrays])


def gathered(piece: DevicePiece, chosen: Integers, width: int) -> DevicePiece:
    """The chosen rows of a piece of the host."""
    labels, null = piece.labels[chosen], piece.null[chosen]
    if piece.sparse is None:
        return DevicePiece(piece.rows[chosen], labels, null)
    starts, columns, entries = piece.sparse
    rows = sp.csr_matrix((entries, columns, starts), shape=(len(piece), width), copy=False)[chosen]
    sparse = (rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data)
    return DevicePiece(None, labels, null, sparse=sparse)
