"""Rows that are read piece by piece from files are those that the readers of whole files read."""

import gzip
import lzma
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file

import sottovoce as sv
from sottovoce.data import dataset, opening, readers, room, sources
from sottovoce.data.labels import equal
from sottovoce.errors import InputError

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

NAMES = ("a", "b", "c", "d")
SCHEMA = sv.Schema(
    {
        "a": {"range": (-2, 2)},
        "diet": {"levels": ["fish", "meat"], "other": True},
        "y": {"levels": [0, 1]},
    },
    label="y",
    identifiers=["id"],
)


@pytest.fixture(autouse=True)
def _short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that rows lie in several pieces, and files in several parts."""
    monkeypatch.setattr(dataset, "ENTRIES", 4 * 70)
    monkeypatch.setattr(sources, "CELLS", 5 * 30)
    monkeypatch.setattr(sources, "BYTES", 1 << 10)
    monkeypatch.setattr(opening, "BYTES", 1 << 10)
    monkeypatch.setattr(opening, "PART", 1 << 12)


def numbers(records: int = 300, seed: int = 1) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((records, 4)).round(3)
    X[5, 2] = np.nan
    return X, (X[:, 0] + rng.standard_normal(records) > 0).astype(float)


def csv_text(X: Any, y: Any, order: tuple[int, ...] = (0, 1, 2, 3, 4)) -> str:
    names = [*NAMES, "y"]
    columns = [*(list(map(repr, column.tolist())) for column in X.T), list(map(str, y.astype(int).tolist()))]
    lines = zip(*(columns[place] for place in order), strict=True)
    return "\n".join([",".join(names[place] for place in order), *map(",".join, lines)]) + "\n"


def frame(X: Any, y: Any) -> Any:
    return pyarrow.table({**dict(zip(NAMES, X.T, strict=True)), "y": y})


def write_parquet(folder: Path, X: Any, y: Any) -> Path:
    parquet.write_table(frame(X, y), folder / "rows.parquet", row_group_size=64)
    return folder / "rows.parquet"


def write_csv(folder: Path, X: Any, y: Any) -> Path:
    (folder / "rows.csv").write_text(csv_text(X, y))
    return folder / "rows.csv"


def write_gzip(folder: Path, X: Any, y: Any) -> Path:
    (folder / "rows.csv.gz").write_bytes(gzip.compress(csv_text(X, y).encode()))
    return folder / "rows.csv.gz"


def write_xz(folder: Path, X: Any, y: Any) -> Path:
    (folder / "rows.csv.xz").write_bytes(lzma.compress(csv_text(X, y, (2, 4, 0, 3, 1)).encode()))
    return folder / "rows.csv.xz"


def write_mixture(folder: Path, X: Any, y: Any) -> str:
    (folder / "1.csv").write_text(csv_text(X[:100], y[:100]))
    parquet.write_table(frame(X[100:170], y[100:170]), folder / "2.parquet")
    (folder / "3.csv.gz").write_bytes(gzip.compress(csv_text(X[170:], y[170:], (4, 3, 2, 1, 0)).encode()))
    return str(folder / "[123].*")


def write_folder(folder: Path, X: Any, y: Any) -> Path:
    (folder / "many").mkdir()
    for place in range(0, 300, 60):
        parquet.write_table(frame(X[place : place + 60], y[place : place + 60]), folder / "many" / f"{place:03}.pq")
    (folder / "many" / "_SUCCESS").write_text("")
    return folder / "many"


FORMATS: dict[str, Callable[[Path, Any, Any], Any]] = {
    "parquet": write_parquet,
    "csv": write_csv,
    "csv.gz": write_gzip,
    "csv.xz": write_xz,
    "mixture": write_mixture,
    "folder": write_folder,
}


def together(data: Any) -> tuple[Any, Any]:
    pieces = list(data.pieces())
    assert len(pieces) > 1
    return np.concatenate([rows for rows, _ in pieces]), np.concatenate([labels for _, labels in pieces])


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_and_mixture_has_the_rows_in_order(form: str, tmp_path: Path) -> None:
    X, y = numbers()
    data = sv.Dataset(FORMATS[form](tmp_path, X, y), label="y", features=4)
    assert data.shape == (300, 4)
    assert set(data.feature_names) == set(NAMES)
    rows, labels = together(pickle.loads(pickle.dumps(data)))
    order = [data.feature_names.index(name) for name in NAMES]
    np.testing.assert_array_equal(rows[:, order], X)
    np.testing.assert_array_equal(labels, y)
    parts = [np.concatenate([rows for rows, _ in source.pieces(7)]) for source in data.sources]
    assert [len(part) for part in parts] == [source.records for source in data.sources]
    assert np.array_equal(np.concatenate(parts), rows, equal_nan=True)
    if form in ("csv", "parquet"):
        assert len(data.sources) > 1
    counted = sv.Dataset(
        FORMATS[form](tmp_path, X, y) if form != "folder" else tmp_path / "many", label="y", records=300
    )
    np.testing.assert_array_equal(together(counted)[0], rows)


@pytest.mark.parametrize("form", FORMATS)
def test_a_fit_on_files_is_one_on_arrays(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = numbers()
    data = sv.Dataset(FORMATS[form](tmp_path, X, y), label="y", folder=tmp_path)
    model = sv.PrivateLogisticRegression(delta=1e-4, row_norm=2.0, insecure_seed=2, solver="newton")
    arrays = X[:, [NAMES.index(name) for name in data.feature_names]]
    expected = model.fit(arrays, y).coef_.tobytes()
    assert model.fit(data).coef_.tobytes() == expected  # the classes are read
    monkeypatch.setattr(room, "SHARE", 1 << 60)
    assert model.fit(data).coef_.tobytes() == expected
    assert not list(tmp_path.glob("*.rows"))


@pytest.mark.parametrize("mode", ["r", "c"])
def test_a_memory_map_that_does_not_fit_is_read_in_pieces(
    mode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = numbers()
    np.save(tmp_path / "X.npy", X)
    common: dict[str, Any] = {"delta": 1e-4, "row_norm": 2.0, "insecure_seed": 2, "solver": "newton"}
    expected = sv.PrivateLogisticRegression(**common).fit(X, y)
    monkeypatch.setattr(room, "SHARE", 1 << 60)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    mapped = np.load(tmp_path / "X.npy", mmap_mode=mode)
    found = sv.PrivateLogisticRegression(**common).fit(mapped, y)
    assert found.coef_.tobytes() == expected.coef_.tobytes()
    parties = [
        sv.PrivateLogisticRegression(**common).fit(sv.Federation.by_rows([(rows, y)])).coef_ for rows in (X, mapped)
    ]
    assert parties[0].tobytes() == parties[1].tobytes()
    np.testing.assert_array_equal(found.predict(mapped[:5]), expected.predict(X[:5]))
    np.testing.assert_array_equal(np.asarray(mapped), X)
    with pytest.raises(sv.RefusedError, match="a Dataset serves"):
        sv.PrivateLogisticRegression(**{**common, "solver": "cd"}).fit(mapped, y)


def test_a_file_of_sparse_rows_is_read_in_pieces(tmp_path: Path) -> None:
    X, y = numbers()
    X[np.random.default_rng(0).random(X.shape) < 0.6] = 0.0
    dump_svmlight_file(np.nan_to_num(X), y, str(tmp_path / "rows.svm"), zero_based=False, comment="made")
    whole = readers.read_table(tmp_path / "rows.svm", features=6)
    (tmp_path / "rows.svm.gz").write_bytes(gzip.compress((tmp_path / "rows.svm").read_bytes()))
    for name in ("rows.svm", "rows.svm.gz"):
        data = sv.Dataset(tmp_path / name, features=6)
        assert data.shape == (300, 6)
        assert sum(source.entries or 0 for source in data.sources) == whole.X.nnz
        pieces = [(rows.toarray(), labels) for rows, labels in data.pieces()]
        assert len(pieces) > 1
        np.testing.assert_array_equal(np.concatenate([rows for rows, _ in pieces]), whole.X.toarray())
        np.testing.assert_array_equal(np.concatenate([labels for _, labels in pieces]), whole.y)


@pytest.mark.parametrize("order", ["C", "F"])
def test_files_of_numpy_are_read_by_slices(order: Any, tmp_path: Path) -> None:
    X, y = numbers()
    for place, part in enumerate((slice(0, 200), slice(200, 300))):
        np.save(tmp_path / f"X{place}.npy", np.asarray(X[part], order=order))
        np.save(tmp_path / f"y{place}.npy", y[part].astype(int))
    data = sv.Dataset(tmp_path / "X*.npy", label=str(tmp_path / "y*.npy"))
    rows, labels = together(data)
    np.testing.assert_array_equal(rows, X)
    np.testing.assert_array_equal(labels, y)
    assert sorted(data.distinct_labels(5)) == [0, 1]


SPOILT = 'a,y\n1,0\nx,1\n2,1,3\n\n"4",0\n5,?\n6,yes\n7,"\n8,\n9,1\n\n \n'


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_lines_that_cannot_be_read_are_null_rows_wherever_pieces_end(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dataset, "ENTRIES", rows)
    (tmp_path / "rows.csv").write_text(SPOILT)
    whole = readers.read_table(tmp_path / "rows.csv", label="y")
    (told,) = [record.getMessage() for record in caplog.records]
    caplog.clear()
    data = sv.Dataset(tmp_path / "rows.csv", label="y")
    pieces = list(data.pieces())
    assert [record.getMessage() for record in caplog.records] == [told]
    assert len(list(data.pieces())) == len(pieces)
    assert len(caplog.records) == 1  # the holder is told once
    np.testing.assert_array_equal(np.concatenate([rows for rows, _ in pieces]), whole.X)
    assert whole.y is not None
    for value in (0, 1, "yes", "?"):
        found = np.concatenate([equal(labels, value) for _, labels in pieces])
        np.testing.assert_array_equal(found, equal(whole.y, value))
    assert sorted(data.distinct_labels(9)) == sorted(set(whole.y.tolist()))


def test_labels_that_are_numbers_or_missing_stay_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "ENTRIES", 1)
    (tmp_path / "rows.csv").write_text("a,y\n1,0\n2,?\n3,1.0\n4,\n")
    found = sv.Dataset(tmp_path / "rows.csv", label="y").distinct_labels(5)
    assert sorted(found) == [0.0, 1.0]


def test_a_column_alone_has_a_record_for_every_line(tmp_path: Path) -> None:
    for text in ("y\n1\n\n2\n\n", "\ufeff\n\ny\r\n1\r\n\r\n2", "y\n1\n"):
        (tmp_path / "rows.csv").write_text(text, newline="")
        data = sv.Dataset(tmp_path / "rows.csv")
        whole = readers.read_table(tmp_path / "rows.csv").X
        np.testing.assert_array_equal(np.concatenate([rows for rows, _ in data.pieces()]), whole)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_schema_encodes_each_piece_alike(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    cells = {
        "id": [f"p{place}" for place in range(200)],
        "a": rng.standard_normal(200).round(2).tolist(),
        "diet": rng.choice(["fish", "meat", "?", "air"], 200).tolist(),
        "y": rng.choice([0, 1], 200).tolist(),
    }
    if kind == "parquet":
        parquet.write_table(pyarrow.table(cells), tmp_path / "rows.parquet")
    else:
        lines = [",".join(map(str, row)) for row in zip(*cells.values(), strict=True)]
        lines[3] = "p3,1"
        (tmp_path / "rows.csv").write_text("\n".join([",".join(cells), *lines, ""]))
    path = tmp_path / f"rows.{kind}"
    data = sv.Dataset(path, schema=SCHEMA)
    rows, labels = together(data)
    np.testing.assert_array_equal(rows, SCHEMA.encode(path, others=False))
    assert labels.tolist() == np.asarray(SCHEMA.labels(path)).tolist()
    assert data.feature_names == SCHEMA.feature_names
    assert set(data.distinct_labels(5)) - {None} == {0, 1}
    other = sv.Schema({key: value.entry() for key, value in SCHEMA.columns.items()}, label="y")
    assert sv.Dataset(path, schema=other, left_out="id").shape == data.shape
    with pytest.raises(InputError, match=r"rows\..*'id'"):
        sv.Dataset(path, schema=other)


def _cases(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    X, y = numbers(20)
    write_csv(folder, X, y)
    write_parquet(folder, X, y)
    np.save(folder / "X.npy", X)
    (folder / "other.csv").write_text("a,b,c,e,y\n1,2,3,4,5\n")
    (folder / "text.parquet").write_bytes(b"no")
    parquet.write_table(pyarrow.table({"a": ["x"], "y": [1]}), folder / "words.parquet")
    (folder / "rows.svm").write_text("1 1:2\n")
    (folder / "empty.csv").write_text("a,y\n")
    (folder / "two.csv").write_text("a,y\n1,2\n3,4\n\n")
    (folder / "none").mkdir()
    yield "names no file", lambda: sv.Dataset([])
    yield "no file is of this pattern", lambda: sv.Dataset(folder / "*.parq")
    yield "has no files", lambda: sv.Dataset(folder / "none")
    yield "no such file", lambda: sv.Dataset(folder / "absent.csv")
    yield "unknown suffix", lambda: sv.Dataset(folder / "absent.xls")
    yield r"other.csv lacks the column 'd'", lambda: sv.Dataset([folder / "rows.csv", folder / "other.csv"], label="y")
    yield "rows.csv lacks the column 'e'", lambda: sv.Dataset([folder / "other.csv", folder / "rows.csv"], label="y")
    yield "label='z' is no column", lambda: sv.Dataset(folder / "rows.csv", label="z")
    yield "column 'a' is not numeric", lambda: sv.Dataset(folder / "words.parquet", label="y")
    yield "damaged, or not a Parquet", lambda: sv.Dataset(folder / "text.parquet", label="y")
    yield "needs features", lambda: sv.Dataset(folder / "rows.svm")
    yield "several formats", lambda: sv.Dataset([folder / "rows.svm", folder / "rows.csv"], features=4)
    yield "schema is for CSV and Parquet", lambda: sv.Dataset(folder / "rows.svm", features=4, schema=SCHEMA)
    yield "has no rows", lambda: sv.Dataset(folder / "empty.csv", label="y")
    yield "records=7", lambda: sv.Dataset(folder / "rows.parquet", label="y", records=7)
    yield "not the 1 records", lambda: list(sv.Dataset(folder / "two.csv", label="y", records=1).pieces())
    yield "not the 7 records", lambda: list(sv.Dataset(folder / "rows.csv.copy.csv", label="y", records=7).pieces())
    yield "names 2 files for 1", lambda: sv.Dataset(folder / "X.npy", label="*.py")


def test_errors_name_the_file_and_what_to_do(tmp_path: Path) -> None:
    count = 0
    for match, made in _cases(tmp_path):
        (tmp_path / "rows.csv.copy.csv").write_text("a,y\n1,2\n")
        with pytest.raises(InputError, match="no file is of" if match.startswith("names 2") else match):
            made()
        count += 1
    assert count == 18
    assert len(list(sv.Dataset(tmp_path / "two.csv", label="y", records=2).pieces())) == 1


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    X, y = numbers(20)
    path = write_csv(tmp_path, X, y)
    data = sv.Dataset(path, label="y")
    path.write_text(csv_text(X[:5], y[:5]))
    with pytest.raises(InputError, match="20 records"):
        list(data.pieces())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_AS is not enforced elsewhere")
def test_a_sound_file_that_cannot_be_mapped_is_not_called_damaged(tmp_path: Path) -> None:
    import resource

    np.lib.format.open_memmap(tmp_path / "X.npy", "w+", np.float32, (3_000_000, 40))
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = (taken + (200 << 20)) // 1024
    resource.setrlimit(resource.RLIMIT_AS, (1024 * limit, before[1]))
    try:
        with pytest.raises(
            InputError, match=rf"0\.48 GB cannot be mapped.*ulimit -v {limit}\); raise it, or limit data"
        ):
            sources.mapped(tmp_path / "X.npy", 2)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert sources.mapped(tmp_path / "X.npy", 2).shape == (3_000_000, 40)
