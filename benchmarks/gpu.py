"""Sums over rows on a CUDA device, as shares of the device's own copy: `python benchmarks/gpu.py`, with sottovoce[gpu].

A pass is `weighted_sum` of the logistic slope over float32 rows that lie on the device; copying is `cupy.copyto` of
float32, read and written. The rounds of a fit are what the default asks of the rows: a Gram matrix, the lengths of
whitened rows, and a pass for each gradient, here 64 of them. `--fit` fits rows of the host by the processor and by the
device, preparing and copying them, and compares the models bit for bit.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import numpy as np

import sottovoce as sv
from sottovoce import losses
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.data.device import block as device
from sottovoce.data.preparation import Preparation
from sottovoce.data.slopes import Slope

ROUNDS = 64


def best(function: Callable[[], object], repeats: int = 5) -> float:
    xp = device.cupy()
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
    xp = device.cupy()
    source = xp.ones(1 << 30, dtype=np.float32)
    target = xp.empty_like(source)
    return 2 * source.nbytes / best(lambda: xp.copyto(target, source))


def made_up(records: int, features: int) -> device.DeviceBlock:
    """Rows on the grid that were never on the host."""
    xp = device.cupy()
    recipe = Preparation(Bounds(row_norm=1.0), features, False, records, (-1, 1))
    about = Block.prepare(np.zeros((0, features)), np.zeros(0), recipe, records=records)
    rng, step, pieces = xp.random.default_rng(0), device.PIECE // features, []
    scale = 2.0**recipe.bits
    for start in range(0, records, step):
        count = min(step, records - start)
        rows = rng.random((count, features), dtype=np.float32)
        rows -= np.float32(0.5)
        rows *= np.float32(1.9 * scale / math.sqrt(features))
        xp.trunc(rows, out=rows)
        rows /= np.float32(scale)
        labels = (2 * (rng.random(count, dtype=np.float32) > 0.5).astype(np.int8) - 1).astype(np.int8)
        pieces.append(device.Piece(rows, labels, xp.zeros(count, dtype=bool)))
    return device.DeviceBlock(pieces, [], about)


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
    total = gram + lengths + ROUNDS * whitened
    print(
        f"{records:,} x {features}: pass {1e3 * once:.2f} ms, {size / once / copy:.0%} of copying; Gram matrix "
        f"{1e3 * gram:.0f} ms; lengths {1e3 * lengths:.0f} ms; whitened pass {1e3 * whitened:.2f} ms, "
        f"{(size + 8 * records) / whitened / copy:.0%}; newton's rounds {gram + ROUNDS * once:.2f} s, the default's "
        f"{total:.2f} s",
        flush=True,
    )


def fits(records: int, features: int) -> None:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((records, features), dtype=np.float32)
    y = np.where(X @ rng.standard_normal(features) + rng.logistic(size=records) > 0, 1, -1)
    models, times = [], []
    for where in ("cpu", "cuda", "cuda"):
        model = sv.PrivateLogisticRegression(
            epsilon=1.0, row_norm=10.0, classes=(-1, 1), insecure_seed=1, device=where, n_jobs=-1
        )
        start = time.perf_counter()
        models.append(model.fit(X, y))
        times.append(time.perf_counter() - start)
    same = all(np.array_equal(models[0].coef_, model.coef_) for model in models)
    print(
        f"fit of {records:,} x {features} from the host: processor {times[0]:.1f} s, device {times[2]:.1f} s; "
        f"{'bitwise equal' if same else 'NOT EQUAL'}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=["100000000x90", "100000000x32", "20000000x500"])
    parser.add_argument("--fit", default="1000000x90", help="records x features")
    arguments = parser.parse_args()
    copy = copied()
    device.cupy().get_default_memory_pool().free_all_blocks()
    print(f"copying: {copy / 1e12:.2f} TB/s")
    for shape in arguments.shapes:
        passes(*map(int, shape.split("x")), copy)
        device.cupy().get_default_memory_pool().free_all_blocks()
    fits(*map(int, arguments.fit.split("x")))


if __name__ == "__main__":
    main()
