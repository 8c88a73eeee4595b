"""Queries on a party's part of the rows, for the solvers over columns that put noise on rows, sums or gradients.

A person is in every party, so what all parties release adds. A release has one standard deviation for all of them, and
each party its own sensitivity: it is calibrated on, and priced for, all of them `together`.

A public sketch J, m x N, makes m numbers of a column a: J a, and J'J is the identity on average. One record changes one
entry of a, so J a moves by that change times one column of J. Columns of norm one make the sensitivity of the sketch
that of the entry. The matrix follows from the plan's public coin.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh

from sottovoce.data.block import Block, toward_zero
from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.errors import InputError, LeakError
from sottovoce.gate.query import (
    Array,
    Derived,
    MessageArrays,
    NoisyRows,
    Query,
    Reals,
    Round,
    Turn,
    Wholes,
    World,
    label_party,
)
from sottovoce.losses import Loss
from sottovoce.plan import Numbers, Plan, Problem
from sottovoce.queries.sums import GramMatrix

FLOAT = 1.0 + 2.0**-30  # in a sensitivity, for the floating point of a norm


def part_norm(problem: Problem, party: str) -> float:
    """b_m: what bounds the norm of a party's part of a prepared row, its constant column left out."""
    part = problem.part(party)
    bounds = part.preparation.bounds
    norm = float(np.linalg.norm(bounds.columns(part.stop - part.start)))
    return min(norm, math.inf if bounds.row_norm is None else bounds.row_norm) / problem.preparation.unit * FLOAT


class PartQuery(Query):
    """What the queries below share: a party's part [x, 1] of the rows and the bound of its norm.

    The 1 is there if the model has an intercept: each party sees the labels through one of its own, wherever the
    constant column of the model is. A null row is 0 throughout.
    """

    together: ClassVar[bool] = True

    def __init__(self, problem: Problem, party: str) -> None:
        if problem.layout != "entries":
            raise LeakError("the rows were not prepared for parts of rows.")
        part = problem.part(party)
        self.width, self.fit_intercept = part.stop - part.start, problem.fit_intercept
        self.dimension = self.width + problem.fit_intercept
        self.norm = part_norm(problem, party)
        self.norm_with_intercept = math.hypot(self.norm, 1.0) if problem.fit_intercept else self.norm

    def dots(self, rows: Block, factors: Array) -> Array:
        """sum_i factors_i [x_i, 1]: exact for factors on the grid."""
        sums = rows.column_dots(factors)[: self.width]
        return np.append(sums, float(factors @ rows.usable_rows)) if self.fit_intercept else sums


class PartRows(PartQuery, NoisyRows):
    """A party's part of the prepared rows, without a constant.

    Guarantee: row i is a function of record i alone, no longer than b_m, and 0 for a null row; so zero-out moves the
    value by at most b_m, replace-one by 2 b_m.
    """

    name = "rows"
    title: ClassVar[str] = "a row for every person"
    each_person: ClassVar[bool] = True
    world_sees: ClassVar[World] = "nothing"

    def __init__(self, problem: Problem, party: str) -> None:
        super().__init__(problem, party)
        self.bound, self.rounding_entries = self.norm, float(self.width)
        self.length = problem.records * self.width

    def value(self, round: Round) -> Array:
        return round.rows.dense_rows(self.width)


class RowScores(Derived):
    """rows @ w for a party's noisy rows and public weights w."""

    name = "scores"
    title: ClassVar[str] = "scores of all people"
    each_person: ClassVar[bool] = True
    world_sees: ClassVar[World] = "nothing"

    def __init__(self, problem: Problem, party: str) -> None:
        self.source, self.length = PartRows(problem, party), problem.records
        self.takes = {"weights": Reals((self.source.width,))}

    def derive(self, rows: NDArray[Any], told: MessageArrays) -> Array:
        return np.asarray(rows @ told["weights"].astype(rows.dtype), dtype=np.float64)


class PartGram(PartQuery, GramMatrix):
    """sum_i [x_i, 1][x_i, 1]' of a party's part as its upper triangle; off-diagonal entries weigh sqrt 2 (Frobenius).

    Guarantee: with B^2 = b_m^2 + 1 (b_m^2 without an intercept), zero-out moves it by at most B^2, replace-one by
    sqrt 2 B^2. Sums are exact.
    """

    kind: ClassVar[str] = "means"

    def __init__(self, problem: Problem, party: str) -> None:
        PartQuery.__init__(self, problem, party)
        GramMatrix.__init__(self, self.dimension)
        self.bound = self.norm_with_intercept**2

    def value(self, round: Round) -> Array:
        full = np.zeros((self.dimension, self.dimension))
        full[: self.width, : self.width] = round.rows.gram()[: self.width, : self.width]
        if self.fit_intercept:
            full[:, -1] = self.dots(round.rows, np.ones(len(round.rows)))
            full[-1, -1] = round.rows.usable_rows.sum()
        return np.asarray(full[self.places])


class PartSums(PartQuery):
    """sum_i x_i of a party's part. Guarantee: zero-out moves it by at most b_m, replace-one by 2 b_m; it is exact."""

    name = "sums"
    title: ClassVar[str] = "sums of every feature"
    kind: ClassVar[str] = "means"

    def __init__(self, problem: Problem, party: str) -> None:
        super().__init__(problem, party)
        self.bound, self.length, self.rounding_entries = self.norm, self.width, float(self.width)

    def value(self, round: Round) -> Array:
        return round.rows.column_dots(np.ones(len(round.rows)))[: self.width]


class PartGradient(PartQuery):
    """sum_i r_i [x_i, 1] / G over a party's part of the rows, |r_i| <= G, the slopes r_i made by `PartSlopes`.

    Guarantee: r_i, clipped to the bound and put on the exact grid here, is a function of record i and of public
    numbers; so zero-out moves the value by at most B, replace-one by twice that, B^2 = b_m^2 + 1 (b_m^2 without an
    intercept). Edges: a null row adds 0; a NaN counts as the bound. A party that does not know the labels is told them,
    with noise, in the first round.
    """

    name = "gradient"
    title: ClassVar[str] = "gradients of the loss"
    kind: ClassVar[str] = "gradients"

    def __init__(self, problem: Problem, party: str, slope_bound: float) -> None:
        super().__init__(problem, party)
        if not SMALLEST <= slope_bound <= LARGEST:
            raise InputError(f"slope_bound={slope_bound!r} must be a positive finite number.")
        self.needs_labels = problem.held_labels and party != problem.label_party_name
        self.slope_bound, self.bound = slope_bound, self.norm_with_intercept
        self.length, self.rounding_entries = self.dimension, float(self.dimension)
        self.takes = {"weights": Reals((self.width,)), "offset": Reals((problem.records,))}

    def takes_at(self, number: int) -> Mapping[str, Reals]:
        """Weights of the party's columns, for each record what the others add to its score, and noisy labels once."""
        labelled = self.needs_labels and number == 0
        return {**self.takes, "labels": self.takes["offset"]} if labelled else self.takes

    def value(self, round: Round) -> Array:
        slopes: PartSlopes = round.memory
        return self.dots(round.rows, cut_slopes(slopes.at(round) / self.slope_bound, 1.0, round.rows.bits))


class PartSlopes(ABC):
    """What a party keeps from round to round: the slopes of the last one, and noisy labels that it was told.

    Edges: a round that comes after a later one is answered with the slopes that there are.
    """

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self.number = -1
        self.current = np.zeros(0)
        self.noisy_labels: Array | None = None

    def at(self, round: Round) -> Array:
        """Those at s_i = x_i'w + o_i, for the weights w and the offsets o that the party is told."""
        if round.number > self.number:
            self.number = round.number
            if "labels" in round.told:
                self.noisy_labels = np.array(round.told["labels"])
            labels = round.rows.labels if self.noisy_labels is None else self.noisy_labels
            scores = round.rows.scores(round.told["weights"]) + round.told["offset"]
            self.current = self.make(scores, labels)
        return self.current

    def loss_slopes(self, scores: Array, labels: Array) -> Array:
        """l'(s_i, label_i), for labels with noise its mean or nearly so."""
        if self.noisy_labels is None:
            return self.loss.derivative(scores, labels)
        return self.loss.noisy_label_slope(scores, labels)

    @abstractmethod
    def make(self, scores: Array, labels: Array) -> Array:
        """The slopes at these scores; entry i is a function of what record i has and had."""


def cut_slopes(slopes: Array, bound: float, bits: int | None) -> Array:
    """Slopes clipped to +-bound, NaN to the bound, and put on the exact grid; as they are in a run without privacy."""
    if bits is None:
        return np.ascontiguousarray(slopes)
    cutoff = np.fmax(np.fmin(np.asarray(slopes, dtype=np.float64), bound), -bound)  # float32 would pass the bound
    return toward_zero(np.ascontiguousarray(cutoff), bits - math.ceil(math.log2(bound)))


class NoisyLabels(Query):
    """The scaled labels, clipped to [-1, 1], one for each record and 0 for a null row.

    Guarantee: zero-out moves them by at most 1, replace-one by 2. The world does not see them: what a model makes of
    them is cut, and priced, elsewhere. Edges: `bound` may be a little more than 1.
    """

    name = "labels"
    title: ClassVar[str] = "the label of every person"
    each_person: ClassVar[bool] = True
    answered_by = label_party
    world_sees: ClassVar[World] = "nothing"
    together: ClassVar[bool] = True
    rounding_entries = 1.0

    def __init__(self, problem: Problem, bound: float = 1.0) -> None:
        self.length, self.bound = problem.records, bound

    def value(self, round: Round) -> Array:
        return np.where(round.rows.usable_rows, np.clip(round.rows.labels, -1.0, 1.0), 0.0)


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
    if kind == "gaussian":  # as published: one in all plans, so that its norm is known before there is a coin
        return make_sketch("gaussian", size, plan.records, np.random.default_rng([size, plan.records]))
    return make_sketch(kind, size, plan.records, plan.public_coin("sketch"))


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


@functools.lru_cache(maxsize=8)
def leading_value(size: int, records: int) -> float:
    """s(J), the leading singular value of the published form's Gaussian J, public as J is, up to a multiple of 2^-30.

    By Lanczos steps from a fixed start, whose last bits differ between machines and do not show in that multiple. A
    plan carries the noise that it scales, so who gets a plan does not compute it; nor does any cost follow from it.
    """
    sketch = make_sketch("gaussian", size, records, np.random.default_rng([size, records]))
    product = LinearOperator((size, size), matvec=lambda vector: sketch.apply(sketch.back(vector)), dtype=np.float64)
    (square,) = eigsh(product, k=1, v0=np.ones(size), return_eigenvectors=False)
    return math.ceil(math.sqrt(float(square)) * 2.0**30) / 2.0**30


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
