"""Public sketches J, m x N, and the queries that release J a: m numbers instead of N, and J'J the identity on average.

One record changes one entry of a column a, so J a moves by that change times one column of J. Columns of norm one make
the sensitivity of the sketch that of the entry. The matrix follows from the plan's public coin.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.block import toward_zero
from sottovoce.errors import InputError
from sottovoce.gate.query import Array, Query, Round, Turn, Wholes, World, label_party
from sottovoce.plan import Numbers, Plan, Problem

Kind = Literal["count", "rademacher", "gaussian"]

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
        check_sketch_size(size, records)
        self.size = size
        self.moved = float(size)
        self.root = math.sqrt(size)
        if gaussian:
            self.matrix = np.empty((size, records), dtype=np.float32)
            squares = np.zeros(records)
            for start, rows in gaussian_rows(size, records, generator):
                self.matrix[start : start + len(rows)] = rows
                squares += squared(rows)
            self.norm = largest_norm(squares, size)
        else:
            self.matrix = generator.integers(2, size=(size, records), dtype=np.int8).astype(np.float32)
            self.matrix *= 2
            self.matrix -= 1
            self.norm = 1.0

    def apply(self, values: Array, records: NDArray[Any] | None = None) -> Array:
        """J a, but for one rounding of each entry: the division by sqrt m."""
        matrix = self.matrix if records is None else self.matrix[:, records]
        found = np.empty(self.size)
        for start in range(0, self.size, 64):
            found[start : start + 64] = matrix[start : start + 64].astype(np.float64) @ values
        return found / self.root

    def back(self, sketched: Array) -> Array:
        found = np.zeros(self.matrix.shape[1])
        for start in range(0, self.size, 64):
            found += sketched[start : start + 64] @ self.matrix[start : start + 64].astype(np.float64)
        return np.asarray(found / self.root)


Sketch = CountSketch | DenseSketch


def sketch_of(plan: Plan) -> Sketch:
    """The plan's sketch; everybody draws the same."""
    kind, size = plan.numbers.sketch, plan.numbers.sketch_size
    if kind == "gaussian":
        return gaussian_sketch(size, plan.records)
    return make_sketch(kind, size, plan.records, plan.public_coin("sketch"))


def gaussian_sketch(size: int, records: int) -> Sketch:
    """The published sketch: one and the same in all plans, so that its norm is known before there is a coin."""
    return make_sketch("gaussian", size, records, np.random.default_rng([size, records]))


def gaussian_rows(size: int, records: int, generator: np.random.Generator) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """The rows of a Gaussian sketch from each place on, a few at a time, times sqrt m and on the grid."""
    some = max(1, 2**20 // records)
    for start in range(0, size, some):
        drawn = generator.standard_normal((min(some, size - start), records), dtype=np.float32)
        yield start, np.clip(np.rint(drawn / GRID) * GRID, -8 + GRID, 8 - GRID)


def squared(rows: NDArray[np.float32]) -> Array:
    """The sum of the squares of each column, exactly."""
    return np.asarray(np.einsum("ij,ij->j", rows, rows, dtype=np.float64))


def largest_norm(squares: Array, size: int) -> float:
    """That of a Gaussian sketch whose columns, times sqrt m, have these squares; with room for floating point."""
    return float(np.sqrt(squares.max())) * ((1 + 2.0**-20) / math.sqrt(size))


def check_sketch_size(size: int, records: int) -> None:
    """Refuse a dense sketch that no memory holds."""
    if size * records > DENSE:
        raise InputError(
            f"sketch: a dense sketch of {size} x {records} numbers is too large; take sketch='count', which needs one "
            "number for each record."
        )


@functools.lru_cache(maxsize=8)
def column_norm(kind: Kind, size: int, records: int) -> float:
    """The largest norm of a column: 1 but for the Gaussian one of the published form, whose squares sum exactly.

    A plan is priced by it before it is accepted: it takes the memory of a few rows.
    """
    if kind != "count":
        check_sketch_size(size, records)
    if kind != "gaussian":
        return 1.0
    squares = np.zeros(records)
    for _, rows in gaussian_rows(size, records, np.random.default_rng([size, records])):
        squares += squared(rows)
    return largest_norm(squares, size)


def make_sketch(kind: Kind, size: int, records: int, generator: np.random.Generator) -> Sketch:
    """A sketch by name."""
    if kind == "count":
        return CountSketch(size, records, generator)
    return DenseSketch(size, records, generator, gaussian=kind == "gaussian")


class ColumnSketch(Query):
    """J a of columns a, each of which one record moves by an entry of at most 1.

    Guarantee: a column of J has norm one, so zero-out moves one sketch by at most 1, replace-one by 2; the bound has
    room for the floating point of `columns` of them. Sums are exact, and each is divided by sqrt m once.
    Edges: a sketch may be so long that few people share an entry of it.
    """

    world_sees: ClassVar[World] = "each"
    each_person: ClassVar[bool] = True

    def __init__(self, problem: Problem, numbers: Numbers, columns: int = 1) -> None:
        kind, size = numbers.sketch, numbers.sketch_size
        self.length = size
        self.rounding_entries = float((1 if kind == "count" else size) * columns)
        self.bound = column_norm(kind, size, problem.records) * sketch_room(problem.records, columns)


class FeatureSketch(ColumnSketch):
    """J a_j for one column a_j of a party, each release paid for by itself."""

    name = "feature"
    title = "a sketch of one feature, for all people"
    kind: ClassVar[str] = "features"

    def __init__(self, problem: Problem, numbers: Numbers, party: str, columns: int = 1) -> None:
        super().__init__(problem, numbers, columns)
        self.width = problem.part(party).preparation.dimension
        self.takes = {"place": Wholes((1,), least=0, most=self.width - 1)}  # of a column, the constant one among them

    def value(self, round: Round) -> Array:
        return np.asarray(round.memory.apply(*round.rows.column(int(round.told["place"][0]))))


class LabelSketch(ColumnSketch):
    """J y, for labels within [-1, 1]."""

    name = "labels"
    title = "a sketch of the labels of all people"
    answered_by: Turn = label_party

    def value(self, round: Round) -> Array:
        labels = np.where(round.rows.null_rows, 0.0, np.clip(round.rows.labels, -1.0, 1.0))
        return np.asarray(round.memory.apply(toward_zero(labels, round.rows.bits or 0)))


def sketch_room(records: int, columns: int = 1) -> float:
    """For the floating point of J a, of so many columns: sums are exact, and each is divided by sqrt m once."""
    return 1.0 + 2.0**-30 + records * math.sqrt(columns) * 2.0**-49
