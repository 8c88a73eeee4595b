"""What every algorithm must keep: subclass `AlgorithmContract` and name the solver."""

from __future__ import annotations

import itertools
import math
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.sparse as sp

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.errors import InputError
from sottovoce.privacy.accounting import epsilon_of

DELTA = 1e-6


class AlgorithmContract:
    solver: ClassVar[str]
    base: ClassVar[dict[str, Any]] = {}  # what the solver cannot do without
    by_rows: ClassVar[bool] = True
    refusal: ClassVar[str] = "serves data in one place"  # of a split by rows, where it is refused
    ball: ClassVar[bool] = False  # whether it needs the l1 ball
    sets: ClassVar[bool] = True  # whether it takes constraint sets
    l1: ClassVar[bool] = True  # whether it takes an l1 penalty
    growth: ClassVar[float] = 1.3  # of the noise, from zero-out to replace-one
    world: ClassVar[float] = 0.6  # four parties: the world's epsilon as a share of the coordinator's, at most
    exact: ClassVar[dict[str, Any]] = {}  # options under which the run without privacy is deterministic
    shortfall: ClassVar[float]  # accuracy given up at epsilon 8 on the small problem, of the 0.35 above chance

    def model(self, **parameters: Any) -> sv.PrivateLogisticRegression:
        defaults: dict[str, Any] = {"delta": DELTA, "row_norm": 1.0, "classes": (-1, 1), "solver": self.solver}
        return sv.PrivateLogisticRegression(**{**defaults, **self.base, **parameters})

    def parts(self, data: tuple[Any, np.ndarray], count: int) -> list[tuple[Any, np.ndarray]]:
        X, y = data
        edges = np.linspace(0, len(y), count + 1).astype(int)
        return [(X[a:b], y[a:b]) for a, b in itertools.pairwise(edges)]

    @pytest.mark.parametrize("parties", [2, 4])
    def test_split_equals_central_with_the_noise_off(self, classification: Any, parties: int) -> None:
        if not self.by_rows:
            with pytest.raises(InputError, match=self.refusal):
                self.model().fit(sv.Federation.by_rows(self.parts(classification, parties)))
            return
        central = self.model(epsilon=math.inf, **self.exact).fit(*classification)
        federation = sv.Federation.by_rows(self.parts(classification, parties))
        split = self.model(epsilon=math.inf, **self.exact).fit(federation)
        np.testing.assert_allclose(split.coef_, central.coef_, rtol=0, atol=1e-9)
        np.testing.assert_allclose(split.intercept_, central.intercept_, rtol=0, atol=1e-9)

    def test_dense_equals_sparse_bit_for_bit(self, classification: Any) -> None:
        X, y = classification
        dense = self.model(epsilon=1.0, insecure_seed=3).fit(X, y)
        sparse = self.model(epsilon=1.0, insecure_seed=3).fit(sp.csc_matrix(X), y)
        np.testing.assert_array_equal(dense.coef_, sparse.coef_)

    def test_a_private_fit_learns(self, classification: Any) -> None:
        X, y = classification
        scores = [self.model(epsilon=8.0, insecure_seed=seed).fit(X, y).score(X, y) for seed in range(5)]
        best = sv.PrivateLogisticRegression(epsilon=math.inf).fit(X, y).score(X, y)
        assert best > 0.8
        assert np.mean(scores) > best - self.shortfall

    @pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
    @pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
    def test_the_plan_spends_the_budget_and_no_more(self, classification: Any, relation: Any, epsilon: float) -> None:
        plan = self.model(epsilon=epsilon, relation=relation).plan(sv.Federation.central(*classification))
        algorithm = algorithms.of(plan)
        spent = epsilon_of(algorithm.events(plan, relation, "data"), DELTA, relation)
        assert 0.985 * epsilon < spent <= epsilon

    def test_noise_grows_with_replace_one(self, classification: Any) -> None:
        federation = sv.Federation.central(*classification)
        loose = self.model(epsilon=1.0, rounds=64).plan(federation)
        strict = self.model(epsilon=1.0, rounds=64, relation="replace-one").plan(federation)
        assert self.spread(strict) >= self.growth * self.spread(loose)

    def spread(self, plan: Any) -> float:
        """The noise of all rounds in units of one record's reach."""
        release = plan.releases[-1]
        return float(release.std * math.sqrt(release.count) / release.charged_zero_out)

    def test_world_sees_less_than_the_coordinator_by_rows(self, classification: Any) -> None:
        if not self.by_rows:
            pytest.skip("one party")
        federation = sv.Federation.by_rows(self.parts(classification, 4))
        report = self.model(epsilon=2.0).fit(federation).privacy_
        assert report.world.epsilon < self.world * report.coordinator.epsilon
        assert report.epsilon == report.coordinator.epsilon == report.parties.epsilon

    def test_same_seed_same_model_other_seed_other_model(self, classification: Any) -> None:
        one, two, three = (self.model(epsilon=1.0, insecure_seed=seed).fit(*classification).coef_ for seed in (1, 1, 2))
        np.testing.assert_array_equal(one, two)
        assert not np.allclose(one, three)

    def test_fresh_noise_without_a_seed(self, classification: Any) -> None:
        one, two = (self.model(epsilon=1.0).fit(*classification).coef_ for _ in range(2))
        assert not np.allclose(one, two)

    def test_penalties_and_sets_are_kept(self, classification: Any) -> None:
        if self.ball:
            for chosen in ({"radius": None, "alpha": 0.1}, {"radius": None}, {"penalty": "l2"}):
                with pytest.raises(InputError, match="needs the l1 ball"):
                    self.model(**chosen).fit(*classification)
            model = self.model(epsilon=1.0, radius=0.5).fit(*classification)
            assert np.abs(model.coef_).sum() <= 0.5 * (1 + 1e-9)
            return
        if not self.l1:
            with pytest.raises(InputError, match="needs an l2 penalty"):
                self.model(penalty="l1", alpha=10.0).fit(*classification)
            return
        sparse = self.model(epsilon=1.0, penalty="l1", alpha=10.0).fit(*classification)
        np.testing.assert_array_equal(sparse.coef_, 0.0)
        if not self.sets:
            with pytest.raises(InputError, match="is not a sum over the coordinates"):
                self.model(alpha=0.0, radius=0.5).fit(*classification)
            return
        ball = self.model(epsilon=1.0, radius=0.5).fit(*classification)
        assert np.linalg.norm(ball.coef_) <= 0.5 * (1 + 1e-9)
        diamond = self.model(epsilon=1.0, penalty="l1", radius=0.5).fit(*classification)
        assert np.abs(diamond.coef_).sum() <= 0.5 * (1 + 1e-9)

    def test_bad_options_are_told(self, classification: Any) -> None:
        with pytest.raises(InputError, match=r"rounds=0 must be a whole number"):
            self.model(rounds=0).fit(*classification)
        with pytest.raises(InputError, match=r"rounds=2.5 must be a whole number"):
            self.model(rounds=2.5).fit(*classification)


class TestNewton(AlgorithmContract):
    solver = "newton"
    shortfall = 0.01


class TestGradient(AlgorithmContract):
    solver = "gradient"
    exact: ClassVar[dict[str, Any]] = {"rounds": 200}
    shortfall = 0.04


class TestSGD(AlgorithmContract):
    solver = "sgd"
    exact: ClassVar[dict[str, Any]] = {"rounds": 100, "rate": 1.0}
    shortfall = 0.04


class TestSCD(AlgorithmContract):
    solver = "scd"
    base: ClassVar[dict[str, Any]] = {"alpha": 1e-3}
    l1 = False
    shortfall = 0.04


class TestSequentialSCD(AlgorithmContract):
    solver = "scd-sequential"
    base: ClassVar[dict[str, Any]] = {"alpha": 1e-2}
    l1 = False
    shortfall = 0.35  # nothing is promised: its noise is that of a method for comparison


class TestPrimalSCD(AlgorithmContract):
    solver = "scd-primal"
    by_rows = False
    l1 = False
    growth = 1.0  # nothing but the cut bounds a step, under both relations alike
    shortfall = 0.6  # nothing is promised: its noise does not fall with the number of records


class TestCD(AlgorithmContract):
    solver = "cd"
    sets = False
    shortfall = 0.06


class TestGreedyCD(AlgorithmContract):
    solver = "greedy-cd"
    sets = False
    world = 0.95  # a choice is one holder's and carries its noise alone
    shortfall = 0.06


class TestFrankWolfe(AlgorithmContract):
    solver = "frank-wolfe"
    base: ClassVar[dict[str, Any]] = {"radius": 12.0}
    by_rows = False
    refusal = "solver='frank-wolfe' does not serve data split by rows; solvers that fit: newton, gradient"
    ball = True
    shortfall = 0.06


def test_every_solver_has_a_contract_test() -> None:
    served = {name for name, algorithm in algorithms.REGISTRY.items() if algorithm.splits != ("columns",)}
    assert {case.solver for case in AlgorithmContract.__subclasses__()} == served
