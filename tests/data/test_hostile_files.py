"""Files that change, are swapped or lie: rows are those that were asked for, and no more than the plan is for."""

import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sottovoce as sv
from sottovoce.data import block_parts, dataset
from sottovoce.data import resources as room
from sottovoce.data.block_parts import in_memory_or_file
from sottovoce.data.bounds import Bounds
from sottovoce.data.files import format as formats
from sottovoce.data.files.npy import Npy
from sottovoce.data.preparation import Preparation
from sottovoce.errors import InputError


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a few rows, in a file."""
    monkeypatch.setattr(dataset, "ENTRIES", 4 * 10)
    monkeypatch.setattr(block_parts, "PIECE", 1 << 10)
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
    class More(dataset.ArraySource):
        def pieces(self, rows: int) -> Any:
            yield from super().pieces(rows)
            yield self.X[:1], None if self.y is None else self.y[:1]

    made = sv.Dataset._of([More(*saved(tmp_path))], 4, ())
    with pytest.raises(InputError, match="had 200 records when it was counted, and has 201"):
        gram(made)


def test_a_file_of_numpy_that_shrinks_is_refused(tmp_path: Path) -> None:
    X, y = saved(tmp_path)
    data = sv.Dataset(tmp_path / "X.npy", label=str(tmp_path / "y.npy"), folder=tmp_path)
    np.save(tmp_path / "X.npy", X[:95])
    np.save(tmp_path / "y.npy", y[:95])
    with pytest.raises(InputError, match="200 records"):
        gram(data)


def test_slices_of_a_memory_map_are_read_from_where_they_begin(tmp_path: Path) -> None:
    saved(tmp_path)
    X, y = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "Xy")
    parts = [slice(0, 100), slice(100, 200)]
    found = [gram(sv.Dataset.from_arrays(X[part], y[part], folder=tmp_path)) for part in parts]
    assert found == [gram(sv.Dataset.from_arrays(np.array(X[part]), np.array(y[part]))) for part in parts]
    assert found[0] != found[1]


def test_a_file_that_changes_while_it_is_prepared_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path)
    data = sv.Dataset(tmp_path / "X.npy", label=str(tmp_path / "y.npy"), folder=tmp_path)
    pieces = Npy.pieces

    def changed(self: Any, rows: int) -> Any:
        for place, piece in enumerate(pieces(self, rows)):
            if place == 3:
                saved(tmp_path, 0.25)
            yield piece

    monkeypatch.setattr(Npy, "pieces", changed)
    with pytest.raises(InputError, match="changed after it was opened"):
        gram(data)
    assert {path.name for path in tmp_path.iterdir()} == {"X.npy", "y.npy"}


def test_no_record_is_read_twice_as_parts_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that become longer move a record into the next part, where it would count once more."""
    monkeypatch.setattr(formats, "BYTES", 1 << 6)
    monkeypatch.setattr(formats, "PART", 1 << 8)
    path = tmp_path / "rows.csv"

    def write(padding: str) -> None:
        path.write_text("a,b,c,d,y\n" + "".join(f"{k}{padding},0,0,0,{k % 2}\n" for k in range(100, 200)))

    write("")
    data = sv.Dataset(path, label="y", folder=tmp_path)
    assert len(data.sources) > 2
    write(".00")
    found = np.concatenate([rows[:, 0] for source in data.sources for rows, _ in source.pieces(9)])
    assert len(found) == 100 > len(set(found.tolist()))  # what would be summed
    with pytest.raises(InputError, match="changed after it was opened"):
        gram(data)


@pytest.mark.parametrize("moment", ["before the first number", "in the middle"])
@pytest.mark.parametrize("made", [False, True])
def test_a_disk_that_is_full_after_the_charge_ends_no_run(
    moment: str, made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is known of rows is then found anew, and the sums are the same."""
    X, y = saved(tmp_path)
    matrix = np.random.default_rng(1).standard_normal((5, 2)) if made else np.tril(np.ones((5, 5)))
    parts = in_memory_or_file(sv.Dataset.from_arrays(X, y, folder=tmp_path), recipe(), None)

    def sums() -> list[float]:
        seen = parts.projected(matrix, made=made)
        return [seen.number_sum(lambda lengths, _: np.minimum(lengths, 1.0)) for _ in range(3)]

    expected, limit = sums(), resource.getrlimit(resource.RLIMIT_FSIZE)

    class Full:
        f_bavail, f_frsize = 0, 4096

    if moment == "in the middle":
        resource.setrlimit(resource.RLIMIT_FSIZE, (800, limit[1]))
    else:
        monkeypatch.setattr(os, "statvfs", lambda _: Full)
    try:
        assert sums() == expected
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert "has no room" in caplog.text


def test_an_empty_source_of_sparse_rows_has_none(tmp_path: Path) -> None:
    X, y = saved(tmp_path)
    rows = sp.csr_matrix(X)
    parts = [
        dataset.ArraySource(rows[part], y[part]) for part in (slice(0), slice(150), slice(150, 150), slice(150, 200))
    ]
    assert gram(sv.Dataset._of(parts, 4, ())) == gram(sv.Dataset.from_arrays(rows, y))


@pytest.mark.parametrize("form", ["coo", "csc", "bsr"])
def test_sparse_rows_of_any_form_are_read_by_slices(form: str, tmp_path: Path) -> None:
    X, y = saved(tmp_path)
    X[np.abs(X) < 1] = 0.0
    found = gram(sv.Dataset.from_arrays(sp.csr_matrix(X).asformat(form), y, folder=tmp_path))
    assert found == gram(sv.Dataset.from_arrays(sp.csr_matrix(X), y, folder=tmp_path))


@pytest.mark.parametrize("kind", ["text", "complex"])
def test_arrays_of_another_type_than_numbers_are_refused_by_it(kind: str, tmp_path: Path) -> None:
    X, y = saved(tmp_path)
    rows: Any = {"text": X.astype(str), "complex": X + 1j}[kind]
    with pytest.raises(InputError, match="columns that are not numbers"):
        sv.Dataset.from_arrays(rows, y)


def test_a_cell_of_an_object_array_that_is_no_number_makes_a_null_row(tmp_path: Path) -> None:
    X, y = saved(tmp_path)
    rows = X.astype(object)
    assert gram(sv.Dataset.from_arrays(rows, y)) == gram(sv.Dataset.from_arrays(X, y))
    rows[150, 2], X[150, 2] = "SECRET", np.nan
    assert gram(sv.Dataset.from_arrays(rows, y)) == gram(sv.Dataset.from_arrays(X, y))


def test_a_file_and_a_link_to_it_are_one(tmp_path: Path) -> None:
    """Else every record would count twice, and nobody would know."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("a,y\n1,0\n2,1\n")
    (tmp_path / "c.csv").symlink_to(tmp_path / "a.csv")
    (tmp_path / "sub").mkdir()
    again = [tmp_path / "*.csv", tmp_path / "sub" / ".." / "b.csv"]
    data = sv.Dataset(again, label="y")
    assert data.shape == (4, 1)
    assert [source.path for source in data.sources] == [tmp_path / "a.csv", tmp_path / "b.csv"]


def test_a_hard_link_to_a_file_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,y\n1,0\n2,1\n")
    os.link(tmp_path / "a.csv", tmp_path / "b.csv")
    assert sv.Dataset(tmp_path, label="y").shape == (2, 1)


def shifted(path: Path, rows: int) -> None:
    """Every record so many places further down: who reads on meets records that were read before."""
    np.save(path, np.roll(np.load(path), rows, axis=0))


@pytest.mark.parametrize("name", ["X.npy", "y.npy"])
@pytest.mark.parametrize("mapped", [False, True])
def test_rows_and_labels_that_move_while_they_are_read_are_refused(name: str, mapped: bool, tmp_path: Path) -> None:
    saved(tmp_path)
    if mapped:
        data = sv.Dataset.from_arrays(*(np.load(tmp_path / each, mmap_mode="r") for each in ("X.npy", "y.npy")))
    else:
        data = sv.Dataset(tmp_path / "X.npy", label=str(tmp_path / "y.npy"))
    pieces = data.pieces()
    next(pieces)
    shifted(tmp_path / name, 10)
    with pytest.raises(InputError, match=f"{name} was changed after it was opened"):
        list(pieces)


def test_a_file_whose_time_was_set_back_was_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,y\n" + "1,0\n2,1\n" * 40)
    data, times = sv.Dataset(path, label="y"), (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    path.write_text("a,y\n" + "2,1\n1,0\n" * 40)
    os.utime(path, ns=times)
    with pytest.raises(InputError, match="was changed"):
        list(data.pieces())


def test_the_labels_that_occur_are_those_of_the_files(tmp_path: Path) -> None:
    """Else a fit would be charged for classes that nobody has any more."""
    _, y = saved(tmp_path)
    data = sv.Dataset(tmp_path / "X.npy", label=str(tmp_path / "y.npy"))
    assert data.distinct_labels(5).tolist() == [0, 1]
    held = sv.Dataset.from_arrays(np.zeros((200, 4)), y)
    assert held.distinct_labels(5).tolist() == [0, 1]
    y += 7
    assert held.distinct_labels(5).tolist() == [7, 8]
    np.save(tmp_path / "y.npy", y)
    with pytest.raises(InputError, match=r"y\.npy was changed"):
        data.distinct_labels(6)


def test_raw_rows_of_several_types_are_alike_in_memory_and_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a half-precision file, and of another with numbers that it could not hold."""
    small, large = np.ones((30, 4)), np.full((30, 4), 1e39)
    np.save(tmp_path / "a.npy", small.astype(np.float16))
    np.save(tmp_path / "b.npy", large)
    raw = Preparation(Bounds(), 4, False, 60, None, layout="raw", labelled=False)
    found = []
    for share in (0, 1 << 60):
        monkeypatch.setattr(room, "SHARE", share)
        held = in_memory_or_file(sv.Dataset([tmp_path / "a.npy", tmp_path / "b.npy"], folder=tmp_path), raw, None)
        found.append(np.concatenate(list(held.cells([0, 3]))))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], np.concatenate([small, large])[:, :2])
