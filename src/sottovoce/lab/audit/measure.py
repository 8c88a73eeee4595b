"""Lower bounds on what an attack achieves, from its own runs: nothing here believes a claim.

A game is played many times on either of two neighbours; a statistic of each transcript says how much it looks like the
first. A part of the runs chooses the threshold, the others count errors; Clopper-Pearson turns the counts into bounds
that fail with probability `alarm` at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri

from sottovoce.privacy.guarantee import missed_by

Array = NDArray[np.float64]
Measure = Literal["mu", "epsilon"]

ALARM = 1e-4  # a correct mechanism is accused with at most this probability
TAILS: Mapping[Measure, float] = {"mu": 0.15, "epsilon": 0.02}  # thresholds are quantiles of all runs between these
THRESHOLDS = 61
DELTAS = (1e-3, 0.01, 0.03, 0.07, 0.12, 0.2, 0.3, 0.4, 0.5, 0.65)
FLOOR = 0.01  # errors below it are not counted on: claims are compared between this and its complement
RIDGE = 1e-9  # of the largest variance, for the inverse of a covariance


@dataclass(frozen=True)
class Errors:
    """Upper bounds of the two errors of a threshold: taking the second for the first, and the first for the second."""

    false_positive: float
    false_negative: float


def most(count: int, runs: int, alarm: float) -> float:
    """The Clopper-Pearson upper bound of a probability of which `count` of `runs` were seen."""
    return 1.0 if count >= runs else float(betaincinv(count + 1, runs - count, 1 - alarm))


def errors_at(first: Array, second: Array, threshold: float, alarm: float) -> Errors:
    """Of the rule "the first, if the statistic is above the threshold"; each bound fails with alarm / 2."""
    return Errors(
        most(int(np.count_nonzero(second > threshold)), len(second), alarm / 2),
        most(int(np.count_nonzero(first <= threshold)), len(first), alarm / 2),
    )


def mu_of(errors: Errors) -> float:
    """The mu-GDP that these errors rule out: z(1 - FPR) - z(FNR)."""
    wrong, missed = (min(max(error, FLOOR), 1.0) for error in (errors.false_positive, errors.false_negative))
    if wrong >= 1.0 or missed >= 1.0:
        return 0.0
    return max(float(ndtri(1 - wrong) - ndtri(missed)), 0.0)


def mu_of_profile(epsilon_at: Callable[[float], float]) -> float:
    """The least mu that no test exceeds at errors above FLOOR if epsilon_at(delta) holds for every delta.

    Of false positives a these leave f(a) of false negatives at least, and mu = max_a z(1 - a) - z(f(a)).
    """
    wrong = np.linspace(FLOOR, 1 - FLOOR, 393)
    missed = np.maximum(missed_by(epsilon_at, wrong, DELTAS), FLOOR)
    return float(np.max(ndtri(1 - wrong) - ndtri(missed)))


def epsilon_of_errors(errors: Errors, delta: float) -> float:
    """The epsilon that these errors rule out at delta, in the better of both directions."""
    found = 0.0
    wrong, missed = errors.false_positive, errors.false_negative
    for false, lost in ((wrong, missed), (missed, wrong)):
        right = 1 - lost - delta
        if right > 0:
            found = max(found, math.log(right / false))
    return found


def lower_bound(first: Array, second: Array, measure: Measure, delta: float, alarm: float = ALARM) -> float:
    """The largest mu, or epsilon at delta, that the runs rule out with confidence 1 - alarm.

    A row for each run: one number, or several, which are then projected on the direction that tells the first runs
    apart best. They choose the threshold too: a quarter of the runs, of several numbers half; the others are counted.
    """

    def value(errors: Errors) -> float:
        return mu_of(errors) if measure == "mu" else epsilon_of_errors(errors, delta)

    part = len(first) // (4 if first.ndim == 1 else 2)
    if first.ndim > 1:
        direction = discriminant(first[:part], second[:part])
        first, second = first @ direction, second @ direction
    tail = TAILS[measure]
    chosen = np.quantile(np.concatenate([first[:part], second[:part]]), np.linspace(tail, 1 - tail, THRESHOLDS))
    best = max(chosen, key=lambda threshold: value(errors_at(first[:part], second[:part], float(threshold), alarm)))
    return value(errors_at(first[part:], second[part:], float(best), alarm))


def discriminant(first: Array, second: Array) -> Array:
    """Fisher's: the inverse of the common covariance times the difference of the means."""
    spread = np.atleast_2d(np.cov(first.T) + np.cov(second.T))
    spread += RIDGE * max(float(np.trace(spread)), 1e-300) * np.eye(len(spread))
    return np.asarray(np.linalg.solve(spread, first.mean(axis=0) - second.mean(axis=0)))
