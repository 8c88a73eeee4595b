"""Lower bounds from runs: they hold, have power, and are what a table of the beta distribution says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from sottovoce.lab.audit.games import FLOOR, Errors, epsilon_of_errors, lower_bound, most, mu_of, mu_of_profile
from sottovoce.privacy.accounting import epsilon_of, gaussian_epsilon
from sottovoce.privacy.events import Gaussian, PoissonGaussian


def runs_of(mu: float, runs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(mu / 2, 1, runs), rng.normal(-mu / 2, 1, runs)


@pytest.mark.parametrize(("count", "runs"), [(0, 100), (3, 50), (49, 50)])
def test_clopper_pearson_is_where_so_few_are_as_rare_as_the_alarm(count: int, runs: int) -> None:
    assert binom.cdf(count, runs, most(count, runs, 1e-3)) == pytest.approx(1e-3)


def test_all_of_them_leave_one() -> None:
    assert most(7, 7, 1e-4) == 1.0


def test_known_errors_give_known_values() -> None:
    errors = Errors(norm.sf(1.0), norm.sf(0.5))
    assert mu_of(errors) == pytest.approx(1.5)
    assert epsilon_of_errors(errors, 0.01) == pytest.approx(math.log((1 - norm.sf(0.5) - 0.01) / norm.sf(1.0)))
    assert mu_of(Errors(1.0, 0.1)) == 0.0
    assert epsilon_of_errors(Errors(0.9, 0.9), 0.2) == 0.0
    assert mu_of(Errors(1e-9, 1e-9)) == pytest.approx(2 * norm.isf(FLOOR))


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0, 3.0])
def test_gaussian_runs_are_bounded_from_below_and_near(mu: float) -> None:
    """Above the truth with probability 1e-4 for one seed of a correct bound; the seeds are fixed."""
    found = lower_bound(*runs_of(mu, 20_000, 3), "mu", 1e-3)
    assert mu - 0.25 < found <= mu
    assert lower_bound(*runs_of(mu, 20_000, 4), "epsilon", 1e-3) <= gaussian_epsilon(mu, 1e-3)


def test_equal_sides_are_not_told_apart() -> None:
    first, _ = runs_of(0.0, 4000, 1)
    _, second = runs_of(0.0, 4000, 2)
    assert lower_bound(first, second, "mu", 1e-3) == 0.0


def test_several_numbers_are_projected_on_what_tells_most() -> None:
    rng = np.random.default_rng(0)
    mix = np.array([[1.0, 0.9], [0.0, 0.1]])  # the difference hides behind a common direction of large noise
    first, second = (rng.normal(size=(4000, 2)) @ mix.T + sign * np.array([0.0, 0.1]) for sign in (1.0, -1.0))
    found = lower_bound(first, second, "mu", 1e-3)
    truth = 2 * math.sqrt(np.array([0.0, 0.1]) @ np.linalg.solve(mix @ mix.T, [0.0, 0.1]))
    assert 0.8 * truth < found <= truth
    plain = lower_bound(first @ [1.0, 1.0], second @ [1.0, 1.0], "mu", 1e-3)
    assert plain < 0.5 * found


def test_the_mu_of_a_profile_is_that_of_its_gaussian() -> None:
    for mu in (0.5, 1.2, 2.0):
        found = mu_of_profile(lambda delta, mu=mu: epsilon_of([Gaussian(mu)], delta, "zero-out"))
        assert mu <= found < 1.04 * mu


def test_the_mu_of_sampled_releases_bounds_the_best_test_of_them() -> None:
    """Of one sampled Gaussian, whose errors are known."""
    rate, noise = 0.3, 0.7
    event = PoissonGaussian(rate, noise, 1)
    claimed = mu_of_profile(lambda delta: epsilon_of([event], delta, "zero-out"))
    thresholds = np.linspace(-4, 6, 400)
    wrong = norm.sf(thresholds, 0, noise)
    missed = (1 - rate) * norm.cdf(thresholds, 0, noise) + rate * norm.cdf(thresholds, 1, noise)
    counted = (wrong > FLOOR) & (missed > FLOOR) & (missed < 1 - FLOOR)
    best = np.max((norm.isf(wrong) - norm.ppf(missed))[counted])
    assert best <= claimed < 1.15 * best
