"""Two parties and a coordinator align in this process, which then says its peak memory in KiB.

`align_many.py RECORDS FOLDER [pause|hoard]`. Points are not multiplied and are not on the curve, which has nothing to
do with memory and takes nearly all of the time. `pause`: it says so and waits once the words of all are in files.
`hoard`, a planted fault: what goes into files is kept in memory too.
"""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.data.row_file import SortedFile
from sottovoce.federation.alignment import AlignmentFile, AlignmentRun, new_terms
from sottovoce.federation.coordinator import Coordinator
from sottovoce.federation.party import Party
from sottovoce.federation.policy import Policy
from sottovoce.gate import intersection
from sottovoce.transports.base import InProcess

intersection.Workers.blinded = lambda _, __, points: points  # type: ignore[method-assign]
intersection.points_of = lambda data, _: np.frombuffer(data, dtype=np.uint8)
intersection.hashed = lambda salt, _, texts: np.frombuffer(
    b"".join([hashlib.sha256(salt + text.encode()).digest() for text in texts]), dtype=np.uint8
)


def paused(run: AlignmentRun, *told: Any) -> int:
    """Wait for the end."""
    sys.stdout.write("all words are in files\n")
    sys.stdout.flush()
    time.sleep(600)
    return 0


def hoarded(file: SortedFile, words: Any, places: Any) -> None:
    """Add a piece and keep it."""
    HOARD.extend(words.tolist())
    add(file, words, places)


HOARD: list[bytes] = []
add = SortedFile.add

if __name__ == "__main__":
    records, folder = int(sys.argv[1]), Path(sys.argv[2])
    if sys.argv[3:] == ["pause"]:
        AlignmentRun._tell = paused  # type: ignore[method-assign]
    if sys.argv[3:] == ["hoard"]:
        SortedFile.add = hoarded  # type: ignore[method-assign]
    parties = []
    for number, name in enumerate(("a", "b")):
        ids = np.arange(records) + number * (records // 2)
        policy = Policy(align=("a", "b"))
        file = AlignmentFile(folder / f"{name}.aligned")
        parties.append(Party(name, np.zeros((records, 1)), None, ids=ids, policy=policy, aligned=file))
    found = Coordinator(InProcess(parties)).align(new_terms(("a", "b")))
    assert found.common == records - records // 2
    kept, other = (party.aligner.file.kept for party in parties)
    assert kept is not None
    assert other is not None
    assert np.array_equal(kept.places, other.places + records // 2)  # the same people
    status = Path("/proc/self/status").read_text(encoding="ascii")  # of this program alone; ru_maxrss has its parent's
    sys.stdout.write(status.split("VmHWM:")[1].split()[0] + "\n")
