"""Who an end of a wire is: it signs in its own name, and checks what others signed in theirs.

    signed bytes = "sottovoce " purpose NUL name NUL message

A purpose has one meaning: what was signed for one is nothing for another. No purpose and no name has a NUL, so two
different triples never give the same bytes; TLS, which uses the same keys, signs nothing that begins so.
"""

from __future__ import annotations

import functools
import json
import secrets
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sottovoce.errors import InputError, RefusedError

PLAN: Final = "plan"  # over the digest of a plan: the signer has charged it
PREDICTION_KEY: Final = "prediction key"  # over a public key: the signer has the private one
ALIGN_KEY: Final = "alignment key"  # over the terms of an alignment, a public key and the length of a list
LONGEST: Final = 2**16  # characters of a signature and its certificate


class Identity(Protocol):
    """One end of a wire, by its name."""

    def sign(self, purpose: str, message: bytes) -> str:
        """The message signed in this end's name, for that purpose."""
        ...

    def verify(self, name: str, purpose: str, message: bytes, text: str) -> None:
        """Raise `RefusedError` unless `text` is what `name` signed for that purpose and that message."""
        ...

    @property
    def pinned(self) -> frozenset[str]:
        """The names whose keys this end knows by itself, and not by the word of an authority."""
        ...


class _Table:
    """The public keys of a wire inside one process. A signature that was found right is not checked by each end again.

    All ends are of one process, and so of one trust: with M ends a plan takes M checks, and not M^2.
    """

    def __init__(self, keys: Mapping[str, Ed25519PublicKey]) -> None:
        self.keys = keys
        self.check = functools.lru_cache(maxsize=4 * len(keys))(self._check)  # keeps what is right; a refusal is raised

    def _check(self, name: str, purpose: str, message: bytes, text: str) -> None:
        said = parts_of(name, text, "signature")
        if name not in self.keys:
            raise RefusedError(f"the signature of {name} cannot be checked: it is no party of this wire.")
        data = signed_bytes(name, purpose, message)
        try:
            self.keys[name].verify(bytes.fromhex(said["signature"]), data)
        except (ValueError, InvalidSignature):
            raise wrong(name) from None


class Local:
    """A party of one process, known to the others of its wire by a table of keys that is made with the wire."""

    def __init__(self, name: str, key: Ed25519PrivateKey, known: _Table) -> None:
        self._name = name
        self._key = key
        self._known = known

    def sign(self, purpose: str, message: bytes) -> str:
        """The signature alone."""
        return json.dumps({"signature": self._key.sign(signed_bytes(self._name, purpose, message)).hex()})

    def verify(self, name: str, purpose: str, message: bytes, text: str) -> None:
        """By the table."""
        self._known.check(name, purpose, message, text)

    @property
    def pinned(self) -> frozenset[str]:
        """Whoever is on the wire: the table is this process's own."""
        return frozenset(self._known.keys)


def local_identities(names: Iterable[str]) -> dict[str, Local]:
    """An identity for each party of one process."""
    keys = {name: Ed25519PrivateKey.from_private_bytes(secrets.token_bytes(32)) for name in names}
    known = _Table({name: key.public_key() for name, key in keys.items()})
    return {name: Local(name, key, known) for name, key in keys.items()}


def signed_bytes(name: str, purpose: str, message: bytes) -> bytes:
    """What is signed."""
    if "\0" in name + purpose:
        raise InputError(f"name={name!r} has a NUL, which no signed name has; choose another.")
    return b"\0".join((f"sottovoce {purpose}".encode(), name.encode(), message))


def parts_of(name: str, text: str, *wanted: str) -> dict[str, str]:
    """The named texts of a signature, or a refusal."""
    try:
        said = json.loads(text) if len(text) <= LONGEST else None
    except (ValueError, RecursionError):
        said = None
    if type(said) is not dict or set(said) != set(wanted) or not all(type(part) is str for part in said.values()):
        raise RefusedError(f"the signature of {name} is none of this version: it has {' and '.join(wanted)}.")
    return said


def wrong(name: str) -> RefusedError:
    """What a signature that does not verify is answered with."""
    return RefusedError(f"the signature of {name} is wrong: it signed something else, or somebody else did.")
