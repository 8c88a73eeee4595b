"""`scd`: dual coordinate descent with hidden duals (Damaskinos et al., DP-SCD, made sound and sharper)."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from sottovoce.algorithms.base import Array, given
from sottovoce.algorithms.scd.duals import (
    SMALLEST_CLIP,
    ClippedNumbers,
    ClippedSteps,
    DualAlgorithm,
    Positive,
    move,
    ridge_of,
    weights_of,
)
from sottovoce.algorithms.sgd.private import sampled_release
from sottovoce.data.bounds import LARGEST
from sottovoce.gate.query import Round
from sottovoce.plan import Design, Numbers, Problem
from sottovoce.privacy.events import distance
from sottovoce.solvers import SCD, DualStep

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

    @property
    def rate(self) -> float:
        """Full batches of small data, down to RATE for large."""
        return min(max(ENTRIES / (self.problem.records * self.problem.dimension), RATE), 1.0)

    @property
    def rounds(self) -> int:
        """As many as steps of the longest safe length need, from 100 to 2000, in tens."""
        return min(max(10 * math.ceil(self.length * self.curvature / STRETCH / 10), 100), 2000)

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
