"""Labels of masks are registered on disk: no copy or fork of a party puts one mask on two messages."""

from __future__ import annotations

import copy
import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.errors import LeakError, LedgerError, RefusedError
from sottovoce.federation.secure_columns.coordinator import Stage
from sottovoce.federation.secure_columns.dealer import LocalDeals
from sottovoce.gate.frames import Frame
from sottovoce.gate.secure_gate import UsedLabels
from sottovoce.privacy.mechanisms import SystemRandomness
from sottovoce.queries.joint import JointGradient
from sottovoce.secure import streams
from sottovoce.secure.ring import FINE, slope_chances
from sottovoce.secure.streams import TranscriptHash, open_envelope
from sottovoce.secure.sums import unpacked_envelope
from sottovoce.transports.identity import PLAN

sys.path.insert(0, str(Path(__file__).parent))
from hostile import Hostile, secure_plan

RECORDS = 8
WHO = "party 1"


def opened(folder: Path, *, ledgers: bool = True) -> Hostile:
    """Two parties, with ledgers or without, over secure columns, in the middle of their run."""
    plan = secure_plan("gradient", features=1, rounds=3, relation="zero-out", records=RECORDS, label_party=1)
    generator = np.random.default_rng(1)
    data = {name: (generator.uniform(-1, 1, (RECORDS, 1)), generator.uniform(-1, 1, RECORDS)) for name in plan.names}
    names = plan.names if ledgers else ()
    accounts = {n: sv.Ledger.create(folder / f"{n}.db").open(n, epsilon=50.0, delta=1e-2) for n in names}
    h = Hostile(plan, data, accounts=accounts)
    for party in h.parties.values():
        party.randomness = SystemRandomness()
    return h.open().set_up()


def told_of(h: Hostile, weight: float) -> dict[str, Any]:
    return dict(h.query("gradient").message(np.array([weight, 0.0])))


def scores(h: Hostile, weight: float, number: int) -> Frame:
    """What a party answers that is asked for its scores by a weight."""
    told = told_of(h, weight)
    deals = LocalDeals(h.plan, h.deals._keys, SystemRandomness())  # type: ignore[union-attr]
    deals._transcript = copy.deepcopy(h.parties[WHO].run.columns._transcript)  # type: ignore[union-attr]
    work = h.work("look-up", "gradient", number, told, (0, RECORDS))
    try:
        receiver, words = deals.deal(work)
    except RefusedError:  # the party was told otherwise: whatever is dealt
        deals._transcript = TranscriptHash()
        receiver, words = deals.deal(work)
    arrays = {**told, **({"dealt": words} if receiver == WHO else {})}
    return h.stage(WHO, Stage("say", (0, RECORDS), tuple(told), "look-up", 0), "gradient", number, arrays)


def in_a_copy(task: Callable[[], Any], file: Path) -> Any:
    """What a task gives in a copy of this process."""
    if (child := os.fork()) == 0:
        try:
            file.write_bytes(pickle.dumps(task()))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return pickle.loads(file.read_bytes())


def left_at_random(h: Hostile, seed: int) -> list[tuple[int, bytes]]:
    """Rounds and envelopes that left a party which is asked by random weights."""
    generator = np.random.default_rng(seed)
    first, found = h.plan.release("gradient").first, []
    for _ in range(6):
        number = first + int(generator.integers(3))
        reply = scores(h, float(generator.integers(2)), number)
        if reply.kind == "answer":
            found.append((number, reply.arrays["envelope"].tobytes()))
    return found


def check_one_box(lives: list[list[tuple[int, bytes]]]) -> None:
    """Of each round, over all lives."""
    envelopes = {
        number: {envelope for life in lives for n, envelope in life if n == number}
        for life in lives
        for number, _ in life
    }
    assert envelopes
    assert {len(each) for each in envelopes.values()} == {1}, "two envelopes in one round"


@pytest.mark.parametrize("seed", range(4))
def test_no_copy_of_a_party_puts_a_pad_on_two_messages(seed: int, tmp_path: Path) -> None:
    h = opened(tmp_path)
    lives = [in_a_copy(lambda life=life: left_at_random(h, 10 * seed + life), tmp_path / "copy") for life in range(3)]
    check_one_box([*lives, left_at_random(h, 10 * seed + 3)])


def test_planted_labels_that_are_not_registered_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    h = opened(tmp_path)
    monkeypatch.setattr(UsedLabels, "use", lambda self, label, content: None)
    lives = [in_a_copy(lambda life=life: left_at_random(h, life), tmp_path / "copy") for life in range(4)]
    with pytest.raises(AssertionError, match="two envelopes in one round"):
        check_one_box(lives)


def test_a_copy_that_is_asked_by_other_numbers_refuses_and_alike_says_the_same(tmp_path: Path) -> None:
    h = opened(tmp_path)
    number = h.plan.release("gradient").first
    one = in_a_copy(lambda: scores(h, 2.0, number).arrays["envelope"], tmp_path / "copy")
    refused = in_a_copy(lambda: scores(h, 1.0, number).text, tmp_path / "copy")
    assert "something else was masked under this label" in refused
    assert scores(h, 2.0, number).arrays["envelope"].tobytes() == one.tobytes()


def test_after_the_end_no_copy_masks_or_runs_the_plan_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    h = opened(tmp_path)
    party, number = h.parties[WHO], h.plan.release("gradient").first
    run, keys, charged = party.run, dict(party.keys._known), party.account.balance()  # type: ignore[union-attr]
    kept, folder = (run.gate, run.columns), tmp_path / f"{WHO}.db.secure"  # type: ignore[union-attr]
    files = sorted(folder.iterdir())
    assert [file.suffix for file in files] == [".key", ".labels", ".rows"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    h.said(WHO, Frame("done", 0, h.plan.digest))
    assert not list(folder.iterdir())
    with pytest.raises(RefusedError, match="the run of this plan is over"):
        kept[0].masked("message", ["look-up 0", number, 0, RECORDS, ""], lambda: (np.zeros(3, dtype=np.int64),))  # type: ignore[attr-defined]
    party.keys._known |= keys  # as it was before the plan, when all had agreed on keys
    monkeypatch.setattr(party.keys, "check_agreed", lambda plan: None)
    again = h.said(WHO, Frame("plan", 0, h.plan.digest, text=h.plan.to_json()))
    assert again.kind == "refuse"
    assert "this plan was run before" in json.loads(again.text)["refused"]
    assert not list(folder.glob("*.labels"))
    assert party.account.balance() == charged  # type: ignore[union-attr]


def test_while_it_runs_a_restarted_party_goes_on_with_the_same_register(tmp_path: Path) -> None:
    h = opened(tmp_path)
    party, number = h.parties[WHO], h.plan.release("gradient").first
    before, charged = scores(h, 2.0, number).arrays["envelope"].tobytes(), party.account.balance()  # type: ignore[union-attr]
    party.run = None
    assert h.said(WHO, Frame("plan", 0, h.plan.digest, text=h.plan.to_json())).kind == "accept"
    assert party.account.balance() == charged  # type: ignore[union-attr]
    signatures = {name: identity.sign(PLAN, h.plan.digest) for name, identity in h.identities.items()}
    h.said(WHO, Frame("plan", 0, h.plan.digest, query="start", text=json.dumps(signatures)))
    h.deals = LocalDeals(h.plan, h.deals._keys, SystemRandomness())  # type: ignore[union-attr]
    h.set_up()
    assert scores(h, 2.0, number).arrays["envelope"].tobytes() == before
    party.run.columns._turn = None  # type: ignore[union-attr]
    party.run.columns._transcript = TranscriptHash()  # type: ignore[union-attr]
    assert "something else was masked under this label" in scores(h, 1.0, number).text


def test_a_party_whose_register_is_gone_does_not_go_on(tmp_path: Path) -> None:
    h = opened(tmp_path)
    (labels,) = (tmp_path / f"{WHO}.db.secure").glob("*.labels")
    labels.unlink()
    h.parties[WHO].run = None
    again = h.said(WHO, Frame("plan", 0, h.plan.digest, text=h.plan.to_json()))
    assert "this plan was run before" in json.loads(again.text)["refused"]


def test_who_is_stopped_between_its_register_and_its_charge_goes_on(tmp_path: Path) -> None:
    """And one whose charge is refused leaves no register behind."""
    h = opened(tmp_path)
    party = h.parties[WHO]
    party.run, account = None, party.account
    other = sv.Ledger.create(tmp_path / "other.db").open("other", epsilon=50.0, delta=1e-2)
    party.account = other  # of a ledger that has not charged it, beside a register that is there
    monkey = party.keys._account
    party.keys._account = other.dataset
    refused = h.said(WHO, Frame("plan", 0, h.plan.digest, text=h.plan.to_json()))
    assert "on another account of its ledger" in json.loads(refused.text)["refused"]
    assert list((tmp_path / f"{WHO}.db.secure").glob("*.labels"))  # it is of a run that goes on
    party.account, party.keys._account = account, monkey
    assert h.said(WHO, Frame("plan", 0, h.plan.digest, text=h.plan.to_json())).kind == "accept"


def test_a_party_with_a_ledger_masks_nothing_that_is_not_registered(tmp_path: Path) -> None:
    h = opened(tmp_path)
    gate: Any = h.parties[WHO].run.gate  # type: ignore[union-attr]
    gate.used = UsedLabels()
    with pytest.raises(LeakError, match="no key to leave under"):
        gate.masked("message", ["look-up 0", 1, 0, 3, ""], lambda: (np.zeros(3, dtype=np.int64),))


def read_by_another_party(h: Hostile, file: Path) -> tuple[Any, Any]:
    """What another party has of the difference of two envelopes of a copied party, and the column that it would be."""
    number, whole = h.plan.release("gradient").first, (0, RECORDS)
    envelopes = {w: in_a_copy(lambda w=w: scores(h, w, number).arrays["envelope"], file) for w in (1.0, 2.0)}
    group, masked = h.parties["party 2"].run.columns._masker.group, []  # type: ignore[union-attr]
    for weight, envelope in envelopes.items():
        at = TranscriptHash().after("gradient", number, told_of(h, weight)).label("look-up 0", whole)
        masked.append(np.frombuffer(open_envelope(group, at, WHO, unpacked_envelope(envelope)), dtype=np.int8))
    table = h.query("gradient").lookup(told_of(h, 1.0))
    run: Any = h.parties[WHO].run
    return (masked[1] - masked[0]) * (table.level / 2**FINE), run.rows.dense_rows(1)[:, 0]


def one_level(self: Any, weights: Any, gram: Any = None) -> dict[str, Any]:
    """Levels so near that scores show a column."""
    level = 4 * 2.0**-6
    chances = slope_chances(self.loss, self.slope_bound, level)
    return {"weights": weights, "level": np.array([level]), "chances": chances}


def test_a_copy_without_a_ledger_has_other_masks_for_other_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So who has the key of the envelopes reads nothing; planted labels without what was told show the column."""
    h = opened(tmp_path, ledgers=False)
    monkeypatch.setattr(JointGradient, "message", one_level)
    read, column = read_by_another_party(h, tmp_path / "copy")
    near = 0.02  # a step of a score and one of a row
    assert np.abs(read - column).max() > near  # eight uniform bytes are all that near with a chance below 1e-6
    monkeypatch.setattr(streams, "hash_of", lambda told: "")
    read, column = read_by_another_party(h, tmp_path / "copy")
    assert np.abs(read - column).max() <= near


def file_of(used: UsedLabels) -> Path:
    assert used.path is not None
    return used.path


class TestFile:
    @pytest.fixture
    def used(self, tmp_path: Path) -> UsedLabels:
        found = UsedLabels(tmp_path / "folder" / "x.labels")
        found.begin()
        return found

    def test_a_label_has_one_content_and_one_line(self, used: UsedLabels) -> None:
        for _ in range(3):
            used.use("one", b"content")
        used.use("other", b"content")
        assert len(file_of(used).read_bytes().splitlines()) == 2
        with pytest.raises(RefusedError, match="a mask is used once"):
            used.use("one", b"something else")
        used.use("one", b"content")

    def test_in_memory_too(self) -> None:
        used = UsedLabels()
        assert used.begin()
        used.use("one", b"content")
        used.use("one", b"content")
        with pytest.raises(RefusedError, match="a mask is used once"):
            used.use("one", b"something else")
        used.end()

    def test_a_line_that_was_torn_is_dropped(self, used: UsedLabels) -> None:
        used.use("one", b"content")
        whole = file_of(used).read_bytes()
        for cut in (1, 60, len(whole) - 1):
            file_of(used).write_bytes(whole + whole[:cut])
            used.use("other", b"content")
            assert file_of(used).read_bytes()[: len(whole)] == whole
            assert len(file_of(used).read_bytes()) == 2 * len(whole)

    def test_of_many_processes_one_is_first(self, used: UsedLabels) -> None:
        copies = []
        for number in range(8):
            if (copy := os.fork()) == 0:
                try:
                    used.use("one", bytes([number]))
                    os._exit(0)
                except RefusedError:
                    os._exit(3)
            copies.append(copy)
        ended = [os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) for copy in copies]
        assert sorted(ended) == [0, *[3] * 7]

    def test_it_is_new_once_and_gone_after_the_run(self, used: UsedLabels) -> None:
        assert not used.begin()
        used.end()
        with pytest.raises(RefusedError, match="is over"):
            used.use("one", b"content")

    def test_where_it_cannot_be_written_nothing_is_registered(self, tmp_path: Path) -> None:
        (tmp_path / "folder").write_text("no folder")
        with pytest.raises(LedgerError, match="used labels cannot be registered"):
            UsedLabels(tmp_path / "folder" / "x").begin()
