"""The bounds of DP-CD beside runs of its algorithm on quadratic functions, and the cases in which printed ones fail.

A mean of runs counts with five and a half standard errors, which a normal mean exceeds once in 5e7 times.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from sottovoce.lab.reproduce.dp_cd import simulate_excess
from sottovoce.lab.theorems import dp_cd as theorems
from sottovoce.lab.theorems.dp_cd import CoordinateSetting
from sottovoce.privacy.accounting import gaussian_epsilon
from sottovoce.privacy.mechanisms import SeededRandomness, rounded_laplace

RUNS = 300


def quadratic(seed: int, size: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """A of F(w) = w'Aw / 2 with coordinates of unlike curvature, and a start."""
    rng = np.random.default_rng(seed)
    B = rng.standard_normal((2 * size, size)) * np.geomspace(0.3, 30, size)
    return B.T @ B / (2 * size), rng.standard_normal(size)


def setting_for(A: np.ndarray, records: int = 10_000) -> CoordinateSetting:
    return CoordinateSetting(np.linspace(0.5, 2, len(A)), np.diag(A).copy(), records, 1.0, 1e-6)


def mean_and_error(excess: np.ndarray) -> tuple[float, float]:
    return float(excess.mean()), float(excess.std() / math.sqrt(len(excess)))


def test_norms() -> None:
    values, curvatures = np.array([3.0, 4.0]), np.array([9.0, 4.0])
    assert theorems.inverse_norm(values, curvatures) == pytest.approx(math.sqrt(1 + 4))
    assert theorems.curvature_norm(values, curvatures) == pytest.approx(math.sqrt(81 + 64))
    # dual to each other
    dots = [
        abs(values @ x) / theorems.curvature_norm(x, curvatures) for x in np.random.default_rng(0).normal(size=(99, 2))
    ]
    assert max(dots) <= theorems.inverse_norm(values, curvatures) * (1 + 1e-12)
    best = values / curvatures
    assert values @ best / theorems.curvature_norm(best, curvatures) == pytest.approx(math.sqrt(5))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_convex_bound_holds_with_the_radius_of_its_proof(seed: int) -> None:
    A, start = quadratic(seed)
    gap = float(start @ A @ start / 2)
    for records in (300, 10**6):
        setting = setting_for(A, records)
        radius = theorems.coordinate_radius(start, gap, setting.curvatures)
        for inner in (1, 5, 40, 300):
            deviation = theorems.printed_deviation(setting, inner)
            mean, error = mean_and_error(simulate_excess(A, start, deviation, 1, inner, runs=RUNS, seed=seed))
            assert mean - 5.5 * error <= theorems.convex_coordinate_bound(setting, radius, inner)
            # what the head of the module proves is tighter, and holds too
            value = gap + theorems.curvature_norm(start, setting.curvatures) ** 2 / 2
            noise = theorems.inverse_norm(deviation, setting.curvatures) ** 2
            assert mean - 5.5 * error <= len(A) / inner * value + noise


@pytest.mark.parametrize("curvature", [1e-4, 100.0])
def test_the_convex_bound_fails_with_the_printed_radius_for_large_curvatures_and_small_gaps(curvature: float) -> None:
    size, start = 8, np.full(8, 1e-2 if curvature > 1 else 1e-4)
    A = curvature * np.eye(size)
    gap = float(start @ A @ start / 2)
    setting = CoordinateSetting(np.ones(size), np.diag(A).copy(), 10**12, 1.0, 1e-12)
    mean, error = mean_and_error(
        simulate_excess(A, start, theorems.printed_deviation(setting, size), 1, size, runs=RUNS, seed=0)
    )
    printed = theorems.convex_coordinate_bound(setting, theorems.printed_radius(start, gap, np.diag(A)), size)
    proven = theorems.convex_coordinate_bound(setting, theorems.coordinate_radius(start, gap, np.diag(A)), size)
    assert mean + 5.5 * error <= proven
    # where M_j is small, |.|_{M^-1} is large and the printed one holds, with room
    assert (mean - 5.5 * error > printed) == (curvature > 1)


def test_the_best_inner_steps_give_the_printed_order() -> None:
    setting = setting_for(quadratic(0)[0])
    best, radius = theorems.best_inner(setting, 3.0), 3.0
    least = theorems.convex_coordinate_bound(setting, radius, best)
    for times in (0.9, 1.1):
        assert theorems.convex_coordinate_bound(setting, radius, times * best) > least
    order = theorems.convex_coordinate_rate(setting, radius)
    assert least == pytest.approx(6 * math.sqrt(2 * math.log(1e6)) * order)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_strongly_convex_bound_halves_the_error_in_each_loop(seed: int) -> None:
    A, start = quadratic(seed)
    scaled = A / np.sqrt(np.outer(np.diag(A), np.diag(A)))
    strength, gap = float(np.linalg.eigvalsh(scaled).min()), float(start @ A @ start / 2)
    for records in (3000, 10**7):
        setting = setting_for(A, records)
        inner = theorems.inner_for(setting, strength)
        assert inner == math.ceil(2 * len(A) * (1 + 1 / strength))
        for loops in (1, 3, 6):
            deviation = theorems.printed_deviation(setting, loops * inner)
            mean, error = mean_and_error(simulate_excess(A, start, deviation, loops, inner, runs=60, seed=seed))
            assert mean - 5.5 * error <= theorems.strong_coordinate_bound(setting, gap, strength, loops)
            assert mean - 5.5 * error <= theorems.printed_strong_bound(setting, gap, strength, loops)
    # a loop that is too short does not halve it: the rule for K says something
    mean, error = mean_and_error(simulate_excess(A, start, 0 * start, 1, 1, runs=RUNS, seed=seed))
    assert mean - 5.5 * error > gap / 2


def test_the_strongly_convex_bound_has_its_order_only_if_errors_halve() -> None:
    found = {}
    for bound in (theorems.printed_strong_bound, theorems.strong_coordinate_bound):
        for records in (10**4, 10**8):
            setting = setting_for(np.eye(4), records)
            best = min(bound(setting, 1.0, 0.5, int(T)) for T in np.geomspace(1, 10**7, 500))
            found[bound, records] = best / theorems.strong_coordinate_rate(setting, 0.5)
    assert found[theorems.printed_strong_bound, 10**8] > 1000 * found[theorems.printed_strong_bound, 10**4]
    assert found[theorems.strong_coordinate_bound, 10**8] < 5 * found[theorems.strong_coordinate_bound, 10**4]


def test_lower_bounds_and_the_units_of_a_coordinate() -> None:
    """w_j in other units: F stays, L_j is divided and M_j by the square; a true bound stays too."""
    A = quadratic(0)[0]
    one = setting_for(A)
    other = CoordinateSetting(one.lipschitz / 8, one.curvatures / 64, one.records, one.epsilon, one.delta)
    optimum = np.arange(1.0, 6.0)
    assert theorems.convex_lower_rate(other, 8 * optimum) == pytest.approx(theorems.convex_lower_rate(one, optimum))
    assert theorems.strong_coordinate_rate(other, 0.3) == pytest.approx(theorems.strong_coordinate_rate(one, 0.3))
    # mu_M stays, that in the Euclidean norm is divided by 64
    assert theorems.strong_lower_rate(other, 0.3) == pytest.approx(theorems.strong_lower_rate(one, 0.3) / 64)
    assert theorems.strong_lower_rate(other, 0.3 / 64) == pytest.approx(theorems.strong_lower_rate(one, 0.3))
    assert theorems.strong_lower_rate(one, 0.5) == pytest.approx(5 * np.sum(one.lipschitz**2) / 0.5 / 1e8)
    assert theorems.convex_lower_rate(one, optimum) == pytest.approx(
        math.sqrt(5 * (optimum @ optimum) * np.sum(one.lipschitz**2)) / 1e4
    )


def test_the_printed_strong_lower_bound_is_above_the_error_of_the_zero_model() -> None:
    """|grad_j l| <= L_j and mu_M bound F(w^0) - F* by |L|_{M^-1}^2 / (2 mu_M), whatever the data."""
    setting = CoordinateSetting(np.ones(100), np.full(100, 1e12), 10**5, 1.0, 1e-6)
    zero_model = theorems.inverse_norm(setting.lipschitz, setting.curvatures) ** 2 / (2 * 0.5)
    assert theorems.strong_lower_rate(setting, 0.5) > 1000 * zero_model


def test_the_assumption_of_the_lower_bounds_is_empty_below_75_coordinates() -> None:
    assert theorems.least_share(np.ones(74)) == 0.0
    assert theorems.least_share(np.ones(150)) == pytest.approx(2 / 150)
    assert theorems.least_share(np.r_[np.full(10, 1e-9), np.ones(140)]) < 1e-15


def test_the_rule_of_the_clips_and_the_option_that_gives_it() -> None:
    curvatures, kappa = np.array([0.25, 1.0, 8.0]), 0.25
    clips = 2.0 * np.sqrt(curvatures / curvatures.sum())
    np.testing.assert_allclose(theorems.clip_for(2.0, curvatures, kappa) * np.sqrt(curvatures / kappa), clips)
    assert np.linalg.norm(clips) == pytest.approx(2.0)
    assert theorems.inverse_norm(clips, curvatures) == pytest.approx(2.0 * math.sqrt(3 / curvatures.sum()))


def test_laplace_curvatures_cost_p_epsilon() -> None:
    for features, epsilon in ((1, 0.3), (8, 1.0), (100, 0.2)):
        found = theorems.laplace_epsilon(features, epsilon, 1e-9)
        assert found <= features * epsilon
        assert found == pytest.approx(features * epsilon, rel=0.4)
    assert theorems.laplace_epsilon(8, 1.0, 1e-9) == pytest.approx(8.0, rel=1e-3)
    # many small ones compose to less; without Laplace noise what is left is the Gaussian
    assert theorems.laplace_epsilon(400, 0.01, 1e-6) < 0.5 * 4
    assert theorems.laplace_epsilon(1, 1e-6, 1e-6, mu=0.7) == pytest.approx(gaussian_epsilon(0.7, 1e-6), rel=1e-2)


def test_what_laplace_curvatures_cost_is_attained() -> None:
    """An event whose odds are e^(p epsilon): every squared entry of a record is B_j in one data set, 0 in the other."""
    features, epsilon, draws = 4, 0.5, 200_000
    noise = rounded_laplace(2.0**20 / epsilon, draws * features, SeededRandomness(0)).reshape(draws, features) / 2.0**20
    odds = np.mean(np.all(1 + noise >= 1, axis=1)) / np.mean(np.all(noise >= 1, axis=1))
    deviation = math.sqrt((math.exp(features * epsilon) * 2**features) / draws)
    assert math.log(odds) == pytest.approx(features * epsilon, abs=5.5 * deviation)
    assert math.log(odds) > epsilon + 5.5 * deviation
