from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sottovoce import algorithms
from sottovoce.algorithms import Problem, make_plan
from sottovoce.data.bounds import Bounds
from sottovoce.protocol.plan import Named, Plan


@pytest.fixture(scope="session")
def plan_of() -> Callable[..., Plan]:
    """A function that makes the plan of a small classification, or of what its arguments say instead."""

    def make(algorithm: str = "gradient", *, run: str = "run", coin: str = "coin", **fields: Any) -> Plan:
        options = fields.pop("options", {"rounds": 5})
        declared: dict[str, Any] = {
            "loss": Named(name="logistic"),
            "regulariser": Named(name="none"),
            "split": "rows",
            "parties": (("anna", 40), ("ben", 60)),
            "features": 3,
            "bounds": Bounds.declare(row_norm=1.0),
            "epsilon": 1.0,
            "delta": 1e-5,
            "classes": (0, 1),
        }
        problem = Problem(**declared | fields, options=options)
        return make_plan(algorithm, problem, algorithms.REGISTRY[algorithm].design(problem), run=run, coin=coin)

    return make
