"""`admm`: private ADMM sharing on rows with noise that is drawn once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from pydantic import Field

from sottovoce.algorithms.base import Z_UPDATE, Array, Need, answers, given
from sottovoce.algorithms.sharing.admm_exact import curvature, momentum_step
from sottovoce.algorithms.sharing.gradients import (
    NoisyRowScores,
    OthersScores,
    OwnGradients,
    PartWeights,
    SharingNumbers,
    together,
)
from sottovoce.gate.query import Query, Reals, Round, World
from sottovoce.losses import Loss
from sottovoce.penalties.quadratic import QuadraticMetric
from sottovoce.plan import Numbers, Plan, Problem, Release
from sottovoce.queries.parts import PartGradient, PartGram, PartQuery, PartSlopes, PartSums
from sottovoce.solvers import ADMM


class DualSlopes(PartSlopes):
    """r = y + rho (s - z) after the updates of copies z and duals y; in the first round the loss's slopes at s.

    z = argmin l(z) - y z + (rho/2) (s - z)^2, y <- y + rho (s - z), for every record on its own.
    """

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss)
        self.rho = curvature(loss) * (1.0 if loss.convex else 2.0)  # the minimum over z must be one
        self.duals: Array | None = None

    def make(self, scores: Array, labels: Array) -> Array:
        """Update z, then y; z itself is not needed again."""
        if self.duals is None:
            self.duals = self.loss_slopes(scores, labels)
            return self.duals
        noisy = self.noisy_labels is not None
        copies = self.loss.copies(scores, self.duals, labels, self.rho, noisy=noisy)  # z
        self.duals = self.duals + self.rho * (scores - copies)  # y
        return np.asarray(self.duals + self.rho * (scores - copies))


class GramSteps(PartWeights):
    """argmin N pen(u) + <q_m, u> + 1/2 |u - w_m|^2 in the metric f rho G_m + lam0 + ridge, G_m a released Gram matrix.

    rho is the loss's curvature, at most 1, and f the `overlap`.
    """

    summary: ClassVar[type[PartQuery]] = PartGram

    def __init__(self, plan: Plan, party: str, triangle: Array) -> None:
        query = PartGram(plan, party)
        gram, width = query.matrix(triangle), query.width
        mean = gram[:width, -1] / plan.records if plan.fit_intercept else np.zeros(width)
        super().__init__(plan, party, mean)
        values, self.vectors = np.linalg.eigh(gram)
        self.values = np.maximum(values, 0.0)
        self.moments = gram[:width, :width] / plan.records - np.outer(mean, mean)
        # lam0 = max(T s B d / 200, 0.35 std_gram sqrt d, s^2 T d / N), s sqrt(T) the std of a gradient; d of all parts
        dimension = plan.features + len(plan.parties) * plan.fit_intercept
        std, noise, rounds = plan.release("gradient").std, plan.release("gram").std, plan.rounds
        norm = together(PartGradient, plan, 1.0).sensitivity("zero-out")
        self.damping = max(
            self.bound * std * math.sqrt(rounds) * norm * dimension / 200,
            0.35 * noise * math.sqrt(dimension),
            std**2 * dimension / plan.records,
        )

    def step(self, gradient: Array) -> Array:
        steepness = self.overlap * curvature(self.plan.scaled_loss)
        metric = QuadraticMetric(steepness * self.values + self.damping + self.ridge, self.vectors)
        return metric.step(self.weights, gradient, self.regulariser, self.plan.records)

    def spread(self, weights: Array) -> float:
        """The variance of the scores, by the released moments."""
        return float(weights[: self.width] @ self.moments @ weights[: self.width])


class NoisyRowsADMM(OwnGradients):
    """ADMM sharing whose messages are scores of noisy rows, noise drawn once (`OwnGradients` has the round, its cost).

    At the scores of a round, each party updates its copies and duals of all records (`DualSlopes`) and weighs its clean
    rows by the slopes r, cut: the gradient of the x-update, to which noise is added. The coordinator solves for the
    weights (`GramSteps`); lam0 as in `newton`. The answer is the mean of the second half.
    """

    name: ClassVar[str] = "admm"
    form: ClassVar[str] = "noisy rows"
    title: ClassVar[str] = "private ADMM sharing: rows with noise once, noisy gradients"
    needs: ClassVar[tuple[Need, ...]] = (Z_UPDATE,)
    options: ClassVar[tuple[str, ...] | None] = (*(OwnGradients.options or ()), "rows", "unit")
    part_weights: ClassVar[type[PartWeights]] = GramSteps
    slopes: ClassVar[type[PartSlopes]] = DualSlopes
    lasts: ClassVar[tuple[str, ...]] = (*OwnGradients.lasts, "duals")
    summary_share: ClassVar[float] = 0.25


CLIP = {"classification": 2.0, "regression": 0.5}  # of a centred score


class FreshNumbers(SharingNumbers):
    """And c, to which a centred score is cut."""

    clip: float = Field(ge=1e-9, le=1e9)


class ClippedScores(PartQuery):
    """x_m'u - centre for each record, clipped to +-clip and divided by clip; 0 for a null row. u and centre are public.

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


class FreshScores(NoisyRowScores):
    """Nothing in the first half of the rounds, then the scores of one ask for the rest of them."""

    share: ClassVar[float] = 0.5

    def __init__(self, clip: float) -> None:
        self.clip = clip
        self._told: dict[str, Array] = {}

    def queries(self, problem: Problem, party: str) -> tuple[Query, ...]:
        return (ClippedScores(problem, party, self.clip),)

    def releases(self, problem: Problem, mu: float, rounds: int) -> list[Release]:
        scores = together(ClippedScores, problem, self.clip)
        return [Release.at_mu(scores, rounds // 2, 1, mu, problem.relation)]

    def scores_of_others(self, plan: Plan, number: int, parts: Mapping[str, PartWeights]) -> OthersScores:
        """At the means of the second quarter of the weights; before they are told their noise is infinite."""
        half = plan.rounds // 2
        if number == half:
            means = {name: (part.mean, part.early.value[: part.width]) for name, part in parts.items()}
            asked = {name: {"weights": own, "centre": np.array([mean @ own])} for name, (mean, own) in means.items()}
            told = yield from answers("scores", each=asked)
            self._told = {name: self.clip * told[name] for name in parts}
        std = self.clip * plan.release("scores").std if number >= half else math.inf
        return self._told or dict.fromkeys(parts, np.zeros(plan.records)), dict.fromkeys(parts, std)


class FreshADMM(OwnGradients):
    """ADMM sharing (`NoisyRowsADMM` has the updates) with fresh noise on the scores themselves.

    In the first half of the rounds each party is alone with its columns. Then it tells its scores x_m'u_m, centred and
    clipped to +-c, with noise for each; u_m is the mean of the second quarter of its weights. They are what the other
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

    def scores(self, numbers: Numbers) -> NoisyRowScores:
        return FreshScores(numbers.clip)

    def own_numbers(self, problem: Problem, options: ADMM) -> dict[str, float]:
        return {"clip": given(options.clip, CLIP[problem.scaled_loss.kind])}


FEWEST, MOST, NOISE = 16, 256, 0.2  # rounds, and how far the noise may carry the weights in all of them


class LossSlopes(PartSlopes):
    """r = l'(s, label)."""

    def make(self, scores: Array, labels: Array) -> Array:
        return self.loss_slopes(scores, labels)


class MeanSteps(PartWeights):
    """Steps of length 1 / (f k N B_m^2 + ridge) in all directions, k the loss's curvature, with momentum."""

    summary: ClassVar[type[PartQuery]] = PartSums

    def __init__(self, plan: Plan, party: str, sums: Array) -> None:
        query = PartSums(plan, party)
        super().__init__(plan, party, sums / plan.records if plan.fit_intercept else np.zeros(query.width))
        self.before = self.weights
        self.steepness = curvature(plan.scaled_loss) * plan.records * query.norm_with_intercept**2

    def step(self, gradient: Array) -> Array:
        length = 1 / (self.overlap * self.steepness + self.ridge)
        free = momentum_step(self.weights, self.before, length * gradient)
        self.before = self.weights
        return self.regulariser.prox(free, length * self.plan.records)

    def spread(self, weights: Array) -> float:
        """How far from even the party's level is: without moments, the part that says most is taken for the widest."""
        return abs(float(self.mean @ weights[: self.width] + weights[self.width :].sum()))


class NoisyRowsFDML(OwnGradients):
    """Gradient steps on scores of rows with noise, drawn once (`OwnGradients` has the round and its cost).

    A party weighs its clean rows by the slopes l'(s_i, label_i), cut, and says the sum with noise: g_m, by which its
    weights move (`MeanSteps`). Before the first round each party tells the means of its columns. The answer is the mean
    of the second half.
    """

    name: ClassVar[str] = "fdml"
    form: ClassVar[str] = "noisy rows"
    title: ClassVar[str] = "private gradient steps: rows with noise once, noisy gradients"
    part_weights: ClassVar[type[PartWeights]] = MeanSteps
    slopes: ClassVar[type[PartSlopes]] = LossSlopes
    summary_share: ClassVar[float] = 0.05

    def default_rounds(self, problem: Problem, bound: float, signal: float) -> int:
        """Fewer where there is more noise: steps that do not shrink add it up."""
        norm = together(PartGradient, problem, 1.0).sensitivity("zero-out")
        most = NOISE * curvature(problem.scaled_loss) * signal * norm / bound
        return int(min(MOST, max(FEWEST, most)))
