"""A regulariser as prepared rows see it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError
from sottovoce.penalties.base import Penalty, Regulariser

Array = NDArray[np.float64]


class ScaledRegulariser:
    """objective * pen(scale * w[:features]): the user's regulariser seen from prepared rows; the intercept is free."""

    def __init__(self, inner: Regulariser, features: int, scale: float | Array, objective: float) -> None:
        self.inner = inner
        self.features = features
        self.scale = scale
        self.objective = objective

    @property
    def is_none(self) -> bool:
        """Whether the prox is the identity."""
        return self.inner.name == "none"

    @property
    def ridge(self) -> float | None:
        """The weight a of a regulariser a/2 |w[:features]|^2, else None."""
        if self.inner.name == "l2" and np.ndim(self.scale) == 0:
            return float(self.inner.parameters()["alpha"] * self.objective * self.scale**2)
        return None

    def value(self, weights: Array) -> float:
        """In the units of the scaled objective."""
        return self.objective * self.inner.value(weights[: self.features] * self.scale)

    def prox(self, weights: Array, step: float) -> Array:
        """argmin_u 1/2 |u - w|^2 + step * value(u)."""
        if self.is_none:
            return weights
        moved = np.array(weights)
        moved[: self.features] = (
            self.inner.prox(weights[: self.features] * self.scale, step * self.objective * self.scale**2) / self.scale
        )
        return moved

    def by_coordinate(self, dimension: int) -> tuple[Array, Array, Array, Array]:
        """(b, c, low, high): coordinate j has the penalty b_j |w| + c_j w^2 / 2 on [low_j, high_j]."""
        terms = self.inner.by_coordinate() if isinstance(self.inner, Penalty) else None
        if terms is None:
            raise InputError(f"penalty={self.inner.name!r} is not a sum over the coordinates; choose l1, l2 or a box.")
        free = (0.0, 0.0, -math.inf, math.inf)
        vectors = tuple(np.full(dimension, value) for value in free)
        factors = (self.objective * self.scale, self.objective * self.scale**2, 1 / self.scale, 1 / self.scale)
        for vector, term, factor in zip(vectors, terms, factors, strict=True):
            vector[: self.features] = term * factor
        return vectors  # type: ignore[return-value]
