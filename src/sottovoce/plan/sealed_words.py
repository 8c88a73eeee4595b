"""What the promise of sealed sums rests on, and what happens where that does not hold, in words.

Each assumption has a key of a party's policy: what a holder has not agreed to by that key, no plan may assume.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from sottovoce.plan.plan import Plan
from sottovoce.plan.sealing import COORDINATOR, Sealing

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


class _Of(NamedTuple):
    """What words are made of; `pinned` says how the parties' keys are known."""

    plan: Plan
    sealing: Sealing
    pinned: bool | None = None


class Assumption(NamedTuple):
    """What sealed sums may assume: the key of a policy by which a holder agrees, and words, "" if a plan does not."""

    name: str
    key: str
    words: Callable[[_Of], str]


def _apart(of: _Of) -> str:
    dealer, pooling = dealer_of(of.sealing), of.sealing.pooling
    if pooling:
        return f"{dealer} pools with at most {parties_text(pooling)}, those that run it counted"
    return f"{dealer} pools with no party, and is run by none"


def _collusion(of: _Of) -> str:
    if of.sealing.curious >= len(of.plan.parties) - 1:
        return ""
    return f"parties pool with one another in groups of {of.sealing.curious} at most"


def _protocol(of: _Of) -> str:
    ends = " and the coordinator" if of.sealing.helper is None else ", the coordinator and the helper"
    return f"the parties{ends} follow the protocol"


def _keys(of: _Of) -> str:
    others = "the others" if of.sealing.helper is None else "the others and of the helper"
    return (
        f"each party has the right public keys of {others} ({KEYS[of.pinned]}), and the parties of the plan are "
        "organisations, not several names of one"
    )


def _order(of: _Of) -> str:
    if of.plan.split != "columns" or of.sealing.aligned:
        return ""
    return "every party has the same people in the same order (they were not aligned)"


ASSUMPTIONS: Final = (
    Assumption("apart", "dealer", _apart),
    Assumption("collusion", "curious", _collusion),
    Assumption("protocol", "sealed", _protocol),
    Assumption("keys", "max_epsilon_pooled", _keys),
    Assumption("order", "unaligned", _order),
    Assumption("computing", "sealed", lambda _: COMPUTING),
)


def assumed(plan: Plan, *, pinned: bool | None = None) -> tuple[str, ...]:
    """What a plan of sealed sums assumes, first who is apart from whom; nothing of a plan without them."""
    if plan.sealing is None:
        return ()
    of = _Of(plan, plan.sealing, pinned)
    return tuple(words for each in ASSUMPTIONS if (words := each.words(of)))


def keys_for(plan: Plan) -> frozenset[str]:
    """The keys of a policy by which a holder agrees to what a plan assumes."""
    return frozenset(e.key for e in ASSUMPTIONS if plan.sealing is not None and e.words(_Of(plan, plan.sealing)))


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
