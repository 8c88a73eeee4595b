"""Standard errors of coefficients, bought after a fit. A run that fits nothing: no `solver=` names it."""

from __future__ import annotations

from sottovoce.algorithms.base import Algorithm
from sottovoce.algorithms.standard_errors.private import PrivateStandardErrors

FORMS: tuple[Algorithm, ...] = (PrivateStandardErrors(),)
