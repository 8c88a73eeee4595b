"""How much noise of a sealed sum is left to those who pool.

It is what `Sealing.left` says. By columns a dealer with one party has every column, so nothing is left. A plan is
charged by the least that is left to a pool that it declares. Proof: `sealed/proofs/sealing.md`, "What is charged".
"""

from __future__ import annotations

from typing import NamedTuple

from sottovoce.plan.plan import Plan
from sottovoce.plan.sealing import Sealing


class Pool(NamedTuple):
    """Who pools: so many parties, and whether the dealer is with them."""

    parties: int
    dealer: bool


def declared(sealing: Sealing) -> tuple[Pool, ...]:
    """The largest pools that a plan promises something against; whoever is in one of them is left with no less.

    A coordinator that does not deal has no share of the noise, so it may be with the parties of the second.
    """
    return Pool(sealing.pooling, dealer=True), Pool(sealing.curious, dealer=False)


def least_left(plan: Plan) -> float:
    """The variance left to the worst of the declared pools, the same of every release and under both relations."""
    return 1.0 if plan.sealing is None else min(left_to(plan, pool) for pool in declared(plan.sealing))


def left_to(plan: Plan, pool: Pool) -> float:
    """The variance of a sealed sum that is left to a pool, in that of the plan's release."""
    sealing, parties = plan.sealing, len(plan.parties)
    if sealing is None:
        return 1.0
    if plan.split == "columns" and pool.dealer and pool.parties:
        return 0.0
    gone = min(sealing.absent, parties - 1 - pool.parties)
    return sealing.left(parties, pool.parties, dealer=pool.dealer, gone=gone)
