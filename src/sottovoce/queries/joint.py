"""Sums over the records of all parties by columns, opened at once: no party has a value of them.

    sum_i v_i t_i R_i,      t_i a random bit looked up at the joint score of record i,      R the rows, or whitened ones

v is 0 for a record that is null at one party, else 1 or the factor that clips a whitened row: such a record adds
nothing, and any other a term within the bound, whatever was told and however coins fall. Proof:
`secure/proofs/columns.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.bounds import LARGEST
from sottovoce.errors import InputError, LeakError
from sottovoce.gate.query import Array, Integers, MessageArrays, Query, Reals, Round, Wholes
from sottovoce.losses import Loss
from sottovoce.plan import Plan, Problem
from sottovoce.plan.split import RowPart
from sottovoce.queries.counts import AmountSum, CountResidualSum, CountSum
from sottovoce.queries.sums import (
    POSITIVE,
    GradientSum,
    GramMatrix,
    LabelSum,
    NumberSum,
    ResidualSum,
    WeightSum,
    first_round,
    gradient_sum,
)
from sottovoce.secure import ring
from sottovoce.secure.ring import LookUp

UNIT = np.array([2**ring.UNIT_BITS])


class JointSum(Query):
    """A sum that parties open together, by one of the programs of `secure/columns.py`.

    Its values are whole numbers of the grid: nothing is rounded.
    """

    by_person: ClassVar[bool] = True  # each record counts by its weight
    roots: int = 0  # bits of the roots of weights
    program: ClassVar[Literal["length", "look-up"]] = "look-up"
    factored: ClassVar[bool] = False  # whether rows are whitened and clipped: P is told in the first of its rounds
    rounding_entries = 0.0
    loss: Loss  # whose slopes are looked up

    def joint_step(self, _bits: int) -> float | None:
        return None if self.factored else float(2.0 ** -(ring.UNIT_BITS + 2 * self.roots))

    def lookup(self, told: MessageArrays) -> LookUp:
        """What is looked up, of public numbers; P where this message tells it.

        Slopes of classes, t - y', of numbers, 2 t - 1, or of counts, t - t', times rows.
        """
        if self.program != "look-up":
            raise LeakError(f"query {self.name!r} looks nothing up.")
        classes = self.loss.kind == "classification"
        index: Literal["label", "residual"] = "residual" if self.loss.kind == "regression" else "label"
        matrix: Literal["projected", "rows"] = "projected" if self.factored else "rows"
        weight: Literal["factor", "null"] = "factor" if self.factored else "null"
        about = (np.ones(1, dtype=np.int64), self.projection(told), told.get("nodes"))
        level, twice = float(told["level"][0]), index == "residual"
        return LookUp(told["chances"], level, index, weight, matrix, twice, classes, *about)

    def projection(self, _told: MessageArrays) -> Integers | None:
        """P, (dimension, width), where this message tells it."""
        return None

    def value(self, _round: Round) -> Array:
        raise LeakError(f"query {self.name!r} is opened over all parties; no party has a value of it.")


def slope_takes(dimension: int, loss: Loss, outputs: int = 1) -> dict[str, Reals]:
    """What a message has of a look-up: weights, how far apart levels are, chances; of counts the sections' labels."""
    counts = loss.kind == "count"
    return {
        "weights": Reals((dimension,)),
        "level": POSITIVE,
        "chances": Wholes((2 * outputs, ring.WIDE) if counts else (outputs, ring.LEVELS), 0, 2**ring.CHANCE_BITS),
        **({"nodes": Reals((ring.SECTIONS,), 0.0, LARGEST)} if counts else {}),
    }


class JointGradient(JointSum, GradientSum):
    """sum_i n_i r_i x_i of all parties' columns, r_i a bit whose mean is the slope: |r_i| <= slope_bound.

    Guarantee: zero-out moves it by at most slope_bound, times sqrt Q of rows whose parts' norms overlap, replace-one by
    twice that. A record that is null at one party adds 0. Edges: slopes are clipped at a power of two, the next above
    the one asked for, so that sums are on a grid.
    """

    samples: ClassVar[bool] = False
    by_person: ClassVar[bool] = False

    def __init__(self, problem: Problem, slope_bound: float) -> None:
        super().__init__(problem.dimension, slope_bound, problem.scaled_loss)
        self.slope_bound = 2.0 ** math.ceil(math.log2(slope_bound))
        self.bound = self.slope_bound * math.sqrt(problem.row_square)
        self.records, self.rounding_entries = problem.records, 0.0
        self.takes = slope_takes(self.length, self.loss)

    def joint_step(self, bits: int) -> float | None:
        return float(self.slope_bound * 2.0**-bits)

    def message(self, weights: Array, gram: Array | None = None) -> dict[str, NDArray[Any]]:
        """Of a table that reaches beyond the scores, by an opened Gram matrix; without one by the longest row."""
        spread = math.sqrt(float(weights @ weights)) / 4
        if gram is not None:
            spread = math.sqrt(max(float(weights @ gram @ weights), 0.0) / self.records)
        if self.loss.kind == "regression":
            spread = math.hypot(spread, 0.5)  # labels are within [-1, 1]
        level = ring.slope_level(self.loss, self.slope_bound, spread)
        chances = ring.slope_chances(self.loss, self.slope_bound, level)
        return {"weights": weights, "level": np.array([level]), "chances": chances}


class WhitenedSum(JointSum):
    """A sum over rows that are whitened by a P, which is told as its lower triangle, in whole numbers.

    A party refuses a P that makes a row longer than the levels of its length reach.
    """

    plan: Plan

    def takes_at(self, number: int) -> Mapping[str, Reals]:
        """In the first round of gradients, and of lengths in any, P too; none that fits has a larger entry."""
        first = first_round(self.plan, self.name) if self.factored else math.inf
        if number != first and math.isfinite(first):
            return self.takes
        d, most = self.plan.dimension, 2 ** (ring.exponent_of(self.plan) // 2)
        return {**self.takes, "projection": Wholes((d * (d + 1) // 2,), -most, most)}

    def projection(self, told: MessageArrays) -> Integers | None:
        if "projection" not in told:
            return None
        matrix = np.zeros((self.plan.dimension, self.plan.dimension), dtype=np.int64)
        matrix[np.tril_indices(self.plan.dimension)] = told["projection"]
        return matrix

    def objection(self, number: int, told: MessageArrays) -> str | None:
        if (wrong := super().objection(number, told)) is not None:
            return wrong
        matrix = self.projection(told)
        if matrix is None or ring.fits_clip(matrix, ring.exponent_of(self.plan), self.plan.row_square):
            return None
        return "needs a 'projection' that makes no row longer than the levels of the clip reach"


class WholeLength(WhitenedSum):
    """sum_i of a bit with the mean min(1, |P'x_i| / 2C); C is the plan's, P is told.

    Guarantee: bits are 0 or 1, so both relations move it by at most 1. Edges: 0 for a record that is null at one party,
    and for a row longer than sqrt(14) C.
    """

    name = ring.LENGTH
    title: ClassVar[str] = "the mean length of the whitened rows"
    program: ClassVar[Literal["length", "look-up"]] = "length"
    bound = 1.0
    replacement: ClassVar[float | None] = 1.0  # no bit is below 0
    length = 1

    def __init__(self, problem: Problem) -> None:
        self.plan, self.roots = cast("Plan", problem), problem.root_bits


class WholeGradient(WhitenedSum):
    """sum_i f_i r_i P'x_i / (32 C), f_i <= 31 min(1, C / |P'x_i|) a whole number, r_i a bit whose mean is the slope.

    Guarantee: zero-out moves it by at most 31/32, replace-one by twice that, whatever P, weights and chances are: for
    f_i |P'x_i| <= 31 C holds in whole numbers, for every coin, of every P that `fits_clip`; a party refuses another.
    Edges: a record that is null at one party, or longer than sqrt(14) C, adds 0. The first round is told P.
    """

    name = ring.GRADIENT
    title: ClassVar[str] = "gradients of the loss on whitened rows"
    factored: ClassVar[bool] = True
    bound = ring.MOST_FACTOR / 2.0**ring.FACTOR_BITS

    def __init__(self, problem: Problem) -> None:
        self.plan, self.length, self.loss = cast("Plan", problem), problem.dimension, problem.scaled_loss
        self.takes = slope_takes(self.length, self.loss)
        ring.check_slopes(self.loss)


class ScoreSums(JointSum):
    """sum_i n_i (2 t_i - 1), t_i a bit looked up at the joint score.

    Guarantee: zero-out moves it by at most 1, replace-one by 2; a record that is null at one party adds 0.
    """

    bound = 1.0
    length = 1
    level: ClassVar[float] = 0.125
    twice: ClassVar[bool] = True

    def __init__(self, problem: Problem) -> None:
        self.takes, self.roots = {"weights": Reals((problem.dimension,))}, problem.root_bits

    def lookup(self, _told: MessageArrays) -> LookUp:
        """Of scores clipped to +-1, whose kinks are on levels, or of squares less what rounding to levels adds."""
        scores = ring.scores_at(ring.LEVELS, self.level)
        means = (1 + np.clip(scores, -1.0, 1.0)) / 2
        if not self.twice:
            means = np.clip(scores**2 - self.level**2 / 6, 0.0, 1.0)
        return LookUp(ring.chances_of(means)[None], self.level, "score", "null", "one", self.twice, False, UNIT)


class JointScores(ScoreSums):
    """sum_i clip(s_i, -1, 1) of joint scores s, in the mean."""

    name = "score"
    title: ClassVar[str] = "the mean score"


class JointSquares(ScoreSums):
    """sum_i n_i t_i, of the mean min(1, s_i^2). Guarantee: no bit is below 0, so both relations move it by 1."""

    name = "square"
    title: ClassVar[str] = "the mean square of the scores"
    twice: ClassVar[bool] = False
    replacement: ClassVar[float | None] = 1.0  # no bit is below 0


class ScaleLookup(ScoreSums):
    """sum_i n_i b_j (2 t_ij - 1), |b| <= 1: derivatives by the slope and the intercept of the score.

    Guarantee: a record's term has the length |b| for any bits. b is told as whole numbers of 2^-8; a party refuses a
    longer one, so the noise does not depend on what is told.
    """

    name = "rescale"
    title: ClassVar[str] = "gradients of the slope and the intercept of the score"
    level: ClassVar[float] = 0.5

    def __init__(self, problem: Problem) -> None:
        self.length, self.roots = 1 + problem.fit_intercept, problem.root_bits
        takes = slope_takes(problem.dimension, problem.scaled_loss, self.length)
        del takes["level"]
        self.takes = {**takes, "scales": Wholes((self.length,), 0, 2**ring.UNIT_BITS)}  # b

    def objection(self, number: int, told: MessageArrays) -> str | None:
        wrong = super().objection(number, told)
        if wrong is None and int((told["scales"] ** 2).sum()) > 4**ring.UNIT_BITS:
            wrong = f"needs 'scales' of a length of at most {2**ring.UNIT_BITS}"
        return wrong

    def lookup(self, told: MessageArrays) -> LookUp:
        about = ("nodes" not in told, False, told["scales"], None, told.get("nodes"))
        return LookUp(told["chances"], self.level, "label", "null", "one", *about)


class HeldSum(NumberSum):
    """A sum of the party that has the labels, over its own columns; the others add 0."""

    part: RowPart | None  # of that party, at that party

    def __init__(self, problem: Problem, party: str, *about: Any) -> None:
        super().__init__(*about)
        self.part = problem.part(party) if party == problem.label_party_name else None

    def value(self, round: Round) -> Array:
        if self.part is None:
            return np.zeros(1)
        told = dict(round.told)
        if "weights" in told:
            own, constant = told["weights"][self.part.start : self.part.stop], told["weights"][round.plan.features :]
            told["weights"] = np.append(own, constant if self.part.constant else [])
        return super().value(round._replace(told=told))


class HeldLabels(HeldSum, LabelSum):
    """sum_i y_i of labels in [-1, 1], of the party that has them."""


class HeldResiduals(HeldSum, ResidualSum):
    """sum_i min(1, |x_i'w - y_i|) by the columns of the party that has the labels."""


class HeldCounts(HeldSum, CountSum):
    """sum_i y_i / B of counts in [0, B], of the party that has them."""


class HeldCountResiduals(HeldSum, CountResidualSum):
    """sum_i min(1, |exp(x_i'w) - y_i| / R) by the columns of the party that has the labels; R is told."""


class HeldAmounts(HeldSum, AmountSum):
    """sum_i of the weights of records, those of a person 1 at most, of the party that knows whose each is."""


class PeopleGram(GramMatrix):
    """sum_i w_i x_i x_i', the weights of a person's records 1 at most.

    Guarantee: as of records, since a person's products add up to a matrix of a trace of Q at most, none below 0.
    """

    by_person: ClassVar[bool] = True


class HeldWeights(HeldSum, WeightSum):
    """sum_i of the weights of the classes, each in (0, 1], of the party that has the labels."""


def can_look_up(problem: Problem) -> bool:
    """Whether the slopes of a problem can be looked up at secure scores."""
    try:
        ring.check_slopes(problem.scaled_loss)
    except InputError:
        return False
    return True


def make_gradient_sum(problem: Problem, slope_bound: float) -> GradientSum:
    """The gradient of a problem's loss: of rows in one place or of a party, or of secure columns."""
    if not problem.secure_columns:
        return gradient_sum(problem.dimension, slope_bound, problem.scaled_loss)
    ring.check_slopes(problem.scaled_loss)
    return JointGradient(problem, slope_bound)
