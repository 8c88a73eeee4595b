"""Which groups an evaluation tells apart: a column of the model's schema, or cells beside the labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from sottovoce.algorithms.evaluation.groups import Groups
from sottovoce.data.column_kinds import Category, YesNo
from sottovoce.errors import InputError, did_you_mean, warn
from sottovoce.plan.plan import Plan

if TYPE_CHECKING:
    from sottovoce.estimators.base import PrivateLinearModel
    from sottovoce.estimators.evaluation import Evaluation

FEW: Final = 2.0  # cells of a group, in squares of their noise, below which noise is most of an interval


def read_groups(model: PrivateLinearModel, by: Any, groups: Sequence[Any] | None) -> Groups | None:
    """The declared groups: `groups` of cells that are beside the labels, or the levels of the column `by`."""
    if by is None and groups is None:
        return None
    if groups is not None:
        if isinstance(groups, str) or not isinstance(groups, Sequence):
            raise InputError(f"groups={groups!r} must be a list of the values that tell the groups, ('f', 'm').")
        return _declared(by if isinstance(by, str) else "group", tuple(groups))
    if not isinstance(by, str):
        raise InputError("groups=None: with cells in by, declare the values that tell the groups, groups=('f', 'm').")
    if (schema := model.schema_) is None:
        raise InputError(
            f"by={by!r}: the model has no schema with such a column; give the cells of the test records in by, and "
            "groups=(one, other). In a federation they are beside the labels: sv.labels_with(y, group=...)."
        )
    column = schema.columns.get(by)
    if not isinstance(column, Category | YesNo):
        kinds = [name for name, each in schema.columns.items() if isinstance(each, Category | YesNo)]
        what = "is no column of the model's schema" if column is None else "is a number"
        raise InputError(
            f"by={by!r} {what}{did_you_mean(by, kinds)} Groups are the levels of a category or of a yes/no column: "
            f"{', '.join(kinds) or 'there is none'}."
        )
    first = tuple(getattr(model, "feature_names_in_", schema.feature_names)).index(column.features[0]) + 1
    if isinstance(column, Category):
        names, places = list[Any](column.levels), list(range(first, first + len(column.features)))
    else:
        names, places = [column.yes, column.no], [first, -first, *range(first + 1, first + len(column.features))]
    flags = len(places) - len(names)  # features of missing and of other cells
    names += [name.removeprefix(f"{by}=") for name in column.features[len(column.features) - flags :]]
    return _declared(by, tuple(names), tuple(places))


def _declared(column: str, names: tuple[Any, ...], places: tuple[int, ...] = ()) -> Groups:
    plain = tuple(name.item() if hasattr(name, "item") else name for name in names)
    try:
        return Groups(column=column, names=plain, places=places)
    except ValidationError as error:
        raise InputError(f"groups={plain!r}: {error.errors()[0]['msg'].removeprefix('Value error, ')}.") from None


def few_records(noise: float, cells: int) -> float:
    """How many records a group needs at least, lest the noise be most of its intervals."""
    return FEW * noise**2 * cells


def warn_of_small_groups(plan: Plan, groups: Mapping[Any, Evaluation]) -> None:
    """By public numbers and released counts alone."""
    for name, own in list(groups.items())[:-1]:
        least = few_records(own.noise, len(own.cells))
        if own.records is not None and own.records.value < least:
            warn(
                f"by={plan.numbers.groups.column!r}: the group {name!r} has about {max(own.records.value, 0.0):,.0f} "
                f"records, and up to {math.ceil(least):,} the noise is most of an interval. Ask with a larger epsilon, "
                "or join groups."
            )
