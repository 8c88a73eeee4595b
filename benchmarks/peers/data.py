"""The data sets, prepared once for every method, by public constants.

Rows have norm 1 at most; labels are -1 and 1, or in [-1, 1].
Sets come from the folder named by SOTTOVOCE_DATA, else they are downloaded. Rows are shuffled by a fixed seed; where a
set has no official test part, a fifth of them is it. The last fifth of the training rows is what tuning is judged on;
the model is then fitted on all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

import sottovoce as sv
from sottovoce.data.block import is_sparse

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A data set with what is public about it.

    `entry_bound`: an entry is at most this. `width`: columns of the first of two parties. `norms`: the bounds of the
    two parties' parts of a row. `unit`: what a label of 1 is in the units of the set.
    """

    name: str
    X: Any
    y: Array
    X_test: Any
    y_test: Array
    regression: bool
    entry_bound: float
    width: int
    norms: tuple[float, float]
    unit: float = 1.0

    @property
    def judged_from(self) -> int:
        """Training rows before this one are for the fits that are compared in tuning, the others judge them."""
        return int(0.8 * len(self.y))

    def measure(self, scores: Array, y: Array) -> tuple[float, float]:
        """(log-loss, accuracy), or (mean squared error, R2) in the units of the set."""
        if self.regression:
            error = float(np.mean((scores - y) ** 2))
            return error * self.unit**2, 1 - error / float(np.var(y))
        margins = scores * y
        return float(np.mean(np.logaddexp(0, -margins))), float(np.mean(margins > 0))

    def test(self, coef: Array, intercept: float) -> tuple[float, float]:
        """Both figures on the test part."""
        return self.measure(self.X_test @ coef + intercept, self.y_test)

    def judge(self, coef: Array, intercept: float) -> float:
        """The loss on the rows kept for tuning."""
        cut = self.judged_from
        return self.measure(self.X[cut:] @ coef + intercept, self.y[cut:])[0]

    def parts(self, parties: int) -> list[tuple[Any, Array]]:
        """Training rows, dealt out."""
        return [(self.X[k::parties], self.y[k::parties]) for k in range(parties)]

    def columns(self) -> list[Any]:
        """Training columns of the two parties."""
        X = self.X.tocsc() if is_sparse(self.X) else self.X
        return [X[:, : self.width], X[:, self.width :]]


def dense(X: Any) -> Array:
    """For those who take nothing else."""
    return np.asarray(X.toarray() if is_sparse(X) else X, dtype=np.float64)


SPLIT = 0  # which of the ways to divide a set that comes whole


def shuffled(X: Any, y: Array, seed: int = 0) -> tuple[Any, Array]:
    order = np.random.default_rng(seed).permutation(len(y))
    return X[order], y[order]


def cut(X: Any, y: Array) -> tuple[Any, Array, Any, Array]:
    """80/20 of shuffled rows."""
    X, y = shuffled(X, y, SPLIT)
    stop = int(0.8 * len(y))
    return X[:stop], y[:stop], X[stop:], y[stop:]


def ranged(X: Any, lows: Any, highs: Any, symmetric: bool) -> Array:
    """Cut to public ranges and brought to [-1, 1] or [0, 1]."""
    low, high = np.asarray(lows, dtype=float), np.asarray(highs, dtype=float)
    unit: Array = (np.clip(np.asarray(X, dtype=float), low, high) - low) / (high - low)
    return 2 * unit - 1 if symmetric else unit


def signs(y: Any, positive: Any) -> Array:
    return np.where(np.asarray(y) == positive, 1.0, -1.0)


def within(X: Any, norm: float) -> Any:
    """Rows divided by the public norm, and those still longer than 1 scaled back."""
    X = X / norm
    lengths = np.sqrt(np.asarray((X.multiply(X) if is_sparse(X) else X * X).sum(axis=1)).ravel())
    shrink = 1 / np.maximum(lengths, 1.0)
    return sp.csr_matrix(sp.diags(shrink) @ X) if is_sparse(X) else X * shrink[:, None]


def a9a() -> Case:
    """A row has one 1 for each of 14 attributes, 8 of them with the first party."""
    train, test = sv.load("a9a", split="train"), sv.load("a9a", split="test")
    X, y = shuffled(within(train.X, math.sqrt(14)), signs(train.y, 1))
    X_test, y_test = within(test.X, math.sqrt(14)), signs(test.y, 1)
    return Case("a9a", X, y, X_test, y_test, False, 14**-0.5, 66, ((8 / 14) ** 0.5, (6 / 14) ** 0.5))


def adult() -> Case:
    """6 numeric columns in [0, 1] by public ranges, 8 attributes one-hot; 6 + 2 of them with the first party."""
    train, test = sv.load("adult", split="train"), sv.load("adult", split="test")
    rows = [
        within(ranged(part.X, *train.feature_ranges, symmetric=False), math.sqrt(14))  # type: ignore[misc]
        for part in (train, test)
    ]
    X, y = shuffled(rows[0], signs(train.y, ">50K"))
    norms = ((8 / 14) ** 0.5, (6 / 14) ** 0.5)
    return Case("adult", X, y, rows[1], signs(test.y, ">50K"), False, 14**-0.5, 30, norms)


def phishing() -> Case:
    """30 equal entries and length 1; each party declares half of its square."""
    data = sv.load("phishing", split="all")
    bound = 30**-0.5 * (1 + 1e-3)
    return Case("phishing", *cut(within(data.X, 1.0), signs(data.y, 1)), False, bound, 34, (0.5**0.5, 0.5**0.5))


def electricity() -> Case:
    """Eight columns with public ranges."""
    data = sv.load("electricity", split="all")
    X = within(ranged(data.X, *data.feature_ranges, symmetric=True), math.sqrt(8))  # type: ignore[misc]
    return Case("electricity", *cut(X, signs(data.y, "UP")), False, 8**-0.5, 4, (0.5**0.5, 0.5**0.5))


def california() -> Case:
    """Ranges a geographer would declare; values up to 500,000 USD."""
    data = sv.load("california_housing", split="all")
    lows, highs = [0, 1, 0, 0, 0, 0, 32, -125], [15, 52, 20, 5, 10000, 10, 42, -114]
    X = within(ranged(data.X, lows, highs, symmetric=True), math.sqrt(8))
    y = np.clip((np.asarray(data.y, dtype=float) - 2.5) / 2.5, -1, 1)
    return Case("california", *cut(X, y), True, 8**-0.5, 4, (0.5**0.5, 0.5**0.5), unit=2.5)


def synthetic(records: int = 30_000, features: int = 100, regression: bool = False) -> Case:
    """Unit rows with decaying columns, 80/20: 30,000 x 100 is the job that speeds are compared on."""
    r = np.random.default_rng(0)
    X = r.standard_normal((records, features)) / np.sqrt(1 + np.arange(features))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    w = r.standard_normal(features)
    z = X @ (w * 8 / np.linalg.norm(w))
    if regression:
        y = np.clip(z / 8 + 0.1 * r.standard_normal(records), -1, 1)
    else:
        y = np.where(r.random(records) < 1 / (1 + np.exp(-1.5 * z)), 1.0, -1.0)
    stop, half = int(0.8 * records), features // 2
    norms = ((half / features) ** 0.5, (1 - half / features) ** 0.5)
    name = f"{records:,} x {features:,}"
    return Case(name, X[:stop], y[:stop], X[stop:], y[stop:], regression, 1.0, half, norms)


CASES = {case.__name__: case for case in (a9a, adult, phishing, electricity, california)}


# Columns of each attribute. That a record has one value of each is the encoding's promise, not a count of rows; the
# file of phishing has its 30 attributes of two or three values in the order in which values first appear.
A9A = (5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41)
PHISHING = (
    (0, 30), (1, 40, 58), (2, 48), (3, 59), (4, 31), (5, 56), (6, 32, 49), (7, 33, 55), (8, 44), (9, 65), (10, 60),
    (11, 50), (12, 45), (13, 34, 63), (14, 35, 46), (15, 57, 67), (16, 36), (17, 37), (18, 64), (19, 51), (20, 61),
    (21, 52), (22, 62), (23, 41), (24, 53), (25, 38, 42), (26, 54), (27, 66), (28, 43, 47), (29, 39),
)  # fmt: skip


def by_attribute(case: Case) -> tuple[Case, list[int]]:
    """The set, dense, with the columns of each attribute side by side, and how many each has."""
    X = dense(case.X)
    groups = [[column] for column in range(X.shape[1])]
    if case.name == "a9a":
        groups = [list(part) for part in np.split(np.arange(X.shape[1]), np.cumsum(A9A)[:-1])]
    if case.name == "phishing":
        groups = [list(group) for group in PHISHING]
    if case.name == "adult":
        names = [str(name).split("=")[0] for name in sv.load("adult", split="train").feature_names]
        groups = [[k for k, name in enumerate(names) if name == attribute] for attribute in dict.fromkeys(names)]
    order = [column for group in groups for column in group]
    return replace(case, X=X[:, order], X_test=dense(case.X_test)[:, order]), [len(group) for group in groups]
