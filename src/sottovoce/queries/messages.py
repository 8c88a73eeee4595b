"""Which messages a run has, and of what size: from what its queries take and who answers them.

Exact, or at most: where the data decide what is asked, or whether whole numbers need 8 bytes or 4.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.gate.query import Choice, Query
from sottovoce.plan import Plan, Release
from sottovoce.queries.pricing import Form, queries_of

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
