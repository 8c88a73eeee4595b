"""A ledger as a page: its accounts, what was spent when, and every charge. One HTML file, no script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from html import escape

from sottovoce.app.page import document
from sottovoce.app.texts import rests_of, sealed_balance
from sottovoce.privacy.ledger import Account, Entry, Ledger


def ledger_page(ledger: Ledger) -> str:
    """The page of a ledger, for its holder: names, purposes and costs; no released value and no key."""
    number = ledger.verify()
    accounts = ledger.accounts()
    sections = [_accounts(accounts)]
    for account in accounts:
        history = account.history()
        charges = [entry for entry in history if entry.kind in ("reservation", "under")]
        sections += [f"<h2>Account {escape(account.dataset)}</h2>", _plot(account, history[0], charges)]
        sections.append(_charges(charges))
        if rests := account.balance().rests_on:
            marked = sum(bool(entry.details.get("rests_on")) for entry in charges)
            sections.append(f"<p><b>{escape(sealed_balance(marked, rests))}</b></p>")
    receipt = accounts[0].receipt()
    said = (
        f"{number:,} entries, each chained to the one before it; the receipt of the last is "
        f"<code>{receipt}</code>. <code>sottovoce ledger verify --receipt</code> finds a ledger "
        "that was set back or cut since."
    )
    body = f"""<h1>Ledger</h1>
<p class="soft">{escape(ledger.path.name)}, as of {datetime.now(UTC):%Y-%m-%d %H:%M} UTC</p>
{"".join(sections)}
<footer><p>{said}</p></footer>
"""
    return document(f"Ledger {ledger.path.name}", body)


def _accounts(accounts: Sequence[Account]) -> str:
    rows = []
    for account in accounts:
        terms, balance = account.terms(), account.balance()
        parts = "" if terms.allowance is None else f", {terms.allowance:g} a {terms.period}"
        under = f"<br><span class='soft'>under {escape(terms.under)}</span>" if terms.under else ""
        rows.append(
            f'<tr><td>{escape(account.dataset)}{under}</td><td class="number">{terms.epsilon:g}{parts}</td>'
            f'<td class="number">{terms.delta:g}</td><td class="number">{balance.spent:.4g}</td>'
            f'<td class="number">{balance.left:.4g}</td><td class="number">{balance.plans}</td>'
            f"<td>{escape(terms.relation)}, {escape(terms.composition)}</td></tr>"
        )
    head = "".join(
        f'<th class="number">{name}</th>' for name in ("Total epsilon", "Delta", "Spent", "Left now", "Plans")
    )
    return (
        f"<table><tr><th>Account</th>{head}<th>Rules</th></tr>{''.join(rows)}</table>"
        '<p class="soft">Spent and left are epsilons. They do not add up to the total, since costs compose better than '
        "sums.</p>"
    )


def _plot(account: Account, opening: Entry, charges: Sequence[Entry]) -> str:
    """The used part of the budget over time, a step at every charge; a dashed line is what is released by then."""
    book = account.book()
    opened, now = datetime.fromisoformat(opening.written), datetime.now(UTC)
    span = max((now - opened).total_seconds(), 1.0)
    left, top, width, height = 52, 10, 560, 120

    def point(when: datetime, share: float) -> tuple[float, float]:
        return left + width * (when - opened).total_seconds() / span, top + height * (1 - min(share, 1.0))

    def steps(values: Sequence[tuple[datetime, float]]) -> str:
        found, before = [], 0.0
        for when, share in (*values, (now, values[-1][1] if values else 0.0)):
            found += [point(when, before), point(when, share)]
            before = share
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in ((left, top + height), *found))

    used = []
    for place, entry in enumerate(charges, start=1):
        share = replace(book, reservations=book.reservations[:place]).cost() / book.terms.capacity
        used.append((datetime.fromisoformat(entry.written), share))
    times = [opened + (now - opened) * k / 100 for k in range(101)]
    released = [(when, book.terms.released(opened, when) / book.terms.capacity) for when in times]
    ticks = "".join(
        f'<text class="soft" x="{left - 8}" y="{top + height * (1 - share) + 4:.0f}" text-anchor="end">'
        f'{share:.0%}</text><line class="axis" x1="{left}" x2="{left + width}" y1="{top + height * (1 - share):.0f}" '
        f'y2="{top + height * (1 - share):.0f}"/>'
        for share in (0.0, 0.5, 1.0)
    )
    dates = (
        f'<text class="soft" x="{left}" y="{top + height + 20}">{opened:%Y-%m-%d}</text>'
        f'<text class="soft" x="{left + width}" y="{top + height + 20}" text-anchor="end">{now:%Y-%m-%d}</text>'
    )
    limit = (
        f'<polyline points="{steps(released)}" fill="none" stroke="var(--soft)" stroke-dasharray="5 4"/>'
        if book.terms.allowance is not None
        else ""
    )
    note = "" if book.terms.allowance is None else "; dashed, what is released by then"
    return (
        f'<svg viewBox="0 0 {left + width + 20} {top + height + 28}" width="100%" role="img" '
        f'aria-label="The used part of the budget over time">{ticks}{dates}{limit}'
        f'<polyline points="{steps(used)}" fill="none" stroke="var(--mark)" stroke-width="2.5"/></svg>'
        f'<p class="soft">The used part of the budget over time{note}.</p>'
    )


def _charges(charges: Sequence[Entry]) -> str:
    if not charges:
        return "<p>Nothing was charged.</p>"
    rows = []
    for entry in charges:
        about = dict(entry.details.get("about", {}))
        texts = [about[name] for name in ("dataset", "purpose", "note") if name in about]
        on = [f"on account {entry.details['account']}"] if entry.kind == "under" else []
        run = "; ".join([entry.details["summary"], *rests_of(entry.details), *on])
        rows.append(
            f'<tr><td class="number">{entry.number}</td>'
            f'<td style="white-space:nowrap">{escape(entry.written[:10])}</td>'
            f"<td>{escape(about.get('analyst', ''))}</td><td>{escape('; '.join(texts))}</td>"
            f"<td>{escape(run)}<br><code>{escape(entry.plan[:12])}</code></td>"
            f'<td class="number">{entry.details["epsilon"]:.4g}</td></tr>'
        )
    return (
        '<table><tr><th class="number">Entry</th><th>Date</th><th>Analyst</th><th>For</th><th>Run</th>'
        f'<th class="number">Epsilon</th></tr>{"".join(rows)}</table>'
    )
