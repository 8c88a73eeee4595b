"""What goes to a worker, and what runs there: rows are read, prepared and held, and messages are answered.

Work is pack_work so that nothing else travels. All of it may be done again, at another worker, and gives the same bits.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import io
import itertools
import logging
import pickle
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import cloudpickle
import numpy as np

from sottovoce import __version__
from sottovoce.data.block import Block
from sottovoce.data.block_parts import VIEWS, BlockPart, Integers, RowView, Work
from sottovoce.data.cells import label_array, real_rows
from sottovoce.data.dataset import ENTRIES, ArraySource
from sottovoce.data.files.format import Labels, Piece, Source, report_spoilt
from sottovoce.data.matrix import Slope, Slopes, is_sparse
from sottovoce.data.preparation import Preparation
from sottovoce.data.resources import Resources, plain_blas
from sottovoce.errors import InputError, LeakError, SottovoceError
from sottovoce.losses import Loss

Told = tuple[Any, ...]  # a view's name and length, and where it is sent whole its matrix and how it is made

CODE: Final = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.CodeType,
    types.CellType,
    types.ModuleType,
    types.MappingProxyType,
    functools.partial,
    property,
    staticmethod,
    classmethod,
    type,
)
NUMBERS: Final = (np.ndarray, np.generic, np.dtype, np.ufunc, pickle.PickleBuffer)
PUBLIC: Final = (Slope, Slopes, Loss)
PACKAGES: Final = ("sottovoce.queries.", "sottovoce.algorithms.")  # queries are public configuration
SHAPES: Final = ("sottovoce.gate.query.Reals", "sottovoce.gate.query.Wholes")  # of messages, which queries declare
LABELS = 1 << 18  # that are looked at at once

_log = logging.getLogger("sottovoce.holder")


class Held:
    """The prepared rows of one source, and the views of them that this worker has.

    `lock`: of one message at a time. One that is asked again, as its answer was lost, may meet the first at work, and
    would sum rows that are being cut.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.lock = threading.Lock()
        self.parts = [BlockPart(block) for block in blocks]
        self.views: dict[str, RowView] = {}
        self.sizes = [len(block) for block in blocks]
        found = hashlib.blake2b(digest_size=16)  # rows that are prepared again are known by it
        for block in blocks:
            for array in _arrays(block):
                found.update(f"{array.dtype.str}{array.shape}".encode())
                found.update(np.ascontiguousarray(array).data)
        self.digest = found.digest()

    def learn(self, view: RowView) -> None:
        """Keep a view: of the last ones, as a part does."""
        self.views[view.name] = view
        for name in list(self.views)[:-VIEWS]:
            del self.views[name]

    def __sizeof__(self) -> int:
        return sum((int(array.nbytes) for part in self.parts for array in _arrays(part.block)), start=256)

    def __reduce__(self) -> tuple[Any, ...]:
        return Held, ([part.block for part in self.parts],)  # to a disk or another worker: views are sent again


@dataclass(frozen=True)
class Recipe:
    """How the rows of a source are prepared at a worker."""

    preparation: Preparation
    records: int  # of all sources
    jobs: int | None = None  # threads; 1 unless it says more
    version: str = __version__  # of whom it is from


def prepared(recipe: Recipe, source: Any) -> Held:
    """The rows of a source by the recipe."""
    _check_version(recipe.version)
    made, blocks = recipe.preparation, list[Block]()
    found = as_source(source)
    for path, size in getattr(found, "sizes", {}).items():
        if path.exists() and path.stat().st_size != size:
            raise InputError(
                f"{path} is not the file at this worker that it was where the data set was opened; every worker must "
                "see the same files, and nobody write them while they are used."
            )
    resources = Resources(1 if recipe.jobs is None else recipe.jobs)
    with _quietly():
        for rows, labels in found.pieces(max(1, ENTRIES // max(made.features, 1))):
            known = np.zeros(rows.shape[0]) if labels is None else labels
            blocks.append(Block.prepare(rows, known, made, recipe.records, resources))
    report_spoilt([found])
    return Held(blocks)


def as_source(value: Any) -> Source:
    """A source, several of them, or a pair (rows, labels)."""
    if isinstance(value, Source):
        return value
    if isinstance(value, tuple) and len(value) == 2 and not isinstance(value[0], Source):
        rows, labels = real_rows(value[0]), None if value[1] is None else label_array(value[1])
        if labels is not None and labels.shape != rows.shape[:1]:
            raise InputError("a partition has another number of labels than of rows; give one label for each row.")
        return ArraySource(rows, labels)
    if isinstance(value, list | tuple) and all(isinstance(each, Source) for each in value):
        return Chain(value)
    raise InputError(
        f"a partition is a {type(value).__name__}; give Dask data frames, arrays, or partitions that are pairs "
        "(rows, labels) or sources of rows."
    )


def _check_version(told: str) -> None:
    """Refuse what another version asks: a worker may have come after all were looked at."""
    if told != __version__:
        raise InputError(
            f"cluster: a worker has sottovoce {__version__}, and the process that asks {told}; install the same at all "
            "of them."
        )


class Chain(Source):
    """One source after the other."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources, self.records = tuple(sources), sum(source.records for source in sources)
        self.texts = any(source.texts for source in sources)

    def pieces(self, rows: int) -> Iterator[Piece]:
        for source in self._sources:
            yield from source.pieces(rows)


@dataclass(frozen=True)
class PartitionFacts:
    """What is public of a partition: how many records and features, and whether it has labels."""

    records: int
    features: int | None
    labelled: bool | None


def facts(source: Any) -> PartitionFacts:
    """Counted at the worker."""
    found = as_source(source)
    rows, labels = next(found.pieces(1), (None, None))
    if rows is None:
        return PartitionFacts(found.records, None, None)
    return PartitionFacts(found.records, int(rows.shape[1]), labels is not None)


def labels_of_piece(most: int, source: Any) -> Labels:
    """The labels that occur in a source, if they are no more than `most`, or one more."""
    found: dict[Any, None] = {}
    for labels in as_source(source).labels(LABELS):
        found.update(dict.fromkeys(label for label in labels.tolist() if label == label))
        if len(found) > most:
            break
    return np.array(list(found)[: most + 1], dtype=object)


def piece(rows: int, place: int, source: Any) -> Piece:
    """One piece of a source."""
    return next(itertools.islice(as_source(source).pieces(rows), place, None))


async def answer_message(message: WorkerMessage, dask_worker: Any) -> WorkerReply:
    """What a worker makes of a message; it says which rows it does not hold.

    Guarantee: no error of a worker carries a text that is not of this package; its texts hold no value of the data.
    """
    held = [dask_worker.data.get(key) for key in message.keys]
    if not all(isinstance(each, Held) for each in held):
        return WorkerReply("gone")
    return await asyncio.to_thread(_answered, message, held)


def _answered(message: WorkerMessage, held: list[Held]) -> WorkerReply:
    if message.work is None:
        return WorkerReply("answer", [(each.sizes, each.digest) for each in held])
    if message.digests is not None and [each.digest for each in held] != message.digests:
        return WorkerReply("changed")
    try:
        _check_version(message.version)
        with _quietly(), ExitStack() as alone:
            for _, each in sorted(zip(message.keys, held, strict=True), key=lambda own: own[0]):
                alone.enter_context(each.lock)
            return WorkerReply("answer", _worked(message, held))
    except UnknownViewError:
        return WorkerReply("view")
    except SottovoceError as error:
        return WorkerReply("fault", error)
    except Exception as error:
        _log.exception("work for the rows of this worker failed")
        return WorkerReply("fault", type(error).__name__)


def _worked(message: WorkerMessage, held: list[Held]) -> Any:
    everywhere = [name for name in held[0].views if all(name in each.views for each in held)]
    work, views = unpack_work(message.work or b"", {name: held[0].views[name] for name in everywhere})
    for each in held:
        for view in views:
            each.learn(view)
    total, found = 0.0, list[list[Any]]()
    for place, each in enumerate(held):
        parts = each.parts
        if message.chosen is not None:
            chosen = zip(parts, message.chosen[place], strict=True)
            parts = [BlockPart(part.block.take(rows)) for part, rows in chosen]
        own = [work(part) for part in parts]
        if message.summed:
            total = sum(own, start=total)
        else:
            found.append(own)
    return total if message.summed else found


@contextmanager
def _quietly() -> Iterator[None]:
    """BLAS has one thread; a warning that a record caused could be turned into an error."""
    with plain_blas(), np.errstate(all="ignore"):
        yield


def _arrays(block: Block) -> list[Any]:
    rows = [block.rows.data, block.rows.indices, block.rows.indptr] if is_sparse(block.rows) else [block.rows]
    own = [] if block.shares is None else [block.shares]
    return [*rows, block.labels, *own, block.usable_rows]


class UnknownViewError(Exception):
    """A view was sent by its name, and is not there."""


@dataclass(frozen=True, eq=False)
class WorkerMessage:
    """A round's work for one worker. Without `work` it is asked what it holds."""

    keys: list[str]  # of what it holds
    work: bytes | None = None
    digests: list[bytes] | None = None  # of the rows as they were first prepared
    chosen: list[list[Integers]] | None = None  # rows of each part, of a batch
    summed: bool = False
    version: str = __version__  # of whom it is from


@dataclass(frozen=True, eq=False)
class WorkerReply:
    """What a worker says: an "answer", or why there is none: rows that are "gone" or "changed", a "view", a "fault"."""

    kind: str
    value: Any = None


def pack_work(work: Work[Any], *, whole: bool) -> tuple[bytes, set[str]]:
    """Work as bytes, and the names of its views, which are sent `whole` or by name.

    Guarantee: code, numbers, texts, slopes, losses and queries can travel, and no other object: no gate, ledger, key or
    source of randomness, no rows, and no bytes, such as keys are. Edges: work that holds one is refused and nothing is
    sent.
    """
    to = io.BytesIO()
    packer = _Packer(to, whole)
    packer.dump(work)
    return to.getvalue(), packer.views


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, to: io.BytesIO, whole: bool) -> None:
        super().__init__(to, protocol=5)
        self._whole, self.views = whole, set[str]()
        self._bytes = set[bytes]()  # that code and single numbers consist of

    def persistent_id(self, found: Any) -> Told | None:
        if isinstance(found, bytearray) or (isinstance(found, bytes) and found not in self._bytes):
            raise LeakError("work for a cluster holds bytes; nothing was sent.")
        if not isinstance(found, RowView):
            return None
        self.views.add(found.name)
        return (found.name, found.length, found.matrix, found.made) if self._whole else (found.name, found.length)

    def reducer_override(self, found: Any) -> Any:
        name = f"{type(found).__module__}.{type(found).__qualname__}"
        if not (isinstance(found, CODE + NUMBERS + PUBLIC) or name.startswith(PACKAGES) or name in SHAPES):
            raise LeakError(f"work for a cluster holds a {type(found).__qualname__}; nothing was sent.")
        if isinstance(found, types.CodeType):
            self._bytes |= {found.co_code, found.co_linetable, getattr(found, "co_exceptiontable", b"")}
        if isinstance(found, np.generic):
            self._bytes.add(found.tobytes())
        if isinstance(found, np.ndarray) and not (found.dtype.hasobject or found.flags.forc):
            return found.copy().__reduce_ex__(5)  # one buffer, as others are
        return super().reducer_override(found)


def unpack_work(work: bytes, known: Mapping[str, RowView]) -> tuple[Work[Any], list[RowView]]:
    """The work and its views, at a worker; `known` are the views that it has."""
    reader = _Reader(io.BytesIO(work))
    reader.known = known
    reader.views = []
    return reader.load(), reader.views


class _Reader(pickle.Unpickler):
    known: Mapping[str, RowView]
    views: list[RowView]

    def persistent_load(self, told: Told) -> RowView:
        name, length, *more = told
        if more:
            found = RowView(more[0], more[1], length, name)
        elif name in self.known:
            found = replace(self.known[name], length=length)
        else:
            raise UnknownViewError
        self.views.append(found)
        return found
