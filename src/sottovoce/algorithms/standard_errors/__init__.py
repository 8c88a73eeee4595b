"""`standard-errors`: what a step without damping from a released model needs, and how far it is from the truth.

No `solver=` names it.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from sottovoce.algorithms.base import (
    CONVEX,
    SMOOTH,
    Algorithm,
    Array,
    Asking,
    Coordination,
    Need,
    Solution,
    Weight,
    public_model,
    total,
)
from sottovoce.algorithms.standard_errors.estimates import Belief, Sums
from sottovoce.algorithms.standard_errors.periods import (
    PeriodCurvature,
    PeriodGradient,
    PeriodSquares,
    at_risk,
    sum_noise,
    with_parts,
)
from sottovoce.algorithms.whitened import rule
from sottovoce.algorithms.whitened.columns import WHOLE, least_clip, rounding_of, sharpened, whole_projection
from sottovoce.algorithms.whitened.rule import Clips, Moments, Units, White
from sottovoce.data.block import Block, BlockRows, toward_zero
from sottovoce.data.matrix import slopes_of
from sottovoce.data.projection import short_rows
from sottovoce.errors import InputError
from sottovoce.gate.query import Integers, Query, Round
from sottovoce.losses import Hazard, Kind, KnownLabels, LogMeanLoss, Loss
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.queries.counts import EventCounts, RiskSums
from sottovoce.queries.joint import WholeGradient
from sottovoce.queries.sums import POSITIVE, GramMatrix, ProjectionShape, ResidualSum
from sottovoce.secure import ring


class ShortRows(Query):
    """A sum over cut rows at a public model w; P and G are told, and the bound holds for any."""

    needs: ClassVar[type] = BlockRows

    def about(self, weights: Array, loss: Loss) -> None:
        self.weights, self.loss, self.shape = weights, loss, ProjectionShape(len(weights), "triangular")
        self.takes = {**self.shape.takes, "slope": POSITIVE}

    def value(self, round: Round) -> Array:
        matrix, slope = self.shape.matrix(round.told), float(round.told["slope"][0])
        return round.rows.over(functools.partial(self.summed, matrix, slope))

    @abstractmethod
    def summed(self, matrix: Array, slope: float, block: Block) -> Array:
        """The sum over the rows of a block: exact, in any order."""

    def pieces(self, matrix: Array, slope: float, block: Block) -> Iterator[tuple[Array, Array]]:
        """Cut rows, and a factor for each, a function of its own record; with privacy within [-1, 1], a NaN as 1."""
        exact = block.bits is not None
        for rows, shares, scores, labels in short_rows(block, matrix, self.weights):
            with np.errstate(all="ignore"):  # a warning that a record caused could be turned into an error
                factors = self.factors(scores, labels, slope)
            # fmin takes the bound where a factor is NaN, which clip would let through
            yield rows, (np.fmax(np.fmin(factors, 1.0), -1.0) if exact else factors) * self.weighed(shares)

    @abstractmethod
    def factors(self, scores: Array, labels: Array, slope: float) -> Array:
        """One number for each record, not yet cut."""

    def weighed(self, shares: Array) -> Array:
        """What is left of a factor where rows were clipped to these shares."""
        return shares


class FactorGram(ShortRows, GramMatrix):
    """sum_i f_i^2 z_i z_i': the Gram matrix of rows that are no longer than z_i. Guarantee: that of a Gram matrix."""

    def __init__(self, weights: Array, loss: Loss) -> None:
        GramMatrix.__init__(self, len(weights))
        self.about(weights, loss)

    def summed(self, matrix: Array, slope: float, block: Block) -> Array:
        total = np.zeros((self.dimension, self.dimension))
        for rows, factors in self.pieces(matrix, slope, block):
            scaled = rows * factors[:, None]
            if block.bits is not None:
                toward_zero(scaled, block.bits)
            total += scaled.T @ scaled
        return np.asarray(total[self.places])


class FittedCurvature(FactorGram):
    """sum_i I_i z_i z_i' in units of the largest I, the information of a record: l'' or, of counts, its mean."""

    name = "curvature"
    title: ClassVar[str] = "the curvature of the loss at the fitted model"

    def factors(self, scores: Array, labels: Array, _slope: float) -> Array:
        found = np.asarray(self.loss.information(scores, labels) * self.loss.weight(scores), dtype=np.float64)
        return np.asarray(np.sqrt(found / self.loss.information_bound))

    def weighed(self, shares: Array) -> Array:
        """All of it: z z' has the share twice already."""
        return np.ones_like(shares)


class SquaredSlopes(FactorGram):
    """sum_i (c_i l'(x_i'w, y_i))^2 z_i z_i' in units of G^2: how far the gradient varies from sample to sample."""

    name = "squared-slopes"
    title: ClassVar[str] = "squares of the slopes of the loss at the fitted model"

    def factors(self, scores: Array, labels: Array, slope: float) -> Array:
        return slopes_of(self.loss, scores, labels) * self.loss.weight(scores) / slope


class FittedGradient(ShortRows):
    """sum_i c_i l'(x_i'w, y_i) z_i in units of G.

    Guarantee: zero-out moves it by at most 1, replace-one by 2. Edges: a null row adds nothing.
    """

    name = "gradient"
    title: ClassVar[str] = "the gradient of the loss at the fitted model"
    bound = 1.0

    def __init__(self, weights: Array, loss: Loss) -> None:
        self.length, self.rounding_entries = len(weights), float(len(weights))
        self.about(weights, loss)

    def factors(self, scores: Array, labels: Array, slope: float) -> Array:
        return slopes_of(self.loss, scores, labels) * self.loss.weight(scores) / slope

    def summed(self, matrix: Array, slope: float, block: Block) -> Array:
        total = np.zeros(self.length)
        for rows, factors in self.pieces(matrix, slope, block):
            total += rows.T @ (factors if block.bits is None else toward_zero(factors, block.bits))
        return total


# Shares of mu^2; the gradient has the rest.
SHARES = {"residual": 0.02, "events": 0.03, "risk": 0.05, "gram": 0.18, "curvature": 0.15, "squared-slopes": 0.10}
OF_NAMED = SHARES | {"gram": 0.22, "curvature": 0.30, "squared-slopes": 0.05}  # A is then the least known
KNOWN = 0.1, 0.2  # how far the size of the squared slopes may be unknown; of counts, amounts and times
REACH = 5.0  # mean absolute residuals at which residuals are cut: 4 deviations of a normal one
NAMED = 0.45  # of the squared length of a row, for the columns that are asked for
BELIEVED = 4.0  # times the variance of scores that a fit begins with: so much at most
LENGTHS = 1.5, 3.0  # root mean square lengths at which whitened rows are cut: at 1.5 few far rows move the target


@dataclass(frozen=True)
class Start:
    """What a step starts from: weights on prepared rows, and the columns whose weights it leaves as they are.

    `named` are the columns that are asked for; without them all are.
    """

    weights: Array
    fixed: tuple[int, ...] = ()
    named: tuple[int, ...] = ()


class StandardErrorsNumbers(Numbers):
    """The model, public, the columns that the coordinator leaves out of the step, and those that are asked for."""

    weights: tuple[Weight, ...]
    fixed: tuple[Annotated[int, Field(ge=0)], ...] = ()
    named: tuple[Annotated[int, Field(ge=0)], ...] = ()

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without `named` where all are: plans that do not use it are what they were."""
        fields: dict[str, Any] = write(self)
        return fields if fields["named"] else {key: value for key, value in fields.items() if key != "named"}


class PrivateStandardErrors(Algorithm):
    """Curvature A, squared slopes S and gradient g of the loss at a released model w, each once, on whitened rows.

    From these w - P A^-1 g, a Newton step without damping, and its covariance (`OneStep`). The Gram matrix comes
    first: P whitens the rows as far as its noise allows, so that noise is shared out fairly among directions. Of
    numbers the mean absolute residual tells where residuals are cut.

    Guarantee: every release has sensitivity 1 (replace-one: sqrt 2 or 2; the residual 1), whatever w and P are; mu^2 is
    the sum of their (sensitivity / std)^2 (`proof.md`).
    """

    name: ClassVar[str] = "standard-errors"
    form: ClassVar[str] = "private"
    title: ClassVar[str] = "standard errors: curvature, squared slopes and gradient at a released model"
    private: ClassVar[bool | None] = None
    weighted: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = (CONVEX, SMOOTH)
    kinds: ClassVar[tuple[Kind, ...]] = ("classification", "regression", "count", "time")
    numbers: ClassVar[type[Numbers]] = StandardErrorsNumbers

    def design(self, problem: Problem, options: Start) -> Design:
        queries = tuple(_fitted_queries(problem, options.weights))
        shares = OF_NAMED if options.named else SHARES
        rest = 1 - sum(shares.get(query.name, 0.0) for query in queries)
        releases = []
        for place, query in enumerate(queries):
            mu = math.sqrt(shares.get(query.name, rest)) * problem.mu
            releases.append(Release.at_mu(query, place, 1, mu, problem.relation).narrowed(problem.records))
        numbers = StandardErrorsNumbers(
            weights=tuple(options.weights.tolist()), fixed=options.fixed, named=options.named
        )
        return Design(rounds=len(queries), numbers=numbers, releases=tuple(releases))

    def queries(self, plan: Plan, _party: str) -> tuple[Query, ...]:
        return tuple(_fitted_queries(plan, public_model(plan)))

    def coordinate(self, plan: Plan) -> Coordination:
        """Whiten, then the sums in units of the loss, as the solution's model."""
        weights, shape = public_model(plan), ProjectionShape(plan.dimension, "triangular")
        free = np.setdiff1d(np.arange(plan.dimension), plan.numbers.fixed)
        projection, slope, belief, loss = yield from whiten(plan, weights, free)
        message = {**shape.message(projection), "slope": np.array([slope])} | (loss.told() if loss.parts else {})
        unit, used = loss.information_bound, np.append(free, plan.dimension + np.arange(loss.parts))
        curvature = _matrix((yield from total("curvature", **message)), used)
        squares = _matrix((yield from total("squared-slopes", **message)), used)
        gradient = yield from total("gradient", **message)
        sums = Sums(
            projection=with_parts(shape.matrix(message)[:, free], loss.parts),
            curvature=unit * curvature,
            squares=slope**2 * squares,
            gradient=slope * gradient[used],
            curvature_noise=unit * sum_noise(plan, "curvature"),
            squares_noise=slope**2 * sum_noise(plan, "squared-slopes"),
            gradient_noise=slope * sum_noise(plan, "gradient"),
            belief=belief,
        )
        return Solution(weights, model=sums)


def whiten(plan: Plan, weights: Array, free: Integers) -> Asking[tuple[Array, float, Belief | None, Loss]]:
    """(P, G, what is believed, the loss with its rates): how rows are whitened and cut, and slopes.

    It follows from the Gram matrix, of numbers from residuals too. Both cuts are wider while the noise stays below what
    sampling does to the gradient. So they vanish as the signal grows, and with them what they do to the target. They
    stay so narrow that the size of the squared slopes, over all directions, is known to a tenth, and that the curvature
    stands out of its noise. Counts and amounts lie to one side: to cut slopes moves their mean, to cut rows does not.
    So rows are cut, and slopes less.
    """
    if not plan.has("gram"):
        return np.eye(plan.dimension), 1.0, None, plan.scaled_loss
    triangle, parts = (yield from total("gram")), None
    gram = _matrix(triangle, free) / plan.records
    if plan.scaled_loss.parts:
        first = _matrix(triangle, np.append(free, plan.features))[:-1, -1] / plan.records
        parts = yield from at_risk(plan, gram, first, weights)
        gram = parts.gram
    moments, residual = rule.of_gram(gram, sum_noise(plan, "gram") / plan.records), 0.0
    if plan.has("residual"):
        mean = float((yield from total("residual", weights=weights))[0]) / plan.records
        residual = max(mean, 0.0) + sum_noise(plan, "residual") / plan.records
    # Directions whose mean square the noise hides are stretched no more than those at its level.
    q = 1.0 / np.maximum(moments.values, moments.hidden)
    units, d = _units(plan, residual), plan.dimension
    steepest, size = units.steepest, units.tolerance * math.sqrt(plan.records)
    hidden = units.loss.information_bound * sum_noise(plan, "curvature") * math.sqrt(2 * d)
    clear, usual = math.sqrt(units.curvature * plan.records / (2 * hidden)), math.sqrt(float(q @ moments.values))
    one_sided = isinstance(plan.scaled_loss, LogMeanLoss)
    longer = min(max(clear, LENGTHS[0] * usual), LENGTHS[not one_sided] * usual)
    start = Clips(longer, min(steepest, REACH * units.slope))
    known = size * math.sqrt(KNOWN[one_sided] * math.sqrt(d) / sum_noise(plan, "squared-slopes"))
    allowed = min(size / sum_noise(plan, "gradient"), known)
    growth = max(1.0, allowed / (start.cut * start.slope))
    steeper = min(steepest / start.slope, growth if one_sided else math.sqrt(growth))
    longest = min(max(start.cut, clear / 2), math.sqrt(q.max()))
    cut, projection = min(start.cut * growth / steeper, longest), np.zeros((d, d))
    named = np.isin(free, plan.numbers.named) if plan.numbers.named else np.ones(len(free), dtype=np.bool_)
    square = White(moments, q / cut**2, units).matrix if named.all() else shared_out(moments, q, named) / cut
    projection[np.ix_(free, free)] = square
    believed = _believed(plan, moments, units, square, free)
    if parts is not None:
        projection[-1, free] = -parts.centre @ square
        return projection, start.slope * steeper, parts.believed(believed), parts.loss
    return projection, start.slope * steeper, believed, plan.scaled_loss


def _units(plan: Plan, residual: float) -> Units:
    """By what the fit has found, else by residuals; `tolerance` is the deviation of a slope."""
    if isinstance(plan.scaled_loss, LogMeanLoss):
        slope, steepest, variance, curvature, spread, *_ = plan.scaled_loss.sizes(plan.bounds.label_high or 1.0)
        return Units(slope, steepest, variance, curvature, math.sqrt(spread * curvature), plan.scaled_loss)
    units = Units.of(plan.scaled_loss, KnownLabels(residual))
    return replace(units, steepest=units.loss.lipschitz(), tolerance=units.slope)


def shared_out(moments: Moments, q: Array, named: NDArray[np.bool_]) -> Array:
    """P for whitened rows of the same mean length, a share of it in directions that these weights need.

    A weight is estimated along its row of the whitening W; where k are asked for the noise of sqrt d is that of sqrt k.
    Their shares are those of the least sum of variances. The rest is for all columns, as without names.
    """
    white = moments.vectors * np.sqrt(q)
    ways = white[named] / np.linalg.norm(white[named], axis=1)[:, None]
    values, vectors = np.linalg.eigh(ways.T @ ways)
    wanted = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    squares = q * moments.values
    values, vectors = np.linalg.eigh(
        NAMED * float(squares.sum() / (np.diag(wanted) @ squares)) * wanted + (1 - NAMED) * np.eye(len(q))
    )
    return np.asarray(np.linalg.qr((white @ (vectors * np.sqrt(values))).T, mode="r")).T


def _believed(plan: Plan, moments: Moments, units: Units, square: Array, free: Integers) -> Belief:
    """What `OneStep` believes: scores of at most BELIEVED times the variance that the fit begins with."""
    root = (moments.vectors * np.sqrt(moments.values)).T @ square
    constant = (free == plan.features).astype(np.float64)
    size = BELIEVED * units.variance
    distance = constant * (size / plan.preparation.intercept_entry**2 if plan.fit_intercept else 0.0)
    noise = sum_noise(plan, "gram") / plan.records
    return Belief(root.T @ root, noise, (1 - constant) * BELIEVED * rule.prior(moments, units), distance)


def _matrix(triangle: Array, used: Integers) -> Array:
    size = math.isqrt(2 * len(triangle))
    return np.asarray(GramMatrix(size).matrix(triangle)[np.ix_(used, used)])


def _fitted_queries(problem: Problem, weights: Array) -> Iterator[Query]:
    loss = problem.scaled_loss
    if problem.private:
        yield GramMatrix(problem.dimension)
        if loss.kind == "regression":
            yield ResidualSum(problem.dimension)
    if isinstance(loss, Hazard):
        if problem.private:
            yield from (EventCounts(loss.periods), RiskSums(loss, problem.dimension))
        yield from (PeriodCurvature(weights, loss), PeriodSquares(weights, loss), PeriodGradient(weights, loss))
    else:
        yield from (FittedCurvature(weights, loss), SquaredSlopes(weights, loss), FittedGradient(weights, loss))


OF_GRAM = 0.15  # by columns: its share of mu^2; the gradients have the rest, as much each
MIDDLE = 1  # gradients at the model for each that is a step away: of 2 d a half of what is for gradients
FINE, COARSE = 0.5, 1.0  # steps, in deviations of a score: a finer one is nearer to a derivative, and noisier
CLEAR = 0.5  # the most that the noise may have of the curvature for the finer step


class ColumnsStandardErrorsNumbers(StandardErrorsNumbers):
    """Of a plan whose gradients are of clipped rows."""

    clips_rows: ClassVar[bool] = True


class ColumnsStandardErrors(PrivateStandardErrors):
    """The same over secure columns, by gradients alone: A e_j = (g(w + h P e_j) - g(w - h P e_j)) / 2h.

    The Gram matrix is opened once, the gradient 2 d times at w and twice along each direction of P. S is A, as where
    odds are right, so that intervals are not robust.

    Guarantee: `GramMatrix` and `WholeGradient` carry the bounds; mu^2 is the sum of their (sensitivity / std)^2 over
    all openings, each charged (`proof.md`).
    """

    form: ClassVar[str] = "columns"
    title: ClassVar[str] = "standard errors over secure columns: gradients at a released model and around it"
    splits = ()
    secure = ("columns",)
    private: ClassVar[bool | None] = True
    weighted: ClassVar[bool] = False
    numbers: ClassVar[type[Numbers]] = ColumnsStandardErrorsNumbers

    @classmethod
    def check_loss(cls, loss: Loss) -> None:
        """Only of odds that are right is S the curvature."""
        super().check_loss(loss)
        if loss.name != "logistic":
            raise InputError(f"standard errors by columns are for the logistic loss, and not for {loss.name!r}.")

    def design(self, problem: Problem, options: Start) -> Design:
        self.check_loss(problem.scaled_loss)
        gram, gradient = GramMatrix(problem.dimension, problem.row_square), WholeGradient(problem)
        count = (1 + MIDDLE) * 2 * (problem.dimension - len(options.fixed))
        first = Release.at_mu(gram, 0, 1, math.sqrt(OF_GRAM) * problem.mu, problem.relation)
        release = Release.at_mu(gradient, 1, count, math.sqrt(1 - OF_GRAM) * problem.mu, problem.relation)
        step = ring.finest_step(problem, release)
        numbers = ColumnsStandardErrorsNumbers(weights=tuple(options.weights.tolist()), fixed=options.fixed)
        releases = (first, release.model_copy(update={"dropped": 0, "step": step}))
        return Design(rounds=1 + count, numbers=numbers, releases=releases)

    def queries(self, plan: Plan, _party: str) -> tuple[Query, ...]:
        public_model(plan)  # refused if it is for other rows
        return GramMatrix(plan.dimension, plan.row_square), WholeGradient(plan)

    def coordinate(self, plan: Plan) -> Coordination:
        """Whiten, then gradients at the model and on both sides of it along each direction, as the solution's model."""
        weights, free = public_model(plan), np.setdiff1d(np.arange(plan.dimension), plan.numbers.fixed)
        gram = _matrix((yield from total("gram")), free) / plan.records
        around = Around.of(plan, free, rule.of_gram(gram, sum_noise(plan, "gram") / plan.records))
        spread = math.hypot(math.sqrt(max(float(weights[free] @ gram @ weights[free]), 0.0)), around.step)
        level = ring.slope_level(plan.scaled_loss, 1.0, spread)
        table = {"level": np.array([level]), "chances": slope_table(plan, level)}
        first, gradient, times = around.told(), np.zeros(len(free)), 2 * MIDDLE * len(free)
        for _ in range(times):
            gradient += (yield from total("gradient", weights=weights, **table, **first))[free] / (WHOLE * times)
            first = {}
        curvature = np.zeros((len(free), len(free)))
        for j, way in enumerate(around.move * around.projection.T):
            for sign in (1.0, -1.0):
                asked = total("gradient", weights=weights + sign * way, **table)
                curvature[j] += sign * (yield from asked)[free] / (2 * WHOLE * around.move)
        return Solution(weights, model=around.sums(plan, (curvature + curvature.T) / 2, gradient))


@dataclass(frozen=True)
class Around:
    """P for rows of length 1 where they are clipped, and how far from a model gradients are asked, by released values.

    Rows are cut at three times their usual length, and later where the noise is below what sampling does.
    """

    moments: Moments
    units: Units
    whole: Integers  # P as it is told
    projection: Array  # in units of rows, a column for each direction
    cut: float
    noise: float  # of a gradient, in units of what a row of length 1 adds at most
    bits: float  # the variance of what bits add to an entry of a gradient
    step: float  # of scores, in their deviations

    @classmethod
    def of(cls, plan: Plan, free: Integers, moments: Moments) -> Around:
        q = 1.0 / np.maximum(moments.values, moments.hidden)
        units, d, noise = Units.of(plan.scaled_loss, KnownLabels(0.0)), len(q), sum_noise(plan, "gradient") / WHOLE
        usual, longest = math.sqrt(float(q @ moments.values)), math.sqrt(float(q.max()))
        allowed = units.slope * math.sqrt(2 * MIDDLE * d * plan.records) / noise
        white = White(moments, q, units)
        cut = min(max(LENGTHS[1] * usual, allowed), longest * math.sqrt(plan.row_square))
        cut = least_clip(plan, white, cut, longest)
        whole = np.zeros((plan.dimension, plan.dimension), dtype=np.int64)
        whole[np.ix_(free, free)] = whole_projection(plan, white, cut)
        projection = np.asarray(whole[:, free] * 2.0 ** (ring.ROW_BITS - ring.exponent_of(plan) // 2 - 1), np.float64)
        size = units.curvature * plan.records / cut**2  # of an entry of the curvature
        found = cls(moments, units, whole, projection, cut, noise, size * usual**2 / d, FINE)
        clear = found.curvature_noise * math.sqrt(2 * d) <= CLEAR * size
        return found if clear else replace(found, step=COARSE)

    @property
    def move(self) -> float:
        """The step in the coordinates of P."""
        return self.step * self.cut

    @property
    def curvature_noise(self) -> float:
        return math.hypot(self.noise, math.sqrt(self.bits)) / (math.sqrt(2) * self.move)

    def told(self) -> dict[str, Integers]:
        return {"projection": self.whole[np.tril_indices(len(self.whole))]}

    def sums(self, plan: Plan, curvature: Array, gradient: Array) -> Sums:
        """Bits of slopes vary as labels do: their share of the variance of a mean of gradients is 1 / times."""
        times, used = 2 * MIDDLE * len(gradient), np.abs(self.projection).any(axis=1)
        return Sums(
            projection=self.projection,
            curvature=curvature,
            squares=(1 + 1 / times) * curvature,
            gradient=gradient,
            curvature_noise=self.curvature_noise,
            squares_noise=0.0,
            gradient_noise=self.noise / math.sqrt(times),
            belief=_believed(plan, self.moments, self.units, self.projection[used], np.flatnonzero(used)),
        )


def slope_table(plan: Plan, level: float) -> Integers:
    """Chances of bits whose means, after scores are rounded to levels, are the slopes: rounding adds nothing."""
    means = ring.slope_chances(plan.scaled_loss, 1.0, level).reshape(2, -1) / 2.0**ring.CHANCE_BITS
    return ring.chances_of(sharpened(means, rounding_of(plan)).reshape(1, -1))


FORMS: tuple[Algorithm, ...] = (PrivateStandardErrors(), ColumnsStandardErrors())
