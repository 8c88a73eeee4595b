"""Where the cells of a column are, and which range their noisy counts tell. Functions of public numbers alone."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Range = tuple[float, float]

LEAST, MOST = -20, 39  # |x| in [2^k, 2^(k+1)) for k from LEAST to MOST, the outermost open
ZERO: Final = MOST - LEAST + 1  # the place of the cell |x| < 2^LEAST; negative numbers have the places below it
POWERS: Final = 2 * ZERO + 1
EQUAL: Final = 16  # equal cells of a run
MISTAKES: Final = 0.05  # the chance that an empty cell of any column counts as one with records
TAIL: Final = 0.01  # of the records, the most that a cell at an end may have and be dropped

_ENDS: Final = 2.0 ** np.arange(LEAST, MOST + 2)
LOWS: Final = np.concatenate([-_ENDS[:0:-1], [0.0], _ENDS[:-1]])  # by place; as an end, the cell of 0 is 0
HIGHS: Final = np.concatenate([-_ENDS[-2::-1], [0.0], _ENDS[1:]])


def power_places(values: Array) -> Integers:
    """The place of each finite value among the powers of two."""
    sizes = np.abs(values)
    exponents = np.frexp(sizes)[1].astype(np.int64) - 1  # |x| is in [2^e, 2^(e+1))
    steps = np.where(sizes < 2.0**LEAST, 0, np.clip(exponents, LEAST, MOST) - LEAST + 1)
    return np.asarray(np.where(values < 0, ZERO - steps, ZERO + steps), dtype=np.int64)


def equal_places(values: Array, low: Array, high: Array) -> Integers:
    """The place of each finite value among the equal cells of its run; values beyond it count in the end cells."""
    places = np.floor((np.clip(values, low, high) - low) * (EQUAL / (high - low)))
    return np.clip(places, 0, EQUAL - 1).astype(np.int64)


def run_of(counts: Array, noise: float, columns: int) -> tuple[int, int] | None:
    """From the first to the last power of two that has records: its count stands out of the noise. None: none does."""
    (on,) = np.nonzero(counts > noise * -float(ndtri(MISTAKES / (POWERS * columns))))
    return (int(on[0]), int(on[-1])) if len(on) else None


def ends_of(run: tuple[int, int]) -> Range:
    """The numbers that a run spans. An end at the cell of 0 is 0; that cell alone is [-1, 1]."""
    first, last = run
    return (-1.0, 1.0) if first == last == ZERO else (float(LOWS[first]), float(HIGHS[last]))


def range_of(counts: Array, noise: float, run: Range) -> Range:
    """The run less the cells at its ends that have next to no records; the whole run where noise hides which."""
    low, high = run
    width, below, above = (high - low) / EQUAL, _dropped(counts, noise), _dropped(counts[::-1], noise)
    return run if below + above >= EQUAL else (low + below * width, high - above * width)


def _dropped(counts: Array, noise: float) -> int:
    """How many cells from the first on are dropped: while what all of them have is a small share, or noise."""
    cells = np.arange(1, EQUAL + 1)
    few = np.cumsum(counts) <= np.maximum(TAIL * counts.sum(), 2 * noise * np.sqrt(cells))
    return EQUAL if few.all() else int(np.argmin(few))


def share_of(columns: int, signal: float) -> float:
    """The share of mu squared at which a cell of about 2% of the records stands out, from 2% to 10% of it.

    80,000 columns / (N mu)^2, before it is cut; `wanted` says how much that is.
    """
    return min(max(wanted(columns, signal), 0.02), 0.10)


def wanted(columns: int, signal: float) -> float:
    """The share that ranges of so many columns would take; above 1 no budget buys them."""
    return 80_000 * columns / signal**2 if math.isfinite(signal) else 0.0
