"""Keys of runs and of pairs: X25519 together with ML-KEM-768. A pair key is secret as long as one of the two holds.

    run key       a seed; HKDF-SHA256 of it gives the scalar of X25519, the seed of ML-KEM-768, and secrets for others
    public key    that of X25519, that of ML-KEM-768: 32 + 1184 bytes; a plan has its fingerprint, SHA-256 of it
    pair          what the run is, names and fingerprints of the two ends, the earlier one first
    offer         c, and an envelope of s under HKDF-SHA256(x || k; "offer", pair, c): from the earlier end to the later
                  x = X25519(earlier, later), (k, c) = Encapsulate(later), s = HKDF-SHA256(seed of the earlier; pair)
    pair key      HKDF-SHA256(x || s; "pair", pair)

k is fresh in every offer, and s is not: a pair key is a function of the two run keys, the same in every process, copy
and backup. Nothing else in the package makes a key that two ends share. Proof: `proofs/aggregation.md`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from sottovoce.errors import LeakError, RefusedError
from sottovoce.privacy.mechanisms import Randomness
from sottovoce.secure.streams import KeyedRandomness, Label, open_envelope, seal_envelope, write_label

Wholes = NDArray[np.int64]

NOISE: Final = "noise"  # of one end alone
GROUP: Final = "group"  # made by one end, which sends it to others
CHECKED: Final = object()  # `known_keys` of `federation/run_keys.py` takes it; nothing else may
PUBLIC: Final = 32 + 1184  # bytes of a public key
OFFER: Final = 1088 + 32 + 16  # bytes of an offer: a ciphertext, and an envelope of 32 bytes
_CIPHERTEXT: Final = 1088
PUBLIC_KEYS: Final = "public keys"  # arrays of messages: of all members, in their order
OFFERS: Final = "offers"  # of one end to all later ones, or of all earlier ones to it


class PeerKey(str):
    """The fingerprint of another end that was found to be one to share secrets with: `known_keys` makes it, alone.

    Guarantee: no mask or envelope is made for an end whose key did not pass that check.
    """

    __slots__ = ()

    def __new__(cls, public: str, *, made_by: object = None) -> PeerKey:
        """Refuse whoever has not made the check."""
        if made_by is not CHECKED:
            raise LeakError("a key to share secrets with is made by the check of its owner alone (known_keys).")
        return super().__new__(cls, public)


class RunKey:
    """The private key of one end for one run."""

    def __init__(self, private: bytes | None = None) -> None:
        self._seed = secrets.token_bytes(32) if private is None else private
        if len(self._seed) != 32:
            raise ValueError("a run key has 32 bytes.")
        self._curve = X25519PrivateKey.from_private_bytes(_derived(self._seed, ["x25519"]))
        self._lattice = MLKEM768PrivateKey.from_seed_bytes(_derived(self._seed, ["ml-kem-768"], 64))
        both = self._curve.public_key().public_bytes_raw() + self._lattice.public_key().public_bytes_raw()
        self.public: str = both.hex()

    def __reduce__(self) -> Any:
        raise RefusedError("a run key is neither copied nor pickled.")

    def private_bytes(self) -> bytes:
        """For the holder's own disk alone."""
        return self._seed

    def own(self, purpose: str, of: Label) -> bytes:
        """What nobody but this end can make, for one purpose."""
        return _derived(self._seed, ["own", purpose, *of])

    def noise(self, digest: bytes, source: Randomness, records: bytes = b"") -> Randomness:
        """Where this end draws what enters opened values of a plan: by label. A seeded run has its own source.

        `records` is the digest of its rows, where it has some: noise on other rows is other noise.
        """
        return KeyedRandomness(self.own(NOISE, [digest.hex(), records.hex()])) if source.secure else source

    def exchanged(self, public: bytes) -> bytes:
        """x: of the pair, by X25519; no key by itself."""
        try:
            return self._curve.exchange(X25519PublicKey.from_public_bytes(public[:32]))
        except ValueError:
            raise _no_key() from None

    def decapsulated(self, ciphertext: bytes) -> bytes:
        """k, as the other end drew it."""
        return self._lattice.decapsulate(ciphertext)


class PairKeys(Mapping[str, bytes]):
    """The keys that one end shares with each other member of a run, by name, once the ends have agreed on them.

    `names` are all members, in the order of the run, `peers` all others by name, and `run` says what it is. What is
    kept (`state`) is for the holder's own disk.
    """

    def __init__(self, key: RunKey, names: Sequence[str], peers: Mapping[str, PeerKey], run: Label) -> None:
        if not set(map(type, peers.values())) <= {PeerKey}:
            raise LeakError("secrets are shared with an end whose key was checked (known_keys), and with no other.")
        self.key, self._names, self._run = key, tuple(names), list(run)
        (self._own,) = set(names) - set(peers)
        self._prints: dict[str, str] = {**peers, self._own: fingerprint_of(key.public)}
        place = self._names.index(self._own)
        self._earlier, self._later = self._names[:place], self._names[place + 1 :]
        self._found: dict[str, bytes] = {}

    def offers(self, publics: NDArray[Any] | None) -> Wholes:
        """What each later end needs, in their order."""
        keys, made = self._publics(publics), []
        for name in self._later:
            secret, ciphertext = _encapsulated(keys[name])
            common = self.key.exchanged(keys[name])
            by = _derived(common + secret, ["offer", *self._pair(name), ciphertext.hex()])
            made.append(ciphertext + seal_envelope(by, ["offer"], self._own, self._secret(name)))
        return packed_rows(made, OFFER)

    def agree(self, publics: NDArray[Any] | None, offers: NDArray[Any] | None) -> None:
        """Take the offers of all earlier ends, in their order. Once all keys are there nothing changes any more."""
        if self.agreed:
            return
        keys, sent = self._publics(publics), unpacked_rows(offers, OFFER, len(self._earlier))
        found = {}
        for name in self._later:
            found[name] = self._pair_key(name, self.key.exchanged(keys[name]), self._secret(name))
        for name, offer in zip(self._earlier, sent, strict=True):
            ciphertext, enveloped = offer[:_CIPHERTEXT], offer[_CIPHERTEXT:]
            common = self.key.exchanged(keys[name])
            secret = self.key.decapsulated(ciphertext)
            by = _derived(common + secret, ["offer", *self._pair(name), ciphertext.hex()])
            found[name] = self._pair_key(name, common, open_envelope(by, ["offer"], name, enveloped))
        self._found = found

    @property
    def agreed(self) -> bool:
        return len(self._found) == len(self._names) - 1

    @property
    def state(self) -> dict[str, Any]:
        """The run key and the keys that were agreed on: what a restarted end goes on with."""
        found = {name: key.hex() for name, key in self._found.items()}
        return {"key": self.key.private_bytes().hex(), "pairs": found}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._found = {name: bytes.fromhex(key) for name, key in state["pairs"].items()}

    def __getitem__(self, name: str) -> bytes:
        if name not in self._found:
            raise RefusedError(f"{self._own} and {name} have not agreed on a key for this run; start it again.")
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if name != self._own)

    def __len__(self) -> int:
        return len(self._names) - 1

    def __reduce__(self) -> Any:
        raise RefusedError("the keys of pairs are neither copied nor pickled.")

    def _publics(self, publics: NDArray[Any] | None) -> dict[str, bytes]:
        """The public keys of all members, each that of its fingerprint."""
        found = dict(zip(self._names, unpacked_rows(publics, PUBLIC, len(self._names)), strict=True))
        for name, public in found.items():
            if fingerprint_of(public.hex()) != self._prints[name]:
                raise RefusedError(f"the public key of {name} is not the one that the run names; start it again.")
        return found

    def _secret(self, later: str) -> bytes:
        """s: what this end gives to a later one."""
        return self.key.own("secret", self._pair(later))

    def _pair_key(self, other: str, common: bytes, secret: bytes) -> bytes:
        return _derived(common + secret, ["pair", *self._pair(other)])

    def _pair(self, other: str) -> list[Any]:
        """All that is public of a pair, the same at both ends."""
        ends = sorted((self._own, other), key=self._names.index)
        return [self._run, *ends, *map(self._prints.__getitem__, ends)]


def fingerprint_of(public: str) -> str:
    """SHA-256 of a public key."""
    try:
        return hashlib.sha256(bytes.fromhex(public)).hexdigest()
    except ValueError:
        raise _no_key() from None


def packed_rows(rows: Sequence[bytes], size: int) -> Wholes:
    """Rows of as many bytes each, a multiple of 8, as a frame carries them."""
    return np.frombuffer(b"".join(rows), dtype="<i8").reshape(len(rows), size // 8).astype(np.int64)


def unpacked_rows(words: NDArray[Any] | None, size: int, count: int) -> list[bytes]:
    """Such rows, or a refusal."""
    if words is None or words.dtype != np.int64 or words.shape != (count, size // 8):
        raise RefusedError(f"a message lacks {count} public keys or offers of keys, of {size} bytes each.")
    return list(map(np.ndarray.tobytes, words.astype("<i8")))


def _encapsulated(public: bytes) -> tuple[bytes, bytes]:
    """(k, c): a fresh secret, and what the holder of the key finds it by."""
    try:
        return MLKEM768PublicKey.from_public_bytes(public[32:]).encapsulate()
    except ValueError:
        raise _no_key() from None


def _derived(secret: bytes, label: Label, length: int = 32) -> bytes:
    return HKDF(hashes.SHA256(), length=length, salt=None, info=write_label(["sottovoce", *label])).derive(secret)


def _no_key() -> RefusedError:
    return RefusedError("a public key of the run is none.")
