"""What records release of public models: how much smaller or larger their losses are than a reference's."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sottovoce.data.block import Block, BlockRows, toward_zero
from sottovoce.door.query import Array, Query, Round
from sottovoce.losses import Loss

CUT = 1.0  # of the vector of a record's differences, in units of the loss: shorter ones hide what a poor model costs
FLOAT = 1.0 + 2.0**-40  # in a sensitivity, for a length that is computed in floating point


def cut(vectors: Array) -> Array:
    """Rows longer than CUT brought to that length; first divided by their largest entries, so no square overflows."""
    sizes = np.abs(vectors).max(axis=1, keepdims=True)
    sizes[sizes == 0.0] = 1.0
    scaled = vectors / sizes
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True).clip(min=1.0)
    return np.asarray(scaled * np.minimum(sizes, CUT / lengths))


class LossDifferences(Query):
    """sum_i cut(v_i), v_i = (l(x_i'w_k, y_i) - l(x_i'w_0, y_i)) / unit over the models k = 1, 2, ...

    Vectors are cut to the length 1 and keep their direction, so that no model is favoured.

    Guarantee: a record adds a vector of length at most 1, whatever the models are and however many. So zero-out moves
    the value by at most 1 and replace-one by 2. Edges: a null row adds nothing; a loss that overflows counts as no
    difference.
    """

    name = "losses"
    title: ClassVar[str] = "losses of models less those of a reference, cut by record"
    needs: ClassVar[type] = BlockRows
    bound = CUT * FLOAT

    def __init__(self, weights: Array, loss: Loss, unit: float) -> None:
        self.weights, self.loss, self.unit = weights, loss, unit
        self.length = len(weights) - 1
        self.rounding_entries = float(self.length)

    def value(self, round: Round) -> Array:
        """One pass over the rows, piece by piece: all models' losses of all rows would take far more than the rows."""
        return round.rows.over(self._summed)

    def _summed(self, rows: Block) -> Array:
        total, start = np.zeros(self.length), 0
        with np.errstate(over="ignore", invalid="ignore"):
            for scores, labels in rows.several_scores(self.weights):
                usable = rows.usable_rows[start : start + len(labels)]
                start += len(labels)
                each = np.column_stack([self.loss.value(column, labels) for column in scores.T])
                vectors = (each[:, 1:] - each[:, :1]) / self.unit
                vectors[~usable | ~np.isfinite(vectors).all(axis=1)] = 0.0
                total += (vectors if rows.bits is None else toward_zero(cut(vectors), rows.sum_bits)).sum(axis=0)
        return total
