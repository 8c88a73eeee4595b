"""Whoever deals under a plan over sealed columns: in this process, or a helper elsewhere."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.door.frames import Frame
from sottovoce.door.query import Query, Told
from sottovoce.door.sealed_gate import noise_of
from sottovoce.errors import RefusedError, WireError
from sottovoce.federation.boxes import Exchange, box_of
from sottovoce.federation.sealed_columns.messages import (
    DEALT_WORDS,
    LOOKUP,
    WHITENED,
    Stage,
    Wholes,
    check_piece,
    lost,
    pieces_of,
    widths_of,
)
from sottovoce.plan.plan import Plan
from sottovoce.privacy.mechanisms import wide_gaussian
from sottovoce.privacy.randomness import Randomness
from sottovoce.queries.joint import JointSum
from sottovoce.sealed.columns import ONE
from sottovoce.sealed.dealer import Dealer
from sottovoce.sealed.pads import CORRECTION, GRAM, OWN, TABLE, Asked, Piece, TranscriptHash
from sottovoce.sealed.pair_keys import PairKeys
from sottovoce.sealed.streams import box, hash_of, labelled
from sottovoce.sealed.sums import Noise, packed_box

Note = Callable[[str, str], None]  # of a label and what it is asked by, before words leave under it


class Deals(Protocol):
    """Whoever deals: boxes for single parties, made of a plan and of public numbers."""

    def gram(self, query: Query) -> dict[str, Wholes]:
        """By party, what it is dealt for the Gram matrix."""
        ...

    def own(self, number: int, query: Query, told: Told) -> dict[str, Wholes]:
        """For a sum of what each party has by itself."""
        ...

    def lookup(self, number: int, query: JointSum, told: Told, piece: Piece) -> dict[str, dict[str, Wholes]]:
        """For a piece of a look-up: the table and the correction."""
        ...

    def recall(self, number: int, query: Query, told: Told) -> None:
        """Take in a round that was dealt for before this process was started."""
        ...


class LocalDeals:
    """The dealer in this process: the coordinator's own, or a helper's.

    Guarantee: what has a label is dealt once. Asked again, the last boxes are given again and nothing is drawn; by
    other numbers, or for an earlier label, it is refused. `note` keeps what each label was asked by, for a coordinator
    that goes on after it was stopped, and refuses other numbers. All else, noise too, follows from the keys and what
    was told so far, which a label has: it has the same boxes in every process, copy and backup, and no box opens for a
    party that was told other numbers, for which noise and tables could be too small.
    """

    def __init__(self, plan: Plan, keys: PairKeys, randomness: Randomness, note: Note = lambda *_: None) -> None:
        if plan.sealing is None:
            raise RefusedError("the plan seals nothing, and nothing is dealt.")
        self._plan, self._sealing, self._name = plan, plan.sealing, plan.sealing.dealer
        self._randomness = keys.key.noise(plan.digest, randomness)
        self._keys = keys  # that it shares with each party; there once the members have agreed
        self._transcript = TranscriptHash()
        self._whitened = ""  # the hash of what was told until the whitened columns were made
        self._labels: set[str] = set()
        self._last: tuple[str, str, Any] = ("", "", None)
        self._note = note

    @functools.cached_property
    def _dealer(self) -> Dealer:
        plan = self._plan
        seeds = {name: self._keys[name] for name in plan.names}
        return Dealer(seeds, widths_of(plan), plan.records, plan.label_party_name)

    def recall(self, number: int, query: Query, told: Told) -> None:
        """Take in a round that was dealt for before this process was started."""
        self._asked(number, query, told)

    def _asked(self, number: int, query: Query, told: Told) -> Asked:
        """The round, as the parties have it. Those with whitened columns make them when they are first asked about."""
        asked = self._transcript.after(query.name, number, told)
        if isinstance(query, JointSum) and query.matrix == WHITENED:
            self._whitened = self._whitened or asked.said
        return asked

    def _once(
        self, label: list[Any], query: Query, told: Told, deal: Callable[[Wholes], Any], *, noisy: bool = True
    ) -> Any:
        """A box has one content, and a top-up is drawn once: two of them on one sum would average out."""
        said, by = json.dumps(label[:-1]), json.dumps([query.name, hash_of(told)])
        if self._last[:2] == (said, by):
            return self._last[2]
        if said in self._labels:
            raise RefusedError(f"the words for {query.name!r} were dealt before, and are dealt once.")
        self._labels.add(said)
        self._note(said, by)
        noise = self._noise(query, told, labelled(self._randomness, label)) if noisy else np.zeros(0, dtype=np.int64)
        self._last = (said, by, deal(noise))
        return self._last[2]

    def gram(self, query: Query) -> dict[str, Wholes]:
        """The products of the pads, with the top-up."""
        asked = self._asked(self._plan.release(query.name).first, query, {})

        def deal(noise: Wholes) -> dict[str, Wholes]:
            receiver, words = self._dealer.gram(asked, noise)
            return {receiver: self._boxed(receiver, asked.label(GRAM), words)}

        return dict(self._once(asked.label(GRAM), query, {}, deal))

    def own(self, number: int, query: Query, told: Told) -> dict[str, Wholes]:
        """The top-up."""
        asked = self._asked(number, query, told)

        def deal(noise: Wholes) -> dict[str, Wholes]:
            receiver, words = self._dealer.own(asked, noise)
            return {receiver: self._boxed(receiver, asked.label(OWN), words)}

        return dict(self._once(asked.label(OWN), query, told, deal))

    def lookup(self, number: int, query: JointSum, told: Told, piece: Piece) -> dict[str, dict[str, Wholes]]:
        """The table of a piece and its correction; the top-up is in that of the first."""
        check_piece(piece, pieces_of(self._plan, query, told))
        asked = self._asked(number, query, told)
        deal = functools.partial(self._looked_up, asked, query, told, piece)
        return dict(self._once(asked.label(TABLE, piece), query, told, deal, noisy=piece[0] == 0))

    def _looked_up(
        self, asked: Asked, query: JointSum, told: Told, piece: Piece, drawn: Wholes
    ) -> dict[str, dict[str, Wholes]]:
        table = query.lookup(self._plan, told)
        if query.matrix == WHITENED:
            self._dealer.add_matrix(WHITENED, said=self._whitened)
        noise: Wholes | int = drawn if piece[0] == 0 else 0
        if piece[0] == 0 and query.matrix != ONE:
            noise = np.reshape(drawn, (table.outputs, -1))
        receiver, words, correction = self._dealer.lookup(asked, table, query.matrix, noise, piece=piece)
        return {
            receiver: {
                TABLE: self._boxed(receiver, asked.label(TABLE, piece), words),
                DEALT_WORDS: self._boxed(receiver, asked.label(CORRECTION, piece), correction),
            }
        }

    def _noise(self, query: Query, told: Told, randomness: Randomness) -> Wholes:
        noise: Noise = noise_of(query, self._plan, told)
        top_up = self._sealing.top_up(len(self._plan.names), noise.known)
        if top_up == 0.0:
            return np.zeros(query.length, dtype=np.int64)
        return wide_gaussian(noise.steps(top_up), query.length, randomness)

    def _boxed(self, receiver: str, label: list[Any], words: NDArray[Any]) -> Wholes:
        data = np.ascontiguousarray(words).tobytes()
        return packed_box(box(self._keys[receiver], label, self._name, data))


class RemoteDeals:
    """A helper elsewhere, as the coordinator asks it to deal."""

    def __init__(self, plan: Plan, helper: str, exchange: Exchange) -> None:
        self._plan, self._helper, self._exchange = plan, helper, exchange

    def gram(self, query: Query) -> dict[str, Wholes]:
        """For the Gram matrix."""
        number = self._plan.release(query.name).first
        return {name: words[DEALT_WORDS] for name, words in self._ask(Stage(GRAM), number, query, {}).items()}

    def own(self, number: int, query: Query, told: Told) -> dict[str, Wholes]:
        """For a sum of what each party has by itself."""
        dealt = self._ask(Stage(OWN, said=tuple(told)), number, query, told)
        return {name: words[DEALT_WORDS] for name, words in dealt.items()}

    def lookup(self, number: int, query: JointSum, told: Told, piece: Piece) -> dict[str, dict[str, Wholes]]:
        """For a piece of a look-up."""
        return self._ask(Stage(LOOKUP, piece, tuple(told)), number, query, told, TABLE, DEALT_WORDS)

    def recall(self, number: int, query: Query, told: Told) -> None:
        """Nothing: the helper lives on, or the run is lost."""

    def _ask(self, stage: Stage, number: int, query: Query, told: Told, *wanted: str) -> dict[str, dict[str, Wholes]]:
        frame = Frame("seal", 0, self._plan.digest, number, query.name, told, stage.text)
        found = self._exchange([self._helper], frame, {})[self._helper].frame
        if found.kind == "unknown-plan":
            raise lost(self._helper)
        dealt: dict[str, dict[str, Wholes]] = {}
        for place, name in enumerate(self._plan.names):
            boxes = {what: f"{place} {what}" for what in wanted or (DEALT_WORDS,)}
            if any(box in found.arrays for box in boxes.values()):
                dealt[name] = {what: box_of(self._helper, found.arrays, box) for what, box in boxes.items()}
        if len(dealt) != 1:
            raise WireError(f"helper {self._helper!r} dealt to {len(dealt)} parties in place of one.")
        return dealt
