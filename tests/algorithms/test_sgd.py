from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.algorithms import Problem, make_plan
from sottovoce.algorithms.sgd.private import _called, _named_records
from sottovoce.data.bounds import Bounds
from sottovoce.plan.plan import Named, Plan
from sottovoce.privacy.accounting import Gaussian, PoissonGaussian

SGD = algorithms.REGISTRY["sgd"]


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
        options=options,
    )
    return make_plan("sgd", problem, SGD.design(problem), run="test", coin="test")


def test_one_party_a_round_is_accounted_by_its_realised_calls() -> None:
    plan = plan_for(schedule="one-party", rounds=400)
    counts = {}
    for place, (name, _) in enumerate(plan.parties):
        (event,) = SGD.events(plan, "zero-out", name)
        assert isinstance(event, PoissonGaussian)
        counts[name] = event.rounds
        turns = [t for t in range(plan.rounds) if SGD.serves(plan, name, "gradient", t)]
        assert len(turns) == event.rounds == int((_called(plan) == place).sum())
    assert sum(counts.values()) == 400
    assert 220 < counts["north"] < 340  # 280 expected, sd 9
    epsilons = SGD.epsilons(plan, "zero-out")
    assert epsilons["world"] == epsilons["coordinator"]


def test_one_party_a_round_learns(classification: Any) -> None:
    X, y = classification
    parts = [(X[:900], y[:900]), (X[900:], y[900:])]
    model = sv.PrivateLogisticRegression(
        epsilon=8.0, row_norm=1.0, solver="sgd", schedule="one-party", insecure_seed=1
    ).fit(sv.Federation.by_rows(parts, record=True))
    assert model.score(X, y) > 0.75
    senders = [message.sender for message in model.transcript_ if message.name == "gradient"]
    assert len(senders) == model.n_iter_
    assert set(senders) == {"party-1", "party-2"}


def test_published_sgd1_names_records_and_is_not_amplified() -> None:
    plan = plan_for("paper")
    assert plan.rounds == 1000**2
    release = plan.release("record")
    assert release.std == pytest.approx(4 * 1000 * math.log(1.25e6 / 1e-10))
    true = SGD.epsilons(plan, "replace-one")
    assert plan.claimed_epsilon == 1.0
    assert true["coordinator"] == pytest.approx(2.6, abs=0.1)
    assert true["world"] < 0.2
    for name in ("north", "south"):
        (event,) = SGD.events(plan, "replace-one", name)
        assert isinstance(event, Gaussian)
    owners, inside = _named_records(plan)
    uses = np.bincount(inside[owners == 0], minlength=700)
    assert SGD.events(plan, "replace-one", "north")[0].mu == pytest.approx(
        release.charged("replace-one") * math.sqrt(uses.max()) / release.std
    )


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
    federation = sv.Federation.central(*classification)
    model = sv.PrivateLogisticRegression(
        epsilon=1.0, delta=1e-5, row_norm=1.0, solver="gradient", calibration="paper", rounds=50, insecure_seed=0
    ).fit(federation)
    assert model.privacy_.claimed_epsilon == 1.0
    assert model.privacy_.epsilon < 0.2
    tight = sv.PrivateLogisticRegression(epsilon=1.0, delta=1e-5, row_norm=1.0, solver="gradient", rounds=50)
    ratio = model.plan_.release("gradient").std / tight.plan(federation).release("gradient").std
    assert 5.0 < ratio < 6.6
