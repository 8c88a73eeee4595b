"""Sealed runs from end to end: sums without noise are exact, their noise is as declared, and records move them so far.

Every run has its keys, masks, boxes, dealer and gates; `newton` asks for the sums.
"""

import math
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

import sottovoce as sv
from opening import Sum, asked, fixed_coins, watched
from sottovoce.data.block import Block
from sottovoce.door.query import Query, Round
from sottovoce.plan.plan import Plan
from sottovoce.plan.sealing import Sealing
from sottovoce.queries.gradient import GradientSum
from sottovoce.queries.gram import GramMatrix
from sottovoce.queries.joint import JointGradient, known_part
from sottovoce.sealed.tables import Lookup, slope_lookup

Array = NDArray[np.float64]

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")

RECORDS, FEATURES = 300, 11
PARTIES = (2, 3, 8)
SLOPE_ERROR = 0.0003  # of the mean slope by the table, at any score within its range
ROUNDING = math.sqrt(4 / 12) / 4  # the largest deviation of a slope by its four uniform parts, at the steepest place


def table(seed: int = 0, records: int = RECORDS) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (records, FEATURES))
    return X, np.where(X @ rng.standard_normal(FEATURES) + rng.logistic(size=records) > 0, 1.0, -1.0)


def some_weights(count: int, seed: int = 3) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(FEATURES + 1) for _ in range(count)]


def by_rows(X: Array, y: Array, parties: int) -> sv.Federation:
    return sv.Federation.by_rows([(X[k::parties], y[k::parties]) for k in range(parties)], sums="secure")


def by_columns(X: Array, y: Array, parties: int, holder: int = 0) -> sv.Federation:
    parts = np.array_split(X, parties, axis=1)
    return sv.Federation.by_columns(parts, y, labels="held", label_party=holder, products="secure")


def fitted(federation: sv.Federation, seed: int = 1, **bounds: Any) -> Plan:
    """The plan that was run."""
    model = sv.PrivateLogisticRegression(
        1.0, delta=1e-6, alpha=0.0, classes=(-1, 1), solver="newton", insecure_seed=seed, **bounds
    )
    return model.fit(federation).plan_


def opened(
    federation: sv.Federation, weights: Sequence[Array], *, noise: bool, **bounds: Any
) -> tuple[Plan, list[Sum]]:
    """The Gram matrix and the gradients at some weights, as a run opens them."""
    with watched(noise=noise) as seen, asked(weights):
        plan = fitted(federation, **(bounds or {"entry_bound": 1.0}))
    return plan, seen


def in_one_place(X: Array, y: Array) -> Plan:
    with asked([]):
        return fitted(sv.Federation.central(X, y), entry_bound=1.0)


def sum_of(one: Sum, plan: Plan, rows: Block) -> Array:
    """The same sum of rows in one place, exact slopes."""
    query: Query = GramMatrix(plan.dimension)
    if one.query.name == "gradient":
        query = GradientSum(plan.dimension, plan.numbers.slope_bound, plan.scaled_loss)
    return query.value(Round(plan, 0, dict(one.told), rows))


# Without noise


@pytest.mark.parametrize("parties", PARTIES)
def test_by_rows_sums_are_the_central_ones_bit_for_bit(parties: int) -> None:
    X, y = table()
    plan, seen = opened(by_rows(X, y, parties), some_weights(3), noise=False)
    whole = Block.prepare(X, y, plan.preparation)
    some = Block.prepare(X[: -RECORDS // 9], y[: -RECORDS // 9], plan.preparation)
    assert [one.query.name for one in seen] == ["gram", "gradient", "gradient", "gradient"]
    for one in seen:
        assert one.value.tobytes() == sum_of(one, plan, whole).tobytes()
        assert one.value.tobytes() != sum_of(one, plan, some).tobytes()  # people left out


@pytest.mark.parametrize("parties", PARTIES)
def test_by_columns_the_gram_matrix_is_the_central_one_bit_for_bit(parties: int) -> None:
    X, y = table()
    central = in_one_place(X, y)
    _, (gram,) = opened(by_columns(X, y, parties, holder=parties - 1), [], noise=False)
    assert gram.value.tobytes() == sum_of(gram, central, Block.prepare(X, y, central.preparation)).tobytes()
    X[7, 3] = -X[7, 3]  # another entry at one party
    _, (gram,) = opened(by_columns(X, y, parties), [], noise=False)
    X[7, 3] = -X[7, 3]
    assert gram.value.tobytes() != sum_of(gram, central, Block.prepare(X, y, central.preparation)).tobytes()


def off_by(seen: list[Sum], X: Array, y: Array) -> float:
    """How far gradients are from those with exact slopes, over what table and rounding allow: 6 deviations of these."""
    plan = in_one_place(X, y)
    rows = Block.prepare(X, y, plan.preparation)
    D = np.abs(rows.dense_rows(plan.dimension))
    allowed = SLOPE_ERROR * D.sum(axis=0) + 6 * ROUNDING * np.sqrt((D**2).sum(axis=0))
    return max(float(np.max(np.abs(one.value - sum_of(one, plan, rows)) / allowed)) for one in seen[1:])


@pytest.mark.parametrize("parties", PARTIES)
def test_by_columns_gradients_are_within_the_error_of_the_table(parties: int) -> None:
    X, y = table(records=2000)
    weights = [4 * one for one in some_weights(3)]
    _, seen = opened(by_columns(X, y, parties, holder=1), weights, noise=False)
    assert off_by(seen, X, y) <= 1.0

    def coarse(loss: Any, bound: float, bits: int, *, widen: int = 1) -> Lookup:
        return slope_lookup(loss, bound, bits, widen=8)

    with mock.patch("sottovoce.queries.joint.slope_lookup", coarse):
        _, seen = opened(by_columns(X, y, parties, holder=1), weights, noise=False)
    assert off_by(seen, X, y) > 1.0


# With noise


def spread(federation: sv.Federation, X: Array, y: Array) -> tuple[Plan, Array, Array]:
    """(the plan, K of each of 822 entries, their squared errors over the variance of one release)."""
    plan, seen = opened(federation, some_weights(62), noise=True)
    central = in_one_place(X, y)
    rows = Block.prepare(X, y, central.preparation)
    known, found = [], []
    for one in seen:
        deviation = plan.release(one.query.name).std / one.query.noise_weights
        found.append(((one.value - sum_of(one, central, rows)) / deviation) ** 2)
        gradient = plan.split == "columns" and one.query.name == "gradient"
        known.append(np.full(found[-1].shape, known_part(plan, plan.row_shares()) if gradient else 1.0))
    return plan, np.concatenate(known), np.concatenate(found)


def over_declared(plan: Plan, known: Array, found: Array) -> float:
    """The variance of opened sums over what the plan counts with."""
    return float(np.mean([each / plan.noises(one) for one, each in zip(known, found, strict=True)]))


NEAR = 0.27  # of a variance by 822 draws: 5.4 of its deviations, a chance below 1e-6


@pytest.mark.parametrize("parties", [3, 5])
@pytest.mark.parametrize("split", ["rows", "columns"])
def test_opened_sums_have_the_noise_that_plans_count_with(split: str, parties: int) -> None:
    X, y = table()
    make = by_rows if split == "rows" else by_columns
    assert abs(over_declared(*spread(make(X, y, parties), X, y)) - 1) < NEAR
    with mock.patch.object(Sealing, "top_up", return_value=0.0):
        without = spread(make(X, y, parties), X, y)
    assert over_declared(*without) < 1 - NEAR


# How far a record moves a sum


NORMS = (0.9999, math.sqrt(1 - 0.9999**2))


def canary() -> tuple[Array, Array]:
    """The first record is as long as any, nearly all of it at the first of two parties."""
    X, y = table(5, 20)
    X /= math.sqrt(FEATURES)
    X[0] = 0.0
    X[0, 0], X[0, 6] = NORMS
    return X, y


def under_fixed_coins(
    X: Array, y: Array, weights: Sequence[Array], holder: int, widen: int = 1
) -> tuple[Plan, list[Array]]:
    """Opened sums, weighted as their sensitivities are.

    How far apart levels are follows from an earlier opened sum, which neighbours share; without noise it would not.
    """
    parts = [X[:, :6], X[:, 6:]]
    federation = sv.Federation.by_columns(parts, y, labels="held", label_party=holder, norms=NORMS, products="secure")
    with fixed_coins(), mock.patch.object(JointGradient, "widened", return_value=widen):
        plan, seen = opened(federation, weights, noise=False, row_norm=1.0)
    values = [one.value * one.query.noise_weights for one in seen]
    return plan, values


def moves(first: list[Array], second: list[Array]) -> list[float]:
    return [float(np.linalg.norm(a - b)) for a, b in zip(first, second, strict=True)]


def far_weights() -> list[Array]:
    rng = np.random.default_rng(8)
    sizes = (1.0, 10.0, 1e3, 1e5, 1e5, 1e5)
    weights = [rng.standard_normal(FEATURES + 1) * size for size in sizes]
    for reach in (-8.0, 8.0, 24.0, -40.0):  # the ends of the table, once and after a turn
        one = np.zeros(FEATURES + 1)
        one[0] = reach
        weights.append(one)
    return weights


@pytest.mark.parametrize(("holder", "widen"), [(0, 1), (1, 1), (1, 4)])
def test_a_record_moves_opened_sums_by_no_more_than_is_charged_and_a_canary_by_as_much(holder: int, widen: int) -> None:
    X, y = canary()
    weights = [widen * one for one in far_weights()]
    plan, first = under_fixed_coins(X, y, weights, holder, widen)
    _, again = under_fixed_coins(X, y, weights, holder, widen)
    assert moves(first, again) == [0.0] * len(first)  # the coins are fixed

    X[0] = math.nan  # a record left blank
    _, blank = under_fixed_coins(X, y, weights, holder, widen)
    gram, *gradients = moves(first, blank)
    bound = plan.numbers.slope_bound
    assert 0.99 <= gram <= 1.0
    assert 0.99 * bound <= max(gradients) <= bound

    X[0] = 0.0  # another record in its place
    X[0, 0], X[0, 6], y[0] = -NORMS[0], NORMS[1], -y[0]
    _, other = under_fixed_coins(X, y, weights, holder, widen)
    assert moves(first, other)[0] <= math.sqrt(2)
    assert max(moves(first, other)[1:]) <= 2 * bound


def test_a_part_left_blank_moves_a_gradient_by_no_more_than_the_top_up_covers() -> None:
    """The other party knows its part, nearly all of the record; the label goes with what is blank."""
    X, y = canary()
    rng, long = np.random.default_rng(9), 8.0 / NORMS[1]
    weights = [rng.standard_normal(FEATURES + 1) * size for size in (1.0, 1e3, 1e5)]
    for here in (-8.0, 8.0):
        for there in (-2.0, 2.0):
            one = np.zeros(FEATURES + 1)
            one[0], one[6] = here, there * long
            weights.append(one)
    plan, first = under_fixed_coins(X, y, weights, holder=1)
    X[0, 6:] = math.nan
    _, blank = under_fixed_coins(X, y, weights, holder=1)
    factor = math.sqrt(known_part(plan, plan.row_shares()))
    gram, *gradients = moves(first, blank)
    assert gram <= 1.0
    assert 1.2 < max(gradients) <= factor * plan.numbers.slope_bound


def test_a_table_beyond_the_bound_moves_it_further() -> None:
    X, y = canary()

    def doubled(loss: Any, bound: float, bits: int, *, widen: int = 1) -> Lookup:
        found = slope_lookup(loss, bound, bits, widen=widen)
        return Lookup(2 * found.nodes, found.level, True, found.shift, found.beta, found.order)

    with mock.patch("sottovoce.queries.joint.slope_lookup", doubled):
        _, first = under_fixed_coins(X, y, far_weights(), 0)
        X[0] = math.nan
        _, blank = under_fixed_coins(X, y, far_weights(), 0)
    assert max(moves(first, blank)[1:]) > 1.2
