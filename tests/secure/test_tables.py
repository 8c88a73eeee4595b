"""Slopes as bits: their mean, their range, and how far apart levels are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sottovoce import losses
from sottovoce.data.matrix import shrink_slopes
from sottovoce.errors import InputError
from sottovoce.losses import Loss, OneVsRest, weighted
from sottovoce.secure.ring import CHANCE_BITS, LEVELS, LookUp, chances_of, check_slopes, slope_chances, slope_level

NAMES = ("logistic", "hinge", "smoothed_hinge", "huber", "squared")
LOSSES: list[Loss] = [losses.get(name) for name in NAMES]
WEIGHTED = weighted(losses.get("logistic"), (0.3, 1.0))


def named(loss: Loss) -> str:
    return loss.name


def mean_bit(chances: NDArray[Any], index: float) -> float:
    """Of the bit at a place between two levels, which a mask rounds at random."""
    low, share = int(np.floor(index)), index - np.floor(index)
    return float((1 - share) * chances[low % len(chances)] + share * chances[(low + 1) % len(chances)]) / 2**CHANCE_BITS


def mean_slope(loss: Loss, most: float, level: float, score: float, label: float) -> float:
    """Of a record, in units of `most`: t - [y = 1] for classes, 2 t - 1 for numbers."""
    chances = slope_chances(loss, most, level)[0]
    if loss.kind == "regression":
        return 2 * mean_bit(chances, len(chances) / 2 + (score - label) / level) - 1
    return mean_bit(chances, label * len(chances) / 4 + score / level) - (label == 1.0)


@pytest.mark.parametrize("loss", [*LOSSES, WEIGHTED], ids=named)
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_the_mean_of_a_bit_is_the_slope_at_every_level(loss: Loss, share: float) -> None:
    most = share * min(loss.lipschitz(), 1.0)
    level, half = slope_level(loss, most, 0.0), LEVELS // (2 if loss.kind == "regression" else 4)
    for place in range(-half, half):
        for label in (-1.0, 1.0) if loss.kind == "classification" else (0.0,):
            wanted = shrink_slopes(loss, most, np.array([place * level]), np.array([label]))[0]
            assert mean_slope(loss, most, level, place * level, label) == pytest.approx(wanted, abs=2.0**-CHANCE_BITS)


@pytest.mark.parametrize(
    ("name", "error"), [("logistic", 0.012), ("smoothed_hinge", 1e-4), ("huber", 1e-4), ("squared", 1e-4)]
)
def test_between_levels_the_error_is_small(name: str, error: float) -> None:
    loss = losses.get(name)
    most = min(loss.lipschitz(), 1.0)
    level, scores = slope_level(loss, most, 0.0), np.linspace(-3.0, 3.0, 200)
    found = [mean_slope(loss, most, level, score, 1.0) for score in scores]
    wanted = shrink_slopes(loss, most, scores.copy(), np.ones(200))
    assert np.abs(found - wanted).max() < error
    shifted = [mean_slope(loss, most, level, score + level / 4, 1.0) for score in scores]
    assert np.abs(shifted - wanted).max() > error  # planted: rounded by a quarter of a level more


@pytest.mark.parametrize("loss", [*LOSSES, WEIGHTED], ids=named)
@pytest.mark.parametrize("level", [1e-3, 1.0, 1e6])
def test_chances_are_chances(loss: Loss, level: float) -> None:
    found = slope_chances(loss, 0.7, level)
    assert found.shape == (1, LEVELS)
    assert found.dtype == np.int64
    assert found.min() >= 0
    assert found.max() <= 2**CHANCE_BITS
    assert chances_of(np.array([-1.0, 0.0, 1.0, 2.0])).tolist() == [0, 0, 2**CHANCE_BITS, 2**CHANCE_BITS]


@pytest.mark.parametrize(("spread", "factor"), [(0.1, 1), (4.9, 1), (5.1, 2), (9.9, 2), (19.0, 4), (39.0, 8), (1e6, 8)])
def test_levels_are_further_apart_for_large_scores(spread: float, factor: float) -> None:
    assert slope_level(losses.get("logistic"), 1.0, spread) == factor
    residuals = slope_level(losses.get("squared"), 1.0, spread * (31 / 4 / 4) / (15 / 3))
    assert residuals == factor / 4


def test_losses_without_such_slopes_are_refused() -> None:
    for loss in (*LOSSES, WEIGHTED):
        check_slopes(loss)
    with pytest.raises(InputError, match="two classes"):
        check_slopes(OneVsRest(losses.get("logistic"), 3))


def test_a_table_that_is_none_is_refused() -> None:
    one = np.ones(1, dtype=np.int64)
    fields: tuple[Any, ...] = (1.0, "label", "null", "rows", False, True)
    assert LookUp(np.zeros((1, 64), dtype=np.int64), *fields, one).scales is one
    for shape in ((1, 32), (1, 65), (64,), (2, 64)):
        with pytest.raises(InputError, match="chances of shape"):
            LookUp(np.zeros(shape, dtype=np.int64), *fields, one)
