"""What differs between operating systems, for all who depend on it: locks, modes, open files, folders, cores.

What a system lacks altogether is told where it is needed: rows in files need `pread` (`data.block_parts`).
docs/operations.md has the table.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

try:
    import fcntl
except ImportError:  # pragma: no cover  # Windows
    fcntl = None  # type: ignore[assignment]
try:
    import msvcrt
except ImportError:
    msvcrt = None  # type: ignore[assignment]

POSIX: Final = os.name == "posix"  # a file has a mode, and one that is open can be removed
# How files of this process alone are opened: no link of somebody else, no wait at a pipe, bytes as they are.
PLAIN: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_FAR: Final = 1 << 30  # a byte that no file of ours has: on Windows what is locked cannot be read by others


def lock(handle: int, *, wait: bool = False) -> None:
    """Have an open file alone until it is closed; BlockingIOError if somebody has it, unless this is to `wait`.

    Edge: an OSError where neither system nor disk has locks: whoever needs one refuses.
    """
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return
    if msvcrt is None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    before = os.lseek(handle, 0, os.SEEK_CUR)
    os.lseek(handle, _FAR, os.SEEK_SET)
    try:
        while True:
            try:
                msvcrt.locking(handle, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
                return
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EDEADLK):
                    raise
                if not wait:  # LK_LOCK gives up after ten seconds
                    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
    finally:
        os.lseek(handle, before, os.SEEK_SET)


def others_may_read(path: Path, *, group: bool = True) -> bool:
    """Whether others than its owner, or not even in its group, may read a file, as far as its mode says that."""
    return POSIX and bool(path.stat().st_mode & (0o077 if group else 0o007))


def make_own(handle: int) -> None:
    """Make an open file its owner's alone, where a file has a mode."""
    if POSIX:
        os.fchmod(handle, 0o600)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the system can."""
    if POSIX:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def cores() -> int:
    """On how many this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
