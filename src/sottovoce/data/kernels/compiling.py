"""One line to who waits while loops are compiled: at INFO, to the logger `sottovoce.kernels`.

numba compiles a loop at its first call on a machine and keeps it on disk. Nothing is said of loops that are there
already, nor of what takes less than `PATIENCE` seconds. numba's own events tell; no call of a loop is wrapped.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Final

from numba.core.event import Listener, register

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
        _log.info(TEXT)


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
