"""A party that takes part in alignments: with whom its holder allows it, under keys that each party signed itself.

It keeps the places of the common records in its own file, which never leave, in a file next to the records for its
holder alone; the records themselves are not rewritten. That file also counts how often words of the identifiers left,
however those alignments ended.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.identifiers import Identifiers, fingerprint
from sottovoce.data.resources import named_place
from sottovoce.errors import InputError, RefusedError
from sottovoce.federation.answering import ACCEPTED
from sottovoce.federation.run_keys import check_pinned, known_keys
from sottovoce.files import read_plain, write_durably
from sottovoce.formats import ALIGNMENT
from sottovoce.gate.frames import Frame
from sottovoce.gate.intersection import COUNT, AlignmentSession, AlignmentTerms, Member
from sottovoce.gate.outgoing import Declared, Outgoing, declare_public, reply
from sottovoce.secure.pair_keys import RunKey, fingerprint_of
from sottovoce.transports.identity import ALIGN_KEY

if TYPE_CHECKING:
    from sottovoce.federation.party import Party

_log = logging.getLogger("sottovoce.holder")
_UNKNOWN = "knows of no such alignment; it may have been restarted. Start it again."

Use = Callable[[NDArray[np.int64], str], None]  # serve the records in these places alone, of an alignment's digest


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
