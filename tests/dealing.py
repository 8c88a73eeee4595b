"""What tests of sealed columns share: parties and a dealer in one process, pads on, masks and noise off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.privacy.randomness import Randomness, SeededRandomness
from sottovoce.sealed.columns import ROWS, Columns
from sottovoce.sealed.dealer import Dealer
from sottovoce.sealed.pads import SCORES, SLOPES, Asked, Piece, column_pieces
from sottovoce.sealed.streams import stream
from sottovoce.sealed.tables import Lookup

Words = NDArray[np.uint64]

FIRST = Asked(0, "")


def seeds_of(count: int, seed: int = 0) -> dict[str, bytes]:
    return {f"p{m}": bytes([seed % 256, m]) * 16 for m in range(count)}


def some_rows(records: int, width: int, bits: int, seed: int = 0) -> NDArray[np.int64]:
    """Integer rows of norm at most 2^bits, most of them close to it."""
    rows = np.random.default_rng(seed).standard_normal((records, width))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return np.trunc(rows * 2.0**bits).astype(np.int64)


class Run:
    """M parties over the columns of one table, and their dealer; `noise` is what the dealer adds."""

    def __init__(
        self,
        rows: NDArray[np.int64],
        labels: NDArray[np.float64],
        widths: list[int],
        bits: int,
        *,
        holder: int = 0,
        seed: int = 0,
    ) -> None:
        self.seeds = seeds_of(len(widths), seed)
        self.names = tuple(self.seeds)
        self.widths = dict(zip(self.names, widths, strict=True))
        self.bits, self.records, self.rows = bits, len(rows), rows
        ends = np.cumsum([0, *widths])
        self.parties = {
            name: Columns(
                name, self.names, self.widths, rows[:, ends[m] : ends[m + 1]],
                labels if m == holder else None, self.seeds[name], bits,
            )
            for m, name in enumerate(self.names)
        }  # fmt: skip
        self.dealer = Dealer(self.seeds, self.widths, self.records, self.names[holder])
        self.seen: dict[Any, Any] = {}

    def padded(self, party: str, of: list[Any], words: NDArray[Any]) -> NDArray[Any]:
        kind = np.uint16 if words.dtype == np.uint16 else np.uint64
        pad = stream(self.seeds[party], of, words.size, kind)
        self.seen[(party, *of)] = found = words - pad.reshape(words.shape)
        return found

    def exchange(self, matrix: str = ROWS) -> Run:
        for piece in column_pieces(self.records, self.widths):
            sent = {
                name: self.padded(name, party.columns_label(matrix, piece), party.columns(matrix, piece))
                for name, party in self.parties.items()
            }
            for name, party in self.parties.items():
                party.receive_columns({o: w for o, w in sent.items() if o != name}, matrix, piece)
        return self

    def gram_shares(self, noise: Any = 0) -> dict[str, Words]:
        receiver, correction = self.dealer.gram(FIRST, noise)
        return {name: p.gram(FIRST, correction if name == receiver else None) for name, p in self.parties.items()}

    def round(
        self,
        round: int,
        weights: NDArray[np.float64],
        lookup: Lookup,
        *,
        matrix: str = ROWS,
        noise: Any = 0,
        dithers: Randomness | None = None,
        pieces: tuple[Piece, ...] | None = None,
        offset: float = 0.0,
    ) -> dict[str, Words]:
        """Each party's share of the gradient; the looked-up slopes are in `seen["r"]`."""
        drawn = dithers or SeededRandomness(round, "dithers")
        shares: dict[str, Words] = {}
        asked = Asked(round, "")
        looked = []
        for piece in pieces or ((0, self.records),):
            receiver, table, correction = self.dealer.lookup(asked, lookup, matrix, noise, piece=piece)
            noise = 0
            deltas, start = {}, 0
            for name, party in self.parties.items():
                own = weights[start : start + self.widths[name]]
                start += self.widths[name]
                k = party.scores(asked, own, lookup, drawn, offset, matrix=ROWS, piece=piece)
                deltas[name] = self.padded(name, asked.label(SCORES, piece), k)
            slopes = {}
            total = np.zeros((piece[1] - piece[0], lookup.outputs), dtype=np.uint64)
            for name, party in self.parties.items():
                r = party.slopes(asked, deltas, table if name == receiver else None, piece=piece)
                total += r
                slopes[name] = self.padded(name, asked.label(SLOPES, piece), r)
            looked.append(total.view(np.int64))
            for name, party in self.parties.items():
                dealt = correction if name == receiver else None
                share = party.gradient(asked, slopes, dealt, matrix, piece=piece)
                shares[name] = shares[name] + share if name in shares else share
        self.seen["r"] = np.concatenate(looked)
        return shares


def opened(shares: Mapping[str, Words]) -> NDArray[np.int64]:
    """The sum of all shares, read as signed."""
    return np.sum(list(shares.values()), axis=0, dtype=np.uint64).view(np.int64)
