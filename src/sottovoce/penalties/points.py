"""Points of the l1 ball, as few of its corners as they were made of.

A corner +-radius e_j, an atom, is a code: j + 1 for +radius e_j, -(j + 1) for -radius e_j, and 0 for "stay".
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

PARTS = 16  # from so many places of the point what an atom displaces is taken


class SparsePoint:
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
        found = np.zeros(dimension)
        found[self.places] = self.values
        return found
