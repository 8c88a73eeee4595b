"""`one-shot`: one noisy sketched row of everybody."""

from __future__ import annotations

from sottovoce.algorithms.base import Algorithm
from sottovoce.algorithms.one_shot.private import PrivateOneShot

FORMS: tuple[Algorithm, ...] = (PrivateOneShot(),)
