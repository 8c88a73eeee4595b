"""Sources of rows: arrays, memory maps, parts of files, each read piece by piece, anywhere, and again.

Neither the piece that a record is in nor any other record decides how it is read. A source can be pickled, and holds no
rows of a file.
"""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from sottovoce.data.matrix import Matrix, is_sparse
from sottovoce.errors import InputError

Labels = NDArray[Any]
Piece = tuple[Matrix, Labels | None]  # rows, and labels where they are known
Mark = tuple[Any, ...]  # of a file as it is now: another if it is written again

UNCOUNTED: Final = 1 << 62  # records of a file that is read to its end


class Source(ABC):
    """Some of the rows, with their labels: a file, a part of one, a partition.

    `entries` is how many entries sparse rows have at most; None where rows are dense. After a reading to the end
    `spoilt` has how many lines became null rows, and the numbers of the first of them.
    """

    path: Path | None = None  # of the file that it reads, if it is one
    records: int
    entries: int | None = None
    texts: bool = False  # whether a label that is no number makes labels texts
    spoilt: tuple[int, tuple[int, ...]] = (0, ())

    @abstractmethod
    def pieces(self, rows: int) -> Iterator[Piece]:
        """Rows and labels in their order, at most so many at once."""

    def labels(self, rows: int) -> Iterator[Labels]:
        """The labels alone."""
        for _, labels in self.pieces(rows):
            if labels is not None:
                yield labels

    def check(self, count: int) -> None:
        """Refuse a file that has other records than it had, or than were declared; note how many nobody counted."""
        if self.records == UNCOUNTED:
            self.records = count
        if self.records != count:
            raise InputError(
                f"{self.path} has not the {self.records} records that it had when it was opened, or that were "
                "declared; leave it as it is while it is read, and correct records."
            )


class ArraySource(Source):
    """Arrays, which may be memory maps."""

    def __init__(self, X: Matrix, y: Labels | None) -> None:
        self.X, self.y, self.records = X, y, int(X.shape[0])
        self.entries = int(X.nnz) if is_sparse(X) else None

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


def state_of(path: Path) -> Mark | None:
    """What tells that a file was written again, or another put in its place; None where there is none.

    The time of its last change nobody can set back.
    """
    try:
        state = path.stat()
    except (OSError, ValueError):  # of a name that no file has
        return None
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
