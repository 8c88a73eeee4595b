"""A model to start from: what it gains, what a useless one costs, and whose it is."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import log_loss
from typer.testing import CliRunner

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.algorithms.whitened import rule
from sottovoce.algorithms.whitened.rule import Units, White
from sottovoce.app.cli import app
from sottovoce.errors import InputError, RefusedError
from sottovoce.losses import KnownLabels, get
from sottovoce.plan.plan import Plan
from sottovoce.queries.sums import ProjectionShape
from sottovoce.solvers import Whitened
from sottovoce.solvers.prior import Prior, as_prior

D = 15
RANGES = ([-3.0] * D, [3.0] * D)


def made_up(records: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Records, test records, and the true weights; the intercept is -0.7."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=D)
    X = np.clip(rng.normal(size=(records + 4000, D)), -3, 3)
    w *= 1.6 / np.std(X @ w)
    y = (rng.random(len(X)) < 1 / (1 + np.exp(0.7 - X @ w))).astype(int)
    return X[:records], y[:records], X[records:], y[records:], w


X, Y, XT, YT, TRUE = made_up(3000)
EARLIER = LogisticRegression().fit(*made_up(3000, seed=0)[2:4])  # of the test records, which is as good as any


def estimator(prior: Any = None, **changes: Any) -> sv.PrivateLogisticRegression:
    fields = {"epsilon": 1.0, "delta": 1e-6, "feature_ranges": RANGES, "classes": (0, 1), "insecure_seed": 0}
    return sv.PrivateLogisticRegression(**fields | changes, solver=Whitened(prior=prior))


def losses(prior: Any, epsilon: float, data: Any, seeds: int) -> np.ndarray:
    rows, labels, test, truth, _ = data
    fits = (estimator(prior, epsilon=epsilon, insecure_seed=seed).fit(rows, labels) for seed in range(seeds))
    return np.array([log_loss(truth, fit.predict_proba(test)) for fit in fits])


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_a_useless_prior_costs_little_and_a_good_one_gains(epsilon: float) -> None:
    """Means of 40 seeded fits have errors of .0007 at most; the gain of a random prior is the negative control."""
    data = made_up(14_000)
    random = np.random.default_rng(1).normal(size=D)
    wild = {
        "random": (random * np.linalg.norm(TRUE) / np.linalg.norm(random), 0.0),
        "flipped": (-TRUE, 0.7),
        "300 times": (300 * TRUE, -210.0),
        "tiny": (1e-6 * random, 0.0),
        "intercept + 50": (TRUE, 49.3),
    }
    none = losses(None, epsilon, data, 40).mean()
    lost = {name: losses(prior, epsilon, data, 40).mean() - none for name, prior in wild.items()}
    assert max(lost.values()) < 0.005, lost
    gain = none - losses(EARLIER, epsilon, data, 40).mean()
    if epsilon < 1:
        assert gain > 0.002 > none - losses(wild["random"], epsilon, data, 40).mean()


def test_a_good_prior_is_worth_a_larger_budget() -> None:
    none, good = (losses(prior, 0.1, (X, Y, XT, YT, TRUE), 12) for prior in (None, EARLIER))
    assert none.mean() - good.mean() > 0.03
    flipped = losses((-EARLIER.coef_, -EARLIER.intercept_), 0.1, (X, Y, XT, YT, TRUE), 12)  # negative control
    assert flipped.mean() - good.mean() > 0.03


def test_numbers_start_there_too() -> None:
    rng = np.random.default_rng(0)
    t = 2 * X @ TRUE + rng.normal(size=len(X)) + 4
    model = sv.PrivateRidge(epsilon=0.1, delta=1e-6, alpha=0.0, feature_ranges=RANGES, label_bound=(-12.0, 20.0))
    scores = {}
    for name, prior in {"none": None, "good": LinearRegression().fit(X[:200], t[:200]), "+99": (-TRUE, 99.0)}.items():
        fits = (clone(model).set_params(solver=Whitened(prior=prior), insecure_seed=s).fit(X, t) for s in range(8))
        scores[name] = np.mean([fit.score(XT, 2 * XT @ TRUE + 4) for fit in fits])
    assert scores["good"] > scores["none"] + 0.03
    assert scores["+99"] > scores["none"] - 0.05


def test_the_point_that_is_told_has_the_scores_of_the_start() -> None:
    """P is told as whole numbers of 31 bits; columns of very different size make it ill-conditioned."""
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(500, 6)) * 10.0 ** np.linspace(-3, 0, 6) / 10
    units, start = Units.of(get("logistic"), KnownLabels(0.0)), rng.normal(size=6)
    for moments in (rule.of_gram(rows.T @ rows / 500, 1e-7), rule.of_squares((rows**2).mean(axis=0), 1e-7, 0.0)):
        white = White(moments, rule.whitening(moments, units, 1e-7), units, start=start)
        descent = rule.Descent(
            np.zeros(6),
            white.squares,
            1.0,
            0.0,
            1.0,
            2.0,
            1e-7,
            4,
            units,
            lambda u, _: u,
            white=white,
            start=white.along(start),
        )
        told = descent.along_columns(white.along(start))
        shape = ProjectionShape(6, "triangular" if white.matrix.ndim > 1 else "diagonal")
        matrix = shape.matrix(shape.message(white.matrix))
        again = matrix @ told if matrix.ndim > 1 else matrix * told
        np.testing.assert_allclose(rows @ again, rows @ start, atol=1e-6 * float(np.abs(rows @ start).max()))


def test_a_model_is_a_value_at_once_and_clones_keep_it(tmp_path: Path) -> None:
    earlier = estimator(epsilon=3.0, insecure_seed=None).fit(X, Y)
    earlier.save(tmp_path / "last-year.json")
    for prior in (earlier, sv.load_model(tmp_path / "last-year.json"), tmp_path / "last-year.json"):
        fits = [clone(clone(estimator(prior))).fit(X, Y), estimator(prior).fit(X, Y)]
        np.testing.assert_array_equal(fits[0].coef_, fits[1].coef_)
    made = estimator(earlier)
    earlier.fit(X[:50], Y[:50])  # what becomes of the model later changes nothing
    np.testing.assert_array_equal(clone(made).fit(X, Y).coef_, fits[0].coef_)
    fits[0].save(tmp_path / "this-year.json")
    assert sv.load_model(tmp_path / "this-year.json").solver == fits[0].solver
    with pytest.raises(InputError, match=r"has no coefficients: fit it first"):
        Whitened(prior=estimator())


@pytest.mark.parametrize(
    ("prior", "said"),
    [
        (([math.nan] * D, 0.0), "must be finite"),
        (([1.0] * D, math.inf), "must be finite"),
        (("a", "b"), "of numbers"),
        (([[1.0] * D] * 3, [0.0] * 3), "several scores"),
        (([1.0] * 3, 0.0), "3 coefficients, and the data 15"),
        (7, "prior=7 must be the path of a saved model"),
        ({"weights": 1}, "not the fields of a prior"),
        ("nowhere.json", "cannot be read"),
        (([1e100] * D, 0.0), "beyond 1e"),
    ],
)
def test_what_starts_nothing_is_refused(prior: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        estimator(prior).fit(X, Y)


def test_an_unprotected_prior_stays_one_behind_a_private_fit() -> None:
    """The plan of the fit between has its weights in the clear."""
    raw = estimator(epsilon=math.inf).fit(X, Y)
    between = estimator(raw, epsilon=3.0, insecure_seed=None).fit(X, Y)
    assert as_prior(raw).source == as_prior(between).source == "unprotected"
    assert as_prior(estimator(epsilon=3.0, insecure_seed=None).fit(X, Y)).source == "private"


def test_a_model_that_says_the_same_of_everybody_starts_where_a_run_starts() -> None:
    """The model of a year with too small a budget may be one: the next year goes on."""
    for prior in (([0.0] * D, 1.0), ([1e-300] * D, 0.0)):
        assert log_loss(YT, estimator(prior).fit(X, Y).predict_proba(XT)) < 0.55


def test_features_are_matched_by_name_and_classes_must_be_the_same() -> None:
    pd = pytest.importorskip("pandas")
    names = [f"x{j}" for j in range(D)]
    earlier = estimator(epsilon=3.0).fit(pd.DataFrame(X, columns=names), Y)
    table = pd.DataFrame(X[:, ::-1], columns=names[::-1])
    prior = Prior(earlier.coef_[:, ::-1], earlier.intercept_, "unprotected", "", tuple(names[::-1]), (0, 1))
    by_name, as_it_is = (estimator(each).fit(table, Y) for each in (earlier, prior))
    np.testing.assert_array_equal(by_name.coef_, as_it_is.coef_)
    with pytest.raises(InputError, match="other features than the fit, such as age, x0"):
        estimator(earlier).fit(table.rename(columns={"x0": "age"}), Y)
    with pytest.raises(InputError, match="its classes are"):
        estimator(earlier, classes=("no", "yes")).fit(X, np.where(Y > 0, "yes", "no"))


def test_where_there_is_no_stage_for_it_it_is_refused() -> None:
    with pytest.raises(InputError, match="more classes"):
        estimator((TRUE, 0.0), classes=(0, 1, 2)).fit(X, Y)
    columns = sv.Federation.by_columns([X[:, :8], X[:, 8:]], Y, labels="shared")
    with pytest.raises(InputError, match="over columns no party"):
        estimator((TRUE, 0.0)).fit(columns)
    with pytest.raises(InputError, match="means nothing to solver='whitened' here"):
        estimator((TRUE, 0.0), epsilon=math.inf).fit(X, Y)


def test_a_plan_says_what_it_starts_from_and_whose_that_is() -> None:
    bare = estimator().plan(X, Y)
    assert '"numbers":{}' in bare.to_json()
    private = estimator(epsilon=2.0, insecure_seed=None).fit(X, Y)
    for prior, people, source, said in (
        ((TRUE, 0.0), None, "numbers", "was not computed from these people's records"),
        (EARLIER, None, "unprotected", "a model that promises its people nothing"),
        (private, None, "private", "nobody here was in the data of the prior, a private model"),
        (private, "same", "private", "both charges add; this is what the fit adds"),
    ):
        model = estimator(epsilon=1.0, insecure_seed=None)
        model.solver = Whitened(prior=prior, prior_people=people)
        report = model.fit(X, Y).privacy_
        assert report.public["prior"] == {"source": source, "plan": private.charged_as_ if source == "private" else ""}
        assert said in str(report)
        assert report.epsilon == pytest.approx(1.0, rel=1e-6)
        assert Plan.from_json(model.plan_.to_json()).digest == model.plan_.digest
        np.testing.assert_allclose(
            model.plan_.unprepare(np.array(model.plan_.numbers.prior.weights))[0],
            (TRUE if source == "numbers" else np.ravel(prior.coef_)),
        )


@pytest.mark.parametrize("prior", [(TRUE, 0.0), EARLIER], ids=["numbers", "without privacy"])
def test_of_the_same_people_only_a_private_one_is_taken(prior: Any) -> None:
    model = estimator(prior)
    model.solver = model.solver.replace(prior_people="same")
    with pytest.raises(InputError, match="promises them nothing"):
        model.fit(X, Y)


def test_a_party_refuses_a_plan_whose_prior_lies() -> None:
    plan = estimator((TRUE, 0.0)).plan(X, Y)
    prior = plan.numbers.prior.model_dump()
    for lie in (
        {"weights": (math.nan,) * (D + 1)},
        {"weights": (1e200,) * (D + 1)},
        {"weights": ()},
        {"plan": "x"},
        {"source": "blessed"},
    ):
        with pytest.raises(ValidationError):
            plan.model_copy(update={"numbers": {"prior": {**prior, **lie}}})
    with pytest.raises(RefusedError, match="promises them nothing"):
        plan.model_copy(update={"numbers": {"prior": {**prior, "people": "same"}}})
    for weights in ((1.0,), (1.0,) * 400):
        short = plan.model_copy(update={"numbers": {"prior": {**prior, "weights": weights}}})
        with pytest.raises(RefusedError, match="prior of"):
            algorithms.of(short).queries(short, short.names[0])


def test_split_by_rows_is_as_in_one_place() -> None:
    """Also with secure sums."""
    parts = [(X[k::3], Y[k::3]) for k in range(3)]
    for sums in ("plain", "secure"):
        model = estimator(EARLIER, epsilon=30.0, insecure_seed=None).fit(sv.Federation.by_rows(parts, sums=sums))
        whole = estimator(EARLIER, epsilon=30.0).fit(X, Y)
        np.testing.assert_allclose(model.coef_, whole.coef_, atol=0.15)
        assert model.privacy_.epsilon == pytest.approx(30.0, rel=1e-6)


def test_a_job_names_the_model_of_last_year_beside_it(tmp_path: Path) -> None:
    rows = np.column_stack([X[:, :3], Y])
    for name, part in (("old.csv", rows[:1500]), ("new.csv", rows[1500:])):
        np.savetxt(tmp_path / name, part, delimiter=",", header="a,b,c,out", comments="")
    job = """
[model]
estimator = "logistic"
[privacy]
epsilon = 1.0
delta = 1e-6
[bounds]
entry_bound = 3.0
classes = [0, 1]
[data]
file = "{file}"
label = "out"
[solver]
name = "whitened"
{prior}
"""
    run = CliRunner()
    (tmp_path / "last.toml").write_text(job.format(file="old.csv", prior=""))
    (tmp_path / "this.toml").write_text(job.format(file="new.csv", prior='prior = "last.json"'))
    assert run.invoke(app, ["plan", str(tmp_path / "this.toml")]).exit_code == 2  # there is no model yet
    for name in ("last", "this"):
        found = run.invoke(app, ["fit", str(tmp_path / f"{name}.toml"), "--quiet"])
        assert found.exit_code == 0, found.output
    model, last = (sv.load_model(tmp_path / f"{name}.json") for name in ("this", "last"))
    assert model.plan_.numbers.prior.plan == last.charged_as_
    assert model.plan_.numbers.prior.source == "private"
    page = (tmp_path / "this.privacy.html").read_text()
    assert "a private model" in page
    assert "a private model that the plan shows" in page
    assert run.invoke(app, ["plan", str(tmp_path / "this.toml")]).exit_code == 0
