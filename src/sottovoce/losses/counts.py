"""Losses of counts and of positive amounts, whose mean is exp(score) times the exposure.

A label is a number, 0 or above, alone or in the field `label` of a structured array with its `exposure`. Scores beyond
690 on either side count as these.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError
from sottovoce.losses import kernels
from sottovoce.losses.base import Kind, KnownLabels, Loss, Sizes, Vector, check_positive, register

REACH = 690.0
NORMAL, WEIGHTS = np.polynomial.hermite_e.hermegauss(41)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
FIRST = 0.75  # the slope at which those of counts are cut; a count of 1 where means are small has the slope 1
VARIANCE = 0.5  # of the scores, before anything is known
WIDEST = 3.0  # a variance of scores beyond which curvatures say nothing
FARTHEST = 12.0  # mean residuals from the mean, beyond which counts are all far; of amounts the square
LEAST = 1e-100  # information of a record whose inverse is a number
STRETCH = 4.0  # times the mean information, beyond which a record weighs less in standard errors
ORDINARY = 0.5  # slope of counts there, at least: 5 of them are not cut
WIDER = 4.0  # a clip of slopes moves the mean first, so the rescale may have so much more noise


class LogMeanLoss(Loss):
    """A loss of labels whose mean is exp(score); what it is told in a run is in `learned`, by name."""

    kind: ClassVar[Kind] = "count"
    whole: ClassVar[bool] = False  # whether labels are whole numbers
    power: ClassVar[float]  # of the mean, to which the variance is in proportion by the likelihood
    slope_bound: ClassVar[float] = math.inf
    curvature_bound: ClassVar[float] = math.inf

    @abstractmethod
    def deviance(self, u: Vector, y: NDArray[Any]) -> Vector:
        """Twice what the likelihood of Poisson, or gamma, lacks to that of a model which says each label."""

    @abstractmethod
    def for_errors(self, known: Sizes) -> Self:
        """The loss for standard errors after a fit that has found these."""

    @abstractmethod
    def sizes(self, most: float) -> Sizes:
        """What it then says of slopes and information, of labels up to `most`; no slope below 5 of its slope is cut."""

    @abstractmethod
    def gain(self, u: Vector, constant: float) -> tuple[Vector, Vector]:
        """(a, b) such that a (y - mu) + E b is half of what the deviance is below that of the constant score."""

    def counted(self, y: NDArray[Any]) -> tuple[Vector, Vector]:
        """Labels, and the exposure of each."""
        return count_and_exposure(y)

    @abstractmethod
    def evened(self, y: Vector, known: KnownLabels) -> Vector:
        """A rising function of labels along which slopes at their mean change evenly, as far as it is known."""

    def nodes(self, known: KnownLabels, count: int) -> Vector:
        """So many rising labels from 0 on, between which slopes may be interpolated: evenly along `evened`.

        Of counts they are whole, and where means are small the first ones. Larger labels count as the last.
        """
        last = min(known.most, known.mean + FARTHEST**self.power * known.residual)
        fine = np.linspace(0.0, last, 1 + 256 * count)
        along = self.evened(fine, known)
        found = np.interp(np.linspace(0.0, along[-1], count), along, fine)
        return np.maximum.accumulate(np.rint(found) - np.arange(count)) + np.arange(count) if self.whole else found

    def told(self) -> dict[str, Vector]:
        return {name: np.atleast_1d(np.asarray(getattr(self, name), dtype=np.float64)) for name in self.learned}

    def hearing(self, told: Mapping[str, Any]) -> Self:
        return replace(self, **{name: float(told[name][0]) for name in self.learned}) if self.learned else self


def count_and_exposure(y: NDArray[Any]) -> tuple[Vector, Vector]:
    """Labels, and the exposures beside them, else 1."""
    y = np.asarray(y)
    if y.dtype.names:
        return np.asarray(y["label"], dtype=np.float64), np.asarray(y["exposure"], dtype=np.float64)
    return y.astype(np.float64, copy=False), np.ones(y.shape)


def _within(u: Vector) -> Vector:
    return np.clip(np.asarray(u, dtype=np.float64), -REACH, REACH)


def powers_of_e(u: Vector) -> Vector:
    """exp(u) within REACH, the same on every machine."""
    u = np.ascontiguousarray(u, dtype=np.float64)
    kernels.fill_powers_of_e(u.reshape(-1), (found := np.empty(u.shape)).reshape(-1))
    return found


@register
class Count(LogMeanLoss):
    """l'(s, y) = (E e^s - y) / (1 + q), q = sqrt(phi e^s): Poisson's likelihood for phi = 0.

    Convex, and the mean of the slope is 0 at the true mean, whatever the law of y is. With phi the spread of slopes is
    1 for large means too, so one cut serves them all. The exposure E does not weigh: it may end with the event.
    """

    phi: float = 0.0
    typical: float = 1.0  # mean of exp(score), for mean curvatures alone
    bend: float = math.inf  # the largest information, in standard errors
    longest: float = 1.0  # exposure

    name: ClassVar[str] = "poisson"
    code: ClassVar[int | None] = None
    slope_code: ClassVar[int | None] = kernels.COUNT
    learned: ClassVar[Mapping[str, int]] = MappingProxyType({"phi": 1})
    exposed: ClassVar[bool] = True
    whole: ClassVar[bool] = True
    power: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        check_positive("phi", self.phi, "0 is the likelihood of Poisson", zero=True)
        check_positive("typical", self.typical, "it is the mean of the counts", zero=True)
        check_positive("longest", self.longest, "it is the largest exposure")
        if self.bend != math.inf:
            check_positive("bend", self.bend, "it is the largest information of a record")
            if self.bend < LEAST:
                raise InputError(
                    f"bend={self.bend} must be {LEAST} at least; it is the largest information of a record."
                )

    def parameters(self) -> dict[str, Any]:
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        listed = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
        return {name: value for name, value in listed.items() if found[name] != getattr(type(self), name)}

    def value(self, u: Vector, y: NDArray[Any]) -> Vector:
        """E (2 / phi) (q - log(1 + q)) + 2 y log((1 + q) / q); for phi = 0 half the deviance. None is below 0."""
        if self.phi == 0.0:
            return self.deviance(u, y) / 2
        (count, exposure), u = self.counted(y), _within(u)
        half = (u + math.log(self.phi)) / 2
        q = np.exp(half)
        return np.asarray(exposure * (2 / self.phi) * (q - np.log1p(q)) + 2 * count * (np.log1p(q) - half))

    def derivative(self, u: Vector, y: NDArray[Any], out: Vector | None = None) -> Vector:
        (count, exposure), u = self.counted(y), np.asarray(u, dtype=np.float64)
        count, exposure, u = np.broadcast_arrays(count, exposure, u)
        found = np.empty(u.shape)
        u, count, exposure = (np.ascontiguousarray(each).ravel() for each in (u, count, exposure))
        kernels.fill_count_slopes(self.phi, u, count, exposure, found.reshape(-1))
        return found if out is None else _into(out, found)

    def curvature(self, u: Vector, y: NDArray[Any]) -> Vector:
        (count, exposure), rate = self.counted(y), np.exp(_within(u))
        q = np.sqrt(self.phi * rate)
        return np.asarray(exposure * rate * ((1 + q / 2) / (1 + q) ** 2) + count * (q / 2 / (1 + q) ** 2))

    def information(self, u: Vector, y: NDArray[Any]) -> Vector:
        """E mu / (1 + q): the mean of l'' where the label has the mean mu; no label moves it."""
        return np.asarray(self.counted(y)[1] * self._rate(u))

    @property
    def information_bound(self) -> float:
        return self.bend if math.isfinite(self.bend) else 1.0

    def weight(self, u: Vector) -> Vector:
        """Less where the largest exposure would have more information than `bend`; its own has no part in that."""
        with np.errstate(over="ignore"):
            return np.asarray(np.fmin(self.bend / (self.longest * self._rate(u)), 1.0))

    def _rate(self, u: Vector) -> Vector:
        rate = powers_of_e(u)
        return np.asarray(rate / (1 + np.sqrt(self.phi * rate)))

    def for_errors(self, known: Sizes) -> Self:
        return replace(self, bend=STRETCH * known.curvature)

    def sizes(self, most: float) -> Sizes:
        tau, curvature = 1 + math.sqrt(self.phi * self.typical), self.bend / STRETCH
        usual = max((tau - 1) / tau, 1e-3)
        slope = max(usual, ORDINARY)
        return Sizes(slope, max(most / tau, self.bend, slope), VARIANCE, curvature, usual**2 / curvature)

    def mean_curvature(self, variance: float) -> float:
        """E mu / (1 + q), what E l'' is where counts have the mean mu; log mu is normal, and E mu is `typical`."""
        check_positive("variance", variance, "pass the mean square of the scores", zero=True)
        v = min(variance, WIDEST)
        rate = self.typical * np.exp(math.sqrt(v) * NORMAL - v / 2)
        return float(WEIGHTS @ (rate / (1 + np.sqrt(self.phi * rate))))

    def knowing(self, known: KnownLabels) -> Self:
        """Phi from the spread of residuals: that of counts about their mean over the mean, within limits.

        It is in units of the mean exposure. A wrong one costs efficiency and moves no mean; it tells no dispersion,
        since its floor is above what small counts have.
        """
        phi = min(max((1.25 * known.residual) ** 2 / known.mean, 0.1), known.most)
        return replace(self, phi=phi * known.exposure, typical=known.mean / known.exposure)

    def evened(self, y: Vector, known: KnownLabels) -> Vector:
        """(2 / phi) (q - log(1 + q)), q = sqrt(phi y): slopes at y have one spread along it."""
        q = np.sqrt(self.phi * y / known.exposure)
        return np.asarray(2 / self.phi * (q - np.log1p(q)))

    def units(self, known: KnownLabels) -> Sizes:
        tau = 1 + math.sqrt(self.phi * self.typical)
        bend = known.exposure * self.mean_curvature(VARIANCE)
        spread = self.phi / known.exposure * known.mean / tau**2
        return Sizes(FIRST, max(known.most / tau, FIRST), VARIANCE, bend, spread / bend, WIDER, known.exposure)

    def deviance(self, u: Vector, y: NDArray[Any]) -> Vector:
        (count, exposure), u = self.counted(y), _within(u)
        mean = exposure * np.exp(u)
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = np.where(count > 0, count * np.log(count / mean), 0.0)
        return np.asarray(2 * np.maximum(parts - (count - mean), 0.0))

    def gain(self, u: Vector, constant: float) -> tuple[Vector, Vector]:
        rate = np.exp(_within(u))
        return u - constant, rate * (u - constant) - rate + math.exp(constant)


@register
class Positive(LogMeanLoss):
    """l'(s, y) = 1 - y e^-s: the likelihood of the gamma law, whatever its shape is."""

    deviation: float = 1.0  # of slopes, for standard errors alone

    def __post_init__(self) -> None:
        check_positive("deviation", self.deviation, "it is that of slopes")

    name: ClassVar[str] = "gamma"
    power: ClassVar[float] = 2.0
    slope_code: ClassVar[int | None] = kernels.POSITIVE
    information_bound: ClassVar[float] = 1.0

    def value(self, u: Vector, y: NDArray[Any]) -> Vector:
        """Half the deviance, s + y e^-s - 1 - log y."""
        return self.deviance(u, y) / 2

    def derivative(self, u: Vector, y: NDArray[Any], out: Vector | None = None) -> Vector:
        amount, u = np.broadcast_arrays(count_and_exposure(y)[0], np.asarray(u, dtype=np.float64))
        found = np.empty(u.shape)
        u, amount = (np.ascontiguousarray(each).ravel() for each in (u, amount))
        kernels.fill_positive_slopes(u, amount, found.reshape(-1))
        return found if out is None else _into(out, found)

    def curvature(self, u: Vector, y: NDArray[Any]) -> Vector:
        return np.asarray(count_and_exposure(y)[0] * np.exp(-_within(u)))

    def mean_curvature(self, variance: float) -> float:
        """E y / mu, which is 1 where amounts have the mean mu."""
        check_positive("variance", variance, "pass the mean square of the scores", zero=True)
        return 1.0

    def evened(self, y: Vector, known: KnownLabels) -> Vector:
        """log(1 + 10 y / mean): slopes follow y over the mean."""
        return np.log1p(10 * y / known.mean)

    def information(self, u: Vector, y: NDArray[Any]) -> Vector:
        """1, the mean of y / mu."""
        return np.ones(np.broadcast_shapes(np.shape(u), np.shape(y)))

    def for_errors(self, known: Sizes) -> Self:
        return replace(self, deviation=math.sqrt(known.spread))

    def sizes(self, most: float) -> Sizes:
        return Sizes(self.deviation, max(most, 5 * self.deviation), VARIANCE, 1.0, self.deviation**2)

    def units(self, known: KnownLabels) -> Sizes:
        slope = max(known.residual / known.mean, 0.05)
        return Sizes(slope, max(known.most / known.mean, slope), VARIANCE, 1.0, (1.25 * slope) ** 2, WIDER)

    def deviance(self, u: Vector, y: NDArray[Any]) -> Vector:
        ratio = np.maximum(count_and_exposure(y)[0], 1e-100) * np.exp(-_within(u))
        return np.asarray(2 * np.maximum(ratio - 1 - np.log(ratio), 0.0))

    def gain(self, u: Vector, constant: float) -> tuple[Vector, Vector]:
        u = _within(u)
        return math.exp(-constant) - np.exp(-u), np.exp(u - constant) - 1 - (u - constant)


def _into(out: Vector, found: Vector) -> Vector:
    np.copyto(out, found)
    return out
