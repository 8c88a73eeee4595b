"""The coordinator's side of a plan over sealed columns: it passes boxes on, and opens sums."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms import Ask
from sottovoce.door.frames import Frame
from sottovoce.door.query import Query, Told
from sottovoce.door.sealed_gate import noise_of
from sottovoce.federation.boxes import Boxes, Exchange, box_of
from sottovoce.federation.replies import Reply, share
from sottovoce.federation.sealed_columns.dealer import Deals
from sottovoce.federation.sealed_columns.messages import (
    DEALT_WORDS,
    WHITENED,
    Stage,
    asked_after,
    lost,
    pieces_of,
    widths_of,
)
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Problem
from sottovoce.queries.gram import GramMatrix
from sottovoce.queries.joint import JointGradient, JointSum
from sottovoce.sealed.columns import ONE
from sottovoce.sealed.pads import COLUMNS, SCORES, SLOPES, TABLE, Piece, TranscriptHash, column_pieces
from sottovoce.sealed.sums import Call, Opener, label_of

Array = NDArray[np.float64]


class Steps:
    """Which steps of the protocol all parties have gone through, also before this process was started."""

    def __init__(self, known: Iterable[str] = (), note: Callable[[str], None] = lambda _: None) -> None:
        self._known, self._note = set(known), note

    def once(self, *label: Any) -> Iterator[None]:
        """Go through a step, unless that was done."""
        step = json.dumps(label)
        if step not in self._known:
            yield
            self._known.add(step)
            self._note(step)


class ColumnSums:
    """The coordinator's side of one plan over sealed columns: it passes boxes on, and opens sums.

    A coordinator that was stopped goes on at the step that was not finished, which the parties answer as before: what
    left them has left, and a piece of the records is added once.
    """

    def __init__(
        self, plan: Plan, exchange: Exchange, deals: Deals, opener: Opener, steps: Steps | None = None
    ) -> None:
        self._plan, self._exchange, self._deals, self._opener = plan, exchange, deals, opener
        self._steps = steps or Steps()
        self._order = places_of(plan)
        self._gram: Array | None = None
        self._transcript = TranscriptHash()

    def values(self, number: int, ask: Ask, queries: Mapping[str, Query]) -> dict[str, Array]:
        """The opened value of a round; before the first the parties get what they need of one another."""
        for _ in self._steps.once("set-up"):
            self.set_up()
        return {"sum": self.sum(number, ask, queries)}

    def recall(self, number: int, ask: Ask, queries: Mapping[str, Query], values: Mapping[str, Array]) -> None:
        """Take in a round that was answered before this process was started."""
        query = next(iter(queries.values()))
        told = self._told(ask, query)
        self._transcript.after(ask.query, number, told)
        self._deals.recall(number, query, told)
        if isinstance(query, GramMatrix):
            self._gram = query.matrix(values["sum"])

    def set_up(self) -> None:
        """The key of the parties, and their masked columns."""
        names, holder = self._plan.names, self._plan.label_party_name
        boxes = self._say([holder], Stage("group"))[holder].frame.arrays
        group = {
            name: {"group": box_of(holder, boxes, str(place))} for place, name in enumerate(names) if name != holder
        }
        self._pass_on(COLUMNS, "", 0, {}, group)

    def sum(self, number: int, ask: Ask, queries: Mapping[str, Query]) -> Array:
        """The opened value of a round, in the order of the columns of a prepared row."""
        query = next(iter(queries.values()))
        told = self._told(ask, query)
        if isinstance(query, GramMatrix):
            dealt = {name: {DEALT_WORDS: words} for name, words in self._deals.gram(query).items()}
            value = self._opened(number, ask.query, queries, told, dealt)
            gram = self._gram = query.matrix(value)[np.ix_(self._order, self._order)]
            return np.asarray(gram[query.places])
        if not isinstance(query, JointSum):
            dealt = {name: {DEALT_WORDS: words} for name, words in self._deals.own(number, query, told).items()}
            return self._opened(number, ask.query, queries, told, dealt)
        each = self._look_up(number, query, told)
        value = self._opened(number, ask.query, queries, told, each)
        if query.matrix == ONE:
            return value
        return np.asarray(value.reshape(-1, len(self._order))[:, self._order].ravel())

    def _told(self, ask: Ask, query: Query) -> Told:
        """What everybody is told in a round."""
        if not isinstance(query, JointGradient):
            return ask.arrays
        widen = query.widened(self._plan, ask.arrays["weights"], self._gram)
        return {**ask.arrays, "widen": np.array([widen], dtype=np.int64)}

    def _look_up(self, number: int, query: JointSum, told: Told) -> dict[str, dict[str, NDArray[Any]]]:
        """The exchanges before the last: what each party is sent with it."""
        plan, names = self._plan, self._plan.names
        if query.matrix == WHITENED:
            for _ in self._steps.once(WHITENED):
                self._pass_on(WHITENED, query.name, number, told, {})
        *before, last = pieces_of(plan, query, told)
        for piece in before:
            for _ in self._steps.once("gradient", number, *piece):
                each = self._looked_up(number, query, told, piece)
                self._say(names, Stage("gradient", piece), query.name, number, ({}, each))
        return self._looked_up(number, query, told, last)

    def _looked_up(self, number: int, query: JointSum, told: Told, piece: Piece) -> dict[str, dict[str, NDArray[Any]]]:
        """Of one piece of the records."""
        names, dealt = self._plan.names, self._deals.lookup(number, query, told, piece)
        table = {name: {TABLE: words[TABLE]} for name, words in dealt.items()}
        replies = self._say(names, Stage(SCORES, piece, tuple(told)), query.name, number, (told, table))
        each = self._to_others(replies)
        if query.matrix != ONE:
            replies = self._say(names, Stage(SLOPES, piece), query.name, number, ({}, each))
            each = self._to_others(replies)
        for name, words in dealt.items():
            each[name][DEALT_WORDS] = words[DEALT_WORDS]
        return each

    def _opened(
        self,
        number: int,
        name: str,
        queries: Mapping[str, Query],
        told: Told,
        each: Mapping[str, Boxes],
    ) -> Array:
        query = next(iter(queries.values()))
        call = Call(self._plan.names, said=tuple(told))
        said = Frame("ask", 0, self._plan.digest, number, name, told, call.text)
        replies = self._exchange(self._plan.names, said, each)
        _check_remembered(replies)
        shares = {party: share(party, query, replies[party]) for party in call.roster}
        label = label_of(name, number, *asked_after(call, told, self._transcript.after(name, number, told)))
        return self._opener.open(shares, noise_of(query, self._plan, told), label)

    def _pass_on(self, stage: str, query: str, number: int, told: Told, first: Mapping[str, Boxes]) -> None:
        """Every party's masked columns to every other."""
        for piece in column_pieces(self._plan.records, widths_of(self._plan)):
            for _ in self._steps.once(stage, *piece):
                asked = Stage(stage, piece, tuple(told))
                replies = self._say(self._plan.names, asked, query, number, (told, first))
                self._say(self._plan.names, Stage("receive", piece), query, number, ({}, self._to_others(replies)))
            first = {}

    def _to_others(self, replies: Mapping[str, Reply]) -> dict[str, dict[str, NDArray[Any]]]:
        boxes = {name: box_of(name, reply.frame.arrays, "boxed") for name, reply in replies.items()}
        places = {name: str(place) for place, name in enumerate(self._plan.names)}
        return {
            name: {places[other]: words for other, words in boxes.items() if other != name} for name in self._plan.names
        }

    def _say(
        self,
        names: Iterable[str],
        stage: Stage,
        query: str = "",
        number: int = 0,
        said: tuple[Told, Mapping[str, Boxes]] = ({}, {}),
    ) -> dict[str, Reply]:
        told, each = said
        frame = Frame("seal", 0, self._plan.digest, number, query, told, stage.text)
        replies = self._exchange(names, frame, each)
        _check_remembered(replies)
        return replies


def places_of(plan: Problem) -> NDArray[np.int64]:
    """For each column of a prepared row, where it stands among the parties' columns, one party after the other."""
    widths = widths_of(plan)
    found = [plan.part(name).place(local, plan.features) for name in plan.names for local in range(widths[name])]
    return np.argsort(found)


def _check_remembered(replies: Mapping[str, Reply]) -> None:
    """A party that was restarted has neither its keys nor the columns of the others."""
    if forgot := [name for name, reply in replies.items() if reply.frame.kind == "unknown-plan"]:
        raise lost(forgot[0])
