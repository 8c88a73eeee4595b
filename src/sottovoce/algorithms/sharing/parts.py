"""Queries on a party's part of the rows, for the solvers over columns that put noise on rows or on scores.

A person is in every party, so what all parties release adds. A release has one standard deviation for all of them, and
each party its own sensitivity; `Joint` is the sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import usable_numbers
from sottovoce.algorithms.frank_wolfe.atoms import column_dots
from sottovoce.data.block import Block, is_sparse, toward_zero
from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.door.query import Bounded
from sottovoce.errors import InputError, LeakError
from sottovoce.losses import Loss
from sottovoce.plan.plan import Part, Plan, Release
from sottovoce.privacy.accounting import Event, Gaussian, Relation, Unbounded

Array = NDArray[np.float64]

FLOAT = 1.0 + 2.0**-30  # in a sensitivity, for the floating point of a norm


def part_norm(plan: Plan, part: Part) -> float:
    """b_m: what bounds the norm of a party's part of a prepared row, its constant column left out."""
    bounds, width = part.preparation.bounds, part.stop - part.start
    norm = float(np.linalg.norm(bounds.columns(width)))
    return min(norm, math.inf if bounds.row_norm is None else bounds.row_norm) / plan.unit * FLOAT


class PartQuery:
    """What the queries below share: a party's part [x, 1] of the rows and the bound of its norm.

    The 1 is there if the model has an intercept: each party sees the labels through one of its own, wherever the
    constant column of the model is. A null row is 0 throughout.
    """

    name: str
    weights: Any = 1.0

    def __init__(self, plan: Plan, part: Part) -> None:
        if plan.layout != "entries":
            raise LeakError("the rows were not prepared for parts of rows.")
        self.plan, self.part = plan, part
        self.width = part.stop - part.start
        self.dimension = self.width + plan.fit_intercept
        self.norm = part_norm(plan, part)
        self.long = math.hypot(self.norm, 1.0) if plan.fit_intercept else self.norm

    def dots(self, block: Block, factors: Array) -> Array:
        """sum_i factors_i [x_i, 1]: exact for factors on the grid."""
        sums = column_dots(block, factors)[: self.width]
        return np.append(sums, float(factors @ usable_rows(block))) if self.plan.fit_intercept else sums


class PartRows(PartQuery):
    """A party's part of the prepared rows, without a constant.

    Guarantee: row i is a function of record i alone, no longer than b_m, and 0 for a null row; so zero-out moves the
    value by at most b_m, replace-one by 2 b_m.
    """

    name = "rows"

    @property
    def entries(self) -> float:
        """One row moves."""
        return float(self.width)

    def sensitivity(self, relation: Relation) -> float:
        """b_m or 2 b_m."""
        return self.norm * (2.0 if relation == "replace-one" else 1.0)

    def value(self, block: Block, *arguments: Any) -> Array:
        """The rows as they are prepared."""
        del arguments
        rows = block.rows[:, : self.width]
        return np.asarray(rows.toarray() if is_sparse(rows) else rows, dtype=np.float64)


class RowScores(PartQuery):
    """rows @ w for a party's kept noisy rows and public weights w: a function of what is kept."""

    name = "scores"

    def __init__(self, plan: Plan, part: Part) -> None:
        super().__init__(plan, part)
        self.length, self.rows = plan.records, PartRows(plan, part)

    def derive(self, rows: NDArray[Any], weights: Array) -> Array:
        """One product."""
        return np.asarray(rows @ weights.astype(rows.dtype), dtype=np.float64)


class PartGram(PartQuery):
    """sum_i [x_i, 1][x_i, 1]' of a party's part as its upper triangle; off-diagonal entries weigh sqrt 2 (Frobenius).

    Guarantee: with B^2 = b_m^2 + 1 (b_m^2 without an intercept), zero-out moves it by at most B^2, replace-one by
    sqrt 2 B^2. Sums are exact.
    """

    name = "gram"

    def __init__(self, plan: Plan, part: Part) -> None:
        super().__init__(plan, part)
        self.places = np.triu_indices(self.dimension)
        self.weights = np.where(self.places[0] == self.places[1], 1.0, math.sqrt(2.0))
        self.entries = float(self.dimension**2)
        self.length = len(self.places[0])

    def sensitivity(self, relation: Relation) -> float:
        """B^2 or sqrt 2 B^2."""
        return self.long**2 * (math.sqrt(2.0) if relation == "replace-one" else 1.0)

    def value(self, block: Block, *arguments: Any) -> Array:
        """The upper triangle, row by row."""
        del arguments
        full = np.zeros((self.dimension, self.dimension))
        full[: self.width, : self.width] = block.gram()[: self.width, : self.width]
        if self.plan.fit_intercept:
            full[:, -1] = self.dots(block, np.ones(len(block)))
            full[-1, -1] = usable_rows(block).sum()
        return full[self.places]

    def matrix(self, triangle: Array) -> Array:
        """The symmetric matrix of a released triangle."""
        full = np.zeros((self.dimension, self.dimension))
        full[self.places] = triangle
        return full + np.triu(full, 1).T


class PartSums(PartQuery):
    """sum_i x_i of a party's part. Guarantee: zero-out moves it by at most b_m, replace-one by 2 b_m; it is exact."""

    name = "sums"

    def __init__(self, plan: Plan, part: Part) -> None:
        super().__init__(plan, part)
        self.length, self.entries = self.width, float(self.width)

    def sensitivity(self, relation: Relation) -> float:
        """b_m or 2 b_m."""
        return self.norm * (2.0 if relation == "replace-one" else 1.0)

    def value(self, block: Block, *arguments: Any) -> Array:
        """One pass."""
        del arguments
        return column_dots(block, np.ones(len(block)))[: self.width]


class PartGradient(PartQuery):
    """sum_i r_i [x_i, 1] / G over a party's part of the rows, |r_i| <= G.

    Guarantee: r_i, cut to the bound and put on the exact grid here, is a function of record i and of public numbers; so
    zero-out moves the value by at most B, replace-one by twice that, B^2 = b_m^2 + 1 (b_m^2 without an intercept).
    Edges: a null row adds 0; a NaN counts as the bound.
    """

    name = "gradient"

    def __init__(self, plan: Plan, part: Part, slope_bound: float) -> None:
        super().__init__(plan, part)
        if not SMALLEST <= slope_bound <= LARGEST:
            raise InputError(f"slope_bound={slope_bound!r} must be a positive finite number.")
        self.slope_bound, self.length, self.entries = slope_bound, self.dimension, float(self.dimension)

    def sensitivity(self, relation: Relation) -> float:
        """B or 2 B."""
        return self.long * (2.0 if relation == "replace-one" else 1.0)

    def value(self, block: Block, *arguments: Any) -> Array:
        """One pass over the columns."""
        (slopes,) = arguments
        return self.dots(block, cut(slopes / self.slope_bound, 1.0, block.bits))


class PartLabels(PartQuery):
    """The scaled labels, one for each record, 0 for a null row.

    Guarantee: zero-out moves them by at most 1, replace-one by 2.
    """

    name = "labels"
    entries = 1.0

    def __init__(self, plan: Plan, part: Part) -> None:
        super().__init__(plan, part)
        self.length = plan.records

    def sensitivity(self, relation: Relation) -> float:
        """1 or 2."""
        return (2.0 if relation == "replace-one" else 1.0) * FLOAT

    def value(self, block: Block, *arguments: Any) -> Array:
        """What the losses take."""
        del arguments
        return np.clip(block.labels, -1.0, 1.0) * usable_rows(block)


class Joint:
    """What the queries of all parties together move by: the root of the sum of squares.

    Guarantee: with std and step of a release calibrated on this, all parties' answers together cost what the release
    says, since sqrt(sum_m (s_m + step sqrt e_m)^2) <= sqrt(sum s_m^2) + step sqrt(sum e_m).
    """

    def __init__(self, queries: Sequence[Bounded]) -> None:
        self.queries = tuple(queries)
        self.name = queries[0].name
        self.entries = math.fsum(query.entries for query in queries)

    def sensitivity(self, relation: Relation) -> float:
        """Of all parties' answers together."""
        return math.sqrt(math.fsum(query.sensitivity(relation) ** 2 for query in self.queries))

    def event(self, release: Release, relation: Relation, count: int | None = None) -> Event:
        """What `count` rounds of the release cost, by the queries' own sensitivities and not by what a plan says."""
        if release.std == 0.0:
            return Unbounded(reason=f"{release.query} is released without noise")
        times = release.count if count is None else count
        moved = self.sensitivity(relation) + release.step * math.sqrt(self.entries)
        return Gaussian(mu=moved * math.sqrt(times) / release.std)


def usable_rows(block: Block) -> Array:
    """1 for each record, 0 for a null row."""
    return np.ones(len(block)) if block.usable is None else block.usable.astype(np.float64)


def cut(slopes: Array, bound: float, bits: int | None) -> Array:
    """Slopes cut to +-bound, NaN to the bound, and put on the exact grid; as they are in a run without privacy."""
    if bits is None:
        return np.ascontiguousarray(slopes)
    cutoff = np.fmax(np.fmin(slopes, bound), -bound)
    return toward_zero(np.ascontiguousarray(cutoff), bits - math.ceil(math.log2(bound)))


def exact_scores(block: Block, width: int, weights: Array) -> Array:
    """x_i'w over the first `width` columns of every row, w rounded toward zero on a grid on which the sums are exact.

    With |w|_1 <= 2^e and entries of at most 1 on the grid 2^-bits, partial sums are multiples of 2^(e - 52) of at most
    2^e. So a score is a function of its own row and of w alone, to the last bit, in whatever order a library adds.
    Edges: in a run without privacy, where rows are on no grid, w is taken as it is.
    """
    exact = np.zeros(block.dimension)
    exact[:width] = weights
    if block.bits is not None:
        exponent = max(math.frexp(float(np.abs(exact).sum()))[1], -400)  # so no product is subnormal
        toward_zero(exact, 52 - block.bits - exponent)
    if is_sparse(block.rows):
        return np.asarray(block.rows @ exact, dtype=np.float64)
    return np.concatenate([rows @ exact for rows, _ in block.chunks()])


def slopes_of(loss: Loss, scores: Array, labels: Array, *, blurred: bool) -> Array:
    """l'(score, label) or, for labels that carry noise, what has the same mean where that exists.

    The squared and the logistic loss have slopes affine in the label: u - y, and (tanh(u / 2) - y) / 2. Other losses
    take the sign of a noisy label: randomised response.
    """
    if not blurred:
        return loss.derivative(scores, labels)
    if loss.name == "squared":
        return scores - labels
    if loss.name == "logistic":
        return np.asarray((np.tanh(scores / 2) - labels) / 2)
    return loss.derivative(scores, np.where(labels < 0.0, -1.0, 1.0))


def usable(arrays: Mapping[str, NDArray[Any]], name: str, size: int) -> bool:
    """Whether a message has so many float64 numbers under that name, none too large for exact arithmetic."""
    return name in arrays and usable_numbers(arrays[name], size)
