"""A fit of `whitened` beside one of `newton`, as ratios in one run: `python benchmarks/default_speed.py`.

Logistic regression at epsilon = 1. Fits are made in turn, so that both see the same machine; each pair of neighbouring
fits gives one ratio (whitened / newton) of CPU and of wall seconds, and the table has their medians. Rounds and bytes,
of all frames of the training, headers included, are those of 4 parties by rows. One thread.
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from peers.data import a9a

import sottovoce as sv

SOLVERS = ("newton", "whitened")
PARTIES = 4
Data = tuple[Any, np.ndarray]


def made(records: int, features: int) -> Data:
    """Dense rows of norm 1 and a noisy half-space."""
    generator = np.random.default_rng(0)
    X = generator.standard_normal((records, features))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = X @ generator.standard_normal(features) + 0.3 * generator.standard_normal(records)
    return X, np.where(y > 0, 1, -1)


def real() -> Data:
    """Sparse, 32,561 x 123."""
    case = a9a()
    return case.X, case.y


SHAPES: dict[str, tuple[Callable[[], Data], int]] = {  # with how many pairs of fits
    "500,000 x 90": (lambda: made(500_000, 90), 3),
    "a9a": (real, 15),
    "20,000 x 2,000": (lambda: made(20_000, 2_000), 3),
    "2,000 x 20": (lambda: made(2_000, 20), 30),
}


def model(solver: str) -> sv.PrivateLogisticRegression:
    return sv.PrivateLogisticRegression(epsilon=1.0, delta=1e-6, row_norm=1.0, classes=(-1, 1), solver=solver)


def seconds(solver: str, data: Data) -> tuple[float, float]:
    """CPU and wall, of one fit."""
    cpu, wall = time.process_time(), time.perf_counter()
    model(solver).fit(*data)
    return time.process_time() - cpu, time.perf_counter() - wall


def by_rows(solver: str, data: Data) -> tuple[int, int]:
    """Rounds and bytes."""
    X, y = data
    parts = [(X[k::PARTIES], y[k::PARTIES]) for k in range(PARTIES)]
    said = model(solver).fit(sv.Federation.by_rows(parts)).communication_
    return said.rounds, said.uplink_bytes + said.downlink_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(SHAPES), help="the shapes whose names contain one of these")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # the same people again and again
    heads = ("newton s", "whitened s", "ratio", "CPU ratio", "rounds", "MB")
    print(f"{'':16}" + "".join(f"{head:>14}" for head in heads))
    for name, (make, pairs) in SHAPES.items():
        if not any(part in name for part in arguments.only):
            continue
        data = make()
        for solver in SOLVERS:
            model(solver).fit(data[0][:1000], data[1][:1000])  # calibration and compiled loops are there
        taken = np.array([[seconds(solver, data) for solver in SOLVERS] for _ in range(pairs)])
        cpu, wall = np.median(taken[:, 1] / taken[:, 0], axis=0)
        times = np.median(taken[:, :, 1], axis=0)
        (few, small), (many, large) = by_rows("newton", data), by_rows("whitened", data)
        figures = (f"{times[0]:.3f}", f"{times[1]:.3f}", f"{wall:.2f}", f"{cpu:.2f}")
        frames = (f"{few} : {many}", f"{small / 1e6:.2f} : {large / 1e6:.2f}")
        print(f"{name:16}" + "".join(f"{figure:>14}" for figure in (*figures, *frames)), flush=True)


if __name__ == "__main__":
    main()
