"""Frank-Wolfe over columns: what one record moves, what all parties together pay, what leaves, and where it ends."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats
from sklearn.linear_model import Lasso

import sottovoce as sv
from plans import columns_problem
from sottovoce import algorithms
from sottovoce.algorithms.base import Ask, Rounds
from sottovoce.algorithms.frank_wolfe.central import ROOM
from sottovoce.algorithms.frank_wolfe.columns import candidates, clipped_slopes, step_length, turns
from sottovoce.algorithms.frank_wolfe.exact import considered
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.errors import InputError, RefusedError
from sottovoce.federation.coordinator import Coordinator
from sottovoce.federation.party import Party
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.gate.gate import Gate
from sottovoce.gate.query import Round
from sottovoce.lab.theorems.frank_wolfe import choices_epsilon
from sottovoce.penalties.sets import SparsePoint
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named
from sottovoce.privacy.accounting import epsilon_of
from sottovoce.privacy.calibration import rho_for
from sottovoce.privacy.events import Gaussian, Selection
from sottovoce.privacy.mechanisms import SeededRandomness, largest_signed
from sottovoce.queries.parts import DenseSketch, Kind, make_sketch, sketch_of, sketch_room
from sottovoce.transports.base import InProcess
from support import at, epsilons_of, events_of, handle, plan_of, query_of, world_events_of
from wires import over_grpc

RECORDS, COLUMNS, NAMES = 60, (3, 2, 4), ("anna", "ben", "cleo")
FEATURES = sum(COLUMNS)
EDGES = np.cumsum([0, *COLUMNS])
FALSE_ALARM = 1e-7


def plan_for(loss: str = "squared", coin: str = "coin", options: Any = None, **fields: Any) -> Plan:
    classification = loss != "squared"
    bounds = fields.pop("bounds", Bounds.declare(entry_bound=1.0, label_bound=None if classification else 1.0))
    declared: dict[str, Any] = {
        "loss": Named(name=loss),
        "regulariser": Named(name="l1_ball", parameters={"radius": 0.5}),
        "parties": tuple((name, RECORDS) for name in NAMES),
        "epsilon": 2.0,
        "classes": (-1, 1) if classification else None,
    }
    problem = columns_problem(fields.pop("columns", COLUMNS), RECORDS, bounds, **declared | fields)
    return plan_of(problem, "frank-wolfe", coin=coin, **({"rounds": 6} if options is None else options))


def with_norm(row_norm: float, norms: tuple[float, ...] | None = None) -> dict[str, Any]:
    """Bounds by which no cap is needed, since the row norm is small."""
    shares = tuple(row_norm * math.sqrt(count / FEATURES) for count in COLUMNS) if norms is None else norms
    return {"bounds": Bounds.declare(entry_bound=1.0, row_norm=row_norm, label_bound=1.0), "norms": shares}


def changed(plan: Plan, **numbers: Any) -> Plan:
    return plan.model_copy(update={"numbers": plan.numbers.model_dump() | numbers})


def with_release(plan: Plan, query: str, **fields: Any) -> Plan:
    return plan.model_copy(update={"releases": releases_with(plan, query, **fields)})


def releases_with(plan: Plan, query: str, **fields: Any) -> list[dict[str, Any]]:
    return [r.model_dump(mode="json") | (fields if r.query == query else {}) for r in plan.releases]


def named(plan: Plan) -> list[str]:
    """The party of each round."""
    return [plan.names[place] for place in turns(plan)]


def scores_at(plan: Plan, name: str, block: Block, said: Mapping[str, Any], sketch: Any, number: int = 0) -> np.ndarray:
    return at(query_of(plan, "atom", name), block, plan=plan, number=number, memory=sketch, **said)


def sketched_feature(plan: Plan, name: str, block: Block, place: int, sketch: Any) -> np.ndarray:
    return at(query_of(plan, "feature", name), block, plan=plan, memory=sketch, place=place_of(place))


def people(plan: Plan, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = np.clip(rng.standard_normal((RECORDS, FEATURES)), -1, 1)
    scores = 0.8 * X[:, 1] - 0.5 * X[:, 6] + rng.uniform(-0.4, 0.4, RECORDS)
    return X, (scores if plan.classes is None else np.where(scores > 0, 1, -1))


def neighbour(X: np.ndarray, y: np.ndarray, relation: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """One person blanked with every party, or replaced by a far one."""
    rng = np.random.default_rng(seed)
    place = int(rng.integers(len(y)))
    X, y = X.copy(), y.copy()
    if relation == "zero-out":
        X[place], y[place] = math.nan, y[place] if seed % 2 else 7  # 7 is no declared class
    else:
        X[place] *= -(10.0 ** rng.integers(-1, 3))
        y[place] = -y[place]
    return X, y


def blocks(plan: Plan, X: np.ndarray, y: np.ndarray, kind: Callable[..., Any] = np.asarray) -> dict[str, Block]:
    return {
        name: Block.prepare(kind(X[:, EDGES[k] : EDGES[k + 1]]), y, plan.part(name).preparation)
        for k, (name, _) in enumerate(plan.parties)
    }


def message(plan: Plan, rng: np.random.Generator, *, scale: float = 1.0, full: bool = True) -> dict[str, np.ndarray]:
    """A point of the ball and whatever sketch, as a coordinator could say them."""
    places = rng.permutation(plan.dimension)[: rng.integers(1, plan.dimension + 1)]
    values = rng.standard_normal(len(places))
    values *= plan.numbers.radius * (1.0 if full else 0.2) / np.abs(values).sum()
    size = plan.numbers.sketch_size
    return {"places": places, "values": values, "sketch": scale * rng.standard_normal(size)}


def parties_of(plan: Plan, seed: int | None = 0, ledgers: Mapping[str, Any] | None = None) -> dict[str, Party]:
    X, y = people(plan)
    return {
        name: Party(
            name,
            X[:, EDGES[k] : EDGES[k + 1]],
            y if plan.labels != "held" or k == plan.label_party else None,
            account=(ledgers or {}).get(name),
            randomness=None if seed is None else SeededRandomness(seed, name),
        )
        for k, (name, _) in enumerate(plan.parties)
    }


def propose(party: Party, plan: Plan, **changes: Any) -> Frame:
    """Have a party consider a plan; with changes it is one that nobody else has checked."""
    text = json.dumps(json.loads(plan.to_json()) | changes, sort_keys=True, separators=(",", ":"))
    return decode(handle(party, encode(Frame("plan", 1, hashlib.sha256(text.encode()).digest(), text=text))).data)


def ask(party: Party, plan: Plan, query: str, round_: int, **arrays: np.ndarray) -> Frame:
    return decode(handle(party, encode(Frame("ask", 2, plan.digest, round_, query, arrays))).data)


def place_of(local: int) -> np.ndarray:
    return np.array([local], dtype=np.int64)


# --- sensitivities ------------------------------------------------------------------------------------------------

LABELS = ("public", "shared", "held")


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
@pytest.mark.parametrize("labels", ["shared", "held"])
def test_a_far_record_attains_the_bound_of_the_score_of_staying(labels: Any, relation: Any) -> None:
    """A full ball on the party's own column, and a label that turns the slope."""
    plan = plan_for(labels=labels, fit_intercept=False, options={"rounds": 6, "slope_bound": 0.25})
    X, y = people(plan)
    X[3], y[3] = 1.0, 1.0
    there, labels_there = X.copy(), y.copy()
    if relation == "zero-out":
        there[3] = math.nan
    else:
        labels_there[3] = -1.0
    said = {
        "places": place_of(0),
        "values": np.array([plan.numbers.radius]),
        "sketch": np.zeros(plan.numbers.sketch_size),
    }
    query, sketch, pair = query_of(plan, "atom", "anna"), sketch_of(plan), ((X, y), (there, labels_there))
    values = [scores_at(plan, "anna", blocks(plan, *data)["anna"], said, sketch) for data in pair]
    assert abs(values[0][-1] - values[1][-1]) > 0.99 * query.sensitivity(relation)
    roomy = {**said, "values": np.array([0.1 * plan.numbers.radius])}
    values = [scores_at(plan, "anna", blocks(plan, *data)["anna"], roomy, sketch) for data in pair]
    assert values[0][-1] == values[1][-1] == plan.release("atom").std * math.log(6 * plan.rounds)


def test_a_null_row_adds_nothing_to_the_score_of_staying() -> None:
    """Its score J'q is a number like any other's; a label that is missing must not turn it into a slope."""
    plan = plan_for(labels="held", fit_intercept=False)
    X, y = people(plan)
    X[3] = math.nan
    said = message(plan, np.random.default_rng(0), scale=1e3)
    said["labels"] = np.zeros(len(said["sketch"]))
    for name in NAMES:
        sketch = sketch_of(plan)
        before = scores_at(plan, name, blocks(plan, X, y)[name], said, sketch)
        block = blocks(plan, X, y)[name]
        for signs in (-1.0, 1.0):
            block.labels[3] = signs
            np.testing.assert_array_equal(scores_at(plan, name, block, said, sketch), before)


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
@pytest.mark.parametrize("norms", [None, (1.2, 0.5, math.sqrt(1.5**2 - 1.2**2 - 0.5**2))])
@pytest.mark.parametrize("row_norm", [1.5, 100.0])
def test_without_a_cap_all_features_together_move_by_the_row_norm(norms: Any, row_norm: float, relation: Any) -> None:
    if row_norm == 100.0:  # more than entries of at most 1 can have
        norms = None
    plan = plan_for(**with_norm(row_norm, norms), options={"rounds": 6, "cap": 50_000})
    assert plan.numbers.cap is None
    sketch, query = sketch_of(plan), query_of(plan, "feature")
    assert {query_of(plan, "feature", name).sensitivity(relation) for name in NAMES} == {query.sensitivity(relation)}
    X, y = people(plan)
    limit = query.sensitivity(relation)
    assert limit == pytest.approx(min(row_norm, math.sqrt(FEATURES)) * (2 if relation == "replace-one" else 1))
    furthest = 0.0
    for seed in range(12):
        there, labels_there = neighbour(X, y, relation, seed)
        if seed == 0:
            X[3] = 5.0
            there, labels_there = X.copy(), y
            there[3] = math.nan if relation == "zero-out" else -5.0
        moved = [
            sketched_feature(plan, name, one, local, sketch) - sketched_feature(plan, name, two, local, sketch)
            for (name, one), two in zip(
                blocks(plan, X, y).items(), blocks(plan, there, labels_there).values(), strict=True
            )
            for local in range(one.dimension - plan.part(name).constant)
        ]
        assert len(moved) == FEATURES
        furthest = max(furthest, float(np.linalg.norm(moved)))
    assert 0.99 * limit < furthest <= limit
    assert query.rounding_entries == FEATURES


@pytest.mark.parametrize("records", [2, 60, 3000])
@pytest.mark.parametrize("bound", [1.0, 0.3, 3.7, 999.0])
def test_sums_are_exact(records: int, bound: float) -> None:
    """Against fractions, at bounds that are no powers of two."""
    plan = plan_for(parties=tuple((name, records) for name in NAMES), labels="held", fit_intercept=False)
    plan = changed(plan, slope_bound=bound, noisy_slope_bound=bound)
    rng = np.random.default_rng(records)
    X = np.clip(rng.standard_normal((records, FEATURES)) / 3, -1, 1)
    block = Block.prepare(X[:, EDGES[2] :], np.zeros(records), plan.part("cleo").preparation)
    said, sketch = message(plan, rng, scale=10.0), sketch_of(plan)
    said |= {
        "places": place_of(0),
        "values": np.array([plan.numbers.radius]),
        "labels": rng.standard_normal(len(said["sketch"])),
    }
    found = scores_at(plan, "cleo", block, said, sketch) * -bound
    theta = min(
        1.0, 0.7 * bound / math.sqrt((plan.release("feature").std ** 2 + records / plan.numbers.sketch_size) * 0.25)
    )
    scores = sketch.back(theta * said["sketch"])
    slopes = clipped_slopes(plan.scaled_loss, block, scores, sketch.back(said["labels"]), bound)
    assert np.abs(slopes).max() <= bound
    exact = [
        sum(
            (Fraction(float(a)) * Fraction(float(b)) for a, b in zip(block.rows[:, j], slopes, strict=True)),
            Fraction(0),
        )
        for j in range(COLUMNS[2])
    ]
    np.testing.assert_allclose(found[:-1], [float(value) for value in exact], rtol=4e-16)
    assert all(float(value) == value for value in exact)
    bits = block.bits or 0
    ratio = np.trunc(np.clip(scores / plan.numbers.radius, -1, 1) * 2.0**bits) / 2.0**bits
    staying = sum((Fraction(float(a)) * Fraction(float(b)) for a, b in zip(slopes, ratio, strict=True)), Fraction(0))
    bonus = plan.release("atom").std * (math.log(2 * COLUMNS[2]) + math.log(plan.rounds))
    assert found[-1] == pytest.approx(float(staying) - bound * bonus, rel=1e-13, abs=1e-9)
    assert float(staying) == staying


@pytest.mark.parametrize("kind", get_args(Kind))
def test_sums_of_a_sketch_are_exact(kind: str) -> None:
    """But for one division: so a record's part does not depend on the others, and the room is enough."""
    records = 5000
    sketch: Any = make_sketch(kind, 16, records, np.random.default_rng(0))
    bits = (53 - 13) // 2
    values = np.random.default_rng(1).integers(-(2**bits), 2**bits, records) / 2.0**bits
    columns = [sketch.places == 3, sketch.signs] if kind == "count" else [True, sketch.matrix[3].astype(float)]
    exact = sum(Fraction(float(v)) for v in np.where(columns[0], columns[1] * values * 2**30, 0.0)) / 2**30
    assert float(exact) == exact
    assert sketch.apply(values)[3] == float(exact) / (1.0 if kind == "count" else 4.0)


# --- costs --------------------------------------------------------------------------------------------------------


def rho_of(event: Any) -> float:
    return float(event.rho if isinstance(event, Selection) else event.mu**2 / 2)


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("cap", [2, None])
def test_the_cost_by_its_formula(cap: int | None, labels: Any, relation: Any) -> None:
    """rho = T (Delta / std)^2 / 2 + K S Delta^2 / (2 tau^2), or B^2 Delta^2 / (2 tau^2), + Delta^2 / (2 tau_y^2)."""
    bounds = {} if cap else with_norm(1.5)
    options = {"rounds": 6, "cap": cap}
    plan = plan_for(labels=labels, relation=relation, options=options, **bounds)
    delta = 2.0 if relation == "replace-one" else 1.0
    size = math.sqrt(1 if cap else FEATURES)  # entries that the grid can move
    atom, feature = plan.release("atom"), plan.release("feature")
    far = delta * (1.0 if cap else 1.5) * sketch_room(RECORDS, 1 if cap else FEATURES) + feature.step * size
    times = cap * len(NAMES) if cap else 1
    expected = 6 * ((delta * ROOM + atom.step) / atom.std) ** 2 / 2 + times * (far / feature.std) ** 2 / 2
    assert (atom.count, feature.count) == (6, cap or max(COLUMNS))
    if labels == "held":
        release = plan.release("labels")
        expected += ((delta * sketch_room(RECORDS) + release.step) / release.std) ** 2 / 2
    assert ("labels" in {release.query for release in plan.releases}) == (labels == "held")
    for name in NAMES:
        events = events_of(plan, relation, name)
        rho = math.fsum(rho_of(event) for event in events)
        assert rho == pytest.approx(expected, rel=1e-12)
        assert events == world_events_of(plan, relation)
    assert rho == pytest.approx(rho_for(2.0, 1e-5 * 0.99), rel=1e-9)
    assert epsilons_of(plan, relation)["world"] == pytest.approx(2.0, rel=1e-9)


def test_the_other_relation_is_charged_too() -> None:
    plan = plan_for()
    twice = [event.rho for event in events_of(plan, "replace-one", "ben") if isinstance(event, Selection)]
    once = [event.rho for event in events_of(plan, "zero-out", "ben") if isinstance(event, Selection)]
    assert twice[0] == pytest.approx(4 * once[0], rel=0.01)


def test_a_cap_or_the_row_norm_whichever_is_cheaper() -> None:
    assert plan_for(**with_norm(2.0), options={"rounds": 6, "cap": 2}).numbers.cap is None  # 4 < 6
    assert plan_for(**with_norm(2.6), options={"rounds": 6, "cap": 2}).numbers.cap == 2  # 6.76 > 6


def test_no_cap_beyond_the_columns_by_default() -> None:
    assert plan_for().numbers.cap == max(COLUMNS)


# --- who answers what ---------------------------------------------------------------------------------------------


def test_a_choice_is_for_the_party_that_the_coin_names() -> None:
    plan = plan_for(options={"rounds": 60})
    parties = parties_of(plan)
    said = {"places": np.zeros(0, np.int64), "values": np.zeros(0), "sketch": np.zeros(plan.numbers.sketch_size)}
    assert {propose(party, plan).kind for party in parties.values()} == {"accept"}
    assert set(named(plan)) == set(NAMES)
    assert named(plan) != named(plan_for(coin="other", options={"rounds": 60}))
    for t, turn in enumerate(named(plan)):
        kinds = {name: ask(party, plan, "atom", t, **said).kind for name, party in parties.items()}
        assert kinds == {name: "answer" if name == turn else "refuse" for name in NAMES}
    assert all(ask(party, plan, "atom", 60, **said).kind == "refuse" for party in parties.values())


def test_the_gate_enforces_the_cap_and_draws_each_slot_once() -> None:
    plan = plan_for(options={"rounds": 6, "cap": 2})
    party = parties_of(plan)["cleo"]
    propose(party, plan)
    first = ask(party, plan, "feature", 0, place=place_of(3))
    again = ask(party, plan, "feature", 0, place=place_of(1))  # whatever the message says
    np.testing.assert_array_equal(first.arrays["grid"], again.arrays["grid"])
    second = ask(party, plan, "feature", 1, place=place_of(3))
    assert (second.arrays["grid"] != first.arrays["grid"]).any()  # another slot, another draw, paid for
    refused = ask(party, plan, "feature", 2, place=place_of(0))
    assert refused.kind == "refuse"
    assert not refused.arrays


@pytest.mark.parametrize("ledger", [False, True])
def test_without_a_cap_each_feature_is_drawn_once_in_any_order(ledger: bool, tmp_path: Path) -> None:
    plan = plan_for(**with_norm(1.5))
    accounts = {"cleo": sv.Ledger.create(tmp_path / "x.db").open("cleo", epsilon=3.0, delta=1e-5)} if ledger else None
    party = parties_of(plan, ledgers=accounts)["cleo"]
    propose(party, plan)
    order = [3, 0, 2, 1, 3, 2, 1, 0]
    drawn_ = [ask(party, plan, "feature", place, place=place_of(place)).arrays["grid"] for place in order]
    for k in range(4):
        np.testing.assert_array_equal(drawn_[k], drawn_[4:][order[4:].index(order[k])])
    assert ask(party, plan, "feature", 1, place=place_of(2)).kind == "refuse"  # the round is the place
    assert ask(party, plan, "feature", 4, place=place_of(4)).kind == "refuse"


@pytest.mark.parametrize("cap", [1, None])
@pytest.mark.parametrize("seed", range(4))
def test_one_message_for_each_feature_however_often_it_is_chosen(cap: int | None, seed: int) -> None:
    plan = plan_for(epsilon=12.0, coin=str(seed), options={"rounds": 40, "cap": cap}, **({} if cap else with_norm(1.5)))
    coordinator = Coordinator(InProcess(list(parties_of(plan, seed).values())), record=True)
    solution, _ = coordinator.run(plan, algorithms.of(plan))
    transcript = coordinator.transcript or []
    atoms = [m for m in transcript if m.name == "atom"]
    features = [m for m in transcript if m.name == "feature"]
    assert [m.sender for m in atoms] == named(plan)
    assert len({(m.sender, m.round) for m in features}) == len(features)
    chosen = set(np.flatnonzero(solution.weights).tolist()) - {FEATURES}
    assert len(chosen) <= len(features)  # a weight may be 0 again
    if cap:
        assert max([0, *(sum(m.sender == name for m in features) for name in NAMES)]) <= cap
    assert len({len(m.payload) for m in features}) <= 1
    moves = sum(m.payload[0] != 0 for m in atoms)
    assert len(features) <= moves


def test_a_party_whose_cap_is_used_up_chooses_among_what_it_released() -> None:
    plan = plan_for(options={"rounds": 6, "cap": 2}, label_party=2)
    part = plan.part("cleo")  # columns 5 to 8, and the intercept
    nobody = np.zeros(0, dtype=np.int64)
    assert candidates(plan, part, nobody).tolist() == [0, 1, 2, 3, 4]
    assert candidates(plan, part, np.array([7, 0, 1, 9])).tolist() == [0, 1, 2, 3, 4]
    assert candidates(plan, part, np.array([7, 0, 5])).tolist() == [0, 2, 4]
    assert candidates(plan, plan.part("anna"), np.array([7, 0, 5, 2])).tolist() == [0, 2]
    X, y = people(plan)
    said = message(plan, np.random.default_rng(0)) | {"places": np.array([7, 5]), "values": np.array([0.1, -0.1])}
    value = scores_at(plan, "cleo", blocks(plan, X, y)["cleo"], said, sketch_of(plan))
    assert value.shape == (4,)
    uncapped = plan_for(**with_norm(1.5))
    assert candidates(uncapped, uncapped.part("ben"), np.arange(FEATURES)).tolist() == [0, 1]


def test_a_party_that_was_stopped_goes_on_with_what_it_had_released(tmp_path: Path) -> None:
    plan = plan_for(labels="held", options={"rounds": 6, "cap": 2})
    accounts = {name: sv.Ledger.create(tmp_path / f"{name}.db").open(name, epsilon=3.0, delta=1e-5) for name in NAMES}
    said: list[tuple[str, str, int, bytes]] = []

    class Wire(InProcess):
        """Every party starts anew before each message."""

        def exchange(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
            fresh = parties_of(plan, seed=None, ledgers=accounts)
            replies = {}
            for name, request in requests.items():
                frame = decode(request)
                replies[name] = handle(fresh[name], request).data
                if decode(replies[name]).kind == "unknown-plan":
                    propose(fresh[name], plan)
                    replies[name] = handle(fresh[name], request).data
                if frame.kind == "ask":
                    arrays = decode(replies[name]).arrays
                    said.append((name, frame.query, frame.round, arrays["grid"].tobytes()))
            return replies

    first, second = (
        Coordinator(Wire(list(parties_of(plan).values()))).run(plan, algorithms.of(plan))[0].weights for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)
    half = len(said) // 2
    assert said[:half] == said[half:]
    spent = {account.balance().spent for account in accounts.values()}
    assert max(spent) == pytest.approx(epsilon_of(events_of(plan, "zero-out", "anna"), 1e-5, "zero-out"), rel=1e-3)


@pytest.mark.parametrize("labels", ["shared", "held"])
def test_over_grpc_the_same_seeds_give_the_same_run(labels: Any, tmp_path: Path) -> None:
    plan = plan_for(labels=labels, epsilon=12.0, options={"rounds": 20})
    local = Coordinator(InProcess(list(parties_of(plan, seed=5).values())), record=True)
    expected, _ = local.run(plan, algorithms.of(plan))
    with over_grpc(tmp_path, parties_of(plan, seed=5).values()) as wire:
        remote = Coordinator(wire, record=True)
        found, _ = remote.run(plan, algorithms.of(plan))
    np.testing.assert_array_equal(found.weights, expected.weights)
    assert np.abs(found.weights).sum() > 0
    said = [[(m.round, m.sender, m.name) for m in c.transcript or []] for c in (local, remote)]
    assert said[0] == said[1]
    assert local.uplink == remote.uplink


# --- hostile plans and messages -----------------------------------------------------------------------------------

NUMBERS: dict[str, dict[str, Any]] = {
    "sketch below": {"sketch": -1},
    "sketch beyond": {"sketch": "gaussian"},
    "sketch between": {"sketch": 0.5},
    "sketch no number": {"sketch": math.nan},
    "no sketch": {"sketch": None},
    "size 0": {"sketch_size": 0},
    "size negative": {"sketch_size": -5},
    "size broken": {"sketch_size": 16.5},
    "size huge": {"sketch_size": 1e12},
    "size infinite": {"sketch_size": math.inf},
    "radius 0": {"radius": 0.0},
    "radius nan": {"radius": math.nan},
    "bound negative": {"slope_bound": -1.0},
    "bound huge": {"noisy_slope_bound": 1e300},
    "bound nan": {"noisy_slope_bound": math.nan},
    "steps nan": {"total_step": math.nan},
    "steps negative": {"total_step": -1.0},
    "no cap, no norm": {"cap": None},
    "cap below": {"cap": -1},
    "cap 0": {"cap": 0},
    "cap small": {"cap": 1e-9},
    "cap broken": {"cap": 0.5},
    "cap nan": {"cap": math.nan},
    "cap huge": {"cap": 1e300},
    "a number of another form": {"candidates": 2},
}
PLANS: dict[str, Callable[[Plan], dict[str, Any]]] = {
    **{
        f"no {name}": lambda p, name=name: {"numbers": {k: v for k, v in p.numbers.model_dump().items() if k != name}}
        for name in ("sketch", "sketch_size", "radius", "slope_bound", "noisy_slope_bound", "total_step", "cap")
    },
    "more choices than rounds": lambda p: {"releases": releases_with(p, "atom", count=7)},
    "choices after the rounds": lambda p: {"releases": releases_with(p, "atom", first=1)},
    "too many rounds": lambda p: {"rounds": 2**30},
    "no choices": lambda p: {"releases": releases_with(p, "")[1:]},
    "choices by another mechanism": lambda p: {"releases": releases_with(p, "atom", mechanism="noisy-max")},
    "choices as numbers": lambda p: {"releases": releases_with(p, "atom", mechanism="gaussian")},
    "features as choices": lambda p: {"releases": releases_with(p, "feature", mechanism="selection")},
    "cheaper than it is": lambda p: {"releases": releases_with(p, "feature", charged_zero_out=0.5)},
    "cheaper in the other relation": lambda p: {"releases": releases_with(p, "feature", charged_replace_one=1.5)},
    "cheaper choices": lambda p: {"releases": releases_with(p, "atom", charged_zero_out=0.5, charged_replace_one=1.0)},
    "choices without noise": lambda p: {"releases": releases_with(p, "atom", std=0.0)},
    "features without noise": lambda p: {"releases": releases_with(p, "feature", std=0.0)},
    "a secret sample": lambda p: {"releases": releases_with(p, "feature", rate=0.01)},
    "a grid that is none": lambda p: {"releases": releases_with(p, "feature", step=0.3)},
    "rows": lambda p: {"layout": "rows"},
    "another form": lambda p: {"form": "published-columns"},
    "the form for one place": lambda p: {"form": "private"},
    "labels that cleo knows": lambda p: {"labels": "held"},
    "other columns": lambda p: {"columns": [2, 3, 4]},
}


@pytest.mark.parametrize("case", PLANS)
def test_a_plan_that_says_nothing_sound_is_refused_before_it_is_charged(case: str) -> None:
    plan = plan_for()
    party = parties_of(plan)["anna" if case == "other columns" else "cleo"]
    frame = propose(party, plan, **PLANS[case](plan))
    assert frame.kind == "refuse", frame.text
    assert propose(party, plan).kind == "accept"


@pytest.mark.parametrize("case", NUMBERS)
def test_a_plan_with_absurd_numbers_is_refused(case: str) -> None:
    plan = plan_for()
    numbers = plan.numbers.model_dump() | NUMBERS[case]
    frame = propose(parties_of(plan)["cleo"], plan, numbers=numbers)
    assert frame.kind == "refuse", frame.text
    assert next(iter(NUMBERS[case])) in frame.text


@pytest.mark.parametrize("cap", [1, 7, 2**31 - 1])
def test_whatever_cap_a_plan_names_its_slots_are_what_is_charged(cap: int) -> None:
    plan = changed(plan_for(options={"rounds": 6, "cap": 2}), cap=cap)
    (event,) = (event for event in events_of(plan, "zero-out", "cleo") if isinstance(event, Gaussian))
    feature = plan.release("feature")
    assert event.mu == pytest.approx(feature.charged_zero_out * math.sqrt(2 * len(NAMES)) / feature.std)
    party = parties_of(plan)["cleo"]
    assert propose(party, plan).kind == "accept"
    kinds = [ask(party, plan, "feature", slot, place=place_of(0)).kind for slot in range(4)]
    assert kinds == ["answer", "answer", "refuse", "refuse"]


@pytest.mark.parametrize(
    "fields",
    [
        {"columns": (3, 2, 3)},
        {"columns": (9,)},
        {"label_party": 3},
        {"norms": (1.0, 1.0, 1.0)},
        {"parties": (("anna", 60), ("ben", 60), ("cleo", 61))},
        {"parties": (("anna", 60), ("anna", 60), ("cleo", 60))},
    ],
)
def test_a_plan_whose_columns_do_not_fit_is_none(fields: dict[str, Any]) -> None:
    with pytest.raises((RefusedError, ValueError)):
        plan_for().model_copy(update=fields)


def test_norms_that_do_not_sum_to_the_row_norm_are_refused() -> None:
    plan = plan_for(**with_norm(1.5))
    with pytest.raises(ValueError, match="squares summing"):
        plan.model_copy(update={"norms": (1.5, 1.5, 1.5)})


SIZE = plan_for().numbers.sketch_size
GOOD = {"places": np.array([0, 4]), "values": np.array([0.2, -0.3]), "sketch": np.zeros(SIZE)}
MESSAGES: dict[str, dict[str, np.ndarray]] = {
    "a place twice": {"places": np.array([4, 4])},
    "beyond the ball": {"values": np.array([0.3, -0.3])},
    "more values than places": {"values": np.array([0.1, 0.1, 0.1])},
}


@pytest.mark.parametrize("case", MESSAGES)
def test_a_message_that_is_no_point_is_refused(case: str) -> None:
    plan = plan_for()
    (turn, *_) = named(plan)
    party = parties_of(plan)[turn]
    propose(party, plan)
    assert ask(party, plan, "atom", 0, **GOOD | MESSAGES[case]).kind == "refuse"
    assert ask(party, plan, "atom", 0, **GOOD).kind == "answer"  # nothing was drawn for the other


def test_the_column_of_the_intercept_is_not_released_where_the_row_norm_pays() -> None:
    """It would show who is a null row, and no part of the row norm is charged for it."""
    plan = plan_for(**with_norm(1.5), label_party=1)
    party = parties_of(plan)["ben"]  # two columns, and the intercept
    propose(party, plan)
    assert ask(party, plan, "feature", 1, place=place_of(1)).kind == "answer"
    assert ask(party, plan, "feature", 2, place=place_of(2)).kind == "refuse"


def test_labels_said_to_a_party_that_knows_them_are_refused_and_move_no_score() -> None:
    plan = plan_for()
    X, y = people(plan)
    said = message(plan, np.random.default_rng(0), scale=1e6)
    absurd = said | {"labels": np.full(SIZE, 1e90)}
    sketch, query = sketch_of(plan), query_of(plan, "atom", "ben")
    for seed in range(10):
        there = [blocks(plan, *data)["ben"] for data in ((X, y), neighbour(X, y, "replace-one", seed))]
        one, two = (scores_at(plan, "ben", block, absurd, sketch) for block in there)
        assert np.abs(one - two).max() <= query.sensitivity("replace-one")
        np.testing.assert_array_equal(one, scores_at(plan, "ben", there[0], said, sketch))
    party = parties_of(plan)[named(plan)[0]]
    propose(party, plan)
    refused = ask(party, plan, "atom", 0, **GOOD, labels=np.zeros(SIZE))
    assert (refused.kind, "takes no 'labels'" in refused.text) == ("refuse", True)


def test_answers_have_one_size_whatever_they_say() -> None:
    plan = plan_for(epsilon=12.0, labels="held", options={"rounds": 40})
    sizes: dict[str, set[int]] = {}

    class Wire(InProcess):
        def exchange(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
            replies = super().exchange(requests)
            for name, reply in replies.items():
                frame = decode(requests[name])
                if frame.kind == "ask":
                    sizes.setdefault(frame.query, set()).add(len(reply))
            return replies

    Coordinator(Wire(list(parties_of(plan).values()))).run(plan, algorithms.of(plan))
    assert set(sizes) == {"atom", "feature", "labels"}
    assert all(len(found) == 1 for found in sizes.values())


# --- noise --------------------------------------------------------------------------------------------------------


def gate_for(plan: Plan, seed: int) -> Gate:
    return Gate(plan, SeededRandomness(seed, "gate"))


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """The p-value; candidates that are rare count together."""
    rare = probabilities * counts.sum() < 20
    seen, expected = (np.append(v[~rare], v[rare].sum()) for v in (counts, probabilities * counts.sum()))
    if expected[-1] < 5:
        seen, expected = seen[:-1], expected[:-1]
    return float(stats.chi2.sf(((seen - expected) ** 2 / expected).sum(), len(seen) - 1))


@pytest.mark.slow
def test_choices_have_the_probabilities_of_the_exponential_mechanism() -> None:
    """Among both signs of each column and staying; a run of this test gives a false alarm with probability 1e-7."""
    draws = 20_000
    short = plan_for(fit_intercept=False, options={"rounds": 2})
    plan = with_release(short, "atom", std=4.0, count=draws)
    X, y = people(plan)
    block, sketch = blocks(plan, X, y)["anna"], sketch_of(plan)
    said = {"places": np.array([0, 5]), "values": np.array([0.3, -0.2]), "sketch": np.zeros(plan.numbers.sketch_size)}
    query, gate = query_of(short, "atom", "anna"), gate_for(plan, 1)
    codes = np.array([gate.release(query, Round(plan, t, said, block, sketch)).arrays["grid"][0] for t in range(draws)])
    # by hand: clean columns of the party's own, the slopes of the squared loss, and p = score / radius
    clean = block.rows.astype(np.float64)
    score = 0.3 * clean[:, 0]
    slopes = np.clip(score - block.labels, -1, 1)
    gradient = clean.T @ slopes
    staying = -slopes @ np.clip(score / 0.5, -1, 1) + 4.0 * (math.log(6) + math.log(2))
    scores = np.concatenate([-gradient, gradient, [staying]])
    names = [1, 2, 3, -1, -2, -3, 0]
    counts = np.array([(codes == name).sum() for name in names])
    assert counts.sum() == draws

    def probabilities(std: float) -> np.ndarray:
        weights = np.exp((scores - scores.max()) / std)
        return np.asarray(weights / weights.sum())

    assert chi_square(counts, probabilities(4.0)) > FALSE_ALARM
    assert chi_square(counts, probabilities(4.6)) < FALSE_ALARM
    unsigned = probabilities(4.0)[[3, 4, 5, 0, 1, 2, 6]]
    assert chi_square(counts, unsigned) < FALSE_ALARM


# --- sketches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", get_args(Kind))
def test_sketches(kind: str) -> None:
    size, records = 40, 200
    rng = np.random.default_rng(0)
    sketch = make_sketch(kind, size, records, np.random.default_rng(1))
    a, q = rng.standard_normal(records), rng.standard_normal(size)
    assert sketch.apply(a).shape == (size,)
    assert sketch.apply(a) @ q == pytest.approx(a @ sketch.back(q), rel=1e-10)
    some = np.array([3, 50, 199])
    whole = np.zeros(records)
    whole[some] = a[some]
    np.testing.assert_allclose(sketch.apply(a[some], some), sketch.apply(whole), atol=1e-12)
    norms = np.array([np.linalg.norm(sketch.apply(e)) for e in np.eye(records)])
    if kind == "gaussian":
        assert norms.max() <= sketch.norm <= norms.max() * (1 + 1e-5)
        assert 1.1 < sketch.norm < 1.6
    else:
        np.testing.assert_allclose(norms, 1.0, rtol=1e-12)
        assert sketch.norm == 1.0


@pytest.mark.parametrize("kind", get_args(Kind))
def test_on_average_a_sketch_keeps_inner_products(kind: str) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 50))
    drawn_ = [make_sketch(kind, 20, 50, np.random.default_rng([7, seed])) for seed in range(4000)]
    products = np.array([sketch.apply(a) @ sketch.apply(b) for sketch in drawn_])
    assert abs(products.mean() - a @ b) < 5.4 * products.std() / math.sqrt(4000)  # false alarm 1e-7
    # its spread is what a sketch of 20 numbers has: |a| |b| sqrt((1 + cos^2) / m), or a little less
    cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert products.std() < 1.15 * np.linalg.norm(a) * np.linalg.norm(b) * math.sqrt((1 + cosine**2) / 20)


def test_a_sketch_follows_from_the_coin_alone() -> None:
    one, same, other = plan_for(), plan_for(epsilon=1.0), plan_for(coin="other")
    ones = np.arange(RECORDS, dtype=float)
    np.testing.assert_array_equal(sketch_of(one).apply(ones), sketch_of(same).apply(ones))
    assert (sketch_of(one).apply(ones) != sketch_of(other).apply(ones)).any()


def test_a_dense_sketch_that_no_memory_holds_is_refused() -> None:
    with pytest.raises(InputError, match="sketch='count'"):
        make_sketch("rademacher", 2**14, 2**15, np.random.default_rng(0))


# --- where it ends ------------------------------------------------------------------------------------------------


class Whole:
    """No sketch at all: J is the identity."""

    norm = moved = 1.0

    def apply(self, values: np.ndarray, records: Any = None) -> np.ndarray:
        found = np.zeros(RECORDS)
        found[slice(None) if records is None else records] = values
        return found

    def back(self, sketched: np.ndarray) -> np.ndarray:
        return np.array(sketched)


def exact_run(plan: Plan, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The coordinator's text, answered without noise and without a sketch."""
    prepared, whole = blocks(plan, X, y), Whole()
    text, rounds = algorithms.of(plan).coordinate(plan), Rounds(plan, algorithms.of(plan))
    ask_: Ask = next(text)
    queries = {(name, kind): query_of(plan, kind, name) for name in NAMES for kind in ("atom", "feature")}
    try:
        while True:
            answers = {}
            number, names = rounds.assign(ask_)
            for name in names:
                query, arrays = queries[name, ask_.query], {**ask_.arrays, **ask_.each.get(name, {})}
                assert query.objection(number, arrays) is None
                value = at(query, prepared[name], plan=plan, number=number, memory=whole, **arrays)
                if ask_.query == "atom":
                    value = np.array([largest_signed(*((value[:-1], value[-1]) if query.stays else (value,)))])
                answers[name] = value
            ask_ = text.send(answers)
    except StopIteration as stop:
        return np.asarray(stop.value)


def objective(plan: Plan, X: np.ndarray, y: np.ndarray, weights: np.ndarray) -> float:
    rows = np.column_stack([block.rows.astype(float) for block in blocks(plan, X, y).values()])
    return float(np.mean((rows @ weights - y) ** 2) / 2)


def on_the_ball(values: np.ndarray, radius: float) -> np.ndarray:
    if np.abs(values).sum() <= radius:
        return values
    sizes = np.sort(np.abs(values))[::-1]
    excess = (np.cumsum(sizes) - radius) / np.arange(1, len(sizes) + 1)
    threshold = excess[np.nonzero(sizes > excess)[0][-1]]
    return np.asarray(np.sign(values) * np.maximum(np.abs(values) - threshold, 0.0))


def best_on(X: np.ndarray, y: np.ndarray, project: Callable[[np.ndarray], np.ndarray]) -> float:
    weights = np.zeros(FEATURES)
    rate = len(y) / np.linalg.norm(X, 2) ** 2
    for _ in range(4000):
        weights = project(weights - rate * X.T @ (X @ weights - y) / len(y))
    return float(np.mean((X @ weights - y) ** 2) / 2)


@functools.cache
def lasso_case() -> tuple[np.ndarray, np.ndarray, float, float, float]:
    """Rows, labels, the radius of a lasso solution, its value, and the best value on the product of small balls."""
    rng = np.random.default_rng(5)
    X = np.clip(rng.standard_normal((RECORDS, FEATURES)) / 2, -1, 1)
    y = np.clip(X @ np.array([0.6, -0.3, 0, 0, 0.05, 0, 0, 0.02, 0]) + 0.05 * rng.standard_normal(RECORDS), -1, 1)
    coef = Lasso(alpha=0.01, fit_intercept=False, tol=1e-12, max_iter=100_000).fit(X, y).coef_
    radius = float(np.abs(coef).sum())
    best = float(np.mean((X @ coef - y) ** 2) / 2)

    def product(values: np.ndarray) -> np.ndarray:
        parts = [on_the_ball(values[a:b], radius / 3) for a, b in itertools.pairwise(EDGES)]
        return np.concatenate(parts)

    assert best_on(X, y, lambda values: on_the_ball(values, radius)) == pytest.approx(best, rel=1e-4)
    return X, y, radius, best, best_on(X, y, product)


def quiet(plan: Plan, **numbers: float) -> Plan:
    """Without noise, without a cut and with the whole column for a sketch."""
    cuts = {name: 1e3 for name in ("slope_bound", "noisy_slope_bound") if name in type(plan.numbers).model_fields}
    plan = changed(plan, sketch_size=RECORDS, **cuts, **numbers)
    for release in plan.releases:
        plan = with_release(plan, release.query, std=1e-9)
    return plan


@pytest.mark.slow
def test_without_noise_the_limit_is_the_solution_on_the_ball() -> None:
    X, y, radius, best, product = lasso_case()
    start = float(np.mean(y**2) / 2)
    assert product - best > 0.1 * (start - best)
    ball = Named(name="l1_ball", parameters={"radius": radius})
    plan = plan_for(regulariser=ball, fit_intercept=False, options={"rounds": 3000, "cap": 50})
    found = exact_run(quiet(plan, total_step=30.0), X, y)
    assert np.abs(found).sum() <= plan.numbers.radius * (1 + 1e-9)
    assert best - 1e-9 <= objective(plan, X, y, found) < best + 0.01 * (start - best)


def test_the_published_form_ends_on_a_product_of_balls() -> None:
    X, y, radius, _, product = lasso_case()
    ball = Named(name="l1_ball", parameters={"radius": radius})
    plan = plan_for(regulariser=ball, fit_intercept=False, calibration="paper", options={"rounds": 1500})
    plan = quiet(plan, candidates=4)  # all of them
    found = exact_run(plan, X, y)
    start = float(np.mean(y**2) / 2)
    assert objective(plan, X, y, found) == pytest.approx(product, abs=0.02 * (start - product))
    for a, b in itertools.pairwise(EDGES):
        assert np.abs(found[a:b]).sum() <= plan.numbers.radius / 3 * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_with_exact_scores_no_move_is_worse_than_its_curvature(seed: int) -> None:
    """h_{t+1} <= h_t + a^2 C / 2 for every party, and <= (1 - a / 2) h_t + a^2 C / 2 for that of the best atom."""
    X, y, radius, best, _ = lasso_case()
    ball = Named(name="l1_ball", parameters={"radius": radius})
    plan = plan_for(regulariser=ball, coin=str(seed), fit_intercept=False, options={"rounds": 400, "cap": 50})
    plan = quiet(plan, total_step=12.0)
    prepared, whole = blocks(plan, X, y), Whole()
    rows = np.column_stack([block.rows.astype(float) for block in prepared.values()])
    a, point = step_length(plan), SparsePoint(plan.numbers.radius)
    curvature = 4 * plan.numbers.radius**2 * float((rows**2).mean(axis=0).max())
    kept = 0
    for name in named(plan):
        weights = point.dense(FEATURES)
        before = objective(plan, X, y, weights) - best
        gradient = rows.T @ (rows @ weights - y)
        part = plan.part(name)
        others = rows @ np.where((np.arange(FEATURES) >= part.start) & (np.arange(FEATURES) < part.stop), 0.0, weights)
        said = {"places": np.array(point.places, dtype=np.int64), "values": point.values, "sketch": others}
        value = scores_at(plan, name, prepared[name], said, whole)
        code = largest_signed(value[:-1], value[-1])
        kept += code == 0
        if code:
            point.move((part.start + abs(code)) * (1 if code > 0 else -1), a, added=True)
        after = objective(plan, X, y, point.dense(FEATURES)) - best
        assert after <= before + a**2 * curvature / 2 + 1e-9
        if part.start <= np.abs(gradient).argmax() < part.stop:
            assert after <= (1 - a / 2) * before + a**2 * curvature / 2 + 1e-6
    assert kept > 50  # parties without good atoms do not move the point


def test_a_fit_is_useful() -> None:
    rng = np.random.default_rng(0)
    X = rng.choice([-1.0, 1.0], (4000, 30))
    y = np.clip(0.6 * X[:, 2] - 0.3 * X[:, 17] + 0.1 * rng.standard_normal(4000), -1, 1)
    federation = sv.Federation.by_columns([X[:, :10], X[:, 10:20], X[:, 20:]], y)
    fitted = sv.PrivateLasso(
        solver="frank-wolfe", radius=1.0, epsilon=4.0, delta=1e-6, entry_bound=1.0, label_bound=1.0, insecure_seed=1
    ).fit(federation)
    assert np.argmax(np.abs(fitted.coef_)) == 2
    assert fitted.coef_[2] > 0.3
    assert fitted.coef_[17] < -0.1
    assert fitted.score(X, y) > 0.6


# --- the published form -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("radius", "epsilon", "delta", "rounds", "size"),
    [
        (1.0, 1.0, 1e-5, 9, None),
        (0.25, 1.0, 1e-5, 9, 40),
        (1.0, 0.1, 1e-7, 50, 60),
        (2.0, 4.0, 1e-3, 1, 16),
        (0.5, 10.0, 0.01, 200, 100),
    ],
)
def test_published_noise_as_printed(radius: float, epsilon: float, delta: float, rounds: int, size: int | None) -> None:
    """b = (2 G radius / (K n)) sqrt(2 T log(1/(delta/2))) / ((epsilon/2)/2).

    pi = s(J) sqrt(K T) sqrt(2 (log(1/delta) + e)) / e with e = epsilon / 2, s(J) the leading singular value of the J
    that everybody draws, to 1e-9.
    """
    ball = Named(name="l1_ball", parameters={"radius": radius})
    options = {"rounds": rounds} | ({} if size is None else {"sketch_size": size})
    plan = plan_for(calibration="paper", regulariser=ball, epsilon=epsilon, delta=delta, options=options)
    G, n, K, T, e = 1 + radius, RECORDS, 3, rounds, epsilon / 2
    assert plan.numbers.slope_bound == pytest.approx(G, rel=1e-15)
    scale = 2 * G * radius / (K * n) * math.sqrt(2 * T * math.log(1 / (delta / 2))) / (e / 2)
    units = n / G  # of the mean gradient, in units of the scores
    assert plan.release("atom").std == pytest.approx(scale * units, rel=1e-12)
    if size is None:
        assert plan.numbers.sketch_size == math.ceil(100 * math.log(3))
    drawn = sketch_of(plan)
    assert isinstance(drawn, DenseSketch)
    leading = np.linalg.norm(drawn.matrix.astype(float) / drawn.root, 2)
    pi = leading * math.sqrt(K * T) * math.sqrt(2 * (math.log(1 / delta) + e)) / e
    assert plan.release("feature").std == pytest.approx(pi, rel=1e-9)
    assert plan_for(calibration="paper", epsilon=1.0, options={}).rounds == math.ceil(60 ** (2 / 3))
    assert (plan.claimed_epsilon, plan.release("atom").mechanism) == (epsilon, "noisy-max")


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_published_costs_of_all_parties_and_rounds(relation: Any) -> None:
    plan = plan_for(calibration="paper", options={"rounds": 9})
    atom, feature = plan.release("atom"), plan.release("feature")
    choices, features = events_of(plan, relation, "ben")
    assert choices == Selection(rho=27 * (2 * atom.charged(relation) / atom.std) ** 2 / 2)
    assert features == Gaussian(mu=feature.charged(relation) * math.sqrt(27) / feature.std)
    assert (choices, features) == world_events_of(plan, relation)
    assert feature.charged_zero_out == pytest.approx(sketch_of(plan).norm, rel=0.01)


@pytest.mark.parametrize(("parties", "rounds", "low", "high"), [(4, 50, 1.6, 3.8), (10, 50, 7.8, 19.8)])
def test_the_true_cost_of_the_published_choices(parties: int, rounds: int, low: float, high: float) -> None:
    """Claimed: half of epsilon = 1 at half of delta = 1e-5. A canary alone shows `low`; the account says `high`."""
    plan = plan_for(
        calibration="paper",
        regulariser=Named(name="l1_ball", parameters={"radius": 1.0}),
        relation="replace-one",
        epsilon=1.0,
        parties=tuple((f"p{k}", 1000) for k in range(parties)),
        features=10 * parties,
        columns=(10,) * parties,
        fit_intercept=False,
        options={"rounds": rounds},
    )
    (choices,) = (event for event in events_of(plan, "replace-one", "p0") if isinstance(event, Selection))
    account = epsilon_of([choices], 5e-6, "replace-one")
    canary = choices_epsilon(plan.release("atom").std, parties * rounds, 5e-6)
    assert canary == pytest.approx(low, rel=0.05)
    assert account == pytest.approx(high, rel=0.02)
    assert plan.claimed_epsilon == 1.0
    assert canary > 0.5  # what was claimed


def test_the_report_has_the_true_epsilon_beside_the_claim() -> None:
    plan = plan_for(calibration="paper", relation="replace-one", epsilon=1.0, options={"rounds": 50})
    found = epsilons_of(plan, "replace-one")
    assert found["world"] == found["parties"] == found["coordinator"]
    assert found["world"] > 1.5 * plan.claimed_epsilon  # type: ignore[operator]


def test_a_published_run_sends_an_index_and_a_feature_from_everybody_in_every_round() -> None:
    plan = plan_for(calibration="paper", options={"rounds": 5})
    coordinator = Coordinator(InProcess(list(parties_of(plan).values())), record=True)
    solution, _ = coordinator.run(plan, algorithms.of(plan))
    names = [(m.round, m.name, m.sender) for m in coordinator.transcript or [] if m.name in ("atom", "feature")]
    assert names == [(t, query, name) for t in range(5) for query in ("atom", "feature") for name in NAMES]
    assert np.abs(solution.weights).sum() <= plan.numbers.radius * (1 + 1e-9)


@pytest.mark.parametrize(
    ("columns", "candidates", "least"), [((5, 4, 4), 4, 4 / 5), ((4, 4, 4), 2, 2 / 4), ((2, 10), 2, 2 / 10)]
)
def test_the_published_steps_have_the_least_probability_of_a_column(
    columns: Any, candidates: int, least: float
) -> None:
    """Every party sends one atom, and its opposite in the last of seven rounds, whose step the weights then tell."""
    options, parties = (
        {"rounds": 7, "candidates": candidates},
        tuple(zip(NAMES, [RECORDS] * len(columns), strict=False)),
    )
    plan = plan_for(
        calibration="paper",
        columns=columns,
        features=sum(columns),
        parties=parties,
        fit_intercept=False,
        options=options,
    )
    text, features = algorithms.of(plan).coordinate(plan), dict.fromkeys(plan.names, np.zeros(plan.numbers.sketch_size))
    next(text)
    for _ in range(6):
        text.send(dict.fromkeys(plan.names, np.array([1])))
        text.send(features)
    text.send(dict.fromkeys(plan.names, np.array([-1])))
    with pytest.raises(StopIteration) as ended:
        text.send(features)
    step, each = 2 / (least * 6 + 2), plan.numbers.radius / len(columns)
    for part in map(plan.part, plan.names):
        assert np.sum(ended.value.value[part.start : part.stop]) == pytest.approx(each * (1 - 2 * step), rel=1e-12)


def test_the_published_form_may_choose_the_intercept() -> None:
    """Its column is a feature like the others there."""
    plan = plan_for(calibration="paper", options={"rounds": 5}, label_party=2)
    X, y = people(plan)
    X[7] = math.nan
    block = blocks(plan, X, y)["cleo"]
    found = sketched_feature(plan, "cleo", block, 4, sketch_of(plan))
    np.testing.assert_allclose(found, sketch_of(plan).apply(np.where(np.arange(RECORDS) == 7, 0.0, 1.0)))
    party = parties_of(plan)["cleo"]
    propose(party, plan)
    assert ask(party, plan, "feature", 0, place=place_of(4)).kind == "answer"
    assert ask(party, plan, "feature", 1, place=place_of(5)).kind == "refuse"


def test_published_candidates_are_drawn_by_the_coin() -> None:
    plan = plan_for(calibration="paper", options={"rounds": 30, "candidates": 2})
    part = plan.part("cleo")
    rounds = [considered(plan, part, t) for t in range(30)]
    assert all(len(set(some.tolist())) == 2 for some in rounds)
    assert {int(place) for some in rounds for place in some} == {0, 1, 2, 3}
    assert len({tuple(some.tolist()) for some in rounds}) > 3


@pytest.mark.parametrize("number", ["candidates", "slope_bound", "radius", "sketch", "sketch_size"])
@pytest.mark.parametrize("value", [None, math.nan, 0, -1, "count"])
def test_a_published_plan_that_lacks_a_number_is_refused(number: str, value: Any) -> None:
    plan = plan_for(calibration="paper", options={"rounds": 5})
    lacking = {name: kept for name, kept in plan.numbers.model_dump().items() if name != number}
    frame = propose(parties_of(plan)["anna"], plan, numbers=lacking | ({} if value is None else {number: value}))
    assert frame.kind == "refuse"
    assert number in frame.text


@pytest.mark.parametrize("mechanism", ["selection", "gaussian"])
def test_published_choices_by_another_mechanism_are_refused(mechanism: str) -> None:
    plan = plan_for(calibration="paper", options={"rounds": 5})
    party = parties_of(plan)["anna"]
    assert propose(party, plan, releases=releases_with(plan, "atom", mechanism=mechanism)).kind == "refuse"


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"options": {"rounds": 0}}, "rounds=0"),
        ({"options": {"rounds": 2.5}}, "rounds=2.5"),
        ({"options": {"rounds": 2**30}}, "rounds="),
        ({"options": {"cap": 0}}, "cap=0"),
        ({"options": {"sketch_size": 8}}, "sketch_size=8 must be from 16 to"),
        ({"options": {"rounds": 6, "sketch_size": 61}}, "sketch_size=61"),
        ({"options": {"sketch": "gaussian"}}, "'count', 'rademacher'"),
        ({"options": {"sketch": "none"}}, "sketch='none'"),
        ({"options": {"slope_bound": 0.0}}, "slope_bound=0.0"),
        ({"options": {"choice_share": 1.0}}, "choice_share=1.0"),
        ({"options": {"candidates": 2}}, "candidates=2 means nothing"),
        ({"options": {"rounds": 6}, "epsilon": 60.0}, "rounds=6.*error"),
        ({"regulariser": Named(name="l1", parameters={"alpha": 0.1})}, "needs the l1 ball"),
        ({"loss": "hinge"}, "needs a smooth loss and 'hinge' is not"),
        ({"loss": "smoothed_hinge"}, "squared or the logistic"),
        ({"calibration": "paper", "labels": "held"}, "labels='shared'"),
        ({"calibration": "paper", "loss": "logistic"}, "squared loss"),
        ({"calibration": "paper", "options": {"candidates": 3}}, "candidates=3"),
        ({"calibration": "paper", "options": {"cap": 3}}, "cap=3 means nothing"),
        ({"calibration": "paper", "options": {"rounds": 6, "sketch_size": 2}}, "sketch_size=2"),
    ],
)
def test_bad_input(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        plan_for(**fields)


def test_the_hinge_loss_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="smooth"):
        algorithms.check("frank-wolfe", sv.losses.get("hinge"), "columns")


def test_a_column_of_a_block_is_read_alike_from_dense_and_sparse_rows() -> None:
    plan = plan_for()
    X, y = people(plan)
    X[:, 6] *= np.arange(RECORDS) % 3 == 0
    for name in NAMES:
        dense, sparse = (blocks(plan, X, y, kind)[name] for kind in (np.asarray, sp.csr_matrix))
        for local in range(dense.dimension):
            values, records = sparse.column(local)
            whole = np.zeros(RECORDS)
            whole[records] = values
            np.testing.assert_array_equal(whole, dense.column(local)[0])
