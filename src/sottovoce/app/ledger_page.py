"""A ledger as a page: its accounts, what was spent when, and every charge. One HTML file, no script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sottovoce.app.rendering import render
from sottovoce.app.texts import rests_of, secure_balance
from sottovoce.privacy.ledger import Account, Entry, Ledger

_MOMENTS = 100  # at which the released part of a budget is drawn


def ledger_page(ledger: Ledger) -> str:
    """The page of a ledger, for its holder: names, purposes and costs; no released value and no key."""
    entries, now, accounts = ledger.verify(), datetime.now(UTC), ledger.accounts()
    return render(
        "ledger.html",
        title=f"Ledger {ledger.path.name}",
        name=ledger.path.name,
        now=f"{now:%Y-%m-%d %H:%M}",
        accounts=[_account(account, now) for account in accounts],
        entries=entries,
        receipt=accounts[0].receipt(),
        rests_of=rests_of,
        secure_balance=secure_balance,
    )


def _account(account: Account, now: datetime) -> dict[str, Any]:
    """An account with its charges, and its curves: (share of the time, share of the budget)."""
    history, book = account.history(), account.book()
    charges = [entry for entry in history if entry.kind in ("reservation", "under")]
    opened = datetime.fromisoformat(history[0].written)
    span = max((now - opened).total_seconds(), 1.0)

    def steps(values: Sequence[tuple[datetime, float]]) -> list[tuple[float, float]]:
        points, before = [(0.0, 0.0)], 0.0
        for when, share in (*values, (now, values[-1][1] if values else 0.0)):
            time = (when - opened).total_seconds() / span
            points += [(time, min(before, 1.0)), (time, min(share, 1.0))]
            before = share
        return points

    def used(place: int, entry: Entry) -> tuple[datetime, float]:
        cost = replace(book, reservations=book.reservations[:place]).cost()
        return datetime.fromisoformat(entry.written), cost / book.terms.capacity

    moments = [opened + (now - opened) * k / _MOMENTS for k in range(_MOMENTS + 1)]
    released = [(when, book.terms.released(opened, when) / book.terms.capacity) for when in moments]
    return {
        "name": account.dataset,
        "terms": account.terms(),
        "balance": account.balance(),
        "charges": charges,
        "marked": sum(bool(entry.details.get("rests_on")) for entry in charges),
        "opened": f"{opened:%Y-%m-%d}",
        "used": steps([used(place, entry) for place, entry in enumerate(charges, start=1)]),
        "released": [] if book.terms.allowance is None else steps(released),
    }
