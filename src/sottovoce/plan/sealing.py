"""How the parties of a run open sums: who deals, how many may pool, and what noise each adversary then faces.

In units of sigma^2, the variance that a release is charged for:

    a party's share   a   = 1 / (M - pooling - absent)
    the top-up        tau = max(0, K - max(1, M - curious - absent) a)      by the dealer
    left to one who knows j shares: (M - absent - j) a, and tau unless it knows that too; against parties divided by K

K is 1, but where parties know a part of every record and its gradient: `Query.known_part`. Proof: `sealed/proofs`.
"""

from __future__ import annotations

from typing import Final

from pydantic import Field

from sottovoce.plan.frozen import Frozen

COORDINATOR: Final = "coordinator"
MOST_PARTIES: Final = {"rows": 256, "columns": 16}


class Sealing(Frozen):
    """The public numbers of sealed sums; part of a problem, and so of a plan's digest."""

    dealer: str = COORDINATOR  # who adds the top-up and, by columns, deals; or the name of a helper
    pooling: int = Field(default=0, ge=0)  # parties that may pool with the dealer; by columns none
    curious: int = Field(ge=1)  # parties that may pool without it
    absent: int = Field(default=0, ge=0)  # parties that may leave in the middle
    spare: int = Field(default=0, ge=0, le=64)  # releases more, for rosters without them
    reserve: float = Field(default=0.0, ge=0.0, lt=1.0)  # share of mu^2 that is kept for the spare ones
    ids: bool = False  # by columns: whether lists of identifiers are compared

    def share(self, parties: int) -> float:
        """a: the variance of one party's noise."""
        return 1.0 / (parties - self.pooling - self.absent)

    def top_up(self, parties: int, known: float = 1.0) -> float:
        """tau: the variance that the dealer adds."""
        return max(0.0, known - max(1, parties - self.curious - self.absent) * self.share(parties))

    def variance(self, parties: int, known: float = 1.0) -> float:
        """Of an opened sum with every party in it."""
        return parties * self.share(parties) + self.top_up(parties, known)

    def left(
        self, parties: int, shares: int, *, dealer: bool = False, absent: int = 0, known: float = 1.0, cap: float = 1.0
    ) -> float:
        """The variance that is left to whoever knows so many shares, and what the dealer added if it is the `dealer`.

        0 where no honest party is left. `known` is the K of the sum, `cap` that of the adversary's own neighbours.
        """
        honest = parties - absent - shares
        if honest <= 0:
            return 0.0
        return (honest * self.share(parties) + (0.0 if dealer else self.top_up(parties, known))) / cap
