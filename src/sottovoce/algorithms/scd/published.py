"""DP-SCD and SeqDP-SCD as published: the sampled duals are sent with v, and their noise enters them."""

from __future__ import annotations

import functools
import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import WALK, Array, given, limited
from sottovoce.algorithms.scd.private import (
    RATE,
    SMALLEST_CLIP,
    ClippedNumbers,
    ClippedSteps,
    DualAlgorithm,
    DualRule,
    Positive,
    ridge_of,
)
from sottovoce.data.block import Block, toward_zero
from sottovoce.data.matrix import dense
from sottovoce.errors import InputError, LeakError
from sottovoce.gate.query import Integers, Round, Walk
from sottovoce.losses import kernels
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.plan.release import Count
from sottovoce.privacy.calibration import moments_noise_for, visible_uses_epsilon
from sottovoce.privacy.events import Event, Gaussian, PoissonGaussian, Relation, either
from sottovoce.privacy.guarantee import Profile, profile_of, strongest
from sottovoce.queries.pricing import Form, Pricing
from sottovoce.solvers import SCD, SequentialSCD

LARGEST_LOT = 5000  # steps that see one another: their products are a square matrix
MOST_LOTS = 1_000_000  # in a plan, which are counted when it is priced


class PublishedSCDNumbers(ClippedNumbers):
    """The rate, from which a step's length follows."""

    rate: Positive


class SequentialStateNumbers(PublishedSCDNumbers):
    """L; the rate is 1 / N, one step at a time."""

    lot: Count


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
    """The paper's release (Algorithm 1, steps 6-14): the steps of v and of the sampled duals, noise on those alone.

    Guarantee: the round is a Gaussian of sensitivity sqrt 2 C (zero-out, Lemma 1), 2 sqrt 2 C (replace-one) for who
    knows the batch, which the entries without noise tell. The noise enters the holder's duals, as published.
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
        rows, duals = round.rows, round.memory
        if noise is None or rows.bits is None:
            raise LeakError("the published release has noise.")
        batch, steps, total = self.stepped(round, rows.bits - math.ceil(math.log2(self.clip)))
        grid = np.zeros(self.length, dtype=np.int64)
        grid[: self.dimension] = np.rint(total / step)
        grid[: self.dimension] += noise[: self.dimension]
        moved = self.dimension + batch.places
        grid[moved] = np.rint(steps / step).astype(np.int64) + noise[moved]
        duals[batch.places] += grid[moved] * step
        return grid

    def stepped(self, round: Round, bits: int) -> tuple[Block, Array, Array]:
        """(the batch, its steps, sum_i z_i x_i), all steps from the same v: eq. 8 solved, then step 8."""
        rows, dual_step = round.rows, round.plan.scaled_loss.dual_step
        batch = rows if rows.chosen is not None else rows.take(rows.places)
        duals, squares = round.memory[batch.places], rows.whole.squares[batch.places]
        steps = np.zeros(len(batch))

        def published(scores: Array, labels: Array) -> Array:
            with np.errstate(all="ignore"):
                found = dual_step(duals, labels, scores, self.factor * squares)
            found = np.where(squares > 0, np.nan_to_num(found, nan=0.0), 0.0)
            steps[:] = toward_zero(np.clip(found, -self.clip, self.clip), bits)
            return steps

        return batch, steps, batch.weighted_sum(round.told["weights"], published)


class SequentialState(PublishedState):
    """The same of a lot of L records whose steps see one another: v follows each step.

    Guarantee: a record moves the steps of every later one, so the L duals and v move by 2 C sqrt(L (L + 1)) at most
    (replace-one: the printed bound), C sqrt(4 L^2 - 2) (zero-out). Lots are drawn by the public coin: which duals move
    tells them anyway. So a record pays for the lots that it is in, and the most that any record is in are charged.
    """

    title: ClassVar[str] = "steps of a lot's duals one after another, with the duals themselves"
    samples: ClassVar[bool] = False

    def __init__(self, problem: Problem, numbers: Numbers) -> None:
        super().__init__(problem, numbers)
        if numbers.lot > min(problem.records, LARGEST_LOT):
            raise InputError(f"lot={numbers.lot} must be at most {min(problem.records, LARGEST_LOT)} here.")
        self.lot, self.plan = numbers.lot, problem
        self.rounding_entries = float(problem.dimension + self.lot)

    def sensitivity(self, relation: Relation) -> float:
        most = 4.0 * self.lot**2
        return float(self.clip) * math.sqrt(either(relation, zero_out=most - 2.0, replace_one=most + 4.0 * self.lot))

    def uses(self, times: int) -> int:
        return most_drawn(self.plan, times) if isinstance(self.plan, Plan) else times

    def stepped(self, round: Round, bits: int) -> tuple[Block, Array, Array]:
        """(the lot, its steps, sum_i z_i x_i), each step from the v that those before it led to."""
        whole, places = round.rows.whole, drawn_lot(round.plan, round.number)
        batch = whole.take(places[places < len(whole)])
        rows, steps, unit = dense(whole.rows[batch.places]), np.zeros(len(batch)), 2.0**bits
        products, scores, squares = rows @ rows.T, batch.scores(round.told["weights"]), whole.squares[batch.places]
        duals, parameter = round.memory[batch.places], round.plan.scaled_loss.parameter
        for k, square in enumerate(squares):
            score = scores[k] + self.factor * float(products[k] @ steps)
            z = kernels.dual_step(self.code, duals[k], batch.labels[k], score, self.factor * square, parameter)
            usable = square > 0 and abs(z) < math.inf
            steps[k] = math.trunc(min(max(z, -self.clip), self.clip) * unit) / unit if usable else 0.0
        return batch, steps, steps @ rows  # exact, on the grids of both


def drawn_lot(plan: Plan, number: int) -> NDArray[np.int64]:
    """L records of a round, in the order of their steps."""
    drawn = plan.public_coin(f"lot {number}").choice(plan.records, plan.numbers.lot, replace=False)
    return np.asarray(drawn, dtype=np.int64)


@functools.lru_cache(maxsize=4)
def most_drawn(plan: Plan, times: int) -> int:
    """In how many of the first lots the record is that is in most; nobody is made to count through endless plans."""
    if times > MOST_LOTS:
        raise InputError(f"{times} rounds of lots are more than {MOST_LOTS}; take fewer.")
    drawn, first = np.zeros(plan.records, dtype=np.int64), plan.release(SequentialState.name).first
    for number in range(first, first + times):
        drawn[drawn_lot(plan, number)] += 1
    return int(drawn.max())


class PublishedSCD(DualAlgorithm):
    """Noise of variance 2 C^2 sigma^2 on v and on the sampled duals, MA(delta, sigma, q, T) = epsilon.

    Algorithm 1: sigma by eq. 7, closed steps of eq. 8 (logistic: one Newton step), the last iterate.

    Guarantee: a Gaussian of sensitivity sqrt 2 C, or 2 sqrt 2 C, for every round that uses a record (`proof.md`).
    """

    name: ClassVar[str] = "scd"
    form: ClassVar[str] = "published"
    title: ClassVar[str] = "DP-SCD as published, with its duals in the open"
    published: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...] | None] = ("rounds", "rate", "clip")
    pricing: ClassVar[Pricing] = VisibleDualsPricing()
    numbers: ClassVar[type[Numbers]] = PublishedSCDNumbers
    query = PublishedState

    def design(self, problem: Problem, options: SCD) -> Design:
        lam = ridge_of(self.name, problem)
        rule = DualRule(problem, lam, "slope")
        rate, rounds = given(options.rate, RATE), given(options.rounds, rule.rounds)
        clip = given(options.clip, rule.clip(rate, 1.0))
        numbers = PublishedSCDNumbers(ridge=lam, dual_step="newton", clip=clip, rate=rate, averaged=1)
        std = math.sqrt(2) * clip * moments_noise_for(problem.epsilon, problem.delta, rate, rounds)
        release = Release.of(PublishedState(problem, numbers), 0, rounds, std, rate=rate)
        return Design(rounds=rounds, numbers=numbers, releases=(release,))


class PublishedSequentialSCD(DualAlgorithm):
    """Noise of std 2 C sqrt(L (L + 1)) sigma on v and on the lot's duals, MA(delta, sigma, L/N, T) = epsilon.

    SEQDP-SCD of section 5: Algorithm 1 with steps one after another in a lot; the last iterate. T = epochs N / L.

    Guarantee: as many Gaussians as the lots that the most drawn record is in, unamplified (`proof.md`).
    """

    name: ClassVar[str] = "scd-sequential"
    form: ClassVar[str] = "published"
    title: ClassVar[str] = "SeqDP-SCD as published, with its duals in the open"
    published: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...] | None] = ("rounds", "lot", "clip")
    splits = ("central",)
    numbers: ClassVar[type[Numbers]] = SequentialStateNumbers
    query = SequentialState

    def design(self, problem: Problem, options: SequentialSCD) -> Design:
        """Five epochs of at most 1000 lots; the clip keeps the noise's random walk below WALK."""
        lam, records = ridge_of(self.name, problem), problem.records
        lot = limited("lot", given(options.lot, max(1, math.ceil(records / 1000))), 1, min(records, LARGEST_LOT))
        rounds, rate = given(options.rounds, 5) * math.ceil(records / lot), lot / records
        noise = 2 * math.sqrt(lot * (lot + 1)) * moments_noise_for(problem.epsilon, problem.delta, rate, rounds)
        clip = min(max(WALK * lam * records / (noise * math.sqrt(rounds * problem.dimension)), SMALLEST_CLIP), 1.0)
        clip = given(options.clip, clip)
        numbers = SequentialStateNumbers(
            ridge=lam, dual_step="newton", clip=clip, rate=1.0 / records, averaged=1, lot=lot
        )
        release = Release.of(SequentialState(problem, numbers), 0, rounds, clip * noise)
        return Design(rounds=rounds, numbers=numbers, releases=(release,))
