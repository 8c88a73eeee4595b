"""What is looked up at a shared score: one random bit for each output, whose mean is a function of the score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError

INDEX_BITS: Final = 8  # of a score
CHANCE_BITS: Final = 16  # a chance is a multiple of 2^-16


class Projection(NamedTuple):
    """P, (columns, directions), whole numbers in units with which rows are clipped at C^2 = 4 2^g."""

    matrix: NDArray[np.int64]
    exponent: int  # g


@dataclass(frozen=True, eq=False)
class LookUp:
    """Bits t_io with the means chances_o at the level of record i, and the sum that they are for."""

    chances: NDArray[np.int64]  # (outputs, levels), of 2^16
    level: float  # h, the distance of two levels in units of the score
    index: Literal["label", "score", "residual"]  # what the holder of the labels adds to its part of the score
    weight: Literal["null", "factor"]  # v: n or f
    matrix: Literal["one", "rows", "projected"]
    twice: bool  # 2 v t - v in the place of v t
    minus_label: bool  # v t - v y'
    scales: NDArray[np.int64]  # of each output, where the matrix is "one"
    projection: NDArray[np.int64] | None = None  # P, where it is "projected"

    def __post_init__(self) -> None:
        if self.chances.ndim != 2 or self.levels not in (32, 64) or len(self.scales) != len(self.chances):
            raise InputError(f"chances of shape {self.chances.shape}: must be (outputs, 32 or 64 levels).")

    @property
    def levels(self) -> int:
        """L."""
        return int(self.chances.shape[1])

    @property
    def outputs(self) -> int:
        """Bits of a record."""
        return len(self.chances)

    @property
    def fine(self) -> int:
        """q: bits of a score below its level; 2^q L = 2^8."""
        return INDEX_BITS + 1 - self.levels.bit_length()

    def width(self, columns: int) -> int:
        """How many numbers the sum has, over so many columns."""
        if self.matrix == "one":
            return self.outputs
        return columns if self.projection is None else int(self.projection.shape[1])
