"""What a sum over rows multiplies each row by: the slope of its loss, clipped to a bound and put on the grid.

A slope is data, not a closure: a block may run it in a fused loop, on other machines or on a device, and every block
must arrive at the same bits. `losses/kernels.fill_terms` is the one definition of those that have a code.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.matrix import toward_zero
from sottovoce.losses import ClassesLoss, Loss, Weighted
from sottovoce.losses.kernels import fill_terms

Array = NDArray[np.float64]

NONE = np.zeros(0)


@dataclass(frozen=True)
class Slope:
    """l'(u + offset, y) clipped to [-bound, bound] and rounded toward zero on the exact grid: enforced, not assumed.

    With `most` slopes are in units of it, and clipped to [-1, 1] (`shrink_slopes`); the bound is 1.

    Guarantee: |slope| <= bound for any record, loss and score; a NaN counts as the bound.
    """

    loss: Loss
    bound: float
    bits: int  # of the grid of the rows
    most: float | None = None
    offset: float = 0.0

    @functools.cached_property
    def code(self) -> int | None:
        """What a fused loop knows the loss by; None: it knows no such loss, and the slopes are asked of the loss."""
        kind = type(self.loss.inner if isinstance(self.loss, Weighted) else self.loss)
        return kind.slope_code if "slope_code" in vars(kind) else None  # one that inherits it may have another slope

    @functools.cached_property
    def numbers(self) -> Array:
        """What `fill_terms` takes after the code."""
        loss, weights = self.loss, (1.0, 1.0)
        if isinstance(self.loss, Weighted):
            loss, weights = self.loss.inner, (self.loss.weights[0], self.loss.weights[1])
        unit = 0.0 if self.most is None else -self.most if self.loss.kind == "classification" else self.most
        return np.array([loss.parameter, *weights, unit, self.bound, 2.0**self.grid, self.offset])

    @property
    def grid(self) -> int:
        """Bits of the grid of slopes: as many as rows have, below the bound."""
        return self.bits - math.ceil(math.log2(self.bound))

    def __call__(self, scores: Array, labels: Array, shares: Array = NONE) -> Array:
        """The slopes of records; times their `shares`, of which none is above 1, before they are rounded."""
        if self.code is not None:
            found = np.empty(len(scores))
            at = np.array(scores, dtype=np.float64)
            fill_terms(self.code, self.numbers, at, labels, shares, np.empty_like(found), found)
            return found
        at = np.asarray(scores) + self.offset if self.offset else scores
        if self.most is None:
            found = _clip_slopes(slopes_of(self.loss, at, labels), self.bound)
        else:
            found = shrink_slopes(self.loss, self.most, at, labels)
        if len(shares):
            found *= shares
        return toward_zero(found, self.grid)


@dataclass(frozen=True)
class Slopes:
    """The same of several classes, a row of slopes for each record: no row is longer than the bound."""

    loss: ClassesLoss
    bound: float
    bits: int
    most: float | None = None
    offset: tuple[float, ...] = ()

    def __call__(self, scores: Array, labels: Array, shares: Array = NONE) -> Array:
        """The rows of slopes of records; times their `shares`, of which none is above 1, before they are rounded."""
        if self.offset:
            scores = scores + np.array(self.offset)
        slopes = self.bound * clip_rows(self.loss, self.bound if self.most is None else self.most, scores, labels)
        if len(shares):
            slopes *= shares[:, None]
        return toward_zero(slopes, self.bits - math.ceil(math.log2(self.bound)))


Term = Slope | Slopes


def slopes_of(loss: Loss, scores: Array, labels: Array) -> Array:
    """l'(u, y) as numbers of their own in double precision, whatever a registered loss returns.

    What follows is done in place: a float32 would round past a bound, and an array that is also the labels would
    change them.
    """
    with np.errstate(all="ignore"):  # a warning that a record caused could be turned into an error
        return np.array(loss.derivative(scores, labels), dtype=np.float64)


def shrink_slopes(loss: Loss, most: float, scores: Array, labels: Array) -> Array:
    """Slopes in units of `most`, within [-1, 1]; a NaN counts as 1.

    Residuals are cut one by one. Of classes the slopes of both labels at a score are scaled alike, so that the larger
    is 1 at most: there the right odds still make the mean slope 0, and a cut moves no intercept. Cut one by one at 1/2,
    a share of .42 would get the intercept of .36.
    """
    slopes = slopes_of(loss, scores, labels)
    if loss.kind == "classification":
        other = np.abs(slopes_of(loss, scores, -labels))
        slopes /= np.maximum(np.maximum(np.abs(slopes), other, out=other), most, out=other)
    else:
        slopes /= most
    return _clip_slopes(slopes, 1.0)


def _clip_slopes(slopes: Array, bound: float) -> Array:
    """Cut to [-bound, bound] in place: fmin takes the bound where a slope is NaN, which clip would let through."""
    np.fmin(slopes, bound, out=slopes)
    return np.fmax(slopes, -bound, out=slopes)


def clip_rows(loss: ClassesLoss, most: float, scores: Array, labels: Array) -> Array:
    """Rows of slopes of several classes in units of `most`, no longer than 1; with a NaN a row is (1, 0, ...).

    Those of all labels at a row of scores are scaled alike, so that the longest is 1 at most: there the right shares
    still make the mean row 0, and a cut moves no intercept.
    """
    with np.errstate(all="ignore"):
        slopes, lengths = loss.slopes(scores, labels)
        longest = np.maximum(lengths.max(axis=1), np.sqrt((slopes * slopes).sum(axis=1)))
        slopes *= ((1.0 - 2.0**-40) / np.maximum(longest, most))[:, None]
    unusable = ~np.isfinite(slopes).all(axis=1)
    slopes[unusable] = 0.0
    slopes[unusable, 0] = 1.0
    return slopes
