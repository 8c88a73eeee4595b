"""Frank-Wolfe in one place as published, Talwar, Thakurta and Zhang (2015): its steps, its noise, the true epsilon."""

from __future__ import annotations

import math
from typing import ClassVar

from sottovoce.algorithms.base import MOST_ROUNDS, given, limited
from sottovoce.algorithms.frank_wolfe.atoms import BallNumbers, radius_of
from sottovoce.algorithms.frank_wolfe.central import AtomScores, Path, PrivateFrankWolfe
from sottovoce.plan.plan import Design, Numbers, Plan
from sottovoce.plan.problem import Problem
from sottovoce.plan.release import Mechanism, Release, grid_step
from sottovoce.solvers import FrankWolfe


class PublishedPath(Path):
    """(1 - a_t) w + a_t atom with a_t = 2 / (t + 2), and slopes cut to L at every point."""

    def step(self, t: int) -> float:
        return 2.0 / (t + 2.0)

    def move(self, code: int) -> tuple[float, list[tuple[int, float]]]:
        """From one atom to the next: all values shrink."""
        shrink, change = self.point.move(code, self.step(self.round))
        self.round += 1
        return shrink, [(abs(code) - 1, change)] if code else []

    def slope_bound(self, _norm: float) -> float:
        return float(self.plan.numbers.slope_bound)


class PublishedFrankWolfe(PrivateFrankWolfe):
    """The atom of the smallest <atom, gradient> + Laplace noise L radius sqrt(8 T log(1/delta)) / (n epsilon).

    L is the Lipschitz constant, T = (curvature n epsilon / (L radius))^(2/3), the curvature 4 radius^2 kappa of the
    ball.

    Guarantee: a noisy maximum is 2 Delta / scale-DP, so rho = T (2 Delta / scale)^2 / 2 (`proof.md`).
    """

    form: ClassVar[str] = "published"
    title: ClassVar[str] = "Frank-Wolfe on the l1 ball with its published noise"
    published: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...] | None] = ("rounds",)
    numbers: ClassVar[type[Numbers]] = BallNumbers  # L is the slope bound
    mechanism: ClassVar[Mechanism] = "noisy-max"

    def design(self, problem: Problem, options: FrankWolfe) -> Design:
        """The published noise, in the units of the scores, and the published rounds."""
        radius, loss = radius_of(problem), problem.scaled_loss
        lipschitz = loss.lipschitz() if loss.kind == "classification" else 1.0 + radius
        curvature = 4 * radius**2 * loss.curvature_bound
        printed = math.ceil((curvature * problem.records * problem.epsilon / (lipschitz * radius)) ** (2 / 3))
        rounds = limited("rounds", given(options.rounds, max(printed, 1)), 1, MOST_ROUNDS)
        query = AtomScores(problem)
        scale = math.sqrt(8 * rounds * math.log(1 / problem.delta)) / problem.epsilon
        return Design(
            rounds=rounds,
            numbers=BallNumbers(radius=radius, slope_bound=lipschitz),
            releases=(Release.of(query, 0, rounds, scale, grid_step(query, scale), mechanism=self.mechanism),),
            claimed_epsilon=problem.epsilon,
        )

    def path(self, plan: Plan) -> Path:
        return PublishedPath(plan)
