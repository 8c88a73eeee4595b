"""Sums of one bounded number for each record: what a coordinator needs to know of sizes and scales.

Proof: `algorithms/whitened/proof.md`.
"""

from __future__ import annotations

import functools
import math
from typing import ClassVar

import numpy as np

from sottovoce.data.block import SumRows
from sottovoce.gate.query import Array, Query, Reals, Round
from sottovoce.losses import Weighted
from sottovoce.privacy.events import Relation, either


class NumberSum(Query):
    """The sum of one number for each record, clipped to [low, 1]; 0 for a null row.

    Guarantee: zero-out moves it by at most 1, replace-one by 1 - low. Edges: a NaN counts as 1.
    """

    needs: ClassVar[type] = SumRows
    bound = 1.0
    length = 1
    rounding_entries = 1.0
    low: ClassVar[float] = 0.0

    def sensitivity(self, relation: Relation) -> float:
        """The length of the interval that holds the number and 0, or the number and another."""
        return either(relation, zero_out=1.0, replace_one=1.0 - self.low)

    def number(self, scores: Array, labels: Array) -> Array:
        """Of each record, a function of its score and label alone."""
        raise NotImplementedError

    def value(self, round: Round) -> Array:
        return np.array([round.rows.number_sum(self.number, self.low, round.told.get("weights"))])


class LabelSum(NumberSum):
    """sum_i y_i of labels in [-1, 1]."""

    name = "label"
    title: ClassVar[str] = "the mean label"
    low: ClassVar[float] = -1.0

    def number(self, _scores: Array, labels: Array) -> Array:
        return labels


class WeightSum(NumberSum):
    """sum_i of the weights of the classes, each in (0, 1]."""

    name = "weight"
    title: ClassVar[str] = "the mean weight of the classes"

    def __init__(self, loss: Weighted) -> None:
        self.loss = loss

    def number(self, _scores: Array, labels: Array) -> Array:
        return self.loss.of(labels)


class NumberAtWeights(NumberSum):
    """The sum of a number that depends on the score x'w at public weights w."""

    def __init__(self, dimension: int) -> None:
        self.takes = {"weights": Reals((dimension,))}


class ScoreSum(NumberAtWeights):
    """sum_i clip(x_i'w, -1, 1)."""

    name = "score"
    title: ClassVar[str] = "the mean score"
    low: ClassVar[float] = -1.0

    def number(self, scores: Array, _labels: Array) -> Array:
        return scores


class SquareSum(NumberAtWeights):
    """sum_i min(1, (x_i'w)^2)."""

    name = "square"
    title: ClassVar[str] = "the mean square of the scores"

    def number(self, scores: Array, _labels: Array) -> Array:
        return scores * scores


class ResidualSum(NumberAtWeights):
    """sum_i min(1, |x_i'w - y_i|)."""

    name = "residual"
    title: ClassVar[str] = "the mean size of the residuals"

    def number(self, scores: Array, labels: Array) -> Array:
        residuals: Array = abs(scores - labels)  # the rows may be on a device, whose arrays are not NumPy's
        return residuals


class ClassCounts(Query):
    """How many records each class has; null rows have none.

    Guarantee: zero-out moves it by at most 1, replace-one by sqrt 2: one number up and another down.
    """

    name = "classes"
    title: ClassVar[str] = "how many records each class has"
    needs: ClassVar[type] = SumRows
    bound = 1.0
    replacement: ClassVar[float | None] = math.sqrt(2.0)
    rounding_entries = 2.0

    def __init__(self, classes: int) -> None:
        self.length = classes

    def value(self, round: Round) -> Array:
        return np.array([round.rows.number_sum(functools.partial(_belongs_to, place)) for place in range(self.length)])


def _belongs_to(place: int, _scores: Array, labels: Array) -> Array:
    """1 for a record of the class."""
    found: Array = (labels == place).astype(np.float64)
    return found
