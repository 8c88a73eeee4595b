"""Channels: each party sends its answers with noise of its own, or sums over the parties are opened and nothing else.

Secure aggregation: by rows every party adds a share of the noise and masks (`SecureSums`). By columns the parties
multiply what they share, with what a dealer gives them (`SecureProducts`). What the shares of noise are: `sealing.py`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from sottovoce.errors import RefusedError
from sottovoce.plan.sealing import MOST_PARTIES, Sealing

if TYPE_CHECKING:
    from sottovoce.plan.plan import Plan
    from sottovoce.plan.problem import Problem

KEY: Final = re.compile("[0-9a-f]{64}")  # the fingerprint of a public key
OPENED: Final = "What is opened: sums over all parties, with this noise against everybody covered, and more in all"


class Pool(NamedTuple):
    """Who colludes: so many parties, and whether the dealer is with them."""

    parties: int
    dealer: bool


class Channel:
    """What a problem's answers go through: whom it has, and what noise it leaves to those who collude.

    `signers` sign a plan before it starts, `members` have a key of the run, of the `roster` a sum is asked. Variances
    are in that of a release.
    """

    secure: ClassVar[bool] = False
    products: ClassVar[bool] = False  # whether sums over the columns of all parties are opened, and nothing else
    everybody_else: str = "all other parties"  # who may collude against a party
    members: tuple[str, ...] = ()

    def __init__(self, problem: Problem, helper: str | None = None) -> None:
        self.names, self.split, self.parties = problem.names, problem.split, len(problem.parties)
        self.helper = helper  # the dealer, where it is a process of its own
        self.dealer = "the coordinator" if helper is None else f"the helper {helper!r}"
        self.signers = self.names if helper is None else (*self.names, helper)
        self.roster = self.names
        together = self.split.same_people
        self.leaves = "What leaves all parties together, at most" if together else "What leaves each party"
        self.sums_alone = self.secure or not together  # all that the world sees of a sum is the sum
        self.retries, self.reserve = 0, 0.0  # releases that may be asked again, and their share of mu^2
        self.bits: int | None = None  # of the grid of rows, if fewer than fit

    @property
    def sealing(self) -> Sealing:
        """The numbers of secure aggregation; a refusal where there is none."""
        raise RefusedError("the plan seals nothing.")

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
        return self.split.sharers(problem, party)

    def left_to(self, _pool: Pool) -> float:
        """The variance of a sum that is left to those who collude."""
        return 1.0

    def check(self, plan: Plan) -> None:
        """Refuse a plan that leaves some declared adversary less noise than was charged."""
        if plan.keys:
            raise RefusedError("the plan has keys of sealed sums, and seals none.")


class Plain(Channel):
    """Each party sends its own answers, with all of the noise that was charged."""


class SecureSums(Channel):
    """Sums over the parties are opened, under shares of noise and masks."""

    secure: ClassVar[bool] = True

    def __init__(self, problem: Problem, sealing: Sealing) -> None:
        super().__init__(problem, sealing.helper)
        self._sealing = sealing
        self.members = self.roster = self.signers
        self.leaves = OPENED
        self.everybody_else = f"{self.dealer} with all other parties"
        self.retries, self.reserve, self.bits = sealing.spare, sealing.reserve, sealing.bits

    @property
    def sealing(self) -> Sealing:
        return self._sealing

    @property
    def share(self) -> float:
        return self.sealing.share(self.parties)

    @property
    def top_up(self) -> float:
        """The variance that the dealer adds."""
        return self.sealing.top_up(self.parties)

    @property
    def coordinator_adds(self) -> float:
        """The variance that the coordinator adds to a sum as it opens it."""
        return self.top_up if self.helper is None else 0.0

    @property
    def variance(self) -> float:
        return self.sealing.variance(self.parties)

    @property
    def least_variance(self) -> float:
        return self.sealing.left(self.parties, 0, gone=self.sealing.absent)

    def sharers(self, problem: Problem, party: str) -> tuple[str, ...]:  # noqa: ARG002
        return (party,)

    def left_to(self, pool: Pool) -> float:
        gone = min(self.sealing.absent, self.parties - 1 - pool.parties)
        return self.sealing.left(self.parties, pool.parties, dealer=pool.dealer, gone=gone)

    def pools(self, counts: Sequence[int]) -> Iterator[tuple[str, Pool]]:
        """Those who may collude that a report has a figure for, by name."""
        yield "world", Pool(0, False)
        if self.helper is not None:
            yield "coordinator", Pool(0, False)
        yield self.pool_name(0, dealer=True), Pool(0, True)
        for count in (count for count in counts if 0 < count < self.parties):
            yield self.pool_name(count, dealer=True), Pool(count, True)
            yield self.pool_name(count, dealer=False), Pool(count, False)
            if self.helper is not None:  # the coordinator has the sums, as the parties do, and no share of its own
                yield f"coordinator and {self.pool_name(count, dealer=False)[4:]}", Pool(count, False)

    def pool_name(self, parties: int, *, dealer: bool) -> str:
        """How a report calls those who collude: "coordinator and 2 parties", "any 2 parties"."""
        if not dealer:
            return f"any {parties_text(parties)}" if parties else "world"
        who = "coordinator" if self.helper is None else "helper"
        return f"{who} and {parties_text(parties)}" if parties else who

    def check(self, plan: Plan) -> None:
        sealing, parties = self.sealing, self.parties
        if not 2 <= parties <= MOST_PARTIES.get(plan.split, 0):
            raise RefusedError(f"the plan seals sums of {parties} parties; by rows 2 to 256 may, by columns 2 to 16.")
        self._check_dropouts()
        sealing.share(parties)
        if sealing.curious > parties - 1:
            raise RefusedError(
                f"curious={sealing.curious} leave no honest party of {parties}; at most {parties - 1} may."
            )
        if sealing.dealer in plan.names:
            raise RefusedError(f"{sealing.dealer!r} deals and is a party of the plan; the dealer holds no data.")
        if plan.protects != "record" or any(r.mechanism != "gaussian" or r.std == 0.0 for r in plan.releases):
            raise RefusedError("only sums with Gaussian noise, of records, can be sealed.")
        if any(release.dropped or release.batches > 1 for release in plan.releases):
            raise RefusedError("sealed sums have all of their bits, and one batch in a message.")
        self._check_rounds(plan)
        if plan.keys:
            names, keys = zip(*plan.keys, strict=True)
            if names != self.members or len(set(keys)) < len(keys) or any(not KEY.fullmatch(key) for key in keys):
                raise RefusedError(
                    "a plan of sealed sums has the fingerprint of one public key, all different, of each of its "
                    "members."
                )

    def _check_dropouts(self) -> None:
        if self.sealing.spare and not self.sealing.absent:
            raise RefusedError("spare releases are for sums without a party, and the plan has absent=0.")

    def _check_rounds(self, plan: Plan) -> None:
        """Masks are by labels, so a round may have several sums."""


class SecureProducts(SecureSums):
    """The same over columns: the dealer gives the parties what they multiply with, and adds its noise to that."""

    products: ClassVar[bool] = True

    def __init__(self, problem: Problem, sealing: Sealing) -> None:
        super().__init__(problem, sealing)
        self.members, self.roster = (*self.names, sealing.dealer), self.names

    @property
    def coordinator_adds(self) -> float:
        return 0.0  # it is in what the dealer gives

    def left_to(self, pool: Pool) -> float:
        """Nothing to a dealer with one party: they have every column."""
        return 0.0 if pool.dealer and pool.parties else super().left_to(pool)

    def _check_dropouts(self) -> None:
        if self.sealing.pooling or self.sealing.absent or self.sealing.spare:
            raise RefusedError(
                "by columns no party may pool with the dealer, or leave: pooling, absent and spare are 0."
            )

    def _check_rounds(self, plan: Plan) -> None:
        taken = sorted((release.first, release.first + release.count) for release in plan.releases)
        if any(stop > start for (_, stop), (start, _) in itertools.pairwise(taken)):
            raise RefusedError("over sealed columns a round has one sum: pads are by rounds, and are used once.")


def parties_text(count: int) -> str:
    """So many parties."""
    return "1 party" if count == 1 else f"{count} parties"
