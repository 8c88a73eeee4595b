"""The coordinator's side of an alignment: it passes envelopes on, and matches words where no party does."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.resources import named_place
from sottovoce.data.row_file import WORD, WORD_KIND, SortedFile, cut_pieces
from sottovoce.errors import WireError
from sottovoce.federation.replies import Envelopes, Exchange, crossed, crossed_offers, envelope_of
from sottovoce.gate.frames import Frame
from sottovoce.gate.intersection import (
    COORDINATOR,
    COUNT,
    PIECE,
    WORDS,
    AlignmentTerms,
    CheckedHashes,
    Member,
    count_pieces,
    name_alignment,
    packed_hashes,
    unpacked_hashes,
)
from sottovoce.secure.sums import unpacked_envelope

Progress = Callable[[int, int], None]

_TAG: Final = 16  # bytes that an envelope has more than what is in it


@dataclass(frozen=True)
class AlignmentResult:
    """What the coordinator knows of an alignment: how long the lists are, and how many people are common."""

    terms: AlignmentTerms
    sizes: Mapping[str, int]
    common: int


@dataclass(eq=False)
class AlignmentRun:
    """One alignment of parties that are connected; `progress` is told points done and in all."""

    _exchange: Exchange
    _progress: Progress | None = None
    _digest: bytes = b""
    _done: int = 0
    _total: int = 0

    def run(self, terms: AlignmentTerms) -> AlignmentResult:
        """Align, or count; every party has kept its part, or one of them refuses."""
        replies = self._exchange(terms.members, Frame("align", 0, query="invite", text=terms.text), {})
        facts = {name: replies[name].facts for name in terms.members}
        if lacking := [name for name in terms.members if "signature" not in facts[name]]:
            raise WireError(f"party {lacking[0]!r} announced no key for an alignment.")
        members = {name: Member(told["public_key"], told["records"], told["id_rule"]) for name, told in facts.items()}
        signed = {name: [*astuple(member), facts[name]["signature"]] for name, member in members.items()}
        self._digest, lists = name_alignment(terms, members), {name: told["records"] for name, told in facts.items()}
        offers = self._ask(terms.members, "open", text=json.dumps(signed))
        parts = self._ask(terms.members, "pair", each=crossed_offers(terms.members, offers))
        self._ask(terms.members, "salt", each=crossed(terms.members, parts))
        self._done, self._total = 0, (len(members) + 1) * sum(lists.values())
        for piece in range(max(count_pieces(count, PIECE) for count in lists.values())):
            self._ring(terms, "list", piece, lists)
        if terms.matcher == COORDINATOR:
            words = self._words(terms, lists)
            if terms.purpose == COUNT:
                count = sum(map(len, words.words(len(members))))
                self._ask(terms.members, "counted", text=str(count))
                return AlignmentResult(terms, lists, count)
            count = self._tell(terms, words)
            words.close()
        else:
            count = self._passed(terms, lists)
        self._ring(terms, "digest", 0, dict.fromkeys(terms.members, 1))
        agreed = self._ask(terms.members, "agree")
        self._ask(terms.members, "agreed", each=crossed(terms.members, agreed))
        return AlignmentResult(terms, lists, count)

    def _ring(self, terms: AlignmentTerms, query: str, piece: int, lists: Mapping[str, int]) -> None:
        """A piece of every list from party to party, until each has its own back."""
        parties = len(terms.members)
        sent: dict[int, NDArray[Any]] = {}  # by owner
        for step in range(parties + 1):
            at = {  # by owner, who has its list now
                owner: terms.members[(owner + step) % parties]
                for owner, name in enumerate(terms.members)
                if PIECE * piece < lists[name]
            }
            each = {name: {"envelope": sent[owner]} for owner, name in at.items()} if step else {}
            asked = [name for name in terms.members if name in at.values()]
            replies = self._ask(asked, query, piece, text=str(step), each=each)
            after = {owner: str((owner + step + 1) % parties) for owner in at}
            sent = {
                owner: envelope_of(name, replies[name], after[owner]) for owner, name in at.items() if step < parties
            }
            if query == "list":
                self._done += sum(min(PIECE, lists[terms.members[owner]] - PIECE * piece) for owner in at)
                if self._progress is not None:
                    self._progress(self._done, self._total)

    def _words(self, terms: AlignmentTerms, lists: Mapping[str, int]) -> SortedFile:
        """The words of all parties, in a file without a name."""
        found = SortedFile(named_place(None, None))
        sent = {name: CheckedHashes(name, lists[name]) for name in terms.members}
        for piece in range(max(count_pieces(count, WORDS) for count in lists.values())):
            asked = [name for name in terms.members if WORDS * piece < lists[name]]
            for name, arrays in self._ask(asked, "words", piece).items():
                found.add(sent[name].checked(unpacked_hashes(arrays)), 0)
        return found

    def _tell(self, terms: AlignmentTerms, words: SortedFile) -> int:
        """The words that all parties have, to all; how many."""
        common = cut_pieces(words.words(len(terms.members)), WORDS)
        total, full = 0, True
        while full:
            part = next(common, np.empty(0, dtype=WORD_KIND))
            told = {"words": packed_hashes(part.tobytes())}
            self._ask(terms.members, "common", total // WORDS, each=dict.fromkeys(terms.members, told))
            total, full = total + len(part), len(part) == WORDS
        return total

    def _passed(self, terms: AlignmentTerms, lists: Mapping[str, int]) -> int:
        """How many words all parties have, found by one of them; it is seen from the length of its envelopes."""
        matcher, place = terms.matcher, terms.members.index(terms.matcher)
        others = [name for name in terms.members if name != matcher]
        for piece in range(max(count_pieces(lists[name], WORDS) for name in others)):
            asked = [name for name in others if WORDS * piece < lists[name]]
            replies = self._ask(asked, "words", piece)
            envelopes = {str(terms.members.index(name)): envelope_of(name, replies[name], str(place)) for name in asked}
            self._ask([matcher], "take", piece, each={matcher: envelopes})
        total, piece, last = 0, 0, WORDS
        while last == WORDS:
            made = self._ask([matcher], "match", piece)[matcher]
            each = {name: {"envelope": envelope_of(matcher, made, str(terms.members.index(name)))} for name in others}
            last = (len(unpacked_envelope(each[others[0]]["envelope"])) - _TAG) // WORD
            self._ask(others, "common", piece, each=each)
            total, piece = total + last, piece + 1
        return total

    def _ask(
        self,
        parties: Iterable[str],
        query: str,
        number: int = 0,
        *,
        text: str = "",
        each: Mapping[str, Envelopes] | None = None,
    ) -> dict[str, Envelopes]:
        replies = self._exchange(parties, Frame("align", 0, self._digest, number, query, text=text), each or {})
        return {name: reply.frame.arrays for name, reply in replies.items()}


def new_terms(members: Iterable[str], matcher: str = COORDINATOR, purpose: str = "order") -> AlignmentTerms:
    """The terms of a new alignment."""
    return AlignmentTerms.read(AlignmentTerms(secrets.token_hex(16), tuple(members), matcher, purpose).text)
