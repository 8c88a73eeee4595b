"""What the promise of sealed sums rests on, and what happens where that does not hold, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from sottovoce.plan.plan import Plan
from sottovoce.plan.sealing import COORDINATOR, Sealing

COMPUTING: Final = (
    "nobody breaks X25519, HKDF-SHA256 or AES-256, now or later with the messages on record (X25519 does not withstand "
    "a large quantum computer)"
)
KEYS: Final[Mapping[bool | None, str]] = {
    None: "vouched for by the authority, or pinned",
    False: "vouched for by the authority",
    True: "pinned",
}
LASTING: Final = "The promise holds as long as the encryption does, also against who records messages today."


def assumed(plan: Plan, *, pinned: bool | None = None) -> tuple[str, ...]:
    """What a plan of sealed sums assumes, first who is apart from whom; nothing of a plan without them."""
    sealing = plan.sealing
    if sealing is None:
        return ()
    most, dealer = sealing.pooling, dealer_of(sealing)
    apart = f"{dealer} pools with no party, and is run by none"
    if most:
        apart = f"{dealer} pools with at most {parties_text(most)}, those that run it counted"
    if sealing.curious < len(plan.parties) - 1:
        apart += f", and at most {parties_text(sealing.curious)} with one another"
    helped = sealing.dealer != COORDINATOR
    return (
        apart,
        f"the parties{', the coordinator and the helper' if helped else ' and the coordinator'} follow the protocol",
        f"each party has the right public keys of the others{' and of the helper' if helped else ''} ({KEYS[pinned]}), "
        "and the parties of the plan are organisations, not several names of one",
        COMPUTING,
    )


def broken(plan: Plan, curve: Mapping[str, float]) -> str:
    """What happens where an assumption fails; `curve` has the epsilon of those who pool, by name."""
    sealing = plan.sealing
    if sealing is None:
        return ""
    dealer = dealer_of(sealing)
    if plan.split == "columns":
        return (
            f"If {dealer} pools with a party, or is run by one, it can read that party's and every other party's "
            "columns. A party or dealer that departs from the protocol can read chosen people's rows, in silence. "
            f"{LASTING}"
        )
    others, more = len(plan.parties) - 1, sealing.pooling + 1
    said, worst = "", curve[pool_name(sealing, others, dealer=True)]
    if more <= others:
        said = f"If {dealer} pools with {parties_text(more)}, or is run by {'one' if more == 1 else 'them'}, "
        said += f"epsilon is {epsilon_text(curve[pool_name(sealing, more, dealer=True)])}"
        said += f"; with all {others} others {epsilon_text(worst)}. " if more < others else ". "
        said += "A party that adds no noise counts as one that pools. "
    return (
        f"{said}If the encryption is broken, who recorded the messages has the sums of each party apart, at epsilon "
        f"{epsilon_text(worst)}. {LASTING}"
    )


def pool_name(sealing: Sealing, parties: int, *, dealer: bool) -> str:
    """How a report calls those who pool: "coordinator and 2 parties", "any 2 parties"."""
    if not dealer:
        return f"any {parties_text(parties)}" if parties else "world"
    who = "coordinator" if sealing.dealer == COORDINATOR else "helper"
    return f"{who} and {parties_text(parties)}" if parties else who


def dealer_of(sealing: Sealing) -> str:
    """Who tops up and deals."""
    return "the coordinator" if sealing.dealer == COORDINATOR else f"the helper {sealing.dealer!r}"


def parties_text(count: int) -> str:
    """So many parties."""
    return "1 party" if count == 1 else f"{count} parties"


def epsilon_text(epsilon: float) -> str:
    """An epsilon, or that there is none."""
    return f"{epsilon:.4g}" if math.isfinite(epsilon) else "infinite, nothing is hidden"
