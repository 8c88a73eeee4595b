"""What a label of sealed columns says, and how records are cut into pieces that fit a frame.

A piece (start, stop) is in every label: the words of a piece have a stream of their own, and the caller goes from piece
to piece. Both cuts follow from public numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, Final

Piece = tuple[int, int]

FRAME: Final = 60 * 2**20  # bytes of words in one message
_BLOCK: Final = 2**17  # words of a table that are made at a time
COLUMNS: Final = "columns"  # pads a party's columns: A_m
SCORES: Final = "scores"  # pads its scores, of 16 bits: a_m
SLOPES: Final = "slopes"  # pads its shares of the slopes: rho_m
OWN: Final = "own"  # its share of the dealer's noise on a sum of what each party has by itself
GRAM: Final = "gram"  # its share of the dealer's A'A
TABLE: Final = "table"  # its share of the dealer's table
CORRECTION: Final = "correction"  # its share of the dealer's A'rho


def label(name: str, use: str | int, piece: Piece) -> list[Any]:
    """Of one stream: what for, of which matrix or round, for which records."""
    return [name, use, *piece]


def pieces(records: int, width: int) -> tuple[Piece, ...]:
    """Cuts of the records such that `width` words of each fit one frame."""
    size = max(1, FRAME // (8 * max(width, 1)))
    count = max(1, math.ceil(records / size))
    cuts = [records * part // count for part in range(count + 1)]
    return tuple(itertools.pairwise(cuts))


def column_pieces(records: int, widths: Mapping[str, int]) -> tuple[Piece, ...]:
    """Of masked columns: those of all parties together fit."""
    return pieces(records, sum(widths.values()))


def round_pieces(records: int, parties: int, words: int) -> tuple[Piece, ...]:
    """Of a round: the table, `words` of a record, and the slopes of all parties fit."""
    return pieces(records, max(words, parties))


def blocks(records: int, words: int) -> list[Piece]:
    """Cuts of a piece whose tables, `words` of a record, stay in the cache; each has a stream of its own."""
    size = max(1, _BLOCK // max(words, 1))
    return [(start, min(start + size, records)) for start in range(0, records, size)]
