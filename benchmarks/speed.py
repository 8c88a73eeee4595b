"""Fit time against its floor, as ratios in one run: `python benchmarks/speed.py`.

The floor is what NumPy needs for the same arithmetic without privacy, clipping or protocol: one Gram product and the
passes `X @ w`, `X.T @ r` for `newton`; the passes alone for `gradient`; for `sgd` drawing the batch (with replacement),
gathering it and its two products. For coordinate descent the time is that of one more epoch (`scd`) or pass (`cd`) of a
private fit, messages and noise included: the difference of two fits. Its floor is one pass `X.T @ (X @ w)`, for `cd`
with the logistic loss also d times `np.exp` of N numbers. For `frank-wolfe` it is the time of one more round. Its floor
for dense rows is one product `X.T @ r`; sparse rows are compared with a round that makes the whole gradient again,
`A.T @ (A @ w - y)`, and adds Laplace noise to 2 d scores. One thread.

`--only pass` has single sums over prepared rows, by the fused loops and by chunks as before them: against one read of
the float32 rows, and on two threads against one. The rows of sparse passes are those of a9a, or of its shape where the
data are not there.
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import copy
import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import joblib
import numpy as np
import scipy.sparse as sp
from numba import njit

import sottovoce as sv
from sottovoce import losses
from sottovoce.algorithms.frank_wolfe.central import Path
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.data.matrix import Slope
from sottovoce.data.preparation import Preparation
from sottovoce.data.resources import run_parts
from sottovoce.errors import RepeatedFitWarning, SottovoceError
from sottovoce.lab import datasets


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
        low = fit = float("inf")
        for _ in range(arguments.repeats):  # in turn, so that both see the same machine
            low, fit = min(low, best(floor, 1)), min(fit, best(lambda: model.fit(X, y), 1))
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
    compare("newton, 64 rounds, 2 threads", newton_floor, solver="newton", resources=sv.Resources(n_jobs=2))
    compare("gradient, 50 rounds", lambda: passes(50), solver=sv.solvers.Gradient(rounds=50))
    for rate, rounds in ((0.001, 20_000), (0.01, 2000), (0.1, 200)):  # 20 epochs each
        compare(
            f"sgd, rate {rate}, {rounds} rounds", batches(rate, rounds), solver=sv.solvers.SGD(rate=rate, rounds=rounds)
        )
    rows += pass_rows(arguments, X, y) + coordinate_rows(arguments) + frank_wolfe_rows(arguments)
    if arguments.json:
        print(json.dumps(rows, indent=2))


@njit(fastmath={"reassoc", "nsz"}, nogil=True)
def read_once(rows: np.ndarray) -> float:
    """The sum of all entries: nothing that reads them all is faster."""
    flat, total = rows.reshape(-1), np.float32(0.0)
    for place in range(len(flat)):
        total += flat[place]
    return float(total)


def a9a() -> tuple[Any, np.ndarray]:
    """The records of a9a, or made-up ones of its shape: 123 columns of which each row has 14."""
    try:
        data = datasets.load("a9a")
        return sp.csr_matrix(data.X), np.asarray(data.y)
    except (SottovoceError, OSError):
        generator = np.random.default_rng(1)
        columns = np.sort(generator.permuted(np.tile(np.arange(123), (32_561, 1)), axis=1)[:, :14], axis=1)
        starts = np.arange(0, columns.size + 1, 14)
        rows = sp.csr_matrix((np.ones(columns.size), columns.ravel(), starts), (32_561, 123))
        return rows, np.where(generator.random(32_561) < 0.25, 1, -1)


def pass_rows(arguments: argparse.Namespace, X: np.ndarray, y: np.ndarray) -> list[dict[str, object]]:
    """One sum over all rows, dense and sparse: fused, by chunks, on two threads; and Gram matrices."""
    if arguments.only not in "pass, dense, sparse, batch, gram":
        return []
    found: list[dict[str, object]] = []
    for name, (raw, labels), norm in (("dense", (X, y), 1.0), ("sparse a9a", a9a(), 14**0.5)):
        count, features = raw.shape
        recipe = Preparation(Bounds(row_norm=norm), features, True, count, (-1, 1))
        times = in_turn(works_of(Block.prepare(raw, labels, recipe)), 4 * arguments.repeats)
        for work, spent in times.items():
            against = "gram" if "gram" in work else next(iter(times))
            low = times[against]
            found.append({"solver": f"{name}: {work}", "fit_s": spent, "floor_s": low, "ratio": spent / low})
            if not arguments.json:
                print(f"{name + ': ' + work:44s} {1e3 * spent:8.3f} ms   {spent / low:6.2f} of {against}", flush=True)
    return found


def works_of(block: Block) -> dict[str, Callable[[], object]]:
    """What is timed on a block."""
    generator = np.random.default_rng(3)
    slope, w = Slope(losses.get("logistic"), 1.0, block.bits or 0), generator.standard_normal(block.dimension)
    batch = block.take(np.flatnonzero(generator.random(len(block)) < 0.1))
    plain, plain_batch = copy.copy(block), copy.copy(batch)
    plain._fused = plain_batch._fused = False

    def fused() -> object:
        return block.weighted_sum(w, slope)

    works: dict[str, Callable[[], object]] = {
        "pass": fused,
        "pass, by chunks as before": lambda: plain.weighted_sum(w, slope),
        "pass, 2 threads": on_two(fused),
        "pass over a batch of a tenth": lambda: batch.weighted_sum(w, slope),
        "the same, by chunks as before": lambda: plain_batch.weighted_sum(w, slope),
        "gram": block.gram,
        "gram, 2 threads": on_two(block.gram),
    }
    if sp.issparse(block.rows):
        return works

    def reads(threads: int) -> Callable[[], object]:
        return lambda: run_parts(
            lambda start, stop: read_once(block.rows[start:stop]), np.linspace(0, len(block), threads + 1, dtype=int)
        )

    return {"one read of the rows": reads(1), "one read, 2 threads": reads(2), **works}


def on_two(work: Callable[[], object]) -> Callable[[], object]:
    """The same on two threads."""

    def threaded() -> object:
        with joblib.parallel_config("threading", n_jobs=2):
            return work()

    return threaded


def in_turn(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The shortest time of each, one after the other again and again, so that all see the same machine."""
    for work in works.values():
        work()  # compiled before the clock runs
    times = dict.fromkeys(works, float("inf"))
    for _ in range(repeats):
        for name, work in works.items():
            times[name] = min(times[name], best(work, 3))
    return times


def one_more(
    arguments: argparse.Namespace,
    name: str,
    X: object,
    y: np.ndarray,
    model: Callable[[int], sv.PrivateRidge | sv.PrivateLasso | sv.PrivateLogisticRegression],
    few: int,
    many: int,
    floor: Callable[[], object],
    floors: int = 1,
    **more: object,
) -> list[dict[str, object]]:
    """The time of one more epoch, pass or round: the difference of two fits. No row if it was not asked for.

    `floor` does the work of `floors` of them: where a fit is long and the floor short, one floor alone would find the
    machine idle more often.
    """
    if arguments.only not in name:
        return []
    shortest, longest = model(few), model(many)
    for fitted in (shortest, longest):
        fitted.fit(X, y)  # calibration and compiled loops are there before the clock runs
    lows, times = [], []
    for _ in range(max(arguments.repeats, 5)):  # in turn, so that all see the same machine
        lows.append(best(floor, 3))
        times.append((best(lambda: shortest.fit(X, y), 1), best(lambda: longest.fit(X, y), 1)))
    low = min(lows) / floors
    spent = (min(long for _, long in times) - min(short for short, _ in times)) / (many - few)
    if not arguments.json:
        note = "".join(f"   {key} {value:,}" for key, value in more.items())
        print(
            f"{name:42s} {1e3 * spent:8.2f} ms   floor {1e3 * low:8.2f} ms   ratio {spent / low:5.2f}{note}", flush=True
        )
    return [{"solver": name, "fit_s": spent, "floor_s": low, "ratio": spent / low, **more}]


def coordinate_rows(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """An epoch of `scd` and a pass of `cd` at several shapes."""
    generator = np.random.default_rng(1)
    found: list[dict[str, object]] = []

    def compare(*row: Any) -> None:
        found.extend(one_more(arguments, *row))

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
                solver=sv.solvers.SCD(rate=rate, rounds=round(epochs / rate)),
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
                **common, **bounds, label_bound=3.0, solver=sv.solvers.CD(inner=count * shape[1])
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
                **common, **bounds, classes=(-1, 1), alpha=1e-3, solver=sv.solvers.CD(inner=count * shape[1])
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
            **common, row_norm=14**0.5, classes=(-1, 1), alpha=1e-3, solver=sv.solvers.SCD(rate=0.1, rounds=10 * epochs)
        ),
        10,
        110,
        lambda: S.T @ (S @ u),
    )
    return found


def frank_wolfe_rows(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """A round of `frank-wolfe` on dense rows, and on sparse ones of two sizes."""
    generator = np.random.default_rng(2)
    found: list[dict[str, object]] = []
    common: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "entry_bound": 1.0, "radius": 1.0, "fit_intercept": False}
    common |= {"insecure_seed": 0}

    def squared(rounds: int) -> sv.PrivateLasso:
        return sv.PrivateLasso(**common, label_bound=1.0, solver=sv.solvers.FrankWolfe(rounds=rounds))

    def logistic(rounds: int) -> sv.PrivateLogisticRegression:
        return sv.PrivateLogisticRegression(**common, classes=(-1, 1), solver=sv.solvers.FrankWolfe(rounds=rounds))

    names = [f"frank-wolfe, {loss}, 10,000 x 1,000" for loss in ("squared", "logistic")]
    if any(arguments.only in name for name in names):
        X = generator.uniform(-1, 1, (10_000, 1000))
        y = np.clip(0.3 * X[:, :10].sum(axis=1), -1, 1)

        def products() -> None:
            for _ in range(100):
                X.T @ y

        found += one_more(arguments, names[0], X, y, squared, 100, 200, products, 100)
        found += one_more(arguments, names[1], X, np.sign(y), logistic, 100, 200, products, 100)
    for size in (30_000, 100_000):
        name = f"frank-wolfe, sparse {size:,} x {size:,}"
        if arguments.only not in name:
            continue
        width = size // 1000
        columns = generator.integers(size, size=(size, width), dtype=np.int32)
        A = sp.csr_matrix((np.ones(columns.size), columns.ravel(), np.arange(0, columns.size + 1, width)), (size, size))
        A.sum_duplicates()
        A.data = generator.choice([-1.0, 1.0], A.nnz)
        b, w = np.clip(A[:, :10].sum(axis=1).A1 / 2 + 0.1 * generator.standard_normal(size), -1, 1), np.zeros(size)
        w[generator.integers(size, size=100)] = 0.01

        def whole(A: Any = A, b: np.ndarray = b, w: np.ndarray = w) -> None:
            for _ in range(20):
                gradient = A.T @ (A @ w - b)
                scores = np.concatenate([gradient, -gradient])
                np.argmax(scores + generator.laplace(scale=100.0, size=scores.size))

        seen = visited(A, squared(600).fit(sv.Federation.central(A, b, record=True)))
        found += one_more(arguments, name, A, b, squared, 100, 600, whole, 20, visited=seen)
    return found


def visited(A: Any, model: Any) -> int:
    """Entries of the changed columns and of their records' rows, and features: the mean of all rounds of a fit."""
    path, by_column, lengths, total = Path(model.plan_), A.tocsc(), np.diff(A.indptr), 0
    for message in model.transcript_:
        if message.name == "atom" and message.sender != "coordinator":
            _, changes = path.move(int(message.payload[0]))
            records = np.concatenate([by_column[:, place].indices for place, _ in changes])
            total += len(records) + int(lengths[np.unique(records)].sum())
    return total // model.plan_.rounds + A.shape[1]


if __name__ == "__main__":
    warnings.simplefilter("ignore", RepeatedFitWarning)
    main()
