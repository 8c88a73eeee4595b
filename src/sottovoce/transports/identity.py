"""Who an end of a wire is: it signs in its own name, and checks what others signed in theirs.

    signed bytes = "sottovoce " purpose NUL name NUL message

A purpose has one meaning: what was signed for one is nothing for another. No purpose and no name has a NUL, so two
different triples never give the same bytes; TLS, which uses the same keys, signs nothing that begins so.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from sottovoce.errors import InputError, RefusedError
from sottovoce.transports.certificates import COORDINATOR, Credentials, check_other_end, own_pem, private_key

PLAN: Final = "plan"  # over the digest of a plan: the signer has charged it
PREDICTION_KEY: Final = "prediction key"  # over an X25519 public key: the signer has the private one
LONGEST: Final = 2**16  # characters of a signature and its certificate
_PSS: Final = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
_ECDSA: Final = ec.ECDSA(hashes.SHA256())


class Identity(Protocol):
    """One end of a wire, by its name."""

    def sign(self, purpose: str, message: bytes) -> str:
        """The message signed in this end's name, for that purpose."""
        ...

    def verify(self, name: str, purpose: str, message: bytes, text: str) -> None:
        """Raise `RefusedError` unless `text` is what `name` signed for that purpose and that message."""
        ...


class Certified:
    """An end with a certificate: it signs with the certificate's key, and knows others by theirs.

    Guarantee: `verify` returns only for a signature by the key of a party's certificate, of the authority that this end
    trusts, valid now and not revoked, whose common name is exactly the name.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._name = credentials.name
        self._key = private_key(credentials)
        _signed(self._key, b"")  # a key that cannot sign is told before anything is charged

    def sign(self, purpose: str, message: bytes) -> str:
        """Signature and certificate."""
        signature = _signed(self._key, _bytes(self._name, purpose, message))
        return json.dumps({"certificate": own_pem(self._credentials), "signature": signature.hex()})

    def verify(self, name: str, purpose: str, message: bytes, text: str) -> None:
        """By the certificate that comes with the signature."""
        if name == COORDINATOR:
            raise RefusedError(f"{COORDINATOR!r} is no party's name: it signs no plan and no key of a party.")
        said = _parts(name, text, "certificate", "signature")
        try:
            key = check_other_end(said["certificate"].encode(), self._credentials, name)
        except InputError as error:
            raise RefusedError(f"the signature of {name} has no certificate to go by: {error}") from None
        _check(key, name, said["signature"], _bytes(name, purpose, message))


class Local:
    """A party of one process, known to the others of its wire by a table of keys that is made with the wire."""

    def __init__(self, name: str, key: Ed25519PrivateKey, known: Mapping[str, Ed25519PublicKey]) -> None:
        self._name = name
        self._key = key
        self._known = known

    def sign(self, purpose: str, message: bytes) -> str:
        """The signature alone."""
        return json.dumps({"signature": self._key.sign(_bytes(self._name, purpose, message)).hex()})

    def verify(self, name: str, purpose: str, message: bytes, text: str) -> None:
        """By the table."""
        said = _parts(name, text, "signature")
        if name not in self._known:
            raise RefusedError(f"the signature of {name} cannot be checked: it is no party of this wire.")
        _check(self._known[name], name, said["signature"], _bytes(name, purpose, message))


def local_identities(names: Iterable[str]) -> dict[str, Local]:
    """An identity for each party of one process."""
    keys = {name: Ed25519PrivateKey.from_private_bytes(secrets.token_bytes(32)) for name in names}
    known = {name: key.public_key() for name, key in keys.items()}
    return {name: Local(name, key, known) for name, key in keys.items()}


def _bytes(name: str, purpose: str, message: bytes) -> bytes:
    if "\0" in name + purpose:
        raise InputError(f"name={name!r} has a NUL, which no signed name has; choose another.")
    return b"\0".join((f"sottovoce {purpose}".encode(), name.encode(), message))


def _parts(name: str, text: str, *wanted: str) -> dict[str, str]:
    """The named texts of a signature, or a refusal."""
    try:
        said = json.loads(text) if len(text) <= LONGEST else None
    except (ValueError, RecursionError):
        said = None
    if type(said) is not dict or set(said) != set(wanted) or not all(type(part) is str for part in said.values()):
        raise RefusedError(f"the signature of {name} is none of this version: it has {' and '.join(wanted)}.")
    return said


def _signed(key: PrivateKeyTypes, data: bytes) -> bytes:
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(data, _ECDSA)
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(data, _PSS, hashes.SHA256())
    if isinstance(key, Ed25519PrivateKey):
        return key.sign(data)
    raise InputError(f"a {type(key).__name__} signs no plan; issue a certificate with an elliptic-curve or RSA key.")


def _check(key: Any, name: str, signature: str, data: bytes) -> None:
    try:
        found = bytes.fromhex(signature)
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(found, data, _ECDSA)
        elif isinstance(key, rsa.RSAPublicKey):
            key.verify(found, data, _PSS, hashes.SHA256())
        elif isinstance(key, Ed25519PublicKey):
            key.verify(found, data)
        else:
            raise ValueError("a key of another kind")
    except (ValueError, InvalidSignature):
        raise RefusedError(
            f"the signature of {name} is wrong: it signed something else, or somebody else did."
        ) from None
