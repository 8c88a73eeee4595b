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


def family(solver: str) -> ModuleType | None:
    """The module, or None for a name that no solver has."""
    return importlib.import_module(FAMILIES[solver]) if solver in FAMILIES else None
