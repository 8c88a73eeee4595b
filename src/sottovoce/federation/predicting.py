"""The coordinator's side of joint predictions: it adds masked scores up, for itself or for a party to read."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError
from sottovoce.federation import replies as checks
from sottovoce.federation.prediction import COORDINATOR, MASKED, Request, added, scores_of
from sottovoce.federation.replies import Exchange, crossed_offers
from sottovoce.gate.frames import Frame
from sottovoce.plan.plan import Plan

Array = NDArray[np.float64]


def predict_jointly(
    exchange: Exchange, connected: Collection[str], plan: Plan, digest: bytes, recipient: str
) -> Array | None:
    """Joint scores by the model that the parties have of a plan; None if the recipient is one of them.

    No weights are sent. A recipient among the parties gets the sum of the others' answers, unreadable here.
    """
    parties = plan.names
    if recipient not in (COORDINATOR, *parties):
        raise InputError(f"recipient={recipient!r} must be {COORDINATOR!r} or one of {', '.join(parties)}.")
    if set(parties) != set(connected):
        raise InputError(
            f"the model is of the parties {', '.join(parties)} and the federation of "
            f"{', '.join(connected)}; a joint prediction needs the same parties, by their names."
        )
    replies = exchange(parties, Frame("hello", 0, query="predict"), {})
    counts = {name: reply.facts["records"] for name, reply in replies.items()}
    check_people(counts)
    check_aligned({name: reply.facts for name, reply in replies.items()})
    keys, signatures = (
        {name: reply.facts[what] for name, reply in replies.items()} for what in ("public_key", "signature")
    )
    request = Request.new(digest, recipient, keys, signatures)
    said = Frame("predict", 0, digest, query=recipient, text=request.text)
    offers = {name: reply.frame.arrays for name, reply in exchange(parties, said, {}).items()}
    pairs = crossed_offers(sorted(parties), offers)
    others = [name for name in parties if name != recipient]
    people = counts[parties[0]]
    each = [checks.masked(name, reply, people) for name, reply in exchange(others, said, pairs).items()]
    total = functools.reduce(added, each) if each else np.zeros((people, 2), dtype=np.uint64)
    if recipient == COORDINATOR:
        return scores_of(total)
    exchange([recipient], dataclasses.replace(said, arrays={MASKED: total.view(np.int64)}), pairs)
    return None


def check_people(counts: Mapping[str, int]) -> None:
    """By columns all parties have the same people; nobody can tell more than their number."""
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise InputError(
            f"the parties have {sorted(set(counts.values()))} rows ({each}); by columns every party has the same "
            "people in the same order. Align the records first (`sottovoce align` does that without showing the rest)."
        )


def check_aligned(facts: Mapping[str, Mapping[str, Any]]) -> None:
    """By columns all parties serve the records of one alignment, or none does."""
    digests = {name: fact.get("aligned") for name, fact in facts.items()}
    if len(set(digests.values())) > 1:
        each = ", ".join(f"{name} {digest[:12] if digest else 'of none'}" for name, digest in digests.items())
        raise InputError(
            f"the parties serve records of different alignments ({each}): one was aligned anew, or its file of the "
            "alignment was deleted. Align all of them again (`sottovoce align`)."
        )
