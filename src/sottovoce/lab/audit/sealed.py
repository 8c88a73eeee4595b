"""Runs whose sums are sealed, as each adversary sees them: what it knows is taken off an opened sum, the rest is noise.

    world                     the opened sum
    coordinator               less the top-up that it drew or dealt
    all other parties         less what they put in, with their noise: by rows all but one party's part
    coordinator and parties   less both: beyond what is promised

Gates, masks, pads and the dealer are the real ones; no frames and no ledgers, and the keys of pairs are seeded. By
columns rows are rounded and bits are looked up by coins that some adversary knows, and the likelihood is given the
coins.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce import algorithms
from sottovoce.algorithms import Ask, Solution
from sottovoce.algorithms.base import Coordination
from sottovoce.data.block import Block, Matrix
from sottovoce.door.frames import Frame
from sottovoce.door.outgoing import SEAL, Released
from sottovoce.door.query import Query, Round, Told
from sottovoce.door.sealed_gate import SealedGate, noise_of
from sottovoce.errors import InputError
from sottovoce.federation.announcements import known_keys
from sottovoce.federation.replies import Reply
from sottovoce.federation.sealed_columns.coordinator import ColumnSums
from sottovoce.federation.sealed_columns.dealer import LocalDeals
from sottovoce.federation.sealed_columns.messages import (
    FACTOR,
    LENGTH,
    LOOK_UP,
    NULL,
    Work,
    message_label,
    pieces_of,
    place_of,
)
from sottovoce.federation.sealed_columns.party import ColumnRun, integers_of, looked_up, own_columns, projected
from sottovoce.lab.audit.transcript import Message, Side, Transcript
from sottovoce.plan.plan import Plan
from sottovoce.plan.sealing import COORDINATOR
from sottovoce.privacy.randomness import Randomness
from sottovoce.queries.gradient import GradientSum
from sottovoce.queries.gram import GramMatrix
from sottovoce.queries.joint import JointSum
from sottovoce.queries.pricing import queries_of
from sottovoce.sealed import fields
from sottovoce.sealed.columns import Columns, Program
from sottovoce.sealed.dealer import Dealer
from sottovoce.sealed.fields import Fields
from sottovoce.sealed.pads import NOTHING_TOLD, Asked, column_pieces
from sottovoce.sealed.pair_keys import PairKeys, RunKey, fingerprint_of
from sottovoce.sealed.streams import Label, masks
from sottovoce.sealed.sums import Call, ColumnSealer, Noise, Opener, Sealer, from_ring, label_of
from sottovoce.sealed.words import word_bits

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Pool = Literal["world", "coordinator", "parties", "coordinator and parties"]
Data = Mapping[str, tuple[Matrix, ArrayLike]]
Keys = Mapping[str, PairKeys]


class _Seen:
    """A party's side of sealed sums that remembers what it put in, noise and all, without the masks."""

    def sealed(self: Any, values: Integers, noise: Noise, label: Label, randomness: Randomness) -> Integers:
        words: Integers = self.kind.sealed(self, values, noise, label, randomness)
        mask = masks(self._keys, self.name, label[4], label, words.size)
        put_in = from_ring(words.view(np.uint64) - mask, self.bits)
        assert put_in is not None, "words of the ring"  # noqa: S101
        self.put_in, spare = put_in, 64 - self.bits
        self.drawn = ((put_in - values) << spare) >> spare
        return words


class _SeenRows(_Seen, Sealer):
    kind = Sealer
    put_in: Integers
    drawn: Integers


class _SeenColumns(_Seen, ColumnSealer):
    kind = ColumnSealer
    put_in: Integers
    drawn: Integers


class Recorded(Randomness):
    """Bits of a source, which are remembered."""

    secure = False

    def __init__(self, source: Randomness) -> None:
        self._source, self.drawn = source, b""

    def bytes(self, count: int) -> bytes:
        """The next ones of the source."""
        found = self._source.bytes(count)
        self.drawn += found
        return found


class Replayed(Randomness):
    """Bits that were drawn before."""

    secure = False

    def __init__(self, drawn: bytes) -> None:
        self._left = drawn

    def bytes(self, count: int) -> bytes:
        """The next ones of them."""
        found, self._left = self._left[:count], self._left[count:]
        return found


class _SeenDeals(LocalDeals):
    """A dealer that remembers its last top-up, and its last coins."""

    drawn: Integers
    coins: Recorded

    def _noise(self, query: Query, randomness: Randomness) -> Integers:
        self.drawn = super()._noise(query, randomness)
        return self.drawn

    def _coins(self, label: Label) -> Randomness:
        self.coins = Recorded(super()._coins(label))
        return self.coins


@dataclass(frozen=True)
class Opened:
    """A sum that was opened: what is left of it to an adversary, in steps of its grid, and with how much noise.

    `coins` are those of the dealer, which it knows and nobody else; bounds hold for each of them.
    """

    query: str
    number: int
    asked: Asked
    told: Told
    left: Integers
    std: Array | float  # in steps
    coins: bytes = b""


@dataclass(frozen=True)
class Sums:
    """All sums of a run, in order, the model, and the coins by which each party's rows were rounded."""

    opened: tuple[Opened, ...]
    solution: Solution
    rounding: Mapping[str, bytes]


def keyed(plan: Plan, randomness: Callable[[str], Randomness]) -> tuple[Plan, Keys]:
    """The plan with keys of its members, and the keys of their pairs: seeded, where those of a run are not."""
    sealing = plan.sealing
    if sealing is None:
        raise InputError("the plan seals nothing.")
    members = (*plan.names, sealing.dealer) if plan.split == "columns" else plan.names
    own = {name: RunKey(randomness(f"key of {name}").bytes(32)) for name in members}
    prints = {name: fingerprint_of(key.public) for name, key in own.items()}
    keys, found = {}, dict[str, dict[str, str]]({name: {} for name in members})
    for one, other in itertools.combinations(members, 2):
        found[one][other] = found[other][one] = randomness(f"key of {one} and {other}").bytes(32).hex()
    for name, key in own.items():
        keys[name] = PairKeys(key, members, known_keys(name, prints, None, pins=False), [])
        keys[name].restore({"pairs": found[name]})
    return plan.model_copy(update={"keys": tuple(prints.items())}), keys


def noise_left(plan: Plan, pool: Pool) -> float:
    """Of sigma^2, to an adversary that has no part of the canary; 0 where nothing hides it."""
    sealing, parties = plan.sealing, len(plan.names)
    if sealing is None:
        return 1.0
    shares = parties - 1 if "parties" in pool else 0
    return sealing.left(parties, shares, dealer="coordinator" in pool)


class SealedRows(Side):
    """One of two data sets by rows, all of it null but for the first party's rows: others know what they put in."""

    def __init__(self, plan: Plan, data: Data, pool: Pool) -> None:
        super().__init__(plan, data)
        self.pool, self.own = pool, plan.names[0]
        if not all(block.null_rows.all() for name, block in self.blocks.items() if name != self.own):
            raise InputError("a game about sealed sums has null rows at all parties but the first.")
        left = math.sqrt(noise_left(plan, pool))
        self.releases = {r.query: r.model_copy(update={"std": r.std * left}) for r in plan.releases}

    def sealed_play(self, plan: Plan, keys: Keys, sources: Mapping[str, Randomness]) -> Transcript:
        """A run, as `Coordinator.run` has it; the first party's messages are what is left of the sums."""
        sealers = {name: _SeenRows(plan, name, keys[name]) for name in plan.names}
        gates = {name: SealedGate(plan, sources[name], None, sealers[name]) for name in plan.names}
        opener, memories = Opener(plan, sources[COORDINATOR]), self.memories()
        text, messages, number = self.form.coordinate(plan), list[Message](), 0
        try:
            ask = next(text)
            while True:
                call = Call(plan.names, said=tuple(ask.arrays))
                shares = {
                    name: np.array(
                        gate.share(
                            self.queries[name][ask.query],
                            Round(plan, number, ask.arrays, self.blocks[name], memories[name]),
                            call,
                        ).arrays["sealed"]
                    )
                    for name, gate in gates.items()
                }
                noise = noise_of(self.queries[self.own][ask.query], plan)
                value = opener.open(shares, noise, label_of(ask.query, number, call, {**ask.reminder, **ask.arrays}))
                seen = np.rint(value / noise.release.step).astype(np.int64)
                if "coordinator" in self.pool:
                    seen = np.sum([words.view(np.uint64) for words in shares.values()], axis=0).view(np.int64)
                if "parties" in self.pool:
                    seen = seen - sum(sealers[name].put_in for name in plan.names if name != self.own)
                released = Released(ask.query, number, {"grid": np.array(seen)}, seal=SEAL)
                messages.append(Message(self.own, ask.query, number, ask.arrays, released))
                number += 1
                ask = text.send({"sum": value})
        except StopIteration as stop:
            found = stop.value
        return Transcript(tuple(messages), found if isinstance(found, Solution) else Solution(found))


class SealedColumns:
    """One of two data sets by columns, one piece of records."""

    def __init__(self, plan: Plan, data: Data, pool: Pool, script: tuple[tuple[float, ...], ...] = ()) -> None:
        self.plan, self.pool, self.script = plan, pool, script
        self.form = algorithms.of(plan)
        self.blocks = {name: Block.prepare(X, y, plan.part(name).preparation) for name, (X, y) in data.items()}
        self.queries = {name: queries_of(self.form, plan, name) for name in plan.names}

    def text(self) -> Coordination:
        """The algorithm's own, or gradients at the weights of a script."""
        if not self.script:
            return self.form.coordinate(self.plan)
        return self._scripted()

    def _scripted(self) -> Coordination:
        query = self.queries[self.plan.names[0]]["gradient"]
        assert isinstance(query, GradientSum), query.name  # noqa: S101
        for weights in self.script:
            yield Ask("gradient", query.asked_at(np.array(weights)))
        return np.zeros(self.plan.dimension)

    def play(self, plan: Plan, keys: Keys, sources: Mapping[str, Randomness]) -> Sums:
        """A run through the real protocol."""
        run = _Protocol(self, plan, keys, sources)
        text, opened, number = self.text(), list[Opened](), 0
        try:
            ask = next(text)
            while True:
                value = run.sum(number, ask)
                opened.append(run.left(number, ask, self.pool))
                number += 1
                ask = text.send({"sum": value})
        except StopIteration as stop:
            found = stop.value
        solution = found if isinstance(found, Solution) else Solution(found)
        return Sums(tuple(opened), solution, {name: coins.drawn for name, coins in run.rounding.items()})

    def log_likelihood(self, sums: Sums, seeds: Mapping[str, bytes]) -> float:
        """Of the opened sums given this data set and the coins, up to a constant."""
        clear = Clear(self, sums.rounding, seeds)
        found = ((one.left - clear.sum(one)) / one.std for one in sums.opened)
        return -0.5 * math.fsum(float(np.sum(away**2)) for away in found)


class Clear:
    """The sums of one data set without noise, by the pads and coins of a run: what its parties say, all of it known."""

    def __init__(self, side: SealedColumns, rounding: Mapping[str, bytes], seeds: Mapping[str, bytes]) -> None:
        plan = self.plan = side.plan
        self.side, self.seeds = side, {name: seeds[name] for name in plan.names}
        self.parties, self._factors = dict[str, Columns](), dict[str, Told]()
        for name, block in side.blocks.items():
            rows = integers_of(block, plan, name, Replayed(rounding[name]))
            labels = block.labels if name == plan.label_party_name else None
            place = place_of(plan, name)
            self.parties[name] = Columns(place, rows, block.usable_rows, labels, seeds[name])
        place = place_of(plan, plan.names[0])
        self.dealer = Dealer(self.seeds, place.widths, plan.records, place.bits, classes=place.classes)
        for piece in column_pieces(plan.records, place.widths):
            said = {n: self.padded(n, p.columns_label(piece), p.columns(piece)) for n, p in self.parties.items()}
            for name, party in self.parties.items():
                party.receive_columns({other: each for other, each in said.items() if other != name}, piece)
        first, (piece,) = Asked(0, NOTHING_TOLD), pieces_of(plan)
        dealt = self.dealer.null(first, piece)
        self.play(NULL, first, dealt, lambda party, words: party.null(first, piece, words))

    def padded(self, name: str, label: Label, said: Fields) -> Fields:
        """As the others see it."""
        return fields.subtract(said, fields.streams(self.seeds[name], label, said))

    def play(
        self, program: str, asked: Asked, dealt: tuple[str, Fields], begin: Callable[[Columns, Fields | None], Program]
    ) -> Integers:
        """All messages of a program, and the sum of what the parties have at its end."""
        (piece,), (receiver, words) = pieces_of(self.plan), dealt
        running = {name: begin(party, words if name == receiver else None) for name, party in self.parties.items()}
        said, ends, number = {name: next(one) for name, one in running.items()}, list[Integers](), 0
        while said:
            label = message_label(asked, program, number, piece)
            total = functools.reduce(fields.add, (self.padded(name, label, each) for name, each in said.items()))
            said = {}
            for name, one in running.items():
                try:
                    said[name] = one.send(total)
                except StopIteration as end:
                    ends += [] if end.value is None else [end.value]
            number += 1
        return np.asarray(sum(ends), dtype=np.int64)

    def sum(self, one: Opened) -> Integers:
        """The sum that was opened, without noise, given the coins."""
        plan, side, asked, (piece,) = self.plan, self.side, one.asked, pieces_of(self.plan)
        queries = {name: side.queries[name][one.query] for name in plan.names}
        query = queries[plan.names[0]]
        if isinstance(query, GramMatrix):
            dealt = self.dealer.gram(asked)
            shares = [p.gram(asked, dealt[1] if name == dealt[0] else None) for name, p in self.parties.items()]
            return self._signed(np.sum(shares, axis=0))
        if not isinstance(query, JointSum):
            step, rounds = (
                plan.release(one.query).step,
                {n: Round(plan, one.number, one.told, b, {}) for n, b in side.blocks.items()},
            )
            each = [np.rint(queries[name].value(at) / step) for name, at in rounds.items()]
            return np.asarray(np.sum(each, axis=0), dtype=np.int64)
        coins = Replayed(one.coins)
        if query.program == LENGTH:
            p = projected(plan, Work(LENGTH, one.number, query, one.told))
            dealt = self.dealer.length(asked, piece, p, 0, coins)
            return self._signed(self.play(LENGTH, asked, dealt, lambda party, d: party.length(asked, piece, p, d)))
        if query.factored and query.name not in self._factors:
            self._factors[query.name] = one.told
            p = projected(plan, Work(FACTOR, one.number, query, one.told))
            dealt = self.dealer.factor(asked, piece, p)
            self.play(FACTOR, asked, dealt, lambda party, d: party.factor(asked, piece, p, d))
        lookup = looked_up(plan, Work(LOOK_UP, one.number, query, one.told), self._factors)
        assert lookup is not None, query.name  # noqa: S101
        weights = {name: own_columns(plan, name, one.told["weights"]) for name in plan.names}
        dealt = self.dealer.look_up(asked, piece, lookup, 0, coins)
        return self._signed(
            self.play(
                LOOK_UP,
                asked,
                dealt,
                lambda party, d: party.look_up(asked, piece, lookup, weights[party.place.name], d),
            )
        )

    def _signed(self, words: Integers) -> Integers:
        """Residues as signed numbers."""
        spare = 64 - word_bits(self.plan)
        return np.asarray((words << spare) >> spare)


class Anew(Randomness):
    """Bits of a source for many runs with the same keys. By key and label, as a run draws, all would have one noise."""

    secure = False

    def __init__(self, source: Randomness) -> None:
        self._source = source

    def bytes(self, count: int) -> bytes:
        """The next ones of the source."""
        return self._source.bytes(count)


class _Protocol:
    """The coordinator, the dealer and the parties of one run, in one process, without frames."""

    def __init__(self, side: SealedColumns, plan: Plan, keys: Keys, sources: Mapping[str, Randomness]) -> None:
        self.side, self.plan = side, plan
        self.sealers = {name: _SeenColumns(plan, name, keys[name]) for name in plan.names}
        self.gates = {name: SealedGate(plan, sources[name], None, sealer) for name, sealer in self.sealers.items()}
        self.memories = {name: side.form.remember(plan, block) for name, block in side.blocks.items()}
        self.rounding = {name: Recorded(sources[name]) for name in plan.names}
        self.runs = {
            name: ColumnRun(plan, sealer, side.blocks[name], self.gates[name], self.rounding[name])
            for name, sealer in self.sealers.items()
        }
        self.shares: dict[str, Integers] = {}
        self.deals = _SeenDeals(plan, keys[COORDINATOR], sources[COORDINATOR])
        self.sums = ColumnSums(plan, self.exchange, self.deals, Opener(plan, sources[COORDINATOR]))
        self.sums.set_up()

    def exchange(
        self, names: Iterable[str], frame: Frame, each: Mapping[str, Mapping[str, NDArray[Any]]]
    ) -> dict[str, Reply]:
        """What the parties answer."""
        return {name: Reply(self.answered(name, frame, {**frame.arrays, **each.get(name, {})}), {}) for name in names}

    def answered(self, name: str, frame: Frame, arrays: Mapping[str, NDArray[Any]]) -> Frame:
        said = Frame(frame.kind, 0, frame.plan, frame.round, frame.query, dict(arrays), frame.text)
        query = self.side.queries[name].get(frame.query)
        told = arrays if frame.kind == "seal" else {n: arrays[n] for n in Call.read(frame.text).said}
        round = Round(self.plan, frame.round, told, self.side.blocks[name], self.memories[name])
        if frame.kind == "ask" and query is not None:
            words: Mapping[str, NDArray[Any]] = self.runs[name].share(query, round, said).arrays
            self.shares[name] = words["sealed"]
        else:
            masked = self.runs[name].stage(said, query, round)
            words = {} if masked is None else masked.arrays
        return Frame("answer", 0, frame.plan, frame.round, frame.query, dict(words), "")

    def sum(self, number: int, ask: Ask) -> Array:
        """The opened value."""
        return self.sums.sum(number, ask, {name: self.side.queries[name][ask.query] for name in self.plan.names})

    def left(self, number: int, ask: Ask, pool: Pool) -> Opened:
        """The last sum as an adversary sees it, in the order of the parties' columns."""
        plan = self.plan
        query = self.side.queries[plan.names[0]][ask.query]
        noise, asked = noise_of(query, plan), self.sums._transcript.after(query.name, number, ask.arrays)
        bits = word_bits(plan)
        total = np.asarray(np.sum([words.view(np.uint64) for words in self.shares.values()], axis=0, dtype=np.uint64))
        seen = from_ring(total, bits)
        assert seen is not None, "shares of one sum"  # noqa: S101
        if "coordinator" in pool:
            seen = seen - self.deals.drawn
        if "parties" in pool:
            seen = seen - sum(self.sealers[name].drawn for name in plan.names[1:])
        coins = self.deals.coins.drawn if isinstance(query, JointSum) else b""
        std = noise.steps(noise_left(plan, pool))
        return Opened(ask.query, number, asked, ask.arrays, np.asarray(seen), std, coins)


def seeds_of(plan: Plan, keys: Keys) -> dict[str, bytes]:
    """What the dealer shares with each party."""
    return {name: keys[COORDINATOR][name] for name in plan.names}
