"""Expected curvature of a function under a sampling: upper bounds, a lower estimate, and what they say of a run.

C = sup over x, s in M and 0 < u <= 1 of E_T (2/u^2) (f(x + u d_T) - f(x) - u <d_T, grad f(x)>), where d_T is s - x on
the blocks of T and 0 elsewhere (Lou and Cheung 2018, Definition 2). With a majorant A of f, d = s - x and
P_ij = Pr(i, j in T),

    C <= sup over d of E_T |A d_T|^2 = sup over d of sum_ij P_ij <A_i d_i, A_j d_j>,

with equality for a quadratic f. All bounds below are bounds of the right-hand side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.data.matrix import is_sparse
from sottovoce.errors import InputError
from sottovoce.lab.bcfw import kernels
from sottovoce.lab.bcfw.objectives import Blocks, Objective
from sottovoce.lab.bcfw.samplings import (
    Distributed,
    Integers,
    Matrix,
    Nice,
    Sampling,
    Vector,
    check_pairs,
    check_probability,
    check_proper,
)
from sottovoce.penalties import ConstraintSet

CORNERS = 12  # coordinates of a box whose corners are gone through
LARGE = 2000  # size of a matrix above which its largest eigenvalue is bounded rather than computed
MOST_CORNERS = 2**18  # of all blocks together


def theorem_bound(
    t: ArrayLike, gap0: float, curvature: float, p_min: float, rho: float = 0.0
) -> float | NDArray[np.float64]:
    """2 (gap0 + (1 + rho) C / p_min) / (p_min t + 2) >= E f(x_t) - min f after t rounds with the universal step.

    gap0 = f(x_0) - min f, C a bound of the expected curvature, rho as `Inexact.rho` (0: exact oracles). It also holds
    with "line-search" (Lou and Cheung 2018, Theorem 1).
    """
    _check_bound(gap0, curvature, p_min, rho)
    bound = 2 * (gap0 + (1 + rho) * curvature / p_min) / (p_min * np.asarray(t, dtype=np.float64) + 2)
    return bound if bound.ndim else float(bound)


def recursion_bound(
    steps: Iterable[float], gap0: float, curvature: float, p_min: float, rho: float = 0.0
) -> NDArray[np.float64]:
    """b_0 = gap0 and b_{t+1} = (1 - p_min u_t) b_t + u_t^2 (1 + rho) C / 2, for any steps u_t from 0 to 1.

    b_t >= E f(x_t) - min f, at most `theorem_bound` where the steps are universal. For p_min = 1 and the universal step
    b_t <= 2 C / (t + 2) from t = 1 on, without gap0 (Jaggi 2013). With rho the steps must be universal, since the
    tolerances of `Inexact` are in terms of that step.
    """
    _check_bound(gap0, curvature, p_min, rho)
    bounds = [float(gap0)]
    for u in steps:
        if not 0 <= u <= 1:
            raise InputError(f"step {u!r} must be from 0 to 1; a longer one leaves the feasible set")
        bounds.append((1 - p_min * u) * bounds[-1] + 0.5 * u**2 * (1 + rho) * curvature)
    return np.array(bounds)


def _check_bound(gap0: float, curvature: float, p_min: float, rho: float) -> None:
    check_probability(p_min)
    for argument, value in (("gap0", gap0), ("curvature", curvature), ("rho", rho)):
        if not 0 <= value < math.inf:
            raise InputError(f"{argument}={value!r} must be zero or a positive finite number")


def block_curvatures(objective: Objective, constraint: ConstraintSet) -> Vector:
    """u_i = sup over s, x in M_i of |A_i (s - x)|^2, a bound of the curvature of f along block i.

    Exact for balls, simplices and boxes of up to 12 coordinates; above it for larger boxes and for other sets.
    Their sum bounds the product curvature of Lacoste-Julien et al. (2013).
    """
    return _Majorant(objective, constraint).squares


def pair_curvatures(objective: Objective, constraint: ConstraintSet) -> Matrix:
    """m_ij = sup of <A_i (s_i - x_i), A_j (s_j - x_j)>, on the diagonal u_i.

    Exact for two l2 balls and where the corners of one of the two blocks are gone through (l1 balls, simplices, boxes
    of up to 12 coordinates); else sqrt(u_i u_j), which is above it.
    """
    return _Majorant(objective, constraint).products


class _Majorant:
    """The matrix A of f, block by block. The differences M_i - M_i are symmetric, so only half their corners count."""

    def __init__(self, objective: Objective, constraint: ConstraintSet, sampling: Sampling | None = None) -> None:
        self.blocks = Blocks(constraint, objective.dimension)
        if sampling is not None:
            self.blocks.check(sampling)
        self.matrix = objective.majorant()
        if self.matrix.shape[1] != objective.dimension:
            raise InputError(f"majorant() has {self.matrix.shape[1]} columns, not {objective.dimension}; one for each")

    def block(self, i: int) -> Matrix:
        part: Any = self.matrix[:, self.blocks.slice(i)]
        return np.asarray(part.toarray() if is_sparse(part) else part, dtype=np.float64)

    def corners(self, i: int) -> Matrix | None:
        """The corners of M_i - M_i up to their sign, one a column, or None if they are too many."""
        size, kind = int(self.blocks.sizes[i]), self.blocks.kinds[i]
        if kind == kernels.BOX and size <= CORNERS:
            width = float(self.blocks.high[i] - self.blocks.low[i])
            signs = [(1.0, *rest) for rest in itertools.product((1.0, -1.0), repeat=size - 1)]
            return np.asarray(width * np.array(signs).T)
        if kind == kernels.L1:
            return np.asarray(2 * self.blocks.high[i] * np.eye(size))
        if kind == kernels.SIMPLEX:
            first, second = np.triu_indices(size, 1)
            eye = np.eye(size)
            return np.asarray(self.blocks.high[i] * (eye[:, first] - eye[:, second]))
        return None

    def width(self, j: int, directions: Matrix) -> Vector:
        """The width of block j in each direction (a column): max - min of <s, direction>."""
        radius, kind = self.blocks.high[j], self.blocks.kinds[j]
        if kind == kernels.BOX:
            found = (radius - self.blocks.low[j]) * np.abs(directions).sum(axis=0)
        elif kind == kernels.L1:
            found = 2 * radius * np.abs(directions).max(axis=0)
        elif kind == kernels.L2:
            found = 2 * radius * np.linalg.norm(directions, axis=0)
        elif kind == kernels.SIMPLEX:
            found = radius * np.ptp(directions, axis=0)
        else:
            oracle = self.blocks.parts[j].linear_oracle
            found = [float((oracle(-g) - oracle(g)) @ g) for g in np.ascontiguousarray(directions.T)]
        return np.asarray(found)

    @cached_property
    def squares(self) -> Vector:
        return np.array([self._square(i) for i in range(self.blocks.count)])

    def _square(self, i: int) -> float:
        if self.blocks.kinds[i] == kernels.SIMPLEX:
            gram = self.block(i).T @ self.block(i)
            lengths = np.diag(gram)
            return float(self.blocks.high[i] ** 2 * max((np.add.outer(lengths, lengths) - 2 * gram).max(), 0.0))
        corners = self.corners(i)
        if corners is not None:
            return float(np.square(self.block(i) @ corners).sum(axis=0).max())
        part, size = self.blocks.parts[i], int(self.blocks.sizes[i])
        bound = float(np.linalg.norm(self.block(i), 2)) ** 2 * part.diameter(size) ** 2
        if self.blocks.kinds[i] == kernels.BOX:
            width = float(self.blocks.high[i] - self.blocks.low[i])
            bound = min(bound, width**2 * float(np.abs(self.block(i).T @ self.block(i)).sum()))
        return bound

    @cached_property
    def products(self) -> Matrix:
        found = np.zeros((self.blocks.count, self.blocks.count))
        if self.blocks.count == self.blocks.dimension:  # intervals: all pairs at once
            gram: Any = self.matrix.T @ self.matrix
            gram = gram.toarray() if is_sparse(gram) else gram
            found = np.abs(gram) * np.multiply.outer(self.blocks.diameters(), self.blocks.diameters())
        else:
            for i in range(self.blocks.count - 1):
                row = np.asarray(self.matrix.T @ self.block(i)).T
                for j in range(i + 1, self.blocks.count):
                    found[i, j] = found[j, i] = self._product(i, j, row[:, self.blocks.slice(j)])
        np.fill_diagonal(found, self.squares)
        return found

    def _product(self, i: int, j: int, gram: Matrix) -> float:
        """The largest d_i' gram d_j over the differences of two blocks, or a bound of it."""
        blocks = self.blocks
        if not np.any(gram):
            return 0.0
        kinds = {int(blocks.kinds[i]), int(blocks.kinds[j])}
        if kinds == {kernels.SIMPLEX}:
            widest = max(np.ptp(row - gram, axis=1).max() for row in gram)  # (e_a - e_b)' gram (e_c - e_d)
            return float(blocks.high[i] * blocks.high[j] * widest)
        if kinds == {kernels.L2}:
            return float(4 * blocks.high[i] * blocks.high[j] * np.linalg.norm(gram, 2))
        bound = math.sqrt(self.squares[i] * self.squares[j])
        sides = [(self.corners(i), j, gram.T), (self.corners(j), i, gram)]
        listed = [(corners, other, matrix) for corners, other, matrix in sides if corners is not None]
        if listed:
            corners, other, matrix = min(listed, key=lambda side: side[0].shape[1])
            bound = min(bound, float(self.width(other, matrix @ corners).max(initial=0.0)))
        return bound

    def largest(self, pairs: Matrix) -> float:
        """The largest sum_ij P_ij <A_i d_i, A_j d_j> over the corners of the blocks that P has."""
        drawn = np.flatnonzero(np.diag(pairs)).tolist()
        corners = [self.corners(i) for i in drawn]
        if math.prod(math.inf if each is None else 2 * each.shape[1] for each in corners) > MOST_CORNERS:
            raise InputError("the blocks have too many corners to go through; take curvature_bound, which is above")
        halves = [(self.block(i) @ each).T for i, each in zip(drawn, corners, strict=True) if each is not None]
        found, weights = 0.0, pairs[np.ix_(drawn, drawn)]
        for choice in itertools.product(*(np.vstack([half, -half]) for half in halves[1:])):
            rest = np.array(choice).reshape(len(choice), halves[0].shape[1])
            fixed = float((weights[1:, 1:] * (rest @ rest.T)).sum())
            first = weights[0, 0] * np.square(halves[0]).sum(axis=1) + 2 * halves[0] @ (weights[0, 1:] @ rest)
            found = max(found, fixed + float(first.max()))
        return found

    def coupling(self) -> float:
        """The least c known with |sum_i A_i d_i|^2 <= c sum_i |A_i d_i|^2 for all d; at most the number of blocks.

        It is the largest eigenvalue of A'A normalised by its diagonal blocks.
        """
        rows, columns = self.matrix.shape
        if min(rows, columns) > LARGE:
            return float(self.blocks.count)
        bases = []
        for i in range(self.blocks.count):
            left, values, _ = np.linalg.svd(self.block(i), full_matrices=False)
            bases.append(left[:, values > 1e-12 * max(float(values[0]), 1e-300)])
        basis = np.hstack(bases)
        if not basis.size:
            return 0.0
        gram = basis.T @ basis if basis.shape[1] <= rows else basis @ basis.T
        return min(float(np.linalg.eigvalsh(gram)[-1]) * (1 + 1e-9), float(self.blocks.count))


def eso_bound(objective: Objective, constraint: ConstraintSet, sampling: Sampling) -> float:
    """sum_i p_i beta_i D_i^2, beta_i = min(c(P), c(A'A)) |A_i|^2, any sampling (Proposition 1).

    c is the largest eigenvalue of a matrix normalised by its diagonal (of A'A: by its diagonal blocks), D_i the
    diameter of M_i and |A_i| the spectral norm.
    """
    majorant = _Majorant(objective, constraint, sampling)
    p, factor = _separable(majorant, sampling)
    norms = np.array([np.linalg.norm(majorant.block(i), 2) for i in range(majorant.blocks.count)])
    return factor * float(p @ np.square(norms * majorant.blocks.diameters()))


def separable_bound(objective: Objective, constraint: ConstraintSet, sampling: Sampling) -> float:
    """min(c(P), c(A'A)) sum_i p_i u_i: Proposition 1 with the curvatures of the blocks, at most `eso_bound`."""
    majorant = _Majorant(objective, constraint, sampling)
    p, factor = _separable(majorant, sampling)
    return factor * float(p @ majorant.squares)


def _separable(majorant: _Majorant, sampling: Sampling) -> tuple[Vector, float]:
    p, pairs = check_proper(sampling), check_pairs(sampling)
    if np.count_nonzero(pairs) == len(p):  # drawn one by one: no pairs, and neither factor is below 1
        return p, 1.0
    if len(p) <= LARGE:
        spread = float(np.linalg.eigvalsh(pairs / np.sqrt(np.multiply.outer(p, p)))[-1]) * (1 + 1e-9)
    else:
        spread = float((pairs.sum(axis=1) / p).max())
    return p, min(spread, majorant.coupling())


def nice_bound(objective: Objective, constraint: ConstraintSet, sampling: Nice) -> float:
    """The bound tau mu_1 + tau (tau - 1) mu_2 for tau-nice sampling (Proposition 3): `distributed_bound` of one user.

    mu_1 is the largest u_i, mu_2 the largest m_ij of two blocks.
    """
    if not isinstance(sampling, Nice):
        raise InputError(f"nice_bound is for Nice and UniformSerial, not {type(sampling).__name__}; use pairwise_bound")
    return distributed_bound(objective, constraint, sampling)


def distributed_bound(objective: Objective, constraint: ConstraintSet, sampling: Distributed) -> float:
    """K tau mu_1 + K tau (tau - 1) mu_2 + K (K - 1) tau^2 mu_3, (K, tau)-distributed sampling (Proposition 4).

    mu_1 is the largest u_i, mu_2 the largest m_ij of two blocks of one user, mu_3 that of blocks of two users. The scan
    has no legible tau^2: by counting pairs of blocks it is.
    """
    if not isinstance(sampling, Distributed):
        raise InputError(f"distributed_bound is for Distributed, not {type(sampling).__name__}; use pairwise_bound")
    products = _Majorant(objective, constraint, sampling).products
    same = np.equal.outer(sampling.owners(), sampling.owners())
    other = ~np.eye(len(products), dtype=bool)
    mu_1 = float(np.diag(products).max())
    mu_2, mu_3 = (float(products.max(where=where, initial=0.0)) for where in (same & other, ~same))
    K, tau = sampling.users, sampling.tau
    return K * tau * mu_1 + K * tau * (tau - 1) * mu_2 + K * (K - 1) * tau**2 * mu_3


def pairwise_bound(objective: Objective, constraint: ConstraintSet, sampling: Sampling) -> float:
    """sum_ij P_ij m_ij, any sampling; at most Propositions 3 and 4, and C itself for a quadratic drawn one by one."""
    return float((check_pairs(sampling) * _Majorant(objective, constraint, sampling).products).sum())


def curvature_bound(objective: Objective, constraint: ConstraintSet, sampling: Sampling) -> float:
    """The least of the bounds: `pairwise_bound` and `separable_bound`, which the others are never below."""
    return min(bound(objective, constraint, sampling) for bound in (pairwise_bound, separable_bound))


def exact_curvature(objective: Objective, constraint: ConstraintSet, sampling: Sampling) -> float:
    """C itself where f is quadratic: the largest sum_ij P_ij <A_i d_i, A_j d_j>, through all corners of small blocks.

    Of another f it is a bound. For `Elementary` it is the global curvature C_f (Lou and Cheung 2018, eq. 1).
    """
    return _Majorant(objective, constraint, sampling).largest(check_pairs(sampling))


def set_curvature(objective: Objective, constraint: ConstraintSet, chosen: Integers | Sequence[int]) -> float:
    """C_f^(S) for the blocks of S, the largest |sum_{i in S} A_i d_i|^2 (eq. 3), likewise."""
    majorant = _Majorant(objective, constraint)
    inside = np.isin(np.arange(majorant.blocks.count), chosen)
    return majorant.largest(np.multiply.outer(inside, inside).astype(np.float64))


def expected_set_curvature(objective: Objective, constraint: ConstraintSet, tau: int) -> float:
    """C_f^tau, the mean of C_f^(S) over sets S of tau blocks (Wang et al. 2016): at least C of tau-nice sampling."""
    sets = Nice(Blocks(constraint, objective.dimension).count, tau).sets()
    return math.fsum(share * set_curvature(objective, constraint, chosen) for chosen, share in sets)
