"""Blinding on all cores: the library holds Python's lock while it multiplies, so others than this process do it.

A worker is `python -m sottovoce.secure.workers`, started anew (never forked: this process runs threads of a wire). It
gets a scalar and points over its standard input and answers with points; it ends when its input does.

    request   scalar (32 bytes) | number of points (8 bytes) | points
    answer    1 (or 0: a point of small order, and no points) | points
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
from typing import IO, Any, Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from sottovoce import systems
from sottovoce.errors import RefusedError

POINT: Final = 32  # bytes
_COUNT: Final = struct.Struct("<Q")
_FEW: Final = 2048  # points that are not worth a worker
_MOST: Final = 32  # workers


def blinded(scalar: bytes, points: bytes) -> bytes:
    """Each point times the scalar, in this process; ValueError for a point of small order."""
    key, load = X25519PrivateKey.from_private_bytes(scalar), X25519PublicKey.from_public_bytes
    return b"".join([key.exchange(load(points[start : start + POINT])) for start in range(0, len(points), POINT)])


class Workers:
    """Processes that multiply points; started at the first long list, ended by `close`."""

    def __init__(self, processes: int | None = None) -> None:
        self._wanted = min(_MOST, systems.cores() if processes is None else processes)
        self._started: list[subprocess.Popen[bytes]] = []

    def blinded(self, scalar: bytes, points: bytes) -> bytes:
        """Each point times the scalar; a point of small order is refused."""
        try:
            return self._shared(scalar, points) if len(points) >= _FEW * POINT else blinded(scalar, points)
        except ValueError:
            raise RefusedError("a list of an alignment has a point of small order.") from None

    def close(self) -> None:
        """End the workers; a second call does nothing."""
        for worker in self._started:
            with contextlib.suppress(OSError):
                _end(worker.stdin).close()
            _end(worker.stdout).close()
            worker.wait()
        self._started = []

    def _shared(self, scalar: bytes, points: bytes) -> bytes:
        if self._wanted < 2:
            return blinded(scalar, points)
        if not self._started:
            self._started = [_worker() for _ in range(self._wanted)]
        each = POINT * -(-len(points) // (POINT * len(self._started)))
        shares = [points[start : start + each] for start in range(0, len(points), each)]
        try:
            busy = self._started[: len(shares)]
            for worker, share in zip(busy, shares, strict=True):
                _end(worker.stdin).write(scalar + _COUNT.pack(len(share) // POINT) + share)
                _end(worker.stdin).flush()
            found = [
                _read_answer(_end(worker.stdout), 1 + len(share)) for worker, share in zip(busy, shares, strict=True)
            ]
        except OSError:
            self.close()  # a worker is gone: this process does it
            return blinded(scalar, points)
        if not all(answer[:1] == b"\1" for answer in found):
            self.close()
            raise ValueError("a point of small order")
        return b"".join(answer[1:] for answer in found)


def _worker() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "sottovoce.secure.workers"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)  # noqa: S603


def _end(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise OSError("a worker without a pipe")
    return pipe


def _read_answer(pipe: Any, count: int) -> bytes:
    """That many bytes, or the one byte of a refusal."""
    first: bytes = pipe.read(1)
    if first == b"\0":
        return first
    rest: bytes = pipe.read(count - 1)
    if not first or len(rest) != count - 1:
        raise OSError("a worker ended")
    return first + rest


def _serve_requests() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; the input ends with the process that started it
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while len(head := source.read(POINT + _COUNT.size)) == POINT + _COUNT.size:
        points = source.read(POINT * _COUNT.unpack(head[POINT:])[0])
        try:
            sink.write(b"\1" + blinded(head[:POINT], points))
        except ValueError:
            sink.write(b"\0")
        sink.flush()


if __name__ == "__main__":
    _serve_requests()
