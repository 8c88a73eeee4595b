"""Threads, a device, a listener and room for work on rows, in memory and on disk; no result depends on any of them.

Threads of this process call loops that release Python's lock. So rows are not copied, nothing is forked, and no second
pool of threads competes with that of BLAS, as OpenMP or numba's own would. Each part has its own sum, and sums on the
grids of `matrix` are exact, so a result is the same bit for bit for any number of threads.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal, TypeVar

import numpy as np

from sottovoce.arguments import is_whole
from sottovoce.errors import InputError

DEVICES: Final = ("cpu", "cuda")
CALM: Final = 1000  # columns up to which BLAS with one thread is as fast between sums over rows
LIGHT: Final = 1e9  # multiplications of a sum up to which it is in that
LEAST = 1 << 19  # entries that are worth a thread: about a tenth of a millisecond of a pass
BLAS_NEEDS: Final = 96_000_000  # bytes: two libraries with a buffer of 34 MB each, and room to work
THREAD_NEEDS: Final = 68_000_000  # bytes for each further thread that calls them at the same time
PREPARING: Final = "preparing rows"
READING: Final = "reading rows"
SHARE: Final = 4  # rows take at most this part of the memory that is left
UNKNOWN: Final = 1 << 32  # bytes that are taken for free where the system does not say
_GROUPS: Final = Path("/sys/fs/cgroup")
_UNLIMITED: Final = 1 << 60
_BLAS: Final[dict[int, Any]] = {}  # by process: who wants it with one thread

Hear = Callable[[str, int, int], None]  # what is done, records done, records in all: public counts
Result = TypeVar("Result")


@dataclass(frozen=True)
class Resources:
    """What a fit may use in this process. The model is the same, bit for bit, whatever it is.

    Parameters
    ----------
    n_jobs : int or None
        Threads for sums over the rows of parties in this process. None is 1, unless `joblib.parallel_config` says
        otherwise; -1 is all processors.
    device : {"cpu", "cuda"} or None
        Where these sums are computed; None is the CPU.
    verbose : bool
        Show the progress of a fit, with the time left.
    progress : function or None
        Called with (what is done, records done, records in all) during long work on rows.
    holder : {"elsewhere", "here", "caller"}
        Set by a federation: whether the holder of the rows runs the job in this process, or calls it, and is told of
        rows that cannot be used by an error or a warning too.
    """

    n_jobs: int | None = None
    device: str | None = None
    verbose: bool = False
    progress: Hear | None = None
    holder: Literal["elsewhere", "here", "caller"] = field(default="elsewhere", repr=False)

    def over(self, others: Resources) -> Resources:
        """These, and the others' where there are none."""
        return Resources(
            others.n_jobs if self.n_jobs is None else self.n_jobs,
            others.device if self.device is None else self.device,
            self.verbose or others.verbose,
            others.progress if self.progress is None else self.progress,
            others.holder if self.holder == "elsewhere" else self.holder,
        )

    def quiet(self) -> Resources:
        """The same threads and device, and nobody hears how far work has come."""
        return Resources(self.n_jobs, self.device)

    @property
    def jobs(self) -> int:
        from joblib import cpu_count, effective_n_jobs

        if self.n_jobs is None:
            return int(effective_n_jobs(None))
        return self.n_jobs if self.n_jobs > 0 else max(1, cpu_count() + 1 + self.n_jobs)

    def cuts(self, count: int, entries: int, most: int | None = None) -> list[int]:
        """Where to cut `count` rows of these entries for threads to share, `most` of them; fewer for a short loop."""
        parts = 1 if entries < 2 * LEAST else max(1, min(self.jobs, entries // LEAST))
        parts = parts if most is None else max(1, min(parts, most))
        return (np.arange(parts + 1) * count // parts).tolist()

    def tell(self, what: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(what, done, total)


NO_RESOURCES: Final = Resources()


def check_resources(resources: Any) -> None:
    """Refuse what nothing can run with: a wrong number of threads, no device, or one that is not there."""
    if resources is None:
        return
    if not isinstance(resources, Resources):
        raise InputError(f"resources={resources!r} must be sv.Resources(n_jobs=..., device=...) or None.")
    n_jobs, device = resources.n_jobs, resources.device
    if n_jobs is not None and not (is_whole(n_jobs) and n_jobs != 0):
        raise InputError(
            f"n_jobs={n_jobs!r} must be a number of threads, None for 1, or -1 for all processors (-2: all but one)."
        )
    if device not in (None, *DEVICES):
        raise InputError(f"device={device!r} must be one of {', '.join(map(repr, DEVICES))}.")
    if device == "cuda":
        from sottovoce.data.device.pieces import cupy

        cupy()


def run_parts(work: Callable[[int, int], Result], cuts: Sequence[int], *, blas: int = 0) -> list[Result]:
    """work(start, stop) between every two neighbouring cuts, side by side; results in order.

    `blas`: it calls that, for so many multiplications for each row. One heavy part has all threads of it.
    """
    parts = list(itertools.pairwise(cuts))
    if len(parts) == 1:
        with plain_blas(-1) if blas * cuts[-1] > LIGHT else contextlib.nullcontext():
            return [work(*parts[0])]
    if blas:
        with plain_blas():
            return run_parts(work, cuts)
    pool = _row_threads(os.getpid(), len(parts) - 1)  # the threads of a process are not in its fork

    def silent(start: int, stop: int) -> Result:
        # A thread does not inherit NumPy's silence; a warning that a record caused could be turned into an error.
        with np.errstate(all="ignore"):
            return work(start, stop)

    others = [pool.submit(silent, *part) for part in parts[1:]]
    try:
        first = work(*parts[0])
    finally:
        wait(others)  # none runs on when this returns
    return [first, *(other.result() for other in others)]


def sum_parts(work: Callable[[int, int], Any], cuts: Sequence[int], *, blas: int = 0) -> Any:
    """The sum of what `run_parts` gives; no zero of it has a sign."""
    total, *others = run_parts(work, cuts, blas=blas)
    for part in others:
        total += part
    total += 0.0
    return total


def plain_blas(more: int = 1, *, leaving: bool = False) -> contextlib.ExitStack:
    """BLAS with one thread, since pools of BLAS would wait for one another; with -1, inside, with all that it had.

    That begins with the call and ends with the context. The first to enter sets the limit of the process, and the last
    to leave takes it back, in whatever order.
    """
    from threadpoolctl import ThreadpoolController

    own = _BLAS.setdefault(os.getpid(), SimpleNamespace(lock=threading.Lock(), inside=0, controller=None))
    with own.lock:
        before, after = own.inside, own.inside + more
        if not leaving and before <= 0 and more < 0:
            return contextlib.ExitStack()  # there is no limit to lift
        own.inside = after
        if before <= 0 < after:
            own.controller = own.controller or ThreadpoolController()
            own.limit = own.controller.limit(limits=1, user_api="blas")
        elif after <= 0 < before:
            own.limit.restore_original_limits()
    stack = contextlib.ExitStack()
    if not leaving:
        stack.callback(plain_blas, -more, leaving=True)
    return stack


@functools.lru_cache(maxsize=16)
def take_buffers(_process: int, jobs: int) -> None:
    """Call the BLAS of NumPy and that of SciPy, once in a process; refuse where its limits leave too little.

    OpenBLAS takes a buffer at its first call and keeps it. Where a limit of the process has no room for one it asks for
    ever, and a release would never end. So each library is called once before rows are prepared and anything is
    charged.
    """
    from scipy.linalg.blas import dtrmm

    needed, left = BLAS_NEEDS + THREAD_NEEDS * (jobs - 1), min(_of_process(), default=None)
    if left is not None and left < needed:
        fewer = ", or take a smaller n_jobs" if jobs > 1 else ""
        raise InputError(
            f"the limit of this process (ulimit -d, ulimit -v) leaves {in_words(max(left, 0))} of memory, and a fit "
            f"needs about {in_words(needed)} beside its rows. Raise the limit{fewer}."
        )
    small = np.eye(4)
    np.dot(small.T, small)  # a product with itself: that of two small matrices takes no buffer
    dtrmm(1.0, small, small)


@functools.lru_cache(maxsize=4)
def _row_threads(_process: int, threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="sottovoce-rows")


def fits_in_memory(size: int, *, after: int = 0) -> bool:
    """Whether `size` bytes are at most a quarter of the memory that this process may still take, `after` others."""
    return SHARE * size <= available() - after


def too_large(X: Any) -> bool:
    """Whether an array is a memory map that is read piece by piece, as it would not fit in memory."""
    return isinstance(X, np.memmap) and X.ndim == 2 and not fits_in_memory(8 * X.size)


def available() -> int:
    """Bytes that this process may still take: by the machine, its control groups and its own limits."""
    found = _of_process()
    try:
        free = re.search(r"^MemAvailable:\s*(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        free = None
    if free is not None:
        found.append(1024 * int(free[1]))
    else:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds == "":
                found += _of_group(_GROUPS, path, "memory.max", "memory.current", "inactive_file")
            elif "memory" in kinds.split(","):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
                found += _of_group(_GROUPS / "memory", path, *names)
    return max(0, min(found, default=UNKNOWN))


def _of_process() -> list[int]:
    """What the soft limits of RLIMIT_AS and RLIMIT_DATA leave, where there are any."""
    found = list[int]()
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        pages = list(map(int, Path("/proc/self/statm").read_text().split()))
        for limit, used in ((resource.RLIMIT_AS, pages[0]), (resource.RLIMIT_DATA, pages[5])):
            soft, _ = resource.getrlimit(limit)
            if soft != resource.RLIM_INFINITY:
                found.append(soft - used * resource.getpagesize())
    return found


def _of_group(root: Path, path: str, limit: str, usage: str, given_back: str) -> Iterator[int]:
    """Of a control group and those above it: the limit, less what is used and cannot be given back."""
    place = root / path.lstrip("/")
    for folder in (place, *place.parents):
        if folder == root.parent:
            return
        with contextlib.suppress(OSError, ValueError, IndexError):  # a folder that is not seen here has no numbers
            most = int((folder / limit).read_text())
            if most < _UNLIMITED:
                lines = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                yield most - int((folder / usage).read_text()) + int(lines.get(given_back, 0))


def resident() -> int:
    """Bytes that this process has now; 0 where the system does not say."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


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
            "another folder with folder=."
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
