"""Whoever runs an end of a federation as root is warned, in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sottovoce.app import superuser
from sottovoce.app.doctor import examine
from sottovoce.app.superuser import AS_ROOT

ROOT = "this runs as root"


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, ordinary_user: None) -> None:
    monkeypatch.setattr(superuser, "_user", lambda: 0)


def ends(folder: Path, invoke: Any) -> dict[str, Any]:
    """Each end of a federation as a command, up to where it finds that something is missing."""
    said = {"provision": invoke("provision", folder / "sites", "north", "south", "--dealer", "notary")}
    job = (folder / "sites/coordinator/job.toml").read_text()
    (folder / "sites/coordinator/job.toml").write_text(
        job.replace("wait = 600", "wait = 0.01").replace("7443", "0").replace("say wh", "here: wh")
    )
    (folder / "sites/notary/certificates/notary.pem").unlink()
    said["dealer"] = invoke("dealer", "--job", folder / "sites/notary/dealer.toml", code=2)
    said["party"] = invoke("party", "--job", folder / "sites/north/party.toml", "--no-view", code=5)
    said["fit"] = invoke("fit", folder / "sites/coordinator/job.toml", "--quiet", code=4)
    return said


def test_every_end_warns_of_root_once(root: None, tmp_path: Path, invoke: Any) -> None:
    for command, result in ends(tmp_path, invoke).items():
        assert result.stderr.count(ROOT) == 1, command
        assert ROOT not in result.stdout


def test_nobody_else_is_warned(tmp_path: Path, invoke: Any) -> None:
    for result in ends(tmp_path, invoke).values():
        assert ROOT not in result.stderr


def test_the_doctor_warns_of_root(root: None, tmp_path: Path, invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    invoke("provision", tmp_path / "sites", "north")
    path = tmp_path / "sites/north/party.toml"
    assert [finding.text for finding in examine(path) if finding.check == "user"] == [AS_ROOT]
    monkeypatch.setattr(superuser, "_user", lambda: 1000)
    assert not [finding for finding in examine(path) if finding.check == "user"]


def test_an_end_that_says_nothing_is_found_out(
    root: None, tmp_path: Path, invoke: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted fault: nobody looks who runs it."""
    monkeypatch.setattr(superuser, "is_root", lambda: False)
    with pytest.raises(AssertionError):
        test_every_end_warns_of_root_once(None, tmp_path, invoke)
