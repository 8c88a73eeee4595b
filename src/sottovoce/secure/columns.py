"""A party's side of secure products over columns: each party's share of sums over records that nobody has whole.

    masked columns   E_m = D_m - A_m                    the other parties read it, the dealer knows A_m
    Gram matrix      D_m'D_j = E_m'D_j (party j) + A_m'E_j (party m) + A_m'A_j (dealer),   m < j

and four programs, in which the parties talk in turn. What a party says is masked; all that is opened is the sum over
the parties of what they said, less the sum of their masks, which the dealer knows:

    null      n = 1 for a record that is null at no party
    factor    f = min(1, C / |P'x|), in 5 bits and from below: of a row that nobody has whole
    length    sum_i of a bit with the mean min(1, |P'x| / 2C)
    look_up   sum_i (v t - v y') R_i, t a bit looked up at the shared score, v = n or f, R the rows or P times them

Words are modulo 2^k. What a method returns or a program says is in the clear, and nothing of it may leave so: the gate
takes the masks that the dealer knows off, or adds noise and masks of pairs. Proof: `proofs/columns.md`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.people import ROOT_BITS
from sottovoce.errors import InputError, LeakError, RefusedError
from sottovoce.secure import ring
from sottovoce.secure.ring import FACTOR_BITS, FINE, LEVELS, ROW_BITS, UNIT_BITS, Bits, LookUp, Projection, Signed
from sottovoce.secure.streams import KIND, SET_UP, Fields, Piece, RoundLabels, column_pieces, stream, stream_fields

Program = Generator[Fields, Fields, Signed | None]

FINE_LEVELS, COARSE_LEVELS, NULL_LEVELS = 128, 128, 32  # of |z|^2 in C^2 / 8 and in 2 C^2; of how many parts are null
KEPT: Final = 7  # coarse levels, counted from 1, in which a row is kept: |z|^2 < 14 C^2
INDEX: Final = 16  # bits of an index of |z|^2
BELOW: Final = 9  # of them below a level
COARSE: Final = 10  # 128 levels of 2 C^2, C^2 = 4 2^g: the lowest g + 10 bits of shares of |z|^2
CLOSE: Final = 6  # 128 levels of C^2 / 8
_PUBLIC: Final = bytes(32)  # the key of streams that everybody knows
_CHUNK = 2**15  # records whose products are on the table at a time


def places(widths: Mapping[str, int]) -> dict[str, slice]:
    """Where each party's columns stand in the whole table."""
    found, start = {}, 0
    for name, width in widths.items():
        found[name] = slice(start, start + width)
        start += width
    return found


class Place(NamedTuple):
    """Which of the parties one is, and what all of them know."""

    name: str
    widths: Mapping[str, int]  # columns by party, in their order
    bits: int  # k: of a word
    classes: bool  # whether labels are of classes, and enter products


class MaskedNumber(NamedTuple):
    """A number v of each record: a share of it, this party's mask, and the opened V = v - (all masks)."""

    share: Signed
    mask: Signed
    opened: Signed


class Columns:
    """What one party computes from its columns, the other parties' masked ones and what it is dealt.

    `rows` are integers in units of 2^-8; `usable` says which records are not null here, `labels` are the holder's, of
    classes -1 and 1. `seed` is what the party shares with the dealer. That a label has one content is the gate's duty:
    this class computes whatever it is asked.
    """

    def __init__(
        self, place: Place, rows: Signed, usable: NDArray[np.bool_], labels: NDArray[np.float64] | None, seed: bytes
    ) -> None:
        names, width = tuple(place.widths), place.widths.get(place.name)
        if width is None or not 2 <= len(names) < NULL_LEVELS or rows.shape != (len(usable), width):
            raise InputError(f"rows of shape {rows.shape} do not fit the columns {dict(place.widths)!r} of {names!r}.")
        if rows.size and (int(rows.min()) < -(2**ROW_BITS) or int(rows.max()) > 2**ROW_BITS):
            raise LeakError(f"an entry of a row is beyond 2^{ROW_BITS}; nothing was released.")
        self.place, self.records = place, len(rows)
        self._names, self._first = names, place.name == names[0]  # the first adds what one of them has to add
        self._seed, self._usable = seed, np.asarray(usable, dtype=bool)
        self._own: NDArray[np.int16] = np.ascontiguousarray(rows, dtype=np.int16)
        self._scored = self._own  # what scores are made of: rows without weights
        self._roots: Signed | None = None  # of the weights, where people have several records
        self._columns = places(place.widths)[place.name]
        self._masked: Signed = np.empty((len(rows), sum(place.widths.values())), dtype=np.int64)
        self.pieces = column_pieces(len(rows), place.widths)
        self._missing = set(self.pieces)
        self._labels = None if labels is None else np.where(self._usable, labels, 0.0)
        self._nulls: dict[Piece, Bits] = {}  # shares of [the record is null at a party]
        self._weights: dict[tuple[str, Piece], tuple[MaskedNumber, Signed]] = {}  # n and f, and shares of n y' and f y'
        self._second: dict[Piece, MaskedNumber] = {}  # y', of classes

    def weigh(self, piece: Piece, roots: Signed, rows: Signed) -> None:
        """Of people with several records: roots u of the weights, and rows times u / U. From then on sums have u^2."""
        if self._roots is None:
            self._roots, self._own = np.full(self.records, -1, dtype=np.int64), np.zeros_like(self._scored)
        self._roots[slice(*piece)], self._own[slice(*piece)] = roots, rows

    def weighed(self, piece: Piece) -> bool:
        """Whether the weights of these records are known."""
        return self._roots is not None and bool((self._roots[slice(*piece)] >= 0).all())

    def columns(self, piece: Piece) -> Fields:
        """D_m, (records, own columns): masked it is E_m."""
        return (self._own[slice(*piece)].astype(np.int64),)

    def receive_columns(self, others: Mapping[str, Fields], piece: Piece) -> None:
        """The other parties' E; one's own follows from the mask. Those that are there stay."""
        if set(others) != set(self._names) - {self.place.name}:
            raise RefusedError("masked columns of the wrong parties.")
        if piece not in self._missing:
            return
        where, own = places(self.place.widths), self.columns(piece)
        (mask,) = stream_fields(self._seed, SET_UP.label("columns", piece), own)
        for party, (words,) in {**others, self.place.name: (own[0] - mask,)}.items():
            self._masked[slice(*piece), where[party]] = words
        self._missing.remove(piece)

    def gram(self, asked: RoundLabels, dealt: Fields | None = None) -> Signed:
        """A share of D'D, its upper triangle row by row; the sum over the parties is D'D and the noise dealt.

        `dealt` is what this party was dealt, None for those who make theirs from the seed.
        """
        self._check_complete()
        place, width = self._columns, self._masked.shape[1]
        total = np.zeros((width, width), dtype=np.int64)
        for start in range(0, self.records, _CHUNK):
            masked = self._masked[start : start + _CHUNK]
            own = self._own[start : start + _CHUNK].astype(np.int64)
            total[: place.start, place] += ring.cross(masked[:, : place.start], own)
            total[place, place] += ring.cross(own, own)
            total[place, place.stop :] += ring.cross(own - masked[:, place], masked[:, place.stop :])
        triangle = total[np.triu_indices(width)]
        (share,) = self._shares(dealt, asked.label("gram"), (triangle,))
        return np.asarray(triangle + share)

    def own(self, asked: RoundLabels, values: Signed, dealt: Fields | None = None) -> Signed:
        """A share of a sum of what each party has by itself; the sum over the parties has the noise dealt."""
        (share,) = self._shares(dealt, asked.label("own"), (values,))
        return np.asarray(values + share)

    def null(self, asked: RoundLabels, piece: Piece, dealt: Fields | None = None) -> Program:
        """n, and of classes y' = [the label is 1]: every sum that is looked up has the factor n or f."""
        count = piece[1] - piece[0]
        like = dealt_like("null", piece, self.place)
        table, gamma, product = self._shares(dealt, asked.label("null dealt", piece), like)
        flags = (~self._usable[slice(*piece)]).astype(np.int8)
        said: Fields = (flags,)
        if self.place.classes:  # 1 for a record of the second class, at the holder; 0 elsewhere
            labels = np.zeros(count) if self._labels is None else self._labels[slice(*piece)]
            said = flags, (labels > 0).astype(np.int64)
        opened = yield said
        total = opened[0].astype(np.int64) & (NULL_LEVELS - 1)
        bits = self._nulls[piece] = ring.looked_up(table, np.zeros(count, dtype=np.uint8), total)
        words = yield from self._share_bits(bits, gamma)
        share = -words[:, 0]
        share += self._first
        second = None
        if self.place.classes:
            mask = stream_fields(self._seed, asked.label("null 0", piece), said)[1]
            second = MaskedNumber(said[1], mask, opened[1])
        found = yield from self._open_weight(asked.label("null 2", piece), share, product, second)
        if second is not None:
            self._second[piece] = second
        self._weights["null", piece] = found
        return None

    def factor(self, asked: RoundLabels, piece: Piece, projection: Projection, dealt: Fields | None = None) -> Program:
        """f, 0 for a record that is null at a party and for a long row: |f P'x| <= 31 C, C^2 = 4 2^g."""
        like = dealt_like("factor", piece, self.place)
        *clip, product = self._shares(dealt, asked.label("factor dealt", piece), like)
        words = yield from self._clipped(piece, projection, clip)
        share = np.asarray(words @ (1 << np.arange(FACTOR_BITS, dtype=np.int64)))
        label, second = asked.label("factor 3", piece), self._second[piece] if self.place.classes else None
        self._weights["factor", piece] = yield from self._open_weight(label, share, product, second)
        return None

    def length(self, asked: RoundLabels, piece: Piece, projection: Projection, dealt: Fields | None = None) -> Program:
        """sum_i t_i in units of 2^-8, t_i of the mean min(1, |P'x_i| / 2C); 0 for null records and long rows."""
        like = dealt_like("length", piece, self.place)
        *clip, noise = self._shares(dealt, asked.label("length dealt", piece), like)
        words = yield from self._clipped(piece, projection, clip)
        words = words if self._roots is None else words * self._roots[slice(*piece), None] ** 2
        return np.asarray((words.sum(axis=0) << UNIT_BITS) + noise)

    def look_up(
        self,
        asked: RoundLabels,
        piece: Piece,
        lookup: LookUp,
        weights: NDArray[np.float64],
        dealt: Fields | None = None,
    ) -> Program:
        """The sum of a look-up over the records of a piece; `weights` are those of this party's columns."""
        count = piece[1] - piece[0]
        like = dealt_like("look-up", piece, self.place, lookup)
        table, gamma, product, noise = self._shares(dealt, asked.label("look-up dealt", piece), like)
        if (lookup.weight, piece) not in self._weights:
            raise RefusedError(f"round {asked.number} was asked for a sum before its {lookup.weight!r} was shared.")
        weight, labels = self._weights[lookup.weight, piece]
        (opened,) = yield (self._scores(asked, piece, lookup, weights),)
        levels = np.asarray(opened.astype(np.int64) & ((lookup.chances.shape[1] << FINE) - 1)) >> FINE
        bits = ring.looked_up(table, np.zeros(count, dtype=np.uint8), levels)
        (packed,) = yield (np.packbits(bits, axis=0),)
        c = np.unpackbits(packed, axis=0, count=count).astype(np.int64)  # t xor gamma; `words` is a share of v t
        words = c * weight.share[:, None] + (1 - 2 * c) * (weight.opened[:, None] * gamma + product)
        words = 2 * words - weight.share[:, None] if lookup.twice else words
        words = words if lookup.nodes is None else words[:, : len(lookup.scales)] - words[:, len(lookup.scales) :]
        roots = np.ones(count, dtype=np.int64) if self._roots is None else self._roots[slice(*piece)]
        if lookup.matrix == "one":
            words = words * roots[:, None] ** 2
            return np.asarray((words * lookup.scales).sum(axis=0) + noise)
        slopes = (words[:, 0] - labels if lookup.minus_label else words[:, 0]) * roots  # rows have the other root
        (e,) = yield (slopes,)
        self._check_complete()
        (rho,) = stream_fields(self._seed, asked.label("look-up 2", piece), (e,))
        total = ring.sum_weighted(self._masked[slice(*piece)], rho)  # of sum_i (e + rho)_i R_i, less the dealer's share
        total[self._columns] += ring.sum_weighted(self._own[slice(*piece)], e)
        return np.asarray(
            (total if lookup.projection is None else ring.through(total[None], lookup.projection)[0]) + noise
        )

    def _clipped(
        self, piece: Piece, projection: Projection, dealt: list[NDArray[Any]]
    ) -> Generator[Fields, Fields, Signed]:
        """Shares of bits looked up at |P'x|^2: first whether a row is kept, then, of those that are, at which level."""
        squares, coarse, fine, gamma = dealt
        count, matrix, exponent = piece[1] - piece[0], *projection
        if exponent + COARSE > self.place.bits:  # shares have no such bits: f would be any
            raise LeakError(f"words of {self.place.bits} bits do not hold |P'x|^2; nothing was released.")
        if piece not in self._nulls:
            raise RefusedError("a row was to be clipped before it was shared which records are null.")
        self._check_complete()
        own = np.empty(count, dtype=np.int64)  # a share of |P'x|^2, x = E + A: a party has all of E and its own A
        for start in range(*piece, _CHUNK):
            stop = min(start + _CHUNK, piece[1])
            masked = self._masked[start:stop]
            masks = self._own[start:stop] - masked[:, self._columns]
            seen = ring.through(masked, matrix)
            part = 2 * np.einsum("ij,ij->i", seen, ring.through(masks, matrix[self._columns]))
            part += np.einsum("ij,ij->i", seen, seen) if self._first else 0
            own[start - piece[0] : stop - piece[0]] = part
        squares, bits = squares + own, self._nulls[piece]
        if self._roots is not None:  # of the row without its weight: n <= floor(U^2 / u^2), and that times |x|^2 fits
            roots = self._roots[slice(*piece)]
            squares = squares * np.where(roots > 0, 4**ROOT_BITS // np.maximum(roots, 1) ** 2, 0)
        # of an index, the top 16 bits, the first party adds what the others' low bits may carry, and rounds up
        more = len(self._names) - 1 + (1 << BELOW) - 1 if self._first else 0
        for modulus, table in ((exponent + COARSE, coarse), (exponent + CLOSE, fine)):
            index = ((squares & ((1 << modulus) - 1)) >> (modulus - INDEX)) + more
            packed, opened = yield np.packbits(bits, axis=0), index.astype(np.int16)
            levels = np.asarray(opened.astype(np.int64) & 0xFFFF) >> BELOW
            bits = ring.looked_up(table, np.unpackbits(packed, axis=0, count=count)[:, 0], levels)
        return (yield from self._share_bits(bits, gamma))

    def _scores(self, asked: RoundLabels, piece: Piece, lookup: LookUp, weights: NDArray[np.float64]) -> NDArray[Any]:
        """2^-8 D_m w_m 2^q / h rounded, modulo 2^q L, 0 where not finite; the holder adds what label or table need.

        A public dither rounds it, of party m u + 2^8 m / M, u one public number of each record and round. Rounded to
        the nearest instead, a part that has few values, as one-hot codes have, would be off by the same in all records.
        Evenly spread over the parties, the errors add up to little more than those of the nearest. The first party adds
        2^q - 1: with the low bits of the masks, uniform on 0 .. 2^q - 1, the sum is rounded at random to a level.
        """
        weights = np.asarray(weights, dtype=np.float64)
        if weights.shape != self._own.shape[1:] or not np.isfinite(weights).all():
            raise RefusedError(f"weights of shape {weights.shape}: must be {self._own.shape[1]} finite numbers.")
        steps = 2.0**FINE / lookup.level
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite counts as 0
            values = ring.score_rows(self._scored[slice(*piece)], weights) * (steps * 2.0**-ROW_BITS)
            if self._labels is not None:  # the centre of the table; of its half for the label; or less the label
                labels, centre = self._labels[slice(*piece)], float(LEVELS << FINE) / 2
                if lookup.nodes is not None and lookup.index == "label":
                    drawn = stream(_PUBLIC, asked.label("label dither", piece), len(labels), np.uint8)
                    values += ring.section_centres(labels, lookup.nodes, drawn)
                elif lookup.index == "label":
                    values += np.where(labels > 0, centre / 2, -centre / 2)
                else:
                    values += centre - labels * steps if lookup.index == "residual" else centre
        dithers = stream(_PUBLIC, asked.label("dither", piece), piece[1] - piece[0], np.uint8)
        dithers = dithers + np.uint8(256 * self._names.index(self.place.name) // len(self._names))
        kind = np.int8 if lookup.nodes is None else np.int16  # what holds the score
        return np.asarray(ring.wrapped(values, dithers) + self._first * ((1 << FINE) - 1), dtype=np.int64).astype(kind)

    def _open_weight(
        self, label: list[Any], share: Signed, product: Signed, second: MaskedNumber | None
    ) -> Generator[Fields, Fields, tuple[MaskedNumber, Signed]]:
        """Have the shares of a weight opened under masks that the dealer knows; the weight, and its product with y'."""
        (opened,) = yield (share,)
        (mask,) = stream_fields(self._seed, label, (share,))
        if second is not None:  # a share of the product, by one of the product of all masks of both
            found: Any = opened * second.mask + mask * second.opened + product
            product = np.asarray(found + opened * second.opened if self._first else found)
        return MaskedNumber(share, mask, opened), product

    def _shares(self, dealt: Fields | None, of: list[Any], like: Fields) -> Fields:
        """Its shares of what the dealer knows: as it was dealt them, or by the seed."""
        if dealt is None:
            return stream_fields(self._seed, of, like)
        if list(map(KIND, dealt)) != list(map(KIND, like)):
            raise RefusedError("what was dealt has other fields than its step has.")
        return dealt

    def _share_bits(self, bits: Bits, gamma: Signed) -> Generator[Fields, Fields, Signed]:
        """Shares of bits t as numbers, by c = t xor gamma, opened, and shares of gamma: t = c + (1 - 2c) gamma."""
        (packed,) = yield (np.packbits(bits, axis=0),)
        c = np.unpackbits(packed, axis=0, count=len(bits)).astype(np.int64)
        return np.asarray((1 - 2 * c) * gamma + c if self._first else (1 - 2 * c) * gamma)

    def _check_complete(self) -> None:
        if self._missing:
            raise RefusedError("a product was asked for before all masked columns were there.")


def said_like(program: str, piece: Piece, place: Place, lookup: LookUp | None = None) -> tuple[Fields, ...]:
    """The kinds and shapes of the messages of a program about a piece of the records, one after the other."""
    count = piece[1] - piece[0]
    flags, word, bytes_of_bits = _like(np.int8, count), _like(np.int64, count), -(-count // 8)
    bit = _like(np.uint8, bytes_of_bits, 1)
    if program == "null":
        return (flags, word) if place.classes else (flags,), (bit,), (word,)
    clip = (bit, _like(np.int16, count))
    if program == "factor":
        return clip, clip, (_like(np.uint8, bytes_of_bits, FACTOR_BITS),), (word,)
    if program == "length":
        return clip, clip, (bit,)
    assert lookup is not None, program  # noqa: S101
    scores = flags if lookup.nodes is None else _like(np.int16, count)
    said: tuple[Fields, ...] = (scores,), (_like(np.uint8, bytes_of_bits, len(lookup.chances)),)
    return said if lookup.matrix == "one" else (*said, (word,))


def dealt_like(program: str, piece: Piece, place: Place, lookup: LookUp | None = None) -> Fields:
    """The kinds and shapes of what is dealt for a piece of a program.

    Of |z|^2 these are masks' squares, whether a row is kept, and what is looked up for those that are.
    """
    count = piece[1] - piece[0]
    labels, words, bits = _like(np.int64, count * place.classes), _like(np.int64, count, 1), np.uint8
    if program == "null":
        return _like(bits, count, 1, 1, NULL_LEVELS // 8), words, labels
    clip = _like(np.int64, count), _like(bits, count, 2, 1, COARSE_LEVELS // 8)
    if program == "factor":
        table = _like(bits, count, 2, FACTOR_BITS, FINE_LEVELS // 8)
        return *clip, table, _like(np.int64, count, FACTOR_BITS), labels
    if program == "length":
        return *clip, _like(bits, count, 2, 1, FINE_LEVELS // 8), words, _like(np.int64, 1)
    assert lookup is not None, program  # noqa: S101
    outputs, width = len(lookup.chances), len(lookup.scales)
    if lookup.matrix != "one":
        width = sum(place.widths.values()) if lookup.projection is None else lookup.projection.shape[1]
    words = _like(np.int64, count, outputs)
    return _like(bits, count, 1, outputs, lookup.chances.shape[1] // 8), words, words, _like(np.int64, width)


def _like(kind: type[Any], *shape: int) -> NDArray[Any]:
    return np.broadcast_to(kind(0), shape)
