"""`sgd`: gradients of secret samples."""

from __future__ import annotations

from sottovoce.algorithms.base import Algorithm
from sottovoce.algorithms.sgd.private import PrivateSGD
from sottovoce.algorithms.sgd.published import PublishedSGD

FORMS: tuple[Algorithm, ...] = (PrivateSGD(), PublishedSGD())
