"""Whoever deals under a plan over secure columns: in this process, or a dealer elsewhere."""

from __future__ import annotations

import functools
import json
from typing import Any, Protocol

import numpy as np

from sottovoce.errors import RefusedError, WireError
from sottovoce.federation.replies import Envelopes, Exchange, envelope_of
from sottovoce.federation.secure_columns.messages import (
    DEALT,
    FACTOR,
    LENGTH,
    NULL,
    RestartedError,
    Stage,
    Wholes,
    Work,
    lookup_of,
    message_label,
    place_of,
    projection_of,
)
from sottovoce.gate.frames import Frame
from sottovoce.gate.query import MessageArrays, Query
from sottovoce.gate.secure_gate import UsedLabels, noise_of
from sottovoce.plan.plan import Plan
from sottovoce.privacy.mechanisms import wide_gaussian
from sottovoce.privacy.randomness import Randomness
from sottovoce.secure.dealer import ColumnDealer
from sottovoce.secure.pair_keys import PairKeys
from sottovoce.secure.stream_labels import GRAM, OWN, Asked, TranscriptHash
from sottovoce.secure.streams import Fields, Label, labelled, pack_fields, seal_envelope
from sottovoce.secure.sums import packed_envelope
from sottovoce.secure.tables import ring_bits


class Deals(Protocol):
    """Whoever deals: envelopes for single parties, made of a plan and of public numbers."""

    def deal(self, work: Work) -> tuple[str, Wholes]:
        """(party, the envelope for it): all that it is dealt for a program and piece, the Gram matrix or an own sum."""
        ...

    def recall(self, work: Work) -> None:
        """Take in a round that is over."""
        ...


class LocalDeals:
    """The dealer in this process: the coordinator's own, or a dealer's.

    Guarantee: what has a label has one content. Asked again, the same envelope is given; for other numbers it is
    refused, by what `used` has. All that is dealt, noise and coins too, follows from the keys and what was told so far,
    which a label has: it is the same envelopes in every process, copy and backup, and no envelope opens for a party
    that was told other numbers, for which noise and tables could be too small.
    """

    def __init__(self, plan: Plan, keys: PairKeys, randomness: Randomness, used: UsedLabels | None = None) -> None:
        self._plan, self._aggregation, self._name = plan, plan.channel.aggregation, plan.channel.aggregation.dealer
        self._randomness = keys.key.noise(plan.digest, randomness)
        self._keys = keys  # that it shares with each party; there once the members have agreed
        self._transcript = TranscriptHash()
        self._factors: dict[str, MessageArrays] = {}  # by query, what its factor was told
        self._used = used or UsedLabels()
        self._last: tuple[str, tuple[str, Wholes]] = ("", ("", np.zeros(0, dtype=np.int64)))

    @functools.cached_property
    def _dealer(self) -> ColumnDealer:
        plan = self._plan
        seeds = {name: self._keys[name] for name in plan.names}
        place = place_of(plan, plan.names[0])
        return ColumnDealer(seeds, place.widths, plan.records, place.bits, classes=place.classes)

    def recall(self, work: Work) -> None:
        work.asked(self._transcript)

    def deal(self, work: Work) -> tuple[str, Wholes]:
        """One envelope; the top-up is in that of the first piece."""
        work.check(self._plan)
        asked = work.asked(self._transcript)
        own = work.program in (GRAM, OWN)
        label = asked.label(work.program) if own else message_label(asked, work.program, DEALT, work.piece)
        if self._last[0] != json.dumps(label):
            receiver, fields = self._made(work, asked, label)
            words = self._enveloped(receiver, label, fields)
            self._used.use(json.dumps([receiver, *label[:-1]]), words.tobytes())
            self._last = json.dumps(label), (receiver, words)
        return self._last[1]

    def _made(self, work: Work, asked: Asked, label: Label) -> tuple[str, Fields]:
        dealer, piece, program = self._dealer, work.piece, work.program
        if program == NULL:
            return dealer.null(asked, piece)
        if program == FACTOR:
            self._factors[work.name] = work.said
            return dealer.factor(asked, piece, projection_of(self._plan, work))
        query = work.query
        noise: Any = 0
        if query is not None and piece[0] == 0:
            noise = self._noise(query, labelled(self._randomness, label))
        if program in (GRAM, OWN):
            return dealer.gram(asked, noise) if program == GRAM else dealer.own(asked, noise)
        coins = self._coins(label)
        if program == LENGTH:
            return dealer.length(asked, piece, projection_of(self._plan, work), noise, coins)
        lookup = lookup_of(self._plan, work, self._factors)
        if lookup is None:
            raise RefusedError(f"nothing is dealt for {program!r}.")
        return dealer.look_up(asked, piece, lookup, noise, coins)

    def _coins(self, label: Label) -> Randomness:
        """Of the bits that are looked up: by the key and the label, as noise is."""
        return labelled(self._randomness, ["coins", *label])

    def _noise(self, query: Query, randomness: Randomness) -> Wholes:
        top_up = self._aggregation.top_up(len(self._plan.names))
        if top_up == 0.0:
            return np.zeros(query.length, dtype=np.int64)
        return wide_gaussian(noise_of(query, self._plan).steps(top_up), query.length, randomness)

    def _enveloped(self, receiver: str, label: Label, fields: Fields) -> Wholes:
        data = pack_fields(fields, ring_bits(self._plan))
        return packed_envelope(seal_envelope(self._keys[receiver], label, self._name, data))


class RemoteDeals:
    """A dealer elsewhere, as the coordinator asks it to deal."""

    def __init__(self, plan: Plan, dealer: str, exchange: Exchange) -> None:
        self._plan, self._dealer, self._exchange = plan, dealer, exchange

    def deal(self, work: Work) -> tuple[str, Wholes]:
        envelopes = self._said(work, "deal")
        (place, *more) = envelopes or ("",)
        if more or place not in map(str, range(len(self._plan.names))):
            raise WireError(f"dealer {self._dealer!r} dealt to {len(envelopes)} parties in place of one.")
        return self._plan.names[int(place)], envelope_of(self._dealer, envelopes, place)

    def recall(self, work: Work) -> None:
        self._said(work, "recall")

    def _said(self, work: Work, name: str) -> Envelopes:
        stage = Stage(name, work.piece, tuple(work.said), work.program)
        frame = Frame("secure", 0, self._plan.digest, work.number, work.name, work.said, stage.text)
        found = self._exchange([self._dealer], frame, {})[self._dealer].frame
        if found.kind == "unknown-plan":
            raise RestartedError([self._dealer])
        return found.arrays
