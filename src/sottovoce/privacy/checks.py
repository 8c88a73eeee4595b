"""Refusals of impossible costs, budgets and samplings, in one form: argument, value, what is allowed, the remedy."""

from __future__ import annotations

import math
from typing import Final

from sottovoce.arguments import is_number, is_whole
from sottovoce.errors import InputError

SMALLEST_DELTA: Final = 1e-300  # that is declared: parts of it are numbers that a float holds in full


def require(condition: bool, name: str, value: object, allowed: str, remedy: str) -> None:
    """Raise an `InputError` that names the argument, its value, what is allowed and the remedy, unless it holds."""
    if not condition:
        raise InputError(f"{name}={value!r}: must be {allowed}; {remedy}.")


def check_cost(name: str, value: float) -> None:
    """Refuse a cost or a noise below 0; inf is allowed, NaN is not."""
    require(
        is_number(value) and value >= 0,
        name,
        value,
        "a number >= 0",
        "pass the cost computed from the noise",
    )


def check_epsilon(epsilon: float) -> None:
    """Refuse a budget that is not above 0."""
    remedy = "choose a positive privacy budget, or float('inf') for no privacy"
    require(is_number(epsilon) and epsilon > 0, "epsilon", epsilon, "a number > 0", remedy)


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
