"""The table of rivals: points, what counts as behind, and fits side by side told apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rivals
from peers import baselines
from peers.data import Case

pytestmark = pytest.mark.slow


def cells(ours: list[float], oracle: list[float]) -> rivals.Cells:
    """One problem with losses from 1 (without privacy) to 2 (constant): a point is .01."""
    losses = {rivals.OURS: ours, rivals.BEFORE: [1.5] * 5, "AdaSSP": [4.0] * 5, rivals.RIVALS[-1]: oracle}
    found = {rivals.key("adult", 1.0, name): {"loss": loss} for name, loss in losses.items()}
    return found | {rivals.key("adult", np.inf, rivals.ENDS): {"loss": [1.0, 2.0]}}


def test_a_gap_is_in_points_and_the_best_rival_is_the_least() -> None:
    (row,) = rivals.rows_of(cells([1.1, 1.3], [1.2] * 5))
    assert [gap.mean for gap in row.gaps.values()] == pytest.approx([20, 50, 300, 20])
    assert row.gaps[rivals.OURS].error == pytest.approx(10)
    assert "150.0" in rivals.summary([row])  # the mean is cut
    assert "1 / 1 |" in rivals.summary([row])  # AdaSSP is worse than the constant model


def test_behind_is_a_point_and_beyond_noise_two_standard_errors_more() -> None:
    def found(ours: list[float]) -> tuple[bool, bool]:
        (row,) = rivals.rows_of(cells(ours, [1.2] * 5))
        mine, best = row.gaps[rivals.OURS], list(row.gaps.values())[-1]
        return mine.behind(best, False), mine.behind(best, True)

    assert found([1.209] * 5) == (False, False)
    assert found([1.211] * 5) == (True, True)
    assert found([1.10, 1.42, 1.10, 1.42]) == (True, False)
    assert "within noise" in rivals.lost_cells(rivals.rows_of(cells([1.10, 1.42, 1.10, 1.42], [1.2] * 5)))


def test_a_cell_that_lacks_a_column_is_not_counted() -> None:
    known = cells([1.1], [1.2])
    del known[rivals.key("adult", 1.0, rivals.BEFORE)]
    assert rivals.rows_of(known) == []


def test_settings_and_seeds_of_fits_side_by_side_are_told_apart() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-0.5, 0.5, (60, 4)), np.where(rng.random(60) < 0.5, 1.0, -1.0)
    case = Case("few", X[:40], y[:40], X[40:], y[40:], False, 0.5, 2, (0.7, 0.7))
    settings: list[Any] = [{"rounds": 3, "step": 1.0, "clip": 1.0}, {"rounds": 9, "step": 2.0, "clip": 0.5}]
    settings.append({"rounds": 3, "step": 4.0, "clip": 0.25})
    found = rivals.losses(case, rivals.DESCENT, 1.0, settings, range(5, 7))
    rows, loss = baselines.extended(case.X), baselines.Loss(False)
    for k, setting in enumerate(settings):
        for at, seed in enumerate((5, 6)):
            generator = np.random.default_rng(seed)
            w = baselines.noisy_gradient_descent(rows, case.y, loss, 1.0, rivals.DELTA, generator, **setting)
            assert found[k, at] == pytest.approx(case.test(*baselines.model(w))[0], rel=1e-9)
    assert len(set(found.ravel())) == 6
