"""`gradient`: noisy gradient sums."""

from __future__ import annotations

from sottovoce.algorithms.base import Algorithm
from sottovoce.algorithms.gradient.classes import ExactGradientClasses, GradientClasses
from sottovoce.algorithms.gradient.exact import ExactGradient
from sottovoce.algorithms.gradient.private import PrivateGradient
from sottovoce.algorithms.gradient.published import PublishedGradient

FORMS: tuple[Algorithm, ...] = (
    PrivateGradient(),
    ExactGradient(),
    PublishedGradient(),
    GradientClasses(),
    ExactGradientClasses(),
)
