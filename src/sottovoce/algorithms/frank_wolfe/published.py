"""Frank-Wolfe over columns as published, Algorithm 2 of Lou and Cheung (2018): for comparison, its claim fails."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from sottovoce.algorithms.base import Array, Coordination, answers, given, limited
from sottovoce.algorithms.frank_wolfe.central import AtomChoice, radius_of
from sottovoce.algorithms.frank_wolfe.columns import MOST, ColumnAlgorithm, SketchNumbers, clipped_slopes, least_size
from sottovoce.errors import InputError
from sottovoce.gate.query import Integers, Query, Reals, Round
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.plan.release import Mechanism, grid_step
from sottovoce.plan.split import RowPart
from sottovoce.queries.sketches import FeatureSketch
from sottovoce.solvers import FrankWolfe

ZETA = 0.1  # the published sketch keeps inner products to about this share


class PublishedColumnNumbers(SketchNumbers):
    """Also how many of its columns each party considers for a choice."""

    sketch: Literal["gaussian"]
    candidates: int = Field(ge=1, lt=2**31)


class PublishedColumnFrankWolfe(ColumnAlgorithm):
    """Algorithm 2 as printed: in every round all K parties send an index and a sketched feature.

    Party k draws `candidates` of its columns by the public coin and sends the signed one of the largest +-g_j + Laplace
    noise of scale b = (2 G radius / (K n)) sqrt(32 T log(2/delta)) / epsilon (g the gradient of the mean loss), and
    J a_j + N(0, pi^2), pi = s(J) sqrt(K T) sqrt(2 (log(1/delta) + epsilon / 2)) / (epsilon / 2), s(J) the leading
    singular value of a Gaussian J, 1 + sqrt(n / m) in the limit. The point moves to
    (1 - step) w + step (radius / K) sum_k atom_k with step = 2 / (p t + 2), p = K candidates / d. Its limit is the
    solution on the product of K balls of radius / K, not on the ball.

    Guarantee: that of all K T choices and all K T features, whose costs add; the printed b leaves that K out, divides
    by it once more, and has the units of a step. The slopes are clipped to G = 1 + radius, without which nothing finite
    holds.
    """

    form: ClassVar[str] = "published-columns"
    title: ClassVar[str] = "Frank-Wolfe over columns as published: every party moves in every round"
    published: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...] | None] = ("rounds", "sketch_size", "candidates")
    mechanism: ClassVar[Mechanism] = "noisy-max"
    numbers: ClassVar[type[Numbers]] = PublishedColumnNumbers

    def design(self, problem: Problem, options: FrankWolfe) -> Design:
        """T = (n epsilon)^(2/3), m = log(sqrt T) / zeta^2 with zeta = 0.1."""
        if not problem.scaled_loss.quadratic or problem.labels == "held":
            raise InputError(
                f"solver={self.name!r}, calibration='paper' over columns is published for the squared loss and labels "
                "that all parties know; take PrivateLasso and labels='shared', or calibration='tight'."
            )
        radius, parties = radius_of(problem), len(problem.parties)
        printed = math.ceil((problem.records * problem.epsilon) ** (2 / 3))
        rounds = limited("rounds", given(options.rounds, printed), 1, MOST)
        size = given(options.sketch_size, math.ceil(max(math.log(math.sqrt(rounds)), 0.16) / ZETA**2))
        narrowest = min(problem.part(name).preparation.dimension for name in problem.names)
        numbers = PublishedColumnNumbers(
            radius=radius,
            slope_bound=1.0 + radius,
            sketch="gaussian",
            sketch_size=limited("sketch_size", size, least_size(rounds), MOST),
            candidates=limited("candidates", given(options.candidates, narrowest), 1, narrowest),
        )
        # b in the units of the scores, which are sums divided by G
        scale = 2 * radius / parties * math.sqrt(32 * rounds * math.log(2 / problem.delta)) / problem.epsilon
        half = problem.epsilon / 2
        std = (
            (1.0 + math.sqrt(problem.records / numbers.sketch_size))
            * math.sqrt(parties * rounds)
            * math.sqrt(2 * (math.log(1 / problem.delta) + half))
            / half
        )
        scores = PublishedScores(problem, numbers, problem.label_party_name)
        feature = FeatureSketch(problem, numbers, problem.label_party_name)
        releases = (
            Release.of(scores, 0, rounds, scale, grid_step(scores, scale), mechanism=self.mechanism),
            Release.of(feature, 0, rounds, std, grid_step(feature, std)),
        )
        return Design(rounds=rounds, numbers=numbers, releases=releases, claimed_epsilon=problem.epsilon)

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:
        self.check_choices(plan)
        return PublishedScores(plan, plan.numbers, party), FeatureSketch(plan, plan.numbers, party)

    def coordinate(self, plan: Plan) -> Coordination:
        """All parties choose, all send their feature; the sketch of the scores follows the point."""
        parts = {name: plan.part(name) for name in plan.names}
        weights, sketched = np.zeros(plan.dimension), np.zeros(plan.numbers.sketch_size)
        each = plan.numbers.radius / len(parts)
        for t in range(plan.rounds):
            codes = yield from answers("atom", sketch=sketched)
            chosen = {name: considered(plan, parts[name], t)[abs(int(code[0])) - 1] for name, code in codes.items()}
            places = {name: {"place": np.array([local], dtype=np.int64)} for name, local in chosen.items()}
            features = yield from answers("feature", each=places)
            length = 2.0 / (len(parts) * plan.numbers.candidates / plan.dimension * t + 2.0)
            weights, sketched = (1 - length) * weights, (1 - length) * sketched
            for name, feature in features.items():
                move = length * each * (1.0 if codes[name][0] > 0 else -1.0)
                weights[parts[name].place(int(chosen[name]), plan.features)] += move
                sketched += move * feature
        return weights


class PublishedScores(AtomChoice):
    """-sum_i r_i x_ij / G for the columns drawn for this round, r_i = (J'q)_i - y_i clipped to +-G.

    Guarantee: as of every choice of an atom, zero-out moves each by at most 1, replace-one by 2.
    """

    def __init__(self, problem: Problem, numbers: Numbers, party: str) -> None:
        super().__init__(problem)
        self.part, self.slope_bound = problem.part(party), float(numbers.slope_bound)
        self.places = min(int(numbers.candidates), self.part.preparation.dimension)
        self.takes = {"sketch": Reals((numbers.sketch_size,))}

    def value(self, round: Round) -> Array:
        scores = round.memory.back(round.told["sketch"])
        slopes = clipped_slopes(round.plan.scaled_loss, round.rows, scores, None, self.slope_bound)
        drawn = considered(round.plan, self.part, round.number)
        return round.rows.column_dots(slopes)[drawn] / -self.slope_bound


def considered(plan: Plan, part: RowPart, number: int) -> Integers:
    """The columns of a party that are considered in a round."""
    width, count = part.preparation.dimension, plan.numbers.candidates
    if count >= width:
        return np.arange(width)
    return np.sort(plan.public_coin(f"columns {part.start} {number}").permutation(width)[:count])
