"""Signatures in the name of one end of a wire: by certificates, and between parties of one process."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sottovoce.errors import InputError, RefusedError
from sottovoce.transports.authority import create_authority, issue
from sottovoce.transports.certificates import Credentials
from sottovoce.transports.identity import Certified, local_identities

MESSAGE = bytes(range(32))
DAY = timedelta(days=1)


def forged(folder: Path, name: str, key: Any, **changes: Any) -> Certified:
    """An end whose certificate the authority of the folder issued, with whatever the changes say instead."""
    said = {"usage": ExtendedKeyUsageOID.CLIENT_AUTH, "ca": False, "from": -DAY, "to": DAY, "names": [name]} | changes
    authority = x509.load_pem_x509_certificate((folder / "authority.pem").read_bytes())
    signer: Any = serialization.load_pem_private_key((folder / "authority.key").read_bytes(), None)
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each) for each in said["names"]]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + said["from"])
        .not_valid_after(now + said["to"])
        .add_extension(x509.BasicConstraints(ca=said["ca"], path_length=None), critical=True)
    )
    if said["usage"] is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([said["usage"]]), critical=True)
    certificate = builder.sign(said.get("signer", signer), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    end = Certified.__new__(Certified)  # what Credentials would refuse is here for others to refuse
    credentials = Credentials.__new__(Credentials)
    for field, value in {
        "ca": (folder / "authority.pem").read_bytes(),
        "certificate": certificate,
        "key": private,
    }.items():
        object.__setattr__(credentials, field, value)
    end._credentials, end._name, end._key = credentials, name, key
    return end


@pytest.fixture(scope="module")
def anna(certificates: Path) -> Certified:
    return Certified(Credentials.load(certificates, "anna"))


@pytest.fixture(scope="module")
def ben(certificates: Path) -> Certified:
    return Certified(Credentials.load(certificates, "ben"))


def ends(anna: Certified, ben: Certified) -> list[tuple[Any, Any]]:
    here = local_identities(["anna", "ben", "cleo"])
    return [(anna, ben), (here["anna"], here["ben"])]


def test_a_signature_is_of_one_name_one_purpose_and_one_message(anna: Certified, ben: Certified) -> None:
    for one, other in ends(anna, ben):
        text = one.sign("plan", MESSAGE)
        other.verify("anna", "plan", MESSAGE, text)
        one.verify("anna", "plan", MESSAGE, text)
        bad: list[tuple[str, str, bytes, str]] = [
            ("anna", "prediction key", MESSAGE, text),
            ("anna", "plan", MESSAGE[::-1], text),
            ("anna", "plan", b"", text),
            ("ben", "plan", MESSAGE, text),
            ("cleo", "plan", MESSAGE, text),
            ("anna", "plan", MESSAGE, other.sign("plan", MESSAGE)),
            ("anna", "plan\0anna", MESSAGE[1:], text),
        ]
        for name, purpose, message, said in bad:
            with pytest.raises((RefusedError, InputError), match=name if "\0" not in purpose else "NUL"):
                other.verify(name, purpose, message, said)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "1", '"x"', "{" * 9999, '{"signature": 1}', "x" * 10**6])
def test_a_text_that_is_no_signature_is_refused(text: str, anna: Certified, ben: Certified) -> None:
    for one, other in ends(anna, ben):
        with pytest.raises(RefusedError, match="the signature of anna"):
            other.verify("anna", "plan", MESSAGE, text)
        said = json.loads(one.sign("plan", MESSAGE))
        for changed in (said | {"signature": "zz"}, said | {"signature": ""}, said | {"more": ""}):
            with pytest.raises(RefusedError, match="the signature of anna"):
                other.verify("anna", "plan", MESSAGE, json.dumps(changed))


KEYS: dict[str, Callable[[], Any]] = {
    "P-256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "P-384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "RSA": lambda: rsa.generate_private_key(65537, 2048),
    "Ed25519": ed25519.Ed25519PrivateKey.generate,
}


@pytest.mark.parametrize("make", KEYS.values(), ids=KEYS)
def test_every_kind_of_key_signs(make: Callable[[], Any], certificates: Path, ben: Certified) -> None:
    anna = forged(certificates, "anna", make())
    text = anna.sign("plan", MESSAGE)
    ben.verify("anna", "plan", MESSAGE, text)
    with pytest.raises(RefusedError, match="the signature of anna is wrong"):
        ben.verify("anna", "plan", MESSAGE + b"!", text)


CERTIFICATES: dict[str, tuple[dict[str, Any], str]] = {
    "the coordinator's": ({"usage": ExtendedKeyUsageOID.SERVER_AUTH}, "not made to connect"),
    "of no use": ({"usage": None}, "not made to connect"),
    "an authority's": ({"ca": True}, "not made to connect"),
    "expired": ({"from": -3 * DAY, "to": -DAY}, "expired"),
    "of tomorrow": ({"from": DAY, "to": 2 * DAY}, "not valid before"),
    "of another name": ({"names": ["annas"]}, "names 'annas', not 'anna'"),
    "of two names": ({"names": ["anna", "ben"]}, "one common name"),
    "of another authority": ({"signer": ec.generate_private_key(ec.SECP256R1())}, "not issued by our authority"),
}


@pytest.mark.parametrize(("changes", "reason"), CERTIFICATES.values(), ids=CERTIFICATES)
def test_a_certificate_that_is_not_the_partys_is_refused(
    changes: dict[str, Any], reason: str, certificates: Path, ben: Certified
) -> None:
    text = forged(certificates, "anna", ec.generate_private_key(ec.SECP256R1()), **changes).sign("plan", MESSAGE)
    with pytest.raises(RefusedError, match=f"the signature of anna has no certificate to go by: .*{reason}"):
        ben.verify("anna", "plan", MESSAGE, text)


def test_another_authority_of_the_same_names_is_no_authority(tmp_path: Path, ben: Certified) -> None:
    create_authority(tmp_path)
    issue(tmp_path, "anna")
    text = Certified(Credentials.load(tmp_path, "anna")).sign("plan", MESSAGE)
    with pytest.raises(RefusedError, match="not issued by our authority"):
        ben.verify("anna", "plan", MESSAGE, text)


def test_the_coordinators_certificate_signs_for_no_party(tmp_path: Path) -> None:
    create_authority(tmp_path)
    for name in ("coordinator", "anna"):
        issue(tmp_path, name)
    coordinator, anna = (Certified(Credentials.load(tmp_path, name)) for name in ("coordinator", "anna"))
    with pytest.raises(RefusedError, match="'coordinator' is no party's name"):
        anna.verify("coordinator", "plan", MESSAGE, coordinator.sign("plan", MESSAGE))


def test_what_a_file_says_around_a_certificate_is_not_sent(certificates: Path, ben: Certified) -> None:
    mine = Credentials.load(certificates, "anna")
    anna = Certified(dataclasses.replace(mine, certificate="Ort: K\u00f6ln\n".encode() + mine.certificate))
    ben.verify("anna", "plan", MESSAGE, anna.sign("plan", MESSAGE))


def test_a_key_that_cannot_sign_is_told_before_anything_is_charged(certificates: Path) -> None:
    mine = Credentials.load(certificates, "anna")
    other = Credentials.__new__(Credentials)
    key = ed448.Ed448PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for field in dataclasses.fields(mine):
        object.__setattr__(other, field.name, key if field.name == "key" else getattr(mine, field.name))
    with pytest.raises(InputError, match="signs no plan"):
        Certified(other)
