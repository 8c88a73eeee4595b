"""Sums over rows: of slopes times rows, of products of features, of one bounded number for each record.

Whitened rows are seen through a public matrix P, made of earlier releases and told once; what it makes of the rows
stays at the holder. Their sums are divided by what bounds a term, so that they have sensitivity 1 whatever P and the
clips are: the plan is fixed before the run, and the coordinator multiplies. Proofs: `gate/proofs/queries.md`, at row
norm 1; of numbers and whitened rows `algorithms/whitened/proof.md`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.block import Block, RecordRows, SumRows
from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.data.matrix import Slope, Slopes
from sottovoce.data.projection import Projected
from sottovoce.errors import InputError, LeakError
from sottovoce.gate.query import Array, ForgottenError, MessageArrays, Plain, Query, Reals, Round, Wholes, misfit
from sottovoce.losses import ClassesLoss, Loss, Weighted
from sottovoce.plan import Plan, Problem

if TYPE_CHECKING:
    from sottovoce.data.people_block import PeopleBlock


class GradientSum(Query):
    """sum_i l'(x_i'w, y_i) x_i with |l'| <= slope_bound and |x_i| <= 1.

    Guarantee: zero-out moves it by at most slope_bound, replace-one by twice that, in l2.
    Edges: a null row and an empty block contribute 0; derivatives are clipped in code, a NaN to the bound.
    """

    name = "gradient"
    title: ClassVar[str] = "gradients of the loss"
    needs: ClassVar[type] = SumRows
    samples: ClassVar[bool] = True

    def __init__(self, dimension: int, slope_bound: float, loss: Loss) -> None:
        if not 1e-100 <= slope_bound <= 1e100:
            raise InputError(f"slope_bound={slope_bound!r} must be a positive finite number.")
        self.slope_bound, self.loss = slope_bound, loss
        self.bound, self.length, self.rounding_entries = slope_bound, dimension, float(dimension)
        self.takes = {"weights": Reals((dimension,))}

    def message(self, weights: Array, _gram: Array | None = None) -> dict[str, NDArray[Any]]:
        """What asks for it at these weights; the second argument is an opened Gram matrix, where there is one."""
        return {"weights": weights.ravel()}

    def joint_step(self, bits: int) -> float | None:
        return float(2.0 ** (math.ceil(math.log2(self.slope_bound)) - 2 * bits))

    def value(self, round: Round) -> Array:
        check_norm(round.rows)
        term = clipped_derivative(self.loss, self.slope_bound, round.rows.bits)
        return round.rows.weighted_sum(self.weights(round), term).ravel()

    def weights(self, round: Round) -> Array:
        return round.told["weights"]


class ColumnSizes(Plain):
    """sum_i x_ij^2 of every column j, the constant's too: what steps are measured by in a run without privacy."""

    name = "sizes"
    title: ClassVar[str] = "mean squares of the columns"
    needs: ClassVar[type] = SumRows

    def __init__(self, dimension: int) -> None:
        self.length = dimension

    def value(self, round: Round) -> Array:
        return round.rows.gram_diagonal()


class ClassesSum(GradientSum):
    """sum_i x_i l'(x_i'W, y_i) of several classes, a matrix: |l'| <= slope_bound, row by row, and |x_i| <= 1.

    Guarantee: zero-out moves it by at most slope_bound, replace-one by twice that, in the Frobenius norm.
    Edges: as of one score; a row of slopes with a NaN counts as (slope_bound, 0, ...).
    """

    samples: ClassVar[bool] = False

    def __init__(self, dimension: int, slope_bound: float, loss: ClassesLoss) -> None:
        super().__init__(dimension * loss.outputs, slope_bound, loss)

    def weights(self, round: Round) -> Array:
        return np.asarray(round.told["weights"].reshape(-1, self.loss.outputs))


def gradient_sum(dimension: int, slope_bound: float, loss: Loss) -> GradientSum:
    """Of one score for each record, or of several."""
    if isinstance(loss, ClassesLoss):
        return ClassesSum(dimension, slope_bound, loss)
    return GradientSum(dimension, slope_bound, loss)


def clipped_derivative(loss: Loss, bound: float, bits: int | None) -> Any:
    """The slopes of a sum. Without bits (a run without privacy) nothing is cut; the gate takes no such rows then."""
    if bits is None:
        return loss.derivative
    return Slopes(loss, bound, bits) if isinstance(loss, ClassesLoss) else Slope(loss, bound, bits)


def check_norm(rows: Block) -> None:
    """Refuse rows that may be longer than 1, which the bounds of sums over rows count on."""
    if rows.row_norm > 1.0:
        raise LeakError("the rows of the block are longer than the query's sensitivity allows for.")


class GramMatrix(Query):
    """X'X as its upper triangle, |x_i|^2 <= `square`; off-diagonal entries weigh sqrt 2 (the Frobenius norm).

    Guarantee: zero-out moves it by at most the square, replace-one by sqrt 2 times that, since |dd' - ee'|_F <= sqrt 2
    for |d|, |e| <= 1.
    Edges: a null row and an empty block contribute 0.
    """

    name = "gram"
    title: ClassVar[str] = "products of every two features (Gram matrix)"
    needs: ClassVar[type] = SumRows
    replacement: ClassVar[float | None] = math.sqrt(2.0)

    def __init__(self, dimension: int, square: float = 1.0) -> None:
        self.dimension, self.bound = dimension, square
        self.rounding_entries = float(dimension**2)
        self.length = dimension * (dimension + 1) // 2

    @functools.cached_property
    def places(self) -> tuple[NDArray[Any], ...]:
        """Those of the triangle, row by row; a query of another party's columns never needs them."""
        return np.triu_indices(self.dimension)

    @functools.cached_property
    def noise_weights(self) -> Array:  # type: ignore[override]
        """1 on the diagonal, sqrt 2 off it."""
        return np.where(self.places[0] == self.places[1], 1.0, math.sqrt(2.0))

    def joint_step(self, bits: int) -> float | None:
        return float(4.0**-bits)

    def value(self, round: Round) -> Array:
        check_norm(round.rows)
        return np.asarray(round.rows.gram()[self.places])

    def matrix(self, triangle: Array) -> Array:
        """The symmetric matrix of a released triangle."""
        full = np.zeros((self.dimension, self.dimension))
        full[self.places] = triangle
        return full + np.triu(full, 1).T


class PersonGram(GramMatrix):
    """sum_i S_i / K of people, S_i the sum of x x' over a person's records, scaled to a trace of K at most.

    Guarantee: 1 and sqrt 2, as |S_i|_F <= trace S_i and no two such matrices have an inner product below 0. K is a
    power of two, so that nothing is rounded. Edges: a person without usable records contributes 0.
    """

    by_person: ClassVar[bool] = True
    needs: ClassVar[type] = RecordRows

    def __init__(self, dimension: int, most: float) -> None:
        super().__init__(dimension)
        self.most = most

    def joint_step(self, bits: int) -> float | None:
        return float(4.0**-bits / self.most)

    def value(self, round: Round) -> Array:
        check_norm(round.rows)
        return np.asarray(cast("PeopleBlock", round.rows).person_gram(self.most)[self.places] / self.most)

    def matrix(self, triangle: Array) -> Array:
        return self.most * super().matrix(triangle)


class ColumnSquares(Query):
    """The diagonal of X'X, |x_i| <= 1: what is left of a Gram matrix that would be too large.

    Guarantee: zero-out moves it by at most 1, since |x * x| <= |x|^2; replace-one by sqrt 2, since two such vectors
    have no entry below 0 and so an inner product of at least 0. Edges: as of the matrix.
    """

    name = "squares"
    title: ClassVar[str] = "the square of every feature"
    needs: ClassVar[type] = SumRows
    replacement: ClassVar[float | None] = math.sqrt(2.0)
    bound = 1.0

    def __init__(self, dimension: int) -> None:
        self.length, self.rounding_entries = dimension, float(dimension)

    def value(self, round: Round) -> Array:
        check_norm(round.rows)
        return round.rows.gram_diagonal()


class NumberSum(Query):
    """The sum of one number for each record, clipped to [low, 1]; 0 for a null row. Of people: of the means of theirs.

    Guarantee: zero-out moves it by at most 1, replace-one by 1 - low. Edges: a NaN counts as 1.
    """

    needs: ClassVar[type] = SumRows
    by_person: ClassVar[bool] = True
    bound = 1.0
    length = 1
    rounding_entries = 1.0
    low: ClassVar[float] = 0.0
    replacement: ClassVar[float | None] = 1.0  # the length of [low, 1]

    def __init__(self, dimension: int = 0) -> None:
        self.takes = {"weights": Reals((dimension,))} if dimension else {}  # public ones, of the scores

    def number(self, scores: Array, labels: Array) -> Array:
        """Of each record, a function of its score and label alone."""
        raise NotImplementedError

    def value(self, round: Round) -> Array:
        return np.array([round.rows.number_sum(self.number, self.low, round.told.get("weights"))])


class RecordCount(NumberSum):
    """sum_i n_i / T over people, n_i of the T records that may count."""

    name = "person-records"
    title: ClassVar[str] = "the mean number of records of a person"
    needs: ClassVar[type] = RecordRows

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def value(self, round: Round) -> Array:
        return np.array([cast("PeopleBlock", round.rows).record_share_sum(self.most)])


class LabelSum(NumberSum):
    """sum_i y_i of labels in [-1, 1]."""

    name = "label"
    title: ClassVar[str] = "the mean label"
    low: ClassVar[float] = -1.0
    replacement: ClassVar[float | None] = 2.0

    def number(self, _scores: Array, labels: Array) -> Array:
        return labels


class WeightSum(NumberSum):
    """sum_i of the weights of the classes, each in (0, 1]."""

    name = "weight"
    title: ClassVar[str] = "the mean weight of the classes"

    def __init__(self, loss: Weighted) -> None:
        super().__init__()
        self.loss = loss

    def number(self, _scores: Array, labels: Array) -> Array:
        return self.loss.of(labels)


class ScoreSum(NumberSum):
    """sum_i clip(x_i'w, -1, 1)."""

    name = "score"
    title: ClassVar[str] = "the mean score"
    low: ClassVar[float] = -1.0
    replacement: ClassVar[float | None] = 2.0

    def number(self, scores: Array, _labels: Array) -> Array:
        return scores


class SquareSum(NumberSum):
    """sum_i min(1, (x_i'w)^2)."""

    name = "square"
    title: ClassVar[str] = "the mean square of the scores"

    def number(self, scores: Array, _labels: Array) -> Array:
        return scores * scores


class ResidualSum(NumberSum):
    """sum_i min(1, |x_i'w - y_i|)."""

    name = "residual"
    title: ClassVar[str] = "the mean size of the residuals"

    def number(self, scores: Array, labels: Array) -> Array:
        residuals: Array = abs(scores - labels)  # the rows may be on a device, whose arrays are not NumPy's
        return residuals


class ClassCounts(Query):
    """How many records each class has; null rows have none.

    Guarantee: zero-out moves it by at most 1, replace-one by sqrt 2: one number up and another down.
    """

    name = "classes"
    title: ClassVar[str] = "how many records each class has"
    needs: ClassVar[type] = SumRows
    by_person: ClassVar[bool] = True
    bound = 1.0
    replacement: ClassVar[float | None] = math.sqrt(2.0)
    rounding_entries = 2.0

    def __init__(self, classes: int) -> None:
        self.length = classes

    def value(self, round: Round) -> Array:
        return np.array([round.rows.number_sum(functools.partial(_belongs_to, place)) for place in range(self.length)])


def _belongs_to(place: int, _scores: Array, labels: Array) -> Array:
    """1 for a record of the class."""
    found: Array = (labels == place).astype(np.float64)
    return found


Kind = Literal["triangular", "diagonal", "vectors"]

STEEPEST = 2.0**40  # entry of a projection
FINEST = 2**31 - 1  # whole numbers either side of 0 that an entry is told in
POSITIVE = Reals((1,), SMALLEST, LARGEST)


@dataclass(frozen=True)
class ProjectionShape:
    """How a projection of rows of `dimension` columns is told."""

    dimension: int
    kind: Kind  # as its lower triangle, as a diagonal, or as `columns` vectors
    columns: int = 0

    @property
    def takes(self) -> dict[str, Reals]:
        """What a message has of P: whole numbers of 4 bytes, and what one of them stands for."""
        d = self.dimension
        shape = {"triangular": (d * (d + 1) // 2,), "diagonal": (d,), "vectors": (d, self.columns)}[self.kind]
        return {"projection": Wholes(shape, -FINEST, FINEST), "unit": Reals((1,), SMALLEST, STEEPEST / FINEST)}

    def message(self, matrix: Array) -> dict[str, NDArray[Any]]:
        """What is sent for a matrix, or for the diagonal of one."""
        numbers = matrix[np.tril_indices(self.dimension)] if self.kind == "triangular" else matrix
        unit = max(float(np.abs(numbers).max()) / FINEST, SMALLEST)
        whole = np.clip(np.rint(numbers / unit), -FINEST, FINEST).astype(np.int64)
        return {"projection": whole, "unit": np.array([unit])}

    def matrix(self, told: MessageArrays) -> Array:
        """The matrix that was told, or the diagonal of it."""
        numbers = np.asarray(told["projection"] * float(told["unit"][0]))
        if self.kind != "triangular":
            return numbers
        full = np.zeros((self.dimension, self.dimension))
        full[np.tril_indices(self.dimension)] = numbers
        return full


class Seen(NamedTuple):
    """Rows seen through a P, and what was told of it and, once they are cut, of C."""

    rows: Projected
    told: dict[str, NDArray[Any]]


class LengthSum(NumberSum):
    """sum_i min(1, |P'x_i| / radius); the holder keeps P and the lengths for `ProjectedGradient`."""

    name = "length"
    title: ClassVar[str] = "the mean length of the whitened rows"

    def __init__(self, shape: ProjectionShape) -> None:
        self.shape, self.takes = shape, {**shape.takes, "radius": POSITIVE}

    def value(self, round: Round) -> Array:
        rows = round.rows.projected(self.shape.matrix(round.told), made=self.shape.kind == "vectors")
        told = {"projection": round.told["projection"], "unit": round.told["unit"]}
        round.memory["gradient"] = Seen(rows, told)
        radius = float(round.told["radius"][0])
        return np.array([rows.number_sum(lambda lengths, _: lengths / radius)])


class ProjectedGradient(Query):
    """sum_i z_i / C min(1, C / |z_i|) r(z_i'u + a, y_i), z_i = P'x_i, with |.| <= 1 for each record.

    r is the slope l' in units of G, `cut`. Of several classes u is a matrix with a column for each, a and r are vectors
    (`clip_rows`), and so the sum is a matrix, in the Frobenius norm.
    Guarantee: zero-out moves it by at most 1, replace-one by 2, whatever P, C, G, u and a are.
    Edges: a null row and an empty block contribute 0; a NaN slope counts as G. The first round is told C and, unless
    `LengthSum` was told it, P; a holder that has lost them asks for both, which any round may tell again.
    """

    name = "gradient"
    title: ClassVar[str] = "gradients of the loss on whitened rows"
    needs: ClassVar[type] = SumRows
    told_before: ClassVar[bool] = True  # whether `LengthSum` was told P
    bound = 1.0

    def __init__(self, shape: ProjectionShape, loss: Loss, first: float = math.inf) -> None:
        self.shape, self.loss, self.first = shape, loss, first  # the last is the first round
        self.length = (shape.columns or shape.dimension) * loss.outputs
        self.rounding_entries = float(self.length)
        learned = {name: Reals((count,), 0.0, LARGEST) for name, count in loss.learned.items()}
        self.takes = {"point": Reals((self.length,)), "offset": Reals((loss.outputs,)), "slope": POSITIVE, **learned}
        self.cuts = {"cut": POSITIVE}  # what is told of how rows are cut, beside P

    def takes_at(self, number: int) -> Mapping[str, Reals]:
        """u, a and G; in the first round C, and P where this query is told it."""
        if number > self.first:
            return self.takes
        return {**self.takes, **self.cuts, **({} if self.told_before else self.shape.takes)}

    def objection(self, number: int, told: MessageArrays) -> str | None:
        """Any round may tell P and C, both of them, again."""
        takes = self.takes_at(number)
        if "projection" in told:
            takes = {**takes, **self.cuts, **self.shape.takes}
        return misfit(takes, told)

    def value(self, round: Round) -> Array:
        memory, told = round.memory, round.told
        loss = self.loss.hearing(told) if self.loss.learned else self.loss
        public = self.follows_from(told, memory)
        if "projection" in told:
            memory.clear()  # the rows of the stage before
            kept = {"projection": told["projection"], "unit": told["unit"]}
            matrix = self.shape.matrix(told)
            memory[self.name] = Seen(round.rows.projected(matrix, made=self.shape.kind == "vectors"), kept)
        seen: Seen = memory[self.name]
        rows = seen.rows
        if not rows.ready:
            lengths = list[float]()
            for name in self.cuts:
                seen.told[name] = public[name]
                lengths.append(float(public[name][0]))
            rows.cut(*lengths)
        most, point, offset = float(told["slope"][0]), told["point"], told["offset"].tolist()
        if isinstance(loss, ClassesLoss):
            several = Slopes(loss, self.bound, rows.bits, most, tuple(offset))
            return rows.weighted_sum(point.reshape(-1, loss.outputs), several).ravel()
        return rows.weighted_sum(point, Slope(loss, self.bound, rows.bits, most, offset[0]))

    def follows_from(self, told: MessageArrays, memory: dict[str, Seen]) -> MessageArrays:
        """With P and C, as the rows were seen through them."""
        if "projection" in told:
            return told
        seen = memory.get(self.name)
        if seen is None or seen.rows.ready == ("cut" in told):  # a C for rows that have theirs comes with a P
            raise ForgottenError(f"query {self.name!r} needs rows that were projected and cut; tell P and C.")
        return {**seen.told, **told}


class ScaleGradient(ProjectedGradient):
    """The same for rows (score, 1): the derivatives by the slope and the intercept of a score."""

    name = "rescale"
    title: ClassVar[str] = "gradients of the slope and the intercept of the score"
    told_before: ClassVar[bool] = False


class PersonGradient(ProjectedGradient):
    """sum_i T_i min(1, K / |T_i|) / K of people, T_i the sum of the terms of `ProjectedGradient` of a person's records.

    Guarantee: zero-out moves it by at most 1, replace-one by 2, whatever P, C, K, G, u and a are, and however many
    records a person has. K is told with C.
    """

    by_person: ClassVar[bool] = True
    needs: ClassVar[type] = RecordRows

    def __init__(self, shape: ProjectionShape, loss: Loss, first: float, most: int) -> None:
        super().__init__(shape, loss, first)
        self.cuts = {"cut": POSITIVE, "together": Reals((1,), 1.0, float(most))}


class PersonScaleGradient(PersonGradient):
    """The same for rows (score, 1): the derivatives by the slope and the intercept of a score."""

    name = "rescale"
    title: ClassVar[str] = ScaleGradient.title
    told_before: ClassVar[bool] = False


def first_round(problem: Problem, query: str) -> float:
    """The first round of a release; infinite where there is none yet."""
    return problem.release(query).first if isinstance(problem, Plan) and problem.has(query) else math.inf
