"""`newton`: gradients in the metric of a Gram matrix."""

from __future__ import annotations

from sottovoce.algorithms.base import Algorithm
from sottovoce.algorithms.newton.exact import ExactNewton
from sottovoce.algorithms.newton.private import PrivateNewton

FORMS: tuple[Algorithm, ...] = (PrivateNewton(), ExactNewton())
