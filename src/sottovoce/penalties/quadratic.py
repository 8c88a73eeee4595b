# mypy: allow-untyped-decorators
"""Minima of a quadratic and a regulariser: a prox in the metric of a matrix."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from numba import njit
from numpy.typing import NDArray

from sottovoce.losses.kernels import clamp
from sottovoce.penalties.base import Penalty, ScaledRegulariser

Array = NDArray[np.float64]

PRECISION = 1e-4  # of an iterative x-update, relative to its own length; the next update mends the rest
ITERATIONS = 500  # of an iterative x-update, at most
DAMPING = 2.0**-36  # of the diagonal, added to it: what makes a Gram matrix invertible


@dataclass(frozen=True)
class Quadratic:
    """1/2 |u - centre|^2_M + <gradient, u - centre>: a sum of squared losses as far as its releases tell.

    The gradient of a squared loss is linear, so the mean of the released ones belongs to the mean of the weights they
    were asked at. A function of released values: minimising it for any number of penalties costs nothing.
    """

    metric: QuadraticMetric
    centre: Array
    gradient: Array

    def minimise(self, regulariser: ScaledRegulariser, records: int) -> Array:
        """Argmin over u of this + records * regulariser(u)."""
        return self.metric.step(self.centre, self.gradient, regulariser, records)

    def slope_at_zero(self) -> Array:
        vectors = self.metric.vectors
        return self.gradient - vectors @ (self.metric.values * (vectors.T @ self.centre))


@dataclass(frozen=True)
class ExactQuadratic(Quadratic):
    """The same of a curvature without noise, which may be singular and have columns of unlike sizes."""

    curvature: Array

    @classmethod
    def of(cls, curvature: Array, centre: Array, gradient: Array) -> ExactQuadratic:
        values, vectors = np.linalg.eigh(curvature)
        return cls(QuadraticMetric(np.maximum(values, 0.0), vectors), centre, gradient, curvature)

    def minimise(self, regulariser: ScaledRegulariser, records: int) -> Array:
        """By penalised steps, until they stand still."""
        step, found = PenalisedStep(self.curvature, regulariser, records, 1.0), self.centre
        for _ in range(ITERATIONS):
            before = found
            found = step(before, self.gradient + self.curvature @ (before - self.centre))
            moved = found - before
            if moved @ self.curvature @ moved <= 1e-24 * (found @ self.curvature @ found):
                break
        return found


@dataclass(eq=False)
class QuadraticMetric:
    """M = V diag(values) V', positive definite."""

    values: Array
    vectors: Array

    def step(self, weights: Array, gradient: Array, regulariser: ScaledRegulariser, records: int) -> Array:
        """argmin_u <gradient, u - w> + 1/2 |u - w|^2_M + records * regulariser(u)."""
        free = weights - self.vectors @ ((self.vectors.T @ gradient) / self.values)
        if regulariser.inner.is_none:
            return free
        matrix = (self.vectors * self.values) @ self.vectors.T
        if regulariser.ridge is not None:
            ridge = np.zeros(len(weights))
            ridge[: regulariser.features] = records * regulariser.ridge
            return np.asarray(np.linalg.solve(matrix + np.diag(ridge), matrix @ free))
        return self._proximal(matrix, free, weights, regulariser, records)

    def _proximal(self, matrix: Any, free: Array, start: Array, regulariser: ScaledRegulariser, records: int) -> Array:
        """Accelerated proximal gradient on 1/2 |u - free|^2_M + records pen(u), with restarts."""
        step = 1.0 / float(self.values.max())
        point = momentum = start
        speed = 1.0
        for _ in range(5000):
            fresh = regulariser.prox(momentum - step * (matrix @ (momentum - free)), step * records)
            faster = (1 + math.sqrt(1 + 4 * speed * speed)) / 2
            moved = fresh - point
            restart = float((momentum - fresh) @ moved) > 0
            momentum = fresh if restart else fresh + (speed - 1) / faster * moved
            speed = 1.0 if restart else faster
            point = fresh
            if np.abs(moved).max() <= 1e-12 * max(1.0, np.abs(fresh).max()):
                break
        return point


class DiagonalMetric(QuadraticMetric):
    """M = diag(values), of which no matrix is made."""

    def __init__(self, values: Array) -> None:
        self.values = values

    def step(self, weights: Array, gradient: Array, regulariser: ScaledRegulariser, records: int) -> Array:
        """As of a matrix; a penalty that is a sum over the coordinates is minimised in each of them by itself."""
        free = weights - gradient / self.values
        if not isinstance(regulariser.inner, Penalty):
            return self._proximal(sp.diags(self.values), free, weights, regulariser, records)
        absolute, squared, low, high = regulariser.by_coordinate(len(weights))
        size = np.maximum(self.values * np.abs(free) - records * absolute, 0.0) / (self.values + records * squared)
        return np.clip(np.copysign(size, free), low, high)


class PenalisedStep:
    """argmin_u N pen(u) + <g, u - x> + (factor / 2) (u - x)'G(u - x), for a matrix G or `Products`.

    With a matrix: a factorisation made once for the squared norm and for no penalty, coordinate descent for l1, elastic
    net and box, accelerated projected gradients for other sets. With products: conjugate gradients, and accelerated
    proximal gradients. Iterative solutions begin at x and end when they are as precise as PRECISION.

    Guarantee: u = x if and only if x is a minimum, however inexact the solution: so inexact updates have the fixed
    points of exact ones. Edges: directions in which neither G nor the penalty is curved are left alone.
    """

    def __init__(self, square: Any, regulariser: ScaledRegulariser, records: int, factor: float) -> None:
        self._square, self._regulariser, self._records, self._factor = square, regulariser, records, factor
        self._dimension = int(square.shape[0])
        self._ridge = np.zeros(self._dimension)
        self._ridge[: regulariser.features] = records * (regulariser.ridge or 0.0)

    def __call__(self, weights: Array, gradient: Array) -> Array:
        """u, from x and g."""
        dense = isinstance(self._square, np.ndarray)
        if self._regulariser.inner.is_none or self._regulariser.ridge is not None:
            if dense:
                return weights - self._inverse @ (gradient + self._ridge * weights)
            return self._by_conjugate_gradients(weights, gradient)
        if dense and isinstance(self._regulariser.inner, Penalty):
            terms = (*self._terms, PRECISION, ITERATIONS)
            return np.asarray(descend(self._square, self._factor, gradient, weights, *terms))
        return self._by_gradients(weights, gradient)

    @functools.cached_property
    def _inverse(self) -> Array:
        """Of factor G + N pen'', damped; columns of unlike sizes are brought to one size first."""
        sizes = np.sqrt(self._diagonal)
        matrix = (self._factor * self._square + np.diag(self._ridge)) / np.outer(sizes, sizes)
        matrix[np.diag_indices(self._dimension)] = 1.0 + DAMPING
        return np.asarray(np.linalg.inv(matrix) / np.outer(sizes, sizes))

    @functools.cached_property
    def _diagonal(self) -> Array:
        curvatures = np.asarray(self._factor * self._square.diagonal() + self._ridge)
        return np.where(curvatures > 0.0, curvatures, 1.0)

    def _by_conjugate_gradients(self, weights: Array, gradient: Array) -> Array:
        found, left = weights.copy(), -(gradient + self._ridge * weights)
        scaled = left / self._diagonal
        direction, size = scaled, float(left @ scaled)
        aim = PRECISION**2 * size
        for _ in range(ITERATIONS):
            if not size > aim:
                break
            image = self._factor * (self._square @ direction) + self._ridge * direction
            curvature = float(direction @ image)
            if not curvature > 0.0:
                break
            found += size / curvature * direction
            left = left - size / curvature * image
            scaled = left / self._diagonal
            before, size = size, float(left @ scaled)
            direction = scaled + size / before * direction
        return found

    @functools.cached_property
    def _terms(self) -> tuple[Array, Array, Array, Array]:
        absolute, squared, low, high = self._regulariser.by_coordinate(self._dimension)
        return self._records * absolute, self._records * squared, low, high

    @functools.cached_property
    def _curvature(self) -> float:
        """A little more than the largest eigenvalue of factor G."""
        if self._dimension < 32:
            unit = np.eye(self._dimension)
            top = np.linalg.eigvalsh(np.column_stack([self._square @ column for column in unit]))[-1]
        else:
            operator: Any = spla.LinearOperator(self._square.shape, matvec=self._square.__matmul__, dtype=np.float64)
            begin = np.random.default_rng(0).standard_normal(self._dimension)
            top = spla.eigsh(operator, k=1, which="LA", v0=begin, tol=1e-3, return_eigenvectors=False)[0]
        return max(1.02 * self._factor * float(top), 1e-300)

    def _by_gradients(self, weights: Array, gradient: Array) -> Array:
        """Accelerated (Nesterov), begun anew whenever a step turns back."""
        curvature, found, ahead, momentum = self._curvature, weights, weights, 1.0
        for _ in range(ITERATIONS):
            slope = gradient + self._factor * (self._square @ (ahead - weights))
            fresh = self._regulariser.prox(ahead - slope / curvature, self._records / curvature)
            step = fresh - found
            if float((ahead - fresh) @ step) > 0.0:
                momentum = 1.0
            after = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
            ahead, found, momentum = fresh + (momentum - 1) / after * step, fresh, after
            if float(step @ step) <= PRECISION**2 * float((found - weights) @ (found - weights)):
                break
        return found


@njit(cache=True, fastmath=False, error_model="numpy")
def descend(  # noqa: PLR0913
    square: Array,
    factor: float,
    gradient: Array,
    weights: Array,
    absolute: Array,
    squared: Array,
    low: Array,
    high: Array,
    precision: float,
    sweeps: int,
) -> Array:
    """argmin_u sum_j (absolute_j |u_j| + squared_j u_j^2 / 2) + g'(u - x) + factor/2 (u - x)'G(u - x) on [low, high].

    Coordinate descent from x = weights on. It ends with a sweep whose largest step, in units of the curvature, is at
    most `precision` of the largest of the first. A coordinate without curvature stays, or goes where its penalty pulls.
    """
    found, slope = weights.copy(), gradient.copy()
    first = 0.0
    for sweep in range(sweeps):
        largest = 0.0
        for j in range(len(found)):
            bend = factor * square[j, j]
            total = bend + squared[j]
            here = found[j]
            if total > 0.0:
                aim = bend * here - slope[j]
                aim -= clamp(aim, -absolute[j], absolute[j])
                there = clamp(aim / total, low[j], high[j])
            else:
                there = clamp(0.0 if absolute[j] > 0.0 else here, low[j], high[j])
            step = there - here
            if step != 0.0:
                found[j] = there
                moved = factor * step
                for k in range(len(slope)):
                    slope[k] += moved * square[j, k]
                largest = max(largest, abs(step) * math.sqrt(total))
        if sweep == 0:
            first = largest
        if not largest > precision * first:
            break
    return found


def minimise(gram: Array, moments: Array, back: Any, regulariser: ScaledRegulariser, records: int) -> Array:
    """The w = P v at the minimum of 1/2 v'G v - moments'v + records pen(P v), by splitting (ADMM)."""
    square = (back.T @ back).toarray()
    if regulariser.inner.is_none:
        return np.asarray(back @ np.linalg.solve(gram, moments))
    if regulariser.ridge is not None:
        inner = back[: regulariser.features]
        ridge = records * regulariser.ridge * (inner.T @ inner).toarray()
        return np.asarray(back @ np.linalg.solve(gram + ridge, moments))
    rho = float(np.trace(gram) / np.trace(square))
    inverse = np.linalg.inv(gram + rho * square)
    weights, dual = np.zeros(back.shape[0]), np.zeros(back.shape[0])
    for _ in range(2000):
        scores = back @ (inverse @ (moments + rho * (back.T @ (weights - dual))))
        fresh = regulariser.prox(scores + dual, records / rho)
        dual += scores - fresh
        moved = max(np.abs(fresh - weights).max(), np.abs(scores - fresh).max())
        weights = fresh
        if moved <= 1e-10 * max(1.0, np.abs(weights).max()):
            break
    return weights
