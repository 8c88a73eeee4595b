"""`scd`, `scd-sequential`, `scd-primal`: stochastic dual coordinate descent."""

from __future__ import annotations

from sottovoce.algorithms.base import Algorithm
from sottovoce.algorithms.scd.primal import PrivatePrimalSCD, PublishedPrimalSCD
from sottovoce.algorithms.scd.private import ExactSCD, ExactSequentialSCD, PrivateSCD, PrivateSequentialSCD
from sottovoce.algorithms.scd.published import PublishedSCD, PublishedSequentialSCD

FORMS: tuple[Algorithm, ...] = (
    PrivateSCD(),
    ExactSCD(),
    PublishedSCD(),
    PrivatePrimalSCD(),
    PublishedPrimalSCD(),
    PrivateSequentialSCD(),
    PublishedSequentialSCD(),
    ExactSequentialSCD(),
)
