# mypy: allow-untyped-decorators
"""Blinding of identifiers: x-coordinates of Curve25519, multiplied by secret scalars in any order.

    H(salt, label, text)   try and increment: HMAC-SHA256(salt, label, counter, text), 255 bits of it, until it is the
                           x-coordinate of a point of the curve (never of its twist)
    X25519(k, P)           k is a multiple of 8, so what comes out is in the subgroup of prime order
    k / r                  as a scalar, up to its sign, which an x-coordinate does not have

Proof: `proofs/alignment.md`.
"""

from __future__ import annotations

import hmac
import json
import math
import secrets
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sottovoce.data.kernels import watch
from sottovoce.errors import RefusedError
from sottovoce.secure.workers import POINT

Points = NDArray[np.uint8]  # n x 32, little-endian

PRIME: Final = 2**255 - 19
ORDER: Final = 2**252 + 27742317777372353535851937790883648493  # of the subgroup; the curve has 8 times as many points
_A: Final = 486662  # y^2 = x^3 + A x^2 + x
_BITS: Final = 29  # of a limb; 9 of them, so that a column of products fits in 63 bits
_LIMBS: Final = 9
_MASK: Final = 2**_BITS - 1
_FOLD: Final = 19 * 2 ** (_BITS * _LIMBS - 255)  # 2^261 modulo the prime
_PRIME_LIMBS: Final = np.array([(PRIME >> (_BITS * k)) & _MASK for k in range(_LIMBS)], dtype=np.int64)

watch()


def new_scalar() -> bytes:
    """A fresh secret scalar, as X25519 has them: 2^254 + 8 j, uniform."""
    value = int.from_bytes(secrets.token_bytes(POINT), "little")
    return (value & (2**254 - 8) | 2**254).to_bytes(POINT, "little")


def quotient(scalar: bytes, by: bytes) -> bytes:
    """The scalar that does what `scalar` does to points that `by` was applied to, once `by` is taken back."""
    k, r = (int.from_bytes(each, "little") for each in (scalar, by))
    wanted = k * pow(r, -1, ORDER) % ORDER
    wanted += ORDER * (-wanted * pow(ORDER, -1, 8) % 8)  # the same modulo the order, and a multiple of 8
    if wanted < 2**254:
        wanted = 8 * ORDER - wanted  # the other sign
    if not 2**254 <= wanted < 2**255:
        raise RefusedError("a scalar came out that no blinding has, which chance does once in 2^126; start again.")
    return wanted.to_bytes(POINT, "little")


def hashed(salt: bytes, label: Sequence[Any], texts: Sequence[str]) -> Points:
    """A point of the curve for each text, which nobody can compute who lacks the salt.

    How many points are tried follows from the number of texts alone: time does not tell how often a text was tried.
    """
    head = json.dumps(list(label), separators=(",", ":")).encode() + b"\n"
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    found = np.zeros((len(texts), POINT), dtype=np.uint8)
    left, counter, sizes = np.arange(len(texts)), 0, batches(len(texts))
    while left.size or counter < len(sizes):
        begin, more = head + counter.to_bytes(2, "big"), (sizes[counter] if counter < len(sizes) else 0) - left.size
        places = left.tolist() + [0] * more  # the first text again, for nothing
        tried = b"".join([hmac.digest(salt, begin + encoded[place], "sha256") for place in places])
        points = np.frombuffer(tried, dtype=np.uint8).reshape(-1, POINT).copy()
        points[:, -1] &= 0x7F
        points.setflags(write=False)  # as those that come from others: one compiled loop for both
        good = _on_curve(points)[: left.size]
        found[left[good]] = points[: left.size][good]
        left, counter = left[~good], counter + 1
    return found


def batches(texts: int) -> list[int]:
    """How many points are tried at a time for so many texts: m + 8 sqrt(m) + 8, m = texts / 2^k, k from 0 on.

    Of texts that are tried a k-th time there are m in the mean; more than that with a chance below 1e-11, and some left
    after the last time with one below 2^-80. Then more are tried.
    """
    left = [texts / 2**k for k in range(texts.bit_length() + 80)] if texts else []
    return [math.ceil(m + 8 * math.sqrt(m) + 8) for m in left]


def points_of(data: bytes, count: int) -> Points:
    """Points that somebody sent: so many, different, written in the one way there is, of the curve; or a refusal."""
    if len(data) != POINT * count:
        raise RefusedError(f"a list of an alignment has {len(data) / POINT:g} points in place of {count}.")
    points = np.frombuffer(data, dtype=np.uint8).reshape(-1, POINT)
    large = (points[:, 0] >= 0xED) & (points[:, 1:31] == 0xFF).all(axis=1) & (points[:, 31] == 0x7F)
    if bool((large | (points[:, 31] > 0x7F)).any()) or not bool(_on_curve(points).all()):
        raise RefusedError("a list of an alignment has a point that is not on the curve.")
    if len({point.tobytes() for point in points}) < count:
        raise RefusedError("a list of an alignment has a point twice.")
    return points


@njit(cache=True, nogil=True)
def _on_curve(points: Points) -> NDArray[np.bool_]:
    """Whether x (x (x + A) + 1) is a square that is not 0: else x is of the twist, or of order 2."""
    found = np.zeros(len(points), dtype=np.bool_)
    x, value = np.zeros(_LIMBS, np.int64), np.zeros(_LIMBS, np.int64)
    other, wide = np.zeros(_LIMBS, np.int64), np.zeros(2 * _LIMBS, np.int64)
    for row in range(len(points)):
        for limb in range(_LIMBS):
            x[limb] = 0
        for bit in range(0, 256, 8):
            limb, shift = bit // _BITS, bit % _BITS
            byte = np.int64(points[row, bit // 8])
            x[limb] |= (byte << shift) & _MASK
            if shift > _BITS - 8 and limb + 1 < _LIMBS:
                x[limb + 1] |= byte >> (_BITS - shift)
        x[0] += _A  # a limb has room for it
        for limb in range(_LIMBS):
            other[limb] = x[limb]
        x[0] -= _A
        _multiply(other, x, wide, value)
        value[0] += 1
        _multiply(value, x, wide, other)
        for limb in range(_LIMBS):
            value[limb] = _PRIME_LIMBS[limb]
        found[row] = _jacobi(other, value) == 1
    return found


@njit(cache=True, nogil=True)
def _multiply(a: NDArray[np.int64], b: NDArray[np.int64], wide: NDArray[np.int64], out: NDArray[np.int64]) -> None:
    """Out = a b modulo the prime, not fully reduced: below 2^261, limbs below 2^29."""
    for i in range(2 * _LIMBS):
        wide[i] = 0
    for i in range(_LIMBS):
        carry = np.int64(0)
        for j in range(_LIMBS):
            total = wide[i + j] + a[i] * b[j] + carry
            wide[i + j] = total & _MASK
            carry = total >> _BITS
        wide[i + _LIMBS] += carry
    carry = np.int64(0)
    for i in range(_LIMBS):
        total = wide[i] + wide[i + _LIMBS] * _FOLD + carry
        out[i] = total & _MASK
        carry = total >> _BITS
    while carry:
        carry *= _FOLD
        for i in range(_LIMBS):
            total = out[i] + carry
            out[i] = total & _MASK
            carry = total >> _BITS


@njit(cache=True, nogil=True)
def _jacobi(a: NDArray[np.int64], n: NDArray[np.int64]) -> int:  # noqa: C901  # a loop in numba
    """The Jacobi symbol (a / n), by shifts and subtractions; both are used up."""
    sign, size = 1, _LIMBS
    while True:
        while size > 1 and a[size - 1] == 0 and n[size - 1] == 0:
            size -= 1
        zero = True
        for i in range(size):
            if a[i] != 0:
                zero = False
                break
        if zero:
            break
        while a[0] & 1 == 0:
            shift = 0
            while shift < _BITS - 1 and (a[0] >> shift) & 1 == 0:
                shift += 1
            if shift & 1 and (n[0] & 7 == 3 or n[0] & 7 == 5):
                sign = -sign
            for i in range(size - 1):
                a[i] = (a[i] >> shift) | ((a[i + 1] << (_BITS - shift)) & _MASK)
            a[size - 1] >>= shift
        less = False
        for i in range(size - 1, -1, -1):
            if a[i] != n[i]:
                less = a[i] < n[i]
                break
        if less:
            if a[0] & n[0] & 3 == 3:
                sign = -sign
            a, n = n, a
        borrow = np.int64(0)
        for i in range(size):
            total = a[i] - n[i] + borrow
            a[i] = total & _MASK
            borrow = total >> _BITS
    for i in range(1, size):
        if n[i] != 0:
            return 0
    return sign if n[0] == 1 else 0
