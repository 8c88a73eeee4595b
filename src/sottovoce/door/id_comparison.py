"""Whether parties with columns have the same people in the same order: they compare keyed digests of their lists.

    party i to party j:   HMAC-SHA256(k_ij, list), in a box under k_ij

The list is that of the identifiers, in the order of the records; of parties that were aligned it is the digest that
all of them got then (`door/intersection.py`).
k_ij is the key of the pair, which nobody else has: who passes the boxes on learns that lists agree or do not, and can
test no guess of what is in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from sottovoce.door.outgoing import SEAL, Masked
from sottovoce.errors import RefusedError
from sottovoce.plan.plan import Plan
from sottovoce.sealed.sums import ColumnSealer


class IdComparison:
    """A party's side of the comparison for one plan: once. A list that differed is not compared with another.

    Guarantee: no digest leaves, and none is compared, before the keys of all others are known to be theirs. Else
    whoever chose the keys could try guesses.
    """

    def __init__(self, plan: Plan, sealer: ColumnSealer, ids: bytes) -> None:
        self.plan, self._sealer, self._ids = plan, sealer, ids
        self.agreed = False  # whether all other parties have the same list
        self.known = False  # whether the keys of the others were found to be theirs
        self._differs = ""  # from whom, once that was found

    def digests(self) -> Masked:
        """The digests for the other parties."""
        self._check_known()
        return Masked("ids", self._sealer.digest_boxes(self._ids), seal=SEAL)

    def compare(self, sent: Mapping[str, NDArray[Any]]) -> None:
        """Refuse where another party has another list."""
        self._check_known()
        own = self._sealer.name
        for place, name in enumerate(self.plan.names):
            if name == own:
                continue
            if str(place) not in sent:
                raise RefusedError(f"the digest of the identifiers of {name} is missing.")
            if self._differs or not self._sealer.same_digest(name, sent[str(place)], self._ids):
                self._differs = self._differs or name
                raise RefusedError(
                    f"the records of {own} and {self._differs} are not aligned: their identifiers differ, or their "
                    "order does. Align them first (`sottovoce align`); nothing was charged."
                )
        self.agreed = True

    def _check_known(self) -> None:
        if not self.known:
            raise RefusedError("identifiers are compared with parties whose signed keys were seen, and with no other.")
