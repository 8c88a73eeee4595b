"""The keys of an end of secure sums: one for each run, kept as long as the run lasts, and told to whom it knows.

The keys are in the plan, and nobody uses one before every end has signed the plan. By columns whoever deals and has one
party of its own reads every column; whoever is taken for a party reads scores of joint predictions, and tests guesses
in an alignment. So a party takes part only with ends that it knows by itself: those of its own process, and over a wire
those whose keys it has pinned. `known_keys` is the one place where that is checked, and the only one that makes keys to
share a secret with.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

from sottovoce.errors import RefusedError
from sottovoce.federation.answering import ACCEPTED, unknown_plan
from sottovoce.files import write_durably
from sottovoce.gate.frames import Frame
from sottovoce.gate.outgoing import Outgoing, reply
from sottovoce.gate.secure_gate import UsedLabels, offered
from sottovoce.plan.plan import Plan
from sottovoce.plan.split import COORDINATOR
from sottovoce.privacy.ledger import Account
from sottovoce.secure.pair_keys import CHECKED, OFFERS, PUBLIC_KEYS, PairKeys, PeerKey, RunKey, fingerprint_of
from sottovoce.transports.identity import PLAN, Identity

_log = logging.getLogger("sottovoce.holder")

PAIR: Final = "pair"  # the query of messages by which the ends of a plan agree on keys
MOST_OFFERED: Final = 8  # keys that were told, and whose plan has not come
LONGEST: Final = timedelta(days=90)  # that a run may last, from its check on


class RunKeys:
    """Keys that this end has told, by fingerprint; beside a ledger that of the checked or accepted plan, to go on.

    Guarantee: a key serves one account and one set of prepared rows. A file beside it says which, from before the plan
    is charged; whoever serves another account or other rows by then has lost the key. Proof: `secure/proofs`.

    A key lasts until the run is over or another plan is accepted: then nobody, not even its holder, can read what the
    others secure with it. That of a run which the party left, and whose end nobody told it, is deleted after `LONGEST`.
    By columns used labels are beside it (`UsedLabels`). A dealer has no ledger, but may have a `folder`.
    """

    def __init__(self, account: Account | None, party: str, folder: Path | None = None) -> None:
        self._folder, self._account = folder, ""
        if account is not None:
            self._folder, self._account = account.path.with_name(f"{account.path.name}.secure"), account.dataset
        self._party = party
        self._own = hashlib.sha256(party.encode()).hexdigest()[:32]
        self._known: dict[str, RunKey] = {}
        self._pairs: dict[bytes, tuple[Plan, PairKeys]] = {}  # by plan, of those that were checked or accepted
        self._used = ""  # the key of the accepted plan
        self._held = b""  # the plan that was checked last
        if self._folder is not None:
            self._expire(self._folder)

    def new(self) -> str:
        if self._folder is not None:
            self._expire(self._folder)
        key = RunKey()
        self._known[fingerprint_of(key.public)] = key
        offered = list(self._known)
        if self._used in self._known:
            offered.remove(self._used)
        for forgotten in offered[:-MOST_OFFERED]:
            del self._known[forgotten]
        return key.public

    def pairs(self, plan: Plan, peers: Mapping[str, PeerKey], what: str = "Start a new fit.") -> PairKeys:
        """The keys that this party shares with the other members of a plan.

        If its own key is lost that is a refusal, with `what` to do.
        """
        if plan.digest in self._pairs:
            return self._pairs[plan.digest][1]
        public = dict(plan.keys).get(self._party, "")
        kept = None
        if public not in self._known and self._folder is not None:
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                kept = json.loads(self._path(self._folder, plan.digest).read_text(encoding="ascii"))
                key = RunKey(bytes.fromhex(kept["key"]))
                self._known[fingerprint_of(key.public)] = key
        if public not in self._known:
            raise RefusedError(
                f"{self._party} does not have the key that the plan names for it: it was restarted, or never told it. "
                f"{what}"
            )
        pairs = PairKeys(self._known[public], tuple(dict(plan.keys)), peers, key_purpose(plan))
        if kept is not None:
            pairs.restore(kept)
        self._pairs[plan.digest] = plan, pairs
        return pairs

    def bind(self, plan: Plan, rows: bytes, *, charged: bool) -> None:
        """Let the key of a plan that is about to be charged serve these prepared rows of this account alone, durably.

        The first of all processes to say so decides. A plan that is `charged`, and whose key is for no rows, has a key
        of before that: it was set back.
        """
        if self._folder is None:
            return  # a party without a ledger runs a plan once
        path, said = self._path(self._folder, plan.digest, "rows"), json.dumps([self._account, rows.hex()])
        same = not charged or path.exists()
        if same:
            try:
                write_durably(path, said.encode(), mode=0o600, replace=False)
            except FileExistsError:
                same = path.read_text(encoding="ascii") == said
        if not same:
            raise RefusedError(
                f"{self._party} does not go on with this plan: its key of the run was used for other records, or on "
                "another account of its ledger, than it serves now, and answers on both would show how they differ. "
                "What was released stays charged. Serve what the run was begun with, or start a new fit."
            )

    def check_agreed(self, plan: Plan) -> None:
        """Refuse a plan of secure sums whose ends have not agreed on their keys."""
        if plan.channel.secure and not self._pairs[plan.digest][1].agreed:
            raise RefusedError(
                f"{self._party} has not agreed with the other members of the plan on keys: each sends the others "
                "offers once it has checked the plan. Nothing was charged; start a new fit."
            )

    def answer(self, frame: Frame) -> Outgoing:
        """A message by which the ends of a plan agree on their keys: first an offer to each later one, then theirs.

        What was agreed on is kept: a restarted party goes on with it, and needs no offers again.
        """
        if frame.plan not in self._pairs:
            return unknown_plan(frame)
        plan, pairs = self._pairs[frame.plan]
        publics = frame.arrays.get(PUBLIC_KEYS)
        if frame.round == 0:
            return reply("answer", frame, offered(pairs, publics))
        pairs.agree(publics, frame.arrays.get(OFFERS))
        self._write(plan)
        return reply("accept", frame, ACCEPTED)

    def keep(self, plan: Plan) -> None:
        """Write the key of an accepted plan, for its holder alone; what there is of other plans is deleted."""
        if self._held == plan.digest:
            self._held = b""
        if self._used != (used := dict(plan.keys).get(self._party, "")):
            self._known.pop(self._used, None)
            self._used = used
        pairs = self._pairs.get(plan.digest)
        self._pairs = {} if pairs is None else {plan.digest: pairs}
        self._delete(but=plan.digest if plan.channel.secure else b"")
        self._write(plan)

    def labels(self, plan: Plan) -> UsedLabels:
        """Where labels of masks are registered: on disk, if keys are."""
        return UsedLabels(None if self._folder is None else self._path(self._folder, plan.digest, "labels"))

    def hold(self, plan: Plan) -> None:
        """Write the key of a plan that was checked and is about to be proposed; that of the one before is kept too.

        So a party that is stopped between the two can accept it: others may have charged it by then.
        """
        if self._held and self._held != plan.digest:
            self._pairs.pop(self._held, None)
            if self._folder is not None:
                self._path(self._folder, self._held).unlink(missing_ok=True)
        self._held = plan.digest
        self._write(plan)

    def _write(self, plan: Plan) -> None:
        if self._folder is None or not plan.channel.secure:
            return
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path, data = self._path(self._folder, plan.digest), json.dumps(self._pairs[plan.digest][1].state).encode()
        if not path.exists() or path.read_bytes() != data:
            write_durably(path, data, mode=0o600)

    def goes_on(self, digest: bytes) -> bool:
        """Whether there is what a run over secure columns goes on with after a restart."""
        return self._folder is not None and self._path(self._folder, digest, "labels").exists()

    def end(self, digest: bytes) -> None:
        """The run of a plan that this process does not know is over: so are its key and its labels."""
        self._delete(f"{digest.hex()}.{self._own}.*")

    def forget(self) -> None:
        """The run is over: so are all keys."""
        self._known.clear()
        self._pairs.clear()
        self._used = ""
        self._delete()

    def _delete(self, which: str = "", but: bytes = b"") -> None:
        """What this party has of runs on disk, also what a killed process was writing, less that of one plan.

        Keys go before what they are for. A plan whose labels are gone is masked in no more, and one that was charged is
        not begun again.
        """
        kept = [f"{but.hex()}.{self._own}.{kind}" for kind in ("key", "rows", "labels")]
        found = () if self._folder is None else self._folder.glob(which or f"*.{self._own}.*")
        for path in sorted(found):  # NAME.key, NAME.labels, NAME.rows
            try:
                if path.name not in kept:
                    path.unlink(missing_ok=True)
            except OSError as error:
                _log.error("%s of a run that is over cannot be deleted (%s); delete it.", path, error.strerror)

    def _expire(self, folder: Path) -> None:
        """Delete what belongs to runs of long ago."""
        before = time.time() - LONGEST.total_seconds()
        for path in folder.glob(f"*.{self._own}.*"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < before:
                    path.unlink()

    def _path(self, folder: Path, digest: bytes, kind: str = "key") -> Path:
        return folder / f"{digest.hex()}.{self._own}.{kind}"


def key_purpose(plan: Plan) -> list[str]:
    """What the keys of pairs under a plan are for."""
    return ["secure sums", plan.digest.hex()]


def known_keys(
    own: str,
    told: Mapping[str, str] | Iterable[tuple[str, str]],
    identity: Identity | None,
    *,
    pins: bool = True,
    dealer: str = "",
) -> dict[str, PeerKey]:
    """The keys of the other ends, to share secrets with: the check of who they are, before any mask or envelope.

    Two names with one key are refused, and with `pins` a name whose key this end does not know by itself. A dealer, who
    has no data, needs no pins, nor does a party by rows whose policy counts all others among those who collude. The
    coordinator, where it is the `dealer`, is known by the wire; a party never has its name.
    """
    keys = dict(told)
    if len(set(keys.values())) < len(keys):
        raise RefusedError(f"two of {', '.join(keys)} have one public key, and each end has its own; start again.")
    if pins:
        if COORDINATOR in keys and dealer != COORDINATOR:
            raise RefusedError(f"a party has the name {COORDINATOR!r}, which is no party's; choose another.")
        others = dict.fromkeys(keys)
        others.pop(COORDINATOR, None)
        check_pinned(own, others, identity)
    return {name: PeerKey(public, made_by=CHECKED) for name, public in keys.items() if name != own}


def check_pinned(party: str, members: Iterable[str], identity: Identity | None) -> None:
    """Refuse an end that this party does not know by itself."""
    known = frozenset() if identity is None else identity.pinned
    for name in members:
        if name != party and name not in known:
            raise RefusedError(
                f"{party} has not pinned the key of {name}, and shares no secret with anybody it has not: who makes up "
                f"a party reads what the others send it. Ask the holder of {name} for its pin, and put it into [peers]."
            )


def check_start(plan: Plan, own: str, identity: Identity | None, text: str) -> None:
    """Refuse to start a plan that not every party, and the dealer where there is one, has signed."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        told = None
    for name in plan.channel.signers:
        signature = told.get(name) if type(told) is dict else None
        if identity is None or type(signature) is not str:
            raise RefusedError(f"the plan cannot start at {own}: the signature of {name} on it is missing.")
        identity.verify(name, PLAN, plan.digest, signature)
