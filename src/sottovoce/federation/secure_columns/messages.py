"""The words that all sides of the protocol share: stages, programs, pieces of the records, who adds."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import RefusedError, WireError
from sottovoce.federation.replies import Envelopes
from sottovoce.gate.query import MessageArrays, Query
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Problem
from sottovoce.queries.joint import JointSum
from sottovoce.queries.sums import GramMatrix
from sottovoce.secure.columns import Place, said_like
from sottovoce.secure.streams import SET_UP, WHOLE, Piece, RoundLabels, TranscriptHash, frame_pieces
from sottovoce.secure.sums import Call
from sottovoce.secure.tables import LookUp, Projection, exponent_of, ring_bits

Wholes = NDArray[np.int64]

NULL: Final = "null"  # programs, as the engine has them
FACTOR: Final = "factor"
LENGTH: Final = "length"
LOOK_UP: Final = "look-up"
GRAM: Final = "gram"  # sums without a program
OWN: Final = "own"
DEALT: Final = "dealt"  # arrays of messages: what one party was dealt
TOTAL: Final = "total"  # the sum of a message over all parties, from the one that added
ENVELOPE: Final = "envelope"
_TRANSCRIPT: Final = "transcript"
_RECORD: Final = 240  # bytes of a record in the longest message of a program: the tables of its clipping factor
_PARTY: Final = 16  # and of one party, where each party is sent all others' messages


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
    for name in plan.names:
        part = plan.part(name)
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
