"""Made-up problems of many shapes, for judging a rule that nobody tunes. The first 70% of the rows are for training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from peers.data import CASES, Case, ranged, within

Array = NDArray[np.float64]
Generator = np.random.Generator


def coin(scores: Array, rng: Generator) -> Array:
    """Labels of the logistic model."""
    return np.where(rng.random(len(scores)) < 1 / (1 + np.exp(-scores)), 1.0, -1.0)


def symmetric(X: Array, low: float, high: float) -> Array:
    """Columns clipped to [low, high], brought to [-1, 1] and divided by sqrt d."""
    return ranged(X, np.full(X.shape[1], low), np.full(X.shape[1], high), True) / math.sqrt(X.shape[1])


def one_hot(records: int, sizes: list[int], rng: Generator, zipf: float) -> Array:
    """Groups of one-hot columns with common factors and rare levels."""
    factors, groups = rng.standard_normal((records, 3)), []
    for size in sizes:
        common = factors @ (0.7 * rng.standard_normal((3, size)))
        scores = -zipf * np.log(1 + np.arange(size)) + common + rng.gumbel(size=(records, size))
        groups.append(np.eye(size)[scores.argmax(1)])
    return np.hstack(groups) / math.sqrt(len(sizes))


def rare(rng: Generator) -> tuple[Any, Array]:
    """Columns that few records have."""
    X = one_hot(12_000, [2, 3, 5, 8, 12, 20, 40, 60], rng, 1.2)
    return X, coin(1.3 * math.sqrt(8) * X @ rng.standard_normal(X.shape[1]) - 1.5, rng)


def separable(rng: Generator) -> tuple[Any, Array]:
    """Classes that a plane divides."""
    X = one_hot(9_000, [6, 4, 10, 9, 2, 2, 12, 2, 5, 4, 4, 9, 9, 4, 3, 5, 9, 6, 7], rng, 0.8)
    z = X @ rng.standard_normal(X.shape[1])
    return X, np.where(z > np.median(z), 1.0, -1.0)


def heavy(rng: Generator) -> tuple[Any, Array]:
    """Long tails that are cut, and scores that are no linear function of what is left."""
    mix = 0.8 * np.eye(57) + 0.1 * rng.standard_normal((57, 57))
    long = np.exp(1.2 * rng.standard_normal((6_500, 57)) @ mix - 1) * (rng.random((6_500, 57)) < 0.4)
    z = np.log1p(long) @ (rng.standard_normal(57) * (rng.random(57) < 0.4))
    return symmetric(long, 0.0, 10.0), coin(2.5 * (z - np.median(z)) / z.std(), rng)


def imbalanced(rng: Generator) -> tuple[Any, Array]:
    """Few positives."""
    X = (rng.random((30_000, 250)) < 0.2 / np.sqrt(1 + np.arange(250))).astype(float)
    return within(X, 4.0), coin(1.5 * X @ (rng.standard_normal(250) * (rng.random(250) < 0.3)) - 5, rng)


def ill_conditioned(rng: Generator) -> tuple[Any, Array]:
    """Columns that are nearly functions of one another."""
    X = rng.standard_normal((30_000, 20)) @ (rng.standard_normal((20, 20)) * np.exp(-np.arange(20) / 4))
    X /= 4 * X.std(0)
    z = X @ rng.standard_normal(20)
    return symmetric(X, -1.0, 1.0), coin(2 * z / z.std() - 1, rng)


def small(rng: Generator) -> tuple[Any, Array]:
    """A few hundred records."""
    X = rng.standard_normal((650, 3)) @ rng.standard_normal((3, 30)) + 0.6 * rng.standard_normal((650, 30))
    z = X[:, :3].sum(1)
    return symmetric(X, -4.0, 4.0), coin(4 * z / z.std(), rng)


def text(rng: Generator, records: int = 11_000, words: int = 8_000) -> tuple[Any, Array]:
    """Counts of Zipf words; a tenth of the words are likelier in one class."""
    y = np.where(rng.random(records) < 0.5, 1.0, -1.0)
    frequent = 1 / (2 + np.arange(words))
    leaning = np.where(rng.random(words) < 0.1, rng.standard_normal(words), 0.0)
    rows, columns = [], []
    for label in (-1.0, 1.0):
        own = frequent * np.exp(label * leaning)
        who = np.flatnonzero(y == label)
        drawn = rng.choice(words, size=(len(who), 60), p=own / own.sum())
        rows.append(np.repeat(who, 60))
        columns.append(drawn.ravel())
    places = (np.concatenate(rows), np.concatenate(columns))
    counts = sp.csr_matrix((np.ones(len(places[0])), places), shape=(records, words))
    counts.data = np.log1p(counts.data)
    return within(counts, 6.0), y


def regression(rng: Generator, signal: float = 0.35, noise: float = 0.05, shift: float = 0.0) -> tuple[Any, Array]:
    """Numbers in [-1, 1]."""
    X = rng.standard_normal((8_000, 12)) @ (rng.standard_normal((12, 12)) * np.exp(-np.arange(12) / 3))
    X /= 4 * X.std(0)
    z = X @ rng.standard_normal(12)
    y = np.clip(signal * z / z.std() + noise * rng.standard_normal(len(z)) + shift, -1, 1)
    return symmetric(X, -1.0, 1.0), y


def weak_regression(rng: Generator) -> tuple[Any, Array]:
    """Numbers of which a third is explained."""
    return regression(rng, 0.1, 0.17, 0.2)


def part_of(name: str, records: int) -> Callable[[], Case]:
    """The first records of a data set: real data at little signal."""

    def make() -> Case:
        whole = CASES[name]()
        where = (f"{name}, {records:,}", whole.X[:records], whole.y[:records], whole.X_test, whole.y_test)
        return Case(*where, whole.regression, whole.entry_bound, whole.width, whole.norms, whole.unit)

    return make


def made(make: Callable[[Generator], tuple[Any, Array]]) -> Callable[[], Case]:
    """The problem with a fixed seed."""

    def case() -> Case:
        X, y = make(np.random.default_rng(0))
        stop, numbers = int(0.7 * len(y)), make in (regression, weak_regression)
        return Case(make.__name__, X[:stop], y[:stop], X[stop:], y[stop:], numbers, 1.0, X.shape[1] // 2, (0.7, 0.7))

    return case


SMALL = {"a9a": 3000, "adult": 4000, "phishing": 1000, "electricity": 1000, "california": 2000}
MADE = (rare, separable, heavy, imbalanced, ill_conditioned, small, text, regression, weak_regression)
PROBLEMS: dict[str, Callable[[], Case]] = {
    **CASES,
    **{f"{name}, {records:,}": part_of(name, records) for name, records in SMALL.items()},
    **{make.__name__: made(make) for make in MADE},
}
