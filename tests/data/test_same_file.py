"""A file gives the same features, models and predictions as a path, as pandas, Polars and Arrow."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import sottovoce as sv
from sottovoce.data.files import read_table
from sottovoce.data.levels import ABSENT
from sottovoce.errors import MisfitWarning

SCHEMA = sv.Schema(
    {
        "glucose": {"levels": ["None", "Norm", ">7"]},  # None is no missing cell here: nobody measured
        "country": {"levels": ["DE", "NA", "US"]},
        "seen": {"yes": "yes", "no": "N/A"},
        "ward": {"levels": [7, 12], "missing": True, "other": True},
        "age": {"range": [18, 98], "missing": True},
        "dose": {"range": [0, 9.5], "fill": 1},
        "fever": {"yes": True, "no": False},
        "y": {"levels": ["no", "yes"]},
    },
    label="y",
)


def cells(count: int = 300) -> pd.DataFrame:
    """Texts, as they stand in a file."""
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "glucose": rng.choice(["None", "Norm", ">7"], count),
            "country": rng.choice(["DE", "NA", "US"], count),
            "seen": rng.choice(["yes", "N/A"], count),
            "ward": rng.choice(["007", "12", "", "31"], count),
            "age": rng.choice(["20", "", "75.5", "101"], count),
            "dose": rng.choice(["0.25", "9", "null", "NaN"], count),
            "fever": rng.choice(["True", "False"], count),
            "y": rng.choice(["no", "yes"], count),
        }
    )


def write(table: pd.DataFrame, path: Path, separator: str = ",", decimal: str = ".") -> Path:
    lines = [separator.join(cell.replace(".", decimal) for cell in row) for row in table.itertuples(index=False)]
    path.write_text("\n".join([separator.join(table.columns), *lines]) + "\n")
    return path


READERS: dict[str, Callable[[Path], Any]] = {
    "path": lambda path: path,
    "Dataset": lambda path: sv.Dataset(path, schema=SCHEMA),
    "pandas": pd.read_csv,
    "pandas of texts": lambda path: pd.read_csv(path, dtype=str),
    "pandas with types": lambda path: pd.read_csv(path).convert_dtypes(),
    "pandas as written": lambda path: pd.read_csv(path, keep_default_na=False),
    "Polars": lambda path: pl.read_csv(path, null_values=["null", "NaN"]),
    "Polars of texts": lambda path: pl.read_csv(path, infer_schema=False),
    "Arrow": pa.csv.read_csv,
    "Parquet": lambda path: parquet(path),
}


def parquet(path: Path) -> Path:
    """As pandas writes what it has read, with an index that is no column."""
    table = pd.read_csv(path)
    table.index = range(1, 2 * len(table), 2)[: len(table)]
    table.loc[[1, 3]] = table.loc[[1, 3]]
    table.reindex(table.index.tolist()).to_parquet(path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def features(given: Any) -> Any:
    if isinstance(given, sv.Dataset):
        return np.concatenate([rows for rows, _ in given.pieces(100)])
    return SCHEMA.encode(given)


@pytest.mark.filterwarnings("ignore::sottovoce.errors.MisfitWarning")
@pytest.mark.parametrize("reader", READERS)
def test_features_models_and_predictions_are_the_same(reader: str, tmp_path: Path) -> None:
    path = write(cells(), tmp_path / "t.csv")
    given = READERS[reader](path)
    np.testing.assert_array_equal(features(given), SCHEMA.encode(path))
    model = sv.PrivateLogisticRegression(5.0, 1e-6, schema=None if reader == "Dataset" else SCHEMA, insecure_seed=1)
    model.fit(given)
    other = sv.PrivateLogisticRegression(5.0, 1e-6, schema=SCHEMA, insecure_seed=1).fit(path)
    np.testing.assert_array_equal(model.coef_, other.coef_)
    if reader != "Dataset":
        np.testing.assert_array_equal(model.predict_proba(given), other.predict_proba(path))


@pytest.mark.parametrize(("separator", "decimal"), [(",", "."), (";", "."), (";", ","), ("\t", ".")])
def test_separators_and_decimal_commas(separator: str, decimal: str, tmp_path: Path) -> None:
    expected = SCHEMA.encode(write(cells(), tmp_path / "t.csv"))
    path = write(cells(), tmp_path / "s.csv", separator, decimal)
    np.testing.assert_array_equal(SCHEMA.encode(path), expected)
    np.testing.assert_array_equal(features(sv.Dataset(path, schema=SCHEMA)), expected)
    read = pd.read_csv(path, sep=separator, decimal=decimal)
    np.testing.assert_array_equal(SCHEMA.encode(read), expected)


@pytest.mark.parametrize("quote", ["", '"'])
@pytest.mark.parametrize(("separator", "decimal"), [(";", "."), (";", ","), ("\t", ".")])
def test_numbers_without_a_schema(separator: str, decimal: str, quote: str, tmp_path: Path) -> None:
    """By the compiled loop or cell by cell; a text with a comma in it is a text."""
    rows = np.random.default_rng(0).normal(size=(50, 2)).round(3)
    lines = [
        separator.join([f"{quote}{a}{quote}".replace(".", decimal), str(b).replace(".", decimal), "x, y"])
        for a, b in rows
    ]
    (tmp_path / "n.csv").write_text("\n".join([separator.join("abz"), *lines]) + "\n")
    read = read_table(tmp_path / "n.csv", label="z")
    np.testing.assert_array_equal(read.X, rows)
    assert set(np.asarray(read.y).tolist()) == {"x, y"}
    labels = read_table(tmp_path / "n.csv", label="a", left_out="z").y
    np.testing.assert_array_equal(labels, rows[:, 0])


def test_a_last_record_without_a_cell_is_a_record_whatever_separates(tmp_path: Path) -> None:
    for separator in ",;\t":
        path = tmp_path / "t.csv"
        path.write_text(f"a{separator}b\n1{separator}2\n{separator}\n")
        assert read_table(path).X.shape == (2, 2)


def test_a_comma_in_a_number_of_a_table_with_commas_or_tabs_is_none(tmp_path: Path) -> None:
    """1,234 is a thousand for some and little more than one for others."""
    (tmp_path / "t.tsv").write_text("a\tb\n1,234\t2\n3\t4\n")
    np.testing.assert_array_equal(read_table(tmp_path / "t.tsv").X, [[np.nan, np.nan], [3, 4]])


def test_a_first_column_without_a_name_is_told(tmp_path: Path) -> None:
    cells().to_csv(tmp_path / "t.csv")
    with pytest.raises(sv.InputError, match=r"first column has no name.*index=False"):
        SCHEMA.encode(tmp_path / "t.csv")


def test_the_index_of_pandas_is_no_column(tmp_path: Path) -> None:
    table = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]}, index=[5, 7])
    pa.parquet.write_table(pa.table({"a": [1.0], "__index_level_0__": [5]}), tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet").feature_names == ("a",)
    schema = sv.Schema({"a": {"range": [0, 9]}, "b": {"range": [0, 9]}})
    arrow = pa.Table.from_pandas(table)
    assert "__index_level_0__" in arrow.column_names
    np.testing.assert_array_equal(schema.encode(arrow, others=False), table.to_numpy())


class TestALevelSpelledLikeAMissingCell:
    def test_where_missing_cells_have_a_feature_too_a_frame_cannot_say_and_its_caller_is_told(self) -> None:
        schema = sv.Schema({"a": {"levels": ["None", "x"], "missing": True}, "y": {"levels": [0, 1]}}, label="y")
        assert schema.encode({"a": ["None", "x", "", None]}).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]
        table = {"a": ["x", None] * 50, "y": [0, 1] * 50}
        model = sv.PrivateLogisticRegression(100.0, 1e-6, schema=schema)
        with pytest.warns(MisfitWarning, match=r"a: of 100 cells .* 50 may be missing or 'None'.*keep_default_na"):
            model.fit(table)

    def test_of_two_such_levels_none_has_the_missing_cells(self) -> None:
        book = sv.Schema({"a": {"levels": ["None", "NA"]}}).columns["a"].book  # type: ignore[attr-defined]
        assert book.places(np.array(["None", "NA", None, np.nan], dtype=object)).tolist() == [0, 1, ABSENT, ABSENT]


def test_levels_called_other_or_missing_stand_beside_the_flags() -> None:
    schema = sv.Schema({"a": {"levels": ["other", "missing", "b"], "other": True, "missing": True}})
    assert schema.feature_names == ("a=other", "a=missing", "a=b", "a=(missing)", "a=(other)")
    rows = schema.encode({"a": ["other", "missing", None, "z"]})
    assert rows.argmax(axis=1).tolist() == [0, 1, 3, 4]
    assert schema.columns["a"].grid()[0] == ("other", "missing", "b", "(missing)", "(other)")


def test_dates_are_told_by_the_name_of_their_column_and_not_of_identifiers(caplog: Any) -> None:
    days = pd.date_range("2020-01-01", periods=100)
    table = pd.DataFrame({"born": days, "came": days, "y": [0, 1] * 50})
    schema = sv.Schema({"born": {"range": [0, 1]}, "y": {"levels": [0, 1]}}, label="y", identifiers=["came"])
    with caplog.at_level(logging.INFO), pytest.warns(MisfitWarning, match="born: dates") as told:
        sv.PrivateLogisticRegression(100.0, 1e-6, schema=schema).fit(table)
    assert "came" not in str(told[0].message)
    assert "came" not in caplog.text
