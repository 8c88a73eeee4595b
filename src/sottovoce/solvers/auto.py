"""Which solver `solver="auto"` takes: a rule of public numbers, measured by `benchmarks/solvers.py`."""

from __future__ import annotations

import math

from sottovoce.plan.problem import Problem
from sottovoce.privacy.relation import distance

UNEVEN = 4.0  # columns whose bounds differ by more are drowned by the largest in a common row norm
WEAK = 200.0  # below this signal dual steps waste less of the budget than a Gram matrix and gradients
MANY, SCARCE = 300, 30.0  # with so many features and less signal for each, only a few of them can be learned
SPARSE = 100  # features from which an l1 ball means that few of them matter
SCORES = 4  # parties up to which one noisy score from each says enough
NEWTON_FEATURES = 2000  # beyond it a Gram matrix costs more than it gains


def preferences(problem: Problem) -> tuple[str, ...]:
    """Solvers, best first."""
    if problem.split == "columns":
        return _by_columns(problem)
    loss, penalty, d = problem.scaled_loss, problem.regulariser.name, problem.dimension
    mu = problem.mu / distance(problem.relation)
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
