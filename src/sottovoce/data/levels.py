"""Which level of a category a cell is of: levels that are single codes, prefixes of codes, or named groups of codes.

**Codes.** A cell is compared by its key (`cells.cell_key`) or, where levels hold more than one code, by the text of its
key: that of a number is written without a point where it is whole (250.0 is "250"), and with zeros before it up to
`digits`, the least number of digits before the point, since files lose leading zeros. A code of a group is one of four:

| written | holds |
|---|---|
| `"I20-I25"`, `"390-459"` | codes from the first to the last in the order of text, and those that begin with the last |
| `"I2*"` | codes that begin so |
| `"=10-19"` | that code alone, whatever it looks like |
| anything else | that code alone |

The ends of a range are equally long, each letters and then digits or points. No code is in two levels, so a cell is of
one level at most. A missing cell is of a level that names it, of none by a range or a prefix. Where one level is
spelled like a missing cell (None, NA, null), and `missing` does not say what those are, every missing cell is of that
level: pandas reads both as one, and a file gives the same features as a data frame of it.
"""

from __future__ import annotations

import bisect
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.cells import NULLS, Cells, cell_key, is_missing, look_up
from sottovoce.errors import InputError, did_you_mean
from sottovoce.files import parse_file

Level = str | int | float | bool

ABSENT, UNKNOWN = -1, -2  # places of cells that are missing or undeclared
_END: Final = "([A-Za-z]*[0-9][0-9.]*)"
_RANGE: Final = re.compile(rf"{_END}\s*[-\u2013]\s*{_END}")
_SHOWN: Final = 32  # characters of the codes of a group that its name shows


class Span(NamedTuple):
    """The codes from `first` to `last`, and those that begin with `last`; without `last`, the code of a key alone."""

    first: str
    last: str | None
    key: Any
    place: int  # of the level
    said: str  # as it was declared

    def holds(self, text: str) -> bool:
        """Of a text that is not before the first."""
        return text == self.first if self.last is None else text[: len(self.last)] <= self.last


class CodeBook:
    """Which level a cell is of.

    >>> book = CodeBook(group_spans(["heart", "sugar"], [["I20-I25", "I5*"], ["E11"]]))
    >>> book.places(np.array(["I25.1", "E11", "I50", "I26", None], dtype=object)).tolist()
    [0, 1, 0, -2, -1]
    """

    def __init__(self, spans: Iterable[Span], digits: int | None = None, *, missing: bool = False) -> None:
        self.digits, spans = digits or 0, sorted(spans, key=lambda span: span.first)
        for one, after in pairwise(spans):
            if one.holds(after.first):
                raise InputError(f"{after.said} is within {one.said} too; a code is of one level, so narrow one.")
        self.exact = {span.key: span.place for span in spans if span.last is None}
        self.blank = [key for key in self.exact if key in NULLS]  # levels that are spelled like a missing cell
        self.absent = self.exact[self.blank[0]] if len(self.blank) == 1 and not missing else ABSENT
        # by place: a code of the level, with all its digits
        self.examples = {each.place: each.first.ljust(self.digits if each.last else 0, "0") for each in spans}
        self.spans = [span for span in spans if span.last is not None]
        self.firsts = [span.first for span in self.spans]
        for span in () if self.digits else self.spans:
            if any(isinstance(cell_key(end), float) for end in (span.first, span.last)):
                raise InputError(
                    f"{span.said} is of numbers, whose leading zeros files lose; say digits, how many digits a code "
                    "has at least before a point: digits = 3 in ICD-9, digits = 5 in postcodes of 5."
                )

    def place(self, cell: Any) -> int:
        """The place of its level; a code that is declared is never missing, whatever it is called."""
        key = cell_key(cell)
        if key in self.exact:
            return self.exact[key]
        if key is None or (isinstance(key, str) and is_missing(key)):
            return self.absent
        text = _text(key, self.digits)
        span = self.spans[bisect.bisect_right(self.firsts, text) - 1] if self.spans else None
        return span.place if span is not None and span.first <= text and span.holds(text) else UNKNOWN

    def places(self, cells: Cells) -> NDArray[np.int64]:
        """The place of each cell."""
        return look_up(cells, self.place)


def level_spans(levels: Sequence[Level], prefix: int | None = None) -> Iterator[Span]:
    """Levels that are one code each, or the first characters of codes."""
    for place, level in enumerate(levels):
        key, written = cell_key(level), level.strip() if isinstance(level, str) else ""
        if prefix is None:
            yield Span(_text(key, 0), None, key, place, repr(level))
            continue
        if len(first := written or _text(key, 0)) != prefix:
            raise InputError(f"the level {level!r} must have {prefix} characters, as prefix = {prefix} says.")
        yield Span(first, first, None, place, repr(level))


def group_spans(names: Sequence[Level], groups: Sequence[Sequence[Level]], digits: int | None = None) -> Iterator[Span]:
    """What the codes of each group hold."""
    for place, (name, codes) in enumerate(zip(names, groups, strict=True)):
        for code in codes:
            text, said = code.strip() if isinstance(code, str) else "", f"{code!r} of {name!r}"
            pair = _RANGE.fullmatch(text)
            if not (pair or text.endswith("*")) or text.startswith("="):
                key = cell_key(text.removeprefix("=") or code)
                yield Span(_text(key, digits or 0), None, key, place, said)
                continue
            first, last = pair.groups() if pair else (text[:-1], text[:-1])
            if not first or len(first) != len(last) or first > last:
                raise InputError(
                    f"{said} must be a range such as 'I20-I25', the ends equally long and the first before the last, "
                    "or a prefix such as 'I2*'; with '=' before it it is one code."
                )
            yield Span(first, last, None, place, said)


def _text(key: Any, digits: int) -> str:
    """The text of a code by its key: a number without a point where it is whole, with zeros up to so many digits."""
    if not isinstance(key, float):
        return str(key)
    whole, point, rest = (f"{key + 0.0:.0f}" if key.is_integer() else repr(key)).partition(".")
    return whole.zfill(digits) + point + rest


def plain_level(name: str, level: Any) -> Level:
    """A level as plain Python has it."""
    plain = level.item() if isinstance(level, np.generic) else level
    if not isinstance(plain, str | int | float | bool) or plain != plain:
        raise InputError(f"columns.{name}: the level {level!r} must be a text, a number, true or false.")
    return plain


def check_levels(name: str, what: str, levels: Sequence[Level]) -> None:
    """Refuse none, and one that stands there twice."""
    if not levels:
        raise InputError(f"columns.{name}: {what} is empty; list the levels that are publicly known to occur.")
    keys = [cell_key(level) for level in levels]
    if len(set(keys)) < len(keys):
        twice = next(level for level, key in zip(levels, keys, strict=True) if keys.count(key) > 1)
        raise InputError(
            f"columns.{name}: {what} has {twice!r} twice (a text that reads as a number counts as that number, true as "
            "1 and false as 0)."
        )


def shown_level(level: Level) -> str:
    """A level as names of features have it."""
    return str(level).lower() if isinstance(level, bool) else f"{level:g}" if isinstance(level, float) else str(level)


def shown_codes(codes: Sequence[Level], digits: int | None) -> str:
    """The codes of a group, as they stand in the name of its feature, by which parties agree: long ones by a digest."""
    text = ",".join(map(str, codes)) + ("" if digits is None else f"; {digits} digits")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..#{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def resolve_levels(name: str, entry: Mapping[str, Any], sets: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of a category with the keys of its level set, and with the levels of its file."""
    found = dict(entry)
    if isinstance(chosen := found.get("levels"), str):
        if not isinstance(known := sets.get(chosen), Mapping):
            meant = did_you_mean(chosen, tuple(sets))
            raise InputError(
                f"columns.{name}: levels = {chosen!r} must be a list, or the name of one of level_sets{meant}"
            )
        del found["levels"]
        if twice := sorted(set(found) & set(known)):
            raise InputError(f"columns.{name}: {twice[0]} is in level_sets.{chosen} too; leave it out of one.")
        found |= known
    if len(given := sorted({"levels", "groups", "levels_file"} & set(found))) > 1:
        raise InputError(f"columns.{name}: {given[0]} and {given[1]} both say what the levels are; leave one out.")
    if "levels_file" in found:
        path = found["levels_file"] = Path(str(found["levels_file"])).expanduser()
        remedy = f"columns.{name}: levels_file is a public file with one level on each line."
        lines = parse_file(path, str.splitlines, "a text", remedy)
        found["levels"] = [level for line in lines if (level := line.removeprefix("\ufeff").strip())]
        if wrong := [place for place, line in enumerate(lines, 1) if "," in line]:
            raise InputError(
                f"columns.{name}: {path}: line {wrong[0]} has a comma; write one level on each line alone."
            )
    return found
