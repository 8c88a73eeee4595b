"""`whitened` for several classes: the gradient is a matrix, with a column for each class."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import numpy as np

from sottovoce.algorithms.base import (
    CONVEX,
    SMOOTH,
    Algorithm,
    Array,
    Asking,
    Coordination,
    Need,
    NoNumbers,
    Solution,
    given,
    total,
)
from sottovoce.algorithms.gradient import Accelerated, check_penalty
from sottovoce.algorithms.newton import ExactNewton
from sottovoce.algorithms.whitened import rule
from sottovoce.algorithms.whitened.private import ConstantModel, PrivateWhitened, projection_shape
from sottovoce.algorithms.whitened.rule import Descent, Units, White
from sottovoce.data.block import SumRows
from sottovoce.gate.query import Plain, Query, Round
from sottovoce.losses import ClassesLoss
from sottovoce.penalties.quadratic import QuadraticMetric
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.queries import counts, sums
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
    options: ClassVar[tuple[str, ...] | None] = ("rounds",)
    numbers: ClassVar[type[Numbers]] = NoNumbers
    asks: ClassVar[tuple[type[Query], ...]] = (
        sums.GramMatrix,
        sums.ColumnSquares,
        sums.ClassCounts,
        sums.LengthSum,
        sums.ProjectedGradient,
    )

    def design(self, problem: Problem, options: Whitened) -> Design:
        check_penalty(problem)
        return super().design(problem, options)

    def shares(self, signal: float, names: list[str]) -> dict[str, float]:
        """Few records need to know their classes above all."""
        one = min(max((15 / signal) ** 2, 0.005), 0.03)
        moments, classes = rule.MOMENTS[names[0]], min(max((30 / signal) ** 2, 0.01), 0.20)
        numbers = dict.fromkeys({*names[1:]} - {"classes", "gradient"}, one)
        rest = 1 - moments - classes - one * len(numbers)
        return numbers | {names[0]: moments, "classes": classes, "gradient": rest}

    def queries(self, plan: Problem, _party: str) -> tuple[Query, ...]:
        shape, d = projection_shape(plan), plan.dimension
        amount = (counts.AmountSum(),) if plan.bounds.weight_bound is not None else ()
        moments = sums.GramMatrix(d) if shape.kind == "triangular" else sums.ColumnSquares(d)
        by_class = sums.ClassCounts(plan.scaled_loss.outputs)
        return moments, *amount, by_class, sums.LengthSum(shape), self.gradient(plan, shape)

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
        one = super().descent(plan, white, start, left, noise)
        loss, regulariser = loss_of(plan), plan.scaled_regulariser
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
            penalty=one.penalty,
            chance=one.chance,
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
    """The same with a column, and a curvature, for each class: its own mean one, up to what no curvature passes."""

    shares: Array = field(kw_only=True)
    loss: ClassesLoss = field(kw_only=True)

    def along_directions(self, answer: Array) -> Array:
        return centred(self.loss, super().along_directions(answer))

    def bend(self) -> Any:
        return np.minimum(self._known(), self.loss.curvature_bound)

    def _known(self) -> Array:
        apart, bends = self.point, self.loss.mean_curvatures
        if self.loss.relative:
            apart = apart - (apart @ self.shares)[:, None]
        least = bends(self.shares, np.full(len(self.shares), SPREAD)) / 4
        return np.maximum(bends(self.shares, (self.squares * apart**2).sum(axis=0)), least)


def centred(loss: ClassesLoss, matrix: Array) -> Array:
    """Rows less their means, of which a relative loss knows nothing; of any other as they are."""
    return np.asarray(matrix - matrix.mean(axis=1, keepdims=True)) if loss.relative else matrix


class WholeGram(Plain):
    """X'X, all of it."""

    name = "products"
    title: ClassVar[str] = "products of every two features"
    needs: ClassVar[type] = SumRows

    def __init__(self, dimension: int) -> None:
        self.length = dimension**2

    def value(self, round: Round) -> Array:
        return np.asarray(round.rows.gram(), dtype=np.float64).ravel()


class ExactWhitened(ExactNewton):
    """Newton's method with step halving: whitening changes nothing where nothing is noisy."""

    name: ClassVar[str] = "whitened"
    options: ClassVar[tuple[str, ...] | None] = ("rounds",)


ROUNDS = 2000
STILL = 1e-9  # it has converged when no step moves the scores by more than this share of their size


class ExactClasses(Algorithm):
    """W <- prox(V - M^-1 g(V)), V = W + momentum (W - W before), M = b X'X, begun anew when a step turns back.

    b bounds the curvature of the loss, so M is above every curvature, whatever the columns' units are. Of the softmax
    it is 1/2, since diag(p) - p p' <= 1/2 (Boehning 1992). The curvature of an l2 penalty is in M too, which is taken
    apart once for all steps and classes.

    Guarantee: none; a party answers only where its holder allows runs without privacy.
    """

    name: ClassVar[str] = "whitened"
    form: ClassVar[str] = "exact-classes"
    title: ClassVar[str] = "accelerated descent for several classes, without privacy"
    private: ClassVar[bool | None] = False
    several: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...] | None] = ("rounds",)
    weighted: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = (CONVEX, SMOOTH)
    asks: ClassVar[tuple[type[Query], ...]] = (WholeGram, sums.GradientSum)

    def design(self, problem: Problem, options: Any) -> Design:
        check_penalty(problem)
        rounds = given(options.rounds, ROUNDS)
        products, gradient = self._queries(problem)
        releases = (Release.of(products, 0, 1, 0.0, 1.0), Release.of(gradient, 1, rounds, 0.0, 1.0))
        return Design(rounds=rounds, numbers=NoNumbers(), releases=releases)

    def queries(self, plan: Plan, _party: str) -> tuple[Query, ...]:
        return self._queries(plan)

    @staticmethod
    def _queries(problem: Problem) -> tuple[Query, Query]:
        loss = problem.scaled_loss
        return WholeGram(problem.dimension), sums.gradient_sum(problem.dimension, loss.slope_bound, loss)

    def coordinate(self, plan: Plan) -> Coordination:
        d, loss, regulariser = plan.dimension, loss_of(plan), plan.scaled_regulariser
        ridge = plan.records * (regulariser.ridge or 0.0) * (np.arange(d) < plan.features)
        products = (yield from total("products")).reshape(d, d) * loss.curvature_bound
        values, vectors = np.linalg.eigh(products + np.diag(ridge))
        values = np.maximum(values, 1e-12 * max(float(values.max()), 1e-300))

        def step(_t: int, ahead: Array, gradient: Array) -> Array:
            if regulariser.inner.is_none or regulariser.ridge is not None:
                return np.asarray(ahead - vectors @ (vectors.T @ (gradient + ridge[:, None] * ahead) / values[:, None]))
            metric, pairs = QuadraticMetric(values, vectors), zip(ahead.T, gradient.T, strict=True)
            return np.column_stack([metric.step(w, g, regulariser, plan.records) for w, g in pairs])

        def length(move: Array) -> float:
            return math.sqrt(float((values @ (vectors.T @ move) ** 2).sum()))

        found = yield from Accelerated(step, length, STILL).run((d, loss.outputs), plan.rounds)
        if regulariser.inner.is_none:
            return replace(found, weights=centred(loss, found.weights.T).T)
        return found
