"""A step without damping from a released model, and how far it is from the truth: functions of released values alone.

    w_I = w - P v,    v = A^-1 g
    Cov = P A^-1 [ S + s_g^2 I + c s_A^2/2 (|v|^2 I + v v') ] A^-1 P'

A, S and g are those of rows P'x, S as `Sums.variance` has it. s_g and s_A are the noises of g and of A, whose entries
beside the diagonal have s_A / sqrt 2; so E v, E the noise of A, has the covariance s_A^2/2 (|v|^2 I + v v').
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.whitened.rule import denoised

Array = NDArray[np.float64]

CAUTION = 4.0  # times the noise of A where some direction of it is lost: v is then underestimated


@dataclass(frozen=True)
class Sums:
    """Over the records, at the released model, of rows P'x: curvature A, squared slopes S, gradient g; their noises."""

    projection: Array
    curvature: Array
    squares: Array
    gradient: Array
    curvature_noise: float
    squares_noise: float
    gradient_noise: float

    @property
    def variance(self) -> Array:
        """S, drawn to a multiple of A as far as noise rules: the positive part of James and Stein's rule.

        With residuals of equal size, and with odds that are right, S is a multiple of A. One number of it is known
        better than all of its entries, whose noise has the squared norm s_S^2 d (d + 1) / 2.
        """
        d = len(self.squares)
        known = max(float(np.trace(self.curvature)), self.curvature_noise * math.sqrt(d), 1e-100)  # its noise is that
        alike = max(float(np.trace(self.squares)), 0.0) / known * self.curvature
        apart = self.squares - alike
        norm = max(float((apart * apart).sum()), 1e-300)
        return np.asarray(alike + max(0.0, 1.0 - self.squares_noise**2 * d * (d + 1) / 2 / norm) * apart)


class OneStep:
    """The step from `weights`."""

    def __init__(self, sums: Sums, weights: Array) -> None:
        self._sums, self._variance = sums, sums.variance
        found, self._vectors = np.linalg.eigh(sums.curvature)
        noise, least = sums.curvature_noise, max(float(found[-1]), 1e-300) * 2.0**-40
        self._values = np.maximum(denoised(found, noise) if noise > 0 else found, least)
        self._lost = max(noise * math.sqrt(2 * len(found)), 2 * least)  # the norm of the noise of A
        self._step = self._inverse @ sums.gradient
        self.weights = weights - sums.projection @ self._step

    def identified(self, direction: Array) -> bool:
        """Whether most of the variance of a sum of weights comes from directions of A that stand above its noise."""
        parts = (self._vectors.T @ (self._sums.projection.T @ direction)) ** 2 / self._values
        return bool(parts[self._values < self._lost].sum() <= parts.sum() / 2)

    def error(self, direction: Array) -> float:
        """The standard error of a sum of weights, sampling and noise together."""
        sums, step = self._sums, self._step
        across = self._inverse @ (sums.projection.T @ direction)
        size = float(across @ across)
        caution = CAUTION if self._values[0] < self._lost else 1.0
        from_curvature = sums.curvature_noise**2 / 2 * (float(step @ step) * size + float(across @ step) ** 2)
        sampling = max(float(across @ self._variance @ across), 0.0)  # noise can make it negative
        return math.sqrt(sampling + sums.gradient_noise**2 * size + caution * from_curvature)

    @functools.cached_property
    def _inverse(self) -> Array:
        return np.asarray((self._vectors / self._values) @ self._vectors.T)
