"""`scd`: dual coordinate descent with hidden duals (Damaskinos et al., DP-SCD, made sound and sharper)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import (
    Algorithm,
    Ask,
    Coordination,
    Design,
    Problem,
    Solution,
    TailAverage,
    choice,
    draft,
    option,
    problem_loss,
    public_coin,
    summed,
)
from sottovoce.data.block import Block, exact_bits, exact_weights, is_sparse, toward_zero
from sottovoce.data.bounds import LARGEST
from sottovoce.data.kernels import coordinates as kernels
from sottovoce.door.gate import Gate, Released
from sottovoce.door.query import Query, Walk
from sottovoce.errors import InputError, LeakError
from sottovoce.losses import Loss
from sottovoce.plan.plan import Plan, Release, Split, grid_step
from sottovoce.privacy.accounting import (
    SAMPLER_SHARE,
    Event,
    Gaussian,
    PoissonGaussian,
    Relation,
    epsilon_of,
    moments_noise_for,
    noise_multiplier_for,
    visible_uses_epsilon,
)

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

CODES = {
    "squared": kernels.SQUARED,
    "huber": kernels.HUBER,
    "hinge": kernels.HINGE,
    "smoothed_hinge": kernels.SMOOTHED_HINGE,
    "logistic": kernels.LOGISTIC,
}
STEPS = ("slope", "exact", "newton")  # of the logistic loss; the others have one step
SMALLEST_CLIP, LARGEST_CLIP = 1e-90, 1024.0
EPOCHS = 2000  # of a run without privacy, at most
RATE = 0.1  # the least by default: the accuracy does not depend on it, the work of a round does
ENTRIES = 2**21  # of a batch: up to so many a full batch is as fast, and its cost is an exact Gaussian's
MESSAGE, BATCHES = 2**23, 20  # entries touched for one message, and rounds in it, at most
REACH = 1.5  # rows have norm 1 at most, so steps up to twice the safe ones are stable
AVERAGED = 0.3  # of the rounds, at the end
STILL = 1e-13  # it has converged when no weight moves by more than this share of the largest


class DualAlgorithm(Algorithm):
    """What the dual solvers share: the objective (1/N) sum_i l(x_i'w, y_i) + (lam/2) |w|^2, intercept included.

    One dual a_i per record; v = sum_i a_i x_i and w = v / (lam N).
    """

    resumes: ClassVar[bool] = False

    def mismatch(self, loss: Loss, split: Split) -> str | None:
        """Also a loss without a dual."""
        if loss.name not in CODES:
            return f"solver={self.name!r} needs a loss with a dual step ({', '.join(CODES)}), not {loss.name!r}"
        return super().mismatch(loss, split)

    def remember(self, plan: Plan, block: Block) -> Array:  # noqa: ARG002
        """The duals of the holder's records: they stay here."""
        return np.zeros(len(block))

    def coordinate(self, plan: Plan) -> Coordination:
        """V <- v + what the holders' records moved it by; without privacy until the duality gap closes."""
        return (yield from (self._descend(plan) if plan.private else _ascend(plan)))

    def _descend(self, plan: Plan) -> Coordination:
        """The mean over the last part of the rounds: the duals have not yet answered the newest noise."""
        v = np.zeros(plan.dimension)
        tail = TailAverage(plan.dimension, plan.rounds - int(plan["averaged"]))
        release = plan.releases[0]
        for t in range(0, plan.rounds, release.batches):
            moves = yield Ask(release.query, {"weights": weights_of(plan, v)})
            together = summed({name: move[: release.batches * plan.dimension] for name, move in moves.items()})
            for k, move in enumerate(together.reshape(release.batches, plan.dimension)):
                v += move
                tail.add(t + k, weights_of(plan, v))
        return tail.value

    def _without_privacy(self, problem: Problem, numbers: Mapping[str, float]) -> Design:
        epochs = option(problem, "rounds", EPOCHS, low=1, whole=True)
        query = Epoch(draft(problem, numbers), len(problem.parties))
        return Design(epochs, numbers, (Release.of(query, 0, epochs, 0.0, 1.0),))


class SCD(DualAlgorithm):
    """v <- v + sum over sampled records of z_i x_i + N(0, (sigma C)^2), z_i the dual step cut to |z_i x_i| <= C.

    Every record flips a secret coin of probability `rate` each round. Its dual stays with its holder, without noise.
    All steps of a round start from the same v (Jacobi): z_i = argmin l*(-a_i - z) + m z + s z^2 / 2 with
    m = x_i'w and s = rate |x_i|^2 / (lam reach); reach = 1 is safe if all rows were one and the same row. For the
    logistic loss `dual_step` says how near z_i comes to that minimiser. A holder that is alone takes several rounds a
    message, for speed.

    Guarantee: `rounds` Poisson-subsampled Gaussians of sensitivity C, against whoever sees every v
    (`proof.md`). Edges: a null row takes no step; an empty batch is answered with noise; a holder that was
    stopped in a run has lost its duals and refuses to go on.
    """

    name: ClassVar[str] = "scd"
    title: ClassVar[str] = "dual coordinate descent with hidden duals (DP-SCD)"
    has_paper: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...]] = ("rounds", "rate", "clip", "dual_step")

    def design(self, problem: Problem) -> Design:
        """Rate, rounds, steps and clip by the rule of `Rule`."""
        lam = ridge_of(self.name, problem)
        rule = Rule(problem, lam)
        numbers: dict[str, float] = {"ridge": lam, "dual_step": dual_step_of(problem)}
        if math.isinf(problem.epsilon):
            return self._without_privacy(problem, numbers)
        rate = option(problem, "rate", rule.rate, low=1e-9, high=1.0)
        rounds = option(problem, "rounds", rule.rounds, low=1, whole=True)
        reach = 1.0 if problem.calibration == "paper" else rule.reach(rate, rounds)
        clip = option(problem, "clip", rule.clip(rate, reach), low=SMALLEST_CLIP, high=LARGEST_CLIP)
        numbers |= {"clip": clip, "rate": rate, "reach": reach, "averaged": max(1, round(AVERAGED * rounds))}
        if problem.calibration == "paper":
            return self._paper(problem, numbers, rounds)
        query = DualSteps(draft(problem, numbers))
        multiplier = noise_multiplier_for(
            problem.epsilon, problem.delta * (1 - SAMPLER_SHARE), problem.relation, rate, rounds
        )
        step = grid_step(query, multiplier * clip)
        std = multiplier * (clip + step * math.sqrt(query.entries))
        batches = rule.batches(rate, rounds)
        release = Release.of(query, 0, rounds // batches, std, step, rate, batches=batches)
        return Design(rounds, numbers, (release,))

    def _paper(self, problem: Problem, numbers: dict[str, float], rounds: int) -> Design:
        """As printed: noise of variance 2 C^2 sigma^2 on v and the sampled duals, sigma by the moments accountant."""
        sigma = moments_noise_for(problem.epsilon, problem.delta, numbers["rate"], rounds)
        query = PublishedState(draft(problem, numbers | {"dual_step": STEPS.index("newton"), "averaged": 1.0}))
        std = math.sqrt(2) * numbers["clip"] * sigma
        release = Release.of(query, 0, rounds, std, grid_step(query, std), numbers["rate"])
        numbers |= {"dual_step": STEPS.index("newton"), "averaged": 1.0}  # the last iterate, one Newton step
        return Design(rounds, numbers, (release,), claimed_epsilon=problem.epsilon)

    def queries(self, plan: Plan) -> Mapping[str, Query | Walk]:
        """The sum of clipped dual steps; in the paper's form also the sampled duals."""
        if not plan.private:
            return {"epoch": Epoch(plan, len(plan.parties))}
        return {"state": PublishedState(plan)} if plan.calibration == "paper" else {"steps": DualSteps(plan)}

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
        """The batch is drawn inside the gate; only it moves its duals."""
        if not plan.private:
            return gate.gaussian(query, round_, block, arrays["weights"], memory, round_)
        door = gate.walk if plan.calibration == "paper" else gate.gaussian
        return door(query, round_, block, arrays["weights"], memory)

    def events(self, plan: Plan, relation: Relation, party: str) -> tuple[Event, ...]:
        """Poisson rounds; in the paper's form every round unamplified, since the duals show who was sampled."""
        if plan.calibration == "paper" and plan.private:
            release = plan.releases[0]
            return (Gaussian(mu=release.charged(relation) * math.sqrt(release.total) / release.std),)
        return super().events(plan, relation, party)

    def epsilons(self, plan: Plan, relation: Relation) -> dict[str, float]:
        """In the paper's form the coordinator sees which duals move; the others see v alone."""
        if plan.calibration != "paper" or not plan.private:
            return super().epsilons(plan, relation)
        release = plan.releases[0]
        rate, delta = release.rate or 1.0, plan.delta * (1 - SAMPLER_SHARE)
        seen = visible_uses_epsilon(release.charged(relation) / release.std, rate, release.total, delta)
        multiplier = release.std / (plan["clip"] + release.step * math.sqrt(plan.dimension))
        each, world = (
            epsilon_of([PoissonGaussian(rate, multiplier * math.sqrt(noises), release.total)], delta, relation)
            for noises in (1, len(plan.parties))
        )
        return {"world": min(world, each, seen), "coordinator": seen, "parties": min(each, seen)}


class Rule:
    """Defaults of `scd` from public numbers.

    For lam far below the rate a round is a clipped gradient step of length rate reach / (kappa rate + lam reach), kappa
    the loss's curvature. B is the sum of these lengths: the noise of all rounds carries the weights by
    c B sqrt(d) / (mu N), so B is what the budget allows (`spread`), at most the 1/lam that the duals need to arrive.
    The constants hold for labels and slopes of at most 1 (`docs/benchmarks.md`).
    """

    def __init__(self, problem: Problem, lam: float) -> None:
        self.problem, self.lam = problem, lam
        loss = problem_loss(problem)
        logistic = loss.name == "logistic" and STEPS[dual_step_of(problem)] == "slope"
        self.bend = loss.curvature_bound if logistic else 1.0
        self.slope, spread = (0.5, 2.5) if loss.kind == "regression" else (0.7, 10.0) if logistic else (1.0, 5.0)
        mu = min(problem.mu, 1e100) / (2.0 if problem.relation == "replace-one" else 1.0)
        noise = self.slope * math.sqrt(problem.dimension * len(problem.parties))
        self.length = min(spread * mu * problem.records / noise, 1 / lam)

    @property
    def rate(self) -> float:
        """Full batches of small data, down to RATE for large; the published form samples always."""
        if self.problem.calibration == "paper":
            return RATE
        return min(max(ENTRIES / (self.problem.records * self.problem.dimension), RATE), 1.0)

    @property
    def rounds(self) -> int:
        """As many as steps of the longest safe length need, from 100 to 2000, in tens."""
        return min(max(10 * math.ceil(self.length * self.bend / REACH / 10), 100), 2000)

    def batches(self, rate: float, rounds: int) -> int:
        """Rounds in one message of a holder that is alone: a divisor of all, MESSAGE entries at most."""
        if len(self.problem.parties) > 1:
            return 1
        most = max(MESSAGE / (max(rate * self.problem.records, 1.0) * self.problem.dimension), 1.0)
        return max(count for count in range(1, BATCHES + 1) if rounds % count == 0 and count <= most)

    def reach(self, rate: float, rounds: int) -> float:
        """The factor by which a step is longer than the one that is safe if all rows were one row."""
        each = self.length / rounds
        return min(REACH, self.bend * rate * each / (rate - self.lam * each)) if rate > self.lam * each else REACH

    def clip(self, rate: float, reach: float) -> float:
        """The length of the dual step of a slope of c."""
        return max(self.slope * self.lam * reach / (self.bend * rate + self.lam * reach), SMALLEST_CLIP)


class DualSteps:
    """sum over the batch of z_i x_i, |z_i x_i| <= clip; it also moves the holder's duals.

    Guarantee: zero-out moves it by at most clip, replace-one by twice that, in l2, whatever the duals are.
    Edges: a null row takes no step, and neither does one whose step is no number.
    """

    name = "steps"
    weights = 1.0

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.clip = checked_clip(plan)
        self.code = step_code(plan)
        self.factor = positive(plan, "rate") / (positive(plan, "ridge") * positive(plan, "reach"))
        self.entries = float(plan.dimension)

    def sensitivity(self, relation: Relation) -> float:
        """C for zero-out, 2 C for replace-one."""
        return self.clip * (2.0 if relation == "replace-one" else 1.0)

    def value(self, block: Block, *arguments: Any) -> Array:
        """One pass over the batch."""
        weights, duals = arguments
        return move(self.plan, block, weights, duals, code=self.code, factor=self.factor, clip=self.clip)

    def follow(self, released: Array, weights: Array, duals: Array) -> tuple[Array, Array]:
        """What the next batch of a message is asked with: the weights that the released move leads to.

        They are cut to the size of the weights that a holder accepts from a coordinator, where scores are exact.
        """
        moved = weights + weights_of(self.plan, released)
        return np.fmin(np.fmax(moved, -LARGEST), LARGEST), duals  # also where it is no number


class PublishedState:
    """The paper's release: the step of v and the steps of the sampled duals, noise on those alone.

    Guarantee: the round is a Gaussian of sensitivity sqrt 2 C (zero-out), 2 sqrt 2 C (replace-one) for who knows the
    batch, which the entries without noise tell. The noise enters the holder's duals, as published.
    Edges: a null row takes no step, and neither does one whose step is no number; their duals get the noise alone.
    """

    name = "state"
    weights = 1.0

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loss = plan.scaled_loss
        self.clip = checked_clip(plan)
        self.factor = positive(plan, "rate") / positive(plan, "ridge")
        self.length = plan.dimension + max(count for _, count in plan.parties)
        self.entries = plan.dimension + 1.0

    def sensitivity(self, relation: Relation) -> float:
        """sqrt(C^2 + C^2), twice that for replace-one."""
        return math.sqrt(2.0) * self.clip * (2.0 if relation == "replace-one" else 1.0)

    def walk(self, block: Block, noise: Integers | None, step: float, *arguments: Any) -> Integers:
        """Steps by the published formula, |z_i| <= C."""
        weights, duals = arguments
        if noise is None or block.bits is None:
            raise LeakError("the published release has noise.")
        batch = block if block.chosen is not None else block.take(block.places)
        places = batch.places
        squares = block.whole.squares[places]
        bits = block.bits - math.ceil(math.log2(self.clip))
        steps = np.zeros(len(places))

        def published(scores: Array, labels: Array) -> Array:
            with np.errstate(all="ignore"):
                found = self.loss.dual_step(duals[places], labels, scores, self.factor * squares)
            found = np.where(squares > 0, np.nan_to_num(found, nan=0.0), 0.0)
            steps[:] = toward_zero(np.clip(found, -self.clip, self.clip), bits)
            return steps

        grid = np.zeros(self.length, dtype=np.int64)
        grid[: self.plan.dimension] = np.rint(batch.weighted_sum(weights, published) / step)
        grid[: self.plan.dimension] += noise[: self.plan.dimension]
        moved = self.plan.dimension + places
        grid[moved] = np.rint(steps / step).astype(np.int64) + noise[moved]
        duals[places] += grid[moved] * step
        return grid


class Epoch:
    """One pass of dual coordinate ascent over a holder's records in turn, with its part of the duality gap.

    A run without privacy only: SDCA; several holders step side by side, with s multiplied by their number (CoCoA+).
    The value is (sum_i z_i x_i, sum_i l_i(x_i'w), sum_i l_i*(-a_i)), the sums before the pass.
    """

    name = "epoch"
    weights = 1.0
    entries = math.inf

    def __init__(self, plan: Plan, parties: int) -> None:
        self.plan = plan
        self.code = step_code(plan)
        self.parties = parties

    def sensitivity(self, relation: Relation) -> float:  # noqa: ARG002
        """Infinite: never released with noise."""
        return math.inf

    def value(self, block: Block, *arguments: Any) -> Array:
        """Records in an order drawn afresh."""
        weights, duals, round_ = arguments
        loss = self.plan.scaled_loss
        losses = block.scalar_sum(weights, loss.value)
        used = block.squares > 0  # the dual of a null row stays 0 and its loss is a constant
        conjugates = float(np.sum(loss.conjugate(-duals[used], block.labels[used])))
        losses -= float(np.sum(loss.value(np.zeros((~used).sum()), block.labels[~used])))
        order = public_coin(self.plan, f"epoch {round_}").permutation(len(block))
        lam_n = self.plan["ridge"] * self.plan.records
        local = np.array(weights, dtype=np.float64)
        scale = self.parties / lam_n
        options: dict[str, Any] = {"code": self.code, "factor": scale, "clip": math.inf, "scale": scale}
        total = move(self.plan, block.take(order), local, duals, **options)
        return np.array([*total, losses, conjugates])


def _ascend(plan: Plan) -> Coordination:
    """SDCA until the weights stand still; the certificate is the duality gap before the last epoch."""
    v, gap, n = np.zeros(plan.dimension), math.inf, plan.records
    for _ in range(plan.rounds):
        weights = weights_of(plan, v)
        passes = yield Ask("epoch", {"weights": weights})
        *step, losses, conjugates = summed(passes)
        gap = (losses + conjugates) / n + plan["ridge"] * float(weights @ weights)
        v += step
        if np.abs(step).max() <= STILL * np.abs(v).max():
            break
    return Solution(weights_of(plan, v), {"duality_gap": gap})


def move(
    plan: Plan,
    block: Block,
    weights: Array,
    duals: Array,
    *,
    code: int,
    factor: float,
    clip: float,
    scale: float = 0.0,
) -> Array:
    """Step the duals of the block's records and return sum_i z_i x_i; with `scale` the weights follow each step."""
    whole = block.whole
    grid = -1
    if plan.private:
        if block.bits is None or block.row_norm > 1.0:
            raise LeakError("the rows were not prepared for dual steps with noise.")
        grid = block.bits - math.ceil(math.log2(clip))
        weights = exact_weights(weights, block.bits)
    parameter = next(iter(plan.scaled_loss.parameters().values()), 0.0)
    options = (whole.labels, whole.squares, weights, duals, code, parameter, factor, clip, grid, scale)
    if is_sparse(whole.rows):
        rows = whole.rows
        return np.asarray(kernels.dual_rows_sparse(rows.indptr, rows.indices, whole.entries, block.places, *options))
    return np.asarray(kernels.dual_rows_dense(whole.rows, block.places, *options))


def step_code(plan: Plan) -> int:
    """The kernel's code of the plan's loss and dual step."""
    name, step = plan.scaled_loss.name, plan["dual_step"]
    if step not in range(len(STEPS)):
        raise InputError(f"dual_step={step!r} must be a whole number from 0 to {len(STEPS) - 1}.")
    if name != "logistic":
        return CODES[name]
    return (kernels.LOGISTIC_SLOPE, kernels.LOGISTIC_EXACT, kernels.LOGISTIC)[int(step)]


def dual_step_of(problem: Problem) -> int:
    """The place of the chosen step in STEPS; without privacy the exact one, which converges in fewer epochs."""
    steps = STEPS if math.isfinite(problem.epsilon) else (STEPS[1], STEPS[0], STEPS[2])
    return STEPS.index(choice(problem, "dual_step", steps))


def checked_clip(plan: Plan) -> float:
    """The plan's clip, if sums of steps of that size are exact on its rows."""
    clip = plan["clip"]
    if not SMALLEST_CLIP <= clip <= LARGEST_CLIP:
        raise InputError(f"clip={clip!r} must be a number from {SMALLEST_CLIP:g} to {LARGEST_CLIP:g}.")
    if plan.layout != "rows" or exact_bits(plan.records) < math.ceil(math.log2(clip)):
        raise InputError(
            f"dual steps are summed over rows of norm 1, and at clip={clip!r} not over {plan.records} of them: take "
            "layout='rows', fewer records or a smaller clip."
        )
    return clip


def positive(plan: Plan, name: str) -> float:
    """A number of the plan that must be positive and finite."""
    value = plan[name]
    if not 0 < value < math.inf:
        raise InputError(f"{name}={value!r} must be a positive finite number.")
    return value


def weights_of(plan: Plan, v: Array) -> Array:
    """W = v / (lam N)."""
    return v / (plan["ridge"] * plan.records)


def ridge_of(solver: str, problem: Problem) -> float:
    """lam, the weight of the squares; without it there is no dual."""
    lam = draft(problem).scaled_regulariser.ridge
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
