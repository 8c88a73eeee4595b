"""What a coordinator that does not follow the protocol is refused: no pad twice, no record twice, no other noise."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.door.frames import Frame
from sottovoce.errors import RefusedError
from sottovoce.federation.sealed_columns.messages import Stage
from sottovoce.plan.plan import Plan
from sottovoce.sealed import pads
from sottovoce.sealed.sums import Call
from support import forged

sys.path.insert(0, str(Path(__file__).parent))
from hostile import Hostile, sealed_plan

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
    plan = sealed_plan(solver, **{"rounds": 3, "features": 2, "relation": "zero-out", **fields})
    return Hostile(plan, data_of(plan)).open()


def told_of(h: Hostile, widen: int = 1) -> dict[str, Any]:
    return {"weights": np.linspace(-1, 1, h.plan.dimension), "widen": np.array([widen], dtype=np.int64)}


def whitened() -> tuple[Hostile, dict[str, Any]]:
    """A run up to the whitened columns, and what the first gradient is told."""
    h = hostile("whitened", features=1).set_up()
    query = h.query("gradient")
    blocks = query.blocks
    h.gram()
    h.own("residual", 1, {"mean": np.zeros(1)})
    told = blocks.told([np.eye(s.stop - s.start) for s in blocks.columns], np.zeros(h.plan.dimension))
    h.own("length", 2, {**told, "radii": np.ones(len(blocks))})
    cuts = np.full(len(blocks), 0.5)
    nodes = np.zeros((1, query.words), dtype=np.int64)
    told = {"weights": np.ones(h.plan.dimension), "nodes": nodes, "level": np.ones(1), "cuts": cuts}
    return h, told


def refused(frame: Frame, *words: str) -> None:
    assert frame.kind == "refuse", (frame.kind, frame.text)
    assert all(word in frame.text for word in words), frame.text


@pytest.fixture
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages in which few records fit."""
    monkeypatch.setattr(pads, "FRAME", 8 * 32 * 3)


def largest(h: Hostile, query: str) -> float:
    """What no opened whole number of a sum is beyond."""
    release = h.plan.release(query)
    return (h.plan.records * release.charged_zero_out + 64 * 2 * release.std) / release.step


# ------------------------------------------------------------------------------------------------ noise and grids


@pytest.mark.parametrize("query", ["gram", "gradient"])
def test_a_grid_that_is_not_that_of_products_is_refused(query: str) -> None:
    """Products are whole numbers of 4^-bits; noise of so many coarser steps would be none."""
    h = Hostile(plan := sealed_plan(rounds=3, features=2), data_of(plan))
    coarse = {"step": 2.0**-12, "charged_zero_out": 1.01, "charged_replace_one": 2.01}  # its rounding is paid for
    releases = [r.model_dump() | (coarse if r.query == query else {}) for r in h.plan.releases]
    digest, text = forged(h.plan, releases=releases)
    refused(h.said("party 1", Frame("plan", 0, digest, text=text)), "grid")


def test_a_round_has_one_sum_and_the_gram_matrix_one_round() -> None:
    plan = sealed_plan(rounds=3, features=2)
    gram, gradient = plan.releases
    with pytest.raises(RefusedError, match="pads are by rounds"):
        plan.model_copy(update={"releases": (gram, gradient.model_copy(update={"first": 0}))})
    h = Hostile(plan, data_of(plan))
    later = {"first": 2}
    twice = h.plan.model_copy(
        update={"releases": (gram.model_copy(update={"count": 2}), gradient.model_copy(update=later))}
    )
    refused(h.said("party 1", Frame("plan", 0, twice.digest, text=twice.to_json())), "once is all")


def test_parties_that_round_their_own_sums_pay_for_each_rounding() -> None:
    for parties in (2, 3):
        plan = sealed_plan("whitened", parties=parties, rounds=3, features=1)
        release = plan.release("length")
        assert release.charged_zero_out >= 1 + parties * release.step


def test_the_dealer_deals_once() -> None:
    h = hostile().set_up()
    deals, gram = h.deals, h.query("gram")
    assert deals is not None
    first, again = deals.gram(gram), deals.gram(gram)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    told = told_of(h)
    piece = h.pieces("gradient", told)[0]
    one, two = (deals.lookup(1, h.query("gradient"), told, piece) for _ in range(2))
    assert all(np.array_equal(one[n][what], two[n][what]) for n in one for what in one[n])
    with pytest.raises(RefusedError, match="told other numbers before"):
        deals.lookup(1, h.query("gradient"), {**told, "weights": 2 * told["weights"]}, piece)
    with pytest.raises(RefusedError, match="dealt once"):
        deals.gram(gram)
    with pytest.raises(RefusedError, match="turn"):
        deals.lookup(2, h.query("gradient"), told, (0, 1))


# ------------------------------------------------------------------------------------------------ pieces and stages


@pytest.mark.parametrize("stage", ["columns", "scores", "receive"])
@pytest.mark.parametrize("piece", [(0, 1), (1, 8), (-4, 8), (0, 9), (0, 0)])
def test_records_are_cut_by_the_public_rule_alone(stage: str, piece: tuple[int, int]) -> None:
    h = hostile()
    told = told_of(h)
    if stage == "scores":
        h.set_up()
        arrays = {
            **told,
            **{n: {"table": w["table"]} for n, w in h.dealt("gradient", 1, told, (0, 8)).items()}.get(OTHERS, {}),
        }
        refused(h.stage(OTHERS, Stage(stage, piece, tuple(told)), "gradient", 1, arrays), "turn")
        return
    boxes = h.stage(h.plan.label_party_name, Stage("group")).arrays
    refused(h.stage(OTHERS, Stage(stage, piece), "", 0, {"group": boxes["1"], "0": boxes["1"]}), "turn")


def test_a_piece_counts_once(small_frames: None) -> None:
    """Asked again, it is not added again: else a record could be made as loud as one likes."""
    h = hostile().set_up()
    told = told_of(h)
    pieces = h.pieces("gradient", told)
    assert len(pieces) > 2
    for piece in pieces:
        each = h.slopes("gradient", 1, told, piece)
        for _ in range(0 if piece == pieces[-1] else 200):
            h.all(Stage("gradient", piece), "gradient", 1, each)
    opened = h.shares("gradient", 1, told, each)
    assert np.abs(opened).max() <= largest(h, "gradient")


def test_pieces_come_in_their_order_and_are_all_of_the_sum(small_frames: None) -> None:
    h = hostile().set_up()
    told = told_of(h)
    first, second, *_, last = h.pieces("gradient", told)
    table = {n: {"table": w["table"]} for n, w in h.dealt("gradient", 1, told, second).items()}
    for name in h.plan.names:
        frame = h.stage(name, Stage("scores", second, tuple(told)), "gradient", 1, {**told, **table.get(name, {})})
        refused(frame, "turn")
    each = h.slopes("gradient", 1, told, first)
    refused(h.stage(OTHERS, Stage("gradient", last), "gradient", 1, each[OTHERS]), "turn")
    refused(h.stage(OTHERS, Stage("slopes", second), "gradient", 1, each[OTHERS]), "turn")
    refused(h.ask(OTHERS, "gradient", 1, Call(h.plan.names, said=tuple(told)), {**told, **each[OTHERS]}), "turn")


def test_every_piece_is_in_the_sum(small_frames: None) -> None:
    """With the parts of all pieces the sum is that of the table, within its noise."""
    h = hostile().set_up()
    told = told_of(h)
    opened = h.shares("gradient", 1, told, h.look_up("gradient", 1, told))
    assert np.abs(opened).max() <= largest(h, "gradient")


def test_words_of_the_dealer_are_neither_left_out_nor_given_to_others() -> None:
    """Without its words a party would make a share that goes with no table: slopes would have no bound."""
    h = hostile().set_up()
    told = told_of(h)
    whole = h.pieces("gradient", told)[0]
    dealt = h.dealt("gradient", 1, told, whole)
    assert set(dealt) == {OTHERS}
    refused(h.stage(OTHERS, Stage("scores", whole, tuple(told)), "gradient", 1, told), "dealt")
    arrays = {**told, "table": dealt[OTHERS]["table"]}
    refused(h.stage("party 1", Stage("scores", whole, tuple(told)), "gradient", 1, arrays), "dealt")
    refused(h.ask("party 1", "gram", 0, Call(h.plan.names)), "dealt")


# ------------------------------------------------------------------------------------------------ what was asked


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"weights": np.full(3, 1.0)}, "weights"),
        ({"widen": np.array([3], dtype=np.int64)}, "widen"),
        ({"widen": np.array([16], dtype=np.int64)}, "widen"),
    ],
)
def test_numbers_that_no_look_up_takes_are_refused(change: dict[str, Any], word: str) -> None:
    h = hostile().set_up()
    told = {**told_of(h), **change}
    frame = h.stage("party 1", Stage("scores", (0, 8), tuple(told)), "gradient", 1, told)
    refused(frame, word)


def test_a_sum_is_of_the_numbers_that_its_scores_were_told() -> None:
    """So what masks are made for is what the words were made by."""
    h = hostile().set_up()
    told = told_of(h)
    each = h.look_up("gradient", 1, told)
    other = {**told, "weights": -told["weights"]}
    refused(
        h.ask("party 1", "gradient", 1, Call(h.plan.names, said=tuple(other)), {**other, **each["party 1"]}), "other"
    )
    fewer = Call(h.plan.names, said=("weights",))
    refused(h.ask("party 1", "gradient", 1, fewer, {**told, **each["party 1"]}), "widen")
    assert np.abs(h.shares("gradient", 1, told, each)).max() <= largest(h, "gradient")


def test_scores_are_masked_once_and_sent_again_alike() -> None:
    h = hostile().set_up()
    told = told_of(h)
    whole = (0, 8)
    first, second = (h.scores("gradient", 1, told, whole) for _ in range(2))
    assert all(np.array_equal(first[n][p], second[n][p]) for n in first for p in first[n])
    other = {**told, "weights": -told["weights"]}
    table = h.dealt("gradient", 1, told, whole)[OTHERS]["table"]
    frame = h.stage(OTHERS, Stage("scores", whole, tuple(other)), "gradient", 1, {**other, "table": table})
    refused(frame, "other numbers")


def test_shares_are_of_the_query_whose_scores_were_asked() -> None:
    h = hostile().set_up()
    told = told_of(h)
    each = h.look_up("gradient", 1, told)
    call = Call(h.plan.names, said=tuple(told))
    refused(h.ask("party 1", "gradient", 2, call, {**told, **each["party 1"]}), "scores first")
    refused(h.ask("party 1", "gram", 1, Call(h.plan.names)), "turn")
    refused(h.stage("party 1", Stage("scores", (0, 8)), "gram", 0), "looks nothing up")
    refused(h.stage("party 1", Stage("scores", (0, 8)), "gradient", 0), "turn")
    refused(h.stage("party 1", Stage("secrets", (0, 8), tuple(told)), "gradient", 1, told), "no stage")


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
    assert h.deals is not None
    dealt = h.deals.gram(h.query("gram"))
    arrays = {"dealt": dealt["party 1"]}
    refused(h.ask("party 1", "gram", 0, call, arrays))
    first = h.ask("party 1", "gram", 0, Call(h.plan.names), arrays)
    again = h.ask("party 1", "gram", 0, Call(h.plan.names), arrays)
    assert np.array_equal(first.arrays["sealed"], again.arrays["sealed"])
    refused(h.ask("party 1", "gram", 0, Call(h.plan.names[::-1]), arrays), "another roster")


def test_by_rows_masks_are_for_all_that_was_told() -> None:
    plan = sealed_plan("gradient", "rows", rounds=2, features=2, labels="shared")
    h = Hostile(plan, data_of(plan)).open()
    told = {"weights": np.ones(2)}
    refused(h.ask("party 1", "gradient", 0, Call(h.plan.names), told), "all that it takes")
    one = h.ask("party 1", "gradient", 0, Call(h.plan.names, said=("weights",)), told)
    assert one.kind == "answer"
    other = {"weights": -np.ones(2)}
    refused(h.ask("party 1", "gradient", 0, Call(h.plan.names, said=("weights",)), other), "told other numbers")


# ------------------------------------------------------------------------------------------------ whitened columns


def test_whitened_columns_are_made_once_by_numbers_that_every_sum_says() -> None:
    """Parties with other cuts would have rows that are together too long; their masks must not cancel."""
    h, told = whitened()
    whole = (0, 8)
    long = {**told, "cuts": np.array([1e3, 1e-3])}
    assert h.stage("party 1", Stage("whitened", whole, tuple(long)), "gradient", 3, long).kind == "answer"
    refused(h.stage("party 1", Stage("whitened", whole, tuple(told)), "gradient", 3, told), "other numbers")
    table = {n: {"table": w["table"]} for n, w in h.dealt("gradient", 3, told, whole).items()}
    arrays = {**told, **table.get("party 1", {})}
    refused(h.stage("party 1", Stage("scores", whole, tuple(told)), "gradient", 3, arrays), "other numbers")


@pytest.mark.parametrize("cuts", [[-1.0, 1.0], [0.0, 1.0], [1.0], [1e300, 1.0]])
def test_cuts_that_are_none_are_refused_before_a_row_is_cut(cuts: list[float]) -> None:
    h, told = whitened()
    wrong = {**told, "cuts": np.array(cuts)}
    refused(h.stage("party 1", Stage("whitened", (0, 8), tuple(wrong)), "gradient", 3, wrong), "cuts")


def test_a_whitened_run_goes_through() -> None:
    h, told = whitened()
    whole = (0, 8)
    each = h.all(Stage("whitened", whole, tuple(told)), "gradient", 3, **told)
    h.all(Stage("receive", whole), "gradient", 3, each)
    opened = h.shares("gradient", 3, told, h.look_up("gradient", 3, told))
    assert np.abs(opened).max() <= largest(h, "gradient")


# ------------------------------------------------------------------------------------------------ plans and keys


def test_a_plan_is_run_once_and_two_plans_do_not_mix() -> None:
    h = hostile().set_up()
    first, told = h.plan, told_of(h)
    boxes = h.scores("gradient", 1, told, (0, 8))
    second = h.keyed(first)
    h.pair(second)
    for name in first.names:  # another plan takes the place of the first
        assert h.said(name, Frame("plan", 0, second.digest, text=second.to_json())).kind == "accept"
    assert h.stage("party 1", Stage("slopes", (0, 8)), "gradient", 1, boxes["party 1"]).kind == "unknown-plan"
    refused(h.said("party 1", Frame("plan", 0, first.digest, text=first.to_json())), "run before")
    h.plan = second
    refused(h.stage("party 1", Stage("group")), "started")
    h.open(second)
    h.set_up()
    fresh = h.scores("gradient", 1, told, (0, 8))
    refused(h.stage("party 1", Stage("slopes", (0, 8)), "gradient", 1, boxes["party 1"]), "altered")
    assert not np.array_equal(fresh["party 1"]["1"], boxes["party 1"]["1"])


def test_boxes_are_of_one_sender_stage_and_round() -> None:
    h = hostile(parties=3).set_up()
    told = told_of(h)
    boxes = h.scores("gradient", 1, told, (0, 8))
    swapped = {"1": boxes["party 1"]["2"], "2": boxes["party 1"]["1"]}
    refused(h.stage("party 1", Stage("slopes", (0, 8)), "gradient", 1, swapped), "altered")
    h2 = hostile(parties=3).set_up()
    boxes = h2.scores("gradient", 1, told, (0, 8))
    refused(h2.stage("party 1", Stage("slopes", (0, 8)), "gradient", 1, {"1": boxes["party 1"]["1"]}), "lacks")


def test_the_key_of_the_group_is_the_holders() -> None:
    h = hostile()
    refused(h.stage(OTHERS, Stage("group")), "nobody else")
    assert h.stage(OTHERS, Stage("columns", (0, 8))).kind == "error"  # no key yet, so nothing leaves
