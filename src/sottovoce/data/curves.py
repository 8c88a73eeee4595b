"""A curve as a linear model: the public functions of a number that `shape = "smooth"` puts in its place.

f(x) = sum_l b_l(x) coef_l, piecewise linear between k knots. With h_j the hats of the knots (1 at knot j, 0 at others
and linear between; at most two are not 0, and they sum to 1):

    b(x) = h(x) B,    B = U diag(w) / c,    w_1 = 1,    w_l = a / l^p,    c^2 = max_j |row j of U diag(w)|^2.

The columns of U sqrt(1/k) are eigenvectors of D'D, D the second differences of the values at the knots: without the
constant (there is an intercept) first the line, then wiggles by rising eigenvalue. So what is smooth costs least.

**Norm.** |b(x)| <= 1. Between two knots b(x) = (1 - t) B_j + t B_(j+1), whose squared length is convex in t, so it is
largest at a knot; there it is at most 1 by the choice of c, and B is rounded toward zero, which lengthens no row.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from sottovoce.data.kernels.entry_loops import fill_curve

Array = NDArray[np.float64]

KNOTS, MOST_KNOTS = 12, 50
POWER, WIGGLES = 0.5, 0.5  # p and a: of 15 data sets and four budgets; one choice serves all
_GRID: Final = 2.0**40  # what rounding makes of eigenvectors elsewhere is below it, so that parties encode alike
_STRAIGHT: Final = 1e-9  # of the largest value: a curve that breaks its order by less has kept it


@functools.cache
def smooth_basis(knots: int) -> Array:
    """B: a row for each knot, no longer than 1, and a column for each feature, orthogonal to the constant."""
    differences = np.diff(np.eye(knots), 2, axis=0)
    vectors = np.linalg.eigh(differences.T @ differences)[1][:, 1:]  # the null space has the constant and the line
    vectors[:, 0] = np.linspace(-1.0, 1.0, knots)
    vectors *= np.sign(vectors[-1]) / np.linalg.norm(vectors, axis=0)  # up at the right end, whatever the machine says
    weights = WIGGLES * np.arange(1, knots) ** -POWER
    weights[0] = 1.0
    basis = vectors * weights
    basis = np.trunc(basis / np.sqrt(np.square(basis).sum(axis=1).max()) * _GRID) / _GRID
    basis.flags.writeable = False  # it is shared
    return np.asarray(basis)


def at_steps(steps: Array, basis: Array) -> Array:
    """h(x) B where x is so many steps behind the first knot: each row by itself, and on every machine the same."""
    made = np.empty((len(steps), basis.shape[1]))
    fill_curve(np.ascontiguousarray(steps), basis, np.diff(basis, axis=0), made)
    return made


def put_in_order(coef: Array, basis: Array, *, rising: bool) -> Array:
    """The coefficients of the nearest curve that never falls (or rises): least squares over the knots.

    It keeps the mean over the knots, so it is a curve of the same basis, and the intercept stays. One that is in order
    already stays as it is. Post-processing: of released coefficients and the public schema alone, so it costs nothing.
    """
    values = basis @ coef
    nearest = np.asarray(isotonic_regression(values, increasing=rising).x)
    least = _STRAIGHT * np.abs(values).max()
    if np.abs(nearest - values).max() <= least:
        return coef
    if np.ptp(nearest) <= least:  # all of it is against the order
        return np.zeros(len(coef))
    return np.asarray(np.linalg.lstsq(basis, nearest, rcond=None)[0])
