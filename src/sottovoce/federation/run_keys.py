"""The private keys of a party's sealed sums: one for each run, kept as long as the run lasts."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from datetime import timedelta
from pathlib import Path
from typing import Final

from sottovoce.door.used_labels import UsedLabels
from sottovoce.errors import RefusedError
from sottovoce.files import write_durably
from sottovoce.plan.plan import Plan
from sottovoce.sealed.streams import RunKey

_log = logging.getLogger("sottovoce.holder")

MOST_OFFERED: Final = 8  # keys that were told, and whose plan has not come
LONGEST: Final = timedelta(days=90)  # that a run may last, from its check on


class RunKeys:
    """Keys that this party has told, by public key; beside a ledger that of the checked or accepted plan, to go on.

    A key lasts until the run is over or another plan is accepted: then nobody, not even its holder, can read what the
    others sealed with it. That of a run which the party left, and whose end nobody told it, is deleted after `LONGEST`.
    By columns no run goes on after a restart, and no key is written, but used labels are (`door/used_labels.py`).
    """

    def __init__(self, ledger: Path | None, party: str) -> None:
        self._folder = None if ledger is None else ledger.with_name(f"{ledger.name}.sealed")
        self._party = party
        self._known: dict[str, RunKey] = {}
        self._used = ""  # the key of the accepted plan
        self._held = b""  # the plan that was checked last
        self._labels: Path | None = None  # of the accepted plan
        self._expire()

    def new(self) -> str:
        """The public key of a new one."""
        self._expire()
        key = RunKey()
        self._known[key.public] = key
        offered = [known for known in self._known if known != self._used]
        for forgotten in offered[:-MOST_OFFERED]:
            del self._known[forgotten]
        return key.public

    def of(self, plan: Plan, what: str = "Start a new fit.") -> RunKey:
        """The key that a plan has for this party, or a refusal if it is lost, with `what` to do."""
        public = dict(plan.keys).get(self._party, "")
        if public not in self._known and self._folder is not None:
            with contextlib.suppress(OSError, ValueError):
                key = RunKey(bytes.fromhex(self._path(self._folder, plan.digest).read_text(encoding="ascii")))
                self._known[key.public] = key
        if public not in self._known:
            raise RefusedError(
                f"{self._party} does not have the key that the plan names for it: it was restarted, or never told it. "
                f"{what}"
            )
        return self._known[public]

    def keep(self, plan: Plan) -> None:
        """Write the key of an accepted plan, for its holder alone; that of the plan before it is deleted."""
        if self._held == plan.digest:
            self._held = b""
        if self._used != (used := dict(plan.keys).get(self._party, "")):
            self._known.pop(self._used, None)
            self._used = used
        kept = plan.sealing is not None and plan.split == "rows"
        self._delete(but=plan.digest if kept else b"")
        self._write(plan)
        self._end_labels(self._labels_of(plan))

    def labels(self, plan: Plan) -> UsedLabels | None:
        """Where labels of masks are registered, if anywhere: of sealed columns, beside a ledger."""
        path = self._labels_of(plan)
        return None if path is None else UsedLabels(path)

    def hold(self, plan: Plan) -> None:
        """Write the key of a plan that was checked and is about to be proposed; that of the one before is kept too.

        So a party that is stopped between the two can accept it: others may have charged it by then.
        """
        if self._held and self._held != plan.digest and self._folder is not None:
            self._path(self._folder, self._held).unlink(missing_ok=True)
        self._held = plan.digest
        self._write(plan)

    def _write(self, plan: Plan) -> None:
        if plan.sealing is None or plan.split != "rows" or self._folder is None:
            return
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._path(self._folder, plan.digest)
        if not path.exists():
            write_durably(path, self.of(plan).private_bytes().hex().encode(), mode=0o600)

    def end(self, digest: bytes) -> None:
        """The run of a plan that this process does not know is over: its key is deleted."""
        if self._folder is not None:
            self._path(self._folder, digest).unlink(missing_ok=True)

    def forget(self) -> None:
        """The run is over: so are all keys."""
        self._known.clear()
        self._used = ""
        self._delete()
        self._end_labels()

    def _delete(self, but: bytes = b"") -> None:
        """Keys of this party on disk, also one that a killed process was writing, less that of one plan."""
        if self._folder is not None:
            for path in self._folder.glob(f"*.{self._ending}*"):
                try:
                    if path != self._path(self._folder, but):
                        path.unlink(missing_ok=True)
                except OSError as error:
                    _log.error("%s of a run that is over cannot be deleted (%s); delete it.", path, error.strerror)

    def _expire(self) -> None:
        """Delete what belongs to runs of long ago."""
        before = time.time() - LONGEST.total_seconds()
        for path in () if self._folder is None else self._folder.glob(f"*.{self._own}.*"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < before:
                    path.unlink()

    def _end_labels(self, now: Path | None = None) -> None:
        """Those of this process's run before are used no more: without the file nothing is masked."""
        if self._labels is not None and self._labels != now:
            self._labels.unlink(missing_ok=True)
        self._labels = now

    def _labels_of(self, plan: Plan) -> Path | None:
        if self._folder is None or not plan.sealed_columns:
            return None
        return self._folder / f"{plan.digest.hex()}.{self._own}.labels"

    def _path(self, folder: Path, digest: bytes) -> Path:
        return folder / f"{digest.hex()}.{self._ending}"

    @property
    def _ending(self) -> str:
        return f"{self._own}.key"

    @property
    def _own(self) -> str:
        return hashlib.sha256(self._party.encode()).hexdigest()[:32]
