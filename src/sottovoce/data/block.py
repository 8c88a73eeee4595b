"""A block: prepared rows of one party. The only code that touches them, dense and sparse alike.

`preparation` says how raw rows become prepared ones, `matrix` why sums over them are exact. An algorithm asks a block
for sums, scores and products; whether rows are dense or sparse, float32 or float64, it does not see.

Every sum of a private run is exact in any order, so rows may be shared by threads, in files, on a device or on several
machines (`block_parts`). What they answer, with the same bits in any place, is a type; a query says which it needs.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.data.beside import NOTHING, columns_beside
from sottovoce.data.cells import label_key
from sottovoce.data.coded import Coded
from sottovoce.data.kernels import column_loops
from sottovoce.data.kernels import row_loops as kernels
from sottovoce.data.kernels.column_loops import CoordinateSteps
from sottovoce.data.kernels.dual_loops import DualMoves, dual_rows_dense, dual_rows_sparse
from sottovoce.data.matrix import (
    COSTLY,
    NONE,
    NUMBERS,
    Matrix,
    Products,
    Slope,
    Slopes,
    Term,
    column_squares,
    dense,
    exact_bits,
    exact_weights,
    is_sparse,
    row_squares,
    rows_at_once,
    toward_zero,
)
from sottovoce.data.people import ROOT_BITS, root_weights
from sottovoce.data.preparation import ARRANGEMENTS, Layout, Preparation
from sottovoce.data.projection import Projected, ProjectedRows
from sottovoce.data.resources import NO_RESOURCES, Resources, run_parts, sum_parts, take_buffers
from sottovoce.errors import InputError, LeakError, MisfitWarning, warn

__all__ = [
    "Block",
    "BlockRows",
    "Layout",
    "Matrix",
    "Preparation",
    "RecordRows",
    "SumRows",
    "exact_bits",
    "exact_weights",
    "is_sparse",
    "label_key",
    "toward_zero",
]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

ROWS = 4096  # of a dense block that are made float64 at once

MANY = 0.05  # the share of null rows of which a caller is warned
SPARSE = 4  # entries of dense rows that take as long as one of sparse rows
ALL = np.zeros(0, dtype=np.int64)  # what a loop takes in the place of chosen rows

_log = logging.getLogger("sottovoce.holder")


class SumRows(Protocol):
    """Rows over which sums are taken: in memory, in files, on a device, on a cluster; a `Block` says what each is."""

    bits: int | None  # of the grid
    records: int  # of all the rows that these are a part of

    @property
    def dimension(self) -> int: ...
    @property
    def row_norm(self) -> float: ...
    def __len__(self) -> int: ...
    def digest(self) -> bytes: ...
    def take(self, indices: Integers) -> SumRows: ...
    def weighted_sum(self, weights: Array, term: Term) -> Array: ...
    def gram(self) -> Array: ...
    def gram_diagonal(self) -> Array: ...
    def number_sum(self, term: Callable[[Any, Any], Any], low: float = 0.0, weights: Array | None = None) -> float: ...
    def projected(self, matrix: Array, *, made: bool = False) -> Any: ...


class BlockRows(SumRows, Protocol):
    """Rows in one block or in several, wherever these are: in memory, in files, on a cluster."""

    def over(self, work: Callable[[Block], Array]) -> Array: ...


class RecordRows(BlockRows, Protocol):
    """Rows in one block, in memory: what a query needs that looks at single records of all, as a `Block` has them."""

    labels: Array

    @property
    def usable_rows(self) -> NDArray[np.bool_]: ...
    def scores(self, weights: Array) -> Array: ...


def kind_of_rows(resources: Resources, *, by_pieces: bool) -> type:
    """What a holder's rows answer where they are prepared; `by_pieces`: they are a `Dataset`."""
    if resources.device == "cuda":
        return SumRows
    return BlockRows if by_pieces else RecordRows


def prepare_rows(  # noqa: PLR0913
    X: Matrix,
    y: ArrayLike,
    recipe: Preparation,
    resources: Resources,
    *,
    kinds: Collection[type],
    beside: Path | None = None,
) -> Any:
    """The prepared rows in memory, in a file `beside`, on a cluster or on a device, by the `kinds` of rows asked for.

    Those of a table whose cells are kept are made anew in every pass, where that serves.
    """
    from sottovoce.data.dataset import Dataset

    take_buffers(os.getpid(), resources.jobs)
    if recipe.most_records is not None:  # those of a person lie together, in one block
        return Block.prepare(X, y, recipe, resources=resources)
    if isinstance(X, Dataset) and X.cluster is not None:
        from sottovoce.data.cluster.cluster_parts import on_cluster

        return on_cluster(X, recipe, resources)
    if resources.device == "cuda" and set(kinds) <= {SumRows}:
        from sottovoce.data.device.device_block import DeviceBlock

        return DeviceBlock.prepare(X, y, recipe, resources)
    if isinstance(X, Dataset):
        from sottovoce.data.block_parts import in_memory_or_file

        return in_memory_or_file(X, recipe, beside, resources)
    if isinstance(X, Coded) and recipe.exact and recipe.layout in ("rows", "raw") and RecordRows not in kinds:
        from sottovoce.data.block_parts import PartsOfTable

        return PartsOfTable(X, y, recipe, resources)
    return Block.prepare(X, y, recipe, resources=resources)


def tell_null_rows(null: int, count: int, resources: Resources = NO_RESOURCES, X: Matrix | None = None) -> None:
    """Tell the holder, and nobody else, that rows cannot be used.

    A holder who runs the job in this process is refused if no row is left, and one who calls it is warned of many. A
    party elsewhere answers as if it had rows: that it has none is its own affair.
    """
    remedy = "" if null < count else ". Are classes and bounds those of these data? Columns of texts need a schema"
    text = f"{null} of {count} rows cannot be used (not finite, or label not declared)"
    if null == count and resources.holder != "elsewhere":
        known = np.ones(0, np.bool_) if X is None or is_sparse(X) else np.isfinite(X).any(axis=0)
        if (empty := np.flatnonzero(~known).tolist()) and known.any():
            text += f"; no cell of column {', '.join(map(str, empty[:5]))}, counted from 0, is a number"
        raise InputError(f"{text}, so that none is left{remedy}.")
    many = resources.holder == "caller" and null >= MANY * count
    _log.log(logging.INFO if many else logging.WARNING, "%s; they count as null rows%s", text, remedy)
    if many:
        warn(f"{text}; they count as null rows.", MisfitWarning)


class Block:
    """Prepared rows and labels of one holder, or a batch of them.

    A batch names its rows in `chosen` and copies none; `whole` is the holder's block that they are rows of.
    """

    def __init__(  # noqa: PLR0913
        self,
        rows: Matrix,
        labels: Array,
        bits: int | None,
        chosen: NDArray[np.int64] | None = None,
        *,
        whole: Block | None = None,
        layout: Layout = "rows",
        usable: NDArray[np.bool_] | None = None,
        records: int | None = None,
        resources: Resources = NO_RESOURCES,
        beside: Mapping[str, NDArray[Any]] = NOTHING,
        shares: Array | None = None,
    ) -> None:
        self.shares = shares  # of what a record may count at most, in [0, 1]; None: all count alike
        self.beside = beside  # the labels, by name: whose record each is, its exposure, its weight
        self.rows, self.labels, self.bits = rows, labels, bits
        self.chosen, self._whole = chosen, whole
        self.dimension = int(rows.shape[1])
        self.layout: Layout = layout
        self._arrangement = ARRANGEMENTS[layout]
        self.row_norm = self._arrangement.row_norm  # what bounds the norm of every row; infinite where entries are
        # Whether loops over rows may take them: rows are contiguous, and sums over them exact. Rows that float32 does
        # not hold are eight at most, and not worth loops of their own.
        self._fused = bits is not None and bits <= 24 and self._arrangement.order == "C"
        self.usable = usable  # which rows are no null rows; None for a batch
        self.records = len(labels) if records is None else records  # of all the rows that these are a part of
        self.resources = resources

    @classmethod
    def prepare(
        cls,
        X: Matrix,
        y: ArrayLike,
        recipe: Preparation,
        records: int | None = None,
        resources: Resources = NO_RESOURCES,
    ) -> Block:
        """Rows and labels by the recipe. The holder alone is told how many rows became null rows.

        Where the holder's rows are in several blocks, `records` is how many there are in all: sums of parts then are on
        one grid, and add up to that of all rows bit for bit. Who prepares the parts tells of their null rows.
        """
        count, features = X.shape
        if features != recipe.features:
            raise InputError(
                f"X has {features} features but the plan is for {recipe.features}; use the plan's columns."
            )
        if recipe.most_records is not None and cls is Block:
            from sottovoce.data.people_block import PeopleBlock

            return PeopleBlock.prepare(X, y, recipe, resources=resources)
        if (own := max(count, records or 0)) > recipe.records and recipe.most_records is None:
            raise InputError(f"X has {own} rows but the plan is for {recipe.records} records; make a new plan.")
        with np.errstate(all="ignore"):  # a warning that one entry caused could be turned into an error
            labels, usable = recipe.labels(y)
            if labels.shape != (count,):
                raise InputError(f"y has shape {labels.shape} but X has {count} rows; give one label per row.")
            beside = columns_beside(y)
            shares = recipe.shares(beside, usable) if "weight" in beside and "weight" in recipe.beside else None
            if recipe.counted is not None:
                shares = root_weights(beside["person"], recipe.counted) ** 2 / 4.0**ROOT_BITS
            rows = recipe.prepared(X, usable, resources)
        if count and recipe.beside:
            recipe.check_beside(beside)
        labels[~usable] = 0.0 if recipe.classes is None or not recipe.labelled else 1.0
        if records is None and (null := count - int(usable.sum())):
            tell_null_rows(null, count, resources, X)
        bits = recipe.bits if recipe.exact else None
        about: Any = {"layout": recipe.layout, "records": records, "resources": resources}
        return cls(rows, labels, bits, usable=usable, beside=beside, shares=shares, **about)

    def with_rows(
        self,
        rows: Matrix,
        labels: Array,
        usable: NDArray[np.bool_] | None = None,
        *,
        beside: Mapping[str, NDArray[Any]] = NOTHING,
        shares: Array | None = None,
    ) -> Block:
        """Other rows of the same holder, prepared alike."""
        known: Any = {"layout": self.layout, "records": self.records, "resources": self.resources, "beside": beside}
        return Block(rows, labels, self.bits, usable=usable, shares=shares, **known)

    @property
    def together(self) -> int:
        """How many rows a piece of cells has at least."""
        return 1

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def whole(self) -> Block:
        """The holder's block. It does not hold itself: rows are then given back as soon as nobody needs them."""
        return self if self._whole is None else self._whole

    def digest(self) -> bytes:
        """Of all that a value follows from: the prepared rows in their order, their labels, which are null rows."""
        found, matrix = hashlib.blake2b(digest_size=32), self.rows
        parts = (matrix.indptr, matrix.indices, matrix.data) if is_sparse(matrix) else (matrix,)
        own = () if self.shares is None else (self.shares,)
        for array in (*parts, self.labels, *own, self.usable_rows, *self.beside.values()):
            whole = np.ascontiguousarray(array.T if array.flags.f_contiguous else array)
            found.update(f"{whole.dtype.str}{whole.shape}".encode())
            found.update(whole.data)
        return found.digest()

    def over(self, work: Callable[[Block], Array]) -> Array:
        """What `work` makes of the rows; where they are in several parts, the sum of what it makes of each."""
        return work(self)

    def chunks(self, least: int = 1, scores: int = 1) -> Iterator[tuple[Matrix, Array]]:
        """Rows and labels piece by piece: cache-sized float64 pieces of a dense block, a sparse block at once.

        A dense piece has at least `least` rows. Where a row has several `scores`, pieces are so small that a number for
        each of them takes little memory.
        """
        rows = self.rows if self.chosen is None else self.rows[self.chosen]
        return self.pieces(rows, 0, len(self), least, scores)

    def pieces(
        self, rows: Matrix, first: int, last: int, least: int = 1, scores: int = 1
    ) -> Iterator[tuple[Matrix, Array]]:
        """The same of the rows first, ..., last - 1."""
        if is_sparse(rows):
            step = max(last - first, 1) if scores == 1 else 16 * rows_at_once(scores)
            for start in range(first, max(last, first + 1), step):
                stop = min(start + step, last)
                whole = start == 0 and stop == rows.shape[0]
                yield rows if whole else rows[start:stop], self.labels[start:stop]
            return
        step = max(rows_at_once(max(self.dimension, scores)), least)
        # A fresh half megabyte for every piece would cost more than the arithmetic on it.
        wide = np.empty((min(step, last - first), self.dimension)) if rows.dtype != np.float64 else None
        for start in range(first, last, step):
            piece = rows[start : min(start + step, last)]
            if wide is not None:
                np.copyto(wide[: len(piece)], piece)
                piece = wide[: len(piece)]
            yield piece, self.labels[start : start + len(piece)]

    def cells(self, columns: Sequence[int]) -> Iterator[Array]:
        """Raw values of these columns piece by piece, without null rows; behind the features' places is the label's."""
        if self._arrangement.bounded:
            raise LeakError("cells are of rows that were not prepared; those of a plan with another layout were.")
        start = 0
        for piece, labels in self.chunks(self.together):
            kept = self.usable_rows[start : start + len(labels)]
            start += len(labels)
            yield np.column_stack([piece, labels])[kept][:, list(columns)]

    def weighted_sum(self, weights: Array, term: Callable[..., Array], shares: Array = NONE) -> Array:
        """sum_i term(x_i'w, y_i) x_i in one pass over the rows; of a matrix w, a row of scores and terms for each row.

        A `Slope` runs in a fused loop that reads each row once, by as many threads as `resources` say. Any other
        function gets scores and labels piece by piece, of a dense batch all at once. `shares`, if any, are one for each
        row, by which a `Slope` multiplies its terms; so do the records' own.
        """
        if self.shares is not None:
            shares = shares * self.shares if len(shares) else self.shares
        if self._fused and isinstance(term, Slope) and term.serves(self.labels):
            loops = (kernels.slope_sum_dense, kernels.slope_sum_sparse)
            arguments = (self.labels, self._exact(weights), (term.code, term.numbers, shares))
            return np.asarray(self._sum_by_threads(*loops, *arguments))
        exact = self._exact(weights)
        if self.chosen is not None and not is_sparse(self.rows) and exact.ndim == 1:
            slopes = term(kernels.chosen_scores(self.rows, self.chosen, exact), self.labels)
            return np.asarray(kernels.chosen_sum(self.rows, self.chosen, slopes))
        rows = self.rows if self.chosen is None else self.rows[self.chosen]

        def part(start: int, stop: int) -> Array:
            total = np.zeros((self.dimension, *exact.shape[1:]))
            for piece, labels in self.pieces(rows, start, stop, scores=math.prod(exact.shape[1:])):
                own = shares[start : start + len(labels)]
                if not len(shares):
                    terms = term(piece @ exact, labels)
                elif self.bits is None:  # without privacy it is no `Slope`
                    terms = (term(piece @ exact, labels).T * own).T
                else:
                    terms = term(piece @ exact, labels, own)
                total += piece.T @ terms
                start += len(labels)
            return total

        alone = self.bits is None or not isinstance(term, Slopes)
        cuts = self.resources.cuts(len(self), len(self) * self.dimension, 1 if alone else None)
        return np.asarray(sum_parts(part, cuts, blas=True))

    def _sum_by_threads(self, dense: Any, sparse: Any, *arguments: Any, wide: int = 1) -> Any:
        """The sum of what a loop over rows makes of its parts, each of `wide` numbers for a column."""
        chosen = ALL if self.chosen is None else self.chosen
        if is_sparse(self.rows):
            starts, count = self.rows.indptr, self.whole.rows.shape[0]
            entries = int(starts[-1]) * len(self) // max(count, 1)
            cuts = self.resources.cuts(len(self), SPARSE * entries, entries // max(4 * wide * self.dimension, 1))
            held, parts = (starts, self.rows.indices, self.rows.data), len(cuts) - 1
            if self.chosen is None and parts > 1:  # parts of as many entries each
                cuts[1:-1] = np.searchsorted(starts, np.arange(1, parts) * int(starts[-1]) // parts).tolist()
            return sum_parts(functools.partial(sparse, held, chosen, *arguments), cuts)
        cuts = self.resources.cuts(len(self), len(self) * self.dimension)
        return sum_parts(functools.partial(dense, self.rows, self.chosen, *arguments), cuts)

    def scores(self, weights: Array) -> Array:
        """x_i'w of every row, w rounded toward zero on a grid on which the sums are exact.

        Fewer weights than columns are those of the first ones. So a score is a function of its own row and of w alone,
        to the last bit, in whatever order a library adds. Edges: in a run without privacy, where rows are on no grid,
        w is taken as it is.
        """
        exact = self._exact(weights)
        if not self._fused:
            pieces = [np.asarray(rows @ exact, dtype=np.float64) for rows, _ in self.chunks()]
            return np.concatenate(pieces) if pieces else np.zeros(0)
        found, chosen = np.empty(len(self)), ALL if self.chosen is None else self.chosen
        if is_sparse(self.rows):
            held = (self.rows.indptr, self.rows.indices, self.rows.data)
            work, entries = functools.partial(kernels.scores_sparse, held, chosen, exact, found), len(held[2])
        else:
            work, entries = functools.partial(kernels.scores_dense, self.rows, chosen, exact, found), self.rows.size
        entries = entries if self.chosen is None else len(self) * self.dimension
        run_parts(work, self.resources.cuts(len(self), entries))
        return found

    def several_scores(self, models: Array) -> Iterator[tuple[Array, Array]]:
        """The scores of every row by several weights, a column for each, and the labels, piece by piece."""
        exact = np.column_stack([self._exact(weights) for weights in models])
        for rows, labels in self.chunks(scores=len(models)):
            yield np.asarray(rows @ exact, dtype=np.float64), labels

    def _exact(self, weights: Array) -> Array:
        """Weights of all columns, on the grid of a private run; of a matrix, column by column."""
        if weights.ndim == 2:
            return np.column_stack([self._exact(column) for column in weights.T])
        padded = np.zeros(self.dimension)
        padded[: len(weights)] = weights
        if self.bits is None:
            return padded
        # The norm of w that is dual to the one that bounds rows: Euclidean, or where entries are bounded the sum.
        return exact_weights(padded, self.bits, None if self.row_norm <= 1.0 else float(np.abs(padded).sum()))

    def number_sum(
        self,
        term: Callable[[Array, Array], Array],
        low: float = 0.0,
        weights: Array | None = None,
        numbers: Array | None = None,
    ) -> float:
        """sum_i of term(x_i'w, y_i) clipped to [low, 1], 0 for a null row, on a grid on which the sum is exact.

        Without weights a score is 0; `numbers`, one for each row, take the place of scores. A NaN counts as 1.
        """
        if numbers is None:
            numbers = np.zeros(len(self)) if weights is None else self.scores(weights)
        usable, scale = self.usable_rows, 2.0**self.sum_bits

        def part(start: int, stop: int) -> float:
            total = 0.0
            for first in range(start, stop, NUMBERS):
                own = slice(first, min(first + NUMBERS, stop))
                found = np.ascontiguousarray(term(numbers[own], self.labels[own]), dtype=np.float64)
                shares = NONE if self.shares is None else self.shares[own]
                total += kernels.number_sum(found, low, shares, usable[own], scale)
            return total

        return float(sum_parts(part, self.resources.cuts(len(self), COSTLY * len(self))))

    def number_total(self, numbers: Array) -> float:
        """The sum of a number of each row."""
        return float(numbers.sum())

    def counted(
        self, places: Integers, values: Array | None, cells: int, known: NDArray[np.bool_] | None = None
    ) -> NDArray[Any]:
        """What all rows have in cells: values, or ones, at places, where they are `known`."""
        if known is not None:
            places, values = places[known], None if values is None else values[known]
        return np.bincount(places, values, cells)

    def projected(self, matrix: Array, *, made: bool = False) -> Projected:
        """Rows seen through a triangular or diagonal matrix, or `made` once, by any matrix of few columns."""
        if self.chosen is not None:
            raise LeakError("rows are projected as a whole block, never as a batch.")
        return (ProjectedRows if made else Projected)(self, matrix)

    def scalar_sum(self, weights: Array, term: Callable[[Array, Array], Array]) -> float:
        """sum_i term(x_i'w, y_i), on no grid; times the shares of the records."""
        found = np.concatenate([np.zeros(0), *(term(rows @ weights, labels) for rows, labels in self.chunks())])
        return float(found.sum() if self.shares is None else found @ self.shares)

    def gram(self, weights: Array | None = None, term: Callable[[Array, Array], Array] | None = None) -> Array:
        """X'X, or X' diag(term(Xw, y)) X, the latter on no grid."""
        if self._fused and term is None and is_sparse(self.rows) and self.shares is None:
            triangle = self._sum_by_threads(None, kernels.gram_sparse, self.dimension, wide=self.dimension)
            return np.asarray(triangle + np.triu(triangle, 1).T)
        rows = self.rows if self.chosen is None else self.rows[self.chosen]

        def part(start: int, stop: int) -> Array:
            total, spare = np.zeros((self.dimension, self.dimension)), np.empty((self.dimension, self.dimension))
            for narrow, labels in self.pieces(rows, start, stop, rows_at_once(self.dimension, product=True)):
                own = slice(start, start + len(labels))
                piece, start = narrow.astype(np.float64, copy=False), own.stop  # products of float32 would be rounded
                if self.shares is not None and term is None:
                    piece = self._by_share(piece, np.sqrt(self.shares[own]))
                scaled = piece
                if term is not None:
                    factor = term(piece @ weights, labels)
                    factor = (factor if self.shares is None else factor * self.shares[own])[:, None]
                    scaled = piece.multiply(factor) if is_sparse(piece) else piece * factor
                total += dense(piece.T @ scaled) if is_sparse(piece) else np.matmul(piece.T, scaled, out=spare)
            return total

        most = None if self._fused and term is None else 1
        cuts = self.resources.cuts(len(self), len(self) * self.dimension, most)
        return np.asarray(sum_parts(part, cuts, blas=self.dimension**2))

    def _by_share(self, piece: Matrix, roots: Array) -> Matrix:
        """Rows times the roots of their shares, rounded toward zero on their grid: no row is longer than it was."""
        if is_sparse(piece):
            piece = piece.copy()
            piece.data *= np.repeat(roots, np.diff(piece.indptr))
            entries = piece.data
        else:
            piece = entries = piece * roots[:, None]
        if self.bits is not None:
            toward_zero(entries, self.bits)
        return piece

    def gram_diagonal(self) -> Array:
        """sum_i x_ij^2 for every column j, times the records' shares: exact for entries on the grid."""
        total, start = np.zeros(self.dimension), 0
        for rows, labels in self.chunks():
            own = slice(start, start + len(labels))
            start = own.stop
            if self.shares is not None:
                rows = self._by_share(rows.astype(np.float64), np.sqrt(self.shares[own]))
            total += column_squares(rows)
        return total

    def column_dots(self, factors: Array) -> Array:
        """sum_i factors_i x_ij for every column j: exact for factors and entries on their grids."""
        if self._arrangement.order == "C":
            total, start = np.zeros(self.dimension), 0
            for rows, labels in self.chunks():
                total += rows.T @ factors[start : start + len(labels)]
                start += len(labels)
            return total
        dots = (column_loops.column_dots_dense, column_loops.column_dots_sparse)
        return np.asarray(self._on_columns(*dots, factors, layout="entries"))

    def column(self, place: int) -> tuple[Array, NDArray[Any] | None]:
        """x_ij of one column j, and whose they are (None: everybody's, in order)."""
        if is_sparse(self.rows):
            start, stop = self.rows.indptr[place], self.rows.indptr[place + 1]
            return self.rows.data[start:stop].astype(np.float64), self.rows.indices[start:stop]
        return self.rows[:, place].astype(np.float64), None

    def add_column(self, scores: Array, place: int, factor: float) -> None:
        """scores_i += factor x_ij, in place, each record's on its own."""
        if is_sparse(self.rows):
            rows, places = self.rows, np.array([place], dtype=np.int64)
            column_loops.add_rows_sparse(
                rows.indptr, rows.indices, rows.data, places, np.array([factor], dtype=float), scores
            )
        else:
            scores += factor * self.rows[:, place].astype(np.float64)

    def add_chosen_columns(self, changes: Sequence[tuple[int, float]], scores: Array) -> Integers | None:
        """scores_i += sum of factor x_ij over the (j, factor), in place: whose scores changed; None for everybody's."""
        if not is_sparse(self.rows):
            for place, factor in changes:
                self.add_column(scores, place, factor)
            return None
        rows, (marks, touched) = self.rows, self._touched
        places, factors = np.array([place for place, _ in changes], dtype=np.int64), np.array([c for _, c in changes])
        count = column_loops.add_chosen_columns_sparse(
            rows.indptr, rows.indices, rows.data, places, factors, scores, marks, touched
        )
        return touched[:count].copy()

    def add_rows(self, places: Integers, factors: Array, total: Array) -> None:
        """Total += sum_k factors_k x_i, i = places_k, in place: exact on the grids."""
        if not is_sparse(self.rows):
            total += factors @ self.rows[places].astype(np.float64)
            return
        rows = self._by_row
        column_loops.add_rows_sparse(rows.indptr, rows.indices, rows.data, places, factors, total)

    @functools.cached_property
    def _by_row(self) -> Matrix:
        return self.rows.tocsr()

    @functools.cached_property
    def _touched(self) -> tuple[NDArray[np.int8], Integers]:
        """Where `add_chosen_columns` marks and lists records."""
        return np.zeros(len(self), dtype=np.int8), np.zeros(len(self), dtype=np.int64)

    def _on_columns(self, dense: Any, sparse: Any, *arguments: Any, layout: Layout = "columns") -> Any:
        """A kernel on the columns, which are contiguous; it takes a whole block, never a batch."""
        if self.layout != layout or self.chosen is not None:
            raise LeakError("the rows were not prepared for steps by coordinates.")
        if is_sparse(self.rows):
            return sparse(self.rows.indptr, self.rows.indices, self.rows.data, *arguments)
        return dense(self.rows.T, *arguments)

    @property
    def sum_bits(self) -> int:
        """Bits b such that the sum of a term of each row, at most 1 and a multiple of 2^-b, is exact in float64."""
        if self.bits is None:
            raise LeakError("the rows were prepared for a run without privacy.")
        return 52 - math.ceil(math.log2(max(self.records, 2)))

    def coordinate_walk(  # noqa: PLR0913
        self,
        scores: Array,
        weights: Array,
        order: Integers,
        steps: CoordinateSteps,
        noise: NDArray[Any],
        grid_step: float,
        bits: int,
    ) -> NDArray[Any]:
        """R_k = rint(sum_i cut(l'_i x_ij / clip_j, -1, 1) / grid_step) + noise_k for the coordinates j of `order`.

        Each step starts from the weights and scores that the one before led to; both are moved in place.
        """
        order = np.array(order)  # one of a message is read-only: the kernel would be compiled again for it
        walks = (column_loops.coordinate_walk_dense, column_loops.coordinate_walk_sparse)
        arguments = (self.labels, scores, weights, order, tuple(steps), noise, grid_step, bits)
        return np.asarray(self._on_columns(*walks, *arguments))

    def clipped_column_sums(self, slopes: Array, clip: Array, bits: int) -> Array:
        """sum_i cut(slope_i x_ij / clip_j, -1, 1) for every column j, its terms rounded to `bits`.

        With negative bits, for a run without privacy, the plain sums of slope_i x_ij.
        """
        sums = (column_loops.clipped_column_sums_dense, column_loops.clipped_column_sums_sparse)
        return np.asarray(self._on_columns(*sums, slopes, clip, bits))

    def column_sums(self, slopes: Array, order: Integers) -> tuple[Array, Array]:
        """(sum_i slope_i x_ij, sum_i x_ij^2) for the columns j of `order`."""
        loops = (column_loops.column_sums_dense, column_loops.column_sums_sparse)
        sums, squares = self._on_columns(*loops, slopes, order)
        return sums, squares

    def column_squares(self) -> Array:
        """sum_i x_ij^2 for every column j; with privacy squares are clipped to 1 and on a grid, and the sum exact."""
        limit = 0.0 if self.bits is None else 2.0**self.sum_bits
        squares = (column_loops.column_squares_dense, column_loops.column_squares_sparse)
        return np.asarray(self._on_columns(*squares, limit))

    def add_columns(self, changes: Array, scores: Array) -> None:
        """scores_i += sum_j changes_j x_ij, in place."""
        self._on_columns(column_loops.add_columns_dense, column_loops.add_columns_sparse, changes, scores)

    def dual_rows(self, weights: Array, duals: Array, steps: DualMoves) -> Array:
        """sum_i z_i x_i over these rows, z_i the dual step of the loss, |z_i x_i| <= clip, on the grid 2^-grid.

        The duals, of all rows of `whole`, are moved in place; with a `scale` the weights follow each step.
        """
        whole = self.whole
        numbers: Any = (self.places, whole.labels, whole.squares, weights, duals, tuple(steps))
        if is_sparse(whole.rows):
            return np.asarray(dual_rows_sparse(whole.rows.indptr, whole.rows.indices, whole.entries, *numbers))
        return np.asarray(dual_rows_dense(whole.rows, *numbers))

    def dense_rows(self, width: int) -> Array:
        """The first `width` columns of all rows, with their zeros."""
        return dense(self.rows[:, :width])

    def times(self, matrix: Array) -> Array:
        """x_i'P for every row, over as many columns as P has rows."""
        rows = self.rows[:, : len(matrix)]
        if is_sparse(rows):
            return np.asarray(rows @ matrix)
        found = np.empty((len(self), matrix.shape[1]))
        for start in range(0, len(self), ROWS):
            found[start : start + ROWS] = rows[start : start + ROWS].astype(np.float64) @ matrix
        return found

    @functools.cached_property
    def products(self) -> Products:
        """X w, X'v and X'X as a library multiplies, on no grid: only what another rule protects may use them."""
        if self.chosen is not None:
            raise LeakError("products are those of a whole block, never of a batch.")
        return Products(self.rows)

    @property
    def usable_rows(self) -> NDArray[np.bool_]:
        """Which rows are no null rows. A batch, which does not say so, is refused."""
        if self.usable is None:
            raise LeakError("a batch does not say which of its rows are null rows.")
        return self.usable

    @property
    def null_rows(self) -> NDArray[np.bool_]:
        """Which rows are null rows, zero everywhere."""
        return ~self.usable_rows

    def take(self, indices: NDArray[np.int64]) -> Block:
        """The named rows, as a batch."""
        chosen = indices if self.chosen is None else self.chosen.take(indices)
        labels = self.labels.take(indices)
        if self.shares is not None:
            raise LeakError("a batch has no weights.")
        about: Any = {"whole": self.whole, "layout": self.layout, "resources": self.resources}
        return Block(self.rows, labels, self.bits, chosen, **about)

    @property
    def places(self) -> NDArray[np.int64]:
        """The rows of `whole` that are in this block."""
        return np.arange(len(self), dtype=np.int64) if self.chosen is None else self.chosen

    @functools.cached_property
    def entries(self) -> NDArray[Any]:
        """The entries of sparse rows, as float32 where that holds their grid without loss: half the traffic."""
        return np.asarray(self.rows.data, dtype=np.float32 if self._fused else np.float64)

    @functools.cached_property
    def squares(self) -> Array:
        """|x_i|^2 of every row; exact on a grid."""
        if is_sparse(self.rows):
            return row_squares(self.rows)
        return np.concatenate([row_squares(rows) for rows, _ in self.chunks()] or [np.zeros(0)])
