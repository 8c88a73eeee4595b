"""CuPy, what is known of the device, and the loops of `kernels.cu`, compiled when they are first needed."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any, Final

import numpy as np

from sottovoce.data.matrix import Slope
from sottovoce.errors import InputError

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
    source = (resources.files(__package__) / "kernels.cu").read_text(encoding="utf-8")
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
