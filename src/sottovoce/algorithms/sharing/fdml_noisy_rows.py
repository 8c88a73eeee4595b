"""`fdml`: private gradient steps over columns on rows with noise that is drawn once."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.sharing.gradients import OwnGradients, PartWeights, unit_gradients
from sottovoce.algorithms.sharing.updates import curvature, momentum_step
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Problem
from sottovoce.queries.parts import PartQuery, PartSlopes, PartSums

Array = NDArray[np.float64]

FEWEST, MOST, NOISE = 16, 256, 0.2  # rounds, and how far the noise may carry the weights in all of them


class LossSlopes(PartSlopes):
    """r = l'(s, label)."""

    def make(self, scores: Array, labels: Array) -> Array:
        return self.loss_slopes(scores, labels)


class MeanSteps(PartWeights):
    """Steps of length 1 / (f k N B_m^2 + ridge) in all directions, k the loss's curvature, with momentum."""

    summary: ClassVar[type[PartQuery]] = PartSums

    def __init__(self, plan: Plan, party: str, sums: Array) -> None:
        query = PartSums(plan, party)
        super().__init__(plan, party, sums / plan.records if plan.fit_intercept else np.zeros(query.width))
        self.before = self.weights
        self.steepness = curvature(plan.scaled_loss) * plan.records * query.norm_with_intercept**2

    def step(self, gradient: Array) -> Array:
        length = 1 / (self.overlap * self.steepness + self.ridge)
        free = momentum_step(self.weights, self.before, length * gradient)
        self.before = self.weights
        return self.regulariser.prox(free, length * self.plan.records)

    def spread(self, weights: Array) -> float:
        """How far from even the party's level is: without moments, the part that says most is taken for the widest."""
        return abs(float(self.mean @ weights[: self.width] + weights[self.width :].sum()))


class NoisyRowsFDML(OwnGradients):
    """Gradient steps on scores of rows with noise, drawn once (`OwnGradients` has the round and its cost).

    A party weighs its clean rows by the slopes l'(s_i, label_i), cut, and says the sum with noise: g_m, by which its
    weights move (`MeanSteps`). Before the first round each party tells the means of its columns. The answer is the mean
    of the second half.
    """

    name: ClassVar[str] = "fdml"
    form: ClassVar[str] = "noisy rows"
    title: ClassVar[str] = "private gradient steps: rows with noise once, noisy gradients"
    part_weights: ClassVar[type[PartWeights]] = MeanSteps
    slopes: ClassVar[type[PartSlopes]] = LossSlopes
    summary_share: ClassVar[float] = 0.05

    def default_rounds(self, problem: Problem, bound: float, signal: float) -> int:
        """Fewer where there is more noise: steps that do not shrink add it up."""
        norm = unit_gradients(problem).sensitivity("zero-out")
        most = NOISE * curvature(problem.scaled_loss) * signal * norm / bound
        return int(min(MOST, max(FEWEST, most)))
