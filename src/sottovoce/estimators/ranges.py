"""Ranges that nobody knows, estimated by a plan that runs before the fit's own, on the same people and in one budget.

What is estimated, its share of the budget and what it costs follow from public numbers. A fit's noise does not depend
on the ranges: until they are there its plan has [-1, 1] in their place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sottovoce import algorithms
from sottovoce.algorithms.ranges import CountedRanges, Range, share_of, wanted
from sottovoce.data.bounds import Bounds
from sottovoce.data.column_kinds import Number
from sottovoce.errors import InputError, warn
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.privacy.calibration import part_of
from sottovoce.privacy.events import inside

STAND_IN: Range = (-1.0, 1.0)
FORM = CountedRanges()
_TAILS = 0.10  # the share that is wanted above which tails are cut


@dataclass(frozen=True)
class EstimatedRanges:
    """The columns with a range to be estimated, by number, the plan that estimates them, and the fit's problem."""

    columns: Mapping[int, Number]
    plan: Plan
    problem: Problem

    @property
    def share(self) -> float:
        """Of mu squared of both plans."""
        mine, theirs = self.plan.mu**2, self.problem.mu**2
        return mine / (mine + theirs) if math.isfinite(mine + theirs) else 0.0

    def __str__(self) -> str:
        names = ", ".join(column.name for column in self.columns.values())
        return f"ranges are estimated, before the fit: {names}"

    def named(self, ranges: Mapping[int, Range | None]) -> dict[int, Number]:
        """The columns with their ranges. One that stays unknown is an error: nothing goes on with a guess."""
        ranged = {place: column.within(ranges[place]) for place, column in self.columns.items()}
        unknown = [self.columns[place].name for place, column in ranged.items() if column is None]
        if unknown:
            raise InputError(
                f"the range of {', '.join(map(repr, unknown))} is unknown: no value is common enough to stand out of "
                f"the noise. Declare it from public knowledge, or leave the column out. Epsilon "
                f"{algorithms.epsilons(self.plan)['coordinator']:.3g} of the budget was spent on ranges, and is spent."
            )
        return {place: column for place, column in ranged.items() if column is not None}

    def problem_with(self, columns: Mapping[int, Number]) -> Problem:
        """The fit's problem with the ranges in their places."""
        bounds = self.problem.bounds
        lows, highs = list(bounds.feature_low or ()), list(bounds.feature_high or ())
        label = (bounds.label_low, bounds.label_high)
        for place, column in columns.items():
            if place == self.problem.features:
                label = (column.low, column.high)
            else:
                lows[place], highs[place] = column.low, column.high
        ends = {"feature_low": tuple(lows) or None, "feature_high": tuple(highs) or None}
        changed = bounds.model_dump() | ends | {"label_low": label[0], "label_high": label[1]}
        return self.problem.changed(bounds=Bounds.model_validate(changed))


def share_budget(problem: Problem, columns: Mapping[int, Number]) -> tuple[Problem, Problem]:
    """(the fit's problem, that of its ranges), each with its share of mu squared; or why not, before any charge."""
    asked = wanted(len(columns), problem.signal)
    if problem.calibration == "paper":
        raise InputError("calibration='paper': ranges are estimated with calibration='tight' alone; declare them.")
    if asked > 1:
        raise InputError(
            f"the ranges of {len(columns)} columns cannot be bought: with {problem.records} records at epsilon "
            f"{problem.epsilon:g} they would take more than the whole budget. Declare them from public knowledge, or "
            "take a larger epsilon. Nothing was charged."
        )
    if asked > _TAILS:
        warn(
            f"epsilon={problem.epsilon:g}: the ranges of {len(columns)} columns get a tenth of the budget, and "
            f"{asked:.2g} of it would tell them well. Tails will be cut, of sparse columns first; declare what is "
            "publicly known.",
        )
    share = share_of(len(columns), problem.signal)
    fit, ranges = (part_of(problem.epsilon, inside(problem.delta), part) for part in (1 - share, share))
    bare = {"bounds": Bounds(), "norms": (), "regulariser": Named(name="none"), "fit_intercept": False}
    return problem.changed(epsilon=fit), problem.changed(epsilon=ranges, **bare)
