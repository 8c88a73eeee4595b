"""`admm` as published (Hu et al. 2019): noise in the span of a party's columns. It protects nobody."""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

import numpy as np

from sottovoce.algorithms.base import Array, given
from sottovoce.algorithms.sharing.admm_exact import ADMMNumbers, ADMMState, ExactADMM, WeightUpdate, admm_design
from sottovoce.algorithms.sharing.updates import check_one_set, check_rho, square_of
from sottovoce.errors import InputError
from sottovoce.gate.query import Query, Round
from sottovoce.plan import Design, Numbers, Plan, Problem
from sottovoce.privacy.events import Event, Unbounded
from sottovoce.privacy.mechanisms import rounded_gaussian
from sottovoce.queries.pricing import Pricing
from sottovoce.solvers import ADMM

ROUNDS = 50
FINE = 2.0**20  # in units of which normal numbers are drawn


class PublishedADMMNumbers(ADMMNumbers):
    """And s_m of each party."""

    noise: tuple[float, ...]


class NoLimit(Pricing):
    """Nothing limits what a record pays, against the world and against everybody else."""

    def __init__(self, reason: str) -> None:
        self.price: tuple[Event, ...] = (Unbounded(reason=reason),)

    def events(self, *_: Any) -> tuple[Event, ...]:
        return self.price

    def world_events(self, *_: Any) -> tuple[Event, ...]:
        """Against whoever sees the model; as published, a record may change its noise's covariance without limit."""
        return self.price


class SpanState(ADMMState):
    """And what the noise of a party is made with."""

    @functools.cached_property
    def root(self) -> Array:
        """V e^-1/2 of D'D = V diag(e) V', where e is not 0."""
        values, vectors = np.linalg.eigh(square_of(self.products))
        curved = values > 1e-10 * values[-1]
        return np.asarray(vectors[:, curved] / np.sqrt(values[curved]))


class PublishedADMM(ExactADMM):
    """x_m <- argmin + xi, xi ~ N(0, s_m^2 (D_m'D_m)^-1); everything that follows uses D_m (x_m + xi).

    s_m = sqrt(2 ln(1.25 / delta_0)) C_m / epsilon_0 with C_m = 3 / (d_m rho) (lambda + (1 + M rho)): their Lemma 1 with
    the two bounds that it takes for granted set to 1. (epsilon_0, delta_0) is claimed for each round, and by their
    Corollary 1 sqrt(2 T ln(1 / delta')) epsilon_0 + T epsilon_0 (e^epsilon_0 - 1) for T rounds, at delta = T delta_0 +
    delta', halves of the plan's delta. epsilon_0 is chosen so that this is the plan's epsilon.

    Guarantee: none; epsilon is infinite at any noise. D_m xi lies in the span of D_m's columns, and so does the
    message: two data sets with other spans cannot give the same one, d_m messages reveal the span, and the dual that
    the party with the labels tells has their signs (`proof.md`).
    """

    form: ClassVar[str] = "published"
    title: ClassVar[str] = "private ADMM sharing as published; its true epsilon is infinite"
    private: ClassVar[bool | None] = True
    published: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...] | None] = ("rounds", "rho")
    numbers: ClassVar[type[Numbers]] = PublishedADMMNumbers
    state: ClassVar[type[ADMMState]] = SpanState
    pricing: ClassVar[Pricing] = NoLimit("the noise lies in the span of the party's columns, which it reveals")

    def design(self, problem: Problem, options: ADMM) -> Design:
        if problem.labels == "held":
            raise InputError(
                "labels='held': the published form tells every party the dual, whose sign is the label; take "
                "calibration='tight', or labels='shared' if all parties may know them."
            )
        check_one_set(problem, self.name)
        rounds, rho = given(options.rounds, ROUNDS), given(options.rho, 1.0)
        check_rho(problem.scaled_loss, rho)
        each = per_round(problem.epsilon, problem.delta / 2, rounds)
        width = math.sqrt(2 * math.log(1.25 * 2 * rounds / problem.delta)) / each
        ridge = problem.scaled_regulariser.ridge or 0.0
        strength = problem.records * ridge / 2 + (1 + len(problem.parties) * rho)
        noise = tuple(width * 3 * strength / (columns * rho) for columns in problem.columns)
        numbers = PublishedADMMNumbers(rho=rho, proximal=0.0, relaxation=1.0, tolerance=0.0, noise=noise)
        design = admm_design(problem, numbers, rounds, "shared")
        return design.changed(claimed_epsilon=problem.epsilon)

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:
        return *super().queries(plan, party)[:-1], NoisyWeightUpdate(plan, plan.numbers, party)


class NoisyWeightUpdate(WeightUpdate):
    """D_m (x_m + xi)."""

    def __init__(self, problem: Problem, numbers: Numbers, party: str) -> None:
        super().__init__(problem, numbers, party)
        self.noise = numbers.noise[problem.names.index(party)]

    def value(self, round: Round) -> Array:
        """Draw xi = s V e^-1/2 g with standard normal g, after the update."""
        super().value(round)
        state: SpanState = round.memory
        drawn = rounded_gaussian(FINE, state.root.shape[1], round.randomness) / FINE
        state.weights = state.weights + self.noise * (state.root @ drawn)
        return np.asarray(state.products.scores(state.weights))


def per_round(epsilon: float, delta: float, rounds: int) -> float:
    """epsilon_0 of their Corollary 1: sqrt(2 T ln(1 / delta)) epsilon_0 + T epsilon_0 (e^epsilon_0 - 1) = epsilon."""
    low, high = 0.0, 700.0
    for _ in range(200):
        middle = (low + high) / 2
        total = math.sqrt(2 * rounds * math.log(1 / delta)) * middle + rounds * middle * math.expm1(middle)
        low, high = (middle, high) if total <= epsilon else (low, middle)
    return low
