"""`scd-sequential`: dual steps one after another inside public lots (SeqDP-SCD, accounted soundly)."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from sottovoce.algorithms.base import WALK, Array, given, limited
from sottovoce.algorithms.scd.duals import SMALLEST_CLIP, ClippedNumbers, ClippedSteps, DualAlgorithm, move, ridge_of
from sottovoce.gate.query import Round
from sottovoce.plan import Design, Numbers, Problem, Release
from sottovoce.plan.release import Count
from sottovoce.privacy.events import Relation, either
from sottovoce.solvers import SequentialSCD


class SequentialNumbers(ClippedNumbers):
    """L, and how many lots an epoch has."""

    lot: Count
    lots: Count


class LotSteps(ClippedSteps):
    """sum of the steps z_i x_i of one lot, each |z_i x_i| <= clip, taken in turn.

    Guarantee: of the lot's L records the changed one moves its own term by at most C (zero-out) or 2 C, and each of the
    others by at most 2 C, whatever their duals: (2 L - 1) C or 2 L C in all. A record is in one lot of an epoch.
    Edges: a holder with fewer records has empty lots at the end and sends noise alone. Lots are places of the whole
    block, so no batch is sampled.
    """

    name = "lot"
    title: ClassVar[str] = "steps of the duals of one lot"

    def __init__(self, problem: Problem, numbers: Numbers) -> None:
        super().__init__(problem, numbers)
        self.lot: int = numbers.lot
        self.lots: int = numbers.lots
        self.scale = 1.0 / (numbers.ridge * problem.records)

    def sensitivity(self, relation: Relation) -> float:
        return self.bound * (2.0 * self.lot - either(relation, zero_out=1.0, replace_one=0.0))

    def uses(self, times: int) -> int:
        """How often the lots come round."""
        return math.ceil(times / self.lots)

    def value(self, round: Round) -> Array:
        rows, first = round.rows, round.number % self.lots * self.lot
        places = np.arange(min(first, len(rows)), min(first + self.lot, len(rows)), dtype=np.int64)
        lot = round._replace(rows=rows.take(places))
        return move(lot, code=self.code, factor=self.scale, clip=self.bound, scale=self.scale)


class PrivateSequentialSCD(DualAlgorithm):
    """v <- v + sum over a lot of z_i x_i + N(0, std^2), each z_i from the v that the records before it led to.

    The lots are fixed and public: the holder's records in their order, at most L at a time. One release per lot and
    epoch; all holders work at once.

    Guarantee: a record moves the steps of every later record of its lot, so a release moves by (2 L - 1) C (zero-out)
    or 2 L C (replace-one), and mu^2 = epochs (Delta / std)^2: no amplification (`proof.md`). The noise is that of
    a method for comparison. Edges: a null row takes no step; a holder with a ledger that is stopped in a run goes on
    with the duals that it stored, one without a ledger refuses to go on.
    """

    name: ClassVar[str] = "scd-sequential"
    form: ClassVar[str] = "private"
    title: ClassVar[str] = "sequential dual coordinate descent in public lots (SeqDP-SCD)"
    numbers: ClassVar[type[Numbers]] = SequentialNumbers
    query = LotSteps

    def design(self, problem: Problem, options: SequentialSCD) -> Design:
        """Five epochs of at most 1000 lots; the clip keeps the noise's random walk below WALK."""
        lam, epochs = ridge_of(self.name, problem), given(options.rounds, 5)
        largest = max(count for _, count in problem.parties)
        lot = limited("lot", given(options.lot, max(1, math.ceil(largest / 1000))), 1, largest)
        lots = math.ceil(largest / lot)
        spread = (2 * lot - 1) * epochs * math.sqrt(largest / lot * problem.dimension * len(problem.parties))
        clip = min(max(WALK * problem.mu * lam * problem.records / spread, SMALLEST_CLIP), 1.0)
        numbers = SequentialNumbers(
            ridge=lam,
            dual_step=given(options.dual_step, "slope"),
            clip=given(options.clip, clip),
            lot=lot,
            lots=lots,
            averaged=max(1, lots * epochs // 2),
        )
        query = LotSteps(problem, numbers)
        # Every record is in one release of an epoch, so the releases of one epoch cost what one of them costs.
        release = Release.at_mu(query, 0, epochs, problem.mu, problem.relation).times(epochs * lots)
        return Design(rounds=epochs * lots, numbers=numbers, releases=(release,))
