"""What a solver keeps at a holder between rounds, on disk beside the ledger, so that a run goes on after a restart.

Each state is a file whose name is the hash of the release that it belongs to. It is written before that release is
stored, and the one before it is deleted afterwards: whichever release the ledger has last, its state is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.files import write_durably

_log = logging.getLogger("sottovoce.holder")


class Memory:
    """What a party remembers of the run of one plan, in files that only its holder reads.

    Guarantee: `read` gives the state that was written with a release, or nothing; a state whose release was never
    stored has a name that no release has. Proof: `proofs/gate.md`.
    """

    def __init__(self, ledger: Path, party: str, plan: bytes) -> None:
        self._folder = ledger.with_name(f"{ledger.name}.memory")
        self._party = hashlib.sha256(party.encode()).hexdigest()[:32]
        self._plan = plan.hex()
        self._last: Path | None = None  # of the last release that was stored
        self._next: Path | None = None

    def write(self, state: Mapping[str, NDArray[Any]], key: tuple[int, str], release: bytes) -> None:
        """Keep the state after a release that is about to be stored, durably."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        data = io.BytesIO()
        np.savez(data, **state)  # type: ignore[arg-type]  # of arrays alone
        self._next = self._path(key, release)
        write_durably(self._next, data.getvalue(), mode=0o600)

    def settle(self) -> None:
        """The release is stored: the state before it is not needed any more."""
        before, self._last, self._next = self._last, self._next, None
        if before is not None and before != self._last:
            _delete(before)

    def read(self, key: tuple[int, str], release: bytes) -> dict[str, NDArray[Any]] | None:
        """The state that belongs to a stored release; None if it is lost."""
        path = self._path(key, release)
        with contextlib.suppress(OSError, ValueError, EOFError), np.load(path, allow_pickle=False) as found:
            state = {name: found[name] for name in found.files}
            self._last = path
            return state
        return None

    def clear(self, *, all_plans: bool) -> None:
        """Delete what this party remembers of all plans, or of all but this one."""
        for path in self._folder.glob(f"{self._party}.*"):
            if all_plans or not path.name.startswith(f"{self._party}.{self._plan}."):
                _delete(path)

    def _path(self, key: tuple[int, str], release: bytes) -> Path:
        tag = hashlib.sha256(repr(key).encode() + b"\0" + release).hexdigest()
        return self._folder / f"{self._party}.{self._plan}.{tag}"


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.error("%s of a run that is over cannot be deleted (%s); delete it.", path, error.strerror)
