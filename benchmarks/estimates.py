"""Estimates of time and memory against fits: `python benchmarks/estimates.py`.

Each case is a process of its own: a plan is made and estimated (`app/estimates.py`), then the fit runs. Seconds are
what a fit takes longer than its plan, by one thread and by the processor's clock, so that other work on the machine
does not count; memory is the process's peak. A ratio is what was estimated by what it took, and should lie between 0.5
and 2.
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import json
import math
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.app.estimates import InMemory
from sottovoce.errors import RepeatedFitWarning

SOLVERS = ("newton", "gradient", "sgd", "whitened", "cd", "scd", "frank-wolfe")
SHAPES: dict[str, tuple[int, int, int | None]] = {
    "dense 100,000 x 40": (100_000, 40, None),
    "dense 500,000 x 60": (500_000, 60, None),
    "sparse 100,000 x 120, 14 a row": (100_000, 120, 14),
    "sparse 400,000 x 300, 20 a row": (400_000, 300, 20),
}


def data(records: int, features: int, width: int | None) -> tuple[Any, np.ndarray]:
    """Rows with entries of at most 1, and labels that follow from them."""
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


def peak() -> int:
    """The most bytes that this process has had since it was last counted anew."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def case(solver: str, shape: str) -> dict[str, float]:
    """One estimate and one fit."""
    warnings.simplefilter("ignore", RepeatedFitWarning)
    X, y = data(*SHAPES[shape])
    made = model(solver)
    federation = sv.Federation.central(X, y)
    plan = made.plan(federation)
    rows = InMemory(*X.shape, X.nnz / X.shape[0] if sp.issparse(X) else None, here=True)
    start = time.process_time()
    told = rows.estimate(plan, algorithms.of(plan))
    spent = time.process_time() - start
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is counted anew
    start = time.process_time()
    made.plan(federation)
    planned = time.process_time() - start
    start = time.process_time()
    made.fit(federation)
    took = time.process_time() - start - planned
    return {
        "told_s": told.seconds,
        "took_s": took,
        "told_MB": told.memory_bytes / 1e6,
        "took_MB": peak() / 1e6,
        "estimating_s": spent,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--case", nargs=2, metavar=("SOLVER", "SHAPE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(case(*arguments.case)))
        return
    found, worst = dict[str, dict[str, float]](), 1.0
    for shape in SHAPES:
        for solver in SOLVERS:
            name = f"{solver}, {shape}"
            if arguments.only not in name:
                continue
            run = subprocess.run(
                [sys.executable, __file__, "--case", solver, shape], capture_output=True, text=True, check=True
            )
            found[name] = numbers = json.loads(run.stdout)
            ratios = [numbers[f"told_{unit}"] / numbers[f"took_{unit}"] for unit in ("s", "MB")]
            worst = max(worst, *(math.exp(abs(math.log(ratio))) for ratio in ratios))
            if not arguments.json:
                print(
                    f"{name:45s} {numbers['told_s']:7.2f} s of {numbers['took_s']:7.2f} s: {ratios[0]:5.2f}"
                    f"   {numbers['told_MB']:6.0f} MB of {numbers['took_MB']:6.0f} MB: {ratios[1]:5.2f}"
                    f"   estimated in {numbers['estimating_s']:.2f} s",
                    flush=True,
                )
    print(json.dumps(found, indent=2) if arguments.json else f"the worst is off by a factor of {worst:.2f}")


if __name__ == "__main__":
    main()
