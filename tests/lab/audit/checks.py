"""Deterministic checks of every algorithm, in every form and split: what must hold before any game is played.

A check takes a `Case` and raises `AssertionError`. Plans and runs are the audit's. Nothing here knows a solver by name
but the tables of few rounds and of forms that only options reach: a solver that is registered is checked in all its
splits, under both relations and with held labels, by its own defaults if the tables do not have it.

Values are compared given the same visible prefix: a run is recorded once, and both neighbours answer its messages
again, each followed by what was released then. That is what the proofs bound.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib.util
import itertools
import json
import logging
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from scipy import stats
from scipy.special import ndtr, ndtri

import serving
import sottovoce as sv
from damage import PAGE, Victim, attack
from plans import ONE_VS_REST, OPTIONS, SEVERAL
from sottovoce import algorithms, losses
from sottovoce.algorithms import Algorithm, Ask, Solution
from sottovoce.algorithms.base import Rounds
from sottovoce.data.beside import labels_of, labels_with
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.data.files import read_table
from sottovoce.errors import InputError, LedgerError, RefusedError
from sottovoce.federation.party import Party
from sottovoce.federation.policy import Policy
from sottovoce.federation.prediction import COORDINATOR, Request
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.gate.gate import Gate, value_of
from sottovoce.gate.outgoing import Released
from sottovoce.gate.query import Choice, Derived, NoisyRows, Query, Round, Walk
from sottovoce.lab.audit.runner import EVALUATED, STIFF, audit_plan
from sottovoce.lab.audit.secure import OpenedSum, SecureColumns, with_keys
from sottovoce.lab.audit.transcript import Answered, Question, Side, Transcript
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named
from sottovoce.plan.release import Release
from sottovoce.plan.split import SecureAggregation
from sottovoce.privacy import ledger_file
from sottovoce.privacy.accounting import epsilon_of
from sottovoce.privacy.calibration import noise_multiplier_for
from sottovoce.privacy.events import Event, Gaussian, PoissonGaussian, Relation, Selection, Unbounded
from sottovoce.privacy.ledger import Account, Ledger
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.queries.pricing import guaranteed, queries_of
from sottovoce.secure.pair_keys import RunKey
from sottovoce.transports.identity import PLAN, PREDICTION_KEY, local_identities
from support import events_of, give_scores, handle

Data = dict[str, tuple[np.ndarray, np.ndarray]]
Drawn = Callable[[int], np.ndarray]

RELATIONS: tuple[Relation, ...] = ("zero-out", "replace-one")
RECORDS = 12
DRAWS = 200_000  # of noise, for the scale of one release: a variance within 2% but for 3e-10 of the time
CHOICES = 2000  # for the law of one selection
RARE = 3e-10  # one statistical test accuses a correct mechanism so often; all of them together less often than 1e-6
LOUD = 1000.0  # by how much a coordinator exaggerates, so that cuts bind
FAR = 1 << 28  # steps of a grid: noise that no value reaches
ROUNDING = 1 + 1e-9  # float64 of the distances themselves

NORM = {"bounds": Bounds.declare(row_norm=1.0)}
SMALL: Mapping[str, Mapping[str, Any]] = {  # few rounds, and clips that bind
    **OPTIONS,
    "sgd": {"rounds": 4, "rate": 0.3},
    "scd": {"rounds": 4, "rate": 0.3, "clip": 1e-3},
    "scd-sequential": {"rounds": 2, "lot": 4, "clip": 1e-3},
    "cd": {"rounds": 2, "inner": 6, "clip": 0.3},
    "admm": {"rounds": 4},
    "fdml": {"rounds": 4},
}
COUNTS = {
    "loss": Named(name="poisson"),
    "bounds": Bounds.declare(row_norm=1.0, label_bound=(0, 3)),
    "fit_intercept": True,
    "regulariser": Named(name="none"),
}
COUNTED_ENTRIES = {**COUNTS, "bounds": Bounds.declare(entry_bound=1.0, label_bound=(0, 3))}
ORDERED = {
    **SEVERAL,
    "loss": Named(name="ordinal", parameters={"classes": 3.0}),
    "bounds": Bounds.declare(row_norm=1.0),
    "fit_intercept": True,
    "regulariser": Named(name="none"),
}
FORMS: Mapping[tuple[str, str], Mapping[str, Mapping[str, Any]]] = {  # what only options reach
    ("whitened", "central"): {
        "several classes": {**SEVERAL, **NORM},
        "one-vs-rest": {**ONE_VS_REST, **NORM},
        "class weights": {"loss": Named(name="logistic"), "classes": (-1, 1), "class_weight": (0.2, 1.0), **NORM},
        "counts": COUNTS,
        "ordered classes": ORDERED,
    },
    ("whitened", "rows"): {"several classes": {**SEVERAL, **NORM}, "counts": COUNTS, "ordered classes": ORDERED},
    ("gradient", "central"): {
        "several classes": {**SEVERAL, **NORM, "slope_bound": 0.5},
        "one-vs-rest, class weights": {**ONE_VS_REST, **NORM, "class_weight": (1.0, 0.5, 0.1)},
    },
    ("gradient", "rows"): {"several classes": {**SEVERAL, **NORM}},
    **{
        ("evaluation", split): {
            "classes": {**EVALUATED["classes"], "bounds": Bounds.declare(row_norm=1.0)},
            "several classes": {**SEVERAL, "bounds": Bounds.declare(row_norm=1.0)},
            "counts": COUNTS,
            "ordered classes": ORDERED,
            "classes by groups": {**EVALUATED["classes by groups"], "bounds": Bounds.declare(row_norm=1.0)},
            "numbers by groups": EVALUATED["numbers by groups"],
        }
        for split in ("central", "rows")
    },
    ("evaluation", "columns"): {
        "classes": {**EVALUATED["classes"], "bounds": Bounds.declare(entry_bound=1.0)},
        "counts": COUNTED_ENTRIES,
    },
    ("sgd", "rows"): {"one party a round": {"schedule": "one-party", "rounds": 8}},
    ("scd-sequential", "central"): {"lots of one": {"lot": 1}},
    ("cd", "central"): {"curvatures known": {"curvatures": (0.3, 0.2), "order": "shuffled"}},
    ("admm", "columns"): {
        "fresh": {"rows": "fresh"},
        "fresh, labels held": {"rows": "fresh", "labels": "held"},
        "a feature": {"unit": "feature", "labels": "public", "slope_bound": 0.3, "regulariser": STIFF},
    },
    ("frank-wolfe", "columns"): {
        "row norm": {"bounds": Bounds.declare(row_norm=1.0, label_bound=1.0), "norms": (0.6, 0.8)}
    },
}
PUBLISHED: Mapping[str, Mapping[str, Any]] = {"sgd": {"rounds": 24, "rate": None}}  # what these forms do not take: None
PEOPLE = {"most_records": 4, "people": RECORDS // 4}  # weights of 1/4, which are as they are meant
LOGISTIC = {"loss": Named(name="logistic"), "classes": (-1, 1), "fit_intercept": True}


@dataclass(frozen=True)
class Case:
    """A solver in one split and form."""

    name: str
    solver: str
    split: Any
    fields: Mapping[str, Any] = field(default_factory=dict)

    def plan(self, relation: Relation = "zero-out", **changes: Any) -> Plan:
        """At the size of the checks: two parties where there are several, two features each."""
        parties = 1 if self.split == "central" else 2
        fields = {key: value for key, value in self.fields.items() if value is not None}
        plan = audit_plan(
            self.solver, self.split, parties, **{"records": RECORDS, "relation": relation, **fields, **changes}
        )
        assert all(release.std > 0 or release.mechanism == "derived" for release in plan.releases) or not plan.private
        return plan


def splits_of(solver: str, *, published: bool = False) -> tuple[Any, ...]:
    """Where a solver has a form with noise, its own or a paper's."""
    noisy = [form for form in algorithms.forms(solver) if form.private is not False and form.published == published]
    return tuple(dict.fromkeys(split for form in noisy for split in form.splits))


def cases() -> dict[str, Case]:
    """All forms with a guarantee of ours."""
    found: list[Case] = []
    for solver in (*algorithms.SOLVERS, "evaluation"):
        for split in splits_of(solver):
            forms: dict[str, Mapping[str, Any]] = {"": {}, **FORMS.get((solver, split), {})}
            if split == "columns":
                forms["labels held"] = {"labels": "held"}
            if solver != "evaluation" and algorithms.mismatch(solver, losses.get("logistic"), split) is None:
                norm = "entry_bound" if split == "columns" else "row_norm"
                forms["logistic"] = {**LOGISTIC, "bounds": Bounds.declare(**{norm: 1.0})}
            for form, options in forms.items():
                name = ", ".join(filter(None, (solver, split, form)))
                found.append(Case(name, solver, split, {**SMALL.get(solver, {}), **options}))
    return {case.name: case for case in found}


def secure_cases() -> dict[str, Case]:
    """All forms whose sums may be secure, over each split where they may."""
    found: list[Case] = []
    for solver in (*algorithms.SOLVERS, "evaluation"):
        noisy = [form for form in algorithms.forms(solver) if form.private is not False and not form.published]
        for split in dict.fromkeys(split for form in noisy for split in form.secure):
            fields: dict[str, Any] = {**SMALL.get(solver, {}), "aggregation": SecureAggregation(colluding=1)}
            fields |= {"labels": "held"} if split == "columns" else {}
            found.append(Case(f"{solver}, {split}, secure", solver, split, fields))
            if split == "columns":
                more = {**fields, "fit_intercept": True}
                found.append(Case(f"{solver}, {split}, secure, intercept", solver, split, more))
                more = {**fields, **LOGISTIC}
                found.append(Case(f"{solver}, {split}, secure, classes", solver, split, more))
                if any("count" in form.kinds and split in form.secure for form in noisy):
                    more = {**fields, **COUNTED_ENTRIES, "epsilon": 20.0}  # with more noise all rows are left out
                    found.append(Case(f"{solver}, {split}, secure, counts", solver, split, more))
                if any(form.people and split in form.secure for form in noisy):
                    for name, kind in {"people": {"fit_intercept": True}, "people, classes": LOGISTIC}.items():
                        more = {**fields, **PEOPLE, **kind}
                        found.append(Case(f"{solver}, {split}, secure, {name}", solver, split, more))
    return {case.name: case for case in found}


def published() -> dict[str, Case]:
    """The papers' forms: their queries are bounded too, and what breaks them is known."""
    found: list[Case] = []
    for solver in algorithms.SOLVERS:
        for split in splits_of(solver, published=True):
            options = {**SMALL.get(solver, {}), **PUBLISHED.get(solver, {}), "calibration": "paper"}
            found.append(Case(f"{solver}, {split}, as published", solver, split, options))
    return {case.name: case for case in found}


def forms_with_noise() -> set[type[Algorithm]]:
    """Every class of a solver or of an evaluation that can be made, less those without noise."""

    def below(kind: type) -> Iterator[type]:
        for child in kind.__subclasses__():
            if child.__module__.startswith("sottovoce.algorithms"):
                yield child
                yield from below(child)

    made = (kind for kind in below(Algorithm) if not getattr(kind, "__abstractmethods__", None))
    named = (kind for kind in made if "form" in vars(kind) and kind.name in (*algorithms.SOLVERS, "evaluation"))
    return {kind for kind in named if kind.private is not False}


# ------------------------------------------------------------------------------------------------ data and runs


def draw_data(plan: Plan, seed: int) -> Data:
    """Records within and beyond the bounds, one of them a null row."""
    rng = np.random.default_rng(seed)

    def some(count: int) -> tuple[np.ndarray, np.ndarray]:
        X = rng.normal(size=(count, plan.features)) * rng.choice([0.2, 1.0, 9.0], size=(count, 1))
        X[-1] = math.nan
        y = rng.choice(plan.classes, size=count) if plan.classes else rng.uniform(-1.5, 1.5, size=count)
        if plan.preparation.until is not None:
            y = labels_with(rng.integers(0, 2, count), time=rng.uniform(0, 5, count), entry=rng.uniform(0, 1, count))
        elif plan.preparation.counts:
            y = rng.poisson(1.0, size=count).astype(float)
        if plan.people is not None:
            y = labels_with(np.asarray(y, dtype=np.float64), person=np.arange(count) * plan.people // count)
        return X, y

    if plan.split != "columns":
        return {name: some(count) for name, count in plan.parties}
    X, y = some(plan.records)
    alone = labels_of(y) if plan.people is not None else y  # what the others are told of people
    found = {}
    for name, _ in plan.parties:
        part = plan.part(name)
        found[name] = X[:, part.start : part.stop], y if part.preparation.labelled else alone
    return found


def with_record(plan: Plan, data: Data, record: np.ndarray) -> Data:
    """The data with `record` (features and label) in the first place of the first party, by columns of all parties.

    Where people have several records, all those of the first person are such.
    """
    changed = dict(data)
    for place, (name, _) in enumerate(plan.parties):
        if place == 0 or plan.split == "columns":
            part = plan.part(name)
            changed[name] = _first_replaced(plan, data[name], record[part.start : part.stop], record[-1])
    return changed


def _first_replaced(
    plan: Plan, data: tuple[np.ndarray, np.ndarray], row: np.ndarray | float, label: float
) -> tuple[np.ndarray, np.ndarray]:
    """The first record of one party, or all those of the first person."""
    X, y = map(np.array, data)
    count = 1 if plan.people is None else plan.records // plan.people
    X[:count], (y["label"] if y.dtype.names else y)[:count] = row, label
    return X, y


def extreme(plan: Plan, sign: float) -> np.ndarray:
    """A raw row as far out as the bounds allow; of a row norm with all of it on the first column of a party."""
    bounds = plan.bounds
    if bounds.row_norm is None:
        return np.full(plan.features, sign * float(bounds.entry_bound))  # type: ignore[arg-type]
    row = np.zeros(plan.features)
    row[[plan.part(name).start for name, _ in plan.parties[: len(plan.columns) or 1]]] = plan.norms or bounds.row_norm
    return sign * row


def records(plan: Plan, seed: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """(null, others): as far out as the bounds allow with either label, one axis alone, and random ones."""
    rng = np.random.default_rng(seed)
    low, *_, high = plan.classes or (plan.bounds.label_low, plan.bounds.label_high)
    null = np.append(np.full(plan.features, math.nan), high)
    axis = np.where(np.arange(plan.features) == 0, extreme(plan, 1.0), 0.0)
    others = [
        np.append(rows, label)
        for rows in (extreme(plan, 1.0), extreme(plan, -1.0), axis, -axis)
        for label in (low, high)
    ]
    for _ in range(3):
        label = rng.choice(plan.classes) if plan.classes else rng.uniform(low, high)
        others.append(np.append(3 * rng.normal(size=plan.features), label))
    return null, others


def with_column(data: Data, column: np.ndarray) -> Data:
    """The first column of the first party replaced."""
    name = next(iter(data))
    X = np.array(data[name][0])
    X[:, 0] = np.where(np.isnan(X[:, 0]), math.nan, column)
    return {**data, name: (X, data[name][1])}


def neighbours(plan: Plan, seed: int) -> tuple[list[Data], list[Data]]:
    """(without, others): any of the others and a first one are neighbours under zero-out, any two under replace-one."""
    base = draw_data(plan, seed)
    if plan.protects == "feature":
        rng, count = np.random.default_rng(seed), plan.records
        columns = [np.ones(count), -np.ones(count), rng.normal(size=count), np.eye(count)[0]]
        return [with_column(base, np.zeros(count))], [with_column(base, column) for column in columns]
    null, others = records(plan, seed)
    return [with_record(plan, base, null)], [with_record(plan, base, record) for record in others]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the remarks that rows are null."""
    logger = logging.getLogger("sottovoce.holder")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def side_of(plan: Plan, data: Data) -> Side:
    with quiet():
        return Side(plan, data)


def sources(plan: Plan, seed: int) -> dict[str, SeededRandomness]:
    return {name: SeededRandomness(seed, name) for name, _ in plan.parties}


def again(side: Side, transcript: Transcript, gates: Mapping[str, Any], louder: float = 1.0) -> Iterator[Answered]:
    """Every message of a run, answered once more at other gates.

    `louder`: the coordinator multiplies its numbers by it, wherever the parties do not object.
    """
    memories = side.memories()
    for m in transcript.messages:
        if isinstance(gate := gates[m.party], Probe):
            gate.observed = m.released
        told = {name: louder * array if array.dtype == np.float64 else array for name, array in m.told.items()}
        if louder == 1.0 or side.queries[m.party][m.query].objection(m.round, told) is not None:
            told = dict(m.told)
        yield side.answer(gates, memories, Question(m.party, m.query, m.round, told))


# ------------------------------------------------------------------------------------------------ values


@dataclass(frozen=True)
class Note:
    """The value of one message before its noise, in the units of its query's norm."""

    query: Any
    release: Release
    values: np.ndarray
    widest: bool = False  # of a selection: the largest difference counts

    @property
    def plain(self) -> np.ndarray:
        """As it would leave."""
        return self.values / np.asarray(self.query.noise_weights)

    @property
    def free(self) -> bool:
        return self.release.mechanism == "derived"

    def distance(self, other: Note) -> float:
        gap = np.abs(self.values - other.values)
        return float(gap.max(initial=0.0) if self.widest else np.linalg.norm(gap))

    def allowed(self, relation: Relation) -> float:
        """What the query says, and what its grid adds; kept rows are rounded toward zero, which adds nothing."""
        extra = 0.0 if self.release.mechanism == "kept" else self.release.step * math.sqrt(self.query.rounding_entries)
        return float(self.query.sensitivity(relation) + extra)

    def cost(self, distance: float) -> float:
        """mu^2 of a release that a record moves so far; of choices 2 rho."""
        if self.free or distance == 0.0:
            return 0.0
        times = 2.0 if self.release.mechanism == "noisy-max" else 1.0
        return (times * distance / self.release.std) ** 2 if self.release.std else math.inf


class Probe:
    """A gate's door without noise: notes the value on the grid, and hands back what was released before."""

    observed: Released

    def __init__(self, releases: Mapping[str, Release], drawn: Drawn) -> None:
        self._releases, self._drawn = releases, drawn
        self._kept: dict[str, Any] = {}
        self._randomness = SeededRandomness(0)
        self.notes: list[Note] = []

    def release(self, query: Query, round: Round) -> Released:
        """Note what the query's value is in the round."""
        release = self._releases[query.name]
        if isinstance(query, Derived):
            self._note(query, query.derive(self._rows(query.source, round), round.told))
            return self.observed
        rows = round.rows if release.rate is None else round.rows.take(self._drawn(len(round.rows)))
        round = round._replace(rows=rows, randomness=self._randomness)
        if isinstance(query, Choice):
            self._note(query, np.rint(query.value(round) / release.step) * release.step, widest=True)
        elif isinstance(query, Walk):
            self._walk(query, release, round)
        else:
            self._gaussian(query, release, round)
        return self.observed

    def _note(self, query: Query, values: Any, **kind: bool) -> None:
        self.notes.append(Note(query, self._releases[query.name], np.asarray(values, dtype=np.float64), **kind))

    def _gaussian(self, query: Query, release: Release, round: Round) -> None:
        if release.std == 0.0:
            self._note(query, query.value(round))
            return
        seen = self.observed.arrays["grid"].reshape(release.batches, -1)
        for k in range(release.batches):  # each is a release of its own
            if k:
                following = query.follow(np.asarray(seen[k - 1] * release.step, dtype=np.float64), round)
                assert following is not None, f"{query.name} follows no released value"
                round = following._replace(rows=round.rows)
            self._note(query, np.rint(query.value(round) / release.step) * release.step * query.noise_weights)

    def _walk(self, query: Walk, release: Release, round: Round) -> None:
        """The noise that leads to what was released is found number by number."""
        grid = self.observed.arrays["grid"]
        noise = np.zeros_like(grid)
        for _ in range(len(grid) + 1):
            trial = round._replace(memory=copy.deepcopy(round.memory))
            missing = grid - query.walk(trial, noise, release.step)
            if not missing.any():
                break
            noise += missing
        query.walk(round, noise, release.step)
        self._note(query, (grid - noise) * release.step)

    def _rows(self, query: NoisyRows, round: Round) -> Any:
        release = self._releases[query.name]
        if query.name not in self._kept:
            rows = np.trunc(query.value(round).reshape(len(round.rows), -1) / release.step) * release.step
            self._note(query, rows)
            self._kept[query.name] = rows
        return self._kept[query.name]


def everybody(count: int) -> np.ndarray:
    return np.arange(count)


def every_second(count: int) -> np.ndarray:
    return np.arange(0, count, 2)


def notes(side: Side, transcript: Transcript, drawn: Drawn = everybody, louder: float = 1.0) -> dict[str, list[Note]]:
    """What each party's messages are made of, given the run."""
    probes = {name: Probe(side.releases, drawn) for name in side.blocks}
    for _ in again(side, transcript, probes, louder):
        pass
    return {name: probe.notes for name, probe in probes.items()}


def pairs(
    plan: Plan, seed: int, drawn: Drawn = everybody, louder: float = 1.0
) -> Iterator[tuple[Relation, list[tuple[Note, Note]]]]:
    """All messages of a run, as two neighbours would make them, for all pairs of neighbours and both relations."""
    without, others = neighbours(plan, seed)
    sides = [side_of(plan, data) for data in (*others, *without)]
    transcript = sides[0].play(sources(plan, seed))
    made = [[note for party in notes(side, transcript, drawn, louder).values() for note in party] for side in sides]
    for first, second in itertools.combinations(range(len(sides)), 2):
        found = list(zip(made[first], made[second], strict=True))
        if second == len(others):
            yield "zero-out", found
        yield "replace-one", found


# ------------------------------------------------------------------------------------------------ (i) and composition


def sensitivity(case: Case) -> dict[str, float]:
    """No record moves a message further than its query says and than was charged; the shares that were reached."""
    reached: dict[str, float] = {}
    for seed, relation in enumerate(RELATIONS):
        plan = case.plan(relation)
        passes: list[tuple[Drawn, float]] = [(everybody, 1.0), (everybody, LOUD)]
        if any(release.rate is not None for release in plan.releases):
            passes.append((every_second, 1.0))
        for drawn, louder in passes:
            for of, messages in pairs(plan, seed, drawn, louder):
                for first, second in messages:
                    if first.free:
                        continue
                    name, moved, allowed = first.query.name, first.distance(second), first.allowed(of)
                    assert moved <= allowed * ROUNDING, f"{name}: {of} moves it by {moved:.6g}, above {allowed:.6g}"
                    charged = first.release.charged(of)
                    assert allowed <= charged * (1 + 1e-12), f"{name}: {of} {allowed:.6g}, charged {charged:.6g}"
                    kind = type(first.query).__name__
                    reached[kind] = max(reached.get(kind, 0.0), moved / allowed)
    return reached


def secure_sensitivity(case: Case) -> dict[str, float]:
    """No record moves a sum over secure columns further than was charged, whatever the coins; what was reached.

    One party's part left blank moves it no further than the whole record does, whoever has the labels.
    """
    reached: dict[str, float] = {}
    for seed, relation in enumerate(RELATIONS):
        plan, keys = with_keys(case.plan(relation), lambda name, seed=seed: SeededRandomness(seed, name))  # type: ignore[misc]
        without, others = neighbours(plan, seed)
        blanked = [without_part(plan, data, name) for name in plan.names for data in others]
        every, count = [quiet_columns(plan, data) for data in (*others, *without, *blanked)], len(others)
        drawn = {name: SeededRandomness(seed, name) for name in (*plan.names, COORDINATOR)}
        opened = every[0].secure_play(plan, keys, drawn)
        for louder in (1.0, LOUD):
            asked = [_louder(every[0], one, louder) for one in opened]
            exact = [side.exact(asked, keys) for side in every]
            for number, one in enumerate(asked):
                query, release = every[0].queries[plan.names[0]][one.query], plan.release(one.query)
                unit, kind = release.step * np.asarray(query.noise_weights), type(query).__name__
                for first, second in itertools.combinations(range(len(every)), 2):
                    blank = first < count and (second == count or (second - 1) % count == first) and second >= count
                    most = release.charged("zero-out" if blank else "replace-one")
                    moved = float(np.linalg.norm((exact[first][number] - exact[second][number]) * unit))
                    assert moved <= most * ROUNDING, f"{one.query}: moved by {moved:.6g}, above {most:.6g}"
                    reached[kind] = max(reached.get(kind, 0.0), moved / most)
    return reached


def _louder(side: SecureColumns, one: OpenedSum, louder: float) -> OpenedSum:
    """The same question with larger weights, where a party takes them."""
    told = {name: louder * array if name == "weights" else array for name, array in one.told.items()}
    wrong = side.queries[side.plan.names[0]][one.query].objection(one.number, told)
    return one if wrong is not None else dataclasses.replace(one, told=told)


def without_part(plan: Plan, data: Data, name: str) -> Data:
    """The data with one party's part of the first record left blank."""
    X, y = data[name]
    y = y if y.dtype.names else np.array(y, dtype=np.float64)
    return {**data, name: _first_replaced(plan, (X, y), math.nan, math.nan)}


def quiet_columns(plan: Plan, data: Data) -> SecureColumns:
    with quiet():
        return SecureColumns(plan, data, "world")


def composition(case: Case) -> float:
    """All messages of all parties together cost no more than is charged; the share of the charge that was reached.

    Of Gaussian releases mu^2 adds, of choices 2 rho, of sampled ones what they cost if everybody were drawn.
    """
    largest = 0.0
    for seed, relation in enumerate(RELATIONS):
        plan = case.plan(relation)
        claim = claimed(plan, relation)
        for of, messages in pairs(plan, seed):
            if of == relation:
                spent = math.fsum(first.cost(first.distance(second)) for first, second in messages)
                assert spent <= claim * ROUNDING, f"{of}: messages cost mu^2 {spent:.6g}, charged {claim:.6g}"
                largest = max(largest, spent / claim)
    return largest


def claimed(plan: Plan, relation: Relation) -> float:
    """mu^2 of what the algorithm says that the first party's ledger is charged."""
    events: tuple[Event, ...] = events_of(plan, relation, plan.names[0])
    if plan.protects == "feature":
        events = tuple(release.event(relation) for release in plan.releases)
    total = 0.0
    for event in events:
        if isinstance(event, Unbounded):
            return math.inf
        if isinstance(event, Selection):
            total += 2 * event.rho
        elif isinstance(event, PoissonGaussian):
            total += event.rounds * ((2.0 if relation == "replace-one" else 1.0) / event.noise_multiplier) ** 2
        else:
            total += event.mu**2
    return total


# ------------------------------------------------------------------------------------------------ (ii) scale


class Blank(Query):
    """A query of the same name and cost whose value is 0, as long as the test needs it."""

    title = "nothing"
    samples = True

    def __init__(self, inner: Any, length: int, noise_weights: Any = 1.0, scores: tuple[float, ...] = ()) -> None:
        self.inner, self.length, self.scores = inner, length, scores
        self.name, self.bound, self.rounding_entries = inner.name, inner.bound, inner.rounding_entries
        self.noise_weights = noise_weights

    def sensitivity(self, relation: Relation) -> float:
        return float(self.inner.sensitivity(relation))

    def value(self, round: Round) -> np.ndarray:
        return np.array(self.scores) if self.scores else np.zeros(self.length)


class BlankWalk(Blank, Walk):
    """A walk that stays where it is."""

    def walk(self, round: Round, noise: Any, step: float) -> np.ndarray:
        return np.array(noise)


class BlankRows(Blank, NoisyRows):
    """Rows of zeros."""


class WholeRows(Derived):
    """The noisy rows themselves."""

    name, title, length = "whole rows", "noisy rows", 0

    def __init__(self, source: NoisyRows) -> None:
        self.source = source

    def derive(self, rows: Any, told: Any) -> np.ndarray:
        return np.asarray(rows, dtype=np.float64).ravel()


class BlankChoice(Blank, Choice):
    """A choice among scores that the test says; signed, and with a score of staying, as the query is."""

    candidate = "candidates"

    def __init__(self, inner: Any, scores: tuple[float, ...]) -> None:
        Blank.__init__(self, inner, 1, scores=scores)
        self.candidates, self.largest_std = inner.candidates, inner.largest_std
        self.signed, self.stays = inner.signed, inner.stays  # type: ignore[misc]


def gate_of(plan: Plan, randomness: SeededRandomness, *releases: Release) -> Gate:
    """A real gate for these releases alone."""
    named = {release.query: release for release in releases}
    known = {"has": named.__contains__, "release": named.__getitem__}
    public: Any = SimpleNamespace(
        channel=SimpleNamespace(secure=False), most_records=None, digest=plan.digest, records=plan.records, **known
    )
    return Gate(public, randomness)


def scale(case: Case) -> None:
    """The gate's noise has the std of every release of the plan to 1%, and choices have the law of their price."""
    plan = case.plan()
    side = side_of(plan, draw_data(plan, 0))
    name, block = next(iter(side.blocks.items()))
    for release in plan.releases:
        if release.mechanism == "derived" or release.std == 0.0:
            continue
        inner = side.queries[name][release.query]
        if isinstance(inner, Choice):
            _law_of_choices(plan, release, inner, block, case.name)
            continue
        one = release.model_copy(update={"batches": 1})  # each batch has noise of its own, see `fresh`
        gate = gate_of(plan, SeededRandomness(1, case.name), one, Release.derived(WholeRows.name, 0, 1))
        if release.mechanism == "kept":
            zeros = Block(np.zeros((DRAWS, 1)), np.zeros(DRAWS), block.bits, layout=block.layout)
            rows = WholeRows(BlankRows(inner, DRAWS))
            drawn = gate.release(rows, Round(plan, 0, {}, zeros)).arrays["value"] / one.std
        else:
            weights: Any = (
                np.resize(inner.noise_weights, DRAWS) if np.ndim(inner.noise_weights) else inner.noise_weights
            )
            blank = (BlankWalk if isinstance(inner, Walk) else Blank)(inner, DRAWS, weights)
            released = gate.release(blank, Round(plan, one.first, {}, block))
            drawn = released.arrays["grid"] * (one.step / one.std) * weights
        check_normal(drawn, f"{release.query} of {case.name}")


def check_normal(drawn: np.ndarray, what: str) -> None:
    """Independent standard normal numbers: their squares sum to a chi-square, their sum and products to normal ones."""
    count = len(drawn)
    low, high = stats.chi2.ppf([RARE / 2, 1 - RARE / 2], count) / count
    square = float(drawn @ drawn) / count
    assert low < square < high, f"{what}: noise of variance {square:.4g} of the planned one"
    limit = stats.norm.isf(RARE / 2)
    for moment in (drawn.sum(), drawn[1:] @ drawn[:-1], drawn[count // 2 :] @ drawn[: count - count // 2]):
        assert abs(moment) < limit * math.sqrt(count) * 1.05, f"{what}: noise is not independent, or not centred"


def _law_of_choices(plan: Plan, release: Release, inner: Choice, block: Block, label: str) -> None:
    """Two candidates whose scores differ by so much that one is taken three times as often as the other.

    With Laplace noise, by the exact probability that the difference of two is below the gap.
    """
    gap = release.std * math.log(3.0) / 2
    stay = (-1e6 * release.std,) if inner.stays else ()
    blank = BlankChoice(inner, (gap, *stay) if inner.signed else (gap, -gap))
    expected = 0.75
    if release.mechanism == "noisy-max":
        away = math.log(3.0)
        expected = 1 - math.exp(-away) * (2 + away) / 4
    many = release.model_copy(update={"count": CHOICES, "first": 0})
    gate = gate_of(plan, SeededRandomness(2, label), many)
    codes = [int(gate.release(blank, Round(plan, k, {}, block)).arrays["grid"][0]) for k in range(CHOICES)]
    taken = sum(code == (1 if inner.signed else 0) for code in codes)
    low, high = stats.binom.ppf([RARE / 2, 1 - RARE / 2], CHOICES, expected)
    assert low <= taken <= high, f"{release.query}: taken {taken} times of {CHOICES}, expected {expected:.3f}"


def coins(case: Case) -> None:
    """Where the plan samples, each record has a secret coin of its own, of the planned rate."""
    plan = case.plan()
    for release in plan.releases:
        if release.rate is None or release.rate == 1.0:
            continue
        side = side_of(plan, draw_data(plan, 0))
        name, block = next(iter(side.blocks.items()))
        count, seen = 400, list[np.ndarray]()
        inner = side.queries[name][release.query]
        query = (WatchedWalk if isinstance(inner, Walk) else Watched)(inner, seen, plan.dimension)
        many = release.model_copy(update={"count": count, "batches": 1})
        gate = gate_of(plan, SeededRandomness(3, case.name), many)
        for k in range(count):
            gate.release(query, Round(plan, release.first + k, {}, block))
        drawn = np.zeros((count, len(block)))
        for row, members in zip(drawn, seen, strict=True):
            row[members] = 1.0
        low, high = stats.binom.ppf([RARE / 2, 1 - RARE / 2], drawn.size, release.rate)
        assert low <= drawn.sum() <= high, f"{release.query}: {drawn.sum():.0f} coins came up of {drawn.size}"
        low, high = stats.binom.ppf([RARE / 2, 1 - RARE / 2], count, release.rate)
        each = drawn.sum(axis=0)
        assert low <= each.min() <= each.max() <= high, f"{release.query}: some records are drawn more often"
        sizes = drawn.sum(axis=1)
        ratio = float(np.var(sizes)) / (len(block) * release.rate * (1 - release.rate))
        # Sizes are binomial: the variance of 400 of them is within 50%, 7 standard deviations.
        assert 0.5 < ratio < 1.5, f"{release.query}: batch sizes vary {ratio:.3g} times as much as independent coins"


class Watched(Blank):
    """Notes who was drawn."""

    def __init__(self, inner: Any, seen: list[np.ndarray], length: int) -> None:
        super().__init__(inner, length)
        self.seen = seen

    def value(self, round: Round) -> np.ndarray:
        self.seen.append(np.array(round.rows.places))
        return np.zeros(self.length)


class WatchedWalk(Watched, Walk):
    """Likewise of a walk."""

    def walk(self, round: Round, noise: Any, step: float) -> np.ndarray:
        self.seen.append(np.array(round.rows.places))
        return np.array(noise)


# ------------------------------------------------------------------------------------------------ (iii) rank


@contextlib.contextmanager
def drawn_are(choose: Drawn) -> Iterator[None]:
    """The coins say what `choose` says of each batch."""

    def sample(count: int, rate: float, randomness: Any) -> np.ndarray:
        del rate, randomness
        return choose(count)

    with mock.patch("sottovoce.gate.gate.poisson_sample", sample):
        yield


def rank(case: Case) -> None:
    """Noise has full rank on every message, is the same for two data sets, and another one in every message."""
    plan = case.plan()
    without, others = neighbours(plan, 5)
    sides = [side_of(plan, data) for data in (others[0], without[0])]
    with drawn_are(everybody):
        transcript = sides[0].play(sources(plan, 5))
        residuals = [_noise(side, transcript) for side in sides]
    for (party, query), first in residuals[0].items():
        second = residuals[1][party, query]
        release = plan.release(query)
        assert np.allclose(first, second, rtol=1e-3, atol=1e-5 * float(np.abs(first).max())), (
            f"{query} of {party}: the noise depends on the data"
        )
        found = np.linalg.svd(first, compute_uv=False)
        assert found[-1] > 0.02 * found[0], f"{query} of {party}: noise of rank below {first.shape[1]}"
        assert release.mechanism == "derived" or len(np.unique(first[:, 0])) > 1


def _noise(side: Side, transcript: Transcript) -> dict[tuple[str, str], np.ndarray]:
    """For the last message of each party and query: a row of noise for each of several seeds."""
    found: dict[tuple[str, str], np.ndarray] = {}
    memories = side.memories()
    probes = {name: Probe(side.releases, everybody) for name in side.blocks}
    last = {(m.party, m.query): place for place, m in enumerate(transcript.messages)}
    for place, m in enumerate(transcript.messages):
        release, key = side.releases[m.query], (m.party, m.query)
        if release.mechanism not in ("selection", "noisy-max") and last[key] == place:
            length = sum(array.size for array in m.released.arrays.values())
            rows = []
            for seed in range(3 * length + 8):
                gates = side.gates({name: SeededRandomness(seed, "rank", name) for name in side.blocks})
                made = side.answer(gates, copy.deepcopy(memories), m)
                rows.append(_residual(side, made, copy.deepcopy(memories)))
            found[key] = np.array(rows)
            if release.std == 0.0 and release.mechanism != "derived":
                found[key] = found[key][1:] - found[key][0]
        probes[m.party].observed = m.released
        side.answer(probes, memories, m)
    return found


def _residual(side: Side, made: Answered, memories: Any) -> np.ndarray:
    """What was released less the value that led to it."""
    release = side.releases[made.query]
    seen = value_of(made.released.arrays, release.scale)
    if release.std == 0.0 and release.mechanism != "derived":
        return seen  # a form whose noise is none of the gate's
    probe = Probe(side.releases, everybody)
    probe.observed = made.released
    side.answer({made.party: probe}, memories, made)
    return np.asarray(seen - np.concatenate([note.plain for note in probe.notes[-release.batches :]]))


def fresh(case: Case) -> None:
    """Noise is drawn anew in every message, every batch and by every party: never the same twice."""
    plan = case.plan()
    side = side_of(plan, with_record(plan, draw_data(plan, 6), records(plan, 6)[0]))
    with drawn_are(everybody):
        transcript = side.play(sources(plan, 6))
        probes = {name: Probe(side.releases, everybody) for name in side.blocks}
        seen: dict[bytes, str] = {}
        for m in again(side, transcript, probes):
            release, made = side.releases[m.query], probes[m.party].notes
            if release.mechanism != "gaussian" or release.std == 0.0:
                continue
            value = np.concatenate([note.plain for note in made[-release.batches :]])
            noise = m.released.arrays["grid"] - np.rint(value / release.step)
            for batch in noise.reshape(release.batches, -1):
                if len(batch) > 1 or release.std / release.step > 1e7:
                    key = (batch * release.step / release.std).round(9).tobytes()
                    assert key not in seen, f"{m.query} of {m.party} in round {m.round} has the noise of {seen[key]}"
                    seen[key] = f"{m.query} of {m.party} in round {m.round}"


def own_randomness() -> None:
    """The parties of a federation have sources of their own, with a seed and without."""
    X, y = np.ones((4, 2)), np.ones(4)
    for seed in (7, None):
        federation = sv.Federation.by_rows([(X, y)] * 3)
        federation.coordinator(insecure_seed=seed)
        streams = [party.randomness.bytes(32) for party in federation._parties]
        assert len(set(streams)) == 3, "two parties draw the same noise"


# ------------------------------------------------------------------------------------------------ (iv) and (v)


def shape_of(plan: Plan, message: Answered) -> tuple[Any, ...]:
    """Everything about a message that an eavesdropper sees without reading its numbers."""
    arrays = message.released.arrays
    frame = encode(Frame("answer", 1, plan.digest, message.round, message.query, arrays))
    kinds = tuple((name, array.dtype.str, array.shape) for name, array in sorted(arrays.items()))
    return message.party, message.query, message.round, kinds, len(frame)


def constant_noise(scales: Any, size: int, randomness: Any) -> np.ndarray:
    """Where noise is added, and nowhere else, a number is far away."""
    del scales, randomness
    return np.full(size, FAR, dtype=np.int64)


def support(case: Case) -> None:
    """Whoever is drawn, nobody or everybody: the same messages of the same sizes, and noise on each entry."""
    plan = case.plan()
    side = side_of(plan, draw_data(plan, 8))
    transcript = side.play(sources(plan, 8))
    shapes = set()
    samples: list[Drawn] = [lambda n: np.arange(0), lambda n: np.arange(min(n, 1)), lambda n: np.arange(0, n, 2)]
    for sample in (*samples, everybody):
        with drawn_are(sample), mock.patch("sottovoce.gate.gate.rounded_gaussian", constant_noise):
            gates = side.gates(sources(plan, 8))
            made = list(again(side, transcript, gates))
        shapes.add(tuple(shape_of(plan, message) for message in made))
        for message in made:
            if side.releases[message.query].mechanism == "gaussian":
                grid = message.released.arrays.get("grid", np.zeros(1))
                assert (np.abs(grid) > FAR // 2).all(), f"{message.query}: entries without noise show who was drawn"
        for gate in gates.values():
            for query, rows in gate._rows.items():
                assert (np.abs(rows) > FAR // 2 * side.releases[query].step).all(), "kept rows without noise"
    assert len(shapes) == 1, "sizes of messages depend on who was drawn"
    assert [message[:3] for message in next(iter(shapes))] == [(m.party, m.query, m.round) for m in transcript.messages]


def strange_data(plan: Plan) -> list[Data]:
    """Neighbours, null rows alone, and numbers that could overflow."""
    without, others = neighbours(plan, 9)
    base = others[0]
    null = {name: (np.full_like(X, math.nan), y) for name, (X, y) in base.items()}
    huge = {name: (np.sign(X) * 1e300, np.where(np.arange(len(y)) % 2, y, math.nan)) for name, (X, y) in base.items()}
    return [base, others[1], others[-1], *without, null, huge]


def metadata(case: Case) -> None:
    """Number, order, types and lengths of messages are those of the plan, whatever the data are.

    Values with noise are integers on a grid, or functions of kept rows. Where choices steer what is asked, the same
    requests are compared.
    """
    plan = case.plan()
    sides = [side_of(plan, data) for data in strange_data(plan)]
    transcript = sides[0].play(sources(plan, 9))
    expected = [shape_of(plan, message) for message in transcript.messages]
    steered = any(release.mechanism in ("selection", "noisy-max") for release in plan.releases)
    for number, side in enumerate(sides):
        source = sources(plan, 10 + number)
        made = list(again(side, transcript, side.gates(source)) if steered else side.play(source).messages)
        assert [shape_of(plan, message) for message in made] == expected, "the data show in what messages look like"
        for message in made:
            kind = "value" if side.releases[message.query].mechanism == "derived" else "grid"
            types = {name: array.dtype for name, array in message.released.arrays.items()}
            assert types == {kind: np.dtype(np.float64 if kind == "value" else np.int64)}, (
                f"{message.query} leaves as {types}, not as integers on a grid"
            )


def once(case: Case) -> None:
    """Who asks again gets what was said, bit for bit: there is no second draw under one key."""
    plan = case.plan()
    side = side_of(plan, draw_data(plan, 11))
    gates, memories = side.gates(sources(plan, 11)), side.memories()
    transcript = side.play(sources(plan, 12))
    for m in transcript.messages:
        first, second = (side.answer(gates, memories, m) for _ in range(2))
        for name, array in first.released.arrays.items():
            repeated = second.released.arrays[name]
            assert np.array_equal(array, repeated), f"{m.query} in round {m.round} was drawn twice"


# ------------------------------------------------------------------------------------------------ (vi) labels


def labels(case: Case) -> float:
    """By columns: one label moves what its holder says within its bounds and, where labels are held, nobody else's.

    Returns the largest share of a bound that one label moved.
    """
    plan = case.plan("replace-one")
    low, *_, high = plan.classes or (plan.bounds.label_low, plan.bounds.label_high)
    holder, moved = plan.label_party_name, 0.0
    for seed in (13, 14):
        base = draw_data(plan, seed)
        record = records(plan, seed)[1][2 * (seed % 2)]  # as far out as the bounds allow, on either side
        sides = [side_of(plan, with_record(plan, base, np.append(record[:-1], label))) for label in (low, high)]
        transcript = sides[0].play(sources(plan, seed))
        made = [notes(side, transcript) for side in sides]
        for party in made[0]:
            for first, second in zip(made[0][party], made[1][party], strict=True):
                distance = first.distance(second)
                if plan.labels == "held" and party != holder:
                    assert distance == 0.0, f"{first.query.name}: {party} knows a label that another party holds"
                if not first.free and distance:
                    allowed = first.allowed("replace-one")
                    assert distance <= allowed * ROUNDING, f"{first.query.name}: a label moves it by {distance:.6g}"
                    moved = max(moved, distance / allowed)
                assert not (first.free and distance), f"{first.query.name}: a label shows in rows"
    return moved


# ------------------------------------------------------------------------------------------------ (vii) persistence


def persistence(case: Case) -> None:
    """Messages of kept rows with w and 2 w: the second is twice the first, exactly, in whatever round it is asked."""
    plan = case.plan()
    side = side_of(plan, draw_data(plan, 15))
    gates, memories = side.gates(sources(plan, 15)), side.memories()
    transcript = side.play(sources(plan, 16))
    for m in transcript.messages:
        if side.releases[m.query].mechanism != "derived" or "weights" not in m.told:
            continue
        weights = np.arange(1.0, 1.0 + len(m.told["weights"])) / 8
        told = [{**m.told, "weights": factor * weights} for factor in (1.0, 2.0)]
        one, two = (
            value_of(side.answer(gates, memories, Question(m.party, m.query, m.round, said)).released.arrays, 1.0)
            for said in told
        )
        earlier = getattr(gates[m.party], "earlier", one)
        gates[m.party].earlier = one  # type: ignore[attr-defined]
        assert np.array_equal(two, 2 * one), f"{m.query}: rows have other noise in the same round"
        assert np.array_equal(one, earlier), f"{m.query}: rows have other noise in round {m.round}"


def kept_rows(case: Case, folder: Path) -> None:
    """On a ledger: a plan has one draw of its rows, after a restart too, and for the same records alone."""
    plan = case.plan()
    name = plan.parties[0][0]
    X, y = draw_data(plan, 17)[name]
    changed = np.array(X)
    changed[:6] = np.random.default_rng(17).uniform(-1, 1, size=(6, 2))
    account = Ledger.create(folder / "ledger").open("people", 1e6, 1e-3)
    first, second = (_kept(account, plan, X, y, seed) for seed in (17, 18))
    assert first is not None, "a plan is refused"
    assert second is not None, "a plan that goes on is refused"
    assert np.array_equal(first[0], second[0]), "rows have other noise after a restart"
    assert _kept(account, plan, changed, y, 19) is None, "a plan goes on with other records"
    other = _kept(account, plan.model_copy(update={"run": "other"}), changed, y, 20)
    assert other is not None, "another plan is refused"
    step = next(release.step for release in plan.releases if release.mechanism == "kept")
    moved, due = other[0] - first[0], other[1] - first[1]
    # New noise is within two steps of the old for one entry of 800: for half of twelve, never.
    for part in (slice(0, 6), slice(6, None)):
        assert np.mean(np.abs(moved[part] - due[part]) <= 2 * step) < 0.5, "two plans have the same noise"


def _kept(
    account: Account, plan: Plan, X: np.ndarray, y: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """(noisy rows, rows) of the first party, started anew, after it took the plan and gave an answer; None: refused."""
    name = plan.parties[0][0]
    known = y if plan.part(name).preparation.labelled else None
    party = Party(name, X, known, account=account, randomness=SeededRandomness(seed, plan.run))
    with quiet():
        if decode(handle(party, encode(Frame("plan", 1, plan.digest, text=plan.to_json()))).data).kind != "accept":
            return None
        run = party.run
        assert run is not None
        summary = run.queries["gram" if "gram" in run.queries else "sums"]
        run.gate.release(summary, Round(plan, 0, {}, run.rows, run.memory))
        scores = next(query for query in run.queries.values() if isinstance(query, Derived))
        asked = Round(plan, 0, {"weights": np.zeros(2)}, run.rows, run.memory)
        run.gate.release(scores, asked)
        return run.gate._rows[scores.source.name].astype(np.float64), scores.source.value(asked)


# ------------------------------------------------------------------------------------------------ (viii) accountant


def accountant() -> None:
    """The frozen tables of noise multipliers for sampled rounds, and of the traps of other accountants."""
    path = Path(__file__).parents[2] / "privacy" / "test_accounting.py"
    spec = importlib.util.spec_from_file_location("frozen_tables", path)
    assert spec is not None
    assert spec.loader is not None
    frozen = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(frozen)
    frozen.test_accountant_traps_and_that_we_do_not_fall_in()
    rate, rounds, delta = 0.05, 200, 1e-5
    for epsilon, *expected in frozen.TABLE[rate, rounds, delta][1:]:
        for relation, known in zip(RELATIONS, expected, strict=True):
            found = noise_multiplier_for(epsilon, delta, relation, rate, rounds)
            assert abs(found / known - 1) < 0.01, f"{relation}: {found:.4g} at epsilon {epsilon}, frozen {known}"


def ledger(case: Case, folder: Path) -> None:
    """A plan is charged before anything leaves: the same one again costs nothing, another run of it what it costs."""
    plan = case.plan()
    data = draw_data(plan, 18)
    name, (X, y) = next(iter(data.items()))
    account = Ledger.create(folder / "ledger").open("people", plan.epsilon, plan.delta)
    party = give_scores(Party(name, X, y if plan.part(name).preparation.labelled else None, account=account), plan)

    def accepted(asked: Plan) -> bool:
        with quiet():
            answer = decode(handle(party, encode(Frame("plan", 1, asked.digest, text=asked.to_json()))).data)
        return answer.kind == "accept"

    assert accepted(plan), "a plan for the whole budget is refused"
    spent = [known.cost for known in account.book().reservations]
    events = events_of(plan, "zero-out", name)
    assert spent == [account.terms().price("", events, plan.delta, "").cost], "the ledger is charged something else"
    assert accepted(plan)
    assert [known.cost for known in account.book().reservations] == spent, "a plan is charged twice"
    assert not accepted(plan.model_copy(update={"run": "again"})), "a second run is not charged"


def budget(case: Case) -> None:
    """What a plan costs is within its epsilon at 99% of its delta, the rest being the samplers', and is so reported."""
    for relation in RELATIONS:
        plan = case.plan(relation)
        events = events_of(plan, relation)
        if any(isinstance(event, Unbounded) for event in events):
            assert plan.protects == "feature", "a plan of ours has no price"
            continue
        spent = epsilon_of(events, 0.99 * plan.delta, relation)
        assert spent <= plan.epsilon * ROUNDING, f"{relation}: the plan costs {spent:.6g}, above {plan.epsilon:.6g}"
        told = algorithms.epsilons(plan)["coordinator"]
        assert told >= spent / ROUNDING, f"{relation}: the plan costs {spent:.6g}, and {told:.6g} is told"


def declared_people(case: Case) -> None:
    """An answer that grows with the number of people has numbers about single ones, and says so."""
    small, large = (case.plan(records=records) for records in (RECORDS, 2 * RECORDS))
    for party in small.names:
        grown = queries_of(algorithms.of(large), large, party)
        for name, query in queries_of(algorithms.of(small), small, party).items():
            assert query.each_person or query.length == grown[name].length, f"{name} has numbers about single people"


def told(case: Case) -> None:
    """What a report says of a plan: no less than its worst record pays given all coins that the coordinator has.

    For plans of Gaussian rounds alone: then the whole curve is known, less the samplers' share of delta.
    """
    for relation in RELATIONS:
        plan = case.plan(relation)
        mus = [events_of(plan, relation, name)[0].mu for name in plan.names]  # type: ignore[union-attr]
        epsilon = algorithms.epsilons(plan)["coordinator"]
        assert epsilon >= epsilon_of([Gaussian(max(mus))], 0.99 * plan.delta, relation) / ROUNDING, "less is reported"
        alarms = np.array([0.0, 0.001, 0.01, 0.05, 0.3])
        share = 0.01 * plan.delta
        curve = ndtr(ndtri(1 - alarms - share) - max(mus)) - share
        _, found = guaranteed(algorithms.profiles(plan), plan.delta, alarms.tolist())["coordinator"]
        assert np.all(found <= curve + share / 100), "the curve promises more misses than there are"


def served(case: Case, folder: Path) -> None:
    """Real parties that are asked for everything serve what the plan has, and were charged for all of it."""
    for number, relation in enumerate(RELATIONS):
        plan = case.plan(relation)
        holders = serving.Holders(plan, folder / str(number))
        with quiet():
            takers, answers = serving.check(holders, plan.to_json())
        if any(isinstance(event, Unbounded) for event in events_of(plan, relation)):
            assert takers == 0, "an account pays for what has no price"
        else:
            assert takers == len(plan.parties), "a party refuses a plan of ours"
            assert answers > 0, "a plan of ours is not served"


# ------------------------------------------------------------------------------------------------ (ix) signatures


def _first(plan: Plan, known: Mapping[str, Any], **policy: Any) -> tuple[Party, Callable[..., Frame]]:
    """The first party of a plan on a wire of these identities, and how to speak with it."""
    name, (X, y) = next(iter(draw_data(plan, 19).items()))
    labels = y if plan.part(name).preparation.labelled else None
    party = Party(name, X, labels, policy=Policy(predict_for=(COORDINATOR,), predict_training=True, **policy))
    party.identify(known[name])

    def send(kind: str, **fields: Any) -> Frame:
        digest = b"" if kind == "hello" else plan.digest
        with quiet():
            return decode(party.handle(encode(Frame(kind, 1, digest, **fields))).data)

    return party, send


def signed(case: Case) -> None:
    """A party answers nothing before every party has signed the plan, and signs nothing that it has not charged."""
    plan, other = case.plan(), case.plan().model_copy(update={"run": "another"})
    known = local_identities(plan.names)
    full = {name: identity.sign(PLAN, plan.digest) for name, identity in known.items()}
    last = plan.names[-1]
    less = {name: text for name, text in full.items() if name != last}
    party, send = _first(plan, known)
    assert "signature" not in send("plan", query="check", text=plan.to_json()).text, "a free check is signed"
    assert send("plan", text=plan.to_json()).kind == "accept"
    for shown in (None, less, less | {last: known[last].sign(PLAN, other.digest)}, less | {last: full[plan.names[0]]}):
        if shown is not None:
            refused = send("plan", query="start", text=json.dumps(shown))
            assert refused.kind == "refuse", "a plan starts without everybody's signature"
            assert last in json.loads(refused.text)["refused"], "it is not said whose signature is missing"
        assert not list(serving.answered(party, plan)), "a plan is answered that not everybody has signed"
    assert send("plan", query="start", text=json.dumps(full)).kind == "accept"
    assert list(serving.answered(party, plan)), "a plan that everybody signed is not answered"


def earned(case: Case) -> None:
    """By columns a model is kept after every answer of the plan, and used after its holder's approval."""
    plan = case.plan()
    known = local_identities(plan.names)
    full = json.dumps({name: identity.sign(PLAN, plan.digest) for name, identity in known.items()})
    name = plan.names[0]
    arrays = {"coef": np.ones(plan.columns[0]), "intercept": np.zeros(1)}
    for asked in (False, True):
        party, send = _first(plan, known)
        assert send("plan", text=plan.to_json()).kind == "accept"
        assert send("plan", query="start", text=full).kind == "accept"
        if asked:
            assert list(serving.answered(party, plan))
        assert send("done", arrays=arrays).kind == ("done" if asked else "refuse"), "a model is kept that nobody earned"
        kept = party.predictor.models.get(plan.digest)
        assert (kept is not None) == asked, "a model is kept that nobody earned"
    assert kept is not None
    keys = {each: RunKey().public for each in plan.names}
    keys[name] = json.loads(send("hello", query="predict").text)["public_key"]
    texts = {each: known[each].sign(PREDICTION_KEY, bytes.fromhex(key)) for each, key in keys.items()}
    wrong = local_identities(plan.names)
    forged = {each: wrong[each].sign(PREDICTION_KEY, bytes.fromhex(key)) for each, key in keys.items()}

    def predicted(signatures: Mapping[str, str]) -> str:
        request = Request.new(plan.digest, COORDINATOR, keys, signatures)
        return send("predict", query=COORDINATOR, text=request.text).kind

    assert predicted(texts) == "refuse", "a model is used that its holder has not seen"
    party.predictor.models.approve(plan.digest, kept)
    assert predicted(forged) == "refuse", "a key is taken that its party has not signed"
    assert predicted(texts) == "answer"


# ------------------------------------------------------------------------------------------------ further guards


def nonsense(case: Case) -> None:
    """Numbers of a coordinator that are no numbers, too large, or too many are refused, from the message alone."""
    plan = case.plan()
    side = side_of(plan, draw_data(plan, 19))
    transcript = side.play(sources(plan, 19))
    seen = set()
    for m in transcript.messages:
        for name, array in m.told.items():
            if array.size == 0 or (m.query, name) in seen:
                continue
            seen.add((m.query, name))
            wrong = []
            far: tuple[Any, ...] = (math.nan, math.inf, 1e200) if array.dtype == np.float64 else (2**40,)
            for number in far:
                spoiled = np.array(array)
                spoiled.flat[-1] = number
                wrong.append(spoiled)
            for each in (*wrong, np.append(array.ravel(), array.ravel()[:1])):
                _refused(side, m, {**m.told, name: each}, name)


def _refused(side: Side, message: Answered, told: Mapping[str, Any], name: str) -> None:
    reason = side.queries[message.party][message.query].objection(message.round, told)
    if reason is None:
        gates, memories = side.gates(sources(side.plan, 20)), side.memories()
        try:
            side.answer(gates, memories, Question(message.party, message.query, message.round, told))
        except RefusedError:
            return
        raise AssertionError(f"{message.query}: {name} {told[name].ravel()[-3:]} is answered")


def lines() -> None:
    """No line of a file, whatever it holds, decides whether the file is read, nor how another line is read."""
    whole = [f"{i},{i}.5,{i % 2}" for i in range(9)]
    with tempfile.TemporaryDirectory() as folder, quiet():
        path = Path(folder) / "records.csv"
        for odd in ("1,red,0", "1,2", '1,"2,0', "1,2,0,3", "1,\ufffd,0"):
            path.write_text("\n".join(["a,b,y", *whole[:4], odd, *whole[5:]]), encoding="utf-8")
            try:
                found = read_table(path, label="y").X
            except InputError as error:
                raise AssertionError(f"one line ended the reading: {error}") from None
            others = np.arange(9) != 4
            assert found.shape == (9, 2), "one line changed the number of records"
            assert np.array_equal(found[others, 0], np.arange(9.0)[others]), "one line changed others"


def bounds_without_privacy() -> None:
    """A bound that cuts nothing changes no model of a run without privacy."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 5))
    y = X @ [1.0, -2.0, 0.0, 0.5, 0.0] + 0.3
    free, huge = (
        sv.PrivateRidge(math.inf, alpha=0.1, solver="gradient", row_norm=bound).fit(X, y) for bound in (None, 1e6)
    )
    assert np.allclose(free.coef_, huge.coef_, rtol=0, atol=1e-6), "a bound changed the model"


def world(case: Case) -> bool:
    """Where less is claimed against the world, the model reads what that needs and no more; whether less is claimed.

    By rows it is a function of sums over the parties: what one party says more and another less changes nothing. By
    columns numbers of single records, for which the world does not pay, reach nothing but what is said of that record.
    Of what the world sees nothing the model reads nothing.
    """
    plan = case.plan()
    claims = algorithms.epsilons(plan)
    if not claims["world"] < claims["coordinator"] * (1 - 1e-9):
        return False
    side = side_of(plan, draw_data(plan, 21))
    transcript = side.play(sources(plan, 21))
    released = [value_of(m.released.arrays, side.releases[m.query].scale) for m in transcript.messages]
    asked, solution = _coordinated(plan, transcript, released)
    changed = [np.array(values) for values in released]
    entry = 3
    for m, values in zip(transcript.messages, changed, strict=True):
        sees = side.queries[m.party][m.query].world_sees
        if plan.split == "columns" and len(values) == plan.records:
            values[entry] += 0.5
        elif sees == "nothing":
            values += 0.5
        elif sees == "sum" and plan.split == "rows" and side.releases[m.query].mechanism == "gaussian":
            values += (1.0 if m.party == plan.parties[0][0] else -1.0) * 2.0**-6
    other, moved = _coordinated(plan, transcript, changed)
    for mine, theirs in ((solution.weights, moved.weights), (solution.model, moved.model)):
        if isinstance(mine, np.ndarray):  # of an evaluation the cells
            assert np.allclose(mine, theirs, rtol=1e-9, atol=1e-9), "the model reads more than it pays for"
    for first, second in zip(asked, other, strict=True):
        for mine, theirs in zip(_said(first), _said(second), strict=True):
            if plan.split == "columns" and mine.shape[-1:] == (plan.records,):
                mine, theirs = np.delete(mine, entry, axis=-1), np.delete(theirs, entry, axis=-1)
            same = np.allclose(mine, theirs, rtol=1e-9, atol=1e-9)
            assert same, f"{first.query}: is told more than the world pays for"
    return True


def _said(ask: Ask) -> list[np.ndarray]:
    return [np.asarray(array) for told in (ask.arrays, *ask.each.values()) for array in told.values()]


def _coordinated(plan: Plan, transcript: Transcript, values: list[np.ndarray]) -> tuple[list[Ask], Solution]:
    """What the coordinator asks, and finds, if these are the answers."""
    text, rounds = algorithms.of(plan).coordinate(plan), Rounds(plan, algorithms.of(plan))
    asked: list[Ask] = []
    left = list(zip(transcript.messages, values, strict=True))
    try:
        ask = next(text)
        while True:
            asked.append(ask)
            _, names = rounds.assign(ask)
            answers, left = left[: len(names)], left[len(names) :]
            ask = text.send({m.party: value for m, value in answers})
    except StopIteration as stop:
        found = stop.value
    return asked, found if isinstance(found, Solution) else Solution(found)


# ------------------------------------------------------------------------------------------------ damaged ledgers


def damaged_index() -> None:
    """An index that has lost an entry is noticed by whoever starts, and before anything is charged."""
    with tempfile.TemporaryDirectory() as folder:
        victim = Victim.make(Path(folder))
        data = bytearray(victim.data)
        place = data.index(next(iter(victim.released))[0].encode(), victim.index_pages()[0] * PAGE)
        data[place] ^= 1
        victim.account.path.write_bytes(data)
        ledger_file._forget()
        for use in (lambda: Ledger(victim.account.path), lambda: victim.account.reserve("f" * 64, [])):
            with contextlib.suppress(LedgerError):
                use()
                raise AssertionError("a ledger whose index is damaged is used")


def flipped_bits() -> None:
    """With one flipped bit, seen or not, an old key has its old answer or none, and no budget grows."""
    with tempfile.TemporaryDirectory() as folder:
        victim = Victim.make(Path(folder))
        attack(victim, victim.bits(victim.index_pages(), 40, 1), "blind", keys=6)
        attack(victim, victim.payload_bits(), "starts")
        attack(victim, victim.bits(range(len(victim.data) // PAGE), 12, 3), "starts", keys=6)
