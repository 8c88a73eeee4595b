"""The authority of a federation: it issues certificates, signs requests for them, and takes them back."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sottovoce.errors import InputError
from sottovoce.files import is_there, write_durably
from sottovoce.transports import certificates
from sottovoce.transports.certificates import (
    AUTHORITY,
    CLOCK_SLACK,
    COORDINATOR,
    REVOKED,
    UNREADABLE,
    check_name,
    common_name,
    days_left,
    parse_certificate,
    pin_in,
    pin_of,
    read_credential,
    read_revoked,
    require_large_key,
    warn_of_readers,
)
from sottovoce.transports.passphrases import encrypted, encrypts, key_in, pem_of

_REQUEST: Final = ".csr"
_AUTHORITY_DAYS: Final = 3650
_SIGNED: Final = (ec.EllipticCurvePrivateKey, rsa.RSAPrivateKey)  # kinds of keys that certificates are made for
_HOST: Final = re.compile(r"(\*\.)?[A-Za-z0-9_][A-Za-z0-9._-]{0,250}")
_CertifiedKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey


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
    if has_key := is_there(path):
        _clear(path)
    key = _authority_key(folder) if has_key else ec.generate_private_key(ec.SECP256R1())
    certificate = _builder("sottovoce authority", key.public_key(), None, _AUTHORITY_DAYS).sign(key, hashes.SHA256())
    if not has_key or (encrypts() and not encrypted(read_credential(path))):
        _write(path, pem_of(key), 0o600, replace=has_key)
    _write(existing, certificate.public_bytes(serialization.Encoding.PEM), 0o644, replace=False)


def issue(
    folder: str | os.PathLike[str], name: str, *, hosts: Iterable[str] = ("localhost", "127.0.0.1"), days: int = 365
) -> str | None:
    """Issue `name`.pem and `name`.key in `folder`, replacing older ones of that name; says which it replaced.

    What was replaced stays valid until its own end, wherever there is a copy; `revoke_certificate` ends it first.
    The name `coordinator` gets a certificate that may serve at `hosts` (host names or addresses); any other
    name is a party's, gets one that may only connect, and has no hosts since nobody connects to a party.
    """
    check_name(name)
    folder = Path(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    made = _make_certificate(folder, name, key.public_key(), hosts, days)
    replaced = _describe_certificate(folder, name)
    _write(folder / f"{name}.key", pem_of(key), 0o600)
    _write(folder / f"{name}.pem", made.public_bytes(serialization.Encoding.PEM), 0o644)
    return replaced


def make_request(folder: str | os.PathLike[str], name: str) -> tuple[Path, str]:
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
        pem = read_credential(path)
        key = key_in(pem, str(path))
        if not isinstance(key, _SIGNED):
            raise InputError(f"{path} is of a kind that is not signed; take a new key in another folder.")
        if encrypts() and not encrypted(pem):
            _write(path, pem_of(key), 0o600)
        warn_of_readers(path)
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        _write(path, pem_of(key), 0o600, replace=False)
    made = x509.CertificateSigningRequestBuilder().subject_name(_subject(name)).sign(key, hashes.SHA256())
    target = folder / f"{name}{_REQUEST}"
    _write(target, made.public_bytes(serialization.Encoding.PEM), 0o644)
    return target, pin_of(key.public_key())


class SignedCertificate(NamedTuple):
    """A certificate that was made from a request."""

    name: str
    path: Path
    pin: str
    replaced: str | None  # the one of that name before it, in words
    other_key: bool  # whether that had another key: then pins of this name no longer fit


def sign_request(
    folder: str | os.PathLike[str],
    request: str | os.PathLike[str],
    *,
    hosts: Iterable[str] = ("localhost", "127.0.0.1"),
    days: int = 365,
    end_other: bool = False,
) -> SignedCertificate:
    """Issue `NAME`.pem in the authority's folder for the request `NAME`.csr of whoever has the key.

    Guarantee: the request names exactly the name of its file, is signed with the key that it has in it, and that key
    is large, is that of no other name in the folder and of no certificate that was revoked there. Nothing else
    of the request is used: what the certificate may do follows from the name, as with `issue`. With `end_other` the
    certificate that is replaced is revoked; else it is valid until its own end.
    """
    folder, path = Path(folder), Path(request)
    name = path.name.removesuffix(_REQUEST)
    check_name(name)
    key = _read_request(path, name)
    pin, before = pin_of(key), {known.name: known for known in list_certificates(folder)}
    if shared := [known.name for known in before.values() if known.pin == pin and known.name != name]:
        raise InputError(f"{path} has the key of {shared[0]!r}; each name has a key of its own.")
    own = before.get(name)
    ended = own is not None and (own.revoked or end_other) and own.pin == pin
    if ended or pin in {pin_in(taken_back)[1] for taken_back in (folder / REVOKED).glob("*.pem")}:
        raise InputError(f"{path} has the key of a certificate that is revoked; ask for one with a new key.")
    replaced = _describe_certificate(folder, name)
    made = _make_certificate(folder, name, key, hosts, days)
    if own is not None and end_other:
        revoke_certificate(folder, name)
    target = folder / f"{name}.pem"
    _write(target, made.public_bytes(serialization.Encoding.PEM), 0o644)
    return SignedCertificate(name, target, pin, replaced, own is not None and own.pin != pin)


def _read_request(path: Path, name: str) -> _CertifiedKey:
    """The key of a request for that name, which its sender has."""
    pem = read_credential(path)
    try:
        request = x509.load_pem_x509_csr(pem)
        valid = request.is_signature_valid
    except UNREADABLE:
        raise InputError(f"{path} is not a request in PEM form; `sottovoce request NAME` makes one.") from None
    if not valid:
        raise InputError(f"{path} is not signed with its own key: whoever sent it need not have that key. Ask again.")
    if (other := common_name(request)) != name:
        raise InputError(
            f"{path} is a request of {other!r}, and its file says {name!r}; ask its sender which is right."
        )
    try:
        key = request.public_key()
    except UNREADABLE:
        raise InputError(f"{path} has a key of a kind that is not known; ask for another.") from None
    if not isinstance(key, _CertifiedKey):
        raise InputError(f"{path} has a {type(key).__name__}; ask for an elliptic-curve or RSA key.")
    require_large_key(key, repr(name))
    return key


def revoke_certificate(folder: str | os.PathLike[str], name: str) -> str:
    """Put the certificate `name`.pem of `folder` on the list `revoked.pem`, and say which it was.

    Both ends read the list when they start. Whoever has a copy of it, or none, goes by that: send it to all parties.
    """
    check_name(name)
    folder = Path(folder)
    authority, authority_key = _authority(folder)
    certificate = parse_certificate(read_credential(folder / f"{name}.pem"), f"{name}.pem")
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.subject)
        .last_update(certificates.now() - CLOCK_SLACK)
        .next_update(authority.not_valid_after_utc)
    )
    for serial in sorted({*read_revoked(folder, authority), certificate.serial_number}):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(certificates.now())
        builder = builder.add_revoked_certificate(entry.build())
    kept = folder / REVOKED / f"{name}-{certificate.serial_number:x}.pem"
    kept.parent.mkdir(exist_ok=True)
    _write(kept, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    revoked = builder.sign(authority_key, hashes.SHA256())
    _write(folder / f"{REVOKED}.pem", revoked.public_bytes(serialization.Encoding.PEM), 0o644)
    return _describe_certificate(folder, name) or name


class CertificateEntry(NamedTuple):
    """A certificate of a folder, as its file has it."""

    name: str
    serial: str
    start: datetime
    end: datetime
    days: int  # that are left
    revoked: bool
    pin: str
    hosts: tuple[str, ...]


def list_certificates(folder: str | os.PathLike[str]) -> list[CertificateEntry]:
    """The certificates in a folder by name, the authority's among them; what has no certificate is left out."""
    folder = Path(folder)
    authority = parse_certificate(read_credential(folder / f"{AUTHORITY}.pem"), f"{AUTHORITY}.pem")
    taken_back = read_revoked(folder, authority)
    found = []
    for path in sorted(folder.glob("*.pem")):
        if path.stem == REVOKED:
            continue
        try:
            shown = parse_certificate(read_credential(path), path.name)
            pin, extensions = pin_of(shown.public_key()), shown.extensions
        except UNREADABLE:  # an `InputError` among them
            continue
        served = [one.value for one in extensions if isinstance(one.value, x509.SubjectAlternativeName)]
        hosts, serial = tuple(str(name.value) for names in served for name in names), shown.serial_number
        valid = shown.not_valid_before_utc, shown.not_valid_after_utc, days_left(shown)
        found.append(CertificateEntry(path.stem, f"{serial:x}", *valid, serial in taken_back, pin, hosts))
    return found


def _make_certificate(folder: Path, name: str, key: _CertifiedKey, hosts: Iterable[str], days: int) -> x509.Certificate:
    """A certificate for a key, by the authority of a folder."""
    if days < 1:
        raise InputError(f"days={days} is not allowed: a certificate is valid for at least one day.")
    authority, authority_key = _authority(folder)
    if certificates.now() + timedelta(days=days) > authority.not_valid_after_utc:
        raise InputError(
            f"days={days} is not allowed: the authority itself is valid until"
            f" {authority.not_valid_after_utc:%Y-%m-%d}; ask for fewer days,"
            " or create an authority in another folder."
        )
    builder = _builder(name, key, (authority.subject, authority_key.public_key()), days)
    if name == COORDINATOR:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternative_names(hosts)), critical=False)
        usage = ExtendedKeyUsageOID.SERVER_AUTH
    else:
        usage = ExtendedKeyUsageOID.CLIENT_AUTH
    builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
    return builder.sign(authority_key, hashes.SHA256())


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """The authority of a folder and its key."""
    return parse_certificate(read_credential(folder / f"{AUTHORITY}.pem"), f"{AUTHORITY}.pem"), _authority_key(folder)


def _authority_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    key = key_in(read_credential(path := folder / f"{AUTHORITY}.key"), str(path))
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"{AUTHORITY}.key is not an elliptic-curve key; create_authority makes one.")
    warn_of_readers(folder / f"{AUTHORITY}.key")
    return key


def _describe_certificate(folder: Path, name: str) -> str | None:
    """The certificate of a name in words, or None where there is none."""
    try:
        found = x509.load_pem_x509_certificate((folder / f"{name}.pem").read_bytes())
    except (OSError, *UNREADABLE):
        return None
    return f"{name}, serial {found.serial_number:x}, valid until {found.not_valid_after_utc:%Y-%m-%d}"


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    name: str, key: _CertifiedKey, issuer: tuple[x509.Name, ec.EllipticCurvePublicKey] | None, days: int
) -> x509.CertificateBuilder:
    """The beginning of a certificate; without an issuer it is the authority's own."""
    issuer_name, issuer_key = issuer or (_subject(name), key)
    own = issuer is None
    usage = x509.KeyUsage(
        digital_signature=not own,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=own,
        crl_sign=own,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .issuer_name(issuer_name)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(certificates.now() - CLOCK_SLACK)
        .not_valid_after(certificates.now() + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
        .add_extension(x509.BasicConstraints(ca=own, path_length=0 if own else None), critical=True)
        .add_extension(usage, critical=True)
    )


def alternative_names(hosts: Iterable[str]) -> list[x509.GeneralName]:
    """Hosts as a certificate names them; those that none can name are refused."""
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
