"""Steps in the metric of a released Gram matrix; functions of released values throughout."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sottovoce.algorithms.base import Array, TailAverage
from sottovoce.penalties.quadratic import Metric
from sottovoce.penalties.scaled import ScaledRegulariser
from sottovoce.plan.problem import Problem

FLOOR = 0.4  # of the curvature bound: below it a step could run away


@dataclass(frozen=True)
class DampingRule:
    """The constants of the rule for one kind of loss."""

    gram_share: float
    per_round: float
    per_gram: float

    def damping(self, dimension: int, records: int, rounds: int, std_gram: float, std_gradient: float) -> float:
        """lam0, from public numbers."""
        return max(
            std_gradient * math.sqrt(rounds) * dimension / self.per_round,
            self.per_gram * std_gram * math.sqrt(dimension),
            std_gradient**2 * dimension / records,
        )


RULES = {"classification": DampingRule(0.10, 200.0, 0.35), "regression": DampingRule(0.15, 20.0, 1.4)}


class NewtonDescent:
    """Steps in the metric k H + lam0 I of a released Gram matrix H; `mean` is that of the iterates from `start` on."""

    def __init__(
        self, gram: Array, damping: float, problem: Problem, regulariser: ScaledRegulariser, start: int
    ) -> None:
        values, self.vectors = np.linalg.eigh(gram)
        self.values = np.maximum(values, 0.0)
        self.damping, self.regulariser = damping, regulariser
        self.loss, self.records = problem.scaled_loss, problem.records
        self.weights = np.zeros(len(gram))
        self._tail = TailAverage(len(gram), start)

    def mean_square(self, weights: Array) -> float:
        """The mean square of the scores, w'Hw / N."""
        return float(self.values @ (self.vectors.T @ weights) ** 2) / self.records

    def step(self, number: int, gradient: Array) -> None:
        """From `weights`, at which the gradient was asked, to the next ones."""
        k = max(FLOOR * self.loss.curvature_bound, self.loss.mean_curvature(self.mean_square(self.weights)))
        metric = Metric(k * self.values + self.damping, self.vectors)
        self.weights = metric.step(self.weights, gradient, self.regulariser, self.records)
        self._tail.add(number, self.weights)

    @property
    def mean(self) -> Array:
        """Of the second half of the iterates, if `start` is half of the rounds."""
        return self._tail.value
