"""Raw rows made ready: the public recipe, and what each layout decides.

Prepared means, for every record on its own (so that a record changes nothing but its own row): rescaled by public
ranges, clipped to the entry bound, scaled back to the row norm, scaled as the layout says, extended by the constant of
the intercept, and rounded toward zero on a public grid. A row with NaN or infinity in a column that is not `filled`,
or with a label that was not declared, becomes a null row: zero everywhere.

Without privacy bounds cut and do nothing else: rows keep their scale, so no bound that cuts nothing changes a model.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from sottovoce.data.bounds import Bounds
from sottovoce.data.cells import match_labels, read_numbers
from sottovoce.data.kernels.row_loops import clip_raw_rows, round_rows
from sottovoce.data.matrix import Matrix, csr, dense, exact_bits, is_sparse, row_squares, rows_at_once, toward_zero
from sottovoce.data.resources import NO_RESOURCES, Resources, even_cuts, run_parts
from sottovoce.errors import InputError, LeakError

Array = NDArray[np.float64]

Layout = Literal["rows", "columns", "entries", "raw"]

MOST_CLASSES = 100
INTERCEPT = 0.25  # the constant column's share of the unit row norm
HUGE = 1e150  # its square is still finite


class Arrangement(ABC):
    """What a layout decides: how raw rows are scaled and stored, and what is promised of them."""

    promise: ClassVar[str]  # in the report
    row_norm: ClassVar[float] = math.inf  # what bounds the norm of every prepared row
    order: ClassVar[Literal["C", "F"]] = "F"  # what is contiguous: rows (C) or columns (F)
    on_grid: ClassVar[bool] = True  # whether entries of a private run are on the exact grid
    bounded: ClassVar[bool] = True  # whether rows are cut and rescaled by declared bounds

    @abstractmethod
    def scale(self, recipe: Preparation) -> float | Array:
        """What a clipped, rescaled row is multiplied by. A factor just below 1 absorbs float rounding of norms."""

    def constant(self, bits: int) -> float:  # noqa: ARG002
        """The entry of the intercept's column, on the grid."""
        return 1.0

    def limit(self, recipe: Preparation) -> float | None:
        """The norm to which a longer row is scaled back, before it is scaled."""
        return recipe.bounds.row_norm

    def kind(self, bits: int | None) -> type[np.floating[Any]]:
        """How entries are stored: a grid of up to 24 bits fits float32 without loss, half the memory and traffic."""
        return np.float32 if bits is not None and (bits <= 24 or not self.on_grid) else np.float64

    def weight_norm(self, weights: Array) -> float:
        """|w| such that |x'w| <= |w| for every prepared row."""
        return float(np.abs(weights).sum())


class ByNorm(Arrangement):
    """Layout "rows": a row is divided by the declared norm, so its norm is at most 1, its constant included."""

    promise: ClassVar[str] = "Rows are scaled to a norm of at most 1 before they are summed."
    row_norm: ClassVar[float] = 1.0
    order: ClassVar[Literal["C", "F"]] = "C"

    def scale(self, recipe: Preparation) -> float:
        """sqrt(1 - constant^2) / norm."""
        if recipe.whole is not None:
            return recipe.whole
        norm = recipe.bounds.norm(recipe.features) or 1.0
        slack = 1.0 - (recipe.features + 8) * 2.0**-50
        return math.sqrt(1.0 - recipe.intercept_entry**2) * slack / norm

    def constant(self, bits: int) -> float:
        """A share of the unit row norm."""
        return math.floor(INTERCEPT * 2.0**bits) / 2.0**bits

    def limit(self, recipe: Preparation) -> float | None:
        """The declared norm, or what the bounds of the columns allow."""
        return recipe.bounds.norm(recipe.features)

    def weight_norm(self, weights: Array) -> float:
        """The Euclidean norm."""
        return math.sqrt(float(weights @ weights))


class ByColumn(Arrangement):
    """Layout "columns", for solvers that clip each coordinate of a gradient: a column is divided by its own bound.

    Entries are at most 1, a row's norm is not bounded, and nothing is on a grid: in any private run an entry is rounded
    to float32, each on its own, so a record changes its own row alone.
    """

    promise: ClassVar[str] = (
        "Each column is divided by its bound before it is summed, so entries are at most 1; the norm of a row is not "
        "bounded."
    )
    on_grid: ClassVar[bool] = False

    def scale(self, recipe: Preparation) -> Array:
        """1 / bound of each column."""
        bounds = recipe.bounds.columns(recipe.features)
        return 1.0 / np.where(np.isfinite(bounds), bounds, 1.0)


class ByEntry(Arrangement):
    """Layout "entries", for solvers on an l1 ball and for holders of columns: all entries are divided by one number.

    It is the largest of the columns' bounds, the same at all holders. Entries are at most 1, on the grid.
    """

    promise: ClassVar[str] = "Entries are scaled to at most 1 before they are summed."

    def scale(self, recipe: Preparation) -> float:
        """1 / unit."""
        return (1.0 - (recipe.features + 8) * 2.0**-50) / recipe.unit


class AsTheyAre(Arrangement):
    """Layout "raw", for queries that count cells: rows and numeric labels in the units of the table, nothing cut.

    No number of such a row may be summed: its norm is not bounded. To a count a record adds 1, whatever it holds.
    """

    promise: ClassVar[str] = "Cells are counted as they are; a record adds at most 1 to one count of each column."
    on_grid: ClassVar[bool] = False
    bounded: ClassVar[bool] = False

    def scale(self, _recipe: Preparation) -> float:
        """1."""
        return 1.0


ARRANGEMENTS: Mapping[Layout, Arrangement] = MappingProxyType(
    {"rows": ByNorm(), "columns": ByColumn(), "entries": ByEntry(), "raw": AsTheyAre()}
)


@dataclass(frozen=True)
class Preparation:
    """The public recipe by which raw rows become a block; two parties with one recipe prepare alike."""

    bounds: Bounds
    features: int
    fit_intercept: bool
    records: int
    classes: tuple[Any, ...] | None = None
    exact: bool = True  # False only in a run without privacy: then nothing is rounded
    layout: Layout = "rows"
    unit: float = 1.0  # layout "entries": what every entry is divided by, the same at all holders
    labelled: bool = True  # False at a holder of columns that does not know the labels
    units: bool | None = None  # whether rows and labels are in units of their bounds; None: in a private run
    centred: bool | None = None  # whether labels are centred; None: where the rows have the constant of the intercept
    whole: float | None = None  # layout "rows", of a party that has a part of each: what the whole row is multiplied by
    most_bits: int | None = None  # a coarser grid than the records need, where wide noise needs the room

    def __post_init__(self) -> None:
        if self.exact and not self.scaled:
            raise LeakError("rows of a private run are in units of their bounds; noise is measured in them.")
        if self.exact and self.arrangement.bounded:
            self.bounds.require(self.features, labels=self.classes is None and self.labelled)

    @property
    def scaled(self) -> bool:
        """Whether rows and labels are divided by their bounds, as noise needs; else bounds cut and do nothing else."""
        return self.exact if self.units is None else self.units

    @property
    def arrangement(self) -> Arrangement:
        return ARRANGEMENTS[self.layout]

    @property
    def dimension(self) -> int:
        return self.features + self.fit_intercept

    @property
    def bits(self) -> int:
        """Bits of the grid of rows and derivatives."""
        found = exact_bits(self.records)
        return found if self.most_bits is None else min(found, self.most_bits)

    @functools.cached_property
    def intercept_entry(self) -> float:
        """The constant column's value, on the grid."""
        if not self.fit_intercept:
            return 0.0
        return self.arrangement.constant(self.bits) if self.scaled else 1.0

    @property
    def scale(self) -> float | Array:
        """A prepared row is the clipped, rescaled row times this: one number, or one for each column."""
        return self.arrangement.scale(self) if self.scaled else 1.0

    @property
    def label_scale(self) -> tuple[float, float]:
        """(centre, half-width): a prepared label is (label - centre) / half-width; the centre is 0 without privacy."""
        centred = self.fit_intercept if self.centred is None else self.centred
        return self.bounds.label_scale(fit_intercept=centred and self.scaled)

    @functools.cached_property
    def entry_range(self) -> tuple[Array, Array]:
        """Where every rescaled entry is cut. The outermost limit keeps squares of absurd entries finite."""
        high = np.minimum(HUGE if self.bounds.entry_bound is None else self.bounds.entry_bound, HUGE)
        if self.bounds.feature_low is not None:
            high = np.minimum(high, 1.0)
        unit = self.bounds.feature_low is not None and self.bounds.rescale == "unit"
        high = np.array(np.broadcast_to(high, (self.features,)))
        return np.zeros(self.features) if unit else -high, high

    def prepared(self, X: Matrix, usable: NDArray[np.bool_], resources: Resources = NO_RESOURCES) -> Matrix:
        """Raw rows of all features prepared; a row that is not usable, now or from here on, is zero everywhere."""
        bits = self.bits if self.exact else None
        if not self.arrangement.bounded:
            if is_sparse(X):
                raise InputError(
                    "ranges of a sparse matrix are not estimated, since they would shift its zeros; declare them."
                )
            return np.asarray(X, dtype=np.float64)
        if is_sparse(X):
            return _prepare_sparse(X, usable, self, bits)
        return _prepare_dense(np.asarray(X), usable, self, bits, resources)

    def unprepare(self, weights: Array) -> tuple[Array, float]:
        """(coef, intercept) in the units of the raw features and labels."""
        centre, half = self.label_scale
        coef = weights[: self.features] * (self.scale * half)
        intercept = weights[self.features] * self.intercept_entry * half + centre if self.fit_intercept else 0.0
        shift, factor = self.affine()
        if factor is not None:
            intercept += float(coef @ (shift * factor))
            coef = coef * factor
        return coef, float(intercept)

    def weights_of(self, coef: Array, intercept: float) -> Array:
        """The inverse: weights on prepared rows of a model in raw units."""
        centre, half = self.label_scale
        shift, factor = self.affine()
        weights = (coef if factor is None else coef / factor) / (self.scale * half)
        if not self.fit_intercept:
            return np.asarray(weights)
        constant = (intercept - float(coef @ shift) - centre) / (self.intercept_entry * half)
        return np.append(weights, constant)

    def scores(self, X: Matrix, coef: Array, intercept: float) -> Array:
        """X coef + intercept after the cuts of training: what a row was clipped to there it is clipped to here."""
        return self.scored(X, coef, intercept)[0]

    def scored(self, X: Matrix, coef: Array, intercept: float) -> tuple[Array, NDArray[np.bool_]]:
        """The same, and which rows can be used; one that cannot is scored as a row of zeros."""
        shift, factor = self.affine()
        inner = coef if factor is None else coef / factor
        sparse = is_sparse(X) and not np.any(shift != 0.0)  # a shift of the zeros makes a sparse matrix dense
        rows = csr(X) if sparse else dense(X)
        usable = np.ones(rows.shape[0], dtype=np.bool_)
        rows = _clipped(rows, usable, self)
        return np.asarray(rows @ (inner / self.scale) + (intercept - coef @ shift), dtype=np.float64), usable

    def affine(self) -> tuple[Array, Array | None]:
        """(shift, factor): a feature x becomes (x + shift) * factor. Factor is None without declared ranges."""
        if self.bounds.feature_low is None or self.bounds.feature_high is None:
            return np.zeros(self.features), None
        low, high = np.asarray(self.bounds.feature_low), np.asarray(self.bounds.feature_high)
        if self.bounds.rescale == "unit":
            return -low, 1.0 / (high - low)
        return -(low + high) / 2, 2.0 / (high - low)

    @functools.cached_property
    def rescaling(self) -> tuple[Array, Array]:
        """(shift, factor) in any case: without ranges x + -0.0 times 1, which is x, the sign of a zero included."""
        shift, factor = self.affine()
        return (np.full(self.features, -0.0), np.ones(self.features)) if factor is None else (shift, factor)

    def labels(self, y: ArrayLike) -> tuple[Array, NDArray[np.bool_]]:
        """Labels as the losses want them and which are usable: -1/+1, places of classes, or cut and in [-1, 1]."""
        if not self.labelled:
            return np.zeros(len(np.asarray(y))), np.ones(len(np.asarray(y)), dtype=np.bool_)
        if self.classes is not None:
            raw = np.asarray(y)
            each = [match_labels(raw, value) for value in self.classes]
            if len(each) == 2:
                return np.where(each[1], 1.0, -1.0), each[0] | each[1]
            places = np.array(each).argmax(axis=0).astype(np.float64)
            return places, np.asarray(np.array(each).any(axis=0))
        values = read_numbers(np.asarray(y))
        usable = np.isfinite(values)
        values[~usable] = 0.0
        if self.bounds.label_low is not None:
            np.clip(values, self.bounds.label_low, self.bounds.label_high, out=values)
        centre, half = self.label_scale
        return (values - centre) / half, usable


def _clipped(raw: Matrix, usable: NDArray[np.bool_], recipe: Preparation) -> Matrix:
    """Rows of `raw` (dense, or CSR owned by us) rescaled, clipped and scaled; unusable rows zero.

    A row with an entry that is no finite number is not usable from here on.
    """
    # A row that overflows becomes a null row in silence: a warning could be turned into an error.
    with np.errstate(all="ignore"):
        if is_sparse(raw):
            _, stretch = recipe.affine()
            if stretch is not None:
                raw.data *= stretch[raw.indices]
            finite = np.isfinite(raw.data)
            if not finite.all():
                usable[np.repeat(np.arange(raw.shape[0]), np.diff(raw.indptr))[~finite]] = False
                raw.data[~finite] = 0.0
            low, high = recipe.entry_range
            np.clip(raw.data, low[raw.indices], high[raw.indices], out=raw.data)
        else:
            raw = _clip_dense(raw, usable, recipe, np.empty(raw.shape))
        return _multiplied(raw, _row_norm_factors(row_squares(raw), usable, recipe), recipe)


def _clip_dense(raw: NDArray[Any], usable: NDArray[np.bool_], recipe: Preparation, made: Array) -> Array:
    """Dense rows of any kind of numbers, rescaled and cut, into `made`."""
    filled = recipe.bounds.filled is not None
    if filled or raw.dtype != np.float64 or not raw.flags.carray:
        raw = np.array(raw, dtype=np.float64, order="C")
    if filled:  # in these columns cells are clipped to their range, and its middle is what no finite number counts as
        places = list(recipe.bounds.filled or ())
        low, high = (np.asarray(ends)[places] for ends in (recipe.bounds.feature_low, recipe.bounds.feature_high))
        cells = raw[:, places]
        raw[:, places] = np.where(np.isfinite(cells), np.clip(cells, low, high), (low + high) / 2)
    clip_raw_rows(raw, *recipe.rescaling, *recipe.entry_range, usable, made)
    return made


def _row_norm_factors(squares: Array, usable: NDArray[np.bool_], recipe: Preparation) -> Array:
    """What a row is multiplied by: the scale, times limit / norm where its norm is above the limit; 0 if not usable.

    Guarantee, layout "rows": the prepared row is no longer than 1, its constant c included. Let u = 2^-53, and x a row
    of d cut entries. Its computed norm is n >= |x| (1 - (d + 2) u), in whatever order the d squares are added. So x, or
    x limit / n if n > limit, is at most limit (1 + u) / (1 - (d + 2) u) long, u for the quotient. The scale is
    sqrt(1 - c^2) (1 - 8 (d + 8) u) / limit, rounded six times at most; what an entry is multiplied by is rounded once,
    and so is the product. That makes at most

        sqrt(1 - c^2) (1 - 8 (d + 8) u) (1 + u)^9 / (1 - (d + 2) u) < sqrt(1 - c^2).

    Rounding to the grid is toward zero, so no entry grows, and float32 has every number of a grid of 24 bits. Edges:
    limits are between 1e-100 and 1e100 and entries are at most 1e150, so no square overflows, and one that is subnormal
    is wrong by less than 1e-323, which moves no norm near a limit.
    """
    scale, limit = recipe.scale, recipe.arrangement.limit(recipe)
    factors = np.where(usable, 1.0 if isinstance(scale, np.ndarray) else scale, 0.0)
    if limit is not None:
        norms = np.sqrt(squares)
        over = norms > limit
        factors[over] *= limit / norms[over]
    return factors


def _multiplied(rows: Matrix, by_row: Array, recipe: Preparation) -> Matrix:
    """Rows times what the layout and their norms say, in place."""
    scale, sparse = recipe.scale, is_sparse(rows)
    entries = rows.data if sparse else rows
    if isinstance(scale, np.ndarray):  # one for each column
        entries *= scale[rows.indices] if sparse else scale
    entries *= np.repeat(by_row, np.diff(rows.indptr)) if sparse else by_row[:, None]
    return rows


def _prepare_dense(
    X: NDArray[Any], usable: NDArray[np.bool_], recipe: Preparation, bits: int | None, resources: Resources
) -> Matrix:
    how = recipe.arrangement
    rows = np.empty((X.shape[0], recipe.dimension), dtype=how.kind(bits), order=how.order)
    step = rows_at_once(recipe.dimension)

    def prepare(first: int, last: int) -> None:
        room = np.empty((min(step, last - first), recipe.features))
        for start in range(first, last, step):
            stop = min(start + step, last)
            part = usable[start:stop]
            cut = _clip_dense(X[start:stop], part, recipe, room[: stop - start])
            factors = _row_norm_factors(row_squares(cut), part, recipe)
            if bits is not None and rows.dtype == np.float32 and how.order == "C":
                round_rows(cut, factors, 2.0**bits, rows[start:stop])
            else:
                made = _multiplied(cut, factors, recipe)
                if bits is not None and how.on_grid:
                    toward_zero(made, bits)
                rows[start:stop, : recipe.features] = made
            if recipe.fit_intercept:
                rows[start:stop, recipe.features] = np.where(part, recipe.intercept_entry, 0.0)

    run_parts(prepare, even_cuts(X.shape[0], resources.threads(X.size)))
    return rows


def _prepare_sparse(X: Matrix, usable: NDArray[np.bool_], recipe: Preparation, bits: int | None) -> Matrix:
    shift, _ = recipe.affine()
    if np.any(shift != 0.0):
        raise InputError(
            "feature_ranges shift the zeros of a sparse matrix, which would make it dense. Use rescale='unit' with "
            "ranges that start at 0, ranges symmetric about 0, or pass a dense array."
        )
    rows = _clipped(csr(X), usable, recipe)
    if bits is not None and recipe.arrangement.on_grid:
        toward_zero(rows.data, bits)
    if recipe.fit_intercept:
        column = sp.csr_matrix(np.where(usable, recipe.intercept_entry, 0.0)[:, None])
        rows = sp.csr_matrix(sp.hstack([rows, column], format="csr"))
    if recipe.arrangement.order == "C":
        return rows
    return rows.tocsc().astype(recipe.arrangement.kind(bits), copy=False)
