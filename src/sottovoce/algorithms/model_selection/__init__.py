"""Which of several public models has the least loss. A run that fits nothing: no `solver=` names it."""

from __future__ import annotations

from sottovoce.algorithms.base import Algorithm
from sottovoce.algorithms.model_selection.private import Candidates, ComparedLosses

__all__ = ["FORMS", "Candidates", "ComparedLosses"]

FORMS: tuple[Algorithm, ...] = (ComparedLosses(),)
