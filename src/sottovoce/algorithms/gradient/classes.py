"""`gradient` for several classes: the gradient is a matrix, with a column for each class."""

from __future__ import annotations

from typing import ClassVar

from sottovoce.algorithms.gradient.exact import ExactGradient
from sottovoce.algorithms.gradient.private import PrivateGradient


class GradientClasses(PrivateGradient):
    """The same with a matrix W; a term x l'(x'W, y) of the sum is as long as the product of the two.

    Guarantee: as of two classes, with G the bound of a row of slopes (`proof.md`).
    """

    form: ClassVar[str] = "classes"
    title: ClassVar[str] = "gradient descent for several classes"
    several: ClassVar[bool] = True
    sealed = ("rows",)


class ExactGradientClasses(ExactGradient):
    """The same with a matrix W."""

    form: ClassVar[str] = "exact-classes"
    title: ClassVar[str] = "accelerated gradient descent for several classes, without privacy"
    several: ClassVar[bool] = True
