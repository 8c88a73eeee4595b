"""Fit time against its floor, as ratios in one run: `python benchmarks/speed.py`.

The floor is what NumPy needs for the same arithmetic without privacy, clipping or protocol: one Gram product and the
passes `X @ w`, `X.T @ r` for `newton`; the passes alone for `gradient`; for `sgd` drawing the batch (with replacement),
gathering it and its two products. For coordinate descent the time is that of one more epoch (`scd`) or pass (`cd`) of a
private fit, messages and noise included: the difference of two fits. Its floor is one pass `X.T @ (X @ w)`, for `cd`
with the logistic loss also d times `np.exp` of N numbers. One thread.
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

import sottovoce as sv


def best(function: Callable[[], object], repeats: int) -> float:
    """The shortest of several wall times."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--features", type=int, default=90)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", help="run the rows whose name contains this")
    arguments = parser.parse_args()
    generator = np.random.default_rng(0)
    X = generator.standard_normal((arguments.records, arguments.features))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = np.where(X @ generator.standard_normal(arguments.features) + 0.3 * generator.standard_normal(len(X)) > 0, 1, -1)
    w, r = np.zeros(arguments.features), np.asarray(y, dtype=float)
    rows = []

    def compare(name: str, floor: Callable[[], object], **parameters: object) -> None:
        if arguments.only not in name:
            return
        model = sv.PrivateLogisticRegression(epsilon=1.0, delta=1e-6, row_norm=1.0, classes=(-1, 1), **parameters)
        model.fit(X[:2000], y[:2000])  # calibration tables and caches are filled before the clock runs
        low = best(floor, arguments.repeats)
        fit = best(lambda: model.fit(X, y), arguments.repeats)
        rows.append({"solver": name, "fit_s": fit, "floor_s": low, "ratio": fit / low})
        if not arguments.json:
            print(f"{name:28s} fit {fit:7.3f} s   floor {low:7.3f} s   ratio {fit / low:5.2f}", flush=True)

    def passes(count: int) -> None:
        for _ in range(count):
            X @ w
            X.T @ r

    def newton_floor() -> None:
        X.T @ X
        passes(64)

    def batches(rate: float, rounds: int) -> Callable[[], None]:
        size = max(1, round(rate * len(X)))

        def floor() -> None:
            for _ in range(rounds):
                indices = generator.integers(len(X), size=size)
                batch, labels = X[indices], r[indices]
                batch @ w
                batch.T @ labels

        return floor

    compare("newton, 64 rounds", newton_floor, solver="newton")
    compare("gradient, 50 rounds", lambda: passes(50), solver="gradient", rounds=50)
    for rate, rounds in ((0.001, 20_000), (0.01, 2000), (0.1, 200)):  # 20 epochs each
        compare(f"sgd, rate {rate}, {rounds} rounds", batches(rate, rounds), solver="sgd", rate=rate, rounds=rounds)
    rows += coordinate_rows(arguments)
    if arguments.json:
        print(json.dumps(rows, indent=2))


def coordinate_rows(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """An epoch of `scd` and a pass of `cd` at several shapes."""
    generator = np.random.default_rng(1)
    found: list[dict[str, object]] = []

    def compare(
        name: str,
        X: object,
        y: np.ndarray,
        model: Callable[[int], sv.PrivateRidge | sv.PrivateLasso | sv.PrivateLogisticRegression],
        few: int,
        many: int,
        floor: Callable[[], object],
    ) -> None:
        if arguments.only not in name:
            return
        shortest, longest = model(few), model(many)
        for each in (shortest, longest):
            each.fit(X, y)  # calibration and compiled loops are there before the clock runs
        lows, times = [], []
        for _ in range(max(arguments.repeats, 5)):  # in turn, so that all see the same machine
            lows.append(best(floor, 3))
            times.append((best(lambda: shortest.fit(X, y), 1), best(lambda: longest.fit(X, y), 1)))
        low = min(lows)
        spent = (min(long for _, long in times) - min(short for short, _ in times)) / (many - few)
        found.append({"solver": name, "fit_s": spent, "floor_s": low, "ratio": spent / low})
        if not arguments.json:
            print(
                f"{name:42s} {1e3 * spent:8.2f} ms   floor {1e3 * low:8.2f} ms   ratio {spent / low:5.2f}", flush=True
            )

    common: dict[str, object] = {"epsilon": 1.0, "delta": 1e-6}
    X = generator.standard_normal((463_715, 90))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = np.clip(X @ generator.standard_normal(90), -1, 1)
    w = np.zeros(90)
    for rate in (0.01, 0.1, 1.0):
        compare(
            f"scd, ridge, 463,715 x 90, rate {rate}",
            X,
            y,
            lambda epochs, rate=rate: sv.PrivateRidge(
                **common,
                alpha=1e-3,
                row_norm=1.0,
                label_bound=1.0,
                solver="scd",
                rate=rate,
                rounds=round(epochs / rate),
            ),
            1,
            6,
            lambda: X.T @ (X @ w),
        )
    for shape, passes in (((45_312, 8), (10, 110)), ((1000, 1000), (10, 110))):
        A = generator.standard_normal(shape)
        b = np.clip(A @ generator.standard_normal(shape[1]), -3, 3)
        v = np.zeros(shape[1])
        bounds: dict[str, object] = {"entry_bound": 5.0, "fit_intercept": False}
        compare(
            f"cd, squared, {shape[0]:,} x {shape[1]:,}",
            A,
            b,
            lambda count, shape=shape, bounds=bounds: sv.PrivateLasso(
                **common, **bounds, label_bound=3.0, solver="cd", inner=count * shape[1]
            ),
            *passes,
            lambda A=A, v=v: A.T @ (A @ v),
        )
        if shape[0] < 10_000:
            continue
        compare(
            f"cd, logistic, {shape[0]:,} x {shape[1]:,}",
            A,
            np.sign(b),
            lambda count, shape=shape, bounds=bounds: sv.PrivateLogisticRegression(
                **common, **bounds, classes=(-1, 1), alpha=1e-3, solver="cd", inner=count * shape[1]
            ),
            *passes,
            lambda A=A, b=b, v=v, shape=shape: (A.T @ (A @ v), [np.exp(b) for _ in range(shape[1])]),
        )
    # the shape of a9a: 123 columns of which each row has 14
    columns = np.sort(generator.permuted(np.tile(np.arange(123), (32_561, 1)), axis=1)[:, :14], axis=1)
    S = sp.csr_matrix((np.ones(columns.size), columns.ravel(), np.arange(0, columns.size + 1, 14)), (32_561, 123))
    labels = np.where(generator.random(32_561) < 0.25, 1, -1)
    u = np.zeros(123)
    compare(
        "scd, logistic, sparse 32,561 x 123, rate 0.1",
        S,
        labels,
        lambda epochs: sv.PrivateLogisticRegression(
            **common, row_norm=14**0.5, classes=(-1, 1), alpha=1e-3, solver="scd", rate=0.1, rounds=10 * epochs
        ),
        10,
        110,
        lambda: S.T @ (S @ u),
    )
    return found


if __name__ == "__main__":
    main()
