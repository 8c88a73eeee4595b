"""Loops over rows shared out among threads: as many as `n_jobs` says, in the words of scikit-learn.

Threads of this process call loops that let go of Python's lock. So rows are not copied, nothing is forked, and no
second pool of threads competes with that of BLAS, as OpenMP or numba's own would; each part has its own sum, and sums
on the grids of `grid` are exact, so a result is the same bit for bit for any number of threads.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np

from sottovoce.arguments import is_whole
from sottovoce.errors import InputError

LEAST = 1 << 19  # entries that are worth a thread: about a tenth of a millisecond of a pass

Part = TypeVar("Part")


def check_jobs(n_jobs: Any) -> None:
    """Refuse what is no number of threads."""
    if n_jobs is not None and not (is_whole(n_jobs) and n_jobs != 0):
        raise InputError(
            f"n_jobs={n_jobs!r} must be a number of threads, None for 1, or -1 for all processors (-2: all but one)."
        )


@contextmanager
def using(n_jobs: int | None) -> Iterator[None]:
    """So many threads from here on in this thread; None leaves it to `joblib.parallel_config`, -1 is all processors."""
    if n_jobs is None:
        yield
        return
    from joblib import parallel_config

    with parallel_config("threading", n_jobs=n_jobs):
        yield


def threads(entries: int) -> int:
    """How many threads share a loop over so many entries: `n_jobs`, 1 unless it was said; fewer for a short loop."""
    if entries < 2 * LEAST:
        return 1
    from joblib import effective_n_jobs

    return max(1, min(int(effective_n_jobs(None)), entries // LEAST))


def even(count: int, parts: int) -> list[int]:
    """Where to cut `count` rows into so many parts."""
    return [count * part // parts for part in range(parts + 1)]


def each(work: Callable[[int, int], Part], cuts: Sequence[int]) -> list[Part]:
    """work(start, stop) between every two neighbouring cuts, side by side; the results in order."""
    parts = list(itertools.pairwise(cuts))
    if len(parts) == 1:
        return [work(*parts[0])]
    pool = _pool(os.getpid(), len(parts) - 1)  # the threads of a process are not in its fork
    others = [pool.submit(_silently(work), *part) for part in parts[1:]]
    try:
        first = work(*parts[0])
    finally:
        wait(others)  # none runs on when this returns
    return [first, *(other.result() for other in others)]


def added(parts: Sequence[Any]) -> Any:
    """The sum of what the parts have; no zero of it has a sign."""
    total = parts[0]
    for part in parts[1:]:
        total += part
    total += 0.0
    return total


@contextmanager
def plain_blas(parts: int) -> Iterator[None]:
    """Where several parts call BLAS, each call has one thread: pools of BLAS would wait for one another."""
    with nullcontext() if parts == 1 else _controller(os.getpid()).limit(limits=1, user_api="blas"):
        yield


def _silently(work: Callable[[int, int], Part]) -> Callable[[int, int], Part]:
    """A thread does not inherit NumPy's silence; a warning that a record caused could be turned into an error."""

    def silent(start: int, stop: int) -> Part:
        with np.errstate(all="ignore"):
            return work(start, stop)

    return silent


@functools.lru_cache(maxsize=4)
def _pool(_process: int, threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="sottovoce-rows")


@functools.lru_cache(maxsize=1)
def _controller(_process: int) -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
