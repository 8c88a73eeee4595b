"""What the promise of secure sums rests on, and what happens where that does not hold, in words.

Each assumption has a key of a party's policy: what a holder has not agreed to by that key, no plan may assume.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

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


class Assumption(NamedTuple):
    """What secure sums may assume: the key of a policy by which a holder agrees, and words, "" if a plan does not.

    The words are made of a channel and of how the parties' keys are known.
    """

    name: str
    key: str
    words: Callable[[SecureSums, bool | None], str]


def _apart(channel: SecureSums, _: bool | None) -> str:
    if colluding_with_dealer := channel.aggregation.colluding_with_dealer:
        return (
            f"{channel.dealer} colludes with at most {parties_text(colluding_with_dealer)}, those that run it counted"
        )
    return f"{channel.dealer} colludes with no party, and is run by none"


def _collusion(channel: SecureSums, _: bool | None) -> str:
    if channel.aggregation.colluding >= channel.parties - 1:
        return ""
    return f"parties collude with one another in groups of {channel.aggregation.colluding} at most"


def _protocol(channel: SecureSums, _: bool | None) -> str:
    ends = " and the coordinator" if channel.separate_dealer is None else ", the coordinator and the dealer"
    return f"the parties{ends} follow the protocol"


def _keys(channel: SecureSums, pinned: bool | None) -> str:
    others = "the others" if channel.separate_dealer is None else "the others and of the dealer"
    return (
        f"each party has the right public keys of {others} ({KEYS[pinned]}), and the parties of the plan are "
        "organisations, not several names of one"
    )


def _order(channel: SecureSums, _: bool | None) -> str:
    if not channel.products or channel.aggregation.aligned:
        return ""
    return "every party has the same people in the same order (they were not aligned)"


ASSUMPTIONS: Final = (
    Assumption("apart", "dealer", _apart),
    Assumption("collusion", "colluding", _collusion),
    Assumption("protocol", "secure", _protocol),
    Assumption("keys", "max_epsilon_colluding", _keys),
    Assumption("order", "unaligned", _order),
    Assumption("computing", "secure", lambda _, __: COMPUTING),
)


def _made(plan: Plan, pinned: bool | None = None) -> list[tuple[str, str]]:
    """(key, words) of each assumption of a plan."""
    channel = plan.channel
    if not isinstance(channel, SecureSums):
        return []
    return [(each.key, words) for each in ASSUMPTIONS if (words := each.words(channel, pinned))]


def assumed(plan: Plan, *, pinned: bool | None = None) -> tuple[str, ...]:
    """What a plan of secure sums assumes, first who is apart from whom; nothing of a plan without them."""
    return tuple(words for _, words in _made(plan, pinned))


def keys_for(plan: Plan) -> frozenset[str]:
    """The keys of a policy by which a holder agrees to what a plan assumes."""
    return frozenset(key for key, _ in _made(plan))


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
