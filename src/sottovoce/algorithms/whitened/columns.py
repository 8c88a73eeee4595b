"""`whitened` over secure columns: the text of one place, with rows that nobody has whole."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Ask, Solution, summed
from sottovoce.algorithms.whitened import rule
from sottovoce.algorithms.whitened.private import Asking, Columns, PrivateWhitened, Run
from sottovoce.algorithms.whitened.rule import Clips, Descent, Score, Units, White
from sottovoce.data.slopes import cut
from sottovoce.door.query import Query, Told
from sottovoce.errors import InputError
from sottovoce.losses import Weighted
from sottovoce.plan.plan import Design, Numbers, Plan
from sottovoce.plan.problem import Problem, Split
from sottovoce.plan.release import Release
from sottovoce.queries.gram import GramMatrix
from sottovoce.queries.joint import (
    HeldLabels,
    HeldResiduals,
    HeldWeights,
    JointScores,
    JointSquares,
    ScaleLookup,
    WholeGradient,
    WholeLength,
    look_up_told,
)
from sottovoce.queries.projected import Shape
from sottovoce.sealed.tables import FINE, LEVELS, chances_of, scores_at, slope_chances, slope_level
from sottovoce.sealed.words import (
    CLIP_LEVELS,
    FACTOR_BITS,
    LONGEST,
    MOST_FACTOR,
    ROW_BITS,
    UNIT_BITS,
    exponent_of,
    factors,
    finest_exponent,
    fits_clip,
    step_of,
)
from sottovoce.solvers import Whitened
from sottovoce.solvers.auto import NEWTON_FEATURES

Array = NDArray[np.float64]

WHOLE = MOST_FACTOR / 2.0**FACTOR_BITS  # what a row of length C adds to a gradient, of 1
BITS = 0.8  # variance of what the bits of a rescale add, for each record
LABELS = 1.25  # deviations of a label for each mean absolute residual


class ColumnsNumbers(Numbers, solver="whitened", form="columns"):
    """None: the noise of its releases says all."""


class ColumnsWhitened(PrivateWhitened):
    """Moments, whiten, descend, rescale, as in one place; rows are whitened and clipped within the secure products.

    Slopes are single bits, the factor that clips a row has 5 bits, and numbers have no rescale.

    Guarantee: every release has the sensitivity of one place, 31/32 of it the gradients, and mu^2 is the sum of their
    (sensitivity / std)^2; all else is a function of releases and public numbers (`proof.md`).
    """

    form: ClassVar[str] = "columns"
    title: ClassVar[str] = "whitened descent over secure columns: moments, gradients of whitened rows, a rescale"
    splits: ClassVar[tuple[Split, ...]] = ()
    sealed: ClassVar[tuple[Split, ...]] = ("columns",)
    numbers: ClassVar[type[Numbers]] = ColumnsNumbers
    rescales: ClassVar[int] = 6

    def design(self, problem: Problem, options: Whitened) -> Design:
        """As in one place, with gradients on a grid that leaves room in a word."""
        if problem.features > NEWTON_FEATURES:
            raise InputError(
                f"solver='whitened' over columns needs the products of every two of them: {problem.features} features "
                f"are more than {NEWTON_FEATURES}; choose fewer columns, or solver='gradient'."
            )
        design = super().design(problem, options)
        return design.changed(releases=tuple(_on_grid(problem, release) for release in design.releases))

    @classmethod
    def asks(cls) -> tuple[type[Query], ...]:
        return (Query,)

    def asked(self, problem: Problem, party: str) -> tuple[Query, ...]:
        """What is asked of a party, in order."""
        return tuple(_queries(problem, party))

    def run(self, plan: Plan) -> Run:
        """The stages."""
        return JointRun(plan)


def _queries(problem: Problem, party: str) -> Iterator[Query]:
    """What is asked, in order."""
    loss, constant = problem.scaled_loss, problem.fit_intercept
    yield GramMatrix(problem.dimension, problem.row_square)
    if loss.kind == "regression":
        labels, residuals = HeldLabels(problem, party), HeldResiduals(problem, party)
        yield from (labels, residuals) if constant else (residuals,)
    if isinstance(loss, Weighted):
        yield HeldWeights(problem, party, loss)
    yield WholeLength(problem)
    yield WholeGradient(problem)
    if loss.kind == "classification":
        yield from (JointScores(problem), JointSquares(problem)) if constant else (JointSquares(problem),)
        yield ScaleLookup(problem)


def _on_grid(problem: Problem, release: Release) -> Release:
    """With all of its bits, and of gradients the grid by which the clip is a power of two."""
    step = step_of(finest_exponent(problem, release)) if release.query == "gradient" else release.step
    return release.model_copy(update={"dropped": 0, "step": step})


class JointRun(Run):
    """The stages of a run over secure columns: what is told is other than in one place, what is made of it is not."""

    def noise(self, query: str) -> float:
        """In units of what a record adds, of gradients 31/32; in the rescale bits make noise of their own."""
        found = super().noise(query) / (WHOLE if query == "gradient" else 1.0)
        return math.hypot(found, self.noise_of_bits) if query == "rescale" else found

    @property
    def noise_of_bits(self) -> float:
        """Of those of the rescale."""
        return math.sqrt(BITS / self.plan.release("rescale").count / self.plan.records)

    def clipped_noise(self, query: str, clips: Clips) -> float:
        """Of a mean of gradients; in the rescale each entry has its own bound."""
        if query != "rescale":
            return super().clipped_noise(query, clips)
        length = float(np.linalg.norm(_bounds(clips, 1 + self.plan.fit_intercept)))
        return math.hypot(Run.noise(self, query) * length, self.noise_of_bits) * clips.product

    def projection(self, columns: Columns, cut: float) -> NDArray[np.int64]:
        """P in the unit in which rows of the length `cut` have the length C."""
        unit = cut * 2.0 ** (ROW_BITS - exponent_of(self.plan) // 2 - 1)
        return np.rint(columns.matrix / unit).astype(np.int64)

    def reaching(self, columns: Columns, cut: float, longest: float) -> float:
        """The least clip, from `cut` on, with which no row is longer than the levels of its length reach."""
        exponent, square = exponent_of(self.plan), self.plan.row_square
        found = max(cut, longest * math.sqrt(square / LONGEST))
        while not fits_clip(self.projection(columns, found), exponent, square):
            found *= 1.01
        return found

    def mean_length(self, columns: Columns, radius: float) -> Asking[float]:
        """Of whitened rows, in units of the radius: which is twice the clip that is told."""
        half = self.reaching(columns, radius / 2, float(np.linalg.norm(columns.matrix, 2)))
        mean = yield from self.mean("length", projection=_triangle(self.projection(columns, half)))
        return mean * 2 * half / radius

    def clips(self, white: White, columns: Columns) -> tuple[Clips, float]:
        """And what they leave of a row, on average: the factor is by levels, from below.

        Bits of slopes up to G cost G^2 size / (N T k) of the loss, whatever C is. So for numbers G is widened while
        that is within the tolerance, and C by what is left.
        """
        clips, _ = super().clips(white, columns)
        units, longest, slope = white.units, math.sqrt(white.q.max()), clips.slope
        if units.loss.kind == "regression":
            steps = self.plan.records * self.plan.rounds * units.curvature
            slope = min(slope, max(units.slope, math.sqrt(units.tolerance * steps / float(white.squares.sum()))))
        cut = max(clips.cut, min(clips.product / slope, longest))
        clips = Clips(self.reaching(columns, cut, longest), slope)
        return clips, mean_factor(white.length / clips.cut)

    def gradients(self, query: str, descent: Descent, columns: Columns, clips: Clips, told: Told) -> Asking[None]:
        """One after the other, each at the point that those before led to."""
        if query == "rescale":
            yield from self.rescales(descent, clips, told)
            return
        units, slope, every = descent.units, clips.slope, np.zeros(self.plan.dimension)
        first: dict[str, NDArray[Any]] = {"projection": _triangle(self.projection(columns, clips.cut))}
        if self.constant:
            every[-1] = told["offset"][0] / self.constant
        for _ in range(descent.rounds):
            level = slope_level(units.loss, slope, spread_of(descent, units))
            weights = every + columns.matrix @ columns.out(descent.point)
            said = {**look_up_told(weights, level), "chances": slope_chances(units.loss, slope, level), **first}
            answer = summed((yield Ask(query, said)))
            descent.step(columns.into(answer) * (clips.product / WHOLE / self.plan.records))
            first = {}

    def rescales(self, descent: Descent, clips: Clips, told: Told) -> Asking[None]:
        """Gradients of the slope and the intercept: bits of the mean l'(a t + b, y) (t, 1) / max(|(t, 1)|, C)."""
        size = len(descent.point)
        weights = np.ascontiguousarray(Shape(self.plan.dimension, "vectors", size).matrix(told)[:, 0])
        bounds = _bounds(clips, size)
        scales = np.floor(bounds / np.linalg.norm(bounds) * 2.0**UNIT_BITS).astype(np.int64)
        levels = scores_at(LEVELS // 2, ScaleLookup.level)
        rounding = 1 / 12 + (1 + len(self.plan.parties)) / (24 * 4**FINE)  # half of its variance, in levels
        rows = np.column_stack([levels, np.ones_like(levels)])[:, :size]
        shares = (rows / np.maximum(np.linalg.norm(rows, axis=1), clips.cut)[:, None] / bounds).T
        for _ in range(descent.rounds):
            scores = rows @ descent.point + told["offset"][0]
            slopes = [
                cut(descent.units.loss, clips.slope, scores, np.full(len(scores), label)) for label in (1.0, -1.0)
            ]
            means = np.hstack([sharpened(shares * each, rounding) for each in slopes])
            chances = chances_of((1 + means) / 2)
            answer = summed((yield Ask("rescale", {"weights": weights, "chances": chances, "scales": scales})))
            descent.step(answer * bounds * 2.0**UNIT_BITS / scales * (clips.product / self.plan.records))

    def rescale(self, white: White, start: Array, weights: Array) -> Asking[Solution]:
        """Of classes; numbers need none, and the moments say how their scores are spread."""
        if self.plan.has("rescale"):
            return (yield from super().rescale(white, start, weights))
        found = self.plan.scaled_regulariser.prox(weights, 0.0)
        score = Score(np.where(np.arange(self.plan.dimension) < self.plan.features, found, 0.0), self.constant)
        intercept = float(found[-1]) * self.constant
        mean, radius = score.expected(white.moments, intercept)
        return Solution(found, spread=(mean + intercept, radius / rule.SPREAD))


def sharpened(values: Array, rounding: float) -> Array:
    """What a table has at its levels so that rounding to them, which adds a share of second differences, adds 0."""
    ends = np.concatenate([values[:, :1], values, values[:, -1:]], axis=1)
    return np.asarray(values - rounding * np.diff(ends, 2, axis=1))


def mean_factor(length: float) -> float:
    """F / 31 of a row that is so many times as long as the clip, on average over the coins of its level."""
    found = factors()
    level = min(CLIP_LEVELS * length**2, 13.5 * CLIP_LEVELS)
    return float(np.interp(level, np.arange(len(found)), found)) / MOST_FACTOR


def spread_of(descent: Descent, units: Units) -> float:
    """The deviation of what slopes are looked up at: scores, or residuals."""
    scores = math.sqrt(float(descent.squares @ descent.point**2))
    return scores if units.loss.kind == "classification" else math.hypot(scores, LABELS * units.slope)


def _bounds(clips: Clips, size: int) -> Array:
    """Of the entries of a row (t, 1) that is clipped."""
    return np.array([1.0, 1.0 / max(1.0, clips.cut)])[:size]


def _triangle(matrix: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.asarray(matrix[np.tril_indices(len(matrix))])
