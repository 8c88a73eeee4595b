"""`score`: over columns each party fits its own columns and sends one noisy score of every person, once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from sottovoce.algorithms.base import (
    Algorithm,
    Ask,
    Coordination,
    Design,
    Problem,
    Solution,
    draft,
    option,
    problem_loss,
    slope_bound,
)
from sottovoce.algorithms.newton.private import RULES, Descent
from sottovoce.algorithms.sharing.parts import Joint
from sottovoce.data.block import Block, exact_weights, toward_zero
from sottovoce.data.bounds import LARGEST
from sottovoce.door.frames import MAX_BYTES
from sottovoce.door.gate import Gate, Released
from sottovoce.door.query import GradientSum, GramMatrix, Query, clipped_derivative
from sottovoce.errors import InputError, LeakError, RefusedError
from sottovoce.losses import Loss
from sottovoce.penalties.base import ConstraintSet
from sottovoce.plan.plan import Part, Plan, Release, ScaledRegulariser, Split
from sottovoce.privacy.accounting import Event, Relation

Array = NDArray[np.float64]

FIT = 0.50  # of mu^2, for the parties' own fits
SHARES = {"scores": 0.35, "moments": 0.05, "products": 0.10}
HELD = {"labels": 0.25, "pull": 0.15, "slopes": 0.05}  # beside those, if one party holds the labels; then all shrink
REACH = 4.0  # standard deviations to which a score is cut for its mean and variance
CUT = 1.5  # and for what is sent
TAIL = 2.0  # standard deviations of the noise beyond which a noisy number is cut before it is used
PRIOR, SPREAD = 0.5, 1.0 / 12.0  # mean and variance of a correlation on which nothing is known: uniform on [0, 1]
FLOOR = 0.05  # of the eigenvalues of the correlations
BLUR = 10.0  # how much more a fit to noisy labels is damped than by the rule for noisy gradients
NODES = np.linspace(-8.0, 8.0, 2001)
NORMAL = np.exp(-0.5 * NODES**2) / np.exp(-0.5 * NODES**2).sum()


class Score(Algorithm):
    """x'w = sum_m a_m s_m + b, where s_m = x_m'w_m is the score of party m's own private fit.

    1. Each party's w_m is fitted by the private Newton (`newton`) on its own columns.
    2. Mean and deviation of each s_m: two sums. From here on z_m is s_m standardised, cut to +-1.5.
    3. Every party but the last, which is the holder of the labels, sends t_m = z_m + noise, a number for each person.
    4. Each party, told the t_l before it, releases sum z_m^2 and sum z_m t_l: the correlations R of the scores, without
       bias though t_l is mostly noise, since z_m is exact.
    5. The factors, at the coordinator: with scores ~ N(mean, D R D), D their deviations,

           R alpha = g / k,   g_m = d_m k_m,   a_m = alpha_m / d_m,   alpha >= 0,   k_m = E l''(s_m),   k = min_m k_m,

       and b makes E psi(x'w + b) the mean label, psi the slope less its label. Where s_m is a fit, E l'(s_m) = 0 and
       cov(label, s_m) = cov(psi(s_m), s_m) = d_m^2 k_m (Stein), so these are the equations of the optimum over (a, b),
       with k for the curvature at x'w. For the squared loss k = 1 and a is the least-squares combination.

    A correlation is drawn to 1/2 as much as its noise says, so that with a tiny budget the factors are those of
    scores that share half of what they say. All shares and constants are public.

    Labels "held": the holder releases them with noise once; another party's slope is psi(s) minus its noisy label,
    whose sum sum_i x_i y~_i it releases once (logistic and squared loss are affine in the label). A fit to such labels
    says more than it knows: g_m is then not above what the holder finds, sum (y - mean) t_m.

    Guarantee: every release carries its sensitivity and a person is in every party, so mu^2 adds over all releases of
    all parties (`proof.md`); the world, which sees the model, does not pay for the t_m nor for the noisy labels.
    Edges: penalties act on each party's own fit, before the factors; a ball bounds the model too. A null row is
    0 + noise. Without privacy the same text runs without noise.
    """

    name: ClassVar[str] = "score"
    title: ClassVar[str] = "each party fits its own columns, one noisy score of every person is shared once"
    splits: ClassVar[tuple[Split, ...]] = ("columns",)
    options: ClassVar[tuple[str, ...]] = ("rounds", "slope_bound")
    samples: ClassVar[bool] = False

    def mismatch(self, loss: Loss, split: Split) -> str | None:
        """Slopes must be affine in the label."""
        if loss.name not in ("logistic", "squared"):
            return f"solver={self.name!r} needs the logistic or the squared loss, not {loss.name!r}"
        return super().mismatch(loss, split)

    def design(self, problem: Problem) -> Design:
        """Shares of mu^2 as above, each divided among the parties that release."""
        parties, held = len(problem.parties), problem.labels == "held"
        if parties < 2:
            raise InputError(
                f"solver={self.name!r} combines the scores of several parties and there is one; fit its rows with "
                "solver='newton', as data in one place."
            )
        if 8 * (parties - 1) * problem.records > MAX_BYTES // 2:
            raise InputError(
                f"solver={self.name!r}: {parties - 1} scores of {problem.records} people are too many for one message; "
                f"train on {MAX_BYTES // 16 // (parties - 1)} people or fewer, or take solver='frank-wolfe'."
            )
        loss = problem_loss(problem)
        private = math.isfinite(problem.epsilon)
        rounds = option(problem, "rounds", 64 if private else 200, low=2, whole=True)
        # without its label a slope reaches 1/2 (logistic), or the largest label (squared)
        numbers = {"slope_bound": max(slope_bound(problem), 1.0) if held else slope_bound(problem)}
        plan = draft(problem, numbers)
        gram = FIT * RULES[loss.kind].gram_share
        shares = {**SHARES, **(HELD if held else {}), "gram": gram, "gradient": FIT - gram}
        total = math.fsum(shares.values())
        releases = tuple(
            Release.at_mu(
                self.joint(plan, query),
                0,
                rounds if query == "gradient" else 1,
                math.sqrt(share / total) * problem.mu,
                problem.relation,
            )
            for query, share in shares.items()
        )
        return Design(rounds, numbers, releases)

    def turn(self, plan: Plan, query: str) -> tuple[str, ...]:
        """The parties that release `query`; the holder of the labels is the last."""
        order = in_order(plan)
        if query in ("labels", "slopes"):
            return order[-1:]
        return order[:-1] if query in ("scores", "pull") else order

    def joint(self, plan: Plan, query: str) -> Joint:
        """What all parties release under that name."""
        return Joint([self._own(plan, name)[query] for name in self.turn(plan, query)])

    def queries(self, plan: Plan) -> Mapping[str, Query]:
        """Those of the party that holds the labels."""
        return self.queries_of(plan, plan.holder_name)

    def queries_of(self, plan: Plan, party: str) -> Mapping[str, Query]:
        """Those of the party's own columns; where it is not its turn, those of a party whose turn it is."""
        if len(plan.parties) < 2:
            raise InputError(f"{self.name} combines the scores of several parties, and the plan has one.")
        turns = {release: self.turn(plan, release) for release in TAKES}
        owner = {release: party if party in turn else turn[0] for release, turn in turns.items()}
        own = {name: self._own(plan, name) for name in {*owner.values()}}
        return {release: own[owner[release]][release] for release in own[party]}

    def _own(self, plan: Plan, party: str) -> dict[str, Query]:
        part = plan.part(party).preparation
        size, start = part.dimension, starts(plan)[party]
        queries: list[Query] = [
            GramMatrix(size),
            PartGradient(size, plan["slope_bound"], plan.scaled_loss, start=start, blind=not part.labelled),
            Moments(size, start),
            ScoreValues(size, start, plan.records),
            Products(size, start, in_order(plan).index(party)),
        ]
        if plan.labels == "held":
            queries += [HeldLabels(plan.records), Pull(size), LabelProducts(len(plan.parties) - 1)]
        return {query.name: query for query in queries}

    def coordinate(self, plan: Plan) -> Coordination:
        """Fits, moments, scores, products; the rest is arithmetic on what was released."""
        order, loss = in_order(plan), plan.scaled_loss
        parts = {name: plan.part(name) for name in order}
        pulls, reach = {}, 1.0 + TAIL * _std(plan, "labels")
        if plan.labels == "held":
            (noisy,) = (yield Ask("labels", {}, order[-1:], 0)).values()
            pulls = yield Ask("pull", {"labels": noisy / reach}, order[:-1], 0)
        fits = _descents(plan, parts, (yield Ask("gram", {}, round=0)))
        for t in range(plan.rounds):
            weights = {name: fits[name].weights for name in order}
            gradients = yield Ask("gradient", {"weights": together(plan, weights)}, round=t)
            for name in order:
                known = label_slope(loss) * reach * pulls[name] if name in pulls else 0.0
                fits[name].step(t, gradients[name] - known)
        weights = {name: fits[name].mean for name in order}
        scales = {name: _guess(plan, parts[name], fits[name]) for name in order}
        sums = yield Ask("moments", {"weights": together(plan, _standard(parts, weights, scales))}, round=0)
        scales = {name: _measured(plan, *scales[name], sums[name]) for name in order}
        cut = {name: (mean, CUT * deviation) for name, (mean, deviation) in scales.items()}
        asked = {"weights": together(plan, _standard(parts, weights, cut))}
        sent = yield Ask("scores", asked, order[:-1], 0)
        far = 1.0 + TAIL * _std(plan, "scores")
        columns = np.stack([sent[name] for name in order[:-1]]) / far
        for place, name in enumerate(order):
            sums |= yield Ask("products", {**asked, "columns": columns[:place]}, (name,), 0)
        found = Correlations(plan, [sums[name] for name in order], far)
        means, deviations = np.array([scales[name] for name in order]).T
        expected = np.array([expectations(loss, m, d * d) for m, d in zip(means, deviations, strict=True)])
        informed = expected[-1:] if plan.labels == "held" else expected
        target, least = float(informed[:, 0].mean()), float(informed[:, 1].min())
        slopes = deviations * expected[:, 1]
        if plan.labels == "held":
            centre = float(np.clip(target / label_slope(loss), -1.0, 1.0))
            told = {"columns": columns, "centre": np.array([centre])}
            (products,) = (yield Ask("slopes", told, order[-1:], 0)).values()
            slopes[:-1] = np.minimum(slopes[:-1], found.slopes(products * (1 + abs(centre)), label_slope(loss)))
        factors, middle = combine(loss, slopes / least, found.matrix, target)
        if not plan.fit_intercept:
            middle, means = 0.0, np.zeros(len(order))
        factors = factors / deviations
        return Solution(_joined(plan, parts, weights, factors, middle - float(factors @ means)))

    def answer(
        self,
        plan: Plan,
        query: Any,
        block: Block,
        gate: Gate,
        round_: int,
        arrays: Mapping[str, NDArray[Any]],
        memory: Any,
    ) -> Released:
        """The query, told the arrays that it takes."""
        del plan, memory
        said = [arrays[name] for name in TAKES[query.name]]
        if "weights" in TAKES[query.name]:
            said[0] = said[0][query.start : query.start + query.dimension]
        if "columns" in TAKES[query.name] and len(arrays["columns"]) != query.columns:
            raise RefusedError(f"query {query.name!r} needs the scores of {query.columns} parties here.")
        return gate.gaussian(query, round_, block, *said)

    def objection(self, plan: Plan, query: str, round_: int, arrays: Mapping[str, NDArray[Any]]) -> str | None:
        """Shapes and sizes; the queries themselves cut what they are told."""
        del round_
        weights = plan.features + plan.fit_intercept * len(plan.parties)
        lengths = {"weights": weights, "labels": plan.records, "columns": plan.records, "centre": 1}
        for name in TAKES[query]:
            array = arrays.get(name)
            if array is None or array.dtype != np.float64 or array.ndim != 1 + (name == "columns"):
                return f"query {query!r} needs float64 numbers called {name!r}."
            if array.shape[-1] != lengths[name]:
                return f"query {query!r} needs {lengths[name]} numbers called {name!r}."
            if not np.all(np.abs(array) <= LARGEST):
                return f"query {query!r}: {name!r} are finite, none above {LARGEST:g} in absolute value."
        return None

    def serves(self, plan: Plan, party: str, query: str, round_: int) -> bool:
        """The last party sends no score; labels are for their holder."""
        return super().serves(plan, party, query, round_) and party in self.turn(plan, query)

    def conversation(self, plan: Plan) -> Iterable[tuple[Ask, int]]:
        """What `coordinate` asks."""
        order, columns = in_order(plan), np.zeros((len(plan.parties) - 1, plan.records))
        own = {"weights": np.zeros(plan.features + plan.fit_intercept * len(order))}
        asks = [Ask("gram"), Ask("gradient", own), Ask("moments", own), Ask("scores", own, order[:-1])]
        asks += [Ask("products", {**own, "columns": columns[:m]}, (name,)) for m, name in enumerate(order)]
        if plan.labels == "held":
            asks += [
                Ask("labels", {}, order[-1:]),
                Ask("pull", {"labels": np.zeros(plan.records)}, order[:-1]),
                Ask("slopes", {"columns": columns, "centre": np.zeros(1)}, order[-1:]),
            ]
        return [(ask, plan.rounds if ask.query == "gradient" else 1) for ask in asks]

    def events(self, plan: Plan, relation: Relation, party: str) -> tuple[Event, ...]:  # noqa: ARG002
        """What all parties release together: everybody's record is with each of them."""
        return tuple(self.joint(plan, release.query).event(release, relation) for release in plan.releases)

    def world_events(self, plan: Plan, relation: Relation) -> tuple[Event, ...]:
        """Without the noisy scores and labels: with their noise made public, a record moves its own terms alone."""
        used = [release for release in plan.releases if release.query not in ("scores", "labels")]
        return tuple(self.joint(plan, release.query).event(release, relation) for release in used)


TAKES: Mapping[str, tuple[str, ...]] = {
    "gram": (),
    "gradient": ("weights",),
    "moments": ("weights",),
    "scores": ("weights",),
    "products": ("weights", "columns"),
    "labels": (),
    "pull": ("labels",),
    "slopes": ("columns", "centre"),
}


@dataclass(frozen=True)
class PartGradient(GradientSum):
    """The gradient sum of a party's own fit; `blind`: of psi, the slope less its label, which the party lacks."""

    start: int = 0  # of this party's weights among those of all
    blind: bool = False

    @property
    def length(self) -> int:
        """One number for each of the party's columns."""
        return self.dimension

    def value(self, block: Block, *arguments: Any) -> Array:
        """One pass over the rows."""
        if not self.blind:
            return super().value(block, *arguments)
        (weights,) = arguments
        _check(block)
        slope = cast("Loss", _Psi(self.loss))
        return block.weighted_sum(weights, clipped_derivative(slope, self.slope_bound, block.bits))


class _Psi:
    """psi(u) as a loss whose slope does not depend on the label."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss

    def derivative(self, u: Array, y: Array) -> Array:
        """The mean of the slopes at the two labels."""
        del y
        return psi(self._loss, u)


@dataclass(frozen=True)
class ScoreValues:
    """z = cut(x'w, -1, 1) of every person.

    Guarantee: a number is a function of its own record, at most 1 in absolute value and 0 for a null row, so zero-out
    moves the value by at most 1, replace-one by 2.
    """

    dimension: int
    start: int
    length: int
    name: ClassVar[str] = "scores"
    weights: ClassVar[float] = 1.0
    entries: ClassVar[float] = 1.0

    def sensitivity(self, relation: Relation) -> float:
        """1 or 2."""
        return 2.0 if relation == "replace-one" else 1.0

    def value(self, block: Block, *arguments: Any) -> Array:
        """One pass over the rows."""
        (weights,) = arguments
        return scores_of(block, weights)


@dataclass(frozen=True)
class Products:
    """(sum z^2, sum z c_1, ..., sum z c_L) for z = cut(x'w, -1, 1) and public numbers |c_il| <= 1.

    Guarantee: zero-out moves it by at most sqrt(1 + L), replace-one by 2 sqrt L (1 if L = 0). c is cut here, z and c
    are put on the grid, and sums are exact.
    """

    dimension: int
    start: int
    columns: int
    name: str = "products"
    weights: ClassVar[float] = 1.0

    @property
    def length(self) -> int:
        """One for z itself."""
        return 1 + self.columns

    @property
    def entries(self) -> float:
        """All move."""
        return float(self.length)

    def sensitivity(self, relation: Relation) -> float:
        """The largest (z - z')^2 ((z + z')^2 + L), under the root."""
        if relation == "zero-out":
            return math.sqrt(1.0 + self.columns)
        return max(1.0, 2.0 * math.sqrt(self.columns))

    def value(self, block: Block, *arguments: Any) -> Array:
        """One pass over the rows."""
        weights, columns = arguments
        own = scores_of(block, weights)
        return np.array([own @ own, *(within(column, block.bits) @ own for column in columns)])


@dataclass(frozen=True)
class Moments(Products):
    """(sum z^2, sum z): the products with a column of ones."""

    columns: int = 1
    name: str = "moments"

    def value(self, block: Block, *arguments: Any) -> Array:
        """One pass over the rows."""
        (weights,) = arguments
        return super().value(block, weights, np.ones((1, len(block))))


@dataclass(frozen=True)
class HeldLabels:
    """The labels, cut to [-1, 1], 0 for a null row. Guarantee: zero-out moves them by at most 1, replace-one by 2."""

    length: int
    name: ClassVar[str] = "labels"
    weights: ClassVar[float] = 1.0
    entries: ClassVar[float] = 1.0

    def sensitivity(self, relation: Relation) -> float:
        """1 or 2."""
        return 2.0 if relation == "replace-one" else 1.0

    def value(self, block: Block, *arguments: Any) -> Array:
        """As they are prepared."""
        del arguments
        return np.where(_usable(block), np.clip(block.labels, -1.0, 1.0), 0.0)


@dataclass(frozen=True)
class Pull:
    """sum_i c_i x_i for public numbers |c_i| <= 1, which are cut and put on the grid here, and |x_i| <= 1.

    Guarantee: zero-out moves it by at most 1, replace-one by 2. Sums are exact.
    """

    dimension: int
    name: ClassVar[str] = "pull"
    weights: ClassVar[float] = 1.0

    @property
    def length(self) -> int:
        """One number for each of the party's columns."""
        return self.dimension

    @property
    def entries(self) -> float:
        """All move."""
        return float(self.dimension)

    def sensitivity(self, relation: Relation) -> float:
        """1 or 2."""
        return 2.0 if relation == "replace-one" else 1.0

    def value(self, block: Block, *arguments: Any) -> Array:
        """One pass over the rows."""
        (column,) = arguments
        _check(block)
        factors, total, start = within(column, block.bits), np.zeros(self.dimension), 0
        for rows, labels in block.chunks():
            total += rows.T @ factors[start : start + len(labels)]
            start += len(labels)
        return total


@dataclass(frozen=True)
class LabelProducts:
    """sum_i v_i c_il, v = (y - m) / (1 + |m|) for a public |m| <= 1 and 0 for a null row, public numbers |c_il| <= 1.

    Guarantee: |v| <= 1, so zero-out moves it by at most sqrt L, replace-one by 2 sqrt L. Sums are exact.
    """

    columns: int
    name: ClassVar[str] = "slopes"
    weights: ClassVar[float] = 1.0

    @property
    def length(self) -> int:
        """One number for each column."""
        return self.columns

    @property
    def entries(self) -> float:
        """All move."""
        return float(self.columns)

    def sensitivity(self, relation: Relation) -> float:
        """The root of L, or twice that."""
        return math.sqrt(self.columns) * (2.0 if relation == "replace-one" else 1.0)

    def value(self, block: Block, *arguments: Any) -> Array:
        """One pass over the labels."""
        columns, (centre,) = arguments
        middle = float(np.clip(centre, -1.0, 1.0))
        varied = (np.clip(block.labels, -1.0, 1.0) - middle) / (1.0 + abs(middle))
        own = within(np.where(_usable(block), varied, 0.0), block.bits)
        return np.array([within(column, block.bits) @ own for column in columns])


def in_order(plan: Plan) -> tuple[str, ...]:
    """The parties, the holder of the labels last."""
    names = [name for name, _ in plan.parties]
    return (*(name for name in names if name != names[plan.holder]), names[plan.holder])


def starts(plan: Plan) -> dict[str, int]:
    """Where the weights of each party begin among those of all, which every message has."""
    sizes = [plan.part(name).preparation.dimension for name, _ in plan.parties]
    return {name: sum(sizes[:place]) for place, (name, _) in enumerate(plan.parties)}


def together(plan: Plan, weights: Mapping[str, Array]) -> Array:
    """The weights of all parties, one after another."""
    return np.concatenate([weights[name] for name, _ in plan.parties])


def _check(block: Block) -> None:
    if block.row_norm > 1.0:
        raise LeakError("the rows of the block are longer than the query's sensitivity allows for.")


def _usable(block: Block) -> NDArray[np.bool_]:
    if block.usable is None:
        raise LeakError("a batch does not say which of its rows are null rows.")
    return block.usable


def within(values: Array, bits: int | None) -> Array:
    """Numbers cut to [-1, 1], NaN to 1, and put on the exact grid."""
    cut = np.fmax(np.fmin(values, 1.0), -1.0)
    return cut if bits is None else toward_zero(cut, bits)


def scores_of(block: Block, weights: Array) -> Array:
    """Scores x'w cut to [-1, 1], on the exact grid; each depends on its own row alone."""
    exact = weights if block.bits is None else exact_weights(weights, block.bits)
    found = [np.asarray(rows @ exact) for rows, _ in block.chunks()]
    return within(np.concatenate(found) if found else np.zeros(0), block.bits)


def psi(loss: Loss, u: Array) -> Array:
    """The slope less its label, where slopes are affine in the label: the mean of those at the two labels."""
    ones = np.ones_like(u)
    return np.asarray((loss.derivative(u, ones) + loss.derivative(u, -ones)) / 2.0)


def label_slope(loss: Loss) -> float:
    """The phi in l'(u, y) = psi(u) - phi y."""
    zero, one = np.zeros(1), np.ones(1)
    return float((loss.derivative(zero, -one) - loss.derivative(zero, one))[0]) / 2.0


def expectations(loss: Loss, mean: float, variance: float) -> tuple[float, float]:
    """(E psi(u), E l''(u)) for a score u ~ N(mean, variance)."""
    u = mean + math.sqrt(variance) * NODES
    return float(NORMAL @ psi(loss, u)), float(NORMAL @ loss.curvature(u, np.ones_like(u)))


def combine(loss: Loss, slopes: Array, correlations: Array, target: float) -> tuple[Array, float]:
    """(alpha, middle): alpha >= 0 nearest to the solution of R alpha = slopes, and the mean score.

    The latter solves E psi(u) = target for u ~ N(middle, alpha'R alpha), by bisection.
    """
    root = np.linalg.cholesky(correlations)
    factors = nnls(root.T, np.linalg.solve(root, slopes))[0]
    variance = float(factors @ correlations @ factors)
    low, high = -40.0 - 10.0 * math.sqrt(variance), 40.0 + 10.0 * math.sqrt(variance)
    for _ in range(100):
        middle = (low + high) / 2
        if expectations(loss, middle, variance)[0] < target:
            low = middle
        else:
            high = middle
    return factors, (low + high) / 2


class Correlations:
    """The correlations of the parties' scores, in the order of the parties, from the released products."""

    def __init__(self, plan: Plan, sums: Sequence[Array], far: float) -> None:
        self.far, self.records = far, plan.records
        self.noise = _std(plan, "scores") ** 2 / plan.records  # of the mean of z t, over that of z^2
        self.plan = plan
        self.squares = np.array([max(values[0] / plan.records, 0.1 / CUT**2) for values in sums])
        matrix = np.eye(len(sums))
        for m, values in enumerate(sums):
            for other, product in enumerate(values[1:]):
                size = math.sqrt(self.squares[m] * self.squares[other])
                raw = min(max(product * far / plan.records / size, -1.0), 1.0)
                extra = (_std(plan, "products") * far / plan.records) ** 2
                error = (self.noise * self.squares[m] + extra) / size**2
                matrix[m, other] = matrix[other, m] = PRIOR + (raw - PRIOR) * SPREAD / (SPREAD + error)
        values, vectors = np.linalg.eigh(matrix)
        positive = (vectors * np.maximum(values, FLOOR)) @ vectors.T
        scale = np.sqrt(np.diag(positive))
        self.matrix: Array = positive / np.outer(scale, scale)

    def slopes(self, products: Array, label_slope: float) -> Array:
        """Estimates of cov(phi y, z_m) / deviation(z_m) of the scores that were sent; 0 within one standard error."""
        size = np.sqrt(self.squares[:-1])
        raw = np.maximum(label_slope * products * self.far / self.records / size, 0.0)
        extra = (2.0 * _std(self.plan, "slopes") * self.far / self.records) ** 2
        error = label_slope**2 * (self.noise + extra) / size**2
        return np.asarray(raw * np.maximum(1.0 - error / np.maximum(raw**2, 1e-300), 0.0))


def _std(plan: Plan, query: str) -> float:
    """The noise of a release, 0 where the plan has none of that name."""
    return next((release.std for release in plan.releases if release.query == query), 0.0)


def _descents(plan: Plan, parts: Mapping[str, Part], triangles: Mapping[str, Array]) -> dict[str, Descent]:
    """A descent for each party, damped by public numbers; without noise by a trifle."""
    loss, found = plan.scaled_loss, {}
    rule = RULES[loss.kind]
    for name, part in parts.items():
        d = part.preparation.dimension
        gram = GramMatrix(d).matrix(triangles[name])
        damping = rule.damping(d, plan.records, plan.rounds, _std(plan, "gram"), _std(plan, "gradient"))
        if not part.preparation.labelled:
            blur = _std(plan, "labels")
            pull = (1.0 + TAIL * blur) * _std(plan, "pull") * d
            blurred = label_slope(loss) * max(BLUR * blur * math.sqrt(plan.records * d), pull) / rule.per_round
            damping = max(damping, blurred)
        damping = max(damping, 1e-9 * float(np.trace(gram)))
        whole, half = plan.scaled_regulariser, plan.bounds.label_scale(fit_intercept=plan.fit_intercept)[1]
        scale = part.preparation.scale * half
        regulariser = ScaledRegulariser(whole.inner, part.preparation.features, scale, whole.objective)
        found[name] = Descent(gram, damping, loss, regulariser, plan.records, plan.rounds // 2)
    return found


def _guess(plan: Plan, part: Part, fit: Descent) -> tuple[float, float]:
    """(mean, REACH deviations) of a party's scores as its Gram matrix tells, the second with room for its noise."""
    weights = fit.mean
    mean = 0.0
    if part.constant:
        last = fit.vectors @ (fit.values * (fit.vectors.T @ weights))
        mean = float(last[-1]) / (plan.records * part.preparation.intercept_entry)
    room = _std(plan, "gram") * float(weights @ weights) / plan.records
    return mean, REACH * math.sqrt(max(fit.mean_square(weights) - mean**2, 0.0) + room + 1e-12)


def _measured(plan: Plan, centre: float, reach: float, sums: Array) -> tuple[float, float]:
    """(mean, deviation) of a party's scores from the sums of squares and of scores standardised by (centre, reach).

    Without an intercept nothing can be centred: the mean counts as 0.
    """
    square, mean = sums / plan.records
    if not plan.fit_intercept:
        mean = 0.0
    variance = max(square - mean**2, 2.0 * _std(plan, "moments") / plan.records, 1e-6)
    return centre + reach * float(mean), reach * math.sqrt(variance)


def _standard(
    parts: Mapping[str, Part], weights: Mapping[str, Array], scales: Mapping[str, tuple[float, float]]
) -> dict[str, Array]:
    """For each party the weights of (s - mean) / scale."""
    found = {}
    for name, part in parts.items():
        mean, scale = scales[name]
        own = weights[name] / scale
        if part.constant:
            own[-1] -= mean / (scale * part.preparation.intercept_entry)
        found[name] = own
    return found


def _joined(
    plan: Plan, parts: Mapping[str, Part], weights: Mapping[str, Array], factors: Array, intercept: float
) -> Array:
    """sum_m factor_m s_m + intercept as weights of rows that are prepared whole."""
    found = np.zeros(plan.dimension)
    for factor, (name, part) in zip(factors, parts.items(), strict=True):
        own = factor * weights[name]
        scale = part.preparation.scale / plan.preparation.scale
        found[part.start : part.stop] = own[: part.stop - part.start] * scale
        if part.constant:
            intercept += float(own[-1]) * part.preparation.intercept_entry
    if plan.fit_intercept:
        found[plan.features] = intercept / plan.preparation.intercept_entry
    regulariser = plan.scaled_regulariser
    return regulariser.prox(found, 1.0) if isinstance(regulariser.inner, ConstraintSet) else found
