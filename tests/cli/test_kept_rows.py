"""`sottovoce ledger rows` and `forget-rows`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from sottovoce.door import noisy_rows as rows
from sottovoce.privacy.accounting import gaussian_epsilon

sys.path.insert(0, str(Path(__file__).parent.parent / "programs"))
import kept_rows as program


@pytest.fixture
def accounts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program.register(monkeypatch.setitem)
    rng = np.random.default_rng(0)
    data = [rng.normal(size=(50, 3)) * 0.3, rng.normal(size=(50, 2)) * 0.3], rng.integers(0, 2, 50)
    found = program.accounts_in(tmp_path)
    program.run(*data, found, 2.0)
    return found


def test_what_is_kept(invoke, accounts):
    (line,) = json.loads(invoke("ledger", "rows", "party0.ledger", "--json").stdout)["rows"]
    (entry,) = accounts[0].rows()
    mu = np.sqrt(0.6) / 2
    assert line["id"] == entry.details["id"]
    assert (line["account"], line["std"], line["records"], line["columns"]) == ("people", 2.0, 50, 3)
    assert line["mu"] == pytest.approx(mu)
    assert line["epsilon"] == pytest.approx(gaussian_epsilon(mu, 1e-5))
    assert line["file"] == "there"
    text = invoke("ledger", "rows", "party0.ledger").stdout
    for word in (entry.details["id"], "people", "there"):
        assert word in text
    (rows.folder_of(accounts[0]) / entry.details["file"]).unlink()
    assert "lost" in invoke("ledger", "rows", "party0.ledger").stdout


def test_no_key_is_printed(invoke, accounts):
    """The digests of records in the file are worth nothing without it."""
    key = accounts[0].rows()[0].details["key"]
    for command in ("rows", "history"):
        assert key not in invoke("ledger", command, "party0.ledger", "--json").stdout


def test_to_forget(invoke, accounts):
    (entry,) = accounts[0].rows()
    path = rows.folder_of(accounts[0]) / entry.details["file"]
    refused = invoke("ledger", "forget-rows", "party0.ledger", "--dataset", "people", code=1)
    assert "pays as much again" in refused.stderr
    assert path.exists()
    assert len(accounts[0].rows()) == 1
    said = invoke("ledger", "forget-rows", "party0.ledger", "--dataset", "people", "--yes").stdout
    assert entry.details["id"] in said
    assert not path.exists()
    assert accounts[0].rows() == []
    assert "no rows are kept" in invoke("ledger", "rows", "party0.ledger").stdout
    again = invoke("ledger", "forget-rows", "party0.ledger", "--dataset", "people", "--yes", "--json").stdout
    assert json.loads(again)["forgotten"] == []
    assert f"kept rows {entry.details['id']} forgotten" in invoke("ledger", "history", "party0.ledger").stdout
    invoke("ledger", "verify", "party0.ledger")
    invoke("ledger", "forget-rows", "party0.ledger", "--dataset", "nobody", "--yes", code=5)
