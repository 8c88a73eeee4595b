"""`cd`, `greedy-cd`: descent along single coordinates."""

from __future__ import annotations

from sottovoce.algorithms.base import Algorithm
from sottovoce.algorithms.cd.private import ExactCD, ExactGreedyCD, PrivateCD, PrivateGreedyCD, PublishedCD

FORMS: tuple[Algorithm, ...] = (PrivateCD(), ExactCD(), PublishedCD(), PrivateGreedyCD(), ExactGreedyCD())
