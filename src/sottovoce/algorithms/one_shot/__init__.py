"""`one-shot`: one noisy sketched row for every person and party, and no further message. A comparator over columns."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import scipy.sparse as sp
from pydantic import Field

from sottovoce.algorithms.base import Algorithm, Array, Coordination, Need, answer, answers, given, limited
from sottovoce.data.block import Layout
from sottovoce.errors import InputError, LeakError
from sottovoce.gate.frames import MAX_BYTES
from sottovoce.gate.query import Query, Round, Together, World
from sottovoce.penalties.quadratic import minimise
from sottovoce.plan import Design, Numbers, Plan, Problem, Release
from sottovoce.plan.release import Count
from sottovoce.queries.parts import NoisyLabels, make_sketch
from sottovoce.solvers import OneShot, Sketch

SIZE = 16  # numbers for each person and party
LABEL_SHARE = 0.25  # of mu^2
EXPLAINED = 0.1  # what the damping expects of the mean square of the scaled labels that a model explains
FLOAT = 1.0 + 2.0**-30  # in a sensitivity, for the floating point of a product and of a norm
QUADRATIC = Need(lambda loss: loss.quadratic, "needs the squared loss, not {!r}")


class OneShotNumbers(Numbers):
    """Which sketch, how many numbers it has at most, and what is added to the products of the coordinator."""

    sketch: Sketch
    sketch_size: Count
    damping: float = Field(ge=0, allow_inf_nan=False)


class PrivateOneShot(Algorithm):
    """Party k sends Z_k = X_k Pi_k + W_k once, the party with the labels y + noise once; the rest is post-processing.

    Pi_k is a public sketch of the party's d_k columns to size_k numbers, a row of X_k Pi_k is clipped to the norm B_k
    that bounds the party's part of a row, and W_k has entries N(0, (B_k std)^2). With P = diag(Pi_1, ..., Pi_K), the
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
    public column of ones; whoever knows the labels, they leave with noise. Squared loss only, and no run without noise,
    in which every row would be sent as it is.
    """

    name: ClassVar[str] = "one-shot"
    form: ClassVar[str] = "private"
    title: ClassVar[str] = "one noisy sketched row for every person and party; for comparison"
    splits = ("columns",)
    needs: ClassVar[tuple[Need, ...]] = (QUADRATIC,)
    layout: ClassVar[Layout] = "entries"
    numbers: ClassVar[type[Numbers]] = OneShotNumbers

    corrected: ClassVar[bool] = True  # whether the noise is taken off Z'Z

    def rows(self, problem: Problem, party: str, most: int) -> RowSketch:
        """What a party sends."""
        return RowSketch(problem, party, most)

    def sent(self, problem: Problem, most: int) -> list[RowSketch]:
        """What all parties send, if a message holds it."""
        sent = [self.rows(problem, name, most) for name in problem.names]
        longest = max(sent, key=lambda query: query.size)
        if 8 * longest.length > MAX_BYTES // 2:
            raise InputError(
                f"sketch_size={longest.size}: {longest.length} numbers of a party are too many for one message; at "
                f"{problem.records} records take sketch_size={max(MAX_BYTES // 16 // problem.records, 1)} or less."
            )
        return sent

    def design(self, problem: Problem, options: OneShot) -> Design:
        """16 numbers for each person and party; a quarter of mu^2 for the labels."""
        problem.bounds.require(problem.features, labels=True)
        most = given(options.sketch_size, SIZE)
        rows = max(self.sent(problem, most), key=lambda query: query.size)
        mu, parties = problem.mu, len(problem.parties)
        releases = (
            Release.at_mu(rows, 0, parties, math.sqrt(1 - LABEL_SHARE) * mu, problem.relation).times(1),
            Release.at_mu(SharedLabels(problem, FLOAT), 0, 1, math.sqrt(LABEL_SHARE) * mu, problem.relation),
        )
        numbers = OneShotNumbers(
            sketch=given(options.sketch, "count"), sketch_size=most, damping=damping(problem, rows.size, *releases)
        )
        return Design(rounds=1, numbers=numbers, releases=releases)

    def queries(self, plan: Plan, party: str) -> tuple[Query, ...]:
        return self.rows(plan, party, plan.numbers.sketch_size), SharedLabels(plan, FLOAT)

    def coordinate(self, plan: Plan) -> Coordination:
        """Two asks, then linear algebra on what was released."""
        released = yield from answers("rows")
        labels = yield from answer("labels")
        parts = [released[name].reshape(plan.records, -1) for name in plan.names]
        sketches = [self.rows(plan, name, plan.numbers.sketch_size).matrix(plan) for name in plan.names]
        noisy = np.ones(sum(sketch.shape[1] for sketch in sketches))
        if plan.fit_intercept:
            parts.append(np.ones((plan.records, 1)))
            sketches, noisy = [*sketches, np.ones((1, 1))], np.append(noisy, 0.0)
        back = sp.block_diag([sp.coo_matrix(sketch) for sketch in sketches], format="csr")
        gram = np.block([[left.T @ right for right in parts] for left in parts])
        if self.corrected:
            gram -= np.diag(plan.records * plan.release("rows").std ** 2 * noisy)
        values, vectors = np.linalg.eigh(gram)
        gram = (vectors * np.maximum(values, 0.0)) @ vectors.T + np.diag(plan.numbers.damping * noisy)
        moments = np.concatenate([part.T @ labels for part in parts])
        return minimise(gram, moments, back, plan.scaled_regulariser, plan.records)


class RowSketch(Query):
    """x Pi / B for each of a party's rows x, one row after another; rows longer than 1 are clipped to 1.

    B bounds the part's norm: the party's part of a declared row norm, or what the bounds of its columns allow.
    Guarantee: a row of the value is a function of one record; it has a norm of at most 1, and is 0 for a null row. So
    zero-out moves the value by at most 1, replace-one by 2.
    """

    name = "rows"
    title: ClassVar[str] = "a short row of every person"
    each_person: ClassVar[bool] = True
    kind: ClassVar[str] = "features"
    world_sees: ClassVar[World] = "each"
    clipped: ClassVar[bool] = True
    bound = FLOAT

    def __init__(self, problem: Problem, party: str, most: int) -> None:
        if problem.layout != "entries":
            raise LeakError("the rows were not prepared for a sketch of columns.")
        part = problem.part(party)
        bounds, self.start, self.width = part.preparation.bounds, part.start, part.stop - part.start
        self.size = min(self.width, most)
        self.length, self.rounding_entries = problem.records * self.size, float(self.size)
        norm = float(np.linalg.norm(bounds.columns(self.width)))
        self.norm = min(norm, math.inf if bounds.row_norm is None else bounds.row_norm) / problem.preparation.unit

    def matrix(self, plan: Plan) -> Array:
        """Pi / B, from the public coin; the identity over B where nothing is gained by a sketch."""
        if self.size == self.width:
            return np.eye(self.width) / self.norm
        sketch = make_sketch(plan.numbers.sketch, self.size, self.width, plan.public_coin(f"rows {self.start}"))
        return np.column_stack([sketch.back(unit) for unit in np.eye(self.size)]) / self.norm

    def value(self, round: Round) -> Array:
        """One pass over the columns; the constant column of the intercept stays out."""
        found = round.rows.times(self.matrix(round.plan))
        if self.clipped:
            norms = np.sqrt(np.einsum("ij,ij->i", found, found))
            found /= np.maximum(norms, 1.0)[:, None]
        return found.ravel()


class UnclippedRowSketch(RowSketch):
    """x Pi / theta for each of a party's rows x, theta the largest range of its columns.

    Guarantee: a row of Pi has norm 1, so |x Pi| <= sum_j |x_j|, and |x| where the columns are sent as they are; a null
    row is 0. Zero-out moves the value by at most that bound over theta, replace-one by twice as much.
    """

    together: ClassVar[bool] = True
    clipped: ClassVar[bool] = False

    def __init__(self, problem: Problem, party: str, most: int) -> None:
        super().__init__(problem, party, most)
        columns = problem.part(party).preparation.bounds.columns(self.width) / problem.preparation.unit
        longest = self.norm
        if self.size < self.width:
            longest = min(float(columns.sum()), math.sqrt(self.width) * longest)
        self.norm = 2.0 * float(columns.max())
        self.bound = longest / self.norm * FLOAT


class SharedLabels(NoisyLabels):
    """Noisy labels of which the model may tell everything."""

    world_sees: ClassVar[World] = "each"
    together: ClassVar[bool] = False


def damping(problem: Problem, size: int, rows: Release, labels: Release) -> float:
    """K (size std^2 (1 + std_y^2) + std_y^2) / EXPLAINED + std^2 sqrt(N K size): public numbers.

    The first term is the noise of Z'y, in a ridge regression for weights that explain EXPLAINED of the labels; the
    second that of G.
    """
    parties, noise, label_noise = len(problem.parties), rows.std**2, labels.std**2
    products = parties * (size * noise * (1 + label_noise) + label_noise) / EXPLAINED
    return float(products + noise * math.sqrt(problem.records * parties * size))


class PublishedOneShot(PrivateOneShot):
    """Z_k = X_k Pi_k + W_k, W_k with entries N(0, (theta_k s)^2), s = sqrt(2 (log(1 / (2 delta)) + epsilon)) / epsilon.

    The noise of Heinze-Deml, McWilliams and Meinshausen (2017, Theorem 1, from Kenthapadi et al. 2013), theta_k the
    range of party k's widest column and 1 the norm of a row of Pi_k: (epsilon, delta) for one attribute of one person.
    Their Pi_k is an SRHT, here a sketch whose rows have the same norm. Rows are not clipped and G = Z'Z as it is. There
    each party knows the labels and fits its own columns, raw, beside the others' rows, by the dual of ridge regression;
    those fits are not here: the coordinator fits what was sent, and labels are one more column, of range 2.

    Guarantee: for a whole record, with |x Pi_k| at most Delta_k (`UnclippedRowSketch`),
    mu^2 = sum_k (Delta_k / (theta_k s))^2 + (1 / (2 s))^2, replace-one four times as much (`proof.md`).
    Edges: delta is at most 1/2.
    """

    form: ClassVar[str] = "published"
    title: ClassVar[str] = "one sketched row for every person and party with the published noise of one attribute"
    published: ClassVar[bool] = True
    corrected: ClassVar[bool] = False

    def rows(self, problem: Problem, party: str, most: int) -> UnclippedRowSketch:
        return UnclippedRowSketch(problem, party, most)

    def design(self, problem: Problem, options: OneShot) -> Design:
        problem.bounds.require(problem.features, labels=True)
        most, delta = given(options.sketch_size, SIZE), limited("delta", problem.delta, 0.0, 0.5)
        std = math.sqrt(2 * (math.log(1 / (2 * delta)) + problem.epsilon)) / problem.epsilon
        rows, labels = Together(list[Query](self.sent(problem, most))), SharedLabels(problem, FLOAT)
        releases = (Release.of(rows, 0, 1, std), Release.of(labels, 0, 1, 2 * std))
        tiny = 1e-9 * problem.records  # where there are fewer records than numbers in a row
        numbers = OneShotNumbers(sketch=given(options.sketch, "count"), sketch_size=most, damping=tiny)
        return Design(rounds=1, numbers=numbers, releases=releases)


FORMS: tuple[Algorithm, ...] = (PrivateOneShot(), PublishedOneShot())
