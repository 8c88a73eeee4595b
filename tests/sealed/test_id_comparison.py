"""Identifiers that parties with columns compare before a plan is charged, so that nobody else can test a guess."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import sottovoce as sv
from sealed_fits import RECORDS, Watched, by_columns, model
from sottovoce.app.jobs import SourceTable
from sottovoce.app.sources import file_shape, read_party, read_table_party
from sottovoce.data.identifiers import identifiers, written
from sottovoce.door.frames import Frame, decode, encode
from sottovoce.door.id_comparison import IdComparison
from sottovoce.errors import InputError, RefusedError
from sottovoce.federation import party as parties
from sottovoce.plan.plan import Plan
from sottovoce.sealed.streams import PAIR, RunKey, box, unbox
from sottovoce.sealed.sums import ColumnSealer, packed_box, unpacked_box
from summing import unchecked

IDS = [f"p{place:03}" for place in range(RECORDS)]
SWAPPED = [IDS[1], IDS[0], *IDS[2:]]
UNCHECKED = "no identifiers were compared"


def list_of(ids: Any, records: int, party: str) -> bytes:
    """What a party compares."""
    return written(identifiers(ids, records, party))


def ledgers(folder: Path) -> list[sv.Account]:
    """One for each party."""
    return [sv.Ledger.create(folder / f"{name}.db").open(name, epsilon=9.0, delta=1e-4) for name in "abc"]


def test_aligned_records_are_found_to_be(tmp_path: Path) -> None:
    accounts = ledgers(tmp_path)
    fitted = model().fit(by_columns(ids=[IDS, np.array(IDS), [f" {one} " for one in IDS]], ledgers=accounts))
    assert fitted.plan_.sealing.ids
    assert not any(UNCHECKED in text for text in fitted.privacy_.assumptions)
    assert all(account.balance().plans == 1 for account in accounts)


def test_records_in_another_order_end_the_run_before_anything_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = ledgers(tmp_path)
    with pytest.raises(RefusedError, match=r"records of \w and \w are not aligned.*nothing was charged") as refused:
        model().fit(by_columns(ids=[IDS, IDS, SWAPPED], ledgers=accounts))
    assert IDS[0] not in str(refused.value)
    assert all(account.balance().plans == 0 for account in accounts)
    monkeypatch.setattr(ColumnSealer, "same_digest", lambda self, sender, words, data: True)
    model().fit(by_columns(ids=[IDS, IDS, SWAPPED]))  # negative control: without the comparison it is silent garbage


@pytest.mark.parametrize("ids", [None, [IDS, None, IDS]])
def test_what_was_not_compared_is_said(ids: Any) -> None:
    fitted = model().fit(by_columns(ids=ids))
    assert not fitted.plan_.sealing.ids
    assert any(UNCHECKED in text for text in fitted.privacy_.assumptions)


def test_who_passes_digests_on_can_tell_nothing_from_them() -> None:
    """All that passes is of one length, new in every run, and no digest of the list by anything that passed."""
    seen: list[bytes] = []
    for lists in ([IDS] * 3, [IDS] * 3):
        wire = Watched(federation := by_columns(ids=lists))
        fitted = model().fit(federation)
        for name in "abc":
            for said, reply in wire.of(name, "seal"):
                if said.query == "ids" and said.round == 0:
                    seen += [unpacked_box(words) for words in reply.arrays.values()]
    assert len(seen) == 2 * 3 * 2
    assert len(set(seen)) == len(seen)
    assert {len(one) for one in seen} == {32 + 16}
    data = list_of(IDS, RECORDS, "a")
    public = [bytes.fromhex(key) for _, key in fitted.plan_.keys]
    guesses = [hashlib.sha256(data).digest(), *(hmac.digest(key, b"ids" + data, "sha256") for key in public)]
    assert not any(guess in one for guess in guesses for one in seen)


class Substitute:
    """A coordinator that has put a key of its own into the plan, in the name of another party, or of all others."""

    def __init__(self, *, everybody: bool = False) -> None:
        self.wire = Watched(federation := by_columns(ids=[IDS] * 3))
        self.party = federation._parties[0]
        plan = model().fit(federation).plan_
        self.others = {name: RunKey() for name in (plan.names[1:] if everybody else plan.names[1:2])}
        self.key = self.others["b"]
        hello = Frame("hello", 1, query="seal", text=json.dumps({"run": plan.run, "members": []}))
        own = self.told(hello)["public_key"]
        forged = {plan.names[0]: own, **{name: key.public for name, key in self.others.items()}}
        keys = tuple((name, forged.get(name, known)) for name, known in plan.keys)
        self.plan: Plan = plan.model_copy(update={"keys": keys})
        self.signatures = next(
            json.loads(said.text) for said, _ in self.wire.of("a", "seal") if said.query == "ids" and said.round == 0
        )
        self.told(Frame("plan", 2, self.plan.digest, 0, "check", {}, self.plan.to_json()))

    def told(self, frame: Frame) -> dict[str, Any]:
        """The facts of the party's answer."""
        answer = decode(self.party.handle(encode(frame)).data)
        found: dict[str, Any] = json.loads(answer.text) if answer.text else {"arrays": answer.arrays}
        return found

    def digests(self, signatures: Any) -> dict[str, Any]:
        """What the party answers when it is asked for its digests."""
        return self.told(Frame("seal", 3, self.plan.digest, 0, "ids", {}, json.dumps(signatures)))


def test_a_key_of_somebody_else_gets_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    attack = Substitute()
    for signatures in ({}, {**attack.signatures, "b": ""}, attack.signatures, []):
        assert "ignature of b" in attack.digests(signatures)["refused"]
    monkeypatch.setattr(parties, "check_signatures", lambda *_: None)  # negative control: a guess is found to be right
    box = unpacked_box(attack.digests({})["arrays"]["1"])
    pair = attack.key.shared(unchecked(dict(attack.plan.keys)["a"]), PAIR, attack.plan.digest, ("a", "b"))
    guess = hmac.digest(pair, b"ids" + list_of(IDS, RECORDS, "a"), "sha256")
    assert unbox(pair, ["ids"], "a", box) == guess


def test_a_plan_is_not_charged_before_the_comparison_that_it_promises() -> None:
    attack = Substitute()
    answer = attack.told(Frame("plan", 4, attack.plan.digest, 0, "", {}, attack.plan.to_json()))
    assert "once its identifiers were compared" in answer["refused"]
    compared = attack.told(Frame("seal", 5, attack.plan.digest, 1, "ids"))
    assert "whose signed keys were seen" in compared["refused"]


def guesses(attack: Substitute, ids: Any) -> dict[str, Any]:
    """Boxes of a guessed list, by a coordinator that has put keys of its own in the place of all others'."""
    own = dict(attack.plan.keys)["a"]
    boxes = {}
    for place, name in enumerate(attack.plan.names):
        if name != "a":
            pair = attack.others[name].shared(unchecked(own), PAIR, attack.plan.digest, ("a", name))
            digest = hmac.digest(pair, b"ids" + list_of(ids, RECORDS, "a"), "sha256")
            boxes[str(place)] = packed_box(box(pair, ["ids"], name, digest))
    return attack.told(Frame("seal", 5, attack.plan.digest, 1, "ids", boxes))


def test_a_guess_under_keys_that_nobody_signed_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    attack = Substitute(everybody=True)
    assert "whose signed keys were seen" in guesses(attack, IDS)["refused"]
    charge = attack.told(Frame("plan", 6, attack.plan.digest, 0, "", {}, attack.plan.to_json()))
    assert "once its identifiers were compared" in charge["refused"]
    monkeypatch.setattr(IdComparison, "_check_known", lambda _: None)  # negative control: guesses are told apart
    assert guesses(attack, IDS)["accepted"] is True
    assert "not aligned" in guesses(attack, SWAPPED)["refused"]
    assert "not aligned" in guesses(attack, IDS)["refused"]  # and once: a second list is not tried
    stranger = attack.told(Frame("seal", 6, bytes(32), 0, "ids"))
    assert "once it has checked it" in stranger["refused"]


def test_a_party_without_identifiers_compares_none() -> None:
    federation = by_columns()
    plan = model().fit(federation).plan_
    party = federation._parties[0]
    hello = Frame("hello", 1, query="seal", text=json.dumps({"run": plan.run, "members": []}))
    own = json.loads(decode(party.handle(encode(hello)).data).text)["public_key"]
    sealing = plan.sealing.changed(ids=True)
    asked = plan.model_copy(update={"sealing": sealing, "keys": (("a", own), *plan.keys[1:])})
    answer = decode(party.handle(encode(Frame("plan", 2, asked.digest, 0, "check", {}, asked.to_json()))).data)
    assert "a has none" in answer.text


@pytest.mark.parametrize(
    "ids",
    [
        [1, 2],
        [1, 1, 2],
        [1, None, 2],
        [1, float("nan"), 2],
        ["", "1", "2"],
        ["NA", "1", "2"],  # one in each of two files would be one person
        ["1", " ? ", "2"],
        [1, pd.NA, 2],
        [1, np.datetime64("NaT", "D"), 2],
        [1.0, 2.0**53, 3.0],  # 2^53 + 1, rounded: somebody else's
        np.array([1, 2**53 + 1, 3], dtype=float),
    ],
)
def test_every_record_has_an_identifier_of_its_own(ids: list[Any]) -> None:
    with pytest.raises(InputError, match="give each record one"):
        list_of(ids, 3, "a")


def test_identifiers_are_written_alike_by_all() -> None:
    lists = [[1, 20, 3], [1.0, 20.0, 3.0], ["1", " 20", "3 "], np.array([1, 20, 3]), np.array([1.0, 20.0, 3.0])]
    assert len({list_of(each, 3, "a") for each in lists}) == 1
    assert list_of([1, 20, 3], 3, "a") != list_of([12, 0, 3], 3, "a")
    assert list_of(["1,2", "3", "4"], 3, "a") != list_of(["1", "2,3", "4"], 3, "a")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_file_names_its_column_of_identifiers(tmp_path: Path, suffix: str) -> None:
    """It is no feature, and may be text."""
    path = tmp_path / f"clinic.{suffix}"
    columns = {"patient": ["x1", "x2", "x3"], "age": [0.1, 0.2, 0.3], "out": [1.0, 0.0, 1.0]}
    if suffix == "csv":
        lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
        path.write_text("\n".join([",".join(columns), *lines]) + "\n")
    else:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table(columns), path)

    def here(name: str) -> Path:
        return tmp_path / name

    party = read_party("clinic", SourceTable(file=path.name, label="out", id="patient"), here)
    assert party._list() == list_of(columns["patient"], 3, "clinic")
    assert party._feature_names == ("age",)
    assert file_shape(path, "out", None, left_out="patient") == (3, ("age",))
    schema = sv.Schema({"age": {"range": (0, 1)}}, label="out")
    encoded = read_table_party(
        "clinic", SourceTable(file=path.name, id="patient"), lambda name: tmp_path / name, schema
    )
    assert encoded._list() == party._list()
    for wrong in (
        SourceTable(file=path.name, label="out", id="pacient"),
        SourceTable(file="x.svm", id="id", features=2),
    ):
        (tmp_path / "x.svm").write_text("1 1:1\n")
        with pytest.raises(InputError, match=r"^id='"):
            read_party("clinic", wrong, lambda name: tmp_path / name)
    with pytest.raises(InputError, match=r"^id='pacient'"):
        file_shape(path, "out", None, left_out="pacient")
