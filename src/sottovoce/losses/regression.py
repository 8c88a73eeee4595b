"""Losses of the residual r = u - y, for labels on the line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import ndtr

from sottovoce.losses import kernels
from sottovoce.losses.base import ROUNDING, Kind, Loss, Vector, check_positive, deviation, register


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
@dataclass(frozen=True)
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
@dataclass(frozen=True)
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
