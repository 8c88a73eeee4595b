"""The dual solvers: what one record moves, what leaves, what it costs, and that they solve the problem.

Sums are compared as fractions, so a bound holds or it does not. The audit's false-alarm rate is in its docstring.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp
from scipy.stats import beta
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC

import sottovoce as sv
from covering import pairwise
from plans import small_problem
from sottovoce import algorithms, losses
from sottovoce.algorithms.scd.private import DualSteps
from sottovoce.data.block import Block
from sottovoce.errors import InputError, RefusedError
from sottovoce.federation.coordinator import Coordinator
from sottovoce.federation.party import Party
from sottovoce.federation.policy import Policy
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.gate.query import Round
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named
from sottovoce.privacy.accounting import epsilon_of
from sottovoce.privacy.events import Gaussian, PoissonGaussian, Relation
from sottovoce.privacy.ledger import Account, Ledger
from sottovoce.privacy.mechanisms import SeededRandomness, poisson_sample
from sottovoce.solvers import by_name
from sottovoce.transports.base import InProcess
from support import at, declared, epsilons_of, events_of, forged, handle, plan_of, query_of, world_events_of

LOSSES = tuple(loss.name for loss in losses.coded())
RELATIONS: tuple[Relation, ...] = ("zero-out", "replace-one")
serials = itertools.count(1)


def plan_for(algorithm: str = "scd", *, records: int = 40, run: str = "run", **fields: Any) -> Plan:
    """A plan of a small problem, or of what the arguments say instead."""
    loss, options = fields.pop("loss", "logistic"), fields.pop("options", {})
    ridge = Named(name="l2", parameters={"alpha": fields.pop("alpha", 0.1)})
    usual: dict[str, Any] = {"regulariser": ridge, "parties": (("anna", records),)}
    return plan_of(small_problem(loss, **usual | fields), algorithm, run=run, **options)


def in_messages_of(batches: int, plan: Plan) -> Plan:
    """The plan with so many of its rounds in each message."""
    release = plan.releases[0].model_dump() | {"count": plan.releases[0].total // batches, "batches": batches}
    return plan.model_copy(update={"releases": (release,)})


def raw_rows(plan: Plan, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows of norm 1 and below, some of them null, and labels."""
    X = generator.standard_normal((plan.records, plan.features)) * 10.0 ** generator.uniform(-6, 1, (plan.records, 1))
    X[generator.random(plan.records) < 0.1] = 0.0 if not plan.fit_intercept else math.nan
    y = generator.choice([-1, 1], plan.records) if plan.classes else generator.uniform(-1, 1, plan.records)
    return X, y


def other(X: np.ndarray, y: np.ndarray, j: int, relation: Relation, generator: np.random.Generator) -> tuple[Any, Any]:
    """The neighbour in record j."""
    X, y = np.array(X), np.array(y)
    if relation == "zero-out":
        X[j] = math.nan
    else:
        X[j] = generator.standard_normal(X.shape[1]) * 10.0 ** generator.uniform(-6, 1)
        y[j] = -y[j]
    return X, y


def block_of(plan: Plan, X: np.ndarray, y: np.ndarray, *, sparse: bool = False) -> Block:
    return Block.prepare(sp.csr_matrix(X) if sparse else X, y, plan.preparation)


def at_weights(plan: Plan, block: Block, weights: Any, duals: np.ndarray) -> Round:
    """A round in which the holder of these duals is told these weights."""
    return Round(plan, 0, {"weights": weights}, block, duals)


def steps_of(plan: Plan, block: Block, weights: Any, duals: np.ndarray) -> np.ndarray:
    """The sum of dual steps, without noise; the duals move."""
    return at(query_of(plan, "steps"), block, plan=plan, weights=weights, memory=duals)


def fractions(values: np.ndarray) -> list[Fraction]:
    return [Fraction(float(value)) for value in values]


def squared_distance(one: np.ndarray, two: np.ndarray) -> Fraction:
    return sum(((a - b) ** 2 for a, b in zip(fractions(one), fractions(two), strict=True)), Fraction(0))


# How far one record moves a release: the noise is left out.


@pairwise(relation=RELATIONS, sparse=[False, True], loss=LOSSES)
def test_a_record_moves_the_sum_by_its_own_clipped_step_alone(loss: str, sparse: bool, relation: Relation) -> None:
    """The key step of the proof: with the same coins the others' steps, duals and sum are the same to the last bit."""
    generator = np.random.default_rng(1)
    dual_steps = ("slope", "exact", "newton") if loss == "logistic" else ("exact",)
    for records, clip, dual_step in itertools.product((1, 2, 16, 40), (1e-9, 0.03, 1.0, 700.0), dual_steps):
        plan = plan_for(
            loss=loss,
            records=records,
            relation=relation,
            alpha=10.0 ** generator.uniform(-4, 1),
            fit_intercept=bool(generator.integers(2)),
            options={"clip": clip, "dual_step": dual_step, "rounds": 5},
        )
        query = query_of(plan, "steps")
        j = int(generator.integers(records))
        X, y = raw_rows(plan, generator)
        blocks = [block_of(plan, *pair, sparse=sparse) for pair in ((X, y), other(X, y, j, relation, generator))]
        weights = generator.standard_normal(plan.dimension) * 10.0 ** generator.uniform(-3, 3)
        before = generator.standard_normal(records) * 10.0 ** generator.uniform(-3, 1)
        batch = np.union1d(np.flatnonzero(generator.random(records) < 0.5), [j])
        sums, duals = [], []
        for block in blocks:
            own = before.copy()
            sums.append(steps_of(plan, block.take(batch), weights, own))
            duals.append(own)
        others = np.delete(np.arange(records), j)
        np.testing.assert_array_equal(duals[0][others], duals[1][others])
        limit = Fraction(query.sensitivity(relation))
        assert squared_distance(*sums) <= limit**2
        # Without the record the sum is that of the others, exactly; so its term is what its dual moved by times x.
        rest = before.copy()
        without = steps_of(plan, blocks[0].take(batch[batch != j]), weights, rest)
        np.testing.assert_array_equal(rest[others], duals[0][others])
        for block, value in zip(blocks, sums, strict=True):
            alone = np.zeros(records)
            alone[j] = before[j]
            z_x = fractions(steps_of(plan, block.take(np.array([j])), weights, alone))
            assert [a + b for a, b in zip(fractions(without), z_x, strict=True)] == fractions(value)
            assert sum(entry**2 for entry in z_x) <= Fraction(clip) ** 2


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_place_in_a_batch_does_not_matter(loss: str, sparse: bool) -> None:
    generator = np.random.default_rng(2)
    plan = plan_for(loss=loss, records=300, features=9, options={"clip": 0.2, "rounds": 5})
    X, y = raw_rows(plan, generator)
    block, dense = block_of(plan, X, y, sparse=sparse), block_of(plan, X, y)
    assert dense.rows.dtype == np.float32
    weights, before = generator.standard_normal(10), 0.1 * generator.standard_normal(300)
    duals = before.copy()
    expected = steps_of(plan, dense.take(np.arange(300)), weights, duals)
    for _ in range(10):
        order, again = generator.permutation(300), before.copy()
        cut = int(generator.integers(300))
        pieces = [steps_of(plan, block.take(part), weights, again) for part in (order[:cut], order[cut:])]
        np.testing.assert_array_equal(pieces[0] + pieces[1], expected)
        np.testing.assert_array_equal(again, duals)


@pytest.mark.parametrize("loss", LOSSES)
def test_only_the_batch_moves_and_null_rows_never(loss: str) -> None:
    plan = plan_for(loss=loss, options={"rounds": 5})
    paper = plan_for(loss=loss, calibration="paper", options={"rounds": 5, "rate": 0.5})
    lots = plan_for("scd-sequential", loss=loss, options={"rounds": 2, "lot": 10})
    generator = np.random.default_rng(3)
    X, y = raw_rows(plan, generator)
    X[3] = math.nan
    batch, before = np.array([2, 3, 8]), generator.standard_normal(40)
    duals = before.copy()
    block = block_of(plan, X, y)
    assert steps_of(plan, block.take(batch), np.ones(4), duals).shape == (4,)
    assert set(np.flatnonzero(duals != before)) <= {2, 8}
    np.testing.assert_array_equal(steps_of(plan, block.take(batch[:0]), np.ones(4), duals), 0.0)
    duals = before.copy()
    whole = block_of(lots, X, y)  # the first of its four lots comes round again
    at(query_of(lots, "lot"), whole, plan=lots, number=4, weights=np.ones(4), memory=duals)
    assert set(np.flatnonzero(duals != before)) <= set(range(10)) - {3}
    duals, query = before.copy(), query_of(paper, "state")
    noise = np.zeros(query.length, dtype=np.int64)
    step = paper.releases[0].step
    sent = query.walk(at_weights(paper, block_of(paper, X, y).take(batch), np.ones(4), duals), noise, step)
    assert set(np.flatnonzero(sent[4:])) <= {2, 8}
    assert set(np.flatnonzero(duals != before)) <= {2, 8}


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("loss", LOSSES)
def test_the_published_state_is_as_sensitive_as_is_charged(loss: str, relation: Relation) -> None:
    """Also against a null row, whose dual must not move: else zero-out would be sqrt 5 C, not sqrt 2 C."""
    generator = np.random.default_rng(4)
    for clip, sparse in itertools.product((1e-3, 0.05, 2.0), (False, True)):
        options = {"rounds": 5, "rate": 0.5, "clip": clip}
        plan = plan_for(loss=loss, relation=relation, calibration="paper", options=options)
        query, step = query_of(plan, "state"), plan.releases[0].step
        j = int(generator.integers(40))
        X, y = raw_rows(plan, generator)
        batch = np.union1d(np.flatnonzero(generator.random(40) < 0.3), [j])
        before, weights = generator.standard_normal(40), generator.standard_normal(4)
        sent = []
        for pair in ((X, y), other(X, y, j, relation, generator)):
            block = block_of(plan, *pair, sparse=sparse)
            noise = np.zeros(query.length, dtype=np.int64)
            sent.append(query.walk(at_weights(plan, block.take(batch), weights, before.copy()), noise, step))
        differ = np.flatnonzero(sent[0] != sent[1])
        assert set(differ) <= {0, 1, 2, 3, 4 + j}
        assert step * np.linalg.norm((sent[0] - sent[1]).astype(float)) <= plan.releases[0].charged(relation)


def test_published_noise_sits_on_the_sampled_duals_and_enters_them() -> None:
    plan = plan_for(calibration="paper", options={"rounds": 5, "rate": 0.5})
    X, y = raw_rows(plan, np.random.default_rng(0))
    query, step, duals = query_of(plan, "state"), plan.releases[0].step, np.zeros(40)
    noise = np.arange(1, query.length + 1, dtype=np.int64) * 1000
    batch = block_of(plan, X, y).take(np.array([1, 6]))
    sent = query.walk(at_weights(plan, batch, np.zeros(4), duals), noise, step)
    np.testing.assert_array_equal(np.flatnonzero(sent[4:]), [1, 6])
    np.testing.assert_array_equal(duals, sent[4:] * step)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_record_of_a_lot_moves_it_by_the_charged_bound_and_no_other_lot(loss: str, relation: Relation) -> None:
    generator = np.random.default_rng(5)
    widest = 0.0
    for lot, clip, alpha in itertools.product((1, 3, 8), (0.01, 0.5), (1e-4, 0.1)):
        options = {"lot": lot, "clip": clip, "rounds": 3}
        plan = plan_for("scd-sequential", records=24, loss=loss, relation=relation, alpha=alpha, options=options)
        query = query_of(plan, "lot")
        assert query.sensitivity("zero-out") == pytest.approx((2 * lot - 1) * clip)
        assert query.sensitivity("replace-one") == pytest.approx(2 * lot * clip)
        X, y = raw_rows(plan, generator)
        X[:, 1:] = 0.0  # all along one line: the lot's steps answer each other
        j = int(generator.integers(24))
        blocks = [block_of(plan, *pair) for pair in ((X, y), other(X, y, j, relation, generator))]
        duals = [np.zeros(24), np.zeros(24)]
        for round_ in range(3 * query.lots):
            weights = 3 * generator.standard_normal(plan.dimension)
            sums = [
                at(query, block, plan=plan, number=round_, weights=weights, memory=own)
                for block, own in zip(blocks, duals, strict=True)
            ]
            moved = squared_distance(*sums)
            if round_ % query.lots == j // lot:
                widest = max(widest, math.sqrt(moved) / clip)
                assert moved <= Fraction(query.sensitivity(relation)) ** 2
            else:
                assert moved == 0
    assert widest > 0.9


@pytest.mark.parametrize("loss", ["squared", "logistic", "smoothed_hinge"])
def test_minimisers_move_by_their_cut_at_most_and_can(loss: str) -> None:
    generator = np.random.default_rng(6)
    for lot in (1, 2, 3):
        plan = plan_for("scd-primal", loss=loss, records=1, alpha=0.0, fit_intercept=False, options={"lot": lot})
        algorithm, query = algorithms.of(plan), query_of(plan, "minimisers")
        bound = query.sensitivity("zero-out")
        assert bound == query.sensitivity("replace-one") == pytest.approx(2 * plan.numbers.clip * math.sqrt(lot))
        furthest = 0.0
        for _ in range(20):
            found = []
            weights = 0.01 * generator.standard_normal(3)
            row = generator.choice([-0.5, 0.5], (1, 3))
            for sign in (-1, 1):
                block = Block.prepare(row, np.array([sign]), plan.preparation)
                memory = algorithm.remember(plan, block)
                found.append(at(query, block, plan=plan, weights=weights, memory=memory))
            furthest = max(furthest, float(np.linalg.norm(found[0] - found[1])))
            assert furthest <= bound * (1 + 1e-15)  # the square root is rounded
        assert furthest >= 0.99 * bound


# What leaves.


def send(party: Party, kind: str, **fields: Any) -> bytes:
    return handle(party, encode(Frame(kind, next(serials), **fields))).data


def propose(party: Party, plan: Plan | tuple[bytes, str]) -> Frame:
    digest, text = (plan.digest, plan.to_json()) if isinstance(plan, Plan) else plan
    return decode(send(party, "plan", plan=digest, text=text))


def ask(party: Party, plan: Plan, round_: int, weights: Any = None, digest: bytes = b"") -> bytes:
    given = np.zeros(plan.dimension) if weights is None else weights
    query = plan.releases[0].query
    return send(party, "ask", plan=digest or plan.digest, round=round_, query=query, arrays={"weights": given})


def party_of(plan: Plan, seed: int = 0, **options: Any) -> Party:
    options.setdefault("randomness", SeededRandomness(seed, "anna"))
    return Party("anna", *raw_rows(plan, np.random.default_rng(0)), **options)


def test_lots_that_a_plan_cannot_have_are_refused() -> None:
    plan = plan_for("scd-sequential", calibration="paper", options={"rounds": 2, "lot": 3})
    larger = plan.model_copy(update={"numbers": plan.numbers.model_copy(update={"lot": 41})})
    release = plan.releases[0].model_copy(update={"count": 2**30})
    longer = plan.model_copy(update={"rounds": 2**30, "releases": (release,)})
    for proposed, said in ((larger, "lot=41 must be at most 40"), (longer, "rounds of lots are more than")):
        reply = propose(party_of(plan), proposed)
        assert reply.kind == "refuse"
        assert said in reply.text


@pytest.mark.parametrize("algorithm", ["scd", "scd-sequential", "scd-primal"])
def test_every_round_is_answered_with_the_weights_size_alone(algorithm: str) -> None:
    options = {"scd": {"rate": 2e-3, "rounds": 60}, "scd-sequential": {"rounds": 2, "lot": 3}, "scd-primal": {}}
    plan = plan_for(algorithm, options=options[algorithm])
    party = party_of(plan)
    assert propose(party, plan).kind == "accept"
    answers = [ask(party, plan, t) for t in range(plan.releases[0].count)]
    assert len({len(answer) for answer in answers}) == 1
    for answer in answers:
        frame = decode(answer)
        assert frame.kind == "answer"
        assert list(frame.arrays) == ["grid"]
        batches = {"scd": 20, "scd-sequential": 1, "scd-primal": 1}[algorithm]
        assert plan.releases[0].batches == batches
        assert frame.arrays["grid"].shape == (batches * (1 if algorithm == "scd-primal" else plan.dimension),)
        for grid in frame.arrays["grid"].reshape(batches, -1):
            assert grid.any()  # also for an empty batch or lot: noise


@pytest.mark.slow
def test_an_empty_batch_is_noise_and_moves_nothing() -> None:
    """Nobody is drawn in 92% of the rounds."""
    plan = in_messages_of(1, plan_for(options={"rate": 2e-3, "rounds": 60}))
    party = party_of(plan)
    propose(party, plan)
    run = party.run
    assert run is not None
    empty = 0
    for t in range(60):
        before = run.memory.copy()
        answer = decode(ask(party, plan, t))
        assert answer.arrays["grid"].any()
        empty += np.array_equal(run.memory, before)
    assert 30 < empty < 60
    assert run.memory.any()


def test_the_transcript_has_no_duals_in_the_tight_form_and_has_them_in_the_published_one(classification: Any) -> None:
    X, y = classification
    model = sv.PrivateLogisticRegression(
        **declared("scd", alpha=0.01, row_norm=1.0, rounds=30, classes=(-1, 1), epsilon=2.0, insecure_seed=0)
    )
    tight = model.fit(sv.Federation.central(X, y, record=True))
    sent = [message.payload for message in tight.transcript_ or [] if message.name == "steps"]
    assert len(sent) == 2
    assert {payload.shape for payload in sent} == {(15 * (X.shape[1] + 1),)}
    assert tight.plan_.releases[0].total == tight.n_iter_ == 30
    paper = model.set_params(calibration="paper").fit(sv.Federation.central(X, y, record=True))
    sent = [message.payload for message in paper.transcript_ or [] if message.name == "state"]
    assert {payload.shape for payload in sent} == {(X.shape[1] + 1 + len(y),)}
    uses = sum((payload[X.shape[1] + 1 :] != 0).sum() for payload in sent)
    assert 0.09 < uses / (30 * len(y)) < 0.11  # 0.1 expected, sd 0.0016: the batches are in the open
    same = poisson_sample(len(y), 0.1, SeededRandomness(0, "data"))
    np.testing.assert_array_equal(np.flatnonzero(sent[0][X.shape[1] + 1 :]), same)


def test_the_result_is_the_mean_of_the_last_part_of_the_rounds() -> None:
    for rounds, last, batches in ((1, 1, 1), (2, 1, 1), (10, 3, 1), (10, 3, 5), (40, 12, 1), (40, 12, 20), (40, 12, 8)):
        plan = in_messages_of(batches, plan_for(options={"rounds": rounds}))
        assert plan.numbers.averaged == last
        text = algorithms.of(plan).coordinate(plan)
        asked, seen, ended = next(text), [], False
        for t in range(0, rounds, batches):
            np.testing.assert_allclose(asked.arrays["weights"], t / (plan.numbers.ridge * 40))
            seen += [(t + k + 1) / (plan.numbers.ridge * 40) for k in range(batches)]
            try:
                asked = text.send({"anna": np.ones(batches * plan.dimension)})
            except StopIteration as stop:
                np.testing.assert_allclose(stop.value, np.mean(seen[-last:]))
                ended = True
        assert ended


# Several rounds a message.


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_message_of_several_rounds_is_as_many_messages(loss: str, sparse: bool) -> None:
    """At rate 1 one stream of noise gives the same integers and the same duals, to the last bit."""
    whole = plan_for(loss=loss, options={"rounds": 12, "rate": 1.0})
    X, y = raw_rows(whole, np.random.default_rng(0))
    found, duals = [], []
    for batches in (1, 3, 4, 12):
        plan = in_messages_of(batches, whole)
        query, release = query_of(plan, "steps"), plan.releases[0]
        block = block_of(plan, X, y)
        party = Party("anna", sp.csr_matrix(X) if sparse else X, y, randomness=SeededRandomness(3, "anna"))
        assert propose(party, plan).kind == "accept"
        weights, said = np.zeros(plan.dimension), []
        for t in range(release.count):
            grids = decode(ask(party, plan, t, weights)).arrays["grid"].reshape(batches, plan.dimension)
            for grid in grids:
                said.append(grid.tolist())
                weights = query.follow(grid * release.step, Round(plan, t, {"weights": weights}, block)).told["weights"]
        found.append(said)
        assert party.run is not None
        duals.append(party.run.memory)
    assert len(found[0]) == len({tuple(grid) for grid in found[0]}) == 12
    assert duals[0].any()
    for said, memory in zip(found[1:], duals[1:], strict=True):
        assert said == found[0]
        np.testing.assert_array_equal(memory, duals[0])


def test_the_model_does_not_depend_on_the_rounds_in_a_message() -> None:
    whole = plan_for(options={"rounds": 60, "rate": 1.0})
    assert whole.releases[0].batches == 20
    found = []
    for batches in (1, 6, 20):
        plan = in_messages_of(batches, whole)
        solution, messages = Coordinator(InProcess([party_of(plan)])).run(plan, algorithms.of(plan))
        assert messages == 60 // batches
        found.append(solution.weights)
    for weights in found[1:]:
        np.testing.assert_allclose(weights, found[0], rtol=1e-6)  # the coordinator's sums are rounded otherwise


@pytest.mark.parametrize(
    ("batches", "rounds", "fields"),
    [
        (20, 1000, {}),
        (20, 20, {}),
        (15, 30, {}),
        (7, 7, {}),
        (1, 1, {}),
        (1, 23, {}),  # a prime above the most
        (1, 997, {}),
        (19, 38, {}),
        (1, 1000, {"split": "rows", "parties": (("anna", 40), ("ben", 60))}),
        (20, 1000, {"split": "rows"}),
        (8, 1000, {"parties": (("anna", 2**18),)}),  # four entries a record: 2^20 a round, 2^23 a message
        (5, 1000, {"parties": (("anna", 2**18),), "features": 5}),
        (1, 1000, {"parties": (("anna", 2**22),)}),
        (4, 100, {"features": 2**21 - 1, "rate": 1e-2}),  # an almost empty batch has an answer of full size
        (1, 100, {"features": 2**24, "rate": 1e-2}),
    ],
)
def test_rounds_in_a_message(batches: int, rounds: int, fields: dict[str, Any]) -> None:
    options = {"rounds": rounds, "rate": fields.get("rate", 1.0), "clip": 0.01}
    plan = plan_for(**{name: value for name, value in fields.items() if name != "rate"}, options=options)
    release = plan.releases[0]
    assert (release.batches, release.count) == (batches, rounds // batches)
    assert release.total == plan.rounds == rounds


@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_rounds_cost_the_same_in_any_number_of_messages(rate: float, tmp_path: Path) -> None:
    whole = plan_for(options={"rounds": 60, "rate": rate})
    spent = set()
    for batches in (1, 6, 20, 60):
        plan = in_messages_of(batches, whole)
        for relation in RELATIONS:
            assert events_of(plan, relation) == events_of(whole, relation)
            assert world_events_of(plan, relation) == world_events_of(whole, relation)
            assert epsilons_of(plan, relation) == epsilons_of(whole, relation)
        account = Ledger.create(tmp_path / f"{batches}.db").open("rows", epsilon=3.0, delta=1e-5)
        assert propose(party_of(plan, account=account), plan).kind == "accept"
        spent.add(account.balance().left)
        # as many messages of several rounds cost more than messages of one
        more = plan.model_copy(update={"releases": (plan.releases[0].model_dump() | {"count": 60},)})
        dearer = epsilon_of(events_of(more, "zero-out"), 1e-5, "zero-out")
        assert dearer > (1.5 if batches > 1 else 0.5) * whole.epsilon
    assert len(spent) == 1
    (event,) = events_of(whole, "zero-out")
    assert isinstance(event, Gaussian) if rate == 1.0 else event.rounds == 60  # type: ignore[union-attr]


def test_several_holders_have_one_round_a_message() -> None:
    """Each would follow its own values, and the world would no longer see their sums alone."""
    plan = plan_for(split="rows", parties=(("anna", 40), ("ben", 60)), options={"rounds": 20})
    with pytest.raises(RefusedError, match="several parties and batches in one message"):
        in_messages_of(2, plan)


@pytest.mark.parametrize("batches", [0, -1, 65, 2**40, 1.5, None])
def test_a_message_has_a_limited_number_of_rounds(batches: Any) -> None:
    plan = plan_for(options={"rounds": 20})
    content = json.loads(plan.to_json())
    content["releases"][0]["batches"] = batches
    answer = decode(send(party_of(plan), "plan", plan=plan.digest, text=json.dumps(content)))
    assert answer.kind == "refuse"
    assert "releases.0.batches" in json.loads(answer.text)["refused"]


@pytest.mark.parametrize("ridge", [1e-300, 1e-3, 1e300])
def test_weights_inside_a_message_stay_where_scores_are_exact(ridge: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator cannot send weights above 1e100, nor have a holder make them."""
    loud = {"std": 2.0**39, "step": 1.0, "charged_zero_out": 10.0, "charged_replace_one": 20.0}
    plan = Plan.from_json(tampered(plan_for(loss="squared", options={"rounds": 8}), ridge=ridge, release=loud)[1])
    seen, honest = [], DualSteps.value

    def value(query: DualSteps, round: Round) -> Any:
        seen.append(np.array(round.told["weights"]))
        return honest(query, round)

    monkeypatch.setattr(DualSteps, "value", value)
    party = party_of(plan)
    assert propose(party, plan).kind == "accept"
    assert decode(ask(party, plan, 0, np.full(4, -1e100))).kind == "answer"
    assert len(seen) == 8
    assert all((np.abs(weights) <= 1e100).all() for weights in seen)
    assert max(np.abs(weights).max() for weights in seen[1:]) == 1e100
    query, block = query_of(plan, "steps"), block_of(plan, *raw_rows(plan, np.random.default_rng(0)))
    released = np.array([math.inf, -math.inf, 1e308, 0.0])
    for weights in (np.zeros(4), np.full(4, 1e100), np.full(4, -1e100)):
        with np.errstate(all="ignore"):  # as inside the gate
            following = query.follow(released, at_weights(plan, block, weights, np.zeros(3)))
        moved = following.told["weights"]
        assert (np.abs(moved) <= 1e100).all()
        assert moved[3] == weights[3]
        assert following.memory.tolist() == [0.0, 0.0, 0.0]
        assert following.rows is block


# What it costs.


def test_the_cost_is_that_of_sampled_rounds_of_sensitivity_clip() -> None:
    plan = plan_for(split="rows", parties=(("anna", 40), ("ben", 60)), options={"rounds": 50, "rate": 0.2})
    release = plan.releases[0]
    assert release.charged_zero_out == pytest.approx(plan.numbers.clip, rel=2e-3)
    assert release.charged_zero_out >= plan.numbers.clip + release.step * 2
    multiplier = release.std / release.charged_zero_out
    for relation in RELATIONS:
        for name in ("anna", "ben"):
            assert events_of(plan, relation, name) == (PoissonGaussian(0.2, multiplier, 50),)
        (world,) = world_events_of(plan, relation)
        assert isinstance(world, PoissonGaussian)
        assert world.noise_multiplier == pytest.approx(multiplier * math.sqrt(2))
    full = plan_for(options={"rounds": 50, "rate": 1.0})
    (event,) = events_of(full, "zero-out")
    assert isinstance(event, Gaussian)


@pytest.mark.parametrize(
    ("rate", "rounds", "epsilon", "published", "zero_out", "replace_one"),
    [
        (0.01, 1000, 0.5, 3.553, 2.392, 4.471),
        (0.01, 1000, 1.0, 1.772, 1.417, 2.370),
        (0.01, 1000, 4.0, 0.828, 0.736, 0.822),
        (0.05, 200, 1.0, 3.69, 2.84, 5.28),
    ],
)
def test_noise_in_units_of_the_clip(
    rate: float, rounds: int, epsilon: float, published: float, zero_out: float, replace_one: float
) -> None:
    for calibration, relation, expected in (
        ("paper", "zero-out", math.sqrt(2) * published),
        ("tight", "zero-out", zero_out),
        ("tight", "replace-one", replace_one),
    ):
        options = {"rate": rate, "rounds": rounds, "clip": 0.5}
        plan = plan_for(calibration=calibration, relation=relation, epsilon=epsilon, options=options)
        assert plan.releases[0].std / 0.5 == pytest.approx(expected, rel=6e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("relation", "true"), [("zero-out", 10.7), ("replace-one", 27.9)])
def test_the_published_claim_of_one_is_far_above_one(relation: Relation, true: float) -> None:
    generator = np.random.default_rng(0)
    X = generator.standard_normal((200, 3))
    y = np.where(X[:, 0] > 0, 1, -1)
    parameters: dict[str, Any] = {
        "calibration": "paper",
        "epsilon": 1.0,
        "delta": 1e-5,
        "relation": relation,
        "rate": 0.01,
        "rounds": 1000,
        "alpha": 0.1,
        "row_norm": 4.0,
        "insecure_seed": 0,
    }
    model = sv.PrivateLogisticRegression(**declared("scd", **parameters)).fit(X, y)
    report = model.privacy_
    assert report.claimed_epsilon == 1.0
    assert report.coordinator.epsilon == pytest.approx(true, rel=0.01)
    assert report.epsilon == report.coordinator.epsilon
    # v alone: Poisson rounds of sensitivity C under noise sqrt 2 sigma C
    release = model.plan_.releases[0]
    alone = PoissonGaussian(0.01, release.std / (model.plan_.numbers.clip + release.step * 2), 1000)
    assert report.parties.epsilon == pytest.approx(epsilon_of([alone], 0.99e-5, relation))
    assert report.world.epsilon == report.parties.epsilon < 1.05
    parts = [(X[:100], y[:100]), (X[100:], y[100:])]
    split = sv.PrivateLogisticRegression(**declared("scd", **parameters)).fit(sv.Federation.by_rows(parts)).privacy_
    assert split.world.epsilon < 0.75 * split.parties.epsilon
    assert split.parties.epsilon < split.coordinator.epsilon
    # a ledger and a policy count every round, sampled or not
    (event,) = events_of(model.plan_, relation)
    assert event == Gaussian(release.charged(relation) * math.sqrt(1000) / release.std)
    assert epsilon_of([event], 1e-5, relation) > report.coordinator.epsilon


def test_lots_pay_once_an_epoch() -> None:
    plan = plan_for("scd-sequential", split="rows", parties=(("anna", 40), ("ben", 7)), options={"rounds": 5, "lot": 4})
    release = plan.releases[0]
    assert (release.count, plan.numbers.lots) == (50, 10)
    for relation in RELATIONS:
        mu = release.charged(relation) * math.sqrt(5) / release.std
        assert events_of(plan, relation, "ben") == (Gaussian(mu),)
        (world,) = world_events_of(plan, relation)
        assert isinstance(world, Gaussian)
        assert world.mu == pytest.approx(mu / math.sqrt(2))


# The optimum, without privacy.

PROBLEMS: dict[str, Callable[..., Any]] = {
    "squared": lambda **options: sv.PrivateRidge(**options),
    "logistic": lambda **options: sv.PrivateLogisticRegression(**options),
    "hinge": lambda **options: sv.PrivateLinearSVC(loss="hinge", **options),
    "smoothed_hinge": lambda **options: sv.PrivateLinearSVC(loss="smoothed_hinge", **options),
}


def reference(loss: str, X: np.ndarray, y: np.ndarray, alpha: float) -> np.ndarray:
    """The minimiser of the mean loss + alpha/2 |w|^2 by other means."""
    scale = alpha * len(y)
    if loss == "squared":
        return np.ravel(Ridge(alpha=scale, fit_intercept=False, solver="cholesky").fit(X, y).coef_)
    if loss == "logistic":
        found = LogisticRegression(C=1 / scale, fit_intercept=False, tol=1e-12, max_iter=10**4, solver="newton-cg")
        return np.ravel(found.fit(X, y).coef_)
    if loss == "hinge":
        found = LinearSVC(C=1 / scale, loss="hinge", dual=True, fit_intercept=False, tol=1e-10, max_iter=10**6)
        return np.ravel(found.fit(X, y).coef_)
    smooth = losses.get(loss)

    def value(w: np.ndarray) -> float:
        return float(smooth.value(X @ w, y).mean() + alpha / 2 * w @ w)

    def slope(w: np.ndarray) -> np.ndarray:
        return np.asarray(X.T @ smooth.derivative(X @ w, y) / len(y) + alpha * w)

    return np.asarray(scipy.optimize.minimize(value, np.zeros(X.shape[1]), jac=slope, tol=1e-9).x)


@pytest.mark.slow
@pairwise(sparse=[False, True], intercept=[False, True], loss=PROBLEMS)
def test_without_privacy_it_is_the_optimum(
    loss: str, intercept: bool, sparse: bool, classification: Any, regression: Any
) -> None:
    """The intercept is penalised: it is the weight of a column of ones."""
    X, y = regression if loss == "squared" else classification
    X, y, alpha = X[:200], y[:200], 0.05
    make = PROBLEMS[loss]
    rows = sp.csr_matrix(X) if sparse else X
    model = make(epsilon=math.inf, solver="scd", alpha=alpha, fit_intercept=intercept).fit(rows, y)
    assert -1e-12 <= model.certificates_["duality_gap"] <= 1e-8
    wide = np.column_stack([X, np.ones(len(y))]) if intercept else X
    best = reference(loss, wide, y, alpha)
    np.testing.assert_allclose(np.ravel(model.coef_), best[:6], atol=1e-6)
    np.testing.assert_allclose(model.intercept_, best[6] if intercept else 0.0, atol=1e-6)
    parts = [(rows[:90], y[:90]), (rows[90:91], y[90:91]), (rows[91:], y[91:])]  # one of them with one record
    for solver in ("scd", "scd-sequential"):
        again = make(epsilon=math.inf, solver=solver, alpha=alpha, fit_intercept=intercept)
        again.fit(sv.Federation.by_rows(parts))
        assert again.certificates_["duality_gap"] <= 1e-8
        np.testing.assert_allclose(again.coef_, model.coef_, atol=1e-6)


def test_primal_steps_reach_the_same_optimum(regression: Any) -> None:
    X, y = regression
    options: dict[str, Any] = {"epsilon": math.inf, "alpha": 0.05, "fit_intercept": False}
    dual = sv.PrivateRidge(solver="scd", **options).fit(X, y)
    for lot in (1, 3):
        primal = sv.PrivateRidge(**declared("scd-primal", lot=lot, **options)).fit(X, y)
        np.testing.assert_allclose(primal.coef_, dual.coef_, atol=1e-8)


@pytest.mark.filterwarnings("ignore:delta=", "ignore:.*has not converged")
@pytest.mark.parametrize("solver", ["scd", "scd-sequential", "scd-primal"])
def test_one_record_is_enough(solver: str) -> None:
    for epsilon in (1.0, math.inf):
        options = declared(solver, epsilon=epsilon, alpha=0.1, row_norm=1.0, label_bound=1.0, rounds=3)
        model = sv.PrivateRidge(**options)
        assert np.isfinite(model.fit(np.array([[0.5, 0.5]]), np.array([0.3])).coef_).all()


@pytest.mark.parametrize("alpha", [1e-70, 1e-14, 1e6, 1e70])
@pytest.mark.parametrize("solver", ["scd", "scd-sequential"])
def test_any_penalty_within_reason_gives_a_finite_model(solver: str, alpha: float, classification: Any) -> None:
    X, y = classification
    model = sv.PrivateLogisticRegression(**declared(solver, alpha=alpha, row_norm=1.0, insecure_seed=0, rounds=3))
    assert np.isfinite(model.fit(X[:200], y[:200]).coef_).all()


# A party that was stopped.


def account_of(folder: Path) -> Account:
    return Ledger.create(folder / "ledger.db").open("rows", epsilon=3.0, delta=1e-5)


@pytest.mark.parametrize("algorithm", ["scd", "scd-sequential"])
def test_a_party_that_lost_its_duals_refuses_and_says_what_to_do(algorithm: str, tmp_path: Path) -> None:
    account = account_of(tmp_path)
    plan = plan_for(algorithm, options={"rounds": 5})
    party = party_of(plan, account=account)
    assert propose(party, plan).kind == "accept"
    assert decode(ask(party, plan, 0)).kind == "answer"
    restarted = party_of(plan, account=Ledger(account.path).account())
    assert decode(ask(restarted, plan, 1)).kind == "unknown-plan"
    for path in (tmp_path / "ledger.db.memory").iterdir():
        path.unlink()
    refusal = propose(restarted, plan)
    assert refusal.kind == "refuse"
    said = json.loads(refusal.text)["refused"]
    assert "stopped in the middle" in said
    assert "stays charged" in said
    assert "Start a new fit" in said
    assert account.balance().plans == 1
    again = plan_for(algorithm, run="second", options={"rounds": 5})
    assert propose(restarted, again).kind == "accept"


@pytest.mark.parametrize("algorithm", ["scd", "scd-sequential"])
def test_a_party_that_was_stopped_before_it_said_anything_goes_on(algorithm: str, tmp_path: Path) -> None:
    account = account_of(tmp_path)
    plan = plan_for(algorithm, options={"rounds": 5})
    propose(party_of(plan, account=account), plan)
    restarted = party_of(plan, account=Ledger(account.path).account())
    assert propose(restarted, plan).kind == "accept"
    assert decode(ask(restarted, plan, 0)).kind == "answer"
    assert account.balance().plans == 1


@pytest.mark.parametrize("algorithm", ["gradient", "scd"])
def test_a_coordinator_whose_party_restarts(algorithm: str, tmp_path: Path) -> None:
    account = account_of(tmp_path)
    plan = plan_for(algorithm, options={"rounds": 100 if algorithm == "scd" else 5})
    assert plan.releases[0].count == 5
    wire = InProcess([party_of(plan, account=account)])
    rounds = itertools.count()

    def restart(_done: int, _total: int) -> None:
        if next(rounds) == 2:
            wire._endpoints["anna"] = party_of(plan, account=account, randomness=SeededRandomness(5))

    assert Coordinator(wire).run(plan, algorithms.of(plan), restart)[1] == 5
    assert account.balance().plans == 1


def failing_at(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of steps fails once, at its `call`-th time, after it has moved the duals."""
    calls, honest = itertools.count(1), DualSteps.value

    def value(query: DualSteps, round: Round) -> Any:
        found = honest(query, round)
        if next(calls) == call:
            raise MemoryError
        return found

    monkeypatch.setattr(DualSteps, "value", value)


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("ledger", [False, True])
def test_a_holder_whose_answer_failed_goes_on_from_the_last_that_left_or_not_at_all(
    ledger: bool, batches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the duals followed was never released, so nothing may depend on them."""
    account = account_of(tmp_path) if ledger else None
    plan = in_messages_of(batches, plan_for(options={"rounds": 12, "rate": 0.5}))
    party = party_of(plan, account=account)
    assert propose(party, plan).kind == "accept"
    failing_at(batches + (batches + 1) // 2, monkeypatch)  # in the middle of the second message
    assert decode(ask(party, plan, 0)).kind == "answer"
    assert party.run is not None
    duals = party.run.memory.copy()
    failed = decode(ask(party, plan, 1))
    assert failed.kind == "error"
    assert isinstance(party.failure, MemoryError)
    if account is not None:
        np.testing.assert_array_equal(party.run.memory, duals)
        assert [decode(ask(party, plan, t)).kind for t in (1, 0, 2)] == ["answer"] * 3
        assert account.balance().plans == 1
        assert sum(entry.kind == "release" for entry in account.history()) == 3
        return
    for round_ in (1, 0, 2):
        assert decode(ask(party, plan, round_)).kind == "unknown-plan"
    refusal = propose(party, plan)
    assert refusal.kind == "refuse"
    assert "this plan was run before" in json.loads(refusal.text)["refused"]


@pytest.mark.parametrize("ledger", [False, True])
def test_a_holder_whose_first_answer_failed_starts_anew_or_not_at_all(
    ledger: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a ledger it knows that nothing left; its duals are as if it had never been asked."""
    account = account_of(tmp_path) if ledger else None
    plan = in_messages_of(3, plan_for(options={"rounds": 12, "rate": 1.0}))
    party = party_of(plan, account=account)
    propose(party, plan)
    failing_at(2, monkeypatch)
    assert decode(ask(party, plan, 0)).kind == "error"
    assert propose(party, plan).kind == ("accept" if ledger else "refuse")
    if not ledger:
        return
    randomness = SeededRandomness(0, "anna")
    randomness.bytes(8 * 3 * plan.dimension)  # the noise of the message that failed is not used again
    fresh = party_of(plan, randomness=randomness)
    propose(fresh, plan)
    for t in range(4):
        one, other = (decode(ask(holder, plan, t)).arrays["grid"] for holder in (party, fresh))
        np.testing.assert_array_equal(one, other)


def test_a_holder_that_another_process_outran_goes_on_from_its_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has the duals of the last release of the ledger, whoever made it."""
    account = account_of(tmp_path)
    plan = in_messages_of(3, plan_for(options={"rounds": 12, "rate": 0.5}))
    one, two = (party_of(plan, seed, account=account) for seed in (1, 2))
    assert [propose(party, plan).kind for party in (one, two)] == ["accept", "accept"]
    said = decode(ask(one, plan, 0)).arrays["grid"].tolist()
    assert two.run is not None
    with monkeypatch.context() as late:
        late.setattr(two.run.gate, "_stored", lambda *_: None)  # it looked before the other had stored
        assert decode(ask(two, plan, 0)).arrays["grid"].tolist() == said
    assert one.run is not None
    np.testing.assert_array_equal(two.run.memory, one.run.memory)
    said = decode(ask(two, plan, 1)).arrays["grid"].tolist()
    assert decode(ask(one, plan, 1)).arrays["grid"].tolist() == said
    assert decode(ask(one, plan, 1)).kind == "answer"  # once more
    np.testing.assert_array_equal(two.run.memory, one.run.memory)
    assert decode(ask(one, plan, 2)).kind == "answer"
    assert decode(ask(two, plan, 2)).kind == "answer"
    assert decode(ask(two, plan, 3)).kind == "answer"


def test_a_request_that_is_refused_ends_no_run() -> None:
    """It was refused before a value was drawn: an old request that comes late does no harm."""
    plan = in_messages_of(3, plan_for(options={"rounds": 12}))
    party = party_of(plan)
    propose(party, plan)
    assert [decode(ask(party, plan, t)).kind for t in (0, 1)] == ["answer", "answer"]
    late = decode(ask(party, plan, 0))
    assert late.kind == "refuse"
    assert "is over" in json.loads(late.text)["refused"]
    assert decode(ask(party, plan, 4)).kind == "refuse"
    assert [decode(ask(party, plan, t)).kind for t in (2, 3)] == ["answer", "answer"]


def test_a_repeated_request_moves_no_dual() -> None:
    plan = plan_for(options={"rounds": 5, "rate": 0.5})
    party = party_of(plan)
    propose(party, plan)
    first = decode(ask(party, plan, 0))
    run = party.run
    assert run is not None
    duals = run.memory.copy()
    assert duals.any()
    again = decode(ask(party, plan, 0, np.ones(4)))
    np.testing.assert_array_equal(again.arrays["grid"], first.arrays["grid"])
    np.testing.assert_array_equal(run.memory, duals)


# Audit: canaries through the real party, the adversary's best statistic on what left it.


def canary_scores(plan: Plan, noise: float, seed: int, runs: int) -> tuple[np.ndarray, np.ndarray]:
    """The log-likelihood ratio of each canary, and of each of its neighbours, over all rounds.

    Record i is the i-th unit vector, so coordinate i of a message is a run of the mechanism on record i alone. The
    second half of the records are the neighbours: null rows (zero-out), or canaries of the other label (replace-one).
    """
    half = plan.features // 2
    rows = sp.identity(plan.features, format="lil")
    labels = np.ones(plan.features)
    if plan.relation == "replace-one":
        labels[half:] = -1.0
    else:
        rows[np.arange(half, plan.features), np.arange(half, plan.features)] = 0.0
    release = plan.releases[0]
    altered = release.model_copy(update={"std": noise * release.std})
    rate, clip, variance = plan.numbers.rate, plan.numbers.clip, altered.std**2
    scores = []
    for number in range(runs):
        copy = plan.model_copy(update={"releases": (altered,), "run": f"{seed} {number}"})
        party = Party("anna", sp.csr_matrix(rows), labels, randomness=SeededRandomness(seed, str(number)))
        assert propose(party, copy).kind == "accept"
        total = np.zeros(plan.features)
        for t in range(release.count):
            message = decode(ask(party, copy, t)).arrays["grid"] * release.step
            for moves in message.reshape(release.batches, plan.features):
                total += np.log1p(rate * np.expm1((clip * moves - clip**2 / 2) / variance))
                if plan.relation == "replace-one":
                    total -= np.log1p(rate * np.expm1((-clip * moves - clip**2 / 2) / variance))
        scores.append(total)
    together = np.array(scores)
    return together[:, :half].ravel(), together[:, half:].ravel()


def lower_bound(with_it: np.ndarray, without: np.ndarray, delta: float) -> float:
    """An epsilon that is exceeded with confidence 1 - 4e-7: threshold from one half, frequencies from the other."""
    alarm, best = 1e-7, 0.0
    for one, two in ((with_it, without), (-without, -with_it)):
        (choose_one, use_one), (choose_two, use_two) = np.array_split(one, 2), np.array_split(two, 2)
        cuts = np.quantile(np.concatenate([choose_one, choose_two]), np.linspace(0.1, 0.95, 35))
        gains = [math.log(((choose_one > c).mean() + 1e-9) / ((choose_two > c).mean() + 20 / len(one))) for c in cuts]
        cut = cuts[int(np.argmax(gains))]
        hits, misses = int((use_one > cut).sum()), int((use_two > cut).sum())
        low = beta.ppf(alarm, hits, len(use_one) - hits + 1)
        high = beta.ppf(1 - alarm, misses + 1, len(use_two) - misses)
        best = max(best, math.log(max(low - delta, 1e-12) / high))
    return best


@pytest.mark.parametrize(("relation", "epsilon"), [("zero-out", 2.25), ("replace-one", 2.5)])
def test_an_audit_finds_no_more_than_is_claimed_and_finds_half_the_noise(relation: Relation, epsilon: float) -> None:
    """False-alarm rate below 4e-7 for each relation; 20 rounds at rate 0.3, noise 2 to 3 times the clip."""
    features = 2000
    plan = plan_for(
        loss="squared",
        relation=relation,
        records=features,
        features=features,
        fit_intercept=False,
        epsilon=epsilon,
        delta=1e-3,
        options={"rounds": 20, "rate": 0.3, "clip": 0.01},
    )
    assert plan.releases[0].batches == 5  # the audit sees several rounds a message
    assert 1.5 < plan.releases[0].std / 0.01 < 4.0
    correct = lower_bound(*canary_scores(plan, 1.0, 1, 15), plan.delta)
    assert 0.2 * epsilon < correct <= epsilon
    assert lower_bound(*canary_scores(plan, 0.5, 2, 15), plan.delta) > epsilon


# Bad input.


@pytest.mark.parametrize(
    ("solver", "parameters", "told"),
    [
        ("scd", {"alpha": 0.0}, r"solver='scd' needs an l2 penalty with alpha > 0, .*Try alpha="),
        ("scd-sequential", {"alpha": 0.0}, r"solver='scd-sequential' needs an l2 penalty with alpha > 0.*Try alpha="),
        ("scd", {"alpha": 1e-200}, r"alpha=1e-200 .*outside 1e-80 to 1e80.*Try alpha="),
        ("scd", {"l1_ratio": 1}, r"needs an l2 penalty with alpha > 0, not 'l1' with .*Try alpha="),
        ("scd", {"radius": 1.0, "alpha": 0.0}, r"needs an l2 penalty with alpha > 0, not 'l2_ball' with .*Try alpha="),
        ("scd-primal", {"l1_ratio": 1}, r"solver='scd-primal' needs an l2 penalty or none, not 'l1'"),
        ("scd", {"clip": -1.0}, r"clip=-1.0 must be a number from .* to 1024.0; leave it out"),
        ("scd", {"clip": 1e9}, r"clip=1000000000.0 must be a number from .* to 1024.0; leave it out"),
        ("scd", {"clip": math.nan}, r"clip=nan must be a number from .*; leave it out"),
        ("scd-primal", {"clip": 0.0}, r"clip=0.0 must be a number from .*; leave it out"),
        ("scd", {"rate": 0.0}, r"rate=0.0 must be a number from .* to 1.0; leave it out"),
        ("scd", {"rate": 1.5}, r"rate=1.5 must be a number from .* to 1.0; leave it out"),
        ("scd", {"rate": "often"}, r"rate='often' must be a number from .* to 1.0; leave it out"),
        ("scd", {"dual_step": "bold"}, r"dual_step='bold' must be one of 'slope', 'exact', 'newton'"),
        ("scd-sequential", {"lot": 41}, r"lot=41 must be from 1 to 40 here; leave it out"),
        ("scd-sequential", {"lot": 0}, r"lot=0 must be a whole number from 1 to .*; leave it out"),
        ("scd-primal", {"lot": 9}, r"lot=9 must be from 1 to 4 here; leave it out"),
        ("scd", {"calibration": "paper", "dual_step": "exact"}, r"dual_step='exact' means nothing.*rounds, rate, clip"),
        ("scd", {"calibration": "paper", "epsilon": 1e-3}, r"epsilon=0.001.*use calibration='tight'"),
    ],
)
def test_bad_arguments_are_named_with_a_remedy(solver: str, parameters: dict[str, Any], told: str) -> None:
    generator = np.random.default_rng(0)
    X, y = generator.standard_normal((40, 3)), generator.choice([-1, 1], 40)
    options: dict[str, Any] = {"alpha": 0.1, "row_norm": 1.0, "classes": (-1, 1)}
    with pytest.raises(InputError, match=told):
        sv.PrivateLogisticRegression(**declared(solver, **options | parameters)).fit(X, y)


def test_an_option_of_another_solver_is_told() -> None:
    with pytest.raises(InputError, match=r"'lot' is no option of solver='scd'.*It takes rounds, rate, clip, dual_step"):
        by_name("scd", lot=3)


@pytest.mark.parametrize("algorithm", ["scd", "scd-sequential"])
def test_a_loss_without_a_dual_is_told(algorithm: str) -> None:
    with pytest.raises(InputError, match=f"solver={algorithm!r} needs a loss with a dual step.*not 'sigmoid'"):
        algorithms.check(algorithm, losses.get("sigmoid"), "central")


def test_primal_steps_by_rows_are_told() -> None:
    with pytest.raises(InputError, match=r"'scd-primal' does not serve data split by rows.*solvers that fit: .*\bcd,"):
        algorithms.check("scd-primal", losses.get("logistic"), "rows")


# A coordinator that sends what it likes.


def tampered(
    plan: Plan, *, form: str | None = None, release: dict[str, Any] | None = None, **numbers: Any
) -> tuple[bytes, str]:
    """Digest and text of the plan with other numbers; None takes one away."""
    changed = {name: value for name, value in (plan.numbers.model_dump() | numbers).items() if value is not None}
    releases = [plan.releases[0].model_dump() | (release or {})]
    return forged(plan, form=form or plan.form, numbers=changed, releases=releases)


DUAL: dict[str, Any] = {"algorithm": "scd", "options": {"rounds": 5, "rate": 0.1}}
PAPER: dict[str, Any] = {"algorithm": "scd", "calibration": "paper", "options": {"rounds": 5}}
LOTS: dict[str, Any] = {"algorithm": "scd-sequential", "options": {"rounds": 2, "lot": 4}}
PRIMAL: dict[str, Any] = {"algorithm": "scd-primal", "options": {"rounds": 5}}
EXACT = {"form": "exact", "clip": None, "rate": None, "stretch": None, "averaged": None}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a huge clip": (DUAL, {"clip": 1000.0}, "more sensitive than the plan charged for"),
    "a clip without end": (DUAL, {"clip": math.inf}, "clip: Input should be less than or equal to 1024"),
    "a negative clip": (DUAL, {"clip": -1.0}, "clip: Input should be greater than"),
    "a negative clip, published": (PAPER, {"clip": -1.0}, "clip: Input should be greater than"),
    "a negative clip, lots": (LOTS, {"clip": -1.0}, "clip: Input should be greater than"),
    "a negative clip, primal": (PRIMAL, {"clip": -1.0}, "clip: Input should be greater than"),
    "a clip that is no number": (PAPER, {"clip": math.nan}, "clip: Input should be"),
    "a huge clip, published": (PAPER, {"clip": 1000.0}, "more sensitive than the plan charged for"),
    "no ridge": (DUAL, {"ridge": None}, "ridge: Field required"),
    "no ridge, published": (PAPER, {"ridge": None}, "ridge: Field required"),
    "no ridge, lots": (LOTS, {"ridge": None}, "ridge: Field required"),
    "no rate": (DUAL, {"rate": None}, "rate: Field required"),
    "no stretch": (DUAL, {"stretch": None}, "stretch: Field required"),
    "no word on the step": (DUAL, {"dual_step": None}, "dual_step: Field required"),
    "a step out of the list": (DUAL, {"dual_step": "bold"}, "dual_step: Input should be 'slope', 'exact' or 'newton'"),
    "a step that is no word": (LOTS, {"dual_step": math.nan}, "dual_step: Input should be 'slope'"),
    "sampled lots": (LOTS, {"release": {"rate": 0.1}}, "which needs all of them"),
    "sampled minimisers": (PRIMAL, {"release": {"rate": 0.1}}, "which needs all of them"),
    "a NaN ridge": (DUAL, {"ridge": math.nan}, "ridge: Input should be"),
    "a NaN ridge, lots": (LOTS, {"ridge": math.nan}, "ridge: Input should be"),
    "a ridge of zero": (DUAL, {"ridge": 0.0}, "ridge: Input should be greater than 0"),
    "a ridge without end": (DUAL, {"ridge": math.inf}, "ridge: Input should be a finite number"),
    "a negative stretch": (DUAL, {"stretch": -1.0}, "stretch: Input should be greater than 0"),
    "a negative rate": (PAPER, {"rate": -1.0}, "rate: Input should be greater than 0"),
    "larger lots": (LOTS, {"lot": 5}, "more sensitive than the plan charged for"),
    "lots of half a record": (LOTS, {"lot": 0.5}, "lot: Input should be a valid integer"),
    "lots that are no number": (LOTS, {"lots": math.nan}, "lots: Input should be a finite number"),
    "no lots": (LOTS, {"lots": None}, "lots: Field required"),
    "lots of nothing": (LOTS, {"lots": 0}, "lots: Input should be greater than or equal to 1"),
    "one lot that comes round often": (LOTS, {"lots": 1}, "above this party's limit"),
    "more coordinates": (PRIMAL, {"lot": 2}, "more sensitive than the plan charged for"),
    "all coordinates of all mankind": (PRIMAL, {"lot": 10**9}, "lot=1000000000 must be at most 4"),
    "no coordinates": (PRIMAL, {"lot": None}, "lot: Field required"),
    "numbers of its own": (PRIMAL, {"depth": 1.0}, "depth: Extra inputs are not permitted"),
    "less noise": (DUAL, {"release": {"std": 1e-3}}, "above this party's limit"),
    "no sampling": (DUAL, {"release": {"rate": None}}, "above this party's limit"),
    "no noise": (DUAL, {"release": {"std": 0.0}}, "without noise"),
    "no noise, published": (PAPER, {"release": {"std": 0.0}}, "without noise"),
    "duals where none were charged": (DUAL, {"release": {"query": "state"}}, "which scd does not have"),
    "the published form": (DUAL, {"form": "published"}, "Extra inputs are not permitted"),
    "published duals, priced as hidden": (PAPER, {"form": "private", "stretch": 1.0}, "which scd does not have"),
    "more rounds a message": (DUAL, {"release": {"batches": 10}}, "above this party's limit"),
    "more messages": (DUAL, {"release": {"count": 2}}, "above this party's limit"),
    "duals of several rounds": (PAPER, {"release": {"batches": 2}}, "which follows no released value"),
    "several lots at once": (LOTS, {"release": {"batches": 2}}, "which follows no released value"),
    "several minimisers at once": (PRIMAL, {"release": {"batches": 2}}, "which follows no released value"),
    "an exact pass": (DUAL, {"release": {"query": "epoch"}}, "which scd does not have"),
    "an exact pass with noise": (
        DUAL,
        EXACT | {"release": {"query": "epoch", "rate": None, "batches": 1}},
        "more sensitive than the plan charged for",
    ),
    "an exact pass of a sample": (DUAL, EXACT | {"release": {"query": "epoch"}}, "which needs all of them"),
}


@pytest.mark.parametrize(("start", "changes", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_plan_that_asks_for_more_is_refused(start: dict[str, Any], changes: dict[str, Any], reason: str) -> None:
    plan = plan_for(**start)
    limit = epsilon_of(events_of(plan, "zero-out"), plan.delta, "zero-out")
    policy = Policy(max_epsilon=1.01 * limit, max_delta=1e-5)
    assert propose(party_of(plan, policy=policy), plan).kind == "accept"
    bad = tampered(plan, **changes)
    party = party_of(plan, policy=policy)
    answer = propose(party, bad)
    assert answer.kind == "refuse"
    assert reason in json.loads(answer.text)["refused"]
    assert decode(ask(party, plan, 0, digest=bad[0])).kind == "unknown-plan"


def test_rows_prepared_for_columns_are_no_rows_for_dual_steps() -> None:
    plan = plan_for()
    party = party_of(plan)
    answer = propose(party, plan.model_copy(update={"layout": "columns"}))
    assert answer.kind == "refuse"
    assert "does not take rows as 'columns'" in json.loads(answer.text)["refused"]


@pytest.mark.parametrize(
    "changes", [{"rate": 1e-9}, {"rate": 1e9}, {"ridge": 1e-300}, {"ridge": 1e300}, {"stretch": 1e9}]
)
def test_odd_numbers_change_the_steps_and_not_their_bound(changes: dict[str, Any]) -> None:
    """The rate of the coins is the release's; the rate among the numbers only sets the length of a step."""
    plan = Plan.from_json(tampered(plan_for(loss="squared", options={"rounds": 5, "rate": 0.3}), **changes)[1])
    assert plan.releases[0].rate == 0.3
    (event,) = events_of(plan, "zero-out")
    assert isinstance(event, PoissonGaussian)
    assert event.rate == 0.3
    party = party_of(plan)
    assert propose(party, plan).kind == "accept"
    assert decode(ask(party, plan, 0, np.full(4, 1e90))).kind == "answer"
    run = party.run
    assert run is not None
    X, y = raw_rows(plan, np.random.default_rng(0))
    block = block_of(plan, X, y)
    for j in range(40):
        for weights in (np.zeros(4), np.full(4, 1e100), np.full(4, -1e100)):
            found = steps_of(plan, block.take(np.array([j])), weights, np.zeros(40))
            assert sum(entry**2 for entry in fractions(found)) <= Fraction(plan.numbers.clip) ** 2
