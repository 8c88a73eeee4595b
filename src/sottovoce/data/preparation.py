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
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from sottovoce.data.beside import columns_beside, labels_of
from sottovoce.data.bounds import Bounds
from sottovoce.data.cells import class_places, read_numbers
from sottovoce.data.coded import Coded
from sottovoce.data.kernels.preparing_loops import (
    FACTOR,
    HIGH,
    LEAST,
    LOW,
    MIDDLE,
    MOST,
    SCALE,
    SHIFT,
    prepare_dense,
    prepare_sparse,
)
from sottovoce.data.matrix import Matrix, csr, dense, exact_bits, is_sparse, readable
from sottovoce.data.resources import NO_RESOURCES, Resources, run_parts
from sottovoce.errors import InputError, LeakError

Array = NDArray[np.float64]

Layout = Literal["rows", "columns", "entries", "raw"]

MOST_CLASSES = 100
INTERCEPT = 0.25  # the constant column's share of the unit row norm
BESIDE = 9  # bytes of a row's label and of its mark, if it is a null row
HUGE = 1e150  # its square is still finite
FOLLOWED = np.dtype([("label", np.float64), ("time", np.float64), ("entry", np.float64)])
RATED = np.dtype([("label", np.float64), ("exposure", np.float64)])


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
    records: int  # at most, by public numbers
    classes: tuple[Any, ...] | None = None
    exact: bool = True  # False only in a run without privacy: then nothing is rounded
    layout: Layout = "rows"
    unit: float = 1.0  # layout "entries": what every entry is divided by, the same at all holders
    labelled: bool = True  # False at a holder of columns that does not know the labels
    units: bool | None = None  # whether rows and labels are in units of their bounds; None: in a private run
    centred: bool | None = None  # whether labels are centred; None: where the rows have the constant of the intercept
    whole: float | None = None  # layout "rows", of a party that has a part of each: what the whole row is multiplied by
    also: tuple[str, ...] = ()  # what else the plan uses of what stands beside labels
    most_bits: int | None = None  # a coarser grid than the records need, where wide noise needs the room
    most_records: int | None = None  # of a person, of whom `records` has so many; None: a record is a person
    counted: int | None = None  # over columns, at the holder of the labels: so many of a person's records count
    counts: bool = False  # whether labels are counts or amounts: 0 or above, in their own units
    exposed: bool = False  # whether they may have exposures
    until: float | None = None  # of events: the time after which nobody is followed; None: labels are no events

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
            self.bounds.require(self.features, labels=self.classes is None and self.labelled and self.until is None)
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
            label_scale=(0.0, 1.0) if self.counts else self.bounds.label_scale(fit_intercept=centred and scaled),
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
    def columns(self) -> Array:
        """What `prepare_dense` does to each column. HUGE keeps squares of absurd entries finite.

        Without ranges x + -0.0 times 1, which is x, the sign of a zero included.
        """
        found, (shift, factor), bounds = np.zeros((8, self.features)), self.affine(), self.bounds
        found[LEAST], found[MOST], found[MIDDLE] = -math.inf, math.inf, math.nan
        found[SHIFT], found[FACTOR] = (-0.0, 1.0) if factor is None else (shift, factor)
        found[HIGH] = np.minimum(
            HUGE if bounds.entry_bound is None else bounds.entry_bound, HUGE if factor is None else 1
        )
        found[LOW] = 0.0 if bounds.feature_low is not None and bounds.rescale == "unit" else -found[HIGH]
        found[SCALE] = self.scale if isinstance(self.scale, np.ndarray) else 1.0
        if bounds.filled is not None and bounds.feature_low is not None and bounds.feature_high is not None:
            filled = list(bounds.filled)
            low, high = np.array(bounds.feature_low)[filled], np.array(bounds.feature_high)[filled]
            found[LEAST, filled], found[MOST, filled], found[MIDDLE, filled] = low, high, (low + high) / 2
        return found

    def prepared(self, X: Matrix, usable: NDArray[np.bool_], resources: Resources = NO_RESOURCES) -> Matrix:
        """Raw rows of all features prepared; a row that is not usable, now or from here on, is zero everywhere."""
        how = self.arrangement
        if isinstance(X, Coded) and not how.bounded:
            return X.dense()
        if is_sparse(X) or isinstance(X, Coded):
            if not how.bounded:
                raise InputError(
                    "ranges of a sparse matrix are not estimated, since they would shift its zeros; declare them."
                )
            coded = isinstance(X, Coded)  # whose shifted columns have an entry in every row
            if not coded and np.any(self.affine()[0] != 0.0):
                raise InputError(
                    "feature_ranges shift the zeros of a sparse matrix, which would make it dense. Use rescale='unit' "
                    "with ranges that start at 0, ranges symmetric about 0, or pass a dense array."
                )
            rows = self._made(X.csr() if coded else csr(X), usable, resources)
            return rows if how.order == "C" else rows.tocsc().astype(self.kind, copy=False)
        if not how.bounded:
            return np.asarray(X, dtype=np.float64)
        return self._made(readable(np.asarray(X)), usable, resources)

    def _made(
        self, raw: Matrix, usable: NDArray[np.bool_], resources: Resources, *, for_scores: bool = False
    ) -> Matrix:
        """Rows that loops can read, prepared; `for_scores` neither rounded nor with the constant of the intercept.

        Guarantee, layout "rows": the prepared row is no longer than 1, its constant c included. Let u = 2^-53, and x a
        row of d cut entries. Its computed norm is n >= |x| (1 - (d + 2) u), in whatever order the d squares are added.
        So x, or x limit / n if n > limit, is at most limit (1 + u) / (1 - (d + 2) u) long, u for the quotient. The
        scale is sqrt(1 - c^2) (1 - 8 (d + 8) u) / limit, rounded six times at most; what an entry is multiplied by is
        rounded once, and so is the product. That makes at most

            sqrt(1 - c^2) (1 - 8 (d + 8) u) (1 + u)^9 / (1 - (d + 2) u) < sqrt(1 - c^2).

        Rounding to the grid is toward zero, so no entry grows, and float32 has every number of a grid of 24 bits.
        Edges: limits are between 1e-100 and 1e100 and entries are at most 1e150, so no square overflows, and one that
        is subnormal is wrong by less than 1e-323, which moves no norm near a limit.
        """
        scale = 1.0 if isinstance(self.scale, np.ndarray) else self.scale
        # of "rows" the declared norm, or what the bounds of the columns allow
        limit = self.bounds.norm(self.features) if self.layout == "rows" else self.bounds.row_norm
        count, width = raw.shape[0], self.features if for_scores else self.dimension
        grid = 2.0**self.bits if self.exact and self.arrangement.on_grid and not for_scores else 0.0
        told = (self.columns, (scale, math.inf if limit is None else limit, grid, self.intercept_entry), usable)
        if is_sparse(raw):
            size = raw.nnz + (width - self.features) * count
            kind = sp.get_index_dtype(maxval=max(size, width))
            starts = raw.indptr.astype(kind) + (width - self.features) * np.arange(count + 1, dtype=kind)
            held = (starts, np.empty(size, kind), np.empty(size))
            rows = (raw.indptr, raw.indices, readable(raw.data))
            run_parts(functools.partial(prepare_sparse, rows, *told, held), resources.cuts(count, raw.nnz))
            return sp.csr_matrix(held[::-1], (count, width))
        made = np.empty((count, width), *((np.float64,) if for_scores else (self.kind, self.arrangement.order)))
        run_parts(functools.partial(prepare_dense, raw, *told, made), resources.cuts(count, raw.size))
        return made

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
        rows = X.csr() if isinstance(X, Coded) else csr(X) if sparse else dense(X)
        usable = np.ones(rows.shape[0], dtype=np.bool_)
        rows = self._made(rows, usable, NO_RESOURCES, for_scores=True)
        return np.asarray(rows @ (inner / self.scale) + (intercept - coef @ shift), dtype=np.float64), usable

    def affine(self) -> tuple[Array, Array | None]:
        """(shift, factor): a feature x becomes (x + shift) * factor. Factor is None without declared ranges."""
        if self.bounds.feature_low is None or self.bounds.feature_high is None:
            return np.zeros(self.features), None
        low, high = np.asarray(self.bounds.feature_low), np.asarray(self.bounds.feature_high)
        if self.bounds.rescale == "unit":
            return -low, 1.0 / (high - low)
        return -(low + high) / 2, 2.0 / (high - low)

    def labels(self, y: ArrayLike) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Labels as the losses want them and which are usable: -1/+1, places of classes, or cut and in [-1, 1].

        Counts are cut and in their own units, and beside them, in the field `exposure`, that of each. A count above 0
        without exposure is not usable.
        """
        y = np.asarray(y)
        columns = columns_beside(y)
        if (self.most_records or self.counted) is not None and "person" not in columns:
            raise InputError("the labels do not say whose record each is, and the plan is about people; give person.")
        labels, usable = self._labels(labels_of(y))
        if self.layout == "raw":  # cells are counted, whatever stands beside labels
            return labels, usable
        if strange := columns.keys() - self.beside:
            raise InputError(f"the plan does not take {', '.join(sorted(strange))} beside labels; leave it out.")
        if self.until is not None:
            return self._events(labels, usable, columns)
        if "exposure" not in columns:
            return labels, usable
        found = np.empty(len(labels), dtype=RATED)
        found["label"], exposure = labels, columns["exposure"]
        known = np.isfinite(exposure) & ((exposure > 0) | ((exposure == 0) & (labels == 0)))
        found["exposure"] = np.where(known, np.minimum(exposure, self.bounds.exposure_bound or math.inf), 0.0)
        return found, usable & known

    def _events(
        self, labels: Array, usable: NDArray[np.bool_], columns: Mapping[str, NDArray[Any]]
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Events with their times and entries: one after the last time is none, and is seen until then.

        An event of nobody who was seen before it, a time below its entry, and one that is no number, are not usable.
        """
        found, until = np.empty(len(labels), dtype=FOLLOWED), self.until or 0.0
        time = columns.get("time", np.zeros(len(labels)))
        entry = columns.get("entry", np.zeros(len(labels)))
        known = np.isfinite(time) & np.isfinite(entry) & (entry >= 0) & (time >= entry)
        event = (labels > 0) & (time <= until)
        known &= ~event | (time > entry)
        found["label"] = np.where(event & known, 1.0, 0.0)
        found["time"], found["entry"] = (np.where(known, np.minimum(each, until), 0.0) for each in (time, entry))
        return found, usable & known

    def shares(self, columns: Mapping[str, NDArray[Any]], usable: NDArray[np.bool_]) -> Array:
        """What a record counts of the most that one may, in [0, 1]; one without a weight is not usable any more."""
        weights = columns["weight"]
        known = np.isfinite(weights) & (weights >= 0)
        usable &= known
        found = np.where(known, weights, 0.0)
        most = self.bounds.weight_bound
        return np.asarray(found if most is None else np.minimum(found / most, 1.0))

    @functools.cached_property
    def beside(self) -> frozenset[str]:
        """What may stand beside labels. A private run needs its bound."""
        declared = {"weight": self.bounds.weight_bound}
        if self.exposed:
            declared["exposure"] = self.bounds.exposure_bound
        if self.until is not None:
            declared |= {"time": self.until, "entry": self.until}
        found = {name for name, bound in declared.items() if bound is not None or not self.exact}
        people = (self.most_records or self.counted) is not None
        return frozenset({*found, *self.also, *(["person"] if people else [])})

    def check_beside(self, given: Collection[str]) -> None:
        """Refuse labels without what the plan counts on beside them, or with more, whatever they are."""
        if strange := {*given} - self.beside:
            raise InputError(f"the plan does not take {', '.join(sorted(strange))} beside labels; leave it out.")
        declared = {"exposure": self.bounds.exposure_bound, "weight": self.bounds.weight_bound, "time": self.until}
        if lacking := [name for name in sorted(self.beside) if declared.get(name) and name not in given]:
            raise InputError(
                f"the plan takes {lacking[0]} beside labels, and there is none; give it, or make a plan without."
            )

    def _labels(self, y: NDArray[Any]) -> tuple[Array, NDArray[np.bool_]]:
        if not self.labelled:
            return np.zeros(len(y)), np.ones(len(y), dtype=np.bool_)
        if self.classes is not None:
            places = class_places(y, self.classes)
            if len(self.classes) == 2:
                return np.where(places == 1, 1.0, -1.0), places >= 0
            return np.maximum(places, 0).astype(np.float64), places >= 0
        values = read_numbers(y)
        usable = np.isfinite(values)
        values[~usable] = 0.0
        if self.counts:
            usable &= values >= 0.0
            values[~usable] = 0.0
        if self.bounds.label_low is not None:
            np.clip(values, self.bounds.label_low, self.bounds.label_high, out=values)
        centre, half = self.label_scale
        return (values - centre) / half, usable
