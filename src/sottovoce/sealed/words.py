"""What the sums of secure columns are in whole numbers: rows, the clip of whitened ones, and the words that hold sums.

    |x|^2 <= 4^8 Q,     C^2 = 4 2^g,     |f P'x| <= 31 C = 31/32 of 2^(g/2 + 6)

C is a power of two, so that 2^(g/2 + 6) is the 1 of what is opened: g follows from the grid of the plan's gradients.
What is told is P alone, in such a unit that the length at which rows are clipped becomes C. Proof: `proofs/columns.md`.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError, RefusedError
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Problem
from sottovoce.plan.release import Release

ROW_BITS: Final = 8  # rows are whole numbers of 2^-8
UNIT_BITS: Final = 8  # a sum of bits is in units of 2^-8
FACTOR_BITS: Final = 5  # of the factor f
MOST_FACTOR: Final = 2**FACTOR_BITS - 1
CLIP_LEVELS: Final = 8  # levels of |P'x|^2 in C^2: of 4 rows are 4% shorter
LONGEST: Final = 252  # C^2: where the levels of |P'x|^2 would repeat
EXPONENTS: Final = (10, 30)  # g: below the first levels have no bits left, above the second P gains nothing
FEWEST: Final = 20  # below this g longer words are better than a coarser P
WORDS: Final = (32, 40, 48)  # bits
_MARGIN = 1 + 2.0**-30  # of an eigenvalue in floating point


def grid_bits(problem: Problem) -> int:
    """Of the rows that sums are made of."""
    return ROW_BITS if problem.sealed_columns else problem.preparation.bits


def factors() -> NDArray[np.int64]:
    """F by the level l of |P'x|^2 in C^2 / 8: the largest whole numbers with f^2 (l + 1) C^2 / 8 <= 31^2 C^2."""
    found = (math.isqrt(CLIP_LEVELS * MOST_FACTOR**2 // (level + 1)) for level in range(16 * CLIP_LEVELS))
    return np.array([min(MOST_FACTOR, factor) for factor in found])


def step_of(exponent: int) -> float:
    """The grid of gradients of whitened rows."""
    return float(2.0 ** -(exponent // 2 + 6))


def exponent_of(plan: Plan) -> int:
    """The g of a plan, by the grid of its gradients; a plan of another grid is refused."""
    share, power = math.frexp(plan.release("gradient").step)
    exponent = -2 * power - 10
    if share != 0.5 or exponent < EXPONENTS[0]:
        raise RefusedError(
            f"the plan opens gradients of whitened rows on the grid {plan.release('gradient').step!r}, which must be a "
            f"power of two of {step_of(EXPONENTS[0])!r} at most."
        )
    return exponent


def fits_clip(projection: NDArray[Any], exponent: int, square: float) -> bool:
    """Whether |P'x|^2 <= 252 C^2 for every row of |x|^2 <= 4^8 `square`: what the bound of a clipped row hangs on."""
    longest = float(np.linalg.eigvalsh(np.asarray(projection, dtype=np.float64).T @ projection)[-1])
    return bool(longest * _MARGIN * 4**ROW_BITS * square <= LONGEST * 4 * 2**exponent)


def has_room(problem: Problem, release: Release, bits: int) -> bool:
    """Whether a word of so many bits holds every sum of a release, under noise of 64 deviations."""
    noise = 64 * release.std * math.sqrt(problem.noises())
    return (problem.records * release.charged_zero_out + noise) / release.step < 2.0 ** (bits - 1)


def word_bits(plan: Plan) -> int:
    """k: by columns the fewest bits that have room for every sum of the plan, and for |P'x|^2 < 2^(g + 10); else 64."""
    if not plan.sealed_columns:
        return 64
    least = max(WORDS[1], exponent_of(plan) + 10) if plan.has("length") else 0
    for bits in WORDS:
        if bits >= least and all(has_room(plan, release, bits) for release in plan.releases):
            return bits
    raise InputError(
        f"epsilon={plan.epsilon:g} with {plan.records} records: sums and noise do not fit in {WORDS[-1]} bits; "
        "take a larger epsilon, or fewer records."
    )


def finest_exponent(problem: Problem, release: Release) -> int:
    """The largest g whose gradients, with the noise of this release, fit in words of 40 bits, or else of 48."""
    found = (
        exponent
        for bits, least in ((WORDS[1], FEWEST), (WORDS[2], EXPONENTS[0]))
        for exponent in range(EXPONENTS[1], least - 1, -2)
        if has_room(problem, release.model_copy(update={"step": step_of(exponent)}), bits)
    )
    return next(found, EXPONENTS[0])
