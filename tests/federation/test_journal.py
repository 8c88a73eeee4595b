"""The file of a fit that goes on: one process has it, nobody else reads it, and it is never somebody else's file."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from sottovoce.errors import InputError
from sottovoce.federation import journal
from sottovoce.federation.journal import Journal


def made(path: Path) -> bytes:
    """A file that was begun; what it has."""
    state = Journal(path, {"job": "one"})
    state.begin()
    state.close()
    return path.read_bytes()


@pytest.mark.parametrize("written", [b"", journal._MAGIC[:5], journal._MAGIC])
def test_a_file_that_another_process_is_making_stays_its_own(written: bytes, tmp_path: Path) -> None:
    """Two fits of one job that begin at once would each be charged."""
    path = tmp_path / "job.run"
    path.write_bytes(written)
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        late = Journal(path, {"job": "two"})
        assert not late.begun
        with pytest.raises(InputError, match="another process"):
            late.begin()
        assert os.fstat(other.fileno()).st_nlink == 1
    late = Journal(path, {"job": "two"})  # it was stopped: what it had charged nothing
    late.begin()
    late.close()
    assert Journal(path).about == {"job": "two"}


def test_a_file_that_was_given_up_meanwhile_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.run"
    made(path)
    state = Journal(path)
    monkeypatch.setattr(Journal, "_lock", lambda _: path.unlink())  # between opening and locking
    with pytest.raises(InputError, match="another process was at it"):
        state.begin()


def test_a_file_that_was_put_back_is_its_owners_alone_again(tmp_path: Path) -> None:
    path = tmp_path / "job.run"
    made(path)
    path.chmod(0o644)
    state = Journal(path)
    state.begin()
    assert path.stat().st_mode & 0o777 == 0o600
    state.remove()
    assert not path.exists()


@pytest.mark.parametrize("there", [True, False])
def test_a_link_in_its_place_is_not_followed(there: bool, tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "job.run", tmp_path / "elsewhere"
    before = made(elsewhere) if there else b""
    path.symlink_to(elsewhere)
    with pytest.raises(InputError, match="cannot be read"):
        Journal(path)
    assert elsewhere.exists() is there
    assert not there or elsewhere.read_bytes() == before


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "job.run"
    os.mkfifo(path)
    with pytest.raises(InputError, match="no plain file"):
        Journal(path)
