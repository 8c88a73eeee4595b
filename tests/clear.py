"""Secure columns in the clear: what a run over them opens, from all parties' rows in one place.

Every `Ask` of a coordinator's text is answered with the sum that the protocol has for some coins, all of them drawn
here with their law, and noise of the variance that an opened sum has.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Algorithm, Ask, Solution
from sottovoce.data.block import Block
from sottovoce.gate.query import Query, Round
from sottovoce.plan.plan import Plan
from sottovoce.queries.joint import JointSum
from sottovoce.queries.sums import GramMatrix
from sottovoce.secure.ring import (
    CHANCE_BITS,
    CLIP_LEVELS,
    FINE,
    ROW_BITS,
    UNIT_BITS,
    LookUp,
    exponent_of,
    factors,
    section_centres,
)

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

KEPT = 7  # coarse levels of 2 C^2, counted from 1


def parts_of(plan: Plan, X: Any, y: Any) -> list[Block]:
    """Every party's columns as it prepares them."""
    parts = [plan.part(name) for name in plan.names]
    return [Block.prepare(X[:, part.start : part.stop], y, part.preparation) for part in parts]


def rounded(rows: Array, coins: Array, square: float) -> Integers:
    """Whole numbers of 2^-8 by coins; a part that this makes longer than its norm toward zero."""
    exact = rows * 2.0**ROW_BITS
    found = np.floor(exact + coins).astype(np.int64)
    long = (found**2).sum(axis=1) > math.floor(4**ROW_BITS * square)
    found[long] = np.trunc(exact[long]).astype(np.int64)
    return found


class Clear:
    """All parties of a plan over secure columns, in one place."""

    def __init__(self, plan: Plan, form: Algorithm, parts: list[Block], rng: Any, *, noise: float = 1.0) -> None:
        self.plan, self.form, self.parts, self.rng, self.noise = plan, form, parts, rng, noise
        self.queries = [{q.name: q for q in form.queries(plan, party)} for party in plan.names]
        holder = parts[plan.label_party]
        self.usable = np.logical_and.reduce([part.usable_rows for part in parts])
        self.labels = np.where(holder.usable_rows, holder.labels, 0.0)
        shares = plan.row_shares() * (1 + 2.0**-30)
        dense = [np.asarray(part.dense_rows(part.dimension), dtype=np.float64) for part in parts]
        self.rows = self.joined(
            [
                rounded(rows, self.rng.random(rows.shape), float(share))
                for rows, share in zip(dense, shares, strict=True)
            ]
        )
        self.matrix: Integers | None = None  # P, and f of the rows clipped by it
        self.factors: Integers | None = None
        self.opened: list[tuple[str, dict[str, Any], Array]] = []

    def joined(self, parts: list[Integers]) -> Integers:
        """All columns in their order; the constant, the last of the party that has it, comes last."""
        pieces = [part[:, :width] for part, width in zip(parts, self.plan.columns, strict=True)]
        last = [parts[self.plan.label_party][:, -1:]] if self.plan.fit_intercept else []
        return np.hstack([*pieces, *last])

    def run(self) -> Solution:
        """The coordinator's text to its end."""
        text = self.form.coordinate(self.plan)
        ask, number = next(text), 0
        try:
            while True:
                answer = self.answer(ask, number)
                number += 1
                ask = text.send({"sum": answer})
        except StopIteration as end:
            return end.value if isinstance(end.value, Solution) else Solution(end.value)

    def answer(self, ask: Ask, number: int) -> Array:
        """One opened sum."""
        query, told = self.queries[0][ask.query], dict(ask.arrays)
        wrong = query.objection(number, told)
        assert wrong is None, wrong
        exact = self.exact(query, told, number)
        std = self.plan.release(query.name).std * math.sqrt(self.plan.channel.variance) / query.noise_weights
        self.opened.append((ask.query, told, exact))
        return np.asarray(exact + self.noise * std * self.rng.standard_normal(exact.shape))

    def exact(self, query: Query, told: dict[str, Any], number: int) -> Array:
        """The sum before noise."""
        if isinstance(query, GramMatrix):
            return np.asarray((self.rows.T @ self.rows)[query.places] * 4.0**-ROW_BITS)
        if not isinstance(query, JointSum):
            rounds = [Round(self.plan, number, told, part) for part in self.parts]
            return np.sum([own[query.name].value(one) for own, one in zip(self.queries, rounds, strict=True)], axis=0)
        return np.asarray(self.whole(query, told) * self.plan.release(query.name).step)

    def whole(self, query: JointSum, told: dict[str, Any]) -> Integers:
        """The sum as whole numbers of its grid."""
        matrix = query.projection(told)
        if query.program == "length":
            assert matrix is not None
            return np.array([self.long(matrix).sum()], dtype=np.int64) << UNIT_BITS
        if query.factored and matrix is not None:
            self.matrix, self.factors = matrix, self.clipped(matrix)
        table = query.lookup(told)
        terms = self.terms(table, told["weights"])
        if table.matrix == "one":
            return np.asarray((terms * table.scales).sum(axis=0))
        total = self.rows.T @ terms[:, 0]
        return np.asarray(total if self.matrix is None or table.matrix == "rows" else self.matrix.T @ total)

    def long(self, matrix: Integers) -> Integers:
        """Bits of the mean min(1, |P'x| / 2C)."""
        levels, kept = self.levels(matrix)
        return np.asarray(
            kept & (self.rng.random(len(kept)) < np.minimum(1.0, np.sqrt(levels / CLIP_LEVELS) / 2)), dtype=np.int64
        )

    def clipped(self, matrix: Integers) -> Integers:
        """f of every row."""
        levels, kept = self.levels(matrix)
        return np.where(kept, factors()[levels], 0)

    def levels(self, matrix: Integers) -> tuple[Integers, NDArray[np.bool_]]:
        """Of |P'x|^2 in C^2 / 8, and which rows are kept: by shares whose low bits carry, and by masks."""
        squares, exponent, count = ((self.rows @ matrix) ** 2).sum(axis=1), exponent_of(self.plan), len(self.rows)
        found = []
        for modulus, fine in ((exponent + 10, 9), (exponent + 6, 9)):
            top = (squares >> (modulus - 16)) + self.rng.integers(0, len(self.parts), count)
            top += (1 << fine) - 1 - self.rng.integers(0, 1 << fine, count)
            found.append((top & 0xFFFF) >> fine)
        coarse, levels = found
        return levels, self.usable & (coarse + 1 <= KEPT)

    def terms(self, table: LookUp, weights: Array) -> Integers:
        """What each record is weighed by: (records, outputs)."""
        bits = self.looked_up(table, weights)
        if table.weight == "factor":
            assert self.factors is not None
            value = self.factors[:, None]
        else:
            value = self.usable.astype(np.int64)[:, None]
        found = 2 * value * bits - value if table.twice else value * bits
        if table.nodes is not None:
            return np.asarray(found[:, : len(table.scales)] - found[:, len(table.scales) :])
        return found - value * (self.labels == 1.0)[:, None] if table.minus_label else found

    def looked_up(self, table: LookUp, weights: Array) -> Integers:
        """Bits of every record: (records, outputs)."""
        uniform = self.rng.integers(0, 2**CHANCE_BITS, len(self.rows))
        return (uniform < table.chances[:, self.index(table, weights)]).astype(np.int64).T

    def index(self, table: LookUp, weights: Array) -> Integers:
        """The level of every record: dithers round each party's part of the score, and a mask the sum, at random."""
        fine, levels, holder = 2**FINE, table.chances.shape[1], self.plan.label_party
        total = np.full(len(self.rows), fine - 1, dtype=np.int64) - self.rng.integers(0, fine, len(self.rows))
        dithers = self.rng.random(len(self.rows))
        for place, (start, stop) in enumerate(itertools.pairwise(np.cumsum((0, *self.plan.columns)))):
            own = self.rows[:, start:stop] @ weights[start:stop]
            if place == holder and self.plan.fit_intercept:
                own = own + self.rows[:, -1] * weights[-1]
            own = own * 2.0**-ROW_BITS * fine / table.level
            if place == holder and table.index == "residual":
                own = own - self.labels * fine / table.level
            total += np.floor(own + (dithers + place / len(self.parts)) % 1.0).astype(np.int64)
        if table.nodes is not None:
            total += section_centres(self.labels, table.nodes, self.rng.integers(0, 256, len(self.rows))).astype(int)
        elif table.index == "label":
            total += np.where(self.labels == 1.0, levels // 4, -(levels // 4)) * fine
        else:
            total += levels // 2 * fine
        return (total % (fine * levels)) >> FINE
