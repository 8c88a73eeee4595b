"""What the updates of ADMM sharing over columns have in common: their checks and defaults.

Party m has the columns D_m and their weights x_m. With the scores S = sum_m D_m x_m, a copy z of them and duals y,

    min sum_i l(z_i, label_i) + N sum_m pen_m(x_m)   such that   S = z

is solved by turns: z and then y at the party that has the labels, all x_m at once at their parties. Of z and y a party
needs no more than v = y + rho (S - z):

    x_m <- argmin_u N pen_m(u) + <v, D_m (u - x_m)> + (rho (1 + p) / 2) |D_m (u - x_m)|^2.

p = 0 is the published update (Hu et al. 2019). There all parties move at once by what would be right for one of them,
and M similar ones overshoot M times. The term with p, a proximal one, restrains them: at p = M - 1, M |D_m u_m|^2
summed over m is at least |sum_m D_m u_m|^2, and the method is ADMM with two blocks in a metric, which converges for
every rho and every relaxation below 2 if the loss is convex.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sottovoce.algorithms.base import Array
from sottovoce.data.matrix import Products
from sottovoce.errors import InputError
from sottovoce.losses import Loss
from sottovoce.plan import Plan, Problem

GRAM = 2000  # columns up to which a party makes its Gram matrix; beyond, it works with products
MOMENTUM = 0.9
ANY = (-math.inf, math.inf)  # limits of what is told without privacy: that it is a number


def square_of(products: Products) -> Any:
    """D'D: a matrix up to GRAM columns; beyond, the products themselves."""
    return products.square(GRAM)


def momentum_step(weights: Array, before: Array, move: Array) -> Array:
    """A step, and a share of the last one. Where it leads nowhere, there was nothing to move: so a prox may follow."""
    return np.asarray(weights - move + MOMENTUM * (weights - before))


def curvature(loss: Loss) -> float:
    """The curvature that steps reckon with: the loss's, at most 1."""
    return min(loss.curvature_bound, 1.0)


def join_weights(plan: Plan, values: Mapping[str, Array]) -> Array:
    """All weights, of each party those of its own columns; the intercept is with the constant column."""
    weights = np.zeros(plan.dimension)
    for name, own in values.items():
        part = plan.part(name)
        weights[part.start : part.stop] = own[: part.stop - part.start]
        if part.constant:
            weights[plan.features] = own[-1]
    return weights


def check_exact(problem: Problem, solver: str) -> None:
    """Refuse what a run that tells everybody the slopes of all records cannot have."""
    if problem.labels == "held":
        raise InputError(
            f"labels='held': without privacy solver={solver!r} tells every party the slope of each record's loss, "
            "whose sign is the label; choose a finite epsilon, or labels='shared' if all parties may know them."
        )
    check_one_set(problem, solver)


def check_one_set(problem: Problem, solver: str) -> None:
    """Refuse a product of sets, which has no part for a party."""
    if problem.regulariser.name == "product":
        raise InputError(
            f"penalty='product': solver={solver!r} bounds each party's weights by one set; choose a ball or a box."
        )


def check_rho(loss: Loss, rho: float) -> None:
    """Refuse a rho for which the minimum over z need not be one."""
    if not loss.convex and not rho > loss.curvature_bound:
        raise InputError(
            f"rho={rho:.4g} must be above {loss.curvature_bound:.4g}, the curvature of the loss {loss.name!r}, which "
            "is not convex; leave it out for the default rule."
        )
