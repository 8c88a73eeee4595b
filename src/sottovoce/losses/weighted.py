"""Class weights: a record's loss is multiplied by the public weight of its class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sottovoce.losses.base import Kind, Loss, Vector, Wrapping
from sottovoce.losses.several import ClassesLoss


@dataclass(frozen=True)
class Weighted(Wrapping):
    """l(u, y) = c_y inner(u, y), with weights 0 < c <= 1 in the order of the classes.

    So no slope and no curvature is larger than without weights, and every bound of the loss holds as it is. What
    depends on more than these, a dual, a z-update, a compiled loop, it does not have.
    """

    inner: Loss
    weights: tuple[float, ...]

    kind: ClassVar[Kind] = "classification"
    weighted: ClassVar[bool] = True

    @property
    def outputs(self) -> int:
        return self.inner.outputs

    @property
    def slope_bound(self) -> float:
        return self.inner.slope_bound

    def value(self, u: Vector, y: Vector) -> Vector:
        return np.asarray(self.of(y) * self.inner.value(u, y))

    def derivative(self, u: Vector, y: Vector, out: Vector | None = None) -> Vector:
        return np.multiply(self._along(u, y), self.inner.derivative(u, y), out=out)

    def curvature(self, u: Vector, y: Vector) -> Vector:
        return np.asarray(self._along(u, y) * self.inner.curvature(u, y))

    def mean_curvature(self, variance: float) -> float:
        """That of the loss: what the records weigh on average is not public."""
        return self.inner.mean_curvature(variance)

    def of(self, y: Vector) -> Vector:
        """The weights of the labels: -1 and +1, or the places of several classes."""
        places = (y > 0.0).astype(np.int64) if self.outputs == 1 else y.astype(np.int64)
        return np.asarray(np.array(self.weights)[places])

    def _along(self, u: Vector, y: Vector) -> Vector:
        return self.of(y) if u.ndim == 1 else self.of(y)[:, None]


@dataclass(frozen=True)
class WeightedClasses(Weighted, ClassesLoss):
    """The same for several classes: shares of the classes are shares of the weight."""

    inner: ClassesLoss

    @property
    def relative(self) -> bool:  # type: ignore[override]
        return self.inner.relative

    def sides(self, u: Vector) -> tuple[Vector, Vector]:
        """Of the loss, without weights: a label's weight multiplies a whole row."""
        return self.inner.sides(u)

    def slopes(self, u: Vector, y: Vector) -> tuple[Vector, Vector]:
        """Rows times the weights of their labels, lengths times those of the classes."""
        slopes, lengths = self.inner.slopes(u, y)
        return slopes * self.of(y)[:, None], lengths * np.array(self.weights)

    def constant(self, shares: Vector) -> Vector:
        return self.inner.constant(self.reweighted(shares))

    def mean_curvatures(self, shares: Vector, variances: Vector) -> Vector:
        return self.inner.mean_curvatures(self.reweighted(shares), variances) * float(shares @ np.array(self.weights))

    def reweighted(self, shares: Vector) -> Vector:
        found = shares * np.array(self.weights)
        return np.asarray(found / found.sum())


def weighted(loss: Loss, weights: tuple[float, ...]) -> Loss:
    """The loss with these class weights."""
    return WeightedClasses(loss, weights) if isinstance(loss, ClassesLoss) else Weighted(loss, weights)
