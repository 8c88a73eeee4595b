"""How a coordinator gets the answers of a round: from each party by itself, or as a sum that only all of them open.

A run that continues after its coordinator was stopped answers from the journal first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms import Ask
from sottovoce.errors import InputError, RefusedError, WireError
from sottovoce.federation.journal import Journal, Stored
from sottovoce.federation.replies import CheckedReply, read_share
from sottovoce.federation.secure_columns.coordinator import ColumnSums
from sottovoce.federation.secure_columns.dealer import Deals, LocalDeals, RemoteDeals
from sottovoce.gate.frames import Frame
from sottovoce.gate.query import Query
from sottovoce.gate.secure_gate import noise_of
from sottovoce.plan.plan import Plan
from sottovoce.secure.sums import Call, Opener, label_of

if TYPE_CHECKING:
    from sottovoce.federation.coordinator import Coordinator

Array = NDArray[np.float64]
Queries = Mapping[str, Query]
Each = Mapping[str, Mapping[str, NDArray[Any]]]  # by party, arrays for it alone
_LOST = "The run is lost; what was charged stays charged. Start a new fit."


class Answers(Protocol):
    """What a run asks in its rounds, and gets."""

    def values(self, number: int, ask: Ask, queries: Queries) -> dict[str, Array]:
        """The values of a round, by party, or of the "sum" over all of them."""

    def recall(self, number: int, ask: Ask, queries: Queries) -> None:  # noqa: ARG002
        """Take in a round that an interrupted run has the values of; where each is asked by itself, nothing."""
        return


@dataclass
class SecureSumAnswers(Answers):
    """By rows: a sum over the parties of the roster. After a dropout it is asked again, of fewer, if paid for."""

    _coordinator: Coordinator
    _opener: Opener
    _stored: Stored

    def values(self, number: int, ask: Ask, queries: Queries) -> dict[str, Array]:
        opener, run, left = self._opener, self._coordinator, self._stored.left
        plan, query, attempt = opener.plan, next(iter(queries.values())), 0
        dealer = plan.channel.signers[len(plan.names) :]  # it adds its noise, as one more of the roster
        if left is not None and (left["round"], left["query"]) == (number, ask.query):
            attempt = left["attempt"]  # it was asked again, of fewer, before the run was interrupted
        call = Call(opener.remaining((*queries, *dealer)), attempt, tuple(ask.arrays))
        if ask.reminder:
            ask = dataclasses.replace(ask, each=dict.fromkeys(dealer, ask.reminder))  # a dealer keeps no numbers
        replies: dict[str, CheckedReply] = {}
        while not replies:
            message = Frame("ask", 0, plan.digest, number, ask.query, ask.arrays, json.dumps(call._asdict()))
            try:
                replies = run.ask(plan, message, ask, call.roster)
            except WireError as error:
                run.away |= set(error.parties)
                call = opener.without(call, error, number)
                run.left |= opener.left
                gone = {"left": opener.left, "again": opener.again}
                where = {"round": number, "query": ask.query, "attempt": call.attempt}
                run.journal.note("left", plan, gone | where, sync=True)
        shares = {name: read_share(name, query.length, replies[name]) for name in call.roster}
        label = label_of(ask.query, number, call, {**ask.reminder, **ask.arrays})
        return {"sum": opener.open(shares, noise_of(query, plan), label)}


@dataclass
class NoAnswers(Answers):
    """Of a run with secure sums that is over: its keys are gone, and nothing more is asked."""

    _journal: Journal

    def values(self, number: int, ask: Ask, queries: Queries) -> dict[str, Array]:  # noqa: ARG002
        raise self._journal.unusable(f"its run is over, and has no answer to {ask.query!r} in round {number}")


def make_sums(coordinator: Coordinator, plan: Plan) -> Answers:
    """How the secure sums of a plan are got; of an interrupted run, with those who left it as they were."""
    journal, randomness = coordinator.journal, coordinator.randomness
    stored = journal.of(plan)
    if stored.made and journal.ended:
        return NoAnswers(journal)
    key = coordinator.run_keys.get(plan.keys)  # by it is the noise that the coordinator adds, if it has one
    opener = Opener(plan, randomness if key is None else key.noise(plan.digest, randomness))
    if journal.path is not None:
        opener.advice = ""  # it can go on
    if (left := stored.left) is not None:
        opener.left, opener.again = dict(left["left"]), left["again"]
        coordinator.left |= left["left"]
        coordinator.away |= set(left["left"])
    if not plan.split.same_people:
        return SecureSumAnswers(coordinator, opener, stored)

    def exchange(parties: Iterable[str], message: Frame, each: Each) -> dict[str, CheckedReply]:
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
        deals = LocalDeals(plan, keys, randomness)
    else:
        raise InputError("the plan names a key for this coordinator that it does not have; make a new plan.")
    return ColumnSums(plan, exchange, deals, opener, reopen)


class Resumed:
    """The answers of a run with a journal: first the stored ones, then new ones, each stored before it is used.

    Before the first new question every party has charged the plan, now or earlier.
    """

    def __init__(self, coordinator: Coordinator, plan: Plan, answers: Answers) -> None:
        self._coordinator, self._plan, self._answers, self._journal = coordinator, plan, answers, coordinator.journal
        self._stored: Stored = self._journal.of(plan)
        self._is_open = False
        self._counts: Mapping[str, Any] | None = None  # with the last stored answer that was used

    def values(self, number: int, ask: Ask, queries: Queries) -> dict[str, Array]:
        if self._stored.rounds:
            entry = self._stored.rounds.popleft()
            if (entry.said["round"], entry.said["query"]) != (number, ask.query):
                raise self._journal.unusable("its answers are to other questions than this version asks")
            self._coordinator.begun.add(self._plan.digest)
            self._counts = entry.said
            self._answers.recall(number, ask, queries)
            return {name: np.array(entry.arrays[str(place)]) for place, name in enumerate(entry.said["names"])}
        if not self._is_open:
            self._open()
        values = self._answers.values(number, ask, queries)
        said = {"round": number, "query": ask.query, "names": list(values), **self._coordinator.counts}
        arrays = {str(place): value for place, value in enumerate(values.values())}
        self._journal.note("round", self._plan, said, arrays, sync=True)
        return values

    def finish(self, shared: Each) -> None:
        """Tell the parties that the run is over, once it is stored that all is answered."""
        run = self._coordinator
        self._restore_counts()
        if (ended := self._stored.ended) is not None:
            run.restore(ended)
            run.missing = dict(ended["missing"])
            self._counts = ended
            self._restore_counts()
            return
        if not self._is_open and self._stored.opened is not None:
            run.restore(self._stored.opened)
        self._journal.note("solved", self._plan, {}, sync=True)
        run.missing = run.end(self._plan, shared)
        self._journal.note("ended", self._plan, {"missing": run.missing, **run.state, **run.counts}, sync=True)

    def _open(self) -> None:
        run, plan, opened = self._coordinator, self._plan, self._stored.opened
        if opened is None:
            run.charge(plan)
            if run.remote:  # in one process all ends are new after an interruption
                if (own := run.dealer_keys(plan)) is not None:
                    self._journal.keep_keys(plan, own.state)
                self._journal.note("opened", plan, run.state, sync=False)
        else:
            run.restore(opened)
            if (own := run.dealer_keys(plan)) is not None:
                own.restore(self._journal.keys_of(plan, "pairs"))
            if len(plan.names) > 1:
                with contextlib.suppress(RefusedError):  # one that refuses says so when it is asked
                    there = [name for name in plan.channel.signers if name not in run.away]
                    run.start(plan, there)  # who accepted it again may not have started
        self._restore_counts()
        self._is_open = True

    def _restore_counts(self) -> None:
        """Count what was sent up to the last stored answer as an unbroken run would, and what followed it once."""
        run, stored = self._coordinator, self._counts
        if stored is not None:
            run.uplink, run.helped = Counter(stored["uplink"]), tuple(stored["helped"])
            run.restart_counts(*stored["bytes"])
            self._counts = None
