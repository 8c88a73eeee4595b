"""Atoms of the l1 ball: +-radius e_j. What the Frank-Wolfe solvers share.

An atom is a code: j + 1 for +radius e_j, -(j + 1) for -radius e_j, and 0 for "stay".
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from sottovoce.algorithms.base import MOST_ROUNDS, SMOOTH, Algorithm, Need
from sottovoce.data.block import Block, Layout
from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.errors import InputError, LeakError
from sottovoce.gate.query import Choice, World
from sottovoce.plan import Numbers, Plan, Problem
from sottovoce.plan.release import Mechanism

Size = Annotated[float, Field(ge=SMALLEST, le=LARGEST)]

ROOM = 1.0 + 2.0**-20  # in a sensitivity, for the floating point of the sampler (`privacy/proofs/noise.md`)


class RadiusNumbers(Numbers):
    """The radius of the ball in the units of prepared data."""

    radius: Size


class BallNumbers(RadiusNumbers):
    """Also what the slopes of the loss are clipped to at most."""

    slope_bound: Size


class BallAlgorithm(Algorithm):
    """What the forms of Frank-Wolfe share: entries of at most 1, and how a plan has them choose atoms."""

    name: ClassVar[str] = "frank-wolfe"
    layout: ClassVar[Layout] = "entries"
    needs: ClassVar[tuple[Need, ...]] = (SMOOTH,)
    mechanism: ClassVar[Mechanism] = "selection"
    most_rounds: ClassVar[int] = MOST_ROUNDS

    def check_choices(self, plan: Plan) -> None:
        """Refuse choices made otherwise than this form makes them, and those after the last round, which has no step.

        `most_rounds` bounds what a holder draws because a plan says so.
        """
        release = plan.release("atom")
        if release.mechanism != self.mechanism:
            raise InputError(f"the plan makes choices by {release.mechanism!r}, and this form by {self.mechanism!r}.")
        if plan.rounds > self.most_rounds or release.first + release.count > plan.rounds:
            raise InputError(
                f"rounds={plan.rounds}: the plan has choices beyond its rounds, or more than {self.most_rounds} rounds."
            )


class AtomChoice(Choice):
    """The choice of an atom by scores that one record moves by at most 1 each."""

    name = "atom"
    title = "which feature to move, up or down, or none"
    kind: ClassVar[str] = "indices"
    world_sees: ClassVar[World] = "each"  # the model tells the choices
    signed: ClassVar[bool] = True
    candidate: ClassVar[str] = "atoms"
    largest_std = 2.0**20
    bound = ROOM

    def __init__(self, problem: Problem) -> None:
        self.candidates, self.places = 2 * problem.dimension + 1, problem.dimension


def radius_of(problem: Problem) -> float:
    """The radius of the l1 ball in the units of prepared data."""
    if problem.regulariser.name != "l1_ball":
        raise InputError(
            f"solver='frank-wolfe' needs the l1 ball, not {problem.regulariser.name!r}: pass radius (the largest sum "
            "of absolute coefficients, 1.0 say) to PrivateLasso, or radius and l1_ratio=1 to "
            "PrivateLogisticRegression."
        )
    given = problem.regulariser.parameters["radius"]
    radius = float(given / problem.scaled_regulariser.scale)
    if not SMALLEST <= radius <= LARGEST:
        raise InputError(
            f"radius={given!r} is {radius:.3g} in units of the declared bounds; it must be from {SMALLEST:g} to "
            f"{LARGEST:g} there."
        )
    return radius


def check_block(rows: Block) -> None:
    """Refuse rows whose entries may exceed 1, which the bounds of scores and sketches count on."""
    if rows.layout != "entries" or rows.chosen is not None:
        raise LeakError("the rows were not prepared for steps on the l1 ball.")
