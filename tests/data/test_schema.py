"""Schemas: what a table becomes, that no row exceeds the norm, and that a row is a function of its own cells."""

import decimal
import math
import warnings
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import sottovoce as sv
from sottovoce.data.block import Block, Preparation
from sottovoce.data.bounds import Bounds
from sottovoce.data.cells import DATES, table_columns
from sottovoce.data.column_kinds import Number
from sottovoce.data.misfits import Misfit, Misfits

SCHEMA = sv.Schema(
    {
        "age": {"range": (18, 98)},
        "bmi": {"range": (10, 60), "missing": True},
        "dose": {"range": (-1, 3), "missing": True, "fill": 3},
        "diet": {"levels": ["fish", "meat", "?"]},
        "city": {"levels": ["Rome", "Oslo", 7], "missing": True, "other": True},
        "smoker": {"yes": "yes", "no": "no", "missing": True},
        "risk": {"levels": ["low", "high"]},
    },
    label="risk",
    identifiers=["id"],
)
WIDE = sum(len(column.features) for column in SCHEMA.columns.values())
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**400), 10**400),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(
        ["fish", " meat", "?", "NA", "nan", "inf", "-1e999", "7", "7.0", "Rome", "yes", "no", "1_0", "true"]
    ),
    st.sampled_from(
        [b"7", 3 + 4j, decimal.Decimal("1e999"), decimal.Decimal("sNaN"), date(2020, 1, 1), [1, 2], {}, np.nan]
    ),
)
ROWS = st.lists(st.fixed_dictionaries(dict.fromkeys(SCHEMA.columns, ODD)), min_size=1, max_size=6)


def encoded(column: str, cells: list[Any]) -> list[Any]:
    return SCHEMA.columns[column].encode(np.array(cells, dtype=object)).tolist()


def table(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def bounds_of(schema: sv.Schema) -> Bounds:
    return Bounds.declare(row_norm=schema.row_norm, feature_ranges=schema.feature_ranges)


def rescaled(schema: sv.Schema, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """As preparation rescales them, before anything is cut."""
    shift, factor = Preparation(bounds_of(schema), rows.shape[1], False, len(rows), classes=(0, 1)).affine()
    return (rows + shift) * factor


class TestNorm:
    @pytest.mark.slow
    @settings(max_examples=200, deadline=None)
    @given(ROWS)
    def test_no_encoded_row_exceeds_the_norm_whatever_its_cells_hold(self, rows: list[dict[str, Any]]) -> None:
        found = rescaled(SCHEMA, SCHEMA.encode(table(rows)))
        assert np.isfinite(found).all()
        assert np.abs(found).max() <= 1 + 1e-12
        assert np.linalg.norm(found, axis=1).max() <= SCHEMA.row_norm * (1 + 1e-12)

    def test_a_group_counts_once_a_number_once_and_a_flag_beside_its_fill(self) -> None:
        assert SCHEMA.row_norm**2 == pytest.approx(1 + 1 + 2 + 1 + 1 + 1)
        assert len(SCHEMA.feature_names) == WIDE == 1 + 2 + 2 + 3 + 5 + 2

    def test_some_row_reaches_the_norm(self) -> None:
        cells = {"age": [98], "bmi": [None], "dose": [""], "diet": ["?"], "city": ["Bonn"], "smoker": ["no"]}
        assert np.linalg.norm(rescaled(SCHEMA, SCHEMA.encode(cells))) == pytest.approx(SCHEMA.row_norm)

    def test_a_norm_that_forgot_the_flag_would_be_found(self) -> None:
        """Negative control: without f^2 a row with a missing dose is longer."""
        cells = {"age": [98], "bmi": [None], "dose": [""], "diet": ["?"], "city": ["Bonn"], "smoker": ["no"]}
        assert np.linalg.norm(rescaled(SCHEMA, SCHEMA.encode(cells))) > math.sqrt(len(SCHEMA.columns)) * (1 + 1e-3)

    def test_the_guarantee_does_not_rest_on_the_encoding(self) -> None:
        """Rows that no encoding makes are cut: a prepared row has norm 1 at most."""
        random = np.random.default_rng(0)
        forged = random.choice([0.0, 1.0, -5.0, 1e300, np.inf, np.nan, 98.0], size=(500, WIDE))
        recipe = Preparation(bounds_of(SCHEMA), WIDE, True, 500, classes=("low", "high"))
        block = Block.prepare(forged, ["low", "high"] * 250, recipe)
        assert np.linalg.norm(np.asarray(block.rows, dtype=np.float64), axis=1).max() <= 1.0

    def test_rows_within_the_norm_are_not_cut(self) -> None:
        cells = {"age": [98.0], "bmi": [60], "dose": [-1], "diet": ["fish"], "city": ["Rome"], "smoker": ["yes"]}
        rows = SCHEMA.encode(cells)
        recipe = Preparation(bounds_of(SCHEMA), WIDE, False, 10, classes=("low", "high"))
        prepared = np.asarray(Block.prepare(rows, ["low"], recipe).rows)[0] / recipe.scale
        np.testing.assert_allclose(prepared, rescaled(SCHEMA, rows)[0], atol=1e-5)

    def test_parts_by_columns_follow_what_each_party_has(self) -> None:
        norms = SCHEMA.party_norms(SCHEMA.row_norm, (1, 4, 3 + 5 + 2))
        np.testing.assert_allclose(np.square(norms), [1, 3, 3])
        apart = SCHEMA.party_norms(SCHEMA.row_norm, (2, 3, 10))  # the second column begins with the first party
        np.testing.assert_allclose(np.square(apart)[2], 3)
        assert np.square(apart).sum() > SCHEMA.row_norm**2 * 1.1


class TestRows:
    @settings(max_examples=100, deadline=None)
    @given(ROWS)
    def test_a_row_is_a_function_of_its_own_cells(self, rows: list[dict[str, Any]]) -> None:
        together = SCHEMA.encode(table(rows))
        alone = np.concatenate([SCHEMA.encode(table([row])) for row in rows])
        np.testing.assert_array_equal(together, alone)

    def test_a_column_whose_type_one_cell_decides_would_be_found(self) -> None:
        """Negative control: NumPy gives a list one type, and then 7 is no longer 7.0."""
        assert np.asarray([7.0, "Rome"]).tolist() != [7.0, "Rome"]
        assert SCHEMA.columns["city"].encode(np.array([7.0, "Rome"], dtype=object))[0, 2] == 1.0

    def test_cells_of_a_file_are_read_each_by_itself(self, tmp_path: Path) -> None:
        """ "NA" is a declared level here, in a file whose column would otherwise be numbers as in one with a text."""
        schema = sv.Schema({"code": {"levels": [1, "NA"], "missing": True}})
        for last in ("2", "two"):
            path = tmp_path / f"{last}.csv"
            path.write_text(f"code\n1\nNA\n?\n{last}\n")
            assert schema.encode(path).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]

    def test_what_cells_become(self) -> None:
        assert encoded("age", [17, 20.5, "99", "x", None, "inf"]) == [[18], [20.5], [98], [58], [58], [58]]
        assert encoded("dose", [0, np.nan]) == [[0, 0], [3, 1]]
        assert encoded("diet", ["?", "", "soup"]) == [[0, 0, 1], [0] * 3, [0] * 3]
        assert np.argmax(encoded("city", ["Oslo", "7.0", "na", "Bonn"]), axis=1).tolist() == [1, 2, 3, 4]
        assert encoded("smoker", ["yes", "no", "maybe"]) == [[1, 0], [-1, 0], [0, 1]]

    def test_true_is_one_and_false_zero_as_text_as_number_and_as_boolean(self) -> None:
        schema = sv.Schema({"b": {"yes": True, "no": False}})
        for cells in ([True, False], ["True", "false"], [1, 0], [1.0, 0.0], ["1", "0"], np.array([True, False])):
            assert schema.encode({"b": cells}).ravel().tolist() == [1, -1]

    def test_labels_are_the_declared_ones_or_none(self) -> None:
        assert SCHEMA.labels({"risk": ["high", " low", "odd", None]}).tolist() == ["high", "low", None, None]
        assert SCHEMA.labels({"age": [1]}) is None
        assert SCHEMA.classes == ("low", "high")
        cost = sv.Schema({"age": {"range": (0, 9)}, "cost": {"range": (0, 5)}}, label="cost")
        assert cost.label_bound == (0.0, 5.0)
        assert cost.feature_names == ("age",)
        np.testing.assert_array_equal(cost.labels({"cost": ["3", 9, "x"]}), [3, 9, np.nan])


class TestTables:
    cells: ClassVar[dict[str, list[Any]]] = {
        "id": [1, 2, 3, 4],
        "age": [20, 30, None, 150],
        "bmi": [20.5, None, 61.0, 12.0],
        "dose": [0, 1, 2, None],
        "diet": ["fish", None, "meat", "soup"],
        "city": ["Rome", "Bonn", None, "7"],
        "smoker": ["yes", "no", None, "yes"],
        "risk": ["low", "high", "low", None],
    }

    def same(self, given: Any) -> None:
        np.testing.assert_array_equal(SCHEMA.encode(given, others=False), SCHEMA.encode(self.cells))
        assert SCHEMA.labels(given).tolist() == SCHEMA.labels(self.cells).tolist()

    def test_pandas(self) -> None:
        frame = pd.DataFrame(self.cells)
        self.same(frame)
        self.same(frame.convert_dtypes())
        self.same(frame.astype({"diet": "category"}))
        self.same(frame[frame.columns[::-1]].set_index("id", drop=False))

    def test_polars(self) -> None:
        frame = pl.DataFrame(self.cells)
        self.same(frame)
        self.same(frame.with_columns(pl.col("diet").cast(pl.Categorical), pl.col("age").cast(pl.Decimal(10, 2))))
        self.same(frame.with_columns(pl.col("age").cast(pl.String), pl.col("bmi").cast(pl.Float32)))
        with pytest.raises(sv.InputError, match="X is of type LazyFrame"):
            SCHEMA.encode(frame.lazy())

    def test_arrow_and_parquet(self, tmp_path: Path) -> None:
        from pyarrow import parquet

        made = pa.table(self.cells)
        self.same(made)
        self.same(made.to_batches()[0])
        self.same(made.set_column(4, "diet", made["diet"].dictionary_encode()))
        parquet.write_table(made, tmp_path / "t.parquet")
        self.same(tmp_path / "t.parquet")

    def test_csv(self, tmp_path: Path) -> None:
        lines = [
            ",".join("" if cell is None else str(cell) for cell in row)
            for row in zip(*self.cells.values(), strict=True)
        ]
        (tmp_path / "t.csv").write_text("\n".join([",".join(self.cells), *lines]) + "\n")
        self.same(tmp_path / "t.csv")
        self.same(str(tmp_path / "t.csv"))

    def test_toml_gives_the_schema_back(self, tmp_path: Path) -> None:
        odd = sv.Schema(
            {'a "b"\\': {"levels": ["x\n", "\x7f", "é", 1, 2.5, math.inf]}, "t": {"yes": True, "no": False}}, label="l"
        )
        for schema in (SCHEMA, odd):
            schema.to_toml(tmp_path / "s.toml")
            assert sv.Schema.from_toml(tmp_path / "s.toml") == schema
        assert odd != SCHEMA
        assert hash(odd) != hash(SCHEMA)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"age": (1, 2)}, r"columns.age = \(1, 2\) must be a table"),
        ({"age": {"low": 1}}, "columns.age must have one of range"),
        ({"age": {"range": []}}, r"columns.age: range = \[\] must be two numbers.*publicly known"),
        ({"age": {"range": [3, 3]}}, "low below high"),
        ({"age": {"range": [0, math.inf]}}, "two finite numbers"),
        ({"age": {"range": [0, 9], "fil": 3}}, "columns.age has no key 'fil'.*fill"),
        ({"age": {"range": [0, 9], "fill": 10}}, "fill = 10.0 must be within the range"),
        ({"age": {"range": [0, 9], "missing": 1}}, "missing = 1 must be true or false"),
        ({"diet": {"levels": []}}, "columns.diet: levels is empty; list"),
        ({"diet": {"levels": "fish"}}, "must be a list"),
        ({"diet": {"levels": [1, "1.0"]}}, "has 1 twice"),
        ({"diet": {"levels": [None]}}, "must be a text, a number"),
        ({"a": {"levels": ["b=c"]}, "a=b": {"levels": ["c"]}}, "two features would be called 'a=b=c'"),
        ({"s": {"yes": "y"}}, "columns.s lacks no"),
        ({"s": {"yes": "y", "no": "y "}}, "twice"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_declaration_is_said(columns: dict[str, Any], text: str) -> None:
    with pytest.raises(sv.InputError, match=text):
        sv.Schema(columns)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"ages": ["SECRET"]}, "lacks 'age'.*did you mean 'ages'"),
        ({"age": ["SECRET"], "job": ["SECRET"]}, "does not name: 'job'.*identifiers"),
        ({"age": ["SECRET", 2], "id": [1]}, r"have \[1, 2\] cells"),
        (np.zeros((2, 2)), "X is of type ndarray; with a schema it must be a table"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_without_a_cell(given: Any, text: str) -> None:
    schema = sv.Schema({"age": {"range": (0, 9)}}, identifiers=["id"])
    with pytest.raises(sv.InputError, match=text) as error:
        schema.encode(given, others=False)
    assert "SECRET" not in str(error.value)
    assert "2020" not in str(error.value)


def test_wrong_frames_are_refused(tmp_path: Path) -> None:
    for wrong, text in (
        ({"label": 3}, "label=3"),
        ({"identifiers": "id"}, "identifiers='id'"),
        ({"identifiers": ["age"]}, "take it out"),
    ):
        with pytest.raises(sv.InputError, match=text):
            sv.Schema({"age": {"range": (0, 9)}}, **wrong)
    with pytest.raises(sv.InputError, match=r"no key 'colums'.*columns"):
        sv.Schema.from_table({"colums": {}})
    with pytest.raises(sv.InputError, match="lacks columns"):
        sv.Schema.from_table({})
    with pytest.raises(sv.InputError, match="cannot be read"):
        sv.Schema.from_toml(tmp_path / "none.toml")
    (tmp_path / "a.toml").write_text("[model]\n")
    with pytest.raises(sv.InputError, match=r"no table \[schema\].*drafts one"):
        sv.Schema.from_toml(tmp_path / "a.toml")
    with pytest.raises(sv.InputError, match=r"a schema is for \.csv"):
        table_columns("x.svm")


def test_a_flag_beside_the_middle_costs_nothing() -> None:
    assert Number("a", 0.0, 8.0, True).square == 1.0
    assert Number("a", 0.0, 8.0, True, 6.0).square == 1.25
    assert Number("a", 0.0, 8.0, False, 6.0).square == 1.0


class TestNoCellIsAnError:
    """Whatever a column holds, a cell of it is a number, a level or missing."""

    def test_a_text_that_is_none(self) -> None:
        column = pa.array([b"x", b"\xff", None], type=pa.binary()).cast(pa.string(), safe=False)
        found = table_columns(pa.table({"a": column, "b": column.dictionary_encode()}))
        for cells in found.values():
            assert cells.tolist() == ["x", "\ufffd", None]

    @pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("s"), pa.date32(), pa.duration("s")])
    def test_dates_that_python_does_not_have(self, kind: Any) -> None:
        size = np.int32 if kind == pa.date32() else np.int64
        column = pa.array(np.full(3, np.iinfo(size).max, dtype=size)).view(kind)
        assert table_columns(pa.table({"a": column}))["a"].tolist() == [DATES] * 3

    @pytest.mark.parametrize("cell", [pd.Timestamp("2020-01-01"), pd.Timedelta("1 day"), 1 + 2j])
    def test_one_cell_of_another_kind_changes_no_other(self, cell: Any) -> None:
        """With a text in it a column of dates is a column of anything."""
        pure, mixed = pd.Series([cell] * 3), pd.Series([cell, cell, cell, "text"])
        assert pure.dtype != mixed.dtype
        schema = sv.Schema({"a": {"range": (0, 9), "missing": True}, "y": {"range": (0, 9)}}, label="y")
        one, other = ({"a": column, "y": column} for column in (pure, mixed))
        np.testing.assert_array_equal(schema.encode(one), schema.encode(other)[:3])
        assert np.isnan(schema.labels(one)).all()
        assert np.isnan(schema.labels(other)).all()

    def test_a_number_too_large_gives_no_warning(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            schema = sv.Schema({"a": {"range": (0, 9)}})
            largest = np.finfo(np.longdouble).max  # above float64's, where there is such a type
            assert schema.encode({"a": np.array([largest])}).shape == (1, 1)


@pytest.mark.parametrize("pair", [("2020-01-01", "2021-01-01"), (date(2020, 1, 1), date(2021, 1, 1))])
def test_dates_as_a_range_are_told_what_to_do(pair: Any) -> None:
    with pytest.raises(sv.InputError, match="Of dates make the days since"):
        sv.Schema({"admitted": {"range": pair}})
    with pytest.raises(sv.InputError, match=r"must be two numbers, low and high\. Choose"):
        sv.Schema({"admitted": {"range": ("a", "b")}})


def test_columns_in_other_capitals_are_meant() -> None:
    schema = sv.Schema({"age": {"range": (0, 1)}, "height": {"range": (0, 1)}})
    with pytest.raises(sv.InputError, match=r"lacks 'age', 'height' of the schema; did you mean 'AGE'\?"):
        schema.encode({"AGE": [1.0], "HEIGHT": [1.0]})


def test_numbers_in_smaller_units_than_their_range_are_told() -> None:
    def share(cells: Any, **entry: Any) -> float:
        schema = sv.Schema({"a": {"range": (1.0, 1001.0), **entry}})
        misfits = Misfits(schema).add({"a": np.asarray(cells)})
        return misfits.found["a"].share(schema.columns["a"])

    assert share([2.0, 3.0, 11.0]) == 1.0
    assert "lowest hundredth of [1, 1001]" in Misfit(3, near=3).text(Number("a", 1.0, 1001.0))
    assert share([2.0, 3.0, 11.1]) == 0.0  # one is beyond
    assert share([1.0, 1.0]) == 0.0  # a constant may be
    assert share([2.0, 3.0], shape="smooth", scale="log") == 0.0  # there it is much of the range
    assert Misfit.of(Number("a"), np.array([2.0, 3.0])).share(Number("a")) == 0.0  # nobody knows the range
