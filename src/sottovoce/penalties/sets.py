"""Bounded constraint sets: projections and linear oracles; points of the l1 ball as the corners they are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from sottovoce.errors import InputError
from sottovoce.penalties.base import ConstraintSet, Vector, check_interval, check_number, get_penalty, register_penalty

PARTS = 16  # from so many places of the point what an atom displaces is taken


@dataclass(frozen=True)
class Ball(ConstraintSet):
    """A set of the size of its radius."""

    radius: float

    def __post_init__(self) -> None:
        remedy = "it bounds the norm of the coefficients; 1.0 is a usual start for rows of norm 1"
        check_number("radius", self.radius, lambda x: 0 < x < math.inf, "a positive finite number", remedy)

    def diameter(self, _dimension: int) -> float:
        return 2 * self.radius


@register_penalty
class L1Ball(Ball):
    """{w : |w|_1 <= radius}."""

    name: ClassVar[str] = "l1_ball"

    def contains(self, w: Vector, tolerance: float = 1e-9) -> bool:
        return bool(np.abs(w).sum() <= self.radius * (1 + tolerance))

    def project(self, w: Vector) -> Vector:
        """The point w itself inside; else the signs of w on the projection of |w| onto the simplex."""
        size = np.abs(w)
        return w.copy() if size.sum() <= self.radius else np.copysign(_onto_simplex(size, self.radius), w)

    def linear_oracle(self, gradient: Vector) -> Vector:
        vertex = np.zeros_like(gradient)
        j = np.abs(gradient).argmax()
        vertex[j] = np.copysign(self.radius, -gradient[j])
        return vertex


@register_penalty
class L2Ball(Ball):
    """{w : |w|_2 <= radius}."""

    name: ClassVar[str] = "l2_ball"

    def contains(self, w: Vector, tolerance: float = 1e-9) -> bool:
        return bool(np.linalg.norm(w) <= self.radius * (1 + tolerance))

    def project(self, w: Vector) -> Vector:
        return w * (self.radius / max(float(np.linalg.norm(w)), self.radius))

    def linear_oracle(self, gradient: Vector) -> Vector:
        norm = float(np.linalg.norm(gradient))
        return gradient * (-self.radius / norm) if norm > 0 else np.zeros_like(gradient)


@register_penalty
class Simplex(Ball):
    """{w : w >= 0, sum_j w_j = radius}."""

    name: ClassVar[str] = "simplex"

    def contains(self, w: Vector, tolerance: float = 1e-9) -> bool:
        slack = tolerance * self.radius
        return bool(np.all(w >= -slack) and abs(w.sum() - self.radius) <= slack)

    def project(self, w: Vector) -> Vector:
        """max(w - k, 0), with the k that makes it sum to the radius."""
        return _onto_simplex(w, self.radius)

    def linear_oracle(self, gradient: Vector) -> Vector:
        vertex = np.zeros_like(gradient)
        vertex[gradient.argmin()] = self.radius
        return vertex

    def diameter(self, dimension: int) -> float:
        """sqrt(2) radius; a point, 0, in one dimension."""
        return math.sqrt(2) * self.radius if dimension > 1 else 0.0


@register_penalty
class BoxSet(ConstraintSet):
    """{w : low <= w_j <= high for every j}, bounded."""

    low: float
    high: float

    name: ClassVar[str] = "box_set"

    def __post_init__(self) -> None:
        check_interval(self.low, self.high, bounded=True)

    def contains(self, w: Vector, tolerance: float = 1e-9) -> bool:
        slack = tolerance * max(abs(self.low), abs(self.high))
        return bool(np.all((w >= self.low - slack) & (w <= self.high + slack)))

    def project(self, w: Vector) -> Vector:
        return np.clip(w, self.low, self.high)

    def linear_oracle(self, gradient: Vector) -> Vector:
        return np.where(gradient > 0, float(self.low), float(self.high))

    def diameter(self, dimension: int) -> float:
        return math.sqrt(dimension) * (self.high - self.low)


@register_penalty
class Product(ConstraintSet):
    """{w = (w_1, ..., w_K) : w_k in part k}, the parts over consecutive blocks of the given sizes."""

    parts: tuple[ConstraintSet, ...]
    sizes: tuple[int, ...]

    name: ClassVar[str] = "product"

    def __post_init__(self) -> None:
        if not self.parts or not all(isinstance(part, ConstraintSet) for part in self.parts):
            raise InputError(f"parts={self.parts!r} must be one or more constraint sets; leave penalties out")
        positive = all(isinstance(size, int) and size > 0 for size in self.sizes)
        if len(self.sizes) != len(self.parts) or not positive:
            raise InputError(
                f"sizes={self.sizes!r} must be {len(self.parts)} positive integers, one for each part; "
                "give the number of coordinates of each block"
            )

    def parameters(self) -> dict[str, Any]:
        parts = [{"name": part.name, **part.parameters()} for part in self.parts]
        return {"parts": parts, "sizes": list(self.sizes)}

    @classmethod
    def build(cls, **parameters: Any) -> Self:
        try:
            parts: Any = tuple(get_penalty(**part) for part in parameters["parts"])
            return cls(parts, tuple(parameters["sizes"]))
        except TypeError as error:
            allowed = "parts must be a list of names with parameters, sizes a list of integers"
            raise InputError(f"penalty='product' with parameters {parameters}: {error}; {allowed}") from None

    def contains(self, w: Vector, tolerance: float = 1e-9) -> bool:
        return all(part.contains(block, tolerance) for part, block in self._blocks(w))

    def project(self, w: Vector) -> Vector:
        return np.concatenate([part.project(block) for part, block in self._blocks(w)])

    def linear_oracle(self, gradient: Vector) -> Vector:
        return np.concatenate([part.linear_oracle(block) for part, block in self._blocks(gradient)])

    def diameter(self, dimension: int) -> float:
        self._check(dimension)
        return math.hypot(*(part.diameter(size) for part, size in zip(self.parts, self.sizes, strict=True)))

    def _blocks(self, w: Vector) -> Iterator[tuple[ConstraintSet, Vector]]:
        self._check(len(w))
        return zip(self.parts, np.split(w, np.cumsum(self.sizes)[:-1]), strict=True)

    def _check(self, dimension: int) -> None:
        if dimension != sum(self.sizes):
            raise InputError(
                f"dimension={dimension} does not fit sizes={self.sizes}, which sum to {sum(self.sizes)}; "
                "give one size for each block of coordinates"
            )


class SparsePoint:
    """A point of the l1 ball as a sparse vector: the places in the order in which they first came up, and their values.

    A corner +-radius e_j, an atom, is a code: j + 1 for +radius e_j, -(j + 1) for -radius e_j, and 0 for "stay".
    """

    def __init__(self, radius: float) -> None:
        self.radius = radius
        self.places: list[int] = []
        self.values = np.zeros(0)

    def move(self, code: int, step: float, added: bool = False) -> tuple[float, float]:
        """To (1 - step) w + step atom or, if that is asked for and stays in the ball, w + step atom.

        What all values were multiplied by, and what was added to the atom's; (1, 0) for "stay".
        """
        if code == 0:
            return 1.0, 0.0
        index, change = self._index(abs(code) - 1), step * self.radius * (1.0 if code > 0 else -1.0)
        shrink = 1.0 if added and self._within(index, change) else 1.0 - step
        self.values *= shrink
        self.values[index] += change
        return shrink, change

    def exchange(self, code: int, step: float, share: float) -> list[tuple[int, float]]:
        """To w + step atom or, where that leaves the ball, w - v + step atom, |v|_1 = step |w|_1: what was added where.

        The coordinates of w, laid end to end, are a line of length |w|_1. It is cut into PARTS equal parts, and v is
        the piece of each that begins at `share` of it and is `step` of it long, going round. If `share` is uniform on
        [0, 1), the mean of v is step w: in the mean this is a Frank-Wolfe step. It changes few coordinates, and so the
        scores of few records where features are sparse.
        """
        if code == 0:
            return []
        index, change = self._index(abs(code) - 1), step * self.radius * (1.0 if code > 0 else -1.0)
        moved = np.zeros(len(self.values))
        if not self._within(index, change):
            sizes = np.abs(self.values)
            ends = np.cumsum(sizes)
            length = ends[-1] / PARTS
            whole, part = np.divmod(np.append(0.0, ends) / length - share, 1.0)
            taken = np.diff(whole * step + np.minimum(part, step)) * length
            moved = -np.sign(self.values) * np.clip(taken, 0.0, sizes)
        moved[index] += change
        self.values += moved
        return [(self.places[k], float(moved[k])) for k in np.nonzero(moved)[0]]

    def _index(self, place: int) -> int:
        if place not in self.places:
            self.places.append(place)
            self.values = np.append(self.values, 0.0)
        return self.places.index(place)

    def _within(self, index: int, change: float) -> bool:
        here = float(self.values[index])
        return self.norm - abs(here) + abs(here + change) <= self.radius

    @property
    def norm(self) -> float:
        """|w|_1, rounded once: the same number on all machines."""
        return math.fsum(np.abs(self.values).tolist())

    def dense(self, dimension: int) -> Vector:
        found = np.zeros(dimension)
        found[self.places] = self.values
        return found


def _onto_simplex(w: Vector, radius: float) -> Vector:
    """max(w - k, 0) with sum = radius, by sorting (Held, Wolfe and Crowder 1974; Duchi et al. 2008)."""
    # Shifting w changes k alone; with its maximum at 0 no large number is added to a small one.
    w = w - w.max()
    descending = np.sort(w)[::-1]
    excess = np.cumsum(descending) - radius
    positive = int(np.count_nonzero(np.arange(1, len(w) + 1) * descending > excess))
    positive = max(positive, 1)  # 0 only where w has a NaN, which then reaches every coordinate
    return np.asarray(np.maximum(w - excess[positive - 1] / positive, 0.0))
