"""People with several records: neighbours are whole people, whatever and however many records they have."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from plans import ONE_VS_REST, SEVERAL
from sottovoce import algorithms
from sottovoce.algorithms.description import CountedColumns, Cut, Described
from sottovoce.algorithms.ranges import CountedRanges
from sottovoce.algorithms.whitened.people import largest_trace
from sottovoce.data.beside import labels_with
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.data.matrix import exact_bits
from sottovoce.data.people_block import PeopleBlock
from sottovoce.data.resources import Resources
from sottovoce.errors import InputError, LeakError, RefusedError
from sottovoce.gate.gate import Gate
from sottovoce.gate.query import Query, Round
from sottovoce.lab.audit.runner import audit_plan
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.privacy.events import RELATIONS, Gaussian
from sottovoce.privacy.guarantee import PrivacyReport
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.queries.pricing import queries_of
from sottovoce.queries.sums import ProjectedGradient
from support import told_to

T, D, PEOPLE = 4, 3, 5
ROUNDING = 1 + 1e-12
TWO: dict[str, Any] = {"loss": Named(name="logistic"), "classes": (-1, 1), "fit_intercept": True}
BARE: dict[str, Any] = {"bounds": Bounds(), "norms": (), "layout": "raw"}
Records = list[tuple[Any, float]]  # of one person: rows and labels


def problem_of(**fields: Any) -> Problem:
    plan = audit_plan("gradient", records=PEOPLE, features=D)
    return Problem(**{name: getattr(plan, name) for name in Problem.model_fields} | {"most_records": T} | fields)


def small(solver: str = "whitened", **fields: Any) -> Plan:
    fields = {"features": D, "records": PEOPLE, "most_records": T, "relation": "zero-out", **fields}
    return audit_plan(solver, **fields)


CUTS = (Cut(place=0, scale="linear", low=-1.0, high=1.0), Cut(place=1, scale="powers"))
MAKE: dict[str, Callable[[], Plan]] = {
    "classes": lambda: small(**TWO, rounds=3),
    "class weights": lambda: small(**TWO, class_weight=(0.1, 1.0), rounds=3),
    "numbers": lambda: small(fit_intercept=True, rounds=3),
    "large signal": lambda: small(**TWO, epsilon=1e4, delta=1e-5, rounds=3, records=20_000),
    "several classes": lambda: small(**SEVERAL, rounds=3),
    "one-vs-rest": lambda: small(**ONE_VS_REST, rounds=3),
    "evaluation of classes": lambda: small("evaluation", **TWO),
    "evaluation of several": lambda: small("evaluation", **SEVERAL),
    "evaluation of numbers": lambda: small("evaluation"),
    "ranges": lambda: algorithms.plan_by(CountedRanges(), problem_of(**BARE), (0, 1, 2), run="run", coin="coin"),
    "description": lambda: algorithms.plan_by(
        CountedColumns(), problem_of(**BARE), Described(columns=CUTS), run="run", coin="coin"
    ),
}


@functools.cache
def plan_named(name: str) -> Plan:
    return MAKE[name]()


@dataclass(frozen=True)
class Asked:
    """A query of the one party of a plan, and what it is told."""

    plan: Plan
    query: Query
    told: dict[str, np.ndarray]
    before: dict[str, np.ndarray]

    def value(self, people: dict[Any, Records], jobs: int = 1) -> np.ndarray:
        listed = [(person, row, label) for person, records in people.items() for row, label in records]
        who, X, y = zip(*listed, strict=True) if listed else ((), np.zeros((0, D)), ())
        labels = labels_with(np.array(y, dtype=float), person=np.array(who, dtype=object))
        return self.of(np.array(X, dtype=float).reshape(-1, D), labels, jobs)

    def of(self, X: np.ndarray, y: np.ndarray, jobs: int = 1) -> np.ndarray:
        plan, part = self.plan, self.plan.part(self.plan.names[0]).preparation
        rows = Block.prepare(X, y, part, resources=Resources(n_jobs=jobs))
        memory: dict[str, Any] = {}
        if self.before:
            length = queries_of(algorithms.of(plan), plan, plan.names[0])["length"]
            length.value(Round(plan, plan.release("length").first, self.before, rows, memory))
        number = plan.release(self.query.name).first
        with np.errstate(all="ignore"):
            return np.ravel(self.query.value(Round(plan, number, self.told, rows, memory, SeededRandomness(0))))


def asked_of(plan: Plan, rng: np.random.Generator, **told: float) -> Iterator[Asked]:
    """Every query, each with a message of what is allowed; numbers of `told` by name."""
    queries = queries_of(algorithms.of(plan), plan, plan.names[0])
    for query in queries.values():
        if not plan.has(query.name):
            continue
        number = plan.release(query.name).first
        message = {name: array.copy() for name, array in told_to(query, rng, number).items()}
        if "runs" in message:
            message["runs"] = np.sort(message["runs"], axis=1)
        for name, value in told.items():
            if name in message:
                message[name][:] = value
        follows = isinstance(query, ProjectedGradient) and query.told_before
        before = told_to(queries["length"], rng, number) if follows else {}
        yield Asked(plan, query, message, before)


def far(sign: float = 1.0) -> np.ndarray:
    return sign * np.full(D, 1e3)


def random_records(plan: Plan, rng: np.random.Generator) -> Records:
    """0, 1, T or T + 1 records, or more; some alike, some that cancel, some null."""
    count = int(rng.choice([0, 1, 2, T, T + 1, 3 * T]))
    labels = plan.classes or (-1.0, 0.3, 1.0)
    kind = rng.choice(["any", "alike", "cancelling", "null", "one null"])
    row, label = rng.standard_normal(D) * 10.0 ** rng.integers(-2, 3), float(rng.choice(labels))
    found: Records = []
    for place in range(count):
        if kind == "any":
            row, label = rng.standard_normal(D) * 10.0 ** rng.integers(-2, 3), float(rng.choice(labels))
        sign = -1.0 if kind == "cancelling" and place % 2 else 1.0
        null = kind == "null" or (kind == "one null" and place == 0)
        found.append((np.full(D, math.nan) if null else sign * row, label))
    return found


@pytest.mark.parametrize("name", MAKE)
def test_whole_people_move_a_value_by_its_sensitivity_at_most(name: str) -> None:
    plan = plan_named(name)
    for trial in range(12):
        rng = np.random.default_rng([trial, len(name)])
        others = {k: random_records(plan, rng) for k in range(1, PEOPLE)}
        one, other = random_records(plan, rng), random_records(plan, rng)
        for asked in asked_of(plan, rng):
            values = [asked.value({**others, "x": records}) for records in (one, other, [])]
            for relation, second in zip(RELATIONS, (2, 1), strict=True):
                assert relation == ("zero-out", "replace-one")[second == 1]
                moved = np.linalg.norm((values[0] - values[second]) * asked.query.noise_weights)
                assert moved <= asked.query.sensitivity(relation) * ROUNDING, (asked.query.name, relation)


@pytest.mark.parametrize("name", MAKE)
def test_where_nobody_has_a_usable_record_an_answer_comes_all_the_same(name: str) -> None:
    """An error would tell that the last of them had one."""
    blank: dict[Any, Records] = {"x": [(np.full(D, math.nan), 1.0)] * 2, None: [(far(), 1.0)]}
    for asked in asked_of(plan_named(name), np.random.default_rng(0)):
        assert not asked.value({}).any()
        assert not asked.value({None: blank[None]}).any()
        assert asked.value(blank).shape == asked.value({"x": [(far(), 1.0)]}).shape


ALL: dict[str, tuple[Records, Records, dict[str, float]]] = {  # two people, what is told; T records each
    "gram": ([(np.array([9.0, 0, 0]), 1.0)] * T, [(np.array([0, 9.0, 0]), 1.0)] * T, {}),
    "person-records": ([(far(), 1.0)] * T, [(far(), 1.0)] * T, {}),
    "label": ([(far(), 1.0)] * (T + 3), [(far(), -1.0)] * 2, {}),
    "residual": ([(far(), 1.0)] * T, [(far(), 0.0)], {"weights": 0.0}),
    "weight": ([(far(), 1.0)] * T, [(far(), -1.0)], {}),
    "classes": ([(far(), 1.0)] * T, [(far(), 0.0)] * 2, {}),
    "length": ([(far(), 1.0)] * T, [(0 * far(), 1.0)], {"radius": 1e-3, "unit": 1.0}),
    "score": ([(far(), 1.0)] * T, [(far(-1), 1.0)], {"weights": 1e4}),
    "square": ([(far(), 1.0)] * T, [(far(-1), 1.0)], {"weights": 1e4}),
    "gradient": ([(far(), 1.0)] * T, [(far(-1), 1.0)] * T, {"slope": 1e-3, "cut": 1e-3, "point": 0.0, "offset": 0.0}),
    "rescale": ([(far(), 1.0)] * T, [(far(-1), 1.0)] * T, {"slope": 1e-3, "cut": 1e-3, "point": 0.0, "offset": 0.0}),
}
LEAST = {  # of the bound, zero-out and replace-one, where two such people do not attain it
    "person-records": (0.99, 0.0),
    "length": (0.99, 0.0),  # the constant column alone is as long
    "weight": (0.99, 0.89),
    "square": (0.99, 0.0),
    "gradient": (0.99, 0.94),  # the constant column is the same in both
    "rescale": (0.99, 0.0),
}


@pytest.mark.parametrize("name", ["classes", "class weights", "numbers", "large signal", "several classes"])
@pytest.mark.parametrize("together", [1.0, 2.5, float(T)])
def test_people_of_all_their_records_attain_the_bound(name: str, together: float) -> None:
    plan, rng = plan_named(name), np.random.default_rng(1)
    for asked in asked_of(plan, rng, together=together):
        one, other, told = ALL[asked.query.name]
        for message in (asked.told, asked.before):
            for key, value in told.items():
                if key in message:
                    message[key][:] = value
            if "projection" in message and asked.query.name != "rescale":
                d = plan.dimension
                message["projection"][:] = 10**6 * np.eye(d)[np.tril_indices(d)].astype(np.int64)
                message["unit"][:] = 1.0
        values = [asked.value({"x": records}) for records in (one, other, [])]
        least = LEAST.get(asked.query.name, (0.99, 0.94))
        for relation, second, most in zip(RELATIONS, (2, 1), least, strict=True):
            moved = np.linalg.norm((values[0] - values[second]) * asked.query.noise_weights)
            share = moved / asked.query.sensitivity(relation)
            assert most <= share <= ROUNDING, (asked.query.name, relation, share)


def crowd(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    who = np.repeat(np.arange(PEOPLE - 1), 2)
    who = np.append(who, np.full(count, 99))
    return rng.standard_normal((len(who), D)), rng.choice([-1.0, 1.0], len(who)), who


def terms_of_others(asked: Asked, count: int, jobs: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """The sum of all people less that of one with `count` records; and the sum of the others."""
    X, y, who = crowd(np.random.default_rng(5), count)
    labels = labels_with(y if asked.plan.classes is None else np.resize(asked.plan.classes, len(y)), person=who)
    huge = who == 99
    return asked.of(X, labels, jobs) - asked.of(X[huge], labels[huge]), asked.of(X[~huge], labels[~huge])


def check_others(asked: Asked, count: int) -> None:
    """With so many more records of one person, in one thread or in several, to the last bit."""
    for jobs in (1, 3):
        np.testing.assert_array_equal(*terms_of_others(asked, count, jobs), asked.query.name)


@pytest.mark.parametrize("count", [3000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MAKE)
def test_many_records_of_one_change_no_term_of_another(name: str, count: int) -> None:
    kinds = set()
    for asked in asked_of(plan_named(name), np.random.default_rng(3), together=1.0, cut=2.0**-3):
        kinds.add(asked.query.name)
        check_others(asked, count)
    assert {"gram", "length", "gradient"} <= kinds or len(kinds) < 3


@pytest.mark.parametrize(
    ("name", "query", "grid"),
    [
        ("classes", "square", {"sum_bits": lambda block: 52 - math.ceil(math.log2(16 * len(block)))}),
        ("classes", "gram", {"exact_grid": lambda block: exact_bits(100 * len(block))}),
    ],
)
def test_a_grid_by_the_number_of_rows_is_found(
    name: str, query: str, grid: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    asked = next(
        one for one in asked_of(plan_named(name), np.random.default_rng(3), weights=1 / 3) if one.query.name == query
    )
    for place, rule in grid.items():
        monkeypatch.setattr(PeopleBlock, place, property(rule))
    with pytest.raises(AssertionError):
        check_others(asked, 100_000)


def mean_of_all(block: Any, numbers: np.ndarray) -> float:
    return float(numbers.sum())


FAULTS: dict[str, tuple[str, str, Any]] = {
    "numbers of a person add": ("score", "sottovoce.data.people_block.PeopleBlock.number_total", mean_of_all),
    "products that are not scaled": (
        "gram",
        "sottovoce.data.people_block.PeopleBlock.person_gram",
        lambda block, most: block.gram(),
    ),
    "people are not told apart": (
        "gradient",
        "sottovoce.data.people_block.put_together",
        lambda rows, labels, person, usable, most: (np.arange(len(person)), np.arange(len(person) + 1)),
    ),
    "the sum of a person that is not cut": (
        "gradient",
        "sottovoce.data.people_block.kernels.add_cut_sums",
        lambda rows, slopes, starts, limits, total: np.add(total, slopes.T @ rows, out=total),
    ),
    "records beyond the most that count": (
        "person-records",
        "sottovoce.data.people_block.put_together",
        lambda rows, labels, person, usable, most: (np.arange(len(person)), np.array([0, len(person)])),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, place, wrong = FAULTS[fault]
    plan, rng = plan_named("classes"), np.random.default_rng(1)
    asked = next(one for one in asked_of(plan, rng, together=1.0) if one.query.name == name)
    one, _, told = ALL[name]
    for message in (asked.told, asked.before):
        for key, value in told.items():
            if key in message:
                message[key][:] = value
        if "projection" in message:
            message["projection"][:] = 10**6 * np.eye(plan.dimension)[np.tril_indices(plan.dimension)].astype(np.int64)
            message["unit"][:] = 1.0
    monkeypatch.setattr(place, wrong)
    moved = np.linalg.norm((asked.value({"x": one * 3}) - asked.value({})) * asked.query.noise_weights)
    assert moved > 1.5 * asked.query.sensitivity("zero-out")


class TestWhoseARecordIs:
    def of(self, who: Any, X: Any = None, y: Any = None, plan: str = "classes") -> PeopleBlock:
        X = np.arange(len(who) * D, dtype=float).reshape(-1, D) if X is None else X
        y = np.ones(len(who)) if y is None else y
        recipe = plan_named(plan).part("party 1").preparation
        block = Block.prepare(X, labels_with(y, person=who), recipe)
        assert isinstance(block, PeopleBlock)
        return block

    def test_a_record_without_an_identifier_is_a_null_row(self) -> None:
        block = self.of(["a", None, "", "NA", "b", math.nan])
        assert np.diff(block.starts).tolist() == [1, 1]

    def test_no_more_than_the_most_count_whatever_their_order(self) -> None:
        rng = np.random.default_rng(0)
        X = rng.standard_normal((50, D))
        who = np.repeat(["a", "b"], 25)
        order = rng.permutation(50)
        one, other = self.of(who, X), self.of(who[order], X[order])
        assert np.diff(one.starts).tolist() == [T, T]
        np.testing.assert_array_equal(one.rows, other.rows)
        alone = self.of(who[:25], X[:25])
        assert {tuple(row) for row in alone.rows.tolist()} < {tuple(row) for row in one.rows.tolist()}

    def test_null_rows_do_not_count(self) -> None:
        X = np.ones((T + 2, D))
        X[0] = math.nan
        assert np.diff(self.of(["a"] * (T + 2), X).starts).tolist() == [T]
        assert len(self.of(["a"] * (T + 2), np.full((T + 2, D), math.nan))) == 0

    def test_the_grid_follows_from_the_plan(self) -> None:
        few, many = self.of(["a"]), self.of(np.arange(1000) % 3)
        assert (few.bits, few.sum_bits, few.records) == (many.bits, many.sum_bits, many.records)
        assert few.records == PEOPLE * T

    def test_no_record_is_drawn(self) -> None:
        with pytest.raises(LeakError, match="together"):
            self.of(["a", "a"]).take(np.array([0]))


def people_of(count: int = 3000, seed: int = 0, kinds: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(count), 1 + rng.poisson(2, count))
    X = np.clip(rng.standard_normal((len(who), D)), -3, 3)
    scores = X @ np.eye(D)[:, :kinds] * 2 + rng.gumbel(size=(len(who), kinds))
    return X, scores.argmax(axis=1), who


RANGES = ([-3.0] * D, [3.0] * D)


def model(**fields: Any) -> sv.PrivateLogisticRegression:
    return sv.PrivateLogisticRegression(
        **{"epsilon": 3.0, "delta": 1e-6, "feature_ranges": RANGES, "classes": (0, 1), "insecure_seed": 1, **fields}
    )


@pytest.mark.parametrize("kinds", [2, 3])
def test_a_fit_of_people_is_near_that_without_privacy(kinds: int) -> None:
    X, y, who = people_of(kinds=kinds)
    fitted = model(classes=tuple(range(kinds))).fit(X, y, person=who, most_records=8)
    plain = model(classes=tuple(range(kinds)), epsilon=math.inf, solver="newton" if kinds == 2 else "whitened").fit(
        X, y
    )
    assert np.mean(fitted.predict(X) == plain.predict(X)) > 0.96
    assert fitted.plan_.protects == "person"
    assert fitted.plan_.records == 3000
    assert fitted.privacy_.weakest.unit == "person"


def test_numbers_are_fitted() -> None:
    X, _, who = people_of()
    y = X @ [1.0, -1.0, 0.5] + np.random.default_rng(1).standard_normal(len(who))
    fitted = sv.PrivateRidge(3.0, 1e-6, feature_ranges=RANGES, label_bound=10.0, insecure_seed=1)
    fitted.fit(X, y, person=who, most_records=8)
    assert np.abs(fitted.coef_ - [1.0, -1.0, 0.5]).max() < 0.1


@pytest.mark.parametrize("sums", ["plain", "secure"])
def test_by_rows_it_is_the_sum_of_the_parties(sums: Any) -> None:
    X, y, who = people_of()
    own = who % 2 == 0
    parts = [(X[mine], labels_with(y[mine], person=who[mine])) for mine in (own, ~own)]
    fitted = model(insecure_seed=None).fit(sv.Federation.by_rows(parts, sums=sums), most_records=8)
    assert dict(fitted.plan_.parties) == {"party-1": 1500, "party-2": 1500}
    assert fitted.score(X, y) > 0.82
    assert any("with one party" in line for line in fitted.privacy_.assumptions)
    assert "all records of that person had been left blank" in str(fitted.privacy_)
    assert PrivacyReport.from_dict(fitted.privacy_.to_dict()) == fitted.privacy_


def test_sparse_rows_and_threads_give_the_same_model() -> None:
    import scipy.sparse as sp

    X, y, who = people_of()
    X[np.abs(X) < 1] = 0.0
    one = model().fit(X, y, person=who, most_records=2)
    for rows, resources in ((sp.csr_matrix(X), None), (X, sv.Resources(n_jobs=3))):
        other = model(resources=resources).fit(rows, y, person=who, most_records=2)
        np.testing.assert_array_equal(one.coef_, other.coef_)


TABLE = {"age": {"range": (-3, 3)}, "dose": {"range": (-3, 3)}, "size": {"range": (-3, 3)}, "ill": {"yes": 1, "no": 0}}


def table_of(X: np.ndarray, y: np.ndarray, who: np.ndarray) -> dict[str, Any]:
    return {"patient": [f"P{each}" for each in who], **dict(zip(("age", "dose", "size"), X.T, strict=True)), "ill": y}


def test_a_table_and_a_file_say_whose_records_are(tmp_path: Any) -> None:
    schema = sv.Schema(TABLE, label="ill", person="patient", most_records=8)
    assert sv.Schema.from_table(schema.table()) == schema
    table = table_of(*people_of())
    in_memory = model(feature_ranges=None, classes=None, schema=schema).fit(table)
    path = tmp_path / "visits.csv"
    columns = list(table)
    lines = [",".join(columns), *(",".join(str(table[name][k]) for name in columns) for k in range(len(table["ill"])))]
    path.write_text("\n".join(lines) + "\n")
    of_file = model(feature_ranges=None, classes=(0, 1)).fit(sv.Dataset(path, schema=schema))
    np.testing.assert_array_equal(in_memory.coef_, of_file.coef_)
    told = sv.evaluate(in_memory, table, epsilon=3.0, insecure_seed=1)
    assert told.plan_.protects == "person"
    assert "3,000 test people" in str(told)
    described = sv.describe(table, epsilon=5.0, schema=schema, by="ill", insecure_seed=1)
    assert described.plan_.most_records == 8
    without = {name: cells for name, cells in table.items() if name != "ill"}
    assert sv.describe(without, epsilon=5.0, schema=schema, insecure_seed=1).plan_.records == 3000


def test_means_of_people_are_told() -> None:
    """One with many records counts as one: evaluated and described like everybody."""
    X, y, who = people_of(500)
    X, y = np.concatenate([X, np.tile(X[:1], (5000, 1))]), np.append(y, np.full(5000, 1 - y[0]))
    who = np.append(who, np.full(5000, who[0]))
    fitted = model().fit(X, y, person=who, most_records=8)
    metrics = sv.evaluate(fitted, X, y, person=who, epsilon=math.inf).metrics
    right = fitted.predict(X) == y
    first = who == 0
    each = [right[who == person].mean() for person in range(1, 500)]
    assert abs(metrics["accuracy"].value - np.mean([*each, right[first].mean()])) < 0.01


def test_ranges_are_bought_by_person() -> None:
    X, y, who = people_of()
    fitted = model(feature_ranges="private", epsilon=5.0).fit(X, y, person=who, most_records=8)
    assert fitted.ranges_["0"][1] <= 4.0 if "0" in fitted.ranges_ else len(fitted.ranges_) == D
    assert [plan.protects for plan in fitted.plans_] == ["person", "person"]


class TestRefused:
    def people(self) -> dict[str, Any]:
        X, y, who = people_of(50)
        return {"X": X, "y": y, "person": who, "most_records": 4}

    @pytest.mark.parametrize("solver", sorted(set(algorithms.SOLVERS) - {"whitened"}))
    def test_other_solvers(self, solver: str) -> None:
        with pytest.raises(sv.InputError):
            model(solver=solver).fit(**self.people())

    @pytest.mark.parametrize(
        ("fields", "why"),
        [
            ({"solver": "gradient"}, "bounds records, and not people"),
            ({"standard_errors": True}, "standard_errors"),
            ({"alpha": "auto", "l1_ratio": 1}, "alpha='auto'"),
            ({"epsilon": math.inf}, "leave person out"),
            ({"calibration": "paper", "solver": "whitened"}, "most_records"),
        ],
    )
    def test_what_has_no_rule(self, fields: dict[str, Any], why: str) -> None:
        with pytest.raises(sv.InputError, match=why):
            model(**fields).fit(**self.people())

    def test_a_search(self) -> None:
        X, y, who = people_of(50)
        schema = sv.Schema(TABLE, label="ill", person="patient", most_records=4)
        search = sv.PrivateRandomizedSearch(
            model(feature_ranges=None, classes=None, schema=schema), {"alpha": [0.1]}, epsilon=1.0, delta=1e-6
        )
        with pytest.raises(sv.InputError, match="search"):
            search.fit(table_of(X, y, who))

    def test_columns(self) -> None:
        X, y, who = people_of(50)
        parts = [X[:, :2], X[:, 2:]]
        federation = sv.Federation.by_columns(parts, labels_with(y, person=who), products="none")
        with pytest.raises(sv.InputError, match="over columns"):  # with secure products: secure/test_people.py
            model(insecure_seed=None).fit(federation, most_records=4)

    def test_what_is_not_said(self) -> None:
        X, y, who = people_of(50)
        with pytest.raises(sv.InputError, match="how many records"):
            model().fit(X, y, person=who)
        with pytest.raises(sv.InputError, match="whose record"):
            model().fit(X, y, most_records=3)
        for wrong in (0, 1.5, 10**6, True):
            with pytest.raises(sv.InputError, match="most_records"):
                model().fit(X, y, person=who, most_records=wrong)
        with pytest.raises(sv.InputError, match="most_records"):
            sv.Schema(TABLE, most_records=3)
        with pytest.raises(sv.SottovoceError, match="whose record"):
            model().fit(sv.Federation.by_rows([(X, labels_with(y, person=who))]))
        with pytest.raises(sv.SottovoceError, match="was not told"):
            model().fit(sv.Federation.by_rows([(X, y)]), most_records=3)

    def test_many_features(self) -> None:
        with pytest.raises(sv.InputError, match="2000 features"):
            small(**TWO, features=2001)

    def test_a_plan_that_lies(self) -> None:
        plan = plan_named("classes")
        for update in ({"protects": "record"}, {"most_records": None}, {"most_records": 10**9}):
            with pytest.raises((RefusedError, ValueError)):
                plan.model_copy(update=update)
        other = small(most_records=None, solver="gradient", rounds=3)
        with pytest.raises(RefusedError, match="for records"):
            algorithms.of(other.model_copy(update={"most_records": T, "protects": "person"}))
        with pytest.raises(RefusedError, match="for people"):
            algorithms.of(plan.model_copy(update={"most_records": None, "protects": "record"}))
        gate = Gate(other.model_copy(update={"most_records": T, "protects": "person"}), SeededRandomness(0))
        query = queries_of(algorithms.of(other), other, "party 1")["gradient"]
        with pytest.raises(LeakError, match="about people"):
            gate._permitted(query, 0, None)  # type: ignore[arg-type]

    def test_a_message_that_lies(self) -> None:
        plan = plan_named("classes")
        for asked in asked_of(plan, np.random.default_rng(0)):
            if "together" in asked.told:
                number = plan.release(asked.query.name).first
                for wrong in (0.5, T + 1.0, math.nan, 1e9):
                    told = {**asked.told, "together": np.array([wrong])}
                    assert asked.query.objection(number, told) is not None


def test_charges_for_people_and_for_records_do_not_add(tmp_path: Any) -> None:
    account = sv.Ledger.create(tmp_path / "ledger.db").open("visits", 10.0, 1e-5)
    account.reserve("people", [Gaussian(mu=0.1)], unit="person")
    assert account.reserve("people", [Gaussian(mu=0.1)], unit="person").people
    for charge in (account.reserve, account.check):
        with pytest.raises(sv.BudgetError, match="do not add"):
            charge("records", [Gaussian(mu=0.1)])
    account.check("more people", [Gaussian(mu=0.1)], unit="person")


@pytest.mark.slow
def test_a_ledger_is_charged_for_people(tmp_path: Any) -> None:
    X, y, who = people_of(200)
    ledger = sv.Ledger.create(tmp_path / "ledger.db")
    for name in ("people", "records"):
        ledger.open(name, 10.0, 1e-5)
    people, records = ledger.account("people"), ledger.account("records")
    model(insecure_seed=None, ledger=people).fit(X, y, person=who, most_records=4)
    model(insecure_seed=None, ledger=people).fit(X, y, person=who, most_records=4)
    model(insecure_seed=None, ledger=records).fit(X, y)
    with pytest.raises(sv.BudgetError, match="do not add"):
        model(insecure_seed=None, ledger=people).fit(X, y)
    with pytest.raises(sv.BudgetError, match="do not add"):
        model(insecure_seed=None, ledger=records).fit(X, y, person=who, most_records=4)
    assert ledger.verify() > 0
    assert [known.people for known in people.book().reservations] == [True, True]


def test_the_products_are_cut_less_the_larger_the_signal() -> None:
    traces = [largest_trace(problem_of(parties=(("a", count),), most_records=20)) for count in (100, 10**4, 10**7)]
    assert traces == sorted(traces)
    assert traces[0] == 1.0
    assert traces[-1] >= 20.0
    assert all(math.log2(trace).is_integer() for trace in traces)


def test_a_holder_is_told_of_identifiers_that_repeat(caplog: pytest.LogCaptureFixture) -> None:
    table = table_of(*people_of(200))
    schema = sv.Schema(TABLE, label="ill", identifiers=["patient"])
    model(feature_ranges=None, classes=None, schema=schema).fit(table)
    assert "have several records" in caplog.text


@pytest.mark.slow
def test_long_histories_converge_and_those_of_the_sick_do_not_bias() -> None:
    """20 records each at large signal, where products cut as gradients are would make steps too long."""
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(4000), 20)
    X = np.clip(rng.standard_normal((len(who), D)), -3, 3)
    y = (rng.random(len(who)) < 1 / (1 + np.exp(3.5 - X @ [1.0, -1.0, 0.5]))).astype(int)
    fitted = model(epsilon=8.0).fit(X, y, person=who, most_records=20)
    assert abs(fitted.predict_proba(X)[:, 1].mean() / y.mean() - 1) < 0.05
    assert abs(fitted.coef_.ravel() @ [1.0, -1.0, 0.5] / 2.25 - 1) < 0.07


def test_people_with_several_records_have_no_weights() -> None:
    X, y, who = people_of(100)
    with pytest.raises(InputError, match="people with several records count without weight"):
        model(solver=sv.solvers.Whitened(weight_bound=2.0)).fit(
            X, y, person=who, most_records=4, sample_weight=np.ones(len(y))
        )
