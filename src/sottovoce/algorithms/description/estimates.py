"""Shares, means, deviations and quantiles of a column from released counts: functions of these and of public numbers.

An interval has both the sampling of the records and the noise. Formulas: `proof.md`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from sottovoce.algorithms.base import Array
from sottovoce.algorithms.description import WEIGHT, Cut
from sottovoce.algorithms.evaluation.estimates import LEAST, Metric, Z, around

QUANTILES: Final = {"5%": 0.05, "25%": 0.25, "median": 0.5, "75%": 0.75, "95%": 0.95}
UNTOLD: Final = Metric(math.nan, math.nan, math.nan)
STANDS_OUT: Final = 5.0  # deviations of its noise that a number of records is above 0, for ratios to be told
BARS: Final = 16  # of a picture of a range


@dataclass(frozen=True)
class ColumnEstimates:
    """Noisy cells of one column in one group of `records`, a number that is known but for a deviation `loose`."""

    cut: Cut
    cells: Array
    sums: Array  # of a number and of its square, scaled
    noise: float  # the standard deviation of a cell's
    records: float
    loose: float = 0.0

    @functools.cached_property
    def pull(self) -> float:
        """How far each cell is moved for each record by which they do not add up: s^2 / (m s^2 + t^2)."""
        variance = self.noise**2
        return variance / (len(self.cells) * variance + self.loose**2) if variance else 0.0

    @functools.cached_property
    def known(self) -> Array:
        """The cells, with what the number of records tells of their noise taken out."""
        return np.asarray(self.cells + (self.records - self.cells.sum()) * self.pull)

    @functools.cached_property
    def present(self) -> Array:
        """1 for each cell but that of missing ones."""
        return np.append(np.ones(len(self.cells) - 1), 0.0)

    def variance(self, weights: Array) -> Array:
        """Of the noise of sums of `known`, by their weights."""
        total = weights.sum(axis=-1)
        return np.asarray(self.noise**2 * np.maximum((weights**2).sum(axis=-1) - self.pull * total**2, 0.0))

    def number(self, weights: Array) -> float:
        """How many records are in cells of weight 1; 0 where the noise hides whether there are any."""
        found = float(weights @ self.known)
        return found if found > STANDS_OUT * math.sqrt(float(self.variance(weights))) else 0.0

    def share(self, part: Array) -> Metric:
        """Of all records, those in cells of weight 1: cut to [0, 1], the interval too."""
        if not (total := self.number(np.ones_like(part))):
            return UNTOLD
        value = float(part @ self.known) / total
        likely = min(max(value, 0.0), 1.0)
        noise = float(self.variance(part - value))
        found = around(value, math.sqrt(noise + total * likely * (1 - likely)) / total)
        return Metric(*np.clip([found.value, found.low, found.high], 0.0, 1.0).tolist())

    def shares(self) -> list[Metric]:
        """Of the cells of all records that are not missing."""
        return [self.share(one) for one in np.eye(len(self.cells))[:-1]]

    @property
    def missing(self) -> Metric:
        return self.share(1 - self.present)

    @property
    def outside(self) -> Metric:
        """Numbers beyond their range, or cells of no declared level."""
        part = np.zeros(len(self.cells))
        part[[0, -2] if self.cut.summed else -2] = 1.0
        return self.share(part)

    def moments(self) -> tuple[Metric, Metric]:
        """Mean and standard deviation of the numbers, each cut to the range."""
        n = self.number(self.present)
        if not n:
            return UNTOLD, UNTOLD
        noise, counted = (self.noise / WEIGHT) ** 2, float(self.variance(self.present))
        mean, second = float(self.sums[0]) / n, float(self.sums[1]) / n
        square = second - mean**2 + noise / n**2
        edges = np.clip(self.cut.scaled(self.cut.edges), -1.0, 1.0)
        centres = np.array([-1.0, *(edges[1:] + edges[:-1]) / 2, 1.0]) - mean
        spread = max(square, 0.0)
        fourth = max(float(self.known[:-1] @ centres**4) / n, spread**2 * (1 + LEAST))
        error = math.sqrt(noise + mean**2 * counted + n * spread) / n
        # d(second - mean^2) by the sums and by n
        slopes = noise * (1 + 4 * mean**2) + (second - 2 * mean**2) ** 2 * counted
        own = Z * math.sqrt(slopes / n**2 + (fourth - spread**2) / n)
        middle, half = (self.cut.low + self.cut.high) / 2, (self.cut.high - self.cut.low) / 2
        found = around(middle + half * mean, half * error)
        low, value, high = (half * math.sqrt(max(v, 0.0)) for v in (square - own, square, square + own))
        return found, Metric(value, low, high)

    def quantile(self, share: float) -> Metric:
        """Between the edges that are below and above it for certain: so the interval is a cell wide at least."""
        n = self.number(self.present)
        if not n:
            return UNTOLD
        edges = self.cut.edges if self.cut.scale == "powers" else np.array([*self.cut.edges[:-1], self.cut.high])
        below = np.tri(len(edges), len(self.cells))
        distance = (below - share * self.present) @ self.known
        error = Z * np.sqrt(self.variance(below - share * self.present) + n * share * (1 - share))
        first = int(np.argmin(np.append(distance < -error, False)))  # the first that is not for certain below
        last = int(np.argmin(np.append((distance > error)[::-1], False)))
        low, high = edges[max(first - 1, 0)], edges[::-1][max(last - 1, 0)]
        rising = np.maximum.accumulate(below @ self.known)
        value = float(np.interp(share * n, rising, edges))
        return Metric(min(max(value, low), high), float(low), float(high))

    def window(self) -> range:
        """At which edges the bars of a picture begin: `BARS` of a range, of powers all from the first with records."""
        count = len(self.cut.edges) - 1
        if self.cut.summed:
            return range(0, count, max(1, count // BARS))
        (told,) = np.nonzero(self.known[1:-2] > STANDS_OUT * self.noise)
        return range(int(told[0]), int(told[-1]) + 1) if len(told) else range(0)

    def bars(self, window: range) -> list[tuple[float, float, Metric]]:
        """(from, to, share) of neighbouring cells joined."""
        edges, found = self.cut.edges, []
        for start in window:
            part = np.zeros(len(self.cells))
            part[start + 1 : start + window.step + 1] = 1.0
            found.append((float(edges[start]), float(edges[start + window.step]), self.share(part)))
        return found
