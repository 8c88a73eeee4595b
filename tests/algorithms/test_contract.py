"""What every form of every solver must keep, over each split that it serves.

`AlgorithmContract` finds a solver's forms in the registry: a form that is added is checked without a line here. A
solver is added by a subclass that names it; tests that take a `case` are run for all of its cases. Plans are small,
parties are real ones, and a run is the coordinator's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import itertools
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.sparse as sp

import sottovoce as sv
from plans import ORDERED, SEVERAL
from sottovoce import algorithms, losses
from sottovoce.algorithms import Algorithm
from sottovoce.data.beside import labels_with
from sottovoce.data.bounds import LARGEST, Bounds
from sottovoce.errors import InputError
from sottovoce.federation.coordinator import Coordinator, SeenMessage
from sottovoce.federation.party import Party
from sottovoce.federation.policy import Policy
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.gate.query import Choice, Derived, Query, Reals, Together
from sottovoce.losses import Loss
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Labels, Named, Problem
from sottovoce.plan.release import Release
from sottovoce.plan.split import SecureAggregation
from sottovoce.privacy.events import RELATIONS, Event, Gaussian, PoissonGaussian, Relation, Selection
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.queries.joint import JointSum
from sottovoce.queries.pricing import Pricing, queries_of
from sottovoce.solvers import SOLVERS, by_name
from sottovoce.transports.base import InProcess
from support import epsilons_of, events_of, forgeries, give_scores, handle, plan_of, world_events_of

DELTA = 1e-6
RECORDS, FEATURES = 48, 4  # of a small plan
BUDGETS = (0.1, 1.0, 4.0)
MARK = 1.2345678901234567e-77  # a number that no run has
RIDGE = Named(name="l2", parameters={"alpha": 0.05})
COUNTED_ENTRIES = Bounds.declare(entry_bound=1.0, label_bound=(0, 9))


@dataclass(frozen=True)
class Case:
    """A form over one split."""

    form: Algorithm
    split: str
    options: Mapping[str, Any]
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def secure(self) -> bool:
        return "aggregation" in self.fields

    @property
    def private(self) -> bool:
        return math.isfinite(self.fields["epsilon"])

    def __str__(self) -> str:
        without = "" if math.isfinite(self.fields["epsilon"]) or self.form.private is False else "epsilon inf"
        labels = self.fields["labels"] if self.split == "columns" else ""
        secure = "secure" if self.secure else ""
        return " ".join(filter(None, (self.form.name, self.form.form, self.split, labels, without, secure)))

    def plan(self, **changes: Any) -> Plan:
        parties = 1 if self.split == "central" else 2
        counts = {"central": (RECORDS,), "rows": (RECORDS - 18, 18), "columns": (RECORDS, RECORDS)}[self.split]
        fits = (name for name in ("logistic", "squared") if all(n.met(losses.get(name)) for n in self.form.needs))
        loss = self.fields["loss"].name if "loss" in self.fields else next(fits)
        by_columns = self.split == "columns"
        declared: dict[str, Any] = {
            "loss": Named(name=loss),
            "regulariser": RIDGE,
            "split": self.split,
            "parties": tuple((f"party {place}", counts[place]) for place in range(parties)),
            "features": FEATURES,
            "columns": (3, 1) if by_columns else (),
            "bounds": Bounds.declare(**{"entry_bound" if by_columns else "row_norm": 1.0, "label_bound": 1.0}),
            "delta": DELTA,
            "classes": (-1, 1) if loss == "logistic" else None,
            "label_party": int(by_columns),
            "calibration": "paper" if self.form.published else "tight",
        }
        plan = plan_of(Problem(**declared | dict(self.fields) | changes), self.form.name, **self.options)
        assert algorithms.of(plan) is self.form
        return plan


class AlgorithmContract:
    solver: ClassVar[str]
    small: ClassVar[dict[str, Any]] = {"rounds": 3}  # options that keep a run short, for the forms that take them
    problem: ClassVar[dict[str, Any]] = {}  # fields of a problem that the solver cannot do without
    forms: ClassVar[dict[str, dict[str, Any]]] = {}  # fields and options that a form cannot do without

    @classmethod
    def cases(cls) -> Iterator[Case]:
        """Every form over every split that it serves; by columns with labels that all know and that one holds.

        And over every split where its sums may be secure.
        """
        for form in algorithms.forms(cls.solver):
            taken = SOLVERS[cls.solver].names() if form.options is None else form.options
            given = {**cls.small, **cls.problem, **cls.forms.get(form.form, {}), **form.when}
            options = {name: value for name, value in given.items() if name in taken}
            fields = {name: value for name, value in given.items() if name in Problem.model_fields}
            budgets = {True: (2.0,), False: (math.inf,), None: (2.0, math.inf)}[form.private]
            for split, epsilon in itertools.product(form.splits, (2.0,) if form.published else budgets):
                modes: tuple[Labels, ...] = ("shared", "held") if split == "columns" else ("shared",)
                for labels in (fields["labels"],) if "labels" in fields else modes:
                    yield Case(form, split, options, {**fields, "epsilon": epsilon, "labels": labels})
            for split in form.secure if form.private is not False and not form.published else ():
                own = {"epsilon": 2.0, "labels": "held" if split == "columns" else "shared"}
                yield Case(form, split, options, {**fields, **own, "aggregation": SecureAggregation(colluding=1)})


def only(condition: Callable[[Case], bool]) -> Callable[[Any], Any]:
    """A test of the cases that meet a condition."""

    def mark(test: Any) -> Any:
        test.condition = condition
        return test

    return mark


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The cases of all solvers that a test is of; a case meets every budget and every relation, but not every pair."""
    if "case" not in metafunc.fixturenames:
        return
    condition = getattr(metafunc.function, "condition", lambda case: True)
    cases = [case for kind in AlgorithmContract.__subclasses__() for case in kind.cases() if condition(case)]
    if "epsilon" in metafunc.fixturenames:
        turns = ((place, case, turn) for place, case in enumerate(cases) for turn in range(len(BUDGETS)))
        rows = [(case, BUDGETS[turn], RELATIONS[(place + turn) % len(RELATIONS)]) for place, case, turn in turns]
        metafunc.parametrize(("case", "epsilon", "relation"), rows, ids=[" ".join(map(str, row)) for row in rows])
    else:
        metafunc.parametrize("case", cases, ids=str)


def test_a_plan_is_its_text(case: Case) -> None:
    plan = case.plan()
    read = Plan.from_json(plan.to_json())
    assert (read, read.digest, read.to_json()) == (plan, plan.digest, plan.to_json())
    assert type(read.numbers) is type(plan.numbers)
    assert read.numbers == plan.numbers
    assert algorithms.of(read) is case.form
    assert case.plan().digest == plan.digest  # a design is a function of the problem and the options
    fields = json.loads(plan.to_json())
    fields["numbers"]["surprise"] = 1.0
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    frame = Frame("plan", 1, hashlib.sha256(text.encode()).digest(), text=text)
    assert said(parties_of(plan)[0], frame).kind == "refuse"


def test_a_query_says_all_about_itself(case: Case) -> None:
    plan = case.plan()
    for party in plan.names:
        queries = queries_of(case.form, plan, party)
        assert {release.query for release in plan.releases} <= set(queries)
        for name, query in queries.items():
            assert name == query.name
            assert query.title.strip()
            assert query.answered_by.words
            assert query.length > 0
            assert query.bound >= 0.0
            assert query.world_sees in ("sum", "each", "nothing")
            assert isinstance(query, Derived) == (plan.has(name) and plan.release(name).mechanism == "derived")
            if plan.noise_of(name) > 0.0:
                loose, strict = query.sensitivity("zero-out"), query.sensitivity("replace-one")
                assert 0.0 < loose <= strict <= 2.0 * loose * (1 + 1e-9)
                assert 0.0 < query.bound < math.inf
                assert 0.0 <= query.rounding_entries < math.inf
                assert (query.rounding_entries == 0.0) == isinstance(query, JointSum)  # of whole numbers
                plan.release(name).check(query, plan.records)


def test_a_run_is_what_the_plan_says(case: Case) -> None:
    plan = case.plan()
    messages = played(plan, 1)
    asked: dict[tuple[str, str], list[int]] = {}
    for message in messages:
        asked.setdefault((message.sender, message.name), []).append(message.round)
        party = plan.names[0] if case.secure else message.sender
        assert not case.secure or message.sender == "sum"
        query, release = queries_of(case.form, plan, party)[message.name], plan.release(message.name)
        assert query.answered_by(plan, party, message.round)
        if plan.private:
            numbers = 1 if isinstance(query, Choice) else release.batches * query.length
            assert np.shape(message.payload) == (numbers,)
    for (sender, name), numbers in asked.items():
        release, party = plan.release(name), plan.names[0] if case.secure else sender
        query = queries_of(case.form, plan, party)[name]
        turns = query.answered_by.rounds(plan, party, release.first, release.count)
        most = turns if query.most_asked is None else query.most_asked
        assert len(numbers) == len(set(numbers)) <= most <= release.count
        assert release.first <= min(numbers) <= max(numbers) < release.first + release.count


@only(lambda case: not (case.secure and case.split == "columns"))  # whose scores are rounded by masks of new keys
def test_same_seed_same_run_other_seed_other_run(case: Case) -> None:
    plan = case.plan()
    one, two, three = (played(plan, seed) for seed in (1, 1, 2))
    assert len(one) == len(two) > 0
    assert all(map(same, one, two))
    if plan.private:
        assert not all(map(same, one, three))


@only(lambda case: type(case.form).lasting is not Algorithm.lasting)
def test_what_lasts_is_all_that_a_restart_needs(case: Case) -> None:
    """With a memory that is put back before every question the answers are the same; with a new one others."""
    plan = case.plan()
    whole, restored = played(plan, 1), played(plan, 1, Restored)
    assert len(whole) == len(restored)
    assert all(map(same, whole, restored))
    # Slopes of fdml are those of the round; steps of scd-primal as published are all cut, whatever the scores.
    if plan.private and whole[-1].round > 0 and case.form.name not in ("fdml", "scd-primal"):
        assert not all(map(same, whole, played(plan, 1, Forgetful)))


@only(lambda case: not case.secure)  # tests/secure/test_hostile.py has what is refused of secure runs
def test_forged_messages_are_refused(case: Case) -> None:
    plan = case.plan()
    forger = Forger(plan)
    Coordinator(forger).run(plan, case.form)
    assert all(len(ways) >= 3 for ways in forger.forged.values())


def test_a_party_answers_in_its_turn_alone(case: Case) -> None:
    plan = case.plan()
    parties = parties_of(plan)
    if case.secure:
        coordinator = Coordinator(InProcess(parties))
        plan = coordinator.settle(plan)
        coordinator.check(plan)  # which is where keys of pairs are agreed on
    for party in parties:
        assert said(party, Frame("plan", 1, plan.digest, text=plan.to_json())).kind == "accept"
        for release in plan.releases:
            name, query = release.query, queries_of(case.form, plan, party.name)[release.query]
            window = range(release.first, release.first + min(release.count, 100))
            numbers = [n for n in window if not query.answered_by(plan, party.name, n)]
            if release.mechanism == "kept":
                numbers = [release.first]
            for number in (*numbers, release.first - 1, release.first + release.count):
                if number >= 0:
                    answer = said(party, Frame("ask", 2, plan.digest, number, name))
                    assert answer.kind == "refuse"
                    assert "is not this party's turn" in answer.text


@only(lambda case: case.private and type(case.form.pricing) is Pricing)  # others have a price beside their proof
def test_what_is_served_is_what_is_priced(case: Case) -> None:
    plan = case.plan()
    forged = [plan]
    for place, release in enumerate(plan.releases):
        if release.mechanism not in ("kept", "derived") and not (case.secure and plan.split == "columns"):
            more = [r.times(7 * r.count) if k == place else r for k, r in enumerate(plan.releases)]
            forged.append(plan.model_copy(update={"releases": tuple(more)}))
    for each, relation, party in itertools.product(forged, RELATIONS, plan.names):
        try:
            case.form.queries(each, party)
        except InputError:  # a plan that its form does not make; then no party runs it
            assert each is not plan
            frame = Frame("plan", 1, each.digest, text=each.to_json())
            assert said(parties_of(each)[plan.names.index(party)], frame).kind == "refuse"
            continue
        priced, world = events_of(each, relation, party), world_events_of(each, relation, party)
        cost = sum(map(cost_of_event, priced))
        served = sum(served_cost(case.form, each, release, relation, party) for release in each.releases)
        assert served * (1 - 1e-9) <= cost <= served * (1 + 2e-3)
        assert sum(map(cost_of_event, world)) <= cost * (1 + 1e-9)


@only(lambda case: case.private and not case.form.published)
def test_the_plan_spends_the_budget_and_no_more(case: Case, epsilon: float, relation: Relation) -> None:
    found = epsilons_of(case.plan(epsilon=epsilon, relation=relation))
    assert 0.985 * epsilon < found["coordinator"] <= epsilon
    assert found["world"] <= found["coordinator"] == found["parties"]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Without the remarks of holders whose messages are forged."""
    logger = logging.getLogger("sottovoce.holder")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


def parties_of(plan: Plan, seed: int = 0) -> list[Party]:
    """Real parties that hold the same people, or each their own, with known noise."""
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, (plan.records, plan.features)) / math.sqrt(plan.features)
    y = X @ np.linspace(-1, 1, plan.features) + 0.1 * rng.standard_normal(plan.records)
    if plan.classes is not None:
        y = np.array(plan.classes)[np.digitize(y, np.linspace(-0.2, 0.2, len(plan.classes) + 1)[1:-1])]
    if plan.most_records is not None:
        y = labels_with(y, person=np.arange(len(y)) * (plan.people or len(y)) // len(y))
    if plan.preparation.until is not None:
        y = sv.labels_with(rng.integers(0, 2, plan.records), time=rng.uniform(0, 5, plan.records))
    elif plan.preparation.counts:
        given = {"exposure": rng.uniform(0, 1, plan.records), "weight": rng.uniform(0, 3, plan.records)}
        bounds = {"exposure": plan.bounds.exposure_bound, "weight": plan.bounds.weight_bound}
        y = sv.labels_with(np.floor(3 * np.exp(y)), **{name: given[name] for name, top in bounds.items() if top})
    ends = np.cumsum([0, *(count for _, count in plan.parties)])
    found = []
    for place, name in enumerate(plan.names):
        part, rows = plan.part(name), slice(ends[place], ends[place + 1])
        mine = (X[:, part.start : part.stop], y) if plan.split == "columns" else (X[rows], y[rows])
        labels = mine[1] if part.preparation.labelled else None
        policy = Policy(allow_without_privacy=True, secure=True, tell_records=plan.split == "columns")
        source = SeededRandomness(seed, name)
        found.append(give_scores(Party(name, mine[0], labels, policy=policy, randomness=source), plan))
    return found


def said(party: Party, frame: Frame) -> Frame:
    return decode(handle(party, encode(frame)).data)


class Restored(InProcess):
    """Parties that before every message get a new memory with what lasted of the old one."""

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        for party in self._endpoints.values():
            if isinstance(party, Party) and (run := party.run) is not None:
                run.memory = self.made(run.form, run.form.remember(run.plan, run.rows), run.memory)
        return super().exchange(messages)

    def made(self, form: Algorithm, new: Any, old: Any) -> Any:
        data = io.BytesIO()
        np.savez(data, **form.lasting(old))
        data.seek(0)
        return form.recall(new, dict(np.load(data)))


class Forgetful(Restored):
    """Parties that get a new memory alone."""

    def made(self, form: Algorithm, new: Any, old: Any) -> Any:
        del form, old
        return new


def played(plan: Plan, seed: int, wire: type[InProcess] = InProcess) -> list[SeenMessage]:
    """The answers of a run."""
    own = SeededRandomness(seed, "coordinator")
    coordinator = Coordinator(wire(parties_of(plan, seed)), record=True, randomness=own)
    if plan.aggregation is not None:
        plan = coordinator.settle(plan)
    coordinator.run(plan, algorithms.of(plan))
    return [message for message in coordinator.transcript or () if plan.has(message.name)]


def same(one: SeenMessage, other: SeenMessage) -> bool:
    return (one.round, one.sender, one.name) == (other.round, other.sender, other.name) and np.array_equal(
        one.payload, other.payload
    )


def forged_bytes(frame: Frame) -> bytes:
    """A frame with numbers that `encode` does not write."""
    arrays, marks = dict(frame.arrays), {}
    for name, array in frame.arrays.items():
        odd = ~np.isfinite(array)
        if odd.any():
            arrays[name] = np.where(odd, MARK, array)
            marks[np.float64(MARK).tobytes()] = array[odd][0].tobytes()
    data = encode(dataclasses.replace(frame, arrays=arrays))
    for mark, number in marks.items():
        assert data.count(mark) == 1
        data = data.replace(mark, number)
    return data


class Forger(InProcess):
    """A wire that, before it hands on what a coordinator says, tries every forgery of it; each must be refused."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(parties_of(plan))
        self.plan, self.form = plan, algorithms.of(plan)
        self.forged: dict[tuple[str, str, str, bool], list[str]] = {}

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        frames = {party: decode(data) for party, data in messages.items()}
        for party, frame in frames.items():
            if frame.kind == "ask":
                query = queries_of(self.form, self.plan, party)[frame.query]
                takes = query.takes_at(frame.round)
                if self.plan.noise_of(frame.query) > 0.0:
                    assert all(-LARGEST <= wanted.least <= wanted.most <= LARGEST for wanted in takes.values())
                self._forge(party, frame, query, takes)
                # without what it does not take, so that nothing is read which was not checked
                declared = {name: frame.arrays[name] for name in takes}
                frames[party] = dataclasses.replace(frame, arrays=declared)
        replies = super().exchange({party: encode(frame) for party, frame in frames.items()})
        assert all(decode(reply).kind in ("accept", "answer", "done") for reply in replies.values())
        return replies

    def _forge(self, party: str, frame: Frame, query: Query, takes: Mapping[str, Reals]) -> None:
        for name, wanted in takes.items():
            key = (party, frame.query, name, frame.arrays[name].size > 0)
            if key in self.forged:
                continue
            for how, array in forgeries(wanted, frame.arrays[name]).items():
                arrays = {key: value for key, value in frame.arrays.items() if key != name}
                arrays |= {} if array is None else {name: array}
                forged = dataclasses.replace(frame, arrays=arrays)
                answer = decode(handle(self._endpoints[party], forged_bytes(forged)).data)
                refused = answer.kind == "refuse" or "malformed message" in answer.text  # no frame has a NaN
                assert refused, f"{party} answers {frame.query!r} with {name!r} {how}"
                reason = query.objection(frame.round, arrays)
                assert reason is not None, how
                assert "malformed message" in answer.text or reason in json.loads(answer.text)["refused"]
                self.forged.setdefault(key, []).append(how)


def cost_of_event(event: Event) -> float:
    """mu^2 of a Gaussian, 2 rho of a choice; of samples how many there are."""
    if isinstance(event, Gaussian):
        return event.mu**2
    if isinstance(event, Selection):
        return 2.0 * event.rho
    assert isinstance(event, PoissonGaussian)
    return event.rounds / event.noise_multiplier**2


def served_cost(form: Algorithm, plan: Plan, release: Release, relation: Relation, party: str) -> float:
    """The same of all answers about a record of `party` that parties would give under a plan, counted one by one.

    By the queries' own sensitivities, not by what the plan says it charged.
    """
    if release.mechanism == "derived":
        return 0.0
    sharing = plan.names if plan.split == "columns" and plan.aggregation is None else (party,)
    queries = {name: queries_of(form, plan, name)[release.query] for name in sharing}
    if release.mechanism == "kept":
        return sum((query.sensitivity(relation) / release.std) ** 2 for query in queries.values())
    window = range(release.first, release.first + release.count)
    times = {name: sum(query.answered_by(plan, name, n) for n in window) for name, query in queries.items()}
    factor = release.batches * (4.0 if release.mechanism == "noisy-max" else 1.0)
    known: Relation = "zero-out" if release.rate is not None and release.rate < 1.0 else relation
    widest = max(queries.values(), key=lambda query: query.sensitivity(known))
    if widest.together:
        total = Together([query for name, query in queries.items() if times[name]])
        moved = total.sensitivity(known) + release.step * math.sqrt(total.rounding_entries)
        return factor * max(times.values()) * (moved / release.std) ** 2
    moved = widest.sensitivity(known) + release.step * math.sqrt(widest.rounding_entries)
    return factor * widest.uses(sum(times.values())) * (moved / release.std) ** 2


class ModelContract:
    """What the estimator of a solver keeps; `options` are the solver's, `base` what the problem cannot do without."""

    solver: ClassVar[str]
    base: ClassVar[dict[str, Any]] = {}
    exact: ClassVar[dict[str, Any]] = {}  # options under which the run without privacy is deterministic
    ball: ClassVar[bool] = False  # whether it needs the l1 ball
    excess: ClassVar[float] = 1e-9  # of the objective over the least, without privacy
    fits: ClassVar[int] = 5  # whose mean accuracy is that of a private fit

    def model(self, *, options: Mapping[str, Any] | None = None, **parameters: Any) -> sv.PrivateLogisticRegression:
        solver = by_name(self.solver, **options) if options else self.solver
        defaults: dict[str, Any] = {"delta": DELTA, "row_norm": 1.0, "classes": (-1, 1), "solver": solver}
        return sv.PrivateLogisticRegression(**{**defaults, **self.base, **parameters})

    def regularised(self) -> dict[str, Any]:
        return {"l1_ratio": 1, "radius": 12.0} if self.ball else {"l1_ratio": 0, "alpha": 0.01}

    def gap(self, found: Any, data: tuple[Any, np.ndarray]) -> float:
        """The objective at a model less that at the minimum, which Newton's method finds in one place."""
        X, y = data
        given = self.regularised()
        best = sv.PrivateLogisticRegression(epsilon=math.inf, classes=(-1, 1), solver="newton", **given).fit(X, y)

        def objective(model: Any) -> float:
            loss = np.logaddexp(0, -y * model.decision_function(X)).mean()
            return float(loss + given.get("alpha", 0.0) / 2 * np.sum(model.coef_**2))

        return objective(found) - objective(best)

    def accuracy(self, federation: Any, data: tuple[Any, np.ndarray], epsilon: float, **parameters: Any) -> float:
        seeds = range(self.fits)
        models = [self.model(epsilon=epsilon, insecure_seed=seed, **parameters).fit(federation) for seed in seeds]
        return float(np.mean([model.score(*data) for model in models]))

    def best(self, data: tuple[Any, np.ndarray]) -> float:
        best = float(sv.PrivateLogisticRegression(epsilon=math.inf).fit(*data).score(*data))
        assert best > 0.8
        return best


class RowsContract(ModelContract):
    """Data in one place, and split by rows."""

    by_rows: ClassVar[bool] = True
    sets: ClassVar[bool] = True  # whether it takes constraint sets
    l1: ClassVar[bool] = True  # whether it takes an l1 penalty
    growth: ClassVar[float] = 1.3  # of the noise, from zero-out to replace-one
    world: ClassVar[float] = 0.6  # four parties: the world's epsilon as a share of the coordinator's, at most
    shortfall: ClassVar[float]  # accuracy given up at epsilon 8 on the small problem, of the 0.35 above chance
    apart: ClassVar[float] = 1e-9  # a split run from the central one, without privacy

    def parts(self, data: tuple[Any, np.ndarray], count: int) -> list[tuple[Any, np.ndarray]]:
        X, y = data
        edges = np.linspace(0, len(y), count + 1).astype(int)
        return [(X[a:b], y[a:b]) for a, b in itertools.pairwise(edges)]

    def test_split_equals_central_with_the_noise_off(self, classification: Any) -> None:
        if not self.by_rows:
            refusal = f"solver='{self.solver}' does not serve data split by rows; solvers that fit: newton, gradient"
            with pytest.raises(InputError, match=refusal):
                self.model().fit(sv.Federation.by_rows(self.parts(classification, 2)))
            return
        central = self.model(epsilon=math.inf, options=self.exact).fit(*classification)
        for parties in (2, 4):
            federation = sv.Federation.by_rows(self.parts(classification, parties))
            split = self.model(epsilon=math.inf, options=self.exact).fit(federation)
            np.testing.assert_allclose(split.coef_, central.coef_, rtol=0, atol=self.apart)
            np.testing.assert_allclose(split.intercept_, central.intercept_, rtol=0, atol=self.apart)

    def test_without_privacy_it_solves_the_problem(self, classification: Any) -> None:
        found = self.model(epsilon=math.inf, **self.regularised()).fit(*classification)
        assert not found.plan_.private
        assert all(release.std == 0.0 for release in found.plan_.releases)
        assert self.gap(found, classification) <= self.excess

    def test_a_fit_is_its_seed_and_its_numbers(self, classification: Any) -> None:
        """The same seed gives the same model, from sparse rows too, and another seed another one."""
        X, y = classification
        one, two, sparse, three = (
            self.model(epsilon=1.0, insecure_seed=seed).fit(rows, y).coef_
            for rows, seed in ((X, 1), (X, 1), (sp.csc_matrix(X), 1), (X, 2))
        )
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, sparse)
        assert not np.allclose(one, three)

    def test_a_private_fit_learns(self, classification: Any) -> None:
        federation = sv.Federation.central(*classification)
        assert self.accuracy(federation, classification, 8.0) > self.best(classification) - self.shortfall

    def test_noise_grows_with_replace_one(self, classification: Any) -> None:
        federation = sv.Federation.central(*classification)
        loose = self.model(epsilon=1.0, options={"rounds": 64}).plan(federation)
        strict = self.model(epsilon=1.0, options={"rounds": 64}, relation="replace-one").plan(federation)
        assert self.spread(strict) >= self.growth * self.spread(loose)

    def spread(self, plan: Any) -> float:
        """The noise of all rounds in units of one record's reach."""
        release = plan.releases[-1]
        return float(release.std * math.sqrt(release.count) / release.charged_zero_out)

    def test_world_sees_less_than_the_coordinator_by_rows(self, classification: Any) -> None:
        federation = sv.Federation.by_rows(self.parts(classification, 4))
        report = self.model(epsilon=2.0).fit(federation).privacy_
        assert report.world.epsilon < self.world * report.coordinator.epsilon
        assert report.epsilon == report.coordinator.epsilon == report.parties.epsilon

    def test_fresh_noise_without_a_seed(self, classification: Any) -> None:
        one, two = (self.model(epsilon=1.0).fit(*classification).coef_ for _ in range(2))
        assert not np.allclose(one, two)

    def test_penalties_and_sets_are_kept(self, classification: Any) -> None:
        if self.ball:
            for chosen in ({"radius": None, "alpha": 0.1}, {"radius": None}, {"l1_ratio": 0}):
                with pytest.raises(InputError, match="needs the l1 ball"):
                    self.model(**chosen).fit(*classification)
            model = self.model(epsilon=1.0, radius=0.5).fit(*classification)
            assert np.abs(model.coef_).sum() <= 0.5 * (1 + 1e-9)
            return
        if not self.l1:
            with pytest.raises(InputError, match="needs an l2 penalty"):
                self.model(l1_ratio=1, alpha=10.0).fit(*classification)
            return
        sparse = self.model(epsilon=1.0, l1_ratio=1, alpha=10.0).fit(*classification)
        np.testing.assert_array_equal(sparse.coef_, 0.0)
        if not self.sets:
            with pytest.raises(InputError, match="is not a sum over the coordinates"):
                self.model(alpha=0.0, radius=0.5).fit(*classification)
            return
        ball = self.model(epsilon=1.0, radius=0.5).fit(*classification)
        assert np.linalg.norm(ball.coef_) <= 0.5 * (1 + 1e-9)
        diamond = self.model(epsilon=1.0, l1_ratio=1, radius=0.5).fit(*classification)
        assert np.abs(diamond.coef_).sum() <= 0.5 * (1 + 1e-9)

    def test_bad_options_are_told(self) -> None:
        with pytest.raises(InputError, match=r"rounds=0 must be a whole number"):
            by_name(self.solver, rounds=0)
        with pytest.raises(InputError, match=r"rounds=2.5 must be a whole number"):
            by_name(self.solver, rounds=2.5)


class ColumnsContract(ModelContract):
    """Data split by columns."""

    budget: ClassVar[float] = 8.0  # epsilon at which it learns
    lost: ClassVar[float]  # accuracy given up there, over columns
    told: ClassVar[float] = 1.0  # the world's epsilon as a share of the coordinator's, below it

    def by_columns(self, data: tuple[Any, np.ndarray], *widths: int, sparse: bool = False) -> sv.Federation:
        X, y = data
        parts = np.split(X, np.cumsum(widths)[:-1], axis=1)
        return sv.Federation.by_columns([sp.csc_matrix(part) for part in parts] if sparse else parts, y)

    def of_columns(self, **parameters: Any) -> sv.PrivateLogisticRegression:
        return self.model(**{"row_norm": None, "entry_bound": 1.0, **parameters})

    @pytest.mark.parametrize("widths", [(3, 3), (1, 2, 3)])
    def test_columns_equal_central_with_the_noise_off(self, classification: Any, widths: tuple[int, ...]) -> None:
        federation = self.by_columns(classification, *widths)
        if all(form.private or form.published for form in algorithms.forms(self.solver)):
            with pytest.raises(InputError, match="has no form without noise"):
                self.of_columns(epsilon=math.inf).fit(federation)
            return
        found = self.of_columns(epsilon=math.inf, **self.regularised()).fit(federation)
        assert not found.plan_.private
        assert all(release.std == 0.0 for release in found.plan_.releases)
        assert self.gap(found, classification) <= self.excess

    def test_columns_dense_equal_sparse_bit_for_bit(self, classification: Any) -> None:
        dense, sparse = (
            self.of_columns(epsilon=1.0, insecure_seed=3).fit(self.by_columns(classification, 4, 2, sparse=kind))
            for kind in (False, True)
        )
        np.testing.assert_array_equal(dense.coef_, sparse.coef_)

    def test_a_private_fit_over_columns_learns(self, classification: Any) -> None:
        federation, only = self.by_columns(classification, 3, 3), {"row_norm": None, "entry_bound": 1.0}
        assert self.accuracy(federation, classification, self.budget, **only) > self.best(classification) - self.lost

    def test_what_the_world_sees_of_columns(self, classification: Any) -> None:
        report = self.of_columns(epsilon=2.0).fit(self.by_columns(classification, 2, 2, 2)).privacy_
        assert report.world.epsilon <= self.told * report.coordinator.epsilon
        assert report.epsilon == report.coordinator.epsilon == report.parties.epsilon

    def test_columns_have_fresh_noise_without_a_seed(self, classification: Any) -> None:
        federation = self.by_columns(classification, 3, 3)
        federation.record = True

        def sent(**options: Any) -> list[Any]:
            messages = self.of_columns(epsilon=1.0, **options).fit(federation).transcript_
            return [each.payload.tolist() for each in messages if isinstance(each.payload, np.ndarray)]

        assert sent() != sent()
        assert sent(insecure_seed=3) == sent(insecure_seed=3)  # the control


class TestNewton(RowsContract, AlgorithmContract):
    solver = "newton"
    shortfall = 0.01


class TestWhitened(RowsContract, AlgorithmContract):
    solver = "whitened"
    shortfall = 0.02
    forms: ClassVar[dict[str, dict[str, Any]]] = {
        "classes": SEVERAL,
        "exact-classes": SEVERAL,
        "people": {"most_records": 2},
        "people-classes": {**SEVERAL, "most_records": 2},
        "columns-people": {"most_records": 2, "people": RECORDS // 2},
        "ordinal": ORDERED,
        "exact-ordinal": ORDERED,
        "counts": {
            "loss": Named(name="poisson"),
            "bounds": Bounds.declare(row_norm=1.0, label_bound=(0, 9), exposure_bound=1.0, weight_bound=2.0),
        },
        "columns-counts": {"loss": Named(name="poisson"), "bounds": COUNTED_ENTRIES},
        "hazards": {
            "loss": Named(name="hazard", parameters={"periods": [0.0, 1.0, 2.0, 4.0]}),
            "bounds": Bounds.declare(row_norm=1.0),
            "fit_intercept": True,
        },
    }


class TestGradient(RowsContract, AlgorithmContract):
    solver = "gradient"
    exact: ClassVar[dict[str, Any]] = {"rounds": 200}
    shortfall = 0.04
    forms: ClassVar[dict[str, dict[str, Any]]] = {
        "classes": SEVERAL,
        "exact-classes": SEVERAL,
        "ordinal": ORDERED,
        "exact-ordinal": ORDERED,
        "counts": {
            "loss": Named(name="poisson"),
            "bounds": Bounds.declare(row_norm=1.0, label_bound=(0, 9), exposure_bound=1.0, weight_bound=2.0),
        },
    }


class TestSGD(RowsContract, AlgorithmContract):
    solver = "sgd"
    small: ClassVar[dict[str, Any]] = {"rounds": 4, "rate": 0.3}
    exact: ClassVar[dict[str, Any]] = {"rounds": 100, "rate": 1.0}
    excess = 1e-3  # samples are drawn without privacy too
    shortfall = 0.04


class TestSCD(RowsContract, AlgorithmContract):
    solver = "scd"
    small: ClassVar[dict[str, Any]] = {"rounds": 4, "rate": 0.3}
    base: ClassVar[dict[str, Any]] = {"alpha": 1e-3}
    l1 = False
    excess = 5e-3  # its intercept is penalised
    apart = 1e-8  # holders that step side by side are slow
    shortfall = 0.04


class TestSequentialSCD(RowsContract, AlgorithmContract):
    solver = "scd-sequential"
    small: ClassVar[dict[str, Any]] = {"rounds": 2, "lot": 8}
    base: ClassVar[dict[str, Any]] = {"alpha": 1e-2}
    l1 = False
    excess = 5e-3
    shortfall = 0.35  # nothing is promised: its noise is that of a method for comparison
    fits = 2


class TestPrimalSCD(RowsContract, AlgorithmContract):
    solver = "scd-primal"
    by_rows = False
    test_world_sees_less_than_the_coordinator_by_rows = None
    l1 = False
    growth = 1.0  # nothing but the cut bounds a step, under both relations alike
    shortfall = 0.6  # nothing is promised: its noise does not fall with the number of records


class TestCD(RowsContract, AlgorithmContract):
    solver = "cd"
    small: ClassVar[dict[str, Any]] = {"rounds": 2, "inner": 6}
    sets = False
    shortfall = 0.06


class TestGreedyCD(RowsContract, AlgorithmContract):
    solver = "greedy-cd"
    sets = False
    world = 0.95  # a choice is one holder's and carries its noise alone
    shortfall = 0.06


class TestFrankWolfe(RowsContract, ColumnsContract, AlgorithmContract):
    solver = "frank-wolfe"
    small: ClassVar[dict[str, Any]] = {"rounds": 6}
    problem: ClassVar[dict[str, Any]] = {"regulariser": Named(name="l1_ball", parameters={"radius": 0.5})}
    forms: ClassVar[dict[str, dict[str, Any]]] = {
        "published-columns": {"loss": Named(name="squared"), "labels": "shared"}
    }
    base: ClassVar[dict[str, Any]] = {"radius": 12.0}
    by_rows = False
    test_world_sees_less_than_the_coordinator_by_rows = None
    ball = True
    excess = 5e-3
    shortfall = 0.06
    lost = 0.1


class TestADMM(ColumnsContract, AlgorithmContract):
    solver = "admm"
    forms: ClassVar[dict[str, dict[str, Any]]] = {
        "feature": {"labels": "public", "slope_bound": 0.3},
        "exact": {"labels": "shared"},  # they tell every party a slope of each record, whose sign is the label
        "published": {"labels": "shared"},
    }
    excess = 1e-6
    lost = 0.04


class TestFDML(ColumnsContract, AlgorithmContract):
    solver = "fdml"
    forms: ClassVar[dict[str, dict[str, Any]]] = {"exact": {"labels": "shared"}}
    excess = 2e-3  # batches are drawn without privacy too
    lost = 0.04


class TestScore(ColumnsContract, AlgorithmContract):
    solver = "score"
    excess = 4e-3  # one factor for each party
    lost = 0.02
    told = 0.95  # scores are not in the model one by one


class TestEvaluation(AlgorithmContract):
    solver = "evaluation"
    forms: ClassVar[dict[str, dict[str, Any]]] = {
        "several": SEVERAL,
        "numbers": {"loss": Named(name="squared")},
        "times": {
            "loss": Named(name="hazard", parameters={"periods": [0.0, 1.0, 2.0, 4.0]}),
            "bounds": Bounds.declare(row_norm=1.0),
            "fit_intercept": True,
        },
        "counts": {"loss": Named(name="poisson"), "bounds": COUNTED_ENTRIES},
    }


class TestOneShot(ColumnsContract, AlgorithmContract):
    solver = "one-shot"
    small: ClassVar[dict[str, Any]] = {"sketch_size": 2}

    @pytest.fixture
    def classification(self, regression: Any) -> Any:
        """It has the squared loss alone."""
        return regression

    def model(self, *, options: Mapping[str, Any] | None = None, **parameters: Any) -> Any:
        solver = by_name(self.solver, **options) if options else self.solver
        return sv.PrivateRidge(**{"delta": DELTA, "label_bound": 1.0, "solver": solver, **parameters})

    def best(self, data: tuple[Any, np.ndarray]) -> float:
        return float(sv.PrivateRidge(epsilon=math.inf).fit(*data).score(*data))

    budget = 30.0
    lost = 0.5  # R^2; for comparison


def test_every_solver_has_a_contract() -> None:
    named = {kind.solver for kind in AlgorithmContract.__subclasses__()}
    assert {*algorithms.SOLVERS, "evaluation"} == named
    assert set(algorithms.SOLVERS) == set(SOLVERS)


def test_a_forgery_that_is_answered_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a party that objects to nothing does not pass."""
    case = next(TestScore.cases())
    monkeypatch.setattr(Query, "objection", lambda self, number, told: None)
    with pytest.raises(AssertionError, match="answers"):
        test_forged_messages_are_refused(case)


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        ("sottovoce.plan.split.Channel.sharers", lambda self, plan, party: (party,)),
        ("sottovoce.gate.query.Turn.rounds", lambda self, plan, party, first, count: int(self(plan, party, first))),
    ],
)
@pytest.mark.parametrize("kind", [TestOneShot, TestScore])
def test_an_answer_that_is_not_priced_is_found(
    monkeypatch: pytest.MonkeyPatch, kind: type[AlgorithmContract], place: str, wrong: Any
) -> None:
    """Negative control: neither the price of one party, though a person is with all, nor that of one round passes."""
    case = next(kind.cases())
    test_what_is_served_is_what_is_priced(case)
    monkeypatch.setattr(place, wrong)
    with pytest.raises(AssertionError):
        test_what_is_served_is_what_is_priced(case)


class Plain(losses.SmoothedHinge):
    """A loss of which nothing is known but its formula."""

    name = "plain"
    code = None
    _proximal = Loss._proximal


@pytest.mark.parametrize(
    ("loss", "split", "served"),
    [
        (Plain(), "central", {"newton", "gradient", "sgd", "whitened", "frank-wolfe"}),
        (Plain(), "columns", {"fdml", "frank-wolfe"}),
        (losses.get("sigmoid"), "central", {"gradient", "sgd", "frank-wolfe"}),
        (losses.get("hinge"), "rows", {"gradient", "sgd", "whitened", "scd", "scd-sequential"}),
        (losses.get("logistic"), "columns", {"frank-wolfe", "admm", "fdml", "score"}),
        (losses.get("squared"), "columns", {"frank-wolfe", "admm", "fdml", "score", "one-shot"}),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_properties_of_a_loss_say_which_solvers_serve_it(loss: Loss, split: Any, served: set[str]) -> None:
    fitting = {name for name in algorithms.SOLVERS if algorithms.mismatch(name, loss, split) is None}
    assert fitting == served
