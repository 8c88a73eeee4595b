"""Sums of clipped slopes times rows. Proof: `door/proofs/queries.md`, at row norm 1."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.block import Block, exact_weights, toward_zero
from sottovoce.data.matrix import is_sparse
from sottovoce.door.query import Plain, Query, Reals, Round
from sottovoce.errors import InputError, LeakError
from sottovoce.losses import ClassesLoss, Loss
from sottovoce.plan.plan import Plan

Array = NDArray[np.float64]


class GradientSum(Query):
    """sum_i l'(x_i'w, y_i) x_i with |l'| <= slope_bound and |x_i| <= 1.

    Guarantee: zero-out moves it by at most slope_bound, replace-one by twice that, in l2.
    Edges: a null row and an empty block contribute 0; derivatives are clipped in code, a NaN to the bound.
    """

    name = "gradient"
    title: ClassVar[str] = "gradients of the loss"
    samples: ClassVar[bool] = True

    def __init__(self, dimension: int, slope_bound: float, loss: Loss) -> None:
        if not 1e-100 <= slope_bound <= 1e100:
            raise InputError(f"slope_bound={slope_bound!r} must be a positive finite number.")
        self.slope_bound, self.loss = slope_bound, loss
        self.bound, self.length, self.rounding_entries = slope_bound, dimension, float(dimension)

    def takes(self, plan: Plan, number: int) -> Mapping[str, Reals]:  # noqa: ARG002
        """The weights."""
        return {"weights": Reals((self.length,))}

    def joint_step(self, bits: int) -> float | None:
        """That of a slope times an entry."""
        return float(2.0 ** (math.ceil(math.log2(self.slope_bound)) - 2 * bits))

    def value(self, round: Round) -> Array:
        """One pass over the rows."""
        check_norm(round.rows)
        term = clipped_derivative(self.loss, self.slope_bound, round.rows.bits)
        return round.rows.weighted_sum(round.told["weights"], term)


class ColumnSizes(Plain):
    """sum_i x_ij^2 of every column j, the constant's too: what steps are measured by in a run without privacy."""

    name = "sizes"
    title: ClassVar[str] = "mean squares of the columns"

    def __init__(self, dimension: int) -> None:
        self.length = dimension

    def value(self, round: Round) -> Array:
        """One pass over the rows."""
        total = np.zeros(self.length)
        for rows, _ in round.rows.chunks():
            total += np.asarray((rows.multiply(rows) if is_sparse(rows) else rows * rows).sum(axis=0)).ravel()
        return total


class ClassesSum(GradientSum):
    """sum_i x_i l'(x_i'W, y_i) of several classes, a matrix: |l'| <= slope_bound, row by row, and |x_i| <= 1.

    Guarantee: zero-out moves it by at most slope_bound, replace-one by twice that, in the Frobenius norm.
    Edges: as of one score; a row of slopes with a NaN counts as (slope_bound, 0, ...).
    """

    samples: ClassVar[bool] = False

    def __init__(self, dimension: int, slope_bound: float, loss: ClassesLoss) -> None:
        super().__init__(dimension * loss.outputs, slope_bound, loss)
        self._slopes = functools.partial(cut_rows, loss, slope_bound)

    def value(self, round: Round) -> Array:
        """One pass over the rows; without privacy (no bits) nothing is cut and nothing rounded."""
        check_norm(round.rows)
        bits, weights = round.rows.bits, round.told["weights"].reshape(-1, self.loss.outputs)
        if bits is not None:
            weights = np.column_stack([exact_weights(column, bits) for column in weights.T])
        total = np.zeros_like(weights)
        for rows, labels in round.rows.chunks(scores=self.loss.outputs):
            total += rows.T @ self._terms(rows @ weights, labels, bits)
        return total.ravel()

    def _terms(self, scores: Array, labels: Array, bits: int | None) -> Array:
        if bits is None:
            return self.loss.derivative(scores, labels)
        slopes = self.slope_bound * self._slopes(scores, labels)
        return toward_zero(slopes, bits - math.ceil(math.log2(self.slope_bound)))


def gradient_sum(dimension: int, slope_bound: float, loss: Loss) -> GradientSum:
    """Of one score for each record, or of several."""
    if isinstance(loss, ClassesLoss):
        return ClassesSum(dimension, slope_bound, loss)
    return GradientSum(dimension, slope_bound, loss)


def slopes_of(loss: Loss, scores: Array, labels: Array) -> Array:
    """l'(u, y) as numbers of their own in double precision, whatever a registered loss returns.

    What follows is done in place: a float32 would round past a bound, and an array that is also the labels would
    change them.
    """
    with np.errstate(all="ignore"):  # a warning that a record caused could be turned into an error
        return np.array(loss.derivative(scores, labels), dtype=np.float64)


def cut_rows(loss: ClassesLoss, most: float, scores: Array, labels: Array) -> Array:
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


def clipped_derivative(loss: Loss, bound: float, bits: int | None) -> Any:
    """l'(u, y) clipped to [-bound, bound] and rounded toward zero on the exact grid: enforced, not assumed.

    Without bits (a run without privacy) nothing is clipped; the gate takes no such rows for a release with noise.
    """

    def term(scores: Array, labels: Array) -> Array:
        if bits is None:
            return loss.derivative(scores, labels)
        slope = slopes_of(loss, scores, labels)
        # fmin takes the bound where the slope is NaN, which clip would let through
        np.fmin(slope, bound, out=slope)
        np.fmax(slope, -bound, out=slope)
        return toward_zero(slope, bits - math.ceil(math.log2(bound)))

    return term


def check_norm(rows: Block) -> None:
    """Refuse rows that may be longer than 1, which the bounds of sums over rows count on."""
    if rows.row_norm > 1.0:
        raise LeakError("the rows of the block are longer than the query's sensitivity allows for.")
