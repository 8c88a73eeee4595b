"""Slopes by look-up: what a sealed score is looked up in, and how its nodes are found.

    slope(z, y) = f(z - c y) - beta y,     f odd and bounded,     f taken at the levels k h

A score is rounded to a level at random, by `order` dithers: the mean of what is looked up is the B-spline of that
degree with the nodes f_k as coefficients. Levels repeat after L, so that |f| is bounded whatever the score is. Proof:
`proofs/columns.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from sottovoce.arguments import is_number
from sottovoce.errors import InputError
from sottovoce.losses.base import Loss
from sottovoce.losses.classification import Hinge, Logistic, SmoothedHinge
from sottovoce.losses.regression import Huber, Squared
from sottovoce.sealed.ring import FINE

Function = Callable[[NDArray[np.float64]], NDArray[np.float64]]

WIDENINGS: Final = (1, 2, 4, 8)
MOST_LEVELS: Final = 1024
MOST_ORDER: Final = 5
_SPARE, _FAR, _NEAR = 3, 6.0, 3.0  # levels at the end of a table, where slopes fall; deviations of scores
_POINTS = 32  # of a level, at which a fit is compared


@dataclass(frozen=True, eq=False)
class Lookup:
    """What is looked up at a joint score z and label y: f_o(z - shift y) - beta_o y, o = 0 .. outputs - 1, by levels.

    Guarantee: no output is beyond `bound`, for any score, weights, dithers and wrap-around; a null record, all of whose
    parts are zeros and whose label is NaN, gets f_o at level 0 exactly, which is 0 for an odd f.
    """

    nodes: NDArray[np.int64]  # (outputs, W): f_o at the levels 0 .. W - 1, integers in units of 2^-bits
    level: float  # h, the distance of two levels in units of the score
    symmetric: bool  # f_{k + L/2} = -f_k, so that W = L/2 levels are dealt; else W = L
    shift: float  # c
    beta: tuple[float, ...]  # of each output
    order: int = 3  # dithers; the mean is the B-spline of this degree

    def __post_init__(self) -> None:
        nodes = np.asarray(self.nodes)
        if nodes.dtype != np.int64 or nodes.ndim != 2 or not nodes.size:
            raise InputError(f"nodes of shape {nodes.shape} and type {nodes.dtype}: must be int64, (outputs, levels).")
        if self.period > MOST_LEVELS or self.period & (self.period - 1) or self.period < 2:
            raise InputError(f"a table of {self.period} levels: their number must be a power of two <= {MOST_LEVELS}.")
        if not (is_number(self.level) and 0 < self.level < math.inf):
            raise InputError(f"level={self.level!r} must be a positive finite number.")
        if len(self.beta) != len(nodes) or not all(map(math.isfinite, (*self.beta, self.shift))):
            raise InputError(f"beta={self.beta!r}: must have one finite number for each of {len(nodes)} outputs.")
        if self.order not in range(1, MOST_ORDER + 1):
            raise InputError(f"order={self.order!r} must be from 1 to {MOST_ORDER}.")
        nodes = nodes.copy()
        nodes.setflags(write=False)
        object.__setattr__(self, "nodes", nodes)

    @property
    def outputs(self) -> int:
        """How many numbers are looked up for a record."""
        return len(self.nodes)

    @property
    def period(self) -> int:
        """L: after so many levels the table repeats."""
        return int(self.nodes.shape[1]) * (2 if self.symmetric else 1)

    @property
    def fine(self) -> int:
        """q: bits of a score below its level; 2^q L = 2^16."""
        return FINE + 1 - self.period.bit_length()

    def bound(self, bits: int) -> float:
        """What the outputs of a record can be, as a norm: | max_k |f_k| 2^-bits + |beta| |."""
        largest = np.abs(self.nodes).max(axis=1) * 2.0**-bits + np.abs(self.beta)
        return float(np.sqrt(largest @ largest))


def widening(lookup: Lookup, spread: float) -> int:
    """How far apart levels are to be, as a factor, at scores of this deviation: they have to stay within the table.

    Levels of 2 h cost little, and are taken as soon as 6 deviations do not fit; those of 4 h and 8 h are so coarse that
    slopes are too flat and weights too large, so they are taken where 3 deviations would not fit.
    """
    reach = lookup.level * (lookup.nodes.shape[1] - _SPARE)
    if reach >= _FAR * spread:
        return WIDENINGS[0]
    return next((factor for factor in WIDENINGS[1:] if factor * reach >= _NEAR * spread), WIDENINGS[-1])


@lru_cache(maxsize=64)
def slope_lookup(loss: Loss, slope_bound: float, bits: int, *, widen: int = 1) -> Lookup:
    """The slope of a loss, of at most `slope_bound`; levels are `widen` times as far apart, and the range as long.

    |      | f(u) | c | beta | h | levels dealt | order |
    | logistic | tanh(u/2) / 2 | 0 | 1/2 | 1 | 16 | 3, nodes fitted |
    | hinge | sign(u) / 2 | 1 | 1/2 | 1/4 | 32 | 1 |
    | smoothed hinge | clip(u/g, -1/2, 1/2) | 1 - g/2 | 1/2 | g/2 | 16 | 1 |
    | squared, Huber | clip(u, -G, G) | 1 | 0 | G/4 | 32 | 1 |
    """
    if widen not in WIDENINGS:
        raise InputError(f"widen={widen!r} must be one of {', '.join(map(str, WIDENINGS))}.")
    if type(loss) in (Squared, Huber):
        return _cut_residual(min(loss.slope_bound, slope_bound), bits, widen)
    if type(loss) not in (Logistic, Hinge, SmoothedHinge):
        raise InputError(
            f"loss={loss.name!r} has no slope f(z - c y) - beta y that can be looked up; choose logistic, hinge, "
            "smoothed_hinge, huber or squared, without weights."
        )
    if not slope_bound >= loss.slope_bound:
        raise InputError(
            f"slope_bound={slope_bound:g} cuts the slope of {loss.name!r}, and a cut slope is not looked up; "
            f"take {loss.slope_bound:g}."
        )
    if isinstance(loss, Logistic):
        level, width, order, shift = float(widen), 16, 3, 0.0
        nodes = fitted_nodes(lambda u: np.tanh(u / 2) / 2, level, width, order, 0.5, bits)
    elif isinstance(loss, Hinge):
        level, width, order, shift = widen / 4, 32, 1, 1.0
        nodes = _sampled(lambda u: np.sign(u) / 2, level, width, bits)
    else:
        smoothing = loss.parameter
        level, width, order, shift = widen * smoothing / 2, 16, 1, 1 - smoothing / 2
        nodes = _sampled(lambda u: np.clip(u / smoothing, -0.5, 0.5), level, width, bits)
    return Lookup(nodes[None], level, True, shift, (0.5,), order)


def _cut_residual(cut: float, bits: int, widen: int) -> Lookup:
    if not 0 < cut < math.inf:
        raise InputError(f"slope_bound={cut!r}: residuals must be cut somewhere; give a positive finite slope_bound.")
    level = widen * cut / 4
    return Lookup(_sampled(lambda u: np.clip(u, -cut, cut), level, 32, bits)[None], level, True, 1.0, (0.0,), 1)


def _sampled(f: Function, level: float, count: int, bits: int) -> NDArray[np.int64]:
    """An odd f at the levels, mirrored at half of them: exact in the mean for a piecewise linear f with kinks there."""
    places = np.arange(count)
    return np.trunc(f(level * np.minimum(places, count - places)) * 2.0**bits).astype(np.int64)


def fitted_nodes(  # noqa: PLR0913  # one fit
    f: Function, level: float, count: int, order: int, bound: float, bits: int
) -> NDArray[np.int64]:
    """Nodes whose B-spline of degree `order` is nearest to an odd f, in its largest error on [0, h W/2].

    Nodes are odd and f_{k + W} = -f_k, hence f_{W - k} = f_k: those up to W/2 are found, with |f_k| <= bound, by a
    linear program, and rounded toward zero to multiples of 2^-bits.
    """
    half = count // 2
    points = np.linspace(0.0, half, _POINTS * half + 1)
    basis = np.zeros((len(points), half + 1))
    for k in range(-order, half + order + 1):
        place, sign = (-k, -1.0) if k < 0 else (min(k, count - k), 1.0)
        basis[:, place] += sign * b_spline(points - k, order)
    wanted, basis = f(level * points), basis[:, 1:]  # the node at 0 is 0
    errors = np.ones((len(points), 1))
    found = linprog(
        np.append(np.zeros(half), 1.0),
        A_ub=np.block([[basis, -errors], [-basis, -errors]]),
        b_ub=np.concatenate([wanted, -wanted]),
        bounds=[(-bound, bound)] * half + [(0.0, None)],
        method="highs",
    )
    if found.x is None:
        raise InputError(f"no nodes of order={order} were found for level={level:g}; take another level.")
    nodes = np.clip(np.trunc(found.x[:half] * 2.0**bits), -np.floor(bound * 2.0**bits), np.floor(bound * 2.0**bits))
    return np.concatenate([[0], nodes, nodes[-2::-1]]).astype(np.int64)


def b_spline(x: NDArray[np.float64], order: int) -> NDArray[np.float64]:
    """The cardinal B-spline of degree `order` around 0: the chance that x with so many dithers is rounded to 0."""
    total, ends = np.zeros_like(x), order + 1
    for j in range(ends + 1):
        total += (-1) ** j * math.comb(ends, j) * np.maximum(x + ends / 2 - j, 0.0) ** order
    return total / math.factorial(order)
