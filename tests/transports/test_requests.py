"""Keys that are made where they are used, and only signed by the authority."""

from __future__ import annotations

import base64
import logging
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from sottovoce.errors import InputError, WireError
from sottovoce.transports import certificates
from sottovoce.transports.authority import (
    create_authority,
    issue,
    list_certificates,
    make_request,
    revoke_certificate,
    sign_request,
)
from sottovoce.transports.certificates import Credentials, check_other_end, peer_line, pin_in
from sottovoce.transports.grpc_party import greet
from sottovoce.transports.grpc_wire import GrpcCoordinator


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    create_authority(tmp_path / "authority")
    return tmp_path / "authority"


def asked(path: Path, *names: str, key: object = None, extensions: bool = False, broken: bool = False) -> Path:
    """A request as somebody else's program may make it."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if extensions:
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("evil.example")]), critical=False)
    made = builder.sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256())  # type: ignore[arg-type]
    data = made.public_bytes(serialization.Encoding.DER)
    if broken:
        data = data[:-1] + bytes([data[-1] ^ 1])
        made = x509.load_der_x509_csr(data)
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return path


def test_a_key_stays_where_it_was_made_and_its_certificate_serves(authority: Path, tmp_path: Path) -> None:
    site = tmp_path / "north"
    path, pin = make_request(site, "north")
    assert stat.S_IMODE((site / "north.key").stat().st_mode) == 0o600
    signed = sign_request(authority, path)
    assert (signed.name, signed.pin, signed.replaced, signed.other_key) == ("north", pin, None, False)
    assert not (authority / "north.key").exists()
    assert b"PRIVATE" not in path.read_bytes() + signed.path.read_bytes()
    for name in ("authority.pem", "north.pem"):
        (site / name).write_bytes((authority / name).read_bytes())
    credentials = Credentials.load(site, "north")
    issue(authority, "coordinator", hosts=["localhost"])
    wire = GrpcCoordinator("localhost:0", ["north"], Credentials.load(authority, "coordinator"))
    try:
        assert abs(greet(f"localhost:{wire.port}", credentials) - datetime.now(UTC)) < timedelta(minutes=1)
        with pytest.raises(InputError, match="names 'north', not 'coordinator'"):
            check_other_end(credentials.certificate, credentials, "coordinator")
    finally:
        wire.close()


def test_a_greeting_is_for_those_on_the_list_alone_and_disturbs_nobody(authority: Path) -> None:
    for name in ("coordinator", "north", "south"):
        issue(authority, name)
    wire = GrpcCoordinator("localhost:0", ["north"], Credentials.load(authority, "coordinator"))
    address = f"localhost:{wire.port}"
    try:
        greet(address, Credentials.load(authority, "north"))
        assert not wire._connections
        with pytest.raises(WireError, match="not on the coordinator's list"):
            greet(address, Credentials.load(authority, "south"))
    finally:
        wire.close()


@pytest.mark.parametrize("said", [b"\xff", b"0001-01-01T00:00:00+14:00", b"9" * 5000])
def test_a_coordinator_that_says_no_time_is_told(authority: Path, said: bytes) -> None:
    for name in ("coordinator", "north"):
        issue(authority, name)

    class Odd(GrpcCoordinator):
        def _greet(self, *_: object) -> bytes:
            return said

    wire = Odd("localhost:0", ["north"], Credentials.load(authority, "coordinator"))
    try:
        with pytest.raises(WireError, match=r"no time|larger than max"):
            greet(f"localhost:{wire.port}", Credentials.load(authority, "north"))
    finally:
        wire.close()


def test_a_key_that_is_being_made_elsewhere_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "north.key").symlink_to(tmp_path / "disk that is not mounted")
    with pytest.raises(InputError, match="is there meanwhile, or leads nowhere"):
        make_request(tmp_path, "north")
    assert (tmp_path / "north.key").is_symlink()


def test_a_renewal_keeps_the_key_and_the_old_certificate_holds_until_its_end(authority: Path, tmp_path: Path) -> None:
    path, pin = make_request(tmp_path / "north", "north")
    old = sign_request(authority, path, days=40).path.read_bytes()
    again, same = make_request(tmp_path / "north", "north")
    assert same == pin
    new = sign_request(authority, again)
    assert new.replaced is not None
    assert not new.other_key
    issue(authority, "south")
    mine = Credentials.load(authority, "south")
    for shown in (old, new.path.read_bytes()):
        check_other_end(shown, mine, "north")
    revoke_certificate(authority, "north")
    mine = Credentials.load(authority, "south")
    check_other_end(old, mine, "north")
    with pytest.raises(InputError, match="revoked"):
        check_other_end(new.path.read_bytes(), mine, "north")
    with pytest.raises(InputError, match="key of a certificate that is revoked"):
        sign_request(authority, make_request(tmp_path / "north", "north")[0])
    other, _ = make_request(tmp_path / "north-2", "north")
    assert sign_request(authority, other).other_key


def test_a_request_is_refused_for_what_is_wrong_with_it(authority: Path, tmp_path: Path) -> None:
    issue(authority, "south")
    known = serialization.load_pem_private_key((authority / "south.key").read_bytes(), None)
    north = tmp_path / "north.csr"
    cases = {
        "is a request of 'south', and its file says 'north'": asked(north, "south"),
        "one common name; this one has 2": asked(tmp_path / "two.csr", "two", "north"),
        "is not signed with its own key": asked(tmp_path / "east.csr", "east", broken=True),
        "has the key of 'south'": asked(tmp_path / "west.csr", "west", key=known),
        "too small": asked(tmp_path / "small.csr", "small", key=rsa.generate_private_key(65537, 1024)),
        "Ed25519": asked(tmp_path / "other.csr", "other", key=ed25519.Ed25519PrivateKey.generate()),
        "the authority's own": asked(tmp_path / "authority.csr", "authority"),
        "cannot be read": tmp_path / "nothing.csr",
    }
    (tmp_path / "text.csr").write_text("a request, honestly")
    cases["is not a request in PEM form"] = tmp_path / "text.csr"
    before = sorted(path.name for path in authority.iterdir())
    for words, path in cases.items():
        with pytest.raises(InputError, match=words):
            sign_request(authority, path)
    assert sorted(path.name for path in authority.iterdir()) == before


def changed(path: Path, *changes: tuple[bytes, bytes]) -> Path:
    """A PEM file with other bytes in it, as no program of ours writes it."""
    first, *middle, last = path.read_text().splitlines()
    data = base64.b64decode("".join(middle))
    for old, new in changes:
        assert old in data
        data = data.replace(old, new, 1)
    path.write_text("\n".join([first, base64.b64encode(data).decode(), last]) + "\n")
    return path


_CURVE = bytes.fromhex("06082a8648ce3d030107")  # P-256 in an encoded key
_CERTIFICATE_VERSION = bytes.fromhex("a003020102")


def test_keys_and_versions_that_are_not_known_are_refused_as_other_faults_are(authority: Path, tmp_path: Path) -> None:
    odd = changed(asked(tmp_path / "north.csr", "north"), (_CURVE, _CURVE[:-1] + b"\x2a"))
    with pytest.raises(InputError, match=r"north\.csr"):
        sign_request(authority, odd)
    new = changed(asked(tmp_path / "east.csr", "east"), (b"\x02\x01\x00", b"\x02\x01\x2a"))
    with pytest.raises(InputError, match="is not a request in PEM form"):
        sign_request(authority, new)
    issue(authority, "south")
    issue(authority, "west")
    mine = Credentials.load(authority, "south")
    shown = changed(authority / "west.pem", (_CERTIFICATE_VERSION, _CERTIFICATE_VERSION[:-1] + b"\x2a"))
    with pytest.raises(InputError, match="is not a certificate in PEM form"):
        check_other_end(shown.read_bytes(), mine, "west")
    assert "west" not in {known.name for known in list_certificates(authority)}


def test_a_key_that_was_revoked_is_signed_for_nobody_any_more(authority: Path, tmp_path: Path) -> None:
    lost = ec.generate_private_key(ec.SECP256R1())
    sign_request(authority, asked(tmp_path / "north.csr", "north", key=lost))
    revoke_certificate(authority, "north")
    sign_request(authority, asked(tmp_path / "north.csr", "north"))  # its new key is in the place of the old one
    for name in ("north", "south"):
        with pytest.raises(InputError, match="key of a certificate that is revoked"):
            sign_request(authority, asked(tmp_path / f"{name}.csr", name, key=lost))


def test_a_name_in_a_certificate_adds_no_line_to_the_pins(authority: Path, tmp_path: Path) -> None:
    issue(authority, "north")
    with pytest.raises(InputError, match=r"'no\\nth' is not allowed"):
        pin_in(changed(authority / "north.pem", (b"north", b"no\nth")))
    assert peer_line("a.b", "sha256:0") == '"a.b" = "sha256:0"'


def test_what_a_certificate_may_do_is_not_the_senders_to_say(authority: Path, tmp_path: Path) -> None:
    signed = sign_request(authority, asked(tmp_path / "north.csr", "north", extensions=True))
    found = x509.load_pem_x509_certificate(signed.path.read_bytes())
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert "evil.example" not in str(found.extensions)
    mine = Credentials.load(authority, issue(authority, "south") or "south")
    check_other_end(signed.path.read_bytes(), mine, "north")
    served = sign_request(authority, asked(tmp_path / "coordinator.csr", "coordinator"), hosts=["trials.example.org"])
    assert next(known.hosts for known in list_certificates(authority) if known.name == "coordinator") == (
        "trials.example.org",
    )
    check_other_end(served.path.read_bytes(), mine, "coordinator")


def test_what_is_there_is_listed_and_an_end_that_is_near_is_warned_of(
    authority: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    issue(authority, "north", days=29)
    issue(authority, "south", days=31)
    issue(authority, "east")
    revoke_certificate(authority, "east")
    found = {known.name: known for known in list_certificates(authority)}
    assert set(found) == {"authority", "north", "south", "east"}
    assert (found["north"].days, found["south"].days) == (28, 30)
    assert [known.name for known in found.values() if known.revoked] == ["east"]
    with caplog.at_level(logging.WARNING, logger="sottovoce"):
        Credentials.load(authority, "south")
        assert not caplog.text
        Credentials.load(authority, "north")
    assert "ends in 28 days; `sottovoce request north`" in caplog.text
    monkeypatch.setattr(certificates, "now", lambda: datetime.now(UTC) + timedelta(days=29, hours=-1))
    assert (
        certificates.days_text({known.name: known for known in list_certificates(authority)}["north"].days)
        == "less than a day"
    )
