"""Streams and boxes: what two ends of a run make of the key that they share (`pair_keys.py`), and nobody else can.

    stream       AES-256 in counter mode under HMAC-SHA256(key, "stream", label): uniform words, one AES key a label
    box          AES-256-GCM under HMAC-SHA256(key, "box", label, sender): unreadable, and unchanged or refused
    noise        AES-256 in counter mode under HMAC-SHA256(own key, "noise", label), own key by HKDF of the run key

A label is a list that says all about the one use of a stream or a box; it is written as JSON, so that two different
lists are two different labels. Both uses of a key start at the counter 0, under different AES keys. A box that is made
again has the same content, or does not leave: its AES key serves one message.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from sottovoce.errors import LeakError, RefusedError
from sottovoce.privacy.randomness import Randomness

Words = NDArray[np.uint64]
Label = Sequence[Any]

_ZEROS: Final = memoryview(bytes(2**18))


class KeyedRandomness:
    """Random bits that are a function of a key and a label: the same in every process, copy and backup with that key.

    Guarantee: `of` gives bits that look uniform to whoever lacks the key, and independent for different labels; without
    a label nothing is drawn.
    """

    secure = True

    def __init__(self, key: bytes, label: Label | None = None) -> None:
        self._key = key
        own = b"" if label is None else hmac.digest(key, b"noise" + written(label), "sha256")
        self._stream = None if label is None else Cipher(AES256(own), CTR(bytes(16))).encryptor()

    def of(self, label: Label) -> KeyedRandomness:
        """The bits of a label, from the first on."""
        return KeyedRandomness(self._key, label)

    def bytes(self, count: int) -> bytes:
        if self._stream is None:
            raise LeakError("what enters an opened value is drawn by its label; nothing was released.")
        return self._stream.update(bytes(count))


def labelled(source: Randomness, label: Label) -> Randomness:
    """Where what enters an opened value is drawn; of a seeded run the source itself. No other source is taken."""
    if isinstance(source, KeyedRandomness):
        return source.of(label)
    if source.secure:
        raise LeakError("what enters an opened value is drawn by a key and a label; nothing was released.")
    return source


def stream(
    key: bytes,
    label: Label,
    count: int,
    kind: type[np.unsignedinteger[Any]] = np.uint64,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """`count` words that look uniform to whoever lacks the key; the same for both ends, once for each label.

    `out`, contiguous and of that size and kind, is filled where it is given: new memory costs more than the words do.
    """
    return _stream(key, written(label), count, kind, out)


def _stream(
    key: bytes, label: bytes, count: int, kind: type[np.unsignedinteger[Any]], out: NDArray[Any] | None
) -> NDArray[Any]:
    """The same for a label that is written already."""
    own = hmac.digest(key, b"stream" + label, "sha256")
    words = np.empty(count, dtype=np.dtype(kind).newbyteorder("<")) if out is None else out
    left: Any = words.reshape(-1).view(np.uint8)
    encryptor = Cipher(AES256(own), CTR(bytes(16))).encryptor()
    for start in range(0, len(left), len(_ZEROS)):
        piece = left[start : start + len(_ZEROS)]
        encryptor.update_into(_ZEROS[: len(piece)], piece)
    return words.astype(kind, copy=False)


def box(key: bytes, label: Label, sender: str, data: bytes) -> bytes:
    """Data for whoever has the key, under a label that is used once by this sender."""
    return AESGCM(_box_key(key, label, sender)).encrypt(bytes(12), data, written(label))


def unbox(key: bytes, label: Label, sender: str, data: bytes) -> bytes:
    """What was boxed; anything that was altered, cut, sent under another label or by another sender is refused."""
    try:
        return AESGCM(_box_key(key, label, sender)).decrypt(bytes(12), data, written(label))
    except InvalidTag:
        raise RefusedError("a sealed message was altered, or is of another sender, round or run.") from None


def masks(keys: Mapping[str, bytes], own: str, roster: Sequence[str], label: Label, count: int) -> Words:
    """What `own` adds to its words so that they tell nothing, and the sum over the roster everything.

    sum_{j > own} stream(k_j) - sum_{j < own} stream(k_j), modulo 2^64. `keys` are the pair keys by name.
    """
    total, words = np.zeros(count, dtype=np.uint64), np.empty(count, dtype="<u8")
    said = written(label)  # once: it names the whole roster
    for other in roster:
        if other > own:
            total += _stream(keys[other], said, count, np.uint64, words)
        elif other < own:
            total -= _stream(keys[other], said, count, np.uint64, words)
    return total


def hash_of(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Of public arrays, by name, type and shape: what was asked. Private ones are never hashed so."""
    said = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        said.update(written([name, array.dtype.str, array.shape]) + array.tobytes())
    return said.hexdigest()


def _box_key(key: bytes, label: Label, sender: str) -> bytes:
    return hmac.digest(key, b"box" + written([list(label), sender]), "sha256")


def written(label: Label) -> bytes:
    """A label as bytes: two different ones are different bytes."""
    return json.dumps(list(label), separators=(",", ":"), ensure_ascii=True).encode() + b"\n"
