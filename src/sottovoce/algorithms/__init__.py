"""Solvers: a folder for each family, a file for each form, the proof beside them."""

from __future__ import annotations

from sottovoce.algorithms.base import Algorithm, Ask, Solution
from sottovoce.algorithms.registry import (
    SOLVERS,
    check,
    choose,
    epsilons,
    every_form,
    find,
    form_of,
    forms,
    kinds,
    make_plan,
    mismatch,
    missed,
    of,
    plan_by,
    pooled,
    served,
    serves,
    titles,
)

__all__ = [
    "SOLVERS",
    "Algorithm",
    "Ask",
    "Solution",
    "check",
    "choose",
    "epsilons",
    "every_form",
    "find",
    "form_of",
    "forms",
    "kinds",
    "make_plan",
    "mismatch",
    "missed",
    "of",
    "plan_by",
    "pooled",
    "served",
    "serves",
    "titles",
]
