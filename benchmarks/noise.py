"""CPU seconds per million draws of each sampler, and the overhead of small ones: python benchmarks/noise.py."""

from __future__ import annotations

import time
from collections.abc import Callable

from sottovoce.privacy.mechanisms import SystemRandomness, gumbel, poisson_sample, rounded_gaussian, rounded_laplace

MILLION = 1_000_000


def cpu_seconds(draw: Callable[[], object], repetitions: int) -> float:
    """The least CPU time of one call in five series of ``repetitions``."""
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        for _ in range(repetitions):
            draw()
        best = min(best, (time.process_time() - start) / repetitions)
    return best


def main() -> None:
    source = SystemRandomness()
    for power in (16, 20, 24, 28):
        seconds = cpu_seconds(lambda scale=2.0**power: rounded_gaussian(scale, MILLION, source), 1)
        print(f"rounded Gaussian, scale 2^{power}: {seconds:.3f} s per million")
    print(f"rounded Laplace, scale 2^20: {cpu_seconds(lambda: rounded_laplace(2.0**20, MILLION, source), 1):.3f} s")
    print(f"Gumbel: {cpu_seconds(lambda: gumbel(MILLION, source), 1):.3f} s per million")
    seconds = cpu_seconds(lambda: poisson_sample(100 * MILLION, 0.01, source), 1)
    print(f"Poisson sample at rate 0.01: {seconds:.3f} s per million indices")
    print(f"100 rounded Gaussians: {1e6 * cpu_seconds(lambda: rounded_gaussian(2.0**20, 100, source), 500):.0f} us")
    print(f"500 Poisson indices: {1e6 * cpu_seconds(lambda: poisson_sample(50_000, 0.01, source), 500):.0f} us")


if __name__ == "__main__":
    main()
