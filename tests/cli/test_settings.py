"""Settings by file and environment."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sottovoce.app.doctor import examine
from sottovoce.app.jobs import PartyJob, load_dealer_job, load_job, load_party_job
from sottovoce.errors import InputError

PARTY = """\
[party]
name = "north"
file = "north.csv"
label = "out"
ledger = "north.db"
[federation]
coordinator = "localhost:7443"
certificates = "certs"
[policy]
max_epsilon = 1.0
"""


@pytest.fixture
def party(tmp_path: Path) -> Path:
    path = tmp_path / "party.toml"
    path.write_text(PARTY)
    return path


def test_the_environment_goes_before_the_file(party: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PARTY_LEDGER": "/var/lib/2026",
        "PARTY_LABEL": "-1",
        "PARTY_ID": "7",
        "FEDERATION_COORDINATOR": "trials.example.org:1",
        "POLICY_MAX_EPSILON": "0.25",
        "POLICY_SECURE": "true",
        "POLICY_PREDICT_FOR": '["coordinator"]',
        "BOUNDS_ROW_NORM": "2",
    }.items():
        monkeypatch.setenv(f"SOTTOVOCE_{name}", value)
    job = load_party_job(party)
    assert (job.party.ledger, job.party.label, job.party.id) == ("/var/lib/2026", -1, "7")
    assert job.federation.coordinator == "trials.example.org:1"
    assert (job.policy.max_epsilon, job.policy.secure, job.policy.predict_for) == (0.25, True, ("coordinator",))
    assert job.bounds is not None
    assert job.bounds.row_norm == 2
    assert job.party.file == "north.csv"


def test_a_job_without_a_file_and_options_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for table, key in (("PARTY", "NAME"), ("PARTY", "FILE"), ("PARTY", "LEDGER"), ("FEDERATION", "CERTIFICATES")):
        monkeypatch.setenv(f"SOTTOVOCE_{table}_{key}", f"{key.lower()} of the environment")
    monkeypatch.setenv("SOTTOVOCE_FEDERATION_COORDINATOR", "localhost:1")
    job = PartyJob.load(tmp_path / "options", {"party": {"file": "of the options"}, "federation": {}, "policy": {}})
    assert (job.party.name, job.party.file) == ("name of the environment", "of the options")
    assert math.isinf(job.policy.max_epsilon)


def test_a_mistyped_name_is_an_error_and_so_is_a_value(party: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("SOTTOVOCE_POLICY_MAX_EPSILN", "0.1")
        with pytest.raises(InputError, match="did you mean 'SOTTOVOCE_POLICY_MAX_EPSILON'"):
            load_party_job(party)
    with monkeypatch.context() as patch:
        patch.setenv("SOTTOVOCE_POLICE_MAX_EPSILON", "0.1")
        with pytest.raises(InputError, match="did you mean 'SOTTOVOCE_POLICY_MAX_EPSILON'"):
            load_party_job(party)
    with monkeypatch.context() as patch:
        patch.setenv("SOTTOVOCE_POLICY_MAX_EPSILON", "much")
        with pytest.raises(InputError, match=r"with SOTTOVOCE_POLICY_MAX_EPSILON of the environment\): policy.max_eps"):
            load_party_job(party)
    for value in ("0.1\nother = 1", "true", '"9"'):
        with monkeypatch.context() as patch:
            patch.setenv("SOTTOVOCE_POLICY_MAX_EPSILON", value)
            with pytest.raises(InputError, match=r"policy\.max_epsilon = .* is not allowed"):
                load_party_job(party)
    monkeypatch.setenv("SOTTOVOCE_DATA", "/somewhere")  # of another use
    monkeypatch.setenv("SOTTOVOCE_JOB", str(party))
    load_party_job(party)


def test_what_the_environment_has_set_is_said(party: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_party_job(party).set_elsewhere == ""
    monkeypatch.setenv("SOTTOVOCE_POLICY_MAX_EPSILON", "inf")
    monkeypatch.setenv("SOTTOVOCE_PRIVACY_EPSILON", "1.0")  # of a job, not of a party
    said = "set by the environment, before any file: SOTTOVOCE_POLICY_MAX_EPSILON"
    assert load_party_job(party).set_elsewhere == said
    assert examine(party)[0].text == said
    job = PartyJob.load(party, tomllib.loads(party.read_text()))
    assert (job.set_elsewhere, job.policy.max_epsilon) == ("", 1.0)  # options go before it


def test_what_is_of_another_kind_of_file_is_left_alone(write_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOTTOVOCE_PARTY_LEDGER", "north.db")
    monkeypatch.setenv("SOTTOVOCE_DEALER_NAME", "notary")
    monkeypatch.setenv("SOTTOVOCE_PRIVACY_EPSILON", "0.5")
    job = load_job(write_job())
    assert job.privacy.epsilon == 0.5
    assert not job.party
    dealer = write_job("dealer.toml")
    dealer.write_text('[dealer]\nname = "other"\n[federation]\ncoordinator = "a:1"\ncertificates = "c"\n')
    assert load_dealer_job(dealer).dealer.name == "notary"


def test_a_value_of_the_environment_takes_the_place_of_the_whole_value(
    write_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_job(bounds={"entry_bound": None, "feature_ranges": "{ low = [0, 0, 0], high = [1, 1, 1] }"})
    monkeypatch.setenv("SOTTOVOCE_BOUNDS_FEATURE_RANGES", "{ a = [0, 2], b = [0, 2], c = [0, 2] }")
    assert load_job(path).bounds.ranges == {name: [0.0, 2.0] for name in "abc"}
