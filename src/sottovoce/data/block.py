"""A block: prepared rows of one party. The only code that touches a matrix, dense and sparse alike.

Prepared means, for every record on its own (so that a record changes nothing but its own row):
rescaled by public ranges, cut to the entry bound, scaled back to the row norm, divided by it, extended by the
constant of the intercept, and rounded toward zero on a public grid. The norm of a prepared row is at most 1.
A row with NaN or infinity, or with a label that was not declared, becomes a null row: zero everywhere.

The grid makes sums exact. With b bits for rows and for derivatives and at most 2^(53 - 2b) rows, every product
is a multiple of 2^-2b and every partial sum fits in 53 bits, so float64 adds without rounding in any order:
two neighbouring data sets differ by exactly one record's term. Weights are put on a grid too, on which a score
is exact: else its last bit would depend on where the row stands in a batch, hence on which others were drawn.

That is the layout "rows". In the layout "columns", for solvers that clip each coordinate of a gradient, a column is
divided by its own bound instead and nothing is rounded: entries are at most 1, and a row's norm is not bounded.

The layout "entries", for solvers on an l1 ball and for holders of columns: all entries are divided by one number, the
largest of the columns' bounds, and rounded toward zero on the grid. Entries are at most 1; columns lie together.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from sottovoce.data.bounds import Bounds
from sottovoce.data.kernels import rows as kernels
from sottovoce.errors import InputError

Array = NDArray[np.float64]
Matrix = Any  # a C-ordered array or a CSR matrix: both answer to @, .T and row slices

Layout = Literal["rows", "columns", "entries"]

INTERCEPT = 0.25  # the constant column's share of the unit row norm
HUGE = 1e150  # its square is still finite
CHUNK = 1 << 16  # entries of a dense chunk: small enough to stay in cache between its two products

_log = logging.getLogger("sottovoce.holder")


def is_sparse(matrix: Matrix) -> bool:
    """Whether a matrix is sparse; a plain answer that narrows no type."""
    return bool(sp.issparse(matrix))


def exact_bits(records: int) -> int:
    """Bits b such that sums of `records` products of two b-bit numbers are exact in float64."""
    return (53 - math.ceil(math.log2(max(records, 2)))) // 2


def toward_zero(values: Array, bits: int) -> Array:
    """Round to multiples of 2^-bits toward zero, in place."""
    scale = 2.0**bits
    values *= scale
    np.trunc(values, out=values)
    values *= 1.0 / scale
    return values


def exact_weights(weights: Array, bits: int) -> Array:
    """Weights rounded toward zero so that x'w is exact in float64, in any order, for rows on the grid 2^-bits.

    With |x| <= 1 and |w| <= 2^e every sum of terms x_j w_j is at most 2^e; on the grid 2^(e + bits - 52) it is a
    multiple of 2^(e - 52). The grid is never finer than for e = -400, so that no product is subnormal.
    """
    exact = np.array(weights, dtype=np.float64)
    exponent = max(math.frexp(math.sqrt(float(exact @ exact)))[1], -400)
    return toward_zero(exact, 52 - bits - exponent)


@dataclass(frozen=True)
class Preparation:
    """The public recipe by which raw rows become a block; two parties with one recipe prepare alike."""

    bounds: Bounds
    features: int
    fit_intercept: bool
    records: int
    classes: tuple[Any, Any] | None = None
    exact: bool = True  # False only in a run without privacy: then nothing is rounded
    layout: Layout = "rows"
    unit: float = 1.0  # layout "entries": what every entry is divided by, the same at all holders
    labelled: bool = True  # False at a holder of columns that does not know the labels
    centred: bool | None = None  # whether labels are centred; None: where the rows have the constant of the intercept

    def __post_init__(self) -> None:
        if self.exact:
            self.bounds.require(self.features, labels=self.classes is None and self.labelled)

    @property
    def dimension(self) -> int:
        """Columns of a prepared row."""
        return self.features + self.fit_intercept

    @property
    def bits(self) -> int:
        """Bits of the grid of rows and derivatives."""
        return exact_bits(self.records)

    @property
    def intercept_entry(self) -> float:
        """The constant column's value, on the grid."""
        if self.layout != "rows":
            return 1.0 if self.fit_intercept else 0.0
        return math.floor(INTERCEPT * 2**self.bits) / 2**self.bits if self.fit_intercept else 0.0

    @property
    def scale(self) -> float | Array:
        """A prepared row is the clipped, rescaled row times this. The last factor absorbs float rounding of norms."""
        if self.layout == "columns":
            bounds = self.bounds.columns(self.features)
            return 1.0 / np.where(np.isfinite(bounds), bounds, 1.0)
        if self.layout == "entries":
            return (1.0 - (self.features + 8) * 2.0**-50) / self.unit
        norm = self.bounds.norm(self.features) or 1.0
        slack = 1.0 - (self.features + 8) * 2.0**-50
        return math.sqrt(1.0 - self.intercept_entry**2) * slack / norm

    @property
    def entry_range(self) -> tuple[Array, Array]:
        """Where every rescaled entry is cut. The outermost limit keeps squares of absurd entries finite."""
        high = np.minimum(HUGE if self.bounds.entry_bound is None else self.bounds.entry_bound, HUGE)
        if self.bounds.feature_low is not None:
            high = np.minimum(high, 1.0)
        unit = self.bounds.feature_low is not None and self.bounds.rescale == "unit"
        high = np.broadcast_to(high, (self.features,))
        return np.zeros(self.features) if unit else -high, high

    def unprepare(self, weights: Array) -> tuple[Array, float]:
        """(coef, intercept) in the units of the raw features and labels."""
        centre, half = self.bounds.label_scale(fit_intercept=self.fit_intercept)
        coef = weights[: self.features] * (self.scale * half)
        intercept = weights[self.features] * self.intercept_entry * half + centre if self.fit_intercept else 0.0
        shift, factor = self.affine()
        if factor is not None:
            intercept += float(coef @ (shift * factor))
            coef = coef * factor
        return coef, float(intercept)

    def scores(self, X: Matrix, coef: Array, intercept: float) -> Array:
        """X coef + intercept after the cuts of training: what a row was cut to there it is cut to here."""
        return self.scored(X, coef, intercept)[0]

    def scored(self, X: Matrix, coef: Array, intercept: float) -> tuple[Array, NDArray[np.bool_]]:
        """The same, and which rows can be used; one that cannot is scored as a row of zeros."""
        shift, factor = self.affine()
        inner = coef if factor is None else coef / factor
        sparse = is_sparse(X) and not np.any(shift != 0.0)  # a shift of the zeros makes a sparse matrix dense
        rows = _csr(X) if sparse else np.array(_dense(X), order="C")
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
        """Labels as the losses want them (-1/+1, or cut and scaled to [-1, 1]) and which of them are usable."""
        if not self.labelled:
            return np.zeros(len(np.asarray(y))), np.ones(len(np.asarray(y)), dtype=np.bool_)
        if self.classes is not None:
            raw = np.asarray(y)
            negative, positive = (_equal(raw, value) for value in self.classes)
            return np.where(positive, 1.0, -1.0), positive | negative
        values = _numbers(np.asarray(y))
        usable = np.isfinite(values)
        values[~usable] = 0.0
        if self.bounds.label_low is not None:
            np.clip(values, self.bounds.label_low, self.bounds.label_high, out=values)
        centred = self.fit_intercept if self.centred is None else self.centred
        centre, half = self.bounds.label_scale(fit_intercept=centred)
        return (values - centre) / half, usable


def label_key(label: Any) -> Any:
    """What a label is compared by: its number if it is one or reads as one, else its text, else None.

    A function of the one label alone, never of the array it came in: NumPy gives a column one type, so a single odd
    label would otherwise turn every other number into text.
    """
    try:
        number = float(label)
    except Exception:
        return label.strip() if isinstance(label, str) else None
    return number if number == number else None  # NaN is no label


def _equal(labels: NDArray[Any], value: Any) -> NDArray[np.bool_]:
    """Which labels equal the value, each by its own key; a missing label equals nothing."""
    key = label_key(value)
    if labels.dtype.kind in "fiub":
        return np.asarray(labels == key, dtype=np.bool_) if isinstance(key, float) else np.zeros(labels.shape, np.bool_)
    return np.array([label_key(label) == key for label in labels.ravel()], dtype=np.bool_).reshape(labels.shape)


def _numbers(labels: NDArray[Any]) -> Array:
    """Labels as float64; one that is no number is NaN, since an error would tell that there is one."""
    if labels.dtype.kind in "fiub":
        return labels.astype(np.float64)
    keys = [label_key(label) for label in labels.ravel()]
    return np.array([key if isinstance(key, float) else math.nan for key in keys]).reshape(labels.shape)


def _dense(matrix: Matrix) -> Array:
    return np.asarray(matrix.toarray() if is_sparse(matrix) else matrix, dtype=np.float64)


def _csr(matrix: Matrix) -> Matrix:
    """A CSR copy in float64 that has each entry once."""
    rows = sp.csr_matrix(matrix, dtype=np.float64, copy=True)
    rows.sum_duplicates()
    return rows


def _row_squares(matrix: Matrix) -> Array:
    squares = matrix.multiply(matrix).sum(axis=1) if is_sparse(matrix) else np.einsum("ij,ij->i", matrix, matrix)
    return np.asarray(squares, dtype=np.float64).ravel()


def _clipped(raw: Matrix, usable: NDArray[np.bool_], recipe: Preparation) -> Matrix:
    """Rows of `raw` (dense chunk or CSR, float64, owned by us) rescaled, clipped and scaled; unusable rows zero."""
    # A row that overflows becomes a null row in silence: a warning could be turned into an error.
    with np.errstate(all="ignore"):
        return _scaled(raw, usable, recipe)


def _scaled(raw: Matrix, usable: NDArray[np.bool_], recipe: Preparation) -> Matrix:
    shift, factor = recipe.affine()
    sparse = is_sparse(raw)
    entries = raw.data if sparse else raw
    if factor is not None:
        if sparse:
            entries *= factor[raw.indices]
        else:
            entries += shift
            entries *= factor
    finite = np.isfinite(entries)
    if not finite.all():
        owner = np.repeat(np.arange(raw.shape[0]), np.diff(raw.indptr)) if sparse else np.nonzero(~finite)[0]
        usable[owner[~finite] if sparse else owner] = False
        entries[~finite] = 0.0
    low, high = recipe.entry_range
    np.clip(entries, low[raw.indices] if sparse else low, high[raw.indices] if sparse else high, out=entries)
    norms = np.sqrt(_row_squares(raw))
    if recipe.layout == "entries":
        limit = recipe.bounds.row_norm
        scale = np.where(usable, recipe.scale, 0.0)
    elif recipe.layout == "columns":
        limit = recipe.bounds.row_norm
        scale = np.where(usable, 1.0, 0.0)
        entries *= recipe.scale[raw.indices] if sparse else recipe.scale  # type: ignore[index]
    else:
        limit = recipe.bounds.norm(recipe.features)
        scale = np.where(usable, recipe.scale, 0.0)
    if limit is not None:
        over = norms > limit
        scale[over] *= limit / norms[over]
    if sparse:
        entries *= np.repeat(scale, np.diff(raw.indptr))
    else:
        entries *= scale[:, None]
    return raw


class Block:
    """Prepared rows and labels of one holder, or a batch of them.

    A batch names its rows in `chosen` and copies none; `whole` is the holder's block that they are rows of.
    """

    def __init__(
        self,
        rows: Matrix,
        labels: Array,
        bits: int | None,
        chosen: NDArray[np.int64] | None = None,
        *,
        whole: Block | None = None,
        layout: Layout = "rows",
        usable: NDArray[np.bool_] | None = None,
    ) -> None:
        self.rows = rows
        self.labels = labels
        self.bits = bits
        self.chosen = chosen
        self._whole = whole
        self.layout: Layout = layout
        self.usable = usable  # which rows are no null rows; None for a batch

    @classmethod
    def prepare(cls, X: Matrix, y: ArrayLike, recipe: Preparation) -> Block:
        """Rows and labels by the recipe. The holder alone is told how many rows became null rows."""
        with np.errstate(all="ignore"):  # a warning that one entry caused could be turned into an error
            return cls._prepare(X, y, recipe)

    @classmethod
    def _prepare(cls, X: Matrix, y: ArrayLike, recipe: Preparation) -> Block:
        count, features = X.shape
        if features != recipe.features:
            raise InputError(
                f"X has {features} features but the plan is for {recipe.features}; use the plan's columns."
            )
        if count > recipe.records:
            raise InputError(f"X has {count} rows but the plan is for {recipe.records} records; make a new plan.")
        labels, usable = recipe.labels(y)
        if labels.shape != (count,):
            raise InputError(f"y has shape {labels.shape} but X has {count} rows; give one label per row.")
        bits = recipe.bits if recipe.exact else None
        if is_sparse(X):
            rows = _prepare_sparse(X, usable, recipe, bits)
        else:
            rows = _prepare_dense(np.asarray(X), usable, recipe, bits)
        labels[~usable] = 0.0 if recipe.classes is None or not recipe.labelled else 1.0
        if not usable.all():
            _log.warning(
                "%d of %d rows cannot be used (not finite, or label not declared); they count as null rows",
                count - int(usable.sum()),
                count,
            )
        return cls(rows, labels, bits, layout=recipe.layout, usable=usable)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def whole(self) -> Block:
        """The holder's block. It does not hold itself: rows are then given back as soon as nobody needs them."""
        return self if self._whole is None else self._whole

    @property
    def dimension(self) -> int:
        """Columns of a prepared row."""
        return int(self.rows.shape[1])

    @property
    def row_norm(self) -> float:
        """What bounds the norm of every row; nothing does in the other layouts."""
        return 1.0 if self.layout == "rows" else math.inf

    def chunks(self) -> Iterator[tuple[Matrix, Array]]:
        """Rows and labels piece by piece: cache-sized float64 pieces of a dense block, a sparse block at once."""
        rows = self.rows if self.chosen is None else self.rows[self.chosen]
        if is_sparse(rows):
            yield rows, self.labels
            return
        step = max(64, CHUNK // max(self.dimension, 1))
        # A fresh half megabyte for every piece would cost more than the arithmetic on it.
        wide = np.empty((min(step, len(self.labels)), self.dimension)) if rows.dtype != np.float64 else None
        for start in range(0, len(self.labels), step):
            piece = rows[start : start + step]
            if wide is not None:
                np.copyto(wide[: len(piece)], piece)
                piece = wide[: len(piece)]
            yield piece, self.labels[start : start + step]

    def weighted_sum(self, weights: Array, term: Callable[[Array, Array], Array]) -> Array:
        """sum_i term(x_i'w, y_i) x_i in one pass over the rows."""
        exact = weights if self.bits is None else exact_weights(weights, self.bits)
        if self.chosen is not None and not is_sparse(self.rows):
            slopes = term(kernels.scores(self.rows, self.chosen, exact), self.labels)
            return np.asarray(kernels.weighted_sum(self.rows, self.chosen, slopes))
        total = np.zeros(self.dimension)
        for rows, labels in self.chunks():
            total += rows.T @ term(rows @ exact, labels)
        return total

    def scalar_sum(self, weights: Array, term: Callable[[Array, Array], Array]) -> float:
        """sum_i term(x_i'w, y_i)."""
        return float(sum(term(rows @ weights, labels).sum() for rows, labels in self.chunks()))

    def gram(self, weights: Array | None = None, term: Callable[[Array, Array], Array] | None = None) -> Array:
        """X'X, or X' diag(term(Xw, y)) X."""
        total = np.zeros((self.dimension, self.dimension))
        for narrow, labels in self.chunks():
            rows = narrow.astype(np.float64, copy=False)  # products of float32 would be rounded
            scaled = rows
            if term is not None:
                factor = term(rows @ weights, labels)[:, None]
                scaled = rows.multiply(factor) if is_sparse(rows) else rows * factor
            total += _dense(rows.T @ scaled)
        return total

    def take(self, indices: NDArray[np.int64]) -> Block:
        """The named rows as a batch."""
        chosen = indices if self.chosen is None else self.chosen.take(indices)
        labels = self.labels.take(indices)
        return Block(self.rows, labels, self.bits, chosen, whole=self.whole, layout=self.layout)

    @property
    def places(self) -> NDArray[np.int64]:
        """The rows of `whole` that are in this block."""
        return np.arange(len(self), dtype=np.int64) if self.chosen is None else self.chosen

    @functools.cached_property
    def entries(self) -> NDArray[Any]:
        """The entries of sparse rows, as float32 where that holds their grid without loss: half the traffic."""
        narrow = self.bits is not None and self.bits <= 24 and self.layout == "rows"
        return np.asarray(self.rows.data, dtype=np.float32 if narrow else None)

    @functools.cached_property
    def squares(self) -> Array:
        """|x_i|^2 of every row; exact on the grid of the layout "rows"."""
        if is_sparse(self.rows):
            return _row_squares(self.rows)
        return np.concatenate([_row_squares(rows) for rows, _ in self.chunks()] or [np.zeros(0)])


def _prepare_dense(X: NDArray[Any], usable: NDArray[np.bool_], recipe: Preparation, bits: int | None) -> Matrix:
    # A grid of up to 24 bits fits float32 without loss: half the memory, half the traffic.
    # Columns are rounded to it in any private run: each entry on its own, so a record changes its own row alone.
    columns = recipe.layout == "columns"
    narrow = bits is not None and (bits <= 24 or columns)
    order: Literal["C", "F"] = "C" if recipe.layout == "rows" else "F"
    rows = np.empty((X.shape[0], recipe.dimension), dtype=np.float32 if narrow else np.float64, order=order)
    step = max(64, CHUNK // max(recipe.dimension, 1))
    for start in range(0, X.shape[0], step):
        part = usable[start : start + step]
        chunk = _clipped(np.array(X[start : start + step], dtype=np.float64, order="C"), part, recipe)
        rows[start : start + step, : recipe.features] = chunk if bits is None or columns else toward_zero(chunk, bits)
        if recipe.fit_intercept:
            rows[start : start + step, recipe.features] = np.where(part, recipe.intercept_entry, 0.0)
    return rows


def _prepare_sparse(X: Matrix, usable: NDArray[np.bool_], recipe: Preparation, bits: int | None) -> Matrix:
    shift, _ = recipe.affine()
    if np.any(shift != 0.0):
        raise InputError(
            "feature_ranges shift the zeros of a sparse matrix, which would make it dense. Use rescale='unit' with "
            "ranges that start at 0, ranges symmetric about 0, or pass a dense array."
        )
    rows = _clipped(_csr(X), usable, recipe)
    if bits is not None and recipe.layout != "columns":
        toward_zero(rows.data, bits)
    if recipe.fit_intercept:
        column = sp.csr_matrix(np.where(usable, recipe.intercept_entry, 0.0)[:, None])
        rows = sp.csr_matrix(sp.hstack([rows, column], format="csr"))
    if recipe.layout == "rows":
        return rows
    rows = rows.tocsc()
    narrow = bits is not None and (bits <= 24 or recipe.layout == "columns")
    return rows.astype(np.float32) if narrow else rows
