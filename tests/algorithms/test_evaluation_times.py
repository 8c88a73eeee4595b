"""Private evaluation of times to an event: what the cells are, and that concordance is Harrell's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from plans import TIMES, small_problem
from sottovoce import algorithms
from sottovoce.algorithms.evaluation import Subject
from sottovoce.algorithms.evaluation.times import LAYOUTS, EvaluatedTimes, TimeCells, TimeEstimates
from sottovoce.data.beside import labels_with
from sottovoce.data.block import Block
from sottovoce.errors import InputError
from sottovoce.estimators.times import concordance
from sottovoce.losses import Hazard
from sottovoce.plan.problem import Problem
from support import at

PERIODS, RATES = (0.0, 1.0, 2.0, 5.0), (0.2, 0.25, 0.1)
LOSS = Hazard(periods=PERIODS, rates=RATES)
NOISE, DRAWN, SIMULATED = 8.0, 3000, 300


class Numbers:
    """Of a plan."""

    low, width, nodes, intervals = -2.2, 4.4, 8, 9


QUERY = TimeCells(LOSS, Numbers(), np.ones(1))


def times_problem(**changes: Any) -> Problem:
    return small_problem(TIMES["loss"], **{"bounds": TIMES["bounds"], "fit_intercept": True, **changes})


def drawn(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, events and times of people whose hazards are those of the model; half leave for another reason."""
    scores = rng.normal(0.0, 0.8, count)
    along = rng.exponential(size=count) / np.exp(scores)
    ends = np.append(0.0, np.cumsum(np.array(RATES) * np.diff(PERIODS)))
    event = np.where(along < ends[-1], np.interp(along, ends, PERIODS), math.inf)
    left = np.minimum(rng.exponential(4.0, count), PERIODS[-1])
    return scores, (event <= left).astype(float), np.minimum(event, left)


def cells_of(query: TimeCells, scores: np.ndarray, events: np.ndarray, times: np.ndarray) -> np.ndarray:
    """As the query counts rows that are these scores."""
    labels = np.zeros(len(scores), dtype=[("label", float), ("time", float), ("entry", float)])
    labels["label"], labels["time"] = events, times
    return query._cells(Block(scores[:, None], labels, None, usable=np.ones(len(scores), dtype=bool)))


def test_a_record_is_in_the_cells_of_its_time_and_kind() -> None:
    """By hand, at a node: before and at a cut, at the end with and without an event, seen late, and null."""
    problem = times_problem(parties=(("anna", 9),))
    scores = QUERY.scores.nodes
    rows, plain = np.zeros((9, 3)), np.array([0, 1, 1, 0, 1, 0, 1, 1, math.nan])
    times = np.array([0.5, 0.5, QUERY.cuts[1], 0.0, 4.0, 4.0, 9.0, 3.0, 1.0])
    entry = np.array([0, 0, 0, 0, 0, 0, 0, 1e-9, 0])
    block = Block.prepare(rows, labels_with(plain, time=times, entry=entry), problem.preparation)
    numbers = Numbers()
    numbers.intervals = 4
    weights = np.append(np.zeros(3), scores[2]) / block.rows[0, -1]
    query = TimeCells(Hazard(periods=(0.0, problem.scaled_loss.periods[-1])), numbers, weights)
    found = at(query, block).reshape(-1, len(scores))
    np.testing.assert_allclose(found.sum(axis=1), [2, 2, 0, 0, 0, 0, 0, 1, 2], atol=1e-6)
    np.testing.assert_allclose(found[:, 2], found.sum(axis=1), atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_noise_it_is_harrells(layout: tuple[float, ...]) -> None:
    scores, events, times = drawn(np.random.default_rng(1), 20_000)
    numbers = Numbers()
    numbers.width, numbers.nodes, numbers.intervals = 1.6 * layout[2], int(layout[1]), int(layout[3])
    numbers.low = -numbers.width / 2
    query = TimeCells(LOSS, numbers, np.ones(1))
    estimates = TimeEstimates(cells_of(query, scores, events, times), 0.0, len(scores), query)
    found = estimates.metrics()
    assert found["concordance"].value == pytest.approx(concordance(scores, events, times), abs=3e-3)
    exposed = np.interp(times, PERIODS, np.append(0.0, np.cumsum(np.array(RATES) * np.diff(PERIODS))))
    assert found["observed_to_predicted"].value == pytest.approx(events.sum() / (exposed @ np.exp(scores)), abs=0.02)
    assert found["events"].value == pytest.approx(events.mean())
    bins = list(estimates.calibration())
    assert sum(each.positives.value for each in bins) == pytest.approx(events.mean())
    far = [abs(each.positives.value - each.predicted) / each.positives.width for each in bins]
    assert max(far) < 1.2  # 4.7 deviations
    ends, counts, _ = estimates.histogram()
    assert (ends[-1], counts.sum()) == (PERIODS[-1], pytest.approx(events.sum()))


def test_scores_that_say_nothing_are_in_order_by_a_half() -> None:
    """Whatever the times are; and the other way round pairs are in order that were not."""
    scores, events, times = drawn(np.random.default_rng(2), 20_000)
    for along, value in ((np.zeros(20_000), 0.5), (-scores, 1 - concordance(scores, events, times))):
        cells = cells_of(QUERY, along, events, times)
        found = TimeEstimates(cells, 0.0, len(cells), QUERY).concordance()
        assert found.value == pytest.approx(value, abs=3e-3)


def held(assumed: float, shift: float = 0.0) -> dict[str, float]:
    """How often intervals that take the noise for `assumed` hold the truth, of people whose scores are `shift` off."""
    rng = np.random.default_rng(3)
    scores, events, times = drawn(rng, 30_000)
    true = {"concordance": concordance(scores, events, times), "observed_to_predicted": 1.0, "events": events.mean()}
    found = dict.fromkeys(true, 0)
    for _ in range(SIMULATED):
        own = rng.integers(len(scores), size=DRAWN)
        cells = cells_of(QUERY, scores[own] + shift, events[own], times[own])
        noisy = cells + NOISE * rng.standard_normal(len(cells))
        for name, metric in TimeEstimates(noisy, assumed, DRAWN, QUERY).metrics().items():
            found[name] += metric.low <= true[name] <= metric.high
    return {name: count / SIMULATED for name, count in found.items()}


@pytest.mark.slow
def test_intervals_hold_the_truth() -> None:
    """300 intervals of coverage .93 hold it fewer than .85 times with a chance below 1e-6, for each of 3 metrics."""
    assert min(held(NOISE).values()) >= 0.85


@pytest.mark.slow
def test_intervals_that_forget_the_noise_do_not() -> None:
    """Negative controls; and a model that expects half of the events is told."""
    without = held(0.01)
    assert max(without["concordance"], without["observed_to_predicted"]) < 0.85
    assert held(NOISE, shift=-0.7)["observed_to_predicted"] < 0.5


def test_what_is_lost_in_the_noise_is_not_told() -> None:
    rng = np.random.default_rng(4)
    found = TimeEstimates(400 * rng.standard_normal(QUERY.length), 400.0, 500, QUERY).metrics()
    assert math.isnan(found["concordance"].value)
    assert (found["concordance"].low, found["concordance"].high) == (0.0, 1.0)
    assert math.isnan(found["observed_to_predicted"].value)


@pytest.mark.parametrize(("records", "nodes", "intervals"), [(500, 6, 6), (1_000_000, 20, 16)])
def test_cells_follow_the_noise_and_the_scores_of_the_fit(records: int, nodes: int, intervals: int) -> None:
    problem = times_problem(parties=(("anna", records),))
    plan = algorithms.plan_by(EvaluatedTimes(), problem, Subject(np.ones(4), (0.7, 0.5)), run="run", coin="coin")
    assert (plan.numbers.nodes, plan.numbers.intervals) == (nodes, intervals)
    assert plan.numbers.low + plan.numbers.width / 2 == pytest.approx(0.7)
    far = algorithms.plan_by(EvaluatedTimes(), problem, Subject(np.ones(4), (1e9, 1e9)), run="run", coin="coin")
    assert np.isfinite(np.exp(2 * (far.numbers.low + far.numbers.width)))


def test_people_with_several_records_are_refused() -> None:
    with pytest.raises(InputError, match="several records"):
        algorithms.plan_by(EvaluatedTimes(), times_problem(most_records=3), Subject(np.ones(4)), run="run", coin="coin")
