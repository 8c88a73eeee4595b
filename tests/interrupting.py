"""Fits whose noise is a function of what is released, so that one that was interrupted can be compared to the last bit.

Run names stay random: a fit that made a plan of its own instead of going on would be charged twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from sottovoce.estimators.fits import Session
from sottovoce.federation import coordinator
from sottovoce.federation.run_keys import RunKeys
from sottovoce.federation.training import Training
from sottovoce.privacy.mechanisms import SeededRandomness
from sottovoce.secure import sums
from sottovoce.secure.pair_keys import RunKey, fingerprint_of


def keyed(seed: int = 0, replace: Callable[[Any, str, Any], None] = setattr, *, secure: bool = False) -> None:
    """Noise by party, round and query; a coin that is always the same.

    Over `secure` columns all follows from keys: they and the name of the run are always the same too.
    """
    asked, opened, planned = Training.answer, sums.Opener.open, Session.draft

    def on_ask(self: Any, frame: Any) -> Any:
        run = self._holder.run
        if frame.kind == "ask" and run is not None and run.columns is None:
            known = SeededRandomness(seed, self._holder.name, str(frame.round), frame.query, frame.text)
            run.gate._randomness = known
        return asked(self, frame)

    def on_open(self: Any, shares: Any, noise: Any, label: Any) -> Any:
        self._randomness = SeededRandomness(seed, "top-up", str(label))
        return opened(self, shares, noise, label)

    def on_plan(*arguments: Any) -> Any:
        return planned(*arguments).model_copy(update={"coin": "known"} | ({"run": "known"} if secure else {}))

    def on_key(self: Any) -> str:
        key = RunKey(hashlib.sha256(f"{seed} {self._party}".encode()).digest())
        self._known[fingerprint_of(key.public)] = key
        return key.public

    replace(Training, "answer", on_ask)
    replace(sums.Opener, "open", on_open)
    replace(Session, "draft", on_plan)
    if secure:
        replace(RunKeys, "new", on_key)
        replace(coordinator, "RunKey", lambda private=bytes([seed + 1]) * 32: RunKey(private))
