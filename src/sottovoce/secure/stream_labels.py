"""What a label of secure columns says, and how records are cut into pieces that fit a frame.

    label    what for, of which round, for which records, and the hash of all that was told so far

Masks, envelopes and what is dealt follow from keys, rows and what was told, in this round and in those before it. All
that was told is in every label: who is asked by other numbers, a copy or a fork, has other masks. A piece (start, stop)
is in every label too: the words of a piece have a stream of their own, and the caller goes from piece to piece. Both
cuts follow from public numbers.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray

from sottovoce.errors import RefusedError
from sottovoce.secure.streams import hash_of, write_label

Piece = tuple[int, int]

WHOLE: Final = (0, 0)  # of what is not cut into pieces
NOTHING_TOLD: Final = ""  # the hash before the first round

FRAME: Final = 60 * 2**20  # bytes of one message
COLUMNS: Final = "columns"  # masks a party's columns: A_m
OWN: Final = "own"  # its share of the dealer's noise on a sum of what each party has by itself
GRAM: Final = "gram"  # its share of the dealer's A'A
_RECORD: Final = 240  # bytes of a record in the longest message of a program: the tables of its clipping factor
_PARTY: Final = 16  # and of one party, where each party is sent all others' messages


def label(name: str, use: int, piece: Piece, said: str) -> list[Any]:
    """Of one stream or envelope: what for, of which round, for which records, after what was told."""
    return [name, use, *piece, said]


class Asked(NamedTuple):
    """A round, and the hash of all that was told in the run until then, its own numbers last."""

    number: int
    said: str

    def label(self, name: str, piece: Piece = WHOLE) -> list[Any]:
        """Of what is made in the round."""
        return label(name, self.number, piece, self.said)


class TranscriptHash:
    """The running hash of what one end was told in a run, in the order in which it came.

    Guarantee: ends that were told the same in the same order have the same hash, and others another one. A round is
    told one set of numbers; others are refused.
    """

    def __init__(self) -> None:
        self._told: dict[tuple[str, int], tuple[str, Asked]] = {}
        self._said = NOTHING_TOLD

    def after(self, query: str, number: int, told: Mapping[str, NDArray[Any]]) -> Asked:
        """Take in what a round is asked by; told again, it is what it was."""
        by = hash_of(told)
        if (query, number) not in self._told:
            self._said = hashlib.sha256(write_label([self._said, query, number, by])).hexdigest()
            self._told[query, number] = by, Asked(number, self._said)
        known, asked = self._told[query, number]
        if known != by:
            raise RefusedError(f"query {query!r} in round {number} was told other numbers before.")
        return asked


def pieces(records: int, width: int) -> tuple[Piece, ...]:
    """Cuts of the records such that `width` bytes of each fit one frame."""
    size = max(1, FRAME // max(width, 1))
    count = max(1, math.ceil(records / size))
    cuts = [records * part // count for part in range(count + 1)]
    return tuple(itertools.pairwise(cuts))


def column_pieces(records: int, widths: Mapping[str, int]) -> tuple[Piece, ...]:
    """Of masked columns: those of all parties together fit."""
    return pieces(records, 8 * sum(widths.values()))


def program_pieces(records: int, parties: int) -> tuple[Piece, ...]:
    """Of all else."""
    return pieces(records, max(_RECORD, _PARTY * parties))
