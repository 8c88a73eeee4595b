"""SGD2 as published: its noise and its steps, with the true epsilon."""

from __future__ import annotations

import math
from typing import ClassVar

from sottovoce.algorithms.gradient.private import GradientNumbers, PrivateGradient, rule
from sottovoce.plan.plan import Design, Plan
from sottovoce.plan.problem import Problem
from sottovoce.plan.release import Release, grid_step
from sottovoce.solvers import Gradient


class PublishedGradient(PrivateGradient):
    """std = Delta sqrt(2 ln(1.25 T / delta)) sqrt(T ln(1/delta)) / epsilon, steps 1/(alpha k): as printed."""

    form: ClassVar[str] = "published"
    title: ClassVar[str] = "SGD2 with its published noise"
    published: ClassVar[bool] = True

    def design(self, problem: Problem, options: Gradient) -> Design:
        query, step, rounds = rule(problem, options)
        share = math.sqrt(2 * math.log(1.25 * rounds / problem.delta)) * math.sqrt(rounds * math.log(1 / problem.delta))
        std = query.sensitivity(problem.relation) * share / problem.epsilon
        return Design(
            rounds=rounds,
            numbers=GradientNumbers(slope_bound=query.slope_bound, step=step),
            releases=(Release.of(query, 0, rounds, std, grid_step(query, std)),),
            claimed_epsilon=problem.epsilon,
        )

    def step(self, plan: Plan, t: int) -> float:
        """1 / (alpha t), where there is an alpha; the printed steps are for strongly convex problems."""
        decay = plan.scaled_regulariser.ridge
        return min(plan.numbers.step, 1 / (decay * (t + 1))) if decay else float(plan.numbers.step)
