"""What the promise of secure sums rests on, and what happens where that does not hold, in words.

Each assumption has a key of a party's policy: what a holder has not agreed to by that key, no plan may assume.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from sottovoce.plan.plan import Plan
from sottovoce.plan.split import SecureSums, parties_text

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
