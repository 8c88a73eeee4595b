"""Columns that are products of two declared ones, and reference levels: features, bounds, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sottovoce as sv
from sottovoce.data.coded import Coded
from sottovoce.errors import InputError

COLUMNS: dict[str, Any] = {
    "age": {"range": (20, 80), "missing": True, "fill": 80},
    "bmi": {"range": (15, 45)},
    "sex": {"levels": ["m", "f"], "reference": "f", "other": True},
    "diet": {"levels": ["a", "b", "c"]},
    "smoker": {"yes": "y", "no": "n"},
    "age bmi": {"product": ["age", "bmi"]},
    "age sex": {"product": ("age", "sex")},
    "diet sex": {"product": ["diet", "sex"]},
    "sex smoker": {"product": ["sex", "smoker"]},
}
SCHEMA = sv.Schema(COLUMNS)
TABLE = {
    "age": [60, None, 1000],
    "bmi": [35, 20, "?"],
    "sex": ["m", "f", "x"],
    "diet": ["b", "c", None],
    "smoker": ["y", "n", None],
}
PRODUCTS = {
    "age*bmi": [50, -300, 0],  # from the middles 50 and 30
    "age*sex=m": [10, 0, 0],
    "age*sex=other": [0, 0, 30],
    "diet=b*sex=m": [1, 0, 0],
    "diet=b*sex=other": [0, 0, 0],
    "diet=c*sex=m": [0, 0, 0],
    "diet=c*sex=other": [0, 0, 0],
    "sex=m*smoker=y": [1, 0, 0],
    "sex=other*smoker=y": [0, 0, 0],
}


def test_a_product_is_made_of_the_cells_of_its_row() -> None:
    assert SCHEMA.feature_names[-9:] == tuple(PRODUCTS)
    np.testing.assert_array_equal(SCHEMA.encode(TABLE)[:, -9:], np.array([*PRODUCTS.values()]).T)
    assert SCHEMA.encode({name: [] for name in TABLE}).shape == (0, len(SCHEMA.feature_names))
    with pytest.raises(InputError, match="'sex' of the schema"):
        SCHEMA.encode({name: cells for name, cells in TABLE.items() if name != "sex"})


def test_rows_that_are_kept_as_cells_have_the_same_products() -> None:
    cells = {name: np.array(own, dtype=object) for name, own in TABLE.items()}
    rows = Coded.read(SCHEMA._places, cells, 3)
    np.testing.assert_array_equal(rows.dense(), SCHEMA.encode(TABLE))
    np.testing.assert_array_equal(rows.csr().toarray(), SCHEMA.encode(TABLE))
    assert not rows.whole


@given(
    st.lists(
        st.tuples(*(st.sampled_from(["m", "f", "x", None, "y", "n", "a", "b", "?", -1e9, 20, 49.9, 80, 1e300]),) * 5)
    )
)
def test_no_row_is_longer_than_the_norm(cells: list[Any]) -> None:
    table = dict(zip(TABLE, map(list, zip(*cells, strict=True)), strict=False)) or {name: [] for name in TABLE}
    low, high = map(np.array, SCHEMA.feature_ranges)
    rows = (SCHEMA.encode(table) - (low + high) / 2) * 2 / (high - low)
    assert np.abs(rows).max(initial=0.0) <= 1 + 1e-12
    assert np.linalg.norm(rows, axis=1).max(initial=0.0) <= SCHEMA.row_norm + 1e-9
    for own, column in SCHEMA.placed[-4:]:
        assert (rows[:, own] ** 2).sum(axis=1).max(initial=0.0) <= column.square + 1e-12


def test_some_rows_reach_the_bound_of_a_product() -> None:
    ends = {"age": [80, 20], "bmi": [15, 45], "sex": ["m", "m"], "diet": ["b", "b"], "smoker": ["y", "y"]}
    low, high = map(np.array, SCHEMA.feature_ranges)
    rows = (SCHEMA.encode(ends) - (low + high) / 2) * 2 / (high - low)
    assert all(np.allclose((rows[:, own] ** 2).sum(axis=1), 1.0) for own, _ in SCHEMA.placed[-4:])


def test_a_schema_with_products_is_written_and_read(tmp_path: Path) -> None:
    schema = sv.Schema({**COLUMNS, "ill": {"levels": ["no", "yes"]}}, label="ill")
    schema.to_toml(tmp_path / "schema.toml")
    again = sv.Schema.from_toml(tmp_path / "schema.toml")
    assert again == schema
    assert again.row_norm == schema.row_norm
    assert again.of_features(schema.feature_names) == schema
    assert "the product of age and sex, from -30 to 30, age from 50" in schema._repr_html_()


def test_levels_are_told_against_the_reference_and_products_leave_it_out() -> None:
    told, base = SCHEMA.contrasts()
    names = [name for name, _ in told]
    assert "sex=m against f" in names
    assert not [name for name in names if name.startswith("sex=f")]
    assert [SCHEMA.feature_names[place] for place in SCHEMA.references] == ["sex=f", "diet=a"]
    assert base[list(SCHEMA.feature_names).index("age*bmi")] == 50 * 30  # of numbers that are 0
    assert {"age*bmi (age from 50, bmi from 30)", "age*sex=m (age from 50)"} <= set(names)  # where their numbers count
    assert base[-8:].tolist() == [0.0] * 8
    falsy = sv.Schema({"code": {"levels": [1, 0], "reference": 0}})
    assert falsy.table()["columns"]["code"]["reference"] == 0
    assert [name for name, _ in falsy.contrasts()[0]] == ["code=1 against 0"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"new": {"product": "age"}}, "must be two other columns"),
        ({"new": {"product": ["age", "age"]}}, "must be two other columns"),
        ({"new": {"product": ["age", "agee"]}}, "'agee' is no declared column"),
        ({"new": {"product": ["age", "age bmi"]}}, "'age bmi' is no declared column"),
        ({"new": {"product": ["age", "sex"], "range": (0, 1)}}, "has no key 'range'"),
        ({"bmi": {"range": "private"}}, "'bmi' has no declared straight range"),
        ({"bmi": {"range": (15, 45), "shape": "smooth"}}, "'bmi' has no declared straight range"),
        ({"twice": {"product": ["age", "bmi"]}}, "two features would be called 'age\\*bmi'"),
        ({"diet": {"levels": ["a", "b"], "reference": "z"}}, "reference = 'z' must be one of its levels"),
        ({"diet": {"levels": ["a", "b"], "reference": ["a"]}}, "must be a text, a number"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        sv.Schema({**COLUMNS, **changes})


def test_by_rows_they_are_those_of_one_place_and_by_columns_refused() -> None:
    rng = np.random.default_rng(0)
    table: dict[str, Any] = {"age": rng.uniform(20, 80, 600), "sex": rng.choice(["m", "f"], 600)}
    table["ill"] = np.where((table["age"] - 50) * (table["sex"] == "m") + rng.normal(size=600) > 0, "yes", "no")
    columns = {"age": {"range": (20, 80)}, "sex": {"levels": ["m", "f"]}, "both": {"product": ["age", "sex"]}}
    schema = sv.Schema({**columns, "ill": {"levels": ["no", "yes"]}}, label="ill")
    parts = [{name: cells[own] for name, cells in table.items()} for own in (slice(200), slice(200, 600))]
    given = {"epsilon": np.inf, "delta": 1e-6}
    here = sv.PrivateLogisticRegression(**given, schema=schema, alpha=0.01).fit(table)
    there = sv.PrivateLogisticRegression(**given, alpha=0.01).fit(sv.Federation.by_rows(parts, schema=schema))
    np.testing.assert_allclose(here.coef_, there.coef_, atol=1e-5)
    assert here.coef_[0, -1] == pytest.approx(-here.coef_[0, 0], rel=0.3)  # of f, beside the slope of all
    assert set(here.shapes_) == {"age", "sex", "both"}
    with pytest.raises(InputError, match="nobody has both columns of this product"):
        sv.Federation.by_columns([{"age": table["age"], "ill": table["ill"]}, {"sex": table["sex"]}], schema=schema)
