"""`admm`: private ADMM sharing on rows with noise that is drawn once."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from sottovoce.algorithms.base import Z_UPDATE, Array, Need
from sottovoce.algorithms.sharing.gradients import OwnGradients, PartWeights, unit_gradients
from sottovoce.algorithms.sharing.updates import curvature
from sottovoce.losses import Loss
from sottovoce.penalties.quadratic import Metric
from sottovoce.plan.plan import Plan
from sottovoce.queries.parts import PartGram, PartQuery, PartSlopes


class DualSlopes(PartSlopes):
    """r = y + rho (s - z) after the updates of copies z and duals y; in the first round the loss's slopes at s.

    z = argmin l(z) - y z + (rho/2) (s - z)^2, y <- y + rho (s - z), for every record on its own.
    """

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss)
        self.rho = curvature(loss) * (1.0 if loss.convex else 2.0)  # the minimum over z must be one
        self.duals: Array | None = None

    def make(self, scores: Array, labels: Array) -> Array:
        """Update z, then y; z itself is not needed again."""
        if self.duals is None:
            self.duals = self.loss_slopes(scores, labels)
            return self.duals
        noisy = self.noisy_labels is not None
        copies = self.loss.copies(scores, self.duals, labels, self.rho, noisy=noisy)  # z
        self.duals = self.duals + self.rho * (scores - copies)  # y
        return np.asarray(self.duals + self.rho * (scores - copies))


class GramSteps(PartWeights):
    """argmin N pen(u) + <q_m, u> + 1/2 |u - w_m|^2 in the metric f rho G_m + lam0 + ridge, G_m a released Gram matrix.

    rho is the loss's curvature, at most 1, and f the `overlap`.
    """

    summary: ClassVar[type[PartQuery]] = PartGram

    def __init__(self, plan: Plan, party: str, triangle: Array) -> None:
        query = PartGram(plan, party)
        gram, width = query.matrix(triangle), query.width
        mean = gram[:width, -1] / plan.records if plan.fit_intercept else np.zeros(width)
        super().__init__(plan, party, mean)
        values, self.vectors = np.linalg.eigh(gram)
        self.values = np.maximum(values, 0.0)
        self.moments = gram[:width, :width] / plan.records - np.outer(mean, mean)
        self.damping = damping(plan, self.bound)

    def step(self, gradient: Array) -> Array:
        steepness = self.overlap * curvature(self.plan.scaled_loss)
        metric = Metric(steepness * self.values + self.damping + self.ridge, self.vectors)
        return metric.step(self.weights, gradient, self.regulariser, self.plan.records)

    def spread(self, weights: Array) -> float:
        """The variance of the scores, by the released moments."""
        return float(weights[: self.width] @ self.moments @ weights[: self.width])


def damping(plan: Plan, bound: float) -> float:
    """lam0 = max(T s B d / 200, 0.35 std_gram sqrt d, s^2 T d / N), s sqrt(T) the std of a gradient; d of all parts."""
    dimension = plan.features + len(plan.parties) * plan.fit_intercept
    std, gram, rounds = plan.release("gradient").std, plan.release("gram").std, plan.rounds
    norm = unit_gradients(plan).sensitivity("zero-out")
    return max(
        bound * std * math.sqrt(rounds) * norm * dimension / 200,
        0.35 * gram * math.sqrt(dimension),
        std**2 * dimension / plan.records,
    )


class NoisyRowsADMM(OwnGradients):
    """ADMM sharing whose messages are scores of noisy rows, noise drawn once (`OwnGradients` has the round, its cost).

    At the scores of a round, each party updates its copies and duals of all records (`DualSlopes`) and weighs its clean
    rows by the slopes r, cut: the gradient of the x-update, to which noise is added. The coordinator solves for the
    weights (`GramSteps`); lam0 as in `newton`. The answer is the mean of the second half.
    """

    name: ClassVar[str] = "admm"
    form: ClassVar[str] = "noisy rows"
    title: ClassVar[str] = "private ADMM sharing: rows with noise once, noisy gradients"
    needs: ClassVar[tuple[Need, ...]] = (Z_UPDATE,)
    options: ClassVar[tuple[str, ...] | None] = (*(OwnGradients.options or ()), "rows", "unit")
    part_weights: ClassVar[type[PartWeights]] = GramSteps
    slopes: ClassVar[type[PartSlopes]] = DualSlopes
    lasts: ClassVar[tuple[str, ...]] = (*OwnGradients.lasts, "duals")
    summary_share: ClassVar[float] = 0.25
