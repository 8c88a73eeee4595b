"""The joint loss of several classes: shares of the classes from a row of scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sottovoce.errors import InputError
from sottovoce.losses.base import _SEVERAL, Vector
from sottovoce.losses.several import ClassesLoss

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(61)


@dataclass(frozen=True)
class Softmax(ClassesLoss):
    """l(u, y) = log sum_k exp(u_k) - u_y. Adding a number to a row of scores changes nothing."""

    classes: float

    name: ClassVar[str] = "softmax"
    relative: ClassVar[bool] = True
    slope_bound: ClassVar[float] = math.sqrt(2.0)  # |p - e_y|
    curvature_bound: ClassVar[float] = 0.5  # of diag(p) - p p', a matrix (Boehning 1992)

    def __post_init__(self) -> None:
        if not (self.classes == int(self.classes) and self.classes >= 2):
            raise InputError(f"classes={self.classes!r} must be a whole number from 2.")

    @property
    def outputs(self) -> int:
        return int(self.classes)

    def value(self, u: Vector, y: Vector) -> Vector:
        """The logarithm of the sum of exp(u), less u_y."""
        moved = u - u.max(axis=1, keepdims=True)
        return np.asarray(np.log(np.exp(moved).sum(axis=1)) - moved[np.arange(len(y)), y.astype(np.int64)])

    def sides(self, u: Vector) -> tuple[Vector, Vector]:
        """Shares, and shares less 1: l'(u, y) = p - e_y."""
        shares = self.shares(u)
        return shares, shares - 1.0

    def curvature(self, u: Vector, y: Vector) -> Vector:  # noqa: ARG002
        """The diagonal, p (1 - p)."""
        shares = self.shares(u)
        return np.asarray(shares * (1 - shares))

    def constant(self, shares: Vector) -> Vector:
        """The logarithms of the shares, less their mean."""
        found = np.log(shares)
        return np.asarray(found - found.mean())

    def mean_curvatures(self, shares: Vector, variances: Vector) -> Vector:
        """Of each class the mean of p (1 - p) / (1 - share), p = sigma(u), E p about the share.

        diag(p) - p p' is diag(p), but for the direction in which all scores move alike: so p and not p (1 - p).
        """
        centre = np.log(shares / (1 - shares)) * np.sqrt(1 + math.pi / 8 * variances)
        p = 1 / (1 + np.exp(-np.clip(centre[:, None] + np.sqrt(variances)[:, None] * _NODES, -500, 500)))
        return np.asarray((p * (1 - p)) @ _WEIGHTS / _WEIGHTS.sum() / (1 - shares))

    @staticmethod
    def shares(u: Vector) -> Vector:
        """p: what the scores say of each class."""
        found = np.exp(u - u.max(axis=1, keepdims=True))
        found /= found.sum(axis=1, keepdims=True)
        return np.asarray(found)


_SEVERAL[Softmax.name] = Softmax
