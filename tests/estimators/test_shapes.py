"""Models with curves: the same everywhere, better than lines where a line is wrong, in order where asked, and shown."""

from __future__ import annotations

import math
import pickle
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import SplineTransformer

import sottovoce as sv
from sottovoce.app.page import make_card, page
from sottovoce.estimators.model_file import load_model
from sottovoce.estimators.shapes import check_monotone

COLUMNS: dict[str, Any] = {
    "age": {"range": (18, 98), "missing": True},
    "income": {"range": (100, 1e6), "scale": "log", "monotone": "up"},
    "weight": {"range": (40, 140), "shape": "linear"},
    "city": {"levels": ["Rome", "Oslo", "Bonn"]},
    "smoker": {"yes": "yes", "no": "no", "missing": True},
}
SCHEMA = sv.Schema(COLUMNS | {"ill": {"levels": ["no", "yes"]}}, label="ill", shape="smooth")
LINES = sv.Schema(
    {name: {key: value for key, value in entry.items() if key in ("range", "missing", "levels", "yes", "no")}
     for name, entry in SCHEMA.table()["columns"].items()},
    label="ill",
)  # fmt: skip
COST = sv.Schema(COLUMNS | {"cost": {"range": (-10, 10)}}, label="cost", shape="smooth")


def people(records: int, seed: int = 0) -> dict[str, Any]:
    """Risk has a peak at 58 years and rises with the logarithm of the income."""
    random = np.random.default_rng(seed)
    age, income = random.uniform(18, 98, records), np.exp(random.uniform(np.log(100), np.log(1e6), records))
    city, smoker = random.choice(["Rome", "Oslo", "Bonn"], records), random.choice(["yes", "no"], records)
    score = 4 * np.exp(-(((age - 58) / 15) ** 2)) - 2 + 0.5 * (np.log(income) - 9) + (smoker == "yes") - 0.5
    return {
        "age": np.where(random.random(records) < 0.02, np.nan, age),
        "income": income,
        "weight": random.uniform(40, 140, records),
        "city": city,
        "smoker": smoker,
        "ill": np.where(score + random.logistic(size=records) > 0, "yes", "no"),
        "cost": score + random.standard_normal(records),
    }


PEOPLE, OTHERS = people(4000), people(4000, 1)


def without(table: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: cells for name, cells in table.items() if name not in names}


ILL, COSTS = without(PEOPLE, "cost"), without(PEOPLE, "ill")


def logistic(epsilon: float = 5.0, schema: sv.Schema | None = SCHEMA, **arguments: Any) -> Any:
    return sv.PrivateLogisticRegression(epsilon, schema=schema, insecure_seed=1, **arguments)


@pytest.fixture(scope="module")
def model() -> Any:
    return logistic(standard_errors=True).fit(ILL)


class TestFit:
    def test_a_curve_is_found_where_a_line_is_wrong(self) -> None:
        right = [np.mean(logistic(schema=s).fit(ILL).predict(OTHERS) == OTHERS["ill"]) for s in (LINES, SCHEMA)]
        assert right[1] > right[0] + 0.04

    def test_without_privacy_it_is_least_squares_on_the_splines_of_scikit_learn(self) -> None:
        entries = {"age": {"range": (18, 98), "knots": 9}, "weight": {"range": (40, 140)}, "cost": {"range": (-10, 10)}}
        schema, cells = sv.Schema(entries, label="cost", shape="smooth"), {name: PEOPLE[name] for name in entries}
        known = np.isfinite(cells["age"])
        cells = {name: column[known] for name, column in cells.items()}
        fitted = sv.PrivateRidge(math.inf, schema=schema).fit(cells)

        def hats(name: str, knots: int) -> Any:
            low, high = entries[name]["range"]
            spline = SplineTransformer(n_knots=knots, degree=1).fit(np.array([[low], [high]], dtype=float))
            return spline.transform(cells[name][:, None])

        X = np.hstack([hats("age", 9), hats("weight", 12)])
        expected = LinearRegression().fit(X, cells["cost"]).predict(X)
        np.testing.assert_allclose(fitted.predict(cells), expected, atol=1e-5)

    def test_files_read_in_pieces_give_the_same_bits(self, tmp_path: Path) -> None:
        pandas = pytest.importorskip("pandas")
        for place, rows in enumerate((slice(0, 1500), slice(1500, 4000))):
            frame = pandas.DataFrame(ILL)[rows]
            frame.to_csv(tmp_path / f"{place}.csv", index=False)
        read = logistic().fit(sv.Dataset(tmp_path / "*.csv", schema=SCHEMA))
        np.testing.assert_array_equal(read.coef_, logistic().fit(ILL).coef_)

    def test_parties_encode_their_own_rows_or_columns(self) -> None:
        parts = [{name: cells[rows] for name, cells in ILL.items()} for rows in (slice(0, 900), slice(900, 4000))]
        whole = logistic(schema=None).fit(sv.Federation.central(ILL, schema=SCHEMA))
        by_rows = logistic(schema=None).fit(sv.Federation.by_rows(parts, schema=SCHEMA))
        assert by_rows.plan_.features == whole.plan_.features == len(SCHEMA.feature_names) == 12 + 11 + 1 + 3 + 2
        assert np.mean(by_rows.predict(OTHERS) == OTHERS["ill"]) > 0.75
        columns = [without(ILL, "income", "city"), {name: ILL[name] for name in ("city", "income")}]
        plan = logistic(schema=None).plan(sv.Federation.by_columns(columns, schema=SCHEMA))
        assert plan.columns == (12 + 1 + 2, 11 + 3)
        np.testing.assert_allclose(np.square(plan.norms), [3.0, 2.0])

    @pytest.mark.slow
    def test_by_columns_with_secure_products_curves_are_in_order_too(self, tmp_path: Path) -> None:
        columns = [without(ILL, "income", "city"), {name: ILL[name] for name in ("city", "income")}]
        fitted = logistic(schema=None).fit(sv.Federation.by_columns(columns, schema=SCHEMA))
        assert fitted.plan_.channel.secure
        assert list(fitted.shapes_) == ["age", "weight", "smoker", "income", "city"]
        assert np.diff(fitted.shapes_["income"].effect).min() >= -1e-9
        assert np.mean(fitted.predict(OTHERS) == OTHERS["ill"]) > 0.75
        fitted.save(tmp_path / "m.json")
        np.testing.assert_array_equal(load_model(tmp_path / "m.json").coef_, fitted.coef_)

    def test_parties_with_other_knots_are_found_by_the_names(self) -> None:
        pandas = pytest.importorskip("pandas")
        other = sv.Schema(SCHEMA.table()["columns"] | {"age": {"range": (0, 98), "shape": "smooth"}}, label="ill")
        frames = [pandas.DataFrame(s.encode(ILL), columns=list(s.feature_names)) for s in (SCHEMA, other)]
        frames[0] = frames[0].drop(columns="age=missing")
        federation = sv.Federation.by_rows([(frame, ILL["ill"]) for frame in frames])
        with pytest.raises(sv.InputError, match="name their columns differently"):
            logistic(schema=None, row_norm=3.0).fit(federation)

    def test_simulated_fits_know_all_features(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = sv.simulate(logistic(), records=500, epsilon=[3.0], runs=1)
        assert str(found)


class TestOrder:
    def test_predictions_follow_a_declared_order_at_no_cost(self) -> None:
        free = sv.Schema(
            SCHEMA.table()["columns"] | {"income": {"range": (100, 1e6), "scale": "log", "shape": "smooth"}},
            label="ill",
        )
        grid = {name: np.repeat(cells[:1], 200) for name, cells in ILL.items()} | {"income": np.geomspace(1, 1e7, 200)}
        ordered, plain = (logistic(0.3, schema=schema).fit(ILL) for schema in (SCHEMA, free))
        assert np.diff(ordered.decision_function(grid)).min() >= -1e-9
        assert np.diff(plain.decision_function(grid)).min() < -1e-3  # negative control
        assert ordered.charged_as_ == plain.charged_as_ or ordered.plan_.mu == plain.plan_.mu
        assert ordered.privacy_.epsilon == plain.privacy_.epsilon
        rest = [not name.startswith("income") for name in SCHEMA.feature_names]
        np.testing.assert_array_equal(ordered.coef_[0, rest], plain.coef_[0, rest])
        np.testing.assert_array_equal(ordered.intercept_, plain.intercept_)

    def test_numbers_fall_where_they_should(self) -> None:
        down = sv.Schema(
            COST.table()["columns"] | {"age": {"range": (18, 98), "shape": "smooth", "monotone": "down"}}, label="cost"
        )
        fitted = sv.PrivateRidge(2.0, schema=down, insecure_seed=0).fit(COSTS)
        assert np.diff(fitted.shapes_["age"].effect).max() <= 1e-9
        assert np.ptp(fitted.shapes_["age"].effect) > 0.1

    def test_a_saved_model_is_the_same(self, model: Any, tmp_path: Path) -> None:
        model.save(tmp_path / "m.json")
        again = load_model(tmp_path / "m.json")
        np.testing.assert_array_equal(again.coef_, model.coef_)
        np.testing.assert_array_equal(again.decision_function(OTHERS), model.decision_function(OTHERS))
        np.testing.assert_array_equal(again.shapes_["age"].effect, model.shapes_["age"].effect)

    def test_where_no_model_could_keep_it_that_is_said_first(self) -> None:
        several = sv.Schema(SCHEMA.table()["columns"] | {"ill": {"levels": ["no", "yes", "once"]}}, label="ill")
        with pytest.raises(sv.InputError, match="monotone of income: of more than two classes"):
            logistic(schema=several).fit(ILL)
        kept: Any = SimpleNamespace(models="kept", scaled_loss=SimpleNamespace(outputs=1))
        with pytest.raises(sv.InputError, match=r"monotone of income.*parties keep them"):
            check_monotone(SCHEMA, kept)
        check_monotone(LINES, kept)


class TestShapes:
    def test_they_are_what_the_score_changes_by(self, model: Any) -> None:
        shapes = model.shapes_
        assert list(shapes) == list(SCHEMA.columns)
        one = {name: cells[:1] for name, cells in without(ILL, "ill").items()}
        for name, shape in shapes.items():
            cells = {key: np.repeat(column, len(shape.grid)) for key, column in one.items()}
            scores = model.decision_function(cells | {name: np.array(shape.grid, dtype=object)})
            np.testing.assert_allclose(np.diff(scores), np.diff(shape.effect), atol=1e-6)
            assert shape.effect.mean() == pytest.approx(0, abs=1e-9)
        for name in ("age", "smoker"):
            shape = shapes[name]
            both = np.array([None, shape.grid[0]], dtype=object)
            scores = model.decision_function({key: np.repeat(column, 2) for key, column in one.items()} | {name: both})
            assert shape.missing - shape.effect[0] == pytest.approx(scores[0] - scores[1], abs=1e-6)
        assert shapes["weight"].grid == (40, 140)
        assert shapes["city"].grid == ("Rome", "Oslo", "Bonn")
        assert [shape.scale for shape in shapes.values()] == ["linear", "log", "linear", "levels", "levels"]

    def test_a_peak_is_where_it_is(self, model: Any) -> None:
        """Of people whose risk is highest at 58 years, knots being 7.3 years apart."""
        shape = model.shapes_["age"]
        assert abs(shape.grid[int(shape.effect.argmax())] - 58) < 8
        assert shape.extremes()[0].endswith(" at 54.36") or shape.extremes()[0].endswith(" at 61.64")

    def test_several_classes_have_each_their_own(self) -> None:
        entries = {"age": {"range": (18, 98)}, "cost": {"levels": [0, 1, 2]}}
        labels = np.digitize(PEOPLE["cost"], [-1, 1])
        fitted = logistic(schema=sv.Schema(entries, label="cost", shape="smooth")).fit(
            {"age": PEOPLE["age"], "cost": labels}
        )
        assert fitted.shapes_["age"].effect.shape == (3, 12)
        assert len(fitted.shapes_["age"].extremes()) == 3
        assert len(fitted.plot_shapes(Figure()).axes) == 1
        assert "age" in str(make_card(fitted, None)["Shapes"])

    def test_without_a_schema_there_are_none(self) -> None:
        fitted = logistic(schema=None, row_norm=1.0).fit(np.eye(4)[[0, 1] * 20], [0, 1] * 20)
        with pytest.raises(sv.InputError, match="shapes are of the columns that a schema declares"):
            fitted.shapes_  # noqa: B018

    def test_pictures(self, model: Any) -> None:
        figure = model.plot_shapes(Figure(), odds=True)
        assert [axis.get_title() for axis in figure.axes] == list(SCHEMA.columns)
        assert {axis.get_yscale() for axis in figure.axes} == {"log"}
        assert figure.axes[1].get_xscale() == "log"
        line = figure.axes[0].lines[0].get_ydata()
        np.testing.assert_allclose(np.log(line), model.shapes_["age"].effect)
        ridge = sv.PrivateRidge(2.0, schema=COST, insecure_seed=0).fit(COSTS)
        assert len(ridge.plot_shapes().axes) == 5
        with pytest.raises(sv.InputError, match="odds=True: the score of 'squared' is not of odds"):
            ridge.plot_shapes(odds=True)

    @pytest.mark.slow
    def test_cards_and_reports_have_a_line_a_curve(self, model: Any) -> None:
        card = make_card(model, None)
        text, table, order, picture = card["Shapes"]
        assert "linear between its knots" in str(text)
        assert [row[0] for row in table.rows] == ["age", "income"]  # type: ignore[union-attr]
        assert order == "Put in order after the fit, as declared: income."
        assert picture.svg.startswith("<svg")  # type: ignore[union-attr]
        assert "~" not in str(card["Coefficients"])
        assert "age=missing" in str(card["Coefficients"])
        declared = str(card["What was declared of the data, and is public"])
        assert "a number from 18 to 98, along a curve of " in declared
        assert "~" not in declared
        made = page(model)
        assert "<h3>Shapes</h3>" in made
        assert "age[18..98]~1" not in made
        assert "Shapes" not in make_card(logistic(schema=LINES).fit(ILL), None)

    def test_coefficients_have_a_row_a_curve(self, model: Any) -> None:
        names = [row.name for row in model.coefficients()]
        assert names == [
            "age from 18 to 98, by its line",
            "age=missing",
            "income from 100 to 1e+06, by its line",
            "weight",
            "city=Oslo against Rome",
            "city=Bonn against Rome",
            "smoker=yes against no",
            "smoker=missing against no",
            "intercept",
        ]

    def test_heights_at_knots_have_intervals_about_the_truth(self, tmp_path: Path) -> None:
        """One of 12 is off by 5.7 standard errors with a chance below 1.5e-7; errors a fifth as wide are found out."""
        table = people(30_000, 3)
        fitted = logistic(30.0, standard_errors=True).fit(without(table, "cost"))
        found = fitted.coefficients()
        assert len(found.knots) == 24
        assert len(found) == 9
        ages, told = np.array(fitted.shapes_["age"].grid), [knot for knot in found.knots if knot.curve == "age"]
        true = 4 * np.exp(-(((ages - 58) / 15) ** 2))
        off = [
            (knot.estimate - height) / knot.standard_error
            for knot, height in zip(told, true - true.mean(), strict=True)
            if knot.identified
        ]
        assert len(off) >= 6
        assert np.abs(off).max() < 5.7
        assert 5 * np.abs(off).max() > 5.7  # negative control
        assert told[5].name == "age at 54.36"
        fitted.save(tmp_path / "m.json")
        again = load_model(tmp_path / "m.json")
        assert again.coefficients_.knots == found.knots
        lines = [len(axis.lines) for axis in again.plot_shapes(Figure()).axes]
        assert lines[0] > 2 + len(off) > lines[2]

    def test_an_estimator_of_scikit_learn_takes_encoded_rows(self, model: Any) -> None:
        pandas = pytest.importorskip("pandas")
        rows = pandas.DataFrame(SCHEMA.encode(OTHERS), columns=list(SCHEMA.feature_names))
        found = model.to_sklearn(encoded=True).predict_proba(rows)
        np.testing.assert_allclose(found, model.predict_proba(OTHERS), atol=1e-9)

    def test_a_pipeline_of_scikit_learn_takes_tables(self, model: Any) -> None:
        """Cells beyond their range, missing ones and texts among them, and columns of no use."""
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame({name: own for name, own in OTHERS.items() if name in SCHEMA.columns}).astype(object)
        frame.iloc[0], frame.iloc[1], frame.iloc[2] = None, "x", 1e9
        frame["more"] = "of no use"
        pipeline = pickle.loads(pickle.dumps(model.to_sklearn()))
        np.testing.assert_allclose(pipeline.predict_proba(frame), model.predict_proba(frame), atol=1e-9)
        np.testing.assert_array_equal(pipeline.predict(frame), model.predict(frame))
        assert pipeline[0].get_feature_names_out().tolist() == list(SCHEMA.feature_names)
