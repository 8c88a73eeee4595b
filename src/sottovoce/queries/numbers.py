"""Sums of one bounded number for each record: what a coordinator needs to know of sizes and scales.

Proof: `algorithms/whitened/proof.md`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.block import SumRows
from sottovoce.door.query import Query, Reals, Round, Told
from sottovoce.losses import Weighted
from sottovoce.plan.plan import Plan
from sottovoce.privacy.relation import Relation, either

Array = NDArray[np.float64]


class NumberSum(Query):
    """The sum of one number for each record, cut to [low, 1]; 0 for a null row.

    Guarantee: zero-out moves it by at most 1, replace-one by 1 - low. Edges: a NaN counts as 1.
    """

    needs: ClassVar[type] = SumRows
    bound = 1.0
    length = 1
    rounding_entries = 1.0
    low: ClassVar[float] = 0.0

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension

    def sensitivity(self, relation: Relation) -> float:
        """The length of the interval that holds the number and 0, or the number and another."""
        return either(relation, zero_out=1.0, replace_one=1.0 - self.low)

    def takes(self, plan: Plan, number: int) -> Mapping[str, Reals]:  # noqa: ARG002
        """The weights of a score."""
        return {"weights": Reals((self.dimension,))}

    def number(self, score: Array, label: Array, told: Told) -> Array:
        """Of each record, a function of its score and label alone."""
        raise NotImplementedError

    def value(self, round: Round) -> Array:
        """Their sum, exact on its grid."""
        told = round.told

        def number(scores: Array, labels: Array) -> Array:
            return self.number(scores, labels, told)

        return np.array([round.rows.number_sum(number, self.low, told.get("weights"))])


class ScoreSum(NumberSum):
    """sum_i clip(x_i'w, -1, 1)."""

    name = "score"
    title: ClassVar[str] = "the mean score"
    low: ClassVar[float] = -1.0

    def number(self, score: Array, label: Array, told: Told) -> Array:  # noqa: ARG002
        """The score."""
        return score


class SquareSum(NumberSum):
    """sum_i min(1, (x_i'w)^2)."""

    name = "square"
    title: ClassVar[str] = "the mean square of the scores"

    def number(self, score: Array, label: Array, told: Told) -> Array:  # noqa: ARG002
        """Its square."""
        return score * score


class LabelSum(NumberSum):
    """sum_i y_i of labels in [-1, 1]."""

    name = "label"
    title: ClassVar[str] = "the mean label"
    low: ClassVar[float] = -1.0

    def takes(self, plan: Plan, number: int) -> Mapping[str, Reals]:  # noqa: ARG002
        """Nothing."""
        return {}

    def number(self, score: Array, label: Array, told: Told) -> Array:  # noqa: ARG002
        """The label."""
        return label


class WeightSum(NumberSum):
    """sum_i of the weights of the classes, each in (0, 1]."""

    name = "weight"
    title: ClassVar[str] = "the mean weight of the classes"

    def __init__(self, dimension: int, loss: Weighted) -> None:
        super().__init__(dimension)
        self.loss = loss

    def takes(self, plan: Plan, number: int) -> Mapping[str, Reals]:  # noqa: ARG002
        """Nothing."""
        return {}

    def number(self, score: Array, label: Array, told: Told) -> Array:  # noqa: ARG002
        """The weight of the label's class."""
        return self.loss.of(label)


class ClassCounts(Query):
    """How many records each class has; null rows have none.

    Guarantee: zero-out moves it by at most 1, replace-one by sqrt 2: one number up and another down.
    """

    name = "classes"
    title: ClassVar[str] = "how many records each class has"
    needs: ClassVar[type] = SumRows
    bound = 1.0
    rounding_entries = 2.0

    def __init__(self, classes: int) -> None:
        self.length = classes

    def sensitivity(self, relation: Relation) -> float:
        """1, or sqrt 2."""
        return either(relation, zero_out=1.0, replace_one=math.sqrt(2.0))

    def value(self, round: Round) -> Array:
        """Whole numbers."""
        return np.array([round.rows.number_sum(functools.partial(_is, place)) for place in range(self.length)])


def _is(place: int, scores: Array, labels: Array) -> Array:  # noqa: ARG001
    """1 for a record of the class."""
    found: Array = (labels == place).astype(np.float64)
    return found


class ResidualSum(NumberSum):
    """sum_i min(1, |x_i'w - y_i|)."""

    name = "residual"
    title: ClassVar[str] = "the mean size of the residuals"

    def number(self, score: Array, label: Array, told: Told) -> Array:  # noqa: ARG002
        """The size of the residual."""
        found: Array = abs(score - label)
        return found
