"""`frank-wolfe`: one signed feature a round, on the l1 ball."""

from __future__ import annotations

from sottovoce.algorithms.base import Algorithm
from sottovoce.algorithms.frank_wolfe.central import PrivateFrankWolfe, PublishedFrankWolfe
from sottovoce.algorithms.frank_wolfe.columns import PrivateColumnFrankWolfe
from sottovoce.algorithms.frank_wolfe.exact import DistributedFrankWolfe, ExactFrankWolfe, PublishedColumnFrankWolfe

FORMS: tuple[Algorithm, ...] = (
    PrivateFrankWolfe(),
    PublishedFrankWolfe(),
    PrivateColumnFrankWolfe(),
    PublishedColumnFrankWolfe(),
    DistributedFrankWolfe(),
    ExactFrankWolfe(),
)
