"""What tests of sealed runs share: the sums that are opened in this process, and noise that can be left out."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms import Ask, Solution
from sottovoce.algorithms.base import Coordination
from sottovoce.algorithms.newton.private import PrivateNewton
from sottovoce.door.query import Query
from sottovoce.federation.coordinator import Coordinator
from sottovoce.federation.sealed_columns.coordinator import ColumnSums
from sottovoce.plan.plan import Plan
from sottovoce.queries.joint import gradient_sum
from sottovoce.sealed.pair_keys import RunKey

Array = NDArray[np.float64]


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
    by_rows, by_columns = Coordinator._sum, ColumnSums.sum

    def rows(self: Any, opener: Any, number: int, ask: Ask, queries: Mapping[str, Query]) -> Any:
        found = by_rows(self, opener, number, ask, queries)
        seen.append(Sum(next(iter(queries.values())), dict(ask.arrays), found["sum"]))
        return found

    def columns(self: Any, number: int, ask: Ask, queries: Mapping[str, Query]) -> Array:
        found = by_columns(self, number, ask, queries)
        seen.append(Sum(next(iter(queries.values())), dict(ask.arrays), found))
        return found

    def none(scale: Any, size: int, randomness: Any) -> NDArray[np.int64]:
        return np.zeros(size, dtype=np.int64)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(Coordinator, "_sum", rows))
        stack.enter_context(mock.patch.object(ColumnSums, "sum", columns))
        if not noise:
            stack.enter_context(mock.patch("sottovoce.sealed.sums.wide_gaussian", none))
            stack.enter_context(mock.patch("sottovoce.federation.sealed_columns.dealer.wide_gaussian", none))
        yield seen


@contextlib.contextmanager
def asked(weights: Sequence[Array]) -> Iterator[None]:
    """`newton` opens the Gram matrix and the gradients at these weights, and makes no model of them."""

    def text(self: PrivateNewton, plan: Plan) -> Coordination:
        query = gradient_sum(plan, plan.numbers.slope_bound)
        yield Ask("gram")
        for each in weights:
            yield Ask("gradient", query.asked_at(np.asarray(each, dtype=np.float64)))
        return Solution(np.zeros(plan.dimension))

    with mock.patch.object(PrivateNewton, "coordinate", text):
        yield


@contextlib.contextmanager
def fixed_coins() -> Iterator[None]:
    """The same keys and the same name of the run each time: all pads, masks and coins are the same."""
    numbers = itertools.count(1)

    def key(private: bytes | None = None) -> RunKey:
        return RunKey(bytes([next(numbers)]) * 32 if private is None else private)

    with contextlib.ExitStack() as stack:
        for where in ("sottovoce.federation.run_keys.RunKey", "sottovoce.federation.coordinator.RunKey"):
            stack.enter_context(mock.patch(where, key))
        stack.enter_context(mock.patch("sottovoce.estimators.base.secrets.token_hex", lambda size: "0" * 2 * size))
        yield
