"""`scd-sequential`: dual steps one after another inside public lots (SeqDP-SCD, accounted soundly)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import MOST_ROUNDS, WALK, Design, Problem, draft, option
from sottovoce.algorithms.scd.private import (
    LARGEST_CLIP,
    SMALLEST_CLIP,
    DualAlgorithm,
    Epoch,
    checked_clip,
    dual_step_of,
    move,
    positive,
    ridge_of,
    step_code,
)
from sottovoce.data.block import Block
from sottovoce.door.gate import Gate, Released
from sottovoce.door.query import Query, Walk
from sottovoce.errors import InputError
from sottovoce.plan.plan import Plan, Release
from sottovoce.privacy.accounting import Event, Relation

Array = NDArray[np.float64]


class SequentialSCD(DualAlgorithm):
    """v <- v + sum over a lot of z_i x_i + N(0, std^2), each z_i from the v that the records before it led to.

    The lots are fixed and public: the holder's records in their order, at most L at a time. One release per lot and
    epoch; all holders work at once.

    Guarantee: a record moves the steps of every later record of its lot, so a release moves by (2 L - 1) C (zero-out)
    or 2 L C (replace-one), and mu^2 = epochs (Delta / std)^2: no amplification (`proof.md`). The noise is that of
    a method for comparison. Edges: a null row takes no step; a holder stopped in a run refuses to go on.
    """

    name: ClassVar[str] = "scd-sequential"
    title: ClassVar[str] = "sequential dual coordinate descent in public lots (SeqDP-SCD)"
    options: ClassVar[tuple[str, ...]] = ("rounds", "lot", "clip", "dual_step")
    samples: ClassVar[bool] = False  # the lots are public places of the whole block

    def design(self, problem: Problem) -> Design:
        """Five epochs of at most 1000 lots; the clip keeps the noise's random walk below WALK."""
        lam = ridge_of(self.name, problem)
        numbers: dict[str, float] = {"ridge": lam, "dual_step": dual_step_of(problem)}
        if math.isinf(problem.epsilon):
            return self._without_privacy(problem, numbers)
        epochs = option(problem, "rounds", 5, low=1, whole=True)
        largest = max(count for _, count in problem.parties)
        lot = option(problem, "lot", max(1, math.ceil(largest / 1000)), low=1, high=largest, whole=True)
        lots = math.ceil(largest / lot)
        spread = (2 * lot - 1) * epochs * math.sqrt(largest / lot * problem.dimension * len(problem.parties))
        default = min(max(WALK * problem.mu * lam * problem.records / spread, SMALLEST_CLIP), 1.0)
        clip = option(problem, "clip", default, low=SMALLEST_CLIP, high=LARGEST_CLIP)
        numbers |= {"clip": clip, "lots": lots, "lot": lot, "averaged": max(1, lots * epochs // 2)}
        query = LotSteps(draft(problem, numbers))
        # Every record is in one release of an epoch, so the releases of one epoch cost what one of them costs.
        release = Release.at_mu(query, 0, epochs, problem.mu, problem.relation).times(epochs * lots)
        return Design(epochs * lots, numbers, (release,))

    def queries(self, plan: Plan) -> Mapping[str, Query | Walk]:
        """The sum of a lot's steps."""
        return {"lot": LotSteps(plan)} if plan.private else {"epoch": Epoch(plan, len(plan.parties))}

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
        """The lot of this round; a holder with fewer records has empty lots at the end and sends noise alone."""
        del plan
        return gate.gaussian(query, round_, block, arrays["weights"], memory, round_)

    def events(self, plan: Plan, relation: Relation, party: str) -> tuple[Event, ...]:  # noqa: ARG002
        """A record is in one lot: it pays for one release of every epoch."""
        return tuple(release.event(relation, count=_epochs(plan, release)) for release in plan.releases)

    def world_events(self, plan: Plan, relation: Relation) -> tuple[Event, ...]:
        """Only the sum over holders is used."""
        parties = len(plan.parties)
        return tuple(
            release.event(relation, count=_epochs(plan, release), parties=parties) for release in plan.releases
        )


class LotSteps:
    """sum of the steps z_i x_i of one lot, each |z_i x_i| <= clip, taken in turn.

    Guarantee: of the lot's L records the changed one moves its own term by at most C (zero-out) or 2 C, and each of the
    others by at most 2 C, whatever their duals: (2 L - 1) C or 2 L C in all.
    """

    name = "lot"
    weights = 1.0

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.clip = checked_clip(plan)
        self.code = step_code(plan)
        for name in ("lot", "lots"):
            if not 1 <= plan[name] <= MOST_ROUNDS or int(plan[name]) != plan[name]:
                raise InputError(f"{name}={plan[name]!r} must be a whole number from 1 to {MOST_ROUNDS}.")
        self.lot, self.lots = int(plan["lot"]), int(plan["lots"])
        self.scale = 1.0 / (positive(plan, "ridge") * plan.records)
        self.entries = float(plan.dimension)

    def sensitivity(self, relation: Relation) -> float:
        """(2 L - 1) C, or 2 L C."""
        return self.clip * (2.0 * self.lot - (0.0 if relation == "replace-one" else 1.0))

    def value(self, block: Block, *arguments: Any) -> Array:
        """The weights follow every step inside the lot."""
        weights, duals, round_ = arguments
        first = round_ % self.lots * self.lot
        lot = block.take(np.arange(min(first, len(block)), min(first + self.lot, len(block)), dtype=np.int64))
        options: dict[str, Any] = {"code": self.code, "factor": self.scale, "clip": self.clip, "scale": self.scale}
        return move(self.plan, lot, weights, duals, **options)


def _epochs(plan: Plan, release: Release) -> int:
    """How often the lots come round: the most releases that one record is in."""
    return math.ceil(release.count / int(plan["lots"])) if plan.private else release.count
