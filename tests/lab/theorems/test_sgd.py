"""What the multi-party SGD write-up proves, on problems where both sides can be computed."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import expit

from sottovoce.lab.theorems import sgd as theorems
from sottovoce.privacy.accounting import gaussian_delta

RNG_RUNS = 200


class TestStrongComposition:
    def test_is_the_printed_formula(self) -> None:
        epsilon, delta = theorems.strong_composition(0.1, 1e-6, 100, 1e-5)
        assert epsilon == pytest.approx(100 * 0.01 + 0.1 * math.sqrt(200 * math.log(1e5)), rel=1e-12)
        assert delta == pytest.approx(1 - (1 - 1e-6) ** 100 * (1 - 1e-5), rel=1e-9)
        assert theorems.strong_composition(0.5, 0.0, 2, 1e-9)[0] == 1.0  # k epsilon is less

    @pytest.mark.parametrize("slack", [1e-2, 1e-6])
    def test_holds_for_the_worst_mechanisms(self, slack: float) -> None:
        for epsilon, times in itertools.product((0.01, 0.1, 0.5, 0.99), (1, 3, 30, 300)):
            total, _ = theorems.strong_composition(epsilon, 0.0, times, slack)
            assert theorems.composed_coins(epsilon, times, total) <= slack
        half = theorems.strong_composition(0.1, 0.0, 300, slack)[0] / 2
        assert theorems.composed_coins(0.1, 300, half) > slack  # the control

    def test_coins_by_listing_all_answers(self) -> None:
        epsilon, total, heads = 0.7, 0.9, np.array(list(itertools.product((0, 1), repeat=4))).sum(axis=1)
        p = expit(epsilon) ** heads * expit(-epsilon) ** (4 - heads)
        q = expit(epsilon) ** (4 - heads) * expit(-epsilon) ** heads
        exact = np.maximum(p - math.exp(total) * q, 0).sum()
        assert theorems.composed_coins(epsilon, 4, total) == pytest.approx(exact, rel=1e-12)


def test_the_gaussian_lemma_holds_below_one_and_not_for_every_epsilon() -> None:
    assert theorems.gaussian_lemma(0.5, 1e-5, 3.0) == pytest.approx(math.sqrt(2 * math.log(1.25e5)) * 6, rel=1e-12)
    for epsilon, delta in itertools.product((0.01, 0.1, 0.5, 0.99), (0.1, 1e-3, 1e-6, 1e-12)):
        assert gaussian_delta(1 / theorems.gaussian_lemma(epsilon, delta), epsilon) <= delta
    assert gaussian_delta(1 / theorems.gaussian_lemma(20.0, 1e-5), 20.0) > 1e-5


class TestSGD1:
    def test_noise_is_equation_3(self) -> None:
        variance = 16 * 200**2 * math.log(1.25 * 200**2 / 1e-8) ** 2 / 0.3**2
        assert theorems.sgd1_noise(200, 0.3, 1e-8) == pytest.approx(math.sqrt(variance), rel=1e-12)

    @pytest.mark.parametrize(("n", "delta"), [(10, 1e-4), (100, 1e-7), (1000, 1e-10)])
    def test_epsilons_add_up_and_deltas_do_not(self, n: int, delta: float) -> None:
        epsilon, total = theorems.sgd1_composed(n, 0.9, delta)
        assert epsilon == pytest.approx(0.9 * (0.9 / math.log(1 / delta) + math.sqrt(2 / 3)), rel=1e-9)  # eq. 5
        assert epsilon <= 0.9
        assert total >= delta ** (1 / 3) > 40 * delta  # eq. 6 says at most delta

    def test_a_round_is_as_private_as_its_proof_says_for_one_relation(self) -> None:
        """(epsilon / (2 sqrt(log 1/delta)), delta/n^2) by Lemma 2, if a record moves n L and not 2 n L."""
        n, epsilon, delta = 1000, 0.9, 1e-10
        needed = theorems.gaussian_lemma(epsilon / (2 * math.sqrt(math.log(1 / delta))), delta / n**2, n)
        assert needed <= theorems.sgd1_noise(n, epsilon, delta) < 2 * needed

    def test_growth_is_that_of_the_bounds_with_constants(self) -> None:
        """Their quotient is bounded, and between the constants that the logarithms leave."""
        for n, p, epsilon in itertools.product((10**2, 10**4, 10**6), (1, 10, 100), (0.1, 0.9)):
            delta = 0.1 * n**-3.0
            sizes = theorems.Agents(n, p, convexity=0.5, diameter=2.0)
            bounds = sizes.last_iterate(theorems.sgd1_noise(n, epsilon, delta), n * n)
            ratios = [bound / grows for bound, grows in zip(bounds, sizes.growth(epsilon, delta), strict=True)]
            assert 2 < ratios[0] < 16
            assert 16 * 17 / 10 < ratios[1] < 16 * 17 * 2
        assert theorems.Agents(10, 2).growth(0.5, 1e-4)[1] == math.inf


def runs(rounds: int, features: int, convexity: float, std: float) -> float:
    """The mean excess of l(theta) = |theta_1 - 1/2| + Delta/2 |theta|^2 on the unit ball by the printed steps."""
    rng, centre = np.random.default_rng(0), np.eye(features)[0] / 2
    theta = np.tile(-np.eye(features)[0], (RNG_RUNS, 1))
    spread = theorems.Agents(1, features, lipschitz=1 + convexity).gradient_square(std)
    for t in range(1, rounds + 1):
        slope = np.sign(theta - centre) * (np.arange(features) == 0) + convexity * theta
        step = 1 / (convexity * t) if convexity else 2 / math.sqrt(t * spread)
        theta = theta - step * (slope + std * rng.standard_normal(theta.shape))
        theta /= np.maximum(np.linalg.norm(theta, axis=1, keepdims=True), 1)

    def value(w: np.ndarray) -> np.ndarray:
        return np.abs(w[:, 0] - 0.5) + convexity / 2 * (w**2).sum(axis=1)

    best = np.linspace(-1, 1, 4001)[:, None] * np.eye(features)[0]
    return float(value(theta).mean() - value(best).min())


@pytest.mark.parametrize("convexity", [0.0, 0.5])
def test_the_last_iterate_is_within_its_bound(convexity: float) -> None:
    for rounds, features, std in ((20, 1, 0.0), (200, 3, 1.0), (2000, 3, 3.0)):
        sizes = theorems.Agents(1, features, lipschitz=1 + convexity, convexity=convexity, diameter=2.0)
        convex, strong = sizes.last_iterate(std, rounds)
        found = runs(rounds, features, convexity, std)
        assert found <= (strong if convexity else convex)
        assert found >= 1e-4 * (strong if convexity else convex)  # it is not empty


class TestSGD2:
    def test_its_recipe_composes_to_more_than_it_claims(self) -> None:
        epsilon, delta = theorems.sgd2_composed(1.0, 1e-5, 50)
        assert epsilon == pytest.approx(math.sqrt(2) + 1 / math.log(1e5), rel=1e-9)
        assert delta == pytest.approx(2e-5, rel=1e-4)

    def test_what_is_true_is_better_than_claimed(self) -> None:
        for epsilon, rounds in itertools.product((0.1, 1.0, 4.0), (10, 50, 500)):
            std = theorems.gaussian_lemma(*theorems.sgd2_share(epsilon, 1e-5, rounds))
            assert gaussian_delta(math.sqrt(rounds) / std, epsilon) < 1e-5

    def test_bound_is_equation_11(self) -> None:
        sizes = theorems.Agents(60, 3, 2, convexity=0.01)
        assert sizes.sgd2(268.4, 50) == pytest.approx(8 * 2 * 3 * (268.4**2 + 60**2) / (60 * 0.01 * 50), rel=1e-12)

    def test_intermediate_bound_lacks_the_factors_of_agents_and_features(self) -> None:
        """F = |theta|^2 / 2 with steps 1/2: the last iterate after k steps, by its exact variance, p sigma^2 m / 3."""
        agents, features, step, std = 3, 4, 0.5, 2.0
        rng, theta = np.random.default_rng(1), np.zeros((20_000, features))
        for _ in range(30):
            theta = (1 - step) * theta - step * std * rng.standard_normal((agents, *theta.shape)).sum(axis=0)
        excess = float((theta**2).sum(axis=1).mean() / 2)
        assert excess == pytest.approx(features * agents * std**2 / 6, rel=0.03)
        assert excess > 3 * theorems.descent_bound(0.0, step, std, 30)
        assert excess < theorems.descent_bound(0.0, step, std * math.sqrt(agents * features), 30)

    def test_intermediate_bound_is_false_without_smoothness_too(self) -> None:
        """F = |theta| from 0.3 with steps of 1: it stays 0.3 or 0.7 away for ever, and the bound goes to 0."""
        theta = 0.3
        for _ in range(100):
            theta -= math.copysign(1.0, theta)
        assert abs(theta) > 10 * theorems.descent_bound(0.3, 1.0, 0.0, 100)
