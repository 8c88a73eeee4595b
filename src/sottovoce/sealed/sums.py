"""Sums that are opened together: each party adds a share of the noise and masks that cancel over the roster.

    share_i = v_i + noise(a) + sum_{j > i} stream(k_ij, label) - sum_{j < i} stream(k_ij, label)      modulo 2^64
    opened  = sum_i share_i + noise(tau)

The label says all that was asked: query, round, attempt, roster and the hash of what the coordinator told. So masks
cancel only where all parties of the roster were asked the same, and no other sum has the same masks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import LeakError, RefusedError, WireError
from sottovoce.plan.sealing import COORDINATOR
from sottovoce.privacy.mechanisms import LEAST_SHARE, wide_gaussian
from sottovoce.privacy.randomness import Randomness
from sottovoce.sealed.streams import PAIR, Label, RunKey, hash_of, masks

if TYPE_CHECKING:
    from sottovoce.plan.plan import Plan
    from sottovoce.plan.release import Release


class Noise(NamedTuple):
    """What a sum is released with: the noise of its release, the weights of its entries, and its K."""

    release: Release
    weights: NDArray[np.float64] | float
    known: float

    def steps(self, part: float) -> NDArray[np.float64] | float:
        """The standard deviation of a part of the variance, in steps of the grid."""
        return math.sqrt(part) * self.release.std / self.release.step / self.weights


class Call(NamedTuple):
    """Of whom a sum is asked, how often it was asked of more parties before, and by which numbers (their names)."""

    roster: tuple[str, ...]
    attempt: int = 0
    said: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """As a message carries it."""
        return json.dumps({"roster": self.roster, "attempt": self.attempt, "said": self.said})

    @classmethod
    def read(cls, text: str) -> Call:
        """The call of a message, or a refusal."""
        try:
            said = json.loads(text)
            roster, attempt, names = tuple(said["roster"]), said["attempt"], tuple(said["said"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise RefusedError("a sealed sum is asked with its roster and attempt.") from None
        if type(attempt) is not int or attempt < 0 or not all(type(name) is str for name in (*roster, *names)):
            raise RefusedError("a sealed sum is asked with the names of its roster and a whole number of attempts.")
        return cls(roster, attempt, names)


def label_of(query: str, number: int, call: Call, told: Mapping[str, NDArray[Any]]) -> list[Any]:
    """What the masks of a sum are made for: all that it was asked by, less what a restarted party is reminded of."""
    if not set(call.said) <= set(told):
        raise RefusedError(f"query {query!r} in round {number} lacks numbers that it is said to have.")
    return ["sum", query, number, call.attempt, list(call.roster), hash_of({name: told[name] for name in call.said})]


class Sealer:
    """A party's side of the sealed sums of one plan: its keys with the others, and which rosters it has answered."""

    def __init__(self, plan: Plan, name: str, key: RunKey) -> None:
        if plan.sealing is None or dict(plan.keys).get(name) != key.public:
            raise RefusedError(f"the plan has another public key for {name} than its own; start a new fit.")
        self.name, self.sealing, self._parties = name, plan.sealing, plan.names
        helper = plan.sealing.dealer != COORDINATOR and plan.split == "rows"
        self._members = (*plan.names, plan.sealing.dealer) if helper else plan.names
        self._keys = {
            other: key.shared(public, PAIR, plan.digest, (name, other))
            for other, public in plan.keys
            if other != name and other in self._members
        }
        self._roster = frozenset(self._members)
        self._tops_up = name not in plan.names

    def check(self, call: Call) -> None:
        """Refuse a roster that is none, that has grown again, or that is smaller than the shares of noise allow."""
        roster, parties = set(call.roster), set(self._parties)
        if len(roster) < len(call.roster) or self.name not in roster or not roster <= set(self._members):
            raise RefusedError(f"the roster of a sealed sum names members of the plan, once each, and {self.name}.")
        if not roster <= self._roster:
            raise RefusedError("who left a run does not come back: the roster of a sealed sum never grows again.")
        if len(roster & parties) < len(parties) - self.sealing.absent or roster - parties != self._roster - parties:
            raise RefusedError(
                f"the roster has {len(roster & parties)} of {len(parties)} parties; the plan's noise allows for "
                f"{self.sealing.absent} absent ones."
            )

    def keep(self, roster: Sequence[str]) -> None:
        """From now on nobody outside this roster is summed with."""
        self._roster &= frozenset(roster)

    def sealed(
        self, values: NDArray[np.int64], noise: Noise, label: Label, randomness: Randomness
    ) -> NDArray[np.int64]:
        """Whole numbers under this party's share of the noise and its masks."""
        parties = len(self._parties)
        part = self.sealing.top_up(parties, noise.known) if self._tops_up else self.sealing.share(parties)
        scale = noise.steps(part)
        if not self._tops_up and not np.min(scale) >= LEAST_SHARE:
            raise LeakError("a share of the noise is below 8 steps of its grid; nothing was released.")
        drawn = wide_gaussian(scale, values.size, randomness)
        mask = masks(self._keys, self.name, label[4], label, values.size)
        return ((values + drawn).view(np.uint64) + mask).view(np.int64)


class Opener:
    """The coordinator's side: adds all shares of a label, and its own top-up, once."""

    def __init__(self, plan: Plan, randomness: Randomness) -> None:
        self.plan, self._randomness = plan, randomness
        self._opened: set[str] = set()

    def open(self, shares: Mapping[str, NDArray[np.int64]], noise: Noise, label: Label) -> NDArray[np.float64]:
        """The sum of the shares with all of its noise. Neither it without the top-up nor the top-up is kept."""
        sealing, said = self.plan.sealing, json.dumps(label)
        if sealing is None or set(shares) != set(label[4]) or said in self._opened:
            raise LeakError("a sealed sum is opened once, from one share of each party in its roster.")
        self._opened.add(said)
        parties, size = len(self.plan.parties), len(next(iter(shares.values())))
        total = np.zeros(size, dtype=np.uint64)
        for words in shares.values():
            total += words.view(np.uint64)
        opened = total.view(np.int64)
        top_up = sealing.top_up(parties, noise.known)
        if top_up > 0.0 and sealing.dealer == COORDINATOR:
            opened = opened + wide_gaussian(noise.steps(top_up), size, self._randomness)
        release, most = noise.release, float(np.max(noise.steps(sealing.variance(parties, noise.known))))
        reach = self.plan.records * release.charged_zero_out / release.step + 64 * most
        if not np.all(np.abs(opened.astype(np.float64)) <= reach):
            raise WireError(
                f"the shares of {label[1]!r} in round {label[2]} do not add up to a sum: a party was asked something "
                "else, or has other keys. Nothing was opened; start a new fit."
            )
        return np.asarray(opened * release.step, dtype=np.float64)
