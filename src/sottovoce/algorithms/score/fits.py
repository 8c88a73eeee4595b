"""A party's own fit and the scale of its scores: functions of released values and of public numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from sottovoce.algorithms.base import Array
from sottovoce.algorithms.newton.private import RULES, NewtonDescent
from sottovoce.losses import Loss
from sottovoce.penalties.base import ConstraintSet, ScaledRegulariser
from sottovoce.plan.plan import Plan
from sottovoce.queries.sums import GramMatrix

TAIL = 2.0  # standard deviations of the noise beyond which a noisy number is cut before it is used
WIDE = 4.0  # standard deviations to which a score is cut for its mean and variance
NARROW = 1.5  # and for what is sent
LABEL_DAMPING = 10.0  # how much more a fit to noisy labels is damped than by the rule for noisy gradients


def clip_of(plan: Plan, query: str) -> float:
    """Where a number of size at most 1 is cut once it has the noise of a release."""
    return 1.0 + TAIL * plan.noise_of(query)


class OwnFit:
    """The private Newton on one party's columns, then the mean and the deviation of its scores s."""

    def __init__(self, plan: Plan, party: str, triangle: Array) -> None:
        self.plan, self.part = plan, plan.part(party)
        recipe, whole = self.part.preparation, plan.scaled_regulariser
        gram = GramMatrix(recipe.dimension).matrix(triangle)
        half = plan.preparation.label_scale[1]
        regulariser = ScaledRegulariser(whole.inner, recipe.features, recipe.scale * half, whole.objective)
        damping = max(self._damping(), 1e-9 * float(np.trace(gram)))  # without noise a trifle
        self.descent = NewtonDescent(gram, damping, plan, regulariser, plan.rounds // 2)
        self.mean, self.deviation = 0.0, 1.0

    def _damping(self) -> float:
        """Public numbers: the rule of `newton`, and where the labels carry noise, room for that."""
        plan, d, loss = self.plan, self.part.preparation.dimension, self.plan.scaled_loss
        rule, label_noise = RULES[loss.kind], plan.noise_of("labels")
        damping = rule.damping(d, plan.records, plan.rounds, plan.noise_of("gram"), plan.noise_of("gradient"))
        if self.part.preparation.labelled:
            return damping
        moments = clip_of(plan, "labels") * plan.noise_of("pull") * d
        noise = max(LABEL_DAMPING * label_noise * math.sqrt(plan.records * d), moments)
        return max(damping, loss.label_slope * noise / rule.per_round)

    def guess_scale(self) -> None:
        """Mean and deviation as the Gram matrix tells, the second with room for its noise."""
        fit, weights, records = self.descent, self.descent.mean, self.plan.records
        if self.part.constant:
            last = fit.vectors @ (fit.values * (fit.vectors.T @ weights))
            self.mean = float(last[-1]) / (records * self.part.preparation.intercept_entry)
        least = 1e-12 if self.plan.private else 1e-200  # without noise the unit of the labels decides nothing
        room = self.plan.noise_of("gram") * float(weights @ weights) / records
        self.deviation = math.sqrt(max(fit.mean_square(weights) - self.mean**2, 0.0) + room + least)

    def measure_scale(self, sums: Array) -> None:
        """Mean and deviation from (sum z^2, sum z), z = (s - mean) / (WIDE deviation) by the guess.

        Without an intercept nothing can be centred: the mean counts as 0.
        """
        plan, width = self.plan, WIDE * self.deviation
        square, mean = sums / plan.records
        if not plan.fit_intercept:
            mean = 0.0
        variance = max(square - mean**2, 2.0 * plan.noise_of("moments") / plan.records, 1e-6)
        self.mean, self.deviation = self.mean + width * float(mean), width * math.sqrt(variance)

    def standardised(self, deviations: float) -> Array:
        """The weights of (s - mean) / (that many deviations)."""
        scale = deviations * self.deviation
        weights = self.descent.mean / scale
        if self.part.constant:
            weights[-1] -= self.mean / (scale * self.part.preparation.intercept_entry)
        return weights


def join_fits(plan: Plan, fits: Sequence[OwnFit], factors: Array, intercept: float) -> Array:
    """sum_m factor_m s_m + intercept as weights of rows that are prepared whole; a ball bounds them too."""
    found = np.zeros(plan.dimension)
    for factor, fit in zip(factors, fits, strict=True):
        part, own = fit.part, factor * fit.descent.mean
        scale = part.preparation.scale / plan.preparation.scale
        found[part.start : part.stop] = own[: part.stop - part.start] * scale
        if part.constant:
            intercept += float(own[-1]) * part.preparation.intercept_entry
    if plan.fit_intercept:
        found[plan.features] = intercept / plan.preparation.intercept_entry
    regulariser = plan.scaled_regulariser
    return regulariser.prox(found, 1.0) if isinstance(regulariser.inner, ConstraintSet) else found


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
