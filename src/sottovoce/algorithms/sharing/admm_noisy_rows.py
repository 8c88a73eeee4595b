"""Private ADMM sharing on rows with noise that is drawn once."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Ask, Problem
from sottovoce.algorithms.newton.private import Metric
from sottovoce.algorithms.sharing.gradients import (
    KeptRows,
    Memory,
    View,
    Views,
    bend,
    bound_of,
    shrinkage,
    unit_gradients,
)
from sottovoce.algorithms.sharing.parts import PartGram, PartQuery, slopes_of
from sottovoce.algorithms.sharing.updates import nearest, part_regulariser
from sottovoce.losses import Loss
from sottovoce.plan.plan import Part, Plan

Array = NDArray[np.float64]

ROUNDS = 64


class PersistentSharing(KeptRows):
    """ADMM sharing whose messages are scores of noisy rows, noise drawn once (`KeptRows` has the round and its cost).

    At the scores s of a round, each party updates its copies z and duals y of all records,
    z = argmin l(z) - y z + (rho/2) (s - z)^2, y <- y + rho (s - z), and weighs its clean rows by r = y + rho (s - z),
    cut: the gradient of the x-update, to which noise is added. The coordinator solves for the weights,
    argmin N pen(u) + <q_m, u> + 1/2 |u - w_m|^2 in the metric f rho G_m + lam0 + ridge, G_m the released Gram matrix of
    the party's part and f = max(M / 2, c_m); lam0 as in `newton`. The answer is the mean of the second half.
    """

    name: ClassVar[str] = "admm"
    title: ClassVar[str] = "private ADMM sharing: rows with noise once, noisy gradients"
    options: ClassVar[tuple[str, ...]] = (*KeptRows.options, "rows", "unit")
    view_share: ClassVar[float] = 0.25

    def view(self, plan: Plan, part: Part) -> PartQuery:
        """The Gram matrix of the part, which has its means too."""
        return PartGram(plan, part)

    def views(self, plan: Plan) -> Views:
        """From the Gram matrices."""
        triangles = yield Ask("gram", {}, round=0)
        return {name: GramView(plan, name, triangle) for name, triangle in triangles.items()}

    def rounds_of(self, problem: Problem, signal: float) -> int:
        """Always the same: the total noise does not depend on it."""
        del problem, signal
        return ROUNDS

    def slopes(self, plan: Plan, scores: Array, labels: Array, memory: Memory, *, blurred: bool) -> Array:
        """Y + rho (s - z) after the updates of z and y; in the first round the slopes themselves."""
        loss = plan.scaled_loss
        rho = bend(loss) * (1.0 if loss.convex else 2.0)  # the minimum over z must be one
        if memory.duals is None:
            memory.duals, memory.copies = slopes_of(loss, scores, labels, blurred=blurred), scores
            return memory.duals
        memory.copies = copies(loss, scores, memory.duals, labels, rho, blurred=blurred)
        memory.duals = memory.duals + rho * (scores - memory.copies)
        return np.asarray(memory.duals + rho * (scores - memory.copies))


def copies(loss: Loss, scores: Array, duals: Array, labels: Array, rho: float, *, blurred: bool) -> Array:
    """argmin_z l(z) - y z + (rho/2) (s - z)^2; for labels with noise as `slopes_of` has it."""
    shift: Any = 0.0
    if blurred and loss.name == "logistic":  # log(1 + e^z) - (1 + label) z / 2 is the loss of label 1 and a slope
        shift, labels = (1 - labels) / 2, np.ones(len(labels))
    elif blurred and loss.kind == "classification":
        labels = np.where(labels < 0.0, -1.0, 1.0)
    return nearest(loss, scores + (duals - shift) / rho, labels, rho, scores)


class GramView(View):
    """Steps in the metric of a released Gram matrix."""

    def __init__(self, plan: Plan, name: str, triangle: Array) -> None:
        part = plan.part(name)
        query = PartGram(plan, part)
        gram = query.matrix(triangle)
        mean = gram[: query.width, -1] / plan.records if plan.fit_intercept else np.zeros(query.width)
        super().__init__(plan, mean)
        values, self.vectors = np.linalg.eigh(gram)
        self.values = np.maximum(values, 0.0)
        self.plan, self.regulariser = plan, part_regulariser(plan, part)
        self.moments = gram[: query.width, : query.width] / plan.records - np.outer(mean, mean)
        self.bound, self.ridge = bound_of(plan, name), shrinkage(plan, name)
        self.damping = damping(plan, self.bound)

    def step(self, gradient: Array) -> Array:
        """As said above."""
        bent = max(len(self.plan.parties) / 2, self.wider) * bend(self.plan.scaled_loss)
        metric = Metric(bent * self.values + self.damping + self.ridge, self.vectors)
        pull = self.bound * gradient
        pull[: self.width] += self.ridge * self.weights[: self.width]
        return metric.step(self.weights, pull, self.regulariser, self.plan.records)

    def spread(self, weights: Array) -> float:
        """The variance of the scores, by the released moments."""
        return float(weights[: self.width] @ self.moments @ weights[: self.width])


def damping(plan: Plan, bound: float) -> float:
    """lam0 = max(T s B d / 200, 0.35 std_gram sqrt d, s^2 T d / N), s sqrt(T) the std of a gradient; d of all parts."""
    dimension = plan.features + len(plan.parties) * plan.fit_intercept
    std, gram, rounds = plan.release("gradient").std, plan.release("gram").std, plan.rounds
    long = unit_gradients(plan).sensitivity("zero-out")
    return max(
        bound * std * math.sqrt(rounds) * long * dimension / 200,
        0.35 * gram * math.sqrt(dimension),
        std**2 * dimension / plan.records,
    )
