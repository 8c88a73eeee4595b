"""A party's side of a plan over sealed columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.block import Block
from sottovoce.door.frames import Frame
from sottovoce.door.outgoing import Masked, Share
from sottovoce.door.query import Query, Round, Told
from sottovoce.door.sealed_gate import Own, SealedGate
from sottovoce.errors import LeakError, RefusedError
from sottovoce.federation.boxes import Boxes
from sottovoce.federation.sealed_columns.messages import (
    DEALT_WORDS,
    WHITENED,
    Stage,
    Wholes,
    asked_after,
    check_piece,
    pieces_of,
    widths_of,
)
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Problem
from sottovoce.privacy.randomness import Randomness
from sottovoce.queries.gram import GramMatrix
from sottovoce.queries.joint import JointSum
from sottovoce.sealed.columns import ONE, ROWS, Columns
from sottovoce.sealed.dealer import receiver_of
from sottovoce.sealed.pads import (
    COLUMNS,
    CORRECTION,
    GRAM,
    OWN,
    SCORES,
    SLOPES,
    TABLE,
    Asked,
    Piece,
    TranscriptHash,
    column_pieces,
)
from sottovoce.sealed.streams import hash_of, labelled, stream
from sottovoce.sealed.sums import Call, ColumnSealer

Array = NDArray[np.float64]


@dataclass
class _Lookup:
    """A look-up that is under way at a party."""

    query: JointSum
    asked: Asked
    pieces: tuple[Piece, ...]
    added: int = 0  # pieces whose part of the sum waits here
    table: NDArray[np.uint64] | None = None
    delta: NDArray[Any] | None = None  # this party's, masked
    slopes: NDArray[Any] | None = None
    total: Any = 0


class ColumnRun:
    """A party's side of one plan over sealed columns."""

    def __init__(self, plan: Plan, sealer: ColumnSealer, rows: Block, gate: SealedGate, randomness: Randomness) -> None:
        holder = sealer.holder
        labels = np.where(rows.usable_rows, rows.labels, np.nan) if holder else None
        integers = integers_of(rows, plan, sealer.name)
        bits = plan.preparation.bits
        self._engine = Columns(sealer.name, plan.names, widths_of(plan), integers, labels, sealer.seed, bits)
        self._plan, self._sealer, self._gate = plan, sealer, gate
        self._randomness = sealer.noise(randomness)  # of dithers
        self._transcript = TranscriptHash()
        self._lookup: _Lookup | None = None
        self._pieces = column_pieces(plan.records, widths_of(plan))
        self._received: set[tuple[str, Piece]] = set()  # a message that is repeated brings nothing new
        self._shaped = ""  # hash of what the whitened columns were made by

    def stage(self, frame: Frame, query: Query | None, round: Round) -> Masked | None:
        """What a message of the protocol is answered with; None where it only brings something."""
        asked = Stage.read(frame.text)
        if asked.name == "group":
            return self._gate.group()
        if asked.name in (COLUMNS, WHITENED):
            return self._columns(asked, query, round, frame.arrays)
        if asked.name == "receive":
            matrix = ROWS if frame.query == "" else WHITENED
            check_piece(asked.piece, self._pieces)
            if (matrix, asked.piece) not in self._received:
                others = self._opened(self._engine.columns_label(matrix, asked.piece), frame.arrays)
                self._engine.receive_columns(others, matrix, asked.piece)
                self._received.add((matrix, asked.piece))
            return None
        if not isinstance(query, JointSum):
            raise RefusedError(f"query {frame.query!r} looks nothing up, and has no stage {asked.name!r}.")
        stages = {SCORES: self._scores, SLOPES: self._slopes, "gradient": self._more}
        if asked.name not in stages:
            raise RefusedError(f"a party over sealed columns has no stage {asked.name!r}.")
        return stages[asked.name](query, frame, asked)

    def share(self, query: Query, round: Round, frame: Frame) -> Share:
        """A party's part of a sum."""
        call = Call.read(frame.text)
        told = {name: array for name, array in frame.arrays.items() if name in call.said}
        sent = {name: array for name, array in frame.arrays.items() if name not in call.said}
        asked = self._transcript.after(query.name, round.number, told)

        def product(own: Own) -> Wholes:
            number = round.number
            if isinstance(query, GramMatrix):
                return self._engine.gram(asked, self._dealt(asked.label(GRAM), 0, sent)).view(np.int64)
            if not isinstance(query, JointSum):
                dealt = self._dealt(asked.label(OWN), number, sent)
                return self._engine.own(asked, own(), dealt).view(np.int64)
            current = self._current(query, number)
            part = self._part(current, current.pieces[-1], sent)
            return np.asarray(part + current.total).ravel().view(np.int64)

        call, after = asked_after(call, told, asked)
        return self._gate.share(query, round._replace(told=after), call, product)

    def _columns(self, asked: Stage, query: Query | None, round: Round, arrays: Boxes) -> Masked:
        if "group" in arrays:
            self._sealer.open_group(self._plan.label_party_name, arrays["group"])
        check_piece(asked.piece, self._pieces)
        told = {name: array for name, array in arrays.items() if name in asked.said}
        matrix = ROWS
        if asked.name == WHITENED:
            matrix = WHITENED
            if not isinstance(query, JointSum) or query.matrix != WHITENED:
                raise RefusedError("the plan has no query of whitened columns.")
            self._check_told(query, round.number, told)
            if not self._engine.has(WHITENED):
                made = query.columns(round._replace(told=told))
                said = self._transcript.after(query.name, round.number, told).said
                self._engine.add_matrix(WHITENED, made, said=said)
                self._shaped = _shape(query, told)
            self._check_shape(query, told)
        at = self._engine.columns_label(matrix, asked.piece)
        return self._gate.masked(asked.name, at, lambda: self._engine.columns(matrix, asked.piece))[0]

    def _scores(self, query: JointSum, frame: Frame, asked: Stage) -> Masked:
        told = {name: frame.arrays[name] for name in asked.said if name in frame.arrays}
        self._check_told(query, frame.round, told)
        self._check_shape(query, told)
        table = query.lookup(self._plan, told)
        weights = own_columns(self._plan, self._sealer.name, told["weights"])
        current, now = self._lookup, self._transcript.after(query.name, frame.round, told)
        if current is None or current.asked != now:
            current = _Lookup(query, now, pieces_of(self._plan, query, told))
        if asked.piece in current.pieces[: current.added]:
            return self._again(SCORES, now, asked.piece)
        check_piece(asked.piece, current.pieces[current.added : current.added + 1])
        current.table = self._dealt(now.label(TABLE, asked.piece), frame.round, frame.arrays, TABLE)
        self._lookup = current
        at = now.label(SCORES, asked.piece)
        dithers = labelled(self._randomness, ["dithers", *at])
        masked, current.delta = self._gate.masked(
            SCORES, at, lambda: self._engine.scores(now, weights, table, dithers, piece=asked.piece)
        )
        return masked

    def _slopes(self, query: JointSum, frame: Frame, asked: Stage) -> Masked:
        current = self._current(query, frame.round)
        if asked.piece in current.pieces[: current.added]:
            return self._again(SLOPES, current.asked, asked.piece)
        check_piece(asked.piece, current.pieces[current.added : current.added + 1])
        masked, current.slopes = self._gate.masked(
            SLOPES,
            current.asked.label(SLOPES, asked.piece),
            lambda: self._looked_up(current, asked.piece, frame.arrays),
        )
        return masked

    def _again(self, name: str, asked: Asked, piece: Piece) -> Masked:
        """What left for a piece that was added since: the same box, for a coordinator that was stopped just then."""
        return self._gate.masked(name, asked.label(name, piece), _not_again)[0]

    def _looked_up(self, current: _Lookup, piece: Piece, sent: Boxes) -> NDArray[np.uint64]:
        """A share of what is looked up at all parties' scores."""
        if current.delta is None:
            raise RefusedError(f"round {current.asked.number} was asked for slopes before scores.")
        deltas: dict[str, Any] = self._opened(current.asked.label(SCORES, piece), sent, np.uint16)
        deltas[self._sealer.name] = current.delta
        return self._engine.slopes(current.asked, deltas, current.table, piece=piece)

    def _more(self, query: JointSum, frame: Frame, asked: Stage) -> None:
        """A piece of the records that is not the last: its part of the sum waits here, once."""
        current = self._current(query, frame.round)
        if asked.piece in current.pieces[: current.added]:
            return  # the answer was lost
        check_piece(asked.piece, current.pieces[:-1])
        current.total = current.total + self._part(current, asked.piece, frame.arrays)
        current.added, current.table, current.delta, current.slopes = current.added + 1, None, None, None

    def _part(self, current: _Lookup, piece: Piece, sent: Boxes) -> NDArray[np.uint64]:
        """Of the sum over the piece whose turn it is."""
        asked, matrix = current.asked, current.query.matrix
        check_piece(piece, current.pieces[current.added : current.added + 1])
        dealt = self._dealt(asked.label(CORRECTION, piece), asked.number, sent)
        if matrix == ONE:
            words = self._looked_up(current, piece, sent)
            pad = stream(self._sealer.seed, asked.label(SLOPES, piece), words.size).reshape(words.shape)
            slopes: dict[str, Any] = {self._sealer.name: words - pad}
        else:
            if current.slopes is None:
                raise RefusedError(f"round {asked.number} was asked for a sum before slopes.")
            slopes = {**self._opened(asked.label(SLOPES, piece), sent), self._sealer.name: current.slopes}
        return self._engine.gradient(asked, slopes, dealt, matrix, piece=piece)

    def _current(self, query: JointSum, number: int) -> _Lookup:
        current = self._lookup
        if current is None or (current.asked.number, current.query.name) != (number, query.name):
            raise RefusedError(f"query {query.name!r} in round {number} was not asked for scores first.")
        return current

    def _check_told(self, query: JointSum, number: int, told: Told) -> None:
        reason = query.objection(self._plan, number, told)
        if reason is not None:
            raise RefusedError(f"query {query.name!r} in round {number} {reason}.")

    def _check_shape(self, query: JointSum, told: Told) -> None:
        """Refuse a sum over whitened columns that would not say by which numbers, the same for all, they were made."""
        if query.matrix == WHITENED and self._engine.has(WHITENED) and self._shaped != _shape(query, told):
            raise RefusedError(f"query {query.name!r}: the whitened columns were made by other numbers.")

    def _opened(self, at: list[Any], sent: Boxes, kind: type[Any] = np.uint64) -> dict[str, NDArray[Any]]:
        """The padded words of all other parties, by the boxes of a message."""
        names = {str(place): name for place, name in enumerate(self._plan.names) if name != self._sealer.name}
        if not set(names) <= set(sent):
            raise RefusedError("a sealed message lacks the words of a party.")
        return {name: self._sealer.opened(at, name, sent[place], kind) for place, name in names.items()}

    def _dealt(self, at: list[Any], number: int, sent: Boxes, name: str = DEALT_WORDS) -> NDArray[np.uint64] | None:
        """What the party whose turn it is was dealt; None for the others, who make their share."""
        if (name in sent) != (self._sealer.name == receiver_of(self._plan.names, number)):
            raise RefusedError(f"round {number}: one party in turn is dealt words, and nobody else.")
        return self._sealer.dealt(at, sent[name]) if name in sent else None


def integers_of(rows: Block, plan: Plan, party: str) -> Wholes:
    """Prepared rows as whole numbers of the grid, none longer than the party's share of a row."""
    width, bits = widths_of(plan)[party], plan.preparation.bits
    found = np.rint(rows.dense_rows(width) * 2.0**bits).astype(np.int64)
    most = 4.0**bits * min(1.0, float(plan.row_shares()[plan.names.index(party)]) * (1 + 2.0**-30))
    if np.any((found.astype(np.float64) ** 2).sum(axis=1) > most):
        raise LeakError("a part of a row is longer than the plan allows; nothing was released.")
    return found


def own_columns(plan: Problem, party: str, whole: Array) -> Array:
    """A party's entries of a vector over all columns."""
    part = plan.part(party)
    return np.append(whole[part.start : part.stop], whole[plan.features :] if part.constant else [])


def _not_again() -> NDArray[Any]:
    raise RefusedError("a piece of the records that was added is masked no more.")


def _shape(query: JointSum, told: Told) -> str:
    return hash_of({name: told[name] for name in query.shaping})
