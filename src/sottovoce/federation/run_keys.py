"""The private keys of a party's sealed sums: one for each run, kept as long as the run lasts."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from sottovoce.errors import RefusedError
from sottovoce.files import write_durably
from sottovoce.plan.plan import Plan
from sottovoce.sealed.streams import RunKey

MOST_OFFERED: Final = 8  # keys that were told, and whose plan has not come


class RunKeys:
    """Keys that this party has told, by public key; beside a ledger those of accepted plans, so that it can go on.

    By columns no run goes on after a restart, and no key is written.
    """

    def __init__(self, ledger: Path | None, party: str) -> None:
        self._folder = None if ledger is None else ledger.with_name(f"{ledger.name}.sealed")
        self._party = party
        self._known: dict[str, RunKey] = {}

    def new(self) -> str:
        """The public key of a new one."""
        key = RunKey()
        self._known[key.public] = key
        while len(self._known) > MOST_OFFERED:
            del self._known[next(iter(self._known))]
        return key.public

    def of(self, plan: Plan) -> RunKey:
        """The key that a plan has for this party, or a refusal if it is lost."""
        public = dict(plan.keys).get(self._party, "")
        if public not in self._known and self._folder is not None:
            with contextlib.suppress(OSError, ValueError):
                key = RunKey(bytes.fromhex(self._path(self._folder, plan.digest).read_text(encoding="ascii")))
                self._known[key.public] = key
        if public not in self._known:
            raise RefusedError(
                f"{self._party} does not have the key that the plan names for it: it was restarted, or never told it. "
                "What was released stays charged; start a new fit."
            )
        return self._known[public]

    def keep(self, plan: Plan) -> None:
        """Write the key of an accepted plan, for its holder alone."""
        if plan.sealing is None or self._folder is None or plan.split == "columns":
            return
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._path(self._folder, plan.digest)
        if not path.exists():
            write_durably(path, self.of(plan).private_bytes().hex().encode(), mode=0o600)

    def forget_others(self, plan: Plan) -> None:
        """Another plan was accepted: what was told for earlier ones is of no more use here."""
        own = dict(plan.keys).get(self._party)
        self._known = {public: key for public, key in self._known.items() if public == own}

    def forget(self, digest: bytes) -> None:
        """The run of a plan is over, or all are."""
        self._known.clear()
        if self._folder is not None and digest:
            with contextlib.suppress(OSError):
                self._path(self._folder, digest).unlink()

    def _path(self, folder: Path, digest: bytes) -> Path:
        return folder / f"{digest.hex()}.{self._party_name()}.key"

    def _party_name(self) -> str:
        return self._party.encode().hex()[:64]
