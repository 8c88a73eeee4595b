"""The coordinator's side of a plan over secure columns, and what all sides share: stages, programs, pieces."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms import Ask
from sottovoce.errors import RefusedError, WireError
from sottovoce.federation.replies import CheckedReply, Envelopes, Exchange, envelope_of, read_share
from sottovoce.gate.frames import Frame
from sottovoce.gate.query import MessageArrays, Query
from sottovoce.gate.secure_gate import noise_of
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Problem
from sottovoce.queries.joint import JointSum
from sottovoce.queries.sums import GramMatrix
from sottovoce.secure.columns import Place, said_like
from sottovoce.secure.ring import LookUp, Projection, exponent_of, ring_bits
from sottovoce.secure.streams import SET_UP, WHOLE, Piece, RoundLabels, TranscriptHash, column_pieces, frame_pieces
from sottovoce.secure.sums import Call, Opener, label_of

if TYPE_CHECKING:
    from sottovoce.federation.secure_columns.dealer import Deals

Array = NDArray[np.float64]
Wholes = NDArray[np.int64]
Each = dict[str, dict[str, NDArray[Any]]]
Reopen = Callable[[Sequence[str]], None]

NULL: Final = "null"  # programs, as the engine has them
FACTOR: Final = "factor"
LENGTH: Final = "length"
LOOK_UP: Final = "look-up"
GRAM: Final = "gram"  # sums without a program
OWN: Final = "own"
DEALT: Final = "dealt"  # arrays of messages: what one party was dealt
ROOTS: Final = "roots"  # of the weights of records, where people have several
TOTAL: Final = "total"  # the sum of a message over all parties, from the one that added
ENVELOPE: Final = "envelope"
_TRANSCRIPT: Final = "transcript"
_RECORD: Final = 240  # bytes of a record in the longest message of a program: the tables of its clipping factor
_PARTY: Final = 16  # and of one party, where each party is sent all others' messages
MOST_RESTARTS: Final = 16  # in one round


class Stage(NamedTuple):
    """What a message of the protocol asks for, of which records; of a program, which of its messages."""

    name: str
    piece: Piece = WHOLE
    said: tuple[str, ...] = ()  # the arrays that everybody was told
    program: str = ""
    message: int = 0

    @property
    def text(self) -> str:
        said = self._asdict()
        return json.dumps({"stage": said.pop("name"), **said})

    @classmethod
    def read(cls, text: str) -> Stage:
        """The stage of a message, or a refusal."""
        try:
            found = json.loads(text)
            name, (start, stop), said = found["stage"], found["piece"], tuple(found["said"])
            program, message = found["program"], found["message"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise RefusedError("a secure message says its stage and which records it is about.") from None
        kinds = list(map(type, (start, stop, message, name, program, *said)))
        if kinds != [int] * 3 + [str] * (2 + len(said)):
            raise RefusedError("a secure message says its stage and which records it is about.")
        return cls(name, (start, stop), said, program, message)


@dataclass(frozen=True)
class ProgramPiece:
    """What is dealt for, and said in turn: a program over a piece of the records, in a round of a query."""

    program: str
    number: int = 0
    query: Query | None = None  # None: of the set-up
    told: MessageArrays = field(default_factory=dict, compare=False)  # it comes with the first message alone
    piece: Piece = WHOLE

    @property
    def name(self) -> str:
        """Of its query, as a frame has it."""
        return "" if self.query is None else self.query.name

    def check(self, plan: Plan) -> None:
        """Refuse a program that the query does not have in this round, and records that are cut otherwise."""
        query, number = self.query, self.number
        if isinstance(query, JointSum):
            known = (query.program, *((FACTOR,) if query.factored else ()))
            if self.program == FACTOR and number != plan.release(query.name).first:
                raise RefusedError(f"query {query.name!r} has its factor of the first round, and not of {number}.")
        else:
            known = (NULL,) if query is None else (GRAM,) if isinstance(query, GramMatrix) else (OWN,)
        if self.program not in known or (query is None and number):
            raise RefusedError(f"nothing is said or dealt for {self.name!r} by a program {self.program!r}.")
        if self.piece not in ((WHOLE,) if self.program in (GRAM, OWN) else cut_records(plan)):
            raise RefusedError(f"piece={list(self.piece)} is not of the records as the plan has them cut.")

    def labels(self, transcript: TranscriptHash) -> RoundLabels:
        """What its labels have: the hash of all that was told so far."""
        return SET_UP if self.query is None else transcript.after(self.query.name, self.number, self.told)

    def messages(self, plan: Plan) -> int:
        """How many messages of each party it has."""
        lookup = None
        if isinstance(self.query, JointSum) and self.program == LOOK_UP:
            lookup = self.query.lookup(self.told)
        return len(said_like(self.program, self.piece, place_of(plan, plan.names[0]), lookup))

    def projection(self, plan: Plan) -> Projection:
        """P of its query, over the parties' columns, one party after the other."""
        found = self.query.projection(self.told) if isinstance(self.query, JointSum) else None
        if found is None:
            raise RefusedError(f"query {self.name!r} in round {self.number} has no projection.")
        return Projection(np.ascontiguousarray(found[np.argsort(order_columns(plan))]), exponent_of(plan))

    def lookup(self, plan: Plan, factors: Mapping[str, MessageArrays]) -> LookUp | None:
        """What a look-up looks up, with the P that its factor was told; None for other programs."""
        query = self.query
        if not isinstance(query, JointSum) or self.program != LOOK_UP:
            return None
        lookup = query.lookup(self.told)
        if not query.factored:
            return lookup
        if query.name not in factors:
            raise RefusedError(f"query {query.name!r} in round {self.number} was not asked for its factor first.")
        first = ProgramPiece(FACTOR, plan.release(query.name).first, query, factors[query.name])
        return replace(lookup, projection=first.projection(plan).matrix)


def split_told(arrays: MessageArrays, said: Collection[str]) -> tuple[Envelopes, Envelopes]:
    """The arrays of a message that everybody was told, and those that are for one party."""
    told, sent = dict[str, NDArray[Any]](), dict[str, NDArray[Any]]()
    for name, array in arrays.items():
        (told if name in said else sent)[name] = array
    return told, sent


def widths_of(plan: Problem) -> dict[str, int]:
    """How many columns of a prepared row each party has; the constant is with the labels."""
    found = {}
    for name, part in zip(plan.names, map(plan.part, plan.names), strict=True):
        found[name] = part.stop - part.start + part.constant
    return found


def place_of(plan: Plan, name: str) -> Place:
    """What a party knows of all parties."""
    return Place(name, widths_of(plan), ring_bits(plan), plan.scaled_loss.kind == "classification")


def order_columns(plan: Problem) -> Wholes:
    """For each column of a prepared row, where it is among the parties' columns, one party after the other."""
    found = list[int]()
    for name, width in widths_of(plan).items():
        found += map(plan.part(name).place, range(width), itertools.repeat(plan.features))
    return np.argsort(found)


def cut_records(plan: Plan) -> tuple[Piece, ...]:
    """The pieces of the records in a program: a public rule."""
    return frame_pieces(plan.records, max(_RECORD, _PARTY * len(plan.names)))


def adder_of(names: Sequence[str], number: int, message: int) -> str | None:
    """Who adds a message of all parties: one after the other, from three parties on; of two each does."""
    return names[(number + message + 1) % len(names)] if len(names) > 2 else None


def asked_after(call: Call, told: MessageArrays, labels: RoundLabels) -> tuple[Call, MessageArrays]:
    """A sum's call and numbers, to make its label of: with the hash of all that was told before.

    What a party has of a sum follows from that too, its factors for instance.
    """
    words = np.frombuffer(bytes.fromhex(labels.said), dtype=np.uint8)
    return call._replace(said=(*call.said, _TRANSCRIPT)), {**told, _TRANSCRIPT: words}


class RestartedError(WireError):
    """An end that does not know the plan any more: it was restarted, and the run is played again with it."""

    def __init__(self, parties: Sequence[str]) -> None:
        super().__init__(f"{parties[0]!r} was restarted again and again in one round of a run.", tuple(parties))


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
            if self._plan.most_records is not None:
                told = self._say([holder], Stage(ROOTS, piece))[holder].frame.arrays
                for name in set(names) - {holder}:
                    first[name] = {**first.get(name, {}), ROOTS: envelope_of(holder, told, ENVELOPE)}
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
        replies = self._send(self._plan.names, frame, each)
        shares = {party: read_share(party, query.length + 1, replies[party]) for party in call.roster}
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
        places = dict(zip(self._plan.names, map(str, range(len(self._plan.names))), strict=True))
        said = {name: envelope_of(name, reply.frame.arrays, ENVELOPE) for name, reply in replies.items()}
        return {name: {places[other]: said[other] for other in said if other != name} for name in places}

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
        replies = self._exchange(names, frame, each)
        if forgot := [name for name, reply in replies.items() if reply.frame.kind == "unknown-plan"]:
            raise RestartedError(forgot)
        return replies
