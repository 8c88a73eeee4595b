"""What a plan of secure sums may assume of others: no more than the holder agreed to, by a key of its policy for each.

Guarantee: a plan that assumes what its holder has not agreed to is refused before anything is charged, and the text
names the key. What is assumed is declared in `plan/secure_text.py`; each key there has its demand here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from sottovoce.errors import RefusedError
from sottovoce.federation.run_keys import check_pinned
from sottovoce.plan.aggregation import COORDINATOR, SecureAggregation
from sottovoce.plan.channel import SecureSums
from sottovoce.plan.plan import Plan
from sottovoce.plan.secure_text import keys_for

if TYPE_CHECKING:
    from sottovoce.federation.policy import Policy
    from sottovoce.transports.identity import Identity


class Known(NamedTuple):
    """What a party knows by itself: keys of other ends, and whether it has identifiers that were not aligned."""

    identity: Identity | None = None
    unaligned: bool = False


NOTHING: Final = Known()


class Asked(NamedTuple):
    """A plan of secure sums, as it comes to a party."""

    policy: Policy
    plan: Plan
    channel: SecureSums
    party: str
    known: Known

    @property
    def aggregation(self) -> SecureAggregation:
        return self.channel.aggregation


def refusal(policy: Policy, plan: Plan, party: str, known: Known) -> str | None:
    """Why a plan that secures its sums assumes more than the holder agreed to, or None."""
    if not isinstance(plan.channel, SecureSums):
        return None
    asked, made = Asked(policy, plan, plan.channel, party, known), keys_for(plan)
    return next((reason for key, demand in DEMANDS.items() if key in made and (reason := demand(asked))), None)


def left_out(policy: Policy, members: Iterable[str], party: str, identity: Identity | None) -> str | None:
    """Why a run without some end is refused, or None: one that has to deal, or that is pinned and may have to."""
    pinned = frozenset[str]() if identity is None else identity.pinned
    wanted = pinned if not policy.dealer else {policy.dealer} - {COORDINATOR}
    if missing := sorted(wanted - {*members, party}):
        why = "has to deal here, by policy.dealer" if policy.dealer else "is pinned, so that it may have to deal"
        return (
            f"{missing[0]} {why}, and is left out; if another is to deal, the holder of {party} names it, with "
            f"Policy(dealer={COORDINATOR!r}) or a dealer's name"
        )
    return None


def _secure(asked: Asked) -> str | None:
    if asked.policy.secure:
        return None
    return (
        "the plan secures its sums, whose promise rests on encryption and on who colludes with whom; its holder can "
        "allow that with Policy(secure=True)"
    )


def _dealer(asked: Asked) -> str | None:
    wanted, dealer = asked.policy.dealer, asked.aggregation.dealer
    if wanted and dealer != wanted:
        return (
            f"{asked.channel.dealer} deals in the plan, and here {wanted!r} does alone; its holder can allow it "
            f"with Policy(dealer={dealer!r})"
        )
    if asked.aggregation.separate_dealer is not None:
        try:
            check_pinned(asked.party, (asked.aggregation.separate_dealer,), asked.known.identity)
        except RefusedError as error:
            return f"{error}".removesuffix(".")
    return left_out(asked.policy, asked.channel.signers, asked.party, asked.known.identity)


def _colluding(asked: Asked) -> str | None:
    others, allowed = asked.channel.parties - 1, asked.policy.colluding
    least = others if allowed is None else min(allowed, others)
    if asked.aggregation.colluding >= least:
        return None
    return (
        f"the plan assumes that parties collude with one another in groups of {asked.aggregation.colluding} at most, "
        f"and here its noise has to hold against {least} of {others}; its holder can allow it with "
        f"Policy(colluding={asked.aggregation.colluding})"
    )


def _pins(asked: Asked) -> str | None:
    if not asked.policy.needs_pins(asked.plan):
        return None
    try:
        check_pinned(asked.party, asked.channel.signers, asked.known.identity)
    except RefusedError as error:
        rows = " By rows a limit on what all others together may learn does too: Policy(max_epsilon_colluding=...)."
        return f"{error}{'' if asked.channel.products else rows}".removesuffix(".")
    return None


def _aligned(asked: Asked) -> str | None:
    if asked.policy.unaligned or not asked.known.unaligned:
        return None
    return (
        f"{asked.party} has identifiers, and they were not aligned with those of the other parties: nothing shows "
        "whether the records belong together. Align them first, each with `id` (`sottovoce align`); its holder can "
        "allow it without, with Policy(unaligned=True). Nothing was charged"
    )


DEMANDS: Final[Mapping[str, Callable[[Asked], str | None]]] = {
    "secure": _secure,
    "dealer": _dealer,
    "colluding": _colluding,
    "max_epsilon_colluding": _pins,
    "unaligned": _aligned,
}
