"""The dealer's side of secure products over columns: random numbers for the parties, and no data.

It shares a seed with each party, so it knows all masks, and gives what the parties lack:

    Gram matrix   A_m'A_j, m < j, and noise
    a look-up     the table, moved by the mask of the index: bits, shared by XOR
    bits          the mask gamma of a bit as a number, and its product with the mask of what the bit is multiplied by
    |P'x|^2       |P'a|^2, a the masks of a row
    a sum         P'(A'rho), rho the masks of the slopes, and noise

Each is shared: all parties but one make their share from the seed, and that one, in turn, is dealt the rest, in one
envelope for a program. What is dealt goes to its party alone: with the streams of the others it is the table itself.
Proof:
`proofs/columns.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError
from sottovoce.privacy.mechanisms import Randomness
from sottovoce.secure import ring
from sottovoce.secure.columns import BELOW, COARSE_LEVELS, FINE_LEVELS, KEPT, NULL_LEVELS, Place, places, said_like
from sottovoce.secure.ring import CHANCE_BITS, CLIP_LEVELS, FACTOR_BITS, FINE, LookUp, Projection, Signed, factors
from sottovoce.secure.streams import SET_UP, Fields, Piece, RoundLabels, add_fields, column_pieces, stream_fields

Noise = Signed | int
Uniform = NDArray[np.uint16]

ALWAYS = 1 << CHANCE_BITS
_CHUNK = 2**15


def receiver_of(names: Sequence[str], round: int) -> str:
    """Who is dealt the words of a round: one party after the other."""
    return names[round % len(names)]


class ColumnDealer:
    """What the dealer makes, from the seeds that it shares with the parties, in their order.

    Nothing here depends on data: for one set of seeds, noise and coins the words dealt are always the same.
    """

    def __init__(self, seeds: Mapping[str, bytes], place: Place, records: int) -> None:
        if tuple(seeds) != tuple(place.widths) or len(seeds) < 2:
            raise InputError("seeds and widths must be of the same two parties or more, in one order.")
        self.names, self.records = tuple(seeds), records
        self._place, self._seeds = place, dict(seeds)
        self._columns: Signed | None = None
        self._asked = {"null": SET_UP}  # by which n and f were shared

    def gram(self, asked: RoundLabels, noise: Noise = 0) -> tuple[str, Fields]:
        """(who gets it, A_m'A_j for all m < j and noise, less the others' shares), the upper triangle row by row."""
        masks = self._masks_of_columns()
        total = np.zeros((masks.shape[1], masks.shape[1]), dtype=np.int64)
        for place in places(self._place.widths).values():
            total[place, place.stop :] = ring.cross(masks[:, place], masks[:, place.stop :])
        triangle = total[np.triu_indices(len(total))]
        return self._rest(asked.label("gram"), asked, (triangle + noise,))

    def own(self, asked: RoundLabels, noise: Signed) -> tuple[str, Fields]:
        """(who gets it, noise less the others' shares), for a sum of what each party has by itself."""
        return self._rest(asked.label("own"), asked, (noise,))

    def null(self, asked: RoundLabels, piece: Piece) -> tuple[str, Fields]:
        """Bits at the number of parts that are null: 1 but for none of them."""
        count = piece[1] - piece[0]
        index, *second = self._masks("null", 0, asked, piece)
        chances = np.full((1, 1, NULL_LEVELS), ALWAYS)
        chances[0, 0, 0] = 0
        certain, unswapped = np.zeros((count, 1), dtype=np.uint16), np.zeros(count, dtype=np.uint8)
        table = ring.tables(chances, certain, index.astype(np.int64) & (NULL_LEVELS - 1), unswapped)
        gamma = self._gammas("null", 1, asked, piece)
        (mask,) = self._masks("null", 2, asked, piece)
        product = mask * second[0] if second else np.zeros(0, dtype=np.int64)
        return self._rest(asked.label("null dealt", piece), asked, (table, gamma, product))

    def factor(self, asked: RoundLabels, piece: Piece, projection: Projection) -> tuple[str, Fields]:
        self._asked["factor"] = asked
        chances = ALWAYS * ((factors()[None, :] >> np.arange(FACTOR_BITS)[:, None]) & 1)
        certain = np.zeros((piece[1] - piece[0], FACTOR_BITS), dtype=np.uint16)  # nothing is left to chance
        clip = self._clip("factor", asked, piece, projection, (chances, certain))
        (mask,) = self._masks("factor", 3, asked, piece)
        product = np.zeros(0, dtype=np.int64)
        if self._place.classes:  # y' was told under these masks before anything else was
            product = mask * self._masks("null", 0, self._asked["null"], piece)[1]
        return self._rest(asked.label("factor dealt", piece), asked, (*clip, product))

    def length(
        self, asked: RoundLabels, piece: Piece, projection: Projection, noise: Noise, coins: Randomness
    ) -> tuple[str, Fields]:
        """Bits of the mean min(1, |z| / 2C). Noise is that of the whole sum: for one piece, 0 for the others."""
        roots = np.rint(ALWAYS * np.sqrt(np.arange(FINE_LEVELS) / CLIP_LEVELS) / 2)
        uniform = np.frombuffer(coins.bytes(2 * (piece[1] - piece[0])), dtype="<u2").reshape(-1, 1)
        last = np.minimum(ALWAYS, roots).astype(np.int64)[None], uniform
        clip = self._clip("length", asked, piece, projection, last)
        return self._rest(asked.label("length dealt", piece), asked, (*clip, np.reshape(noise, 1)))

    def look_up(
        self, asked: RoundLabels, piece: Piece, lookup: LookUp, noise: Noise, coins: Randomness
    ) -> tuple[str, Fields]:
        """The table, what bits are multiplied with, and what the sum lacks."""
        count, outputs = piece[1] - piece[0], len(lookup.chances)
        (index,) = self._masks("look-up", 0, asked, piece, lookup)
        shifts = (index.astype(np.int64) & ((lookup.chances.shape[1] << FINE) - 1)) >> FINE
        uniform = np.frombuffer(coins.bytes(2 * count * outputs), dtype="<u2").reshape(count, outputs)
        table = ring.tables(lookup.chances[None], uniform, shifts, np.zeros(count, dtype=np.uint8))
        gamma = self._gammas("look-up", 1, asked, piece, lookup)
        (weight,) = self._masks(lookup.weight, -1, self._asked[lookup.weight], piece)
        product = gamma * weight[:, None]
        exact = np.zeros(len(lookup.scales), dtype=np.int64)
        if lookup.matrix != "one":
            (rho,) = self._masks("look-up", 2, asked, piece, lookup)
            exact = ring.sum_weighted(self._masks_of_columns()[slice(*piece)], rho)
        if lookup.projection is not None:
            exact = ring.through(exact[None], lookup.projection)[0]
        return self._rest(asked.label("look-up dealt", piece), asked, (table, gamma, product, exact + noise))

    def _clip(
        self, program: str, asked: RoundLabels, piece: Piece, projection: Projection, last: tuple[Signed, Uniform]
    ) -> Fields:
        """|P'a|^2, whether a row is kept, a table (chances, uniform numbers) for those that are, and masks of bits."""
        count, masks = piece[1] - piece[0], self._masks_of_columns()
        squares, (chances, uniform) = np.empty(count, dtype=np.int64), last
        for start in range(*piece, _CHUNK):
            stop = min(start + _CHUNK, piece[1])
            seen = ring.through(masks[start:stop], projection.matrix)
            squares[start - piece[0] : stop - piece[0]] = np.einsum("ij,ij->i", seen, seen)
        kept = np.full((2, 1, COARSE_LEVELS), ALWAYS)
        kept[0, 0, :KEPT] = 0
        both, tables = np.stack([chances, np.zeros_like(chances)]), []
        for number, table in enumerate(((kept, np.zeros((count, 1), dtype=np.uint16)), (both, uniform))):
            choice, index = self._masks(program, number, asked, piece)
            levels = np.asarray(index.astype(np.int64) & 0xFFFF) >> BELOW
            tables.append(ring.tables(*table, levels, np.unpackbits(choice, axis=0, count=count)[:, 0]))
        return squares, *tables, self._gammas(program, 2, asked, piece)

    def _gammas(
        self, program: str, number: int, asked: RoundLabels, piece: Piece, lookup: LookUp | None = None
    ) -> Signed:
        """The masks of bits, as numbers."""
        (packed,) = self._masks(program, number, asked, piece, lookup)
        return np.unpackbits(packed, axis=0, count=piece[1] - piece[0]).astype(np.int64)

    def _masks(
        self, program: str, number: int, asked: RoundLabels, piece: Piece, lookup: LookUp | None = None
    ) -> Fields:
        """The sum over the parties of the masks of a message; -1 is the last of the program."""
        messages = said_like(program, piece, self._place, lookup)
        number %= len(messages)
        of, (first, *others) = asked.label(f"{program} {number}", piece), self._seeds.values()
        total = stream_fields(first, of, messages[number])
        for seed in others:
            total = add_fields(total, stream_fields(seed, of, messages[number]))
        return total

    def _rest(self, of: list[Any], asked: RoundLabels, exact: Fields) -> tuple[str, Fields]:
        """(who is dealt to, what is to be shared less the others' shares)."""
        receiver = receiver_of(self.names, asked.number)
        for party, seed in self._seeds.items():
            if party != receiver:
                exact = add_fields(exact, stream_fields(seed, of, exact), less=True)
        return receiver, exact

    def _masks_of_columns(self) -> Signed:
        """(A_1 ... A_M), made once."""
        if self._columns is None:
            widths = self._place.widths
            found = self._columns = np.empty((self.records, sum(widths.values())), dtype=np.int64)
            for piece in column_pieces(self.records, widths):
                for party, place in places(widths).items():
                    like = (np.broadcast_to(np.int64(0), (piece[1] - piece[0], widths[party])),)
                    of = SET_UP.label("columns", piece)
                    (found[slice(*piece), place],) = stream_fields(self._seeds[party], of, like)
        return self._columns
