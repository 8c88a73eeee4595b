"""How good a model is, told privately. A run that fits nothing: no `solver=` names it."""

from __future__ import annotations

from sottovoce.algorithms.base import Algorithm
from sottovoce.algorithms.evaluation.private import (
    WIDE,
    Evaluated,
    EvaluatedClasses,
    EvaluatedNumbers,
    EvaluatedSeveral,
    People,
    Subject,
)

__all__ = [
    "FORMS",
    "WIDE",
    "Evaluated",
    "EvaluatedClasses",
    "EvaluatedNumbers",
    "EvaluatedSeveral",
    "People",
    "Subject",
]

FORMS: tuple[Algorithm, ...] = (EvaluatedClasses(), EvaluatedSeveral(), EvaluatedNumbers())
