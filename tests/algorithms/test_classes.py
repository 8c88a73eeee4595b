"""Several classes: bounds on neighbours, exact sums, and the model that comes out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression

import sottovoce as sv
from plans import PLANS, plan_for, small_problem
from sottovoce import algorithms, losses
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.data.cells import class_places
from sottovoce.data.matrix import clip_rows, rows_at_once
from sottovoce.errors import InputError
from sottovoce.estimators import model_file
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.queries.sums import ClassCounts, ClassesSum
from support import at, handle, plan_of

FEATURES, CLASSES, RECORDS = 3, 4, 7
SOFTMAX = losses.get("softmax", classes=float(CLASSES))
HINGES = losses.OneVsRest(losses.get("hinge"), CLASSES)
WEIGHTS = (0.25, 1.0, 0.5, 1e-3)
NUMBERS: dict[str, Any] = {"bounds": Bounds.declare(row_norm=1.0, label_bound=1.0)}


def problem(**changes: Any) -> Problem:
    softmax = Named(name="softmax", parameters={"classes": float(CLASSES)})
    return small_problem(**{"loss": softmax, "classes": tuple(range(CLASSES)), **changes})


PLAN = plan_of(problem(), "whitened", rounds=2).model_copy(update={"releases": ()})  # every round is a first one


def test_a_weight_above_1_passes_no_bound() -> None:
    """A plan has none; but what a record adds is cut, whatever its weight is."""
    query = ClassesSum(FEATURES, 0.3, losses.weighted(HINGES, (9.0, 9.0, 9.0, 9.0)))
    block = Block.prepare(np.eye(1, FEATURES), np.ones(1), problem(fit_intercept=False).preparation)
    for scale in (0.0, 1.0, 1e3):
        weights = scale * np.random.default_rng(2).standard_normal(query.length)
        assert np.linalg.norm(at(query, block, weights=weights)) <= query.sensitivity("zero-out")
    with pytest.raises(ValueError, match="class_weight"):
        problem(class_weight=(9.0, 1.0, 1.0, 1.0))


@pytest.mark.parametrize("loss", [SOFTMAX, HINGES, losses.weighted(SOFTMAX, WEIGHTS)])
@pytest.mark.parametrize("most", [1e-100, 0.1, 1.0, math.sqrt(2), 1e100])
def test_a_row_of_slopes_is_at_most_1_long_whatever_the_scores_are(loss: Any, most: float) -> None:
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((400, CLASSES)) * 10.0 ** rng.integers(-5, 5, (400, 1))
    scores[:5] = [[math.nan] * 4, [math.inf] * 4, [1e308, -1e308, 0, 0], [1e300] * 4, [-math.inf, 0, 0, 0]]
    for label in range(CLASSES):
        slopes = clip_rows(loss, most, scores, np.full(400, float(label)))
        assert np.all(np.linalg.norm(slopes, axis=1) <= 1.0)


def test_at_the_shares_of_the_classes_a_cut_leaves_no_slope() -> None:
    """Rows of all labels are scaled alike, so the right shares stay right however short they are cut."""
    labels = np.repeat(np.arange(4.0), [50, 30, 15, 5])
    scores = np.tile(np.log([0.5, 0.3, 0.15, 0.05]), (100, 1))
    assert np.abs(clip_rows(SOFTMAX, 0.2, scores, labels).sum(axis=0)).max() < 1e-9
    longest = np.linalg.norm(SOFTMAX.derivative(scores, labels), axis=1, keepdims=True)
    alone = SOFTMAX.derivative(scores, labels) / np.maximum(longest, 0.2)  # negative control: each on its own
    assert np.abs(alone.sum(axis=0)).max() > 1.0


def people(count: int = 3000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (count, 4))
    scores = 3 * X @ np.array([[1, -1, 0], [0, 1, -1], [1, 0, -1], [0, 0, 0.0]]) + [0.5, 0.0, -1.0]
    return X, np.array(["a", "b", "c"])[(scores + rng.gumbel(size=scores.shape)).argmax(axis=1)]


@pytest.mark.parametrize("alpha", [0.0, 0.01])
def test_without_privacy_it_is_multinomial_regression(alpha: float) -> None:
    X, y = people()
    model = sv.PrivateLogisticRegression(math.inf, alpha=alpha).fit(X, y)
    other = LogisticRegression(C=1 / (alpha * len(y)) if alpha else np.inf, max_iter=5000, tol=1e-10).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X), other.predict_proba(X), atol=1e-4)
    assert model.coef_.shape == (3, 4)
    assert model.intercept_.shape == (3,)
    assert model.classes_.tolist() == ["a", "b", "c"]


@pytest.mark.parametrize("parties", [1, 3])
@pytest.mark.parametrize("more", [{}, {"l1_ratio": 1, "alpha": 1e-3}, {"fit_intercept": False}])
def test_with_a_large_budget_it_is_near_that(parties: int, more: dict[str, Any]) -> None:
    X, y = people()
    given: dict[str, Any] = {"entry_bound": 1.0, "classes": ("a", "b", "c"), "insecure_seed": 1, **more}
    rows = sv.Federation.by_rows([(X[k::parties], y[k::parties]) for k in range(parties)])
    model = sv.PrivateLogisticRegression(10.0, **given).fit(rows)
    best = sv.PrivateLogisticRegression(math.inf, classes=("a", "b", "c"), **more).fit(X, y)
    loss = [
        -np.log(each.predict_proba(X)[np.arange(len(y)), np.searchsorted(model.classes_, y)]).mean()
        for each in (model, best)
    ]
    assert loss[0] < loss[1] + 0.03
    assert (model.predict(X) == y).mean() > (best.predict(X) == y).mean() - 0.02
    assert model.privacy_.epsilon <= 10.0
    assert model.plan_.form == "classes"


@pytest.mark.slow
def test_where_noise_rules_the_shares_are_left() -> None:
    X, _ = people(600)
    y = np.repeat([0, 1, 2], [400, 150, 50])
    given: dict[str, Any] = {"entry_bound": 1.0, "classes": (0, 1, 2), "solver": "whitened"}

    def loss(seed: int) -> float:
        model = sv.PrivateLogisticRegression(0.3, insecure_seed=seed, **given).fit(X, y)
        return float(-np.log(model.predict_proba(X)[np.arange(600), y]).mean())

    constant = -sum(p * math.log(p) for p in (400 / 600, 150 / 600, 50 / 600))
    assert np.mean([loss(seed) for seed in range(10)]) < constant + 0.05  # equal shares: + 0.27


def test_a_model_file_has_a_row_for_each_class(tmp_path: Path) -> None:
    X, y = people(300)
    model = sv.PrivateLogisticRegression(5.0, entry_bound=1.0, insecure_seed=0).fit(X, y)
    model.save(tmp_path / "model.json")
    again = model_file.load_model(tmp_path / "model.json")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert np.array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(np.exp(model.predict_log_proba(X)).sum(axis=1).round(12), 1.0)
    assert len(model.selected_features_) == 4


def test_a_plan_whose_loss_does_not_fit_its_classes_is_none() -> None:
    for changes in (
        {"classes": (0, 1, 2)},
        {"classes": (0, 1)},
        {"classes": None},
        {"loss": Named(name="squared"), **NUMBERS},
        {"loss": Named(name="softmax", parameters={"classes": 3.0})},
    ):
        with pytest.raises(ValueError, match="does not fit classes"):
            problem(**changes)
    with pytest.raises(InputError, match="whole number"):
        losses.get("softmax", classes=2.5)


def test_a_class_bends_as_much_as_its_share_where_scores_are_equal() -> None:
    shares = np.array([0.6, 0.3, 0.1])
    np.testing.assert_allclose(SOFTMAX.mean_curvatures(shares, np.zeros(3)), shares)
    assert np.all(SOFTMAX.mean_curvatures(shares, np.full(3, 4.0)) < shares)


@pytest.mark.parametrize("name", PLANS)
def test_a_party_serves_no_loss_of_another_number_of_scores(name: str) -> None:
    """A form of several classes with labels of two, or of numbers, or the other way round: refused, rows unseen.

    So are class weights where a form takes none.
    """
    form, split, more = PLANS[name]
    plan = plan_for(form, split, **more)
    two = {"loss": {"name": "logistic"}, "classes": (0, 1)}
    number = {"loss": {"name": "squared"}, "classes": None, "bounds": Bounds.declare(row_norm=1.0, label_bound=1.0)}
    three = {"loss": {"name": "softmax", "parameters": {"classes": 3.0}}, "classes": (0, 1, 2)}
    rest = {"loss": {"name": "hinge"}, "classes": (0, 1, 2)}
    weighted = () if form.weighted or "count" in form.kinds else ({**two, "class_weight": (0.5, 1.0)},)
    for changes in ((two, number) if form.several else (three, rest)) + weighted:
        fields = {**plan.model_dump(), **changes}
        forged = Plan.model_validate(fields)
        assert form is algorithms.of(forged)
        X, y = np.zeros((6, forged.part(forged.names[0]).stop)), np.array([0, 1, 0, 1, 0, 1])
        party = sv.Party(forged.names[0], X, y)
        frame = Frame("plan", 1, forged.digest, text=forged.to_json())
        assert decode(handle(party, encode(frame)).data).kind == "refuse"


def test_counts_of_labels_that_are_no_places_are_counts() -> None:
    """Nothing is raised whatever the labels are: an error would tell of one."""
    block = Block.prepare(
        np.eye(3), np.array([-1.0, 0.3, 1.0]), problem(classes=None, loss=Named(name="squared"), **NUMBERS).preparation
    )
    np.testing.assert_array_equal(at(ClassCounts(1), block, plan=PLAN), [0.0])


@pytest.mark.parametrize("classes", [(0, 1, math.nan), (math.nan, 1)])
def test_a_nan_is_no_class(classes: tuple[Any, ...]) -> None:
    """A column of numbers and one with a text in it would match it differently."""
    loss = Named(name="softmax", parameters={"classes": 3.0}) if len(classes) == 3 else Named(name="logistic")
    with pytest.raises(ValueError, match="neither a text nor a finite number"):
        problem(classes=classes, loss=loss)
    for labels in (np.array([math.nan, 1.0]), np.array([math.nan, "x"], dtype=object)):
        assert (class_places(labels, [math.nan]) == -1).all()


def test_rows_of_many_scores_come_in_pieces() -> None:
    """A hundred numbers for each of a million rows would take as much memory as the coordinator says."""
    count = 2 * 16 * rows_at_once(100) + 5
    rows = sp.random_array((count, FEATURES), density=0.5, rng=np.random.default_rng(0), format="csr")
    recipe = problem(parties=(("anna", count),)).preparation
    block = Block.prepare(rows, np.arange(count) % CLASSES, recipe)
    pieces = list(block.chunks(scores=100))
    assert [len(labels) for _, labels in pieces] == [16 * rows_at_once(100)] * 2 + [5]
    assert sum(abs(piece).sum() for piece, _ in pieces) == abs(block.rows).sum()
    assert len(list(block.chunks())) == 1
    dense = Block.prepare(rows.toarray(), np.arange(count) % CLASSES, recipe)
    assert max(len(labels) for _, labels in dense.chunks(scores=100)) == rows_at_once(100)
    assert len(list(block.take(np.zeros(0, dtype=np.int64)).chunks(scores=100))) == 1
