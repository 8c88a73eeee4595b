"""Atoms of the l1 ball: +-radius e_j. What the Frank-Wolfe solvers share.

An atom is a code: j + 1 for +radius e_j, -(j + 1) for -radius e_j, and 0 for "stay".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Algorithm, Problem, check_choice_errors, draft
from sottovoce.data.block import Block, Layout, is_sparse
from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.data.kernels import atoms as kernels
from sottovoce.errors import InputError
from sottovoce.plan.plan import Plan
from sottovoce.privacy.accounting import Event, Relation, epsilon_of

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

PARTS = 16  # from so many places of the point what an atom displaces is taken
ROOM = 1.0 + 2.0**-20  # in a sensitivity, for the floating point of the sampler (`privacy/proofs/noise.md`)
LARGEST_STD = 2.0**20  # of a choice, in units of its sensitivity: so far that room suffices


class BallAlgorithm(Algorithm):
    """What the forms of Frank-Wolfe share: all rows, prepared by entries, and a model that tells the choices."""

    name: ClassVar[str] = "frank-wolfe"
    layout: ClassVar[Layout] = "entries"
    samples: ClassVar[bool] = False
    kinds: ClassVar[Mapping[str, str]] = {"atom": "indices", "feature": "features", "column": "features"}

    def world_events(self, plan: Plan, relation: Relation) -> tuple[Event, ...]:
        """The model tells what the messages tell."""
        return self.events(plan, relation, plan.parties[0][0])


class Iterate:
    """A point of the ball as a sparse vector: the places in the order in which they first came up, and their values."""

    def __init__(self, radius: float) -> None:
        self.radius = radius
        self.places: list[int] = []
        self.values = np.zeros(0)

    def move(self, code: int, step: float, added: bool = False) -> tuple[float, float]:
        """To (1 - step) w + step atom or, if that is asked for and stays in the ball, w + step atom.

        What all values were multiplied by, and what was added to the atom's; (1, 0) for "stay".
        """
        if code == 0:
            return 1.0, 0.0
        index, change = self._index(abs(code) - 1), step * self.radius * (1.0 if code > 0 else -1.0)
        shrink = 1.0 if added and self._within(index, change) else 1.0 - step
        self.values *= shrink
        self.values[index] += change
        return shrink, change

    def exchange(self, code: int, step: float, share: float) -> list[tuple[int, float]]:
        """To w + step atom or, where that leaves the ball, w - v + step atom, |v|_1 = step |w|_1: what was added where.

        The coordinates of w, laid end to end, are a line of length |w|_1. It is cut into PARTS equal parts, and v is
        the piece of each that begins at `share` of it and is `step` of it long, going round. If `share` is uniform on
        [0, 1), the mean of v is step w: in the mean this is a Frank-Wolfe step. It changes few coordinates, and so the
        scores of few records where features are sparse.
        """
        if code == 0:
            return []
        index, change = self._index(abs(code) - 1), step * self.radius * (1.0 if code > 0 else -1.0)
        moved = np.zeros(len(self.values))
        if not self._within(index, change):
            sizes = np.abs(self.values)
            ends = np.cumsum(sizes)
            length = ends[-1] / PARTS
            whole, part = np.divmod(np.append(0.0, ends) / length - share, 1.0)
            taken = np.diff(whole * step + np.minimum(part, step)) * length
            moved = -np.sign(self.values) * np.clip(taken, 0.0, sizes)
        moved[index] += change
        self.values += moved
        return [(self.places[k], float(moved[k])) for k in np.nonzero(moved)[0]]

    def _index(self, place: int) -> int:
        if place not in self.places:
            self.places.append(place)
            self.values = np.append(self.values, 0.0)
        return self.places.index(place)

    def _within(self, index: int, change: float) -> bool:
        here = float(self.values[index])
        return self.norm - abs(here) + abs(here + change) <= self.radius

    @property
    def norm(self) -> float:
        """|w|_1, rounded once: the same number on all machines."""
        return math.fsum(np.abs(self.values).tolist())

    def dense(self, dimension: int) -> Array:
        """The vector with its zeros."""
        found = np.zeros(dimension)
        found[self.places] = self.values
        return found


def radius_of(solver: str, problem: Problem) -> float:
    """The radius of the l1 ball in the units of prepared data."""
    if problem.regulariser.name != "l1_ball":
        raise InputError(
            f"solver={solver!r} needs the l1 ball, not {problem.regulariser.name!r}: pass radius (the largest sum of "
            "absolute coefficients, 1.0 say) to PrivateLasso, or radius and penalty='l1' to PrivateLogisticRegression."
        )
    regulariser = draft(problem, layout="entries").scaled_regulariser
    radius = float(problem.regulariser.parameters["radius"] / regulariser.scale)
    if not SMALLEST <= radius <= LARGEST:
        raise InputError(
            f"radius={problem.regulariser.parameters['radius']!r} is {radius:.3g} in units of the declared bounds; it "
            f"must be from {SMALLEST:g} to {LARGEST:g} there."
        )
    return radius


def column_dots(block: Block, factors: Array) -> Array:
    """sum_i factors_i x_ij for every column j: exact for factors and entries on their grids."""
    if is_sparse(block.rows):
        rows = block.rows
        return np.asarray(kernels.column_dots_sparse(rows.indptr, rows.indices, rows.data, factors))
    return np.asarray(kernels.column_dots_dense(block.rows.T, factors))


def column(block: Block, place: int) -> tuple[Array, NDArray[Any] | None]:
    """The entries of one column, and whose they are (None: everybody's, in order)."""
    if is_sparse(block.rows):
        start, stop = block.rows.indptr[place], block.rows.indptr[place + 1]
        return block.rows.data[start:stop].astype(np.float64), block.rows.indices[start:stop]
    return block.rows[:, place].astype(np.float64), None


def add_column(scores: Array, block: Block, place: int, factor: float) -> None:
    """scores_i += factor x_ij, each record's on its own."""
    if is_sparse(block.rows):
        rows, places = block.rows, np.array([place], dtype=np.int64)
        kernels.add_rows_sparse(rows.indptr, rows.indices, rows.data, places, np.array([factor], dtype=float), scores)
    else:
        scores += factor * block.rows[:, place].astype(np.float64)


def check_choices(plan: Plan, events: Sequence[Event], relation: Relation, delta: float, least: float = 0.0) -> None:
    """Refuse more choices than the share of delta set aside for their samplers covers."""
    release = plan.release("atom")
    epsilon = max(epsilon_of(events, delta, relation), least)
    check_choice_errors(release.count, 2 * plan.dimension + 1, "atoms", epsilon, delta)
    if release.std > LARGEST_STD * release.charged(relation):
        raise InputError(f"rounds={release.count}: choices under so much noise tell nothing; take fewer rounds.")
