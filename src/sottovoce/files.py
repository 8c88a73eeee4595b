"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from sottovoce.errors import InputError


def check_writable(path: Path, what: str) -> None:
    """Raise unless a file could be written at `path` now. Asked before a fit, so that no budget is spent in vain."""
    try:
        if path.is_dir():
            raise InputError(f"{what}={str(path)!r} is a folder; name a file in it.")
        _temporary(path).write_bytes(b"")
        _temporary(path).unlink()
    except OSError as error:
        raise _unwritable(path, what, error) from None


def write_text(path: Path, text: str, what: str) -> None:
    """Replace `path` in one step: a reader, or a crash, finds the old text or the new one."""
    try:
        _temporary(path).write_text(text, encoding="utf-8")
        _temporary(path).replace(path)
    except OSError as error:
        raise _unwritable(path, what, error) from None


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.new")


def _unwritable(path: Path, what: str, error: OSError) -> InputError:
    return InputError(
        f"{what}={str(path)!r} cannot be written ({error.strerror}); give a path in a folder that exists and "
        "that this user may write."
    )
