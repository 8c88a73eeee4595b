"""`whitened` for several classes: the gradient is a matrix, with a column for each class."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np

from sottovoce.algorithms.base import Array, Asking, Solution, total
from sottovoce.algorithms.gradient.private import check_penalty
from sottovoce.algorithms.whitened import rule
from sottovoce.algorithms.whitened.private import ConstantModel, PrivateWhitened, projection_shape
from sottovoce.algorithms.whitened.rule import Descent, Units, White
from sottovoce.gate.query import Query
from sottovoce.losses import ClassesLoss
from sottovoce.plan import Design, Plan, Problem
from sottovoce.queries.projected import LengthSum, ProjectedGradient, first_round
from sottovoce.queries.sums import ClassCounts, ColumnSquares, GramMatrix
from sottovoce.solvers import Whitened

SPREAD = 1.0  # variance of a class's scores, before anything is known


class PrivateClasses(PrivateWhitened):
    """Moments, class counts, whiten, descend; scores of a row x are x'W, one for each class.

    A term of the gradient is z times a row of slopes (softmax: p - e_y), as a matrix no longer than the product of
    their lengths: cut like a slope it is 1 long whatever the number of classes. The run starts at the constant model of
    the shares of the classes; no rescale is needed from there.

    Guarantee: as of two classes (`proof.md`).
    """

    form: ClassVar[str] = "classes"
    title: ClassVar[str] = "whitened descent for several classes"
    several: ClassVar[bool] = True
    asks: ClassVar[tuple[type[Query], ...]] = (GramMatrix, ColumnSquares, ClassCounts, LengthSum, ProjectedGradient)

    def design(self, problem: Problem, options: Whitened) -> Design:
        check_penalty(problem)
        return super().design(problem, options)

    def shares(self, signal: float, names: list[str]) -> dict[str, float]:
        """Few records need to know their classes above all."""
        one = min(max((15 / signal) ** 2, 0.005), 0.03)
        moments, classes = rule.MOMENTS[names[0]], min(max((30 / signal) ** 2, 0.01), 0.20)
        return {names[0]: moments, "classes": classes, "length": one, "gradient": 1 - moments - classes - one}

    def queries(self, plan: Problem, _party: str) -> tuple[Query, ...]:
        shape, loss, d = projection_shape(plan), plan.scaled_loss, plan.dimension
        moments = GramMatrix(d) if shape.kind == "triangular" else ColumnSquares(d)
        gradient = ProjectedGradient(shape, loss, first_round(plan, "gradient"))
        return moments, ClassCounts(loss.outputs), LengthSum(shape), gradient

    def start(self, plan: Plan) -> Asking[ConstantModel]:
        """At the shares of the classes, drawn to equal ones as far as noise hides them; none is 0."""
        counted, noise = (yield from total("classes")) / plan.records, self.noise(plan, "classes")
        count = len(counted)
        shares = 1 / count + (counted - counted.mean()) / (1 + (count * noise) ** 2)
        shares = np.maximum(shares, max(min(noise, 1 / count) / 2, 1e-9))
        shares = np.asarray(shares / shares.sum())
        loss = loss_of(plan)
        offset = loss.constant(shares) if plan.fit_intercept else np.zeros(count)
        weighed = loss.reweighted(shares)
        _, lengths = loss.slopes(loss.constant(shares)[None, :], np.zeros(1))
        slope = math.sqrt(float(weighed @ lengths[0] ** 2))  # the root mean square there; of the softmax 1 - sum p^2
        bend = float(weighed @ loss.mean_curvatures(shares, np.full(count, SPREAD)))
        units = Units(slope, loss.slope_bound, SPREAD, bend, rule.TOLERANCE, loss)
        return ConstantModel(np.zeros(plan.dimension), offset, units, shares)

    def descent(self, plan: Plan, white: White, start: ConstantModel, left: float, noise: float) -> Descent:
        one, loss, regulariser = (
            super().descent(plan, white, start, left, noise),
            loss_of(plan),
            plan.scaled_regulariser,
        )
        shares = np.zeros(0) if start.shares is None else start.shares

        def penalised(point: Array, stiffness: Array) -> Array:
            if not regulariser.inner.is_none:
                pairs = zip(point.T, stiffness.T, strict=True)
                point = np.column_stack([white.penalised(u, s, regulariser) for u, s in pairs])
            return centred(loss, point)

        return ClassesDescent(
            point=np.zeros((plan.dimension, len(shares))),
            squares=one.squares[:, None],
            left=left,
            damping=np.asarray(one.damping)[:, None],
            prior=np.asarray(one.prior)[:, None],
            variance=one.variance,
            noise=noise,
            rounds=one.rounds,
            units=one.units,
            penalised=penalised,
            white=white,
            shares=shares,
            loss=loss,
        )

    def rescale(self, plan: Plan, white: White, descent: Descent, start: ConstantModel) -> Asking[Solution]:
        """The weights; of the softmax a constant for all classes is left out. Nothing is asked."""
        yield from ()
        mean, regulariser = centred(loss_of(plan), np.mean(descent.taken, axis=0)), plan.scaled_regulariser
        pairs = zip(mean.T, descent.stiffness.T, strict=True)
        weights = np.array([white.weights(u, s, regulariser) for u, s in pairs])
        if plan.fit_intercept:
            weights[:, -1] += start.offset / plan.preparation.intercept_entry
        return Solution(weights)


def loss_of(problem: Problem) -> ClassesLoss:
    """Of several classes, as `Algorithm.check_loss` has seen."""
    return cast("ClassesLoss", problem.scaled_loss)


@dataclass
class ClassesDescent(Descent):
    """The same with a column, and a curvature, for each class: its own mean one, and more where gradients say so.

    A class that is rare where rows are short and common where they are long bends more than its share: what the last
    move and the change of the gradient say beyond noise is kept, up to the bound that no curvature passes.
    """

    shares: Array = field(kw_only=True)
    loss: ClassesLoss = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._more = np.ones(len(self.shares))

    def along_directions(self, answer: Array) -> Array:
        return centred(self.loss, super().along_directions(answer))

    def bend(self) -> Any:
        return np.minimum(self._more * self._known(), self.loss.curvature_bound)

    def _known(self) -> Array:
        apart, bends = self.point, self.loss.mean_curvatures
        if self.loss.relative:
            apart = apart - (apart @ self.shares)[:, None]
        least = bends(self.shares, np.full(len(self.shares), SPREAD)) / 4
        return np.maximum(bends(self.shares, (self.squares * apart**2).sum(axis=0)), least)

    def _widen(self, gradient: Array) -> None:
        move, change = self.point - self._last[0], gradient - self._last[1]
        self._last = self.point, gradient
        if self._count > 1:
            noise = 2 * self.noise * math.sqrt(2 * self.rounds) * np.sqrt((move**2).sum(axis=0))
            model = self._known() * ((self.left * self.squares + self.damping) * move**2).sum(axis=0)
            found = ((change * move).sum(axis=0) - noise) / np.maximum(model, 1e-300)
            self._more = np.minimum(np.maximum(self._more, found), self.loss.curvature_bound / self._known())


def centred(loss: ClassesLoss, matrix: Array) -> Array:
    """Rows less their means, of which a relative loss knows nothing; of any other as they are."""
    return np.asarray(matrix - matrix.mean(axis=1, keepdims=True)) if loss.relative else matrix
