"""What a reader of reports could take for promised, and is not."""

from __future__ import annotations

import math

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.algorithms.sharing.admm_feature import FeatureADMM
from sottovoce.app.page import page
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.estimators import privacy_report
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.solvers import by_name
from support import at, plan_of, query_of

RECORDS, WIDTH = 60, 20


def feature_plan() -> Plan:
    problem = Problem(
        loss=Named(name="squared"),
        regulariser=Named(name="l2", parameters={"alpha": 10.0}),
        split="columns",
        parties=(("a", RECORDS), ("b", RECORDS)),
        features=WIDTH + 1,
        columns=(WIDTH, 1),
        bounds=Bounds.declare(entry_bound=1.0, label_bound=1.0),
        epsilon=1.0,
        delta=1e-5,
        labels="public",
        fit_intercept=False,
    )
    return plan_of(problem, "admm", unit="feature")


def said(plan: Plan, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The message of party a before its noise, and the weights that it keeps."""
    form = FeatureADMM()
    block = Block.prepare(X, np.ones(RECORDS), plan.part("a").preparation)
    memory = form.remember(plan, block)
    silence = np.zeros(RECORDS)
    message = at(query_of(plan, "scores", "a"), block, plan=plan, memory=memory, sum=silence, others=silence)
    return message, form.own_weights(memory)


def test_protection_of_a_feature_names_what_it_rests_on() -> None:
    """Weights tell a blank column with certainty, and a column of NaN takes all others of its party with it."""
    plan = feature_plan()
    X = np.ones((RECORDS, WIDTH))
    blank, missing = X.copy(), X.copy()
    blank[:, 3], missing[:, 3] = 0.0, math.nan
    message, weights = said(plan, X)
    without, shown = said(plan, blank)
    assert np.linalg.norm(message - without) <= 1.0
    assert abs(shown[3]) < 1e-12 < 1e-6 < abs(weights[3])
    assert np.linalg.norm(message - said(plan, missing)[0]) > 1.0
    rests = "; ".join(privacy_report(plan, seeded=False).assumptions)
    assert "nobody is shown the weights" in rests
    assert "predictions made with them" in rests
    assert "which records a party cannot use" in rests


@pytest.mark.parametrize("unit", ["feature", None])
def test_no_page_promises_a_person_what_a_feature_has(unit: str | None) -> None:
    X = np.random.default_rng(0).uniform(-1, 1, (RECORDS, 4))
    people = sv.Federation.by_columns([X[:, :2], X[:, 2:]], np.sign(X[:, 0]), labels="public")
    solver = by_name("admm", rounds=2, unit=unit)
    model = sv.PrivateRidge(1.0, delta=1e-5, alpha=1.0, entry_bound=1.0, label_bound=1.0, solver=solver)
    text, told = page(model.fit(people)), model.privacy_.to_dict()
    person = unit is None
    assert ("Whatever anybody concludes about you" in text) == person
    assert ("A suspicion grows little" in text) == person
    assert ("One record moves it by" in text) == person
    assert ("that person&#39;s record had been left blank" in text) == person
    assert text.count("No promise is made to a person") == (not person)
    assert told["unit"] == ("record" if person else "feature")


@pytest.mark.parametrize(
    ("solver", "about_people"), [("score", True), ("admm", True), ("fdml", True), ("gradient", False)]
)
def test_a_page_says_that_sums_left_only_where_nothing_about_single_people_did(solver: str, about_people: bool) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (RECORDS, 4))
    people = sv.Federation.by_columns([X[:, :2], X[:, 2:]], np.sign(X[:, 0]))
    if not about_people:
        people = sv.Federation.by_rows([(X[:20], np.sign(X[:20, 0])), (X[20:], np.sign(X[20:, 0]))])
    model = sv.PrivateRidge(1.0, delta=1e-5, alpha=1.0, entry_bound=1.0, label_bound=1.0, solver=solver).fit(people)
    text = page(model)
    assert ("Numbers about single people left too" in text) == about_people
    assert ("These are sums over people" in text) == (not about_people)


def test_by_columns_both_epsilons_are_told_where_they_differ() -> None:
    X = np.random.default_rng(0).uniform(-1, 1, (RECORDS, 4))
    people = sv.Federation.by_columns([X[:, :2], X[:, 2:]], np.sign(X[:, 0]))
    model = sv.PrivateRidge(1.0, delta=1e-5, alpha=1.0, entry_bound=1.0, label_bound=1.0, solver="score").fit(people)
    world, weakest, text = model.privacy_.world.epsilon, model.privacy_.epsilon, page(model)
    assert world < 0.99 * weakest
    assert f"<b>{world:.4g}</b><span>epsilon, against who sees the model alone" in text
    assert f"<b>{weakest:.4g}</b><span>epsilon, against everybody" in text
