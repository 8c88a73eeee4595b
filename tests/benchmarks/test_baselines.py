"""The constants that the baselines' noise stands on: sensitivities on neighbours, costs, and one exact density."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray
from peers import baselines
from scipy.special import expit

from sottovoce.privacy.calibration import mu_for

pytestmark = pytest.mark.slow

Array = NDArray[np.float64]
EPSILON, DELTA = 1.0, 1e-5


def unit_rows(generator: np.random.Generator, records: int = 20, features: int = 4) -> Array:
    X = generator.standard_normal((records, features))
    return X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1.0)


def neighbours(seed: int) -> tuple[Array, Array, Array]:
    """Rows, the same with one record blanked, and labels in [-1, 1]."""
    generator = np.random.default_rng(seed)
    X, y = unit_rows(generator), generator.uniform(-1, 1, 20)
    other = X.copy()
    other[generator.integers(20)] = 0
    return X, other, y


class Recorder(np.random.Generator):
    """A generator that returns zeros for normals and keeps how many were asked for."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))
        self.asked: list[Any] = []

    def standard_normal(self, size: Any = None, *_: Any, **__: Any) -> Any:
        self.asked.append(size)
        return 0.0 if size is None else np.zeros(size)


def test_extended_rows_stay_in_the_ball_and_models_score_alike() -> None:
    X = unit_rows(np.random.default_rng(0))
    X[0] = [1, 0, 0, 0]
    rows = baselines.extended(X)
    assert np.linalg.norm(rows, axis=1).max() == pytest.approx(1.0, abs=1e-15)
    weights = np.arange(5.0)
    coef, intercept = baselines.model(weights)
    np.testing.assert_allclose(X @ coef + intercept, rows @ weights, atol=1e-14)
    np.testing.assert_array_equal(baselines.extended(sp.csr_matrix(X)).toarray(), rows)


@pytest.mark.parametrize("regression", [False, True])
def test_a_record_moves_the_gradient_sum_by_the_clip_at_most(regression: bool) -> None:
    loss, clip, moved = baselines.Loss(regression), 0.5, []
    for seed in range(200):
        X, other, y = neighbours(seed)
        w = 5 * np.random.default_rng(seed).standard_normal(4)
        moved.append(
            np.linalg.norm(
                baselines.gradient_sum(X, y, w, loss, clip) - baselines.gradient_sum(other, y, w, loss, clip)
            )
        )
    assert 0.99 * clip <= max(moved) <= clip + 1e-12
    canary, label = np.array([[1.0, 0.0]]), np.array([-1.0])
    w = np.array([30.0, 0.0])
    assert np.linalg.norm(baselines.gradient_sum(canary, label, w, loss, clip)) == pytest.approx(clip)
    assert np.linalg.norm(baselines.gradient_sum(canary, label, w, loss, math.inf)) > 0.99  # without the clip


def test_a_record_moves_each_moment_by_one_at_most() -> None:
    for seed in range(200):
        X, other, y = neighbours(seed)
        first, second = baselines.moments(X, y), baselines.moments(other, y)
        for a, b in zip(first, second, strict=True):
            assert np.linalg.norm(np.asarray(a) - np.asarray(b)) <= 1 + 1e-12
    canary, blank = np.eye(2), np.array([[1.0, 0.0], [0.0, 0.0]])
    for a, b in zip(baselines.moments(canary, np.ones(2)), baselines.moments(blank, np.ones(2)), strict=True):
        assert np.linalg.norm(np.asarray(a) - np.asarray(b)) == pytest.approx(1.0)  # all three are attained


def test_the_rounds_of_gradient_descent_cost_the_budget() -> None:
    X, y = np.zeros((1, 50_000)), np.ones(1)  # no signal: after one round w is noise alone
    fit = baselines.noisy_gradient_descent(
        X, y, baselines.Loss(True), EPSILON, DELTA, np.random.default_rng(0), rounds=1, clip=2.0
    )
    assert 2.0 / np.std(fit) == pytest.approx(mu_for(EPSILON, DELTA), rel=0.02)  # six standard deviations of a std
    longer = baselines.noisy_gradient_descent(
        X, y, baselines.Loss(True), EPSILON, DELTA, np.random.default_rng(0), rounds=16, clip=2.0
    )
    assert np.std(longer) / np.std(fit) == pytest.approx(16, rel=0.03)  # 16 rounds, each with 4 times the noise


def test_the_three_releases_of_adassp_cost_the_budget() -> None:
    recorder = Recorder()
    X, _, y = neighbours(0)
    baselines.ada_ssp(X, y, EPSILON, DELTA, recorder)
    assert recorder.asked == [None, (4, 4), 4]  # three releases, of which sigma = sqrt(3) / mu makes mu

    class One(Recorder):
        def standard_normal(self, size: Any = None, *_: Any, **__: Any) -> Any:
            return np.ones(4) if size == 4 else super().standard_normal(size)

    # X'X = 1e6 I needs no penalty: the answer moves by sigma / 1e6 in every coordinate when its noise is 1
    big = 1000 * np.eye(4)
    moved = baselines.ada_ssp(big, y[:4], EPSILON, DELTA, One()) - baselines.ada_ssp(
        big, y[:4], EPSILON, DELTA, recorder
    )
    sigma = float(moved[0]) * 1e6
    assert math.sqrt(3 / sigma**2) == pytest.approx(mu_for(EPSILON, DELTA), rel=1e-6)


@pytest.mark.parametrize("rounds", [1, 10, 100])
def test_each_round_of_boosting_is_a_release_and_all_together_cost_the_budget(rounds: int) -> None:
    recorder = Recorder()
    baselines.ada_ssp(unit_rows(np.random.default_rng(0)), np.ones(20), EPSILON, DELTA, recorder, rounds=rounds)
    assert recorder.asked == [None, (4, 4), *[4] * rounds]

    class Last(Recorder):  # 1 in the last release alone
        def standard_normal(self, size: Any = None, *_: Any, **__: Any) -> Any:
            drawn = super().standard_normal(size)
            return np.ones(4) if len(self.asked) == rounds + 2 else drawn

    big, y = 1000 * np.eye(4), np.zeros(4)
    sigma = 1e6 * float(baselines.ada_ssp(big, y, EPSILON, DELTA, Last(), rounds=rounds)[0])
    spent = math.sqrt((rounds + 2) / sigma**2)
    assert spent == pytest.approx(mu_for(EPSILON, DELTA), rel=1e-6)


def test_boosting_fits_what_the_penalty_kept_back() -> None:
    generator = np.random.default_rng(0)
    X, w = unit_rows(generator, 100), np.array([0.3, -0.2, 0.1, 0.4])
    y = np.clip(X @ w, -1, 1)
    one, many = (baselines.ada_ssp(X, y, EPSILON, DELTA, Recorder(), rounds=rounds) for rounds in (1, 20))
    assert np.linalg.norm(many - w) < 0.1 * np.linalg.norm(one - w)


def test_adassp_without_noise_is_least_squares_with_its_penalty() -> None:
    generator = np.random.default_rng(0)
    X = np.repeat(unit_rows(generator, 50), 2000, axis=0)
    y = np.clip(X @ np.array([0.3, -0.2, 0.1, 0.4]), -1, 1)
    np.testing.assert_allclose(baselines.ada_ssp(X, y, EPSILON, DELTA, Recorder()), [0.3, -0.2, 0.1, 0.4], atol=1e-6)


def hockey_stick(epsilon: float, lam: float, sigma: float, x: float) -> tuple[float, float]:
    """Both deltas of objective perturbation in one dimension, exactly: an empty data set against one record (x, 1)."""
    w = np.linspace(-14 * sigma / lam, 14 * sigma / lam, 400_001)

    def density(slope: Array, curvature: Array) -> Array:
        b = -(slope + lam * w)
        return np.exp(-(b**2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi)) * (curvature + lam)

    empty = density(np.zeros_like(w), np.zeros_like(w))
    p = expit(-x * w)
    record = density(-x * p, x * x * p * (1 - p))
    for each in (empty, record):
        assert np.trapezoid(each, w) == pytest.approx(1, abs=1e-8)
    one = float(np.trapezoid(np.maximum(empty - math.exp(epsilon) * record, 0), w))
    return one, float(np.trapezoid(np.maximum(record - math.exp(epsilon) * empty, 0), w))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("weight", [1.0, 10.0])
def test_objective_perturbation_keeps_its_delta(epsilon: float, weight: float) -> None:
    delta = 1e-3
    lam, sigma = baselines.perturbation(epsilon, delta, weight=weight)
    deltas = [max(hockey_stick(epsilon, lam, sigma, x)) for x in (0.1, 0.5, 1.0)]
    assert max(deltas) <= delta
    assert max(hockey_stick(epsilon, lam, sigma / 4, 1.0)) > delta  # a quarter of the noise is found out


def test_the_minimum_has_no_gradient_left() -> None:
    generator = np.random.default_rng(0)
    X = unit_rows(generator, 200)
    y = np.where(X[:, 0] + 0.3 * generator.standard_normal(200) > 0, 1.0, -1.0)
    b = generator.standard_normal(4)
    for rows in (X, sp.csr_matrix(X)):
        for regression in (False, True):
            loss = baselines.Loss(regression)
            w = baselines.minimum(rows, y, loss, 0.1, b)
            gradient = X.T @ loss.slope(X @ w, y) + 0.1 * w + b
            assert np.linalg.norm(gradient) <= 1e-7


def test_the_minimum_is_the_same_without_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    X, b = unit_rows(generator, 200, 30), generator.standard_normal(30)
    y = np.where(X[:, 0] + 0.3 * generator.standard_normal(200) > 0, 1.0, -1.0)
    found = baselines.minimum(X, y, baselines.Loss(False), 0.1, b)
    monkeypatch.setattr(baselines, "WIDE", 10)
    monkeypatch.setattr(baselines.la, "solve", None)
    for rows in (X, sp.csr_matrix(X)):
        np.testing.assert_allclose(baselines.minimum(rows, y, baselines.Loss(False), 0.1, b), found, atol=1e-6)


@pytest.mark.parametrize("regression", [False, True])
def test_fits_side_by_side_are_the_fits_one_by_one(regression: bool) -> None:
    X, _, y = neighbours(0)
    y = y if regression else np.sign(y)
    loss, steps, clips = baselines.Loss(regression), np.array([0.5, 2.0, 1.0]), np.array([1.0, 0.25, 0.5])
    generators = [np.random.default_rng(seed) for seed in range(3)]
    found = baselines.noisy_gradient_descents(
        X, y, loss, EPSILON, DELTA, generators, rounds=7, steps=steps, clips=clips
    )
    for seed, (step, clip) in enumerate(zip(steps, clips, strict=True)):
        one = baselines.noisy_gradient_descent(
            X, y, loss, EPSILON, DELTA, np.random.default_rng(seed), rounds=7, step=step, clip=clip
        )
        np.testing.assert_allclose(found[:, seed], one, rtol=1e-12, atol=1e-12)
