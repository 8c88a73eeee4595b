"""`evaluation`: one noisy release of cells of scores, or of residuals, from which all metrics are computed.

It fits nothing: no `solver=` names it. A value between two nodes of a line is shared between them: hats over the nodes
are 1 at a node, 0 at the others and linear between. The sum of w_j times what node j got is then the sum of w's linear
interpolant at the values, so a linear function is summed exactly, and any other nearly so by its projection.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Annotated, ClassVar, Literal, cast

import numpy as np
from pydantic import Field

from sottovoce.algorithms.base import Algorithm, Array, Coordination, Need, Solution, Weight, public_model, total
from sottovoce.algorithms.evaluation.groups import ByGroup, Groups
from sottovoce.data.block import Block, BlockRows, toward_zero
from sottovoce.data.bounds import LARGEST, Bounds
from sottovoce.data.preparation import Preparation
from sottovoce.errors import InputError, RefusedError
from sottovoce.gate.query import Integers, Query, Round, label_party
from sottovoce.losses import ClassesLoss
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.plan.plan import ModelsOf

Function = Callable[[Array], Array]

# Up to so much signal (records in units of the noise): nodes, and the deviations from the mean to the end nodes. More
# nodes have more noise; with fewer, what lies beyond the ends or unevenly between nodes is as much as an interval.
LAYOUTS = ((1_000.0, 8, 1.75), (5_000.0, 12, 2.5), (20_000.0, 40, 4.0), (math.inf, 64, 5.0))

_AT, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_AT, _WEIGHTS = (_AT + 1) / 2, _WEIGHTS / 2  # on [0, 1]


@dataclass(frozen=True)
class Line:
    """Ascending nodes, at least two."""

    nodes: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.nodes)

    def shares(self, values: Array) -> tuple[Integers, Array]:
        """For each value the node j below it, and t in [0, 1]: j gets 1 - t and j + 1 gets t. Each on its own.

        Values beyond the end nodes count as these, a NaN as the first.
        """
        nodes = np.array(self.nodes)
        inside = np.fmax(np.fmin(values, nodes[-1]), nodes[0])
        below = np.clip(np.searchsorted(nodes, inside, side="right") - 1, 0, len(nodes) - 2)
        t = (inside - nodes[below]) / (nodes[below + 1] - nodes[below])
        return below, np.clip(t, 0.0, 1.0)

    def projection(self, function: Function, power: int = 0) -> Array:
        """Values at the nodes of the function's least-squares projection on the hats, over the whole line.

        A point in an interval weighs length^-power: so that where nodes are not evenly spaced the errors of long
        intervals do not reach the short ones.
        """
        products = np.zeros(len(self.nodes))
        for j, length in enumerate(np.diff(self.nodes)):
            found = function(self.nodes[j] + length * _AT) * _WEIGHTS * length ** (1.0 - power)
            products[j] += found @ (1 - _AT)
            products[j + 1] += found @ _AT
        return np.asarray(np.linalg.solve(self.gram(power), products))

    def gram(self, power: int = 0) -> Array:
        """The integrals of products of two hats, in which a point in an interval weighs length^-power."""
        found = np.zeros((len(self.nodes), len(self.nodes)))
        for j, length in enumerate(np.diff(self.nodes)):
            found[j : j + 2, j : j + 2] += length ** (1.0 - power) / 6 * np.array([[2.0, 1.0], [1.0, 2.0]])
        return found

    @functools.cached_property
    def order(self) -> Array:
        """R[a, b] = integral of h_a(s) h_b(u) over s > u."""
        found, before = np.zeros((len(self.nodes), len(self.nodes))), np.zeros(len(self.nodes))
        ends = np.array([[1 - _AT, _AT], [_AT - _AT**2 / 2, _AT**2 / 2]])  # hats, and their integrals so far
        for j, length in enumerate(np.diff(self.nodes)):
            hats, partial = ends[0], ends[1] * length
            found[j : j + 2] += length / 2 * before  # integrals of the hats up to the interval
            found[j : j + 2, j : j + 2] += length * (hats * _WEIGHTS) @ partial.T
            before[j : j + 2] += length / 2
        return found

    @functools.cached_property
    def above(self) -> Array:
        """K[a, b]: the projection of 1(s > u) on pairs of hats, s in that of a, u in that of b."""
        inverse = np.linalg.inv(self.gram())
        return np.asarray(inverse @ self.order @ inverse)


@dataclass(frozen=True)
class TwoSides:
    """Nodes of scores on both sides of 0, equally spaced on each; 0 is a node of either side.

    So what lies on which side of 0 is known without interpolation. A score of 0 is on the left, as in `predict`.
    """

    low: float
    high: float
    left: int
    right: int

    @functools.cached_property
    def sides(self) -> tuple[Line, Line]:
        return (
            Line(tuple(np.linspace(self.low, 0.0, self.left).tolist())),
            Line(tuple(np.linspace(0.0, self.high, self.right).tolist())),
        )

    @property
    def nodes(self) -> Array:
        """All of them; 0 is there twice."""
        left, right = self.sides
        return np.concatenate([left.nodes, right.nodes])

    def __len__(self) -> int:
        return self.left + self.right

    def shares(self, scores: Array) -> tuple[Integers, Array]:
        left, t = self.sides[0].shares(scores)
        right, u = self.sides[1].shares(scores)
        positive = scores > 0
        return np.where(positive, right + self.left, left), np.where(positive, u, t)

    def projection(self, function: Function) -> Array:
        left, right = self.sides
        return np.concatenate([left.projection(function), right.projection(function)])

    @functools.cached_property
    def above(self) -> Array:
        """As of a line."""
        gram, order = np.zeros((2, len(self), len(self)))
        for place, side in zip((slice(0, self.left), slice(self.left, None)), self.sides, strict=True):
            gram[place, place], order[place, place] = side.gram(), side.order
        totals = gram.sum(axis=1)
        order[self.left :, : self.left] = np.outer(totals[self.left :], totals[: self.left])
        inverse = np.linalg.inv(gram)
        return np.asarray(inverse @ order @ inverse)

    @classmethod
    def about(cls, mean: float, deviation: float, count: int, reach: float) -> TwoSides:
        """`count` nodes over `reach` deviations about the mean, shared out in proportion, at least two a side."""
        low = min(mean - reach * deviation, -deviation / 2)
        high = max(mean + reach * deviation, deviation / 2)
        left = min(max(round(count * -low / (high - low)), 2), count - 2)
        return cls(low, high, left, count - left)


RESIDUALS = Line((0.0, *(2.0**k for k in range(-6, 1))))  # sizes in half-widths of the label's range
LABELS = Line(tuple(np.linspace(-1.0, 1.0, 8).tolist()))
LARGEST_LOSS = 6.0  # a record's log-loss counts as no more
FLOAT = 1.0 + 2.0**-18  # in a sensitivity, for labels and squares that are rounded toward zero before they are summed


def loss_lines(classes: int) -> tuple[Line, Line]:
    """Nodes of the losses of records whose class has the largest score of all, and of the others."""
    most = math.log(classes)
    return Line((0.0, most / 4, most)), Line((math.log(2.0), 2.0, LARGEST_LOSS))


def cells(rows: Block, places: Integers, t: Array, count: int) -> Array:
    """Cell j gets 1 - t and cell j + 1 gets t of each record, j its place: exact; a null row adds nothing."""
    places, t = places[rows.usable_rows], t[rows.usable_rows]
    t = t if rows.bits is None else toward_zero(t, rows.sum_bits)
    # 1 - t is on the grid too: a record's two parts are exact, and so are their sums in any order.
    return np.asarray(rows.counted(places, 1.0 - t, count) + rows.counted(places + 1, t, count), dtype=np.float64)


def pair_cells(rows: Block, places: Integers, t: Array, parts: Array, count: int) -> Array:
    """The cells of t for what `parts`, in [0, 1], leave of each record, then those for `parts`: products, exact.

    They are on the grid, none is below 0, and those of a record add up to 1.
    """
    usable = rows.usable_rows
    places, t, parts = places[usable], t[usable], parts[usable]
    if rows.bits is not None:
        t, parts = (toward_zero(values.copy(), rows.sum_bits) for values in (t, parts))
    left = t * (1.0 - parts)
    above = left if rows.bits is None else toward_zero(left, rows.sum_bits)
    both = t - above
    shares = (1.0 - t - (parts - both), above, parts - both, both)
    ends = (places, places + 1, places + count, places + count + 1)
    counted = [rows.counted(end, share, 2 * count) for end, share in zip(ends, shares, strict=True)]
    return np.asarray(np.sum(counted, axis=0), dtype=np.float64)


class ScoreCells(Query):
    """For each class the cells of the scores x_i'w, w and the nodes public: 2 B numbers, the negative class first.

    Guarantee: a record adds 1 - t and t to two cells, a vector without entries below 0 and of norm at most 1. So
    zero-out moves the value by at most 1, replace-one by sqrt 2. Edges: a null row adds nothing.
    """

    name = "cells"
    title: ClassVar[str] = "scores of test records by class, counted in cells"
    needs: ClassVar[type] = BlockRows
    by_person: ClassVar[bool] = True
    replacement: ClassVar[float | None] = math.sqrt(2.0)
    bound = 1.0
    rounding_entries = 4.0

    def __init__(self, nodes: TwoSides, weights: Array) -> None:
        self.nodes, self.weights = nodes, weights
        self.length = 2 * len(nodes)

    def value(self, round: Round) -> Array:
        return round.rows.over(self._cells)

    def _cells(self, rows: Block) -> Array:
        places, t = self.nodes.shares(rows.scores(self.weights))
        return cells(rows, np.where(rows.labels > 0, places + len(self.nodes), places), t, self.length)


class ClassCells(Query):
    """Records by class and predicted class, K x K counts, and cells of their losses -log p_y: right ones, wrong ones.

    The weights have a row for each of K classes. A record whose class has the largest score is right and its loss at
    most log K; that of a wrong one is at least log 2. Without `losses` there are the counts alone.

    What says how likely each class is are the scores of the loss, or of ordered classes the logarithms of their shares.

    Guarantee: a record adds 1 to one count, and 1 - t and t to two cells: two vectors without entries below 0 and of
    norm at most 1. So zero-out moves the value by at most sqrt 2, replace-one by 2; without losses by 1 and sqrt 2.
    Edges: a null row adds nothing; of equal scores the first is the prediction; a NaN loss counts as the first node.
    """

    name = "cells"
    title: ClassVar[str] = "test records by class, predicted class and, where there are probabilities, loss"
    needs: ClassVar[type] = BlockRows
    by_person: ClassVar[bool] = True
    replacement: ClassVar[float | None] = math.sqrt(2.0)

    def __init__(self, weights: Array, loss: ClassesLoss) -> None:
        self.weights, self.loss, self.losses = weights, loss, loss.probabilities
        self.classes = len(weights)
        self.lines: tuple[Line, ...] = loss_lines(self.classes) if self.losses else ()
        self.length = self.classes**2 + sum(map(len, self.lines))
        self.bound = math.sqrt(2.0) if self.losses else 1.0
        self.rounding_entries = 6.0 if self.losses else 2.0

    def value(self, round: Round) -> Array:
        """A pass over the rows for each class, with a few numbers of each row at hand."""
        return round.rows.over(self._cells)

    def _cells(self, rows: Block) -> Array:
        labels, count = rows.labels.astype(np.int64), len(rows)
        predicted, largest = np.zeros(count, dtype=np.int64), np.full(count, -math.inf)
        total, own = np.full(count, -math.inf), np.zeros(count)
        each = self.loss.class_scores(lambda place: rows.scores(self.weights[place]))
        for place, scores in enumerate(each):
            predicted[scores > largest] = place
            np.maximum(largest, scores, out=largest)
            if self.losses:
                np.logaddexp(total, scores, out=total)  # of each record on its own
                np.copyto(own, scores, where=labels == place)
        usable = rows.usable_rows
        counts = rows.counted((labels * self.classes + predicted)[usable], None, self.classes**2)
        if not self.losses:
            return np.asarray(counts, dtype=np.float64)
        (places, t), (beyond, u) = (line.shares(total - own) for line in self.lines)
        right, size = labels == predicted, len(self.lines[0])
        places, t = np.where(right, places, beyond + size), np.where(right, t, u)
        return np.concatenate([counts, cells(rows, places, t, self.length - len(counts))])


class ResidualCells(Query):
    """Cells of r = min(1, |x_i'w - y_i|); of the labels y_i in [-1, 1] for 1 - r^2 and for r^2; sum y_i and sum y_i^2.

    Guarantee: a record adds four parts of norm at most 1 each, so zero-out moves the value by at most 2. Replace-one:
    by sqrt 2 in either kind of cells; y and y^2 move together by at most 2; in all by sqrt 8. Edges: a null row adds
    nothing, a NaN counts as the last node.
    """

    name = "cells"
    title: ClassVar[str] = "residuals and labels of test records, counted in cells, and the labels' first two moments"
    needs: ClassVar[type] = BlockRows
    by_person: ClassVar[bool] = True
    replacement: ClassVar[float | None] = math.sqrt(2.0)
    bound = 2.0 * FLOAT
    rounding_entries = 14.0
    length = len(RESIDUALS) + 2 * len(LABELS) + 2

    def __init__(self, weights: Array) -> None:
        self.weights = weights

    def value(self, round: Round) -> Array:
        return round.rows.over(self._cells)

    def _cells(self, rows: Block) -> Array:
        labels = np.clip(rows.labels, -1.0, 1.0)
        residuals = np.fmin(np.abs(rows.scores(self.weights) - labels), 1.0)
        usable = labels[rows.usable_rows]
        powers, exact = (usable.copy(), usable * usable), rows.bits is not None
        parts = (toward_zero(part, rows.sum_bits) if exact else part for part in powers)
        moments = [rows.number_total(part) for part in parts]
        sizes = cells(rows, *RESIDUALS.shares(residuals), len(RESIDUALS))
        both = pair_cells(rows, *LABELS.shares(labels), residuals * residuals, len(LABELS))
        return np.concatenate([sizes, both, moments])


Side = Annotated[int, Field(ge=2, le=64)]
People = Literal["others", "same"]  # whether test people are others than those of the fit, as declared

WIDE = 4.0  # scores up to which nodes go where nothing is known of their spread


@dataclass(frozen=True)
class Subject:
    """What is evaluated: weights on prepared rows, and mean and deviation of the training scores where known.

    Of several classes the weights have a row for each. By columns `scores` names the plan of the model, and the weights
    are those on the prepared scores (`score_recipe`), which the plan need not say.
    """

    weights: Array
    spread: tuple[float, float] | None = None
    people: People = "others"
    scores: str = ""
    groups: Groups | None = None
    labels: tuple[float, float] | None = None  # of counts: what the fit released of their mean and residuals


class Evaluated(Numbers):
    """The model, public, and who the test people are.

    `scores` is the plan of a model over columns. There are no weights then: the rows of the holder of the labels are
    the scores that it received as the recipient of joint predictions, one number for each person. It alone answers.
    """

    result: ClassVar[str] = "evaluation"

    weights: tuple[Weight, ...]
    people: People
    scores: str = Field(pattern="^([0-9a-f]{64})?$")
    groups: Groups | None = None
    left_out: ClassVar[tuple[str, ...]] = ("groups",)


class EvaluatedClassesNumbers(Evaluated):
    """And the nodes of the scores."""

    low: float = Field(ge=-LARGEST, le=-1e-9, allow_inf_nan=False)
    high: float = Field(ge=1e-9, le=LARGEST, allow_inf_nan=False)
    left: Side
    right: Side


_IN_GROUPS = ("classification", "regression")  # kinds of outcomes that are told by group
_IN_SEVERAL = "a person with several records may be in several groups, so that cells by group have no bound by person"


class _Evaluation(Algorithm):
    """One release of cells; the plan has the model, so every party knows what it answers before it is charged."""

    name: ClassVar[str] = "evaluation"
    private: ClassVar[bool | None] = None
    people: ClassVar[bool | None] = None
    secure: ClassVar[tuple[str, ...]] = ("rows",)
    options: ClassVar[tuple[str, ...] | None] = ()
    numbers: ClassVar[type[Numbers]] = Evaluated

    @abstractmethod
    def cells(self, problem: Problem, numbers: Evaluated, weights: Array) -> Query:
        """What is counted of a model of these weights."""

    def grouped(self, problem: Problem, numbers: Evaluated, weights: Array) -> Query:
        """The same of each group, where there are groups."""
        query = self.cells(problem, numbers, weights)
        return query if numbers.groups is None else ByGroup(query, numbers.groups)

    def nodes(self, _problem: Problem, _subject: Subject) -> dict[str, float]:
        """What else the numbers of a plan have."""
        return {}

    def design(self, problem: Problem, options: Subject) -> Design:
        """One release; nobody is told a model at the end."""
        if options.groups is not None and problem.most_records is not None:
            raise InputError(f"by={options.groups.column!r}: {_IN_SEVERAL}; leave by out, or person.")
        if options.groups is not None and problem.scaled_loss.kind not in _IN_GROUPS:
            raise InputError(f"by={options.groups.column!r}: figures by group are of classes or numbers; leave it out.")
        weights = () if options.scores else tuple(options.weights.ravel().tolist())
        subject = {"weights": weights, "people": options.people, "scores": options.scores, "groups": options.groups}
        numbers = cast("Evaluated", self.numbers(**subject, **self.nodes(problem, options)))
        query = self.grouped(problem, numbers, options.weights)
        releases = (Release.at_mu(query, 0, 1, problem.mu, problem.relation),)
        models: ModelsOf = "kept" if problem.split.same_people else "shared"
        return Design(rounds=1, numbers=numbers, releases=releases, models=models)

    def queries(self, plan: Plan, _party: str) -> tuple[Query, ...]:
        """On the plan's model and a party's own rows, or by columns on the scores of a model that the plan names.

        Then the holder of the labels answers; a record is with all parties, so all of them are charged for it.
        """
        by_columns, numbers = plan.split.same_people, plan.numbers
        if not by_columns == bool(numbers.scores) == (not numbers.weights):
            raise RefusedError(
                "an evaluation by columns, and no other, names the plan of its model and has no weights."
            )
        if numbers.groups is not None:
            holder = plan.part(plan.label_party_name if by_columns else plan.names[0])
            if (reason := numbers.groups.objection(holder.start, holder.stop)) is not None:
                raise RefusedError(f"an evaluation by groups, and {reason}.")
            if plan.most_records is not None:
                raise RefusedError(f"an evaluation by groups, and {_IN_SEVERAL}.")
            if plan.scaled_loss.kind not in _IN_GROUPS:
                raise RefusedError("an evaluation by groups, and not of classes or numbers.")
        query = self.grouped(plan, numbers, score_weights(plan) if by_columns else public_model(plan))
        if by_columns:
            query.answered_by = label_party
        return (query,)

    def coordinate(self, plan: Plan) -> Coordination:
        """The sum of the parties' cells, as the solution's model; by columns those of the holder of the labels."""
        return Solution(np.array(plan.numbers.weights), model=(yield from total("cells")))


class EvaluatedClasses(_Evaluation):
    """Scores counted in cells by class: accuracy, AUC, log-loss, Brier, confusion, calibration from one release.

    Guarantee: mu = (sensitivity 1, replace-one sqrt 2) / std, whatever the model and the nodes (`proof.md`).
    """

    form: ClassVar[str] = "classes"
    title: ClassVar[str] = "private evaluation: scores counted in cells by class"
    splits = ("central", "rows", "columns")
    needs: ClassVar[tuple[Need, ...]] = (Need(lambda loss: loss.kind == "classification", "tells classes, not {!r}"),)
    numbers: ClassVar[type[Numbers]] = EvaluatedClassesNumbers

    def nodes(self, problem: Problem, subject: Subject) -> dict[str, float]:
        """8 nodes, or more where the noise is small for the number of records."""
        widest = (
            float(np.linalg.norm(subject.weights)) if problem.private else WIDE
        )  # no prepared row's score is beyond
        signal = problem.signal / (1 if subject.groups is None else len(subject.groups.names))
        count, reach = next((count, reach) for most, count, reach in LAYOUTS if signal <= most)
        mean, deviation = subject.spread or (0.0, min(WIDE, widest) / reach)
        return asdict(TwoSides.about(mean, max(deviation, 1e-3), count, reach))

    def cells(self, _problem: Problem, numbers: Evaluated, weights: Array) -> Query:
        return ScoreCells(nodes_of(numbers), weights)


class EvaluatedSeveral(_Evaluation):
    """Records counted by class and predicted class and, of a model with probabilities, their losses in cells.

    Guarantee: mu = (sensitivity sqrt 2, replace-one 2) / std, without losses (1, sqrt 2) / std, whatever the model
    (`proof.md`).
    """

    form: ClassVar[str] = "several"
    title: ClassVar[str] = "private evaluation: records counted by class and predicted class, their losses in cells"
    several: ClassVar[bool] = True
    ordered: ClassVar[bool | None] = None

    def cells(self, problem: Problem, _numbers: Evaluated, weights: Array) -> Query:
        own = weights.reshape(problem.scaled_loss.outputs, problem.dimension)
        loss = problem.scaled_loss
        assert isinstance(loss, ClassesLoss), "it has several scores"  # noqa: S101
        return ClassCells(own, loss)


class EvaluatedNumbers(_Evaluation):
    """Residuals and labels counted in cells: mean squared and absolute error and R^2 from one release.

    The nodes are those of the declared range of the label.

    Guarantee: mu = (sensitivity 2, replace-one sqrt 8) / std, whatever the model (`proof.md`).
    """

    form: ClassVar[str] = "numbers"
    title: ClassVar[str] = "private evaluation: residuals and labels counted in cells"
    splits = ("central", "rows", "columns")
    needs: ClassVar[tuple[Need, ...]] = (Need(lambda loss: loss.kind == "regression", "tells numbers, not {!r}"),)

    def cells(self, _problem: Problem, _numbers: Evaluated, weights: Array) -> Query:
        return ResidualCells(weights)


def nodes_of(numbers: Numbers) -> TwoSides:
    """The nodes of the scores."""
    return TwoSides(numbers.low, numbers.high, numbers.left, numbers.right)


def score_recipe(problem: Problem) -> Preparation:
    """By columns: how the holder of the labels prepares the scores, as rows of one column.

    What is beyond the bound counts as at it in any case: scores at the end nodes, residuals of the label's half-width.
    Those of counts are logarithms.
    """
    low, high, declared = problem.bounds.label_low, problem.bounds.label_high, Bounds.declare(row_norm=WIDE)
    if problem.classes is None and low is not None and high is not None:
        most = WIDE if problem.preparation.counts else max(-low, high) + high - low
        declared = Bounds.declare(row_norm=most, label_bound=(low, high))
    return replace(problem.preparation, bounds=declared, features=1)


def score_weights(problem: Problem) -> Array:
    """The weights on such a row, by which its score is the score."""
    return score_recipe(problem).weights_of(np.ones(1), 0.0)


from sottovoce.algorithms.evaluation.counts import EvaluatedCounts  # noqa: E402  # which takes its base from here
from sottovoce.algorithms.evaluation.times import EvaluatedTimes  # noqa: E402  # likewise

FORMS: tuple[Algorithm, ...] = (
    EvaluatedClasses(),
    EvaluatedSeveral(),
    EvaluatedNumbers(),
    EvaluatedCounts(),
    EvaluatedTimes(),
)
