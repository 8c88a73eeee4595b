"""Losses of several classes, a row of scores for each record and one score for each class; and class weights."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from sottovoce.errors import InputError
from sottovoce.losses.base import SEVERAL, Kind, Loss, Vector, Wrapping

LEAST = 0.25  # variance of the scores below which a kink would count as if all of them were on it
_Z = np.linspace(-6.0, 6.0, 241)
_DENSITY = np.exp(-_Z * _Z / 2) / np.exp(-_Z * _Z / 2).sum()
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(61)


class ClassesLoss(Loss):
    """A loss of a row of scores u; labels are the places of the classes, 0, 1, ...

    Scores, slopes and curvatures have a column for each class. A score has one slope where the label is its class, and
    one where it is any other.
    """

    kind: ClassVar[Kind] = "classification"
    relative: ClassVar[bool] = False  # whether adding a number to a row of scores changes nothing
    probabilities: ClassVar[bool] = False  # whether scores say how likely each class is

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
        return _at_labels(*self.sides(u), y)

    def mean_curvature(self, _variance: float) -> float:
        raise InputError(f"loss={self.name!r} has no curvature of one score.")

    def class_scores(self, score: Callable[[int], Vector]) -> Iterator[Vector]:
        """What says how likely each class is, but for a number of the record: its scores, given one by one."""
        return map(score, range(self.outputs))

    def reweighted(self, shares: Vector) -> Vector:
        """The shares of the classes in the sum of the losses: those of the records, unless classes have weights."""
        return shares


def _at_labels(others: Vector, own: Vector, y: Vector) -> Vector:
    """`others`, with `own` in the places of the labels."""
    place = np.arange(len(y)), y.astype(np.int64)
    others[place] = own[place]
    return others


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
    def outputs(self) -> int:  # type: ignore[override]
        return self.classes

    @property
    def slope_bound(self) -> float:
        return math.sqrt(self.outputs) * self.inner.slope_bound

    def value(self, u: Vector, y: Vector) -> Vector:
        return np.asarray(self._each(self.inner.value, u, self._signs(u, y)).sum(axis=1))

    def sides(self, u: Vector) -> tuple[Vector, Vector]:
        ones = np.ones_like(u)
        return self._each(self.inner.derivative, u, -ones), self._each(self.inner.derivative, u, ones)

    def curvature(self, u: Vector, y: Vector) -> Vector:
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


@dataclass(frozen=True)
class Softmax(ClassesLoss):
    """l(u, y) = log sum_k exp(u_k) - u_y. Adding a number to a row of scores changes nothing."""

    classes: float

    name: ClassVar[str] = "softmax"
    probabilities: ClassVar[bool] = True
    relative: ClassVar[bool] = True
    slope_bound: ClassVar[float] = math.sqrt(2.0)  # |p - e_y|
    curvature_bound: ClassVar[float] = 0.5  # of diag(p) - p p', a matrix (Boehning 1992)

    def __post_init__(self) -> None:
        if not (self.classes == int(self.classes) and self.classes >= 2):
            raise InputError(f"classes={self.classes!r} must be a whole number from 2.")

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return int(self.classes)

    def value(self, u: Vector, y: Vector) -> Vector:
        moved = u - u.max(axis=1, keepdims=True)
        return np.asarray(np.log(np.exp(moved).sum(axis=1)) - moved[np.arange(len(y)), y.astype(np.int64)])

    def sides(self, u: Vector) -> tuple[Vector, Vector]:
        """Shares, and shares less 1: l'(u, y) = p - e_y."""
        shares = self.shares(u)
        return shares, shares - 1.0

    def curvature(self, u: Vector, _y: Vector) -> Vector:
        shares = self.shares(u)
        return np.asarray(shares * (1 - shares))

    def constant(self, shares: Vector) -> Vector:
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


SEVERAL[Softmax.name] = Softmax


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
    def outputs(self) -> int:  # type: ignore[override]
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

    @property
    def probabilities(self) -> bool:  # type: ignore[override]
        return self.inner.probabilities

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
