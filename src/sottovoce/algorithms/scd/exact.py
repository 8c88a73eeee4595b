"""Dual coordinate ascent without privacy (SDCA), for `scd` and `scd-sequential`."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from sottovoce.algorithms.base import Array, Coordination, Solution, given, how_far, total
from sottovoce.algorithms.scd.duals import DualAlgorithm, DualNumbers, DualQuery, move, ridge_of, weights_of
from sottovoce.gate.query import Plain, Round
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.solvers import SCD, SequentialSCD

EPOCHS = 2000  # at most
STILL = 1e-13  # it has converged when no weight moves by more than this share of the largest


class Epoch(DualQuery, Plain):
    """One pass of dual coordinate ascent over a holder's records in turn, with its part of the duality gap.

    SDCA; several holders step side by side, with s multiplied by their number (CoCoA+).
    The value is (sum_i z_i x_i, sum_i l_i(x_i'w), sum_i l_i*(-a_i)), the sums before the pass.
    """

    name = "epoch"
    title: ClassVar[str] = "passes over the duals, with the duality gap"

    def __init__(self, problem: Problem, numbers: Numbers) -> None:
        super().__init__(problem, numbers)
        self.scale = len(problem.parties) / (numbers.ridge * problem.records)
        self.length, self.rounding_entries = problem.dimension + 2, Plain.rounding_entries

    def value(self, round: Round) -> Array:
        rows, duals, loss = round.rows, round.memory, round.plan.scaled_loss
        losses = rows.scalar_sum(round.told["weights"], loss.value)
        used = rows.squares > 0  # the dual of a null row stays 0 and its loss is a constant
        conjugates = float(np.sum(loss.conjugate(-duals[used], rows.labels[used])))
        losses -= float(np.sum(loss.value(np.zeros((~used).sum()), rows.labels[~used])))
        order = round.plan.public_coin(f"epoch {round.number}").permutation(len(rows))
        drawn = round._replace(rows=rows.take(order))
        total = move(drawn, code=self.code, factor=self.scale, clip=math.inf, scale=self.scale)
        return np.array([*total, losses, conjugates])


class ExactSCD(DualAlgorithm):
    """v <- v + what one pass over every holder's duals moved it by, until the weights stand still.

    Guarantee: none; a party answers only where its holder allows runs without privacy. The certificate is the duality
    gap before the last epoch.
    """

    name: ClassVar[str] = "scd"
    form: ClassVar[str] = "exact"
    title: ClassVar[str] = "dual coordinate ascent, without privacy (SDCA)"
    private: ClassVar[bool | None] = False
    numbers: ClassVar[type[Numbers]] = DualNumbers
    query = Epoch

    def design(self, problem: Problem, options: SCD | SequentialSCD) -> Design:
        """By default the exact step, which converges in fewer epochs."""
        numbers = DualNumbers(ridge=ridge_of(self.name, problem), dual_step=given(options.dual_step, "exact"))
        epochs = given(options.rounds, EPOCHS)
        release = Release.of(Epoch(problem, numbers), 0, epochs, 0.0, 1.0)
        return Design(rounds=epochs, numbers=numbers, releases=(release,))

    def coordinate(self, plan: Plan) -> Coordination:
        v, first = np.zeros(plan.dimension), math.inf
        for t in range(plan.rounds):
            weights = weights_of(plan, v)
            *step, losses, conjugates = yield from total("epoch", weights=weights)
            gap = (losses + conjugates) / plan.records + plan.numbers.ridge * float(weights @ weights)
            first = gap if t == 0 else first
            v += step
            if np.abs(step).max() <= STILL * np.abs(v).max():
                break
        far = how_far(t + 1, gap / first if first > 0.0 else 0.0, "the duality gap, as a share of the first,")
        return Solution(weights_of(plan, v), {"duality_gap": gap}, unfinished=far)


class ExactSequentialSCD(ExactSCD):
    """The same ascent: without noise its steps come one after another already."""

    name: ClassVar[str] = "scd-sequential"
