"""The labels, for solvers over columns where one party alone knows them."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sottovoce.door.query import Array, Query, Round, World, label_party
from sottovoce.plan.problem import Problem


class NoisyLabels(Query):
    """The scaled labels, cut to [-1, 1], one for each record and 0 for a null row.

    Guarantee: zero-out moves them by at most 1, replace-one by 2. The world does not see them: what a model makes of
    them is cut, and priced, elsewhere. Edges: `bound` may be a little more than 1.
    """

    name = "labels"
    title: ClassVar[str] = "the label of every person"
    each_person: ClassVar[bool] = True
    answered_by = label_party
    world_sees: ClassVar[World] = "nothing"
    together: ClassVar[bool] = True
    rounding_entries = 1.0

    def __init__(self, problem: Problem, bound: float = 1.0) -> None:
        self.length, self.bound = problem.records, bound

    def value(self, round: Round) -> Array:
        return np.where(round.rows.usable_rows, np.clip(round.rows.labels, -1.0, 1.0), 0.0)
