"""The Gram matrix of the rows, and its diagonal. Proof: `gate/proofs/queries.md`, at row norm 1."""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.block import SumRows
from sottovoce.gate.query import Array, Query, Round
from sottovoce.queries.gradient import check_norm


class GramMatrix(Query):
    """X'X as its upper triangle, |x_i|^2 <= `square`; off-diagonal entries weigh sqrt 2 (the Frobenius norm).

    Guarantee: zero-out moves it by at most the square, replace-one by sqrt 2 times that, since |dd' - ee'|_F <= sqrt 2
    for |d|, |e| <= 1.
    Edges: a null row and an empty block contribute 0.
    """

    name = "gram"
    title: ClassVar[str] = "products of every two features (Gram matrix)"
    needs: ClassVar[type] = SumRows
    replacement: ClassVar[float | None] = math.sqrt(2.0)

    def __init__(self, dimension: int, square: float = 1.0) -> None:
        self.dimension, self.bound = dimension, square
        self.rounding_entries = float(dimension**2)
        self.length = dimension * (dimension + 1) // 2

    @functools.cached_property
    def places(self) -> tuple[NDArray[Any], ...]:
        """Those of the triangle, row by row; a query of another party's columns never needs them."""
        return np.triu_indices(self.dimension)

    @functools.cached_property
    def noise_weights(self) -> Array:  # type: ignore[override]
        """1 on the diagonal, sqrt 2 off it."""
        return np.where(self.places[0] == self.places[1], 1.0, math.sqrt(2.0))

    def joint_step(self, bits: int) -> float | None:
        return float(4.0**-bits)

    def value(self, round: Round) -> Array:
        check_norm(round.rows)
        return np.asarray(round.rows.gram()[self.places])

    def matrix(self, triangle: Array) -> Array:
        """The symmetric matrix of a released triangle."""
        full = np.zeros((self.dimension, self.dimension))
        full[self.places] = triangle
        return full + np.triu(full, 1).T


class ColumnSquares(Query):
    """The diagonal of X'X, |x_i| <= 1: what is left of a Gram matrix that would be too large.

    Guarantee: zero-out moves it by at most 1, since |x * x| <= |x|^2; replace-one by sqrt 2, since two such vectors
    have no entry below 0 and so an inner product of at least 0. Edges: as of the matrix.
    """

    name = "squares"
    title: ClassVar[str] = "the square of every feature"
    needs: ClassVar[type] = SumRows
    replacement: ClassVar[float | None] = math.sqrt(2.0)
    bound = 1.0

    def __init__(self, dimension: int) -> None:
        self.length, self.rounding_entries = dimension, float(dimension)

    def value(self, round: Round) -> Array:
        check_norm(round.rows)
        return round.rows.gram_diagonal()
