"""Frank-Wolfe over columns as published, Algorithm 2 of Lou and Cheung (2018): for comparison, its claim fails."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import (
    Ask,
    Coordination,
    Design,
    Problem,
    Solution,
    draft,
    option,
    public_coin,
    usable_numbers,
)
from sottovoce.algorithms.frank_wolfe.atoms import column_dots, radius_of
from sottovoce.algorithms.frank_wolfe.columns import (
    MOST,
    ColumnFrankWolfe,
    FeatureSketch,
    PartScores,
    check_numbers,
    clipped_slopes,
    least_size,
)
from sottovoce.algorithms.frank_wolfe.sketches import SKETCHES, largest_singular_value
from sottovoce.data.block import Block
from sottovoce.data.bounds import LARGEST
from sottovoce.door.gate import Gate, Released
from sottovoce.door.query import Query, Walk
from sottovoce.errors import InputError
from sottovoce.plan.plan import Part, Plan, Release, grid_step
from sottovoce.privacy.accounting import Event, Relation

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

ZETA = 0.1  # the published sketch keeps inner products to about this share


class PublishedFrankWolfe(ColumnFrankWolfe):
    """Algorithm 2 as printed: in every round all K parties send an index and a sketched feature.

    Party k draws `candidates` of its columns by the public coin and sends the signed one of the largest +-g_j + Laplace
    noise of scale b = (2 G radius / (K n)) sqrt(32 T log(2/delta)) / epsilon (g the gradient of the mean loss), and
    J a_j + N(0, pi^2), pi = s(J) sqrt(K T) sqrt(2 (log(1/delta) + epsilon / 2)) / (epsilon / 2), s(J) the leading
    singular value of a Gaussian J. The point moves to (1 - step) w + step (radius / K) sum_k atom_k with
    step = 2 / (p t + 2), p = K candidates / d. Its limit is the solution on the product of K balls of radius / K, not
    on the ball.

    Guarantee: that of all K T choices and all K T features, whose costs add; the printed b leaves that K out, divides
    by it once more, and has the units of a step. The slopes are cut to G = 1 + radius, without which nothing finite
    holds.
    """

    options: ClassVar[tuple[str, ...]] = ("rounds", "sketch_size", "candidates")

    def design(self, problem: Problem) -> Design:
        """T = (n epsilon)^(2/3), m = log(sqrt T) / zeta^2 with zeta = 0.1."""
        if problem.loss.name != "squared" or problem.labels == "held":
            raise InputError(
                f"solver={self.name!r}, calibration='paper' over columns is published for the squared loss and labels "
                "that all parties know; take PrivateLasso and labels='shared', or calibration='tight'."
            )
        radius, parties = radius_of(self.name, problem), len(problem.parties)
        published = math.ceil((problem.records * problem.epsilon) ** (2 / 3))
        rounds = option(problem, "rounds", published, low=1, high=MOST, whole=True)
        size = math.ceil(max(math.log(math.sqrt(rounds)), 0.16) / ZETA**2)
        widths = [
            width + (place == problem.holder and problem.fit_intercept) for place, width in enumerate(problem.columns)
        ]
        numbers = {
            "radius": radius,
            "sketch": SKETCHES.index("gaussian"),
            "sketch_size": option(problem, "sketch_size", size, low=least_size(rounds), high=MOST, whole=True),
            "slope_bound": 1.0 + radius,
            "blurred_bound": 1.0 + radius,
            "candidates": option(problem, "candidates", min(widths), low=1, high=min(widths), whole=True),
            "cap": 1.0,
        }
        plan = draft(problem, numbers, "entries")
        # b in the units of the scores, which are sums divided by G
        scale = 2 * radius / parties * math.sqrt(32 * rounds * math.log(2 / problem.delta)) / problem.epsilon
        half = problem.epsilon / 2
        std = (
            largest_singular_value(plan)
            * math.sqrt(parties * rounds)
            * math.sqrt(2 * (math.log(1 / problem.delta) + half))
            / half
        )
        scores = PublishedScores(plan, plan.part(plan.parties[problem.holder][0]))
        feature = FeatureSketch(plan, None)
        releases = (
            Release.of(scores, 0, rounds, scale, grid_step(scores, scale), mechanism="noisy-max"),
            Release.of(feature, 0, rounds, std, grid_step(feature, std)),
        )
        return Design(rounds, numbers, releases, claimed_epsilon=problem.epsilon, layout="entries")

    def queries_of(self, plan: Plan, party: str) -> Mapping[str, Query | Walk]:
        """An index and a feature."""
        check_numbers(plan, "candidates")
        part = plan.part(party)
        return {"atom": PublishedScores(plan, part), "feature": FeatureSketch(plan, part)}

    def coordinate(self, plan: Plan) -> Coordination:
        """All parties choose, all send their feature; the sketch of the scores follows the point."""
        parts = {name: plan.part(name) for name, _ in plan.parties}
        weights, sketched = np.zeros(plan.dimension), np.zeros(int(plan["sketch_size"]))
        each = plan["radius"] / len(parts)
        for t in range(plan.rounds):
            codes = yield Ask("atom", {"sketch": sketched}, round=t)
            chosen = {name: considered(plan, parts[name], t)[abs(int(code[0])) - 1] for name, code in codes.items()}
            places = {name: {"place": np.array([local], dtype=np.int64)} for name, local in chosen.items()}
            features = yield Ask("feature", {}, round=t, each=places)
            length = 2.0 / (len(parts) * plan["candidates"] / plan.dimension * t + 2.0)
            weights, sketched = (1 - length) * weights, (1 - length) * sketched
            for name, feature in features.items():
                move = length * each * (1.0 if codes[name][0] > 0 else -1.0)
                weights[parts[name].place(int(chosen[name]), plan.features)] += move
                sketched += move * feature
        return Solution(weights)

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
        """An index or a feature."""
        del plan
        if query.name == "atom":
            return gate.noisy_max(query, round_, block, arrays["sketch"], round_, memory)
        return gate.gaussian(query, round_, block, int(arrays["place"][0]), memory)

    def objection(self, plan: Plan, query: str, round_: int, arrays: Mapping[str, NDArray[Any]]) -> str | None:
        """The sketch of the scores, or which feature is meant."""
        if query == "feature":
            place = arrays.get("place", np.zeros(0))
            fits = place.dtype == np.int64 and place.shape == (1,) and 0 <= place[0] <= max(plan.columns)
            return (
                None if fits else f"query {query!r} in round {round_} needs the place of one of the party's features."
            )
        size = int(plan["sketch_size"])
        if usable_numbers(arrays.get("sketch", np.zeros(0)), size):
            return None
        return f"query {query!r} needs a sketch of {size} float64 numbers, none above {LARGEST:g}."

    def events(self, plan: Plan, relation: Relation, party: str) -> tuple[Event, ...]:  # noqa: ARG002
        """What all parties release together."""
        return tuple(release.event(relation, count=release.count * len(plan.parties)) for release in plan.releases)

    def example(self, plan: Plan, query: str) -> Ask:
        """All messages of a kind have one size."""
        if query == "feature":
            return Ask(query, {"place": np.zeros(1, dtype=np.int64)})
        return Ask(query, {"sketch": np.zeros(int(plan["sketch_size"]))})


class PublishedScores(PartScores):
    """-sum_i r_i x_ij for the columns drawn for this round, r_i = (J'q)_i - y_i cut to +-G."""

    stays = False

    def value(self, block: Block, *arguments: Any) -> Array:
        """One pass over the party's columns."""
        sketched, round_, sketch = arguments
        slopes = clipped_slopes(self.plan, block, sketch.back(sketched), None, sketch, self.bound)
        return column_dots(block, slopes)[considered(self.plan, self.part, round_)] / -self.bound


def considered(plan: Plan, part: Part, round_: int) -> Integers:
    """The columns of a party that are considered in a round of the published form."""
    width = part.stop - part.start + part.constant
    count = int(plan["candidates"])
    if count >= width:
        return np.arange(width)
    return np.sort(public_coin(plan, f"columns {part.start} {round_}").permutation(width)[:count])
