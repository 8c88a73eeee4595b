"""The attack of `benchmarks/membership.py` finds members of a model without privacy, and not beyond the bound else.

60 models at each epsilon, 30 of them attacked; 120 people, so that a case takes seconds. `worst` is the largest of six
Student statistics with 29 degrees of freedom: above ALARM each has probability 6e-8 where the bound is just met, so a
false alarm has 4e-7 at most.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
ALARM = 7.0


@pytest.fixture(scope="module")
def membership() -> Any:
    spec = importlib.util.spec_from_file_location("membership", ROOT / "benchmarks" / "membership.py")
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def attacks(membership):
    return {epsilon: membership.attack(epsilon, 60, people=120, noise=150) for epsilon in (math.inf, 8.0, 1.0)}


def test_members_are_found_without_privacy(membership, attacks):
    found = attacks[math.inf]
    assert membership.area(found) > 0.75
    assert membership.true_positives(found, 0.01) > 0.1
    # It breaks what epsilon 1 would allow, so the check can fail.
    assert membership.worst(found, 1.0) > ALARM


@pytest.mark.parametrize("epsilon", [8.0, 1.0])
def test_no_attack_goes_beyond_the_bound(membership, attacks, epsilon):
    assert membership.worst(attacks[epsilon], epsilon) < ALARM
    assert membership.area(attacks[epsilon]) < membership.area(attacks[math.inf]) - 0.1


def test_coins_that_were_not_used_are_not_found(membership, attacks):
    found = attacks[math.inf]
    other = np.random.default_rng(9).random(found.members.shape) < 0.5
    guessed = membership.Attack(found.scores, other, 0.0)
    # 3,600 pairs: the standard error of the area is 0.0096, and 0.06 is six of them.
    assert abs(membership.area(guessed) - 0.5) < 0.06
    assert membership.worst(guessed, 1.0) < ALARM


def test_the_bound(membership):
    false = np.array([0.0, 0.1, 0.5, 1.0])
    assert membership.bound(false, 0.0) == pytest.approx(np.minimum(false + 1e-5, 1))
    assert membership.bound(false, 1.0)[1] == pytest.approx(math.e * 0.1 + 1e-5)
    assert membership.bound(false, 1.0)[2] == pytest.approx(1 - (0.5 - 1e-5) / math.e)
