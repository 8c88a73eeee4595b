"""Losses of one score: phi(t) of the margin t = y u, for labels -1 and +1; of the residual r = u - y, on the line."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from scipy.special import expit, ndtr, xlogy

from sottovoce.losses import kernels
from sottovoce.losses.base import ROUNDING, Kind, Loss, Vector, check_positive, deviation, register


class MarginLoss(Loss):
    """l(u, y) = phi(y u) for a decreasing phi; the dual variable of a convex one is a = y b, 0 <= b <= 1.

    Then l*(-a) = phi*(-b), and the dual step minimises phi*(-b) + m y b + s (b - y a)^2 / 2 over b.
    """

    kind: ClassVar[Kind] = "classification"

    def value(self, u: Vector, y: Vector) -> Vector:
        return np.asarray(self._phi(np.multiply(u, y)))

    def derivative(self, u: Vector, y: Vector, out: Vector | None = None) -> Vector:
        work = np.asarray(np.multiply(u, y, out=out), dtype=np.float64)
        self._to_slope(work)
        return np.multiply(work, y, out=work)

    def curvature(self, u: Vector, y: Vector) -> Vector:
        return np.asarray(self._bend(np.multiply(u, y)))

    def mean_curvature(self, variance: float) -> float:
        """E phi''(t) for t ~ N(0, variance), which is the same for both labels.

        The trapezoid rule is exact to rounding for an analytic phi'' that vanishes at the ends: here beyond
        10 deviations or |t| = 40, with 0.2 between points at most (Gauss-Hermite fails at large variances).
        """
        scale = deviation(variance)
        reach = 40 / max(scale, 4.0)
        z, spacing = np.linspace(-reach, reach, 401, retstep=True)
        return float(self._bend(scale * z) @ np.exp(-0.5 * z * z)) * float(spacing) / math.sqrt(2 * math.pi)

    def _denoised(self, y: Vector) -> tuple[Vector | float, Vector]:
        return 0.0, np.where(y < 0.0, -1.0, 1.0)

    def _conjugate(self, p: Vector, y: Vector) -> Vector:
        b = -np.multiply(p, y)
        inside = np.clip(b, 0.0, 1.0)
        return np.where(np.abs(b - inside) <= ROUNDING, self._phi_conjugate(inside), math.inf)

    def _dual_step(self, a: Vector, y: Vector, m: Vector, s: Vector) -> Vector:
        return np.asarray(y * self._dual(np.multiply(a, y), np.multiply(m, y), s) - a)

    @abstractmethod
    def _phi(self, t: Vector) -> Vector: ...

    @abstractmethod
    def _to_slope(self, t: Vector) -> None:
        """Overwrite t with phi'(t): one pass after another over the same memory, in the innermost loop."""

    @abstractmethod
    def _bend(self, t: Vector) -> Vector: ...

    def _phi_conjugate(self, b: Vector) -> Vector:
        """phi*(-b) for 0 <= b <= 1."""
        raise NotImplementedError

    def _dual(self, b: Vector, m: Vector, s: Vector) -> Vector:
        """The b after the step, from the b before it and m y."""
        raise NotImplementedError


@register
class Logistic(MarginLoss):
    """l(u, y) = log(1 + exp(-y u))."""

    name: ClassVar[str] = "logistic"
    slope_bound: ClassVar[float] = 1.0
    curvature_bound: ClassVar[float] = 0.25
    affine_in_label: ClassVar[bool] = True
    code: ClassVar[int | None] = kernels.LOGISTIC
    slope_code: ClassVar[int | None] = kernels.LOGISTIC
    dual_codes: ClassVar[Mapping[str, int]] = MappingProxyType(
        {"slope": kernels.LOGISTIC_SLOPE, "exact": kernels.LOGISTIC_EXACT, "newton": kernels.LOGISTIC}
    )
    box: ClassVar[float] = kernels.BOX

    def slope_bound_within(self, norm: float) -> float:
        return 1.0 / (1.0 + math.exp(-norm))

    def noisy_label_slope(self, u: Vector, y: Vector) -> Vector:
        """(tanh(u / 2) - y) / 2, which is the slope for y = -1 and +1."""
        return np.asarray((np.tanh(u / 2) - y) / 2)

    def _proximal(self, points: Vector, y: Vector, rho: float, start: Vector) -> Vector:
        return np.asarray(kernels.nearest_logistic(points, y, rho, start))

    def _denoised(self, y: Vector) -> tuple[Vector | float, Vector]:
        # log(1 + e^z) - (1 + label) z / 2 is the loss of label 1 and a slope
        return (1 - y) / 2, np.ones(len(y))

    def _phi(self, t: Vector) -> Vector:
        return np.asarray(np.log1p(np.exp(-np.abs(t))) - np.minimum(t, 0.0))

    def _to_slope(self, t: Vector) -> None:
        # -1 / (1 + exp(t)): NumPy's exp is vectorised and makes this nearly three times faster than expit.
        np.minimum(t, 700.0, out=t)
        np.exp(t, out=t)
        t += 1.0
        np.divide(-1.0, t, out=t)

    def _bend(self, t: Vector) -> Vector:
        return np.asarray(expit(t) * expit(-t))

    def _phi_conjugate(self, b: Vector) -> Vector:
        return np.asarray(xlogy(b, b) + xlogy(1 - b, 1 - b))

    def _dual_step(self, a: Vector, y: Vector, m: Vector, s: Vector) -> Vector:
        # As published (Damaskinos et al. 2021), the step counts from the dual variable moved into the box.
        boxed = y * np.clip(np.multiply(a, y), self.box, 1 - self.box)
        return super()._dual_step(boxed, y, m, s)

    def _dual(self, b: Vector, m: Vector, s: Vector) -> Vector:
        slope = np.log(b / (1 - b)) + m
        bend = 1 / (b * (1 - b)) + s
        return np.clip(b - slope / bend, self.box, 1 - self.box)

    def dual_step_exact(self, a: Vector, y: Vector, m: Vector, s: Vector) -> Vector:
        """The minimiser: b = sigma(t), where t + s sigma(t) = s y a - y m.

        The left side is convex below t = 0 and concave above, so Newton's method from 0 never overshoots.
        """
        target = np.asarray(s * np.multiply(a, y) - np.multiply(m, y))
        t = np.zeros_like(target)
        for _ in range(100):
            b = expit(t)
            step = (target - t - s * b) / (1 + s * b * expit(-t))
            t = t + step
            if np.all(np.abs(step) <= 1e-14 * (1 + np.abs(t))):
                break
        return np.asarray(y * expit(t) - a)


@register
class Hinge(MarginLoss):
    """l(u, y) = max(0, 1 - y u); its slope at the kink is taken as 0."""

    name: ClassVar[str] = "hinge"
    smooth: ClassVar[bool] = False
    slope_bound: ClassVar[float] = 1.0
    curvature_bound: ClassVar[float] = math.inf
    code: ClassVar[int | None] = kernels.HINGE
    slope_code: ClassVar[int | None] = kernels.HINGE

    def _proximal(self, points: Vector, y: Vector, rho: float, _start: Vector) -> Vector:
        return _hinge_proximal(points, y, rho, 0.0)

    def mean_curvature(self, variance: float) -> float:
        """The density of N(0, variance) at the kink, t = 1."""
        scale = deviation(variance)
        return math.exp(-0.5 / scale**2) / (scale * math.sqrt(2 * math.pi))

    def _phi(self, t: Vector) -> Vector:
        return np.maximum(0.0, 1 - t)

    def _to_slope(self, t: Vector) -> None:
        # -1 below 1 and 0 from there on; a NaN stays one, which a comparison would hide.
        t -= 1.0
        np.clip(t, -1.0, 0.0, out=t)
        np.floor(t, out=t)

    def _bend(self, t: Vector) -> Vector:
        return np.zeros_like(t, dtype=np.float64)

    def _phi_conjugate(self, b: Vector) -> Vector:
        return -b

    def _dual(self, b: Vector, m: Vector, s: Vector) -> Vector:
        # A null row has s = 0: any tiny curvature then sends b to the end that its slope points at.
        return np.clip(b + (1 - m) / np.maximum(s, 1e-200), 0.0, 1.0)


@register
class SmoothedHinge(MarginLoss):
    """l(u, y) = max over 0 <= b <= 1 of b (1 - y u) - g b^2 / 2, with g = smoothing.

    It is the hinge with its kink replaced by the parabola (1 - y u)^2 / (2 g) on 1 - g <= y u <= 1.
    """

    smoothing: float = 1.0

    name: ClassVar[str] = "smoothed_hinge"
    slope_bound: ClassVar[float] = 1.0
    code: ClassVar[int | None] = kernels.SMOOTHED_HINGE
    slope_code: ClassVar[int | None] = kernels.SMOOTHED_HINGE

    def __post_init__(self) -> None:
        check_positive("smoothing", self.smoothing, "1.0 is the usual choice; for none use the loss 'hinge'")

    @property
    def curvature_bound(self) -> float:
        return 1 / self.smoothing

    def _proximal(self, points: Vector, y: Vector, rho: float, _start: Vector) -> Vector:
        return _hinge_proximal(points, y, rho, self.smoothing)

    def mean_curvature(self, variance: float) -> float:
        """Pr(1 - g <= t <= 1) / g for t ~ N(0, variance)."""
        scale, g = deviation(variance), self.smoothing
        return float(ndtr(1 / scale) - ndtr((1 - g) / scale)) / g

    def _phi(self, t: Vector) -> Vector:
        b = np.clip((1 - t) / self.smoothing, 0.0, 1.0)
        return np.asarray(b * (1 - t - 0.5 * self.smoothing * b))

    def _to_slope(self, t: Vector) -> None:
        t -= 1.0
        t /= self.smoothing
        np.clip(t, -1.0, 0.0, out=t)

    def _bend(self, t: Vector) -> Vector:
        return np.where((t > 1 - self.smoothing) & (t < 1), 1 / self.smoothing, 0.0)

    def _phi_conjugate(self, b: Vector) -> Vector:
        return b * (0.5 * self.smoothing * b - 1)

    def _dual(self, b: Vector, m: Vector, s: Vector) -> Vector:
        g = self.smoothing
        return np.clip(b + (1 - m - g * b) / (g + s), 0.0, 1.0)


def _hinge_proximal(points: Vector, y: Vector, rho: float, smoothing: float) -> Vector:
    """Minus the slope at the margin s is b = clip((1 - s) / g, 0, 1), and s = y t + b / rho."""
    b = np.clip((1 - y * points) * (rho / (1 + rho * smoothing)), 0.0, 1.0)
    return np.asarray(points + y * b / rho)


@register
class Sigmoid(MarginLoss):
    """l(u, y) = 1 / (1 + exp(y u)), a smooth count of the errors; not convex.

    Chosen as the non-convex loss because it needs no scale: a robust regression loss has one in the units
    of the residuals, which could only be picked by looking at the data. A record costs at most 1 however
    wrong its label is, and its slope is at most 1/4, so little noise hides it.
    """

    name: ClassVar[str] = "sigmoid"
    convex: ClassVar[bool] = False
    slope_bound: ClassVar[float] = 0.25
    slope_code: ClassVar[int | None] = kernels.SIGMOID
    curvature_bound: ClassVar[float] = 1 / (6 * math.sqrt(3))

    def _proximal(self, points: Vector, y: Vector, rho: float, start: Vector) -> Vector:
        return np.asarray(kernels.nearest_sigmoid(points, y, rho, start))

    def _phi(self, t: Vector) -> Vector:
        return np.asarray(expit(-t))

    def _to_slope(self, t: Vector) -> None:
        # phi' is even: -e / (1 + e)^2 with e = exp(-|t|).
        np.abs(t, out=t)
        np.negative(t, out=t)
        np.exp(t, out=t)
        t /= -((1.0 + t) ** 2)

    def _bend(self, t: Vector) -> Vector:
        return np.asarray(expit(t) * expit(-t) * np.tanh(0.5 * t))


class ResidualLoss(Loss):
    """r^2 / 2 for |r| <= k and k |r| - k^2 / 2 beyond, where k is the slope bound (infinite: squared loss).

    Its conjugate is l*(p) = p^2 / 2 + p y on |p| <= k.
    """

    kind: ClassVar[Kind] = "regression"
    curvature_bound: ClassVar[float] = 1.0

    def value(self, u: Vector, y: Vector) -> Vector:
        residual = np.abs(np.subtract(u, y))
        slope = np.minimum(residual, self.slope_bound)
        return np.asarray(slope * (residual - 0.5 * slope))

    def derivative(self, u: Vector, y: Vector, out: Vector | None = None) -> Vector:
        residual = np.asarray(np.subtract(u, y, out=out), dtype=np.float64)
        if math.isinf(self.slope_bound):
            return residual
        return np.clip(residual, -self.slope_bound, self.slope_bound, out=residual)

    def curvature(self, u: Vector, y: Vector) -> Vector:
        return np.asarray(np.abs(np.subtract(u, y)) <= self.slope_bound, dtype=np.float64)

    def mean_curvature(self, variance: float) -> float:
        """Pr(|u - 1| <= k) for u ~ N(0, variance)."""
        scale, k = deviation(variance), self.slope_bound
        return float(ndtr((1 + k) / scale) - ndtr((1 - k) / scale))

    def slope_bound_within(self, norm: float) -> float:
        """1 + norm: the largest residual."""
        return 1.0 + norm

    def _proximal(self, points: Vector, y: Vector, rho: float, _start: Vector) -> Vector:
        error = points - y
        slope = np.clip(error * (rho / (1 + rho)), -self.slope_bound, self.slope_bound)
        return np.asarray(points - slope / rho)

    def _conjugate(self, p: Vector, y: Vector) -> Vector:
        inside = np.clip(p, -self.slope_bound, self.slope_bound)
        return np.where(np.abs(p - inside) <= ROUNDING, inside * (0.5 * inside + y), math.inf)

    def _dual_step(self, a: Vector, y: Vector, m: Vector, s: Vector) -> Vector:
        free = a + (y - a - m) / (1 + s)
        return np.asarray(np.clip(free, -self.slope_bound, self.slope_bound) - a)


@register
class Squared(ResidualLoss):
    """l(u, y) = (u - y)^2 / 2."""

    name: ClassVar[str] = "squared"
    slope_bound: ClassVar[float] = math.inf
    quadratic: ClassVar[bool] = True
    affine_in_label: ClassVar[bool] = True
    code: ClassVar[int | None] = kernels.SQUARED
    slope_code: ClassVar[int | None] = kernels.SQUARED

    def noisy_label_slope(self, u: Vector, y: Vector) -> Vector:
        return u - y


@register
class Huber(ResidualLoss):
    """l(u, y) = r^2 / 2 for |r| <= k, k |r| - k^2 / 2 beyond, with r = u - y and k = threshold.

    The threshold is in the units of the label. Clipping the slope of the squared loss to +-k minimises
    this loss.
    """

    threshold: float = 1.0

    name: ClassVar[str] = "huber"
    code: ClassVar[int | None] = kernels.HUBER
    slope_code: ClassVar[int | None] = kernels.HUBER

    def __post_init__(self) -> None:
        check_positive("threshold", self.threshold, "half the label bound is a usual choice")

    @property
    def slope_bound(self) -> float:
        return float(self.threshold)
