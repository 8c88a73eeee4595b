"""Before any mask, pad or box is made for a name its key is known: one check that no shared secret gets past."""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from pairing import NO_OFFERS, impostor
from secure_fits import by_columns, by_rows, data, model
from sottovoce.app import jobs
from sottovoce.errors import InputError, LeakError, RefusedError
from sottovoce.federation import alignment, party, policy, run_keys
from sottovoce.federation.alignment import new_terms
from sottovoce.federation.coordinator import Coordinator
from sottovoce.federation.models import Models, PartialModel, parts_of
from sottovoce.federation.party import Party
from sottovoce.federation.policy import Policy
from sottovoce.federation.prediction import Request, add_words, decode_scores
from sottovoce.federation.replies import MASKED
from sottovoce.federation.run_keys import known_keys
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.lab.audit.runner import audit_plan
from sottovoce.secure.pair_keys import CHECKED, OFFERS, PairKeys, PeerKey, RunKey, fingerprint_of
from sottovoce.transports.authority import create_authority, issue
from sottovoce.transports.base import InProcess
from sottovoce.transports.certificates import Credentials, pin_in
from sottovoce.transports.identity import PREDICTION_KEY, Certified, local_identities

SOURCE = Path(run_keys.__file__).parents[1]
POLICY = Policy(align=("a", "b", "c"), predict_for=("b",), predict_training=True, approve_models=True, secure=True)


class Shy:
    """An end that knows c by the word of an authority alone."""

    def __init__(self, identity: Any) -> None:
        self.sign, self.verify, self.pinned = identity.sign, identity.verify, frozenset("ab")


def fit_columns() -> None:
    """A fit over secure columns, in which a has not pinned c."""
    federation = by_columns()
    federation._parties[0].identify(Shy(federation._parties[0].identity))
    model().fit(federation)


def fit_rows() -> None:
    """A fit with secure sums by rows, in which a has not pinned c."""
    federation = by_rows()
    federation._parties[0].identify(Shy(federation._parties[0].identity))
    model().fit(federation)


def align() -> None:
    """An alignment, in which a has not pinned c."""
    X, _ = data()
    parties = [Party(name, X, None, policy=POLICY, ids=range(len(X))) for name in "abc"]
    wire = InProcess(parties)
    parties[0].identify(Shy(parties[0].identity))
    Coordinator(wire).align(new_terms(["a", "b", "c"]))


def predict() -> None:
    """A joint prediction, in which a has not pinned c."""
    federation = by_columns()
    fitted = model().fit(federation)
    federation._parties[0].identify(Shy(federation._parties[0].identity))
    fitted.predict_for(federation, "b")


WAYS: Mapping[str, Callable[[], None]] = {
    "secure columns": fit_columns,
    "secure rows": fit_rows,
    "alignment": align,
    "predictions": predict,
}


def check_way(way: Callable[[], None]) -> None:
    """The fence: who is not pinned is refused before a secret is shared with it."""
    with pytest.raises(RefusedError, match="a has not pinned the key of c"):
        way()


@pytest.mark.parametrize("name", WAYS)
def test_no_secret_is_shared_with_whom_is_not_pinned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_way(WAYS[name])
    for module in (run_keys, alignment, party, policy):  # planted fault: nobody has to be pinned
        monkeypatch.setattr(module, "check_pinned", lambda *_: None)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        check_way(WAYS[name])


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Every call in the package: the file, the name of what is called, and the call."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = node.func
                name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                yield path.relative_to(SOURCE).as_posix(), name, node


@pytest.mark.slow
def test_every_shared_secret_is_behind_the_one_check() -> None:
    """Where a key is agreed on, by whom a checked key is made, and who may do without pins."""
    found = list(calls())
    ciphers = {path for path, name, _ in found if name in ("HKDF", "AESGCM")}
    assert ciphers == {"secure/pair_keys.py", "secure/streams.py"}  # the second by a key that `PairKeys` gave
    assert {path for path, name, _ in found if name == "PairKeys"} == {
        "gate/intersection.py",
        "federation/coordinator.py",
        "federation/prediction.py",
        "federation/run_keys.py",
        "lab/audit/secure.py",
    }
    assert {path for path, name, _ in found if name == "PeerKey"} == {"federation/run_keys.py"}
    assert {path for path in SOURCE.rglob("*.py") if "CHECKED" in path.read_text(encoding="utf-8")} == {
        SOURCE / "secure/pair_keys.py",
        SOURCE / "federation/run_keys.py",
    }
    unpinned = {
        path for path, name, call in found if name == "known_keys" and any(each.arg == "pins" for each in call.keywords)
    }
    assert unpinned == {
        "federation/coordinator.py",  # a dealer has no data
        "federation/secure_columns/dealer.py",  # nor has a dealer
        "federation/training.py",  # by rows, as the policy says
        "lab/audit/secure.py",  # all ends in one process
    }


def test_a_key_that_was_not_checked_shares_nothing() -> None:
    key = RunKey()
    one, other = fingerprint_of(key.public), fingerprint_of(RunKey().public)
    with pytest.raises(LeakError, match="an end whose key was checked"):
        PairKeys(key, ("a", "b"), {"b": other}, [])  # type: ignore[dict-item]
    with pytest.raises(LeakError, match="made by the check"):
        PeerKey(other)
    with pytest.raises(RefusedError, match="two of a, b, c have one public key"):
        known_keys("a", {"a": one, "b": other, "c": other}, None, pins=False)
    checked = known_keys("a", {"a": one, "b": other}, None, pins=False)
    assert checked == {"b": PeerKey(other, made_by=CHECKED)}
    assert list(PairKeys(key, ("a", "b"), checked, [])) == ["b"]


class Clinic:
    """A party with a model that its holder approved, and whoever has the key of the authority as the other party."""

    def __init__(self, folder: Path) -> None:
        X, y = data()
        fitted = model().fit(
            sv.Federation.by_columns(
                [X[:, :2], X[:, 2:]], y, names=["clinic", "lab"], norms=np.sqrt([0.5, 0.5]).tolist(), products="secure"
            )
        )
        self.digest = bytes.fromhex(fitted.charged_as_)
        self.part: PartialModel = parts_of(fitted.plan_, fitted.coef_.ravel(), float(fitted.intercept_[0]))["clinic"]
        self.people, self.models = X[:5, :2], Models()
        self.models.keep(self.digest, self.part)
        self.models.approve(self.digest, self.part)
        self.real, forged = folder / "real", folder / "forged"
        create_authority(self.real)
        for name in ("clinic", "lab"):
            issue(self.real, name)
        forged.mkdir()
        for file in ("authority.pem", "authority.key"):
            (forged / file).write_bytes((self.real / file).read_bytes())
        issue(forged, "lab")
        self.attacker, self.key = Certified(Credentials.load(forged, "lab")), RunKey()

    def asked(self, pins: Mapping[str, str]) -> tuple[Frame, Request]:
        """What the clinic answers to a request in which the attacker is the lab."""
        party = Party(
            "clinic", self.people, None, models=self.models, policy=Policy(predict_for=("lab",), trains=False)
        )
        party.identify(Certified(Credentials.load(self.real, "clinic"), pins))
        told = json.loads(decode(party.handle(encode(Frame("hello", 1, query="predict"))).data).text)
        keys = {"clinic": told["public_key"], "lab": self.key.public}
        signed = self.attacker.sign(PREDICTION_KEY, bytes.fromhex(self.key.public))
        request = Request.new(self.digest, "lab", keys, {"clinic": told["signature"], "lab": signed})
        frame = Frame("predict", 2, self.digest, query="lab", text=request.text)
        offers = decode(party.handle(encode(frame)).data)
        if offers.kind == "refuse":
            return offers, request
        self.pairs = impostor(self.key, request, "lab", offers.arrays[OFFERS])
        return decode(party.handle(encode(dataclasses.replace(frame, arrays=NO_OFFERS))).data), request

    def read(self, answer: Frame, request: Request) -> Any:
        """The scores under masks that the attacker takes off."""
        masks = request.masks("lab", self.pairs, len(self.people))
        return decode_scores(add_words(answer.arrays[MASKED].view(np.uint64), masks))


def test_whoever_has_the_key_of_the_authority_reads_no_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clinic = Clinic(tmp_path)
    answer, _ = clinic.asked({})
    assert answer.kind == "refuse"
    assert "clinic has not pinned the key of lab" in answer.text
    answer, _ = clinic.asked(dict([pin_in(clinic.real / "lab.pem")]))
    assert "another one is pinned for lab" in answer.text
    monkeypatch.setattr(run_keys, "check_pinned", lambda *_: None)  # planted fault: the scores are read
    answer, request = clinic.asked({})
    np.testing.assert_allclose(clinic.read(answer, request), clinic.part.scores(clinic.people), atol=1e-9)


def test_no_party_has_the_name_of_the_coordinator(tmp_path: Path) -> None:
    """Its key alone needs no pin, where it deals: a party of that name would be one that nobody pinned."""
    names = ("clinic", "coordinator")
    keys = {name: fingerprint_of(RunKey().public) for name in names}
    pinned = local_identities(("clinic",))["clinic"]
    with pytest.raises(RefusedError, match="no party's"):
        known_keys("clinic", keys, pinned)
    assert list(known_keys("clinic", keys, pinned, dealer="coordinator")) == ["coordinator"]
    plan = audit_plan("one-shot", "columns", 2)
    parties = tuple(zip(names, dict(plan.parties).values(), strict=True))
    with pytest.raises(RefusedError, match="no party's"):
        plan.model_copy(update={"parties": parties})
    rows = [np.eye(4)[:, :2], np.eye(4)[:, 2:]]
    with pytest.raises(InputError, match="no party's name"):
        sv.Federation.by_columns(rows, np.zeros(4), names=names)
    with pytest.raises(InputError, match="no party's name"):
        sv.Federation.by_rows([(part, np.zeros(4)) for part in rows], names=names)
    path, start = tmp_path / "job.toml", 'listen = "localhost:1"\ncertificates = "."\nparties = ["a", "coordinator"]\n'
    files = {
        jobs.load_job: f'[model]\nestimator = "ridge"\n[privacy]\nepsilon = 1.0\n[federation]\n{start}',
        jobs.load_people_job: f"[federation]\n{start}",
        jobs.load_alignment_job: f"[federation]\n{start}",
        jobs.load_evaluation_job: f"[privacy]\nepsilon = 1.0\n[federation]\n{start}",
        jobs.load_party_job: '[party]\nname = "coordinator"\nfile = "a.csv"\nledger = "l"\n'
        '[federation]\ncoordinator = "localhost:1"\ncertificates = "."\n',
    }
    for load, text in files.items():
        path.write_text(text)
        with pytest.raises(InputError, match="no party's name"):
            load(path)
