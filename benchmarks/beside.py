"""Two versions of the library beside each other: `python benchmarks/beside.py PATH_OF_ANOTHER_TREE`.

The clock of a shared machine drifts by half within minutes, so two runs one after the other compare nothing. Here both
trees fit in turn, a process each, the same problem, many times; the CPU seconds of each pair of neighbouring fits give
one ratio (this tree / the other), and the table has the median of the ratios with its quartiles.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent.parent
TASKS = {
    "newton, 200,000 x 90": ("logistic", "newton", 200_000, 90),
    "gradient, 200,000 x 90": ("logistic", "gradient", 200_000, 90),
    "newton, 20,000 x 40": ("logistic", "newton", 20_000, 40),
    "newton, 500 x 5": ("logistic", "newton", 500, 5),
    "gradient, 20,000 x 40": ("logistic", "gradient", 20_000, 40),
    "sgd, 20,000 x 40": ("logistic", "sgd", 20_000, 40),
    "sgd, 500 x 5": ("logistic", "sgd", 500, 5),
    "cd, 5,000 x 40": ("ridge", "cd", 5_000, 40),
    "scd, 5,000 x 40": ("ridge", "scd", 5_000, 40),
    "frank-wolfe, 5,000 x 200": ("lasso", "frank-wolfe", 5_000, 200),
    "score, columns, 5,000 x 20": ("columns", "score", 5_000, 20),
}

WORKER = """
import sys, time, warnings
import numpy as np
import sottovoce as sv
warnings.simplefilter("ignore")


def made(kind, solver, records, features):
    generator = np.random.default_rng(0)
    X = generator.standard_normal((records, features))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = X @ generator.standard_normal(features) / 3
    signs = np.where(y > 0, 1, -1)
    promise = {"epsilon": 1.0, "delta": 1e-6, "row_norm": 1.0, "solver": solver, "insecure_seed": 1}
    if kind == "ridge":
        model = sv.PrivateRidge(alpha=0.01, label_bound=1.0, **promise)
        return lambda: model.fit(X, y)
    if kind == "lasso":
        model = sv.PrivateLasso(radius=1.0, label_bound=1.0, **promise)
        return lambda: model.fit(X, y)
    model = sv.PrivateLogisticRegression(classes=(-1, 1), **promise)
    if kind == "logistic":
        return lambda: model.fit(X, signs)
    half = features // 2
    federation = sv.Federation.by_columns([X[:, :half], X[:, half:]], signs)
    return lambda: model.fit(federation)


fits = {}
for line in sys.stdin:
    task = eval(line)
    if task not in fits:
        fits[task] = made(*task)
        fits[task]()
        fits[task]()
    start, spent, count = time.process_time(), 0.0, 0
    while spent < 0.1:
        fits[task]()
        spent, count = time.process_time() - start, count + 1
    print(spent / count, flush=True)
"""


def worker(tree: Path) -> subprocess.Popen[str]:
    """A process that fits what it is told with the library of a tree, and says the CPU seconds of a fit."""
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    environment = {**os.environ, **threads, "PYTHONPATH": str(tree / "src")}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", WORKER], stdin=pipe, stdout=pipe, text=True, env=environment)


def seconds(process: subprocess.Popen[str], task: tuple[object, ...]) -> float:
    """One measurement."""
    if process.stdin is None or process.stdout is None:
        raise SystemExit("the worker has no pipes")
    process.stdin.write(f"{task!r}\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"a worker failed at {task}")
    return float(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, help="a checkout of another commit")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--only", default="", help="the tasks whose name contains this")
    arguments = parser.parse_args()
    this, other = worker(HERE), worker(arguments.other.resolve())
    print(f"{'':30}{'other ms':>10}{'this ms':>10}{'ratio':>8}  quartiles")
    for name, task in TASKS.items():
        if arguments.only not in name:
            continue
        pairs = np.array([(seconds(other, task), seconds(this, task)) for _ in range(arguments.pairs)])
        ratios = pairs[:, 1] / pairs[:, 0]
        low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
        before, after = 1e3 * np.median(pairs, axis=0)
        print(f"{name:30}{before:10.2f}{after:10.2f}{middle:8.3f}  {low:.3f} - {high:.3f}", flush=True)


if __name__ == "__main__":
    main()
