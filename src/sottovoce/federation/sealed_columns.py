"""Sums over the records of parties that have columns: who says what, in which order.

    set-up     the holder of the labels sends the others the key of their boxes; each party sends its masked columns
    a sum      of what each party has by itself: one share of each
    products   shares of the Gram matrix, from the masked columns and what the dealer dealt
    a look-up  masked scores, then masked slopes, then shares of the sum

Boxes pass through the coordinator, which cannot read them. Records go in pieces that fit a message. A label is used
once; a holder that was stopped in the middle has lost the run. Proof: `sealed/proofs/columns.md`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms import Ask
from sottovoce.data.block import Block
from sottovoce.door.frames import Frame
from sottovoce.door.outgoing import Masked, Share
from sottovoce.door.query import Query, Round, Told
from sottovoce.door.sealed_gate import Own, SealedGate, noise_of
from sottovoce.errors import LeakError, RefusedError, WireError
from sottovoce.federation.replies import Reply, share
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Problem
from sottovoce.privacy.mechanisms import wide_gaussian
from sottovoce.privacy.randomness import Randomness
from sottovoce.queries.gram import GramMatrix
from sottovoce.queries.joint import JointGradient, JointSum
from sottovoce.sealed.columns import ONE, ROWS, Columns
from sottovoce.sealed.dealer import Dealer, receiver_of
from sottovoce.sealed.pads import COLUMNS, SCORES, SLOPES, Piece, column_pieces, label, round_pieces
from sottovoce.sealed.streams import DEALT, RunKey, box, hash_of, stream
from sottovoce.sealed.sums import Call, ColumnSealer, Noise, Opener, label_of, packed_box

Array = NDArray[np.float64]
Wholes = NDArray[np.int64]
Arrays = Mapping[str, NDArray[Any]]

WHITENED: Final = "whitened"
TABLE: Final = "table"
DEALT_WORDS: Final = "dealt"


def widths_of(plan: Problem) -> dict[str, int]:
    """How many columns of a prepared row each party has; the constant is with the labels."""
    return {name: plan.part(name).stop - plan.part(name).start + plan.part(name).constant for name in plan.names}


def places_of(plan: Problem) -> NDArray[np.int64]:
    """For each column of a prepared row, where it stands among the parties' columns, one party after the other."""
    found = [part.place(local, plan.features) for name, part in _parts(plan) for local in range(widths_of(plan)[name])]
    return np.argsort(found)


def own_columns(plan: Problem, party: str, whole: Array) -> Array:
    """A party's entries of a vector over all columns."""
    part = plan.part(party)
    return np.append(whole[part.start : part.stop], whole[plan.features :] if part.constant else [])


def _parts(plan: Problem) -> list[tuple[str, Any]]:
    return [(name, plan.part(name)) for name in plan.names]


def integers_of(rows: Block, plan: Plan, party: str) -> Wholes:
    """Prepared rows as whole numbers of the grid, none longer than the party's share of a row."""
    width, bits = widths_of(plan)[party], plan.preparation.bits
    found = np.rint(rows.dense_rows(width) * 2.0**bits).astype(np.int64)
    most = 4.0**bits * min(1.0, float(plan.row_shares()[plan.names.index(party)]) * (1 + 2.0**-30))
    if np.any((found.astype(np.float64) ** 2).sum(axis=1) > most):
        raise LeakError("a part of a row is longer than the plan allows; nothing was released.")
    return found


class Stage(NamedTuple):
    """What a message of the protocol asks for, and of which records."""

    name: str
    piece: Piece = (0, 0)
    said: tuple[str, ...] = ()  # the arrays that everybody was told

    @property
    def text(self) -> str:
        """As a message carries it."""
        return json.dumps({"stage": self.name, "piece": self.piece, "said": self.said})

    @classmethod
    def read(cls, text: str) -> Stage:
        """The stage of a message, or a refusal."""
        try:
            found = json.loads(text)
            name, (start, stop), said = found["stage"], found["piece"], tuple(found["said"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise RefusedError("a sealed message says its stage and which records it is about.") from None
        if not (type(start) is int and type(stop) is int and all(type(one) is str for one in (name, *said))):
            raise RefusedError("a sealed message says its stage and which records it is about.")
        return cls(name, (start, stop), said)


@dataclass
class _Lookup:
    """A look-up that is under way at a party."""

    query: JointSum
    number: int
    told: Told
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
        self._plan, self._sealer, self._gate, self._randomness = plan, sealer, gate, randomness
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
            _check_piece(asked.piece, self._pieces)
            if (matrix, asked.piece) not in self._received:
                others = self._opened(label(COLUMNS, matrix, asked.piece), frame.arrays)
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
        round = round._replace(told=told)

        def product(own: Own) -> Wholes:
            number = round.number
            if isinstance(query, GramMatrix):
                return self._engine.gram(self._dealt("gram", 0, 0, sent)).view(np.int64)
            if not isinstance(query, JointSum):
                return self._engine.own(number, own(), self._dealt("own", number, number, sent)).view(np.int64)
            current = self._current(query, number)
            if hash_of(current.told) != hash_of(told):
                raise RefusedError(f"query {query.name!r} in round {number} was told other numbers before.")
            part = self._part(current, current.pieces[-1], sent)
            return np.asarray(part + current.total).ravel().view(np.int64)

        return self._gate.share(query, round, call, product)

    def _columns(self, asked: Stage, query: Query | None, round: Round, arrays: Arrays) -> Masked:
        if "group" in arrays:
            self._sealer.open_group(self._plan.label_party_name, arrays["group"])
        _check_piece(asked.piece, self._pieces)
        told = {name: array for name, array in arrays.items() if name in asked.said}
        matrix = ROWS
        if asked.name == WHITENED:
            matrix = WHITENED
            if not isinstance(query, JointSum) or query.matrix != WHITENED:
                raise RefusedError("the plan has no query of whitened columns.")
            self._check_told(query, round.number, told)
            if not self._engine.has(WHITENED):
                self._engine.add_matrix(WHITENED, query.columns(round._replace(told=told)))
                self._shaped = _shape(query, told)
            self._check_shape(query, told)
        at, told_hash = label(COLUMNS, matrix, asked.piece), hash_of(told)
        return self._gate.masked(asked.name, at, told_hash, lambda: self._engine.columns(matrix, asked.piece))[0]

    def _scores(self, query: JointSum, frame: Frame, asked: Stage) -> Masked:
        told = {name: frame.arrays[name] for name in asked.said if name in frame.arrays}
        self._check_told(query, frame.round, told)
        self._check_shape(query, told)
        table = query.lookup(self._plan, told)
        weights = own_columns(self._plan, self._sealer.name, told["weights"])
        current = self._lookup
        if current is None or current.number != frame.round:
            current = _Lookup(query, frame.round, told, pieces_of(self._plan, query, told))
        if current.query.name != query.name or hash_of(current.told) != hash_of(told):
            raise RefusedError(f"query {frame.query!r} in round {frame.round} was told other numbers before.")
        if asked.piece in current.pieces[: current.added]:
            return self._again(SCORES, frame.round, asked.piece, hash_of(told))
        _check_piece(asked.piece, current.pieces[current.added : current.added + 1])
        current.table = self._dealt(TABLE, frame.round, [frame.round, *asked.piece], frame.arrays, TABLE)
        self._lookup = current
        masked, current.delta = self._gate.masked(
            SCORES,
            label(SCORES, frame.round, asked.piece),
            hash_of(told),
            lambda: self._engine.scores(frame.round, weights, table, self._randomness, piece=asked.piece),
        )
        return masked

    def _slopes(self, query: JointSum, frame: Frame, asked: Stage) -> Masked:
        current = self._current(query, frame.round)
        if asked.piece in current.pieces[: current.added]:
            return self._again(SLOPES, frame.round, asked.piece, "")
        _check_piece(asked.piece, current.pieces[current.added : current.added + 1])
        masked, current.slopes = self._gate.masked(
            SLOPES,
            label(SLOPES, frame.round, asked.piece),
            "",
            lambda: self._looked_up(current, frame.round, asked.piece, frame.arrays),
        )
        return masked

    def _again(self, name: str, number: int, piece: Piece, told: str) -> Masked:
        """What left for a piece that was added since: the same box, for a coordinator that was stopped just then."""
        return self._gate.masked(name, label(name, number, piece), told, _not_again)[0]

    def _looked_up(self, current: _Lookup, number: int, piece: Piece, sent: Arrays) -> NDArray[np.uint64]:
        """A share of what is looked up at all parties' scores."""
        if current.delta is None:
            raise RefusedError(f"round {number} was asked for slopes before scores.")
        deltas: dict[str, Any] = self._opened(label(SCORES, number, piece), sent, np.uint16)
        deltas[self._sealer.name] = current.delta
        return self._engine.slopes(number, deltas, current.table, piece=piece)

    def _more(self, query: JointSum, frame: Frame, asked: Stage) -> None:
        """A piece of the records that is not the last: its part of the sum waits here, once."""
        current = self._current(query, frame.round)
        if asked.piece in current.pieces[: current.added]:
            return  # the answer was lost
        _check_piece(asked.piece, current.pieces[:-1])
        current.total = current.total + self._part(current, asked.piece, frame.arrays)
        current.added, current.table, current.delta, current.slopes = current.added + 1, None, None, None

    def _part(self, current: _Lookup, piece: Piece, sent: Arrays) -> NDArray[np.uint64]:
        """Of the sum over the piece whose turn it is."""
        number, matrix = current.number, current.query.matrix
        _check_piece(piece, current.pieces[current.added : current.added + 1])
        dealt = self._dealt(DEALT_WORDS, number, [number, *piece], sent)
        if matrix == ONE:
            words = self._looked_up(current, number, piece, sent)
            pad = stream(self._sealer.seed, label(SLOPES, number, piece), words.size).reshape(words.shape)
            slopes: dict[str, Any] = {self._sealer.name: words - pad}
        else:
            if current.slopes is None:
                raise RefusedError(f"round {number} was asked for a sum before slopes.")
            slopes = {**self._opened(label(SLOPES, number, piece), sent), self._sealer.name: current.slopes}
        return self._engine.gradient(number, slopes, dealt, matrix, piece=piece)

    def _current(self, query: JointSum, number: int) -> _Lookup:
        if self._lookup is None or self._lookup.number != number or self._lookup.query.name != query.name:
            raise RefusedError(f"query {query.name!r} in round {number} was not asked for scores first.")
        return self._lookup

    def _check_told(self, query: JointSum, number: int, told: Told) -> None:
        reason = query.objection(self._plan, number, told)
        if reason is not None:
            raise RefusedError(f"query {query.name!r} in round {number} {reason}.")

    def _check_shape(self, query: JointSum, told: Told) -> None:
        """Refuse a sum over whitened columns that would not say by which numbers, the same for all, they were made."""
        if query.matrix == WHITENED and self._engine.has(WHITENED) and self._shaped != _shape(query, told):
            raise RefusedError(f"query {query.name!r}: the whitened columns were made by other numbers.")

    def _opened(self, at: list[Any], sent: Arrays, kind: type[Any] = np.uint64) -> dict[str, NDArray[Any]]:
        """The padded words of all other parties, by the boxes of a message."""
        names = {str(place): name for place, name in enumerate(self._plan.names) if name != self._sealer.name}
        if not set(names) <= set(sent):
            raise RefusedError("a sealed message lacks the words of a party.")
        return {name: self._sealer.opened(at, name, sent[place], kind) for place, name in names.items()}

    def _dealt(
        self, what: str, number: int, at: Any, sent: Arrays, name: str = DEALT_WORDS
    ) -> NDArray[np.uint64] | None:
        """What the party whose turn it is was dealt; None for the others, who make their share."""
        if (name in sent) != (self._sealer.name == receiver_of(self._plan.names, number)):
            raise RefusedError(f"round {number}: one party in turn is dealt words, and nobody else.")
        return self._sealer.dealt(dealt_label(what, at), sent[name]) if name in sent else None


def _not_again() -> NDArray[Any]:
    raise RefusedError("a piece of the records that was added is masked no more.")


def _check_piece(piece: Piece, due: tuple[Piece, ...]) -> None:
    """Refuse records that are not those of the public rule, or not the next: none may count twice in a sum."""
    if piece not in due:
        raise RefusedError(f"piece={list(piece)} is not of the records whose turn it is.")


def _shape(query: JointSum, told: Told) -> str:
    return hash_of({name: told[name] for name in query.shaping})


def dealt_label(what: str, at: Any) -> list[Any]:
    """Of the box of what is dealt to one party."""
    return ["dealt", what, at]


def pieces_of(plan: Plan, query: JointSum, told: Told) -> tuple[Piece, ...]:
    """The cuts of the records in a look-up: a public rule."""
    return round_pieces(plan.records, len(plan.names), int(query.lookup(plan, told).nodes.size))


class LostError(WireError):
    """A run over sealed columns in which a party or the helper was stopped: nothing brings it back."""


def lost(who: str) -> LostError:
    """What a run ends with in which somebody was stopped."""
    return LostError(
        f"{who!r} was stopped in the middle of a run over sealed columns, which is lost; what was charged stays "
        "charged. Start a new fit (of a job: sottovoce fit --restart)."
    )


class Deals(Protocol):
    """Whoever deals: boxes for single parties, made of a plan and of public numbers."""

    def gram(self, query: Query) -> dict[str, Wholes]:
        """By party, what it is dealt for the Gram matrix."""
        ...

    def own(self, number: int, query: Query, told: Told) -> dict[str, Wholes]:
        """For a sum of what each party has by itself."""
        ...

    def lookup(self, number: int, query: JointSum, told: Told, piece: Piece) -> dict[str, dict[str, Wholes]]:
        """For a piece of a look-up: the table and the correction."""
        ...


Draw = Callable[[], Wholes]
Drawn = Callable[[str, str, Draw], Wholes]  # noise by label and what it was asked by: as drawn before, or now and kept


class LocalDeals:
    """The dealer in this process: the coordinator's own, or a helper's.

    Guarantee: what has a label is dealt once. Asked again, the last boxes are given again and nothing is drawn; by
    other numbers, or for an earlier label, it is refused. `drawn` keeps the noise of each label, and what it was asked
    by, where a coordinator goes on after it was stopped: all else follows from the key, so a label has the same boxes
    in every process.
    """

    def __init__(
        self, plan: Plan, key: RunKey, randomness: Randomness, drawn: Drawn = lambda *asked: asked[-1]()
    ) -> None:
        if plan.sealing is None:
            raise RefusedError("the plan seals nothing, and nothing is dealt.")
        self._plan, self._sealing, self._name, self._randomness = plan, plan.sealing, plan.sealing.dealer, randomness
        keys = dict(plan.keys)
        seeds = {n: key.shared(keys[n], DEALT, plan.digest, (self._name, n)) for n in plan.names}
        self._seeds = seeds
        self._dealer = Dealer(seeds, widths_of(plan), plan.records, plan.label_party_name)
        self._dealer.add_matrix(WHITENED)
        self._labels: set[str] = set()
        self._last: tuple[str, str, Any] = ("", "", None)
        self._drawn: Drawn = drawn if drawn is not None else lambda *asked: asked[2]()

    def _once(
        self, at: list[Any], query: Query, told: Told, deal: Callable[[Wholes], Any], *, noisy: bool = True
    ) -> Any:
        """A box has one content, and a top-up is drawn once: two of them on one sum would average out."""
        said, by = json.dumps(at), json.dumps([query.name, hash_of(told)])
        if self._last[:2] == (said, by):
            return self._last[2]
        if said in self._labels:
            raise RefusedError(f"the words for {query.name!r} were dealt before, and are dealt once.")
        self._labels.add(said)
        noise = self._drawn(said, by, lambda: self._noise(query, told) if noisy else np.zeros(0, dtype=np.int64))
        self._last = (said, by, deal(noise))
        return self._last[2]

    def gram(self, query: Query) -> dict[str, Wholes]:
        """The products of the pads, with the top-up."""

        def deal(noise: Wholes) -> dict[str, Wholes]:
            receiver, words = self._dealer.gram(noise)
            return {receiver: self._boxed(receiver, "gram", 0, words)}

        return dict(self._once(["gram"], query, {}, deal))

    def own(self, number: int, query: Query, told: Told) -> dict[str, Wholes]:
        """The top-up."""

        def deal(noise: Wholes) -> dict[str, Wholes]:
            receiver, words = self._dealer.own(number, noise)
            return {receiver: self._boxed(receiver, "own", number, words)}

        return dict(self._once(["own", number], query, told, deal))

    def lookup(self, number: int, query: JointSum, told: Told, piece: Piece) -> dict[str, dict[str, Wholes]]:
        """The table of a piece and its correction; the top-up is in that of the first."""
        _check_piece(piece, pieces_of(self._plan, query, told))
        deal = functools.partial(self._looked_up, number, query, told, piece)
        return dict(self._once([TABLE, number, *piece], query, told, deal, noisy=piece[0] == 0))

    def _looked_up(
        self, number: int, query: JointSum, told: Told, piece: Piece, drawn: Wholes
    ) -> dict[str, dict[str, Wholes]]:
        table, at = query.lookup(self._plan, told), [number, *piece]
        noise: Wholes | int = drawn if piece[0] == 0 else 0
        if piece[0] == 0 and query.matrix != ONE:
            noise = np.reshape(drawn, (table.outputs, -1))
        receiver, words, correction = self._dealer.lookup(number, table, query.matrix, noise, piece=piece)
        return {
            receiver: {
                TABLE: self._boxed(receiver, TABLE, at, words),
                DEALT_WORDS: self._boxed(receiver, DEALT_WORDS, at, correction),
            }
        }

    def _noise(self, query: Query, told: Told) -> Wholes:
        noise: Noise = noise_of(query, self._plan, told)
        top_up = self._sealing.top_up(len(self._plan.names), noise.known)
        if top_up == 0.0:
            return np.zeros(query.length, dtype=np.int64)
        return wide_gaussian(noise.steps(top_up), query.length, self._randomness)

    def _boxed(self, receiver: str, what: str, at: Any, words: NDArray[Any]) -> Wholes:
        data = np.ascontiguousarray(words).tobytes()
        return packed_box(box(self._seeds[receiver], dealt_label(what, at), self._name, data))


Exchange = Callable[[Iterable[str], Frame, Mapping[str, Mapping[str, NDArray[Any]]]], dict[str, Reply]]


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

    def values(self, number: int, ask: Ask, queries: Mapping[str, Query]) -> dict[str, Array]:
        """The opened value of a round; before the first the parties get what they need of one another."""
        for _ in self._steps.once("set-up"):
            self.set_up()
        return {"sum": self.sum(number, ask, queries)}

    def recall(self, queries: Mapping[str, Query], values: Mapping[str, Array]) -> None:
        """Take in a round that was answered before this process was started."""
        query = next(iter(queries.values()))
        if isinstance(query, GramMatrix):
            self._gram = query.matrix(values["sum"])

    def set_up(self) -> None:
        """The key of the parties, and their masked columns."""
        names, holder = self._plan.names, self._plan.label_party_name
        boxes = self._say([holder], Stage("group"))[holder].frame.arrays
        group = {name: {"group": box_of(boxes, str(place))} for place, name in enumerate(names) if name != holder}
        self._pass_on(COLUMNS, "", 0, {}, group)

    def sum(self, number: int, ask: Ask, queries: Mapping[str, Query]) -> Array:
        """The opened value of a round, in the order of the columns of a prepared row."""
        query, told = next(iter(queries.values())), dict(ask.arrays)
        if isinstance(query, GramMatrix):
            dealt = {name: {DEALT_WORDS: words} for name, words in self._deals.gram(query).items()}
            value = self._opened(number, ask.query, queries, told, dealt)
            gram = self._gram = query.matrix(value)[np.ix_(self._order, self._order)]
            return np.asarray(gram[query.places])
        if not isinstance(query, JointSum):
            dealt = {name: {DEALT_WORDS: words} for name, words in self._deals.own(number, query, told).items()}
            return self._opened(number, ask.query, queries, told, dealt)
        if isinstance(query, JointGradient):
            told["widen"] = np.array([query.widened(self._plan, told["weights"], self._gram)], dtype=np.int64)
        each = self._look_up(number, query, told)
        value = self._opened(number, ask.query, queries, told, each)
        if query.matrix == ONE:
            return value
        return np.asarray(value.reshape(-1, len(self._order))[:, self._order].ravel())

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
        each: Mapping[str, Mapping[str, NDArray[Any]]],
    ) -> Array:
        query = next(iter(queries.values()))
        call = Call(self._plan.names, said=tuple(told))
        said = Frame("ask", 0, self._plan.digest, number, name, told, call.text)
        replies = self._exchange(self._plan.names, said, each)
        _check_remembered(replies)
        shares = {party: share(party, query, replies[party]) for party in call.roster}
        return self._opener.open(shares, noise_of(query, self._plan, told), label_of(name, number, call, told))

    def _pass_on(
        self, stage: str, query: str, number: int, told: Told, first: Mapping[str, Mapping[str, NDArray[Any]]]
    ) -> None:
        """Every party's masked columns to every other."""
        for piece in column_pieces(self._plan.records, widths_of(self._plan)):
            for _ in self._steps.once(stage, *piece):
                asked = Stage(stage, piece, tuple(told))
                replies = self._say(self._plan.names, asked, query, number, (told, first))
                self._say(self._plan.names, Stage("receive", piece), query, number, ({}, self._to_others(replies)))
            first = {}

    def _to_others(self, replies: Mapping[str, Reply]) -> dict[str, dict[str, NDArray[Any]]]:
        boxes = {name: box_of(reply.frame.arrays, "boxed") for name, reply in replies.items()}
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
        said: tuple[Told, Mapping[str, Mapping[str, NDArray[Any]]]] = ({}, {}),
    ) -> dict[str, Reply]:
        told, each = said
        frame = Frame("seal", 0, self._plan.digest, number, query, told, stage.text)
        replies = self._exchange(names, frame, each)
        _check_remembered(replies)
        return replies


def box_of(arrays: Arrays, name: str) -> NDArray[Any]:
    """The box of that name, which has to be there."""
    if name not in arrays:
        raise WireError("a party sent no box where one is due.")
    return arrays[name]


def crossed(plan: Plan, boxes: Mapping[str, Arrays]) -> dict[str, dict[str, NDArray[Any]]]:
    """Of the boxes that each party made for each other, by its place: those for each, by the place of their sender."""
    places = {name: str(place) for place, name in enumerate(plan.names)}
    return {
        name: {places[other]: box_of(sent, places[name]) for other, sent in boxes.items() if other != name}
        for name in plan.names
    }


def _check_remembered(replies: Mapping[str, Reply]) -> None:
    """A party that was restarted has neither its keys nor the columns of the others."""
    if forgot := [name for name, reply in replies.items() if reply.frame.kind == "unknown-plan"]:
        raise lost(forgot[0])
