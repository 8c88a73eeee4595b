"""Which data sets are neighbours, how far apart they are, and what part of delta the events may use.

A relation that is not known here is refused wherever a cost depends on it. Nothing is priced as something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeVar, get_args

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
