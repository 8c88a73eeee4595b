"""Cells by group: a record counts in the cells of one group, and those of all groups are one release."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from sottovoce.algorithms.base import Array
from sottovoce.data.beside import groups_of, labels_with
from sottovoce.data.block import Block, BlockRows
from sottovoce.data.cells import is_class, label_key
from sottovoce.data.preparation import MOST_CLASSES
from sottovoce.errors import LeakError
from sottovoce.gate.query import Integers, Query, Round
from sottovoce.plan.plan import Line
from sottovoce.plan.problem import Label
from sottovoce.plan.release import Frozen

NO_GROUP = "none of these"


def _distinct(names: tuple[Any, ...]) -> tuple[Any, ...]:
    if not all(map(is_class, names)) or len({*map(label_key, names), NO_GROUP}) <= len(names):
        raise ValueError(f"groups={names!r} must be different texts or finite numbers, none of them {NO_GROUP!r}")
    return names


class Groups(Frozen):
    """Declared groups of records, public; a cell that is of none of them counts in one more group, the last.

    With `places` a group is that of the records whose feature j is above 0 (j + 1), or below 0 (-(j + 1)); of several
    the first. Without, what stands beside the labels names it.
    """

    column: Line
    names: Annotated[tuple[Label, ...], Field(min_length=1, max_length=MOST_CLASSES), AfterValidator(_distinct)]
    places: tuple[Annotated[int, Field(strict=True)], ...] = ()

    @model_validator(mode="after")
    def _a_place_for_each(self) -> Self:
        if self.places and (len(self.places) != len(self.names) or 0 in self.places):
            raise ValueError(f"places={self.places} must be a feature for each of groups={self.names!r}")
        return self

    @property
    def all_names(self) -> tuple[Label, ...]:
        return (*self.names, NO_GROUP)

    def objection(self, first: int, last: int) -> str | None:
        """Why a holder of the features first, ..., last - 1 cannot tell them, or None."""
        if not self.places:
            return None
        if not all(first < abs(place) <= last for place in self.places):
            return f"the features that tell the groups of {self.column!r} are not with the party that counts them"
        return None

    def of(self, block: Block, first: int = 0) -> Integers:
        """The group of each record: what stands beside its label says it, or its features, which begin with that one.

        Either is of the record alone.
        """
        found = np.full(len(block), len(self.names))
        if "group" in block.beside:
            for place, name in enumerate(groups_of(np.array(self.names, dtype=object)).tolist()):
                found[block.beside["group"] == name] = place
            return found
        if not self.places:  # as of pieces that were joined, by what other records are
            raise LeakError("the rows do not say of which group each is.")
        for place, code in reversed(list(enumerate(self.places))):
            column = np.zeros((block.dimension, 1))
            column[abs(code) - 1 - first] = math.copysign(1.0, code)
            found[block.times(column)[:, 0] > 0] = place
        return found

    def beside(self, labels: Any, block: Block, first: int) -> Any:
        """Labels with the group of each beside them, by features that the block has from `first` on."""
        names = np.array([*self.names, None], dtype=object)
        return labels_with(labels, group=names[self.of(block, first)])


class ByGroup(Query):
    """The cells of a query for each group, one after another, of the group's records alone.

    Guarantee: a record is in one group, by a function of itself, so zero-out moves the value as it moves the cells of
    one evaluation. Replace-one within a group does so too; from one group to another it takes away a vector of norm at
    most the bound, and adds one in other places: sqrt 2 of the bound. Edges: a null row adds nothing to any group.
    """

    name = "cells"
    title: ClassVar[str] = "the cells of each of some groups of test records"
    needs: ClassVar[type] = BlockRows
    replacement: ClassVar[float | None] = math.sqrt(2.0)

    def __init__(self, query: Any, groups: Groups) -> None:
        self.query, self.groups = query, groups
        self.bound, self.rounding_entries = query.bound, query.rounding_entries
        self.length = query.length * len(groups.all_names)

    def value(self, round: Round) -> Array:
        return round.rows.over(self._cells)

    def _cells(self, rows: Block) -> Array:
        groups, usable, found = self.groups.of(rows), rows.usable_rows, list[Array]()
        for place in range(len(self.groups.all_names)):
            own = np.flatnonzero(groups == place)
            found.append(self.query._cells(rows.with_rows(rows.rows[own], rows.labels[own], usable[own])))
        return np.concatenate(found)
