"""How good a model is, told privately. A run that fits nothing: no `solver=` names it."""

from __future__ import annotations

from sottovoce.algorithms.base import Algorithm
from sottovoce.algorithms.evaluation.private import (
    Evaluated,
    EvaluatedClasses,
    EvaluatedNumbers,
    EvaluatedSeveral,
    People,
    Subject,
    score_recipe,
    score_weights,
    total_noise,
)

__all__ = [
    "FORMS",
    "Evaluated",
    "EvaluatedClasses",
    "EvaluatedNumbers",
    "EvaluatedSeveral",
    "People",
    "Subject",
    "score_recipe",
    "score_weights",
    "total_noise",
]

FORMS: tuple[Algorithm, ...] = (EvaluatedClasses(), EvaluatedSeveral(), EvaluatedNumbers())
