"""Threads, a device and a listener for work on rows; no result depends on any of them.

Threads of this process call loops that release Python's lock. So rows are not copied, nothing is forked, and no second
pool of threads competes with that of BLAS, as OpenMP or numba's own would. Each part has its own sum, and sums on the
grids of `matrix` are exact, so a result is the same bit for bit for any number of threads.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np

from sottovoce.arguments import is_whole
from sottovoce.data.room import in_words, within_limits
from sottovoce.errors import InputError

DEVICES: Final = ("cpu", "cuda")
LEAST = 1 << 19  # entries that are worth a thread: about a tenth of a millisecond of a pass
BLAS_NEEDS: Final = 96_000_000  # bytes: two libraries with a buffer of 34 MB each, and room to work
THREAD_NEEDS: Final = 68_000_000  # bytes for each further thread that calls them at the same time
PREPARING: Final = "preparing rows"
READING: Final = "reading rows"

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
    """

    n_jobs: int | None = None
    device: str | None = None
    verbose: bool = False
    progress: Hear | None = None

    def over(self, others: Resources) -> Resources:
        """These, and the others' where there are none."""
        return Resources(
            others.n_jobs if self.n_jobs is None else self.n_jobs,
            others.device if self.device is None else self.device,
            self.verbose or others.verbose,
            others.progress if self.progress is None else self.progress,
        )

    def quiet(self) -> Resources:
        """The same threads and device, and nobody hears how far work has come."""
        return Resources(self.n_jobs, self.device)

    @property
    def jobs(self) -> int:
        """Threads at most."""
        from joblib import cpu_count, effective_n_jobs

        if self.n_jobs is None:
            return int(effective_n_jobs(None))
        return self.n_jobs if self.n_jobs > 0 else max(1, cpu_count() + 1 + self.n_jobs)

    def threads(self, entries: int) -> int:
        """How many threads share a loop over these entries; fewer for a short loop."""
        return 1 if entries < 2 * LEAST else max(1, min(self.jobs, entries // LEAST))

    def tell(self, what: str, done: int, total: int) -> None:
        """Tell the listener, if there is one."""
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
        from sottovoce.data.device.loops import cupy

        cupy()


def even_cuts(count: int, parts: int) -> list[int]:
    """Where to cut `count` rows into `parts`."""
    return [count * part // parts for part in range(parts + 1)]


def run_parts(work: Callable[[int, int], Result], cuts: Sequence[int]) -> list[Result]:
    """work(start, stop) between every two neighbouring cuts, side by side; the results in order."""
    parts = list(itertools.pairwise(cuts))
    if len(parts) == 1:
        return [work(*parts[0])]
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


def sum_parts(work: Callable[[int, int], Any], cuts: Sequence[int]) -> Any:
    """The sum of what `run_parts` gives; no zero of it has a sign."""
    total, *others = run_parts(work, cuts)
    for part in others:
        total += part
    total += 0.0
    return total


@contextmanager
def plain_blas(parts: int) -> Iterator[None]:
    """Where several parts call BLAS, each call has one thread: pools of BLAS would wait for one another."""
    with nullcontext() if parts == 1 else _controller(os.getpid()).limit(limits=1, user_api="blas"):
        yield


@functools.lru_cache(maxsize=16)
def take_buffers(_process: int, jobs: int) -> None:
    """Call the BLAS of NumPy and that of SciPy, once in a process; refuse where its limits leave too little.

    OpenBLAS takes a buffer at its first call and keeps it. Where a limit of the process has no room for one it asks for
    ever, and a release would never end. So each library is called once before rows are prepared and anything is
    charged.
    """
    from scipy.linalg.blas import dtrmm

    needed, left = BLAS_NEEDS + THREAD_NEEDS * (jobs - 1), within_limits()
    if left is not None and left < needed:
        fewer = ", or take a smaller n_jobs" if jobs > 1 else ""
        raise InputError(
            f"the limit of this process (ulimit -d, ulimit -v) leaves {in_words(max(left, 0))} of memory, and a fit "
            f"needs about {in_words(needed)} beside its rows. Raise the limit{fewer}. Nothing was charged."
        )
    small = np.eye(4)
    np.dot(small.T, small)  # a product with itself: that of two small matrices takes no buffer
    dtrmm(1.0, small, small)


@functools.lru_cache(maxsize=4)
def _row_threads(_process: int, threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="sottovoce-rows")


@functools.lru_cache(maxsize=1)
def _controller(_process: int) -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
