"""`whitened`: second moments, gradients of whitened rows, a rescale. One rule for every signal and dimension."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import (
    CONVEX,
    MOST_ROUNDS,
    Algorithm,
    Ask,
    Coordination,
    Need,
    Solution,
    given,
    limited,
    summed,
)
from sottovoce.algorithms.whitened import rule
from sottovoce.algorithms.whitened.evidence import Evidence
from sottovoce.algorithms.whitened.rule import Clips, Descent, Moments, Score, Units, White
from sottovoce.data.block import Block
from sottovoce.door.query import Query, Told
from sottovoce.losses import Weighted
from sottovoce.plan.plan import Design, Numbers, Plan
from sottovoce.plan.problem import Problem, Split
from sottovoce.plan.release import Release
from sottovoce.queries.gram import ColumnSquares, GramMatrix
from sottovoce.queries.numbers import LabelSum, NumberSum, ResidualSum, ScoreSum, SquareSum, WeightSum
from sottovoce.queries.projected import LengthSum, ProjectedGradient, ScaleGradient, Shape
from sottovoce.solvers import Whitened
from sottovoce.solvers.auto import NEWTON_FEATURES

Array = NDArray[np.float64]
T = TypeVar("T")
Asking = Generator[Ask, dict[str, Array], T]

ROUNDS, RESCALES = 32, 12  # gradients: 48 are a little better where columns are ill-conditioned, 16 are worse


class WhitenedNumbers(Numbers, solver="whitened", form="private"):
    """None: the noise of its releases says all."""


class PrivateWhitened(Algorithm):
    """Moments, whiten, descend, rescale.

    1. The Gram matrix X'X (its diagonal above 2,000 features) is released once.
    2. A public matrix P whitens the rows as far as the noise lets anything be learned, so that the noise is shared out
       fairly among directions: z = P'x, cut to nearly equal length.
    3. Gradients sum_i z_i clip(l'): the Newton estimates that they give are averaged over a window. With much signal
       that is Newton's method, with little one long release at the constant model.
    4. Two numbers more, the slope and the intercept of the score, mend the scale that shrinking and clipping took.

    Guarantee: every release has sensitivity 1 (replace-one: 1, sqrt 2 or 2), and mu^2 is the sum of their
    (sensitivity / std)^2; all else is a function of releases and public numbers (`proof.md`).
    """

    name: ClassVar[str] = "whitened"
    form: ClassVar[str] = "private"
    title: ClassVar[str] = "whitened descent: second moments, gradients of whitened rows, a rescale"
    sealed: ClassVar[tuple[Split, ...]] = ("rows",)
    weighted: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = (CONVEX,)
    numbers: ClassVar[type[Numbers]] = WhitenedNumbers
    rescales: ClassVar[int] = RESCALES

    def design(self, problem: Problem, options: Whitened) -> Design:
        """Shares of mu^2 by the signal N mu, which parties that each add noise, and replace-one, make smaller."""
        queries = self.asked(problem, problem.names[0])
        rounds = limited("rounds", given(options.rounds, ROUNDS), 2, MOST_ROUNDS - 64)
        counts, names = {"gradient": rounds, "rescale": self.rescales}, [query.name for query in queries]
        moments = {"gram": rule.GRAM, "squares": rule.SQUARES}[names[0]]
        one, rescale, rest = rule.shares(problem.signal, len(set(names[1:]) - set(counts)), moments)
        rest += 0.0 if "rescale" in names else rescale
        shares = {names[0]: moments, "gradient": rest, "rescale": rescale}
        releases, first = list[Release](), 0
        for query in queries:
            count, mu = counts.get(query.name, 1), math.sqrt(shares.get(query.name, one)) * problem.mu
            releases.append(Release.at_mu(query, first, count, mu, problem.relation).narrowed(problem.records))
            first += count
        return Design(rounds=rounds, numbers=self.numbers(), releases=tuple(releases))

    def asked(self, problem: Problem, party: str) -> tuple[Query, ...]:  # noqa: ARG002
        """What is asked of a party, in order."""
        return tuple(_queries(problem))

    @classmethod
    def asks(cls) -> tuple[type[Query], ...]:
        return GramMatrix, ColumnSquares, NumberSum, ProjectedGradient

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:
        """In the order in which they are asked."""
        return self.asked(plan, party)

    def remember(self, plan: Plan, rows: Block) -> dict[str, Any]:  # noqa: ARG002
        """Rows seen through the P of the stage, once it is told; one that lost them is told P and C again."""
        return {}

    def coordinate(self, plan: Plan) -> Coordination:
        """Moments, whiten, descend, rescale."""
        run = self.run(plan)
        moments = yield from run.moments()
        units, start = yield from run.units()
        white, columns = yield from run.whiten(moments, units)
        descent, weights = yield from run.descend(white, columns, start)
        solution = yield from run.rescale(white, start, weights)
        return replace(solution, model=Evidence.of(white, descent, start, solution.weights))

    def run(self, plan: Plan) -> Run:
        """The stages."""
        return Run(plan)


def _queries(problem: Problem) -> Iterator[Query]:
    """What is asked, in order: a number apart from the moments, the gradients and the rescale."""
    loss, d, constant = problem.scaled_loss, problem.dimension, problem.fit_intercept
    shape = shape_of(problem)
    yield GramMatrix(d) if shape.kind == "triangular" else ColumnSquares(d)
    if loss.kind == "regression":
        yield from (LabelSum(d), ResidualSum(d)) if constant else (ResidualSum(d),)
    if isinstance(loss, Weighted):
        yield WeightSum(d, loss)
    yield LengthSum(shape)
    yield ProjectedGradient("gradient", shape, loss)
    yield from (ScoreSum(d), SquareSum(d)) if constant else (SquareSum(d),)
    yield ScaleGradient("rescale", Shape(d, "vectors", 1 + constant), loss)


def shape_of(problem: Problem) -> Shape:
    """How P is told: above 2,000 features as a diagonal."""
    return Shape(problem.dimension, "triangular" if problem.features <= NEWTON_FEATURES else "diagonal")


class Columns:
    """Those of a P with P P' = V diag(q) V', V the directions of the moments.

    |P'x| and the noise are the same for every such P. A triangular one is half of the work for a party.
    """

    def __init__(self, moments: Moments, q: Array) -> None:
        self._moments, self._factors = moments, np.sqrt(q)
        self.matrix = self._factors
        if moments.vectors is not None:
            self.matrix = np.asarray(np.linalg.qr(self._factors[:, None] * moments.vectors.T, mode="r")).T

    def out(self, coordinates: Array) -> Array:
        """Coordinates along the directions as those along the columns."""
        if self._moments.vectors is None:
            return coordinates
        return self.matrix.T @ self._moments.out(coordinates / self._factors)

    def into(self, vector: Array) -> Array:
        """The inverse."""
        return vector if self._moments.vectors is None else self._moments.into(self.matrix @ vector) / self._factors


class Run:
    """The stages of a run. All noise is judged in the sum over the parties, each of which adds its own."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.constant = plan.preparation.intercept_entry  # of every row; 0 without an intercept

    def noise(self, query: str) -> float:
        """The standard deviation of a mean over the records, all rounds of the query taken as one."""
        release = self.plan.release(query)
        return release.std * math.sqrt(self.plan.noises() / release.count) / self.plan.records

    def mean(self, query: str, **told: NDArray[Any]) -> Asking[float]:
        """A number of the records."""
        return float(summed((yield Ask(query, told)))[0]) / self.plan.records

    def moments(self) -> Asking[Moments]:
        """Of the rows."""
        plan = self.plan
        if plan.has("gram"):
            gram = GramMatrix(plan.dimension).matrix(summed((yield Ask("gram"))))
            return rule.of_gram(gram / plan.records, self.noise("gram"))
        squares = summed((yield Ask("squares")))
        return rule.of_squares(squares / plan.records, self.noise("squares"), self.constant)

    def units(self) -> Asking[tuple[Units, Array]]:
        """And where to start: for numbers at the mean label, in units of the mean absolute residual there."""
        start, residual = np.zeros(self.plan.dimension), 0.0
        if self.plan.has("label"):
            mean = yield from self.mean("label")
            start[-1] = mean / (1 + 4 * self.noise("label") ** 2) / self.constant
        if self.plan.has("residual"):
            mean = yield from self.mean("residual", weights=start)
            residual = max(mean, 0.0) + self.noise("residual")
        units = Units.of(self.plan.scaled_loss, residual)
        if self.plan.has("weight"):
            mean, noise = (yield from self.mean("weight")), self.noise("weight")
            units = units.weighed(min(max(mean, noise, min(self.plan.class_weight)), 1.0))
        return units, start

    def whiten(self, moments: Moments, units: Units) -> Asking[tuple[White, Columns]]:
        """The parties say how long whitened rows are on average: that sets the clip."""
        q = rule.whitening(moments, units, self.noise("gradient"))
        radius = min(math.sqrt(q.max()), 2 * math.sqrt(q @ moments.values))
        columns = Columns(moments, q)
        mean = yield from self.mean_length(columns, radius)
        length = radius * min(max(mean, 0.05), 1.0)
        return White(moments, q, length, units), columns

    def mean_length(self, columns: Columns, radius: float) -> Asking[float]:
        """Of whitened rows, in units of the radius."""
        told = shape_of(self.plan).told(columns.matrix)
        return (yield from self.mean("length", **told, radius=np.array([radius])))

    def clips(self, white: White, columns: Columns) -> tuple[Clips, float]:  # noqa: ARG002
        """And what they leave of a row, on average."""
        clips = white.clips(self.noise("gradient"))
        return clips, min(1.0, clips.cut / white.length)

    def clipped_noise(self, query: str, clips: Clips) -> float:
        """Of a mean of gradients."""
        return self.noise(query) * clips.product

    def descend(self, white: White, columns: Columns, start: Array) -> Asking[tuple[Descent, Array]]:
        """The gradients of whitened rows, and the weights after them."""
        plan, regulariser = self.plan, self.plan.scaled_regulariser
        clips, left = self.clips(white, columns)
        descent = Descent(
            point=np.zeros(plan.dimension),
            squares=white.squares,
            left=left,
            damping=rule.DAMPING * white.moments.hidden * white.q * left,
            prior=rule.prior(white.moments, white.units) / white.q,
            variance=white.units.variance,
            noise=self.clipped_noise("gradient", clips),
            rounds=plan.rounds,
            units=white.units,
            penalised=lambda point, stiffness: white.penalised(point, stiffness, regulariser),
        )
        told = {"offset": start[-1:] * self.constant, **shape_of(plan).told(columns.matrix)}
        yield from self.gradients("gradient", descent, columns, clips, told)
        return descent, start + white.weights(descent.mean, descent.stiffness, regulariser)

    def rescale(self, white: White, start: Array, weights: Array) -> Asking[Solution]:
        """The weights with the slope and the intercept that two numbers more say; these are the scores' spread too.

        Both are shrunk toward the constant model at the start, so where noise rules that is what is left.
        """
        plan, units, constant, regulariser = self.plan, white.units, self.constant, self.plan.scaled_regulariser
        score = Score(np.where(np.arange(plan.dimension) < plan.features, weights, 0.0), constant)
        intercept, offset = float((weights - start)[-1]) * constant, float(start[-1]) * constant
        mean, radius = score.expected(white.moments, intercept)
        if constant:
            found = yield from self.mean("score", weights=score.standardised(mean, radius))
            mean += radius * found / (1 + (rule.SPREAD * self.noise("score")) ** 2)
        found = yield from self.mean("square", weights=score.standardised(mean, radius))
        unit = radius * rule.deviation(found, self.noise("square"))
        projection = score.projection(mean, unit)
        size = projection.shape[1]
        clips = Clips(1.0, units.slope).widened(units, self.noise("rescale"), size, rule.FAR)
        descent = Descent(
            point=np.array([unit, mean + intercept])[:size],
            squares=np.ones(size),
            left=rule.left_of(clips.cut, size),
            damping=0.0,
            prior=units.variance,
            variance=units.variance / 2,
            noise=self.clipped_noise("rescale", clips),
            rounds=plan.release("rescale").count,
            units=units,
            penalised=lambda point, stiffness: score.penalised(point, stiffness, unit, regulariser),
        )
        told = {"offset": np.array([offset]), **Shape(plan.dimension, "vectors", size).told(projection)}
        yield from self.gradients("rescale", descent, Columns(rule.plain(size), np.ones(size)), clips, told)
        slope, *shift = score.penalised(descent.mean, descent.stiffness, unit, regulariser)
        rescaled = max(slope, 0.0) / unit * score.weights
        if constant:
            rescaled[-1] = (offset + shift[0] - max(slope, 0.0) / unit * mean) / constant
        spread = (offset + shift[0] if constant else 0.0, max(slope, 0.0))
        return Solution(regulariser.prox(rescaled, 0.0), spread=(float(spread[0]), float(spread[1])))

    def gradients(self, query: str, descent: Descent, columns: Columns, clips: Clips, told: Told) -> Asking[None]:
        """One after the other, each at the point that those before led to; P and C are told once, or when lost."""
        every = {"slope": np.array([clips.slope]), "offset": told["offset"]}
        kept = {"cut": np.array([clips.cut]), **{name: told[name] for name in told if name != "offset"}}
        first = {"cut": kept["cut"]} if query == "gradient" else kept  # P was told with the lengths
        for _ in range(descent.rounds):
            said = {"point": columns.out(descent.point), **every, **first}
            answer = summed((yield Ask(query, said, reminder=kept)))
            descent.step(columns.into(answer) * clips.product / self.plan.records)
            first = {}
