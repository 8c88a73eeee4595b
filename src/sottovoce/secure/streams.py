"""Labels, streams and envelopes: what two ends of a run make of the key that they share (`pair_keys.py`), alone.

    stream       AES-256 in counter mode under HMAC-SHA256(key, "stream", label): uniform words, one AES key a label
    envelope     AES-256-GCM under HMAC-SHA256(key, "envelope", label, sender): unreadable, and unchanged or refused
    noise        AES-256 in counter mode under HMAC-SHA256(own key, "noise", label), own key by HKDF of the run key

A label is a list that says all about the one use of a stream or an envelope; it is written as JSON, so that two
different lists are two different labels. Both uses of a key start at the counter 0, under different AES keys. An
envelope that is made again has the same content, or does not leave: its AES key serves one message. Over columns a
label says

    what for, of which round, for which records, and the hash of all that was told so far

What for: "columns" for the masks A_m of columns, "gram" and "own" for a share of what the dealer adds to such a sum,
"null 0" for the first message of a program, "null dealt" for a share of what is dealt for it.

Masks, envelopes and what is dealt follow from keys, rows and what was told, in this round and in those before it. All
that was told is in every label: who is asked by other numbers, a copy or a fork, has other masks. Records are cut into
pieces (start, stop) that fit a frame, by public numbers: the words of a piece have a stream of their own.

What parties say to one another over columns is a tuple of arrays (`Fields`), masked, added up and packed:

    uint8                 bits, eight a byte: masked, shared and added by XOR
    int8, int16, int64    numbers modulo 2^8, 2^16 and 2^k: masked, shared and added modulo that

A word of 64 bits stands for its residue modulo 2^k, k <= 64: all arithmetic is modulo 2^64, which 2^k divides, and
k / 8 bytes of it travel.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from sottovoce.errors import LeakError, RefusedError
from sottovoce.privacy.mechanisms import Randomness

RingArray = NDArray[np.uint64]
Label = Sequence[Any]
Fields = tuple[NDArray[Any], ...]
Bits = NDArray[np.uint8]
Piece = tuple[int, int]

WHOLE: Final = (0, 0)  # of what is not cut into pieces
FRAME: Final = 60 * 2**20  # bytes of one message
KIND: Final = operator.attrgetter("dtype", "shape")  # of a field
_UNSIGNED: Final[Mapping[int, Any]] = {1: np.uint8, 2: np.uint16, 8: np.uint64}  # by the bytes of an entry
_ZEROS: Final = memoryview(bytes(2**18))


class KeyedRandomness:
    """Random bits that are a function of a key and a label: the same in every process, copy and backup with that key.

    Guarantee: they look uniform to whoever lacks the key, and independent for different labels; without a label
    nothing is drawn.
    """

    secure = True

    def __init__(self, key: bytes, label: Label | None = None) -> None:
        self._key = key
        own = b"" if label is None else hmac.digest(key, b"noise" + write_label(label), "sha256")
        self._stream = None if label is None else Cipher(AES256(own), CTR(bytes(16))).encryptor()

    def bytes(self, count: int) -> bytes:
        if self._stream is None:
            raise LeakError("what enters an opened value is drawn by its label; nothing was released.")
        return self._stream.update(bytes(count))


def labelled(source: Randomness, label: Label) -> Randomness:
    """Where what enters an opened value is drawn; of a seeded run the source itself. No other source is taken."""
    if isinstance(source, KeyedRandomness):
        return KeyedRandomness(source._key, label)
    if source.secure:
        raise LeakError("what enters an opened value is drawn by a key and a label; nothing was released.")
    return source


def stream(
    key: bytes,
    label: Label | bytes,
    count: int,
    kind: type[np.unsignedinteger[Any]] = np.uint64,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """`count` words that look uniform to whoever lacks the key; the same for both ends, once for each label.

    A label of bytes is written already. `out`, contiguous and of that size and kind, is filled where it is given: new
    memory costs more than the words do.
    """
    own = hmac.digest(key, b"stream" + (label if isinstance(label, bytes) else write_label(label)), "sha256")
    words = np.empty(count, dtype=np.dtype(kind).newbyteorder("<")) if out is None else out
    left: Any = words.reshape(-1).view(np.uint8)
    encryptor = Cipher(AES256(own), CTR(bytes(16))).encryptor()
    for start in range(0, len(left), len(_ZEROS)):
        piece = left[start : start + len(_ZEROS)]
        encryptor.update_into(_ZEROS[: len(piece)], piece)
    return words.astype(kind, copy=False)


def seal_envelope(key: bytes, label: Label, sender: str, data: bytes) -> bytes:
    """Data for whoever has the key, under a label that is used once by this sender."""
    return _envelope_cipher(key, label, sender).encrypt(bytes(12), data, write_label(label))


def open_envelope(key: bytes, label: Label, sender: str, data: bytes) -> bytes:
    """What was in an envelope; refused if it was altered, cut, or sent under another label or by another sender."""
    try:
        return _envelope_cipher(key, label, sender).decrypt(bytes(12), data, write_label(label))
    except InvalidTag:
        raise RefusedError("a secure message was altered, or is of another sender, round or run.") from None


def masks(keys: Mapping[str, bytes], own: str, roster: Sequence[str], label: Label, count: int) -> RingArray:
    """What `own` adds to its words so that they tell nothing, and the sum over the roster everything.

    sum_{j > own} stream(k_j) - sum_{j < own} stream(k_j), modulo 2^64. `keys` are the pair keys by name.
    """
    total, words = np.zeros(count, dtype=np.uint64), np.empty(count, dtype="<u8")
    said = write_label(label)  # once: it names the whole roster
    for other in roster:
        if other > own:
            total += stream(keys[other], said, count, np.uint64, words)
        elif other < own:
            total -= stream(keys[other], said, count, np.uint64, words)
    return total


def hash_of(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Of public arrays, by name, type and shape: what was asked. Private ones are never hashed so."""
    said = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        said.update(write_label([name, array.dtype.str, array.shape]) + array.tobytes())
    return said.hexdigest()


def _envelope_cipher(key: bytes, label: Label, sender: str) -> AESGCM:
    return AESGCM(hmac.digest(key, b"envelope" + write_label([list(label), sender]), "sha256"))


def write_label(label: Label) -> bytes:
    """A label as bytes: two different ones are different bytes."""
    return json.dumps(list(label), separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def stream_fields(key: bytes, label: Label, like: Fields) -> Fields:
    """Fields that look uniform to whoever lacks the key, each of a stream of its own."""
    found = list[NDArray[Any]]()
    for at, each in enumerate(like):
        words = stream(key, [*label, at], each.size, _UNSIGNED[each.itemsize])
        found.append(words.view(each.dtype).reshape(each.shape))
    return tuple(found)


def add_fields(left: Fields, right: Fields, *, less: bool = False) -> Fields:
    """The sum, or with `less` the difference, field by field, each in its ring."""
    if list(map(KIND, left)) != list(map(KIND, right)):
        raise RefusedError("messages between parties that are added have the same fields.")
    found = list[NDArray[Any]]()
    for a, b in zip(left, right, strict=True):
        found.append(a ^ b if a.dtype == np.uint8 else a - b if less else a + b)
    return tuple(found)


def pack_fields(fields: Fields, bits: int) -> bytes:
    """As bytes, words of so many bits."""
    parts = []
    for each in fields:
        data = np.ascontiguousarray(each)
        if each.dtype == np.int64:
            data = data.astype("<i8", copy=False).view(np.uint8).reshape(-1, 8)[:, : bits // 8]
        parts.append(data.tobytes())
    return b"".join(parts)


def unpack_fields(data: bytes, like: Fields, bits: int) -> Fields:
    """The fields of such bytes, of the shapes and kinds of others, or a refusal."""
    found, start = list[NDArray[Any]](), 0
    for each in like:
        wide = each.dtype == np.int64
        stop = start + each.size * (bits // 8 if wide else each.itemsize)
        part = np.frombuffer(data[start:stop], dtype=np.uint8)
        if stop > len(data):
            break
        if wide:
            words = np.zeros((each.size, 8), dtype=np.uint8)
            words[:, : bits // 8] = part.reshape(each.size, bits // 8)
            part = words.reshape(-1)
        found.append(part.view(each.dtype.newbyteorder("<")).reshape(each.shape))
        start = stop
    if len(found) < len(like) or start != len(data):
        raise RefusedError("a message between parties has other fields than its step has.")
    return tuple(found)


class RoundLabels(NamedTuple):
    """Labels of a round: its number, and the hash of all that was told in the run until then, its own numbers last."""

    number: int
    said: str

    def label(self, name: str, piece: Piece = WHOLE) -> list[Any]:
        """Of one stream or envelope: what for, of which round, for which records, after what was told."""
        return [name, self.number, *piece, self.said]


SET_UP: Final = RoundLabels(0, "")  # before anything is told


@dataclass(eq=False)
class TranscriptHash:
    """The running hash of what one end was told in a run, in the order in which it came.

    Guarantee: ends that were told the same in the same order have the same hash, and others another one. A round is
    told one set of numbers; others are refused.
    """

    _told: dict[tuple[str, int], tuple[str, RoundLabels]] = field(default_factory=dict, init=False)
    _said: str = field(default=SET_UP.said, init=False)

    def after(self, query: str, number: int, told: Mapping[str, NDArray[Any]]) -> RoundLabels:
        """Take in what a round is asked by; told again, it is what it was."""
        by = hash_of(told)
        if (query, number) not in self._told:
            self._said = hashlib.sha256(write_label([self._said, query, number, by])).hexdigest()
            self._told[query, number] = by, RoundLabels(number, self._said)
        known, labels = self._told[query, number]
        if known != by:
            raise RefusedError(f"query {query!r} in round {number} was told other numbers before.")
        return labels


def frame_pieces(records: int, width: int) -> tuple[Piece, ...]:
    """Pieces of the records such that `width` bytes of each fit one frame."""
    size = max(1, FRAME // max(width, 1))
    count = max(1, math.ceil(records / size))
    return tuple(itertools.pairwise((records * np.arange(count + 1) // count).tolist()))


def column_pieces(records: int, widths: Mapping[str, int]) -> tuple[Piece, ...]:
    """Of masked columns: those of all parties together fit."""
    return frame_pieces(records, 8 * sum(widths.values()))
