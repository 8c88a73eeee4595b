"""The evaluation of times to an event: records by score, and by when they left with or without an event.

From these cells follow concordance, and how many events there are for each that was expected.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, cast

import numpy as np
from pydantic import Field
from scipy.special import exprel

from sottovoce.algorithms.base import Array, Need
from sottovoce.algorithms.evaluation import WIDE, Evaluated, Line, Side, Subject, _Evaluation, cells
from sottovoce.algorithms.evaluation.estimates import NOTHING, Bin, Counts, Metric, Z, around
from sottovoce.data.block import Block, BlockRows
from sottovoce.gate.query import Query, Round
from sottovoce.losses import Hazard, Kind
from sottovoce.plan import Numbers, Problem

FARTHEST = 60.0  # of a node: its hazard and that number's square are numbers still
# Up to so much signal: nodes of the scores, the deviations to the end nodes, and intervals of time.
LAYOUTS = ((1_000.0, 6, 2.5, 6), (5_000.0, 8, 2.5, 8), (20_000.0, 12, 3.0, 12), (math.inf, 20, 4.0, 16))


class TimeCells(Query):
    """Cells of the scores x_i'w, for each interval of time and whether records left it without or with an event.

    Those who were seen until the last cut come after all of them. Guarantee: a record adds 1 - t and t to two cells, a
    vector of norm at most 1, so zero-out moves the value by at most 1, replace-one by sqrt 2. Edges: a null row adds
    nothing, nor does a record that was seen only from some time on; a NaN score counts as the first node.
    """

    name = "cells"
    title: ClassVar[str] = "scores of test records by time and event, counted in cells"
    needs: ClassVar[type] = BlockRows
    replacement: ClassVar[float | None] = math.sqrt(2.0)
    bound = 1.0
    rounding_entries = 4.0

    def __init__(self, loss: Hazard, numbers: Any, weights: Array) -> None:
        """Cuts are at equal steps along the periods of the model, so that the number of cells follows the noise."""
        self.loss, self.weights = loss, weights
        self.scores = Line(tuple(np.linspace(numbers.low, numbers.low + numbers.width, numbers.nodes).tolist()))
        along = np.linspace(0.0, len(loss.periods) - 1, numbers.intervals + 1)
        self.cuts = np.maximum.accumulate(np.interp(along, range(len(loss.periods)), loss.periods))
        self.length = len(self.scores) * (2 * len(self.cuts) - 1)

    def value(self, round: Round) -> Array:
        return round.rows.over(self._cells)

    def _cells(self, rows: Block) -> Array:
        places, t = self.scores.shares(rows.scores(self.weights))
        labels: Any = rows.labels
        event, time, last = labels["label"] > 0, labels["time"], len(self.cuts) - 1
        left = 2 * np.clip(np.searchsorted(self.cuts, time, side="left") - 1, 0, last - 1) + event
        left = np.where(~event & (time >= self.cuts[-1]), 2 * last, left)
        places = np.where(labels["entry"] == 0, places + len(self.scores) * left, self.length)
        return cells(rows, places, t, self.length + 2)[: self.length]


class EvaluatedTimesNumbers(Evaluated):
    """And the nodes of the scores, and into how many intervals the periods of the model are joined or parted."""

    low: float = Field(ge=-FARTHEST, le=FARTHEST, allow_inf_nan=False)
    width: Annotated[float, Field(ge=1e-3, le=FARTHEST, allow_inf_nan=False)]
    nodes: Side
    intervals: Side


class EvaluatedTimes(_Evaluation):
    """Concordance, and how many events there are for each that was expected, by time and in all, from one release.

    Guarantee: mu = (sensitivity 1, replace-one sqrt 2) / std, whatever the model and the nodes (`proof.md`).
    """

    form: ClassVar[str] = "times"
    title: ClassVar[str] = "private evaluation: scores counted in cells by time and event"
    kinds: ClassVar[tuple[Kind, ...]] = ("time",)
    people: ClassVar[bool | None] = False
    needs: ClassVar[tuple[Need, ...]] = (Need(lambda loss: isinstance(loss, Hazard), "tells times, not {!r}"),)
    numbers: ClassVar[type[Numbers]] = EvaluatedTimesNumbers

    def nodes(self, problem: Problem, subject: Subject) -> dict[str, float]:
        """By what the fit released of the scores; more of them where the noise is small for the number of records."""
        nodes, reach, intervals = next(layout for most, *layout in LAYOUTS if problem.signal <= most)
        middle, deviation = subject.spread or (0.0, WIDE / reach)
        half = reach * min(max(deviation, 0.05), FARTHEST / 8)
        low = min(max(middle, -FARTHEST / 2), FARTHEST / 2) - half
        return {"low": low, "width": 2 * half, "nodes": int(nodes), "intervals": int(intervals)}

    def cells(self, problem: Problem, numbers: Evaluated, weights: Array) -> Query:
        return TimeCells(cast("Hazard", problem.scaled_loss), numbers, weights)


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
