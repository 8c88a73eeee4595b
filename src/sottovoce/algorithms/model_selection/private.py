"""`model-selection`: one noisy release of the sums of losses of public models, beside a reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import Field

from sottovoce.algorithms.base import Algorithm, Array, Coordination, Solution, Weight, total
from sottovoce.algorithms.model_selection.queries import LossDifferences
from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.door.query import Query
from sottovoce.errors import RefusedError
from sottovoce.plan.plan import Design, Numbers, Plan
from sottovoce.plan.problem import Problem
from sottovoce.plan.release import Release

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
