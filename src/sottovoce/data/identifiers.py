"""Identifiers of records, as all parties write them, so that the same person has the same text everywhere.

    usual   Unicode NFKC, no case, no spaces; leading zeros of what is digits alone are dropped: " 0042" is "42"
    exact   as written, without the spaces around it

Numbers are texts: 7, 7.0 and "7" are one. What counts as a missing value in a file is no identifier: NA in two files
would be one person. Nor is a float from 2^53 on, which may be another number, rounded. Both rules are public; parties
that align have the same one.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.readers import MISSING
from sottovoce.errors import InputError

_SHOWN: Final = 20  # records that an error names
_MISSING: Final = MISSING | {"<na>", "nat"}  # as pandas writes them


def _usual(text: str) -> str:
    if not text.isascii():
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    text = "".join(text.casefold().split())
    return (text.lstrip("0") or "0") if text.isascii() and text.isdigit() else text


RULES: Final[Mapping[str, Callable[[str], str]]] = {"usual": _usual, "exact": str.strip}


def identifiers(values: Sequence[Any] | NDArray[Any], records: int, party: str, rule: str = "usual") -> tuple[str, ...]:
    """The identifiers of all records by the rule: one each, none missing, no two the same. For the holder's eyes."""
    if rule not in RULES:
        raise InputError(f"{party}: id_rule={rule!r} must be one of {', '.join(RULES)}.")
    write = RULES[rule]
    texts = [write(_text(one)) for one in np.asarray(values, dtype=object).ravel().tolist()]
    if len(texts) != records:
        raise InputError(f"{party}: ids has {len(texts)} values for {records} records; give each record one.")
    missing = [place for place, text in enumerate(texts, 1) if not text]
    if missing:
        raise InputError(
            f"{party}: {len(missing)} records have no identifier, or one from 2^53 on that is no whole number or text "
            f"({_places(missing)}); give each record one of its own."
        )
    if len(set(texts)) < records:
        often = {text for text, times in Counter(texts).items() if times > 1}
        twice = [place for place, text in enumerate(texts, 1) if text in often]
        raise InputError(
            f"{party}: {len(often)} identifiers occur more than once by the rule {rule!r} ({_places(twice)}); give "
            "each record one of its own, or take the others out."
        )
    return tuple(texts)


def written(ids: Sequence[str]) -> bytes:
    """A list of identifiers as bytes: two different lists are two different texts."""
    return json.dumps(list(ids), separators=(",", ":")).encode()


def fingerprint(ids: Sequence[str], rule: str) -> str:
    """Of a file's identifiers in their order, for its holder alone: whoever has it can test guesses."""
    return hashlib.sha256(rule.encode() + b"\n" + written(ids)).hexdigest()


def common_places(lists: Sequence[Sequence[str]]) -> list[NDArray[np.int64]]:
    """For lists that are all here: the places of the common identifiers in each, in the order of the first."""
    common = set(lists[0]).intersection(*lists[1:])
    order = [one for one in lists[0] if one in common]
    found = []
    for ids in lists:
        places = {one: place for place, one in enumerate(ids)}
        found.append(np.array([places[one] for one in order], dtype=np.int64))
    return found


def _text(one: Any) -> str:
    if isinstance(one, float | np.floating):
        if not abs(float(one)) < 2**53:
            return ""
        one = int(one) if float(one).is_integer() else float(one)
    text = "" if one is None else str(one)
    return "" if text.strip().casefold() in _MISSING else text


def _places(records: Sequence[int]) -> str:
    more = f" and {len(records) - _SHOWN} more" if len(records) > _SHOWN else ""
    return f"records {', '.join(map(str, records[:_SHOWN]))}{more}"
