"""What an epsilon costs in accuracy, simulated on made-up records and on a public look-alike, never on private ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LinearRegression, LogisticRegression

import sottovoce as sv
from sottovoce.estimators import report
from sottovoce.lab import simulation
from sottovoce.lab.simulation import SimulatedFits, declared_problem
from sottovoce.lab.synthetic import TEST, LookAlike, MadeUp
from sottovoce.privacy.ledger import Ledger

SCHEMA = sv.Schema(
    {
        "age": {"range": (18, 98)},
        "diet": {"levels": ["fish", "meat", "none"], "missing": True},
        "smoker": {"yes": 1, "no": 0},
        "ill": {"levels": ["no", "yes"]},
    },
    label="ill",
)
QUICK: dict[str, Any] = {"epsilon": [1.0], "runs": 1}


def logistic(**changes: Any) -> sv.PrivateLogisticRegression:
    return sv.PrivateLogisticRegression(**{"entry_bound": 1.0, "delta": 1e-6} | changes)


def made_up(estimator: Any, features: int = 4, **options: Any) -> MadeUp:
    wide = len(estimator.schema.feature_names) if estimator.schema is not None else features
    return MadeUp.of(declared_problem(estimator, [1000], [wide], "shared"), estimator.schema, **options)


class TestMadeUpRecords:
    def test_a_table_is_as_the_schema_says(self) -> None:
        train, test = made_up(logistic(entry_bound=None, schema=SCHEMA), missing=0.2).draw(
            3000, np.random.default_rng(0)
        )
        assert len(test.y) == TEST
        age = np.array([math.nan if cell is None else cell for cell in train.X["age"]])
        assert np.nanmin(age) >= 18
        assert np.nanmax(age) <= 98
        assert np.nanmean(age) == pytest.approx(58, abs=1.5)
        assert set(train.X["diet"].tolist()) == {"fish", "meat", "none", None}
        assert set(train.X["smoker"].tolist()) == {0, 1, None}
        assert set(train.y.tolist()) == {"no", "yes"}
        for cells in train.X.values():
            assert np.mean(np.equal(cells, None)) == pytest.approx(0.2, abs=0.05)

    def test_codes_are_of_their_levels(self) -> None:
        entries = {
            "icd": {"groups": {"heart": ["I20-I25"], "sugar": ["E1*", "250"], "young": ["001-009"]}, "digits": 3},
            "zip": {"levels": ["012", "900"], "prefix": 3, "digits": 5},
            "ill": {"groups": {"yes": ["C*"], "no": ["0"]}},
        }
        schema = sv.Schema(entries, label="ill")
        train = made_up(logistic(entry_bound=None, schema=schema)).draw(500, np.random.default_rng(0))[0]
        assert set(train.X["zip"].tolist()) == {"01200", "90000"}
        assert (schema.encode(train.X).sum(axis=1) == 2).all()

    def test_curves_have_cells_along_their_knots_and_a_declared_order(self) -> None:
        entries = {
            "cost": {"range": (1, 1e6), "scale": "log"},
            "dose": {"range": (0, 8), "knots": [1, 2], "monotone": "down"},
            "ill": {"levels": [0, 1]},
        }
        schema = sv.Schema(entries, label="ill", shape="smooth")
        source = made_up(logistic(entry_bound=None, schema=schema))
        for seed in range(3):
            train = source.draw(3000, np.random.default_rng(seed))[0]
            assert np.mean(train.X["cost"] < 1000) == pytest.approx(0.5, abs=0.05)
            assert np.median(train.X["dose"]) == pytest.approx(1.5, abs=0.05)
            assert np.all((train.X["dose"] >= 0) & (train.X["dose"] <= 8))
            assert np.corrcoef(train.X["dose"], train.y.astype(float))[0, 1] < 0.05

    @pytest.mark.parametrize(
        "declared",
        [{"entry_bound": 2.0}, {"entry_bound": None, "row_norm": 3.0}, {"entry_bound": (1.0, 2.0, 3.0, 4.0)}],
        ids=["entries", "rows", "each column"],
    )
    def test_rows_are_within_declared_bounds_and_fill_them(self, declared: dict[str, Any]) -> None:
        rows = made_up(logistic(**declared)).draw(3000, np.random.default_rng(0))[0].X
        if declared["entry_bound"] is not None:
            assert np.all(np.abs(rows).max(axis=0) <= declared["entry_bound"])
            assert np.all(np.abs(rows).max(axis=0) > 0.6 * np.asarray(declared["entry_bound"]))
        else:
            assert np.median(np.linalg.norm(rows, axis=1)) == pytest.approx(1.5, rel=0.1)

    def test_ranges_are_in_the_units_of_the_features(self) -> None:
        ranges = {"age": (20.0, 100.0), "dose": (-3.0, -1.0)}
        rows = made_up(logistic(entry_bound=None, feature_ranges=ranges), 2).draw(3000, np.random.default_rng(0))[0].X
        np.testing.assert_allclose(rows.mean(axis=0), [60, -2], rtol=0.05)
        assert np.all((rows >= [20, -3]) & (rows <= [100, -1]))

    @pytest.mark.parametrize("classes", [(0, 1), ("a", "b", "c")])
    @pytest.mark.parametrize("strength", [0.6, 0.9])
    def test_the_true_model_is_as_strong_as_asked(self, classes: tuple[Any, ...], strength: float) -> None:
        """An unpenalised fit of 10,000 records is within .015 of the true model: standard error .005."""
        source = made_up(logistic(classes=classes), strength=strength)
        train, test = source.draw(10_000, np.random.default_rng(1))
        fitted = LogisticRegression(C=1e6, max_iter=500).fit(train.X, train.y.astype(str))
        assert fitted.score(test.X, test.y.astype(str)) == pytest.approx(strength, abs=0.02)

    def test_so_is_that_of_a_number(self) -> None:
        source = made_up(sv.PrivateRidge(entry_bound=1.0, label_bound=(10, 30)), strength=0.7)
        train, test = source.draw(10_000, np.random.default_rng(1))
        assert LinearRegression().fit(train.X, train.y).score(test.X, test.y) == pytest.approx(0.7, abs=0.03)
        assert train.y.min() >= 10
        assert train.y.max() <= 30


class TestSimulate:
    def test_more_noise_costs_more_and_the_table_says_so(self) -> None:
        found = sv.simulate(logistic(), 2000, 5, epsilon=[3, 0.05], runs=2)
        assert found.epsilon == (0.05, 3.0)
        little, much, none = found.table
        assert little["accuracy_loss"] > 0.03
        assert little["log_loss_loss"] > 0.03
        assert abs(much["accuracy_loss"]) < 0.01
        assert none["epsilon"] == math.inf
        assert none["accuracy"] == pytest.approx(0.8, abs=0.03)
        assert none["accuracy_loss"] == 0
        assert little["accuracy"] == pytest.approx(none["accuracy"] - little["accuracy_loss"])
        text = str(found)
        assert "no privacy" in text
        assert "made-up records, for which the true model has accuracy 0.8" in text
        assert "no private record was read" in text

    def test_it_is_a_function_of_its_arguments(self) -> None:
        one, again, other = (str(sv.simulate(logistic(), 800, 3, seed=seed, **QUICK)) for seed in (1, 1, 2))
        assert one == again != other

    def test_nothing_is_charged_and_nothing_counts_as_a_repeated_fit(self, tmp_path: Path) -> None:
        account = Ledger.create(tmp_path / "budget.db").open("people", 1.0, 1e-5)
        before = len(report.fit_groups)
        sv.simulate(logistic(ledger=account), 800, 3, epsilon=[0.5, 5], runs=2)  # a warning would be an error
        assert account.balance().plans == 0
        assert len(report.fit_groups) == before

    @pytest.mark.parametrize(
        ("estimator", "shape"),
        [
            (logistic(), ([500, 700], 3)),
            (logistic(entry_bound=None, row_norm=2.0), (1200, [2, 3])),
            (logistic(entry_bound=None, schema=SCHEMA), ([500, 700],)),
            (logistic(entry_bound=None, schema=SCHEMA), (1200, [5, 1])),
            (logistic(classes=("a", "b", "c")), (1200, 3)),
            (sv.PrivateLinearSVC(row_norm=1.0, classes=("a", "b"), delta=1e-6), (1200, 3)),
            (sv.PrivateLasso(row_norm=1.0, label_bound=(0, 4), delta=1e-6), (1200, 3)),
        ],
        ids=["rows", "columns", "tables by rows", "tables by columns", "three classes", "svm", "lasso"],
    )
    def test_every_shape(self, estimator: Any, shape: tuple[Any, ...]) -> None:
        found = sv.simulate(estimator, *shape, epsilon=[20.0], runs=1)
        assert found.records == found.of == 1200
        first = next(iter(found.plain))
        assert found.table[0][first] > (0.3 if first == "r2" else 0.6)
        assert ("log_loss" in found.plain) == hasattr(estimator, "predict_proba")

    @pytest.mark.slow
    def test_of_many_records_few_are_simulated_and_noise_costs_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With a negative control: fewer records at the same epsilon would cost several times as much."""
        options: dict[str, Any] = {"epsilon": [0.1], "runs": 3}
        whole = sv.simulate(logistic(), 12_000, 6, **options)
        monkeypatch.setattr(simulation, "ENTRIES", 6 * 3000)
        scaled = sv.simulate(logistic(), 12_000, 6, **options)
        assert (scaled.records, scaled.of) == (3000, 12_000)
        assert "scaled down to 3,000 of 12,000 records" in str(scaled)
        monkeypatch.setattr(SimulatedFits, "simulated_epsilon", lambda self, epsilon: epsilon)
        wrong = sv.simulate(logistic(), 12_000, 6, **options)
        cost = whole.table[0]["log_loss_loss"]
        assert scaled.table[0]["log_loss_loss"] == pytest.approx(cost, rel=0.5)
        assert wrong.table[0]["log_loss_loss"] > 2 * cost

    def test_a_solver_that_cannot_be_scaled_down_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(simulation, "ENTRIES", 1)
        estimator = logistic(solver="frank-wolfe", radius=5.0, l1_ratio=1)
        with pytest.raises(sv.InputError, match=r"records=3000000: scaled down to 1,000, .* with solver='whitened'"):
            sv.simulate(estimator, 3_000_000, 5, **QUICK)

    def test_a_plot(self) -> None:
        figure = pytest.importorskip("matplotlib.figure").Figure()
        ax = figure.subplots()
        assert sv.simulate(logistic(), 800, 3, **QUICK).plot(ax) is figure
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("epsilon", "accuracy")
        assert [text.get_text() for text in ax.get_legend().get_texts()] == [
            "without privacy",
            "private, ± noise over runs",
        ]

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"epsilon": [0.1, math.inf]}, "epsilon="),
            ({"epsilon": []}, "epsilon="),
            ({"records": None}, "records=None"),
            ({"features": None}, "features=None"),
            ({"records": [5, 5], "features": [1, 1]}, "not both"),
            ({"strength": 0.4}, "strength=0.4 must be the accuracy of the true model, between 0.5 and 1"),
            ({"missing": 0.1}, "needs a schema"),
            ({"features": 20_000}, "at most 10,000 features; give a public look-alike"),
            ({"runs": 0}, "runs=0"),
            ({"like": (np.zeros((5, 3)), np.zeros(5))}, "at least 10 records"),
            ({"like": np.zeros((20, 3))}, "no labels"),
            ({"estimator": LogisticRegression()}, "estimator=LogisticRegression"),
            ({"estimator": logistic(entry_bound=None)}, "row_norm=None"),
        ],
        ids=str,
    )
    def test_bad_arguments(self, changes: dict[str, Any], words: str) -> None:
        arguments = {"estimator": logistic(), "records": 500, "features": 3, **QUICK} | changes
        with pytest.raises(sv.InputError, match=words):
            sv.simulate(**arguments)


class TestLookAlike:
    def data(self, records: int = 1500) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(3)
        X = rng.uniform(-1, 1, (records, 3))
        return X, np.where(X[:, 0] + 0.2 * rng.standard_normal(records) > 0, "ill", "well")

    @pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix])
    def test_its_own_labels_are_learned(self, kind: Any) -> None:
        X, y = self.data()
        found = sv.simulate(logistic(), like=(kind(X), y), **QUICK)
        assert (found.records, found.of) == (1000, 1500)
        assert found.table[0]["accuracy"] > 0.85
        assert "a public look-alike of 1,500 records" in str(found)
        assert "made-up" not in str(found)
        shuffled = sv.simulate(logistic(), like=(kind(X), np.random.default_rng(0).permutation(y)), **QUICK)
        assert shuffled.table[0]["accuracy"] < 0.65

    def test_a_table_by_the_schema(self) -> None:
        train, _ = made_up(logistic(entry_bound=None, schema=SCHEMA), strength=0.9).draw(900, np.random.default_rng(0))
        table = {**train.X, "ill": train.y}
        found = sv.simulate(logistic(entry_bound=None, schema=SCHEMA), [300, 400], like=table, **QUICK)
        assert found.of == 700
        assert found.records in (599, 600)  # two thirds of 900, shared out in whole records
        assert found.table[-1]["accuracy"] > 0.75

    def test_records_to_score_on_are_not_those_of_the_fit(self) -> None:
        X, y = self.data(90)
        source = LookAlike.of((X, y), None)
        train, test = source.draw(source.most, np.random.default_rng(0))
        assert (len(train.y), len(test.y)) == (60, 30)
        assert not set(map(tuple, train.X)) & set(map(tuple, test.X))
