"""The buffers of BLAS, taken while a fit can still be refused.

OpenBLAS takes a buffer at its first call and keeps it. Where a limit of the process has no room for one it asks for
ever, and a release would never end. So each library is called once before rows are prepared and anything is charged.
"""

from __future__ import annotations

import functools
import os
from typing import Final

import numpy as np

from sottovoce.data.room import in_words, within_limits
from sottovoce.errors import InputError

NEEDED: Final = 96_000_000  # bytes: two libraries with a buffer of 34 MB each, and room to work
ANOTHER: Final = 68_000_000  # bytes for each further thread that calls them at the same time


def take_buffers() -> None:
    """Call the BLAS of NumPy and that of SciPy, once in a process; refuse where its limits leave too little."""
    from joblib import effective_n_jobs

    _taken(os.getpid(), int(effective_n_jobs(None)))


@functools.lru_cache(maxsize=16)
def _taken(_process: int, jobs: int) -> None:
    from scipy.linalg.blas import dtrmm

    needed, left = NEEDED + ANOTHER * (jobs - 1), within_limits()
    if left is not None and left < needed:
        fewer = ", or take a smaller n_jobs" if jobs > 1 else ""
        raise InputError(
            f"the limit of this process (ulimit -d, ulimit -v) leaves {in_words(max(left, 0))} of memory, and a fit "
            f"needs about {in_words(needed)} beside its rows. Raise the limit{fewer}. Nothing was charged."
        )
    small = np.eye(4)
    np.dot(small.T, small)  # a product with itself: that of two small matrices takes no buffer
    dtrmm(1.0, small, small)
