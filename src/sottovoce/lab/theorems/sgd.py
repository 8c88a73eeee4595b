"""The multi-party SGD write-up: Lemmas 1 and 2, Theorems 1 to 4 and the bounds between.

Constants of Theorem 2 are those of the theorem on last iterates that its reference [1] uses (Shamir and Zhang 2013).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import expit
from scipy.stats import binom


@dataclass(frozen=True)
class Agents:
    """n records of p features with m agents; every loss is L-Lipschitz and Delta-strongly convex on C.

    `diameter` is |C|. The objective is the sum of the losses: n L-Lipschitz and n Delta-strongly convex.
    """

    records: int
    features: int
    agents: int = 1
    lipschitz: float = 1.0
    convexity: float = 0.0
    diameter: float = math.inf

    def gradient_square(self, std: float, noises: int = 1) -> float:
        """n^2 L^2 + k p sigma^2: the most that E |G|^2 is, with k noises in the sum."""
        return (self.records * self.lipschitz) ** 2 + noises * self.features * std**2

    def growth(self, epsilon: float, delta: float) -> tuple[float, float]:
        """L |C| log^2(A) sqrt(p) / epsilon (eq. 9), L^2 log^3(A) p / (n Delta epsilon^2) (eq. 10), A = 1.25 n^2/delta.

        Theorem 2 says that the excess grows no faster; the second is infinite without Delta.
        """
        n, p, log = self.records, self.features, math.log(1.25 * self.records**2 / delta)
        strong = (self.lipschitz**2 * log**3 * p, n * self.convexity * epsilon**2)
        convex = self.lipschitz * self.diameter * log**2 * math.sqrt(p) / epsilon
        return convex, strong[0] / strong[1] if strong[1] else math.inf

    def last_iterate(self, std: float, rounds: int, noises: int = 1) -> tuple[float, float]:
        """2 |C| G (2 + ln T)/sqrt(T) for the steps |C|/(G sqrt t), 17 G^2 (1 + ln T)/(n Delta T) for 1/(n Delta t).

        G^2 is `gradient_square`. Of the last of T iterates: with T = n^2 they are Theorem 2 (eq. 9, 10) with constants,
        and with a noise for each agent the second is what is proved in place of Theorem 4.
        """
        square, strong = self.gradient_square(std, noises), self.records * self.convexity * rounds
        convex = 2 * self.diameter * math.sqrt(square / rounds) * (2 + math.log(rounds))
        return convex, 17 * square * (1 + math.log(rounds)) / strong if strong else math.inf

    def sgd2(self, std: float, rounds: int) -> float:
        """8 m p (sigma^2 + n^2 L^2) / (n Delta T): Theorem 4, eq. 11."""
        square = std**2 + (self.records * self.lipschitz) ** 2
        return 8 * self.agents * self.features * square / (self.records * self.convexity * rounds)


def strong_composition(epsilon: float, delta: float, times: int, slack: float) -> tuple[float, float]:
    """min(k e, k e^2 + e sqrt(2 k log(1/delta'))), 1 - (1 - delta)^k (1 - delta'): Lemma 1, eq. 7."""
    root = epsilon * math.sqrt(2 * times * math.log(1 / slack))
    total = -math.expm1(times * math.log1p(-delta) + math.log1p(-slack))
    return min(times * epsilon, times * epsilon**2 + root), total


def composed_coins(epsilon: float, times: int, total: float) -> float:
    """The true delta at `total` of the worst k epsilon-private mechanisms, k answers by a coin: Lemma 1's measure."""
    heads = np.arange(times + 1)
    spare = np.minimum(total - (2 * heads - times) * epsilon, 0.0)
    return float(np.sum(binom.pmf(heads, times, expit(epsilon)) * -np.expm1(spare)))


def gaussian_lemma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """sqrt(2 ln(1.25/delta)) SEN / epsilon, for epsilon below 1: Lemma 2, eq. 8."""
    return math.sqrt(2 * math.log(1.25 / delta)) * sensitivity / epsilon


def sgd1_noise(records: int, epsilon: float, delta: float) -> float:
    """4 n log(1.25 n^2/delta) / epsilon, in units of L: eq. 3."""
    return 4 * records * math.log(1.25 * records**2 / delta) / epsilon


def sgd1_composed(records: int, epsilon: float, delta: float) -> tuple[float, float]:
    """(e (e/log(1/delta) + sqrt(2/3)), 1 - (1 - delta/n^2)^(n^2) (1 - delta^(1/3))): Theorem 1's proof, eq. 5 and 6.

    Lemma 1 of n^2 rounds of (e / (n sqrt(log 1/delta)), delta/n^2) with delta' = delta^(1/3). The second is at least
    delta^(1/3), where eq. 6 says at most delta; and against the coordinator a round has no factor 1/n.
    """
    share = epsilon / (records * math.sqrt(math.log(1 / delta)))
    return strong_composition(share, delta / records**2, records**2, delta ** (1 / 3))


def sgd2_share(epsilon: float, delta: float, rounds: int) -> tuple[float, float]:
    """(epsilon / sqrt(T log(1/delta)), delta / T): what a round of SGD2 may cost, Theorem 3."""
    return epsilon / math.sqrt(rounds * math.log(1 / delta)), delta / rounds


def sgd2_composed(epsilon: float, delta: float, rounds: int) -> tuple[float, float]:
    """(epsilon (sqrt 2 + epsilon / log(1/delta)), about 2 delta): Lemma 1 of T rounds of SGD2 with delta' = delta."""
    return strong_composition(*sgd2_share(epsilon, delta, rounds), rounds, delta)


def descent_bound(distance: float, step: float, std: float, rounds: int) -> float:
    """|theta_0 - theta*|^2 / (2 k eta) + eta sigma^2: eq. 12, of k constant steps."""
    return distance**2 / (2 * rounds * step) + step * std**2
