"""`coefficients()`: estimates with standard errors, what they cost, where they are refused, and models as ONNX."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.app.page import page
from sottovoce.errors import BudgetError, InputError, RefusedError, WireError
from sottovoce.estimators import model_file
from sottovoce.estimators.coefficients import LOST, StandardErrors
from sottovoce.estimators.fits import Fit
from sottovoce.gate.frames import decode
from sottovoce.privacy.ledger import Ledger
from sottovoce.queries.pricing import rounds_of
from sottovoce.transports.base import InProcess

RNG = np.random.default_rng(0)
NAMES = ["age", "income", "smoker"]
X = np.column_stack([RNG.uniform(20, 80, 4000), RNG.uniform(0, 9, 4000), RNG.integers(0, 2, 4000)])
SCORES = 0.05 * (X[:, 0] - 50) - 0.3 * (X[:, 1] - 4) + 0.8 * X[:, 2]
Y = np.where(SCORES + RNG.logistic(size=4000) > 0, "ill", "well")
NUMBERS = 100 + 20 * SCORES + (1 + X[:, 1]) * RNG.standard_normal(4000)  # residuals of unequal size
RANGES = ([18, 0, 0], [90, 10, 1])
CLASSES = ("ill", "well")


def classifier(**changes: Any) -> Any:
    given = {"epsilon": 3.0, "feature_ranges": RANGES, "classes": CLASSES, "standard_errors": True, "insecure_seed": 1}
    return sv.PrivateLogisticRegression(**{**given, **changes})


def regressor(**changes: Any) -> Any:
    given = {"epsilon": 3.0, "feature_ranges": RANGES, "label_bound": (0, 200), "standard_errors": True}
    return sv.PrivateRidge(**{**given, "insecure_seed": 1, **changes})


def sandwich(slopes: np.ndarray, bends: np.ndarray) -> np.ndarray:
    """Robust standard errors by the textbook, the intercept last."""
    rows = np.column_stack([X, np.ones(len(X))])
    inverse = np.linalg.inv((rows * bends[:, None]).T @ rows)
    return np.sqrt(np.diag(inverse @ ((rows * slopes[:, None] ** 2).T @ rows) @ inverse))


def test_without_privacy_they_are_those_of_the_textbook() -> None:
    plain = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(X, Y)
    chance = plain.predict_proba(X)[:, 1]
    found = list(classifier(epsilon=math.inf).fit(X, Y).coefficients())
    expected = np.append(plain.coef_, plain.intercept_)
    errors = sandwich(chance - (Y == "well"), chance * (1 - chance))
    np.testing.assert_allclose([row.estimate for row in found], expected, rtol=1e-4)
    np.testing.assert_allclose([row.standard_error for row in found], errors, rtol=1e-4)
    np.testing.assert_allclose([row.odds_ratio for row in found], np.exp(expected), rtol=1e-3)
    line = LinearRegression().fit(X, NUMBERS)
    found = list(regressor(epsilon=math.inf).fit(X, NUMBERS).coefficients())
    np.testing.assert_allclose([row.estimate for row in found], np.append(line.coef_, line.intercept_), rtol=1e-4)
    errors = sandwich(line.predict(X) - NUMBERS, np.ones(len(X)))
    np.testing.assert_allclose([row.standard_error for row in found], errors, rtol=1e-4)
    assert found[0].odds_ratio is None


@pytest.mark.parametrize("epsilon", [300.0, math.inf])
def test_class_weights_are_in_slopes_and_curvatures(epsilon: float) -> None:
    """The sandwich of the weighted problem; squared slopes have squared weights."""
    weights = np.where(Y == "well", 0.2, 1.0)
    plain = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(X, Y, weights)
    chance = plain.predict_proba(X)[:, 1]
    errors = sandwich(weights * (chance - (Y == "well")), weights * chance * (1 - chance))
    found = list(classifier(epsilon=epsilon, class_weight={"well": 0.2}).fit(X, Y).coefficients())
    close = 1e-4 if epsilon == math.inf else 0.15
    np.testing.assert_allclose([row.standard_error for row in found], errors, rtol=close)
    off = [row.estimate for row in found] - np.append(plain.coef_, plain.intercept_)
    assert np.abs(off / errors).max() < (0.01 if epsilon == math.inf else 0.5)
    wrong = sandwich(np.sqrt(weights) * (chance - (Y == "well")), weights * chance * (1 - chance))
    assert np.abs(wrong / errors - 1).max() > 0.2  # negative control


@pytest.mark.parametrize("fits", [True, False])
def test_with_little_noise_they_are_nearly_so(fits: bool) -> None:
    """In the units of the columns, whatever the ranges; also of one party of several."""
    model, labels = (classifier(epsilon=300.0), Y) if fits else (regressor(epsilon=300.0), NUMBERS)
    parts = [(X[:1500], labels[:1500]), (X[1500:], labels[1500:])]
    exact = list(clone(model).set_params(epsilon=math.inf).fit(X, labels).coefficients())
    for found in (model.fit(X, labels).coefficients(), model.fit(sv.Federation.by_rows(parts)).coefficients()):
        for row, truth in zip(found, exact, strict=True):
            assert row.estimate == pytest.approx(truth.estimate, abs=0.5 * truth.standard_error)
            assert row.standard_error == pytest.approx(truth.standard_error, rel=0.15)


def test_the_fit_and_its_standard_errors_have_one_budget() -> None:
    model = classifier(epsilon=1.0).fit(X, Y)
    assert [plan.algorithm for plan in model.plans_] == ["whitened", "standard-errors"]
    assert model.privacy_.epsilon == pytest.approx(1.0, abs=1e-6)
    assert model.privacy_.epsilon <= 1.0
    shares = [
        (plan.mu / classifier(epsilon=1.0).set_params(standard_errors=False).fit(X, Y).plan_.mu) ** 2
        for plan in model.plans_
    ]
    assert shares == pytest.approx([1 - StandardErrors.share, StandardErrors.share], rel=1e-3)
    assert {"curvature", "squared-slopes"} <= set(model.communication_.uplink)
    assert not hasattr(model.set_params(standard_errors=False).fit(X, Y), "coefficients_")
    with pytest.raises(InputError, match="this fit has no standard errors"):
        model.coefficients()


@pytest.mark.slow
def test_an_account_pays_for_both_or_for_nothing(tmp_path: Path) -> None:
    for epsilon in (1.3, 1.0):
        account = Ledger.create(tmp_path / f"{epsilon}.ledger").open("people", epsilon=epsilon, delta=1e-5)
        model = classifier(epsilon=1.0, insecure_seed=None, ledger=account).fit(X, Y)
        assert account.balance().plans == 2
        assert model.coefficients()
    small = Ledger.create(tmp_path / "small.ledger").open("people", epsilon=0.95, delta=1e-5)
    with pytest.raises(BudgetError):
        classifier(epsilon=1.0, insecure_seed=None, ledger=small).fit(X, Y)
    assert small.balance().plans == 0


@pytest.mark.parametrize("error", [RefusedError, WireError])
@pytest.mark.parametrize(("query", "begun"), [("check", False), ("gram", True), ("gradient", True)])
def test_what_was_released_before_a_stop_is_counted(
    monkeypatch: pytest.MonkeyPatch, error: Any, query: str, begun: bool
) -> None:
    """One of two parties stops at a question of the second plan that the other answers; or at the plan itself."""
    exchange, second = InProcess.exchange, set[bytes]()

    def stopping(self: InProcess, requests: Any) -> Any:
        frame = decode(requests["party-1"])
        if '"standard-errors"' in frame.text:
            second.add(frame.plan)
        if frame.plan in second and frame.query == query:
            exchange(self, {"party-1": requests["party-1"]})
            raise error("stopped.")
        return exchange(self, requests)

    federation = sv.Federation.by_rows([(X[:2000], Y[:2000]), (X[2000:], Y[2000:])])
    monkeypatch.setattr(InProcess, "exchange", stopping)
    model = classifier(epsilon=1.0)
    if error is RefusedError:
        with pytest.warns(UserWarning, match="a party refused the standard errors: stopped"):
            model.fit(federation)
        rounds = {"check": 0, "gram": 0, "gradient": 3}[query]
        of_the_fit = rounds_of(model.plan_, algorithms.of(model.plan_))
        assert model.communication_.rounds == of_the_fit + rounds  # those that were answered
    else:
        with pytest.raises(WireError, match="stopped"):
            model.fit(federation)
    assert len(second) == 1
    assert [plan.algorithm for plan in model.plans_] == ["whitened", *["standard-errors"][:begun]]
    assert model.privacy_.coordinator.epsilon == pytest.approx(1.0 if begun else 0.75, abs=1e-6 if begun else 0.05)
    assert not hasattr(model, "coefficients_")


def test_what_the_noise_hides_is_refused_and_named() -> None:
    """The second column is nearly the first: neither coefficient is told at this epsilon, the third is."""
    rows = np.column_stack([X[:, 0], X[:, 0] + 0.01 * RNG.standard_normal(4000), X[:, 2]])
    model = classifier(feature_ranges=([18, 18, 0], [90, 90, 1])).fit(rows, Y)
    found = model.coefficients()
    assert [row.identified for row in found] == [False, False, True, True]
    assert found["x0"].estimate is found["x0"].standard_error is found["x0"].odds_high is None
    assert str(found).count(LOST) == 2


def test_a_table_is_text_numbers_and_a_picture(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    model = classifier().fit(pd.DataFrame(X, columns=NAMES), Y)
    found = model.coefficients()
    assert [row.name for row in found] == [*NAMES, "intercept"]
    assert len(found) == 4
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines[1:]] == [*NAMES, "intercept"]
    assert len({len(line) for line in lines}) == 1
    row = found["age"]
    assert row.low < row.estimate < row.high
    assert row.odds_low == pytest.approx(math.exp(row.low))
    assert json.loads(json.dumps(found.to_dict()))["age"]["standard_error"] == row.standard_error
    assert found.to_pandas().loc["smoker", "odds_ratio"] == found["smoker"].odds_ratio
    with pytest.raises(KeyError):
        found["shoe size"]
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    figure = found.plot()
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == NAMES[::-1]
    figure.savefig(tmp_path / "forest.png")
    assert figure._repr_png_().startswith(b"\x89PNG")
    path = tmp_path / "model.json"
    model.save(path)
    again = model_file.load_model(path)
    assert again.coefficients() == found
    assert again.epsilon == model.epsilon
    assert again.privacy_.epsilon == model.privacy_.epsilon


def test_what_is_asked_for_by_name_is_told_more_precisely() -> None:
    """Of 12 columns two; a column of a schema has all of its levels, the others are adjusted for and not told."""
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(20_000, 12)) + rng.normal(size=(20_000, 1))
    labels = np.where(rows @ np.linspace(-0.5, 0.5, 12) + rng.logistic(size=20_000) > 0, "ill", "well")
    given = {"epsilon": 0.5, "feature_ranges": ([-5] * 12, [5] * 12)}
    every = classifier(**given).fit(rows, labels).coefficients()
    some = classifier(**given, standard_errors=["x3", "x7"]).fit(rows, labels)
    assert [row.name for row in some.coefficients()] == ["x3", "x7"]
    for row in some.coefficients():
        assert row.standard_error < 0.95 * every[row.name].standard_error
        assert abs(row.estimate - every[row.name].estimate) < 4 * every[row.name].standard_error
    assert some.plans_[1].numbers.named == (3, 7)
    assert some.privacy_.epsilon == pytest.approx(0.5, abs=1e-6)
    assert clone(some).standard_errors == ["x3", "x7"]
    table = {"age": X[:, 0], "diet": RNG.choice(["fish", "meat", "plants"], 4000), "ill": Y}
    schema = sv.Schema(
        {
            "age": {"range": (18, 90)},
            "diet": {"levels": ["fish", "meat", "plants"], "reference": "meat"},
            "ill": {"levels": CLASSES},
        },
        label="ill",
    )
    for asked, names in (
        (["diet"], ["diet=fish against meat", "diet=plants against meat"]),
        (["diet=fish", "intercept"], ["diet=fish against meat", "intercept"]),
    ):
        model = sv.PrivateLogisticRegression(3.0, 1e-6, schema=schema, standard_errors=asked).fit(table)
        assert [row.name for row in model.coefficients()] == names
    for asked, message in ((["die"], "did you mean 'diet'"), (["diet=meat"], "what other levels are compared with")):
        with pytest.raises(InputError, match=message):
            sv.PrivateLogisticRegression(3.0, 1e-6, schema=schema, standard_errors=asked).fit(table)


def test_p_values_and_intervals_of_another_level() -> None:
    found = classifier().fit(X, Y)
    usual, narrow = found.coefficients(), found.coefficients(level=0.9)
    row, other = usual["x0"], narrow["x0"]
    assert (other.high - other.low) / (row.high - row.low) == pytest.approx(1.644854 / 1.959964, rel=1e-6)
    assert other.odds_high == pytest.approx(math.exp(other.high))
    assert row.p_value == pytest.approx(math.erfc(abs(row.estimate / row.standard_error) / math.sqrt(2)))
    just = replace(row, estimate=1.959963984540054, standard_error=1.0)
    assert just.p_value == pytest.approx(0.05)
    assert narrow.to_dict()["x0"]["p_value"] == row.p_value
    assert "90% from" in str(narrow)
    assert "p-value" in str(narrow)
    assert narrow.at(0.95) == usual
    for level in (0, 1, 95, "high"):
        with pytest.raises(InputError, match="level="):
            found.coefficients(level=level)


def test_levels_are_told_against_the_first_and_yes_against_no() -> None:
    """As a regression on indicators without the first level has them; with an epsilon that hides little."""
    pd = pytest.importorskip("pandas")
    diet = RNG.choice(["fish", "meat", "plants"], 4000)
    table = pd.DataFrame(
        {"age": X[:, 0], "diet": diet, "smoker": np.where(X[:, 2] > 0, "yes", "no"), "weight": NUMBERS}
    )
    columns = {
        "age": {"range": (18, 90), "missing": True},
        "diet": {"levels": ["fish", "meat", "plants"]},
        "smoker": {"yes": "yes", "no": "no"},
        "weight": {"range": (0, 200)},
    }
    plain = LinearRegression().fit(np.column_stack([X[:, 0], diet == "meat", diet == "plants", X[:, 2]]), NUMBERS)
    names = ["age", "diet=meat against fish", "diet=plants against fish", "smoker=yes against no", "intercept"]
    for epsilon, off in ((math.inf, 1e-3), (300.0, 1.0)):
        schema = sv.Schema({**columns, "age": {"range": (18, 90)}}, label="weight")
        found = (
            sv.PrivateRidge(epsilon=epsilon, schema=schema, standard_errors=True, insecure_seed=1)
            .fit(table)
            .coefficients()
        )
        assert [row.name for row in found] == names
        for row, truth in zip(found, [*plain.coef_, plain.intercept_], strict=True):
            assert abs(row.estimate - truth) <= off * row.standard_error
    told, base = sv.Schema({**columns, "smoker": {"yes": "yes", "no": "no", "missing": True}}).contrasts()
    assert base.tolist() == [0, 0, 1, 0, 0, -1, 0, 0]
    assert {name: way.tolist() for name, way in told}["smoker=missing against no"] == [0, 0, 0, 0, 0, 1, 1, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": 0.1}, "without a penalty"),
        ({"radius": 2.0}, "without a penalty"),
        ({"l1_ratio": 1, "alpha": 0.1}, "without a penalty"),
        ({"classes": ("ill", "well", "neither")}, "two classes are served so far, not 3"),
        ({"solver": sv.solvers.SGD(), "calibration": "paper"}, "nothing is bought beside it"),
        ({"solver": "sgd"}, "needs a solver with Gaussian releases alone"),
        ({"standard_errors": "yes"}, "must be True or False"),
        ({"standard_errors": []}, "or a list of columns"),
        ({"standard_errors": ["x9"]}, "there is no column or feature 'x9'"),
    ],
)
def test_where_they_cannot_be_had_that_is_told_before_anything_is_spent(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    account = Ledger.create(tmp_path / "a.ledger").open("people", epsilon=9.0, delta=1e-4)
    with pytest.raises(InputError, match=message):
        classifier(insecure_seed=None, ledger=account, **changes).fit(X, Y)
    assert account.balance().spent == 0


def test_a_loaded_model_tells_all_that_was_released(tmp_path: Path) -> None:
    model = classifier(epsilon=1.0).fit(X, Y)
    model.save(tmp_path / "model.json")
    loaded = model_file.load_model(tmp_path / "model.json")
    assert loaded.epsilon == 1.0
    assert loaded.privacy_.epsilon == model.privacy_.epsilon
    assert [plan.releases for plan in loaded.plans_] == [plan.releases for plan in model.plans_]
    for each in (model, loaded):
        assert "squares of the slopes of the loss at the fitted model" in page(each)


def by_columns(rows: int = 1000, **more: Any) -> sv.Federation:
    given = {"products": "secure", **more}
    return sv.Federation.by_columns([X[:rows, :1], X[:rows, 1:]], Y[:rows], **given)


@pytest.mark.parametrize(
    ("federation", "changes", "message"),
    [
        ({"products": "none"}, {}, "nobody has whole rows"),
        ({}, {"class_weight": {"well": 0.2}}, "hold of odds that are right alone"),
        ({}, {"standard_errors": ["x1"]}, "give True"),
        ({}, {"alpha": 0.1}, "without a penalty"),
        ({}, {"epsilon": math.inf}, "nobody has whole rows"),
    ],
)
def test_where_columns_do_not_serve_they_are_refused(federation: Any, changes: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        classifier(insecure_seed=None, **changes).fit(by_columns(**federation))


def test_by_columns_they_are_not_of_numbers() -> None:
    federation = sv.Federation.by_columns([X[:, :1], X[:, 1:]], NUMBERS, products="secure")
    with pytest.raises(InputError, match="not of 'squared'"):
        regressor(insecure_seed=None).fit(federation)


def test_so_many_columns_are_refused_with_what_they_would_cost() -> None:
    rows = np.zeros((50, 202))
    federation = sv.Federation.by_columns([rows[:, :2], rows[:, 2:]], Y[:50], products="secure")
    with pytest.raises(InputError, match="202 features would take 812 rounds more"):
        classifier(feature_ranges=None, row_norm=1.0).fit(federation)


def test_over_secure_columns_they_are_as_in_one_place_and_the_parties_keep_the_model(tmp_path: Path) -> None:
    """Estimates by other noise, so within a few errors of each other, and errors of about one size."""
    account = Ledger.create(tmp_path / "a.ledger").open("people", epsilon=20.0, delta=1e-5)
    federation = by_columns(ledgers=[account, None])
    model = classifier(epsilon=20.0).fit(federation)
    one = classifier(epsilon=20.0).fit(X[:1000], Y[:1000]).coefficients()
    for row in model.coefficients():
        assert abs(row.estimate - one[row.name].estimate) < 4 * row.standard_error
        assert 0.8 < row.standard_error / one[row.name].standard_error < 1.6
    assert account.balance().plans == 2
    assert account.balance().spent == pytest.approx(model.privacy_.coordinator.epsilon, rel=1e-3)
    assert model.privacy_.coordinator.epsilon <= 20.0
    first, second = model.plans_
    assert (first.algorithm, second.algorithm, second.form) == ("whitened", "standard-errors", "columns")
    assert model.communication_.rounds == sum(rounds_of(plan, algorithms.of(plan)) for plan in model.plans_)
    assert rounds_of(second, algorithms.of(second)) == 1 + 4 * 4
    assert model.missing_parts_ == {}
    assert {row.name for row in model.coefficients()} == {"x0", "x1", "x2", "intercept"}
    np.testing.assert_array_equal(model.predict(federation), model.predict(X[:1000]))
    model.save(tmp_path / "model.json")
    loaded = model_file.load_model(tmp_path / "model.json")
    assert loaded.coefficients().to_dict() == model.coefficients().to_dict()
    assert "gradients of the loss on whitened rows" in page(loaded)
    assert f"{loaded.coefficients()['x2'].odds_ratio:.4g}" in page(loaded)


@pytest.mark.slow
def test_parties_elsewhere_predict_with_the_model_that_the_second_plan_left(tmp_path: Path) -> None:
    """They keep their parts under the name of the last plan, which they answered whole, and their holders approve."""
    accounts = [
        sv.Ledger.create(tmp_path / f"{name}.db").open("people", epsilon=9.0, delta=1e-4) for name in ("one", "two")
    ]
    local = by_columns(
        ledgers=accounts, policy=sv.Policy(secure=True, predict_for=("coordinator",), predict_training=True)
    )
    remote = sv.Federation.connect(local.transport, split="columns", products="secure")
    model = classifier(insecure_seed=None).fit(remote)
    digest = bytes.fromhex(model.charged_as_)
    assert digest == model.plans_[1].digest
    for party in local._parties:
        kept = party.predictor.models
        assert kept.get(digest) is not None
        assert kept.get(model.plan_.digest) is None
        kept.approve(digest, kept.get(digest))
    np.testing.assert_allclose(model.decision_function(remote), model.decision_function(X[:1000]), atol=1e-9)
    assert not list(tmp_path.glob("*.secure/*.key"))  # of either plan


@pytest.mark.slow
@pytest.mark.parametrize(("query", "begun"), [("check", False), ("gram", True), ("gradient", True)])
def test_over_secure_columns_the_parties_keep_a_model_whose_errors_were_refused(
    monkeypatch: pytest.MonkeyPatch, query: str, begun: bool
) -> None:
    exchange, second = InProcess.exchange, set[bytes]()

    def refusing(self: InProcess, requests: Any) -> Any:
        frame = decode(requests.get("party-1", next(iter(requests.values()))))
        if '"standard-errors"' in frame.text:
            second.add(frame.plan)
        if frame.plan in second and frame.query == query:
            raise RefusedError("no.")
        return exchange(self, requests)

    monkeypatch.setattr(InProcess, "exchange", refusing)
    federation, model = by_columns(), classifier()
    with pytest.warns(UserWarning, match="standard errors|its part of it") as told:
        model.fit(federation)
    assert "a party refused the standard errors: no" in str(told[0].message)
    assert len(told) == 1 + begun  # once it has begun a party knows the plan before no more, and keeps no part of it
    assert set(model.missing_parts_) == {"party-1", "party-2"}.intersection(federation.names if begun else ())
    assert [plan.algorithm for plan in model.plans_] == ["whitened", *["standard-errors"][:begun]]
    assert not hasattr(model, "coefficients_")
    assert model.charged_as_ == model.plan_.digest.hex()
    np.testing.assert_array_equal(model.predict(federation), model.predict(X[:1000]))  # in one process it is given


def test_a_plan_tells_what_follows() -> None:
    federation = sv.Federation.by_rows([(X[:2000], Y[:2000]), (X[2000:], Y[2000:])])
    model = classifier(insecure_seed=None)
    _, after = Fit(model, federation).plans
    assert after.algorithm == "standard-errors"
    assert [release.query for release in after.releases] == ["gram", "curvature", "squared-slopes", "gradient"]
    ran = model.fit(federation).plans_[1]
    assert ran.releases == after.releases


ONNX_MODELS = {
    "two classes": (sv.PrivateLogisticRegression(epsilon=3.0, feature_ranges=RANGES, classes=CLASSES), Y),
    "three classes": (
        sv.PrivateLogisticRegression(epsilon=3.0, feature_ranges=RANGES, classes=(0, 1, 2)),
        np.digitize(SCORES, [-1.0, 1.0]),
    ),
    "numbers": (sv.PrivateRidge(epsilon=3.0, feature_ranges=RANGES, label_bound=(0, 200)), NUMBERS),
    "a margin": (sv.PrivateLinearSVC(epsilon=3.0, feature_ranges=RANGES, classes=CLASSES), Y),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", ONNX_MODELS)
def test_an_onnx_graph_predicts_as_the_model(kind: str, tmp_path: Path) -> None:
    """Run elsewhere, on float32: the same classes but for rows at the border, the same numbers and probabilities."""
    pytest.importorskip("skl2onnx")
    runtime = pytest.importorskip("onnxruntime")
    given, labels = ONNX_MODELS[kind]
    model = clone(given).fit(X, labels)
    written = model.to_onnx(tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_bytes() == written
    session = runtime.InferenceSession(written, providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: X.astype(np.float32)})
    if kind == "numbers":
        np.testing.assert_allclose(found[0].ravel(), model.predict(X), rtol=1e-4)
        return
    assert np.mean(found[0] == model.predict(X)) > 0.999
    if kind != "a margin":
        np.testing.assert_allclose(found[1], model.predict_proba(X), atol=1e-4)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = clone(ONNX_MODELS["numbers"][0]).fit(X, NUMBERS)
    monkeypatch.setitem(sys.modules, "skl2onnx", None)
    with pytest.raises(InputError, match=r"install the extra, sottovoce\[onnx\]"):
        model.to_onnx()
