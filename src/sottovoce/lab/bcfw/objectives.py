"""What is minimised and where: a smooth convex f, what is kept of it along the iterates, and the blocks of the set."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar

from sottovoce import losses
from sottovoce.errors import InputError
from sottovoce.lab.bcfw import kernels
from sottovoce.lab.bcfw.samplings import Integers, Sampling, Vector
from sottovoce.losses import Loss
from sottovoce.penalties import BoxSet, ConstraintSet, L1Ball, L2Ball, Product, Simplex

REFRESH = 1000  # passes over the matrix after which Ax is computed anew, so that rounding errors cannot pile up

Gradients = Callable[[Integers], Vector]  # of one iterate: the partial derivatives at coordinates


class Objective(ABC):
    """A smooth convex f. Subclasses give `dimension`, `value` and `gradient`; `majorant` serves curvature bounds."""

    dimension: int
    quadratic: bool = False  # whether f is, so that its majorant holds with equality

    @abstractmethod
    def value(self, x: Vector) -> float:
        """f(x)."""

    @abstractmethod
    def gradient(self, x: Vector, part: slice = slice(None)) -> Vector:
        """The gradient at x, all of it or its coordinates in ``part`` (one block)."""

    def majorant(self) -> Any:
        """A matrix A, dense or sparse, with f(y) <= f(x) + <y - x, grad f(x)> + |A (y - x)|^2 / 2."""
        raise InputError(f"{type(self).__name__} has no majorant(), which bounds of the curvature need; define it")

    def follow(self, x: Vector, offsets: Integers) -> Iterate:
        """An iterate that starts at x; block i has the coordinates from offsets[i] to offsets[i + 1]."""
        return Iterate(self, x, offsets)


class Iterate:
    """A point x that moves, and what is kept along with it. `columns` are coordinates, block after block."""

    def __init__(self, objective: Objective, x: Vector, offsets: Integers) -> None:
        self.objective, self.offsets = objective, offsets
        self.x = np.array(x, dtype=np.float64)

    def value(self) -> float:
        return self.objective.value(self.x)

    def gradient(self, columns: Integers) -> Vector:
        return _by_blocks(self.objective, self.x, self.offsets, columns)

    def snapshot(self) -> Gradients:
        """The gradients at this x, safe to read while x moves on."""
        return partial(_by_blocks, self.objective, self.x.copy(), self.offsets)

    def move(self, columns: Integers, direction: Vector, step: float) -> None:
        self.x[columns] += step * direction

    def search(self, columns: Integers, direction: Vector, step: float) -> float:
        """Move to the best of x + u direction, 0 <= u <= 1, and not to a worse point than u = step; returns u."""
        trial = self.x.copy()

        def value(u: float) -> float:
            trial[columns] = self.x[columns] + u * direction
            return self.objective.value(trial)

        best = best_step(value, step)
        self.move(columns, direction, best)
        return best


def _by_blocks(objective: Objective, x: Vector, offsets: Integers, columns: Integers) -> Vector:
    """Partial derivatives of whole blocks, asked one block at a time (all of them at once)."""
    if len(columns) == objective.dimension:
        return _check_shape(objective, objective.gradient(x), objective.dimension)[columns]
    parts, place = [], 0
    while place < len(columns):
        i = int(np.searchsorted(offsets, columns[place], side="right"))
        part = slice(int(offsets[i - 1]), int(offsets[i]))
        size = part.stop - part.start
        parts.append(_check_shape(objective, objective.gradient(x, part), size))
        place += size
    return np.concatenate(parts) if parts else np.zeros(0)


def _check_shape(objective: Objective, gradient: ArrayLike, size: int) -> Vector:
    found = np.asarray(gradient, dtype=np.float64)
    if found.shape != (size,):
        raise InputError(
            f"gradient of {type(objective).__name__} has shape {found.shape}, not ({size},); "
            "return the coordinates of the slice that is asked for"
        )
    return found


class Smooth(ABC):
    """A smooth convex g of a vector q, |grad g(q) - grad g(r)| <= smoothness |q - r|."""

    smoothness: float
    quadratic: bool = False

    @abstractmethod
    def value(self, q: Vector) -> float:
        """g(q)."""

    @abstractmethod
    def gradient(self, q: Vector) -> Vector:
        """The gradient of g at q."""

    def gradient_at(self, q: Vector, rows: Integers | slice) -> Vector:
        """The entries of the gradient in these rows, which may repeat; cheaper where g is a sum over rows."""
        return self.gradient(q)[rows]


class MeanLoss(Smooth):
    """g(q) = (1/n) sum_i l(q_i, y_i) for a smooth convex loss of `sottovoce.losses`; smoothness sup l'' / n."""

    def __init__(self, loss: Loss, y: ArrayLike) -> None:
        if not (loss.smooth and loss.convex):
            raise InputError(f"loss={loss.name!r} must be smooth and convex; choose squared, logistic or huber")
        self.loss, self.y = loss, _as_finite("y", y)
        if self.y.ndim != 1 or not len(self.y):
            raise InputError(f"y has shape {self.y.shape}; give one label for each row of A")
        if loss.kind == "classification" and not bool(np.all(np.abs(self.y) == 1)):
            raise InputError(f"y must be -1 or +1 for loss={loss.name!r}; recode the two classes")
        self.smoothness = loss.curvature_bound / len(self.y)
        self.quadratic = loss.quadratic

    def value(self, q: Vector) -> float:
        return float(self.loss.value(q, self.y).mean())

    def gradient(self, q: Vector) -> Vector:
        return self.gradient_at(q, slice(None))

    def gradient_at(self, q: Vector, rows: Integers | slice) -> Vector:
        slopes = self.loss.derivative(q[rows], self.y[rows])
        slopes /= len(self.y)
        return slopes


class Composite(Objective):
    """f(x) = g(A x) for a smooth convex g, A dense or sparse, with q = A x kept along the iterates.

    A round that moves the coordinates T costs 2 nnz(A_T) for their gradient and as much for q; for dense A also one
    evaluation of grad g.
    """

    def __init__(self, A: Any, g: Smooth) -> None:
        self.g = g
        self.sparse = bool(sp.issparse(A))
        if self.sparse:
            self.matrix: Any = sp.csc_array(A, dtype=np.float64, copy=True)
            self.matrix.sum_duplicates()
            _as_finite("A", self.matrix.data)
        else:
            self.matrix = _as_finite("A", A)
        if self.matrix.ndim != 2 or 0 in self.matrix.shape:
            raise InputError(f"A has shape {self.matrix.shape}; give a matrix with rows and columns")
        labels = getattr(g, "y", None)
        if labels is not None and len(labels) != self.matrix.shape[0]:
            raise InputError(f"y has {len(labels)} entries and A {self.matrix.shape[0]} rows; give one for each row")
        # Chosen columns are read whole, so each of them lies together.
        self.columns: Any = self.matrix if self.sparse else np.ascontiguousarray(self.matrix.T)
        self.dimension, self.quadratic = int(self.matrix.shape[1]), g.quadratic

    def value(self, x: Vector) -> float:
        return self.g.value(self.matrix @ x)

    def gradient(self, x: Vector, part: slice = slice(None)) -> Vector:
        slopes = self.g.gradient(self.matrix @ x)
        return np.asarray(self.matrix[:, part].T @ slopes)

    def majorant(self) -> Any:
        return math.sqrt(self.g.smoothness) * self.matrix

    def follow(self, x: Vector, offsets: Integers) -> Iterate:
        return _LinearIterate(self, x, offsets)

    def dots(self, columns: Integers, slopes: Vector) -> Vector:
        """<a_j, slopes> for the chosen columns a_j."""
        found: Vector
        if self.sparse:
            found = kernels.sparse_dots(self.columns.indptr, self.columns.data, columns, slopes[self.rows_of(columns)])
        elif len(columns) == self.dimension:
            found = (self.columns @ slopes)[columns]
        else:
            found = kernels.dense_dots(self.columns, columns, slopes)
        return found

    def rows_of(self, columns: Integers) -> Integers:
        """The rows of the entries of sparse columns, column after column."""
        found: Integers = self.columns.indices[kernels.list_columns(columns, self.columns.indptr)]
        return found

    def add(self, columns: Integers, weights: Vector, step: float, q: Vector) -> None:
        """Add step A_columns weights to q."""
        if self.sparse:
            A = self.columns
            kernels.sparse_add(A.indptr, A.indices, A.data, columns, weights, step, q)
        else:
            kernels.dense_add(self.columns, columns, weights, step, q)


class _LinearIterate(Iterate):
    """q = A x, moved along with x and computed anew once in a long while."""

    objective: Composite

    def __init__(self, objective: Composite, x: Vector, offsets: Integers) -> None:
        super().__init__(objective, x, offsets)
        self.q, self.moved = np.asarray(objective.matrix @ self.x, dtype=np.float64), 0

    def value(self) -> float:
        return self.objective.g.value(self.q)

    def gradient(self, columns: Integers) -> Vector:
        f = self.objective
        if f.sparse:
            rows, A = f.rows_of(columns), f.columns
            if len(rows) < len(self.q):
                found: Vector = kernels.sparse_dots(A.indptr, A.data, columns, f.g.gradient_at(self.q, rows))
                return found
        return f.dots(columns, f.g.gradient(self.q))

    def snapshot(self) -> Gradients:
        slopes = self.objective.g.gradient(self.q)
        return lambda columns: self.objective.dots(columns, slopes)

    def move(self, columns: Integers, direction: Vector, step: float) -> None:
        self.x[columns] += step * direction
        self.objective.add(columns, direction, step, self.q)
        self._count(columns)

    def search(self, columns: Integers, direction: Vector, step: float) -> float:
        g = self.objective.g
        along = np.zeros_like(self.q)
        self.objective.add(columns, direction, 1.0, along)
        if g.quadratic:
            # g(q + u a) has the slope <grad g(q), a> at u = 0, and it changes by a constant amount up to u = 1.
            slope = float(g.gradient(self.q) @ along)
            bend = float((g.gradient(self.q + along) - g.gradient(self.q)) @ along)
            best = min(1.0, -slope / bend) if slope < 0 < bend else float(slope < 0)
        else:
            best = best_step(lambda u: g.value(self.q + u * along), step)
        self.x[columns] += best * direction
        self.q += best * along
        self._count(columns)
        return best

    def _count(self, columns: Integers) -> None:
        self.moved += len(columns)
        if self.moved >= REFRESH * self.objective.dimension:
            self.q, self.moved = np.asarray(self.objective.matrix @ self.x, dtype=np.float64), 0


def best_step(value: Callable[[float], float], step: float) -> float:
    """The u in [0, 1] of least value, for a convex function, to 1e-6; never worse than u = step, 0 or 1."""
    found = minimize_scalar(value, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-6})
    return min((float(found.x), step, 1.0, 0.0), key=value)


def least_squares(A: Any, y: ArrayLike) -> Composite:
    """f(x) = |A x - y|^2 / (2 n); n is the number of rows."""
    return Composite(A, MeanLoss(losses.get("squared"), y))


def logistic(A: Any, y: ArrayLike) -> Composite:
    """f(x) = (1/n) sum_i log(1 + exp(-y_i <a_i, x>)), the rows a_i of A and labels -1 and +1."""
    return Composite(A, MeanLoss(losses.get("logistic"), y))


def _as_finite(argument: str, values: Any) -> Vector:
    try:
        found = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{argument} must be numbers: {error}") from None
    if not bool(np.all(np.isfinite(found))):
        raise InputError(f"{argument} has an entry that is not finite; take out or replace its missing values")
    return found


_KINDS: dict[type[Any], int] = {BoxSet: kernels.BOX, L1Ball: kernels.L1, L2Ball: kernels.L2, Simplex: kernels.SIMPLEX}


class Blocks:
    """The parts of a product and where their coordinates lie; a set that is no product is one block."""

    def __init__(self, constraint: ConstraintSet, dimension: int) -> None:
        if not isinstance(constraint, ConstraintSet):
            raise InputError(
                f"constraint={constraint!r} must be a bounded set of sottovoce.penalties, such as "
                "Product((L1Ball(1.0), Simplex(2.0)), sizes=(3, 4))"
            )
        if not isinstance(constraint, Product):
            constraint = Product((constraint,), (dimension,))
        if sum(constraint.sizes) != dimension:
            raise InputError(
                f"sizes={constraint.sizes} sum to {sum(constraint.sizes)} and the objective has {dimension} "
                "coordinates; give one size for each block of coordinates"
            )
        self.product, self.parts = constraint, constraint.parts
        self.count, self.dimension = len(self.parts), dimension
        self.sizes = np.array(constraint.sizes, dtype=np.int64)
        self.offsets = np.concatenate([[0], np.cumsum(self.sizes)])
        # An exact type: a subclass may answer differently, so it is asked itself.
        self.kinds = np.array([_KINDS.get(type(part), kernels.OTHER) for part in self.parts])
        self.low = np.array([float(getattr(part, "low", 0.0)) for part in self.parts])
        self.high = np.array([float(getattr(part, "high", getattr(part, "radius", 0.0))) for part in self.parts])
        self.others = bool(np.any(self.kinds == kernels.OTHER))
        self.all = np.arange(self.count)
        self.all_columns = np.arange(dimension)

    def check(self, sampling: Sampling) -> None:
        """Refuse a sampling of other blocks."""
        if not isinstance(sampling, Sampling):
            raise InputError(f"sampling={sampling!r} must be a Sampling, such as Nice(blocks=8, tau=2) or a subclass")
        if sampling.blocks != self.count:
            raise InputError(
                f"the sampling has {sampling.blocks} blocks and the constraint {self.count}; "
                "a Product has one block for each part"
            )

    def slice(self, block: int) -> slice:
        return slice(int(self.offsets[block]), int(self.offsets[block + 1]))

    def columns(self, chosen: Integers) -> Integers:
        found: Integers = kernels.list_columns(chosen, self.offsets)
        return found

    def oracle(self, chosen: Integers, gradient: Vector) -> Vector:
        """The s_i in M_i with the least <s_i, gradient_i> for each chosen block, one after the other."""
        answer = np.empty_like(gradient)
        kernels.oracle(self.kinds, self.low, self.high, self.offsets, chosen, gradient, answer)
        if self.others:
            start = 0
            for i in chosen:
                stop = start + int(self.sizes[i])
                if self.kinds[i] == kernels.OTHER:
                    answer[start:stop] = self.parts[i].linear_oracle(gradient[start:stop])
                start = stop
        return answer

    def diameters(self) -> Vector:
        return np.array([part.diameter(int(size)) for part, size in zip(self.parts, self.sizes, strict=True)])

    def start(self, x: ArrayLike | None) -> Vector:
        """A feasible point: x itself, checked, or the point nearest to 0."""
        if x is None:
            return self.product.project(np.zeros(self.dimension))
        found = np.array(x, dtype=np.float64)
        if found.shape != (self.dimension,):
            raise InputError(f"start has shape {found.shape}, not ({self.dimension},); give one number per coordinate")
        for i, part in enumerate(self.parts):
            if not part.contains(found[self.slice(i)]):
                raise InputError(f"start is outside the set of block {i}, {part}; project it first")
        return found
