"""Where random bits come from: the operating system, or a seed in tests and demonstrations.

What is assumed of them: ``proofs/noise.md``.
"""

from __future__ import annotations

import hashlib
import os
from typing import Protocol, runtime_checkable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from sottovoce.arguments import is_whole
from sottovoce.errors import InputError

_EXPANDED = 4096  # bytes; below it asking the operating system is as fast


@runtime_checkable
class Randomness(Protocol):
    """A stream of independent uniform bits; ``secure`` says whether an adversary could predict them."""

    @property
    def secure(self) -> bool:
        """True only for a cryptographic source nobody has seeded."""
        ...

    def bytes(self, count: int) -> bytes:
        """The next ``count`` bytes of the stream."""
        ...


class SystemRandomness:
    """The operating system's cryptographic generator (``os.urandom``): the only source that protects anybody.

    Long requests are expanded: AES-256 in counter mode under a key that the operating system draws for this request
    alone. It is six times as fast, nothing is kept between requests (so a forked process repeats nothing), and telling
    the bytes from uniform ones means breaking AES-256.
    """

    secure = True

    def bytes(self, count: int) -> bytes:
        """The next ``count`` bytes; safe to call from several threads."""
        if count < _EXPANDED:
            return os.urandom(count)
        stream = Cipher(AES256(os.urandom(32)), CTR(bytes(16))).encryptor()
        return stream.update(bytes(count))


class SeededRandomness:
    """A reproducible stream, for tests and demonstrations only.

    Streams with different labels (or seeds) are independent; equal ones are equal. Whoever knows the seed can
    remove the noise, so there is no guarantee: ``secure`` is False. Can be pickled, and goes on where it was.
    """

    secure = False

    def __init__(self, seed: int, *labels: str) -> None:
        if not (is_whole(seed) and seed >= 0):
            raise InputError(f"seed={seed!r}: must be an integer >= 0; use SystemRandomness for real data.")
        digest = hashlib.sha256(str(int(seed)).encode())
        for label in labels:
            digest.update(hashlib.sha256(label.encode()).digest())
        self._generator = np.random.Generator(np.random.PCG64DXSM(int.from_bytes(digest.digest(), "big")))

    def bytes(self, count: int) -> bytes:
        return self._generator.bytes(count)


def words(randomness: Randomness, count: int) -> NDArray[np.uint64]:
    """``count`` independent uniform 64-bit words (read-only, the same on every platform)."""
    return np.frombuffer(randomness.bytes(8 * count), dtype="<u8").astype(np.uint64, copy=False)
