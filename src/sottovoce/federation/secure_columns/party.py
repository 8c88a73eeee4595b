"""A party's side of a plan over secure columns."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.block import Block
from sottovoce.errors import LeakError, RefusedError
from sottovoce.federation.replies import Envelopes
from sottovoce.federation.secure_columns.messages import (
    DEALT,
    FACTOR,
    LENGTH,
    NULL,
    TOTAL,
    Stage,
    Wholes,
    Work,
    adder_of,
    asked_after,
    lookup_of,
    message_label,
    pieces_of,
    place_of,
    projection_of,
    widths_of,
)
from sottovoce.gate.frames import Frame
from sottovoce.gate.outgoing import Masked, Share
from sottovoce.gate.query import MessageArrays, Query, Round
from sottovoce.gate.secure_gate import Own, SecureGate
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Problem
from sottovoce.privacy.randomness import Randomness
from sottovoce.queries.gram import GramMatrix
from sottovoce.queries.joint import JointSum
from sottovoce.secure.columns import Columns, Program, dealt_like
from sottovoce.secure.dealer import receiver_of
from sottovoce.secure.stream_labels import GRAM, OWN, Asked, Piece, TranscriptHash, column_pieces
from sottovoce.secure.streams import Fields, add_fields, labelled
from sottovoce.secure.sums import Call, ColumnMasker
from sottovoce.secure.tables import ROW_BITS, LookUp

Array = NDArray[np.float64]
_CHUNK: Final = 2**16  # records that are rounded at a time


@dataclass
class _Turn:
    """A program over a piece of the records that a party is at."""

    work: Work
    asked: Asked
    program: Program
    messages: int  # that it says in all
    message: int = -1  # that it said last
    masked: Fields = ()
    left: Masked | None = None
    total: Fields | None = None  # of that message over all parties, where this party added it

    def label(self, what: str = "") -> list[Any]:
        """Of the last message, or of the sum of all parties' ones."""
        return message_label(self.asked, self.work.program, f"{self.message}{what}", self.work.piece)


class ColumnRun:
    """A party's side of one plan over secure columns.

    A piece that is asked from its first message begins again, and says the same. The message that it is at is said
    again where the answer was lost.
    """

    def __init__(self, plan: Plan, masker: ColumnMasker, rows: Block, gate: SecureGate, randomness: Randomness) -> None:
        self._place = place_of(plan, masker.name)
        coins = labelled(masker.noise(randomness), ["rounding"])
        integers, labels = integers_of(rows, plan, masker.name, coins), rows.labels if masker.holder else None
        self._engine = Columns(self._place, integers, rows.usable_rows, labels, masker.seed)
        self._plan, self._masker, self._gate = plan, masker, gate
        self._transcript = TranscriptHash()
        self._turn: _Turn | None = None
        self._parts: tuple[Asked | None, dict[Piece, Wholes]] = (None, {})  # of the sum at hand, by piece: each once
        self._factors: dict[str, MessageArrays] = {}  # by query, what its factor was told
        self._pieces = column_pieces(plan.records, widths_of(plan))

    def stage(self, frame: Frame, query: Query | None) -> Masked | None:
        """What a message of the protocol is answered with; None where it only brings something."""
        stage = Stage.read(frame.text)
        if stage.name == "group":
            return self._gate.group()
        if not self._masker.group and "group" not in frame.arrays:
            raise RefusedError(
                "a party has the key of the parties' envelopes before all else; send it with its columns."
            )
        if stage.name in ("columns", "receive"):
            return self._columns(stage, frame.arrays)
        told = {name: array for name, array in frame.arrays.items() if name in stage.said}
        if stage.name == "recall" and query is not None:
            self._check_told(query, frame.round, told)
            self._transcript.after(query.name, frame.round, told)
            return None
        sent = {name: array for name, array in frame.arrays.items() if name not in stage.said}
        work = Work(stage.program, frame.round, query, told, stage.piece)
        if work.name != frame.query or stage.name not in ("say", "add", "end"):
            raise RefusedError(f"a party over secure columns has no stage {stage.name!r} of {frame.query!r}.")
        if stage.name == "say":
            return self._say(work, stage.message, sent)
        if stage.name == "add":
            return self._add(self._at(work, stage.message), sent)
        self._end(self._at(work, stage.message, stage.message + 1), sent)
        return None

    def share(self, query: Query, round: Round, frame: Frame) -> Share:
        call = Call.read(frame.text)
        told = {name: array for name, array in frame.arrays.items() if name in call.said}
        sent = {name: array for name, array in frame.arrays.items() if name not in call.said}
        asked = self._transcript.after(query.name, round.number, told)
        if isinstance(query, JointSum):
            self._end_last(asked, sent)

        def product(own: Own) -> Wholes:
            if isinstance(query, JointSum):
                return np.asarray(sum(self._parts[1].values()), dtype=np.int64)
            if isinstance(query, GramMatrix):
                like = (np.zeros(query.length, dtype=np.int64),)
                return self._engine.gram(asked, self._dealt(asked.label(GRAM), asked, sent, like))
            values = own()
            return self._engine.own(asked, values, self._dealt(asked.label(OWN), asked, sent, (values,)))

        call, after = asked_after(call, told, asked)
        return self._gate.share(query, round._replace(told=after), call, product)

    def _columns(self, stage: Stage, arrays: Envelopes) -> Masked | None:
        """Its own masked columns, or those of the others."""
        if stage.piece not in self._pieces:
            raise RefusedError(f"piece={list(stage.piece)} is not of the records as the plan has them cut.")
        at = self._engine.columns_label(stage.piece)
        if stage.name == "columns":
            if "group" in arrays:
                self._masker.open_group(self._plan.label_party_name, arrays["group"])
            return self._gate.masked("columns", at, lambda: self._engine.columns(stage.piece))[0]
        count, widths = stage.piece[1] - stage.piece[0], widths_of(self._plan)
        like = {name: (np.broadcast_to(np.int64(0), (count, width)),) for name, width in widths.items()}
        self._engine.receive_columns(self._opened(at, arrays, like), stage.piece)
        return None

    def _say(self, work: Work, message: int, sent: Envelopes) -> Masked | None:
        """The next message of a program, or the last once more."""
        turn = self._turn
        again = turn is not None and turn.message == 0 and _same(turn.work, work)
        if message == 0 and not (again and turn is not None and work.asked(self._transcript) == turn.asked):
            self._turn = None
            turn = self._begun(work, sent)
            make = functools.partial(next, turn.program)
        else:
            turn = self._at(work, message, message - 1)
            if turn.message == message:
                return turn.left
            if message >= turn.messages:
                raise RefusedError(f"a program {work.program!r} has {turn.messages} messages, and not {message + 1}.")
            make = functools.partial(turn.program.send, self._total(turn, sent))
        self._turn, turn.message, turn.total = None, message, None  # a refusal ends it: it begins again
        turn.left, turn.masked = self._gate.masked("message", turn.label(), make)
        self._turn = turn
        return turn.left

    def _add(self, turn: _Turn, sent: Envelopes) -> Masked:
        """The sum over the parties of the message that it is at, for all of them."""
        if self._masker.name != adder_of(self._plan.names, turn.asked.number, turn.message):
            raise RefusedError("one party in turn adds what all parties say, and nobody else.")
        if turn.total is None:
            turn.total = self._added(turn, sent)
        return self._gate.added("total", turn.label(" total"), turn.total)

    def _end(self, turn: _Turn, sent: Envelopes) -> None:
        """The end of a program over a piece: its part of a sum waits here."""
        if turn.message == turn.messages:
            return  # the answer was lost
        if turn.message != turn.messages - 1:
            raise RefusedError(f"a program {turn.work.program!r} has {turn.messages} messages; ask for all of them.")
        total = self._total(turn, sent)
        turn.message += 1
        try:
            turn.program.send(total)
        except StopIteration as stop:
            if stop.value is not None:
                self._parts[1][turn.work.piece] = stop.value
            return
        raise LeakError(f"the program {turn.work.program!r} has more messages than it says; nothing was released.")

    def _end_last(self, asked: Asked, sent: Envelopes) -> None:
        """Have the parts of all pieces before a sum is made of them; the last one may end with this message."""
        turn = self._turn
        if turn is not None and (turn.asked, turn.message) == (asked, turn.messages - 1):
            self._end(turn, sent)
        if self._parts[0] != asked or set(self._parts[1]) != set(pieces_of(self._plan)):
            raise RefusedError(f"a sum in round {asked.number} lacks the parts of some records.")

    def _begun(self, work: Work, sent: Envelopes) -> _Turn:
        """A program over a piece, from its first message on."""
        work.check(self._plan)
        if work.program in (GRAM, OWN):
            raise RefusedError(f"{work.program!r} is no program: nothing is said in it, and its sum is asked for.")
        query, told = work.query, work.said
        if query is not None:
            self._check_told(query, work.number, told)
        asked = work.asked(self._transcript)
        lookup = None
        if isinstance(query, JointSum):
            if work.program == FACTOR:
                self._factors[query.name] = told
            elif self._parts[0] != asked:
                self._parts = asked, {}
            lookup = lookup_of(self._plan, work, self._factors)
        like = dealt_like(work.program, work.piece, self._place, lookup)
        dealt = self._dealt(message_label(asked, work.program, DEALT, work.piece), asked, sent, like)
        return _Turn(work, asked, self._program(work, asked, lookup, dealt), work.messages(self._plan))

    def _program(self, work: Work, asked: Asked, lookup: LookUp | None, dealt: Fields | None) -> Program:
        engine, piece = self._engine, work.piece
        if work.program == NULL:
            return engine.null(asked, piece, dealt)
        if lookup is not None:
            weights = own_columns(self._plan, self._masker.name, work.said["weights"])
            return engine.look_up(asked, piece, lookup, weights, dealt)
        made = engine.length if work.program == LENGTH else engine.factor
        return made(asked, piece, projection_of(self._plan, work), dealt)

    def _at(self, work: Work, *messages: int) -> _Turn:
        """The program that this party is at, which has said one of these messages last."""
        turn = self._turn
        if turn is None or not _same(turn.work, work) or turn.message not in messages:
            raise RefusedError(f"{work.program!r} was not asked from its first message on; ask for that.")
        return turn

    def _total(self, turn: _Turn, sent: Envelopes) -> Fields:
        """The sum over the parties of the message that it is at."""
        adder = adder_of(self._plan.names, turn.asked.number, turn.message)
        if adder is None:
            return self._added(turn, sent)
        if turn.total is not None:
            return turn.total
        if adder == self._masker.name or TOTAL not in sent:
            raise RefusedError("a secure message lacks the sum of the one before it.")
        return self._masker.opened(turn.label(" total"), adder, sent[TOTAL], turn.masked)

    def _added(self, turn: _Turn, sent: Envelopes) -> Fields:
        others = self._opened(turn.label(), sent, dict.fromkeys(self._plan.names, turn.masked))
        return functools.reduce(add_fields, others.values(), turn.masked)

    def _check_told(self, query: Query, number: int, told: MessageArrays) -> None:
        reason = query.objection(number, told)
        if reason is not None:
            raise RefusedError(f"query {query.name!r} in round {number} {reason}.")

    def _opened(self, at: list[Any], sent: Envelopes, like: Mapping[str, Fields]) -> dict[str, Fields]:
        """What all other parties said, by the envelopes of a message."""
        names = {str(place): name for place, name in enumerate(self._plan.names) if name != self._masker.name}
        if not set(names) <= set(sent):
            raise RefusedError("a secure message lacks the words of a party.")
        return {name: self._masker.opened(at, name, sent[place], like[name]) for place, name in names.items()}

    def _dealt(self, at: list[Any], asked: Asked, sent: Envelopes, like: Fields) -> Fields | None:
        """What the party whose turn it is was dealt; None for the others, who make their share."""
        if (DEALT in sent) != (self._masker.name == receiver_of(self._plan.names, asked.number)):
            raise RefusedError(f"round {asked.number}: one party in turn is dealt words, and nobody else.")
        return self._masker.dealt(at, sent[DEALT], like) if DEALT in sent else None


def _same(one: Work, other: Work) -> bool:
    """Whether two messages are about the same program and piece; what it was told comes with the first alone."""
    return (one.program, one.number, one.name, one.piece) == (other.program, other.number, other.name, other.piece)


def integers_of(rows: Block, plan: Plan, party: str, coins: Randomness) -> Wholes:
    """Prepared rows as whole numbers of 2^-8, rounded at random; none is longer than the party's share of a row.

    A row that this makes longer than its bound is rounded toward zero instead.
    """
    width, share = widths_of(plan)[party], float(plan.row_shares()[plan.names.index(party)])
    most, exact = int(4.0**ROW_BITS * share), rows.dense_rows(width)
    found = np.empty(exact.shape, dtype=np.int64)
    for start in range(0, len(exact), _CHUNK):
        scaled = exact[start : start + _CHUNK] * 2.0**ROW_BITS
        drawn = np.frombuffer(coins.bytes(4 * scaled.size), dtype="<u4").reshape(scaled.shape)
        rounded = np.floor(scaled + drawn * 2.0**-32)
        longer = (rounded**2).sum(axis=1) > most
        rounded[longer] = np.trunc(scaled[longer])
        if np.any((rounded**2).sum(axis=1) > most):
            raise LeakError("a part of a row is longer than the plan allows; nothing was released.")
        found[start : start + _CHUNK] = rounded
    return found


def own_columns(plan: Problem, party: str, whole: Array) -> Array:
    """A party's entries of a vector over all columns."""
    part = plan.part(party)
    return np.append(whole[part.start : part.stop], whole[plan.features :] if part.constant else [])
