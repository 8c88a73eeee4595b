"""Private ADMM sharing as published (Hu et al. 2019): noise in the span of a party's columns. It protects nobody."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Design, Problem, draft, option
from sottovoce.algorithms.sharing.admm_exact import ExactSharing, Scores
from sottovoce.algorithms.sharing.updates import square_of
from sottovoce.data.block import Block
from sottovoce.door.gate import Gate, Released
from sottovoce.door.query import Query, Walk
from sottovoce.errors import InputError
from sottovoce.plan.plan import Part, Plan
from sottovoce.privacy.accounting import Event, Relation, Unbounded
from sottovoce.privacy.mechanisms import rounded_gaussian

Array = NDArray[np.float64]

ROUNDS = 50
FINE = 2.0**20  # in units of which normal numbers are drawn


class PublishedSharing(ExactSharing):
    """x_m <- argmin + xi, xi ~ N(0, s_m^2 (D_m'D_m)^-1); everything that follows uses D_m (x_m + xi).

    s_m = sqrt(2 ln(1.25 / delta_0)) C_m / epsilon_0 with C_m = 3 / (d_m rho) (lambda + (1 + M rho)): their Lemma 1 with
    the two bounds that it takes for granted set to 1. (epsilon_0, delta_0) is claimed for each round, and by their
    Corollary 1 sqrt(2 T ln(1 / delta')) epsilon_0 + T epsilon_0 (e^epsilon_0 - 1) for T rounds, at delta = T delta_0 +
    delta', halves of the plan's delta. epsilon_0 is chosen so that this is the plan's epsilon.

    Guarantee: none; epsilon is infinite at any noise. D_m xi lies in the span of D_m's columns, and so does the
    message: two data sets with other spans cannot give the same one, d_m messages reveal the span, and the dual that
    the holder of the labels tells has their signs (`proof.md`).
    """

    title: ClassVar[str] = "private ADMM sharing as published; its true epsilon is infinite"
    has_paper: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...]] = ("rounds", "rho")

    def design(self, problem: Problem) -> Design:
        """The published update and noise."""
        if problem.labels == "held":
            raise InputError(
                "labels='held': the published form tells every party the dual, whose sign is the label; take "
                "calibration='tight', or labels='shared' if all parties may know them."
            )
        rounds = option(problem, "rounds", ROUNDS, low=1, whole=True)
        fixed = {"rounds": rounds, "rho": option(problem, "rho", 1.0, low=1e-9, high=1e9)}
        fixed |= {"proximal": 0.0, "relaxation": 1.0, "tolerance": 0.0}
        design = super().design(replace(problem, options=fixed))
        ridge = draft(problem, layout="entries").scaled_regulariser.ridge or 0.0
        each = per_round(problem.epsilon, problem.delta / 2, rounds)
        width = math.sqrt(2 * math.log(1.25 * 2 * rounds / problem.delta)) / each
        strength = problem.records * ridge / 2 + (1 + len(problem.parties) * fixed["rho"])
        noise = tuple(width * 3 * strength / (columns * fixed["rho"]) for columns in problem.columns)
        return replace(design, vectors={"noise": noise}, claimed_epsilon=problem.epsilon)

    def queries_of(self, plan: Plan, party: str) -> Mapping[str, Query | Walk]:
        """Scores carry the noise."""
        place = [name for name, _ in plan.parties].index(party)
        scores = NoisyScores(plan, plan.part(party), plan.vector_of["noise"][place])
        return {**super().queries_of(plan, party), "scores": scores}

    def answer(
        self,
        plan: Plan,
        query: Any,
        block: Block,
        gate: Gate,
        round_: int,
        arrays: Mapping[str, NDArray[Any]],
        memory: Any,
    ) -> Released:
        """Plain values, of weights with noise."""
        del plan
        drawn = (gate.randomness,) if query.name == "scores" else ()
        return gate.gaussian(query, round_, block, arrays, memory, *drawn)

    def events(self, plan: Plan, relation: Relation, party: str) -> tuple[Event, ...]:  # noqa: ARG002
        """Nothing limits what the messages reveal."""
        return (Unbounded(reason="the noise lies in the span of the party's columns, which it reveals"),)

    def world_events(self, plan: Plan, relation: Relation) -> tuple[Event, ...]:
        """The covariance of the model's noise is the data's: one record may change it without limit."""
        return self.events(plan, relation, plan.parties[0][0])


class NoisyScores(Scores):
    """D_m (x_m + xi)."""

    def __init__(self, plan: Plan, part: Part, noise: float) -> None:
        super().__init__(plan, part)
        self.noise = noise
        self.root: Array | None = None  # of the inverse of D'D

    def value(self, block: Block, *arguments: Any) -> Array:
        """Draw xi = s V e^-1/2 g for D'D = V diag(e) V' and standard normal g, where e is not 0."""
        arrays, state, randomness = arguments
        super().value(block, arrays, state)
        if self.root is None:
            values, vectors = np.linalg.eigh(square_of(block.rows))
            bent = values > 1e-10 * values[-1]
            self.root = vectors[:, bent] / np.sqrt(values[bent])
        drawn = rounded_gaussian(FINE, self.root.shape[1], randomness) / FINE
        state.weights = state.weights + self.noise * (self.root @ drawn)
        return np.asarray(state.rows @ state.weights)


def per_round(epsilon: float, delta: float, rounds: int) -> float:
    """epsilon_0 of their Corollary 1: sqrt(2 T ln(1 / delta)) epsilon_0 + T epsilon_0 (e^epsilon_0 - 1) = epsilon."""
    if not (math.isfinite(epsilon) and 0 < delta < 1):
        raise InputError(f"epsilon={epsilon!r}: calibration='paper' needs a finite epsilon, such as 1.0.")
    low, high = 0.0, 700.0
    for _ in range(200):
        middle = (low + high) / 2
        total = math.sqrt(2 * rounds * math.log(1 / delta)) * middle + rounds * middle * math.expm1(middle)
        low, high = (middle, high) if total <= epsilon else (low, middle)
    return low
