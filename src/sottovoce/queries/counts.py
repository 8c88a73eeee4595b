"""Numbers of counts and positive amounts, of their exposures, and of the weights of records.

Proof: `algorithms/whitened/proof.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.gate.query import Array, Reals, Round
from sottovoce.losses.counts import count_and_exposure
from sottovoce.queries.sums import NumberSum


class CountSum(NumberSum):
    """sum_i y_i / B of counts in [0, B]."""

    name = "label"
    title: ClassVar[str] = "the mean count"

    def __init__(self, most: float) -> None:
        super().__init__()
        self.most = most

    def number(self, _scores: Array, labels: Array) -> Array:
        return count_and_exposure(labels)[0] / self.most


class ExposureSum(CountSum):
    """sum_i E_i / T of exposures in [0, T]."""

    name = "exposure"
    title: ClassVar[str] = "the mean exposure"

    def number(self, _scores: Array, labels: Array) -> Array:
        return count_and_exposure(labels)[1] / self.most


class CountResidualSum(NumberSum):
    """sum_i min(1, |E_i exp(x_i'w) - y_i| / R), R told."""

    name = "residual"
    title: ClassVar[str] = "the mean size of the residuals"

    def __init__(self, dimension: int) -> None:
        super().__init__(dimension)
        self.takes: Mapping[str, Reals] = {**self.takes, "range": Reals((1,), SMALLEST, LARGEST)}

    def value(self, round: Round) -> Array:
        most = float(round.told["range"][0])

        def residual(scores: Array, labels: Array) -> Array:
            count, exposure = count_and_exposure(labels)
            with np.errstate(all="ignore"):
                found: Array = abs(exposure * np.exp(np.clip(scores, -690.0, 690.0)) - count) / most
            return found

        return np.array([round.rows.number_sum(residual, self.low, round.told["weights"])])


class AmountSum(NumberSum):
    """sum_i w_i / W of weights of records in [0, W]: what sums are divided by."""

    name = "amount"
    title: ClassVar[str] = "the mean weight of the records"

    def number(self, scores: Array, _labels: Array) -> Array:
        """1 for each, which counts as much as the record does."""
        return np.ones_like(scores)
