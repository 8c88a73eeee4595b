"""What the bounds of the curvature are held against."""

from __future__ import annotations

from typing import Any

import numpy as np

from sottovoce.errors import InputError
from sottovoce.lab import bcfw
from sottovoce.lab.bcfw.objectives import Blocks
from sottovoce.lab.bcfw.samplings import Integers, Matrix, Vector, check_pairs, check_proper
from sottovoce.penalties import ConstraintSet

ASCENTS = 50


def estimate_curvature(
    objective: bcfw.Objective,
    constraint: ConstraintSet,
    sampling: bcfw.Sampling,
    *,
    tries: int = 32,
    draws: int = 512,
    generator: np.random.Generator | int | None = None,
) -> float:
    """An estimate of the expected curvature from below: the largest value that random tries find.

    For a quadratic the expectation is exact and each try climbs: d is replaced by the corner where the linearisation of
    the convex E_T |A d_T|^2 is largest, which never lowers it. Else x is random, s a random corner and u in
    {1, 1/3, 1/10, 1/30}; the expectation is exact where the sampling lists at most `draws` sets, and a mean over
    `draws` fresh sets otherwise, at the point that was best for others.
    """
    blocks = Blocks(constraint, objective.dimension)
    blocks.check(sampling)
    source = np.random.default_rng(generator)
    if objective.quadratic:
        pairs = check_pairs(sampling)
        A = objective.majorant()
        values = []
        for number in range(tries):  # from a random direction on, after some power steps or none
            value, direction = 0.0, source.standard_normal(blocks.dimension)
            for _ in range(10 * (number % 2)):
                _, direction = _mean_square(A, blocks, pairs, direction / max(float(np.linalg.norm(direction)), 1e-300))
            for _ in range(ASCENTS):
                d = blocks.oracle(blocks.all, -direction) - blocks.oracle(blocks.all, direction)
                found, direction = _mean_square(A, blocks, pairs, d)
                if found <= value * (1 + 1e-12):
                    break
                value = found
            values.append(value)
        return max(values)
    check_proper(sampling)
    sets, exact = _draw_sets(sampling, draws, source)
    points = []
    for _ in range(tries):
        corner, other, s = (blocks.oracle(blocks.all, source.standard_normal(blocks.dimension)) for _ in range(3))
        weight = source.choice([0.0, source.random()])
        points.append((corner + weight * (other - corner), s, float(source.choice([1.0, 1 / 3, 0.1, 1 / 30]))))
    best = max(points, key=lambda point: _expected_bend(objective, blocks, point, sets))
    return _expected_bend(objective, blocks, best, sets if exact else _draw_sets(sampling, draws, source)[0])


def _mean_square(A: Any, blocks: Blocks, pairs: Matrix, d: Vector) -> tuple[float, Vector]:
    """E_T |A d_T|^2 = sum_ij P_ij <A_i d_i, A_j d_j> and half its gradient."""
    moved = np.column_stack([A[:, blocks.slice(i)] @ d[blocks.slice(i)] for i in range(blocks.count)])
    mixed = moved @ pairs
    gradient = np.concatenate([A[:, blocks.slice(i)].T @ mixed[:, i] for i in range(blocks.count)])
    return float((moved * mixed).sum()), gradient


def _draw_sets(
    sampling: bcfw.Sampling, draws: int, source: np.random.Generator
) -> tuple[list[tuple[Integers, float]], bool]:
    try:
        sets = sampling.sets()
    except InputError:
        sets = []
    if 0 < len(sets) <= draws:
        return sets, True
    return [(np.asarray(sampling.draw(source)), 1 / draws) for _ in range(draws)], False


def _expected_bend(
    f: bcfw.Objective, blocks: Blocks, point: tuple[Vector, Vector, float], sets: list[tuple[Integers, float]]
) -> float:
    x, s, u = point
    gradient, value, total = f.gradient(x), f.value(x), 0.0
    for chosen, probability in sets:
        columns = blocks.columns(chosen)
        moved = x.copy()
        moved[columns] += u * (s - x)[columns]
        total += probability * (f.value(moved) - value - float((moved - x) @ gradient))
    return 2 / u**2 * total
