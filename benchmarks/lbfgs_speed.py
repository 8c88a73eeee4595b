"""A private default fit beside lbfgs without privacy, as ratios in one run: `python benchmarks/lbfgs_speed.py`.

Logistic regression at epsilon 1, and the `LogisticRegression()` of scikit-learn on the same rows: arrays in float64 and
float32, a frame of numbers with labels that are texts, a frame of numbers and categories, which a schema encodes here
and a `ColumnTransformer` there, and a sparse matrix. Columns are correlated, as those of tables are; lbfgs needs few
steps where they are not (`--spherical`), and a private fit takes as long. Fits are made in turn, so that both see the
same machine; each pair of neighbouring fits gives one ratio (private / lbfgs) of wall and of CPU seconds, and the table
has their medians. With one thread, and with all processors.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pandas as pd
import scipy.sparse as sp
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder
from threadpoolctl import threadpool_limits

import sottovoce as sv

SIZES: Final = {"30,000 x 100": (30_000, 100), "1,000,000 x 50": (1_000_000, 50), "200,000 x 500": (200_000, 500)}
FORMS: Final = ("float64", "float32", "frame", "encoded", "sparse")
FACTORS, LEVELS = 5, 20
Fit = Callable[[Any, Any, int], Any]


def rows_of(records: int, features: int, *, spherical: bool) -> tuple[np.ndarray, np.ndarray]:
    """Normal columns of variance 1 that share some factors, and labels of a logistic model."""
    generator = np.random.default_rng(0)
    X = generator.standard_normal((records, features))
    if not spherical:
        X *= 0.6
        X += (
            0.8
            / FACTORS**0.5
            * generator.standard_normal((records, FACTORS))
            @ generator.standard_normal((FACTORS, features))
        )
    scores = X @ generator.standard_normal(features)
    scores *= 2 / scores.std()
    return X, scores + generator.logistic(size=records) > 0


def problem(form: str, size: tuple[int, int], *, spherical: bool) -> tuple[Any, Any, Fit, Fit]:
    """Rows and labels, the private fit and the other."""
    (records, features), pairs = size, features_of(size[1])
    X, positive = rows_of(records, pairs[0] if form == "encoded" else features, spherical=spherical)
    y: Any = positive.astype(np.int64)
    declared: dict[str, Any] = {"row_norm": 1.5 * features**0.5, "classes": (0, 1)}
    other: Any = LogisticRegression()
    if form == "float32":
        X = X.astype(np.float32)
    elif form == "sparse":
        X[np.random.default_rng(1).random(X.shape) > 0.1] = 0.0
        X = sp.csr_matrix(X)
    elif form in ("frame", "encoded"):
        X = pd.DataFrame({f"number {place}": column for place, column in enumerate(X.T)})
        ranges, names = dict.fromkeys(X, (-4, 4)), [f"level {k}" for k in range(LEVELS)]
        y = pd.Series(np.where(positive, "yes", "no"), dtype=object)
        declared = {"feature_ranges": ranges, "classes": ("no", "yes")}
        if form == "encoded":
            levels, generator = np.array(names, dtype=object), np.random.default_rng(1)
            entries: dict[str, Any] = {name: {"range": pair} for name, pair in ranges.items()}
            for place in range(pairs[1]):
                X[f"category {place}"] = levels[generator.integers(LEVELS, size=records)]
                entries[f"category {place}"] = {"levels": names}
            encoder = make_column_transformer(
                (MinMaxScaler(), list(ranges)), (OneHotEncoder(), list(entries)[len(ranges) :])
            )
            declared, other = {"schema": sv.Schema(entries), "classes": ("no", "yes")}, make_pipeline(encoder, other)

    def private(X: Any, y: Any, jobs: int) -> Any:
        resources = sv.Resources(n_jobs=jobs)
        return sv.PrivateLogisticRegression(epsilon=1.0, delta=1e-7, resources=resources, **declared).fit(X, y)

    return X, y, private, lambda X, y, _jobs: other.fit(X, y)


def features_of(features: int) -> tuple[int, int]:
    """Numbers and categories that make so many features."""
    categories = features // (2 * LEVELS)
    return features - LEVELS * categories, categories


def seconds(fit: Fit, X: Any, y: Any, jobs: int) -> tuple[float, float]:
    """Wall and CPU, of one fit."""
    with threadpool_limits(jobs):
        wall, cpu = time.perf_counter(), time.process_time()
        fit(X, y, jobs)
        return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(SIZES), help="the sizes whose names contain one of these")
    parser.add_argument("--forms", nargs="*", default=FORMS, choices=FORMS)
    parser.add_argument("--spherical", action="store_true", help="columns that are not correlated")
    parser.add_argument("--pairs", type=int, default=7)
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # the same people again and again; lbfgs that has not converged
    logging.disable()  # cells outside of their ranges
    heads = ("rows", "threads", "lbfgs s", "private s", "wall ratio", "CPU ratio")
    print(f"{'':16}" + "".join(f"{head:>11}" for head in heads))
    for name, size in SIZES.items():
        if not any(part in name for part in given.only):
            continue
        for form in given.forms:
            X, y, private, other = problem(form, size, spherical=given.spherical)
            for jobs in sorted({1, os.cpu_count() or 1}):
                private(X[:2000], y[:2000], jobs)  # calibration and compiled loops are there
                taken = np.array([[seconds(fit, X, y, jobs) for fit in (other, private)] for _ in range(given.pairs)])
                wall, cpu = np.median(taken[:, 1] / taken[:, 0], axis=0)
                times = np.median(taken[:, :, 0], axis=0)
                figures = (form, str(jobs), f"{times[0]:.3f}", f"{times[1]:.3f}", f"{wall:.2f}", f"{cpu:.2f}")
                print(f"{name:16}" + "".join(f"{figure:>11}" for figure in figures), flush=True)


if __name__ == "__main__":
    main()
