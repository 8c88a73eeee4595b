from __future__ import annotations

import ast
import errno
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sottovoce
from sottovoce import files, systems
from sottovoce.errors import InputError, LedgerError
from sottovoce.files import (
    check_writable,
    is_there,
    open_to_append,
    sync_folder,
    write_data,
    write_durably,
    write_stream,
    write_text,
)
from sottovoce.privacy.ledger import Ledger


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_a_file_is_its_owners_alone_unless_told_otherwise(tmp_path: Path) -> None:
    for number, (options, mode) in enumerate([({}, 0o600), ({"mode": 0o644}, 0o644), ({"replace": False}, 0o600)]):
        path = tmp_path / str(number)
        write_durably(path, b"new", **options)  # type: ignore[arg-type]
        assert path.read_bytes() == b"new"
        assert mode_of(path) == mode
    write_text(tmp_path / "text", "für", "output.page")
    assert (tmp_path / "text").read_text(encoding="utf-8") == "für"
    assert mode_of(tmp_path / "text") == 0o644


def test_a_file_that_is_there_is_replaced_with_its_mode_or_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(FileExistsError):
        write_durably(path, b"new", replace=False)
    assert only_file(tmp_path).read_bytes() == b"old"
    write_durably(path, b"new")
    assert only_file(tmp_path).read_bytes() == b"new"
    assert mode_of(path) == 0o600


@pytest.mark.parametrize("replace", [True, False])
def test_the_data_then_the_name_then_the_folder_become_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: bool
) -> None:
    path, seen = tmp_path / "file", []
    real = os.fsync

    def watched(handle: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "data"
        seen.append((kind, os.fstat(handle).st_size if kind == "data" else None, path.exists()))
        real(handle)

    monkeypatch.setattr(os, "fsync", watched)
    write_durably(path, b"data", replace=replace)
    assert seen == [("data", 4, False), ("folder", None, True)]


@pytest.mark.parametrize("call", ["fsync", "link", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "file"
    write_durably(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path if call == "replace" else os, call, full)
    with pytest.raises(OSError, match="No space left"):
        write_durably(path, b"new", replace=call != "link")
    assert only_file(tmp_path).read_bytes() == b"old"
    if call != "link":
        with pytest.raises(InputError, match=r"page=.* cannot be written \(No space left on device\)"):
            write_text(path, "new", "page")
        assert only_file(tmp_path).read_bytes() == b"old"


ONE_NAME = [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK]  # FAT, CIFS, FUSE, and too many


def without_links(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A disk on which a file has one name."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refused)


@pytest.mark.parametrize("number", ONE_NAME)
def test_without_hard_links_files_are_written_and_none_is_replaced(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_links(monkeypatch, number)
    check_writable(tmp_path / "page", "output.page", overwrite=False)
    assert list(tmp_path.iterdir()) == []
    write_text(tmp_path / "page", "first", "output.page", overwrite=False)
    assert mode_of(tmp_path / "page") == 0o644
    with pytest.raises(InputError, match="is there already"):
        write_text(tmp_path / "page", "second", "output.page", overwrite=False)
    with (
        pytest.raises(InputError, match="is there already"),
        write_stream(tmp_path / "page", "--output", False) as file,
    ):
        file.write("third")
    with pytest.raises(FileExistsError):
        write_durably(tmp_path / "page", b"fourth", replace=False)
    assert only_file(tmp_path).read_text() == "first"
    Ledger.create(tmp_path / "budget.ledger").open("people", epsilon=1.0, delta=1e-5)
    with pytest.raises(LedgerError, match="there is a file already"):
        Ledger.create(tmp_path / "budget.ledger")
    assert Ledger(tmp_path / "budget.ledger").account().balance().left > 0


class Killed(BaseException):
    """A process ends here."""


def test_without_hard_links_a_name_that_a_killed_process_took_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_links(monkeypatch, errno.EPERM)

    def killed(*_: object) -> None:
        raise Killed

    def write(name: str) -> None:
        write_durably(tmp_path / name, b"new", replace=False)

    for name in ("file", "other", "own"):
        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", killed)
            with pytest.raises(Killed):
                write(name)
        assert (tmp_path / name).read_bytes() == b""
        assert not is_there(tmp_path / name)
    write("file")
    assert (tmp_path / "file").read_bytes() == b"new"
    with files._take_name(tmp_path / "other"), pytest.raises(FileExistsError):  # somebody is at it
        write("other")
    assert (tmp_path / "other").read_bytes() == b""
    monkeypatch.setattr(systems, "fcntl", None)  # without locks nobody knows
    with pytest.raises(FileExistsError):
        write("own")


@pytest.mark.parametrize("call", ["replace", "open"])
def test_without_hard_links_a_failure_leaves_nothing(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_links(monkeypatch, errno.EPERM)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if call == "replace":
        monkeypatch.setattr(Path, "replace", full)
    else:
        real = os.open
        monkeypatch.setattr(os, "open", lambda path, *more: full() if path == tmp_path / "file" else real(path, *more))
    with pytest.raises(OSError, match="No space left"):
        write_durably(tmp_path / "file", b"new", replace=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["link", "replace", "fsync"])
def test_what_would_fail_when_it_is_written_fails_when_it_is_checked(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of the writing is tried; one that is not, as a renaming here before, is found after the charge."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path if call == "replace" else os, call, refused)
    for act in (
        lambda: check_writable(tmp_path / "page", "output.page", overwrite=call == "replace"),
        lambda: write_text(tmp_path / "page", "text", "output.page", overwrite=call == "replace"),
    ):
        with pytest.raises(InputError, match=r"output\.page=.* cannot be written \(Input/output error\)"):
            act()
        assert list(tmp_path.iterdir()) == []


def linking(source: str) -> list[str]:
    """The functions that give a file a second name."""
    return [
        function.name
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Attribute) and call.attr in ("link", "hardlink_to", "link_to")
    ]


@pytest.mark.slow
def test_names_are_given_in_one_place() -> None:
    package = Path(sottovoce.__file__).parent
    found = {path.relative_to(package).as_posix(): linking(path.read_text()) for path in package.rglob("*.py")}
    assert {path: names for path, names in found.items() if names} == {"files.py": ["_name"]}
    assert linking("def place():\n    os.link(a, b)\n") == ["place"]  # planted


def test_a_folder_that_cannot_be_synced_is_told_where_it_matters_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a fit has paid for is not thrown away: the text is in its place."""

    def refused(folder: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("sottovoce.files.sync_folder", refused)
    write_text(tmp_path / "page", "text", "output.page")
    assert (tmp_path / "page").read_text() == "text"
    with pytest.raises(PermissionError):
        write_durably(tmp_path / "rows", b"data")


def test_a_killed_writer_leaves_the_old_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_durably(path, b"old")
    program = (
        "import os, signal, sys; from pathlib import Path; from sottovoce.files import write_durably\n"
        "Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_durably(Path(sys.argv[1]), b'new')"
    )
    assert subprocess.run([sys.executable, "-c", program, str(path)], check=False).returncode == -9
    assert path.read_bytes() == b"old"
    (left,) = set(tmp_path.iterdir()) - {path}
    assert left.name.startswith("file.")
    assert left.name.endswith(".new")
    assert mode_of(left) == 0o600


def test_what_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    check_writable(tmp_path / "file", "output.page")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match=r"output\.page=.* is a folder; name a file in it"):
        check_writable(tmp_path, "output.page")
    with pytest.raises(InputError, match=r"cannot be written \(No such file or directory\); give a path"):
        check_writable(tmp_path / "none" / "file", "output.page")
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "none")


def long_text(path: Path) -> None:
    with write_stream(path, "--output") as file:
        file.write("text")


WRITERS: dict[str, Callable[[Path], object]] = {
    "write_text": lambda path: write_text(path, "text", "--output"),
    "write_data": lambda path: write_data(path, b"data", "--output"),
    "write_durably": lambda path: write_durably(path, b"data"),
    "written": long_text,
    "appended": lambda path: open_to_append(path).close(),
    "check_writable": lambda path: check_writable(path, "--output"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_no_writer_replaces_a_ledger_or_adds_to_it(
    writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its name, and by whatever name it is reached; nor what SQLite needs to set one right."""
    ledger, linked, second = tmp_path / "page.html", tmp_path / "link.html", tmp_path / "second.html"
    Ledger.create(ledger).open("people", epsilon=1.0, delta=1e-5)
    linked.symlink_to(ledger)
    os.link(ledger, second)
    journal = tmp_path / "page.html-journal"
    journal.write_bytes(bytes.fromhex("d9d505f920a163d7") + bytes(504))
    before = ledger.read_bytes()
    for path in (ledger, linked, second, journal):
        with pytest.raises(InputError, match=rf"{re.escape(str(path))} is a ledger, and nothing is written over one"):
            WRITERS[writer](path)
        assert linked.is_symlink()
        assert ledger.read_bytes() == second.read_bytes() == before
    journal.unlink()
    assert Ledger(ledger).verify() == 1
    assert set(tmp_path.iterdir()) == {ledger, linked, second}
    monkeypatch.setattr("sottovoce.files.check_no_ledger", lambda path: None)  # planted: a writer that does not ask
    WRITERS[writer](ledger)


# Beside `files.py`, which asks. What these write to is not a path that somebody gave, or is new, or is told otherwise.
WRITING = {
    "app/page.py": {"svg_of"},  # into memory
    "app/demo.py": {"_clear_folder", "_prepare", "_start_clinics"},  # in its own folder, which it has just made
    "app/provisioning.py": {"make_sites", "_make"},  # folders and keys that it has just made
    "app/view/server.py": {"read_token"},  # a new file
    "data/resources.py": {"open_scratch"},  # a new file without a name
    "gate/secure_gate.py": {"_register"},  # a file that it has made new
    "estimators/plots.py": {"picture"},  # into memory
    "federation/journal.py": {"_have"},  # a file that begins as states of runs do
    "lab/audit/runner.py": {"plot"},  # asks
    "lab/dataset_files.py": {"_with_header"},  # in a temporary folder
    "lab/datasets.py": {"fetch"},  # in the folder of public data
    "transports/probe.py": {"_as_file"},  # in a temporary folder
}
METHODS = {"savefig", "rename", "write_bytes", "write_text", "tofile", "to_csv", "to_parquet", "write_table"}


def writes(call: ast.Call) -> bool:
    """Whether a call opens a file to write to it, or puts one in the place of another."""
    said, method = ast.unparse(call), isinstance(call.func, ast.Attribute)
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    if name == "open":
        given = [
            each.value for each in (*call.args, *(key.value for key in call.keywords)) if type(each) is ast.Constant
        ]
        modes = [each for each in given if isinstance(each, str) and re.fullmatch(r"[rwaxbt+]{1,3}", each)]
        return "O_WRONLY" in said or "O_RDWR" in said or any(set(mode) & set("wax+") for mode in modes)
    if name == "replace":
        return said.startswith("os.") or (method and len(call.args) == 1 and not call.keywords)
    return (method and name in METHODS) or re.match(r"shutil\.(copy|move)", said) is not None


def writing(source: str) -> set[str]:
    """The functions that write to files otherwise than by `files.py`."""
    return {
        function.name
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and writes(call)
    }


@pytest.mark.slow
def test_files_are_written_in_one_place() -> None:
    package = Path(sottovoce.__file__).parent
    found = {path.relative_to(package).as_posix(): writing(path.read_text()) for path in package.rglob("*.py")}
    del found["files.py"]
    assert {path: names for path, names in found.items() if names} == WRITING
    for line in (  # planted
        "path.open('a', encoding='utf-8')",
        "open(path, 'w')",
        "path.open(mode='r+b')",
        "os.open(path, os.O_RDWR | os.O_APPEND)",
        "figure.savefig(path)",
        "path.write_text(text)",
        "shutil.copyfile(other, path)",
        "temporary.replace(path)",
        "os.replace(temporary, path)",
    ):
        assert writing(f"def place():\n    {line}\n") == {"place"}, line
    assert writing("def read():\n    path.open('rb'); path.open(); text.replace('a', 'b'); replace(a, b=1)\n") == set()
