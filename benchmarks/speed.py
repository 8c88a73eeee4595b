"""Fit time against its floor, as ratios in one run: `python benchmarks/speed.py`.

The floor is what NumPy needs for the same arithmetic without privacy, clipping or protocol: one Gram product and the
passes `X @ w`, `X.T @ r` for `newton`; the passes alone for `gradient`; for `sgd` drawing the batch (with replacement),
gathering it and its two products. One BLAS thread.
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
    if arguments.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
