"""What a plan costs, derived in one place from its releases and from what its queries declare.

A release under one name costs what the plan charged, times how often one record takes part in it. Who answers, how
often, and what the world sees are the query's own words, and a party serves a round by the same words: what is served
is what is priced. By rows a record is with one party. By columns it is with all of them, so their answers add. A secure
sum costs what it tells the worst coalition that its plan declares, under the relation that is asked for. Against any
other pool it costs what the variance that the plan's channel leaves to it says: a curve.

Which messages a run has, and of what size, follows from what its queries take and who answers them: exact, or at most,
where the data decide what is asked, or whether whole numbers need 8 bytes or 4.
"""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError, RefusedError
from sottovoce.gate.query import Choice, Query, Together
from sottovoce.plan import Plan, Release
from sottovoce.plan.split import Coalition
from sottovoce.privacy.accounting import epsilon_of
from sottovoce.privacy.events import SAMPLER_SHARE, Event, Gaussian, Relation, Unbounded, inside
from sottovoce.privacy.guarantee import Array, Profile, profile_of, strongest, weakest, with_errors
from sottovoce.privacy.mechanisms import selection_error

RECOUNTED = 4096  # rounds up to which a party counts one by one what it would serve


class Form(Protocol):
    """A form of an algorithm, as far as its price and its messages go: the queries that it has parties answer."""

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:
        """What a party may be asked."""


def queries_of(form: Form, plan: Plan, party: str) -> dict[str, Query]:
    """A party's queries by name."""
    queries = tuple(form.queries(plan, party))
    return dict(zip(map(operator.attrgetter("name"), queries), queries, strict=True))


def shared_queries(form: Form, plan: Plan, party: str) -> dict[str, dict[str, Query]]:
    """The queries of all parties whose answers about one record of a party add up."""
    names = plan.channel.sharers(plan, party)
    return dict(zip(names, map(functools.partial(queries_of, form, plan), names), strict=True))


def answers_due(form: Form, plan: Plan, party: str) -> dict[str, int]:
    """How many answers that are charged the party gives in every run of the plan, by query.

    What is asked as needed, and functions of noisy rows, are not counted: a run may do without.
    """
    found: dict[str, int] = {}
    for name, query in queries_of(form, plan, party).items():
        if plan.has(name) and query.most_asked is None and plan.release(name).mechanism not in ("kept", "derived"):
            release = plan.release(name)
            found[name] = query.answered_by.rounds(plan, party, release.first, release.count)
    return found


class Pricing:
    """The price of a plan against each adversary. A published form with a price of its own has a subclass."""

    def events(self, form: Form, plan: Plan, relation: Relation, party: str) -> tuple[Event, ...]:
        """What a record of `party` pays against whoever sees each message, of secure sums whoever may collude.

        That is what the party's ledger is charged.
        """
        queries, found = shared_queries(form, plan, party), list[Event]()
        if plan.channel.secure:
            return secure_events(plan, queries[party], relation)
        for release in plan.releases:
            found += self._events(plan, release, relation, queries)
        return tuple(found)

    def world_events(self, form: Form, plan: Plan, relation: Relation, party: str) -> tuple[Event, ...]:
        """What a record of `party` pays against the world, who sees the model alone.

        By rows a sum over the parties carries every party's noise; a secure one that of those who may not leave. What
        the model does not tell costs nothing here.
        """
        noises = plan.channel.least_variance
        queries, found = shared_queries(form, plan, party), list[Event]()
        for release in plan.releases:
            query = queries[party][release.query]
            if query.world_sees == "nothing" or release.mechanism == "kept":
                continue
            if query.world_sees == "sum" and plan.channel.sums_alone:
                uses = query.uses(release.count)
                found.append(release.event(relation, count=uses, noises=noises))
            else:
                found += self._events(plan, release, relation, queries)
        return (*found, *retry_events(plan, relation, noises=noises))

    def profiles(self, form: Form, plan: Plan, relation: Relation) -> dict[str, Profile]:
        """What each adversary sees costs, at every delta: the worst party's."""
        return joint_profiles([(form, plan, self)], relation)

    def epsilons(self, form: Form, plan: Plan, relation: Relation) -> dict[str, float]:
        """The true epsilon at the plan's delta against each adversary."""
        return epsilons_at(self.profiles(form, plan, relation), plan.delta)

    def check_samplers(self, form: Form, plan: Plan, relation: Relation, delta: float, epsilon: float = 0.0) -> None:
        """Refuse a plan whose samplers' own errors exceed, under this relation, the share of delta set aside.

        They are multiplied by exp(epsilon): the plan's own, or `epsilon` if a larger statement is made of it. The
        samplers of Gaussian noise and of coins are exact; choices are not.
        """
        queries = queries_of(form, plan, plan.names[0])
        for release in plan.releases:
            query = queries.get(release.query)
            if release.mechanism != "selection" or release.std == 0.0 or not isinstance(query, Choice):
                continue
            own = epsilon_of(self.events(form, plan, relation, plan.names[0]), delta, relation)
            error = (1 + math.exp(min(max(own, epsilon), 700.0))) * release.count * selection_error(query.candidates)
            if error > SAMPLER_SHARE * delta / 2:
                raise InputError(
                    f"rounds={release.count}: so many choices among {query.candidates} {query.candidate} leave an "
                    f"error of {error:.1g} in delta={delta:.3g}; take fewer rounds, a larger delta or a smaller "
                    "epsilon."
                )
            if release.std > query.largest_std * query.sensitivity("zero-out"):
                noise = f"choices with a noise of {release.std:.3g} tell nothing"
                raise InputError(f"rounds={release.count}: {noise}; take fewer rounds.")

    def check_served(self, form: Form, plan: Plan, party: str) -> None:
        """Refuse a plan under which the party would serve more answers than it is charged for."""
        for name, query in queries_of(form, plan, party).items():
            if not plan.has(name) or plan.release(name).mechanism in ("kept", "derived"):
                continue
            release = plan.release(name)
            if release.count <= RECOUNTED:
                window = range(release.first, release.first + release.count)
                served = sum(map(functools.partial(query.answered_by, plan, party), window))
                if served > query.answered_by.rounds(plan, party, release.first, release.count):
                    raise RefusedError(f"the plan has {served} answers to {name!r}, more than it charges for.")

    def _events(
        self, plan: Plan, release: Release, relation: Relation, queries: Mapping[str, Mapping[str, Query]]
    ) -> tuple[Event, ...]:
        """What the answers of all parties that share a record cost it; empty if there are none."""
        if release.mechanism == "derived":
            return ()
        if release.mechanism == "kept":
            return (rows_event((each[release.query] for each in queries.values()), release, relation),)
        answering, times = list[Query](), list[int]()
        for name, each in queries.items():
            query = each[release.query]
            if rounds := query.answered_by.rounds(plan, name, release.first, release.count):
                answering.append(query)
                times.append(rounds)
        if not answering:
            return ()
        if answering[0].together and release.mechanism != "gaussian":
            raise RefusedError(
                f"{release.query!r} is charged for all parties at once, which Gaussian noise alone can be."
            )
        if answering[0].together:
            return (together_event(answering, release, relation, max(times) * release.batches),)
        return (release.event(relation, count=answering[0].uses(sum(times))),)


Run = tuple[Form, Plan, Pricing]


def joint_profiles(runs: Sequence[Run], relation: Relation) -> dict[str, Profile]:
    """What each adversary sees of plans that run one after the other on the same people costs: the worst party's.

    What each plan may release is fixed before the first of them starts, so that their events compose as one plan's.
    """
    seen, published = set[tuple[Event, ...]](), set[tuple[Event, ...]]()
    for name in runs[0][1].channel.priced:
        events, world_events = list[Event](), list[Event]()
        for form, plan, pricing in runs:
            events += pricing.events(form, plan, relation, name)
            world_events += pricing.world_events(form, plan, relation, name)
        seen.add(tuple(events))
        published.add(tuple(world_events))
    profile = functools.partial(profile_of, relation=relation)
    each = weakest(map(profile, seen))
    return {"world": strongest(weakest(map(profile, published)), each), "coordinator": each, "parties": each}


def epsilons_at(profiles: Mapping[str, Profile], delta: float) -> dict[str, float]:
    """The epsilon of each adversary's profile at a plan's delta."""
    found = {each: each.epsilon(inside(delta)) for each in set(profiles.values())}
    return {name: found[profile] for name, profile in profiles.items()}


def guaranteed(
    profiles: Mapping[str, Profile], delta: float, false_alarms: Sequence[float]
) -> dict[str, tuple[float, Array]]:
    """By adversary the epsilon at a plan's delta, and the least share of misses of its best test for a record.

    The latter at these rates of false alarms. The samplers' errors are below their share of delta, in total variation:
    `Pricing.check_samplers` sees to it.
    """
    found = dict[Profile, tuple[float, Array]]()
    for each in set(profiles.values()):
        found[each] = each.epsilon(inside(delta)), with_errors(each.missed, false_alarms, SAMPLER_SHARE * delta)
    return dict(zip(profiles, map(found.__getitem__, profiles.values()), strict=True))


def secure_events(plan: Plan, queries: Mapping[str, Query], relation: Relation, left: float = 1.0) -> tuple[Event, ...]:
    """What secure sums, retries too, cost whoever is `left` with so much of the variance of each.

    The worst coalition that a plan declares is left with all that a release is charged for
    (`secure/proofs/aggregation.md`).
    """
    found = list[Event]()
    for release in plan.releases:
        found.append(release.event(relation, count=queries[release.query].uses(release.count), noises=left))
    return (*found, *retry_events(plan, relation, noises=left))


def retry_events(plan: Plan, relation: Relation, *, noises: float) -> tuple[Event, ...]:
    """What the retries of secure sums cost: each as much as the dearest, since it is not known which it will be.

    Where all are Gaussian that is one of them; else each of them is counted. `noises` as of `Release.event`.
    """
    if not plan.channel.retries:
        return ()
    found = [release.event(relation, count=plan.channel.retries, noises=noises) for release in plan.releases]
    gaussian = [event for event in found if isinstance(event, Gaussian)]
    if len(gaussian) == len(found):
        return (max(gaussian, key=lambda event: event.mu),)
    return tuple(found)


def together_event(queries: list[Query], release: Release, relation: Relation, times: int) -> Event:
    """What `times` values of all parties' answers cost, by the queries' own sensitivities, whatever a plan says."""
    if release.std == 0.0:
        return Unbounded(reason=f"{release.query} is released without noise")
    joint = Together(queries)
    moved = joint.sensitivity(relation) + release.step * math.sqrt(joint.rounding_entries)
    return Gaussian(mu=moved * math.sqrt(times) / release.std)


def rows_event(queries: Iterable[Query], release: Release, relation: Relation) -> Event:
    """What the noisy rows of all parties cost together: mu^2 = sum_m (sensitivity_m / std)^2.

    A person is in every party, so the parties' costs add.
    """
    if release.std == 0.0:
        return Unbounded(reason="rows are kept without noise")
    return Gaussian(mu=math.sqrt(math.fsum(query.sensitivity(relation) ** 2 * release.std**-2 for query in queries)))


def coalition_epsilon(runs: Sequence[Run], relation: Relation, coalition: Coalition, delta: float) -> float:
    """The epsilon of plans on the same people against a coalition, the worst party's.

    Without secure sums a record pays what it pays against everybody.
    """
    first, every, alike = runs[0][1], set[tuple[Event, ...]](), True  # the last: all parties answer everything
    for _, plan, _ in runs:
        alike = alike and plan.channel.secure
    for name in first.names[:1] if alike else first.channel.priced:
        events: tuple[Event, ...] = ()
        for form, plan, pricing in runs:
            if plan.channel.secure:
                queries = queries_of(form, plan, name)
                events += secure_events(plan, queries, relation, plan.channel.left_to(coalition))
            else:
                events += pricing.events(form, plan, relation, name)
        every.add(events)
    return max(map(functools.partial(_epsilon, delta=inside(delta), relation=relation), every))


_epsilon = functools.lru_cache(maxsize=1024)(epsilon_of)  # of coalitions that see the same


HEADING: Final = 70  # bytes of a frame beside its arrays, about


@dataclass(frozen=True)
class Messages:
    """`count` messages of one size to one party, and its answers; bytes are about."""

    party: str
    count: int
    told_bytes: int
    answer_bytes: int


def messages_of(plan: Plan, form: Form) -> dict[str, list[Messages]]:
    """By query, the messages of a private run, those of a size together."""
    messages: dict[str, list[Messages]] = {}
    for party in plan.names:
        queries = queries_of(form, plan, party)
        for release in plan.releases:
            if release.mechanism == "kept":
                continue
            query = queries[release.query]
            numbers = 1 if isinstance(query, Choice) else release.batches * query.length
            if plan.channel.secure:
                answer_bytes = _frame_bytes([np.full(numbers, 2**62)])  # under masks: words of 8 bytes
            elif release.mechanism == "derived":
                answer_bytes = _frame_bytes([np.zeros(numbers)])
            else:
                largest = 0 if isinstance(query, Choice) else min(release.reach(plan.records), 2.0**62)
                answer_bytes = _frame_bytes([np.full(numbers, int(largest))])
            times = query.most_asked
            if times is None:
                times = query.answered_by.rounds(plan, party, release.first, release.count)
            for number, count in _sizes(plan, release, query, party, times):
                told = map(operator.methodcaller("example"), query.takes_at(number).values())
                found = Messages(party, count, _frame_bytes(told), answer_bytes)
                messages.setdefault(release.query, []).append(found)
    return messages


def rounds_of(plan: Plan, form: Form) -> int:
    """How often the coordinator asks in a private run: all parties at once, or one where one is named."""
    total, queries = 0, queries_of(form, plan, plan.names[0])
    for name, several in messages_of(plan, form).items():
        by_party = Counter[str]()
        for messages in several:
            by_party[messages.party] += messages.count
        alone = queries[name].one_by_one or queries[name].answered_by.one_a_round
        total += sum(by_party.values()) if alone else max(by_party.values(), default=0)
    return total


def count_answers(plan: Plan, form: Form) -> Counter[str]:
    """How many answers of each kind all parties together give, at most."""
    return Counter({name: sum(each.count for each in several) for name, several in messages_of(plan, form).items()})


def _frame_bytes(arrays: Iterable[NDArray[Any]]) -> int:
    """Bytes of a frame with these arrays: whole numbers take 4 where all of them fit."""
    total = HEADING
    for array in arrays:
        short = array.dtype == np.int64 and bool((array < 2**31).all())
        total += 18 + (array.nbytes >> short)
    return total


def _sizes(plan: Plan, release: Release, query: Query, party: str, times: int) -> Iterator[tuple[int, int]]:
    """(a round, how many messages are as large as its). From the second round on most queries take the same."""
    first, last = release.first, release.first + release.count - 1
    if times == 0:
        return
    second = min(first + 1, last)
    if query.takes_at(second) == query.takes_at(last):
        served = query.answered_by(plan, party, first)
        yield from ((first, int(served)), (second, times - served)) if times > served else ((first, times),)
        return
    answered = [number for number in range(first, last + 1) if query.answered_by(plan, party, number)][:times]
    taken = [query.takes_at(number) for number in answered]
    sizes = [sum(math.prod(wanted.largest) for wanted in each.values()) for each in taken]
    even = all(size + other == sizes[0] + sizes[-1] for size, other in zip(sizes, reversed(sizes), strict=True))
    if even and len({tuple(each) for each in taken}) == 1:
        # Two messages from the two ends are as long as any other two, or, of numbers of 4 bytes, as any second two.
        pairs, left = divmod(len(answered), 2)
        for k, times in ((0, -(-pairs // 2)), (1, pairs // 2)):
            yield from ((answered[k], times), (answered[-1 - k], times)) if times else ()
        yield answered[pairs], left
        return
    alike: dict[Any, list[int]] = {}
    for number, each in zip(answered, taken, strict=True):
        alike.setdefault(tuple(each.items()), []).append(number)
    for several in alike.values():
        yield several[0], len(several)
