"""The inverse of a simulation: the least epsilon for what is asked, and that there may be none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import sottovoce as sv
from sottovoce.errors import InputError
from sottovoce.lab import needed_epsilon
from sottovoce.lab.needed_epsilon import LEAST, MOST, find_epsilon
from sottovoce.lab.simulation import SimulatedFits, simulated_fits


def logistic() -> sv.PrivateLogisticRegression:
    return sv.PrivateLogisticRegression(entry_bound=1.0, delta=1e-6, classes=(0, 1))


def found_by(monkeypatch: pytest.MonkeyPatch, law: Callable[[float], float], asked: float) -> Any:
    """What is found where the metric follows a law of epsilon, and at which budgets it was looked."""
    looked: list[float] = []
    monkeypatch.setattr(SimulatedFits, "scores_at", lambda _, epsilon: [{"accuracy": law(epsilon)}] * 2)
    work = simulated_fits(logistic(), 1000, 4, runs=2)
    return find_epsilon(work, "accuracy", asked, looked.append), looked


@pytest.mark.parametrize("threshold", [0.011, 0.05, 0.3, 0.99, 1.0, 1.5, 7.0, 30.0, 95.0])
def test_the_least_is_found_with_few_looks(monkeypatch: pytest.MonkeyPatch, threshold: float) -> None:
    found, looked = found_by(monkeypatch, lambda epsilon: 0.9 - 0.1 * threshold / (epsilon + threshold), 0.85)
    assert threshold <= found.epsilon <= 1.16 * threshold  # two digits, and a tenth
    assert len(looked) == len(set(looked)) <= 10
    assert found.simulation.epsilon == tuple(sorted(looked))
    assert min(looked) < threshold or threshold <= 1.16 * LEAST
    assert f"epsilon = {found.epsilon:g}" in found.sentence()


def test_where_nothing_or_everything_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    never, looked = found_by(monkeypatch, lambda epsilon: 0.8, 0.85)
    assert (float(never), never.reached, looked) == (math.inf, False, [1.0])
    assert "without privacy it is 0.8, which is the limit" in never.sentence()
    assert never.to_dict()["epsilon"] is None
    late, looked = found_by(monkeypatch, lambda epsilon: 0.9 if epsilon > MOST else 0.8, 0.85)
    assert late.epsilon == math.inf
    assert "no epsilon up to 100" in late.sentence()
    always, looked = found_by(monkeypatch, lambda epsilon: 0.9, 0.85)
    assert always.epsilon == LEAST
    assert "0.01 or less" in always.sentence()


def test_a_loss_is_to_be_small() -> None:
    assert needed_epsilon.reaches("log_loss", 0.4, 0.5)
    assert not needed_epsilon.reaches("log_loss", 0.6, 0.5)
    assert needed_epsilon.reaches("r2", 0.6, 0.5)


def test_simulated_fits_are_those_of_a_simulation() -> None:
    found = sv.epsilon_for(logistic(), 3000, 4, accuracy=0.75, runs=2, seed=3)
    again = sv.simulate(logistic(), 3000, 4, epsilon=found.simulation.epsilon, runs=2, seed=3)
    assert again.metrics["accuracy"].tolist() == found.simulation.metrics["accuracy"].tolist()
    assert again.plain["accuracy"].mean() == found.limit
    column = found.simulation.epsilon.index(found.epsilon)
    means = found.simulation.metrics["accuracy"].mean(axis=0)
    assert means[column] >= 0.75
    assert (means[:column] < 0.75).all()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "give one number to reach"),
        ({"accuracy": 0.8, "r2": 0.5}, "give one number to reach"),
        ({"accuracy": math.nan}, "give one number to reach"),
        ({"accuracy": 0.8, "epsilon": 1.0}, "is what is looked for"),
        ({"r2": 0.5, "runs": 1}, "measured by accuracy, log_loss"),
        ({"accuracy": 0.8, "runs": 0}, "runs=0 must be"),
    ],
)
def test_what_cannot_be_asked(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        sv.epsilon_for(logistic(), 500, 3, **asked)
