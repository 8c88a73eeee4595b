"""What is looked up at a shared score: one random bit for each output, whose mean is a function of the score.

Scores are rounded to a level at random, so that the mean of the bits is the line through their chances at two levels.
Bounds hold for any chances. Proof: `proofs/columns.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.slopes import cut
from sottovoce.errors import InputError
from sottovoce.losses.base import Loss
from sottovoce.losses.regression import Huber, Squared

Array = NDArray[np.float64]

LEVELS: Final = 64  # L, of a table: 32 are too coarse where scores are spread
FINE: Final = 2  # q: bits of a score, modulo 2^8, below its level
CHANCE_BITS: Final = 16  # a chance is a multiple of 2^-16
WIDENINGS: Final = (1, 2, 4, 8)
_NEAR, _FAR = 3.0, 4.0  # deviations of scores, and of residuals, that a table has to reach


class Projection(NamedTuple):
    """P, (columns, directions), whole numbers in the unit in which rows are clipped at C^2 = 4 2^g."""

    matrix: NDArray[np.int64]
    exponent: int  # g


@dataclass(frozen=True, eq=False)
class LookUp:
    """Bits t_io with the means chances_o at the level of record i, and the sum that they are for.

    `index` says what the holder of the labels adds: "label" picks the half of the table that is for the label, "score"
    is centred, "residual" is the score less the label.
    """

    chances: NDArray[np.int64]  # (outputs, levels), of 2^16
    level: float  # h, the distance of two levels in units of the score
    index: Literal["label", "score", "residual"]
    weight: Literal["null", "factor"]  # v: n or f
    matrix: Literal["one", "rows", "projected"]
    twice: bool  # 2 v t - v in the place of v t
    minus_label: bool  # v t - v y'
    scales: NDArray[np.int64]  # of each output, where the matrix is "one"
    projection: NDArray[np.int64] | None = None  # P, where it is "projected"

    def __post_init__(self) -> None:
        if self.chances.shape != (len(self.scales), LEVELS):
            raise InputError(f"chances of shape {self.chances.shape}: must be (outputs, {LEVELS} levels).")

    @property
    def outputs(self) -> int:
        """Bits of a record."""
        return len(self.chances)

    def width(self, columns: int) -> int:
        """How many numbers the sum has, over so many columns."""
        if self.matrix == "one":
            return self.outputs
        return columns if self.projection is None else int(self.projection.shape[1])


def chances_of(means: Array) -> NDArray[np.int64]:
    """Whole numbers of 2^-16, 0 and 1 included."""
    return np.rint(np.clip(means, 0.0, 1.0) * 2.0**CHANCE_BITS).astype(np.int64)


def scores_at(levels: int, level: float) -> Array:
    """The scores of levels: around 0, for classes of each label's half by itself."""
    return np.asarray((np.arange(levels) - levels // 2) * level, dtype=np.float64)


def slope_chances(loss: Loss, most: float, level: float) -> NDArray[np.int64]:
    """Of the bits of slopes cut at `most`, in units of it: t - [y = 1] for classes, 2 t - 1 for numbers; (1, L)."""
    if loss.kind == "regression":
        scores = scores_at(LEVELS, level)
        return chances_of((1 + cut(loss, most, scores, np.zeros(LEVELS)))[None] / 2)
    scores = scores_at(LEVELS // 2, level)
    ones = np.ones(LEVELS // 2)
    return chances_of(np.concatenate([1 + cut(loss, most, scores, ones), cut(loss, most, scores, -ones)])[None])


def slope_level(loss: Loss, most: float, spread: float) -> float:
    """h: the least of 1, 2, 4 and 8 times the finest with which a table reaches beyond scores of that deviation.

    The finest is a quarter of what a slope bends within: kinks are on levels.
    """
    if loss.kind == "regression":
        finest, reach, far = most / 4, LEVELS // 2 - 1, _FAR
    else:
        finest, reach, far = min(max(0.25 / loss.curvature_bound, 0.25), 1.0), LEVELS // 4 - 1, _NEAR
    return finest * next((wide for wide in WIDENINGS if wide * finest * reach >= far * spread), WIDENINGS[-1])


def check_slopes(loss: Loss) -> None:
    """Refuse a loss whose slopes are not bits: of classes they fall with the margin, of numbers they are residuals."""
    fits = loss.outputs == 1
    if fits and loss.kind == "regression":
        fits = type(loss) in (Squared, Huber)
    elif fits:
        margins = np.linspace(-32.0, 32.0, 257)
        slopes = [np.sign(label) * loss.derivative(label * margins, np.full(257, label)) for label in (-1.0, 1.0)]
        fits = bool(np.all(np.isfinite(slopes)) and np.max(slopes) <= 0.0)
    if not fits:
        raise InputError(
            f"loss={loss.name!r}: over secure columns slopes are looked up at one score, and must fall with the margin "
            "or be those of squared or huber; choose another loss, two classes, or another protection."
        )
