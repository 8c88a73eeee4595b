from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.algorithms.sgd import named_parties, named_records
from sottovoce.data.bounds import Bounds
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.privacy.accounting import gaussian_epsilon
from sottovoce.privacy.calibration import visible_uses_epsilon
from sottovoce.privacy.events import Gaussian, PoissonGaussian
from sottovoce.solvers import by_name
from support import epsilons_of, events_of, plan_of, query_of


def plan_for(calibration: Any = "tight", **options: Any) -> Plan:
    problem = Problem(
        loss=Named(name="logistic"),
        regulariser=Named(name="none"),
        split="rows",
        parties=(("north", 700), ("south", 300)),
        features=4,
        bounds=Bounds(row_norm=1.0),
        epsilon=1.0,
        delta=1e-10,
        calibration=calibration,
        relation="replace-one",
        classes=(-1, 1),
    )
    return plan_of(problem, "sgd", run="test", coin="test", **options)


def test_one_party_a_round_is_accounted_by_its_realised_calls() -> None:
    plan = plan_for(schedule="one-party", rounds=400)
    counts = {}
    for place, (name, _) in enumerate(plan.parties):
        (event,) = events_of(plan, "zero-out", name)
        assert isinstance(event, PoissonGaussian)
        counts[name] = event.rounds
        answered_by = query_of(plan, "gradient", name).answered_by
        turns = [t for t in range(-3, plan.rounds + 3) if answered_by(plan, name, t)]
        assert len(turns) == event.rounds == int((named_parties(plan) == place).sum())
    assert sum(counts.values()) == 400
    assert 220 < counts["north"] < 340  # 280 expected, sd 9
    epsilons = epsilons_of(plan, "zero-out")
    assert epsilons["world"] == epsilons["coordinator"]


def test_one_party_a_round_learns(classification: Any) -> None:
    X, y = classification
    parts = [(X[:900], y[:900]), (X[900:], y[900:])]
    model = sv.PrivateLogisticRegression(
        epsilon=8.0, row_norm=1.0, solver=by_name("sgd", schedule="one-party"), insecure_seed=1
    ).fit(sv.Federation.by_rows(parts, record=True))
    assert model.score(X, y) > 0.75
    senders = [message.sender for message in model.transcript_ if message.name == "gradient"]
    assert len(senders) == model.n_iter_
    assert set(senders) == {"party-1", "party-2"}


@pytest.mark.slow
def test_published_sgd1_names_records_and_is_not_amplified() -> None:
    plan = plan_for("paper")
    assert plan.rounds == 1000**2
    release = plan.release("record")
    assert release.std == pytest.approx(4 * 1000 * math.log(1.25e6 / 1e-10))
    true = epsilons_of(plan, "replace-one")
    assert plan.claimed_epsilon == 1.0
    assert true["world"] < 0.2
    for name in ("north", "south"):
        (event,) = events_of(plan, "replace-one", name)
        assert isinstance(event, Gaussian)
    owners, inside = named_records(plan)
    uses = np.bincount(inside[owners == 0], minlength=700)
    assert events_of(plan, "replace-one", "north")[0].mu == pytest.approx(
        release.charged("replace-one") * math.sqrt(uses.max()) / release.std
    )
    most = max(uses.max(), np.bincount(inside[owners == 1]).max())
    worst = release.charged("replace-one") * math.sqrt(most) / release.std
    assert true["coordinator"] == true["parties"] == gaussian_epsilon(worst, 0.99 * plan.delta)
    averaged = visible_uses_epsilon(release.charged("replace-one") / release.std, 1e-3, 10**6, 0.99 * plan.delta)
    assert true["coordinator"] > 1.02 * averaged


@pytest.mark.slow
def test_published_sgd1_is_priced_for_the_coin_that_it_has() -> None:
    """A coin may name one record in every round; the coordinator knows, and so must the report."""
    plan = plan_for("paper", rounds=6).model_copy(update={"parties": (("north", 1), ("south", 1))})
    coins = (plan.model_copy(update={"coin": str(number)}) for number in range(500))
    one_sided = next(each for each in coins if len(set(named_records(each)[0])) == 1)
    release = one_sided.release("record")
    always = gaussian_epsilon(release.charged("zero-out") * math.sqrt(6) / release.std, 0.99 * plan.delta)
    assert epsilons_of(one_sided, "zero-out")["coordinator"] == always
    half = visible_uses_epsilon(release.charged("zero-out") / release.std, 0.5, 6, 0.99 * plan.delta)
    assert always > 1.1 * half


@pytest.mark.slow
def test_published_sgd1_runs() -> None:
    generator = np.random.default_rng(0)
    X = generator.standard_normal((40, 2))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = np.where(X[:, 0] > 0, 1, -1)
    model = sv.PrivateLogisticRegression(
        epsilon=0.9, delta=1e-6, row_norm=1.0, solver="sgd", calibration="paper", insecure_seed=0
    ).fit(X, y)
    assert model.n_iter_ == 1600
    assert model.privacy_.claimed_epsilon == 0.9
    assert math.isfinite(model.privacy_.epsilon)


def test_published_sgd2_is_over_noised(classification: Any) -> None:
    federation, solver = sv.Federation.central(*classification), by_name("gradient", rounds=50)
    model = sv.PrivateLogisticRegression(
        epsilon=1.0, delta=1e-5, row_norm=1.0, solver=solver, calibration="paper", insecure_seed=0
    ).fit(federation)
    assert model.privacy_.claimed_epsilon == 1.0
    assert model.privacy_.epsilon < 0.2
    tight = sv.PrivateLogisticRegression(epsilon=1.0, delta=1e-5, row_norm=1.0, solver=solver)
    ratio = model.plan_.release("gradient").std / tight.plan(federation).release("gradient").std
    assert 5.0 < ratio < 6.6


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_published_sgd1_serves_the_record_that_the_coin_names_and_no_other(relation: Any) -> None:
    plan = plan_for("paper", rounds=300).model_copy(update={"relation": relation})
    owners, inside = named_records(plan)
    assert len(owners) == 300
    for place, name in enumerate(plan.names):
        query = query_of(plan, "record", name)
        assert query.uses(300) == np.bincount(inside[owners == place]).max()
        for t in range(300):
            assert query.answered_by(plan, name, t) == (owners[t] == place)
        told = {"weights": np.zeros(plan.dimension)}
        assert query.objection(7, told | {"index": inside[7:8]}) is None
        for wrong in (inside[7:8] + 1, inside[7:9], inside[7:7], inside[7:8].astype(float), np.array([-1])):
            assert query.objection(7, told | {"index": wrong}) is not None
        assert query.objection(7, told) is not None
        assert query.objection(7, {"index": inside[7:8]}) is not None
        assert query.objection(300, told | {"index": inside[:0]}) is not None
