"""What a solver keeps on disk: as it was written, or nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sottovoce.gate.gate import Memory

KEY, RELEASE = (1, "gradient"), b"a release"


def memory(folder: Path) -> Memory:
    return Memory(folder / "ledger.db", "north", b"p" * 32, b"r" * 32)


def test_a_damaged_file_is_no_state_and_no_failure(tmp_path: Path) -> None:
    duals = np.arange(3.0)
    memory(tmp_path).write({"duals": duals}, KEY, RELEASE)
    [path] = (tmp_path / "ledger.db.memory").iterdir()
    whole, lost = path.read_bytes(), 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x01]) + whole[place + 1 :])
        found = memory(tmp_path).read(KEY, RELEASE)
        lost += found is None
        assert found is None or np.array_equal(found["duals"], duals)
    assert lost > len(whole) / 2
