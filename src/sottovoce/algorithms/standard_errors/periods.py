"""Standard errors of a loss that has rates of its own: a record with the row x has a row (x, e_j) in each period j.

The loss says slope and information of each; all rows of a record move a sum together by a bounded length (`proof.md`).
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar, NamedTuple, cast

import numpy as np
import scipy.linalg as linalg

from sottovoce.algorithms.base import Array, Asking, total
from sottovoce.algorithms.standard_errors.estimates import Belief
from sottovoce.algorithms.whitened import rule
from sottovoce.data.block import Block, BlockRows
from sottovoce.data.bounds import LARGEST
from sottovoce.data.matrix import slopes_of, toward_zero
from sottovoce.data.projection import short_rows
from sottovoce.gate.query import Query, Reals, Round
from sottovoce.losses import Hazard
from sottovoce.plan import Plan
from sottovoce.queries.sums import POSITIVE, GramMatrix, ProjectionShape

ROOM = 1.0 - 2.0**-40
PERIOD = 0.2  # the length of the e_j in units of what a record adds at most
FEATURES = math.sqrt(1.0 - 2.0 * PERIOD**2) * ROOM  # of z: squares of slopes of periods add up to twice their sum's

Told = tuple[Array, float, Hazard]  # P, G and the loss with its rates


class PeriodRows(Query):
    """Sums over rows (FEATURES z, PERIOD e_j) times factors, at a public model; P, G and rates are told.

    Guarantee: whatever is told, a record adds what its bound says. A null row has neither an event nor a time.
    """

    needs: ClassVar[type] = BlockRows

    def about(self, weights: Array, loss: Hazard) -> int:
        self.weights, self.loss, self.shape = weights, loss, ProjectionShape(len(weights), "triangular")
        learned = {name: Reals((count,), 0.0, LARGEST) for name, count in loss.learned.items()}
        self.takes = {**self.shape.takes, "slope": POSITIVE, **learned}
        return len(weights) + loss.parts

    def value(self, round: Round) -> Array:
        told = self.shape.matrix(round.told), float(round.told["slope"][0]), self.loss.hearing(round.told)
        return round.rows.over(functools.partial(self.summed, told))

    @abstractmethod
    def summed(self, told: Told, block: Block) -> Array:
        """The sum over the rows of a block: exact, in any order."""

    def slopes(self, told: Told, block: Block) -> Iterator[Array]:
        """Piece by piece sum_j of a record's slopes times its rows, in units of G: none is longer than 1."""
        matrix, slope, loss = told
        for rows, shares, scores, labels in short_rows(block, matrix, self.weights):
            with np.errstate(all="ignore"):  # a warning that a record caused could be turned into an error
                weight = loss.weight(scores) / slope
                own = cut(slopes_of(loss, scores, labels) * weight, 1.0)
                each = cut(loss.part_slopes(scores, labels)[0] * weight[:, None], 2.0)
            each *= (math.sqrt(2.0) * ROOM / np.maximum(np.sqrt(added(each * each)), math.sqrt(2.0)))[:, None]
            sums = np.column_stack([FEATURES * own[:, None] * rows, PERIOD * shares[:, None] * each])
            yield on_grid(sums * shares[:, None], block)


class PeriodCurvature(PeriodRows, GramMatrix):
    """sum_i sum_j I_ij r_ij r_ij', I_ij a record's information in a period, in units of the largest in all of them.

    Guarantee: a Gram matrix of rows no longer than |(FEATURES, PERIOD)|, as sum_j I_ij is at most 1: zero-out moves it
    by the square of that, replace-one by sqrt 2 times that. Edges: a null row adds nothing; a NaN counts as 1.
    """

    name = "curvature"
    title: ClassVar[str] = "the information of the loss at the fitted model, by features and periods"

    def __init__(self, weights: Array, loss: Hazard) -> None:
        GramMatrix.__init__(self, self.about(weights, loss), FEATURES**2 + PERIOD**2)

    def summed(self, told: Told, block: Block) -> Array:
        total, d = np.zeros((self.dimension, self.dimension)), len(self.weights)
        matrix, _, loss = told
        for rows, shares, scores, labels in short_rows(block, matrix, self.weights):
            with np.errstate(all="ignore"):
                unit = loss.weight(scores) / loss.information_bound
                found = cut(loss.part_slopes(scores, labels)[1] * unit[:, None], 1.0)
            factors = np.sqrt(np.maximum(found, 0.0) * (ROOM / np.maximum(added(found), 1.0))[:, None])
            row = np.column_stack([FEATURES * rows, PERIOD * shares])
            for place, factor in enumerate(factors.T):
                scaled, own = on_grid(row * factor[:, None], block), np.append(np.arange(d), d + place)
                total[np.ix_(own, own)] += scaled.T @ scaled
        return np.asarray(total[self.places])


class PeriodSquares(PeriodRows, GramMatrix):
    """sum_i t_i t_i', t_i a record's sum over its periods: how far the gradient varies, whatever the law of the times.

    Guarantee: a Gram matrix of rows no longer than 1. Edges: as of the curvature.
    """

    name = "squared-slopes"
    title: ClassVar[str] = "squares of the slopes of the loss at the fitted model, by features and periods"

    def __init__(self, weights: Array, loss: Hazard) -> None:
        GramMatrix.__init__(self, self.about(weights, loss))

    def summed(self, told: Told, block: Block) -> Array:
        total = np.zeros((self.dimension, self.dimension))
        for rows in self.slopes(told, block):
            total += rows.T @ rows
        return np.asarray(total[self.places])


class PeriodGradient(PeriodRows):
    """sum_i t_i, the slopes in the weights and in the logarithms of the rates.

    Guarantee: zero-out moves it by at most 1, replace-one by 2. Edges: as of the curvature.
    """

    name = "gradient"
    title: ClassVar[str] = "the gradient of the loss at the fitted model, by features and periods"
    bound = 1.0

    def __init__(self, weights: Array, loss: Hazard) -> None:
        self.length = self.about(weights, loss)
        self.rounding_entries = float(self.length)

    def summed(self, told: Told, block: Block) -> Array:
        total = np.zeros(self.length)
        for rows in self.slopes(told, block):
            total += rows.sum(axis=0)
        return total


def cut(values: Array, bound: float) -> Array:
    """Within [-bound, bound]; a NaN counts as the bound."""
    return np.asarray(np.fmax(np.fmin(values, bound), -bound))


def added(columns: Array) -> Array:
    """The sum of the columns, one after the other: of a record it is the same wherever that stands."""
    total = np.zeros(len(columns))
    for column in columns.T:
        total += column
    return total


def on_grid(rows: Array, block: Block) -> Array:
    """Toward zero, where the rows of the block are on a grid."""
    return rows if block.bits is None else toward_zero(rows, block.bits)


class AtRisk(NamedTuple):
    """What is known of the rates and of those at risk before the curvature is."""

    loss: Hazard  # with its rates
    gram: Array  # mean squares of x - m
    centre: Array  # m, for each of the constant
    shares: Array  # of the events
    doubts: Array  # variances of what the logarithms of the rates may be off

    def believed(self, belief: Belief) -> Belief:
        """Of rows (x, e_j): centred, x is alike in every period."""
        gram = linalg.block_diag(FEATURES**2 * belief.gram, PERIOD**2 * np.diag(self.shares))
        weights, distance = np.append(belief.weights, 0.0 * self.doubts), np.append(belief.distance, self.doubts)
        return Belief(gram, belief.gram_noise, weights, distance)


def at_risk(plan: Plan, gram: Array, first: Array, weights: Array) -> Asking[AtRisk]:
    """A Breslow step at the weights, drawn to one rate for all periods, and m: the means of those at risk.

    They are weighed by hazards, so that what is off in the rates moves no weight. By the normal law m is the mean and
    t Cov(x, s), where t v is how far the mean of scores of the variance v is moved.
    """
    constant, loss = plan.preparation.intercept_entry, cast("Hazard", plan.scaled_loss)
    mean, along = first / constant, weights[: len(first)]
    spread = gram - np.outer(mean, mean)
    deviation = math.sqrt(max(float(along @ spread @ along), 1e-12))
    middle = float(mean @ along) + constant * float(weights[-1])
    most = math.exp(min(max(middle + max(2.0, 2 * deviation), -200.0), 200.0))
    events, of_events = (yield from total("events")), sum_noise(plan, "events")
    seen = yield from total("risk", weights=weights, range=np.array([most]))
    unsure = np.minimum(sum_noise(plan, "risk") / np.maximum(seen, 1e-300), 0.5)
    seen = sum_noise(plan, "risk") / unsure * math.sqrt(loss.parts) * most * np.diff(loss.periods)
    of_all = of_events * math.sqrt(loss.parts)
    alike = max(float(events.sum()), of_all) / float(seen.sum()) * seen
    sure = alike**2 / (alike**2 + of_events**2)
    events = np.maximum(sure * events + (1 - sure) * alike, alike / 10)
    loss = loss.hearing({"phi": np.zeros(1), "rates": events / seen})
    doubts = 1 - sure + unsure**2 + 1 / np.maximum(events, 1.0) + (of_all / float(events.sum())) ** 2
    shares = rule.DENSITY * loss.expected_information(middle + deviation * rule.NORMAL)
    moved = float(shares @ rule.NORMAL) / max(float(shares.sum()), 1e-300) / deviation * (spread @ along)
    return AtRisk(loss, spread + np.outer(moved, moved), (mean + moved) / constant, events / events.sum(), doubts)


def sum_noise(plan: Plan, query: str) -> float:
    """The standard deviation in the sum over the parties, each of which adds its own."""
    return plan.release(query).std * math.sqrt(plan.channel.variance)


def with_parts(projection: Array, parts: int) -> Array:
    """P of rows (x - m, e_j): rates are those of somebody with the mean features, and the constant is not in it."""
    if not parts:
        return projection
    bare = np.where(np.arange(len(projection))[:, None] < len(projection) - 1, projection, 0.0)
    return np.asarray(linalg.block_diag(FEATURES * bare, PERIOD * np.eye(parts)))
