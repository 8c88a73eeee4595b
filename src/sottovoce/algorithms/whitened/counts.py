"""`whitened` for counts and positive amounts, whose mean is exp(score) times the exposure."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np

from sottovoce.algorithms.base import Asking, Solution
from sottovoce.algorithms.whitened.private import ConstantModel, PrivateWhitened, mean_of
from sottovoce.algorithms.whitened.rule import Descent, Units, White
from sottovoce.errors import InputError
from sottovoce.gate.query import Query
from sottovoce.losses import Kind, KnownLabels
from sottovoce.plan import Plan, Problem
from sottovoce.queries.counts import CountResidualSum, CountSum, ExposureSum

LEAST_EXPOSURE = 0.02  # of the largest, which the mean is taken to be at least


class PrivateCounts(PrivateWhitened):
    """From the constant model log(mean count / mean exposure); else as for classes and numbers.

    Slopes are nearly alike for small and large counts (`losses/counts.py`).

    Guarantee: as of numbers, whatever the exposures are (`proof.md`).
    """

    form: ClassVar[str] = "counts"
    title: ClassVar[str] = "whitened descent for counts and positive amounts"
    kinds: ClassVar[tuple[Kind, ...]] = ("count",)

    def label_numbers(self, plan: Problem) -> list[Query]:
        found: list[Query] = [CountSum(largest(plan))]
        if plan.bounds.exposure_bound is not None:
            found.append(ExposureSum(plan.bounds.exposure_bound))
        return [*found, CountResidualSum(plan.dimension)]

    def start(self, plan: Plan) -> Asking[ConstantModel]:
        """At the logarithm of the mean count in the mean exposure; without an intercept at 0."""
        weights, constant, most = np.zeros(plan.dimension), plan.preparation.intercept_entry, largest(plan)
        found, noise = (yield from mean_of(plan, "label")), self.noise(plan, "label")
        mean, exposure = most * max(max(found, 0.0) + noise / 2, noise / 4), 1.0
        if plan.has("exposure"):
            share = yield from mean_of(plan, "exposure")
            exposure = (plan.bounds.exposure_bound or 1.0) * min(max(share, LEAST_EXPOSURE), 1.0)
        if constant:
            weights[-1] = math.log(mean / exposure) / constant
        width = min(most, 4 * max(mean, math.sqrt(mean)))
        share = yield from mean_of(plan, "residual", weights=weights, range=np.array([width]))
        residual = width * (min(max(share, 0.0), 1.0) + self.noise(plan, "residual"))
        known = KnownLabels(residual, mean, exposure, most)
        return ConstantModel(weights, weights[-1:] * constant, Units.of(plan.scaled_loss, known), known=known)

    def rescale(self, plan: Plan, white: White, descent: Descent, start: ConstantModel) -> Asking[Solution]:
        """As of classes; the mean of the labels and of their residuals go with the model, for evaluations."""
        found = yield from super().rescale(plan, white, descent, start)
        return replace(found, labels=(start.known.mean, start.known.residual))


def largest(problem: Problem) -> float:
    """The largest label, as declared."""
    if problem.bounds.label_high is None:
        raise InputError("label_bound=None: declare the range of the counts, such as (0, 20); larger ones are cut.")
    return problem.bounds.label_high
