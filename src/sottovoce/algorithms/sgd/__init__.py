"""`sgd`: gradients of secret samples (SGD1 made sound; one party alone is DP-SGD), and SGD1 as published."""

from __future__ import annotations

import functools
import math
from typing import ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import (
    WALK,
    Algorithm,
    Array,
    Coordination,
    Solution,
    TailAverage,
    answer,
    given,
    how_far,
    slope_bound,
    total,
)
from sottovoce.algorithms.gradient import ball_radius, start_in, step_in
from sottovoce.data.block import SumRows
from sottovoce.errors import warn
from sottovoce.gate.query import MessageArrays, Query, Reals, Round, Scheduled, Wholes, World
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.plan.release import grid_step
from sottovoce.privacy.calibration import noise_multiplier_for
from sottovoce.privacy.events import Relation, inside
from sottovoce.privacy.guarantee import Profile
from sottovoce.queries.pricing import Form, Pricing
from sottovoce.queries.sums import ColumnSizes, GradientSum
from sottovoce.solvers import SGD

Schedule = Literal["all", "one-party"]


class SGDNumbers(Numbers):
    """G, the length of a step, the rate of the secret coins, and who answers a round."""

    slope_bound: float
    step: float
    rate: float
    schedule: Schedule


class PrivateSGD(Algorithm):
    """w <- prox(w - step G / (rate N), step), G = sum over sampled records of clip(l'_i) x_i + N(0, std^2).

    Every record flips a secret coin of probability `rate` each round, inside its party's gate. `schedule="all"`: every
    party answers every round. `schedule="one-party"`: a public coin, drawn before the budget is reserved, names one a
    round (party m with probability n_m / N); there is no amplification from that choice.

    Guarantee: T Poisson-subsampled Gaussians, T the number of rounds in which the party answers (`proof.md`).
    Edges: an empty batch is answered with noise alone; the batch size is never revealed. Without privacy rows have any
    length: the parties tell its mean square R^2 first, and steps are divided by it.
    """

    name: ClassVar[str] = "sgd"
    form: ClassVar[str] = "private"
    title: ClassVar[str] = "stochastic gradients with secret Poisson sampling (SGD1, DP-SGD)"
    secure = ("rows",)
    weighted: ClassVar[bool] = True
    private: ClassVar[bool | None] = None
    numbers: ClassVar[type[Numbers]] = SGDNumbers
    asks: ClassVar[tuple[type[Query], ...]] = (GradientSum, ColumnSizes)

    def design(self, problem: Problem, options: SGD) -> Design:
        """A rate of 0.1 and 200 rounds; the step keeps the noise's random walk below WALK."""
        query = GradientSum(problem.dimension, slope_bound(problem, options), problem.scaled_loss)
        curvature = query.loss.curvature_bound
        step = 1 / curvature if math.isfinite(curvature) else 1.0
        rate, rounds, schedule = given(options.rate, 0.1), given(options.rounds, 200), given(options.schedule, "all")
        release = Release.of(query, 0, rounds, 0.0, 1.0, rate)
        if problem.private:
            release = sampled_release(problem, query, rate, rounds)
            noises = 1 if schedule == "one-party" else problem.channel.variance
            walk = release.std * math.sqrt(noises * rounds * problem.dimension) / (rate * problem.records)
            step = min(step, WALK / walk)
        numbers = SGDNumbers(
            slope_bound=query.slope_bound, step=given(options.step, step), rate=rate, schedule=schedule
        )
        sizes = () if problem.private else (Release.of(ColumnSizes(problem.dimension), 0, 1, 0.0, 1.0),)
        return Design(rounds=rounds, numbers=numbers, releases=(*sizes, release))

    def queries(self, plan: Plan, _party: str) -> tuple[Query, ...]:
        kind = GradientSum if plan.numbers.schedule == "all" else NamedGradient
        sizes = () if plan.private else (ColumnSizes(plan.dimension),)
        return *sizes, kind(plan.dimension, plan.numbers.slope_bound, plan.scaled_loss)

    def coordinate(self, plan: Plan) -> Coordination:
        """Descend on noisy batches; return the mean of the second half of the iterates."""
        weights, length = np.zeros(plan.dimension), plan.numbers.step
        tail, late = (TailAverage(plan.dimension, first) for first in (plan.rounds // 2, 3 * plan.rounds // 4))
        if not plan.private:
            squares = (yield from total("sizes")) / plan.records
            length /= max(float(squares.sum()), 1e-300)
        one_party = plan.numbers.schedule == "one-party"
        for t in range(plan.rounds):
            gradient = yield from total("gradient", weights=weights)
            count = plan.parties[named_parties(plan)[t]][1] if one_party else plan.records
            step = length / (plan.numbers.rate * count)
            weights = plan.scaled_regulariser.prox(weights - step * gradient, length)
            tail.add(t, weights)
            late.add(t, weights)
        return tail.value if plan.private else Solution(tail.value, unfinished=drift(plan.rounds, tail, late, squares))


def drift(rounds: int, tail: TailAverage, late: TailAverage, squares: NDArray[np.float64]) -> str:
    """Where the mean of the last quarter and of the last half are far apart, the weights are still on their way."""
    roots = np.sqrt(squares)
    apart, size = (float(np.abs(roots * w).max()) for w in (late.value - tail.value, late.value))
    return how_far(rounds, apart / size if size > 0.0 else 0.0, "the drift of the scores in the last half", 0.05)


def sampled_release(problem: Problem, query: Query, rate: float, rounds: int, batches: int = 1) -> Release:
    """`rounds` releases of secret samples that cost the problem's budget, `batches` of them in a message."""
    multiplier = noise_multiplier_for(problem.epsilon, inside(problem.delta), problem.relation, rate, rounds)
    sensitivity = query.sensitivity("zero-out")
    step = grid_step(query, multiplier * sensitivity)
    std = multiplier * (sensitivity + step * math.sqrt(query.rounding_entries))
    return Release.of(query, 0, rounds // batches, std, step, rate, batches=batches)


@functools.lru_cache(maxsize=4)
def named_parties(plan: Plan) -> NDArray[np.int64]:
    """Which party a public coin names for each round, the larger the likelier."""
    counts = np.array([count for _, count in plan.parties], dtype=np.float64)
    return np.asarray(plan.public_coin("party").choice(len(counts), size=plan.rounds, p=counts / counts.sum()))


class NamedGradient(GradientSum):
    """The gradient sum of the one party that a public coin names: nothing is summed over parties."""

    answered_by = Scheduled("the party that a public coin names", named_parties)
    world_sees: ClassVar[World] = "each"


RADIUS = 10.0  # of the ball C where the user gives none, which the paper must have: rows of norm 1 then score up to 10


class PublishedSGDNumbers(Numbers):
    """L and the radius of C."""

    names_records: ClassVar[bool] = True

    slope_bound: float
    radius: float


class NamedRecordPricing(Pricing):
    """The coordinator names the records: there is no amplification against whoever knows of its coin."""

    def profiles(self, form: Form, plan: Plan, relation: Relation) -> dict[str, Profile]:
        """Given the coin, a record pays for the rounds that name it; the report that comes with a model tells of it."""
        seen = super().profiles(form, plan, relation)["coordinator"]
        return {"world": seen, "coordinator": seen, "parties": seen}


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
    """w <- Proj(w - eta(t) G_t) from a uniform point of C to the last iterate, G_t = n times one record's gradient.

    As printed: n^2 rounds, std = 4 L n ln(1.25 n^2/delta) / epsilon (eq. 3), L of what depends on the record. The step
    is eta(t) = |C| / sqrt(t (n^2 L^2 + p std^2)) (eq. 4, Theorem 2.1); with a ridge on all weights, which makes each
    loss Delta-strongly convex, it is 1/(Delta n t) (Theorem 2.2). |C| is the diameter, as in the work that the
    paper takes both from. C is the user's ball, or one of RADIUS; an intercept lies within that radius.

    Guarantee: as many Gaussians as the most named record has uses, unamplified (`proof.md`), not what Theorem 1 claims.
    Edges: outside epsilon < 1, delta < 1/n^3, which the paper states, it warns.
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
        if problem.epsilon >= 1.0 or problem.delta >= n**-3.0:
            warn(
                f"epsilon={problem.epsilon:g}, delta={problem.delta:g} is outside the domain that the paper states: "
                f"epsilon below 1 and delta below 1/n^3 = {n**-3.0:.2g}. The report has what holds all the same."
            )
        rounds = given(options.rounds, n * n)
        std = 4 * slope * n * math.log(1.25 * n * n / problem.delta) / problem.epsilon
        query = RecordGradient(problem, problem.names[0], slope)
        numbers = PublishedSGDNumbers(slope_bound=slope, radius=ball_radius(problem, RADIUS))
        return Design(rounds=rounds, numbers=numbers, releases=(Release.of(query, 0, rounds, std),))

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:
        return (RecordGradient(plan, party, plan.numbers.slope_bound),)

    def coordinate(self, plan: Plan) -> Coordination:
        """Ask for the gradient of the record that the coin names, and step."""
        radius = plan.numbers.radius
        weights, eta = start_in(plan, radius), printed_steps(plan)
        for t, step in enumerate(eta):
            index = named_records(plan)[1][t : t + 1]
            gradient = yield from answer("record", weights=weights, index=index)
            weights = step_in(plan, weights, gradient, step, radius)
        return weights


def printed_steps(plan: Plan) -> Array:
    """eta(t) of Theorem 2: |C| / sqrt(t (n^2 L^2 + p std^2)), or 1/(Delta n t) for Delta-strongly convex losses."""
    n, free, ridge = plan.records, plan.dimension - plan.features, plan.scaled_regulariser.ridge
    t = np.arange(1.0, plan.rounds + 1)
    if ridge and not free:
        return 1 / (ridge * n * t)
    diameter = 2 * plan.numbers.radius * math.sqrt(1 + free)
    spread = (n * plan.numbers.slope_bound) ** 2 + plan.dimension * plan.releases[0].std ** 2
    return np.asarray(diameter / np.sqrt(t * spread))


FORMS: tuple[Algorithm, ...] = (PrivateSGD(), PublishedSGD())
