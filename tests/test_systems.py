"""What other systems answer: no fcntl, no modes, no file that is open and can be removed."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sottovoce import systems
from sottovoce.errors import InputError, LedgerError, RefusedError
from sottovoce.federation.journal import Journal
from sottovoce.gate.secure_gate import UsedLabels


class Msvcrt:
    """Locks of bytes of a file, as Windows has them: each is one handle's, wherever the file is open besides."""

    LK_LOCK, LK_NBLCK = 1, 2

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], int] = {}  # by file and byte: whose
        self.waits = 0

    def locking(self, handle: int, mode: int, count: int) -> None:
        place = os.fstat(handle).st_ino, os.lseek(handle, 0, os.SEEK_CUR)
        assert count == 1
        if self.held.get(place, handle) != handle and self._lives(place):
            self.waits += mode == self.LK_LOCK
            if self.waits > 1:
                self.held.pop(place)  # it was let go
            raise OSError(errno.EDEADLK if mode == self.LK_LOCK else errno.EACCES, "locked")
        self.held[place] = handle

    def _lives(self, place: tuple[int, int]) -> bool:
        try:
            return os.fstat(self.held[place]).st_ino == place[0]
        except OSError:  # the handle was closed
            return False


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Msvcrt:
    made, unlink, opened = Msvcrt(), Path.unlink, os.open
    handles: dict[str, int] = {}

    def remembered(path: str | Path, *arguments: int, **more: int) -> int:
        handles[str(path)] = handle = opened(path, *arguments, **more)
        return handle

    def refuses(path: Path, missing_ok: bool = False) -> None:
        try:
            busy = os.fstat(handles[str(path)]).st_ino == path.stat().st_ino
        except (KeyError, OSError):
            busy = False
        if busy:
            raise PermissionError(errno.EACCES, "The process cannot access the file", str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(systems, "fcntl", None)
    monkeypatch.setattr(systems, "msvcrt", made)
    monkeypatch.setattr(systems, "POSIX", False)
    monkeypatch.setattr(os, "open", remembered)
    monkeypatch.setattr(Path, "unlink", refuses)
    monkeypatch.delattr(os, "fchmod")
    return made


def test_a_lock_is_one_handles(windows: Msvcrt, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    first, second = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    os.lseek(first, 2, os.SEEK_SET)
    systems.lock(first)
    assert os.read(first, 1) == b"c"  # and stays where it was
    with pytest.raises(BlockingIOError):
        systems.lock(second)
    systems.lock(second, wait=True)  # until it is let go
    assert windows.waits == 2
    os.close(first)
    os.close(second)


def test_an_error_that_is_no_lock_is_told(windows: Msvcrt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(windows, "locking", broken)
    handle = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    for wait in (False, True):
        with pytest.raises(OSError, match="broken"):
            systems.lock(handle, wait=wait)
    os.close(handle)


def test_a_run_is_one_process_at_a_time_and_gone_when_it_is_over(windows: Msvcrt, tmp_path: Path) -> None:
    path = tmp_path / "job.run"
    first = Journal(path, {"job": "one"})
    first.begin()
    with pytest.raises(InputError, match="another process is at this run now"):
        Journal(path, {"job": "one"})
    first.close()
    assert path.exists()
    again = Journal(path, {"job": "one"})
    again.begin()
    again.remove()
    assert not path.exists()


def test_no_label_is_used_twice(windows: Msvcrt, tmp_path: Path) -> None:
    labels = UsedLabels(tmp_path / "keys" / "labels")
    assert labels.begin()
    labels.use("a", b"1")
    labels.use("a", b"1")
    with pytest.raises(RefusedError, match="used once"):
        labels.use("a", b"2")


@pytest.mark.parametrize("of", ["run", "labels"])
def test_without_any_locks_what_needs_them_is_refused(of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "fcntl", None)
    if of == "run":
        with pytest.raises(InputError, match="cannot be locked"):
            Journal(tmp_path / "job.run", {"job": "one"})
        return
    labels = UsedLabels(tmp_path / "keys" / "labels")
    labels.begin()
    with pytest.raises(LedgerError, match="cannot be registered"):
        labels.use("a", b"1")


def test_here_a_lock_that_waits_is_had_when_the_other_ends(tmp_path: Path) -> None:
    path = tmp_path / "file"
    first, second = os.open(path, os.O_RDWR | os.O_CREAT), os.open(path, os.O_RDWR)
    systems.lock(first)
    with pytest.raises(BlockingIOError):
        systems.lock(second)
    release = threading.Timer(0.05, os.close, (first,))
    release.start()
    systems.lock(second, wait=True)
    release.join()
    os.close(second)


@pytest.mark.parametrize(("mode", "group", "found"), [(0o600, True, False), (0o640, True, True), (0o640, False, False)])
def test_who_may_read_is_asked_where_files_have_modes(
    mode: int, group: bool, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    path.touch()
    path.chmod(mode)
    assert systems.others_may_read(path, group=group) is found
    monkeypatch.setattr(systems, "POSIX", False)
    assert not systems.others_may_read(path, group=group)


@pytest.mark.parametrize("call", [systems.sync_folder, systems.make_own])
def test_what_a_system_lacks_is_left_out(
    call: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systems, "POSIX", False)
    monkeypatch.delattr(os, "fchmod")
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("a folder cannot be synced"))
    call(tmp_path if call is systems.sync_folder else 0)


def test_cores_are_counted_where_the_system_tells_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= systems.cores() <= (os.cpu_count() or 1)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert systems.cores() == os.cpu_count()
