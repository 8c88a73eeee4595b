"""Products of two declared columns: made by the holder, row by row, of the cells of these columns alone."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.cells import Cells
from sottovoce.data.column_kinds import Category, Column, Curve, Number
from sottovoce.errors import InputError, did_you_mean

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ProductColumn(Column):
    """`{ product = ["age", "sex"] }`: what two columns do together, beside what each does.

    A number counts from the middle of its range, a category has 1 or 0 for each level but the reference, yes/no 1 for
    yes. The features are all products of one factor of each. Guarantee: a number's factor is at most half of its range,
    of the factors of levels one at most is 1 and the others are 0; so of the rescaled features one at most is not 0,
    and it is at most 1: the square is 1. Edges: a missing number counts as its fill; any other cell without a level
    has no factor, and the features are 0.
    """

    parents: tuple[Column, Column] = field(kw_only=True)
    keys: ClassVar[tuple[str, ...]] = ("product",)

    @functools.cached_property
    def factors(self) -> tuple[Factor, Factor]:
        return Factor(self.parents[0]), Factor(self.parents[1])

    @property
    def features(self) -> tuple[str, ...]:
        one, other = self.factors
        return tuple(f"{mine}*{theirs}" for mine in one.names for theirs in other.names)

    @property
    def ranges(self) -> list[tuple[float, float]]:
        most = self.factors[0].most * self.factors[1].most
        return [(-most, most)] * len(self.features)

    @property
    def counted(self) -> str:
        """From where its numbers count: "age from 50"."""
        return ", ".join(f"{each.column.name} from {each.middle:g}" for each in self.factors if each.middle)

    def contrasts(self) -> list[tuple[str, Array]]:
        said = f" ({self.counted})" if self.counted else ""
        return [(f"{name}{said}", way) for name, way in super().contrasts()]

    @property
    def whole(self) -> bool:  # type: ignore[override]
        """Whether both are."""
        return all(parent.whole for parent in self.parents)

    def read_from(self, cells: Mapping[str, Cells]) -> NDArray[Any]:
        """Both codes of each row."""
        one, other = (np.asarray(parent.read(cells[parent.name]), dtype=np.float64) for parent in self.parents)
        return np.column_stack([one, other])

    def read(self, cells: Cells) -> NDArray[Any]:
        raise NotImplementedError(f"{self.name} has no cells of its own")

    def made(self, codes: NDArray[Any]) -> Array:
        one, other = (factor.made(own) for factor, own in zip(self.factors, codes.T, strict=True))
        return (one[:, :, None] * other[:, None, :]).reshape(len(codes), len(self.features))

    def base(self) -> Array:
        """Of two numbers that are 0; categories at their references have no factor."""
        one, other = (factor.at_base for factor in self.factors)
        return np.outer(one, other).ravel()

    def grid(self) -> tuple[tuple[Any, ...], Array]:
        """Of two numbers both at an end of their ranges or at opposite ones; else a feature after the other."""
        names = self.features
        if len(names) == 1 and all(isinstance(parent, Number) for parent in self.parents):
            return self.ranges[0], np.array(self.ranges).T
        return names, np.eye(len(names)) * self.ranges[0][1]

    def entry(self) -> dict[str, Any]:
        return {"product": [parent.name for parent in self.parents]}


class Factor:
    """What a column gives to a product: a number from the middle of its range, or a feature for each other level."""

    def __init__(self, column: Column) -> None:
        self.column, features = column, column.features
        self._chosen, self.names, self.middle, self.most = [0], features[:1], 0.0, 1.0
        self.at_base = np.zeros(1)
        if isinstance(column, Number):
            low, high = column.ranges[0]
            self.middle, self.most = (low + high) / 2, (high - low) / 2
            self.at_base = np.array([-self.middle])
        elif isinstance(column, Category):
            self._chosen = [place for place in range(len(features)) if place != column.first]
            self.names = tuple(features[place] for place in self._chosen)
            self.at_base = np.zeros(len(self.names))

    def made(self, codes: Array) -> Array:
        """Of what the column read."""
        column = self.column
        if isinstance(column, Number):
            return column.made(codes)[:, :1] - self.middle
        if isinstance(column, Category):
            return column.made(codes.astype(np.int64))[:, self._chosen]
        return (column.made(codes)[:, :1] > 0).astype(np.float64)


def without_products(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of columns that a table has."""
    return {name: entry for name, entry in columns.items() if not (isinstance(entry, Mapping) and "product" in entry)}


def read_products(columns: Mapping[str, Any], declared: Mapping[str, Column]) -> dict[str, ProductColumn]:
    """The other entries, each as a column made of two declared ones."""
    plain = without_products(columns)
    return {name: _read_product(name, entry, declared) for name, entry in columns.items() if name not in plain}


def _read_product(name: str, entry: Mapping[str, Any], columns: Mapping[str, Column]) -> ProductColumn:
    """A product of its entry and of the columns that are declared beside it."""
    if set(entry) != {"product"}:
        strange = next(key for key in entry if key != "product")
        raise InputError(f"columns.{name} has no key {strange!r}: what a product is follows from its two columns.")
    names = entry["product"]
    several = list(names) if isinstance(names, Iterable) and not isinstance(names, str | Mapping) else []
    if len(several) != 2 or several[0] == several[1]:
        raise InputError(f'columns.{name}: product = {names!r} must be two other columns: ["age", "sex"].')
    for each in several:
        column = columns.get(each)
        if column is None or isinstance(column, ProductColumn):
            raise InputError(
                f"columns.{name}: product = {names!r}: {each!r} is no declared column of features"
                f"{did_you_mean(str(each), tuple(columns))} A product is of two of them."
            )
        if isinstance(column, Curve) or (isinstance(column, Number) and column.estimated):
            raise InputError(
                f"columns.{name}: {each!r} has no declared straight range, from which the bound of a product follows; "
                'declare its range, and shape = "linear".'
            )
    return ProductColumn(name, parents=(columns[several[0]], columns[several[1]]))
