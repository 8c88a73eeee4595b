"""What a plan of sealed sums promises against parties that pool, with the dealer or without: a curve.

The epsilon is that of the same releases with the variance that is left to them, as the plan's channel says.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from sottovoce.plan.channel import Pool, SecureSums
from sottovoce.plan.plan import Plan
from sottovoce.privacy.accounting import epsilon_of, gaussian_mu
from sottovoce.privacy.events import Event
from sottovoce.privacy.relation import Relation, inside
from sottovoce.queries.pricing import Form, Pricing, queries_of, sealed_events

Run = tuple[Form, Plan, Pricing]


def pooled_events(run: Run, relation: Relation, pool: Pool, party: str) -> tuple[Event, ...]:
    """What a record of a party pays against a pool; of a plan that seals nothing what it pays against everybody."""
    form, plan, pricing = run
    if not plan.channel.secure:
        return pricing.events(form, plan, relation, party)
    return sealed_events(plan, queries_of(form, plan, party), relation, plan.channel.left_to(pool))


def pooled_epsilon(runs: Sequence[Run], relation: Relation, pool: Pool, delta: float) -> float:
    """The epsilon of plans on the same people against a pool, the worst party's."""
    plan = runs[0][1]
    alike = all(each.channel.secure for _, each, _ in runs)  # all parties answer everything
    names = plan.names[:1] if alike else plan.split.priced(plan)
    every = {tuple(event for run in runs for event in pooled_events(run, relation, pool, name)) for name in names}
    return max(_epsilon(events, inside(delta), relation) for events in every)


def curve(runs: Sequence[Run], relation: Relation) -> dict[str, float]:
    """By name of those who pool, the epsilon of the plans; empty where none of them seals.

    Of plans that sample a few sizes of pools alone: each takes a while to account for.
    """
    channel = next((plan.channel for _, plan, _ in runs if isinstance(plan.channel, SecureSums)), None)
    if channel is None:
        return {}
    plain = all(
        gaussian_mu(pricing.events(form, each, relation, each.names[0]), relation) is not None
        for form, each, pricing in runs
    )
    counts = range(1, channel.parties) if plain else sorted({1, channel.parties // 2, channel.parties - 1})
    return {name: pooled_epsilon(runs, relation, pool, runs[0][1].delta) for name, pool in channel.pools(counts)}


@functools.lru_cache(maxsize=1024)
def _epsilon(events: tuple[Event, ...], delta: float, relation: Relation) -> float:
    return epsilon_of(events, delta, relation)
