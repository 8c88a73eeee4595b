"""What a plan of `whitened` says of a model to start from, and what is asked about its score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from sottovoce.algorithms.base import Array, Weight
from sottovoce.data.bounds import LARGEST
from sottovoce.errors import InputError, RefusedError
from sottovoce.gate.query import Query
from sottovoce.plan import Numbers, Problem
from sottovoce.plan.release import Frozen
from sottovoce.queries import sums
from sottovoce.solvers import Whitened
from sottovoce.solvers.prior import Source

ROUNDS = 8  # gradients of the slope and the intercept of the prior's score
SHARE = 0.05  # of mu^2, that they have
FARTHEST = 4 / math.sqrt(2)  # deviations of the scores, as expected, that a prior may explain: 4 of log odds
TRUSTED = 0.75  # of the variance of the scores: what is not left to be learned where the prior is right
WILD = 4.0  # root mean squares of the prior's score, beyond which its own intercept says nothing of the mean
MOST_WEIGHTS = 2**20
_UNPROTECTED = (
    "prior_people='same': these people are in the data of the prior ({}), which promises them nothing, so no fit that "
    "starts there promises them anything. Take a prior that was fitted with privacy, or one of other people."
)


class PlannedPrior(Frozen):
    """The weights on prepared rows, public; what model they are of, and whether its people are in this run."""

    weights: Annotated[tuple[Weight, ...], Field(min_length=1, max_length=MOST_WEIGHTS)]
    source: Source
    plan: str = Field("", pattern="^([0-9a-f]{64})?$")
    people: Literal["others", "same"] = "others"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.people == "same" and self.source != "private":
            raise RefusedError(_UNPROTECTED.format(self.source))
        return self


class PriorNumbers(Numbers):
    """The prior, if there is one."""

    left_out: ClassVar[tuple[str, ...]] = ("prior",)
    prior: PlannedPrior | None = None

    @classmethod
    def of(cls, problem: Problem, options: Whitened) -> PriorNumbers:
        """Those of the options, whose prior is a value by now."""
        prior, people = options.prior, options.prior_people or "others"
        if people == "same" and prior.source != "private":
            raise InputError(_UNPROTECTED.format(prior.source))
        if len(prior.coef) != problem.features:
            raise InputError(f"prior: it has {len(prior.coef)} coefficients, and the data {problem.features} features.")
        weights = problem.preparation.weights_of(np.array(prior.coef), prior.intercept)
        if not np.all(np.abs(weights) <= LARGEST):
            raise InputError(f"prior: a weight on prepared rows is beyond {LARGEST:g}; give it in other units.")
        found = {"weights": tuple(weights.tolist()), "source": prior.source, "plan": prior.plan, "people": people}
        return cls(prior=PlannedPrior.model_validate(found))

    def weights(self, dimension: int) -> Array:
        """Those of the prior; a plan whose prior is for other rows is refused."""
        found = np.array(() if self.prior is None else self.prior.weights)
        if len(found) != dimension:
            raise RefusedError(f"the plan has a prior of {len(found)} weights for rows of {dimension} columns.")
        return found


class PriorScore(sums.ScoreSum):
    """sum_i clip(x_i'w, -1, 1) of the prior's score."""

    name = "prior_score"
    title: ClassVar[str] = "the mean score of the prior"


class PriorSquare(sums.SquareSum):
    """sum_i min(1, (x_i'w)^2) of the prior's score."""

    name = "prior_square"
    title: ClassVar[str] = "the mean square of the prior's scores"


class PriorGradient(sums.ScaleGradient):
    """The derivatives by the slope and the intercept of the prior's score."""

    name = "prior"
    title: ClassVar[str] = "gradients of the slope and the intercept of the prior's score"


def with_prior(asked: Sequence[Query], plan: Problem) -> tuple[Query, ...]:
    """The queries of a run with a prior, about which it asks before it whitens."""
    d, constant = plan.dimension, plan.fit_intercept
    shape = sums.ProjectionShape(d, "vectors", 1 + constant)
    gradient = PriorGradient(shape, plan.scaled_loss, sums.first_round(plan, PriorGradient.name))
    own: tuple[Query, ...] = (PriorScore(d), PriorSquare(d), gradient)[1 - constant :]
    place = [isinstance(query, sums.LengthSum) for query in asked].index(True)
    return (*asked[:place], *own, *asked[place:])
