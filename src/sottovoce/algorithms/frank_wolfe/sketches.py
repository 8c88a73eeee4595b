"""Public sketches J, m x N: J a has m numbers instead of N, and J'J is the identity on average.

One record changes one entry of a column a, so J a moves by that change times one column of J. Columns of norm one make
the sensitivity of the sketch that of the entry. The matrix follows from the plan's public coin.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import public_coin
from sottovoce.errors import InputError
from sottovoce.plan.plan import Plan

Array = NDArray[np.float64]

SKETCHES = ("count", "rademacher", "gaussian")
DENSE = 2**28  # entries of a sketch that is kept as a matrix, at most
GRID = 2.0**-10  # of the entries of a Gaussian sketch, before the division by sqrt m


class CountSketch:
    """One entry +1 or -1 in every column, at a random place: J a costs one pass."""

    norm = 1.0
    moved = 1.0  # entries of J a that one record moves

    def __init__(self, size: int, records: int, generator: np.random.Generator) -> None:
        self.size = size
        self.places = generator.integers(size, size=records)
        self.signs = generator.integers(2, size=records) * 2.0 - 1.0

    def apply(self, values: Array, records: NDArray[Any] | None = None) -> Array:
        """J a, exactly if the sums of the entries are exact; `records` says whose entries the values are."""
        places, signs = (self.places, self.signs) if records is None else (self.places[records], self.signs[records])
        return np.bincount(places, weights=signs * values, minlength=self.size).astype(np.float64)

    def back(self, sketched: Array) -> Array:
        """J'q, one number for each record."""
        found = sketched[self.places]
        found *= self.signs
        return np.asarray(found)


class DenseSketch:
    """Entries +-1/sqrt m ("rademacher"), or N(0, 1/m) as published, whose columns have norms near one only.

    Times sqrt m the entries are +-1, or multiples of GRID below 8: so sums over records of entries on the grid of a
    block are exact, in any order, for the at most 2^24 records that DENSE allows: (8 N)(2^10)(2^b) <= 2^53 where
    N 2^(2 b) <= 2^53.
    """

    def __init__(self, size: int, records: int, generator: np.random.Generator, *, gaussian: bool) -> None:
        if size * records > DENSE:
            raise InputError(
                f"sketch: a dense sketch of {size} x {records} numbers is too large; take sketch='count', which needs "
                "one number for each record."
            )
        self.size = size
        self.moved = float(size)
        self.root = math.sqrt(size)
        if gaussian:
            self.matrix = generator.standard_normal((size, records), dtype=np.float32)
            np.clip(np.rint(self.matrix / GRID) * GRID, -8 + GRID, 8 - GRID, out=self.matrix)
            self.norm = float(np.sqrt(np.einsum("ij,ij->j", self.matrix, self.matrix, dtype=np.float64).max()))
            self.norm *= (1 + 2.0**-20) / self.root
        else:
            self.matrix = generator.integers(2, size=(size, records), dtype=np.int8).astype(np.float32) * 2 - 1
            self.norm = 1.0

    def apply(self, values: Array, records: NDArray[Any] | None = None) -> Array:
        """J a, but for one rounding of each entry: the division by sqrt m."""
        matrix = self.matrix if records is None else self.matrix[:, records]
        found = np.empty(self.size)
        for start in range(0, self.size, 64):
            found[start : start + 64] = matrix[start : start + 64].astype(np.float64) @ values
        return found / self.root

    def back(self, sketched: Array) -> Array:
        """J'q."""
        found = np.zeros(self.matrix.shape[1])
        for start in range(0, self.size, 64):
            found += sketched[start : start + 64] @ self.matrix[start : start + 64].astype(np.float64)
        return np.asarray(found / self.root)


Sketch = CountSketch | DenseSketch


def sketch_of(plan: Plan) -> Sketch:
    """The plan's sketch; everybody draws the same. The published, Gaussian one is one and the same in all plans."""
    kind, size = SKETCHES[int(plan["sketch"])], int(plan["sketch_size"])
    coin = np.random.default_rng([size, plan.records]) if kind == "gaussian" else public_coin(plan, "sketch")
    return make_sketch(kind, size, plan.records, coin)


def largest_singular_value(plan: Plan) -> float:
    """Of a Gaussian sketch: 1 + sqrt(N / m), its limit as both grow."""
    return 1.0 + math.sqrt(plan.records / plan["sketch_size"])


def make_sketch(kind: str, size: int, records: int, generator: np.random.Generator) -> Sketch:
    """A sketch by name."""
    if kind == "count":
        return CountSketch(size, records, generator)
    return DenseSketch(size, records, generator, gaussian=kind == "gaussian")
