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
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from sottovoce.data.bounds import Bounds
from sottovoce.data.cells import match_labels, read_numbers
from sottovoce.data.kernels.row_loops import clip_raw_rows, round_rows
from sottovoce.data.matrix import Matrix, csr, dense, exact_bits, is_sparse, row_squares, rows_at_once, toward_zero
from sottovoce.data.resources import NO_RESOURCES, Resources, run_parts
from sottovoce.errors import InputError, LeakError

Array = NDArray[np.float64]

Layout = Literal["rows", "columns", "entries", "raw"]

MOST_CLASSES = 100
INTERCEPT = 0.25  # the constant column's share of the unit row norm
BESIDE = 9  # bytes of a row's label and of its mark, if it is a null row
HUGE = 1e150  # its square is still finite


@dataclass(frozen=True)
class Arrangement:
    """What a layout decides: how rows are stored, and what is promised of them; `Preparation.scale` says by what."""

    promise: str  # in the report
    row_norm: float = math.inf  # what bounds the norm of every prepared row
    order: Literal["C", "F"] = "F"  # what is contiguous: rows (C) or columns (F)
    on_grid: bool = True  # whether entries of a private run are on the exact grid
    bounded: bool = True  # whether rows are cut and rescaled by declared bounds


ARRANGEMENTS: Mapping[Layout, Arrangement] = MappingProxyType(
    {
        "rows": Arrangement("Rows are scaled to a norm of at most 1 before they are summed.", row_norm=1.0, order="C"),
        # For solvers that clip each coordinate of a gradient. A row's norm is not bounded, and nothing is on a grid: in
        # any private run an entry is rounded to float32, each on its own, so a record changes its own row alone.
        "columns": Arrangement(
            "Each column is divided by its bound before it is summed, so entries are at most 1; the norm of a row is "
            "not bounded.",
            on_grid=False,
        ),
        # For solvers on an l1 ball and for holders of columns.
        "entries": Arrangement("Entries are scaled to at most 1 before they are summed."),
        # For queries that count cells: rows and numeric labels in the units of the table, nothing cut. No number of
        # such a row may be summed: its norm is not bounded. To a count a record adds 1, whatever it holds.
        "raw": Arrangement(
            "Cells are counted as they are; a record adds at most 1 to one count of each column.",
            on_grid=False,
            bounded=False,
        ),
    }
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

    # What follows from these:
    arrangement: Arrangement = field(init=False, repr=False, compare=False)
    scaled: bool = field(init=False, repr=False, compare=False)  # whether rows and labels are in units of their bounds
    dimension: int = field(init=False, repr=False, compare=False)
    bits: int = field(init=False, repr=False, compare=False)  # of the grid of rows and derivatives
    kind: Any = field(init=False, repr=False, compare=False)  # of stored entries
    intercept_entry: float = field(init=False, repr=False, compare=False)  # the constant column's value, on the grid
    label_scale: tuple[float, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        how, scaled, bits = ARRANGEMENTS[self.layout], self.exact if self.units is None else self.units, self.most_bits
        if self.exact and not scaled:
            raise LeakError("rows of a private run are in units of their bounds; noise is measured in them.")
        if self.exact and how.bounded:
            self.bounds.require(self.features, labels=self.classes is None and self.labelled)
        bits = exact_bits(self.records) if bits is None else min(exact_bits(self.records), bits)
        constant = math.floor(INTERCEPT * 2.0**bits) / 2.0**bits if scaled and self.layout == "rows" else 1.0
        centred = self.fit_intercept if self.centred is None else self.centred
        vars(self).update(
            arrangement=how,
            scaled=scaled,
            dimension=self.features + self.fit_intercept,
            bits=bits,
            # A grid of up to 24 bits fits float32 without loss: half the memory and traffic.
            kind=np.float32 if self.exact and (bits <= 24 or not how.on_grid) else np.float64,
            intercept_entry=constant if self.fit_intercept else 0.0,
            # (centre, half-width): a label becomes (label - centre) / half-width; the centre is 0 without privacy.
            label_scale=self.bounds.label_scale(fit_intercept=centred and scaled),
        )

    @functools.cached_property
    def scale(self) -> float | Array:
        """A prepared row is the clipped, rescaled row times this: one number, or one for each column.

        By rows sqrt(1 - constant^2) / norm, the norm with its constant being 1 at most; by columns 1 / bound of each;
        by entries 1 / unit, the same at all holders. A factor just below 1 absorbs float rounding of norms.
        """
        if not self.scaled or self.layout == "raw":
            return 1.0
        if self.layout == "columns":
            bounds = self.bounds.columns(self.features)
            return 1.0 / np.where(np.isfinite(bounds), bounds, 1.0)
        slack = 1.0 - (self.features + 8) * 2.0**-50
        if self.layout == "entries":
            return slack / self.unit
        if self.whole is not None:
            return self.whole
        return math.sqrt(1.0 - self.intercept_entry**2) * slack / (self.bounds.norm(self.features) or 1.0)

    @functools.cached_property
    def cuts(self) -> tuple[Array, Array, Array, Array]:
        """(shift, factor, low, high): where (x + shift) * factor is cut. HUGE keeps squares of absurd entries finite.

        Without ranges x + -0.0 times 1, which is x, the sign of a zero included.
        """
        shift, factor = self.affine()
        high = np.minimum(HUGE if self.bounds.entry_bound is None else self.bounds.entry_bound, HUGE)
        if factor is None:
            shift, factor = np.full(self.features, -0.0), np.ones(self.features)
        else:
            high = np.minimum(high, 1.0)
        high = np.array(np.broadcast_to(high, (self.features,)))
        unit = self.bounds.feature_low is not None and self.bounds.rescale == "unit"
        return shift, factor, np.zeros(self.features) if unit else -high, high

    def prepared(self, X: Matrix, usable: NDArray[np.bool_], resources: Resources = NO_RESOURCES) -> Matrix:
        """Raw rows of all features prepared; a row that is not usable, now or from here on, is zero everywhere."""
        how, bits = self.arrangement, self.bits if self.exact else None
        if is_sparse(X):
            if not how.bounded:
                raise InputError(
                    "ranges of a sparse matrix are not estimated, since they would shift its zeros; declare them."
                )
            return _prepare_sparse(X, usable, self, bits)
        if not how.bounded:
            return np.asarray(X, dtype=np.float64)
        X = np.asarray(X)
        rows, step = np.empty((X.shape[0], self.dimension), self.kind, how.order), rows_at_once(self.dimension)

        def prepare(first: int, last: int) -> None:
            room = np.empty((min(step, last - first), self.features))
            for start in range(first, last, step):
                stop = min(start + step, last)
                part = usable[start:stop]
                cut = _clip_dense(X[start:stop], part, self, room[: stop - start])
                factors = _row_norm_factors(row_squares(cut), part, self)
                if bits is not None and rows.dtype == np.float32 and how.order == "C":
                    round_rows(cut, factors, 2.0**bits, rows[start:stop])
                else:
                    made = _multiplied(cut, factors, self)
                    if bits is not None and how.on_grid:
                        toward_zero(made, bits)
                    rows[start:stop, : self.features] = made
                if self.fit_intercept:
                    rows[start:stop, self.features] = np.where(part, self.intercept_entry, 0.0)

        run_parts(prepare, resources.cuts(X.shape[0], X.size))
        return rows

    def size_of(self, dense: int, sparse: int = 0, entries: int = 0) -> int:
        """Bytes of some dense rows, prepared, and of sparse ones with these entries in all; their labels included."""
        width = 8 if self.layout == "raw" else np.dtype(self.kind).itemsize
        return dense * self.dimension * width + 12 * entries + sparse * (4 + 12) + BESIDE * (dense + sparse)

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

    def labels(self, y: ArrayLike) -> tuple[Array, NDArray[np.bool_]]:
        """Labels as the losses want them and which are usable: -1/+1, places of classes, or cut and in [-1, 1]."""
        if not self.labelled:
            return np.zeros(len(np.asarray(y))), np.ones(len(np.asarray(y)), dtype=np.bool_)
        if self.classes is not None:
            raw = np.asarray(y)
            each = list(map(functools.partial(match_labels, raw), self.classes))
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
            *_, low, high = recipe.cuts
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
    clip_raw_rows(raw, *recipe.cuts, usable, made)
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
    scale, limit = recipe.scale, recipe.bounds.row_norm
    if recipe.layout == "rows":  # the declared norm, or what the bounds of the columns allow
        limit = recipe.bounds.norm(recipe.features)
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
    return rows.tocsc().astype(recipe.kind, copy=False)
