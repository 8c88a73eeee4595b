"""What the ADMM sharing paper proves, on problems where both sides can be computed; and where it is false."""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import brentq, minimize
from scipy.stats import norm

import sottovoce as sv
from sottovoce.lab.theorems import admm
from sottovoce.lab.theorems.admm import HALF_SQUARE, SATURATING, SharedProblem, SharedState, iterate_sharing
from sottovoce.losses import get
from support import epsilons_of


def orthonormal(seed: int, records: int, columns: int) -> np.ndarray:
    return np.asarray(np.linalg.qr(np.random.default_rng(seed).standard_normal((records, columns)))[0])


def problem(
    parties: int = 2, weight: float = 0.5, rho: float = 2.1, loss: str = "logistic", **more: Any
) -> SharedProblem:
    rng = np.random.default_rng(5)
    parts = [orthonormal(m, 60, 3) * 3 for m in range(parties)]
    labels = np.where(rng.random(60) < 1 / (1 + np.exp(-5 * sum(part[:, 0] for part in parts))), 1.0, -1.0)
    return SharedProblem(parts, labels, get(loss), weight, rho, **more)


def after(found: SharedProblem, rounds: int, **options: Any) -> SharedState:
    return next(itertools.islice(iterate_sharing(found, **options), rounds - 1, None))


def objective(found: SharedProblem, flat: np.ndarray) -> float:
    owns = np.split(flat, np.cumsum([part.shape[1] for part in found.parts])[:-1])
    z = sum(part @ own for part, own in zip(found.parts, owns, strict=True))
    return float(found.loss.value(np.asarray(z), found.labels).sum()) + found.weight * sum(
        found.regulariser.value(own) for own in owns
    )


class TestAlgorithm:
    @pytest.mark.parametrize("in_turn", [False, True])
    def test_it_comes_to_the_minimum(self, in_turn: bool) -> None:
        found = problem()
        state = after(found, 1000, in_turn=in_turn)
        flat = np.concatenate(state.weights)
        best = minimize(lambda w: objective(found, w), np.zeros(6), tol=1e-10)
        assert objective(found, flat) == pytest.approx(best.fun, abs=1e-9)

    def test_turns_are_another_order(self) -> None:
        """The first round moves from 0 with y = z = 0, so the second is the first that can differ."""
        found = problem()
        together, one_by_one = after(found, 3), after(found, 3, in_turn=True)
        np.testing.assert_array_equal(after(found, 2).weights[0], after(found, 2, in_turn=True).weights[0])
        assert np.abs(together.weights[1] - one_by_one.weights[1]).max() > 1e-3

    def test_a_round_is_the_minimum_of_its_lagrangian(self) -> None:
        """(6) for party 1 and (7), by another minimiser, with the other variables of the round before."""
        found = problem(regulariser=SATURATING, weight=2.0)
        before, now = after(found, 4), after(found, 5)

        def first(own: np.ndarray) -> float:
            return found.lagrangian(SharedState((own, before.weights[1]), before.copies, before.duals))

        def second(copies: np.ndarray) -> float:
            return found.lagrangian(SharedState(now.weights, copies, before.duals))

        np.testing.assert_allclose(minimize(first, np.zeros(3), tol=1e-12).x, now.weights[0], atol=1e-5)
        np.testing.assert_allclose(minimize(second, np.zeros(60), tol=1e-10).x, now.copies, atol=1e-4)
        np.testing.assert_allclose(now.duals, before.duals + found.rho * (found.scores(now) - now.copies))

    def test_the_solver_makes_the_same_rounds(self) -> None:
        """`admm` without privacy and without its additions; its first epoch, which leaves x = 0, is not run."""
        found = problem(weight=0.6, rho=1.0)
        solver = sv.solvers.ADMM(rounds=5, rho=1.0, proximal=0.0, relaxation=1.0, tolerance=0.0)
        model = sv.PrivateLogisticRegression(
            math.inf, alpha=0.6 / 60, entry_bound=3.0, fit_intercept=False, classes=(-1, 1), solver=solver
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # five rounds are not enough
            model.fit(sv.Federation.by_columns([sp.csr_matrix(part) for part in found.parts], found.labels))
        np.testing.assert_allclose(model.coef_.ravel(), np.concatenate(after(found, 6).weights), atol=1e-5)

    def test_a_sparse_part_and_a_factor(self) -> None:
        found = problem()
        thin = SharedProblem(
            [sp.csc_matrix(part) for part in found.parts], *[found.labels, found.loss, found.weight, found.rho]
        )
        np.testing.assert_allclose(after(thin, 5).weights[1], after(found, 5).weights[1], atol=1e-12)
        four = after(found, 5, factor=4.0)
        assert np.abs(four.weights[1] - after(found, 5).weights[1]).max() > 1e-2
        assert (
            np.abs(four.duals - found.loss.derivative(four.copies, found.labels)).max() > 1e-2
        )  # only with 1: y = l'(z)


class TestConvergence:
    def test_two_parties_under_the_assumption(self) -> None:
        """Theorem 1.1 and 1.2 with the signs of (5): S = z, y = l'(z), lambda R' + D'y = 0. (10) has -D'y."""
        for regulariser, loss in ((HALF_SQUARE, "logistic"), (SATURATING, "logistic"), (HALF_SQUARE, "sigmoid")):
            found = problem(regulariser=regulariser, loss=loss)
            assert found.rho > admm.assumed_rho(found)
            state = after(found, 1500)
            assert np.abs(found.scores(state) - state.copies).max() < 1e-9
            np.testing.assert_allclose(state.duals, found.loss.derivative(state.copies, found.labels), atol=1e-9)
            for part, own in zip(found.parts, state.weights, strict=True):
                slope = found.weight * regulariser.slope(own)
                assert np.abs(slope + part.T @ state.duals).max() < 1e-8
                assert np.abs(slope - part.T @ state.duals).max() > 1e-2
            assert admm.lyapunov(found, state) < 1e-15

    @pytest.mark.parametrize("parties", [2, 3, 4, 8])
    def test_the_least_rho_of_equal_parties(self, parties: int) -> None:
        """Just above (3 M - 4) L / 2 it converges, just below it diverges; from M = 3 on Assumption 1.2 allows both."""
        bound = admm.equal_parties_rho(parties, 1.0)
        part = orthonormal(0, 20, 1)
        gaps = []
        for rho in (1.05 * bound, 0.95 * bound):
            found = SharedProblem([part] * parties, part[:, 0], get("squared"), 0.0, rho)
            states = list(itertools.islice(iterate_sharing(found), 600))
            gaps.append(float(np.linalg.norm(found.scores(states[-1]) - states[-1].copies)))
            if parties > 2:  # columns of norm 1: (b) asks for rho >= 2, (c) for more than 1
                assert admm.assumed_rho(found) == pytest.approx(2.0)
        assert gaps[0] < 1e-6
        assert gaps[1] > 1e3
        if parties > 2:
            assert 0.95 * bound > 2.0
        else:
            assert bound == 1.0  # what (c) asks for

    def test_the_rho_of_the_assumption(self) -> None:
        """(b) is met with equality: the least second derivative of (6), by differences, is 2 sigma_max = 18."""
        found = problem(regulariser=SATURATING, weight=2.0)
        found = dataclasses.replace(found, rho=admm.assumed_rho(found))
        zero, h = after(found, 1), 1e-3
        worst = math.inf
        for direction, step in itertools.product(np.eye(3), np.linspace(-2, 2, 41)):
            own = [((step + k * h) * direction, zero.weights[1]) for k in (-1, 0, 1)]
            ends = [found.lagrangian(SharedState(pair, zero.copies, zero.duals)) for pair in own]
            worst = min(worst, (ends[0] - 2 * ends[1] + ends[2]) / h**2)
        assert worst == pytest.approx(18, rel=1e-2)
        flat = dataclasses.replace(found, parts=[part / 100 for part in found.parts], weight=0.0)
        assert admm.assumed_rho(flat) == pytest.approx(2.0)  # whatever the unit of the columns is
        for loss, least in (("squared", 2.0), ("smoothed_hinge", 2.0), ("sigmoid", 2.0)):
            assert admm.assumed_rho(dataclasses.replace(flat, loss=get(loss))) == pytest.approx(least)
        steep = dataclasses.replace(flat, loss=get("smoothed_hinge", smoothing=0.1))  # (c): sqrt(2) L with L = 10
        assert admm.assumed_rho(steep) == pytest.approx(math.sqrt(2) * 10)

    def test_short_rank_has_no_rho(self) -> None:
        found = SharedProblem([np.ones((5, 2))], np.ones(5), get("logistic"), 0.0, 1.0)
        assert admm.assumed_rho(found) == math.inf

    def test_the_rate(self) -> None:
        """T(epsilon) <= C (L^1 - f) / epsilon with a C that does not grow; without 1 / epsilon none serves."""
        found = problem()
        states = list(itertools.islice(iterate_sharing(found), 1000))
        values = [admm.lyapunov(found, state) for state in states]
        first = found.lagrangian(states[0])
        constant = admm.least_constant(values, first, 0.0)
        assert constant == pytest.approx(admm.least_constant(values[:30], first, 0.0))
        needed = []
        for epsilon in (1.0, 1e-3, 1e-6, 1e-9):
            rounds = 1 + next(t for t, value in enumerate(values) if value <= epsilon)
            assert rounds <= constant * first / epsilon
            needed.append(rounds)
        assert needed == sorted(set(needed))
        tight = [0.99 * constant * first / (0.999 * values[t - 2]) for t in range(2, 100)]
        assert any(t > bound for t, bound in enumerate(tight, start=2))  # the constant is the least one


class TestPrivacy:
    def test_the_lemma_is_false(self) -> None:
        claimed, moved, longest, asked = admm.break_sharing_lemma()
        assert claimed == pytest.approx(3 / (100 * 60) * (1e-3 + 121 * 10))
        assert moved > 10 * claimed
        assert longest <= 10
        assert asked < 60

    def test_the_theorem_holds_for_noise_of_full_rank_alone(self) -> None:
        """The exact delta of N(0, sigma^2 I) at sensitivity C is below delta up to epsilon 1, and not at 20."""
        for delta, epsilon in itertools.product((1e-3, 1e-5, 1e-9), (0.1, 0.5, 1.0)):
            assert gaussian_delta(epsilon, 1 / admm.sharing_noise(epsilon, delta, 1.0)) <= delta
        assert gaussian_delta(20.0, 1 / admm.sharing_noise(20.0, 1e-5, 1.0)) > 1e-5

    def test_composition(self) -> None:
        """(17) is above the exact epsilon of T rounds of full rank, mu = sqrt(T) C / sigma."""
        for rounds, each in ((1, 0.5), (20, 0.1), (20, 1.0)):
            sigma = admm.sharing_noise(each, 1e-6, 1.0)
            total, mu = rounds * 1e-6 + 1e-5, math.sqrt(rounds) / sigma
            exact = brentq(lambda value, mu=mu, total=total: gaussian_delta(value, mu) - total, 0, 200)
            assert exact < admm.sharing_epsilon(each, rounds, 1e-5)
        assert admm.sharing_epsilon(1.0, 20, 1e-5) == pytest.approx(math.sqrt(40 * math.log(1e5)) + 20 * (math.e - 1))


def gaussian_delta(epsilon: float, mu: float) -> float:
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize(
    ("bounds", "b"),  # the largest declared bound, by which columns are divided
    [
        ({"entry_bound": 1.0}, 1.0),
        ({"entry_bound": 5.0}, 5.0),
        ({"entry_bound": 0.5}, 0.5),
        ({"row_norm": 3.0}, 3.0),
        ({"row_norm": 3.0, "fit_intercept": False}, 3.0),
    ],
)
@pytest.mark.parametrize(
    ("records", "widths", "alpha", "norm_bound", "rounds", "epsilon", "rho"),
    [
        (400, (3, 3), 0.01, 1.0, 50, 1.0, 1.0),
        (400, (3, 3), 0.01, None, 50, 1.0, 1.0),
        (150, (66, 57), 0.001, 1.0, 10, 30.0, 1.0),
        (90, (2, 5, 1), 0.2, 7.5, 1, 0.5, 2.5),
        (60, (1, 1, 1, 1), 0.0, 0.1, 19, 3.0, 0.7),
    ],
)
def test_the_printed_noise(records, widths, alpha, norm_bound, rounds, epsilon, rho, bounds, b) -> None:
    """sqrt(2 ln(1.25 / delta_0)) / epsilon_0 x 3 / (d rho) [lambda c_1 + (1 + M rho) b_1], T of them the plan's (17).

    D is the columns divided by b, so lambda c_1 = N alpha / b^2: the bend of N alpha |w|^2 / 2 in their weights b w.
    """
    rng = np.random.default_rng(0)
    parts = [rng.uniform(-1, 1, (records, width)) for width in widths]
    options = {} if norm_bound is None else {"feasible_norm": norm_bound}
    solver = sv.solvers.ADMM(rounds=rounds, rho=rho, **options)
    model = sv.PrivateLogisticRegression(
        epsilon, delta=1e-5, alpha=alpha, classes=(-1, 1), solver=solver, calibration="paper", **bounds
    )
    plan = model.plan(sv.Federation.by_columns(parts, np.where(parts[0][:, 0] > 0, 1, -1)))
    each = brentq(lambda value: admm.sharing_epsilon(value, rounds, 5e-6) - epsilon, 0, 50, xtol=1e-16, rtol=1e-15)
    bound = math.sqrt(records) if norm_bound is None else norm_bound  # slopes of the logistic loss are at most 1
    for width, noise in zip(widths, plan.numbers.noise, strict=True):
        bend = records * alpha / b**2
        lemma = admm.sharing_sensitivity(width, len(widths), rho, bend, bound)
        by_hand = 3 * (bend + (1 + len(widths) * rho) * bound) / (width * rho)
        assert lemma == pytest.approx(by_hand, rel=1e-14)
        assert noise == pytest.approx(admm.sharing_noise(each, 5e-6 / rounds, lemma), rel=1e-12)


def test_the_printed_noise_is_that_of_the_same_problem_in_other_units() -> None:
    """Features in centimetres for metres: the same losses, penalty, D and messages, so the same noise."""
    rng, plans = np.random.default_rng(0), []
    X, y = rng.uniform(-1, 1, (200, 4)), np.arange(200) % 2
    for unit in (1.0, 100.0):
        model = sv.PrivateLogisticRegression(
            1.0, alpha=0.05 * unit**2, entry_bound=unit, classes=(0, 1), solver="admm", calibration="paper"
        )
        plans.append(model.plan(sv.Federation.by_columns([unit * X[:, :2], unit * X[:, 2:]], y)))
        assert all(math.isinf(epsilon) for epsilon in epsilons_of(plans[-1], "zero-out").values())
    assert plans[0].numbers.noise == pytest.approx(plans[1].numbers.noise, rel=1e-12)


def test_records_are_told_at_any_noise():
    """All inner products of people; a message that is not of the span cannot be taken for one that is."""
    for s in (0.0, 1e3):
        error, apart = admm.records_told(s)
        assert error < 1e-9
        assert apart > 1e-3
