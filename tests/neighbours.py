"""How far one record moves a sum of secure columns, over what is charged for it: `python tests/neighbours.py`.

Tables, P, weights, chances, coins and masks are drawn; parties and dealer run the programs, and every record's term is
read off what was opened. A record is compared with the same one that one party leaves blank, or all of them, and with
another one, of which one party has another part, or all have; coins and masks stay. Half of the rows are as long
as a clip lets pass, and half of the tables say the most that a slope can be. Bounds are those of the queries.

A sum is the sum of its terms, and a term is of its own record alone: both are checked, in whole numbers.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dealing import Run, look_up
from sottovoce.data.bounds import Bounds
from sottovoce.gate.query import Query
from sottovoce.plan.problem import Named, Problem
from sottovoce.plan.split import SecureAggregation
from sottovoce.privacy.events import Relation
from sottovoce.queries.joint import JointGradient, JointScores, JointSquares, ScaleLookup, WholeGradient, WholeLength
from sottovoce.queries.sums import GramMatrix
from sottovoce.secure.ring import ROW_BITS, SECTIONS, WIDE, LookUp, Projection, fits_clip, step_of
from sottovoce.secure.streams import RoundLabels, add_fields

Array = NDArray[Any]

NEIGHBOURS: dict[str, Relation] = {
    "a part blank": "zero-out",
    "the record blank": "zero-out",
    "a part replaced": "replace-one",
    "the record replaced": "replace-one",
}
LENGTH, FACTOR = 3, 5  # rounds


class Table(NamedTuple):
    """What the parties have."""

    rows: Array
    labels: Array
    null: Array


@dataclass(frozen=True)
class Draw:
    """All that is told, and how the columns are split; tables are drawn beside."""

    widths: list[int]
    norms: Array  # of the parts
    exponent: int
    projection: Projection
    weights: Array
    extreme: bool
    seed: int

    @property
    def classes(self) -> bool:
        return self.seed % 3 > 0

    @property
    def holder(self) -> int:
        return self.seed % len(self.widths)

    @property
    def problem(self) -> Problem:
        labels = {"classes": (-1, 1)} if self.classes else {}
        bounds = Bounds.declare(row_norm=1.0, **({} if self.classes else {"label_bound": 1.0}))
        return Problem(
            loss=Named(name="logistic" if self.classes else "squared"),
            regulariser=Named(name="none"),
            split="columns",
            parties=tuple((f"p{place}", 4) for place in range(len(self.widths))),
            features=sum(self.widths),
            columns=tuple(self.widths),
            norms=tuple(map(float, self.norms)),
            labels="held",
            bounds=bounds,
            epsilon=1.0,
            delta=1e-5,
            fit_intercept=False,
            aggregation=SecureAggregation(colluding=1),
            **labels,
        )


def draw(seed: int) -> Draw:
    """Of all that may be told."""
    rng = np.random.default_rng([seed, 1])
    parties = int(rng.choice([2, 3, 8, 16]))
    widths = [int(width) for width in rng.integers(1, 4, parties)]
    wide, exponent = sum(widths), int(rng.choice([10, 14, 20, 26, 30]))
    norms = np.minimum(1.0, np.sqrt(rng.dirichlet(np.full(parties, rng.choice([0.3, 3.0]))) * rng.choice([0.999, 1.6])))
    square = max(1.0, float((norms**2).sum()))
    shape = rng.choice(["any", "one direction", "columns alone", "far"])
    matrix = rng.standard_normal((wide, wide)) * np.exp(rng.normal(0, 0.7, wide))
    if shape == "one direction":
        matrix = np.outer(rng.standard_normal(wide), rng.standard_normal(wide))
    elif shape == "columns alone":
        matrix = np.diag(np.exp(rng.normal(0, 1.0, wide)))
    most = 251.0 if shape == "far" else float(np.exp(rng.uniform(0.0, np.log(250.0))))
    matrix *= np.sqrt(most * 4.0 * 2.0**exponent / (4.0**ROW_BITS * square)) / np.linalg.norm(matrix, 2)
    projection = Projection(np.trunc(matrix).astype(np.int64), exponent)
    assert fits_clip(projection.matrix, exponent, square)
    weights = rng.standard_normal(wide) * 10.0 ** rng.choice([-2, 0, 1, 3, 12, 300])
    return Draw(widths, norms, exponent, projection, weights, bool(rng.random() < 0.5), seed)


def within(rows: Array, told: Draw) -> Array:
    """Whole numbers whose parts are within their norms."""
    found, start = rows.copy(), 0
    for width, norm in zip(told.widths, told.norms, strict=True):
        part = found[:, start : start + width]
        part *= np.minimum(1.0, norm * 2.0**ROW_BITS / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-9))
        start += width
    return np.trunc(found).astype(np.int64)


def table_of(told: Draw, records: int) -> Table:
    """Rows of all lengths; half of them about as long as the clip."""
    rng = np.random.default_rng([told.seed, 2])
    rows = rng.standard_normal((records, sum(told.widths)))
    parts = np.repeat(np.arange(len(told.widths)), told.widths)
    for part, norm in enumerate(told.norms):
        rows[:, parts == part] *= norm / np.linalg.norm(rows[:, parts == part], axis=1, keepdims=True)
    rows *= np.where(rng.random((records, 1)) < 0.5, 1.0, rng.uniform(0, 1, (records, 1))) * 2.0**ROW_BITS
    lengths = np.linalg.norm(rows @ told.projection.matrix, axis=1, keepdims=True)
    wanted = 2.0 * 2.0 ** (told.exponent / 2) * np.sqrt(rng.uniform(0.9, 1.0, (records, 1)))
    near = rng.random((records, 1)) < 0.5
    rows = within(np.where(near, rows * wanted / np.maximum(lengths, 1.0), rows), told)
    labels = np.sign(rng.standard_normal(records)) if told.classes else rng.uniform(-1, 1, records)
    return Table(rows, labels, np.zeros((records, len(told.widths)), dtype=bool))


def neighbour_of(kind: str, told: Draw, table: Table) -> Table:
    """Every record of a table changed in that way."""
    rng = np.random.default_rng([told.seed, 3])
    rows, labels, null = table.rows.copy(), table.labels.copy(), table.null.copy()
    records, parties = null.shape
    if kind == "the record blank":
        null[:] = True
    elif kind == "a part blank":
        null[np.arange(records), rng.integers(0, parties, records)] = True
    else:
        changed = np.ones_like(null)
        if kind == "a part replaced":
            changed = rng.integers(0, parties, (records, 1)) == np.arange(parties)
        sign = rng.choice([-1, 1], (records, 1))  # the other way round, or the same row with another label
        cells = np.repeat(changed, told.widths, axis=1)
        rows = np.where(cells, sign * rows, rows)
        labels = np.where(changed[:, told.holder] & (sign[:, 0] > 0), -labels, labels)
        other = rng.permutation(records)
        fresh = rng.random(records) < 0.3
        rows = np.where(cells & fresh[:, None], table.rows[other], rows)
    return Table(rows, labels, null)


class Terms:
    """One run over a table: of each query every record's term, in whole numbers of its grid."""

    def __init__(self, told: Draw, table: Table) -> None:
        self.told = told
        self.run = Run(
            table.rows,
            table.labels,
            told.widths,
            null=table.null,
            holder=told.holder,
            seed=told.seed,
            classes=told.classes,
            bits=48,
        )
        self.run.exchange().share_null().share_factor(told.projection, FACTOR)

    def all(self) -> Iterator[tuple[Query, float, Array, Array]]:
        """Queries, their grids, the terms and what was opened."""
        told, run, problem = self.told, self.run, self.told.problem
        x, z = run.rows, run.rows @ told.projection.matrix
        n, f = run.shared("null")[:, None], run.shared("factor")[:, None]
        gram, (left, right) = GramMatrix(problem.dimension, problem.row_square), np.triu_indices(x.shape[1])
        yield gram, 4.0**-ROW_BITS, x[:, left] * x[:, right], run.gram()
        slopes = self._slopes(1, "rows")
        rows = JointGradient(problem, 1.0)
        yield rows, 2.0**-ROW_BITS, n * slopes * x, run.look_up(1, told.weights, self._lookup("rows"))
        slopes = self._slopes(2, "projected")
        opened = run.look_up(2, told.weights, self._lookup("projected"))
        yield WholeGradient(problem), step_of(told.exponent), f * slopes * z, opened
        sums: tuple[tuple[Any, str, bool, tuple[int, ...]], ...] = (
            (JointScores(problem), "score", True, (256,)),
            (JointSquares(problem), "score", False, (256,)),
            (ScaleLookup(problem), "label" if told.classes else "score", True, (181, 181)),
        )
        for number, (query, index, twice, scales) in enumerate(sums, 6):
            lookup = look_up(
                self._chances(len(scales)), index=index, matrix="one", twice=twice, minus_label=False, scales=scales
            )
            opened = run.look_up(number, told.weights, lookup)
            bits = run.bits_of(number, lookup)
            yield query, 2.0**-8, n * (2 * bits - 1 if twice else bits) * np.array(scales), opened
        if not told.classes:
            yield from self._counts(z, n, f)
        total = run.length(told.projection, LENGTH)
        yield WholeLength(problem), 2.0**-8, 256 * self._length_bits(), np.array([total])

    def _counts(self, z: Array, n: Array, f: Array) -> Iterator[tuple[Query, float, Array, Array]]:
        """Sums of t - t', looked up by score and label; here labels are from -1 to 1."""
        rng, nodes = np.random.default_rng([self.told.seed, 5]), np.linspace(-1.0, 1.0, SECTIONS)
        queries: tuple[tuple[Query, float, str, tuple[int, ...]], ...] = (
            (WholeGradient(self.told.problem), step_of(self.told.exponent), "projected", (1,)),
            (ScaleLookup(self.told.problem), 2.0**-8, "one", (181, 181)),
        )
        for number, (query, step, matrix, scales) in enumerate(queries, 9):
            sides = np.repeat([0.0, 1.0], WIDE // 2)
            chances = np.vstack([sides, 1 - sides]).repeat(len(scales), axis=0)
            if not self.told.extreme:
                chances = rng.random(chances.shape)
            lookup = look_up(
                chances,
                weight="factor" if matrix == "projected" else "null",
                matrix=matrix,
                minus_label=False,
                scales=scales,
                projection=self.told.projection if matrix == "projected" else None,
                nodes=nodes,
            )
            opened = self.run.look_up(number, self.told.weights, lookup)
            bits = self.run.bits_of(number, lookup)
            slopes = bits[:, : len(scales)] - bits[:, len(scales) :]
            yield query, step, f * slopes * z if matrix == "projected" else n * slopes * np.array(scales), opened

    def _slopes(self, number: int, matrix: str) -> Array:
        """r of each record: t - y', or 2 t - 1."""
        self.run.look_up(number, self.told.weights, self._lookup(matrix))
        bits = self.run.bits_of(number, self._lookup(matrix))
        return bits - (self.run.labels > 0)[:, None] if self.told.classes else 2 * bits - 1

    def _lookup(self, matrix: str) -> LookUp:
        projected = matrix == "projected"
        return look_up(
            self._chances(1),
            index="label" if self.told.classes else "residual",
            weight="factor" if projected else "null",
            matrix=matrix,
            twice=not self.told.classes,
            minus_label=self.told.classes,
            projection=self.told.projection if projected else None,
        )

    def _chances(self, outputs: int) -> Array:
        """Any; or the most: of the second class 0, of the first 1."""
        if self.told.extreme:
            return np.tile(np.repeat([0.0, 1.0], 32), (outputs, 1))
        return np.random.default_rng([self.told.seed, 4]).random((outputs, 64))

    def _length_bits(self) -> Array:
        """What was opened in the program's last message, without the masks."""
        run, asked = self.run, RoundLabels(LENGTH, "length")
        total = run.opened["length", LENGTH, 2]
        for name in run.names:
            total = add_fields(total, run.masks(name, asked.label("length 2", run.whole()), total))
        return np.unpackbits(total[0], axis=0, count=run.records).astype(np.int64)


def moves(told: Draw, records: int) -> dict[tuple[str, str], float]:
    """By query and neighbour: the longest move of a record over the bound."""
    table, found = table_of(told, records), defaultdict[tuple[str, str], float](float)
    before = list(Terms(told, table).all())
    for kind, relation in NEIGHBOURS.items():
        other = neighbour_of(kind, told, table)
        after = list(Terms(told, other).all())
        place = told.seed % records
        mixed = Table(*(swapped(mine, theirs, place) for mine, theirs in zip(table, other, strict=True)))
        for was, now, (_, _, _, opened) in zip(before, after, Terms(told, mixed).all(), strict=True):
            query, step, terms, total = was
            assert np.array_equal(terms.sum(axis=0), total), f"{query.name}: a sum is not that of its terms"
            assert np.array_equal(opened - total, now[2][place] - terms[place]), (
                f"{query.name}: a term of other records"
            )
            moved = (now[2] - terms) * step * query.noise_weights
            key = (("rows" if isinstance(query, JointGradient) else query.name), kind)
            most = float(np.linalg.norm(moved.astype(np.float64), axis=1).max())
            found[key] = max(found[key], most / query.sensitivity(relation))
    return dict(found)


def swapped(mine: Array, theirs: Array, place: int) -> Array:
    """One record of another table in the place of one's own."""
    found = mine.copy()
    found[place] = theirs[place]
    return found


def largest(seeds: Sequence[int], records: int) -> dict[tuple[str, str], float]:
    """Over draws."""
    found = defaultdict[tuple[str, str], float](float)
    for seed in seeds:
        for key, most in moves(draw(seed), records).items():
            found[key] = max(found[key], most)
    return dict(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--records", type=int, default=200)
    given = parser.parse_args()
    found = largest(range(given.draws), given.records)
    queries = list(dict.fromkeys(query for query, _ in found))
    lines = [["longest move over the bound", *NEIGHBOURS], ["---"] * (1 + len(NEIGHBOURS))]
    lines += [[query, *(f"{found[query, kind]:.4f}" for kind in NEIGHBOURS)] for query in queries]
    sys.stdout.write("\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n")
    sys.stdout.write(f"{given.draws} draws of all that is told, {given.records} records each\n")


if __name__ == "__main__":
    main()
