"""`fdml` without privacy: gradient steps on batches over columns (Hu et al. 2019, the baseline of ADMM sharing)."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sottovoce.algorithms.base import (
    Algorithm,
    Array,
    Coordination,
    Solution,
    TailAverage,
    answer,
    answers,
    given,
    how_far,
    limited,
    total,
)
from sottovoce.algorithms.sharing.admm_exact import ANY, check_exact, curvature, join_weights, momentum_step
from sottovoce.data.block import Block, Layout
from sottovoce.data.bounds import LARGEST
from sottovoce.errors import InputError, RefusedError
from sottovoce.gate.query import MessageArrays, Plain, Query, Reals, Round, label_party
from sottovoce.penalties.base import ScaledRegulariser
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.solvers import FDML

ROUNDS, RATE, BATCH = 2000, 0.01, 32  # 20 epochs, of batches that are not too small


class FDMLNumbers(Numbers):
    """The share of the records in a batch, and the length of a step in units of 1 / (k R^2)."""

    rate: float = Field(gt=0, le=1)
    step: float = Field(gt=0)


class ExactFDML(Algorithm):
    """A round: every party says the scores D_m w_m of a batch, the party with the labels answers l' at their sum.

    Then all parties take a step w_m <- prox(w_m - step g_m + 0.9 (w_m - w_m before)), g_m = D_m'l' / (records of the
    batch). Batches are `rate` of the records, in an order that a public coin draws for each epoch. The step is `step` /
    (k R^2) with the loss's curvature k, at most 1, and the mean square R^2 of the rows' norms, of which each party
    tells its part first. The answer is the mean of the second half of the weights.

    Guarantee: none; a party answers only where its holder allows runs without privacy. Labels that one party alone
    knows are refused: the sign of a slope is the label.
    Edges: steps do not shrink, so the answer is near the minimum and not at it; `admm` arrives. A ball or a box bounds
    the weights of each party on its own; a record that is unusable at one party counts there as zeros.
    """

    name: ClassVar[str] = "fdml"
    form: ClassVar[str] = "exact"
    title: ClassVar[str] = "gradient steps on batches over columns, without privacy"
    splits = ("columns",)
    private: ClassVar[bool | None] = False
    options: ClassVar[tuple[str, ...] | None] = ("rounds", "rate", "step")
    layout: ClassVar[Layout] = "entries"
    lasts: ClassVar[tuple[str, ...]] = ("weights", "before", "length", "number")  # and the means of the weights
    numbers: ClassVar[type[Numbers]] = FDMLNumbers

    def design(self, problem: Problem, options: FDML) -> Design:
        """Batches of a hundredth of the records, at least 32 of them."""
        check_exact(problem, self.name)
        least, rounds = 1 / problem.records, given(options.rounds, ROUNDS)
        rate = limited("rate", given(options.rate, min(1.0, max(RATE, BATCH * least))), least, 1.0)
        queries, counts = self.queries(problem, problem.names[0]), {"scores": rounds, "slopes": rounds}
        releases = (Release.of(query, 0, counts.get(query.name, 1), 0.0, 1.0) for query in queries)
        numbers = FDMLNumbers(rate=rate, step=given(options.step, 1.0))
        return Design(rounds=rounds, numbers=numbers, releases=tuple(releases))

    def queries(self, plan: Problem, party: str) -> tuple[Query, ...]:
        return RowSquares(), FinalWeights(plan, party), BatchScores(plan, party), BatchSlopes(plan)

    def remember(self, plan: Plan, rows: Block) -> PartDescent:
        return PartDescent(plan, rows)

    def lasting(self, memory: PartDescent) -> dict[str, NDArray[Any]]:
        return super().lasting(memory) | {"tail": memory.tail.state, "late": memory.late.state}

    def recall(self, memory: PartDescent, lasting: Mapping[str, NDArray[Any]]) -> PartDescent:
        """And the batch of that round."""
        super().recall(memory, {name: lasting[name] for name in self.lasts})
        memory.tail.state, memory.late.state = lasting["tail"], lasting["late"]
        if memory.number >= 0:
            memory.batch = memory.products.take(batch_records(memory.plan, memory.number))
        return memory

    def coordinate(self, plan: Plan) -> Coordination:
        """Sums of scores to the party with the labels, its slopes to all."""
        size = float((yield from total("sizes"))[0]) / plan.records
        step = plan.numbers.step / (curvature(plan.scaled_loss) * size) if size > 0.0 else 0.0
        message = {"step": np.array([step])}
        for _ in range(plan.rounds):
            scores = yield from total("scores", **message)
            if not np.abs(scores).max() <= LARGEST:
                length = f"step={plan.numbers.step:g}"
                raise InputError(f"{length}: the scores diverge; take a smaller one, or a larger rate.")
            message = {"slopes": (yield from answer("slopes", scores=scores))}
        final = yield from answers("weights", **message)
        apart, whole = np.sqrt(sum(value[-2:] for value in final.values()))
        share = apart / whole if whole > 0.0 else 0.0
        far = how_far(plan.rounds, share, "the drift of the scores in the last half", 0.05)
        return Solution(join_weights(plan, {name: value[:-2] for name, value in final.items()}), unfinished=far)


class PartDescent:
    """What a party keeps from round to round: its weights, and the batch of the last scores."""

    def __init__(self, plan: Plan, rows: Block) -> None:
        self.products = rows.products.by_row()
        self.plan = plan
        self.weights = self.before = np.zeros(rows.dimension)
        self.tail = TailAverage(rows.dimension, plan.rounds // 2)
        self.late = TailAverage(rows.dimension, 3 * plan.rounds // 4)
        self.batch = self.products.take(slice(0))
        self.length = 0.0
        self.number = -1  # the round of the last scores

    def scores(self, number: int) -> Array:
        """D_m w_m of a round's batch."""
        self.number = number
        self.batch = self.products.take(batch_records(self.plan, number))
        return self.batch.scores(self.weights)

    def step(self, number: int, slopes: Array, regulariser: ScaledRegulariser) -> None:
        if len(slopes) != len(batch_records(self.plan, number)) or number != self.number:
            raise RefusedError("the rounds of a descent come one after another; this one does not follow the last.")
        gradient = self.batch.sums(slopes) / len(slopes)
        free = momentum_step(self.weights, self.before, self.length * gradient)
        self.before, self.weights = self.weights, regulariser.prox(free, self.length)
        self.tail.add(number, self.weights)
        self.late.add(number, self.weights)


@functools.lru_cache(maxsize=4)
def order_of(plan: Plan, epoch: int) -> NDArray[np.int64]:
    """The order in which an epoch goes through all records."""
    return np.asarray(plan.public_coin(f"batches of epoch {epoch}").permutation(plan.records))


def batch_records(plan: Plan, number: int) -> NDArray[np.int64]:
    """The records of a round."""
    epoch, start, stop = batch_of(plan, number)
    return order_of(plan, epoch)[start:stop]


def batch_of(plan: Plan, number: int) -> tuple[int, int, int]:
    """(epoch, start, stop) of a round; batches have at most a share `rate` of the records, or one record."""
    count = min(math.ceil(1 / float(plan.numbers.rate)), plan.records)
    epoch, place = divmod(number, count)
    return epoch, place * plan.records // count, (place + 1) * plan.records // count


def of_batch(plan: Plan, number: int) -> Reals:
    """A number for each record of a round."""
    _, start, stop = batch_of(plan, number)
    return Reals((stop - start,), *ANY)


class RowSquares(Plain):
    """The sum of the squares of all entries, the constant column's too."""

    name = "sizes"
    title: ClassVar[str] = "the mean square of the rows"

    def value(self, round: Round) -> Array:
        return np.array([round.memory.products.sum_of_squares()])


class BatchScores(Plain):
    """D_m w_m of a round's batch, after a step by the slopes of the batch before."""

    name = "scores"
    title: ClassVar[str] = "the score of every person of a batch"
    each_person: ClassVar[bool] = True

    def __init__(self, problem: Problem, party: str) -> None:
        self.plan, self.regulariser = cast("Plan", problem), problem.part_regulariser(party)

    def takes_at(self, number: int) -> Mapping[str, Reals]:
        """The slopes of the batch before; in the first round there is no step, but its length is told."""
        return {"slopes": of_batch(self.plan, number - 1)} if number else {"step": Reals((1,), *ANY)}

    def gives_at(self, number: int, _told: MessageArrays) -> Reals:
        return of_batch(self.plan, number)

    def value(self, round: Round) -> Array:
        if round.number == 0:
            round.memory.length = float(round.told["step"][0])
        else:
            round.memory.step(round.number - 1, round.told["slopes"], self.regulariser)
        return np.asarray(round.memory.scores(round.number))


class BatchSlopes(Plain):
    """l'(score, label) of a batch. Its sign is the label, so no form with held labels may use it."""

    name = "slopes"
    title: ClassVar[str] = "the slope of every person of a batch"
    each_person: ClassVar[bool] = True
    answered_by = label_party

    def __init__(self, problem: Problem) -> None:
        self.plan = cast("Plan", problem)

    def takes_at(self, number: int) -> Mapping[str, Reals]:
        return {"scores": of_batch(self.plan, number)}

    def gives_at(self, number: int, _told: MessageArrays) -> Reals:
        return of_batch(self.plan, number)

    def value(self, round: Round) -> Array:
        labels = round.rows.labels[batch_records(round.plan, round.number)]
        return round.plan.scaled_loss.derivative(round.told["scores"], labels)


class FinalWeights(Plain):
    """The mean of the second half of the weights, after the last step, and how far that of the last quarter is from it.

    The distance is that of the scores, as a sum of squares, beside the sum of squares of the scores themselves.
    """

    name = "weights"
    title: ClassVar[str] = "the weights of a party"

    def __init__(self, problem: Problem, party: str) -> None:
        self.plan, self.regulariser = cast("Plan", problem), problem.part_regulariser(party)
        self.length = problem.part(party).preparation.dimension + 2

    def takes_at(self, _number: int) -> Mapping[str, Reals]:
        return {"slopes": of_batch(self.plan, self.plan.rounds - 1)}

    def value(self, round: Round) -> Array:
        round.memory.step(round.plan.rounds - 1, round.told["slopes"], self.regulariser)
        state: PartDescent = round.memory
        late = state.late.value
        apart, whole = (state.products.scores(w) for w in (late - state.tail.value, late))
        return np.array([*state.tail.value, float(apart @ apart), float(whole @ whole)])
