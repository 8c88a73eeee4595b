"""`whitened` for several classes: the gradient is a matrix, with a column for each class."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import (
    MOST_ROUNDS,
    Ask,
    Coordination,
    Solution,
    check_penalty,
    given,
    limited,
    summed,
)
from sottovoce.algorithms.whitened import rule
from sottovoce.algorithms.whitened.private import ROUNDS, Asking, Columns, PrivateWhitened, Run, shape_of
from sottovoce.algorithms.whitened.rule import Clips, Descent, Units, White
from sottovoce.door.query import Query
from sottovoce.losses import ClassesLoss
from sottovoce.penalties.scaled import ScaledRegulariser
from sottovoce.plan.plan import Design, Numbers, Plan
from sottovoce.plan.problem import Problem
from sottovoce.plan.release import Release
from sottovoce.queries.gram import ColumnSquares, GramMatrix
from sottovoce.queries.numbers import ClassCounts
from sottovoce.queries.projected import LengthSum, ProjectedGradient
from sottovoce.solvers import Whitened

Array = NDArray[np.float64]

SPREAD = 1.0  # variance of a class's scores, before anything is known


class ClassesNumbers(Numbers, solver="whitened", form="classes"):
    """None: the noise of its releases says all."""


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

    def design(self, problem: Problem, options: Whitened) -> Design:
        """Shares of mu^2 by the signal; few records need to know their classes above all."""
        check_penalty(problem)
        queries = tuple(_queries(problem))
        rounds = limited("rounds", given(options.rounds, ROUNDS), 2, MOST_ROUNDS - 64)
        moments = {"gram": rule.GRAM, "squares": rule.SQUARES}[queries[0].name]
        one, classes, rest = rule.shares_of_classes(problem.signal, moments)
        shares = {queries[0].name: moments, "classes": classes, "length": one, "gradient": rest}
        releases, first = list[Release](), 0
        for query in queries:
            count, mu = rounds if query.name == "gradient" else 1, math.sqrt(shares[query.name]) * problem.mu
            releases.append(Release.at_mu(query, first, count, mu, problem.relation).narrowed(problem.records))
            first += count
        return Design(rounds=rounds, numbers=ClassesNumbers(), releases=tuple(releases))

    @classmethod
    def asks(cls) -> tuple[type[Query], ...]:
        return GramMatrix, ColumnSquares, ClassCounts, LengthSum, ProjectedGradient

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:  # noqa: ARG002
        """In the order in which they are asked."""
        return tuple(_queries(plan))

    def coordinate(self, plan: Plan) -> Coordination:
        """Moments, class counts, whiten, descend."""
        run = ClassesRun(plan)
        moments = yield from run.moments()
        shares = yield from run.shares()
        white, columns = yield from run.whiten(moments, units_of(plan, shares))
        return (yield from run.descend_classes(white, columns, shares))


def _queries(problem: Problem) -> Iterator[Query]:
    shape, d = shape_of(problem), problem.dimension
    yield GramMatrix(d) if shape.kind == "triangular" else ColumnSquares(d)
    yield ClassCounts(problem.scaled_loss.outputs)
    yield LengthSum(shape)
    yield ProjectedGradient("gradient", shape, problem.scaled_loss)


def loss_of(problem: Problem) -> ClassesLoss:
    """Of several classes, as `Algorithm.check_loss` has seen."""
    return cast("ClassesLoss", problem.scaled_loss)


def units_of(plan: Plan, shares: Array) -> Units:
    """The mean square of a row of slopes at the constant model; of the softmax 1 - sum p^2."""
    loss = loss_of(plan)
    weighed = loss.reweighted(shares)
    _, lengths = loss.slopes(loss.constant(shares)[None, :], np.zeros(1))
    slope, bend = math.sqrt(float(weighed @ lengths[0] ** 2)), loss.mean_curvatures(shares, spread(shares))
    return Units(slope, loss.slope_bound, SPREAD, float(weighed @ bend), rule.TOLERANCE, loss)


def spread(shares: Array) -> Array:
    """The variances of the classes' scores, before anything is known."""
    return np.full(len(shares), SPREAD)


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

    def bend(self) -> Any:
        """For each class."""
        return np.minimum(self._more * self._known(), self.loss.curvature_bound)

    def _known(self) -> Array:
        apart, bends = self.point, self.loss.mean_curvatures
        if self.loss.relative:
            apart = apart - (apart @ self.shares)[:, None]
        least = bends(self.shares, spread(self.shares)) / 4
        return np.maximum(bends(self.shares, (self.squares * apart**2).sum(axis=0)), least)

    def _widen(self, gradient: Array) -> None:
        move, change = self.point - self._last[0], gradient - self._last[1]
        self._last = self.point, gradient
        if self._count > 1:
            noise = 2 * self.noise * math.sqrt(2 * self.rounds) * np.sqrt((move**2).sum(axis=0))
            model = self._known() * ((self.left * self.squares + self.damping) * move**2).sum(axis=0)
            found = ((change * move).sum(axis=0) - noise) / np.maximum(model, 1e-300)
            self._more = np.minimum(np.maximum(self._more, found), self.loss.curvature_bound / self._known())


class ClassesRun(Run):
    """The stages of a run."""

    def shares(self) -> Asking[Array]:
        """Of the classes, shrunk toward equal ones as far as noise hides them; none is 0."""
        found, noise = summed((yield Ask("classes"))) / self.plan.records, self.noise("classes")
        count = len(found)
        shares = 1 / count + (found - found.mean()) / (1 + (count * noise) ** 2)
        shares = np.maximum(shares, max(min(noise, 1 / count) / 2, 1e-9))
        return np.asarray(shares / shares.sum())

    def descend_classes(self, white: White, columns: Columns, shares: Array) -> Asking[Solution]:
        """The weights after the gradients; of the softmax a constant for all classes is left out."""
        plan, clips, regulariser = self.plan, white.clips(self.noise("gradient")), self.plan.scaled_regulariser
        left, loss = min(1.0, clips.cut / white.length), loss_of(self.plan)
        offset = loss.constant(shares) if plan.fit_intercept else np.zeros(len(shares))
        descent = ClassesDescent(
            point=np.zeros((plan.dimension, len(shares))),
            squares=white.squares[:, None],
            left=left,
            damping=(rule.DAMPING * white.moments.hidden * white.q * left)[:, None],
            prior=(rule.prior(white.moments, white.units) / white.q)[:, None],
            variance=white.units.variance,
            noise=self.noise("gradient") * clips.product,
            rounds=plan.rounds,
            units=white.units,
            penalised=lambda point, stiffness: centred(loss, _penalised(white, point, stiffness, regulariser)),
            shares=shares,
            loss=loss,
        )
        yield from self.matrices(descent, columns, clips, offset)
        mean, stiffness = centred(loss, descent.mean), descent.stiffness
        weights = np.array([white.weights(u, s, regulariser) for u, s in zip(mean.T, stiffness.T, strict=True)])
        if plan.fit_intercept:
            weights[:, -1] += offset / self.constant
        return Solution(weights)

    def matrices(self, descent: Descent, columns: Columns, clips: Clips, offset: Array) -> Asking[None]:
        """Gradients one after the other, each at the point that those before led to."""
        kept = {"cut": np.array([clips.cut]), **shape_of(self.plan).told(columns.matrix)}
        said: dict[str, Any] = {"slope": np.array([clips.slope]), "offset": offset, "cut": kept["cut"]}
        for _ in range(descent.rounds):
            point = np.column_stack([columns.out(u) for u in descent.point.T])
            answer = summed((yield Ask("gradient", {"point": point.ravel(), **said}, reminder=kept)))
            gradient = np.column_stack([columns.into(g) for g in answer.reshape(point.shape).T])
            descent.step(centred(loss_of(self.plan), gradient) * clips.product / self.plan.records)
            said.pop("cut", None)


def centred(loss: ClassesLoss, matrix: Array) -> Array:
    """Rows less their means, of which a relative loss knows nothing; of any other as they are."""
    return np.asarray(matrix - matrix.mean(axis=1, keepdims=True)) if loss.relative else matrix


def _penalised(white: White, point: Array, stiffness: Array, regulariser: ScaledRegulariser) -> Array:
    if regulariser.is_none:
        return point
    pairs = zip(point.T, stiffness.T, strict=True)
    return np.column_stack([white.penalised(u, s, regulariser) for u, s in pairs])
