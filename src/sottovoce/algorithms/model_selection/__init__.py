"""`model-selection`: one noisy release of the sums of losses of public models, beside a reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import Field

from sottovoce.algorithms.base import Algorithm, Array, Coordination, Solution, Weight, total
from sottovoce.data.block import Block, BlockRows, toward_zero
from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.errors import RefusedError
from sottovoce.gate.query import Query, Round
from sottovoce.losses import Loss
from sottovoce.plan import Design, Numbers, Plan, Problem, Release

CUT = 1.0  # of the vector of a record's differences, in units of the loss: shorter ones hide what a poor model costs
FLOAT = 1.0 + 2.0**-40  # in a sensitivity, for a length that is computed in floating point


def cut_lengths(vectors: Array) -> Array:
    """Rows longer than CUT brought to that length; first divided by their largest entries, so no square overflows."""
    sizes = np.abs(vectors).max(axis=1, keepdims=True)
    sizes[sizes == 0.0] = 1.0
    scaled = vectors / sizes
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True).clip(min=1.0)
    return np.asarray(scaled * np.minimum(sizes, CUT / lengths))


class LossDifferences(Query):
    """sum_i cut(v_i), v_i = (l(x_i'w_k, y_i) - l(x_i'w_0, y_i)) / unit over the models k = 1, 2, ...

    Vectors are clipped to the length 1 and keep their direction, so that no model is favoured.

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
                total += (vectors if rows.bits is None else toward_zero(cut_lengths(vectors), rows.sum_bits)).sum(
                    axis=0
                )
        return total


MOST_MODELS = 64


@dataclass(frozen=True)
class Candidates:
    """Weights on prepared rows, a row for each model; the first is the reference. `unit` divides the losses."""

    weights: Array
    unit: float = 1.0


class ComparedLossesNumbers(Numbers):
    """The models, public, the reference first, and the unit of the losses."""

    weights: tuple[tuple[Weight, ...], ...] = Field(min_length=2, max_length=MOST_MODELS + 1)
    unit: float = Field(ge=SMALLEST, le=LARGEST, allow_inf_nan=False)


class ComparedLosses(Algorithm):
    """For each model the sum of its losses less those of the reference, cut by record, in one release.

    Guarantee: mu = (sensitivity 1, replace-one 2) / std, whatever the models and however many (`proof.md`).
    """

    name: ClassVar[str] = "model-selection"
    form: ClassVar[str] = "losses"
    title: ClassVar[str] = "model selection: losses of public models beside a reference"
    private: ClassVar[bool | None] = None
    weighted: ClassVar[bool] = True
    numbers: ClassVar[type[Numbers]] = ComparedLossesNumbers

    def design(self, problem: Problem, options: Candidates) -> Design:
        models = tuple(map(tuple, options.weights.tolist()))
        release = Release.at_mu(
            LossDifferences(options.weights, problem.scaled_loss, options.unit), 0, 1, problem.mu, problem.relation
        )
        return Design(rounds=1, numbers=ComparedLossesNumbers(weights=models, unit=options.unit), releases=(release,))

    def queries(self, plan: Plan, _party: str) -> tuple[Query, ...]:
        models, unit = plan.numbers.weights, plan.numbers.unit
        if any(len(weights) != plan.dimension for weights in models):
            raise RefusedError(f"the plan has models of other sizes than rows of {plan.dimension} columns.")
        return (LossDifferences(np.array(models), plan.scaled_loss, unit),)

    def coordinate(self, plan: Plan) -> Coordination:
        """The sums over all parties, as the solution's model."""
        return Solution(np.array(plan.numbers.weights[0]), model=(yield from total("losses")))


FORMS: tuple[Algorithm, ...] = (ComparedLosses(),)
