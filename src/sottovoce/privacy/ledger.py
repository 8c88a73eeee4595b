"""What has been spent on each data set, on disk: nothing is released that was not charged first.

A `Ledger` is a file of its data holder; an `Account` in it is the budget (epsilon, delta) of one data set
under one neighbouring relation. A plan's whole cost is reserved before its first release, and a release is
stored before it leaves. How the costs of plans add is in `spending`; proof: proofs/ledger.md.
"""

from __future__ import annotations

import hmac
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, get_args

from sottovoce.errors import BudgetError, InputError, LedgerError
from sottovoce.privacy import ledger_file
from sottovoce.privacy.events import Relation, event_from_json, event_to_json
from sottovoce.privacy.guarantee import Unit
from sottovoce.privacy.ledger_file import Entries, EntryRow, reading, writing
from sottovoce.privacy.spending import (
    AccountTerms,
    Balance,
    Book,
    Composition,
    Events,
    FitPart,
    Period,
    Reservation,
    check_fits,
    make_offers,
    open_terms,
    price_line,
)

__all__ = ["Account", "AccountTerms", "Balance", "Entry", "FitPart", "Ledger", "Receipt", "Reservation"]

KINDS: Final = ("opening", "reservation", "under", "release", "rows")


class Receipt(NamedTuple):
    """Up to which entry a ledger went when it was told: the entry's number, and a keyed hash of the chain up to it.

    The key is in the ledger's first entry and stays there, so the hash tells nothing about the entries.
    """

    number: int
    hash: str

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"

    @classmethod
    def read(cls, text: Any) -> Self:
        """The receipt of a text NUMBER:HASH; `InputError` if it is none."""
        found = re.fullmatch("([0-9]{1,18}):([0-9a-f]{64})", text) if isinstance(text, str) else None
        if found is None:
            raise InputError(
                f"receipt={str(text)[:100]!r} must be the number of an entry, a colon and 64 hexadecimal digits, as a "
                "report has it."
            )
        return cls(int(found[1]), found[2])


@dataclass(frozen=True)
class Entry:
    """One line of the history; `kind` is one of `KINDS`.

    "under": a reservation of an account below, which this one pays as well. "rows": that a plan has drawn its noisy
    rows; the payload is the hash of their file.
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
    """The ledger in the file `path`, which is there: a lost one is never replaced by a new, empty one.

    The file belongs to the data holder, who is trusted with it: the chain of hashes finds damage and edits, and a
    receipt that was told elsewhere finds an older copy put in its place.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser().resolve()
        with reading(self.path) as entries:
            if not entries.datasets():
                raise _unknown_account(self.path, None, [])

    @classmethod
    def create(cls, path: str | Path) -> Self:
        """A new ledger in a new file; open its first account next. A path that is taken is refused."""
        ledger = cls.__new__(cls)
        ledger.path = Path(path).expanduser().resolve()
        ledger_file.create_file(ledger.path)
        return ledger

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r})"

    def open(  # noqa: PLR0913
        self,
        dataset: str,
        epsilon: float,
        delta: float,
        *,
        relation: Relation | None = None,
        composition: Composition | None = None,
        under: str | None = None,
        allowance: tuple[float, Period] | None = None,
    ) -> Account:
        """Open an account for a data set, durably; opening it again with the same terms changes nothing.

        Guarantee: everything ever released on the account, or on one under it, is (epsilon, delta)-differentially
        private under `relation`, however the plans were chosen, as long as each plan's events bound its releases and
        the data set has no other account.

        `under` names another account of this ledger: what is charged here is charged there too, and must fit both.
        `allowance=(0.25, "month")` releases the budget in parts, each as much as a plan of Gaussian releases of that
        epsilon costs. The defaults of `relation` and `composition` are those of the account above, or "zero-out" and
        "renyi".
        """
        _check_name("dataset", dataset)
        with writing(self.path) as entries:
            above = None if under is None else _book(entries, under).terms
            terms = open_terms(
                epsilon,
                delta,
                relation or (above.relation if above else "zero-out"),
                composition or (above.composition if above else "renyi"),
            )
            if above is not None and terms.relation != above.relation:
                raise InputError(f"relation={relation!r} must be that of the account above, {above.relation!r}.")
            terms = replace(terms, under=under or "")
            if allowance is not None:
                part, period = allowance
                if not 0 < part <= terms.epsilon:
                    raise InputError(
                        f"allowance={allowance!r}: a part's epsilon is above 0 and at most the total {terms.epsilon:g}."
                    )
                if period not in get_args(Period):
                    raise InputError(
                        f"allowance={allowance!r}: the period must be one of {', '.join(get_args(Period))}."
                    )
                terms = replace(terms, allowance=float(part), period=period)
            row = entries.find("opening", dataset)
            if row is None:
                # The key of the receipts, in the first entry alone: who has not read the ledger cannot guess it.
                key = {} if entries.datasets() else {"receipt_key": os.urandom(32).hex()}
                entries.append("opening", dataset, details=json.dumps(asdict(terms) | key))
            # What follows from the rest a later version may compute otherwise in the last digit.
            elif replace(known := _read_terms(row), **{name: getattr(terms, name) for name in _DERIVED}) != terms:
                parts = {"under": known.under, "allowance": known.allowance and (known.allowance, known.period)}
                more = "".join(f", {name}={value!r}" for name, value in parts.items() if value)
                raise LedgerError(
                    f"dataset={dataset!r} was opened with epsilon={known.epsilon:g}, delta={known.delta:g}, "
                    f"relation={known.relation!r}, composition={known.composition!r}{more}, which never change. "
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
        raise _unknown_account(self.path, dataset, [account.dataset for account in accounts])

    def accounts(self) -> list[Account]:
        """Every account, in the order in which they were opened."""
        with reading(self.path) as entries:
            return [Account(self.path, dataset) for dataset in entries.datasets()]

    def verify(self) -> int:
        """Check the whole file: each entry's hash, its link to the one before, that it was allowed when it was made.

        Returns the number of entries; a `LedgerError` names the first bad one.
        """
        books: dict[str, tuple[Book, str]] = {}
        with reading(self.path, whole=True) as entries:
            for number in range(1, entries.head[0] + 1):
                row = entries.row(number)
                if not _allowed(books, row):
                    raise ledger_file.broken_entry(
                        self.path, row, "it overspends, or what it rests on is not before it"
                    )
            return entries.head[0]

    def check_receipt(self, receipt: Receipt) -> None:
        """Raise `LedgerError` unless a receipt is of this ledger as it is, or as it was before it grew."""
        with reading(self.path) as entries:
            if not hmac.compare_digest(_receipt_hash(entries, receipt.number), receipt.hash):
                raise LedgerError(
                    f"ledger {self.path}: it has {entries.head[0]} entries, and receipt {str(receipt)[:24]}... is of "
                    "none of them. It was set back, cut at its end, or is another ledger. Nothing more is spent from "
                    "it: restore the newest copy, or treat the budget as spent."
                )


@dataclass(frozen=True)
class Account:
    """The budget of one data set.

    A handle that holds a path and a name alone, so that its copies (pickle, `copy.deepcopy`, `sklearn.clone`)
    all charge the same file.
    """

    path: Path
    dataset: str

    def terms(self) -> AccountTerms:
        """What was fixed when the account was opened."""
        return self.book().terms

    def balance(self) -> Balance:
        """What is spent and what is left; under another account no more is left than there."""
        (_, own), *above = ((name, book.balance()) for name, book in self.line())
        left = min((own.left, *(balance.left for _, balance in above)))
        return replace(own, left=left, delta_left=min((own.delta_left, *(b.delta_left for _, b in above))))

    def reserve(  # noqa: PLR0913
        self,
        plan: str,
        events: Events,
        *,
        delta: float | None = None,
        summary: str = "",
        about: Mapping[str, str] | None = None,
        within: FitPart | None = None,
        rests_on: Sequence[str] = (),
        unit: Unit = "record",
    ) -> Reservation:
        """Charge a plan's whole cost, durably, before its first release.

        `events` are the plan's events under the account's relation, or a function of the relation that gives
        them. `delta` is the plan's own; only "basic" accounts use it, and they need it. `about` says who runs
        the plan and what for. `within` is the fit that the plan
        is a part of: if the account has room for all of it at once but not for its plans one after the other, the first
        of them is charged for all. `rests_on` is what the plan assumes besides its noise: the balance says it from then
        on. `unit` is what the plan protects; an account does not add charges for people to those for records.

        Guarantee: when this returns the cost is on disk, here and on every account above, and a crash leaves it spent.
        What would overspend one of them raises `BudgetError` and charges nothing. The same plan again is charged once;
        the same name with other events is a `LedgerError`. A plan with a release without noise is refused, whatever is
        left.
        """
        _check_name("plan", plan)
        # A cost may take a second to compute, and the terms never change: no lock is held meanwhile.
        offers = {name: make_offers(book.terms, (plan, events, delta, summary), within) for name, book in self.line()}
        said, people = tuple((about or {}).items()), unit == "person"
        asked = offers[self.dataset].own
        with writing(self.path, structure=True) as entries:
            row = entries.find("reservation", self.dataset, plan)
            if row is None:
                line = _line(entries, self.dataset)
                prices = price_line(line, offers)
                for name, book in line:
                    check_fits(name, book, replace(prices[name], people=people))
                for name, _ in reversed(line[1:]):
                    charge = replace(prices[name], about=said, account=self.dataset, rests_on=tuple(rests_on))
                    charge = replace(charge, people=people)
                    entries.append("under", name, plan, details=_to_json(charge))
                charged = replace(prices[self.dataset], about=said, rests_on=tuple(rests_on), people=people)
                entries.append("reservation", self.dataset, plan, details=_to_json(charged))
        known = charged if row is None else _read_reservation(row)
        if (known.fit, known.part) != (asked.fit, asked.part) or (not asked.fit and known.events != asked.events):
            raise LedgerError(
                f"plan={plan!r} is reserved on account {self.dataset!r} with other events. A plan that costs "
                "something else is another plan: give it another name."
            )
        return known

    def check(
        self,
        plan: str,
        events: Events,
        *,
        delta: float | None = None,
        within: FitPart | None = None,
        unit: Unit = "record",
    ) -> None:
        """Raise what `reserve` would raise now; nothing is charged."""
        with reading(self.path) as entries:
            known = entries.find("reservation", self.dataset, plan)
        if known is None:
            self.books_after([(plan, events, delta, within)], unit)

    def books_after(
        self, plans: Sequence[tuple[str, Events, float | None, FitPart | None]], unit: Unit = "record"
    ) -> list[Book]:
        """The books of the line with these plans in them, one after the other; raises what the first to fail would."""
        line = self.line()
        for plan, events, delta, within in plans:
            offers = {name: make_offers(book.terms, (plan, events, delta, ""), within) for name, book in line}
            prices = {name: replace(each, people=unit == "person") for name, each in price_line(line, offers).items()}
            for name, book in line:
                check_fits(name, book, prices[name])
            line = [(name, book.after(prices[name])) for name, book in line]
        return [book for _, book in line]

    def would_fit(self, events: Events, *, delta: float | None = None) -> bool:
        """True if a new plan with these events could be reserved now."""
        try:
            return all(book.fits(book.terms.price("", events, delta, "")) for _, book in self.line())
        except BudgetError:
            return False

    def release(self, plan: str, round: int, query: str, payload: bytes, *, kind: str = "release") -> bytes:
        """Store what is about to leave, durably, and return it; send only what this returns.

        Guarantee: a key (plan, round, query) has one release for ever. Asked again it gives the stored bytes,
        whatever `payload` is, so noise never averages out under one charge. Without a reservation of the plan
        it raises `LedgerError`. With kind="rows" it is a draw that stays with its holder, by its hash.
        """
        _check_key(plan, round, query)
        with writing(self.path) as entries:
            if entries.find("reservation", self.dataset, plan) is None:
                raise LedgerError(
                    f"plan={plan!r} has no reservation on account {self.dataset!r} of ledger {self.path}, "
                    "and nothing is released before it is charged. Call reserve first."
                )
            key = (kind, self.dataset, plan, round, query)
            row = entries.find(*key) or entries.append(*key, payload=bytes(payload))
        return row.payload

    def stored(self, plan: str, round: int, query: str, *, kind: str = "release") -> bytes | None:
        """The bytes stored by `release` under this key, or None if there are none."""
        _check_key(plan, round, query)
        with reading(self.path) as entries:
            row = entries.find(kind, self.dataset, plan, round, query)
        return None if row is None else row.payload

    def answers(self, plan: str) -> Counter[str]:
        """How many releases under the plan are stored, by query."""
        return Counter(query for _, query in self.released(plan))

    def released(self, plan: str) -> list[tuple[int, str]]:
        """Round and query of every stored release under the plan."""
        _check_name("plan", plan)
        with reading(self.path) as entries:
            return [(key.round, key.query) for key in entries.keys("release", self.dataset, plan)]

    def last_release(self, plan: str) -> tuple[int, str, bytes] | None:
        """Round, query and bytes of the last stored release under the plan."""
        _check_name("plan", plan)
        with reading(self.path) as entries:
            key = entries.last_key("release", self.dataset, plan)
            row = None if key is None else entries.find(*key)
        return None if row is None else (row.round, row.query, row.payload)

    def history(self) -> list[Entry]:
        """The account's entries in order: its opening, its reservations, its releases (without the bytes)."""
        with reading(self.path) as entries:
            _book(entries, self.dataset)
            rows = entries.of(self.dataset, *KINDS)
        return [
            Entry(*row[:6], json.loads(row.details or "{}"), len(row.payload), row.written, row.hash) for row in rows
        ]

    def receipt(self) -> Receipt:
        """The last entry of the ledger, to be told with an acceptance; `Ledger.check_receipt` finds it again."""
        with reading(self.path) as entries:
            return Receipt(entries.head[0], _receipt_hash(entries, entries.head[0]))

    def book(self) -> Book:
        """The account's terms and reservations as they stand."""
        return self.line()[0][1]

    def line(self) -> list[tuple[str, Book]]:
        """The books of the account and of those above it, each with its name, from here upward."""
        with reading(self.path) as entries:
            return _line(entries, self.dataset)


def _line(entries: Entries, dataset: str) -> list[tuple[str, Book]]:
    line = [(dataset, _book(entries, dataset))]
    while above := line[-1][1].terms.under:
        line.append((above, _book(entries, above)))
    return line


def _book(entries: Entries, dataset: str) -> Book:
    opening = entries.find("opening", dataset)
    if opening is None:
        raise _unknown_account(entries.path, dataset, entries.datasets())
    terms, now = _read_terms(opening), datetime.fromisoformat(entries.now)
    released = terms.released(datetime.fromisoformat(opening.written), now)
    return Book(terms, tuple(map(_read_reservation, entries.of(dataset, "reservation", "under"))), released)


def _receipt_hash(entries: Entries, number: int) -> str:
    """HMAC-SHA256 of an entry's hash by that of the first; "" if there is no such entry."""
    key, message = entries.hash_of(1), entries.hash_of(number)
    return "" if key is None or message is None else hmac.new(key.encode(), message.encode(), "sha256").hexdigest()


_DERIVED: Final = ("order", "capacity", "gaussian_capacity")

# Where there is nothing to say.
_LEFT_OUT: Final = ("about", "account", "fit", "part", "whole", "covered", "rests_on", "people")


def _to_json(asked: Reservation) -> str:
    said = asdict(asked) | {"events": [event_to_json(e) for e in asked.events], "about": dict(asked.about)}
    return json.dumps({name: value for name, value in said.items() if value or name not in _LEFT_OUT})


def _read_terms(row: EntryRow) -> AccountTerms:
    details = json.loads(row.details)
    details.pop("receipt_key", None)
    return AccountTerms(**details)


def _read_reservation(row: EntryRow) -> Reservation:
    details = json.loads(row.details)
    read = {
        "events": tuple(map(event_from_json, details["events"])),
        "about": tuple(details.get("about", {}).items()),
        "rests_on": tuple(map(str, details.get("rests_on", ()))),
    }
    return Reservation(**details | read)


def _allowed(books: dict[str, tuple[Book, str]], row: EntryRow) -> bool:
    """Replay one entry on the books, each with its opening's time: True if it was allowed after those before it."""
    book, opened = books.get(row.dataset, (None, ""))
    try:
        if row.kind == "opening" and book is None:
            terms = _read_terms(row)
            books[row.dataset] = Book(terms), row.written
            return not terms.under or terms.under in books
        if row.kind in ("reservation", "under") and book is not None:
            asked = _read_reservation(row)
            books[row.dataset] = book.after(asked), opened
            released = book.terms.released(datetime.fromisoformat(opened), datetime.fromisoformat(row.written))
            fits = book.find(row.plan) is None and replace(book, released=released).fits(asked)
            if asked.plan != row.plan or not fits or not book.terms.under:
                return asked.plan == row.plan and fits
            paid = books[book.terms.under][0].find(row.plan)  # the account above was charged first, for the same run
            return paid is not None and paid.account == (asked.account or row.dataset)
    except (KeyError, TypeError, ValueError):  # details that this package never wrote
        return False
    known = None if book is None else book.find(row.plan)
    return row.kind in ("release", "rows") and known is not None and not known.account


def _unknown_account(path: Path, dataset: str | None, names: list[str]) -> LedgerError:
    if not names:
        return LedgerError(
            f"ledger {path}: it has no account, so it was emptied, or its making was never finished. If something was "
            "spent, restore a copy that verifies; else remove it and make it again with `sottovoce ledger create`."
        )
    known = f"accounts here: {', '.join(map(repr, names))}"
    asked = "which account is meant is not said" if dataset is None else f"no account {dataset!r}"
    remedy = "Name one of them, or open another with `sottovoce ledger open`."
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
