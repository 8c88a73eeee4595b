"""What a release does to a record's privacy, as few numbers, and the form in which a ledger keeps it.

An event states its cost relative to the sensitivity of the relation asked for, except ``PoissonGaussian``, which serves
both relations from the sensitivity of zero-out. What events cost is in ``accounting``.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.optimize import brentq

from sottovoce.arguments import is_number
from sottovoce.errors import InputError
from sottovoce.privacy.checks import check_cost, check_sampling, require


@dataclass(frozen=True)
class Gaussian:
    """Gaussian releases, composed exactly: mu = sqrt(sum_t (sensitivity_t / sigma_t)^2).

    The sensitivities are those of the relation in which the cost is asked; mu = inf means no noise.
    """

    mu: float

    def __post_init__(self) -> None:
        check_cost("mu", self.mu)


@dataclass(frozen=True)
class PoissonGaussian:
    """``rounds`` Gaussian releases, each on a fresh secret Poisson sample of the records.

    ``noise_multiplier`` = sigma / (sensitivity under zero-out), whichever relation the cost is asked in.
    """

    rate: float
    noise_multiplier: float
    rounds: int

    def __post_init__(self) -> None:
        check_sampling(self.rate, self.rounds)
        check_cost("noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class Selection:
    """Exponential-mechanism choices: rho = sum over choices of (rate * score sensitivity)^2 / 2, in zCDP."""

    rho: float

    def __post_init__(self) -> None:
        check_cost("rho", self.rho)


@dataclass(frozen=True)
class Repeated:
    """Gaussian runs of total cost ``mu`` each, a secret number of times, of which only the best is seen.

    The number has the logarithmic law with that ``mean``, P(k) ~ (1 - gamma)^k / k; the best is that of the largest
    score, which each run releases within its cost (Papernot and Steinke 2022).
    """

    mu: float
    mean: float

    def __post_init__(self) -> None:
        check_cost("mu", self.mu)
        require(is_number(self.mean) and 1 <= self.mean < 1e9, "mean", self.mean, "from 1 to 1e9", "10 is usual")

    @property
    def log_inverse_gamma(self) -> float:
        """L = log(1 / gamma) of the law: (e^L - 1) / L = mean; 0 for one run."""
        return 0.0 if self.mean == 1 else _log_inverse_gamma(float(self.mean))


@lru_cache(maxsize=64)
def _log_inverse_gamma(mean: float) -> float:
    return float(brentq(lambda x: math.log(math.expm1(x) / x) - math.log(mean), 1e-12, 50.0, xtol=1e-14, rtol=1e-14))


@dataclass(frozen=True)
class Unbounded:
    """A release without noise, or one for which nothing finite can be certified: its epsilon is infinite."""

    reason: str


Event = Gaussian | PoissonGaussian | Selection | Repeated | Unbounded

_KINDS: dict[str, type[Event]] = {
    "gaussian": Gaussian,
    "poisson-gaussian": PoissonGaussian,
    "selection": Selection,
    "repeated": Repeated,
    "unbounded": Unbounded,
}


def event_to_json(event: Event) -> dict[str, Any]:
    """The event as a dictionary of plain JSON values; an infinite cost is the string "inf"."""
    kind = next(kind for kind, made in _KINDS.items() if isinstance(event, made))
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in asdict(event).items()}
    return {"kind": kind} | {name: "inf" if value == math.inf else value for name, value in plain.items()}


def event_from_json(data: dict[str, Any]) -> Event:
    """The event written by :func:`event_to_json`; anything else is refused."""
    kind = data.get("kind")
    made = _KINDS.get(kind) if isinstance(kind, str) else None
    if made is None:
        raise InputError(f"event kind {kind!r}: must be one of {sorted(_KINDS)}; check where the event came from.")
    fields = {name: value for name, value in data.items() if name != "kind"}
    if made is not Unbounded:
        fields = {name: math.inf if value == "inf" else value for name, value in fields.items()}
    elif not isinstance(fields.get("reason"), str):
        raise InputError("event reason: must be a text; check where the event came from.")
    try:
        return made(**fields)
    except TypeError as error:
        raise InputError(f"event of kind {kind!r}: {error}; check where the event came from.") from error
