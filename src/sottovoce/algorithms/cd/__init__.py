"""`cd`, `greedy-cd`: descent along single coordinates."""

from __future__ import annotations

from sottovoce.algorithms.base import Algorithm
from sottovoce.algorithms.cd.greedy import PrivateGreedyCD
from sottovoce.algorithms.cd.private import ExactCD, ExactGreedyCD, PrivateCD, PublishedCD

FORMS: tuple[Algorithm, ...] = (PrivateCD(), ExactCD(), PublishedCD(), PrivateGreedyCD(), ExactGreedyCD())
