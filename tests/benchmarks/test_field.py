"""The table of other libraries: the page has what is stored, and every row that names a method has figures of it."""

from __future__ import annotations

import field
import pytest
from peers import results
from utility import OPTIMUM, key

pytestmark = pytest.mark.slow

CELLS = results.Results(results.FOLDER / "field.json").cells


def test_the_page_has_the_table_of_what_is_stored() -> None:
    (table,), _ = field.tables(CELLS)
    assert table in results.PAGE.read_text(encoding="utf-8")


def test_every_method_of_a_row_was_measured_on_the_sets_that_it_can_take() -> None:
    for method in field.METHODS:
        found = {data for data in field.SETS if key(data, field.EPSILON, method) in CELLS}
        regression_only, schema_only = "AdaSSP" in method, "curves" in method
        wanted = {"california"} if regression_only else set(field.SCHEMAS) if schema_only else set(field.SETS)
        wanted -= {"california"} if method == "diffprivlib, tuned" else set()  # its regression has no setting
        assert found == wanted, method


def test_a_tuned_figure_stands_behind_that_of_the_default() -> None:
    cells = {key("adult", 1.0, "x"): {"loss": [0.5, 0.3, 0.4]}, key("adult", 1.0, "x, tuned"): {"loss": [0.2]}}
    assert field.shown_losses(cells, "adult", field.both("x")) == "0.400 / 0.200"
    assert field.shown_losses(cells, "a9a", field.both("x")) == results.NONE
    assert "/" not in field.shown_losses(cells, "adult", (OPTIMUM,))
