"""How good a model is, told privately. A run that fits nothing: no `solver=` names it."""

from __future__ import annotations

from sottovoce.algorithms.base import Algorithm
from sottovoce.algorithms.evaluation.private import EvaluatedClasses, EvaluatedNumbers, EvaluatedSeveral

FORMS: tuple[Algorithm, ...] = (EvaluatedClasses(), EvaluatedSeveral(), EvaluatedNumbers())
