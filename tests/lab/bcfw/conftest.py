"""Small problems and samplings that the tests share, with minima found by an independent method."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse as sp

from sottovoce.lab import bcfw
from sottovoce.penalties import BoxSet, ConstraintSet, L1Ball, L2Ball, Product, Simplex

BLOCKS = 6


@dataclass(frozen=True)
class Problem:
    """`least` is certified: a projected-gradient minimum minus its duality gap."""

    f: bcfw.Composite
    M: Product
    start: np.ndarray
    least: float

    def gap(self, x: np.ndarray) -> float:
        return self.f.value(x) - self.least


def minimum(f: bcfw.Objective, M: ConstraintSet, rounds: int = 4000) -> float:
    """Accelerated projected gradient with restarts, less the duality gap where it stops."""
    A = f.majorant()
    A = A.toarray() if sp.issparse(A) else A
    step = 1 / np.linalg.norm(A, 2) ** 2
    x = z = M.project(np.zeros(f.dimension))
    t = 1.0
    for _ in range(rounds):
        new = M.project(z - step * f.gradient(z))
        if (z - new) @ (new - x) > 0:
            t = 1.0
        after = (1 + np.sqrt(1 + 4 * t**2)) / 2
        z = new + (t - 1) / after * (new - x)
        x, t = new, after
        gradient = f.gradient(x)
        gap = float(gradient @ (x - M.linear_oracle(gradient)))
        if gap < 1e-11:
            break
    assert gap < 1e-6 * (1 + abs(f.value(x)))
    return f.value(x) - max(gap, 0.0)


def make(parts: list[ConstraintSet], sizes: list[int], seed: int, reach: float) -> Problem:
    rng = np.random.default_rng(seed)
    M = Product(tuple(parts), tuple(sizes))
    A = rng.standard_normal((12, sum(sizes))) + 0.4
    f = bcfw.least_squares(A, A @ (reach * rng.standard_normal(sum(sizes))))
    return Problem(f, M, M.linear_oracle(rng.standard_normal(sum(sizes))), minimum(f, M))


@pytest.fixture(scope="session")
def problems() -> dict[str, Problem]:
    radii = [1.0, 0.5, 1.5, 2.0, 1.0, 0.7]
    sizes = [2, 3, 1, 2, 3, 2]
    mixed: list[ConstraintSet] = [BoxSet(-1, 0.5), L1Ball(1.0), BoxSet(0, 2), L2Ball(1.2), Simplex(1.0), L1Ball(0.6)]
    return {
        "scalars": make([BoxSet(-r, r) for r in radii], [1] * BLOCKS, 1, 1.0),
        "boxes": make([BoxSet(-r, r + 0.5) for r in radii], sizes, 2, 0.8),
        "l1 balls": make([L1Ball(r) for r in radii], sizes, 3, 0.5),
        "l2 balls": make([L2Ball(r) for r in radii], sizes, 4, 1.0),
        "simplices": make([Simplex(r) for r in radii], [3] * BLOCKS, 5, 0.3),
        "mixed": make(mixed, sizes, 6, 0.6),
    }


class Arcs(bcfw.Sampling):
    """A user's own: two blocks that follow each other on a circle, the first twice as likely to start."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        weights = np.ones(blocks)
        weights[0] = 2.0
        self.starts = weights / weights.sum()

    def draw(self, generator):
        first = generator.choice(self.blocks, p=self.starts)
        return np.array([first, (first + 1) % self.blocks])

    def probabilities(self):
        return self.starts + np.roll(self.starts, 1)

    def sets(self):
        return [(np.array([i, (i + 1) % self.blocks]), float(p)) for i, p in enumerate(self.starts)]


@pytest.fixture(scope="session")
def samplings() -> dict[str, bcfw.Sampling]:
    return {
        "elementary": bcfw.Elementary(BLOCKS),
        "uniform serial": bcfw.UniformSerial(BLOCKS),
        "3-nice": bcfw.Nice(BLOCKS, 3),
        "(3, 1)-distributed": bcfw.Distributed(BLOCKS, 3, 1),
        "(2, 2)-distributed": bcfw.Distributed(BLOCKS, 2, 2),
        "serial importance": bcfw.SerialImportance([1, 2, 1, 3, 2, 1]),
        "independent importance": bcfw.IndependentImportance([0.2, 0.5, 1.0, 0.3, 0.4, 0.25]),
        "listed": bcfw.Listed(BLOCKS, [[0, 1, 2], [3], [4, 5], []], [0.3, 0.3, 0.3, 0.1]),
        "arcs": Arcs(BLOCKS),
    }


@dataclass(frozen=True)
class Hard:
    """Frank-Wolfe's worst case: |x|^2 / 2 over simplices of many coordinates, with the blocks coupled."""

    f: bcfw.Composite
    M: Product
    start: np.ndarray
    least: float


def hard(radii: np.ndarray, size: int, coupling: float, ball: bool) -> Hard:
    """f(x) = sum_i |x_i - c_i|^2 / 2 + (coupling / 2) |sum_i (x_i - c_i)|^2, c_i a multiple of (1, ..., 1).

    x_i = (radius_i / size) (1, ..., 1) is the minimum; t vertices come no closer to it than sqrt(1/t - 1/size). For l1
    balls c is so far outside that no vertex of another face is ever best. Every pair of blocks has its largest product
    in the same direction, so the sum over pairs is the expected curvature itself.
    """
    d = len(radii)
    rows = (d + 1) * size
    A = sp.vstack([sp.eye_array(d * size), np.sqrt(coupling) * sp.kron(np.ones((1, d)), sp.eye_array(size))])
    best = np.repeat(radii / size, size)
    f = bcfw.least_squares(np.sqrt(rows) * A, np.sqrt(rows) * (A @ ((size if ball else 1) * best)))
    parts = tuple((L1Ball if ball else Simplex)(float(r)) for r in radii)
    start = np.concatenate([r * np.eye(size)[i] for i, r in enumerate(radii)])
    return Hard(f, Product(parts, (size,) * d), start, f.value(best))


@pytest.fixture(scope="session")
def hard_problems() -> dict[str, Hard]:
    radii = np.linspace(1.0, 1.3, BLOCKS)
    return {
        "simplices": hard(radii, 60, 0.0, ball=False),
        "coupled simplices": hard(radii, 60, 0.3, ball=False),
        "l1 balls": hard(radii, 60, 0.0, ball=True),
    }
