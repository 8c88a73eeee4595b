"""Prepared rows at the workers of a cluster: a round is one message to each worker, and a sum comes back.

Data sets are of what Dask has: data frames, arrays, and partitions of one's own.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.data.block import Block
from sottovoce.data.block_parts import Found, Integers, Parts, Work, empty
from sottovoce.data.cells import cell_key, read_numbers, table_columns
from sottovoce.data.cluster import worker
from sottovoce.data.cluster.connection import Clock, Cluster
from sottovoce.data.cluster.worker import PartitionFacts, WorkerMessage, WorkerReply, pack_work
from sottovoce.data.dataset import Dataset
from sottovoce.data.files.format import Labels, Piece, Source, Wanted
from sottovoce.data.preparation import Preparation
from sottovoce.data.resources import NO_RESOURCES, Resources
from sottovoce.data.schema import Schema
from sottovoce.errors import InputError, SottovoceError, WireError

PAUSE = 0.02  # seconds in which a scheduler learns that a worker is gone


class PartsOnCluster(Parts):
    """Rows that workers hold, a part of them each; the scheduler knows how to prepare them again.

    Guarantee: sums are those of the same rows in one place, bit for bit, for any number of workers and sources, also if
    workers die: their rows are prepared again from the sources, must be the same to the last bit, and are asked again.
    Edges: without workers, sources or a scheduler nothing comes back, and an error says so.
    """

    def __init__(self, about: Block, cluster: Cluster, held: Sequence[Any]) -> None:
        self._cluster, self._held = cluster, list(held)
        self._where: list[str] = []
        self._digests: list[bytes] | None = None
        self._told: set[str] = set()  # names of views that all workers have
        places = range(len(self._held))
        known = dict(self._asked(places, lambda own, _: WorkerMessage(self._keys(own))))
        facts = {place: fact for own, found in known.items() for place, fact in zip(own, found, strict=True)}
        self._digests = [facts[place][1] for place in places]
        sizes = [facts[place][0] for place in places]
        self._ends = list(itertools.accumulate(map(len, sizes), initial=0))
        super().__init__(about, list(itertools.chain.from_iterable(sizes)))

    def digest(self) -> bytes:
        """Of what the workers said of the rows of each source, when they had prepared them."""
        return hashlib.blake2b(b"".join(self._digests or ()), digest_size=32).digest()

    def each(self, work: Work[Found], chosen: Sequence[Integers] | None = None) -> Iterator[Found]:
        """In the order of the sources, once all workers have answered."""
        found = dict[int, list[Found]]()
        for own, lists in self._worked(work, chosen, summed=False):
            found.update(zip(own, lists, strict=True))
        for place in range(len(self._held)):
            yield from found[place]

    def summed(self, work: Work[Any], chosen: Sequence[Integers] | None = None) -> Any:
        """The sum of the workers' own sums; of rows on no grid, where the order matters, part by part."""
        if self.bits is None:
            return super().summed(work, chosen)
        return sum((total for _, total in self._worked(work, chosen, summed=True)), start=0.0)

    def _worked(
        self, work: Work[Any], chosen: Sequence[Integers] | None, *, summed: bool
    ) -> list[tuple[tuple[int, ...], Any]]:
        """What the workers make of it, and of which sources."""
        by_name, names = pack_work(work, whole=False)
        in_full = functools.cache(lambda: pack_work(work, whole=True)[0])
        new = not names <= self._told

        def message(own: Sequence[int], whole: bool) -> WorkerMessage:
            rows = None
            if chosen is not None:
                rows = [list(chosen[self._ends[place] : self._ends[place + 1]]) for place in own]
            digests = [self._digests[place] for place in own] if self._digests else None
            told = in_full() if whole or new else by_name
            return WorkerMessage(self._keys(own), told, digests, rows, summed)

        asked = [place for place in range(len(self._held)) if not summed or self._has(place, chosen)]
        found = self._asked(asked, message)
        self._told = names if new else self._told
        return found

    def _has(self, place: int, chosen: Sequence[Integers] | None) -> bool:
        """Whether a source has rows of a batch; the first one is asked also for an empty batch, with the sum 0."""
        first, last = self._ends[place], self._ends[place + 1]
        return first < last and (first == 0 or chosen is None or any(map(len, chosen[first:last])))

    def _asked(
        self, places: Sequence[int], message: Callable[[Sequence[int], bool], WorkerMessage]
    ) -> list[tuple[tuple[int, ...], Any]]:
        """Ask for sources until all have an answer: each worker once, and again for what a dead one had."""
        left, found, whole = list(places), list[tuple[tuple[int, ...], Any]](), set[str]()
        clock = Clock(self._cluster)
        while left:
            if not self._where:
                self._where = self._cluster.where(self._held)
            groups: dict[str, list[int]] = {}
            for place in left:
                groups.setdefault(self._where[place], []).append(place)
            messages = {address: message(own, address in whole) for address, own in groups.items()}
            replies = self._cluster.send(messages, worker.answer_message)
            answered = set[int]()
            for address, own in groups.items():
                reply = _check_reply(replies[address])
                if reply.kind == "answer":
                    found.append((tuple(own), reply.value))
                    answered.update(own)
                elif reply.kind == "view":
                    whole.add(address)
                else:
                    self._where = []
            left = [place for place in left if place not in answered]
            if left and not self._where:
                time.sleep(PAUSE)
            clock.check(len(found))
        return found

    def _keys(self, places: Sequence[int]) -> list[str]:
        return [self._held[place].key for place in places]


def on_cluster(data: Dataset, recipe: Preparation, resources: Resources = NO_RESOURCES) -> PartsOnCluster:
    """The rows of a data set by the recipe, prepared at the workers of its cluster."""
    from joblib.parallel import get_active_backend

    cluster, records = data.cluster, data.shape[0]
    if cluster is None:
        raise InputError("the data set is on no cluster.")
    jobs = get_active_backend()[1] if resources.n_jobs is None else resources.n_jobs  # the threads of each worker
    make = functools.partial(worker.prepared, worker.Recipe(recipe, records, None if jobs is None else int(jobs)))
    held = cluster.compute([task(make, source) for source in data.sources])
    made = PartsOnCluster(empty(recipe, records, resources), cluster, held)
    data._check_unchanged()
    if len(made) != records:
        raise InputError(
            f"the data set had {records} records when it was counted, and has {len(made)} now; make it anew."
        )
    return made


def _check_reply(reply: WorkerReply | None) -> WorkerReply:
    """A reply; what a worker found wrong is raised."""
    if reply is None:
        return WorkerReply("gone")
    if reply.kind == "changed":
        raise InputError(
            "a source was read again, since the worker that had it is gone, and its rows are not what they were. A "
            "source must give the same rows each time. What was charged stays charged; fit again."
        )
    if reply.kind != "fault":
        return reply
    if isinstance(reply.value, SottovoceError):
        raise reply.value
    raise WireError(f"a worker of the cluster failed ({reply.value}); its own log has the reason.")


class FrameSource(Source):
    """A partition of a data frame: rows by its schema, or every column but the label as a number, cell by cell."""

    def __init__(self, frame: Any, wanted: Wanted) -> None:
        self._frame, self._wanted, self.records = frame, wanted, len(frame)

    def pieces(self, rows: int) -> Iterator[Piece]:
        for start in range(0, self.records, rows):
            cells = table_columns(self._frame.iloc[start : start + rows])
            if self._wanted.schema is not None:
                yield self._wanted.encode(cells)
                continue
            label = self._wanted.label
            found = np.column_stack([read_numbers(cells[name], cell_key) for name in self._wanted.features])
            yield found, None if label is None else cells[label]


class Partition(Source):
    """A source that is made at a worker."""

    def __init__(self, cluster: Cluster, made: Any, records: int) -> None:
        self._cluster, self.made, self.records = cluster, made, records

    def pieces(self, rows: int) -> Iterator[Piece]:
        start = 0
        for place in range(self.records):
            if start >= self.records:
                return
            (found,) = self._cluster.results([task(functools.partial(worker.piece, rows, place), self)])
            start += found[0].shape[0]
            yield found


def task(function: Callable[[Any], Any], source: Any) -> Any:
    """What a function makes of a source, at a worker: a task that Dask can compute again."""
    from dask import delayed

    of = source.made if isinstance(source, Partition) else source
    return delayed(function, pure=False, traverse=False)(of)


def from_dask(data: Any, y: Any, label: str | None, schema: Schema | None, cluster: Any) -> Dataset:
    """A data set of a Dask data frame, of arrays `data` and `y`, or of delayed partitions."""
    known = Cluster.of(cluster)
    if hasattr(data, "to_delayed") and hasattr(data, "dtypes"):
        if y is not None:
            raise InputError("y must be None where Dask has a data frame; name the column of the labels: label=...")
        return _of_frame(known, data, label, schema)
    if label is not None or schema is not None:
        raise InputError("label and schema are for a Dask data frame; arrays and partitions have their own labels.")
    if hasattr(data, "to_delayed") and hasattr(data, "chunks"):
        return _of_arrays(known, data, y)
    if y is not None:
        raise InputError("y is for Dask arrays; partitions have their own labels.")
    made = data.to_delayed() if hasattr(data, "to_delayed") else data
    if not isinstance(made, list | tuple) or not all(hasattr(each, "__dask_graph__") for each in made) or not made:
        raise InputError(
            f"data is a {type(data).__name__}; give a Dask data frame, Dask arrays, or a list of delayed partitions."
        )
    return _count_partitions(known, _renamed(made), (), None)


def _of_frame(cluster: Cluster, frame: Any, label: str | None, schema: Schema | None) -> Dataset:
    columns = [str(name) for name in frame.columns]
    if schema is not None:
        if label is not None:
            raise InputError(f"label={label!r}: the schema names the label column; leave label out.")
        names, label = schema.feature_names, schema.label if schema.label in columns else None
    else:
        if label is not None and label not in columns:
            raise InputError(f"label={label!r} is no column; they are: {', '.join(columns)}.")
        names = tuple(name for name in columns if name != label)
        for name, kind in zip(columns, frame.dtypes, strict=True):
            if name != label and getattr(kind, "kind", "O") not in "fiub":
                raise InputError(
                    f"the column {name!r} is of type {kind}; declare what it holds: schema=sv.Schema(...)."
                )
    wanted = Wanted(names if schema is None else tuple(schema.columns), label, schema)
    make = functools.partial(FrameSource, wanted=wanted)
    return _count_partitions(cluster, [task(make, each) for each in frame.to_delayed()], names, schema)


def _of_arrays(cluster: Cluster, X: Any, y: Any) -> Dataset:
    from dask import delayed

    if X.ndim != 2 or (y is not None and (not hasattr(y, "to_delayed") or y.ndim != 1)):
        raise InputError("Dask arrays must be rows X of two dimensions and labels y of one.")
    if X.dtype.kind not in "fiub":
        raise InputError(f"X is of type {X.dtype}; give numbers.")
    rows = X.rechunk({1: -1}) if X.numblocks[1] > 1 else X
    sizes = rows.chunks[0]
    known = not np.isnan(sizes).any()
    if y is not None and known:
        if y.shape != rows.shape[:1]:
            raise InputError(f"X has {rows.shape[0]} rows and y has shape {y.shape}; give one label per row.")
        y = y.rechunk((sizes,))
    blocks = rows.to_delayed().ravel().tolist()
    labels = [None] * len(blocks) if y is None else y.to_delayed().ravel().tolist()
    if len(labels) != len(blocks):
        raise InputError(f"X has {len(blocks)} chunks and y {len(labels)}; cut them alike.")
    pair = delayed(paired, pure=False, traverse=False)
    made = [pair(block, own) for block, own in zip(blocks, labels, strict=True)]
    facts = [PartitionFacts(int(size), int(X.shape[1]), y is not None) for size in sizes] if known else None
    return _count_partitions(cluster, made, (), None, facts)


def paired(rows: Any, labels: Any) -> tuple[Any, Any]:
    """A chunk of the rows with its labels, at a worker."""
    if labels is not None and len(labels) != rows.shape[0]:
        raise InputError("a chunk of X and the one of y have different numbers of rows; cut them alike.")
    return rows, labels


def _count_partitions(
    cluster: Cluster, made: Sequence[Any], names: tuple[str, ...], schema: Schema | None, facts: Any = None
) -> Dataset:
    """A data set of partitions, counted at the workers unless the numbers are known."""
    if len({each.key for each in made}) < len(made):
        raise InputError("partitions have the same name (key), and Dask takes one of them for all; give each its own.")
    if facts is None:
        facts = cluster.results([task(worker.facts, each) for each in made])
    widths = {fact.features for fact in facts} - {None}
    labelled = {fact.labelled for fact in facts} - {None}
    if len(widths) != 1 or len(labelled) != 1:
        raise InputError("the partitions have no rows, different numbers of columns, or only some of them labels.")
    sources = [Partition(cluster, each, fact.records) for each, fact in zip(made, facts, strict=True)]
    found = Dataset._of(sources, widths.pop(), names, schema, labelled=labelled.pop())
    found.cluster = cluster
    return found


def _renamed(made: Sequence[Any]) -> list[Any]:
    """The same partitions under names of their own: Dask would take what the cluster knows by a name for what is new.

    Edges: what is made of futures, or of blocks of Dask's arrays and frames, keeps its names.
    """
    from dask.delayed import Delayed

    graph: dict[Any, Any] = {}
    for each in made:
        graph.update(each.__dask_graph__())
    for key, node in graph.items():
        if not (isinstance(key, str) and hasattr(node, "substitute") and node.dependencies <= graph.keys()):
            return list(made)
    token = secrets.token_hex(16)
    names = {key: f"{key}-{token}" for key in graph}
    found = {name: graph[key].substitute(names, key=name) for key, name in names.items()}
    return [Delayed(names[each.key], found) for each in made]


def to_cluster(data: Dataset, cluster: Any) -> None:
    """Have the workers of a cluster read the files of a data set, and hold its rows."""
    data.cluster = Cluster.of(cluster)
    for source in data.sources:
        sizes = dict[Path, int]()
        for name in ("path", "label_path"):
            if (path := getattr(source, name, None)) is not None:
                setattr(source, name, path.absolute())  # a worker may be in another folder
                sizes[path.absolute()] = path.stat().st_size
        setattr(source, "sizes", sizes)  # noqa: B010


def distinct_labels(data: Dataset, most: int) -> Iterator[Labels]:
    """Of each source some of the labels that occur, looked for at the workers."""
    if data.cluster is not None:
        make = functools.partial(worker.labels_of_piece, most)
        yield from data.cluster.results([task(make, source) for source in data.sources])
