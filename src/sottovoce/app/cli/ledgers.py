"""`sottovoce ledger create | open | show | history | report | verify`, and `sottovoce models list | show | approve`.

Models are the parts of models over columns that a party keeps beside its ledger; to approve one is its sign-off.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.app.cli import console as terminal
from sottovoce.app.cli.console import AsJson, Overwrite, argument, cli_option, group
from sottovoce.app.texts import secure_balance
from sottovoce.errors import InputError
from sottovoce.files import check_writable, write_text

if TYPE_CHECKING:
    from sottovoce.federation.models import StoredModel
    from sottovoce.privacy.ledger import Account

app = group("Budgets on disk: what may be spent on a data set, and what was.")

LedgerPath = Annotated[Path, argument("PATH", "The ledger file.")]


_Relation = StrEnum("_Relation", {"zero_out": "zero-out", "replace_one": "replace-one"})
_Composition = StrEnum("_Composition", ("renyi", "gaussian", "basic"))

Dataset = Annotated[str, cli_option("The data set's name.")]
Epsilon = Annotated[float, cli_option("All that may ever be spent on it.")]
Delta = Annotated[float, typer.Option(help="The delta at which that epsilon holds, well below 1 / records.")]
Neighbours = Annotated[_Relation | None, typer.Option(help="Which data sets are neighbours.", show_default="zero-out")]
Adding = Annotated[
    _Composition | None,
    typer.Option(
        help="How plans add up: renyi takes every plan, gaussian is a little tighter but takes Gaussian plans only, "
        "basic adds epsilons and deltas.",
        show_default="renyi",
    ),
]
Allowance = Annotated[
    str | None,
    cli_option(
        "Release the budget in parts, one a day, week, month or year, for example 0.25/month.", metavar="E/PERIOD"
    ),
]


@app.command()
def create(
    path: LedgerPath,
    dataset: Dataset,
    epsilon: Epsilon,
    delta: Delta = 1e-5,
    relation: Neighbours = None,
    composition: Adding = None,
    allowance: Allowance = None,
    as_json: AsJson = False,
) -> None:
    """Make a ledger with its first account. A file that is there is never replaced.

    - `sottovoce ledger create budget.db --dataset patients --epsilon 3 --delta 1e-6`
    """
    from sottovoce.privacy.ledger import Ledger

    terms = _collect_terms(epsilon, delta, relation, composition, allowance)
    ledger = Ledger.create(path)
    try:
        account = ledger.open(dataset, **terms)
    except BaseException:
        ledger.path.unlink()  # nothing was ever opened in it
        raise
    _show_opened(path, account, as_json)


@app.command(name="open")
def open_account(
    path: LedgerPath,
    dataset: Dataset,
    epsilon: Epsilon,
    delta: Delta = 1e-5,
    relation: Neighbours = None,
    composition: Adding = None,
    allowance: Allowance = None,
    under: Annotated[str | None, cli_option("An account of this ledger that pays as well.")] = None,
    as_json: AsJson = False,
) -> None:
    """Open one more account in a ledger that is there; its terms never change.

    An account under another is a part of its budget, for example for one analyst.

    - `sottovoce ledger open budget.db --dataset anna --epsilon 1 --delta 1e-6 --under patients`
    """
    from sottovoce.privacy.ledger import Ledger

    terms = _collect_terms(epsilon, delta, relation, composition, allowance)
    _show_opened(path, Ledger(path).open(dataset, **terms, under=under), as_json)


def _collect_terms(
    epsilon: float, delta: float, relation: _Relation | None, composition: _Composition | None, allowance: str | None
) -> dict[str, Any]:
    part: Any = None
    if allowance is not None:
        amount, _, period = allowance.partition("/")
        try:
            part = (float(amount), period)
        except ValueError:
            raise InputError(f"allowance={allowance!r} must be an epsilon and a period, as in 0.25/month.") from None
    terms = {"relation": relation and relation.value, "composition": composition and composition.value}
    return {"epsilon": epsilon, "delta": delta, **terms, "allowance": part}


def _show_opened(path: Path, account: Account, as_json: bool) -> None:
    terms = account.terms()
    parts = f", {terms.allowance:g} a {terms.period}" if terms.allowance is not None else ""
    under = f", under {terms.under!r}" if terms.under else ""
    text = (
        f"account {account.dataset!r} in {path}: epsilon {terms.epsilon:g} at delta {terms.delta:g}{parts}, "
        f"{terms.relation}{under}; {account.balance().plans} plans so far"
    )
    terminal.print_result(
        {"ledger": str(account.path), "account": account.dataset, **asdict(terms)}, text, as_json=as_json
    )


@app.command(name="show")
def show_ledger(path: LedgerPath, as_json: AsJson = False) -> None:
    """Show each account: its total, what is spent and what is left.

    - `sottovoce ledger show budget.db`
    """
    from sottovoce.app.charges import charges_of, mixed_kinds
    from sottovoce.privacy.ledger import Ledger

    accounts = Ledger(path).accounts()
    if as_json:
        numbers = {account.dataset: {**asdict(account.terms()), **asdict(account.balance())} for account in accounts}
        terminal.print_json({"ledger": str(path), "accounts": numbers})
        return
    console = terminal.out()
    listing = terminal.table("account", "total>", "spent>", "left>", "delta>", "relation", "runs>", "used")
    for account in accounts:
        balance, terms = account.balance(), account.terms()
        listing.add_row(
            account.dataset if not terms.under else f"{account.dataset}, under {terms.under}",
            f"{balance.total:g}",
            f"{balance.spent:.4g}",
            f"{balance.left:.4g}",
            f"{balance.delta:g}",
            terms.relation,
            f"{len(list(charges_of(account)))}",
            f"{terminal.bar(balance.share, console)} {100 * balance.share:.0f}%",
        )
    console.print(listing)
    console.print("spent and left are epsilons; they do not add up to the total, since costs compose better than sums.")
    for account in accounts:
        if why := mixed_kinds(account):
            console.print(why, soft_wrap=True)
        if rests := account.balance().rests_on:
            marked = sum(bool(known.rests_on) for known in account.book().reservations)
            console.print(f"{account.dataset}: {secure_balance(marked, rests)}", soft_wrap=True)


@app.command()
def history(
    path: LedgerPath,
    analyst: Annotated[str | None, cli_option("Only charges of this analyst.")] = None,
    since: Annotated[datetime | None, cli_option("Only entries from this day on.", formats=["%Y-%m-%d"])] = None,
    as_json: AsJson = False,
) -> None:
    """List what was opened and charged, fit by fit: who and what for, what it promises, what was spent by then.

    - `sottovoce ledger history budget.db`
    - `sottovoce ledger history budget.db --analyst anna --since 2026-01-01`
    """
    from sottovoce.app.charges import ABOUT, NUMBERS, charges_of
    from sottovoce.privacy.ledger import Ledger

    accounts = Ledger(path).accounts()
    entries = sorted((entry for account in accounts for entry in account.history()), key=lambda entry: entry.number)
    released = Counter((entry.dataset, entry.plan) for entry in entries if entry.kind == "release")
    shown = [entry for entry in entries if since is None or entry.written[:10] >= since.date().isoformat()]
    if analyst is not None:
        shown = [entry for entry in shown if entry.details.get("about", {}).get("analyst") == analyst]
    numbers = {entry.number for entry in shown}
    charges = {each.entries[0].number: each for account in accounts for each in charges_of(account)}
    charges = {number: each for number, each in charges.items() if number in numbers}
    if as_json:
        lines = [asdict(entry) for entry in shown]
        for line in lines:
            line["details"].pop("receipt_key", None)
        fits = [each.to_dict() for _, each in sorted(charges.items())]
        terminal.print_json({"ledger": str(path), "charges": fits, "entries": lines})
        return
    console = terminal.out()
    narrow = console.width < 100
    counted = () if narrow else ("releases>",)
    listing = terminal.table("entry>", "written", "account", "what", "epsilon>", "spent>", *counted, "plan")
    for column in listing.columns:
        column.no_wrap, column.overflow = column.header not in ("account", "what"), "fold"
    row: tuple[str, ...]
    for entry in shown:
        if entry.kind == "opening":
            row = ("opened", f"{entry.details['epsilon']:g}")
        elif (charge := charges.get(entry.number)) is not None:
            who = [f"on {charge.account}"] if charge.account else []
            what = "; ".join([charge.text, *who, *(charge.about[name] for name in ABOUT if name in charge.about)])
            count = sum(released[charge.account or entry.dataset, each.plan] for each in charge.entries)
            plans = "\n".join(each.plan[: 6 if narrow else 12] for each in charge.entries)
            row = (what, f"{charge.epsilon:.4g}", f"{charge.spent:.4g}", *([] if narrow else [f"{count}"]), plans)
        else:
            continue
        listing.add_row(f"{entry.number}", entry.written[: 10 if narrow else 16].replace("T", " "), entry.dataset, *row)
    console.print(listing)
    if charges:
        console.print(NUMBERS)


@app.command()
def report(
    path: LedgerPath,
    output: Annotated[
        Path | None, cli_option("The page to write; beside the ledger by default.", "--output", "-o")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write what was spent, when, by whom and what for as a page (HTML) that needs nothing else.

    - `sottovoce ledger report budget.db -o budget.html`
    """
    from sottovoce.app.page import ledger_page
    from sottovoce.privacy.ledger import Ledger

    target = path.with_suffix(".html") if output is None else output
    check_writable(target, "--output", overwrite=overwrite)
    write_text(target, ledger_page(Ledger(path)), "--output", overwrite=overwrite)
    terminal.print_result({"ledger": str(path), "page": str(target)}, f"page: {target}", as_json=as_json)


@app.command()
def verify(
    path: LedgerPath,
    receipt: Annotated[
        str | None,
        cli_option(
            "A receipt from a model's report: finds a ledger that was set back or cut since.", metavar="NUMBER:HASH"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check every entry: its hash, its link to the one before, and that it was allowed when it was made.

    - `sottovoce ledger verify budget.db`
    - `sottovoce ledger verify budget.db --receipt 12:9f86d081884c7d65...`
    """
    from sottovoce.privacy.ledger import Ledger, Receipt

    known, has = None if receipt is None else Receipt.read(receipt), ""
    entries = (ledger := Ledger(path)).verify()
    if known is not None:
        ledger.check_receipt(known)
        has = "; it has the entry of the receipt"
    text = f"{path} is sound: {entries} entries, each chained to the one before it{has}"
    terminal.print_result({"ledger": str(path), "entries": entries, "sound": True}, text, as_json=as_json)


models = group(
    "Models over columns that a party keeps beside its ledger: look at them, and approve them for predictions."
)

Training = Annotated[Path, argument("LEDGER", "The ledger of the training.")]
PlanName = Annotated[str, argument("[PLAN]", "The plan's digest, or how it begins; default: of the last model.")]
PartyName = Annotated[str | None, cli_option("The party, where several share the ledger.", "--party")]


@models.command(name="list")
def list_models(ledger: Training, as_json: AsJson = False) -> None:
    """List the models that are kept beside a ledger, and whether their holder approved them.

    - `sottovoce models list lab.ledger`
    """
    models = list(map(_summarise, _read_kept(ledger)))
    if as_json:
        terminal.print_json({"ledger": str(ledger), "models": models})
        return
    if not models:
        terminal.out().print(f"{ledger}: no model is kept beside it", soft_wrap=True)
        return
    listing = terminal.table("plan", "kept", "party", "solver", "columns>", "doubts>", "approved")
    for model in models:
        names = (model["plan"][:12], model["kept"][:16].replace("T", " "), model["party"], model["solver"])
        listing.add_row(*names, f"{model['columns']}", f"{len(model['doubts'])}", "yes" if model["approved"] else "no")
    terminal.out().print(listing)


@models.command(name="show")
def show_model(ledger: Training, plan: PlanName = "", party: PartyName = None, as_json: AsJson = False) -> None:
    """Show the coefficients that a party keeps of a model, and what each column can add to a score.

    - `sottovoce models show lab.ledger`
    - `sottovoce models show lab.ledger 3f0c`
    """
    kept = _find_kept(ledger, plan, party)
    if as_json:
        terminal.print_json(
            {**_summarise(kept), "coefficients": _list_columns(kept), "intercept": kept.model.intercept}
        )
    else:
        _show_kept(kept)


@models.command()
def approve(
    ledger: Training,
    plan: PlanName = "",
    party: PartyName = None,
    yes: Annotated[bool, cli_option("Do not ask.", "--yes")] = False,
    as_json: AsJson = False,
) -> None:
    """Allow predictions with a model that you have looked at: with exactly these coefficients, from now on.

    - `sottovoce models approve lab.ledger 3f0c`
    """
    from sottovoce.federation.models import Models

    kept = _find_kept(ledger, plan, party)
    if not as_json:
        _show_kept(kept)
    if not yes:
        typer.confirm(f"Let {kept.model.party} predict with this model?", abort=True, err=True)
    Models.beside(ledger, kept.model.party).approve(kept.digest, kept.model)
    if as_json:
        terminal.print_json({**_summarise(kept), "approved": True})
    else:
        terminal.out().print(f"approved: {kept.model.party} predicts with the model of plan {kept.digest.hex()[:12]}")


def _read_kept(ledger: Path) -> list[StoredModel]:
    from sottovoce.federation.models import kept_beside

    if not ledger.is_file():
        raise InputError(f"{ledger} is not there; give the ledger of the training, beside which the models lie.")
    return list(kept_beside(ledger))


def _find_kept(ledger: Path, plan: str, party: str | None) -> StoredModel:
    """The one model of a plan, or of one party the last; several parties may share a ledger."""
    found = [
        kept
        for kept in _read_kept(ledger)
        if kept.digest.hex().startswith(plan.lower()) and party in (None, kept.model.party)
    ]
    if len(found) == 1 or (not plan and len({kept.model.party for kept in found}) == 1):
        return found[-1]
    if not found:
        raise InputError(
            f"{ledger}: no model{f' of plan {plan!r}' if plan else ''} is kept here; "
            f"`sottovoce models list {ledger}` tells which."
        )
    each = ", ".join(f"{kept.digest.hex()[:12]} of {kept.model.party}" for kept in found)
    raise InputError(f"plan={plan!r} is not one model but {len(found)}: {each}; give more of the digest, or --party.")


def _summarise(kept: StoredModel) -> dict[str, Any]:
    return {
        "plan": kept.digest.hex(),
        "kept": kept.written.isoformat(timespec="seconds"),
        "party": kept.model.party,
        "parties": list(kept.model.plan.names),
        "solver": kept.model.plan.algorithm,
        "columns": len(kept.model.coef),
        "fingerprint": kept.model.fingerprint,
        "doubts": kept.model.doubts(),
        "approved": kept.approved,
    }


def _list_columns(kept: StoredModel) -> list[dict[str, Any]]:
    model = kept.model
    names = model.feature_names or [f"x{place}" for place in range(len(model.coef))]
    numbers = zip(names, model.coef.tolist(), model.contributions.tolist(), strict=True)
    return [{"column": name, "coefficient": coef, "contribution": most} for name, coef, most in numbers]


def _show_kept(kept: StoredModel) -> None:
    told, console = _summarise(kept), terminal.out()
    console.print(f"plan {told['plan']}", soft_wrap=True)
    console.print(
        f"kept by {told['party']} on {told['kept'][:16].replace('T', ' ')} UTC, solver {told['solver']}; "
        f"{'approved' if kept.approved else 'not approved: no prediction is made with it'}"
    )
    console.print(f"parties of the plan: {', '.join(told['parties'])}")
    if len(told["parties"]) == 1:
        console.print("WARNING: there is no other party: a score is of this party's columns alone", soft_wrap=True)
    rows = [
        (line["column"], f"{line['coefficient']:.17g}", f"{line['contribution']:.4g}") for line in _list_columns(kept)
    ]
    console.print(terminal.table("column", "coefficient>", "adds to a score, at most>", rows=rows))
    console.print(f"intercept {kept.model.intercept:.17g}")
    for doubt in told["doubts"]:
        console.print(f"WARNING: {doubt}", soft_wrap=True)
    console.print(
        "The coordinator told these numbers, or could steer them. A score is exact: whoever knows them may read from "
        "it columns that have few values, such as yes or no, whatever the coefficients are."
    )
