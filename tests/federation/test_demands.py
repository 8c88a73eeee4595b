"""What a plan of secure sums assumes its holders agreed to: each assumption has a key, strict where it is left out."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.app.jobs import PolicyTable
from sottovoce.federation.policy import DEMANDS, NOTHING, Known, Policy
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.lab.audit.runner import audit_plan
from sottovoce.plan import split
from sottovoce.plan.plan import Plan
from sottovoce.plan.split import ASSUMPTIONS, Coalition, SecureAggregation, assumed, made_assumptions
from sottovoce.queries.pricing import coalition_epsilon
from sottovoce.secure.pair_keys import RunKey, fingerprint_of
from sottovoce.transports.identity import local_identities

NAMES = ("party 1", "party 2", "party 3")


def secure(split: Any, parties: int = 3, *, solver: str = "gradient", about: Any = None, **numbers: Any) -> Plan:
    """A small plan whose sums are secure."""
    aggregation = SecureAggregation(**{"colluding": parties - 1, **numbers})
    asked = {"labels": "held", "relation": "zero-out", "rounds": 2, **(about or {})}
    return audit_plan(solver, split, parties, aggregation=aggregation, **asked)


def known(*names: str, unaligned: bool = False) -> Known:
    """The first party, which has pinned these."""
    return Known(local_identities((NAMES[0], *names))[NAMES[0]], unaligned)


ALL = known(*NAMES)


class Case(NamedTuple):
    """A plan that assumes something, a party that did not agree to it, and what would agree."""

    plan: Plan
    known: Known
    agrees: dict[str, Any]
    least: dict[str, Any] = {"secure": True}  # noqa: RUF012  # what the party said before


CASES = {
    "apart": Case(secure("columns"), known(*NAMES, "notary"), {"dealer": "coordinator"}),
    "collusion": Case(secure("rows", colluding=1), ALL, {"colluding": 1}),
    "protocol": Case(secure("rows"), ALL, {"secure": True}, {}),
    "keys": Case(secure("rows"), known("party 2"), {"max_epsilon_colluding": 1e6}),
    "order": Case(secure("columns"), known(*NAMES, unaligned=True), {"unaligned": True}),
    "people": Case(
        secure("columns", solver="whitened", about={"most_records": 2, "people": 6}), ALL, {"tell_records": True}
    ),
    "computing": Case(secure("rows"), ALL, {"secure": True}, {}),
}


def refusal(case: Case, **policy: Any) -> str | None:
    return Policy(**{**case.least, **policy}).refuse(case.plan, algorithms.of(case.plan), NAMES[0], case.known)


def check_assumption(name: str) -> None:
    """The fence: the key is a policy's and a party file's, a plan that assumes it is refused, and the text names it."""
    key = split.ASSUMPTIONS[name]
    defaults = {field.name: field.default for field in dataclasses.fields(Policy)}
    assert defaults[key] == PolicyTable.model_fields[key].default
    case = CASES[name]
    assert made_assumptions(case.plan)[name] in assumed(case.plan)
    assert f"{key}=" in str(refusal(case))
    assert set(case.agrees) == {key}
    assert refusal(case, **case.agrees) is None


@pytest.mark.parametrize("name", ASSUMPTIONS)
def test_what_is_assumed_was_agreed_to_by_its_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_assumption(name)
    key = ASSUMPTIONS[name]
    monkeypatch.setitem(DEMANDS, key, lambda _: None)  # type: ignore[misc]  # planted fault: nothing is demanded
    with pytest.raises(AssertionError):
        check_assumption(name)


def test_a_new_assumption_has_a_key_or_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(CASES) == set(ASSUMPTIONS)
    assert set(DEMANDS) == set(ASSUMPTIONS.values())
    more = {"weather": "it does not rain"}  # planted fault
    monkeypatch.setattr(split, "made_assumptions", lambda *of: made_assumptions(*of) | more)
    monkeypatch.setattr("sottovoce.federation.policy.made_assumptions", split.made_assumptions)
    assert "it does not rain" in assumed(secure("rows"))
    with pytest.raises(KeyError):
        refusal(CASES["protocol"])  # without a key nobody agrees to it
    monkeypatch.setitem(ASSUMPTIONS, "weather", "weather")
    with pytest.raises(KeyError):
        check_assumption("weather")
    assert set(DEMANDS) != set(ASSUMPTIONS.values())


def test_every_sentence_that_a_guarantee_assumes_is_in_the_registry() -> None:
    """`Guarantee.assumes` of a fit has nothing that is not of an assumption with a key."""
    X, y = np.eye(40, 4) / 2, np.arange(40) % 2
    federation = sv.Federation.by_columns(
        [X[:, :2], X[:, 2:]], y, products="secure", norms=np.sqrt([0.5, 0.5]).tolist()
    )
    fitted = sv.PrivateLogisticRegression(epsilon=5.0, row_norm=1.0, classes=(0, 1)).fit(federation)
    made = made_assumptions(fitted.plan_)
    assert set(fitted.privacy_.weakest.assumes) == set(made.values())
    assert set(made) <= set(ASSUMPTIONS)


def everybody(plan: Plan, *, dealer: bool) -> float:
    """The epsilon against all other parties together."""
    form = algorithms.of(plan)
    return coalition_epsilon(
        [(form, plan, form.pricing)], "zero-out", Coalition(len(plan.parties) - 1, dealer=dealer), plan.delta
    )


@pytest.mark.parametrize("split", ["rows", "columns"])
def test_a_plan_against_fewer_who_pool_is_refused(split: str) -> None:
    weak, strict = secure(split, 8, colluding=1), secure(split, 8)
    assert everybody(weak, dealer=False) > 1.5 * everybody(strict, dealer=False)
    for plan, policy, reason in (
        (strict, Policy(secure=True), None),
        (weak, Policy(secure=True), "hold against 7 of 7; its holder can allow it with Policy(colluding=1)"),
        (weak, Policy(secure=True, colluding=2), "hold against 2 of 7"),
        (weak, Policy(secure=True, colluding=1), None),
        (secure(split, 2), Policy(secure=True, colluding=5), None),
    ):
        found = policy.refuse(plan, algorithms.of(plan), NAMES[0], known(*plan.names))
        assert found is None if reason is None else reason in str(found)


@pytest.mark.parametrize(
    ("dealer", "plan", "pinned", "reason"),
    [
        ("", "coordinator", NAMES, None),
        ("", "notary", (*NAMES, "notary"), None),
        ("", "notary", NAMES, "has not pinned the key of notary"),
        ("", "coordinator", (*NAMES, "notary"), "notary is pinned, so that it may have to deal, and is left out"),
        ("", "other", (*NAMES, "notary", "other"), "notary is pinned"),
        ("notary", "notary", (*NAMES, "notary", "other"), None),
        ("notary", "coordinator", NAMES, "the coordinator deals in the plan, and here 'notary' does alone"),
        ("notary", "other", (*NAMES, "other"), "the dealer 'other' deals in the plan, and here 'notary' does alone"),
        ("coordinator", "coordinator", (*NAMES, "notary"), None),
        ("coordinator", "notary", (*NAMES, "notary"), "Policy(dealer='notary')"),
    ],
)
@pytest.mark.parametrize("split", ["rows", "columns"])
def test_who_deals(split: str, dealer: str, plan: str, pinned: tuple[str, ...], reason: str | None) -> None:
    made = secure(split, dealer=plan)
    found = Policy(secure=True, dealer=dealer).refuse(made, algorithms.of(made), NAMES[0], known(*pinned))
    assert found is None if reason is None else reason in str(found)


def test_a_dealer_is_pinned_also_where_a_limit_does_in_the_place_of_other_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = secure("rows", dealer="notary")

    def refused(*pinned: str, **policy: Any) -> str:
        given = Policy(secure=True, max_epsilon_colluding=1e6, **policy)
        return str(given.refuse(plan, algorithms.of(plan), NAMES[0], known(*pinned)))

    assert refused("notary") == "None"
    for policy in ({}, {"dealer": "notary"}):
        assert "has not pinned the key of notary" in refused(**policy)
    monkeypatch.setitem(DEMANDS, "dealer", lambda _: None)  # type: ignore[misc]  # planted fault
    assert refused() == "None"


@pytest.mark.parametrize("limit", [None, math.inf, math.nan])
def test_no_limit_is_in_the_place_of_pins(limit: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of infinity allows all: whoever gives it has limited nothing, and needs the pins."""
    plan = secure("rows", 64)

    def check() -> None:
        policy = Policy(secure=True, max_epsilon_colluding=limit)
        assert "has not pinned the key of party 2" in str(policy.refuse(plan, algorithms.of(plan), NAMES[0]))

    check()
    monkeypatch.setattr(Policy, "needs_pins", lambda *_: False)  # planted fault
    with pytest.raises(AssertionError):
        check()


def test_made_up_parties_by_rows_are_pinned_or_limited() -> None:
    plan = secure("rows", 64)
    form = algorithms.of(plan)
    worst = everybody(plan, dealer=True)
    assert worst > 5 * everybody(plan, dealer=False)  # with the coordinator, whose top-up is gone

    def refused(some: Known = NOTHING, **policy: Any) -> str:
        return str(Policy(secure=True, **policy).refuse(plan, form, NAMES[0], some))

    assert "has not pinned the key of party 2" in refused()
    assert "Policy(max_epsilon_colluding=...)" in refused()
    assert "has not pinned the key of party 64" in refused(known(*plan.names[:-1]))
    assert refused(known(*plan.names)) == "None"
    assert refused(max_delta=1e-2, max_epsilon_colluding=1.01 * worst) == "None"
    assert "above this party's limit" in refused(max_delta=1e-2, max_epsilon_colluding=0.99 * worst)


@pytest.mark.parametrize("case", ["apart", "collusion", "keys", "order"])
def test_a_party_refuses_before_anything_is_charged(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same over frames: the plan is refused, the ledger has nothing, no row was prepared."""
    plan, knows, agrees, _ = CASES[case]
    part, count = plan.part(NAMES[0]), dict(plan.parties)[NAMES[0]]
    rows = np.zeros((count, part.stop - part.start))
    labels = np.zeros(count) if plan.split == "rows" or plan.label_party_name == NAMES[0] else None
    monkeypatch.setattr("sottovoce.federation.training.prepare_rows", lambda *_, **__: pytest.fail("rows were touched"))
    for place, policy in enumerate((Policy(secure=True), Policy(secure=True, **agrees))):
        account = sv.Ledger.create(tmp_path / f"{place}.db").open("people", epsilon=1e3, delta=1e-2)
        ids = range(count) if knows.unaligned else None
        party = sv.Party(NAMES[0], rows, labels, account=account, policy=policy, ids=ids)
        assert knows.identity is not None
        party.identify(knows.identity)
        told = json.loads(said(party, Frame("hello", 1, query="secure", text=json.dumps({"members": ()}))).text)
        others = {name: fingerprint_of(RunKey().public) for name in (*plan.names, "coordinator")}
        keys = tuple({**others, NAMES[0]: fingerprint_of(told["public_key"])}.items())
        made = plan.model_copy(update={"keys": keys if plan.split == "columns" else keys[:-1]})
        answer = said(party, Frame("plan", 2, made.digest, query="check", text=made.to_json()))
        assert answer.kind == ("refuse", "accept")[place], answer.text
        assert account.balance().spent == 0.0


def said(party: sv.Party, frame: Frame) -> Frame:
    return decode(party.handle(encode(frame)).data)
