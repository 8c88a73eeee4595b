"""The file under a ledger: one append-only SQLite table whose entries are chained by SHA-256.

entry.hash = SHA-256(entry's content, SHA-256 of its payload, the hash of the entry before)

An opening, a reservation and a release are all entries of that one table, so an account is what its entries
say and there is no second copy that could disagree with them.

A commit returns only when the disk has it (rollback journal, `synchronous=EXTRA`), and a process killed
before that leaves the file as it was. Every call opens its own connection and closes it, so that handles can
be pickled, and shared between threads and forked processes.

The first call of a process checks the whole file: SQLite's own structures, then every entry. The process keeps each
entry's key, number and hash, and from then on looks nothing up in the file's index: what is not among the keys that it
keeps was never written, and an entry that is read has the hash that it keeps. When the file is no longer as the process
left it, it is checked again: all of it, or what others appended. Proof: proofs/ledger.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from sottovoce.errors import LedgerError
from sottovoce.files import write_durably
from sottovoce.formats import LEDGER

APPLICATION: Final = 0x736F7474  # "sott": tells a ledger from other SQLite files
BUSY_SECONDS: Final = 60.0
GENESIS: Final = "0" * 64

_SCHEMA: Final = f"""
CREATE TABLE entries (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, dataset TEXT NOT NULL, plan TEXT NOT NULL,
    round INTEGER NOT NULL, query TEXT NOT NULL, details TEXT NOT NULL, payload BLOB NOT NULL,
    written TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL);
CREATE UNIQUE INDEX entry_key ON entries (kind, dataset, plan, round, query);
CREATE TRIGGER no_update BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'a ledger only grows'); END;
CREATE TRIGGER no_delete BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'a ledger only grows'); END;
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {LEDGER.number};
"""


class EntryRow(NamedTuple):
    """One entry as it stands in the file. An opening has no plan, a reservation no query, both no payload."""

    number: int
    kind: str
    dataset: str
    plan: str
    round: int
    query: str
    details: str
    payload: bytes
    written: str
    previous: str
    hash: str

    def expected_hash(self) -> str:
        """SHA-256 of everything in the entry but the hash itself."""
        payload_hash = hashlib.sha256(self.payload).hexdigest() if isinstance(self.payload, bytes) else None
        # A damaged cell can have any type: repr keeps it hashable, and the hash then differs.
        content = json.dumps([*self[:7], payload_hash, self.written, self.previous], default=repr)
        return hashlib.sha256(content.encode()).hexdigest()


def broken_entry(path: Path, row: EntryRow, what: str) -> LedgerError:
    """The error that names an entry which cannot be trusted."""
    return LedgerError(
        f"ledger {path}: entry {row.number} ({row.kind}, {row.dataset!r}) cannot be trusted: {what}. "
        "Nothing more is spent from this file: restore a copy that verifies, or treat the budget as spent."
    )


def create_file(path: Path) -> None:
    """Make the file, durably and whole, readable by its owner alone. A path that is taken is left as it is."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(_SCHEMA)
    empty = connection.serialize()
    connection.close()
    try:
        write_durably(path, empty, mode=0o600, replace=False)
    except FileExistsError:
        raise LedgerError(
            f"ledger {path}: there is a file already, and making a ledger never replaces one. Open it with "
            "Ledger(path) or `sottovoce ledger open`, or give another path."
        ) from None
    except OSError as error:
        raise LedgerError(
            f"ledger {path} cannot be made: {error.strerror}. Give a path in a folder that exists and "
            "that this user may write."
        ) from error
    with _turn(path):
        _KNOWN.pop(path, None)


@contextmanager
def _open_ledger(path: Path) -> Iterator[sqlite3.Connection]:
    # mode=rw: a mistyped path is an error, never a fresh ledger with a full budget.
    connection = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        # A damaged text must fail its hash, not the decoder.
        connection.text_factory = lambda text: text.decode(errors="backslashreplace")
        connection.execute("PRAGMA synchronous = EXTRA")
        if connection.execute("PRAGMA journal_mode = DELETE").fetchone()[0] != "delete":
            raise LedgerError(f"ledger {path}: another program holds it in another journal mode. Close it first.")
        yield connection
    finally:
        connection.close()


_CAUSES: Final = {
    sqlite3.SQLITE_NOTADB: "not a SQLite file. Give the path of a ledger, or restore a copy",
    sqlite3.SQLITE_CORRUPT: "the file is damaged. Restore a copy that verifies, or treat the budget as spent",
    sqlite3.SQLITE_CANTOPEN: "there is no such file, or it may not be opened. Check the path and permissions",
    sqlite3.SQLITE_READONLY: "the file or its folder may not be written. Check the permissions",
    sqlite3.SQLITE_BUSY: "another process kept it locked too long. Try again",
    sqlite3.SQLITE_FULL: "the disk is full. Free some space and try again",
}


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:  # SQLite quotes a damaged text in its own message
        raise _damaged(path, "the file is damaged (its schema is no text)") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_CANTOPEN and path.parent.is_dir() and not path.exists():
            raise LedgerError(
                f"ledger {path}: there is no such file. If there was one, restore a copy that verifies: a new one "
                f"would forget what was spent. Else make it: sottovoce ledger create {path.name} --dataset NAME "
                "--epsilon E --delta D, or Ledger.create(path).open(...). Nothing was released."
            ) from error
        cause = _CAUSES.get(code, "it cannot be read or written; check the disk and the permissions")
        raise LedgerError(f"ledger {path}: {cause} (SQLite says: {error}). Nothing was released.") from error


class Key(NamedTuple):
    """What an entry is about: at most one entry has a key."""

    kind: str
    dataset: str
    plan: str = ""
    round: int = 0
    query: str = ""


@dataclass
class _Known:
    """What this process has checked of a file and keeps in mind: its state on disk, and of each entry key and hash."""

    state: tuple[int, ...] = ()
    hashes: list[str] = field(default_factory=list)  # of the entries 1, 2, ...
    places: dict[Key, int] = field(default_factory=dict)  # key -> number
    groups: dict[tuple[str, str], list[int]] = field(default_factory=dict)  # (kind, data set) -> numbers

    @property
    def last(self) -> tuple[int, str]:
        return len(self.hashes), self.hashes[-1] if self.hashes else GENESIS

    def add(self, row: EntryRow) -> None:
        self.hashes.append(row.hash)
        self.places[Key(*row[1:6])] = row.number
        self.groups.setdefault((row.kind, row.dataset), []).append(row.number)


_KNOWN: Final[dict[Path, _Known]] = {}
_TURNS: Final[dict[Path, threading.RLock]] = {}


def _turn(path: Path) -> threading.RLock:
    """Threads of a process take turns at a file: what the process keeps in mind of it is of one of them at a time."""
    return _TURNS.setdefault(path, threading.RLock())


def _forget() -> None:
    """In a forked process: another thread may have been in the middle of something, so all is checked anew."""
    _KNOWN.clear()
    _TURNS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class Entries:
    """The entries of a file during one call: checked, and as they are while the call has its lock."""

    def __init__(self, path: Path, connection: sqlite3.Connection, known: _Known) -> None:
        self.path = path
        self.now = datetime.now(UTC).isoformat(timespec="seconds")  # of every entry that this call appends
        self._connection = connection
        self._known = known
        self._new: list[EntryRow] = []

    @property
    def head(self) -> tuple[int, str]:
        """Number and hash of the last entry; (0, zeros) before the first."""
        return (self._new[-1].number, self._new[-1].hash) if self._new else self._known.last

    def hash_of(self, number: int) -> str | None:
        """The hash of the entry with that number, if there is one."""
        hashes = self._known.hashes
        return hashes[number - 1] if 0 < number <= len(hashes) else None

    def datasets(self) -> list[str]:
        """The data sets that were opened, in order."""
        return [dataset for kind, dataset in self._known.groups if kind == "opening"]

    def find(self, *key: Any) -> EntryRow | None:
        """The entry with the `Key` of these fields; None only if there never was one."""
        number = self._known.places.get(Key(*key))
        return None if number is None else self.row(number)

    def of(self, dataset: str, *kinds: str) -> list[EntryRow]:
        """The entries of a data set that have one of the kinds, in order."""
        numbers = sorted(n for kind in kinds for n in self._known.groups.get((kind, dataset), ()))
        return [self.row(number) for number in numbers]

    def keys(self, kind: str, dataset: str, plan: str) -> list[Key]:
        """What a data set has of that kind for a plan, of whatever round and query."""
        return [key for key in self._known.places if key[:3] == (kind, dataset, plan)]

    def last_key(self, kind: str, dataset: str, plan: str) -> Key | None:
        return next((key for key in reversed(self._known.places) if key[:3] == (kind, dataset, plan)), None)

    def append(self, *key: Any, details: str = "", payload: bytes = b"") -> EntryRow:
        """Add an entry, chained to the last one. For calls of `writing`."""
        number, previous = self.head
        row = EntryRow(number + 1, *Key(*key), details, payload, self.now, previous, "")
        row = row._replace(hash=row.expected_hash())
        self._connection.execute(f"INSERT INTO entries VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608
        self._new.append(row)
        return row

    def row(self, number: int) -> EntryRow:
        """An entry by its number. What was read of it must be what was written, or nothing is done with it."""
        for row in _rows(self._connection, "number = ?", number):
            if row.hash == row.expected_hash() == self._known.hashes[number - 1]:
                return row
            raise broken_entry(self.path, row, "its content is not the one that was written")
        raise _damaged(self.path, f"entry {number} cannot be found")


@contextmanager
def reading(path: Path, *, whole: bool = False) -> Iterator[Entries]:
    """The entries as they stand; errors of SQLite become `LedgerError`s that say what to do.

    `whole`: all of the file is checked again, though it is as this process left it.
    """
    with _turn(path), _translate_errors(path), _open_ledger(path) as connection:
        connection.execute("BEGIN")
        yield Entries(path, connection, _check_file(path, connection, whole=whole))


@contextmanager
def writing(path: Path, *, structure: bool = False) -> Iterator[Entries]:
    """All or nothing, one writer at a time: the write lock is taken first, durable when the block ends.

    `structure`: SQLite's own structures are checked again, though the file is as this process left it.
    """
    with _turn(path), _translate_errors(path), _open_ledger(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            known = _check_file(path, connection)
            if structure:
                _check_structure(path, connection)
            entries = Entries(path, connection, known)
            yield entries
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        for row in entries._new:
            known.add(row)
        known.state = _file_state(path)


def _rows(connection: sqlite3.Connection, condition: str, *values: Any) -> Iterator[EntryRow]:
    """Entries in order of number, found by it alone; `condition` is one of this module's own texts."""
    # The columns are named in the order of EntryRow, and condition is a literal of this module.
    names = ", ".join(EntryRow._fields)
    query = f"SELECT {names} FROM entries NOT INDEXED WHERE {condition} ORDER BY number"  # noqa: S608
    return map(EntryRow._make, connection.execute(query, values))


def _file_state(path: Path) -> tuple[int, ...]:
    """What differs when another process wrote the file, or another file took its place."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _check_file(path: Path, connection: sqlite3.Connection, *, whole: bool = False) -> _Known:
    """What is known of the file, after a check of all that this process has not itself read or written before."""
    if path.stat().st_size == 0:
        raise _damaged(path, "it has 0 bytes, so it was emptied or cut")
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION:
        raise LedgerError(f"ledger {path}: a SQLite file, but not a ledger. Give the path of a ledger.")
    if not LEDGER.read(version):
        raise LedgerError(LEDGER.refusal(f"ledger {path}", version))
    tables = connection.execute("SELECT sql FROM sqlite_master WHERE type IN ('table', 'index')").fetchall()
    if len(tables) != 2 or not all(text and f"{text};\n" in _SCHEMA for (text,) in tables):
        raise _damaged(path, "the file is damaged (its table is described otherwise)")
    known, state = _KNOWN.get(path, _Known()), _file_state(path)
    head = connection.execute("SELECT number, hash FROM entries NOT INDEXED ORDER BY number DESC LIMIT 1").fetchone()
    number, hash_ = head or (0, GENESIS)
    if known.state == state and known.last == (number, hash_) and not whole:
        return known
    _check_structure(path, connection)
    # Others appended: what was checked before stays known. Anything else that changed the file: all is checked anew.
    now = known if number > len(known.hashes) and not whole else _Known()
    for row in _rows(connection, "number > ?", len(now.hashes)):
        _check_next(path, now, row)
        now.add(row)
    if known.hashes and now.hashes[: len(known.hashes)] != known.hashes:
        raise _damaged(path, f"it had {len(known.hashes)} entries, and what is there now is no continuation of them")
    now.state = state
    _KNOWN[path] = now
    return now


def _check_structure(path: Path, connection: sqlite3.Connection) -> None:
    """SQLite's own check: pages, table, and that table and index have the same entries."""
    findings = [finding for (finding,) in connection.execute("PRAGMA integrity_check(1)")]
    if findings != ["ok"]:
        raise _damaged(path, f"the file is damaged ({findings[0]})")


def _check_next(path: Path, known: _Known, row: EntryRow) -> None:
    """An entry comes next: by its number, its link to the one before, its content and a key of its own."""
    number, previous = known.last
    if row.number != number + 1:
        raise broken_entry(path, row, f"entry {number + 1} is missing")
    if row.previous != previous:
        raise broken_entry(path, row, "it is not chained to the entry before it")
    if row.hash != row.expected_hash():
        raise broken_entry(path, row, "its content is not the one that was written")
    if Key(*row[1:6]) in known.places:
        raise broken_entry(path, row, "it repeats an earlier entry")


def _damaged(path: Path, what: str) -> LedgerError:
    return LedgerError(
        f"ledger {path}: {what}. Nothing more is spent from this file: restore a copy that verifies, or treat the "
        "budget as spent."
    )
