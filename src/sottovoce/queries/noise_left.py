"""How much noise of a sealed sum is left to those who pool.

It is what `Sealing.left` says, divided by K where the parties among them know a part of each record. By columns a
dealer with one party has every column, so nothing is left. A plan is charged by the least that is left to a pool that
it declares. Proof: `sealed/proofs/sealing.md`, "What is charged".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sottovoce.door.query import Query
from sottovoce.plan.plan import Plan
from sottovoce.plan.sealing import Sealing
from sottovoce.privacy.relation import Relation
from sottovoce.queries.joint import known_part


class Pool(NamedTuple):
    """Who pools: so many parties, and whether the dealer is with them."""

    parties: int
    dealer: bool


def declared(sealing: Sealing) -> tuple[Pool, ...]:
    """The largest pools that a plan promises something against; whoever is in one of them is left with no less.

    A coordinator that does not deal has no share of the noise, so it may be with the parties of the second.
    """
    return Pool(sealing.pooling, dealer=True), Pool(sealing.curious, dealer=False)


def least_left(plan: Plan, query: Query, relation: Relation) -> float:
    """The variance left to the worst of the declared pools, where neighbours are by `relation`, whatever the plan's."""
    sealing = plan.sealing
    return 1.0 if sealing is None else min(left_to(plan, query, pool, relation) for pool in declared(sealing))


def left_to(plan: Plan, query: Query, pool: Pool, relation: Relation) -> float:
    """The variance of a sealed sum that is left to a pool, in that of the plan's release."""
    sealing, parties = plan.sealing, len(plan.parties)
    if sealing is None:
        return 1.0
    if plan.split == "columns" and pool.dealer and pool.parties:
        return 0.0
    made_for, own = (1.0, 1.0) if plan.split != "columns" or not pool.parties else _known(plan, query, pool, relation)
    gone = min(sealing.absent, parties - 1 - pool.parties)
    return sealing.left(parties, pool.parties, dealer=pool.dealer, known=made_for, gone=gone) / own


def _known(plan: Plan, query: Query, pool: Pool, relation: Relation) -> tuple[float, float]:
    """The K that the top-up was made for, by the plan's relation, and that of the pool, by the relation asked for.

    Where K is by numbers that are told in the run, those that leave the least: `most` for as many parties as the plan
    has curious, or fewer; with more, 1 + (most - 1) curious / parties is the least that the top-up was made for. Under
    a relation where K is 1 it was made for 1 at least.
    """
    sealing = plan.sealing
    assert sealing is not None, "a sealed plan"  # noqa: S101
    pooled = plan.model_copy(update={"sealing": sealing.changed(curious=pool.parties), "relation": relation})
    more = max(sealing.curious, pool.parties)
    try:
        made_for, own = query.known_part(plan, {}), query.known_part(pooled, {})
    except KeyError:
        own = most_known(pooled)
        made_for = 1.0 + (min(own, most_known(plan)) - 1.0) * sealing.curious / more
    return made_for, own


def most_known(plan: Plan) -> float:
    """The largest K, where it is by numbers that are told in the run."""
    return known_part(plan, np.ones(len(plan.parties) + 1))
