"""Private ADMM sharing whose scores are told once, cut, with noise of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Ask, Design, Problem, option, problem_loss
from sottovoce.algorithms.sharing.admm_noisy_rows import PersistentSharing
from sottovoce.algorithms.sharing.gradients import Hearing, View
from sottovoce.algorithms.sharing.parts import PartQuery, exact_scores, usable_rows
from sottovoce.data.block import Block
from sottovoce.door.gate import Gate, Released
from sottovoce.errors import InputError
from sottovoce.plan.plan import Part, Plan, Release
from sottovoce.privacy.accounting import Event, Relation

Array = NDArray[np.float64]

CLIP = {"classification": 2.0, "regression": 0.5}  # of a centred score


class FreshSharing(PersistentSharing):
    """ADMM sharing (`PersistentSharing` has the updates) with fresh noise on the scores themselves.

    In the first half of the rounds each party is alone with its columns. Then it tells its scores x_m'u_m, centred and
    cut to +-c, with noise for each; u_m is the mean of the second quarter of its weights. They are what the other
    parties add to their own in the second half, turned down to theta.

    Guarantee: the weights are public, made of released gradients, so one record moves its own entry of a message and no
    other: by c at most, replace-one 2 c. That costs sum_m (c / std)^2 (`proof.md`). Noise on an exact solution of
    the local problem, as the published scheme would have it, must also hide how the solution moves.
    Edges: a null row's entry is 0.
    """

    title: ClassVar[str] = "private ADMM sharing: scores told once, cut, with fresh noise"
    options: ClassVar[tuple[str, ...]] = (*PersistentSharing.options, "clip")
    keeps_rows: ClassVar[bool] = False
    mechanisms: ClassVar[Mapping[str, str]] = {}
    row_share: ClassVar[float] = 0.5
    view_share: ClassVar[float] = 0.2

    def design(self, problem: Problem) -> Design:
        """The clip, and what `OwnGradients` designs."""
        clip = option(problem, "clip", CLIP[problem_loss(problem).kind], low=1e-6, high=1e6)
        return self.designed(problem, {"clip": clip})

    def message(self, plan: Plan, part: Part) -> tuple[PartQuery, ...]:
        """Cut scores."""
        return (CutScores(plan, part),)

    def message_releases(self, plan: Plan, mu: float, relation: Relation, rounds: int) -> list[Release]:
        """One of each party, at half time."""
        half = rounds // 2
        return [Release.at_mu(self.joint(plan, CutScores), half, 1, mu, relation)]

    def message_event(self, plan: Plan, relation: Relation, owed: Mapping[str, float]) -> Event:
        """Nothing is kept."""
        del owed
        return self.joint(plan, CutScores).event(plan.release("scores"), relation)

    def hear(self, plan: Plan, round_: int, views: Mapping[str, View]) -> Hearing:
        """Nothing, one ask, and then what was said."""
        half = plan.rounds // 2
        if round_ == half:
            said = {
                name: {"weights": view.early[: view.width], "centre": np.array([view.mean @ view.early[: view.width]])}
                for name, view in views.items()
            }
            told = yield Ask("scores", {}, round=half, each=said)
            for name, view in views.items():
                view.told = plan["clip"] * told[name]
        std = plan["clip"] * plan.release("scores").std if round_ >= half else math.inf
        silence = np.zeros(plan.records)
        return {name: silence if view.told is None else view.told for name, view in views.items()}, dict.fromkeys(
            views, std
        )

    def tell(self, query: Any, block: Block, gate: Gate, round_: int, arrays: Mapping[str, NDArray[Any]]) -> Released:
        """With fresh noise."""
        return gate.gaussian(query, round_, block, arrays["weights"], float(arrays["centre"][0]))


class CutScores(PartQuery):
    """x_m'u - centre for each record, cut to +-clip and divided by clip; 0 for a null row. u and centre are public.

    Guarantee: entry i is a function of record i alone; so zero-out moves the value by at most 1, replace-one by 2.
    """

    name = "scores"
    entries = 1.0

    def __init__(self, plan: Plan, part: Part) -> None:
        super().__init__(plan, part)
        self.length, self.clip = plan.records, plan["clip"]
        if not 1e-9 <= self.clip <= 1e9:
            raise InputError(f"clip={self.clip!r} must be a positive finite number.")

    def sensitivity(self, relation: Relation) -> float:
        """1 or 2."""
        return 2.0 if relation == "replace-one" else 1.0

    def value(self, block: Block, *arguments: Any) -> Array:
        """One product; a NaN counts as the clip."""
        weights, centre = arguments
        scores = exact_scores(block, self.width, weights) - centre
        return np.asarray(np.fmax(np.fmin(scores / self.clip, 1.0), -1.0) * usable_rows(block))
