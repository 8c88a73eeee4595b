"""What the sums at a released model tell of its weights: a step, and how far it is from the truth (`proof.md`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.linalg as linalg

from sottovoce.algorithms.base import Array

RELIED = 0.8  # the most of a squared error that may rest on what is believed of other weights
LOST = 0.5  # the most of what is seen of a weight that may be noise
DOUBT = 0.5  # the most by which the slope of an estimate in its own weight may be unsure
ALIKE = np.geomspace(0.005, 4.0, 40)  # how far A may be from a multiple of the Gram matrix, squared
SMALLER = np.geomspace(2.0**-9, 1.0, 37)  # how much smaller weights may be than is believed, squared
UNSURE = 1.0  # by how much twice the log-likelihood of larger weights may be less: a standard deviation


class Belief(NamedTuple):
    """What is known before A and g are: mean squares G of rows P'x, and variances of the weights that may move.

    `gram_noise` is that of a mean square of rows x. Variances in `weights` are of their size, up to a common factor;
    those in `distance` of how far they are from the truth.
    """

    gram: Array
    gram_noise: float
    weights: Array
    distance: Array


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
    belief: Belief | None = None

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


@dataclass(frozen=True)
class Curvature:
    """A as far as it is known; what is wrong of it, E, has these variances of its entries along the `axes`."""

    matrix: Array
    axes: Array
    variances: Array

    @classmethod
    def of(cls, sums: Sums) -> Curvature:
        """Entries are drawn to a multiple of the Gram matrix, as far as their noise rules.

        Along the axes of G an entry is believed to be off by c sqrt(G_ii G_jj), as no entry of a Gram matrix is larger,
        and by the noise of G; c is the likeliest one.
        """
        d = len(sums.curvature)
        noise = sums.curvature_noise**2 / 2 * (1 + np.eye(d))
        if sums.belief is None:
            return cls(sums.curvature, np.eye(d), noise)
        sizes, axes = np.linalg.eigh(sums.belief.gram)
        sizes = np.maximum(sizes, 1e-12 * sizes[-1])
        turned = axes.T @ sums.curvature @ axes
        times = max(float(np.trace(turned)), 1e-100) / float(sizes.sum())
        alike, lengths = times * sizes, ((sums.projection[np.abs(sums.projection).any(axis=1)] @ axes) ** 2).sum(axis=0)
        known = (times * sums.belief.gram_noise) ** 2 / 2 * (1 + np.eye(d)) * np.outer(lengths, lengths)
        apart, upper = turned - np.diag(alike), np.triu_indices(d)
        squares, most, own = apart[upper] ** 2, np.outer(alike, alike), (noise + known)[upper]

        def unlikely(share: float) -> float:
            variance = share * most[upper] + own
            return float((np.log(variance) + squares / variance).sum())

        kept = min(ALIKE, key=unlikely) * most + known
        kept = kept / (kept + noise)
        return cls(axes @ (np.diag(alike) + kept * apart) @ axes.T, axes, kept * noise)

    def spoils(self, spread: Array) -> Array:
        """The covariance of E d, for a d with these second moments."""
        turned = self.axes.T @ spread @ self.axes
        apart = self.variances * (1 - np.eye(len(turned)))
        return np.asarray(self.axes @ (apart * turned + np.diag(self.variances @ np.diag(turned))) @ self.axes.T)

    def along(self, way: Array, move: Array) -> float:
        """The variance of a'E u, a the way."""
        one, other = self.axes.T @ way, self.axes.T @ move
        both = one * other
        twice = both @ self.variances @ both - np.diag(self.variances) @ both**2
        return float(twice + one**2 @ self.variances @ other**2)

    def spoiled(self, shape: Array, move: Array) -> float:
        """The trace of a symmetric matrix, along the axes, times the covariance of E u, u a move."""
        along = self.axes.T @ move
        apart = shape * self.variances
        apart -= np.diag(np.diag(apart))
        return float(along @ apart @ along + np.diag(shape) @ (self.variances @ along**2))


class Estimate(NamedTuple):
    """Of a sum of weights."""

    value: float
    error: float  # its standard error, sampling and noise together
    identified: bool  # whether it rests on the records more than on what is believed


class OneStep:
    """From `weights` w to what records say of a sum of weights t'w: t'w - a'g.

    d is how far the truth is from the released model: g = -A d + noise, so the error is b'd - a'noise, b = A a - t. a
    is that of the least mean square in which b'd is 0 for the weights that t is about; of others no more is believed
    than their variance. So weights that noise hides do not hide others, and what they may do to them is in the error.
    """

    def __init__(self, sums: Sums, weights: Array) -> None:
        self._sums, self.weights = sums, weights
        self._free = np.flatnonzero(np.abs(sums.projection).any(axis=1))
        self._back = np.linalg.inv(sums.projection[self._free])
        self._curvature = curvature = Curvature.of(sums)
        A, d = curvature.matrix, len(self._free)
        values, vectors = np.linalg.eigh(sums.variance)
        sampled = np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)  # noise can make some < 0
        sampled += sums.gradient_noise**2 * np.eye(d)
        if sums.belief is None:
            self._prior = np.zeros((d, d))
            self._steps = np.linalg.pinv(A, rcond=2.0**-40)
            step = self._steps @ sums.gradient
            self._noises = sampled + curvature.spoils(np.outer(step, step))
            return
        T = self._prior = self._believed(sums.belief, sampled)
        spread = T
        for _ in range(3):  # E d is noise too: by what is believed of d, then by what is found of it
            self._noises = sampled + curvature.spoils(spread)
            self._steps = linalg.solve(A @ T @ A + self._noises, A @ T, assume_a="pos")
            step = self._steps.T @ sums.gradient
            spread = np.outer(step, step) + T - T @ A @ self._steps
        self._inverse = linalg.inv(A @ T @ A + self._noises)
        self._shown = curvature.axes.T @ self._inverse @ curvature.axes

    def _believed(self, belief: Belief, sampled: Array) -> Array:
        """The variance of d: that of the largest weights that g leaves likely, d being how far they are from 0."""
        A, back = self._curvature.matrix, self._back
        of_weights, fixed = (back * belief.weights) @ back.T, (back * belief.distance) @ back.T
        told = self.weights[self._free] * (belief.weights > 0)
        about = self._sums.gradient - A @ (back @ told)
        grown = A @ of_weights @ A + self._curvature.spoils(of_weights)
        sizes, ways = linalg.eigh(grown, sampled + A @ fixed @ A)
        squares = (ways.T @ about) ** 2

        def unlikely(share: float) -> float:
            variance = 1 + share * np.maximum(sizes, 0.0)
            return float((np.log(variance) + squares / variance).sum())

        tried = np.array([unlikely(share) for share in SMALLER])
        share = float(SMALLER[tried <= tried.min() + UNSURE].max())
        seen = float((told**2).sum()) / max(share * float(belief.weights.sum()), 1e-300)
        share *= max(1 - seen, 0.5)  # the released model is near their mean: d is what it lacks of their squares
        self._variances = share * belief.weights + belief.distance
        return np.asarray(share * of_weights + fixed)

    def estimate(self, direction: Array, own: Array) -> Estimate:
        """Of the sum of weights with these factors, which is about those at the places `own`."""
        A, way = self._curvature.matrix, self._sums.projection.T @ direction
        asked = np.where(np.isin(self._free, own), direction[self._free], 0.0)
        move: Array = self._back @ asked / (asked @ asked)  # of its own weights: by 1 for the sum
        a, known, lost = self._steps @ way, self._curvature, 0.0
        if self._sums.belief is not None:
            bent = self._inverse @ (A @ move)
            size = float(move @ A @ bent)
            a = a + bent * (1 - float(move @ A @ a)) / size
            # without what is believed of its own weights, what noise would show of them, of what is seen
            most = float(asked @ asked) ** 2 / float((asked**2 / self._variances).sum())
            rest = max(1 - most * size, 1e-6)
            lost = (rest * known.spoiled(self._shown, move) + most * known.along(bent, move)) / size
        bias, moved = A @ a - way, float(a @ self._sums.gradient)
        relied, variance, doubt = float(bias @ self._prior @ bias), float(a @ self._noises @ a), known.along(a, move)
        if self._sums.belief is not None:  # nothing is believed of its own weights: E d is by how far they moved
            variance += (doubt + lost**2) * moved**2
        clear = relied <= RELIED * (relied + variance) and doubt <= DOUBT**2 and lost <= LOST
        return Estimate(float(direction @ self.weights) - moved, math.sqrt(relied + variance), clear)
