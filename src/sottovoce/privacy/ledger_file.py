"""The file under a ledger: one append-only SQLite table whose entries are chained by SHA-256.

entry.hash = SHA-256(entry's content, SHA-256 of its payload, the hash of the entry before)

An opening, a reservation and a release are all entries of that one table, so an account is what its entries
say and there is no second copy that could disagree with them.

A commit returns only when the disk has it (rollback journal, `synchronous=EXTRA`), and a process killed
before that leaves the file as it was. Every call opens its own connection and closes it, so that handles can
be pickled, and shared between threads and forked processes.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from sottovoce.errors import LedgerError

APPLICATION: Final = 0x736F7474  # "sott": tells a ledger from other SQLite files
VERSION: Final = 1
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
PRAGMA user_version = {VERSION};
"""

# Two threads that make the same new file must not overlap: closing a descriptor drops the locks that the
# operating system keeps for the whole process.
_creating = threading.Lock()


class Row(NamedTuple):
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

    def check(self, path: Path) -> None:
        """Raise `LedgerError` unless the content is the one that was hashed."""
        if self.hash != self.expected_hash():
            raise broken(path, self, "its content is not the one that was written")


def broken(path: Path, row: Row, what: str) -> LedgerError:
    """The error that names an entry which cannot be trusted."""
    return LedgerError(
        f"ledger {path}: entry {row.number} ({row.kind}, {row.dataset!r}) cannot be trusted: {what}. "
        "Nothing more is spent from this file: restore a copy that verifies, or treat the budget as spent."
    )


def create(path: Path) -> None:
    """Make the file (readable by its owner alone) and its table, unless they are there already."""
    with _creating:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            pass
        except OSError as error:
            raise LedgerError(
                f"ledger {path} cannot be made: {error.strerror}. Give a path in a folder that exists and "
                "that this user may write."
            ) from error
        with _translated(path), _open(path) as connection:
            if not _is_new(connection):
                return
            with transaction(connection):
                if _is_new(connection):  # another process may have been faster
                    for statement in _SCHEMA.split(";\n"):
                        connection.execute(statement)


def _is_new(connection: sqlite3.Connection) -> bool:
    """True for the empty file that a killed `create` leaves behind."""
    tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return tables == 0


@contextmanager
def connect(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection for one call; errors of SQLite become `LedgerError`s that say what to do."""
    with _translated(path), _open(path) as connection:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if application != APPLICATION:
            raise LedgerError(f"ledger {path}: a SQLite file, but not a ledger. Give the path of a ledger.")
        if version != VERSION:
            raise LedgerError(
                f"ledger {path}: written in format {version}, and this version reads format {VERSION}. "
                "Use the version of sottovoce that wrote it."
            )
        yield connection


@contextmanager
def _open(path: Path) -> Iterator[sqlite3.Connection]:
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


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing, one writer at a time: the write lock is taken first, durable when the block ends."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


_CAUSES: Final = {
    sqlite3.SQLITE_NOTADB: "not a SQLite file. Give the path of a ledger, or restore a copy",
    sqlite3.SQLITE_CORRUPT: "the file is damaged. Restore a copy that verifies, or treat the budget as spent",
    sqlite3.SQLITE_CANTOPEN: "there is no such file, or it may not be opened. Check the path and permissions",
    sqlite3.SQLITE_READONLY: "the file or its folder may not be written. Check the permissions",
    sqlite3.SQLITE_BUSY: "another process kept it locked too long. Try again",
    sqlite3.SQLITE_FULL: "the disk is full. Free some space and try again",
}


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_CANTOPEN and path.parent.is_dir() and not path.exists():
            raise LedgerError(
                f"ledger {path}: there is no such file. Open an account first: sottovoce ledger open {path.name} "
                "--dataset NAME --epsilon E --delta D, or Ledger(path).open(...). Nothing was released."
            ) from error
        cause = _CAUSES.get(code, "it cannot be read or written; check the disk and the permissions")
        raise LedgerError(f"ledger {path}: {cause} (SQLite says: {error}). Nothing was released.") from error


def rows(connection: sqlite3.Connection, condition: str = "1", *values: Any) -> Iterator[Row]:
    """Entries in order of number; `condition` is one of this package's own texts, never a caller's."""
    # The columns are named in the order of Row, and condition is a literal of this package.
    query = f"SELECT {', '.join(Row._fields)} FROM entries WHERE {condition} ORDER BY number"  # noqa: S608
    return map(Row._make, connection.execute(query, values))


class Key(NamedTuple):
    """What an entry is about: at most one entry has a key."""

    kind: str
    dataset: str
    plan: str = ""
    round: int = 0
    query: str = ""


def find(connection: sqlite3.Connection, *key: Any) -> Row | None:
    """The entry with the `Key` of these fields, if any."""
    condition = "kind = ? AND dataset = ? AND plan = ? AND round = ? AND query = ?"
    return next(rows(connection, condition, *Key(*key)), None)


def append(connection: sqlite3.Connection, *key: Any, details: str = "", payload: bytes = b"") -> Row:
    """Add an entry, chained to the last one. Call it inside a `transaction`."""
    last = connection.execute("SELECT number, hash FROM entries ORDER BY number DESC LIMIT 1").fetchone()
    number, previous = last or (0, GENESIS)
    written = datetime.now(UTC).isoformat(timespec="seconds")
    row = Row(number + 1, *Key(*key), details, payload, written, previous, "")
    row = row._replace(hash=row.expected_hash())
    connection.execute(f"INSERT INTO entries VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608
    return row


def check_end(path: Path, connection: sqlite3.Connection) -> None:
    """What can be checked without reading the whole file: no gap in the numbers, and a sound last entry."""
    count, highest = connection.execute("SELECT count(*), coalesce(max(number), 0) FROM entries").fetchone()
    if count != highest:
        raise LedgerError(
            f"ledger {path}: {highest} entries were written and {count} are there. Nothing more is spent "
            "from this file: restore a copy that verifies, or treat the budget as spent."
        )
    for row in rows(connection, "number = ?", highest):
        row.check(path)


def check_chain(path: Path, connection: sqlite3.Connection) -> Iterator[Row]:
    """Every entry in order, each after its number, its link to the one before and its hash were checked."""
    findings = [finding for (finding,) in connection.execute("PRAGMA integrity_check(1)")]
    if findings != ["ok"]:
        raise LedgerError(f"ledger {path}: the file is damaged ({findings[0]}). Restore a copy that verifies.")
    previous = GENESIS
    for number, row in enumerate(rows(connection), start=1):
        if row.number != number:
            raise broken(path, row, f"entry {number} is missing")
        if row.previous != previous:
            raise broken(path, row, "it is not chained to the entry before it")
        row.check(path)
        previous = row.hash
        yield row
