"""Entries of a schema, each read as a column; which kind it is, its keys say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any, Final

import numpy as np

from sottovoce.arguments import is_number, is_whole
from sottovoce.data.bounds import LARGEST
from sottovoce.data.column_kinds import (
    KINDS,
    PRIVATE,
    SHAPES,
    Beside,
    Category,
    Column,
    CountColumn,
    Curve,
    Number,
    YesNo,
)
from sottovoce.data.curves import KNOTS
from sottovoce.data.levels import plain_level, resolve_levels
from sottovoce.errors import InputError, did_you_mean

NOTES: Final = ("source", "sensitive")  # of any column: where its declaration comes from, and that it needs care
_LONGEST: Final = 300  # characters of a source
BESIDE = ("exposure", "weight", "time", "entry")


def read_beside(columns: Mapping[str, Any]) -> tuple[dict[str, Beside], dict[str, Any]]:
    """The columns that stand beside the label, such as `{ exposure = [0, 1] }`, by their kinds; and the others."""
    found, others = dict[str, Beside](), dict[str, Any]()
    for name, entry in columns.items():
        kind = next((key for key in BESIDE if isinstance(entry, Mapping) and key in entry), None)
        if kind is None:
            others[name] = entry
            continue
        pair = entry[kind] if isinstance(entry[kind], list | tuple) else []
        numbers = len(pair) == 2 and all(map(is_number, pair)) and pair[0] == 0 and 0 < pair[1] <= LARGEST
        if len(entry) > 1 or not numbers or kind in found:
            raise InputError(
                f"columns.{name} = {dict(entry)!r} must be {{ {kind} = [0, most] }} and nothing else, once in a "
                "schema; larger ones are cut."
            )
        found[kind] = Beside(name, kind, float(pair[1]))
    return found, others


def read_column(name: str, entry: Any, level_sets: Mapping[str, Any]) -> Column:
    """A column of its entry; which kind it is, the entry's keys say."""
    if not isinstance(entry, Mapping):
        raise InputError(
            f"columns.{name} = {entry!r} must be a table that says what the column holds: {{ range = [low, high] }}, "
            "{ levels = [...] } or { yes = ..., no = ... }."
        )
    given = resolve_levels(name, entry, level_sets)
    kinds = [kind for kind in KINDS if kind.keys[0] in given or (kind is Category and "groups" in given)]
    if len(kinds) != 1:
        raise InputError(
            f"columns.{name} must have one of range (a number), levels, groups or levels_file (a category), yes and no."
        )
    kind = kinds[0]
    for key, value in given.items():
        if key not in kind.keys:
            meant = did_you_mean(str(key), kind.keys)
            raise InputError(f"columns.{name} has no key {key!r}{meant} Beside {kind.keys[0]}: {', '.join(kind.keys)}.")
        if key in ("missing", "other", "narrow") and not isinstance(value, bool):
            raise InputError(f"columns.{name}: {key} = {value!r} must be true or false.")
    if kind is CountColumn:
        if not (is_whole(most := given["counts"]) and most >= 1):
            raise InputError(f"columns.{name}: counts = {most!r} must be the largest count, a whole number from 1 on.")
        return CountColumn(name, 0.0, float(most))
    if kind is Number:
        return _number_column(name, given)
    if kind is Category:
        return _category(name, given)
    if "no" not in given:
        raise InputError(f"columns.{name} lacks no: what a cell holds where it is not {given['yes']!r}.")
    return YesNo(name, plain_level(name, given.pop("yes")), plain_level(name, given.pop("no")), **given)


def _category(name: str, given: dict[str, Any]) -> Category:
    if (groups := given.pop("groups", None)) is not None:
        lists = list(groups.values()) if isinstance(groups, Mapping) else [groups]
        if not all(isinstance(codes, list | tuple) and codes for codes in lists) or lists == [groups]:
            raise InputError(f'columns.{name}: groups must be a table of lists: {{ heart = ["I20-I25", "I5*"], ... }}.')
        given["groups"] = tuple(tuple(plain_level(name, code) for code in codes) for codes in groups.values())
    if given.get("reference") is not None:
        given["reference"] = plain_level(name, given["reference"])
    levels = given.pop("levels", groups)
    if levels is not groups and (isinstance(levels, str | Mapping) or not isinstance(levels, Iterable)):
        raise InputError(f"columns.{name}: levels = {levels!r} must be a list of texts or numbers.")
    return Category(name, tuple(plain_level(name, level) for level in levels), **given)


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
        dates = " Of dates make the days since one of them first." if any(map(_is_date, pair)) else ""
        raise InputError(
            f"columns.{name}: range = {declared!r} must be two numbers, low and high.{dates} Choose them from what is "
            'publicly known, not from these data; cells beyond are cut. Where nobody knows them: range = "private".'
        )
    return kind(name, float(pair[0]), float(pair[1]), fill=fill, **given)


def _is_date(end: Any) -> bool:
    """Whether an end of a range is a date, also one written as text."""
    if not isinstance(end, str):
        return hasattr(end, "year")
    try:
        return bool(date.fromisoformat(end[:10]))
    except ValueError:
        return False


def _read_knots(given: Any) -> Any:
    """Places as numbers; what is neither these nor a number is refused where the range is known."""
    if is_whole(given) or not isinstance(given, list | tuple | np.ndarray) or not all(map(is_number, given)):
        return int(given) if is_whole(given) else 0
    return tuple(map(float, given))


def separate_notes(columns: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What entries say about cells, and what they say about their columns."""
    found, notes = dict[str, Any](), dict[str, dict[str, Any]]()
    for name, entry in columns.items():
        noted = {key: entry[key] for key in NOTES if key in entry} if isinstance(entry, Mapping) else {}
        found[name] = {key: value for key, value in entry.items() if key not in NOTES} if noted else entry
        source = noted.get("source", "")
        if not isinstance(source, str) or not source.isprintable() or len(source) > _LONGEST:
            raise InputError(
                f"columns.{name}: source = {source!r} must be one line of at most {_LONGEST} characters that says "
                'where the declaration comes from: "code book, page 12".'
            )
        if not isinstance(noted.get("sensitive", False), bool):
            raise InputError(f"columns.{name}: sensitive = {noted['sensitive']!r} must be true or false.")
        if noted:
            notes[name] = noted
    return found, notes
