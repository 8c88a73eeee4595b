"""The coordinator's side of a plan over secure columns: it passes envelopes on, and opens sums."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms import Ask
from sottovoce.federation.replies import CheckedReply, Envelopes, Exchange, envelope_of, read_share
from sottovoce.federation.secure_columns.dealer import Deals
from sottovoce.federation.secure_columns.messages import (
    DEALT,
    ENVELOPE,
    FACTOR,
    GRAM,
    LOOK_UP,
    NULL,
    OWN,
    TOTAL,
    ProgramPiece,
    RestartedError,
    Stage,
    adder_of,
    asked_after,
    cut_records,
    order_columns,
    widths_of,
)
from sottovoce.gate.frames import Frame
from sottovoce.gate.query import MessageArrays, Query
from sottovoce.gate.secure_gate import noise_of
from sottovoce.plan.plan import Plan
from sottovoce.queries.joint import JointSum
from sottovoce.queries.sums import GramMatrix
from sottovoce.secure.streams import TranscriptHash, column_pieces
from sottovoce.secure.sums import Call, Opener, label_of

Array = NDArray[np.float64]
Each = dict[str, dict[str, NDArray[Any]]]
Reopen = Callable[[Sequence[str]], None]

MOST_RESTARTS: Final = 16  # in one round
_SET_UP: Final = ProgramPiece("")


@dataclass(eq=False)
class ColumnSums:
    """The coordinator's side of one plan over secure columns: it passes envelopes on, and opens sums.

    After a restart, of its own process or of another end, it goes through the set-up again with all ends, tells each
    what finished rounds were told, and asks for the round at hand from its first message on: everybody says the same as
    before. `reopen` has the plan opened at ends that do not know it any more.
    """

    _plan: Plan
    _exchange: Exchange
    _deals: Deals
    _opener: Opener
    _reopen: Reopen | None = None
    _transcript: TranscriptHash = field(default_factory=TranscriptHash, init=False)
    _rounds: list[ProgramPiece] = field(default_factory=list, init=False)  # that are over
    _ready: bool = field(default=False, init=False)  # whether all ends have gone through the set-up since a restart
    _factored: set[str] = field(default_factory=set, init=False)  # queries whose factors the parties have since then

    def values(self, number: int, ask: Ask, queries: Mapping[str, Query]) -> dict[str, Array]:
        """The opened value of a round; before the first the parties get what they need of one another."""
        for left in reversed(range(MOST_RESTARTS)):
            try:
                if not self._ready:
                    self.set_up()
                return {"sum": self.sum(number, ask, queries)}
            except RestartedError as error:
                self._ready = False
                if not left or self._reopen is None:
                    raise
                self._reopen(error.parties)
        raise AssertionError

    def recall(self, number: int, ask: Ask, queries: Mapping[str, Query]) -> None:
        """Take in a round that was answered before this process was started."""
        query = next(iter(queries.values()))
        self._transcript.after(query.name, number, ask.arrays)
        self._rounds.append(ProgramPiece("", number, query, ask.arrays))

    def set_up(self) -> None:
        """The key of the parties, their masked columns, which records are null, and what was told so far."""
        names, holder = self._plan.names, self._plan.label_party_name
        envelopes = self._say([holder], Stage("group"))[holder].frame.arrays
        first: Each = {}
        for place, name in enumerate(names):
            if name != holder:
                first[name] = {"group": envelope_of(holder, envelopes, str(place))}
        for piece in column_pieces(self._plan.records, widths_of(self._plan)):
            replies = self._say(names, Stage("columns", piece), each=first)
            self._say(names, Stage("receive", piece), each=self._to_others(replies))
            first = {}
        self._play(ProgramPiece(NULL))
        for work in self._rounds:
            self._say(names, Stage("recall", said=tuple(work.told)), work, told=work.told)
            self._deals.recall(work)
        self._ready = True
        self._factored.clear()

    def sum(self, number: int, ask: Ask, queries: Mapping[str, Query]) -> Array:
        """The opened value of a round, in the order of the columns of a prepared row."""
        query, told = next(iter(queries.values())), ask.arrays
        if isinstance(query, JointSum):
            if query.factored and query.name not in self._factored:
                first = told  # in the first round of the query
                for work in reversed(self._rounds):
                    first = work.told if work.name == query.name else first
                self._play(ProgramPiece(FACTOR, self._plan.release(query.name).first, query, first))
                self._factored.add(query.name)
            each = self._play(ProgramPiece(query.program, number, query, told), ended=False)
        else:
            program = GRAM if isinstance(query, GramMatrix) else OWN
            receiver, envelope = self._deals.deal(ProgramPiece(program, number, query, told))
            each = {receiver: {DEALT: envelope}}
        call = Call(self._plan.names, said=tuple(told))
        frame = Frame("ask", 0, self._plan.digest, number, query.name, told, json.dumps(call._asdict()))
        replies, shares = self._send(self._plan.names, frame, each), dict[str, NDArray[np.int64]]()
        for party in call.roster:
            shares[party] = read_share(party, query.length + 1, replies[party])
        label = label_of(query.name, number, *asked_after(call, told, self._transcript.after(query.name, number, told)))
        value = self._opener.open(shares, noise_of(query, self._plan), label)
        self._rounds.append(ProgramPiece("", number, query, told))
        order = order_columns(self._plan)
        if isinstance(query, GramMatrix):
            return np.asarray(query.matrix(value)[np.ix_(order, order)][query.places])
        if isinstance(query, JointSum) and query.program == LOOK_UP and query.lookup(told).matrix == "rows":
            return np.asarray(value.reshape(-1, len(order))[:, order].ravel())
        return value

    def _play(self, program: ProgramPiece, *, ended: bool = True) -> Each:
        """A program over all pieces; what each party is sent at the end of the last one, unless that is `ended`."""
        names, pieces = self._plan.names, cut_records(self._plan)
        each: Each = {}
        for piece in pieces:
            work = replace(program, piece=piece)
            receiver, envelope = self._deals.deal(work)
            each, count = {receiver: {DEALT: envelope}}, work.messages(self._plan)
            for message in range(count):
                told: MessageArrays = {} if message else work.told
                stage = Stage("say", piece, tuple(told), work.program, message)
                each = self._to_others(self._say(names, stage, work, each, told))
                adder = adder_of(names, work.number, message)
                if adder is not None:  # the others get its sum in the place of all envelopes
                    reply = self._say([adder], stage._replace(name="add", said=()), work, each)[adder]
                    total = envelope_of(adder, reply.frame.arrays, ENVELOPE)
                    each = {name: {TOTAL: total} for name in names if name != adder}
            if ended or piece != pieces[-1]:
                self._say(names, Stage("end", piece, (), work.program, count - 1), work, each)
        return each

    def _to_others(self, replies: Mapping[str, CheckedReply]) -> Each:
        """The envelope of each party, by its place, for all others."""
        names, envelopes, each = self._plan.names, dict[str, NDArray[Any]](), Each()
        for name, reply in replies.items():
            envelopes[str(names.index(name))] = envelope_of(name, reply.frame.arrays, ENVELOPE)
        for place, name in enumerate(names):
            each[name] = envelopes.copy()
            each[name].pop(str(place), None)
        return each

    def _say(
        self,
        names: Iterable[str],
        stage: Stage,
        work: ProgramPiece = _SET_UP,
        each: Mapping[str, Envelopes] | None = None,
        told: MessageArrays | None = None,
    ) -> dict[str, CheckedReply]:
        """A message to some parties, and their answers; `work` says of which round and query it is."""
        frame = Frame("secure", 0, self._plan.digest, work.number, work.name, told or {}, stage.text)
        return self._send(names, frame, each or {})

    def _send(self, names: Iterable[str], frame: Frame, each: Mapping[str, Envelopes]) -> dict[str, CheckedReply]:
        replies, forgot = self._exchange(names, frame, each), []
        for name, reply in replies.items():
            if reply.frame.kind == "unknown-plan":
                forgot.append(name)
        if forgot:
            raise RestartedError(forgot)
        return replies
