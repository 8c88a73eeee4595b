"""Splits and channels: where the data are, and how the parties' answers come together.

The data are in one place, at parties that each have some of the people, or each some of the columns. Each party sends
its answers with noise of its own, or sums over the parties are opened and nothing else. Secure aggregation: by rows
every party adds a share of the noise and masks. By columns the parties multiply what they share, with what a dealer
gives them.

`SecureAggregation` says who deals, how many may collude, and so what noise each adversary faces. In units of sigma^2,
the variance that a release is charged for:

    a party's share   a   = 1 / (M - colluding_with_dealer - dropouts)
    the top-up        tau = max(0, 1 - max(1, M - colluding - dropouts) a)      by the dealer
    left to one who knows j shares: (M - dropouts - j) a, and tau unless it knows that too

By columns parties know a part of every record. That changes nothing, since a record that is null at one of them adds
nothing to a looked-up sum. Proof: `secure/proofs`.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Self

from pydantic import Field
from pydantic_core import core_schema

from sottovoce.data.block import Preparation
from sottovoce.errors import RefusedError
from sottovoce.plan.release import Frozen

if TYPE_CHECKING:
    from sottovoce.plan.plan import Plan
    from sottovoce.plan.problem import Problem

COORDINATOR: Final = "coordinator"
MOST_PARTIES: Final = {"rows": 256, "columns": 16}
KEY: Final = re.compile("[0-9a-f]{64}")  # the fingerprint of a public key
OPENED: Final = "What is opened: sums over all parties, with this noise against everybody covered, and more in all"


class SecureAggregation(Frozen):
    """The public numbers of secure sums; part of a problem, and so of a plan's digest."""

    dealer: str = COORDINATOR  # who adds the top-up and, by columns, deals; or the name of a dealer
    colluding_with_dealer: int = Field(default=0, ge=0)  # parties that may collude with the dealer; by columns none
    colluding: int = Field(ge=1)  # parties that may collude without it
    dropouts: int = Field(default=0, ge=0)  # parties that may leave in the middle
    retries: int = Field(default=0, ge=0, le=64)  # releases more, for rosters without them
    reserve: float = Field(default=0.0, ge=0.0, lt=1.0)  # share of mu^2 that is kept for the retries
    bits: int | None = Field(default=None, ge=1, le=30)  # by columns: of the grid of rows and slopes, if fewer than fit
    aligned: str = Field(default="", pattern="^([0-9a-f]{64})?$")  # by columns: the digest of the parties' alignment

    @property
    def separate_dealer(self) -> str | None:
        """The dealer, where it is a process of its own."""
        return None if self.dealer == COORDINATOR else self.dealer

    def share(self, parties: int) -> float:
        """a: the variance of one party's noise."""
        return 1.0 / self._sharers(parties)

    def top_up(self, parties: int) -> float:
        """tau: the variance that the dealer adds."""
        return max(0.0, 1.0 - max(1, parties - self.colluding - self.dropouts) * self.share(parties))

    def left(self, parties: int, shares: int, *, dealer: bool = False, gone: int = 0) -> float:
        """The variance that is left to whoever knows so many shares, and the top-up too if the `dealer` is with them.

        0 where no honest party is left; `gone` is who is not in the sum. Edges: exactly 1 for the dealer with as many
        as may collude with it, and for as many as may without it where their own share is less.
        """
        honest, sharers = parties - gone - shares, self._sharers(parties)
        if honest < 1:
            return 0.0
        topped_up = 0.0 if dealer else 1.0 + (honest - max(1, parties - self.colluding - self.dropouts)) / sharers
        return max(honest / sharers, topped_up)

    def _sharers(self, parties: int) -> int:
        """M - colluding_with_dealer - dropouts: whose shares add to sigma^2."""
        honest = parties - self.colluding_with_dealer - self.dropouts
        if honest < 1:
            raise RefusedError(
                f"colluding_with_dealer={self.colluding_with_dealer} and dropouts={self.dropouts} leave no honest "
                f"party of {parties}; lower one."
            )
        return honest


class Coalition(NamedTuple):
    """Who colludes: the number of parties, and whether the dealer is with them."""

    parties: int
    dealer: bool


class Channel:
    """Each party sends its own answers, with all of the noise that was charged; a subclass opens sums alone.

    `signers` sign a plan before it starts, `members` have a key of the run, of the `roster` a sum is asked. `priced`
    include a party with the record that pays most. Variances are in that of a release.
    """

    secure: ClassVar[bool] = False
    everybody_else: str = "all other parties"  # who may collude against a party
    members: tuple[str, ...] = ()

    def __init__(self, problem: Problem) -> None:
        self.names, self.split, self.parties = problem.names, problem.split, len(problem.parties)
        self.separate_dealer: str | None = None  # the dealer, where it is a process of its own
        self.dealer = "the coordinator"
        self.signers = self.roster = self.names
        together = self.split.same_people
        self.priced = self.names[:1] if together else self.names
        each = "What leaves each party" if self.split.several else "What is released"
        self.leaves = "What leaves all parties together, at most" if together else each
        self.products = self.secure and together  # whether sums over the columns of all are opened, and nothing else
        self.sums_alone = self.secure or not together  # all that the world sees of a sum is the sum
        self.retries, self.reserve = 0, 0.0  # releases that may be asked again, and their share of mu^2
        self.bits: int | None = None  # of the grid of rows, if fewer than fit

    @functools.cached_property
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


class SecureSums(Channel):
    """Sums over the parties are opened, under shares of noise and masks.

    With `products` they are over columns: the dealer gives the parties what they multiply with, and adds its noise to
    that.
    """

    secure: ClassVar[bool] = True

    def __init__(self, problem: Problem, aggregation: SecureAggregation) -> None:
        super().__init__(problem)
        self.aggregation = aggregation
        if (dealer := aggregation.separate_dealer) is not None:
            self.separate_dealer, self.dealer = dealer, f"the dealer {dealer!r}"
            self.signers = (*self.names, dealer)
        self.members = (*self.names, aggregation.dealer) if self.products else self.signers
        self.roster = self.names if self.products else self.signers
        self.leaves = OPENED
        self.everybody_else = f"{self.dealer} with all other parties"
        self.retries, self.reserve, self.bits = aggregation.retries, aggregation.reserve, aggregation.bits

    @property
    def share(self) -> float:
        return self.aggregation.share(self.parties)

    @property
    def coordinator_adds(self) -> float:
        """The variance that the coordinator adds to a sum as it opens it; of products the dealer gives it."""
        return 0.0 if self.products or self.separate_dealer is not None else self.aggregation.top_up(self.parties)

    @property
    def variance(self) -> float:
        return self.parties * self.aggregation.share(self.parties) + self.aggregation.top_up(self.parties)

    @property
    def least_variance(self) -> float:
        return self.aggregation.left(self.parties, 0, gone=self.aggregation.dropouts)

    def sharers(self, problem: Problem, party: str) -> tuple[str, ...]:  # noqa: ARG002
        return (party,)

    def left_to(self, coalition: Coalition) -> float:
        """Nothing of products to a dealer with one party: they have every column."""
        if self.products and coalition.dealer and coalition.parties:
            return 0.0
        gone = min(self.aggregation.dropouts, self.parties - 1 - coalition.parties)
        return self.aggregation.left(self.parties, coalition.parties, dealer=coalition.dealer, gone=gone)

    def coalitions(self, counts: Sequence[int]) -> Iterator[tuple[str, Coalition]]:
        """Those who may collude that a report has a figure for, by name."""
        yield "world", Coalition(0, False)
        if self.separate_dealer is not None:
            yield "coordinator", Coalition(0, False)
        yield self.coalition_name(0, dealer=True), Coalition(0, True)
        for count in counts:
            if not 0 < count < self.parties:
                continue
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
        """Refuse a plan that leaves some declared adversary less noise than was charged."""
        aggregation, parties = self.aggregation, self.parties
        if not 2 <= parties <= MOST_PARTIES.get(plan.split, 0):
            raise RefusedError(f"the plan secures sums of {parties} parties; by rows 2 to 256 may, by columns 2 to 16.")
        if self.products and (aggregation.colluding_with_dealer or aggregation.dropouts or aggregation.retries):
            raise RefusedError(
                "by columns no party may collude with the dealer, or leave: colluding_with_dealer, dropouts and "
                "retries are 0."
            )
        if aggregation.retries and not aggregation.dropouts:
            raise RefusedError("retries are for sums without a party, and the plan has dropouts=0.")
        aggregation.share(parties)
        if aggregation.colluding > parties - 1:
            raise RefusedError(
                f"colluding={aggregation.colluding} leave no honest party of {parties}; at most {parties - 1} may."
            )
        if aggregation.dealer in plan.names:
            raise RefusedError(f"{aggregation.dealer!r} deals and is a party of the plan; the dealer holds no data.")
        if plan.protects == "feature" or any(r.mechanism != "gaussian" or r.std == 0.0 for r in plan.releases):
            raise RefusedError("only sums with Gaussian noise, of records, can be secure.")
        if any(release.dropped or release.batches > 1 for release in plan.releases):
            raise RefusedError("secure sums have all of their bits, and one batch in a message.")
        taken = sorted((release.first, release.first + release.count) for release in plan.releases)
        if self.products and any(stop > start for (_, stop), (start, _) in itertools.pairwise(taken)):
            # by rows masks are by labels, so a round may have several sums
            raise RefusedError("over secure columns a round has one sum: masks are by rounds, and are used once.")
        if plan.keys:
            names, keys = zip(*plan.keys, strict=True)
            if names != self.members or len(set(keys)) < len(keys) or any(not KEY.fullmatch(key) for key in keys):
                raise RefusedError(
                    "a plan of secure sums has the fingerprint of one public key, all different, of each of its "
                    "members."
                )


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

    several: bool  # parties, and not one place
    same_people: bool  # every party has all people, so what the parties say about a person adds up
    data: str  # what errors call it
    place: str  # where the data of so many parties are, in a page's words
    refusal: str  # why a solver may not serve it

    def __new__(cls, name: str, place: str = "", *, same_people: bool = False, refusal: str = "") -> Self:
        made = super().__new__(cls, name)
        made.several, made.same_people, made.place, made.refusal = name != "central", same_people, place, refusal
        made.data = f"data split by {name}" if made.several else "data in one place"
        return made

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(SPLITS.__getitem__, core_schema.literal_schema([*SPLITS]))


CENTRAL: Final = Split("central", "all records in one place")
ROWS: Final = Split("rows", "{} parties, split by rows")  # each has some of the people, with all their columns
COLUMNS: Final = Split(  # each has some of the columns of all people; one has the labels, and the intercept's column
    "columns",
    "{} parties, split by columns: each has some features of the same people",
    same_people=True,
    refusal=" (every record's score would need noise of its own: worse than one party alone)",
)
SPLITS: Final[Mapping[str, Split]] = {split: split for split in (CENTRAL, ROWS, COLUMNS)}


COMPUTING: Final = (
    "nobody breaks X25519 and ML-KEM-768 both, or HKDF-SHA256 or AES-256, now or later with the messages on record (a "
    "large quantum computer breaks X25519 alone)"
)
KEYS: Final[Mapping[bool | None, str]] = {
    None: "vouched for by the authority, or pinned",
    False: "vouched for by the authority",
    True: "pinned",
}
LASTING: Final = "The promise holds as long as the encryption does, also against who records messages today."


# What secure sums may assume, and the key of a policy by which a holder agrees to it.
ASSUMPTIONS: Final = {
    "apart": "dealer",
    "collusion": "colluding",
    "protocol": "secure",
    "keys": "max_epsilon_colluding",
    "order": "unaligned",
    "people": "tell_records",
    "computing": "secure",
}


def made_assumptions(plan: Plan, pinned: bool | None = None) -> dict[str, str]:
    """What a plan of secure sums assumes, in words by the names of `ASSUMPTIONS`; nothing of a plan without them.

    `pinned` says how the parties' keys are known.
    """
    channel = plan.channel
    if not isinstance(channel, SecureSums):
        return {}
    aggregation = channel.aggregation
    with_dealer = "no party, and is run by none"
    if aggregation.colluding_with_dealer:
        with_dealer = f"at most {parties_text(aggregation.colluding_with_dealer)}, those that run it counted"
    coordinated = channel.separate_dealer is None
    ends = " and the coordinator" if coordinated else ", the coordinator and the dealer"
    others = "the others" if coordinated else "the others and of the dealer"
    words = {"apart": f"{channel.dealer} colludes with {with_dealer}"}
    if aggregation.colluding < channel.parties - 1:
        words["collusion"] = f"parties collude with one another in groups of {aggregation.colluding} at most"
    words["protocol"] = f"the parties{ends} follow the protocol"
    words["keys"] = (
        f"each party has the right public keys of {others} ({KEYS[pinned]}), and the parties of the plan are "
        "organisations, not several names of one"
    )
    if channel.products and not aggregation.aligned:
        words["order"] = "every party has the same people in the same order (they were not aligned)"
    if channel.products and plan.most_records is not None:
        words["people"] = (
            "all parties know how many records each person has, which is the same for neighbours; whose a record is, "
            "the party with the labels says truly"
        )
    return {**words, "computing": COMPUTING}


def assumed(plan: Plan, *, pinned: bool | None = None) -> tuple[str, ...]:
    """What a plan of secure sums assumes, first who is apart from whom; nothing of a plan without them."""
    return tuple(made_assumptions(plan, pinned).values())


def broken(plan: Plan, curve: Mapping[str, float]) -> str:
    """What happens where an assumption fails; `curve` has the epsilon of those who collude, by name."""
    channel = plan.channel
    if not isinstance(channel, SecureSums):
        return ""
    if channel.products:
        return (
            f"If {channel.dealer} colludes with a party, or is run by one, it can read that party's and every other "
            "party's columns. A party or dealer that departs from the protocol can read chosen people's rows, in "
            f"silence. {LASTING}"
        )
    others, more = channel.parties - 1, channel.aggregation.colluding_with_dealer + 1
    said, worst = "", curve[channel.coalition_name(others, dealer=True)]
    if more <= others:
        said = (
            f"If {channel.dealer} colludes with {parties_text(more)}, or is run by {'one' if more == 1 else 'them'}, "
        )
        said += f"epsilon is {epsilon_text(curve[channel.coalition_name(more, dealer=True)])}"
        said += f"; with all {others} others {epsilon_text(worst)}. " if more < others else ". "
        said += "A party that adds no noise counts as one that colludes. "
    return (
        f"{said}If the encryption is broken, who recorded the messages has the sums of each party apart, at epsilon "
        f"{epsilon_text(worst)}. {LASTING}"
    )


def epsilon_text(epsilon: float) -> str:
    """An epsilon, or that there is none."""
    return f"{epsilon:.4g}" if math.isfinite(epsilon) else "infinite, nothing is hidden"
