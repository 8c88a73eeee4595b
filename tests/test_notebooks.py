"""What results are in a notebook: tables of HTML in which no text is markup."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import sottovoce as sv

BAD = "<script>alert(1)</script>"
RNG = np.random.default_rng(0)
N = 3_000
TABLE: dict[str, Any] = {
    "id": [f"P{place}" for place in range(N)],
    BAD: RNG.uniform(0, 9, N),
    "diet": RNG.choice(["fish", "<b>meat</b>"], N),
}
TABLE["ill"] = np.where(TABLE[BAD] + 3 * (TABLE["diet"] == "fish") + RNG.logistic(size=N) > 6, "yes", "no")
SCHEMA = sv.Schema(
    {BAD: {"range": (0, 9)}, "diet": {"levels": ["fish", "<b>meat</b>"]}, "ill": {"levels": ["no", "yes"]}},
    label="ill",
    identifiers=["id"],
)


@pytest.fixture(scope="module")
def model() -> sv.PrivateLogisticRegression:
    return sv.PrivateLogisticRegression(2.0, 1e-6, schema=SCHEMA, standard_errors=True, insecure_seed=1).fit(TABLE)


class Seen(HTMLParser):
    """The tags and the texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.texts = set[str](), list[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        del attrs
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_results_are_tables_and_their_names_are_no_markup(model: Any, tmp_path: Any) -> None:
    ledger = sv.Ledger.create(tmp_path / "l.db").open("people", 2.0, 1e-6)
    found = sv.evaluate(model, TABLE, epsilon=1.0, delta=1e-6, insecure_seed=1, ledger=ledger)
    for result, says in (
        (model.coefficients(), "diet=<b>meat</b> against fish"),
        (model.privacy_, "world"),
        (model.shapes_, BAD),
        (SCHEMA, "2 levels (fish, <b>meat</b>)"),
        (found, "accuracy"),
        (ledger.balance(), "2"),
    ):
        seen = Seen(result._repr_html_())
        assert seen.tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "p"}
        assert says in seen.texts


def test_what_is_shown_is_what_is_printed(model: Any) -> None:
    assert repr(model.coefficients()) == str(model.coefficients())
    assert repr(model.privacy_) == str(model.privacy_)
    assert "coordinator" not in str(model.privacy_)
    by_rows = sv.Federation.by_rows([(np.ones((50, 2)), np.arange(50) % 2)] * 2)
    several = sv.PrivateLogisticRegression(row_norm=2.0, classes=(0, 1), insecure_seed=1).fit(by_rows)
    assert "coordinator" in str(several.privacy_)


def test_a_plan_takes_what_a_fit_takes_and_a_score_the_label_of_the_table(model: Any) -> None:
    assert model.plan(TABLE).releases == model.plan_.releases
    labels = TABLE["ill"]
    assert model.score(TABLE) == model.score(TABLE, labels) == np.mean(model.predict(TABLE) == labels)
    some = {name: list(cells) for name, cells in TABLE.items()}
    some["ill"] = ["?" if place % 2 else label for place, label in enumerate(labels)]
    assert model.score(some) == np.mean((model.predict(TABLE) == labels)[::2])
    with pytest.raises(sv.InputError, match="y=None: give the labels"):
        model.score({name: TABLE[name] for name in (BAD, "diet")})


def test_a_number_is_scored_too() -> None:
    schema = sv.Schema({"a": {"range": (0, 1)}, "b": {"range": (0, 5)}}, label="b")
    table = {"a": np.linspace(0, 1, 500), "b": 5 * np.linspace(0, 1, 500)}
    model = sv.PrivateRidge(epsilon=float("inf"), schema=schema).fit(table)
    assert model.score(table) == pytest.approx(model.score(table, table["b"]))
    assert model.score(table) > 0.9
