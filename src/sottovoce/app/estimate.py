"""About what a fit takes: rounds and bytes by what the queries of its plan declare, time by one measured pass.

    seconds = records x columns x rounds x rate, and what preparing the rows and reading the files takes

The rate is measured at first use, unless the fit is short: a real pass over made-up rows, stored as those of the fit
will be. Other work is so many passes, or constants in seconds. `benchmarks/estimates.py` compares estimates with fits.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from sottovoce import losses
from sottovoce.algorithms import Algorithm
from sottovoce.algorithms.scd.duals import DualQuery
from sottovoce.data import resources as room
from sottovoce.data.block import prepare_rows
from sottovoce.data.bounds import Bounds
from sottovoce.data.dataset import Dataset
from sottovoce.data.matrix import Slope
from sottovoce.data.parts_in_file import PIECE, PreparedRows
from sottovoce.data.preparation import Preparation
from sottovoce.data.resources import Resources
from sottovoce.errors import InputError
from sottovoce.gate.query import Choice, Query, Walk
from sottovoce.plan.plan import Plan
from sottovoce.plan.release import Release
from sottovoce.queries import messages, pricing
from sottovoce.queries.joint import JointSum
from sottovoce.queries.projected import LengthSum
from sottovoce.queries.sums import GramMatrix
from sottovoce.secure.tables import ring_bits

LONG, ENTRIES = 0.2, 1 << 23  # seconds from which on the rate is measured, and on so many entries
SPARSE: Final = 10  # entries of a dense record that take as long as one of a sparse record
RECORD, ENTRY, PREPARE, PRODUCT = 3e-9, 3e-10, 2.5e-9, 2.5e-11  # a record in a pass, an entry, its preparing, a product
STEP, DUAL, DRAW = 1.4e-9, 3.5e-8, 4e-9  # a record in a step along a column, in a dual step, drawn into a batch
CSV, SCHEMA, PARQUET, NUMPY, LIBSVM = (2e-6, 2e-8), (2e-5, 5e-7), (0, 1.5e-8), (0, 3e-9), (0, 6e-7)
READ: Final = {".csv": CSV, "schema": SCHEMA, ".parquet": PARQUET, ".npy": NUMPY, ".svm": LIBSVM}  # a record, an entry
SECURE: Final = {  # a record of secure columns: bytes and words that a party says, bytes and words dealt, seconds
    "null": (1.2, 2, 4, 2, 0.0),
    "factor": (4.9, 1, 192, 7, 5.5e-6),
    "length": (4.4, 0, 64, 2, 5.5e-6),
    "look-up": (1.2, 1, 8, 2, 0.0),
    "number": (1.2, 0, 16, 4, 0.0),  # a look-up that sums no rows
}
LOOKUP, COLUMN, MESSAGE, COMMIT = 9e-8, 2e-9, 3e-4, 1e-2  # of each role, of its columns; a message, one in a ledger
SIGNATURE, CERTIFIED, KEYS = 200, 1200, 1300  # bytes of a signature, of one with a certificate, of a member's keys


@dataclass(frozen=True)
class Cost:
    """About what a run takes; `reading` says whether reading files is in it. All None without privacy."""

    rounds: int | None = None
    uplink_bytes: int | None = None
    downlink_bytes: int | None = None
    seconds: float | None = None
    dealt_bytes: int | None = None  # of those down, a dealer's
    memory_bytes: int | None = None  # of the process at its peak
    reading: bool = False

    def __add__(self, other: Cost) -> Cost:
        pairs = list(zip(astuple(self), astuple(other), strict=True))
        sums: list[Any] = [None if pair == (None, None) else sum(filter(None, pair)) for pair in pairs[:5]]
        return Cost(*[*sums, max(filter(None, pairs[5]), default=None), self.reading or other.reading])


@dataclass(frozen=True)
class FitRows:
    """The rows of a fit: how many, how wide, in which files, and where they will be stored."""

    records: int
    features: int
    sparse_entries: float | None = None  # of a record; None: dense
    n_jobs: int | None = None
    device: str | None = None
    kind: str | None = None  # of files that are still to be read, as in `READ`
    folders: tuple[Path | None, ...] = ()  # of each party whose file is read in pieces: where prepared rows may go
    workers: int = 0  # of a cluster that has them

    def prepared(self, plan: Plan) -> list[PreparedRows]:
        """Where prepared rows will be: a party's go to a file if they do not fit into the memory that is left."""
        files, size = list[PreparedRows](), 0
        for (name, count), folder in zip(plan.parties, self.folders or (None,) * len(plan.parties), strict=True):
            counts = (count,) if self.sparse_entries is None else (0, count, int(self.sparse_entries * count))
            own = plan.part(name).preparation.size_of(*counts)
            if folder is not None and not room.fits_in_memory(own, after=size):
                files.append(PreparedRows(own, "file", folder, count))
            else:
                size += own
        where = "cluster" if self.workers else "device" if self.device == "cuda" else "memory"
        return [*([PreparedRows(size, where, workers=self.workers)] if size else []), *files]

    def memory(self, plan: Plan) -> float:
        """Bytes of raw rows that are still to be read, and of prepared ones; of sparse rows there are copies."""
        row, copies = (8 * self.features, 1) if self.sparse_entries is None else (12 * self.sparse_entries, 3)
        raw = 2 * PIECE if any(self.folders) else 0 if self.kind is None or self.workers else self.records * (row + 8)
        held = sum(copies * part.size + 20 * self.records for part in self.prepared(plan) if part.where == "memory")
        return raw + held + self.records * plan.secure_columns * (8 * plan.dimension * (len(plan.parties) + 2) + 500)

    def seconds(self, plan: Plan, asked: Sequence[tuple[Query, Release, float]]) -> float:
        """To read and prepare the rows and to answer what is asked of so many records."""
        width = self.features if self.sparse_entries is None else SPARSE * self.sparse_entries
        roughly = self._by_rates(plan, asked, RECORD + ENTRY * width, PREPARE * width)
        folder = next((part.folder for part in self.prepared(plan) if part.folder is not None), None)
        with contextlib.suppress(InputError, OSError, MemoryError):  # the fit will say so
            if roughly > LONG:
                return self._by_rates(plan, asked, *_rates(max(round(width), 1), self.device, self.n_jobs, folder))
        return roughly

    def _by_rates(self, plan: Plan, asked: Any, one_pass: float, prepare: float) -> float:
        dense, entries = self.sparse_entries is None, self.sparse_entries or self.features
        record, entry = READ.get(self.kind or "", (0.0, 0.0))
        total = self.records * (prepare + record + entry * entries)
        for query, release, records in asked:
            drawn = (release.rate or 1.0) < 1.0
            work = one_pass * (2.0 if drawn else 1.0)
            if isinstance(query, DualQuery):
                work = 1.5 * one_pass + DUAL
            elif isinstance(query, Choice):
                work = (1.7 if dense else 0.8) * one_pass
            elif isinstance(query, Walk) or (plan.layout == "columns" and query.length < plan.dimension):
                work = STEP * query.length * min(1.0, 3.5 * entries / self.features)
            elif isinstance(query, GramMatrix) or (isinstance(query, LengthSum) and query.shape.kind == "triangular"):
                other = entries if isinstance(query, GramMatrix) else self.features
                work += PRODUCT * (1 if dense else 2 * SPARSE) * entries * other
            share = (release.rate or 1.0) * query.uses(release.count) / release.count
            total += records * release.batches * (share * work + DRAW * drawn)
        return total / max(self.workers, 1)


def cost_of(
    plan: Plan, form: Algorithm, rows: FitRows | None = None, *, remote: bool = False, ledgers: int = 0
) -> Cost:
    """About what a run takes; remote parties compute side by side, and so many ledgers are here."""
    if not plan.private:
        return Cost()
    rows, parties = rows or FitRows(plan.records, plan.features), len(plan.parties)
    queries = pricing.queries_of(form, plan, plan.names[0])
    signature, keys = CERTIFIED if remote else SIGNATURE, KEYS * parties if plan.channel.secure else 0
    checked = parties > 1  # by each party, before all sign
    up = parties * (2 * messages.HEADING + keys // 2 + checked * (signature + 2 * messages.HEADING))
    down = parties * ((1 + checked) * (len(plan.to_json()) + keys) + checked * parties * signature)
    asked, seconds, dealt = list[tuple[Query, Release, float]](), 0.0, None
    for name, several in messages.messages_of(plan, form).items():
        for each in several:
            part, records = plan.part(each.party), each.count * dict(plan.parties)[each.party]
            asked.append((queries[name], plan.release(name), records * (part.stop - part.start) / plan.features))
            up, down = up + each.count * each.answer_bytes, down + each.count * each.told_bytes
            seconds += each.count * (MESSAGE + COMMIT * ledgers / parties)
    if plan.secure_columns:
        said, passed, dealt, work = _secure_columns(plan, queries)
        up, down, seconds, asked = up + said, down + passed + dealt, seconds + work, []
    beside = max(count for _, count in plan.parties) / plan.records if remote else 1.0
    seconds, memory = seconds + beside * rows.seconds(plan, asked), int(room.resident() + beside * rows.memory(plan))
    return Cost(messages.rounds_of(plan, form), up, down, seconds, dealt, memory, rows.kind is not None)


def _secure_columns(plan: Plan, queries: Mapping[str, Query]) -> tuple[int, int, int, float]:
    """(bytes up, down and dealt, seconds): the columns once, and for each record what programs say and are dealt."""
    parties, width, word, said, dealt, work = len(plan.names), plan.dimension, ring_bits(plan) // 8, 0.0, 0.0, 0.0
    programs = [("null", 1)]
    for release in plan.releases:
        if isinstance(query := queries[release.query], JointSum):
            name = "length" if query.program == "length" else "number" if query.length < width else "look-up"
            programs += [(name, release.count), *[("factor", 1)] * query.factored]
    for name, count in programs:
        plain, words, dealt_plain, dealt_elements, clip = SECURE[name]
        said, dealt = said + count * (plain + words * word), dealt + count * (dealt_plain + dealt_elements * word)
        work += count * ((parties + 1) * (LOOKUP + COLUMN * width) + clip)
    up = width * word + (parties + (parties > 2)) * said
    down = width * word * (parties - 1) + (parties if parties < 3 else 2 * (parties - 1)) * said  # one adds, tells all
    return int(plan.records * up), int(plan.records * down), int(plan.records * dealt), plan.records * work


@functools.lru_cache(maxsize=32)
def _rates(width: int, device: str | None, n_jobs: int | None, folder: Path | None) -> tuple[float, float]:
    """Seconds of a record in a pass and in the preparation, the least of three: in the first, loops are compiled."""
    count = max(ENTRIES // width, 64)
    X: Any = np.resize(np.random.default_rng(0).uniform(-1.0, 1.0, (min(count, 4096), width)), (count, width))
    recipe = Preparation(Bounds(row_norm=1.0), width, fit_intercept=False, records=count, classes=(0, 1))
    clock = time.perf_counter if device or n_jobs else time.process_time  # which knows this work alone
    y, taken = np.arange(count) % 2, []
    if folder is not None:
        X = Dataset.from_arrays(X, y, folder=folder)
        X.in_file = True
    for _ in range(3):
        start = clock()
        block = prepare_rows(X, y, recipe, Resources(n_jobs, device), sums=True)
        ready = clock()
        block.weighted_sum(np.ones(width), Slope(losses.get("logistic"), 1.0, recipe.bits))
        taken.append((clock() - ready, ready - start))
    return min(one for one, _ in taken) / count, min(one for _, one in taken) / count
