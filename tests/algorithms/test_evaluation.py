"""Private evaluation: how far a test record moves the cells, that sums are exact, and what is made of the counts."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import metrics

from plans import small_problem
from sottovoce import algorithms
from sottovoce.algorithms import evaluation as evaluation_queries
from sottovoce.algorithms.evaluation import (
    RESIDUALS,
    ClassCells,
    EvaluatedClasses,
    EvaluatedNumbers,
    EvaluatedSeveral,
    Line,
    ResidualCells,
    ScoreCells,
    Subject,
    TwoSides,
    loss_lines,
    pair_cells,
)
from sottovoce.algorithms.evaluation.estimates import ClassEstimates, Counts, Metric, NumberEstimates, SeveralEstimates
from sottovoce.data.block import Block
from sottovoce.errors import InputError, LeakError, RefusedError
from sottovoce.gate.query import Query
from sottovoce.losses import OneVsRest, get
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.privacy.events import RELATIONS, Relation
from support import at, epsilons_of, query_of

FEATURES, RECORDS = 3, 7
NODES = TwoSides(-2.0, 1.0, 5, 3)
WEIGHTS = np.array([3.0, -2.0, 1.0, 0.5])
SEVERAL = np.array([WEIGHTS, -WEIGHTS, [0.0, 4.0, -2.0, 0.1]])
LOSSES = {"classes": "logistic", "numbers": "squared", "several": "softmax"}
CLASSES = {"classes": (-1, 1), "several": (0, 1, 2)}
QUERIES: dict[str, Query] = {
    "classes": ScoreCells(NODES, WEIGHTS),
    "numbers": ResidualCells(WEIGHTS),
    "several": ClassCells(SEVERAL, get("softmax", classes=3.0)),
}


def problem(kind: str, **changes: Any) -> Problem:
    loss = Named(name=LOSSES[kind], parameters={"classes": 3.0} if kind == "several" else {})
    return small_problem(loss, **{"classes": CLASSES.get(kind), **changes})


def plan_of(kind: str, **changes: Any) -> Plan:
    form = {"classes": EvaluatedClasses(), "numbers": EvaluatedNumbers(), "several": EvaluatedSeveral()}[kind]
    subject = Subject(SEVERAL if kind == "several" else WEIGHTS, (-0.5, 1.0))
    return algorithms.plan_by(form, problem(kind, **changes), subject, run="run", coin="coin")


def block_of(kind: str, rows: np.ndarray, labels: np.ndarray, *, sparse: bool = False, **changes: Any) -> Block:
    return Block.prepare(sp.csr_matrix(rows) if sparse else rows, labels, problem(kind, **changes).preparation)


@pytest.mark.parametrize("kind", QUERIES)
def test_null_rows_add_nothing_and_others_one_to_each_kind_of_cells(kind: str) -> None:
    rows, labels = np.full((RECORDS, FEATURES), 0.2), np.ones(RECORDS)
    null = at(QUERIES[kind], block_of(kind, np.full_like(rows, math.nan), labels))
    np.testing.assert_array_equal(null, np.zeros(QUERIES[kind].length))
    rows[0] = math.inf
    found = at(QUERIES[kind], block_of(kind, rows, labels))
    ends = {"classes": [], "numbers": [8, 24, 25], "several": [9]}[kind]
    sizes = [part.sum() for part in np.split(found, ends)]
    np.testing.assert_array_equal(sizes, [RECORDS - 1.0] * len(sizes))


def test_a_score_of_zero_counts_as_predict_takes_it() -> None:
    places, t = NODES.shares(np.array([0.0, 5e-324, -5e-324, math.nan, -9.0, 9.0]))
    sides = np.where(t == 1.0, places + 1, places) >= NODES.left
    assert sides.tolist() == [False, True, False, False, False, True]
    assert ((t >= 0) & (t <= 1) & (places + 1 < len(NODES))).all()


class TestNodes:
    def test_linear_functions_are_their_own_projections(self) -> None:
        for line in (RESIDUALS, Line((-1.0, 0.5, 2.0))):
            np.testing.assert_allclose(line.projection(lambda s: 3 * s - 1), 3 * np.array(line.nodes) - 1, atol=1e-12)

    def test_cells_of_evenly_spread_values_give_means_exactly(self) -> None:
        """Between nodes the mean over a uniform density is what a projection keeps."""
        values = (np.arange(200_000) + 0.5) / 200_000 * 3 - 2
        places, t = NODES.shares(values)
        cells = np.bincount(places, 1 - t, 8) + np.bincount(places + 1, t, 8)
        for function in (np.exp, np.square, np.abs):
            mean = cells @ NODES.projection(function) / len(values)
            assert mean == pytest.approx(function(values).mean(), abs=1e-5)

    def test_pairs_in_order(self) -> None:
        """Of uniform and of triangular scores, by the cells and by the definition."""
        rng = np.random.default_rng(0)
        high, low = rng.triangular(-2, 0.5, 1, 4000), rng.uniform(-2, 1, 4000)
        one, zero = (
            np.bincount(places, 1 - t, 8) + np.bincount(places + 1, t, 8)
            for places, t in (NODES.shares(scores) for scores in (high, low))
        )
        true = (np.sort(low).searchsorted(high) / len(low)).mean()
        assert one @ NODES.above @ zero / (one.sum() * zero.sum()) == pytest.approx(true, abs=3e-3)
        np.testing.assert_allclose(NODES.above + NODES.above.T, 1.0, atol=1e-9)  # in one order or in the other

    def test_nodes_are_shared_out_in_proportion(self) -> None:
        nodes = TwoSides.about(-2.0, 2.0, 12, 1.75)
        assert (nodes.low, nodes.high, nodes.left, nodes.right) == (-5.5, 1.5, 9, 3)
        assert TwoSides.about(-50.0, 1.0, 8, 1.75).right == 2
        assert TwoSides.about(50.0, 1.0, 8, 1.75).left == 2


def drawn(rng: np.random.Generator, records: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels and scores, which are log-odds in truth."""
    scores = rng.normal(-1.0, 1.5, records)
    return (rng.random(records) < 1 / (1 + np.exp(-scores))).astype(float), scores


def cells_of(labels: np.ndarray, scores: np.ndarray, nodes: TwoSides) -> np.ndarray:
    places, t = nodes.shares(scores)
    places = np.where(labels > 0, places + len(nodes), places)
    return np.bincount(places, 1 - t, 2 * len(nodes)) + np.bincount(places + 1, t, 2 * len(nodes))


def test_without_noise_metrics_are_those_of_the_records() -> None:
    labels, scores = drawn(np.random.default_rng(1), 200_000)
    nodes = TwoSides.about(-1.0, 1.5, 16, 1.75)
    estimates = ClassEstimates(cells_of(labels, scores, nodes), 0.0, len(labels), nodes)
    found = estimates.metrics(probabilities=True)
    chance, positive = 1 / (1 + np.exp(-scores)), scores > 0
    for name, value, tolerance in (
        ("accuracy", metrics.accuracy_score(labels, positive), 1e-9),
        ("recall", metrics.recall_score(labels, positive), 1e-9),
        ("precision", metrics.precision_score(labels, positive), 1e-9),
        ("specificity", metrics.recall_score(labels, positive, pos_label=0), 1e-9),
        ("positives", labels.mean(), 1e-9),
        ("auc", metrics.roc_auc_score(labels, scores), 1e-3),
        ("log_loss", metrics.log_loss(labels, chance), 1e-3),
        ("brier", metrics.brier_score_loss(labels, chance), 1e-3),
    ):
        assert found[name].value == pytest.approx(value, abs=tolerance), name
        assert found[name].low < value < found[name].high, name
    false, true = estimates.roc()
    assert false[0] == true[0] == 0.0
    assert false[-1] == true[-1] == 1.0
    assert np.isin(round(found["recall"].value, 9), true.round(9))
    for group in estimates.calibration():  # the scores are log-odds in truth
        assert abs(group.predicted - group.positives.value) < 0.05


SIMULATED, RECORDS_DRAWN, NOISE = 400, 1500, 25.0


def coverage(assumed: float) -> dict[str, float]:
    """How often intervals that take the noise for `assumed` hold the truth, over simulated releases."""
    rng, nodes = np.random.default_rng(5), TwoSides.about(-1.0, 1.5, 8, 1.75)
    labels, scores = drawn(rng, 400_000)
    truth = ClassEstimates(cells_of(labels, scores, nodes), 0.0, len(labels), nodes).metrics(probabilities=True)
    held = dict.fromkeys(truth, 0)
    for _ in range(SIMULATED):
        chosen = rng.integers(len(labels), size=RECORDS_DRAWN)
        cells = cells_of(labels[chosen], scores[chosen], nodes) + NOISE * rng.standard_normal(16)
        for name, metric in ClassEstimates(cells, assumed, RECORDS_DRAWN, nodes).metrics(probabilities=True).items():
            held[name] += metric.low <= truth[name].value <= metric.high
    return {name: count / SIMULATED for name, count in held.items()}


@pytest.mark.slow
def test_intervals_hold_the_truth() -> None:
    """400 intervals of coverage .93 hold it fewer than .85 times with a chance below 1e-8, for each of 8 metrics."""
    assert min(coverage(NOISE).values()) >= 0.85


@pytest.mark.slow
def test_intervals_that_forget_the_noise_do_not() -> None:
    """Negative control."""
    assert max(coverage(0.01).values()) < 0.85


def test_a_value_is_within_its_interval() -> None:
    """Also where shares are next to 1, noise takes the plain value beyond it, and intervals are finer than the grid."""
    rng, nodes = np.random.default_rng(8), TwoSides.about(0.0, 6.0, 12, 1.75)
    for records, noise in ((400, 6.0), (2000, 6.0), (20_000_000, 1.0)):
        for chance in (0.5, 0.9999):
            for _ in range(10):
                cells = np.zeros((2, 12))
                cells[0, 0], cells[1, -1] = records * (1 - chance), records * chance
                released = cells.ravel() + noise * rng.standard_normal(24)
                for name, found in ClassEstimates(released, noise, records, nodes).metrics(probabilities=True).items():
                    assert math.isnan(found.value) or found.low <= found.value <= found.high, name


@pytest.mark.parametrize(("times", "told"), [(1.0, False), (8.0, True)])
def test_scores_beyond_the_nodes_are_told(times: float, told: bool) -> None:
    """A model whose scores spread 8 times as far among the test people as among those of the fit, and one as it was."""
    labels, scores = drawn(np.random.default_rng(9), 20_000)
    for count, reach in ((8, 1.75), (12, 2.5), (40, 4.0)):
        nodes = TwoSides.about(-1.0, 1.5, count, reach)
        estimates = ClassEstimates(cells_of(labels, times * scores, nodes), 8.0, len(labels), nodes)
        beyond = estimates.beyond(estimates.metrics(probabilities=True))
        assert (beyond > 0.3) == told, count
        assert told or beyond == 0.0


def test_what_is_lost_in_the_noise_is_not_told() -> None:
    rng, nodes = np.random.default_rng(2), TwoSides.about(0.0, 1.0, 8, 1.75)
    found = ClassEstimates(300.0 * rng.standard_normal(16), 300.0, 1000, nodes).metrics(probabilities=True)
    assert math.isnan(found["auc"].value)
    assert found["auc"].width > 0.5


def test_records_that_were_not_counted_do_not_count() -> None:
    """A fifth of the records are null rows: then n is what the cells add up to."""
    labels, scores = drawn(np.random.default_rng(6), 8000)
    nodes = TwoSides.about(-1.0, 1.5, 8, 1.75)
    cells = cells_of(labels, scores, nodes)
    counts = Counts(cells, 5.0, 10_000)
    assert not counts.complete
    found = ClassEstimates(cells, 5.0, 10_000, nodes).metrics(probabilities=False)
    assert found["accuracy"].value == pytest.approx(((scores > 0) == (labels > 0)).mean(), abs=1e-9)
    assert "log_loss" not in found


def several_drawn(rng: np.random.Generator, records: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels and scores of four classes of unequal size, which are logarithms of shares in truth."""
    scores = rng.normal(0.0, 1.2, (records, 4)) + np.array([1.0, 0.5, 0.0, -1.5])
    return np.argmax(scores + rng.gumbel(size=scores.shape), axis=1), scores


def several_cells(labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """What a release has of these records, counted another way than by the query."""
    predicted, logs = scores.argmax(axis=1), scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    found = [np.bincount(labels * 4 + predicted, minlength=16).astype(float)]
    for line, chosen in zip(loss_lines(4), (labels == predicted, labels != predicted), strict=True):
        places, t = line.shares(-logs[np.arange(len(labels)), labels][chosen])
        found.append(np.bincount(places, 1 - t, len(line)) + np.bincount(places + 1, t, len(line)))
    return np.concatenate(found)


def several_metrics(estimates: SeveralEstimates) -> dict[str, Metric]:
    named = {f"{name} {k}": metric for k, each in enumerate(estimates.by_class()) for name, metric in each.items()}
    cells = {f"cell {k}": metric for k, metric in enumerate(m for row in estimates.confusion() for m in row)}
    return {**estimates.metrics(), **named, **cells}


@pytest.mark.slow
def test_several_classes() -> None:
    """Without noise metrics are those of the records; with noise intervals hold them, and without its part they do not.

    Of 150 intervals of coverage .93 fewer than .77 hold the truth with a chance below 1e-8, for each of 30 metrics.
    """
    rng, noise = np.random.default_rng(5), 15.0
    labels, scores = several_drawn(rng, 200_000)
    predicted = scores.argmax(axis=1)
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    truth = several_metrics(SeveralEstimates(several_cells(labels, scores), 0.0, len(labels), 4))
    assert truth["accuracy"].value == pytest.approx((labels == predicted).mean(), abs=1e-9)
    assert truth["log_loss"].value == pytest.approx(metrics.log_loss(labels, chances), abs=1e-4)
    for name, score in (("recall", metrics.recall_score), ("precision", metrics.precision_score)):
        found = [truth[f"{name} {k}"].value for k in range(4)]
        np.testing.assert_allclose(found, score(labels, predicted, average=None), atol=1e-9)
    held, without = dict.fromkeys(truth, 0), 0
    for _ in range(150):
        chosen = rng.integers(len(labels), size=2000)
        released = several_cells(labels[chosen], scores[chosen])
        released += noise * rng.standard_normal(len(released))
        for name, metric in several_metrics(SeveralEstimates(released, noise, 2000, 4)).items():
            held[name] += metric.low <= truth[name].value <= metric.high
        forgotten = SeveralEstimates(released, 0.01, 2000, 4).metrics()["log_loss"]
        without += forgotten.low <= truth["log_loss"].value <= forgotten.high
    assert min(held.values()) >= 0.77 * 150
    assert without < 0.77 * 150  # negative control


def test_several_classes_without_probabilities_are_counted_alone() -> None:
    query = ClassCells(SEVERAL, OneVsRest(get("hinge"), 3))
    assert (query.length, query.sensitivity("zero-out"), query.sensitivity("replace-one")) == (9, 1.0, math.sqrt(2.0))
    rows, labels = np.random.default_rng(4).normal(size=(RECORDS, FEATURES)), np.array([0, 1, 2, 0, 1, 2, 0])
    found = at(query, block_of("several", rows, labels))
    np.testing.assert_array_equal(found, at(QUERIES["several"], block_of("several", rows, labels))[:9])
    estimates = SeveralEstimates(found, 0.0, RECORDS, 3)
    assert set(estimates.metrics()) == {"accuracy"}
    assert estimates.complete
    assert len(estimates.nodes) == 0


def test_records_that_were_not_counted_do_not_count_in_any_class() -> None:
    labels, scores = several_drawn(np.random.default_rng(6), 8000)
    estimates = SeveralEstimates(several_cells(labels, scores), 5.0, 10_000, 4)
    assert not estimates.complete
    assert estimates.accuracy().value == pytest.approx((labels == scores.argmax(axis=1)).mean(), abs=1e-9)


def numbers_of(labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    found = []
    residuals, every = np.minimum(np.abs(predictions - labels), 1.0), np.ones(len(labels))
    for line, values, parts in (
        (RESIDUALS, residuals, every),
        (evaluation_queries.LABELS, labels, 1 - residuals**2),
        (evaluation_queries.LABELS, labels, residuals**2),
    ):
        places, t = line.shares(values)
        found.append(np.bincount(places, parts * (1 - t), len(line)) + np.bincount(places + 1, parts * t, len(line)))
    return np.concatenate([*found, [labels.sum(), (labels**2).sum()]])


@pytest.mark.slow
def test_errors_of_a_regression() -> None:
    """Without noise they are those of the records; with noise intervals hold them, and without its part they do not.

    Coverage of .93 falls below .85 of 300 with a chance below 1e-6 for each of 3 metrics.
    """
    rng = np.random.default_rng(7)
    labels = np.clip(0.2 + 0.3 * rng.standard_normal(200_000), -1, 1)
    predictions = 0.7 * labels + 0.06 + 0.1 * rng.standard_normal(200_000)
    truth = {
        "mean_squared_error": 4 * metrics.mean_squared_error(labels, predictions),
        "r2": metrics.r2_score(labels, predictions),
        "mean_absolute_error": 2 * metrics.mean_absolute_error(labels, predictions),
    }
    found = NumberEstimates(numbers_of(labels, predictions), 0.0, 200_000, 2.0).metrics()
    for name, value in truth.items():
        assert found[name].value == pytest.approx(value, rel=0.01), name
    held = {name: np.zeros(2) for name in truth}
    for _ in range(300):
        chosen = rng.integers(len(labels), size=2000)
        released = numbers_of(labels[chosen], predictions[chosen]) + 8.0 * rng.standard_normal(26)
        for place, assumed in enumerate((8.0, 0.01)):
            for name, metric in NumberEstimates(released, assumed, 2000, 2.0).metrics().items():
                held[name][place] += metric.low <= truth[name] <= metric.high
    assert min(count[0] for count in held.values()) >= 0.85 * 300
    assert min(count[1] for count in held.values()) < 0.85 * 300


def test_products_of_parts_are_exact() -> None:
    """They are on the grid, none below 0, and those of a record add up to 1, wherever its label and residual are."""
    rng = np.random.default_rng(10)
    ends = np.array([0.0, 2.0**-40, 0.5, 1.0 - 2.0**-40, 1.0])
    rows = block_of("numbers", np.full((1, FEATURES), 0.2), np.ones(1))
    for t, part in [*itertools.product(ends, ends), *rng.random((200, 2))]:
        found = pair_cells(rows, np.array([3]), np.array([t]), np.array([part]), 8)
        assert (found >= 0).all()
        assert found.sum() == 1.0
        assert (found * 2.0**rows.sum_bits % 1 == 0).all()
        expected = np.outer([1 - part, part], [1 - t, t])
        np.testing.assert_allclose(found[[[3, 4], [11, 12]]], expected, atol=4 * 2.0**-rows.sum_bits)


@pytest.mark.parametrize("kind", QUERIES)
@pytest.mark.parametrize("relation", RELATIONS)
def test_a_plan_costs_what_was_asked_for_also_by_rows(kind: str, relation: Relation) -> None:
    """One release, of one sensitivity, at every party; the world sees the sum alone."""
    central = plan_of(kind, relation=relation)
    rows = plan_of(kind, relation=relation, split="rows", parties=(("anna", 4), ("ben", 3)))
    assert central.releases == rows.releases
    assert query_of(rows, "cells", "ben").sensitivity(relation) == query_of(central, "cells").sensitivity(relation)
    assert epsilons_of(central)["coordinator"] == pytest.approx(1.0, rel=1e-3)
    assert epsilons_of(rows)["coordinator"] == epsilons_of(central)["coordinator"] <= 1.0
    assert epsilons_of(rows)["world"] < epsilons_of(central)["world"]


def test_nodes_follow_the_noise() -> None:
    """Where it is small the end nodes are so far out that next to no score counts as them."""
    for records, count, reach in ((100, 8, 1.75), (10_000, 12, 2.5), (60_000, 40, 4.0), (1_000_000, 64, 5.0)):
        changes = problem("classes", parties=(("anna", records),))
        subject = Subject(np.ones(4), (0.5, 2.0))
        numbers = algorithms.plan_by(EvaluatedClasses(), changes, subject, run="run", coin="coin").numbers
        assert numbers.left + numbers.right == count
        assert (numbers.low, numbers.high) == (0.5 - 2 * reach, 0.5 + 2 * reach)


def test_no_solver_is_called_evaluation() -> None:
    """Plans name it; fits cannot, and it is in no list of solvers."""
    assert "evaluation" not in algorithms.SOLVERS
    assert all(form.name != "evaluation" for form in algorithms.every_form())
    with pytest.raises(InputError, match="solver='evaluation' is unknown"):
        algorithms.check("evaluation", get("logistic"), "central")
    plan = plan_of("classes")
    assert algorithms.of(Plan.from_json(plan.to_json())).title == EvaluatedClasses.title


def test_a_plan_with_another_model_or_less_noise_is_refused() -> None:
    plan = plan_of("classes")
    short = plan.model_copy(update={"numbers": plan.numbers.model_dump() | {"weights": (1.0,)}})
    with pytest.raises(RefusedError, match="a model of 1 weights for rows of 4 columns"):
        query_of(short, "cells")
    several = plan_of("several")
    short = several.model_copy(update={"numbers": several.numbers.model_dump() | {"weights": (1.0,) * 8}})
    with pytest.raises(RefusedError, match="a model of 8 weights for rows of 4 columns and 3 classes"):
        query_of(short, "cells")
    with pytest.raises(ValueError, match="weights"):
        plan.model_copy(update={"numbers": plan.numbers.model_dump() | {"weights": (math.nan,) * 4}})
    cheap = plan.release("cells").model_copy(update={"charged_zero_out": 0.5})
    with pytest.raises(LeakError, match="more sensitive"):
        cheap.check(query_of(plan, "cells"), RECORDS)


def test_a_metric_has_a_width() -> None:
    assert Metric(0.5, 0.25, 1.0).width == 0.75
