from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sottovoce.errors import InputError
from sottovoce.transports import authority, certificates
from sottovoce.transports.authority import create_authority, issue, make_request, sign_request
from sottovoce.transports.certificates import Credentials


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "made" / "for" / "it"
    create_authority(folder)
    return folder


def certificate(folder: Path, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / f"{name}.pem").read_bytes())


def usages(found: x509.Certificate) -> list[x509.ObjectIdentifier]:
    return list(found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def test_a_party_may_only_connect(folder: Path) -> None:
    issue(folder, "clinic-1", days=30)
    found = certificate(folder, "clinic-1")
    assert [name.value for name in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["clinic-1"]
    assert usages(found) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    with pytest.raises(x509.ExtensionNotFound):
        found.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert timedelta(days=29) < found.not_valid_after_utc - datetime.now(UTC) < timedelta(days=30)
    public_key = found.public_key()
    assert isinstance(public_key, ec.EllipticCurvePublicKey)
    assert public_key.curve.name == "secp256r1"
    found.verify_directly_issued_by(certificate(folder, "authority"))


def test_the_coordinator_may_only_serve_at_its_hosts(folder: Path) -> None:
    issue(folder, "coordinator", hosts=["sum.example.org", "10.0.0.7", "::1"])
    found = certificate(folder, "coordinator")
    assert usages(found) == [ExtendedKeyUsageOID.SERVER_AUTH]
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["sum.example.org"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("10.0.0.7"), ipaddress.ip_address("::1")]


def test_private_keys_are_readable_by_their_owner_alone(folder: Path) -> None:
    issue(folder, "clinic")
    issue(folder, "clinic")
    for name in ("authority", "clinic"):
        assert stat.S_IMODE((folder / f"{name}.key").stat().st_mode) == 0o600
    assert {path.suffix for path in folder.iterdir()} == {".pem", ".key"}


def test_credentials_load_and_keep_the_key_out_of_their_repr(folder: Path) -> None:
    issue(folder, "clinic")
    credentials = Credentials.load(folder, "clinic")
    assert credentials.name == "clinic"
    assert credentials.key == (folder / "clinic.key").read_bytes()
    assert "PRIVATE" not in repr(credentials)


def test_issuing_again_renews(folder: Path) -> None:
    issue(folder, "clinic")
    old = Credentials.load(folder, "clinic")
    issue(folder, "clinic")
    assert Credentials.load(folder, "clinic").certificate != old.certificate


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../clinic", "a/b", "a\\b", ".hidden", "-flag", "a b", "a\n", "a\0", "é", "a" * 65, "authority"],
)
def test_unsafe_names_are_refused(folder: Path, name: str) -> None:
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(InputError, match="name="):
        issue(folder, name)
    with pytest.raises(InputError, match="name="):
        Credentials.load(folder, name)
    assert sorted(folder.parent.rglob("*")) == before


def test_an_authority_is_never_replaced(folder: Path) -> None:
    before = (folder / "authority.key").read_bytes()
    with pytest.raises(InputError, match="exists"):
        create_authority(folder)
    assert (folder / "authority.key").read_bytes() == before


@pytest.mark.parametrize("missing", ["authority.pem", "clinic.pem", "clinic.key"])
def test_a_missing_file_is_named(folder: Path, missing: str) -> None:
    issue(folder, "clinic")
    (folder / missing).unlink()
    with pytest.raises(InputError, match=missing):
        Credentials.load(folder, "clinic")


def test_without_an_authority_nothing_is_issued(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"authority\.pem"):
        issue(tmp_path, "clinic")


@pytest.mark.parametrize(("shift", "fault"), [(-800, "expired"), (800, "not valid before")])
def test_a_certificate_outside_its_time_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, shift: int, fault: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "now", lambda: datetime.now(UTC) + timedelta(days=shift))
        issue(folder, "clinic")
    with pytest.raises(InputError, match=fault):
        Credentials.load(folder, "clinic")


def test_a_certificate_never_outlives_its_authority(folder: Path) -> None:
    with pytest.raises(InputError, match="authority itself"):
        issue(folder, "clinic", days=4000)
    with pytest.raises(InputError, match="days=0"):
        issue(folder, "clinic", days=0)


def test_a_key_of_another_is_refused(folder: Path) -> None:
    issue(folder, "clinic")
    issue(folder, "lab")
    (folder / "clinic.key").write_bytes((folder / "lab.key").read_bytes())
    with pytest.raises(InputError, match="does not match"):
        Credentials.load(folder, "clinic")


def test_a_certificate_of_another_is_refused(folder: Path) -> None:
    issue(folder, "lab")
    for ending in ("pem", "key"):
        (folder / f"clinic.{ending}").write_bytes((folder / f"lab.{ending}").read_bytes())
    with pytest.raises(InputError, match="names 'lab'"):
        Credentials.load(folder, "clinic")


def test_a_certificate_of_another_authority_is_refused(folder: Path, tmp_path: Path) -> None:
    create_authority(tmp_path / "other")
    issue(tmp_path / "other", "clinic")
    for ending in ("pem", "key"):
        (folder / f"clinic.{ending}").write_bytes((tmp_path / "other" / f"clinic.{ending}").read_bytes())
    with pytest.raises(InputError, match="not issued by"):
        Credentials.load(folder, "clinic")


@pytest.mark.parametrize("ending", ["pem", "key"])
def test_a_file_that_is_no_pem_is_refused_without_being_quoted(folder: Path, ending: str) -> None:
    issue(folder, "clinic")
    (folder / f"clinic.{ending}").write_text("-----BEGIN secret-----")
    with pytest.raises(InputError, match="PEM") as error:
        Credentials.load(folder, "clinic")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("hosts", [(), ("",), ""])
def test_a_coordinator_without_hosts_is_refused(folder: Path, hosts: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="hosts="):
        issue(folder, "coordinator", hosts=hosts)


def test_a_key_that_a_killed_process_left_half_written_goes_with_the_next(tmp_path):
    create_authority(tmp_path)
    left = tmp_path / "north.key.0123456789abcdef.new"
    left.write_bytes(b"half")
    issue(tmp_path, "north")
    assert not left.exists()
    assert Credentials.load(tmp_path, "north").name == "north"


@pytest.mark.parametrize("stopped", [False, True])
def test_of_two_authorities_made_at_once_the_first_stays(
    stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second has looked before the first wrote, its key alone where it was `stopped` between the two files."""
    look, write = authority.is_there, authority._write

    def first(folder: Path) -> None:
        create_authority(folder)
        issue(folder, "north")
        if stopped:
            (folder / "authority.pem").unlink()

    def both(folder: Path) -> bytes:
        """What the second finds, and leaves, is the key of the first."""
        folder.mkdir()

        def looks(path: Path) -> bool:
            found = look(path)
            if path.suffix == ".key":
                monkeypatch.setattr(authority, "is_there", look)
                first(folder)
            return found

        monkeypatch.setattr(authority, "is_there", looks)
        with contextlib.suppress(InputError):
            create_authority(folder)
        key = authority._authority_key(folder).public_key()
        north = x509.load_pem_x509_certificate((folder / "north.pem").read_bytes())
        key.verify(north.signature, north.tbs_certificate_bytes, ec.ECDSA(north.signature_hash_algorithm))
        return (folder / "authority.key").read_bytes()

    both(tmp_path / "one")
    monkeypatch.setattr(authority, "_write", lambda *a, **_: write(*a))  # planted fault: what is there is replaced
    with pytest.raises(InvalidSignature):
        both(tmp_path / "two")


def test_a_key_whose_making_was_stopped_without_hard_links_is_made_by_the_same_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", refused)
    for name in ("north.key", "authority.key", "authority.pem"):
        (tmp_path / name).touch(mode=0o600)  # taken, and no more
    make_request(tmp_path, "north")
    create_authority(tmp_path)
    sign_request(tmp_path, tmp_path / "north.csr")
    assert Credentials.load(tmp_path, "north").name == "north"
