"""Lou and Cheung (2018): Table 1's rates, Theorem 1's rho, and what Section "Analysis" says of Algorithm 2.

The rates of Table 1's last column are `bcfw.theorem_bound`. Table 2 and eq. 16 are O(.): here the constant is 1. The
scan is damaged there, so they are a reading, with T at which both terms of Theorem 1 are of one order as the check.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import bisect
from scipy.stats import binom


def elementary_rate(t: float, curvature: float) -> float:
    """2 C_f / (t + 2) from round 1 on (Jaggi 2013; Table 1, row 1): without h_0 = f(x_0) - min f, which eq. 11 has."""
    return 2 * curvature / (t + 2)


def serial_rate(t: float, gap0: float, product: float, blocks: int) -> float:
    """2 d (C_prod + h_0) / (t + 2 d), C_prod the sum of the C_f^i of eq. 2 (Lacoste-Julien et al. 2013; row 2)."""
    return 2 * blocks * (product + gap0) / (t + 2 * blocks)


def nice_rate(t: float, gap0: float, mean: float, blocks: int, tau: int) -> float:
    """2 d (d C^tau + h_0) / (tau^2 t + 2 d), C^tau the expected set curvature (Wang et al. 2016; Table 1, row 3).

    False: a step of 2 d tau / (tau^2 t + 2 d) begins above 1, and a linear f falls by no more than 1 - tau/d a round.
    """
    return 2 * blocks * (blocks * mean + gap0) / (tau**2 * t + 2 * blocks)


def printed_rho(diameter: float, drawn: float, rho_gradient: float, rho_oracle: float) -> float:
    """(D_M + |T|) rho_g + |T| rho_l of Theorem 1, D_M the diameter of M and |T| the most blocks of a round.

    False for Euclidean diameters: errors add up to sum_i p_i D_i rho_g, which many wide blocks make larger
    (`Inexact.rho`). It holds if D_M is the sum of the blocks' diameters; the paper names no norm.
    """
    return (diameter + drawn) * rho_gradient + drawn * rho_oracle


@dataclass(frozen=True)
class Sparse:
    """A problem (12) for Algorithm 2: n people, d columns at K parties, tau candidates, the radius eta.

    A column has at most nnz `entries` that are not 0; G bounds slopes, C is the expected curvature, s(J) `leading`.
    """

    people: int
    columns: int
    parties: int
    candidates: int
    radius: float
    entries: int
    slope: float
    curvature: float
    leading: float
    epsilon: float
    delta: float

    @property
    def rate(self) -> float:
        """The sampling rate p = K tau / d."""
        return self.parties * self.candidates / self.columns

    def index_noise(self, rounds: float) -> float:
        """The Laplace scale b = (2 G eta / (K n)) sqrt(2 T log(1 / (delta / 2))) / ((epsilon / 2) / 2) (part A)."""
        root = math.sqrt(2 * rounds * math.log(2 / self.delta))
        return 2 * self.slope * self.radius / (self.parties * self.people) * root / (self.epsilon / 4)

    def feature_noise(self, rounds: float) -> float:
        """The Gaussian pi = s(J) sqrt(K T) sqrt(2 (ln(1 / delta) + epsilon / 2)) / (epsilon / 2) (part B)."""
        half = self.epsilon / 2
        return self.leading * math.sqrt(2 * self.parties * rounds * (math.log(1 / self.delta) + half)) / half

    def gradient_constant(self) -> float:
        """C_g = (K eta nnz + K^1.5 sqrt(nnz) s(J)^2) sqrt(log(1/delta) + epsilon) / p_min (Table 2)."""
        K, nnz = self.parties, self.entries
        inner = K * self.radius * nnz + K * math.sqrt(K * nnz) * self.leading**2
        return inner / self.rate * math.sqrt(math.log(1 / self.delta) + self.epsilon)

    def oracle_constant(self) -> float:
        """C_l = 2 G eta sqrt(32 log(1 / (delta / 2))) (Table 2)."""
        return 2 * self.slope * self.radius * math.sqrt(32 * math.log(2 / self.delta))

    def tolerance(self, rounds: float) -> float:
        """gamma_T C / 2, gamma_T = 2 / (p T + 2), which rho_g and rho_l multiply (eqs. 4 and 5)."""
        return self.curvature / (self.rate * rounds + 2)

    def gradient_inexactness(self, rounds: float) -> float:
        """rho_g = C_g sqrt(T) / ((2 eta + K tau) n epsilon C gamma_T) (Table 2).

        Where 2 eta + K tau stands is a reading: below, (D_M + |T|) rho_g of Theorem 1 is what eq. 16 has of C_g.
        """
        allowed = (2 * self.radius + self.parties * self.candidates) * self.people * self.epsilon
        return self.gradient_constant() * math.sqrt(rounds) / (allowed * 2 * self.tolerance(rounds))

    def oracle_inexactness(self, rounds: float) -> float:
        """rho_l = C_l sqrt(T) log(2 G eta K tau T) / (K tau n epsilon C gamma_T) (Table 2; the scan hides a letter)."""
        drawn = self.parties * self.candidates
        log = math.log(2 * self.slope * self.radius * drawn * rounds)
        allowed = drawn * self.people * self.epsilon * 2 * self.tolerance(rounds)
        return self.oracle_constant() * math.sqrt(rounds) * log / allowed

    def rounds(self) -> float:
        """T = (C n epsilon / (C_g + C_l))^(2/3) (Theorem 3): a design cannot follow it, since nnz is private."""
        constants = self.gradient_constant() + self.oracle_constant()
        return float((self.curvature * self.people * self.epsilon / constants) ** (2 / 3))

    def excess(self) -> float:
        """((C_g + C_l)^2 C)^(1/3) log(2 G eta K n) / (p^2 (n epsilon)^(2/3)) (Theorem 3, eq. 16).

        False for problem (12) as epsilon goes to infinity, where this goes to 0: the point is in the product of K
        balls of radius eta / K, and need not come near. With dense columns it does not go to 0 in n, as nnz grows; with
        sparse ones slower than printed, as s(J)^2 in C_g is about n / m.
        """
        constants = (self.gradient_constant() + self.oracle_constant()) ** 2 * self.curvature
        log = math.log(2 * self.slope * self.radius * self.parties * self.people)
        return float(constants ** (1 / 3) * log / (self.rate**2 * (self.people * self.epsilon) ** (2 / 3)))


def sketch_size(people: int, epsilon: float, zeta: float) -> float:
    """Numbers of a feature: m = zeta^-2 log(sqrt T), T = (n epsilon)^(2/3) (part B)."""
    return math.log((people * epsilon) ** (1 / 3)) / zeta**2


def uplink_numbers(people: int, epsilon: float, parties: int, zeta: float) -> float:
    """K T (1 + m): O(zeta^-2 log((n epsilon)^(1/3)) K (n epsilon)^(2/3)) (Corollary 1)."""
    return float(parties * (people * epsilon) ** (2 / 3) * (1 + sketch_size(people, epsilon, zeta)))


def one_shot_numbers(people: int, size: int) -> float:
    """The n r log r of r numbers for each person (Remark 2, of Heinze-Deml et al. 2017)."""
    return people * size * math.log(size)


def choices_epsilon(scale: float, choices: int, delta: float) -> float:
    """The exact epsilon of so many noisy maxima of two candidates whose scores a record turns from +-1 to -+1.

    A lower bound of any proof for Algorithm 2's K T choices (Theorem 2), `scale` being n b / G. Each candidate is
    chosen with probability p or 1 - p, so their numbers are binomial.
    """
    p = 1 - (1 + 1 / scale) * math.exp(-2 / scale) / 2
    k = np.arange(choices + 1)
    one, two = binom.pmf(k, choices, p), binom.pmf(k, choices, 1 - p)
    return float(bisect(lambda e: np.maximum(one - np.exp(e) * two, 0.0).sum() - delta, 0.0, 700.0))
