"""Rows of a table of which most is 0, kept as one number for each cell; entries are made where they are used.

A category of a hundred levels is a byte for each cell, and not a hundred features. A row of features is made from its
own cells alone, so rows that are made anew in every pass have the same bits each time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sottovoce.data.cells import Cells
from sottovoce.data.column_kinds import Category, Column
from sottovoce.data.kernels.entry_loops import fill_levels

Array = NDArray[np.float64]

MOST_FILLED: Final = 1 / 16  # of a row, where it is sparse: below it both memory and the time of a pass are less
ENTRIES: Final = 1 << 17  # of a piece: small enough to stay in cache from its making to its sum
DENSE: Final = 1 << 20  # of a piece with its zeros


class Placed(NamedTuple):
    """A column of the table among the features, and among the entries that every row has."""

    column: Column
    start: int  # of its features
    width: int
    entry: int  # its first one

    @property
    def category(self) -> bool:
        return isinstance(self.column, Category)

    @property
    def entries(self) -> int:
        """1 of a category, which is its level; all features of other columns."""
        return 1 if self.category else self.width


def places_of(columns: Sequence[Column]) -> tuple[Placed, ...]:
    """Where the columns of a table are, one after the other."""
    found, start, entry = list[Placed](), 0, 0
    for column in columns:
        found.append(Placed(column, start, len(column.features), entry))
        start, entry = start + found[-1].width, entry + found[-1].entries
    return tuple(found)


class Coded:
    """Rows of features of these columns.

    `levels` has a column for each category, and `others` an array for each other column: what `Column.read` makes of
    the cells.
    """

    ndim, dtype = 2, np.dtype(np.float64)

    def __init__(self, places: Sequence[Placed], levels: NDArray[Any], others: Sequence[NDArray[Any]]) -> None:
        self._places, self._levels, self._others = tuple(places), levels, list(others)
        first, last = self._places[0], self._places[-1]
        self._start, self._entry = first.start, first.entry
        self.shape = (len(levels), last.start + last.width - first.start)
        self.entries = last.entry + last.entries - first.entry  # of each row, if some are 0
        self.whole = all(each.column.whole for each in places)  # whether features are -1, 0 or 1

    @classmethod
    def read(cls, places: Sequence[Placed], cells: Mapping[str, Cells], records: int) -> Coded:
        """Of the cells of each column by its name, one column after the other: few of them are there at once."""
        categories = [each for each in places if each.category]
        kind = np.min_scalar_type(max((each.width for each in categories), default=0))
        levels, others = np.empty((records, len(categories)), kind), list[NDArray[Any]]()
        for place, each in enumerate(categories):
            levels[:, place] = each.column.read_from(cells)
        others = [each.column.read_from(cells) for each in places if not each.category]
        return cls(places, levels, others)

    @classmethod
    def joined(cls, parts: Sequence[Coded]) -> Coded:
        """The rows of several, one after the other, of the same columns."""
        others = map(np.concatenate, zip(*(part._others for part in parts), strict=True))
        return cls(parts[0]._places, np.concatenate([part._levels for part in parts]), list(others))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: Any) -> Coded:
        """Some rows; or `[:, first:last]`, some features, which are those of whole columns."""
        if not isinstance(chosen, tuple):
            return Coded(self._places, self._levels[chosen], [own[chosen] for own in self._others])
        rows, features = chosen
        first, last, _ = features.indices(self.shape[1])
        inside = [first <= each.start - self._start < last for each in self._places]
        levels = [own for each, own in zip(self._places, inside, strict=True) if each.category]
        others = [own for each, own in zip(self._places, inside, strict=True) if not each.category]
        return Coded(
            list(itertools.compress(self._places, inside)),
            self._levels[rows][:, levels],
            [own[rows] for own in itertools.compress(self._others, others)],
        )

    @property
    def sparse(self) -> bool:
        """Whether most of a row is 0; else what is made of some rows is best with its zeros."""
        return self.entries <= MOST_FILLED * self.shape[1]

    def pieces(self) -> Iterator[Coded]:
        """The rows, some at a time."""
        step = self.step(whole=False)
        yield from (self[start : start + step] for start in range(0, max(len(self), 1), step))

    def step(self, *, whole: bool) -> int:
        """How many rows a piece has; `whole`: with their zeros."""
        if whole or not self.sparse:
            return max(1, DENSE // self.shape[1])
        return max(1, ENTRIES // self.entries)

    def made(self) -> Array | Coded:
        """As rows are prepared."""
        return self if self.sparse else self.dense()

    def csr(self, kind: Any = np.float64) -> Any:
        """The features as a CSR matrix; all but a category's have an entry in every row, 0 or not."""
        columns = np.empty((len(self), self.entries), np.int32)
        data: NDArray[Any] = np.empty((len(self), self.entries), kind)
        wanted = [(each.start - self._start, each.width, each.entry - self._entry) for each in self._places]
        levels = [own for own, each in zip(wanted, self._places, strict=True) if each.category]
        fill_levels(self._levels, np.array(levels, np.int64).reshape(-1, 3), columns, data)
        others = [(own, each) for own, each in zip(wanted, self._places, strict=True) if not each.category]
        for ((start, width, entry), each), codes in zip(others, self._others, strict=True):
            columns[:, entry : entry + width] = np.arange(start, start + width)
            data[:, entry : entry + width] = each.column.made(codes)
        starts: Any = np.arange(0, data.size + 1, self.entries, dtype=np.int32 if data.size < 2**31 else np.int64)
        return sp.csr_matrix((data.ravel(), columns.ravel(), starts), shape=self.shape, copy=False)

    def dense(self) -> Array:
        """The same with all zeros."""
        levels, others = iter(self._levels.T), iter(self._others)
        return np.column_stack([each.column.made(next(levels if each.category else others)) for each in self._places])

    @property
    def nbytes(self) -> int:
        return sum(own.nbytes for own in (self._levels, *self._others))


Rows = Array | Coded
