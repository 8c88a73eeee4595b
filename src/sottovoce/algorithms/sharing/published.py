"""`admm` as published: private ADMM sharing over columns (Hu et al. 2019), whose epsilon is infinite."""

from __future__ import annotations

import functools
import math
from typing import ClassVar

import numpy as np

from sottovoce.algorithms.base import Array, given, slope_bound
from sottovoce.algorithms.sharing.admm_exact import (
    ADMMNumbers,
    ADMMState,
    ExactADMM,
    NoLimit,
    WeightUpdate,
    admm_design,
    check_one_set,
    check_rho,
    square_of,
)
from sottovoce.errors import InputError, warn
from sottovoce.gate.query import Query, Round
from sottovoce.penalties.base import Penalty
from sottovoce.plan import Design, Numbers, Plan, Problem
from sottovoce.privacy.mechanisms import rounded_gaussian
from sottovoce.queries.pricing import Pricing
from sottovoce.solvers import ADMM

PUBLISHED_ROUNDS = 50
FINE = 2.0**20  # in units of which normal numbers are drawn


class PublishedADMMNumbers(ADMMNumbers):
    """And s_m of each party."""

    noise: tuple[float, ...]


class SpanState(ADMMState):
    """And what the noise of a party is made with."""

    @functools.cached_property
    def root(self) -> Array:
        return inverse_root(square_of(self.products))


def inverse_root(square: Array) -> Array:
    """V e^-1/2 of D'D = V diag(e) V', where e is not 0: D times it has orthonormal columns."""
    values, vectors = np.linalg.eigh(square)
    curved = values > 1e-10 * values[-1]
    return np.asarray(vectors[:, curved] / np.sqrt(values[curved]))


class PublishedADMM(ExactADMM):
    """x_m <- argmin + xi, xi ~ N(0, s_m^2 (D_m'D_m)^-1), their (16); everything that follows uses D_m (x_m + xi).

    s_m = sqrt(2 ln(1.25 / delta_0)) C_m / epsilon_0 (Theorem 3), C_m = 3 / (d_m rho) (lambda c_1 + (1 + M rho) b_1)
    (Lemma 1). D_m has the columns of the run, divided by the largest declared bound b, as the paper's rows are by their
    norm (Assumption 2.3): with R = |x|^2 / 2 on their weights c_1 = 1 and lambda = N alpha / b^2. b_1 is what
    Assumption 2.1 takes the norms of x, z and y to be below: `feasible_norm`; by default sqrt(N) times the loss's
    largest slope, since y = l'(z) may be so long. (epsilon_0, delta_0) is claimed for each round, and by Corollary 1
    (17) for T rounds sqrt(2 T ln(1 / delta')) epsilon_0 + T epsilon_0 (e^epsilon_0 - 1), at delta = T delta_0 + delta',
    halves of the plan's delta. epsilon_0 is chosen so that this is the plan's epsilon. The weights with noise are the
    answer. The first round of (16), which has x = 0 and the message D_m xi, is not run: z and y start from S = 0
    without noise.

    Guarantee: none; epsilon is infinite at any noise. D_m xi lies in the span of D_m's columns, and so does the
    message: two data sets with other spans cannot give the same one, d_m messages reveal the span, and the dual that
    the party with the labels tells has their signs (`proof.md`).
    Edges: it warns where public numbers are outside Assumptions 1 and 2 and Theorem 3; Assumption 1.2 (b), on D_m'D_m,
    is not checked. Each row is not made to have the norm 1 (Assumption 2.3): the model is one of rows as they are.
    """

    form: ClassVar[str] = "published"
    title: ClassVar[str] = "private ADMM sharing as published; its true epsilon is infinite"
    private: ClassVar[bool | None] = True
    published: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...] | None] = ("rounds", "rho", "feasible_norm")
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
        rounds, loss = given(options.rounds, PUBLISHED_ROUNDS), problem.scaled_loss
        rho = given(options.rho, max(1.0, 2 * loss.curvature_bound) if loss.smooth else 1.0)
        check_rho(loss, rho)
        each = per_round(problem.epsilon, problem.delta / 2, rounds)
        warn_outside(problem, rho, each)
        width = math.sqrt(2 * math.log(1.25 * 2 * rounds / problem.delta)) / each
        norm = given(options.feasible_norm, slope_bound(problem, options) * math.sqrt(problem.records))  # b_1
        penalty = problem.scaled_regulariser
        bend = penalty.inner.strong_convexity * penalty.objective * float(np.max(penalty.scale)) ** 2
        strength = problem.records * bend + (1 + len(problem.parties) * rho) * norm  # lambda c_1 + (1 + M rho) b_1
        noise = tuple(width * 3 * strength / (columns * rho) for columns in problem.columns)
        numbers = PublishedADMMNumbers(rho=rho, proximal=0.0, relaxation=1.0, tolerance=0.0, noise=noise)
        return admm_design(problem, numbers, rounds, "shared")

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:
        return *super().queries(plan, party)[:-1], NoisyWeightUpdate(plan, plan.numbers, party)


class NoisyWeightUpdate(WeightUpdate):
    """D_m (x_m + xi)."""

    def __init__(self, problem: Problem, numbers: Numbers, party: str) -> None:
        super().__init__(problem, numbers, party)
        if len(numbers.noise) != len(problem.names) or not all(0 <= each < math.inf for each in numbers.noise):
            raise InputError(
                f"noise={numbers.noise!r} must be a number from 0 for each of the {len(problem.names)} parties."
            )
        self.noise = numbers.noise[problem.names.index(party)]

    def value(self, round: Round) -> Array:
        """Draw xi = s V e^-1/2 g with standard normal g, after the update."""
        super().value(round)
        state: SpanState = round.memory
        drawn = rounded_gaussian(FINE, state.root.shape[1], round.randomness) / FINE
        state.weights = state.weights + self.noise * (state.root @ drawn)
        return np.asarray(state.products.scores(state.weights))


def warn_outside(problem: Problem, rho: float, each: float) -> None:
    """Name what public numbers break of the paper's Assumptions 1 and 2 and of Theorem 3."""
    loss, penalty = problem.scaled_loss, problem.scaled_regulariser.inner
    # rho gamma(rho) > 2 L^2 and rho >= L, gamma = rho + min l'': L more for a square, L less where it is not convex.
    least = (1 if loss.quadratic else math.sqrt(2) if loss.convex else 2) * loss.curvature_bound
    kinks = isinstance(penalty, Penalty) and penalty.by_coordinate()[0] > 0
    broken = (
        (not loss.smooth, f"the slope of loss={loss.name!r} has no Lipschitz constant (Assumption 1.1)"),
        (loss.smooth and not rho > least, f"rho={rho:.4g} must be above {least:.4g} (Assumption 1.2)"),
        (kinks, f"penalty={penalty.name!r} is not twice differentiable (Assumption 2.2)"),
        (each > 1, f"a round has epsilon {each:.3g}, above 1 (Theorem 3); take more rounds or a smaller epsilon"),
    )
    if found := [text for outside, text in broken if outside]:
        warn(f"calibration='paper' is outside the domain that the paper states: {'; '.join(found)}.")


def per_round(epsilon: float, delta: float, rounds: int) -> float:
    """epsilon_0 of their Corollary 1: sqrt(2 T ln(1 / delta)) epsilon_0 + T epsilon_0 (e^epsilon_0 - 1) = epsilon."""
    low, high = 0.0, 700.0
    for _ in range(200):
        middle = (low + high) / 2
        total = math.sqrt(2 * rounds * math.log(1 / delta)) * middle + rounds * middle * math.expm1(middle)
        low, high = (middle, high) if total <= epsilon else (low, middle)
    return low
