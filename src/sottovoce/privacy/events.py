"""Which data sets are neighbours, and what a release does to a record's privacy, as few numbers.

An event states its cost relative to the sensitivity of the relation asked for, except ``PoissonGaussian``, which serves
both relations from the sensitivity of zero-out. What events cost is in ``accounting``. A relation that is not known
here is refused wherever a cost depends on it, and so are impossible costs, budgets and samplings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Final, Literal, TypeVar, get_args

import numpy as np
from scipy.optimize import brentq

from sottovoce.arguments import is_number, is_whole
from sottovoce.errors import InputError

T = TypeVar("T")

Relation = Literal["zero-out", "replace-one"]
RELATIONS: Final[tuple[Relation, ...]] = get_args(Relation)

# What became of a person's record in the neighbouring data set.
CHANGES: Final[Mapping[Relation, str]] = {
    "zero-out": "had been left blank",
    "replace-one": "had been replaced by any other record",
}

SAMPLER_SHARE: Final = 0.01  # of delta, for the samplers' own errors
SMALLEST_DELTA: Final = 1e-300  # that is declared: parts of it are numbers that a float holds in full


def check_relation(relation: str) -> Relation:
    """The relation itself, refused if it is none of `RELATIONS`."""
    for known in RELATIONS:
        if relation == known:
            return known
    raise InputError(
        f"relation={relation!r} must be {' or '.join(map(repr, RELATIONS))}; choose which data sets are neighbours."
    )


def either(relation: Relation, *, zero_out: T, replace_one: T) -> T:
    """`zero_out` or `replace_one`, by the relation; any other relation is refused."""
    return zero_out if check_relation(relation) == "zero-out" else replace_one


def distance(relation: Relation) -> float:
    """1 for zero-out, 2 for replace-one: how far a sum moves, in what one record adds to it at most.

    Guarantee: where a record adds a term t with |t| <= b, zero-out moves the sum by |t| <= b, replace-one by
    |t - t'| <= 2 b. What moves otherwise (a Gram matrix, a minimiser) says so (`Query.replacement`, `either`).
    """
    return either(relation, zero_out=1.0, replace_one=2.0)


def inside(delta: float) -> float:
    """Delta (1 - SAMPLER_SHARE): what events may use of delta, the rest being set aside for the samplers' errors."""
    return delta * (1 - SAMPLER_SHARE)


def require(condition: bool, name: str, value: object, allowed: str, remedy: str) -> None:
    """Raise an `InputError` that names the argument, its value, what is allowed and the remedy, unless it holds."""
    if not condition:
        raise InputError(f"{name}={value!r}: must be {allowed}; {remedy}.")


def check_cost(name: str, value: float) -> None:
    """Refuse a cost or a noise below 0; inf is allowed, NaN is not."""
    if not (is_number(value) and value >= 0):
        raise InputError(f"{name}={value!r}: must be a number >= 0; pass the cost computed from the noise.")


def check_epsilon_delta(epsilon: float, delta: float) -> None:
    """Refuse an epsilon that is not above 0, or a delta outside (0, 1)."""
    remedy = "choose a positive privacy budget, or float('inf') for no privacy"
    require(is_number(epsilon) and epsilon > 0, "epsilon", epsilon, "a number > 0", remedy)
    check_delta(delta)


def check_delta(delta: float) -> None:
    """Refuse a delta outside (0, 1)."""
    remedy = "choose a value well below one over the number of records, e.g. 1e-6"
    require(is_number(delta) and 0 < delta < 1, "delta", delta, "strictly between 0 and 1", remedy)


def check_sampling(rate: float, rounds: int) -> None:
    """Refuse a sampling rate outside (0, 1], and rounds that are not a whole number from 1."""
    require(is_number(rate) and 0 < rate <= 1, "rate", rate, "in (0, 1]", "use 1 for full batches")
    require(is_whole(rounds) and rounds >= 1, "rounds", rounds, "an integer >= 1", "count the releases of the plan")


def check_order(order: float) -> None:
    """Refuse a Rényi order that is not a finite number above 1."""
    allowed = is_number(order) and 1 < order < math.inf
    require(allowed, "order", order, "a finite number > 1", "take it from renyi_order_for")


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

    @cached_property
    def log_inverse_gamma(self) -> float:
        """L = log(1 / gamma) of the law: (e^L - 1) / L = mean; 0 for one run."""
        if self.mean == 1:
            return 0.0
        log = math.log(float(self.mean))
        return float(brentq(lambda x: math.log(math.expm1(x) / x) - log, 1e-12, 50.0, xtol=1e-14, rtol=1e-14))


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
