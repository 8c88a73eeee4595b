"""Numbers of counts and positive amounts, of exposures, of events in time, and of the weights of records.

Proof: `algorithms/whitened/proof.md`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.block import SumRows
from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.gate.query import Array, Query, Reals, Round
from sottovoce.losses.counts import REACH, count_and_exposure
from sottovoce.losses.times import Hazard
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
                found: Array = abs(exposure * np.exp(np.clip(scores, -REACH, REACH)) - count) / most
            return found

        return np.array([round.rows.number_sum(residual, self.low, round.told["weights"])])


class AmountSum(NumberSum):
    """sum_i w_i / W of weights of records in [0, W]: what sums are divided by."""

    name = "amount"
    title: ClassVar[str] = "the mean weight of the records"

    def number(self, scores: Array, _labels: Array) -> Array:
        """1 for each, which counts as much as the record does."""
        return np.ones_like(scores)


class EventCounts(Query):
    """How many events there were in each period; a null row has none.

    Guarantee: zero-out moves it by at most 1, replace-one by sqrt 2: one number up and another down.
    """

    name = "events"
    title: ClassVar[str] = "how many events each period has"
    needs: ClassVar[type] = SumRows
    bound = 1.0
    replacement: ClassVar[float | None] = math.sqrt(2.0)
    rounding_entries = 2.0

    def __init__(self, periods: tuple[float, ...]) -> None:
        self.periods, self.length = periods, len(periods) - 1

    def value(self, round: Round) -> Array:
        cuts = list(pairwise(self.periods))
        return np.array([round.rows.number_sum(functools.partial(_event_within, *cut)) for cut in cuts])


def _event_within(start: float, stop: float, _scores: Array, labels: NDArray[Any]) -> Array:
    return Hazard.event_within(labels, start, stop)


class RiskSums(Query):
    """sum_i (E_ij / w_j) min(1, exp(x_i'w) / R) / sqrt J for each of J periods of length w_j, E_ij the time within.

    They are the sums of Breslow's estimator; w and R are told.
    Guarantee: zero-out and replace-one move it by at most 1: every entry of a record is in [0, 1 / sqrt J], and two
    points of that cube are no further apart than its diagonal. Edges: a null row adds nothing; a NaN counts as 1.
    """

    name = "risk"
    title: ClassVar[str] = "how many are at risk in each period, weighed by their hazards"
    needs: ClassVar[type] = SumRows
    bound = 1.0
    replacement: ClassVar[float | None] = 1.0

    def __init__(self, loss: Hazard, dimension: int) -> None:
        self.periods, self.length = loss.periods, len(loss.periods) - 1
        self.rounding_entries = float(self.length)
        self.takes = {"weights": Reals((dimension,)), "range": Reals((1,), SMALLEST, LARGEST)}

    def value(self, round: Round) -> Array:
        told = float(round.told["range"][0]), (1.0 - 2.0**-40) / math.sqrt(self.length)
        return np.array(
            [
                round.rows.number_sum(functools.partial(_at_risk, *cut, told), 0.0, round.told["weights"])
                for cut in pairwise(self.periods)
            ]
        )


def _at_risk(start: float, stop: float, told: tuple[float, float], scores: Array, labels: Array) -> Array:
    most, unit = told
    with np.errstate(all="ignore"):
        hazard = np.fmin(np.exp(np.clip(scores, -REACH, REACH)) / most, 1.0)
        seen = np.clip(Hazard.within(labels, start, stop) / (stop - start), 0.0, 1.0)
        found: Array = np.fmin(hazard * seen, 1.0) * unit
    return found
