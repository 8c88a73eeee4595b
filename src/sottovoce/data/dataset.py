"""Rows that are read piece by piece: of files, of memory maps, of partitions on a cluster. Nobody has them all at once.

A `Dataset` takes the place of arrays or a table: at an estimator, at a party, in a federation by rows. What it reads is
a list of sources; each of them can be read anywhere, from its beginning, as often as it is needed.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.data.cells import MISSING, label_array, label_key, real_rows
from sottovoce.data.coded import Coded
from sottovoce.data.files import open_files
from sottovoce.data.files.format import FileOptions, Labels, Piece, Source, file_state, report_spoilt
from sottovoce.data.matrix import Matrix, is_sparse
from sottovoce.data.schema import Schema
from sottovoce.errors import InputError

if TYPE_CHECKING:
    from sottovoce.data.cluster.connection import Cluster

__all__ = ["ArraySource", "Dataset", "Labels", "Piece", "Source"]

ENTRIES = 1 << 19  # of a piece as it is read: 4 MB of float64


class ArraySource(Source):
    """Arrays, which may be memory maps."""

    def __init__(self, X: Matrix, y: Labels | None) -> None:
        self.X, self.y, self.records = X, y, int(X.shape[0])
        self.entries = int(X.nnz) if is_sparse(X) else self.records * X.entries if isinstance(X, Coded) else None

    def pieces(self, rows: int) -> Iterator[Piece]:
        for start in range(0, self.records, rows):
            part = slice(start, start + rows)
            yield self.X[part], None if self.y is None else self.y[part]
            forget(self.X)


def forget(rows: Matrix) -> None:
    """Let go of the pages of a memory map that were read: they are read again where they are needed."""
    pages: Any = getattr(rows, "_mmap", None)
    if getattr(rows, "mode", None) in ("r", "r+") and hasattr(pages, "madvise"):
        pages.madvise(mmap.MADV_DONTNEED)


class Dataset:
    """Rows that are read piece by piece, and their labels.

    Parameters
    ----------
    files : path, or list of paths
        A file, a folder of files or a pattern such as "people/*.parquet", in the order of their names. Parquet and CSV
        (plain, `.gz`, `.bz2`, `.xz`) go together, columns by their names; LIBSVM files and `.npy` files each alone.
    label : str, int or None
        The label column, by name or position, where there is no schema; of `.npy` files those that have the labels,
        label="y.npy".
    schema : Schema or None
        What the columns hold, and which is the label. Without one every other column is a number.
    features : int or None
        How many features there are. LIBSVM files do not say it; elsewhere it is checked.
    left_out : str or None
        A column that is no feature, such as one of identifiers.
    records : int or None
        How many records there are, as declared. One file of lines is then not counted first; elsewhere it is checked.
    folder : path or None
        Where a file of prepared rows is while it is used: by default next to the ledger, else where the system has
        large temporary files. Who may read it can read the rows. Rows that fit in memory need none.
    cluster : str, distributed.Client or None
        The scheduler of a Dask cluster, "tls://scheduler:8786", or a client of it: its workers read the files, which
        they have under the same paths, and hold the prepared rows.
    """

    def __init__(  # noqa: PLR0913
        self,
        files: str | PathLike[str] | Sequence[str | PathLike[str]],
        *,
        label: str | int | None = None,
        schema: Schema | None = None,
        features: int | None = None,
        left_out: str | None = None,
        records: int | None = None,
        folder: str | PathLike[str] | None = None,
        cluster: Any = None,
    ) -> None:
        found = open_files(files, FileOptions(label, schema, features, left_out, records))
        self.sources, self.schema, self.labelled = found.sources, schema, found.labelled
        self._before = found.before
        self.feature_names = found.names
        self.shape = (sum(source.records for source in found.sources), found.features)
        if records not in (None, self.shape[0]):
            raise InputError(
                f"records={records} is declared and there are {self.shape[0]}; the count is public, so correct it or "
                "leave it out."
            )
        self.folder = None if folder is None else Path(folder)
        if cluster is not None:
            from sottovoce.data.cluster.connection import distributed

            distributed()
            from sottovoce.data.cluster.cluster_parts import to_cluster

            to_cluster(self, cluster)

    @classmethod
    def features_of(
        cls,
        files: str | PathLike[str] | Sequence[str | PathLike[str]],
        names: Sequence[str],
        schema: Schema | None = None,
        features: int | None = None,
    ) -> Dataset:
        """The features of these names, or of a schema, without labels; other columns are left out. For predictions."""
        if not names and schema is None:
            found = open_files(files, FileOptions(features=features))
        else:
            found = open_files(files, FileOptions(schema=schema, features=features, only=tuple(names)))
        return cls._of(found.sources, found.features, found.names, schema, labelled=False)

    @classmethod
    def from_arrays(cls, X: Any, y: ArrayLike | None = None, *, folder: str | PathLike[str] | None = None) -> Dataset:
        """Of arrays that may be memory maps, or of sparse rows."""
        rows = X if isinstance(X, Coded) else real_rows(X)
        labels = None if y is None else y if isinstance(y, np.memmap) else label_array(y)
        if rows.ndim != 2 or (labels is not None and labels.shape != rows.shape[:1]):
            shape = None if labels is None else labels.shape
            raise InputError(f"X has shape {rows.shape} and y {shape}; give rows, and one label for each.")
        names = tuple(str(name) for name in getattr(X, "columns", ()))
        made = cls._of([ArraySource(rows, labels)], int(rows.shape[1]), names, labelled=y is not None)
        files = [getattr(array, "filename", None) for array in (rows, labels)]  # of memory maps
        made._before = {Path(file): file_state(Path(file)) for file in files if file is not None}
        made.folder = None if folder is None else Path(folder)
        return made

    @classmethod
    def from_dask(
        cls, data: Any, y: Any = None, *, label: str | None = None, schema: Schema | None = None, cluster: Any = None
    ) -> Dataset:
        """Of a Dask data frame with the column `label` or a schema, of Dask arrays, or of delayed partitions.

        Rows stay at the workers of the cluster: that of the `distributed.Client` or of the scheduler's address, or that
        of the client which this process has. A partition of one's own is a pair (rows, labels).
        """
        from sottovoce.data.cluster.connection import distributed

        distributed()
        from sottovoce.data.cluster.cluster_parts import from_dask

        return from_dask(data, y, label, schema, cluster)

    @classmethod
    def _of(
        cls,
        sources: Sequence[Source],
        features: int,
        names: tuple[str, ...],
        schema: Schema | None = None,
        *,
        labelled: bool = True,
    ) -> Dataset:
        made = cls.__new__(cls)
        made.sources, made.schema, made.labelled = tuple(sources), schema, labelled
        made.feature_names = names
        made.shape = (sum(source.records for source in sources), features)
        return made

    sources: tuple[Source, ...]
    schema: Schema | None
    labelled: bool
    feature_names: tuple[str, ...]
    shape: tuple[int, int]
    ndim = 2
    folder: Path | None = None  # for prepared rows
    in_file: bool = False  # whether prepared rows are in a file even if they would fit in memory
    cluster: Cluster | None = None  # its workers read the sources and hold the rows
    _before: Mapping[Path, Any] = MappingProxyType({})  # the files as they were when they were opened
    _distinct: tuple[int, NDArray[Any]] | None = None  # how many labels were looked for, and those that occur
    _told: bool = False  # whether the holder was told of lines that cannot be read

    @property
    def beside(self) -> Collection[str] | None:
        """What stands beside the labels, by name; None where that is known once they are read."""
        if self.schema is not None:
            return self.schema.names_beside
        labels = [source.y for source in self.sources if isinstance(source, ArraySource) and source.y is not None]
        return {*(labels[0].dtype.names or ())} - {"label"} if labels else None

    def pieces(self, rows: int | None = None) -> Iterator[Piece]:
        """Rows and labels in their order, at most `rows` at once."""
        for source in self.sources:
            yield from source.pieces(self._step(source) if rows is None else rows)
        self._check_unchanged()
        if not self._told:
            self._told = True
            report_spoilt(self.sources)

    def _check_unchanged(self) -> None:
        """Refuse files that were written meanwhile: places in them were counted before, and a record is read once."""
        for path, before in self._before.items():
            if file_state(path) != before:
                raise InputError(
                    f"{path} was changed after it was opened; leave it as it is while it is read, and make the data "
                    "set anew."
                )

    def _step(self, source: Source) -> int:
        """Rows that have `ENTRIES` entries, of sparse ones on average."""
        if source.entries is not None:
            return max(1, ENTRIES * source.records // max(source.entries, source.records, 1))
        return max(1, ENTRIES // max(self.shape[1], 1))

    def distinct_labels(self, most: int) -> NDArray[Any]:
        """The labels that occur, each once, if they are no more than `most`; one more says that there are.

        In files labels are numbers if each of them is one, or is missing, and else texts, whichever piece they are in.
        """
        if self._distinct is not None and self._distinct[0] >= most:
            return self._distinct[1]
        found, limit = dict[Any, None](), most + len(MISSING)
        if self.cluster is not None:
            from sottovoce.data.cluster.cluster_parts import distinct_labels

            read = distinct_labels(self, limit)
        else:
            read = (labels for source in self.sources for labels in source.labels(self._step(source)))
        for labels in read:
            for label in np.unique(labels).tolist() if labels.dtype.kind in "fiub" else labels.tolist():
                if label_key(label) is not None:
                    found.setdefault(label)
            if len(found) > limit:
                break
        else:
            if any(source.texts for source in self.sources):
                found = dict.fromkeys(_alike(list(found)))
        occurring = np.array(list(found), dtype=object)
        self._check_unchanged()
        if not any(isinstance(source, ArraySource) for source in self.sources):  # arrays may change
            self._distinct = most, occurring
        return occurring

    def __repr__(self) -> str:
        return f"Dataset of {self.shape[0]} records and {self.shape[1]} features in {len(self.sources)} source(s)"


def _alike(labels: Sequence[Any]) -> Sequence[Any]:
    """Labels of several files or pieces, of one kind: numbers, or texts where one is no number."""
    texts = [label for label in labels if isinstance(label, str)]
    numbers = [label for label in labels if not isinstance(label, str)]
    if not texts or not numbers:
        return labels
    present = [text for text in texts if text.strip().lower() not in MISSING]
    if all(isinstance(label_key(text), float) for text in present):
        return [*numbers, *(label_key(text) for text in present)]
    return [*texts, *(str(label).removesuffix(".0") for label in numbers)]
