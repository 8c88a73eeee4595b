"""Training over columns by gradients that each party releases of its own columns: what `admm` and `fdml` share.

The coordinator knows all weights. Each party m makes slopes r_i, one for each record, of its own clean scores x_m'w_m
and of noisy scores of the other parties, and releases sum_i r_i x_m with noise. The slopes are clipped to +-G: so a
record moves the gradient by its own term alone, and noise of a central kind suffices. A form says how the others'
scores are told (`NoisyRowScores`), how a party's weights move (`PartWeights`) and what its slopes are (`PartSlopes`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sottovoce.algorithms.base import (
    MOST_ROUNDS,
    Algorithm,
    Array,
    Asking,
    Coordination,
    Solution,
    TailAverage,
    answer,
    answers,
    given,
    limited,
    slope_bound,
)
from sottovoce.algorithms.sharing.admm_exact import check_one_set, curvature
from sottovoce.data.block import Block, Layout
from sottovoce.data.bounds import LARGEST
from sottovoce.errors import InputError, RefusedError
from sottovoce.gate.query import Query, Together
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.privacy.calibration import mu_for
from sottovoce.privacy.events import inside
from sottovoce.queries.parts import (
    FLOAT,
    NoisyLabels,
    PartGradient,
    PartQuery,
    PartRows,
    PartSlopes,
    RowScores,
    part_norm,
)
from sottovoce.solvers import ADMM, FDML

OthersScores = Asking[tuple[dict[str, Array], dict[str, float]]]

ROUNDS = 64
LABEL_SHARE = 0.3  # of mu^2, where one party alone knows the labels
OWN_SHARE = 1 / 3  # a party whose others are barely heard lets its own columns speak for them, by so much for each
RIDGE = 2e-6  # N B^2 times this is added to the penalty: it keeps the noise of the rows out of the weights
SPREAD = {"classification": 2.0, "regression": 0.1}  # mean square of the scores that noisy labels leave to be found


class SharingNumbers(Numbers):
    """G of the parties that know the labels, G of the others, and the noise of a slope that comes from noisy labels."""

    slope_bound: Annotated[float, Field(gt=0, le=LARGEST)]
    held_bound: Annotated[float, Field(gt=0, le=LARGEST)]
    label_noise: Annotated[float, Field(ge=0, le=LARGEST)]


class NoisyRowScores:
    """How the scores of each party reach the others: X~_m w_m of rows X~_m with noise that a party draws once a run.

    Guarantee: the rows cost (b_m / std_rows)^2 for each party, whatever is made of them. Edges: a party with a ledger
    that is stopped goes on with the same rows.
    """

    share: ClassVar[float] = 0.6  # of mu^2, by default

    def queries(self, problem: Problem, party: str) -> tuple[Query, ...]:
        scores = RowScores(problem, party)
        return scores.source, scores

    def releases(self, problem: Problem, mu: float, rounds: int) -> list[Release]:
        rows = Release.at_mu(together(PartRows, problem), 0, 1, mu, problem.relation, "kept")
        return [rows, Release.derived("scores", 0, rounds)]

    def scores_of_others(self, plan: Plan, _number: int, parts: Mapping[str, PartWeights]) -> OthersScores:
        """Each party's noisy scores, centred, and the standard deviation of their noise; here asked in every round."""
        weights = {name: {"weights": part.weights[: part.width]} for name, part in parts.items()}
        noisy = yield from answers("scores", each=weights)
        std = plan.release("rows").std
        centred = {name: noisy[name] - part.centre for name, part in parts.items()}
        sizes = {name: float(own["weights"] @ own["weights"]) for name, own in weights.items()}  # |w_m|^2
        return centred, {name: std * math.sqrt(size) for name, size in sizes.items()}


class OwnGradients(Algorithm):
    """Rounds of gradients; the forms say how scores are told and what a step is.

    The slopes of party m are taken at s = a_m + c_m x_m'w_m + theta_m sum_{k != m} (noisy, centred scores of party k),
    theta_m = min(1, G / the standard deviation of their noise): what is mostly noise is turned down, to where it stays
    within the slopes' bound. Scores are centred by released means, and c_m = 1 + (1 - theta_m) (M - 1) / 3 lets a
    party's own columns, with which those of the others go along, stand for what it does not hear.

    Guarantee: mu^2 = (cost of what tells the scores) + sum_m [(cost of the column summary) + T (B_m /
    std_gradient)^2] (+ 1 / std_labels^2 for held labels) against the coordinator and the parties, B_m^2 = b_m^2 + 1 and
    b_m the bound of a part; against the world, who sees the model alone, gradients and summaries without the rest
    (`proof.md`). Replace-one doubles the sensitivities.
    Edges: a party with a ledger that is stopped goes on with the slopes that it stored.
    """

    splits = ("columns",)
    options: ClassVar[tuple[str, ...] | None] = ("rounds", "slope_bound", "row_share", "world_epsilon")
    layout: ClassVar[Layout] = "entries"

    numbers: ClassVar[type[SharingNumbers]] = SharingNumbers
    part_weights: ClassVar[type[PartWeights]]
    slopes: ClassVar[type[PartSlopes]]
    lasts: ClassVar[tuple[str, ...]] = ("number", "noisy_labels", "current")  # the slopes, and what they follow from
    summary_share: ClassVar[float]  # of what the scores leave

    def scores(self, _numbers: Numbers) -> NoisyRowScores:
        return NoisyRowScores()

    def own_numbers(self, _problem: Problem, _options: Any) -> dict[str, float]:
        """What a form has beside the numbers of all of them."""
        return {}

    def default_rounds(self, _problem: Problem, _bound: float, _signal: float) -> int:
        """How many rounds, by a public rule; the signal is N / (std of a mean gradient's noise).

        Always the same, where the total noise does not depend on it.
        """
        return ROUNDS

    def design(self, problem: Problem, options: ADMM | FDML) -> Design:
        """Shares of mu^2: what tells the scores, column summaries, gradients and, if they are held, labels."""
        check_one_set(problem, self.name)
        relation, bound = problem.relation, slope_bound(problem, options)
        fields = {"slope_bound": bound, "held_bound": bound, "label_noise": 0.0, **self.own_numbers(problem, options)}
        label_share, releases = 0.0, list[Release]()
        if problem.held_labels:
            label_share = LABEL_SHARE
            labels = Release.at_mu(NoisyLabels(problem, FLOAT), 0, 1, problem.mu * math.sqrt(label_share), relation)
            noise = labels.std * (0.5 if problem.scaled_loss.kind == "classification" else 1.0)  # of a slope
            fields |= {"label_noise": noise, "held_bound": math.hypot(bound, 0.5 * noise)}
            releases.append(labels)
        numbers = self.numbers(**fields)
        scores = self.scores(numbers)
        part = (1 - given(options.row_share, scores.share)) * (1 - label_share)  # of mu^2, that the model may cost
        if options.world_epsilon is not None:  # against the world
            if options.row_share is not None:
                raise InputError("row_share and world_epsilon both say how much noise the rows get; give one of them.")
            part = (mu_for(options.world_epsilon, inside(problem.delta)) / problem.mu) ** 2
            if not part <= 0.99 * (1 - label_share):
                raise InputError(
                    f"world_epsilon={options.world_epsilon!r} leaves nothing for the rows, which the coordinator and "
                    f"the parties see; take less, well below epsilon={problem.epsilon:g}."
                )
        world = part / (1 - label_share)
        rest = problem.mu * math.sqrt(1 - label_share)
        shares = (1 - world, world * self.summary_share, world * (1 - self.summary_share))
        summaries, gradients = together(self.part_weights.summary, problem), together(PartGradient, problem, 1.0)
        single = gradients.sensitivity(relation) / (rest * math.sqrt(shares[2]))
        rule = self.default_rounds(problem, bound, problem.records / single)
        rounds = limited("rounds", given(options.rounds, rule), 2, MOST_ROUNDS)
        releases += [
            *scores.releases(problem, rest * math.sqrt(shares[0]), rounds),
            Release.at_mu(summaries, 0, 1, rest * math.sqrt(shares[1]), relation),
            Release.at_mu(gradients, 0, rounds, rest * math.sqrt(shares[2]), relation),
        ]
        return Design(rounds=rounds, numbers=numbers, releases=tuple(releases))

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:
        """What tells the scores, the summary, gradients and, where they are held, labels: none may be missing."""
        scores, summary = self.scores(plan.numbers).queries(plan, party), self.part_weights.summary(plan, party)
        labels = (NoisyLabels(plan, FLOAT),) if plan.held_labels else ()
        found = (*scores, summary, PartGradient(plan, party, bound_of(plan, party)), *labels)
        missing = [query.name for query in found if not plan.has(query.name)]
        if missing:
            raise RefusedError(f"the plan does not release {missing[0]!r}, which {self.name} needs.")
        return found

    def remember(self, plan: Plan, _rows: Block) -> PartSlopes:
        return self.slopes(plan.scaled_loss)

    def coordinate(self, plan: Plan) -> Coordination:
        """Scores to all parties, gradients back, a step of every party's weights; all of it of released values."""
        labels = (yield from answer("labels")) if plan.held_labels else None
        summaries = yield from answers(self.part_weights.summary.name)
        parts = {name: self.part_weights(plan, name, summary) for name, summary in summaries.items()}
        scores = self.scores(plan.numbers)
        for t in range(plan.rounds):
            centred, stds = yield from scores.scores_of_others(plan, t, parts)  # D_k x_k of each party k, with noise
            messages = tell_scores(parts, centred, stds, plan.numbers.slope_bound)
            if t == 0 and labels is not None:
                messages |= {
                    name: messages[name] | {"labels": labels} for name in parts if name != plan.label_party_name
                }
            gradients = yield from answers("gradient", each=messages)  # D_m'r; of ADMM after the z- and the dual update
            for name, part in parts.items():
                part.move(t, gradients[name])  # the x-update, or a gradient step
        return Solution(join_means(plan, parts))


def tell_scores(
    parts: Mapping[str, PartWeights], centred: Mapping[str, Array], stds: Mapping[str, float], bound: float
) -> dict[str, dict[str, NDArray[Any]]]:
    """What each party is told: its own weights, and what the others add to the score of every record."""
    everyone, messages = np.asarray(sum(centred.values())), dict[str, dict[str, NDArray[Any]]]()
    for name, part in parts.items():
        noise = math.hypot(*(std for other, std in stds.items() if other != name), 0.0)
        heard = min(1.0, bound / noise) if noise > 0.0 else 1.0
        part.own_share = 1 + (1 - heard) * OWN_SHARE * (len(parts) - 1)
        offset = heard * (everyone - centred[name]) + part.level - part.own_share * part.centre
        messages[name] = {"weights": part.own_share * part.weights[: part.width], "offset": offset}
    return messages


class PartWeights(ABC):
    """One party's weights [w_m, a_m], known to the coordinator, and the mean of its rows."""

    summary: ClassVar[type[PartQuery]]  # what a party tells of its columns before the first round

    def __init__(self, plan: Plan, party: str, mean: Array) -> None:
        self.plan, self.width, self.mean = plan, len(mean), mean
        self.regulariser = plan.part_regulariser(party)
        self.bound = bound_of(plan, party)
        norms = {name: part_norm(plan, name) for name in plan.names}
        self.ridge = RIDGE * plan.records * sum(norm**2 for norm in norms.values())
        if plan.held_labels and party != plan.label_party_name:  # what a ridge regression adds for labels with noise
            loss = plan.scaled_loss
            self.ridge += (plan.numbers.label_noise * norms[party]) ** 2 / (curvature(loss) * SPREAD[loss.kind])
        self.weights = np.zeros(self.width + plan.fit_intercept)
        self.own_share = 1.0
        self._half = plan.rounds // 2
        self.early = TailAverage(len(self.weights), self._half // 2)  # its mean is that of the second quarter
        self.tail = TailAverage(len(self.weights), self._half)  # and of the second half

    @property
    def centre(self) -> float:
        """The mean of the party's scores."""
        return float(self.mean @ self.weights[: self.width])

    @property
    def level(self) -> float:
        """The mean of all scores, as this party sees it."""
        return self.centre + (float(self.weights[-1]) if len(self.weights) > self.width else 0.0)

    @property
    def overlap(self) -> float:
        """How much shorter a step is, f = max(M / 2, c_m): all parties move at once, and c_m x_m'w_m is in a score."""
        return max(len(self.plan.parties) / 2, self.own_share)

    def move(self, number: int, gradient: Array) -> None:
        """A step against a released gradient and that of the ridge."""
        whole = self.bound * gradient
        whole[: self.width] += self.ridge * self.weights[: self.width]
        self.weights = self.step(whole)
        if number < self._half:
            self.early.add(number, self.weights)
        self.tail.add(number, self.weights)

    @abstractmethod
    def step(self, gradient: Array) -> Array:
        """The next weights."""

    @abstractmethod
    def spread(self, weights: Array) -> float:
        """How far the party's scores vary, or what stands for it."""


def join_means(plan: Plan, parts: Mapping[str, PartWeights]) -> Array:
    """All weights, and the level of the party whose scores vary most: its intercept is the nearest."""
    weights = np.zeros(plan.dimension)
    for name, part in parts.items():
        place = plan.part(name)
        weights[place.start : place.stop] = part.tail.value[: part.width]
    if plan.fit_intercept:
        widest = max(parts.values(), key=lambda part: part.spread(part.tail.value))
        others = (part for part in parts.values() if part is not widest)
        centres = sum(float(part.mean @ part.tail.value[: part.width]) for part in others)
        weights[plan.features] = float(widest.tail.value[-1]) - centres
    return weights


def together(query: Callable[..., PartQuery], problem: Problem, *about: float) -> Together:
    """The queries of all parties."""
    return Together([query(problem, name, *about) for name in problem.names])


def bound_of(plan: Plan, party: str) -> float:
    """G of a party: larger where labels with noise make the slopes."""
    noisy = plan.held_labels and party != plan.label_party_name
    return float(plan.numbers.held_bound if noisy else plan.numbers.slope_bound)
