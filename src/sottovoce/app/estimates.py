"""What a fit takes on this machine, in time and memory: it is rehearsed on few made-up rows and carried on to all.

A rehearsal runs the plan itself, with its own queries and noise, at a party that holds made-up rows: no record is read,
nothing is charged and what is released is thrown away. It stops after some asks of each kind. What an ask takes is a
line in the number of records, found from two sizes; so nothing here knows of solvers, or of how fast a machine is. A
rehearsal in which loops were compiled, as the first on a machine is, tells nothing and is repeated.

Where rows lie is a class: in memory, in files, on a device, on a cluster. It says which rows it makes up, and how a
party holds them.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
import tracemalloc
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sottovoce.algorithms import Algorithm
from sottovoce.data import dataset, room
from sottovoce.data.block import SPARSE
from sottovoce.data.dataset import Dataset
from sottovoce.data.files import format_of, read_table
from sottovoce.data.files.csv import Csv
from sottovoce.data.files.parquet import Parquet
from sottovoce.data.kernels.compiling import compiled
from sottovoce.data.matrix import Matrix, dense
from sottovoce.data.parts_in_file import PIECE, check_room, size_of
from sottovoce.data.threads import LEAST, even, using
from sottovoce.federation.coordinator import Coordinator
from sottovoce.federation.party import Party
from sottovoce.plan.families import FAMILIES
from sottovoce.plan.plan import Plan
from sottovoce.queries.messages import messages_of
from sottovoce.transports.in_process import InProcess

ENTRIES: Final = 1 << 22  # of the larger rehearsal: beyond the nearest caches
SMALLER: Final = 8  # times fewer records are in the smaller one
ASKS, PATIENCE = 64, 0.3  # asks of each kind that are waited for, since later ones may take longer, and seconds
WARMING: Final = 3.0  # seconds of the first, in which loops are loaded
TRIES: Final = 16  # of a rehearsal in which loops are compiled
FEWEST: Final = 64  # records
TO_READ: Final = 1 << 17  # entries of a made-up file
READINGS: Final = 3  # of it; the fastest counts, since the first loads what reads it
PIECES: Final = 3, 6  # of rows that are read piece by piece, in the rehearsals whose memory is counted

Told = TypeVar("Told")


class Estimate(NamedTuple):
    """Seconds of computing, the bytes that the process has at its peak, and whether reading files is in the seconds."""

    seconds: float
    memory_bytes: int
    reading: bool = True


class Place(NamedTuple):
    """Where a job wants the prepared rows of a party that do not fit in memory: a folder, else beside the ledger."""

    folder: Path | None = None
    beside: Path | None = None
    whole: bool = False  # whether its rows are read whole, and so stay in memory


class PreparedRows(NamedTuple):
    """Where prepared rows lie: so many bytes in "memory", in a "file" of a folder, on a "device" or a "cluster"."""

    size: int
    where: str
    folder: Path | None = None
    records: int = 0  # in that file
    workers: int = 0  # of that cluster

    def check(self) -> None:
        """Refuse a folder that is none, or has no room for the file, as the fit would."""
        if self.folder is not None:
            check_room(room.place_for(self.folder, None), self.size, self.records)


class Line(NamedTuple):
    """fixed + each n, through two points; it does not fall."""

    fixed: float
    each: float

    @classmethod
    def through(cls, few: tuple[int, float], many: tuple[int, float]) -> Line:
        """The line."""
        each = max(0.0, (many[1] - few[1]) / max(many[0] - few[0], 1))
        return cls(max(0.0, few[1] - each * few[0]), each)

    def at(self, records: int) -> float:
        """Its height."""
        return self.fixed + self.each * records


@dataclass(frozen=True)
class Rehearsal:
    """Seconds of asks by query, and of the very first, with the proposal of the plan and the preparation of rows."""

    records: int
    first: str  # what was asked first
    opening: float
    asks: Mapping[str, list[float]]
    alike: bool = False  # whether later asks of a kind take as long as earlier ones

    def later(self, query: str) -> float:
        """The usual time of one: the mean without the first, and without the slowest, which something else delayed."""
        if self.alike:
            return statistics.median(self.asks[query][1:] or self.asks[query])
        return statistics.fmean(sorted(self.asks[query][1:])[:-1] or self.asks[query])

    def more(self, query: str) -> float:
        """What the first of a kind took longer, since it makes what the others use."""
        return max(0.0, self.asks[query][0] - self.later(query))


class _EnoughError(Exception):
    """Ends a rehearsal."""


@dataclass(frozen=True)
class Stage:
    """Made-up rows and labels on which plans are rehearsed, and for how long."""

    rows: Matrix | Dataset
    labels: NDArray[Any] | None
    where: Rows
    asks: int = ASKS  # of each kind that are waited for
    patience: float = PATIENCE  # seconds

    def rehearse(self, plan: Plan, form: Algorithm) -> Rehearsal:
        """The asks of a run with one party that has these rows, until there are enough of each kind."""
        name, count = plan.names[0], self.rows.shape[0]
        alone = plan.model_copy(update={"parties": ((name, count),), "sealing": None, "keys": (), "within": None})
        jobs = self.where.n_jobs
        party = Party(name, self.rows, self.labels, n_jobs=jobs, device=self.where.device)
        coordinator = Coordinator(InProcess([party]), remote=False)
        wanted = {release.query: min(self.asks, release.count) for release in plan.releases}
        alone_here = _threads(jobs) == 1 and not self.where.elsewhere
        clock = time.thread_time if alone_here else time.perf_counter  # the first knows this work alone
        asks, said, ends = dict[str, list[float]](), list[str](), [clock()]

        def note(_round: int, _total: int) -> None:
            ends.append(clock())
            query = next(iter(coordinator.asked - Counter(said)))
            said.append(query)
            if len(said) > 1:
                asks.setdefault(query, []).append(ends[-1] - ends[-2])
            over = ends[-1] - ends[0] > self.patience
            if over or all(coordinator.asked[each] >= times for each, times in wanted.items()):
                raise _EnoughError

        with using(jobs), contextlib.suppress(_EnoughError):
            coordinator.run(alone, form, note)
        return Rehearsal(count, said[0], ends[1] - ends[0], asks, alike=self.where.elsewhere)


class Rows(ABC):
    """Where the rows of a fit lie: how many there are, made-up ones like them, and the bytes of the raw ones."""

    records: int
    n_jobs: int | None
    device: ClassVar[str | None] = None
    elsewhere: ClassVar[bool] = False  # whether more than a thread of this process works on them

    @abstractmethod
    def prepared(self, plan: Plan) -> list[PreparedRows]:
        """Where the prepared rows will lie, and how large they are."""

    @property
    @abstractmethod
    def unread(self) -> bool:
        """Whether files are still to be read."""

    @abstractmethod
    def reading(self, plan: Plan) -> float | None:
        """Seconds in which files are read that are not read yet; None where that cannot be told."""

    @abstractmethod
    def made_up(self, plan: Plan, count: int) -> Matrix:
        """So many rows within the plan's bounds."""

    @property
    @abstractmethod
    def entries(self) -> float:
        """Numbers of a dense row that takes as long as one of these; at least 1."""

    @property
    @abstractmethod
    def raw_bytes(self) -> int:
        """Of all rows and labels before they are prepared, as far as the process has them not yet."""

    def held(self, plan: Plan, count: int) -> tuple[Any, Any]:
        """So many made-up rows and their labels, as a party takes them."""
        return self.made_up(plan, count), labels_for(plan, count)

    def estimate(self, plan: Plan, form: Algorithm, *, remote: bool = False) -> Estimate:
        """Time and memory of a private plan in one place or by rows; `remote` parties compute side by side."""
        held = max(count for _, count in plan.parties) if remote else self.records
        most = max(ENTRIES, 2 * LEAST * _threads(self.n_jobs)) // self.entries
        many = int(max(FEWEST, min(held, most)))
        few = max(many // SMALLER, 2)
        memory = self._memory(plan, form, few)
        both = self._rehearsed(plan, form, few), self._rehearsed(plan, form, many)
        seconds = _seconds(plan, form, *both, remote=remote)
        fixed = memory.fixed * (1 if remote else len(plan.parties))
        raw = self.raw_bytes * held / max(self.records, 1)
        memory_bytes, read = int(_resident() + raw + fixed + memory.each * held), self.reading(plan)
        return Estimate(seconds + (read or 0.0), memory_bytes, read is not None)

    def _memory(self, plan: Plan, form: Algorithm, few: int) -> Line:
        """What a rehearsal allocates at its peak, by the number of records."""
        return Line.through((few // 2, self._peak(plan, form, few // 2)), (few, self._peak(plan, form, few)))

    def _peak(self, plan: Plan, form: Algorithm, count: int) -> float:
        """Bytes that a rehearsal allocates at its peak; before the clock runs it has asked and compiled everything."""
        started = not tracemalloc.is_tracing()
        stage = Stage(*self.held(plan, count), self, asks=1, patience=WARMING)

        def allocated() -> float:
            if started:
                tracemalloc.start(1)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                stage.rehearse(plan, form)
                return float(tracemalloc.get_traced_memory()[1] - before)
            finally:
                if started:
                    tracemalloc.stop()

        return _compiled(allocated)

    def _rehearsed(self, plan: Plan, form: Algorithm, count: int) -> Rehearsal:
        stage = Stage(*self.held(plan, count), self)
        return _compiled(lambda: stage.rehearse(plan, form))


@dataclass(frozen=True)
class InMemory(Rows):
    """Rows in the memory of this process, as float64: dense, or with so many entries a row sparse."""

    records: int
    features: int
    sparse_entries: float | None = None
    n_jobs: int | None = None
    here: bool = False  # whether the process has them already, and counts them itself
    kind: str | None = None  # of the files that are read, by the ends of their names
    schema: bool = False  # whether one reads them

    def prepared(self, plan: Plan) -> list[PreparedRows]:
        """In memory."""
        return [PreparedRows(sum(self._prepared_size(plan, name, count) for name, count in plan.parties), "memory")]

    def _prepared_size(self, plan: Plan, party: str, count: int) -> int:
        """Bytes of so many prepared rows."""
        recipe = plan.part(party).preparation
        if self.sparse_entries is None:
            return size_of(recipe, count)
        return size_of(recipe, 0, count, int(self.sparse_entries * count))

    @property
    def unread(self) -> bool:
        """Of a kind that is known, and not here."""
        return self.kind is not None and not self.here

    def reading(self, plan: Plan) -> float | None:
        """Of a made-up file of the kind, as much longer as there are more records. What a schema takes is not known."""
        if self.kind is None or not self.unread:
            return 0.0
        if self.schema:
            return None
        count = max(FEWEST, TO_READ // self.features)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"rows{self.kind}"
            label, taken = _written(path, self.made_up(plan, count)), list[float]()
            for _ in range(READINGS):
                start = time.perf_counter()
                self._read(path, label)
                taken.append(time.perf_counter() - start)
            return min(taken) * self.records / count

    def _read(self, path: Path, label: str | None) -> None:
        """Read a file as the job reads its own."""
        read_table(path, label=label, features=self.features)

    @property
    def entries(self) -> float:
        """Its own, or `SPARSE` times those of a sparse one."""
        return float(self.features) if self.sparse_entries is None else SPARSE * (self.sparse_entries + 1.0)

    @property
    def raw_bytes(self) -> int:
        """Numbers of 8 bytes, of sparse rows with places of 4; a label has 8."""
        if self.here:
            return 0
        row = 8 * self.features if self.sparse_entries is None else 12 * self.sparse_entries + 4
        return int(self.records * (row + 8))

    def made_up(self, plan: Plan, count: int) -> Matrix:
        """Uniform numbers; of sparse rows the bounds, more in the first columns: solvers often choose such columns."""
        rng = np.random.default_rng(0)
        if self.sparse_entries is None:
            some = _within(plan, rng.uniform(-1.0, 1.0, (min(count, 4096), self.features)))
            return np.resize(some, (count, self.features))
        width = int(min(max(round(self.sparse_entries), 1), self.features))
        places = np.sort((self.features * rng.random((count, width)) ** 2).astype(np.int32), axis=1)
        scale = _within(plan, np.ones((1, self.features)))[0]
        starts = np.arange(0, places.size + 1, width)
        return sp.csr_matrix((scale[places].ravel(), places.ravel(), starts), (count, self.features))


@dataclass(frozen=True)
class InFiles(InMemory):
    """Rows that are read piece by piece from files of a kind; prepared ones lie in a file where they do not fit."""

    kind: str | None = Parquet.suffixes[0]
    places: tuple[Place, ...] = ()  # of the parties, in their order
    elsewhere: ClassVar[bool] = True

    @property
    def raw_bytes(self) -> int:
        """Nobody has them all; a few pieces of prepared ones are in buffers."""
        return 4 * PIECE

    def prepared(self, plan: Plan) -> list[PreparedRows]:
        """Of each party in memory, if they fit by the time that it prepares them, else in a file."""
        found, taken = [], 0
        for (name, count), place in zip(plan.parties, self.places or (Place(),) * len(plan.parties), strict=True):
            size = self._prepared_size(plan, name, count)
            if not place.whole and not room.fits(size, after=taken):
                found.append(PreparedRows(size, "file", room.named_place(place.folder, place.beside), count))
            else:
                taken += size
        return [PreparedRows(taken, "memory"), *found] if taken else found

    def held(self, plan: Plan, count: int) -> tuple[Any, Any]:
        """A data set, in a file if that with all records is."""
        filed = [each.folder for each in self.prepared(plan) if each.folder is not None]
        data = Dataset.from_arrays(*super().held(plan, count), folder=filed[0] if filed else None)
        data.in_file = bool(filed)
        return data, None

    def _memory(self, plan: Plan, form: Algorithm, few: int) -> Line:  # noqa: ARG002
        """Of several pieces: while few are prepared, what is held of one hides how much all of them take.

        Prepared rows in memory are counted as large as they are, at least. The first rehearsal loads what reads pieces.
        """
        inside = sum(each.size for each in self.prepared(plan) if each.where == "memory") / max(plan.records, 1)
        row = self._prepared_size(plan, plan.names[0], FEWEST) / FEWEST
        piece = max(PIECE / row, dataset.ENTRIES / max(1.0, self.sparse_entries or self.features))
        one, two = (max(FEWEST, int(min(many * piece, self.records * many / PIECES[1]))) for many in PIECES)
        self._peak(plan, form, FEWEST)
        found = Line.through((one, self._peak(plan, form, one)), (two, self._peak(plan, form, two)))
        return found if found.each >= inside else Line(found.fixed, inside)

    def _read(self, path: Path, label: str | None) -> None:
        """Piece by piece."""
        for _ in Dataset(path, label=label, features=self.features).pieces():
            pass


@dataclass(frozen=True)
class OnDevice(InMemory):
    """Rows on a CUDA device; memory is the host's."""

    device: ClassVar[str | None] = "cuda"
    elsewhere: ClassVar[bool] = True

    def prepared(self, plan: Plan) -> list[PreparedRows]:
        """On the device."""
        return [each._replace(where="device") for each in super().prepared(plan)]


@dataclass(frozen=True)
class OnCluster(InMemory):
    """Rows at the workers of a cluster, as many at each; memory is that of this process, which has none of them."""

    cluster: Any = None
    elsewhere: ClassVar[bool] = True

    def prepared(self, plan: Plan) -> list[PreparedRows]:
        """At its workers."""
        from sottovoce.data.cluster.connection import Cluster

        workers = len(Cluster.of(self.cluster).workers())
        return [each._replace(where="cluster", workers=workers) for each in super().prepared(plan)]

    def reading(self, plan: Plan) -> float | None:  # noqa: ARG002
        """The workers do, side by side, from where the files are there."""
        return None

    @property
    def raw_bytes(self) -> int:
        """None are here."""
        return 0

    def held(self, plan: Plan, count: int) -> tuple[Any, Any]:
        """A partition for each worker, made there."""
        from sottovoce.data.cluster.connection import Cluster, distributed

        distributed()
        import dask

        cluster = Cluster.of(self.cluster)
        cuts = even(count, max(1, min(len(cluster.workers()), count)))
        made = dask.delayed(InMemory.held)
        plain = InMemory(self.records, self.features, self.sparse_entries)
        return Dataset.from_dask([made(plain, plan, b - a) for a, b in pairwise(cuts)], cluster=cluster), None


def _compiled(rehearse: Callable[[], Told]) -> Told:
    """What a rehearsal tells, once no loop is compiled in it."""
    for _ in range(TRIES):
        before, told = compiled(), rehearse()
        if compiled() == before:
            break
    return told


def can_be_rehearsed(plan: Plan) -> bool:
    """Whether it is a private fit in one place or by rows."""
    return plan.private and not plan.split.same_people and plan.algorithm in FAMILIES


def _seconds(plan: Plan, form: Algorithm, few: Rehearsal, many: Rehearsal, *, remote: bool) -> float:
    """The asks of all parties by the lines through two rehearsals, and what the first ones take besides."""
    records, total = dict(plan.parties), 0.0

    def took(line: Line, asked: Mapping[str, int]) -> float:
        own = [times * line.each * records[party] for party, times in asked.items()]
        return line.fixed * sum(asked.values()) + (max(own, default=0.0) if remote else sum(own))

    for query, several in messages_of(plan, form).items():
        asked = Counter[str]()
        for each in several:
            asked[each.party] += each.count
        total += took(_line(query, few, many), asked)
    once, first = dict.fromkeys(records, 1), _line(few.first, few, many)
    more = [(few.opening - first.at(few.records), many.opening - first.at(many.records))]
    more += [(few.more(query), many.more(query)) for query in few.asks if query in many.asks]
    return total + sum(took(Line.through((few.records, one), (many.records, two)), once) for one, two in more)


def _line(query: str, few: Rehearsal, many: Rehearsal) -> Line:
    """What an ask takes. One to which the larger rehearsal did not come is taken to grow with the records.

    Edges: one that came once, as the first of all, is in the opening.
    """
    if query not in few.asks:
        return Line(0.0, 0.0)
    if query not in many.asks:
        return Line(0.0, few.later(query) / few.records)
    return Line.through((few.records, few.later(query)), (many.records, many.later(query)))


def _written(path: Path, rows: Matrix) -> str | None:
    """Write rows, and a column of labels, to a file of the kind that its name says; the label's name there."""
    kind = format_of(path)
    if kind.sparse:
        from sklearn.datasets import dump_svmlight_file

        dump_svmlight_file(rows, np.zeros(rows.shape[0]), str(path), zero_based=False)
        return None
    names = [*(f"x{place}" for place in range(rows.shape[1])), "y"]
    table = np.column_stack([dense(rows), np.zeros(rows.shape[0])])
    if kind is Parquet:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table(dict(zip(names, table.T, strict=True))), path)
    elif kind is Csv:
        np.savetxt(path, table, "%.6g", ",", header=",".join(names), comments="")
    else:
        np.save(path, table[:, :-1])
        return None
    return "y"


def _within(plan: Plan, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Numbers of [-1, 1] carried to where the bounds of the features are."""
    bounds, features = plan.bounds, rows.shape[1]
    if bounds.feature_low is not None and bounds.feature_high is not None:
        low, high = np.asarray(bounds.feature_low), np.asarray(bounds.feature_high)
        return np.asarray((low + high) / 2 + rows * (high - low) / 2)
    return np.asarray(rows * np.minimum(bounds.columns(features), 2.0 * (bounds.norm(features) or 1.0) / features**0.5))


def labels_for(plan: Plan, count: int) -> NDArray[Any]:
    """Every class, or both ends of the range, in turn, and the last as often as all: so columns tell something."""
    bounds = plan.bounds
    values = list(plan.classes or (bounds.label_low or 0.0, bounds.label_high or 1.0))
    return np.resize(np.array([*values, *(values[-1:] * len(values))]), count)


def _threads(n_jobs: int | None) -> int:
    from joblib import effective_n_jobs

    with using(n_jobs):
        return int(effective_n_jobs(None))


def _resident() -> int:
    """Bytes of this process now; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 0
