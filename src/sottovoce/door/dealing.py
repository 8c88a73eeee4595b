"""The door of a helper, which has no rows: noise for sums of others, and random numbers for single parties.

Nothing that leaves depends on data. But each is one half of something that must be used once: noise that was drawn
again would average out, and a box made again would show the difference of two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.door.outgoing import SEAL, Masked, Share
from sottovoce.door.query import Query
from sottovoce.door.sealed_gate import noise_of
from sottovoce.door.used_labels import UsedLabels
from sottovoce.errors import RefusedError
from sottovoce.plan.plan import Plan
from sottovoce.privacy.randomness import Randomness
from sottovoce.sealed.streams import labelled
from sottovoce.sealed.sums import Call, Sealer, label_of

Boxes = Mapping[str, NDArray[np.int64]]


class DealingGate:
    """The door of a helper for one plan.

    Guarantee: a label has one content. Asked again, alike, the same bytes leave; asked by other numbers it is refused,
    by what `used` has.
    """

    def __init__(self, plan: Plan, randomness: Randomness, used: UsedLabels) -> None:
        self._plan, self._randomness, self._used = plan, randomness, used
        self._last: Share | None = None

    def top_up(self, query: Query, number: int, call: Call, told: Mapping[str, NDArray[Any]], sealer: Sealer) -> Share:
        """The helper's part of a sealed sum by rows: no value, the top-up, and the masks of the roster."""
        label = label_of(query.name, number, call, query.follows_from(told, {}))  # it is told all, each time
        text = json.dumps(label)
        if self._last is not None and self._last.text == text:
            return self._last
        sealer.check(call)
        if not set(query.takes_at(number)) <= set(call.said):
            raise RefusedError(f"query {query.name!r} in round {number} is asked with all that it takes.")
        spare = self._plan.channel.retries
        if call.attempt > spare:
            raise RefusedError(f"the plan has {spare} spare releases for sums without a party, and no more.")
        noise, nothing = noise_of(query, self._plan), np.zeros(query.length, dtype=np.int64)
        words = sealer.sealed(nothing, noise, label, labelled(sealer.noise(self._randomness), label))
        sealer.keep(call.roster)
        share = Share(query.name, number, words, text, seal=SEAL)
        self._used.use(json.dumps(["sum", query.name, number, call.attempt]), words.tobytes())
        self._last = share
        return share

    def dealt(self, boxes: Boxes) -> Masked:
        """What is dealt by columns, in boxes for single parties: `LocalDeals` makes each of them with one content."""
        return Masked("dealt", boxes, seal=SEAL)
