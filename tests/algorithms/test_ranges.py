"""Bought ranges: how far a record moves the counts, what parties take of a plan, and which ranges the counts give."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from plans import small_problem
from sottovoce import algorithms
from sottovoce.algorithms import ranges as range_queries
from sottovoce.algorithms import ranges as rule
from sottovoce.algorithms.ranges import CountedRanges, PowerCounts, counted_columns
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.errors import InputError, LeakError, RefusedError
from sottovoce.federation.coordinator import Coordinator
from sottovoce.federation.party import Party
from sottovoce.federation.policy import Policy
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.lab.audit.games import Game, Result
from sottovoce.lab.audit.runner import audit_plan
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.privacy.accounting import gaussian_mu
from sottovoce.privacy.calibration import part_of
from sottovoce.privacy.events import RELATIONS, Relation, either
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.transports.base import InProcess
from support import at, epsilons_of, events_of, forged, handle, play, query_of

FEATURES, RECORDS = 3, 7
COLUMNS = (0, 2, 3)  # two features and the label


def problem(**changes: Any) -> Problem:
    return small_problem(**{"bounds": Bounds(), "fit_intercept": False, **changes})


def plan_of(places: tuple[int, ...] = COLUMNS, **changes: Any) -> Plan:
    return algorithms.plan_by(CountedRanges(), problem(**changes), places, run="run", coin="coin")


RECIPE = problem(layout="raw").preparation


def block_of(rows: Any, labels: Any, **changes: Any) -> Block:
    return Block.prepare(rows, labels, problem(layout="raw", **changes).preparation if changes else RECIPE)


def test_a_value_is_in_one_cell_and_the_cells_are_where_they_say() -> None:
    values = np.array([0.0, 2.0**-21, 2.0**-20, 1.0, 1.5, 2.0, 2.0**39, 1e300])
    places = rule.power_places(values)
    assert (places - rule.ZERO).tolist() == [0, 0, 1, 21, 21, 22, 60, 60]
    assert (rule.power_places(-values) - rule.ZERO).tolist() == [0, 0, -1, -21, -21, -22, -60, -60]
    inner = np.array([3.7, -3.7, 1e-5, -12345.0])
    for value, place in zip(inner, rule.power_places(inner), strict=True):
        assert rule.LOWS[place] <= value <= rule.HIGHS[place]
    assert rule.equal_places(np.array([-9.0, 0.0, 0.99, 1.0, 15.99, 16.0, 1e300]), *np.array([0.0, 16.0])).tolist() == [
        *(0, 0, 0, 1, 15, 15, 15)
    ]
    runs = itertools.combinations_with_replacement(range(rule.POWERS), 2)
    assert all(low < high for low, high in map(rule.ends_of, runs))


def test_counts_are_those_of_the_usable_records_and_add_up() -> None:
    rng = np.random.default_rng(1)
    rows, labels = rng.standard_normal((5000, FEATURES)) * 50, rng.choice([0, 1, 2], 5000)
    rows[::7, 0] = math.nan
    classes = {"classes": (0, 1), "loss": Named(name="logistic"), "parties": (("anna", 5000),)}
    query = PowerCounts((0, 2))
    found = at(query, block_of(rows, labels, **classes)).reshape(2, -1)
    usable = labels < 2
    assert found.sum(axis=1).tolist() == [(usable & np.isfinite(rows[:, 0])).sum(), usable.sum()]
    parts = [at(query, block_of(rows[part], labels[part], **classes)) for part in (slice(0, 999), slice(999, None))]
    np.testing.assert_array_equal(sum(parts), found.ravel())
    for other in (rows.astype(np.float32), np.nan_to_num(rows).astype(np.int64)):
        assert at(query, block_of(other, labels, **classes)).sum() > 0


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_plan_costs_what_was_asked_for_on_every_split(relation: Relation) -> None:
    central = plan_of(relation=relation)
    rows = plan_of(relation=relation, split="rows", parties=(("anna", 4), ("ben", 3)))
    people = (("anna", 7), ("ben", 7), ("cleo", 7))
    columns = plan_of(relation=relation, split="columns", parties=people, columns=(1, 1, 1), label_party=1)
    assert central.releases == rows.releases == columns.releases
    for plan in (central, rows, columns):
        assert epsilons_of(plan)["coordinator"] == pytest.approx(1.0, rel=1e-9)
        assert gaussian_mu(events_of(plan), relation) == pytest.approx(plan.mu, rel=1e-9)
    assert epsilons_of(rows)["world"] < 0.75 * epsilons_of(central)["world"]
    # by columns each has its own, the holder of the labels the label too; one that has none is not asked
    assert [counted_columns(columns, name) for name in columns.names] == [(0,), (1,), (0,)]
    own = [query_of(columns, "powers", name) for name in columns.names]
    assert sum(query.sensitivity(relation) ** 2 for query in own) == pytest.approx(
        query_of(central, "powers").sensitivity(relation) ** 2
    )
    alone = plan_of((0,), relation=relation, split="columns", parties=people, columns=(1, 1, 1))
    assert [query_of(alone, "cells", name).answered_by(alone, name, 1) for name in alone.names] == [True, False, False]


def attacked(relation: Relation) -> Result:
    """The likelihood ratio of both releases, the second told runs that follow from the first."""
    classes = {"classes": (-1, 1), "loss": Named(name="logistic"), "bounds": Bounds.declare(row_norm=1.0)}
    plan = plan_of((0,), relation=relation, epsilon=8.0, delta=1e-3, **classes)
    canary, null = (5.0, -3.0, 1e9, 1.0), (math.nan,) * FEATURES + (1.0,)
    other = either(relation, zero_out=null, replace_one=(-5.0, 3.0, 0.0, 1.0))
    return play(Game("ranges", plan, records=(canary, other, null)), 200, seed=2)


def test_an_attack_finds_what_is_charged_and_no_more() -> None:
    found = attacked("replace-one")
    assert found.verdict == "holds"
    assert found.measured > 0.4 * found.claimed  # a lower bound, from few runs


def test_an_attack_finds_a_sensitivity_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: a third of it is charged."""
    monkeypatch.setattr(range_queries._Counts, "sensitivity", lambda *_: 1 / 3)
    assert attacked("replace-one").broken


def test_a_party_takes_no_plan_that_says_something_else() -> None:
    """Planted faults in a plan: other columns than there are, the label of classes, one twice, less noise, sparse."""
    plan = plan_of()
    refused = {
        "a column too many": {"numbers": {"columns": [0, 4]}},
        "one twice": {"numbers": {"columns": [0, 0, 1]}},
        "none": {"numbers": {"columns": []}},
        "more columns for the same charge": {"numbers": {"columns": [0, 1, 2, 3]}},
        "rows that are prepared": {"layout": "rows"},
        "no second release": {"releases": [plan.releases[0].model_dump()]},
    }
    for what, fields in refused.items():
        party = Party("anna", np.ones((RECORDS, FEATURES)), np.ones(RECORDS))
        digest, text = forged(plan, **fields)
        answer = decode(handle(party, encode(Frame("plan", 1, digest, text=text))).data)
        assert answer.kind == "refuse", what
    with pytest.raises(RefusedError, match="behind them comes the label, if it is a number"):
        query_of(plan_of((3,), classes=(-1, 1), loss=Named(name="logistic")), "powers")
    cheap = plan.release("powers").model_copy(update={"charged_zero_out": 1.0})
    with pytest.raises(LeakError, match="more sensitive"):
        cheap.check(query_of(plan, "powers"), RECORDS)
    with pytest.raises(InputError, match="sparse"):
        block_of(sp.csr_matrix(np.eye(7, 3)), np.ones(7))
    with pytest.raises(LeakError, match="not prepared"):
        at(PowerCounts((0,)), Block(np.ones((2, 1)), np.ones(2), None, usable=np.ones(2, dtype=bool)))


def test_raw_rows_are_for_counts_alone() -> None:
    """A plan that would sum raw rows is refused, and so is the sum itself."""
    plan = audit_plan("gradient", rounds=1)
    (name, count), *_ = plan.parties
    party = Party(name, np.ones((count, plan.features)), np.ones(count))
    digest, text = forged(plan, layout="raw")
    answer = decode(handle(party, encode(Frame("plan", 1, digest, text=text))).data)
    assert answer.kind == "refuse"
    assert "does not take rows as 'raw'" in answer.text
    with pytest.raises(LeakError, match="longer"):
        at(query_of(plan, "gradient"), block_of(np.ones((2, 2)), np.ones(2), features=2), weights=np.zeros(2))


def test_a_party_takes_no_runs_but_those_there_are() -> None:
    plan = plan_of((0, 1))
    party = Party("anna", np.ones((RECORDS, FEATURES)), np.ones(RECORDS), randomness=SeededRandomness(1, "anna"))
    assert decode(handle(party, encode(Frame("plan", 1, plan.digest, text=plan.to_json()))).data).kind == "accept"
    good = np.array([[60, 81], [0, 120]])
    wrong = [good - 1, good + 1, good[:, ::-1].copy(), good[:1], good.astype(float)]
    for told in wrong:
        frame = Frame("ask", 2, plan.digest, 1, "cells", {"runs": told})
        assert decode(party.handle(encode(frame)).data).kind == "refuse"
    frame = Frame("ask", 3, plan.digest, 1, "cells", {"runs": good})
    assert decode(party.handle(encode(frame)).data).kind == "answer"


def test_no_solver_is_called_ranges() -> None:
    assert "ranges" not in algorithms.SOLVERS
    plan = plan_of()
    assert algorithms.of(Plan.from_json(plan.to_json())).title == CountedRanges.title
    assert json.loads(plan.to_json())["numbers"] == {"columns": list(COLUMNS)}


EITHER = Policy(allow_without_privacy=True)


def estimated(columns: np.ndarray, epsilon: float, seed: int, parties: int = 1) -> dict[int, Any]:
    """The ranges of some columns by real parties, with so much of epsilon for them alone."""
    records = len(columns)
    counts = [len(part) for part in np.array_split(np.arange(records), parties)]
    names = [f"party {place}" for place in range(parties)]
    plan = plan_of(
        tuple(range(columns.shape[1])),
        features=columns.shape[1],
        epsilon=epsilon,
        split="rows" if parties > 1 else "central",
        parties=tuple(zip(names, counts, strict=True)),
    )
    holders = [
        Party(name, part, np.zeros(len(part)), policy=EITHER, randomness=SeededRandomness(seed, name))
        for name, part in zip(names, np.array_split(columns, parties), strict=True)
    ]
    return Coordinator(InProcess(holders)).run(plan, CountedRanges())[0].model


def edge_cases(records: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Columns as people have them."""
    gaps = rng.normal(170, 10, records)
    gaps[rng.random(records) < 0.3] = rng.choice([math.nan, math.inf, -math.inf])
    return {
        "constant": np.full(records, 7.0),
        "zeros": np.zeros(records),
        "0 and 1": rng.integers(0, 2, records).astype(float),
        "years": rng.integers(1930, 2011, records).astype(float),
        "negative": rng.normal(-40, 5, records),
        "both signs": rng.normal(0, 3, records),
        "tiny": rng.uniform(2e-5, 9e-5, records),
        "missing and infinite": gaps,
        "large": rng.uniform(1e6, 5e6, records),
        "lognormal": rng.lognormal(0, 2, records),
        "Cauchy": rng.standard_cauchy(records),
        "mostly zero": np.where(rng.random(records) < 0.08, rng.uniform(0, 1e5, records), 0.0),
    }


def cut(values: np.ndarray, found: tuple[float, float]) -> float:
    known = values[np.isfinite(values)]
    return float(np.mean((known < found[0]) | (known > found[1])))


SMALL = {"constant": (4, 8), "zeros": (-1, 1), "0 and 1": (0, 1.125), "years": (1920, 2048)}
HEAVY = {"lognormal": 0.06, "Cauchy": 0.08, "mostly zero": 0.06}


@pytest.mark.parametrize("parties", [1, 3])
def test_ranges_of_columns_as_people_have_them(parties: int) -> None:
    """A twentieth of epsilon 1 for 12 columns of 30,000 records: most are right, heavy tails lose some per cent."""
    columns = edge_cases(30_000, np.random.default_rng(5))
    epsilon = part_of(1.0, 1e-5, 0.05) * parties**0.5  # several holders each add their noise
    found = estimated(np.column_stack(list(columns.values())), epsilon, seed=3, parties=parties)
    for place, (name, values) in enumerate(columns.items()):
        low, high = found[place]
        share = cut(values, (low, high))
        assert share <= HEAVY.get(name, 0.02), (name, share)
        known = values[np.isfinite(values)]
        if name in SMALL:
            assert SMALL[name][0] <= low < high <= SMALL[name][1], (name, low, high)
        elif name not in HEAVY:  # no more than twice as wide as the values
            assert high - low <= 2 * np.ptp(known), (name, low, high)


def test_what_noise_hides_is_unknown_and_no_guess() -> None:
    columns = edge_cases(300, np.random.default_rng(5))
    found = estimated(np.column_stack([columns["lognormal"], columns["Cauchy"]]), epsilon=0.05, seed=1)
    assert found == {0: None, 1: None}
    assert estimated(np.full((300, 1), math.nan), epsilon=3.0, seed=1) == {0: None}


def test_without_noise_tails_of_a_hundredth_go() -> None:
    values = np.concatenate([np.arange(1000) / 1000 * 15 + 0.5, [1e6]])
    width = (2.0**20 - 0.5) / 16  # one record makes the run as long as this, and the first of 16 cells has the others
    assert estimated(values[:, None], epsilon=math.inf, seed=0)[0] == (0.5, 0.5 + width)
    assert estimated(values[:-1, None], epsilon=math.inf, seed=0)[0] == (0.5, 16.0)


def test_the_share_and_what_it_is_made_for() -> None:
    assert rule.share_of(6, 1e6) == 0.02
    assert rule.share_of(6, 1e3) == 0.10
    assert rule.share_of(8, 4000.0) == pytest.approx(0.04)
    assert rule.wanted(8, 500.0) > 1
    assert rule.wanted(8, math.inf) == 0.0
    # a cell with 2% of the records stands out of the noise about half of the time, one of 4% always
    noise = math.sqrt(8) / (4000.0 / 1e5) / math.sqrt(0.04 / 2)
    assert 4 * noise == pytest.approx(0.02 * 1e5)


def test_a_run_of_noise_alone_is_rare() -> None:
    """Of 2000 empty columns, 8 in a plan, a 20th of the plans takes a cell for one with records at most.

    2000 columns are 250 plans: 12.5 expected, and more than 40 have a chance below 1e-9. Half of the noise is found.
    """
    rng = np.random.default_rng(2)
    counts = rng.standard_normal((2000, rule.POWERS))
    assert sum(rule.find_run(each, 1.0, 8) is not None for each in counts) <= 40
    assert sum(rule.find_run(each, 0.5, 8) is not None for each in counts) > 1000
