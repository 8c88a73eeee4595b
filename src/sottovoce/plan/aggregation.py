"""How the parties of a run open sums: who deals, how many may collude, and what noise each adversary then faces.

In units of sigma^2, the variance that a release is charged for:

    a party's share   a   = 1 / (M - colluding_with_dealer - dropouts)
    the top-up        tau = max(0, 1 - max(1, M - colluding - dropouts) a)      by the dealer
    left to one who knows j shares: (M - dropouts - j) a, and tau unless it knows that too

By columns parties know a part of every record. That changes nothing, since a record that is null at one of them adds
nothing to a looked-up sum. Proof: `secure/proofs`.
"""

from __future__ import annotations

from typing import Final

from pydantic import Field

from sottovoce.errors import RefusedError
from sottovoce.plan.release import Frozen

COORDINATOR: Final = "coordinator"
MOST_PARTIES: Final = {"rows": 256, "columns": 16}


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
