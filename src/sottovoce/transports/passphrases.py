"""Private keys that are encrypted at rest (PKCS #8) by a passphrase.

`SOTTOVOCE_KEY_PASSPHRASE_FILE` names a file that has the passphrase. Where it is set, keys that are made are encrypted;
keys that are encrypted are opened by it, or by what is typed where there is a terminal.
"""

from __future__ import annotations

import functools
import getpass
import logging
import os
import sys
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from sottovoce import systems
from sottovoce.errors import InputError

VARIABLE: Final = "SOTTOVOCE_KEY_PASSPHRASE_FILE"
_SHORTEST: Final = 12  # letters of a passphrase: whoever has the file of the key can try many
_LOG: Final = logging.getLogger(__name__)


def key_in(pem: bytes, what: str) -> PrivateKeyTypes:
    """The private key of a PEM file, opened by its passphrase if it has one."""
    secret = _passphrase(what) if encrypted(pem) else None
    try:
        return serialization.load_pem_private_key(pem, secret)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # the original error may quote the file
        if secret is None:
            raise InputError(f"{what} is not a private key in PEM form.") from None
        _typed.cache_clear()
        raise InputError(f"{what} is not opened by this passphrase: it is another's, or the file is damaged.") from None


def pem_of(key: PrivateKeyTypes, *, plain: bool = False) -> bytes:
    """A key as its file has it: encrypted where a passphrase is named; `plain` is for this process alone."""
    secret = None if plain else _from_file()
    form = serialization.BestAvailableEncryption(secret) if secret else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, form)


def encrypted(pem: bytes) -> bool:
    """Whether a key needs a passphrase."""
    return b"ENCRYPTED" in pem


def encrypts() -> bool:
    """Whether keys that are made now are encrypted."""
    return bool(os.environ.get(VARIABLE))


def _passphrase(what: str) -> bytes:
    if (secret := _from_file()) is not None:
        return secret
    if sys.stdin is None or not sys.stdin.isatty():
        raise InputError(
            f"{what} is encrypted: name the file that has its passphrase in {VARIABLE}, or start this at a terminal."
        )
    return _typed(what)


@functools.cache
def _typed(what: str) -> bytes:
    """Asked for once in a process."""
    return getpass.getpass(f"passphrase of {what}: ").encode()


def _from_file() -> bytes | None:
    """The first line of the file that the environment names."""
    if not encrypts():
        return None
    path = Path(os.environ[VARIABLE])
    try:
        secret = (path.read_bytes().splitlines() or [b""])[0].strip()
        exposed = systems.others_may_read(path, group=False)
    except OSError as error:
        raise InputError(f"{VARIABLE}={str(path)!r} cannot be read ({error.strerror}); name the file.") from None
    if len(secret) < _SHORTEST:
        raise InputError(
            f"{VARIABLE}={str(path)!r}: its first line must be a passphrase of {_SHORTEST} or more letters."
        )
    if exposed:
        _LOG.warning("everybody may read %s, and open the keys with it; chmod 600 it.", path)
    return secret
