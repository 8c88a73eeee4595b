"""What a plan of sealed sums promises against parties that pool, with the dealer or without: a curve.

The epsilon is that of the same releases with the variance that is left to them, as `Sealing.left` says. By columns a
dealer with one party has every column, so nothing is left.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sottovoce.plan.plan import Plan
from sottovoce.plan.sealed_words import pool_name
from sottovoce.plan.sealing import COORDINATOR, Sealing
from sottovoce.privacy.accounting import epsilon_of, gaussian_mu
from sottovoce.privacy.events import Event
from sottovoce.privacy.relation import Relation, inside
from sottovoce.queries.pricing import Form, Pricing, queries_of, sealed_events

Run = tuple[Form, Plan, Pricing]


class Pool(NamedTuple):
    """Who pools: so many parties, and whether the dealer is with them."""

    parties: int
    dealer: bool


def left_to(plan: Plan, pool: Pool) -> float:
    """The variance of a sealed sum that is left to a pool, in that of the plan's release."""
    sealing, parties = plan.sealing, len(plan.parties)
    if sealing is None:
        return 1.0
    if plan.split == "columns" and pool.dealer and pool.parties:
        return 0.0
    gone = min(sealing.absent, parties - 1 - pool.parties)
    return sealing.left(parties, pool.parties, dealer=pool.dealer, gone=gone)


def pools(sealing: Sealing, parties: int, counts: Sequence[int]) -> Iterator[tuple[str, Pool]]:
    """Each that a report has a figure for, by name."""
    yield "world", Pool(0, False)
    helped = sealing.dealer != COORDINATOR
    if helped:
        yield "coordinator", Pool(0, False)
    yield pool_name(sealing, 0, dealer=True), Pool(0, True)
    for count in (count for count in counts if 0 < count < parties):
        yield pool_name(sealing, count, dealer=True), Pool(count, True)
        yield pool_name(sealing, count, dealer=False), Pool(count, False)
        if helped:  # the coordinator has the sums, as the parties do, and no share of its own
            yield f"coordinator and {pool_name(sealing, count, dealer=False)[4:]}", Pool(count, False)


def pooled_events(run: Run, relation: Relation, pool: Pool, party: str) -> tuple[Event, ...]:
    """What a record of a party pays against a pool; of a plan that seals nothing what it pays against everybody."""
    form, plan, pricing = run
    if plan.sealing is None:
        return pricing.events(form, plan, relation, party)
    return sealed_events(plan, queries_of(form, plan, party), relation, left_to(plan, pool))


def pooled_epsilon(runs: Sequence[Run], relation: Relation, pool: Pool, delta: float) -> float:
    """The epsilon of plans on the same people against a pool, the worst party's."""
    plan = runs[0][1]
    alike = plan.split == "columns" or all(each.sealing is not None for _, each, _ in runs)  # all answer everything
    names = plan.names[:1] if alike else plan.names
    every = {tuple(event for run in runs for event in pooled_events(run, relation, pool, name)) for name in names}
    return max(_epsilon(events, inside(delta), relation) for events in every)


def curve(runs: Sequence[Run], relation: Relation) -> dict[str, float]:
    """By name of those who pool, the epsilon of the plans; empty where none of them seals.

    Of plans that sample a few sizes of pools alone: each takes a while to account for.
    """
    plan = next((plan for _, plan, _ in runs if plan.sealing is not None), None)
    if plan is None or plan.sealing is None:
        return {}
    parties = len(plan.parties)
    plain = all(
        gaussian_mu(pricing.events(form, each, relation, each.names[0]), relation) is not None
        for form, each, pricing in runs
    )
    counts = range(1, parties) if plain else sorted({1, parties // 2, parties - 1})
    return {
        name: pooled_epsilon(runs, relation, pool, runs[0][1].delta)
        for name, pool in pools(plan.sealing, parties, counts)
    }


@functools.lru_cache(maxsize=1024)
def _epsilon(events: tuple[Event, ...], delta: float, relation: Relation) -> float:
    return epsilon_of(events, delta, relation)
