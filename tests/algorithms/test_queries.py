"""What every query of every form keeps: its bound, exact sums, what it takes and gives, and what a plan charges for it.

The contract asks each query of each party of small plans, by a coordinator that says whatever is allowed. Plans are
made from the registry, so a form that is added is asked here without a line. A class of queries that is added needs a
`Canary`: two records and a message at which it moves by its whole bound.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
import pytest
import scipy.sparse as sp

from neighbours import Terms, draw
from neighbours import table_of as columns_of
from plans import COUNTS, ENTRIES, FORMS, ONE_VS_REST, OPTIONS, PLANS, SECURE, SEVERAL, TIMES, plan_for
from sottovoce import algorithms, losses
from sottovoce.algorithms.cd.private import GreedyScores
from sottovoce.algorithms.description import CountedColumns, Cut, Described
from sottovoce.algorithms.evaluation import (
    EvaluatedClasses,
    EvaluatedNumbers,
    EvaluatedSeveral,
    Subject,
    cells,
    score_recipe,
)
from sottovoce.algorithms.evaluation.counts import EvaluatedCounts
from sottovoce.algorithms.evaluation.groups import ByGroup, Groups
from sottovoce.algorithms.evaluation.times import EvaluatedTimes
from sottovoce.algorithms.model_selection import Candidates, ComparedLosses
from sottovoce.algorithms.one_shot import RowSketch
from sottovoce.algorithms.ranges import CountedRanges, PowerCounts
from sottovoce.algorithms.scd.primal import Minimisers, PrimalState
from sottovoce.algorithms.scd.private import LotSteps
from sottovoce.algorithms.scd.published import PublishedState, SequentialState, drawn_lot
from sottovoce.algorithms.sgd import RecordGradient, named_records
from sottovoce.algorithms.sharing.admm_feature import LocalScores
from sottovoce.algorithms.standard_errors import ColumnsStandardErrors, PrivateStandardErrors, Start
from sottovoce.data import projection
from sottovoce.data.beside import labels_with
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds, party_norms
from sottovoce.data.matrix import Slope
from sottovoce.data.projection import short_rows
from sottovoce.errors import LeakError, RefusedError
from sottovoce.gate.query import Choice, Query, Reals, Round, Walk
from sottovoce.lab.audit.runner import audit_plan
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.plan.split import SecureAggregation
from sottovoce.privacy.events import RELATIONS, Relation
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.queries.joint import HeldSum, JointSum
from sottovoce.queries.parts import ColumnSketch, PartGradient, sketch_of
from sottovoce.queries.pricing import queries_of
from sottovoce.queries.sums import GramMatrix, NumberSum, ProjectedGradient
from sottovoce.solvers import Rule
from support import epsilons_of, forgeries, told_to

Table = tuple[np.ndarray, np.ndarray]
TRIALS = 5  # draws of a table and a message for each query; neighbours under both relations in each
ROUNDING = 1 + 1e-12  # the floating point of a distance

TWO: dict[str, Any] = {"loss": Named(name="logistic"), "classes": (-1, 1), "fit_intercept": True}
REGULARISERS = {
    "elastic net": Named(name="elastic_net", parameters={"alpha": 0.05, "l1_ratio": 0.4}),
    "box": Named(name="box", parameters={"low": -0.1, "high": 0.3}),
}
SHARES = tuple(party_norms(3.0, (2, 2)))
PARTS: dict[str, tuple[Bounds, tuple[float, ...]]] = {  # how parts of rows may be bounded
    "entries": (Bounds.declare(entry_bound=(2.0, 0.5, 0.25, 1.0), label_bound=1.0), ()),
    "a norm": (Bounds.declare(row_norm=3.0, label_bound=1.0), SHARES),
    "a norm and entries": (Bounds.declare(row_norm=3.0, entry_bound=2.0, label_bound=1.0), SHARES),
    "ranges": (Bounds.declare(feature_ranges=([-1.0] * 4, [1.0] * 4), label_bound=1.0), ()),
}
CUT = {"slope_bound": 0.3}
AMOUNTS = Bounds.declare(row_norm=1.0, label_bound=(0, 3))
RATED = Bounds.declare(row_norm=1.0, label_bound=(0, 3), exposure_bound=2.0)
STRETCHED = Named(name="poisson", parameters={"phi": 0.3, "bend": 0.01})
WEIGHED = Bounds.declare(row_norm=1.0, label_bound=(0, 3), exposure_bound=2.0, weight_bound=2.0)
HELD: dict[str, Any] = {"labels": "held", "aggregation": SecureAggregation(colluding=1)}
MORE: dict[str, tuple[str, str, dict[str, Any]]] = {  # a solver, a split, and what only fields and options reach
    "whitened, class weights": ("whitened", "central", {**TWO, "class_weight": (1e-3, 1.0)}),
    "evaluation, exposures": ("evaluation", "central", {**COUNTS, "bounds": RATED}),
    "evaluation, amounts": ("evaluation", "central", {**COUNTS, "loss": Named(name="gamma"), "bounds": AMOUNTS}),
    "whitened, amounts": ("whitened", "central", {**COUNTS, "loss": Named(name="gamma"), "bounds": AMOUNTS}),
    "whitened, counts, exposures": ("whitened", "central", {**COUNTS, "bounds": RATED}),
    "whitened, counts, weights": ("whitened", "central", {**COUNTS, "bounds": WEIGHED}),
    "whitened, classes, weights": (
        "whitened",
        "central",
        {**TWO, "bounds": Bounds.declare(row_norm=1.0, weight_bound=2.0)},
    ),
    "whitened, several classes, weights": (
        "whitened",
        "central",
        {**SEVERAL, "bounds": Bounds.declare(row_norm=1.0, weight_bound=2.0)},
    ),
    "whitened, many columns, weights": (
        "whitened",
        "central",
        {"features": 2001, "bounds": Bounds.declare(row_norm=1.0, label_bound=1.0, weight_bound=2.0)},
    ),
    "whitened, intercept": ("whitened", "central", {"fit_intercept": True}),
    "whitened, prior": ("whitened", "central", {**TWO, "prior": ((3.0, -1.0), 0.5)}),
    "whitened, prior, numbers": ("whitened", "rows", {"fit_intercept": False, "prior": ((3.0, -1.0), 0.0)}),
    "whitened, many columns": ("whitened", "central", {"features": 2001}),
    "whitened, one-vs-rest": ("whitened", "central", ONE_VS_REST),
    "gradient, class weights": ("gradient", "central", {**ONE_VS_REST, "class_weight": (0.1, 0.5, 1.0), **CUT}),
    "gradient, softmax": ("gradient", "central", {**SEVERAL, **CUT, "fit_intercept": False}),
    "newton, intercept": ("newton", "central", {"fit_intercept": True}),
    **{f"cd, {name}": ("cd", "central", {"regulariser": each}) for name, each in REGULARISERS.items()},
    **{f"greedy-cd, {name}": ("greedy-cd", "central", {"regulariser": each}) for name, each in REGULARISERS.items()},
    **{f"greedy-cd, {rule}": ("greedy-cd", "central", {**TWO, "rule": rule}) for rule in get_args(Rule)},
    **{
        f"{solver}, {name}{' and an intercept' if intercept else ''}": (
            solver,
            "columns",
            {"bounds": bounds, "norms": norms, "fit_intercept": intercept, "labels": "held"},
        )
        for solver in ("admm", "fdml")
        for intercept in (True, False)
        for name, (bounds, norms) in PARTS.items()
    },
    "scd-sequential, lots of one": ("scd-sequential", "central", {"lot": 1}),
    "scd-sequential, as published, lots of one": ("scd-sequential", "central", {"lot": 1, "calibration": "paper"}),
    "scd-primal, as published, one column": (
        "scd-primal",
        "central",
        {"features": 1, "calibration": "paper", "regulariser": Named(name="l2", parameters={"alpha": 0.5})},
    ),
    "score, three parties": ("score", "columns", {"labels": "held", "label_party": 2, "parties": 3}),
    "one-shot, rademacher": ("one-shot", "columns", {"sketch": "rademacher", "sketch_size": 2}),
    "whitened, secure, classes": ("whitened", "columns", {**HELD, **TWO, "class_weight": (1e-3, 1.0)}),
    "whitened, secure, amounts": (
        "whitened",
        "columns",
        {**HELD, **COUNTS, "loss": Named(name="gamma"), "bounds": ENTRIES, "fit_intercept": False},
    ),
    "whitened, secure, intercept": ("whitened", "columns", {**HELD, "fit_intercept": True}),
    "frank-wolfe, exact, labels held": ("frank-wolfe", "columns", {"labels": "held", "epsilon": math.inf}),
    "frank-wolfe, rademacher": ("frank-wolfe", "columns", {"sketch": "rademacher", "labels": "held"}),
    **{
        f"{form.name}, {form.form}, {split}, {loss}": (
            form.name,
            split,
            {
                **form.when,
                "loss": Named(name=loss),
                "classes": (-1, 1) if losses.get(loss).kind == "classification" else None,
                "fit_intercept": True,
            },
        )
        for form in FORMS
        for split in form.splits[:1]
        for loss in ("logistic", "huber", "hinge", "smoothed_hinge", "sigmoid")
        if not (form.private is False or form.published or form.several or "unit" in form.when)
        if form.name != "evaluation"
        if all(need.met(losses.get(loss)) for need in form.needs)
    },
}


def problem_of(split: str = "central", **fields: Any) -> Problem:
    """For what is bought beside a fit."""
    plan = audit_plan("gradient" if split == "central" else "fdml", split, 1 if split == "central" else 2, records=6)
    return Problem(**{name: getattr(plan, name) for name in Problem.model_fields} | fields)


def bought(form: Any, about: Any, **fields: Any) -> Callable[[], Plan]:
    """A plan of what no solver has."""
    return lambda: algorithms.plan_by(form, problem_of(**fields), about, run="run", coin="coin")


WEIGHTS = np.array([3.0, -2.0, 0.5])
MODELS = 1e3 * np.array([WEIGHTS, -WEIGHTS, -WEIGHTS])  # the losses of which differ by much, one way or the other
SIDES = Groups(column="side", names=("right", "left"), places=(1, -1))  # of the first feature
BARE: dict[str, Any] = {"bounds": Bounds(), "norms": (), "layout": "raw"}
DESCRIBED = (
    Cut(place=0, scale="linear", low=-2.0, high=3.0),
    Cut(place=1, scale="powers"),
    Cut(place=2, scale="log", low=0.5, high=9.0),
    Cut(place=3, scale="levels", cells=3),
)
MADE: dict[str, Callable[[], Plan]] = {
    "ranges, central": bought(CountedRanges(), (0, 1, 2), **BARE),
    "ranges, columns": bought(CountedRanges(), (0, 1, 2), **BARE, split="columns"),
    **{
        f"description, {name}": bought(CountedColumns(), Described(columns=DESCRIBED, by=by), **BARE, **more)
        for name, by, more in (
            ("central", None, {"features": 4}),
            ("columns", None, {"split": "columns"}),
            ("by class", 3, {"features": 4}),
        )
    },
    **{
        f"standard errors, {loss}": bought(
            PrivateStandardErrors(), Start(1e-9 * WEIGHTS), **{**fields, "fit_intercept": True}
        )
        for loss, fields in {
            "squared": {},
            "logistic": TWO,
            "class weights": {**TWO, "class_weight": (0.1, 1.0)},
            "huber": {"loss": Named(name="huber", parameters={"threshold": 0.4})},
            "counts": {**COUNTS, "loss": STRETCHED},
            "exposures": {**COUNTS, "loss": STRETCHED, "bounds": RATED},
            "amounts": {**COUNTS, "loss": Named(name="gamma"), "bounds": AMOUNTS},
        }.items()
    },
    "standard errors, times": bought(
        PrivateStandardErrors(),
        Start(1e-9 * WEIGHTS, (2,)),
        **{**TIMES, "loss": Named(name="hazard", parameters={**TIMES["loss"].parameters, "bend": 0.01})},
    ),
    "standard errors, secure": bought(
        ColumnsStandardErrors(), Start(1e-9 * np.resize(WEIGHTS, 5)), **{**HELD, **TWO, "split": "columns"}
    ),
    **{
        f"evaluation by group, {form.form}": bought(form, Subject(weights, (0.0, 1.0), groups=SIDES), **fields)
        for form, weights, fields in (
            (EvaluatedClasses(), 1e6 * WEIGHTS, TWO),
            (EvaluatedNumbers(), 1e6 * WEIGHTS, {"fit_intercept": True}),
            (EvaluatedSeveral(), 1e6 * MODELS, {**SEVERAL, "fit_intercept": True}),
        )
    },
    "evaluation, far counts": bought(EvaluatedCounts(), Subject(1e3 * WEIGHTS), **COUNTS),
    "evaluation, far scores of times": bought(EvaluatedTimes(), Subject(1e3 * WEIGHTS, (1.0, 2.0)), **TIMES),
    "model selection, logistic": bought(ComparedLosses(), Candidates(MODELS, 1.0), **TWO),
    "model selection, squared": bought(ComparedLosses(), Candidates(MODELS, 0.05), fit_intercept=True),
}
EVERY = (*PLANS, *SECURE, *MORE, *MADE)


@functools.cache
def plan_named(name: str) -> Plan:
    """Each plan is made once."""
    if name in MADE:
        return MADE[name]()
    if name not in MORE:
        form, split, fields = {**PLANS, **SECURE}[name]
        return plan_for(form, split, **fields)
    solver, split, fields = MORE[name]
    usual = {"parties": 1 if split == "central" else 2, "records": 6, "relation": "zero-out"}
    return audit_plan(solver, split, **{**usual, **OPTIONS.get(solver, {}), **fields})


@dataclass(frozen=True)
class Message:
    """What a party is told, what it was told before of its rows, and the seed of the duals that it has."""

    told: Mapping[str, np.ndarray]
    before: Mapping[str, np.ndarray] = field(default_factory=dict)
    duals: int | None = None


@dataclass(frozen=True)
class Asked:
    """A query of one party of a plan, in a round in which it answers."""

    plan: Plan
    party: str
    query: Query
    number: int

    @property
    def place(self) -> int:
        """Of the record that neighbours differ in: one that the round is about, with the longest column of a sketch."""
        query, plan = self.query, self.plan
        if isinstance(query, RecordGradient):
            return int(named_records(plan)[1][self.number])
        if isinstance(query, LotSteps):
            return self.number % query.lots * query.lot
        if isinstance(query, SequentialState):
            return int(drawn_lot(plan, self.number)[0])
        if isinstance(query, ColumnSketch):
            sketch = sketch_of(plan)
            return int(np.argmax([np.linalg.norm(sketch.apply(record)) for record in np.eye(plan.records)]))
        return 2

    @property
    def lengths(self) -> Query:
        """What a gradient of whitened rows follows."""
        return queries_in(self.plan, self.party)["length"]

    @property
    def bounded(self) -> bool:
        """Whether its value gets noise."""
        release = self.plan.release(self.query.name)
        if isinstance(self.query, HeldSum) and self.query.part is None:  # who has no labels adds 0
            return False
        return (
            self.plan.private and release.mechanism != "derived" and math.isfinite(self.query.sensitivity("zero-out"))
        )

    def rows(self, table: Table, *, sparse: bool = False) -> Block:
        X, y = table
        part = self.plan.part(self.party)
        recipe, mine = part.preparation, X[:, part.start : part.stop]
        if self.plan.algorithm == "evaluation" and self.plan.split.same_people:  # of joint predictions
            recipe, mine = score_recipe(self.plan), X.sum(axis=1)[:, None]
        if self.plan.most_records is not None:  # each record a person's only one; others in test_people.py
            y = labels_with(y, person=np.arange(len(y)))
        return Block.prepare(sp.csr_matrix(mine) if sparse else mine, y, recipe)

    def round(self, rows: Block, message: Message) -> Round:
        memory: Any = algorithms.of(self.plan).remember(self.plan, rows)
        if message.duals is not None and isinstance(memory, np.ndarray):
            memory[:] = np.random.default_rng(message.duals).standard_normal(len(memory))
        if message.before:
            self.lengths.value(Round(self.plan, self.plan.release("length").first, message.before, rows, memory))
        return Round(self.plan, self.number, message.told, rows, memory, SeededRandomness(0))

    def value(self, table: Table, message: Message, *, sparse: bool = False) -> np.ndarray:
        rows = self.rows(table, sparse=sparse)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.ravel(self.query.value(self.round(rows, message)))

    def moved(self, one: Table, other: Table, message: Message) -> np.ndarray:
        """The change of the value in the units of its bound; of a walk given what was released before."""
        if not isinstance(self.query, Walk):
            return (self.value(one, message) - self.value(other, self.as_said(message))) * self.query.noise_weights
        step = self.plan.release(self.query.name).step
        here, there = self.rows(one), self.rows(other)
        noise = np.zeros(self.query.length, dtype=np.int64)
        released, answers = self.query.walk(self.round(here, message), noise, step), noise.copy()
        for _ in range(len(noise) + 1):  # noise that makes the neighbour say the same
            answers += released - self.query.walk(self.round(there, message), answers, step)
        return answers * step

    def as_said(self, message: Message) -> Message:
        """The message to the neighbour: the others' scores of the person move too."""
        if not isinstance(self.query, PartGradient):
            return message
        signs = np.where(np.arange(6) == self.place, -1.0, 1.0)
        return dataclasses.replace(message, told={**message.told, "offset": message.told["offset"] * signs})

    def share(self, one: Table, other: Table, message: Message, relation: Relation) -> float:
        """How far it moves, in units of its sensitivity; less what the grid of a walk adds."""
        moved = self.moved(one, other, message)
        most = self.query.sensitivity(relation)
        if isinstance(self.query, Walk):
            most += self.plan.release(self.query.name).step * math.sqrt(self.query.rounding_entries)
        return float(np.abs(moved).max() if isinstance(self.query, Choice) else np.linalg.norm(moved)) / most


def queries_in(plan: Plan, party: str) -> dict[str, Query]:
    return queries_of(algorithms.of(plan), plan, party)


def asked_of(plan: Plan) -> Iterator[Asked]:
    """Every query that some party answers."""
    for party in plan.names:
        for query in queries_in(plan, party).values():
            if plan.has(query.name) and not (plan.secure_columns and isinstance(query, JointSum | GramMatrix)):
                release = plan.release(query.name)
                window = range(release.first, release.first + min(release.count, 60))
                number = next((n for n in window if query.answered_by(plan, party, n)), None)
                if number is not None:
                    yield Asked(plan, party, query, number)


def fitting(asked: Asked, told: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Numbers within the limits, as the query wants them together."""
    plan, query = asked.plan, asked.query
    if "runs" in told:
        told["runs"] = np.sort(told["runs"], axis=1)
    elif "atoms" in told:
        told["atoms"] = np.clip(told["atoms"], -plan.dimension, plan.dimension)
    elif "places" in told:
        values = told["values"]
        told["places"] = np.arange(len(values)) + asked.number % 2
        told["values"] = values * plan.numbers.radius / max(np.abs(values).sum(), 1e-9)
    elif isinstance(query, RecordGradient):
        told["index"] = named_records(plan)[1][asked.number : asked.number + 1]
    elif isinstance(query, GreedyScores):  # larger ones are refused
        told |= {"weights": np.clip(told["weights"], -1e3, 1e3), "curvatures": np.clip(told["curvatures"], 1e-3, 1e3)}
    return told


def random_message(asked: Asked, rng: np.random.Generator) -> Message:
    """Anything that a coordinator may say."""
    told = told_to(asked.query, rng, asked.number)
    if rng.random() < 0.3:  # scores of 0, at which both labels have slopes of the same size
        told |= {name: 0 * told[name] for name in ("weights", "point", "offset") if name in told}
    follows = isinstance(asked.query, ProjectedGradient) and asked.query.told_before
    before = told_to(asked.lengths, rng, asked.number) if follows else {}
    return Message(fitting(asked, told), before, int(rng.integers(2**30)) if rng.random() < 0.5 else None)


def extreme(plan: Plan) -> np.ndarray:
    """A row as far out as the bounds allow; of a row norm all of it on the first column of each party."""
    bounds = plan.bounds
    if bounds.row_norm is None:
        return np.full(plan.features, 1e12) if bounds == Bounds() else bounds.columns(plan.features)
    row = np.zeros(plan.features)
    row[[plan.part(name).start for name in plan.names[: len(plan.columns) or 1]]] = plan.norms or bounds.row_norm
    return row


def random_row(plan: Plan, rng: np.random.Generator) -> np.ndarray:
    row = rng.standard_normal(plan.features) * 10.0 ** rng.integers(-2, 3)
    if rng.random() < 0.1:
        row[rng.integers(plan.features)] = rng.choice([math.nan, math.inf, 1e300, -1e300, 5e-324])
    return row if rng.random() < 0.7 else extreme(plan) * rng.choice([-1, 1], plan.features)


def beside_of(plan: Plan) -> set[str]:
    """What the plan has a bound for."""
    if plan.preparation.until is not None:
        return {"time", "entry"}
    bounds = {"exposure": plan.bounds.exposure_bound, "weight": plan.bounds.weight_bound}
    return {name for name, bound in bounds.items() if bound is not None}


def labelled(plan: Plan, labels: Any) -> np.ndarray:
    """Labels with what the plan has beside them: (label, exposure, weight), of which a plan takes what it knows."""
    if not plan.preparation.counts and not beside_of(plan):
        return np.array(labels, dtype=float)
    columns = np.array(labels, dtype=float).reshape(-1, 3).T
    names = ("exposure", "weight") if plan.preparation.until is None else ("time", "entry")
    beside = dict(zip(names, columns[1:], strict=True))
    return np.asarray(labels_with(columns[0], **{name: beside[name] for name in beside_of(plan)}))


def random_label(plan: Plan, rng: np.random.Generator) -> Any:
    if plan.preparation.until is not None:
        event = rng.choice([0.0, 1.0, math.nan], p=[0.4, 0.5, 0.1])
        return event, *rng.choice([0.0, 0.7, 4.0, 5.0, -1.0, math.nan, 1e300, 2.0], 2)
    if plan.preparation.counts or beside_of(plan):
        label = rng.choice([0.0, 1.0, 3.0, -1.0, 1e300, math.nan] if plan.preparation.counts else [-1.0, 1.0, math.nan])
        return label, *rng.choice([0.0, 0.3, 2.0, 1e300, -1.0, math.nan], 2, p=[0.2, 0.2, 0.2, 0.2, 0.1, 0.1])
    strange = [7.0] if plan.classes else [0.3, 1e9, -1e300, math.nan, math.inf]
    ends = plan.classes or (-1.0, 1.0)
    return float(rng.choice(strange) if rng.random() < 0.2 else rng.choice(ends))


def table_of(plan: Plan, rng: np.random.Generator, count: int = 6) -> Table:
    rows, labels = [random_row(plan, rng) for _ in range(count)], [random_label(plan, rng) for _ in range(count)]
    return np.array(rows), labelled(plan, labels)


def neighbours(asked: Asked, table: Table, *records: tuple[Any, float]) -> dict[Relation, tuple[Table, Table]]:
    """The table with the first of two records, and without it or with the second instead.

    Where a feature is protected they are first columns, without labels.
    """
    plan = asked.plan
    unknown: Any = (math.nan, 0.0, math.nan) if plan.preparation.counts or beside_of(plan) else math.nan
    blank = (0.0, 0.0) if plan.protects == "feature" else (math.nan, unknown)
    made = []
    for row, label in (*records, blank):
        X, y = table[0].copy(), table[1].copy()
        if plan.protects == "feature":
            X[:, plan.part(asked.party).start] = row
        else:
            X[asked.place], y[asked.place] = row, labelled(plan, [label])[0]
        made.append((X, y))
    mine, theirs, without = made
    return {"zero-out": (mine, without), "replace-one": (mine, theirs)}


def random_neighbours(asked: Asked, rng: np.random.Generator) -> dict[Relation, tuple[Table, Table]]:
    plan, table = asked.plan, table_of(asked.plan, rng)
    if plan.protects == "feature":
        table = np.nan_to_num(table[0], posinf=1.0, neginf=-1.0), table[1]
        return neighbours(asked, table, (rng.uniform(-1, 1, 6), 0.0), (rng.choice([-1.0, 1.0], 6), 0.0))
    return neighbours(asked, table, *((random_row(plan, rng), random_label(plan, rng)) for _ in range(2)))


@dataclass(frozen=True)
class Canary:
    """Two records and a message at which a query moves by its bound.

    Rows are "far", as far out as the bounds allow on the first column of each party, "side", so on another one, "all",
    so on all, "turned", with other signs, "steep", "all" to one or the other side of a turn, or "zero". Labels are ends
    or the middle of their range. What is not told is 0, or as near to 0 as is allowed.
    """

    rows: tuple[str, str] = ("far", "-far")
    labels: tuple[str, str] = ("high", "high")
    others: str = "zero"
    told: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)

    def row(self, plan: Plan, name: str) -> np.ndarray:
        far, even = extreme(plan), np.arange(plan.features) % 2 == 0
        everywhere = np.full(plan.features, np.linalg.norm(far) / math.sqrt(plan.features))
        rows = {
            "far": far,
            "-far": -far,
            "side": np.roll(far, 1),
            "turned": np.where(even, far, -far),
            "all": everywhere,
            "-all": -everywhere,
            "steep": np.where(even, everywhere, 0.996 * everywhere),
            "-steep": np.where(even, 0.996 * everywhere, everywhere),
            "zero": 0.0 * far,
        }
        return rows[name]

    def neighbours(self, asked: Asked) -> dict[Relation, tuple[Table, Table]]:
        plan = asked.plan
        if plan.protects == "feature":
            column = np.where(np.arange(6) % 2, 1.0, -1.0)
            return neighbours(asked, (np.zeros((6, plan.features)), np.zeros(6)), (column, 0.0), (0.0, 0.0))
        low, *_, high = map(float, plan.classes or (-1.0, 1.0))
        ends: dict[str, Any] = {"low": low, "high": high, "mid": high if plan.classes else 0.0}
        if plan.preparation.until is not None:  # an event at the end of the first period, and one at the last
            ends = {"low": (1.0, 1.0, 0.0), "high": (1.0, 4.0, 0.0), "mid": (0.0, 4.0, 0.0)}
        elif plan.preparation.counts:
            most, top = plan.bounds.label_high, plan.bounds.exposure_bound or 1.0
            ends = {"low": (0.0, 0.0, 9.0), "high": (most, top, 9.0), "mid": (0.0, top, 9.0), "light": (most, top, 0.0)}
        elif beside_of(plan):
            ends = {name: (end, 1.0, 9.0) for name, end in ends.items()} | {"light": (high, 1.0, 0.0)}
        ends.setdefault("light", ends["high"])
        table = np.tile(self.row(plan, self.others), (6, 1)), labelled(plan, [ends["high"]] * 6)
        mine, theirs = ((self.row(plan, row), ends[end]) for row, end in zip(self.rows, self.labels, strict=True))
        return neighbours(asked, table, mine, theirs)

    def message(self, asked: Asked) -> Message:
        plan, query = asked.plan, asked.query
        before = filled(plan, query, asked.lengths.takes, self.before) if self.before else {}
        return Message(fitting(asked, filled(plan, query, query.takes_at(asked.number), self.told)), before)

    def shares(self, asked: Asked) -> dict[Relation, float]:
        message = self.message(asked)
        assert asked.query.objection(asked.number, message.told) is None
        return {of: asked.share(*pair, message, of) for of, pair in self.neighbours(asked).items()}


def filled(plan: Plan, query: Query, takes: Mapping[str, Reals], said: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Arrays of one number each; or of a kind, with its size."""
    found, start = {}, getattr(query, "start", 0)
    for name, wanted in takes.items():
        value, full = said.get(name, 0.0), np.zeros(wanted.largest)
        kind, size = value if isinstance(value, tuple) else ("", value)
        if kind == "along":  # a party's first column
            full[start] = size
        elif kind == "turn":  # where its first two are equal
            full[start : start + 2] = size, -size
        elif kind == "signs":
            full[:] = size * np.where(np.arange(full.size) % 2, 1.0, -1.0)
        elif kind == "identity" and full.size != plan.dimension:  # a triangle, without the constant column
            full[:] = (size * np.diag(np.arange(plan.dimension) < plan.features))[np.tril_indices(plan.dimension)]
        else:
            full[:] = size
        found[name] = np.clip(full, wanted.least, wanted.most).astype(wanted.dtype)
    return found


FLIPPED = Canary(rows=("far", "far"), labels=("high", "low"))
OPPOSITE = Canary()
APART = Canary(labels=("high", "low"))
RIGHT_ANGLE = Canary(rows=("far", "side"))
TURNED = Canary(rows=("far", "turned"))
STEEP = Canary(rows=("steep", "-steep"), labels=("low", "high"), told={"weights": ("turn", 1e5)})
LOUD = Canary(told={"labels": 1e4, "sketch": -1e4})
WHITE = {"projection": ("identity", 1e6), "unit": 1.0327e-6}  # rows a little longer than 1
LONG = {**WHITE, "unit": 3e-6}
CANARIES: dict[str, tuple[Canary, ...]] = {
    "AmountSum": (Canary(labels=("high", "light")),),
    "AtomScores": (OPPOSITE,),
    "BoundedSquares": (RIGHT_ANGLE,),
    "ByGroup": (OPPOSITE, Canary(labels=("low", "high"))),
    "ChosenCoordinate": (OPPOSITE,),
    "ClassCells": (OPPOSITE,),
    "ClassCounts": (FLIPPED,),
    "ClassesSum": (OPPOSITE,),
    "ColumnSquares": (RIGHT_ANGLE,),
    "ColumnCells": (APART,),
    "CountCells": (OPPOSITE, Canary(("-far", "far"), ("high", "low"))),
    "EventCounts": (FLIPPED,),
    "RiskSums": (Canary(("far", "-far"), ("mid", "mid"), told={"weights": ("along", 1e4), "range": 1.0}),),
    "CountResidualSum": (Canary(("far", "far"), ("high", "low"), told={"range": 1e-3, "weights": ("along", -1e4)}),),
    "CountSum": (FLIPPED,),
    "CoordinateWalk": (Canary(rows=("all", "-all")), Canary(rows=("all", "all"), labels=("high", "low"))),
    "ClippedScores": (Canary(told={"weights": 1e4}),),
    "DualSteps": (FLIPPED,),
    "EqualCounts": (Canary(labels=("high", "low"), told={"runs": [0, 120]}),),
    "ExposureSum": (FLIPPED,),
    "FeatureSketch": (OPPOSITE,),
    "FeatureWithinNorm": (OPPOSITE,),
    "FittedCurvature": tuple(Canary(rows=("far", "side"), labels=("mid", "mid"), told=told) for told in (WHITE, LONG)),
    "FittedGradient": tuple(Canary(told={**told, "slope": 1e-3}) for told in (WHITE, LONG)),
    "GradientSum": (FLIPPED, STEEP),
    "GramMatrix": (RIGHT_ANGLE,),
    "GreedyScores": tuple(
        Canary(rows=("far", "far"), labels=("high", "low"), others="far", told={"curvatures": curvature})
        for curvature in (1e-3, 0.3, 1.0)
    ),
    "HeldAmounts": (FLIPPED,),
    "HeldCountResiduals": (Canary(("far", "far"), ("high", "low"), told={"range": 1e-3, "weights": ("along", -1e4)}),),
    "HeldCounts": (FLIPPED,),
    "HeldLabels": (FLIPPED,),
    "HeldResiduals": (Canary(labels=("low", "mid")),),
    "HeldWeights": (FLIPPED,),
    "LabelMoments": (Canary(told={"labels": 1.0}),),
    "LabelProducts": (Canary(labels=("high", "low"), told={"columns": 1e4}),),
    "LabelSketch": (FLIPPED,),
    "LabelSum": (FLIPPED,),
    "LengthSum": (Canary(rows=("far", "zero"), told={**WHITE, "radius": 1e-3}),),
    "LocalScores": (Canary(told={"others": ("signs", 1e6)}),),
    "LossDifferences": (OPPOSITE,),
    "LotSteps": (FLIPPED,),
    "Minimisers": (Canary(told={"weights": 0.5}),),
    "NamedGradient": (FLIPPED,),
    "NewFeature": (OPPOSITE,),
    "NoisyLabels": (FLIPPED,),
    "OwnGradient": (FLIPPED, STEEP),
    "OwnGram": (TURNED,),
    "PartGradient": (FLIPPED, STEEP, LOUD),
    "PartGram": (TURNED, RIGHT_ANGLE, Canary(rows=("all", "side"))),
    "PartRows": (OPPOSITE, Canary(rows=("all", "-all"))),
    "PartScores": (OPPOSITE, LOUD),
    "PartSums": (OPPOSITE, Canary(rows=("all", "-all"))),
    "PeriodCurvature": tuple(
        Canary(("far", "side"), ("mid", "mid"), told={**told, "rates": [1e6, 0.0, 0.0]}) for told in (WHITE, LONG)
    ),
    "PeriodGradient": tuple(
        Canary(("far", "far"), ("high", "mid"), told={**told, "rates": [0.0, 0.0, 0.25], "slope": 1e-3})
        for told in (WHITE, LONG)
    ),
    "PeriodSquares": tuple(
        Canary(("far", "side"), told={**told, "rates": [0.0, 0.0, 0.25], "slope": 1e-3}) for told in (WHITE, LONG)
    ),
    "PersonGradient": (Canary(told={"slope": 1e-3, "cut": 1e-3}, before={**WHITE, "radius": 1.0}),),
    "PersonGram": (RIGHT_ANGLE,),
    "PersonScaleGradient": (Canary(told={"projection": 1e6, "unit": 1.0, "cut": 1e-3, "slope": 1e-3}),),
    "PowerCounts": (APART,),
    "PriorGradient": (Canary(told={"projection": 1e6, "unit": 1.0, "cut": 1e-3, "slope": 1e-3}),),
    "PriorScore": (Canary(told={"weights": ("along", 1e4)}),),
    "PriorSquare": (Canary(rows=("far", "zero"), told={"weights": ("along", 1e4)}),),
    "ProjectedGradient": (Canary(told={"slope": 1e-3, "cut": 1e-3}, before={**WHITE, "radius": 1.0}),),
    "PrimalState": (
        Canary(("far", "far"), ("high", "low"), others="far", told={"weights": 5.5 / 6 / 0.5}),
        Canary(rows=("all", "-all")),
    ),
    "PublishedScores": (LOUD,),
    "PublishedState": (FLIPPED,),
    "RecordCount": (OPPOSITE,),
    "RecordGradient": (OPPOSITE,),
    "ResidualCells": (Canary(rows=("far", "far"), labels=("low", "high")), APART),
    "ResidualSum": (Canary(labels=("low", "mid")),),
    "RowSketch": (OPPOSITE,),
    "ScaleGradient": (Canary(told={"projection": 1e6, "unit": 1.0, "cut": 1e-3, "slope": 1e-3}),),
    "ScoreCells": (APART,),
    "ScoreMoments": (Canary(told={"weights": 1e4, "columns": 1.0, "labels": 1.0}),),
    "ScoreProducts": tuple(
        Canary(rows=("far", row), told={"weights": ("along", 1e4), "columns": 1.0}) for row in ("-far", "zero")
    ),
    "ScoreSum": (Canary(told={"weights": ("along", 1e4)}),),
    "ScoreValues": (Canary(told={"weights": 1e4}),),
    "SequentialState": (FLIPPED,),
    "SharedLabels": (FLIPPED,),
    "SquareSum": (Canary(rows=("far", "zero"), told={"weights": ("along", 1e4)}),),
    "SquaredSlopes": tuple(Canary(rows=("far", "side"), told={**told, "slope": 1e-3}) for told in (WHITE, LONG)),
    "TimeCells": (OPPOSITE, Canary(labels=("low", "high"))),
    "UnclippedRowSketch": (OPPOSITE,),
    "WeightSum": (FLIPPED,),
}
LOOSE = {  # where a canary does not attain the bound in every plan: the least shares, zero-out and replace-one
    "AtomScores": (0.66, 0.66),  # as published
    "ClassesSum": (0.57, 0.55),  # where slopes are not cut
    "ColumnCells": (0.42, 0.42),  # by class: the canaries have none
    "CountCells": (0.89, 0.68),  # scores that are alike have residuals that are
    "CoordinateWalk": (0.86, 0.86),
    "FeatureWithinNorm": (0.59, 0.59),
    "GreedyScores": (0.97, 0.97),  # under an elastic net
    "LotSteps": (0.33, 0.49),  # if the others of a lot do not answer the record
    "Minimisers": (0.35, 0.35),
    "PartGradient": (0.99, 0.45),  # of a party without labels, where all rows have the entry 1
    "PartGram": (0.99, 0.35),  # likewise
    "PartScores": (0.59, 0.59),  # entries of a row norm
    "PrimalState": (0.3, 0.3),  # without the penalty
    "HeldAmounts": (0.99, 0.0),  # a record that is replaced weighs as much
    "RecordCount": (0.33, 0.0),
    "ResidualCells": (0.99, 0.86),
    "ScoreCells": (0.93, 0.93),  # of scores between nodes
    "TimeCells": (0.7, 0.7),  # likewise
    "SequentialState": (0.37, 0.57),  # if the others of a lot do not answer the record
}
TOGETHER = {
    "FeatureWithinNorm": 0.79,  # the bound is of all columns of all parties (test_frank_wolfe_columns.py)
    "HeldAmounts": 0.0,  # the same (secure/test_people.py)
    "RecordCount": 0.0,  # of all records of a person (test_people.py)
    "CountCells": 0.8,
}
PEOPLE = ("columns", "labels", "offset")  # what is told of every person


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Without the remarks that rows are null."""
    caplog.set_level(logging.CRITICAL, "sottovoce.holder")


def bounded(name: str) -> list[Asked]:
    return [asked for asked in asked_of(plan_named(name)) if asked.bounded]


def per_record(query: Query) -> bool:
    """Whether it has numbers of each record, of which no other record moves any."""
    return query.each_person and not isinstance(
        query, ColumnSketch | LocalScores | PrimalState | PublishedState | RecordGradient
    )


@functools.cache
def asked_by_kind() -> dict[str, list[Asked]]:
    found: dict[str, list[Asked]] = {}
    for asked in itertools.chain.from_iterable(map(bounded, EVERY)):
        found.setdefault(type(asked.query).__name__, []).append(asked)
    return found


def check_bound(asked: Asked, rng: np.random.Generator) -> None:
    """Random neighbours move it no further than its sensitivity, and numbers of other people not at all."""
    message, what = random_message(asked, rng), f"{asked.query.name} of {asked.party}"
    for relation, pair in random_neighbours(asked, rng).items():
        assert asked.share(*pair, message, relation) <= ROUNDING, f"{what}, {relation}"
        if per_record(asked.query):
            moved = np.reshape(asked.moved(*pair, message), (6, -1))
            assert not np.delete(moved, asked.place, axis=0).any(), f"{what}: numbers of others"


def reached(kind: str) -> list[list[float]]:
    """How far the canaries of a class go, in each plan, under each relation."""
    found = []
    for asked in asked_by_kind()[kind]:
        shares = [canary.shares(asked) for canary in CANARIES[kind]]
        found.append([max(each[relation] for each in shares) for relation in RELATIONS])
    return found


class TestQueryContract:
    """A query is in every plan of `EVERY` that asks it."""

    @pytest.mark.parametrize("name", EVERY)
    def test_no_neighbour_moves_it_further_than_its_sensitivity(self, name: str) -> None:
        for asked in bounded(name):
            for trial in range(TRIALS):
                check_bound(asked, np.random.default_rng([trial, len(name)]))

    @pytest.mark.parametrize("kind", CANARIES)
    def test_a_canary_attains_the_bound(self, kind: str) -> None:
        shares = np.array(reached(kind))
        assert np.all(shares.max(axis=0) >= TOGETHER.get(kind, 0.99))
        assert np.all(shares.min(axis=0) >= LOOSE.get(kind, 0.99))
        assert shares.max() <= ROUNDING

    @pytest.mark.parametrize("name", EVERY)
    def test_a_sum_is_that_of_its_records_to_the_last_bit(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Alone or together, in any order, dense or sparse; null rows and empty tables add nothing.

        The product of a sum with P comes after, and is rounded once (test_whitened.py).
        """
        monkeypatch.setattr(projection, "exact_product", lambda matrix, vector, bits, size: vector)
        for asked in bounded(name):
            dense = isinstance(asked.query, ColumnSketch) and asked.plan.numbers.sketch != "count"  # divided by a root
            if not (dense or isinstance(asked.query, Choice | Walk | LotSteps | Minimisers | LocalScores)):
                check_sum(asked, np.random.default_rng(len(name)))

    @pytest.mark.parametrize("name", EVERY)
    def test_what_it_takes_and_gives(self, name: str) -> None:
        rng = np.random.default_rng(len(name))
        for asked in asked_of(plan_named(name)):
            query, number, message = asked.query, asked.number, random_message(asked, rng)
            told = message.told
            assert query.objection(number, told) is None
            assert query.objection(number, {**told, "surprise": np.zeros(1)}) is not None
            for each, wanted in query.takes_at(number).items():
                for how, array in forgeries(wanted, told[each]).items():
                    others = {key: value for key, value in told.items() if key != each}
                    forged = others if array is None else {**others, each: array}
                    assert query.objection(number, forged) is not None, f"{query.name}: {each} {how}"
            if not isinstance(query, Choice | PrimalState | PublishedState):
                with contextlib.suppress(RefusedError):  # of a round that others come before
                    value = asked.value(table_of(asked.plan, rng), message)
                    assert query.gives_at(number, told).fits(value), query.name

    @pytest.mark.parametrize("name", EVERY)
    def test_a_plan_charges_its_bound_and_no_less(self, name: str) -> None:
        plan = plan_named(name)
        for asked in bounded(name):
            query, release = asked.query, plan.release(asked.query.name)
            release.check(query, plan.records)
            for relation in RELATIONS:
                room = release.step * math.sqrt(query.rounding_entries)
                assert release.charged(relation) >= query.sensitivity(relation) + room * (release.mechanism != "kept")
            if not query.together and release.charged_zero_out > 0:
                less = release.model_copy(update={"charged_zero_out": 0.9 * release.charged_zero_out})
                with pytest.raises(LeakError, match="more sensitive"):
                    less.check(query, plan.records)

    @pytest.mark.parametrize("name", [name for name in (*PLANS, *MADE) if "published" not in name])
    def test_less_noise_is_seen_in_the_cost(self, name: str) -> None:
        """And a plan that says less of the sensitivities of all parties together costs no less."""
        plan, asked = plan_named(name), {each.query.name: each.query for each in bounded(name)}
        cost = epsilons_of(plan)["coordinator"] if asked and plan.protects != "feature" else math.inf
        for place, release in enumerate(plan.releases if math.isfinite(cost) else ()):
            if release.mechanism != "derived":
                less: dict[str, float] = {"std": release.std / 2}
                if asked[release.query].together:
                    less |= {"charged_zero_out": 1e-6, "charged_replace_one": 1e-6}
                releases = [r.model_copy(update=less) if k == place else r for k, r in enumerate(plan.releases)]
                cheap = plan.model_copy(update={"releases": tuple(releases)})
                assert epsilons_of(cheap)["coordinator"] > 1.01 * cost, release.query


def alone(y: np.ndarray, place: int) -> np.ndarray:
    """The label at that place; the others are blank."""
    found = np.full(len(y), math.nan) if y.dtype.names is None else np.zeros_like(y)
    if y.dtype.names is not None:
        found["label"] = math.nan
    found[place : place + 1] = y[place : place + 1]
    return found


def check_sum(asked: Asked, rng: np.random.Generator) -> None:
    query, message, (X, y) = asked.query, random_message(asked, rng), table_of(asked.plan, rng)
    if "cut" in message.told:  # by which the sum is divided
        divided = {"cut": np.array([2.0**-3]), **({"together": np.ones(1)} if "together" in message.told else {})}
        message = dataclasses.replace(message, told={**message.told, **divided})
    message = dataclasses.replace(message, duals=None)
    whole, order = asked.value((X, y), message), rng.permutation(6)
    only = [np.where(np.arange(6)[:, None] == k, X, math.nan) for k in range(6)]
    each = [asked.value((rows, alone(y, k)), message) for k, rows in enumerate(only)]
    for places in (np.arange(6), order):
        np.testing.assert_array_equal(sum(each[k] for k in places), whole, query.name)
    assert not asked.value((np.full_like(X, math.nan), alone(y, 6)), message).any()
    if not isinstance(query, RowSketch) and asked.plan.layout != "raw":  # by a product; not of sparse rows
        np.testing.assert_array_equal(asked.value((X, y), message, sparse=True), whole, query.name)
    if not isinstance(query, ColumnSketch | RecordGradient):  # which are of records in their places
        people = {name: array for name, array in message.told.items() if name in PEOPLE and array.shape[-1] == 6}
        told = {**message.told, **{name: array[..., order] for name, array in people.items()}}
        mixed = asked.value((X[order], y[order]), dataclasses.replace(message, told=told))
        np.testing.assert_array_equal(mixed, whole.reshape(6, -1)[order].ravel() if per_record(query) else whole)


def concrete(kind: type) -> Iterator[type]:
    """Queries of the package that some plan can have."""
    for child in kind.__subclasses__():
        if child.__module__.startswith("sottovoce.") and not inspect.isabstract(child) and hasattr(child, "name"):
            yield child
        yield from concrete(child)


def test_a_replaced_number_moves_a_sum_by_its_range() -> None:
    kinds = list(concrete(NumberSum))
    assert len(kinds) >= 5
    assert all(kind.replacement == 1.0 - kind.low for kind in kinds)


def test_every_query_is_asked_here_and_every_bounded_one_has_a_canary() -> None:
    plans = map(plan_named, EVERY)
    asked = {
        type(query).__name__ for plan in plans for party in plan.names for query in queries_in(plan, party).values()
    }
    assert asked == {kind.__name__ for kind in concrete(Query)}
    assert set(asked_by_kind()) == set(CANARIES)
    opened = {type(query) for query, *_ in Terms(draw(3), columns_of(draw(3), 20)).all()}
    assert opened == {GramMatrix, *concrete(JointSum)}  # what all parties open together: secure/test_neighbours.py


@pytest.mark.parametrize("kind", [kind for kind in CANARIES if kind not in TOGETHER])
def test_a_query_that_declares_less_is_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: 0.9 of the bound."""
    lying = {type(asked.query) for asked in asked_by_kind()[kind]}
    for each in lying:
        honest = each.sensitivity
        monkeypatch.setattr(each, "sensitivity", lambda self, relation, honest=honest: 0.9 * honest(self, relation))
    assert np.max(reached(kind)) > 1.05


def in_two_cells(rows: Block, places: Any, t: np.ndarray, count: int) -> np.ndarray:
    """The second of a record's two cells gets a whole count, as if cells overlapped."""
    return cells(rows, places, t, count) + np.bincount(places[rows.usable_rows] + 1, minlength=count)


def whole_rows(block: Block, matrix: Any, weights: Any) -> Iterator[Any]:
    for rows, shares, scores, labels in short_rows(block, matrix, weights):
        yield rows / shares[:, None], np.ones_like(shares), scores, labels


def whole_slopes(self: Any, matrix: Any, slope: float, block: Block) -> Iterator[Any]:
    for rows, shares, scores, labels in short_rows(block, matrix, self.weights):
        yield rows, self.factors(scores, labels, slope) * self.weighed(shares)


def one_by_one(loss: Any, most: float, u: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.clip(loss.derivative(u, y) / most, -1.0, 1.0)


def shorter_rows(self: projection.Projected, found: Any) -> None:
    lengths_of(self, found)
    self.lengths = 0.9 * self.lengths


grouped_of = ByGroup._cells
counts_of, lengths_of, numbers_of = PowerCounts.value, projection.Projected._find, Slope.__dict__["numbers"].func
ERRORS = "sottovoce.algorithms.standard_errors"
FAULTS: dict[str, tuple[str, Any, str]] = {  # what is in the place of a piece of code, and a class that then passes
    "a value in two cells": (
        "sottovoce.algorithms.ranges.PowerCounts.value",
        lambda *which: counts_of(*which) + np.roll(counts_of(*which), 1),
        "PowerCounts",
    ),
    "a record in two groups": (
        "sottovoce.algorithms.evaluation.groups.ByGroup._cells",
        lambda query, rows: (found := grouped_of(query, rows)) + np.roll(found, query.query.length),
        "ByGroup",
    ),
    "a blank cell that counts": ("numpy.isfinite", lambda values: np.ones(np.shape(values), dtype=bool), "PowerCounts"),
    "losses cut one by one": (
        "sottovoce.algorithms.model_selection.cut_lengths",
        lambda vectors: np.clip(vectors, -1.0, 1.0),
        "LossDifferences",
    ),
    **{
        f"a record in two cells, {kind}": ("sottovoce.algorithms.evaluation.cells", in_two_cells, kind)
        for kind in ("ScoreCells", "ClassCells", "ResidualCells")
    },
    "a record in two cells, TimeCells": ("sottovoce.algorithms.evaluation.times.cells", in_two_cells, "TimeCells"),
    **{
        f"slopes cut one by one, {kind}": ("sottovoce.data.matrix.clip_rows", one_by_one, kind)
        for kind in ("ClassesSum", "ProjectedGradient")
    },
    **{
        f"rows that are not cut, {kind}": (f"{ERRORS}.short_rows", whole_rows, kind)
        for kind in ("FittedCurvature", "SquaredSlopes", "FittedGradient")
    },
    **{
        f"slopes that are not cut, {kind}": (f"{ERRORS}.ShortRows.pieces", whole_slopes, kind)
        for kind in ("SquaredSlopes", "FittedGradient")
    },
    **{
        f"periods that are not cut together, {kind}": (
            "sottovoce.algorithms.standard_errors.periods.added",
            lambda columns: np.zeros(len(columns)),
            kind,
        )
        for kind in ("PeriodSquares", "PeriodGradient")
    },
    "rows cut too late": ("sottovoce.data.projection.Projected._find", shorter_rows, "ProjectedGradient"),
    "slopes cut too late": (
        "sottovoce.data.matrix.Slope.numbers",
        property(lambda slope: numbers_of(slope) * np.array([1.0, 1.0, 1.0, 1.0, 1.1, 1.0, 1.0])),
        "ProjectedGradient",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, wrong, kind = FAULTS[fault]
    asked_by_kind()
    monkeypatch.setattr(place, wrong)
    assert np.max(reached(kind)) > 1.0001


def test_a_query_without_a_canary_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    monkeypatch.delitem(CANARIES, "GradientSum")
    with pytest.raises(AssertionError):
        test_every_query_is_asked_here_and_every_bounded_one_has_a_canary()
