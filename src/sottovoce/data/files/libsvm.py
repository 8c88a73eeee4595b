"""LIBSVM: lines `label index:value index:value ...`, of sparse rows.

Indices start at 1, always: guessing it from the smallest index in the file would let two parties with the same columns
read them shifted. A line that is empty, or a comment alone, is no record.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sottovoce.data.files import format as formats
from sottovoce.data.files.format import UNCOUNTED, FileOptions, FilePart, FileShape, Format, Piece, Wanted, cut_parts
from sottovoce.errors import InputError
from sottovoce.files import MOST_FEATURES


class Libsvm(Format):
    """A record is a line of a label and of entries with their indices."""

    suffixes: ClassVar[tuple[str, ...]] = (".svm", ".libsvm", ".svmlight", ".txt")
    compressible: ClassVar[bool] = True
    sparse: ClassVar[bool] = True

    @classmethod
    def shape(cls, path: Path, records: int | None = None) -> FileShape:
        if records == UNCOUNTED:
            return FileShape((), 0, (FilePart(UNCOUNTED, count=UNCOUNTED),))
        with formats.open_data(path) as stream:
            blocks = (
                (
                    sum(bool(line.split(b"#", 1)[0].strip()) for line in text.split(b"\n")),
                    formats.count_lines(text),
                    text.count(b":"),
                    stream.tell(),
                )
                for text in formats.read_blocks(stream)
            )
            return FileShape((), 0, cut_parts(FilePart(0), blocks, path))

    @classmethod
    def choose(cls, path: Path, shape: FileShape, asked: FileOptions) -> Wanted:  # noqa: ARG003
        if asked.label not in (None, 0):
            raise InputError(
                f"label={asked.label!r} for {path.name}: the label of a LIBSVM file is what each line begins with. "
                "Leave label out."
            )
        if asked.features is None:
            raise InputError(
                f"{path} needs features, the number of its columns: a LIBSVM file does not say it, and the largest "
                "index in it would reveal whether some record has that feature."
            )
        if asked.features > MOST_FEATURES:
            raise InputError(f"features={asked.features} for {path}: at most {MOST_FEATURES} are read; give fewer.")
        return Wanted(width=asked.features)

    def pieces(self, rows: int) -> Iterator[Piece]:
        from sklearn.datasets import load_svmlight_file  # slow to import, and other formats do without

        self.spoilt, number, done, width = (0, ()), 0, 0, self.wanted.width or 0
        with formats.open_data(self.path) as stream:
            stream.seek(self.part.start)
            for text in formats.read_blocks(stream):
                starts = formats.line_starts(text)[: self.part.count - number + 1]
                for at in range(0, len(starts) - 1, rows):
                    own = starts[at : at + rows + 1]
                    held = text[own[0] : own[-1]]
                    try:
                        X, y = load_svmlight_file(io.BytesIO(held), n_features=width, zero_based=False)
                    except (ValueError, OverflowError):
                        X, y, whole = _read_each(held.split(b"\n"), width)
                        self.note_spoilt(self.part.before + number + 1, whole)
                    number, done = number + len(own) - 1, done + len(y)
                    if len(y):
                        yield X, y
                if number == self.part.count:
                    break
        self.check(done)


def _read_each(held: Sequence[bytes], width: int) -> tuple[sp.csr_matrix, NDArray[Any], NDArray[np.bool_]]:
    """Rows and labels of lines that scikit-learn refused, and which are of the form; each that is not is all NaN.

    `label index:value index:value ...`, indices from 1 to the number of features, each above the one before.
    """
    from sklearn.datasets import load_svmlight_file

    kept, whole = list[bytes](), np.ones(len(held), dtype=np.bool_)
    for place, line in enumerate(held):
        parts = line.split(b"#")[0].split()
        if not parts:
            continue
        try:
            query = any(part.startswith(b"qid") and b":" in part for part in parts[1:2])  # as scikit-learn has it
            pairs = [part.split(b":") for part in parts[2 if query else 1 :]]
            indices = [0, *(int(index) for index, _ in pairs), width + 1]
            _ = [float(parts[0]), *(float(value) for _, value in pairs)]
            whole[place] = all(a < b for a, b in itertools.pairwise(indices))
        except ValueError:
            whole[place] = False
        kept.append(b" ".join(parts) if whole[place] else b"nan 1:nan")
    X, y = load_svmlight_file(io.BytesIO(b"\n".join(kept)), n_features=width, zero_based=False)
    return X, y, whole
