"""What a plan says it will take is what the run takes, for every solver."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce import algorithms, losses
from sottovoce.costs import Cost, cost_of
from sottovoce.protocol.plan import Split

RUNS: dict[str, list[dict[str, Any]]] = {
    "newton": [{"rounds": 4}],
    "gradient": [{"rounds": 4}, {"rounds": 4, "calibration": "paper"}],
    "sgd": [
        {"rounds": 5, "rate": 0.3},
        {"rounds": 5, "rate": 0.3, "schedule": "one-party"},
        {"rounds": 5, "calibration": "paper"},
    ],
    "scd": [{"rounds": 5, "alpha": 0.01}, {"rounds": 5, "alpha": 0.01, "calibration": "paper"}],
    "scd-sequential": [{"rounds": 2, "lot": 7, "alpha": 0.01}],
    "scd-primal": [{"rounds": 5}, {"rounds": 5, "lot": 3}],
    "cd": [
        {"inner": 12},
        {"inner": 10},
        {"inner": 8, "rounds": 3},
        {"inner": 12, "curvatures": [0.1, 0.2, 0.3]},
        {"inner": 12, "curvature_share": 0.0},
        {"inner": 12, "calibration": "paper"},
    ],
    "greedy-cd": [{"rounds": 5}, {"rounds": 5, "curvature_share": 0.0}],
}
CASES = [(name, number, split) for name, runs in RUNS.items() for number in range(len(runs)) for split in (1, 3)]


def people(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-0.5, 0.5, (count, 3))
    return X, np.where(X @ [2.0, -1.0, 0.5] > 0, 1, 0)


def test_every_solver_is_here() -> None:
    assert set(RUNS) == set(algorithms.REGISTRY)


@pytest.mark.parametrize(("name", "number", "parties"), CASES)
def test_bytes_and_rounds_are_told_exactly(name: str, number: int, parties: int) -> None:
    options = {"epsilon": 1.0, "row_norm": 1.0, "classes": (0, 1), "insecure_seed": 3} | RUNS[name][number]
    model = sv.PrivateLogisticRegression(solver=name, **options)
    split: Split = "central" if parties == 1 else "rows"
    algorithm = algorithms.REGISTRY[name]
    if algorithm.mismatch(losses.get("logistic"), split) is not None:
        pytest.skip("the solver does not serve this split")
    parts = [people(40 + 7 * part, part) for part in range(parties)]
    federation = sv.Federation.central(*parts[0]) if parties == 1 else sv.Federation.by_rows(parts)
    told = cost_of(model.plan(federation), algorithm)
    fitted = model.fit(federation)
    done = fitted.communication_
    assert cost_of(fitted.plan_, algorithm).uplink_bytes == done.uplink_bytes
    assert cost_of(fitted.plan_, algorithm).downlink_bytes == done.downlink_bytes
    assert (told.uplink_bytes, told.downlink_bytes, told.rounds) == (
        done.uplink_bytes,
        done.downlink_bytes,
        done.rounds,
    )
    assert told.seconds is not None
    assert told.seconds > 0


@pytest.mark.parametrize("name", RUNS)
def test_without_privacy_nothing_is_foretold(name: str) -> None:
    options = {"epsilon": math.inf, "classes": (0, 1), "alpha": 0.1, "row_norm": 1.0}
    plan = sv.PrivateLogisticRegression(solver=name, **options).plan(sv.Federation.central(*people(40, 0)))
    assert cost_of(plan, algorithms.REGISTRY[name]) == Cost(None, None, None, None)
