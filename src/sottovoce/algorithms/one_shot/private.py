"""`one-shot`: one noisy sketched row for every person and party, and no further message. A comparator over columns."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sottovoce.algorithms.base import (
    Algorithm,
    Ask,
    Coordination,
    Design,
    Problem,
    Solution,
    choice,
    draft,
    option,
    public_coin,
)
from sottovoce.algorithms.frank_wolfe.sketches import SKETCHES, make_sketch
from sottovoce.data.block import Block, is_sparse
from sottovoce.door.frames import MAX_BYTES
from sottovoce.door.gate import Gate, Released
from sottovoce.door.query import Query
from sottovoce.errors import InputError, LeakError
from sottovoce.losses import Loss
from sottovoce.plan.plan import Part, Plan, Release, ScaledRegulariser, Split
from sottovoce.privacy.accounting import Event, Relation

Array = NDArray[np.float64]

SIZE = 16  # numbers for each person and party
LABEL_SHARE = 0.25  # of mu^2
EXPLAINED = 0.1  # what the damping expects of the mean square of the scaled labels that a model explains
FLOAT = 1.0 + 2.0**-30  # in a sensitivity, for the floating point of a product and of a norm
ROWS = 4096  # of a dense block that are made float64 at once


class OneShot(Algorithm):
    """Party k sends Z_k = X_k Pi_k + W_k once, the holder of the labels y + noise once; the rest is post-processing.

    Pi_k is a public sketch of the party's d_k columns to size_k numbers, a row of X_k Pi_k is cut to the norm B_k that
    bounds the party's part of a row, and W_k has entries N(0, (B_k std)^2). With P = diag(Pi_1, ..., Pi_K), the
    coordinator minimises over v, at w = P v,

        1/2 v'G v - v'Z'y + 1/2 damping |v|^2 + N pen(P v),   G = Z'Z - N E[W'W], its negative eigenvalues set to 0.

    Without the term that is taken off, the noise of Z would shrink every weight (errors in variables). P v loses
    nothing but what lies outside the range of P: x'P v is a sketched row times v. This is the one-shot scheme of
    Heinze-Deml, McWilliams and Meinshausen (2017), whose guarantee is about one attribute of a person, with noise for
    the whole record. It is here for comparison: what it sends grows with N, and so does the noise of a row with B_k.

    Guarantee: zero-out moves a row of Z_k by at most B_k and a label by 1, replace-one twice as far; a person is in
    every party, so mu^2 = K (1 / std)^2 + (1 / std_y)^2, replace-one (2 / std)^2 and (2 / std_y)^2, against everybody
    (`proof.md`).
    Edges: a party with at most size_k columns sends them as they are; a null row is a row of noise; the intercept is a
    public column of ones; whoever knows the labels, they leave with noise. Squared loss only, and no run without noise.
    """

    name: ClassVar[str] = "one-shot"
    title: ClassVar[str] = "one noisy sketched row for every person and party; for comparison"
    splits: ClassVar[tuple[Split, ...]] = ("columns",)
    options: ClassVar[tuple[str, ...]] = ("sketch_size", "sketch")
    kinds: ClassVar[Mapping[str, str]] = {"rows": "features", "labels": "labels"}
    layout = "entries"
    samples: ClassVar[bool] = False

    def mismatch(self, loss: Loss, split: Split) -> str | None:
        """The squared loss alone is a function of products of columns."""
        if loss.name != "squared":
            return f"solver={self.name!r} needs the squared loss, not {loss.name!r}"
        return super().mismatch(loss, split)

    def design(self, problem: Problem) -> Design:
        """16 numbers for each person and party; a quarter of mu^2 for the labels."""
        if math.isinf(problem.epsilon):
            raise InputError(
                f"epsilon=inf: solver={self.name!r} has no form without noise, in which it would send every row as it "
                "is; take solver='frank-wolfe'."
            )
        problem.bounds.require(problem.features, labels=True)
        numbers = {
            "sketch": SKETCHES.index(choice(problem, "sketch", SKETCHES[:2])),
            "sketch_size": option(problem, "sketch_size", SIZE, low=1, whole=True),
        }
        plan, parties = draft(problem, numbers, "entries"), len(problem.parties)
        rows = max((RowSketch(plan, plan.part(name)) for name, _ in plan.parties), key=lambda query: query.size)
        if 8 * rows.length > MAX_BYTES // 2:
            raise InputError(
                f"sketch_size={rows.size}: {rows.length} numbers of a party are too many for one message; at "
                f"{plan.records} records take sketch_size={max(MAX_BYTES // 16 // plan.records, 1)} or less."
            )
        mu = problem.mu
        releases = (
            Release.at_mu(rows, 0, parties, math.sqrt(1 - LABEL_SHARE) * mu, problem.relation).times(1),
            Release.at_mu(LabelValues(plan), 0, 1, math.sqrt(LABEL_SHARE) * mu, problem.relation),
        )
        return Design(1, {**numbers, "damping": damping(plan, rows.size, *releases)}, releases, layout="entries")

    def queries(self, plan: Plan) -> Mapping[str, Query]:
        """Those of the party that holds the labels."""
        return self.queries_of(plan, plan.holder_name)

    def queries_of(self, plan: Plan, party: str) -> Mapping[str, Query]:
        """Rows and, at their holder, labels."""
        return {"rows": RowSketch(plan, plan.part(party)), "labels": LabelValues(plan)}

    def coordinate(self, plan: Plan) -> Coordination:
        """Two asks, then linear algebra on what was released."""
        sketches = {name: RowSketch(plan, plan.part(name)) for name, _ in plan.parties}
        released = yield Ask("rows", {}, round=0)
        (labels,) = (yield Ask("labels", {}, (plan.holder_name,), 0)).values()
        parts = [released[name].reshape(plan.records, -1) for name in sketches]
        back: Any = sp.block_diag([sp.coo_matrix(sketch.matrix) for sketch in sketches.values()], format="csr")
        noisy = np.ones(back.shape[1])
        if plan.fit_intercept:
            parts.append(np.ones((plan.records, 1)))
            back, noisy = sp.block_diag([back, sp.coo_matrix(np.ones((1, 1)))], format="csr"), np.append(noisy, 0.0)
        gram = np.block([[left.T @ right for right in parts] for left in parts])
        gram -= np.diag(plan.records * plan.release("rows").std ** 2 * noisy)
        values, vectors = np.linalg.eigh(gram)
        gram = (vectors * np.maximum(values, 0.0)) @ vectors.T + np.diag(plan["damping"] * noisy)
        moments = np.concatenate([part.T @ labels for part in parts])
        return minimise(gram, moments, back, plan.scaled_regulariser, plan.records)

    def answer(
        self,
        plan: Plan,
        query: Any,
        block: Block,
        gate: Gate,
        round_: int,
        arrays: Mapping[str, NDArray[Any]],
        memory: Any,
    ) -> Released:
        """Rows or labels; there is nothing to be told first."""
        del plan, arrays, memory
        return gate.gaussian(query, round_, block)

    def objection(self, plan: Plan, query: str, round_: int, arrays: Mapping[str, NDArray[Any]]) -> str | None:
        """None: an answer does not depend on what the message carries."""
        del plan, query, round_, arrays
        return None

    def serves(self, plan: Plan, party: str, query: str, round_: int) -> bool:
        """The labels are for their holder."""
        holder = plan.holder_name
        return super().serves(plan, party, query, round_) and (query != "labels" or party == holder)

    def events(self, plan: Plan, relation: Relation, party: str) -> tuple[Event, ...]:  # noqa: ARG002
        """What all parties release together: everybody's record is with each of them."""
        counts = {"rows": len(plan.parties)}
        return tuple(release.event(relation, count=counts.get(release.query)) for release in plan.releases)

    def world_events(self, plan: Plan, relation: Relation) -> tuple[Event, ...]:
        """The model is a function of every number that was sent."""
        return self.events(plan, relation, plan.parties[0][0])

    def example(self, plan: Plan, query: str) -> Ask:
        """An ask carries nothing."""
        return Ask(query, {}, (plan.holder_name,) if query == "labels" else None)


class RowSketch:
    """x Pi / B for each of a party's rows x, one row after another; rows longer than 1 are cut to 1.

    B bounds the part's norm: the party's part of a declared row norm, or what the bounds of its columns allow.
    Guarantee: a row of the value is a function of one record; it has a norm of at most 1, and is 0 for a null row. So
    zero-out moves the value by at most 1, replace-one by 2.
    """

    name = "rows"
    weights = 1.0

    def __init__(self, plan: Plan, part: Part) -> None:
        if plan.layout != "entries":
            raise LeakError("the rows were not prepared for a sketch of columns.")
        self.plan, self.part = plan, part
        self.width = part.stop - part.start
        self.size = min(self.width, int(plan["sketch_size"]))
        self.length = plan.records * self.size
        self.entries = float(self.size)
        bounds = part.preparation.bounds
        norm = float(np.linalg.norm(bounds.columns(self.width)))
        self.norm = min(norm, math.inf if bounds.row_norm is None else bounds.row_norm) / plan.unit

    @functools.cached_property
    def matrix(self) -> Array:
        """Pi / B, from the public coin; the identity over B where nothing is gained by a sketch."""
        if self.size == self.width:
            return np.eye(self.width) / self.norm
        kind = "rademacher" if self.plan["sketch"] else "count"
        sketch = make_sketch(kind, self.size, self.width, public_coin(self.plan, f"rows {self.part.start}"))
        return np.column_stack([sketch.back(unit) for unit in np.eye(self.size)]) / self.norm

    def sensitivity(self, relation: Relation) -> float:
        """1 or 2."""
        return (2.0 if relation == "replace-one" else 1.0) * FLOAT

    def value(self, block: Block, *arguments: Any) -> Array:
        """One pass over the columns; the constant column of the intercept stays out."""
        del arguments
        rows = block.rows[:, : self.width]
        if is_sparse(rows):
            found = np.asarray(rows @ self.matrix)
        else:
            found = np.empty((len(block), self.size))
            for start in range(0, len(block), ROWS):
                found[start : start + ROWS] = rows[start : start + ROWS].astype(np.float64) @ self.matrix
        norms = np.sqrt(np.einsum("ij,ij->i", found, found))
        found /= np.maximum(norms, 1.0)[:, None]
        return found.ravel()


class LabelValues:
    """The scaled labels, one for each record. Guarantee: zero-out moves them by at most 1, replace-one by 2."""

    name = "labels"
    weights = 1.0
    entries = 1.0

    def __init__(self, plan: Plan) -> None:
        self.length = plan.records

    def sensitivity(self, relation: Relation) -> float:
        """1 or 2."""
        return (2.0 if relation == "replace-one" else 1.0) * FLOAT

    def value(self, block: Block, *arguments: Any) -> Array:
        """A null row has the label 0."""
        del arguments
        return np.clip(block.labels, -1.0, 1.0)


def damping(plan: Plan, size: int, rows: Release, labels: Release) -> float:
    """K (size std^2 (1 + std_y^2) + std_y^2) / EXPLAINED + std^2 sqrt(N K size): public numbers.

    The first term is the noise of Z'y, in a ridge regression for weights that explain EXPLAINED of the labels; the
    second that of G.
    """
    parties, noise, blur = len(plan.parties), rows.std**2, labels.std**2
    products = parties * (size * noise * (1 + blur) + blur) / EXPLAINED
    return float(products + noise * math.sqrt(plan.records * parties * size))


def minimise(gram: Array, moments: Array, back: Any, regulariser: ScaledRegulariser, records: int) -> Solution:
    """The w = P v at the minimum of 1/2 v'G v - moments'v + records pen(P v), by splitting (ADMM)."""
    square = (back.T @ back).toarray()
    if regulariser.is_none:
        return Solution(back @ np.linalg.solve(gram, moments))
    if regulariser.ridge is not None:
        inner = back[: regulariser.features]
        ridge = records * regulariser.ridge * (inner.T @ inner).toarray()
        return Solution(back @ np.linalg.solve(gram + ridge, moments))
    rho = float(np.trace(gram) / np.trace(square))
    inverse = np.linalg.inv(gram + rho * square)
    weights, dual = np.zeros(back.shape[0]), np.zeros(back.shape[0])
    for _ in range(2000):
        scores = back @ (inverse @ (moments + rho * (back.T @ (weights - dual))))
        fresh = regulariser.prox(scores + dual, records / rho)
        dual += scores - fresh
        moved = max(np.abs(fresh - weights).max(), np.abs(scores - fresh).max())
        weights = fresh
        if moved <= 1e-10 * max(1.0, np.abs(weights).max()):
            break
    return Solution(weights)
