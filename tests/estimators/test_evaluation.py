"""`sottovoce.evaluate`: of models in one place and by rows, charged before anything is released."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from sklearn import metrics

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.algorithms import Ask
from sottovoce.algorithms.evaluation import EvaluatedClasses
from sottovoce.errors import BudgetError, InputError, MisfitWarning, RefusedError, RepeatedFitWarning
from sottovoce.estimators import model_file, report
from sottovoce.federation import models as partial_models
from sottovoce.federation.coordinator import PlainAnswers
from sottovoce.federation.models import parts_of
from sottovoce.federation.party import Party
from sottovoce.gate.frames import decode, encode
from sottovoce.privacy.guarantee import VIEWS
from sottovoce.privacy.ledger import Ledger
from sottovoce.transports.base import InProcess

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


def test_without_a_ledger_a_second_evaluation_of_the_same_people_is_noticed(
    classifier: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "fit_groups", [])
    with warnings.catch_warnings():
        warnings.simplefilter("error", RepeatedFitWarning)
        sv.evaluate(classifier, X[TEST], Y[TEST], epsilon=0.5)
    with pytest.warns(RepeatedFitWarning, match="evaluation 2 .* promise epsilon=1"):
        sv.evaluate(classifier, X[TEST], Y[TEST], epsilon=0.5)


def test_people_that_cannot_be_used_do_not_count(classifier: Any) -> None:
    rows, labels = X[TEST].copy(), Y[TEST].copy()
    rows[:300, 0] = math.nan
    labels[300:400] = "maybe"
    with pytest.warns(MisfitWarning, match="400 of"):
        found = sv.evaluate(classifier, rows, labels, epsilon=200.0, insecure_seed=1)
    assert not found.complete
    assert "could not be used" in str(found)
    assert found["accuracy"].value == pytest.approx(classifier.score(rows[400:], labels[400:]), abs=0.003)


def test_a_model_from_a_file_is_evaluated_at_the_same_nodes(classifier: Any, tmp_path: Path) -> None:
    classifier.save(tmp_path / "model.json")
    read = model_file.load_model(tmp_path / "model.json")
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
    epsilon = model.privacy_.epsilon + same.privacy_.epsilon
    assert same.with_fit == pytest.approx((epsilon, 2e-5))
    assert same.to_dict()["with_fit"] == {"epsilon": epsilon, "delta": pytest.approx(2e-5)}
    assert "together epsilon = 1.5" in str(same)
    assert same.plan_.numbers.people == "same"
    assert any("costs add" in line for line in same.privacy_.assumptions)
    assert others.with_fit is None
    assert any("pays for one of the two" in line for line in others.privacy_.assumptions)
    for without in (other_relation, seeded):
        assert without.with_fit is not None
        assert without.with_fit[0] == math.inf
        assert "together no promise" in str(without)


UNPROTECTED = "the people of the fit are not protected by this evaluation"


def test_to_people_whom_the_fit_does_not_protect_nothing_is_promised(classifier: Any) -> None:
    """Cells of a model that tells of a person tell of that person: a finite epsilon is refused, a void one is void."""
    model = sv.PrivateLogisticRegression(math.inf, alpha=1e-3, entry_bound=1.0, classes=("no", "yes"))
    model.fit(X[:4000], Y[:4000])
    with pytest.raises(InputError, match=r"its epsilon is infinite.*other people, or fit with privacy"):
        sv.evaluate(model, X[:4000], Y[:4000], epsilon=0.5, people="same")
    without = sv.evaluate(model, X[:4000], Y[:4000], epsilon=math.inf, people="same")
    void = sv.evaluate(classifier, X[:4000], Y[:4000], epsilon=0.5, people="same")
    for found in (without, void):
        told = found.to_dict()["privacy"]["against"].values()
        assert not any(found.privacy_.against(view).promises for view in VIEWS)
        assert all("NO PROMISE" in each["sentence"] and "those of the fit" in each["sentence"] for each in told)
        assert UNPROTECTED not in found.privacy_.assumptions
    assert "insecure_seed" in str(void.privacy_)
    for other in (model, classifier):
        found = sv.evaluate(other, X[TEST], Y[TEST], epsilon=0.5)
        assert found.privacy_.weakest.promises
        assert found.privacy_.assumptions[-1] == UNPROTECTED
    private = sv.PrivateLogisticRegression(1.0, entry_bound=1.0, classes=("no", "yes")).fit(X[:3999], Y[:3999])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RepeatedFitWarning)
        assert UNPROTECTED not in sv.evaluate(private, X[TEST], Y[TEST], epsilon=0.5).privacy_.assumptions


@pytest.mark.parametrize(("people", "reason"), [("same", "protects columns, and no records"), ("others", "'kept'")])
def test_a_fit_that_protects_columns_is_not_evaluated(people: Any, reason: str) -> None:
    """It promises nothing to a person, and what it promises rests on nobody being shown predictions."""
    parts = {"labels": "public", "names": ("anna", "ben")}
    model = sv.PrivateLogisticRegression(
        2.0, entry_bound=1.0, classes=("no", "yes"), l1_ratio=0, alpha=1e-2, solver=sv.solvers.ADMM(unit="feature")
    )
    model.fit(sv.Federation.by_columns([X[:500, :2], X[:500, 2:]], Y[:500], **parts))
    test = sv.Federation.by_columns([X[500:900, :2], X[500:900, 2:]], Y[500:900], **parts)
    with pytest.raises(InputError, match=reason):
        sv.evaluate(model, test, epsilon=1.0, people=people)


def test_the_report_is_of_an_evaluation(classifier: Any) -> None:
    found = sv.evaluate(classifier, X[TEST], Y[TEST], epsilon=0.5)
    assert "anyone who sees the evaluation" in str(found.privacy_)
    assert "model" not in found.privacy_.world.sentence()
    assert "anyone who sees the final model" in classifier.privacy_.world.sentence() or classifier.privacy_.world.void


def test_people_that_are_only_predicted_for_are_not_evaluated_on(classifier: Any) -> None:
    federation = sv.Federation.by_rows([(X[TEST], Y[TEST])], policy=sv.Policy(trains=False))
    with pytest.raises(RefusedError, match="predictions only, and in no evaluation on these people"):
        sv.evaluate(classifier, federation, epsilon=0.5)


class _Told(EvaluatedClasses):
    """A coordinator that has a model to tell at the end of an evaluation."""

    def coordinate(self, plan: Any) -> Any:
        yield Ask("cells", to=(plan.label_party_name,))
        return np.ones(plan.dimension)


class TestByColumns:
    """The holder of the labels learns the scores, where all parties allow that, and releases counts of them.

    Columns of all parties are in a score: all of them charge the evaluation and sign it before anything is released.
    """

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

    def elsewhere(self, model: Any, *, wire: Any = InProcess, accounts: Any = (None, None), **demands: Any) -> Any:
        """Parties that count as remote; the first of them makes these demands."""
        models = parts_of(model.plan_, model.coef_.ravel(), float(model.intercept_[0]))
        allowed = {"predict_for": ("ben",), "predict_training": True}
        policies = [sv.Policy(**(allowed | more)) for more in (demands, {"bounds": demands.get("bounds")})]
        held = zip(self.NAMES, self.parts(TEST), (None, Y[TEST]), accounts, policies, strict=True)
        parties = [Party(name, X, y, account=account, policy=policy) for name, X, y, account, policy in held]
        for party in parties:
            party.predictor.learn(bytes.fromhex(model.charged_as_), models[party.name])
        return parties, sv.Federation.connect(wire(parties), split="columns", labels="held", label_party=1)

    @pytest.mark.slow
    def test_metrics_are_those_of_the_joint_predictions(self, model: Any) -> None:
        people = sv.Federation.by_columns(self.parts(TEST), None, names=self.NAMES)
        right = float((model.predict(people) == Y[TEST]).mean())
        for epsilon, tolerance in ((math.inf, 1e-9), (200.0, 0.003)):
            found = sv.evaluate(model, self.federation(TEST, Y), epsilon=epsilon, insecure_seed=1)
            assert found["accuracy"].value == pytest.approx(right, abs=tolerance)
        assert found.plan_.parties == (("anna", 2000), ("ben", 2000))
        assert found.noise == found.plan_.release("cells").std
        assert any("learn each test person's score" in line for line in found.privacy_.assumptions)
        assert not any("nobody is shown the weights" in line for line in found.privacy_.assumptions)

    def test_of_a_regressor(self) -> None:
        model = sv.PrivateRidge(8.0, entry_bound=1.0, label_bound=(0, 100), insecure_seed=1)
        model.fit(self.federation(slice(4000), NUMBERS))
        found = sv.evaluate(model, self.federation(TEST, NUMBERS), epsilon=200.0, insecure_seed=1)
        predicted = model.predict(sv.Federation.by_columns(self.parts(TEST), None, names=self.NAMES))
        true = metrics.mean_absolute_error(NUMBERS[TEST], predicted)
        assert found["mean_absolute_error"].value == pytest.approx(true, rel=0.03)

    def test_every_ledger_is_charged_the_whole_cost_or_none(self, model: Any, tmp_path: Path) -> None:
        """A person is in all parties. If one of them has no room, nobody pays, and nothing is released."""
        accounts = [Ledger.create(tmp_path / name).open(name, total, 1e-5) for name, total in (("a", 1.0), ("b", 9.0))]
        sv.evaluate(model, self.federation(TEST, Y, ledgers=accounts), epsilon=0.7)
        for local in (True, False):
            assert [account.balance().spent for account in accounts] == pytest.approx([0.7, 0.7], rel=1e-2)
            federation = self.federation(TEST, Y, ledgers=accounts)
            with pytest.raises(BudgetError):
                sv.evaluate(model, federation if local else self.elsewhere(model, accounts=accounts)[1], epsilon=0.7)
        assert [account.balance().plans for account in accounts] == [1, 1]

    def test_it_is_as_all_parties_allow(self, model: Any) -> None:
        """To let the holder of the labels learn scores is not to let it release counts of them at any cost."""
        for demands in ({}, {"max_epsilon": 1.01}, {"bounds": model.plan_.bounds}):
            _, federation = self.elsewhere(model, **demands)
            assert sv.evaluate(model, federation, epsilon=1.0)["accuracy"].value > 0.7
        for demands, reason in (
            ({"max_epsilon": 0.1}, "anna refuses: the plan costs epsilon 1"),
            ({"trains": False}, "anna takes part in predictions only, and in no evaluation"),
            ({"predict_for": ("coordinator",)}, "anna"),
        ):
            parties, federation = self.elsewhere(model, **demands)
            with pytest.raises(RefusedError, match=reason):
                sv.evaluate(model, federation, epsilon=1.0)
        assert parties[1].predictor.scored(bytes.fromhex(model.charged_as_), self.NAMES) is None

    def test_who_refuses_does_so_before_the_holder_of_the_labels_learns_scores(self, model: Any) -> None:
        """It has no groups, as nobody else knows before; and then another party allows no such cost."""
        digest = bytes.fromhex(model.charged_as_)
        for asked, demands, reason in (
            ({"by": "side", "groups": ("left",)}, {}, "ben has no groups beside its labels"),
            ({}, {"max_epsilon": 0.1}, "anna refuses: the plan costs epsilon 1"),
        ):
            parties, federation = self.elsewhere(model, **demands)
            with pytest.raises(RefusedError, match=reason):
                sv.evaluate(model, federation, epsilon=1.0, **asked)
            assert parties[1].predictor.scored(digest, self.NAMES) is None
        sv.evaluate(model, self.elsewhere(model)[1], epsilon=1.0)  # the control

    def asked(self, model: Any, change: Any, ask: tuple[str, ...] = NAMES) -> Any:
        """What the holder of the labels answers, after a joint prediction, under a changed plan shown to these."""
        _, federation = self.elsewhere(model)
        plan = change(sv.evaluate(model, federation, epsilon=1.0).plan_)
        plan = plan.model_copy(update={"run": "another"})
        coordinator = federation.coordinator()
        coordinator.propose(plan, ask)
        (query,) = algorithms.of(plan).queries(plan, "ben")
        return PlainAnswers(coordinator, plan).values(0, Ask("cells"), {"ben": query})["ben"]

    def test_nothing_is_released_before_all_parties_have_charged_it(self, model: Any) -> None:
        """The plan is shown to the holder of the labels alone, or to all, and the signatures to nobody."""
        for ask in (("ben",), self.NAMES):
            with pytest.raises(RefusedError, match="before it has seen that every party of it signed it"):
                self.asked(model, lambda plan: plan, ask)

    ALONE: ClassVar[dict[str, Any]] = {"parties": (("ben", 2000),), "features": 2, "label_party": 0}

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (ALONE | {"split": "columns", "columns": (2,)}, "signed by, all of these"),
            (ALONE | {"split": "central", "columns": ()}, "by columns, and no other, names the plan of its model"),
        ],
    )
    def test_no_plan_leaves_a_party_of_the_model_out(self, model: Any, change: dict[str, Any], reason: str) -> None:
        with pytest.raises(RefusedError, match=reason):
            self.asked(model, lambda plan: plan.model_copy(update=change), ("ben",))

    def test_a_holder_that_does_not_ask_whose_scores_they_are_leaks_them(
        self, model: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Planted fault: the plan of one party alone is served, and nobody charges the columns of the other."""
        monkeypatch.setattr(
            partial_models.Predictor, "scored", lambda self, digest, parties: self._scored and self._scored[2]
        )
        alone = self.ALONE | {"split": "columns", "columns": (2,)}
        cells = self.asked(model, lambda plan: plan.model_copy(update=alone), ("ben",))
        assert cells.sum() == pytest.approx(2000, abs=200)

    def test_an_evaluation_leaves_no_model(self, model: Any) -> None:
        """Also not to a coordinator that says one at its end."""
        parties, federation = self.elsewhere(model)
        plan = sv.evaluate(model, federation, epsilon=1.0).plan_
        plan = plan.model_copy(update={"run": "another", "models": "shared"})
        solution, _ = federation.coordinator().run(plan, _Told())
        assert len(solution.weights) == 5
        assert all(party.predictor.models.get(plan.digest) is None for party in parties)

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
                    return encode(replace(frame, arrays={**frame.arrays, "masked": masked}))

                return super().exchange({name: changed(data) for name, data in messages.items()})

        def counted() -> float:
            _, federation = self.elsewhere(model, wire=Tampering)
            return float(sv.evaluate(model, federation, epsilon=20_000.0).cells.sum())

        def all_or_none(total: Any) -> np.ndarray:
            scores = real(total)
            return np.where(np.isnan(scores).any(), math.nan, scores)

        assert counted() == pytest.approx(1999, abs=0.9)
        real = partial_models.decode_scores
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(partial_models, "decode_scores", all_or_none)
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

    @pytest.mark.slow
    def test_of_almost_nothing(self, classifier: Any, tmp_path: Path) -> None:
        """Noise alone: hardly a metric can be told, and that is drawn."""
        found = sv.evaluate(classifier, X[4000:4020], Y[4000:4020], epsilon=0.1, insecure_seed=1)
        found.plot().savefig(tmp_path / "little.png")
        assert "cannot be told" in [text.get_text() for text in found.plot().axes[0].texts]

    @pytest.mark.slow
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
