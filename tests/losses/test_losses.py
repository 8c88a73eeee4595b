"""One contract that every loss keeps; a subclass names it, its formula and its kinks."""

from __future__ import annotations

import dataclasses
import json
import math
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.special import expit

from sottovoce import losses
from sottovoce.data.matrix import Slope
from sottovoce.errors import InputError
from sottovoce.losses import (
    Count,
    Hazard,
    Hinge,
    Huber,
    KnownLabels,
    Logistic,
    Loss,
    Positive,
    Sigmoid,
    SmoothedHinge,
    Squared,
    kernels,
)


class LossContract:
    loss: Loss
    kinks: tuple[float, ...] = ()  # in the residual u - y or the margin y u

    def formula(self, u: float, y: float) -> float:
        raise NotImplementedError

    @property
    def labels(self) -> tuple[float, ...]:
        return (-1.0, 1.0) if self.loss.kind == "classification" else (-0.7, 0.0, 1.3)

    def kink_scores(self, y: float) -> list[float]:
        return [kink * y if self.loss.kind == "classification" else kink + y for kink in self.kinks]

    def grid(self, margin: float = 0.0):
        u, y = (axis.ravel() for axis in np.meshgrid(np.linspace(-12, 12, 2401) + 1e-3, self.labels))
        for label in self.labels:
            for kink in self.kink_scores(label):
                keep = (y != label) | (np.abs(u - kink) > margin)
                u, y = u[keep], y[keep]
        return u, y

    def dual_cases(self, count: int = 60):
        rng = np.random.default_rng(5)
        y = rng.choice(self.labels, count)
        # Noise can push a dual variable out of the domain, so a ranges well beyond it.
        a, m, s = rng.normal(size=count), 2 * rng.normal(size=count), 10 ** rng.uniform(-2, 2, count)
        return a, y, m, s

    def test_value_is_the_formula(self):
        u, y = self.grid()
        expected = [self.formula(*pair) for pair in zip(u, y, strict=True)]
        np.testing.assert_allclose(self.loss.value(u, y), expected, rtol=1e-9, atol=1e-12)

    def test_derivative_is_the_slope_of_the_value(self):
        u, y = self.grid(margin=1e-3)
        h = 1e-5
        slope = (self.loss.value(u + h, y) - self.loss.value(u - h, y)) / (2 * h)
        np.testing.assert_allclose(self.loss.derivative(u, y), slope, atol=1e-8)

    def test_curvature_is_the_slope_of_the_derivative(self):
        u, y = self.grid(margin=1e-3)
        h = 1e-5
        slope = (self.loss.derivative(u + h, y) - self.loss.derivative(u - h, y)) / (2 * h)
        np.testing.assert_allclose(self.loss.curvature(u, y), slope, atol=1e-8)

    def test_derivative_at_a_kink_is_a_subgradient(self):
        for y in self.labels:
            for kink in self.kink_scores(y):
                slope = self.loss.derivative(np.array(kink), np.array(y))
                u = np.linspace(-5, 5, 101)
                tangent = self.loss.value(np.array(kink), np.array(y)) + slope * (u - kink)
                assert np.all(self.loss.value(u, np.full_like(u, y)) >= tangent - 1e-12)

    def test_lipschitz_bound_holds_and_is_attained(self):
        u, y = self.grid()
        steepest = np.abs(self.loss.derivative(np.append(u, [-1e9, 1e9]), np.append(y, [1.0, -1.0]))).max()
        if math.isinf(self.loss.lipschitz()):
            assert steepest > 1e8
        else:
            assert 0.99 * self.loss.lipschitz() <= steepest <= self.loss.lipschitz()

    def test_lipschitz_bound_holds_for_labels_up_to_the_bound(self):
        u, y = self.grid()
        for label_bound in (0.5, 3.0):
            steepest = np.abs(self.loss.derivative(u / label_bound, y * label_bound)).max()
            assert steepest <= self.loss.lipschitz(label_bound)

    def test_curvature_bound_holds_and_is_attained(self):
        h = 1e-6
        u, y = self.grid()
        for label in self.labels:
            kinks = self.kink_scores(label)
            u, y = np.append(u, np.array(kinks) - h / 2), np.append(y, np.full(len(kinks), label))
        quotient = np.abs(self.loss.derivative(u + h, y) - self.loss.derivative(u, y)) / h
        if self.loss.smooth:
            bound = self.loss.curvature_bound
            assert 0.99 * bound <= quotient.max() <= bound * (1 + 1e-6)
            assert 0.99 * bound <= np.abs(self.loss.curvature(u, y)).max() <= bound
        else:
            assert math.isinf(self.loss.curvature_bound)
            assert quotient.max() > 0.1 / h

    def test_convex_means_that_the_slope_never_falls(self):
        rises = []
        for label in self.labels:
            u = np.linspace(-12, 12, 2401)
            rises.append(np.diff(self.loss.derivative(u, np.full_like(u, label))).min())
        assert (min(rises) >= -1e-15) == self.loss.convex

    @pytest.mark.parametrize("size", [36.0, 710.0, 746.0, 1e5, 1e100])
    def test_huge_scores_stay_finite(self, size):
        for label in self.labels:
            u, y = np.array([-size, size]), np.full(2, label)
            with np.errstate(over="raise", invalid="raise", divide="raise"):
                value, slope = self.loss.value(u, y), self.loss.derivative(u, y)
                bend = self.loss.curvature(u, y)
            assert np.all(np.isfinite(value))
            assert np.all(np.isfinite(bend))
            np.testing.assert_allclose(value, [self.formula(score, label) for score in u], rtol=1e-12, atol=1e-300)
            assert np.all(np.abs(slope) <= min(self.loss.lipschitz(2.0), 2 * size))

    def test_nan_is_never_hidden(self):
        u, y = np.array([math.nan, 0.0]), np.array([1.0, 1.0])
        assert np.isnan(self.loss.value(u, y)).tolist() == [True, False]
        assert np.isnan(self.loss.derivative(u, y)).tolist() == [True, False]

    def test_derivative_writes_where_it_is_told(self):
        u, y = self.grid()
        expected = self.loss.derivative(u, y)
        out = np.empty_like(u)
        assert self.loss.derivative(u, y, out=out) is out
        np.testing.assert_array_equal(out, expected)
        scores = u.copy()
        assert self.loss.derivative(scores, y, out=scores) is scores
        np.testing.assert_array_equal(scores, expected)

    def test_arguments_are_left_alone_and_integers_are_taken(self):
        u, y = np.array([-2, 0, 3]), np.array([1, -1, 1])
        for method in (self.loss.value, self.loss.derivative, self.loss.curvature):
            result = method(u, y)
            assert result.dtype == np.float64
            np.testing.assert_array_equal(result, method(u.astype(float), y.astype(float)))
            np.testing.assert_array_equal(result[2], method(np.array(3.0), np.array(1.0)))
        assert u.tolist() == [-2, 0, 3]
        assert y.tolist() == [1, -1, 1]

    @pytest.mark.parametrize("variance", [0.01, 1.0, 16.0, 400.0, 1e4])
    def test_mean_curvature_is_the_mean_slope_of_the_derivative(self, variance):
        # Stein: E l''(u) = E u l'(u) / variance, which also counts jumps of l'.
        scale = math.sqrt(variance)

        def integrand(u, y):
            density = math.exp(-0.5 * u * u / variance) / (scale * math.sqrt(2 * math.pi))
            return float(self.loss.derivative(np.array(u), np.array(y))) * u / variance * density

        expected = 0.0
        for y in (-1.0, 1.0):
            breaks = [0.0, -40.0, 40.0, *self.kink_scores(y)]
            ends = sorted({-12 * scale, 12 * scale, *(b for b in breaks if abs(b) < 12 * scale)})
            for low, high in pairwise(ends):
                expected += 0.5 * quad(integrand, low, high, args=(y,), epsabs=1e-13, limit=500)[0]
        assert self.loss.mean_curvature(variance) == pytest.approx(expected, rel=1e-7, abs=1e-11)

    def test_mean_curvature_without_variance_is_a_limit(self):
        assert self.loss.mean_curvature(0.0) == pytest.approx(self.loss.mean_curvature(1e-12), abs=1e-6)

    @pytest.mark.parametrize("variance", [-1.0, math.nan, math.inf])
    def test_mean_curvature_refuses_what_is_no_variance(self, variance):
        with pytest.raises(InputError, match="variance="):
            self.loss.mean_curvature(variance)

    def test_slopes_within_a_norm_keep_their_bound(self):
        for norm in (0.0, 0.3, 2.0, 30.0):
            u, y = np.meshgrid(np.linspace(-norm, norm, 101), [-1.0, 1.0])
            assert np.abs(self.loss.derivative(u, y)).max() <= self.loss.slope_bound_within(norm) * (1 + 1e-15)

    def test_a_slope_affine_in_the_label_is_psi_less_phi_times_it(self):
        u, y = self.grid()
        slopes = self.loss.slope_without_label(u) - self.loss.label_slope * y
        assert np.allclose(slopes, self.loss.derivative(u, y), atol=1e-12) == self.loss.affine_in_label
        if self.loss.affine_in_label:
            noisy = [self.loss.noisy_label_slope(u, y + noise) for noise in (-4.0, 4.0)]
            np.testing.assert_allclose(np.mean(noisy, axis=0), self.loss.derivative(u, y), atol=1e-12)

    def test_quadratic_means_that_the_curvature_is_one_everywhere(self):
        u, y = self.grid(margin=1e-3)
        assert bool(np.all(self.loss.curvature(u, y) == 1.0)) == self.loss.quadratic

    def test_compiled_slopes_are_the_slopes(self):
        if self.loss.code is None or not self.loss.smooth:
            return
        u, y = self.grid()
        found = np.empty_like(u)
        kernels.fill_slopes_from(self.loss.code, self.loss.parameter, u, y, 0, len(found), found)
        np.testing.assert_allclose(found, self.loss.derivative(u, y), rtol=1e-12, atol=1e-15)

    @pytest.mark.parametrize("rho", [0.2, 3.0])
    def test_copies_balance_the_slope(self, rho):
        assert self.loss.has_proximal
        rng = np.random.default_rng(4)
        scores, duals, y = 3 * rng.normal(size=200), rng.normal(size=200), rng.choice(self.labels, 200)
        for noisy, labels in ((False, y), (True, y)) if self.loss.kind == "classification" else ((False, y),):
            z = self.loss.copies(scores, duals, labels, rho, noisy=noisy)
            slope = [self.loss.derivative(z + step, y) + rho * (z + step - scores) - duals for step in (-1e-9, 1e-9)]
            assert np.all(slope[0] <= 1e-12)
            assert np.all(slope[1] >= -1e-12)

    def test_round_trip_through_name_and_parameters(self):
        again = losses.get(self.loss.name, **json.loads(json.dumps(self.loss.parameters())))
        assert again == self.loss
        assert hash(again) == hash(self.loss)

    def test_is_frozen(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            self.loss.name = "other"  # type: ignore[misc]


class DualContract(LossContract):
    """What a convex loss keeps besides."""

    outside: ClassVar[tuple[float, ...]] = ()  # slopes at y = 1 where the conjugate is infinite

    def test_fenchel_young(self):
        u, y = self.grid()
        slope = self.loss.derivative(u, y)
        value = self.loss.value(u, y)
        np.testing.assert_allclose(value + self.loss.conjugate(slope, y), u * slope, atol=1e-8)
        for p in np.random.default_rng(2).permuted(slope.reshape(len(self.labels), -1), axis=1)[:, :200].T:
            p = np.repeat(p, len(u) // len(self.labels))  # slopes of the same label, at other scores
            assert np.all(value + self.loss.conjugate(p, y) >= u * p - 1e-9)

    def test_conjugate_is_infinite_outside_its_domain(self):
        p = np.array(self.outside)
        assert np.all(np.isposinf(self.loss.conjugate(p, np.ones_like(p))))
        assert np.all(np.isfinite(self.loss.conjugate(np.array([-1.0, -0.5, -0.0]) * 0.99, np.ones(3))))

    def dual_objective(self, z, a, y, m, s):
        return float(self.loss.conjugate(np.array(-a - z), np.array(y))) + m * z + s * z * z / 2

    def test_exact_dual_step_is_the_minimiser(self):
        columns = self.dual_cases()
        steps = self.loss.dual_step_exact(*columns)
        for step, a, y, m, s in zip(steps, *columns, strict=True):
            reach = min(self.loss.lipschitz(), 20.0)
            ends = sorted((0.0, y)) if self.loss.kind == "classification" else (-reach, reach)
            result = minimize_scalar(
                self.dual_objective,
                args=(a, y, m, s),
                bounds=(ends[0] - a, ends[1] - a),
                method="bounded",
                options={"xatol": 1e-11},
            )
            assert step == pytest.approx(result.x, abs=1e-6)
            assert self.dual_objective(step, a, y, m, s) <= result.fun + 1e-10

    def test_dual_step_of_a_null_row_is_finite(self):
        # A null row has m = s = 0; what remains is the minimiser of l*(-a), which is -l'(0).
        for y in self.labels:
            a = np.array([0.0, 0.3 * y])
            step = self.loss.dual_step_exact(a, np.full(2, y), np.zeros(2), np.zeros(2))
            np.testing.assert_allclose(a + step, -self.loss.derivative(np.zeros(2), np.full(2, y)), atol=1e-12)

    def test_fixed_point_is_the_optimum(self):
        # With v = x a and one record (lam N = 1, |x|^2 = s), steps lead to a = -l'(u) at u = s a.
        s = np.array(0.7)
        for y in self.labels:
            label, a = np.array(y), np.array(0.4 * y)
            for _ in range(200):
                a = a + self.loss.dual_step(a, label, s * a, s)
            assert a == pytest.approx(-self.loss.derivative(s * a, label), abs=1e-9)


class TestSquared(DualContract):
    loss = Squared()

    def formula(self, u, y):
        return (u - y) ** 2 / 2


class TestHuber(DualContract):
    loss = Huber(threshold=1.5)
    kinks = (-1.5, 1.5)
    outside = (-1.6, 1.6, 9.0)

    def formula(self, u, y):
        r, k = abs(u - y), 1.5
        return r * r / 2 if r <= k else k * r - k * k / 2


class TestLogistic(DualContract):
    loss = Logistic()
    outside = (0.1, -1.1)

    def formula(self, u, y):
        t = y * u
        return math.log1p(math.exp(-t)) if t > 0 else -t + math.log1p(math.exp(t))

    def test_slope_keeps_its_digits_in_the_tail(self):
        u = np.array([-30.0, 30.0, 200.0, 690.0])
        np.testing.assert_allclose(self.loss.derivative(u, np.ones(4)), -expit(-u), rtol=1e-14)

    def test_dual_step_is_the_published_newton_step(self):
        a, y, m, s = self.dual_cases()
        box = 1e-4
        a = y * np.clip(a * y, box, 1 - box)
        b = y * a
        moved = a - (y * np.log(b / (1 - b)) + m) / (1 / (b * (1 - b)) + s)
        expected = y * np.clip(y * moved, box, 1 - box) - a
        np.testing.assert_allclose(self.loss.dual_step(a, y, m, s), expected, rtol=1e-12, atol=1e-15)

    def test_dual_step_counts_from_inside_the_box(self):
        m, s = np.array(0.3), np.array(2.0)
        for y in (np.array(-1.0), np.array(1.0)):
            for outside, inside in ((-5.0, 1e-4), (0.0, 1e-4), (1.0, 1 - 1e-4)):
                step = self.loss.dual_step(outside * y, y, m, s)
                assert step == self.loss.dual_step(inside * y, y, m, s)

    def test_exact_step_solves_extreme_problems(self):
        s, m = (axis.ravel() for axis in np.meshgrid(10.0 ** np.arange(-8, 13), np.linspace(-50, 50, 41)))
        y, a = np.ones_like(s), np.full_like(s, 0.3)
        b = a + self.loss.dual_step_exact(a, y, m, s)
        assert np.all((b >= 0) & (b <= 1))
        inside = (b > 1e-3) & (b < 1 - 1e-3)
        residual = np.log(b[inside] / (1 - b[inside])) + m[inside] + s[inside] * (b[inside] - a[inside])
        assert np.abs(residual / (1 + s[inside])).max() < 1e-11
        assert inside.sum() > 100


class TestHinge(DualContract):
    loss = Hinge()
    kinks = (1.0,)
    outside = (0.1, -1.1)

    def formula(self, u, y):
        return max(0.0, 1 - y * u)


class TestSmoothedHinge(DualContract):
    loss = SmoothedHinge()
    kinks = (0.0, 1.0)
    outside = (0.1, -1.1)

    def formula(self, u, y):
        t, g = y * u, self.loss.parameters()["smoothing"]
        if t >= 1:
            return 0.0
        return 1 - t - g / 2 if t <= 1 - g else (1 - t) ** 2 / (2 * g)

    def test_approaches_the_hinge(self):
        u, y = self.grid()
        gap = Hinge().value(u, y) - SmoothedHinge(1e-6).value(u, y)
        assert np.all((gap >= 0) & (gap <= 1e-6))


class TestNarrowSmoothedHinge(TestSmoothedHinge):
    loss = SmoothedHinge(smoothing=0.25)
    kinks = (0.75, 1.0)


class TestSigmoid(LossContract):
    loss = Sigmoid()

    def formula(self, u, y):
        t = y * u
        return math.exp(-max(t, 0.0)) / (1 + math.exp(-abs(t)))

    def test_has_no_dual_and_says_who_has(self):
        one = np.ones(1)
        for call in (
            lambda: self.loss.conjugate(one, one),
            lambda: self.loss.dual_step(one, one, one, one),
            lambda: self.loss.dual_step_exact(one, one, one, one),
        ):
            with pytest.raises(InputError, match=r"'sigmoid'.*hinge, huber, logistic, smoothed_hinge, squared"):
                call()


def contracts(cls: type[LossContract] = LossContract) -> set[type[LossContract]]:
    return {cls}.union(*(contracts(sub) for sub in cls.__subclasses__()))


def test_every_registered_loss_keeps_the_contract():
    tested = {cls.loss for cls in contracts() if hasattr(cls, "loss")}
    assert {loss.name for loss in tested} == set(losses.names())
    dual = {cls.loss.name for cls in contracts(DualContract) if hasattr(cls, "loss")}
    assert dual == {loss.name for loss in tested if loss.convex and loss.kind in ("classification", "regression")}


class _WrongSlope(Logistic):
    def _to_slope(self, t):
        super()._to_slope(t)
        t *= 1.001


def test_the_contract_rejects_a_slope_that_is_a_thousandth_too_steep():
    suite = TestLogistic()
    suite.loss = _WrongSlope()
    for check in (
        suite.test_derivative_is_the_slope_of_the_value,
        suite.test_lipschitz_bound_holds_and_is_attained,
        suite.test_fenchel_young,
        lambda: suite.test_mean_curvature_is_the_mean_slope_of_the_derivative(1.0),
    ):
        with pytest.raises(AssertionError):
            check()


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        (
            "ridge",
            {},
            "'ridge' is unknown.*gamma, hazard, hinge, huber, logistic, poisson, sigmoid, smoothed_hinge, squared",
        ),
        ("huber", {"treshold": 1.0}, "treshold.*it takes: threshold"),
        ("logistic", {"alpha": 1.0}, "alpha.*it takes: none"),
        ("huber", {"threshold": 0.0}, "threshold=0.0 must be a positive finite number; half"),
        ("huber", {"threshold": math.nan}, "threshold=nan"),
        ("huber", {"threshold": math.inf}, "threshold=inf"),
        ("huber", {"threshold": "1"}, "threshold='1'"),
        ("smoothed_hinge", {"smoothing": -1.0}, "smoothing=-1.0.*'hinge'"),
    ],
)
def test_bad_choices_are_explained(name, parameters, message):
    with pytest.raises(InputError, match=message):
        losses.get(name, **parameters)


def test_lipschitz_refuses_what_is_no_bound():
    with pytest.raises(InputError, match="label_bound=0"):
        Logistic().lipschitz(0)


class MeanContract(LossContract):
    """Labels are none below 0, slopes have no bound, and scores beyond 690 count as these."""

    @property
    def labels(self) -> tuple[float, ...]:
        return (0.0, 1.0, 3.0)

    def grid(self, margin: float = 0.0):
        u, y = (axis.ravel() for axis in np.meshgrid(np.linspace(-3, 3, 601) + 1e-3, self.labels))
        return u, y

    def test_curvature_bound_holds_and_is_attained(self):
        assert math.isinf(self.loss.curvature_bound)

    def test_copies_balance_the_slope(self):  # type: ignore[override]
        assert not self.loss.has_proximal

    @pytest.mark.parametrize("variance", [0.01, 0.5, 3.0])
    def test_mean_curvature_is_the_mean_slope_of_the_derivative(self, variance):
        """At scores whose mean is the typical count, and counts of the mean that the score says."""

        def integrand(z):
            u = np.array(self.typical + math.sqrt(variance) * z - variance / 2)
            bend = float(self.loss.curvature(u, np.exp(u)))
            return bend * math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)

        assert self.loss.mean_curvature(variance) == pytest.approx(quad(integrand, -9, 9)[0], rel=1e-6)

    @pytest.mark.parametrize("size", [36.0, 710.0, 746.0, 1e5, 1e100])
    def test_huge_scores_stay_finite(self, size):
        for label in self.labels:
            u, y = np.array([-size, size]), np.full(2, label)
            with np.errstate(over="raise", invalid="raise"):
                found = self.loss.value(u, y), self.loss.derivative(u, y), self.loss.curvature(u, y)
            assert np.isfinite(found).all()

    def test_a_cut_slope_is_within_the_cut_and_on_the_grid(self):
        u, y = self.grid()
        labels = np.append(y, [3.0, 0.0, 3.0, math.nan])
        scores = np.append(u, [1e300, -1e300, -1e300, 0.0])
        for most in (1e-3, 0.75, 40.0):
            terms = Slope(self.loss, 1.0, 20, most)(scores, labels)
            assert np.abs(terms).max() <= 1.0
            assert np.all(np.trunc(terms * 2**20) == terms * 2**20)
            within = np.abs(terms) < 1 - 1e-5
            slopes = self.loss.derivative(scores, labels)[within] / most
            np.testing.assert_allclose(terms[within], slopes, atol=2**-19)
        assert terms[-1] == 1.0

    def test_the_slope_is_0_on_average_at_the_mean_whatever_the_law(self):
        u = np.array([-1.0, 0.3, 1.2])
        assert np.allclose(self.loss.derivative(u, np.exp(u)), 0.0, atol=1e-12)


class TestCount(MeanContract):
    loss = Count(phi=0.4, typical=0.8)
    typical = math.log(0.8)

    def formula(self, u, y):
        q = math.sqrt(0.4 * math.exp(u))
        return 2 / 0.4 * (q - math.log1p(q)) + 2 * y * math.log((1 + q) / q)


class TestHazard(TestCount):
    """Labels without times have the exposure 1."""

    loss = Hazard(phi=0.4, typical=0.8, periods=(0.0, 1.0, 3.0), rates=(0.1, 0.2))


class TestPoisson(TestCount):
    """Without phi half the deviance of Poisson's likelihood."""

    loss = Count(typical=0.8)

    def formula(self, u, y):
        mean = math.exp(u)
        return (y * math.log(y / mean) if y else 0.0) - y + mean

    def test_a_slope_affine_in_the_label_is_psi_less_phi_times_it(self):
        pass  # it is, and no solver that would use it takes counts


class TestPositive(MeanContract):
    loss = Positive()
    typical = 0.0

    @property
    def labels(self) -> tuple[float, ...]:
        return (0.2, 1.0, 3.0)

    def formula(self, u, y):
        return u + y * math.exp(-u) - 1 - math.log(y)


def rated(counts, exposures):
    found = np.empty(len(counts), dtype=[("label", float), ("exposure", float)])
    found["label"], found["exposure"] = counts, exposures
    return found


@pytest.mark.parametrize("loss", [Count(), Count(phi=0.3), Count(phi=40.0)])
def test_exposures_multiply_the_mean_and_never_the_weight(loss):
    u, h = np.linspace(-2, 2, 41), 1e-6
    y = rated(np.tile([0.0, 2.0], 21)[:41], np.linspace(0.1, 3, 41))
    weight = 1 + np.sqrt(loss.phi * np.exp(u))
    slope = (y["exposure"] * np.exp(u) - y["label"]) / weight
    np.testing.assert_allclose(loss.derivative(u, y), slope, rtol=1e-12)
    np.testing.assert_allclose((loss.value(u + h, y) - loss.value(u - h, y)) / (2 * h), slope, atol=1e-7)
    bend = (loss.derivative(u + h, y) - loss.derivative(u - h, y)) / (2 * h)
    np.testing.assert_allclose(loss.curvature(u, y), bend, atol=1e-6)
    assert np.all(loss.curvature(u, y) > 0)


def test_no_exposure_and_no_event_is_no_slope():
    y = rated([0.0, 0.0], [0.0, 1.0])
    assert Count(phi=0.5).derivative(np.array([800.0, -800.0]), y).tolist()[0] == 0.0
    assert Count().value(np.zeros(2), y).tolist() == [0.0, 1.0]


def followed(*people):
    return np.array(list(people), dtype=[("label", float), ("time", float), ("entry", float)])


def test_times_are_exposures_by_the_rates_of_their_periods():
    loss = Hazard(phi=0.3, periods=(0.0, 1.0, 3.0), rates=(0.1, 0.2))
    y = followed((1.0, 0.5, 0.0), (0.0, 2.0, 0.0), (1.0, 3.0, 0.5), (0.0, 0.0, 0.0))
    exposures = [0.05, 0.3, 0.45, 0.0]
    np.testing.assert_allclose(loss.counted(y)[1], exposures, rtol=1e-15)
    u = np.array([-0.3, 0.2, 0.0, 700.0])
    np.testing.assert_allclose(loss.derivative(u, y), Count(phi=0.3).derivative(u, rated(y["label"], exposures)))
    told = loss.hearing({"phi": np.array([0.7]), "rates": np.array([1.0, 2.0])})
    assert (told.phi, told.rates, told.periods) == (0.7, (1.0, 2.0), loss.periods)


@pytest.mark.parametrize("periods", [(), (0.0,), (1.0, 2.0), (0.0, 2.0, 2.0), (0.0, math.nan), (0.0, math.inf), "ab"])
def test_periods_rise_from_0(periods):
    with pytest.raises((InputError, ValueError), match=r"periods|could not convert"):
        Hazard(periods=periods)


def test_phi_follows_the_residual_between_a_floor_and_the_largest_count():
    floor = Count().knowing(KnownLabels(residual=1e-9, mean=0.01, most=10.0))
    top = Count().knowing(KnownLabels(residual=1e9, mean=2.0, most=10.0))
    assert (floor.phi, top.phi) == (0.1, 10.0)
    poisson = Count().knowing(KnownLabels(residual=0.8 * math.sqrt(30.0), mean=30.0, exposure=0.5, most=100.0))
    assert poisson.phi == pytest.approx(0.5)  # 1, in units of the exposure
    assert poisson.typical == 60.0


@pytest.mark.parametrize("phi", [-1.0, math.nan, math.inf])
def test_phi_is_a_number_from_0(phi):
    with pytest.raises(InputError, match="phi="):
        Count(phi=phi)
