"""Functions of private rows that carry their sensitivity.

Fields are public configuration; private rows are arguments of `value`. A query bounds, in the l2 norm weighted
by `weights`, how far its value moves when one record changes. Proofs: `proofs/queries.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.block import Block, toward_zero
from sottovoce.errors import InputError, LeakError
from sottovoce.losses import Loss
from sottovoce.privacy.accounting import Relation

Array = NDArray[np.float64]


class Bounded(Protocol):
    """What has a sensitivity."""

    @property
    def name(self) -> str:
        """The name on the wire and in the plan."""

    def sensitivity(self, relation: Relation) -> float:
        """The largest weighted l2 distance between the values on two neighbours; of a selection, of one score."""

    @property
    def entries(self) -> float:
        """Sum of squared weights over the entries that one record can move: what rounding to a grid can add."""


class Query(Bounded, Protocol):
    """What the gate asks of a query."""

    @property
    def weights(self) -> Array | float:
        """Weight of each entry in that norm; entry k then gets noise of standard deviation std / weights[k]."""

    def value(self, block: Block, *arguments: Any) -> Array:
        """The exact value on private rows. Only the gate calls this."""


class Following(Query, Protocol):
    """A query of several batches a release."""

    def follow(self, released: Array, *arguments: Any) -> tuple[Any, ...]:
        """The arguments of the next batch, from the value just released and its arguments."""


class Derivable(Protocol):
    """A function of kept rows and of public numbers, which costs nothing."""

    @property
    def name(self) -> str:
        """The name on the wire and in the plan."""

    def derive(self, rows: NDArray[Any], *arguments: Any) -> Array:
        """The value on noisy rows, records x columns. Only the gate calls this."""


class Walk(Bounded, Protocol):
    """A sequence of numbers, each a function of the rows and of the noisy numbers before it."""

    @property
    def length(self) -> int:
        """How many numbers."""

    def walk(self, block: Block, noise: NDArray[np.int64] | None, step: float, *arguments: Any) -> NDArray[Any]:
        """round(value_k / step) + noise_k for k = 0, 1, ...; without noise the values. Only the gate calls this."""


def clipped_derivative(loss: Loss, bound: float, bits: int | None) -> Any:
    """l'(u, y) clipped to [-bound, bound] and rounded toward zero on the exact grid: enforced, not assumed.

    Without bits (a run without privacy) nothing is clipped; the gate takes no such rows for a release with noise.
    """

    def term(scores: Array, labels: Array) -> Array:
        if bits is None:
            return loss.derivative(scores, labels)
        with np.errstate(all="ignore"):  # a warning that a record caused could be turned into an error
            slope = loss.derivative(scores, labels)
        # fmin takes the bound where the slope is NaN, which clip would let through
        np.fmin(slope, bound, out=slope)
        np.fmax(slope, -bound, out=slope)
        return toward_zero(slope, bits - math.ceil(math.log2(bound)))

    return term


def _check_norm(block: Block, row_norm: float) -> None:
    if block.row_norm > row_norm:
        raise LeakError("the rows of the block are longer than the query's sensitivity allows for.")


@dataclass(frozen=True)
class GradientSum:
    """sum_i l'(x_i'w, y_i) x_i with |l'| <= slope_bound and |x_i| <= row_norm.

    Guarantee: zero-out moves it by at most slope_bound row_norm, replace-one by twice that, in l2.
    Edges: a null row and an empty block contribute 0; derivatives are clipped in code, a NaN to the bound.
    """

    dimension: int
    slope_bound: float
    loss: Loss
    row_norm: float = 1.0
    name: str = "gradient"

    def __post_init__(self) -> None:
        if not 1e-100 <= self.slope_bound <= 1e100:
            raise InputError(f"slope_bound={self.slope_bound!r} must be a positive finite number.")

    def sensitivity(self, relation: Relation) -> float:
        """G B for zero-out, 2 G B for replace-one."""
        return self.slope_bound * self.row_norm * (2.0 if relation == "replace-one" else 1.0)

    @property
    def weights(self) -> float:
        """Plain l2."""
        return 1.0

    @property
    def entries(self) -> float:
        """Every coordinate can move."""
        return float(self.dimension)

    def value(self, block: Block, *arguments: Any) -> Array:
        """One pass over the rows."""
        (weights,) = arguments
        _check_norm(block, self.row_norm)
        return block.weighted_sum(weights, clipped_derivative(self.loss, self.slope_bound, block.bits))


@dataclass(frozen=True)
class GramMatrix:
    """X'X as its upper triangle, |x_i| <= row_norm; off-diagonal entries weigh sqrt 2 (the Frobenius norm).

    Guarantee: zero-out moves it by at most row_norm^2, replace-one by sqrt 2 row_norm^2, in Frobenius norm.
    Edges: a null row and an empty block contribute 0.
    """

    dimension: int
    row_norm: float = 1.0
    name: str = "gram"

    def sensitivity(self, relation: Relation) -> float:
        """B^2 for zero-out; |dd' - ee'|_F <= sqrt 2 B^2 for replace-one."""
        return self.row_norm**2 * (math.sqrt(2.0) if relation == "replace-one" else 1.0)

    @property
    def weights(self) -> Array:
        """1 on the diagonal, sqrt 2 off it."""
        rows, columns = np.triu_indices(self.dimension)
        return np.where(rows == columns, 1.0, math.sqrt(2.0))

    @property
    def entries(self) -> float:
        """Both triangles count."""
        return float(self.dimension**2)

    def value(self, block: Block, *arguments: Any) -> Array:
        """The upper triangle, row by row."""
        del arguments  # it does not depend on the weights
        _check_norm(block, self.row_norm)
        return block.gram()[np.triu_indices(self.dimension)]

    def matrix(self, triangle: Array) -> Array:
        """The symmetric matrix of a released triangle."""
        full = np.zeros((self.dimension, self.dimension))
        full[np.triu_indices(self.dimension)] = triangle
        return full + np.triu(full, 1).T


class WithoutBound:
    """A query of unlimited sensitivity: the gate lets it out only in a run planned without privacy."""

    name: str
    weights: ClassVar[float] = 1.0
    entries: ClassVar[float] = math.inf

    def __init__(self, name: str) -> None:
        self.name = name

    def sensitivity(self, relation: Relation) -> float:  # noqa: ARG002
        """Infinite: never released with noise."""
        return math.inf


@dataclass(frozen=True)
class Curvature(WithoutBound):
    """X' diag(l'') X as its upper triangle."""

    loss: Loss
    dimension: int
    name: str = "curvature"

    def value(self, block: Block, *arguments: Any) -> Array:
        """The upper triangle, row by row."""
        (weights,) = arguments
        return block.gram(weights, self.loss.curvature)[np.triu_indices(self.dimension)]


@dataclass(frozen=True)
class LossSum(WithoutBound):
    """sum_i l(x_i'w, y_i)."""

    loss: Loss
    name: str = "loss"

    def value(self, block: Block, *arguments: Any) -> Array:
        """One number."""
        (weights,) = arguments
        return np.array([block.scalar_sum(weights, self.loss.value)])
