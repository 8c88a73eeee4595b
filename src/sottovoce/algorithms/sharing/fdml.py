"""`fdml`: gradient steps over columns (Hu et al. 2019, the stochastic baseline of ADMM sharing)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import (
    Algorithm,
    Ask,
    Coordination,
    Design,
    Family,
    Problem,
    Solution,
    TailAverage,
    draft,
    option,
    problem_loss,
    public_coin,
    slope_bound,
    summed,
)
from sottovoce.algorithms.sharing.gradients import (
    KeptRows,
    Memory,
    View,
    Views,
    bend,
    bound_of,
    shrinkage,
    unit_gradients,
)
from sottovoce.algorithms.sharing.parts import PartQuery, PartSums, slopes_of
from sottovoce.algorithms.sharing.updates import check_exact, part_regulariser
from sottovoce.data.block import Block, Layout, is_sparse
from sottovoce.data.bounds import LARGEST
from sottovoce.door.gate import Gate, Released
from sottovoce.door.query import Query, Walk, WithoutBound
from sottovoce.errors import InputError
from sottovoce.plan.plan import Part, Plan, Release, ScaledRegulariser, Split

Array = NDArray[np.float64]

MOMENTUM = 0.9
ROUNDS, RATE, BATCH = 2000, 0.01, 32  # without privacy: 20 epochs, of batches that are not too small
FEWEST, MOST, NOISE = 16, 256, 0.2  # with noise: rounds, and how far it may carry the weights in all of them


class Fdml(Family):
    """Steps w_m <- prox(w_m - step g_m + 0.9 (w_m - w_m before)) of all parties at once, g_m a gradient of their part.

    Without privacy: `ExactSteps`, on batches. With it: `KeptSteps`, on noisy rows that each party keeps. The answer is
    the mean of the second half of the weights.
    """

    name: ClassVar[str] = "fdml"
    title: ClassVar[str] = "gradient steps over columns: parties exchange scores of the records"
    splits: ClassVar[tuple[Split, ...]] = ("columns",)
    options: ClassVar[tuple[str, ...]] = tuple(dict.fromkeys(("rounds", "rate", "step", *KeptRows.options)))

    def form(self, about: Plan | Problem, *, private: bool) -> Algorithm:  # noqa: ARG002
        """With noise or without."""
        return KeptSteps() if private else ExactSteps()


class KeptSteps(KeptRows):
    """Gradient steps on scores of rows with noise, drawn once (`KeptRows` has the round and its cost).

    A party weighs its clean rows by the slopes l'(s_i, label_i), cut, and says the sum with noise: g_m. The step is
    1 / (f k N B_m^2 + ridge) with the loss's curvature k, B_m^2 = b_m^2 + 1 and f = max(M / 2, c_m). Before the first
    round each party tells the means of its columns.
    """

    name: ClassVar[str] = "fdml"
    title: ClassVar[str] = "private gradient steps: rows with noise once, noisy gradients"
    view_share: ClassVar[float] = 0.05

    def view(self, plan: Plan, part: Part) -> PartQuery:
        """The means."""
        return PartSums(plan, part)

    def views(self, plan: Plan) -> Views:
        """From the means."""
        sums = yield Ask("sums", {}, round=0)
        return {name: MeanView(plan, name, total) for name, total in sums.items()}

    def rounds_of(self, problem: Problem, signal: float) -> int:
        """Fewer where there is more noise: steps that do not shrink add it up."""
        long = unit_gradients(draft(problem, layout="entries")).sensitivity("zero-out")
        most = NOISE * bend(problem_loss(problem)) * signal * long / slope_bound(problem)
        return int(min(MOST, max(FEWEST, most)))

    def slopes(self, plan: Plan, scores: Array, labels: Array, memory: Memory, *, blurred: bool) -> Array:
        """Those of the loss."""
        del memory
        return slopes_of(plan.scaled_loss, scores, labels, blurred=blurred)


class MeanView(View):
    """Steps of one length in all directions."""

    def __init__(self, plan: Plan, name: str, sums: Array) -> None:
        part = plan.part(name)
        query = PartSums(plan, part)
        super().__init__(plan, sums / plan.records if plan.fit_intercept else np.zeros(query.width))
        self.plan, self.regulariser = plan, part_regulariser(plan, part)
        self.before = self.weights
        self.bound, self.ridge = bound_of(plan, name), shrinkage(plan, name)
        self.bend = bend(plan.scaled_loss) * plan.records * query.long**2

    def step(self, gradient: Array) -> Array:
        """As said above."""
        length = 1 / (max(len(self.plan.parties) / 2, self.wider) * self.bend + self.ridge)
        pull = self.bound * gradient
        pull[: self.width] += self.ridge * self.weights[: self.width]
        free = glide(self.weights, self.before, length * pull)
        self.before = self.weights
        return self.regulariser.prox(free, length * self.plan.records)

    def spread(self, weights: Array) -> float:
        """How far from even the party's level is: without moments, the view that says most is taken for the widest."""
        return abs(float(self.mean @ weights[: self.width] + weights[self.width :].sum()))


def glide(weights: Array, before: Array, move: Array) -> Array:
    """A step, and a share of the last one. Where it leads nowhere, there was nothing to move: so a prox may follow."""
    return np.asarray(weights - move + MOMENTUM * (weights - before))


class ExactSteps(Algorithm):
    """A round: every party says the scores D_m w_m of a batch, the holder of the labels answers l' at their sum.

    Then every party takes a step with g_m = D_m'l' / (records of the batch). Batches are `rate` of the records, in an
    order that a public coin draws for each epoch. The step is `step` / (k R^2) with the loss's curvature k, at most 1,
    and the mean square R^2 of the rows' norms, of which each party tells its part first.

    Guarantee: none; a party answers only where its holder allows runs without privacy. Labels that one party alone
    knows are refused: the sign of a slope is the label.
    Edges: steps do not shrink, so the answer is near the minimum and not at it; `admm` arrives. A ball or a box bounds
    the weights of each party on its own; a record that is unusable at one party counts there as zeros.
    """

    name: ClassVar[str] = "fdml"
    title: ClassVar[str] = "gradient steps on batches over columns, without privacy"
    splits: ClassVar[tuple[Split, ...]] = ("columns",)
    options: ClassVar[tuple[str, ...]] = ("rounds", "rate", "step")
    kinds: ClassVar[Mapping[str, str]] = {"scores": "scores", "slopes": "slopes", "weights": "weights"}
    resumes: ClassVar[bool] = False
    layout: ClassVar[Layout] = "entries"
    samples: ClassVar[bool] = False

    def design(self, problem: Problem) -> Design:
        """Batches of a hundredth of the records, at least 32 of them."""
        check_exact(problem, self.name)
        least = 1 / problem.records
        numbers = {
            "rate": option(problem, "rate", min(1.0, max(RATE, BATCH * least)), low=least, high=1.0),
            "step": option(problem, "step", 1.0, low=1e-12),
        }
        rounds = option(problem, "rounds", ROUNDS, low=1, whole=True)
        counts = {"sizes": 1, "weights": 1, "scores": rounds, "slopes": rounds}
        releases = tuple(Release.of(WithoutBound(name), 0, count, 0.0, 1.0) for name, count in counts.items())
        return Design(rounds, numbers, releases, layout="entries")

    def queries(self, plan: Plan) -> Mapping[str, Query | Walk]:
        """Those of the party that holds the labels."""
        return self.queries_of(plan, plan.holder_name)

    def queries_of(self, plan: Plan, party: str) -> Mapping[str, Query | Walk]:
        """Each with the regulariser of the party's own part."""
        regulariser = part_regulariser(plan, plan.part(party))
        return {
            "sizes": Sizes("sizes"),
            "weights": Weights(regulariser),
            "scores": Scores(regulariser),
            "slopes": Slopes(plan),
        }

    def coordinate(self, plan: Plan) -> Coordination:
        """Sums of scores."""
        size = float(summed((yield Ask("sizes", {}, round=0)))[0]) / plan.records
        step = plan["step"] / (bend(plan.scaled_loss) * size) if size > 0.0 else 0.0
        said: dict[str, NDArray[Any]] = {"step": np.array([step])}
        for t in range(plan.rounds):
            scores = summed((yield Ask("scores", said, round=t)))
            if not np.abs(scores).max() <= LARGEST:
                raise InputError(f"step={plan['step']:g}: the scores diverge; take a smaller one, or a larger rate.")
            (slopes,) = (yield Ask("slopes", {"scores": scores}, (plan.holder_name,), t)).values()
            said = {"slopes": slopes}
        weights = np.zeros(plan.dimension)
        for name, values in (yield Ask("weights", said, round=0)).items():
            own = plan.part(name)
            weights[own.start : own.stop] = values[: own.stop - own.start]
            if own.constant:
                weights[plan.features] = values[-1]
        return Solution(weights)

    def remember(self, plan: Plan, block: Block) -> State:
        """Weights of 0."""
        return State(plan, block)

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
        """Plain values."""
        del plan
        return gate.gaussian(query, round_, block, round_, arrays, memory)

    def objection(self, plan: Plan, query: str, round_: int, arrays: Mapping[str, NDArray[Any]]) -> str | None:
        """Nothing is protected; a message that cannot be read is refused with a reason."""
        if query == "sizes":
            return None
        name, count = "scores", batch_size(plan, round_)
        if query != "slopes":
            last = (plan.rounds if query == "weights" else round_) - 1
            name, count = ("step", 1) if last < 0 else ("slopes", batch_size(plan, last))
        vector = arrays.get(name)
        if vector is not None and vector.dtype == np.float64 and vector.shape == (count,):
            return None
        return f"query {query!r} in round {round_} needs {count} float64 numbers, called {name!r}."

    def serves(self, plan: Plan, party: str, query: str, round_: int) -> bool:
        """Slopes come from the holder of the labels."""
        mine = query != "slopes" or party == plan.holder_name
        return super().serves(plan, party, query, round_) and mine


class State:
    """What a party keeps from round to round: its weights, and the batch of the last scores."""

    def __init__(self, plan: Plan, block: Block) -> None:
        rows = block.rows
        self.rows = rows.tocsr() if is_sparse(rows) else np.ascontiguousarray(rows)
        self.rounds, self.batches = plan.rounds, Batches(plan)
        self.weights = self.before = np.zeros(block.dimension)
        self.tail = TailAverage(block.dimension, plan.rounds // 2)
        self.batch: Any = self.rows[:0]
        self.length = 0.0

    def scores(self, round_: int) -> Array:
        """D_m w_m of a round's batch."""
        self.batch = self.rows[self.batches[round_]]
        return np.asarray(self.batch @ self.weights)

    def step(self, round_: int, slopes: Array, regulariser: ScaledRegulariser) -> None:
        """By the slopes of that round."""
        gradient = self.batch.T @ slopes / len(slopes)
        free = glide(self.weights, self.before, self.length * gradient)
        self.before, self.weights = self.weights, regulariser.prox(free, self.length)
        self.tail.add(round_, self.weights)


class Batches:
    """The records of each round: every epoch goes through all of them, in an order of its own."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._count = plan, batch_count(plan)
        self._epoch, self._order = -1, np.zeros(0, dtype=np.int64)

    def __getitem__(self, round_: int) -> NDArray[np.int64]:
        epoch, place = divmod(round_, self._count)
        if epoch != self._epoch:
            order = public_coin(self._plan, f"batches of epoch {epoch}").permutation(self._plan.records)
            self._epoch, self._order = epoch, order
        return self._order[place * len(self._order) // self._count : (place + 1) * len(self._order) // self._count]


def batch_count(plan: Plan) -> int:
    """Batches of an epoch: the fewest that have at most a share `rate` of the records, or one record."""
    return min(math.ceil(1 / plan["rate"]), plan.records)


def batch_size(plan: Plan, round_: int) -> int:
    """How many records a round has."""
    count = batch_count(plan)
    place = round_ % count
    return (place + 1) * plan.records // count - place * plan.records // count


class Sizes(WithoutBound):
    """The sum of the squares of all entries, the constant column's too."""

    def value(self, block: Block, *arguments: Any) -> Array:
        """One number."""
        del block
        rows = arguments[2].rows
        entries = rows.data if is_sparse(rows) else rows.ravel()
        return np.array([float(entries @ entries)])


class Scores(WithoutBound):
    """D_m w_m of a batch, after a step by the slopes of the last one."""

    def __init__(self, regulariser: ScaledRegulariser) -> None:
        super().__init__("scores")
        self.regulariser = regulariser

    def value(self, block: Block, *arguments: Any) -> Array:
        """In the first round there is no step, but its length is told."""
        del block
        round_, arrays, state = arguments
        if round_ == 0:
            state.length = float(arrays["step"][0])
        else:
            state.step(round_ - 1, arrays["slopes"], self.regulariser)
        return np.asarray(state.scores(round_))


class Slopes(WithoutBound):
    """l'(score, label) of a batch, at the holder of the labels."""

    def __init__(self, plan: Plan) -> None:
        super().__init__("slopes")
        self.loss = plan.scaled_loss

    def value(self, block: Block, *arguments: Any) -> Array:
        """One slope for each record of the batch."""
        round_, arrays, state = arguments
        return self.loss.derivative(arrays["scores"], block.labels[state.batches[round_]])


class Weights(WithoutBound):
    """The mean of the second half of the weights, after the last step."""

    def __init__(self, regulariser: ScaledRegulariser) -> None:
        super().__init__("weights")
        self.regulariser = regulariser

    def value(self, block: Block, *arguments: Any) -> Array:
        """The end of the run."""
        del block
        _, arrays, state = arguments
        state.step(state.rounds - 1, arrays["slopes"], self.regulariser)
        return np.array(state.tail.value)
