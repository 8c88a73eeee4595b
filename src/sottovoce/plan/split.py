"""Splits and channels: where the data are, and how the parties' answers come together.

The data are in one place, at parties that each have some of the people, or each some of the columns. Each party sends
its answers with noise of its own, or sums over the parties are opened and nothing else. Secure aggregation: by rows
every party adds a share of the noise and masks (`SecureSums`). By columns the parties multiply what they share, with
what a dealer gives them (`SecureProducts`). What the shares of noise are: `aggregation.py`.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from pydantic_core import core_schema

from sottovoce.data.block import Preparation
from sottovoce.data.bounds import party_norms
from sottovoce.errors import RefusedError
from sottovoce.plan.aggregation import MOST_PARTIES, SecureAggregation

if TYPE_CHECKING:
    from sottovoce.plan.plan import Plan
    from sottovoce.plan.problem import Problem

BELOW = 1.0 - 2.0**-39  # of a part's norm: so the squares of all parts are no more than that of the row
KEY: Final = re.compile("[0-9a-f]{64}")  # the fingerprint of a public key
OPENED: Final = "What is opened: sums over all parties, with this noise against everybody covered, and more in all"


class Coalition(NamedTuple):
    """Who colludes: the number of parties, and whether the dealer is with them."""

    parties: int
    dealer: bool


class Channel:
    """Each party sends its own answers, with all of the noise that was charged; a subclass opens sums alone.

    `signers` sign a plan before it starts, `members` have a key of the run, of the `roster` a sum is asked. Variances
    are in that of a release.
    """

    secure: ClassVar[bool] = False
    products: ClassVar[bool] = False  # whether sums over the columns of all parties are opened, and nothing else
    everybody_else: str = "all other parties"  # who may collude against a party
    members: tuple[str, ...] = ()

    def __init__(self, problem: Problem, separate_dealer: str | None = None) -> None:
        self.names, self.split, self.parties = problem.names, problem.split, len(problem.parties)
        self.separate_dealer = separate_dealer  # the dealer, where it is a process of its own
        self.dealer = "the coordinator" if separate_dealer is None else f"the dealer {separate_dealer!r}"
        self.signers = self.names if separate_dealer is None else (*self.names, separate_dealer)
        self.roster = self.names
        together = self.split.same_people
        self.leaves = "What leaves all parties together, at most" if together else "What leaves each party"
        self.sums_alone = self.secure or not together  # all that the world sees of a sum is the sum
        self.retries, self.reserve = 0, 0.0  # releases that may be asked again, and their share of mu^2
        self.bits: int | None = None  # of the grid of rows, if fewer than fit

    @property
    def aggregation(self) -> SecureAggregation:
        """The numbers of secure aggregation; a refusal where there is none."""
        raise RefusedError("the plan secures nothing.")

    @property
    def share(self) -> float:
        """The variance of one party's noise."""
        return 1.0

    @property
    def variance(self) -> float:
        """Of a sum over the parties; by columns one of them answers."""
        return 1.0 if self.split.same_people else float(self.parties)

    @property
    def least_variance(self) -> float:
        """Of a sum that is opened without those who may drop out."""
        return self.variance

    def sharers(self, problem: Problem, party: str) -> tuple[str, ...]:
        """Whose answers about one record of a party add up."""
        return problem.names if self.split.same_people else (party,)

    def left_to(self, _coalition: Coalition) -> float:
        """The variance of a sum that is left to those who collude."""
        return 1.0

    def check(self, plan: Plan) -> None:
        """Refuse a plan that leaves some declared adversary less noise than was charged."""
        if plan.keys:
            raise RefusedError("the plan has keys of secure sums, and secures none.")


class SecureSums(Channel):
    """Sums over the parties are opened, under shares of noise and masks."""

    secure: ClassVar[bool] = True

    def __init__(self, problem: Problem, aggregation: SecureAggregation) -> None:
        super().__init__(problem, aggregation.separate_dealer)
        self._aggregation = aggregation
        self.members = self.roster = self.signers
        self.leaves = OPENED
        self.everybody_else = f"{self.dealer} with all other parties"
        self.retries, self.reserve, self.bits = aggregation.retries, aggregation.reserve, aggregation.bits

    @property
    def aggregation(self) -> SecureAggregation:
        return self._aggregation

    @property
    def share(self) -> float:
        return self.aggregation.share(self.parties)

    @property
    def top_up(self) -> float:
        """The variance that the dealer adds."""
        return self.aggregation.top_up(self.parties)

    @property
    def coordinator_adds(self) -> float:
        """The variance that the coordinator adds to a sum as it opens it."""
        return self.top_up if self.separate_dealer is None else 0.0

    @property
    def variance(self) -> float:
        return self.aggregation.variance(self.parties)

    @property
    def least_variance(self) -> float:
        return self.aggregation.left(self.parties, 0, gone=self.aggregation.dropouts)

    def sharers(self, problem: Problem, party: str) -> tuple[str, ...]:  # noqa: ARG002
        return (party,)

    def left_to(self, coalition: Coalition) -> float:
        gone = min(self.aggregation.dropouts, self.parties - 1 - coalition.parties)
        return self.aggregation.left(self.parties, coalition.parties, dealer=coalition.dealer, gone=gone)

    def coalitions(self, counts: Sequence[int]) -> Iterator[tuple[str, Coalition]]:
        """Those who may collude that a report has a figure for, by name."""
        yield "world", Coalition(0, False)
        if self.separate_dealer is not None:
            yield "coordinator", Coalition(0, False)
        yield self.coalition_name(0, dealer=True), Coalition(0, True)
        for count in (count for count in counts if 0 < count < self.parties):
            yield self.coalition_name(count, dealer=True), Coalition(count, True)
            yield self.coalition_name(count, dealer=False), Coalition(count, False)
            if self.separate_dealer is not None:  # the coordinator has the sums, and no share of its own
                yield f"coordinator and {self.coalition_name(count, dealer=False)[4:]}", Coalition(count, False)

    def coalition_name(self, parties: int, *, dealer: bool) -> str:
        """How a report calls those who collude: "coordinator and 2 parties", "any 2 parties"."""
        if not dealer:
            return f"any {parties_text(parties)}" if parties else "world"
        who = "coordinator" if self.separate_dealer is None else "dealer"
        return f"{who} and {parties_text(parties)}" if parties else who

    def check(self, plan: Plan) -> None:
        aggregation, parties = self.aggregation, self.parties
        if not 2 <= parties <= MOST_PARTIES.get(plan.split, 0):
            raise RefusedError(f"the plan secures sums of {parties} parties; by rows 2 to 256 may, by columns 2 to 16.")
        self._check_dropouts()
        aggregation.share(parties)
        if aggregation.colluding > parties - 1:
            raise RefusedError(
                f"colluding={aggregation.colluding} leave no honest party of {parties}; at most {parties - 1} may."
            )
        if aggregation.dealer in plan.names:
            raise RefusedError(f"{aggregation.dealer!r} deals and is a party of the plan; the dealer holds no data.")
        if plan.protects != "record" or any(r.mechanism != "gaussian" or r.std == 0.0 for r in plan.releases):
            raise RefusedError("only sums with Gaussian noise, of records, can be secure.")
        if any(release.dropped or release.batches > 1 for release in plan.releases):
            raise RefusedError("secure sums have all of their bits, and one batch in a message.")
        self._check_rounds(plan)
        if plan.keys:
            names, keys = zip(*plan.keys, strict=True)
            if names != self.members or len(set(keys)) < len(keys) or any(not KEY.fullmatch(key) for key in keys):
                raise RefusedError(
                    "a plan of secure sums has the fingerprint of one public key, all different, of each of its "
                    "members."
                )

    def _check_dropouts(self) -> None:
        if self.aggregation.retries and not self.aggregation.dropouts:
            raise RefusedError("retries are for sums without a party, and the plan has dropouts=0.")

    def _check_rounds(self, plan: Plan) -> None:
        """Masks are by labels, so a round may have several sums."""


class SecureProducts(SecureSums):
    """The same over columns: the dealer gives the parties what they multiply with, and adds its noise to that."""

    products: ClassVar[bool] = True

    def __init__(self, problem: Problem, aggregation: SecureAggregation) -> None:
        super().__init__(problem, aggregation)
        self.members, self.roster = (*self.names, aggregation.dealer), self.names

    @property
    def coordinator_adds(self) -> float:
        return 0.0  # it is in what the dealer gives

    def left_to(self, coalition: Coalition) -> float:
        """Nothing to a dealer with one party: they have every column."""
        return 0.0 if coalition.dealer and coalition.parties else super().left_to(coalition)

    def _check_dropouts(self) -> None:
        if self.aggregation.colluding_with_dealer or self.aggregation.dropouts or self.aggregation.retries:
            raise RefusedError(
                "by columns no party may collude with the dealer, or leave: colluding_with_dealer, dropouts and "
                "retries are 0."
            )

    def _check_rounds(self, plan: Plan) -> None:
        taken = sorted((release.first, release.first + release.count) for release in plan.releases)
        if any(stop > start for (_, stop), (start, _) in itertools.pairwise(taken)):
            raise RefusedError("over secure columns a round has one sum: masks are by rounds, and are used once.")


def parties_text(count: int) -> str:
    """So many parties."""
    return "1 party" if count == 1 else f"{count} parties"


@dataclass(frozen=True)
class RowPart:
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

    def count_features(self, widths: Sequence[int]) -> int:
        """How many features the parties have together."""
        return sum(widths) if self.same_people else widths[0]

    def width(self, problem: Problem, party: str) -> int:
        """How many of the columns a party has."""
        return problem.columns[problem.names.index(party)] if self.same_people else problem.features

    def priced(self, problem: Problem) -> tuple[str, ...]:
        """Parties that include one with the record that pays most."""
        return problem.names[:1] if self.same_people else problem.names

    def part(self, problem: Problem, party: str) -> RowPart:  # noqa: ARG002
        """What one party holds of every row."""
        return RowPart(0, problem.features, problem.fit_intercept, problem.preparation)

    def check(self, plan: Plan) -> None:
        """Refuse a plan with data that its parties cannot have."""

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

    def part(self, problem: Problem, party: str) -> RowPart:
        """The constant column is with the party that has the labels. In the layout "rows" each party has one."""
        number = problem.names.index(party)
        start = sum(problem.columns[:number])
        stop = start + problem.columns[number]
        secure, holds, rows = problem.channel.secure, number == problem.label_party, problem.layout == "rows"
        constant = problem.fit_intercept and (holds or (rows and not secure))
        norm = problem.norms[number] * (BELOW if secure else 1.0) if problem.norms else None
        preparation = dataclasses.replace(
            problem.preparation,
            bounds=problem.bounds.part(start, stop, norm),
            features=stop - start,
            fit_intercept=constant,
            labelled=problem.labels != "held" or holds,
            centred=problem.fit_intercept,
            whole=float(problem.preparation.scale) if secure and rows else None,
        )
        return RowPart(start, stop, constant, preparation)

    def check(self, plan: Plan) -> None:
        """All parties have all people, each some of the columns; the norms' squares sum to row_norm^2, or overlap."""
        if len(plan.columns) != len(plan.parties) or sum(plan.columns) != plan.features:
            raise RefusedError("the plan does not say how many of the columns each party has.")
        if len({count for _, count in plan.parties}) != 1 or plan.label_party >= len(plan.parties):
            raise RefusedError("by columns every party has the same people, and one of them holds the labels.")
        if (plan.bounds.row_norm is None) != (not plan.norms):
            raise RefusedError("by columns a row norm is shared among the parties, and only a declared one is.")
        if plan.bounds.row_norm is not None:
            overlap = plan.secure_columns or plan.numbers.evaluates  # which reads scores, and no rows
            party_norms(plan.bounds.row_norm, plan.columns, plan.norms, overlap=overlap)

    def describe(self, parties: int) -> str:
        return f"{super().describe(parties)}: each has some features of the same people"


CENTRAL: Final = Central("central")
ROWS: Final = ByRows("rows")
COLUMNS: Final = ByColumns("columns")
SPLITS: Final[Mapping[str, Split]] = {split: split for split in (CENTRAL, ROWS, COLUMNS)}
