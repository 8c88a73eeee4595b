"""Certificates for mutually authenticated connections: one authority, one certificate for each name.

    authority.pem authority.key      made once; the key stays with whoever runs the federation (`authority.py`)
    coordinator.pem coordinator.key  may serve, at the hosts it names; cannot act as a party
    clinic.pem clinic.key            may connect as `clinic`; cannot serve
    revoked.pem                      certificates that the authority took back, if there are any
    revoked/                         these certificates themselves, at the authority: their keys are not signed again
    clinic.csr                       a request: the key is made where it is used, and only signed by the authority

A party needs `authority.pem`, `revoked.pem` where there is one and its own two files, and hands its key to nobody.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import tomli_w
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sottovoce import systems
from sottovoce.errors import InputError
from sottovoce.files import read_plain
from sottovoce.transports.passphrases import encrypted, key_in, pem_of

COORDINATOR: Final = "coordinator"
AUTHORITY: Final = "authority"
REVOKED: Final = "revoked"
SOON: Final = 30  # days before its end from which on a certificate is warned of
_LOG: Final = logging.getLogger(__name__)
_RSA_BITS: Final = 2048  # the smallest keys that are taken
_CURVE_BITS: Final = 256
# Clocks differ: a certificate is valid from a little before it was made.
CLOCK_SLACK: Final = timedelta(minutes=5)
_PIN: Final = re.compile("sha256:[0-9a-f]{64}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# What a file that somebody else made can raise when it is read.
UNREADABLE: Final = (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion)


@dataclass(frozen=True)
class Credentials:
    """What one end of a connection shows: its certificate and key, and the authority it trusts (PEM bytes).

    `revoked` is the authority's list of certificates that it took back; empty if there is none. Checked when made: an
    unreadable or expired certificate, one with a small key, a key that is not the certificate's, or a list that is not
    the authority's, is an `InputError`. The key is in no `repr`. `server` is the name of the server where NVIDIA FLARE
    provisioned them: its certificates do not say what they are for, so that of the server is known by its name.
    """

    ca: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)
    revoked: bytes = field(repr=False, default=b"")
    server: str = ""

    def __post_init__(self) -> None:
        authority = parse_certificate(self.ca, "ca")
        certificate = parse_certificate(self.certificate, "certificate")
        for who in (authority, certificate):
            _require_valid_now(who)
            require_large_key(who.public_key(), who.subject.rfc4514_string())
        revoked_serials(self.revoked, authority)
        if pin_of(key_in(self.key, "key").public_key()) != pin_of(certificate.public_key()):
            raise InputError(
                f"the private key does not match the certificate of {common_name(certificate)!r}; "
                "use the two files that were issued together."
            )

    @property
    def name(self) -> str:
        return common_name(parse_certificate(self.certificate, "certificate"))

    @classmethod
    def load(cls, folder: str | os.PathLike[str], name: str) -> Credentials:
        """The credentials of `name` from the files that `issue` wrote."""
        check_name(name)
        folder = Path(folder)
        ca, certificate = (read_credential(folder / f"{file}.pem") for file in (AUTHORITY, name))
        key, taken_back = _read_key(folder / f"{name}.key"), folder / f"{REVOKED}.pem"
        credentials = cls(ca, certificate, key, read_credential(taken_back) if taken_back.exists() else b"")
        warn_of_readers(folder / f"{name}.key")
        return credentials._check_own(folder, name)

    @classmethod
    def provisioned(cls, folder: str | os.PathLike[str], name: str) -> Credentials:
        """The credentials of the FLARE client `name` from the folder `startup` that FLARE's provisioning made."""
        folder = Path(folder)
        try:
            server = str(json.loads(read_credential(folder / "fed_client.json"))["servers"][0]["identity"])
        except (ValueError, LookupError, TypeError):
            raise InputError(f"{folder / 'fed_client.json'} does not name the identity of a server.") from None
        ca, certificate = (read_credential(folder / file) for file in ("rootCA.pem", "client.crt"))
        return cls(ca, certificate, _read_key(folder / "client.key"), server=server)._check_own(folder, name)

    def _check_own(self, folder: Path, name: str) -> Credentials:
        """The credentials themselves, unless they are another's, another authority's or revoked."""
        if self.name != name:
            raise InputError(f"the certificate in {folder} names {self.name!r}, not {name!r}; issue it again.")
        own, authority = parse_certificate(self.certificate, "certificate"), parse_certificate(self.ca, "ca")
        try:
            own.verify_directly_issued_by(authority)
        except UNREADABLE:
            raise InputError(
                f"the certificate of {name!r} was not issued by the authority in {folder}; issue it again."
            ) from None
        if own.serial_number in revoked_serials(self.revoked, authority):
            raise InputError(f"the certificate of {name!r} in {folder} was revoked; ask for another one.")
        if (left := days_left(own)) < SOON:
            _LOG.warning("the certificate of %r in %s ends in %s; %s", name, folder, days_text(left), renewal(name))
        return self


def days_text(days: int) -> str:
    """How long is left, in words."""
    return "less than a day" if days < 1 else "1 day" if days == 1 else f"{days} days"


def renewal(name: str) -> str:
    """What to do about a certificate that ends soon."""
    return (
        f"`sottovoce request {name}` makes a request for the next one, which keeps the key and its pin, and the "
        f"authority's keeper signs it with `sottovoce sign`."
    )


def check_other_end(certificate: bytes, mine: Credentials, name: str) -> PublicKeyTypes:
    """The key of a certificate (PEM) that another end shows, if it is that of `name` and mine to trust.

    Guarantee: it was issued by the authority of `mine`, is valid now, is no authority's, may serve if it is the
    coordinator's and connect if it is a party's, has one common name, which is `name` to the letter, has no small key,
    and is not on the list of those taken back. Else an `InputError` says which of these it is. Where FLARE provisioned
    `mine`, what a certificate may do is refused only if it says otherwise; the server's and an admin's are no party's.
    """
    shown, authority = parse_certificate(certificate, "the certificate shown"), parse_certificate(mine.ca, "ca")
    try:
        shown.verify_directly_issued_by(authority)
    except UNREADABLE:
        raise InputError(f"the certificate shown for {name!r} was not issued by our authority.") from None
    _require_valid_now(shown)
    require_large_key(shown.public_key(), shown.subject.rfc4514_string())
    if common_name(shown) != name:
        raise InputError(f"the certificate shown names {common_name(shown)!r}, not {name!r}.")
    made = _is_made_for(shown, name, said=not mine.server)
    if mine.server:  # of FLARE: not its server's, nor an admin's, who has a role
        made = made and name != mine.server and not shown.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)
    if not made:
        use = "serve" if name == COORDINATOR else "connect"
        raise InputError(f"the certificate of {name!r} was not made to {use}.")
    if shown.serial_number in revoked_serials(mine.revoked, authority):
        raise InputError(f"the certificate of {name!r} (serial {shown.serial_number:x}) was revoked by its authority.")
    return shown.public_key()


def _is_made_for(shown: x509.Certificate, name: str, *, said: bool) -> bool:
    """Whether a certificate is no authority's and may do what `name` does; it may have to say so."""
    wanted = ExtendedKeyUsageOID.SERVER_AUTH if name == COORDINATOR else ExtendedKeyUsageOID.CLIENT_AUTH
    try:
        found = {type(extension.value): extension.value for extension in shown.extensions}
    except (x509.DuplicateExtension, ValueError):
        return False
    uses, limits = found.get(x509.ExtendedKeyUsage), found.get(x509.BasicConstraints)
    if uses is None or limits is None:
        return not said and (uses is None or wanted in uses) and not getattr(limits, "ca", False)
    return wanted in uses and not limits.ca


def pin_of(key: PublicKeyTypes) -> str:
    """The pin of a public key: SHA-256 of its SubjectPublicKeyInfo, the same in every certificate of it."""
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return f"sha256:{hashlib.sha256(key.public_bytes(*form)).hexdigest()}"


def pin_in(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Name and pin of a certificate's file."""
    found = parse_certificate(read_credential(Path(path)), str(path))
    check_name(name := common_name(found))
    try:
        return name, pin_of(found.public_key())
    except UNREADABLE:
        raise InputError(f"{path} has a key of a kind that is not known.") from None


def check_pins(pins: Mapping[str, str]) -> None:
    """Refuse pins that can be those of no key, and two names with one: an organisation would be two parties."""
    names: dict[str, str] = {}
    for name, pin in pins.items():
        check_name(name)
        if not _PIN.fullmatch(pin):
            raise InputError(f"peers.{name}={pin!r} is no pin; `sottovoce pin {name}.pem` prints it: sha256:...")
        if (other := names.setdefault(pin, name)) != name:
            raise InputError(
                f"{other} and {name} have one key, {pin}: one organisation would be two parties. Each end has a key of "
                "its own; ask their holders for the pins."
            )


def check_name(name: str) -> None:
    """Refuse a name that cannot be a file name and a certificate's common name."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"name={name!r} is not allowed: 1 to 64 letters, digits, '.', '_' or '-', the first a letter or a digit."
        )
    if name in (AUTHORITY, REVOKED):
        raise InputError(f"name={name!r} is the authority's own; choose another.")


def peer_line(name: str, pin: str) -> str:
    """A line of the table [peers]: a name with a dot is in quotes, or TOML takes it for a table.

    >>> peer_line("north", "sha256:..."), peer_line("north.example", "sha256:...")
    ('north = "sha256:..."', '"north.example" = "sha256:..."')
    """
    return tomli_w.dumps({name: pin}).removesuffix("\n")


def revoked_serials(pem: bytes, authority: x509.Certificate) -> frozenset[int]:
    """The serials on a list, which the authority signed; none of an empty one."""
    if not pem:
        return frozenset()
    try:
        found, key = x509.load_pem_x509_crl(pem), authority.public_key()
        own = isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey) and found.is_signature_valid(key)
    except UNREADABLE:
        own = False
    if not own:
        raise InputError(f"{REVOKED}.pem is not a list that the authority signed; ask its keeper for it again.")
    if found.next_update_utc is not None and found.next_update_utc < now():
        until = f"{found.next_update_utc:%Y-%m-%d}"
        _LOG.warning("%s.pem was to be renewed by %s; ask its keeper for a newer list.", REVOKED, until)
    return frozenset(entry.serial_number for entry in found)


def read_revoked(folder: Path, authority: x509.Certificate) -> frozenset[int]:
    """The serials on the list of a folder, if it has one."""
    path = folder / f"{REVOKED}.pem"
    return revoked_serials(read_credential(path) if path.exists() else b"", authority)


def days_left(certificate: x509.Certificate) -> int:
    """Whole days until a certificate ends, negative afterwards."""
    return (certificate.not_valid_after_utc - now()).days


def require_large_key(key: PublicKeyTypes, who: str) -> None:
    """Refuse a key that is small, or of a kind that is not known to be large."""
    least = _RSA_BITS if isinstance(key, rsa.RSAPublicKey) else _CURVE_BITS
    known = isinstance(key, rsa.RSAPublicKey | ec.EllipticCurvePublicKey)
    if isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey):
        return
    if not known or key.key_size < least:  # type: ignore[union-attr]
        raise InputError(
            f"the key of {who} is too small: RSA keys have at least {_RSA_BITS} bits, those of curves {_CURVE_BITS}; "
            "issue it again."
        )


def warn_of_readers(path: Path) -> None:
    """A key that others can read is no secret."""
    if systems.others_may_read(path):
        _LOG.warning("%s can be read by others than its owner; chmod 600 it, and issue it again if anybody has.", path)


def now() -> datetime:
    """The clock by which certificates are made and checked."""
    return datetime.now(UTC)


def read_credential(path: Path) -> bytes:
    """The content of a file of a certificate, a key or a list; an error says what makes these files."""
    try:
        return read_plain(path)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}); `sottovoce certificates` makes these files, or `sottovoce "
            "request` and `sign`."
        ) from None


def parse_certificate(pem: bytes, what: str) -> x509.Certificate:
    """A certificate in PEM form; an error calls it `what`."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except UNREADABLE:
        raise InputError(f"{what} is not a certificate in PEM form.") from None


def _read_key(path: Path) -> bytes:
    """The key of a file without its passphrase, for this process alone."""
    pem = read_credential(path)
    return pem_of(key_in(pem, str(path)), plain=True) if encrypted(pem) else pem


def common_name(certificate: x509.Certificate | x509.CertificateSigningRequest) -> str:
    """The one name that a certificate or a request is for."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1:
        raise InputError(f"a certificate must have one common name; this one has {len(names)}.")
    return str(names[0].value)


def _require_valid_now(certificate: x509.Certificate) -> None:
    who = certificate.subject.rfc4514_string()
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now() > end:
        raise InputError(f"the certificate of {who} expired on {end:%Y-%m-%d}; issue it again.")
    if now() < start:
        raise InputError(f"the certificate of {who} is not valid before {start:%Y-%m-%d %H:%M} UTC; check the clock.")
