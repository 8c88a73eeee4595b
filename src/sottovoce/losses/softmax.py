"""The loss of several classes: a row of scores for each record, one score for each class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sottovoce.errors import InputError
from sottovoce.losses.base import _SEVERAL, Kind, Loss, Vector


@dataclass(frozen=True)
class Softmax(Loss):
    """l(u, y) = log sum_k exp(u_k) - u_y; labels are the places of the classes, 0, 1, ...

    Scores, slopes and curvatures have a column for each class. Adding a number to a row of scores changes nothing.
    """

    classes: float

    name: ClassVar[str] = "softmax"
    kind: ClassVar[Kind] = "classification"
    slope_bound: ClassVar[float] = math.sqrt(2.0)  # |p - e_y|
    curvature_bound: ClassVar[float] = 0.5  # of diag(p) - p p', a matrix (Boehning 1992)

    def __post_init__(self) -> None:
        if not (self.classes == int(self.classes) and self.classes >= 2):
            raise InputError(f"classes={self.classes!r} must be a whole number from 2.")

    @property
    def outputs(self) -> int:
        """One score for each class."""
        return int(self.classes)

    def value(self, u: Vector, y: Vector) -> Vector:
        """The logarithm of the sum of exp(u), less u_y."""
        moved = u - u.max(axis=1, keepdims=True)
        return np.asarray(np.log(np.exp(moved).sum(axis=1)) - moved[np.arange(len(y)), y.astype(np.int64)])

    def derivative(self, u: Vector, y: Vector, out: Vector | None = None) -> Vector:  # noqa: ARG002
        """Shares less 1 for the class of the label: p - e_y."""
        shares = self.shares(u)
        shares[np.arange(len(y)), y.astype(np.int64)] -= 1.0
        return shares

    def curvature(self, u: Vector, y: Vector) -> Vector:  # noqa: ARG002
        """The diagonal, p (1 - p)."""
        shares = self.shares(u)
        return np.asarray(shares * (1 - shares))

    def mean_curvature(self, variance: float) -> float:  # noqa: ARG002
        """Not of one number: `algorithms/whitened/classes.py` has that of each class."""
        raise InputError(f"loss={self.name!r} has no curvature of one score.")

    @staticmethod
    def shares(u: Vector) -> Vector:
        """p: what the scores say of each class."""
        found = np.exp(u - u.max(axis=1, keepdims=True))
        found /= found.sum(axis=1, keepdims=True)
        return np.asarray(found)


_SEVERAL[Softmax.name] = Softmax
