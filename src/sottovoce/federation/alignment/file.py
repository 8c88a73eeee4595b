"""What a party keeps of an alignment: the places of the common records in its own file. It never leaves.

A file for its holder alone, beside the records: the file itself is not rewritten. It also counts how often words of the
identifiers left, however those alignments ended.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.identifiers import Identifiers, fingerprint
from sottovoce.errors import InputError, RefusedError
from sottovoce.files import read_plain, write_durably
from sottovoce.formats import ALIGNMENT


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
        self.dates.append(_now())
        self._write()

    def keep(self, parties: Sequence[str], digest: bytes, places: NDArray[np.int64], ids: str) -> StoredAlignment:
        """Keep an alignment, durably, in the place of the one before; `ids` is the fingerprint of the list."""
        self._read()
        self.kept = StoredAlignment(tuple(parties), _now(), digest.hex(), ids, places)
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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
