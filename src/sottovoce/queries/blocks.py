"""Blocks of columns: each party centres, whitens and cuts its own part of a row; slopes are looked up at joint scores.

No party knows a whole row, so nobody can cut one. The matrices that whiten the parts are made of earlier releases and
told to all; what they make of the rows stays with their holder. Sums are opened over all parties at once, each in
units of what bounds a record's term: sensitivities do not depend on what was told.
Proof: `algorithms/whitened/proof.md`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.data.projection import CentredRows
from sottovoce.door.query import Reals, Round, Told, Wholes, misfit
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Problem
from sottovoce.privacy.relation import Relation, distance, either
from sottovoce.queries.joint import JointSum, known_part
from sottovoce.queries.numbers import LabelSum, NumberSum
from sottovoce.queries.projected import FINEST, POSITIVE, STEEPEST, Shape
from sottovoce.sealed.tables import Lookup

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

BELOW = 1.0 - 2.0**-40  # what leaves room for floating point in a sum of the parties' shares of a number


def through(values: Array) -> Array:
    """The coefficients of the B-spline of degree 3 that has these values at its levels, which repeat."""
    count = values.shape[-1]
    weights = (2 + np.cos(2 * np.pi * np.arange(count // 2 + 1) / count)) / 3
    return np.asarray(np.fft.irfft(np.fft.rfft(values) / weights, count))


def folded(words: int) -> Array:
    """0, 1, ..., and down again to 1: how far each level is from one where the table repeats."""
    levels = np.arange(words)
    return np.minimum(levels, words - levels).astype(np.float64)


def on_grid(values: Array, bits: int) -> Integers:
    """Whole numbers of 2^-bits, rounded toward zero."""
    return np.asarray(np.trunc(values * 2.0**bits), dtype=np.int64)


class Blocks:
    """Which columns belong together: those of each party, and the constant of the intercept by itself."""

    def __init__(self, problem: Problem) -> None:
        ends = np.cumsum((0, *problem.columns))
        self.columns = [slice(int(start), int(stop)) for start, stop in itertools.pairwise(ends)]
        self.owners = list(range(len(problem.columns)))
        if problem.fit_intercept:
            self.columns.append(slice(problem.features, problem.features + 1))
            self.owners.append(problem.label_party)
        self.dimension, self.parties, self.constant = problem.dimension, len(problem.columns), problem.fit_intercept
        self.shapes = [Shape(columns.stop - columns.start, "triangular") for columns in self.columns]

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def takes(self) -> dict[str, Reals]:
        """What a message has of the matrices P_b, one after the other, and of the means."""
        entries = sum(shape.takes["projection"].shape[0] or 0 for shape in self.shapes)
        return {
            "projection": Wholes((entries,), -FINEST, FINEST),
            "unit": Reals((len(self),), SMALLEST, STEEPEST / FINEST),
            "means": Reals((self.dimension,), -1.0, 1.0),
        }

    def told(self, matrices: Sequence[Array], means: Array) -> dict[str, NDArray[Any]]:
        """What is sent for lower triangular matrices and means."""
        each = [shape.told(matrix) for shape, matrix in zip(self.shapes, matrices, strict=True)]
        return {
            "projection": np.concatenate([one["projection"] for one in each]),
            "unit": np.concatenate([one["unit"] for one in each]),
            "means": means,
        }

    def matrix(self, place: int, told: Told) -> Array:
        """The P_b that was told."""
        sizes = [shape.takes["projection"].shape[0] or 0 for shape in self.shapes]
        start = sum(sizes[:place])
        part = told["projection"][start : start + sizes[place]]
        return self.shapes[place].matrix({"projection": part, "unit": told["unit"][place : place + 1]})

    def of(self, party: int) -> list[int]:
        """The places of a party's blocks, in the order of its columns."""
        return [place for place, owner in enumerate(self.owners) if owner == party]

    def shares(self, cuts: Array) -> Array:
        """Of the square of a whole row's length, by party."""
        return np.asarray(np.bincount(self.owners, weights=cuts**2, minlength=self.parties) / float(cuts @ cuts))


class HeldLabels(LabelSum):
    """sum_i y_i of the party that has the labels; the others add 0."""

    def __init__(self, problem: Problem, party: str) -> None:
        super().__init__(problem.dimension)
        self.holds = party == problem.label_party_name

    def value(self, round: Round) -> Array:
        """The sum, exact on its grid."""
        return super().value(round) if self.holds else np.zeros(1)


class HeldResiduals(NumberSum):
    """sum_i min(1, |m - y_i|) at a constant m, of the party that has the labels; the others add 0."""

    name = "residual"
    title: ClassVar[str] = "the mean size of the residuals"

    def __init__(self, problem: Problem, party: str) -> None:
        super().__init__(problem.dimension)
        self.holds = party == problem.label_party_name

    def takes(self, plan: Plan, number: int) -> Mapping[str, Reals]:  # noqa: ARG002
        """The constant."""
        return {"mean": Reals((1,))}

    def number(self, score: Array, label: Array, told: Told) -> Array:  # noqa: ARG002
        """The size of the residual."""
        return np.asarray(np.abs(told["mean"][0] - label))

    def value(self, round: Round) -> Array:
        """The sum, exact on its grid."""
        return super().value(round) if self.holds else np.zeros(1)


class SquaredLengths(NumberSum):
    """sum_i sum_b min(|P_b'(x_ib - m_b)|, R_b)^2 / sum_b R_b^2, each party its own blocks b; together at most 1.

    Guarantee: all parties' numbers of a record add up to at most 1, and to 0 for one that is null at all of them.
    """

    name = "length"
    title: ClassVar[str] = "the mean squared length of the whitened parts of a row"

    def __init__(self, problem: Problem, party: str) -> None:
        super().__init__(problem.dimension)
        self.blocks, self.place = Blocks(problem), problem.names.index(party)
        self.rounding_entries = float(self.blocks.parties**2)  # each of them rounds its own sum

    def takes(self, plan: Plan, number: int) -> Mapping[str, Reals]:  # noqa: ARG002
        """P_b, m_b and R_b of all blocks."""
        return {**self.blocks.takes, "radii": Reals((len(self.blocks),), SMALLEST, LARGEST)}

    def value(self, round: Round) -> Array:
        """The sum, exact on its grid."""
        return np.array([round.rows.number_sum(lambda own, labels: own, numbers=self._numbers(round))])  # noqa: ARG005

    def _numbers(self, round: Round) -> Array:
        """The party's share of each record; it keeps the whitened parts."""
        told, radii = round.told, round.told["radii"]
        parts = round.memory["parts"] = {}
        total, start = np.zeros(len(round.rows)), 0
        for place in self.blocks.of(self.place):
            columns = self.blocks.columns[place]
            width = columns.stop - columns.start
            matrix = self.blocks.matrix(place, told)
            part = CentredRows(round.rows, slice(start, start + width), matrix, told["means"][columns])
            total += np.minimum(part.lengths, radii[place]) ** 2
            parts[place], start = part, start + width
        return np.asarray(total * (BELOW / float(radii @ radii)))


class BlockGradient(JointSum):
    """sum_i r_i Z_i, Z_i = (P_b'(x_ib - m_b) min(1, C_b / |.|) / C)_b, C^2 = sum_b C_b^2, r_i the slope in units of G.

    For classes r = f(s - c y) - y / 2 with |f| <= 1/2, for numbers f(s - y) with |f| <= 1.
    Guarantee: |r_i| <= 1 for any score, told f and rounding, and |Z_i| <= 1; so zero-out moves the sum by at most 1,
    replace-one by 2. Edges: a part that is null is 0; a record without a label has y = 0.
    """

    name = "gradient"
    title: ClassVar[str] = "gradients of the loss on whitened parts of rows"
    matrix: ClassVar[Literal["rows", "whitened", "one"]] = "whitened"
    shaping: ClassVar[tuple[str, ...]] = ("cuts",)
    bound = 1.0

    def __init__(self, problem: Problem, party: str) -> None:
        self.blocks, self.place = Blocks(problem), problem.names.index(party)
        self.length, self.rounding_entries = problem.dimension, float(problem.dimension)
        loss = problem.scaled_loss
        self.classes = loss.kind == "classification"
        slowly = self.classes and loss.curvature_bound <= 0.25  # a slope that bends so needs few levels
        self.words, self.order = (16, 3) if slowly else (32, 1)

    def takes(self, plan: Plan, number: int) -> Mapping[str, Reals]:  # noqa: ARG002
        """Weights, f at its levels, what the label shifts, and C_b."""
        most = 2.0**plan.preparation.bits / (2 if self.classes else 1)
        told = {
            "weights": Reals((self.length,)),
            "nodes": Wholes((1, self.words), -most, most),
            "level": POSITIVE,
            "cuts": Reals((len(self.blocks),), SMALLEST, LARGEST),
        }
        return told | {"shift": Reals((1,))} if self.classes else told

    def lookup(self, plan: Plan, told: Told) -> Lookup:  # noqa: ARG002
        """As told."""
        shift, beta = (float(told["shift"][0]), 0.5) if self.classes else (1.0, 0.0)
        return Lookup(told["nodes"], float(told["level"][0]), True, shift, (beta,), self.order)

    def known_part(self, plan: Problem, told: Told) -> float:
        """By the parties' shares of C^2."""
        return known_part(plan, self.blocks.shares(told["cuts"]))

    def columns(self, round: Round) -> Integers:
        """The party's columns of Z, in units of 2^-bits: made once, when C_b are told."""
        parts, cuts = round.memory["parts"], round.told["cuts"]
        unit = math.sqrt(float(cuts @ cuts))
        return np.hstack([parts[place].cut(float(cuts[place]), unit) for place in self.blocks.of(self.place)])


class LookupSum(JointSum):
    """sum_i r_i, |r_i| <= 1 whatever the record is.

    Guarantee: a record that is null at every party is looked up at level 0, where the table is 0; so zero-out moves the
    sum by at most 1, replace-one by 2. With a part of the record any r_i may become any other: parties that know the
    rest see twice as much, K = 4.
    """

    matrix: ClassVar[Literal["rows", "whitened", "one"]] = "one"
    bound = 1.0
    length = 1
    rounding_entries = 1.0

    def __init__(self, problem: Problem) -> None:
        self.dimension = problem.dimension

    def known_part(self, plan: Problem, told: Told) -> float:  # noqa: ARG002
        """4 under zero-out."""
        return (2.0 / distance(plan.relation)) ** 2

    def takes(self, plan: Plan, number: int) -> Mapping[str, Reals]:  # noqa: ARG002
        """The weights of a score."""
        return {"weights": Reals((self.dimension,))}


class JointScores(LookupSum):
    """sum_i clip(s_i, -1, 1) of joint scores s."""

    name = "score"
    title: ClassVar[str] = "the mean score"
    level, words = 0.25, 16

    def lookup(self, plan: Plan, told: Told) -> Lookup:  # noqa: ARG002
        """Degree 1: its kinks are on levels."""
        values = np.minimum(self.level * folded(self.words), 1.0)[None, :]
        return Lookup(on_grid(values, plan.preparation.bits), self.level, True, 0.0, (0.0,), 1)


class JointSquares(LookupSum):
    """sum_i min(1, s_i^2) of joint scores s. Guarantee: no two r_i are more than 1 apart, whoever looks."""

    name = "square"
    title: ClassVar[str] = "the mean square of the scores"
    level, words, order = 0.25, 32, 3

    def sensitivity(self, relation: Relation) -> float:
        """1: no r_i is below 0."""
        return either(relation, zero_out=1.0, replace_one=1.0)

    def known_part(self, plan: Problem, told: Told) -> float:  # noqa: ARG002
        """1: likewise."""
        return 1.0

    def lookup(self, plan: Plan, told: Told) -> Lookup:  # noqa: ARG002
        """Of a score and its dithers."""
        values = np.minimum((self.level * folded(self.words)) ** 2, 1.0)[None, :]
        return Lookup(on_grid(values, plan.preparation.bits), self.level, False, 0.0, (0.0,), self.order)

    @property
    def dithers(self) -> float:
        """What the dithers add to a square, on average: (order + 1) / 12 of a level's."""
        return (self.order + 1) / 12 * self.level**2


class ScaleLookup(LookupSum):
    """sum_i of derivatives by the slope and the intercept of the score, functions of joint score and label alone.

    The label picks its half of the table: it shifts the score by a quarter of the period either way.
    """

    name = "rescale"
    title: ClassVar[str] = "gradients of the slope and the intercept of the score"
    level, words = 0.5, 64

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.length = 1 + problem.fit_intercept
        self.rounding_entries = float(self.length)

    @property
    def shift(self) -> float:
        """A quarter of the period."""
        return self.level * self.words / 4

    def takes(self, plan: Plan, number: int) -> Mapping[str, Reals]:  # noqa: ARG002
        """Weights, and the table."""
        most = 2.0**plan.preparation.bits
        return {"weights": Reals((self.dimension,)), "nodes": Wholes((self.length, self.words), -most, most)}

    def objection(self, plan: Plan, number: int, told: Told) -> str | None:
        """No entry of the table is longer than 1, and the first is 0."""
        wrong = misfit(self.takes(plan, number), told)
        if wrong is None:
            squares = (told["nodes"] ** 2).sum(axis=0)
            if squares[0] != 0 or squares.max() > 4**plan.preparation.bits:
                wrong = "needs 'nodes' of a length of at most 1, the first of them 0"
        return wrong

    def lookup(self, plan: Plan, told: Told) -> Lookup:  # noqa: ARG002
        """As told."""
        return Lookup(told["nodes"], self.level, False, self.shift, (0.0,) * self.length, 3)
