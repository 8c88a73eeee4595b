"""Several classes one against the rest, and class weights: the models that come out, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import sottovoce as sv
from sottovoce.errors import InputError
from sottovoce.estimators import model_file
from sottovoce.losses import OneVsRest, get
from sottovoce.plan.plan import Plan

NAMES = ("a", "b", "c")
GIVEN: dict[str, Any] = {"entry_bound": 1.0, "classes": NAMES, "insecure_seed": 1}
WEIGHTS = {"a": 1.0, "b": 2.0, "c": 10.0}


def people(count: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (count, 4))
    scores = 3 * X @ np.array([[1, -1, 0], [0, 1, -1], [1, 0, -1], [0, 0, 0.0]]) + [0.5, 0.0, -1.0]
    return X, np.array(NAMES)[(scores + rng.gumbel(size=scores.shape)).argmax(axis=1)]


X, Y = people()


def objective(model: Any, loss: str = "smoothed_hinge") -> float:
    return float(OneVsRest(get(loss), 3).value(model.decision_function(X), np.searchsorted(NAMES, Y)).mean())


@pytest.mark.parametrize("solver", ["whitened", "gradient"])
@pytest.mark.parametrize("alpha", [0.0, 0.01])
def test_without_privacy_each_class_is_told_from_the_rest(solver: str, alpha: float) -> None:
    model = sv.PrivateLinearSVC(math.inf, alpha=alpha, solver=solver).fit(X, Y)
    assert (model.coef_.shape, model.intercept_.shape) == ((3, 4), (3,))
    for k, name in enumerate(NAMES):
        alone = sv.PrivateLinearSVC(math.inf, alpha=alpha, solver=solver).fit(X, np.equal(Y, name))
        np.testing.assert_allclose(model.coef_[k], alone.coef_[0], atol=1e-4)
        np.testing.assert_allclose(model.intercept_[k], alone.intercept_[0], atol=1e-4)
        np.testing.assert_allclose(model.decision_function(X)[:, k], alone.decision_function(X), atol=1e-3)
    np.testing.assert_array_equal(model.predict(X), np.array(NAMES)[model.decision_function(X).argmax(axis=1)])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*has not converged")
def test_a_loss_with_a_kink_is_served_without_privacy_by_gradient_alone() -> None:
    given: dict[str, Any] = {"loss": "hinge", "solver": sv.solvers.Gradient(rounds=50)}
    model = sv.PrivateLinearSVC(math.inf, **given).fit(X, Y)
    for k, name in enumerate(NAMES):
        alone = sv.PrivateLinearSVC(math.inf, **given).fit(X, np.equal(Y, name))
        np.testing.assert_allclose(model.coef_[k], alone.coef_[0], atol=1e-9)
    assert sv.PrivateLinearSVC(math.inf, loss="hinge").fit(X[:50], Y[:50]).plan_.algorithm == "gradient"
    with pytest.raises(InputError, match="needs a smooth loss and 'hinge' is not"):
        sv.PrivateLinearSVC(math.inf, loss="hinge", solver="whitened").fit(X, Y)


GRADIENT = sv.solvers.Gradient(rounds=300)


@pytest.mark.parametrize(
    ("solver", "parties", "more"), [("whitened", 1, 0.03), ("whitened", 2, 0.03), (GRADIENT, 2, 0.1)]
)
def test_with_a_large_budget_one_vs_rest_is_near_that(solver: Any, parties: int, more: float) -> None:
    rows = sv.Federation.by_rows([(X[k::parties], Y[k::parties]) for k in range(parties)])
    model = sv.PrivateLinearSVC(10.0, solver=solver, **GIVEN).fit(rows)
    best = sv.PrivateLinearSVC(math.inf, classes=NAMES).fit(X, Y)
    assert objective(model) < objective(best) + more
    assert (model.predict(X) == Y).mean() > (best.predict(X) == Y).mean() - 0.03
    assert model.privacy_.epsilon <= 10.0
    assert model.plan_.form == "classes"


@pytest.mark.slow
def test_the_softmax_by_gradient() -> None:
    """Without privacy it is that of `whitened`; with a large budget it is near it, in one place and by rows."""
    best = sv.PrivateLogisticRegression(math.inf, solver="whitened").fit(X, Y)
    same = sv.PrivateLogisticRegression(math.inf, solver="gradient").fit(X, Y)
    np.testing.assert_allclose(same.predict_proba(X), best.predict_proba(X), atol=1e-3)

    def loss(model: Any) -> float:
        return float(-np.log(model.predict_proba(X)[np.arange(len(Y)), np.searchsorted(NAMES, Y)]).mean())

    for rows in ((X, Y), (sv.Federation.by_rows([(X[::2], Y[::2]), (X[1::2], Y[1::2])]),)):
        model = sv.PrivateLogisticRegression(10.0, solver=GRADIENT, alpha=1e-4, **GIVEN).fit(*rows)
        assert loss(model) < loss(best) + 0.05
        assert model.plan_.form == "classes"


@pytest.mark.parametrize("solver", ["whitened", "newton", "gradient"])
def test_weights_of_two_classes_are_those_of_scikit_learn(solver: str) -> None:
    y = (Y == "c").astype(int)
    model = sv.PrivateLogisticRegression(math.inf, class_weight={1: 5.0}, alpha=0.01, solver=solver).fit(X, y)
    other = LogisticRegression(C=1 / (5 * 0.01 * len(y)), class_weight={1: 5.0}, tol=1e-10, max_iter=5000).fit(X, y)
    np.testing.assert_allclose(model.coef_, other.coef_, atol=1e-4)
    np.testing.assert_allclose(model.intercept_, other.intercept_, atol=1e-4)
    assert model.plan_.class_weight == (0.2, 1.0)


@pytest.mark.parametrize("solver", ["whitened", "gradient"])
def test_and_of_several(solver: str) -> None:
    model = sv.PrivateLogisticRegression(math.inf, class_weight=WEIGHTS, solver=solver).fit(X, Y)
    other = LogisticRegression(C=np.inf, class_weight=WEIGHTS, tol=1e-10, max_iter=5000).fit(X, Y)
    np.testing.assert_allclose(model.predict_proba(X), other.predict_proba(X), atol=2e-3)


@pytest.mark.parametrize("solver", ["whitened", "newton", "gradient", "sgd"])
def test_with_a_large_budget_weights_count(solver: str) -> None:
    """They lift the rare class; without them it is seldom said."""
    y, given = (Y == "c").astype(int), {**GIVEN, "classes": (0, 1), "solver": solver}
    model = sv.PrivateLogisticRegression(10.0, class_weight={0: 1, 1: 6}, **given).fit(X, y)
    plain = sv.PrivateLogisticRegression(10.0, **given).fit(X, y)
    best = sv.PrivateLogisticRegression(math.inf, class_weight={0: 1, 1: 6}, classes=(0, 1)).fit(X, y)
    found, lifted, without = (each.predict(X).mean() for each in (model, best, plain))
    assert abs(found - lifted) < 0.12
    assert found > without + 0.1


def test_with_a_large_budget_weights_of_several_classes_are_near_those_without_privacy() -> None:
    weight = np.array([WEIGHTS[label] for label in Y])

    def loss(model: Any) -> float:
        return float((weight * -model.predict_log_proba(X)[np.arange(len(Y)), np.searchsorted(NAMES, Y)]).mean())

    model = sv.PrivateLogisticRegression(10.0, class_weight=WEIGHTS, **GIVEN).fit(X, Y)
    best = sv.PrivateLogisticRegression(math.inf, class_weight=WEIGHTS).fit(X, Y)
    plain = sv.PrivateLogisticRegression(math.inf).fit(X, Y)
    assert loss(model) < loss(best) + 0.25 * (loss(plain) - loss(best))


def test_a_model_of_one_vs_rest_is_kept_and_handed_on(tmp_path: Path) -> None:
    model = sv.PrivateLinearSVC(5.0, class_weight=WEIGHTS, **GIVEN).fit(X, Y)
    model.save(tmp_path / "model.json")
    again = model_file.load_model(tmp_path / "model.json")
    np.testing.assert_array_equal(again.decision_function(X), model.decision_function(X))
    assert again.class_weight == WEIGHTS
    assert again.plan_.class_weight == (0.1, 0.2, 1.0)
    plain = model.to_sklearn()
    assert type(plain).__name__ == "LinearSVC"
    np.testing.assert_allclose(plain.decision_function(X), model.decision_function(X), atol=1e-9)
    np.testing.assert_array_equal(plain.predict(X), model.predict(X))
    assert not hasattr(model, "predict_proba")
    assert model.privacy_.public["class_weight"] == [0.1, 0.2, 1.0]


def test_equal_weights_are_none_and_a_plan_without_them_says_nothing_of_them() -> None:
    rows = sv.Federation.by_rows([(X, Y)])
    plans = [
        sv.PrivateLogisticRegression(class_weight=weights, **GIVEN).plan(rows)
        for weights in (None, {"a": 3, "b": 3, "c": 3}, WEIGHTS)
    ]
    assert [plan.class_weight for plan in plans] == [(), (), (0.1, 0.2, 1.0)]
    assert ["class_weight" in plan.to_json() for plan in plans] == [False, False, True]
    assert all(Plan.from_json(plan.to_json()) == plan for plan in plans)
    assert plans[2].model_copy(update={"class_weight": (0.1, 0.3, 1.0)}).digest != plans[2].digest


@pytest.mark.parametrize(
    "weights",
    [
        (0.5, 0.5, 0.5),
        (1.0, 2.0, 1.0),
        (1.0, 0.0, 1.0),
        (1.0, -1.0, 1.0),
        (1.0, 1.0),
        (1.0, math.nan, 1.0),
        ("x", 1, 1),
    ],
)
def test_a_plan_whose_weights_are_no_weights_is_none(weights: Any) -> None:
    plan = sv.PrivateLogisticRegression(**GIVEN).plan(sv.Federation.by_rows([(X, Y)]))
    with pytest.raises(ValueError, match="class_weight"):
        Plan.model_validate({**plan.model_dump(), "class_weight": weights})


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ("balanced", "would take the sizes of the classes from the data"),
        ([1, 2, 3], "must be a mapping"),
        ({"a": 1, "z": 2}, "must name classes, each once; they are"),
        ({"a": 0}, "positive finite numbers"),
        ({"a": math.inf}, "positive finite numbers"),
        ({"a": "2"}, "positive finite numbers"),
    ],
)
def test_bad_weights_are_refused_with_the_reason(weights: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        sv.PrivateLinearSVC(class_weight=weights, **GIVEN).fit(X, Y)


@pytest.mark.parametrize("solver", ["cd", "greedy-cd", "scd", "scd-primal", "scd-sequential"])
def test_solvers_that_take_no_weights_say_who_does(solver: str) -> None:
    y = (Y == "c").astype(int)
    model = sv.PrivateLogisticRegression(alpha=0.1, class_weight={1: 2}, classes=(0, 1), entry_bound=1.0, solver=solver)
    with pytest.raises(InputError, match="takes no class_weight; solvers that fit: newton, gradient, sgd, whitened"):
        model.fit(X, y)
    assert model.set_params(solver="auto").fit(X, y).plan_.algorithm == "whitened"


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["newton", "gradient", "whitened"])
def test_by_secure_columns_weights_count(solver: str) -> None:
    """A class that weighs more is predicted more often; the noise of the sums is far smaller than that."""
    y, predicted = (Y == "c").astype(int), []
    for weight in (0.1, 10.0):
        columns = sv.Federation.by_columns([X[:, :2], X[:, 2:]], y, products="secure")
        model = sv.PrivateLogisticRegression(50.0, class_weight={1: weight}, classes=(0, 1), entry_bound=1.0)
        predicted.append(model.set_params(solver=solver, insecure_seed=1).fit(columns).predict(X).mean())
    assert predicted[0] < y.mean() < predicted[1]


def test_by_columns_other_solvers_take_no_weights_and_nobody_several_classes() -> None:
    y = (Y == "c").astype(int)
    columns = sv.Federation.by_columns([X[:, :2], X[:, 2:]], y, products="none")
    for solver in ("score", "admm"):
        model = sv.PrivateLogisticRegression(class_weight={1: 2}, classes=(0, 1), entry_bound=1.0, solver=solver)
        with pytest.raises(InputError, match="takes no class_weight"):
            model.fit(columns)
    with pytest.raises(InputError, match="two classes apart, not 3"):
        sv.PrivateLinearSVC(**GIVEN).fit(sv.Federation.by_columns([X[:, :2], X[:, 2:]], Y))


@pytest.mark.parametrize("solver", ["whitened", "gradient"])
def test_a_ball_is_for_two_classes(solver: str) -> None:
    with pytest.raises(InputError, match="radius: balls are for two classes"):
        sv.PrivateLinearSVC(radius=1.0, solver=solver, **GIVEN).fit(X, Y)


@pytest.mark.filterwarnings("ignore::sottovoce.errors.MisfitWarning")
def test_a_label_that_is_no_class_counts_nothing_whatever_the_weights_are() -> None:
    """Neither in the sums of weights, nor in a gradient: a null row is one."""
    odd = np.where(np.arange(len(Y)) % 10 == 0, "z", Y)
    rows = np.where(np.arange(len(Y))[:, None] % 10 == 0, math.nan, X)
    for given in ({"classes": NAMES, "class_weight": WEIGHTS}, {"classes": ("a", "b"), "class_weight": {"a": 5}}):
        model = sv.PrivateLogisticRegression(2.0, entry_bound=1.0, insecure_seed=3, **given)
        found = [model.fit(*data).coef_.copy() for data in ((X, odd), (rows, Y))]
        np.testing.assert_array_equal(*found)
