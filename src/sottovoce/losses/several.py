"""Losses of several classes: a row of scores for each record, one score for each class."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from sottovoce.errors import InputError
from sottovoce.losses.base import Kind, Loss, Vector


class ClassesLoss(Loss):
    """A loss of a row of scores u; labels are the places of the classes, 0, 1, ...

    Scores, slopes and curvatures have a column for each class. A score has one slope where the label is its class, and
    one where it is any other.
    """

    kind: ClassVar[Kind] = "classification"
    relative: ClassVar[bool] = False  # whether adding a number to a row of scores changes nothing

    @abstractmethod
    def sides(self, u: Vector) -> tuple[Vector, Vector]:
        """The slopes of each score where the label is another class and where it is its own: arrays of their own."""

    @abstractmethod
    def constant(self, shares: Vector) -> Vector:
        """The scores of the model that says the same of everybody, where the classes have these shares."""

    @abstractmethod
    def mean_curvatures(self, shares: Vector, variances: Vector) -> Vector:
        """Of each class the mean curvature, where its scores are normal of that variance about the constant model."""

    def slopes(self, u: Vector, y: Vector) -> tuple[Vector, Vector]:
        """The rows l'(u, y), and how long they would be for each label: |l'(u, k)|, a column for each class k."""
        others, own = self.sides(u)
        squares = others * others
        lengths = np.sqrt(np.maximum(squares.sum(axis=1, keepdims=True) - squares + own * own, 0.0))
        return _at_labels(others, own, y), lengths

    def derivative(self, u: Vector, y: Vector, out: Vector | None = None) -> Vector:  # noqa: ARG002
        """The rows l'(u, y)."""
        return _at_labels(*self.sides(u), y)

    def mean_curvature(self, _variance: float) -> float:
        """Not of one number: `mean_curvatures`."""
        raise InputError(f"loss={self.name!r} has no curvature of one score.")

    def reweighted(self, shares: Vector) -> Vector:
        """The shares of the classes in the sum of the losses: those of the records, unless classes have weights."""
        return shares


def _at_labels(others: Vector, own: Vector, y: Vector) -> Vector:
    """`others`, with `own` in the places of the labels."""
    place = np.arange(len(y)), y.astype(np.int64)
    others[place] = own[place]
    return others
