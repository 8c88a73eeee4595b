"""`admm` with rows="fresh": private ADMM sharing whose scores are told once, cut, with noise of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from pydantic import Field

from sottovoce.algorithms.base import Z_UPDATE, Array, Need, answers, given
from sottovoce.algorithms.sharing.admm_noisy_rows import DualSlopes, GramSteps
from sottovoce.algorithms.sharing.gradients import OthersScores, OwnGradients, PartWeights, SharedScores, SharingNumbers
from sottovoce.door.query import Query, Reals, Round, Together, World
from sottovoce.plan.plan import Numbers, Plan
from sottovoce.plan.problem import Problem
from sottovoce.plan.release import Release
from sottovoce.queries.parts import PartQuery, PartSlopes
from sottovoce.solvers import ADMM

CLIP = {"classification": 2.0, "regression": 0.5}  # of a centred score


class FreshNumbers(SharingNumbers):
    """And c, to which a centred score is cut."""

    clip: float = Field(ge=1e-9, le=1e9)


class CutScores(PartQuery):
    """x_m'u - centre for each record, cut to +-clip and divided by clip; 0 for a null row. u and centre are public.

    Guarantee: entry i is a function of record i alone; so zero-out moves the value by at most 1, replace-one by 2.
    """

    name = "scores"
    title: ClassVar[str] = "scores of all people"
    each_person: ClassVar[bool] = True
    world_sees: ClassVar[World] = "nothing"
    bound = 1.0
    rounding_entries = 1.0

    def __init__(self, problem: Problem, party: str, clip: float) -> None:
        super().__init__(problem, party)
        self.length, self.clip = problem.records, clip
        self.takes = {"weights": Reals((self.width,)), "centre": Reals((1,))}  # and the mean of their scores

    def value(self, round: Round) -> Array:
        scores = round.rows.scores(round.told["weights"]) - float(round.told["centre"][0])
        return np.asarray(np.fmax(np.fmin(scores / self.clip, 1.0), -1.0) * round.rows.usable_rows)


class FreshScores(SharedScores):
    """Nothing in the first half of the rounds, then the scores of one ask for the rest of them."""

    share: ClassVar[float] = 0.5

    def __init__(self, clip: float) -> None:
        self.clip = clip
        self._told: dict[str, Array] = {}

    def queries(self, problem: Problem, party: str) -> tuple[Query, ...]:
        return (CutScores(problem, party, self.clip),)

    def releases(self, problem: Problem, mu: float, rounds: int) -> list[Release]:
        scores = Together([CutScores(problem, name, self.clip) for name in problem.names])
        return [Release.at_mu(scores, rounds // 2, 1, mu, problem.relation)]

    def scores_of_others(self, plan: Plan, number: int, parts: Mapping[str, PartWeights]) -> OthersScores:
        """At the means of the second quarter of the weights; before they are told their noise is infinite."""
        half = plan.rounds // 2
        if number == half:
            means = {name: (part.mean, part.early[: part.width]) for name, part in parts.items()}
            asked = {name: {"weights": own, "centre": np.array([mean @ own])} for name, (mean, own) in means.items()}
            told = yield from answers("scores", each=asked)
            self._told = {name: self.clip * told[name] for name in parts}
        std = self.clip * plan.release("scores").std if number >= half else math.inf
        return self._told or dict.fromkeys(parts, np.zeros(plan.records)), dict.fromkeys(parts, std)


class FreshADMM(OwnGradients):
    """ADMM sharing (`NoisyRowsADMM` has the updates) with fresh noise on the scores themselves.

    In the first half of the rounds each party is alone with its columns. Then it tells its scores x_m'u_m, centred and
    cut to +-c, with noise for each; u_m is the mean of the second quarter of its weights. They are what the other
    parties add to their own in the second half, turned down to theta.

    Guarantee: the weights are public, made of released gradients, so one record moves its own entry of a message and no
    other: by c at most, replace-one 2 c. That costs sum_m (c / std)^2 (`proof.md`). Noise on an exact solution of
    the local problem, as the published scheme would have it, must also hide how the solution moves.
    Edges: a null row's entry is 0.
    """

    name: ClassVar[str] = "admm"
    form: ClassVar[str] = "fresh"
    title: ClassVar[str] = "private ADMM sharing: scores told once, cut, with fresh noise"
    when: ClassVar[Mapping[str, str]] = {"rows": "fresh"}
    options: ClassVar[tuple[str, ...] | None] = (*(OwnGradients.options or ()), "rows", "unit", "clip")
    needs: ClassVar[tuple[Need, ...]] = (Z_UPDATE,)
    numbers: ClassVar[type[SharingNumbers]] = FreshNumbers
    part_weights: ClassVar[type[PartWeights]] = GramSteps
    slopes: ClassVar[type[PartSlopes]] = DualSlopes
    lasts: ClassVar[tuple[str, ...]] = (*OwnGradients.lasts, "duals")
    summary_share: ClassVar[float] = 0.2

    def scores(self, numbers: Numbers) -> SharedScores:
        return FreshScores(numbers.clip)

    def own_numbers(self, problem: Problem, options: ADMM) -> dict[str, float]:
        return {"clip": given(options.clip, CLIP[problem.scaled_loss.kind])}
