"""A block of people with several rows: what `Block` sums over rows is summed over people, each cut or averaged."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.data.beside import NOBODY, columns_beside
from sottovoce.data.block import Block
from sottovoce.data.kernels import people_loops as kernels
from sottovoce.data.matrix import Matrix, Term, exact_weights, is_sparse, toward_zero
from sottovoce.data.people import put_together
from sottovoce.data.preparation import Preparation
from sottovoce.data.projection import ProjectedRows
from sottovoce.data.resources import NO_RESOURCES, Resources, sum_parts
from sottovoce.errors import LeakError

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

_log = logging.getLogger("sottovoce.holder")


class PeopleBlock(Block):
    """The rows that count, those of a person together; `starts` is where each person's begin, and the last end.

    Guarantee: every sum is over people, of terms that are functions of one person's rows and of public numbers, bit for
    bit; grids follow from the plan's numbers of people and of records of each. Edges: of a person without usable rows
    there is no row, and its term is 0.
    """

    starts: Integers

    @classmethod
    def prepare(
        cls,
        X: Matrix,
        y: ArrayLike,
        recipe: Preparation,
        records: int | None = None,
        resources: Resources = NO_RESOURCES,
    ) -> PeopleBlock:
        """As of any block; null rows, and those beyond the records of a person that count, are left out."""
        if records is not None or recipe.most_records is None:
            raise LeakError("rows of people are prepared all at once, by a plan about people.")
        person = columns_beside(np.asarray(y))["person"] if columns_beside(y) else np.zeros(0, np.int64)
        whole = super().prepare(X, y, recipe, None, resources)
        usable = whole.usable_rows & (person != NOBODY)
        order, starts = put_together(whole.rows, whole.labels, person, usable, recipe.most_records)
        if left := len(whole) - len(order):
            text = "%s of %s rows do not count: null rows, without an identifier, or beyond %s of a person"
            _log.info(text, left, len(whole), recipe.most_records)
        about: Any = {"layout": recipe.layout, "records": recipe.records, "resources": resources}
        made = cls(whole.rows[order], whole.labels[order], whole.bits, usable=usable[order], **about)
        made.starts = starts
        return made

    def digest(self) -> bytes:
        return hashlib.blake2b(super().digest() + self.starts.tobytes(), digest_size=32).digest()

    @property
    def together(self) -> int:
        return len(self)

    @property
    def exact_grid(self) -> int:
        """The bits of the rows, of a private run."""
        if self.bits is None:
            raise LeakError("the rows were prepared for a run without privacy.")
        return self.bits

    def take(self, indices: Integers) -> Block:  # noqa: ARG002
        raise LeakError("the records of a person count together, and none of them is drawn alone.")

    def number_sum(
        self,
        term: Callable[[Array, Array], Array],
        low: float = 0.0,
        weights: Array | None = None,
        numbers: Array | None = None,
    ) -> float:
        """sum_i of the mean of term(x_ij'w, y_ij), clipped to [low, 1], over the rows j of person i."""
        if numbers is None:
            numbers = np.zeros(len(self)) if weights is None else self.scores(weights)
        cut = np.fmax(np.fmin(term(numbers, self.labels).astype(np.float64), 1.0), low)
        return self.number_total(toward_zero(cut, self.sum_bits))

    def number_total(self, numbers: Array) -> float:
        """The sum over people of the mean of a number of their rows."""
        if not len(numbers):
            return 0.0
        means = np.add.reduceat(numbers, self.starts[:-1]) / np.diff(self.starts)
        return float((means if self.bits is None else toward_zero(means, self.sum_bits)).sum())

    def record_share_sum(self, most: int) -> float:
        """sum_i n_i / most, n_i how many rows person i has."""
        return float(toward_zero(np.diff(self.starts) / most, self.sum_bits).sum())

    def counted(
        self, places: Integers, values: Array | None, cells: int, known: NDArray[np.bool_] | None = None
    ) -> NDArray[Any]:
        """What people have in cells: each adds the mean of what its rows have there.

        Guarantee: that is in the hull of 0 and of what single records add, which is no wider than these are apart.
        """
        if not len(self):
            return np.zeros(cells)
        places = (places if known is None else np.where(known, places, -1)).reshape(len(self), -1)
        given = np.ones(places.shape) if values is None else np.ascontiguousarray(values).reshape(places.shape)
        total, grid = np.zeros(cells), 0.0 if self.bits is None else 2.0**self.sum_bits
        kernels.add_mean_cells(np.ascontiguousarray(places), given, self.starts, grid, total)
        return total

    def person_gram(self, most: float) -> Array:
        """sum_i S_i, S_i = X_i'X_i of the rows of person i, scaled so that its trace is `most` at most.

        Guarantee: |S_i|_F <= trace S_i <= most, exactly: rounding toward zero makes no row longer, and it is checked.
        """
        if not len(self):
            return np.zeros((self.dimension, self.dimension))
        traces = np.add.reduceat(self.squares, self.starts[:-1])
        shrunk = np.where(traces > most, (1 - 2.0**-40) * np.sqrt(most / np.maximum(traces, most)), 1.0)
        scales, rows = np.repeat(shrunk, np.diff(self.starts)), self.rows.astype(np.float64)
        if is_sparse(rows):
            rows.data = toward_zero(rows.data * np.repeat(scales, np.diff(rows.indptr)), self.exact_grid)
        else:
            rows *= scales[:, None]
            toward_zero(rows, self.exact_grid)
        about: Any = {"layout": self.layout, "records": self.records, "resources": self.resources}
        short = Block(rows.astype(self.rows.dtype, copy=False), self.labels, self.bits, **about)
        if np.add.reduceat(short.squares, self.starts[:-1]).max() > most:
            raise LeakError("the rows of a person are longer than the query's sensitivity allows for.")
        return short.gram()

    def projected(self, matrix: Array, *, made: bool = False) -> ProjectedPeople:  # noqa: ARG002
        """Rows seen through a matrix, which are kept: the sum of a person's is cut as they are seen."""
        return ProjectedPeople(self, matrix)


class ProjectedPeople(ProjectedRows):
    """The same of people with several rows: the sum of a person's terms is cut to a length `together`, K.

    Guarantee: what a person adds, in units of C and of K, is no longer than 1 and a function of its own records.
    Edges: a person without rows adds nothing.
    """

    _together = 1.0

    def __init__(self, block: PeopleBlock, projection: Array) -> None:
        self._starts = block.starts
        super().__init__(block, projection)

    def cut(self, length: float, together: float = 1.0) -> None:
        super().cut(length)
        self._together = together

    def exact_sum(self, point: Array, term: Term) -> Array:
        block, columns = self._block, point.reshape(len(point), -1)
        exact = np.column_stack([exact_weights(column, self.bits) for column in columns.T])
        starts = self._starts
        room = 1.0 - (exact.size + block.records + 8) * 2.0**-50
        limits = (self._together, room, 2.0**self.bits)

        def part(first: int, last: int) -> Array:
            own, total = slice(starts[first], starts[last]), np.zeros(exact.shape[::-1])
            scores = (self._rows[own] @ exact) / self._shares[own, None]
            slopes = term(scores if point.ndim > 1 else scores.ravel(), block.labels[own])
            about = (
                slopes.reshape(len(slopes), exact.shape[1]),
                starts[first : last + 1] - starts[first],
                limits,
                total,
            )
            kernels.add_cut_sums(self._rows[own], *about)
            return total

        total = sum_parts(part, block.resources.cuts(len(starts) - 1, self._rows.size * exact.shape[1]), blas=True)
        return np.asarray(total.T if point.ndim > 1 else total.ravel())

    def finished(self, total: Array) -> Array:
        return np.asarray(total / self._together)
