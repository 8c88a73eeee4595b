"""What the solvers along single coordinates share: steps, their public order, and the curvatures.

Columns are divided by their declared bounds, so that entries are at most 1. M_j = kappa (1/N) sum_i x_ij^2 is the
curvature along coordinate j, kappa the loss's; C_j = clip sqrt(M_j / kappa) bounds one record's part of a gradient.
"""

from __future__ import annotations

import functools
import math
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sottovoce.algorithms.base import SMOOTH, Algorithm, Array, Asking, Need, given, total
from sottovoce.data.block import Block, Layout
from sottovoce.data.bounds import LARGEST, SMALLEST, Bounds
from sottovoce.data.kernels import column_loops as kernels
from sottovoce.errors import InputError
from sottovoce.gate.query import Integers, Query, Reals, Round, Walk
from sottovoce.losses import Loss, coded
from sottovoce.losses.kernels import fill_slopes_from
from sottovoce.plan import Numbers, Plan, Problem
from sottovoce.privacy.events import Relation, either
from sottovoce.solvers import CD, GreedyCD

STILL = 1e-13  # without privacy: no coordinate moves by more than this share of the largest
LEAST = 1e-12  # a curvature counts for at least this share of its bound
TINY = 1e-90  # and without bounds for this much: a column of zeros has none
COMPILED = Need(
    lambda loss: loss.code is not None,
    f"serves the losses {', '.join(each.name for each in coded() if each.smooth)}, not {{!r}}",
)

Size = Annotated[float, Field(ge=SMALLEST, le=LARGEST)]


class StepNumbers(Numbers):
    """The length of a step, the clip, and the mean square of each column where that is public knowledge."""

    step: Size
    clip: Size
    squares: tuple[float, ...] = ()


class CoordinateAlgorithm(Algorithm):
    """Moves one coordinate at a time, or a few: its holders keep the scores of their records."""

    needs: ClassVar[tuple[Need, ...]] = (SMOOTH, COMPILED)
    layout: ClassVar[Layout] = "columns"
    curvature_share: ClassVar[float] = 0.1  # of mu^2, by default

    def remember(self, _plan: Plan, rows: Block) -> HeldScores:
        return HeldScores(rows)

    def known_squares(self, problem: Problem, options: CD | GreedyCD) -> tuple[tuple[float, ...], float]:
        """(the mean squares that the user declares to be public, the share of the budget that estimates them).

        The former in units of the columns' bounds.
        """
        declared, share = options.curvatures, options.curvature_share
        if declared is None:
            return (), given(share, self.curvature_share)
        if share:
            raise InputError(
                f"curvature_share={share!r}: curvatures are given, so nothing estimates them; leave out one."
            )
        squares = np.asarray(declared, dtype=np.float64)
        if squares.shape != (problem.features,):
            raise InputError(
                f"curvatures={declared!r} must be the mean square of each of the {problem.features} features, positive "
                "and public knowledge; leave it out to have it estimated with noise."
            )
        return tuple(map(float, squares * np.asarray(problem.preparation.scale) ** 2)), 0.0

    @staticmethod
    def estimates(plan: Plan) -> tuple[Query, ...]:
        """The squares of the columns, where they are estimated and not declared."""
        return (BoundedSquares(plan.bounds, plan.features),) if plan.has("curvatures") else ()

    def check_separable(self, problem: Problem) -> None:
        """Refuse a constraint set, whose prox mixes the coordinates."""
        try:
            problem.scaled_regulariser.by_coordinate(problem.dimension)
        except InputError as error:
            raise InputError(f"solver={self.name!r}: {error}") from None

    def curvatures(self, plan: Plan) -> Asking[Array]:
        """M_j from the released squares, from known ones, or from the declared bounds alone."""
        most = most_squares(plan.bounds, plan.features) / plan.features if plan.private else math.inf
        mean = np.full(plan.features, most)
        if plan.numbers.squares:
            mean = np.array(plan.numbers.squares)
        elif plan.has("curvatures"):
            squares = yield from total("curvatures")
            std = plan.noise_of("curvatures") * math.sqrt(plan.channel.variance)
            mean = shrunk(squares / plan.records, std / plan.records, most)
        curvatures = np.ones(plan.dimension)
        curvatures[: plan.features] = np.clip(mean, LEAST, 1.0) if plan.private else np.maximum(mean, TINY)
        return plan.scaled_loss.curvature_bound * curvatures


class HeldScores:
    """Xw of one holder for the weights it was last asked at. A row's score is a function of that row and of weights."""

    def __init__(self, rows: Block) -> None:
        self.weights = np.zeros(rows.dimension)
        self.values = np.zeros(len(rows))

    def follow(self, rows: Block, weights: Array) -> Array:
        """Move to other weights, by the columns whose weights changed."""
        changes = weights - self.weights
        if changes.any():
            rows.add_columns(changes, self.values)
            self.weights[:] = weights
        return self.values


class Moves:
    """The public part of a coordinate step: clips, step sizes and penalties by coordinate."""

    def __init__(self, plan: Plan, curvatures: Array) -> None:
        self.loss, numbers = plan.scaled_loss, plan.numbers
        self.roots = np.sqrt(curvatures)
        self.clip = np.minimum(numbers.clip * self.roots / math.sqrt(self.loss.curvature_bound), self.loss.lipschitz())
        self.steps = numbers.step / curvatures
        self.terms = plan.scaled_regulariser.by_coordinate(plan.dimension)
        self.records = float(plan.records)
        self.private = plan.private

    def length(self, move: Array) -> float:
        """max_j sqrt(M_j) |move_j|: it does not depend on the units of a feature."""
        return float(np.abs(self.roots * move).max())

    def replay(self, weights: Array, order: Integers, sums: Array, mean: Array, skipped: int) -> float:
        """Take the steps in place, add the iterates after `skipped` steps to `mean`; the largest M_j |move|."""
        sums = sums * self.clip[order] if self.private else sums
        return float(
            kernels.coordinate_replay(weights, order, sums, self.steps, *self.terms, self.records, mean, skipped)
        )


def at_weights(dimension: int) -> dict[str, Reals]:
    """Weights and curvatures. Any positive ones will do: the clip and the noise follow them alike."""
    return {"weights": Reals((dimension,)), "curvatures": Reals((dimension,), SMALLEST, LARGEST)}


def code_of(loss: Loss) -> int:
    """What the compiled loops call the loss."""
    if loss.code is None or not loss.smooth:
        raise InputError(f"loss={loss.name!r} has no compiled slopes.")
    return loss.code


def slopes(loss: Loss, scores: Array, labels: Array) -> Array:
    """l'(score_i, label_i), to the bit as the steps of a walk have them."""
    found = np.empty(len(scores))
    fill_slopes_from(code_of(loss), loss.parameter, scores, labels, 0, len(found), found)
    return found


class CoordinateWalk(Walk):
    """sum_i cut(l'_i x_ij / C_j, -1, 1) for one coordinate after another, each at the weights the last one led to.

    Guarantee: zero-out moves each by at most 1, replace-one by at most 2, whatever the weights and the C_j; so a walk
    of `length` steps has sensitivity sqrt(length), as one Gaussian release of all of them would.
    Edges: a null row adds 0, and so does a term that is no number. The terms are on a grid and their sum is exact.
    """

    name = "coordinates"
    title: ClassVar[str] = "gradients along coordinates, one after another"

    def __init__(self, dimension: int, length: int) -> None:
        self.dimension, self.length = dimension, length
        self.bound, self.rounding_entries = math.sqrt(length), float(length)
        self.takes = at_weights(dimension)

    def order(self, round: Round) -> Integers:
        """The next coordinates of the public order."""
        return visits(round.plan, (round.number - round.plan.release(self.name).first) * self.length, self.length)

    def walk(self, round: Round, noise: Integers | None, step: float) -> NDArray[Any]:
        """A holder that is alone takes the steps; one of several only says its sum and waits for the others'."""
        rows, order, moves = round.rows, self.order(round), Moves(round.plan, round.told["curvatures"])
        # Numbers of earlier messages are not in the label of a secure sum, and may not enter it by rounding either.
        memory = HeldScores(rows) if round.plan.channel.secure else round.memory
        scores = memory.follow(rows, round.told["weights"])
        sizes = moves.steps if len(round.plan.parties) == 1 else np.zeros(self.dimension)
        loss = (code_of(moves.loss), moves.loss.parameter)
        steps = kernels.CoordinateSteps(moves.clip, sizes, *moves.terms, *loss, moves.records)
        drawn, bits = (np.zeros(len(order)), -1) if noise is None else (noise, rows.sum_bits)
        return rows.coordinate_walk(scores, memory.weights, order, steps, drawn, step, bits)


class BoundedSquares(Query):
    """sum_i x_ij^2 for every feature j, entries at most 1 in absolute value.

    Guarantee: zero-out moves it by at most R, replace-one by min(sqrt 2 R, sqrt d), in l2, where R^2 is the most that
    squares of the entries of a row can sum to under the declared bounds. Edges: a null row adds 0; a square is clipped
    to
    1 and rounded toward zero on a grid on which the sum is exact.
    """

    name = "curvatures"
    title: ClassVar[str] = "squares of every feature"

    def __init__(self, bounds: Bounds, features: int) -> None:
        self.length, self.rounding_entries = features, float(features)
        self.bound = math.sqrt(most_squares(bounds, features)) * (1 + 2.0**-20)

    def sensitivity(self, relation: Relation) -> float:
        apart = min(math.sqrt(2) * self.bound, math.sqrt(self.length))
        return either(relation, zero_out=self.bound, replace_one=apart)

    def value(self, round: Round) -> Array:
        return round.rows.column_squares()[: self.length]


def most_squares(bounds: Bounds, features: int) -> float:
    """The largest sum of (x_j / b_j)^2 over rows with |x_j| <= b_j and, where it is declared, |x| <= row_norm."""
    if bounds.row_norm is None:
        return float(features)
    cost = np.sort(bounds.columns(features) ** 2)
    filled = np.cumsum(cost)
    whole = int(np.searchsorted(filled, bounds.row_norm**2, side="right"))
    if whole == features:
        return float(features)
    left = bounds.row_norm**2 - (filled[whole - 1] if whole else 0.0)
    return whole + float(left / cost[whole])


def shrunk(noisy: Array, std: float, most: float) -> Array:
    """Noisy mean squares drawn to their average, the more the larger the noise (James and Stein 1961).

    The average has little noise even where the entries drown in it, and cannot exceed `most`. No entry is left below
    the smaller of the noise and the average: a curvature taken for too small makes a step too long.
    """
    if std == 0.0:
        return noisy
    average = min(max(float(noisy.mean()), std / math.sqrt(len(noisy))), most)
    spread = float(np.mean((noisy - average) ** 2))
    kept = max(0.0, 1.0 - std**2 / spread) if spread > 0.0 else 0.0
    return np.maximum(average + kept * (noisy - average), min(std, average))


def visits(plan: Plan, start: int, count: int) -> Integers:
    """The coordinates of steps start, ..., start + count - 1, from the plan alone."""
    dimension = plan.dimension
    if plan.numbers.order == "cyclic":
        return np.arange(start, start + count, dtype=np.int64) % dimension
    first = start // dimension
    passes = [_one_pass(plan, number) for number in range(first, -(-(start + count) // dimension))]
    return np.concatenate(passes)[start - first * dimension :][:count]


@functools.lru_cache(maxsize=8)
def _one_pass(plan: Plan, number: int) -> Integers:
    coin, order = plan.public_coin(f"coordinates of pass {number}"), plan.numbers.order
    if order == "shuffled":
        return coin.permutation(plan.dimension).astype(np.int64)
    return coin.integers(plan.dimension, size=plan.dimension, dtype=np.int64)
