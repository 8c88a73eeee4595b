"""What Damaskinos et al. (2021) prove of DP-SCD, as printed, and what is true where that is another number.

N records of norm 1, M features, mini-batches of L, steps cut to C, T rounds; losses are 1/mu-smooth, the penalty is
(lambda/2) |theta|^2. S is the dual suboptimality, F*(alpha) - min F* (eq. 3).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Vector = NDArray[np.float64]


def dual_sensitivity(clip: float) -> float:
    """S_f <= sqrt 2 C of the steps of the duals and of v (Lemma 1): zero-out. A replaced record moves twice as much."""
    return math.sqrt(2) * clip


def correlated_sensitivity(clip: float, lot: int) -> float:
    """S_f <= 2 C sqrt(L (L + 1)), of SeqDP-SCD (section 5) and of primal DP-SCD (section 3.2)."""
    return 2 * clip * math.sqrt(lot * (lot + 1))


def order_of_sigma(epsilon: float, delta: float, rate: float, rounds: int) -> float:
    """Sigma is of the order of q sqrt(T log(1/delta)) / epsilon (Theorem 1); the constant is not printed."""
    return rate * math.sqrt(rounds * math.log(1 / delta)) / epsilon


def printed_gap(v: Vector, theta: Vector, ridge: float) -> float:
    """<X alpha, theta> + (lambda/2) |theta|^2 + (lambda/2) |theta|^2, the second line of eq. 4: not the gap."""
    return float(v @ theta + ridge * theta @ theta)


def share_of_update(mu: float, ridge: float, records: int, lot: int) -> float:
    """E S falls by mu lambda L / (mu lambda N + L) of it at least in an update (Lemma 2, eq. 9).

    It does where v = X alpha. With noise in v it need not: at the optimum any such update is away from it.
    """
    return mu * ridge * lot / (mu * ridge * records + lot)


def lost_by_scaling(before: float, unscaled: float, scaled: float) -> float:
    """The least kappa with S(scaled) <= (1 - kappa) S(unscaled) + kappa S(before) (eq. 10)."""
    return max(0.0, (scaled - unscaled) / (before - unscaled))


def most_lost_by_scaling(steps: ArrayLike, clip: float) -> float:
    """1 - min_j C / max(C, |zeta_j|): a kappa with which (1 - kappa) times the share of eq. 9 holds for cut steps.

    Eq. 8 is convex in each zeta_j by itself. Convexity of S alone, which the paper names, is not enough: steps are cut
    one by one, so the cut update is not between the full one and none.
    """
    return 1.0 - float(np.min(clip / np.maximum(clip, np.abs(steps))))


def printed_increase(ridge: float, records: int, lot: int, variance: float) -> float:
    """L sigma^2 / (2 lambda N^2) >= E |S(alpha + eta) - S(alpha)| (Lemma 3, eq. 11): false, see `ridge_increase`."""
    return lot * variance / (2 * ridge * records**2)


def ridge_increase(ridge: float, records: int, lot: int, variance: float) -> float:
    """E S(alpha + eta) - S(alpha) = (1 + lambda N) L v / (2 lambda N^2) for the squared loss, v the noise's variance.

    The printed proof leaves out the curvature of l*, 1/N. v is 2 C^2 sigma^2, not sigma^2. Of a loss with bounded
    slopes (logistic, SVM) l* is infinite outside an interval, and so is the increase.
    """
    return (1 + ridge * records) * printed_increase(ridge, records, lot, variance)


def least_lot(mu: float, ridge: float, records: int, kappa: float = 0.0) -> float:
    """The L that Theorem 2 needs to exceed, by L (2 (1 - kappa) mu lambda - 1) > mu lambda N; infinite where none does.

    The condition says that an update takes off more than half of S. L <= N needs mu lambda (1 - 2 kappa) > 1.
    """
    room = 2 * (1 - kappa) * mu * ridge - 1
    return mu * ridge * records / room if room > 0 else math.inf


def order_of_rounds(ridge: float, records: int, lot: int, epsilon: float, delta: float) -> float:
    """T is of the order of log(lambda N^4 epsilon^2 / (L^3 log(1/delta))) (Theorem 2), without its constant."""
    return math.log(ridge * records**4 * epsilon**2 / (lot**3 * math.log(1 / delta)))


def order_of_suboptimality(ridge: float, records: int, lot: int, epsilon: float, delta: float) -> float:
    """L^3 / (lambda N^4 epsilon^2) log(lambda N epsilon / L) log(1/delta) (Theorem 2, eq. 12), without its constant."""
    return lot**3 / (ridge * records**4 * epsilon**2) * math.log(ridge * records * epsilon / lot) * math.log(1 / delta)


def orders_of_utility(records: int, features: int, epsilon: float, lot: int) -> dict[str, float]:
    """The bounds of Table 1, without their constants."""
    usual = features / (records * epsilon) ** 2
    return {
        "output (Zhang et al. 2017): M / (N^2 epsilon^2)": usual,
        "objective (Chaudhuri et al. 2011): M / (N^2 epsilon^2)": usual,
        "update (Wang et al. 2017): M log(N) / (N^2 epsilon^2)": usual * math.log(records),
        "DP-SCD: L^3 log(N/L) / (N^4 epsilon^2)": lot**3 * math.log(records / lot) / (records**4 * epsilon**2),
    }


def excess_of_last_noise(features: int, ridge: float, records: int, std: float) -> float:
    """M std^2 / (2 lambda N^2) <= E F(theta) - min F: the noise of the last round in theta = v / (lambda N).

    It grows with M, unlike the printed bound of DP-SCD. F is lambda-strongly convex.
    """
    return features * std**2 / (2 * ridge * records**2)


@dataclass(frozen=True)
class RidgeDual:
    """F*(alpha) = (1/N) sum_i (alpha_i^2 / 2 - alpha_i y_i) + |X alpha|^2 / (2 lambda N^2): eq. 3 of ridge."""

    X: Vector  # a row of norm 1 for each record
    y: Vector
    ridge: float

    @classmethod
    def drawn(cls, records: int, features: int, ridge: float) -> RidgeDual:
        """Random rows, a linear label with noise."""
        rng = np.random.default_rng(0)
        X = rng.standard_normal((records, features))
        X /= np.linalg.norm(X, axis=1)[:, None]
        return cls(X, X @ rng.standard_normal(features) + 0.1 * rng.standard_normal(records), ridge)

    @functools.cached_property
    def best(self) -> Vector:
        scale = self.ridge * len(self.y)
        return np.asarray(np.linalg.solve(np.eye(len(self.y)) + self.X @ self.X.T / scale, self.y))

    def excess(self, duals: Vector) -> float:
        """S(alpha)."""
        apart, records = duals - self.best, len(self.y)
        return float(apart @ apart + np.sum((self.X.T @ apart) ** 2) / (self.ridge * records)) / (2 * records)

    def primal_excess(self, v: Vector) -> float:
        """F(theta) - min F at theta = v / (lambda N)."""
        apart = (v - self.X.T @ self.best) / (self.ridge * len(self.y))
        return float(np.mean((self.X @ apart) ** 2) + self.ridge * apart @ apart) / 2

    def stepped(self, duals: Vector, v: Vector, batch: Any, clip: float = math.inf, lot: int | None = None) -> Vector:
        """The duals after the update of a batch (eq. 8, step 8), v as it may be."""
        unit, rows, found = self.ridge * len(self.y), self.X[batch], duals.copy()
        steps = (self.y[batch] - duals[batch] - rows @ v / unit) / (1 + (lot or len(batch)) / unit)
        found[batch] += np.clip(steps, -clip, clip)
        return found

    def settled(self, lot: int, rounds: int, clip: float, std: float, rng: np.random.Generator) -> float:
        """The mean S(alpha) of 20 runs of `descend`."""
        return float(np.mean([self.excess(self.descend(lot, rounds, clip, std, rng)[0]) for _ in range(20)]))

    def descend(
        self, lot: int, rounds: int, clip: float, std: float, rng: np.random.Generator
    ) -> tuple[Vector, Vector]:
        """Alpha and v of Algorithm 1 with noise of this std on v and on the duals of the batch."""
        duals, v = np.zeros(len(self.y)), np.zeros(self.X.shape[1])
        for _ in range(rounds):
            batch = rng.choice(len(self.y), lot, replace=False)
            moved = self.stepped(duals, v, batch, clip)
            v = v + self.X.T @ (moved - duals) + std * rng.standard_normal(len(v))
            moved[batch] += std * rng.standard_normal(lot)
            duals = moved
        return duals, v
