"""What an alignment changes for a party: its rows in all that it serves, and nothing of the old order stays usable."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from secure_fits import data, model
from sottovoce.app.job_file import SourceTable
from sottovoce.app.sources import read_party
from sottovoce.errors import InputError, RefusedError, WireError
from sottovoce.federation.alignment import AlignmentFile, new_terms
from sottovoce.federation.coordinator import Coordinator
from sottovoce.federation.models import Predictor
from sottovoce.federation.party import Party
from sottovoce.federation.policy import Policy
from sottovoce.federation.replies import MASKED
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.transports.base import InProcess

NAMES = ("a", "b", "c")
POLICY = Policy(align=NAMES, secure=True, align_times=9, predict_for=("b",), predict_training=True, approve_models=True)


class Tapped(InProcess):
    """A wire in this process whose frames are kept; `lie` changes or leaves out (None) what is passed on."""

    def __init__(self, parties: Any) -> None:
        super().__init__(parties)
        self.passed: list[tuple[str, Frame, Frame]] = []

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        replies = super().exchange(messages)
        self.passed += [(name, decode(data), decode(replies[name])) for name, data in messages.items()]
        return replies

    def asked(self, name: str, kind: str) -> list[tuple[Frame, Frame]]:
        return [(frame, answer) for whose, frame, answer in self.passed if (whose, frame.kind) == (name, kind)]


def parties_of(seed: int = 3) -> list[Party]:
    """Three parties with columns of the same 60 people and 3 others each, each in its own order."""
    X, y = data()
    X, y = np.vstack([X, X[:9]]), np.append(y, y[:9])
    order = random.Random(seed)
    found = []
    for place, (name, part) in enumerate({"a": X[:, :1], "b": X[:, 1:3], "c": X[:, 3:]}.items()):
        ids = order.sample([*range(60), *range(60 + 3 * place, 63 + 3 * place)], 63)
        found.append(Party(name, part[ids], y[ids] if name == "b" else None, policy=POLICY, ids=ids))
    return found


def fitted_on(parties: list[Party], wire: Tapped) -> tuple[Any, sv.Federation]:
    federation = sv.Federation("columns", wire, parties=parties)
    federation.declare_columns("held", 1, np.sqrt([0.25, 0.5, 0.25]).tolist())._secure(
        "products", "secure", "none", "auto"
    )
    return model(epsilon=1e6).fit(federation), federation


def align(parties: list[Party], wire: Any) -> None:
    Coordinator(wire).align(new_terms([party.name for party in parties]))


@pytest.fixture(scope="module")
def trained() -> tuple[list[Party], Tapped, Any]:
    parties = parties_of()
    wire = Tapped(parties)
    align(parties, wire)
    fitted, _ = fitted_on(parties, wire)
    return parties, wire, fitted


def test_labels_and_joint_predictions_are_those_of_the_plain_join(trained: tuple[list[Party], Tapped, Any]) -> None:
    parties, wire, fitted = trained
    X, y = data()
    people = [int(one) for one in parties[0].ids or ()]
    np.testing.assert_array_equal(np.hstack([party.rows for party in parties]), X[people])
    np.testing.assert_array_equal(parties[1].labels, y[people])
    Coordinator(wire).predict(fitted.plan_, fitted.plan_.digest, "b")
    assert parties[1].predictions is not None
    np.testing.assert_allclose(parties[1].predictions.scores, fitted.decision_function(X[people]), atol=1e-9)


def test_a_request_for_predictions_is_not_answered_in_two_orders(
    trained: tuple[list[Party], Tapped, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One mask on two rows: their difference would be open to who passes them on."""
    parties, wire, fitted = trained
    Coordinator(wire).predict(fitted.plan_, fitted.plan_.digest, "b")
    request, first = wire.asked("a", "predict")[-1]
    align(parties, wire)
    again = decode(parties[0].handle(encode(request)).data)
    assert MASKED not in again.arrays
    assert "another public key" in again.text
    assert parties[1].predictor.received is parties[1].predictor._scored is None  # scores of the old order

    monkeypatch.setattr(Predictor, "renew", lambda self, aligned: None)  # planted fault
    Coordinator(wire).predict(fitted.plan_, fitted.plan_.digest, "b")
    request, first = wire.asked("a", "predict")[-1]
    before = parties[0].rows
    align(parties, wire)
    again = decode(parties[0].handle(encode(request)).data)
    own = fitted.plan_.part("a").preparation.scores(before, fitted.coef_.ravel()[:1], 0.0)
    other = fitted.plan_.part("a").preparation.scores(parties[0].rows, fitted.coef_.ravel()[:1], 0.0)
    difference = first.arrays[MASKED][:, 0] - again.arrays[MASKED][:, 0]
    np.testing.assert_allclose(difference * 2.0**-44, own - other, atol=1e-6)  # read without any key


def test_no_sum_over_two_people_is_read(trained: tuple[list[Party], Tapped, Any]) -> None:
    """The end of an alignment was kept from one party: the coordinator asks for scores in two orders."""
    parties, wire, fitted = trained
    rest = Withheld(parties, "c")
    align(parties, wire)
    with pytest.raises(WireError):
        align(parties, rest)
    assert parties[0].ids == parties[1].ids != parties[2].ids
    coordinator = Coordinator(Silent(parties))
    coordinator.predict(fitted.plan_, fitted.plan_.digest, "b")
    assert parties[1].predictions is None
    assert parties[1].predictor._scored is not None
    assert np.isfinite(parties[1].predictor._scored[2]).sum() < 7  # by chance 2^-12 each: once in 10^16
    for party in parties:
        party.predictor._aligned = ""  # planted fault: masks that are the same in any order
    Coordinator(Silent(parties)).predict(fitted.plan_, fitted.plan_.digest, "b")
    assert parties[1].predictions is not None


class Withheld(InProcess):
    """A wire that ends an alignment without telling one party so."""

    def __init__(self, parties: Any, name: str) -> None:
        super().__init__(parties)
        self._name = name

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        if {decode(data).query for data in messages.values()} != {"agreed"}:
            return super().exchange(messages)
        super().exchange({name: data for name, data in messages.items() if name != self._name})
        raise WireError("cut")


def test_aligned_records_are_compared_also_where_the_coordinator_would_not(
    trained: tuple[list[Party], Tapped, Any],
) -> None:
    parties, wire, _ = trained
    align(parties, wire)
    with pytest.raises(WireError):
        align(parties, Withheld(parties, "c"))
    with pytest.raises(RefusedError, match="about records that were not aligned"):
        fitted_on(parties, Silent(parties))
    for party in parties:
        # planted fault: orders that differ, silently
        party.aligned, party.policy = "", dataclasses.replace(party.policy, unaligned=True)
    fitted, _ = fitted_on(parties, Silent(parties))
    assert not fitted.plan_.aggregation.aligned


class Silent(Tapped):
    """A wire that says of no party of which alignment its records are."""

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        return {name: _silent(data) for name, data in super().exchange(messages).items()}


def _silent(data: bytes) -> bytes:
    frame = decode(data)
    if frame.kind != "facts":
        return data
    told = {name: value for name, value in json.loads(frame.text).items() if name != "aligned"}
    return encode(Frame(frame.kind, frame.serial, frame.plan, frame.round, frame.query, frame.arrays, json.dumps(told)))


def test_files_by_a_schema_and_their_labels_are_those_of_the_plain_join(tmp_path: Path) -> None:
    """Files in different orders, one by a schema with labels, one plain; every cell tells whose it is."""
    order = random.Random(5)
    clinic, lab = order.sample(range(40), 30), order.sample(range(40), 33)
    wards = ["east", "north", "west"]
    cells = [f"P{one:03},{one},{wards[one % 3]},{('no', 'yes')[one % 2]}" for one in clinic]
    (tmp_path / "clinic.csv").write_text("\n".join(["patient,age,ward,out", *cells]) + "\n")
    (tmp_path / "lab.csv").write_text("\n".join(["c,id", *(f"{one / 8},p{one:03}" for one in lab)]) + "\n")
    schema = sv.Schema({"age": {"range": (0, 50)}, "ward": {"levels": wards}}, label="out")
    policy = Policy(align=("clinic", "lab"))

    def served() -> list[Party]:
        here = tmp_path.joinpath
        files = [AlignmentFile(here(f"{name}.aligned")) for name in ("clinic", "lab")]
        source = SourceTable(file="clinic.csv", id="patient")
        one = read_party("clinic", source, here, policy, schema=schema, aligned=files[0])
        plain = SourceTable(file="lab.csv", id="id")
        return [one, read_party("lab", plain, here, policy, labelled=False, aligned=files[1])]

    parties = served()
    align(parties, InProcess(parties))
    common = set(clinic) & set(lab)
    for one, other in (parties, served()):
        people = [round(8 * value) for value in other.rows[:, 0].tolist()]
        assert sorted(people) == sorted(common)
        told = {"age": people, "ward": [wards[person % 3] for person in people]}
        np.testing.assert_array_equal(np.asarray(one.rows), schema.encode(told))
        assert one.labels.tolist() == [("no", "yes")[person % 2] for person in people]
        assert [fact.value for fact in one.facts(classes=False) if fact.name == "records"] == [len(common)]
    (tmp_path / "lab.csv").write_text("\n".join(["c,id", *(f"{one / 8},p{one:03}" for one in lab[::-1])]) + "\n")
    with pytest.raises(InputError, match="alignment of another list"):
        served()
