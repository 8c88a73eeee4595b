"""Sealed columns in the clear: what a run over sealed columns opens, from all parties' rows in one place.

Every `Ask` of a coordinator's text is answered with the exact sum and noise of the variance that an opened sum has.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Algorithm, Ask, Solution
from sottovoce.data.block import Block
from sottovoce.door.query import Query, Round
from sottovoce.plan.plan import Plan
from sottovoce.queries.gram import GramMatrix
from sottovoce.queries.joint import JointGradient, JointSum

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

TURN = 2**16  # fine steps of a whole turn of levels


def parts_of(plan: Plan, X: Any, y: Any) -> list[Block]:
    """Every party's columns as it prepares them."""
    parts = [plan.part(name) for name in plan.names]
    return [Block.prepare(X[:, part.start : part.stop], y, part.preparation) for part in parts]


class Clear:
    """All parties of a plan over sealed columns, in one place."""

    def __init__(self, plan: Plan, form: Algorithm, parts: list[Block], rng: Any, *, noise: float = 1.0) -> None:
        self.plan, self.form, self.parts, self.rng, self.noise = plan, form, parts, rng, noise
        self.queries = [{q.name: q for q in form.queries(plan, party)} for party in plan.names]
        self.memories = [form.remember(plan, part) for part in parts]
        self.scale = 2.0**plan.preparation.bits
        self.rows = self.joined([np.asarray(part.rows, dtype=np.float64) for part in parts])
        holder = parts[plan.label_party]
        self.usable, self.labels = holder.usable_rows, np.where(holder.usable_rows, holder.labels, 0.0)
        self.white: Array | None = None
        self.gram: Array | None = None
        self.opened: list[tuple[str, dict[str, Any], Array]] = []

    def joined(self, parts: list[Array]) -> Array:
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
        if isinstance(query, JointGradient):
            told["widen"] = np.array([query.widened(self.plan, told["weights"], self.gram)], dtype=np.int64)
        wrong = query.objection(self.plan, number, told)
        assert wrong is None, wrong
        exact = self.exact(query, told, number)
        std = self.plan.release(query.name).std * math.sqrt(self.plan.noises())
        std = std / query.noise_weights
        opened = exact + self.noise * std * self.rng.standard_normal(exact.shape)
        if isinstance(query, GramMatrix):
            self.gram = query.matrix(opened)
        self.opened.append((ask.query, told, exact))
        return np.asarray(opened)

    def exact(self, query: Query, told: dict[str, Any], number: int) -> Array:
        """The sum before noise."""
        rounds = [
            Round(self.plan, number, told, part, memory) for part, memory in zip(self.parts, self.memories, strict=True)
        ]
        if isinstance(query, GramMatrix):
            return np.asarray((self.rows.T @ self.rows)[query.places])
        if not isinstance(query, JointSum):
            return np.sum([own[query.name].value(one) for own, one in zip(self.queries, rounds, strict=True)], axis=0)
        slopes = self.looked_up(query, told) / self.scale
        if query.matrix == "one":
            return slopes.sum(axis=1)
        if query.matrix == "whitened" and self.white is None:
            pieces = [own[query.name].columns(one) for own, one in zip(self.queries, rounds, strict=True)]
            self.white = self.joined([piece / self.scale for piece in pieces])
        return np.asarray((self.white if query.matrix == "whitened" else self.rows).T @ slopes[0])

    def looked_up(self, query: JointSum, told: dict[str, Any]) -> Array:
        """Whole numbers of 2^-bits, outputs x records."""
        table, count = query.lookup(self.plan, told), len(self.labels)
        words = table.nodes.shape[1]
        levels = 2 * words if table.symmetric else words
        fine = TURN // levels
        ends = np.cumsum((0, *self.plan.columns))
        total = np.zeros(count)
        for place, (start, stop) in enumerate(itertools.pairwise(ends)):
            own = self.rows[:, start:stop] @ told["weights"][start:stop]
            if place == self.plan.label_party:
                if self.plan.fit_intercept:
                    own += self.rows[:, -1] * told["weights"][-1]
                own -= table.shift * self.labels
                dithers = (self.rng.random((table.order - 1, count)) - 0.5).sum(axis=0)
                own += table.level * np.where(self.usable, dithers, 0.0)
            total += np.rint(own * fine / table.level)
        total += self.rng.integers(0, fine, count)
        level = (np.floor(total / fine) % levels).astype(np.int64)
        sign = np.where(level < words, 1, -1)
        found = table.nodes[:, level % words] * sign
        return found - np.trunc(np.outer(table.beta, self.labels) * self.scale)
