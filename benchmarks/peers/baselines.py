"""Baselines with accounting of their own: noisy gradient descent, AdaSSP, objective perturbation, the optimum.

Rows have norm 1 at most, `extended` by a constant inside that norm; labels are -1 and 1, or in [-1, 1]. Guarantees are
zero-out: a record is blanked, N stays. The noise is that of NumPy in floating point: for comparison, not for use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg as la
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, cg
from scipy.special import expit

from sottovoce.data.block import is_sparse
from sottovoce.privacy.calibration import mu_for

Array = NDArray[np.float64]

CONSTANT = 0.25  # of the intercept's column, before the row is brought back to norm 1
WIDE = 2000  # columns from which no matrix of d x d numbers is made
SHRINK = 1 / math.sqrt(1 + CONSTANT**2)


def extended(X: Any) -> Any:
    """(x, 1/4) / sqrt(1 + 1/16): norm at most 1 again."""
    constant = np.full((X.shape[0], 1), CONSTANT)
    if is_sparse(X):
        return sp.hstack([X, sp.csr_matrix(constant)], format="csr") * SHRINK
    return np.hstack([X, constant]) * SHRINK


def model(weights: Array) -> tuple[Array, float]:
    """(coef, intercept) for rows that are not extended."""
    return weights[:-1] * SHRINK, float(weights[-1]) * SHRINK * CONSTANT


@dataclass(frozen=True)
class Loss:
    """The squared loss (s - y)^2 / 2 or the logistic one log(1 + exp(-y s)), as a function of the score s."""

    regression: bool

    @property
    def smoothness(self) -> float:
        """The largest second derivative."""
        return 1.0 if self.regression else 0.25

    def value(self, s: Array, y: Array) -> Array:
        return np.asarray((s - y) ** 2 / 2 if self.regression else np.logaddexp(0, -y * s))

    def slope(self, s: Array, y: Array) -> Array:
        return s - y if self.regression else -y * expit(-y * s)

    def curvature(self, s: Array) -> Array:
        if self.regression:
            return np.ones_like(s)
        p = expit(s)
        return np.asarray(p * (1 - p))


def gradient_sum(X: Any, y: Array, w: Array, loss: Loss, clip: float | Array) -> Array:
    """sum_i clip(l'(x_i'w, y_i) x_i): blanking a record moves it by at most `clip`.

    For rows of norm at most 1 a factor |l'| <= clip suffices, so it is cut instead of the vector: never more than the
    vector's clip would leave. Several w are columns, with a clip each and the labels as a column.
    """
    return np.asarray(X.T @ np.clip(loss.slope(X @ w, y), -clip, clip))


def noisy_gradient_descent(
    X: Any,
    y: Array,
    loss: Loss,
    epsilon: float,
    delta: float,
    generator: np.random.Generator,
    *,
    rounds: int = 50,
    step: float = 1.0,
    clip: float = 1.0,
) -> Array:
    """w <- w - (step / beta) (sum of clipped gradients + N(0, sigma^2)) / N, beta the loss's smoothness; the last w.

    Guarantee: (epsilon, delta), zero-out: T releases of sensitivity clip with sigma = clip sqrt(T) / mu cost mu.
    """
    column = {"steps": np.array([step]), "clips": np.array([clip])}
    return noisy_gradient_descents(X, y, loss, epsilon, delta, [generator], rounds=rounds, **column)[:, 0]


def noisy_gradient_descents(
    X: Any,
    y: Array,
    loss: Loss,
    epsilon: float,
    delta: float,
    generators: list[np.random.Generator],
    *,
    rounds: int,
    steps: Array,
    clips: Array,
) -> Array:
    """Fits side by side, each a column with a generator, a step and a clip of its own: one product serves them all."""
    sigma = clips * math.sqrt(rounds) / mu_for(epsilon, delta)
    w, labels = np.zeros((X.shape[1], len(generators))), y[:, None]
    for _ in range(rounds):
        noise = np.column_stack([generator.standard_normal(len(w)) for generator in generators])
        noisy = gradient_sum(X, labels, w, loss, clips) + sigma * noise
        w -= steps / loss.smoothness * noisy / X.shape[0]
    return w


def moments(X: Any, y: Array) -> tuple[float, Array, Array]:
    """(smallest eigenvalue of X'X, X'X, X'y): each moves by at most 1 (Frobenius, Euclid) when a record is blanked."""
    gram = X.T @ X
    gram = np.asarray(gram.toarray() if is_sparse(gram) else gram)
    smallest = float(la.eigvalsh(gram, subset_by_index=[0, 0])[0])
    return smallest, gram, np.asarray(X.T @ y).ravel()


def ada_ssp(
    X: Any,
    y: Array,
    epsilon: float,
    delta: float,
    generator: np.random.Generator,
    *,
    rounds: int = 1,
    failure: float = 0.05,
) -> Array:
    """(X'X + lam I + noise)^{-1} (X'y + noise), lam from a noisy smallest eigenvalue (Wang 2018, algorithm 2).

    lam = max(0, sigma sqrt(d log(2 d^2 / failure)) - smallest~), smallest~ = max(0, smallest + sigma Z - sigma
    sqrt(log(6 / delta))). More `rounds` are boosting (Tang et al. 2023): fits are added up, each on what the others
    leave of the labels, cut to [-1, 1], with noise of its own and the same noisy matrix.
    Guarantee: (epsilon, delta), zero-out: rounds + 2 releases of sensitivity 1 with sigma = sqrt(rounds + 2) / mu cost
    mu. (Wang: three times epsilon / 3 by the classical bound, which is more noise for the same guarantee.)
    """
    d, sigma = X.shape[1], math.sqrt(rounds + 2) / mu_for(epsilon, delta)
    smallest, gram, _ = moments(X, y)
    smallest = max(0.0, smallest + sigma * generator.standard_normal() - sigma * math.sqrt(math.log(6 / delta)))
    lam = max(0.0, sigma * math.sqrt(d * math.log(2 * d * d / failure)) - smallest)
    noise = np.triu(sigma * generator.standard_normal((d, d)))
    noise += np.triu(noise, 1).T
    w = np.zeros(d)
    for _ in range(rounds):
        left = np.asarray(X.T @ np.clip(y - X @ w, -1, 1)).ravel() + sigma * generator.standard_normal(d)
        w += np.linalg.lstsq(gram + noise + lam * np.eye(d), left)[0]
    return w


def perturbation(epsilon: float, delta: float, *, weight: float = 1.0) -> tuple[float, float]:
    """(lam, sigma) of objective perturbation for the logistic loss (|l'| <= 1, l'' <= beta = 1/4, |x| <= 1).

    lam = weight 2 beta / epsilon, with `weight` >= 1; 1 is the published choice.
    sigma = 1 / mu_for(epsilon - log(1 + beta / lam), delta / 2).

    Why: with b(w) = -(sum of gradients + lam w) the density of w is phi(b(w)) det(H). A record more changes b by l' x,
    whose direction is fixed, and det(H) by a factor from 1 to 1 + beta / lam. So the privacy loss is at most
    log(1 + beta / lam) + mu |Z| + mu^2 / 2 with Z standard normal, mu = 1 / sigma, and |Z| costs twice the delta of Z.
    (Kifer, Smith and Thakurta 2012 for lam; the noise is the smaller one that Redberg, Koskela and Wang 2023 prove.)
    """
    beta = 0.25
    lam = weight * 2 * beta / epsilon
    return lam, 1 / mu_for(epsilon - math.log1p(beta / lam), delta / 2)


def objective_perturbation(
    X: Any, y: Array, epsilon: float, delta: float, generator: np.random.Generator, *, weight: float = 1.0
) -> Array:
    """argmin sum_i log(1 + exp(-y_i x_i'w)) + lam/2 |w|^2 + b'w, b ~ N(0, sigma^2 I).

    Guarantee: (epsilon, delta), zero-out, of the exact minimum. It is found to 1e-8 of the gradient's norm.
    """
    lam, sigma = perturbation(epsilon, delta, weight=weight)
    return minimum(X, y, Loss(regression=False), lam, sigma * generator.standard_normal(X.shape[1]))


def optimum(X: Any, y: Array, loss: Loss) -> Array:
    """Without privacy: argmin (1/N) sum loss + 1e-6/2 |w|^2, the penalty there to have one minimum."""
    return minimum(X, y, loss, 1e-6 * X.shape[0], np.zeros(X.shape[1]))


def minimum(X: Any, y: Array, loss: Loss, lam: float, b: Array) -> Array:
    """argmin sum loss + lam/2 |w|^2 + b'w, by Newton steps that are halved until the objective decreases enough."""

    def objective(w: Array) -> float:
        return float(loss.value(X @ w, y).sum() + lam / 2 * (w @ w) + b @ w)

    w = np.zeros(X.shape[1])
    for _ in range(200):
        s = X @ w
        gradient = np.asarray(X.T @ loss.slope(s, y)).ravel() + lam * w + b
        if np.linalg.norm(gradient) <= 1e-8:
            break
        direction = newton_direction(X, loss.curvature(s), lam, gradient)
        promised, now, step = float(gradient @ direction), objective(w), 1.0
        rounding = 1e-13 * max(1.0, abs(now))  # of a sum over the records: a decrease below it is not seen
        while objective(w + step * direction) > now + 1e-4 * step * promised + rounding and step > 1e-12:
            step /= 2
        w = w + step * direction
        if -promised <= 1e-18 * max(1.0, abs(now)):
            break
    return w


def newton_direction(X: Any, curvature: Array, lam: float, gradient: Array) -> Array:
    """-(X' diag(curvature) X + lam I)^{-1} gradient; above WIDE columns by conjugate gradients, without the matrix."""
    d = X.shape[1]
    if d > WIDE:
        product = LinearOperator((d, d), matvec=lambda v: X.T @ (curvature * (X @ v)) + lam * v, dtype=np.float64)
        return np.asarray(cg(product, -gradient, rtol=1e-6)[0])
    weighted = X.multiply(curvature[:, None]).tocsr() if is_sparse(X) else X * curvature[:, None]
    hessian = X.T @ weighted
    hessian = np.asarray(hessian.toarray() if is_sparse(hessian) else hessian) + lam * np.eye(d)
    return np.asarray(la.solve(hessian, -gradient, assume_a="pos"))
