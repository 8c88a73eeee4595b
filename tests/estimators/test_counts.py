"""Counts, positive amounts, weights of records and times to an event, through the estimators."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import GammaRegressor, LinearRegression, LogisticRegression, PoissonRegressor
from sklearn.metrics import mean_gamma_deviance, mean_poisson_deviance
from typer.testing import CliRunner

import sottovoce as sv
from sottovoce import losses
from sottovoce.app.cli import app
from sottovoce.data.dataset import Dataset
from sottovoce.errors import InputError, RefusedError
from sottovoce.estimators.times import concordance
from sottovoce.federation.party import Party
from sottovoce.privacy.ledger import Ledger
from sottovoce.transports.base import InProcess

N, D = 6000, 4
RANGES = ([-1.0] * D, [1.0] * D)
PERIODS = [0, 0.5, 1, 2, 3]


@pytest.fixture(scope="module")
def claims() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    X, exposure = rng.uniform(-1, 1, (N, D)), rng.uniform(0.1, 1, N)
    return X, rng.poisson(exposure * np.exp(X @ [0.6, -0.5, 0.3, 0.0] - 0.5)).astype(float), exposure


@pytest.fixture(scope="module")
def times() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(8)
    X = rng.uniform(-1, 1, (N, D))
    event, last = rng.exponential(size=N) / (0.4 * np.exp(X @ [0.9, -0.6, 0.3, 0.0])), rng.uniform(0, 3, N)
    y = np.zeros(N, dtype=[("event", bool), ("time", float)])
    y["event"], y["time"] = event <= last, np.minimum(event, last)
    return X, y


def poisson(**changes: Any) -> sv.PrivatePoissonRegressor:
    fields = {"label_bound": (0, 10), "exposure_bound": 1.0, "feature_ranges": RANGES, "insecure_seed": 1}
    return sv.PrivatePoissonRegressor(**{"delta": 1e-6, **fields, **changes})


def test_without_privacy_they_are_those_of_scikit_learn(claims: Any) -> None:
    X, y, exposure = claims
    plain = PoissonRegressor(alpha=0, tol=1e-9).fit(X, y / exposure, sample_weight=exposure)
    model = sv.PrivatePoissonRegressor(epsilon=math.inf).fit(X, y, exposure=exposure)
    np.testing.assert_allclose(model.coef_, plain.coef_, atol=1e-5)
    assert model.intercept_ == pytest.approx(plain.intercept_, abs=1e-5)
    gamma = GammaRegressor(alpha=0, tol=1e-9).fit(X, y + 0.3)
    np.testing.assert_allclose(sv.PrivateGammaRegressor(epsilon=math.inf).fit(X, y + 0.3).coef_, gamma.coef_, atol=1e-5)
    half = PoissonRegressor(alpha=0.1, tol=1e-9).fit(X, y)
    np.testing.assert_allclose(
        sv.PrivatePoissonRegressor(epsilon=math.inf, alpha=0.1).fit(X, y).coef_, half.coef_, atol=1e-5
    )
    assert np.allclose(model.to_sklearn().predict(X) * exposure, model.predict(X, exposure=exposure))


def test_weights_without_privacy_are_those_of_scikit_learn(claims: Any) -> None:
    X, y, exposure = claims
    weights = 3 * exposure
    pairs = (
        (sv.PrivatePoissonRegressor(epsilon=math.inf), PoissonRegressor(alpha=0, tol=1e-9), y),
        (sv.PrivateRidge(epsilon=math.inf), LinearRegression(), y),
        (sv.PrivateLogisticRegression(epsilon=math.inf), LogisticRegression(C=1e9, tol=1e-9), (y > 0).astype(int)),
    )
    for ours, theirs, labels in pairs:
        theirs.fit(X, labels, sample_weight=weights)
        found = ours.fit(X, labels, sample_weight=weights)
        np.testing.assert_allclose(np.ravel(found.coef_), np.ravel(theirs.coef_), atol=2e-4)


def test_a_private_fit_is_near_and_its_mean_is_right(claims: Any) -> None:
    X, y, exposure = claims
    plain = PoissonRegressor(alpha=0).fit(X, y / exposure, sample_weight=exposure)
    model = poisson(epsilon=3.0).fit(X, y, exposure=exposure)
    assert model.score(X, y, exposure=exposure) > 0.9 * sv_score(plain, claims)
    assert model.predict(X, exposure=exposure).mean() == pytest.approx(y.mean(), rel=0.05)
    assert model.ratios_["x0"] == pytest.approx(math.exp(model.coef_[0]))


def sv_score(plain: Any, claims: Any) -> float:
    X, y, exposure = claims
    model = sv.PrivatePoissonRegressor(epsilon=math.inf).fit(X, y, exposure=exposure)
    model.coef_, model.intercept_ = plain.coef_, plain.intercept_
    return model.score(X, y, exposure=exposure)


def test_rows_that_tell_of_no_exposure_are_null_rows(claims: Any) -> None:
    """What they hold moves nothing: the model is the same to the last bit."""
    X, y, exposure = (array.copy() for array in claims)
    y[:4], exposure[:4] = [1, 2, 1, -1], [0.0, -1.0, math.nan, 0.5]
    one = poisson(epsilon=1.0).fit(X, y, exposure=exposure)
    X[:4], y[:3] = 1e9, [5, 1, 3]
    other = poisson(epsilon=1.0).fit(X, y, exposure=exposure)
    assert np.array_equal(one.coef_, other.coef_)
    y[0], exposure[0] = 0.0, 0.0  # nobody was there: no null row, and no slope
    still = poisson(epsilon=1.0).fit(X, y, exposure=exposure)
    assert not np.array_equal(one.coef_, still.coef_)


def test_by_rows_secure_sums_are_those_of_one_place(claims: Any) -> None:
    X, y, exposure = claims
    labels = sv.labels_with(y, exposure=exposure)
    parts = [(X[:2500], labels[:2500]), (X[2500:], labels[2500:])]
    model = poisson(epsilon=2.0).fit(sv.Federation.by_rows(parts, sums="secure"))
    assert model.plan_.channel.secure
    alone = poisson(epsilon=2.0).fit(X, y, exposure=exposure)
    assert np.abs(model.coef_ - alone.coef_).max() < 0.3


@pytest.mark.parametrize(
    ("change", "arguments", "text"),
    [
        ({"label_bound": 10}, {}, "must be a pair"),
        ({"label_bound": None}, {}, "label_bound=None"),
        ({"label_bound": (-1, 3)}, {}, "no label below 0|below 0"),
        ({"exposure_bound": None}, {}, "exposure_bound=None"),
        ({"radius": 1.0}, {}, "no ball"),
        ({"alpha": "auto"}, {}, "alpha='auto'"),
        ({"solver": "newton"}, {}, "without privacy alone"),
        ({"solver": "gradient"}, {}, "does not take the loss 'poisson'"),
        ({}, {"sample_weight": np.ones(N)}, "needs a ceiling"),
    ],
)
def test_what_is_not_served_is_refused_with_the_reason(claims: Any, change: Any, arguments: Any, text: str) -> None:
    X, y, exposure = claims
    with pytest.raises((InputError, ValueError), match=text):
        poisson(epsilon=1.0, **change).fit(X, y, exposure=exposure, **arguments)


def test_over_columns_weights_are_refused(claims: Any) -> None:
    X, y, _ = claims
    parts = sv.Federation.by_columns([X[:, :2], X[:, 2:]], y)
    weighed = sv.solvers.Whitened(weight_bound=2.0)
    with pytest.raises(InputError, match="weights of records are not served over columns"):
        sv.PrivateRidge(epsilon=1.0, label_bound=9.0, feature_ranges=RANGES, solver=weighed).fit(parts)


def test_a_plan_with_an_exposure_needs_one(claims: Any) -> None:
    X, y, _ = claims
    with pytest.raises((InputError, RefusedError), match="takes exposure beside labels"):
        poisson(epsilon=1.0).fit(X, y)


@pytest.mark.parametrize("how", ["arrays", "data set"])
def test_a_party_elsewhere_without_an_exposure_refuses_before_others_are_charged(
    claims: Any, tmp_path: Path, how: str
) -> None:
    """As it is told what the plan wants, and not when it prepares its rows, which comes with the charge."""
    X, y, exposure = (array[:400] for array in claims)
    accounts = [Ledger.create(tmp_path / name).open(name, 9.0, 1e-3) for name in ("anna", "ben")]

    def party(name: str, labels: Any, account: Any) -> Party:
        rows = Dataset.from_arrays(X, labels) if how == "data set" else X
        policy = sv.Policy(bounds=None)
        return Party(name, rows, None if how == "data set" else labels, account=account, policy=policy)

    rated = sv.labels_with(y, exposure=exposure)
    weighed = sv.labels_with(rated, weight=exposure)
    for labels, refused in ((y, "takes exposure"), (weighed, "does not take weight"), (rated, "")):
        parties = [party("anna", rated, accounts[0]), party("ben", labels, accounts[1])]
        federation = sv.Federation.connect(InProcess(parties))
        model = poisson(epsilon=1.0, insecure_seed=None)
        if refused:
            with pytest.raises(RefusedError, match=f"ben refuses: the plan {refused} beside labels"):
                model.fit(federation)
            assert [account.balance().plans for account in accounts] == [0, 0]
        else:  # the control
            model.fit(federation)
            assert [account.balance().plans for account in accounts] == [1, 1]


def test_a_ceiling_cuts_weights_and_nothing_else_counts(claims: Any) -> None:
    """Weights beyond the ceiling are the ceiling; a scale of weights and ceiling moves nothing but rounding."""
    X, y, exposure = claims
    weights = np.where(X[:, 0] > 0, 4.0, 1.0)
    solver = sv.solvers.Whitened(weight_bound=4.0)
    one = poisson(epsilon=1.0, solver=solver).fit(X, y, exposure=exposure, sample_weight=weights)
    far = np.where(X[:, 0] > 0, 1e30, 1.0)
    assert np.array_equal(
        one.coef_, poisson(epsilon=1.0, solver=solver).fit(X, y, exposure=exposure, sample_weight=far).coef_
    )
    double = sv.solvers.Whitened(weight_bound=8.0)
    two = poisson(epsilon=1.0, solver=double).fit(X, y, exposure=exposure, sample_weight=2 * weights)
    assert np.array_equal(one.coef_, two.coef_)
    unknown = weights.copy()
    unknown[:3] = [math.nan, -1.0, math.inf]
    X_other = X.copy()
    X_other[:3] = 0.7
    null = [
        poisson(epsilon=1.0, solver=solver).fit(rows, y, exposure=exposure, sample_weight=unknown)
        for rows in (X, X_other)
    ]
    assert np.array_equal(null[0].coef_, null[1].coef_)


def test_weights_move_a_fit_to_what_they_weigh() -> None:
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, (N, 2))
    group = rng.random(N) < 0.5
    y = np.where(group, 0.3, -0.3) * X[:, 0] + 0.5 * rng.standard_normal(N)
    model = sv.PrivateRidge(
        epsilon=3.0,
        delta=1e-6,
        label_bound=3.0,
        feature_ranges=([-1, -1], [1, 1]),
        solver=sv.solvers.Whitened(weight_bound=4.0),
        insecure_seed=1,
    )
    assert model.fit(X, y, sample_weight=np.where(group, 4.0, 1.0)).coef_[0] == pytest.approx(0.18, abs=0.06)


def test_a_schema_names_counts_exposures_and_weights(claims: Any) -> None:
    X, y, exposure = claims
    columns = {f"x{j}": {"range": [-1, 1]} for j in range(D)}
    beside = {"claims": {"counts": 10}, "years": {"exposure": [0, 1]}, "weight": {"weight": [0, 3]}}
    schema = sv.Schema({**columns, **beside}, label="claims")
    assert sv.Schema.from_table(schema.table()) == schema
    assert schema.feature_names == tuple(columns)
    table = {**{f"x{j}": X[:, j] for j in range(D)}, "claims": y, "years": exposure, "weight": 1 + exposure}
    model = sv.PrivatePoissonRegressor(epsilon=2.0, delta=1e-6, schema=schema, insecure_seed=1).fit(table)
    solver = sv.solvers.Whitened(weight_bound=3.0)
    other = poisson(epsilon=2.0, solver=solver).fit(X, y, exposure=exposure, sample_weight=1 + exposure)
    assert model.plan_.bounds.weight_bound == 3.0
    assert np.abs(model.coef_ - other.coef_).max() < 0.2
    assert np.allclose(model.predict(table), model.predict(table, exposure=exposure))
    table.pop("years")
    with pytest.raises(InputError, match="lacks 'years'"):
        model.fit(table)


@pytest.mark.parametrize(
    "entry", [{"exposure": [1, 2]}, {"exposure": 1}, {"weight": [0, 0]}, {"counts": 0}, {"exposure": [0, 1], "fill": 0}]
)
def test_entries_of_counts_and_exposures_are_checked(entry: Any) -> None:
    with pytest.raises(InputError, match=r"columns\.years"):
        sv.Schema({"age": {"range": [0, 1]}, "years": entry})


class TestEvaluation:
    @pytest.mark.parametrize("epsilon", [4.0, math.inf])
    def test_of_counts(self, claims: Any, epsilon: float) -> None:
        X, y, exposure = claims
        model = poisson(epsilon=2.0).fit(X[:3000], y[:3000], exposure=exposure[:3000])
        X, y, exposure = X[3000:], y[3000:], exposure[3000:]
        found = sv.evaluate(
            model, X, sv.labels_with(y, exposure=exposure), epsilon=epsilon, delta=1e-6, insecure_seed=2
        )
        means = model.predict(X, exposure=exposure)
        true = {
            "deviance": mean_poisson_deviance(y, means),
            "d2": model.score(X, y, exposure=exposure),
            "observed_to_predicted": y.sum() / means.sum(),
            "dispersion": ((y - means) ** 2).sum() / means.sum(),
        }
        for name, value in true.items():
            metric = found[name]
            assert metric.low <= metric.value <= metric.high
            assert metric.low - 0.02 <= value <= metric.high + 0.02, name
        assert len(found.calibration) >= 3
        assert "observed to predicted" in str(found)
        found.plot()

    def test_of_amounts(self, claims: Any) -> None:
        X = claims[0]
        rng = np.random.default_rng(1)
        amounts = np.exp(X @ [0.5, 0.2, 0.0, -0.4]) * rng.gamma(2.0, 0.5, N)
        model = sv.PrivateGammaRegressor(
            epsilon=3.0, delta=1e-6, label_bound=(0, 20), feature_ranges=RANGES, insecure_seed=1
        ).fit(X, amounts)
        found = sv.evaluate(model, X, amounts, epsilon=8.0, delta=1e-6, insecure_seed=2)
        deviance = mean_gamma_deviance(amounts, model.predict(X))
        assert found["deviance"].low <= deviance <= found["deviance"].high
        assert found["d2"].low <= model.score(X, amounts) <= found["d2"].high
        assert found["dispersion"].value == pytest.approx(0.5, abs=0.1)


class TestTimes:
    def model(self, **changes: Any) -> sv.PrivateCoxRegressor:
        fields = {"periods": PERIODS, "feature_ranges": RANGES, "delta": 1e-6, "insecure_seed": 4}
        return sv.PrivateCoxRegressor(**{"epsilon": 2.0, **fields, **changes})

    def test_hazard_ratios_baseline_and_survival(self, times: Any) -> None:
        X, y = times
        model = self.model(epsilon=4.0).fit(X, y)
        np.testing.assert_allclose(model.coef_, [0.9, -0.6, 0.3, 0.0], atol=0.15)
        np.testing.assert_allclose(model.baseline_hazard_[:3], 0.4, rtol=0.2)
        assert model.hazard_ratios_["x0"] == pytest.approx(math.exp(model.coef_[0]))
        curves = model.predict_survival(X[:3], [0.0, 1.0, 3.0, 9.0])
        assert curves.shape == (3, 4)
        assert np.all(curves[:, 0] == 1.0)
        assert np.all(np.diff(curves, axis=1)[:, :2] < 0)
        assert np.array_equal(curves[:, 2], curves[:, 3])
        hazards = 0.4 * np.exp(X @ [0.9, -0.6, 0.3, 0.0])
        assert model.predict_survival(X, [1.0]).mean() == pytest.approx(np.exp(-hazards).mean(), abs=0.04)
        best = concordance(X @ [0.9, -0.6, 0.3, 0.0], y["event"].astype(float), y["time"])
        assert model.score(X, y) > best - 0.01
        model.plot_survival(X[:2], labels=["one", "two"])

    def test_labels_of_two_columns_and_with_entries(self, times: Any, tmp_path: Any) -> None:
        X, y = times
        columns = np.column_stack([y["event"], y["time"]])
        model = self.model().fit(X, y)
        assert np.array_equal(model.coef_, self.model().fit(X, columns).coef_)
        assert np.array_equal(model.coef_, self.model().fit(X, y, entry=np.zeros(N)).coef_)
        assert not np.array_equal(model.coef_, self.model().fit(X, y, entry=np.minimum(y["time"] / 2, 0.2)).coef_)
        model.save(tmp_path / "model.json")
        loaded = sv.load_model(tmp_path / "model.json")
        assert np.array_equal(loaded.predict_survival(X[:5], [1, 2]), model.predict_survival(X[:5], [1, 2]))
        assert loaded.score(X, y) == model.score(X, y)

    def test_strange_times_are_null_rows_or_censored(self, times: Any) -> None:
        """An event without time at risk, a time that is none: null. An event after the last cut: seen until then."""
        X, y = times[0].copy(), times[1].copy()
        y["event"][:5], y["time"][:5] = True, [0.0, math.nan, -1.0, math.inf, 7.0]
        one = self.model().fit(X, y)
        X[:4] = 0.9
        y["event"][4], y["time"][4] = False, 3.0
        assert np.array_equal(one.coef_, self.model().fit(X, y).coef_)

    def test_by_rows_with_secure_sums(self, times: Any) -> None:
        X, y = times
        labels = sv.labels_with(y["event"].astype(float), time=y["time"])
        parts = [(X[:2000], labels[:2000]), (X[2000:], labels[2000:])]
        model = self.model().fit(sv.Federation.by_rows(parts, sums="secure"))
        np.testing.assert_allclose(model.coef_, self.model().fit(X, y).coef_, atol=0.3)

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"periods": None}, "periods="),
            ({"periods": [1, 2]}, "rise from 0"),
            ({"fit_intercept": False}, "the baseline hazard is an intercept"),
            ({"epsilon": math.inf}, "fitted with privacy alone"),
            ({"solver": sv.solvers.Whitened(weight_bound=2.0)}, "sample_weight|weight"),
            ({"radius": 1.0}, "radius"),
        ],
    )
    def test_what_is_not_served(self, times: Any, change: Any, text: str) -> None:
        with pytest.raises(InputError, match=text):
            self.model(**change).fit(*times)

    def test_concordance_is_told_privately(self, times: Any, tmp_path: Any) -> None:
        """In one place from arrays, by a model from a file, by rows, and with secure sums."""
        X, y = times
        model = self.model().fit(X[:3000], y[:3000])
        scores, exact = model.predict(X[:3000]), model.score(X[3000:], y[3000:])
        np.testing.assert_allclose(model.score_spread_, (scores.mean(), scores.std()), atol=0.1)
        found = sv.evaluate(model, X[3000:], y[3000:], epsilon=4.0, insecure_seed=2)
        assert found["concordance"].low < exact < found["concordance"].high
        assert found["concordance"].width < 0.08
        assert found["events"].value == pytest.approx(y["event"][3000:].mean(), abs=0.03)
        expected = float(np.exp(model.predict(X[3000:])) @ model.cumulative_hazard(y["time"][3000:]))
        ratio = found["observed_to_predicted"]
        assert ratio.low < y["event"][3000:].sum() / expected < ratio.high
        assert found.privacy_.epsilon == pytest.approx(4.0, rel=1e-3)
        assert found.complete
        assert "concordance: 0." in str(found)
        assert len(found.calibration) == len(found.nodes) == len(found.cells)
        figure = found.plot()
        assert figure.axes[0].get_title() == "events"
        assert figure.axes[0].get_xticklabels()[-1].get_text() == "3"
        model.save(tmp_path / "model.json")
        again = sv.evaluate(sv.load_model(tmp_path / "model.json"), X[3000:], y[3000:], epsilon=4.0, insecure_seed=2)
        assert again.metrics == found.metrics
        labels = sv.labels_with(y["event"].astype(float), time=y["time"])
        parts = [(X[3000:4000], labels[3000:4000]), (X[4000:], labels[4000:])]
        for sums in ("plain", "secure"):
            rows = sv.evaluate(model, sv.Federation.by_rows(parts, sums=sums), epsilon=8.0)
            assert rows["concordance"].value == pytest.approx(exact, abs=0.04)  # 4 deviations of the noisier

    def test_an_evaluation_of_what_it_does_not_tell_is_refused(self, times: Any) -> None:
        X, y = times
        model = self.model().fit(X, y)
        late = sv.labels_with(y["event"].astype(float), time=y["time"], entry=y["time"] / 2)
        for change, text in (({"y": late}, "entry"), ({"by": "x0"}, "by="), ({"person": np.arange(N)}, "whose record")):
            with pytest.raises((InputError, RefusedError), match=text):
                sv.evaluate(model, X, **{"y": y, "epsilon": 1.0, **change})
        parts = [(X[:3000], late[:3000]), (X[3000:], late[3000:])]
        found = sv.evaluate(model, sv.Federation.by_rows(parts), epsilon=4.0)
        assert not found.complete  # of a federation: they are left out, and that is told


def test_concordance_counts_pairs_whose_order_is_known() -> None:
    """By hand: the person who left at 2 without an event is only after the one with the event at 1."""
    events, when = np.array([1.0, 0.0, 1.0]), np.array([1.0, 2.0, 3.0])
    assert concordance(np.array([3.0, 2.0, 1.0]), events, when) == 1.0
    assert concordance(np.array([1.0, 2.0, 1.0]), events, when) == 0.25


def test_a_job_of_counts_with_exposures(claims: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, exposure = (array[:500] for array in claims)
    monkeypatch.chdir(tmp_path)
    np.savetxt(
        "claims.csv", np.column_stack([X, y, exposure]), delimiter=",", header="a,b,c,d,claims,years", comments=""
    )
    columns = "".join(f"{name} = {{ range = [-1, 1] }}\n" for name in "abcd")
    beside = "claims = { counts = 10 }\nyears = { exposure = [0, 1] }\n"
    schema = f'[schema]\nlabel = "claims"\n[schema.columns]\n{columns}{beside}'
    privacy = '[privacy]\nepsilon = 2.0\ndelta = 1e-5\n[data]\nfile = "claims.csv"\n'
    (tmp_path / "job.toml").write_text(f'[model]\nestimator = "poisson"\n{schema}{privacy}', encoding="utf-8")
    (tmp_path / "test.toml").write_text(privacy, encoding="utf-8")
    for command, said in (
        (["fit", "job.toml"], "model: job.json"),
        (["evaluate", "job.json", "test.toml"], "dispersion"),
    ):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        assert said in result.output
    assert type(sv.load_model("job.json")) is sv.PrivatePoissonRegressor


def test_a_job_of_times(times: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = (array[:800] for array in times)
    monkeypatch.chdir(tmp_path)
    columns = np.column_stack([X, y["event"], y["time"]])
    np.savetxt("people.csv", columns, delimiter=",", header="a,b,c,d,died,years", comments="")
    ranges = "".join(f"{name} = {{ range = [-1, 1] }}\n" for name in "abcd")
    beside = "died = { counts = 1 }\nyears = { time = [0, 3] }\n"
    schema = f'[schema]\nlabel = "died"\n[schema.columns]\n{ranges}{beside}'
    privacy = '[privacy]\nepsilon = 20.0\ndelta = 1e-5\n[data]\nfile = "people.csv"\n'
    model = '[model]\nestimator = "cox"\nperiods = [0, 0.5, 1, 2, 3]\n'
    (tmp_path / "job.toml").write_text(model + schema + privacy, encoding="utf-8")
    (tmp_path / "test.toml").write_text(privacy, encoding="utf-8")
    files = ("--output", "found.json", "--plot", "found.png")
    for command, said in (
        (["fit", "job.toml"], "model: job.json"),
        (["evaluate", "job.json", "test.toml", *files], "concordance"),
        (["card", "job.json", "--evaluation", "found.json", "--output", "card.md"], "card.md"),
    ):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        assert said in result.output
    found = json.loads((tmp_path / "found.json").read_text())
    exact = sv.load_model("job.json").score("people.csv")
    assert found["metrics"]["concordance"]["value"] == pytest.approx(exact, abs=0.05)
    assert "observed to predicted" in (tmp_path / "card.md").read_text()


def test_what_is_bought_beside_a_fit_takes_no_weights(claims: Any) -> None:
    X, y, exposure = claims
    solver = sv.solvers.Whitened(weight_bound=2.0)
    model = sv.PrivateRidge(epsilon=1.0, label_bound=9.0, feature_ranges=RANGES, solver=solver, standard_errors=True)
    with pytest.raises(InputError, match="takes no sample_weight"):
        model.fit(X, y, sample_weight=exposure)
    model = sv.PrivateLasso(epsilon=1.0, label_bound=9.0, feature_ranges=RANGES, solver=solver, alpha="auto")
    with pytest.raises(InputError, match="takes no sample_weight"):
        model.fit(X, y, sample_weight=exposure)


def test_ranges_are_bought_of_rows_with_exposures(claims: Any) -> None:
    X, y, exposure = claims
    model = poisson(epsilon=4.0, feature_ranges="private").fit(X, y, exposure=exposure)
    assert model.coef_[0] == pytest.approx(0.6, abs=0.2)


def test_a_search_is_refused_before_it_is_charged(tmp_path: Path) -> None:
    """It has no score of counts, or of records with weights: every trial would be lost."""
    account = sv.Ledger.create(tmp_path / "people.ledger").open("people", epsilon=9.0, delta=1e-5)
    rng = np.random.default_rng(0)
    X, y = rng.random((300, 2)), np.arange(300) % 2
    weighed = sv.PrivateLogisticRegression(row_norm=2.0, classes=(0, 1), solver=sv.solvers.Whitened(weight_bound=2.0))
    counts = sv.PrivatePoissonRegressor(row_norm=2.0, label_bound=(0, 9))
    for model, labels in ((weighed, sv.labels_with(y, weight=rng.random(300))), (counts, y)):
        search = sv.PrivateRandomizedSearch(model, {"alpha": [0.1, 1.0]}, epsilon=2.0, ledger=account)
        with pytest.raises(InputError, match="a search scores trials of classes and of numbers"):
            search.fit(X, labels)
    assert account.balance().plans == 0


@pytest.mark.parametrize("beside", ["weight", "exposure", "time", "group"])
def test_an_evaluation_over_columns_is_refused_before_scores_are_learned(
    beside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, (200, 4)), rng.integers(0, 2, 200)
    parts = [X[:, :2], X[:, 2:]]
    model = sv.PrivateLogisticRegression(epsilon=3.0, entry_bound=1.0, classes=(0, 1))
    model.fit(sv.Federation.by_columns(parts, y))
    learned: list[str] = []
    monkeypatch.setattr(type(model), "_joint", lambda _, __, recipient, ___: learned.append(recipient))
    test = sv.Federation.by_columns(parts, sv.labels_with(y, **{beside: rng.random(200)}))
    with pytest.raises(RefusedError, match=f"the plan does not take {beside} beside labels"):
        sv.evaluate(model, test, epsilon=1.0)
    assert learned == []


def test_nobody_pays_for_an_evaluation_whose_scores_were_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a holder of labels that was started anew once it had learned them: the plan is checked again."""
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, (200, 4)), rng.integers(0, 2, 200)
    accounts = [Ledger.create(tmp_path / f"{name}.ledger").open("people", epsilon=50.0, delta=1e-3) for name in "ab"]
    federation = sv.Federation.by_columns([X[:, :2], X[:, 2:]], y, ledgers=accounts, label_party=1)
    model = sv.PrivateLogisticRegression(epsilon=3.0, entry_bound=1.0, classes=(0, 1)).fit(federation)
    spent = [account.balance().spent for account in accounts]
    monkeypatch.setattr(type(model), "_joint", lambda *_: None)
    with pytest.raises(RefusedError, match="has received no joint predictions"):
        sv.evaluate(model, federation, epsilon=1.0)
    assert [account.balance().spent for account in accounts] == spent


@pytest.mark.parametrize("periods", [3, None, ["0", "1"], [[0, 1]], list(range(10**5))])
def test_cut_points_that_are_none_are_refused_in_few_words(periods: Any) -> None:
    with pytest.raises(InputError, match="periods") as refused:
        losses.get("hazard", periods=periods)
    assert len(str(refused.value)) < 500
