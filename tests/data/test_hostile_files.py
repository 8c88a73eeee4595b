"""Files that change, are swapped or lie: rows are those that were asked for, and no more than the plan is for."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sottovoce as sv
from sottovoce.data import dataset, room, row_file, sources
from sottovoce.data.bounds import Bounds
from sottovoce.data.preparation import Preparation
from sottovoce.data.row_file import in_memory_or_file
from sottovoce.errors import InputError


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a few rows, in a file."""
    monkeypatch.setattr(dataset, "ENTRIES", 4 * 10)
    monkeypatch.setattr(row_file, "PIECE", 1 << 10)
    monkeypatch.setattr(room, "SHARE", 1 << 60)


def recipe(records: int = 200) -> Preparation:
    return Preparation(Bounds.declare(row_norm=2.0), 4, True, records, (0, 1))


def saved(folder: Path, factor: float = 1.0) -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    X, y = rng.standard_normal((200, 4)), np.arange(200) % 2
    np.save(folder / "X.npy", X * factor)
    np.save(folder / "y.npy", y)
    return X * factor, y


def gram(data: Any, made: Preparation | None = None) -> bytes:
    return bytes(in_memory_or_file(data, made or recipe(), None).gram().tobytes())


@pytest.mark.parametrize("share", [0, 1 << 60])
def test_a_plan_for_fewer_records_is_refused_though_every_piece_has_fewer(
    share: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums are exact for as many records as the plan is for."""
    monkeypatch.setattr(room, "SHARE", share)
    X, y = saved(tmp_path)
    with pytest.raises(InputError, match="200 rows but the plan is for 199"):
        gram(sv.Dataset.from_arrays(X, y, folder=tmp_path), recipe(199))


def test_a_source_that_gives_other_rows_than_it_has_is_refused(tmp_path: Path) -> None:
    class More(sources.ArraySource):
        def pieces(self, rows: int) -> Any:
            yield from super().pieces(rows)
            yield self.X[:1], None if self.y is None else self.y[:1]

    made = sv.Dataset._of([More(*saved(tmp_path))], 4, ())._at(tmp_path, False)
    with pytest.raises(InputError, match="had 200 records when it was counted, and has 201"):
        gram(made)


def test_a_file_of_numpy_that_shrinks_is_refused(tmp_path: Path) -> None:
    X, y = saved(tmp_path)
    data = sv.Dataset(tmp_path / "X.npy", label=str(tmp_path / "y.npy"), folder=tmp_path)
    np.save(tmp_path / "X.npy", X[:95])
    np.save(tmp_path / "y.npy", y[:95])
    with pytest.raises(InputError, match="200 records"):
        gram(data)


def test_slices_of_a_memory_map_are_kept_apart(tmp_path: Path) -> None:
    saved(tmp_path)
    X, y = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "Xy")
    parts = [slice(0, 100), slice(100, 200)]
    found = [gram(sv.Dataset.from_arrays(X[part], y[part], folder=tmp_path, keep=True)) for part in parts]
    assert found == [gram(sv.Dataset.from_arrays(np.array(X[part]), np.array(y[part]))) for part in parts]
    assert found[0] != found[1]
    assert len(list(tmp_path.glob("*.rows"))) == 2


@pytest.mark.parametrize("mode", ["c", "r+"])
def test_a_memory_map_that_can_be_written_is_not_kept(mode: Any, tmp_path: Path) -> None:
    """What it holds need not be in its file."""
    saved(tmp_path)
    X, y = np.load(tmp_path / "X.npy", mmap_mode=mode), np.load(tmp_path / "y.npy", mmap_mode="r")
    with pytest.raises(InputError, match="keep=True is for rows of files"):
        sv.Dataset.from_arrays(X, y, folder=tmp_path, keep=True)


def test_another_file_of_the_same_size_and_time_is_another(tmp_path: Path) -> None:
    saved(tmp_path)
    path = tmp_path / "X.npy"
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns

    def data() -> Any:
        return sv.Dataset(path, label=str(tmp_path / "y.npy"), folder=tmp_path, keep=True)

    first = gram(data())
    X, y = saved(tmp_path, 0.25)
    os.utime(path, ns=times)
    assert path.stat().st_mtime_ns == times[1]
    assert gram(data()) == gram(sv.Dataset.from_arrays(X, y)) != first


def test_a_file_that_changes_while_it_is_prepared_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path)
    data = sv.Dataset(tmp_path / "X.npy", label=str(tmp_path / "y.npy"), folder=tmp_path, keep=True)
    pieces = sources.NumpySource.pieces

    def changed(self: Any, rows: int) -> Any:
        for place, piece in enumerate(pieces(self, rows)):
            if place == 3:
                saved(tmp_path, 0.25)
            yield piece

    monkeypatch.setattr(sources.NumpySource, "pieces", changed)
    with pytest.raises(InputError, match="changed while it was read"):
        gram(data)
    assert not list(tmp_path.glob("*.rows"))


SCHEMA = """
import sys
import sottovoce as sv
schema = sv.Schema({"a": {"range": (-2, 2)}, "y": {"levels": [0, 1]}}, label="y")
held = [object() for _ in range(int(sys.argv[2]))]
print([source.mark() for source in sv.Dataset(sys.argv[1], schema=schema).sources])
"""


def test_a_schema_is_known_again_by_another_process(tmp_path: Path) -> None:
    """Else every process would keep a file of its own, and two schemas could pass for one."""
    path = tmp_path / "rows.csv"
    path.write_text("a,y\n1,0\n2,1\n")
    other = sv.Dataset(path, schema=sv.Schema({"a": {"range": (-2, 3)}, "y": {"levels": [0, 1]}}, label="y"))
    same = sv.Dataset(path, schema=sv.Schema({"a": {"range": (-2, 2)}, "y": {"levels": [0, 1]}}, label="y"))
    command = [sys.executable, "-c", SCHEMA, str(path), "100000"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert told == str([source.mark() for source in same.sources])
    assert told != str([source.mark() for source in other.sources])


def test_a_pipe_in_the_place_of_a_kept_file_is_not_waited_for(tmp_path: Path) -> None:
    saved(tmp_path)
    data = sv.Dataset(tmp_path / "X.npy", label=str(tmp_path / "y.npy"), folder=tmp_path, keep=True)
    expected = gram(data)
    (kept,) = tmp_path.glob("*.rows")
    kept.unlink()
    os.mkfifo(kept, 0o600)
    found = list[bytes]()
    waits = threading.Thread(target=lambda: found.append(gram(data)), daemon=True)
    waits.start()
    waits.join(timeout=10)
    assert found == [expected]
    assert kept.is_file()


def test_two_processes_may_keep_the_same_rows_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path)
    data = sv.Dataset(tmp_path / "X.npy", label=str(tmp_path / "y.npy"), folder=tmp_path, keep=True)
    expected, link = gram(data), os.link
    (kept,) = tmp_path.glob("*.rows")
    content = kept.read_bytes()
    kept.unlink()

    def slower(source: Any, name: Any, **options: Any) -> None:
        kept.write_bytes(content)  # the other one was quicker
        kept.chmod(0o600)
        link(source, name, **options)

    monkeypatch.setattr(os, "link", slower)
    assert gram(data) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["X.npy", "y.npy", kept.name])


@pytest.mark.parametrize("form", ["coo", "csc", "bsr"])
def test_sparse_rows_of_any_form_are_read_by_slices(form: str, tmp_path: Path) -> None:
    X, y = saved(tmp_path)
    X[np.abs(X) < 1] = 0.0
    found = gram(sv.Dataset.from_arrays(sp.csr_matrix(X).asformat(form), y, folder=tmp_path))
    assert found == gram(sv.Dataset.from_arrays(sp.csr_matrix(X), y, folder=tmp_path))
