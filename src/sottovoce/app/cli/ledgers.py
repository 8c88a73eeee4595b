"""`sottovoce ledger open | show | history | verify | rows | forget-rows`."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.app.cli.console import AsJson, bar, out, print_json, table

app = typer.Typer(
    help="Budgets on disk: what may be spent on a data set, and what was.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

LedgerPath = Annotated[Path, typer.Argument(metavar="PATH", help="The ledger file.", show_default=False)]


class _Relation(StrEnum):
    zero_out = "zero-out"
    replace_one = "replace-one"


class _Composition(StrEnum):
    renyi = "renyi"
    gaussian = "gaussian"
    basic = "basic"


@app.command(name="open")
def open_account(
    path: LedgerPath,
    dataset: Annotated[str, typer.Option(help="The data set's name.", show_default=False)],
    epsilon: Annotated[float, typer.Option(help="All that may ever be spent on it.", show_default=False)],
    delta: Annotated[float, typer.Option(help="The delta at which that epsilon holds, well below 1 / records.")] = 1e-5,
    relation: Annotated[_Relation, typer.Option(help="Which data sets are neighbours.")] = _Relation.zero_out,
    composition: Annotated[
        _Composition,
        typer.Option(
            help="How plans add up: renyi takes every plan, gaussian is tightest but takes Gaussian plans only, "
            "basic adds epsilons and deltas."
        ),
    ] = _Composition.renyi,
    as_json: AsJson = False,
) -> None:
    """Open an account; its terms never change. The file is made if it is not there.

    - `sottovoce ledger open budget.db --dataset patients --epsilon 3 --delta 1e-6`
    """
    from sottovoce.privacy.ledger import Ledger

    account = Ledger(path).open(dataset, epsilon, delta, relation=relation.value, composition=composition.value)
    if as_json:
        print_json({"ledger": str(account.path), "account": dataset, **asdict(account.terms())})
        return
    out().print(
        f"account {dataset!r} in {path}: epsilon {epsilon:g} at delta {delta:g}, {relation.value}; "
        f"{account.balance().plans} plans so far",
        soft_wrap=True,
    )


@app.command()
def show(path: LedgerPath, as_json: AsJson = False) -> None:
    """Show each account: its total, what is spent and what is left.

    - `sottovoce ledger show budget.db`
    """
    from sottovoce.privacy.ledger import Ledger

    accounts = Ledger(path, create=False).accounts()
    if as_json:
        print_json(
            {
                "ledger": str(path),
                "accounts": {a.dataset: {**asdict(a.terms()), **asdict(a.balance())} for a in accounts},
            }
        )
        return
    console = out()
    if not accounts:
        console.print(f"{path} has no account yet; open one with `sottovoce ledger open`.", soft_wrap=True)
        return
    listing = table("account", "total>", "spent>", "left>", "delta>", "relation", "plans>", "used")
    for account in accounts:
        balance = account.balance()
        listing.add_row(
            account.dataset,
            f"{balance.total:g}",
            f"{balance.spent:.4g}",
            f"{balance.left:.4g}",
            f"{balance.delta:g}",
            account.terms().relation,
            f"{balance.plans}",
            f"{bar(balance.share, console)} {100 * balance.share:.0f}%",
        )
    console.print(listing)
    console.print("spent and left are epsilons; they do not add up to the total, since costs compose better than sums.")


@app.command()
def history(path: LedgerPath, as_json: AsJson = False) -> None:
    """List what was opened and charged, and how much was released under each charge.

    - `sottovoce ledger history budget.db`
    """
    from sottovoce.privacy.ledger import Ledger

    accounts = Ledger(path, create=False).accounts()
    entries = sorted((entry for account in accounts for entry in account.history()), key=lambda entry: entry.number)
    if as_json:
        told = [asdict(entry) for entry in entries]
        for line in told:
            line["details"].pop("key", None)  # with it, and the file of kept rows, records could be guessed and tried
        print_json({"ledger": str(path), "entries": told})
        return
    released: dict[tuple[str, str], list[int]] = {}
    for entry in entries:
        if entry.kind == "release":
            released.setdefault((entry.dataset, entry.plan), []).append(entry.payload_bytes)
    listing = table("entry>", "written", "account", "what", "epsilon>", "releases>", "bytes>", "plan")
    for entry in entries:
        details: Any = entry.details
        if entry.kind == "opening":
            row = ("opened", f"{details['epsilon']:g}", "", "", "")
        elif entry.kind == "reservation":
            sizes = released.get((entry.dataset, entry.plan), [])
            row = (details["summary"], f"{details['epsilon']:.4g}", f"{len(sizes)}", f"{sum(sizes)}", entry.plan[:12])
        elif entry.kind == "forgotten":
            row = (f"kept rows {entry.plan} forgotten", "", "", "", "")
        else:
            continue
        listing.add_row(f"{entry.number}", entry.written[:16].replace("T", " "), entry.dataset, *row)
    out().print(listing)


@app.command()
def verify(path: LedgerPath, as_json: AsJson = False) -> None:
    """Check every entry: its hash, its link to the one before, and that it was allowed when it was made.

    - `sottovoce ledger verify budget.db`
    """
    from sottovoce.privacy.ledger import Ledger

    entries = Ledger(path, create=False).verify()
    if as_json:
        print_json({"ledger": str(path), "entries": entries, "sound": True})
    else:
        out().print(f"{path} is sound: {entries} entries, each chained to the one before it", soft_wrap=True)


@app.command()
def rows(path: LedgerPath, as_json: AsJson = False) -> None:
    """List the rows with noise that are kept beside the ledger, and what they cost.

    - `sottovoce ledger rows budget.db`
    """
    from sottovoce.door.noisy_rows import read
    from sottovoce.errors import LedgerError
    from sottovoce.privacy.accounting import gaussian_epsilon
    from sottovoce.privacy.ledger import Ledger

    found = []
    for account in Ledger(path, create=False).accounts():
        for entry in account.rows():
            try:
                read(account, entry)
                state = "there"
            except LedgerError:
                state = "lost"
            told = {name: entry.details[name] for name in ("id", "std", "records", "columns", "mu")}
            told |= {"epsilon": gaussian_epsilon(entry.details["mu"], account.terms().delta)}
            found.append({"account": account.dataset, **told, "used": entry.written, "file": state})
    if as_json:
        print_json({"ledger": str(path), "rows": found})
        return
    if not found:
        out().print(f"{path}: no rows are kept", soft_wrap=True)
        return
    listing = table("account", "rows", "std>", "records>", "columns>", "mu>", "epsilon>", "last used", "file")
    for line in found:
        numbers = (f"{line['std']:.4g}", f"{line['records']}", f"{line['columns']}")
        costs = (f"{line['mu']:.4g}", f"{line['epsilon']:.4g}")
        listing.add_row(
            line["account"], line["id"], *numbers, *costs, line["used"][:16].replace("T", " "), line["file"]
        )
    out().print(listing)


@app.command(name="forget-rows")
def forget_rows(
    path: LedgerPath,
    dataset: Annotated[str, typer.Option(help="The data set's name.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give up the kept rows of a data set: the next run draws new ones, which costs as much again.

    - `sottovoce ledger forget-rows budget.db --dataset patients --yes`
    """
    from sottovoce.door.noisy_rows import forget
    from sottovoce.privacy.ledger import Ledger

    account = Ledger(path, create=False).account(dataset)
    entries = account.rows()
    names = [entry.details["id"] for entry in entries]
    if entries and not yes:
        typer.confirm(
            f"Forget the rows {', '.join(names)}? What they cost stays spent, and the next run pays as much again.",
            abort=True,
            err=True,
        )
    for entry in entries:
        forget(account, entry)
    if as_json:
        print_json({"ledger": str(path), "account": dataset, "forgotten": names})
    else:
        said = f"forgot rows {', '.join(names)}" if names else "no rows are kept"
        out().print(f"account {dataset!r} in {path}: {said}", soft_wrap=True)
