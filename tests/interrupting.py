"""Fits whose noise is a function of what is released, so that one that was interrupted can be compared to the last bit.

Run names stay random: a fit that made a plan of its own instead of going on would be charged twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from sottovoce.estimators import base
from sottovoce.federation import coordinator
from sottovoce.federation.party import Party
from sottovoce.federation.run_keys import RunKeys
from sottovoce.federation.sealed_columns.dealer import LocalDeals
from sottovoce.privacy.randomness import SeededRandomness
from sottovoce.sealed import sums
from sottovoce.sealed.pair_keys import RunKey, fingerprint_of


def keyed(seed: int = 0, replace: Callable[[Any, str, Any], None] = setattr, *, sealed: bool = False) -> None:
    """Noise by party, round and query; a coin that is always the same.

    Over `sealed` columns pads are coins of the look-ups, so keys and the name of the run are always the same too.
    """
    asked, stage, opened, noise, planned = (
        Party._asked,
        Party._stage,
        sums.Opener.open,
        LocalDeals._noise,
        base.planned,
    )

    def drawn(party: Any, frame: Any) -> None:
        if party._run is not None:
            known = SeededRandomness(seed, party.name, str(frame.round), frame.query, frame.text)
            party._run.gate._randomness = known
            if party._run.columns is not None:
                party._run.columns._randomness = known

    def on_ask(self: Any, frame: Any) -> Any:
        drawn(self, frame)
        return asked(self, frame)

    def on_stage(self: Any, frame: Any) -> Any:
        drawn(self, frame)
        return stage(self, frame)

    def on_open(self: Any, shares: Any, noise: Any, label: Any) -> Any:
        self._randomness = SeededRandomness(seed, "top-up", str(label))
        return opened(self, shares, noise, label)

    def on_deal(self: Any, query: Any, told: Any, _: Any) -> Any:
        return noise(self, query, told, SeededRandomness(seed, "dealt", query.name, str(sorted(told))))

    def on_plan(*arguments: Any) -> Any:
        return planned(*arguments).model_copy(update={"coin": "known"} | ({"run": "known"} if sealed else {}))

    def on_key(self: Any) -> str:
        key = RunKey(hashlib.sha256(f"{seed} {self._party}".encode()).digest())
        self._known[fingerprint_of(key.public)] = key
        return key.public

    replace(Party, "_asked", on_ask)
    replace(Party, "_stage", on_stage)
    replace(sums.Opener, "open", on_open)
    replace(LocalDeals, "_noise", on_deal)
    replace(base, "planned", on_plan)
    if sealed:
        replace(RunKeys, "new", on_key)
        replace(coordinator, "RunKey", lambda private=bytes([seed + 1]) * 32: RunKey(private))
