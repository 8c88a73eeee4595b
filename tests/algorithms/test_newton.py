from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.penalties.base import ScaledRegulariser
from sottovoce.penalties.quadratic import QuadraticMetric
from support import REGULARISERS


@pytest.mark.parametrize("regulariser", REGULARISERS)
def test_a_step_minimises_its_model(regulariser: Any) -> None:
    generator = np.random.default_rng(0)
    basis = np.linalg.qr(generator.standard_normal((5, 5)))[0]
    metric = QuadraticMetric(np.array([0.5, 1.0, 2.0, 5.0, 40.0]), basis)
    scaled = ScaledRegulariser(regulariser, features=4, scale=0.7, objective=1.3)
    w, g = generator.standard_normal(5), 10 * generator.standard_normal(5)
    matrix = (basis * metric.values) @ basis.T
    w = scaled.prox(w, 1.0)

    def model(u: np.ndarray) -> float:
        return float(g @ (u - w) + 0.5 * (u - w) @ matrix @ (u - w)) + 3 * scaled.value(u)

    found = metric.step(w, g, scaled, records=3)
    lowest = model(found)
    assert math.isfinite(lowest)
    for _ in range(2000):
        other = scaled.prox(found + generator.choice([1e-3, 1e-2, 0.3]) * generator.standard_normal(5), 1e-9)
        assert model(other) >= lowest - 1e-9


def test_the_untuned_rule(classification: Any) -> None:
    model = sv.PrivateLogisticRegression(epsilon=1.0, row_norm=1.0, solver="newton")
    plan = model.plan(sv.Federation.central(*classification))
    gram, gradient = plan.release("gram"), plan.release("gradient")
    mu_gram = gram.charged("zero-out") / gram.std
    mu_gradient = gradient.charged("zero-out") * math.sqrt(gradient.count) / gradient.std
    assert mu_gram**2 / (mu_gram**2 + mu_gradient**2) == pytest.approx(0.10, rel=1e-9)
    assert gradient.count == plan.rounds == 64
    s0, d = gradient.std / 8, plan.dimension
    assert plan.numbers.damping == pytest.approx(
        max(64 * s0 * d / 200, 0.35 * gram.std * math.sqrt(d), gradient.std**2 * d / 1200)
    )


@pytest.mark.slow
def test_by_rows_costs_less_than_training_alone(classification: Any) -> None:
    X, y = classification
    parts = [(X[k::4], y[k::4]) for k in range(4)]
    together, alone = [], []
    for seed in range(6):
        model = sv.PrivateLogisticRegression(epsilon=2.0, row_norm=1.0, insecure_seed=seed)
        together.append(model.fit(sv.Federation.by_rows(parts)).score(X, y))
        alone.append(model.fit(*parts[0]).score(X, y))
    assert np.mean(together) > np.mean(alone)


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_regression_reaches_the_noise_floor(regression: Any, relation: Any) -> None:
    X, y = regression
    model = sv.PrivateRidge(epsilon=8.0, row_norm=1.0, label_bound=1.0, relation=relation, insecure_seed=0).fit(X, y)
    assert np.mean((model.predict(X) - y) ** 2) < 0.4 * np.var(y)
