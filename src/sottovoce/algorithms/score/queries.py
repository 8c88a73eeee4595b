"""What the parties of `score` release: sums for a party's own fit, scores of everybody, and products with them.

Every bound holds whatever the coordinator says: a query cuts what it is told. A release is calibrated on the answers of
all parties together, since a person is in every one of them. `proof.md` has the proofs.
"""

from __future__ import annotations

import math
from typing import ClassVar, cast

import numpy as np

from sottovoce.data.block import Block, toward_zero
from sottovoce.gate.query import Array, Query, Reals, Round, World, all_but_label_party, label_party
from sottovoce.losses import Loss
from sottovoce.plan.problem import Problem
from sottovoce.privacy.events import Relation, either
from sottovoce.queries.parts import NoisyLabels
from sottovoce.queries.sums import GradientSum, GramMatrix, check_norm


def labels_last(problem: Problem) -> tuple[str, ...]:
    """The parties, that with the labels last."""
    last = problem.label_party_name
    return (*(name for name in problem.names if name != last), last)


def score_queries(problem: Problem, slope_bound: float, party: str) -> tuple[Query, ...]:
    """What a party may be asked; of what it never answers, the query of a party that does."""
    order = labels_last(problem)
    queries: tuple[Query, ...] = (
        OwnGram(problem.part(party).preparation.dimension),
        OwnGradient(problem, party, slope_bound),
        ScoreMoments(problem, party, 1),
        ScoreValues(problem, party),
        ScoreProducts(problem, party, order.index(party)),
    )
    if problem.held_labels:
        without = order[0] if party == order[-1] else party
        queries += NoisyLabels(problem), LabelMoments(problem, without), LabelProducts(problem, order[-1])
    return queries


class OwnGram(GramMatrix):
    """X'X of a party's own columns."""

    together: ClassVar[bool] = True
    world_sees: ClassVar[World] = "each"


class OwnQuery(Query):
    """A function of a party's own columns and of what its message carries.

    c are numbers of everybody from other parties. A message has the weights of all parties, one after another, and a
    party takes its own.
    """

    together: ClassVar[bool] = True
    world_sees: ClassVar[World] = "each"
    carries: ClassVar[tuple[str, ...]]
    columns = 0  # rows of c

    def __init__(self, problem: Problem, party: str) -> None:
        sizes = [problem.part(name).preparation.dimension for name in problem.names]
        place = problem.names.index(party)
        self.start, self.dimension, people = sum(sizes[:place]), sizes[place], problem.records
        shapes = {"weights": (sum(sizes),), "columns": (self.columns, people), "labels": (people,), "centre": (1,)}
        self.takes = {name: Reals(shapes[name]) for name in self.carries}  # of any size: the value cuts them

    def own_weights(self, round: Round) -> Array:
        return np.asarray(round.told["weights"][self.start : self.start + self.dimension])


class OwnGradient(OwnQuery, GradientSum):
    """The gradient sum of a party's own fit; of psi, the slope less its label, at a party that lacks the labels."""

    carries: ClassVar[tuple[str, ...]] = ("weights",)
    samples: ClassVar[bool] = False

    def __init__(self, problem: Problem, party: str, slope_bound: float) -> None:
        loss, recipe = problem.scaled_loss, problem.part(party).preparation
        if not recipe.labelled:
            loss = cast("Loss", WithoutLabel(loss))
        GradientSum.__init__(self, recipe.dimension, slope_bound, loss)
        OwnQuery.__init__(self, problem, party)

    def value(self, round: Round) -> Array:
        return GradientSum.value(self, round._replace(told={"weights": self.own_weights(round)}))


class WithoutLabel:
    """psi(u), the mean of the slopes at the two labels, as a loss whose slope does not depend on the label."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss

    def derivative(self, u: Array, _y: Array) -> Array:
        return self._loss.slope_without_label(u)


class ScoreValues(OwnQuery):
    """z = cut(x'w, -1, 1) of every person.

    Guarantee: a number is a function of its own record, at most 1 in absolute value and 0 for a null row, so zero-out
    moves the value by at most 1, replace-one by 2. The world sees sums of cut(z + noise) alone.
    """

    name = "scores"
    title: ClassVar[str] = "a score of every person"
    each_person: ClassVar[bool] = True
    answered_by = all_but_label_party
    world_sees: ClassVar[World] = "nothing"
    carries: ClassVar[tuple[str, ...]] = ("weights",)
    bound = 1.0
    rounding_entries = 1.0

    def __init__(self, problem: Problem, party: str) -> None:
        super().__init__(problem, party)
        self.length = problem.records

    def value(self, round: Round) -> Array:
        return clip_scores(round.rows, self.own_weights(round))


class ScoreProducts(OwnQuery):
    """(sum z^2, sum z c_1, ..., sum z c_L) for z = cut(x'w, -1, 1), c the noisy scores of the L parties before.

    Guarantee: zero-out moves it by at most sqrt(1 + L), replace-one by 2 sqrt L (1 if L = 0). c is cut here to +-1, z
    and c are put on the grid, and sums are exact.
    """

    name = "products"
    title: ClassVar[str] = "products of scores"
    one_by_one: ClassVar[bool] = True
    carries: ClassVar[tuple[str, ...]] = ("weights", "columns")

    def __init__(self, problem: Problem, party: str, columns: int) -> None:
        self.columns, self.length, self.rounding_entries = columns, 1 + columns, 1.0 + columns
        super().__init__(problem, party)
        self.bound = math.sqrt(1.0 + columns)

    def sensitivity(self, relation: Relation) -> float:
        """The largest (z - z')^2 ((z + z')^2 + L), under the root."""
        return either(relation, zero_out=self.bound, replace_one=max(1.0, 2.0 * math.sqrt(self.columns)))

    def value(self, round: Round) -> Array:
        return self.sums(round, round.told["columns"])

    def sums(self, round: Round, columns: Array) -> Array:
        own = clip_scores(round.rows, self.own_weights(round))
        return np.array([own @ own, *(within(column, round.rows.bits) @ own for column in columns)])


class ScoreMoments(ScoreProducts):
    """(sum z^2, sum z): the products with a column of ones."""

    name = "moments"
    title: ClassVar[str] = "sums and squares of scores"
    one_by_one: ClassVar[bool] = False
    carries: ClassVar[tuple[str, ...]] = ("weights",)

    def value(self, round: Round) -> Array:
        return self.sums(round, np.ones((1, len(round.rows))))


class LabelMoments(OwnQuery):
    """sum_i c_i x_i, c the noisy labels, which are clipped to +-1 and put on the grid here; |x_i| <= 1.

    Guarantee: zero-out moves it by at most 1, replace-one by 2. Sums are exact.
    """

    name = "pull"
    title: ClassVar[str] = "products of features and noisy labels"
    answered_by = all_but_label_party
    carries: ClassVar[tuple[str, ...]] = ("labels",)
    bound = 1.0

    def __init__(self, problem: Problem, party: str) -> None:
        super().__init__(problem, party)
        self.length, self.rounding_entries = self.dimension, float(self.dimension)

    def value(self, round: Round) -> Array:
        check_norm(round.rows)
        return round.rows.column_dots(within(round.told["labels"], round.rows.bits))


class LabelProducts(OwnQuery):
    """sum_i v_i c_il, v = (y - m) / (1 + |m|) for a public |m| <= 1 and 0 for a null row, c the L noisy scores.

    Guarantee: |v| <= 1, and c is cut here to +-1, so zero-out moves it by at most sqrt L, replace-one by 2 sqrt L. Sums
    are exact.
    """

    name = "slopes"
    title: ClassVar[str] = "products of labels and noisy scores"
    answered_by = label_party
    carries: ClassVar[tuple[str, ...]] = ("columns", "centre")

    def __init__(self, problem: Problem, party: str) -> None:
        self.length = self.columns = len(problem.parties) - 1
        super().__init__(problem, party)
        self.bound, self.rounding_entries = math.sqrt(self.columns), float(self.columns)

    def value(self, round: Round) -> Array:
        rows, middle = round.rows, float(np.clip(round.told["centre"][0], -1.0, 1.0))
        varied = (np.clip(rows.labels, -1.0, 1.0) - middle) / (1.0 + abs(middle))
        own = within(np.where(rows.usable_rows, varied, 0.0), rows.bits)
        return np.array([within(column, rows.bits) @ own for column in round.told["columns"]])


def within(values: Array, bits: int | None) -> Array:
    """Numbers clipped to [-1, 1], NaN to 1, and put on the exact grid."""
    cut = np.fmax(np.fmin(values, 1.0), -1.0)
    return cut if bits is None else toward_zero(cut, bits)


def clip_scores(rows: Block, weights: Array) -> Array:
    """Scores x'w clipped to [-1, 1], on the exact grid; each depends on its own row alone."""
    return within(rows.scores(weights), rows.bits)
