"""`scd`, `scd-sequential`, `scd-primal`: stochastic dual coordinate descent."""

from __future__ import annotations

from sottovoce.algorithms.base import Algorithm
from sottovoce.algorithms.scd.exact import ExactSCD, ExactSequentialSCD
from sottovoce.algorithms.scd.primal import PrivatePrimalSCD
from sottovoce.algorithms.scd.private import PrivateSCD
from sottovoce.algorithms.scd.published import PublishedSCD
from sottovoce.algorithms.scd.sequential import PrivateSequentialSCD

FORMS: tuple[Algorithm, ...] = (
    PrivateSCD(),
    ExactSCD(),
    PublishedSCD(),
    PrivatePrimalSCD(),
    PrivateSequentialSCD(),
    ExactSequentialSCD(),
)
