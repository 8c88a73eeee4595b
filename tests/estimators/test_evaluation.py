"""`sottovoce.evaluate`: of models in one place and by rows, charged before anything is released."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.app import model_file
from sottovoce.door.frames import decode, encode
from sottovoce.errors import BudgetError, InputError, RefusedError, RepeatedFitWarning
from sottovoce.federation import prediction
from sottovoce.federation.models import parts_of
from sottovoce.federation.party import Party
from sottovoce.privacy.guarantee import VIEWS
from sottovoce.privacy.ledger import Ledger
from sottovoce.transports.in_process import InProcess

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (6000, 4))
SCORES = X @ np.array([3.0, -2.0, 1.0, 0.0])
Y = np.where(SCORES + RNG.logistic(size=6000) > 0, "yes", "no")
NUMBERS = 50 + 10 * SCORES + 5 * RNG.standard_normal(6000)
TEST = slice(4000, None)


@pytest.fixture(scope="module")
def classifier() -> Any:
    model = sv.PrivateLogisticRegression(epsilon=1.0, entry_bound=1.0, classes=("no", "yes"), insecure_seed=1)
    return model.fit(X[:4000], Y[:4000])


@pytest.fixture(scope="module")
def regressor() -> Any:
    model = sv.PrivateRidge(epsilon=1.0, feature_ranges=([-1] * 4, [1] * 4), label_bound=(0, 100), insecure_seed=1)
    return model.fit(X[:4000], NUMBERS[:4000])


@pytest.mark.parametrize(("epsilon", "tolerance"), [(math.inf, 0.004), (200.0, 0.01)])
def test_of_a_classifier(classifier: Any, epsilon: float, tolerance: float) -> None:
    """With little noise, or none, the metrics are those that scikit-learn computes from predictions."""
    found = sv.evaluate(classifier, X[TEST], Y[TEST], epsilon=epsilon, insecure_seed=1)
    labels, chance = Y[TEST] == "yes", classifier.predict_proba(X[TEST])[:, 1]
    assert found["accuracy"].value == pytest.approx(classifier.score(X[TEST], Y[TEST]), abs=tolerance / 4)
    assert found["auc"].value == pytest.approx(metrics.roc_auc_score(labels, chance), abs=tolerance)
    assert found["log_loss"].value == pytest.approx(metrics.log_loss(labels, chance), abs=tolerance)
    assert found["brier"].value == pytest.approx(metrics.brier_score_loss(labels, chance), abs=tolerance)
    assert found.complete
    assert found.cells.sum() == pytest.approx(2000, abs=20)
    assert len(found.cells) == 2 * len(found.nodes)
    assert "accuracy: " in str(found)


@pytest.mark.parametrize("epsilon", [math.inf, 200.0])
def test_of_a_regressor(regressor: Any, epsilon: float) -> None:
    found = sv.evaluate(regressor, X[TEST], NUMBERS[TEST], epsilon=epsilon, insecure_seed=1)
    predicted = regressor.predict(X[TEST])
    for name, value in (
        ("mean_squared_error", metrics.mean_squared_error(NUMBERS[TEST], predicted)),
        ("r2", metrics.r2_score(NUMBERS[TEST], predicted)),
        ("mean_absolute_error", metrics.mean_absolute_error(NUMBERS[TEST], predicted)),
    ):
        assert found[name].value == pytest.approx(value, rel=0.03), name
        assert found[name].low < value < found[name].high, name


def test_of_a_classifier_without_probabilities() -> None:
    model = sv.PrivateLinearSVC(
        epsilon=1.0, row_norm=2.0, classes=("no", "yes"), solver="gradient", fit_intercept=False
    )
    model.fit(X[:4000], Y[:4000])
    found = sv.evaluate(model, X[TEST], Y[TEST], epsilon=math.inf)
    assert model.score_spread_ is None
    assert "log_loss" not in found.metrics
    assert found.calibration == ()
    assert found["accuracy"].value == pytest.approx(model.score(X[TEST], Y[TEST]), abs=1e-9)


def test_by_rows_the_same_is_released_with_a_noise_for_each_party(classifier: Any) -> None:
    parts = [(X[4000 + k :: 3], Y[4000 + k :: 3]) for k in range(3)]
    exact = sv.evaluate(classifier, sv.Federation.by_rows(parts), epsilon=math.inf)
    whole = sv.evaluate(classifier, X[4000:], Y[4000:], epsilon=math.inf)
    np.testing.assert_allclose(exact.cells, whole.cells, atol=1e-9)
    central = sv.evaluate(classifier, X[4000:], Y[4000:], epsilon=1.0, insecure_seed=2)
    rows = sv.evaluate(classifier, sv.Federation.by_rows(parts), epsilon=1.0, insecure_seed=2)
    assert rows.plan_.releases == central.plan_.releases
    assert rows.noise == pytest.approx(math.sqrt(3) * central.noise)
    assert rows.privacy_.coordinator.epsilon == central.privacy_.coordinator.epsilon


def test_the_ledger_is_charged_before_anything_is_released(classifier: Any, tmp_path: Path) -> None:
    """What it has no room for is refused, and nothing leaves; two evaluations are two charges."""
    account = Ledger.create(tmp_path / "people.ledger").open("people", epsilon=1.0, delta=1e-5)
    sv.evaluate(classifier, X[TEST], Y[TEST], epsilon=0.7, ledger=account)
    spent = account.balance().spent
    assert spent == pytest.approx(0.7, rel=1e-2)
    with pytest.raises(BudgetError):
        sv.evaluate(classifier, X[TEST], Y[TEST], epsilon=0.7, ledger=account)
    assert account.balance().spent == spent
    assert account.balance().plans == 1


def test_without_a_ledger_a_second_evaluation_of_the_same_people_is_noticed(classifier: Any) -> None:
    people = X[TEST] + 1e-9  # which no other test has
    with warnings.catch_warnings():
        warnings.simplefilter("error", RepeatedFitWarning)
        sv.evaluate(classifier, people, Y[TEST], epsilon=0.5)
    with pytest.warns(RepeatedFitWarning, match="evaluation 2 .* promise epsilon=1"):
        sv.evaluate(classifier, people, Y[TEST], epsilon=0.5)


def test_people_that_cannot_be_used_do_not_count(classifier: Any) -> None:
    rows, labels = X[TEST].copy(), Y[TEST].copy()
    rows[:300, 0] = math.nan
    labels[300:400] = "maybe"
    found = sv.evaluate(classifier, rows, labels, epsilon=200.0, insecure_seed=1)
    assert not found.complete
    assert "could not be used" in str(found)
    assert found["accuracy"].value == pytest.approx(classifier.score(rows[400:], labels[400:]), abs=0.003)


def test_a_model_from_a_file_is_evaluated_at_the_same_nodes(classifier: Any, tmp_path: Path) -> None:
    model_file.save(classifier, tmp_path / "model.json")
    read = model_file.load(tmp_path / "model.json")
    found = [sv.evaluate(model, X[TEST], Y[TEST], epsilon=math.inf).cells for model in (classifier, read)]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": -1.0}, "epsilon=-1.0 must be a positive number"),
        ({"delta": 2.0}, "delta=2.0 must be"),
        ({"y": None}, "y=None: give the labels"),
        ({"X": X[TEST][:, :3]}, "features"),
        ({"X": sv.Federation.by_columns([X[TEST], X[TEST]], Y[TEST]), "y": None}, "split by columns"),
        ({"X": sv.Federation.by_rows([(X[TEST], Y[TEST])])}, "y and ledger must be None"),
        ({"model": "a model"}, "model=str must be a fitted estimator"),
        ({"relation": "other"}, "relation='other'"),
        ({"people": "some"}, "people='some' must be 'others'"),
    ],
)
def test_what_cannot_be_evaluated_is_told(classifier: Any, change: dict[str, Any], message: str) -> None:
    arguments = {"model": classifier, "X": X[TEST], "y": Y[TEST], "epsilon": 1.0} | change
    with pytest.raises((InputError, ValueError), match=message):
        sv.evaluate(**arguments)


def test_columns_of_other_names_are_refused(classifier: Any) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X, columns=["a", "b", "c", "d"])
    model = sv.PrivateLogisticRegression(epsilon=1.0, entry_bound=1.0, classes=("no", "yes")).fit(
        table[:4000], Y[:4000]
    )
    other = sv.Federation.by_rows([(table[["b", "a", "c", "d"]][4000:], Y[TEST])])
    with pytest.raises(InputError, match="named or ordered otherwise"):
        sv.evaluate(model, other, epsilon=1.0)


def test_a_delta_that_says_little_is_warned_of(classifier: Any) -> None:
    with pytest.warns(UserWarning, match="at or above 1/N = 0.0005") as caught:
        sv.evaluate(classifier, X[TEST], Y[TEST], epsilon=0.5, delta=1e-3, insecure_seed=1)
    assert {warning.filename for warning in caught} == {__file__}


def test_a_table_is_evaluated_by_the_schema_of_the_fit() -> None:
    rng = np.random.default_rng(0)
    colour, age = rng.choice(["red", "blue"], 2000), rng.uniform(0, 9, 2000)
    ill = np.where(age + 3 * (colour == "red") + rng.standard_normal(2000) > 6, "yes", "no")
    table = {"colour": colour, "age": age, "ill": ill}
    schema = sv.Schema(
        {"colour": {"levels": ["red", "blue"]}, "age": {"range": (0, 9)}, "ill": {"levels": ["no", "yes"]}}, label="ill"
    )
    model = sv.PrivateLogisticRegression(5.0, schema=schema, insecure_seed=0).fit(table)
    found = sv.evaluate(model, table, epsilon=math.inf)
    assert found.metrics["accuracy"].value == pytest.approx((model.predict(table) == ill).mean(), abs=0.02)


LABELS = np.array(["red", "green", "blue"])[
    np.argmax(X @ np.random.default_rng(1).normal(size=(4, 3)) * 3 + RNG.gumbel(size=(6000, 3)), axis=1)
]


@pytest.fixture(scope="module")
def several() -> Any:
    return sv.PrivateLogisticRegression(epsilon=1.0, entry_bound=1.0, insecure_seed=1).fit(X[:4000], LABELS[:4000])


@pytest.mark.parametrize("epsilon", [math.inf, 200.0])
def test_of_several_classes(several: Any, epsilon: float) -> None:
    """With little noise, or none, the metrics are those that scikit-learn computes from predictions."""
    found = sv.evaluate(several, X[TEST], LABELS[TEST], epsilon=epsilon, insecure_seed=1)
    predicted, tolerance = several.predict(X[TEST]), 1e-9 if epsilon == math.inf else 0.01
    loss = metrics.log_loss(LABELS[TEST], several.predict_proba(X[TEST]), labels=several.classes_)
    assert found["accuracy"].value == pytest.approx((predicted == LABELS[TEST]).mean(), abs=tolerance)
    assert found["log_loss"].value == pytest.approx(loss, abs=max(tolerance, 1e-3))
    assert found["log_loss"].low < loss < found["log_loss"].high
    shares = [[metric.value for metric in row] for row in found.confusion]
    true = metrics.confusion_matrix(LABELS[TEST], predicted, labels=several.classes_) / 2000
    np.testing.assert_allclose(shares, true, atol=tolerance)
    for name, score in (("recall", metrics.recall_score), ("precision", metrics.precision_score)):
        values = [found.by_class[label][name].value for label in several.classes_]
        np.testing.assert_allclose(values, score(LABELS[TEST], predicted, average=None), atol=tolerance)
    assert found.complete
    assert found.roc is None
    assert "recall of red: " in str(found)


def test_of_several_classes_by_rows(several: Any) -> None:
    parts = [(X[4000 + k :: 3], LABELS[4000 + k :: 3]) for k in range(3)]
    rows, whole = (
        sv.evaluate(several, *data, epsilon=math.inf)
        for data in ((sv.Federation.by_rows(parts),), (X[TEST], LABELS[TEST]))
    )
    np.testing.assert_allclose(rows.cells, whole.cells, atol=1e-9)


def test_people_of_the_fit_pay_for_both() -> None:
    """Declared in the plan, which all parties read; the sum is of the two guarantees, and none where one is void."""
    model = sv.PrivateLogisticRegression(epsilon=1.0, entry_bound=1.0, classes=("no", "yes"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RepeatedFitWarning)
        model.fit(X[:4000], Y[:4000])
        same = sv.evaluate(model, X[:4000], Y[:4000], epsilon=0.5, people="same")
        others = sv.evaluate(model, X[TEST], Y[TEST], epsilon=0.5)
        other_relation = sv.evaluate(model, X[:4000], Y[:4000], epsilon=0.5, people="same", relation="replace-one")
        seeded = sv.evaluate(model, X[:4000], Y[:4000], epsilon=0.5, people="same", insecure_seed=1)
        of_features = {view: replace(model.privacy_.against(view), unit="feature") for view in VIEWS}
        model.privacy_, kept = replace(model.privacy_, **of_features), model.privacy_
        features = sv.evaluate(model, X[:4000], Y[:4000], epsilon=0.5, people="same")
        model.privacy_ = kept
    epsilon = model.privacy_.epsilon + same.privacy_.epsilon
    assert same.with_fit == pytest.approx((epsilon, 2e-5))
    assert same.to_dict()["with_fit"] == {"epsilon": epsilon, "delta": pytest.approx(2e-5)}
    assert "together epsilon=1.5" in str(same)
    assert same.plan_.numbers.people == "same"
    assert any("costs add" in line for line in same.privacy_.assumptions)
    assert others.with_fit is None
    assert any("pays for one of the two" in line for line in others.privacy_.assumptions)
    for without in (other_relation, seeded, features):
        assert without.with_fit is not None
        assert without.with_fit[0] == math.inf
        assert "together no promise" in str(without)


def test_the_report_is_of_an_evaluation(classifier: Any) -> None:
    found = sv.evaluate(classifier, X[TEST], Y[TEST], epsilon=0.5)
    assert "anyone who sees the evaluation" in str(found.privacy_)
    assert "model" not in found.privacy_.world.sentence()
    assert "anyone who sees the final model" in classifier.privacy_.world.sentence() or classifier.privacy_.world.void


def test_people_that_are_only_predicted_for_are_not_evaluated_on(classifier: Any) -> None:
    federation = sv.Federation.by_rows([(X[TEST], Y[TEST])], policy=sv.Policy(trains=False))
    with pytest.raises(RefusedError, match="predictions only, and in no evaluation on these people"):
        sv.evaluate(classifier, federation, epsilon=0.5)


class TestByColumns:
    """The holder of the labels learns the scores, where all parties allow that, and releases counts of them."""

    NAMES = ("anna", "ben")

    @staticmethod
    def parts(people: slice) -> list[np.ndarray]:
        return [X[people, :2], X[people, 2:]]

    @classmethod
    def federation(cls, people: slice, y: np.ndarray, **options: Any) -> sv.Federation:
        held = {"labels": "held", "label_party": 1, "names": cls.NAMES, **options}
        return sv.Federation.by_columns(cls.parts(people), y[people], **held)

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls) -> Any:
        fitted = sv.PrivateLogisticRegression(8.0, entry_bound=1.0, classes=("no", "yes"), insecure_seed=1)
        return fitted.fit(cls.federation(slice(4000), Y))

    def elsewhere(self, model: Any, *, allows: tuple[str, ...] = ("ben",), wire: Any = InProcess) -> Any:
        """Parties that count as remote, the first of which lets `allows` learn scores."""
        models = parts_of(model.plan_, model.coef_.ravel(), float(model.intercept_[0]))
        policies = [sv.Policy(predict_for=names, predict_training=True) for names in (allows, ("ben",))]
        held = zip(self.NAMES, self.parts(TEST), (None, Y[TEST]), policies, strict=True)
        parties = [Party(name, part, labels, policy=policy) for name, part, labels, policy in held]
        for party in parties:
            party.predictor.learn(bytes.fromhex(model.charged_as_), models[party.name])
        return parties, sv.Federation.connect(wire(parties), split="columns", labels="held", label_party=1)

    def test_metrics_are_those_of_the_joint_predictions(self, model: Any) -> None:
        people = sv.Federation.by_columns(self.parts(TEST), None, names=self.NAMES)
        right = float((model.predict(people) == Y[TEST]).mean())
        for epsilon, tolerance in ((math.inf, 1e-9), (200.0, 0.003)):
            found = sv.evaluate(model, self.federation(TEST, Y), epsilon=epsilon, insecure_seed=1)
            assert found["accuracy"].value == pytest.approx(right, abs=tolerance)
        assert found.plan_.parties == (("ben", 2000),)
        assert any("learn each test person's score" in line for line in found.privacy_.assumptions)

    def test_of_a_regressor(self) -> None:
        model = sv.PrivateRidge(8.0, entry_bound=1.0, label_bound=(0, 100), insecure_seed=1)
        model.fit(self.federation(slice(4000), NUMBERS))
        found = sv.evaluate(model, self.federation(TEST, NUMBERS), epsilon=200.0, insecure_seed=1)
        predicted = model.predict(sv.Federation.by_columns(self.parts(TEST), None, names=self.NAMES))
        true = metrics.mean_absolute_error(NUMBERS[TEST], predicted)
        assert found["mean_absolute_error"].value == pytest.approx(true, rel=0.03)

    def test_the_ledger_of_the_holder_of_the_labels_is_charged(self, model: Any, tmp_path: Path) -> None:
        accounts = [Ledger.create(tmp_path / name).open(name, 1.0, 1e-5) for name in self.NAMES]
        sv.evaluate(model, self.federation(TEST, Y, ledgers=accounts), epsilon=0.7)
        assert [account.balance().spent for account in accounts] == pytest.approx([0.0, 0.7], rel=1e-2)
        with pytest.raises(BudgetError):
            sv.evaluate(model, self.federation(TEST, Y, ledgers=accounts), epsilon=0.7)

    def test_it_is_as_all_parties_allow(self, model: Any) -> None:
        _, federation = self.elsewhere(model)
        assert sv.evaluate(model, federation, epsilon=1.0)["accuracy"].value > 0.7
        parties, federation = self.elsewhere(model, allows=("coordinator",))
        with pytest.raises(RefusedError, match="anna"):
            sv.evaluate(model, federation, epsilon=1.0)
        assert parties[1].predictor.scored(bytes.fromhex(model.charged_as_)) is None

    def test_scores_that_were_not_received_are_not_evaluated(self, model: Any) -> None:
        """A plan for them alone, without a joint prediction before it, is refused."""
        _, federation = self.elsewhere(model)
        plan = sv.evaluate(model, self.federation(TEST, Y), epsilon=1.0, insecure_seed=1).plan_
        with pytest.raises(RefusedError, match="ben has received no joint predictions of that model"):
            federation.coordinator().run(plan, algorithms.of(plan))

    def test_a_coordinator_that_changes_a_score_changes_one_record(self, model: Any) -> None:
        """It makes the first person's sum one that no scores have: only that person is gone, and nothing is refused.

        Planted fault: where one such sum makes all scores unreadable, one person's record moves every count.
        """

        class Tampering(InProcess):
            def exchange(self, messages: Any) -> Any:
                def changed(data: bytes) -> bytes:
                    frame = decode(data)
                    if "masked" not in frame.arrays:
                        return data
                    masked = frame.arrays["masked"].copy()
                    masked[0, 1] ^= 1 << 60
                    return encode(replace(frame, arrays={"masked": masked}))

                return super().exchange({name: changed(data) for name, data in messages.items()})

        def counted() -> float:
            _, federation = self.elsewhere(model, wire=Tampering)
            return float(sv.evaluate(model, federation, epsilon=200.0).cells.sum())

        def all_or_none(total: Any) -> np.ndarray:
            scores = real(total)
            return np.where(np.isnan(scores).any(), math.nan, scores)

        assert counted() == pytest.approx(1999, abs=0.9)
        real = prediction.each_score
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(prediction, "each_score", all_or_none)
            assert counted() < 10

    @pytest.mark.parametrize("how", ["rows", "y", "ledger", "no labels"])
    def test_what_cannot_be_evaluated_is_told(self, model: Any, how: str) -> None:
        federation = self.federation(TEST, Y)
        arguments = {
            "rows": {"X": X[TEST], "y": Y[TEST]},
            "y": {"X": federation, "y": Y[TEST]},
            "ledger": {"X": federation, "ledger": "people.ledger"},
            "no labels": {"X": sv.Federation.by_columns(self.parts(TEST), None, names=self.NAMES)},
        }[how]
        with pytest.raises(InputError, match="nobody .* knows the labels" if how == "no labels" else "over columns"):
            sv.evaluate(model, epsilon=1.0, **arguments)


class TestPlots:
    """What is drawn is what was found; texts of others are no formulas."""

    def test_of_two_classes(self, classifier: Any) -> None:
        found = sv.evaluate(classifier, X[TEST], Y[TEST], epsilon=1.0, insecure_seed=1)
        axes = {axis.get_title(): axis for axis in found.plot().axes}
        assert set(axes) == {"metrics", "ROC", "calibration", "scores by class"}
        assert [text.get_text() for text in axes["metrics"].get_yticklabels()][:2] == ["accuracy", "AUC"]
        low, high = axes["metrics"].lines[0].get_xdata()
        assert (low, high) == (found["accuracy"].low, found["accuracy"].high)
        assert len(axes["scores by class"].patches) == len(found.cells)
        np.testing.assert_array_equal(axes["ROC"].lines[-1].get_xydata(), np.transpose(found.roc))
        assert len(axes["ROC"].lines) == 2 + 2 * len(found.nodes)

    def test_of_several_classes(self, several: Any) -> None:
        found = sv.evaluate(several, X[TEST], LABELS[TEST], epsilon=1.0, insecure_seed=1)
        axes = {axis.get_title(): axis for axis in found.plot().axes}
        assert set(axes) == {"metrics", "% of the records", "recall and precision"}
        assert len(axes["% of the records"].texts) == 9
        names = [text.get_text() for text in axes["recall and precision"].get_yticklabels()]
        assert names[:2] == ["recall, blue", "precision, blue"]

    def test_of_numbers(self, regressor: Any) -> None:
        found = sv.evaluate(regressor, X[TEST], NUMBERS[TEST], epsilon=1.0, insecure_seed=1)
        axes = {axis.get_title(): axis for axis in found.plot().axes}
        assert set(axes) == {"residuals", "mean squared error", "R²", "mean absolute error"}

    def test_of_almost_nothing(self, classifier: Any, tmp_path: Path) -> None:
        """Noise alone: hardly a metric can be told, and that is drawn."""
        found = sv.evaluate(classifier, X[4000:4020], Y[4000:4020], epsilon=0.1, insecure_seed=1)
        found.plot().savefig(tmp_path / "little.png")
        assert "cannot be told" in [text.get_text() for text in found.plot().axes[0].texts]

    def test_names_that_look_like_formulas(self, tmp_path: Path) -> None:
        labels = np.where(Y == "yes", "$^yes$", "no_{")
        model = sv.PrivateLogisticRegression(epsilon=5.0, entry_bound=1.0, insecure_seed=1).fit(X, labels)
        sv.evaluate(model, X, labels, epsilon=1.0, insecure_seed=1).plot().savefig(tmp_path / "names.png")

    def test_on_a_figure_of_ones_own(self, regressor: Any) -> None:
        from matplotlib.figure import Figure

        figure = Figure()
        found = sv.evaluate(regressor, X[TEST], NUMBERS[TEST], epsilon=1.0, insecure_seed=1)
        assert found.plot(figure) is figure


def test_what_cannot_be_told_is_none_in_json() -> None:
    X = np.random.default_rng(0).uniform(-1, 1, (1500, 2))
    model = sv.PrivateRidge(5.0, entry_bound=1.0, label_bound=2.0, insecure_seed=0).fit(X, X[:, 0])
    found = sv.evaluate(model, X, np.ones(1500), epsilon=1.0, insecure_seed=0)  # labels that do not differ
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["metrics"]["r2"]["low"] is None
