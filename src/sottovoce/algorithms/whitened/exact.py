"""What is left of `whitened` without noise: Newton's method."""

from __future__ import annotations

from typing import ClassVar

from sottovoce.algorithms.newton.exact import ExactNewton


class ExactWhitened(ExactNewton):
    """Newton's method with step halving: whitening changes nothing where nothing is noisy."""

    name: ClassVar[str] = "whitened"
