"""Which labels of masks an end has used in one run: on disk beside its ledger, if it has one.

    a line   SHA-256 of the label, SHA-256 of the box that left under it

A pad on two messages shows their difference. What a process has in memory goes back with it where a machine is set
back, copied or forked; the disk that all these lives share does not.
"""

from __future__ import annotations

import errno
import hashlib
import os
from io import FileIO
from pathlib import Path
from typing import Final

from sottovoce.errors import LedgerError, RefusedError
from sottovoce.files import write_durably

try:
    import fcntl
except ImportError:  # pragma: no cover  # not on every system
    fcntl = None  # type: ignore[assignment]

_NAME: Final = 64  # bytes of the hash of a label
_LINE: Final = 2 * _NAME + 2


class UsedLabels:
    """The labels that were used in one run: a file that is there as long as the run lasts; without a path, in memory.

    Guarantee: when `use` returns, the label is on disk with the hash of what may leave under it. Anything else under
    that label is refused, whichever process, fork or copy of the party asks; so is every label once the file is gone.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._known: dict[bytes, bytes] = {}  # lines by label, without a path

    def begin(self) -> bool:
        """Have the file; whether it is new. A run that has one was begun by an earlier life, or a copy, of this one."""
        if self.path is None:
            return True
        try:
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            write_durably(self.path, b"", mode=0o600, replace=False)
        except FileExistsError as error:
            if not self.path.parent.is_dir():
                raise self._unwritable(error) from None
            return False
        except OSError as error:
            raise self._unwritable(error) from None
        return True

    def end(self) -> None:
        """Nothing is masked in this run any more."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def use(self, label: str, content: bytes) -> None:
        """Register a label and what is about to leave under it, durably."""
        line = b"%s %s\n" % tuple(hashlib.sha256(data).hexdigest().encode() for data in (label.encode(), content))
        if self.path is None:
            if self._known.setdefault(line[:_NAME], line) != line:
                raise _other_content()
            return
        try:
            with self.path.open("r+b", buffering=0) as file:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
                if not os.fstat(file.fileno()).st_nlink:
                    raise FileNotFoundError
                self._register(file, line)
        except FileNotFoundError:
            raise RefusedError("the run of this plan is over, and nothing is masked in it any more.") from None
        except OSError as error:
            raise self._unwritable(error) from None

    def _register(self, file: FileIO, line: bytes) -> None:
        data = file.read()
        whole = len(data) - len(data) % _LINE  # a line that was torn was not synced: nothing left under it
        for start in range(0, whole, _LINE):
            if data.startswith(line[:_NAME], start):
                if data[start : start + _LINE] != line:
                    raise _other_content()
                return
        file.truncate(whole)
        file.seek(whole)
        if file.write(line) < _LINE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())

    def _unwritable(self, error: OSError) -> LedgerError:
        return LedgerError(
            f"{self.path}: used labels cannot be registered ({error.strerror}), and nothing is masked without it. See "
            "that the disk has room, and that this user may write beside the ledger."
        )


def ran_before() -> RefusedError:
    """What a plan is answered with whose run is over."""
    return RefusedError("this plan was run before, and a party over sealed columns runs a plan once; start a new fit.")


def _other_content() -> RefusedError:
    return RefusedError("something else was masked under this label, and a mask is used once.")
