"""Arrays of np.save: rows in one file, and their labels in another."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.files import format as formats
from sottovoce.data.files.format import FileOptions, FilePart, FileShape, Format, Labels, Piece, Wanted, check_features
from sottovoce.data.resources import in_words
from sottovoce.errors import InputError
from sottovoce.files import check_plain


class Npy(Format):
    """Rows of an array; `label_path` is the file of their labels."""

    suffixes: ClassVar[tuple[str, ...]] = (".npy",)
    mapped: ClassVar[bool] = True

    def __init__(self, path: Path, shape: FileShape, part: FilePart, wanted: Wanted) -> None:
        super().__init__(path, shape, part, wanted)
        self.label_path = None if wanted.label is None else Path(wanted.label)

    @classmethod
    def shape(cls, path: Path, records: int | None = None) -> FileShape:  # noqa: ARG003
        rows, columns = map_array(path, 2).shape
        step = max(1, formats.PART // (8 * max(columns, 1)))
        return FileShape((), columns, tuple(FilePart(min(step, rows - at), at) for at in range(0, rows, step)))

    @classmethod
    def choose(cls, path: Path, shape: FileShape, asked: FileOptions) -> Wanted:
        check_features(asked.features, shape.columns, path)
        return Wanted(width=shape.columns)

    @classmethod
    def check_alike(cls, path: Path, shape: FileShape, wanted: Wanted, first: Path) -> None:
        if shape.columns != wanted.width:
            raise InputError(
                f"{path} has {shape.columns} columns and {first} {wanted.width}; give all files the same columns."
            )
        if wanted.label is not None and (count := len(map_array(Path(wanted.label), 1))) != shape.records:
            raise InputError(f"{wanted.label} has {count} labels for {shape.records} rows of {path}; one for each.")

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Copies, so that no page of a map is held."""
        stop = self.part.start + self.records
        for start in range(self.part.start, stop, rows):
            part = slice(start, min(start + rows, stop))
            X = np.array(map_array(self.path, 2)[part])
            self.check(self.records if len(X) == part.stop - start else start - self.part.start + len(X))
            yield X, None if self.label_path is None else np.array(map_array(self.label_path, 1)[part])

    def labels(self, rows: int) -> Iterator[Labels]:
        if self.label_path is not None:
            labels = map_array(self.label_path, 1)[self.part.start : self.part.start + self.records]
            yield from (np.array(labels[start : start + rows]) for start in range(0, self.records, rows))


def map_array(path: Path, dimensions: int) -> NDArray[Any]:
    """The array of an .npy file, as a map."""
    try:
        check_plain(path)
        array = np.load(path, mmap_mode="r")
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file.") from None
    except Exception as error:  # NumPy reads the header as Python, and has the errors of that
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            raise InputError(
                f"{path} of {in_words(path.stat().st_size)} cannot be mapped within this process's limit (ulimit -v"
                f"{_address_limit()}); raise it, or limit data (ulimit -d) instead."
            ) from None
        raise InputError(f"{path} is damaged, or not a file of np.save with numbers or texts. Save it again.") from None
    kinds = "fiub" if dimensions == 2 else "fiubU"
    if not isinstance(array, np.ndarray) or array.ndim != dimensions or array.dtype.kind not in kinds:
        what = "rows, an array of numbers with two dimensions" if dimensions == 2 else "labels, with one dimension"
        raise InputError(f"{path} has not {what}; save such an array there.")
    return array


def _address_limit() -> str:
    """The limit of addresses, in the unit of ulimit; "" where there is none."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        if soft != resource.RLIM_INFINITY:
            return f" {soft // 1024}"
    return ""
