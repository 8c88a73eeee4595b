"""`scd`, `scd-sequential`: duals that stay with their holders, steps of them, and the descent on their sum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sottovoce.algorithms.base import (
    WALK,
    Algorithm,
    Array,
    Coordination,
    Need,
    Solution,
    TailAverage,
    answers,
    given,
    how_far,
    limited,
    total,
)
from sottovoce.algorithms.sgd import sampled_release
from sottovoce.data.block import Block, exact_bits, exact_weights
from sottovoce.data.bounds import LARGEST
from sottovoce.data.kernels.dual_loops import DualMoves
from sottovoce.errors import InputError, LeakError
from sottovoce.gate.query import Plain, Query, Reals, Round
from sottovoce.losses import coded
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.plan.release import Count
from sottovoce.privacy.events import Relation, distance, either
from sottovoce.solvers import SCD, DualStep, SequentialSCD

SMALLEST_CLIP, LARGEST_CLIP = 1e-90, 1024.0
WITH_DUAL = Need(
    lambda loss: loss.code is not None and loss.convex,
    f"needs a loss with a dual step ({', '.join(each.name for each in coded() if each.convex)}), not {{!r}}",
)

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Clip = Annotated[float, Field(ge=SMALLEST_CLIP, le=LARGEST_CLIP)]


class DualNumbers(Numbers):
    """lam, the weight of the squares, and the step that duals of the logistic loss take."""

    ridge: Positive
    dual_step: DualStep


class ClippedNumbers(DualNumbers):
    """C, and over how many rounds at the end the weights are averaged."""

    clip: Clip
    averaged: Count


class DualAlgorithm(Algorithm):
    """v <- v + what the holders' records moved it by, with noise; w = v / (lam N), v = sum_i a_i x_i.

    The objective is (1/N) sum_i l(x_i'w, y_i) + (lam/2) |w|^2, intercept included. There is a dual a_i per record.
    """

    needs: ClassVar[tuple[Need, ...]] = (WITH_DUAL,)
    query: ClassVar[type[DualQuery]]
    lasts: ClassVar[tuple[str, ...]] = ("duals",)  # they follow from coins that are forgotten

    def queries(self, plan: Plan, _party: str) -> tuple[Query, ...]:
        return (self.query(plan, plan.numbers),)

    def remember(self, _plan: Plan, rows: Block) -> Array:
        """The duals of the holder's records: they stay here."""
        return np.zeros(len(rows))

    def lasting(self, memory: Array) -> dict[str, NDArray[Any]]:
        return {"duals": memory}

    def recall(self, memory: Array, lasting: Mapping[str, NDArray[Any]]) -> Array:
        memory[:] = lasting["duals"]
        return memory

    def coordinate(self, plan: Plan) -> Coordination:
        """The mean over the last part of the rounds: the duals have not yet answered the newest noise."""
        v, release = np.zeros(plan.dimension), plan.releases[0]
        tail = TailAverage(plan.dimension, plan.rounds - plan.numbers.averaged)
        for t in range(0, plan.rounds, release.batches):
            moves = yield from answers(release.query, weights=weights_of(plan, v))
            together = np.asarray(sum(move[: release.batches * plan.dimension] for move in moves.values()))
            for k, move in enumerate(together.reshape(release.batches, plan.dimension)):
                v += move
                tail.add(t + k, weights_of(plan, v))
        return tail.value


class DualQuery(Query):
    """Steps of duals at public weights; it moves the duals in `Round.memory`."""

    def __init__(self, problem: Problem, numbers: Numbers) -> None:
        self.dimension = self.length = problem.dimension
        self.rounding_entries = float(problem.dimension)
        loss = problem.scaled_loss
        code = loss.dual_codes.get(numbers.dual_step, loss.code)
        if code is None:
            raise InputError(f"loss={loss.name!r} has no dual step.")
        self.code: int = code  # of the loss and its step, in the kernels
        self.takes = {"weights": Reals((self.dimension,))}


class ClippedSteps(DualQuery):
    """sum of z_i x_i over some records, z_i their dual steps clipped to |z_i x_i| <= clip.

    Edges: a null row takes no step, and neither does one whose step is no number. A clip at which sums over the plan's
    records would not be exact is refused.
    """

    def __init__(self, problem: Problem, numbers: Numbers) -> None:
        super().__init__(problem, numbers)
        self.bound = clip = numbers.clip
        if exact_bits(problem.records) < math.ceil(math.log2(clip)):
            raise InputError(
                f"clip={clip!r}: sums of such steps are not exact over {problem.records} records; take fewer records "
                "or a smaller clip."
            )


def move(round: Round, *, code: int, factor: float, clip: float, scale: float = 0.0) -> Array:
    """Step the duals of the round's rows and return sum_i z_i x_i; with `scale` the weights follow each step."""
    rows, weights, grid = round.rows, np.array(round.told["weights"], dtype=np.float64), -1
    if round.plan.private:
        if rows.bits is None or rows.row_norm > 1.0:
            raise LeakError("the rows were not prepared for dual steps with noise.")
        grid = rows.bits - math.ceil(math.log2(clip))
        weights = exact_weights(weights, rows.bits)
    steps = DualMoves(code, round.plan.scaled_loss.parameter, factor, clip, grid, scale)
    return rows.dual_rows(weights, round.memory, steps)


def weights_of(plan: Plan, v: Array) -> Array:
    """W = v / (lam N)."""
    return np.asarray(v / (plan.numbers.ridge * plan.records))


def ridge_of(solver: str, problem: Problem) -> float:
    """lam, the weight of the squares; without it there is no dual."""
    lam = problem.scaled_regulariser.ridge
    if lam is None or not lam > 0:
        raise InputError(
            f"solver={solver!r} needs an l2 penalty with alpha > 0, not {problem.regulariser.name!r} with "
            f"{problem.regulariser.parameters}: its duals exist for a strongly convex objective alone. Try alpha=1e-3."
        )
    if not 1e-80 <= lam <= 1e80:
        raise InputError(
            f"alpha={problem.regulariser.parameters['alpha']!r} weighs {lam:.3g} on prepared rows, outside 1e-80 to "
            "1e80, where dual steps can be told from zero. Try alpha=1e-3."
        )
    return lam


RATE = 0.1  # the least by default: the accuracy does not depend on it, the work of a round does
ENTRIES = 2**21  # of a batch: up to so many a full batch is as fast, and its cost is an exact Gaussian's
MESSAGE, BATCHES = 2**23, 20  # entries touched for one message, and rounds in it, at most
STRETCH = 1.5  # rows have norm 1 at most, so steps up to twice the safe ones are stable
AVERAGED = 0.3  # of the rounds, at the end


class SCDNumbers(ClippedNumbers):
    """What a step's length follows from: the rate, and the factor by which it is longer than the safe one."""

    rate: Positive  # the coins have that of the release
    stretch: Positive


class DualSteps(ClippedSteps):
    """sum over the batch of z_i x_i, |z_i x_i| <= clip.

    Guarantee: zero-out moves it by at most clip, replace-one by twice that, in l2, whatever the duals are.
    """

    name = "steps"
    title: ClassVar[str] = "steps of the duals of sampled records"
    samples: ClassVar[bool] = True

    def __init__(self, problem: Problem, numbers: Numbers) -> None:
        super().__init__(problem, numbers)
        self.factor = numbers.rate / (numbers.ridge * numbers.stretch)

    def value(self, round: Round) -> Array:
        """One pass over the batch, all steps from the same weights."""
        return move(round, code=self.code, factor=self.factor, clip=self.bound)

    def follow(self, released: Array, round: Round) -> Round:
        """The next batch of a message is asked at the weights that the released move leads to.

        They are clipped to the size of the weights that a holder accepts from a coordinator, where scores are exact.
        """
        moved = round.told["weights"] + weights_of(round.plan, released)
        within = np.fmin(np.fmax(moved, -LARGEST), LARGEST)  # also where it is no number
        return round._replace(told={"weights": within})


class PrivateSCD(DualAlgorithm):
    """v <- v + sum over sampled records of z_i x_i + N(0, (sigma C)^2), z_i the dual step clipped to |z_i x_i| <= C.

    Every record flips a secret coin of probability `rate` each round. Its dual stays with its holder, without noise.
    All steps of a round start from the same v (Jacobi): z_i = argmin l*(-a_i - z) + m z + s z^2 / 2 with
    m = x_i'w and s = rate |x_i|^2 / (lam stretch); stretch = 1 is safe if all rows were one and the same row. For the
    logistic loss `dual_step` says how near z_i comes to that minimiser. A holder that is alone takes several rounds a
    message, for speed.

    Guarantee: `rounds` Poisson-subsampled Gaussians of sensitivity C, against whoever sees every v
    (`proof.md`). Edges: a null row takes no step; an empty batch is answered with noise; a holder with a ledger
    that is stopped in a run goes on with the duals that it stored, one without a ledger refuses to go on.
    """

    name: ClassVar[str] = "scd"
    form: ClassVar[str] = "private"
    title: ClassVar[str] = "dual coordinate descent with hidden duals (DP-SCD)"
    numbers: ClassVar[type[Numbers]] = SCDNumbers
    query = DualSteps

    def design(self, problem: Problem, options: SCD) -> Design:
        lam, dual_step = ridge_of(self.name, problem), options.dual_step or "slope"
        rule = DualRule(problem, lam, dual_step)
        rate, rounds = given(options.rate, rule.rate), given(options.rounds, rule.rounds)
        stretch = rule.stretch(rate, rounds)
        numbers = SCDNumbers(
            ridge=lam,
            dual_step=dual_step,
            clip=given(options.clip, rule.clip(rate, stretch)),
            rate=rate,
            stretch=stretch,
            averaged=max(1, round(AVERAGED * rounds)),
        )
        query = DualSteps(problem, numbers)
        release = sampled_release(problem, query, rate, rounds, rule.batches(rate, rounds))
        return Design(rounds=rounds, numbers=numbers, releases=(release,))


class DualRule:
    """Defaults of `scd` from public numbers.

    For lam far below the rate a round is a clipped gradient step of length rate stretch / (kappa rate + lam stretch),
    kappa the loss's curvature. B is the sum of these lengths: the noise of all rounds carries the weights by
    c B sqrt(d) / (mu N), so B is what the budget allows (`spread`), at most the 1/lam that the duals need to arrive.
    The constants hold for labels and slopes of at most 1 (`benchmarks/duals.py`).
    """

    def __init__(self, problem: Problem, lam: float, dual_step: DualStep) -> None:
        self.problem, self.lam = problem, lam
        loss = problem.scaled_loss
        by_slope = dual_step == "slope" and "slope" in loss.dual_codes
        self.curvature = loss.curvature_bound if by_slope else 1.0
        self.slope, spread = (0.5, 2.5) if loss.kind == "regression" else (0.7, 10.0) if by_slope else (1.0, 5.0)
        mu = min(problem.mu, 1e100) / distance(problem.relation)
        noise = self.slope * math.sqrt(problem.dimension * len(problem.parties))
        self.length = min(spread * mu * problem.records / noise, 1 / lam)
        # Full batches of small data, down to RATE for large; as many rounds as the longest safe steps need, in tens.
        self.rate = min(max(ENTRIES / (problem.records * problem.dimension), RATE), 1.0)
        self.rounds = min(max(10 * math.ceil(self.length * self.curvature / STRETCH / 10), 100), 2000)

    def batches(self, rate: float, rounds: int) -> int:
        """Rounds in one message of a holder that is alone: a divisor of all, MESSAGE entries at most."""
        if len(self.problem.parties) > 1:
            return 1
        most = max(MESSAGE / (max(rate * self.problem.records, 1.0) * self.problem.dimension), 1.0)
        return max(count for count in range(1, BATCHES + 1) if rounds % count == 0 and count <= most)

    def stretch(self, rate: float, rounds: int) -> float:
        """The factor by which a step is longer than the one that is safe if all rows were one row."""
        each = self.length / rounds
        if not rate > self.lam * each:
            return STRETCH
        return min(STRETCH, self.curvature * rate * each / (rate - self.lam * each))

    def clip(self, rate: float, stretch: float) -> float:
        """The length of the dual step of a slope of c."""
        return max(self.slope * self.lam * stretch / (self.curvature * rate + self.lam * stretch), SMALLEST_CLIP)


class SequentialNumbers(ClippedNumbers):
    """L, and how many lots an epoch has."""

    lot: Count
    lots: Count


class LotSteps(ClippedSteps):
    """sum of the steps z_i x_i of one lot, each |z_i x_i| <= clip, taken in turn.

    Guarantee: of the lot's L records the changed one moves its own term by at most C (zero-out) or 2 C, and each of the
    others by at most 2 C, whatever their duals: (2 L - 1) C or 2 L C in all. A record is in one lot of an epoch.
    Edges: a holder with fewer records has empty lots at the end and sends noise alone. Lots are places of the whole
    block, so no batch is sampled.
    """

    name = "lot"
    title: ClassVar[str] = "steps of the duals of one lot"

    def __init__(self, problem: Problem, numbers: Numbers) -> None:
        super().__init__(problem, numbers)
        self.lot: int = numbers.lot
        self.lots: int = numbers.lots
        self.scale = 1.0 / (numbers.ridge * problem.records)

    def sensitivity(self, relation: Relation) -> float:
        return self.bound * (2.0 * self.lot - either(relation, zero_out=1.0, replace_one=0.0))

    def uses(self, times: int) -> int:
        """How often the lots come round."""
        return math.ceil(times / self.lots)

    def value(self, round: Round) -> Array:
        rows, first = round.rows, round.number % self.lots * self.lot
        places = np.arange(min(first, len(rows)), min(first + self.lot, len(rows)), dtype=np.int64)
        lot = round._replace(rows=rows.take(places))
        return move(lot, code=self.code, factor=self.scale, clip=self.bound, scale=self.scale)


class PrivateSequentialSCD(DualAlgorithm):
    """v <- v + sum over a lot of z_i x_i + N(0, std^2), each z_i from the v that the records before it led to.

    The lots are fixed and public: the holder's records in their order, at most L at a time. One release per lot and
    epoch; all holders work at once.

    Guarantee: a record moves the steps of every later record of its lot, so a release moves by (2 L - 1) C (zero-out)
    or 2 L C (replace-one), and mu^2 = epochs (Delta / std)^2: no amplification (`proof.md`). The noise is that of
    a method for comparison. Edges: a null row takes no step; a holder with a ledger that is stopped in a run goes on
    with the duals that it stored, one without a ledger refuses to go on.
    """

    name: ClassVar[str] = "scd-sequential"
    form: ClassVar[str] = "private"
    title: ClassVar[str] = "sequential dual coordinate descent in public lots (SeqDP-SCD)"
    numbers: ClassVar[type[Numbers]] = SequentialNumbers
    query = LotSteps

    def design(self, problem: Problem, options: SequentialSCD) -> Design:
        """Five epochs of at most 1000 lots; the clip keeps the noise's random walk below WALK."""
        lam, epochs = ridge_of(self.name, problem), given(options.rounds, 5)
        largest = max(count for _, count in problem.parties)
        lot = limited("lot", given(options.lot, max(1, math.ceil(largest / 1000))), 1, largest)
        lots = math.ceil(largest / lot)
        spread = (2 * lot - 1) * epochs * math.sqrt(largest / lot * problem.dimension * len(problem.parties))
        clip = min(max(WALK * problem.mu * lam * problem.records / spread, SMALLEST_CLIP), 1.0)
        numbers = SequentialNumbers(
            ridge=lam,
            dual_step=given(options.dual_step, "slope"),
            clip=given(options.clip, clip),
            lot=lot,
            lots=lots,
            averaged=max(1, lots * epochs // 2),
        )
        query = LotSteps(problem, numbers)
        # Every record is in one release of an epoch, so the releases of one epoch cost what one of them costs.
        release = Release.at_mu(query, 0, epochs, problem.mu, problem.relation).times(epochs * lots)
        return Design(rounds=epochs * lots, numbers=numbers, releases=(release,))


EPOCHS = 2000  # at most
STILL = 1e-13  # it has converged when no weight moves by more than this share of the largest


class Epoch(DualQuery, Plain):
    """One pass of dual coordinate ascent over a holder's records in turn, with its part of the duality gap.

    SDCA; several holders step side by side, with s multiplied by their number (CoCoA+).
    The value is (sum_i z_i x_i, sum_i l_i(x_i'w), sum_i l_i*(-a_i)), the sums before the pass.
    """

    name = "epoch"
    title: ClassVar[str] = "passes over the duals, with the duality gap"

    def __init__(self, problem: Problem, numbers: Numbers) -> None:
        super().__init__(problem, numbers)
        self.scale = len(problem.parties) / (numbers.ridge * problem.records)
        self.length, self.rounding_entries = problem.dimension + 2, Plain.rounding_entries

    def value(self, round: Round) -> Array:
        rows, duals, loss = round.rows, round.memory, round.plan.scaled_loss
        losses = rows.scalar_sum(round.told["weights"], loss.value)
        used = rows.squares > 0  # the dual of a null row stays 0 and its loss is a constant
        conjugates = float(np.sum(loss.conjugate(-duals[used], rows.labels[used])))
        losses -= float(np.sum(loss.value(np.zeros((~used).sum()), rows.labels[~used])))
        order = round.plan.public_coin(f"epoch {round.number}").permutation(len(rows))
        drawn = round._replace(rows=rows.take(order))
        total = move(drawn, code=self.code, factor=self.scale, clip=math.inf, scale=self.scale)
        return np.array([*total, losses, conjugates])


class ExactSCD(DualAlgorithm):
    """v <- v + what one pass over every holder's duals moved it by, until the weights stand still.

    Guarantee: none; a party answers only where its holder allows runs without privacy. The certificate is the duality
    gap before the last epoch.
    """

    name: ClassVar[str] = "scd"
    form: ClassVar[str] = "exact"
    title: ClassVar[str] = "dual coordinate ascent, without privacy (SDCA)"
    private: ClassVar[bool | None] = False
    numbers: ClassVar[type[Numbers]] = DualNumbers
    query = Epoch

    def design(self, problem: Problem, options: SCD | SequentialSCD) -> Design:
        """By default the exact step, which converges in fewer epochs."""
        numbers = DualNumbers(ridge=ridge_of(self.name, problem), dual_step=given(options.dual_step, "exact"))
        epochs = given(options.rounds, EPOCHS)
        release = Release.of(Epoch(problem, numbers), 0, epochs, 0.0, 1.0)
        return Design(rounds=epochs, numbers=numbers, releases=(release,))

    def coordinate(self, plan: Plan) -> Coordination:
        v, first = np.zeros(plan.dimension), math.inf
        for t in range(plan.rounds):
            weights = weights_of(plan, v)
            *step, losses, conjugates = yield from total("epoch", weights=weights)
            gap = (losses + conjugates) / plan.records + plan.numbers.ridge * float(weights @ weights)
            first = gap if t == 0 else first
            v += step
            if np.abs(step).max() <= STILL * np.abs(v).max():
                break
        far = how_far(t + 1, gap / first if first > 0.0 else 0.0, "the duality gap, as a share of the first,")
        return Solution(weights_of(plan, v), {"duality_gap": gap}, unfinished=far)


class ExactSequentialSCD(ExactSCD):
    """The same ascent: without noise its steps come one after another already."""

    name: ClassVar[str] = "scd-sequential"
