"""Whoever deals under a plan over sealed columns: in this process, or a helper elsewhere."""

from __future__ import annotations

import functools
import json
from typing import Any, Protocol

import numpy as np

from sottovoce.door.frames import Frame
from sottovoce.door.query import Query, Told
from sottovoce.door.sealed_gate import UsedLabels, noise_of
from sottovoce.errors import RefusedError, WireError
from sottovoce.federation.replies import Boxes, Exchange, box_of
from sottovoce.federation.sealed_columns.messages import (
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
from sottovoce.plan.plan import Plan
from sottovoce.privacy.mechanisms import wide_gaussian
from sottovoce.privacy.randomness import Randomness
from sottovoce.sealed.dealer import Dealer
from sottovoce.sealed.pads import GRAM, OWN, Asked, TranscriptHash
from sottovoce.sealed.pair_keys import PairKeys
from sottovoce.sealed.streams import Fields, Label, box, labelled, pack_fields
from sottovoce.sealed.sums import packed_box
from sottovoce.sealed.tables import word_bits


class Deals(Protocol):
    """Whoever deals: boxes for single parties, made of a plan and of public numbers."""

    def deal(self, work: Work) -> tuple[str, Wholes]:
        """(party, the box for it): all that it is dealt for a program and piece, the Gram matrix or an own sum."""
        ...

    def recall(self, work: Work) -> None:
        """Take in a round that is over."""
        ...


class LocalDeals:
    """The dealer in this process: the coordinator's own, or a helper's.

    Guarantee: what has a label has one content. Asked again, the same box is given; for other numbers it is refused, by
    what `used` has. All that is dealt, noise and coins too, follows from the keys and what was told so far, which a
    label has: it is the same boxes in every process, copy and backup, and no box opens for a party that was told other
    numbers, for which noise and tables could be too small.
    """

    def __init__(self, plan: Plan, keys: PairKeys, randomness: Randomness, used: UsedLabels | None = None) -> None:
        self._plan, self._sealing, self._name = plan, plan.channel.sealing, plan.channel.sealing.dealer
        self._randomness = keys.key.noise(plan.digest, randomness)
        self._keys = keys  # that it shares with each party; there once the members have agreed
        self._transcript = TranscriptHash()
        self._factors: dict[str, Told] = {}  # by query, what its factor was told
        self._used = used or UsedLabels()
        self._last: tuple[str, tuple[str, Wholes]] = ("", ("", np.zeros(0, dtype=np.int64)))

    @functools.cached_property
    def _dealer(self) -> Dealer:
        plan = self._plan
        seeds = {name: self._keys[name] for name in plan.names}
        place = place_of(plan, plan.names[0])
        return Dealer(seeds, place.widths, plan.records, place.bits, classes=place.classes)

    def recall(self, work: Work) -> None:
        work.asked(self._transcript)

    def deal(self, work: Work) -> tuple[str, Wholes]:
        """One box; the top-up is in that of the first piece."""
        work.check(self._plan)
        asked = work.asked(self._transcript)
        own = work.program in (GRAM, OWN)
        label = asked.label(work.program) if own else message_label(asked, work.program, DEALT, work.piece)
        if self._last[0] != json.dumps(label):
            receiver, fields = self._made(work, asked, label)
            words = self._boxed(receiver, label, fields)
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
        top_up = self._sealing.top_up(len(self._plan.names))
        if top_up == 0.0:
            return np.zeros(query.length, dtype=np.int64)
        return wide_gaussian(noise_of(query, self._plan).steps(top_up), query.length, randomness)

    def _boxed(self, receiver: str, label: Label, fields: Fields) -> Wholes:
        data = pack_fields(fields, word_bits(self._plan))
        return packed_box(box(self._keys[receiver], label, self._name, data))


class RemoteDeals:
    """A helper elsewhere, as the coordinator asks it to deal."""

    def __init__(self, plan: Plan, helper: str, exchange: Exchange) -> None:
        self._plan, self._helper, self._exchange = plan, helper, exchange

    def deal(self, work: Work) -> tuple[str, Wholes]:
        boxes = self._said(work, "deal")
        (place, *more) = boxes or ("",)
        if more or place not in map(str, range(len(self._plan.names))):
            raise WireError(f"helper {self._helper!r} dealt to {len(boxes)} parties in place of one.")
        return self._plan.names[int(place)], box_of(self._helper, boxes, place)

    def recall(self, work: Work) -> None:
        self._said(work, "recall")

    def _said(self, work: Work, name: str) -> Boxes:
        stage = Stage(name, work.piece, tuple(work.said), work.program)
        frame = Frame("seal", 0, self._plan.digest, work.number, work.name, work.said, stage.text)
        found = self._exchange([self._helper], frame, {})[self._helper].frame
        if found.kind == "unknown-plan":
            raise RestartedError([self._helper])
        return found.arrays
