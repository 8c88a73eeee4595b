"""What parties say to one another by secure columns: arrays of bits and of numbers, padded, added up and packed.

    uint8                 bits, eight a byte: padded, shared and added by XOR
    int8, int16, int64    numbers modulo 2^8, 2^16 and 2^k: padded, shared and added modulo that

A word of 64 bits stands for its residue modulo 2^k, k <= 64: all arithmetic is modulo 2^64, which 2^k divides, and
k / 8 bytes of it travel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import RefusedError
from sottovoce.sealed.streams import Label, stream

Fields = tuple[NDArray[Any], ...]
Bits = NDArray[np.uint8]


def streams(key: bytes, label: Label, like: Fields) -> Fields:
    """Fields that look uniform to whoever lacks the key, each of a stream of its own."""
    return tuple(_stream(key, [*label, place], field) for place, field in enumerate(like))


def _stream(key: bytes, label: Label, field: NDArray[Any]) -> NDArray[Any]:
    unsigned: dict[int, Any] = {1: np.uint8, 2: np.uint16, 8: np.uint64}
    return stream(key, label, field.size, unsigned[field.itemsize]).view(field.dtype).reshape(field.shape)


def add(left: Fields, right: Fields) -> Fields:
    """Field by field."""
    _check(left, right)
    pairs = zip(left, right, strict=True)
    return tuple(a ^ b if a.dtype == np.uint8 else a + b for a, b in pairs)


def subtract(left: Fields, right: Fields) -> Fields:
    """Field by field."""
    _check(left, right)
    pairs = zip(left, right, strict=True)
    return tuple(a ^ b if a.dtype == np.uint8 else a - b for a, b in pairs)


def pack(fields: Fields, bits: int) -> bytes:
    """As bytes, words of so many bits."""
    return b"".join(_packed(np.ascontiguousarray(field), bits) for field in fields)


def unpack(data: bytes, like: Fields, bits: int) -> Fields:
    """The fields of such bytes, of the shapes and kinds of others, or a refusal."""
    found, start = list[NDArray[Any]](), 0
    for field in like:
        wide = field.dtype == np.int64
        stop = start + field.size * (bits // 8 if wide else field.itemsize)
        part = np.frombuffer(data[start:stop], dtype=np.uint8)
        if stop > len(data):
            break
        if wide:
            words = np.zeros((field.size, 8), dtype=np.uint8)
            words[:, : bits // 8] = part.reshape(field.size, bits // 8)
            part = words.reshape(-1)
        found.append(part.view(field.dtype.newbyteorder("<")).reshape(field.shape))
        start = stop
    if len(found) < len(like) or start != len(data):
        raise RefusedError("a message between parties has other fields than its step has.")
    return tuple(found)


def bits_of(packed: Bits, records: int) -> Bits:
    """(records, outputs) of 0 and 1."""
    return np.unpackbits(packed, axis=0, count=records)


def pack_bits(bits: Bits) -> Bits:
    """The inverse: eight records a byte."""
    return np.packbits(bits, axis=0)


def nothing_like(fields: Fields) -> Fields:
    """Zeros of the same shapes and kinds."""
    return tuple(np.zeros_like(field) for field in fields)


def _packed(field: NDArray[Any], bits: int) -> bytes:
    if field.dtype != np.int64:
        return field.tobytes()
    return field.astype("<i8", copy=False).view(np.uint8).reshape(-1, 8)[:, : bits // 8].tobytes()


def _check(left: Fields, right: Fields) -> None:
    if [(a.dtype, a.shape) for a in left] != [(b.dtype, b.shape) for b in right]:
        raise RefusedError("messages between parties that are added have the same fields.")
