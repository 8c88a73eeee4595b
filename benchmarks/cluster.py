"""What a round on a Dask cluster takes beside its arithmetic: `python benchmarks/cluster.py`, with sottovoce[cluster].

Workers are processes of this machine, with one thread each. A round is `weighted_sum` of the logistic slope: one
message to each worker and a sum of `features` numbers back. "here" is the same pass over the same rows in this process,
by one thread; "few" is a round on 16 records for each worker, which is what remains without arithmetic. The three are
measured in turns, best and median of `--repeats`. Then a model is fitted here and on the cluster, a worker is killed in
the middle of the second fit, and the models are compared bit for bit. With more workers than cores the arithmetic of
workers waits for cores: a round then takes as long as "here", divided by the cores.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import dask
import numpy as np
from distributed import Client, LocalCluster

import sottovoce as sv
from sottovoce import losses
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.data.cluster.cluster_parts import on_cluster
from sottovoce.data.cluster.connection import Cluster
from sottovoce.data.matrix import Slope
from sottovoce.data.preparation import Preparation

COMMON: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "row_norm": 3.0, "insecure_seed": 1, "classes": (0, 1)}


def partition(seed: int, records: int, features: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((records, features)) / np.sqrt(features)
    return X, (X[:, 0] > 0).astype(np.int64)


def timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return 1e3 * (time.perf_counter() - start)


def rows_of(client: Client, partitions: int, records: int, features: int) -> Any:
    """Rows on the cluster, and the same in this process."""
    made = [dask.delayed(partition)(seed, records, features) for seed in range(partitions)]
    data = sv.Dataset.from_dask(made, cluster=client)
    recipe = Preparation(Bounds(row_norm=3.0), features, True, partitions * records, (0, 1))
    pieces = [partition(seed, records, features) for seed in range(partitions)]
    X, y = np.concatenate([X for X, _ in pieces]), np.concatenate([y for _, y in pieces])
    return data, on_cluster(data, recipe), Block.prepare(X, y, recipe), (X, y)


def rounds(workers: int, client: Client, told: argparse.Namespace) -> None:
    few = rows_of(client, workers, 16, told.features)[1]
    data, far, here, (X, y) = rows_of(client, 4 * workers, told.records // (4 * workers), told.features)
    weights = np.random.default_rng(0).standard_normal(far.dimension)
    slope = Slope(losses.get("logistic"), 1.0, far.bits)
    ways = {
        name: lambda at=at: at.weighted_sum(weights, slope) for name, at in (("far", far), ("here", here), ("few", few))
    }
    assert ways["far"]().tobytes() == ways["here"]().tobytes()
    ways["few"]()
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(told.repeats):
        for name, way in ways.items():
            found[name].append(timed(way))
    numbers = [f"{min(times):.1f} ({statistics.median(times):.1f})" for times in found.values()]
    print(f"| {workers} | {len(here):,} x {told.features} | {' | '.join(numbers)} |", flush=True)
    del few, far
    killed(workers, client, data, (X, y))


def killed(workers: int, client: Client, data: Any, arrays: Any) -> None:
    """A worker is killed in the tenth round of thirty."""

    def model() -> Any:
        return sv.PrivateLogisticRegression(**COMMON, solver=sv.solvers.Newton(rounds=30))

    expected = model().fit(*arrays).coef_.tobytes()
    pids, sent, real = client.run(os.getpid), list[float](), Cluster.send

    def send(self: Cluster, messages: Any, function: Any) -> Any:
        sent.append(time.perf_counter())
        if len(sent) == 10:
            os.kill(pids[next(iter(messages))], signal.SIGKILL)
        return real(self, messages, function)

    whole = timed(lambda: model().fit(data))
    Cluster.send = send  # type: ignore[method-assign]
    start = time.perf_counter()
    same = model().fit(data).coef_.tobytes() == expected
    took, gap = time.perf_counter() - start, max(b - a for a, b in itertools.pairwise(sent[9:]))
    Cluster.send = real  # type: ignore[method-assign]
    print(
        f"{workers} workers, a fit of 30 rounds: {whole / 1e3:.2f} s; with one killed in round 10: {took:.2f} s, of "
        f"which {gap:.2f} s until it went on; bits equal: {same}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 8])
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--features", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=25)
    told = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; ms, best (median)")
    print("| workers | records | round | here | few |\n|---|---|---|---|---|")
    for workers in told.workers:
        options = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None, "memory_limit": 0}
        with LocalCluster(processes=True, silence_logs=50, **options) as cluster, Client(cluster) as client:
            rounds(workers, client, told)


if __name__ == "__main__":
    main()
