"""Declared bounds: public constants that rows and labels are clipped to. Nothing here is read off the data."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from sottovoce.arguments import is_number
from sottovoce.errors import InputError, did_you_mean

Array = NDArray[np.float64]
SMALLEST, LARGEST = 1e-100, 1e100  # declared numbers stay where float64 neither overflows nor vanishes
MOST_OVERLAP = 4.0  # times the square of a row's norm that those of its parts may sum to, by secure columns


class Bounds(BaseModel):
    """What the holder of the data declares about every row, before anybody looks at one.

    `row_norm`: the Euclidean norm of a row's features is at most this (rows beyond it are scaled back).
    `entry_bound`: every entry is in [-entry_bound, entry_bound] (entries beyond it are cut); one number, or one
    per feature.
    `label_low`, `label_high`: the range of a numeric label (labels beyond it are cut).
    `feature_low`, `feature_high`: public ranges, one per feature; features are rescaled to `rescale`.
    Norm and entry bounds hold for the features after that rescaling.
    `exposure_bound`, `weight_bound`: exposures, weights of records, are at most this (larger ones are cut).
    `filled`: places of features whose cells count as the middle of their range where they are no finite number; without
    it such a cell makes a null row.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    row_norm: float | None = None
    entry_bound: float | tuple[float, ...] | None = None
    label_low: float | None = None
    label_high: float | None = None
    feature_low: tuple[float, ...] | None = None
    feature_high: tuple[float, ...] | None = None
    rescale: Literal["symmetric", "unit"] = "symmetric"
    filled: tuple[int, ...] | None = None
    exposure_bound: float | None = None
    weight_bound: float | None = None

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what is not declared of the last three: such bounds are written as they were before these were."""
        fields: dict[str, Any] = write(self)
        for name in ("filled", "exposure_bound", "weight_bound"):
            if fields.get(name) is None:
                fields.pop(name, None)
        return fields

    @model_validator(mode="after")
    def _check(self) -> Bounds:
        for name in ("row_norm", "entry_bound", "exposure_bound", "weight_bound"):
            value = getattr(self, name)
            numbers = np.array(() if value is None else value, dtype=np.float64)
            if value == () or not ((numbers >= SMALLEST) & (numbers <= LARGEST)).all():
                raise InputError(
                    f"{name}={value!r} must be a positive number from {SMALLEST:g} to {LARGEST:g}; "
                    "declare the largest you expect."
                )
        if (self.label_low is None) != (self.label_high is None):
            raise InputError("label_low and label_high are declared together.")
        if self.label_low is not None and self.label_high is not None:
            width = self.label_high - self.label_low
            if not (SMALLEST <= width <= LARGEST and max(abs(self.label_low), abs(self.label_high)) <= LARGEST):
                raise InputError(
                    f"label_bound=({self.label_low!r}, {self.label_high!r}) must be two finite numbers, low below high."
                )
        if (self.feature_low is None) != (self.feature_high is None):
            raise InputError("feature_low and feature_high are declared together.")
        if self.feature_low is not None and self.feature_high is not None:
            low, high = np.asarray(self.feature_low), np.asarray(self.feature_high)
            spans = low.shape == high.shape and np.abs(np.concatenate([low, high])).max(initial=0.0) <= LARGEST
            if not (spans and (high - low >= SMALLEST).all()):
                pairs = enumerate(zip(self.feature_low, self.feature_high, strict=False))
                wrong = next(
                    (f" The pair {place}, counted from 0, is {pair}." for place, pair in pairs if pair[0] >= pair[1]),
                    "",
                )
                raise InputError(
                    f"feature_ranges needs one (low, high) pair of finite numbers per feature, low below high.{wrong}"
                )
        if self.filled is not None:
            known, places = len(self.feature_low or ()), np.array(self.filled)
            rising = places.size > 0 and bool((np.diff(places) > 0).all())
            if not (rising and places[0] >= 0 and places[-1] < known):
                raise InputError("filled must be places of features that have a range, each once and in order.")
        return self

    @classmethod
    def declare(  # noqa: PLR0913
        cls,
        *,
        row_norm: float | None = None,
        entry_bound: float | Sequence[float] | None = None,
        label_bound: float | Sequence[float] | None = None,
        feature_ranges: tuple[Sequence[float], Sequence[float]] | Mapping[str, Sequence[float]] | None = None,
        rescale: Literal["symmetric", "unit"] = "symmetric",
        exposure_bound: float | None = None,
        weight_bound: float | None = None,
    ) -> Bounds:
        """The bounds from a user's arguments; `label_bound=b` means (-b, b)."""
        low = high = None
        if label_bound is not None:
            try:
                given = np.asarray(label_bound, dtype=np.float64)
                low, high = map(float, (-given, given) if given.ndim == 0 else given)
            except (TypeError, ValueError):
                raise InputError(f"label_bound={label_bound!r} must be one number or a pair (low, high).") from None
        if entry_bound is not None:
            alone = isinstance(entry_bound, str) or not np.iterable(entry_bound)
            several = [entry_bound] if alone else list(entry_bound)  # type: ignore[arg-type]
            if not all(map(is_number, several)):
                raise InputError(
                    f"entry_bound={entry_bound!r} must be one positive number, or one for each feature; declare the "
                    "largest you expect."
                )
            entry_bound = float(several[0]) if alone else tuple(map(float, several))  # type: ignore[arg-type]
        feature_low = feature_high = None
        if isinstance(feature_ranges, Mapping):
            feature_ranges = in_order(feature_ranges)
        if feature_ranges is not None:
            try:
                lows, highs = lows_and_highs(feature_ranges)
                feature_low, feature_high = tuple(map(float, lows)), tuple(map(float, highs))
            except (TypeError, ValueError):
                raise InputError(
                    "feature_ranges must be a pair (lows, highs), each with one number per feature, "
                    "for example ([0, 18], [1, 99]) for two features, or a range for each feature by its name, "
                    "{'age': (18, 99), ...}; or 'private', to buy them with a share of the budget."
                ) from None
        fields = {
            "row_norm": row_norm,
            "entry_bound": entry_bound,
            "label_low": low,
            "label_high": high,
            "feature_low": feature_low,
            "feature_high": feature_high,
            "rescale": rescale,
            "exposure_bound": exposure_bound,
            "weight_bound": weight_bound,
        }
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            text = first["msg"].removeprefix("Value error, ")
            where = "".join(f"{name}={first['input']!r}: " for name in first["loc"][:1])
            raise InputError(f"{where}{text}") from None

    def norm(self, features: int) -> float | None:
        """The row norm that the declarations imply: `row_norm`, or from the entries, or from the ranges."""
        if self.row_norm is not None:
            return self.row_norm
        if isinstance(self.entry_bound, tuple):
            return math.sqrt(math.fsum(map(operator.mul, self.entry_bound, self.entry_bound)))
        if self.entry_bound is not None:
            return self.entry_bound * math.sqrt(features)
        if self.feature_low is not None:
            return math.sqrt(features)
        return None

    def columns(self, features: int) -> Array:
        """The largest absolute value of an entry of each column, after the rescaling, that the declarations imply."""
        bounds = np.full(features, math.inf if self.row_norm is None else self.row_norm)
        if self.entry_bound is not None:
            bounds = np.minimum(bounds, self.entry_bound)
        return bounds if self.feature_low is None else np.minimum(bounds, 1.0)

    def part(self, start: int, stop: int, row_norm: float | None) -> Bounds:
        """The bounds of some of the columns; their part of a row has the norm `row_norm` at most."""
        places = np.array(self.filled or (), dtype=np.int64)
        filled = tuple((places[(places >= start) & (places < stop)] - start).tolist())
        changed: dict[str, Any] = {"row_norm": row_norm, "filled": filled or None}
        for name in ("entry_bound", "feature_low", "feature_high"):
            values = getattr(self, name)
            changed[name] = values[start:stop] if isinstance(values, tuple) else values
        return Bounds.model_validate(self.model_dump() | changed)

    def require(self, features: int, *, labels: bool) -> None:
        """Say, before data is touched, which bound is missing and how to choose it."""
        if self.feature_low is not None and len(self.feature_low) != features:
            raise InputError(
                f"feature_ranges has {len(self.feature_low)} pairs but the data have {features} features; "
                "give one pair each."
            )
        if isinstance(self.entry_bound, tuple) and len(self.entry_bound) != features:
            raise InputError(
                f"entry_bound has {len(self.entry_bound)} numbers but the data have {features} features; "
                "give one for each, or one number for all."
            )
        if self.norm(features) is None:
            raise InputError(
                "row_norm=None: a private fit needs a declared bound on the rows. Pass row_norm (the largest Euclidean "
                "norm a row may have; longer rows are scaled back), or entry_bound (the largest absolute entry), or "
                "feature_ranges=(lows, highs). Choose it from what you know of the features, not from these data: a "
                "bound computed from the data would reveal them. After sklearn.preprocessing.Normalizer, row_norm=1."
            )
        if labels and self.label_low is None:
            raise InputError(
                "label_bound=None: a private regression needs the range of the labels. Pass label_bound=b for labels "
                "in [-b, b], or label_bound=(low, high). Choose it from what you know of the quantity, not from these "
                "data; labels beyond it are cut."
            )

    def label_scale(self, *, fit_intercept: bool) -> tuple[float, float]:
        """(centre, half-width) that map a label to [-1, 1]; without an intercept the centre stays 0."""
        if self.label_low is None or self.label_high is None:
            return 0.0, 1.0
        if fit_intercept:
            return (self.label_low + self.label_high) / 2, (self.label_high - self.label_low) / 2
        return 0.0, max(abs(self.label_low), abs(self.label_high))


def lows_and_highs(ranges: Any) -> tuple[Sequence[float], Sequence[float]]:
    """(lows, highs) as given, or of a pair for each of three features or more; two pairs are read as (lows, highs)."""
    pairs = list(ranges)
    lows, highs = zip(*pairs, strict=True) if len(pairs) > 2 else pairs
    return lows, highs


def in_order(ranges: Mapping[str, Sequence[float]], names: Sequence[str] = ()) -> tuple[list[float], list[float]]:
    """(lows, highs) of ranges by name, in the order of the columns `names`; data without names take them as they are.

    Guarantee: a range that is missing, or of no column, is an error and never a column without its bound.
    """
    for name, pair in ranges.items():
        if isinstance(pair, str) or not np.iterable(pair) or len(list(pair)) != 2:
            raise InputError(f"feature_ranges: {name} = {pair!r} must be a pair, its low and its high.")
        if names and name not in names:
            meant = did_you_mean(str(name), names)
            raise InputError(f"feature_ranges: {name!r} is no feature{meant} The features are: {', '.join(names)}.")
    missing = list(itertools.filterfalse(ranges.__contains__, names))
    if missing:
        raise InputError(f"feature_ranges has no range for: {', '.join(missing)}. Give every feature its low and high.")
    pairs = list(map(ranges.__getitem__, list(names) or list(ranges)))
    return list(map(operator.itemgetter(0), pairs)), list(map(operator.itemgetter(1), pairs))


def party_norms(
    row_norm: float, columns: Sequence[int], norms: Sequence[float] | None = None, *, overlap: bool = False
) -> list[float]:
    """B_m with sum B_m^2 = row_norm^2: as given, or in proportion to the number of columns.

    With `overlap` the sum may be up to MOST_OVERLAP times as much: what is in one part of a row is not in another.
    """
    if norms is None:
        return (row_norm * np.sqrt(np.array(columns) / sum(columns))).tolist()  # type: ignore[no-any-return]
    whole = math.sqrt(math.fsum(map(operator.mul, norms, norms)))
    near = math.isclose(whole, row_norm, rel_tol=2.0**-40)  # less than a sensitivity leaves room for
    near |= overlap and row_norm <= whole <= math.sqrt(MOST_OVERLAP) * row_norm
    each = np.array(norms)
    if len(norms) != len(columns) or not ((each > 0) & (each <= (1 + 2.0**-40) * row_norm)).all() or not near:
        raise InputError(
            f"norms={tuple(norms)!r} must be one positive number per party ({len(columns)}), none above row_norm, "
            f"their squares summing to row_norm squared ({row_norm**2:g}), with secure products to {MOST_OVERLAP:g} "
            "times that at most; leave norms out to share it by the number of columns, and keep the features that a "
            "schema makes of one column at one party."
        )
    return list(map(float, norms))
