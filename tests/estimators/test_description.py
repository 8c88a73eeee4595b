"""`sv.describe`: the same numbers wherever the tables are, what is refused, and how results are shown."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.data.column_kinds import Category, Number, YesNo
from sottovoce.data.schema import NO_LEVEL, codes_of
from sottovoce.errors import BudgetError, InputError
from sottovoce.federation.party import Party

SCHEMA = sv.Schema(
    {
        "age": {"range": (0, 100)},
        "income": {"range": "private"},
        "weight": {"range": (1, 1000), "shape": "smooth", "scale": "log"},
        "diet": {"levels": ["fish", "meat"]},
        "smoker": {"yes": "Y", "no": "N", "missing": True},
        "ill": {"yes": "yes", "no": "no"},
    },
    label="ill",
    identifiers=["id"],
)


def people(count: int = 3000, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    ages = np.where(rng.random(count) < 0.1, math.nan, rng.normal(50, 15, count))
    return {
        "id": np.arange(count),
        "age": ages,
        "income": rng.lognormal(10, 0.5, count),
        "weight": rng.lognormal(4, 0.3, count),
        "diet": rng.choice(np.array(["fish", "meat", "tofu", None], dtype=object), count, p=[0.5, 0.2, 0.2, 0.1]),
        "smoker": rng.choice(np.array(["Y", "N", "?"], dtype=object), count, p=[0.2, 0.7, 0.1]),
        "ill": rng.choice(np.array(["yes", "no"], dtype=object), count, p=[0.3, 0.7]),
    }


def some(table: dict[str, Any], rows: Any, *names: str) -> dict[str, np.ndarray]:
    return {name: table[name][rows] for name in names or table}


PEOPLE = people()


def test_codes_are_numbers_places_and_what_is_missing() -> None:
    cells = np.array(["1", " 2.5", "x", "", None, "inf"], dtype=object)
    assert codes_of(Number("n", 0, 1), cells).tolist() == [1.0, 2.5, *[math.inf] * 4]
    cells = np.array(["a", "b", "c", "?", None], dtype=object)
    assert codes_of(Category("n", ("a", "b"), missing=True), cells).tolist() == [0, 1, NO_LEVEL, math.inf, math.inf]
    assert codes_of(YesNo("n", "b", "a"), cells).tolist() == [0, 1, NO_LEVEL, math.inf, math.inf]
    made = SCHEMA.codes(PEOPLE, PEOPLE["ill"])
    assert made.shape == (3000, 6)
    assert SCHEMA.codes(PEOPLE).shape == (3000, 5)
    assert not np.isnan(made).any()


@pytest.mark.parametrize("strange", [b"yes", 1.5, np.float32(0.1), ["a", "b"], ("yes",), None, "long " * 20])
@pytest.mark.parametrize("levels", [["yes", "no"], [0.1, 0.2]])
def test_a_label_of_another_type_changes_no_other_records_codes(levels: list[Any], strange: Any) -> None:
    """An array of all labels would give them one type: of the text "yes" beside a number, or of 0.1 beside a text."""
    schema = sv.Schema({"age": {"range": (0, 100)}, "ill": {"levels": levels}}, label="ill")
    labels = [levels[0], levels[1], levels[1], levels[0]]
    ages = {"age": [1.0, 2.0, 3.0, 4.0]}
    changed = [*labels[:3], strange]
    for given in (labels, changed):
        party = Party("p", np.ones((4, 1)), given, codes=schema.codes_of_table(ages))
        told = [schema.codes(ages, given), schema.codes(ages | {"ill": given}, given), party.codes()]
        for codes in told:
            assert codes[:3, 1].tolist() == [0, 1, 1]
            assert codes[:, 0].tolist() == ages["age"]


def splits() -> dict[str, Any]:
    thirds = [some(PEOPLE, slice(place, None, 3)) for place in range(3)]
    parts = [some(PEOPLE, slice(None), *names) for names in (("age", "diet"), ("income", "ill"), ("smoker", "weight"))]
    return {
        "central": PEOPLE,
        "rows": sv.Federation.by_rows(thirds, schema=SCHEMA),
        "columns": sv.Federation.by_columns(parts, schema=SCHEMA),
    }


@pytest.mark.parametrize("by", [None, "ill"])
def test_the_counts_are_the_same_wherever_the_tables_are(by: str | None) -> None:
    """Without noise; and they are those of NumPy."""
    found = {name: sv.describe(data, epsilon=math.inf, schema=SCHEMA, by=by) for name, data in splits().items()}
    central = found["central"].to_dict()["columns"]
    told = {name: {tuple(names): vars(value) for *names, value in each.rows()} for name, each in found.items()}
    for each in told.values():
        assert set(each) == set(told["central"])
        for place, ends in each.items():
            assert ends == pytest.approx(told["central"][place], rel=1e-9)
    ages, diet = PEOPLE["age"], PEOPLE["diet"]
    groups = {"all records": np.ones(3000, bool)} | (
        {} if by is None else {c: PEOPLE["ill"] == c for c in ("no", "yes")}
    )
    for group, rows in groups.items():
        told = central["age"][group]["statistics"]
        assert told["mean"]["value"] == pytest.approx(np.nanmean(np.clip(ages[rows], 0, 100)))
        assert told["standard deviation"]["value"] == pytest.approx(np.nanstd(np.clip(ages[rows], 0, 100)))
        assert told["missing"]["value"] == pytest.approx(np.isnan(ages[rows]).mean())
        assert told["beyond the range"]["value"] == pytest.approx(np.mean((ages[rows] < 0) | (ages[rows] > 100)))
        assert central["diet"][group]["shares"]["fish"]["value"] == pytest.approx(np.mean(diet[rows] == "fish"))
        unmatched = central["diet"][group]["statistics"]["none of the levels"]["value"]
        assert unmatched == pytest.approx(np.mean(diet[rows] == "tofu"))
        median = central["income"][group]["statistics"]["median"]
        assert median["low"] <= np.median(PEOPLE["income"][rows]) <= median["high"] == 2 * median["low"]


def test_private_descriptions_are_near_and_cost_what_was_asked() -> None:
    thirds = [some(PEOPLE, slice(place, None, 3)) for place in range(3)]
    secure = sv.Federation.by_rows(thirds, schema=SCHEMA, sums="secure")
    for data in (*splits().values(), secure):
        found = sv.describe(data, epsilon=2.0, schema=SCHEMA, by="ill", insecure_seed=1)
        assert found.privacy_.coordinator.epsilon == pytest.approx(2.0, rel=1e-6)
        assert abs(found["age"]["mean"].value - np.nanmean(PEOPLE["age"])) < 2
        assert found.columns["diet"]["yes"]["fish"].value == pytest.approx(0.5, abs=0.1)
        assert found.classes["yes"].value == pytest.approx(np.sum(PEOPLE["ill"] == "yes"), abs=60)
        assert found["age"]["mean"].width < 4
    assert secure.record is False


def test_the_ledger_is_charged_before_and_refuses(tmp_path: Path) -> None:
    account = sv.Ledger.create(tmp_path / "l.ledger").open("people", epsilon=1.0, delta=1e-5)
    sv.describe(PEOPLE, epsilon=0.9, schema=SCHEMA, ledger=account)
    assert account.balance().spent == pytest.approx(0.9, rel=1e-2)
    with pytest.raises(BudgetError):
        sv.describe(PEOPLE, epsilon=0.9, schema=SCHEMA, ledger=account)
    assert account.balance().plans == 1


def test_what_is_refused() -> None:
    parts = [some(PEOPLE, slice(None), *names) for names in (("age", "diet", "smoker"), ("income", "weight", "ill"))]
    held = sv.Federation.by_columns(parts, schema=SCHEMA, labels="held", label_party=1)
    unlabelled = some(PEOPLE, slice(None), *(name for name in PEOPLE if name != "ill"))
    other = sv.Schema({"age": {"range": (0, 100)}, "ill": {"levels": ["yes", "no"]}}, label="ill")
    arrays = sv.Federation.by_rows([(np.ones((5, 2)), np.ones(5))] * 2)
    cases: list[tuple[str, Any, dict[str, Any]]] = [
        ("one party alone knows the labels", held, {"by": "ill"}),
        ("schema=None must be a Schema", PEOPLE, {"schema": None}),
        ("by='diet' must be the label column", PEOPLE, {"by": "diet"}),
        ("by='ill' must be the label column", unlabelled, {"by": "ill"}),
        ("are not those of this schema", splits()["rows"], {"schema": other}),
        ("are not those of this schema", arrays, {}),
        ("ledger must be None", splits()["rows"], {"ledger": "l.ledger"}),
        ("epsilon=-1", PEOPLE, {"epsilon": -1}),
        ("lacks 'age'", {"income": PEOPLE["income"]}, {}),
    ]
    for words, data, options in cases:
        with pytest.raises(InputError, match=words):
            sv.describe(data, **{"epsilon": 1.0, "schema": SCHEMA} | options)
    assert "ill" in sv.describe(held, epsilon=math.inf).columns
    assert "ill" not in sv.describe(unlabelled, epsilon=math.inf, schema=SCHEMA).columns


def test_how_results_are_shown() -> None:
    pytest.importorskip("matplotlib")
    found = sv.describe(PEOPLE, epsilon=1.0, schema=SCHEMA, by="ill", insecure_seed=2)
    told = json.loads(json.dumps(found.to_dict()))
    assert set(told["columns"]) == set(SCHEMA.columns) | {"ill"}
    assert told["plan"] == found.plan_.digest.hex()
    assert "age: mean" in str(found)
    assert "3,000 records, epsilon = 1" in str(found)
    frame = found.to_pandas()
    mean = frame[(frame.column == "age") & (frame.group == "yes") & (frame.what == "mean")]
    assert mean.value.item() == found.columns["age"]["yes"]["mean"].value
    page = found._repr_html_()
    assert page.count("<svg") >= 10
    assert "http" not in page
    assert len(found.plot().axes) == 6
    strange = sv.Schema({"<b>": {"levels": ["<script>", "a\u202eb"]}})
    shown = sv.describe({"<b>": ["<script>"] * 50}, epsilon=5.0, schema=strange).to_html()
    assert "<script>" not in shown
    assert "\u202e" not in shown
    assert "&lt;script&gt;" in shown
