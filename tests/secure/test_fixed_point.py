"""The clip of whitened rows in whole numbers, and the words that hold sums."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from secure_plans import NUMBERS, plan_for
from sottovoce.algorithms.newton import PrivateNewton
from sottovoce.errors import InputError, RefusedError
from sottovoce.plan.release import Release
from sottovoce.secure.ring import (
    LONGEST,
    MOST_FACTOR,
    exponent_of,
    factors,
    finest_step,
    fits_clip,
    has_room,
    ring_bits,
    step_of,
)
from sottovoce.solvers import Newton

COARSE, FINE = (10, 9), (6, 9)  # bits of |z|^2 above g, and of an index below its level


def level(square: int, exponent: int, bits: tuple[int, int], carry: int, coin: int) -> int:
    """Where a square is looked up, whatever shares carry and masks round."""
    modulus = exponent + bits[0]
    top = (square % 2**modulus >> modulus - 16) + carry + 2 ** bits[1] - 1 - coin
    return top % 2**16 >> bits[1]


def longest(square: int, exponent: int, parties: int, table: Any) -> float:
    """The largest f |z| / (31 C) of a row of that square."""
    found = 0.0
    for carry in (0, parties - 1):
        for first in (0, 511):
            if level(square, exponent, COARSE, carry, first) + 1 <= 7:
                for second in (0, 511):
                    factor = int(table[level(square, exponent, FINE, carry, second)])
                    found = max(found, factor**2 * square / (MOST_FACTOR**2 * 4 * 2**exponent))
    return math.sqrt(found)


def test_factors_are_the_largest_that_keep_a_row_within_the_clip() -> None:
    found = [int(factor) for factor in factors()]
    assert all(0 < factor <= MOST_FACTOR for factor in found)
    for place, factor in enumerate(found):
        assert factor**2 * (place + 1) <= 8 * MOST_FACTOR**2
        assert factor == MOST_FACTOR or (factor + 1) ** 2 * (place + 1) > 8 * MOST_FACTOR**2


@pytest.mark.parametrize("parties", [2, 8, 16])
@pytest.mark.parametrize("exponent", [10, 12, 22, 30, 38])
def test_no_row_is_longer_than_the_clip_for_any_carry_and_coin(exponent: int, parties: int) -> None:
    clip = 4 * 2**exponent
    shares = np.concatenate([np.linspace(0.0, 16.0, 1500), np.linspace(16.0, LONGEST, 400), [12.0, 14.0, LONGEST]])
    squares = [int(share * clip) + step for share in shares for step in (-1, 0, 1) if share * clip + step >= 0]
    squares = [square for square in squares if square <= LONGEST * clip]
    found = [longest(square, exponent, parties, factors()) for square in squares]
    assert max(found) <= 1.0
    assert max(found) > 0.98
    assert longest(254 * clip, exponent, parties, factors()) > 1.0  # beyond what fits, levels repeat
    from_above = [min(MOST_FACTOR, math.isqrt(8 * MOST_FACTOR**2 // max(place, 1))) for place in range(128)]
    assert max(longest(square, exponent, parties, from_above) for square in squares) > 1.0  # planted


@pytest.mark.parametrize("square", [1.0, 2.0])
def test_a_projection_fits_up_to_the_cap(square: float) -> None:
    exponent, rng = 30, np.random.default_rng(0)
    base = np.tril(rng.standard_normal((6, 6)))
    cap = math.sqrt(LONGEST * 4 * 2**exponent / 4**8 / square)
    for share, fits in ((0.999, True), (1.001, False), (3.0, False)):
        matrix = np.rint(base / np.linalg.norm(base, 2) * share * cap).astype(np.int64)
        assert fits_clip(matrix, exponent, square) is fits
    assert fits_clip(np.zeros((3, 3), dtype=np.int64), exponent, square)
    one = np.zeros((1, 1), dtype=np.int64)
    one[0, 0] = math.isqrt(LONGEST * 4 * 2**exponent // 4**8)
    assert fits_clip(one, exponent, 1.0)
    assert not fits_clip(one + 1, exponent, 1.0)


def test_the_exponent_is_that_of_the_grid_and_others_are_refused() -> None:
    plan = plan_for(400, (2, 2))

    def exponent_at(step: float) -> int:
        releases = [r.model_copy(update={"step": step}) if r.query == "gradient" else r for r in plan.releases]
        return exponent_of(plan.model_copy(update={"releases": tuple(releases)}))

    assert all(exponent_at(step_of(exponent)) == exponent for exponent in range(10, 40, 2))
    for step in (step_of(10) * 2, 2.0**-10.5, step_of(30) * 3):  # g = 8, 9, and no power of two
        with pytest.raises(RefusedError, match="power of two"):
            exponent_at(step)


@pytest.mark.parametrize(
    ("records", "epsilon", "exponent", "bits"),
    [
        (400, 1.0, 30, 40),
        (200_000, 1.0, 30, 40),
        (1_000_000, 1.0, 26, 40),
        (30_000_000, 1.0, 30, 48),
        (400, 1e-3, 26, 40),
    ],
)
def test_words_are_as_long_as_sums_need(records: int, epsilon: float, exponent: int, bits: int) -> None:
    plan = plan_for(records, (2, 2), epsilon=epsilon)
    assert (exponent_of(plan), ring_bits(plan)) == (exponent, bits)
    assert has_room(plan, plan.releases, bits)
    release = plan.release("gradient")
    assert exponent == 30 or not has_room(plan, [release.model_copy(update={"step": release.step / 2})], bits)


def test_sums_without_whitened_rows_may_have_short_words() -> None:
    few = plan_for(2_000, (2, 2), form=PrivateNewton(), options=Newton())
    many = plan_for(200_000, (2, 2), form=PrivateNewton(), options=Newton())
    assert (ring_bits(few), ring_bits(many)) == (32, 40)


def test_sums_that_no_word_holds_are_refused() -> None:
    with pytest.raises(InputError, match="48 bits"):
        plan_for(400, (2, 2), epsilon=1e-12, delta=1e-13)


def test_a_row_has_the_norms_of_its_parts() -> None:
    plan = plan_for(400, (2, 2), **NUMBERS)
    assert plan.row_square == pytest.approx(1.0, rel=2.0**-39)
    wide = plan.changed_problem(norms=tuple(2 * norm for norm in plan.norms))
    constant = plan.preparation.intercept_entry**2
    assert wide.row_square == pytest.approx(constant + 4 * (1 - constant))


def test_the_finest_grid_leaves_room() -> None:
    plan = plan_for(400, (2, 2))
    wide: Release = plan.release("gradient").model_copy(update={"std": 2.0**40})
    assert finest_step(plan, wide) == step_of(10)  # which the words then refuse
