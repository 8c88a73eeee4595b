"""The public numbers of secure columns: grids of rows, the clip of whitened ones, words that hold sums, and look-ups.

    |x|^2 <= 4^8 Q,     C^2 = 4 2^g,     |f P'x| <= 31 C = 31/32 of 2^(g/2 + 6)

C is a power of two, so that 2^(g/2 + 6) is the 1 of what is opened: g follows from the grid of the plan's gradients.
What is told is P alone, in such a unit that the length at which rows are clipped becomes C.

At a shared score one random bit is looked up for each output, with a mean that is a function of the score. Scores are
rounded to a level at random, so that the mean of the bits is the line through their chances at two levels. Bounds hold
for any chances. Proof: `proofs/columns.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.matrix import shrink_slopes
from sottovoce.errors import InputError, RefusedError
from sottovoce.losses.base import Loss
from sottovoce.losses.single import Huber, Squared
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Problem
from sottovoce.plan.release import Release

Array = NDArray[np.float64]

ROW_BITS: Final = 8  # rows are whole numbers of 2^-8
UNIT_BITS: Final = 8  # a sum of bits is in units of 2^-8
FACTOR_BITS: Final = 5  # of the factor f
MOST_FACTOR: Final = 2**FACTOR_BITS - 1
CLIP_LEVELS: Final = 8  # levels of |P'x|^2 in C^2: of 4 rows are 4% shorter
LONGEST: Final = 252  # C^2: where the levels of |P'x|^2 would repeat
EXPONENTS: Final = (10, 30)  # g: below the first levels have no bits left, above the second P gains nothing
FEWEST: Final = 20  # below this g longer words are better than a coarser P
LENGTH, GRADIENT = "length", "gradient"  # names of the sums over whitened rows; only a plan of them has an exponent
WORDS: Final = (32, 40, 48)  # bits
_MARGIN = 1 + 2.0**-30  # of an eigenvalue in floating point
LEVELS: Final = 64  # L, of a table: 32 are too coarse where scores are spread
FINE: Final = 2  # q: bits of a score, modulo 2^8, below its level
CHANCE_BITS: Final = 16  # a chance is a multiple of 2^-16
WIDENINGS: Final = (1, 2, 4, 8)
_NEAR, _FAR = 3.0, 4.0  # deviations of scores, and of residuals, that a table has to reach


def grid_bits(problem: Problem) -> int:
    """Of the rows that sums are made of."""
    return ROW_BITS if problem.secure_columns else problem.preparation.bits


def factors() -> NDArray[np.int64]:
    """F by the level l of |P'x|^2 in C^2 / 8: the largest whole numbers with f^2 (l + 1) C^2 / 8 <= 31^2 C^2."""
    squares = CLIP_LEVELS * MOST_FACTOR**2 // np.arange(1, 16 * CLIP_LEVELS + 1)
    return np.minimum(MOST_FACTOR, np.sqrt(squares).astype(np.int64))  # of such numbers the root is exact from below


def step_of(exponent: int) -> float:
    """The grid of gradients of whitened rows."""
    return float(2.0 ** -(exponent // 2 + 6))


def exponent_of(plan: Plan) -> int:
    """The g of a plan, by the grid of its gradients; a plan of another grid is refused."""
    share, power = math.frexp(plan.release(GRADIENT).step)
    exponent = -2 * power - 10
    if share != 0.5 or exponent < EXPONENTS[0]:
        raise RefusedError(
            f"the plan opens gradients of whitened rows on the grid {plan.release(GRADIENT).step!r}, which must be a "
            f"power of two of {step_of(EXPONENTS[0])!r} at most."
        )
    return exponent


def fits_clip(projection: NDArray[Any], exponent: int, square: float) -> bool:
    """Whether |P'x|^2 <= 252 C^2 for every row of |x|^2 <= 4^8 `square`: what the bound of a clipped row hangs on."""
    longest = float(np.linalg.eigvalsh(np.asarray(projection, dtype=np.float64).T @ projection)[-1])
    return bool(longest * _MARGIN * 4**ROW_BITS * square <= LONGEST * 4 * 2**exponent)


def has_room(problem: Problem, releases: Iterable[Release], bits: int) -> bool:
    """Whether a word of so many bits holds every sum of the releases, under noise of 64 deviations."""
    for release in releases:
        noise = 64 * release.std * math.sqrt(problem.channel.variance)
        if not (problem.records * release.charged_zero_out + noise) / release.step < 2.0 ** (bits - 1):
            return False
    return True


def ring_bits(plan: Plan) -> int:
    """k: by columns the fewest bits that have room for every sum of the plan, and for |P'x|^2 < 2^(g + 10); else 64."""
    if not plan.secure_columns:
        return 64
    least = max(WORDS[1], exponent_of(plan) + 10) if plan.has(LENGTH) else 0
    for bits in WORDS:
        if bits >= least and has_room(plan, plan.releases, bits):
            return bits
    raise InputError(
        f"epsilon={plan.epsilon:g} with {plan.records} records: sums and noise do not fit in {WORDS[-1]} bits; "
        "take a larger epsilon, or fewer records."
    )


def finest_exponent(problem: Problem, release: Release) -> int:
    """The largest g whose gradients, with the noise of this release, fit in words of 40 bits, or else of 48."""
    for bits, least in ((WORDS[1], FEWEST), (WORDS[2], EXPONENTS[0])):
        for exponent in range(EXPONENTS[1], least - 1, -2):
            if has_room(problem, (release.model_copy(update={"step": step_of(exponent)}),), bits):
                return exponent
    return EXPONENTS[0]


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


def chances_of(means: Array) -> NDArray[np.int64]:
    """Whole numbers of 2^-16, 0 and 1 included."""
    return np.rint(np.clip(means, 0.0, 1.0) * 2.0**CHANCE_BITS).astype(np.int64)


def scores_at(levels: int, level: float) -> Array:
    """The scores of levels: around 0, for classes of each label's half by itself."""
    return np.asarray((np.arange(levels) - levels // 2) * level, dtype=np.float64)


def slope_chances(loss: Loss, most: float, level: float) -> NDArray[np.int64]:
    """Of the bits of slopes clipped at `most`, in units of it: t - [y = 1] for classes, 2 t - 1 for numbers; (1, L)."""
    if loss.kind == "regression":
        scores = scores_at(LEVELS, level)
        return chances_of((1 + shrink_slopes(loss, most, scores, np.zeros(LEVELS)))[None] / 2)
    scores = scores_at(LEVELS // 2, level)
    ones = np.ones(LEVELS // 2)
    return chances_of(
        np.concatenate([1 + shrink_slopes(loss, most, scores, ones), shrink_slopes(loss, most, scores, -ones)])[None]
    )


def slope_level(loss: Loss, most: float, spread: float) -> float:
    """h: the least of 1, 2, 4 and 8 times the finest with which a table reaches beyond scores of that deviation.

    The finest is a quarter of what a slope bends within: kinks are on levels.
    """
    if loss.kind == "regression":
        finest, reach, far = most / 4, LEVELS // 2 - 1, _FAR
    else:
        finest, reach, far = min(max(0.25 / loss.curvature_bound, 0.25), 1.0), LEVELS // 4 - 1, _NEAR
    for wide in WIDENINGS[:-1]:
        if wide * finest * reach >= far * spread:
            return finest * wide
    return finest * WIDENINGS[-1]


def check_slopes(loss: Loss) -> None:
    """Refuse a loss whose slopes are not bits: of classes they fall with the margin, of numbers they are residuals."""
    fits = loss.outputs == 1
    if fits and loss.kind == "regression":
        fits = type(loss) in (Squared, Huber)
    elif fits:
        margins, labels = np.tile(np.linspace(-32.0, 32.0, 257), 2), np.repeat([-1.0, 1.0], 257)
        slopes = labels * loss.derivative(labels * margins, labels)
        fits = bool(np.all(np.isfinite(slopes)) and np.max(slopes) <= 0.0)
    if not fits:
        raise InputError(
            f"loss={loss.name!r}: over secure columns slopes are looked up at one score, and must fall with the margin "
            "or be those of squared or huber; choose another loss, two classes, or another protection."
        )
