"""`description`: records of each column counted in cells, by class if asked, in one release. No `solver=` names it.

Rows are the codes of a table (`Schema.codes`): of a number the number, of a category the place of its level, infinite
where a cell is missing. Behind them comes the label, at whoever knows it. A row of NaN is a blank record.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from sottovoce.algorithms.base import Algorithm, Array, Coordination, Solution, answers
from sottovoce.algorithms.evaluation import FLOAT
from sottovoce.algorithms.ranges import EDGES, Place
from sottovoce.data.block import Block, BlockRows, Layout, toward_zero
from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.errors import RefusedError
from sottovoce.gate.query import Integers, Query, Round, Turn, everyone
from sottovoce.losses import Loss
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.plan.release import Frozen

Counted = tuple["Cut", Array, Array]  # of one column: groups x cells, and groups x (sum, sum of squares) of a number
Scale = Literal["linear", "log", "powers", "levels"]
End = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]

FEWEST, DOUBLINGS = 16, 4  # cells within a range: 16 times a power of two, 256 at most
WEIGHT = 0.5  # of the sums of a number and of its square, in units of a count
MOST = 2**21  # cells of a description


class Cut(Frozen):
    """The cells that a column is counted in, and its place among the columns of all parties.

    A range is cut evenly or, with "log", by ratios, with a cell more at either end; "powers" cuts at powers of two.
    Levels have a cell each, and one more what is none of them. The last cell is that of missing ones.
    """

    place: Place
    scale: Scale
    low: End = -1.0
    high: End = 1.0
    cells: int = Field(default=FEWEST, ge=1, le=2**16)  # within the range, or levels

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.high - self.low >= SMALLEST or (self.scale == "log" and self.low < SMALLEST):
            raise ValueError(f"the range [{self.low!r}, {self.high!r}] cannot be cut into {self.scale!r} cells")
        return self

    @property
    def summed(self) -> bool:
        """Whether the numbers and their squares are summed too."""
        return self.scale in ("linear", "log")

    @functools.cached_property
    def edges(self) -> Array:
        """Between the cells of what is not missing, upwards; each belongs to the cell above."""
        if self.scale == "levels":
            return np.arange(0.5, self.cells)
        if self.scale == "powers":
            return EDGES
        inner = (np.geomspace if self.scale == "log" else np.linspace)(self.low, self.high, self.cells + 1)
        return np.asarray([self.low, *inner[1:-1], np.nextafter(self.high, math.inf)])

    def __len__(self) -> int:
        return len(self.edges) + 2

    def places(self, codes: Array) -> Integers:
        """The cell of each code."""
        return np.where(np.isinf(codes), len(self) - 1, np.searchsorted(self.edges, codes, side="right"))

    def scaled(self, codes: Array) -> Array:
        """Numbers cut to the range, which becomes [-1, 1]; 0 for a missing one."""
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        x = (np.clip(codes, self.low, self.high) - middle) / half
        return np.where(np.isfinite(codes), np.clip(x, -1.0, 1.0), 0.0)


class ColumnCells(Query):
    """For each column, how many records have their code in each of its cells, and sums of x and x^2, x in [-1, 1].

    `places` are those of the columns in the party's rows. With `by`, the cut of the class at the place `group`, all
    other columns are counted in each class, and records of no class in none.

    Guarantee: a record adds 1 to one cell of each of d columns, and of m of them (x, x^2) to two sums of weight 1/2. So
    zero-out moves the value by at most sqrt(d + m/2), replace-one by sqrt 2 of that. Edges: a blank record adds none.
    """

    name = "cells"
    title: ClassVar[str] = "records of each column counted in cells, with sums of numbers and of their squares"
    needs: ClassVar[type] = BlockRows
    by_person: ClassVar[bool] = True
    together: ClassVar[bool] = True
    replacement: ClassVar[float | None] = math.sqrt(2.0)

    def __init__(self, cuts: Sequence[Cut], places: Sequence[int], by: Cut | None = None, group: int = -1) -> None:
        self.cuts, self.columns, self.by, self.group = tuple(cuts), tuple(places), by, group
        self.groups = [1 if by is None or place == group else by.cells for place in places]
        weights = list[Array]()
        for cut, groups in zip(cuts, self.groups, strict=True):
            weights += [np.ones(groups * len(cut)), np.full(groups * 2 * cut.summed, WEIGHT)]
        self.noise_weights: Array = np.concatenate([np.zeros(0), *weights])
        self.length = len(self.noise_weights)
        square = math.fsum(1 + 2 * WEIGHT**2 * cut.summed for cut in cuts)
        self.bound = math.sqrt(square) * FLOAT
        self.rounding_entries = math.fsum(2 + 4 * WEIGHT**2 * cut.summed for cut in cuts)

    def value(self, round: Round) -> Array:
        return round.rows.over(self._counted)

    def _counted(self, rows: Block) -> Array:
        total = np.zeros(self.length)
        for codes in rows.cells((*self.columns, self.group) if self.by is not None else self.columns):
            one, start = np.zeros(len(codes), dtype=np.int64), 0
            classes = one
            if self.by is not None:
                classes = np.where(np.isnan(codes[:, -1]), self.by.cells, self.by.places(codes[:, -1]))
            for column, cut, groups in zip(codes.T, self.cuts, self.groups, strict=False):
                own = classes if groups > 1 else one
                counted = (own < groups) & ~np.isnan(column)
                parts = [rows.counted(own * len(cut) + cut.places(column), None, groups * len(cut), counted)]
                if cut.summed:
                    x = cut.scaled(column)
                    for power in (x.copy(), x * x):
                        exact = power if rows.bits is None else toward_zero(power, rows.sum_bits)
                        parts.append(rows.counted(own, exact, groups, counted))
                for part in parts:
                    total[start : start + len(part)] += part
                    start += len(part)
        return total

    def split(self, value: Array) -> Iterator[Counted]:
        """What is of each column."""
        start = 0
        for cut, groups in zip(self.cuts, self.groups, strict=True):
            middle, end = start + groups * len(cut), start + groups * (len(cut) + 2 * cut.summed)
            yield cut, value[start:middle].reshape(groups, -1), value[middle:end].reshape(-1, groups).T
            start = end


class Described(Numbers):
    """The cells of each column and, of the column of the classes, its place among these."""

    result: ClassVar[str] = "description"

    columns: tuple[Cut, ...] = Field(min_length=1)
    by: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not all(one.place < other.place for one, other in zip(self.columns, self.columns[1:], strict=False)):
            raise ValueError("columns must go up, each named once")
        label = None if self.by is None else dict(enumerate(self.columns)).get(self.by)
        if self.by is not None and (label is None or label.scale != "levels"):
            raise ValueError("by must be the place of a column of levels")
        if (1 if label is None else label.cells) * sum(128 + cut.cells for cut in self.columns) > MOST:
            raise ValueError(f"columns: all of them together have more than {MOST} cells")
        return self


def own_cells(plan: Any, party: str) -> ColumnCells:
    """Of the columns that a party has; the label, which classes are of, is the last in the rows of all who know it."""
    part, numbers = plan.part(party), plan.numbers
    own = [cut for cut in numbers.columns if part.start <= cut.place < part.stop]
    by = None if numbers.by is None else numbers.columns[numbers.by]
    return ColumnCells(own, [cut.place - part.start for cut in own], by, part.stop - part.start - 1)


holders = Turn("every party that has such columns", lambda plan, party: bool(own_cells(plan, party).cuts))


class CountedColumns(Algorithm):
    """Counts in cells and sums tell shares, means, deviations and quantiles of every column (`estimates`).

    Guarantee: mu = sqrt(d + m/2), replace-one sqrt 2 of it, by std: d columns, m of them summed, by columns those of
    all parties together (`proof.md`). The options are the numbers of the plan; how finely ranges are cut follows.
    """

    name: ClassVar[str] = "description"
    form: ClassVar[str] = "cells"
    title: ClassVar[str] = "private description: columns counted in cells"
    splits = ("central", "rows", "columns")
    secure = ("rows",)
    private: ClassVar[bool | None] = None
    people: ClassVar[bool | None] = None
    layout: ClassVar[Layout] = "raw"
    numbers: ClassVar[type[Numbers]] = Described

    @classmethod
    def check_loss(cls, loss: Loss) -> None:
        """Any will do: nothing is fitted."""

    def design(self, problem: Problem, options: Described) -> Design:
        """So many cells that a quantile is hidden as much by the width of one as by the noise of half of them."""
        by = None if options.by is None else options.columns[options.by]
        query = ColumnCells(options.columns, [cut.place for cut in options.columns])
        release = Release.at_mu(query, 0, 1, problem.mu, problem.relation)
        noise = max(release.std * math.sqrt(problem.channel.variance), 1e-9) * (1 if by is None else by.cells)
        wanted = 1.5 * (problem.records / noise) ** (2 / 3) / FEWEST
        cells = FEWEST * 2 ** int(np.clip(math.floor(math.log2(wanted)), 0, DOUBLINGS))
        columns = tuple(cut.changed(cells=cells) if cut.summed else cut for cut in options.columns)
        return Design(rounds=1, numbers=options.changed(columns=columns), releases=(release,), models="kept")

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:
        if (last := plan.numbers.columns[-1].place) >= plan.features:
            raise RefusedError(f"the plan describes the column {last} of {plan.features}.")
        query = own_cells(plan, party)
        query.answered_by = holders if plan.split.same_people else everyone
        return (query,)

    def coordinate(self, plan: Plan) -> Coordination:
        """By the place of a column its counts; by rows those of all parties are added."""
        values = yield from answers("cells")
        if not plan.split.same_people:
            values = {plan.names[0]: np.asarray(sum(values.values()), dtype=np.float64)}
        found = [own_cells(plan, name).split(value) for name, value in values.items()]
        return Solution(np.zeros(plan.dimension), model={each[0].place: each for own in found for each in own})


FORMS: tuple[Algorithm, ...] = (CountedColumns(),)
