"""Proportional odds: ordered classes, one score for each record, and thresholds between the classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import expit, log_expit

from sottovoce.errors import InputError
from sottovoce.losses.base import SEVERAL, Vector
from sottovoce.losses.several import ClassesLoss

SHARE = 0.5  # of a threshold's slope in a row of slopes: more takes room from that of the score, less has more noise
NARROW = 1e-12  # thresholds that are no further apart count as so far apart
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(41)


@dataclass(frozen=True)
class Ordinal(ClassesLoss):
    """l(u, y) = -log(F(t_y - s) - F(t_(y-1) - s)), u = (s, t_1, ..., t_(K-1)), F(a) = 1 / (1 + exp(-a)).

    P(y <= k) = F(t_k - s), t_0 and t_K infinite: with one score s of a record a step up has the same odds from every
    class. A record's scores after the first are thresholds, the same for all records. They rise from class to class.

    `slopes` are what a private sum takes: of the score l' = 1 - F_y - F_(y-1), within (-1, 1) for every label and all
    thresholds, and of a threshold, in its share, that of the two classes that it makes, F_k - 1(y <= k), which is so
    too. Both have the mean 0 where the model is right. (The slope of l at a threshold has no bound.)
    """

    classes: float

    name: ClassVar[str] = "ordinal"
    ordered: ClassVar[bool] = True
    probabilities: ClassVar[bool] = True
    curvature_bound: ClassVar[float] = math.inf  # at thresholds that are close

    def __post_init__(self) -> None:
        if not (self.classes == int(self.classes) and self.classes >= 3):
            raise InputError(f"classes={self.classes!r} must be a whole number from 3.")

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return int(self.classes)

    @property
    def slope_bound(self) -> float:
        """Of a row of `slopes`."""
        return math.sqrt(1 + SHARE**2 * (self.outputs - 1))

    def slopes(self, u: Vector, y: Vector) -> tuple[Vector, Vector]:
        below = _below(u)  # F_0, ..., F_K
        own = 1.0 - below[:, 1:] - below[:, :-1]  # of the score, for each label
        steps, places = SHARE * below[:, 1:-1], np.arange(1, self.outputs)
        # thresholds from the label on, y <= k, have slopes F_k - 1, those before it F_k: squares summed from both ends
        rising = np.cumsum(np.pad(steps**2, ((0, 0), (1, 0))), axis=1)
        falling = np.cumsum(np.pad((SHARE - steps) ** 2, ((0, 0), (0, 1)))[:, ::-1], axis=1)[:, ::-1]
        lengths, labels = np.sqrt(own**2 + rising + falling), y.astype(np.int64)
        rows = np.column_stack([own[np.arange(len(u)), labels], steps - SHARE * (labels[:, None] < places)])
        return rows, lengths

    def sides(self, u: Vector) -> tuple[Vector, Vector]:  # noqa: ARG002
        raise InputError(f"loss={self.name!r} has thresholds, and no slope of one class alone.")

    def value(self, u: Vector, y: Vector) -> Vector:
        return -np.take_along_axis(log_shares(u), y.astype(np.int64)[:, None], axis=1)[:, 0]

    def derivative(self, u: Vector, y: Vector, out: Vector | None = None) -> Vector:  # noqa: ARG002
        upper, lower, labels = *ends(u, y)[2:], y.astype(np.int64)
        found, every = np.zeros(u.shape), np.arange(len(u))
        found[:, 0] = upper - lower
        last, first = labels == self.outputs - 1, labels == 0
        found[every[~last], labels[~last] + 1] = -upper[~last]
        found[every[~first], labels[~first]] = lower[~first]
        return found

    def curvature(self, u: Vector, y: Vector) -> Vector:
        """Of the score alone, F_y (1 - F_y) + F_(y-1) (1 - F_(y-1)): at most 1/2."""
        bends, labels = _below(u), y.astype(np.int64)
        bends = bends * (1.0 - bends)
        return np.asarray(bends[np.arange(len(u)), labels] + bends[np.arange(len(u)), labels + 1])

    def constant(self, shares: Vector) -> Vector:
        below = np.clip(np.cumsum(shares)[:-1], 1e-9, 1 - 1e-9)
        return np.concatenate([[0.0], np.log(below / (1 - below))])

    def mean_curvatures(self, shares: Vector, variances: Vector) -> Vector:
        """That of the score, for every class, thresholds being apart as such scores have them."""
        variance = float(variances.mean())
        thresholds = self.constant(shares)[1:] * math.sqrt(1 + math.pi / 8 * variance)
        return np.full(self.outputs, self.expected_bends(thresholds, variance)[0])

    def expected_bends(self, thresholds: Vector, variance: float) -> tuple[float, Vector]:
        """Mean curvatures of the score and of each threshold, where scores are normal of that variance."""
        scores = math.sqrt(variance) * _NODES
        u = np.column_stack([scores, np.broadcast_to(thresholds, (len(scores), len(thresholds)))])
        below = _below(u)
        bends, shares = below * (1 - below), np.diff(below, axis=1)
        weights = _WEIGHTS / _WEIGHTS.sum()
        return float(weights @ (shares * (bends[:, 1:] + bends[:, :-1])).sum(axis=1)), weights @ bends[:, 1:-1]

    def class_scores(self, score: Callable[[int], Vector]) -> Iterator[Vector]:
        u = np.column_stack(list(map(score, range(self.outputs))))
        yield from log_shares(u).T


def _below(u: Vector) -> Vector:
    """F_0 = 0, F_1, ..., F_K = 1 of each record."""
    return np.pad(expit(u[:, 1:] - u[:, :1]), ((0, 0), (1, 1)), constant_values=((0, 0), (0, 1)))


def log_shares(u: Vector) -> Vector:
    """log(F_k - F_(k-1)) = log F_k + log(1 - F_(k-1)) + log(1 - exp(t_(k-1) - t_k)), a column for each class k."""
    apart = u[:, 1:] - u[:, :1]
    upper = np.pad(log_expit(apart), ((0, 0), (0, 1)))
    lower = np.pad(log_expit(-apart), ((0, 0), (1, 0)))
    gaps = np.log(-np.expm1(-np.maximum(np.diff(u[:, 1:], axis=1), NARROW)))
    return np.asarray(upper + lower + np.pad(gaps, ((0, 0), (1, 1))))


def ends(u: Vector, y: Vector) -> tuple[Vector, Vector, Vector, Vector]:
    """F_y, F_(y-1) and f_y / p, f_(y-1) / p of each record, f = F (1 - F), p its class's share; at most 1 / NARROW."""
    apart = np.pad(u[:, 1:] - u[:, :1], ((0, 0), (1, 1)), constant_values=((0, 0), (-math.inf, math.inf)))
    labels, every = y.astype(np.int64), np.arange(len(u))
    above, under = apart[every, labels + 1], apart[every, labels]
    gap = np.log(-np.expm1(-np.maximum(above - under, NARROW)))
    most = -math.log(NARROW)
    upper = np.exp(np.minimum(log_expit(-above) - log_expit(-under) - gap, most))
    lower = np.exp(np.minimum(log_expit(under) - log_expit(above) - gap, most))
    return expit(above), expit(under), upper, lower


SEVERAL[Ordinal.name] = Ordinal
