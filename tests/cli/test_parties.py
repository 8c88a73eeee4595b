from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from typer.testing import CliRunner

import sottovoce as sv
from sottovoce import algorithms
from sottovoce.app.cli import app
from sottovoce.app.jobs import load_party_job
from sottovoce.app.view.watched import Watch, WatchedEnd, say_event
from sottovoce.errors import InputError
from sottovoce.federation.federation import Federation
from sottovoce.federation.party import Party
from sottovoce.privacy.accounting import epsilon_of
from sottovoce.privacy.events import Relation
from sottovoce.transports.base import InProcess
from sottovoce.transports.certificates import Credentials


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_a_holder_is_told_the_epsilon_that_is_charged_and_guaranteed(relation: Relation, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    ledger = sv.Ledger.create(tmp_path / "ledger")
    account = ledger.open("people", epsilon=3.0, delta=1e-5, relation=relation)
    party = Party("north", rng.standard_normal((200, 3)), rng.integers(0, 2, 200), account=account)
    said: list[str] = []
    watch = Watch("party", "north")
    watch.add(functools.partial(say_event, said.append, "party"))
    federation = Federation.connect(InProcess([WatchedEnd(party, watch, account)]))
    model = sv.PrivateLogisticRegression(
        epsilon=1.0, row_norm=1.0, relation=relation, solver=sv.solvers.Gradient(rounds=5), classes=(0, 1)
    ).fit(federation)

    guaranteed = model.privacy_.coordinator.epsilon
    agreed = next(text for text in said if text.startswith("agreed to plan"))
    assert f"costs epsilon {guaranteed:.4g} at delta 1e-05, {relation})" in agreed
    form = algorithms.of(model.plan_)
    events = form.pricing.events(form, model.plan_, relation, "north")
    assert guaranteed == pytest.approx(account.balance().spent, rel=1e-6)
    assert f"{epsilon_of(events, 1e-5, relation):.4g}" != f"{guaranteed:.4g}"  # the samplers' share is seen in print


def test_a_certificate_that_is_replaced_is_named_and_revoked_if_asked(tmp_path: Path) -> None:
    run = CliRunner()
    folder = str(tmp_path / "certs")
    assert "replaced" not in run.invoke(app, ["certificates", folder, "north"]).stdout
    again = run.invoke(app, ["certificates", folder, "north"]).stdout
    assert re.search(r"replaced: north, serial [0-9a-f]+, valid until \d{4}-\d\d-\d\d", again)
    assert not (tmp_path / "certs" / "revoked.pem").exists()
    assert "replaced and revoked: north" in run.invoke(app, ["certificates", folder, "north", "--revoke"]).stdout
    Credentials.load(folder, "north")
    revoked = run.invoke(app, ["revoke", folder, "north"])
    assert revoked.exit_code == 0
    assert "revoked: north, serial" in revoked.stdout
    with pytest.raises(InputError, match="was revoked"):
        Credentials.load(folder, "north")


def test_a_pin_is_printed_as_a_party_file_has_it(tmp_path: Path) -> None:
    run, folder = CliRunner(), tmp_path / "certs"
    run.invoke(app, ["certificates", str(folder), "north", "south"])
    printed = run.invoke(app, ["pin", str(folder / "north.pem"), str(folder / "south.pem")]).stdout
    party = '[party]\nname = "west"\nfile = "west.csv"\nledger = "west.db"\n'
    where = '[federation]\ncoordinator = "localhost:7443"\ncertificates = "certs"\n'
    job = tmp_path / "west.toml"
    job.write_text(f"{party}{where}[peers]\n{printed}", encoding="utf-8")
    peers = load_party_job(job).peers
    key = Credentials.load(folder, "north").certificate
    public = x509.load_pem_x509_certificate(key).public_key()
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    assert list(peers) == ["north", "south"]
    assert peers["north"] == f"sha256:{hashlib.sha256(public.public_bytes(*form)).hexdigest()}"
    assert run.invoke(app, ["pin", str(folder / "north.key")]).exit_code != 0
