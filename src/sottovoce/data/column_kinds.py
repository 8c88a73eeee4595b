"""The kinds of columns that a schema declares: numbers, categories, yes/no; what each makes of a cell (`schema`)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.arguments import is_number, is_whole
from sottovoce.data.bounds import LARGEST, SMALLEST
from sottovoce.data.cells import MISSING, Cells, cell_key, read_numbers
from sottovoce.data.curves import KNOTS, MOST_KNOTS, at_steps, smooth_basis
from sottovoce.errors import InputError, did_you_mean

Array = NDArray[np.float64]
Level = str | int | float | bool

PRIVATE: Final = "private"  # a range that nobody knows, and a fit buys
SHAPES: Final = ("linear", "smooth")  # of a number's effect, the default first


@dataclass(frozen=True)
class Column(ABC):
    """One column that features are made of."""

    name: str
    keys: ClassVar[tuple[str, ...]]  # the entries that it may have; the first says what it is

    @property
    @abstractmethod
    def features(self) -> tuple[str, ...]:
        """Their names."""

    @abstractmethod
    def encode(self, cells: Cells) -> Array:
        """The features of each cell."""

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
        return (*first, f"{self.name}=missing") if missing else tuple(first)


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

    def encode(self, cells: Cells) -> Array:
        """Values clipped to the range; what is not finite counts as the fill, or is NaN if the range is estimated."""
        values = read_numbers(cells, cell_key)
        known = np.isfinite(values)
        values = np.where(known, np.clip(values, self.low, self.high), math.nan if self.estimated else self._fill)
        return np.column_stack([values, ~known]) if self.missing else values[:, None]

    def grid(self) -> tuple[tuple[Any, ...], Array]:
        ends = tuple(self.ranges[0])
        return ends, self.encode(np.array(ends))

    def entry(self) -> dict[str, Any]:
        known = PRIVATE if self.unknown else [_short(self.low), _short(self.high)]
        flags = {key: True for key in ("missing", "narrow") if getattr(self, key)}
        return {"range": known} | flags | ({} if self.fill is None else {"fill": _short(self.fill)})


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
            return 1.0 + float(np.square(self._curve(np.array([self.fill]))).sum())
        return 1.0

    def _curve(self, values: Array) -> Array:
        measure = np.log if self.scale == "log" else np.asarray
        steps = np.interp(measure(values), measure(np.array(self.places)), np.arange(len(self.places)))
        return at_steps(steps, self.basis)

    def encode(self, cells: Cells) -> Array:
        """As of a number; a cell that is missing, with a flag and without a fill, is 0 but for the flag."""
        values = read_numbers(cells, cell_key)
        known = np.isfinite(values)
        rows = self._curve(np.where(known, np.clip(values, self.low, self.high), self._fill))
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
    """`{ levels = [...] }`; with `missing = true` and `other = true` levels for missing and for undeclared cells."""

    levels: tuple[Level, ...]
    missing: bool = False
    other: bool = False
    keys: ClassVar[tuple[str, ...]] = ("levels", "missing", "other")

    def __post_init__(self) -> None:
        _check_levels(self.name, "levels", self.levels)

    @property
    def features(self) -> tuple[str, ...]:
        declared = [f"{self.name}={_shown(level)}" for level in self.levels]
        return self._flagged(declared, self.missing) + ((f"{self.name}=other",) if self.other else ())

    def encode(self, cells: Cells) -> Array:
        count = len(self.levels)
        places = level_places(cells, self.levels)
        places[places == _ABSENT] = count if self.missing else _NOWHERE
        places[places == _UNKNOWN] = count + self.missing if self.other else _NOWHERE
        rows = np.zeros((len(places), len(self.features)))
        found = np.flatnonzero(places != _NOWHERE)
        rows[found, places[found]] = 1.0
        return rows

    def contrasts(self) -> list[tuple[str, Array]]:
        """Each level against the first: with an intercept their own sizes mean nothing."""
        ways = np.eye(len(self.features)) - self.base()
        against = f"against {_shown(self.levels[0])}"
        return [(f"{name} {against}", way) for name, way in zip(self.features[1:], ways[1:], strict=True)]

    def base(self) -> Array:
        return np.asarray(np.eye(len(self.features))[0])

    def grid(self) -> tuple[tuple[Any, ...], Array]:
        return tuple(feature.removeprefix(f"{self.name}=") for feature in self.features), np.eye(len(self.features))

    def entry(self) -> dict[str, Any]:
        added = {key: True for key in ("missing", "other") if getattr(self, key)}
        return {"levels": list(self.levels)} | added


@dataclass(frozen=True)
class YesNo(Column):
    """`{ yes = ..., no = ... }`: one feature, 1 or -1, and 0 for anything else."""

    yes: Level
    no: Level
    missing: bool = False
    keys: ClassVar[tuple[str, ...]] = ("yes", "no", "missing")

    def __post_init__(self) -> None:
        _check_levels(self.name, "yes and no", (self.no, self.yes))

    @property
    def features(self) -> tuple[str, ...]:
        return self._flagged([f"{self.name}={_shown(self.yes)}"], self.missing)

    def encode(self, cells: Cells) -> Array:
        places = level_places(cells, (self.no, self.yes))
        known = places >= 0
        signs = np.where(known, 2.0 * places - 1.0, 0.0)
        return np.column_stack([signs, ~known]) if self.missing else signs[:, None]

    def contrasts(self) -> list[tuple[str, Array]]:
        """Yes against no, which is twice the coefficient; a missing cell against no."""
        ways = np.eye(len(self.features)) - self.base()
        return [(f"{name} against {_shown(self.no)}", way) for name, way in zip(self.features, ways, strict=True)]

    def base(self) -> Array:
        return np.array([-1.0, 0.0])[: len(self.features)]

    def grid(self) -> tuple[tuple[Any, ...], Array]:
        return (_shown(self.no), _shown(self.yes)), np.array([self.base(), -self.base()])

    def entry(self) -> dict[str, Any]:
        return {"yes": self.yes, "no": self.no} | ({"missing": True} if self.missing else {})


KINDS: Final[tuple[type[Column], ...]] = (Number, Category, YesNo)


def read_column(name: str, entry: Any) -> Column:
    """A column of its entry; which kind it is, the entry's keys say."""
    if not isinstance(entry, Mapping):
        raise InputError(
            f"columns.{name} = {entry!r} must be a table that says what the column holds: {{ range = [low, high] }}, "
            "{ levels = [...] } or { yes = ..., no = ... }."
        )
    kinds = [kind for kind in KINDS if kind.keys[0] in entry]
    if len(kinds) != 1:
        raise InputError(f"columns.{name} must have one of range (a number), levels (a category), yes and no.")
    kind = kinds[0]
    for key, value in entry.items():
        if key not in kind.keys:
            meant = did_you_mean(str(key), kind.keys)
            raise InputError(f"columns.{name} has no key {key!r}{meant} Beside {kind.keys[0]}: {', '.join(kind.keys)}.")
        if key in ("missing", "other", "narrow") and not isinstance(value, bool):
            raise InputError(f"columns.{name}: {key} = {value!r} must be true or false.")
    given = dict(entry)
    if kind is Number:
        return _number_column(name, given)
    if kind is Category:
        levels = given.pop("levels")
        if isinstance(levels, str) or not isinstance(levels, Iterable) or isinstance(levels, Mapping):
            raise InputError(f"columns.{name}: levels = {levels!r} must be a list of texts or numbers.")
        return Category(name, tuple(_level(name, level) for level in levels), **given)
    if "no" not in given:
        raise InputError(f"columns.{name} lacks no: what a cell holds where it is not {given['yes']!r}.")
    return YesNo(name, _level(name, given.pop("yes")), _level(name, given.pop("no")), **given)


def _number_column(name: str, given: dict[str, Any]) -> Number:
    declared, fill, kind = given.pop("range"), given.pop("fill", None), Number
    if (shape := given.pop("shape", SHAPES[0])) not in SHAPES:
        raise InputError(f"columns.{name}: shape = {shape!r} must be {' or '.join(map(repr, SHAPES))}.")
    if shape == "smooth":
        kind, given["knots"] = Curve, _read_knots(given.get("knots", KNOTS))
    elif own := {"knots", "scale", "monotone"} & set(given):
        raise InputError(f'columns.{name}: {min(own)} is of a curve; say shape = "smooth" too, or leave it out.')
    if not (fill is None or is_number(fill)):
        raise InputError(f"columns.{name}: fill = {fill!r} must be a number within the range.")
    fill = None if fill is None else float(fill)
    if isinstance(declared, str) and declared == PRIVATE:
        if "narrow" in given:
            raise InputError(f'columns.{name}: range = "private" has no range to narrow; leave narrow out.')
        return kind(name, fill=fill, **given)
    pair = list(declared) if isinstance(declared, Iterable) and not isinstance(declared, str | Mapping) else []
    if len(pair) != 2 or not all(map(is_number, pair)):
        raise InputError(
            f"columns.{name}: range = {declared!r} must be two numbers, low and high. Choose them from what is "
            'publicly known, not from these data; cells beyond are cut. Where nobody knows them: range = "private".'
        )
    return kind(name, float(pair[0]), float(pair[1]), fill=fill, **given)


def _read_knots(given: Any) -> Any:
    """Places as numbers; what is neither these nor a number is refused where the range is known."""
    if is_whole(given) or not isinstance(given, list | tuple | np.ndarray) or not all(map(is_number, given)):
        return int(given) if is_whole(given) else 0
    return tuple(map(float, given))


def _short(number: float) -> float | int:
    """A whole number without its point."""
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _level(name: str, level: Any) -> Level:
    plain = level.item() if isinstance(level, np.generic) else level
    if not isinstance(plain, str | int | float | bool) or plain != plain:
        raise InputError(f"columns.{name}: the level {level!r} must be a text, a number, true or false.")
    return plain


def _check_levels(name: str, what: str, levels: Sequence[Level]) -> None:
    if not levels:
        raise InputError(f"columns.{name}: {what} is empty; list the levels that are publicly known to occur.")
    keys = [cell_key(level) for level in levels]
    if len(set(keys)) < len(keys):
        twice = next(level for level, key in zip(levels, keys, strict=True) if keys.count(key) > 1)
        raise InputError(
            f"columns.{name}: {what} has {twice!r} twice (a text that reads as a number counts as that number, true as "
            "1 and false as 0)."
        )


def _shown(level: Level) -> str:
    return str(level).lower() if isinstance(level, bool) else f"{level:g}" if isinstance(level, float) else str(level)


_ABSENT, _UNKNOWN, _NOWHERE = -1, -2, -3  # places of cells that are missing, undeclared, or have no feature


def level_places(cells: Cells, levels: Sequence[Level]) -> NDArray[np.int64]:
    """The place of each cell among the levels; a declared level is never missing, whatever it is called."""
    found = {cell_key(level): place for place, level in enumerate(levels)}

    def place(cell: Any) -> int:
        key = cell_key(cell)
        if key in found:
            return found[key]
        return _ABSENT if key is None or (isinstance(key, str) and key.lower() in MISSING) else _UNKNOWN

    known: dict[str, int] = {}  # texts repeat
    places = np.empty(len(cells), dtype=np.int64)
    for row, cell in enumerate(cells.tolist()):
        if not isinstance(cell, str):
            places[row] = place(cell)
            continue
        if cell not in known:
            known[cell] = place(cell)
        places[row] = known[cell]
    return places
