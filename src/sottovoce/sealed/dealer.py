"""The dealer's side of sealed products over columns: random numbers for the parties, and no data.

It shares a seed with each party, so it knows all pads A_m, a_m and rho_m, and gives what the parties lack:

    Gram matrix   A_m'A_j, m < j, and noise
    a round       table[n, v] = f_{v + floor(a_n / 2^q)}, and A'rho and noise;     a = sum_m a_m, rho = sum_m rho_m

Each is shared additively: all parties but one make their share from the seed, and that one, in turn, is dealt the rest.
What is dealt goes to its party alone: with the streams of the others it is the table itself. Proof:
`proofs/columns.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError
from sottovoce.sealed import ring
from sottovoce.sealed.columns import ONE, ROWS, places
from sottovoce.sealed.pads import (
    COLUMNS,
    CORRECTION,
    GRAM,
    NOTHING_TOLD,
    OWN,
    SCORES,
    SLOPES,
    TABLE,
    Asked,
    Piece,
    blocks,
    column_pieces,
    label,
)
from sottovoce.sealed.ring import Scores, Signed, Words
from sottovoce.sealed.streams import stream
from sottovoce.sealed.tables import Lookup

Noise = NDArray[np.int64] | int


def receiver_of(names: Sequence[str], round: int) -> str:
    """Who is dealt the words of a round: one party after the other."""
    return names[round % len(names)]


class Dealer:
    """What the dealer makes, from the seeds that it shares with the parties, in their order.

    Nothing here depends on data: for one set of seeds and noise the words dealt are always the same.
    """

    def __init__(self, seeds: Mapping[str, bytes], widths: Mapping[str, int], records: int, holder: str) -> None:
        if set(seeds) != set(widths) or holder not in seeds or len(seeds) < 2:
            raise InputError(f"seeds and widths must be of the same two parties or more, holder={holder!r} among them.")
        self.names, self.holder, self.records = tuple(seeds), holder, records
        self._seeds = dict(seeds)
        self._widths: dict[str, dict[str, int]] = {}
        self._said: dict[str, str] = {}  # by matrix, as its parties have it
        self._pads: dict[str, Signed] = {}
        self.add_matrix(ROWS, widths)

    def add_matrix(self, name: str, widths: Mapping[str, int] | None = None, *, said: str = NOTHING_TOLD) -> None:
        """A further table of the same records, by default as wide as the rows; once, after what was told then."""
        if name in self._widths:
            return
        given = self._widths[ROWS] if widths is None else widths
        self._widths[name], self._said[name] = {party: given[party] for party in self.names}, said

    def gram(self, asked: Asked, noise: Noise = 0) -> tuple[str, Words]:
        """(who gets it, A_m'A_j for all m < j and noise, less the others' shares), the upper triangle row by row."""
        pads = self._pads_of(ROWS)
        total = np.zeros((pads.shape[1], pads.shape[1]), dtype=np.int64)
        for place in places(self._widths[ROWS]).values():
            total[place, place.stop :] = ring.cross(pads[:, place], pads[:, place.stop :])
        triangle = total[np.triu_indices(len(total))]
        return self.names[0], self._rest(triangle, noise, asked.label(GRAM), self.names[0])

    def own(self, asked: Asked, noise: NDArray[np.int64]) -> tuple[str, Words]:
        """(who gets it, noise less the others' shares), for a sum of what each party has by itself."""
        receiver = receiver_of(self.names, asked.number)
        return receiver, self._rest(np.zeros(len(noise), dtype=np.int64), noise, asked.label(OWN), receiver)

    def lookup(
        self, asked: Asked, lookup: Lookup, matrix: str = ROWS, noise: Noise = 0, *, piece: Piece | None = None
    ) -> tuple[str, Words, Words]:
        """(who gets it, table (records, outputs, levels), correction (outputs, columns)) of a piece, by default of all.

        Noise is that of the whole sum: for one of the pieces, 0 for the others.
        """
        piece = piece or (0, self.records)
        receiver = receiver_of(self.names, asked.number)
        count = piece[1] - piece[0]
        masks = np.zeros(count, dtype=np.uint16)
        rho = np.zeros((count, lookup.outputs), dtype=np.int64)
        for seed in self._seeds.values():
            masks += stream(seed, asked.label(SCORES, piece), count, np.uint16)
            rho += stream(seed, asked.label(SLOPES, piece), rho.size).view(np.int64).reshape(rho.shape)
        if matrix == ONE:
            exact = np.zeros(lookup.outputs, dtype=np.int64)
        else:
            exact = ring.weighted_rows(self._pads_of(matrix)[piece[0] : piece[1]], rho)
        correction = self._rest(exact, noise, [*asked.label(CORRECTION, piece), matrix], receiver)
        return receiver, self._table(asked, lookup, masks, receiver, piece), correction

    def _table(self, asked: Asked, lookup: Lookup, masks: Scores, receiver: str, piece: Piece) -> Words:
        others = [seed for party, seed in self._seeds.items() if party != receiver]
        table = np.empty((len(masks), *lookup.nodes.shape), dtype=np.int64)
        spare = np.empty(0, dtype=np.uint64)
        for start, stop in blocks(len(masks), lookup.nodes.size):
            part, of = table[start:stop], [*asked.label(TABLE, piece), start]
            stream(others[0], of, part.size, out=part.view(np.uint64))
            for seed in others[1:]:
                spare = spare if spare.size == part.size else np.empty(part.size, dtype=np.uint64)
                part += stream(seed, of, part.size, out=spare).view(np.int64).reshape(part.shape)
            np.negative(part, out=part)
            ring.add_tables(part, lookup.nodes, masks[start:stop], lookup.fine)
        return table.view(np.uint64)

    def _rest(self, exact: Signed, noise: Noise, of: list[Any], receiver: str) -> Words:
        """Exact + noise - sum of the others' shares."""
        total = exact + np.reshape(noise, exact.shape if np.ndim(noise) else ())
        for party, seed in self._seeds.items():
            if party != receiver:
                total -= stream(seed, of, total.size).view(np.int64).reshape(total.shape)
        return np.asarray(total, dtype=np.int64).view(np.uint64)

    def _pads_of(self, matrix: str) -> Signed:
        """(A_1 ... A_M), made once."""
        if matrix not in self._widths:
            raise InputError(f"matrix={matrix!r} is not known; add it first.")
        if matrix not in self._pads:
            widths = self._widths[matrix]
            found = np.empty((self.records, sum(widths.values())), dtype=np.int64)
            for piece in column_pieces(self.records, widths):
                for party, place in places(widths).items():
                    shape = (piece[1] - piece[0], widths[party])
                    of = label(COLUMNS, matrix, piece, self._said[matrix])
                    pad = stream(self._seeds[party], of, shape[0] * shape[1])
                    found[piece[0] : piece[1], place] = pad.view(np.int64).reshape(shape)
            self._pads[matrix] = found
        return self._pads[matrix]
