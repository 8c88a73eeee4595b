"""Sums over rows on a CUDA device, as shares of the device's own copy: `python benchmarks/gpu.py`, with sottovoce[gpu].

A pass is `weighted_sum` of the logistic slope over float32 rows that lie on the device; copying is `cupy.copyto` of
float32, read and written. The rounds of a fit are what the default asks of the rows: a Gram matrix, the lengths of
whitened rows, and a pass for each gradient, here 64 of them. `--fit` fits rows of the host by the processor and by the
device, preparing and copying them, and compares the models bit for bit. `--host` prepares and copies rows of the host,
and fits them on the device alone; 100000000x90 takes 80 GB of the host's memory. `--sparse` is records x features x
entries of a row.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import joblib
import numpy as np
import scipy.sparse as sp

import sottovoce as sv
from sottovoce import losses
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.data.device import device_block as device
from sottovoce.data.device import pieces
from sottovoce.data.device.pieces import cupy
from sottovoce.data.matrix import Slope
from sottovoce.data.preparation import Preparation
from sottovoce.data.resources import plain_blas

ROUNDS = 64


def best(function: Callable[[], object], repeats: int = 5) -> float:
    xp = cupy()
    function()
    times = []
    for _ in range(repeats):
        xp.cuda.Device().synchronize()
        start = time.perf_counter()
        function()
        xp.cuda.Device().synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def copied() -> float:
    """Bytes a second, read and written."""
    xp = cupy()
    source = xp.ones(1 << 30, dtype=np.float32)
    target = xp.empty_like(source)
    return 2 * source.nbytes / best(lambda: xp.copyto(target, source))


def recipe_of(records: int, features: int) -> Preparation:
    return Preparation(Bounds(row_norm=1.0), features, False, records, (-1, 1))


def labels_of(records: int) -> Any:
    xp = cupy()
    return (2 * (xp.random.default_rng(1).random(records, dtype=np.float32) > 0.5).astype(np.int8) - 1).astype(np.int8)


def made_up(records: int, features: int) -> device.DeviceBlock:
    """Rows on the grid that were never on the host."""
    xp, recipe = cupy(), recipe_of(records, features)
    about = Block.prepare(np.zeros((0, features)), np.zeros(0), recipe, records=records)
    rng, step, scale = xp.random.default_rng(0), (1 << 28) // features, 2.0**recipe.bits
    rows = xp.empty((records, features), dtype=np.float32)
    for start in range(0, records, step):
        part = rows[start : start + step]
        part[...] = rng.random(part.shape, dtype=np.float32)
        part -= np.float32(0.5)
        part *= np.float32(1.9 * scale / math.sqrt(features))
        xp.trunc(part, out=part)
        part /= np.float32(scale)
    return device.DeviceBlock([device.DevicePiece(rows, labels_of(records), xp.zeros(records, dtype=bool))], [], about)


def passes(records: int, features: int, copy: float) -> None:
    rows = made_up(records, features)
    weights = np.random.default_rng(1).standard_normal(features)
    slope = Slope(losses.get("logistic"), 1.0, rows.bits or 0)
    size = 4 * records * features + records
    once = best(lambda: rows.weighted_sum(weights, slope))
    gram = best(rows.gram, 2)
    matrix = np.tril(np.random.default_rng(2).standard_normal((features, features)))
    seen = rows.projected(matrix)
    lengths = best(lambda: rows.projected(matrix), 2)
    seen.cut(1.0)
    cut = Slope(losses.get("logistic"), 1.0, rows.bits or 0, 0.3)
    whitened = best(lambda: seen.weighted_sum(weights, cut))

    def fit() -> None:
        rows.gram()
        own = rows.projected(matrix)
        own.number_sum(lambda sizes, _: sizes / 9.0)
        own.cut(1.0)
        for _ in range(ROUNDS):
            own.weighted_sum(weights, cut)

    total = best(fit, 2)
    print(
        f"{records:,} x {features}: pass {1e3 * once:.2f} ms, {size / once / copy:.0%} of copying; Gram matrix "
        f"{1e3 * gram:.0f} ms; lengths {1e3 * lengths:.0f} ms; whitened pass {1e3 * whitened:.2f} ms, "
        f"{(size + 8 * records) / whitened / copy:.0%}; newton's rounds {gram + ROUNDS * once:.2f} s, the default's "
        f"{total:.2f} s",
        flush=True,
    )


def sparse(records: int, features: int, entries: int, copy: float) -> None:
    """Columns at random, as many in every row; the same pass by the processor for a twentieth of the rows."""
    xp, recipe = cupy(), recipe_of(records, features)
    about = Block.prepare(np.zeros((0, features)), np.zeros(0), recipe, records=records)
    rng = xp.random.default_rng(0)
    held = (
        xp.arange(records + 1, dtype=np.int64) * entries,
        rng.integers(0, features, records * entries, dtype=np.int32),
        xp.full(records * entries, 2.0 ** -math.ceil(math.log2(entries)), dtype=np.float32),
    )
    piece = device.DevicePiece(None, labels_of(records), xp.zeros(records, dtype=bool), sparse=held)
    rows = device.DeviceBlock([piece], [], about)
    weights, slope = np.random.default_rng(1).standard_normal(features), Slope(losses.get("logistic"), 1.0, recipe.bits)
    once = best(lambda: rows.weighted_sum(weights, slope))
    few = records // 20
    parts = [xp.asnumpy(part[: few * entries]) for part in (held[2], held[1])]
    matrix = sp.csr_matrix((*parts, xp.asnumpy(held[0][: few + 1])), shape=(few, features))
    here = Block(matrix, xp.asnumpy(piece.labels[:few]).astype(np.float64), recipe.bits)
    with joblib.parallel_config("threading", n_jobs=-1):
        processor = 20 * best(lambda: here.weighted_sum(weights, slope), 2)
    size = 8 * records * entries + 9 * records
    print(
        f"sparse, {records:,} x {features:,} with {entries} entries a row: pass {1e3 * once:.1f} ms, "
        f"{size / once / copy:.0%} of copying; {os.cpu_count()} processors {1e3 * processor:.0f} ms",
        flush=True,
    )


def drawn(records: int, features: int) -> tuple[Any, Any]:
    """Rows and labels of the host."""
    X, y = np.empty((records, features), dtype=np.float32), np.empty(records, dtype=np.int8)
    weights, step = np.random.default_rng(3).standard_normal(features, dtype=np.float32), 1 << 20

    def fill(start: int) -> None:
        rng, part = np.random.default_rng([4, start]), X[start : start + step]
        rng.standard_normal(out=part, dtype=np.float32)
        y[start : start + step] = np.where(part @ weights + rng.logistic(size=len(part)) > 0, 1, -1)

    with plain_blas(), ThreadPoolExecutor() as pool:
        list(pool.map(fill, range(0, records, step)))
    return X, y


def fitted(X: Any, y: Any, where: str) -> tuple[Any, float]:
    model = sv.PrivateLogisticRegression(
        epsilon=1.0,
        delta=1e-9,
        row_norm=10.0,
        classes=(-1, 1),
        insecure_seed=1,
        resources=sv.Resources(n_jobs=-1, device=where),
    )
    start = time.perf_counter()
    model.fit(X, y)
    return model, time.perf_counter() - start


def fits(records: int, features: int) -> None:
    X, y = drawn(records, features)
    found = [fitted(X, y, where) for where in ("cpu", "cpu", "cuda", "cuda")]
    same = all(np.array_equal(found[0][0].coef_, model.coef_) for model, _ in found)
    print(
        f"fit of {records:,} x {features} from the host: processor {found[1][1]:.1f} s, device {found[3][1]:.1f} s; "
        f"{'bitwise equal' if same else 'NOT EQUAL'}",
        flush=True,
    )


def from_host(records: int, features: int) -> None:
    start = time.perf_counter()
    X, y = drawn(records, features)
    print(f"drawn in {time.perf_counter() - start:.1f} s", flush=True)
    recipe = Preparation(Bounds(row_norm=10.0), features, True, records, (-1, 1))
    with joblib.parallel_config("threading", n_jobs=-1):
        start = time.perf_counter()
        rows = device.DeviceBlock.prepare(X, y, recipe)
        total = time.perf_counter() - start
        step = pieces.CHUNK // (features + 1)
        part = Block.prepare(X[:step], y[:step], recipe, records=records)
    target = cupy().empty(part.rows.shape, dtype=np.float32)
    copying = best(lambda: pieces._send(target, part.rows), 3) * records / len(part)
    print(f"prepared and copied in {total:.1f} s, of which copying {copying:.1f} s", flush=True)
    del rows
    cupy().get_default_memory_pool().free_all_blocks()
    _, whole = fitted(X, y, "cuda")
    print(
        f"{records:,} x {features} from the host, {os.cpu_count()} processors: prepared and copied in {total:.1f} s, "
        f"of which copying {copying:.1f} s, {4e-9 * records * (features + 1) / copying:.0f} GB/s; a whole fit "
        f"{whole:.1f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="*", default=["100000000x90", "100000000x32", "20000000x500"])
    parser.add_argument("--sparse", default="20000000x10000x30", help="records x features x entries")
    parser.add_argument("--fit", default="1000000x90", help="records x features")
    parser.add_argument("--host", help="records x features")
    arguments = parser.parse_args()
    copy = copied()
    pool = cupy().get_default_memory_pool()
    pool.free_all_blocks()
    print(f"copying: {copy / 1e12:.2f} TB/s", flush=True)
    for shape in arguments.shapes:
        passes(*map(int, shape.split("x")), copy)
        pool.free_all_blocks()
    sparse(*map(int, arguments.sparse.split("x")), copy)
    pool.free_all_blocks()
    fits(*map(int, arguments.fit.split("x")))
    if arguments.host:
        from_host(*map(int, arguments.host.split("x")))


if __name__ == "__main__":
    main()
