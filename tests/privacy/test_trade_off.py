"""The trade-off curve: against closed forms, against dp_accounting, and against tests that are really made."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import beta

from sottovoce.privacy.accounting import epsilon_of, gaussian_delta, gaussian_epsilon
from sottovoce.privacy.calibration import mu_for, noise_multiplier_for
from sottovoce.privacy.events import Event, Gaussian, PoissonGaussian, Relation, Selection, Unbounded, inside
from sottovoce.privacy.guarantee import (
    FALSE_ALARMS,
    Profile,
    gaussian_missed,
    missed_by,
    profile_of,
    strongest,
    weakest,
    with_errors,
)

ALARMS = np.array(FALSE_ALARMS)
RUNS = 200_000
CHANCE = 1e-8  # with which one of the bounds of a simulation fails


@pytest.mark.parametrize("mu", [0.05, 0.24, 1.0, 3.0])
def test_the_curve_of_gaussians_is_the_closed_form(mu: float) -> None:
    found = profile_of((Gaussian(0.6 * mu), Gaussian(0.8 * mu)), "zero-out").missed(ALARMS)
    assert found == pytest.approx(ndtr(ndtri(1 - ALARMS) - mu), abs=1e-14)


@pytest.mark.parametrize("mu", [0.05, 0.24, 1.0, 3.0, 6.0])
def test_tangents_are_below_the_curve_and_near_it(mu: float) -> None:
    exact = gaussian_missed(mu, ALARMS)
    found = missed_by(lambda delta: gaussian_epsilon(mu, delta), ALARMS)
    assert np.all(found <= exact + 1e-9)
    assert np.all(found >= exact - 0.004)
    assert np.all(missed_by(lambda delta: 0.9 * gaussian_epsilon(mu, delta), ALARMS)[5:16] > exact[5:16])


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_every_epsilon_is_a_tangent_of_the_curve(epsilon: float) -> None:
    """delta(epsilon) = sup over a of 1 - f(a) - e^epsilon a: the curve has all of the profile in it."""
    mu = mu_for(epsilon, 1e-5)
    alarms = np.geomspace(1e-12, 1.0, 4001)
    gap = 1 - gaussian_missed(mu, alarms) - math.exp(epsilon) * alarms
    assert gap.max() == pytest.approx(gaussian_delta(mu, epsilon), rel=1e-3)


def test_losing_more_than_epsilon_is_likelier_than_delta() -> None:
    """Why a report must not say "a factor of e^epsilon, but for events of probability delta"."""
    for epsilon, times in ((1.0, 19.9), (0.1, 148.0)):
        mu = mu_for(epsilon, inside(1e-6))
        beyond = float(ndtr(mu / 2 - epsilon / mu))  # of a loss above epsilon
        assert beyond / 1e-6 == pytest.approx(times, rel=0.01)


def most(count: int) -> float:
    """The Clopper-Pearson upper bound of a probability, at CHANCE."""
    return float(beta.isf(CHANCE, count + 1, RUNS - count))


def sampled_losses(event: PoissonGaussian, relation: Relation, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """log-likelihood ratios of the worst pair of T sampled rounds, under either of them: nothing of the package."""
    rng = np.random.default_rng(seed)
    q, s = event.rate, event.noise_multiplier

    def log_density(x: np.ndarray, centre: float) -> np.ndarray:
        return np.log((1 - q) * np.exp(-(x**2) / (2 * s * s)) + q * np.exp(-((x - centre) ** 2) / (2 * s * s)))

    def losses(centre: float) -> np.ndarray:
        total = np.zeros(RUNS)
        for _ in range(event.rounds):
            x = s * rng.standard_normal(RUNS) + centre * (rng.random(RUNS) < q)
            total += log_density(x, 1.0) - log_density(x, other)
        return total

    other = 0.0 if relation == "zero-out" else -1.0
    return losses(1.0), losses(other)


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_no_test_of_sampled_rounds_beats_the_curve(relation: Relation) -> None:
    """The likelihood ratio test, made in both orders: its misses are above the curve, in the worse order near it."""
    event = PoissonGaussian(0.2, 0.8, 12)
    there, dropouts = sampled_losses(event, relation, seed=5)
    profile, wrong = (profile_of((PoissonGaussian(0.2, noise, 12),), relation) for noise in (0.8, 1.6))
    for alarms in (0.01, 0.05, 0.2):
        above, promised = [], []
        for first, second in ((there, dropouts), (-dropouts, -there)):
            threshold = float(np.quantile(second, 1 - alarms))
            false, lost = (most(int(np.count_nonzero(hit))) for hit in (second > threshold, first <= threshold))
            above.append(lost - float(profile.missed([false])[0]))
            promised.append(lost - float(wrong.missed([false])[0]))
        assert 0 <= min(above) < 0.02
        assert min(promised) < 0  # what twice the noise would promise is found to be false


def test_the_curve_of_sampled_rounds_holds_the_profile_of_dp_accounting() -> None:
    """1 - f(a) <= delta + e^epsilon a for the pairs that dp_accounting gives, computed on another grid."""
    accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import privacy_loss_distribution

    noise = noise_multiplier_for(1.0, 1e-6, "zero-out", 0.1, 200)
    found = profile_of((PoissonGaussian(0.1, noise, 200),), "zero-out").missed(ALARMS)
    pld = privacy_loss_distribution.from_gaussian_mechanism(
        noise,
        sampling_prob=0.1,
        value_discretization_interval=1e-4,
        neighboring_relation=accounting.NeighboringRelation.REPLACE_SPECIAL,
    ).self_compose(200)
    best = np.zeros_like(ALARMS)
    for epsilon in np.linspace(0.0, 3.0, 301):
        delta = pld.get_delta_for_epsilon(epsilon)
        tangents = np.maximum(1 - delta - math.exp(epsilon) * ALARMS, math.exp(-epsilon) * (1 - delta - ALARMS))
        best = np.maximum(best, tangents)
    assert found == pytest.approx(best, abs=2e-3)


@pytest.mark.parametrize(
    "events",
    [
        [Selection(0.02)],
        [Gaussian(0.2), Selection(0.02)],
        [PoissonGaussian(0.1, 2.0, 50), Gaussian(0.3)],
        [PoissonGaussian(0.1, 2.0, 50), Selection(0.01)],
    ],
    ids=str,
)
def test_a_curve_is_a_curve(events: list[Event]) -> None:
    """Convex, falling, below 1 - a, its own inverse, and as strong as the epsilon at each delta."""
    grid = np.linspace(0, 1, 201)
    profile = profile_of(tuple(events), "replace-one")
    missed = profile.missed(grid)
    assert np.all(np.diff(missed) <= 1e-12)
    assert np.all(np.diff(missed, 2) >= -1e-9)
    assert np.all(missed <= 1 - grid + 1e-12)
    assert np.interp(missed[20:180], grid, missed) == pytest.approx(grid[20:180], abs=5e-3)
    for delta in (1e-3, 1e-2, 0.1):
        epsilon = epsilon_of(events, delta, "replace-one")
        assert np.all(missed >= 1 - delta - math.exp(epsilon) * grid - 2e-3)


def test_without_a_limit_everything_may_be_found() -> None:
    for events in (
        [Unbounded("no noise")],
        [Gaussian(math.inf)],
        [Selection(math.inf)],
        [Gaussian(0.1), Unbounded("x")],
    ):
        assert np.all(profile_of(tuple(events), "zero-out").missed(ALARMS) == 0)
    assert np.all(missed_by(lambda delta: math.inf, ALARMS) == 0)
    assert profile_of((), "zero-out").missed(ALARMS) == pytest.approx(1 - ALARMS)


def test_several_views_and_several_statements() -> None:
    small, large = (profile_of((Gaussian(mu),), "zero-out") for mu in (0.2, 0.5))
    both, known = weakest([small, large]), strongest(small, large)
    assert both.missed(ALARMS) == pytest.approx(large.missed(ALARMS))
    assert known.missed(ALARMS) == pytest.approx(small.missed(ALARMS))
    assert (both.epsilon(1e-5), known.epsilon(1e-5)) == (large.epsilon(1e-5), small.epsilon(1e-5))


def test_errors_of_samplers_shift_the_curve_by_their_size_both_ways() -> None:
    """Two laws that each err by 0.02: a test may have 0.02 fewer false alarms and 0.02 fewer misses."""
    exact = Profile.of(lambda delta: gaussian_epsilon(1.0, delta))
    assert with_errors(exact.missed, [0.03], 0.02) == pytest.approx(exact.missed([0.05]) - 0.02)
    assert with_errors(exact.missed, [0.99, 1.0], 0.02) == pytest.approx([0.0, 0.0])
