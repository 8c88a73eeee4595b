"""Solvers: a folder for each family, a file for each form, the proof beside them."""

from __future__ import annotations

from sottovoce.algorithms.base import Algorithm, Ask, Solution
from sottovoce.algorithms.registry import (
    FORMS,
    SOLVERS,
    check,
    choose,
    epsilons,
    find,
    forms,
    kinds,
    make_plan,
    mismatch,
    missed,
    of,
    titles,
)

__all__ = [
    "FORMS",
    "SOLVERS",
    "Algorithm",
    "Ask",
    "Solution",
    "check",
    "choose",
    "epsilons",
    "find",
    "forms",
    "kinds",
    "make_plan",
    "mismatch",
    "missed",
    "of",
    "titles",
]
