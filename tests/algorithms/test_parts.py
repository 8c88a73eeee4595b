"""Queries on a part of the rows: what a record moves, that sums are exact, and that a score is of its own row alone."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from plans import columns_problem
from sottovoce import losses
from sottovoce.algorithms.score.queries import LabelProducts
from sottovoce.data.block import Block
from sottovoce.data.bounds import LARGEST, Bounds
from sottovoce.errors import InputError, LeakError
from sottovoce.gate.gate import Gate
from sottovoce.gate.query import Reals, Round, Together
from sottovoce.plan.plan import Design, Plan
from sottovoce.plan.problem import Problem
from sottovoce.plan.release import Release
from sottovoce.privacy.events import Relation, Unbounded
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.queries.parts import (
    FLOAT,
    LabelSketch,
    NoisyLabels,
    PartGradient,
    PartGram,
    PartRows,
    PartSlopes,
    PartSums,
    RowScores,
    cut_slopes,
)
from sottovoce.queries.pricing import together_event
from support import at

RELATIONS: tuple[Relation, ...] = ("zero-out", "replace-one")
RECORDS, COLUMNS = 40, (4, 3)
BOUNDS = Bounds.declare(entry_bound=(2.0, 0.5, 1.0, 1.0, 0.25, 1.0, 1.0), label_bound=1.0)


def problem_for(records: int = RECORDS, **fields: Any) -> Problem:
    declared = {"parties": (("anna", records), ("ben", records)), "layout": "entries"}
    return columns_problem(fields.pop("columns", COLUMNS), records, BOUNDS, **declared | fields)


def queries_of(problem: Problem, party: str, slope_bound: float = 0.7) -> list[Any]:
    made = [make(problem, party) for make in (PartRows, PartGram, PartSums)]
    return [*made, NoisyLabels(problem, FLOAT), PartGradient(problem, party, slope_bound)]


class Given(PartSlopes):
    """PartSlopes that a test has chosen."""

    def __init__(self, slopes: np.ndarray) -> None:
        super().__init__(losses.get("squared"))
        self.slopes = slopes

    def make(self, scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
        del scores, labels
        return self.slopes


def value(query: Any, rows: Block, *slopes: Any) -> np.ndarray:
    """Of a query, at these slopes if it is a gradient."""
    if not slopes:
        return at(query, rows)
    return at(query, rows, memory=Given(*slopes), weights=np.zeros(query.width), offset=np.zeros(len(rows)))


def raw(generator: np.random.Generator, width: int, records: int = RECORDS) -> tuple[np.ndarray, np.ndarray]:
    """Rows of all sizes, some far beyond the bounds, some null, and labels."""
    X = generator.standard_normal((records, width)) * 10.0 ** generator.uniform(-2, 2, (records, 1))
    X[generator.random(records) < 0.1] = math.nan
    return X, generator.uniform(-2, 2, records)


def prepared(problem: Problem, party: str, X: Any, y: np.ndarray) -> Block:
    return Block.prepare(X, y, problem.part(party).preparation)


def moved(query: Any, here: Block, there: Block, *said: Any) -> float:
    own = [(s, s) if not isinstance(s, tuple) else s for s in said]
    change = value(query, here, *(a for a, _ in own)) - value(query, there, *(b for _, b in own))
    return float(np.linalg.norm(np.ravel(change * query.noise_weights)))


def canary(problem: Problem, party: str, row: Any = None, label: float = 1.0) -> Block:
    """Null rows and one record; without a row it is null too."""
    X = np.full((RECORDS, problem.part(party).stop - problem.part(party).start), math.nan)
    y = np.ones(RECORDS)
    if row is not None:
        X[7], y[7] = row, label
    return prepared(problem, party, X, y)


def test_a_gram_matrix_attains_the_root_of_two() -> None:
    problem = problem_for(fit_intercept=False)
    query = PartGram(problem, "ben")  # bounds 0.25, 1, 1 over 2
    rows = np.array([[1e6, 1e6, 1e6], [0.0, 1e6, -1e6]])
    here, there = (canary(problem, "ben", row) for row in rows)
    assert moved(query, here, there) >= 0.95 * query.sensitivity("replace-one")


@pytest.mark.parametrize("records", [40, 3000, 70_000])
def test_sums_are_exact_for_dense_and_sparse_rows(records: int) -> None:
    """In any order and to the last bit. Sparse rows are stored as float32: their products must not be."""
    problem = problem_for(records=records)
    generator = np.random.default_rng(3)
    X, y = raw(generator, 4, records)
    X[:, 0] = generator.uniform(-2, 2, records)
    order = generator.permutation(records)
    dense, mixed = prepared(problem, "anna", X, y), prepared(problem, "anna", X[order], y[order])
    sparse = prepared(problem, "anna", sp.csr_matrix(X), y)
    assert dense.rows.dtype == sparse.rows.dtype == np.float32
    slopes = generator.standard_normal(records)
    for query in queries_of(problem, "anna"):
        if query.name in ("rows", "labels"):
            continue
        said = [slopes] if query.name == "gradient" else []
        found = value(query, dense, *said)
        np.testing.assert_array_equal(value(query, sparse, *said), found)
        np.testing.assert_array_equal(value(query, mixed, *(s[order] for s in said)), found)
        if records == 40 and query.name == "gram":
            rows = np.column_stack([dense.rows[:, :4], dense.usable_rows]).tolist()
            exact = [sum(Fraction(r[i]) * Fraction(r[j]) for r in rows) for i, j in zip(*query.places, strict=True)]
            np.testing.assert_array_equal(found, [float(v) for v in exact])


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("size", [1e-90, 1e-3, 1.0, 1e90])
def test_a_score_is_exact_and_of_its_own_row_alone(sparse: bool, size: float) -> None:
    problem = problem_for(records=3000)
    generator = np.random.default_rng(4)
    weights = size * generator.standard_normal(4)
    shape = sp.csr_matrix if sparse else np.asarray
    X, y = raw(generator, 4, 3000)
    block = prepared(problem, "anna", shape(X), y)
    scores = block.scores(weights)
    dense = np.asarray(block.rows.toarray() if sparse else block.rows, dtype=np.float64)[:, :4]
    np.testing.assert_allclose(scores, dense @ weights, atol=1e-8 * size)
    turned = Block(np.asfortranarray(dense[:, ::-1]), block.labels, block.bits, layout="entries")
    np.testing.assert_array_equal(turned.scores(weights[::-1]), scores)  # in whatever order it is added
    assert np.any(dense[:, ::-1] @ weights[::-1] != dense @ weights)  # which plain products are not
    for _ in range(5):  # all other records are replaced: nothing of row 17 changes
        other, z = raw(generator, 4, 3000)
        other[17], z[17] = X[17], y[17]
        assert prepared(problem, "anna", shape(other), z).scores(weights)[17] == scores[17]


@pytest.mark.parametrize("width", [1, 3, 16, 33, 200])
def test_scores_of_kept_rows_are_of_their_own_rows(width: int) -> None:
    """The tier of the world rests on this: to the last bit, whatever the other rows are."""
    generator = np.random.default_rng(5)
    query = RowScores.__new__(RowScores)
    weights = generator.standard_normal(width)
    rows = (1e3 * generator.standard_normal((1031, width))).astype(np.float32)
    first = query.derive(rows, {"weights": weights})
    for scale in (0.0, 1e-30, 1.0, 1e30):
        other = (scale * generator.standard_normal((1031, width))).astype(np.float32)
        kept = generator.permutation(1031)[:100]
        other[kept] = rows[kept]
        np.testing.assert_array_equal(query.derive(other, {"weights": weights})[kept], first[kept])


LOSSES = [
    losses.get("logistic"),
    losses.get("hinge"),
    losses.get("smoothed_hinge"),
    losses.get("squared"),
    losses.get("huber", threshold=0.5),
]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize("rho", [0.25, 1.0])
def test_slopes_and_copies_of_a_record_are_its_own(loss: Any, rho: float) -> None:
    """To the last bit: on a grid one bit of many others would be many steps."""
    generator = np.random.default_rng(6)
    count = 1100
    for _ in range(40):
        points = generator.standard_normal(count) * generator.choice([0.1, 1, 3, 10])
        labels = np.sign(generator.standard_normal(count))
        start = loss.proximal(points, labels, rho, points) + 10.0 ** generator.uniform(-9, 0) * points
        found = [loss.proximal(points, labels, rho, start), loss.derivative(points, labels)]
        blurred = loss.noisy_label_slope(points, 3 * labels)
        person = int(generator.integers(count))
        points[person] = generator.standard_normal() * 10.0 ** generator.uniform(-3, 100)
        labels[person], start[person] = -labels[person], generator.standard_normal() * 10.0 ** generator.uniform(-3, 3)
        again = [loss.proximal(points, labels, rho, start), loss.derivative(points, labels)]
        again.append(loss.noisy_label_slope(points, 3 * labels))
        for one, other in zip([*found, blurred], again, strict=True):
            assert np.count_nonzero(np.delete(one - other, person)) == 0


def test_slopes_of_noisy_labels_have_the_mean_of_slopes() -> None:
    """Squared and logistic: affine in the label. Others go by its sign."""
    scores = np.linspace(-3, 3, 7)
    for label in (-1.0, 1.0):
        for loss in (losses.get("squared"), losses.get("logistic")):
            away = [loss.noisy_label_slope(scores, np.full(7, label + noise)) for noise in (-5.0, 5.0)]
            np.testing.assert_allclose(np.mean(away, axis=0), loss.derivative(scores, np.full(7, label)), atol=1e-12)
        hinge = losses.get("hinge")
        np.testing.assert_array_equal(
            hinge.noisy_label_slope(scores, np.full(7, 4.0 * label)), hinge.derivative(scores, np.full(7, label))
        )


def test_what_is_cut_and_what_is_refused() -> None:
    found = cut_slopes(np.array([math.nan, math.inf, -math.inf, 0.3, -7.0]), 0.5, 20)
    np.testing.assert_array_equal(found[[0, 1, 2, 4]], [0.5, 0.5, -0.5, -0.5])
    assert 0.3 - 2.0**-20 < found[3] <= 0.3
    for values in (
        np.ones(3),
        np.ones((3, 1)),
        np.ones(4, dtype=np.int64),
        np.array([1, 2, 3, math.nan]),
        2 * LARGEST * np.ones(4),
    ):
        assert not Reals((4,)).fits(values)
    assert Reals((4,)).fits(np.ones(4))
    problem = problem_for()
    for bound in (0.0, -1.0, math.nan, math.inf, 1e-200):
        with pytest.raises(InputError, match="slope_bound"):
            PartGradient(problem, "anna", bound)
    with pytest.raises(LeakError, match="not prepared"):
        PartSums(problem.changed(layout="rows"), "anna")


@pytest.mark.parametrize("relation", RELATIONS)
def test_what_all_parties_release_adds(relation: Relation) -> None:
    problem = problem_for()
    queries = [PartSums(problem, name) for name in problem.names]
    joint = Together(list(queries))
    assert joint.sensitivity(relation) == pytest.approx(math.hypot(*(q.sensitivity(relation) for q in queries)))
    release = Release.at_mu(joint, 0, 3, 0.7, relation)
    event: Any = together_event(list(queries), release, relation, 3)
    assert event.mu == pytest.approx(0.7, rel=1e-9)
    each = [
        (q.sensitivity(relation) + release.step * math.sqrt(q.rounding_entries)) * math.sqrt(3) / release.std
        for q in queries
    ]
    assert math.hypot(*each) <= event.mu
    cheap = release.changed(charged_zero_out=1e-9, charged_replace_one=1e-9, std=release.std / 2)
    doubled: Any = together_event(list(queries), cheap, relation, 3)
    assert doubled.mu == pytest.approx(1.4, rel=1e-9)  # by the queries, whatever the problem says
    assert isinstance(together_event(list(queries), release.changed(std=0.0), relation, 3), Unbounded)


class Matrix(PartSums):
    """A row for every person under the name and the price of a sum."""

    def value(self, round: Round) -> np.ndarray:
        return round.rows.dense_rows(self.width)


def test_a_gate_lets_no_matrix_out() -> None:
    """One draw of noise would be spread over many numbers, whose differences are then exact."""
    problem = problem_for(columns=(1, 6))
    block = prepared(problem, "anna", np.linspace(-1, 1, RECORDS)[:, None], np.ones(RECORDS))
    for query, match in ((Matrix(problem, "anna"), "no vector"), (PartRows(problem, "anna"), "charged as a gaussian")):
        design = Design(rounds=1, releases=(Release.at_mu(query, 0, 1, 1.0, "zero-out"),))
        plan = Plan(**problem.fields(), **design.fields(), run="run", coin="coin", algorithm="admm", form="noisy rows")
        with pytest.raises(LeakError, match=match):
            Gate(plan, SeededRandomness(0)).release(query, Round(plan, 0, {}, block))


def test_a_query_that_must_know_null_rows_refuses_a_batch() -> None:
    """Those of admm and fdml, of score and of frank-wolfe alike: else a null row of a batch would count."""
    problem = problem_for()
    block = prepared(problem, "anna", *raw(np.random.default_rng(0), 4))
    slopes, sketch = np.ones(len(block)), LabelSketch.__new__(LabelSketch)
    asks: list[Any] = [
        lambda rows: at(NoisyLabels(problem), rows),
        lambda rows: PartGradient(problem, "anna", 1.0).dots(rows, slopes),
        lambda rows: at(LabelProducts(problem, "anna"), rows, columns=slopes[None], centre=np.zeros(1)),
        lambda rows: at(sketch, rows, memory=Identity()),
    ]
    for ask in asks:
        ask(block)
        with pytest.raises(LeakError):
            ask(block.take(np.arange(3)))


class Identity:
    def apply(self, values: np.ndarray) -> np.ndarray:
        return values
