"""`cd`: proximal coordinate descent with noisy coordinate gradients (Mangold et al., DP-CD)."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import (
    MOST_ROUNDS,
    Algorithm,
    Ask,
    Coordination,
    Design,
    Problem,
    Solution,
    choice,
    draft,
    option,
    problem_loss,
    public_coin,
    summed,
)
from sottovoce.data.block import Block, Layout, is_sparse
from sottovoce.data.bounds import LARGEST, SMALLEST, Bounds
from sottovoce.data.kernels import coordinates as kernels
from sottovoce.door.gate import Gate, Released
from sottovoce.door.query import Query, Walk
from sottovoce.errors import InputError, LeakError, RefusedError
from sottovoce.losses import Loss
from sottovoce.plan.plan import Plan, Release, Split, grid_step
from sottovoce.privacy.accounting import Relation

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

CODES = {
    "squared": kernels.SQUARED,
    "huber": kernels.HUBER,
    "smoothed_hinge": kernels.SMOOTHED_HINGE,
    "logistic": kernels.LOGISTIC,
}
ORDERS = ("cyclic", "shuffled", "random")
COUNTED = ("all", "outer")
CURVATURE_SHARE = 0.1  # of mu^2
ENTRIES = 2**26  # of a matrix touched between two messages, about
PASSES = 10_000  # of a run without privacy, at most
STILL = 1e-13
LEAST = 1e-12  # a curvature counts for at least this share of its bound
TINY = 1e-90  # and without bounds for this much: a column of zeros has none


class CoordinateAlgorithm(Algorithm):
    """What the solvers that move one coordinate at a time share.

    Columns are divided by their declared bounds, so that entries are at most 1. M_j = kappa (1/N) sum_i x_ij^2 is the
    curvature along coordinate j, kappa the loss's; C_j = clip sqrt(M_j / kappa) bounds one record's part of a gradient.
    """

    needs_smooth: ClassVar[bool] = True
    layout: ClassVar[Layout] = "columns"
    samples: ClassVar[bool] = False

    def mismatch(self, loss: Loss, split: Split) -> str | None:
        """Also a loss without a kernel."""
        if loss.smooth and loss.name not in CODES:
            return f"solver={self.name!r} serves the losses {', '.join(CODES)}, not {loss.name!r}"
        return super().mismatch(loss, split)

    def remember(self, plan: Plan, block: Block) -> Scores:
        """The scores Xw of the holder's records."""
        return Scores(plan, block)

    def example(self, plan: Plan, query: str) -> Ask:
        """Weights, and the curvatures once they are known."""
        arrays = {"weights": np.zeros(plan.dimension)}
        return Ask(query, arrays if query == "curvatures" else arrays | {"curvatures": np.zeros(plan.dimension)})


class CD(CoordinateAlgorithm):
    """w_j <- prox(w_j - gamma_j g_j, gamma_j), g_j = (1/N) (sum_i cut(l'_i x_ij, C_j) + N(0, (C_j sigma)^2)).

    Outer loops of `inner` steps each; after a loop w is the mean of its last iterates. The coordinates come in a
    public order, so every visit is counted exactly. gamma_j = step / M_j. A holder that is alone walks through many
    coordinates between two messages; several holders send one coordinate's sums at a time.

    Guarantee: mu^2 = rounds inner / sigma^2 (zero-out), four times that for replace-one, plus the curvatures'
    share (`proof.md`). Edges: a null row adds 0; a curvature released near or below 0 is raised to a floor.
    The published calibration is sigma^2 = 8 T log(1/delta) / epsilon^2, T read as all steps or (`counted`) as the outer
    loops alone; it counts no curvatures.
    """

    name: ClassVar[str] = "cd"
    title: ClassVar[str] = "proximal coordinate descent (DP-CD)"
    has_paper: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...]] = (
        "rounds",
        "inner",
        "step",
        "clip",
        "order",
        "averaged",
        "curvatures",
        "curvature_share",
        "counted",
    )

    def design(self, problem: Problem) -> Design:
        """Passes, step and clip by the rule of `default_rule`; a tenth of the budget estimates the curvatures."""
        separable(self.name, problem)
        rule = default_rule(problem)
        counted = choice(problem, "counted", COUNTED)
        outer = option(problem, "rounds", 1, low=1, whole=True)
        inner = option(problem, "inner", rule["passes"] * problem.dimension, low=1, whole=True)
        if outer * inner > MOST_ROUNDS:
            raise InputError(f"inner={inner!r} times rounds={outer!r} is more than {MOST_ROUNDS} steps; take fewer.")
        order = choice(problem, "order", ORDERS)
        tail = option(problem, "averaged", 0.5 if inner > 2 * problem.dimension else 0.0, low=0.0, high=1.0)
        numbers = {
            "outer": outer,
            "inner": inner,
            "step": option(problem, "step", rule["step"], low=SMALLEST, high=LARGEST),
            "clip": option(problem, "clip", rule["clip"], low=SMALLEST, high=LARGEST),
            "averaged": max(1, round(tail * inner)),
            "order": ORDERS.index(order),
        }
        if math.isinf(problem.epsilon):
            return self._without_privacy(problem, numbers)
        numbers["stride"] = stride = _stride(problem, inner) if len(problem.parties) == 1 else 1
        known, share = known_squares(problem)
        plan = draft(problem, numbers, "columns")
        releases: tuple[Release, ...] = ()
        if share > 0:
            releases = (Release.at_mu(ColumnSquares(plan), 0, 1, problem.mu * math.sqrt(share), problem.relation),)
        walk, count = CoordinateWalk(plan, stride), outer * inner // stride
        if problem.calibration == "paper":
            steps = outer * (inner if counted == "all" else 1)
            std = math.sqrt(8 * steps * math.log(1 / problem.delta)) / problem.epsilon
            releases += (Release.of(walk, len(releases), count, std, grid_step(walk, std)),)
            return Design(outer, numbers, releases, problem.epsilon, layout="columns", vectors=known)
        mu = problem.mu * math.sqrt(1 - share)
        releases += (Release.at_mu(walk, len(releases), count, mu, problem.relation),)
        return Design(outer, numbers, releases, layout="columns", vectors=known)

    def _without_privacy(self, problem: Problem, numbers: dict[str, float]) -> Design:
        passes = option(problem, "rounds", PASSES, low=1, whole=True)
        stride = problem.dimension if len(problem.parties) == 1 else 1
        numbers |= {"outer": passes, "inner": problem.dimension, "averaged": 1, "step": 1.0, "stride": stride}
        plan = draft(problem, numbers, "columns")
        releases = (
            Release.of(ColumnSquares(plan), 0, 1, 0.0, 1.0),
            Release.of(CoordinateWalk(plan, stride), 1, passes * problem.dimension // stride, 0.0, 1.0),
        )
        return Design(passes, numbers, releases, layout="columns")

    def queries(self, plan: Plan) -> Mapping[str, Query | Walk]:
        """Squares of the columns once, then coordinate sums."""
        return {"curvatures": ColumnSquares(plan), "coordinates": CoordinateWalk(plan, plan["stride"])}

    def coordinate(self, plan: Plan) -> Coordination:
        """Replay at the coordinator what was released; several holders' sums are added first."""
        curvatures = yield from curvatures_of(plan)
        moves = Moves(plan, curvatures)
        outer, inner, stride = (int(plan[name]) for name in ("outer", "inner", "stride"))
        weights, violation, size = np.zeros(plan.dimension), math.inf, 0.0
        still: set[int] = set()  # coordinates tried since one last moved
        for t in range(outer):
            mean, before = np.zeros(plan.dimension), np.array(weights)
            violation = 0.0
            for start in range(0, inner, stride):
                sums = yield Ask("coordinates", {"weights": weights, "curvatures": curvatures})
                steps = visits(plan, t * inner + start, stride)
                weights = np.array(weights)
                skipped = max(0, inner - int(plan["averaged"]) - start)
                moved = moves.replay(weights, steps, summed(sums), mean, skipped)
                violation = max(violation, moved)
            size = max(size, moves.length(weights))
            if plan.private:
                weights = mean / plan["averaged"]
            elif moves.length(weights - before) > STILL * size:
                still.clear()
            else:
                still.update(visits(plan, t * inner, inner).tolist())
                if len(still) == plan.dimension:
                    break
        return Solution(weights, {} if plan.private else {"violation": violation})

    def answer(
        self,
        plan: Plan,
        query: Any,
        block: Block,
        gate: Gate,
        round_: int,
        arrays: Mapping[str, NDArray[Any]],
        memory: Scores,
    ) -> Released:
        """Squares of the columns, or the next coordinates of the public order."""
        if query.name == "curvatures":
            return gate.gaussian(query, round_, block)
        steps = visits(plan, (round_ - plan.release("coordinates").first) * query.length, query.length)
        curvatures = usable_curvatures(arrays, plan.dimension)
        return gate.walk(query, round_, block, arrays["weights"], curvatures, memory, steps)


class Scores:
    """Xw of one holder for the weights it was last asked at. A row's score is a function of that row and of weights."""

    def __init__(self, plan: Plan, block: Block) -> None:
        self.weights = np.zeros(plan.dimension)
        self.values = np.zeros(len(block))

    def follow(self, block: Block, weights: Array) -> Array:
        """Move to other weights, by the columns whose weights changed."""
        changes = weights - self.weights
        if changes.any():
            on_columns(block, kernels.add_columns_dense, kernels.add_columns_sparse, changes, self.values)
            self.weights[:] = weights
        return self.values


class Moves:
    """The public part of a coordinate step: clips, step sizes and penalties by coordinate."""

    def __init__(self, plan: Plan, curvatures: Array) -> None:
        self.loss = plan.scaled_loss
        self.code = CODES[self.loss.name]
        self.parameter = float(next(iter(self.loss.parameters().values()), 0.0))
        self.roots = np.sqrt(curvatures)
        self.clip = np.minimum(plan["clip"] * self.roots / math.sqrt(self.loss.curvature_bound), self.loss.lipschitz())
        self.steps = plan["step"] / curvatures
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


class CoordinateWalk:
    """sum_i cut(l'_i x_ij / C_j, -1, 1) for one coordinate after another, each at the weights the last one led to.

    Guarantee: zero-out moves each by at most 1, replace-one by at most 2, whatever the weights and the C_j; so a walk
    of `length` steps has sensitivity sqrt(length), as one Gaussian release of all of them would.
    Edges: a null row adds 0, and so does a term that is no number. The terms are on a grid and their sum is exact.
    """

    name = "coordinates"
    weights = 1.0

    def __init__(self, plan: Plan, length: float) -> None:
        if not 1 <= length <= MOST_ROUNDS or int(length) != length:
            raise InputError(f"stride={length!r} must be a whole number from 1 to {MOST_ROUNDS}.")
        check_numbers(plan)
        self.plan = plan
        self.length = int(length)
        self.entries = float(length)

    def sensitivity(self, relation: Relation) -> float:
        """sqrt(length), doubled for replace-one."""
        return math.sqrt(self.length) * (2.0 if relation == "replace-one" else 1.0)

    def walk(self, block: Block, noise: Integers | None, step: float, *arguments: Any) -> NDArray[Any]:
        """A holder that is alone takes the steps; one of several only says its sum and waits for the others'."""
        weights, curvatures, memory, order = arguments
        moves = Moves(self.plan, curvatures)
        scores = memory.follow(block, weights)
        alone = len(self.plan.parties) == 1
        bits = -1 if noise is None else sum_bits(block)
        steps = moves.steps if alone else np.zeros(len(weights))
        state = (block.labels, scores, memory.weights, order, moves.clip, steps, *moves.terms)
        drawn = np.zeros(len(order)) if noise is None else noise
        rest = (moves.code, moves.parameter, moves.records, drawn, step, bits)
        found = on_columns(block, kernels.coordinate_walk_dense, kernels.coordinate_walk_sparse, *state, *rest)
        return np.asarray(found)


class ColumnSquares:
    """sum_i x_ij^2 for every feature j, entries at most 1 in absolute value.

    Guarantee: zero-out moves it by at most R, replace-one by min(sqrt 2 R, sqrt d), in l2, where R^2 is the most that
    squares of the entries of a row can sum to under the declared bounds. Edges: a null row adds 0; a square is cut to
    1 and rounded toward zero on a grid on which the sum is exact.
    """

    name = "curvatures"

    def __init__(self, plan: Plan) -> None:
        self.features = plan.features
        self.reach = math.sqrt(most_squares(plan.bounds, plan.features)) * (1 + 2.0**-20)
        self.entries = float(plan.features)
        self.weights = np.ones(plan.features)

    def sensitivity(self, relation: Relation) -> float:
        """R, or min(sqrt 2 R, sqrt d)."""
        return self.reach if relation == "zero-out" else min(math.sqrt(2) * self.reach, math.sqrt(self.features))

    def value(self, block: Block, *arguments: Any) -> Array:
        """One pass over the columns."""
        del arguments
        limit = 0.0 if block.bits is None else 2.0 ** sum_bits(block)
        return np.asarray(on_columns(block, kernels.squares_dense, kernels.squares_sparse, limit))[: self.features]


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


def curvatures_of(plan: Plan) -> Any:
    """M_j from the released squares, from known ones, or from the declared bounds alone."""
    most = most_squares(plan.bounds, plan.features) / plan.features if plan.private else math.inf
    mean = np.full(plan.features, most)
    if "squares" in plan.vector_of:
        mean = np.array(plan.vector_of["squares"])
    elif any(release.query == "curvatures" for release in plan.releases):
        squares = yield Ask("curvatures", {"weights": np.zeros(plan.dimension)})
        std = plan.release("curvatures").std * math.sqrt(len(plan.parties))
        mean = shrunk(summed(squares) / plan.records, std / plan.records, most)
    curvatures = np.ones(plan.dimension)
    curvatures[: plan.features] = np.clip(mean, LEAST, 1.0) if plan.private else np.maximum(mean, TINY)
    return plan.scaled_loss.curvature_bound * curvatures


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


def known_squares(problem: Problem) -> tuple[dict[str, tuple[float, ...]], float]:
    """(the mean squares that the user declares to be public, the share of the budget that estimates them).

    The former in units of the columns' bounds. A published calibration counts no estimate.
    """
    given = problem.options.get("curvatures")
    default = CURVATURE_SHARE if given is None and problem.calibration == "tight" else 0.0
    share = option(problem, "curvature_share", default, low=0.0, high=0.9)
    if given is None:
        return {}, share
    if share > 0.0:
        raise InputError(f"curvature_share={share!r}: curvatures are given, so nothing estimates them; leave out one.")
    try:
        squares = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        squares = np.zeros(0)
    if squares.shape != (problem.features,) or not bool(np.all((squares > 0) & np.isfinite(squares))):
        raise InputError(
            f"curvatures={given!r} must be the mean square of each of the {problem.features} features, positive "
            "and public knowledge; leave it out to have it estimated with noise."
        )
    scale = np.asarray(draft(problem, layout="columns").preparation.scale)
    return {"squares": tuple(float(value) for value in squares * scale**2)}, 0.0


def visits(plan: Plan, start: int, count: int) -> Integers:
    """The coordinates of steps start, ..., start + count - 1, from the plan alone."""
    dimension = plan.dimension
    if plan["order"] == 0:
        return np.arange(start, start + count, dtype=np.int64) % dimension
    first = start // dimension
    passes = [_one_pass(plan, number) for number in range(first, -(-(start + count) // dimension))]
    return np.concatenate(passes)[start - first * dimension :][:count]


@functools.lru_cache(maxsize=8)
def _one_pass(plan: Plan, number: int) -> Integers:
    coin = public_coin(plan, f"coordinates of pass {number}")
    if plan["order"] == 1:
        return coin.permutation(plan.dimension).astype(np.int64)
    return coin.integers(plan.dimension, size=plan.dimension, dtype=np.int64)


def default_rule(problem: Problem) -> dict[str, Any]:
    """Passes, step factor and clip from public numbers.

    r = N mu / d, halved for replace-one, is the signal of one visit in units of its noise. Larger r affords more passes
    and a wider clip; where it does not pay for one pass, a shorter step costs less than it gains. The slope of a
    squared loss is counted in half label bounds. Chosen on eight problems, public and synthetic.
    """
    loss = problem_loss(problem)
    regression = loss.kind == "regression"
    if math.isinf(problem.epsilon):
        return {"passes": 1, "step": 1.0, "clip": 1.0}
    distance = 2.0 if problem.relation == "replace-one" else 1.0
    r = problem.records * problem.mu / (distance * problem.dimension * math.sqrt(len(problem.parties)))
    clip = max(1.0, 0.55 * r**0.25) if regression else 1.5
    signal = math.sqrt(loss.curvature_bound) * r / clip
    return {
        "passes": min(max(round(0.3 * signal), 1), 80),
        "step": min(1.0, signal**2 / 4),
        "clip": 0.5 * clip if regression else clip,
    }


def separable(solver: str, problem: Problem) -> None:
    """Refuse a constraint set, whose prox mixes the coordinates."""
    try:
        draft(problem, layout="columns").scaled_regulariser.by_coordinate(problem.dimension)
    except InputError as error:
        raise InputError(f"solver={solver!r}: {error}") from None


def check_numbers(plan: Plan) -> None:
    """Refuse a plan whose steps or clips could leave the range of float64."""
    for name in ("step", "clip"):
        if not SMALLEST <= plan[name] <= LARGEST:
            raise InputError(f"{name}={plan[name]!r} must be a number from {SMALLEST:g} to {LARGEST:g}.")


def usable_curvatures(arrays: Mapping[str, NDArray[Any]], dimension: int) -> Array:
    """The curvatures of a message; any positive ones will do, the clip and the noise follow them alike."""
    found = arrays.get("curvatures")
    good = found is not None and found.dtype == np.float64 and found.shape == (dimension,)
    if found is None or not good or not bool(np.all((found >= SMALLEST) & (found <= LARGEST))):
        raise RefusedError(f"the message needs {dimension} positive float64 curvatures.")
    return found


def sum_bits(block: Block) -> int:
    """Bits b such that the sum of this block's terms, each at most 1 and a multiple of 2^-b, is exact in float64."""
    if block.bits is None:
        raise LeakError("the rows were prepared for a run without privacy.")
    return 52 - math.ceil(math.log2(max(len(block), 2)))


def on_columns(block: Block, dense: Any, sparse: Any, *arguments: Any) -> Any:
    """A kernel on the block's columns; it takes a whole block whose columns lie together, never a batch."""
    if block.layout != "columns" or block.chosen is not None:
        raise LeakError("the rows were not prepared for steps by coordinates.")
    if is_sparse(block.rows):
        return sparse(block.rows.indptr, block.rows.indices, block.rows.data, *arguments)
    return dense(block.rows.T, *arguments)


def _stride(problem: Problem, inner: int) -> int:
    """Steps between two messages of a holder that is alone: whole passes that divide the loop, about ENTRIES."""
    passes, rest = divmod(inner, problem.dimension)
    if rest or not passes:
        return inner
    most = max(1, ENTRIES // (problem.records * problem.dimension))
    return problem.dimension * max(count for count in range(1, passes + 1) if passes % count == 0 and count <= most)
