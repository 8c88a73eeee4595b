"""SGD1 as published: one record a round, named by the coordinator."""

from __future__ import annotations

import functools
import math
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Algorithm, Array, Coordination, answer, given, slope_bound
from sottovoce.data.block import SumRows
from sottovoce.gate.query import MessageArrays, Query, Reals, Round, Scheduled, Wholes, World
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.plan.release import grid_step
from sottovoce.privacy.calibration import sampled_one_epsilon
from sottovoce.privacy.events import Relation
from sottovoce.privacy.guarantee import Profile, strongest
from sottovoce.queries.pricing import Form, Pricing
from sottovoce.queries.sums import GradientSum
from sottovoce.solvers import SGD

RADIUS = 10.0  # |C| of the published step size, where no set is given


class PublishedSGDNumbers(Numbers):
    """G and |C|."""

    names_records: ClassVar[bool] = True

    slope_bound: float
    radius: float


class NamedRecordPricing(Pricing):
    """The coordinator names the records: there is no amplification against whoever has its coin."""

    def profiles(self, form: Form, plan: Plan, relation: Relation) -> dict[str, Profile]:
        """Given the coin, a record pays for the rounds that name it. Who sees the model alone has no coin."""
        seen = super().profiles(form, plan, relation)["coordinator"]
        noise = plan.releases[0].std / plan.releases[0].charged("replace-one")
        hidden = Profile.of(lambda delta: sampled_one_epsilon(plan.records, noise, plan.rounds, delta))
        return {"world": strongest(hidden, seen), "coordinator": seen, "parties": seen}


@functools.lru_cache(maxsize=4)
def named_records(plan: Plan) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(owner, place inside the owner) of the record of each round."""
    starts = np.cumsum([0] + [count for _, count in plan.parties])
    drawn = plan.public_coin("record").integers(plan.records, size=plan.rounds)
    owners = np.searchsorted(starts, drawn, side="right") - 1
    return owners, drawn - starts[owners]


class RecordGradient(Query):
    """n times the gradient of one named record: zero-out moves it by n G, replace-one by 2 n G.

    Guarantee: a record pays for the rounds that name it.
    """

    name = "record"
    title: ClassVar[str] = "the gradient of one record"
    needs: ClassVar[type] = SumRows
    each_person: ClassVar[bool] = True
    answered_by = Scheduled("the party whose record a public coin names", lambda plan: named_records(plan)[0])
    world_sees: ClassVar[World] = "each"

    def __init__(self, problem: Problem, party: str, slope: float) -> None:
        self.gradient = GradientSum(problem.dimension, slope, problem.scaled_loss)
        self.party, self.records = party, problem.records
        self.bound = problem.records * self.gradient.bound
        self.length, self.rounding_entries = problem.dimension, self.gradient.rounding_entries
        self.plan, self.takes = cast("Plan", problem), {"weights": Reals((self.length,)), "index": Wholes((1,))}

    def objection(self, number: int, told: MessageArrays) -> str | None:
        """The record must be the one that the public coin named."""
        named = named_records(self.plan)[1][number : number + 1]
        if np.array_equal(named, told.get("index", ())):
            return super().objection(number, told)
        return "names a record that the plan's public coin did not name"

    def uses(self, times: int) -> int:
        """As often as the most named record of this party is named."""
        owners, places = named_records(self.plan)
        mine = places[owners == self.plan.names.index(self.party)]
        return int(np.bincount(mine, minlength=1).max()) if times else 0

    def value(self, round: Round) -> Array:
        row = round.rows.take(round.told["index"])
        told = Round(round.plan, round.number, round.told, row)
        return self.records * self.gradient.value(told)


class PublishedSGD(Algorithm):
    """w <- Proj(w - eta(t) G_t), eta(t) = |C| / sqrt(t (n^2 L^2 + p std^2)), G_t = n times one record's gradient.

    n^2 rounds, std = 4 L n ln(1.25 n^2/delta) / epsilon; the last iterate, as printed.

    Guarantee: as many Gaussians as the most named record has uses, unamplified (`proof.md`).
    """

    name: ClassVar[str] = "sgd"
    form: ClassVar[str] = "published"
    title: ClassVar[str] = "SGD1 as published: one named record a round"
    published: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...] | None] = ("rounds", "slope_bound")
    pricing: ClassVar[Pricing] = NamedRecordPricing()
    numbers: ClassVar[type[Numbers]] = PublishedSGDNumbers
    asks: ClassVar[tuple[type[Query], ...]] = (RecordGradient,)

    def design(self, problem: Problem, options: SGD) -> Design:
        n, slope = problem.records, slope_bound(problem, options)
        rounds = given(options.rounds, n * n)
        std = 4 * slope * n * math.log(1.25 * n * n / problem.delta) / problem.epsilon
        query = RecordGradient(problem, problem.names[0], slope)
        return Design(
            rounds=rounds,
            numbers=PublishedSGDNumbers(slope_bound=slope, radius=RADIUS),
            releases=(Release.of(query, 0, rounds, std, grid_step(query, std)),),
            claimed_epsilon=problem.epsilon,
        )

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:
        return (RecordGradient(plan, party, plan.numbers.slope_bound),)

    def coordinate(self, plan: Plan) -> Coordination:
        """Ask for the gradient of the record that the coin names, and step."""
        weights, radius = np.zeros(plan.dimension), plan.numbers.radius
        spread = math.sqrt((plan.records * plan.numbers.slope_bound) ** 2 + plan.dimension * plan.releases[0].std ** 2)
        for t in range(plan.rounds):
            index = named_records(plan)[1][t : t + 1]
            gradient = yield from answer("record", weights=weights, index=index)
            step = radius / (spread * math.sqrt(t + 1))
            weights = plan.scaled_regulariser.prox(weights - step * gradient, step)
            weights *= min(1.0, radius / max(float(np.linalg.norm(weights)), 1e-300))
        return weights
