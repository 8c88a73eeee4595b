"""What is told of times to an event from released cells: concordance, and events for each that was expected."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.special import exprel

from sottovoce.algorithms.base import Array
from sottovoce.algorithms.evaluation.estimates import NOTHING, Bin, Counts, Metric, Z, around
from sottovoce.algorithms.evaluation.times import TimeCells


class TimeEstimates:
    """What cells of scores by time and event say."""

    def __init__(self, released: Array, noise: float, records: int, query: TimeCells) -> None:
        self.counts, self.query = Counts(released, noise, records), query
        self.last, self.nodes = len(query.cuts) - 1, len(query.scores)

    def metrics(self) -> dict[str, Metric]:
        """By name."""
        events, expected = (each.sum(axis=0) for each in self.by_interval())
        ratio, share = self.ratio(events, expected), self.counts.mean(events, events)
        return {"concordance": self.concordance(), "observed_to_predicted": ratio, "events": share}

    def concordance(self) -> Metric:
        """Of pairs of whom one had the event and the other was seen longer, those in which it had the higher score.

        Of two events in one interval a half is in order, and a sixth of what more than that is in order of the next
        two intervals: records that leave evenly within theirs are a third as far apart as those.
        """
        after, near = np.zeros((2, 2 * self.last + 1, 2 * self.last + 1))
        for place in range(self.last):
            event = 2 * place + 1
            after[event, event + 1 :], after[event, event - 1 : event + 1] = 1.0, 0.5
            if place + 1 < self.last:
                near[event, event + 2] = 1 / 6
        above, every = self.query.scores.above, np.ones((self.nodes, self.nodes))
        gained = np.kron(near, above - 0.5)
        pairs = [np.kron(after, above) + gained, np.kron(after, every)]
        return self.counts.share_of_pairs([m + m.T for m in pairs], [slice(None)], gained / 2)

    def by_interval(self) -> tuple[Array, Array]:
        """For each interval, by cells: the events in it, and those that are expected of each who was seen in it.

        Who left within it was exposed to the hazard H until then: as if for an event, to 1 - H / (e^H - 1) of the H.
        """
        line, events, expected = self.query.scores, *np.zeros((2, self.last, 2 * self.last + 1, self.nodes))
        periods, rates = self.query.loss.periods, self.query.loss.rates
        along = np.append(0.0, np.cumsum(rates * np.diff(periods)))
        for place, gained in enumerate(np.diff(np.interp(self.query.cuts, periods, along))):
            left, after = slice(2 * place, 2 * place + 2), slice(2 * place + 2, None)
            events[place, 2 * place + 1] = 1.0
            expected[place, after] = line.projection(lambda s, h=gained: h * np.exp(s))  # type: ignore[misc]
            expected[place, left] = line.projection(lambda s, h=gained: 1 - 1 / exprel(h * np.exp(s)))  # type: ignore[misc]
        return events.reshape(self.last, -1), expected.reshape(self.last, -1)

    def ratio(self, events: Array, expected: Array) -> Metric:
        """Events for each one that is expected: it varies with what they differ by."""
        below = float(expected @ self.counts.known)
        if below <= Z * self.counts.noise * float(np.linalg.norm(self.counts.projection @ expected)):
            return NOTHING
        value = float(events @ self.counts.known) / below
        return around(value, self.deviation(events - value * expected) / below)

    def deviation(self, weights: Array) -> float:
        """Of a sum over the records, by the noise and by drawing them."""
        noise = self.counts.noise * float(np.linalg.norm(self.counts.projection @ weights))
        return math.hypot(noise, math.sqrt(float(weights**2 @ self.counts.clamped)))

    def calibration(self) -> Iterator[Bin]:
        """For each interval the share of the records that was expected to have the event in it, and that had it."""
        for events, expected in zip(*self.by_interval(), strict=True):
            share, observed = (float(each @ self.counts.known) / self.counts.n for each in (expected, events))
            yield Bin(share, self.counts.n, around(observed, self.deviation(events - expected) / self.counts.n))

    def histogram(self) -> tuple[Array, Array, float]:
        """(ends of the intervals, noisy numbers of events, the deviation of their noise)."""
        events = self.counts.cells.reshape(-1, self.nodes)[1::2].sum(axis=1)
        return self.query.cuts[1:], events, self.counts.noise * math.sqrt(self.nodes)
