"""DP-CD as published: its noise, with the true epsilon."""

from __future__ import annotations

import math
from typing import ClassVar

from sottovoce.algorithms.base import given
from sottovoce.algorithms.cd.private import PrivateCD
from sottovoce.algorithms.cd.walk import CoordinateWalk
from sottovoce.plan.plan import Design
from sottovoce.plan.problem import Problem
from sottovoce.plan.release import Release, grid_step
from sottovoce.solvers import CD


class PublishedCD(PrivateCD):
    """sigma^2 = 8 T log(1/delta) / epsilon^2, T read as all steps or (`counted`) as the outer loops alone.

    It counts no curvatures: a share for them is charged on top.
    """

    form: ClassVar[str] = "published"
    title: ClassVar[str] = "DP-CD with its published noise"
    published: ClassVar[bool] = True
    curvature_share: ClassVar[float] = 0.0

    def design(self, problem: Problem, options: CD) -> Design:
        """The published noise; all else as in the private form."""
        design = super().design(problem, options)
        *estimate, release = design.releases
        walk = CoordinateWalk(problem.dimension, design.numbers.stride)
        steps = design.rounds * (design.numbers.inner if given(options.counted, "all") == "all" else 1)
        std = math.sqrt(8 * steps * math.log(1 / problem.delta)) / problem.epsilon
        published = Release.of(walk, release.first, release.count, std, grid_step(walk, std))
        return design.changed(releases=(*estimate, published), claimed_epsilon=problem.epsilon)
