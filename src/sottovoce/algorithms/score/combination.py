"""How much each party's score counts: correlations from noisy products, and the factors that follow from them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from sottovoce.algorithms.score.fits import NARROW
from sottovoce.losses import Loss
from sottovoce.plan.plan import Plan

Array = NDArray[np.float64]

PRIOR, SPREAD = 0.5, 1.0 / 12.0  # mean and variance of a correlation on which nothing is known: uniform on [0, 1]
FLOOR = 0.05  # of the eigenvalues of the correlations
NODES = np.linspace(-8.0, 8.0, 2001)
NORMAL = np.exp(-0.5 * NODES**2) / np.exp(-0.5 * NODES**2).sum()


class Correlations:
    """The correlations of the parties' scores, in the order of the parties, from the released products.

    `cut` is where the noisy scores were cut, and by which they were divided.
    """

    def __init__(self, plan: Plan, products: Sequence[Array], cut: float) -> None:
        self.plan, self.cut, self.records = plan, cut, plan.records
        self.noise = plan.noise_of("scores") ** 2 / plan.records  # of the mean of z t, over that of z^2
        self.squares = np.array([max(sums[0] / plan.records, 0.1 / NARROW**2) for sums in products])
        extra = (plan.noise_of("products") * cut / plan.records) ** 2
        matrix = np.eye(len(products))
        for m, sums in enumerate(products):
            for other, product in enumerate(sums[1:]):
                size = math.sqrt(self.squares[m] * self.squares[other])
                raw = min(max(product * cut / plan.records / size, -1.0), 1.0)
                error = (self.noise * self.squares[m] + extra) / size**2
                matrix[m, other] = matrix[other, m] = PRIOR + (raw - PRIOR) * SPREAD / (SPREAD + error)
        values, vectors = np.linalg.eigh(matrix)
        positive = (vectors * np.maximum(values, FLOOR)) @ vectors.T
        scale = np.sqrt(np.diag(positive))
        self.matrix: Array = positive / np.outer(scale, scale)

    def slopes(self, products: Array, label_slope: float) -> Array:
        """Estimates of cov(phi y, z_m) / deviation(z_m) of the scores that were sent; 0 within one standard error."""
        size = np.sqrt(self.squares[:-1])
        raw = np.maximum(label_slope * products * self.cut / self.records / size, 0.0)
        extra = (2.0 * self.plan.noise_of("slopes") * self.cut / self.records) ** 2
        error = label_slope**2 * (self.noise + extra) / size**2
        return np.asarray(raw * np.maximum(1.0 - error / np.maximum(raw**2, 1e-300), 0.0))


def expectations(loss: Loss, mean: float, variance: float) -> tuple[float, float]:
    """(E psi(u), E l''(u)) for a score u ~ N(mean, variance)."""
    u = mean + math.sqrt(variance) * NODES
    return float(NORMAL @ loss.slope_without_label(u)), float(NORMAL @ loss.curvature(u, np.ones_like(u)))


def combine(loss: Loss, slopes: Array, correlations: Array, target: float) -> tuple[Array, float]:
    """(alpha, middle): alpha >= 0 nearest to the solution of R alpha = slopes, and the mean score.

    The latter solves E psi(u) = target for u ~ N(middle, alpha'R alpha), by bisection.
    """
    root = np.linalg.cholesky(correlations)
    factors = nnls(root.T, np.linalg.solve(root, slopes))[0]
    variance = float(factors @ correlations @ factors)
    low, high = -40.0 - 10.0 * math.sqrt(variance), 40.0 + 10.0 * math.sqrt(variance)
    for _ in range(100):
        middle = (low + high) / 2
        if expectations(loss, middle, variance)[0] < target:
            low = middle
        else:
            high = middle
    return factors, (low + high) / 2
