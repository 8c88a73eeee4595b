"""`PrivateOrdinalClassifier`: the maximum-likelihood fit, true thresholds, the order of classes, what is refused."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

import sottovoce as sv
from sottovoce.app import page
from sottovoce.errors import InputError
from sottovoce.losses import get

GRADES = ("mild", "moderate", "severe")


def people(count: int, seed: int = 0, *, binary: bool = False) -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(seed)
    X, w, t = rng.uniform(-1, 1, (count, 4)), np.array([2.0, -1.0, 0.5, 0.0]), np.array([-1.5, 1.0])
    if binary:
        X[:, 0], w = rng.random(count) < 0.1, np.array([4.0, 0.5, 0.0, 0.0])
    s = X @ w
    places = (s[:, None] + rng.logistic(size=(count, 1)) > t).sum(axis=1)
    below = np.column_stack([np.zeros(count), 1 / (1 + np.exp(s[:, None] - t)), np.ones(count)])
    return X, np.array(GRADES)[places], np.diff(below, axis=1), (w, t)


def model(epsilon: float = 1.0, **more: Any) -> Any:
    return sv.PrivateOrdinalClassifier(epsilon, 1e-6, classes=GRADES, entry_bound=1.0, **more)


def test_without_privacy_it_is_the_maximum_likelihood_fit() -> None:
    X, y, _, _ = people(800)
    found = model(math.inf).fit(X, y)
    places, loss = np.searchsorted(GRADES, y).astype(float), get("ordinal", classes=3.0)

    def objective(at: np.ndarray) -> float:
        u = np.column_stack([X @ at[:4], np.full(len(y), at[4]), np.full(len(y), at[4] + math.exp(at[5]))])
        return float(loss.value(u, places).sum())

    best = minimize(objective, np.zeros(6), method="BFGS", options={"gtol": 1e-8}).x
    np.testing.assert_allclose(found.coef_[0], best[:4], atol=1e-5)
    np.testing.assert_allclose(found.thresholds_, [best[4], best[4] + math.exp(best[5])], atol=1e-5)
    np.testing.assert_array_equal(found.intercept_, -found.thresholds_)
    parts = [(X[k::2], y[k::2]) for k in range(2)]
    split = model(math.inf).fit(sv.Federation.by_rows(parts))
    np.testing.assert_allclose(split.coef_, found.coef_, atol=1e-8)


@pytest.mark.parametrize("binary", [False, True])
def test_with_much_signal_probabilities_are_the_true_ones(*, binary: bool) -> None:
    """Also of one strong column that few have: thresholds are not taken from normal scores."""
    X, y, true, (w, t) = people(60_000, binary=binary)
    found = model(8.0, insecure_seed=1).fit(X, y)
    assert np.abs(found.predict_proba(X) - true).mean() < 0.01  # GRADES are sorted
    np.testing.assert_allclose(found.coef_[0], w, atol=0.15)
    np.testing.assert_allclose(found.thresholds_, t, atol=0.06)


def test_with_little_budget_it_is_no_worse_than_the_constant() -> None:
    X, y, _, _ = people(2000)
    shares = np.bincount(np.searchsorted(GRADES, y)) / len(y)
    constant = -(shares * np.log(shares)).sum()
    losses = []
    for seed in range(8):
        logs = model(0.05, insecure_seed=seed).fit(X, y).predict_log_proba(X)
        losses.append(-logs[np.arange(len(y)), np.searchsorted(GRADES, y)].mean())
    assert np.mean(losses) < constant + 0.03


def test_classes_are_sorted_and_their_order_is_kept_apart(tmp_path: Path) -> None:
    X, y, _, _ = people(3000)
    names = np.array(["low", "middle", "high"])
    y = names[np.searchsorted(GRADES, y)]
    found = sv.PrivateOrdinalClassifier(3.0, 1e-6, classes=tuple(names), entry_bound=1.0, insecure_seed=0).fit(X, y)
    assert found.classes_.tolist() == ["high", "low", "middle"]
    assert found.order_.tolist() == names.tolist()
    shares = found.predict_proba(X)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    low = shares[:, found.classes_.tolist().index("low")]
    np.testing.assert_allclose(low, 1 / (1 + np.exp(X @ found.coef_[0] - found.thresholds_[0])), atol=1e-9)
    np.testing.assert_array_equal(found.predict(X), found.classes_[shares.argmax(axis=1)])
    assert found.score(X, y) == pytest.approx((found.predict(X) == y).mean())
    found.save(tmp_path / "model.json")
    again = sv.load_model(tmp_path / "model.json")
    np.testing.assert_array_equal(again.predict_proba(X), shares)
    np.testing.assert_array_equal(again.thresholds_, found.thresholds_)
    assert again.order_.tolist() == names.tolist()


def test_of_a_table_the_levels_of_the_label_are_the_order() -> None:
    X, y, _, _ = people(2000)
    table = {"a": X[:, 0], "b": X[:, 1], "grade": y}
    columns = {"a": {"range": (-1, 1)}, "b": {"range": (-1, 1)}, "grade": {"levels": list(GRADES)}}
    schema = sv.Schema(columns, label="grade")
    found = sv.PrivateOrdinalClassifier(3.0, schema=schema, insecure_seed=0).fit(table)
    assert found.order_.tolist() == list(GRADES)
    assert found.coef_.shape == (1, 2)
    assert found.shapes_["a"].effect.shape == (2,)
    assert len(found.plot_shapes(odds=True).axes) == 2
    (table,) = [part for part in page._describe_coefficients(found) if isinstance(part, page.CardTable)]
    assert [row[0] for row in table.rows[-2:]] == ["intercept, above mild", "intercept, above moderate"]
    with pytest.raises(InputError, match="no model of ordered classes"):
        found.to_sklearn()


def test_evaluated_by_the_form_of_several_classes() -> None:
    X, y, _, _ = people(6000)
    found = model(3.0, insecure_seed=0).fit(X[:3000], y[:3000])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exact = sv.evaluate(found, X[3000:], y[3000:], epsilon=math.inf, by=X[3000:, 0] > 0, groups=(0, 1))
    logs = found.predict_log_proba(X[3000:])
    loss = -logs[np.arange(3000), np.searchsorted(GRADES, y[3000:])].mean()
    assert exact["accuracy"].value == pytest.approx(found.score(X[3000:], y[3000:]))
    assert exact["log_loss"].value == pytest.approx(loss, abs=1e-3)
    assert list(exact.by_class) == list(GRADES)
    own = X[3000:, 0] > 0
    assert exact.groups[1]["accuracy"].value == pytest.approx(found.score(X[3000:][own], y[3000:][own]))


def test_by_rows_the_same_sums_are_released() -> None:
    X, y, _, _ = people(4000)
    parts = [(X[k::2], y[k::2]) for k in range(2)]
    rows = model(300.0, insecure_seed=0).fit(sv.Federation.by_rows(parts))
    secure = model(300.0, insecure_seed=0).fit(sv.Federation.by_rows(parts, sums="secure"))
    whole = model(300.0, insecure_seed=0).fit(X, y)
    for other in (rows, secure):
        np.testing.assert_allclose(other.coef_, whole.coef_, atol=0.05)
        np.testing.assert_allclose(other.thresholds_, whole.thresholds_, atol=0.05)


X4, Y4 = people(200)[:2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": None}, "declare the classes in their order"),
        ({"classes": ("mild", "severe")}, "are two; ordered classes are three"),
        ({"fit_intercept": False}, "thresholds between ordered classes are intercepts"),
        ({"class_weight": {"mild": 2.0}}, "class_weight is not for ordered classes"),
        ({"solver": "gradient"}, "has no thresholds between ordered classes"),
        ({"radius": 1.0}, "balls are for two classes"),
    ],
)
def test_what_it_does_not_serve_is_told(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        sv.PrivateOrdinalClassifier(**{"epsilon": 1.0, "classes": GRADES, "entry_bound": 1.0, **change}).fit(X4, Y4)


def test_columns_are_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match="in one place and by rows: of secret scores"):
        model().fit(sv.Federation.by_columns([X4[:, :2], X4[:, 2:]], Y4))


def test_a_penalty_draws_the_weights_together() -> None:
    X, y, _, _ = people(3000)
    for epsilon in (math.inf, 8.0):
        free, held = (model(epsilon, alpha=alpha, insecure_seed=0).fit(X, y) for alpha in (0.0, 0.3))
        assert 0.05 < np.linalg.norm(held.coef_) < 0.7 * np.linalg.norm(free.coef_)
