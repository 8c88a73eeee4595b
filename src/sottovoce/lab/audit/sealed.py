"""Runs whose sums are sealed, as each adversary sees them: what it knows is taken off an opened sum, the rest is noise.

    world                     the opened sum
    coordinator               less the top-up that it drew or dealt
    all other parties         less what they put in, with their noise: by rows all but one party's part
    coordinator and parties   less both: beyond what is promised

Gates, masks, pads and the dealer are the real ones; no frames and no ledgers, and the keys of pairs are seeded. By
columns the low bits of the masks are coins that some adversary knows, and the likelihood is given the coins.
"""

from __future__ import annotations

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
from sottovoce.federation.sealed_columns.messages import widths_of
from sottovoce.federation.sealed_columns.party import ColumnRun, integers_of, own_columns
from sottovoce.lab.audit.transcript import Message, Side, Transcript
from sottovoce.plan.plan import Plan
from sottovoce.plan.sealing import COORDINATOR
from sottovoce.privacy.randomness import Randomness
from sottovoce.queries.gram import GramMatrix
from sottovoce.queries.joint import JointSum
from sottovoce.queries.pricing import queries_of
from sottovoce.sealed.columns import ONE, ROWS, Columns
from sottovoce.sealed.pads import SCORES, Asked
from sottovoce.sealed.pair_keys import PairKeys, RunKey, fingerprint_of
from sottovoce.sealed.streams import Label, masks, stream
from sottovoce.sealed.sums import Call, ColumnSealer, Noise, Opener, Sealer, label_of
from sottovoce.sealed.tables import Lookup

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Pool = Literal["world", "coordinator", "parties", "coordinator and parties"]
Data = Mapping[str, tuple[Matrix, ArrayLike]]
Keys = Mapping[str, PairKeys]


class _Seen:
    """A party's side of sealed sums that remembers what it put in, noise and all, without the masks."""

    def sealed(self: Any, values: Integers, noise: Noise, label: Label, randomness: Randomness) -> Integers:
        words: Integers = self.kind.sealed(self, values, noise, label, randomness)
        mask = masks(self._keys, self.name, label[4], label, values.size)
        self.put_in = (words.view(np.uint64) - mask).view(np.int64)
        self.drawn = self.put_in - values
        return words


class _SeenRows(_Seen, Sealer):
    kind = Sealer
    put_in: Integers
    drawn: Integers


class _SeenColumns(_Seen, ColumnSealer):
    kind = ColumnSealer
    put_in: Integers
    drawn: Integers


class _SeenDeals(LocalDeals):
    """A dealer that remembers its last top-up."""

    drawn: Integers

    def _noise(self, query: Query, told: Told, randomness: Randomness) -> Integers:
        self.drawn = super()._noise(query, told, randomness)
        return self.drawn


@dataclass(frozen=True)
class Opened:
    """A sum that was opened: what is left of it to an adversary, in steps of its grid, and with how much noise."""

    query: str
    asked: Asked
    told: Told
    left: Integers
    std: Array | float  # in steps


@dataclass(frozen=True)
class Sums:
    """All sums of a run, in order, and the model."""

    opened: tuple[Opened, ...]
    solution: Solution


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
    """One of two data sets by columns. Labels are numbers: a look-up has no coins but the low bits of the masks."""

    def __init__(self, plan: Plan, data: Data, pool: Pool, script: tuple[tuple[float, ...], ...] = ()) -> None:
        if plan.scaled_loss.kind != "regression":
            raise InputError("audits of sealed columns are of numbers: for classes the holder has secret dithers too.")
        self.plan, self.pool, self.script = plan, pool, script
        self.form = algorithms.of(plan)
        self.blocks = {name: Block.prepare(X, y, plan.part(name).preparation) for name, (X, y) in data.items()}
        self.queries = {name: queries_of(self.form, plan, name) for name in plan.names}
        self.rows = np.hstack([integers_of(block, plan, name) for name, block in self.blocks.items()])

    def text(self) -> Coordination:
        """The algorithm's own, or gradients at the weights of a script."""
        if not self.script:
            return self.form.coordinate(self.plan)
        return self._scripted()

    def _scripted(self) -> Coordination:
        for weights in self.script:
            yield Ask("gradient", {"weights": np.array(weights)})
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
        return Sums(tuple(opened), found if isinstance(found, Solution) else Solution(found))

    def log_likelihood(self, sums: Sums, seeds: Mapping[str, bytes]) -> float:
        """Of the opened sums given this data set and the coins, up to a constant."""
        memories = {name: self.form.remember(self.plan, block) for name, block in self.blocks.items()}
        found = ((one.left - self.exact(one, memories, seeds)) / one.std for one in sums.opened)
        return -0.5 * math.fsum(float(np.sum(away**2)) for away in found)

    def exact(self, one: Opened, memories: Mapping[str, Any], seeds: Mapping[str, bytes]) -> Integers:
        """The sum without noise, given the coins; what parties keep is in their memories."""
        rounds = {
            n: Round(self.plan, one.asked.number, one.told, self.blocks[n], memories.get(n)) for n in self.plan.names
        }
        queries = {name: self.queries[name][one.query] for name in rounds}
        query = queries[self.plan.names[0]]
        if isinstance(query, GramMatrix):
            return np.asarray((self.rows.T @ self.rows)[query.places])
        if not isinstance(query, JointSum):
            step = self.plan.release(one.query).step
            each = [np.rint(queries[name].value(at) / step) for name, at in rounds.items()]
            return np.asarray(np.sum(each, axis=0), dtype=np.int64)
        slopes = self.slopes(query.lookup(self.plan, one.told), one, seeds)
        if query.matrix == ONE:
            return np.asarray(slopes.sum(axis=0))
        rows = self.rows
        if query.matrix != ROWS:
            rows = np.hstack([own.columns(rounds[n]) for n, own in queries.items() if isinstance(own, JointSum)])
        return np.asarray((slopes.T @ rows).ravel())

    def slopes(self, lookup: Lookup, one: Opened, seeds: Mapping[str, bytes]) -> Integers:
        """What is looked up for every record, given the low bits of the masks."""
        piece, plan = (0, self.plan.records), self.plan
        scores, pads = (np.zeros(plan.records, dtype=np.uint16) for _ in range(2))
        labels: Array = np.zeros(plan.records)
        for name, block in self.blocks.items():
            held = np.where(block.usable_rows, block.labels, math.nan) if name == plan.label_party_name else None
            rows, bits = integers_of(block, plan, name), plan.preparation.bits
            engine = Columns(name, plan.names, widths_of(plan), rows, held, b"", bits)
            weights = own_columns(plan, name, one.told["weights"])
            scores += engine.scores(one.asked, weights, lookup, _NoDithers())
            pads += stream(seeds[name], one.asked.label(SCORES, piece), plan.records, np.uint16)
            labels = labels if held is None else np.nan_to_num(np.clip(held, -1.0, 1.0))
        places = (((scores - pads) >> lookup.fine) + (pads >> lookup.fine)) % lookup.period
        width = lookup.nodes.shape[1]
        signs = np.where(places < width, 1, -1)
        found: Integers = (lookup.nodes[:, places % width] * signs).T
        return found - np.trunc(np.outer(labels, 2.0**plan.preparation.bits * np.array(lookup.beta))).astype(np.int64)


class Anew(Randomness):
    """Bits of a source for many runs with the same keys. By key and label, as a run draws, all would have one noise."""

    secure = False

    def __init__(self, source: Randomness) -> None:
        self._source = source

    def bytes(self, count: int) -> bytes:
        """The next ones of the source."""
        return self._source.bytes(count)


class _NoDithers(Randomness):
    """For look-ups that draw none."""

    secure = False

    def bytes(self, count: int) -> bytes:
        """Zeros, and none are asked for."""
        return bytes(count)


class _Protocol:
    """The coordinator, the dealer and the parties of one run, in one process, without frames."""

    def __init__(self, side: SealedColumns, plan: Plan, keys: Keys, sources: Mapping[str, Randomness]) -> None:
        self.side, self.plan = side, plan
        self.sealers = {name: _SeenColumns(plan, name, keys[name]) for name in plan.names}
        self.gates = {name: SealedGate(plan, sources[name], None, sealer) for name, sealer in self.sealers.items()}
        self.memories = {name: side.form.remember(plan, block) for name, block in side.blocks.items()}
        self.runs = {
            name: ColumnRun(plan, sealer, side.blocks[name], self.gates[name], sources[name])
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
        told = self.sums._told(ask, query)
        noise, asked = noise_of(query, plan), self.sums._transcript.after(query.name, number, told)
        seen = np.sum([words.view(np.uint64) for words in self.shares.values()], axis=0).view(np.int64)
        if "coordinator" in pool:
            seen = seen - self.deals.drawn
        if "parties" in pool:
            seen = seen - sum(self.sealers[name].drawn for name in plan.names[1:])
        return Opened(ask.query, asked, told, seen, noise.steps(noise_left(plan, pool)))


def seeds_of(plan: Plan, keys: Keys) -> dict[str, bytes]:
    """What the dealer shares with each party."""
    return {name: keys[COORDINATOR][name] for name in plan.names}
