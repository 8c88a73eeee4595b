"""What a coordinator that does not follow the protocol is refused: no mask twice, no record twice, no other noise."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.errors import RefusedError
from sottovoce.federation.secure_columns.coordinator import Stage, adder_of, cut_records
from sottovoce.federation.secure_columns.dealer import LocalDeals
from sottovoce.gate.frames import Frame
from sottovoce.plan.plan import Plan
from sottovoce.privacy.mechanisms import SystemRandomness
from sottovoce.secure import streams
from sottovoce.secure.sums import Call
from support import forged

sys.path.insert(0, str(Path(__file__).parent))
from hostile import Hostile, secure_plan

OTHERS = "party 2"


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger, level = logging.getLogger("sottovoce.holder"), logging.getLogger("sottovoce.holder").level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


def data_of(plan: Plan, seed: int = 0) -> dict[str, Any]:
    """Records within the bounds, none of them null."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, count in plan.parties:
        part = plan.part(name)
        X = rng.uniform(-1, 1, (count, part.stop - part.start)) / (1 if plan.columns else 2)
        found[name] = (X, np.random.default_rng(seed).uniform(-1, 1, count))
    return found


def hostile(solver: str = "newton", **fields: Any) -> Hostile:
    plan = secure_plan(solver, **{"rounds": 3, "features": 2, "relation": "zero-out", **fields})
    return Hostile(plan, data_of(plan)).open()


def told_of(h: Hostile) -> dict[str, Any]:
    return dict(h.query("gradient").message(np.linspace(-1, 1, h.plan.dimension)))


def say(h: Hostile, name: str, told: dict[str, Any], piece: Any = (0, 8), number: int = 1, **sent: Any) -> Frame:
    """What a party answers that is asked for the first message of a gradient."""
    stage = Stage("say", piece, tuple(told), "look-up", 0)
    return h.stage(name, stage, "gradient", number, {**told, **sent})


def refused(frame: Frame, *words: str) -> None:
    assert frame.kind == "refuse", (frame.kind, frame.text)
    assert all(word in frame.text for word in words), frame.text


@pytest.fixture
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages in which few records fit."""
    monkeypatch.setattr(streams, "FRAME", 240 * 3)


def largest(h: Hostile, query: str) -> float:
    """What no opened whole number of a sum is beyond."""
    release = h.plan.release(query)
    return (h.plan.records * release.charged_zero_out + 64 * 2 * release.std) / release.step


# ------------------------------------------------------------------------------------------------ noise and grids


@pytest.mark.parametrize("query", ["gram", "gradient"])
def test_a_grid_that_is_not_that_of_products_is_refused(query: str) -> None:
    """Products are whole numbers of 4^-bits; noise of so many coarser steps would be none."""
    h = Hostile(plan := secure_plan(rounds=3, features=2), data_of(plan))
    coarse = {"step": 2.0**-12, "charged_zero_out": 1.01, "charged_replace_one": 2.01}  # its rounding is paid for
    releases = [r.model_dump() | (coarse if r.query == query else {}) for r in h.plan.releases]
    digest, text = forged(h.plan, releases=releases)
    refused(h.said("party 1", Frame("plan", 0, digest, text=text)), "grid")


def test_a_round_has_one_sum_and_the_gram_matrix_one_round() -> None:
    plan = secure_plan(rounds=3, features=2)
    gram, gradient = plan.releases
    with pytest.raises(RefusedError, match="masks are by rounds"):
        plan.model_copy(update={"releases": (gram, gradient.model_copy(update={"first": 0}))})
    h = Hostile(plan, data_of(plan))
    later = {"first": 2}
    twice = h.plan.model_copy(
        update={"releases": (gram.model_copy(update={"count": 2}), gradient.model_copy(update=later))}
    )
    refused(h.said("party 1", Frame("plan", 0, twice.digest, text=twice.to_json())), "once is all")


def test_the_dealer_deals_one_content() -> None:
    h = hostile().set_up()
    assert h.deals is not None
    told, deals = told_of(h), LocalDeals(h.plan, h.deals._keys, SystemRandomness())
    works = [h.work("gram", "gram", 0, {}), h.work("look-up", "gradient", 1, told, (0, 8))]
    first, again = ([deals.deal(work) for work in works] for _ in range(2))
    for (name, words), (other, same) in zip(first, again, strict=True):
        assert name == other
        assert np.array_equal(words, same)
    for work in works:
        h.deals.deal(work)
    with pytest.raises(RefusedError, match="something else was masked"):
        h.deals.deal(works[0])  # noise of a seed, which is drawn anew
    with pytest.raises(RefusedError, match="told other numbers before"):
        deals.deal(h.work("look-up", "gradient", 1, {**told, "weights": 2 * told["weights"]}, (0, 8)))
    with pytest.raises(RefusedError, match="cut"):
        deals.deal(h.work("look-up", "gradient", 2, told, (0, 1)))
    for program, query in (("null", "gradient"), ("own", "gram"), ("gram", "gradient"), ("factor", "gradient")):
        with pytest.raises(RefusedError, match="nothing is said or dealt"):
            deals.deal(h.work(program, query, h.plan.release(query).first, {}, (0, 8)))


# ------------------------------------------------------------------------------------------------ pieces and stages


@pytest.mark.parametrize("stage", ["columns", "say", "receive"])
@pytest.mark.parametrize("piece", [(0, 1), (1, 8), (-4, 8), (0, 9), (0, 0)])
def test_records_are_cut_by_the_public_rule_alone(stage: str, piece: tuple[int, int]) -> None:
    h = hostile()
    told = told_of(h)
    if stage == "say":
        h.set_up()
        dealt = h.dealt(h.work("look-up", "gradient", 1, told, (0, 8))).get(OTHERS, {})
        refused(say(h, OTHERS, told, piece, **dealt), "cut")
        return
    envelopes = h.stage(h.plan.label_party_name, Stage("group")).arrays
    refused(h.stage(OTHERS, Stage(stage, piece), "", 0, {"group": envelopes["1"], "0": envelopes["1"]}), "cut")


@pytest.mark.parametrize("stage", ["columns", "receive", "say"])
def test_the_key_of_the_boxes_comes_first(stage: str) -> None:
    """Asked out of order a party refuses; its own log calls nothing a leak."""
    h = hostile()
    refused(h.stage(OTHERS, Stage(stage, (0, 8), (), "null" if stage == "say" else ""), "", 0), "key of the parties")


def test_a_piece_counts_once(small_frames: None) -> None:
    """Asked again, also from its first message on, it is not added again: else a record could be made loud."""
    h = hostile().set_up()
    told = told_of(h)
    pieces = cut_records(h.plan)
    assert len(pieces) > 2
    plain = h.shares("gradient", 1, told, h.look_up("gradient", 1, told))
    for piece in pieces:
        work = h.work("look-up", "gradient", 2, told, piece)
        for _ in range(1 if piece == pieces[-1] else 3):
            each = h.messages(work)
            for _ in range(0 if piece == pieces[-1] else 20):
                h.all(Stage("end", piece, (), "look-up", 2), "gradient", 2, each)
    opened = h.shares("gradient", 2, told, each)
    assert np.abs(opened - plain).max() <= 64 * 2 * h.plan.release("gradient").std / h.plan.release("gradient").step
    assert np.abs(opened).max() <= largest(h, "gradient")


def test_pieces_are_all_of_the_sum(small_frames: None) -> None:
    h = hostile().set_up()
    told = told_of(h)
    first, second, *_, last = cut_records(h.plan)
    each = h.messages(h.work("look-up", "gradient", 1, told, first))
    refused(h.stage(OTHERS, Stage("end", last, (), "look-up", 2), "gradient", 1, each[OTHERS]), "first message")
    refused(h.stage(OTHERS, Stage("say", second, (), "look-up", 1), "gradient", 1, each[OTHERS]), "first message")
    call = Call(h.plan.names, said=tuple(told))
    refused(h.ask(OTHERS, "gradient", 1, call, {**told, **each[OTHERS]}), "lacks the parts")


def test_messages_come_in_their_order() -> None:
    h = hostile().set_up()
    told, end = told_of(h), Stage("end", (0, 8), (), "look-up", 0)
    each = h.messages(h.work("look-up", "gradient", 1, told, (0, 8)), 1)
    for message in (2, 3, 9):
        stage = Stage("say", (0, 8), (), "look-up", message)
        refused(h.stage(OTHERS, stage, "gradient", 1, each[OTHERS]), "first message")
    refused(h.stage(OTHERS, end, "gradient", 1, each[OTHERS]), "ask for all of them")
    refused(h.stage(OTHERS, Stage("add", (0, 8), (), "look-up", 0), "gradient", 1, each[OTHERS]), "in turn")
    refused(h.stage(OTHERS, Stage("say", (0, 8), (), "look-up", -1), "gradient", 1, each[OTHERS]), "first message")


def test_words_of_the_dealer_are_neither_left_out_nor_given_to_others() -> None:
    """Without its words a party would make a share that goes with no table: slopes would have no bound."""
    h = hostile().set_up()
    told = told_of(h)
    dealt = h.dealt(h.work("look-up", "gradient", 1, told, (0, 8)))
    assert set(dealt) == {OTHERS}
    refused(say(h, OTHERS, told), "dealt")
    refused(say(h, "party 1", told, **dealt[OTHERS]), "dealt")
    refused(h.ask("party 1", "gram", 0, Call(h.plan.names)), "dealt")


def test_one_party_in_turn_adds() -> None:
    h = hostile(parties=3).set_up()
    told = told_of(h)
    work, stage = h.work("look-up", "gradient", 1, told, (0, 8)), Stage("say", (0, 8), tuple(told), "look-up", 0)
    envelopes = h.all(stage, "gradient", 1, h.dealt(work), **told)
    adder = adder_of(h.plan.names, 1, 0)
    (other, *_) = [name for name in h.plan.names if name != adder]
    add, following = Stage("add", (0, 8), (), "look-up", 0), Stage("say", (0, 8), (), "look-up", 1)
    refused(h.stage(other, add, "gradient", 1, envelopes[other]), "one party in turn adds")
    refused(h.stage(other, following, "gradient", 1, envelopes[other]), "lacks the sum")
    refused(h.stage(str(adder), following, "gradient", 1, envelopes[str(adder)]), "lacks the sum")
    one, two = (h.stage(str(adder), add, "gradient", 1, envelopes[str(adder)]).arrays["envelope"] for _ in range(2))
    assert np.array_equal(one, two)
    assert h.stage(other, following, "gradient", 1, {"total": one}).kind == "answer"


# ------------------------------------------------------------------------------------------------ what was asked


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"weights": np.full(3, 1.0)}, "weights"),
        ({"level": np.array([-1.0])}, "level"),
        ({"chances": np.full((1, 64), 2**17)}, "chances"),
        ({"chances": np.zeros((1, 63), dtype=np.int64)}, "chances"),
    ],
)
def test_numbers_that_no_look_up_takes_are_refused(change: dict[str, Any], word: str) -> None:
    h = hostile().set_up()
    refused(say(h, "party 1", {**told_of(h), **change}), word)


def test_a_sum_is_of_the_numbers_that_its_messages_were_told() -> None:
    """So what masks are made for is what the words were made by."""
    h = hostile().set_up()
    told = told_of(h)
    each = h.look_up("gradient", 1, told)
    other = {**told, "weights": -told["weights"]}
    refused(
        h.ask("party 1", "gradient", 1, Call(h.plan.names, said=tuple(other)), {**other, **each["party 1"]}), "other"
    )
    fewer = Call(h.plan.names, said=("weights",))
    refused(h.ask("party 1", "gradient", 1, fewer, {**told, **each["party 1"]}), "level")
    assert np.abs(h.shares("gradient", 1, told, each)).max() <= largest(h, "gradient")


def test_a_message_is_sent_again_alike_and_by_other_numbers_refused() -> None:
    h = hostile().set_up()
    told = told_of(h)
    work = h.work("look-up", "gradient", 1, told, (0, 8))
    first, second = (h.messages(work, 1) for _ in range(2))
    assert all(np.array_equal(first[n][p], second[n][p]) for n in first for p in first[n])
    other = {**told, "weights": -told["weights"]}
    refused(say(h, OTHERS, other, **h.dealt(work)[OTHERS]), "other numbers")


def test_another_sum_of_a_message_is_refused() -> None:
    """A party whose neighbour says something else the second time says nothing that would show the difference."""
    h = hostile().set_up()
    told = told_of(h)
    work, stage = h.work("look-up", "gradient", 1, told, (0, 8)), Stage("say", (0, 8), (), "look-up", 1)
    each = h.messages(work, 1)
    honest = h.stage(OTHERS, stage, "gradient", 1, each[OTHERS])
    assert honest.kind == "answer"
    run: Any = h.parties["party 1"].run.columns  # type: ignore[union-attr]
    refusals = 0
    for shift in (16, 48, 64, 80, 112):  # eight bits looked up elsewhere are the same with the chance 2^-8: all, 2^-40
        masked = tuple(field + shift for field in run._turn.masked)
        forged = {**each[OTHERS], "0": run._masker.enveloped(run._turn.label(), masked)}
        assert say(h, OTHERS, told, number=1, **h.dealt(work)[OTHERS]).kind == "answer"  # it begins again
        frame = h.stage(OTHERS, stage, "gradient", 1, forged)
        if frame.kind == "answer":
            assert np.array_equal(honest.arrays["envelope"], frame.arrays["envelope"])
            continue
        refused(frame, "something else was masked under this label")
        refusals += 1
    assert refusals
    assert say(h, OTHERS, told, number=1, **h.dealt(work)[OTHERS]).kind == "answer"
    again = h.stage(OTHERS, stage, "gradient", 1, each[OTHERS])
    assert np.array_equal(honest.arrays["envelope"], again.arrays["envelope"])


def test_shares_are_of_the_query_whose_messages_were_asked() -> None:
    h = hostile().set_up()
    told = told_of(h)
    each = h.look_up("gradient", 1, told)
    call = Call(h.plan.names, said=tuple(told))
    refused(h.ask("party 1", "gradient", 2, call, {**told, **each["party 1"]}), "lacks the parts")
    refused(h.ask("party 1", "gram", 1, Call(h.plan.names)), "turn")
    refused(h.stage("party 1", Stage("say", (0, 8), (), "look-up"), "gram", 0), "nothing is said or dealt")
    refused(say(h, "party 1", told, number=0), "turn")
    refused(h.stage("party 1", Stage("secrets", (0, 8), tuple(told)), "gradient", 1, told), "no stage")
    refused(h.stage("party 1", Stage("say", (0, 8), (), "null"), "nothing", 1), "no stage")


@pytest.mark.parametrize(
    "call",
    [
        Call(("party 1",)),
        Call(("party 1", "party 1")),
        Call(("party 1", "party 2", "coordinator")),
        Call(("party 1", "party 2"), 1),
    ],
)
def test_rosters_are_of_the_whole_plan(call: Call) -> None:
    h = hostile().set_up()
    arrays = h.dealt(h.work("gram", "gram", 0, {}))["party 1"]
    refused(h.ask("party 1", "gram", 0, call, arrays))
    first = h.ask("party 1", "gram", 0, Call(h.plan.names), arrays)
    again = h.ask("party 1", "gram", 0, Call(h.plan.names), arrays)
    assert np.array_equal(first.arrays["share"], again.arrays["share"])
    refused(h.ask("party 1", "gram", 0, Call(h.plan.names[::-1]), arrays), "another roster")


def test_by_rows_masks_are_for_all_that_was_told() -> None:
    plan = secure_plan("gradient", "rows", rounds=2, features=2, labels="shared")
    h = Hostile(plan, data_of(plan)).open()
    told = {"weights": np.ones(2)}
    refused(h.ask("party 1", "gradient", 0, Call(h.plan.names), told), "all that it takes")
    one = h.ask("party 1", "gradient", 0, Call(h.plan.names, said=("weights",)), told)
    assert one.kind == "answer"
    other = {"weights": -np.ones(2)}
    refused(h.ask("party 1", "gradient", 0, Call(h.plan.names, said=("weights",)), other), "told other numbers")


# ------------------------------------------------------------------------------------------------ whole rows


def whitened() -> tuple[Hostile, int, Any]:
    """A run up to the first gradient of whitened rows, and what it is told."""
    h = hostile("whitened", features=1).set_up()
    number, told = h.until("gradient")
    return h, number, dict(told)


def test_a_whitened_run_goes_through() -> None:
    h, number, told = whitened()
    assert np.abs(h.sum(number, "gradient", told)).max() <= largest(h, "gradient")


def test_factors_are_of_the_first_round_and_come_before_its_sum() -> None:
    h, number, told = whitened()
    dealt = {}
    work = h.work("factor", "gradient", number, told, (0, 8))
    for name in h.plan.names:
        refused(say(h, name, told, number=number, **dealt), "factor first")
    h.messages(work)
    stage = Stage("say", (0, 8), tuple(told), "factor", 0)
    refused(h.stage("party 1", stage, "gradient", number + 1, told))
    other = {**told, "projection": told["projection"] // 2}
    refused(h.stage("party 1", stage, "gradient", number, other), "other numbers")


@pytest.mark.parametrize("scale", [4, 64])
def test_a_projection_that_makes_rows_longer_than_levels_reach_is_refused(scale: int) -> None:
    """Beyond 252 C^2 levels repeat, and a row could be longer than the clip."""
    h, number, told = whitened()
    long = {**told, "projection": np.full_like(told["projection"], 2**12) * scale}
    for stage in (Stage("say", (0, 8), tuple(long), "factor", 0), Stage("recall", said=tuple(long))):
        refused(h.stage("party 1", stage, "gradient", number, long), "projection")


# ------------------------------------------------------------------------------------------------ plans and keys


def test_a_plan_is_run_once_and_two_plans_do_not_mix() -> None:
    h = hostile().set_up()
    first, told = h.plan, told_of(h)
    work = h.work("look-up", "gradient", 1, told, (0, 8))
    envelopes, following = h.messages(work, 1), Stage("say", (0, 8), (), "look-up", 1)
    second = h.keyed(first)
    h.pair(second)
    for name in first.names:  # another plan takes the place of the first
        assert h.said(name, Frame("plan", 0, second.digest, text=second.to_json())).kind == "accept"
    assert h.stage("party 1", following, "gradient", 1, envelopes["party 1"]).kind == "unknown-plan"
    refused(h.said("party 1", Frame("plan", 0, first.digest, text=first.to_json())), "run before")
    h.plan = second
    refused(h.stage("party 1", Stage("group")), "started")
    h.open(second)
    h.set_up()
    fresh = h.messages(work, 1)
    refused(h.stage("party 1", following, "gradient", 1, envelopes["party 1"]), "altered")
    assert not np.array_equal(fresh["party 1"]["1"], envelopes["party 1"]["1"])


def test_boxes_are_of_one_sender_stage_and_round() -> None:
    h = hostile(parties=3)
    envelopes = h.stage(h.plan.label_party_name, Stage("group")).arrays
    group = {n: {"group": envelopes[str(place)]} for place, n in enumerate(h.plan.names) if str(place) in envelopes}
    each = h.all(Stage("columns", (0, 8)), each=group)["party 1"]
    refused(h.stage("party 1", Stage("receive", (0, 8)), "", 0, {"1": each["2"], "2": each["1"]}), "altered")
    refused(h.stage("party 1", Stage("receive", (0, 8)), "", 0, {"1": each["1"]}), "lacks")


def test_the_key_of_the_group_is_the_holders() -> None:
    h = hostile()
    refused(h.stage(OTHERS, Stage("group")), "nobody else")
    refused(h.stage(OTHERS, Stage("columns", (0, 8))), "key of the parties")  # so nothing leaves


def test_sums_without_messages_are_no_programs() -> None:
    h = hostile().set_up()
    refused(h.stage("party 1", Stage("say", (0, 0), (), "gram"), "gram", 0), "no program")
