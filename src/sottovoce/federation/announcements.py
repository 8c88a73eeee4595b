"""Who an end of sealed sums is, before there is a plan: it tells a key for the run to whom it knows.

The keys are in the plan, and nobody uses one before every end has signed the plan. By columns whoever deals and has one
party of its own reads every column; whoever is taken for a party reads scores of joint predictions, and tests guesses
in an alignment. So a party takes part only with ends that it knows by itself: those of its own process, and over a wire
those whose keys it has pinned. `known_keys` is the one place where that is checked, and the only one that makes keys to
share a secret with.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from sottovoce.errors import RefusedError
from sottovoce.plan.plan import Plan
from sottovoce.plan.sealing import COORDINATOR, signers
from sottovoce.sealed.pair_keys import CHECKED, PeerKey
from sottovoce.transports.identity import PLAN, Identity


def invitation(members: Sequence[str] = ()) -> str:
    """The text of a message that asks for a key: by columns it names all parties and the helper, who must be known."""
    return json.dumps({"members": members})


def read_invitation(text: str) -> tuple[str, ...]:
    """The members whom an invitation names, or a refusal."""
    try:
        members = tuple(json.loads(text)["members"])
    except (ValueError, TypeError, KeyError, RecursionError):
        members = (None,)
    if not all(type(one) is str for one in members):
        raise RefusedError("a key of sealed sums is asked for with the members of the run.")
    return members


def known_keys(
    own: str,
    told: Mapping[str, str] | Iterable[tuple[str, str]],
    identity: Identity | None,
    *,
    pins: bool = True,
    dealer: str = "",
) -> dict[str, PeerKey]:
    """The keys of the other ends, to share secrets with: the check of who they are, before any mask, pad or box.

    Two names with one key are refused, and with `pins` a name whose key this end does not know by itself. A dealer, who
    has no data, needs no pins, nor does a party by rows whose policy counts all others among those who pool. The
    coordinator, where it is the `dealer`, is known by the wire; a party never has its name.
    """
    keys = dict(told)
    if len(set(keys.values())) < len(keys):
        raise RefusedError(f"two of {', '.join(keys)} have one public key, and each end has its own; start again.")
    if pins:
        if COORDINATOR in keys and dealer != COORDINATOR:
            raise RefusedError(f"a party has the name {COORDINATOR!r}, which is no party's; choose another.")
        check_pinned(own, (name for name in keys if name != COORDINATOR), identity)
    return {name: PeerKey(public, seal=CHECKED) for name, public in keys.items() if name != own}


def check_pinned(party: str, members: Iterable[str], identity: Identity | None) -> None:
    """Refuse an end that this party does not know by itself."""
    known = frozenset() if identity is None else identity.pinned
    for name in members:
        if name != party and name not in known:
            raise RefusedError(
                f"{party} has not pinned the key of {name}, and shares no secret with anybody it has not: who makes up "
                f"a party reads what the others send it. Ask the holder of {name} for its pin, and put it into [peers]."
            )


def check_start(plan: Plan, own: str, identity: Identity | None, text: str) -> None:
    """Refuse to start a plan that not every party, and the helper where there is one, has signed."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        told = None
    for name in signers(plan):
        signature = told.get(name) if type(told) is dict else None
        if identity is None or type(signature) is not str:
            raise RefusedError(f"the plan cannot start at {own}: the signature of {name} on it is missing.")
        identity.verify(name, PLAN, plan.digest, signature)
