"""Losses of several classes and class weights: one contract, and what follows from the loss of two classes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from sottovoce import losses
from sottovoce.errors import InputError
from sottovoce.losses import ClassesLoss, OneVsRest, Weighted, get, weighted

CLASSES = 4
WEIGHTS = (0.25, 1.0, 0.5, 1e-3)
SHARES = np.array([0.5, 0.3, 0.15, 0.05])
SOFTMAX = get("softmax", classes=float(CLASSES))
SMOOTH = {
    "softmax": SOFTMAX,
    "logistic": OneVsRest(get("logistic"), CLASSES),
    "smoothed_hinge": OneVsRest(get("smoothed_hinge"), CLASSES),
    "softmax, weighted": weighted(SOFTMAX, WEIGHTS),
    "smoothed_hinge, weighted": weighted(OneVsRest(get("smoothed_hinge"), CLASSES), WEIGHTS),
}
SEVERAL = {**SMOOTH, "hinge": OneVsRest(get("hinge"), CLASSES), "sigmoid": OneVsRest(get("sigmoid"), CLASSES)}
TWO = {name: weighted(get(name), (0.2, 1.0)) for name in ("logistic", "smoothed_hinge", "hinge", "sigmoid")}


def drawn(count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    return 2.0 * rng.standard_normal((count, CLASSES)), rng.integers(CLASSES, size=count).astype(float)


def along(loss: ClassesLoss, name: str, move: float) -> tuple[np.ndarray, np.ndarray]:
    """Values at scores that are moved one class at a time, and the scores' labels."""
    u, y = drawn()
    return np.column_stack([getattr(loss, name)(u + move * np.eye(CLASSES)[k], y) for k in range(CLASSES)]), y


@pytest.mark.parametrize("name", SEVERAL)
def test_slopes_are_those_of_the_value(name: str) -> None:
    loss, (u, y) = SEVERAL[name], drawn()
    near = 1e-6
    found = (along(loss, "value", near)[0] - along(loss, "value", -near)[0]) / (2 * near)
    np.testing.assert_allclose(loss.derivative(u, y), found, atol=1e-5)
    assert loss.outputs == CLASSES
    assert loss.kind == "classification"


@pytest.mark.parametrize("name", SMOOTH)
def test_curvatures_are_the_slopes_of_the_slopes(name: str) -> None:
    loss, (u, y), near = SMOOTH[name], drawn(), 1e-6

    def moved(k: int) -> np.ndarray:
        ahead, behind = (loss.derivative(u + move * np.eye(CLASSES)[k], y)[:, k] for move in (near, -near))
        return (ahead - behind) / (2 * near)

    found = np.column_stack([moved(k) for k in range(CLASSES)])
    kinks = np.abs(loss.curvature(u + 2 * near, y) - loss.curvature(u - 2 * near, y)) > 1e-3
    np.testing.assert_allclose(np.where(kinks, found, loss.curvature(u, y)), found, atol=1e-5)
    assert np.all(loss.curvature(u, y) <= loss.curvature_bound)


@pytest.mark.parametrize("name", SEVERAL)
def test_lengths_are_those_of_every_label(name: str) -> None:
    loss, (u, y) = SEVERAL[name], drawn()
    slopes, lengths = loss.slopes(u, y)
    np.testing.assert_array_equal(slopes, loss.derivative(u, y))
    for label in range(CLASSES):
        found = np.linalg.norm(loss.derivative(u, np.full(len(y), float(label))), axis=1)
        np.testing.assert_allclose(lengths[:, label], found, rtol=1e-9, atol=1e-12)
    assert np.all(lengths <= loss.slope_bound * (1 + 1e-12))


@pytest.mark.parametrize("name", SEVERAL)
def test_the_bound_of_a_row_of_slopes_is_attained(name: str) -> None:
    """One-vs-rest: where every class is wrong; softmax: where another is certain; by the class of the weight 1."""
    loss, label = SEVERAL[name], 1
    wrong = np.full(CLASSES, 40.0 if loss.relative else 20.0)
    wrong[label] *= -1.0
    if loss.relative:
        wrong[2:] = 0.0
    if name == "sigmoid":
        wrong[:] = 0.0
    length = float(np.linalg.norm(loss.derivative(wrong[None, :], np.full(1, float(label)))))
    assert 0.999 * loss.slope_bound <= length <= loss.slope_bound * (1 + 1e-12)


@pytest.mark.parametrize("name", ["softmax", "logistic", "smoothed_hinge", "hinge", "softmax, weighted"])
def test_the_constant_model_has_the_least_loss(name: str) -> None:
    loss, rng = SEVERAL[name], np.random.default_rng(0)
    labels = np.arange(float(CLASSES))

    def mean(scores: np.ndarray) -> float:
        return float(SHARES @ loss.value(np.tile(scores, (CLASSES, 1)), labels))

    best = loss.constant(SHARES)
    assert all(mean(best) <= mean(best + 0.3 * rng.standard_normal(CLASSES)) + 1e-9 for _ in range(100))


@pytest.mark.parametrize("name", ["logistic", "smoothed_hinge", "smoothed_hinge, weighted"])
def test_the_mean_curvature_of_a_class_is_that_of_its_scores(name: str) -> None:
    loss = SMOOTH[name]
    scores = loss.constant(SHARES) + 1.5 * np.random.default_rng(1).standard_normal((40_000, CLASSES))
    found = sum(
        share * loss.curvature(scores, np.full(len(scores), float(label))).mean(axis=0)
        for label, share in enumerate(SHARES)
    )
    np.testing.assert_allclose(loss.mean_curvatures(SHARES, np.full(CLASSES, 2.25)), found, rtol=0.05)


def test_a_kink_bends() -> None:
    """The hinge has no curvature anywhere, and bends on average like a smoothed one."""
    found = SEVERAL["hinge"].mean_curvatures(SHARES, np.ones(CLASSES))
    near = OneVsRest(get("smoothed_hinge", smoothing=0.05), CLASSES).mean_curvatures(SHARES, np.ones(CLASSES))
    np.testing.assert_allclose(found, near, rtol=0.1)


def test_one_vs_rest_is_a_sum_of_problems_of_two_classes() -> None:
    u, y = drawn()
    inner = get("smoothed_hinge")
    signs = np.where(np.arange(CLASSES) == y[:, None], 1.0, -1.0)
    np.testing.assert_allclose(SEVERAL["smoothed_hinge"].value(u, y), inner.value(u, signs).sum(axis=1))
    np.testing.assert_array_equal(SEVERAL["smoothed_hinge"].derivative(u, y), inner.derivative(u, signs))
    assert not SEVERAL["hinge"].smooth
    assert not SEVERAL["sigmoid"].convex
    with pytest.raises(InputError, match="no curvature of one score"):
        SEVERAL["hinge"].mean_curvature(1.0)


@dataclass(frozen=True)
class Narrow(losses.Logistic):
    """A loss whose slopes are float32 and, once, the labels themselves."""

    name: ClassVar[str] = "narrow"

    def derivative(self, u: np.ndarray, y: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        return y if out is None else super().derivative(u, y, out)


def test_slopes_of_a_careless_loss_are_numbers_of_their_own() -> None:
    u, y = drawn(5)
    others, own = OneVsRest(Narrow(), CLASSES).sides(u)
    assert others.dtype == own.dtype == np.float64
    assert np.all(others == -1.0)
    assert np.all(own == 1.0)
    mine = y.copy()
    Weighted(Narrow(), (0.5, 1.0)).derivative(u[:, 0], mine)
    np.testing.assert_array_equal(mine, y)


@pytest.mark.parametrize("name", TWO)
def test_a_weight_multiplies_all_that_a_loss_says_of_a_record(name: str) -> None:
    loss, plain = TWO[name], get(name)
    u, y = np.linspace(-3.0, 3.0, 40), np.tile([-1.0, 1.0], 20)
    c = np.where(y < 0.0, 0.2, 1.0)
    for what in ("value", "derivative", "curvature"):
        np.testing.assert_allclose(getattr(loss, what)(u, y), c * getattr(plain, what)(u, y))
    out = u.copy()
    assert loss.derivative(out, y, out=out) is out
    np.testing.assert_allclose(out, c * plain.derivative(u, y))
    assert (loss.slope_bound, loss.curvature_bound) == (plain.slope_bound, plain.curvature_bound)
    assert (loss.convex, loss.smooth, loss.name) == (plain.convex, plain.smooth, plain.name)
    assert loss.parameters() == plain.parameters()
    assert not loss.has_proximal
    assert loss.code is None
    assert loss.mean_curvature(1.0) == plain.mean_curvature(1.0)


def test_weights_of_several_classes_are_by_label() -> None:
    u, y = drawn()
    loss = SEVERAL["softmax, weighted"]
    np.testing.assert_allclose(loss.derivative(u, y), np.array(WEIGHTS)[y.astype(int), None] * SOFTMAX.derivative(u, y))
    np.testing.assert_allclose(loss.reweighted(SHARES), SHARES * WEIGHTS / (SHARES @ WEIGHTS))
    assert loss.relative
    assert math.isclose(loss.mean_curvatures(SHARES, np.zeros(4)).sum(), float(SHARES @ WEIGHTS))
