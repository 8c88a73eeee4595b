"""`score`: one noisy score of everybody, once."""

from __future__ import annotations

from sottovoce.algorithms.base import Algorithm
from sottovoce.algorithms.score.private import PrivateScore

FORMS: tuple[Algorithm, ...] = (PrivateScore(),)
