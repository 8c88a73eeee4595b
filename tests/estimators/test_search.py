"""A search over anything under one budget: what it costs, what it shows, and what it must not show."""

from __future__ import annotations

import logging
import math
import pickle
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, dp_event
from dp_accounting.rdp import RdpAccountant
from scipy.stats import loguniform
from sklearn.base import clone, is_classifier

import sottovoce as sv
from sottovoce.errors import BudgetError, InputError, LeakError, RepeatedFitWarning, SottovoceError
from sottovoce.estimators import model_file, report
from sottovoce.estimators import search as search_module
from sottovoce.estimators.fits import Fit
from sottovoce.estimators.search import PrivateRandomizedSearch, draw_trial_count
from sottovoce.privacy.events import RELATIONS, Relation, Repeated, inside

RNG = np.random.default_rng(4)
X = RNG.standard_normal((1500, 6))
X /= np.linalg.norm(X, axis=1, keepdims=True)
Y = np.where(X @ [9.0, -6.0, 0, 0, 0, 0] + RNG.logistic(size=1500) > 0, "yes", "no")
MODEL = sv.PrivateLogisticRegression(row_norm=1.0, classes=("no", "yes"), solver="whitened")
GRID: dict[str, Any] = {"alpha": [1e-6, 1e-3], "solver__rounds": [4, 8]}


def made(model: Any = MODEL, grid: Any = GRID, **changes: Any) -> PrivateRandomizedSearch:
    return PrivateRandomizedSearch(model, grid, **{"epsilon": 2.0, "mean_trials": 3.0, "insecure_seed": 1, **changes})


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, Any]]:
    """Every trial's score and model, as the search itself saw them."""
    seen: list[tuple[float, Any]] = []
    score = PrivateRandomizedSearch._run_trial

    def watched(self: Any, trial: Any) -> float:
        seen.append((score(self, trial), trial))
        return seen[-1][0]

    monkeypatch.setattr(PrivateRandomizedSearch, "_run_trial", watched)
    return seen


def seed_of(number: int, mean: float = 3.0) -> int:
    """A seed by which a search has that many trials."""
    event = made(mean_trials=mean).event
    return next(
        seed for seed in range(1000) if draw_trial_count(event, next(search_module._generators(seed))) == number
    )


def test_the_best_is_kept_and_predicts(trials: Any) -> None:
    found = made(insecure_seed=seed_of(5)).fit(X, Y)
    assert len(trials) == 5
    best_score, best = max(trials, key=lambda pair: pair[0])
    assert found.best_score_ == best_score
    assert found.best_estimator_ is best.model
    assert found.best_params_ == {name: best.model.get_params()[name] for name in GRID}
    assert found.best_estimator_.alpha == found.best_params_["alpha"]
    np.testing.assert_array_equal(found.predict(X), found.best_estimator_.predict(X))
    np.testing.assert_array_equal(found.predict_proba(X)[:, 1] > 0.5, found.decision_function(X) > 0)
    assert (found.predict(X) == Y).mean() > 0.75
    assert is_classifier(found)
    assert found.classes_.tolist() == ["no", "yes"]
    assert clone(found).get_params()["estimator__alpha"] == MODEL.alpha


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_trial_costs_what_the_event_says_by_the_noise_it_has(trials: Any, relation: Relation) -> None:
    """The fit and the score of every trial, from their own releases; then the total by another accountant."""
    found = made(clone(MODEL).set_params(relation=relation), insecure_seed=seed_of(4)).fit(X, Y)
    for _, trial in trials:
        plans = trial.model.plans_
        assert [plan.algorithm for plan in plans] == ["whitened", "model-selection"]
        mu = math.sqrt(sum(r.count * (r.charged(relation) / r.std) ** 2 for plan in plans for r in plan.releases))
        assert mu == pytest.approx(found.event.mu, rel=1e-6)
        assert mu <= found.event.mu * (1 + 1e-9)
    accountant = RdpAccountant([*(1 + np.geomspace(1e-2, 2e4, 400))])
    accountant.compose(dp_event.RepeatAndSelectDpEvent(GaussianDpEvent(1 / found.event.mu), 3.0, 0))
    assert accountant.get_epsilon(inside(1e-5)) == pytest.approx(2.0, rel=0.01)
    assert found.privacy_.epsilon == pytest.approx(2.0, rel=1e-6)
    assert found.privacy_.epsilon <= 2.0
    assert any("secret number of trials was kept (mean 3, each of epsilon" in a for a in found.privacy_.assumptions)
    assert found.best_estimator_.privacy_ is found.privacy_  # not that of one trial


def test_a_search_of_mean_10_costs_about_twice_one_fit() -> None:
    assert made(epsilon=1.0, mean_trials=10).trial_epsilon == pytest.approx(0.5, abs=0.005)
    assert made(epsilon=3.0, mean_trials=10).trial_epsilon == pytest.approx(1.62, abs=0.01)
    assert made(epsilon=1.0, mean_trials=1).trial_epsilon == pytest.approx(0.92, abs=0.03)  # Renyi orders, not exact


def test_a_trial_that_costs_more_is_refused_before_anything_is_charged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Planted fault: a trial's fit is given all of the trial's budget, and its score comes on top."""
    monkeypatch.setattr(PrivateRandomizedSearch, "_part", lambda self, share: self.trial_epsilon)
    account = sv.Ledger.create(tmp_path / "people.ledger").open("people", 3.0, 1e-5)
    with pytest.raises(LeakError, match="nothing was charged"):
        made(ledger=account).fit(X, Y)
    assert account.balance().plans == 0


def test_the_number_of_trials_has_its_law() -> None:
    """Of 20,000 draws the shares of the first five counts are within 6 deviations; a wrong mean's are not."""
    draws = np.array([draw_trial_count(Repeated(1.0, 10.0), np.random.default_rng(seed)) for seed in range(20_000)])

    def off(mean: float) -> float:
        keep = -math.expm1(-Repeated(1.0, mean).log_inverse_gamma)
        law = np.array([-(keep**k) / k / math.log1p(-keep) for k in range(1, 6)])
        shares = np.array([(draws == k).mean() for k in range(1, 6)])
        return float((np.abs(shares - law) / np.sqrt(law * (1 - law) / len(draws))).max())

    assert off(10.0) < 6
    assert off(8.0) > 6  # negative control
    assert draw_trial_count(Repeated(1.0, 1.0), np.random.default_rng(0)) == 1


@pytest.mark.slow
def test_nothing_tells_how_many_trials_there_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], trials: Any
) -> None:
    """One trial or nine: the same attributes, one entry in the ledger, no warning, no line, nothing of the others.

    Also where the party's own logger has a level and a handler of its own.
    """
    rows = X.copy()
    log = logging.getLogger("sottovoce.holder")
    assert log.level == logging.NOTSET
    rows[0, 0] = math.nan  # which a party logs once a plan
    kept = []
    for number in (1, 9):
        trials.clear()
        account = sv.Ledger.create(tmp_path / f"{number}.ledger").open("people", 3.0, 0.01)
        model = clone(MODEL).set_params(resources=sv.Resources(verbose=True))
        log.addHandler(caplog.handler)
        with (
            warnings.catch_warnings(record=True) as caught,
            caplog.at_level(logging.DEBUG, "sottovoce"),
            caplog.at_level(logging.WARNING, "sottovoce.holder"),
        ):
            warnings.simplefilter("always")
            found = made(model, ledger=account, insecure_seed=seed_of(number), delta=0.01).fit(rows, Y)
            assert log.level == logging.WARNING
            log.warning("it speaks again")
        log.removeHandler(caplog.handler)
        assert caplog.messages == ["it speaks again"] * 2  # by its own handler, and by the package's
        caplog.clear()
        assert len(caught) == 1
        assert "delta=0.01 is at or above 1/N" in str(caught[0].message)
        assert len(trials) == number
        entries = [entry.kind for entry in account.history()]
        assert entries.count("reservation") == 1
        assert "release" not in entries
        assert account.balance().spent == pytest.approx(2.0, rel=1e-6)
        printed = capsys.readouterr()
        left = pickle.dumps(found)
        for score, trial in trials:
            if trial.model is not found.best_estimator_:
                assert struct.pack(">d", score) not in left
                assert trial.model.coef_.tobytes() not in left
        kept.append((sorted(vars(found)), sorted(vars(found.best_estimator_)), printed.out, printed.err, caplog.text))
    assert kept[0] == kept[1]


def test_what_is_kept_of_a_trial_would_be_found(trials: Any) -> None:
    """Negative control of the test above: a search that keeps its trials has their coefficients."""
    found = made(insecure_seed=seed_of(3)).fit(X, Y)
    found.trials_ = [(score, trial.model) for score, trial in trials]
    left = pickle.dumps(found)
    assert all(trial.model.coef_.tobytes() in left and struct.pack(">d", score) in left for score, trial in trials)


def test_a_trial_that_fails_is_the_worst_and_is_not_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records may cause an error: its text stays here."""
    run = Fit.run

    def sometimes(self: Any) -> Any:
        if self.model.alpha == 1e-3:
            raise ZeroDivisionError("row 17 is 3.25")
        return run(self)

    monkeypatch.setattr(Fit, "run", sometimes)
    found = made(insecure_seed=seed_of(7)).fit(X, Y)
    assert found.best_params_["alpha"] == 1e-6
    with pytest.raises(SottovoceError, match="no trial gave a model") as error:
        made(grid={"alpha": [1e-3]}).fit(X, Y)
    assert "17" not in str(error.value)


def test_the_ledger_is_charged_once_and_first(tmp_path: Path, trials: Any) -> None:
    account = sv.Ledger.create(tmp_path / "people.ledger").open("people", 2.5, 1e-5)
    made(ledger=account).fit(X, Y)
    trials.clear()
    with pytest.raises(BudgetError):
        made(ledger=account).fit(X, Y)
    assert trials == []
    exact = sv.Ledger.create(tmp_path / "exact.ledger").open("people", 9.0, 1e-5, composition="gaussian")
    with pytest.raises(BudgetError, match=r"plan has a Repeated\. Open an account with composition='renyi'"):
        made(ledger=exact).fit(X, Y)
    strict = sv.Ledger.create(tmp_path / "strict.ledger").open("people", 9.0, 1e-5, relation="replace-one")
    made(ledger=strict).fit(X, Y)
    assert strict.balance().spent > 3.5  # to replace a record is to blank it twice


def test_a_second_search_of_the_same_people_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "fit_groups", [])
    with warnings.catch_warnings():
        warnings.simplefilter("error", RepeatedFitWarning)
        made(insecure_seed=None, mean_trials=1.0).fit(X, Y)
    with pytest.warns(RepeatedFitWarning, match="2 without a ledger .* promise epsilon=4"):
        made(insecure_seed=None, mean_trials=1.0).fit(X, Y)


def test_distributions_lists_of_grids_and_numbers() -> None:
    numbers = X @ [0.5, -0.4, 0, 0, 0, 0]
    lasso = sv.PrivateLasso(row_norm=1.0, label_bound=1.0, solver="whitened")
    found = made(lasso, [{"alpha": loguniform(1e-6, 1e-4)}, {"alpha": ["auto"]}], mean_trials=4.0).fit(X, numbers)
    assert found.best_params_["alpha"] == "auto" or 1e-6 <= found.best_params_["alpha"] <= 1e-4
    assert not hasattr(found, "predict_proba")
    assert found.predict(X).shape == (1500,)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"grid": {"epsilon": [1.0, 2.0]}}, "'epsilon' is the search's own"),
        ({"grid": {"relation": ["zero-out"]}}, "'relation' is one for all trials"),
        ({"grid": {"classes": [("no", "yes")]}}, "'classes' decides what a score means"),
        ({"grid": {"class_weight": [{"yes": 2.0}]}}, "'class_weight' decides what a score means"),
        ({"grid": {"unknown": [1]}}, "'unknown' is no parameter of PrivateLogisticRegression"),
        ({"grid": {"alpha": 3.0}}, "'alpha' must be a list"),
        ({"grid": {}}, "must be a mapping"),
        ({"grid": {"solver": ["sgd"]}}, "Gaussian releases alone"),
        ({"epsilon": math.inf}, "epsilon=inf"),
        ({"mean_trials": 0.5}, "mean_trials=0.5"),
        ({"model": "ridge"}, "estimator=str"),
        ({"model": clone(MODEL).set_params(calibration="paper")}, "calibration='paper'"),
    ],
)
def test_what_cannot_be_searched_is_told_before_anything_is_charged(changes: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        made(**changes).fit(X, Y)


def test_a_federation_is_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match=r"coordinator would see every trial.*Divide the budget by hand"):
        made().fit(sv.Federation.by_rows([(X[:700], Y[:700]), (X[700:], Y[700:])]))


def test_searches_in_several_threads_are_silent_to_the_last(caplog: pytest.LogCaptureFixture) -> None:
    """The one that ends first does not let the other's trials speak, and after both all is as it was."""
    log = logging.getLogger("sottovoce.holder")
    with caplog.at_level(logging.INFO, "sottovoce.holder"):
        with search_module._Silence():
            with search_module._Silence():
                pass
            log.warning("a trial")
            logging.getLogger("sottovoce.made_later").warning("a trial")
            warnings.warn("a trial", stacklevel=1)
        assert caplog.messages == []
        assert log.level == logging.INFO
        log.warning("no trial")
        assert caplog.messages == ["no trial"]


@pytest.mark.parametrize(
    ("model", "grid", "why"),
    [
        (
            sv.PrivateRidge(row_norm=1.0, label_bound=(0, 9)),
            {"fit_intercept": [True, False]},
            "'fit_intercept' decides",
        ),
        (sv.PrivateRidge(row_norm=1.0, label_bound="private"), {"alpha": [0.1]}, "Declare label_bound"),
    ],
)
def test_scores_of_numbers_are_in_one_unit(model: Any, grid: Any, why: str, tmp_path: Path) -> None:
    """A label is centred where there is an intercept, and divided by its range: so the losses of such trials differ."""
    account = sv.Ledger.create(tmp_path / "people.ledger").open("people", 30.0, 1e-5)
    with pytest.raises(InputError, match=why):
        made(model, grid, ledger=account, epsilon=20.0).fit(X, X[:, 0])
    assert account.balance().plans == 0


@pytest.mark.parametrize(
    ("solver", "weights"), [("whitened", None), ("cd", None), ("whitened", {"yes": 0.25}), ("newton", {"yes": 0.25})]
)
def test_a_score_is_the_loss_of_its_model(solver: str, weights: Any, tmp_path: Path) -> None:
    """Whatever the layout of the fit's rows, and with the weights of the classes: all but the noise, std 1 / (N mu)."""
    rows = RNG.uniform(-1, 1, (1500, 3)) * [1, 10, 100]
    labels = np.where(rows @ [1, 0, 0.01] > 0, "yes", "no")
    model = sv.PrivateLogisticRegression(entry_bound=[1, 10, 100], classes=("no", "yes"), class_weight=weights)
    account = sv.Ledger.create(tmp_path / "people.ledger").open("people", 60.0, 1e-5)
    found = made(model, {"solver": [solver]}, epsilon=50.0, mean_trials=1.0, ledger=account).fit(rows, labels)
    signs = np.where(labels == "yes", 1.0, -1.0)
    gain = math.log(2) - np.logaddexp(0, -signs * found.decision_function(rows))
    gain = (gain * (1.0 if weights is None else np.where(labels == "yes", 0.25, 1.0))).clip(-1, 1)
    noise = 1 / (found.event.mu * math.sqrt(search_module.TrialScore.share) * len(rows))
    assert found.best_score_ == pytest.approx(gain.mean(), abs=6 * noise + 1e-4)
    assert gain.mean() > 0.1


def test_all_that_is_kept_is_under_the_guarantee_of_the_search(tmp_path: Path) -> None:
    """A penalty chosen in a trial: its path, the models of it and the model file promise what the search does."""
    lasso = sv.PrivateLasso(row_norm=1.0, label_bound=1.0, alpha="auto")
    best = made(lasso, {"rescale": ["symmetric"]}).fit(X, X[:, 0]).best_estimator_
    assert best.privacy_.epsilon == pytest.approx(2.0, rel=1e-6)
    assert best.epsilon == 2.0
    assert best.path_.privacy is best.privacy_
    assert best.path_.model(1e-4).privacy_ is best.privacy_
    best.save(tmp_path / "model.json")
    loaded = model_file.load_model(tmp_path / "model.json")
    assert loaded.epsilon == 2.0
    assert loaded.privacy_.to_dict() == best.privacy_.to_dict()
    assert [plan.digest for plan in loaded.plans_[1:]] == [plan.digest for plan in best.plans_[1:]]
