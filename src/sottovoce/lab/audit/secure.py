"""Runs whose sums are secure, as each adversary sees them: what it knows is taken off an opened sum, the rest is noise.

    world                     the opened sum
    coordinator               less the top-up that it drew or dealt
    all other parties         less what they put in, with their noise: by rows all but one party's part
    coordinator and parties   less both: beyond what is promised

Gates, masks and the dealer are the real ones; no frames and no ledgers, and the keys of pairs are seeded. By
columns masks, what the dealer draws for bits, and how rows were rounded are coins that some adversary knows. They are
functions of the keys and of what was told: the likelihood is by the same questions put to a data set without noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.algorithms import Ask
from sottovoce.algorithms.base import Coordination
from sottovoce.data.block import Matrix
from sottovoce.errors import InputError
from sottovoce.federation.replies import CheckedReply
from sottovoce.federation.run_keys import known_keys
from sottovoce.federation.secure_columns.coordinator import ColumnSums
from sottovoce.federation.secure_columns.dealer import LocalDeals
from sottovoce.federation.secure_columns.party import ColumnRun
from sottovoce.gate.frames import Frame
from sottovoce.gate.outgoing import GATE, Released
from sottovoce.gate.query import MessageArrays, Query, Round
from sottovoce.gate.secure_gate import SecureGate, noise_of
from sottovoce.lab.audit.transcript import Answered, Side, Transcript, play_rounds
from sottovoce.plan.plan import Plan
from sottovoce.plan.split import COORDINATOR
from sottovoce.privacy.mechanisms import Randomness, SystemRandomness
from sottovoce.queries.joint import JointGradient
from sottovoce.secure.pair_keys import PairKeys, RunKey, fingerprint_of
from sottovoce.secure.streams import Label, hash_of, masks
from sottovoce.secure.sums import Call, ColumnMasker, Masker, Noise, Opener, from_ring, in_ring, label_of

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
AttackingView = Literal["world", "coordinator", "parties", "coordinator and parties"]
Data = Mapping[str, tuple[Matrix, ArrayLike]]
Keys = Mapping[str, PairKeys]


class _Seen:
    """A party's side of secure sums that remembers what it put in, noise and all, without the masks."""

    put_in: Integers
    drawn: Integers

    def masked_share(self: Any, values: Integers, noise: Noise, label: Label, randomness: Randomness) -> Integers:
        words: Integers = self.kind.masked_share(self, values, noise, label, randomness)
        mask = masks(self._keys, self.name, label[4], label, words.size)
        self.put_in = _whole(words.view(np.uint64) - mask, self.bits)
        self.drawn = _whole(in_ring(self.put_in - values, self.bits), self.bits)
        return words


class _SeenRows(_Seen, Masker):
    kind = Masker


class _SeenColumns(_Seen, ColumnMasker):
    kind = ColumnMasker


class _SilentColumns(ColumnMasker):
    """One that adds no noise."""

    def masked_share(self, values: Integers, _noise: Noise, label: Label, _randomness: Randomness) -> Integers:
        words = in_ring(values, self.bits)
        return (words + masks(self._keys, self.name, label[4], label, words.size)).view(np.int64)


class _SeenDeals(LocalDeals):
    """A dealer that remembers its last top-up, and adds none without a source; coins are by key and label, always."""

    drawn: Integers

    def __init__(self, plan: Plan, keys: PairKeys, source: Randomness | None) -> None:
        super().__init__(plan, keys, SystemRandomness())
        self._source = source

    def _noise(self, query: Query, _randomness: Randomness) -> Integers:
        self.drawn = np.zeros(query.length, dtype=np.int64)
        if self._source is not None:
            self.drawn = super()._noise(query, self._source)
        return self.drawn


def _whole(words: NDArray[np.uint64], bits: int) -> Integers:
    """The numbers of words that add up."""
    found = from_ring(words, bits)
    if found is None:
        raise InputError("shares of a secure sum do not add up.")
    return found


@dataclass(frozen=True)
class OpenedSum:
    """A sum that was opened: what is left of it to an adversary, in steps of its grid, and with how much noise."""

    query: str
    number: int
    told: MessageArrays
    left: Integers
    std: Array | float  # in steps


def with_keys(plan: Plan, randomness: Callable[[str], Randomness]) -> tuple[Plan, Keys]:
    """The plan with keys of its members, and the keys of their pairs: seeded, where those of a run are not."""
    members = plan.channel.members
    if not members:
        raise InputError("the plan secures nothing.")
    own = {name: RunKey(randomness(f"key of {name}").bytes(32)) for name in members}
    prints = {name: fingerprint_of(key.public) for name, key in own.items()}
    keys, found = {}, dict[str, dict[str, str]]({name: {} for name in members})
    for one, other in itertools.combinations(members, 2):
        found[one][other] = found[other][one] = randomness(f"key of {one} and {other}").bytes(32).hex()
    for name, key in own.items():
        keys[name] = PairKeys(key, members, known_keys(name, prints, None, pins=False), [])
        keys[name].restore({"pairs": found[name]})
    return plan.model_copy(update={"keys": tuple(prints.items())}), keys


def noise_left(plan: Plan, coalition: AttackingView) -> float:
    """Of sigma^2, to an adversary that has no part of the canary; 0 where nothing hides it."""
    if not plan.channel.secure:
        return 1.0
    parties = len(plan.names)
    shares = parties - 1 if "parties" in coalition else 0
    return plan.channel.aggregation.left(parties, shares, dealer="coordinator" in coalition)


class SecureRows(Side):
    """One of two data sets by rows, all of it null but for the first party's rows: others know what they put in."""

    def __init__(self, plan: Plan, data: Data, coalition: AttackingView) -> None:
        super().__init__(plan, data)
        self.coalition, self.own = coalition, plan.names[0]
        if not all(block.null_rows.all() for name, block in self.blocks.items() if name != self.own):
            raise InputError("a game about secure sums has null rows at all parties but the first.")
        left = math.sqrt(noise_left(plan, coalition))
        self.releases = {r.query: r.model_copy(update={"std": r.std * left}) for r in plan.releases}

    def secure_play(self, plan: Plan, keys: Keys, sources: Mapping[str, Randomness]) -> Transcript:
        """A run, as `Coordinator.run` has it; the first party's messages are what is left of the sums."""
        maskers = {name: _SeenRows(plan, name, keys[name]) for name in plan.names}
        gates = {name: SecureGate(plan, sources[name], None, maskers[name]) for name in plan.names}
        opener, memories, messages = Opener(plan, sources[COORDINATOR]), self.memories(), list[Answered]()

        def answer(ask: Ask, number: int, _parties: tuple[str, ...]) -> dict[str, Array]:
            call, shares = Call(plan.names, said=tuple(ask.arrays)), dict[str, Integers]()
            for name, gate in gates.items():
                round = Round(plan, number, ask.arrays, self.blocks[name], memories[name])
                shares[name] = np.array(gate.share(self.queries[name][ask.query], round, call).arrays["share"])
            noise = noise_of(self.queries[self.own][ask.query], plan)
            value = opener.open(shares, noise, label_of(ask.query, number, call, {**ask.reminder, **ask.arrays}))
            seen = np.rint(value / noise.release.step).astype(np.int64)
            if "coordinator" in self.coalition:
                seen = np.sum([words.view(np.uint64) for words in shares.values()], axis=0).view(np.int64)
            if "parties" in self.coalition:
                seen = seen - sum(maskers[name].put_in for name in plan.names if name != self.own)
            released = Released(ask.query, number, {"grid": np.array(seen)}, made_by=GATE)
            messages.append(Answered(self.own, ask.query, number, ask.arrays, released))
            return {"sum": value}

        solution = play_rounds(plan, self.form, self.form.coordinate(plan), answer)
        return Transcript(tuple(messages), solution)


class SecureColumns(Side):
    """One of two data sets by columns."""

    def __init__(
        self, plan: Plan, data: Data, coalition: AttackingView, script: tuple[tuple[float, ...], ...] = ()
    ) -> None:
        super().__init__(plan, data)
        self.coalition, self.script = coalition, script
        self._exact: tuple[Any, tuple[Integers, ...]] = (None, ())  # of what was asked last

    def text(self) -> Coordination:
        """The algorithm's own, or gradients at the weights of a script."""
        if not self.script:
            return (yield from self.form.coordinate(self.plan))
        query = self.queries[self.plan.names[0]]["gradient"]
        if not isinstance(query, JointGradient):
            raise InputError("a script has the weights of gradients of rows.")
        for weights in self.script:
            yield Ask("gradient", query.message(np.array(weights)))
        return np.zeros(self.plan.dimension)

    def secure_play(self, plan: Plan, keys: Keys, sources: Mapping[str, Randomness]) -> list[OpenedSum]:
        """A run through the real protocol: all its sums, in order."""
        run, opened = _Protocol(self, plan, keys, sources), list[OpenedSum]()

        def answer(ask: Ask, number: int, _parties: tuple[str, ...]) -> dict[str, Array]:
            value = run.sum(number, ask)
            opened.append(run.left(number, ask, self.coalition))
            return {"sum": value}

        play_rounds(plan, self.form, self.text(), answer)
        return opened

    def log_likelihood(self, sums: Sequence[OpenedSum], keys: Keys) -> float:
        """Of the opened sums given this data set and the coins, up to a constant."""
        found = zip(sums, self.exact(sums, keys), strict=True)
        return -0.5 * math.fsum(float(np.sum(((one.left - exact) / one.std) ** 2)) for one, exact in found)

    def exact(self, asked: Sequence[OpenedSum], keys: Keys) -> tuple[Integers, ...]:
        """The sums without noise: the same questions, in order, with the same masks and coins."""
        by = [(one.query, one.number, hash_of(one.told)) for one in asked], keys
        if self._exact[0] != by:
            run, found = _Protocol(self, self.plan, keys), list[Integers]()
            for one in asked:
                ask = Ask(one.query, one.told)
                run.sum(one.number, ask)
                found.append(run.left(one.number, ask, "world").left)
            self._exact = by, tuple(found)
        return self._exact[1]


class Anew(Randomness):
    """Bits of a source for many runs with the same keys. By key and label, as a run draws, all would have one noise."""

    secure = False

    def __init__(self, source: Randomness) -> None:
        self._source = source

    def bytes(self, count: int) -> bytes:
        return self._source.bytes(count)


class _Protocol:
    """The coordinator, the dealer and the parties of one run, in one process, without frames; without sources no noise.

    How rows are rounded follows from the keys alone, whatever the rows are.
    """

    def __init__(
        self, side: SecureColumns, plan: Plan, keys: Keys, sources: Mapping[str, Randomness] | None = None
    ) -> None:
        self.side, self.plan, kind = side, plan, _SilentColumns if sources is None else _SeenColumns
        self.maskers = {name: kind(plan, name, keys[name]) for name in plan.names}
        self.memories = {name: side.form.remember(plan, block) for name, block in side.blocks.items()}
        self.runs, coins = dict[str, ColumnRun](), SystemRandomness()
        for name, masker in self.maskers.items():
            gate = SecureGate(plan, coins if sources is None else sources[name], None, masker)
            self.runs[name] = ColumnRun(plan, masker, side.blocks[name], gate, coins)
        self.shares: dict[str, Integers] = {}
        self.deals = _SeenDeals(plan, keys[COORDINATOR], None if sources is None else sources[COORDINATOR])
        self.sums = ColumnSums(plan, self.exchange, self.deals, Opener(plan, coins))
        self.sums.set_up()

    def exchange(
        self, names: Iterable[str], frame: Frame, each: Mapping[str, Mapping[str, NDArray[Any]]]
    ) -> dict[str, CheckedReply]:
        told = {name: {**frame.arrays, **each.get(name, {})} for name in names}
        return {name: CheckedReply(self.answered(name, frame, arrays), {}) for name, arrays in told.items()}

    def answered(self, name: str, frame: Frame, arrays: Mapping[str, NDArray[Any]]) -> Frame:
        said = Frame(frame.kind, 0, frame.plan, frame.round, frame.query, dict(arrays), frame.text)
        query = self.side.queries[name].get(frame.query)
        told = arrays if frame.kind == "secure" else {n: arrays[n] for n in Call.read(frame.text).said}
        round = Round(self.plan, frame.round, told, self.side.blocks[name], self.memories[name])
        if frame.kind == "ask" and query is not None:
            words: Mapping[str, NDArray[Any]] = self.runs[name].share(query, round, said).arrays
            self.shares[name] = words["share"]
        else:
            masked = self.runs[name].stage(said, query)
            words = {} if masked is None else masked.arrays
        return Frame("answer", 0, frame.plan, frame.round, frame.query, dict(words), "")

    def sum(self, number: int, ask: Ask) -> Array:
        return self.sums.sum(number, ask, {name: self.side.queries[name][ask.query] for name in self.plan.names})

    def left(self, number: int, ask: Ask, coalition: AttackingView) -> OpenedSum:
        """The last sum as an adversary sees it, in the order of the parties' columns."""
        plan, bits = self.plan, next(iter(self.maskers.values())).bits
        noise = noise_of(self.side.queries[plan.names[0]][ask.query], plan)
        seen = _whole(np.sum([words.view(np.uint64) for words in self.shares.values()], axis=0), bits)
        if "coordinator" in coalition:
            seen = seen - self.deals.drawn
        if "parties" in coalition:
            others = (self.maskers[name] for name in plan.names[1:])
            seen = seen - sum(masker.drawn for masker in others if isinstance(masker, _SeenColumns))
        return OpenedSum(ask.query, number, ask.arrays, seen, noise.steps(noise_left(plan, coalition)))
