"""The formulas of `whitened` over blocks of columns: functions of released values and public numbers.

A row x is centred, x~ = T x, and its part in each block b is whitened by a P_b of its own and cut: z_b. A gradient is a
sum of slopes times z, an estimating equation with the instruments z; scores have the rows as they are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from sottovoce.algorithms.whitened import rule
from sottovoce.algorithms.whitened.rule import Clips, Descent, Moments, Units
from sottovoce.data.grid import toward_zero
from sottovoce.data.slopes import cut, slopes_of
from sottovoce.losses import Loss
from sottovoce.penalties.quadratic import Metric
from sottovoce.penalties.scaled import ScaledRegulariser
from sottovoce.queries.blocks import Blocks, folded, on_grid, through
from sottovoce.sealed.tables import fitted_nodes

Array = NDArray[np.float64]

LEAST = 0.0025  # of the radii's square: rows are not taken for shorter
DEVIATIONS = 3.0  # of the scores, within which a table must be right: with 6 levels are too coarse too soon
SPARE = 3  # levels at the end of a table, where it falls


@dataclass(frozen=True)
class Centring:
    """x~ = T x: every column less its mean, which the moments tell by the constant column."""

    means: Array  # 0 for the constant
    matrix: Array  # T

    @classmethod
    def of(cls, moments: Moments, constant: float, bits: int) -> Centring:
        """Means are on the grid of the rows. Without a constant column nothing is known of them."""
        means, matrix = np.zeros(len(moments.values)), np.eye(len(moments.values))
        if constant:
            found = moments.matrix(moments.values)[:-1, -1] / constant
            means[:-1] = toward_zero(np.clip(found, -1.0, 1.0), bits)
            matrix[:-1, -1] = -means[:-1] / constant
        return cls(means, matrix)


@dataclass(frozen=True)
class WhiteBlocks:
    """P_b with P_b P_b' = (H_b + rho)^-1, H_b the moments of the centred block, and how long whitened parts are.

    A direction of a block is learned if its mean square is above rho, as in one place (`rule.whitening`).
    """

    moments: Moments
    units: Units
    centring: Centring
    values: tuple[Array, ...]  # eigenvalues of H_b
    vectors: tuple[Array, ...]
    rho: float
    norms: Array  # that no centred part of a row is longer than
    lengths: Array = field(default_factory=lambda: np.zeros(0))  # n_b, as the records have them

    @classmethod
    def of(cls, moments: Moments, units: Units, centring: Centring, norms: Array, blocks: Blocks) -> WhiteBlocks:
        """`norms` are those of the parts of a row as they are."""
        square = centring.matrix @ moments.matrix(moments.values) @ centring.matrix.T
        pairs = [np.linalg.eigh(square[columns, columns]) for columns in blocks.columns]
        moved = np.array([float(np.linalg.norm(centring.means[columns])) for columns in blocks.columns])
        values, vectors = tuple(np.maximum(found, 0.0) for found, _ in pairs), tuple(found for _, found in pairs)
        return cls(moments, units, centring, values, vectors, 1.0, norms + moved)

    def limited(self, noise: float) -> WhiteBlocks:
        """With the rho at which noise leaves a direction unknown, larger the more of them are learned."""
        unit = (rule.CUT * noise * self.units.slope / self.units.curvature) ** 2
        unit /= rule.prior(self.moments, self.units)
        low, high = 1e-30, 1e12
        for _ in range(100):
            rho = math.sqrt(low * high)
            learned = float(replace(self, rho=rho).squares.sum())
            low, high = (rho, high) if unit * learned > rho else (low, rho)
        return replace(self, rho=rho)

    @functools.cached_property
    def matrices(self) -> list[Array]:
        """P_b, lower triangular."""
        pairs = zip(self.values, self.vectors, strict=True)
        roots = [(vectors / np.sqrt(values + self.rho)).T for values, vectors in pairs]
        return [np.asarray(np.linalg.qr(root, mode="r")).T for root in roots]

    @property
    def squares(self) -> Array:
        """tr((H_b + rho)^-1 H_b): mean squared lengths of whitened parts, as the moments have them."""
        return np.array([float((values / (values + self.rho)).sum()) for values in self.values])

    @property
    def longest(self) -> Array:
        """That a whitened part can be."""
        least = np.array([float(values.min()) for values in self.values])
        return np.asarray(self.norms / np.sqrt(least + self.rho))

    @property
    def radii(self) -> Array:
        """Within which lengths are measured."""
        return np.asarray(np.minimum(self.longest, 2 * np.sqrt(self.squares)))

    def measured(self, share: float) -> WhiteBlocks:
        """With the lengths that records have, whose mean square is this share of the radii's.

        Mean squares: mean lengths of parts of one column are far below their root mean square.
        """
        total = min(max(share, LEAST), 1.0) * float(self.radii @ self.radii)
        lengths = np.minimum(self.radii, np.sqrt(self.squares * total / float(self.squares.sum())))
        return replace(self, lengths=lengths)

    def clips(self, noise: float) -> tuple[Array, Clips]:
        """C_b, and (C, G): nearly equal lengths and ordinary slopes, widened where the noise allows it."""
        small = rule.CUT * self.lengths
        first = Clips(float(np.linalg.norm(small)), self.units.slope)
        wide = first.widened(self.units, noise, float(self.squares.sum()), math.inf)
        cuts = np.minimum(small * (wide.cut / first.cut), np.maximum(self.longest, small))
        return cuts, Clips(float(np.linalg.norm(cuts)), wide.slope)


class Coordinates:
    """u of w = B u, in which both the curvature k H and the noise of the gradient are diagonal.

    A gradient of z is D^-1 Q^-1 times one of rows, D the shares left by the cuts, Q = T^-1 diag(P_b^-T). Its noise s^2
    makes s^2 S, S = Q D^-2 Q', of what is known of k H w. With a prior of variance v the weights solve
    (k (H + damping) + s^2 / (v k) S H^-1) w = estimate. With R = Q D^-1, R^-1 (H + damping) H R^-T = V diag(values) V'
    and B = H R^-T V this is (k values + s^2 / (v k)) u = V' (estimate of z).
    """

    def __init__(self, white: WhiteBlocks, left: Array, damping: float) -> None:
        moments = white.moments
        projection = block_diag(*(share * matrix.T for share, matrix in zip(left, white.matrices, strict=True)))
        inverse = projection @ white.centring.matrix  # R^-1
        along = inverse @ (moments.vectors if moments.vectors is not None else np.eye(len(inverse)))
        values, self.vectors = np.linalg.eigh((along * ((moments.values + damping) * moments.values)) @ along.T)
        self.values = np.maximum(values, 1e-300)
        self._moments, self._along = moments, along

    @functools.cached_property
    def back(self) -> Array:
        """B."""
        return self._moments.out((self._moments.values[:, None] * self._along.T) @ self.vectors)

    @functools.cached_property
    def _root(self) -> Array:
        """H^-1/2 R V."""
        inner = np.linalg.solve(self._along, self.vectors)
        return self._moments.out(inner / np.sqrt(self._moments.values)[:, None])

    def mean_square(self, point: Array) -> float:
        """Of the scores."""
        return float(self._moments.values @ self._moments.into(self.back @ point) ** 2)

    def weights(self, point: Array, stiffness: Array, regulariser: ScaledRegulariser) -> Array:
        """B u; with a penalty the least 1/2 |w - B u|^2 + penalty, in the metric H^-1/2 R V diag(.) V'R' H^-1/2."""
        free = self.back @ point
        if regulariser.is_none:
            return np.asarray(free)
        values, vectors = np.linalg.eigh((self._root * stiffness) @ self._root.T)
        return Metric(values, vectors).step(free, np.zeros_like(free), regulariser, 1)

    def penalised(self, point: Array, stiffness: Array, regulariser: ScaledRegulariser) -> Array:
        """The u of these weights."""
        if regulariser.is_none:
            return point
        return np.asarray(np.linalg.solve(self.back, self.weights(point, stiffness, regulariser)))


@dataclass
class BlockDescent(Descent):
    """The same in coordinates that are not those of the rows: scores, and what noise spoils of them, are told apart."""

    mean_square: Callable[[Array], float] = field(kw_only=True)
    spoiled: float = field(kw_only=True)  # the scores' variance by noise if all rounds were one

    def __post_init__(self) -> None:
        super().__post_init__()
        self._window = rule.window(self.rounds, self.spoiled, self.variance)

    def bend(self) -> Any:
        """The mean curvature at the point."""
        return self.units.curvature_at(self.mean_square(self.point))

    def _widen(self, gradient: Array) -> None:
        """Only where the loss bends twice as much as known: with less, steps converge by themselves and sooner."""
        before = self._window
        super()._widen(gradient)
        if self._window < 2 * before:
            self._window = before


class Slope:
    """The slope of a loss cut at G, in units of G, as f(s - c y) - y / 2 (classes) or f(s - y) (numbers), f odd.

    A slope of classes falls from 1 to 0 with the margin. It is cut, and beyond the margin c where it is 1/2 replaced by
    its reflection; a logistic one that is not cut stays as it is.
    """

    def __init__(self, loss: Loss, most: float) -> None:
        self.loss, self.most, self.shift = loss, most, 1.0
        self.bound = 1.0 if loss.kind == "regression" else 0.5
        self._nodes: dict[float, NDArray[np.int64]] = {}
        if loss.kind == "classification":
            low, high = -100.0, 100.0
            for _ in range(100):
                middle = (low + high) / 2
                low, high = (middle, high) if self._size(np.array([middle]))[0] > 0.5 else (low, middle)
            self.shift = (low + high) / 2

    def _size(self, margins: Array) -> Array:
        return np.minimum(np.abs(slopes_of(self.loss, margins, np.ones_like(margins))) / self.most, 1.0)

    def __call__(self, u: Array) -> Array:
        """The value of f."""
        if self.loss.kind == "regression":
            return np.clip(u / self.most, -1.0, 1.0)
        return np.sign(u) * (self._size(self.shift - np.abs(u)) - 0.5)

    @property
    def finest(self) -> float:
        """The distance of two levels: a quarter of what the slope bends within, at least 1/4; kinks are on levels."""
        if self.loss.kind == "regression":
            return self.most / 4
        return min(max(0.25 / self.loss.curvature_bound, 0.25), 1.0)

    def level(self, deviation: float, words: int) -> float:
        """The least of 1, 2, 4 and 8 times the finest with which a table reaches beyond scores of that deviation."""
        reach = self.finest * (words - SPARE)
        return self.finest * next((k for k in (1, 2, 4) if k * reach >= DEVIATIONS * deviation), 8)

    def nodes(self, level: float, words: int, order: int, bits: int) -> NDArray[np.int64]:
        """Of a table of f, which falls again to 0 where it repeats with the other sign: sampled, or fitted to f."""
        if level not in self._nodes:
            fitted = order > 1
            sampled = on_grid(self(level * folded(words)), bits)
            self._nodes[level] = fitted_nodes(self, level, words, order, self.bound, bits) if fitted else sampled
        return self._nodes[level]


def scale_nodes(units: Units, clips: Clips, point: Array, levels: Array) -> Array:
    """l'(a t + b, y) / G (t, 1) / max(|(t, 1)|, C) at the levels t for y = -1, and then for y = 1.

    `point` is (a, b), or a alone where there is no intercept: then rows are (t). The first entry, of a score that
    nobody has, is 0: null records are looked up there.
    """
    rows = np.column_stack([levels, np.ones_like(levels)])[:, : len(point)]
    scores = rows @ point
    halves = [cut(units.loss, clips.slope, scores, np.full(len(scores), label)) for label in (-1.0, 1.0)]
    rows /= np.maximum(np.linalg.norm(rows, axis=1), clips.cut)[:, None]
    nodes = through(np.hstack([rows.T * half for half in halves]))
    nodes[:, 0] = 0.0
    return np.asarray(nodes / np.maximum(np.linalg.norm(nodes, axis=0), 1.0))
