"""`gradient` for several classes: the gradient is a matrix, with a column for each class."""

from __future__ import annotations

from typing import ClassVar

from sottovoce.algorithms.base import check_penalty
from sottovoce.algorithms.gradient.exact import ExactGradient, ExactNumbers
from sottovoce.algorithms.gradient.private import GradientNumbers, PrivateGradient
from sottovoce.plan.plan import Design
from sottovoce.plan.problem import Problem
from sottovoce.solvers import Gradient


class ClassesNumbers(GradientNumbers, solver="gradient", form="classes"):
    """As of two classes; G bounds a row of slopes."""


class ExactClassesNumbers(ExactNumbers, solver="gradient", form="exact-classes"):
    """As of two classes."""


class _Several(PrivateGradient):
    """By the rule of two classes, each class's weights for themselves."""

    several: ClassVar[bool] = True

    def design(self, problem: Problem, options: Gradient) -> Design:
        """That of two classes, if the penalty is a sum over the classes."""
        check_penalty(problem)
        return super().design(problem, options)


class GradientClasses(_Several):
    """The same with a matrix W; a term x l'(x'W, y) of the sum is as long as the product of the two.

    Guarantee: as of two classes, with G the bound of a row of slopes (`proof.md`).
    """

    form: ClassVar[str] = "classes"
    title: ClassVar[str] = "gradient descent for several classes"
    numbers: ClassVar[type[GradientNumbers]] = ClassesNumbers


class ExactGradientClasses(_Several, ExactGradient):
    """The same with a matrix W."""

    form: ClassVar[str] = "exact-classes"
    title: ClassVar[str] = "accelerated gradient descent for several classes, without privacy"
    numbers: ClassVar[type[GradientNumbers]] = ExactClassesNumbers
