"""Files that are written whole or not at all, and that last; and files of others, which are read or refused."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, TextIO

import tomli_w

from sottovoce import systems
from sottovoce.errors import InputError
from sottovoce.systems import sync_folder

# What systems say of a disk on which a file has one name.
_NO_LINKS: Final = {errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
# Limits of data files, told in docs/operations.md: a longer line is a null row, more columns are refused by the header.
LONGEST_LINE: Final = 1 << 24  # bytes
MOST_COLUMNS: Final = 100_000  # of CSV and Parquet files
MOST_FEATURES: Final = 1 << 22  # of LIBSVM files, and of what a job declares
# What ledgers begin with, and what SQLite has beside one while it changes it.
_LEDGER: Final = (b"SQLite format 3\0", b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7")


def check_plain(path: Path) -> None:
    """Raise an OSError unless `path` is a plain file: to open a pipe is to wait for whoever writes to it."""
    try:
        mode = path.stat().st_mode
    except ValueError:
        raise OSError(errno.EINVAL, "its name has a character that no name has") from None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device, and no plain file")


def read_plain(path: Path) -> bytes:
    """The bytes of a plain file; an OSError of anything else."""
    check_plain(path)
    return path.read_bytes()


def check_no_ledger(path: Path) -> None:
    """Raise an `InputError` if a ledger is at `path`, whatever its name: nothing takes its place or is added to it.

    Whatever replaces a file, or appends to one, asks this before. An OSError of a file that cannot be read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return
        with path.open("rb") as file:
            start = file.read(16)
    except FileNotFoundError:
        return
    if start.startswith(_LEDGER):
        raise InputError(f"{path} is a ledger, and nothing is written over one or into it; give another path.")


def open_to_append(path: Path, mode: int = 0o666) -> TextIO:
    """A file that lines are added to, made if there is none."""
    check_no_ledger(path)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, mode), "a", encoding="utf-8")


def parse_file(path: Path, parse: Callable[[str], Any], what: str, remedy: str) -> Any:
    """What `parse` makes of a text file, `what` it must be; whatever is wrong with the file is an `InputError`."""
    try:
        return parse(read_plain(path).decode("utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); {remedy}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not {what}: it is not UTF-8 text; {remedy}") from None
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} is not {what}: {str(error).rstrip('.')}; {remedy}") from None
    except ValueError:
        raise InputError(f"{path} is not {what}: it has a number of too many digits; {remedy}") from None
    except RecursionError:
        raise InputError(f"{path} is not {what}: it is nested too deep; {remedy}") from None


def toml_key(name: str) -> str:
    """A key of TOML: in quotes unless it is a plain word.

    >>> toml_key("north"), toml_key("north.example")
    ('north', '"north.example"')
    """
    return tomli_w.dumps({name: 0}).removesuffix(" = 0\n")


def toml_value(value: Any) -> str:
    """A value of TOML, in one line.

    >>> toml_value({"range": [0, 1.5], "missing": True})
    '{ range = [0, 1.5], missing = true }'
    """
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{toml_key(key)} = {toml_value(item)}' for key, item in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return tomli_w.dumps({"_": value}).removeprefix("_ = ").removesuffix("\n")


def check_writable(path: Path, what: str, *, overwrite: bool = True) -> None:
    """Raise unless a file could be written at `path` now. Asked before a fit, so that no budget is spent in vain.

    An empty file is written beside it in the way in which it will be, and removed.
    """
    try:
        if path.is_dir():
            raise InputError(f"{what}={str(path)!r} is a folder; name a file in it.")
        check_no_ledger(path)
        if not overwrite and path.exists():
            raise _there_already(path, what)
        _write_beside(path, b"", mode=0o600, replace=overwrite, trial=True)
    except OSError as error:
        raise _unwritable(path, what, error) from None


def write_text(path: Path, text: str, what: str, *, overwrite: bool = True, mode: int = 0o666) -> None:
    """Write `path` in one step: a reader, or a crash, finds the old text, or none, or the new one.

    Edge: where a file has one name at a time, one that is not to replace another may be found empty.
    """
    write_data(path, text.encode(), what, overwrite=overwrite, mode=mode)


def write_data(path: Path, data: bytes, what: str, *, overwrite: bool = True, mode: int = 0o666) -> None:
    """The same for bytes."""
    try:
        _write_beside(path, data, mode=mode, replace=overwrite)
    except FileExistsError:
        raise _there_already(path, what) from None
    except OSError as error:
        raise _unwritable(path, what, error) from None
    with contextlib.suppress(OSError):  # the text is there; a folder that this user cannot read is no failure
        sync_folder(path.parent)


@contextlib.contextmanager
def write_stream(path: Path, what: str, overwrite: bool = True) -> Iterator[IO[str]]:
    """A file for a long text, which is in its place, whole, when the block has ended, and nowhere if it fails."""
    temporary = _beside(path)
    try:
        with temporary.open("x", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _name(temporary, path, replace=overwrite)
    except FileExistsError:
        raise _there_already(path, what) from None
    except OSError as error:
        raise _unwritable(path, what, error) from None
    finally:
        temporary.unlink(missing_ok=True)


def write_durably(path: Path, data: bytes, *, mode: int = 0o600, replace: bool = True) -> None:
    """Make `data` the content of `path` in one step, so that it lasts: written beside, synced, renamed, folder synced.

    Guarantee: a reader, or a crash at any moment, finds the file from before or the new one, whole. The data never have
    a wider mode than `mode` less the umask, not even while they are written. After the return they outlive a crash
    of the machine, as far as its disk keeps what it confirms.
    Edges: with `replace=False` a file that is there stays as it is, and FileExistsError is raised. On a disk without
    hard links a crash may then leave an empty file, which counts as none (`is_there`): whoever writes next takes it.
    Any OSError is the caller's, who knows what the file is for. A process that is killed leaves at most
    `<name>.<16 letters>.new` behind.
    """
    _write_beside(path, data, mode=mode, replace=replace)
    sync_folder(path.parent)


def _write_beside(path: Path, data: bytes, *, mode: int, replace: bool, trial: bool = False) -> None:
    """Write a file and give it its name, or, as a `trial`, another one in the same folder, and remove it."""
    temporary, name = _beside(path), _beside(path) if trial else path
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _name(temporary, name, replace=replace)
    finally:
        temporary.unlink(missing_ok=True)
        if trial:
            name.unlink(missing_ok=True)


def is_there(path: Path) -> bool:
    """Whether a file was written; an empty one is a name that a process took before it was stopped."""
    return path.exists() and path.stat().st_size > 0


def _name(temporary: Path, path: Path, *, replace: bool) -> None:
    """Give a file its name; unless it is to `replace` one that has it, FileExistsError is raised."""
    if replace:
        check_no_ledger(path)
        temporary.replace(path)
        return
    try:
        os.link(temporary, path)  # unlike a renaming, this never replaces a file
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with _take_name(path):
            temporary.replace(path)


@contextlib.contextmanager
def _take_name(path: Path) -> Iterator[None]:
    """Take a name by an empty file that is locked, or raise FileExistsError; one without a lock was left behind."""
    try:
        handle, new = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), True
    except FileExistsError:
        if path.is_symlink() or path.stat().st_size:
            raise
        handle, new = os.open(path, os.O_WRONLY), False
    try:
        _lock(handle, path, new=new)
        try:
            yield
        except OSError:
            path.unlink(missing_ok=True)
            raise
    finally:
        os.close(handle)


def _lock(handle: int, path: Path, *, new: bool) -> None:
    """Lock the empty file that has a name, until it is closed."""
    try:
        systems.lock(handle)
    except OSError as error:
        if new and not isinstance(error, BlockingIOError):  # a disk without locks: the name was free
            return
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
    mine = os.fstat(handle)
    if mine.st_size or not (path.exists() and os.path.samestat(mine, path.stat())):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))


def _beside(path: Path) -> Path:
    """A name that nobody else uses, in the same folder and hence on the same disk."""
    return path.with_name(f"{path.name}.{os.urandom(8).hex()}.new")


def _there_already(path: Path, what: str) -> InputError:
    return InputError(f"{what}={str(path)!r} is there already; give another path, or --overwrite to replace it.")


def _unwritable(path: Path, what: str, error: OSError) -> InputError:
    return InputError(
        f"{what}={str(path)!r} cannot be written ({error.strerror}); give a path in a folder that exists and "
        "that this user may write."
    )
