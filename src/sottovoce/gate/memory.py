"""What a solver keeps at a holder between rounds, on disk beside the ledger, so that a run goes on after a restart.

Each state is a file whose name is the hash of the release that it belongs to. It is written before that release is
stored, and the one before it is deleted afterwards: whichever release the ledger has last, its state is there. It says
of which records it is, in which order: a dual that met another record than its own would be of two people. Rows with
noise, which a run draws once, are a file of their own until the run is over.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sottovoce.files import write_durably

_log = logging.getLogger("sottovoce.holder")

# What a damaged file can raise: by its bits it may be encrypted, or of a kind of compression that nobody has.
_UNREADABLE: Final = (OSError, ValueError, EOFError, LookupError, RuntimeError, zipfile.BadZipFile, zlib.error)
_RECORDS: Final = "records"  # the array of a file that has their digest


class Memory:
    """What a party remembers of the run of one plan, in files that only its holder reads.

    Guarantee: `read` gives the state that was written with a release, for the same records in the same order, or
    nothing; a state whose release was never stored has a name that no release has. Proof: `proofs/gate.md`.
    """

    def __init__(self, ledger: Path, party: str, plan: bytes, records: bytes = b"") -> None:
        self._folder = ledger.with_name(f"{ledger.name}.memory")
        self._party = hashlib.sha256(party.encode()).hexdigest()[:32]
        self._plan = plan.hex()
        self._records = np.frombuffer(records, dtype=np.uint8)
        self._last: Path | None = None  # of the last release that was stored
        self._next: Path | None = None

    def write(self, state: Mapping[str, NDArray[Any]], key: tuple[int, str], release: bytes) -> None:
        """Keep the state after a release that is about to be stored, durably."""
        self._next = self._path(key, release)
        self._write(self._next, self._packed(state))

    def settle(self) -> None:
        """The release is stored: the state before it is not needed any more."""
        before, self._last, self._next = self._last, self._next, None
        if before is not None and before != self._last:
            _delete(before)

    def read(self, key: tuple[int, str], release: bytes) -> dict[str, NDArray[Any]] | None:
        """The state that belongs to a stored release; None if it is lost, or of other records."""
        path, state = self._path(key, release), None
        with contextlib.suppress(*_UNREADABLE):
            state = self._unpacked(path.read_bytes())
        if state is not None:
            self._last = path
        return state

    def write_rows(self, rows: NDArray[np.float32]) -> bytes:
        """Keep noisy rows for the whole run, durably; the SHA-256 of their file, by which they are read again."""
        data = self._packed({"rows": rows})
        digest = hashlib.sha256(data).digest()
        self._write(self._file(digest), data)
        return digest

    def read_rows(self, digest: bytes) -> NDArray[np.float32] | None:
        """The noisy rows of a file with that SHA-256; None if it is lost, or of other records."""
        with contextlib.suppress(*_UNREADABLE):
            data = self._file(digest).read_bytes()
            if hashlib.sha256(data).digest() == digest and (found := self._unpacked(data)) is not None:
                return found["rows"]
        return None

    def follows(self, last: tuple[int, str, bytes] | None) -> bool:
        """Whether the state of this process is that after the last release that was stored, by whatever process."""
        return self._last == (None if last is None else self._path(last[:2], last[2]))

    def clear(self, *, own: bool, others: bool) -> None:
        """Delete what this party remembers of this plan, and what it remembers of all others."""
        for path in self._folder.glob(f"{self._party}.*"):
            if own if path.name.startswith(f"{self._party}.{self._plan}.") else others:
                _delete(path)

    def _path(self, key: tuple[int, str], release: bytes) -> Path:
        return self._file(hashlib.sha256(repr(key).encode() + b"\0" + release).digest())

    def _file(self, digest: bytes) -> Path:
        return self._folder / f"{self._party}.{self._plan}.{digest.hex()}"

    def _write(self, path: Path, data: bytes) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_durably(path, data, mode=0o600)

    def _packed(self, arrays: Mapping[str, NDArray[Any]]) -> bytes:
        data = io.BytesIO()
        np.savez(data, **arrays, **{_RECORDS: self._records})  # type: ignore[arg-type]  # of arrays alone
        return data.getvalue()

    def _unpacked(self, data: bytes) -> dict[str, NDArray[Any]] | None:
        with np.load(io.BytesIO(data), allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
        return arrays if np.array_equal(arrays.pop(_RECORDS, np.zeros(1)), self._records) else None


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.error("%s of a run that is over cannot be deleted (%s); delete it.", path, error.strerror)
