"""Secure runs from end to end: sums without noise are exact, their noise is as declared, and records move them so far.

Every run has its keys, masks, envelopes, dealer and gates; `newton` asks for the sums, or `whitened` for its own. Over
secure columns rows are rounded and bits looked up at random: sums are compared with those in one place of the same
coins, and these coins with their law.
"""

import math
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

import sottovoce as sv
from opening import Coins, Replayed, Sum, asked, coins_seen, watched
from secure_plans import NUMBERS, plan_for
from sottovoce.algorithms.newton import PrivateNewton
from sottovoce.data.block import Block
from sottovoce.gate.query import Query, Round
from sottovoce.lab.audit.secure import OpenedSum, SecureColumns, with_keys
from sottovoce.plan.plan import Plan
from sottovoce.plan.split import SecureAggregation
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.queries.joint import JointGradient, JointSum
from sottovoce.queries.pricing import queries_of
from sottovoce.queries.sums import GradientSum, GramMatrix
from sottovoce.secure.ring import LookUp, slope_level
from sottovoce.solvers import Newton

Array = NDArray[np.float64]

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")

RECORDS, FEATURES = 300, 11
PARTIES = (2, 3, 8)
SLOPE_ERROR = (
    1 / 8 / 10.39
)  # of the line between two levels that are 1 apart: a logistic slope bends by 1/10.39 at most


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


def fitted(federation: sv.Federation, seed: int = 1, **changes: Any) -> Plan:
    """The plan that was run."""
    options = {"alpha": 0.0, "classes": (-1, 1), "solver": "newton", "entry_bound": 1.0} | changes
    model = sv.PrivateLogisticRegression(1.0, delta=1e-6, insecure_seed=seed, **options)
    return model.fit(federation).plan_


def opened(federation: sv.Federation, weights: Sequence[Array], *, noise: bool) -> tuple[Plan, list[Sum], Coins]:
    """The Gram matrix and the gradients at some weights, as a run opens them."""
    with watched(noise=noise) as seen, asked(weights), coins_seen() as coins:
        plan = fitted(federation)
    return plan, seen, coins


def in_one_place(X: Array, y: Array) -> Plan:
    with asked([]):
        return fitted(sv.Federation.central(X, y))


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
    plan, seen, _ = opened(by_rows(X, y, parties), some_weights(3), noise=False)
    whole = Block.prepare(X, y, plan.preparation)
    some = Block.prepare(X[: -RECORDS // 9], y[: -RECORDS // 9], plan.preparation)
    assert [one.query.name for one in seen] == ["gram", "gradient", "gradient", "gradient"]
    for one in seen:
        assert one.value.tobytes() == sum_of(one, plan, whole).tobytes()
        assert one.value.tobytes() != sum_of(one, plan, some).tobytes()  # people left out


@pytest.mark.parametrize("parties", PARTIES)
def test_by_columns_sums_are_those_of_the_rounded_rows_bit_for_bit(parties: int) -> None:
    X, y = table()
    X[5, 2], X[9, 10], y[11] = math.nan, math.inf, 7.0  # null at some party
    plan, seen, coins = opened(by_columns(X, y, parties, holder=parties - 1), some_weights(3), noise=False)
    assert [one.query.name for one in seen] == ["gram", "gradient", "gradient", "gradient"]
    replayed = Replayed(plan, X, y, coins)
    assert int(replayed.usable.sum()) == RECORDS - 3
    for number, one in enumerate(seen):
        assert one.value.tobytes() == replayed.sum_of(one, number).tobytes()
    assert not list(replayed.bits), "every bit was of a sum"
    coins.rows[plan.names[0]][7, 0] += 1  # control: another entry at one party
    assert seen[0].value.tobytes() != Replayed(plan, X, y, coins).sum_of(seen[0], 0).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(("parties", "records"), [(2, 3000), (3, 300)])
def test_by_columns_all_sums_of_a_whitened_fit_are_exact(parties: int, records: int) -> None:
    X, y = table(records=records)
    X[5, 2] = math.nan
    with watched(noise=False) as seen, coins_seen() as coins:
        plan = fitted(by_columns(X, y, parties, holder=1), solver="whitened")
    replayed = Replayed(plan, X, y, coins)
    assert {one.query.name for one in seen} >= {"gram", "length", "gradient"}
    for number, one in enumerate(seen):
        assert one.value.tobytes() == replayed.sum_of(one, number).tobytes(), one.query.name
    assert not list(replayed.bits)


@pytest.mark.parametrize("parties", PARTIES)
def test_rows_are_rounded_at_random_to_the_next_whole_number(parties: int) -> None:
    """Means within 6 deviations: a chance below 1e-7 for 36 of them."""
    X, y = table(records=2000)
    plan, _, coins = opened(by_columns(X, y, parties), [], noise=False)
    central = in_one_place(X, y)
    exact = 256 * Block.prepare(X, y, central.preparation).dense_rows(plan.dimension)
    away = Replayed(plan, X, y, coins).rows - exact
    assert np.abs(away).max() <= 1.0
    variance = np.sum((exact - np.floor(exact)) * (np.ceil(exact) - exact), axis=0)
    assert (np.abs(away.sum(axis=0)) <= 6 * np.sqrt(variance) + 2000 * 256 * 2.0**-20).all()
    toward_zero = np.trunc(exact) - exact  # control
    assert (np.abs((toward_zero * np.sign(exact)).sum(axis=0)) > 6 * np.sqrt(variance))[:-1].all()


def off_by(seen: list[Sum], X: Array, y: Array, coins: Coins, plan: Plan) -> float:
    """How far gradients are from those of exact slopes, over 6 deviations of the bits and what the table is off."""
    replayed, found = Replayed(plan, X, y, coins), 0.0
    rows = replayed.rows / 256
    for one in seen[1:]:
        weights = one.told["weights"]
        margins = y * (rows @ weights)
        chances = 1 / (1 + np.exp(margins))  # of a slope of -y
        away = one.value - rows.T @ (-y * chances)
        for direction in (*np.eye(len(weights)), weights / np.linalg.norm(weights)):
            along = rows @ direction
            allowed = 6 * math.sqrt(float(np.sum(along**2 * chances * (1 - chances) + 2.0**-10)))
            found = max(found, abs(float(away @ direction)) / (allowed + SLOPE_ERROR * float(np.abs(along).sum())))
    return found


@pytest.mark.parametrize("parties", PARTIES)
def test_by_columns_gradients_have_the_mean_of_exact_slopes(parties: int) -> None:
    X, y = table(records=4000)
    weights = [2 * one for one in some_weights(3)]
    plan, seen, coins = opened(by_columns(X, y, parties, holder=1), weights, noise=False)
    assert off_by(seen, X, y, coins, plan) <= 1.0

    def coarse(*arguments: Any) -> float:
        return 8 * slope_level(*arguments)

    with mock.patch("sottovoce.secure.ring.slope_level", coarse):
        plan, seen, coins = opened(by_columns(X, y, parties, holder=1), weights, noise=False)
    assert off_by(seen, X, y, coins, plan) > 1.0


# With noise


def spread(federation: sv.Federation, X: Array, y: Array) -> tuple[Plan, Array]:
    """(the plan, the noise of 822 entries squared, over the variance of one release)."""
    plan, seen, coins = opened(federation, some_weights(62), noise=True)
    if plan.split == "columns":
        replayed = Replayed(plan, X, y, coins)
        exact = [replayed.sum_of(one, number) for number, one in enumerate(seen)]
    else:
        exact = [sum_of(one, plan, Block.prepare(X, y, plan.preparation)) for one in seen]
    found = []
    for one, without in zip(seen, exact, strict=True):
        deviation = plan.release(one.query.name).std / one.query.noise_weights
        found.append(((one.value - without) / deviation) ** 2)
    return plan, np.concatenate(found)


def as_declared(found: Array, variance: float) -> bool:
    """Whether squared noise has that mean, by a chi-square that is wrong with a chance of 5e-7."""
    low, high = chi2.ppf([2.5e-7, 1 - 2.5e-7], found.size)
    return bool(low <= found.sum() / variance <= high)


@pytest.mark.slow
@pytest.mark.parametrize("parties", [3, 5])
@pytest.mark.parametrize("split", ["rows", "columns"])
def test_opened_sums_have_the_noise_that_plans_count_with(split: str, parties: int) -> None:
    X, y = table()
    make = by_rows if split == "rows" else by_columns
    plan, found = spread(make(X, y, parties), X, y)
    assert found.size == 822
    assert plan.channel.variance == pytest.approx(2 - 1 / parties)
    assert as_declared(found, plan.channel.variance)
    with mock.patch.object(SecureAggregation, "top_up", return_value=0.0):
        plan, without = spread(make(X, y, parties), X, y)
    assert not as_declared(without, 2 - 1 / parties)


# How far a record moves a sum


NORMS = (0.9999, math.sqrt(1 - 0.9999**2))


def canary() -> tuple[Array, Array]:
    """The first record is as long as any, nearly all of it at the first of two parties."""
    X, y = table(5, 20)
    X /= math.sqrt(FEATURES)
    X[0] = 0.0
    X[0, 0], X[0, 6] = NORMS
    return X, y


def newton_plan(holder: int, **fields: Any) -> Plan:
    plan = plan_for(20, (6, 5), form=PrivateNewton(), options=Newton(), norms=NORMS, label_party=holder, **fields)
    return plan.model_copy(update={"parties": tuple((name, 20) for name in plan.names)})


def under_fixed_coins(plan: Plan, X: Array, y: Array, weights: Sequence[Array]) -> list[Array]:
    """Sums without noise by the real protocol, weighted as their sensitivities are: all keys and coins are the same."""
    plan, keys = with_keys(plan, lambda name: SeededRandomness(7, name))
    parts = [plan.part(name) for name in plan.names]
    data = {name: (X[:, part.start : part.stop], y) for name, part in zip(plan.names, parts, strict=True)}
    queries = queries_of(PrivateNewton(), plan, plan.names[0])
    gradient = queries["gradient"]
    assert isinstance(gradient, JointGradient)
    told = [("gram", {}), *(("gradient", gradient.message(each)) for each in weights)]
    asks = [OpenedSum(name, number, each, np.zeros(0, dtype=np.int64), 0.0) for number, (name, each) in enumerate(told)]
    sums = SecureColumns(plan, data, "world").exact(asks, keys)
    steps = [plan.release(one.query).step * np.asarray(queries[one.query].noise_weights) for one in asks]
    return [each * step for each, step in zip(sums, steps, strict=True)]


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


KINDS: dict[str, dict[str, Any]] = {"classes": {}, "numbers": NUMBERS}
ROUNDED = 0.98  # of a row of norm 1, some entries of which were rounded toward zero


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("holder", [0, 1])
def test_a_record_moves_opened_sums_by_no_more_than_is_charged_and_a_canary_by_as_much(
    holder: int, kind: dict[str, Any]
) -> None:
    plan, (X, y), weights = newton_plan(holder, **kind), canary(), far_weights()
    first = under_fixed_coins(plan, X, y, weights)
    assert moves(first, under_fixed_coins(plan, X, y, weights)) == [0.0] * len(first)  # the coins are fixed
    bound, charged = plan.numbers.slope_bound, plan.release("gram").charged_zero_out
    assert 1.0 <= charged < 1.001

    X[0] = math.nan  # a record left blank
    blank = under_fixed_coins(plan, X, y, weights)
    gram, *gradients = moves(first, blank)
    assert ROUNDED**2 <= gram <= 1.0
    assert ROUNDED * bound <= max(gradients) <= bound

    X[0] = 0.0  # another record in its place
    X[0, 0], X[0, 6], y[0] = -NORMS[0], NORMS[1], -y[0]
    other = under_fixed_coins(plan, X, y, weights)
    assert moves(first, other)[0] <= math.sqrt(2)
    assert max(moves(first, other)[1:]) <= 2 * bound


@pytest.mark.parametrize("blank", [slice(6, 11), slice(0, 6)], ids=["short part", "long part"])
@pytest.mark.parametrize("holder", [0, 1])
def test_a_part_left_blank_moves_sums_by_no_more_than_the_record(holder: int, blank: slice) -> None:
    """The other party knows its part; the label goes with what is blank, or does not."""
    plan, (X, y), weights = newton_plan(holder), canary(), far_weights()
    first = under_fixed_coins(plan, X, y, weights)
    X[0, blank] = math.nan
    gram, *gradients = moves(first, under_fixed_coins(plan, X, y, weights))
    assert gram <= 1.0
    assert ROUNDED * plan.numbers.slope_bound <= max(gradients) <= plan.numbers.slope_bound


def test_a_slope_of_another_kind_moves_sums_further() -> None:
    """Planted: 2 t - 1, as of numbers, less the label."""
    plan, (X, y), real = newton_plan(0), canary(), JointSum.lookup

    def doubled(self: JointSum, told: Any) -> LookUp:
        found = real(self, told)
        return LookUp(found.chances, found.level, found.index, found.weight, found.matrix, True, True, found.scales)

    with mock.patch.object(JointSum, "lookup", doubled):
        first = under_fixed_coins(plan, X, y, far_weights())
        X[0] = math.nan
        blank = under_fixed_coins(plan, X, y, far_weights())
    assert max(moves(first, blank)[1:]) > 1.2
