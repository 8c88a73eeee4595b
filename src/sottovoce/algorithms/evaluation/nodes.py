"""Nodes on a line, and the hats over them: functions that are 1 at a node, 0 at the others and linear between.

A value between two nodes is shared between them. The sum of w_j times what node j got is then the sum of w's linear
interpolant at the values, so a linear function is summed exactly, and any other nearly so by its projection.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Function = Callable[[Array], Array]

REACH = 1.75  # deviations from the mean to the end nodes: 2.5 make intervals of the log-loss 4 to 10% wider

_AT, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_AT, _WEIGHTS = (_AT + 1) / 2, _WEIGHTS / 2  # on [0, 1]


@dataclass(frozen=True)
class Line:
    """Ascending nodes, at least two."""

    nodes: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.nodes)

    def shares(self, values: Array) -> tuple[Integers, Array]:
        """For each value the node j below it, and t in [0, 1]: j gets 1 - t and j + 1 gets t. Each on its own.

        Values beyond the end nodes count as these, a NaN as the first.
        """
        nodes = np.array(self.nodes)
        inside = np.fmax(np.fmin(values, nodes[-1]), nodes[0])
        below = np.clip(np.searchsorted(nodes, inside, side="right") - 1, 0, len(nodes) - 2)
        t = (inside - nodes[below]) / (nodes[below + 1] - nodes[below])
        return below, np.clip(t, 0.0, 1.0)

    def projection(self, function: Function, power: int = 0) -> Array:
        """Values at the nodes of the function's least-squares projection on the hats, over the whole line.

        A point in an interval weighs length^-power: so that where nodes are not evenly spaced the errors of long
        intervals do not reach the short ones.
        """
        lengths = np.diff(self.nodes)
        products = np.zeros(len(self))
        for j, length in enumerate(lengths):
            found = function(self.nodes[j] + length * _AT) * _WEIGHTS * length ** (1.0 - power)
            products[j] += found @ (1 - _AT)
            products[j + 1] += found @ _AT
        return np.asarray(np.linalg.solve(self.gram(power), products))

    def gram(self, power: int = 0) -> Array:
        """The integrals of products of two hats, in which a point in an interval weighs length^-power."""
        found = np.zeros((len(self), len(self)))
        for j, length in enumerate(np.diff(self.nodes)):
            found[j : j + 2, j : j + 2] += length ** (1.0 - power) / 6 * np.array([[2.0, 1.0], [1.0, 2.0]])
        return found

    @functools.cached_property
    def order(self) -> Array:
        """R[a, b] = integral of h_a(s) h_b(u) over s > u."""
        lengths, found = np.diff(self.nodes), np.zeros((len(self), len(self)))
        ends = np.array([[1 - _AT, _AT], [_AT - _AT**2 / 2, _AT**2 / 2]])  # hats, and their integrals so far
        before = np.zeros(len(self))  # integrals of the hats up to the interval
        for j, length in enumerate(lengths):
            hats, partial = ends[0], ends[1] * length
            found[j : j + 2] += length / 2 * before
            found[j : j + 2, j : j + 2] += length * (hats * _WEIGHTS) @ partial.T
            before[j : j + 2] += length / 2
        return found


@dataclass(frozen=True)
class TwoSides:
    """Nodes of scores on both sides of 0, equally spaced on each; 0 is a node of either side.

    So what lies on which side of 0 is known without interpolation. A score of 0 is on the left, as in `predict`.
    """

    low: float
    high: float
    left: int
    right: int

    @functools.cached_property
    def sides(self) -> tuple[Line, Line]:
        return (
            Line(tuple(np.linspace(self.low, 0.0, self.left).tolist())),
            Line(tuple(np.linspace(0.0, self.high, self.right).tolist())),
        )

    @property
    def nodes(self) -> Array:
        """All of them; 0 is there twice."""
        return np.concatenate([side.nodes for side in self.sides])

    def __len__(self) -> int:
        return self.left + self.right

    def shares(self, scores: Array) -> tuple[Integers, Array]:
        (left, t), (right, u) = (side.shares(scores) for side in self.sides)
        positive = scores > 0
        return np.where(positive, right + self.left, left), np.where(positive, u, t)

    def projection(self, function: Function) -> Array:
        return np.concatenate([side.projection(function) for side in self.sides])

    def averages(self, function: Function) -> Array:
        """Of the function over each hat."""
        parts = [side.gram() @ side.projection(function) / side.gram().sum(axis=1) for side in self.sides]
        return np.concatenate(parts)

    @functools.cached_property
    def above(self) -> Array:
        """K[a, b]: the projection of 1(s > u) on pairs of hats, s in that of a, u in that of b."""
        gram, order = (np.zeros((len(self), len(self))) for _ in range(2))
        for place, side in zip((slice(0, self.left), slice(self.left, None)), self.sides, strict=True):
            gram[place, place], order[place, place] = side.gram(), side.order
        totals = gram.sum(axis=1)
        order[self.left :, : self.left] = np.outer(totals[self.left :], totals[: self.left])
        inverse = np.linalg.inv(gram)
        return np.asarray(inverse @ order @ inverse)

    @classmethod
    def about(cls, mean: float, deviation: float, count: int) -> TwoSides:
        """`count` nodes over REACH deviations about the mean, shared out in proportion, at least two a side."""
        low = min(mean - REACH * deviation, -deviation / 2)
        high = max(mean + REACH * deviation, deviation / 2)
        left = min(max(round(count * -low / (high - low)), 2), count - 2)
        return cls(low, high, left, count - left)
