"""Which solver `solver="auto"` takes: a rule of public numbers, measured by `benchmarks/solvers.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from sottovoce.plan.problem import Problem

UNEVEN = 4.0  # columns whose bounds differ by more are drowned by the largest in a common row norm
MANY, SCARCE = 300, 7.0  # with so many features and less signal for each, only a few of them can be learned
SPARSE = 100  # features from which an l1 ball means that few of them matter
SCORES = 4  # parties up to which one noisy score from each says enough
NEWTON_FEATURES = 2000  # beyond it a Gram matrix costs more than it gains

WHY: Final[Mapping[str, str]] = {  # the rule below takes a solver
    "whitened": "no other was better on problems of this kind, whatever the signal and the number of features",
    "cd": f"the declared bounds of the columns differ by more than a factor of {UNEVEN:g}",
    "scd": "the loss has a kink and the penalty is l2",
    "greedy-cd": "there are too many features for this budget to learn more than a few of them",
    "frank-wolfe": "the weights are in an l1 ball",
    "newton": "it needs the fewest rounds without noise",
    "gradient": "without noise it needs no matrix of all pairs of features",
    "sgd": "no other serves this problem",
    "score": "one noisy score of everybody from each party says as much as many rounds",
    "admm": "by columns it serves every loss, any number of parties and labels that one of them holds",
}


def preferences(problem: Problem) -> tuple[str, ...]:
    """Solvers, best first."""
    if problem.split.same_people:
        return ("whitened", "newton", "gradient") if problem.channel.secure else _by_columns(problem)
    loss, penalty, d = problem.scaled_loss, problem.regulariser.name, problem.dimension
    if loss.outputs > 1:
        return ("gradient",) if math.isinf(problem.epsilon) and not loss.smooth else ("whitened", "gradient")
    few = problem.features <= NEWTON_FEATURES
    exact = ("newton", "gradient", "sgd") if loss.smooth and few else ("gradient", "sgd", "newton")
    if math.isinf(problem.epsilon):
        return exact
    general = ("whitened", *exact)
    columns = problem.bounds.columns(problem.features)
    if loss.smooth and penalty in ("none", "l1", "l2", "elastic_net") and columns.max() > UNEVEN * columns.min():
        return ("cd", *general)
    if penalty == "l2" and not loss.smooth:
        return ("scd", *general)
    if penalty == "l1_ball" and loss.smooth and problem.bounds.row_norm is None and problem.features >= SPARSE:
        return ("frank-wolfe", *general)
    scarce = problem.features >= MANY and problem.signal < SCARCE * d
    if penalty in ("l1", "elastic_net") and loss.smooth and scarce:
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
