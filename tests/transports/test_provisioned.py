"""Identities by certificates as NVIDIA FLARE provisions them: they do not say what they are for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sottovoce.errors import InputError, RefusedError
from sottovoce.transports.certificates import Credentials, check_other_end
from sottovoce.transports.identity import Certified

Extensions = Mapping[type, Any]


class Provisioner:
    """A root and certificates of it: RSA keys, one name, and no more extensions than are asked for."""

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(65537, 2048)
        self.root = self.made("trial", self.key, extensions=[x509.BasicConstraints(ca=True, path_length=None)])
        self.other = rsa.generate_private_key(65537, 2048)  # one key serves all names: it is the names that are tested

    def made(self, name: str, key: rsa.RSAPrivateKey, *, role: str = "", extensions: list[Any] = []) -> bytes:  # noqa: B006
        subject = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        if role:
            subject.append(x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, role))
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(subject))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "trial")]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=1))
            .not_valid_after(now + timedelta(days=1))
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=True)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def kit(self, folder: Path, name: str) -> Path:
        """The folder `startup` of a client."""
        folder.mkdir()
        form = serialization.PrivateFormat.TraditionalOpenSSL
        key = self.other.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        (folder / "rootCA.pem").write_bytes(self.root)
        (folder / "client.crt").write_bytes(self.made(name, self.other))
        (folder / "client.key").write_bytes(key)
        (folder / "fed_client.json").write_text(json.dumps({"servers": [{"identity": "hub"}]}))
        return folder


@pytest.fixture(scope="module")
def provisioner() -> Provisioner:
    return Provisioner()


@pytest.fixture(scope="module")
def north(provisioner: Provisioner, tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    return Credentials.provisioned(provisioner.kit(tmp_path_factory.mktemp("kit") / "startup", "north"), "north")


def test_parties_know_one_another_by_their_startup_kits(
    provisioner: Provisioner, north: Credentials, tmp_path: Path
) -> None:
    south = Certified(Credentials.provisioned(provisioner.kit(tmp_path / "startup", "south"), "south"))
    signed = south.sign("plan", b"digest")
    Certified(north).verify("south", "plan", b"digest", signed)
    for name, message in (("north", b"digest"), ("south", b"another")):
        with pytest.raises(RefusedError):
            Certified(north).verify(name, "plan", message, signed)


NO_PARTY: dict[str, dict[str, Any]] = {
    "the server's": {"name": "hub"},
    "an admin's": {"name": "lead", "role": "lead"},
    "an authority's": {"name": "south", "extensions": [x509.BasicConstraints(ca=True, path_length=None)]},
    "one that may only serve": {
        "name": "south",
        "extensions": [x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])],
    },
}


@pytest.mark.parametrize("case", NO_PARTY)
def test_a_certificate_that_is_no_partys_is_refused(provisioner: Provisioner, north: Credentials, case: str) -> None:
    shown = provisioner.made(key=provisioner.other, **NO_PARTY[case])
    with pytest.raises(InputError, match="was not made to connect"):
        check_other_end(shown, north, NO_PARTY[case]["name"])


def test_a_certificate_that_says_nothing_is_refused_where_ours_do(provisioner: Provisioner, north: Credentials) -> None:
    shown = provisioner.made("south", provisioner.other)
    assert check_other_end(shown, north, "south") == provisioner.other.public_key()
    ours = Credentials(north.ca, north.certificate, north.key)
    with pytest.raises(InputError, match="was not made to connect"):
        check_other_end(shown, ours, "south")


def test_a_kit_of_another_client_or_without_a_server_is_refused(provisioner: Provisioner, tmp_path: Path) -> None:
    kit = provisioner.kit(tmp_path / "startup", "north")
    with pytest.raises(InputError, match="names 'north', not 'south'"):
        Credentials.provisioned(kit, "south")
    (kit / "fed_client.json").write_text("{}")
    with pytest.raises(InputError, match="does not name the identity of a server"):
        Credentials.provisioned(kit, "north")
