"""Penalties that act on each coordinate alone."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sottovoce.penalties.base import Penalty, Vector, check_interval, check_number, register_penalty


class NormPenalty(Penalty):
    """r(w) = b |w|_1 + (c / 2) |w|_2^2 with weights b, c >= 0: one text for none, l1, l2 and elastic net."""

    @property
    @abstractmethod
    def weights(self) -> tuple[float, float]:
        """The weights b of the absolute values and c of the squares."""

    @property
    def strong_convexity(self) -> float:
        return self.weights[1]

    def value(self, w: Vector) -> float:
        b, c = self.weights
        return float(b * np.abs(w).sum() + 0.5 * c * np.square(w).sum())

    def prox(self, w: Vector, step: float | Vector) -> Vector:
        """soft(w, step b) / (1 + step c), where soft(w, k) = w - clip(w, -k, k)."""
        b, c = self.weights
        return np.asarray((w - np.clip(w, -step * b, step * b)) / (1 + step * c))

    def by_coordinate(self) -> tuple[float, float, float, float]:
        return (*self.weights, -math.inf, math.inf)

    def conjugate(self, p: Vector) -> float:
        """|soft(p, b)|^2 / (2 c); for c = 0 the indicator of |p|_inf <= b."""
        b, c = self.weights
        b *= 1 + 1e-12  # a slope that was scaled to the bound may exceed it by rounding
        excess = float(np.square(p - np.clip(p, -b, b)).sum())
        if excess == 0:
            return 0.0
        return excess / (2 * c) if c > 0 else math.inf


@register_penalty
class NoPenalty(NormPenalty):
    """r(w) = 0."""

    name: ClassVar[str] = "none"
    is_none: ClassVar[bool] = True
    weights: ClassVar[tuple[float, float]] = (0.0, 0.0)


@dataclass(frozen=True)
class AlphaPenalty(NormPenalty):
    """One that is weighed against the mean loss."""

    alpha: float

    def __post_init__(self) -> None:
        remedy = "it weighs the penalty against the mean loss, and 0 switches it off"
        check_number("alpha", self.alpha, lambda x: 0 <= x < math.inf, "zero or a positive finite number", remedy)


@register_penalty
class L2(AlphaPenalty):
    """r(w) = (alpha / 2) |w|_2^2."""

    name: ClassVar[str] = "l2"

    @property
    def weights(self) -> tuple[float, float]:
        return 0.0, float(self.alpha)


@register_penalty
class L1(AlphaPenalty):
    """r(w) = alpha |w|_1."""

    name: ClassVar[str] = "l1"

    @property
    def weights(self) -> tuple[float, float]:
        return float(self.alpha), 0.0


@register_penalty
class ElasticNet(AlphaPenalty):
    """r(w) = alpha l1_ratio |w|_1 + (alpha (1 - l1_ratio) / 2) |w|_2^2, as in scikit-learn."""

    l1_ratio: float = 0.5

    name: ClassVar[str] = "elastic_net"

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = "between 0 (only squares) and 1 (only absolute values)"
        check_number("l1_ratio", self.l1_ratio, lambda ratio: 0 <= ratio <= 1, allowed, "0.5 weighs both alike")

    @property
    def weights(self) -> tuple[float, float]:
        return float(self.alpha * self.l1_ratio), float(self.alpha * (1 - self.l1_ratio))


@register_penalty
class Box(Penalty):
    """r(w) = 0 where low <= w_j <= high for every j, else infinite; either end may be infinite.

    ``Box(low=0)`` keeps the coefficients non-negative. The bounded set with a linear oracle is ``BoxSet``.
    """

    low: float = -math.inf
    high: float = math.inf

    name: ClassVar[str] = "box"

    def __post_init__(self) -> None:
        check_interval(self.low, self.high)

    def parameters(self) -> dict[str, Any]:
        """The finite ends only: the others are the defaults, and JSON has no infinity."""
        return {name: end for name, end in super().parameters().items() if math.isfinite(end)}

    def value(self, w: Vector) -> float:
        return 0.0 if np.all((w >= self.low) & (w <= self.high)) else math.inf

    def prox(self, w: Vector, _step: float | Vector) -> Vector:
        return np.clip(w, self.low, self.high)

    def by_coordinate(self) -> tuple[float, float, float, float]:
        return 0.0, 0.0, float(self.low), float(self.high)

    def conjugate(self, p: Vector) -> float:
        p = p[p != 0]
        return float((p * np.where(p > 0, self.high, self.low)).sum())
