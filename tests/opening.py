"""What tests of secure runs share: the sums that are opened in this process, and noise that can be left out."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from clear import Clear, parts_of
from sottovoce import algorithms
from sottovoce.algorithms import Ask, Solution
from sottovoce.algorithms.base import Coordination
from sottovoce.algorithms.newton import PrivateNewton
from sottovoce.federation.rounds import SecureSumAnswers
from sottovoce.federation.secure_columns import party
from sottovoce.federation.secure_columns.coordinator import ColumnSums
from sottovoce.gate.query import Query
from sottovoce.plan.plan import Plan
from sottovoce.queries.joint import make_gradient_sum
from sottovoce.secure import ring
from sottovoce.secure.pair_keys import RunKey
from sottovoce.secure.ring import LookUp

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Sum:
    """One opened sum, in the order of the columns of a prepared row."""

    query: Query
    told: Mapping[str, NDArray[Any]]
    value: Array


@contextlib.contextmanager
def watched(*, noise: bool = True) -> Iterator[list[Sum]]:
    """The sums that fits of this process open; without `noise` neither parties nor the dealer draw any."""
    seen: list[Sum] = []
    by_rows, by_columns = SecureSumAnswers.values, ColumnSums.sum

    def rows(self: Any, number: int, ask: Ask, queries: Mapping[str, Query]) -> Any:
        found = by_rows(self, number, ask, queries)
        seen.append(Sum(next(iter(queries.values())), dict(ask.arrays), found["sum"]))
        return found

    def columns(self: Any, number: int, ask: Ask, queries: Mapping[str, Query]) -> Array:
        found = by_columns(self, number, ask, queries)
        seen.append(Sum(next(iter(queries.values())), dict(ask.arrays), found))
        return found

    def none(scale: Any, size: int, randomness: Any) -> NDArray[np.int64]:
        return np.zeros(size, dtype=np.int64)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(SecureSumAnswers, "values", rows))
        stack.enter_context(mock.patch.object(ColumnSums, "sum", columns))
        if not noise:
            stack.enter_context(mock.patch("sottovoce.secure.sums.wide_gaussian", none))
            stack.enter_context(mock.patch("sottovoce.federation.secure_columns.dealer.wide_gaussian", none))
        yield seen


class Coins:
    """What a run over secure columns left to chance: its rows as they were rounded, and the bits that were looked up.

    Bits are as the parties have them, in shares: each program and each record once for every party.
    """

    def __init__(self) -> None:
        self.rows: dict[str, Integers] = {}
        self.shares: list[NDArray[np.uint8]] = []

    def bits(self, parties: int) -> Iterator[Integers]:
        """Look-up by look-up, (records, outputs)."""
        for start in range(0, len(self.shares), parties):
            yield np.bitwise_xor.reduce(self.shares[start : start + parties]).astype(np.int64)


@contextlib.contextmanager
def coins_seen() -> Iterator[Coins]:
    """Of one fit in this process."""
    coins, columns, looked_up = Coins(), party.Columns, ring.looked_up

    def rows(place: Any, integers: Integers, *more: Any) -> Any:
        coins.rows[place.name] = integers
        return columns(place, integers, *more)

    def bits(*arguments: Any) -> NDArray[np.uint8]:
        coins.shares.append(looked_up(*arguments))
        return coins.shares[-1]

    with mock.patch.object(party, "Columns", rows), mock.patch.object(ring, "looked_up", bits):
        yield coins


class Replayed(Clear):
    """The sums of a run in one place, by the coins that it had."""

    def __init__(self, plan: Plan, X: Array, y: Array, coins: Coins) -> None:
        super().__init__(plan, algorithms.of(plan), parts_of(plan, X, y), np.random.default_rng(0))
        self.rows = self.joined([coins.rows[name] for name in plan.names])
        self.bits = coins.bits(len(plan.names))
        assert (next(self.bits)[:, 0] == ~self.usable).all()

    def long(self, matrix: Integers) -> Integers:
        next(self.bits)  # whether rows are kept
        return next(self.bits)[:, 0]

    def clipped(self, matrix: Integers) -> Integers:
        next(self.bits)
        return np.asarray(next(self.bits) @ (1 << np.arange(5)))

    def looked_up(self, table: LookUp, weights: Array) -> Integers:
        bits = next(self.bits)
        assert bits.shape == (self.plan.records, len(table.chances))
        return bits

    def sum_of(self, one: Sum, number: int) -> Array:
        """Without noise."""
        return self.exact(one.query, dict(one.told), number)


@contextlib.contextmanager
def asked(weights: Sequence[Array]) -> Iterator[None]:
    """`newton` opens the Gram matrix and the gradients at these weights, and makes no model of them."""

    def text(self: PrivateNewton, plan: Plan) -> Coordination:
        query = make_gradient_sum(plan, plan.numbers.slope_bound)
        yield Ask("gram")
        for each in weights:
            yield Ask("gradient", query.message(np.asarray(each, dtype=np.float64)))
        return Solution(np.zeros(plan.dimension))

    with mock.patch.object(PrivateNewton, "coordinate", text):
        yield


@contextlib.contextmanager
def fixed_coins() -> Iterator[None]:
    """The same keys and the same name of the run each time: all masks and coins are the same."""
    numbers = itertools.count(1)

    def key(private: bytes | None = None) -> RunKey:
        return RunKey(bytes([next(numbers)]) * 32 if private is None else private)

    with contextlib.ExitStack() as stack:
        for where in ("sottovoce.federation.run_keys.RunKey", "sottovoce.federation.coordinator.RunKey"):
            stack.enter_context(mock.patch(where, key))
        stack.enter_context(mock.patch("secrets.token_hex", lambda size: "0" * 2 * size))
        yield
