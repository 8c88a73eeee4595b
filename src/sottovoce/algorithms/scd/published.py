"""DP-SCD as published: the sampled duals are sent with v, and their noise enters them."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from sottovoce.algorithms.base import Array, given
from sottovoce.algorithms.scd.private import (
    RATE,
    ClippedNumbers,
    ClippedSteps,
    DualAlgorithm,
    DualRule,
    Positive,
    ridge_of,
)
from sottovoce.data.block import toward_zero
from sottovoce.errors import LeakError
from sottovoce.gate.query import Integers, Round, Walk
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.plan.release import grid_step
from sottovoce.privacy.calibration import moments_noise_for, visible_uses_epsilon
from sottovoce.privacy.events import Event, Gaussian, PoissonGaussian, Relation
from sottovoce.privacy.guarantee import Profile, profile_of, strongest
from sottovoce.queries.pricing import Form, Pricing
from sottovoce.solvers import SCD


class PublishedSCDNumbers(ClippedNumbers):
    """The rate, from which a step's length follows."""

    rate: Positive


class VisibleDualsPricing(Pricing):
    """Which duals move shows who was sampled: there is no amplification against whoever sees them."""

    def events(self, form: Form, plan: Plan, relation: Relation, party: str) -> tuple[Event, ...]:
        """Every round in full, as if the record were in all of them."""
        if not plan.private:
            return super().events(form, plan, relation, party)
        return tuple(
            Gaussian(mu=release.charged(relation) * math.sqrt(release.total) / release.std)
            if release.std > 0.0
            else release.event(relation)
            for release in plan.releases
        )

    def profiles(self, form: Form, plan: Plan, relation: Relation) -> dict[str, Profile]:
        """The coordinator sees which duals move; the others see v alone."""
        if not plan.private:
            return super().profiles(form, plan, relation)
        release = plan.releases[0]
        rate, once = release.rate or 1.0, release.charged(relation) / release.std
        seen = Profile.of(lambda delta: visible_uses_epsilon(once, rate, release.total, delta))
        multiplier = release.std / (plan.numbers.clip + release.step * math.sqrt(plan.dimension))
        each, world = (
            profile_of((PoissonGaussian(rate, multiplier * math.sqrt(noises), release.total),), relation)
            for noises in (1, len(plan.parties))
        )
        return {"world": strongest(world, each, seen), "coordinator": seen, "parties": strongest(each, seen)}


class PublishedState(ClippedSteps, Walk):
    """The paper's release: the step of v and the steps of the sampled duals, noise on those alone.

    Guarantee: the round is a Gaussian of sensitivity sqrt 2 C (zero-out), 2 sqrt 2 C (replace-one) for who knows the
    batch, which the entries without noise tell. The noise enters the holder's duals, as published.
    Edges: a null row takes no step, and neither does one whose step is no number; their duals get the noise alone.
    """

    name = "state"
    title: ClassVar[str] = "steps of the sampled duals, with the duals themselves"
    each_person: ClassVar[bool] = True
    samples: ClassVar[bool] = True

    def __init__(self, problem: Problem, numbers: Numbers) -> None:
        super().__init__(problem, numbers)
        self.clip, self.bound = numbers.clip, math.sqrt(2.0) * numbers.clip
        self.factor = numbers.rate / numbers.ridge
        self.length = problem.dimension + max(count for _, count in problem.parties)
        self.rounding_entries = problem.dimension + 1.0

    def walk(self, round: Round, noise: Integers | None, step: float) -> Integers:
        rows, duals, dual_step = round.rows, round.memory, round.plan.scaled_loss.dual_step
        if noise is None or rows.bits is None:
            raise LeakError("the published release has noise.")
        batch = rows if rows.chosen is not None else rows.take(rows.places)
        places = batch.places
        squares = rows.whole.squares[places]
        bits = rows.bits - math.ceil(math.log2(self.clip))
        steps = np.zeros(len(places))

        def published(scores: Array, labels: Array) -> Array:
            with np.errstate(all="ignore"):
                found = dual_step(duals[places], labels, scores, self.factor * squares)
            found = np.where(squares > 0, np.nan_to_num(found, nan=0.0), 0.0)
            steps[:] = toward_zero(np.clip(found, -self.clip, self.clip), bits)
            return steps

        grid = np.zeros(self.length, dtype=np.int64)
        grid[: self.dimension] = np.rint(batch.weighted_sum(round.told["weights"], published) / step)
        grid[: self.dimension] += noise[: self.dimension]
        moved = self.dimension + places
        grid[moved] = np.rint(steps / step).astype(np.int64) + noise[moved]
        duals[places] += grid[moved] * step
        return grid


class PublishedSCD(DualAlgorithm):
    """Noise of variance 2 C^2 sigma^2 on v and on the sampled duals, sigma by the moments accountant: as printed.

    The last iterate, one Newton step a dual.

    Guarantee: a Gaussian of sensitivity sqrt 2 C, or 2 sqrt 2 C, for every round that uses a record (`proof.md`).
    """

    name: ClassVar[str] = "scd"
    form: ClassVar[str] = "published"
    title: ClassVar[str] = "DP-SCD as published, with its duals in the open"
    published: ClassVar[bool] = True
    pricing: ClassVar[Pricing] = VisibleDualsPricing()
    numbers: ClassVar[type[Numbers]] = PublishedSCDNumbers
    query = PublishedState

    def design(self, problem: Problem, options: SCD) -> Design:
        lam = ridge_of(self.name, problem)
        rule = DualRule(problem, lam, options.dual_step or "slope")
        rate, rounds = given(options.rate, RATE), given(options.rounds, rule.rounds)
        clip = given(options.clip, rule.clip(rate, 1.0))
        numbers = PublishedSCDNumbers(ridge=lam, dual_step="newton", clip=clip, rate=rate, averaged=1)
        query = PublishedState(problem, numbers)
        std = math.sqrt(2) * clip * moments_noise_for(problem.epsilon, problem.delta, rate, rounds)
        release = Release.of(query, 0, rounds, std, grid_step(query, std), rate)
        return Design(rounds=rounds, numbers=numbers, releases=(release,), claimed_epsilon=problem.epsilon)
