"""The kinds of columns that a schema declares: numbers, categories, yes/no; what each makes of a cell (`schema`)."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.arguments import is_whole
from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.data.cells import Cells, cell_key, read_numbers
from sottovoce.data.curves import KNOTS, MOST_KNOTS, at_steps, smooth_basis
from sottovoce.data.levels import (
    ABSENT,
    UNKNOWN,
    CodeBook,
    Level,
    check_levels,
    group_spans,
    level_spans,
    shown_codes,
    shown_level,
)
from sottovoce.errors import InputError, did_you_mean

Array = NDArray[np.float64]

PRIVATE: Final = "private"  # a range that nobody knows, and a fit buys
SHAPES: Final = ("linear", "smooth")  # of a number's effect, the default first


@dataclass(frozen=True)
class Column(ABC):
    """One column that features are made of."""

    name: str
    keys: ClassVar[tuple[str, ...]]  # the entries that it may have; the first says what it is
    whole: ClassVar[bool] = True  # whether features are -1, 0 or 1

    @property
    @abstractmethod
    def features(self) -> tuple[str, ...]:
        """Their names."""

    @abstractmethod
    def read(self, cells: Cells) -> NDArray[Any]:
        """One number for each cell, from which its features follow; as small as it may be."""

    @abstractmethod
    def made(self, codes: NDArray[Any]) -> Array:
        """The features of what was read."""

    def encode(self, cells: Cells) -> Array:
        """The features of each cell."""
        return self.made(self.read(cells))

    def read_from(self, cells: Mapping[str, Cells]) -> NDArray[Any]:
        """The same of the cells of a table, by column."""
        return self.read(cells[self.name])

    @abstractmethod
    def entry(self) -> dict[str, Any]:
        """As a schema declares it."""

    @property
    def square(self) -> float:
        """The most that it adds to the squared norm of a rescaled row."""
        return 1.0

    @property
    def ranges(self) -> list[tuple[float, float]]:
        """What becomes [-1, 1], for each feature; 0 and 1 stay what they are."""
        return [(-1.0, 1.0)] * len(self.features)

    def contrasts(self) -> list[tuple[str, Array]]:
        """What a coefficient can be told of, by name, and its weight on each feature; a cell against the base cell."""
        return list(zip(self.features, np.eye(len(self.features)), strict=True))

    def base(self) -> Array:
        """The features of the cell that others are compared with."""
        return np.zeros(len(self.features))

    @abstractmethod
    def grid(self) -> tuple[tuple[Any, ...], Array]:
        """The cells between which its part of a score is drawn, and their features."""

    def _flagged(self, first: Sequence[str], missing: bool) -> tuple[str, ...]:
        return (*first, self._flag("missing", first)) if missing else tuple(first)

    def _flag(self, kind: str, levels: Iterable[str]) -> str:
        """The name of the feature of missing or other cells; in brackets where a level is called so."""
        return f"{self.name}=({kind})" if f"{self.name}={kind}" in levels else f"{self.name}={kind}"


@dataclass(frozen=True)
class Number(Column):
    """`{ range = [low, high] }`; for missing cells `missing = true` adds a flag, `fill` is what they count as.

    `{ range = "private" }`: nobody knows it, and a fit buys it. `{ range = [low, high], narrow = true }`: it is known
    to be within, and a fit buys a narrower one.
    """

    low: float = -math.inf
    high: float = math.inf
    missing: bool = False
    fill: float | None = None
    narrow: bool = False
    whole: ClassVar[bool] = False
    keys: ClassVar[tuple[str, ...]] = ("range", "missing", "fill", "narrow", "shape", "knots", "scale", "monotone")

    def __post_init__(self) -> None:
        if self.estimated and self.fill is not None:
            raise InputError(
                f"columns.{self.name}: fill = {self.fill!r} may be outside a range that a fit has yet to buy; leave "
                "it out for the middle."
            )
        if self.unknown:
            return
        if not (self.high - self.low >= SMALLEST and max(abs(self.low), abs(self.high)) <= LARGEST):
            raise InputError(
                f"columns.{self.name}: range = [{self.low!r}, {self.high!r}] must be two finite numbers, low below "
                "high. Choose them from what is publicly known; cells beyond are cut."
            )
        if self.fill is not None and not self.low <= self.fill <= self.high:
            raise InputError(
                f"columns.{self.name}: fill = {self.fill!r} must be within the range [{self.low:g}, {self.high:g}]; "
                "leave it out for the middle."
            )

    @property
    def unknown(self) -> bool:
        return math.isinf(self.low) and math.isinf(self.high)

    @property
    def estimated(self) -> bool:
        """Whether a fit buys the range."""
        return self.narrow or self.unknown

    def within(self, found: tuple[float, float] | None) -> Number | None:
        """The column with the range that was found, as far as it is within the known one; None if none is known.

        Where nothing was found, or nothing of it is within, the known range stays.
        """
        low, high = (self.low, self.high) if found is None else (max(self.low, found[0]), min(self.high, found[1]))
        if not high - low >= SMALLEST:
            low, high = self.low, self.high
        return None if math.isinf(high - low) else Number(self.name, low, high, self.missing)

    @property
    def features(self) -> tuple[str, ...]:
        return self._flagged([self.name], self.missing)

    @property
    def ranges(self) -> list[tuple[float, float]]:
        """The number's is the declared one; one that nobody knows counts as [-1, 1] until it is bought."""
        return [(-1.0, 1.0) if self.unknown else (self.low, self.high), *super().ranges[1:]]

    @property
    def square(self) -> float:
        """1, or f^2 + 1 with the flag on."""
        if self.estimated:  # the fill is the middle
            return 1.0
        rescaled = (self._fill - (self.low + self.high) / 2) * 2 / (self.high - self.low)
        return 1.0 + rescaled**2 if self.missing else 1.0

    @property
    def _fill(self) -> float:
        return (self.low + self.high) / 2 if self.fill is None else self.fill

    def read(self, cells: Cells) -> Array:
        """Values clipped to the range; what is not finite is NaN."""
        values = read_numbers(cells, cell_key)
        return np.where(np.isfinite(values), np.clip(values, self.low, self.high), math.nan)

    def made(self, codes: Array) -> Array:
        """A NaN counts as the fill, or stays NaN if the range is estimated."""
        known = ~np.isnan(codes)
        values = codes if self.estimated else np.where(known, codes, self._fill)
        return np.column_stack([values, ~known]) if self.missing else values[:, None]

    def grid(self) -> tuple[tuple[Any, ...], Array]:
        ends = tuple(self.ranges[0])
        return ends, self.encode(np.array(ends))

    def entry(self) -> dict[str, Any]:
        known = PRIVATE if self.unknown else [_short(self.low), _short(self.high)]
        flags = {key: True for key in ("missing", "narrow") if getattr(self, key)}
        return {"range": known} | flags | ({} if self.fill is None else {"fill": _short(self.fill)})


@dataclass(frozen=True)
class CountColumn(Number):
    """`{ counts = 20 }`: whole numbers from 0 on; larger ones are cut."""

    keys = ("counts",)

    def entry(self) -> dict[str, Any]:
        return {"counts": int(self.high)}


@dataclass(frozen=True)
class Beside:
    """`{ exposure = [0, 1] }`, `{ weight = [0, 4] }`: no feature, it stands beside the label; larger ones are cut."""

    name: str
    kind: str
    most: float

    def entry(self) -> dict[str, Any]:
        return {self.kind: [0.0, self.most]}

    def __str__(self) -> str:
        return f"{self.name!r}, the {self.kind} of a record, up to {self.most:g}"


@dataclass(frozen=True)
class Curve(Number):
    """`{ range = [low, high], shape = "smooth" }`: a number that acts along a curve (`curves`), not along a line.

    `knots` are how many, at equal steps, or a list of public places, of which the ends of the range are two; a step
    between places counts as one, however wide. With `scale = "log"` steps are equal ratios. `monotone = "up"` or
    `"down"` puts the fitted curve in order. A missing cell is 0 in all features of the curve where it has a flag.
    """

    knots: int | tuple[float, ...] = KNOTS
    scale: str = "linear"
    monotone: str | None = None

    def __post_init__(self) -> None:
        if self.estimated:
            raise InputError(
                f"columns.{self.name}: a curve has its knots in a declared range, and this one is bought by the fit; "
                'declare it, or say shape = "linear".'
            )
        super().__post_init__()
        rising = isinstance(self.knots, int) or bool((np.diff(self.places) > 0).all())
        if not (rising and 3 <= (self.knots if isinstance(self.knots, int) else len(self.places)) <= MOST_KNOTS):
            raise InputError(
                f"columns.{self.name}: knots = {self.knots!r} must be a number from 3 to {MOST_KNOTS}, or a list of "
                "rising places within the range, of which the ends of the range are two."
            )
        for key, allowed in (("scale", ("linear", "log")), ("monotone", ("up", "down", None))):
            if (value := getattr(self, key)) not in allowed:
                raise InputError(f"columns.{self.name}: {key} = {value!r} must be {allowed[0]!r} or {allowed[1]!r}.")
        if self.scale == "log" and self.low < SMALLEST:
            raise InputError(
                f'columns.{self.name}: scale = "log" needs a range above 0, not from {self.low:g}; begin it at the '
                "smallest amount that matters, to which smaller ones are cut."
            )

    @property
    def places(self) -> tuple[float, ...]:
        """Where the knots are, in the units of the column."""
        if not isinstance(self.knots, int):
            inner = self.knots[self.knots[:1] == (self.low,) :]
            return (self.low, *inner[: len(inner) - (inner[-1:] == (self.high,))], self.high)
        spaced = np.geomspace if self.scale == "log" else np.linspace
        return tuple(spaced(self.low, self.high, self.knots).tolist())

    @property
    def basis(self) -> Array:
        """The features at the knots."""
        return smooth_basis(len(self.places))

    @property
    def features(self) -> tuple[str, ...]:
        """They name the knots: parties with other ones would encode otherwise, and names are compared."""
        places = (self.low, self.high) if isinstance(self.knots, int) else self.places
        said = "..".join(f"{place:g}" for place in places)
        said = f"log {said}" if self.scale == "log" else said
        return self._flagged([f"{self.name}[{said}]~{place}" for place in range(1, len(self.places))], self.missing)

    @property
    def ranges(self) -> list[tuple[float, float]]:
        return [(-1.0, 1.0)] * len(self.features)

    @property
    def square(self) -> float:
        """1: the features are no longer, and 0 where the flag is on; with a fill, |features of the fill|^2 + 1."""
        if self.missing and self.fill is not None:
            return 1.0 + float(np.square(at_steps(self._steps(np.array([self.fill])), self.basis)).sum())
        return 1.0

    def _steps(self, values: Array) -> Array:
        """How many steps behind the first knot; of a NaN a NaN."""
        measure = np.log if self.scale == "log" else np.asarray
        return np.interp(measure(values), measure(np.array(self.places)), np.arange(len(self.places)))

    def read(self, cells: Cells) -> Array:
        """Steps behind the first knot, of what is not finite NaN."""
        return self._steps(super().read(cells))

    def made(self, codes: Array) -> Array:
        """As of a number; a cell that is missing, with a flag and without a fill, is 0 but for the flag."""
        known = ~np.isnan(codes)
        rows = at_steps(np.where(known, codes, self._steps(np.array([self._fill]))), self.basis)
        if not self.missing:
            return rows
        if self.fill is None:
            rows[~known] = 0.0
        return np.column_stack([rows, ~known])

    def grid(self) -> tuple[tuple[Any, ...], Array]:
        return self.places, self.encode(np.array(self.places))

    def contrasts(self) -> list[tuple[str, Array]]:
        """What the straight part of the curve adds from end to end; a missing cell against the mean over the knots.

        Wiggles alone have errors too large to be told; the difference of the ends has all of theirs.
        """
        wide, ways = len(self.basis[0]), np.eye(len(self.features))
        line = (self.basis[-1, 0] - self.basis[0, 0]) * ways[0]
        told = (f"{self.name} from {self.low:g} to {self.high:g}, by its line", line)
        return [told, *zip(self.features[wide:], ways[wide:], strict=True)]

    def entry(self) -> dict[str, Any]:
        knots = self.knots if isinstance(self.knots, int) else [_short(place) for place in self.knots]
        said = {"shape": "smooth", "knots": knots, "scale": self.scale, "monotone": self.monotone}
        usual = {"knots": KNOTS, "scale": "linear", "monotone": None}
        return super().entry() | {key: value for key, value in said.items() if value != usual.get(key)}


@dataclass(frozen=True)
class Category(Column):
    """`{ levels = [...] }`; with `missing = true` and `other = true` levels for missing and for undeclared cells.

    With `prefix = 3` levels are the first three characters of codes. `{ groups = { heart = ["I20-I25"], ... } }` has
    named groups of codes (`levels`) for levels. `digits`: how many a code that is a number has at least.
    """

    levels: tuple[Level, ...]  # or the names of the groups
    missing: bool = False
    other: bool = False
    prefix: int | None = None
    digits: int | None = None
    groups: tuple[tuple[Level, ...], ...] | None = None  # the codes of each
    levels_file: Path | None = field(default=None, compare=False)  # where the levels were read
    reference: Level | None = None  # the one that others are compared with; the first if nothing is said
    keys: ClassVar[tuple[str, ...]] = (
        *("levels", "missing", "other", "prefix", "digits", "groups", "levels_file", "reference"),
    )

    def __post_init__(self) -> None:
        check_levels(self.name, "levels", self.levels)
        for key in ("prefix", "digits"):
            if (value := getattr(self, key)) is not None and not (is_whole(value) and value > 0):
                raise InputError(f"columns.{self.name}: {key} = {value!r} must be a whole number above 0.")
        if self.prefix is not None and self.groups is not None:
            raise InputError(f"columns.{self.name}: groups say by themselves what they hold; leave prefix out.")
        if self.digits is not None and self.prefix is None and self.groups is None:
            raise InputError(f"columns.{self.name}: digits is of codes with a prefix or in groups; leave it out.")
        if self.reference is not None and self.reference not in self.levels:
            raise InputError(
                f"columns.{self.name}: reference = {self.reference!r} must be one of its levels"
                f"{did_you_mean(str(self.reference), tuple(map(str, self.levels)))} Others are compared with it."
            )
        try:
            self.book  # noqa: B018 - made once, and refused here
        except InputError as error:
            raise InputError(f"columns.{self.name}: {error}") from None

    @functools.cached_property
    def book(self) -> CodeBook:
        """Which cells are of which level."""
        if self.groups is not None:
            return CodeBook(group_spans(self.levels, self.groups, self.digits), self.digits, missing=self.missing)
        return CodeBook(level_spans(self.levels, self.prefix), self.digits, missing=self.missing)

    @property
    def features(self) -> tuple[str, ...]:
        """They say what the levels hold: parties with other codes would encode otherwise, and names are compared."""
        said = self.shown
        if self.prefix is not None and self.digits is not None:
            said = [f"{level} of {self.digits} digits" for level in said]
        if self.groups is not None:
            codes = (shown_codes(codes, self.digits) for codes in self.groups)
            said = [f"{level}[{own}]" for level, own in zip(said, codes, strict=True)]
        return self._with_rest(f"{self.name}={level}" for level in said)

    @property
    def shown(self) -> list[str]:
        """The declared levels, as people read them."""
        return [shown_level(level) + ("" if self.prefix is None else "*") for level in self.levels]

    def _with_rest(self, declared: Iterable[str]) -> tuple[str, ...]:
        first = tuple(declared)
        return self._flagged(first, self.missing) + ((self._flag("other", first),) if self.other else ())

    def read(self, cells: Cells) -> NDArray[Any]:
        """Which feature is 1; one more than there are stands for none."""
        count, width = len(self.levels), len(self.levels) + self.missing + self.other
        places = self.book.places(cells)
        places[places == ABSENT] = count if self.missing else width
        places[places == UNKNOWN] = count + self.missing if self.other else width
        return places.astype(np.min_scalar_type(width))

    def made(self, codes: NDArray[Any]) -> Array:
        rows = np.zeros((len(codes), len(self.levels) + self.missing + self.other))
        found = np.flatnonzero(codes < rows.shape[1])
        rows[found, codes[found]] = 1.0
        return rows

    def contrasts(self) -> list[tuple[str, Array]]:
        """Each level against the reference: with an intercept their own sizes mean nothing."""
        ways, first = np.eye(len(self.features)) - self.base(), self.first
        names = self._with_rest(f"{self.name}={level}" for level in self.shown)
        against = f"against {self.shown[first]}"
        told = [(f"{name} {against}", way) for name, way in zip(names, ways, strict=True)]
        return told[:first] + told[first + 1 :]

    @property
    def first(self) -> int:
        """The place of the level that others are compared with."""
        return 0 if self.reference is None else self.levels.index(self.reference)

    def base(self) -> Array:
        return np.asarray(np.eye(len(self.features))[self.first])

    def grid(self) -> tuple[tuple[Any, ...], Array]:
        named = self._with_rest(f"{self.name}={level}" for level in self.shown)
        return tuple(name.removeprefix(f"{self.name}=") for name in named), np.eye(len(self.features))

    def entry(self) -> dict[str, Any]:
        said: dict[str, Any] = {"levels": list(self.levels)}
        if self.groups is not None:
            said = {"groups": {str(name): list(codes) for name, codes in zip(self.levels, self.groups, strict=True)}}
        added = {key: value for key in ("prefix", "digits", "missing", "other") if (value := getattr(self, key))}
        return said | added | ({} if self.reference is None else {"reference": self.reference})


@dataclass(frozen=True)
class YesNo(Column):
    """`{ yes = ..., no = ... }`: one feature, 1 or -1, and 0 for anything else."""

    yes: Level
    no: Level
    missing: bool = False
    keys: ClassVar[tuple[str, ...]] = ("yes", "no", "missing")

    def __post_init__(self) -> None:
        check_levels(self.name, "yes and no", (self.no, self.yes))

    @functools.cached_property
    def book(self) -> CodeBook:
        return CodeBook(level_spans((self.no, self.yes)), missing=self.missing)

    @property
    def features(self) -> tuple[str, ...]:
        return self._flagged([f"{self.name}={shown_level(self.yes)}"], self.missing)

    def read(self, cells: Cells) -> NDArray[Any]:
        """1, -1, or 0 for anything else."""
        places = self.book.places(cells)
        return np.where(places >= 0, 2 * places - 1, 0).astype(np.int8)

    def made(self, codes: NDArray[Any]) -> Array:
        signs = codes.astype(np.float64)
        return np.column_stack([signs, signs == 0]) if self.missing else signs[:, None]

    def contrasts(self) -> list[tuple[str, Array]]:
        """Yes against no, which is twice the coefficient; a missing cell against no."""
        ways = np.eye(len(self.features)) - self.base()
        return [(f"{name} against {shown_level(self.no)}", way) for name, way in zip(self.features, ways, strict=True)]

    def base(self) -> Array:
        return np.array([-1.0, 0.0])[: len(self.features)]

    def grid(self) -> tuple[tuple[Any, ...], Array]:
        return (shown_level(self.no), shown_level(self.yes)), np.array([self.base(), -self.base()])

    def entry(self) -> dict[str, Any]:
        return {"yes": self.yes, "no": self.no} | ({"missing": True} if self.missing else {})


KINDS: Final[tuple[type[Column], ...]] = (Number, CountColumn, Category, YesNo)


def _short(number: float) -> float | int:
    """A whole number without its point."""
    return int(number) if number.is_integer() and abs(number) < 2**53 else number
