"""`whitened` over columns whose products are sealed: each party whitens and cuts its own part of a row."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

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
from sottovoce.algorithms.whitened import block_rule, rule
from sottovoce.algorithms.whitened.block_rule import BlockDescent, Centring, Coordinates, Slope, WhiteBlocks
from sottovoce.algorithms.whitened.private import ROUNDS, Asking, Run
from sottovoce.algorithms.whitened.rule import Clips, Descent, Moments, Score, Units
from sottovoce.data.block import Block
from sottovoce.door.query import Query
from sottovoce.errors import InputError
from sottovoce.plan.plan import Design, Numbers, Plan
from sottovoce.plan.problem import Problem, Split
from sottovoce.plan.release import Release
from sottovoce.queries.blocks import (
    BlockGradient,
    Blocks,
    HeldLabels,
    HeldResiduals,
    JointScores,
    JointSquares,
    ScaleLookup,
    SquaredLengths,
    on_grid,
)
from sottovoce.queries.gram import GramMatrix
from sottovoce.queries.joint import known_part
from sottovoce.solvers import Whitened
from sottovoce.solvers.auto import NEWTON_FEATURES

Array = NDArray[np.float64]

RESCALES = 6  # gradients of the slope and the intercept; 12 tie


class BlockNumbers(Numbers, solver="whitened", form="blocks"):
    """None: the noise of its releases says all."""


class BlockWhitened(Algorithm):
    """Moments, whiten by blocks, descend, rescale.

    1. The Gram matrix X'X of all columns is opened once.
    2. Each party centres and whitens its own columns by a public matrix P_b, and cuts its part of a row.
    3. Gradients sum_i r_i z_i, z_i all parties' parts, r_i the slope at the joint score of the row as it is. What they
       say of all columns together is taken apart by the whole opened matrix.
    4. For classes two numbers more, the slope and the intercept of the score.

    Guarantee: every release has sensitivity 1 (replace-one: 1, sqrt 2 or 2), and mu^2 is the sum of their
    (sensitivity / std)^2; all else is a function of releases and public numbers (`proof.md`).
    """

    name: ClassVar[str] = "whitened"
    form: ClassVar[str] = "blocks"
    title: ClassVar[str] = (
        "whitened descent by blocks of columns: sealed products, gradients of whitened parts, a rescale"
    )
    splits: ClassVar[tuple[Split, ...]] = ()
    sealed: ClassVar[tuple[Split, ...]] = ("columns",)
    needs: ClassVar[tuple[Need, ...]] = (CONVEX,)

    def design(self, problem: Problem, options: Whitened) -> Design:
        """Shares of mu^2 by the signal, as in one place; numbers have no rescale."""
        if problem.features > NEWTON_FEATURES:
            raise InputError(
                f"solver='whitened' over columns needs the products of every two of them: {problem.features} features "
                f"are more than {NEWTON_FEATURES}; choose fewer columns, or solver='gradient'."
            )
        queries = tuple(_queries(problem, problem.names[0]))
        rounds = limited("rounds", given(options.rounds, ROUNDS), 2, MOST_ROUNDS - 64)
        counts = {"gradient": rounds, "rescale": RESCALES}
        names = [query.name for query in queries]
        one, rescale, rest = rule.shares(problem.signal, len(set(names) - {"gram", *counts}), rule.GRAM)
        rest += 0.0 if "rescale" in names else rescale
        shares = {"gram": rule.GRAM, "gradient": rest, "rescale": rescale}
        releases, first = list[Release](), 0
        for query in queries:
            count, mu = counts.get(query.name, 1), math.sqrt(shares.get(query.name, one)) * problem.mu
            releases.append(Release.at_mu(query, first, count, mu, problem.relation))
            first += count
        return Design(rounds=rounds, numbers=BlockNumbers(), releases=tuple(releases))

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:
        """In the order in which they are asked."""
        return tuple(_queries(plan, party))

    def remember(self, plan: Plan, rows: Block) -> dict[str, Any]:  # noqa: ARG002
        """The whitened parts of the rows, once P_b are told."""
        return {}

    def coordinate(self, plan: Plan) -> Coordination:
        """Moments, whiten by blocks, descend, rescale."""
        run = BlockRun(plan)
        moments = yield from run.moments()
        units, start = yield from run.units()
        white = yield from run.blocks(moments, units)
        weights = yield from run.descend_blocks(white, start)
        if plan.has("rescale"):
            return (yield from run.rescaled(white, weights))
        return Solution(plan.scaled_regulariser.prox(weights, 0.0))


def _queries(problem: Problem, party: str) -> Iterator[Query]:
    """What is asked, in order."""
    constant = problem.fit_intercept
    yield GramMatrix(problem.dimension)
    if problem.scaled_loss.kind == "regression":
        labels, residuals = HeldLabels(problem, party), HeldResiduals(problem, party)
        yield from (labels, residuals) if constant else (residuals,)
    yield SquaredLengths(problem, party)
    yield BlockGradient(problem, party)
    if problem.scaled_loss.kind == "classification":
        yield from (JointScores(problem), JointSquares(problem)) if constant else (JointSquares(problem),)
        yield ScaleLookup(problem)


class BlockRun(Run):
    """The stages of a run. Noise is judged in the opened sum."""

    def noise(self, query: str, known: float = 1.0) -> float:
        """The standard deviation of a mean over the records, all rounds of the query taken as one."""
        release = self.plan.release(query)
        return release.std * math.sqrt(self.plan.noises(known) / release.count) / self.plan.records

    def units(self) -> Asking[tuple[Units, Array]]:
        """And where to start: for numbers at the mean label, in units of the mean absolute residual there."""
        start, residual, mean = np.zeros(self.plan.dimension), 0.0, 0.0
        if self.plan.has("label"):
            mean = yield from self.mean("label")
            mean /= 1 + 4 * self.noise("label") ** 2
            start[-1] = mean / self.constant
        if self.plan.has("residual"):
            found = yield from self.mean("residual", mean=np.array([mean]))
            residual = max(found, 0.0) + self.noise("residual")
        return Units.of(self.plan.scaled_loss, residual), start

    def blocks(self, moments: Moments, units: Units) -> Asking[WhiteBlocks]:
        """The parties say how long whitened parts are: that sets the clips."""
        blocks, parties = Blocks(self.plan), len(self.plan.parties)
        centring = Centring.of(moments, self.constant, self.plan.preparation.bits)
        white = WhiteBlocks.of(moments, units, centring, self.part_norms(), blocks)
        equal = known_part(self.plan, np.full(parties, 1 / parties))
        white = white.limited(self.noise("gradient", equal))
        told = blocks.told(white.matrices, centring.means)
        return white.measured((yield from self.mean("length", **told, radii=white.radii)))

    def part_norms(self) -> Array:
        """What bounds each block of a prepared row."""
        plan, scale = self.plan, float(np.max(self.plan.preparation.scale))
        columns, blocks = plan.bounds.columns(plan.features), Blocks(plan)
        found = [float(np.linalg.norm(columns[block])) for block in blocks.columns[: blocks.parties]]
        limits = plan.norms or (math.inf,) * blocks.parties
        norms = [scale * min(norm, limit) for norm, limit in zip(found, limits, strict=True)]
        return np.array([*norms, self.constant] if self.constant else norms)

    def descend_blocks(self, white: WhiteBlocks, start: Array) -> Asking[Array]:
        """The gradients of whitened parts, and the weights after them."""
        plan, blocks, units, regulariser = self.plan, Blocks(self.plan), white.units, self.plan.scaled_regulariser
        small = known_part(plan, blocks.shares(white.lengths))
        cuts, clips = white.clips(self.noise("gradient", small))
        noise = self.noise("gradient", known_part(plan, blocks.shares(cuts))) * clips.product
        left = np.minimum(1.0, cuts / white.lengths)
        along = Coordinates(white, left, rule.DAMPING * white.moments.hidden)
        mean_left = float(white.squares @ left / white.squares.sum())
        descent = BlockDescent(
            point=np.zeros(plan.dimension),
            squares=along.values,
            left=1.0,
            damping=0.0,
            prior=rule.prior(white.moments, units) / along.values,
            variance=units.variance,
            noise=noise,
            rounds=plan.rounds,
            units=units,
            penalised=lambda point, stiffness: along.penalised(point, stiffness, regulariser),
            mean_square=along.mean_square,
            spoiled=float(white.squares.sum()) * (noise / (units.curvature * mean_left)) ** 2,
        )
        slope, query, bits = Slope(units.loss, clips.slope), BlockGradient(plan, plan.names[0]), plan.preparation.bits
        every = {"cuts": cuts, **({"shift": np.array([slope.shift])} if query.classes else {})}
        for _ in range(plan.rounds):
            level = slope.level(math.sqrt(along.mean_square(descent.point)), query.words)
            nodes = slope.nodes(level, query.words, query.order, bits)
            told = {"weights": start + along.back @ descent.point, "nodes": nodes[None], "level": np.array([level])}
            answer = summed((yield Ask("gradient", {**told, **every})))
            descent.step(along.vectors.T @ answer * (clips.product / plan.records))
        return start + along.weights(descent.mean, descent.stiffness, regulariser)

    def rescaled(self, white: WhiteBlocks, weights: Array) -> Asking[Solution]:
        """The weights with the slope and the intercept that two numbers more say: as `rescale`, by look-ups."""
        plan, units, constant, regulariser = self.plan, white.units, self.constant, self.plan.scaled_regulariser
        score = Score(np.where(np.arange(plan.dimension) < plan.features, weights, 0.0), constant)
        intercept = float(weights[-1]) * constant
        mean, radius = score.expected(white.moments, intercept)
        if constant:
            found = yield from self.mean("score", weights=score.standardised(mean, radius))
            noise = self.noise("score", JointScores(plan).known_part(plan, {}))
            mean += radius * found / (1 + (rule.SPREAD * noise) ** 2)
        found = yield from self.mean("square", weights=score.standardised(mean, radius))
        unit = radius * rule.deviation(found - JointSquares(plan).dithers, self.noise("square"))
        query, size = ScaleLookup(plan), 1 + plan.fit_intercept
        noise = self.noise("rescale", query.known_part(plan, {}))
        clips = Clips(1.0, units.slope).widened(units, noise, size, rule.FAR)
        descent = Descent(
            point=np.array([unit, mean + intercept])[:size],
            squares=np.ones(size),
            left=rule.left_of(clips.cut, size),
            damping=0.0,
            prior=units.variance,
            variance=units.variance / 2,
            noise=noise * clips.product,
            rounds=RESCALES,
            units=units,
            penalised=lambda point, stiffness: score.penalised(point, stiffness, unit, regulariser),
        )
        levels = np.asarray(query.level * np.arange(query.words // 2) - query.shift, dtype=np.float64)
        for _ in range(RESCALES):
            nodes = block_rule.scale_nodes(units, clips, descent.point, levels)
            told = {"weights": score.standardised(mean, unit), "nodes": on_grid(nodes, plan.preparation.bits)}
            answer = summed((yield Ask("rescale", told)))
            descent.step(answer * (clips.product / plan.records))
        slope, *shift = score.penalised(descent.mean, descent.stiffness, unit, regulariser)
        rescaled = max(slope, 0.0) / unit * score.weights
        if constant:
            rescaled[-1] = (shift[0] - max(slope, 0.0) / unit * mean) / constant
        spread = (float(shift[0]) if constant else 0.0, float(max(slope, 0.0)))
        return Solution(regulariser.prox(rescaled, 0.0), spread=spread)
