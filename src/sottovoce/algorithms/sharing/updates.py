"""The two updates of ADMM sharing over columns, as plain numerics.

Party m has the columns D_m and their weights x_m. With the scores S = sum_m D_m x_m, a copy z of them and duals y,

    min sum_i l(z_i, label_i) + N sum_m pen_m(x_m)   such that   S = z

is solved by turns: z and then y at the holder of the labels, all x_m at once at their parties. Of z and y a party needs
no more than v = y + rho (S - z):

    x_m <- argmin_u N pen_m(u) + <v, D_m (u - x_m)> + (rho (1 + p) / 2) |D_m (u - x_m)|^2.

p = 0 is the published update (Hu et al. 2019). There all parties move at once by what would be right for one of them,
and M similar ones overshoot M times. The term with p, a proximal one, restrains them: at p = M - 1, M |D_m u_m|^2
summed over m is at least |sum_m D_m u_m|^2, and the method is ADMM with two blocks in a metric, which converges for
every rho and every relaxation below 2 if the loss is convex.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import scipy.sparse.linalg as spla
from numpy.typing import NDArray

from sottovoce.algorithms.base import Problem
from sottovoce.data.block import is_sparse
from sottovoce.data.kernels import sharing as kernels
from sottovoce.errors import InputError
from sottovoce.losses import Loss
from sottovoce.penalties import Penalty
from sottovoce.plan.plan import Part, Plan, ScaledRegulariser

Array = NDArray[np.float64]

GRAM = 2000  # columns up to which a party makes its Gram matrix; beyond, it works with products
PRECISION = 1e-4  # of an iterative x-update, relative to its own length; the next update mends the rest
ITERATIONS = 500  # of an iterative x-update, at most
DAMPING = 2.0**-36  # of the diagonal, added to it: what makes a Gram matrix invertible


def nearest(loss: Loss, points: Array, labels: Array, rho: float, start: Array) -> Array:
    """argmin_z l(z_i, label_i) + (rho / 2) (z_i - t_i)^2 at the points t, to rounding: the z-update.

    At t = S + y / rho it minimises l(z) - y z + (rho / 2) (S - z)^2; then the new duals are rho (t - z) = l'(z).
    `start` is where Newton's method begins, for the losses (logistic, sigmoid) that have no closed form.
    Edges: a loss that is not convex needs rho above its curvature, else the minimum is not unique.
    """
    if not loss.convex and not rho > loss.curvature_bound:
        raise InputError(
            f"rho={rho:.4g} must be above {loss.curvature_bound:.4g}, the curvature of the loss {loss.name!r}, which "
            "is not convex; take a larger rho."
        )
    if loss.name == "logistic":
        return np.asarray(kernels.nearest_logistic(points, labels, rho, start))
    if loss.name == "sigmoid":
        return np.asarray(kernels.nearest_sigmoid(points, labels, rho, start))
    if loss.kind == "regression":
        error = points - labels
        slope = np.clip(error * (rho / (1 + rho)), -loss.slope_bound, loss.slope_bound)
        return np.asarray(points - slope / rho)
    if loss.name not in ("hinge", "smoothed_hinge"):
        raise InputError(f"loss={loss.name!r} has no z-update; choose another loss.")
    # minus the slope of the margin s is b = clip((1 - s) / g, 0, 1), and s = y t + b / rho
    b = np.clip((1 - labels * points) * (rho / (1 + rho * loss.parameters().get("smoothing", 0.0))), 0.0, 1.0)
    return np.asarray(points + labels * b / rho)


class Products:
    """D'D through products with D: `square @ u` and `square.diagonal()`, as of a matrix."""

    def __init__(self, rows: Any) -> None:
        self._rows, self._back = rows, rows.T
        self.shape = (rows.shape[1], rows.shape[1])

    def __matmul__(self, weights: Array) -> Array:
        return np.asarray(self._back @ (self._rows @ weights))

    def diagonal(self) -> Array:
        """The squares of the columns' norms."""
        rows = self._rows
        squares = rows.multiply(rows).sum(axis=0) if is_sparse(rows) else np.einsum("ij,ij->j", rows, rows)
        return np.asarray(squares, dtype=np.float64).ravel()


def square_of(rows: Any) -> Any:
    """D'D: a matrix up to GRAM columns, else `Products`."""
    if rows.shape[1] > GRAM:
        return Products(rows)
    square = rows.T @ rows
    return np.ascontiguousarray(square.toarray() if is_sparse(rows) else square, dtype=np.float64)


class XUpdate:
    """argmin_u N pen(u) + <g, u - x> + (factor / 2) (u - x)'G(u - x), for a matrix G or `Products`.

    With a matrix: a factorisation made once for the squared norm and for no penalty, coordinate descent for l1, elastic
    net and box, accelerated projected gradients for other sets. With products: conjugate gradients, and accelerated
    proximal gradients. Iterative solutions begin at x and end when they are as precise as PRECISION.

    Guarantee: u = x if and only if x is a minimum, however inexact the solution: so inexact updates have the fixed
    points of exact ones. Edges: directions in which neither G nor the penalty bends are left alone.
    """

    def __init__(self, square: Any, regulariser: ScaledRegulariser, records: int, factor: float) -> None:
        self._square, self._regulariser, self._records, self._factor = square, regulariser, records, factor
        self._dimension = int(square.shape[0])
        self._ridge = np.zeros(self._dimension)
        smooth = regulariser.is_none or regulariser.ridge is not None
        self._ridge[: regulariser.features] = records * (regulariser.ridge or 0.0)
        if smooth:
            self._solve = self._by_inverse if isinstance(square, np.ndarray) else self._by_conjugate_gradients
        elif isinstance(square, np.ndarray) and isinstance(regulariser.inner, Penalty):
            self._solve = self._by_coordinates
        else:
            self._solve = self._by_gradients

    def __call__(self, weights: Array, gradient: Array) -> Array:
        """u, from x and g."""
        return self._solve(weights, gradient)

    @functools.cached_property
    def _inverse(self) -> Array:
        """Of factor G + N pen'', damped; columns of unlike sizes are brought to one size first."""
        sizes = np.sqrt(self._diagonal)
        matrix = (self._factor * self._square + np.diag(self._ridge)) / np.outer(sizes, sizes)
        matrix[np.diag_indices(self._dimension)] = 1.0 + DAMPING
        return np.asarray(np.linalg.inv(matrix) / np.outer(sizes, sizes))

    def _by_inverse(self, weights: Array, gradient: Array) -> Array:
        return weights - self._inverse @ (gradient + self._ridge * weights)

    @functools.cached_property
    def _diagonal(self) -> Array:
        bends = np.asarray(self._factor * self._square.diagonal() + self._ridge)
        return np.where(bends > 0.0, bends, 1.0)

    def _by_conjugate_gradients(self, weights: Array, gradient: Array) -> Array:
        """With the diagonal as preconditioner."""
        found, left = weights.copy(), -(gradient + self._ridge * weights)
        scaled = left / self._diagonal
        direction, size = scaled, float(left @ scaled)
        aim = PRECISION**2 * size
        for _ in range(ITERATIONS):
            if not size > aim:
                break
            image = self._factor * (self._square @ direction) + self._ridge * direction
            bend = float(direction @ image)
            if not bend > 0.0:
                break
            found += size / bend * direction
            left = left - size / bend * image
            scaled = left / self._diagonal
            before, size = size, float(left @ scaled)
            direction = scaled + size / before * direction
        return found

    @functools.cached_property
    def _terms(self) -> tuple[Array, Array, Array, Array]:
        absolute, squared, low, high = self._regulariser.by_coordinate(self._dimension)
        return self._records * absolute, self._records * squared, low, high

    def _by_coordinates(self, weights: Array, gradient: Array) -> Array:
        terms = (*self._terms, PRECISION, ITERATIONS)
        return np.asarray(kernels.descend(self._square, self._factor, gradient, weights, *terms))

    @functools.cached_property
    def _bend(self) -> float:
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
        bend, found, ahead, momentum = self._bend, weights, weights, 1.0
        for _ in range(ITERATIONS):
            slope = gradient + self._factor * (self._square @ (ahead - weights))
            fresh = self._regulariser.prox(ahead - slope / bend, self._records / bend)
            step = fresh - found
            if float((ahead - fresh) @ step) > 0.0:
                momentum = 1.0
            after = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
            ahead, found, momentum = fresh + (momentum - 1) / after * step, fresh, after
            if float(step @ step) <= PRECISION**2 * float((found - weights) @ (found - weights)):
                break
        return found


def check_exact(problem: Problem, solver: str) -> None:
    """Refuse what a run that tells everybody the slopes of all records cannot have."""
    if problem.labels == "held":
        raise InputError(
            f"labels='held': without privacy solver={solver!r} tells every party the slope of each record's loss, "
            "whose sign is the label; choose a finite epsilon, or labels='shared' if all parties may know them."
        )
    check_penalty(problem, solver)


def check_penalty(problem: Problem, solver: str) -> None:
    """Refuse a product of sets, which has no part for a party."""
    if problem.regulariser.name == "product":
        raise InputError(
            f"penalty='product': solver={solver!r} bounds each party's weights by one set; choose a ball or a box."
        )


def part_regulariser(plan: Plan, part: Part) -> ScaledRegulariser:
    """The regulariser on the weights of one part: a ball or a box bounds each part; the constant column is free."""
    whole = plan.scaled_regulariser
    return ScaledRegulariser(whole.inner, part.stop - part.start, whole.scale, whole.objective)
