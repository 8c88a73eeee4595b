"""What was charged to an account, fit by fit: several plans of one fit are one charge, with one promise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from sottovoce.app.texts import rests_of
from sottovoce.errors import InputError
from sottovoce.privacy import accounting
from sottovoce.privacy.events import inside
from sottovoce.privacy.ledger import Account, Balance, Entry
from sottovoce.privacy.spending import Book

ABOUT = ("analyst", "dataset", "purpose", "note")
NUMBERS = (
    "epsilon: what a fit promises by itself, at the account's delta; spent: what all up to it would promise if "
    "they had been fixed in advance. What holds however they were chosen is the account's total."
)


@dataclass(frozen=True)
class FitCharge:
    """The plans of one fit, or of one evaluation: `epsilon` is theirs alone, `spent` the account's after the last.

    An analyst who sees releases may stop when it suits: `spent` is no promise then, and the account's total is one.
    """

    entries: tuple[Entry, ...]
    epsilon: float
    spent: float
    share: float

    @property
    def about(self) -> dict[str, str]:
        """What was said of it: analyst, dataset, purpose, note."""
        return dict(self.entries[0].details.get("about", {}))

    @property
    def account(self) -> str:
        """The account below that it ran on, if it is charged to one above."""
        details = self.entries[0].details
        return str(details["account"]) if self.entries[0].kind == "under" else ""

    @property
    def text(self) -> str:
        """What ran, and what its promise rests on besides noise."""
        summaries = dict.fromkeys(entry.details["summary"] for entry in self.entries)
        return "; ".join(
            (" + ".join(summaries), *dict.fromkeys(t for entry in self.entries for t in rests_of(entry.details)))
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts."""
        plans = [entry.plan for entry in self.entries]
        numbers = {"epsilon": self.epsilon, "spent": self.spent}
        return {"entry": self.entries[0].number, "account": self.entries[0].dataset, "plans": plans, **numbers}


def charges_of(account: Account) -> Iterator[FitCharge]:
    """What was charged to an account, in order; plans that name one fit are one charge."""
    entries, book = [entry for entry in account.history() if entry.kind in ("reservation", "under")], account.book()
    fits: dict[str, list[int]] = {}
    for place, known in enumerate(book.reservations):
        fits.setdefault(known.fit or known.plan, []).append(place)
    for places in fits.values():
        then = replace(book, reservations=book.reservations[: places[-1] + 1])
        alone = replace(book, reservations=tuple(book.reservations[place] for place in places))
        own = tuple(entries[place] for place in places)
        yield FitCharge(own, _promise(alone), then.balance().spent, then.cost() / book.limit)


def _promise(fit: Book) -> float:
    """The epsilon of the plans of one fit by themselves, at the delta of the account."""
    known, terms = fit.reservations, fit.terms
    if len(known) == 1 or terms.composition == "basic":
        return math.fsum(each.epsilon for each in known)
    events = tuple(event for each in known for event in each.events)
    return accounting.epsilon_of(events, inside(terms.delta), terms.relation)


def balances_around(account: Account, plan: str) -> tuple[Balance, Balance]:
    """The balances before and after the charge of a plan, by its name in ledgers."""
    book = account.book()
    place = next((place for place, known in enumerate(book.reservations) if known.plan == plan), None)
    if place is None:
        raise InputError(f"ledger: account {account.dataset!r} of {account.path} was not charged for plan {plan[:12]}.")
    before, after = (replace(book, reservations=book.reservations[:end]) for end in (place, place + 1))
    return before.balance(), after.balance()


def mixed_kinds(account: Account) -> str:
    """Why what is spent may be above what its fits promise: releases of several kinds; "" where all are of one."""
    book = account.book()
    if book.terms.composition != "renyi" or book.all_gaussian or len(book.reservations) < 2:
        return ""
    return (
        f"{account.dataset}: not all releases are Gaussian, so that plans add by a bound that is not tight (Renyi, at "
        "one order): what is spent may be more than what its fits promise."
    )
