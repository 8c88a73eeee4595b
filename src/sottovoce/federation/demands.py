"""What a plan of sealed sums may assume of others: no more than the holder agreed to, by a key of its policy for each.

Guarantee: a plan that assumes what its holder has not agreed to is refused before anything is charged, and the text
names the key. What is assumed is declared in `plan/sealed_words.py`; each key there has its demand here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from sottovoce.errors import RefusedError
from sottovoce.federation.run_keys import check_pinned
from sottovoce.plan.channel import SecureSums
from sottovoce.plan.plan import Plan
from sottovoce.plan.sealed_words import keys_for
from sottovoce.plan.sealing import COORDINATOR, Sealing

if TYPE_CHECKING:
    from sottovoce.federation.policy import Policy
    from sottovoce.transports.identity import Identity


class Known(NamedTuple):
    """What a party knows by itself: keys of other ends, and whether it has identifiers that were not aligned."""

    identity: Identity | None = None
    unaligned: bool = False


NOTHING: Final = Known()


class Asked(NamedTuple):
    """A plan of sealed sums, as it comes to a party."""

    policy: Policy
    plan: Plan
    channel: SecureSums
    party: str
    known: Known

    @property
    def sealing(self) -> Sealing:
        return self.channel.sealing


def refusal(policy: Policy, plan: Plan, party: str, known: Known) -> str | None:
    """Why a plan that seals its sums assumes more than the holder agreed to, or None."""
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
            f"Policy(dealer={COORDINATOR!r}) or a helper's name"
        )
    return None


def _sealed(asked: Asked) -> str | None:
    if asked.policy.sealed:
        return None
    return (
        "the plan seals its sums, whose promise rests on encryption and on who pools with whom; its holder can allow "
        "that with Policy(sealed=True)"
    )


def _dealer(asked: Asked) -> str | None:
    wanted, dealer = asked.policy.dealer, asked.sealing.dealer
    if wanted and dealer != wanted:
        return (
            f"{asked.channel.dealer} deals in the plan, and here {wanted!r} does alone; its holder can allow it "
            f"with Policy(dealer={dealer!r})"
        )
    if asked.sealing.helper is not None:
        try:
            check_pinned(asked.party, (asked.sealing.helper,), asked.known.identity)
        except RefusedError as error:
            return f"{error}".removesuffix(".")
    return left_out(asked.policy, asked.channel.signers, asked.party, asked.known.identity)


def _curious(asked: Asked) -> str | None:
    others, allowed = asked.channel.parties - 1, asked.policy.curious
    least = others if allowed is None else min(allowed, others)
    if asked.sealing.curious >= least:
        return None
    return (
        f"the plan assumes that parties pool with one another in groups of {asked.sealing.curious} at most, and here "
        f"its noise has to hold against {least} of {others}; its holder can allow it with "
        f"Policy(curious={asked.sealing.curious})"
    )


def _pins(asked: Asked) -> str | None:
    if not asked.policy.needs_pins(asked.plan):
        return None
    try:
        check_pinned(asked.party, asked.channel.signers, asked.known.identity)
    except RefusedError as error:
        rows = " By rows a limit on what all others together may learn does too: Policy(max_epsilon_pooled=...)."
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
    "sealed": _sealed,
    "dealer": _dealer,
    "curious": _curious,
    "max_epsilon_pooled": _pins,
    "unaligned": _aligned,
}
