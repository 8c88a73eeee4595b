"""`whitened` over secure columns: what is made of sums whose coins and noise have their law, without a protocol."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from clear import Clear, parts_of
from secure_plans import CLASSES, NUMBERS, people, plan_for
from sottovoce import losses
from sottovoce.algorithms import choose, find
from sottovoce.algorithms.base import Solution
from sottovoce.algorithms.whitened import rule
from sottovoce.algorithms.whitened.columns import ColumnsWhitened, mean_factor, sharpened, whole_projection
from sottovoce.algorithms.whitened.rule import Clips, Evidence, Units, White
from sottovoce.errors import InputError
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named
from sottovoce.secure.ring import exponent_of, factors, fits_clip

WEIGHTS: dict[str, Any] = {**CLASSES, "class_weight": (0.3, 1.0)}
HINGE: dict[str, Any] = {**CLASSES, "loss": Named(name="smoothed_hinge")}
HUBER: dict[str, Any] = {**NUMBERS, "loss": Named(name="huber")}
KINDS = {"classes": CLASSES, "numbers": NUMBERS, "weights": WEIGHTS, "hinge": HINGE, "huber": HUBER}


def fitted(plan: Plan, X: np.ndarray, y: np.ndarray, seed: int = 0, noise: float = 1.0) -> Solution:
    clear = Clear(plan, ColumnsWhitened(), parts_of(plan, X, y), np.random.default_rng(seed), noise=noise)
    return clear.run()


def loss_of(plan: Plan, X: np.ndarray, y: np.ndarray) -> Any:
    """The mean loss of prepared rows as they are."""
    parts = parts_of(plan, X, y)
    pieces = [np.asarray(part.rows)[:, :width] for part, width in zip(parts, plan.columns, strict=True)]
    rows = np.hstack([*pieces, *([np.asarray(parts[plan.label_party].rows)[:, -1:]] if plan.fit_intercept else [])])
    labels = parts[plan.label_party].labels
    return lambda weights: float(np.mean(plan.scaled_loss.value(rows @ weights, labels)))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("widths", [(2, 1, 2), (1, 1)])
def test_with_much_signal_the_minimum_is_found(widths: tuple[int, ...], kind: dict[str, Any]) -> None:
    plan = plan_for(40_000, widths, epsilon=10.0, **kind)
    X, y = people(plan)
    loss = loss_of(plan, X, y)
    best = minimize(loss, np.zeros(plan.dimension), method="Powell").fun
    excess = loss(fitted(plan, X, y).weights) - best
    assert excess < 0.02 * (loss(np.zeros(plan.dimension)) - best)


@pytest.mark.parametrize("kind", [CLASSES, NUMBERS], ids=["classes", "numbers"])
def test_without_an_intercept_too(kind: dict[str, Any]) -> None:
    plan = plan_for(20_000, (2, 2), epsilon=10.0, fit_intercept=False, **kind)
    X, y = people(plan)
    loss = loss_of(plan, X, y)
    best = minimize(loss, np.zeros(plan.dimension), method="Powell").fun
    solution = fitted(plan, X, y)
    assert solution.weights.shape == (4,)
    assert loss(solution.weights) - best < 0.03 * (loss(np.zeros(plan.dimension)) - best)


@pytest.mark.parametrize("kind", [CLASSES, NUMBERS], ids=["classes", "numbers"])
def test_what_a_fit_says_of_scores_and_of_other_penalties(kind: dict[str, Any]) -> None:
    plan = plan_for(20_000, (2, 2), epsilon=10.0, **kind)
    X, y = people(plan)
    solution = fitted(plan, X, y)
    parts = parts_of(plan, X, y)
    rows = np.hstack([np.asarray(parts[0].rows)[:, :2], np.asarray(parts[1].rows)])
    scores = rows @ solution.weights
    assert isinstance(solution.model, Evidence)
    assert solution.spread == pytest.approx((scores.mean(), scores.std()), abs=0.15 * float(scores.std()))


FORM = ColumnsWhitened()


def white_of(plan: Plan, spread: float = 1.0) -> White:
    """Moments over five orders of magnitude."""
    values = np.geomspace(0.3 * spread, 3e-6, plan.dimension)
    vectors = np.linalg.qr(np.random.default_rng(0).standard_normal((plan.dimension,) * 2))[0]
    moments = rule.Moments(values, vectors, 1e-9)
    q = 1 / (values + 1e-7)
    return White(moments, q, Units.of(plan.scaled_loss, losses.KnownLabels(0.3)), 2.0)


def test_a_clip_is_widened_until_the_projection_fits() -> None:
    plan = plan_for(2_000, (3, 3))
    white = white_of(plan)
    clips, left = FORM.clips(plan, white)
    plain, _ = super(ColumnsWhitened, FORM).clips(plan, white)
    exponent, square = exponent_of(plan), plan.row_square
    assert not fits_clip(whole_projection(plan, white, plain.cut), exponent, square)
    assert fits_clip(whole_projection(plan, white, clips.cut), exponent, square)
    assert clips.cut == pytest.approx(math.sqrt(white.q.max() / 252), rel=0.05)
    assert left == mean_factor(white.length / clips.cut)


def test_the_unit_of_a_projection_makes_the_clip_a_power_of_two() -> None:
    plan = plan_for(2_000, (3, 3))
    white = white_of(plan)
    cut = 40.0
    longest = np.linalg.norm(whole_projection(plan, white, cut), 2) * 2**8  # of a row of length 1
    assert longest / 2.0 ** (exponent_of(plan) // 2 + 1) == pytest.approx(math.sqrt(white.q.max()) / cut, rel=1e-3)


def test_the_mean_factor_is_that_of_the_levels() -> None:
    rng = np.random.default_rng(0)
    for length in (0.5, 0.95, 1.43, 2.0, 3.0):
        levels = np.floor(8 * length**2 + rng.random(200_000)).astype(np.int64)
        assert mean_factor(length) == pytest.approx(float(factors()[levels].mean()) / 31, abs=2e-3)
        assert mean_factor(length) <= min(1.0, 1 / length)
    assert mean_factor(100.0) > 0


def test_a_sharpened_table_has_its_mean_after_rounding() -> None:
    scores, level = np.linspace(-3.0, 3.0, 6001), 0.5
    levels = level * (np.arange(33) - 16)
    blunt, sharp = levels[None] * np.tanh(levels)[None], np.empty((1, 33))
    sharp = sharpened(blunt, 1 / 12)
    wanted = float(np.mean(scores * np.tanh(scores)))
    errors = [abs(float(np.interp(scores, levels, table[0]).mean()) - wanted) for table in (sharp, blunt)]
    assert errors[0] < 0.1 * errors[1]


def test_noise_is_that_of_opened_sums() -> None:
    plan = plan_for(1_000, (2, 2, 2))
    opened = math.sqrt(2 - 1 / 3)
    for name, unit in (("gram", 1.0), ("score", 1.0), ("gradient", 32 / 31)):
        release = plan.release(name)
        assert FORM.noise(plan, name) == pytest.approx(release.std * opened * unit / math.sqrt(release.count) / 1_000)
    release = plan.release("rescale")
    alone = release.std**2 * opened**2
    assert FORM.noise(plan, "rescale") == pytest.approx(math.sqrt((alone + 800) / release.count) / 1_000)
    both = math.sqrt((alone * (1 + 1 / 4) + 800) / release.count) / 1_000
    assert FORM.noise(plan, "rescale", Clips(2.0, 0.5)) == pytest.approx(both)


def test_numbers_have_no_rescale_and_its_share_is_the_gradients() -> None:
    plan = plan_for(1_000, (2, 2), **NUMBERS)
    assert [release.query for release in plan.releases] == ["gram", "label", "residual", "length", "gradient"]
    found = FORM.shares(plan.signal, [*(release.query for release in plan.releases), "rescale"])
    one, rescale, rest = found["length"], found["rescale"], found["gradient"]
    release = plan.release("gradient")
    assert release.std == pytest.approx(31 / 32 * math.sqrt(32 / (rest + rescale)) / plan.mu)
    assert plan.release("length").std == pytest.approx(1 / math.sqrt(one) / plan.mu)


def test_what_the_form_does_not_serve_is_said() -> None:
    plan = plan_for(50, (2, 2))
    assert choose(plan) == "whitened"
    assert choose(plan_for(100_000, (2, 2), **NUMBERS)) == "whitened"
    assert isinstance(find("whitened", plan, {}), ColumnsWhitened)
    with pytest.raises(InputError, match="2001 features"):
        plan_for(50, (2000, 1))
    with pytest.raises(InputError, match="two classes"):
        find("whitened", plan.changed_problem(classes=(0, 1, 2)), {})
    assert isinstance(find("whitened", plan.changed_problem(class_weight=(0.5, 1.0)), {}), ColumnsWhitened)


def test_slopes_of_numbers_are_widened_with_the_records() -> None:
    """Where bits cost more than the tolerance, rows are clipped less instead."""
    found = []
    for records in (2_000, 2_000_000):
        plan = plan_for(records, (2, 2), epsilon=20.0, **NUMBERS)
        white = replace(white_of(plan), units=Units.of(losses.get("squared"), losses.KnownLabels(0.1)))
        clips, _ = FORM.clips(plan, white)
        found.append(clips.slope)
    assert found[0] == pytest.approx(0.1, rel=1.0)
    assert found[1] == 1.0
