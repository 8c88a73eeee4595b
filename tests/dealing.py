"""What tests of secure columns share: parties and a dealer in one process, masks on, masks and noise off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.privacy.mechanisms import Randomness, SeededRandomness
from sottovoce.secure.columns import Columns, Place, Program
from sottovoce.secure.dealer import ColumnDealer
from sottovoce.secure.ring import FINE, LEVELS, LookUp, Projection
from sottovoce.secure.streams import (
    SET_UP,
    Fields,
    Piece,
    RoundLabels,
    add_fields,
    column_pieces,
    pack_fields,
    stream_fields,
    unpack_fields,
)

Integers = NDArray[np.int64]

FIRST = SET_UP


def seeds_of(count: int, seed: int = 0) -> dict[str, bytes]:
    return {f"p{m:02}": bytes([seed % 256, m]) * 16 for m in range(count)}


def some_rows(records: int, width: int, seed: int = 0) -> Integers:
    """Integer rows of norm at most 2^8, of all lengths up to that."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((records, width))
    rows *= rng.uniform(0.02, 1.0, (records, 1)) / np.linalg.norm(rows, axis=1, keepdims=True)
    return np.trunc(rows * 256).astype(np.int64)


def signed(words: Integers, bits: int) -> Integers:
    """Residues modulo 2^bits as signed numbers."""
    return np.asarray((words.astype(np.uint64) << np.uint64(64 - bits)).view(np.int64) >> (64 - bits))


class Run:
    """M parties over the columns of one table, and their dealer. Coins and masks follow from the seed.

    `null` says which part of which record is null; such parts are zeros.
    """

    def __init__(  # a table of tests
        self,
        rows: Integers,
        labels: NDArray[np.float64],
        widths: Sequence[int],
        *,
        null: NDArray[np.bool_] | None = None,
        holder: int = 0,
        seed: int = 0,
        bits: int = 40,
        classes: bool = True,
    ) -> None:
        self.seeds = seeds_of(len(widths), seed)
        self.names, self.seed = tuple(self.seeds), seed
        self.widths = dict(zip(self.names, widths, strict=True))
        self.bits, self.records = bits, len(rows)
        self.ends = np.cumsum([0, *widths])
        self.null = np.zeros((len(rows), len(widths)), dtype=bool) if null is None else null
        self.rows = np.where(np.repeat(self.null, widths, axis=1), 0, rows)
        self.labels = np.where(self.null[:, holder], 0.0, labels)
        self.parties = {
            name: Columns(
                Place(name, self.widths, bits, classes),
                self.rows[:, self.part(m)],
                ~self.null[:, m],
                labels if m == holder else None,
                self.seeds[name],
            )
            for m, name in enumerate(self.names)
        }
        self.dealer = ColumnDealer(self.seeds, Place(self.names[0], self.widths, bits, classes), self.records)
        self.said: dict[tuple[str, int, int], dict[str, Fields]] = {}  # what each party said, masked
        self.opened: dict[tuple[str, int, int], Fields] = {}
        self.dealt: dict[tuple[str, int], Fields] = {}

    def part(self, place: int) -> slice:
        return slice(self.ends[place], self.ends[place + 1])

    def coins(self, asked: RoundLabels) -> Randomness:
        return SeededRandomness(self.seed, f"coins {asked}")

    def exchange(self) -> Run:
        """Masked columns."""
        for piece in column_pieces(self.records, self.widths):
            sent = {}
            for name, party in self.parties.items():
                own = party.columns(piece)
                sent[name] = self.sent(
                    add_fields(own, self.masks(name, SET_UP.label("columns", piece), own), less=True)
                )
            for name, party in self.parties.items():
                party.receive_columns({other: words for other, words in sent.items() if other != name}, piece)
        return self

    def masks(self, name: str, label: list[Any], like: Fields) -> Fields:
        return stream_fields(self.seeds[name], label, like)

    def sent(self, message: Fields) -> Fields:
        """As it arrives: words have so many bits."""
        return unpack_fields(pack_fields(message, self.bits), message, self.bits)

    def gram(self) -> Integers:
        asked = RoundLabels(1, "gram")
        receiver, dealt = self.dealer.gram(asked)
        shares = [p.gram(asked, dealt if n == receiver else None) for n, p in self.parties.items()]
        return signed(sum(shares, np.zeros_like(shares[0])), self.bits)

    def program(
        self,
        name: str,
        asked: RoundLabels,
        dealt: tuple[str, Fields],
        begin: Callable[[str, Columns, Fields | None], Program],
        piece: Piece,
    ) -> Integers | None:
        """All messages of a program, and the sum of what it returns."""
        receiver, words = dealt
        self.dealt[name, asked.number] = words
        running = {n: begin(n, p, self.sent(words) if n == receiver else None) for n, p in self.parties.items()}
        messages = {n: next(one) for n, one in running.items()}
        for number in range(5):
            label = asked.label(f"{name} {number}", piece)
            masked = {n: self.sent(add_fields(m, self.masks(n, label, m), less=True)) for n, m in messages.items()}
            total = tuple(map(np.zeros_like, next(iter(masked.values()))))
            for message in masked.values():
                total = add_fields(total, message)
            self.said[name, asked.number, number], self.opened[name, asked.number, number] = masked, total
            parts: dict[str, Integers | None] = {}
            messages = {}
            for n, one in running.items():
                try:
                    messages[n] = one.send(total)
                except StopIteration as end:
                    parts[n] = end.value
            if parts:
                assert len(parts) == len(running), "all end at once"
                found = [part for part in parts.values() if part is not None]
                return signed(sum(found, np.zeros_like(found[0])), self.bits) if found else None
        raise AssertionError("a program has at most four messages")

    def whole(self) -> Piece:
        return (0, self.records)

    def share_null(self) -> Run:
        """The program that finds records that are null nowhere."""
        dealt = self.dealer.null(FIRST, self.whole())
        self.program("null", FIRST, dealt, lambda _, p, d: p.null(FIRST, self.whole(), d), self.whole())
        return self

    def share_factor(self, projection: Projection, number: int = 5) -> Run:
        asked = RoundLabels(number, "factor")
        dealt = self.dealer.factor(asked, self.whole(), projection)
        begin = lambda _, p, d: p.factor(asked, self.whole(), projection, d)  # noqa: E731
        self.program("factor", asked, dealt, begin, self.whole())
        return self

    def length(self, projection: Projection, number: int = 3, noise: int = 0) -> int:
        asked = RoundLabels(number, "length")
        dealt = self.dealer.length(asked, self.whole(), projection, noise, self.coins(asked))
        begin = lambda _, p, d: p.length(asked, self.whole(), projection, d)  # noqa: E731
        found = self.program("length", asked, dealt, begin, self.whole())
        assert found is not None
        return int(found[0])

    def look_up(self, number: int, weights: NDArray[np.float64], lookup: LookUp, noise: Any = 0) -> Integers:
        asked = RoundLabels(number, "look-up")
        dealt = self.dealer.look_up(asked, self.whole(), lookup, noise, self.coins(asked))
        own = {name: weights[self.part(m)] for m, name in enumerate(self.names)}
        begin = lambda n, p, d: p.look_up(asked, self.whole(), lookup, own[n], d)  # noqa: E731
        found = self.program("look-up", asked, dealt, begin, self.whole())
        assert found is not None
        return found

    def shared(self, name: str) -> Integers:
        """n or f."""
        found = [party._weights[name, self.whole()][0].share for party in self.parties.values()]
        return signed(sum(found, np.zeros_like(found[0])), self.bits)

    def shared_labels(self, name: str) -> Integers:
        """n y' or f y'."""
        found = [party._weights[name, self.whole()][1] for party in self.parties.values()]
        return signed(sum(found, np.zeros_like(found[0])), self.bits)

    def bits_of(self, number: int, lookup: LookUp) -> Integers:
        """The bits that a look-up took, by the level of each record and the dealer's coins."""
        asked = RoundLabels(number, "look-up")
        uniform = np.frombuffer(self.coins(asked).bytes(2 * self.records * len(lookup.chances)), dtype="<u2")
        level = self.levels(number, lookup)
        drawn = uniform.reshape(self.records, len(lookup.chances))
        return np.asarray(drawn < lookup.chances[:, level].T, dtype=np.int64)

    def levels(self, number: int, lookup: LookUp) -> Integers:
        """The level of each record: what was opened and the masks."""
        asked = RoundLabels(number, "look-up")
        (opened,) = self.opened["look-up", number, 0]
        masks = sum(
            int_of(self.masks(name, asked.label("look-up 0", self.whole()), (opened,))[0]) for name in self.names
        )
        below = (lookup.chances.shape[1] << FINE) - 1
        first = (int_of(opened) & below) >> FINE
        return np.asarray((first + ((masks & below) >> FINE)) % lookup.chances.shape[1])


def int_of(numbers: NDArray[Any]) -> Integers:
    return np.asarray(numbers.astype(np.int64))


def look_up(  # a table of tests
    chances: Any,
    *,
    level: float = 1.0,
    index: Any = "label",
    weight: Any = "null",
    matrix: Any = "rows",
    twice: bool = False,
    minus_label: bool = True,
    scales: Sequence[int] = (1,),
    projection: Projection | None = None,
    nodes: Any = None,
) -> LookUp:
    chances = np.rint(np.atleast_2d(chances) * 65536).astype(np.int64)
    matrix_of = None if projection is None else projection.matrix
    return LookUp(chances, level, index, weight, matrix, twice, minus_label, np.array(scales), matrix_of, nodes)


def logistic(**more: Any) -> LookUp:
    """The slope as a chance: the first half of the levels for the label 1."""
    levels = np.arange(LEVELS)
    return look_up(1 / (1 + np.exp(-(levels % 32 - 16.0))), **more)


def projection(width: int, exponent: int, seed: int = 0, *, most: float = 250.0) -> Projection:
    """A P of all columns that stretches a row of norm 2^8 to |z|^2 = `most` C^2 at most."""
    rng = np.random.default_rng(seed)
    found = rng.standard_normal((width, width)) * np.exp(rng.normal(0, 0.7, width))
    found *= np.sqrt(most * 4.0 * 2.0**exponent / 4.0**8) / np.linalg.norm(found, 2)
    return Projection(np.trunc(found).astype(np.int64), exponent)


__all__ = ["FIRST", "Mapping", "Run", "logistic", "look_up", "projection", "seeds_of", "signed", "some_rows"]
