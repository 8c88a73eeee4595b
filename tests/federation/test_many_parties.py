"""As many parties by rows as a plan may have: the sums of one block, and no work that grows with their square."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.algorithms import Solution
from sottovoce.algorithms.base import Rounds
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.errors import RefusedError
from sottovoce.federation.answering import read_plan
from sottovoce.gate.frames import Frame
from sottovoce.gate.query import Round
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named, Problem
from sottovoce.queries.pricing import queries_of
from sottovoce.transports.base import MOST_NAMED, list_names
from sottovoce.transports.identity import PLAN, local_identities
from support import plan_of

COLUMNS = 4


def rows(records: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(11)
    X = rng.uniform(-1, 1, (records, COLUMNS))
    return X, (X @ np.arange(COLUMNS) + rng.normal(size=records) > 0).astype(int)


def problem_of(*parties: tuple[str, int]) -> Problem:
    return Problem(
        loss=Named(name="logistic"),
        regulariser=Named(name="none"),
        split="rows",
        parties=parties,
        features=COLUMNS,
        bounds=Bounds.declare(row_norm=2.0),
        epsilon=1.0,
        delta=1e-5,
        classes=(0, 1),
    )


def weights_of(plan: Plan, blocks: Mapping[str, Block]) -> np.ndarray:
    """What the coordinator's text makes of exact answers, one of each block."""
    form = algorithms.of(plan)
    queries = queries_of(form, plan, plan.names[0])
    memories = {name: form.remember(plan, block) for name, block in blocks.items()}
    text, rounds = form.coordinate(plan), Rounds(plan, form)
    ask = next(text)
    try:
        while True:
            number, _ = rounds.assign(ask)
            query = queries[ask.query]
            told = {name: Round(plan, number, ask.arrays, block, memories[name]) for name, block in blocks.items()}
            ask = text.send({name: query.value(round) for name, round in told.items()})
    except StopIteration as stop:
        return np.asarray(stop.value.weights if isinstance(stop.value, Solution) else stop.value)


def test_exact_answers_of_a_thousand_parties_give_the_model_of_one_block() -> None:
    each = [1 + place % 3 for place in range(1000)]
    X, y = rows(sum(each))
    problem = problem_of(*((f"p{place:04}", count) for place, count in enumerate(each)))
    plan = plan_of(problem, "newton", rounds=2)
    stops = np.cumsum(each)
    parts = {
        name: Block.prepare(X[stop - count : stop], y[stop - count : stop], plan.preparation)
        for (name, count), stop in zip(plan.parties, stops, strict=True)
    }
    found = weights_of(plan, parts)
    assert found.tobytes() == weights_of(plan, {"all": Block.prepare(X, y, plan.preparation)}).tobytes()
    assert np.any(found != 0)
    del parts["p0500"]
    assert np.any(weights_of(plan, parts) != found)


def test_a_fit_of_many_parties_asks_each_once_a_round_and_checks_each_signature_once() -> None:
    parties, rounds = 120, 2
    X, y = rows(3 * parties)
    federation = sv.Federation.by_rows([(X[k::parties], y[k::parties]) for k in range(parties)], record=True)
    model = sv.PrivateLogisticRegression(1.0, entry_bound=1.0, classes=(0, 1), solver=sv.solvers.Newton(rounds=rounds))
    model.fit(federation)
    assert len(model.plan_.parties) == parties
    asked = [(said.sender, said.name, said.round) for said in model.transcript_ if said.name in ("gram", "gradient")]
    assert len(asked) == len(set(asked)) == parties * (rounds + 1)
    checks = federation._parties[0].identity._check.cache_info()
    assert (checks.misses, checks.hits) == (parties, parties * (parties - 1))


def test_a_wrong_signature_is_refused_by_every_end_also_where_right_ones_are_known() -> None:
    ends = local_identities([f"p{place}" for place in range(5)])
    digest, other = bytes(32), bytes([1]) * 32
    signed = {name: end.sign(PLAN, digest) for name, end in ends.items()}
    for end in ends.values():
        for name, text in signed.items():
            end.verify(name, PLAN, digest, text)
        for name, message, text in (
            ("p1", digest, signed["p2"]),  # of another
            ("p1", other, signed["p1"]),  # over something else
            ("nobody", digest, signed["p1"]),
        ):
            for _ in range(2):
                with pytest.raises(RefusedError, match=name):
                    end.verify(name, PLAN, message, text)


def test_a_plan_is_read_once_by_all_parties_of_a_process_and_another_one_again() -> None:
    problem = problem_of(("a", 3), ("b", 3))
    first, second = (plan_of(problem, "newton", run=run) for run in ("one", "two"))
    one, other = (Frame("plan", 1, plan.digest, text=plan.to_json()) for plan in (first, second))
    found = read_plan(one.text, one.plan)
    assert read_plan(one.text, one.plan) is found
    assert (found.digest, read_plan(other.text, other.plan).digest) == (first.digest, second.digest)


def test_a_text_names_a_few_of_many_parties() -> None:
    names = [f"p{place}" for place in range(MOST_NAMED + 1)]
    assert list_names(names[:-1]) == ", ".join(names[:-1])
    assert list_names(names) == ", ".join(names[:-1]) + " and 1 more"
