"""Certificates for mutually authenticated connections: one authority, one certificate for each name.

    authority.pem authority.key      made once; the key stays with whoever runs the federation
    coordinator.pem coordinator.key  may serve, at the hosts it names; cannot act as a party
    clinic.pem clinic.key            may connect as `clinic`; cannot serve
    revoked.pem                      certificates that the authority took back, if there are any
    revoked/                         these certificates themselves, at the authority: their keys are not signed again
    clinic.csr                       a request: the key is made where it is used, and only signed by the authority

A party needs `authority.pem`, `revoked.pem` where there is one and its own two files, and hands its key to nobody.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import tomli_w
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sottovoce.errors import InputError
from sottovoce.files import is_there, read_plain, write_durably
from sottovoce.transports.passphrases import encrypted, encrypts, key_in, pem_of

COORDINATOR: Final = "coordinator"
AUTHORITY: Final = "authority"
REVOKED: Final = "revoked"
_REQUEST: Final = ".csr"
SOON: Final = 30  # days before its end from which on a certificate is warned of
_LOG: Final = logging.getLogger(__name__)
_RSA_BITS: Final = 2048  # the smallest keys that are taken
_CURVE_BITS: Final = 256
_AUTHORITY_DAYS: Final = 3650
# Clocks differ: a certificate is valid from a little before it was made.
CLOCK_SLACK: Final = timedelta(minutes=5)
_PIN: Final = re.compile("sha256:[0-9a-f]{64}")
_SIGNED: Final = (ec.EllipticCurvePrivateKey, rsa.RSAPrivateKey)  # kinds of keys that certificates are made for
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST: Final = re.compile(r"(\*\.)?[A-Za-z0-9_][A-Za-z0-9._-]{0,250}")
# What a file that somebody else made can raise when it is read.
_NO_CERTIFICATE: Final = (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion)


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
        authority = _certificate(self.ca, "ca")
        certificate = _certificate(self.certificate, "certificate")
        for who in (authority, certificate):
            _require_valid_now(who)
            _require_large_key(who.public_key(), who.subject.rfc4514_string())
        _revoked_serials(self.revoked, authority)
        if not _same_key(key_in(self.key, "key").public_key(), certificate.public_key()):
            raise InputError(
                f"the private key does not match the certificate of {_common_name(certificate)!r}; "
                "use the two files that were issued together."
            )

    @property
    def name(self) -> str:
        return _common_name(_certificate(self.certificate, "certificate"))

    @classmethod
    def load(cls, folder: str | os.PathLike[str], name: str) -> Credentials:
        """The credentials of `name` from the files that `issue` wrote."""
        check_name(name)
        folder = Path(folder)
        taken_back = folder / f"{REVOKED}.pem"
        credentials = cls(
            ca=_read(folder / f"{AUTHORITY}.pem"),
            certificate=_read(folder / f"{name}.pem"),
            key=_opened(folder / f"{name}.key"),
            revoked=_read(taken_back) if taken_back.exists() else b"",
        )
        _warn_of_readers(folder / f"{name}.key")
        return credentials._checked(folder, name)

    @classmethod
    def provisioned(cls, folder: str | os.PathLike[str], name: str) -> Credentials:
        """The credentials of the FLARE client `name` from the folder `startup` that FLARE's provisioning made."""
        folder = Path(folder)
        try:
            server = str(json.loads(_read(folder / "fed_client.json"))["servers"][0]["identity"])
        except (ValueError, LookupError, TypeError):
            raise InputError(f"{folder / 'fed_client.json'} does not name the identity of a server.") from None
        ca, certificate = (_read(folder / file) for file in ("rootCA.pem", "client.crt"))
        return cls(ca, certificate, _opened(folder / "client.key"), server=server)._checked(folder, name)

    def _checked(self, folder: Path, name: str) -> Credentials:
        """The credentials themselves, unless they are another's, another authority's or revoked."""
        if self.name != name:
            raise InputError(f"the certificate in {folder} names {self.name!r}, not {name!r}; issue it again.")
        own, authority = _certificate(self.certificate, "certificate"), _certificate(self.ca, "ca")
        try:
            own.verify_directly_issued_by(authority)
        except _NO_CERTIFICATE:
            raise InputError(
                f"the certificate of {name!r} was not issued by the authority in {folder}; issue it again."
            ) from None
        if own.serial_number in _revoked_serials(self.revoked, authority):
            raise InputError(f"the certificate of {name!r} in {folder} was revoked; ask for another one.")
        if (left := _days_left(own)) < SOON:
            _LOG.warning("the certificate of %r in %s ends in %s; %s", name, folder, days_text(left), renewal(name))
        return self


class Listed(NamedTuple):
    """A certificate of a folder, as its file has it."""

    name: str
    serial: str
    start: datetime
    end: datetime
    days: int  # that are left
    revoked: bool
    pin: str
    hosts: tuple[str, ...]


def listed(folder: str | os.PathLike[str]) -> list[Listed]:
    """The certificates in a folder by name, the authority's among them; what has no certificate is left out."""
    folder = Path(folder)
    authority = _certificate(_read(folder / f"{AUTHORITY}.pem"), f"{AUTHORITY}.pem")
    taken_back = _revoked_in(folder, authority)
    found = []
    for path in sorted(folder.glob("*.pem")):
        if path.stem == REVOKED:
            continue
        try:
            shown = _certificate(_read(path), path.name)
            pin, hosts = pin_of(shown.public_key()), _hosts(shown)
        except _NO_CERTIFICATE:  # an `InputError` among them
            continue
        found.append(
            Listed(
                name=path.stem,
                serial=f"{shown.serial_number:x}",
                start=shown.not_valid_before_utc,
                end=shown.not_valid_after_utc,
                days=_days_left(shown),
                revoked=shown.serial_number in taken_back,
                pin=pin,
                hosts=hosts,
            )
        )
    return found


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
    shown, authority = _certificate(certificate, "the certificate shown"), _certificate(mine.ca, "ca")
    try:
        shown.verify_directly_issued_by(authority)
    except _NO_CERTIFICATE:
        raise InputError(f"the certificate shown for {name!r} was not issued by our authority.") from None
    _require_valid_now(shown)
    _require_large_key(shown.public_key(), shown.subject.rfc4514_string())
    if _common_name(shown) != name:
        raise InputError(f"the certificate shown names {_common_name(shown)!r}, not {name!r}.")
    if not (_provisioned_party(shown, mine.server) if mine.server else _made_for(shown, name, said=True)):
        use = "serve" if name == COORDINATOR else "connect"
        raise InputError(f"the certificate of {name!r} was not made to {use}.")
    if shown.serial_number in _revoked_serials(mine.revoked, authority):
        raise InputError(f"the certificate of {name!r} (serial {shown.serial_number:x}) was revoked by its authority.")
    return shown.public_key()


def _made_for(shown: x509.Certificate, name: str, *, said: bool) -> bool:
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


def _provisioned_party(shown: x509.Certificate, server: str) -> bool:
    """Whether a certificate of FLARE's provisioning is a client's: not its server's, nor an admin's, who has a role."""
    admin = shown.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)
    name = _common_name(shown)
    return name != server and not admin and _made_for(shown, name, said=False)


def pin_of(key: PublicKeyTypes) -> str:
    """The pin of a public key: SHA-256 of its SubjectPublicKeyInfo, the same in every certificate of it."""
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return f"sha256:{hashlib.sha256(key.public_bytes(*form)).hexdigest()}"


def pin_in(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Name and pin of a certificate's file."""
    found = _certificate(_read(Path(path)), str(path))
    check_name(name := _common_name(found))
    try:
        return name, pin_of(found.public_key())
    except _NO_CERTIFICATE:
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


def check_hosts(hosts: Iterable[str]) -> None:
    """Refuse hosts that no certificate can name."""
    _alternative_names(hosts)


def peer_line(name: str, pin: str) -> str:
    """A line of the table [peers]: a name with a dot is in quotes, or TOML takes it for a table.

    >>> peer_line("north", "sha256:..."), peer_line("north.example", "sha256:...")
    ('north = "sha256:..."', '"north.example" = "sha256:..."')
    """
    return tomli_w.dumps({name: pin}).removesuffix("\n")


def private_key(credentials: Credentials) -> PrivateKeyTypes:
    """The key of an end's own certificate."""
    return key_in(credentials.key, "key")


def own_pem(credentials: Credentials) -> str:
    """The certificate alone, without what a file may say around it."""
    found = _certificate(credentials.certificate, "certificate")
    return found.public_bytes(serialization.Encoding.PEM).decode("ascii")


def create_authority(folder: str | os.PathLike[str]) -> None:
    """Make the authority that issues certificates: `authority.pem` and `authority.key` in `folder`.

    An authority that is already there is refused, not replaced: every certificate it issued would be void. A key
    without a certificate, of a process that was stopped between the two, gets one. Of two that make one at the same
    time the second is refused.
    """
    folder = Path(folder)
    existing, path = (folder / f"{AUTHORITY}.{kind}" for kind in ("pem", "key"))
    if is_there(existing):
        raise InputError(f"{existing} exists; use that authority, or another folder for a new one.")
    folder.mkdir(parents=True, exist_ok=True)
    if found := is_there(path):
        _clear(path)
    key = _authority_key(folder) if found else ec.generate_private_key(ec.SECP256R1())
    name = _subject("sottovoce authority")
    certificate = (
        _builder(name, name, key.public_key(), key.public_key(), _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    if not found or (encrypts() and not encrypted(_read(path))):
        _write(path, pem_of(key), 0o600, replace=found)
    _write(existing, certificate.public_bytes(serialization.Encoding.PEM), 0o644, replace=False)


def issue(
    folder: str | os.PathLike[str],
    name: str,
    *,
    hosts: Iterable[str] = ("localhost", "127.0.0.1"),
    days: int = 365,
) -> str | None:
    """Issue `name`.pem and `name`.key in `folder`, replacing older ones of that name; says which it replaced.

    What was replaced stays valid until its own end, wherever there is a copy; `revoke` it first to end it.
    The name `coordinator` gets a certificate that may serve at `hosts` (host names or addresses); any other
    name is a party's, gets one that may only connect, and has no hosts since nobody connects to a party.
    """
    check_name(name)
    folder = Path(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    made = _issued(folder, name, key.public_key(), hosts, days)
    replaced = _words(folder, name)
    _write(folder / f"{name}.key", pem_of(key), 0o600)
    _write(folder / f"{name}.pem", made.public_bytes(serialization.Encoding.PEM), 0o644)
    return replaced


def request(folder: str | os.PathLike[str], name: str) -> tuple[Path, str]:
    """Make `name`.key in `folder`, if it is not there, and the request `name`.csr for a certificate of it.

    The request and the pin of the key are returned; they are no secret. A key that is there is used again: the next
    certificate has the same pin. Where a passphrase is named (`passphrases`) it is encrypted, if it was not. For
    another key take another folder.
    """
    check_name(name)
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"folder={str(folder)!r} cannot be made ({error.strerror}); choose another.") from None
    path = folder / f"{name}.key"
    if is_there(path):
        pem = _read(path)
        key = key_in(pem, str(path))
        if not isinstance(key, _SIGNED):
            raise InputError(f"{path} is of a kind that is not signed; take a new key in another folder.")
        if encrypts() and not encrypted(pem):
            _write(path, pem_of(key), 0o600)
        _warn_of_readers(path)
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        _write(path, pem_of(key), 0o600, replace=False)
    made = x509.CertificateSigningRequestBuilder().subject_name(_subject(name)).sign(key, hashes.SHA256())
    target = folder / f"{name}{_REQUEST}"
    _write(target, made.public_bytes(serialization.Encoding.PEM), 0o644)
    return target, pin_of(key.public_key())


class Signed(NamedTuple):
    """A certificate that was made from a request."""

    name: str
    path: Path
    pin: str
    replaced: str | None  # the one of that name before it, in words
    other_key: bool  # whether that had another key: then pins of this name no longer fit


def sign(
    folder: str | os.PathLike[str],
    request: str | os.PathLike[str],
    *,
    hosts: Iterable[str] = ("localhost", "127.0.0.1"),
    days: int = 365,
    end_other: bool = False,
) -> Signed:
    """Issue `NAME`.pem in the authority's folder for the request `NAME`.csr of whoever has the key.

    Guarantee: the request names exactly the name of its file, is signed with the key that it has in it, and that key
    is large, is that of no other name in the folder and of no certificate that was revoked there. Nothing else
    of the request is used: what the certificate may do follows from the name, as with `issue`. With `end_other` the
    certificate that is replaced is revoked; else it is valid until its own end.
    """
    folder, path = Path(folder), Path(request)
    name = path.name.removesuffix(_REQUEST)
    check_name(name)
    asked = _request(path)
    if (said := _common_name(asked)) != name:
        raise InputError(f"{path} is a request of {said!r}, and its file says {name!r}; ask its sender which is right.")
    key = _key_of(asked, path)
    if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
        raise InputError(f"{path} has a {type(key).__name__}; ask for an elliptic-curve or RSA key.")
    _require_large_key(key, repr(name))
    pin, before = pin_of(key), {known.name: known for known in listed(folder)}
    if shared := [known.name for known in before.values() if known.pin == pin and known.name != name]:
        raise InputError(f"{path} has the key of {shared[0]!r}; each name has a key of its own.")
    own = before.get(name)
    ended = own is not None and (own.revoked or end_other) and own.pin == pin
    if ended or pin in _pins_taken_back(folder):
        raise InputError(f"{path} has the key of a certificate that is revoked; ask for one with a new key.")
    replaced = _words(folder, name)
    made = _issued(folder, name, key, hosts, days)
    if own is not None and end_other:
        revoke(folder, name)
    target = folder / f"{name}.pem"
    _write(target, made.public_bytes(serialization.Encoding.PEM), 0o644)
    return Signed(name, target, pin, replaced, own is not None and own.pin != pin)


def _request(path: Path) -> x509.CertificateSigningRequest:
    """A request whose sender has the key in it."""
    pem = _read(path)
    try:
        asked = x509.load_pem_x509_csr(pem)
        valid = asked.is_signature_valid
    except _NO_CERTIFICATE:
        raise InputError(f"{path} is not a request in PEM form; `sottovoce request NAME` makes one.") from None
    if not valid:
        raise InputError(f"{path} is not signed with its own key: whoever sent it need not have that key. Ask again.")
    return asked


def _key_of(asked: x509.CertificateSigningRequest, path: Path) -> PublicKeyTypes:
    try:
        return asked.public_key()
    except _NO_CERTIFICATE:
        raise InputError(f"{path} has a key of a kind that is not known; ask for another.") from None


def _issued(
    folder: Path,
    name: str,
    key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
    hosts: Iterable[str],
    days: int,
) -> x509.Certificate:
    """A certificate for a key, by the authority of a folder."""
    if days < 1:
        raise InputError(f"days={days} is not allowed: a certificate is valid for at least one day.")
    authority, authority_key = _authority(folder)
    if _now() + timedelta(days=days) > authority.not_valid_after_utc:
        raise InputError(
            f"days={days} is not allowed: the authority itself is valid until"
            f" {authority.not_valid_after_utc:%Y-%m-%d}; ask for fewer days,"
            " or create an authority in another folder."
        )
    builder = (
        _builder(_subject(name), authority.subject, key, authority_key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
    )
    if name == COORDINATOR:
        builder = builder.add_extension(x509.SubjectAlternativeName(_alternative_names(hosts)), critical=False)
        usage = ExtendedKeyUsageOID.SERVER_AUTH
    else:
        usage = ExtendedKeyUsageOID.CLIENT_AUTH
    builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
    return builder.sign(authority_key, hashes.SHA256())


def revoke(folder: str | os.PathLike[str], name: str) -> str:
    """Put the certificate `name`.pem of `folder` on the list `revoked.pem`, and say which it was.

    Both ends read the list when they start. Whoever has a copy of it, or none, goes by that: send it to all parties.
    """
    check_name(name)
    folder = Path(folder)
    authority, authority_key = _authority(folder)
    found = _certificate(_read(folder / f"{name}.pem"), f"{name}.pem")
    path = folder / f"{REVOKED}.pem"
    before = _revoked_in(folder, authority)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.subject)
        .last_update(_now() - CLOCK_SLACK)
        .next_update(authority.not_valid_after_utc)
    )
    for serial in sorted({*before, found.serial_number}):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(_now())
        builder = builder.add_revoked_certificate(entry.build())
    kept = folder / REVOKED / f"{name}-{found.serial_number:x}.pem"
    kept.parent.mkdir(exist_ok=True)
    _write(kept, found.public_bytes(serialization.Encoding.PEM), 0o644)
    _write(path, builder.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), 0o644)
    return _words(folder, name) or name


def _pins_taken_back(folder: Path) -> set[str]:
    """The keys of certificates that were revoked here."""
    return {pin_in(path)[1] for path in (folder / REVOKED).glob("*.pem")}


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """The authority of a folder and its key."""
    return _certificate(_read(folder / f"{AUTHORITY}.pem"), f"{AUTHORITY}.pem"), _authority_key(folder)


def _authority_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    key = key_in(_read(path := folder / f"{AUTHORITY}.key"), str(path))
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"{AUTHORITY}.key is not an elliptic-curve key; create_authority makes one.")
    _warn_of_readers(folder / f"{AUTHORITY}.key")
    return key


def _words(folder: Path, name: str) -> str | None:
    """The certificate of a name in words, or None where there is none."""
    try:
        found = x509.load_pem_x509_certificate((folder / f"{name}.pem").read_bytes())
    except (OSError, *_NO_CERTIFICATE):
        return None
    return f"{name}, serial {found.serial_number:x}, valid until {found.not_valid_after_utc:%Y-%m-%d}"


def _revoked_serials(pem: bytes, authority: x509.Certificate) -> frozenset[int]:
    """The serials on a list, which the authority signed; none of an empty one."""
    if not pem:
        return frozenset()
    try:
        found, key = x509.load_pem_x509_crl(pem), authority.public_key()
        own = isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey) and found.is_signature_valid(key)
    except _NO_CERTIFICATE:
        own = False
    if not own:
        raise InputError(f"{REVOKED}.pem is not a list that the authority signed; ask its keeper for it again.")
    if found.next_update_utc is not None and found.next_update_utc < _now():
        until = f"{found.next_update_utc:%Y-%m-%d}"
        _LOG.warning("%s.pem was to be renewed by %s; ask its keeper for a newer list.", REVOKED, until)
    return frozenset(entry.serial_number for entry in found)


def _revoked_in(folder: Path, authority: x509.Certificate) -> frozenset[int]:
    """The serials on the list of a folder, if it has one."""
    path = folder / f"{REVOKED}.pem"
    return _revoked_serials(_read(path) if path.exists() else b"", authority)


def _days_left(certificate: x509.Certificate) -> int:
    return (certificate.not_valid_after_utc - _now()).days


def _hosts(certificate: x509.Certificate) -> tuple[str, ...]:
    """Where it may serve."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(name.value) for name in names)


def _require_large_key(key: PublicKeyTypes, who: str) -> None:
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


def _warn_of_readers(path: Path) -> None:
    """A key that others can read is no secret."""
    if os.name == "posix" and path.stat().st_mode & 0o077:
        _LOG.warning("%s can be read by others than its owner; chmod 600 it, and issue it again if anybody has.", path)


def _now() -> datetime:
    return datetime.now(UTC)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    days: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - CLOCK_SLACK)
        .not_valid_after(_now() + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_names(hosts: Iterable[str]) -> list[x509.GeneralName]:
    hosts = [hosts] if isinstance(hosts, str) else list(hosts)
    if not hosts or not all(hosts):
        raise InputError(f"hosts={hosts!r} is not allowed: name at least one host where parties reach the coordinator.")
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if not _HOST.fullmatch(host):
                raise InputError(
                    f"host={host!r} is not allowed: give a host name in ASCII (xn--... where it has other letters) or "
                    "an address, without a port."
                ) from None
            names.append(x509.DNSName(host))
    return names


def _read(path: Path) -> bytes:
    try:
        return read_plain(path)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}); `sottovoce certificates` makes these files, or `sottovoce "
            "request` and `sign`."
        ) from None


def _certificate(pem: bytes, what: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except _NO_CERTIFICATE:
        raise InputError(f"{what} is not a certificate in PEM form.") from None


def _opened(path: Path) -> bytes:
    """The key of a file without its passphrase, for this process alone."""
    pem = _read(path)
    return pem_of(key_in(pem, str(path)), plain=True) if encrypted(pem) else pem


def _same_key(one: PublicKeyTypes, other: PublicKeyTypes) -> bool:
    return pin_of(one) == pin_of(other)


def _common_name(certificate: x509.Certificate | x509.CertificateSigningRequest) -> str:
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1:
        raise InputError(f"a certificate must have one common name; this one has {len(names)}.")
    return str(names[0].value)


def _require_valid_now(certificate: x509.Certificate) -> None:
    who = certificate.subject.rfc4514_string()
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if _now() > end:
        raise InputError(f"the certificate of {who} expired on {end:%Y-%m-%d}; issue it again.")
    if _now() < start:
        raise InputError(f"the certificate of {who} is not valid before {start:%Y-%m-%d %H:%M} UTC; check the clock.")


def _clear(path: Path) -> None:
    """Remove what a killed process left beside a file."""
    for left in path.parent.glob(f"{path.name}.*.new"):
        left.unlink(missing_ok=True)


def _write(path: Path, data: bytes, mode: int, *, replace: bool = True) -> None:
    """Make or replace `path` in one step; it never had a wider mode. What a killed process left beside it goes.

    A file that is not to be replaced and is there, also as a link to nothing, stays.
    """
    try:
        _clear(path)
        write_durably(path, data, mode=mode, replace=replace)
    except FileExistsError:
        raise InputError(f"{path} is there meanwhile, or leads nowhere; look at it, and start again.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); choose a writable folder.") from None
