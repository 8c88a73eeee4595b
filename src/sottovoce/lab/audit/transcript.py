"""A run as its coordinator sees it, and how likely it is under a data set: real rows and gates, no frames, no ledgers.

The likelihood, for any algorithm, is by its queries, asked again at a shadow of the gate, which has its interface. It
takes the value of the query on the data set, adds the log-density of what was released given that value, and hands back
what was released: so whatever the party keeps follows the transcript. The difference between two data sets is the
statistic that tells them apart best, by Neyman and Pearson.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce import algorithms
from sottovoce.algorithms import Ask, Solution
from sottovoce.algorithms.base import Algorithm, Coordination, Rounds
from sottovoce.algorithms.evaluation import score_recipe
from sottovoce.data.block import Block, Matrix
from sottovoce.gate.gate import Gate, value_of
from sottovoce.gate.outgoing import Released
from sottovoce.gate.query import Choice, Derived, Query, Round, Walk
from sottovoce.plan.plan import Plan
from sottovoce.plan.release import Release
from sottovoce.privacy.mechanisms import Randomness
from sottovoce.queries.pricing import queries_of

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Members = Callable[[Integers], Integers]

FAR, NODES = 40.0, 400  # of the integral over a maximum of Laplace variables, in scales and in points
NOTHING = 1e-3  # of the largest singular value: below it messages of kept rows say nothing


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
        also = () if getattr(plan.numbers, "groups", None) is None else ("group",)  # beside labels
        recipes = {name: replace(plan.part(name).preparation, also=also) for name in data}
        self.blocks = {name: Block.prepare(X, y, recipes[name]) for name, (X, y) in data.items()}
        if plan.numbers.result == "evaluation" and plan.split.same_people:  # of joint predictions, by a model of ones
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


@dataclass(frozen=True)
class AdversaryView:
    """What an adversary sees beside the values of a plan's releases.

    `members` reads off a message which records were sampled, where the form shows it. `visible` says of a query how
    many of its first numbers are seen, if not all.
    """

    members: Members | None = None
    visible: Mapping[str, int] | None = None


def log_likelihood(side: Side, transcript: Transcript, view: AdversaryView | None = None) -> float:
    """Log Pr[transcript | data], up to a constant that no data set changes.

    Exact for Gaussian releases, walks, selections, noisy maxima and functions of kept rows. Where records are sampled
    in secret, exact if one record at most is no null row and nothing is kept of who was sampled; else near.
    """
    shadows = {name: Shadow(side.releases, view or AdversaryView()) for name in side.blocks}
    memories = side.memories()
    for message in transcript.messages:
        shadows[message.party].observed = message.released
        side.answer(shadows, memories, message)
    return math.fsum(shadow.total() for shadow in shadows.values())


@dataclass(eq=False)
class KeptRows:
    """A party's rows, of which functions of noisy versions were released: the weights and the messages so far."""

    rows: Array
    std: float
    weights: list[Array] = field(default_factory=list)
    messages: list[Array] = field(default_factory=list)

    def log_density(self) -> float:
        """Messages W R~' tell V'R~' for W = U S V': independent Gaussians around V'R'.

        More messages than columns are averaged, as they must agree where the noise was drawn once.
        """
        if not self.weights:
            return 0.0
        left, sizes, right = np.linalg.svd(np.array(self.weights), full_matrices=False)
        told = sizes > NOTHING * max(float(sizes[0]), 1e-300)
        seen = (left.T[told] @ np.array(self.messages)) / sizes[told, None]
        return float(-0.5 * np.sum(((seen - right[told] @ self.rows.T) / self.std) ** 2))


class Shadow:
    """A gate that draws nothing: it weighs what another gate let out."""

    def __init__(self, releases: Mapping[str, Release], view: AdversaryView) -> None:
        self._releases, self._view = releases, view
        self._sum = 0.0
        self._kept: dict[str, KeptRows] = {}
        self.observed: Released

    def total(self) -> float:
        return self._sum + math.fsum(rows.log_density() for rows in self._kept.values())

    def release(self, query: Query, round: Round) -> Released:
        """Weigh what was observed as the answer to the query, by the mechanism of its release."""
        release = self._releases[query.name]
        if isinstance(query, Derived):
            self._derived(query, round)
        elif isinstance(query, Walk):
            self._walk(query, release, round)
        elif isinstance(query, Choice):
            (self._selection if release.mechanism == "selection" else self._noisy_max)(query, release, round)
        else:
            self._gaussian(query, release, round)
        return self.observed

    def _gaussian(self, query: Query, release: Release, round: Round) -> None:
        """Batches one after another, each in the round that the released one before leads to.

        Of numbers whose low bits were dropped, the density in the middle: they are far smaller than the noise.
        """
        grids = (self.observed.arrays["grid"] << release.dropped).reshape(release.batches, -1)
        for k, grid in enumerate(grids):
            if k:
                following = query.follow(np.asarray(grids[k - 1] * release.step, dtype=np.float64), round)
                round = following or round
            self._weigh(release, query.noise_weights, grid, round, lambda at: _in_steps(query, release, at))

    def _walk(self, query: Walk, release: Release, round: Round) -> None:
        """Each number of a walk depends on those released before it: the noise that leads to them is found in turn."""
        grid = self.observed.arrays["grid"]
        seen = (self._view.visible or {}).get(query.name, len(grid))

        def values(at: Round) -> Array:
            noise = np.zeros_like(grid)
            for _ in range(len(grid)):
                missing = grid - query.walk(at._replace(memory=deepcopy(at.memory)), noise, release.step)
                if not missing[:seen].any():
                    break
                noise += missing
            query.walk(at, noise, release.step)
            return np.asarray(grid - noise, dtype=np.float64)

        self._weigh(release, 1.0, grid, round, values)

    def _selection(self, query: Choice, release: Release, round: Round) -> None:
        """The exponential mechanism: a softmax of the scores, of every value with either sign where it is signed."""
        if query.signed:
            scores, place = self._signed(query, release, round)
        else:
            scores = _in_steps(query, release, round) * (release.step / release.std)
            place = int(self.observed.arrays["grid"][0])
        top = float(scores.max())
        self._sum += float(scores[place] - (top + math.log(float(np.exp(scores - top).sum()))))

    def _noisy_max(self, query: Choice, release: Release, round: Round) -> None:
        """Pr[one is the largest] = integral of its density times the others' distribution functions."""
        scores, place = self._signed(query, release, round)
        points = np.linspace(scores.min() - FAR / 4, scores.max() + FAR, NODES)
        away = points[:, None] - scores
        below = np.where(away < 0, 0.5 * np.exp(np.minimum(away, 0)), 1 - 0.5 * np.exp(-np.maximum(away, 0)))
        density = 0.5 * np.exp(-np.abs(away[:, place]))
        others = np.prod(np.delete(below, place, axis=1), axis=1)
        self._sum += math.log(max(float(density @ others) * (points[1] - points[0]), 1e-300))

    def _derived(self, query: Derived, round: Round) -> None:
        """Linear functions of kept rows: what they are of the unit rows are the weights."""
        release = self._releases[query.source.name]
        if query.source.name not in self._kept:
            rows = query.source.value(round).reshape(len(round.rows), -1)
            self._kept[query.source.name] = KeptRows(np.trunc(rows / release.step) * release.step, release.std)
        kept = self._kept[query.source.name]
        kept.weights.append(query.derive(np.eye(kept.rows.shape[1]), round.told))
        kept.messages.append(self.observed.arrays["value"])

    def _signed(self, query: Choice, release: Release, round: Round) -> tuple[Array, int]:
        """Scores in units of the noise, as all (j, +), all (j, -) and staying, and the place of what was released."""
        values = _in_steps(query, release, round) * (release.step / release.std)
        signed, stay = (values[:-1], values[-1:]) if query.stays else (values, values[:0])
        code, size = int(self.observed.arrays["grid"][0]), len(signed)
        place = 2 * size if code == 0 else code - 1 if code > 0 else size - code - 1
        return np.concatenate([signed, -signed, stay]), place

    def _weigh(
        self, release: Release, weights: Any, grid: Integers, round: Round, values: Callable[[Round], Array]
    ) -> None:
        """The density of a Gaussian release; of a secret sample, of the mixture over whether its record was drawn."""
        scale = release.std / release.step / weights
        seen, block = (self._view.visible or {}).get(release.query, len(grid)), round.rows

        def density(rows: Block) -> float:
            return float(-0.5 * np.sum(((grid - values(round._replace(rows=rows))) / scale)[:seen] ** 2))

        if release.rate is None or release.rate == 1.0:
            self._sum += density(block)
        elif self._view.members is not None:
            members = self._view.members(grid)
            self._sum += density(block.take(members)) if len(members) else 0.0  # an empty batch is the same everywhere
        else:
            without = density(block.take(np.zeros(0, dtype=np.int64))) + math.log1p(-release.rate)
            (records,) = np.nonzero(block.squares)
            before = deepcopy(round.memory)
            drawn = density(block.take(records)) + math.log(release.rate) if len(records) else -math.inf
            if drawn < without and isinstance(before, np.ndarray):  # what it kept is then, more likely, what it had
                round.memory[...] = before
            self._sum += float(np.logaddexp(without, drawn)) if len(records) else without - math.log1p(-release.rate)


def _in_steps(query: Query, release: Release, round: Round) -> Array:
    return np.asarray(np.rint(query.value(round) / release.step))
