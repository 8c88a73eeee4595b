"""A sort that goes by pieces: as one in memory gives it, whatever the pieces; and no file with a name."""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.data import row_file as sorted_file
from sottovoce.data.row_file import WORD_KIND, SortedFile, cut_pieces
from sottovoce.errors import RefusedError

words = st.binary(min_size=16, max_size=16).map(lambda word: bytes(byte % 3 for byte in word[:3]) + bytes(13))
runs = st.lists(st.lists(words, unique=True, max_size=9), min_size=1, max_size=6)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(runs=runs, held=st.integers(1, 40), lists=st.integers(1, 4))
def test_it_is_the_sort_of_everything(runs: list[list[bytes]], held: int, lists: int) -> None:
    """Words of three letters, so that many are equal; ends of words are often 0."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_file, "_HELD", held)
        patch.setattr(sorted_file, "_LEAST", 1)
        file, every = SortedFile(Path(tempfile.gettempdir())), list[tuple[bytes, int]]()
        for run in runs:
            places = np.arange(len(every), len(every) + len(run))
            file.add(np.array(run, dtype=WORD_KIND), places)
            every += zip(run, places.tolist(), strict=True)
        parts = list(file)
        together = [(part["word"].tobytes(), part["place"].tolist()) for part in parts]
        found = sorted(every)  # equal words by their places, as they were added
        assert b"".join(word for word, _ in together) == b"".join(word for word, _ in found)
        assert [place for _, places in together for place in places] == [place for _, place in found]
        assert all(len(part) <= held + len(runs) for part in parts)
        often = [word for word, _ in found]
        shared = [place for part in file.shared(lists) for place in part["place"].tolist()]
        firsts = {word: place for word, place in reversed(found) if often.count(word) == lists}
        if max(map(often.count, often), default=0) <= lists:
            assert shared == sorted(firsts.values(), key=lambda place: every[place])
        file.close()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(lengths=st.lists(st.integers(0, 9), max_size=9), size=st.integers(1, 12))
def test_pieces_have_the_size_that_is_asked_for(lengths: list[int], size: int) -> None:
    ends = np.cumsum([0, *lengths])
    parts = [np.arange(start, end) for start, end in itertools.pairwise(ends)]
    found = list(cut_pieces(parts, size))
    assert [one for piece in found for one in piece.tolist()] == list(range(ends[-1]))
    assert all(len(piece) == size for piece in found[:-1])
    assert not found or 0 < len(found[-1]) <= size


def test_a_file_has_no_name_and_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SortedFile(tmp_path)
    file.add(np.array([b"b", b"a"], dtype=WORD_KIND), -1)
    assert os.fstat(file._handle).st_size == 48
    assert not list(tmp_path.iterdir())
    with pytest.raises(RefusedError, match="no room on the disk"):
        SortedFile(tmp_path / "none")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sorted_file, "write", full)
    with pytest.raises(RefusedError, match=r"no room on the disk for an alignment \(No space left on device\)"):
        file.add(np.array([b"c"], dtype=WORD_KIND), 0)
