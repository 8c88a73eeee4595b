"""Accelerated proximal descent without noise, until nothing moves: what several exact forms share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sottovoce.algorithms.base import Array, Asking, Solution, how_far, total
from sottovoce.penalties.scaled import ScaledRegulariser


@dataclass(frozen=True)
class Accelerated:
    """w <- step(v, g(v)), v = w + momentum (w - w before), begun anew when a step turns back.

    It ends when no step is longer than the share `still` of the longest weights. Of several classes the weights are a
    matrix with a column for each.
    """

    step: Callable[[int, Array, Array], Array]  # of the number of steps before, v and the sum of gradients at v
    length: Callable[[Array], float]
    still: float
    momentum: bool = True

    def run(self, shape: tuple[int, ...], rounds: int) -> Asking[Solution]:
        """At most so many rounds; the solution has a row for each class."""
        weights = ahead = np.zeros(shape)
        speed, size, share = 1.0, 0.0, math.inf
        for t in range(rounds):
            gradient = (yield from total("gradient", weights=ahead.ravel())).reshape(shape)
            fresh = self.step(t, ahead, gradient)
            moved, turned = fresh - weights, float(np.vdot(ahead - fresh, fresh - weights)) > 0.0
            faster = (1 + math.sqrt(1 + 4 * speed * speed)) / 2 if self.momentum and not turned else 1.0
            size = max(size, self.length(fresh))
            share = max(self.length(moved), self.length(fresh - ahead)) / size if size > 0.0 else 0.0
            ahead = fresh + (0.0 if faster == 1.0 else (speed - 1) / faster) * moved
            weights, speed = fresh, faster
            if share <= self.still:
                break
        return Solution(weights.T, unfinished=how_far(t + 1, share, "the last step, as a share of the scores,"))


def prox_of(regulariser: ScaledRegulariser, weights: Array, step: float) -> Array:
    """The prox of a penalty that is a sum over the classes, column by column."""
    if weights.ndim == 1:
        return regulariser.prox(weights, step)
    return np.column_stack([regulariser.prox(column, step) for column in weights.T])
