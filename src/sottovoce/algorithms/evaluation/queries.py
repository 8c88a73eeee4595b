"""What test records release: shared cells of scores by class, of residuals and of labels. Proof: `proof.md`."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from sottovoce.algorithms.evaluation.nodes import Integers, Line, TwoSides
from sottovoce.data.block import Block, BlockRows, toward_zero
from sottovoce.gate.query import Array, Query, Round

RESIDUALS = Line((0.0, *(2.0**k for k in range(-6, 1))))  # sizes in half-widths of the label's range
LABELS = Line(tuple(np.linspace(-1.0, 1.0, 8).tolist()))
LARGEST_LOSS = 6.0  # a record's log-loss counts as no more
FLOAT = 1.0 + 2.0**-18  # in a sensitivity, for labels and squares that are rounded toward zero before they are summed


def loss_lines(classes: int) -> tuple[Line, Line]:
    """Nodes of the losses of records whose class has the largest score of all, and of the others."""
    most = math.log(classes)
    return Line((0.0, most / 4, most)), Line((math.log(2.0), 2.0, LARGEST_LOSS))


def cells(rows: Block, places: Integers, t: Array, count: int) -> Array:
    """Cell j gets 1 - t and cell j + 1 gets t of each record, j its place: exact; a null row adds nothing."""
    usable = rows.usable_rows
    places, t = places[usable], on_grid(rows, t[usable])
    # 1 - t is on the grid too: a record's two parts are exact, and so are their sums in any order.
    return np.asarray(np.bincount(places, 1.0 - t, count) + np.bincount(places + 1, t, count), dtype=np.float64)


def on_grid(rows: Block, values: Array) -> Array:
    """Numbers of at most 1 rounded so that their sum is exact; in a run without privacy as they are."""
    return values if rows.bits is None else toward_zero(values, rows.sum_bits)


class ScoreCells(Query):
    """For each class the cells of the scores x_i'w, w and the nodes public: 2 B numbers, the negative class first.

    Guarantee: a record adds 1 - t and t to two cells, a vector without entries below 0 and of norm at most 1. So
    zero-out moves the value by at most 1, replace-one by sqrt 2. Edges: a null row adds nothing.
    """

    name = "cells"
    title: ClassVar[str] = "scores of test records by class, counted in cells"
    needs: ClassVar[type] = BlockRows
    replacement: ClassVar[float | None] = math.sqrt(2.0)
    bound = 1.0
    rounding_entries = 4.0

    def __init__(self, nodes: TwoSides, weights: Array) -> None:
        self.nodes, self.weights = nodes, weights
        self.length = 2 * len(nodes)

    def value(self, round: Round) -> Array:
        return round.rows.over(self._cells)

    def _cells(self, rows: Block) -> Array:
        places, t = self.nodes.shares(rows.scores(self.weights))
        return cells(rows, np.where(rows.labels > 0, places + len(self.nodes), places), t, self.length)


class ClassCells(Query):
    """Records by class and predicted class, K x K counts, and cells of their losses -log p_y: right ones, wrong ones.

    The weights have a row for each of K classes. A record whose class has the largest score is right and its loss at
    most log K; that of a wrong one is at least log 2. Without `losses` there are the counts alone.

    Guarantee: a record adds 1 to one count, and 1 - t and t to two cells: two vectors without entries below 0 and of
    norm at most 1. So zero-out moves the value by at most sqrt 2, replace-one by 2; without losses by 1 and sqrt 2.
    Edges: a null row adds nothing; of equal scores the first is the prediction; a NaN loss counts as the first node.
    """

    name = "cells"
    title: ClassVar[str] = "test records by class, predicted class and, where there are probabilities, loss"
    needs: ClassVar[type] = BlockRows
    replacement: ClassVar[float | None] = math.sqrt(2.0)

    def __init__(self, weights: Array, *, losses: bool) -> None:
        self.weights, self.losses = weights, losses
        self.classes = len(weights)
        self.lines: tuple[Line, ...] = loss_lines(self.classes) if losses else ()
        self.length = self.classes**2 + sum(map(len, self.lines))
        self.bound = math.sqrt(2.0) if losses else 1.0
        self.rounding_entries = 6.0 if losses else 2.0

    def value(self, round: Round) -> Array:
        """A pass over the rows for each class, with a few numbers of each row at hand."""
        return round.rows.over(self._cells)

    def _cells(self, rows: Block) -> Array:
        labels, count = rows.labels.astype(np.int64), len(rows)
        predicted, largest = np.zeros(count, dtype=np.int64), np.full(count, -math.inf)
        total, own = np.full(count, -math.inf), np.zeros(count)
        for place, weights in enumerate(self.weights):
            scores = rows.scores(weights)
            predicted[scores > largest] = place
            np.maximum(largest, scores, out=largest)
            if self.losses:
                np.logaddexp(total, scores, out=total)  # of each record on its own
                np.copyto(own, scores, where=labels == place)
        usable = rows.usable_rows
        counts = np.bincount((labels * self.classes + predicted)[usable], minlength=self.classes**2)
        if not self.losses:
            return counts.astype(np.float64)
        (places, t), (beyond, u) = (line.shares(total - own) for line in self.lines)
        right, size = labels == predicted, len(self.lines[0])
        places, t = np.where(right, places, beyond + size), np.where(right, t, u)
        return np.concatenate([counts, cells(rows, places, t, self.length - len(counts))])


class ResidualCells(Query):
    """Cells of min(1, |x_i'w - y_i|) and of the labels y_i in [-1, 1], then sum y_i and sum y_i^2.

    Guarantee: a record adds four parts of norm at most 1 each, so zero-out moves the value by at most 2. Replace-one:
    by sqrt 2 in either kind of cells; y and y^2 move together by at most 2; in all by sqrt 8. Edges: a null row adds
    nothing, a NaN counts as the first node.
    """

    name = "cells"
    title: ClassVar[str] = "residuals and labels of test records, counted in cells, and the labels' first two moments"
    needs: ClassVar[type] = BlockRows
    replacement: ClassVar[float | None] = math.sqrt(2.0)
    bound = 2.0 * FLOAT
    rounding_entries = 10.0
    length = len(RESIDUALS) + len(LABELS) + 2

    def __init__(self, weights: Array) -> None:
        self.weights = weights

    def value(self, round: Round) -> Array:
        return round.rows.over(self._cells)

    def _cells(self, rows: Block) -> Array:
        labels = np.clip(rows.labels, -1.0, 1.0)
        residuals = np.abs(rows.scores(self.weights) - labels)
        usable = labels[rows.usable_rows]
        moments = [on_grid(rows, part).sum() for part in (usable.copy(), usable * usable)]
        return np.concatenate(
            [
                cells(rows, *RESIDUALS.shares(residuals), len(RESIDUALS)),
                cells(rows, *LABELS.shares(labels), len(LABELS)),
                moments,
            ]
        )
