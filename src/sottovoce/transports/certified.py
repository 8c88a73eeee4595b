"""An end of a wire that is known by its certificate: over a network nothing else names it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from sottovoce.errors import InputError, RefusedError
from sottovoce.transports.certificates import (
    COORDINATOR,
    Credentials,
    check_other_end,
    check_pins,
    own_pem,
    pin_of,
    private_key,
)
from sottovoce.transports.identity import parts_of, signed_bytes, wrong

_PSS: Final = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
_ECDSA: Final = ec.ECDSA(hashes.SHA256())


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
        self._key = private_key(credentials)
        _signed(self._key, b"")  # a key that cannot sign is told before anything is charged
        own = pin_of(self._key.public_key())
        if other := next((name for name, pin in self._pins.items() if pin == own and name != self._name), None):
            raise InputError(f"peers.{other} is the key of {self._name} itself; ask the holder of {other} for its pin.")

    def sign(self, purpose: str, message: bytes) -> str:
        """Signature and certificate."""
        signature = _signed(self._key, signed_bytes(self._name, purpose, message))
        return json.dumps({"certificate": own_pem(self._credentials), "signature": signature.hex()})

    def verify(self, name: str, purpose: str, message: bytes, text: str) -> None:
        """By the certificate that comes with the signature."""
        if name == COORDINATOR:
            raise RefusedError(f"{COORDINATOR!r} is no party's name: it signs no plan and no key of a party.")
        said = parts_of(name, text, "certificate", "signature")
        try:
            key = check_other_end(said["certificate"].encode(), self._credentials, name)
        except InputError as error:
            raise RefusedError(f"the signature of {name} has no certificate to go by: {error}") from None
        if self._pins.get(name, pin := pin_of(key)) != pin:
            raise RefusedError(
                f"the certificate of {name} has the key {pin}, and another one is pinned for {name}: ask its holder "
                "which is right before you change the pin."
            )
        _check(key, name, said["signature"], signed_bytes(name, purpose, message))

    @property
    def pinned(self) -> frozenset[str]:
        """The names whose keys are pinned; the own one is known."""
        return frozenset((*self._pins, self._name))


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
        raise wrong(name) from None
