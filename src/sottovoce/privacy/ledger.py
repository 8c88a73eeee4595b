"""What has been spent on each data set, on disk: nothing is released that was not charged first.

A `Ledger` is a file of its data holder; an `Account` in it is the budget (epsilon, delta) of one data set
under one neighbouring relation. A plan's whole cost is reserved before its first release, and a release is
stored before it leaves. How the costs of plans add is in `spending`; proof: proofs/ledger.md.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sottovoce.errors import BudgetError, InputError, LedgerError
from sottovoce.privacy import ledger_file
from sottovoce.privacy.events import event_from_json, event_to_json
from sottovoce.privacy.relation import Relation
from sottovoce.privacy.spending import Balance, Book, Composition, Events, Paid, Reservation, Terms, open_terms

__all__ = ["Account", "Balance", "Entry", "Ledger", "Reservation", "Terms"]


@dataclass(frozen=True)
class Entry:
    """One line of the history; `kind` is "opening", "reservation", "release", "rows" or "forgotten".

    "rows": which kept rows a plan uses; `query` is the recipe by which they were prepared. "forgotten": those rows, by
    name in `plan`, are used no more.
    """

    number: int
    kind: str
    dataset: str
    plan: str
    round: int
    query: str
    details: Mapping[str, Any]
    payload_bytes: int
    written: str
    hash: str


class Ledger:
    """The ledger in the file `path`; `create=False` refuses to make a new one.

    The file belongs to the data holder, who is trusted with it: the chain of hashes finds damage and edits,
    but an older copy put in its place is a sound ledger that has forgotten what was spent since.
    """

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        self.path = Path(path).expanduser().resolve()
        if create:
            ledger_file.create(self.path)
        with ledger_file.connect(self.path):
            pass

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r})"

    def open(
        self,
        dataset: str,
        epsilon: float,
        delta: float,
        *,
        relation: Relation = "zero-out",
        composition: Composition = "renyi",
    ) -> Account:
        """Open an account for a data set, durably; opening it again with the same terms changes nothing.

        Guarantee: everything ever released on the account is (epsilon, delta)-differentially private under
        `relation`, however the plans were chosen, as long as each plan's events bound its releases and the
        data set has no other account.
        """
        _check_name("dataset", dataset)
        terms = open_terms(epsilon, delta, relation, composition)
        with ledger_file.connect(self.path) as connection, ledger_file.transaction(connection):
            ledger_file.check_end(self.path, connection)
            row = ledger_file.find(connection, "opening", dataset)
            if row is None:
                ledger_file.append(connection, "opening", dataset, details=json.dumps(asdict(terms)))
            elif not _same_terms(known := _terms(row), terms):
                raise LedgerError(
                    f"dataset={dataset!r} was opened with epsilon={known.epsilon:g}, delta={known.delta:g}, "
                    f"relation={known.relation!r}, composition={known.composition!r}, which never change. "
                    "Ask for the same, or take the account as it is with Ledger.account(dataset)."
                )
        return Account(self.path, dataset)

    def account(self, dataset: str | None = None) -> Account:
        """The account of a data set; without a name, the only one there is."""
        accounts = self.accounts()
        if dataset is None and len(accounts) == 1:
            return accounts[0]
        if dataset is not None and Account(self.path, dataset) in accounts:
            return Account(self.path, dataset)
        raise _unknown(self.path, dataset, [account.dataset for account in accounts])

    def accounts(self) -> list[Account]:
        """Every account, in the order in which they were opened."""
        with ledger_file.connect(self.path) as connection:
            return [Account(self.path, row.dataset) for row in ledger_file.rows(connection, "kind = 'opening'")]

    def verify(self) -> int:
        """Check every entry: its hash, its link to the one before, and that it was allowed when it was made.

        Returns the number of entries; a `LedgerError` names the first bad one.
        """
        books: dict[str, Book] = {}
        count = 0
        with ledger_file.connect(self.path) as connection:
            for row in ledger_file.check_chain(self.path, connection):
                if not _allowed(books, row):
                    raise ledger_file.broken(self.path, row, "it overspends, or what it rests on is not before it")
                count = row.number
        return count


@dataclass(frozen=True)
class Account:
    """The budget of one data set.

    A handle that holds a path and a name alone, so that its copies (pickle, `copy.deepcopy`, `sklearn.clone`)
    all charge the same file.
    """

    path: Path
    dataset: str

    def terms(self) -> Terms:
        """What was fixed when the account was opened."""
        return self.book().terms

    def balance(self) -> Balance:
        """What is spent and what is left."""
        return self.book().balance()

    def reserve(
        self,
        plan: str,
        events: Events,
        *,
        delta: float | None = None,
        summary: str = "",
        paid: Sequence[Paid] = (),
    ) -> Reservation:
        """Charge a plan's whole cost, durably, before its first release.

        `events` are the plan's events under the account's relation, or a function of the relation that gives
        them. `delta` is the plan's own; only "basic" accounts use it, and they need it. `paid` notes for which kept
        rows the account has then paid.

        Guarantee: when this returns the cost is on disk, and a crash leaves it spent. What would overspend
        raises `BudgetError` and charges nothing. The same plan again is charged once; the same name with
        other events is a `LedgerError`. A plan with a release without noise is refused, whatever is left.
        """
        _check_name("plan", plan)
        with ledger_file.connect(self.path) as connection:
            # A cost may take a second to compute, and the terms never change: no lock is held meanwhile.
            asked = self._read(connection).terms.price(plan, events, delta, summary)
            asked = replace(asked, paid=tuple(paid))
            with ledger_file.transaction(connection):
                ledger_file.check_end(self.path, connection)
                book = self._read(connection)
                known = book.find(plan)
                if known is None:
                    if not book.fits(asked):
                        raise BudgetError(f"account {self.dataset!r}: {book.refusal(asked)}")
                    said = asdict(asked) | {"events": [event_to_json(e) for e in asked.events]}
                    if not asked.paid:
                        del said["paid"]
                    details = json.dumps(said)
                    ledger_file.append(connection, "reservation", self.dataset, plan, details=details)
                    known = asked
        if known.events != asked.events:
            raise LedgerError(
                f"plan={plan!r} is reserved on account {self.dataset!r} with other events. A plan that costs "
                "something else is another plan: give it another name."
            )
        return known

    def check(self, plan: str, events: Events, *, delta: float | None = None) -> None:
        """Raise what `reserve` would raise now; nothing is charged."""
        book = self.book()
        asked = book.terms.price(plan, events, delta, "")
        if book.find(plan) is None and not book.fits(asked):
            raise BudgetError(f"account {self.dataset!r}: {book.refusal(asked)}")

    def would_fit(self, events: Events, *, delta: float | None = None) -> bool:
        """True if a new plan with these events could be reserved now."""
        book = self.book()
        try:
            return book.fits(book.terms.price("", events, delta, ""))
        except BudgetError:
            return False

    def release(self, plan: str, round: int, query: str, payload: bytes) -> bytes:
        """Store what is about to leave, durably, and return it; send only what this returns.

        Guarantee: a key (plan, round, query) has one release for ever. Asked again it gives the stored bytes,
        whatever `payload` is, so noise never averages out under one charge. Without a reservation of the plan
        it raises `LedgerError`.
        """
        _check_key(plan, round, query)
        with ledger_file.connect(self.path) as connection, ledger_file.transaction(connection):
            if ledger_file.find(connection, "reservation", self.dataset, plan) is None:
                raise LedgerError(
                    f"plan={plan!r} has no reservation on account {self.dataset!r} of ledger {self.path}, "
                    "and nothing is released before it is charged. Call reserve first."
                )
            row = ledger_file.find(connection, "release", self.dataset, plan, round, query)
            if row is None:
                key = ("release", self.dataset, plan, round, query)
                row = ledger_file.append(connection, *key, payload=bytes(payload))
        row.check(self.path)
        return row.payload

    def stored(self, plan: str, round: int, query: str) -> bytes | None:
        """The bytes released under this key, or None if there was no such release."""
        _check_key(plan, round, query)
        with ledger_file.connect(self.path) as connection:
            row = ledger_file.find(connection, "release", self.dataset, plan, round, query)
        if row is None:
            return None
        row.check(self.path)
        return row.payload

    def started(self, plan: str) -> bool:
        """Whether anything was released under the plan."""
        _check_name("plan", plan)
        with ledger_file.connect(self.path) as connection:
            condition = "kind = 'release' AND dataset = ? AND plan = ?"
            return next(ledger_file.rows(connection, condition, self.dataset, plan), None) is not None

    def answers(self, plan: str) -> Counter[str]:
        """How many releases under the plan are stored, by query."""
        _check_name("plan", plan)
        with ledger_file.connect(self.path) as connection:
            condition = "kind = 'release' AND dataset = ? AND plan = ?"
            return Counter(row.query for row in ledger_file.rows(connection, condition, self.dataset, plan))

    def rows_of(self, recipe: str) -> Entry | None:
        """The last entry about kept rows of that recipe: which plan used them last, or that they were forgotten."""
        with ledger_file.connect(self.path) as connection:
            return self._rows_of(connection, recipe)

    def rows_used(self, plan: str, recipe: str) -> Entry | None:
        """Which kept rows a plan uses, if that was recorded."""
        with ledger_file.connect(self.path) as connection:
            row = ledger_file.find(connection, "rows", self.dataset, plan, 0, recipe)
        if row is not None:
            row.check(self.path)
        return None if row is None else _entry(row)

    def record_rows(self, plan: str, recipe: str, after: int, write: Callable[[], Mapping[str, Any]]) -> bool:
        """Record, durably, which kept rows a plan uses from now on; False if another process was faster.

        `write` makes their file and describes it; it is called under the ledger's lock, and only if `after` is still
        the number of the last entry about rows of that recipe (0 if there is none). A file without an entry was never
        used.
        """
        _check_key(plan, 0, recipe)
        with ledger_file.connect(self.path) as connection, ledger_file.transaction(connection):
            ledger_file.check_end(self.path, connection)
            if ledger_file.find(connection, "reservation", self.dataset, plan) is None:
                raise LedgerError(f"plan={plan!r} has no reservation on account {self.dataset!r}. Call reserve first.")
            last = self._rows_of(connection, recipe)
            if (last.number if last else 0) != after:
                return False
            key = ("rows", self.dataset, plan, 0, recipe)
            ledger_file.append(connection, *key, details=json.dumps(dict(write())))
        return True

    def rows(self) -> list[Entry]:
        """The kept rows that are in use: for each recipe the last entry about them, the last used last."""
        with ledger_file.connect(self.path) as connection:
            self._read(connection)
            condition = "kind IN ('rows', 'forgotten') AND dataset = ?"
            last = {row.query: row for row in ledger_file.rows(connection, condition, self.dataset)}
        for row in last.values():
            row.check(self.path)
        return [_entry(row) for row in sorted(last.values()) if row.kind == "rows"]

    def forget_rows(self, entry: Entry) -> None:
        """Record, durably, that the kept rows of an entry of `rows` are used no more; nothing is given back."""
        with ledger_file.connect(self.path) as connection, ledger_file.transaction(connection):
            ledger_file.check_end(self.path, connection)
            last = self._rows_of(connection, entry.query)
            if last is None or last.number != entry.number:
                raise LedgerError(
                    f"account {self.dataset!r}: the rows {entry.details['id']} were used or forgotten by another "
                    "process just now. Look again with `sottovoce ledger rows`."
                )
            ledger_file.append(connection, "forgotten", self.dataset, entry.details["id"], 0, entry.query)

    def _rows_of(self, connection: sqlite3.Connection, recipe: str) -> Entry | None:
        condition = "kind IN ('rows', 'forgotten') AND dataset = ? AND query = ?"
        found = list(ledger_file.rows(connection, condition, self.dataset, recipe))
        if not found:
            return None
        found[-1].check(self.path)
        return _entry(found[-1])

    def history(self) -> list[Entry]:
        """The account's entries in order: its opening, its reservations, its releases (without the bytes)."""
        with ledger_file.connect(self.path) as connection:
            self._read(connection)
            return [_entry(row) for row in ledger_file.rows(connection, "dataset = ?", self.dataset)]

    def book(self) -> Book:
        """The account's terms and reservations as they stand."""
        with ledger_file.connect(self.path) as connection:
            return self._read(connection)

    def _read(self, connection: sqlite3.Connection) -> Book:
        opening = ledger_file.find(connection, "opening", self.dataset)
        if opening is None:
            names = [row.dataset for row in ledger_file.rows(connection, "kind = 'opening'")]
            raise _unknown(self.path, self.dataset, names)
        condition = "kind = 'reservation' AND dataset = ?"
        reservations = list(ledger_file.rows(connection, condition, self.dataset))
        for row in (opening, *reservations):
            row.check(self.path)
        return Book(_terms(opening), tuple(map(_reservation, reservations)))


def _terms(row: ledger_file.Row) -> Terms:
    return Terms(**json.loads(row.details))


def _same_terms(known: Terms, asked: Terms) -> bool:
    # The order and the capacity follow from the rest; a later version may compute their last digit otherwise.
    return replace(known, order=asked.order, capacity=asked.capacity) == asked


def _reservation(row: ledger_file.Row) -> Reservation:
    details = json.loads(row.details)
    paid = tuple(Paid(**note) for note in details.get("paid", ()))
    return Reservation(**details | {"events": tuple(map(event_from_json, details["events"])), "paid": paid})


def _entry(row: ledger_file.Row) -> Entry:
    details = json.loads(row.details) if row.details else {}
    return Entry(*row[:6], details, len(row.payload), row.written, row.hash)


def _allowed(books: dict[str, Book], row: ledger_file.Row) -> bool:
    """Replay one entry on the books: True if it was allowed after those before it."""
    book = books.get(row.dataset)
    try:
        if row.kind == "opening" and book is None:
            books[row.dataset] = Book(_terms(row))
            return True
        if row.kind == "reservation" and book is not None:
            asked = _reservation(row)
            books[row.dataset] = replace(book, reservations=(*book.reservations, asked))
            return asked.plan == row.plan and book.find(row.plan) is None and book.fits(asked)
    except (KeyError, TypeError, ValueError):  # details that this package never wrote
        return False
    if row.kind == "forgotten":
        return book is not None
    return row.kind in ("release", "rows") and book is not None and book.find(row.plan) is not None


def _unknown(path: Path, dataset: str | None, names: list[str]) -> LedgerError:
    known = f"accounts here: {', '.join(map(repr, names))}" if names else "it has no account yet"
    asked = "which account is meant is not said" if dataset is None else f"no account {dataset!r}"
    remedy = "Name one of them." if names else "Open one with Ledger.open or `sottovoce ledger open`."
    return LedgerError(f"ledger {path}: {asked}; {known}. {remedy}")


def _check_name(argument: str, value: str) -> None:
    if not (isinstance(value, str) and 1 <= len(value) <= 200 and value.isprintable() and value == value.strip()):
        raise InputError(
            f"{argument}={value!r} must be a text of 1 to 200 printable characters, without spaces around it."
        )


def _check_key(plan: str, turn: int, query: str) -> None:
    _check_name("plan", plan)
    _check_name("query", query)
    if not (isinstance(turn, int) and 0 <= turn < 2**63):
        raise InputError(f"round={turn!r} must be a whole number, 0 or more.")
