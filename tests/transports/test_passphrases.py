"""Private keys that are encrypted at rest."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sottovoce.app.cli import app
from sottovoce.app.doctor import examine
from sottovoce.app.provisioning import Sites, make_sites
from sottovoce.errors import InputError
from sottovoce.transports import authority, passphrases
from sottovoce.transports.authority import create_authority, issue, make_request, revoke_certificate, sign_request
from sottovoce.transports.certificates import Credentials
from sottovoce.transports.grpc_party import greet
from sottovoce.transports.grpc_wire import GrpcCoordinator
from sottovoce.transports.passphrases import VARIABLE

SECRET = "correct horse battery"


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a passphrase, which the environment names."""
    path = tmp_path / "passphrase"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def keys_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.key*")}


def require_encrypted(folder: Path, count: int) -> None:
    found = keys_in(folder)
    assert len(found) == count
    for name, pem in found.items():
        assert pem.startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----"), f"{name} is not encrypted"
    assert not [path for path in folder.rglob("*") if path.is_file() and b"BEGIN PRIVATE KEY" in path.read_bytes()]


def test_every_key_of_a_federation_is_encrypted_and_every_reader_of_one_opens_it(named: Path, tmp_path: Path) -> None:
    sites = tmp_path / "sites"
    make_sites(sites, Sites(("north", "south"), dealer="notary"))
    require_encrypted(sites, 5)
    authority, own = sites / "authority", sites / "north/certificates"
    issue(authority, "east")
    path, pin = make_request(own, "north")
    assert sign_request(authority, path).pin == pin
    revoke_certificate(authority, "east")
    assert Credentials.load(own, "north").name == "north"
    require_encrypted(sites, 6)


def test_an_encrypted_site_connects(named: Path, tmp_path: Path) -> None:
    """gRPC and the look who is there get the key without its passphrase, in memory."""
    create_authority(tmp_path / "c")
    for name in ("coordinator", "north"):
        issue(tmp_path / "c", name)
    wire = GrpcCoordinator("localhost:0", ("north",), Credentials.load(tmp_path / "c", "coordinator"))
    try:
        assert greet(f"localhost:{wire.port}", Credentials.load(tmp_path / "c", "north"))
    finally:
        wire.close()


def test_a_key_that_was_there_is_encrypted_by_the_next_request_and_keeps_its_pin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    _, pin = make_request(tmp_path / "c", "north")
    assert b"ENCRYPTED" not in (tmp_path / "c/north.key").read_bytes()
    secret = tmp_path / "passphrase"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    monkeypatch.setenv(VARIABLE, str(secret))
    assert make_request(tmp_path / "c", "north")[1] == pin
    require_encrypted(tmp_path / "c", 1)
    assert (tmp_path / "c/north.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda path, patch: path.write_text("another passphrase\n"), "north.key is not opened by this passphrase"),
        (lambda path, patch: path.write_text("short\n"), "of 12 or more letters"),
        (lambda path, patch: path.write_text(""), "of 12 or more letters"),
        (lambda path, patch: path.unlink(), "cannot be read"),
        (lambda path, patch: patch.delenv(VARIABLE), f"north.key is encrypted: name the file .* in {VARIABLE}"),
    ],
    ids=["wrong", "short", "empty", "gone", "missing"],
)
def test_a_passphrase_that_is_wrong_or_missing_is_told(
    named: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, fault: str
) -> None:
    sites = tmp_path / "sites"
    make_sites(sites, Sites(("north",)))
    change(named, monkeypatch)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match=fault) as error:
        Credentials.load(sites / "north/certificates", "north")
    assert SECRET not in str(error.value)
    found = [finding for finding in examine(sites / "north/party.toml") if finding.check == "certificate"]
    assert [finding.state for finding in found] == ["fails"]
    result = CliRunner().invoke(app, ["party", "--job", str(sites / "north/party.toml")])
    assert result.exit_code == 2
    assert SECRET not in result.output


def test_at_a_terminal_it_is_asked_for_once(named: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_authority(tmp_path / "c")
    monkeypatch.delenv(VARIABLE)
    asked: list[str] = []

    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(passphrases.getpass, "getpass", lambda text: asked.append(text) or SECRET)
    passphrases._typed.cache_clear()
    for name in ("north", "south"):
        issue(tmp_path / "c", name)
    assert len(asked) == 1
    assert "authority.key" in asked[0]
    passphrases._typed.cache_clear()


def test_a_passphrase_that_everybody_may_read_is_warned_of(
    named: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    named.chmod(0o644)
    make_request(tmp_path / "c", "north")
    assert "everybody may read" in caplog.text


def test_a_key_that_is_written_plain_is_found_out(named: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: one writer that forgets the passphrase."""
    monkeypatch.setattr(authority, "pem_of", lambda key, plain=False: passphrases.pem_of(key, plain=True))
    make_sites(tmp_path / "sites", Sites(("north",)))
    with pytest.raises(AssertionError, match="is not encrypted"):
        require_encrypted(tmp_path / "sites", 3)


@pytest.mark.slow
def test_one_module_reads_and_writes_private_keys() -> None:
    """Whatever else did it would not know of a passphrase."""
    names = ("load_pem_private_key", "load_der_private_key", "PrivateFormat")
    source = Path(authority.__file__).parents[1]
    found = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in names
    }
    assert found == {"transports/passphrases.py"}
