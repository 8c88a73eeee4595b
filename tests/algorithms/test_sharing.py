"""The updates of ADMM sharing: minima by their definitions, for every loss and every penalty."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from sottovoce import losses, penalties
from sottovoce.algorithms.sharing import admm_exact as sharing
from sottovoce.algorithms.sharing.admm_exact import square_of
from sottovoce.data.matrix import Products
from sottovoce.errors import InputError
from sottovoce.losses import Loss
from sottovoce.penalties.base import ScaledRegulariser
from sottovoce.penalties.quadratic import PRECISION, PenalisedStep
from sottovoce.penalties.separable import NormPenalty

LOSSES = [
    losses.get("logistic"),
    losses.get("sigmoid"),
    losses.get("hinge"),
    losses.get("smoothed_hinge", smoothing=0.3),
    losses.get("smoothed_hinge", smoothing=5.0),
    losses.get("squared"),
    losses.get("huber", threshold=0.2),
]


def slope(loss: Loss, z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """l'(z, y) by its formula, in more than double precision."""
    z, y = z.astype(np.longdouble), y.astype(np.longdouble)
    t = z * y
    if loss.name == "logistic":
        return -y / (1 + np.exp(t))
    if loss.name == "sigmoid":
        e = np.exp(-np.abs(t))
        return -y * e / (1 + e) ** 2
    if loss.name == "hinge":
        return np.where(t < 1, -y, 0)
    if loss.name == "smoothed_hinge":
        return -y * np.clip((1 - t) / np.longdouble(loss.parameters()["smoothing"]), 0, 1)
    k = loss.parameters().get("threshold", math.inf)
    return np.clip(z - y, -k, k)


def cases(loss: Loss, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    points = np.concatenate([scale * rng.standard_normal(700) for scale in (1e-3, 1.0, 30.0, 1e3)] + [np.zeros(1)])
    count = len(points)
    labels = rng.choice([-1.0, 1.0], count) if loss.kind == "classification" else rng.uniform(-1, 1, count)
    return points, labels


@pytest.mark.parametrize("rho", [1e-3, 0.03, 0.1, 1.0, 50.0])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.name} {loss.parameters()}")
def test_the_slope_changes_sign_at_the_z_update(loss: Loss, rho: float) -> None:
    points, labels = cases(loss)
    if not rho > (0.0 if loss.convex else loss.curvature_bound):
        with pytest.raises(InputError, match=r"must be above 0\.09623"):
            loss.proximal(points, labels, rho, points)
        return
    for start in (np.zeros(len(points)), points, -1e4 * labels, 1e4 * labels):
        z = loss.proximal(points, labels, rho, start)
        for sign in (-1, 1):
            near = z + sign * 1e-12 * (1 + np.abs(z))
            there = slope(loss, near, labels) + rho * (near.astype(np.longdouble) - points)
            assert (sign * there >= 0).all()


def test_a_far_start_needs_the_bracket() -> None:
    """Newton's method alone does not find the root from there: the test above means something."""
    t, rho, s = -20.0, 0.03, 30.0
    for _ in range(200):
        q = 1 / (1 + math.exp(min(s, 700)))
        s -= (s - t - q / rho) / (1 + q * (1 - q) / rho)
    assert abs(s - t - 1 / rho / (1 + math.exp(min(s, 700)))) > 1.0
    loss = losses.get("logistic")
    z = loss.proximal(np.array([t]), np.ones(1), rho, np.array([30.0]))[0]
    assert z - t - 1 / rho / (1 + math.exp(z)) == pytest.approx(0, abs=1e-12)


# --- x-updates ------------------------------------------------------------------------------------------------------

REGULARISERS: dict[str, dict[str, float]] = {
    "none": {},
    "l2": {"alpha": 0.3},
    "l1": {"alpha": 0.2},
    "elastic_net": {"alpha": 0.4, "l1_ratio": 0.5},
    "box": {"low": -0.1, "high": 0.3},
    "l2_ball": {"radius": 0.4},
    "l1_ball": {"radius": 0.4},
    "simplex": {"radius": 0.5},
}
RECORDS, FEATURES, FACTOR = 50, 6, 0.7


def setting(name: str, seed: int = 0) -> tuple[np.ndarray, ScaledRegulariser, np.ndarray, np.ndarray]:
    """Columns of unlike sizes, the last one constant and free; a regulariser in other units; a point and a gradient."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((RECORDS, FEATURES + 1)) * np.array([1, 0.5, 2, 1, 1, 0.7, 0])
    rows[:, -1] = 1.0
    rows[rng.random(rows.shape) < 0.3] = 0.0
    regulariser = ScaledRegulariser(penalties.get_penalty(name, **REGULARISERS[name]), FEATURES, 0.8, 1.5)
    start = regulariser.prox(rng.standard_normal(FEATURES + 1), 1e-9)
    return rows, regulariser, start, rows.T @ rng.standard_normal(RECORDS) * 3


def slowly(square: np.ndarray, regulariser: ScaledRegulariser, start: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Plain proximal gradients, very many."""
    bend = FACTOR * np.linalg.eigvalsh(square)[-1]
    u = start
    for _ in range(4000):
        u = regulariser.prox(u - (gradient + FACTOR * square @ (u - start)) / bend, RECORDS / bend)
    return u


def objective(
    square: np.ndarray, regulariser: ScaledRegulariser, start: np.ndarray, gradient: np.ndarray, u: np.ndarray
) -> float:
    step, inner = u - start, regulariser.inner
    penalty = regulariser.value(u) if isinstance(inner, NormPenalty) else 0.0  # a set: rounding may leave it
    return float(RECORDS * penalty + gradient @ step + FACTOR / 2 * step @ square @ step)


@pytest.mark.parametrize("kind", ["matrix", "products", "sparse"])
@pytest.mark.parametrize("name", list(REGULARISERS))
def test_the_x_update_is_the_minimum(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, regulariser, start, gradient = setting(name)
    square = rows.T @ rows
    expected = slowly(square, regulariser, start, gradient)
    assert np.abs(expected - start).max() > 0.1
    if kind != "matrix":
        monkeypatch.setattr(sharing, "GRAM", FEATURES)
    given = square_of(Products(sp.csc_matrix(rows) if kind == "sparse" else rows))
    assert isinstance(given, np.ndarray if kind == "matrix" else Products)
    update = PenalisedStep(given, regulariser, RECORDS, FACTOR)
    found = update(start, gradient)
    np.testing.assert_allclose(found, expected, atol=30 * PRECISION * np.abs(expected - start).max())
    # The next updates mend what the first left: the same problem, seen from the last point.
    for _ in range(40):
        found = update(found, gradient + FACTOR * square @ (found - start))
    np.testing.assert_allclose(found, expected, atol=1e-8)


@pytest.mark.parametrize("name", list(REGULARISERS))
def test_columns_that_are_equal_or_empty(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Gram matrix without an inverse: the scores are those of the minimum; an empty column is left or penalised."""
    rows, regulariser, start, gradient = setting(name)
    rows[:, 1], rows[:, 2] = rows[:, 0], 0.0
    gradient = rows.T @ np.random.default_rng(5).standard_normal(RECORDS) * 3
    square = rows.T @ rows
    for columns in (2000, FEATURES):
        monkeypatch.setattr(sharing, "GRAM", columns)
        update = PenalisedStep(square_of(Products(rows)), regulariser, RECORDS, FACTOR)
        found = start
        for _ in range(200):
            found = update(found, gradient + FACTOR * square @ (found - start))
        expected = slowly(square, regulariser, start, gradient)
        np.testing.assert_allclose(rows @ found, rows @ expected, atol=1e-5)
        least = objective(square, regulariser, start, gradient, expected)
        assert objective(square, regulariser, start, gradient, found) <= least + 1e-6


def test_many_columns_of_conjugate_gradients() -> None:
    """More columns than records, and than a Gram matrix is made of: against the solution in the space of records."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((30, 2100))
    regulariser = ScaledRegulariser(penalties.get_penalty("l2", alpha=0.5), 2100, 1.0, 1.0)
    square = square_of(Products(rows))
    assert isinstance(square, Products)
    start, v = rng.standard_normal(2100) / 40, rng.standard_normal(30)
    update = PenalisedStep(square, regulariser, 30, FACTOR)
    found = update(start, rows.T @ v)
    ridge = 30 * 0.5
    left = rows.T @ v + ridge * start
    inner = np.linalg.solve(np.eye(30) * ridge + FACTOR * rows @ rows.T, rows @ left)
    expected = start - (left - FACTOR * rows.T @ inner) / ridge
    assert np.linalg.norm(found - expected) <= 5e-3 * np.linalg.norm(expected - start)
    for _ in range(5):
        found = update(found, rows.T @ (v + FACTOR * rows @ (found - start)))
    np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("kind", [np.asarray, sp.csc_matrix])
def test_products_are_the_matrix(kind: Any) -> None:
    rows = setting("none")[0]
    square = Products(kind(rows))
    np.testing.assert_allclose(square.diagonal(), (rows**2).sum(axis=0))
    np.testing.assert_allclose(np.column_stack([square @ unit for unit in np.eye(FEATURES + 1)]), rows.T @ rows)
