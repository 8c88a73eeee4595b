"""What test records release: shared cells of scores by class, of residuals and of labels. Proof: `proof.md`."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.evaluation.nodes import Integers, Line, TwoSides
from sottovoce.data.block import Block, toward_zero
from sottovoce.door.query import Query, Round
from sottovoce.privacy.relation import Relation, either

Array = NDArray[np.float64]

RESIDUALS = Line((0.0, *(2.0**k for k in range(-6, 1))))  # sizes in half-widths of the label's range
LABELS = Line(tuple(np.linspace(-1.0, 1.0, 8).tolist()))
FLOAT = 1.0 + 2.0**-18  # in a sensitivity, for labels and squares that are rounded toward zero before they are summed


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
    bound = 1.0
    rounding_entries = 4.0

    def __init__(self, nodes: TwoSides, weights: Array) -> None:
        self.nodes, self.weights = nodes, weights
        self.length = 2 * len(nodes)

    def sensitivity(self, relation: Relation) -> float:
        """1, or sqrt 2."""
        return either(relation, zero_out=self.bound, replace_one=math.sqrt(2.0) * self.bound)

    def value(self, round: Round) -> Array:
        """One pass over the rows."""
        rows = round.rows
        places, t = self.nodes.shares(rows.scores(self.weights))
        return cells(rows, np.where(rows.labels > 0, places + len(self.nodes), places), t, self.length)


class ResidualCells(Query):
    """Cells of min(1, |x_i'w - y_i|) and of the labels y_i in [-1, 1], then sum y_i and sum y_i^2.

    Guarantee: a record adds four parts of norm at most 1 each, so zero-out moves the value by at most 2. Replace-one:
    by sqrt 2 in either kind of cells; y and y^2 move together by at most 2; in all by sqrt 8. Edges: a null row adds
    nothing, a NaN counts as the first node.
    """

    name = "cells"
    title: ClassVar[str] = "residuals and labels of test records, counted in cells, and the labels' first two moments"
    bound = 2.0 * FLOAT
    rounding_entries = 10.0
    length = len(RESIDUALS) + len(LABELS) + 2

    def __init__(self, weights: Array) -> None:
        self.weights = weights

    def sensitivity(self, relation: Relation) -> float:
        """2, or sqrt 8."""
        return either(relation, zero_out=self.bound, replace_one=math.sqrt(2.0) * self.bound)

    def value(self, round: Round) -> Array:
        """One pass over the rows."""
        rows = round.rows
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
