"""Sums over the records of all parties by columns, opened at once: no party has a value of them.

    sum_i r_i R_i,      r_i looked up at the joint score of record i and its label,      R a matrix held in parts

Proof: `sealed/proofs/columns.md`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce.door.query import Query, Reals, Round, Told, Wholes
from sottovoce.errors import InputError, LeakError
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Problem
from sottovoce.queries import gradient
from sottovoce.queries.gradient import GradientSum
from sottovoce.sealed.tables import WIDENINGS, Lookup, slope_lookup, widening

Array = NDArray[np.float64]


class JointSum(Query):
    """sum_i r_i R_i, r_i looked up at the joint score of a record and its label, R a matrix that parties have in parts.

    A message has the `weights` of the score.
    """

    matrix: ClassVar[Literal["rows", "whitened", "one"]]

    shaping: ClassVar[tuple[str, ...]] = ()  # what a message has that the whitened columns are made by

    @abstractmethod
    def lookup(self, plan: Plan, told: Told) -> Lookup:
        """The table, of public numbers."""

    def columns(self, round: Round) -> NDArray[np.int64]:  # noqa: ARG002
        """A party's own columns of a whitened R."""
        raise LeakError(f"query {self.name!r} has no columns of its own.")

    def joint_step(self, bits: int) -> float | None:
        """That of a slope times an entry, or of slopes alone."""
        return float(2.0**-bits if self.matrix == "one" else 4.0**-bits)

    def value(self, round: Round) -> Array:  # noqa: ARG002
        """None."""
        raise LeakError(f"query {self.name!r} is opened over all parties; no party has a value of it.")


class JointGradient(JointSum, GradientSum):
    """sum_i r_i x_i of all parties' columns, r_i the looked-up slope, |r_i| <= slope_bound whatever the score.

    Guarantee: as of one place; K is by the parties' shares of the square of a row's bound. `widen` says how far apart
    levels are, so that scores stay within the table.
    """

    samples: ClassVar[bool] = False
    matrix: ClassVar[Literal["rows", "whitened", "one"]] = "rows"

    def takes(self, plan: Plan, number: int) -> Mapping[str, Reals]:
        """The weights, and how far apart levels are."""
        return {**GradientSum.takes(self, plan, number), "widen": Wholes((1,), WIDENINGS[0], WIDENINGS[-1])}

    def objection(self, plan: Plan, number: int, told: Told) -> str | None:
        """Levels are a power of two as far apart as they could be."""
        wrong = super().objection(plan, number, told)
        if wrong is None and int(told["widen"][0]) not in WIDENINGS:
            wrong = f"needs 'widen' to be one of {WIDENINGS}"
        return wrong

    def lookup(self, plan: Plan, told: Told) -> Lookup:
        """The slope of the loss."""
        return slope_lookup(self.loss, self.slope_bound, plan.preparation.bits, widen=int(told["widen"][0]))

    def known_part(self, plan: Problem, told: Told) -> float:  # noqa: ARG002
        """By the parties' shares of a row."""
        return known_part(plan, plan.row_shares())

    def widened(self, plan: Plan, weights: Array, gram: Array | None) -> int:
        """How far apart levels are, by the spread of the scores that an opened Gram matrix says."""
        table = slope_lookup(self.loss, self.slope_bound, plan.preparation.bits)
        if gram is None:
            return 1
        return widening(table, math.sqrt(max(float(weights @ gram @ weights), 0.0) / plan.records))


def known_part(problem: Problem, shares: Array) -> float:
    """K: by how much the square of what a record moves is larger for parties that know a part of it.

    K = 1 + (kappa^2 - 1) Q under zero-out, Q what the parties that pool have of the square of a row: a slope that
    changes with the rest of the record moves their part of the sum too. kappa is 3/2 for classes, of parties without
    the label (with it 1), and 2 for residuals. Under replace-one any change of a part is one of the record: 1.
    """
    if problem.sealing is None or problem.split != "columns" or problem.relation != "zero-out":
        return 1.0
    classes = problem.scaled_loss.kind == "classification"
    known = np.delete(shares, problem.label_party) if classes else shares
    pooled = float(np.sort(known)[::-1][: problem.sealing.curious].sum())
    return 1.0 + (1.25 if classes else 3.0) * min(pooled, 1.0)


def looked_up(problem: Problem) -> bool:
    """Whether the slopes of a problem can be looked up at sealed scores."""
    loss = problem.scaled_loss
    try:
        slope_lookup(loss, loss.lipschitz() if loss.kind == "classification" else 1.0, 20)
    except InputError:
        return False
    return not problem.class_weight


def gradient_sum(problem: Problem, slope_bound: float) -> GradientSum:
    """The gradient of a problem's loss: of rows in one place or of a party, or of sealed columns."""
    loss, dimension = problem.scaled_loss, problem.dimension
    if problem.sealing is None or problem.split != "columns":
        return gradient.gradient_sum(dimension, slope_bound, loss)
    if problem.class_weight:
        raise InputError("class_weight: slopes of sealed columns are looked up without weights; leave it out.")
    slope_lookup(loss, slope_bound, problem.preparation.bits)  # refuses a loss without one
    return JointGradient(dimension, slope_bound, loss)
