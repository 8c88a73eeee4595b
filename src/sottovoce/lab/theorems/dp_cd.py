"""DP-CD (Mangold, Bellet, Salmon and Tommasi 2022, the poster): its bounds on E F(w_priv) - F*, and its constants.

M_j is the curvature of the smooth part along coordinate j, L_j the bound of one record's part of its gradient, n the
records; |X|_M^2 = sum_j M_j X_j^2. Where a printed formula is false, the one that its own proof gives stands beside it.

What holds, for steps 1 / M_j, uniform coordinates and noise sigma_j: let h = F - F* and V = h(w) + |w - w*|_M^2 / 2.
One step has E V' <= V - h / p + |sigma|_{M^-1}^2 / p: a full prox step is optimal in |.|_M, and a prox moves by no more
than its argument. Summed over K steps, E h(mean) <= (p / K) V(w^0) + |sigma|_{M^-1}^2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class CoordinateSetting:
    """L_j, M_j, n and the budget of a run."""

    lipschitz: Vector
    curvatures: Vector
    records: int
    epsilon: float
    delta: float

    @property
    def size(self) -> int:
        return len(self.curvatures)

    @property
    def signal(self) -> float:
        """Without delta: n epsilon / |L|_{M^-1}."""
        return self.records * self.epsilon / inverse_norm(self.lipschitz, self.curvatures)

    @property
    def noise(self) -> float:
        """log(1/delta) |L|_{M^-1}^2 / (n epsilon)^2."""
        return math.log(1 / self.delta) / self.signal**2


def inverse_norm(values: Vector, curvatures: Vector) -> float:
    """|X|_{M^-1} = sqrt(sum_j X_j^2 / M_j) ("Utility Results")."""
    return float(np.sqrt(np.sum(values**2 / curvatures)))


def curvature_norm(values: Vector, curvatures: Vector) -> float:
    """|X|_M = sqrt(sum_j M_j X_j^2), in which F is strongly convex ("Strongly-Convex")."""
    return float(np.sqrt(np.sum(curvatures * values**2)))


def printed_deviation(setting: CoordinateSetting, counted: int) -> Vector:
    """sigma_j = sqrt(8 T log(1/delta)) L_j / (n epsilon), T = `counted` ("Privacy")."""
    scale = math.sqrt(8 * counted * math.log(1 / setting.delta)) / (setting.records * setting.epsilon)
    return np.asarray(scale * setting.lipschitz)


def printed_radius(distance: Vector, gap: float, curvatures: Vector) -> float:
    """R_M = max(|w^0 - w*|_{M^-1}, F(w^0) - F*) as printed ("Convex"); the bound is false with it.

    Its parts have other units than R_M |L|_{M^-1} needs: scaling coordinates and F together makes it as small as one
    likes.
    """
    return max(inverse_norm(distance, curvatures), gap)


def coordinate_radius(distance: Vector, gap: float, curvatures: Vector) -> float:
    """R_M with R_M^2 = max(|w^0 - w*|_M^2, F(w^0) - F*), for which the convex bound holds."""
    return math.sqrt(max(curvature_norm(distance, curvatures) ** 2, gap))


def convex_coordinate_bound(setting: CoordinateSetting, radius: float, inner: float) -> float:
    """3 p R_M^2 / (2 K) + 12 K log(1/delta) |L|_{M^-1}^2 / (n epsilon)^2, T = 1 ("Convex").

    12 is the noise of the full paper; with the printed 8 (every step counted) it holds with room.
    """
    return 3 * setting.size * radius**2 / (2 * inner) + 12 * inner * setting.noise


def best_inner(setting: CoordinateSetting, radius: float) -> float:
    """K = R_M sqrt(p / (8 log(1/delta))) n epsilon / |L|_{M^-1}, where the convex bound is least."""
    return radius * math.sqrt(setting.size / (8 * setting.noise))


def convex_coordinate_rate(setting: CoordinateSetting, radius: float) -> float:
    """sqrt(p) R_M |L|_{M^-1} / (n epsilon) ("Convex"); the bound at `best_inner` is 6 sqrt(2 log(1/delta)) of it."""
    return math.sqrt(setting.size) * radius / setting.signal


def printed_strong_bound(setting: CoordinateSetting, gap: float, strength: float, loops: int) -> float:
    """(F(w^0) - F*) / (2 T) + 48 p T log(1/delta) |L|_{M^-1}^2 / (mu_M (n epsilon)^2) ("Strongly-Convex")."""
    return gap / (2 * loops) + 48 * setting.size * loops * setting.noise / strength


def strong_coordinate_bound(setting: CoordinateSetting, gap: float, strength: float, loops: int) -> float:
    """(F(w^0) - F*) / 2^T + 48 p T (1 + 1/mu_M) log(1/delta) |L|_{M^-1}^2 / (n epsilon)^2, K as `inner_for`.

    Each loop halves the error and adds its noise; only so is the bound of the order that is printed beside it.
    """
    return gap * 0.5**loops + 48 * setting.size * loops * (1 + 1 / strength) * setting.noise


def inner_for(setting: CoordinateSetting, strength: float) -> int:
    """K = 2 p (1 + 1/mu_M), what K = O~(p / mu_M) has to be for a loop to halve the error ("Strongly-Convex")."""
    return math.ceil(2 * setting.size * (1 + 1 / strength))


def strong_coordinate_rate(setting: CoordinateSetting, strength: float) -> float:
    """(p / mu_M) |L|_{M^-1}^2 / (n epsilon)^2 ("Strongly-Convex")."""
    return setting.size / (strength * setting.signal**2)


def convex_lower_rate(setting: CoordinateSetting, optimum: Vector) -> float:
    """sqrt(p) |w*|_2 |L|_2 / (n epsilon) ("Lower Bounds", convex), up to constants and logarithms."""
    length = float(np.linalg.norm(optimum) * np.linalg.norm(setting.lipschitz))
    return math.sqrt(setting.size) * length / (setting.records * setting.epsilon)


def strong_lower_rate(setting: CoordinateSetting, strength: float) -> float:
    """(p / mu) |L|_2^2 / (n epsilon)^2 ("Lower Bounds", strongly convex), up to constants and logarithms.

    Printed with mu = mu_M, which does not change with the units of a coordinate while |L|_2 does: it is false. With mu
    of strong convexity in |.|_2 both change alike.
    """
    square = float(np.sum(setting.lipschitz**2))
    return setting.size * square / (strength * (setting.records * setting.epsilon) ** 2)


def least_share(lipschitz: Vector) -> float:
    """The least, over |S| >= floor(p / 75), of sum_{j in S} L_j^2 / |L|^2 ("Lower Bounds"); 0 for p < 75."""
    squares = np.sort(lipschitz**2)
    return float(squares[: len(squares) // 75].sum() / squares.sum())


def clip_for(length: float, curvatures: Vector, largest: float) -> float:
    """C sqrt(kappa / tr M): the option `clip` for the poster's C_j = sqrt(M_j / tr M) C ("Coordinate-wise Clipping").

    For `cd` has C_j = clip sqrt(M_j / kappa), kappa (`largest`) the largest curvature of the loss; C and M are in the
    units of the prepared columns and labels. Then |(C_j)|_2 = C, and |(C_j)|_{M^-1} = C sqrt(p / tr M).
    """
    return length * math.sqrt(largest / float(curvatures.sum()))


def laplace_epsilon(features: int, epsilon: float, delta: float, mu: float = 0.0) -> float:
    """The true epsilon of M_j + Lap(B_j / (n epsilon)) for j = 1 ... p together, beside Gaussian releases of cost mu.

    Replacing a record moves every squared entry by up to B_j: p Laplace releases of epsilon each, p epsilon in all if
    delta = 0 ("Estimating Constants Privately"). Their privacy loss distribution is composed on a pessimistic grid.
    """
    from dp_accounting import GaussianDpEvent, LaplaceDpEvent
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(value_discretization_interval=1e-3 * max(1.0, features * epsilon / 500))
    accountant.compose(LaplaceDpEvent(1 / epsilon), features)
    if mu > 0:
        accountant.compose(GaussianDpEvent(1 / mu))
    found = float(accountant.get_epsilon(delta))
    return min(found, features * epsilon) if mu == 0 else found
