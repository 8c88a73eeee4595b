"""Levels that are prefixes of codes, groups of codes or lines of a file: what holds which cell, and what is refused."""

import math
import random
import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from sottovoce.data.levels import ABSENT, UNKNOWN, CodeBook, group_spans
from sottovoce.estimators.declarations import common_names
from sottovoce.plan.split import SPLITS

GROUPS = {"heart": ["I20-I25", "I50*", 785], "sugar": ["E11", "=E10-E14"], "old": ["390-459", "E800-E999"]}
SCHEMA = sv.Schema(
    {
        "icd": {"groups": GROUPS, "digits": 3, "missing": True, "other": True},
        "zip": {"levels": ["012", 900], "prefix": 3, "digits": 5, "other": True},
        "ill": {"groups": {"yes": ["C00-D48"], "no": ["Z*", 0]}},
    },
    label="ill",
)
TEXTS = ["I20", "I25.9", "I2", "I19.9", "I26", "I50", "I51", "785", "E11", "E11.1", "E10-E14", "E12", "390", "459.9"]


def level(column: str, *cells: Any) -> list[str | None]:
    """Which feature of a column is 1, of each cell."""
    own = SCHEMA.columns[column]
    rows = own.encode(np.fromiter(cells, dtype=object))
    assert (rows.sum(axis=1) <= 1).all()
    shown = own.grid()[0]
    return [shown[int(row.argmax())] if row.any() else None for row in rows]


class TestWhatALevelHolds:
    def test_ranges_prefixes_and_codes_at_their_edges(self) -> None:
        assert level("icd", "I20", "I25", "I25.9", "I2599", " I22 ") == ["heart"] * 5
        assert level("icd", "I19.9", "I26", "I2", "i20", "J20", "HI20") == ["other"] * 6
        assert level("icd", "I50", "I501", "I5", "I51") == ["heart", "heart", "other", "other"]
        assert level("icd", "E11", "E11.1", "E10-E14", "E12") == ["sugar", "other", "sugar", "other"]
        assert level("icd", "E800", "E999.9", "E80", "E79") == ["old", "old", "other", "other"]

    def test_codes_that_are_numbers_however_they_are_written(self) -> None:
        assert level("icd", 390, 390.0, "390", "390.0", "0390", "459.9", 459.9, np.int8(0)) == [*["old"] * 7, "other"]
        assert level("icd", 389.9, 460, 39, 3.9, "4", -400) == ["other"] * 6  # 39 is 039
        assert level("icd", 785, "785.0", "785.1") == ["heart", "heart", "other"]
        assert level("zip", 1234, "01234", 1234.0, 1299, 12345, "90012", 90012) == [
            *["012*"] * 4,
            "other",
            *["900*"] * 2,
        ]

    def test_missing_is_missing_unless_a_code_names_it(self) -> None:
        assert level("icd", None, "", "NA", "?", np.nan, "nan") == ["missing"] * 6
        assert level("zip", None, "NA") == [None, None]
        named = sv.Schema({"a": {"groups": {"none": ["NA"], "rest": ["A00-M99", "O00-Z99"]}}})
        for missing in ("NA", "na", "", None, np.nan):  # as pandas reads what is called NA
            assert named.encode({"a": [missing, "B20"]}).tolist() == [[1, 0], [0, 1]]

    def test_a_dash_of_a_printed_table_is_a_dash(self) -> None:
        for code in ("I20\u2013I25", "I20 - I25"):
            assert CodeBook(group_spans(["heart"], [[code]])).place("I21") == 0
        book = CodeBook(group_spans(["heart"], [["I20\u2013I25"]]))
        assert book.place("I21") == 0

    def test_labels_are_the_names_of_their_groups(self) -> None:
        assert SCHEMA.classes == ("yes", "no")
        assert SCHEMA.labels({"ill": ["C50.1", "Z01", 0, "D49", None]}).tolist() == ["yes", "no", "no", None, None]

    def test_names_say_what_the_levels_hold(self) -> None:
        """By them parties agree: other codes, or one more in a long list, are other names."""
        assert SCHEMA.feature_names[:2] == (
            "icd=heart[I20-I25,I50*,785; 3 digits]", "icd=sugar[E11,=E10-E14; 3 digits]",
        )  # fmt: skip
        assert SCHEMA.feature_names[5:] == ("zip=012* of 5 digits", "zip=900* of 5 digits", "zip=other")
        long = [f"A{place}" for place in range(10, 90)]
        one, two = (sv.Schema({"a": {"groups": {"g": codes}}}).feature_names for codes in (long, [*long, "A90"]))
        assert one != two
        assert len(one[0]) < 60
        contrasts, base = SCHEMA.contrasts()
        assert [name for name, _ in contrasts][:2] == ["icd=sugar against heart", "icd=old against heart"]
        assert base.tolist() == [1, 0, 0, 0, 0, 1, 0, 0]

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.sampled_from([*TEXTS, 785, 785.0, -0.0, 0, False, True, 1, None, np.float64(390), (1,), "NA"])))
    def test_a_row_is_a_function_of_its_own_cell(self, cells: list[Any]) -> None:
        together = SCHEMA.columns["icd"].encode(np.fromiter(cells, dtype=object))
        alone = [SCHEMA.columns["icd"].encode(np.fromiter([cell], dtype=object))[0] for cell in cells]
        np.testing.assert_array_equal(together, np.reshape(alone, together.shape))

    def test_a_zero_below_nothing_is_zero(self) -> None:
        """Negative control: -0.0 equals 0, and is written otherwise."""
        book = CodeBook(group_spans(["zero"], [["000*"]], 3), 3)
        assert f"{-0.0:.0f}" == "-0"
        assert book.places(np.array([-0.0, 0.0])).tolist() == book.places(np.array([0.0, -0.0])).tolist() == [0, 0]

    def test_lookups_find_what_a_search_of_all_codes_finds(self) -> None:
        """Against plain comparisons, over codes at and beside every edge."""
        spans = list(group_spans([*GROUPS], [*GROUPS.values()], 3))
        book, drawn = CodeBook(spans, 3), random.Random(7)
        codes = [drawn.choice("EI") + f"{drawn.randrange(1000):03d}" for _ in range(400)]
        codes += [f"{drawn.randrange(350, 500)}.{drawn.randrange(1, 10)}" for _ in range(400)]
        for code, place in zip(codes, book.places(np.array(codes, dtype=object)), strict=True):
            found = {
                span.place
                for span in spans
                if (code == span.first if span.last is None else span.first <= code[: len(span.first)] <= span.last)
            }
            assert {int(place)} - {UNKNOWN} == found
        assert book.place(None) == ABSENT


class TestWhereLevelsAreWritten:
    codes = ("I20", "E11", "Z00", "250")

    def test_in_python_in_toml_and_in_a_file_they_are_one_schema(self, tmp_path: Path) -> None:
        (tmp_path / "icd.csv").write_text("\ufeffI20\nE11 \n\nZ00\n250\n", encoding="utf-8")
        (tmp_path / "s.toml").write_text(
            '[schema]\nlevel_sets.d = { levels_file = "icd.csv", prefix = 3, digits = 3 }\n'
            '[schema.columns]\nfirst = { levels = "d", other = true }\nsecond = { levels = "d" }\n'
        )
        one = sv.Schema.from_toml(tmp_path / "s.toml")
        assert [path.name for path in one.level_files] == ["icd.csv"] * 2
        entry = {"levels": list(self.codes), "prefix": 3, "digits": 3}
        two = sv.Schema({"first": {"levels": "d", "other": True}, "second": {"levels": "d"}}, level_sets={"d": entry})
        three = sv.Schema({"first": entry | {"other": True}, "second": entry})
        assert one == two == three
        assert one.table() == three.table()
        one.to_toml(tmp_path / "t.toml")
        (tmp_path / "icd.csv").unlink()  # what was written has the levels, not the file
        assert sv.Schema.from_toml(tmp_path / "t.toml") == one

    def test_what_is_written_is_read(self, tmp_path: Path) -> None:
        SCHEMA.to_toml(tmp_path / "s.toml")
        assert sv.Schema.from_toml(tmp_path / "s.toml") == SCHEMA
        assert sv.Schema.from_table(SCHEMA.table()).feature_names == SCHEMA.feature_names

    def test_a_table_is_encoded_alike_as_path_and_as_frame(self, tmp_path: Path) -> None:
        cells = {
            "icd": ["I21", "390", "785.0", ""],
            "zip": ["01234", "90099", "1299", "x"],
            "ill": ["C1", "Z", "0", "?"],
        }
        frame = pd.DataFrame(cells)
        frame.to_csv(tmp_path / "t.csv", index=False)
        frame.astype("string").to_parquet(tmp_path / "t.parquet")
        expected = SCHEMA.encode(cells)
        assert expected.sum() == 8
        for table in (frame, frame.astype("category"), pd.read_csv(tmp_path / "t.csv"), tmp_path / "t.csv"):
            np.testing.assert_array_equal(SCHEMA.encode(table), expected)
        np.testing.assert_array_equal(SCHEMA.encode(tmp_path / "t.parquet"), expected)
        numbers = pd.DataFrame({"icd": [390, 391.5, None], "zip": [1234, 90012, 5], "ill": [0, 0, 1]})
        texts = {name: [None if cell != cell else str(cell) for cell in column] for name, column in numbers.items()}
        np.testing.assert_array_equal(SCHEMA.encode(numbers), SCHEMA.encode(texts))
        np.testing.assert_array_equal(SCHEMA.encode(numbers.convert_dtypes()), SCHEMA.encode(texts))


class TestFederations:
    drawn = np.random.default_rng(1).choice(["I21.0", "E11", "785", "410.9", "Z00", ""], 400)
    cells: ClassVar[dict[str, Any]] = {"icd": drawn, "zip": np.full(400, 1234), "ill": np.where(drawn < "E", "C1", "Z")}

    def test_by_rows_and_by_columns_people_are_encoded_as_in_one_place(self) -> None:
        new, found = {"icd": ["I22", "E11", "400"], "zip": ["01299", "900", 1234]}, []
        halves = [{name: cells[part] for name, cells in self.cells.items()} for part in (slice(150), slice(150, None))]
        columns = [{name: self.cells[name] for name in names} for names in (("icd", "ill"), ("zip",))]
        for federation in (
            sv.Federation.central(self.cells, schema=SCHEMA),
            sv.Federation.by_rows(halves, schema=SCHEMA),
            sv.Federation.by_columns(columns, schema=SCHEMA),
        ):
            model = sv.PrivateLogisticRegression(math.inf, alpha=0.01).fit(federation)
            found.append(model.predict_proba(new)[:, 0])
        np.testing.assert_allclose(found[1:], [found[0]] * 2, atol=1e-3)
        assert model.predict(new)[2] == "yes"  # as all that are 390-459

    def test_parties_with_other_codes_are_refused(self) -> None:
        def facts(*codes: str) -> dict[str, Any]:
            schemas = [sv.Schema({"a": {"groups": {"g": [code]}}}) for code in codes]
            return {str(place): {"feature_names": schema.feature_names} for place, schema in enumerate(schemas)}

        with pytest.raises(sv.InputError, match="name their columns differently"):
            common_names(facts("I20-I24", "I20-I25"), SPLITS["rows"])
        assert common_names(facts("I20-I25", "I20-I25"), SPLITS["rows"]) == ("a=g[I20-I25]",)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"groups": {"a": ["I20-I25"], "b": ["I2*"]}}, "columns.c: 'I20-I25' of 'a' is within 'I2\\*' of 'b' too"),
        ({"groups": {"a": ["I20-I25"], "b": ["I25-I30"]}}, "'I25-I30' of 'b' is within 'I20-I25' of 'a' too"),
        ({"groups": {"a": ["I21"], "b": ["I20-I25"]}}, "'I21' of 'a' is within 'I20-I25' of 'b' too"),
        ({"groups": {"a": [8], "b": ["008"]}}, "'008' of 'b' is within 8 of 'a' too"),
        ({"groups": {"a": ["001-139"], "b": [8]}, "digits": 3}, "8 of 'b' is within '001-139' of 'a' too"),
        ({"groups": {"a": ["I20-I9"]}}, "'I20-I9' of 'a' must be a range such as.*'=' before it"),
        ({"groups": {"a": ["I25-I20"]}}, "'I25-I20' of 'a' must be a range"),
        ({"groups": {"a": ["*"]}}, r"'\*' of 'a' must be a range"),
        ({"groups": {"a": ["390-459"]}}, "'390-459' of 'a' is of numbers.*digits = 3 in ICD-9"),
        ({"groups": {"a": []}}, "groups must be a table of lists"),
        ({"groups": {"a": "I20"}}, "groups must be a table of lists"),
        ({"groups": {}}, "levels is empty"),
        ({"groups": {"a": ["I20"]}, "prefix": 2}, "leave prefix out"),
        ({"groups": {"a": ["I20"]}, "levels": ["a"]}, "groups and levels both say"),
        ({"levels": ["I20", "I2"], "prefix": 3}, "the level 'I2' must have 3 characters"),
        ({"levels": ["012"], "prefix": 3}, "'012' is of numbers.*digits = 5 in postcodes"),
        ({"levels": ["I20"], "prefix": 0}, "prefix = 0 must be a whole number above 0"),
        ({"levels": ["I20"], "digits": 3}, "digits is of codes with a prefix or in groups"),
        ({"levels": ["I20"], "prefixes": 3}, "no key 'prefixes'; did you mean 'prefix'"),
        ({"levels": "diagnoses"}, "must be a list, or the name of one of level_sets; did you mean 'diagnosis'"),
        ({"levels": "diagnosis", "prefix": 2}, "prefix is in level_sets.diagnosis too"),
        ({"levels_file": "nowhere.csv"}, "nowhere.csv cannot be read.*one level on each line"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_levels_is_said(entry: dict[str, Any], text: str) -> None:
    with pytest.raises(sv.InputError, match=text):
        sv.Schema({"c": entry}, level_sets={"diagnosis": {"levels": ["I20"], "prefix": 3}})


def test_more_levels_than_a_budget_carries_are_told_with_the_most_it_does() -> None:
    def told(levels: int, epsilon: float, records: int) -> list[str]:
        schema = sv.Schema({"c": {"levels": list(range(levels))}, "y": {"levels": [0, 1]}}, label="y")
        table = {"c": np.arange(records) % levels, "y": np.arange(records) % 2}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            plan = sv.PrivateLogisticRegression(epsilon, 1e-5, schema=schema).plan(
                sv.Federation.central(table, schema=schema)
            )
        assert plan.signal > 30
        texts = [str(warning.message) for warning in caught]
        assert all(f"Have at most {plan.signal:.0f}: merge them by prefix or groups" in text for text in texts)
        return [*texts, str(math.floor(plan.signal))]

    *none, most = told(10, 1.0, 2000)
    assert not none
    assert not told(int(most), 1.0, 2000)[:-1]
    assert len(told(int(most) + 1, 1.0, 2000)[:-1]) == 1
    assert not told(int(most) + 1, 3.0, 2000)[:-1]


def test_a_file_of_more_than_levels_and_sets_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "icd.csv").write_text("I20\nI21,angina\n")
    with pytest.raises(sv.InputError, match=r"columns.c: .*icd.csv: line 2 has a comma"):
        sv.Schema.from_table({"columns": {"c": {"levels_file": "icd.csv"}}}, tmp_path)
    with pytest.raises(sv.InputError, match="level_sets must be a table of tables"):
        sv.Schema({"c": {"levels": "d"}}, level_sets={"d": ["I20"]})
