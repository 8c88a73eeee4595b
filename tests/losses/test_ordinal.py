"""Proportional odds: slopes within (-1, 1), derivatives by differences, lengths of every label."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sottovoce.data.matrix import clip_rows
from sottovoce.errors import InputError
from sottovoce.losses import get
from sottovoce.losses.ordinal import SHARE, ends, log_shares

LOSS = get("ordinal", classes=5.0)
RNG = np.random.default_rng(0)


def scores(count: int = 300, wide: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    thresholds = np.sort(RNG.normal(0, wide, (count, 4)), axis=1)
    return np.column_stack([RNG.normal(0, wide, count), thresholds]), RNG.integers(0, 5, count).astype(float)


def test_shares_add_up_to_one_and_are_differences() -> None:
    u, _ = scores()
    below = 1 / (1 + np.exp(u[:, :1] - u[:, 1:]))
    shares = np.diff(np.pad(below, ((0, 0), (1, 1)), constant_values=((0, 0), (0, 1))), axis=1)
    np.testing.assert_allclose(np.exp(log_shares(u)), shares, atol=1e-12)


def test_derivatives_are_those_of_the_value() -> None:
    u, y = scores(wide=1.0)
    u[:, 1:] += np.arange(4)  # apart
    found = LOSS.derivative(u, y)
    for place in range(5):
        step = np.zeros(5)
        step[place] = 1e-6
        by_differences = (LOSS.value(u + step, y) - LOSS.value(u - step, y)) / 2e-6
        np.testing.assert_allclose(found[:, place], by_differences, atol=1e-6)
    step = 1e-5 * np.eye(5)[0]
    bends = (LOSS.derivative(u + step, y) - LOSS.derivative(u - step, y))[:, 0] / 2e-5
    np.testing.assert_allclose(LOSS.curvature(u, y), bends, atol=1e-7)


@pytest.mark.parametrize("wide", [1.0, 30.0, 800.0])
def test_slopes_are_within_one_for_every_label_and_all_thresholds(wide: float) -> None:
    """Also where thresholds are not in order, and far beyond what `exp` has."""
    u, y = scores(wide=wide)
    u[::2] = RNG.normal(0, wide, u[::2].shape)
    rows, lengths = LOSS.slopes(u, y)
    assert np.abs(rows[:, 0]).max() <= 1.0
    assert np.abs(rows[:, 1:]).max() <= SHARE
    assert lengths.max() <= LOSS.slope_bound * (1 + 1e-15)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), lengths[np.arange(len(u)), y.astype(int)], rtol=1e-12)
    assert np.isfinite(ends(u, y)[2:]).all()


def test_the_score_has_the_slope_of_the_loss_and_all_have_the_mean_zero() -> None:
    u, y = scores()
    np.testing.assert_allclose(LOSS.slopes(u, y)[0][:, 0], LOSS.derivative(u, y)[:, 0], atol=1e-9)
    rows = sum(
        np.exp(log_shares(u))[:, [label]] * LOSS.slopes(u, np.full(len(u), float(label)))[0] for label in range(5)
    )
    np.testing.assert_allclose(rows, 0.0, atol=1e-12)


def test_slopes_of_all_labels_are_cut_alike() -> None:
    """So a cut leaves the mean slope 0 where the model is right; cut one by one they would not be."""
    u, _ = scores()
    shares = np.exp(log_shares(u))
    cut = [clip_rows(LOSS, 0.2, u, np.full(len(u), float(label))) for label in range(5)]
    mean = sum(shares[:, [label]] * rows for label, rows in enumerate(cut))
    np.testing.assert_allclose(mean, 0.0, atol=1e-12)
    alone = sum(
        shares[:, label] * np.clip(LOSS.slopes(u, np.full(len(u), float(label)))[0][:, 0], -0.2, 0.2)
        for label in range(5)
    )
    assert np.abs(alone).max() > 0.01


def test_mean_curvatures_are_those_of_drawn_labels() -> None:
    thresholds, variance = np.array([-2.0, -0.5, 1.0, 3.0]), 1.7
    bend, bends = LOSS.expected_bends(thresholds, variance)
    s = RNG.normal(0, math.sqrt(variance), 400_000)
    below = 1 / (1 + np.exp(s[:, None] - thresholds))
    np.testing.assert_allclose(bends, (below * (1 - below)).mean(axis=0), atol=2e-3)
    labels = (RNG.random(len(s))[:, None] > below).sum(axis=1).astype(float)
    u = np.column_stack([s, np.broadcast_to(thresholds, (len(s), 4))])
    assert bend == pytest.approx(LOSS.curvature(u, labels).mean(), abs=2e-3)


@pytest.mark.parametrize("classes", [2.0, 3.5])
def test_fewer_than_three_classes_are_refused(classes: float) -> None:
    with pytest.raises(InputError, match="must be a whole number from 3"):
        get("ordinal", classes=classes)
