"""Every loop in numba: what loops share, and one line to who waits while they are compiled.

What is computed for one record is a function of that record and of public numbers alone, bit for bit, in any place:
such code is compiled without leave to reorder or to fuse operations, so that vectorised and scalar instructions agree.
Leave to reorder is given to sums only, and these are exact: their terms are on public grids. A function without
options is compiled with its caller's leave, so every one has them.

numba compiles a loop at its first call on a machine and keeps it on disk. Nothing is said of loops that are there
already, nor of what takes less than `PATIENCE` seconds; else a line at INFO to the logger `sottovoce.kernels`, or to
the standard error where that logger shows no such lines and nobody set its level. numba's own events tell; no call of a
loop is wrapped.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import Any, Final

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.core.event import Listener, register
from numba.extending import intrinsic
from numpy.typing import NDArray

Array = NDArray[np.float64]
Entries = NDArray[Any]  # float32 or float64
Integers = NDArray[Any]  # the int32 or int64 of a sparse matrix
SparseRows = tuple[Integers, Integers, Entries]  # of a CSR matrix: where rows begin, the columns, and the entries

EXACT_SUM = {"reassoc", "contract", "nsz"}  # leave to add in any order
PATIENCE = 0.5  # seconds of compiling, in all, before anything is said
TEXT: Final = "compiling loops for this machine, once; this takes some seconds"

_log = logging.getLogger("sottovoce.kernels")


class Notice(Listener):
    """Says `TEXT` once, after `PATIENCE` seconds of compiling this package's loops.

    numba compiles under a lock, so starts and ends come from one thread at a time; a loop that calls another starts
    before it and ends after it.
    """

    def __init__(self) -> None:
        self.said = False
        self.compiled = 0  # loops so far
        self._depth = 0
        self._spent = 0.0
        self._start = 0.0
        self._timer: threading.Timer | None = None

    def on_start(self, event: Any) -> None:
        if _is_ours(event):
            self.compiled += 1
            self._depth += 1
            if self._depth == 1 and not self.said:
                self._start = time.monotonic()
                self._timer = threading.Timer(max(0.0, PATIENCE - self._spent), self._say)
                self._timer.daemon = True
                self._timer.start()

    def on_end(self, event: Any) -> None:
        if _is_ours(event):
            self._depth -= 1
            if self._depth == 0 and self._timer is not None:
                self._timer.cancel()
                self._timer = None
                self._spent += time.monotonic() - self._start

    def _say(self) -> None:
        self.said = True
        if _log.isEnabledFor(logging.INFO):
            _log.info(TEXT)
        elif not (_log.level or logging.getLogger("sottovoce").level) and sys.stderr is not None:
            sys.stderr.write(f"{TEXT}\n")  # nobody asked for silence


_watching: list[Notice] = []


def watch() -> None:
    """Give notice from now on; a second call does nothing."""
    if not _watching:
        _watching.append(Notice())
        register("numba:compile", _watching[0])  # type: ignore[no-untyped-call]  # numba has no types


def compiled() -> int:
    """How many loops this process has compiled: what is timed meanwhile takes longer than it will."""
    return sum(notice.compiled for notice in _watching)


def _is_ours(event: Any) -> bool:
    return str(event.data["dispatcher"].py_func.__module__).startswith("sottovoce.")


def _ask_for(_context: Any, array: Any, _place: Any) -> Any:
    """Code that asks for the memory of array[place] and waits for nothing; any place will do."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.bitcast(builder.gep(view.data, [arguments[1]]), cgutils.voidptr_t)
        flags = [context.get_constant(types.int32, flag) for flag in (0, 2, 1)]  # read, second cache, data
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, *(flag.type for flag in flags)])
        builder.call(builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], kind), [pointer, *flags])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


prefetch: Any = intrinsic(_ask_for)

watch()
