"""The loss of times to an event: each person's event is a count of 0 or 1 in the hazard that it was exposed to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from sottovoce.arguments import is_number
from sottovoce.errors import InputError
from sottovoce.losses.base import Kind, KnownLabels, Sizes, Vector, register
from sottovoce.losses.counts import STRETCH, VARIANCE, Count, _within, powers_of_e

MOST_PERIODS = 64


@register
class Hazard(Count):
    """The loss of counts with the exposure Lambda(time) - Lambda(entry), Lambda' = rate_j within period j.

    Cox's model with a baseline that is constant in each period: a piecewise-exponential model. Rates are told. A label
    has the fields `label`, 1 for an event, `time` and `entry`; one without them has the exposure 1.
    """

    periods: tuple[float, ...] = (0.0, 1.0)  # cut points, the first 0
    rates: tuple[float, ...] = ()

    name: ClassVar[str] = "hazard"
    kind: ClassVar[Kind] = "time"
    exposed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("periods", "rates"):
            value: Any = getattr(self, name)
            if not isinstance(value, list | tuple | np.ndarray) or not all(map(is_number, value)):
                raise InputError(f"{name} must be a list of numbers, as periods=[0, 1, 2, 5] is.")
            object.__setattr__(self, name, tuple(map(float, value)))
        check_periods(self.periods)
        if self.rates and (len(self.rates) != self.parts or min(self.rates) < 0):
            raise InputError("rates must be numbers from 0 on, one for each period.")

    @property
    def learned(self) -> Mapping[str, int]:  # type: ignore[override]
        return {"phi": 1, "rates": self.parts}

    @property
    def parts(self) -> int:  # type: ignore[override]
        return len(self.periods) - 1

    def hearing(self, told: Mapping[str, Any]) -> Self:
        most = float(np.sum(told["rates"] * np.diff(self.periods)))  # exposure, of somebody who is seen to the end
        return replace(self, phi=float(told["phi"][0]), rates=tuple(told["rates"].tolist()), longest=max(most, 1e-300))

    def knowing(self, known: KnownLabels) -> Self:
        """At rates by which as many events are expected as there are, e^s is 1 and the exposure their mean number."""
        return replace(self, phi=known.exposure, typical=1.0)

    def counted(self, y: NDArray[Any]) -> tuple[Vector, Vector]:
        y = np.asarray(y)
        if not y.dtype.names:
            return super().counted(y)
        found = np.zeros(len(y))
        for rate, (start, stop) in zip(self.rates, pairwise(self.periods), strict=True):
            found += rate * self.within(y, start, stop)
        return np.asarray(y["label"], dtype=np.float64), found

    def part_slopes(self, u: Vector, y: NDArray[Any]) -> tuple[Vector, Vector]:
        """By periods the slopes in the logarithms of the rates, E_j e^s - event_j, and E_j e^s, both over 1 + q."""
        rate, slopes, seen = self._rate(u), np.empty((len(y), self.parts)), np.empty((len(y), self.parts))
        tau = 1 + np.sqrt(self.phi * powers_of_e(u))
        for place, (own, (start, stop)) in enumerate(zip(self.rates, pairwise(self.periods), strict=True)):
            seen[:, place] = own * self.within(y, start, stop) * rate
            slopes[:, place] = seen[:, place] - self.event_within(y, start, stop) / tau
        return slopes, seen

    def expected_information(self, u: Vector) -> Vector:
        """About that of records with these scores, in any unit: by the events that are expected of them."""
        return np.asarray(self.weight(u) * -np.expm1(-self.longest * np.exp(_within(u))))

    def for_errors(self, known: Sizes) -> Self:
        """The likelihood itself, phi being the mean number of events: slopes are from -1 to `bend`, and none is cut."""
        return replace(super().for_errors(known), phi=0.0, bend=STRETCH * self.phi, rates=(), longest=1.0)

    def sizes(self, most: float) -> Sizes:
        steepest = max(most, self.bend)
        return Sizes(steepest, steepest, VARIANCE, self.bend / STRETCH, 1.0)

    @staticmethod
    def event_within(y: NDArray[Any], start: float, stop: float) -> Vector:
        """1 for an event in a period, else 0."""
        return np.asarray(((y["label"] > 0) & (y["time"] > start) & (y["time"] <= stop)).astype(np.float64))

    @staticmethod
    def within(y: NDArray[Any], start: float, stop: float) -> Vector:
        """How long each person was seen in a period."""
        return np.asarray(np.clip(y["time"], start, stop) - np.clip(y["entry"], start, stop))


def check_periods(periods: Sequence[Any]) -> None:
    """Refuse what are no cut points."""
    numbers = list(periods)
    rising = all(map(is_number, numbers)) and all(low < high < 1e100 for low, high in pairwise(numbers))
    if not (2 <= len(numbers) <= MOST_PERIODS + 1 and rising and numbers[0] == 0):
        raise InputError(
            f"periods={numbers[:10]!r}{'...' * (len(numbers) > 10)} must be cut points in time that rise from 0, two "
            f"to {MOST_PERIODS + 1}, such as [0, 1, 2, 5]: within a period the baseline hazard is constant, and after "
            "the last nobody is followed. Choose them from what is publicly known, not from these data."
        )
