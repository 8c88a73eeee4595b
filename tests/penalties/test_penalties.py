"""One contract that every penalty keeps; a subclass names it and its formula."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from sottovoce import penalties
from sottovoce.errors import InputError
from sottovoce.penalties import L1, L2, Box, ElasticNet, NoPenalty, Penalty
from sottovoce.penalties.base import _REGISTRY


class PenaltyContract:
    penalty: Penalty
    domain: tuple[float, float] = (-30.0, 30.0)  # where the penalty is finite, as far as a search need go

    def formula(self, w: float) -> float:
        """The penalty of one coordinate."""
        raise NotImplementedError

    @property
    def points(self):
        rng = np.random.default_rng(3)
        return np.concatenate([scale * rng.normal(size=(8, 5)) for scale in (0.0, 0.1, 1.0, 5.0)])

    def test_value_is_the_formula(self):
        for w in np.clip(self.points, *self.domain):
            assert self.penalty.value(w) == pytest.approx(sum(map(self.formula, w)), rel=1e-12)

    @pytest.mark.parametrize("step", [0.01, 0.5, 3.0])
    def test_prox_is_the_minimiser(self, step):
        for w in self.points:
            for entry, found in zip(w, self.penalty.prox(w, step), strict=True):

                def objective(u, entry=entry):
                    return 0.5 * (u - entry) ** 2 + step * self.penalty.value(np.array([u]))

                result = minimize_scalar(objective, bounds=self.domain, method="bounded", options={"xatol": 1e-10})
                assert found == pytest.approx(result.x, abs=1e-6)
                assert objective(found) <= result.fun + 1e-12

    def test_prox_takes_a_step_per_coordinate_and_any_part(self):
        w, step = 3 * self.points[-1], np.array([0.0, 0.1, 0.5, 1.0, 4.0])
        whole = self.penalty.prox(w, step)
        np.testing.assert_array_equal(whole, [self.penalty.prox(w[j], step[j]) for j in range(5)])
        np.testing.assert_array_equal(whole[1:3], self.penalty.prox(w[1:3], step[1:3]))

    def test_prox_is_firmly_nonexpansive_and_contracts_by_the_strong_convexity(self):
        step, points = 0.7, self.points
        moved = self.penalty.prox(points, step)
        for shift in range(1, len(points)):
            before = points - np.roll(points, shift, axis=0)
            after = moved - np.roll(moved, shift, axis=0)
            square = (after * after).sum(axis=1) * (1 + step * self.penalty.strong_convexity)
            assert np.all(square <= (after * before).sum(axis=1) + 1e-12)

    def test_strong_convexity_is_attained(self):
        # Convex still after taking c/2 w^2 away, and not after taking more.
        u = np.linspace(*np.clip(self.domain, -3, 3), 61)
        values = np.array([self.penalty.value(np.array([x])) for x in u])
        second = np.diff(values, 2) / np.diff(u)[0] ** 2
        assert second.min() == pytest.approx(self.penalty.strong_convexity, abs=1e-9)

    @pytest.mark.parametrize("step", [0.05, 1.0])
    def test_fenchel_young(self, step):
        points = self.points
        moved = self.penalty.prox(points, step)
        slopes = (points - moved) / step
        for w, p in zip(moved, slopes, strict=True):
            assert self.penalty.value(w) + self.penalty.conjugate(p) == pytest.approx(w @ p, abs=1e-9)
            for q in slopes:
                assert self.penalty.value(w) + self.penalty.conjugate(q) >= w @ q - 1e-9

    def test_terms_by_coordinate_are_the_formula(self):
        b, c, low, high = self.penalty.by_coordinate()
        assert b >= 0
        assert c == self.penalty.strong_convexity
        for w in self.points.ravel():
            inside = low <= w <= high
            assert (self.penalty.value(np.array([w])) == math.inf) == (not inside)
            if inside:
                assert self.formula(w) == pytest.approx(b * abs(w) + c * w * w / 2, rel=1e-12)

    def test_prox_leaves_its_argument_alone(self):
        w = np.zeros(3) + np.mean(np.clip(self.domain, -1, 1))
        result = self.penalty.prox(w, 0.0)
        np.testing.assert_array_equal(result, w)
        result += 1
        assert np.all(w != result)

    def test_round_trip_through_name_and_parameters(self):
        text = json.dumps(self.penalty.parameters(), allow_nan=False)
        again = penalties.get_penalty(self.penalty.name, **json.loads(text))
        assert again == self.penalty
        assert hash(again) == hash(self.penalty)


class TestNoPenalty(PenaltyContract):
    penalty = NoPenalty()

    def formula(self, w):
        return 0.0

    def test_conjugate_of_a_slope(self):
        assert self.penalty.conjugate(np.array([0.0, 1e-9])) == math.inf


class TestL2(PenaltyContract):
    penalty = L2(alpha=0.8)

    def formula(self, w):
        return 0.4 * w * w


class TestL1(PenaltyContract):
    penalty = L1(alpha=0.8)

    def formula(self, w):
        return 0.8 * abs(w)

    def test_prox_makes_exact_zeros(self):
        assert np.all(self.penalty.prox(np.array([-0.4, 0.1, 0.4]), 0.5) == 0)

    def test_conjugate_beyond_the_weight(self):
        assert self.penalty.conjugate(np.array([0.1, -0.81])) == math.inf
        assert self.penalty.conjugate(np.array([0.8, -0.8 - 1e-15])) == 0


class TestElasticNet(PenaltyContract):
    penalty = ElasticNet(alpha=0.8, l1_ratio=0.25)

    def formula(self, w):
        return 0.2 * abs(w) + 0.3 * w * w

    def test_ends_are_l1_and_l2(self):
        for w in self.points:
            for end, other in ((ElasticNet(0.8, 1.0), L1(0.8)), (ElasticNet(0.8, 0.0), L2(0.8))):
                assert end.value(w) == other.value(w)
                np.testing.assert_array_equal(end.prox(w, 0.3), other.prox(w, 0.3))


class TestBox(PenaltyContract):
    penalty = Box(low=-0.5, high=2.0)
    domain = (-0.5, 2.0)

    def formula(self, w):
        return 0.0

    def test_outside(self):
        for w in ([0.0, -0.51], [2.01, 0.0], [math.nan]):
            assert self.penalty.value(np.array(w)) == math.inf


class TestHalfLine(TestBox):
    penalty = Box(low=0)
    domain = (0.0, 30.0)

    def test_outside(self):
        assert self.penalty.value(np.array([1e300, -1e-9])) == math.inf

    def test_conjugate_of_an_open_direction(self):
        assert self.penalty.conjugate(np.array([1e-9])) == math.inf
        assert self.penalty.conjugate(np.array([-1.0, 0.0])) == 0


def contracts(cls: type[PenaltyContract] = PenaltyContract) -> set[type[PenaltyContract]]:
    return {cls}.union(*(contracts(sub) for sub in cls.__subclasses__()))


def test_every_registered_penalty_keeps_the_contract():
    tested = {cls.penalty.name for cls in contracts() if hasattr(cls, "penalty")}
    assert tested == {name for name in penalties.penalty_names() if issubclass(_REGISTRY[name], Penalty)}


class _WrongShrinkage(L1):
    def prox(self, w, step):
        return super().prox(w, 1.001 * step)


def test_the_contract_rejects_a_prox_that_shrinks_a_thousandth_too_much():
    suite = TestL1()
    suite.penalty = _WrongShrinkage(alpha=0.8)
    for check in (suite.test_prox_is_the_minimiser, suite.test_fenchel_young):
        with pytest.raises(AssertionError):
            check(1.0)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("lasso", {}, "'lasso' is unknown.*box, box_set, elastic_net, l1, l1_ball, l2"),
        ("l2", {}, "missing.*alpha.*it takes: alpha"),
        ("l2", {"alfa": 1.0}, "it takes: alpha"),
        ("none", {"alpha": 1.0}, "it takes: none"),
        ("l2", {"alpha": -0.1}, "alpha=-0.1 must be zero or a positive finite number; it weighs"),
        ("l1", {"alpha": math.nan}, "alpha=nan"),
        ("l1", {"alpha": "big"}, "alpha='big'"),
        ("elastic_net", {"alpha": math.inf}, "alpha=inf"),
        ("elastic_net", {"alpha": 1.0, "l1_ratio": 1.5}, "l1_ratio=1.5 must be between 0"),
        ("elastic_net", {"alpha": 1.0, "l1_ratio": math.nan}, "l1_ratio=nan"),
        ("box", {"low": 2.0, "high": 1.0}, "high=1.0 must be at least low=2.0; swap"),
        ("box", {"low": math.nan}, "low=nan"),
    ],
)
def test_bad_choices_are_explained(name, parameters, message):
    with pytest.raises(InputError, match=message):
        penalties.get_penalty(name, **parameters)
