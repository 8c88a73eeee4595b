"""Who is told what when a certificate is wrong, and what silence and bad frames do; over real TLS and real sockets."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from sottovoce.errors import InputError, WireError
from sottovoce.gate.frames import Frame, encode
from sottovoce.transports import authority as made
from sottovoce.transports import certificates, grpc_wire, probe
from sottovoce.transports.authority import create_authority, issue, revoke_certificate
from sottovoce.transports.certificates import Credentials, check_other_end
from sottovoce.transports.grpc_party import serve_party
from sottovoce.transports.grpc_wire import GrpcCoordinator

PATIENCE = 60.0  # seconds after which a failing test ends instead of hanging


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create_authority(tmp_path)
    for name in ("coordinator", "anna", "ben"):
        issue(tmp_path, name)
    return tmp_path


class Heard:
    """What was said, and a way to wait for it."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._changed = threading.Condition()

    def __call__(self, text: str) -> None:
        with self._changed:
            self.said.append(text)
            self._changed.notify_all()

    def wait(self, words: str) -> str:
        with self._changed:
            assert self._changed.wait_for(lambda: any(words in text for text in self.said), PATIENCE), self.said
        return next(text for text in self.said if words in text)


@contextlib.contextmanager
def listening(folder: Path, *parties: str, **options: Any) -> Iterator[GrpcCoordinator]:
    wire = GrpcCoordinator(
        "localhost:0", parties or ("anna",), Credentials.load(folder, "coordinator"), timeout=PATIENCE, **options
    )
    try:
        yield wire
    finally:
        wire.close()


@contextlib.contextmanager
def serving(endpoint: Any, wire: GrpcCoordinator, credentials: Credentials) -> Iterator[Heard]:
    """A party at work in a thread; what it tells its holder is heard."""
    heard, stop = Heard(), threading.Event()
    arguments = {"stop": stop, "give_up_after": PATIENCE, "on_change": heard}
    thread = threading.Thread(
        target=serve_party, args=(endpoint, f"localhost:{wire.port}", credentials), kwargs=arguments, daemon=True
    )
    thread.start()
    try:
        yield heard
    finally:
        stop.set()
        thread.join(PATIENCE)


@pytest.fixture
def endpoint(party_module: ModuleType, tmp_path: Path) -> Callable[[str], Any]:
    return lambda name: party_module.ScriptedEndpoint(name, tmp_path)


def asked(wire: GrpcCoordinator, party: str, serial: int) -> None:
    message = encode(Frame("ask", serial, query="echo"))
    assert wire.exchange({party: message})[party] == encode(Frame("answer", serial, query="echo"))


# ----- Said within seconds -----


def other_authority(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    other = folder / "other"
    create_authority(other)
    issue(other, "anna")
    return other, "the coordinator at localhost:.* cannot be verified: .*(self-signed|unable to get local issuer)"


def another_host(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    issue(folder, "coordinator", hosts=["elsewhere.example.org"])
    return folder, "cannot be verified: Hostname mismatch, certificate is not valid for 'localhost'"


def taken_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    party = folder / "party"
    party.mkdir()
    revoke_certificate(folder, "coordinator")
    for name in ("authority.pem", "anna.pem", "anna.key", "revoked.pem"):
        (party / name).write_bytes((folder / name).read_bytes())
    (party / "anna.key").chmod(0o600)
    (folder / "revoked.pem").unlink()  # the coordinator has not been told, or does not want to know
    return party, r"cannot be verified: the certificate of 'coordinator' \(serial [0-9a-f]+\) was revoked"


@pytest.mark.parametrize("wrong", [other_authority, another_host, taken_back])
def test_a_party_says_why_it_cannot_verify_the_coordinator(
    folder: Path, monkeypatch: pytest.MonkeyPatch, endpoint: Callable[[str], Any], wrong: Callable[..., Any]
) -> None:
    party, reason = wrong(folder, monkeypatch)
    with listening(folder) as wire, serving(endpoint("anna"), wire, Credentials.load(party, "anna")) as heard:
        heard.wait("cannot be verified")
        assert not wire._connections
    assert len(heard.said) == 1  # said once, and not at every attempt
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(heard.said[0])


def test_a_party_says_that_the_coordinator_refuses_its_certificate(
    folder: Path, endpoint: Callable[[str], Any], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    create_authority(other)
    issue(other, "anna")
    theirs = Credentials.load(other, "anna")
    ours = Credentials((folder / "authority.pem").read_bytes(), theirs.certificate, theirs.key)
    with listening(folder) as wire, serving(endpoint("anna"), wire, ours) as heard:
        assert "it does not take it (another authority, expired?)" in heard.wait("no connection")


def test_an_expired_certificate_of_the_coordinator_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, endpoint: Callable[[str], Any]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "now", lambda: datetime.now(UTC) - timedelta(days=800))
        issue(folder, "coordinator")
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "_require_valid_now", lambda _: None)
        coordinator = Credentials.load(folder, "coordinator")
    wire = GrpcCoordinator("localhost:0", ["anna"], coordinator)
    try:
        with serving(endpoint("anna"), wire, Credentials.load(folder, "anna")) as heard:
            assert "certificate has expired" in heard.wait("cannot be verified")
    finally:
        wire.close()


def test_a_revoked_party_is_refused_and_both_ends_say_so(folder: Path) -> None:
    anna = Credentials.load(folder, "anna")
    revoke_certificate(folder, "anna")
    heard = Heard()
    with listening(folder, on_change=heard) as wire, pytest.raises(WireError, match=r"revoked.*UNAUTHENTICATED"):
        serve_party(Nobody("anna"), f"localhost:{wire.port}", anna, give_up_after=PATIENCE)
    assert "says it is 'anna': the certificate of 'anna'" in heard.wait("revoked")


class Nobody:
    def __init__(self, name: str) -> None:
        self.name = name

    def identify(self, identity: Any) -> None:
        """Nobody signs."""

    def handle(self, message: bytes) -> Any:
        raise AssertionError("no request was expected")


def test_the_coordinator_says_who_is_there_who_is_missing_and_who_came_back(
    folder: Path, endpoint: Callable[[str], Any]
) -> None:
    heard = Heard()
    with listening(folder, "anna", "ben", on_change=heard) as wire:
        with serving(endpoint("anna"), wire, Credentials.load(folder, "anna")) as anna:
            heard.wait("anna has connected; missing: ben")
            anna.wait(f"connected to localhost:{wire.port}, waiting for what it asks")
        heard.wait("anna was lost; missing: anna, ben")
        with (
            serving(endpoint("ben"), wire, Credentials.load(folder, "ben")),
            serving(endpoint("anna"), wire, Credentials.load(folder, "anna")),
        ):
            heard.wait("anna is back")
            wire.wait_for_parties()
            heard.wait("all parties are connected")


# ----- Bad frames and silence -----


@pytest.mark.parametrize("bad", [b"", b"garbage", b"sotv\x05\xff" + bytes(40), bytes(300)])
def test_a_party_outlives_a_message_that_is_no_frame(
    folder: Path, endpoint: Callable[[str], Any], caplog: pytest.LogCaptureFixture, bad: bytes
) -> None:
    with listening(folder) as wire, serving(endpoint("anna"), wire, Credentials.load(folder, "anna")):
        wire.wait_for_parties()
        connection = wire._connections["anna"]
        connection.outbox.put(bad)
        asked(wire, "anna", 1)
        assert wire._connections["anna"] is connection
        assert "dropped a message that is no frame" in caplog.text


@pytest.mark.parametrize("bad", [b"sotv\x01", b"sotv\x01\xff" + bytes(40), b"sotv\xff" + bytes(300)])
def test_a_party_outlives_a_frame_of_another_version(
    folder: Path, endpoint: Callable[[str], Any], caplog: pytest.LogCaptureFixture, bad: bytes
) -> None:
    with listening(folder) as wire, serving(endpoint("anna"), wire, Credentials.load(folder, "anna")):
        wire.wait_for_parties()
        wire._connections["anna"].outbox.put(bad)
        deadline = time.monotonic() + PATIENCE
        while "dropped a stale" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.01)  # the refusal is there: it is not taken for the answer to what is asked next
        asked(wire, "anna", 1)
        assert f"refused a message: the message has format {bad[4]}, and this version" in caplog.text


@pytest.mark.parametrize("silent", [100, 600])
def test_a_coordinator_outlives_silence(folder: Path, endpoint: Callable[[str], Any], silent: int) -> None:
    """Below the cap a party has its place at once; beyond it, when the first of the silent ones have to go."""
    assert 100 < grpc_wire._HANDSHAKES < 600
    with listening(folder) as wire, contextlib.ExitStack() as sockets:
        for _ in range(silent):
            sockets.enter_context(socket.create_connection(("localhost", wire.port), timeout=PATIENCE))
        with serving(endpoint("anna"), wire, Credentials.load(folder, "anna")):
            wire.wait_for_parties(PATIENCE)
            asked(wire, "anna", 1)


def test_a_silent_connection_is_ended(folder: Path) -> None:
    with listening(folder) as wire, socket.create_connection(("localhost", wire.port), timeout=PATIENCE) as silent:
        assert silent.recv(100) == b""


# ----- Certificates -----


def small(folder: Path) -> bytes:
    """The party's certificate with an RSA key of 1024 bits, by the same authority."""
    authority, signer = made._authority(folder)
    key = rsa.generate_private_key(65537, 1024)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "anna")])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(signer, hashes.SHA256())
    )
    (folder / "anna.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return built.public_bytes(serialization.Encoding.PEM)


def test_a_small_key_is_refused(folder: Path) -> None:
    mine = Credentials.load(folder, "coordinator")
    weak = small(folder)
    with pytest.raises(InputError, match="too small: RSA keys have at least 2048 bits"):
        check_other_end(weak, mine, "anna")
    (folder / "anna.pem").write_bytes(weak)
    with pytest.raises(InputError, match="too small"):
        Credentials.load(folder, "anna")


@pytest.mark.parametrize("name", ["Anna", "anna ", "ann", "anna\0", "ben", ""])
def test_names_are_compared_to_the_letter(folder: Path, name: str) -> None:
    mine, shown = Credentials.load(folder, "coordinator"), (folder / "anna.pem").read_bytes()
    check_other_end(shown, mine, "anna")
    with pytest.raises(InputError, match="names 'anna', not"):
        check_other_end(shown, mine, name)


def test_a_certificate_is_good_for_what_it_was_made_for(folder: Path, tmp_path: Path) -> None:
    mine = Credentials.load(folder, "anna")
    check_other_end((folder / "coordinator.pem").read_bytes(), mine, "coordinator")
    create_authority(tmp_path / "other")
    issue(tmp_path / "other", "coordinator")
    theirs = (tmp_path / "other" / "coordinator.pem").read_bytes()
    with pytest.raises(InputError, match="not issued by our authority"):
        check_other_end(theirs, mine, "coordinator")
    with pytest.raises(InputError, match="names 'sottovoce authority'"):
        check_other_end((folder / "authority.pem").read_bytes(), mine, "coordinator")


def test_what_is_revoked_stays_so_when_it_is_issued_again(folder: Path) -> None:
    old = (folder / "anna.pem").read_bytes()
    words = revoke_certificate(folder, "anna")
    with pytest.raises(InputError, match="was revoked"):
        Credentials.load(folder, "anna")
    assert issue(folder, "anna") == words
    assert words.startswith("anna, serial ")
    revoke_certificate(folder, "ben")
    mine = Credentials.load(folder, "coordinator")
    check_other_end((folder / "anna.pem").read_bytes(), mine, "anna")
    for name, shown in (("anna", old), ("ben", (folder / "ben.pem").read_bytes())):
        with pytest.raises(InputError, match=f"'{name}' .* was revoked"):
            check_other_end(shown, mine, name)


def test_a_list_that_the_authority_did_not_sign_is_refused(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    create_authority(other)
    issue(other, "anna")
    revoke_certificate(other, "anna")
    (folder / "revoked.pem").write_bytes((other / "revoked.pem").read_bytes())
    with pytest.raises(InputError, match=r"revoked\.pem is not a list that the authority signed"):
        Credentials.load(folder, "anna")


def test_a_key_that_others_can_read_is_warned_of(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    Credentials.load(folder, "anna")
    assert not caplog.records
    (folder / "anna.key").chmod(0o640)
    Credentials.load(folder, "anna")
    assert "anna.key can be read by others" in caplog.text


def test_a_server_that_drips_bytes_does_not_hold_a_party(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is for the whole handshake, not for each byte of it."""
    monkeypatch.setattr(probe, "_SECONDS", 0.5)
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"\x16\x03\x03\x40\x00")  # the header of a record of 16,384 bytes
                while not ended.wait(0.1):
                    connection.sendall(b"\x02")

        threading.Thread(target=drip, daemon=True).start()
        try:
            with pytest.raises(WireError, match="takes too long"):
                probe.coordinator_at(f"127.0.0.1:{server.getsockname()[1]}", Credentials.load(folder, "anna"))
        finally:
            ended.set()
