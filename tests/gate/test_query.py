"""How far one record can move what the gate adds noise to, measured on the gate's own integers with the noise off."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sottovoce import losses
from sottovoce.algorithms.newton import CurvatureSum, LossSum
from sottovoce.data.block import Block, Preparation
from sottovoce.data.bounds import Bounds
from sottovoce.errors import InputError, LeakError
from sottovoce.gate import gate as gate_module
from sottovoce.gate.gate import Gate
from sottovoce.gate.query import Query, Round
from sottovoce.losses import Loss
from sottovoce.plan.release import Release
from sottovoce.privacy.events import Relation
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.queries.sums import GradientSum, GramMatrix
from support import at

FEATURES, RECORDS = 3, 6
CLASSIFICATION = [name for name in losses.base.names() if losses.get(name).kind == "classification"]
REGRESSION = [name for name in losses.base.names() if losses.get(name).kind == "regression"]
RELATIONS: tuple[Relation, ...] = ("zero-out", "replace-one")
NULL = (np.full(FEATURES, math.nan), 0.0)

BOUNDS = Bounds.declare(row_norm=1.0, label_bound=1.0)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "rounded_gaussian", lambda _scale, size, _randomness: np.zeros(size, np.int64))


def recipe(loss: Loss | None, bounds: Bounds = BOUNDS) -> Preparation:
    regression = loss is not None and loss.kind == "regression"
    return Preparation(bounds, FEATURES, True, RECORDS, None if regression else (-1.0, 1.0))


class Silent:
    """The gate's integers for a query, without their noise."""

    def __init__(self, query: Query, loss: Loss | None = None, bounds: Bounds = BOUNDS) -> None:
        self.query = query
        self.recipe = recipe(loss, bounds)
        self.release = Release.at_mu(query, 0, 2**30, 1000.0, "zero-out")
        self.plan: Any = SimpleNamespace(
            channel=SimpleNamespace(secure=False),
            most_records=None,
            digest=b"p" * 32,
            records=RECORDS,
            has=lambda name: name == self.release.query,
            release=lambda _: self.release,
        )
        self.gate = Gate(self.plan, SeededRandomness(0))
        self.round = 0

    def __call__(self, X: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
        self.round += 1
        block = Block.prepare(X, y, self.recipe)
        released = self.gate.release(self.query, Round(self.plan, self.round, {"weights": weights}, block))
        return np.asarray(released.arrays["grid"])

    def squared(self, difference: np.ndarray) -> Fraction:
        """The squared weighted distance, without a rounding: squares of weights are 1 and 2."""
        shares = np.rint(np.broadcast_to(np.square(self.query.noise_weights), difference.shape)).astype(int)
        total = sum(int(share) * int(step) ** 2 for share, step in zip(shares, difference, strict=True))
        return Fraction(total) * Fraction(self.release.step) ** 2

    def check(self, difference: np.ndarray, relation: Relation) -> None:
        charged = self.release.charged(relation)
        assert charged == self.query.sensitivity(relation) + self.release.step * math.sqrt(self.query.rounding_entries)
        assert self.squared(difference) <= Fraction(charged) ** 2

    def ratio(self, difference: np.ndarray, relation: Relation) -> float:
        return math.sqrt(self.squared(difference)) / self.query.sensitivity(relation)


def gradient_of(name: str) -> Silent:
    loss = losses.get(name)
    bound = 0.5 if loss.kind == "regression" else loss.lipschitz()
    return Silent(GradientSum(FEATURES + 1, bound, loss), loss)


def with_record(X: np.ndarray, y: np.ndarray, record: tuple[np.ndarray, float]) -> tuple[np.ndarray, np.ndarray]:
    X, y = X.copy(), y.copy()
    X[2], y[2] = record
    return X, y


ENTRIES = st.one_of(st.floats(-3, 3), st.floats(), st.sampled_from([0.0, 1.0, -1.0, 1e300, math.nan, math.inf]))
ROWS = hnp.arrays(np.float64, (RECORDS, FEATURES), elements=ENTRIES)
LABELS = hnp.arrays(np.float64, RECORDS, elements=st.one_of(st.sampled_from([-1.0, 1.0]), st.floats()))
WEIGHTS = hnp.arrays(np.float64, FEATURES + 1, elements=st.one_of(st.floats(-5, 5), st.floats(-1e99, 1e99)))


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("name", [*CLASSIFICATION, *REGRESSION, "gram"])
def test_neighbours_that_hypothesis_makes(name: str) -> None:
    value = Silent(GramMatrix(FEATURES + 1)) if name == "gram" else gradient_of(name)

    @settings(max_examples=60, deadline=None)
    @given(ROWS, LABELS, hnp.arrays(np.float64, FEATURES, elements=ENTRIES), st.floats(), WEIGHTS)
    def check(X: np.ndarray, y: np.ndarray, row: np.ndarray, label: float, weights: np.ndarray) -> None:
        here = value(X, y, weights)
        value.check(here - value(*with_record(X, y, NULL), weights), "zero-out")
        value.check(here - value(*with_record(X, y, (row, label)), weights), "replace-one")

    check()


@dataclass(frozen=True)
class Canary:
    """A record, the one it is replaced by, and the weights at which they are furthest apart."""

    record: tuple[list[float], float]
    other: tuple[list[float], float]
    weights: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)


# Slopes of both signs are full at one w only for rows nearly orthogonal to it.
STEEP = Canary(([2e-3, 1, 0], -1.0), ([-2e-3, 1, 0], 1.0), (1e5, 0, 0, 0))
FLIPPED = Canary(([1, 0, 0], -1.0), ([1, 0, 0], 1.0))
CANARIES: dict[str, Canary] = {
    "logistic": STEEP,
    "hinge": FLIPPED,
    "smoothed_hinge": FLIPPED,
    "sigmoid": FLIPPED,
    "squared": FLIPPED,
    "huber": FLIPPED,
    # with c0 = 1/4 the prepared rows are orthogonal where the cosine of the features is -c0^2 / (1 - c0^2)
    "gram": Canary(([1, 0, 0], 1.0), ([-1 / 15, math.sqrt(1 - 1 / 225), 0], 1.0)),
}


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("name", [*CLASSIFICATION, *REGRESSION, "gram"])
@pytest.mark.parametrize("scale", [1.0, 1e9])
def test_the_worst_case_is_attained(name: str, scale: float) -> None:
    value = Silent(GramMatrix(FEATURES + 1)) if name == "gram" else gradient_of(name)
    canary = CANARIES[name]
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((RECORDS, FEATURES)), rng.choice([-1.0, 1.0], RECORDS)
    weights = np.array(canary.weights)
    row, label = np.array(canary.record[0]) * scale, canary.record[1]
    other_row, other_label = np.array(canary.other[0]) * scale, canary.other[1]
    here = value(*with_record(X, y, (row, label)), weights)
    zero_out = here - value(*with_record(X, y, NULL), weights)
    replaced = here - value(*with_record(X, y, (other_row, other_label)), weights)
    value.check(zero_out, "zero-out")
    value.check(replaced, "replace-one")
    assert value.ratio(zero_out, "zero-out") >= 0.99
    assert value.ratio(replaced, "replace-one") >= 0.99


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("weights", [1e99, -1e99, 1e-300, 0.0])
def test_huge_and_tiny_weights_move_nothing_further(weights: float) -> None:
    value = gradient_of("squared")
    X = np.eye(RECORDS, FEATURES) * 1e200
    y = np.linspace(-1e300, 1e300, RECORDS)
    here = value(X, y, np.full(FEATURES + 1, weights))
    value.check(here - value(*with_record(X, y, NULL), np.full(FEATURES + 1, weights)), "zero-out")


@pytest.mark.parametrize("bound", [1e-9, 0.3, 0.5, 1.0, 1.5, 1e9])
@pytest.mark.usefixtures("silent")
def test_any_slope_bound_is_enforced(bound: float) -> None:
    loss = losses.get("squared")
    value = Silent(GradientSum(FEATURES + 1, bound, loss), loss)
    X, y = np.tile([1.0, 0, 0], (RECORDS, 1)), np.ones(RECORDS)
    weights = np.array([-1e10, 0, 0, 0.0])
    zero_out = value(X, y, weights) - value(*with_record(X, y, NULL), weights)
    value.check(zero_out, "zero-out")
    assert value.ratio(zero_out, "zero-out") >= 0.99


def test_a_record_causes_no_warning() -> None:
    loss = losses.get("smoothed_hinge", smoothing=1e-300)
    block = Block.prepare(np.tile([1.0, 0, 0], (RECORDS, 1)), np.ones(RECORDS), recipe(None))
    total = at(GradientSum(FEATURES + 1, 1.0, loss), block, weights=[-1e90, 0, 0, 0.0])
    np.testing.assert_array_equal(total, -block.rows.sum(axis=0, dtype=np.float64))


class Hostile(losses.single.Logistic):
    """A loss whose slopes are whatever is asked for."""

    def derivative(self, u: np.ndarray, y: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        return np.array([math.nan, math.inf, -math.inf, 1e300, -7.0, 0.5])[: len(u)]


def test_slopes_are_clipped_in_code_whatever_the_loss_says() -> None:
    block = Block.prepare(np.tile([1.0, 0, 0], (RECORDS, 1)), np.ones(RECORDS), recipe(None))
    total = at(GradientSum(FEATURES + 1, 1.0, Hostile()), block, weights=np.zeros(4))
    row = np.asarray(block.rows[0], dtype=np.float64)
    np.testing.assert_array_equal(total, row * (1 + 1 - 1 + 1 - 1 + 0.5))


def test_constants_are_those_of_the_proof() -> None:
    gradient = GradientSum(5, 0.7, losses.get("logistic"))
    assert gradient.sensitivity("zero-out") == 0.7
    assert gradient.sensitivity("replace-one") == 2 * 0.7
    assert gradient.rounding_entries == 5
    gram = GramMatrix(5)
    assert gram.sensitivity("zero-out") == 1.0
    assert gram.sensitivity("replace-one") == pytest.approx(math.sqrt(2), rel=1e-15)
    assert gram.rounding_entries == 25
    assert np.square(gram.noise_weights).sum() == pytest.approx(gram.rounding_entries)
    for unbounded in (CurvatureSum(losses.get("logistic"), 5), LossSum(losses.get("logistic"), 5)):
        for relation in RELATIONS:
            assert unbounded.sensitivity(relation) == unbounded.rounding_entries == math.inf


@pytest.mark.parametrize("query", [GradientSum(5, 0.7, losses.get("logistic")), GramMatrix(5), CurvatureSum])
def test_a_relation_that_is_not_known_has_no_sensitivity(query: Any) -> None:
    asked: Any = "add-or-remove"
    made = query(losses.get("logistic"), 5) if query is CurvatureSum else query
    with pytest.raises(InputError, match="relation='add-or-remove'"):
        made.sensitivity(asked)


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan, math.inf, 1e101, 1e-101])
def test_a_slope_bound_is_a_positive_number(bound: float) -> None:
    with pytest.raises(InputError, match="slope_bound"):
        GradientSum(2, bound, losses.get("logistic"))


@pytest.mark.parametrize("query", [GradientSum(4, 1.0, losses.get("logistic")), GramMatrix(4)])
@pytest.mark.parametrize("layout", ["columns", "entries"])
def test_rows_longer_than_the_query_counts_on_are_a_leak(query: Any, layout: Any) -> None:
    block = Block.prepare(np.ones((2, 3)), np.ones(2), dataclasses.replace(recipe(None), layout=layout))
    with pytest.raises(LeakError, match="longer"):
        at(query, block, weights=np.zeros(4))


def test_the_triangle_is_the_matrix() -> None:
    X = np.random.default_rng(0).standard_normal((RECORDS, FEATURES))
    block = Block.prepare(X, np.ones(RECORDS), recipe(None))
    query = GramMatrix(FEATURES + 1)
    np.testing.assert_array_equal(query.matrix(at(query, block)), block.gram())
    weighted = float(np.sum((query.noise_weights * at(query, block)) ** 2))
    assert weighted == pytest.approx(float((block.gram() ** 2).sum()))


def test_without_privacy_curvature_and_loss_are_exact() -> None:
    rng = np.random.default_rng(3)
    X, y = rng.standard_normal((RECORDS, FEATURES)), np.array([-1.0, 1, 1, -1, 1, -1])
    block = Block.prepare(X, y, Preparation(Bounds(), FEATURES, False, RECORDS, (-1.0, 1.0), exact=False))
    w, loss = rng.standard_normal(FEATURES), losses.get("logistic")
    rows = block.rows
    bend = loss.curvature(rows @ w, y)
    curvature = at(CurvatureSum(loss, FEATURES), block, weights=w)
    np.testing.assert_allclose(curvature, ((rows.T * bend) @ rows)[np.triu_indices(FEATURES)])
    np.testing.assert_allclose(at(LossSum(loss, FEATURES), block, weights=w), [loss.value(rows @ w, y).sum()])
