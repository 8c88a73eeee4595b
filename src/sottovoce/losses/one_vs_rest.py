"""Several classes by a loss of two: each class against all others, added up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sottovoce.losses.base import Loss, Vector, Wrapping
from sottovoce.losses.several import ClassesLoss

LEAST = 0.25  # variance of the scores below which a kink would count as if all of them were on it
_Z = np.linspace(-6.0, 6.0, 241)
_DENSITY = np.exp(-_Z * _Z / 2) / np.exp(-_Z * _Z / 2).sum()


@dataclass(frozen=True)
class OneVsRest(Wrapping, ClassesLoss):
    """l(u, y) = sum_k inner(u_k, +1 if k is the class of y, else -1).

    Its minimum is that of the classes' own problems, each with the labels +1 and -1. Its curvature is a diagonal
    matrix: no class's score bends another's. A row of slopes is at most sqrt(classes) times as long as a slope, which
    the hinge attains at scores of 0.
    """

    inner: Loss
    classes: int

    @property
    def outputs(self) -> int:
        return self.classes

    @property
    def slope_bound(self) -> float:
        """Of a row: sqrt(classes) times that of a number."""
        return math.sqrt(self.outputs) * self.inner.slope_bound

    def value(self, u: Vector, y: Vector) -> Vector:
        """The sum over the classes."""
        return np.asarray(self._each(self.inner.value, u, self._signs(u, y)).sum(axis=1))

    def sides(self, u: Vector) -> tuple[Vector, Vector]:
        """The slopes at the labels -1 and +1."""
        ones = np.ones_like(u)
        return self._each(self.inner.derivative, u, -ones), self._each(self.inner.derivative, u, ones)

    def curvature(self, u: Vector, y: Vector) -> Vector:
        """The diagonal."""
        return self._each(self.inner.curvature, u, self._signs(u, y))

    def constant(self, shares: Vector) -> Vector:
        """Where share l'(u, 1) + (1 - share) l'(u, -1) turns from below 0 to above it, within 30 of 0."""
        return np.array(_constant(self, tuple(shares.tolist())))

    def mean_curvatures(self, shares: Vector, variances: Vector) -> Vector:
        """E l''(s) = E l'(s) z / deviation, s = constant + deviation z (Stein): kinks of l and jumps of l' count."""
        deviations = np.sqrt(np.maximum(variances, LEAST))
        slopes = self.mean_slopes(self.constant(shares) + deviations * _Z[:, None], shares)
        return np.asarray((_DENSITY * _Z) @ slopes / deviations)

    def mean_slopes(self, u: Vector, shares: Vector) -> Vector:
        """Of the scores of each class, over its own records and the others."""
        others, own = self.sides(u)
        return np.asarray(shares * own + (1 - shares) * others)

    @staticmethod
    def _signs(u: Vector, y: Vector) -> Vector:
        signs = np.full(u.shape, -1.0)
        signs[np.arange(len(y)), y.astype(np.int64)] = 1.0
        return signs

    @staticmethod
    def _each(function: object, u: Vector, signs: Vector) -> Vector:
        """Of every score, as numbers of their own in double precision, whatever a registered loss returns."""
        found = function(u.ravel(), signs.ravel())  # type: ignore[operator]
        return np.array(found, dtype=np.float64).reshape(u.shape)


@lru_cache(maxsize=4)  # asked for again and again in a run
def _constant(loss: OneVsRest, shares: tuple[float, ...]) -> tuple[float, ...]:
    low, high = np.full(len(shares), -30.0), np.full(len(shares), 30.0)
    for _ in range(60):
        middle = (low + high) / 2
        falling = loss.mean_slopes(middle[None, :], np.array(shares))[0] < 0.0
        low, high = np.where(falling, middle, low), np.where(falling, high, middle)
    return tuple(((low + high) / 2).tolist())
