"""The file of a fit that goes on: one process has it, nobody else reads it, and it is never somebody else's file."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
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
def test_a_file_that_another_process_has_is_not_read(written: bytes, tmp_path: Path) -> None:
    """Two fits of one job that begin at once would each be charged."""
    path = tmp_path / "job.run"
    path.write_bytes(written)
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process is at this run now; let it end"):
            Journal(path, {"job": "two"})
        assert os.fstat(other.fileno()).st_nlink == 1
    late = Journal(path, {"job": "two"})  # it was stopped, and had charged nothing
    assert not late.begun
    late.begin()
    late.close()
    assert Journal(path).about == {"job": "two"}


@pytest.mark.parametrize("begun", [True, False])
def test_who_comes_second_is_told_which_process_has_it_and_since_when(begun: bool, tmp_path: Path) -> None:
    path = tmp_path / "job.run"
    before = made(path) if begun else b""
    first = Journal(path)
    whose = rf"\(process {os.getpid()} on \S+, since 20\d\d-\d\d-\d\dT\S+\); let it end, or stop it first\."
    for _ in range(2):
        with pytest.raises(InputError, match=f"another process is at this run now {whose}"):
            Journal(path)
        with pytest.raises(InputError, match=whose):
            Journal(path, restart=True)
    assert path.read_bytes().startswith(before)
    first.close()
    assert path.exists() == begun  # one that nothing was charged for leaves nothing
    Journal(path).close()


@pytest.mark.slow
def test_what_a_killed_process_had_is_free(tmp_path: Path) -> None:
    path = tmp_path / "job.run"
    program = (
        "import os, signal, sys; from pathlib import Path; from sottovoce.federation.journal import Journal\n"
        "state = Journal(Path(sys.argv[1])); state.begin(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(path)], check=False).returncode == -9
    assert Journal(path).begun


@pytest.mark.parametrize("replaced", [True, False])
def test_a_file_that_went_between_opening_and_locking_is_opened_anew(
    replaced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process has ended and removed it: a lock on what has no name keeps nobody out."""
    path, lock, times = tmp_path / "job.run", Journal._lock, []
    made(path)

    def locked(self: Journal) -> None:
        if not times:
            path.unlink()
            if replaced:
                path.write_bytes(b"")
        times.append(1)
        lock(self)

    monkeypatch.setattr(Journal, "_lock", locked)
    state = Journal(path)
    assert (len(times), state.begun) == (2, False)
    with pytest.raises(InputError, match="another process"):
        Journal(path)


def test_a_file_that_is_removed_while_it_is_had_is_not_gone_on_with(tmp_path: Path) -> None:
    """Whoever removes it gives the run up, and another process may have begun since."""
    path = tmp_path / "job.run"
    first = Journal(path)
    path.unlink()
    second = Journal(path)
    with pytest.raises(InputError, match="it was removed or replaced meanwhile"):
        first.begin()
    first.close()
    assert path.exists()  # which is the other's
    second.begin()
    second.remove()
    assert not path.exists()


def test_a_disk_that_cannot_lock_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(InputError, match=r"cannot be locked \(No locks available\)"):
        Journal(tmp_path / "job.run")


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
