"""`whitened` for ordered classes: one score for each record, and thresholds between the classes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import numpy as np

from sottovoce.algorithms import NEWTON_FEATURES
from sottovoce.algorithms.base import (
    MOST_ROUNDS,
    Algorithm,
    Array,
    Asking,
    Coordination,
    NoNumbers,
    Solution,
    given,
    how_far,
    total,
)
from sottovoce.algorithms.gradient import check_penalty
from sottovoce.algorithms.whitened import rule
from sottovoce.algorithms.whitened.classes import PrivateClasses
from sottovoce.algorithms.whitened.private import ConstantModel, mean_of, projection_shape
from sottovoce.algorithms.whitened.rule import Clips, Descent, Moments, White
from sottovoce.data.block import Block, BlockRows
from sottovoce.errors import InputError
from sottovoce.gate.query import MessageArrays, Plain, Query, Reals, Round
from sottovoce.losses import Ordinal
from sottovoce.losses.ordinal import SHARE, ends
from sottovoce.penalties.quadratic import PenalisedStep
from sottovoce.plan import Design, Plan, Problem, Release
from sottovoce.queries import sums
from sottovoce.solvers import Whitened

CONSTANT = 0.5  # of the whitened rows' mean squares, that of the constant coordinate, by which thresholds are told
APART = 0.45  # how far a threshold may be from where shares of the classes and normal scores put it; and no farther
THIRD = 1 / 3  # than so much of the gaps beside it: deviations of the prior
CLOSEST = 0.3  # of the gaps that the shares of the classes give, thresholds are no closer


@dataclass(kw_only=True)
class CentredWhite(White):
    """Whitened features, less their means; `whole` is the P that has the constant column as one more coordinate."""

    whole: Array
    constant: float  # that coordinate of every row
    mean: Array  # of the features


class PrivateOrdinal(PrivateClasses):
    """Moments, class counts, whiten, descend: the weights of one score, and the thresholds with them.

    The last column of the rows is constant: by it P takes the means of the features away, so z = (whitened features, a
    constant). A term of the gradient is z times a row of slopes, that of the score and those of the thresholds
    (`Ordinal.slopes`). Of the sum, a matrix, two parts are used: the features' rows of the score's column, which say
    how the weights move, and the constant's row of the thresholds' columns.

    Guarantee: as of several classes (`proof.md`).
    """

    form: ClassVar[str] = "ordinal"
    title: ClassVar[str] = "whitened descent for ordered classes, thresholds along with the weights"
    ordered: ClassVar[bool | None] = True
    weighted: ClassVar[bool] = False
    takes_weights: ClassVar[bool] = False

    def design(self, problem: Problem, options: Whitened) -> Design:
        check_ordered(problem)
        return super().design(problem, options)

    def moments(self, plan: Plan) -> Asking[Moments]:
        """Of the features less their means."""
        constant, d = plan.preparation.intercept_entry, plan.dimension
        gram = sums.GramMatrix(d).matrix((yield from total("gram"))) / plan.records
        mean = gram[-1, :-1] / constant
        found = rule.of_gram(gram[:-1, :-1] - np.outer(mean, mean), self.noise(plan, "gram"))
        return replace(found, mean=found.into(mean))

    def whiten(self, plan: Plan, moments: Moments, start: ConstantModel) -> Asking[White]:
        units = start.units
        q, d = rule.whitening(moments, units, self.noise(plan, "gradient")), plan.dimension
        narrow, constant = White(moments, q, units).matrix, math.sqrt(CONSTANT * float(q @ moments.values))
        mean = np.asarray(moments.vectors @ moments.mean)  # type: ignore[operator]  # moments are of a Gram matrix
        whole, entry = np.zeros((d, d)), plan.preparation.intercept_entry
        whole[:-1, :-1], whole[-1, :-1], whole[-1, -1] = narrow, -mean @ narrow / entry, constant / entry
        white = CentredWhite(moments, q, units, whole=whole, constant=constant, mean=mean)
        radius = 2 * math.sqrt(float(q @ moments.values) + constant**2)
        told = {**projection_shape(plan).message(whole), "radius": np.array([radius])}
        white.length = radius * min(max((yield from mean_of(plan, "length", **told)), 0.05), 1.0)
        return white

    def clips(self, plan: Plan, white: White) -> tuple[Clips, float]:
        constant = cast("CentredWhite", white).constant
        first, longest = Clips(rule.CUT * white.length, white.units.slope), math.sqrt(white.q.max() + constant**2)
        size = float(white.squares.sum()) + constant**2
        clips = first.widened(white.units, self.noise(plan, "gradient"), size, max(longest, 4 * white.length))
        return clips, min(1.0, clips.cut / white.length)

    def descend(self, plan: Plan, white: White, start: ConstantModel) -> Asking[Descent]:
        """The parties are told the thresholds as scores of their own, and the weights along the columns of P."""
        clips, left = self.clips(plan, white)
        most = clips.cut * clips.slope
        descent = OrdinalDescent.of(plan, cast("CentredWhite", white), start, left, self.noise(plan, "gradient") * most)
        kept = {"cut": np.array([clips.cut]), **projection_shape(plan).message(descent.centred.whole)}
        first: MessageArrays = {"cut": kept["cut"]}
        for _ in range(descent.rounds):
            asked = {"point": descent.told_point().ravel(), "offset": descent.told_offset()}
            told = {**asked, "slope": np.array([clips.slope]), **first}
            answer = yield from total("gradient", reminder=kept, **told)
            descent.step(descent.used(answer.reshape(plan.dimension, -1) * most / plan.records))
            first = {}
        return descent

    def rescale(self, plan: Plan, white: White, descent: Descent, _start: ConstantModel) -> Asking[Solution]:
        """The mean of the iterates. Nothing is asked."""
        yield from ()
        one, centred = cast("OrdinalDescent", descent), cast("CentredWhite", white)
        mean, features = np.mean(descent.taken, axis=0), plan.features
        weights = white.weights(mean[:features], descent.stiffness[:features], plan.scaled_regulariser)
        return Solution(model_rows(plan, weights, -float(centred.mean @ weights), one.thresholds(mean)))


@dataclass
class OrdinalDescent(Descent):
    """The same for the weights of the score, along the directions of the features, and behind them the thresholds.

    A threshold is `unit` times its coordinate, so that its gradient has the noise of the others.
    """

    centred: CentredWhite = field(kw_only=True)
    loss: Ordinal = field(kw_only=True)
    start: Array = field(kw_only=True)  # thresholds
    unit: float = field(kw_only=True)

    @classmethod
    def of(cls, plan: Plan, white: CentredWhite, start: ConstantModel, left: float, noise: float) -> OrdinalDescent:
        units, loss, thresholds = white.units, ordered_loss(plan), start.offset[1:]
        unit, many = white.constant * SHARE, len(thresholds)
        bend, bends = loss.expected_bends(thresholds, units.variance)
        more = unit**2 * bends / bend
        gaps = np.pad(np.diff(thresholds), 1, mode="edge")
        nothing = np.zeros(many)
        apart = np.minimum(APART, THIRD * (gaps[1:] + gaps[:-1]) / 2) ** 2 / unit**2
        regulariser, features = plan.scaled_regulariser, len(white.q)

        def penalised(point: Array, stiffness: Array) -> Array:
            own = white.penalised(point[:features], stiffness[:features], regulariser)
            return np.concatenate([own, point[features:]])

        return cls(
            point=np.zeros(len(white.q) + many),
            squares=np.concatenate([white.squares, more]),
            left=left,
            damping=np.concatenate([rule.DAMPING * white.moments.hidden * white.q * left, nothing]),
            prior=np.concatenate([units.variance / white.moments.values.sum() / white.q, apart]),
            variance=units.variance,
            noise=noise,
            rounds=plan.rounds,
            units=units,
            penalised=penalised,
            penalty=not regulariser.inner.is_none,
            chance=min(1.0, plan.dimension / plan.records) / plan.records * regulariser.inner.is_none,
            white=white,
            centred=white,
            loss=loss,
            start=thresholds,
            unit=unit,
        )

    def thresholds(self, point: Array) -> Array:
        """Where the shares of the classes put them if scores are normal, and what the sums say besides; rising."""
        away = self.unit * point[len(self.centred.q) :]
        found = self.start * math.sqrt(1 + math.pi / 8 * self.spread(point)) + away
        steps = np.concatenate([[0.0], np.cumsum(CLOSEST * np.diff(self.start))])
        return np.asarray(np.maximum.accumulate(found - steps) + steps)

    def spread(self, point: Array) -> float:
        """The variance of the scores."""
        return float(self.squares[: len(self.centred.q)] @ point[: len(self.centred.q)] ** 2)

    def told_point(self) -> Array:
        """A column of weights for the score, and none for the thresholds."""
        point = np.zeros((len(self.centred.whole), self.loss.outputs))
        point[:-1, 0] = self.along_columns(self.point[: len(self.centred.q)])
        return point

    def told_offset(self) -> Array:
        return np.concatenate([[0.0], self.thresholds(self.point)])

    def used(self, answer: Array) -> Array:
        """Of a matrix of sums what the weights and the thresholds go by."""
        return np.concatenate([self.along_directions(answer[:-1, 0]), answer[-1, 1:]])

    def bend(self) -> Any:
        """The mean curvature of the score, at scores of the point and the thresholds where they are."""
        bend, _ = self.loss.expected_bends(self.thresholds(self.point), self.spread(self.point))
        return max(self.units.curvature / 4, bend)


def ordered_loss(problem: Problem) -> Ordinal:
    """Of ordered classes, as `Algorithm.check_loss` has seen."""
    return cast("Ordinal", problem.scaled_loss)


def check_ordered(problem: Problem) -> None:
    """Refuse what has no place for thresholds."""
    check_penalty(problem)
    if not problem.fit_intercept:
        raise InputError("fit_intercept=False: thresholds between ordered classes are intercepts; leave it out.")
    if problem.features > NEWTON_FEATURES:
        raise InputError(
            f"X has {problem.features} features: models of ordered classes have at most {NEWTON_FEATURES}, of which "
            "means and products are released. Take fewer, or a PrivateLogisticRegression of the classes."
        )


def model_rows(plan: Problem, weights: Array, shift: float, thresholds: Array) -> Array:
    """The model as a row of weights for each score: that of a record, then each threshold, which the constant makes."""
    rows, constant = np.zeros((1 + len(thresholds), plan.dimension)), plan.preparation.intercept_entry
    rows[0, :-1], rows[0, -1], rows[1:, -1] = weights, shift / constant, thresholds / constant
    return rows


class OrdinalSums(Plain):
    """sum_i l, its gradient and its matrix of second derivatives by weights and thresholds, one after another."""

    name = "curvature"
    title: ClassVar[str] = "sums of the loss, its slopes and its curvatures"
    needs: ClassVar[type] = BlockRows

    def __init__(self, features: int, loss: Ordinal) -> None:
        self.features, self.loss, self.width = features, loss, features + loss.outputs - 1
        self.length = 1 + self.width + self.width**2
        self.takes = {"weights": Reals((self.width,))}

    def value(self, round: Round) -> Array:
        return round.rows.over(lambda block: self._sums(block, round.told["weights"]))

    def _sums(self, block: Block, at: Array) -> Array:
        usable = block.usable_rows
        rows, y = block.dense_rows(self.features)[usable], block.labels[usable]
        thresholds = np.broadcast_to(at[self.features :], (len(y), self.loss.outputs - 1))
        u = np.column_stack([rows @ at[: self.features], thresholds])
        # by the ends a = t_y - s and b = t_(y-1) - s of a record's class: l = -log(F(a) - F(b))
        above, under, upper, lower = ends(u, y)
        sides = [np.column_stack([-rows, y[:, None] == np.arange(self.loss.outputs - 1) + k]) for k in (0, 1)]
        bends = (upper**2 - upper * (1 - 2 * above), -upper * lower, lower**2 + lower * (1 - 2 * under))
        cross = (sides[0] * bends[1][:, None]).T @ sides[1]
        curvature = cross + cross.T
        for side, bend in zip(sides, (bends[0], bends[2]), strict=True):
            curvature += (side * bend[:, None]).T @ side
        gradient = lower @ sides[1] - upper @ sides[0]
        return np.concatenate([[self.loss.value(u, y).sum()], gradient, curvature.ravel()])


Found = tuple[float, Array, Array]  # the objective, the gradient of the loss and its curvature
STILL = 1e-10  # it has converged when a step lowers the objective by no more than this share of it


class ExactOrdinal(Algorithm):
    """Newton's method with step halving for weights and thresholds: the maximum-likelihood fit, or with a penalty.

    Guarantee: none; a party answers only where its holder allows runs without privacy.
    """

    name: ClassVar[str] = "whitened"
    form: ClassVar[str] = "exact-ordinal"
    title: ClassVar[str] = "Newton's method for ordered classes, without privacy"
    private: ClassVar[bool | None] = False
    several: ClassVar[bool] = True
    ordered: ClassVar[bool | None] = True
    asks: ClassVar[tuple[type[Query], ...]] = (OrdinalSums,)

    def design(self, problem: Problem, options: Any) -> Design:
        check_ordered(problem)
        rounds = given(options.rounds, 100)
        (query,) = self.queries(problem, "")
        release = Release.of(query, 0, min(31 * rounds, MOST_ROUNDS), 0.0, 1.0)
        return Design(rounds=rounds, numbers=NoNumbers(), releases=(release,))

    def queries(self, plan: Problem, _party: str) -> tuple[Query, ...]:
        return (OrdinalSums(plan.features, ordered_loss(plan)),)

    def coordinate(self, plan: Plan) -> Coordination:
        """From the constant model of equal shares."""
        loss, asked = ordered_loss(plan), itertools.count()
        start = loss.constant(np.full(loss.outputs, 1 / loss.outputs))[1:]
        at = np.concatenate([np.zeros(plan.features), start])
        found, far = (yield from self.at(plan, at, asked)), ""
        for t in range(plan.rounds):
            objective, gradient, curvature = found
            target = PenalisedStep(curvature, plan.scaled_regulariser, plan.records, 1.0)(at, gradient)
            at, found = yield from self.halve(plan, at, target, found, asked)
            share = (objective - found[0]) / objective if objective > 0 else 0.0
            far = how_far(t + 1, share, "the last fall of the objective, as a share of it,", STILL)
            if share <= STILL:
                break
        weights, thresholds = at[: plan.features], at[plan.features :]
        return Solution(model_rows(plan, weights, 0.0, thresholds), unfinished=far)

    def halve(self, plan: Plan, at: Array, target: Array, found: Found, asked: Iterator[int]) -> Asking[Any]:
        """The first point on the way back from the target at which the objective is no higher, thresholds rising.

        Where there is none the point stays.
        """
        for halvings in range(30):
            trial = at + 0.5**halvings * (target - at)
            if np.all(np.diff(trial[plan.features :]) > 0):
                reached = yield from self.at(plan, trial, asked)
                if reached[0] <= found[0] + 1e-12 * abs(found[0]):
                    return trial, reached
        return at, found

    @staticmethod
    def at(plan: Plan, parameters: Array, asked: Iterator[int]) -> Asking[Found]:
        """The objective, the gradient of the loss and its curvature."""
        found = yield from total("curvature", round=next(asked), weights=parameters)
        width = len(parameters)
        penalty = plan.records * plan.scaled_regulariser.value(parameters)
        return float(found[0]) + penalty, found[1 : 1 + width], found[1 + width :].reshape(width, width)
