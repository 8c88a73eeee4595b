"""What a user or the parties declare, checked and as plans name it: losses, penalties, classes, columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sottovoce import losses, penalties
from sottovoce.data.bounds import Bounds, party_norms
from sottovoce.data.preparation import MOST_CLASSES
from sottovoce.data.schema import PRIVATE, Schema
from sottovoce.errors import InputError
from sottovoce.federation.federation import Federation
from sottovoce.federation.predicting import check_aligned, check_people
from sottovoce.plan.problem import Named, Problem
from sottovoce.plan.split import Split

Facts = Mapping[str, Mapping[str, Any]]  # what each party declares public


def penalty_named(name: str, **parameters: Any) -> Named:
    """A penalty or a set as plans name it, its parameters checked."""
    return Named(name=name, parameters=penalties.get(name, **parameters).parameters())


def loss_named(name: str, kind: losses.Kind, **parameters: float) -> Named:
    """A registered loss of that kind as plans name it, its parameters checked."""
    if name not in (known := losses.names(kind)):
        raise InputError(
            f"loss={name!r} must be one of {', '.join(map(repr, known))}, or a loss of the kind {kind!r} of your own, "
            "registered with sottovoce.losses.register."
        )
    loss = losses.get(name, **parameters)
    losses.check_units(loss)
    return Named(name=name, parameters=loss.parameters() if parameters else {})


def ball_or(penalty: str, ball: str, alpha: Any, radius: float | None) -> Named:
    """A radius asks for the ball; else alpha is the weight of the penalty, and 0 means none."""
    if radius is not None:
        return penalty_named(ball, radius=radius)
    return Named(name="none") if alpha == 0 else penalty_named(penalty, alpha=alpha)


def distinct_classes(values: list[Any]) -> tuple[Any, ...]:
    """The distinct labels among these, sorted, of two the positive class last."""
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    distinct = sorted(set(plain), key=lambda value: (str(type(value)), value))
    if len(distinct) < 2:
        raise InputError(
            f"classification needs at least two classes, but {len(distinct)} class(es) were found or declared. Declare "
            "the labels to tell apart, for example classes=(0, 1) or classes=('no', 'yes')."
        )
    if len(distinct) > MOST_CLASSES:
        raise InputError(f"{len(distinct)} classes were found or declared, and at most {MOST_CLASSES} are served.")
    return tuple(distinct)


def common_names(facts: Facts, split: Split) -> tuple[str, ...]:
    """The feature names that the parties agree on; parties without names do not object."""
    named = {party: tuple(fact["feature_names"]) for party, fact in facts.items() if fact["feature_names"]}
    if split == "columns":
        return tuple(name for names in named.values() for name in names) if len(named) == len(facts) else ()
    if len(set(named.values())) > 1:
        raise InputError(
            f"the parties {', '.join(named)} name their columns differently or order them differently; by rows every "
            "party has the same columns in the same order."
        )
    return next(iter(named.values()), ())


def column_shares(
    federation: Federation, facts: Facts, bounds: Bounds, schema: Schema | None
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """By columns: how many each party has and, of a declared row norm, the bound of its part of a row.

    The parts are as the schema says, else in proportion to the columns.
    """
    check_people({name: fact["records"] for name, fact in facts.items()})
    check_aligned(facts)
    columns = tuple(fact["features"] for fact in facts.values())
    if bounds.row_norm is not None and schema is not None and federation.norms is None:
        return columns, schema.party_norms(bounds.row_norm, columns)
    if bounds.row_norm is not None:
        return columns, tuple(federation.party_norms(bounds.row_norm, columns))
    if federation.norms is not None:
        raise InputError(
            f"norms={federation.norms!r} are the parties' parts of row_norm, which is not declared; declare it, or "
            "leave norms out."
        )
    return columns, ()


def check_norms(problem: Problem) -> None:
    """Refuse norms that overlap, unless products are secure."""
    if problem.bounds.row_norm is not None and problem.norms:
        party_norms(problem.bounds.row_norm, problem.columns, problem.norms, overlap=problem.sealed_columns)


def is_private(bound: Any) -> bool:
    """Whether a bound is to be bought."""
    return isinstance(bound, str) and bound == PRIVATE
