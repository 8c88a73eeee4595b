"""Which module has the forms of a solver. It is imported when a fit or a plan names the solver, and not before."""

from __future__ import annotations

import importlib
from types import ModuleType

FAMILIES: dict[str, str] = {
    name: f"sottovoce.algorithms.{folder}"
    for name, folder in {
        "newton": "newton",
        "gradient": "gradient",
        "sgd": "sgd",
        "whitened": "whitened",
        "scd": "scd",
        "scd-primal": "scd",
        "scd-sequential": "scd",
        "cd": "cd",
        "greedy-cd": "cd",
        "frank-wolfe": "frank_wolfe",
        "one-shot": "one_shot",
        "admm": "sharing",
        "fdml": "sharing",
        "score": "score",
    }.items()
}

# Runs that fit nothing. No `solver=` names them; a plan does, as it names a solver.
OTHERS: dict[str, str] = {
    "evaluation": "sottovoce.algorithms.evaluation",
    "ranges": "sottovoce.algorithms.ranges",
    "model-selection": "sottovoce.algorithms.model_selection",
    "standard-errors": "sottovoce.algorithms.standard_errors",
}


def family(solver: str) -> ModuleType | None:
    """The module, or None for a name that a plan may not have."""
    module = FAMILIES.get(solver, OTHERS.get(solver))
    return None if module is None else importlib.import_module(module)
