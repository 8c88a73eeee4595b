"""What of a table does not fit its schema, by column: for the eyes of its holder, and of nobody else.

Rows of a table that its schema does not fit are rows of zeros, and a fit of them costs what a good one does. So whoever
reads a table tells its holder, before anything is charged.

Guarantee: counts go to the log `sottovoce.holder` of the process that has the table or, where its caller is the holder,
into a warning. They are returned to nothing that answers a coordinator, so no message, plan, model, report or ledger
has them; a party elsewhere answers as if all cells did fit. Edges: no record, or a column that the table lacks: nothing
is told.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.cells import DATES, NUMBERS, SAME, Cells, TableColumns, cell_key, is_missing, read_numbers
from sottovoce.data.coded import Rows
from sottovoce.data.column_kinds import Category, Column, Number, YesNo
from sottovoce.data.levels import ABSENT, UNKNOWN
from sottovoce.data.schema import Schema
from sottovoce.errors import MisfitWarning, warn

_log = logging.getLogger("sottovoce.holder")

LARGE: Final = 0.05  # the share of cells of a column from which on a caller is warned
FEWEST: Final = 0.05  # identifiers for each record, so that they may be people
MOST: Final = 0.9  # of cells for which the schema has a feature, missing or undeclared


@dataclass
class Misfit:
    """How many cells of a column are of each kind."""

    cells: int = 0
    strange: int = 0  # of no declared level, or no number
    cut: int = 0  # outside of the range
    missing: int = 0
    dates: int = 0
    capitals: int = 0  # of the strange ones, those that differ from a level by capitals alone
    near: int = 0  # above the low end of a range by a hundredth of it at most
    far: int = 0  # above it by more
    unclear: int = 0  # of the missing ones, those of a frame that may be a level spelled like one

    def __add__(self, other: Misfit) -> Misfit:
        return Misfit(*(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True)))

    @classmethod
    def of(cls, column: Column, cells: Cells) -> Self:
        """Of the cells of a column, or of some of them."""
        count = len(cells)
        if count and cells.dtype == object and cells[0] is DATES:
            return cls(count, dates=count)
        distinct, times = _counted(cells, whole=isinstance(column, Number))
        if isinstance(column, Category | YesNo):
            places = column.book.places(distinct)
            strange, absent = places == UNKNOWN, places == ABSENT
            declared = {key.casefold() for key in column.book.exact if isinstance(key, str)}
            near = np.array([_folded(cell) in declared for cell in distinct[strange].tolist()], np.bool_)
            blank = np.array([not isinstance(cell, str) for cell in distinct[absent].tolist()], np.bool_)
            unclear = int(times[absent][blank].sum()) if column.book.blank else 0
            sums = (int(part.sum()) for part in (times[strange], times[absent], times[strange][near]))
            return cls(count, next(sums), missing=next(sums), capitals=next(sums), unclear=unclear)
        values = read_numbers(distinct, cell_key)
        known = np.isfinite(values)
        low, high = (column.low, column.high) if isinstance(column, Number) else (-np.inf, np.inf)
        cut = int(times[known & ((values < low) | (values > high))].sum())
        even = isinstance(column, Number) and not column.estimated and getattr(column, "scale", "") != "log"
        above = values[known] - low if even else np.zeros(0)
        near, far = (above > 0) & (above <= (high - low) / 100), above > (high - low) / 100
        lost = np.array(list(map(is_missing, distinct[~known].tolist())), np.bool_)
        missing = int(times[~known][lost].sum())
        strange = int(times[~known].sum()) - missing
        return cls(count, strange, cut, missing, near=int(near.sum()), far=int(far.sum()))

    @property
    def small(self) -> bool:
        """Whether all numbers are at the low end of their range, not all equal to it, as those in other units are."""
        return self.near > 0 and self.far == self.cut == 0

    def share(self, column: Column) -> float:
        """The share of cells that nobody meant: of no use, or for which the schema has no feature of their own.

        Where it has one, nearly all cells are no more meant than none.
        """
        kinds = {"missing": self.missing, "other": self.strange if isinstance(column, Category) else 0}
        kept = sum(count for key, count in kinds.items() if getattr(column, key, False) and count < MOST * self.cells)
        small = self.near if self.small else 0
        return (self.strange + self.cut + self.missing + self.dates - kept + self.unclear + small) / max(self.cells, 1)

    def text(self, column: Column) -> str:
        """In words, without a value of any cell."""
        if self.dates:
            return "dates, or cells of another kind that no schema has; all count as missing"
        said = list[str]()
        if self.strange and isinstance(column, Number):
            said.append(f"{self.strange:,} are no number")
        elif self.strange:
            near = f" ({self.capitals:,} but for capitals)" if self.capitals else ""
            said.append(f"{self.strange:,} are none of the declared levels{near}")
        if self.cut and isinstance(column, Number):
            said.append(f"{self.cut:,} are outside of [{column.low:g}, {column.high:g}] and cut")
        if self.small and isinstance(column, Number):
            said.append(f"all numbers are in the lowest hundredth of [{column.low:g}, {column.high:g}]: other units?")
        if self.missing:
            said.append(f"{self.missing:,} are missing")
        if self.unclear and isinstance(column, Category | YesNo):
            level = column.book.blank[0]
            said.append(
                f"{self.unclear:,} may be missing or {level!r}, which data frames have one mark for (give the path of "
                "the file, read it with keep_default_na=False, or spell that level otherwise)"
            )
        return f"of {self.cells:,} cells {', '.join(said)}"


def _counted(cells: Cells, *, whole: bool) -> tuple[Cells, NDArray[np.int64]]:
    """Distinct cells and how often each is there; numbers of a `whole` column, and cells of odd kinds, one by one."""
    if cells.dtype.kind in NUMBERS and not whole:
        return np.unique(cells, return_counts=True)
    if cells.dtype == object and set(map(type, listed := cells.tolist())) <= SAME:
        times = Counter(listed)
        return np.fromiter(times, object, len(times)), np.fromiter(times.values(), np.int64, len(times))
    return cells, np.ones(len(cells), np.int64)


def _folded(text: Any) -> str | None:
    return text.strip().casefold() if isinstance(text, str) else None


class Misfits:
    """What of the cells of a table, whole or piece by piece, does not fit its schema."""

    def __init__(self, schema: Schema) -> None:
        target = {} if schema.label is None or schema.target is None else {schema.label: schema.target}
        self._columns: dict[str, Column] = {**schema.columns, **target}
        self.label, self.found = schema.label, dict[str, Misfit]()

    def add(self, table: Mapping[str, Cells]) -> Self:
        for name in self._columns.keys() & table.keys():
            self._put(name, Misfit.of(self._columns[name], table[name]))
        return self

    def _put(self, name: str, misfit: Misfit) -> None:
        self.found[name] = self.found.get(name, Misfit()) + misfit

    def tell(self, whose: str, *, caller: bool = False) -> None:
        """Tell the holder what does not fit: in the log or, where the `caller` is the holder, in a warning."""
        lines, shares = list[str](), list[float]()
        for name, column in self._columns.items():
            misfit = self.found.get(name, Misfit())
            if share := misfit.share(column):
                what = ", the label: records without one count for nothing" if name == self.label else ""
                lines.append(f"  {name}{what}: {misfit.text(column)}")
                shares.append(share)
        if lines:
            text = "\n".join((f"{whose}: cells that do not fit the schema, for the holder alone", *lines))
            warned = caller and max(shares) >= LARGE
            _log.log(logging.INFO if warned else logging.WARNING, "%s", text)
            if warned:
                warn(text, MisfitWarning)


def tell_all(parts: Sequence[Misfits], whose: str) -> None:
    """Tell the holder of a table that was read in parts."""
    for part in parts[1:]:
        for name, misfit in part.found.items():
            parts[0]._put(name, misfit)
    if parts:
        parts[0].tell(whose)


def rows_told(schema: Schema, table: TableColumns, whose: str, *, caller: bool = False) -> Rows:
    """The rows of a whole table as a fit takes them; its holder is told what of it does not fit."""
    rows = schema.rows(table)
    Misfits(schema).add(table).tell(whose, caller=caller)
    tell_repeats(schema, table, whose)
    return rows


def tell_repeats(schema: Schema, table: TableColumns, whose: str) -> None:
    """Tell the holder of identifiers that several records have, where nobody says whose a record is.

    A column of few different cells, or of amounts, names nobody.
    """
    for name in schema.identifiers if schema.person is None else ():
        cells = table.get(name, np.zeros(0))
        amounts = cells.dtype.kind == "f" and not np.all(np.mod(cells[np.isfinite(cells)], 1.0) == 0.0)
        distinct, times = (cells[:0], np.zeros(0)) if amounts else _counted(cells, whole=False)
        several = sum(not is_missing(cell) for cell in distinct[times > 1].tolist())
        if several and len(distinct) > FEWEST * len(cells):
            text = (
                f"{whose}: {several:,} of {len(distinct):,} identifiers of {name!r} have several records. If they are "
                f"people, they are protected less than one with one record: declare person={name!r}. For the holder "
                "alone"
            )
            _log.warning("%s", text)  # no warning: whose a number is, or whether it is an amount, nobody here knows
