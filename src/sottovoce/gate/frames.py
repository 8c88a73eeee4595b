"""Frames: what the coordinator and the parties say to each other, as bytes.

    header | plan | query | text | a description of each array | zeros up to a multiple of 8 | the numbers

All numbers are little-endian, those of each array followed by zeros up to a multiple of 8. Whole numbers have 4 bytes
each where all of an array of one dimension fit, else 8. The encoding is canonical: a frame has one encoding, and
`decode` accepts no other, so bytes that decode at all are the bytes that `encode` would write.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import WireError
from sottovoce.formats import FRAME

MAX_BYTES: Final = 256 * 1024 * 1024
KINDS: Final = (
    "hello",
    "facts",
    "plan",
    "accept",
    "refuse",
    "ask",
    "answer",
    "unknown-plan",
    "done",
    "error",
    "predict",
    "secure",
    "align",
)

_MAGIC: Final = b"sotv"
# magic, version, kind, plan bytes, arrays, serial, round, query bytes, text bytes
_HEADER: Final = struct.Struct("<4sBBBBQiHI")
# name bytes, type, dimensions; the name and the dimensions (8 bytes each) follow
_ARRAY: Final = struct.Struct("<BBB")
_TYPES: Final = (np.dtype("<f8"), np.dtype("<i8"), np.dtype("<i4"))
_REALS, _WHOLES, _NARROW = range(3)
_MAX_DIMENSIONS: Final = 32
_SHAPES: Final = [struct.Struct(f"<{dimensions}Q") for dimensions in range(_MAX_DIMENSIONS + 1)]
_KIND_CODES: Final = {kind: code for code, kind in enumerate(KINDS)}


@dataclass(frozen=True, eq=False)
class Frame:
    """One message: what kind it is, which plan, round and query it belongs to, and what it carries.

    `serial` pairs a reply with its request. `plan` is the plan's hash (32 bytes) or empty before there is a
    plan. `arrays` are float64 or int64; decoded ones are read-only. Two frames are the same when their encodings are.
    """

    kind: str
    serial: int
    plan: bytes = b""
    round: int = 0
    query: str = ""
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)
    text: str = field(default="", repr=False)


def encode(frame: Frame) -> bytes:
    """The frame as bytes.

    Raises `WireError` for whatever `decode` would refuse: an unknown kind, another dtype than float64 or
    int64, a NaN or an infinity, a name, query or text that is too long, more than `MAX_BYTES` in all.
    """
    code = _KIND_CODES.get(frame.kind)
    if code is None:
        raise WireError(f"kind={frame.kind!r} is unknown; the kinds are {', '.join(KINDS)}.")
    if len(frame.plan) not in (0, 32):
        raise WireError(f"plan has {len(frame.plan)} bytes; it must be empty or a hash of 32 bytes.")
    query, text = _utf8("query", frame.query), _utf8("text", frame.text)
    try:
        counts = len(frame.plan), len(frame.arrays), frame.serial, frame.round, len(query), len(text)
        header = _HEADER.pack(_MAGIC, FRAME.number, code, *counts)
    except struct.error:
        raise WireError(
            "a field of the frame is out of range: serial is an unsigned 64-bit integer, round a signed"
            " 32-bit one, query at most 65535 bytes, text at most 4 GiB, arrays at most 255."
        ) from None
    parts: list[Any] = [header, frame.plan, query, text]
    numbers: list[Any] = []
    for label, given in frame.arrays.items():
        array = np.asarray(given)
        name = _utf8("an array's name", label)
        if not 0 < len(name) < 256 or array.ndim > _MAX_DIMENSIONS:
            raise WireError("an array's name must have 1 to 255 bytes, and an array at most 32 dimensions.")
        if array.dtype not in _TYPES[:_NARROW]:
            raise WireError(f"array {label!r} has dtype {array.dtype}; a frame carries float64 and int64 only.")
        if math.prod(filter(None, array.shape)) * 8 > MAX_BYTES:
            raise WireError(f"array {label!r} is too large: its shape exceeds {MAX_BYTES} bytes.")
        type_code = _type_of(f"array {label!r}", array, array.ndim)
        parts += (_ARRAY.pack(len(name), type_code, array.ndim), name, _SHAPES[array.ndim].pack(*array.shape))
        if array.size:
            numbers.append(np.ascontiguousarray(array, dtype=_TYPES[type_code]).data)
            numbers.append(b"\0" * (-_TYPES[type_code].itemsize * array.size % 8))
    parts.append(b"\0" * (-sum(map(len, parts)) % 8))
    data = b"".join(parts + numbers)
    if len(data) > MAX_BYTES:
        raise WireError(f"the frame is too large: {len(data)} bytes; at most {MAX_BYTES} are allowed.")
    return data


def decode(data: bytes, limit: int = MAX_BYTES) -> Frame:
    """The frame that `data` encodes.

    Guarantee: `data` may come from anybody; either it is exactly what `encode` writes for the returned frame,
    or `WireError` is raised, with a text that names the fault and repeats nothing of what the message
    carries.
    """
    if len(data) > limit:
        raise WireError(f"the message is too large: {len(data)} bytes; at most {limit} are allowed.")
    kind, serial, plan_bytes, array_count, round_, query_bytes, text_bytes = peek(data)
    if plan_bytes not in (0, 32):
        raise WireError(f"the plan's hash has {plan_bytes} bytes; it must be empty or have 32.")
    words, offset = _take(data, _HEADER.size, plan_bytes + query_bytes + text_bytes)
    plan, rest = words[:plan_bytes], words[plan_bytes:]
    query, text = rest[:query_bytes], rest[query_bytes:]

    layouts, offset, expected = _layouts(data, offset, array_count, limit)
    padding, offset = _take(data, offset, -offset % 8)
    if any(padding):
        raise WireError("the padding before the arrays is not zero.")
    left = len(data) - offset
    if left != expected:
        fault = "truncated" if left < expected else "followed by trailing bytes"
        raise WireError(f"the message is {fault}: the shapes ask for {expected} bytes, {left} are there.")
    arrays: dict[str, NDArray[Any]] = {}
    for name, (type_code, shape, count, size) in layouts.items():
        what, array = f"array {len(arrays)}", np.frombuffer(data, _TYPES[type_code], count, offset)
        if any(data[offset + array.nbytes : offset + size]):
            raise WireError(f"the padding after {what} is not zero.")
        if _type_of(what, array, len(shape)) != type_code:
            raise WireError(f"{what} has whole numbers of another size than they need.")
        if type_code == _NARROW:
            array = array.astype(np.int64)
            array.flags.writeable = False
        arrays[name] = array if len(shape) == 1 else array.reshape(shape)
        offset += size
    return Frame(kind, serial, plan, round_, _decode_text(query, "query"), arrays, _decode_text(text, "text"))


def other_version(data: bytes) -> str | None:
    """What to say of a frame of another version: magic and version come first in every one of them."""
    if len(data) <= len(_MAGIC) or not data.startswith(_MAGIC) or (number := data[len(_MAGIC)]) == FRAME.number:
        return None
    return FRAME.refusal("the message", number)


def heading(data: bytes) -> Frame:
    """A frame without its arrays, which are not looked at."""
    kind, serial, plan_bytes, _, round_, query_bytes, text_bytes = peek(data)
    words, _ = _take(data, _HEADER.size, plan_bytes + query_bytes + text_bytes)
    query = _decode_text(words[plan_bytes : plan_bytes + query_bytes], "query")
    return Frame(
        kind, serial, words[:plan_bytes], round_, query, {}, _decode_text(words[plan_bytes + query_bytes :], "text")
    )


def numbers_in(data: bytes) -> int:
    """How many numbers the arrays of a frame have; none of them is looked at."""
    _, _, plan_bytes, array_count, _, query_bytes, text_bytes = peek(data)
    layouts, *_ = _layouts(data, _HEADER.size + plan_bytes + query_bytes + text_bytes, array_count, MAX_BYTES)
    return sum(count for _, _, count, _ in layouts.values())


def _layouts(
    data: bytes, offset: int, array_count: int, limit: int
) -> tuple[dict[str, tuple[int, tuple[int, ...], int, int]], int, int]:
    """Type, shape, numbers and bytes, zeros included, of each array by name; where this ends, and all of the bytes."""
    layouts: dict[str, tuple[int, tuple[int, ...], int, int]] = {}
    total = 0
    for _ in range(array_count):
        packed, offset = _take(data, offset, _ARRAY.size)
        name_bytes, type_code, dimensions = _ARRAY.unpack(packed)
        name, offset = _take(data, offset, name_bytes)
        if not name:
            raise WireError("an array's name is empty; every array of a frame has its own name.")
        if type_code >= len(_TYPES):
            raise WireError(f"dtype code {type_code} is unknown; a frame carries float64 and int64 only.")
        if dimensions > _MAX_DIMENSIONS:
            raise WireError(f"an array has {dimensions} dimensions; at most {_MAX_DIMENSIONS} are allowed.")
        packed, offset = _take(data, offset, 8 * dimensions)
        shape = _SHAPES[dimensions].unpack(packed)
        if math.prod(filter(None, shape)) * 8 > limit:  # NumPy refuses huge shapes even when empty
            raise WireError(f"an array is too large: its shape exceeds {limit} bytes.")
        count = math.prod(shape)
        size = -(-_TYPES[type_code].itemsize * count // 8) * 8
        layouts[_decode_text(name, "an array's name")] = type_code, shape, count, size
        total += size
    if len(layouts) < array_count:
        raise WireError("an array's name is duplicate; every array of a frame has its own name.")
    return layouts, offset, total


def peek(data: bytes) -> tuple[str, int, int, int, int, int, int]:
    """Kind, serial, bytes of the plan, arrays, round, bytes of query and text: the header, and no more of a frame."""
    if len(data) < _HEADER.size:
        raise WireError(f"the message is truncated: {len(data)} bytes; a header has {_HEADER.size}.")
    magic, version, code, plan, arrays, serial, round_, query, text = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise WireError("the message is not a sottovoce frame: its first four bytes (magic) are wrong.")
    if version != FRAME.number:
        raise WireError(FRAME.refusal("the message", version))
    if code >= len(KINDS):
        raise WireError(f"kind code {code} is unknown; the codes are 0 to {len(KINDS) - 1}.")
    return KINDS[code], serial, plan, arrays, round_, query, text


def _take(data: bytes, offset: int, count: int) -> tuple[bytes, int]:
    """`count` bytes from `offset` on, and where they end; never past the end of the message."""
    end = offset + count
    if end > len(data):
        raise WireError(f"the message is truncated: {count} bytes are needed, {len(data) - offset} are left.")
    return data[offset:end], end


def _decode_text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        # the original error carries the bytes
        raise WireError(f"{what} is not UTF-8.") from None


def _utf8(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise WireError(f"{what} holds a lone surrogate, which UTF-8 cannot express.") from None


def _type_of(what: str, array: NDArray[Any], dimensions: int) -> int:
    """The type that an array travels as, or a refusal of numbers that are not finite.

    Only whole numbers of one dimension have 4 bytes: words of a prediction have two, and their length must not depend
    on them.
    """
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise WireError(f"{what} holds a non-finite number (NaN or infinity), which a frame never carries.")
        return _REALS
    fits = dimensions == 1 and (not array.size or bool(array.min() >= -(2**31) and array.max() < 2**31))
    return _NARROW if fits else _WHOLES
