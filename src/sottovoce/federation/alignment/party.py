"""A party that takes part in alignments: with whom its holder allows it, under keys that each party signed itself."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.identifiers import Identifiers, fingerprint
from sottovoce.data.room import named_place
from sottovoce.errors import RefusedError
from sottovoce.federation.alignment.file import AlignmentFile
from sottovoce.federation.answering import answer_or_accept
from sottovoce.federation.holder import Holder
from sottovoce.federation.run_keys import check_pinned, known_keys
from sottovoce.gate.frames import Frame
from sottovoce.gate.intersection import COUNT, Member, Session, Terms
from sottovoce.gate.outgoing import Declared, Outgoing, declare_public, reply
from sottovoce.secure.pair_keys import RunKey, fingerprint_of
from sottovoce.transports.identity import ALIGN_KEY, Identity

_log = logging.getLogger("sottovoce.holder")

Use = Callable[[NDArray[np.int64], str], None]  # serve the records in these places alone, of an alignment's digest


class Aligner:
    """Answers "align": private set intersection with other parties. `say` tells the holder, in its process, of it.

    Guarantee: nothing is answered before the policy names exactly the other members, their keys are pinned, and each of
    them has signed the terms, its key and the length of its list. At the end `use` has the party serve the common
    records alone.
    """

    def __init__(self, holder: Holder, rule: str, file: AlignmentFile, use: Use) -> None:
        self._holder, self.rule, self.file, self._use = holder, rule, file, use
        self.say: Callable[[str], None] = _log.info
        self._invited: tuple[Terms, Member, RunKey] | None = None
        self._session: Session | None = None
        self._tenths = 0  # of the work that the holder was told of
        self._since = 0.0
        file.check(holder.ids, rule)
        if (kept := file.kept) is not None:
            use(kept.places, kept.digest)

    @property
    def ids(self) -> Identifiers | None:
        """Of all records, in the order of the file."""
        return self._holder.ids

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
            raise self._unknown()
        masked = session.answer(dataclasses.replace(frame, text="") if frame.query == "open" else frame)
        if session.counted is not None:
            self.say(f"shares {session.counted:,} people with {' and '.join(self._others(session.terms))}")
            session.counted = None
        if session.places is not None and self.ids is not None:  # all parties have agreed
            marks = fingerprint(self.ids, self.rule)
            found = self.file.keep(session.terms.members, session.agreed, session.places, marks)
            session.places = None
            where = "" if self.file.path is None else f", kept in {self.file.path}"
            others = ", ".join(self._others(session.terms))
            self.say(f"aligned with {others}: {len(found.places):,} of {len(self.ids):,} records are common{where}")
            self._use(found.places, found.digest)
            self._holder.keys.forget()  # of a plan that is about other records
        return answer_or_accept(frame, masked)

    def _announce(self, text: str) -> tuple[Declared, ...]:
        """The key for an alignment, signed with its terms; or a refusal."""
        party, identity = self._holder.name, self._holder.identity
        if identity is None:
            raise RefusedError(f"{party} was not told who it is; serve it over a wire (InProcess, serve_party).")
        terms = Terms.read(text)
        others = self._others(terms)
        if self.ids is None or len(others) == len(terms.members):
            raise RefusedError(f"{party} has no identifiers (`id` names their column), or is no member.")
        self._check_allowed(terms, others)
        check_pinned(party, others, identity)
        key = RunKey()
        own = Member(key.public, len(self.ids), self.rule)
        if self._session is not None:
            self._session.close()
        self._session, self._invited = None, (terms, own, key)
        return (
            declare_public("public_key", own.public, reason="random, made to be told"),
            declare_public("records", own.records, reason="told to the parties of an alignment, as its holder allows"),
            declare_public("id_rule", own.rule, reason="the schema is public"),
            declare_public("signature", identity.sign(ALIGN_KEY, own.message(terms)), reason="over key and terms"),
        )

    def _check_allowed(self, terms: Terms, others: list[str]) -> None:
        """Refuse members whom the holder did not name; an alignment is with all that it named, not with some of them.

        Else a coordinator could have two of three parties learn whom they share.
        """
        party, policy, named = self._holder.name, self._holder.policy, ", ".join(others)
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

    def _unknown(self) -> RefusedError:
        name = self._holder.name
        return RefusedError(f"{name} knows of no such alignment; it may have been restarted. Start it again.")

    def _open(self, frame: Frame) -> None:
        """A session with members who have signed what this party signed, and whose lists it can take."""
        party, policy, identity = self._holder.name, self._holder.policy, self._holder.identity
        if self._invited is None or identity is None or self.ids is None:
            raise self._unknown()
        terms, own, key = self._invited
        members = _members(frame.text, terms, identity, party, own)
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
        session = Session(terms, members, party, key, peers, self.ids, folder, leaving)
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

    def _others(self, terms: Terms) -> list[str]:
        return [name for name in terms.members if name != self._holder.name]


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
