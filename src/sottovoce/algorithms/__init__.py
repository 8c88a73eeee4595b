"""Solvers by name. Each file is one method; the proofs are beside them in `proofs/`."""

from __future__ import annotations

import math

from sottovoce.algorithms.base import Algorithm, Ask, Design, Problem, Solution, Solver, make_plan, problem_loss
from sottovoce.algorithms.cd.greedy import GreedyCD
from sottovoce.algorithms.cd.private import CD
from sottovoce.algorithms.frank_wolfe.central import FrankWolfe
from sottovoce.algorithms.gradient.private import Gradient
from sottovoce.algorithms.newton.private import Newton
from sottovoce.algorithms.one_shot.private import OneShot
from sottovoce.algorithms.scd.primal import PrimalSCD
from sottovoce.algorithms.scd.private import SCD
from sottovoce.algorithms.scd.sequential import SequentialSCD
from sottovoce.algorithms.score.private import Score
from sottovoce.algorithms.sgd.private import SGD
from sottovoce.algorithms.sharing.admm import ADMM
from sottovoce.algorithms.sharing.fdml import Fdml
from sottovoce.errors import InputError
from sottovoce.losses import Loss
from sottovoce.plan.plan import Plan, Split

REGISTRY: dict[str, Solver] = {
    algorithm.name: algorithm
    for algorithm in (
        Newton(),
        Gradient(),
        SGD(),
        SCD(),
        PrimalSCD(),
        SequentialSCD(),
        CD(),
        GreedyCD(),
        FrankWolfe(),
        OneShot(),
        ADMM(),
        Fdml(),
        Score(),
    )
}
UNEVEN = 4.0  # columns whose bounds differ by more are drowned by the largest in a common row norm
WEAK = 200.0  # below this signal dual steps waste less of the budget than a Gram matrix and gradients
MANY, SCARCE = 300, 30.0  # with so many features and less signal for each, only a few of them can be learned
SPARSE = 100  # features from which an l1 ball means that few of them matter
SCORES = 4  # parties up to which one noisy score from each says enough
NEWTON_FEATURES = 2000  # beyond it a Gram matrix costs more than it gains


def get(name: str, loss: Loss, split: Split) -> Solver:
    """The solver of that name; an error lists those that fit the loss and the split."""
    fitting = [key for key, algorithm in REGISTRY.items() if algorithm.mismatch(loss, split) is None]
    listing = ", ".join(fitting) if fitting else "none yet"
    if name not in REGISTRY:
        raise InputError(f"solver={name!r} is unknown; for the loss {loss.name!r} and a {split} split: {listing}.")
    reason = REGISTRY[name].mismatch(loss, split)
    if reason is not None:
        raise InputError(f"{reason}; solvers that fit: {listing}.")
    return REGISTRY[name]


def of(plan: Plan) -> Algorithm:
    """The solver of a plan, in the form that serves it."""
    return REGISTRY[plan.algorithm].of(plan)


def choose(problem: Problem) -> Solver:
    """`solver="auto"`: a rule of public numbers; the first of its list that takes the options given.

    signal = N mu / sqrt(d K), mu the Gaussian budget (halved for replace-one), K parties: how far the mean gradient of
    a record stands above its noise. The constants come from `benchmarks/solvers.py`.
    """
    loss = problem_loss(problem)
    given = {name for name, value in problem.options.items() if value is not None}
    for name in preferences(problem):
        algorithm = REGISTRY[name]
        if algorithm.mismatch(loss, problem.split) is None and given <= set(algorithm.options):
            return algorithm
    return REGISTRY[preferences(problem)[0]]


def preferences(problem: Problem) -> tuple[str, ...]:
    """Solvers, best first."""
    if problem.split == "columns":
        return _by_columns(problem)
    loss, penalty, d = problem_loss(problem), problem.regulariser.name, problem.dimension
    mu = problem.mu / (2.0 if problem.relation == "replace-one" else 1.0)
    signal = problem.records * mu / math.sqrt(d * len(problem.parties))
    few = problem.features <= NEWTON_FEATURES
    general = ("newton", "gradient", "sgd") if loss.smooth and few else ("gradient", "sgd", "newton")
    columns = problem.bounds.columns(problem.features)
    separable = penalty in ("none", "l1", "l2", "elastic_net")
    if loss.smooth and separable and columns.max() > UNEVEN * columns.min():
        return ("cd", *general)
    if penalty == "l2" and (not loss.smooth or not few or signal < WEAK):
        return ("scd", *general)
    if penalty == "l1_ball" and loss.smooth and problem.bounds.row_norm is None and problem.features >= SPARSE:
        return ("frank-wolfe", *general)
    scarce = problem.features >= MANY and signal < SCARCE * math.sqrt(d)
    if penalty in ("l1", "elastic_net") and loss.smooth and (not few or scarce):
        return ("greedy-cd", *general)
    return general


def _by_columns(problem: Problem) -> tuple[str, ...]:
    """An l1 ball is for Frank-Wolfe; one noisy score of everybody says as much as many rounds, in fewer bytes."""
    if problem.regulariser.name == "l1_ball":
        return ("frank-wolfe", "admm")
    several = 2 <= len(problem.parties) <= SCORES
    if math.isinf(problem.epsilon) or problem.labels == "held" or not several:
        return ("admm", "score")
    return ("score", "admm")


__all__ = [
    "REGISTRY",
    "Algorithm",
    "Ask",
    "Design",
    "Problem",
    "Solution",
    "Solver",
    "choose",
    "get",
    "make_plan",
    "of",
]
