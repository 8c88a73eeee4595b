"""A party against a coordinator that may send anything: it answers what was paid for, and says nothing else."""

from __future__ import annotations

import itertools
import json
import logging
import math
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sottovoce import algorithms
from sottovoce.algorithms.sgd import named_records
from sottovoce.data.block import Block
from sottovoce.data.bounds import Bounds
from sottovoce.data.dataset import Dataset
from sottovoce.errors import BudgetError, InputError, LeakError, LedgerError, RefusedError, SottovoceError, WireError
from sottovoce.federation.answering import FAILED
from sottovoce.federation.coordinator import Coordinator
from sottovoce.federation.party import Party, check_rows, label_values
from sottovoce.federation.policy import Policy
from sottovoce.federation.training import MOST_PREPARED
from sottovoce.gate import gate as gate_module
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.gate.outgoing import Outgoing
from sottovoce.gate.query import Query, Round
from sottovoce.plan.plan import Plan
from sottovoce.plan.problem import Named
from sottovoce.privacy.accounting import epsilon_of
from sottovoce.privacy.events import Event, Gaussian, PoissonGaussian, Relation, Selection
from sottovoce.privacy.ledger import Account, Ledger
from sottovoce.privacy.mechanisms import SeededRandomness, poisson_sample, rounded_gaussian, select
from sottovoce.queries.pricing import queries_of
from sottovoce.queries.sums import GradientSum
from sottovoce.transports.base import InProcess
from support import events_of, handle, query_of

MakePlan = Callable[..., Plan]
serials = itertools.count(1)

SGD: dict[str, Any] = {"algorithm": "sgd", "options": {"rounds": 8, "rate": 0.2}}
ONE: dict[str, Any] = {"algorithm": "sgd", "options": {"rounds": 8, "rate": 0.2, "schedule": "one-party"}}
PAPER: dict[str, Any] = {"algorithm": "sgd", "calibration": "paper", "options": {"rounds": 8}}
CD: dict[str, Any] = {"algorithm": "cd", "options": {"inner": 12}}
GREEDY: dict[str, Any] = {"algorithm": "greedy-cd", "options": {"rounds": 8}}
RIDGE: dict[str, Any] = {"regulariser": Named(name="l2", parameters={"alpha": 0.01})}
SCD: dict[str, Any] = RIDGE | {"algorithm": "scd", "options": {"rounds": 8, "rate": 0.1}}
LOTS: dict[str, Any] = RIDGE | {"algorithm": "scd-sequential", "options": {"rounds": 2, "lot": 60}}
PRIMAL: dict[str, Any] = {
    "algorithm": "scd-primal",
    "options": {"rounds": 8},
    "split": "central",
    "parties": (("anna", 40),),
}
BY_COLUMNS: dict[str, Any] = {
    "algorithm": "frank-wolfe",
    "regulariser": Named(name="l1_ball", parameters={"radius": 2.0}),
    "split": "columns",
    "parties": (("anna", 40), ("ben", 40)),
    "features": 5,
    "columns": (3, 2),
    "norms": (0.6, 0.8),
    "options": {"rounds": 8},
}
TWINS = [["anna", 40], ["anna", 40], ["anna", 40]]

HEIGHT, INCOME = 170.2531415926, 98765.4321987


def rows(count: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 3)), rng.integers(0, 2, count)


def party_of(name: str = "anna", count: int = 40, seed: int = 0, **options: Any) -> Party:
    options.setdefault("randomness", SeededRandomness(seed, name))
    return Party(name, *rows(count, seed), **options)


def send(party: Party, kind: str, **fields: Any) -> Frame:
    return decode(handle(party, encode(Frame(kind, next(serials), **fields))).data)


def propose(party: Party, plan: Plan, **fields: Any) -> Frame:
    return send(party, "plan", plan=plan.digest, text=plan.to_json(), **fields)


def ask(
    party: Party, plan: Plan, round_: int = 0, weights: Any = None, query: str = "gradient", **arrays: Any
) -> Frame:
    given = np.zeros(plan.dimension) if weights is None else weights
    told = {} if query == "gram" else {"weights": given}
    return send(party, "ask", plan=plan.digest, round=round_, query=query, arrays={**told, **arrays})


def said(frame: Frame) -> dict[str, Any]:
    text: dict[str, Any] = json.loads(frame.text)
    return text


def account_of(folder: Path, epsilon: float = 1.0, relation: Relation = "zero-out") -> Account:
    return Ledger.create(folder / "ledger.db").open("rows", epsilon=epsilon, delta=1e-5, relation=relation)


# Facts.


def test_the_facts_are_counts_and_the_schema() -> None:
    facts = said(send(party_of(feature_names=("age", "height", "weight")), "hello"))
    assert facts == {"records": 40, "features": 3, "feature_names": ["age", "height", "weight"]}


def test_a_party_does_not_tell_its_labels_unless_its_holder_lets_it() -> None:
    X, _ = rows(2)
    holder = Party("anna", X, [HEIGHT, INCOME])
    answer = send(holder, "hello", query="classes")
    assert answer.kind == "refuse"
    assert "170" not in answer.text
    assert "classes=" in said(answer)["refused"]
    allowed = party_of(policy=Policy(tell_classes=True))
    assert said(send(allowed, "hello", query="classes"))["classes"] == [0, 1]
    here = party_of()
    here.permit(without_privacy=False)
    assert said(send(here, "hello", query="classes"))["classes"] == [0, 1]


@pytest.mark.parametrize(
    ("labels", "values"),
    [
        (np.array([1, 0, 1]), [0, 1]),
        (np.array([1.0, math.nan, -1.0]), [-1.0, 1.0]),
        (np.array([True, False]), [False, True]),
        (np.array(["yes", "no", "yes"]), ["no", "yes"]),
        (np.array(["yes", "no", None, math.nan], dtype=object), ["no", "yes"]),
        (np.array([1, 1]), [1]),
    ],
)
def test_the_values_of_labels(labels: np.ndarray, values: list[Any]) -> None:
    found = label_values(labels)
    assert found == values
    assert all(type(value) in (bool, int, float, str) for value in found)


def test_labels_that_are_numbers_are_not_listed() -> None:
    """Nor are many: a few texts or whole numbers are classes."""
    assert label_values(np.array([2.0, 0.0, 1.0, 2.0])) == [0.0, 1.0, 2.0]
    for labels in (np.array([HEIGHT + 0.25, INCOME, 3.0]), np.arange(21)):
        with pytest.raises(RefusedError, match="more than 20 distinct values, or numbers that are not whole") as error:
            label_values(labels)
        assert "170" not in str(error.value)


# Answers.


def test_an_answer_is_given_once_whatever_is_asked(small_plan: MakePlan) -> None:
    party, plan = party_of(), small_plan()
    assert propose(party, plan).kind == "accept"
    first = ask(party, plan, 0)
    assert first.kind == "answer"
    for weights in (np.ones(4), np.full(4, 1e99), np.zeros(4)):
        again = ask(party, plan, 0, weights)
        np.testing.assert_array_equal(again.arrays["grid"], first.arrays["grid"])
    assert ask(party, plan, 1).arrays["grid"].tolist() != first.arrays["grid"].tolist()
    assert ask(party, plan, 0).kind == "refuse"  # without a ledger an earlier round is over


@pytest.mark.parametrize(
    "weights",
    [
        np.zeros(3),
        np.zeros(5),
        np.zeros((4, 1)),
        np.zeros(()),
        np.array([0, 0, 0, 1.1e100]),
        np.array([0, 0, 0, -1e300]),
        np.array([0, 0, 0, np.finfo(float).max]),
    ],
)
def test_weights_of_the_wrong_shape_or_size_are_refused(weights: np.ndarray, small_plan: MakePlan) -> None:
    party, plan = party_of(), small_plan()
    propose(party, plan)
    answer = ask(party, plan, 0, weights)
    assert answer.kind == "refuse"
    assert "needs 'weights': 4 float64 numbers, none below -1e+100 or above 1e+100" in said(answer)["refused"]
    assert ask(party, plan, 0).kind == "answer"


def test_what_a_query_does_not_take_is_refused(small_plan: MakePlan) -> None:
    party, plan = party_of(), small_plan("newton")
    propose(party, plan)
    more = {"labels": np.zeros(40), "index": np.zeros(1, dtype=np.int64)}
    refused = ask(party, plan, 1, **more)
    assert (refused.kind, "takes no 'labels', 'index'" in said(refused)["refused"]) == ("refuse", True)
    assert ask(party, plan, 0, query="gram", **more).kind == "refuse"
    assert ask(party, plan, 1).kind == "answer"


def test_an_ask_without_weights_is_refused(small_plan: MakePlan) -> None:
    party, plan = party_of(), small_plan()
    propose(party, plan)
    assert send(party, "ask", plan=plan.digest, query="gradient").kind == "refuse"


def test_weights_that_are_not_finite_do_not_arrive() -> None:
    with pytest.raises(WireError, match="non-finite"):
        encode(Frame("ask", 1, arrays={"weights": np.array([math.nan])}))
    message = bytearray(encode(Frame("ask", 1, arrays={"weights": np.array([1.0])})))
    message[-8:] = struct.pack("<d", math.nan)
    answer = decode(handle(party_of(), bytes(message)).data)
    assert answer.kind == "error"
    assert said(answer)["error"].startswith("malformed message")


def test_integers_are_no_weights(small_plan: MakePlan) -> None:
    """Their squares wrap around, and the smallest has no absolute value."""
    party, plan = party_of(), small_plan()
    propose(party, plan)
    for weights in ([1, 2, 3, 4], [1, 2, 3, np.iinfo(np.int64).min]):
        answer = ask(party, plan, 0, np.array(weights, dtype=np.int64))
        assert answer.kind == "refuse"
        assert "float64" in said(answer)["refused"]
    assert ask(party, plan, 0).kind == "answer"


@pytest.mark.parametrize(("query", "round_"), [("gradient", 5), ("gradient", -1), ("gram", 0), ("loss", 0), ("", 0)])
def test_what_is_not_in_the_plan_is_refused(query: str, round_: int, small_plan: MakePlan) -> None:
    party, plan = party_of(), small_plan()
    propose(party, plan)
    answer = ask(party, plan, round_, query=query)
    assert answer.kind == "refuse"
    assert not answer.arrays


@pytest.mark.parametrize("kind", ["facts", "accept", "refuse", "answer", "unknown-plan", "error"])
def test_a_party_does_not_answer_answers(kind: str) -> None:
    answer = send(party_of(), kind)
    assert answer.kind == "refuse"
    assert kind in said(answer)["refused"]


def test_an_unknown_plan_is_asked_for_again(small_plan: MakePlan) -> None:
    party, plan = party_of(), small_plan()
    assert ask(party, plan).kind == "unknown-plan"
    propose(party, plan)
    assert ask(party, small_plan(run="another")).kind == "unknown-plan"
    assert ask(party, plan).kind == "answer"
    send(party, "done", plan=plan.digest)
    assert ask(party, plan, 1).kind == "unknown-plan"


def test_a_plan_runs_once_without_a_ledger(small_plan: MakePlan) -> None:
    party, plan = party_of(), small_plan()
    propose(party, plan)
    first = ask(party, plan, 0).arrays["grid"].tolist()
    assert propose(party, plan).kind == "accept"  # it still runs: nothing starts anew
    assert ask(party, plan, 0).arrays["grid"].tolist() == first
    for interruption in ("done", "another plan"):
        if interruption == "done":
            send(party, "done", plan=plan.digest)
        else:
            propose(party, small_plan(run="another"))
        refusal = propose(party, plan)
        assert refusal.kind == "refuse"
        assert "was run before" in said(refusal)["refused"]
        assert ask(party, plan, 0).kind == "unknown-plan"


def test_text_and_digest_of_a_plan_agree(small_plan: MakePlan) -> None:
    party = party_of()
    answer = send(party, "plan", plan=small_plan().digest, text=small_plan(run="another").to_json())
    assert "do not agree" in said(answer)["refused"]
    assert send(party, "plan", plan=b"", text=small_plan().to_json()).kind == "refuse"


def test_a_check_charges_nothing_and_opens_nothing(small_plan: MakePlan, tmp_path: Path) -> None:
    account = account_of(tmp_path)
    party, plan = party_of(account=account), small_plan()
    assert propose(party, plan, query="check").kind == "accept"
    assert account.balance().plans == 0
    assert ask(party, plan).kind == "unknown-plan"
    too_much = small_plan(epsilon=5.0)
    assert said(propose(party, too_much, query="check"))["error"] == "budget"


# A ledger.


def test_a_restarted_party_repeats_what_it_said_and_goes_on(small_plan: MakePlan, tmp_path: Path) -> None:
    account, plan = account_of(tmp_path), small_plan()
    party = party_of(account=account)
    propose(party, plan)
    before = [ask(party, plan, t) for t in range(3)]
    restarted = party_of(account=Ledger(account.path).account(), randomness=SeededRandomness(99))
    assert ask(restarted, plan, 3).kind == "unknown-plan"
    assert propose(restarted, plan).kind == "accept"
    for t in (2, 0, 1):
        again = ask(restarted, plan, t, np.full(4, 7.0))
        assert encode(Frame("answer", 0, arrays=again.arrays)) == encode(Frame("answer", 0, arrays=before[t].arrays))
    assert [ask(restarted, plan, t).kind for t in (3, 4)] == ["answer", "answer"]
    assert ask(restarted, plan, 5).kind == "refuse"
    assert account.balance().plans == 1
    assert sum(entry.kind == "release" for entry in account.history()) == 5
    Ledger(account.path).verify()


def test_a_coordinator_carries_a_restarted_party_through(small_plan: MakePlan, tmp_path: Path) -> None:
    account, plan = account_of(tmp_path), small_plan(parties=(("anna", 40),), split="central")
    wire = InProcess([party_of(account=account)])
    rounds = itertools.count()

    def restart(_done: int, _total: int) -> None:
        if next(rounds) == 2:
            wire._endpoints["anna"] = party_of(account=account, randomness=SeededRandomness(5))

    solution, count = Coordinator(wire).run(plan, algorithms.of(plan), restart)
    assert count == 5
    assert np.isfinite(solution.weights).all()
    assert not solution.certificates
    assert account.balance().plans == 1


# What a solver keeps at the holder between rounds.


def central(start: dict[str, Any]) -> dict[str, Any]:
    return start | {"split": "central", "parties": (("anna", 40),)}


def forget(account: Account) -> int:
    """Delete what a party stored of its memory; how many files there were."""
    files = list(account.path.with_name(f"{account.path.name}.memory").iterdir())
    for path in files:
        path.unlink()
    return len(files)


@pytest.mark.parametrize("name", ["scd", "scd-sequential"])
def test_a_holder_that_lost_its_memory_does_not_go_on(name: str, small_plan: MakePlan, tmp_path: Path) -> None:
    account, plan = account_of(tmp_path), small_plan(**{"scd": SCD, "scd-sequential": LOTS}[name])
    query = plan.releases[0].query
    assert propose(party_of(account=account), plan).kind == "accept"
    restarted = party_of(account=account)  # nothing was released yet, so nothing is lost
    assert propose(restarted, plan).kind == "accept"
    first = ask(restarted, plan, 0, query=query)
    assert first.kind == "answer"
    assert propose(restarted, plan).kind == "accept"  # it still runs
    np.testing.assert_array_equal(ask(restarted, plan, 0, query=query).arrays["grid"], first.arrays["grid"])
    assert propose(party_of(account=account), plan).kind == "accept"  # it has what was stored with the release
    assert forget(account) == 1
    refusal = propose(party_of(account=account), plan)
    assert refusal.kind == "refuse"
    assert "was stopped in the middle of this run" in said(refusal)["refused"]
    assert "Start a new fit" in said(refusal)["refused"]
    assert account.balance().plans == 1  # what was released stays charged


def test_a_coordinator_is_told_that_a_memory_is_lost(small_plan: MakePlan, tmp_path: Path) -> None:
    account, plan = account_of(tmp_path), small_plan(**central(SCD | {"options": {"rounds": 100, "rate": 0.1}}))
    assert plan.releases[0].count == 5
    wire = InProcess([party_of(account=account)])

    def restart(done: int, _total: int) -> None:
        if done == 3:
            forget(account)
            wire._endpoints["anna"] = party_of(account=account)

    with pytest.raises(RefusedError, match="between rounds is lost"):
        Coordinator(wire).run(plan, algorithms.of(plan), restart)


@pytest.mark.parametrize("start", [SCD, LOTS], ids=["scd", "scd-sequential"])
def test_a_memory_is_that_of_the_last_release_of_the_ledger(
    start: dict[str, Any], small_plan: MakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before a release, while it is stored, or after: the same answers; files are the holder's own."""
    plan, query = small_plan(**start), small_plan(**start).releases[0].query
    rounds, release = range(plan.releases[0].count), Account.release
    weights = [np.full(4, 0.1 * t) for t in rounds]
    found = []
    for fate in ("", "before", "while", "after"):
        account = Ledger.create(tmp_path / f"{fate}.db").open("rows", epsilon=1.0, delta=1e-5)
        answers = []
        for t in rounds:
            monkeypatch.setattr(Account, "release", release)
            if t == 0 or fate in ("before", "while"):
                party = party_of(account=account, seed=0, randomness=SeededRandomness(7, str(t)))
                propose(party, plan)
            party.randomness = party.run.gate._randomness = SeededRandomness(7, str(t))  # type: ignore[union-attr]
            if fate == "while":

                def killed(*_: Any) -> bytes:
                    raise KeyboardInterrupt

                monkeypatch.setattr(Account, "release", killed)
                with pytest.raises(KeyboardInterrupt):
                    ask(party, plan, t, weights[t], query=query)
                monkeypatch.setattr(Account, "release", release)
                party = party_of(account=account, randomness=SeededRandomness(7, str(t)))
                propose(party, plan)
            answers.append(ask(party, plan, t, weights[t], query=query).arrays["grid"].tolist())
            if fate == "after":
                party = party_of(account=account)
                propose(party, plan)
                assert ask(party, plan, t, query=query).arrays["grid"].tolist() == answers[-1]
        found.append(answers)
        folder = account.path.with_name(f"{account.path.name}.memory")
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
        send(party, "done", plan=plan.digest)
        assert not list(folder.iterdir())
    assert found[1:] == found[:1] * 3


def test_a_memory_is_of_the_records_that_it_was_made_of(
    small_plan: MakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows in another order would have one record move two terms: its own, and that of whoever has its old dual."""
    before = 12
    plan = small_plan(**SCD | {"options": {"rounds": before + 1, "rate": 1.0}})
    release, push, pull = plan.releases[0], np.array([9.0, 0.0, 0.0, 0.0]), np.array([-9.0, 0.0, 0.0, 0.0])
    everybody = np.tile([1.0, 0.0, 0.0], (40, 1))
    without = np.where(np.arange(40)[:, None] == 0, math.nan, everybody)

    def last(X: np.ndarray, order: int) -> Frame:
        """The last answer of a holder that was stopped before it, and has its rows in that order then."""
        account = Ledger.create(tmp_path / f"{len(list(tmp_path.iterdir()))}.db").open("rows", epsilon=1.0, delta=1e-5)
        first = Party("anna", X, np.zeros(40), account=account, randomness=SeededRandomness(1))
        assert propose(first, plan).kind == "accept"
        assert [ask(first, plan, t, push, query="steps").kind for t in range(before)] == ["answer"] * before
        stopped = Party("anna", X[::order], np.zeros(40), account=account, randomness=SeededRandomness(2))
        accepted = propose(stopped, plan)
        return accepted if accepted.kind == "refuse" else ask(stopped, plan, before, pull, query="steps")

    def moved(order: int) -> float:
        """How far one record moves the sum; the noise is the same."""
        grids = [last(X, order).arrays["grid"] for X in (everybody, without)]
        return float(np.linalg.norm((grids[0] - grids[1]) * release.scale))

    assert 0 < moved(1) <= release.charged_zero_out
    refusal = last(without, -1)
    assert refusal.kind == "refuse"
    assert "other records" in said(refusal)["refused"]
    monkeypatch.setattr(Block, "digest", lambda _: b"")  # planted: a memory of whatever records
    assert moved(-1) > release.charged_zero_out


def test_two_processes_of_a_holder_have_one_memory(small_plan: MakePlan, tmp_path: Path) -> None:
    """Whoever is asked next goes on from the last release in the ledger, or it would be a step from older duals."""
    plan = small_plan(**SCD | {"options": {"rounds": 6, "rate": 1.0}})
    weights = [np.full(4, 0.5 * t) for t in range(6)]
    found = []
    for processes in (1, 2):
        account = Ledger.create(tmp_path / f"{processes}.db").open("rows", epsilon=1.0, delta=1e-5)
        parties = [party_of(account=account) for _ in range(processes)]
        for party in parties:
            propose(party, plan)
        answers = []
        for t in range(6):
            party = parties[t % processes]
            party.run.gate._randomness = SeededRandomness(7, str(t))  # type: ignore[union-attr]
            answers.append(ask(party, plan, t, weights[t], query="steps").arrays["grid"].tolist())
        found.append(answers)
    assert found[0] == found[1]


def test_a_damaged_memory_is_a_lost_one(small_plan: MakePlan, tmp_path: Path) -> None:
    account, plan = account_of(tmp_path), small_plan(**SCD)
    party = party_of(account=account)
    propose(party, plan)
    ask(party, plan, 0, query="steps")
    (path,) = account.path.with_name(f"{account.path.name}.memory").iterdir()
    whole = path.read_bytes()
    for data in (b"", b"PK\x03\x04", whole[:-30], whole.replace(b"\0" * 64, b"\1" * 64, 1)):
        path.write_bytes(data)
        assert "between rounds is lost" in said(propose(party_of(account=account), plan))["refused"]
    path.write_bytes(whole)
    assert propose(party_of(account=account), plan).kind == "accept"


@pytest.mark.parametrize("start", [CD, GREEDY, PRIMAL], ids=["cd", "greedy-cd", "scd-primal"])
def test_a_memory_that_can_be_made_again_is(start: dict[str, Any], small_plan: MakePlan, tmp_path: Path) -> None:
    plan = small_plan(**central(start))
    form = algorithms.of(plan)
    found = []
    for stop in (None, 1, 4):
        account = Ledger.create(tmp_path / f"{stop}.db").open("rows", epsilon=1.0, delta=1e-5)
        randomness = SeededRandomness(8)  # it goes on where it was
        wire = InProcess([party_of(account=account, randomness=randomness)])

        def restart(
            done: int, _total: int, wire: Any = wire, account: Any = account, stop: Any = stop, **_: Any
        ) -> None:
            if done == stop:
                wire._endpoints["anna"] = party_of(account=account, randomness=wire._endpoints["anna"].randomness)

        solution, _ = Coordinator(wire).run(plan, form, restart)
        found.append(solution.weights)
        assert account.balance().plans == 1
    for weights in found[1:]:
        np.testing.assert_allclose(weights, found[0], rtol=1e-9, atol=1e-12)


class Restarting(InProcess):
    """Two holders of rows with ledgers; something befalls anna at the `at`-th question of a run."""

    def __init__(self, folder: Path, fate: str, at: int) -> None:
        self.fate, self.at, self.questions, self.said = fate, at, itertools.count(), list[Frame]()
        self.accounts = {
            name: Ledger.create(folder / f"{fate}-{at}-{name}.db").open("rows", epsilon=1.0, delta=1e-5)
            for name in ("anna", "ben")
        }
        super().__init__(
            party_of(name, count, account=self.accounts[name]) for name, count in (("anna", 40), ("ben", 60))
        )

    def exchange(self, messages: Any) -> dict[str, bytes]:
        frame = decode(messages["anna"]) if "anna" in messages else None
        if frame is not None and frame.kind == "ask":
            self.said.append(frame)
            if next(self.questions) == self.at:
                return self._befall(messages, frame)
        return super().exchange(messages)

    def _befall(self, messages: Any, frame: Frame) -> dict[str, bytes]:
        if self.fate == "the answer is lost":
            super().exchange(messages)  # released and stored; then the party is gone, and is asked once more
        if self.fate == "another process is first":
            other = encode(Frame("answer", 0, frame.plan, frame.round, frame.query, {"grid": OTHERS[frame.query]}))
            self.accounts["anna"].release(frame.plan.hex(), frame.round, frame.query, other)
            with pytest.MonkeyPatch.context() as late:
                late.setattr(self._endpoints["anna"].run.gate, "_stored", lambda *_: None)  # type: ignore[attr-defined]
                return super().exchange(messages)
        self.restart()
        return super().exchange(messages)

    def restart(self) -> None:
        """Memory is lost; the ledger is not, nor, for comparison, the state of the generator."""
        old: Any = self._endpoints["anna"]
        new = self._endpoints["anna"] = party_of(account=self.accounts["anna"], randomness=old.randomness)
        new.identify(old.identity)


WHITENED: dict[str, Any] = {"algorithm": "whitened", "options": {"rounds": 3}}
OTHERS = {"gram": np.arange(10), "length": np.array([7]), "gradient": np.arange(4), "rescale": np.arange(2)}
OTHERS |= {"score": np.array([7]), "square": np.array([7])}
QUESTIONS = 1 + 1 + 3 + 1 + 1 + 12  # gram, length, gradients, score, square, rescales


@pytest.mark.slow
@pytest.mark.parametrize("fate", ["it is restarted", "the answer is lost"])
def test_a_party_that_forgot_its_whitened_rows_is_told_what_they_are_made_of(
    fate: str, small_plan: MakePlan, tmp_path: Path
) -> None:
    """Wherever it is stopped: the same answers, the same model, and every release once."""
    plan = small_plan(**WHITENED)
    form, found = algorithms.of(plan), []
    for at in (-1, *range(QUESTIONS)):
        wire = Restarting(tmp_path, fate, at)
        coordinator = Coordinator(wire, record=True)
        solution, count = coordinator.run(plan, form)
        assert count == QUESTIONS
        seen = [
            (said.round, said.sender, said.payload.tolist())
            for said in coordinator.transcript or []
            if plan.has(said.name)
        ]
        assert len(seen) == 2 * QUESTIONS
        found.append((solution.weights.tolist(), seen))
        assert found[-1] == found[0], f"stopped at question {at}"
        again = len(wire.said) - QUESTIONS  # an answer from the ledger makes no rows: the next question finds them lost
        assert again == 0 if at < 0 else again == 1 if fate == "it is restarted" else again in (1, 2)
        for account in wire.accounts.values():
            assert account.balance().plans == 1
            assert sum(entry.kind == "release" for entry in account.history()) == QUESTIONS


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 2, 3, 7, 9])
def test_a_party_that_another_process_outran_is_told_too(at: int, small_plan: MakePlan, tmp_path: Path) -> None:
    """A draw did not leave: what the party kept is dropped and made again."""
    plan = small_plan(**WHITENED)
    wire = Restarting(tmp_path, "another process is first", at)
    coordinator = Coordinator(wire, record=True)
    coordinator.run(plan, algorithms.of(plan))
    assert coordinator.transcript is not None
    asked = next(said for said in coordinator.transcript if plan.has(said.name) and said.round == at)
    release = plan.release(asked.name)
    assert (asked.payload / release.scale).round().tolist() == OTHERS[asked.name].tolist()
    assert [number for number, times in Counter(frame.round for frame in wire.said).items() if times > 1] == [at + 1]
    assert sum(entry.kind == "release" for entry in wire.accounts["anna"].history()) == QUESTIONS


@pytest.mark.slow
def test_any_round_of_whitened_rows_tells_both_or_neither(small_plan: MakePlan, tmp_path: Path) -> None:
    """And whatever is told, what was released stays: another P gets the stored bytes."""
    plan, party = small_plan(**central(WHITENED)), party_of(account=account_of(tmp_path))
    first = plan.release("gradient").first
    propose(party, plan)
    point = {"point": np.ones(4), "offset": np.zeros(1), "slope": np.ones(1)}
    both = {"cut": np.ones(1), "projection": np.ones(10, dtype=np.int64), "unit": np.ones(1)}

    def gradient(number: int, **told: Any) -> Frame:
        return send(party, "ask", plan=plan.digest, round=number, query="gradient", arrays={**point, **told})

    assert gradient(first + 1).kind == "unknown-plan"
    for name, array in both.items():
        assert gradient(first + 1, **{name: array}).kind == "refuse"
    said_first = gradient(first + 1, **both)
    assert said_first.kind == "answer"
    other = gradient(first + 1, **{**both, "projection": np.full(10, 3)})
    np.testing.assert_array_equal(other.arrays["grid"], said_first.arrays["grid"])
    assert gradient(first + 2).kind == "answer"


def test_a_repeated_question_moves_no_dual_twice(small_plan: MakePlan, tmp_path: Path) -> None:
    """Two parties with one randomness: the one that is asked everything thrice ends where the other ends."""
    plan = small_plan(**SCD)
    answers: list[list[list[int]]] = []
    for repeats in (1, 3):
        account = Ledger.create(tmp_path / f"{repeats}.db").open("rows", epsilon=1.0, delta=1e-5)
        party = party_of(account=account)
        propose(party, plan)
        weights = [np.full(4, 0.1 * t) for t in range(8)]
        given = [[ask(party, plan, t, weights[t], query="steps") for _ in range(repeats)][-1] for t in range(8)]
        answers.append([frame.arrays["grid"].tolist() for frame in given])
    assert answers[0] == answers[1]


def test_two_queries_of_one_round_are_stored_apart(small_plan: MakePlan, tmp_path: Path) -> None:
    plan = small_plan(**central(GREEDY))
    for account in (None, account_of(tmp_path)):
        party = party_of(account=account)
        propose(party, plan)
        arrays = {"curvatures": np.ones(4), "index": np.array([2])}

        def taken(query: str, arrays: dict[str, Any] = arrays) -> dict[str, Any]:
            return {name: arrays[name] for name in query_of(plan, query).takes_at(1) if name in arrays}

        first = [ask(party, plan, 1, query=query, **taken(query)) for query in ("choice", "coordinates")]
        assert [frame.kind for frame in first] == ["answer", "answer"]
        assert [frame.arrays["grid"].shape for frame in first] == [(1,), (1,)]
        arrays["index"] = np.array([0])
        again = [ask(party, plan, 1, np.ones(4), query=query, **taken(query)) for query in ("choice", "coordinates")]
        assert [frame.arrays["grid"].tolist() for frame in again] == [frame.arrays["grid"].tolist() for frame in first]
        if account is not None:
            keys = {(entry.round, entry.query) for entry in account.history() if entry.kind == "release"}
            assert keys == {(1, "choice"), (1, "coordinates")}


def test_a_choice_is_for_the_holder_whose_turn_it_is(small_plan: MakePlan) -> None:
    plan = small_plan(**GREEDY)
    parties = [party_of(), party_of("ben", 60)]
    for party in parties:
        propose(party, plan)
    for round_ in (1, 2, 3):
        kinds = [ask(party, plan, round_, query="choice", curvatures=np.ones(4)).kind for party in parties]
        assert kinds == [["answer", "refuse"], ["refuse", "answer"]][(round_ - 1) % 2]


def test_rounds_are_those_the_text_says(small_plan: MakePlan) -> None:
    plan = small_plan(**GREEDY)
    coordinator = Coordinator(InProcess([party_of(), party_of("ben", 60)]), record=True)
    solution, rounds = coordinator.run(plan, algorithms.of(plan))
    assert solution.weights.shape == (4,)
    assert rounds == 1 + 8 + 8
    assert coordinator.asked == {"curvatures": 1, "choice": 8, "coordinates": 8}
    seen = [(m.round, m.name, m.sender) for m in coordinator.transcript or [] if m.name in plan_queries(plan)]
    assert seen[:2] == [(0, "curvatures", "anna"), (0, "curvatures", "ben")]
    for t in range(8):
        chooser = ("anna", "ben")[t % 2]
        place = 2 + 3 * t
        assert seen[place : place + 3] == [
            (1 + t, "choice", chooser),
            (1 + t, "coordinates", "anna"),
            (1 + t, "coordinates", "ben"),
        ]
    places = [m.payload for m in coordinator.transcript or [] if m.name == "choice"]
    assert all(payload.shape == (1,) and payload[0] in range(4) for payload in places)


def plan_queries(plan: Plan) -> set[str]:
    return {release.query for release in plan.releases}


def test_a_limit_on_epsilon_counts_choices(small_plan: MakePlan) -> None:
    plan = small_plan(**GREEDY)
    events = events_of(plan, "zero-out", "anna")
    assert sorted(type(event).__name__ for event in events) == ["Gaussian", "Gaussian", "Selection"]
    cost = epsilon_of(events, 0.99e-5, "zero-out")
    assert 0.97 < cost <= 1.0 + 1e-9
    assert propose(party_of(policy=Policy(max_epsilon=cost * 1.001)), plan).kind == "accept"
    refusal = propose(party_of(policy=Policy(max_epsilon=cost * 0.999)), plan)
    assert f"the plan costs epsilon {cost:.4g} at delta 1e-05" in said(refusal)["refused"]


def test_an_account_of_gaussians_takes_no_plan_with_choices(small_plan: MakePlan, tmp_path: Path) -> None:
    account = Ledger.create(tmp_path / "ledger.db").open("rows", 5.0, 1e-5, composition="gaussian")
    party = party_of(account=account)
    assert propose(party, small_plan(**CD)).kind == "accept"
    for query in ("check", ""):
        refusal = propose(party, small_plan(**GREEDY), query=query)
        assert said(refusal)["error"] == "budget"
        assert "takes plans of Gaussian releases alone; the plan has a Selection" in said(refusal)["refused"]
    assert account.balance().plans == 1


def test_a_spent_budget_is_a_budget_error_at_the_coordinator(small_plan: MakePlan, tmp_path: Path) -> None:
    account = account_of(tmp_path, epsilon=1.5)
    wire = InProcess([party_of(account=account), party_of("ben", 60)])
    form = algorithms.of(small_plan())
    Coordinator(wire).run(small_plan(), form)
    with pytest.raises(BudgetError, match=r"asks for epsilon 1 at.*is left.*would fit"):
        Coordinator(wire).run(small_plan(run="second"), form)
    assert account.balance().plans == 1


@pytest.mark.parametrize("epsilon", [0.5, 1.5])
def test_what_cannot_be_paid_makes_nobody_prepare_the_rows_of_a_data_set(
    epsilon: float, small_plan: MakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that proposes a plan without asking first costs the holder no reading of its files."""
    read, pieces = list[int](), Dataset.pieces
    monkeypatch.setattr(Dataset, "pieces", lambda *told: read.append(1) or pieces(*told))
    data = Dataset.from_arrays(*rows(100))
    party = Party("anna", data, None, account=account_of(tmp_path, epsilon=epsilon), randomness=SeededRandomness(1))
    answer = propose(party, small_plan(split="central", parties=(("anna", 100),)))
    assert (answer.kind, len(read)) == (("refuse", 0) if epsilon < 1 else ("accept", 1))


def test_a_plan_that_is_proposed_again_and_again_makes_no_one_prepare_for_ever(
    small_plan: MakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is charged once, and a coordinator that ends it and proposes it again asks for nothing that is paid for."""
    read, pieces = list[int](), Dataset.pieces
    monkeypatch.setattr(Dataset, "pieces", lambda *told: read.append(1) or pieces(*told))
    account, plan = account_of(tmp_path), small_plan(split="central", parties=(("anna", 100),))
    party = Party("anna", Dataset.from_arrays(*rows(100)), None, account=account, randomness=SeededRandomness(1))
    answers = []
    for _ in range(MOST_PREPARED + 3):
        answers.append(propose(party, plan).kind)
        send(party, "done", plan=plan.digest)
    assert answers == ["accept"] * MOST_PREPARED + ["refuse"] * 3
    assert len(read) == MOST_PREPARED
    assert account.balance().plans == 1


def test_an_unusable_ledger_is_told_to_the_holder_alone(
    small_plan: MakePlan, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    account = account_of(tmp_path)
    party = party_of(account=account)
    account.path.write_bytes(b"no ledger at all, and long enough to be read as one" * 100)
    with caplog.at_level(logging.DEBUG):
        answer = propose(party, small_plan())
    assert said(answer) == {
        "error": "ledger",
        "refused": "the party's ledger cannot be used; its own log has the reason",
    }
    assert str(tmp_path) not in answer.text
    assert {record.name for record in caplog.records} == {"sottovoce.holder"}
    wire = InProcess([party, party_of("ben", 60)])
    with pytest.raises(LedgerError, match="its own log has the reason"):
        Coordinator(wire).run(small_plan(), algorithms.of(small_plan()))


# Policy.


def test_a_limit_on_epsilon_is_on_all_of_a_fit(small_plan: MakePlan) -> None:
    """Which may be charged with the first of its plans."""
    plan = small_plan()
    for mu, kind in ((0.05, "accept"), (5.0, "refuse")):
        part = plan.model_copy(update={"within": {"name": "a" * 32, "mu": mu}})
        answer = propose(party_of(policy=Policy(max_epsilon=3.0)), part)
        assert answer.kind == kind
    assert "the plan, with all of its fit, costs epsilon" in answer.text


def test_a_limit_on_epsilon_is_on_what_the_plan_releases(small_plan: MakePlan) -> None:
    strict = party_of(policy=Policy(max_epsilon=1.0))
    assert propose(strict, small_plan(epsilon=1.0)).kind == "accept"
    modest = small_plan(epsilon=3.0).model_copy(update={"epsilon": 0.5})  # a claim is no cost
    refusal = propose(party_of(policy=Policy(max_epsilon=1.0)), modest)
    assert "the plan costs epsilon 3 at delta 1e-05" in said(refusal)["refused"]


def test_a_large_delta_does_not_make_a_plan_cheap(small_plan: MakePlan) -> None:
    plan = small_plan(epsilon=1.0, delta=0.9)
    assert epsilon_of([plan.releases[0].event("zero-out")], 0.9, "zero-out") <= 1.0
    refusal = propose(party_of(policy=Policy(max_epsilon=1.0)), plan)
    assert "at delta 0.01" in said(refusal)["refused"]
    chosen = Policy(max_epsilon=1.0, max_delta=0.9)
    assert propose(party_of(policy=chosen), plan).kind == "accept"


def test_a_limit_on_delta(small_plan: MakePlan) -> None:
    refusal = propose(party_of(policy=Policy(max_delta=1e-6)), small_plan())
    assert "delta 1e-05 is above this party's limit 1e-06" in said(refusal)["refused"]


def test_bounds_of_the_holder_are_those_of_the_plan(small_plan: MakePlan) -> None:
    bounds = Bounds.declare(row_norm=1.0)
    assert propose(party_of(policy=Policy(bounds=bounds)), small_plan()).kind == "accept"
    refusal = propose(party_of(policy=Policy(bounds=Bounds.declare(row_norm=2.0))), small_plan())
    assert "bounds are not the ones this party declared" in said(refusal)["refused"]


@pytest.mark.parametrize("algorithm", ["gradient", "newton", "sgd"])
def test_a_run_without_privacy_needs_the_holders_leave(algorithm: str, small_plan: MakePlan, tmp_path: Path) -> None:
    plan = small_plan(algorithm, epsilon=math.inf)
    refusal = propose(party_of(), plan)
    assert "without noise" in said(refusal)["refused"]
    assert propose(party_of(policy=Policy(allow_without_privacy=True)), plan).kind == "accept"
    paid = party_of(policy=Policy(allow_without_privacy=True), account=account_of(tmp_path))
    assert said(propose(paid, plan))["error"] == "budget"


def test_leave_that_is_withdrawn_ends_the_run(small_plan: MakePlan) -> None:
    party, plan = party_of(), small_plan(epsilon=math.inf)
    party.permit(without_privacy=True)
    assert propose(party, plan).kind == "accept"
    assert ask(party, plan).kind == "answer"
    party.permit(without_privacy=False)
    assert ask(party, plan, 1).kind == "unknown-plan"
    assert propose(party, plan).kind == "refuse"


# Attacks: for each, what was drawn must be covered by what was charged.


@dataclass
class Draws:
    """Every draw of the gate: its rate, its noise over the query's sensitivity, and the ratio of the relations."""

    seen: list[tuple[float | None, float, float]] = field(default_factory=list)
    chosen: list[tuple[float, float]] = field(default_factory=list)
    plain: int = 0
    rate: float | None = None
    unit: float = 0.0
    ratio: float = 0.0

    def epsilon(self, relation: Relation) -> float:
        """What the draws cost at delta 1e-5; what the grid adds is left out."""
        events: list[Event] = [
            Gaussian((ratio if relation == "replace-one" else 1.0) / noise)
            if rate is None
            else PoissonGaussian(rate, noise, 1)
            for rate, noise, ratio in self.seen
        ]
        events += [
            Selection(((ratio if relation == "replace-one" else 1.0) / noise) ** 2 / 2) for noise, ratio in self.chosen
        ]
        return epsilon_of(events, 1e-5, relation)


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> Draws:
    found = Draws()

    def gaussian(scale: Any, size: int, randomness: Any) -> Any:
        found.seen.append((found.rate, float(np.max(scale)) * found.unit, found.ratio))
        return rounded_gaussian(scale, size, randomness)

    def sample(count: int, rate: float, randomness: Any) -> Any:
        found.rate = rate
        return poisson_sample(count, rate, randomness)

    def choose(scores: Any, rate: float, randomness: Any) -> Any:
        found.chosen.append((found.unit / rate, found.ratio))
        return select(scores, rate, randomness)

    original = gate_module.Gate.release

    def remember(self: Any, query: Query, round: Round) -> Any:
        release = self._plan.release(query.name) if self._plan.has(query.name) else None
        once = query.sensitivity("zero-out")
        step = release.step if release and release.mechanism == "gaussian" else 1.0
        found.rate, found.unit = None, step / once
        found.ratio = query.sensitivity("replace-one") / once
        answer = original(self, query, round)
        found.plain += "value" in answer.arrays
        return answer

    monkeypatch.setattr(gate_module, "rounded_gaussian", gaussian)
    monkeypatch.setattr(gate_module, "poisson_sample", sample)
    monkeypatch.setattr(gate_module, "select", choose)
    monkeypatch.setattr(gate_module.Gate, "release", remember)
    return found


QUERIES = ("gradient", "gram", "record", "loss", "curvature")
WEIGHTS = {"weights": np.zeros(4)}


def drain(party: Party, fields: dict[str, Any]) -> str:
    """Propose what the fields say and ask for everything, twice and out of order; the kind of the first answer."""
    text, queries, plan = json.dumps(fields), dict[str, Query](), None
    try:
        plan = Plan.from_json(text)
        queries = queries_of(algorithms.of(plan), plan, party.name)
    except Exception:  # whatever is wrong with it, the party must say so itself
        queries = {}
    digest = bytes(32) if plan is None else plan.digest
    first = send(party, "plan", plan=digest, text=text)
    some = (-1, 0, 1, 5, 2**31 - 1)  # a plan that was refused is not known, in whatever round
    for _ in range(2):
        for round_ in (*range(-4, 30), 10**6, 2**31 - 1) if first.kind == "accept" else some:
            for query in {**dict.fromkeys(QUERIES), **queries}:
                told = told_of(plan, queries[query], round_) if plan and query in queries else WEIGHTS
                send(party, "ask", plan=digest, round=round_, query=query, arrays=told)
        send(party, "done", plan=digest)
        send(party, "plan", plan=digest, text=text)
    return first.kind


def told_of(plan: Plan, query: Query, number: int) -> dict[str, Any]:
    """What the query takes in that round, as far as its own words and the public coin say."""
    try:
        told = {name: wanted.example() for name, wanted in query.takes_at(number).items()}
        if query.name == "record" and 0 <= number < plan.rounds:
            told["index"] = named_records(plan)[1][number : number + 1]
    except (IndexError, ValueError):  # a round that the plan does not have
        return {}
    return told


def changed(plan: Plan, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(plan.to_json())
    return fields | changes


def release_changed(plan: Plan, number: int = 0, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(plan.to_json())
    fields["releases"][number] |= changes
    return fields


def cheap_then_dear(plan: Plan, **changes: Any) -> dict[str, Any]:
    """The same release twice: the first would be charged, the second used."""
    fields: dict[str, Any] = json.loads(plan.to_json())
    fields["releases"].append(fields["releases"][0] | changes)
    return fields


def numbers_changed(plan: Plan, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(plan.to_json())
    numbers = fields["numbers"] | changes
    fields["numbers"] = {name: value for name, value in numbers.items() if value is not None}
    return fields


def another_form(plan: Plan, algorithm: str, form: str, numbers: dict[str, Any], **release: Any) -> dict[str, Any]:
    """The same releases, said to be of another form, with numbers that this form takes."""
    return release_changed(plan, **release) | {"algorithm": algorithm, "form": form, "numbers": numbers}


# name: (the plan it starts from, what the coordinator makes of it, whether the party may accept it)
Attack = tuple[dict[str, Any], Callable[[Plan], dict[str, Any]], bool]
ATTACKS: dict[str, Attack] = {
    "nothing changed": ({}, changed, True),
    "sgd, nothing changed": (SGD, changed, True),
    "one party, nothing changed": (ONE, changed, True),
    "newton, nothing changed": ({"algorithm": "newton"}, changed, True),
    "zero-out charged too little": ({}, lambda p: release_changed(p, charged_zero_out=1.0), False),
    "replace-one charged too little": ({}, lambda p: release_changed(p, charged_replace_one=1.0), False),
    "both charged too little": (
        {},
        lambda p: release_changed(p, charged_zero_out=0.01, charged_replace_one=0.01, std=1.0),
        False,
    ),
    "a negative charge": ({}, lambda p: release_changed(p, charged_zero_out=-5.0), False),
    "a NaN charge": ({}, lambda p: release_changed(p, charged_zero_out=math.nan), False),
    "little noise": ({}, lambda p: release_changed(p, std=0.5), False),
    "hardly any noise": ({}, lambda p: release_changed(p, std=1e-9), False),
    "subnormal noise": ({}, lambda p: release_changed(p, std=5e-324), False),
    "noise below the grid": ({}, lambda p: release_changed(p, std=0.4, step=1.0), False),
    "NaN noise": ({}, lambda p: release_changed(p, std=math.nan), False),
    "infinite noise": ({}, lambda p: release_changed(p, std=math.inf), False),
    "negative noise": ({}, lambda p: release_changed(p, std=-1.0), False),
    "no noise": ({}, lambda p: release_changed(p, std=0.0), False),
    "no noise on one of two": ({"algorithm": "newton"}, lambda p: release_changed(p, std=0.0), False),
    "no noise on the other of two": ({"algorithm": "newton"}, lambda p: release_changed(p, 1, std=0.0), False),
    "no noise, sampled": (SGD, lambda p: release_changed(p, std=0.0), False),
    "no noise, named": (PAPER, lambda p: release_changed(p, std=0.0), False),
    "a step that is no power of two": ({}, lambda p: release_changed(p, step=0.3), False),
    "a step of zero": ({}, lambda p: release_changed(p, step=0.0), False),
    "a negative step": ({}, lambda p: release_changed(p, step=-0.5), False),
    "a step that overflows": ({}, lambda p: release_changed(p, step=2.0**-70), False),
    "a subnormal step": ({}, lambda p: release_changed(p, step=5e-324), False),
    "a coarse step, not charged": ({}, lambda p: release_changed(p, step=64.0), False),
    "a small rate": (SGD, lambda p: release_changed(p, rate=1e-9), True),
    "a rate where none was": ({}, lambda p: release_changed(p, rate=1e-3), True),
    "a rate and no noise to speak of": (SGD, lambda p: release_changed(p, rate=0.01, std=1e-3), False),
    "no rate": (SGD, lambda p: release_changed(p, rate=None), False),
    "a rate of zero": (SGD, lambda p: release_changed(p, rate=0.0), False),
    "a negative rate": (SGD, lambda p: release_changed(p, rate=-0.5), False),
    "a NaN rate": (SGD, lambda p: release_changed(p, rate=math.nan), False),
    "a rate above one": (SGD, lambda p: release_changed(p, rate=7.0), False),
    "a rate on a named record": (PAPER, lambda p: release_changed(p, rate=1e-9), False),
    "more rounds than were paid": ({}, lambda p: changed(p, rounds=20), True),
    "more releases": ({}, lambda p: release_changed(p, count=20), False),
    "a great many releases": ({}, lambda p: release_changed(p, count=2**31 - 1), False),
    "more than can be counted": ({}, lambda p: release_changed(p, count=10**400), False),
    "a negative count": ({}, lambda p: release_changed(p, count=-5), False),
    "no count": ({}, lambda p: release_changed(p, count=0), False),
    "a release before the first round": ({}, lambda p: release_changed(p, first=-4), False),
    "a release that starts late": ({}, lambda p: release_changed(p, first=20), True),
    "two releases of one name": ({}, lambda p: cheap_then_dear(p, std=1e-3), False),
    "two, one after the other": ({}, lambda p: cheap_then_dear(p, first=5), False),
    "two, sampled": (SGD, lambda p: cheap_then_dear(p, std=1e-3), False),
    "two, the second without noise": (SGD, lambda p: cheap_then_dear(p, std=0.0), False),
    "two, named": (PAPER, lambda p: cheap_then_dear(p, std=1e-3), False),
    "one party, before the first round": (ONE, lambda p: release_changed(p, first=-8, count=16), False),
    "one party, beyond the last round": (ONE, lambda p: release_changed(p, count=16), True),
    "one party, fewer rounds in the plan": (ONE, lambda p: changed(p, rounds=2), True),
    "one party, more rounds in the plan": (ONE, lambda p: changed(p, rounds=16), True),
    "one party, more rounds and more releases": (ONE, lambda p: release_changed(p, count=30) | {"rounds": 30}, False),
    "one party under several names": (ONE, lambda p: changed(p, parties=TWINS), False),
    "named, under several names": (PAPER, lambda p: changed(p, parties=TWINS), False),
    "named, before the first round": (PAPER, lambda p: release_changed(p, first=-8, count=16), False),
    "named, beyond the last round": (PAPER, lambda p: release_changed(p, count=16), True),
    "all at once where one was drawn": (ONE, lambda p: numbers_changed(p, schedule="all"), True),
    "one party where all were": (SGD, lambda p: numbers_changed(p, schedule="one-party"), True),
    "another schedule": (SGD, lambda p: numbers_changed(p, schedule="nobody"), False),
    "a number of no form": (ONE, lambda p: numbers_changed(p, one_party=0.0), False),
    "no number": (SGD, lambda p: numbers_changed(p, schedule=None), False),
    "numbers in a list": (SGD, lambda p: changed(p, numbers=[[name, 1.0] for name in p.numbers.model_dump()]), False),
    "records named in a sampled plan": (SGD, lambda p: changed(p, form="published"), False),
    "records named, by their numbers": (
        SGD,
        lambda p: another_form(p, "sgd", "published", {"slope_bound": 1.0, "radius": 1.0}),
        False,
    ),
    "records named, at the price of a sum": (
        SGD,
        lambda p: another_form(p, "sgd", "published", {"slope_bound": 1.0, "radius": 1.0}, query="record"),
        False,
    ),
    "a sum at the price of named records": (
        PAPER,
        lambda p: another_form(
            p, "sgd", "private", {"slope_bound": 1.0, "step": 1.0, "rate": 1.0, "schedule": "all"}, query="gradient"
        ),
        True,
    ),
    "an unknown form": ({}, lambda p: changed(p, form="secret"), False),
    "no form": ({}, lambda p: {name: value for name, value in changed(p).items() if name != "form"}, False),
    "a form without privacy": ({"algorithm": "newton"}, lambda p: changed(p, form="exact"), False),
    "a form without privacy, with noise": (
        {},
        lambda p: another_form(p, "newton", "exact", {"slope_bound": 1.0}),
        False,
    ),
    "a form without privacy, and without noise": (
        {},
        lambda p: another_form(p, "newton", "exact", {"slope_bound": 1.0}, std=0.0),
        False,
    ),
    "an exact sum with noise": (
        {},
        lambda p: another_form(p, "newton", "exact", {"slope_bound": 1.0}, query="loss"),
        False,
    ),
    "no slope bound": ({}, lambda p: numbers_changed(p, slope_bound=None), False),
    "a NaN slope bound": ({}, lambda p: numbers_changed(p, slope_bound=math.nan), False),
    "an infinite slope bound": ({}, lambda p: numbers_changed(p, slope_bound=math.inf), False),
    "a larger slope bound": ({}, lambda p: numbers_changed(p, slope_bound=100.0), False),
    "a negative slope bound": ({}, lambda p: numbers_changed(p, slope_bound=-1.0), False),
    "a claim of no privacy": ({}, lambda p: changed(p, epsilon=math.inf), True),
    "a small claim": ({}, lambda p: release_changed(p, std=1.0) | {"epsilon": 1e-3}, False),
    "the paper's word": ({}, lambda p: release_changed(p, std=1.0) | {"calibration": "paper"}, False),
    "delta near one": ({}, lambda p: release_changed(p, std=0.5) | {"delta": 0.999}, False),
    "NaN delta": ({}, lambda p: changed(p, delta=math.nan), False),
    "the other relation": ({"relation": "replace-one"}, lambda p: changed(p, relation="zero-out"), True),
    "an unknown relation": ({}, lambda p: changed(p, relation="none"), False),
    "another count of records": ({}, lambda p: changed(p, parties=[["anna", 39], ["ben", 60]]), False),
    "another party": ({}, lambda p: changed(p, parties=[["carl", 40]]), False),
    "nobody": ({}, lambda p: changed(p, parties=[]), False),
    "a party of less than nobody": ({}, lambda p: changed(p, parties=[["anna", 40], ["ben", -39]]), False),
    "a party of all mankind": ({}, lambda p: changed(p, parties=[["anna", 40], ["ben", 10**30]]), False),
    "many records": ({}, lambda p: changed(p, parties=[["anna", 40], ["ben", 10**4]]), True),
    "more records than a policy prices": ({}, lambda p: changed(p, parties=[["anna", 40], ["ben", 2**40]]), False),
    "other features": ({}, lambda p: changed(p, features=2), False),
    "no bounds": ({}, lambda p: changed(p, bounds={}), False),
    "a NaN bound": ({}, lambda p: changed(p, bounds={"row_norm": math.nan}), False),
    "a tiny bound": ({}, lambda p: changed(p, bounds={"row_norm": 1e-100}), True),
    "no classes": ({}, lambda p: changed(p, classes=None), False),
    "lists for classes": ({}, lambda p: changed(p, classes=[[0] * 40, [1] * 40]), False),
    "an unknown algorithm": ({}, lambda p: changed(p, algorithm="identity"), False),
    "another algorithm": ({}, lambda p: changed(p, algorithm="newton"), False),
    "another algorithm, by its numbers": (
        {},
        lambda p: another_form(p, "newton", "private", {"slope_bound": 1.0, "damping": 1.0}),
        False,
    ),
    "a release of another algorithm": ({}, lambda p: release_changed(p, query="gram"), False),
    "a release of no algorithm": ({}, lambda p: release_changed(p, query="rows"), False),
    "an exact query": (
        {"algorithm": "newton"},
        lambda p: release_changed(p, query="loss", charged_zero_out=math.inf, charged_replace_one=math.inf),
        False,
    ),
    "an unknown loss": ({}, lambda p: changed(p, loss={"name": "identity"}), False),
    "a NaN in the loss": (
        {},
        lambda p: changed(p, loss={"name": "smoothed_hinge", "parameters": {"smoothing": math.nan}}),
        False,
    ),
    "a steep loss": (
        {},
        lambda p: changed(p, loss={"name": "smoothed_hinge", "parameters": {"smoothing": 1e-300}}),
        True,
    ),
    "a split by columns": (
        {"parties": (("anna", 40), ("ben", 40)), "features": 5},
        lambda p: changed(p, split="columns", columns=[3, 2], norms=[0.6, 0.8]),
        False,
    ),
    "columns of nobody": ({}, lambda p: changed(p, split="columns"), False),
    "entry bounds of other columns": ({}, lambda p: changed(p, bounds={"entry_bound": [1.0, 1.0]}), False),
    "labels held by another": (BY_COLUMNS | {"labels": "held", "label_party": 1, "norms": (0.6, 0.8)}, changed, False),
    "another format": ({}, lambda p: changed(p, format=99), False),
    "a field more": ({}, lambda p: changed(p, print_rows=True), False),
    "no releases": ({}, lambda p: changed(p, releases=[]), False),
    "columns for a gradient": ({}, lambda p: changed(p, layout="columns"), False),
    "columns for a Gram matrix": ({"algorithm": "newton"}, lambda p: changed(p, layout="columns"), False),
    "columns for dual steps": (SCD, lambda p: changed(p, layout="columns"), False),
    "an unknown layout": ({}, lambda p: changed(p, layout="diagonal"), False),
    "a choice in place of a gradient": ({}, lambda p: release_changed(p, mechanism="selection"), False),
    "an unknown mechanism": ({}, lambda p: release_changed(p, mechanism="laplace"), False),
    "a number nobody asked for": ({}, lambda p: numbers_changed(p, squares=[1.0]), False),
    "a choice by noisy maximum": ({}, lambda p: release_changed(p, mechanism="noisy-max"), False),
    "a gradient that is derived": ({}, lambda p: release_changed(p, mechanism="derived"), False),
    "a gradient that is derived, without noise": (
        {},
        lambda p: release_changed(p, mechanism="derived", std=0.0),
        False,
    ),
    "a gradient that is kept": ({}, lambda p: release_changed(p, mechanism="kept", count=1), False),
    "batches that follow nothing": (central({}), lambda p: release_changed(p, batches=4), False),
    **{f"{start['algorithm']}, nothing changed": (start, changed, True) for start in (CD, GREEDY, SCD, LOTS, PRIMAL)},
    **{
        f"{start['algorithm']}, rows in place of columns": (start, lambda p: changed(p, layout="rows"), False)
        for start in (CD, GREEDY, PRIMAL)
    },
    **{
        f"{start['algorithm']}, a rate it cannot have": (start, lambda p: release_changed(p, -1, rate=1e-3), False)
        for start in (CD, GREEDY, PRIMAL, LOTS)
    },
    "squares of a sample": (CD, lambda p: release_changed(p, rate=1e-3), False),
    "cd, more steps than were paid": (CD, lambda p: numbers_changed(p, inner=24), True),
    "cd, more steps in a walk": (
        CD | {"split": "central", "parties": (("anna", 40),)},
        lambda p: numbers_changed(p, stride=24),
        False,
    ),
    "cd, no noise on the squares": (CD, lambda p: release_changed(p, std=0.0), False),
    "greedy-cd, more choices": (GREEDY, lambda p: release_changed(p, 1, count=40), False),
    "greedy-cd, a great many choices": (GREEDY, lambda p: release_changed(p, 1, count=2**31 - 1), False),
    "greedy-cd, a choice priced as a Gaussian": (GREEDY, lambda p: release_changed(p, 1, mechanism="gaussian"), False),
    "greedy-cd, a step priced as a choice": (GREEDY, lambda p: release_changed(p, 2, mechanism="selection"), False),
    "greedy-cd, a choice without noise": (GREEDY, lambda p: release_changed(p, 1, std=0.0), False),
    "greedy-cd, a choice charged too little": (GREEDY, lambda p: release_changed(p, 1, charged_zero_out=0.5), False),
    "scd, a wider clip": (SCD, lambda p: numbers_changed(p, clip=1.0), False),
    "scd, no clip": (SCD, lambda p: numbers_changed(p, clip=math.inf), False),
    "scd, the paper's word": (SCD, lambda p: changed(p, calibration="paper"), True),
    "scd, the paper's form": (SCD, lambda p: changed(p, form="published"), False),
    "scd, no rate": (SCD, lambda p: release_changed(p, rate=None), False),
    "scd-sequential, larger lots": (LOTS, lambda p: numbers_changed(p, lot=61), False),
    "scd-sequential, fewer lots": (LOTS, lambda p: release_changed(p, count=3), False),
    "scd-primal, a wider clip": (PRIMAL, lambda p: numbers_changed(p, clip=100.0), False),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize(
    "guard", ["ledger", *(pytest.param(guard, marks=pytest.mark.slow) for guard in ("replace-one ledger", "policy"))]
)
def test_nobody_gets_more_than_was_charged(
    attack: Attack, guard: str, draws: Draws, small_plan: MakePlan, tmp_path: Path
) -> None:
    start, tamper, may_pass = attack
    relation: Relation = "replace-one" if guard == "replace-one ledger" else "zero-out"
    fields = tamper(small_plan(**{"relation": relation} | start))
    if guard == "policy":
        party = party_of(policy=Policy(max_epsilon=1.0))
    else:
        party = party_of(account=account_of(tmp_path, 1.0, relation))
    kind = drain(party, fields)
    assert draws.plain == 0
    assert draws.epsilon(relation) <= 1.0 + 1e-6
    assert (kind == "accept") == may_pass
    if not may_pass:
        assert not draws.seen
        assert not draws.chosen


@pytest.mark.parametrize("guard", ["ledger", "policy"])
def test_honest_plans_are_accepted_and_drawn_in_full(
    guard: str, draws: Draws, small_plan: MakePlan, tmp_path: Path
) -> None:
    """The negative control of the attacks: the harness sees every draw, and half the noise would be noticed."""
    for number, start in enumerate(({}, SGD, {"algorithm": "newton"}, CD, GREEDY, SCD, LOTS, PRIMAL)):
        draws.seen.clear()
        draws.chosen.clear()
        account = Ledger.create(tmp_path / f"{number}.db").open("rows", epsilon=1.0, delta=1e-5)
        party = party_of(account=account) if guard == "ledger" else party_of(policy=Policy(max_epsilon=1.0))
        plan = small_plan(**start)
        assert drain(party, changed(plan)) == "accept"
        turns = query_of(plan, "choice").answered_by.rounds(plan, "anna", 1, 8) if plan.has("choice") else 0
        assert len(draws.chosen) == turns
        assert len(draws.seen) == sum(r.count for r in plan.releases if r.mechanism == "gaussian")
        assert 0.9 < draws.epsilon("zero-out") <= 1.0
        draws.seen = [(rate, noise / 2, ratio) for rate, noise, ratio in draws.seen]
        draws.chosen = [(noise / 2, ratio) for noise, ratio in draws.chosen]
        assert draws.epsilon("zero-out") > 1.5


REASONS = {
    "no releases": "the plan has no release of 'gradient', which gradient cannot do without",
    "zero-out charged too little": "more sensitive than the plan charged for",
    "a step that is no power of two": "no power of two",
    "no noise": "without noise",
    "two, sampled": "release twice",
    "one party under several names": "party twice",
    "an unknown algorithm": "the plan is for 'identity' in the form 'private', which there is not",
    "an unknown form": "the plan is for 'gradient' in the form 'secret', which there is not",
    "a number of no form": "one_party: Extra inputs are not permitted",
    "an unknown loss": "'identity' is unknown here; choose one of",
    "no bounds": "row_norm=None",
    "no slope bound": "slope_bound: Field required",
    "a NaN slope bound": "slope_bound=nan",
    "a release of no algorithm": "releases 'rows', which gradient does not have",
    "another count of records": "does not have anna with its declared records",
    "a split by columns": "gradient does not take rows as 'rows' split as 'columns'",
    "columns of nobody": "does not say how many of the columns each party has",
    "entry bounds of other columns": "entry_bound has 2 numbers but the data have 3 features",
    "labels held by another": "anna knows the labels, and the plan says otherwise (labels='held')",
    "NaN delta": "delta",
    "a negative count": "count",
    "columns for a gradient": "gradient does not take rows as 'columns' split as 'rows'",
    "cd, rows in place of columns": "cd does not take rows as 'rows' split as 'rows'",
    "scd-sequential, a rate it cannot have": "samples records for 'lot', which needs all of them",
    "a rate on a named record": "samples records for 'record', which needs all of them",
    "a choice in place of a gradient": "releases 'gradient' as 'selection', which it is not made for",
    "a gradient that is derived": "releases 'gradient' as 'derived', which it is not made for",
    "a gradient that is kept": "releases 'gradient' as 'kept', which it is not made for",
    "batches that follow nothing": "batches of 'gradient', which follows no released value",
}


@pytest.mark.parametrize(("name", "reason"), REASONS.items(), ids=REASONS)
def test_a_refusal_gives_its_reason(name: str, reason: str, small_plan: MakePlan) -> None:
    start, tamper, _ = ATTACKS[name]
    text = json.dumps(tamper(small_plan(**start)))
    try:
        digest = Plan.from_json(text).digest
    except Exception:
        digest = bytes(32)
    answer = send(party_of(), "plan", plan=digest, text=text)
    assert answer.kind == "refuse"
    assert reason in said(answer)["refused"]


def test_plans_compose_on_the_ledger_whatever_their_names(small_plan: MakePlan, tmp_path: Path, draws: Draws) -> None:
    party = party_of(account=account_of(tmp_path))
    kinds = [drain(party, changed(small_plan(epsilon=0.4, run=f"{number}"))) for number in range(6)]
    assert "refuse" in kinds
    assert draws.epsilon("zero-out") <= 1.0 + 1e-6


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", "1", '"plan"', "{", "[" * 10**5, "NaN", '{"format": 1}', "\x00"]
)
def test_a_text_that_is_no_plan_is_refused(text: str) -> None:
    answer = send(party_of(), "plan", plan=bytes(32), text=text)
    assert answer.kind in ("refuse", "error")


# Nothing else leaves.


def secret_party(**options: Any) -> Party:
    X, _ = rows(40)
    X[7] = HEIGHT
    y = np.where(np.arange(40) == 7, INCOME, 1.0)
    return Party("anna", X, y, **options)


def shows_the_secret(data: bytes) -> bool:
    texts = [b"170.2", b"98765", b"1.7025", b"9.8765"]
    numbers = [struct.pack(form, value) for value in (HEIGHT, INCOME) for form in ("<d", ">d", "<f", ">f")]
    return any(piece in data for piece in texts + numbers)


def test_the_search_for_the_secret_finds_it() -> None:
    assert shows_the_secret(encode(Frame("answer", 1, text=str(HEIGHT))))
    assert shows_the_secret(encode(Frame("answer", 1, arrays={"value": np.array([0.0, INCOME])})))
    assert shows_the_secret(repr(np.array([HEIGHT])).encode())


@pytest.mark.slow
def test_no_frame_and_no_foreign_log_line_shows_a_record(
    small_plan: MakePlan, caplog: pytest.LogCaptureFixture
) -> None:
    out: list[bytes] = []
    party = secret_party()
    handle = party.handle

    def recorded(request: bytes) -> Outgoing:
        outgoing = handle(request)
        out.append(outgoing.data)
        return outgoing

    party.handle = recorded  # type: ignore[method-assign]
    with caplog.at_level(logging.DEBUG):
        for start, tamper, _ in ATTACKS.values():
            drain(party, tamper(small_plan(**start)))
        for kind in ("hello", "facts", "plan", "accept", "refuse", "ask", "answer", "unknown-plan", "done", "error"):
            for query in ("", "classes", "rows", "labels", "gradient"):
                send(party, kind, query=query)
    assert len(out) > 1000
    assert not any(map(shows_the_secret, out))
    assert not shows_the_secret(repr(party).encode() + str(party).encode())
    foreign = [record for record in caplog.records if record.name != "sottovoce.holder"]
    assert not any(shows_the_secret(record.getMessage().encode()) for record in foreign)


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_arguments: Any, **_options: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"row 7 is {HEIGHT}"),
        InputError(f"X[7] = {HEIGHT}"),
        LeakError(f"{HEIGHT} tried to leave"),
        SottovoceError(f"{INCOME}"),
        ZeroDivisionError(f"{INCOME}"),
        WireError(f"{HEIGHT}"),
        LedgerError(f"{HEIGHT}"),
        MemoryError(f"{HEIGHT}"),
        AssertionError(np.array([HEIGHT, INCOME])),
        UnicodeDecodeError("utf-8", str(HEIGHT).encode(), 0, 1, "bad"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("place", ["prepare", "answer", "facts"])
def test_an_error_that_rows_could_cause_travels_as_a_fixed_text(
    error: Exception,
    place: str,
    small_plan: MakePlan,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    party, plan = secret_party(), small_plan(parties=(("anna", 40),), split="central")
    if place == "prepare":
        monkeypatch.setattr(Block, "prepare", failing(error))
    elif place == "answer":
        monkeypatch.setattr(GradientSum, "value", failing(error))
    else:
        monkeypatch.setattr(Party, "facts", failing(error))
    coordinator = Coordinator(InProcess([party]), record=True)

    def train() -> None:
        coordinator.facts(classes=False)
        coordinator.run(plan, algorithms.of(plan))

    with caplog.at_level(logging.DEBUG), pytest.raises((WireError, LedgerError)) as seen:
        train()
    told = str(seen.value)
    assert FAILED in told or "its own log has the reason" in told
    assert not shows_the_secret(told.encode())
    assert seen.value.__cause__ is None
    assert not shows_the_secret(repr(coordinator.transcript).encode())
    assert {record.name for record in caplog.records} == {"sottovoce.holder"}
    assert party.failure is error


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_are_answered_by_a_frame(data: st.DataObject, small_plan: MakePlan) -> None:
    plan = small_plan()
    party = secret_party()
    messages = [
        encode(Frame("plan", 1, plan.digest, text=plan.to_json())),
        encode(Frame("ask", 2, plan.digest, 0, "gradient", {"weights": np.zeros(4)})),
        encode(Frame("hello", 3)),
    ]
    for message in messages:
        torn = bytearray(message)
        for place in data.draw(st.lists(st.integers(0, len(torn) - 1), max_size=3)):
            torn[place] = data.draw(st.integers(0, 255))
        answer = handle(party, bytes(torn))
        assert type(answer) is Outgoing
        assert decode(answer.data).kind in ("accept", "answer", "facts", "refuse", "error", "unknown-plan", "done")
        assert not shows_the_secret(answer.data)


def test_a_label_that_is_no_number_is_not_told_by_a_failure(small_plan: MakePlan) -> None:
    X, _ = rows(40)
    plan = small_plan(loss=Named(name="squared"), classes=None, bounds=Bounds.declare(row_norm=1.0, label_bound=1.0))
    for labels in (["0.5"] * 40, ["0.5"] * 39 + ["unknown"], [0.5] * 39 + [None]):
        party = Party("anna", X, np.array(labels, dtype=object))
        assert propose(party, plan).kind == "accept"
        assert ask(party, plan).kind == "answer"


# The holder's own input.


@pytest.mark.parametrize(
    ("X", "y", "fault"),
    [
        (np.zeros((0, 3)), np.zeros(0), "empty"),
        (np.zeros((3, 0)), np.zeros(3), "empty"),
        (np.zeros(3), np.zeros(3), "two-dimensional"),
        (np.zeros((3, 2, 2)), np.zeros(3), "two-dimensional"),
        (np.zeros((3, 2)), np.zeros((3, 1)), "one-dimensional"),
        (np.zeros((3, 2)), np.zeros(4), "3 rows and y 4 labels"),
        (np.array([["170.2531", "tall"]]), np.zeros(1), "not numbers"),
        (sp.csr_matrix((0, 3)), np.zeros(0), "empty"),
        (sp.csr_matrix((2, 3)), np.zeros(3), "2 rows and y 3 labels"),
    ],
)
def test_a_holder_is_told_what_is_wrong_with_its_rows(X: Any, y: Any, fault: str) -> None:
    with pytest.raises(InputError, match=fault) as error:
        check_rows(X, y, "anna")
    assert "anna" in str(error.value)
    assert "170.25" not in str(error.value)


def test_lists_and_texts_of_numbers_are_rows() -> None:
    checked, labels = check_rows([["1", "2"], ["3", "4"]], [0, 1], "anna")
    np.testing.assert_array_equal(checked, [[1.0, 2.0], [3.0, 4.0]])
    assert labels.tolist() == [0, 1]


def test_a_label_that_is_missing_is_no_class() -> None:
    """A line that is too short leaves an empty label; it must not decide whether there are two classes."""
    assert label_values(np.array(["yes", "no", "", "NA", "nan", "?", "yes"], dtype=object)) == ["no", "yes"]
    assert label_values(np.array(["yes", "no", ""])) == ["no", "yes"]
    assert label_values(np.array(["yes", "no", "perhaps"], dtype=object)) == ["no", "perhaps", "yes"]
