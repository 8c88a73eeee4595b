"""`whitened`: second moments, gradients of whitened rows, a rescale. One rule for every signal and dimension."""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms import NEWTON_FEATURES
from sottovoce.algorithms.base import (
    CONVEX,
    MOST_ROUNDS,
    Algorithm,
    Array,
    Asking,
    Coordination,
    Need,
    Solution,
    given,
    limited,
    total,
)
from sottovoce.algorithms.whitened import prior, rule
from sottovoce.algorithms.whitened.prior import PriorGradient, PriorNumbers, PriorScore, PriorSquare, with_prior
from sottovoce.algorithms.whitened.rule import Clips, Descent, Evidence, FittedScore, Moments, Units, White
from sottovoce.data.block import Block
from sottovoce.gate.query import MessageArrays, Query
from sottovoce.losses import KnownLabels, Weighted
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.queries import counts, sums
from sottovoce.solvers import Whitened

ROUNDS, RESCALES = 32, 12  # gradients: 48 are a little better where columns are ill-conditioned, 16 are worse
MORE, MUCH, MANY = 4, 2.0, 32  # up to so many times as many, by mu and the records a column: what is rare is learned


NOTHING = KnownLabels()


@dataclass(frozen=True)
class ConstantModel:
    """The constant model that a run starts from: its weights, its scores, and the units that follow from labels."""

    weights: Array
    offset: Array  # of several classes one for each
    units: Units
    shares: Array | None = None  # of several classes
    prior: Array | None = None  # weights of the model that the descent starts from, where it is another
    left: float = 1.0  # of the variance of the scores, to be learned from there
    known: KnownLabels = NOTHING


class PrivateWhitened(Algorithm):
    """Moments, whiten, descend, rescale.

    1. The Gram matrix X'X (its diagonal above 2,000 features) is released once.
    2. A public matrix P whitens the rows as far as the noise lets anything be learned, so that the noise is shared out
       fairly among directions: z = P'x, clipped to nearly equal length.
    3. Gradients sum_i z_i clip(l'): the Newton estimates that they give are averaged over a window. With much signal
       that is Newton's method, with little one long release at the constant model.
    4. Two numbers more, the slope and the intercept of the score, mend the scale that shrinking and clipping took.

    Guarantee: every release has sensitivity 1 (replace-one: 1, sqrt 2 or 2), and mu^2 is the sum of their
    (sensitivity / std)^2; all else is a function of releases and public numbers (`proof.md`).
    """

    name: ClassVar[str] = "whitened"
    form: ClassVar[str] = "private"
    title: ClassVar[str] = "whitened descent: second moments, gradients of whitened rows, a rescale"
    secure = ("rows",)
    weighted: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = (CONVEX,)
    asks: ClassVar[tuple[type[Query], ...]] = (
        sums.GramMatrix,
        sums.ColumnSquares,
        sums.NumberSum,
        sums.ProjectedGradient,
    )
    rescales: ClassVar[int] = RESCALES
    numbers: ClassVar[type[Numbers]] = PriorNumbers
    records: float = 1.0  # of a person, on average: sums are divided by that of all
    renewed: ClassVar[bool] = False  # whether something is asked between gradients

    def design(self, problem: Problem, options: Whitened) -> Design:
        """Shares of mu^2 by the signal N mu, which parties that each add noise, and replace-one, make smaller."""
        queries, numbers = self.queries(problem, problem.names[0]), self.numbers()
        if isinstance(numbers, PriorNumbers) and options.prior is not None:
            queries, numbers = with_prior(queries, problem), PriorNumbers.of(problem, options)
        much = min(problem.mu / MUCH, problem.records / problem.dimension / MANY)
        rounds = round(ROUNDS * min(max(much, 1.0), MORE))
        rounds = limited("rounds", given(options.rounds, rounds), 2, MOST_ROUNDS - 64)
        times = {"gradient": rounds, "rescale": self.rescales, PriorGradient.name: prior.ROUNDS}
        times |= self.repeats(rounds) if self.renewed else {}
        shares = self.shares(problem.signal, list(map(operator.attrgetter("name"), queries)))
        releases, first = list[Release](), 0
        for query in queries:
            count, mu = times.get(query.name, 1), math.sqrt(shares[query.name]) * problem.mu
            releases.append(Release.at_mu(query, first, count, mu, problem.relation).narrowed(problem.records))
            first += count
        return Design(rounds=rounds, numbers=numbers, releases=tuple(releases))

    def shares(self, signal: float, names: list[str]) -> dict[str, float]:
        """Of mu^2: for the moments, for single numbers, for the rescale, and for the gradients what is left.

        A number needs an error of about 1/15, the two of the rescale of 1/30, whatever the signal N mu is; bounds so
        that they neither vanish nor eat the budget. Few positives, or classes far apart, need the tenth for the
        rescale.
        """
        one = min(max((15 / signal) ** 2, 0.005), 0.03)
        rescale = min(max((30 / signal) ** 2, 0.10), 0.20)
        first = {PriorGradient.name: prior.SHARE} if PriorGradient.name in names else {}
        moments, numbers = rule.MOMENTS[names[0]], len({*names[1:]} - {"gradient", "rescale", PriorGradient.name})
        rest = 1 - moments - rescale - numbers * one - sum(first.values())
        rest += 0.0 if "rescale" in names else rescale
        return dict.fromkeys(names, one) | {names[0]: moments, "gradient": rest, "rescale": rescale, **first}

    def queries(self, plan: Problem, _party: str) -> tuple[Query, ...]:
        """In the order in which they are asked."""
        loss, d, constant = plan.scaled_loss, plan.dimension, plan.fit_intercept
        shape = projection_shape(plan)
        found: list[Query] = [sums.GramMatrix(d) if shape.kind == "triangular" else sums.ColumnSquares(d)]
        found += [counts.AmountSum()] if plan.bounds.weight_bound is not None else []
        found += self.label_numbers(plan)
        if isinstance(loss, Weighted):
            found.append(sums.WeightSum(loss))
        found += [sums.LengthSum(shape), self.gradient(plan, shape)]
        found += [sums.ScoreSum(d), sums.SquareSum(d)] if constant else [sums.SquareSum(d)]
        rescale = self.gradient(plan, sums.ProjectionShape(d, "vectors", 1 + constant), rescales=True)
        found.append(rescale)
        if isinstance(plan, Plan) and getattr(plan.numbers, "prior", None) is not None:
            plan.numbers.weights(plan.dimension)  # refused if it is for other rows
            return with_prior(found, plan)
        return tuple(found)

    def gradient(self, plan: Problem, shape: sums.ProjectionShape, *, rescales: bool = False) -> Query:
        """Of whitened rows, or of the rescale."""
        kind = sums.ScaleGradient if rescales else sums.ProjectedGradient
        return kind(shape, plan.scaled_loss, sums.first_round(plan, kind.name))

    def repeats(self, rounds: int) -> dict[str, int]:  # noqa: ARG002
        """How often a query is asked, of those that are asked again."""
        return {}

    def renew(self, plan: Plan, descent: Descent) -> Asking[None]:  # noqa: ARG002
        """What is asked between two gradients: nothing."""
        yield from ()

    def label_numbers(self, plan: Problem) -> list[Query]:
        """What is asked of the labels before the descent."""
        if plan.scaled_loss.kind != "regression":
            return []
        residual = sums.ResidualSum(plan.dimension)
        return [sums.LabelSum(), residual] if plan.fit_intercept else [residual]

    def remember(self, _plan: Plan, _rows: Block) -> dict[str, Any]:
        """Rows seen through the P of the stage, once it is told; one that lost them is told P and C again."""
        return {}

    def coordinate(self, plan: Plan) -> Coordination:
        """Moments, whiten, descend, rescale. All noise is judged in the sum over the parties."""
        plan = (yield from self.weigh(plan)) if plan.has("amount") else plan
        moments = yield from self.moments(plan)
        start = yield from self.start(plan)
        if plan.has(PriorGradient.name):
            start = yield from self.start_at_prior(plan, moments, start)
        white = yield from self.whiten(plan, moments, start)
        descent = yield from self.descend(plan, white, start)
        return (yield from self.rescale(plan, white, descent, start))

    def weigh(self, plan: Plan) -> Asking[Plan]:
        """Where records have weights: as if there were so many records as these add up to, of the most that one has."""
        mean, noise = (yield from mean_of(plan, "amount")), self.noise(plan, "amount")
        return plan.counting(plan.records * min(max(mean, noise), 1.0))

    def moments(self, plan: Plan) -> Asking[Moments]:
        """1. Mean squares of the rows, along the eigenvectors of their Gram matrix or along the columns."""
        (query, *_), constant = self.queries(plan, plan.names[0]), plan.preparation.intercept_entry
        found, noise = (yield from total(query.name)), self.noise(plan, query.name)
        if isinstance(query, sums.GramMatrix):
            return rule.of_gram(query.matrix(found) / (plan.records * self.records), noise, constant)
        return rule.of_squares(found / (plan.records * self.records), noise, constant)

    def start(self, plan: Plan) -> Asking[ConstantModel]:
        """For numbers at the mean label, in units of the mean absolute residual there; for classes at 0."""
        weights, residual, constant = np.zeros(plan.dimension), 0.0, plan.preparation.intercept_entry
        if plan.has("label"):
            mean = yield from mean_of(plan, "label")
            weights[-1] = mean / (1 + 4 * self.noise(plan, "label") ** 2) / constant
        if plan.has("residual"):
            mean = yield from mean_of(plan, "residual", weights=weights)
            residual = max(mean, 0.0) + self.noise(plan, "residual")
        units = Units.of(plan.scaled_loss, KnownLabels(residual))
        if plan.has("weight"):
            mean, noise = (yield from mean_of(plan, "weight")), self.noise(plan, "weight")
            weight = min(max(mean, noise, min(plan.class_weight)), 1.0)
            curvature, tolerance = weight * units.curvature, weight * units.tolerance  # of losses in proportion to it
            units = replace(units, weight=weight, curvature=curvature, tolerance=tolerance)
        return ConstantModel(weights, weights[-1:] * constant, units)

    def start_at_prior(self, plan: Plan, moments: Moments, start: ConstantModel) -> Asking[ConstantModel]:
        """The prior with the slope and the intercept that these records give its score; from there less is to learn.

        Its own size and intercept count for nothing: the score is measured in its deviations, as the moments have them
        and two numbers tell better, and drawn to the constant model. So one that is useless, of the other sign or in
        other units leaves the run where it would have started, but for the slope that noise gives.
        """
        constant, given = plan.preparation.intercept_entry, plan.numbers.weights(plan.dimension)
        slopes, offset = given[: plan.features], float(start.weights[-1]) * constant
        if not (size := float(np.abs(slopes).max())):
            return start
        score = FittedScore(np.append(slopes / size, np.zeros(plan.dimension - plan.features)), constant)
        most = prior.WILD * math.sqrt(float(moments.values @ moments.into(score.weights) ** 2))
        intercept = float(np.clip(given[-1] * constant / size, -most, most))
        mean, unit = yield from self.measured(plan, moments, score, intercept, (PriorScore.name, PriorSquare.name))
        at = (mean, unit, np.zeros(1 + plan.fit_intercept), offset)
        slope, *shift = yield from self.slope_and_shift(plan, score, at, start.units, PriorGradient.name)
        expected = math.sqrt(start.units.variance)
        slope = min(max(slope, 0.0), prior.FARTHEST * expected)
        weights = slope / unit * score.weights
        if constant:
            weights[-1] = (offset + shift[0] - slope / unit * mean) / constant
        trust = min(slope / max(unit * size, expected / 2), 1.0)
        return replace(start, prior=weights, left=1 - prior.TRUSTED * trust)

    def whiten(self, plan: Plan, moments: Moments, start: ConstantModel) -> Asking[White]:
        """2. P; the parties say how long whitened rows are on average, which sets the clip."""
        units = replace(start.units, variance=start.left * start.units.variance)
        q = rule.whitening(moments, units, self.noise(plan, "gradient"))
        white = White(moments, q, units, start=start.prior)
        radius = min(math.sqrt(white.q.max()), 2 * math.sqrt(white.q @ moments.values))
        mean = yield from self.mean_length(plan, white, radius)
        white.length = radius * min(max(mean, 0.05), 1.0)
        return white

    def descend(self, plan: Plan, white: White, start: ConstantModel) -> Asking[Descent]:
        """3. Gradients of whitened rows, one after the other, each at the point that those before led to."""
        clips, left = self.clips(plan, white)
        noise = self.noise(plan, "gradient", clips) * clips.size
        descent = self.descent(plan, white, start, left, noise)
        offset = start.offset if start.prior is None else np.zeros(1)
        message = {"offset": offset, **projection_shape(plan).message(white.matrix)}
        yield from self.gradients(plan, "gradient", descent, clips, message)
        return descent

    def rescale(self, plan: Plan, white: White, descent: Descent, start: ConstantModel) -> Asking[Solution]:
        """4. The weights with the slope and the intercept that two numbers more say, which are the scores' spread too.

        Both are shrunk toward the constant model at the start, so where noise rules that is what is left. Numbers over
        columns have no rescale: the moments say how their scores are spread.
        """
        constant, regulariser, rescales = plan.preparation.intercept_entry, plan.scaled_regulariser, plan.has("rescale")
        weights = white.weights(np.mean(descent.taken, axis=0), descent.stiffness, regulariser)
        weights, first = (weights + start.weights, start.weights) if start.prior is None else (weights, start.prior)
        weights = weights if rescales else regulariser.prox(weights, 0.0)
        score = FittedScore(np.where(np.arange(plan.dimension) < plan.features, weights, 0.0), constant)
        intercept = float((weights - start.weights if rescales else weights)[-1]) * constant
        offset, known = float(start.weights[-1]) * constant, descent.curvature
        about = (white.moments, known / white.q, (descent.stiffness - known) / white.q, first)
        cost = descent.noise**2 / 2 * float((1 / descent.stiffness).sum())
        if not rescales:
            mean, radius, _ = score.expected(white.moments, intercept)
            spread = (mean + intercept, radius / rule.SPREAD)
            return Solution(weights, spread=spread, model=Evidence(*about, weights, white.units, cost))
        mean, unit = yield from self.measured(plan, white.moments, score, intercept, ("score", "square"))
        at = (mean, unit, np.array([unit, mean + intercept])[: 1 + plan.fit_intercept], offset)
        slope, *shift = yield from self.slope_and_shift(plan, score, at, start.units, "rescale")
        rescaled = max(slope, 0.0) / unit * score.weights
        if constant:
            rescaled[-1] = (offset + shift[0] - max(slope, 0.0) / unit * mean) / constant
        rescaled = regulariser.prox(rescaled, 0.0)
        spread = (float(offset + shift[0] if constant else 0.0), float(max(slope, 0.0)))
        return Solution(rescaled, spread=spread, model=Evidence(*about, rescaled, white.units, cost))

    def measured(
        self, plan: Plan, moments: Moments, score: FittedScore, intercept: float, names: tuple[str, str]
    ) -> Asking[tuple[float, float]]:
        """Mean and deviation of a score, as the moments have them and two numbers, of these names, tell better."""
        mean, radius, doubt = score.expected(moments, intercept)
        if score.constant:
            wide, noise = radius + doubt, self.noise(plan, names[0])
            mean_score = yield from mean_of(plan, names[0], weights=score.standardised(mean, wide))
            mean += wide * mean_score / (1 + (rule.SPREAD * noise) ** 2)
            radius = math.hypot(radius, 2 * wide * noise) if doubt else radius
        mean_square = yield from mean_of(plan, names[1], weights=score.standardised(mean, radius))
        noise = self.noise(plan, names[1])  # the deviation of the score: a little cautious, not below .22 of the radius
        variance = (max(mean_square, 0.0) + noise**2) / (1 + (rule.SPREAD * noise) ** 2)
        return mean, radius * math.sqrt(max(variance, 0.048))

    def slope_and_shift(
        self, plan: Plan, score: FittedScore, at: tuple[float, float, Array, float], units: Units, query: str
    ) -> Asking[Array]:
        """Of the score, by a descent on rows ((score - mean) / unit, 1) from a point."""
        mean, unit, point, offset = at
        projection = score.standardised(mean, unit)[:, None]
        if score.constant:
            one = np.where(np.arange(plan.dimension) < plan.dimension - 1, 0.0, 1.0)
            projection = np.column_stack([projection, one / score.constant])
        size = projection.shape[1]
        penalised = functools.partial(score.penalised, unit=unit, regulariser=plan.scaled_regulariser)
        most, wider = (
            float(1 if plan.secure_columns else plan.most_records or 1),
            replace(units, tolerance=units.rescale * units.tolerance),
        )
        clips = Clips(1.0, units.slope).widened(wider, self.noise(plan, query), size, rule.FAR, most)
        # what clips leave of the mean squares of rows (t, 1), t ~ N(0, 1), or (t)
        rows = np.column_stack([rule.NORMAL, np.ones_like(rule.NORMAL)])[:, :size]
        share = rule.DENSITY * clips.cut / np.maximum(np.linalg.norm(rows, axis=1), clips.cut)
        descent = Descent(
            point=point,
            squares=np.ones(size),
            left=np.asarray(share @ rows**2),
            damping=0.0,
            prior=units.variance,
            variance=units.variance / 2,
            noise=self.noise(plan, query, clips) * clips.size,
            rounds=plan.release(query).count,
            units=units,
            penalised=penalised,
            penalty=not plan.scaled_regulariser.inner.is_none,
            mean=np.array([0.0, 1.0]) if score.constant else None,
        )
        message = {
            "offset": np.array([offset]),
            **sums.ProjectionShape(plan.dimension, "vectors", size).message(projection),
        }
        yield from self.gradients(plan, query, descent, clips, message)
        return penalised(np.mean(descent.taken, axis=0), descent.stiffness)

    def noise(self, plan: Plan, query: str, _clips: Clips | None = None) -> float:
        """The standard deviation of a mean over the records, all rounds of the query taken as one."""
        release = plan.release(query)
        return release.std * math.sqrt(plan.channel.variance / release.count) / plan.records

    def clips(self, plan: Plan, white: White) -> tuple[Clips, float]:
        """Nearly equal lengths and ordinary slopes, widened where the noise allows it, and what they leave of a row.

        No row is longer than sqrt q; what is left is on average.
        """
        first, longest = Clips(rule.CUT * white.length, white.units.slope), math.sqrt(white.q.max())
        noise, most = self.noise(plan, "gradient"), float(1 if plan.secure_columns else plan.most_records or 1)
        clips = first.widened(white.units, noise, float(white.squares.sum()), longest, most)
        return clips, min(1.0, clips.cut / white.length)

    def mean_length(self, plan: Plan, white: White, radius: float) -> Asking[float]:
        """Of whitened rows, in units of the radius."""
        return mean_of(plan, "length", **projection_shape(plan).message(white.matrix), radius=np.array([radius]))

    def descent(self, plan: Plan, white: White, _start: ConstantModel, left: float, noise: float) -> Descent:
        mean = white.moments.mean
        return Descent(
            point=np.zeros(plan.dimension),
            squares=white.squares,
            left=left,
            damping=rule.DAMPING * white.moments.hidden * white.q * left,
            prior=rule.prior(white.moments, white.units) / white.q,
            variance=white.units.variance,
            noise=noise,
            rounds=plan.rounds,
            units=white.units,
            penalty=not plan.scaled_regulariser.inner.is_none,
            chance=min(1.0, plan.dimension / plan.records) / plan.records * plan.scaled_regulariser.inner.is_none,
            penalised=functools.partial(white.penalised, regulariser=plan.scaled_regulariser),
            mean=None if mean is None else np.sqrt(white.q) * mean,
            white=white,
            start=None if white.start is None else white.along(white.start),
        )

    def gradients(self, plan: Plan, query: str, descent: Descent, clips: Clips, message: MessageArrays) -> Asking[None]:
        """P and C are told once, or when lost; P of "gradient" was told with the lengths."""
        cuts = {"cut": np.array([clips.cut])}
        if plan.most_records is not None:
            cuts["together"] = np.array([clips.together])
        kept = {**cuts, **message}
        offset = kept.pop("offset")
        first = cuts if query == "gradient" else kept
        for _ in range(descent.rounds):
            point = descent.point if descent.start is None else descent.point + descent.start
            point = descent.along_columns(point)
            asked = {"point": point.ravel(), "slope": np.array([clips.slope]), "offset": offset, **first}
            asked |= descent.units.loss.told() if descent.units.loss.learned else {}
            answer = (yield from total(query, reminder=kept, **asked)).reshape(point.shape)
            descent.step(descent.along_directions(answer) * clips.size / (plan.records * self.records))
            first = {}
            if self.renewed and query == "gradient":
                yield from self.renew(plan, descent)


def projection_shape(problem: Problem) -> sums.ProjectionShape:
    """How P is told: above 2,000 features as a diagonal."""
    return sums.ProjectionShape(problem.dimension, "triangular" if problem.features <= NEWTON_FEATURES else "diagonal")


def mean_of(plan: Plan, query: str, **told: NDArray[Any]) -> Asking[float]:
    """A number of the records, on average."""
    return float((yield from total(query, **told))[0]) / plan.records
