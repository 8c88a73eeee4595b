"""`sottovoce.evaluate(..., by=)`: groups of a schema's column, or of cells beside the labels, in one release."""

from __future__ import annotations

import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.app import page
from sottovoce.errors import InputError, RefusedError, RepeatedFitWarning, WireError
from sottovoce.privacy.ledger import Ledger

RNG = np.random.default_rng(0)
COUNT = 6000
AGE = RNG.uniform(18, 90, COUNT)
SEX = RNG.choice(["f", "m", "x", ""], COUNT, p=[0.5, 0.46, 0.02, 0.02])
ILL = np.where((AGE - 50) / 10 + 2 * (SEX == "m") + RNG.logistic(size=COUNT) > 0, "yes", "no")
COST = np.clip(AGE + 20 * (SEX == "m") + RNG.normal(0, 9, COUNT), 0, 200)
TABLE = {"sex": SEX, "old": np.where(AGE > 60, "y", "n"), "age": AGE, "ill": ILL}
COLUMNS = {"sex": {"levels": ["f", "m", "x"]}, "old": {"yes": "y", "no": "n"}, "age": {"range": (18, 90)}}
SCHEMA = sv.Schema({**COLUMNS, "ill": {"levels": ["no", "yes"]}}, label="ill")


def cut(table: Any, *where: int | None) -> dict[str, Any]:
    return {name: cells[slice(*where)] for name, cells in table.items()}


FIT, TEST = cut(TABLE, 3000), cut(TABLE, 3000, None)


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RepeatedFitWarning)
        warnings.filterwarnings("ignore", message="by='sex': the group 'x'")
        yield


@pytest.fixture(scope="module")
def model() -> Any:
    return sv.PrivateLogisticRegression(2.0, schema=SCHEMA, insecure_seed=0).fit(FIT)


def test_groups_are_those_of_the_column(model: Any) -> None:
    """Without noise each group has the metrics of its records alone, and all of them are the whole."""
    found, whole = (sv.evaluate(model, TEST, epsilon=math.inf, by=by) for by in ("sex", None))
    assert list(found.groups) == ["f", "m", "x", "none of these"]
    for name, own in zip(found.groups.values(), ("f", "m", "x", ""), strict=True):
        part = {column: cells[TEST["sex"] == own] for column, cells in TEST.items()}
        assert name.records.value == pytest.approx(len(part["ill"]))
        assert name["accuracy"].value == pytest.approx((model.predict(part) == part["ill"]).mean())
    np.testing.assert_allclose(found.cells, whole.cells, atol=1e-9)
    assert found["accuracy"] == whole["accuracy"]
    old = sv.evaluate(model, TEST, epsilon=math.inf, by="old").groups
    assert [old[name].records.value for name in ("y", "n")] == [(TEST["old"] == name).sum() for name in ("y", "n")]


def test_groups_cost_what_one_evaluation_does(model: Any, tmp_path: Path) -> None:
    account = Ledger.create(tmp_path / "people.ledger").open("people", epsilon=1.0, delta=1e-5)
    found = sv.evaluate(model, TEST, epsilon=0.7, by="sex", ledger=account)
    alone = sv.evaluate(model, TEST, epsilon=0.7)
    assert account.balance().spent == pytest.approx(0.7, rel=1e-2)
    assert found.plan_.releases == alone.plan_.releases
    assert found.noise == pytest.approx(2 * alone.noise)  # the sum of four groups' cells
    assert found.groups["f"].noise == alone.noise


def test_cells_beside_labels_are_groups_too(model: Any) -> None:
    """In one place, by rows with own noise and with secure sums, and by columns at the holder of the labels."""
    by_cells = sv.evaluate(model, TEST, epsilon=math.inf, by=TEST["sex"], groups=("f", "m"))
    assert by_cells.groups["none of these"].records.value == np.isin(TEST["sex"], ["x", ""]).sum()
    by_name = sv.evaluate(model, TEST, epsilon=math.inf, by="sex", groups=("f", "m"))
    np.testing.assert_array_equal(by_name.groups["m"].cells, by_cells.groups["m"].cells)
    parts = [(SCHEMA.encode(cut(TEST, k, None, 2)), TEST["ill"][k::2]) for k in range(2)]
    parts = [(X, sv.labels_with(y, group=TEST["sex"][k::2])) for k, (X, y) in enumerate(parts)]
    rows = sv.evaluate(model, sv.Federation.by_rows(parts), epsilon=math.inf, by="sex", groups=("f", "m"))
    for name, own in by_cells.groups.items():
        np.testing.assert_allclose(rows.groups[name].cells, own.cells, atol=1e-9)
    secure = sv.evaluate(model, sv.Federation.by_rows(parts, sums="secure"), epsilon=50.0, groups=("f", "m"))
    assert secure.plan_.channel.secure
    assert secure.groups["m"].records.value == pytest.approx((TEST["sex"] == "m").sum(), abs=10)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_by_columns_the_holder_of_the_labels_counts(order: tuple[int, int]) -> None:
    tables = ({"sex": SEX, "ill": ILL}, {"age": AGE})
    schema = sv.Schema(
        {name: COLUMNS[name] for name in ("sex", "age")} | {"ill": {"levels": ["no", "yes"]}}, label="ill"
    )

    def parts(holder: int, *where: int | None) -> sv.Federation:
        own = [cut(tables[place], *where) for place in order]
        return sv.Federation.by_columns(own, schema=schema, label_party=order.index(holder))

    model = sv.PrivateLogisticRegression(3.0, schema=schema).fit(parts(0, 3000))
    found = sv.evaluate(model, parts(0, 3000, None), epsilon=math.inf, by="sex")
    assert found.groups["x"].records.value == (SEX[3000:] == "x").sum()
    model = sv.PrivateLogisticRegression(3.0, schema=schema).fit(parts(1, 3000))
    test = parts(1, 3000, None)
    with pytest.raises(InputError, match="another party has that column"):
        sv.evaluate(model, test, epsilon=1.0, by="sex")
    assert not test.predictions  # nobody learned a score


def test_of_a_regressor_and_of_several_classes() -> None:
    schema = sv.Schema(COLUMNS, identifiers=["ill"])
    numbers = sv.PrivateRidge(5.0, schema=schema, label_bound=(0, 200)).fit(FIT, COST[:3000])
    found = sv.evaluate(numbers, TEST, COST[3000:], epsilon=math.inf, by="sex")
    own = TEST["sex"] == "m"
    predicted = numbers.predict(TEST)
    error = np.mean((predicted - COST[3000:])[own] ** 2)
    assert found.groups["m"]["mean_squared_error"].value == pytest.approx(error, rel=0.02)
    classes = sv.PrivateLogisticRegression(5.0, schema=schema, classes=(0, 1, 2))
    labels = np.digitize(COST, [40, 80])
    classes.fit(FIT, labels[:3000])
    found = sv.evaluate(classes, TEST, labels[3000:], epsilon=math.inf, by="sex")
    right = classes.predict(TEST) == labels[3000:]
    assert found.groups["m"]["accuracy"].value == pytest.approx(right[own].mean())
    assert set(found.groups["m"].by_class) == {0, 1, 2}


def test_groups_are_told_side_by_side(model: Any, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="the group 'x' has about") as caught:
        found = sv.evaluate(model, TEST, epsilon=1.0, by="sex", insecure_seed=1)
    assert {warning.filename for warning in caught} == {__file__}
    head = str(found).splitlines()[1].split()
    assert head[:2] == ["all", "sex=f"]
    assert "sex=m" in found._repr_html_()
    told = json.loads(json.dumps(found.to_dict()))
    assert told["by"] == "sex"
    assert told["groups"][3]["metrics"]["accuracy"]["value"] is None
    assert len(found.plot().axes) == len(found.metrics) + 1
    card = list(page.describe_evaluation(told))
    assert any(isinstance(part, page.CardTable) and part.heads[1:] == ("f", "m", "x", "none of these") for part in card)
    sv.write_page(found, tmp_path / "groups.html")
    text = (tmp_path / "groups.html").read_text(encoding="utf-8")
    heads = [re.findall(r"<th[^>]*>(.*?)</th>", row) for row in text.split("</tr>")]
    assert ["", "f", "m", "x", "none of these"] in heads


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"by": "age"}, "by='age' is a number"),
        ({"by": "sexes"}, "is no column of the model's schema"),
        ({"by": TEST["sex"]}, "groups=None: with cells in by"),
        ({"by": TEST["sex"], "groups": "fm"}, "groups='fm' must be a list"),
        ({"by": TEST["sex"], "groups": ("f", "f")}, "must be different"),
        ({"by": TEST["sex"][:9], "groups": ("f", "m")}, "group has shape"),
        ({"by": "sexes", "groups": ("f", "m")}, "or the name of a column of their table"),
        ({"groups": ("f", "m")}, "by=None: give the cells"),
    ],
)
def test_what_are_no_groups_is_told(model: Any, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        sv.evaluate(model, TEST, epsilon=1.0, **change)


def test_parties_without_groups_refuse_and_nothing_is_charged(model: Any, tmp_path: Path) -> None:
    account = Ledger.create(tmp_path / "people.ledger").open("people", epsilon=1.0, delta=1e-5)
    parts = sv.Federation.by_rows([(SCHEMA.encode(TEST), TEST["ill"])], ledgers=[account])
    with pytest.raises((RefusedError, WireError), match="no groups beside its labels"):
        sv.evaluate(model, parts, epsilon=0.5, groups=("f", "m"))
    assert account.balance().spent == 0.0
