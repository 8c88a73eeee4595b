"""What is released of columns whose range nobody knows: counts of records by cells. Proof: `proof.md`."""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.ranges.rule import EQUAL, POWERS, Integers, ends_of, equal_places, power_places
from sottovoce.data.block import Block, BlockRows
from sottovoce.door.query import Query, Reals, Round, Told, Turn, Wholes
from sottovoce.plan.plan import Plan
from sottovoce.privacy.relation import Relation, either

Array = NDArray[np.float64]


def own_columns(plan: Any, party: str) -> tuple[int, ...]:
    """Which of a plan's columns a party has, by their places in its rows; behind the last feature comes the label."""
    part, columns = plan.part(party), plan.numbers.columns  # in order
    label = plan.split != "columns" or party == plan.label_party_name
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
    cells: ClassVar[int]

    def __init__(self, columns: tuple[int, ...]) -> None:
        self.columns = columns
        self.bound = math.sqrt(len(columns))
        self.rounding_entries = 2.0 * len(columns)
        self.length = self.cells * len(columns)

    def sensitivity(self, relation: Relation) -> float:
        """The root of d, or of 2 d."""
        return either(relation, zero_out=self.bound, replace_one=math.sqrt(2.0) * self.bound)

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
        """The cell of each value, records x columns."""
        raise NotImplementedError


class PowerCounts(_Counts):
    """Cells between powers of two, of both signs, and one about 0."""

    name = "powers"
    title: ClassVar[str] = "records of each column counted by powers of two"
    cells: ClassVar[int] = POWERS

    def places(self, values: Array, told: Told) -> Integers:  # noqa: ARG002
        """By the exponent."""
        return power_places(values)


class EqualCounts(_Counts):
    """Equal cells in the runs of powers of two that the message names, first and last place of each column."""

    name = "cells"
    title: ClassVar[str] = "records of each column counted in equal cells of a run"
    cells: ClassVar[int] = EQUAL

    def takes(self, plan: Plan, number: int) -> Mapping[str, Reals]:  # noqa: ARG002
        """A run for each column."""
        return {"runs": Wholes((len(self.columns), 2), 0, POWERS - 1)}

    def objection(self, plan: Plan, number: int, told: Told) -> str | None:
        """A run does not end before it begins."""
        wrong = super().objection(plan, number, told)
        return wrong or ("has a run that ends before it begins" if np.any(np.diff(told["runs"]) < 0) else None)

    def places(self, values: Array, told: Told) -> Integers:
        """In the run of each column."""
        return equal_places(values, *np.array([ends_of((int(first), int(last))) for first, last in told["runs"]]).T)
