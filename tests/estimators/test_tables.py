"""Tables with a schema: central, by rows and by columns; names, predictions, and what is refused."""

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import sottovoce as sv
from sottovoce.estimators.model_file import load_model

SCHEMA = sv.Schema(
    {
        "age": {"range": (18, 98), "missing": True},
        "dose": {"range": (0, 4)},
        "city": {"levels": ["Rome", "Oslo", "Bonn"], "other": True},
        "smoker": {"yes": "yes", "no": "no"},
        "ill": {"levels": ["no", "yes"]},
    },
    label="ill",
    identifiers=["id"],
)
COST = sv.Schema(
    {name: SCHEMA.columns[name].entry() for name in SCHEMA.columns} | {"cost": {"range": (0, 10)}}, label="cost"
)


def people(records: int, seed: int = 0) -> dict[str, list[Any]]:
    random = np.random.default_rng(seed)
    age, dose = random.uniform(18, 98, records), random.uniform(0, 4, records)
    city, smoker = random.choice(["Rome", "Oslo", "Bonn", "Bern"], records), random.choice(["yes", "no"], records)
    score = (age - 58) / 20 + 2 * (smoker == "yes") - (city == "Rome") - 0.5 + 0.3 * random.logistic(size=records)
    gone = random.random(records) < 0.05
    return {
        "id": list(range(records)),
        "age": [None if lost else value for lost, value in zip(gone, age.tolist(), strict=True)],
        "dose": dose.tolist(),
        "city": city.tolist(),
        "smoker": smoker.tolist(),
        "ill": np.where(score > 0, "yes", "no").tolist(),
    }


def some(table: dict[str, list[Any]], rows: slice = slice(None), *names: str) -> dict[str, list[Any]]:
    return {name: table[name][rows] for name in names or table}


def logistic(**arguments: Any) -> sv.PrivateLogisticRegression:
    return sv.PrivateLogisticRegression(3.0, insecure_seed=1, **arguments)


PEOPLE, OTHERS = people(3000), people(1000, 1)


class TestCentral:
    def test_a_table_and_its_schema_are_all_that_a_fit_needs(self) -> None:
        model = logistic(schema=SCHEMA).fit(PEOPLE)
        assert model.classes_.tolist() == ["no", "yes"]
        assert model.feature_names_in_.tolist() == list(SCHEMA.feature_names)
        assert model.plan_.bounds.row_norm == SCHEMA.row_norm == 2.0
        assert np.mean(model.predict(OTHERS) == OTHERS["ill"]) > 0.85
        found = model.selected_features_
        assert found["city=Rome"] < found["city=Oslo"]
        assert found["age"] == pytest.approx(1 / 20 / 0.3, rel=0.7), "in the units of the table"

    def test_it_is_the_fit_on_the_features_made_by_hand(self) -> None:
        made = logistic(row_norm=2.0, feature_ranges=SCHEMA.feature_ranges, classes=("no", "yes"))
        made.fit(SCHEMA.encode(PEOPLE), PEOPLE["ill"])
        model = logistic(schema=SCHEMA).fit(
            some(PEOPLE, slice(None), *[n for n in PEOPLE if n != "ill"]), PEOPLE["ill"]
        )
        np.testing.assert_array_equal(model.coef_, made.coef_)
        np.testing.assert_array_equal(model.decision_function(OTHERS), made.decision_function(SCHEMA.encode(OTHERS)))

    def test_a_smaller_norm_than_the_entries_alone_give(self) -> None:
        """The point of a schema: noise for norm 2, not for the root of 8 columns."""
        assert SCHEMA.row_norm < math.sqrt(len(SCHEMA.feature_names)) - 0.6

    def test_labels_that_are_numbers_have_their_range_from_the_schema(self) -> None:
        table = some(PEOPLE, slice(None), *SCHEMA.columns) | {"cost": [10.0 * (ill == "yes") for ill in PEOPLE["ill"]]}
        model = sv.PrivateRidge(3.0, schema=COST, insecure_seed=1).fit(table)
        assert (model.plan_.bounds.label_low, model.plan_.bounds.label_high) == (0.0, 10.0)
        path = sv.PrivateLasso(3.0, schema=COST, insecure_seed=1).path(table, alphas=3)
        assert path.model(1e-3).predict(table).shape == (3000,)

    def test_clones_copies_and_files_predict_alike(self, tmp_path: Path) -> None:
        model = logistic(schema=SCHEMA).fit(PEOPLE)
        wanted = model.decision_function(OTHERS)
        assert clone(model).schema == SCHEMA
        model.save(tmp_path / "m.json")
        for other in (pickle.loads(pickle.dumps(model)), load_model(tmp_path / "m.json")):
            np.testing.assert_array_equal(other.decision_function(OTHERS), wanted)

    def test_a_repeated_fit_is_noticed(self) -> None:
        table = people(400, 7)
        sv.PrivateLogisticRegression(3.0, schema=SCHEMA).fit(table)
        with pytest.warns(sv.errors.RepeatedFitWarning):
            sv.PrivateLogisticRegression(3.0, schema=SCHEMA).fit(table)

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"schema": {"age": 3}}, "schema is of type dict and must be a Schema"),
            ({"schema": SCHEMA, "entry_bound": 1.0}, "entry_bound=1.0: the bounds of the features follow"),
            ({"schema": SCHEMA, "rescale": "unit"}, "rescale='unit'"),
        ],
    )
    def test_what_does_not_go_together_is_refused(self, arguments: dict[str, Any], text: str) -> None:
        with pytest.raises(sv.InputError, match=text):
            logistic(**arguments).fit(PEOPLE)

    def test_a_strange_column_is_refused_in_training_and_ignored_in_prediction(self) -> None:
        more = PEOPLE | {"income": [1] * 3000}
        with pytest.raises(sv.InputError, match=r"does not name: 'income'.*identifiers"):
            logistic(schema=SCHEMA).fit(more)
        model = logistic(schema=SCHEMA).fit(PEOPLE)
        np.testing.assert_array_equal(model.predict(more), model.predict(PEOPLE))

    def test_no_label_is_said(self) -> None:
        with pytest.raises(sv.InputError, match="y"):
            logistic(schema=SCHEMA).fit(some(PEOPLE, slice(None), *SCHEMA.columns))


class TestRows:
    def test_parties_with_one_schema(self) -> None:
        parts = [some(PEOPLE, slice(0, 1000)), some(PEOPLE, slice(1000, 3000))]
        model = logistic().fit(sv.Federation.by_rows(parts, schema=SCHEMA))
        by_hand = [(SCHEMA.encode(part), part["ill"]) for part in parts]
        made = logistic(row_norm=2.0, feature_ranges=SCHEMA.feature_ranges, classes=("no", "yes"))
        np.testing.assert_array_equal(model.coef_, made.fit(sv.Federation.by_rows(by_hand)).coef_)
        assert model.feature_names_in_.tolist() == list(SCHEMA.feature_names)
        assert np.mean(model.predict(OTHERS) == OTHERS["ill"]) > 0.85

    def test_central_federation_and_plan(self) -> None:
        federation = sv.Federation.central(PEOPLE, schema=SCHEMA)
        assert logistic().plan(federation).bounds == logistic(schema=SCHEMA).fit(PEOPLE).plan_.bounds

    def test_another_schema_than_the_federations_is_refused(self) -> None:
        federation = sv.Federation.central(PEOPLE, schema=SCHEMA)
        with pytest.raises(sv.InputError, match="another schema"):
            logistic(schema=COST.part(["age"])).fit(federation)

    def test_features_that_the_schema_does_not_make_are_refused(self) -> None:
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame(SCHEMA.encode(PEOPLE), columns=[f"x{j}" for j in range(8)])
        with pytest.raises(sv.InputError, match="feature 'x0' that this schema does not make"):
            logistic(schema=SCHEMA).fit(sv.Federation.central(frame, PEOPLE["ill"]))

    def test_a_table_without_labels_is_refused(self) -> None:
        with pytest.raises(sv.InputError, match=r"party-1: y=None.*label column in the schema"):
            sv.Federation.by_rows([some(PEOPLE, slice(None), *SCHEMA.columns)], schema=SCHEMA)


class TestColumns:
    parts = (some(PEOPLE, slice(None), "id", "city", "ill"), some(PEOPLE, slice(None), "smoker", "age", "dose"))

    @pytest.mark.slow
    def test_each_party_has_its_part_of_the_schema_and_of_the_norm(self) -> None:
        federation = sv.Federation.by_columns(self.parts, schema=SCHEMA)
        model = logistic().fit(federation)
        names = ("city=Rome", "city=Oslo", "city=Bonn", "city=other", "age", "age=missing", "dose", "smoker=yes")
        assert tuple(model.feature_names_in_) == names
        np.testing.assert_allclose(np.square(model.plan_.norms), [1.0, 3.0])
        assert model.plan_.bounds.feature_low == (-1, -1, -1, -1, 18, -1, 0, -1)
        joint = federation.people([some(OTHERS, slice(None), *part) for part in self.parts])
        found, expected = model.decision_function(joint), model.decision_function(OTHERS)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)  # pads round, and a score may be near 0
        assert np.mean(model.predict(OTHERS) == OTHERS["ill"]) > 0.7

    def test_held_labels(self) -> None:
        federation = sv.Federation.by_columns(self.parts, schema=SCHEMA, labels="held", label_party=0)
        assert logistic().plan(federation).labels == "held"

    def test_a_column_is_with_one_party(self) -> None:
        for parts, count in (([PEOPLE, self.parts[1]], 2), ([self.parts[0]], 0)):
            with pytest.raises(sv.InputError, match=f"is with {count} parties; by columns each is with exactly one"):
                sv.Federation.by_columns(parts, schema=SCHEMA)


def test_no_cell_is_in_an_error_and_no_cell_is_one() -> None:
    odd = {name: [*cells[:50], "SECRET"] for name, cells in PEOPLE.items()}
    model = sv.PrivateLogisticRegression(math.inf, alpha=0.1, schema=SCHEMA).fit(odd)
    assert model.predict(odd).shape == (51,)
    with pytest.raises(sv.InputError, match=r"51 of 51 rows cannot be used .* none is left") as refusal:
        logistic(schema=SCHEMA, classes=("a", "b")).fit(odd, ["SECRET"] * 51)
    assert "SECRET" not in str(refusal.value)
