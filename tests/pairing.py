"""Ends that agree on keys in one process, and keys of pairs without chance."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sottovoce.federation.prediction import Request
from sottovoce.federation.replies import crossed_offers
from sottovoce.secure.pair_keys import (
    CHECKED,
    OFFER,
    OFFERS,
    PUBLIC,
    PairKeys,
    PeerKey,
    RunKey,
    fingerprint_of,
    packed_rows,
)

RUN = ["test"]
NO_OFFERS = {OFFERS: np.zeros((0, OFFER // 8), dtype=np.int64)}  # to who comes first


def prints_of(keys: Mapping[str, RunKey]) -> tuple[tuple[str, str], ...]:
    """Names and fingerprints, as a plan has them."""
    return tuple((name, fingerprint_of(key.public)) for name, key in keys.items())


def members_of(prints: Iterable[tuple[str, str]], own: str) -> tuple[tuple[str, ...], dict[str, PeerKey]]:
    """The names of all members, and the others as an attacker takes them, who checks nobody."""
    each = dict(prints)
    return tuple(each), {name: PeerKey(known, made_by=CHECKED) for name, known in each.items() if name != own}


def publics_of(keys: Mapping[str, RunKey]) -> Any:
    """The public keys, as a message has them."""
    return packed_rows([bytes.fromhex(key.public) for key in keys.values()], PUBLIC)


def agreed(keys: Mapping[str, RunKey], run: Sequence[Any] = RUN) -> dict[str, PairKeys]:
    """The keys that each of these ends shares with each other one."""
    pairs = {name: PairKeys(key, *members_of(prints_of(keys), name), run) for name, key in keys.items()}
    publics = publics_of(keys)
    offers = {name: {OFFERS: own.offers(publics)} for name, own in pairs.items()}
    for name, sent in crossed_offers(list(keys), offers).items():
        pairs[name].agree(publics, sent[OFFERS])
    return pairs


def impostor(key: RunKey, request: Request, own: str, offers: Any) -> PairKeys:
    """What whoever put a key in the place of the last party of a request shares with the others, by their offers."""
    prints = [(name, fingerprint_of(request.keys[name])) for name in sorted(request.keys)]
    said = hashlib.sha256(request.text.encode()).hexdigest()
    run = ["prediction", request.digest.hex(), request.recipient, said]
    pairs = PairKeys(key, *members_of(prints, own), run)
    publics = packed_rows([bytes.fromhex(request.keys[name]) for name, _ in prints], PUBLIC)
    pairs.agree(publics, offers)
    return pairs


def without_chance(seed: Any = 0, replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Keys of pairs that follow from the names of the two ends."""

    def on_key(self: PairKeys, other: str, *_: bytes) -> bytes:
        return hashlib.sha256(json.dumps([seed, *sorted((self._own, other))]).encode()).digest()

    replace(PairKeys, "_pair_key", on_key)
