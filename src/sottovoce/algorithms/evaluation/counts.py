"""The evaluation of counts and positive amounts: deviances, scores and residuals of test records in cells."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from sottovoce.algorithms.base import Array, Need
from sottovoce.algorithms.evaluation import FLOAT, WIDE, Evaluated, Line, Subject, _Evaluation, cells, pair_cells
from sottovoce.data.block import Block, BlockRows, toward_zero
from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.gate.query import Query, Round
from sottovoce.losses import Kind, LogMeanLoss
from sottovoce.losses.counts import REACH, count_and_exposure
from sottovoce.plan import Numbers, Problem

DEVIANCES = Line((0.0, *(2.0**k for k in range(-3, 5))))  # in units of the plan; those beyond count as the last
SCORES = 6  # nodes of the scores
BEYOND = 2.5  # deviations of the scores to the end nodes
Unit = Annotated[float, Field(ge=SMALLEST, le=LARGEST, allow_inf_nan=False)]


class CountCells(Query):
    """Cells of a record's deviance; of its score s, weighed by its exposure; r = cut((y - mu) / R, -1, 1) and r^2.

    The third part is r times the hats of s, and r^2.
    Guarantee: zero-out moves it by at most sqrt(1 + 1 + 2), replace-one by sqrt(2 + 2 + 4). Edges: a null row adds
    nothing; a NaN counts as the first node, and as r = 1.
    """

    name = "cells"
    title: ClassVar[str] = "deviances, scores and residuals of test records, counted in cells"
    needs: ClassVar[type] = BlockRows
    replacement: ClassVar[float | None] = math.sqrt(2.0)
    bound = 2.0 * FLOAT
    rounding_entries = 20.0

    def __init__(self, weights: Array, loss: LogMeanLoss, numbers: Any, most: float | None) -> None:
        self.weights, self.loss, self.most = weights, loss, most  # the largest exposure; None: there are none
        self.scores, self.unit, self.range = score_line(numbers), numbers.unit, numbers.range
        self.length = len(DEVIANCES) + (2 if most else 1) * SCORES + SCORES + 1

    def value(self, round: Round) -> Array:
        return round.rows.over(self._cells)

    def _cells(self, rows: Block) -> Array:
        scores, (counts, exposures) = rows.scores(self.weights), count_and_exposure(rows.labels)
        with np.errstate(all="ignore"):
            deviances = self.loss.deviance(scores, rows.labels) / self.unit
            means = exposures * np.exp(np.clip(scores, -REACH, REACH))
            residuals = np.fmax(np.fmin((counts - means) / self.range, 1.0), -1.0)
        places, t = self.scores.shares(scores)
        if self.most:
            weighed = pair_cells(rows, places, t, np.clip(exposures / self.most, 0.0, 1.0), SCORES)
        else:
            weighed = cells(rows, places, t, SCORES)
        usable = rows.usable_rows
        places, t, r = places[usable], t[usable], residuals[usable]
        parts = ((1.0 - t) * r, t * r, r * r)
        low, high, squares = (part if rows.bits is None else toward_zero(part, rows.sum_bits) for part in parts)
        signed = np.bincount(places, low, SCORES) + np.bincount(places + 1, high, SCORES)
        own = cells(rows, *DEVIANCES.shares(deviances), len(DEVIANCES))
        return np.concatenate([own, weighed, signed, [squares.sum()]])


class EvaluatedCountsNumbers(Evaluated):
    """And the units of deviances and residuals, and the end nodes of the scores."""

    low: float = Field(ge=-REACH, le=REACH, allow_inf_nan=False)
    width: Annotated[float, Field(ge=1e-3, le=2 * REACH, allow_inf_nan=False)]
    unit: Unit
    range: Unit


class EvaluatedCounts(_Evaluation):
    """Deviance, D^2, dispersion, and how many there are for each that was predicted, from one release.

    Guarantee: mu = (sensitivity 2, replace-one sqrt 8) / std, whatever the model, the nodes and the units are
    (`proof.md`).
    """

    form: ClassVar[str] = "counts"
    title: ClassVar[str] = "private evaluation: deviances, scores and residuals of counts in cells"
    splits = ("central", "rows", "columns")
    kinds: ClassVar[tuple[Kind, ...]] = ("count",)
    people: ClassVar[bool | None] = False
    needs: ClassVar[tuple[Need, ...]] = (Need(lambda loss: isinstance(loss, LogMeanLoss), "tells counts, not {!r}"),)
    numbers: ClassVar[type[Numbers]] = EvaluatedCountsNumbers

    def nodes(self, problem: Problem, subject: Subject) -> dict[str, float]:
        """By what the fit released of the scores, of the labels' mean and of their residuals from it."""
        middle, deviation = subject.spread or (0.0, WIDE / BEYOND)
        mean, residual = subject.labels or (math.exp(min(max(middle, -REACH / 2), REACH / 2)),) * 2
        reach = BEYOND * min(max(deviation, 0.05), REACH / 4)
        counted = problem.scaled_loss.exposed
        return {
            "low": min(max(middle, -REACH / 2), REACH / 2) - reach,
            "width": 2 * reach,
            "unit": max(1.0, (1.25 * residual) ** 2 / mean / 4) if counted else 1.0,
            "range": 4 * residual + (1.0 if counted else 0.0),
        }

    def cells(self, problem: Problem, numbers: Evaluated, weights: Array) -> Query:
        loss: Any = problem.scaled_loss
        return CountCells(weights, loss, numbers, problem.bounds.exposure_bound)


def score_line(numbers: Any) -> Line:
    """The nodes of the scores."""
    return Line(tuple(np.linspace(numbers.low, numbers.low + numbers.width, SCORES).tolist()))
