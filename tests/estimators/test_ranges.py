"""Fits that buy ranges: what they cost, what they leave, and when they stop before or after anything is spent."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.algorithms import ranges as rule
from sottovoce.errors import BudgetError, InputError
from sottovoce.estimators import model_file
from sottovoce.estimators.fits import EstimatedRanges
from sottovoce.federation.coordinator import Coordinator
from sottovoce.privacy.accounting import gaussian_mu
from sottovoce.privacy.calibration import mu_for
from sottovoce.privacy.events import RELATIONS, inside
from support import events_of

N = 12_000
COLUMNS: dict[str, Any] = {
    "age": {"range": "private"},
    "income": {"range": "private", "missing": True},
    "height": {"range": (0, 3000), "narrow": True},
    "diet": {"levels": ["fish", "meat"]},
    "ill": {"yes": "yes", "no": "no"},
}
SCHEMA = sv.Schema(COLUMNS, label="ill")


def people(records: int = N, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    age = rng.normal(50, 12, records)
    income = np.where(rng.random(records) < 0.2, math.nan, rng.lognormal(10, 0.4, records))
    ill = np.where(0.1 * (age - 50) + rng.logistic(size=records) > 0, "yes", "no")
    diet = rng.choice(["fish", "meat"], records)
    return {"age": age, "income": income, "height": rng.normal(170, 9, records), "diet": diet, "ill": ill}


PEOPLE, OTHERS = people(), people(1000, 1)


def some(table: dict[str, Any], rows: slice, *names: str) -> dict[str, Any]:
    return {name: table[name][rows] for name in names or table}


def classifier(**changes: Any) -> sv.PrivateLogisticRegression:
    return sv.PrivateLogisticRegression(**{"epsilon": 2.0, "insecure_seed": 4, **changes})


def federation(split: str) -> sv.Federation:
    if split == "rows":
        halves = [some(PEOPLE, slice(0, 5000)), some(PEOPLE, slice(5000, None))]
        return sv.Federation.by_rows(halves, names=["north", "south"], schema=SCHEMA)
    parts = [some(PEOPLE, slice(None), "age", "ill"), some(PEOPLE, slice(None), "income", "height", "diet")]
    return sv.Federation.by_columns(parts, names=["clinic", "bank"], schema=SCHEMA)


def check_found(model: Any) -> None:
    """Ranges about where the values are, with most of them inside."""
    assert list(model.ranges_) == ["age", "income", "height"]
    for name, (low, high) in model.ranges_.items():
        values = PEOPLE[name][np.isfinite(PEOPLE[name])]
        assert np.mean((values < low) | (values > high)) < 0.08, name
        assert high - low < 2 * np.ptp(values), name
    assert model.schema_.columns["age"].entry() == {"range": list(model.ranges_["age"])}
    assert not model.schema_.estimated


@pytest.fixture(scope="module")
def central() -> Any:
    return classifier(schema=SCHEMA).fit(PEOPLE)


class TestOnEverySplit:
    def test_in_one_place(self, central: Any) -> None:
        check_found(central)
        assert np.mean(central.predict(OTHERS) == OTHERS["ill"]) > 0.68
        ages = dict(zip(central.feature_names_in_, central.plan_.bounds.feature_low, strict=True))
        assert ages["age"] == central.ranges_["age"][0]
        assert central.plan_.bounds.filled == (0, 1, 3)

    def test_by_rows(self) -> None:
        model = classifier(epsilon=3.0).fit(federation("rows"))
        check_found(model)
        assert np.mean(model.predict(OTHERS) == OTHERS["ill"]) > 0.68
        assert model.privacy_.against("world").epsilon < model.privacy_.against("coordinator").epsilon

    @pytest.mark.slow
    def test_by_columns_each_party_its_own(self) -> None:
        """One record is with both parties, and their counts are charged together."""
        parties = federation("columns")
        parties.record = True
        model = classifier(epsilon=4.0).fit(parties)
        check_found(model)
        assert model.privacy_.against("coordinator").epsilon == pytest.approx(4.0, rel=1e-6)
        sizes = {(said.sender, said.name): len(said.payload) for said in model.transcript_ if said.name == "powers"}
        assert sizes == {("clinic", "powers"): rule.POWERS, ("bank", "powers"): 2 * rule.POWERS}
        joint = parties.people(
            [some(OTHERS, slice(None), "age"), some(OTHERS, slice(None), "income", "height", "diet")]
        )
        found, expected = model.decision_function(joint), model.decision_function(OTHERS)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)  # pads round, and a score may be near 0

    def test_arrays_without_a_schema_and_a_label(self) -> None:
        X = np.column_stack([PEOPLE["age"], PEOPLE["height"]])
        y = 3 * PEOPLE["age"] + 5 * np.random.default_rng(1).standard_normal(N)
        model = sv.PrivateRidge(epsilon=2.0, feature_ranges="private", label_bound="private", insecure_seed=4)
        model.fit(X, y)
        assert list(model.ranges_) == ["x0", "x1", "the label"]
        low, high = model.ranges_["the label"]
        assert (model.plan_.bounds.label_low, model.plan_.bounds.label_high) == (low, high)
        assert np.mean((y < low) | (y > high)) < 0.05
        assert model.score(X, y) > 0.8
        schema = sv.Schema({"age": {"range": "private"}, "cost": {"range": "private"}}, label="cost")
        model = sv.PrivateRidge(epsilon=2.0, schema=schema, insecure_seed=4).fit({"age": PEOPLE["age"], "cost": y})
        assert model.ranges_["cost"] == model.schema_.label_bound

    def test_three_classes_and_an_evaluation(self, central: Any) -> None:
        """Undeclared labels make null rows, whose cells are not counted."""
        three = np.where(PEOPLE["age"] > 60, "old", np.where(PEOPLE["age"] > 40, "middle", "young"))
        schema = sv.Schema({"age": {"range": "private"}, "is": {"levels": ["young", "middle", "old"]}}, label="is")
        model = classifier(schema=schema).fit({"age": PEOPLE["age"], "is": three})
        assert model.coef_.shape == (3, 1)
        assert model.score({"age": PEOPLE["age"]}, three) > 0.6
        for test in (OTHERS, sv.Federation.by_rows([OTHERS, people(1000, 2)], schema=SCHEMA)):
            found = sv.evaluate(central, test, epsilon=2.0, insecure_seed=1)
            assert found["accuracy"].value == pytest.approx(0.7, abs=0.06)

    def test_without_privacy(self) -> None:
        model = classifier(schema=SCHEMA, epsilon=math.inf).fit(PEOPLE)
        check_found(model)


@pytest.mark.parametrize(("split", "relation"), [*itertools.product(["central", "rows", "columns"], RELATIONS)])
def test_the_whole_is_what_was_asked_for(split: str, relation: Any) -> None:
    """mu^2 of both plans adds up to that of the budget, of a record of any party; the share is the rule's."""
    where = sv.Federation.central(PEOPLE, schema=SCHEMA) if split == "central" else federation(split)
    model = classifier(epsilon=6.0, relation=relation).fit(where)
    ranges, fit = model.plans_
    assert (ranges.algorithm, fit) == ("ranges", model.plan_)
    for party in fit.names:
        squares = [gaussian_mu(events_of(plan, relation, party), relation) ** 2 for plan in (ranges, fit)]
        assert sum(squares) <= mu_for(6.0, inside(1e-5)) ** 2 * (1 + 1e-9)
        assert squares[0] / sum(squares) == pytest.approx(rule.share_of(3, fit.changed(epsilon=6.0).signal), rel=1e-5)
    assert model.privacy_.epsilon <= 6.0
    assert algorithms.epsilons(fit)["coordinator"] < model.privacy_.against("coordinator").epsilon
    assert model.communication_.uplink["powers"] > 0
    assert sum(model.communication_.uplink.values()) < model.communication_.uplink_bytes


def test_a_missing_cell_counts_as_the_middle(central: Any) -> None:
    """As with a declared range: the row stays, and the flag says that the cell is missing."""
    low, high = central.ranges_["income"]
    first = some(OTHERS, slice(0, 1))
    middle, missing = first | {"income": [(low + high) / 2]}, first | {"income": [None]}
    flag = dict(zip(central.feature_names_in_, central.coef_.ravel(), strict=True))["income=missing"]
    difference = central.decision_function(missing) - central.decision_function(middle)
    assert difference == pytest.approx(flag)
    open_rows, bought_rows = SCHEMA.encode(OTHERS), central.schema_.encode(OTHERS)
    assert np.isnan(open_rows[:, 1]).sum() == (bought_rows[:, 2] == 1).sum() > 100
    coef, intercept = central.coef_.ravel(), float(np.ravel(central.intercept_)[0])
    scores = [central.plan_.preparation.scores(rows, coef, intercept) for rows in (open_rows, bought_rows)]
    np.testing.assert_allclose(*scores, rtol=1e-12)


def test_a_model_file_says_what_was_bought(central: Any, tmp_path: Path) -> None:
    central.save(tmp_path / "model.json")
    loaded = model_file.load_model(tmp_path / "model.json")
    assert loaded.ranges_ == central.ranges_
    assert loaded.schema_ == central.schema_
    np.testing.assert_array_equal(loaded.decision_function(OTHERS), central.decision_function(OTHERS))
    fit, ranges = loaded.plans_
    assert fit is loaded.plan_
    assert ranges == central.plans_[0]
    assert ranges.digest == central.plans_[0].digest  # its name in the ledgers


class TestStops:
    def test_a_range_that_stays_unknown_is_said_and_no_guess(self) -> None:
        """A column of which no power of two is common stops the fit; what was spent is said."""
        rng = np.random.default_rng(3)
        wide = {**PEOPLE, "age": rng.choice([-1, 1], N) * 2.0 ** rng.uniform(-20, 40, N)}
        with pytest.raises(InputError, match=r"the range of 'age' is unknown.*Epsilon 0\.\d+ .* is spent"):
            classifier(epsilon=0.8, schema=SCHEMA).fit(wide)
        known = SCHEMA.with_ranges([sv.Schema({"age": {"range": (-1e13, 1e13), "narrow": True}}).columns["age"]])
        model = classifier(epsilon=0.8, schema=known).fit(wide)
        assert model.ranges_["age"] == (-1e13, 1e13)  # what is known publicly stays

    def test_a_purchase_that_stops_a_fit_is_added_up_without_a_ledger_too(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unknown = {"age": None}
        monkeypatch.setattr(EstimatedRanges, "named", lambda *_: sv.Schema.from_table(unknown))  # it stops
        model = classifier(epsilon=0.8, schema=SCHEMA, insecure_seed=None)
        with pytest.raises(InputError):
            model.fit(PEOPLE)
        spent = model.privacy_.epsilon
        assert 0 < spent < 0.5
        with (
            pytest.warns(sv.errors.RepeatedFitWarning, match=f"all 2 together promise epsilon={2 * spent:.4g}"),
            pytest.raises(InputError),
        ):
            model.fit(PEOPLE)

    @pytest.mark.parametrize(("records", "says"), [(700, "cannot be bought.*Nothing was charged"), (2500, "Tails")])
    def test_too_few_records_are_refused_or_warned_of_before_anything_is_charged(
        self, records: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        account = sv.Ledger.create(tmp_path / "ledger").open("people", 3.0, 1e-5)
        model = classifier(schema=SCHEMA, ledger=account, epsilon=1.0)
        monkeypatch.setattr(Coordinator, "run", lambda *_, **__: pytest.fail("something was run"))
        kind = pytest.raises(InputError, match=says) if records == 700 else pytest.warns(UserWarning, match=says)
        with kind:
            model.plan(some(PEOPLE, slice(0, records)))
        assert account.balance().plans == 0

    def test_nobody_pays_for_ranges_and_is_refused_the_fit(self, tmp_path: Path) -> None:
        """The first plan alone fits the account, both do not; a control that fits has two entries."""
        ledger = sv.Ledger.create(tmp_path / "ledger")
        short = ledger.open("short", 1.0, 1e-5, composition="gaussian")
        with pytest.raises(BudgetError, match="short"):
            classifier(schema=SCHEMA, ledger=short, insecure_seed=None).fit(PEOPLE)
        assert short.balance().plans == 0
        exact = ledger.open("exact", 2.0, 1e-5, composition="gaussian")
        classifier(schema=SCHEMA, ledger=exact, insecure_seed=None).fit(PEOPLE)
        assert exact.balance().plans == 2
        assert exact.balance().share == pytest.approx(1.0, rel=1e-6)

    def test_what_parties_tell_of_their_budgets_is_before_and_after_both_plans(self, tmp_path: Path) -> None:
        accounts = [sv.Ledger.create(tmp_path / name).open(name, 9.0, 1e-5) for name in ("north", "south")]
        halves = [some(PEOPLE, slice(0, 5000)), some(PEOPLE, slice(5000, None))]
        telling = sv.Policy(tell_budget=True)
        parties = sv.Federation.by_rows(
            halves, names=["north", "south"], ledgers=accounts, policy=telling, schema=SCHEMA
        )
        model = classifier(epsilon=3.0, insecure_seed=None).fit(parties)
        assert [[balance.plans for balance in told] for told in model.budgets_.values()] == [[0, 2], [0, 2]]

    def test_a_party_that_refuses_the_fit_is_asked_before_the_ranges_are_charged(self, tmp_path: Path) -> None:
        accounts = [sv.Ledger.create(tmp_path / name).open(name, 3.0, 1e-5) for name in ("north", "south")]
        halves = [some(PEOPLE, slice(0, 5000)), some(PEOPLE, slice(5000, None))]
        policy = sv.Policy(max_epsilon=0.7)  # which the ranges alone are below
        parties = sv.Federation.by_rows(halves, ledgers=accounts, schema=SCHEMA, policy=policy)
        with pytest.raises(sv.errors.RefusedError, match=r"limit 0\.7"):
            classifier(insecure_seed=None).fit(parties)
        assert [account.balance().plans for account in accounts] == [0, 0]

    def test_what_cannot_be_shared_out(self) -> None:
        X, y = np.column_stack([PEOPLE["age"]]), PEOPLE["ill"]
        for changes, says in (
            ({"solver": "frank-wolfe", "radius": 1.0}, "shares mu squared"),
            ({"calibration": "paper", "solver": "sgd"}, "calibration='paper'"),
            ({"feature_ranges": "auto"}, "'private'"),
        ):
            with pytest.raises(InputError, match=says):
                classifier(**{"feature_ranges": "private", "classes": ("no", "yes"), **changes}).fit(X, y)
        with pytest.raises(InputError, match=r"label_bound='auto'.*'private'"):
            sv.PrivateRidge(label_bound="auto", feature_ranges="private").fit(X, np.ones(N))


class TestSchema:
    def test_what_may_be_said_of_a_range_that_is_bought(self) -> None:
        for entry, says in (
            ({"range": "private", "fill": 3}, "fill = 3"),
            ({"range": (0, 9), "narrow": True, "fill": 3}, "fill = 3"),
            ({"range": "private", "narrow": True}, "no range to narrow"),
            ({"range": (0, 9), "narrow": 1}, "narrow = 1"),
            ({"range": "auto"}, re.escape('range = "private"')),
        ):
            with pytest.raises(InputError, match=says):
                sv.Schema({"age": entry})

    def test_it_is_written_and_read_and_counts_as_any_number(self, tmp_path: Path) -> None:
        SCHEMA.to_toml(tmp_path / "schema.toml")
        assert sv.Schema.from_toml(tmp_path / "schema.toml") == SCHEMA
        assert 'age = { range = "private" }' in (tmp_path / "schema.toml").read_text()
        assert SCHEMA.row_norm == pytest.approx(2.0)  # three numbers and a category
        assert list(SCHEMA.estimated) == [0, 1, 3]
        cells = SCHEMA.encode({"age": [1e9, None], "income": ["?", 1], "height": [1e9, -9], "diet": ["meat", ""]})
        np.testing.assert_array_equal(cells, [[1e9, math.nan, 1, 3000, 0, 1], [math.nan, 1, 0, 0, 0, 0]])
