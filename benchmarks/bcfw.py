"""How tight the bound of block-coordinate Frank-Wolfe is, and what a round costs: python benchmarks/bcfw.py.

Bound / measured mean of f(x_t) - min f for five samplings of d = 8 blocks with the universal step, after 1, 3, 10 and
30 passes (a pass is 1 / p_min rounds). The first three problems are Frank-Wolfe's worst case, the distance to the
centre of a face with many vertices; the last two are random least squares, where it is faster than 1/t. Then the
expected curvature itself, and microseconds per round. Seeds are fixed.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import time

import numpy as np
import scipy.sparse as sp

from sottovoce.lab import bcfw
from sottovoce.penalties import BoxSet, ConstraintSet, L1Ball, L2Ball, Product, Simplex

BLOCKS, SIZE, RUNS = 8, 200, 20
PASSES = np.array([1, 3, 10, 30])
RADII = np.linspace(1.0, 1.3, BLOCKS)
Problem = tuple[bcfw.Composite, Product, np.ndarray, float]


def worst_case(coupling: float, ball: bool) -> Problem:
    """sum_i |x_i - c_i|^2 / 2 + (coupling / 2) |sum_i (x_i - c_i)|^2: simplices, or l1 balls with c far outside."""
    n = (BLOCKS + 1) * SIZE
    mix = np.sqrt(coupling) * sp.kron(np.ones((1, BLOCKS)), sp.eye_array(SIZE))
    A = np.sqrt(n) * sp.vstack([sp.eye_array(BLOCKS * SIZE), mix])
    best = np.repeat(RADII / SIZE, SIZE)
    f = bcfw.least_squares(A, A @ ((SIZE if ball else 1) * best))
    M = Product(tuple((L1Ball if ball else Simplex)(float(r)) for r in RADII), (SIZE,) * BLOCKS)
    start = np.concatenate([r * np.eye(SIZE)[i] for i, r in enumerate(RADII)])
    return f, M, start, f.value(best)


def random_squares(parts: list[ConstraintSet], size: int) -> Problem:
    """Random A and y, from a random vertex."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((200, BLOCKS * size))
    f = bcfw.least_squares(A, A @ rng.standard_normal(BLOCKS * size))
    M = Product(tuple(parts), (size,) * BLOCKS)
    best = bcfw.solve(f, M, bcfw.Elementary(BLOCKS), rounds=4000, step="line-search", tolerance=1e-5)
    return f, M, M.linear_oracle(rng.standard_normal(BLOCKS * size)), best.value - best.gap


def samplings(f: bcfw.Composite, M: Product) -> dict[str, bcfw.Sampling]:
    weights = np.sqrt(bcfw.block_curvatures(f, M))
    return {
        "elementary": bcfw.Elementary(BLOCKS),
        "uniform serial": bcfw.UniformSerial(BLOCKS),
        "4-nice": bcfw.Nice(BLOCKS, 4),
        "(4, 1)-distributed": bcfw.Distributed(BLOCKS, users=4, tau=1),
        "importance, serial": bcfw.SerialImportance(weights),
    }


def main() -> None:
    problems = {
        "simplices": worst_case(0.0, ball=False),
        "coupled simplices": worst_case(0.3, ball=False),
        "l1 balls": worst_case(0.0, ball=True),
        "random, boxes": random_squares([BoxSet(-float(r), float(r)) for r in RADII], 5),
        "random, l2 balls": random_squares([L2Ball(float(r)) for r in RADII], 5),
    }
    f, M, *_ = problems["simplices"]
    for sampling in samplings(f, M).values():
        bcfw.solve(f, M, sampling, rounds=3, every=1, generator=0)  # compiles
    print(f"bound / measured gap after {', '.join(map(str, PASSES))} passes; bound of the expected curvature")
    for name, (f, M, start, least) in problems.items():
        print(f"\n{name}")
        for label, sampling in samplings(f, M).items():
            p = sampling.smallest
            looks = np.round(PASSES / p).astype(int)
            runs, seconds = [], time.process_time()
            for seed in range(1 if p == 1 else RUNS):
                options = {"rounds": int(looks[-1]), "start": start, "generator": seed, "every": 1, "gaps": False}
                runs.append(bcfw.solve(f, M, sampling, **options).trace.values[[0, *looks]] - least)
            seconds = (time.process_time() - seconds) / (len(runs) * looks[-1])
            first, *gaps = np.mean(runs, axis=0)
            curvature = bcfw.curvature_bound(f, M, sampling)
            ratios = np.asarray(bcfw.theorem_bound(looks, first, curvature, p)) / gaps
            shown = " ".join(f"{ratio:7.1f}" for ratio in ratios)
            print(f"  {label:20s} {shown}   C {curvature:8.2f}   {1e6 * seconds:5.0f} us a round")

    f, M, start, least = problems["simplices"]
    print("\nAP-BCFW on the simplices, tau = 4, two workers, 240 rounds")
    seconds = time.perf_counter()
    found = bcfw.solve_parallel(f, M, tau=4, workers=2, rounds=240, start=start, generator=0)
    seconds = time.perf_counter() - seconds
    steps = map(bcfw.parallel_step(BLOCKS, 4), range(240))
    nice = bcfw.curvature_bound(f, M, bcfw.Nice(BLOCKS, 4))
    bound = bcfw.recursion_bound(steps, f.value(start) - least, nice, 4 / BLOCKS)[-1]
    delay = f"mean delay {found.mean_delay:.2f} rounds, largest {found.largest_delay}"
    print(f"  gap {found.value - least:.2e}, bound without delays {bound:.2e}; {delay}; {seconds:.2f} s")


if __name__ == "__main__":
    main()
