"""`whitened` over secure columns: the text of one place, with rows that nobody has whole."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms import NEWTON_FEATURES
from sottovoce.algorithms.base import Array, Asking, NoNumbers, total
from sottovoce.algorithms.whitened.counts import PrivateCounts, largest
from sottovoce.algorithms.whitened.private import PrivateWhitened, mean_of
from sottovoce.algorithms.whitened.rule import Clips, Descent, FittedScore, Units, White
from sottovoce.data.matrix import shrink_slopes
from sottovoce.errors import InputError
from sottovoce.gate.query import MessageArrays, Query
from sottovoce.losses import KnownLabels, LogMeanLoss, Weighted
from sottovoce.plan import Design, Numbers, Plan, Problem
from sottovoce.queries import joint
from sottovoce.queries.sums import GramMatrix, ProjectionShape
from sottovoce.secure import ring
from sottovoce.solvers import Whitened

WHOLE = ring.MOST_FACTOR / 2.0**ring.FACTOR_BITS  # what a row of length C adds to a gradient, of 1
BITS = 0.8  # variance of what the bits of a rescale of classes add, for each record
LABELS = 1.25  # deviations of a label for each mean absolute residual


class ColumnsWhitened(PrivateWhitened):
    """Moments, whiten, descend, rescale, as in one place; rows are whitened and clipped within the secure products.

    Slopes are single bits, the factor that clips a row has 5 bits, and numbers have no rescale.

    Guarantee: every release has the sensitivity of one place, 31/32 of it the gradients, and mu^2 is the sum of their
    (sensitivity / std)^2; all else is a function of releases and public numbers (`proof.md`).
    """

    form: ClassVar[str] = "columns"
    title: ClassVar[str] = "whitened descent over secure columns: moments, gradients of whitened rows, a rescale"
    splits = ()
    secure = ("columns",)
    asks: ClassVar[tuple[type[Query], ...]] = (Query,)
    rescales: ClassVar[int] = 6
    options: ClassVar[tuple[str, ...] | None] = ("rounds",)
    numbers: ClassVar[type[Numbers]] = NoNumbers
    ordinary: float | None = None  # of counts: the slope of one as far from the mean as they are on average

    def design(self, problem: Problem, options: Whitened) -> Design:
        """As in one place, with gradients on a grid that leaves room in a word."""
        if problem.features > NEWTON_FEATURES:
            raise InputError(
                f"solver='whitened' over columns needs the products of every two of them: {problem.features} features "
                f"are more than {NEWTON_FEATURES}; choose fewer columns, or solver='gradient'."
            )
        design = super().design(problem, options)
        releases = []
        for release in design.releases:  # with all bits; of gradients the grid by which the clip is a power of two
            step = ring.finest_step(problem, release) if release.query == "gradient" else release.step
            releases.append(release.model_copy(update={"dropped": 0, "step": step}))
        return design.changed(releases=tuple(releases))

    def queries(self, plan: Problem, party: str) -> tuple[Query, ...]:
        loss, constant = plan.scaled_loss, plan.fit_intercept
        found: list[Query] = [GramMatrix(plan.dimension, plan.row_square)]
        if loss.kind == "regression":
            residuals = joint.HeldResiduals(plan, party, plan.dimension)
            found += [joint.HeldLabels(plan, party), residuals] if constant else [residuals]
        if isinstance(loss, Weighted):
            found.append(joint.HeldWeights(plan, party, loss))
        found += [joint.WholeLength(plan), joint.WholeGradient(plan)]
        if loss.kind != "regression":
            found += [joint.JointScores(plan), joint.JointSquares(plan)] if constant else [joint.JointSquares(plan)]
            found.append(joint.ScaleLookup(plan))
        return tuple(found)

    def noise(self, plan: Plan, query: str, clips: Clips | None = None) -> float:
        """In units of what a record adds, of gradients 31/32.

        In the rescale bits make noise of their own, and with clips each entry has its own bound.
        """
        noise = super().noise(plan, query)
        if query != "rescale":
            return noise / (WHOLE if query == "gradient" else 1.0)
        length = 1.0
        if clips is not None:
            length = float(np.linalg.norm(np.array([1.0, 1.0 / max(1.0, clips.cut)])[: 1 + plan.fit_intercept]))
        bits = BITS if self.ordinary is None else 0.0  # where wider clips make fewer bits, these set no limit
        if self.ordinary is not None and clips is not None:
            bits = min(1.0, self.ordinary / clips.slope)
        return math.hypot(noise * length, math.sqrt(bits / plan.release("rescale").count / plan.records))

    def mean_length(self, plan: Plan, white: White, radius: float) -> Asking[float]:
        """Of whitened rows, in units of the radius: which is twice the clip that is told."""
        half = least_clip(plan, white, radius / 2, float(np.linalg.norm(white.matrix, 2)))
        triangle = whole_projection(plan, white, half)[np.tril_indices(plan.dimension)]
        mean = yield from mean_of(plan, "length", projection=triangle)
        return mean * 2 * half / radius

    def clips(self, plan: Plan, white: White) -> tuple[Clips, float]:
        """And what they leave of a row, on average: the factor is by levels, from below.

        Bits of slopes up to G cost G^2 size / (N T k) of the loss, of counts G |l'|. So for numbers G is widened while
        that is within the tolerance, and C by what is left.
        """
        clips, _ = super().clips(plan, white)
        units, longest, slope = white.units, math.sqrt(white.q.max()), clips.slope
        if units.loss.kind != "classification":
            most = units.tolerance * plan.records * plan.rounds * units.curvature / float(white.squares.sum())
            widest = most / ordinary(units) if units.loss.kind == "count" else math.sqrt(most)
            slope = min(slope, max(units.slope, widest))
        cut = max(clips.cut, min(clips.cut * clips.slope / slope, longest))
        clips = Clips(least_clip(plan, white, cut, longest), slope)
        return clips, mean_factor(white.length / clips.cut)

    def gradients(self, plan: Plan, query: str, descent: Descent, clips: Clips, message: MessageArrays) -> Asking[None]:
        """Scores are looked up in tables of slopes; P is sent in the first round."""
        if query == "rescale":
            yield from self.rescale_gradients(plan, descent, clips, message)
            return
        white, loss, start = cast("White", descent.white), descent.units.loss, np.zeros(plan.dimension)
        triangle = whole_projection(plan, white, clips.cut)[np.tril_indices(plan.dimension)]
        first: dict[str, NDArray[Any]] = {"projection": triangle}
        constant, offset = plan.preparation.intercept_entry, float(message["offset"][0])
        if constant and descent.units.loss.kind == "regression":  # of counts it is in the table
            start[-1] = offset / constant
        for _ in range(descent.rounds):
            spread = math.sqrt(float(descent.squares @ descent.point**2))  # of what slopes are looked up at
            if loss.kind == "regression":  # residuals
                spread = math.hypot(spread, LABELS * descent.units.slope)
            level = ring.slope_level(loss, clips.slope, spread)
            weights = start + white.matrix @ descent.along_columns(descent.point)
            told = {"weights": weights, "level": np.array([level])}
            if loss.kind == "count":
                told |= count_table(plan, descent.units, clips.slope, level, offset)
            else:
                told["chances"] = ring.slope_chances(loss, clips.slope, level)
            answer = yield from total(query, **told, **first)
            descent.step(descent.along_directions(answer) * (clips.cut * clips.slope / WHOLE / plan.records))
            first = {}

    def rescale_gradients(self, plan: Plan, descent: Descent, clips: Clips, message: MessageArrays) -> Asking[None]:
        """Gradients of the slope and the intercept: bits of the mean l'(a t + b, y) (t, 1) / max(|(t, 1)|, C)."""
        size, loss = len(descent.point), descent.units.loss
        weights = np.ascontiguousarray(ProjectionShape(plan.dimension, "vectors", size).matrix(message)[:, 0])
        bounds = np.array([1.0, 1.0 / max(1.0, clips.cut)])[:size]  # of the entries of a row (t, 1) that is clipped
        scales = np.floor(bounds / np.linalg.norm(bounds) * 2.0**ring.UNIT_BITS).astype(np.int64)
        told = {"nodes": section_labels(descent.units)} if loss.kind == "count" else {}
        labels = told.get("nodes", np.array([1.0, -1.0]))
        levels = ring.scores_at((ring.WIDE if told else ring.LEVELS) // len(labels), joint.ScaleLookup.level)
        rounding = rounding_of(plan)
        rows = np.column_stack([levels, np.ones_like(levels)])[:, :size]
        shares = (rows / np.maximum(np.linalg.norm(rows, axis=1), clips.cut)[:, None] / bounds).T
        for _ in range(descent.rounds):
            scores = rows @ descent.point + message["offset"][0]
            means = list[Array]()
            for label in labels:
                slopes = shrink_slopes(loss, clips.slope, scores, np.full(len(scores), label))
                means.append(sharpened(shares * slopes, rounding))
            wanted = np.hstack(means)
            chances = ring.chances_of(np.vstack([wanted, -wanted]) if told else (1 + wanted) / 2)
            answer = yield from total("rescale", weights=weights, chances=chances, scales=scales, **told)
            descent.step(answer * bounds * 2.0**ring.UNIT_BITS / scales * (clips.cut * clips.slope / plan.records))


class ColumnsPeople(ColumnsWhitened):
    """The same over people: a record of a person with n of them weighs 1 / n in every sum.

    Guarantee: as of records, in all records of a person together: their weights add up to 1 at most (`proof.md`). All
    parties know how many records each person has.
    """

    form: ClassVar[str] = "columns-people"
    title: ClassVar[str] = "whitened descent over secure columns, over people with several records"
    people: ClassVar[bool | None] = True

    def queries(self, plan: Problem, party: str) -> tuple[Query, ...]:
        """With the sum of the weights second: what sums are divided by."""
        _, *others = super().queries(plan, party)
        return joint.PeopleGram(plan.dimension, plan.row_square), joint.HeldAmounts(plan, party), *others


class ColumnsCounts(ColumnsWhitened, PrivateCounts):
    """Tables have a section for each of 16 labels, to two of which a label is rounded, at random: so slopes are any.

    Guarantee: as of numbers, and one more number of the holder; tables and labels told are public (`proof.md`).
    """

    form: ClassVar[str] = "columns-counts"
    title: ClassVar[str] = "whitened descent over secure columns for counts and positive amounts"
    rescales: ClassVar[int] = PrivateCounts.rescales  # as many as in one place: the mean may be far off where it starts

    def queries(self, plan: Problem, party: str) -> tuple[Query, ...]:
        gram, *others = super().queries(plan, party)
        residuals = joint.HeldCountResiduals(plan, party, plan.dimension)
        return gram, joint.HeldCounts(plan, party, largest(plan)), residuals, *others

    def slope_and_shift(
        self, plan: Plan, score: FittedScore, at: tuple[float, float, Array, float], units: Units, query: str
    ) -> Asking[Array]:
        """As of classes, with slopes clipped where the variance of their bits, G |l'|, is within the tolerance."""
        known, size = copy.copy(self), 1 + plan.fit_intercept
        known.ordinary = ordinary(units)
        most = 2 * units.rescale * units.tolerance * units.curvature / size**2 * plan.records
        wide = max(units.slope, most * plan.release(query).count / known.ordinary)
        units = replace(units, steepest=min(units.steepest, wide))
        return (yield from super(ColumnsCounts, known).slope_and_shift(plan, score, at, units, query))


def count_table(plan: Plan, units: Units, most: float, level: float, offset: float) -> dict[str, NDArray[Any]]:
    """What is told of slopes cut at `most`: labels, and for each the chances of t - t' at levels around the start.

    Where most slopes are near 0, as of rare counts, so are most of these.
    """
    nodes, scores = section_labels(units), offset + ring.scores_at(ring.WIDE // ring.SECTIONS, level)
    slopes = [shrink_slopes(units.loss, most, scores, np.full(len(scores), node)) for node in nodes]
    wanted = sharpened(np.array(slopes), rounding_of(plan)).reshape(1, -1)
    return {"nodes": nodes, "chances": ring.chances_of(np.vstack([wanted, -wanted]))}


def section_labels(units: Units) -> Array:
    """The labels that a table has sections for."""
    return cast("LogMeanLoss", units.loss).nodes(units.known or KnownLabels(), ring.SECTIONS)


def ordinary(units: Units) -> float:
    """The slope of a count that is as far from the mean as counts are on average."""
    known = units.known or KnownLabels()
    return abs(float(units.loss.derivative(np.log([known.mean]), np.array([known.mean + known.residual]))[0]))


def whole_projection(plan: Plan, white: White, cut: float) -> NDArray[np.int64]:
    """P in the unit in which rows of the length `cut` have the length C."""
    unit = cut * 2.0 ** (ring.ROW_BITS - ring.exponent_of(plan) // 2 - 1)
    return np.rint(white.matrix / unit).astype(np.int64)


def least_clip(plan: Plan, white: White, cut: float, longest: float) -> float:
    """The least clip, from `cut` on, with which no row is longer than the levels of its length reach."""
    exponent, square = ring.exponent_of(plan), plan.row_square
    clip = max(cut, longest * math.sqrt(square / ring.LONGEST))
    while not ring.fits_clip(whole_projection(plan, white, clip), exponent, square):
        clip *= 1.01
    return clip


def rounding_of(plan: Plan) -> float:
    """Half of the variance of what rounding to levels adds to a score, in levels."""
    return 1 / 12 + (1 + len(plan.parties)) / (24 * 4**ring.FINE)


def sharpened(values: Array, rounding: float) -> Array:
    """What a table has at its levels so that rounding to them, which adds a share of second differences, adds 0."""
    ends = np.concatenate([values[:, :1], values, values[:, -1:]], axis=1)
    return np.asarray(values - rounding * np.diff(ends, 2, axis=1))


def mean_factor(length: float) -> float:
    """F / 31 of a row that is so many times as long as the clip, on average over the coins of its level."""
    found = ring.factors()
    level = min(ring.CLIP_LEVELS * length**2, 13.5 * ring.CLIP_LEVELS)
    return float(np.interp(level, np.arange(len(found)), found)) / ring.MOST_FACTOR
