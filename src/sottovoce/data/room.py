"""How much room there is for rows: in memory, and in a folder for files that hold them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sottovoce.errors import InputError

SHARE: Final = 4  # rows take at most this part of the memory that is left
UNKNOWN: Final = 1 << 32  # bytes that are taken for free where the system does not say
_GROUPS: Final = Path("/sys/fs/cgroup")
_UNLIMITED: Final = 1 << 60


def fits_in_memory(size: int, *, after: int = 0) -> bool:
    """Whether `size` bytes are at most a quarter of the memory that this process may still take, `after` others."""
    return SHARE * size <= available() - after


def available() -> int:
    """Bytes that this process may still take: by the machine, its control group and its own limits."""
    return max(0, min([*_of_machine(), *_of_groups(), *_of_process()], default=UNKNOWN))


def within_limits() -> int | None:
    """Bytes that this process's own limits leave it; None where it has none."""
    return min(_of_process(), default=None)


def resident() -> int:
    """Bytes that this process has now; 0 where the system does not say."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _of_machine() -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        yield 1024 * int(lines["MemAvailable"].split()[0])
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):
        yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _of_process() -> Iterator[int]:
    """The soft limits of RLIMIT_AS and RLIMIT_DATA, less what is taken."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        taken = [int(pages) * resource.getpagesize() for pages in Path("/proc/self/statm").read_text().split()]
        for limit, used in ((resource.RLIMIT_AS, taken[0]), (resource.RLIMIT_DATA, taken[5])):
            soft, _ = resource.getrlimit(limit)
            if soft != resource.RLIM_INFINITY:
                yield soft - used


def _of_groups() -> Iterator[int]:
    """Of every control group that this process is in: its limit, less what is used and cannot be given back."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds == "":
                yield from _of_group(_GROUPS, path, "memory.max", "memory.current", "inactive_file")
            elif "memory" in kinds.split(","):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
                yield from _of_group(_GROUPS / "memory", path, *names)


def _of_group(root: Path, path: str, limit: str, usage: str, given_back: str) -> Iterator[int]:
    place = root / path.lstrip("/")
    for folder in (place, *place.parents):
        if folder == root.parent:
            return
        with contextlib.suppress(OSError, ValueError, IndexError):  # a folder that is not seen here has no numbers
            most = int((folder / limit).read_text())
            if most < _UNLIMITED:
                lines = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                yield most - int((folder / usage).read_text()) + int(lines.get(given_back, 0))


def named_place(folder: Path | None, beside: Path | None) -> Path:
    """Where a file of rows goes: the folder, that of the ledger, or where the system has large temporary files."""
    if folder is not None or beside is not None:
        return folder or beside or Path()
    large = Path("/var/tmp")  # noqa: S108
    return large if "TMPDIR" not in os.environ and large.is_dir() else Path(tempfile.gettempdir())


def place_for(folder: Path | None, beside: Path | None) -> Path:
    """Where a file of rows goes, which is a folder."""
    found = named_place(folder, beside)
    if not found.is_dir():
        raise InputError(f"folder={str(found)!r} for prepared rows is no folder; make it, or name another.")
    return found


def check_free(folder: Path, needed: int) -> None:
    """Refuse to fill a disk."""
    stats = os.statvfs(folder) if hasattr(os, "statvfs") else None
    if stats is not None and (free := stats.f_bavail * stats.f_frsize) < needed:
        raise InputError(
            f"prepared rows need {in_words(needed)} in {folder}, which has {in_words(free)} free. Make room, or name "
            "another folder with folder=. Nothing was charged."
        )


def full(folder: Path, error: OSError) -> InputError:
    """What is said when a file of rows could not be written."""
    return InputError(
        f"prepared rows could not be written to {folder} ({error.strerror}); nothing of them is left there. Make room, "
        "or name another folder with folder=."
    )


def open_scratch(folder: Path) -> int:
    """A new file that this user alone may read. It has no name, and is gone once it is closed, or with its process."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (OSError, AttributeError):  # a file system without such files
        try:
            handle, name = tempfile.mkstemp(".new", ".sottovoce-", folder)
        except OSError as error:
            raise full(folder, error) from None
        Path(name).unlink()
        return handle


def in_words(count: int) -> str:
    """A number of bytes."""
    return f"{count / 1e9:.3g} GB" if count >= 1e8 else f"{count / 1e6:.3g} MB"
