"""A run as its coordinator sees it: the algorithm's own text, real rows, real gates; no frames and no ledgers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce import algorithms
from sottovoce.algorithms import Solution
from sottovoce.data.block import Block, Matrix
from sottovoce.door.gate import Gate, Released, value_of
from sottovoce.plan.plan import Plan
from sottovoce.privacy.randomness import Randomness

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Message:
    """What one party was asked, told and let out."""

    party: str
    query: str
    round: int
    told: Mapping[str, NDArray[Any]]
    released: Released


@dataclass(frozen=True)
class Transcript:
    """All messages of a run, in order, and the model."""

    messages: tuple[Message, ...]
    solution: Solution


class Side:
    """One of the two data sets of a game, prepared at its holders for many runs of one plan."""

    def __init__(self, plan: Plan, data: Mapping[str, tuple[Matrix, ArrayLike]]) -> None:
        self.plan = plan
        self.algorithm = algorithms.of(plan)
        self.blocks = {name: Block.prepare(X, y, plan.part(name).preparation) for name, (X, y) in data.items()}
        self.queries: dict[str, Mapping[str, Any]] = {
            name: self.algorithm.queries_of(plan, name) for name in self.blocks
        }
        self.releases = {release.query: release for release in plan.releases}

    def memories(self) -> dict[str, Any]:
        """What each party keeps from round to round, before the first."""
        return {name: self.algorithm.remember(self.plan, block) for name, block in self.blocks.items()}

    def gates(self, randomness: Mapping[str, Randomness]) -> dict[str, Gate]:
        """A gate for each party, with its own source of randomness."""
        plan = self.plan
        return {name: Gate(plan.digest, self.releases, plan.records, randomness[name], None) for name in self.blocks}

    def answer(
        self,
        gates: Mapping[str, Any],
        memories: Mapping[str, Any],
        party: str,
        query: str,
        round_: int,
        told: Mapping[str, NDArray[Any]],
    ) -> Message:
        """What one party lets out of its gate."""
        asked, block = self.queries[party][query], self.blocks[party]
        released = self.algorithm.answer(self.plan, asked, block, gates[party], round_, told, memories[party])
        return Message(party, query, round_, told, released)

    def play(self, randomness: Mapping[str, Randomness]) -> Transcript:
        """A run, as `Coordinator.run` has it."""
        gates, memories = self.gates(randomness), self.memories()
        text, messages, number = self.algorithm.coordinate(self.plan), list[Message](), 0
        try:
            ask = next(text)
            while True:
                round_ = number if ask.round is None else ask.round
                unit = self.releases[ask.query].unit
                values: dict[str, Array] = {}
                for name in ask.to or tuple(self.blocks):
                    told = {**ask.arrays, **ask.each.get(name, {})}
                    messages.append(self.answer(gates, memories, name, ask.query, round_, told))
                    values[name] = value_of(messages[-1].released.arrays, unit)
                number += 1
                ask = text.send(values)
        except StopIteration as stop:
            found = stop.value
        return Transcript(tuple(messages), found if isinstance(found, Solution) else Solution(found))
