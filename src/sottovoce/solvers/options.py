"""What the solvers' objects share: fields that are options, each with what it allows and its rule.

An option that is left out (None) follows the solver's own rule of public numbers. What an option allows whatever the
problem is declared once, with its field, and checked when the object is made; what depends on the problem (a lot of at
most so many records) is checked by the solver's design.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import operator
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol, Self, dataclass_transform, get_args

import numpy as np

from sottovoce.arguments import is_number
from sottovoce.errors import InputError, did_you_mean

MOST: Final = 2**31 - 1  # a frame's round has 31 bits


@dataclass(frozen=True)
class NumberRange:
    """A number from `low` to `high`, both included; with `above` it is larger than `low` and finite.

    `kind` is how the documentation of an option says what it allows, `words` how an error does.
    """

    low: float
    high: float = math.inf
    whole: bool = False
    above: bool = False

    @property
    def kind(self) -> str:
        """Such as "int from 1" or "float above 0"; a limit that is none is left out."""
        start = f"{'int' if self.whole else 'float'} {'above' if self.above else 'from'} {self.low:g}"
        return start if self.high in (MOST, math.inf) else f"{start} to {self.high:g}"

    @property
    def words(self) -> str:
        """Such as "a whole number from 1 to 2147483647"."""
        if self.above and math.isinf(self.high):
            return "a positive finite number"
        start = "above" if self.above else "from"
        return f"{'a whole number' if self.whole else 'a number'} {start} {self.low} to {self.high}"

    def admits(self, value: Any) -> bool:
        """Whether a value may be given; True and False are no numbers."""
        if not is_number(value) or not self.low <= value <= self.high:
            return False
        if self.above:
            return bool(self.low < value < math.inf)
        return not self.whole or bool(int(value) == value)


@dataclass(frozen=True)
class OneOf:
    """One of some names, the default first."""

    names: tuple[str, ...]

    @property
    def kind(self) -> str:
        return " or ".join(map(repr, self.names))

    @property
    def words(self) -> str:
        return f"one of {', '.join(map(repr, self.names))}"

    def admits(self, value: Any) -> bool:
        return isinstance(value, str) and value in self.names


@dataclass(frozen=True)
class PerFeature:
    """One positive finite number for each feature, in what NumPy reads as a list; the problem knows how many."""

    kind: ClassVar[str] = "list of float above 0"
    words: ClassVar[str] = "a list of positive finite numbers, one for each feature"

    def admits(self, value: Any) -> bool:
        try:
            numbers = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError):
            return False
        return numbers.ndim == 1 and numbers.size > 0 and bool(np.all((numbers > 0) & np.isfinite(numbers)))


@dataclass(frozen=True)
class Option:
    """What is to be known of an option: its name, what it allows, what it does, and the rule where it is left out."""

    name: str
    kind: str
    meaning: str
    default: str


def documented(kind: type) -> list[tuple[str, str, str]]:
    """(name, kind, text) of each entry under "Parameters" in a class's own documentation."""
    _, _, parameters = inspect.cleandoc(vars(kind).get("__doc__") or "").partition("Parameters\n----------\n")
    found = re.findall(r"^(\w+) : (.+)\n((?:    .+\n?)+)", parameters, flags=re.MULTILINE)
    return [(name, says, " ".join(lines.split())) for name, says, lines in found]


class Check(Protocol):
    """What an option allows: how its documentation and errors say it, and whether a value may be given."""

    @property
    def kind(self) -> str: ...
    @property
    def words(self) -> str: ...
    def admits(self, value: Any) -> bool: ...


def declare_option(check: Check) -> Any:
    """A field that may be left out, and what it allows."""
    return field(default=None, metadata={"check": check})


def whole(low: int) -> Any:
    """A whole number from `low` on."""
    return declare_option(NumberRange(low, MOST, whole=True))


def number(low: float, high: float = math.inf) -> Any:
    """A number from `low` to `high`."""
    return declare_option(NumberRange(low, high))


def above(low: float, high: float = math.inf) -> Any:
    """A finite number above `low`."""
    return declare_option(NumberRange(low, high, above=True))


def one_of(names: Any) -> Any:
    """One of the names of a Literal."""
    return declare_option(OneOf(get_args(names)))


@dataclass_transform(kw_only_default=True, frozen_default=True)
@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Options:
    """A solver and its options, as an estimator takes it: `solver=CD(inner=80)`.

    `penalties` are those that it serves (balls are what `radius` asks for).
    """

    name: ClassVar[str]
    penalties: ClassVar[tuple[str, ...]] = ("none", "l1", "l2", "elastic_net", "l1_ball", "l2_ball")

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True, repr=False, eq=False)(cls)

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            value, check = getattr(self, each.name), each.metadata["check"]
            if value is not None and not check.admits(value):
                raise InputError(
                    f"{each.name}={value!r} must be {check.words}; leave it out for the default rule of "
                    f"solver={self.name!r}."
                )

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(map(operator.attrgetter("name"), dataclasses.fields(cls)))

    def given(self) -> dict[str, Any]:
        """The options that are not left to their rules."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002
        """All options by name: so scikit-learn sees `solver__inner` and can clone the object."""
        return dict(vars(self))

    def replace(self, **changes: Any) -> Self:
        """The same solver with some options changed; None gives one back to its rule."""
        for name in changes:
            if name not in self.names():
                meant = did_you_mean(name, self.names())
                known = ", ".join(self.names())
                raise InputError(f"{name!r} is no option of solver={self.name!r}{meant} It takes {known}.")
        return dataclasses.replace(self, **changes)

    @classmethod
    def described(cls) -> tuple[Option, ...]:
        """The options as the class's own documentation has them."""
        split = ((name, kind, text.partition(" Default: ")) for name, kind, text in documented(cls))
        return tuple(Option(name, kind, meaning, default) for name, kind, (meaning, _, default) in split)

    @classmethod
    def summary(cls) -> str:
        """What the solver does, in a line."""
        return (inspect.getdoc(cls) or "").partition("\n")[0].rstrip(".")

    @classmethod
    def remarks(cls) -> str:
        """What else is to be known before it is chosen; empty if nothing."""
        text, _, _ = (inspect.getdoc(cls) or "").partition("Parameters\n")
        return " ".join(text.partition("\n")[2].split())

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self), self._key()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.given().items())})"

    def _key(self) -> tuple[Any, ...]:
        values = vars(self).values()
        return tuple(tuple(np.asarray(v).tolist()) if np.iterable(v) and not isinstance(v, str) else v for v in values)
