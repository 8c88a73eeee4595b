"""A party that takes part in alignments: with whom its holder allows it, under keys that each party signed itself."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from sottovoce.data.identifiers import Identifiers, fingerprint
from sottovoce.data.room import named_place
from sottovoce.door.frames import Frame
from sottovoce.door.intersection import COUNT, Member, Session, Terms
from sottovoce.door.outgoing import Declared, Masked, declare_public
from sottovoce.errors import RefusedError
from sottovoce.federation.alignment.file import AlignmentFile, KeptAlignment
from sottovoce.federation.announcements import check_pinned, known_keys
from sottovoce.federation.policy import Policy
from sottovoce.sealed.pair_keys import RunKey, fingerprint_of
from sottovoce.transports.identity import ALIGN_KEY, Identity

_log = logging.getLogger("sottovoce.holder")


@dataclass
class Aligner:
    """A party's identifiers and what it keeps of alignments. `say` tells the holder, in its own process, how it goes.

    Guarantee: nothing is answered before the policy names exactly the other members, their keys are pinned, and each of
    them has signed the terms, its key and the length of its list.
    """

    party: str
    ids: Identifiers | None
    rule: str
    file: AlignmentFile
    say: Callable[[str], None] = field(default=_log.info)
    _invited: tuple[Terms, Member, RunKey] | None = None
    _session: Session | None = None
    _tenths: int = 0  # of the work that was told of
    _since: float = 0.0

    def introduce(self, say: Callable[[str], None]) -> None:
        """Tell the holder from now on, and first whether an alignment is in use."""
        self.say = say
        if (kept := self.file.kept) is not None:
            say(f"these are the records that {', '.join(kept.parties)} have in common, by the alignment of {kept.date}")

    def invited(self, frame: Frame, policy: Policy, identity: Identity | None) -> tuple[Declared, ...]:
        """The key for an alignment, signed with its terms; or a refusal."""
        if identity is None:
            raise RefusedError(f"{self.party} was not told who it is; serve it over a wire (InProcess, serve_party).")
        terms = Terms.read(frame.text)
        others = [name for name in terms.members if name != self.party]
        if self.ids is None or len(others) == len(terms.members):
            raise RefusedError(f"{self.party} has no identifiers (`id` names their column), or is no member.")
        self._check_allowed(terms, others, policy)
        check_pinned(self.party, others, identity)
        key = RunKey()
        own = Member(key.public, len(self.ids), self.rule)
        self._end()
        self._invited = terms, own, key
        return (
            declare_public("public_key", own.public, reason="random, made to be told"),
            declare_public("records", own.records, reason="told to the parties of an alignment, as its holder allows"),
            declare_public("id_rule", own.rule, reason="the schema is public"),
            declare_public("signature", identity.sign(ALIGN_KEY, own.message(terms)), reason="over key and terms"),
        )

    def answer(self, frame: Frame, policy: Policy, identity: Identity | None) -> Masked | None:
        """What a message of an alignment is answered with; None: it is acknowledged."""
        if frame.query == "open" and (self._session is None or self._session.digest != frame.plan):
            self._open(frame, policy, identity)
        session = self._session
        if session is None or session.digest != frame.plan:
            raise RefusedError(f"{self.party} knows of no such alignment; it may have been restarted. Start it again.")
        opened = Frame("align", frame.serial, frame.plan, frame.round, frame.query, frame.arrays)
        found = session.answer(opened if frame.query == "open" else frame)
        if session.counted is not None:
            self.say(f"shares {session.counted:,} people with {' and '.join(self._others(session))}")
            session.counted = None
        return found

    def finished(self) -> KeptAlignment | None:
        """The alignment that was just agreed on, kept and told once; None if there is none."""
        session = self._session
        if session is None or session.places is None or self.ids is None:
            return None
        found = self.file.keep(session.terms.members, session.agreed, session.places, fingerprint(self.ids, self.rule))
        session.places = None
        where = "" if self.file.path is None else f", kept in {self.file.path}"
        others = ", ".join(self._others(session))
        self.say(f"aligned with {others}: {len(found.places):,} of {len(self.ids):,} records are common{where}")
        return found

    def _check_allowed(self, terms: Terms, others: list[str], policy: Policy) -> None:
        """Refuse members whom the holder did not name; an alignment is with all that it named, not with some of them.

        Else a coordinator could have two of three parties learn whom they share.
        """
        named = ", ".join(others)
        if terms.purpose == COUNT and not set(others) <= set(policy.count_shared):
            raise RefusedError(f"{self.party} counts nobody with {named}; its holder can, by policy.count_shared.")
        if terms.purpose != COUNT and set(others) != set(policy.align) - {self.party}:
            raise RefusedError(
                f"{self.party} does not align with {named}; its holder can, by policy.align, which names all others."
            )
        if terms.purpose != COUNT and policy.align_matched_by not in ("", terms.matcher):
            raise RefusedError(
                f"{self.party} has its words matched by {policy.align_matched_by} alone, and not by {terms.matcher} "
                "(policy.align_matched_by)."
            )

    def _open(self, frame: Frame, policy: Policy, identity: Identity | None) -> None:
        """A session with members who have signed what this party signed, and whose lists it can take."""
        if self._invited is None or identity is None or self.ids is None:
            raise RefusedError(f"{self.party} knows of no such alignment; it may have been restarted. Start it again.")
        terms, own, key = self._invited
        members = _members(frame.text, terms, identity, self.party, own)
        for name, member in members.items():
            if member.rule != own.rule:
                raise RefusedError(
                    f"{self.party} writes identifiers by the rule {own.rule!r} and {name} by {member.rule!r}; "
                    "set id_rule alike."
                )
            if member.records > policy.align_ratio * own.records:
                raise RefusedError(
                    f"{name} has {member.records} identifiers, more than policy.align_ratio = {policy.align_ratio:g} "
                    f"times those of {self.party}."
                )
        prints = {name: fingerprint_of(member.public) for name, member in members.items()}
        peers = known_keys(self.party, prints, identity)
        leaving = partial(self.file.leaving, policy.align_times)
        folder = named_place(None, None if self.file.path is None else self.file.path.parent)
        session = Session(terms, members, self.party, key, peers, self.ids, folder, leaving)
        if session.digest != frame.plan:
            raise RefusedError("the name of the alignment is not that of its terms; start it again.")
        self._invited, self._session = None, session
        self._tenths, self._since = 0, time.monotonic()
        session.progress.say = self._progress
        others = ", ".join(self._others(session))
        self.say(f"aligning {own.records:,} identifiers with {others}, for {terms.purpose}, matched by {terms.matcher}")

    def _progress(self, done: int, total: int) -> None:
        if (tenths := 10 * done // total) > self._tenths:
            self._tenths = tenths
            left = (time.monotonic() - self._since) * (total - done) / done
            self.say(f"aligning: {10 * tenths}%" + (f", about {left:.0f} s left" if left >= 1 else ""))

    def _others(self, session: Session) -> list[str]:
        return [name for name in session.terms.members if name != self.party]

    def _end(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None


def _members(text: str, terms: Terms, identity: Identity, party: str, own: Member) -> Mapping[str, Member]:
    """What all members say of themselves, each with its own signature; or a refusal."""
    try:
        told = json.loads(text)
        found = {name: Member(*told[name][:3]) for name in terms.members}
        signatures = {name: told[name][3] for name in terms.members}
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        raise RefusedError("an alignment is opened with the key and the signature of every member.") from None
    for name, member in found.items():
        kinds = tuple(map(type, (member.public, member.records, member.rule, signatures[name])))
        if kinds != (str, int, str, str) or not 0 < member.records < 2**31:
            raise RefusedError("an alignment is opened with the key and the signature of every member.")
        if name == party:
            if member != own:
                raise RefusedError(f"the alignment does not have {party} with the key and the list that it announced.")
        else:
            identity.verify(name, ALIGN_KEY, member.message(terms), signatures[name])
    return found
