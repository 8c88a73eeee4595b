from __future__ import annotations

import bz2
import gzip
import lzma
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse
from sklearn.datasets import dump_svmlight_file

from sottovoce.app.sources import file_shape
from sottovoce.data import readers
from sottovoce.data.labels import equal
from sottovoce.data.labels import numbers as label_numbers
from sottovoce.data.readers import read_columns, read_table
from sottovoce.errors import InputError

COMPRESSORS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
MIXED = "age,city,ill\n41,Bern,yes\n,Basel,no\n?,NA,no\n33.5, Chur ,yes\n"


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_csv_plain_and_compressed(tmp_path: Path, suffix: str) -> None:
    content = b"a,b,y\n1,2.5,0\n-3e2,NA,1\n"
    table = read_table(write(tmp_path, "t.csv" + suffix, COMPRESSORS[suffix](content)), label="y")
    np.testing.assert_array_equal(table.X, [[1, 2.5], [-300, np.nan]])
    np.testing.assert_array_equal(table.y, [0.0, 1.0])
    assert table.feature_names == ("a", "b")
    assert table.X.dtype == np.float64
    assert table.X.flags.c_contiguous


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_libsvm_plain_and_compressed(tmp_path: Path, suffix: str) -> None:
    content = b"+1 1:0.5 3:2 \n-1 2:1 # a comment\n"
    for kind in readers.LIBSVM:
        table = read_table(write(tmp_path, "t" + kind + suffix, COMPRESSORS[suffix](content)), features=4)
        assert isinstance(table.X, sparse.csr_matrix)
        np.testing.assert_array_equal(table.X.toarray(), [[0.5, 0, 2, 0], [0, 1, 0, 0]])
        np.testing.assert_array_equal(table.y, [1.0, -1.0])
        assert table.feature_names == ("1", "2", "3", "4")


@pytest.mark.parametrize("label", ["y", 1, -2])
def test_label_by_name_or_position(tmp_path: Path, label: str | int) -> None:
    table = read_table(write(tmp_path, "t.csv", "a,y,b\n1,7,2\n"), label=label)
    np.testing.assert_array_equal(table.X, [[1, 2]])
    np.testing.assert_array_equal(table.y, [7])


def test_without_a_label_every_column_is_a_feature(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "t.csv", "a,b\n1,2\n"))
    assert table.y is None
    assert table.X.shape == (1, 2)


def test_missing_cells_become_nan_in_any_spelling(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "t.csv", "a,b,c,d,e\n,NA,nan,?, NaN \n1,2,3,4,5\n"))
    np.testing.assert_array_equal(table.X, [[np.nan] * 5, [1, 2, 3, 4, 5]])


def test_text_labels_stay_text_and_features_do_not(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", MIXED)
    table = read_table(write(tmp_path, "u.csv", "a,y\n1,up\n2, down\n"), label="y")
    assert list(table.y) == ["up", "down"]
    assert table.y is not None
    assert table.y.dtype == object  # of a text type every label would take the room of the longest
    assert np.isnan(read_table(path, label="ill").X).all()


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
    frame = pd.DataFrame(columns)
    encoder = OneHotEncoder(categories=[["Basel", "Bern", "Chur"]], handle_unknown="ignore", sparse_output=False)
    X = ColumnTransformer([("city", encoder, ["city"])]).fit_transform(frame)
    np.testing.assert_array_equal(X, [[0, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 1]])


def test_quotes_blank_lines_a_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbf"the, first",b\r\n"1",2\r\n\r\n3,4'
    table = read_table(write(tmp_path, "t.csv", content))
    assert table.feature_names == ("the, first", "b")
    np.testing.assert_array_equal(table.X, [[1, 2], [np.nan, np.nan], [3, 4]])


@pytest.mark.parametrize(
    ("content", "records"),
    [
        ("x\n1\n\n3\n", 3),  # an empty cell is an empty line
        ("x\n1\n2\n\n", 3),
        ("x,y\n1,2\n\n3,4\n\n\n", 3),
        ('x,y\n1,"2\r5"\n3,4\n', 2),
        ("x,y\n1,2\n\x1c\n3,4\n", 3),
    ],
)
def test_no_record_decides_how_many_there_are(tmp_path: Path, content: str, records: int) -> None:
    path = write(tmp_path, "t.csv", content.encode())
    assert len(read_table(path).X) == records
    assert file_shape(path, None, None, labelled=False)[0] == records


def test_one_long_label_takes_its_own_room_alone(tmp_path: Path) -> None:
    lines = ["1,yes"] * 2000 + ["1," + "y" * 100_000]
    table = read_table(write(tmp_path, "t.csv", "\n".join(["a,y", *lines]).encode()), label="y")
    assert table.y is not None
    assert table.y.nbytes < 2**20


def test_chunks_join_and_a_late_line_is_told_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(readers, "_ROWS_AT_ONCE", 7)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(50, 3)), columns=list("abc")).assign(y=rng.integers(2, size=50))
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    table = read_table(path, label="y")
    np.testing.assert_array_equal(np.column_stack([table.X, table.y]), frame.to_numpy())
    np.testing.assert_array_equal(read_columns(path)["b"], frame["b"])
    with path.open("a") as file:
        file.write("1,2,secret,0\n")
    again = read_table(path, label="y")
    np.testing.assert_array_equal(again.X, np.vstack([table.X, np.full(3, np.nan)]))
    assert "1 of 51 records cannot be read" in caplog.text
    assert "Lines: 52" in caplog.text
    assert "secret" not in caplog.text


def test_parquet(tmp_path: Path) -> None:
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
    read = read_table(path, label="y", features=4)
    np.testing.assert_array_equal(read.X, [[1, 1, 0.5, 7], [np.nan, 0, 1.5, 8], [3, np.nan, np.nan, 7]])
    assert list(read.y) == ["a", "b", "a"]
    assert read.feature_names == ("whole", "flag", "real", "coded")
    assert read_columns(path)["y"].dtype == object
    with pytest.raises(InputError, match="column 'y' is not numeric"):
        read_table(path, label="flag")


def test_parquet_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="damaged, or not a Parquet file"):
        read_table(write(tmp_path, "a.parquet", b"PAR1 but no more"))
    with pytest.raises(InputError, match="no such file"):
        read_table(tmp_path / "b.pq")
    pq.write_table(pa.table({"a": pa.array([], pa.float64())}), tmp_path / "c.pq")
    with pytest.raises(InputError, match="no rows"):
        read_table(tmp_path / "c.pq")
    pq.write_table(pa.table({"a": pa.array([[1], [2]])}), tmp_path / "d.pq")
    with pytest.raises(InputError, match=r"column 'a' has the type list"):
        read_table(tmp_path / "d.pq")


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r'pip install "sottovoce\[parquet\]"'):
        read_table(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    ("name", "content", "label", "message"),
    [
        ("t.csv", "", None, "is empty"),
        ("t.csv", "\n\n", None, "is empty"),
        ("t.csv", "a,b\n", None, "header line but no rows"),
        ("t.csv", "a,b\n\n", None, "header line but no rows"),
        ("t.csv", "1,2\n3,4\n", None, "has no header line"),
        ("t.csv", "a,\n3,4\n", None, "has no header line"),
        ("t.csv", "a,b,a\n1,2,3\n", None, "columns 1 and 3 have the same name"),
        ("t.csv", "a,b\n1,2\n", "c", "label='c' is no column of .*Its columns are: a, b"),
        ("t.csv", "a,b\n1,2\n", 2, "label=2 is no column"),
        ("t.csv", "y\n1\n", "y", "no column but the label"),
        ("t.csv", b"a,b\xff\n1,2\n", None, "not UTF-8"),
        ("t.svm", "", None, "no rows"),
        ("t.svm", "1 1:1\n", "y", "Leave label out"),
        ("t.tsv", "a\tb\n1\t2\n", None, r"unknown suffix. Known are .csv, .parquet, .*\.svm.*\.gz.* a job take \.npy"),
        ("t", "a,b\n1,2\n", None, "unknown suffix"),
        ("t.parquet.gz", b"", None, "unknown suffix"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: str | bytes, label: str | int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_table(write(tmp_path, name, content), label=label)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.xz", "t.svm", "t.libsvm.gz"])
def test_file_not_found(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_table(tmp_path / name)


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "t.csv").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        read_table(tmp_path / "t.csv")


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
@pytest.mark.parametrize("kind", [".csv", ".svm"])
def test_truncated_and_damaged_compressed_files(tmp_path: Path, suffix: str, kind: str) -> None:
    rng = np.random.default_rng(0)
    lines = ["a,b"] if kind == ".csv" else []
    form = "{},{}" if kind == ".csv" else "{} 1:{}"
    lines += [form.format(*row) for row in rng.normal(size=(5000, 2))]
    whole = COMPRESSORS[suffix]("\n".join(lines).encode())
    with pytest.raises(InputError, match="cut short"):
        read_table(write(tmp_path, "t" + kind + suffix, whole[: len(whole) // 2]))
    with pytest.raises(InputError, match=r"is damaged|cannot be read"):
        read_table(write(tmp_path, "t" + kind + suffix, b"this was never compressed"))


def test_features_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"features=3 but .* has 2 feature columns"):
        read_table(write(tmp_path, "t.csv", "a,b\n1,2\n"), features=3)


def test_libsvm_agrees_with_scikit_learn(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    X = sparse.random(40, 12, density=0.3, random_state=1, format="csr")
    y = rng.choice([-1.0, 1.0], size=40)
    dump_svmlight_file(X, y, str(tmp_path / "t.svm"), zero_based=False)
    table = read_table(tmp_path / "t.svm", features=12)
    np.testing.assert_allclose(table.X.toarray(), X.toarray(), rtol=1e-12)
    np.testing.assert_array_equal(table.y, y)


def test_columns_of_a_libsvm_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="use read_table"):
        read_columns(tmp_path / "t.svm")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "SECRET,41\nSECRET,42\n"),  # no header: the first record must not be quoted as names
        ("t.csv", "SECRET,SECRET\n1,2\n"),
        ("t.csv.gz", b"SECRET"),
        ("t.svm.gz", b"SECRET"),
        ("t.parquet", b"SECRET"),
    ],
)
def test_errors_never_quote_a_cell(tmp_path: Path, name: str, content: str | bytes) -> None:
    with pytest.raises(InputError) as caught:
        read_table(write(tmp_path, name, content), label=0 if name.endswith(".svm") else None)
    assert "SECRET" not in str(caught.value)
    # What a traceback prints of earlier errors counts too.
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


# One line, and how many columns of a table (a, b, label y) it leaves without a number.
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
    tmp_path: Path, odd: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [b"%d,%d.5,%d" % (i, i, i % 2) for i in range(9)]
    plain = read_table(write(tmp_path, "t.csv", b"a,b,y\n" + b"\n".join(lines)), label="y")
    assert caplog.text == ""
    table = read_table(write(tmp_path, "t.csv", b"\n".join([b"a,b,y", *lines[:4], odd, *lines[5:]])), label="y")
    others = np.arange(9) != 4
    np.testing.assert_array_equal(table.X[others], plain.X[others])
    np.testing.assert_array_equal(label_numbers(table.y)[others], plain.y[others])
    assert np.isnan(table.X[4]).all()
    assert "1 of 9 records cannot be read" in caplog.text
    assert "Lines: 6" in caplog.text
    assert "SECRET" not in caplog.text
    columns = read_columns(tmp_path / "t.csv")
    assert {len(column) for column in columns.values()} == {9}


@pytest.mark.parametrize("label", ["SECRET", "", "?", "=1+1"])
def test_an_odd_label_changes_no_other(tmp_path: Path, label: str) -> None:
    table = read_table(write(tmp_path, "t.csv", f"a,y\n1,0\n2,{label}\n3,1\n"), label="y")
    np.testing.assert_array_equal(table.X, [[1], [2], [3]])
    np.testing.assert_array_equal(label_numbers(table.y), [0, np.nan, 1])


@pytest.mark.parametrize(
    "odd",
    ["SECRET 1:1", "1 1:SECRET", "1 SECRET:1", "1 0:1", "1 2:1 2:1", "1 4:1", "1 9999999999999999999999:2", "1,2"],
)
def test_one_line_of_libsvm_decides_nothing_but_its_own_row(
    tmp_path: Path, odd: str, caplog: pytest.LogCaptureFixture
) -> None:
    content = f"1 1:0.5 3:2\n{odd}\n# a comment\n0 qid:7 2:-1\n"
    table = read_table(write(tmp_path, "t.svm", content), features=3)
    assert table.X.shape == (3, 3)
    np.testing.assert_array_equal(table.X.toarray()[[0, 2]], [[0.5, 0, 2], [0, -1, 0]])
    np.testing.assert_array_equal(table.y, [1, np.nan, 0])
    assert np.isnan(table.X.toarray()[1]).any()
    assert "Lines: 2" in caplog.text
    assert "SECRET" not in caplog.text


def test_a_text_of_parquet_that_is_no_utf8_spoils_its_own_label(tmp_path: Path) -> None:
    raw = pa.array([b"yes", b"n\xff", b"no"], pa.binary())
    labels = pa.StringArray.from_buffers(3, raw.buffers()[1], raw.buffers()[2])
    pq.write_table(pa.table({"a": pa.array([1.0, 2.0, 3.0]), "y": labels}), tmp_path / "t.pq")
    assert list(read_table(tmp_path / "t.pq", label="y").y) == ["yes", "n\ufffd", "no"]


def present(path: Path) -> Path:
    if not path.is_file():
        pytest.skip(f"there is no {path}")
    return path


def test_electricity_reads_like_pandas(data_folder: Path) -> None:
    path = present(data_folder / "electricity" / "data.csv.xz")
    table = read_table(path, label="class")
    frame = pd.read_csv(path)
    assert table.X.shape == (45312, 8)
    np.testing.assert_array_equal(table.X, frame.drop(columns="class").to_numpy())
    np.testing.assert_array_equal(table.y, frame["class"])


def test_adult_columns_read_like_pandas(data_folder: Path) -> None:
    path = present(data_folder / "adult" / "train.csv.xz")
    columns = read_columns(path)
    frame = pd.read_csv(path)
    assert list(columns) == list(frame.columns)
    assert sum(columns[name].dtype == object for name in columns) == 9
    assert sum(int((columns[name] == "?").sum()) for name in columns) == 4262
    for name, column in columns.items():
        np.testing.assert_array_equal(column, frame[name])


def test_a_query_number_in_the_wrong_place_spoils_its_line_alone(tmp_path: Path) -> None:
    path = write(tmp_path, "t.svm", "1 1:2\n1 1:2 qid:3\n1 qid:3 1:4\n")
    np.testing.assert_array_equal(read_table(path, features=1).X.toarray(), [[2.0], [np.nan], [4.0]])


@pytest.mark.parametrize("other", ["1 1:3", "no number"])
def test_what_is_taken_for_a_query_number_does_not_depend_on_other_lines(other: str, tmp_path: Path) -> None:
    path = write(tmp_path, "t.svm", f"1 qidx:3 1:2\n1 qid3 1:2\n{other}\n")
    found = read_table(path, features=1).X.toarray()[0]
    path = write(tmp_path, "t.svm", f"1 qidx:3 1:2\n{other}\n")
    np.testing.assert_array_equal(read_table(path, features=1).X.toarray()[0], found)
    np.testing.assert_array_equal(found, [2.0])


@pytest.mark.parametrize("last", ["EU", "NA", "1"])
def test_one_label_does_not_decide_whether_others_are_missing(last: str, tmp_path: Path) -> None:
    """NA may be declared as a class, whatever the other labels are; so may a text among numbers."""
    y = read_table(write(tmp_path, "t.csv", "a,y\n1,NA\n2,?\n3,NA \n4," + last + "\n"), label="y").y
    assert y is not None
    np.testing.assert_array_equal(equal(y, "NA")[:3], [True, False, True])
    np.testing.assert_array_equal(equal(y, "?")[:3], [False, True, False])


def test_a_file_of_which_nothing_can_be_read_is_told_of_schemas(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hint = "; a column of texts needs a schema: `sottovoce schema FILE` drafts one"
    told = []
    for name, text in (("all.csv", "a,b\n1,x\n2,y\n"), ("one.csv", "a,b\n1,x\n2,3\n"), ("all.svm", "1 x\n0 y\n")):
        caplog.clear()
        (tmp_path / name).write_text(text)
        read_table(tmp_path / name, features=2)
        told.append(caplog.text.rstrip().endswith(hint))
    assert told == [True, False, False]
