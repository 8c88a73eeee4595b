"""A party's side of sealed products over columns: D'D and D'r of the whole table, each party's share of them.

    masked columns   E_m = D_m - A_m                    the other parties read it, the dealer knows A_m
    Gram matrix      D_m'D_j = E_m'D_j (party j) + A_m'E_j (party m) + A_m'A_j (dealer),   m < j
    gradient         block m: D_m'e + E_m'rho + A_m'rho = D_m'r,   r = e + rho the looked-up slopes

All words are modulo 2^64. What a method returns is neither padded nor masked, and nothing of it may leave so: the gate
takes the pad off (`pads.label` names its stream) or adds noise and masks. Proof: `proofs/columns.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError, LeakError, RefusedError
from sottovoce.privacy.randomness import Randomness
from sottovoce.sealed import ring
from sottovoce.sealed.pads import (
    COLUMNS,
    CORRECTION,
    GRAM,
    NOTHING_TOLD,
    OWN,
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

ROWS: Final = "rows"  # the prepared rows D
ONE: Final = "one"  # a column of ones: the sum of what was looked up, of null records too
_CHUNK = 2**15  # records whose pads are on the table at a time
_MOST_BITS = 30  # an entry is an int32


def places(widths: Mapping[str, int]) -> dict[str, slice]:
    """Where each party's columns stand in the whole table."""
    found, start = {}, 0
    for name, width in widths.items():
        found[name] = slice(start, start + width)
        start += width
    return found


class _Matrix:
    """One table of integers: this party's columns, and the masked columns of all."""

    def __init__(self, own: NDArray[Any], widths: Mapping[str, int], said: str) -> None:
        self.said = said
        self.own: NDArray[np.int32] = np.ascontiguousarray(own, dtype=np.int32)
        self.places = places(widths)
        self.width = sum(widths.values())
        self.masked: Signed = np.empty((len(own), self.width), dtype=np.int64)
        self.pieces = column_pieces(len(own), widths)
        self.missing = set(self.pieces)


class Columns:
    """What one party computes from its columns, the other parties' masked ones and what it is dealt.

    `rows` are integers in units of 2^-bits, of norm at most 2^bits over all parties; a null row is of zeros. `labels`
    are the holder's, cut to [-1, 1]; NaN marks a null record, whose label counts as 0. `seed` is what the party shares
    with the dealer. That a label of a stream is used once is the gate's duty: this class computes whatever it is asked.
    """

    def __init__(  # noqa: PLR0913  # one party's part of a plan
        self,
        name: str,
        names: Sequence[str],
        widths: Mapping[str, int],
        rows: NDArray[np.int64],
        labels: NDArray[np.float64] | None,
        seed: bytes,
        bits: int,
    ) -> None:
        if not 1 <= bits <= _MOST_BITS:
            raise InputError(f"bits={bits!r} must be from 1 to {_MOST_BITS}.")
        if name not in names or set(names) != set(widths) or len(set(names)) != len(names):
            raise InputError(
                f"names={list(names)!r} and widths={dict(widths)!r} must be of one set of parties with {name!r}."
            )
        self.name, self.names, self.bits = name, tuple(names), bits
        self.widths = {party: widths[party] for party in names}
        self.records = len(rows)
        self.holder = labels is not None
        self._seed = seed
        self._matrices: dict[str, _Matrix] = {}
        self._asked: tuple[Asked, Lookup] | None = None
        self.add_matrix(ROWS, rows)
        if labels is not None:
            self._null = ~np.isfinite(labels)
            self._labels = np.where(self._null, 0.0, np.clip(labels, -1.0, 1.0))

    def add_matrix(
        self,
        name: str,
        integers: NDArray[np.int64],
        widths: Mapping[str, int] | None = None,
        *,
        said: str = NOTHING_TOLD,
    ) -> None:
        """A further table of the same records, by default as wide as the rows, whose products may be asked for.

        `said` is the hash of what was told before it was made.
        """
        known = self.widths if widths is None else {party: widths[party] for party in self.names}
        if name == ONE or name in self._matrices:
            raise InputError(f"matrix={name!r} is there already; take another name.")
        if integers.shape != (self.records, known[self.name]):
            raise InputError(
                f"matrix={name!r} of shape {integers.shape}: must be {self.records} rows of {known[self.name]} columns."
            )
        if integers.size and (int(integers.min()) < -(2**self.bits) or int(integers.max()) > 2**self.bits):
            raise LeakError(f"an entry of the matrix {name!r} is beyond 2^bits with bits={self.bits}.")
        self._matrices[name] = _Matrix(integers, known, said)

    def has(self, matrix: str) -> bool:
        """Whether a matrix was added."""
        return matrix in self._matrices

    def columns_label(self, matrix: str, piece: Piece) -> list[Any]:
        """Of the pad of its columns, and of their box."""
        return label(COLUMNS, matrix, piece, self._matrix(matrix).said)

    def columns(self, matrix: str = ROWS, piece: Piece | None = None) -> Words:
        """D_m, (records, own columns): padded with the stream "columns" it is E_m."""
        start, stop = piece or (0, self.records)
        return self._matrix(matrix).own[start:stop].astype(np.int64).view(np.uint64)

    def receive_columns(self, others: Mapping[str, Words], matrix: str = ROWS, piece: Piece | None = None) -> None:
        """The other parties' E; one's own follows from the pad."""
        kept, (start, stop) = self._matrix(matrix), piece or (0, self.records)
        if set(others) != set(self.names) - {self.name} or (start, stop) not in kept.missing:
            raise RefusedError("masked columns of the wrong parties or records, or sent twice.")
        for party, words in others.items():
            place = kept.places[party]
            kept.masked[start:stop, place] = _signed(words, (stop - start, place.stop - place.start))
        own = kept.own[start:stop]
        pad = stream(self._seed, self.columns_label(matrix, (start, stop)), own.size).view(np.int64)
        np.subtract(own, pad.reshape(own.shape), out=kept.masked[start:stop, kept.places[self.name]])
        kept.missing.remove((start, stop))

    def gram(self, asked: Asked, correction: Words | None = None) -> Words:
        """A share of D'D, its upper triangle row by row; the sum over the parties is D'D and the noise dealt.

        `correction` is what this party was dealt, None for those who make theirs from the seed.
        """
        rows = self._matrix(ROWS, complete=True)
        place, total = rows.places[self.name], np.zeros((rows.width, rows.width), dtype=np.int64)
        for start in range(0, self.records, _CHUNK):
            masked = rows.masked[start : start + _CHUNK]
            own = rows.own[start : start + _CHUNK].astype(np.int64)
            total[: place.start, place] += ring.cross(masked[:, : place.start], own)
            total[place, place] += ring.cross(own, own)
            total[place, place.stop :] += ring.cross(own - masked[:, place], masked[:, place.stop :])
        triangle = total[np.triu_indices(rows.width)]
        triangle += self._share(correction, asked.label(GRAM), triangle.shape)
        return triangle.view(np.uint64)

    def own(self, asked: Asked, values: Signed, correction: Words | None = None) -> Words:
        """A share of a sum of what each party has by itself; the sum over the parties has the noise dealt."""
        return (values + self._share(correction, asked.label(OWN), values.shape)).view(np.uint64)

    def scores(  # noqa: PLR0913  # one message
        self,
        asked: Asked,
        weights: NDArray[np.float64],
        lookup: Lookup,
        dithers: Randomness,
        offset: float = 0.0,
        *,
        matrix: str = ROWS,
        piece: Piece | None = None,
    ) -> Scores:
        """k_m = rint(2^-b D_m w_m 2^q / h) modulo 2^16, 0 where not finite; with the pad "scores" it is delta_m.

        The holder adds (offset - c y) 2^q / h and its dithers, but nothing to a null record: if all its parts are zeros
        it is looked up at level 0.
        """
        weights = np.asarray(weights, dtype=np.float64)
        rows, (start, stop) = self._matrix(matrix).own, piece or (0, self.records)
        if weights.shape != rows.shape[1:] or not np.isfinite(weights).all():
            raise RefusedError(f"weights of shape {weights.shape}: must be {rows.shape[1]} finite numbers.")
        self._asked = (asked, lookup)
        steps = 2.0**lookup.fine / lookup.level
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite counts as 0
            values = ring.scores(rows[start:stop], weights) * (steps * 2.0**-self.bits)
            if self.holder:
                values += (
                    np.where(self._null[start:stop], 0.0, offset - lookup.shift * self._labels[start:stop]) * steps
                )
        found = ring.wrapped(values)
        if self.holder:
            found += np.uint16((1 << lookup.fine) - 1)
            found += self._dithers(lookup, dithers, (start, stop))
        return found

    def slopes(
        self, asked: Asked, deltas: Mapping[str, Scores], table: Words | None = None, *, piece: Piece | None = None
    ) -> Words:
        """r_m, (records, outputs): a share of what is looked up; with the pad "slopes" it is e_m.

        `deltas` are those of all parties, `table` what this party was dealt, None for those who make theirs.
        """
        lookup, piece = self._looked(asked), piece or (0, self.records)
        outputs, width = lookup.nodes.shape
        total = np.zeros(piece[1] - piece[0], dtype=np.uint16)
        for words in self._of_all(deltas):
            total += _like(words, np.uint16, total.shape)
        if table is None:
            found, spare = np.empty((len(total), outputs), dtype=np.int64), np.empty((0, 0, 0), dtype=np.uint64)
            for start, stop in blocks(len(total), lookup.nodes.size):
                shape = (stop - start, outputs, width)
                spare = spare if spare.shape == shape else np.empty(shape, dtype=np.uint64)
                stream(self._seed, [*asked.label(TABLE, piece), start], spare.size, out=spare)
                found[start:stop] = ring.looked_up(spare.view(np.int64), total[start:stop], lookup.fine)
        else:
            found = ring.looked_up(_signed(table, (len(total), outputs, width)), total, lookup.fine)
        if self.holder:
            scale = 2.0**self.bits * np.array(lookup.beta)
            found -= np.trunc(np.outer(self._labels[piece[0] : piece[1]], scale)).astype(np.int64)
        return found.view(np.uint64)

    def gradient(
        self,
        asked: Asked,
        slopes: Mapping[str, Words],
        correction: Words | None = None,
        matrix: str = ROWS,
        *,
        piece: Piece | None = None,
    ) -> Words:
        """A share of D'r, (outputs, columns), or for the matrix "one" of sum_i r_i, (outputs,).

        `slopes` are the e of all parties (for "one" its own is enough), `correction` is as for the Gram matrix. The sum
        over parties and pieces is D'r and the noise dealt.
        """
        lookup, piece = self._looked(asked), piece or (0, self.records)
        shape = (piece[1] - piece[0], lookup.outputs)
        rho = _signed(stream(self._seed, asked.label(SLOPES, piece), shape[0] * shape[1]), shape)
        if matrix == ONE:
            total: Signed = (_signed(slopes[self.name], shape) + rho).sum(axis=0)
        else:
            kept = self._matrix(matrix, complete=True)
            e = np.zeros(shape, dtype=np.int64)
            for words in self._of_all(slopes):
                e += _signed(words, shape)
            total = ring.weighted_rows(kept.masked[piece[0] : piece[1]], rho)
            total[:, kept.places[self.name]] += ring.weighted_rows(kept.own[piece[0] : piece[1]], e)
        total += self._share(correction, [*asked.label(CORRECTION, piece), matrix], total.shape)
        return total.view(np.uint64)

    def _dithers(self, lookup: Lookup, dithers: Randomness, piece: Piece) -> Scores:
        """`order` - 1 numbers of one level each, around 0; the low bits of the masks are one more."""
        start, stop = piece
        count, most = lookup.order - 1, (1 << lookup.fine) - 1
        drawn = np.frombuffer(dithers.bytes(2 * count * (stop - start)), dtype="<u2") & most
        total = drawn.reshape(count, stop - start).sum(axis=0, dtype=np.int64) - count * most // 2
        return np.where(self._null[start:stop], 0, total).astype(np.uint16)

    def _share(self, dealt: Words | None, of: list[Any], shape: tuple[int, ...]) -> Signed:
        if dealt is None:
            return _signed(stream(self._seed, of, int(np.prod(shape))), shape)
        return _signed(dealt, shape)

    def _matrix(self, name: str, *, complete: bool = False) -> _Matrix:
        if name not in self._matrices:
            raise RefusedError(f"matrix={name!r} is not of this plan.")
        if complete and self._matrices[name].missing:
            raise RefusedError("a product was asked for before all masked columns were there.")
        return self._matrices[name]

    def _looked(self, asked: Asked) -> Lookup:
        if self._asked is None or self._asked[0] != asked:
            raise RefusedError(f"round={asked.number} was asked for slopes before scores.")
        return self._asked[1]

    def _of_all(self, words: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        if set(words) != set(self.names):
            raise RefusedError("words of some parties are missing, or of strangers.")
        return [words[party] for party in self.names]


def _like(words: NDArray[Any], kind: type[np.unsignedinteger[Any]], shape: tuple[int, ...]) -> NDArray[Any]:
    if words.dtype != kind or words.size != int(np.prod(shape)):
        raise RefusedError(f"{words.size} words of type {words.dtype} came in place of {int(np.prod(shape))}.")
    return words.reshape(shape)


def _signed(words: Words, shape: tuple[int, ...]) -> Signed:
    return np.ascontiguousarray(_like(words, np.uint64, shape)).view(np.int64)
