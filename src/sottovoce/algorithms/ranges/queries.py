"""What is released of columns whose range nobody knows: counts of records by cells. Proof: `proof.md`."""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from typing import Any, ClassVar

import numpy as np

from sottovoce.algorithms.ranges.rule import EQUAL, POWERS, Integers, ends_of, equal_places, power_places
from sottovoce.data.block import Block, BlockRows
from sottovoce.door.query import Array, Query, Round, Told, Turn, Wholes


def own_columns(plan: Any, party: str) -> tuple[int, ...]:
    """Which of a plan's columns a party has, by their places in its rows; behind the last feature comes the label."""
    part, columns = plan.part(party), plan.numbers.columns  # in order
    label = plan.split.has_labels(plan, party)
    first, last = bisect_left(columns, part.start), bisect_left(columns, part.stop)
    own = tuple(place - part.start for place in columns[first:last])
    return (*own, part.stop - part.start) if label and columns[-1:] == (plan.features,) else own


holders = Turn("every party that has such columns", lambda plan, party: bool(own_columns(plan, party)))


class _Counts(Query):
    """For each column, how many records have their value in each of its cells.

    Guarantee: a record adds 1 to at most one cell of each of d columns, so zero-out moves the counts by at most sqrt d
    and replace-one, which moves two cells of a column, by sqrt(2 d). Edges: a cell that is missing or infinite, and a
    null row, add nothing.
    """

    needs: ClassVar[type] = BlockRows
    together: ClassVar[bool] = True
    answered_by = holders
    replacement: ClassVar[float | None] = math.sqrt(2.0)
    cells: ClassVar[int]

    def __init__(self, columns: tuple[int, ...]) -> None:
        self.columns = columns
        self.bound = math.sqrt(len(columns))
        self.rounding_entries = 2.0 * len(columns)
        self.length = self.cells * len(columns)

    def value(self, round: Round) -> Array:
        """One pass over the rows; counts are whole numbers, so their sums are exact."""
        return round.rows.over(functools.partial(self._counted, dict(round.told)))

    def _counted(self, told: Told, rows: Block) -> Array:
        counts, first = np.zeros(self.length), self.cells * np.arange(len(self.columns))
        for values in rows.cells(self.columns):
            known = np.isfinite(values)
            places = first + self.places(np.where(known, values, 0.0), told)
            counts += np.bincount(places[known], minlength=self.length)
        return counts

    def places(self, values: Array, told: Told) -> Integers:
        raise NotImplementedError


class PowerCounts(_Counts):
    """Cells between powers of two, of both signs, and one about 0."""

    name = "powers"
    title: ClassVar[str] = "records of each column counted by powers of two"
    cells: ClassVar[int] = POWERS

    def places(self, values: Array, _told: Told) -> Integers:
        return power_places(values)


class EqualCounts(_Counts):
    """Equal cells in the runs of powers of two that the message names, first and last place of each column."""

    name = "cells"
    title: ClassVar[str] = "records of each column counted in equal cells of a run"
    cells: ClassVar[int] = EQUAL

    def __init__(self, columns: tuple[int, ...]) -> None:
        super().__init__(columns)
        self.takes = {"runs": Wholes((len(columns), 2), 0, POWERS - 1)}

    def objection(self, number: int, told: Told) -> str | None:
        """A run does not end before it begins."""
        wrong = super().objection(number, told)
        return wrong or ("has a run that ends before it begins" if np.any(np.diff(told["runs"]) < 0) else None)

    def places(self, values: Array, told: Told) -> Integers:
        return equal_places(values, *np.array([ends_of((int(first), int(last))) for first, last in told["runs"]]).T)
