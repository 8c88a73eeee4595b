"""The people that parties with columns have in common, in one order, before there is a plan (`sottovoce align`).

A party takes part with whom its holder allows it, under keys that each party signed itself. It keeps the places of the
common records in its own file, which never leave, in a file next to the records for its holder alone; the records
themselves are not rewritten. That file also counts how often words of the identifiers left, however those alignments
ended. The coordinator passes envelopes on, and matches words where no party does.

What leaves a party is made in `gate/intersection.py`. A plan over secure columns has the digest of the alignment, and a
party refuses another. Proof: `secure/proofs/alignment.md`.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.identifiers import Identifiers, fingerprint
from sottovoce.data.resources import named_place
from sottovoce.data.row_file import WORD, WORD_KIND, SortedFile, cut_pieces
from sottovoce.errors import InputError, RefusedError, WireError
from sottovoce.federation.answering import ACCEPTED
from sottovoce.federation.replies import Envelopes, Exchange, crossed, crossed_offers, envelope_of
from sottovoce.federation.run_keys import check_pinned, known_keys
from sottovoce.files import read_plain, write_durably
from sottovoce.formats import ALIGNMENT
from sottovoce.gate.frames import Frame
from sottovoce.gate.intersection import (
    COORDINATOR,
    COUNT,
    PIECE,
    WORDS,
    AlignmentSession,
    AlignmentTerms,
    CheckedHashes,
    Member,
    count_pieces,
    name_alignment,
    packed_hashes,
    unpacked_hashes,
)
from sottovoce.gate.outgoing import Declared, Outgoing, declare_public, reply
from sottovoce.secure.pair_keys import RunKey, fingerprint_of
from sottovoce.secure.sums import unpacked_envelope
from sottovoce.transports.identity import ALIGN_KEY

if TYPE_CHECKING:
    from sottovoce.federation.party import Party

_log = logging.getLogger("sottovoce.holder")
_UNKNOWN = "knows of no such alignment; it may have been restarted. Start it again."

Progress = Callable[[int, int], None]
Use = Callable[[NDArray[np.int64], str], None]  # serve the records in these places alone, of an alignment's digest
_TAG: Final = 16  # bytes that an envelope has more than what is in it


@dataclass(frozen=True, eq=False)
class StoredAlignment:
    """The common order of several parties, as one of them has it."""

    parties: tuple[str, ...]
    date: str
    digest: str  # keyed; the same at all parties
    fingerprint: str  # of the identifiers of the file
    places: NDArray[np.int64]  # of the common records in the file, in the common order


class AlignmentFile:
    """Where a party's alignment is kept; without a path in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.dates: list[str] = []  # when words left
        self.kept: StoredAlignment | None = None
        if path is not None:
            self._read()

    def check(self, ids: Identifiers | None, rule: str) -> None:
        """Refuse an alignment of other identifiers than the party has now, and places that no alignment has."""
        if self.kept is None:
            return
        if ids is None or self.kept.fingerprint != fingerprint(ids, rule):
            raise InputError(
                f"{self.path} is the alignment of another list: identifiers were added, removed, moved or written by "
                f"another rule since {self.kept.date}. Delete it, start the party, and align again (`sottovoce align`)."
            )
        places = np.unique(self.kept.places)  # sorted
        if not len(places) == len(self.kept.places) > 0 or places[0] < 0 or places[-1] >= len(ids):
            raise InputError(f"{self.path} is damaged: its places are none of {len(ids)} records; align again.")

    def leaving(self, most: int) -> None:
        """Count that words leave, durably, before they do; refuse it where they have left so often already.

        The file is read again: another process may serve the same identifiers.
        """
        self._read()
        if len(self.dates) >= most:
            raise RefusedError(
                f"its identifiers took part in {len(self.dates)} alignments, of policy.align_times = {most}: each can "
                "test guesses. Its holder can raise that, or delete the file of the alignment."
            )
        self.dates.append(datetime.now(UTC).isoformat(timespec="seconds"))
        self._write()

    def keep(self, parties: Sequence[str], digest: bytes, places: NDArray[np.int64], ids: str) -> StoredAlignment:
        """Keep an alignment, durably, in the place of the one before; `ids` is the fingerprint of the list."""
        self._read()
        self.kept = StoredAlignment(
            tuple(parties), datetime.now(UTC).isoformat(timespec="seconds"), digest.hex(), ids, places
        )
        self._write()
        return self.kept

    def _write(self) -> None:
        if self.path is None:
            return
        told: dict[str, Any] | None = None
        if self.kept is not None:
            places = base64.b64encode(self.kept.places.astype("<i8").tobytes()).decode()
            told = {**asdict(self.kept), "places": places}
        text = json.dumps({"format": ALIGNMENT.number, "dates": self.dates, "aligned": told})
        try:
            write_durably(self.path, text.encode(), mode=0o600)
        except OSError as error:
            raise InputError(f"the alignment cannot be kept in {self.path} ({error.strerror}).") from None

    def _read(self) -> None:
        if self.path is None or not self.path.exists():
            return
        try:
            found = json.loads(read_plain(self.path))
            if type(found) is dict and not ALIGNMENT.read(number := found.get("format")):
                raise InputError(ALIGNMENT.refusal(str(self.path), number))
            self.dates = [str(date) for date in found["dates"]]
            if (told := found["aligned"]) is not None:
                places = np.frombuffer(base64.b64decode(told["places"]), dtype="<i8").astype(np.int64)
                self.kept = StoredAlignment(**{**told, "parties": tuple(told["parties"]), "places": places})
        except InputError:
            raise
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise InputError(
                f"{self.path} is no file of an alignment, or damaged; delete it and align again."
            ) from None


@dataclass(eq=False, repr=False)
class Aligner:
    """Answers "align": private set intersection with other parties. `say` tells the holder, in its process, of it.

    Guarantee: nothing is answered before the policy names exactly the other members, their keys are pinned, and each of
    them has signed the terms, its key and the length of its list. At the end `use` has the party serve the common
    records alone.
    """

    _holder: Party
    rule: str
    file: AlignmentFile
    _use: Use
    say: Callable[[str], None] = _log.info
    _invited: tuple[AlignmentTerms, Member, RunKey] | None = None
    _session: AlignmentSession | None = None
    _tenths: int = 0  # of the work that the holder was told of
    _since: float = 0.0

    def introduce(self, say: Callable[[str], None]) -> None:
        """Tell the holder from now on, and first whether an alignment is in use."""
        self.say = say
        if (kept := self.file.kept) is not None:
            say(f"these are the records that {', '.join(kept.parties)} have in common, by the alignment of {kept.date}")

    def answer(self, frame: Frame) -> Outgoing:
        if frame.query == "invite":
            return reply("facts", frame, self._announce(frame.text))
        if frame.query == "open" and (self._session is None or self._session.digest != frame.plan):
            self._open(frame)
        session = self._session
        if session is None or session.digest != frame.plan:
            raise RefusedError(f"{self._holder.name} {_UNKNOWN}")
        masked = session.answer(dataclasses.replace(frame, text="") if frame.query == "open" else frame)
        if session.counted is not None:
            self.say(f"shares {session.counted:,} people with {' and '.join(self._others(session.terms))}")
            session.counted = None
        if session.places is not None and (ids := self._holder.identifiers) is not None:  # all parties have agreed
            marks = fingerprint(ids, self.rule)
            found = self.file.keep(session.terms.members, session.agreed, session.places, marks)
            session.places = None
            where = "" if self.file.path is None else f", kept in {self.file.path}"
            others = ", ".join(self._others(session.terms))
            self.say(f"aligned with {others}: {len(found.places):,} of {len(ids):,} records are common{where}")
            self._use(found.places, found.digest)
            self._holder.keys.forget()  # of a plan that is about other records
        return reply("accept", frame, ACCEPTED) if masked is None else reply("answer", frame, masked)

    def _announce(self, text: str) -> tuple[Declared, ...]:
        """The key for an alignment, signed with its terms; or a refusal."""
        party, identity = self._holder.name, self._holder.identity
        if identity is None:
            raise RefusedError(f"{party} was not told who it is; serve it over a wire (InProcess, serve_party).")
        terms = AlignmentTerms.read(text)
        others = self._others(terms)
        if self._holder.identifiers is None or len(others) == len(terms.members):
            raise RefusedError(f"{party} has no identifiers (`id` names their column), or is no member.")
        # An alignment is with all whom the holder named: else two of three parties could learn whom they share.
        policy, named = self._holder.policy, ", ".join(others)
        if terms.purpose == COUNT and not set(others) <= set(policy.count_shared):
            raise RefusedError(f"{party} counts nobody with {named}; its holder can, by policy.count_shared.")
        if terms.purpose != COUNT and set(others) != set(policy.align) - {party}:
            raise RefusedError(
                f"{party} does not align with {named}; its holder can, by policy.align, which names all others."
            )
        if terms.purpose != COUNT and policy.align_matched_by not in ("", terms.matcher):
            raise RefusedError(
                f"{party} has its words matched by {policy.align_matched_by} alone, and not by {terms.matcher} "
                "(policy.align_matched_by)."
            )
        check_pinned(party, others, identity)
        key = RunKey()
        own = Member(key.public, len(self._holder.identifiers), self.rule)
        if self._session is not None:
            self._session.close()
        self._session, self._invited = None, (terms, own, key)
        return (
            declare_public("public_key", own.public, reason="random, made to be told"),
            declare_public("records", own.records, reason="told to the parties of an alignment, as its holder allows"),
            declare_public("id_rule", own.rule, reason="the schema is public"),
            declare_public("signature", identity.sign(ALIGN_KEY, own.message(terms)), reason="over key and terms"),
        )

    def _open(self, frame: Frame) -> None:
        """A session with members who have signed what this party signed, and whose lists it can take."""
        party, policy, identity = self._holder.name, self._holder.policy, self._holder.identity
        if self._invited is None or identity is None or self._holder.identifiers is None:
            raise RefusedError(f"{party} {_UNKNOWN}")
        terms, own, key = self._invited
        wrong = RefusedError("an alignment is opened with the key and the signature of every member.")
        try:
            told = json.loads(frame.text)
            members = {name: Member(*told[name][:3]) for name in terms.members}
            signatures = {name: told[name][3] for name in terms.members}
        except (ValueError, TypeError, KeyError, IndexError, RecursionError):
            raise wrong from None
        for name, member in members.items():
            kinds = tuple(map(type, (member.public, member.records, member.rule, signatures[name])))
            if kinds != (str, int, str, str) or not 0 < member.records < 2**31:
                raise wrong
            if name != party:
                identity.verify(name, ALIGN_KEY, member.message(terms), signatures[name])
            elif member != own:
                raise RefusedError(f"the alignment does not have {party} with the key and the list that it announced.")
        for name, member in members.items():
            if member.rule != own.rule:
                raise RefusedError(
                    f"{party} writes identifiers by the rule {own.rule!r} and {name} by {member.rule!r}; "
                    "set id_rule alike."
                )
            if member.records > policy.align_ratio * own.records:
                raise RefusedError(
                    f"{name} has {member.records} identifiers, more than policy.align_ratio = {policy.align_ratio:g} "
                    f"times those of {party}."
                )
        prints = {name: fingerprint_of(member.public) for name, member in members.items()}
        peers = known_keys(party, prints, identity)
        leaving = partial(self.file.leaving, policy.align_times)
        folder = named_place(None, None if self.file.path is None else self.file.path.parent)
        session = AlignmentSession(terms, members, party, key, peers, self._holder.identifiers, folder, leaving)
        if session.digest != frame.plan:
            raise RefusedError("the name of the alignment is not that of its terms; start it again.")
        self._invited, self._session = None, session
        self._tenths, self._since = 0, time.monotonic()
        session.progress.say = self._progress
        others = ", ".join(self._others(terms))
        self.say(f"aligning {own.records:,} identifiers with {others}, for {terms.purpose}, matched by {terms.matcher}")

    def _progress(self, done: int, total: int) -> None:
        if (tenths := 10 * done // total) > self._tenths:
            self._tenths = tenths
            left = (time.monotonic() - self._since) * (total - done) / done
            self.say(f"aligning: {10 * tenths}%" + (f", about {left:.0f} s left" if left >= 1 else ""))

    def _others(self, terms: AlignmentTerms) -> list[str]:
        return [name for name in terms.members if name != self._holder.name]


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
