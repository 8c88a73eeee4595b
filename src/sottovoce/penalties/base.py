"""What stands beside the loss in an objective: penalties and constraint sets, behind one interface."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

import numpy as np
from numpy.typing import NDArray

from sottovoce.arguments import check_parameters, is_number
from sottovoce.errors import InputError

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Regulariser(ABC):
    """A closed convex function r(w): a penalty, or a set as its indicator (0 inside, infinite outside)."""

    name: ClassVar[str]
    is_none: ClassVar[bool] = False  # whether it is 0, so that its prox is the identity

    def parameters(self) -> dict[str, Any]:
        """The public constants, fit for JSON: ``get_penalty(r.name, **r.parameters()) == r``."""
        return {field.name: float(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def build(cls, **parameters: Any) -> Self:
        """The inverse of ``parameters``."""
        return cls(**parameters)

    @abstractmethod
    def value(self, w: Vector) -> float:
        """r(w)."""

    @abstractmethod
    def prox(self, w: Vector, step: float | Vector) -> Vector:
        """The argmin over u of |u - w|^2 / 2 + step r(u)."""

    @abstractmethod
    def conjugate(self, p: Vector) -> float:
        """The supremum over w of <p, w> - r(w), for duality gaps."""

    @property
    def strong_convexity(self) -> float:
        """The largest c for which r(w) - c |w|^2 / 2 is convex."""
        return 0.0


class Penalty(Regulariser):
    """A separable regulariser: r(w) = sum_j r(w_j).

    ``prox`` therefore takes one step for all or a step per coordinate, and can be asked for any part of w.
    """

    @abstractmethod
    def by_coordinate(self) -> tuple[float, float, float, float]:
        """(b, c, low, high) with r(w_j) = b |w_j| + c w_j^2 / 2 where low <= w_j <= high, else infinite."""


class ConstraintSet(Regulariser):
    """A bounded closed convex set, as the regulariser that is 0 on it and infinite elsewhere."""

    @abstractmethod
    def contains(self, w: Vector, tolerance: float = 1e-9) -> bool:
        """Whether w is in the set, up to a rounding error of ``tolerance`` times the size of the set."""

    @abstractmethod
    def project(self, w: Vector) -> Vector:
        """The point of the set nearest to w."""

    @abstractmethod
    def linear_oracle(self, gradient: Vector) -> Vector:
        """The s in the set with the least <s, gradient>: an extreme point, if the gradient is not 0."""

    @abstractmethod
    def diameter(self, dimension: int) -> float:
        """The largest distance |s - t| of two points of the set in that many dimensions."""

    def value(self, w: Vector) -> float:
        return 0.0 if self.contains(w) else math.inf

    def prox(self, w: Vector, _step: float | Vector) -> Vector:
        return self.project(w)

    def conjugate(self, p: Vector) -> float:
        """The support function, max over s in the set of <p, s>."""
        return float(p @ self.linear_oracle(-p))


@dataclass(eq=False)
class ScaledRegulariser:
    """objective * pen(scale * w[:features]): the user's regulariser seen from prepared rows; the intercept is free."""

    inner: Regulariser
    features: int
    scale: float | Vector
    objective: float

    @property
    def ridge(self) -> float | None:
        """The weight a of a regulariser a/2 |w[:features]|^2, else None."""
        if self.inner.name == "l2" and np.ndim(self.scale) == 0:
            return float(self.inner.parameters()["alpha"] * self.objective * self.scale**2)
        return None

    def value(self, weights: Vector) -> float:
        return self.objective * self.inner.value(weights[: self.features] * self.scale)

    def prox(self, weights: Vector, step: float) -> Vector:
        """argmin_u 1/2 |u - w|^2 + step * value(u)."""
        if self.inner.is_none:
            return weights
        moved = np.array(weights)
        moved[: self.features] = (
            self.inner.prox(weights[: self.features] * self.scale, step * self.objective * self.scale**2) / self.scale
        )
        return moved

    def by_coordinate(self, dimension: int) -> tuple[Vector, Vector, Vector, Vector]:
        """(b, c, low, high): coordinate j has the penalty b_j |w| + c_j w^2 / 2 on [low_j, high_j]."""
        if not isinstance(self.inner, Penalty):
            raise InputError(f"penalty={self.inner.name!r} is not a sum over the coordinates; choose l1, l2 or a box.")
        vectors = tuple(np.full(dimension, free) for free in (0.0, 0.0, -math.inf, math.inf))
        factors = (self.objective * self.scale, self.objective * self.scale**2, 1 / self.scale, 1 / self.scale)
        for vector, term, factor in zip(vectors, self.inner.by_coordinate(), factors, strict=True):
            vector[: self.features] = term * factor
        return vectors  # type: ignore[return-value]


_REGISTRY: dict[str, type[Regulariser]] = {}

RegulariserType = TypeVar("RegulariserType", bound=Regulariser)


@dataclass_transform(frozen_default=True)
def register_penalty(regulariser: type[RegulariserType]) -> type[RegulariserType]:
    """Make a penalty or set known by its name, and a frozen dataclass if it is none (a class decorator)."""
    plain = "__dataclass_params__" not in vars(regulariser)
    _REGISTRY[regulariser.name] = dataclass(frozen=True)(regulariser) if plain else regulariser
    return regulariser


def penalty_names() -> list[str]:
    """The names that ``get`` knows."""
    return sorted(_REGISTRY)


def get_penalty(name: str, **parameters: Any) -> Regulariser:
    """The penalty or constraint set of that name, with the parameters of its class."""
    if name not in _REGISTRY:
        raise InputError(f"penalty={name!r} is unknown; choose one of: {', '.join(penalty_names())}")
    check_parameters(f"penalty={name!r}", _REGISTRY[name], parameters)
    return _REGISTRY[name].build(**parameters)


def check_number(argument: str, value: float, accept: Callable[[float], bool], allowed: str, remedy: str) -> None:
    """Refuse a value that is not a number or that is not accepted."""
    if not (is_number(value) and accept(float(value))):
        raise InputError(f"{argument}={value!r} must be {allowed}; {remedy}")


def check_interval(low: float, high: float, *, bounded: bool = False) -> None:
    """Refuse ends that are NaN, out of order or, where the set must be bounded, infinite."""
    for argument, end in (("low", low), ("high", high)):
        if bounded:
            remedy = "for an open end use the penalty 'box'"
            check_number(argument, end, math.isfinite, "a finite number", remedy)
        else:
            remedy = "leave it out for an open end"
            check_number(argument, end, lambda x: not math.isnan(x), "a number or infinite", remedy)
    check_number("high", high, lambda x: x >= low, f"at least low={low!r}", "swap the two ends")
