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
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.cells import MISSING
from sottovoce.errors import InputError

_SHOWN: Final = 20  # records that an error names
_PIECE: Final = 2**13  # records at a time
_MISSING: Final = MISSING | {"<na>", "nat"}  # as pandas writes them


def _usual(text: str) -> str:
    if not text.isascii():
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    text = "".join(text.casefold().split())
    return (text.lstrip("0") or "0") if text.isascii() and text.isdigit() else text


RULES: Final[Mapping[str, Callable[[str], str]]] = {"usual": _usual, "exact": str.strip}


class Identifiers:
    """Identifiers by their places, in one block: 8 bytes for each, and its letters."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._letters, self._ends = bytearray(), array("q", [0])
        for text in texts:
            self._letters += text.encode("utf-8", "surrogatepass")
            self._ends.append(len(self._letters))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, place: int) -> str:
        return self._letters[self._ends[place] : self._ends[place + 1]].decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        return self.at(range(len(self)))

    def at(self, places: Iterable[int]) -> Iterator[str]:
        return map(self.__getitem__, places)


def identifiers(values: Sequence[Any] | NDArray[Any], records: int, party: str, rule: str = "usual") -> Identifiers:
    """The identifiers of all records by the rule: one each, none missing, no two the same. For the holder's eyes."""
    if rule not in RULES:
        raise InputError(f"{party}: id_rule={rule!r} must be one of {', '.join(RULES)}.")
    write = RULES[rule]
    cells = (values if isinstance(values, np.ndarray) else np.asarray(values, dtype=object)).ravel()
    pieces = (cells[start : start + _PIECE].astype(object).tolist() for start in range(0, len(cells), _PIECE))
    texts = Identifiers(write(identifier_text(one)) for one in chain.from_iterable(pieces))
    if len(texts) != records:
        raise InputError(f"{party}: ids has {len(texts)} values for {records} records; give each record one.")
    missing = [place for place, text in enumerate(texts, 1) if not text]
    if missing:
        raise InputError(
            f"{party}: {len(missing)} records have no identifier, or one from 2^53 on that is no whole number or text "
            f"({_show_rows(missing)}); give each record one of its own."
        )
    hashes = np.fromiter(map(hash, texts), dtype=np.int64, count=records)
    hashes.sort()
    if bool((hashes[1:] == hashes[:-1]).any()) and len(set(texts)) < records:
        often = {text for text, times in Counter(texts).items() if times > 1}
        twice = [place for place, text in enumerate(texts, 1) if text in often]
        raise InputError(
            f"{party}: {len(often)} identifiers occur more than once by the rule {rule!r} ({_show_rows(twice)}); give "
            "each record one of its own, or take the others out."
        )
    return texts


def as_written(values: Sequence[Any] | NDArray[Any]) -> Identifiers:
    """The identifiers as the file has them: for results that their holder joins with its own records."""
    return Identifiers(map(identifier_text, np.asarray(values, dtype=object).ravel()))


def hash_of_list(texts: Iterable[str], head: bytes = b"") -> str:
    """SHA-256 of a list of identifiers in their order, after a head: two different lists are two different texts."""
    found, rest, comma = hashlib.sha256(head + b"["), iter(texts), b""
    while piece := list(islice(rest, _PIECE)):
        found.update(comma + json.dumps(piece, separators=(",", ":"))[1:-1].encode())
        comma = b","
    found.update(b"]")
    return found.hexdigest()


def fingerprint(ids: Iterable[str], rule: str) -> str:
    """Of a file's identifiers in their order, for its holder alone: whoever has it can test guesses."""
    return hash_of_list(ids, rule.encode() + b"\n")


def common_places(lists: Sequence[Iterable[str]]) -> list[NDArray[np.int64]]:
    """For lists that are all here: the places of the common identifiers in each, in the order of the first."""
    common = set(lists[0]).intersection(*lists[1:])
    order = [one for one in lists[0] if one in common]
    found = []
    for ids in lists:
        places = {one: place for place, one in enumerate(ids)}
        found.append(np.array([places[one] for one in order], dtype=np.int64))
    return found


def identifier_text(one: Any) -> str:
    """An identifier as a text, before any rule; an empty one where it is missing."""
    if isinstance(one, float | np.floating):
        if not abs(float(one)) < 2**53:
            return ""
        one = int(one) if float(one).is_integer() else float(one)
    text = "" if one is None else str(one)
    return "" if text.strip().casefold() in _MISSING else text


def _show_rows(records: Sequence[int]) -> str:
    more = f" and {len(records) - _SHOWN} more" if len(records) > _SHOWN else ""
    return f"records {', '.join(map(str, records[:_SHOWN]))}{more}"
