"""A run as its coordinator sees it: the algorithm's own text, real rows, real gates; no frames and no ledgers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce import algorithms
from sottovoce.algorithms import Ask, Solution
from sottovoce.algorithms.base import Algorithm, Coordination, Rounds
from sottovoce.algorithms.evaluation.private import score_recipe
from sottovoce.data.block import Block, Matrix
from sottovoce.gate.gate import Gate, value_of
from sottovoce.gate.outgoing import Released
from sottovoce.gate.query import Round
from sottovoce.plan.plan import Plan
from sottovoce.privacy.mechanisms import Randomness
from sottovoce.queries.pricing import queries_of

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Question:
    """What one party was asked and told."""

    party: str
    query: str
    round: int
    told: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Answered(Question):
    """And what it let out."""

    released: Released


@dataclass(frozen=True)
class Transcript:
    """All messages of a run, in order, and the model."""

    messages: tuple[Answered, ...]
    solution: Solution


def play_rounds(
    plan: Plan, form: Algorithm, text: Coordination, answer: Callable[[Ask, int, tuple[str, ...]], dict[str, Array]]
) -> Solution:
    """Ask as `Coordinator.run` does: `answer` gets an ask, its round and its parties, and gives what they answer."""
    rounds = Rounds(plan, form)
    try:
        ask = next(text)
        while True:
            ask = text.send(answer(ask, *rounds.assign(ask)))
    except StopIteration as stop:
        return stop.value if isinstance(stop.value, Solution) else Solution(stop.value)


class Side:
    """One of the two data sets of a game, prepared at its holders for many runs of one plan."""

    def __init__(self, plan: Plan, data: Mapping[str, tuple[Matrix, ArrayLike]]) -> None:
        self.plan = plan
        self.form = algorithms.of(plan)
        self.blocks = {name: Block.prepare(X, y, plan.part(name).preparation) for name, (X, y) in data.items()}
        if plan.numbers.evaluates and plan.split.same_people:  # of joint predictions, by a model of ones
            holder = plan.label_party_name
            scores = np.sum([np.sum(X, axis=1) for X, _ in data.values()], axis=0)
            self.blocks[holder] = Block.prepare(scores[:, None], data[holder][1], score_recipe(plan))
        self.queries = {name: queries_of(self.form, plan, name) for name in self.blocks}
        self.releases = {release.query: release for release in plan.releases}

    def memories(self) -> dict[str, Any]:
        """What each party keeps from round to round, before the first."""
        return {name: self.form.remember(self.plan, block) for name, block in self.blocks.items()}

    def gates(self, randomness: Mapping[str, Randomness]) -> dict[str, Gate]:
        """A gate for each party, with its own source of randomness."""
        return {name: Gate(self.plan, randomness[name]) for name in self.blocks}

    def answer(self, gates: Mapping[str, Any], memories: Mapping[str, Any], asked: Question) -> Answered:
        """What one party lets out of its gate."""
        party, told = asked.party, asked.told
        round = Round(self.plan, asked.round, told, self.blocks[party], memories[party])
        released = gates[party].release(self.queries[party][asked.query], round)
        return Answered(party, asked.query, asked.round, told, released)

    def play(self, randomness: Mapping[str, Randomness]) -> Transcript:
        """A run, with all its messages."""
        gates, memories, messages = self.gates(randomness), self.memories(), list[Answered]()

        def answer(ask: Ask, number: int, parties: tuple[str, ...]) -> dict[str, Array]:
            values = {}
            for name in parties:
                told = {**ask.arrays, **ask.each.get(name, {})}
                messages.append(self.answer(gates, memories, Question(name, ask.query, number, told)))
                values[name] = value_of(messages[-1].released.arrays, self.releases[ask.query].scale)
            return values

        solution = play_rounds(self.plan, self.form, self.form.coordinate(self.plan), answer)
        return Transcript(tuple(messages), solution)
