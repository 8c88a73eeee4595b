"""Wide tables, several classes, rare labels: `python benchmarks/wide.py --only text attributes --epsilon 0.1 1`.

Made-up people, the same for every seed; noise differs. Test log-loss of the default fit for each seed, beside that of
the constant that knows the test labels' shares. With `--diagonal` moments are diagonal at any number of columns. For
two classes also the slope that the score needs on test people (1: none), and the mean probability by the true share.

- text: 8,000 documents of 10,000 words in tf-idf, 7% positives; 8,000 more test. `--parties` deals them out.
- attributes: 20,000 people with 45 attributes of up to 60 levels, 2,483 columns of 0 and 1; three classes.
- few: the same with 500 columns.
- seven: classes of `classes.py`, 54 columns.
- rare, hundredth, twentieth: 120,000 people with 15 numbers; .35%, 1% and 5% positives.
- tenth, steep, curved: 50,000 people with 22 numbers, half of them skewed, all correlated; a tenth positive. Scores are
  linear, four times as large, or linear in logarithms of the skewed ones.
- nearly: 30,000 people with 30 numbers, each nearly the one before; a fifth positive.
- levels: 30,000 people with 150 levels and 4 skewed numbers; a twentieth positive.

With `--auto` the penalty is chosen (`alpha="auto"`, l1). With `--beside newton` points too: 0 is the fit without
privacy (scikit-learn, C = 10,000), 100 the constant of the training labels.
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from classes import TRAINING, drawn, people
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

import sottovoce as sv
from sottovoce.algorithms.whitened import private

Table = tuple[Any, NDArray[np.int64], int, float]  # rows, classes, how many of them train, the norm of a row


def text(rng: np.random.Generator) -> Table:
    """Words are Zipf's, 60 topics have words of their own; one of them has the label, but for some noise."""
    count, words, topics = 16_000, 10_000, 60
    common = 1 / (np.arange(words) + 8.0)
    mixed = common * rng.gamma(0.25, 4.0, (topics, words))
    mixed = 0.6 * common / common.sum() + 0.4 * mixed / mixed.sum(axis=1, keepdims=True)
    topic = np.where(rng.random(count) < 0.07, 0, rng.integers(1, topics, count))
    lengths = rng.geometric(0.012, count) + 20
    drawn_words = [rng.choice(words, length, p=mixed[each]) for each, length in zip(topic, lengths, strict=True)]
    rows = np.repeat(np.arange(count), lengths)
    X = sp.csr_matrix((np.ones(lengths.sum()), (rows, np.concatenate(drawn_words))), (count, words))
    X.data = np.log1p(X.data) * np.log(count / (1 + X.getnnz(axis=0)))[X.indices]
    y = np.where(rng.random(count) < 0.01, rng.random(count) < 0.07, topic == 0).astype(np.int64)
    return sp.diags(1 / np.sqrt(X.power(2).sum(axis=1).A1)) @ X, y, count // 2, 1.0


def attributes(rng: np.random.Generator, columns: int = 2_483) -> Table:
    """Levels are Zipf's and go with three hidden numbers, as classes do; one level in three says something more."""
    count, each = 30_000, 45
    sizes = np.full(each, columns // each) + (np.arange(each) < columns % each)
    hidden, parts, scores = rng.standard_normal((count, 3)), [], np.zeros((count, 3))
    for size in sizes:
        level = drawn(0.7 * hidden @ rng.standard_normal((3, size)) - 1.2 * np.log(np.arange(size) + 1.0), rng)
        parts.append(sp.csr_matrix((np.ones(count), (np.arange(count), level)), (count, size)))
        scores += (rng.standard_normal((size, 3)) * (rng.random((size, 1)) < 1 / 3) * 0.3)[level]
    y = drawn(scores + 0.3 * hidden @ rng.standard_normal((3, 3)) + [0.0, 0.9, -1.2], rng)
    return sp.hstack(parts, format="csr"), y, 20_000, each**0.5


def rare(rng: np.random.Generator, odds: float = 6.55) -> Table:
    X = rng.standard_normal((240_000, 15)) * np.linspace(1.5, 0.3, 15)
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True) / 6, 1)
    y = rng.random(len(X)) < 1 / (1 + np.exp(odds - X @ rng.choice([-0.35, 0.35], 15)))
    return X, y.astype(np.int64), len(X) // 2, 6.0


def labelled(scores: NDArray[np.float64], share: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Of the logistic model, so many of them positive."""
    shift = brentq(lambda b: expit(scores + b).mean() - share, -60, 60)
    return (rng.random(len(scores)) < expit(scores + shift)).astype(np.int64)


def declared(X: NDArray[np.float64], low: Any, high: Any) -> NDArray[np.float64]:
    """Columns clipped to their ranges and brought to [-1, 1]."""
    return np.asarray(2 * (np.clip(X, low, high) - low) / (np.asarray(high) - low) - 1)


def tenth(rng: np.random.Generator, spread: float = 1.5, skew: float = 1.0, *, logs: bool = False) -> Table:
    numbers = rng.standard_normal((70_000, 4)) @ rng.standard_normal((4, 22)) + 0.7 * rng.standard_normal((70_000, 22))
    numbers /= numbers.std(axis=0)
    X = np.where(np.arange(22) < 11, np.exp(skew * numbers), numbers)
    told = numbers if logs else (X - X.mean(axis=0)) / X.std(axis=0)
    scores = told @ (rng.standard_normal(22) * (rng.random(22) < (1.0 if logs else 0.6)))
    y = labelled(spread * scores / scores.std(), 0.1, rng)
    most = 100.0 if logs else 30.0
    return declared(X, np.repeat([0.0, -4.0], 11), np.repeat([most, 4.0], 11)), y, 50_000, 22**0.5


def nearly(rng: np.random.Generator) -> Table:
    X = rng.standard_normal((50_000, 30))
    for j in range(1, 30):
        X[:, j] = 0.97 * X[:, j - 1] + (1 - 0.97**2) ** 0.5 * X[:, j]
    scores = X @ rng.choice([-1.0, 1.0], 30)
    return declared(X, -4.0, 4.0), labelled(2 * scores / scores.std(), 0.2, rng), 30_000, 30**0.5


def levels(rng: np.random.Generator) -> Table:
    hidden, parts = rng.standard_normal((50_000, 3)), []
    for size in (2, 3, 5, 8, 12, 20, 40, 60):
        scores = hidden @ (0.7 * rng.standard_normal((3, size))) - 1.2 * np.log(np.arange(size) + 1.0)
        parts.append(np.eye(size)[drawn(scores, rng)])
    logs = 1.2 * (hidden @ rng.standard_normal((3, 4)) + 0.5 * rng.standard_normal((50_000, 4)))
    scores = np.hstack(parts) @ rng.standard_normal(150) + 0.5 * logs @ rng.standard_normal(4)
    return np.hstack([*parts, declared(np.exp(logs), 0.0, 50.0)]), labelled(scores, 0.05, rng), 30_000, 12**0.5


CASES: dict[str, Callable[[np.random.Generator], Table]] = {
    "text": text,
    "attributes": attributes,
    "few": lambda rng: attributes(rng, 500),
    "seven": lambda rng: (*people(rng), TRAINING, 12**0.5),
    "rare": rare,
    "hundredth": lambda rng: rare(rng, 5.45),
    "twentieth": lambda rng: rare(rng, 3.55),
    "tenth": tenth,
    "steep": lambda rng: tenth(rng, 4.0, 1.5),
    "curved": lambda rng: tenth(rng, 2.0, 1.2, logs=True),
    "nearly": nearly,
    "levels": levels,
}


def calibration(scores: NDArray[np.float64], y: NDArray[np.int64]) -> str:
    """The slope of a logistic model of the labels on the score, and the mean probability by the share."""
    signs, start = 2.0 * y - 1, np.array([1.0, 0.0])
    slope, _ = minimize(lambda ab: np.logaddexp(0, -signs * (ab[0] * scores + ab[1])).mean(), start).x
    return f" (slope {slope:.2f}, mean {(1 / (1 + np.exp(-scores))).mean() / y.mean():.2f})"


def ends(table: Table) -> tuple[float, float]:
    """Test losses of the fit without privacy, and of the constant."""
    X, y, cut, _ = table
    shares = np.bincount(y[:cut]) / cut
    free = LogisticRegression(C=1e4, solver="newton-cholesky", max_iter=1000).fit(X[:cut], y[:cut])
    return log_loss(y[cut:], free.predict_proba(X[cut:])), float(-np.log(shares[y[cut:]]).mean())


def loss(table: Table, epsilon: float, seed: int, given: argparse.Namespace, more: Any) -> str:
    (X, y, cut, norm), parties = table, given.parties
    classes, solver = range(int(y.max()) + 1), more[0]
    declared: Any = {"row_norm": norm, "classes": classes, "insecure_seed": seed, "l1_ratio": 1 if given.auto else 0}
    model = sv.PrivateLogisticRegression(epsilon, 1e-5, alpha="auto" if given.auto else 0.0, solver=solver, **declared)
    parts = [(X[k:cut:parties], y[k:cut:parties]) for k in range(parties)]
    model.fit(*parts[0]) if parties == 1 else model.fit(sv.Federation.by_rows(parts))
    shares = model.predict_proba(X[cut:])[np.arange(len(y) - cut), y[cut:]]
    found = -np.log(np.maximum(shares, 1e-300)).mean()
    if more[1]:
        return f"{100 * (found - more[1][0]) / (more[1][1] - more[1][0]):.2f}"
    told = f"{found:.4f}"
    return told + (calibration(model.decision_function(X[cut:]), y[cut:]) if y.max() == 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=["text", "attributes"])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.1, 1.0, 8.0])
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--parties", type=int, default=1)
    parser.add_argument("--diagonal", action="store_true")
    parser.add_argument("--auto", action="store_true")
    parser.add_argument("--beside", nargs="*", metavar="SOLVER")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.diagonal:
        private.NEWTON_FEATURES = 2
    for name in given.only:
        table = CASES[name](np.random.default_rng(0))
        shares = np.bincount(table[1][table[2] :]) / len(table[1][table[2] :])
        print(f"{name}: {table[0].shape[1]} columns, constant {-(shares * np.log(shares)).sum():.4f}", flush=True)
        scale = None if given.beside is None else ends(table)
        for epsilon in given.epsilon:
            start = time.perf_counter()
            for solver in ["auto", *(given.beside or [])]:
                runs = range(given.runs)
                told = " ".join(loss(table, epsilon, seed, given, (solver, scale)) for seed in runs)
                seconds = time.perf_counter() - start
                print(f"    epsilon {epsilon:g}, {solver}: {told}   [{seconds:.0f} s]", flush=True)


if __name__ == "__main__":
    main()
