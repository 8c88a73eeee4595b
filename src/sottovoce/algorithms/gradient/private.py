"""`gradient`: every party's clipped gradient sum with noise, each round (SGD2 of the multi-party SGD paper)."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from sottovoce.algorithms.base import (
    WALK,
    Algorithm,
    Ask,
    Coordination,
    Design,
    Problem,
    TailAverage,
    gradient_query,
    option,
    public_gradient,
)
from sottovoce.door.query import Query
from sottovoce.plan.plan import Plan, Release, grid_step


class Gradient(Algorithm):
    """w <- prox(w - step/N sum_m G_m, step), G_m = sum_i clip(l'_i) x_i + N(0, std^2).

    Guarantee: mu^2 = rounds (Delta / std)^2, exactly (`proof.md`). The noise of the average gradient does
    not depend on the number of rounds. Edges: a null row adds 0; every round is answered.
    """

    name: ClassVar[str] = "gradient"
    title: ClassVar[str] = "gradient descent with noisy gradient sums (SGD2)"
    has_paper: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...]] = ("rounds", "step", "slope_bound")

    def design(self, problem: Problem) -> Design:
        """As many rounds, up to 1000, as keep the noise's random walk below WALK; step 1 / curvature."""
        query = public_gradient(problem)
        curvature = query.loss.curvature_bound
        step = option(problem, "step", 1 / curvature if math.isfinite(curvature) else 1.0, low=1e-12)
        if math.isinf(problem.epsilon):
            rounds = option(problem, "rounds", 1000, low=1, whole=True)
        else:
            walk = step * query.slope_bound * math.sqrt(len(problem.parties) * problem.dimension) / problem.mu
            most = min(1000, max(10, round(WALK * problem.records / walk)))
            rounds = option(problem, "rounds", most, low=1, whole=True)
        numbers = {"slope_bound": query.slope_bound, "step": step}
        if problem.calibration == "paper":
            return self._paper(problem, query, rounds, numbers)
        release = Release.at_mu(query, 0, rounds, problem.mu, problem.relation)
        return Design(rounds, numbers, (release,))

    def _paper(self, problem: Problem, query: Query, rounds: int, numbers: dict[str, float]) -> Design:
        """As printed: std = Delta sqrt(2 ln(1.25 T / delta)) sqrt(T ln(1/delta)) / epsilon, steps 1/(alpha k)."""
        share = math.sqrt(2 * math.log(1.25 * rounds / problem.delta)) * math.sqrt(rounds * math.log(1 / problem.delta))
        std = query.sensitivity(problem.relation) * share / problem.epsilon
        release = Release.of(query, 0, rounds, std, grid_step(query, std))
        return Design(rounds, numbers, (release,), claimed_epsilon=problem.epsilon)

    def queries(self, plan: Plan) -> dict[str, Query]:
        """The gradient sum."""
        return {"gradient": gradient_query(plan)}

    def coordinate(self, plan: Plan) -> Coordination:
        """Descend; return the mean of the second half of the iterates."""
        regulariser = plan.scaled_regulariser
        decay = regulariser.ridge if plan.calibration == "paper" else None
        weights = np.zeros(plan.dimension)
        tail = TailAverage(plan.dimension, plan.rounds // 2 if plan.private else plan.rounds - 1)
        for t in range(plan.rounds):
            gradients = yield Ask("gradient", {"weights": weights})
            step = min(plan["step"], 1 / (decay * (t + 1))) if decay else plan["step"]
            weights = regulariser.prox(weights - step / plan.records * sum(gradients.values()), step)
            tail.add(t, weights)
        return tail.value
