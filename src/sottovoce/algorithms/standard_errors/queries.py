"""What records release about a model that is public: curvature, slopes and their squares. Proof: `proof.md`.

Rows are seen through a public matrix P and clipped to length 1: z = P'x c, c = min(1, 1 / |P'x|). A record far out
weighs c^2 in all three sums, which are so those of one weighted problem.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from sottovoce.data.block import Block, BlockRows, toward_zero
from sottovoce.data.matrix import slopes_of
from sottovoce.data.projection import short_rows
from sottovoce.gate.query import Array, Query, Round
from sottovoce.losses import Loss
from sottovoce.queries.projected import POSITIVE, ProjectionShape
from sottovoce.queries.sums import GramMatrix


class ShortRows(Query):
    """A sum over cut rows at a public model w; P and G are told, and the bound holds for any."""

    needs: ClassVar[type] = BlockRows

    def about(self, weights: Array, loss: Loss) -> None:
        self.weights, self.loss, self.shape = weights, loss, ProjectionShape(len(weights), "triangular")
        self.takes = {**self.shape.takes, "slope": POSITIVE}

    def value(self, round: Round) -> Array:
        return round.rows.over(
            functools.partial(self.summed, self.shape.matrix(round.told), float(round.told["slope"][0]))
        )

    @abstractmethod
    def summed(self, matrix: Array, slope: float, block: Block) -> Array:
        """The sum over the rows of a block: exact, in any order."""

    def pieces(self, matrix: Array, slope: float, block: Block) -> Iterator[tuple[Array, Array]]:
        """Cut rows, and a factor for each, a function of its own record; with privacy within [-1, 1], a NaN as 1."""
        exact = block.bits is not None
        for rows, shares, scores, labels in short_rows(block, matrix, self.weights):
            with np.errstate(all="ignore"):  # a warning that a record caused could be turned into an error
                factors = self.factors(scores, labels, slope)
            # fmin takes the bound where a factor is NaN, which clip would let through
            yield rows, (np.fmax(np.fmin(factors, 1.0), -1.0) if exact else factors) * self.weighed(shares)

    @abstractmethod
    def factors(self, scores: Array, labels: Array, slope: float) -> Array:
        """One number for each record, not yet cut."""

    def weighed(self, shares: Array) -> Array:
        """What is left of a factor where rows were clipped to these shares."""
        return shares


class FactorGram(ShortRows, GramMatrix):
    """sum_i f_i^2 z_i z_i': the Gram matrix of rows that are no longer than z_i. Guarantee: that of a Gram matrix."""

    def __init__(self, weights: Array, loss: Loss) -> None:
        GramMatrix.__init__(self, len(weights))
        self.about(weights, loss)

    def summed(self, matrix: Array, slope: float, block: Block) -> Array:
        total = np.zeros((self.dimension, self.dimension))
        for rows, factors in self.pieces(matrix, slope, block):
            scaled = rows * factors[:, None]
            if block.bits is not None:
                toward_zero(scaled, block.bits)
            total += scaled.T @ scaled
        return np.asarray(total[self.places])


class FittedCurvature(FactorGram):
    """sum_i l''(x_i'w, y_i) z_i z_i' in units of the largest l''."""

    name = "curvature"
    title: ClassVar[str] = "the curvature of the loss at the fitted model"

    def factors(self, scores: Array, labels: Array, _slope: float) -> Array:
        found = np.asarray(self.loss.curvature(scores, labels), dtype=np.float64)
        return np.asarray(np.sqrt(found / self.loss.curvature_bound))

    def weighed(self, shares: Array) -> Array:
        """All of it: z z' has the share twice already."""
        return np.ones_like(shares)


class SquaredSlopes(FactorGram):
    """sum_i (c_i l'(x_i'w, y_i))^2 z_i z_i' in units of G^2: how far the gradient varies from sample to sample."""

    name = "squared-slopes"
    title: ClassVar[str] = "squares of the slopes of the loss at the fitted model"

    def factors(self, scores: Array, labels: Array, slope: float) -> Array:
        return slopes_of(self.loss, scores, labels) / slope


class FittedGradient(ShortRows):
    """sum_i c_i l'(x_i'w, y_i) z_i in units of G.

    Guarantee: zero-out moves it by at most 1, replace-one by 2. Edges: a null row adds nothing.
    """

    name = "gradient"
    title: ClassVar[str] = "the gradient of the loss at the fitted model"
    bound = 1.0

    def __init__(self, weights: Array, loss: Loss) -> None:
        self.length, self.rounding_entries = len(weights), float(len(weights))
        self.about(weights, loss)

    def factors(self, scores: Array, labels: Array, slope: float) -> Array:
        return slopes_of(self.loss, scores, labels) / slope

    def summed(self, matrix: Array, slope: float, block: Block) -> Array:
        total = np.zeros(self.length)
        for rows, factors in self.pieces(matrix, slope, block):
            total += rows.T @ (factors if block.bits is None else toward_zero(factors, block.bits))
        return total
