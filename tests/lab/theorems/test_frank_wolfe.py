"""Table 1's rates beside runs, Theorem 1's rho and Table 2's parameters beside what they are made of."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from sottovoce.lab import bcfw
from sottovoce.lab.reproduce.frank_wolfe import small_balls
from sottovoce.lab.theorems import frank_wolfe as theorems
from sottovoce.penalties import BoxSet, L1Ball, Product

ABOUT = theorems.Sparse(10_000, 400, 4, 10, 1.0, 100, 2.0, 0.04, 6.7, 1.0, 1e-5)
ROUNDS = np.arange(1, 200)


def gaps(sampling: bcfw.Sampling, runs: int, **options) -> np.ndarray:
    f, M = small_balls()
    best = bcfw.solve(f, M, bcfw.Elementary(6), rounds=3000, step="line-search")
    found = [
        bcfw.solve(f, M, sampling, rounds=200, generator=seed, every=1, gaps=False, **options).trace.values
        for seed in range(runs)
    ]
    return np.mean(found, axis=0) - (best.value - best.gap)


@pytest.mark.slow
def test_the_rates_of_table_1_hold_in_runs() -> None:
    """Means of 100 runs; they are at most a third of each bound, far more than they spread."""
    f, M = small_balls()
    h = gaps(bcfw.Elementary(6), 1)[0]
    C_f = bcfw.exact_curvature(f, M, bcfw.Elementary(6))
    one = gaps(bcfw.Elementary(6), 1)[ROUNDS]
    assert np.all(one <= theorems.elementary_rate(ROUNDS, C_f) / 3)
    product = bcfw.block_curvatures(f, M).sum()
    serial = gaps(bcfw.UniformSerial(6), 100)[ROUNDS]
    existing = theorems.serial_rate(ROUNDS, h, product, 6)
    assert np.all(serial <= existing / 3)
    single = bcfw.exact_curvature(f, M, bcfw.UniformSerial(6))
    np.testing.assert_allclose(bcfw.theorem_bound(ROUNDS, h, single, 1 / 6), existing)
    nice = gaps(bcfw.Nice(6, 3), 100, step=bcfw.parallel_step(6, 3))[ROUNDS]
    mean = bcfw.expected_set_curvature(f, M, 3)
    assert np.all(nice <= theorems.nice_rate(ROUNDS, h, mean, 6, 3) / 3)
    # with one block it is that of Lacoste-Julien et al., with the curvature of Proposition 2
    assert theorems.nice_rate(7, h, product / 6, 6, 1) == pytest.approx(theorems.serial_rate(7, h, product, 6))


def test_the_rate_of_tau_nice_sampling_is_false() -> None:
    """A linear f falls by the factor 1 - tau/d a round, exactly, while steps of 1 are taken; C = 0."""
    d, tau, t = 100, 10, 18
    assert all(bcfw.parallel_step(d, tau)(k) == 1 for k in range(t))
    assert (1 - tau / d) ** t > 1.4 * theorems.nice_rate(t, 1.0, 0.0, d, tau)
    assert (1 - tau / d) ** t <= bcfw.theorem_bound(t, 1.0, 0.0, tau / d)


def test_the_printed_rho_is_too_small_for_wide_blocks_alone() -> None:
    wide = Product((BoxSet(0.0, 20.0),) * 25, (1,) * 25)
    errors, every = bcfw.Inexact(1.0, rho_gradient=1.0, rho_oracle=0.5), bcfw.Elementary(25)
    printed = theorems.printed_rho(wide.diameter(25), 25, 1.0, 0.5)
    assert printed == pytest.approx(20 * 5 + 25 + 12.5)
    assert errors.rho(wide, every) == pytest.approx(25 * (20 + 0.5))
    assert errors.rho(wide, every) > 3 * printed
    narrow = Product((BoxSet(0.0, 0.5),) * 25, (1,) * 25)
    assert errors.rho(narrow, every) < theorems.printed_rho(narrow.diameter(25), 25, 1.0, 0.5)


def test_theorem_3_is_theorem_1_at_its_number_of_rounds() -> None:
    """C / (p^2 T) times the logarithm; rho_l and rho_g are then what C_l and C_g share of their sum."""
    T = ABOUT.rounds()
    log = math.log(2 * ABOUT.slope * ABOUT.radius * ABOUT.parties * ABOUT.people)
    assert ABOUT.excess() == pytest.approx(ABOUT.curvature / (ABOUT.rate**2 * T) * log)
    wide, drawn = 2 * ABOUT.radius + ABOUT.parties * ABOUT.candidates, ABOUT.parties * ABOUT.candidates
    share = ABOUT.gradient_constant() / (ABOUT.gradient_constant() + ABOUT.oracle_constant())
    far = dataclasses.replace(ABOUT, people=10**12)  # where p T is large against 2
    T = far.rounds()
    assert wide * far.gradient_inexactness(T) == pytest.approx(share * far.rate / 2, rel=1e-2)
    log = math.log(2 * far.slope * far.radius * drawn * T)
    assert drawn * far.oracle_inexactness(T) == pytest.approx((1 - share) * log * far.rate / 2, rel=1e-2)
    # So Theorem 1's factor 1 + rho, rho = (D_M + |T|) rho_g + |T| rho_l, is what eq. 16 has for its logarithm.
    rho = theorems.printed_rho(2 * far.radius, drawn, far.gradient_inexactness(T), far.oracle_inexactness(T))
    assert rho / far.rate <= log


def test_the_slope_of_theorem_3() -> None:
    """(n epsilon)^(-2/3) but for the logarithm; 1 / p^2 and what C_g has of p."""
    more = dataclasses.replace(ABOUT, people=8 * ABOUT.people)
    logs = [math.log(16 * n) for n in (ABOUT.people, more.people)]
    assert more.excess() / ABOUT.excess() == pytest.approx(logs[1] / logs[0] / 4)
    louder = dataclasses.replace(ABOUT, epsilon=8.0)
    assert louder.excess() < ABOUT.excess() / 3  # the constants have epsilon too
    rarer = dataclasses.replace(ABOUT, candidates=5)
    assert 4 < rarer.excess() / ABOUT.excess() < 4 * 2 ** (2 / 3)


def test_no_design_can_follow_the_printed_rounds() -> None:
    """nnz is private, and its public bound, n, leaves no round."""
    dense = dataclasses.replace(ABOUT, entries=ABOUT.people, curvature=4.0)
    assert dense.rounds() < 1 < dataclasses.replace(dense, entries=1, leading=1.0).rounds()


def test_noise_of_parts_a_and_b() -> None:
    assert ABOUT.index_noise(50) == pytest.approx(2 * 2.0 / (4 * 1e4) * math.sqrt(32 * 50 * math.log(2e5)))
    printed = 6.7 * math.sqrt(4 * 50) * math.sqrt(2 * (math.log(1e5) + 0.5)) / 0.5
    assert ABOUT.feature_noise(50) == pytest.approx(printed)
    assert ABOUT.oracle_constant() * math.sqrt(50) / (4 * 1e4) == pytest.approx(ABOUT.index_noise(50))
    # the mean of the largest of 2 tau noises is b times a harmonic number, about log(2 tau): what rho_l is made of
    rng = np.random.default_rng(0)
    largest = rng.laplace(scale=ABOUT.index_noise(50), size=(20_000, 20)).max(axis=1).mean()
    assert largest == pytest.approx(ABOUT.index_noise(50) * math.log(20), rel=0.05)


def test_uplinks() -> None:
    assert theorems.sketch_size(10_000, 1.0, 0.1) == pytest.approx(100 * math.log(1e4) / 3)
    assert theorems.uplink_numbers(1000, 1.0, 4, 0.1) == pytest.approx(4 * 100 * (1 + 100 * math.log(10)))
    shares = [theorems.uplink_numbers(n, 1.0, 4, 0.1) / theorems.one_shot_numbers(n, 64) for n in (10**3, 10**5)]
    assert shares[1] < shares[0] / 2.5
    # a small r and few people: Remark 2 is about n alone
    assert theorems.uplink_numbers(1000, 1.0, 4, 0.1) > theorems.one_shot_numbers(1000, 2)


def test_choices_of_two_candidates() -> None:
    """One choice: a pure guarantee, its epsilon log(p / (1 - p)); by drawing, p is right to 5 of its deviations."""
    scale, rng = 3.0, np.random.default_rng(1)
    noise = rng.laplace(scale=scale, size=(2, 400_000))
    p = 1 - (1 + 1 / scale) * math.exp(-2 / scale) / 2
    assert abs(np.mean(noise[0] + 1 > noise[1] - 1) - p) < 5.5 * math.sqrt(p * (1 - p) / 400_000)
    assert theorems.choices_epsilon(scale, 1, 1e-9) == pytest.approx(math.log(p / (1 - p)), abs=1e-6)
    assert theorems.choices_epsilon(scale, 1, 1e-9) < 4 / scale  # 2 Delta / scale at Delta = 2
    assert theorems.choices_epsilon(scale, 9, 1e-5) > 4 * theorems.choices_epsilon(scale, 1, 1e-5)


def test_a_curvature_needs_small_blocks() -> None:
    f, M = small_balls()
    assert isinstance(M.parts[0], L1Ball)
    assert bcfw.exact_curvature(f, M, bcfw.Nice(6, 2)) <= bcfw.curvature_bound(f, M, bcfw.Nice(6, 2))
