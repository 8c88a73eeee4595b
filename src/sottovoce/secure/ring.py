# mypy: allow-untyped-decorators
"""Loops over words modulo 2^64, scores modulo 2^8 and tables of bits. Compiled once and kept in numba's cache.

Words are int64, whose sums and products wrap around. The way of a loop does not depend on what the words say, but for
the place of a looked-up bit, which every party knows.

A score is added in the order of its columns, without leave to reorder: what is computed for one record is a function of
that record and of public numbers, bit for bit, wherever the record stands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sottovoce.data.kernels import watch
from sottovoce.data.matrix import shrink_slopes
from sottovoce.errors import InputError, RefusedError
from sottovoce.losses.base import Loss
from sottovoce.losses.single import Huber, Squared
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Problem
from sottovoce.plan.release import Release

Signed = NDArray[np.int64]
Entries = NDArray[Any]  # int32 or int64
Bits = NDArray[np.uint8]
Scores = NDArray[np.int16]

TAIL: Final = 64.0  # standard deviations that an opened sum has room for
_WRAPS = 2.0**62  # a score beyond it is no int64
_PERIOD = 2.0**16
_CHUNK = 2048  # records whose products are added together: what is read twice stays in the cache
_LANES = 16  # columns that the innermost loop takes at a time

watch()


def cross(left: Entries, right: Entries) -> Signed:
    """A'B modulo 2^64."""
    wide = right.shape[1]
    spare = -wide % _LANES  # a few columns over are dearer than a whole step
    total = np.zeros((left.shape[1], wide + (spare if spare < 12 else 0)), dtype=np.int64)
    masked = np.zeros((_CHUNK, total.shape[1]), dtype=np.int64)
    for start in range(0, len(left), _CHUNK):
        piece = np.ascontiguousarray(left[start : start + _CHUNK], np.int64)
        masked[: len(piece), :wide] = right[start : start + _CHUNK]
        _add_cross(total, piece, masked)
    return np.ascontiguousarray(total[:, :wide])


@njit(cache=True)
def _add_cross(total: Signed, left: Signed, right: Signed) -> None:
    wide, whole = right.shape[1], len(left) - len(left) % 4
    for n in range(0, whole, 4):
        r0, r1, r2, r3 = right[n], right[n + 1], right[n + 2], right[n + 3]
        for i in range(left.shape[1]):
            a0, a1, a2, a3 = left[n, i], left[n + 1, i], left[n + 2, i], left[n + 3, i]
            out = total[i]
            for j in range(wide):
                out[j] += a0 * r0[j] + a1 * r1[j] + a2 * r2[j] + a3 * r3[j]
    for n in range(whole, len(left)):
        for i in range(left.shape[1]):
            a, row, out = left[n, i], right[n], total[i]
            for j in range(wide):
                out[j] += a * row[j]


@njit(cache=True)
def sum_weighted(rows: Entries, weights: Signed) -> Signed:
    """sum_i weights_i x_i modulo 2^64, in one pass over the rows."""
    total = np.zeros(rows.shape[1], dtype=np.int64)
    for n in range(len(rows)):
        row, weight = rows[n], weights[n]
        for j in range(len(row)):
            total[j] += weight * np.int64(row[j])
    return total


@njit(cache=True)
def through(rows: Entries, matrix: Signed) -> Signed:
    """The rows times a matrix, modulo 2^64."""
    found = np.zeros((len(rows), matrix.shape[1]), dtype=np.int64)
    for n in range(len(rows)):
        out = found[n]
        for i in range(rows.shape[1]):
            entry, row = np.int64(rows[n, i]), matrix[i]
            for j in range(matrix.shape[1]):
                out[j] += entry * row[j]
    return found


@njit(cache=True, fastmath=False, error_model="numpy")
def score_rows(rows: Entries, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """x_i'w, each added in the order of the columns."""
    found = np.empty(len(rows))
    for n in range(len(rows)):
        total = 0.0
        for j in range(rows.shape[1]):
            total += rows[n, j] * weights[j]
        found[n] = total
    return found


@njit(cache=True, fastmath=False, error_model="numpy")
def wrapped(values: NDArray[np.float64], dithers: NDArray[np.uint8]) -> Scores:
    """floor(v + (u + 1/2) / 2^8) modulo 2^16, u the dither; 0 for what is not finite."""
    found = np.empty(len(values), dtype=np.int16)
    for n in range(len(values)):
        value = np.floor(values[n] + (dithers[n] + 0.5) / 256.0)
        if not abs(value) < _WRAPS:
            value = np.fmod(value, _PERIOD) if abs(value) < np.inf else 0.0
        found[n] = np.int16(np.int64(value) & 0xFFFF)
    return found


@njit(cache=True)
def tables(chances: Signed, uniform: NDArray[np.uint16], shifts: Signed, swaps: Bits) -> Bits:
    """(records, halves, outputs, levels / 8): bit v is [U < chance of level v + shift], the halves swapped or not."""
    halves, outputs, levels = chances.shape
    found = np.zeros((len(shifts), halves, outputs, levels // 8), dtype=np.uint8)
    for n in range(len(shifts)):
        for half in range(halves):
            for o in range(outputs):
                row, drawn = chances[half ^ swaps[n], o], np.int64(uniform[n, o])
                for v in range(levels):
                    bit = np.uint8(drawn < row[(v + shifts[n]) % levels])
                    found[n, half, o, v >> 3] |= np.uint8(bit << (v & 7))
    return found


@njit(cache=True)
def looked_up(table: Bits, halves: Bits, places: Signed) -> Bits:
    """(records, outputs): bit v of each output, in the half of the record."""
    found = np.empty((len(places), table.shape[2]), dtype=np.uint8)
    for n in range(len(places)):
        v = places[n]
        for o in range(table.shape[2]):
            found[n, o] = (table[n, halves[n], o, v >> 3] >> (v & 7)) & 1
    return found


Array = NDArray[np.float64]

ROW_BITS: Final = 8  # rows are whole numbers of 2^-8
UNIT_BITS: Final = 8  # a sum of bits is in units of 2^-8
FACTOR_BITS: Final = 5  # of the factor f
MOST_FACTOR: Final = 2**FACTOR_BITS - 1
CLIP_LEVELS: Final = 8  # levels of |P'x|^2 in C^2: of 4 rows are 4% shorter
LONGEST: Final = 252  # C^2: where the levels of |P'x|^2 would repeat
EXPONENTS: Final = (10, 30)  # g: below the first levels have no bits left, above the second P gains nothing
FEWEST: Final = 20  # below this g longer words are better than a coarser P
LENGTH, GRADIENT = "length", "gradient"  # names of the sums over whitened rows, of plans that have an exponent
WORDS: Final = (32, 40, 48)  # bits
_MARGIN = 1 + 2.0**-30  # of an eigenvalue in floating point
LEVELS: Final = 64  # L, of a table: 32 are too coarse where scores are spread
WIDE: Final = 256  # of one for counts
SECTIONS: Final = 16  # of such a table, each for the counts around a node
FINE: Final = 2  # q: bits of a score, modulo 2^q L, below its level
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


def step_of(exponent: int, roots: int = 0) -> float:
    """The grid of gradients of whitened rows; `roots` are the bits of the roots of weights."""
    return float(2.0 ** -(exponent // 2 + 6 + roots))


def exponent_of(plan: Plan) -> int:
    """The g of a plan, by the grid of its gradients; a plan of another grid is refused."""
    share, power = math.frexp(plan.release(GRADIENT).step)
    exponent = -2 * (power + plan.root_bits) - 10
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
    clips = plan.has(LENGTH) or plan.numbers.clips_rows
    least = max(WORDS[1], exponent_of(plan) + 10) if clips else 0
    for bits in WORDS:
        if bits >= least and has_room(plan, plan.releases, bits):
            return bits
    raise InputError(
        f"epsilon={plan.epsilon:g} with {plan.records} records: sums and noise do not fit in {WORDS[-1]} bits; "
        "take a larger epsilon, or fewer records."
    )


def finest_step(problem: Problem, release: Release) -> float:
    """The grid of the largest g whose gradients, with the noise of this release, fit in words of 40 or else 48 bits."""
    for bits, least in ((WORDS[1], FEWEST), (WORDS[2], EXPONENTS[0])):
        for exponent in range(EXPONENTS[1], least - 1, -2):
            step = step_of(exponent, problem.root_bits)
            if has_room(problem, (release.model_copy(update={"step": step}),), bits):
                return step
    return step_of(EXPONENTS[0], problem.root_bits)


class Projection(NamedTuple):
    """P, (columns, directions), whole numbers in the unit in which rows are clipped at C^2 = 4 2^g."""

    matrix: NDArray[np.int64]
    exponent: int  # g


@dataclass(frozen=True, eq=False)
class LookUp:
    """Bits t_io with the means chances_o at the level of record i, and the sum that they are for.

    `index` says what the holder of the labels adds: "label" picks the half of the table that is for the label, or with
    `nodes` its section, "score" is centred, "residual" is the score less the label.
    """

    chances: NDArray[np.int64]  # (outputs, L), of 2^16; with nodes two rows of bits, t - t', for each
    level: float  # h, the distance of two levels in units of the score
    index: Literal["label", "score", "residual"]
    weight: Literal["null", "factor"]  # v: n or f
    matrix: Literal["one", "rows", "projected"]
    twice: bool  # 2 v t - v in the place of v t
    minus_label: bool  # v t - v y'
    scales: NDArray[np.int64]  # of each output, where the matrix is "one"
    projection: NDArray[np.int64] | None = None  # P, where it is "projected"
    nodes: Array | None = None  # of counts: rising labels, of which each has a section of the table

    def __post_init__(self) -> None:
        shape = (len(self.scales), LEVELS) if self.nodes is None else (2 * len(self.scales), WIDE)
        if self.chances.shape != shape:
            raise InputError(f"chances of shape {self.chances.shape}: must be {shape}, bits and levels.")
        if self.nodes is not None and not np.all(np.diff(self.nodes) > 0):
            raise RefusedError("the labels of the sections of a table have to rise.")


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


def section_centres(labels: Array, nodes: Array, dithers: NDArray[np.uint8]) -> Array:
    """The middle of a section, in units of 2^-q levels: that of one of the two nodes beside a label, by the dither.

    The nearer is the likelier, so that what the table has is interpolated between nodes.
    """
    below = np.clip(np.searchsorted(nodes, labels, side="right") - 1, 0, len(nodes) - 2)
    shares = (labels - nodes[below]) / (nodes[below + 1] - nodes[below])
    places = below + ((dithers + 0.5) / 256.0 < shares)
    return np.asarray((places + 0.5) * float((WIDE << FINE) // SECTIONS))


def slope_level(loss: Loss, most: float, spread: float) -> float:
    """h: the least of 1, 2, 4 and 8 times the finest with which a table reaches beyond scores of that deviation.

    The finest is a quarter of what a slope bends within: kinks are on levels.
    """
    if loss.kind == "regression":
        finest, reach, far = most / 4, LEVELS // 2 - 1, _FAR
    else:
        levels = LEVELS // 2 if loss.kind == "classification" else WIDE // SECTIONS
        finest, reach, far = min(max(0.25 / loss.curvature_bound, 0.25), 1.0), levels // 2 - 1, _NEAR
    for wide in WIDENINGS[:-1]:
        if wide * finest * reach >= far * spread:
            return finest * wide
    return finest * WIDENINGS[-1]


def check_slopes(loss: Loss) -> None:
    """Refuse a loss whose slopes are not bits: of classes falling by margin, of numbers residuals, of counts any."""
    fits = loss.outputs == 1 and loss.kind != "time"
    if fits and loss.kind == "regression":
        fits = type(loss) in (Squared, Huber)
    elif fits and loss.kind == "classification":
        margins, labels = np.tile(np.linspace(-32.0, 32.0, 257), 2), np.repeat([-1.0, 1.0], 257)
        slopes = labels * loss.derivative(labels * margins, labels)
        fits = bool(np.all(np.isfinite(slopes)) and np.max(slopes) <= 0.0)
    if not fits:
        raise InputError(
            f"loss={loss.name!r}: over secure columns slopes are looked up at one score, and must fall with the margin "
            "or be those of squared or huber; choose another loss, two classes, or another protection."
        )
