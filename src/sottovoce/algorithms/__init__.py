"""Solvers by name. Each file is one method; the proofs are beside them in `proofs/`."""

from __future__ import annotations

from sottovoce.algorithms.base import Algorithm, Ask, Design, Problem, Solution, make_plan
from sottovoce.algorithms.cd import CD
from sottovoce.algorithms.gradient import Gradient
from sottovoce.algorithms.greedy_cd import GreedyCD
from sottovoce.algorithms.newton import Newton
from sottovoce.algorithms.scd import SCD
from sottovoce.algorithms.scd_primal import PrimalSCD
from sottovoce.algorithms.scd_sequential import SequentialSCD
from sottovoce.algorithms.sgd import SGD
from sottovoce.errors import InputError
from sottovoce.losses import Loss
from sottovoce.protocol.plan import Split

REGISTRY: dict[str, Algorithm] = {
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
    )
}
NEWTON_FEATURES = 2000  # beyond it a Gram matrix costs more than it gains


def get(name: str, loss: Loss, split: Split) -> Algorithm:
    """The solver of that name; an error lists those that fit the loss and the split."""
    fitting = [key for key, algorithm in REGISTRY.items() if algorithm.mismatch(loss, split) is None]
    listing = ", ".join(fitting) if fitting else "none yet"
    if name not in REGISTRY:
        raise InputError(f"solver={name!r} is unknown; for the loss {loss.name!r} and a {split} split: {listing}.")
    reason = REGISTRY[name].mismatch(loss, split)
    if reason is not None:
        raise InputError(f"{reason}; solvers that fit: {listing}.")
    return REGISTRY[name]


def choose(loss: Loss, split: Split, features: int) -> Algorithm:
    """`solver="auto"`: Newton for smooth losses of up to NEWTON_FEATURES features, else gradient. Public facts only."""
    if split == "columns":
        raise InputError(
            "no solver serves data split by columns in this version: without secure sums the parties would have to "
            "send noisy rows, and the joint model would be worse than one party's alone. Train on one party's columns, "
            "or put the rows in one place."
        )
    return REGISTRY["newton" if loss.smooth and features <= NEWTON_FEATURES else "gradient"]


__all__ = ["REGISTRY", "Algorithm", "Ask", "Design", "Problem", "Solution", "choose", "get", "make_plan"]
