"""`ranges`: two noisy releases of counts, from which the range of each column follows. No `solver=` names it."""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from typing import Annotated, Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from scipy.special import ndtri

from sottovoce.algorithms.base import Algorithm, Array, Coordination, Solution, answers
from sottovoce.data.block import Block, BlockRows, Layout
from sottovoce.errors import RefusedError
from sottovoce.gate.query import MessageArrays, Query, Round, Turn, Wholes
from sottovoce.losses import Loss
from sottovoce.plan import Design, Numbers, Plan, Problem, Release

Integers = NDArray[np.int64]
Range = tuple[float, float]

LEAST, MOST = -20, 39  # |x| in [2^k, 2^(k+1)) for k from LEAST to MOST, the outermost open
ZERO: Final = MOST - LEAST + 1  # the place of the cell |x| < 2^LEAST; negative numbers have the places below it
POWERS: Final = 2 * ZERO + 1
EQUAL: Final = 16  # equal cells of a run
MISTAKES: Final = 0.05  # the chance that an empty cell of any column counts as one with records
TAIL: Final = 0.01  # of the records, the most that a cell at an end may have and be dropped

_ENDS: Final = 2.0 ** np.arange(LEAST, MOST + 2)
LOWS: Final = np.concatenate([-_ENDS[:0:-1], [0.0], _ENDS[:-1]])  # by place; as an end, the cell of 0 is 0
EDGES: Final = np.concatenate([-_ENDS[-2::-1], _ENDS[:-1]])  # between the cells
HIGHS: Final = np.concatenate([-_ENDS[-2::-1], [0.0], _ENDS[1:]])


def power_places(values: Array) -> Integers:
    """The place of each finite value among the powers of two."""
    sizes = np.abs(values)
    exponents = np.frexp(sizes)[1].astype(np.int64) - 1  # |x| is in [2^e, 2^(e+1))
    steps = np.where(sizes < 2.0**LEAST, 0, np.clip(exponents, LEAST, MOST) - LEAST + 1)
    return np.asarray(np.where(values < 0, ZERO - steps, ZERO + steps), dtype=np.int64)


def equal_places(values: Array, low: Array, high: Array) -> Integers:
    """The place of each finite value among the equal cells of its run; values beyond it count in the end cells."""
    places = np.floor((np.clip(values, low, high) - low) * (EQUAL / (high - low)))
    return np.clip(places, 0, EQUAL - 1).astype(np.int64)


def find_run(counts: Array, noise: float, columns: int) -> tuple[int, int] | None:
    """From the first to the last power of two that has records: its count stands out of the noise. None: none does."""
    (on,) = np.nonzero(counts > noise * -float(ndtri(MISTAKES / (POWERS * columns))))
    return (int(on[0]), int(on[-1])) if len(on) else None


def ends_of(run: tuple[int, int]) -> Range:
    """The numbers that a run spans. An end at the cell of 0 is 0; that cell alone is [-1, 1]."""
    first, last = run
    return (-1.0, 1.0) if first == last == ZERO else (float(LOWS[first]), float(HIGHS[last]))


def range_of(counts: Array, noise: float, run: Range) -> Range:
    """The run less the cells at its ends that have next to no records; the whole run where noise hides which."""
    low, high = run
    width, below, above = (high - low) / EQUAL, _dropped(counts, noise), _dropped(counts[::-1], noise)
    return run if below + above >= EQUAL else (low + below * width, high - above * width)


def _dropped(counts: Array, noise: float) -> int:
    """How many cells from the first on are dropped: while what all of them have is a small share, or noise."""
    cells = np.arange(1, EQUAL + 1)
    few = np.cumsum(counts) <= np.maximum(TAIL * counts.sum(), 2 * noise * np.sqrt(cells))
    return EQUAL if few.all() else int(np.argmin(few))


def share_of(columns: int, signal: float) -> float:
    """The share of mu squared at which a cell of about 2% of the records stands out, from 2% to 10% of it.

    80,000 columns / (N mu)^2, before it is cut; `wanted` says how much that is.
    """
    return min(max(wanted(columns, signal), 0.02), 0.10)


def wanted(columns: int, signal: float) -> float:
    """The share that ranges of so many columns would take; above 1 no budget buys them."""
    return 80_000 * columns / signal**2 if math.isfinite(signal) else 0.0


def counted_columns(plan: Any, party: str) -> tuple[int, ...]:
    """Which of a plan's columns a party has, by their places in its rows; behind the last feature comes the label."""
    part, columns = plan.part(party), plan.numbers.columns  # in order
    label = not plan.split.same_people or party == plan.label_party_name
    first, last = bisect_left(columns, part.start), bisect_left(columns, part.stop)
    own = tuple(place - part.start for place in columns[first:last])
    return (*own, part.stop - part.start) if label and columns[-1:] == (plan.features,) else own


holders = Turn("every party that has such columns", lambda plan, party: bool(counted_columns(plan, party)))


class _Counts(Query):
    """For each column, how many records have their value in each of its cells.

    Guarantee: a record adds 1 to at most one cell of each of d columns, so zero-out moves the counts by at most sqrt d
    and replace-one, which moves two cells of a column, by sqrt(2 d). Edges: a cell that is missing or infinite, and a
    null row, add nothing.
    """

    needs: ClassVar[type] = BlockRows
    by_person: ClassVar[bool] = True
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

    def _counted(self, told: MessageArrays, rows: Block) -> Array:
        counts, first = np.zeros(self.length), self.cells * np.arange(len(self.columns))
        for values in rows.cells(self.columns):
            known = np.isfinite(values)
            places = first + self.places(np.where(known, values, 0.0), told)
            counts += rows.counted(places, None, self.length, known)
        return counts

    def places(self, values: Array, told: MessageArrays) -> Integers:
        raise NotImplementedError


class PowerCounts(_Counts):
    """Cells between powers of two, of both signs, and one about 0."""

    name = "powers"
    title: ClassVar[str] = "records of each column counted by powers of two"
    cells: ClassVar[int] = POWERS

    def places(self, values: Array, _told: MessageArrays) -> Integers:
        return power_places(values)


class EqualCounts(_Counts):
    """Equal cells in the runs of powers of two that the message names, first and last place of each column."""

    name = "cells"
    title: ClassVar[str] = "records of each column counted in equal cells of a run"
    cells: ClassVar[int] = EQUAL

    def __init__(self, columns: tuple[int, ...]) -> None:
        super().__init__(columns)
        self.takes = {"runs": Wholes((len(columns), 2), 0, POWERS - 1)}

    def objection(self, number: int, told: MessageArrays) -> str | None:
        wrong = super().objection(number, told)
        return wrong or ("has a run that ends before it begins" if np.any(np.diff(told["runs"]) < 0) else None)

    def places(self, values: Array, told: MessageArrays) -> Integers:
        return equal_places(values, *np.array([ends_of((int(first), int(last))) for first, last in told["runs"]]).T)


Place = Annotated[int, Field(ge=0, lt=2**22)]


class CountedRangesNumbers(Numbers):
    """The places of the columns among all features; the place behind the last one is the label's."""

    columns: tuple[Place, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not all(one < other for one, other in zip(self.columns, self.columns[1:], strict=False)):
            raise ValueError("columns must go up, each named once")
        return self


class CountedRanges(Algorithm):
    """Counts by powers of two tell where a column's values are, counts in equal cells where its tails end.

    Guarantee: each release costs mu / sqrt 2, so both together mu; by columns that is for all parties together
    (`proof.md`). The options are the places of the columns. The solution's model has for each of them a range, or None
    where no cell stands out of the noise.
    """

    name: ClassVar[str] = "ranges"
    form: ClassVar[str] = "counts"
    title: ClassVar[str] = "ranges of columns: records counted in cells"
    splits = ("central", "rows", "columns")
    private: ClassVar[bool | None] = None
    people: ClassVar[bool | None] = None
    layout: ClassVar[Layout] = "raw"
    numbers: ClassVar[type[Numbers]] = CountedRangesNumbers

    @classmethod
    def check_loss(cls, loss: Loss) -> None:
        """Any will do: nothing is fitted."""

    def design(self, problem: Problem, options: tuple[int, ...]) -> Design:
        numbers = CountedRangesNumbers(columns=options)
        counts = (PowerCounts(options), EqualCounts(options))  # of all columns: whoever has them, a record is in each
        releases = tuple(
            Release.at_mu(query, number, 1, problem.mu / math.sqrt(2.0), problem.relation)
            for number, query in enumerate(counts)
        )
        return Design(rounds=2, numbers=numbers, releases=releases, models="kept")

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:
        last = plan.features - (plan.classes is not None)
        if plan.numbers.columns[-1] > last:
            raise RefusedError(
                f"the plan asks for the column {plan.numbers.columns[-1]} of {plan.features} features; behind them "
                "comes the label, if it is a number."
            )
        own = counted_columns(plan, party)
        return PowerCounts(own), EqualCounts(own)

    def coordinate(self, plan: Plan) -> Coordination:
        """Counts by powers of two, the runs that stand out of their noise, counts in equal cells of the runs.

        By rows the counts of all parties are added, by columns each party has those of its own columns.
        """
        holders = [name for name in plan.names if counted_columns(plan, name)]
        alone, columns = plan.split.same_people, len(plan.numbers.columns)
        noise = {release.query: release.std * (1.0 if alone else math.sqrt(len(holders))) for release in plan.releases}
        powers = _grouped(plan, (yield from answers("powers")), POWERS)
        runs = {
            name: [find_run(column, noise["powers"], columns) for column in counts] for name, counts in powers.items()
        }
        told = {name: {"runs": np.array([run or (ZERO, ZERO) for run in found])} for name, found in runs.items()}
        each = told if alone else dict.fromkeys(holders, told[holders[0]])
        cells = _grouped(plan, (yield from answers("cells", each=each)), EQUAL)
        ranges = {}
        for name, counts in cells.items():
            part = plan.part(name)
            for place, run, column in zip(counted_columns(plan, name), runs[name], counts, strict=True):
                label = place == part.stop - part.start  # which is behind the last feature of all
                found = None if run is None else range_of(column, noise["cells"], ends_of(run))
                ranges[plan.features if label else part.start + place] = found
        return Solution(np.zeros(plan.dimension), model=ranges)


def _grouped(plan: Plan, values: dict[str, Array], cells: int) -> dict[str, Array]:
    """Counts, columns x cells: by columns of each party, by rows their sum under the first party's name."""
    groups = values if plan.split.same_people else {next(iter(values)): np.asarray(sum(values.values()), np.float64)}
    return {name: counts.reshape(-1, cells) for name, counts in groups.items()}


FORMS: tuple[Algorithm, ...] = (CountedRanges(),)
