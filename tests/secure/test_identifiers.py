"""Identifiers of records: how all write them, and that secure columns are of parties that were aligned."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import sottovoce as sv
from secure_fits import RECORDS, by_columns, data, model
from sottovoce.app.job_file import SourceTable
from sottovoce.app.sources import read_party, source_shape
from sottovoce.data.identifiers import hash_of_list, identifiers
from sottovoce.errors import InputError, RefusedError
from sottovoce.federation.party import Party
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.secure.pair_keys import fingerprint_of
from sottovoce.transports.base import InProcess

IDS = [f"p{place:03}" for place in range(RECORDS)]
SWAPPED = [IDS[1], IDS[0], *IDS[2:]]
UNALIGNED = "they were not aligned"


def list_of(ids: Any, records: int, party: str) -> str:
    """As all write it."""
    return hash_of_list(identifiers(ids, records, party))


def ledgers(folder: Path) -> list[sv.Account]:
    """One for each party."""
    return [sv.Ledger.create(folder / f"{name}.db").open(name, epsilon=9.0, delta=1e-4) for name in "abc"]


def test_lists_of_one_process_are_compared_by_who_has_them_all(tmp_path: Path) -> None:
    accounts = ledgers(tmp_path)
    fitted = model().fit(by_columns(ids=[IDS, np.array(IDS), [f" {one} " for one in IDS]], ledgers=accounts))
    assert len(fitted.plan_.aggregation.aligned) == 64
    assert not any(UNALIGNED in text for text in fitted.privacy_.weakest.assumes)
    assert all(account.balance().plans == 1 for account in accounts)
    for lists in ([IDS, IDS, SWAPPED], [IDS, [*IDS[:-1], "x"], IDS], [IDS, None, IDS], [None, IDS, IDS]):
        with pytest.raises(InputError, match=r"^ids: the lists of a and \w differ") as refused:
            by_columns(ids=lists)
        assert IDS[0] not in str(refused.value)


def test_what_was_not_aligned_is_said() -> None:
    fitted = model().fit(by_columns())
    assert not fitted.plan_.aggregation.aligned
    assert any(UNALIGNED in text for text in fitted.privacy_.weakest.assumes)


class Elsewhere:
    """Three parties with identifiers, each with a ledger, as if of three processes."""

    def __init__(self, folder: Path) -> None:
        X, y = data()
        parts = {"a": X[:, :1], "b": X[:, 1:3], "c": X[:, 3:]}
        self.accounts = dict(zip("abc", ledgers(folder), strict=True))
        policy = sv.Policy(secure=True)
        self.parties = [
            Party(name, part, y if name == "b" else None, ids=IDS, policy=policy, account=self.accounts[name])
            for name, part in parts.items()
        ]
        self.wire = InProcess(self.parties)

    def align(self, **digests: str) -> None:
        """As alignments of these digests would leave them."""
        for party in self.parties:
            party.use(np.arange(RECORDS), digests.get(party.name, "11" * 32))

    def fit(self) -> Any:
        """A fit over secure columns."""
        norms = np.sqrt([0.25, 0.5, 0.25]).tolist()
        federation = sv.Federation.connect(
            self.wire, split="columns", labels="held", label_party=1, norms=norms, products="secure"
        )
        return model().fit(federation)

    def charged(self) -> int:
        """How many plans all accounts have."""
        return sum(account.balance().plans for account in self.accounts.values())

    def told(self, name: str, plan: Any, aligned: str) -> str:
        """What a party says to the check of a plan that was changed to be of that alignment."""
        party = self.parties["abc".index(name)]
        hello = Frame("hello", 1, query="secure", text=json.dumps({"members": []}))
        own = json.loads(decode(party.handle(encode(hello)).data).text)["public_key"]
        keys = tuple((end, fingerprint_of(own) if end == name else key) for end, key in plan.keys)
        asked = plan.model_copy(update={"aggregation": plan.aggregation.changed(aligned=aligned), "keys": keys})
        return decode(party.handle(encode(Frame("plan", 2, asked.digest, 0, "check", {}, asked.to_json()))).data).text


def test_parties_with_identifiers_are_aligned_before_anything_is_charged(tmp_path: Path) -> None:
    ends = Elsewhere(tmp_path)
    with pytest.raises(RefusedError, match=r"\w has identifiers, and they were not aligned.*`sottovoce align`"):
        ends.fit()
    ends.align(c="22" * 32)
    with pytest.raises((InputError, RefusedError), match="different alignments"):
        ends.fit()
    assert ends.charged() == 0
    ends.align()
    assert ends.fit().plan_.aggregation.aligned == "11" * 32
    assert ends.charged() == 3


def test_a_party_takes_secure_columns_of_its_own_alignment_alone(tmp_path: Path) -> None:
    """Whatever the coordinator says of the others."""
    ends = Elsewhere(tmp_path)
    ends.align()
    plan = ends.fit().plan_
    assert json.loads(ends.told("a", plan, "11" * 32)) == {"accepted": True}
    assert "about records of another one" in ends.told("a", plan, "22" * 32)
    assert "about records that were not aligned" in ends.told("a", plan, "")
    strangers = by_columns()
    ends.parties = strangers._parties
    plan = model().fit(strangers).plan_
    assert "serves no aligned records" in ends.told("a", plan, "22" * 32)
    assert json.loads(ends.told("a", plan, "")) == {"accepted": True}
    with pytest.raises(ValueError, match="aligned"):
        plan.aggregation.changed(aligned="a list")


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
    columns = {"patient": ["X1", "0042", "x3"], "age": [0.1, 0.2, 0.3], "out": [1.0, 0.0, 1.0]}
    if suffix == "csv":
        lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
        path.write_text("\n".join([",".join(columns), *lines]) + "\n")
    else:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table(columns), path)

    def here(name: str) -> Path:
        return tmp_path / name

    party = read_party("clinic", SourceTable(file=path.name, label="out", id="patient"), here)
    assert party.ids == tuple(identifiers(columns["patient"], 3, "clinic")) == ("x1", "42", "x3")
    assert party.written_ids == ("X1", "0042", "x3")  # to be joined with the file
    assert party.feature_names == ("age",)
    assert source_shape(SourceTable(file=path.name, label="out", id="patient"), here) == (3, ("age",))
    schema = sv.Schema({"age": {"range": (0, 1)}}, label="out")
    encoded = read_party("clinic", SourceTable(file=path.name, id="patient"), here, schema=schema)
    assert encoded.ids == party.ids
    for wrong in (
        SourceTable(file=path.name, label="out", id="pacient"),
        SourceTable(file="x.svm", id="id", features=2),
    ):
        (tmp_path / "x.svm").write_text("1 1:1\n")
        for read in (functools.partial(read_party, "clinic"), source_shape):
            with pytest.raises(InputError, match=r"^id='"):
                read(wrong, here)
