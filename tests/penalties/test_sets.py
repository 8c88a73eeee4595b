"""One contract that every constraint set keeps; a subclass describes the set in three independent ways."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from sottovoce import penalties
from sottovoce.errors import InputError
from sottovoce.penalties import L1, BoxSet, ConstraintSet, L1Ball, L2Ball, Product, Simplex
from sottovoce.penalties.base import _REGISTRY


class SetContract:
    set: ConstraintSet
    dimension = 4

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Points of the set, interior and boundary, one a row."""
        raise NotImplementedError

    def extremes(self) -> np.ndarray:
        """Its extreme points (for a ball: enough of them to span a diameter)."""
        raise NotImplementedError

    def least(self, gradient: np.ndarray) -> float:
        """The least <s, gradient> over the set."""
        return float((self.extremes() @ gradient).min())

    def constraints(self) -> list[dict[str, Any]]:
        """The set as SciPy's solver is told of it."""
        raise NotImplementedError

    def points(self, seed=11, count=6):
        rng = np.random.default_rng(seed)
        return np.concatenate([size * rng.normal(size=(count, self.dimension)) for size in (0.1, 1, 10, 1e3)])

    def feasible(self):
        return np.concatenate([self.sample(np.random.default_rng(12), 1000), self.extremes()])

    def test_contains_its_points(self):
        for s in self.feasible():
            assert self.set.contains(s)
            assert self.set.value(s) == 0

    def test_contains_nothing_beyond_its_support(self):
        # Every closed convex set is the intersection of the half spaces that its support function gives.
        seen = 0
        for w in self.points():
            outside = any(w @ g < self.least(g) - 1e-3 for g in self.points(seed=13, count=50))
            seen += outside
            assert not (outside and self.set.contains(w))
            assert not outside or self.set.value(w) == math.inf
        assert seen > 10

    def test_tolerance_is_what_it_says(self):
        direction = np.array([1.0, 0.5, 0.25, 0.125])
        edge = self.set.linear_oracle(-direction)
        beyond = edge + 1e-5 * direction
        assert self.set.contains(edge, 0.0) or self.set.contains(edge, 1e-15)
        assert not self.set.contains(beyond)
        assert self.set.contains(beyond, 1e-3)

    def test_nan_is_outside(self):
        w = self.extremes()[0].astype(float)
        w[0] = math.nan
        assert not self.set.contains(w)

    def test_projection_is_nearest(self):
        # <w - p, s - p> <= 0 for every s in the set says that p is the projection of w.
        feasible = self.feasible()
        for w in self.points():
            p = self.set.project(w)
            assert self.set.contains(p)
            size = max(1.0, np.linalg.norm(w))
            assert ((feasible - p) @ (w - p)).max() <= 1e-10 * size
            assert -self.least(p - w) - (w - p) @ p <= 1e-10 * size

    def test_projection_agrees_with_a_solver(self):
        start = self.feasible()[:1000].mean(axis=0)
        for w in self.points(count=3)[:9]:
            result = minimize(
                lambda u, w=w: 0.5 * np.sum((u - w) ** 2),
                start,
                jac=lambda u, w=w: u - w,
                constraints=self.constraints(),
                method="SLSQP",
                options={"ftol": 1e-14, "maxiter": 500},
            )
            np.testing.assert_allclose(self.set.project(w), result.x, atol=1e-5)

    def test_projection_is_nonexpansive_and_idempotent(self):
        points = self.points()
        moved = np.array([self.set.project(w) for w in points])
        for shift in range(1, len(points)):
            before = np.linalg.norm(points - np.roll(points, shift, axis=0), axis=1)
            after = np.linalg.norm(moved - np.roll(moved, shift, axis=0), axis=1)
            assert np.all(after <= before * (1 + 1e-12))
        np.testing.assert_allclose([self.set.project(p) for p in moved], moved, rtol=1e-12, atol=1e-14)

    def test_projection_of_a_point_inside_is_a_copy_of_it(self):
        s = self.feasible()[0]
        p = self.set.project(s)
        np.testing.assert_allclose(p, s, rtol=1e-12, atol=1e-14)
        assert not np.shares_memory(p, s)

    @pytest.mark.parametrize("size", [1e12, 1e20, 1e100])
    def test_projection_of_far_points(self, size):
        for w in size * self.points(count=2)[:4]:
            assert self.set.contains(self.set.project(w))

    def test_prox_is_the_projection(self):
        for w in self.points():
            for step in (0.01, 100.0):
                np.testing.assert_array_equal(self.set.prox(w, step), self.set.project(w))

    def test_linear_oracle_is_least_and_extreme(self):
        feasible = self.feasible()
        for g in self.points():
            s = self.set.linear_oracle(g)
            assert self.set.contains(s)
            assert s @ g <= (feasible @ g).min() + 1e-12 * np.abs(g).max()
            assert s @ g == pytest.approx(self.least(g), rel=1e-12)
            assert self.set.conjugate(-g) == pytest.approx(-self.least(g), rel=1e-12)

    def test_linear_oracle_without_a_direction_stays_in_the_set(self):
        assert self.set.contains(self.set.linear_oracle(np.zeros(self.dimension)))

    def test_diameter_holds_and_is_attained(self):
        points = np.concatenate([self.extremes(), self.feasible()[:200]])
        furthest = np.linalg.norm(points[:, None] - points[None], axis=2).max()
        assert furthest == pytest.approx(self.set.diameter(self.dimension), rel=1e-12)

    def test_has_no_strong_convexity(self):
        assert self.set.strong_convexity == 0

    def test_round_trip_through_name_and_parameters(self):
        text = json.dumps(self.set.parameters(), allow_nan=False)
        again = penalties.get_penalty(self.set.name, **json.loads(text))
        assert again == self.set
        assert hash(again) == hash(self.set)


class TestL1Ball(SetContract):
    set = L1Ball(radius=1.5)

    def sample(self, rng, count):
        signs = rng.choice([-1.0, 1.0], (count, 4))
        return 1.5 * rng.uniform(size=(count, 1)) ** 0.25 * signs * rng.dirichlet(np.ones(4), count)

    def extremes(self):
        return 1.5 * np.concatenate([np.eye(4), -np.eye(4)])

    def constraints(self):
        signs = np.array(list(itertools.product([-1, 1], repeat=4)))
        return [{"type": "ineq", "fun": lambda u: 1.5 - signs @ u, "jac": lambda u: -signs}]

    def test_projection_has_exact_zeros(self):
        np.testing.assert_allclose(self.set.project(np.array([3.0, -0.1, 2.0, 0.0])), [1.25, 0, 0.25, 0])

    def test_oracle_at_a_zero_gradient_is_a_vertex(self):
        assert np.abs(self.set.linear_oracle(np.zeros(4))).sum() == 1.5


class TestL2Ball(SetContract):
    set = L2Ball(radius=1.5)

    def sample(self, rng, count):
        rows = rng.normal(size=(count, 4))
        return 1.5 * rng.uniform(size=(count, 1)) * rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def extremes(self):
        return 1.5 * np.concatenate([np.eye(4), -np.eye(4)])

    def least(self, gradient):
        return -1.5 * float(np.linalg.norm(gradient))

    def constraints(self):
        return [{"type": "ineq", "fun": lambda u: 1.5**2 - u @ u, "jac": lambda u: -2 * u}]


class TestSimplex(SetContract):
    set = Simplex(radius=1.5)

    def sample(self, rng, count):
        return 1.5 * rng.dirichlet(np.ones(4), count)

    def extremes(self):
        return 1.5 * np.eye(4)

    def constraints(self):
        return [
            {"type": "eq", "fun": lambda u: u.sum() - 1.5, "jac": lambda u: np.ones(4)},
            {"type": "ineq", "fun": lambda u: u, "jac": lambda u: np.eye(4)},
        ]

    def test_one_dimension_is_a_point(self):
        assert self.set.diameter(1) == 0
        assert self.set.project(np.array([-7.0])) == 1.5


class TestBoxSet(SetContract):
    set = BoxSet(low=-0.5, high=2)

    def sample(self, rng, count):
        return rng.uniform(-0.5, 2.0, (count, 4))

    def extremes(self):
        return np.array(list(itertools.product([-0.5, 2.0], repeat=4)))

    def constraints(self):
        return [{"type": "ineq", "fun": lambda u: np.append(u + 0.5, 2 - u)}]


class TestProduct(SetContract):
    set = Product((L1Ball(1.5), Simplex(2.0)), (2, 2))

    def sample(self, rng, count):
        signs = rng.choice([-1.0, 1.0], (count, 2))
        left = 1.5 * rng.uniform(size=(count, 1)) * signs * rng.dirichlet(np.ones(2), count)
        return np.hstack([left, 2 * rng.dirichlet(np.ones(2), count)])

    def extremes(self):
        left, right = 1.5 * np.concatenate([np.eye(2), -np.eye(2)]), 2 * np.eye(2)
        return np.array([np.append(a, b) for a, b in itertools.product(left, right)])

    def constraints(self):
        signs = np.array(list(itertools.product([-1, 1], repeat=2)))
        return [
            {"type": "ineq", "fun": lambda u: 1.5 - signs @ u[:2]},
            {"type": "ineq", "fun": lambda u: u[2:]},
            {"type": "eq", "fun": lambda u: u[2:].sum() - 2},
        ]

    def test_wrong_length_is_told(self):
        for call in (self.set.project, self.set.linear_oracle, self.set.contains):
            with pytest.raises(InputError, match=r"dimension=5 does not fit sizes=\(2, 2\)"):
                call(np.zeros(5))
        with pytest.raises(InputError, match="dimension=3"):
            self.set.diameter(3)


def contracts(cls: type[SetContract] = SetContract) -> set[type[SetContract]]:
    return {cls}.union(*(contracts(sub) for sub in cls.__subclasses__()))


def test_every_registered_set_keeps_the_contract():
    tested = {cls.set.name for cls in contracts() if hasattr(cls, "set")}
    assert tested == {name for name in penalties.penalty_names() if issubclass(_REGISTRY[name], ConstraintSet)}


class _WrongRadius(L1Ball):
    def project(self, w):
        return L1Ball(0.999 * self.radius).project(w)

    def linear_oracle(self, gradient):
        return 0.999 * super().linear_oracle(gradient)


def test_the_contract_rejects_a_radius_a_thousandth_too_small():
    suite = TestL1Ball()
    suite.set = _WrongRadius(radius=1.5)
    for check in (
        suite.test_projection_is_nearest,
        suite.test_projection_agrees_with_a_solver,
        suite.test_linear_oracle_is_least_and_extreme,
    ):
        with pytest.raises(AssertionError):
            check()


def test_projections_of_long_vectors_are_exact():
    w = np.random.default_rng(8).normal(size=200_000)
    p = Simplex(3.0).project(w)
    shift = (w - p)[p > 0]
    assert p.sum() == pytest.approx(3.0, rel=1e-12)
    assert np.ptp(shift) < 1e-12
    assert np.all(w[p == 0] <= shift[0] + 1e-12)
    q = L1Ball(3.0).project(w)
    assert np.abs(q).sum() == pytest.approx(3.0, rel=1e-12)
    np.testing.assert_allclose(np.abs(q), Simplex(3.0).project(np.abs(w)), atol=1e-14)


def test_a_nan_reaches_every_coordinate_of_a_projection():
    w = np.array([1.0, math.nan, 5.0])
    for constraint in (L1Ball(1.0), L2Ball(1.0), Simplex(1.0)):
        assert np.all(np.isnan(constraint.project(w)))


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("l1_ball", {}, "missing.*radius.*it takes: radius"),
        ("l1_ball", {"radius": 0.0}, "radius=0.0 must be a positive finite number; it bounds"),
        ("l2_ball", {"radius": -1.0}, "radius=-1.0"),
        ("simplex", {"radius": math.nan}, "radius=nan"),
        ("simplex", {"radius": math.inf}, "radius=inf"),
        ("box_set", {"low": 1.0, "high": 0.0}, "high=0.0 must be at least low=1.0; swap"),
        ("box_set", {"low": -math.inf, "high": 0.0}, "low=-inf must be a finite number.*'box'"),
        ("box_set", {"low": 0.0, "high": math.nan}, "high=nan"),
        ("product", {"parts": [{"name": "l1", "alpha": 1.0}], "sizes": [1]}, "must be one or more constraint sets"),
        ("product", {"parts": [], "sizes": []}, "one or more"),
        ("product", {"parts": [{"name": "l1_ball", "radius": 1.0}], "sizes": [1, 2]}, "must be 1 positive integers"),
        ("product", {"parts": [{"name": "l1_ball", "radius": 1.0}], "sizes": [0]}, r"sizes=\(0,\)"),
        ("product", {"parts": [{"radius": 1.0}], "sizes": [1]}, "list of names with parameters"),
        ("product", {"parts": [{"name": "l1_ball", "radius": 1.0}], "sizes": 1}, "sizes a list of integers"),
    ],
)
def test_bad_choices_are_explained(name, parameters, message):
    with pytest.raises(InputError, match=message):
        penalties.get_penalty(name, **parameters)


def test_product_of_a_penalty_is_refused():
    with pytest.raises(InputError, match="leave penalties out"):
        Product((L1(1.0),), (2,))  # type: ignore[arg-type]
