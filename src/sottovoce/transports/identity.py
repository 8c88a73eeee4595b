"""Who an end of a wire is: it signs in its own name, and checks what others signed in theirs.

    signed bytes = "sottovoce " purpose NUL name NUL message

A purpose has one meaning: what was signed for one is nothing for another. No purpose and no name has a NUL, so two
different triples never give the same bytes; TLS, which uses the same keys, signs nothing that begins so.
"""

from __future__ import annotations

import functools
import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding

from sottovoce.errors import InputError, RefusedError
from sottovoce.transports.certificates import COORDINATOR, Credentials, check_other_end, check_pins, pin_of
from sottovoce.transports.passphrases import key_in

PLAN: Final = "plan"  # over the digest of a plan: the signer has charged it
PREDICTION_KEY: Final = "prediction key"  # over a public key: the signer has the private one
ALIGN_KEY: Final = "alignment key"  # over the terms of an alignment, a public key and the length of a list
LONGEST: Final = 2**16  # characters of a signature and its certificate
_PSS: Final = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
_ECDSA: Final = ec.ECDSA(hashes.SHA256())


class Identity(Protocol):
    """One end of a wire, by its name."""

    def sign(self, purpose: str, message: bytes) -> str:
        """The message signed in this end's name, for that purpose."""

    def verify(self, name: str, purpose: str, message: bytes, text: str) -> None:
        """Raise `RefusedError` unless `text` is what `name` signed for that purpose and that message."""

    @property
    def pinned(self) -> frozenset[str]:
        """The names whose keys this end knows by itself, and not by the word of an authority."""


@dataclass(frozen=True, eq=False, repr=False)
class Local:
    """A party of one process, known to the others of its wire by a table of keys that is made with the wire."""

    _name: str
    _key: Ed25519PrivateKey
    pinned: frozenset[str]  # whoever is on the wire: the table is this process's own
    _check: Callable[[str, str, bytes, str], None]  # by the table

    def sign(self, purpose: str, message: bytes) -> str:
        return json.dumps({"signature": self._key.sign(signed_bytes(self._name, purpose, message)).hex()})

    def verify(self, name: str, purpose: str, message: bytes, text: str) -> None:
        self._check(name, purpose, message, text)


def local_identities(names: Iterable[str]) -> dict[str, Local]:
    """An identity for each party of one process. A signature that was found right is not checked by each end again.

    All ends are of one process, and so of one trust: with M ends a plan takes M checks, and not M^2.
    """
    keys = {name: Ed25519PrivateKey.from_private_bytes(secrets.token_bytes(32)) for name in names}

    @functools.lru_cache(maxsize=4 * len(keys))  # keeps what is right; a refusal is raised
    def check(name: str, purpose: str, message: bytes, text: str) -> None:
        said = read_signature(name, text, "signature")
        if name not in keys:
            raise RefusedError(f"the signature of {name} cannot be checked: it is no party of this wire.")
        data = signed_bytes(name, purpose, message)
        try:
            keys[name].public_key().verify(bytes.fromhex(said["signature"]), data)
        except (ValueError, InvalidSignature):
            raise wrong_signature(name) from None

    return {name: Local(name, key, frozenset(keys), check) for name, key in keys.items()}


def signed_bytes(name: str, purpose: str, message: bytes) -> bytes:
    """What is signed."""
    if "\0" in name + purpose:
        raise InputError(f"name={name!r} has a NUL, which no signed name has; choose another.")
    return b"\0".join((f"sottovoce {purpose}".encode(), name.encode(), message))


def read_signature(name: str, text: str, *wanted: str) -> dict[str, str]:
    """The named texts of a signature, or a refusal."""
    try:
        said = json.loads(text) if len(text) <= LONGEST else None
    except (ValueError, RecursionError):
        said = None
    if type(said) is not dict or set(said) != set(wanted) or {*map(type, said.values())} != {str}:
        raise RefusedError(f"the signature of {name} is none of this version: it has {' and '.join(wanted)}.")
    return said


def wrong_signature(name: str) -> RefusedError:
    """What a signature that does not verify is answered with."""
    return RefusedError(f"the signature of {name} is wrong: it signed something else, or somebody else did.")


class Certified:
    """An end with a certificate: it signs with the certificate's key, and knows others by theirs.

    Guarantee: `verify` returns only for a signature by the key of a party's certificate, of the authority that this end
    trusts, valid now and not revoked, whose common name is exactly the name. Where `pins` has the name, its key is the
    one pinned: whoever has the authority's key can make certificates of any name, and none with a pinned key.
    """

    def __init__(self, credentials: Credentials, pins: Mapping[str, str] | None = None) -> None:
        self._pins = dict(pins or {})
        self._credentials = credentials
        self._name = credentials.name
        check_pins(self._pins)
        self._key = key_in(credentials.key, "key")
        _sign_bytes(self._key, b"")  # a key that cannot sign is told before anything is charged
        own = pin_of(self._key.public_key())
        if other := next((name for name, pin in self._pins.items() if pin == own and name != self._name), None):
            raise InputError(f"peers.{other} is the key of {self._name} itself; ask the holder of {other} for its pin.")

    def sign(self, purpose: str, message: bytes) -> str:
        signature = _sign_bytes(self._key, signed_bytes(self._name, purpose, message))
        own = x509.load_pem_x509_certificate(self._credentials.certificate)  # without what a file may say around it
        return json.dumps({"certificate": own.public_bytes(Encoding.PEM).decode("ascii"), "signature": signature.hex()})

    def verify(self, name: str, purpose: str, message: bytes, text: str) -> None:
        if name == COORDINATOR:
            raise RefusedError(f"{COORDINATOR!r} is no party's name: it signs no plan and no key of a party.")
        parts = read_signature(name, text, "certificate", "signature")
        try:
            key = check_other_end(parts["certificate"].encode(), self._credentials, name)
        except InputError as error:
            raise RefusedError(f"the signature of {name} has no certificate to go by: {error}") from None
        if self._pins.get(name, pin := pin_of(key)) != pin:
            raise RefusedError(
                f"the certificate of {name} has the key {pin}, and another one is pinned for {name}: ask its holder "
                "which is right before you change the pin."
            )
        data = signed_bytes(name, purpose, message)
        try:
            found = bytes.fromhex(parts["signature"])
            if isinstance(key, ec.EllipticCurvePublicKey):
                key.verify(found, data, _ECDSA)
            elif isinstance(key, rsa.RSAPublicKey):
                key.verify(found, data, _PSS, hashes.SHA256())
            elif isinstance(key, Ed25519PublicKey):
                key.verify(found, data)
            else:
                raise ValueError("a key of another kind")
        except (ValueError, InvalidSignature):
            raise wrong_signature(name) from None

    @property
    def pinned(self) -> frozenset[str]:
        """The names whose keys are pinned; the own one is known."""
        return frozenset((*self._pins, self._name))


def _sign_bytes(key: PrivateKeyTypes, data: bytes) -> bytes:
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(data, _ECDSA)
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(data, _PSS, hashes.SHA256())
    if isinstance(key, Ed25519PrivateKey):
        return key.sign(data)
    raise InputError(f"a {type(key).__name__} signs no plan; issue a certificate with an elliptic-curve or RSA key.")
