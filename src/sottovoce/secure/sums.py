"""Sums that are opened together: each party adds a share of the noise and masks that cancel over the roster.

    share_i = v_i + noise(a) + sum_{j > i} stream(k_ij, label) - sum_{j < i} stream(k_ij, label)      modulo 2^64
    opened  = sum_i share_i + noise(tau)

By columns v_i is a share modulo 2^k alone, k < 64. So v_i + noise is shifted left by 64 - k before the masks are added:
what leaves is of the ring 2^k, and how often the shares wrap around is in no bit of it. One word more, a 0, shows that
the shares belong together.

The label says all that was asked: query, round, attempt, roster and the hash of all numbers of the coordinator that the
value follows from, whenever they were told. So masks cancel only where all parties of the roster were asked the same,
and no other sum has the same masks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import LeakError, RefusedError, WireError
from sottovoce.plan.split import SecureSums
from sottovoce.privacy.mechanisms import LEAST_SHARE, Randomness, wide_gaussian
from sottovoce.secure.pair_keys import GROUP, PairKeys
from sottovoce.secure.ring import TAIL, ring_bits
from sottovoce.secure.streams import (
    Fields,
    Label,
    RingArray,
    add_fields,
    hash_of,
    labelled,
    masks,
    open_envelope,
    pack_fields,
    seal_envelope,
    stream_fields,
    unpack_fields,
)

if TYPE_CHECKING:
    from sottovoce.plan.plan import Plan
    from sottovoce.plan.release import Release

_ROOM: Final = 0.75  # of the numbers that a ring has, those that a sum is taken for


def in_ring(values: NDArray[np.int64], bits: int) -> RingArray:
    """Words of the ring of 2^bits, as the highest bits of 64, and a 0 more; of 64 bits as they are."""
    words = np.ascontiguousarray(values).view(np.uint64)
    return words if bits == 64 else np.append(words << np.uint64(64 - bits), np.uint64(0))


def from_ring(words: RingArray, bits: int) -> NDArray[np.int64] | None:
    """The numbers of such words; None if they are none."""
    if bits == 64:
        return words.view(np.int64)
    if words[-1] or np.any(words << np.uint64(bits)):
        return None
    return words[:-1].view(np.int64) >> (64 - bits)


class Noise(NamedTuple):
    """What a sum is released with: the noise of its release, and the weights of its entries."""

    release: Release
    weights: NDArray[np.float64] | float

    def steps(self, part: float) -> NDArray[np.float64] | float:
        """The standard deviation of a part of the variance, in steps of the grid."""
        return math.sqrt(part) * self.release.std / self.release.step / self.weights


class Call(NamedTuple):
    """Of whom a sum is asked, how often it was asked of more parties before, and by which numbers (their names)."""

    roster: tuple[str, ...]
    attempt: int = 0
    said: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str) -> Call:
        """The call of a message, the JSON of its fields, or a refusal."""
        try:
            said = json.loads(text)
            roster, attempt, names = tuple(said["roster"]), said["attempt"], tuple(said["said"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise RefusedError("a secure sum is asked with its roster and attempt.") from None
        if type(attempt) is not int or attempt < 0 or not set(map(type, (*roster, *names))) <= {str}:
            raise RefusedError("a secure sum is asked with the names of its roster and a whole number of attempts.")
        return cls(roster, attempt, names)


def label_of(query: str, number: int, call: Call, told: Mapping[str, NDArray[Any]]) -> list[Any]:
    """What the masks of a sum are made for: all that it was asked by; `told` is as `Query.follows_from` gives it."""
    if not set(call.said) <= set(told):
        raise RefusedError(f"query {query!r} in round {number} lacks numbers that it is said to have.")
    return ["sum", query, number, call.attempt, list(call.roster), hash_of(told)]


class Masker:
    """A party's side of the secure sums of one plan: its keys with the others, and which rosters it has answered."""

    def __init__(self, plan: Plan, name: str, keys: PairKeys) -> None:
        self.name, self.aggregation, self._parties = name, plan.channel.aggregation, plan.names
        self._keys = keys  # of pairs, by name; there once the members have agreed
        self._members, self._digest, self.bits = plan.channel.roster, plan.digest, ring_bits(plan)
        self.roster = frozenset(self._members)  # nobody outside it is summed with any more
        self._tops_up = name not in plan.names
        self.records = b""  # the digest of this end's prepared rows

    def check(self, call: Call) -> None:
        """Refuse a roster that is none, that has grown again, or that is smaller than the shares of noise allow."""
        roster, parties = set(call.roster), set(self._parties)
        if len(roster) < len(call.roster) or self.name not in roster or not roster <= set(self._members):
            raise RefusedError(f"the roster of a secure sum names members of the plan, once each, and {self.name}.")
        if not roster <= self.roster:
            raise RefusedError("who left a run does not come back: the roster of a secure sum never grows again.")
        if (
            len(roster & parties) < len(parties) - self.aggregation.dropouts
            or roster - parties != self.roster - parties
        ):
            raise RefusedError(
                f"the roster has {len(roster & parties)} of {len(parties)} parties; the plan's noise allows for "
                f"{self.aggregation.dropouts} dropouts."
            )

    def noise(self, source: Randomness) -> Randomness:
        """Where this end draws what enters its shares: by its rows and the label, so that both have one content."""
        return self._keys.key.noise(self._digest, source, self.records)

    def masked_share(
        self, values: NDArray[np.int64], noise: Noise, label: Label, randomness: Randomness
    ) -> NDArray[np.int64]:
        """Whole numbers under this party's share of the noise and its masks, in the ring of the plan's words."""
        parties = len(self._parties)
        part = self.aggregation.top_up(parties) if self._tops_up else self.aggregation.share(parties)
        scale = noise.steps(part)
        if not self._tops_up and not np.min(scale) >= LEAST_SHARE:
            raise LeakError("a share of the noise is below 8 steps of its grid; nothing was released.")
        drawn = wide_gaussian(scale, values.size, randomness)
        words = in_ring(values + drawn, self.bits)
        return (words + masks(self._keys, self.name, label[4], label, words.size)).view(np.int64)


class ColumnMasker(Masker):
    """The same by columns, with the seed shared with the dealer and the key of the group, for masks and envelopes."""

    def __init__(self, plan: Plan, name: str, keys: PairKeys) -> None:
        super().__init__(plan, name, keys)
        self.holder = name == plan.label_party_name
        self.group = keys.key.own(GROUP, [plan.digest.hex()]) if self.holder else b""  # the others are sent it

    @property
    def seed(self) -> bytes:
        """What it shares with the dealer."""
        return self._keys[self.aggregation.dealer]

    def group_envelopes(self) -> dict[str, NDArray[np.int64]]:
        """The key of the group for each other party, by its place."""
        found = {}
        for place, name in enumerate(self._parties):
            if name != self.name:
                found[str(place)] = packed_envelope(seal_envelope(self._keys[name], ["group"], self.name, self.group))
        return found

    def open_group(self, sender: str, words: NDArray[Any]) -> None:
        """Take the key of the group from the envelope of the holder."""
        self.group = open_envelope(self._keys[sender], ["group"], sender, unpacked_envelope(words))

    def masked(self, label: Label, fields: Fields) -> Fields:
        return add_fields(fields, stream_fields(self.seed, label, fields), less=True)

    def enveloped(self, label: Label, masked: Fields) -> NDArray[np.int64]:
        """Padded fields, or sums of them, in an envelope for the group."""
        return packed_envelope(seal_envelope(self.group, label, self.name, pack_fields(masked, self.bits)))

    def opened(self, label: Label, sender: str, words: NDArray[Any], like: Fields) -> Fields:
        """The masked fields of another party."""
        return unpack_fields(open_envelope(self.group, label, sender, unpacked_envelope(words)), like, self.bits)

    def dealt(self, label: Label, words: NDArray[Any], like: Fields) -> Fields:
        """What the dealer sent to this party alone."""
        return unpack_fields(
            open_envelope(self.seed, label, self.aggregation.dealer, unpacked_envelope(words)), like, self.bits
        )


def packed_envelope(data: bytes) -> NDArray[np.int64]:
    """An envelope as whole numbers: its length, then its bytes."""
    words = np.zeros(1 + -(-len(data) // 8), dtype="<i8")
    words[0] = len(data)
    words[1:].view(np.uint8)[: len(data)] = np.frombuffer(data, dtype=np.uint8)
    return words


def unpacked_envelope(words: NDArray[Any]) -> bytes:
    """The envelope of such numbers, or a refusal."""
    if words.dtype != np.int64 or words.ndim != 1 or len(words) < 1 or not 0 <= int(words[0]) <= 8 * (len(words) - 1):
        raise RefusedError("a secure message was altered, or is of another sender, round or run.")
    return np.ascontiguousarray(words[1:]).tobytes()[: int(words[0])]


@dataclass(eq=False)
class Opener:
    """The coordinator's side: adds all shares of a label, and its own top-up, once.

    Who left is not asked again, and `left` says in which round it did. An incomplete sum tells nothing, so nothing is
    repaired: it is asked again without them, which is another release.
    """

    plan: Plan
    _randomness: Randomness  # top-ups are drawn from it by label
    left: dict[str, int] = field(default_factory=dict, init=False)
    again: int = field(default=0, init=False)  # sums that were asked once more
    advice: str = field(
        default=" Start a new fit, with secure_aggregation(dropouts=, retries=) if parties may leave.", init=False
    )
    _opened: set[str] = field(default_factory=set, init=False)

    def remaining(self, parties: Iterable[str]) -> tuple[str, ...]:
        """Those of the parties that are still there."""
        return tuple(name for name in parties if name not in self.left)

    def without(self, call: Call, error: WireError, number: int) -> Call:
        """The next attempt, of fewer parties; the error with what it cost where noise or retries lack."""
        gone = [name for name in error.parties if name in call.roster]
        if not gone or not self.plan.channel.secure:
            raise error
        aggregation = self.plan.channel.aggregation
        if aggregation.separate_dealer in gone:
            raise WireError(
                f"{error} The run ends in round {number}: the dealer left, and no sum is opened without its noise. The "
                f"plan's whole cost, epsilon {self.plan.epsilon:g} at delta {self.plan.delta:g}, stays spent."
                f"{self.advice}",
                gone,
            )
        if len(self.left) + len(gone) > aggregation.dropouts or self.again >= aggregation.retries:
            raise WireError(
                f"{error} The run ends in round {number}: {', '.join([*self.left, *gone])} left, and the plan has "
                f"dropouts={aggregation.dropouts} and retries={aggregation.retries}, of which {self.again} are used. "
                f"The plan's whole cost, epsilon {self.plan.epsilon:g} at delta {self.plan.delta:g}, stays spent; the "
                f"sum of this round was not opened.{self.advice}",
                gone,
            )
        self.left |= dict.fromkeys(gone, number)
        self.again += 1
        return Call(self.remaining(call.roster), call.attempt + 1, call.said)

    def open(self, shares: Mapping[str, NDArray[np.int64]], noise: Noise, label: Label) -> NDArray[np.float64]:
        """The sum of the shares with all of its noise. Neither it without the top-up nor the top-up is kept.

        A coordinator that was stopped, set back or copied opens it again with the same top-up, a function of its key
        and the label: two on one sum would average out (`proofs/aggregation.md`).
        """
        channel, said = self.plan.channel, json.dumps(label)
        if not isinstance(channel, SecureSums) or set(shares) != set(label[4]) or said in self._opened:
            raise LeakError("a secure sum is opened once, from one share of each party in its roster.")
        self._opened.add(said)
        size = len(next(iter(shares.values())))
        total = np.zeros(size, dtype=np.uint64)
        for words in shares.values():
            total += words.view(np.uint64)
        bits = ring_bits(self.plan)
        opened = from_ring(total, bits)
        if opened is not None and channel.coordinator_adds > 0.0:
            opened = opened + wide_gaussian(
                noise.steps(channel.coordinator_adds), size, labelled(self._randomness, label)
            )
        release, deviation = noise.release, math.sqrt(channel.variance) / float(np.min(noise.weights))
        largest = self.plan.records * release.charged_zero_out + TAIL * deviation * release.std
        reach = min(largest / release.step, _ROOM * 2.0 ** (bits - 1))
        if opened is None or not np.all(np.abs(opened.astype(np.float64)) <= reach):
            raise WireError(
                f"the shares of {label[1]!r} in round {label[2]} do not add up to a sum: a party was asked something "
                "else, or has other keys. Nothing was opened; start a new fit."
            )
        return np.asarray(opened * release.step, dtype=np.float64)
