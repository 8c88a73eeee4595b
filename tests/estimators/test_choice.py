"""`alpha="auto"`: a penalty chosen from one fit's own path, within the fit's budget."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import sottovoce as sv
from sottovoce.algorithms.whitened.rule import Evidence, Moments, Units
from sottovoce.errors import BudgetError, InputError, RefusedError
from sottovoce.estimators import path as path_module
from sottovoce.estimators.fits import Fit
from sottovoce.federation.training import Training
from sottovoce.losses import KnownLabels, get
from sottovoce.penalties import get_penalty as penalty
from sottovoce.penalties.base import ScaledRegulariser
from sottovoce.privacy.accounting import epsilon_of
from sottovoce.privacy.events import Gaussian, inside

RECORDS, FEATURES, USED = 4000, 60, 4
RNG = np.random.default_rng(11)
X = RNG.standard_normal((2 * RECORDS, FEATURES))
X /= np.linalg.norm(X, axis=1, keepdims=True)
SCORES = X[:, :USED] @ [12.0, -9.0, 10.0, 8.0]
Y = np.where(RNG.random(2 * RECORDS) < 1 / (1 + np.exp(-SCORES)), "yes", "no")
NUMBERS = 0.2 * SCORES + 0.1 * RNG.standard_normal(2 * RECORDS) + 0.4
TRAIN, TEST = slice(0, RECORDS), slice(RECORDS, None)

ESTIMATORS: dict[str, tuple[Any, np.ndarray, dict[str, Any]]] = {
    "logistic": (sv.PrivateLogisticRegression, Y, {"l1_ratio": 1, "classes": ("no", "yes")}),
    "lasso": (sv.PrivateLasso, NUMBERS, {"label_bound": 2.0}),
    "elastic net": (sv.PrivateElasticNet, NUMBERS, {"label_bound": 2.0, "l1_ratio": 0.9}),
}


def made(kind: str, **changes: Any) -> Any:
    estimator, _, own = ESTIMATORS[kind]
    return estimator(**{"epsilon": 1.0, "row_norm": 1.0, "alpha": "auto", "insecure_seed": 5, **own, **changes})


def error(model: Any, kind: str) -> float:
    """On other records."""
    if kind == "logistic":
        signs = np.where(Y[TEST] == "yes", 1.0, -1.0)
        return float(np.logaddexp(0, -signs * model.decision_function(X[TEST])).mean())
    return float(np.square(model.predict(X[TEST]) - NUMBERS[TEST]).mean()) / 2


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_where_few_features_matter_a_penalty_is_chosen_and_helps(kind: str) -> None:
    labels = ESTIMATORS[kind][1]
    chosen = made(kind).fit(X[TRAIN], labels[TRAIN])
    plain = made(kind, alpha=0.0, solver="whitened").fit(X[TRAIN], labels[TRAIN])
    path = chosen.path_
    assert chosen.alpha_ in path.alphas
    assert error(chosen, kind) < 0.99 * error(plain, kind)
    assert len(chosen.selected_features_) < FEATURES
    place = path.alphas.tolist().index(chosen.alpha_)
    np.testing.assert_array_equal(path.coefs[place], np.ravel(chosen.coef_))
    assert path.losses.min() == path.losses[place] < 0
    gain = error(chosen, kind) - error(plain, kind)  # the curve tells it, as far as noise and sampling let it
    assert path.losses[place] == pytest.approx(gain, abs=6 * path.error + 0.5 * abs(gain))


def test_the_fit_itself_is_among_the_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every penalty is far too strong none is chosen, and the model is that of the fit."""
    monkeypatch.setattr(path_module, "ALPHAS", np.array([0.3, 0.2]))
    model = made("logistic").fit(X[TRAIN], Y[TRAIN])
    assert model.alpha_ == 0.0
    assert (model.path_.losses > 0).all()
    weights = np.array(model.plans_[1].numbers.weights[0])  # the reference
    np.testing.assert_allclose(model.coef_[0], model.plan_.unprepare(weights)[0])


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_fit_and_choice_are_within_the_budget(relation: Any) -> None:
    """By the noise that they really have: the sum of (sensitivity / std)^2 of both plans."""
    model = made("lasso", relation=relation).fit(X[TRAIN], NUMBERS[TRAIN])
    fit, chosen = model.plans_
    assert (fit.algorithm, chosen.algorithm) == ("whitened", "model-selection")
    mu = math.sqrt(sum(r.count * (r.charged(relation) / r.std) ** 2 for plan in (fit, chosen) for r in plan.releases))
    assert epsilon_of([Gaussian(mu)], inside(1e-5), relation) == pytest.approx(1.0, rel=1e-6)
    assert model.privacy_.epsilon == pytest.approx(1.0, rel=1e-6)
    share = chosen.releases[0].charged(relation) / chosen.releases[0].std
    assert (share / mu) ** 2 == pytest.approx(0.04, rel=1e-3)


def test_models_follow_from_the_releases_of_the_fit_alone() -> None:
    """The same releases, other records: the same path. Noise from one seed, and records whose sums are the same."""
    first = made("logistic").fit(X[TRAIN], Y[TRAIN])
    order = np.random.default_rng(0).permutation(RECORDS)
    again = made("logistic").fit(X[TRAIN][order], Y[TRAIN][order])
    np.testing.assert_array_equal(first.path_.coefs, again.path_.coefs)
    assert first.alpha_ == again.alpha_


def test_by_rows_with_ledgers(tmp_path: Path) -> None:
    """Each party is charged for both plans before each is released; together they cost the epsilon."""
    accounts = [
        sv.Ledger.create(tmp_path / f"{k}.ledger").open("people", 1.0, 1e-5, composition="gaussian") for k in range(2)
    ]
    parts = [(X[k:RECORDS:2], Y[k:RECORDS:2]) for k in range(2)]
    model = made("logistic", insecure_seed=None).fit(sv.Federation.by_rows(parts, ledgers=accounts))
    assert model.path_.losses is not None
    assert "losses" in model.communication_.uplink
    for account in accounts:
        assert account.balance().plans == 2
        assert account.balance().spent == pytest.approx(1.0, rel=1e-6)
    assert model.privacy_.coordinator.epsilon == pytest.approx(1.0, rel=1e-6)
    assert model.privacy_.world.epsilon < 0.8
    with pytest.raises(BudgetError):
        made("logistic", insecure_seed=None).fit(sv.Federation.by_rows(parts, ledgers=accounts))


@pytest.mark.parametrize("rule", ["renyi", "basic", "gaussian"])
def test_an_account_of_the_same_epsilon_takes_fit_and_choice(rule: Any, tmp_path: Path) -> None:
    """By Renyi orders, and where epsilons add, the plans one after the other would be too much."""
    account = sv.Ledger.create(tmp_path / "people.ledger").open("people", 1.0, 1e-5, composition=rule)
    model = made("lasso", ledger=account).fit(X[TRAIN], NUMBERS[TRAIN])
    assert 1 <= len(model.path_.losses) <= 8
    assert account.balance().plans == 2
    assert account.balance().spent == pytest.approx(1.0, rel=1e-6)
    assert sv.Ledger(account.path).verify() > 2
    with pytest.raises(BudgetError, match="would fit"):
        made("lasso", ledger=account, epsilon=0.1).fit(X[TRAIN], NUMBERS[TRAIN])
    small = sv.Ledger.create(tmp_path / "small.ledger").open("people", 0.99, 1e-5, composition=rule)
    with pytest.raises(BudgetError, match="would fit"):
        made("lasso", ledger=small).fit(X[TRAIN], NUMBERS[TRAIN])
    assert small.balance().spent == 0.0


def test_a_choice_that_a_party_refuses_leaves_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Training.answer

    def refusing(self: Training, frame: Any) -> Any:
        if frame.query == "losses":
            raise RefusedError("no more.")
        return asked(self, frame)

    monkeypatch.setattr(Training, "answer", refusing)
    with pytest.warns(UserWarning, match=r"the choice was refused: no more\.$"):
        model = made("lasso").fit(X[TRAIN], NUMBERS[TRAIN])
    assert model.alpha_ == 0.0
    assert model.privacy_.epsilon == pytest.approx(1.0, rel=1e-6)  # the choice was begun


def test_class_weights_are_those_of_the_losses_compared(tmp_path: Path) -> None:
    account = sv.Ledger.create(tmp_path / "people.ledger").open("people", 3.0, 1e-5, composition="gaussian")
    weights = {"yes": 0.2, "no": 1.0}
    model = made("logistic", epsilon=3.0, class_weight=weights, ledger=account).fit(X[TRAIN], Y[TRAIN])
    assert model.alpha_ in model.path_.alphas
    assert account.balance().spent == pytest.approx(3.0, rel=1e-6)
    fit = np.array(model.plans_[1].numbers.weights[0])
    rows = model.plan_.preparation

    def losses(coef: np.ndarray, intercept: float) -> np.ndarray:
        signs = np.where(Y[TRAIN] == "yes", 1.0, -1.0)
        return np.where(signs > 0, 0.2, 1.0) * np.logaddexp(0, -signs * rows.scores(X[TRAIN], coef, intercept))

    base = losses(*rows.unprepare(fit))
    gains = [losses(c, b) - base for c, b in zip(model.path_.coefs, model.path_.intercepts, strict=True)]
    each = np.column_stack(gains)
    cut = each / np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1.0)
    freedom = model.path_.losses * RECORDS - cut.sum(axis=0)  # what is left: degrees of freedom, and noise
    assert np.abs(freedom).max() < FEATURES + 6 * model.path_.error * RECORDS
    unweighted = each / np.where(Y[TRAIN] == "yes", 0.2, 1.0)[:, None]
    assert np.abs(unweighted.sum(axis=0) - cut.sum(axis=0)).max() > 2 * np.abs(freedom).max()  # could be told


def test_a_plan_shows_the_fit_s_part() -> None:
    plan = made("logistic").plan(sv.Federation.central(X[TRAIN], Y[TRAIN]))
    assert 0.97 < plan.epsilon < 0.99
    assert plan.regulariser.name == "none"


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_a_plan_tells_of_the_choice(kind: str) -> None:
    federation = sv.Federation.central(X[TRAIN], ESTIMATORS[kind][1][TRAIN])
    model = made(kind)
    _, after = Fit(model, federation).plans
    ran = model.fit(federation).plans_[1]
    assert (after.algorithm, after.releases) == (ran.algorithm, ran.releases)
    assert len(Fit(made(kind, alpha=0.1), federation).plans) == 1


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (made("logistic", l1_ratio=0), "'l2' needs a number"),
        (sv.PrivateRidge(alpha="auto", row_norm=1.0, label_bound=1.0), "'l2' needs a number"),
        (made("elastic net", l1_ratio=0.0), "'elastic_net' needs a number"),
        (made("lasso", radius=1.0), "leave radius=1.0 out"),
        (made("lasso", epsilon=math.inf), "epsilon=inf"),
        (made("lasso", solver="newton"), "leave solver='newton' out"),
    ],
)
def test_where_it_does_not_serve_it_says_so(model: Any, why: str) -> None:
    labels = Y if isinstance(model, sv.PrivateLogisticRegression) else NUMBERS
    with pytest.raises(InputError, match=f"alpha='auto' .*{why}"):
        model.fit(X[TRAIN], labels[TRAIN])
    assert not hasattr(model, "coef_")


def test_several_classes_and_columns_are_refused() -> None:
    with pytest.raises(InputError, match="there are 3 classes"):
        made("logistic", classes=(0, 1, 2)).fit(X[TRAIN], np.arange(RECORDS) % 3)
    columns = sv.Federation.by_columns([X[TRAIN, :30], X[TRAIN, 30:]], Y[TRAIN], labels="shared")
    with pytest.raises(InputError, match="split by rows"):
        made("logistic").fit(columns)
    with pytest.raises(InputError, match="alpha='auto' must be above 0"):
        made("lasso").path(X[TRAIN], NUMBERS[TRAIN])


@pytest.mark.slow
def test_a_curve_is_drawn_and_models_of_the_path_predict() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    model = made("lasso").fit(X[TRAIN], NUMBERS[TRAIN])
    assert model.path_.plot_losses().axes[0].get_xlabel() == "alpha"
    assert model.path_.plot().axes[0].get_ylabel() == "coefficient"
    other = model.path_.model(model.path_.alphas[0])
    np.testing.assert_array_equal(other.coef_, model.path_.coefs[0])
    classifier = made("logistic").fit(X[TRAIN], Y[TRAIN])
    weak = classifier.path_.model(1e-6)
    assert weak.coef_.shape == (1, FEATURES)
    assert weak.predict_proba(X[:3]).shape == (3, 2)
    assert clone(model).alpha == "auto"
    assert not hasattr(model.set_params(alpha=1e-4).fit(X[TRAIN], NUMBERS[TRAIN]), "alpha_")
    plain = sv.PrivateLasso(epsilon=8.0, row_norm=1.0, label_bound=2.0, insecure_seed=1)
    with pytest.raises(InputError, match="no penalty was chosen"):
        plain.path(X[TRAIN], NUMBERS[TRAIN], alphas=2).plot_losses()


def rare(records: int) -> tuple[np.ndarray, np.ndarray]:
    """A tenth of positives, most of whom a strong penalty would cost several nats each."""
    rng = np.random.default_rng(4)
    rows = (rng.random((records, 150)) < 1.5 / (np.arange(150) + 4.0)).astype(float)
    scores = rows @ (1.5 * rng.standard_normal(150))
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    return rows, np.where(rng.random(records) < 1 / (1 + np.exp(5 - scores + scores.mean())), "yes", "no")


@pytest.mark.slow
def test_models_far_from_the_fit_do_not_hide_what_others_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """All differences of a record are cut as one, so models that nobody would take are left out before."""
    rows, labels = rare(40_000)

    def loss(model: Any) -> float:
        shares = model.predict_proba(rows[20_000:])
        return float(-np.log(np.where(labels[20_000:] == "yes", shares[:, 1], shares[:, 0])).mean())

    def chosen() -> Any:
        return made("logistic", epsilon=3.0).fit(rows[:20_000], labels[:20_000])

    plain = loss(made("logistic", epsilon=3.0, alpha=0.0, solver="whitened").fit(rows[:20_000], labels[:20_000]))
    kept = chosen()
    assert len(kept.path_.alphas) < 8
    assert loss(kept) < plain + 0.002
    monkeypatch.setattr(path_module, "TRUSTED", math.inf)  # negative control, with the cut as short as it was
    monkeypatch.setattr(path_module, "CUT", 1.0)
    whole = chosen()
    assert len(whole.path_.alphas) == 8
    assert loss(whole) > plain + 0.004


class TestEvidence:
    """A quadratic with known minima."""

    VECTORS = np.linalg.qr(np.random.default_rng(0).standard_normal((4, 4)))[0]

    def evidence(self, vectors: np.ndarray | None) -> Evidence:
        curvature, restraint = np.array([0.1, 0.2, 0.4, 0.3]), np.array([0.05, 0.1, 0.02, 0.2])
        moments = Moments(curvature, vectors, 0.0)
        weights = np.array([1.0, -2.0, 0.5, 0.7])
        return Evidence(
            moments, curvature, restraint, np.zeros(4), weights, Units.of(get("logistic"), KnownLabels(0.0)), 0.0
        )

    @pytest.mark.parametrize("vectors", [None, VECTORS])
    def test_without_a_penalty_it_is_the_fit_or_less_restrained(self, vectors: Any) -> None:
        evidence = self.evidence(vectors)
        free = ScaledRegulariser(penalty("none"), 3, 1.0, 1.0)
        np.testing.assert_allclose(evidence.model(free, 1.0), evidence.weights)
        freed = evidence.moments.into(evidence.model(free, 0.0))
        held = evidence.moments.into(evidence.weights)
        np.testing.assert_allclose(freed * evidence.curvature, held * (evidence.curvature + evidence.restraint))

    @pytest.mark.parametrize("vectors", [None, VECTORS])
    def test_the_distance_is_the_loss_above_the_least(self, vectors: Any) -> None:
        evidence, away = self.evidence(vectors), np.array([0.3, 0.1, -0.2, 0.5])
        K = np.diag(evidence.curvature) if vectors is None else (vectors * evidence.curvature) @ vectors.T
        assert evidence.distance(evidence.weights + away) == pytest.approx(away @ K @ away / 2)

    @pytest.mark.parametrize("vectors", [None, VECTORS])
    def test_degrees_of_freedom_by_hand(self, vectors: Any) -> None:
        evidence = self.evidence(vectors)
        l1, l2 = (ScaledRegulariser(penalty(name, alpha=0.3), 3, 1.0, 1.0) for name in ("l1", "l2"))
        assert evidence.degrees_of_freedom(np.array([1.0, 0.0, 2.0, 1.0]), l1, 0.0) == pytest.approx(3.0)
        assert evidence.degrees_of_freedom(np.zeros(4), l1, 0.0) == 0.0
        K = np.diag(evidence.curvature) if vectors is None else (vectors * evidence.curvature) @ vectors.T
        R = np.diag(evidence.restraint) if vectors is None else (vectors * evidence.restraint) @ vectors.T
        hand = np.trace(np.linalg.inv(K + 0.5 * R + 0.3 * np.diag([1, 1, 1, 0])) @ K)
        assert evidence.degrees_of_freedom(np.ones(4), l2, 0.5) == pytest.approx(hand)
