"""`gradient`: noisy gradient sums."""

from __future__ import annotations

from sottovoce.algorithms.base import Algorithm
from sottovoce.algorithms.gradient.exact import ExactGradient, ExactGradientClasses
from sottovoce.algorithms.gradient.private import GradientClasses, PrivateGradient, PublishedGradient

FORMS: tuple[Algorithm, ...] = (
    PrivateGradient(),
    ExactGradient(),
    PublishedGradient(),
    GradientClasses(),
    ExactGradientClasses(),
)
