"""Made-up records of a public shape, and records of a public look-alike: what a simulation is fitted to.

**Columns.** By a schema: a number is normal around the middle of its range, which is eight standard deviations wide,
and clipped to it (a range that nobody knows is [-1, 1]); of a category's levels, in a random order, level k has a share
in proportion to 1/k; a yes/no is yes for 20 to 80 in a hundred. Without one: normal entries of a quarter of the
declared bound of their column, and so small that a row has at most about half the declared row norm. Columns are
independent of one another.

**Labels.** Each number has an effect drawn from a normal law, and each level of a category its own; the score is their
sum, centred. Of two classes the chance of the second is 1/(1 + exp(-c score)), of several they are the softmax of c
times a score each; c is such that the true model has the accuracy `strength`. A numeric label is the score plus normal
noise, `strength` of its variance being the score's; its range is eight standard deviations wide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import softmax

from sottovoce.arguments import is_number
from sottovoce.data.cells import table_columns
from sottovoce.data.column_kinds import Category, Column, Number, YesNo
from sottovoce.data.schema import Schema
from sottovoce.errors import InputError
from sottovoce.plan.problem import Problem

Array = NDArray[np.float64]

ACCURACY: Final = 0.8  # of the true model, where nothing else is asked for
EXPLAINED: Final = 0.5  # of the variance of a numeric label, likewise
MOST_FEATURES: Final = 10_000
WIDTH: Final = 8.0  # of a range, in standard deviations
TEST: Final = 10_000  # records to score on
_STEEPEST: Final = 1e4


@dataclass(frozen=True, eq=False)
class Records:
    """Rows and labels: a matrix, or the cells of a table by the names of its columns."""

    X: Any
    y: NDArray[Any]

    def take(self, rows: Any) -> Records:
        if isinstance(self.X, Mapping):
            return Records({name: cells[rows] for name, cells in self.X.items()}, self.y[rows])
        return Records(self.X[rows], self.y[rows])


@dataclass(frozen=True, eq=False)
class LookAlike:
    """Records that the user calls public: some of them to fit to, others to score on, anew in every run."""

    records: Records

    @classmethod
    def of(cls, like: Any, schema: Schema | None) -> LookAlike:
        """A pair (X, y), or a table whose label column the schema names."""
        X, y = like if isinstance(like, tuple | list) and len(like) == 2 else (like, None)
        if schema is not None:
            cells = table_columns(X)
            y = schema.labels(cells) if y is None else y
            X = {name: cells[name] for name in schema.columns if name in cells}
        if y is None:
            where = "give like=(X, y)" if schema is None else "name the label column in the schema, or give like=(X, y)"
            raise InputError(f"like has no labels; {where}.")
        if sp.issparse(X):
            X = cast("Any", X).tocsr()
        elif not isinstance(X, Mapping):
            X = np.asarray(X, dtype=np.float64)
        labels = np.asarray(y)
        count = len(next(iter(X.values()))) if isinstance(X, Mapping) else X.shape[0]
        if labels.ndim != 1 or len(labels) != count or count < 10:
            raise InputError(f"like must be at least 10 records with a label each; it has {count} rows.")
        return cls(Records(X, labels))

    @property
    def features(self) -> int | None:
        return None if isinstance(self.records.X, Mapping) else int(self.records.X.shape[1])

    @property
    def most(self) -> int:
        """The most records that there are to fit to: two thirds of them, or all but `TEST`."""
        count = len(self.records.y)
        return count - min(count // 3, TEST)

    def draw(self, train: int, generator: np.random.Generator) -> tuple[Records, Records]:
        order = generator.permutation(len(self.records.y))
        return self.records.take(order[:train]), self.records.take(order[train : train + TEST])

    def __str__(self) -> str:
        return f"a public look-alike of {len(self.records.y):,} records"


@dataclass(frozen=True, eq=False)
class MadeUp:
    """Records about nobody, by the laws that the module states; effects are drawn anew with every call of `draw`."""

    problem: Problem
    schema: Schema | None
    strength: float
    missing: float = 0.0  # the share of a table's cells that are blank

    most: ClassVar[int | None] = None  # any number can be made

    @classmethod
    def of(cls, problem: Problem, schema: Schema | None, strength: float | None = None, missing: float = 0.0) -> MadeUp:
        """The strength checked, or the default one."""
        least = 0.0 if problem.classes is None else 1 / len(problem.classes)
        usual = EXPLAINED if problem.classes is None else ACCURACY
        strength = usual if strength is None else strength
        if not (is_number(strength) and least < strength < 1):
            what = "share of the label's variance" if problem.classes is None else "accuracy of the true model"
            raise InputError(
                f"strength={strength!r} must be the {what}, between {least:.3g} and 1; {usual:g} is usual."
            )
        if not (is_number(missing) and 0 <= missing < 1) or (missing and schema is None):
            raise InputError(f"missing={missing!r} must be a share of a table's cells from 0 to 1, and needs a schema.")
        if problem.features > MOST_FEATURES:
            raise InputError(
                f"features={problem.features}: records are made up for at most {MOST_FEATURES:,} features; give a "
                "public look-alike, like=(X, y)."
            )
        return cls(problem, schema, float(strength), float(missing))

    def draw(self, train: int, generator: np.random.Generator) -> tuple[Records, Records]:
        count = train + TEST
        scores = np.zeros((count, self._outputs))
        X: Any
        if self.schema is None:
            X, scores = self._rows(count, generator)
        else:
            X = {}
            for name, column in self.schema.columns.items():
                cells, parts = self._cells(column, count, generator)
                blank = generator.random(count) < self.missing
                X[name] = np.where(blank, np.array(None, dtype=object), cells) if blank.any() else cells
                scores += np.where(blank[:, None], 0.0, parts)
        scores = (scores - scores.mean(axis=0)) / scores.std()
        made = Records(X, self._labels(scores, generator))
        return made.take(slice(train)), made.take(slice(train, None))

    @property
    def _outputs(self) -> int:
        return len(self.problem.classes) if self.problem.classes is not None and len(self.problem.classes) > 2 else 1

    def _rows(self, count: int, generator: np.random.Generator) -> tuple[Array, Array]:
        """Rows of a matrix, in the units of the declared ranges, and their scores."""
        bounds, d = self.problem.bounds, self.problem.features
        normal = np.clip(generator.standard_normal((count, d)), -WIDTH / 2, WIDTH / 2)
        spread = np.minimum(bounds.columns(d) / (WIDTH / 2), (bounds.row_norm or np.inf) / (2 * np.sqrt(d)))
        rows = normal * spread
        if bounds.feature_low is not None and bounds.feature_high is not None:
            low, high = np.array(bounds.feature_low), np.array(bounds.feature_high)
            rows = (low + high) / 2 + rows * (high - low) / 2
        return rows, normal @ generator.standard_normal((d, self._outputs))

    def _cells(self, column: Column, count: int, generator: np.random.Generator) -> tuple[NDArray[Any], Array]:
        """The cells of a column, and what they add to the scores."""
        if isinstance(column, Number):
            normal = np.clip(generator.standard_normal(count), -WIDTH / 2, WIDTH / 2)
            low, high = column.ranges[0]
            cells = (low + high) / 2 + normal * (high - low) / WIDTH
            return cells, normal[:, None] * generator.standard_normal(self._outputs)
        levels: tuple[Any, ...]
        if isinstance(column, YesNo):
            levels, shares = (column.no, column.yes), np.array([1.0, generator.uniform(0.25, 4.0)])
        elif isinstance(column, Category):
            levels, shares = column.levels, 1.0 / (1 + generator.permutation(len(column.levels)))
        else:
            raise InputError(f"schema: records are not made up for a column such as {column.name!r}; give like=....")
        places = generator.choice(len(levels), size=count, p=shares / shares.sum())
        effects = generator.standard_normal((len(levels), self._outputs))
        return np.array(levels, dtype=object)[places], effects[places]

    def _labels(self, scores: Array, generator: np.random.Generator) -> NDArray[Any]:
        count, classes = len(scores), self.problem.classes
        if classes is None:
            noise = generator.standard_normal(count)
            unit = np.sqrt(self.strength) * scores[:, 0] + np.sqrt(1 - self.strength) * noise
            centre, half = self.problem.bounds.label_scale(fit_intercept=self.problem.fit_intercept)
            return np.asarray(centre + half * np.clip(unit / (WIDTH / 2), -1.0, 1.0))
        whole = scores if len(classes) > 2 else np.column_stack([np.zeros(count), scores[:, 0]])

        def excess(steepness: float) -> float:
            return float(softmax(steepness * whole, axis=1).max(axis=1).mean()) - self.strength

        steepness = brentq(excess, 0.0, _STEEPEST) if excess(_STEEPEST) > 0 else _STEEPEST
        sums = softmax(steepness * whole, axis=1).cumsum(axis=1)
        places = (generator.random((count, 1)) > sums[:, :-1]).sum(axis=1)
        return np.asarray(np.array(classes, dtype=object)[places])

    def __str__(self) -> str:
        what = "R^2" if self.problem.classes is None else "accuracy"
        return f"made-up records, for which the true model has {what} {self.strength:g}"


RecordSource = LookAlike | MadeUp
