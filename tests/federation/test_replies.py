"""What the coordinator says of replies that are none, and a party of plans that are too large."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from plans import PLANS, plan_for
from serving import draw_data
from sottovoce.errors import BudgetError, LedgerError, RefusedError, WireError
from sottovoce.federation import answering
from sottovoce.federation.party import Party
from sottovoce.federation.replies import check_reply, read_answer
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.plan.plan import Plan
from sottovoce.transports.identity import local_identities
from support import forged, query_of

FACTS: dict[str, Any] = {"records": 6, "features": 2, "feature_names": ["a", "b"]}


def plan() -> Plan:
    form, split, more = PLANS["newton, private, rows"]
    return plan_for(form, split, **more)


def facts(text: str, query: str = "") -> dict[str, Any]:
    said = Frame("hello", 7, query=query)
    return check_reply("anna", said, encode(Frame("facts", 7, query=query, text=text))).facts


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"records": 0}, "records"),
        ({"records": 2**31}, "records"),
        ({"records": 6.0}, "records"),
        ({"records": True}, "records"),
        ({"records": "6"}, "records"),
        ({"features": None}, "features"),
        ({"feature_names": "ab"}, "feature_names"),
        ({"feature_names": ["a", 1]}, "feature_names.1"),
        ({"feature_names": ["a"]}, "names 1 of its 2 features"),
        ({"more": 1}, "more"),
    ],
)
def test_facts_are_what_they_are_called(changes: dict[str, Any], fault: str) -> None:
    assert facts(json.dumps(FACTS)) == FACTS
    with pytest.raises(WireError, match=f"'anna'.*{fault}"):
        facts(json.dumps(FACTS | changes))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 100_000, '{"records":' * 100_000, "9" * 5000, '"x"'])
def test_a_text_that_is_no_facts_is_told(text: str) -> None:
    with pytest.raises(WireError, match="'anna' sent a 'facts'"):
        facts(text)


@pytest.mark.parametrize("classes", [list(range(101)), 3, [None], [[0]], None, [float("nan")], [float("inf")]])
def test_classes_are_a_few_plain_values(classes: Any) -> None:
    assert facts(json.dumps(FACTS | {"classes": [0, "yes", 2.5]}), "classes")["classes"] == [0, "yes", 2.5]
    with pytest.raises(WireError, match=r"'anna'.*classes"):
        facts(json.dumps(FACTS | {"classes": classes}), "classes")


@pytest.mark.parametrize("key", ["", "00" * 32, "g" * 2432, 5, "A" * 2432])
def test_a_public_key_has_1216_bytes(key: Any) -> None:
    signed = FACTS | {"signature": "{}"}
    facts(json.dumps(signed | {"public_key": "0f" * 1216}), "predict")
    with pytest.raises(WireError, match=r"'anna'.*public_key"):
        facts(json.dumps(signed | {"public_key": key}), "predict")


def test_a_number_of_columns_that_fills_the_memory_is_no_fact() -> None:
    with pytest.raises(WireError, match=r"'anna'.*features"):
        facts(json.dumps(FACTS | {"features": answering.MOST_COLUMNS + 1}))


@pytest.mark.parametrize(
    ("code", "kind"), [("budget", BudgetError), ("ledger", LedgerError), ("refused", RefusedError), ("x", RefusedError)]
)
def test_a_refusal_is_raised_and_names_the_party(code: str, kind: type[Exception]) -> None:
    reply = encode(Frame("refuse", 7, text=json.dumps({"error": code, "refused": "no."})))
    with pytest.raises(kind, match=r"^anna: no\."):
        check_reply("anna", Frame("hello", 7), reply)


@pytest.mark.parametrize("text", ["{}", '{"error": "budget"}', '{"error": 1, "refused": "no"}'])
def test_a_refusal_without_a_reason_is_none(text: str) -> None:
    with pytest.raises(WireError, match="'anna' sent a 'refuse'"):
        check_reply("anna", Frame("hello", 7), encode(Frame("refuse", 7, text=text)))


@pytest.mark.parametrize(
    "grid",
    [
        np.zeros(2, dtype=np.int64),
        np.zeros((1, 3), dtype=np.int64),
        np.zeros(0, dtype=np.int64),
        np.zeros(3),
        np.full(3, 2**61, dtype=np.int64),
        np.full(3, -(2**63), dtype=np.int64),
    ],
)
def test_an_answer_has_the_type_the_shape_and_the_range_of_its_query(grid: Any) -> None:
    small = plan()
    query, said = query_of(small, "gram"), Frame("ask", 7, small.digest, 0, "gram")

    def value_of(**arrays: Any) -> Any:
        reply = check_reply("anna", said, encode(Frame("answer", 7, small.digest, 0, "gram", arrays)))
        return read_answer("anna", small, query, {}, reply)

    assert value_of(grid=np.arange(3)).tolist() == [0.0, small.release("gram").step, 2 * small.release("gram").step]
    with pytest.raises(WireError, match=r"party 'anna' answered 'gram' in round 0 with .* numbers, which has to be 3"):
        value_of(grid=grid)
    with pytest.raises(WireError, match="'anna' answered 'gram' in round 0 with 'value', not with 'grid' alone"):
        value_of(value=np.zeros(3))


def proposed(small: Plan, **fields: Any) -> str:
    """What the first party says of the plan with other fields."""
    name = small.names[0]
    party = Party(name, *draw_data(small)[name])
    party.identify(local_identities(small.names)[name])
    digest, text = forged(small, **fields)
    return decode(party.handle(encode(Frame("plan", 1, digest, text=text))).data).text


def test_a_plan_of_other_sizes_is_refused_before_anything_is_made_of_it() -> None:
    small = plan()
    several = [*small.parties, *((f"p{k}", 6) for k in range(answering.MOST_PARTIES))]
    releases = [release.model_dump() | {"query": f"q{k}"} for k in range(100) for release in small.releases[:1]]
    for fields, fault in (
        ({"features": 2**31 - 1}, "the plan has 2147483647 columns"),
        ({"features": 3}, "does not have party 1 with its declared records and features"),
        ({"parties": several}, f"parties; party 1 serves at most {answering.MOST_PARTIES}"),
        ({"releases": releases}, f"releases; party 1 serves at most {answering.MOST_RELEASES}"),
        ({"run": "x" * (answering.MOST_TEXT + 1000)}, "a party reads at most"),
    ):
        assert fault in proposed(small, **fields), fault


def test_answers_that_fit_in_no_message_are_refused() -> None:
    form, split, more = PLANS["cd, private, central"]
    small = plan_for(form, split, **more)
    numbers = small.numbers.fields() | {"stride": 2**30}
    paid = {"std": 1e6, "charged_zero_out": 1e5, "charged_replace_one": 1e6}  # so that the price is no reason
    releases = [release.model_dump() | paid for release in small.releases]
    assert "a message has at most" in proposed(small, numbers=numbers, releases=releases)


def test_more_turns_than_are_drawn_are_refused() -> None:
    form, split, more = PLANS["sgd, private, rows, one party a round"]
    small = plan_for(form, split, **more)
    assert f"at most {answering.MOST_DRAWN} are drawn" in proposed(small, rounds=answering.MOST_DRAWN + 1)
