"""The evaluation of times to an event: records by score, and by when they left with or without an event."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, cast

import numpy as np
from pydantic import Field

from sottovoce.algorithms.base import Array, Need
from sottovoce.algorithms.evaluation import WIDE, Evaluated, Line, Side, Subject, _Evaluation, cells
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
        self.cuts = np.interp(along, range(len(loss.periods)), loss.periods)
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
