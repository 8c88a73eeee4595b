"""Estimates of time and memory against fits: `python benchmarks/estimates.py`.

Each case is a process of its own: a plan is made and estimated (`app/previews.py`), then the fit runs. Seconds are what
a fit takes longer than its plan, by one thread and by the processor's clock, so that other work on the machine does not
count. Memory is the process's peak. A ratio is the estimate by what the fit took, and should be between 0.5 and 2.
"""

from __future__ import annotations

import os

os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # others reserve much more than they use
for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from files import made as written

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.app.previews import Cost, FitRows, cost_of
from sottovoce.data.block import BlockRows
from sottovoce.errors import RepeatedFitWarning

LIMIT = 900_000_000  # bytes that a process may allocate where rows are to lie in a file
SOLVERS = ("newton", "gradient", "sgd", "whitened", "cd", "scd", "frank-wolfe")
SECURE = ("newton", "gradient", "whitened")
SHAPES: dict[str, tuple[int, int, int | None]] = {
    "dense 100,000 x 40": (100_000, 40, None),
    "dense 500,000 x 60": (500_000, 60, None),
    "sparse 100,000 x 120, 14 a row": (100_000, 120, 14),
    "sparse 400,000 x 300, 20 a row": (400_000, 300, 20),
    "files 1,500,000 x 40": (1_500_000, 40, None),
    "files in memory 3,000,000 x 40": (3_000_000, 40, None),
    "secure columns 100,000 x 12, 2 parties": (100_000, 12, 2),
    "secure columns 50,000 x 60, 3 parties": (50_000, 60, 3),
}


def data(records: int, features: int, width: int | None) -> tuple[Any, np.ndarray]:
    """FitRows with entries of at most 1, and labels that follow from them."""
    rng = np.random.default_rng(0)
    if width is None:
        X: Any = rng.uniform(-1.0, 1.0, (records, features))
    else:
        columns = (rng.zipf(1.3, (records, width)) - 1) % features  # some columns are in many rows
        starts = np.arange(0, columns.size + 1, width)
        X = sp.csr_matrix((rng.choice([-1.0, 1.0], columns.size), columns.ravel(), starts), (records, features))
        X.sum_duplicates()
    return X, np.where(X @ rng.standard_normal(features) > 0, 1, -1)


def model(solver: str) -> sv.PrivateLogisticRegression:
    """By its own defaults."""
    constrained: dict[str, Any] = {"radius": 5.0} if solver == "frank-wolfe" else {"alpha": 1e-3}
    return sv.PrivateLogisticRegression(
        1.0, delta=1e-6, entry_bound=1.0, classes=(-1, 1), solver=solver, fit_intercept=False, **constrained
    )


def in_files(solver: str, shape: str) -> dict[str, float]:
    """Of a Parquet file, prepared rows in memory or, by a limit under which they do not fit, in a file."""
    warnings.simplefilter("ignore", RepeatedFitWarning)
    records, features, _ = SHAPES[shape]
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), records, features)
        if "in memory" not in shape:
            resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, resource.RLIM_INFINITY))
        made = sv.PrivateLogisticRegression(1.0, delta=1e-9, row_norm=2 * features**0.5, classes=(0, 1), solver=solver)
        federation = sv.Federation.central(sv.Dataset(path, label="y", folder=folder))
        plan = made.plan(federation)
        start = time.process_time()
        told = cost_of(plan, algorithms.of(plan), FitRows(records, features, kind=".parquet", folders=(Path(folder),)))
        spent = time.process_time() - start
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        start = time.process_time()
        made.fit(federation)
        took = time.process_time() - start
    return found(told, took, spent)


def found(told: Cost, took: float, spent: float) -> dict[str, float]:
    """What is printed of a case."""
    assert told.seconds is not None
    assert told.memory_bytes is not None
    return {
        "told_s": told.seconds,
        "took_s": took,
        "told_MB": told.memory_bytes / 1e6,
        "took_MB": peak() / 1e6,
        "estimating_s": spent,
    }


def peak() -> int:
    """The most bytes that this process has had since it was last counted anew."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def case(solver: str, shape: str) -> dict[str, float]:
    """One estimate and one fit."""
    warnings.simplefilter("ignore", RepeatedFitWarning)
    if shape.startswith("files"):
        return in_files(solver, shape)
    secure = SHAPES[shape][2] if shape.startswith("secure") else None
    X, y = data(*SHAPES[shape][:2], None if secure else SHAPES[shape][2])
    made = model(solver)
    federation = sv.Federation.central(X, y)
    if secure:
        columns = np.array_split(np.arange(X.shape[1]), secure)
        federation = sv.Federation.by_columns([X[:, own] for own in columns], y, products="secure")
    with warnings.catch_warnings(action="ignore"):
        model(solver).fit(X[:500], y[:500])  # loops are loaded
    plan = made.plan(federation)
    rows = FitRows(*X.shape, X.nnz / X.shape[0] if sp.issparse(X) else None)
    start = time.process_time()
    told = cost_of(plan, algorithms.of(plan), rows)
    spent = time.process_time() - start
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is counted anew
    start = time.process_time()
    made.plan(federation)
    planned = time.process_time() - start
    start = time.process_time()
    made.fit(federation)
    took = time.process_time() - start - planned
    return found(told, took, spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--case", nargs=2, metavar=("SOLVER", "SHAPE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(case(*arguments.case)))
        return
    results, worst = dict[str, dict[str, float]](), 1.0
    for shape in SHAPES:
        for solver in SOLVERS:
            name = f"{solver}, {shape}"
            serving = {"files": algorithms.served(BlockRows), "secure": SECURE}.get(shape.split()[0], SOLVERS)
            if arguments.only not in name or solver not in serving:
                continue
            run = subprocess.run(
                [sys.executable, __file__, "--case", solver, shape], capture_output=True, text=True, check=True
            )
            results[name] = numbers = json.loads(run.stdout)
            ratios = [numbers[f"told_{unit}"] / numbers[f"took_{unit}"] for unit in ("s", "MB")]
            worst = max(worst, *(math.exp(abs(math.log(ratio))) for ratio in ratios))
            if not arguments.json:
                print(
                    f"{name:45s} {numbers['told_s']:7.2f} s of {numbers['took_s']:7.2f} s: {ratios[0]:5.2f}"
                    f"   {numbers['told_MB']:6.0f} MB of {numbers['took_MB']:6.0f} MB: {ratios[1]:5.2f}"
                    f"   estimated in {numbers['estimating_s']:.2f} s",
                    flush=True,
                )
    print(json.dumps(results, indent=2) if arguments.json else f"the worst is off by a factor of {worst:.2f}")


if __name__ == "__main__":
    main()
