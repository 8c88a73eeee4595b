"""A party's side of a plan over secure columns."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from sottovoce.data.block import Block
from sottovoce.data.people import ROOT_BITS, root_weights
from sottovoce.errors import LeakError, RefusedError
from sottovoce.federation.replies import Envelopes
from sottovoce.federation.secure_columns.coordinator import (
    DEALT,
    FACTOR,
    GRAM,
    LENGTH,
    OWN,
    ROOTS,
    TOTAL,
    Array,
    ProgramPiece,
    Stage,
    Wholes,
    adder_of,
    asked_after,
    cut_records,
    place_of,
    split_told,
    widths_of,
)
from sottovoce.gate.frames import Frame
from sottovoce.gate.outgoing import Masked, Share
from sottovoce.gate.query import MessageArrays, Query, Round
from sottovoce.gate.secure_gate import Own, SecureGate
from sottovoce.plan.plan import Plan
from sottovoce.privacy.mechanisms import Randomness
from sottovoce.queries.joint import JointSum
from sottovoce.queries.sums import GramMatrix
from sottovoce.secure.columns import Columns, Program, dealt_like
from sottovoce.secure.dealer import receiver_of
from sottovoce.secure.ring import ROW_BITS
from sottovoce.secure.streams import SET_UP, Fields, Piece, RoundLabels, TranscriptHash, add_fields, labelled
from sottovoce.secure.sums import Call, ColumnMasker

_CHUNK: Final = 2**16  # records that are rounded at a time


@dataclass
class _Turn:
    """A program over a piece of the records that a party is at."""

    work: ProgramPiece
    labels: RoundLabels
    messages: int  # that it says in all
    program: Program
    message: int = -1  # that it said last
    masked: Fields = ()
    left: Masked | None = None
    total: Fields | None = None  # of that message over all parties, where this party added it

    def label(self, what: str = "") -> list[Any]:
        """Of the last message, or of the sum of all parties' ones."""
        return self.labels.label(f"{self.work.program} {self.message}{what}", self.work.piece)


class ColumnRun:
    """A party's side of one plan over secure columns.

        the set-up    "group", to the holder of the labels; "columns" and "receive" for each piece of the records
        a restart     the set-up again, then "recall" for each finished round
        a program     for each piece "say" 0, "say" 1, ..., "end"; who adds a message of all is asked to "add" it
        a sum         `share`; the "end" of the last piece may come with it

    A piece that is asked from its first message begins again, and says the same. The message that it is at is said
    again where the answer was lost. A message that is refused for its order, or for the envelopes of a
    later message, changes nothing.
    """

    def __init__(self, plan: Plan, masker: ColumnMasker, rows: Block, gate: SecureGate, randomness: Randomness) -> None:
        self._place = place_of(plan, masker.name)
        coins = labelled(masker.noise(randomness), ["rounding"])
        self._most = int(4.0**ROW_BITS * float(plan.row_shares()[plan.names.index(masker.name)]))
        exact, labels = rows.dense_rows(widths_of(plan)[masker.name]), rows.labels if masker.holder else None
        integers = round_to_integers(exact, 2.0**ROW_BITS, self._most, coins)
        self._engine = Columns(self._place, integers, rows.usable_rows, labels, masker.seed)
        self._rows, self._coins = integers, functools.partial(labelled, masker.noise(randomness))
        self._roots: Wholes | None = None  # at a party that knows whose each record is
        if plan.most_records is not None and "person" in rows.beside:
            self._roots = root_weights(rows.beside["person"], plan.most_records)
        if plan.most_records is not None and masker.holder and (self._roots is None or rows.shares is None):
            raise LeakError("the rows of people have no weights; nothing was released.")
        self._plan, self._masker, self._gate = plan, masker, gate
        self._others = dict(zip(plan.names, map(str, range(len(plan.names))), strict=True))  # by name, their places
        del self._others[masker.name]
        self._transcript = TranscriptHash()
        self._turn: _Turn | None = None
        self._parts: tuple[RoundLabels, dict[Piece, Wholes]] = (SET_UP, {})  # of the sum at hand, by piece: each once
        self._factors: dict[str, MessageArrays] = {}  # by query, what its factor was told

    def stage(self, frame: Frame, query: Query | None) -> Masked | None:
        """What a message of the protocol is answered with; None where it only brings something."""
        stage = Stage.read(frame.text)
        if stage.name == "group":
            return self._gate.group()
        if not self._masker.group and "group" not in frame.arrays:
            raise RefusedError(
                "a party has the key of the parties' envelopes before all else; send it with its columns."
            )
        if stage.name == ROOTS:
            return self._tell_roots(stage.piece)
        if stage.name in ("columns", "receive"):
            return self._columns(stage, frame.arrays)
        told, sent = split_told(frame.arrays, stage.said)
        if stage.name == "recall" and query is not None:
            query.check_message(frame.round, told)
            self._transcript.after(query.name, frame.round, told)
            return None
        work = ProgramPiece(stage.program, frame.round, query, told, stage.piece)
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
        told, sent = split_told(frame.arrays, call.said)
        labels = self._transcript.after(query.name, round.number, told)
        self._check_weighed(*cut_records(self._plan))
        if isinstance(query, JointSum):
            turn = self._turn
            if turn is not None and (turn.labels, turn.message) == (labels, turn.messages - 1):
                self._end(turn, sent)
            if self._parts[0] != labels or set(self._parts[1]) != set(cut_records(self._plan)):
                raise RefusedError(f"a sum in round {labels.number} lacks the parts of some records.")

        def product(own: Own) -> Wholes:
            if isinstance(query, JointSum):
                return np.asarray(sum(self._parts[1].values()), dtype=np.int64)
            if isinstance(query, GramMatrix):
                like = (np.zeros(query.length, dtype=np.int64),)
                return self._engine.gram(labels, self._dealt(labels.label(GRAM), labels, sent, like))
            values = own()
            return self._engine.own(labels, values, self._dealt(labels.label(OWN), labels, sent, (values,)))

        call, after = asked_after(call, told, labels)
        return self._gate.share(query, round._replace(told=after), call, product)

    def _columns(self, stage: Stage, arrays: Envelopes) -> Masked | None:
        """Its own masked columns, or those of the others."""
        widths, piece = widths_of(self._plan), stage.piece
        if piece not in self._engine.pieces:
            raise RefusedError(f"piece={list(piece)} is not of the records as the plan has them cut.")
        label = SET_UP.label("columns", piece)
        if stage.name == "columns" and "group" in arrays:
            self._masker.open_group(self._plan.label_party_name, arrays["group"])
        if self._plan.most_records is not None and not self._engine.weighed(piece):
            self._weigh(piece, arrays)
        if stage.name == "columns":
            return self._gate.masked("columns", label, functools.partial(self._engine.columns, piece))[0]
        like: dict[str, Fields] = {}
        for name, width in widths.items():
            like[name] = (np.broadcast_to(np.int64(0), (piece[1] - piece[0], width)),)
        self._engine.receive_columns(self._opened(label, arrays, like), piece)
        return None

    def _check_weighed(self, *pieces: Piece) -> None:
        """Of people nothing is said of records that have no weights yet."""
        if self._plan.most_records is not None and not all(map(self._engine.weighed, pieces)):
            raise RefusedError("rows of people have no weights yet; begin with the columns.")

    def _tell_roots(self, piece: Piece) -> Masked:
        """The roots of the weights of its records, for the other parties."""
        if self._roots is None or not self._masker.holder or piece not in self._engine.pieces:
            raise RefusedError("the party that knows whose each record is tells their weights, and nobody else.")
        return self._gate.roots(SET_UP.label(ROOTS, piece), self._roots[slice(*piece)])

    def _weigh(self, piece: Piece, arrays: Envelopes) -> None:
        """Give its rows their weights, of which the party that knows whose each record is tells the others."""
        if self._roots is not None and self._masker.holder:
            roots = self._roots[slice(*piece)]
        elif ROOTS in arrays:
            like: Fields = (np.broadcast_to(np.int16(0), (piece[1] - piece[0],)),)
            sender, label = self._plan.label_party_name, SET_UP.label(ROOTS, piece)
            roots = self._masker.opened(label, sender, arrays[ROOTS], like)[0].astype(np.int64)
        else:
            raise RefusedError("rows of people leave with their weights, which were not told.")
        if roots.size and not 0 <= int(roots.min()) <= int(roots.max()) <= 2**ROOT_BITS:
            raise RefusedError(f"the roots of weights are from 0 to {2**ROOT_BITS}, and others were told.")
        if self._roots is not None and not np.array_equal(roots, self._roots[slice(*piece)]):
            raise RefusedError("the party with the labels has other people's records than this one.")
        share, rows, coins = roots / 2.0**ROOT_BITS, self._rows[slice(*piece)], self._coins(["roots", *piece])
        self._engine.weigh(piece, roots, round_to_integers(rows, share, np.floor(self._most * share**2), coins))

    def _say(self, work: ProgramPiece, message: int, sent: Envelopes) -> Masked | None:
        """The next message of a program, or the last once more."""
        turn = self._turn
        again = turn is not None and turn.message == 0 and turn.work == work
        if message == 0 and not (again and turn is not None and work.labels(self._transcript) == turn.labels):
            self._turn = None
            return self._advance(self._begun(work, sent), {})
        turn = self._at(work, message, message - 1)
        if turn.message == message:
            return turn.left
        if message >= turn.messages:
            raise RefusedError(f"a program {work.program!r} has {turn.messages} messages, and not {message + 1}.")
        return self._advance(turn, sent)

    def _add(self, turn: _Turn, sent: Envelopes) -> Masked:
        """The sum over the parties of the message that it is at, for all of them."""
        if self._masker.name != adder_of(self._plan.names, turn.labels.number, turn.message):
            raise RefusedError("one party in turn adds what all parties say, and nobody else.")
        if turn.total is None:
            turn.total = self._added(turn, sent)
        return self._gate.added("total", turn.label(" total"), turn.total)

    def _end(self, turn: _Turn, sent: Envelopes) -> None:
        """The end of a program over a piece, or the same once more: the answer was lost."""
        if turn.message == turn.messages:
            return
        if turn.message != turn.messages - 1:
            raise RefusedError(f"a program {turn.work.program!r} has {turn.messages} messages; ask for all of them.")
        self._advance(turn, sent)

    def _begun(self, work: ProgramPiece, sent: Envelopes) -> _Turn:
        """A program over a piece, from its first message on."""
        work.check(self._plan)
        self._check_weighed(work.piece)
        if work.program in (GRAM, OWN):
            raise RefusedError(f"{work.program!r} is no program: nothing is said in it, and its sum is asked for.")
        if work.query is not None:
            work.query.check_message(work.number, work.told)
        labels, piece = work.labels(self._transcript), work.piece
        if work.program == FACTOR:
            self._factors[work.name] = work.told
        elif work.query is not None and self._parts[0] != labels:
            self._parts = labels, {}
        lookup = work.lookup(self._plan, self._factors)
        like = dealt_like(work.program, piece, self._place, lookup)
        dealt = self._dealt(labels.label(f"{work.program} {DEALT}", piece), labels, sent, like)
        if work.query is None:
            program = self._engine.null(labels, piece, dealt)
        elif lookup is not None:
            part, whole = self._plan.part(self._masker.name), work.told["weights"]
            weights = np.append(whole[part.start : part.stop], whole[self._plan.features :] if part.constant else [])
            program = self._engine.look_up(labels, piece, lookup, weights, dealt)
        else:
            play = self._engine.length if work.program == LENGTH else self._engine.factor
            program = play(labels, piece, work.projection(self._plan), dealt)
        return _Turn(work, labels, work.messages(self._plan), program)

    def _advance(self, turn: _Turn, sent: Envelopes) -> Masked | None:
        """The next message of a turn under a mask, by the sum over the parties of the one that it is at.

        After the last one the part of a sum waits here. A refusal of what was sent changes nothing; any other ends the
        turn, and it begins again.
        """
        total: Any = turn.total
        if turn.message >= 0 and total is None:
            adder = adder_of(self._plan.names, turn.labels.number, turn.message)
            if adder is None:
                total = self._added(turn, sent)
            elif adder == self._masker.name or TOTAL not in sent:
                raise RefusedError("a secure message lacks the sum of the one before it.")
            else:
                total = self._masker.opened(turn.label(" total"), adder, sent[TOTAL], turn.masked)
        self._turn = None
        turn.message, turn.total, make = turn.message + 1, None, functools.partial(turn.program.send, total)
        if turn.message < turn.messages:
            turn.left, turn.masked = self._gate.masked("message", turn.label(), make)
            self._turn = turn
            return turn.left
        try:
            make()
        except StopIteration as stop:
            if stop.value is not None:
                self._parts[1][turn.work.piece] = stop.value
        else:
            raise LeakError(f"the program {turn.work.program!r} has more messages than it says; nothing was released.")
        self._turn = turn
        return None

    def _at(self, work: ProgramPiece, *messages: int) -> _Turn:
        """The program that this party is at, which has said one of these messages last."""
        turn = self._turn
        if turn is None or turn.work != work or turn.message not in messages:
            raise RefusedError(f"{work.program!r} was not asked from its first message on; ask for that.")
        return turn

    def _added(self, turn: _Turn, sent: Envelopes) -> Fields:
        others = self._opened(turn.label(), sent, dict.fromkeys(self._plan.names, turn.masked))
        return functools.reduce(add_fields, others.values(), turn.masked)

    def _opened(self, label: list[Any], sent: Envelopes, like: Mapping[str, Fields]) -> dict[str, Fields]:
        """What all other parties said, by the envelopes of a message."""
        if not set(self._others.values()) <= set(sent):
            raise RefusedError("a secure message lacks the words of a party.")
        opened = functools.partial(self._masker.opened, label)
        return {name: opened(name, sent[place], like[name]) for name, place in self._others.items()}

    def _dealt(self, label: list[Any], labels: RoundLabels, sent: Envelopes, like: Fields) -> Fields | None:
        """What the party whose turn it is was dealt; None for the others, who make their share."""
        if (DEALT in sent) != (self._masker.name == receiver_of(self._plan.names, labels.number)):
            raise RefusedError(f"round {labels.number}: one party in turn is dealt words, and nobody else.")
        return self._masker.dealt(label, sent[DEALT], like) if DEALT in sent else None


def round_to_integers(rows: Array | Wholes, factors: Array | float, most: Array | int, coins: Randomness) -> Wholes:
    """Rows times factors as whole numbers, rounded at random; the square of none is longer than `most`.

    A row that this makes longer than its bound is rounded toward zero instead.
    """
    found = np.empty(rows.shape, dtype=np.int64)
    factors, most = np.broadcast_to(factors, len(rows)), np.broadcast_to(most, len(rows))
    for start in range(0, len(rows), _CHUNK):
        own = slice(start, start + _CHUNK)
        scaled = rows[own] * factors[own, None]
        drawn = np.frombuffer(coins.bytes(4 * scaled.size), dtype="<u4").reshape(scaled.shape)
        rounded = np.floor(scaled + drawn * 2.0**-32)
        longer = (rounded**2).sum(axis=1) > most[own]
        rounded[longer] = np.trunc(scaled[longer])
        if np.any((rounded**2).sum(axis=1) > most[own]):
            raise LeakError("a part of a row is longer than the plan allows; nothing was released.")
        found[own] = rounded
    return found
