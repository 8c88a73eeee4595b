"""Standard errors of times: rows of periods, all of a record together, at neighbours and at extremes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from plans import TIMES, small_problem
from sottovoce import algorithms
from sottovoce.algorithms.standard_errors import PrivateStandardErrors, Start
from sottovoce.algorithms.standard_errors.periods import (
    FEATURES,
    PERIOD,
    PeriodCurvature,
    PeriodGradient,
    PeriodSquares,
)
from sottovoce.data.beside import labels_with
from sottovoce.data.block import Block
from sottovoce.errors import InputError
from sottovoce.losses import get
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.privacy.events import RELATIONS, Relation
from support import at, check_price_by_rows, query_of

CUTS = [0.0, 1.0, 2.0, 4.0]
KINDS: dict[str, Any] = {"curvature": PeriodCurvature, "squared-slopes": PeriodSquares, "gradient": PeriodGradient}
APART = {"curvature": math.sqrt(2), "squared-slopes": math.sqrt(2), "gradient": 2.0}
WEIGHTS = np.array([0.7, -0.4, 0.2, 0.1])


def problem(bend: float = 0.5, **changes: Any) -> Problem:
    loss = Named(name="hazard", parameters={"periods": CUTS, "bend": bend})
    return small_problem(loss, **{name: value for name, value in TIMES.items() if name != "loss"}, **changes)


def block_of(rows: Any, events: Any, times: Any, entries: Any = None) -> Block:
    beside = {"time": np.asarray(times, float)} | ({} if entries is None else {"entry": np.asarray(entries, float)})
    labels = labels_with(np.asarray(events, dtype=float), **beside)
    return Block.prepare(np.asarray(rows, dtype=float), labels, problem().preparation)


def told(
    rng: np.random.Generator, rates: Any, slope: float = 1.0, size: float = 1.0, *, bare: bool = False
) -> dict[str, np.ndarray]:
    matrix = np.diag([1.032, 1.032, 1.032, 0.0]) if bare else np.tril(rng.standard_normal((4, 4)))
    whole = (1e6 * matrix[np.tril_indices(4)]).astype(np.int64)
    given = {"projection": whole, "unit": np.array([1e-6 * size]), "slope": np.array([slope])}
    return given | {"rates": np.asarray(rates, dtype=float), "phi": np.zeros(1)}


def test_sums_are_those_of_a_table_with_a_row_for_each_period() -> None:
    """Of people who come in late, leave early, have the event or none, rows cut at 1; no slope is."""
    rng, rates = np.random.default_rng(3), np.array([0.3, 0.1, 0.2])
    rows, events = rng.uniform(-0.5, 0.5, (7, 3)), rng.integers(0, 2, 7)
    times = rng.uniform(0.3, 4.0, 7)
    entries = times * rng.choice([0.0, 0.5], 7)
    block, message = block_of(rows, events, times, entries), told(rng, rates, 1.5)
    loss, x = get("hazard", periods=CUTS, bend=0.5, rates=rates.tolist()), np.asarray(block.rows, dtype=float)
    z = x @ PeriodGradient(WEIGHTS, loss).shape.matrix(message)
    shares = np.minimum(1.0, 1 / np.linalg.norm(z, axis=1))
    assert 0 < np.count_nonzero(shares < 1) < 7
    expected = {"curvature": np.zeros((7, 7)), "squared-slopes": np.zeros((7, 7)), "gradient": np.zeros(7)}
    for i in range(7):
        hazard, score = np.zeros(7), math.exp(x[i] @ WEIGHTS)
        weight = min(1.0, 0.5 / (0.8 * score))  # 0.8: that of four years
        for j, (start, stop) in enumerate(itertools.pairwise(CUTS)):
            mean = rates[j] * max(min(times[i], stop) - max(entries[i], start), 0.0) * score
            row = np.append(FEATURES * z[i], PERIOD * np.eye(3)[j]) * shares[i]
            expected["curvature"] += weight * mean / 0.5 * np.outer(row, row)
            hazard += shares[i] * weight / 1.5 * (mean - events[i] * (start < times[i] <= stop)) * row
        expected["squared-slopes"] += np.outer(hazard, hazard)
        expected["gradient"] += hazard
    for name, kind in KINDS.items():
        query = kind(WEIGHTS, loss)
        found = at(query, block, **message)
        np.testing.assert_allclose(found if name == "gradient" else query.matrix(found), expected[name], atol=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_a_record_moves_a_sum_by_its_bound_at_most_in_however_many_periods(name: str) -> None:
    """Random and extreme records, rates, P and G."""
    rng, widest, furthest = np.random.default_rng(5), 0.0, 0.0
    for _ in range(400):
        rates = rng.choice([0.0, 1e-9, 0.3, 5.0, 1e90], 3)
        weights = WEIGHTS * rng.choice([1.0, 1e3, -1e3])
        query = KINDS[name](weights, get("hazard", periods=CUTS, bend=float(rng.choice([1e-3, 0.5, 30.0]))))
        message = told(
            rng, rates, 10.0 ** rng.choice([-9, 0, 9]), 10.0 ** rng.choice([-3, 0, 3]), bare=rng.random() < 0.5
        )
        values = []
        for _ in range(2):
            times = rng.choice([0.5, 1.0, 2.0, 3.0, 4.0])
            row = rng.choice([-1.0, 1.0], 3) * (np.arange(3) == rng.integers(3))
            block = block_of([row], [rng.integers(0, 2)], [times], [rng.choice([0, 0.4])])
            values.append(np.asarray(at(query, block, **message)) * query.noise_weights)
        widest = max(widest, *map(float, map(np.linalg.norm, values)))
        furthest = max(furthest, float(np.linalg.norm(values[0] - values[1])))
    assert 0.95 * query.bound < widest <= query.bound
    assert 0.9 * APART[name] * query.bound < furthest <= APART[name] * query.bound * (1 + 1e-12)
    empty = block_of([[math.nan, 0, 0], [0.1, 0.1, 0.1]], [1, 1], [1.0, math.nan])
    assert not np.any(at(query, empty, **message))  # null rows: by a feature, and by their time


def test_sums_are_exact_in_any_order() -> None:
    rng = np.random.default_rng(6)
    rows, events, times = rng.uniform(-1, 1, (7, 3)), rng.integers(0, 2, 7), rng.uniform(0, 4, 7)
    message, order = told(rng, [0.3, 0.2, 0.4]), rng.permutation(7)
    for kind in KINDS.values():
        query = kind(WEIGHTS, get("hazard", periods=CUTS, bend=0.5))
        whole = at(query, block_of(rows, events, times), **message)
        assert np.array_equal(whole, at(query, block_of(rows[order], events[order], times[order]), **message))
        parts = [at(query, block_of(rows[k : k + 1], events[k : k + 1], times[k : k + 1]), **message) for k in range(7)]
        assert np.array_equal(whole, np.sum(parts, axis=0))


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_plan_costs_what_was_asked_for_also_by_rows(relation: Relation) -> None:
    plans = [
        algorithms.plan_by(PrivateStandardErrors(), each, Start(WEIGHTS, (3,)), run="run", coin="coin")
        for each in (
            problem(relation=relation),
            problem(relation=relation, split="rows", parties=(("anna", 4), ("ben", 3))),
        )
    ]
    check_price_by_rows(*plans)
    asked = [release.query for release in plans[0].releases]
    assert asked == ["gram", "events", "risk", "curvature", "squared-slopes", "gradient"]
    bound = plans[0].release("curvature").charged(relation)
    assert bound == pytest.approx((FEATURES**2 + PERIOD**2) * (1 if relation == "zero-out" else math.sqrt(2)), rel=2e-3)


def test_a_party_refuses_a_plan_that_lies() -> None:
    plan = algorithms.plan_by(PrivateStandardErrors(), problem(), Start(WEIGHTS, (3,)), run="run", coin="coin")
    assert query_of(Plan.from_json(plan.to_json()), "gradient").length == 7
    for lie in ({"rates": [1.0] * 10**5}, {"rates": [-1.0] * 3}, {"bend": 0.0}, {"bend": math.nan}, {"longest": -1.0}):
        with pytest.raises((InputError, ValueError), match=next(iter(lie))):
            _ = problem().changed(loss=Named(name="hazard", parameters={"periods": CUTS, **lie})).scaled_loss


@pytest.mark.parametrize("bend", [5e-324, 1e-101])
def test_an_information_whose_inverse_is_no_number_is_refused(bend: float) -> None:
    """With it a null row would have counted: 0 times the inverse is NaN."""
    with pytest.raises(InputError, match="bend"):
        get("hazard", periods=[0, 1, 2], bend=bend)
