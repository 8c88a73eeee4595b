"""How a coordinator gets the answers of a round: from each party by itself, or as a sum that only all of them open."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms import Ask
from sottovoce.errors import InputError, RefusedError, WireError
from sottovoce.federation import replies as checks
from sottovoce.federation.conversation import Each
from sottovoce.federation.journal import Journal, Stored
from sottovoce.federation.replies import Reply
from sottovoce.federation.secure_columns.coordinator import ColumnSums
from sottovoce.federation.secure_columns.dealer import Deals, LocalDeals, RemoteDeals
from sottovoce.gate.frames import Frame
from sottovoce.gate.query import Query
from sottovoce.gate.secure_gate import noise_of
from sottovoce.plan.aggregation import signers
from sottovoce.plan.plan import Plan
from sottovoce.secure.sums import Call, Opener, label_of

if TYPE_CHECKING:
    from sottovoce.federation.coordinator import Coordinator

Array = NDArray[np.float64]
Queries = Mapping[str, Query]
_LOST = "The run is lost; what was charged stays charged. Start a new fit."


class Answers(Protocol):
    """What a run asks in its rounds, and gets."""

    def values(self, number: int, ask: Ask, queries: Queries) -> dict[str, Array]:
        """The values of a round, by party, or of the "sum" over all of them."""
        ...

    def recall(self, number: int, ask: Ask, queries: Queries) -> None:  # noqa: ARG002
        """Take in a round that an interrupted run has the values of; where each is asked by itself, nothing."""
        return


class PlainAnswers(Answers):
    """Each party's answer by itself, with all of its noise."""

    def __init__(self, coordinator: Coordinator, plan: Plan) -> None:
        self._coordinator, self._plan = coordinator, plan

    def values(self, number: int, ask: Ask, queries: Queries) -> dict[str, Array]:
        message = Frame("ask", 0, self._plan.digest, number, ask.query, ask.arrays)
        replies = self._coordinator.ask(self._plan, message, ask, queries)
        return {
            name: checks.answered(name, self._plan, query, {**ask.arrays, **ask.each.get(name, {})}, replies[name])
            for name, query in queries.items()
        }


class SecureSums(Answers):
    """By rows: a sum over the parties of the roster. After a dropout it is asked again, of fewer, if paid for."""

    def __init__(self, coordinator: Coordinator, opener: Opener, stored: Stored) -> None:
        self._coordinator, self._opener, self._stored = coordinator, opener, stored

    def values(self, number: int, ask: Ask, queries: Queries) -> dict[str, Array]:
        opener, run, left = self._opener, self._coordinator, self._stored.left
        plan, query, attempt = opener.plan, next(iter(queries.values())), 0
        dealer = signers(plan)[len(plan.names) :]  # it adds its noise, as one more of the roster
        if left is not None and (left["round"], left["query"]) == (number, ask.query):
            attempt = left["attempt"]  # it was asked again, of fewer, before the run was interrupted
        call = Call(opener.roster.of((*queries, *dealer)), attempt, tuple(ask.arrays))
        if ask.reminder:
            ask = dataclasses.replace(ask, each=dict.fromkeys(dealer, ask.reminder))  # a dealer keeps no numbers
        replies: dict[str, Reply] = {}
        while not replies:
            message = Frame("ask", 0, plan.digest, number, ask.query, ask.arrays, call.text)
            try:
                replies = run.ask(plan, message, ask, call.roster)
            except WireError as error:
                run.away |= set(error.parties)
                call = opener.roster.without(call, error, number)
                run.left |= opener.roster.left
                gone = {"left": opener.roster.left, "again": opener.roster.again}
                where = {"round": number, "query": ask.query, "attempt": call.attempt}
                run.journal.note("left", plan, gone | where, sync=True)
        shares = {name: checks.share(name, query.length, replies[name]) for name in call.roster}
        label = label_of(ask.query, number, call, {**ask.reminder, **ask.arrays})
        return {"sum": opener.open(shares, noise_of(query, plan), label)}


class NoAnswers(Answers):
    """Of a run with secure sums that is over: its keys are gone, and nothing more is asked."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def values(self, number: int, ask: Ask, queries: Queries) -> dict[str, Array]:  # noqa: ARG002
        raise self._journal.unusable(f"its run is over, and has no answer to {ask.query!r} in round {number}")


def answers_of(coordinator: Coordinator, plan: Plan, stored: Stored) -> Answers:
    """How the answers of a plan are got; of an interrupted run, with those who left it as they were."""
    journal = coordinator.journal
    if not plan.channel.secure:
        return PlainAnswers(coordinator, plan)
    if stored.made and journal.ended:
        return NoAnswers(journal)
    opener = Opener(plan, coordinator.noise(plan))
    if journal.path is not None:
        opener.roster.advice = ""  # it can go on
    if (left := stored.left) is not None:
        opener.roster.restore(left["left"], left["again"])
        coordinator.left |= left["left"]
        coordinator.away |= set(left["left"])
    if plan.split.same_people:
        return _column_sums(coordinator, opener)
    return SecureSums(coordinator, opener, stored)


def _column_sums(coordinator: Coordinator, opener: Opener) -> ColumnSums:
    plan, journal = opener.plan, coordinator.journal

    def exchange(parties: Iterable[str], message: Frame, each: Each) -> dict[str, Reply]:
        coordinator.begun.add(plan.digest)
        try:
            return coordinator.exchange(parties, message, each)
        except WireError as error:
            coordinator.away |= set(error.parties)
            if journal.begun:
                raise
            raise WireError(f"{error} {_LOST}", error.parties) from error

    def reopen(names: Sequence[str]) -> None:
        try:
            coordinator.open(plan, names)
        except RefusedError as error:
            raise RefusedError(f"{error} {_LOST} A job is started again with: sottovoce fit --restart.") from None

    deals: Deals
    if plan.channel.separate_dealer is not None:
        deals = RemoteDeals(plan, plan.channel.separate_dealer, exchange)
    elif (keys := coordinator.dealer_keys(plan)) is not None:
        deals = LocalDeals(plan, keys, coordinator.randomness)
    else:
        raise InputError("the plan names a key for this coordinator that it does not have; make a new plan.")
    return ColumnSums(plan, exchange, deals, opener, reopen)
