"""Records in the order of their words, more than fit in memory: sorted runs in a file, merged whenever they are read.

Guarantee: the file has no name, so that a process leaves none behind, also if it is killed. What is in memory of it
does not grow with the number of records.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.resources import open_scratch
from sottovoce.data.row_file import write
from sottovoce.errors import InputError, RefusedError

RingArray = NDArray[np.bytes_]  # WORD bytes each
Records = NDArray[np.void]

WORD: Final = 16  # bytes
WORD_KIND: Final = f"S{WORD}"
_KIND: Final = np.dtype([("word", WORD_KIND), ("place", "<i8")])
_HELD: Final = 2**18  # records in memory while runs are merged
_LEAST: Final = 64  # records of a run that are read at a time


class SortedFile:
    """Words, each with a place, added in pieces that have no word twice, read in the order of all words."""

    def __init__(self, folder: Path) -> None:
        try:
            self._handle = open_scratch(folder)
        except InputError as error:
            raise _no_room(error) from None
        self._runs: list[tuple[int, int]] = []  # the first record of each, and that after its last
        self.close = weakref.finalize(self, os.close, self._handle)

    def __len__(self) -> int:
        return self._runs[-1][1] if self._runs else 0

    def add(self, words: RingArray, places: NDArray[np.int64] | int) -> None:
        """A piece; equal words of several pieces are read in the order in which they were added."""
        order = np.argsort(words, kind="stable")
        run = np.empty(len(words), dtype=_KIND)
        run["word"], run["place"] = words[order], places if isinstance(places, int) else places[order]
        first = len(self)
        try:
            write(self._handle, run, first * _KIND.itemsize)
        except OSError as error:
            raise _no_room(error) from None
        self._runs.append((first, first + len(run)))

    def __iter__(self) -> Iterator[Records]:
        """All records, sorted, a part at a time; equal words are in the same part."""
        count = max(_LEAST, _HELD // max(1, len(self._runs)))
        runs = [self._parts(first, end, count) for first, end in self._runs]
        held = [(part, rest) for rest in runs if (part := next(rest, None)) is not None]
        while held:
            last = min(part["word"][-1] for part, _ in held)  # all records up to it are here
            ready, left = list[Records](), list[tuple[Records, Iterator[Records]]]()
            for part, rest in held:
                end = int(np.searchsorted(part["word"], last, side="right"))
                ready.append(part[:end])
                more = part[end:] if end < len(part) else next(rest, None)
                if more is not None:
                    left.append((more, rest))
            held, together = left, np.concatenate(ready)
            yield together[np.argsort(together["word"], kind="stable")]

    def shared(self, lists: int) -> Iterator[Records]:
        """Of every word that was added so often, and at most so often, the record that was added first."""
        for part in self:
            firsts = part[: max(0, len(part) - lists + 1)]
            yield firsts[firsts["word"] == part["word"][lists - 1 :]]

    def words(self, lists: int = 1) -> Iterator[RingArray]:
        """The words that were added so often."""
        return (part["word"] for part in self.shared(lists))

    def _parts(self, first: int, end: int, count: int) -> Iterator[Records]:
        for at in range(first, end, count):
            size = _KIND.itemsize * min(count, end - at)
            data = os.pread(self._handle, size, at * _KIND.itemsize)
            if len(data) != size:
                raise RefusedError("the file of an alignment is shorter than it was; start the alignment again.")
            yield np.frombuffer(data, dtype=_KIND)


def cut_pieces(parts: Iterable[NDArray[Any]], size: int) -> Iterator[NDArray[Any]]:
    """The same in arrays of that size, the last one shorter."""
    left: NDArray[Any] | None = None
    for part in parts:
        left = part if left is None else np.concatenate([left, part])
        while len(left) >= size:
            yield left[:size]
            left = left[size:]
    if left is not None and len(left):
        yield left


def _no_room(error: Exception) -> RefusedError:
    why = error.strerror if isinstance(error, OSError) else "no file can be made"
    return RefusedError(f"there is no room on the disk for an alignment ({why}); make room, and start it again.")
