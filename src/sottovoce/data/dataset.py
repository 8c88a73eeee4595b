"""Rows that are read piece by piece: of files, of memory maps, of partitions on a cluster. Nobody has them all at once.

A `Dataset` stands where arrays or a table stand: at an estimator, at a party, in a federation by rows. What it reads is
a list of sources; each of them can be read anywhere, from its beginning, as often as it is needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.data.matrix import Matrix, is_sparse
from sottovoce.data.schema import Schema
from sottovoce.errors import InputError

Labels = NDArray[Any]
Piece = tuple[Matrix, Labels | None]  # rows, and labels where they are known

ENTRIES = 1 << 22  # of a piece as it is read: 32 MB of float64


class Source(ABC):
    """Some of the rows, with their labels: a file, a part of one, a partition."""

    records: int

    @abstractmethod
    def pieces(self, rows: int) -> Iterator[Piece]:
        """Rows and labels in their order, at most so many at once."""


class ArraySource(Source):
    """Arrays, which may be memory maps."""

    def __init__(self, X: Matrix, y: Labels | None) -> None:
        self.X, self.y, self.records = X, y, int(X.shape[0])

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Slices."""
        for start in range(0, self.records, rows):
            part = slice(start, start + rows)
            yield self.X[part], None if self.y is None else self.y[part]


class Dataset:
    """Rows that are read piece by piece, and their labels.

    `schema` says what the columns of a table hold, and `label` names the label column where there is no schema.
    Prepared rows lie in a file in `folder`: by default beside the ledger, else where the system has large temporary
    files. `keep=True` leaves it there for the next fit on the same files with the same bounds.
    """

    def __init__(
        self,
        files: str | PathLike[str] | Sequence[str | PathLike[str]],
        *,
        label: str | int | None = None,
        schema: Schema | None = None,
        folder: str | PathLike[str] | None = None,
        keep: bool = False,
    ) -> None:
        raise NotImplementedError

    @classmethod
    def from_arrays(
        cls, X: Any, y: ArrayLike | None = None, *, folder: str | PathLike[str] | None = None, keep: bool = False
    ) -> Dataset:
        """Of arrays that may be memory maps, or of sparse rows."""
        rows = X if is_sparse(X) else np.asanyarray(X)
        labels = None if y is None else np.asanyarray(y)
        if rows.ndim != 2 or (labels is not None and labels.shape != rows.shape[:1]):
            shape = None if labels is None else labels.shape
            raise InputError(f"X has shape {rows.shape} and y {shape}; give rows, and one label for each.")
        names = tuple(str(name) for name in getattr(X, "columns", ()))
        return cls._of([ArraySource(rows, labels)], int(rows.shape[1]), names, labelled=y is not None)._at(folder, keep)

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
    keep: bool = False

    def _at(self, folder: str | PathLike[str] | None, keep: bool) -> Dataset:
        self.folder, self.keep = None if folder is None else Path(folder), keep
        return self

    def pieces(self, rows: int | None = None) -> Iterator[Piece]:
        """Rows and labels in their order, at most so many at once."""
        step = max(1, ENTRIES // max(self.shape[1], 1)) if rows is None else rows
        for source in self.sources:
            yield from source.pieces(step)

    def distinct_labels(self, most: int) -> NDArray[Any]:
        """The labels that occur, each once, as far as they are no more than so many; one more says that there are."""
        found: dict[Any, None] = {}
        for _, labels in self.pieces():
            for label in (labels if labels is not None else np.zeros(0)).tolist():
                if label == label:
                    found.setdefault(label)
            if len(found) > most:
                break
        return np.array(list(found), dtype=object)

    def __repr__(self) -> str:
        return f"Dataset of {self.shape[0]} records and {self.shape[1]} features in {len(self.sources)} source(s)"
