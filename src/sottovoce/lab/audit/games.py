"""Distinguishing games: a plan at audit scale, two neighbouring data sets, an adversary, a statistic of its view.

A game is played many times on either of two neighbours; a statistic of each transcript says how much it looks like the
first. A part of the runs chooses the threshold, the others count errors; Clopper-Pearson turns the counts into bounds
that fail with probability `alarm` at most. Nothing here believes a claim.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, ndtri

from sottovoce import algorithms
from sottovoce.algorithms import Solution
from sottovoce.algorithms.sharing.admm_exact import WeightUpdate
from sottovoce.data.beside import labels_with
from sottovoce.data.block import Matrix
from sottovoce.lab.audit.secure import Anew, AttackingView, SecureColumns, SecureRows, with_keys
from sottovoce.lab.audit.transcript import AdversaryView, Question, Side, Transcript, log_likelihood
from sottovoce.plan.plan import Plan
from sottovoce.plan.split import COORDINATOR
from sottovoce.privacy.accounting import epsilon_of
from sottovoce.privacy.calibration import mu_for
from sottovoce.privacy.events import PoissonGaussian, Relation, Selection, either, inside
from sottovoce.privacy.guarantee import Adversary, missed_by
from sottovoce.privacy.mechanisms import Randomness, SeededRandomness, SystemRandomness

Array = NDArray[np.float64]
Data = Mapping[str, tuple[Matrix, ArrayLike]]
Measure = Literal["mu", "epsilon"]
Sees = Literal["messages", "moves", "duals", "uses", "span", "model"]

BROKEN = "BROKEN"
TOLERANCE = 0.10  # of a claim in mu where choices are part of it: they are Gaussian only nearly
ALARM = 1e-4  # a correct mechanism is accused with at most this probability
TAILS: Mapping[Measure, float] = {"mu": 0.15, "epsilon": 0.02}  # thresholds are quantiles of all runs between these
THRESHOLDS = 61
DELTAS = (1e-3, 0.01, 0.03, 0.07, 0.12, 0.2, 0.3, 0.4, 0.5, 0.65)
FLOOR = 0.01  # errors below it are not counted on: claims are compared between this and its complement
RIDGE = 1e-9  # of the largest variance, for the inverse of a covariance


@dataclass(frozen=True)
class ClaimedValue:
    """A value in a measure; what is measured may exceed it by the tolerance."""

    measure: Measure
    value: float
    tolerance: float = 0.0


@dataclass(frozen=True)
class Game:
    """A plan, who attacks it, by what, and whether the claim should hold.

    `sees` is the statistic. "messages": the log-likelihood ratio of all messages; "moves": of published dual steps
    without the duals; "duals": with them, which show who was sampled; "uses": the sum of all answers about the canary;
    "span": how near a message is to the span of the columns; "model": the weights, in the direction that tells most.
    """

    name: str
    plan: Plan
    adversary: Adversary = "coordinator"
    sees: Sees = "messages"
    runs: int = 1000  # of each side
    holds: bool = True
    measure: Measure = "epsilon"  # of a published claim
    records: tuple[tuple[float, ...], ...] = ()  # canary, its neighbour, all others: features and label, NaN for null
    coalitions: bool = False  # of secure sums: whether the coordinator colludes with all parties but the canary's
    script: tuple[tuple[float, ...], ...] = ()  # of secure columns: the weights of gradients, whatever was opened
    account: Relation | None = None  # of the neighbours, and of the account that is charged; None: the plan's

    @property
    def relation(self) -> Relation:
        """By which the two data sets are neighbours."""
        return self.account or self.plan.relation

    def claim(self) -> ClaimedValue:
        """What an account is charged, the statement against the adversary, or the paper's."""
        plan, relation, form = self.plan, self.relation, algorithms.of(self.plan)
        if plan.claimed_epsilon is not None:
            if self.measure == "mu":
                return ClaimedValue("mu", mu_for(plan.claimed_epsilon, plan.delta))
            return ClaimedValue("epsilon", plan.claimed_epsilon)
        events = form.pricing.events(form, plan, relation, plan.names[0])
        if self.adversary == "world":
            events = form.pricing.world_events(form, plan, relation, plan.names[0])
        if any(isinstance(event, PoissonGaussian) for event in events):
            return ClaimedValue("mu", mu_of_profile(lambda delta: epsilon_of(events, delta, relation)))
        if any(isinstance(event, Selection) for event in events):
            squares = (2 * e.rho if isinstance(e, Selection) else e.mu**2 for e in events)  # type: ignore[union-attr]
            return ClaimedValue("mu", math.sqrt(math.fsum(squares)), TOLERANCE)
        epsilon = form.pricing.epsilons(form, plan, relation)[self.adversary]
        return ClaimedValue("mu", mu_for(epsilon, inside(plan.delta)))

    def statistics(self, which: int, runs: int, randomness: Callable[[str], Randomness]) -> Array:
        """A row for each of `runs` runs on one of the two sides."""
        if self.plan.channel.secure:
            return self._secure(which, runs, randomness)
        with _quiet():
            first, second = (Side(self.plan, data) for data in neighbours(self.plan, self.records, self.relation))
        side, sources = (first, second)[which], {name: randomness(name) for name in first.blocks}
        play = functools.partial(play_named_rounds, side) if self.sees == "uses" else side.play
        return np.array([self.statistic((first, second), play(sources)) for _ in range(runs)])

    def _secure(self, which: int, runs: int, randomness: Callable[[str], Randomness]) -> Array:
        """The log-likelihood ratios of sums that were secure, less what the adversary knows of them."""
        coalition: AttackingView = "coordinator and parties" if self.coalitions else self.adversary
        plan, keys = with_keys(self.plan, randomness)
        data = neighbours(self.plan, self.records, self.relation)
        sources = {name: Anew(randomness(name)) for name in (*plan.names, COORDINATOR)}
        with _quiet():
            if plan.secure_columns:
                parts = [SecureColumns(plan, one, coalition, self.script) for one in data]
                played = (parts[which].secure_play(plan, keys, sources) for _ in range(runs))
                return np.array([parts[0].log_likelihood(s, keys) - parts[1].log_likelihood(s, keys) for s in played])
            sides = [SecureRows(plan, one, coalition) for one in data]
            transcripts = (sides[which].secure_play(plan, keys, sources) for _ in range(runs))
            return np.array([log_likelihood(sides[0], t) - log_likelihood(sides[1], t) for t in transcripts])

    def statistic(self, sides: tuple[Side, Side], transcript: Transcript) -> Any:
        """Larger where the view looks more like the first side."""
        if self.sees == "model":
            return transcript.solution.weights
        if self.sees == "uses":  # the slope of the canary is the same in each of them, and negative
            return -math.fsum(float(message.released.arrays["grid"][0]) for message in transcript.messages)
        if self.sees == "span":
            return distance_from_spans(sides[1], transcript) - distance_from_spans(sides[0], transcript)
        view = AdversaryView()
        if self.sees == "moves":
            view = AdversaryView(visible={"state": self.plan.dimension})
        elif self.sees == "duals":
            view = AdversaryView(members=lambda grid: np.flatnonzero(grid[self.plan.dimension :]))
        return log_likelihood(sides[0], transcript, view) - log_likelihood(sides[1], transcript, view)


@dataclass(frozen=True)
class Result:
    """What a game measured beside what was claimed."""

    name: str
    adversary: Adversary
    relation: str
    measure: Measure
    delta: float
    claimed: float
    measured: float
    verdict: str
    published: bool
    expected: bool  # whether the claim should hold
    runs: int
    seconds: float

    @property
    def broken(self) -> bool:
        """Whether something that should hold was measured above its claim."""
        return self.verdict == BROKEN


def verdict(game: Game, claim: ClaimedValue, first: Array, second: Array, seconds: float) -> Result:
    """Of the statistics of both sides."""
    plan = game.plan
    measured = lower_bound(first, second, claim.measure, plan.delta, ALARM)
    above = measured > claim.value * (1 + claim.tolerance)
    said = BROKEN if above else "holds"
    if not game.holds:
        said = "broken, as expected" if above else "not shown"
    view = (game.name, game.adversary, game.relation, claim.measure, plan.delta)
    published, runs = plan.claimed_epsilon is not None, len(first) + len(second)
    return Result(*view, claim.value, measured, said, published, game.holds, runs, seconds)


def source(seed: int | None, *labels: object) -> Callable[[str], Randomness]:
    """Each party's randomness: the operating system's, or for tests a stream of its own."""
    if seed is None:
        return lambda _: SystemRandomness()
    return lambda party: SeededRandomness(seed, *map(str, labels), party)


def neighbours(
    plan: Plan, records: tuple[tuple[float, ...], ...] = (), relation: Relation | None = None
) -> tuple[Data, Data]:
    """Two data sets that differ in one record, by default a canary among null rows, and by the plan's relation.

    The canary is as large as the bounds allow, with a label at its bound. Zero-out: it, and a null row. Replace-one:
    it, and its opposite. Of a plan that protects features: a column at its bound, and a column of zeros.
    """
    canary, opposite = extreme(plan, 1.0), extreme(plan, -1.0)
    null = np.full(plan.features, math.nan)
    if plan.protects == "feature":
        without = canary.copy()
        without[0] = 0.0
        return _place_record(plan, canary, canary), _place_record(plan, without, without)
    first, second, rest = canary, either(relation or plan.relation, zero_out=null, replace_one=opposite), null
    if records:
        first, second, rest = (np.array(record) for record in records)
    return _place_record(plan, first, rest), _place_record(plan, second, rest)


def extreme(plan: Plan, sign: float) -> Array:
    """A raw row as far out as the declared bounds allow."""
    bounds, features = plan.bounds, plan.features
    if bounds.feature_low is not None and bounds.feature_high is not None:
        return np.array(bounds.feature_high if sign > 0 else bounds.feature_low)
    if bounds.entry_bound is not None:
        return np.broadcast_to(np.array(bounds.entry_bound) * sign, (features,)).astype(np.float64)
    row = np.zeros(features)
    starts = np.cumsum([0, *plan.columns[:-1]]) if plan.columns else [0]
    row[np.array(starts)] = sign * np.array(plan.norms if plan.norms else bounds.row_norm)
    return row


def _place_record(plan: Plan, record: Array, rest: Array) -> Data:
    """The first record of the first party or, by columns, of all parties; every other one is `rest`.

    A record without a label of its own has the largest, or the event.
    """
    largest: Any = (plan.classes or (1 if plan.preparation.until else plan.bounds.label_high,))[-1]
    labels = [each[plan.features] if len(each) > plan.features else largest for each in (record, rest)]
    found = {}
    for place, (name, count) in enumerate(plan.parties):
        part = plan.part(name)
        rows, y = np.tile(rest[part.start : part.stop], (count, 1)), np.full(count, labels[1])
        if place == 0 or plan.split.same_people:
            rows[0], y[0] = record[part.start : part.stop], labels[0]
        if plan.most_records is not None:  # the first person has as many records as count, all others have one
            times = np.where(np.arange(count) == 0, plan.most_records, 1)
            who, rows = np.repeat(np.arange(count), times), np.repeat(rows, times, axis=0)
            y = labels_with(np.repeat(y, times), person=who)
        found[name] = (rows, _with_beside(plan, rows, y))
    return found


def _with_beside(plan: Plan, rows: Array, labels: Any) -> Any:
    """Labels with all that the plan takes beside them, at its bound; of two groups rows are in that of their sign."""
    bounds, groups = plan.bounds, getattr(plan.numbers, "groups", None)
    most = {"exposure": bounds.exposure_bound, "weight": bounds.weight_bound, "time": plan.preparation.until}
    beside = {name: np.full(len(rows), each) for name, each in most.items() if each is not None}
    if groups is not None and not groups.places:
        beside["group"] = np.array([groups.names[0] if first > 0 else None for first in rows[:, 0]], dtype=object)
    return labels_with(labels, **beside)


def play_named_rounds(side: Side, sources: Mapping[str, Randomness]) -> Transcript:
    """The rounds of the published `sgd` in which the first party answers, for its one record: the canary."""
    gates, memories = side.gates(sources), side.memories()
    told = {"weights": np.zeros(side.plan.dimension), "index": np.zeros(1, dtype=np.int64)}
    party = side.plan.parties[0][0]
    messages = (
        side.answer(gates, memories, Question(party, "record", round_, told))
        for round_ in first_party_rounds(side.plan)
    )
    return Transcript(tuple(messages), Solution(np.zeros(0)))


@functools.lru_cache(maxsize=4)
def first_party_rounds(plan: Plan) -> tuple[int, ...]:
    """The rounds in which the plan has the first party answer."""
    party = plan.names[0]
    (record,) = algorithms.of(plan).queries(plan, party)
    return tuple(number for number in range(plan.rounds) if record.answered_by(plan, party, number))


def distance_from_spans(side: Side, transcript: Transcript) -> float:
    """How far the messages are from the spans of the parties' columns, relatively; the log of the largest."""
    found = []
    for message in transcript.messages:
        if message.query == WeightUpdate.name:
            rows, told = side.blocks[message.party].rows, message.released.arrays["value"]
            rest = told - rows @ np.linalg.lstsq(rows, told, rcond=None)[0]
            found.append(float(np.linalg.norm(rest)) / max(float(np.linalg.norm(told)), 1e-300))
    return math.log(max(*found, 1e-300))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the remark that canary data have null rows."""
    logger = logging.getLogger("sottovoce.holder")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@dataclass(frozen=True)
class Errors:
    """Upper bounds of the two errors of a threshold: taking the second for the first, and the first for the second."""

    false_positive: float
    false_negative: float


def most(count: int, runs: int, alarm: float) -> float:
    """The Clopper-Pearson upper bound of a probability of which `count` of `runs` were seen."""
    return 1.0 if count >= runs else float(betaincinv(count + 1, runs - count, 1 - alarm))


def errors_at(first: Array, second: Array, threshold: float, alarm: float) -> Errors:
    """Of the rule "the first, if the statistic is above the threshold"; each bound fails with alarm / 2."""
    return Errors(
        most(int(np.count_nonzero(second > threshold)), len(second), alarm / 2),
        most(int(np.count_nonzero(first <= threshold)), len(first), alarm / 2),
    )


def mu_of(errors: Errors) -> float:
    """The mu-GDP that these errors rule out: z(1 - FPR) - z(FNR)."""
    wrong, missed = (min(max(error, FLOOR), 1.0) for error in (errors.false_positive, errors.false_negative))
    if wrong >= 1.0 or missed >= 1.0:
        return 0.0
    return max(float(ndtri(1 - wrong) - ndtri(missed)), 0.0)


def mu_of_profile(epsilon_at: Callable[[float], float]) -> float:
    """The least mu that no test exceeds at errors above FLOOR if epsilon_at(delta) holds for every delta.

    Of false positives a these leave f(a) of false negatives at least, and mu = max_a z(1 - a) - z(f(a)).
    """
    wrong = np.linspace(FLOOR, 1 - FLOOR, 393)
    missed = np.maximum(missed_by(epsilon_at, wrong, DELTAS), FLOOR)
    return float(np.max(ndtri(1 - wrong) - ndtri(missed)))


def epsilon_of_errors(errors: Errors, delta: float) -> float:
    """The epsilon that these errors rule out at delta, in the better of both directions."""
    wrong, missed, found = errors.false_positive, errors.false_negative, 0.0
    for false, lost in ((wrong, missed), (missed, wrong)):
        if (right := 1 - lost - delta) > 0:
            found = max(found, math.log(right / false))
    return found


def lower_bound(first: Array, second: Array, measure: Measure, delta: float, alarm: float = ALARM) -> float:
    """The largest mu, or epsilon at delta, that the runs rule out with confidence 1 - alarm.

    A row for each run: one number, or several, which are then projected on the direction that tells the first runs
    apart best. They choose the threshold too: a quarter of the runs, of several numbers half; the others are counted.
    """

    def value(errors: Errors) -> float:
        return mu_of(errors) if measure == "mu" else epsilon_of_errors(errors, delta)

    part = len(first) // (4 if first.ndim == 1 else 2)
    if first.ndim > 1:  # Fisher's discriminant: the inverse of the common covariance times the difference of the means
        spread = np.atleast_2d(np.cov(first[:part].T) + np.cov(second[:part].T))
        spread += RIDGE * max(float(np.trace(spread)), 1e-300) * np.eye(len(spread))
        direction = np.linalg.solve(spread, first[:part].mean(axis=0) - second[:part].mean(axis=0))
        first, second = first @ direction, second @ direction
    tail = TAILS[measure]
    chosen = np.quantile(np.concatenate([first[:part], second[:part]]), np.linspace(tail, 1 - tail, THRESHOLDS))
    best = max(chosen, key=lambda threshold: value(errors_at(first[:part], second[:part], float(threshold), alarm)))
    return value(errors_at(first[part:], second[part:], float(best), alarm))
