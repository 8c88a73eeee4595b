"""The feasible set M = M_1 x ... x M_d as blocks of coordinates, with the linear oracle of many blocks at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.errors import InputError
from sottovoce.lab.bcfw import kernels
from sottovoce.penalties import BoxSet, ConstraintSet, L1Ball, L2Ball, Product, Simplex

Vector = NDArray[np.float64]
Integers = NDArray[np.int64]

_KINDS: dict[type[Any], int] = {
    BoxSet: kernels.BOX,
    L1Ball: kernels.L1,
    L2Ball: kernels.L2,
    Simplex: kernels.SIMPLEX,
}


class Blocks:
    """The parts of a product and where their coordinates lie; a set that is no product is one block."""

    def __init__(self, constraint: ConstraintSet, dimension: int) -> None:
        if not isinstance(constraint, ConstraintSet):
            raise InputError(
                f"constraint={constraint!r} must be a bounded set of sottovoce.penalties, such as "
                "Product((L1Ball(1.0), Simplex(2.0)), sizes=(3, 4))"
            )
        if not isinstance(constraint, Product):
            constraint = Product((constraint,), (dimension,))
        if sum(constraint.sizes) != dimension:
            raise InputError(
                f"sizes={constraint.sizes} sum to {sum(constraint.sizes)} and the objective has {dimension} "
                "coordinates; give one size for each block of coordinates"
            )
        self.product, self.parts = constraint, constraint.parts
        self.count, self.dimension = len(self.parts), dimension
        self.sizes = np.array(constraint.sizes, dtype=np.int64)
        self.offsets = np.concatenate([[0], np.cumsum(self.sizes)])
        # An exact type: a subclass may answer differently, so it is asked itself.
        self.kinds = np.array([_KINDS.get(type(part), kernels.OTHER) for part in self.parts])
        self.low = np.array([float(getattr(part, "low", 0.0)) for part in self.parts])
        self.high = np.array([float(getattr(part, "high", getattr(part, "radius", 0.0))) for part in self.parts])
        self.others = bool(np.any(self.kinds == kernels.OTHER))
        self.all = np.arange(self.count)
        self.all_columns = np.arange(dimension)

    def slice(self, block: int) -> slice:
        return slice(int(self.offsets[block]), int(self.offsets[block + 1]))

    def columns(self, chosen: Integers) -> Integers:
        found: Integers = kernels.list_columns(chosen, self.offsets)
        return found

    def oracle(self, chosen: Integers, gradient: Vector) -> Vector:
        """The s_i in M_i with the least <s_i, gradient_i> for each chosen block, one after the other."""
        answer = np.empty_like(gradient)
        kernels.oracle(self.kinds, self.low, self.high, self.offsets, chosen, gradient, answer)
        if self.others:
            start = 0
            for i in chosen:
                stop = start + int(self.sizes[i])
                if self.kinds[i] == kernels.OTHER:
                    answer[start:stop] = self.parts[i].linear_oracle(gradient[start:stop])
                start = stop
        return answer

    def diameters(self) -> Vector:
        return np.array([part.diameter(int(size)) for part, size in zip(self.parts, self.sizes, strict=True)])

    def start(self, x: ArrayLike | None) -> Vector:
        """A feasible point: x itself, checked, or the point nearest to 0."""
        if x is None:
            return self.product.project(np.zeros(self.dimension))
        found = np.array(x, dtype=np.float64)
        if found.shape != (self.dimension,):
            raise InputError(f"start has shape {found.shape}, not ({self.dimension},); give one number per coordinate")
        for i, part in enumerate(self.parts):
            if not part.contains(found[self.slice(i)]):
                raise InputError(f"start is outside the set of block {i}, {part}; project it first")
        return found
