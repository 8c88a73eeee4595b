"""Every format, read whole and piece by piece: the rows, labels, names and errors are the same."""

from __future__ import annotations

import bz2
import gzip
import lzma
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file

import sottovoce as sv
from sottovoce.app.job_file import SourceTable
from sottovoce.app.sources import source_shape
from sottovoce.data import dataset
from sottovoce.data import resources as room
from sottovoce.data.cells import class_places, read_numbers
from sottovoce.data.files import FORMATS, format_of, list_files, read_columns, read_table
from sottovoce.data.files import format as formats
from sottovoce.data.files.format import Format
from sottovoce.data.files.libsvm import Libsvm
from sottovoce.data.files.npy import map_array
from sottovoce.errors import InputError

COMPRESSORS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
MIXED = "age,city,ill\n41,Bern,yes\n,Basel,no\n?,NA,no\n33.5, Chur ,yes\n"
NAMES = ("a", "b", "c", "d")
SCHEMA = sv.Schema(
    {"a": {"range": (-2, 2)}, "diet": {"levels": ["fish", "meat"], "other": True}, "y": {"levels": [0, 1]}},
    label="y",
    identifiers=["id"],
)
Read = Callable[..., tuple[Any, Any, tuple[str, ...]]]


@pytest.fixture(autouse=True)
def _short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that rows lie in several pieces, and files in several parts."""
    monkeypatch.setattr(dataset, "ENTRIES", 4 * 70)
    monkeypatch.setattr(Format, "most_cells", 5 * 30)
    monkeypatch.setattr(formats, "BYTES", 1 << 10)
    monkeypatch.setattr(formats, "PART", 1 << 12)


def whole(path: Any, **asked: Any) -> tuple[Any, Any, tuple[str, ...]]:
    table = read_table(path, **asked)
    return table.X, table.y, table.feature_names


def pieces(path: Any, **asked: Any) -> tuple[Any, Any, tuple[str, ...]]:
    data = sv.Dataset(path, **asked)
    rows, labels = zip(*data.pieces(), strict=True)
    known = [label for label in labels if label is not None]
    assert len(known) == len(rows) * data.labelled
    X = sp.vstack(rows, format="csr") if sp.issparse(rows[0]) else np.concatenate(rows)
    assert X.shape == data.shape
    return X, np.concatenate(known) if data.labelled else None, data.feature_names


@pytest.fixture(params=[whole, pieces], ids=["whole", "pieces"])
def read(request: pytest.FixtureRequest) -> Read:
    return request.param  # type: ignore[no-any-return]


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# The same records in every format, in parts of files and in mixtures.


def numbers(records: int = 300, seed: int = 1) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((records, 4)).round(3)
    X[5, 2] = np.nan
    return X, (X[:, 0] + rng.standard_normal(records) > 0).astype(float)


def csv_text(X: Any, y: Any, order: tuple[int, ...] = (0, 1, 2, 3, 4)) -> str:
    names = [*NAMES, "y"]
    columns = [*(list(map(repr, column.tolist())) for column in X.T), list(map(str, y.astype(int).tolist()))]
    rows = zip(*(columns[place] for place in order), strict=True)
    return "\n".join([",".join(names[place] for place in order), *map(",".join, rows)]) + "\n"


def frame(X: Any, y: Any) -> Any:
    return pa.table({**dict(zip(NAMES, X.T, strict=True)), "y": y})


def write_parquet(folder: Path, X: Any, y: Any) -> Path:
    pq.write_table(frame(X, y), folder / "rows.parquet", row_group_size=64)
    return folder / "rows.parquet"


def write_csv(folder: Path, X: Any, y: Any) -> Path:
    return write(folder, "rows.csv", csv_text(X, y))


def write_gzip(folder: Path, X: Any, y: Any) -> Path:
    return write(folder, "rows.csv.gz", gzip.compress(csv_text(X, y).encode()))


def write_xz(folder: Path, X: Any, y: Any) -> Path:
    return write(folder, "rows.csv.xz", lzma.compress(csv_text(X, y, (2, 4, 0, 3, 1)).encode()))


def write_mixture(folder: Path, X: Any, y: Any) -> Path:
    write(folder, "1.csv", csv_text(X[:100], y[:100]))
    pq.write_table(frame(X[100:170], y[100:170]), folder / "2.parquet")
    write(folder, "3.csv.gz", gzip.compress(csv_text(X[170:], y[170:], (4, 3, 2, 1, 0)).encode()))
    return folder / "[123].*"


def write_folder(folder: Path, X: Any, y: Any) -> Path:
    (folder / "many").mkdir(exist_ok=True)
    for place in range(0, 300, 60):
        pq.write_table(frame(X[place : place + 60], y[place : place + 60]), folder / "many" / f"{place:03}.pq")
    write(folder, "many/_SUCCESS", "")
    return folder / "many"


TABLES: dict[str, Callable[[Path, Any, Any], Path]] = {
    "parquet": write_parquet,
    "csv": write_csv,
    "csv.gz": write_gzip,
    "csv.xz": write_xz,
    "mixture": write_mixture,
    "folder": write_folder,
}


@pytest.mark.parametrize("form", TABLES)
def test_every_table_and_mixture_has_the_rows_in_order(form: str, read: Read, tmp_path: Path) -> None:
    X, y = numbers()
    path = TABLES[form](tmp_path, X, y)
    if read is whole and form in ("mixture", "folder"):
        parts = [read(each, label="y", features=4) for each in list_files(path)]
        order = parts[0][2]
        rows = np.concatenate([part[:, [names.index(name) for name in order]] for part, _, names in parts])
        labels, names = np.concatenate([part for _, part, _ in parts]), order
    else:
        rows, labels, names = read(path, label="y", features=4)
        assert rows.flags.c_contiguous
    np.testing.assert_array_equal(rows[:, [names.index(name) for name in NAMES]], X)
    np.testing.assert_array_equal(labels, y)
    assert rows.dtype == np.float64


@pytest.mark.parametrize("form", TABLES)
def test_the_parts_of_tables_have_the_records_that_were_counted(form: str, tmp_path: Path) -> None:
    X, y = numbers()
    path = TABLES[form](tmp_path, X, y)
    data = pickle.loads(pickle.dumps(sv.Dataset(path, label="y", features=4)))
    assert data.shape == (300, 4)
    rows = [piece for piece, _ in data.pieces()]
    assert len(rows) > 1
    parts = [np.concatenate([rows for rows, _ in source.pieces(7)]) for source in data.sources]
    assert [len(part) for part in parts] == [source.records for source in data.sources]
    np.testing.assert_array_equal(np.concatenate(parts), np.concatenate(rows))
    if form in ("csv", "parquet"):
        assert len(data.sources) > 1
    declared = sv.Dataset(path, label="y", records=300)
    np.testing.assert_array_equal(np.concatenate([rows for rows, _ in declared.pieces()]), np.concatenate(rows))


@pytest.mark.parametrize("form", TABLES)
def test_a_fit_on_files_is_one_on_arrays(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = numbers()
    data = sv.Dataset(TABLES[form](tmp_path, X, y), label="y", folder=tmp_path)
    model = sv.PrivateLogisticRegression(delta=1e-4, row_norm=2.0, insecure_seed=2, solver="newton")
    arrays = X[:, [NAMES.index(name) for name in data.feature_names]]
    expected = model.fit(arrays, y).coef_.tobytes()
    assert model.fit(data).coef_.tobytes() == expected  # the classes are read
    monkeypatch.setattr(room, "SHARE", 1 << 60)
    assert model.fit(data).coef_.tobytes() == expected
    assert not list(tmp_path.glob("*.rows"))


def test_shapes_are_told_without_rows(tmp_path: Path) -> None:
    X, y = numbers()
    np.save(tmp_path / "rows.npy", X)
    dump_svmlight_file(np.nan_to_num(X), y, str(tmp_path / "rows.svm"), zero_based=False)
    for path in (write_csv(tmp_path, X, y), write_gzip(tmp_path, X, y), write_parquet(tmp_path, X, y)):
        shape = format_of(path).shape(path)
        assert (shape.names, shape.columns, shape.records) == ((*NAMES, "y"), 5, 300)
    for name, columns in (("rows.npy", 4), ("rows.svm", 0)):
        shape = format_of(tmp_path / name).shape(tmp_path / name)
        assert (shape.names, shape.columns, shape.records) == ((), columns, 300)


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


@pytest.mark.parametrize("order", ["C", "F"])
def test_files_of_numpy_are_read_by_slices(order: Any, read: Read, tmp_path: Path) -> None:
    X, y = numbers()
    for place, part in enumerate((slice(0, 200), slice(200, 300))):
        np.save(tmp_path / f"X{place}.npy", np.asarray(X[part], order=order))
        np.save(tmp_path / f"y{place}.npy", y[part].astype(int))
    if read is whole:
        parts = [read(tmp_path / f"X{place}.npy", label=str(tmp_path / f"y{place}.npy"), features=4) for place in "01"]
        rows, labels = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
    else:
        rows, labels, _ = read(tmp_path / "X*.npy", label=str(tmp_path / "y*.npy"))
        data = sv.Dataset(tmp_path / "X*.npy", label=str(tmp_path / "y*.npy"))
        assert len(list(data.pieces())) > 2
        assert sorted(data.distinct_labels(5)) == [0, 1]
    np.testing.assert_array_equal(rows, X)
    np.testing.assert_array_equal(labels, y)


# One file, small enough to be written here.


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_csv_plain_and_compressed(tmp_path: Path, suffix: str, read: Read) -> None:
    content = b"a,b,y\n1,2.5,0\n-3e2,NA,1\n"
    X, y, names = read(write(tmp_path, "t.csv" + suffix, COMPRESSORS[suffix](content)), label="y")
    np.testing.assert_array_equal(X, [[1, 2.5], [-300, np.nan]])
    np.testing.assert_array_equal(y, [0.0, 1.0])
    assert names == ("a", "b")


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("kind", Libsvm.suffixes)
def test_libsvm_plain_and_compressed(tmp_path: Path, kind: str, suffix: str, read: Read) -> None:
    content = b"+1 1:0.5 3:2 \n-1 2:1 # a comment\n"
    X, y, names = read(write(tmp_path, "t" + kind + suffix, COMPRESSORS[suffix](content)), features=4)
    assert isinstance(X, sp.csr_matrix)
    np.testing.assert_array_equal(X.toarray(), [[0.5, 0, 2, 0], [0, 1, 0, 0]])
    np.testing.assert_array_equal(y, [1.0, -1.0])
    assert names == ("1", "2", "3", "4")


@pytest.mark.parametrize("name", ["rows.svm", "rows.svm.gz"])
def test_libsvm_agrees_with_scikit_learn(tmp_path: Path, name: str, read: Read) -> None:
    rng = np.random.default_rng(1)
    X = sp.random(300, 12, density=0.3, random_state=1, format="csr")
    y = rng.choice([-1.0, 1.0], size=300)
    dump_svmlight_file(X, y, str(tmp_path / "rows.svm"), zero_based=False, comment="made")
    write(tmp_path, "rows.svm.gz", gzip.compress((tmp_path / "rows.svm").read_bytes()))
    found, labels, _ = read(tmp_path / name, features=12)
    np.testing.assert_allclose(found.toarray(), X.toarray(), rtol=1e-12)
    np.testing.assert_array_equal(labels, y)
    data = sv.Dataset(tmp_path / name, features=12)
    assert len(list(data.pieces())) > 1
    assert sum(source.entries or 0 for source in data.sources) == X.nnz
    if name == "rows.svm":
        assert len(data.sources) > 1
        assert sum(source.records for source in data.sources) == 300


@pytest.mark.parametrize("label", ["y", 1, -2])
def test_label_by_name_or_position(tmp_path: Path, label: str | int, read: Read) -> None:
    X, y, _ = read(write(tmp_path, "t.csv", "a,y,b\n1,7,2\n"), label=label)
    np.testing.assert_array_equal(X, [[1, 2]])
    np.testing.assert_array_equal(y, [7])


def test_without_a_label_every_column_is_a_feature(tmp_path: Path, read: Read) -> None:
    X, y, _ = read(write(tmp_path, "t.csv", "a,b\n1,2\n"))
    assert y is None
    assert X.shape == (1, 2)


def test_missing_cells_become_nan_in_any_spelling(tmp_path: Path, read: Read) -> None:
    X, _, _ = read(write(tmp_path, "t.csv", "a,b,c,d,e\n,NA,nan,?, NaN \n1,2,3,4,5\n"))
    np.testing.assert_array_equal(X, [[np.nan] * 5, [1, 2, 3, 4, 5]])


def test_text_labels_stay_text_and_features_do_not(tmp_path: Path, read: Read) -> None:
    path = write(tmp_path, "t.csv", MIXED)
    _, y, _ = read(write(tmp_path, "u.csv", "a,y\n1,up\n2, down\n"), label="y")
    assert list(y) == ["up", "down"]
    assert y.dtype == object  # of a text type every label would take the room of the longest
    assert np.isnan(read(path, label="ill")[0]).all()


def test_columns_are_numbers_or_text(tmp_path: Path) -> None:
    columns = read_columns(write(tmp_path, "t.csv", MIXED))
    assert list(columns) == ["age", "city", "ill"]
    np.testing.assert_array_equal(columns["age"], [41, np.nan, np.nan, 33.5])
    assert columns["city"].dtype == object
    assert list(columns["city"]) == ["Bern", "Basel", "NA", "Chur"]


def test_columns_go_through_a_scikit_learn_pipeline(tmp_path: Path) -> None:
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import OneHotEncoder

    columns = read_columns(write(tmp_path, "t.csv", MIXED))
    encoder = OneHotEncoder(categories=[["Basel", "Bern", "Chur"]], handle_unknown="ignore", sparse_output=False)
    X = ColumnTransformer([("city", encoder, ["city"])]).fit_transform(pd.DataFrame(columns))
    np.testing.assert_array_equal(X, [[0, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 1]])


def test_quotes_blank_lines_a_byte_order_mark_and_windows_line_ends(tmp_path: Path, read: Read) -> None:
    content = b'\xef\xbb\xbf"the, first",b\r\n"1",2\r\n\r\n3,4'
    X, _, names = read(write(tmp_path, "t.csv", content))
    assert names == ("the, first", "b")
    np.testing.assert_array_equal(X, [[1, 2], [np.nan, np.nan], [3, 4]])


@pytest.mark.parametrize(
    ("content", "records"),
    [
        ("x\n1\n\n3\n", 3),  # an empty cell is an empty line
        ("x\n1\n2\n\n", 3),
        ("x,y\n1,2\n\n3,4\n\n\n", 3),
        ('x,y\n1,"2\r5"\n3,4\n', 2),
        ("x,y\n1,2\n\x1c\n3,4\n", 3),
        ("y\n1\n\n2\n\n", 4),
        ("\ufeff\n\ny\r\n1\r\n\r\n2", 3),
        ("y\n1\n", 1),
        ("x,y\n1,2\n" + "\n" * 5000 + "3,4\n" + " \n" * 5000, 5002),
    ],
)
def test_no_record_decides_how_many_there_are(tmp_path: Path, content: str, records: int, read: Read) -> None:
    path = write(tmp_path, "t.csv", content.encode())
    assert len(read(path)[0]) == records
    np.testing.assert_array_equal(read(path)[0], whole(path)[0])
    assert source_shape(SourceTable(file="t.csv"), lambda name: tmp_path / name, labelled=False)[0] == records


def test_empty_lines_at_the_end_are_no_declared_records(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", "x,y\n1,2\n3,4\n\n\n")
    assert len(pieces(path, records=2)[0]) == 2
    for count in (1, 3, 4):
        with pytest.raises(InputError, match=f"not the {count} records"):
            pieces(path, records=count)


def test_one_long_label_takes_its_own_room_alone(tmp_path: Path, read: Read) -> None:
    content = ["1,yes"] * 2000 + ["1," + "y" * 100_000]
    _, y, _ = read(write(tmp_path, "t.csv", "\n".join(["a,y", *content]).encode()), label="y")
    assert y.nbytes < 2**20


def test_pieces_join_and_a_late_line_is_told_by_its_number(
    tmp_path: Path, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(50, 3)), columns=list("abc")).assign(y=rng.integers(2, size=50))
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    X, y, _ = read(path, label="y")
    np.testing.assert_array_equal(np.column_stack([X, y]), frame.to_numpy())
    np.testing.assert_array_equal(read_columns(path)["b"], frame["b"])
    with path.open("a") as file:
        file.write("1,2,secret,0\n")
    np.testing.assert_array_equal(read(path, label="y")[0], np.vstack([X, np.full(3, np.nan)]))
    assert "1 of 51 records cannot be read" in caplog.text
    assert "Lines: 52" in caplog.text
    assert "secret" not in caplog.text


def test_parquet(tmp_path: Path, read: Read) -> None:
    path = tmp_path / "t.parquet"
    table = pa.table(
        {
            "whole": pa.array([1, None, 3], pa.int32()),
            "flag": pa.array([True, False, None]),
            "real": pa.array([0.5, 1.5, None], pa.float32()),
            "coded": pa.array([7, 8, 7]).dictionary_encode(),
            "y": pa.array(["a", "b", "a"]).dictionary_encode(),
        }
    )
    pq.write_table(table, path)
    X, y, names = read(path, label="y", features=4)
    np.testing.assert_array_equal(X, [[1, 1, 0.5, 7], [np.nan, 0, 1.5, 8], [3, np.nan, np.nan, 7]])
    assert list(y) == ["a", "b", "a"]
    assert names == ("whole", "flag", "real", "coded")
    assert read_columns(path)["y"].dtype == object
    with pytest.raises(InputError, match="column 'y' is not numeric"):
        read(path, label="flag")


def test_columns_of_parquet_with_gaps_in_some_row_groups_are_joined(tmp_path: Path) -> None:
    columns = {"n": [1, 2, None, 4] * 40, "t": ["u", None, "v", "u"] * 40}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=2)
    found = read_columns(tmp_path / "t.parquet")
    np.testing.assert_array_equal(found["n"], np.array([1, 2, np.nan, 4] * 40))
    assert found["t"].tolist() == ["u", "", "v", "u"] * 40


def test_parquet_that_cannot_be_used(tmp_path: Path, read: Read) -> None:
    with pytest.raises(InputError, match="damaged, or not a Parquet file"):
        read(write(tmp_path, "a.parquet", b"PAR1 but no more"))
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "b.pq")
    pq.write_table(pa.table({"a": pa.array([], pa.float64())}), tmp_path / "c.pq")
    with pytest.raises(InputError, match="no rows"):
        read(tmp_path / "c.pq")
    pq.write_table(pa.table({"a": pa.array([[1], [2]])}), tmp_path / "d.pq")
    with pytest.raises(InputError, match=r"column 'a' has the type list"):
        read(tmp_path / "d.pq")


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r'pip install "sottovoce\[parquet\]"'):
        read(tmp_path / "t.parquet")


def test_a_text_of_parquet_that_is_no_utf8_spoils_its_own_label(tmp_path: Path, read: Read) -> None:
    raw = pa.array([b"yes", b"n\xff", b"no"], pa.binary())
    labels = pa.StringArray.from_buffers(3, raw.buffers()[1], raw.buffers()[2])
    pq.write_table(pa.table({"a": pa.array([1.0, 2.0, 3.0]), "y": labels}), tmp_path / "t.pq")
    assert list(read(tmp_path / "t.pq", label="y")[1]) == ["yes", "n\ufffd", "no"]


# Files that are refused.


@pytest.mark.parametrize(
    ("name", "content", "asked", "message"),
    [
        ("t.csv", "", {}, "is empty"),
        ("t.csv", "\n\n", {}, "is empty"),
        ("t.csv", "a,b\n", {}, "has no rows"),
        ("t.csv", "a,b\n\n", {}, "has no rows"),
        ("t.csv", "1,2\n3,4\n", {}, "has no header line"),
        ("t.csv", "a,\n3,4\n", {}, "has no header line"),
        ("t.csv", "a,b,a\n1,2,3\n", {}, "columns 1 and 3 have the same name"),
        ("t.csv", "a,b\n1,2\n", {"label": "c"}, "label='c' is no column of .*Its columns are: a, b"),
        ("t.csv", "a,b\n1,2\n", {"label": 2}, "label=2 is no column"),
        ("t.csv", "a,b\n1,2\n", {"left_out": "c"}, "id='c' is no column of .*Its columns are: a, b"),
        ("t.csv", "y\n1\n", {"label": "y"}, "no column but the label"),
        ("t.csv", "a,b\n1,2\n", {"features": 3}, "features=3 but .* has 2 feature columns"),
        ("t.csv", b"a,b\xff\n1,2\n", {}, "not UTF-8"),
        ("t.svm", "", {"features": 1}, "no rows"),
        ("t.svm", "1 1:1\n", {"label": "y", "features": 1}, "Leave label out"),
        ("t.svm", "1 1:1\n", {}, "needs features"),
        ("t.svm", "1 1:1\n", {"left_out": "c", "features": 1}, "id='c' is for CSV and Parquet files"),
        ("t.npy", b"no array", {}, "is damaged, or not a file of np.save"),
        ("t.tab", "a\tb\n1\t2\n", {}, r"unknown suffix. Known are .csv, .tsv, .parquet, .*\.svm.*\.npy.*\.csv.*\.gz"),
        ("t", "a,b\n1,2\n", {}, "unknown suffix"),
        ("t.parquet.gz", b"", {}, "unknown suffix"),
    ],
)
def test_bad_files(
    tmp_path: Path, read: Read, name: str, content: str | bytes, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read(write(tmp_path, name, content), **asked)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.xz", "t.svm", "t.libsvm.gz", "t.pq", "t.npy"])
def test_file_not_found(tmp_path: Path, name: str, read: Read) -> None:
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / name, features=2)


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "t.csv").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        read_table(tmp_path / "t.csv")


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
@pytest.mark.parametrize("kind", [".csv", ".svm"])
def test_truncated_and_damaged_compressed_files(tmp_path: Path, suffix: str, kind: str, read: Read) -> None:
    rng = np.random.default_rng(0)
    content = ["a,b"] if kind == ".csv" else []
    form = "{},{}" if kind == ".csv" else "{} 1:{}"
    content += [form.format(*row) for row in rng.normal(size=(5000, 2))]
    packed = COMPRESSORS[suffix]("\n".join(content).encode())
    features = 2 if kind == ".csv" else 1
    with pytest.raises(InputError, match="cut short"):
        read(write(tmp_path, "t" + kind + suffix, packed[: len(packed) // 2]), features=features)
    with pytest.raises(InputError, match=r"is damaged|cannot be read"):
        read(write(tmp_path, "t" + kind + suffix, b"this was never compressed"), features=features)


def test_columns_of_a_libsvm_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"for \.csv, \.tsv, \.parquet, \.pq files, whose columns have names"):
        read_columns(tmp_path / "t.svm")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "SECRET,41\nSECRET,42\n"),  # no header: the first record must not be quoted as names
        ("t.csv", "SECRET,SECRET\n1,2\n"),
        ("t.csv.gz", b"SECRET"),
        ("t.svm.gz", b"SECRET"),
        ("t.parquet", b"SECRET"),
        ("t.npy", b"SECRET"),
    ],
)
def test_errors_never_quote_a_cell(tmp_path: Path, name: str, content: str | bytes, read: Read) -> None:
    with pytest.raises(InputError) as caught:
        read(write(tmp_path, name, content), features=2)
    assert "SECRET" not in str(caught.value)
    # What a traceback prints of earlier errors counts too.
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def _cases(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    X, y = numbers(20)
    write_csv(folder, X, y)
    write_parquet(folder, X, y)
    np.save(folder / "X.npy", X)
    write(folder, "other.csv", "a,b,c,e,y\n1,2,3,4,5\n")
    write(folder, "text.parquet", b"no")
    pq.write_table(pa.table({"a": ["x"], "y": [1]}), folder / "words.parquet")
    write(folder, "rows.svm", "1 1:2\n")
    write(folder, "empty.csv", "a,y\n")
    write(folder, "two.csv", "a,y\n1,2\n3,4\n\n")
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
    yield "no file is of", lambda: sv.Dataset(folder / "X.npy", label="*.py")
    yield "names 2 files for 1", lambda: sv.Dataset(folder / "X.npy", label=str(folder / "[rt]*.parquet"))
    yield "label=0: labels of .npy files are in another", lambda: sv.Dataset(folder / "X.npy", label=0)


def test_errors_name_the_file_and_what_to_do(tmp_path: Path) -> None:
    count = 0
    for match, made in _cases(tmp_path):
        write(tmp_path, "rows.csv.copy.csv", "a,y\n1,2\n")
        with pytest.raises(InputError, match=match):
            made()
        count += 1
    assert count == 20
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
            map_array(tmp_path / "X.npy", 2)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert map_array(tmp_path / "X.npy", 2).shape == (3_000_000, 40)


# Records that cannot be read decide nothing but their own row.

ODD_LINES = {
    "a cell that is no number": b"1,SECRET,0",
    "too few cells": b"1,2",
    "too many cells": b"1,2,0,4",
    "a quote that is never closed": b'1,"2,0',
    "a quote in the middle": b'1,2"SECRET"",0',
    "bytes that are no UTF-8": b"1,\xff\xfe,0",
    "a cell beyond all limits": b'1,"' + b"4" * 200_000 + b'",0',
    "a cell of digits beyond all limits": b"1," + b"4" * 200_000 + b"x,0",
    "a zero byte": b"1,2\x00,0",
}


@pytest.mark.parametrize("odd", ODD_LINES.values(), ids=ODD_LINES)
def test_one_line_of_csv_decides_nothing_but_its_own_row(
    tmp_path: Path, odd: bytes, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    content = [b"%d,%d.5,%d" % (i, i, i % 2) for i in range(9)]
    plain = read(write(tmp_path, "t.csv", b"a,b,y\n" + b"\n".join(content)), label="y")
    assert caplog.text == ""
    path = write(tmp_path, "t.csv", b"\n".join([b"a,b,y", *content[:4], odd, *content[5:]]))
    X, y, _ = read(path, label="y")
    others = np.arange(9) != 4
    np.testing.assert_array_equal(X[others], plain[0][others])
    np.testing.assert_array_equal(read_numbers(y)[others], plain[1][others])
    assert np.isnan(X[4]).all()
    assert "1 of 9 records cannot be read" in caplog.text
    assert "Lines: 6" in caplog.text
    assert "SECRET" not in caplog.text
    columns = read_columns(path)
    assert {len(column) for column in columns.values()} == {9}


@pytest.mark.parametrize("label", ["SECRET", "", "?", "=1+1"])
def test_an_odd_label_changes_no_other(tmp_path: Path, label: str, read: Read) -> None:
    X, y, _ = read(write(tmp_path, "t.csv", f"a,y\n1,0\n2,{label}\n3,1\n"), label="y")
    np.testing.assert_array_equal(X, [[1], [2], [3]])
    np.testing.assert_array_equal(read_numbers(y), [0, np.nan, 1])


@pytest.mark.parametrize(
    "odd",
    ["SECRET 1:1", "1 1:SECRET", "1 SECRET:1", "1 0:1", "1 2:1 2:1", "1 4:1", "1 9999999999999999999999:2", "1,2"],
)
def test_one_line_of_libsvm_decides_nothing_but_its_own_row(
    tmp_path: Path, odd: str, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    content = f"1 1:0.5 3:2\n{odd}\n# a comment\n0 qid:7 2:-1\n"
    X, y, _ = read(write(tmp_path, "t.svm", content), features=3)
    assert X.shape == (3, 3)
    np.testing.assert_array_equal(X.toarray()[[0, 2]], [[0.5, 0, 2], [0, -1, 0]])
    np.testing.assert_array_equal(y, [1, np.nan, 0])
    assert np.isnan(X.toarray()[1]).any()
    assert "Lines: 2" in caplog.text
    assert "SECRET" not in caplog.text


def test_a_query_number_in_the_wrong_place_spoils_its_line_alone(tmp_path: Path, read: Read) -> None:
    path = write(tmp_path, "t.svm", "1 1:2\n1 1:2 qid:3\n1 qid:3 1:4\n")
    np.testing.assert_array_equal(read(path, features=1)[0].toarray(), [[2.0], [np.nan], [4.0]])


@pytest.mark.parametrize("other", ["1 1:3", "no number"])
def test_what_is_taken_for_a_query_number_does_not_depend_on_other_lines(
    other: str, tmp_path: Path, read: Read
) -> None:
    path = write(tmp_path, "t.svm", f"1 qidx:3 1:2\n1 qid3 1:2\n{other}\n")
    found = read(path, features=1)[0].toarray()[0]
    path = write(tmp_path, "t.svm", f"1 qidx:3 1:2\n{other}\n")
    np.testing.assert_array_equal(read(path, features=1)[0].toarray()[0], found)
    np.testing.assert_array_equal(found, [2.0])


@pytest.mark.parametrize("last", ["EU", "NA", "1"])
def test_one_label_does_not_decide_whether_others_are_missing(last: str, tmp_path: Path, read: Read) -> None:
    """NA may be declared as a class, whatever the other labels are; so may a text among numbers."""
    y = read(write(tmp_path, "t.csv", "a,y\n1,NA\n2,?\n3,NA \n4," + last + "\n"), label="y")[1]
    np.testing.assert_array_equal(class_places(y, ["NA", "?"])[:3], [0, 1, 0])


def test_a_file_of_which_nothing_can_be_read_is_told_of_schemas(
    tmp_path: Path, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    hint = "; a column of texts needs a schema: `sottovoce schema FILE` drafts one"
    told = []
    for name, text in (("all.csv", "a,b\n1,x\n2,y\n"), ("one.csv", "a,b\n1,x\n2,3\n"), ("all.svm", "1 x\n0 y\n")):
        caplog.clear()
        read(write(tmp_path, name, text), features=2)
        told.append(caplog.text.rstrip().endswith(hint))
    assert told == [True, False, False]


SPOILT = 'a,y\n1,0\nx,1\n2,1,3\n\n"4",0\n5,?\n6,yes\n7,"\n8,\n9,1\n\n \n'


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_lines_that_cannot_be_read_are_null_rows_wherever_pieces_end(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dataset, "ENTRIES", rows)
    table = read_table(write(tmp_path, "rows.csv", SPOILT), label="y")
    (told,) = [record.getMessage() for record in caplog.records]
    caplog.clear()
    data = sv.Dataset(tmp_path / "rows.csv", label="y")
    found = list(data.pieces())
    assert [record.getMessage() for record in caplog.records] == [told]
    assert len(list(data.pieces())) == len(found)
    assert len(caplog.records) == 1  # the holder is told once
    np.testing.assert_array_equal(np.concatenate([rows for rows, _ in found]), table.X)
    assert table.y is not None
    classes = (0, 1, "yes", "?")
    np.testing.assert_array_equal(
        np.concatenate([class_places(labels, classes) for _, labels in found]), class_places(table.y, classes)
    )
    assert sorted(data.distinct_labels(9)) == sorted(set(table.y.tolist()))


def test_labels_that_are_numbers_or_missing_stay_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "ENTRIES", 1)
    path = write(tmp_path, "rows.csv", "a,y\n1,0\n2,?\n3,1.0\n4,\n")
    assert sorted(sv.Dataset(path, label="y").distinct_labels(5)) == [0.0, 1.0]


# Columns by a schema, and real files.


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_schema_encodes_each_piece_alike(kind: str, tmp_path: Path, read: Read) -> None:
    rng = np.random.default_rng(2)
    cells = {
        "id": [f"p{place}" for place in range(200)],
        "a": rng.standard_normal(200).round(2).tolist(),
        "diet": rng.choice(["fish", "meat", "?", "air"], 200).tolist(),
        "y": rng.choice([0, 1], 200).tolist(),
    }
    path = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table(cells), path)
    else:
        content = [",".join(map(str, row)) for row in zip(*cells.values(), strict=True)]
        content[3] = "p3,1"
        path.write_text("\n".join([",".join(cells), *content, ""]))
    data = sv.Dataset(path, schema=SCHEMA)
    assert len(list(data.pieces())) > 1
    X, y, names = read(path, schema=SCHEMA)
    np.testing.assert_array_equal(X, SCHEMA.encode(path, others=False))
    assert y.tolist() == np.asarray(SCHEMA.labels(path)).tolist()
    assert names == SCHEMA.feature_names
    assert set(data.distinct_labels(5)) - {None} == {0, 1}
    other = sv.Schema({key: value.entry() for key, value in SCHEMA.columns.items()}, label="y")
    assert read(path, schema=other, left_out="id")[0].shape == data.shape
    with pytest.raises(InputError, match=r"rows\..*'id'"):
        read(path, schema=other)


def present(path: Path) -> Path:
    if not path.is_file():
        pytest.skip(f"there is no {path}")
    return path


def test_electricity_reads_like_pandas(data_folder: Path, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # pieces of their own size
    path = present(data_folder / "electricity" / "data.csv.xz")
    X, y, _ = read(path, label="class")
    frame = pd.read_csv(path)
    assert X.shape == (45312, 8)
    np.testing.assert_array_equal(X, frame.drop(columns="class").to_numpy())
    np.testing.assert_array_equal(y, frame["class"])


def test_adult_columns_read_like_pandas(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    path = present(data_folder / "adult" / "train.csv.xz")
    columns = read_columns(path)
    frame = pd.read_csv(path)
    assert list(columns) == list(frame.columns)
    assert sum(columns[name].dtype == object for name in columns) == 9
    assert sum(int((columns[name] == "?").sum()) for name in columns) == 4262
    for name, column in columns.items():
        np.testing.assert_array_equal(column, frame[name])


def test_no_suffix_is_of_two_formats() -> None:
    kinds = set(FORMATS.values())
    assert sum(len(kind.suffixes) for kind in kinds) == len(FORMATS)
    for suffix, kind in FORMATS.items():
        assert format_of(Path(f"people{suffix.upper()}")) is kind
