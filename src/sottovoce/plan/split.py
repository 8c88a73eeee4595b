"""Splits: the data in one place, at parties that each have some of the people, or each some of the columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydantic_core import core_schema

from sottovoce.data.block import Preparation
from sottovoce.data.bounds import party_norms
from sottovoce.errors import RefusedError
from sottovoce.plan.channel import Channel, Plain, SecureProducts, SecureSums

if TYPE_CHECKING:
    from sottovoce.plan.plan import Plan
    from sottovoce.plan.problem import Problem

BELOW = 1.0 - 2.0**-39  # of a part's norm: so the squares of all parts are no more than that of the row


@dataclass(frozen=True)
class Part:
    """The columns start, ..., stop - 1 of the rows and, with `constant`, the constant column of the intercept."""

    start: int
    stop: int
    constant: bool
    preparation: Preparation

    def place(self, local: int, features: int) -> int:
        """The place among all coefficients of a column of this part; the intercept comes last."""
        return self.start + local if local < self.stop - self.start else features

    def local(self, place: int, features: int) -> int | None:
        """The inverse; None for a column of another party."""
        if self.start <= place < self.stop:
            return place - self.start
        return self.stop - self.start if place == features and self.constant else None


class Split(str):
    """A split: its name, as plans and jobs have it, and what follows from it."""

    __slots__ = ()
    several: ClassVar[bool] = True  # parties, and not one place
    same_people: ClassVar[bool] = False  # every party has all people, so what the parties say about a person adds up
    data: ClassVar[str]  # what errors call it
    refusal: ClassVar[str] = ""  # why a solver may not serve it
    secured_by: ClassVar[type[SecureSums]] = SecureSums

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(SPLITS.__getitem__, core_schema.literal_schema([*SPLITS]))

    def channel(self, problem: Problem) -> Channel:
        """How the answers of a problem's parties come together."""
        return Plain(problem) if problem.aggregation is None else self.secured_by(problem, problem.aggregation)

    def count_records(self, counts: Sequence[int]) -> int:
        """How many records parties with so many each have together."""
        return counts[0] if self.same_people else sum(counts)

    def count_features(self, widths: Sequence[int]) -> int:
        """How many features parties with so many each have together."""
        return sum(widths) if self.same_people else widths[0]

    def width(self, problem: Problem, party: str) -> int:
        """How many of the columns a party has."""
        return problem.columns[problem.names.index(party)] if self.same_people else problem.features

    def has_labels(self, problem: Problem, party: str) -> bool:
        """Whether the column of labels counts as this party's."""
        return not self.same_people or party == problem.label_party_name

    def sharers(self, problem: Problem, party: str) -> tuple[str, ...]:
        """Whose answers about one record of a party add up, where each party sends its own."""
        return problem.names if self.same_people else (party,)

    def priced(self, problem: Problem) -> tuple[str, ...]:
        """Parties among whose records is the one that pays most."""
        return problem.names[:1] if self.same_people else problem.names

    def part(self, problem: Problem, party: str) -> Part:  # noqa: ARG002
        """What one party holds of every row."""
        return Part(0, problem.features, problem.fit_intercept, problem.preparation)

    def check(self, plan: Plan) -> None:
        """Refuse a plan whose parties cannot have the data so."""

    def describe(self, parties: int) -> str:
        """Where the data are, in a page's words."""
        return f"{parties} parties, split by {self}"


class Central(Split):
    """All data in one place."""

    __slots__ = ()
    several: ClassVar[bool] = False
    data: ClassVar[str] = "data in one place"

    def describe(self, _parties: int) -> str:
        return "all records in one place"


class ByRows(Split):
    """Each party has some of the people, with all their columns."""

    __slots__ = ()
    data: ClassVar[str] = "data split by rows"


class ByColumns(Split):
    """Each party has some of the columns of all people; one of them has the labels, and the intercept's column."""

    __slots__ = ()
    same_people: ClassVar[bool] = True
    data: ClassVar[str] = "data split by columns"
    refusal: ClassVar[str] = " (every record's score would need noise of its own: worse than one party alone)"
    secured_by: ClassVar[type[SecureSums]] = SecureProducts

    def part(self, problem: Problem, party: str) -> Part:
        """The constant column is with the party that has the labels. In the layout "rows" each party has one."""
        place = problem.names.index(party)
        start = sum(problem.columns[:place])
        stop = start + problem.columns[place]
        secure, holds, rows = problem.channel.secure, place == problem.label_party, problem.layout == "rows"
        constant = problem.fit_intercept and (holds or (rows and not secure))
        norm = problem.norms[place] * (BELOW if secure else 1.0) if problem.norms else None
        preparation = dataclasses.replace(
            problem.preparation,
            bounds=problem.bounds.part(start, stop, norm),
            features=stop - start,
            fit_intercept=constant,
            labelled=problem.labels != "held" or holds,
            centred=problem.fit_intercept,
            whole=float(problem.preparation.scale) if secure and rows else None,
        )
        return Part(start, stop, constant, preparation)

    def check(self, plan: Plan) -> None:
        """All parties have all people, each some of the columns; the norms' squares sum to row_norm^2, or overlap."""
        if len(plan.columns) != len(plan.parties) or sum(plan.columns) != plan.features:
            raise RefusedError("the plan does not say how many of the columns each party has.")
        if len({count for _, count in plan.parties}) != 1 or plan.label_party >= len(plan.parties):
            raise RefusedError("by columns every party has the same people, and one of them holds the labels.")
        if (plan.bounds.row_norm is None) != (not plan.norms):
            raise RefusedError("by columns a row norm is shared among the parties, and only a declared one is.")
        if plan.bounds.row_norm is not None:
            overlap = plan.secure_columns or plan.algorithm == "evaluation"  # which reads scores, and no rows
            party_norms(plan.bounds.row_norm, plan.columns, plan.norms, overlap=overlap)

    def describe(self, parties: int) -> str:
        return f"{super().describe(parties)}: each has some features of the same people"


CENTRAL: Final = Central("central")
ROWS: Final = ByRows("rows")
COLUMNS: Final = ByColumns("columns")
SPLITS: Final[Mapping[str, Split]] = {split: split for split in (CENTRAL, ROWS, COLUMNS)}
