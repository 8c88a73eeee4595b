"""Pages of what was asked of private records and of models, and one function that writes the page of any result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sottovoce.app.charges import balances_around
from sottovoce.app.page import Occasion, describe_evaluation, ledger_page, make_card, page, promise_of, public_facts
from sottovoce.app.texts import render
from sottovoce.errors import InputError
from sottovoce.estimators import PrivateLinearModel
from sottovoce.estimators.description import Description
from sottovoce.estimators.evaluation import Evaluation
from sottovoce.federation.federation import as_account
from sottovoce.files import write_text
from sottovoce.privacy.ledger import Account, Ledger

Accounts = Mapping[str, Account]  # of those parties whose ledgers are here


def evaluation_page(found: Evaluation, accounts: Accounts, *, title: str = "Evaluation") -> str:
    """The page of an evaluation: its metrics, what was asked of whom, what it promises, and which ledgers paid."""
    told = found.to_dict()
    good, facts = {"How good the model is": describe_evaluation(told)}, public_facts(found.plan_)
    return _ask_page(title, "evaluation.html", found, accounts, sections=good, told=told, facts=facts)


def description_page(found: Description, accounts: Accounts, *, title: str = "Description") -> str:
    """The page of a description: a part for each column, what it promises, and which ledgers paid."""
    return _ask_page(title, "description.html", found, accounts, sections={})


def _ask_page(title: str, template: str, found: Evaluation | Description, accounts: Accounts, **values: Any) -> str:
    plan, report = found.plan_, found.privacy_
    accounts = accounts if plan.private else {}  # without privacy nothing is charged
    ledgers = [(party, *balances_around(account, plan.digest.hex())) for party, account in accounts.items()]
    names = {party: f"account {account.dataset} of {account.path.name}" for party, account in accounts.items()}
    values |= {"plan": plan, "report": report, "promise": promise_of(report, plan), "ledgers": ledgers, "where": names}
    return render(template, title=title, found=found, **values)


def card_page(model: PrivateLinearModel, told: Mapping[str, Any] | None, *, title: str = "Model card") -> str:
    """The page of a model card, with what an evaluation told of the model."""
    report, plan = model.privacy_, model.plan_
    return render("page.html", title=title, report=report, plan=plan, sections=make_card(model, told))


def write_page(result: Any, path: str | Path, *, card: bool | Evaluation = False, ledger: Any = None) -> None:
    """Write a result as a page: one HTML file that needs nothing else, fits on a phone and prints whole.

    It shows what is public about the result. No record is read and nothing is charged.

    Parameters
    ----------
    result : fitted model, Evaluation, Description or Ledger
        What the page is about.
    path : str or Path
        Where it is written; a file that is there is replaced.
    card : bool or Evaluation
        Of a model the model card in place of the privacy report; with that evaluation of it.
    ledger : path, Ledger, Account, mapping or None
        What paid for an evaluation or a description, whose cost the page then says; of a federation by parties' names.
    """
    payers = ledger if isinstance(ledger, Mapping) else {"data": ledger}
    accounts = {party: account for party, each in payers.items() if (account := as_account(each)) is not None}
    if isinstance(card, Evaluation) and card.model != getattr(result, "charged_as_", None):
        raise InputError("card is an evaluation of another model; evaluate this one.")
    if isinstance(result, Evaluation):
        text = evaluation_page(result, accounts)
    elif isinstance(result, Description):
        text = description_page(result, accounts)
    elif isinstance(result, Ledger):
        text = ledger_page(result)
    elif isinstance(result, PrivateLinearModel) and card:
        text = card_page(result, card.to_dict() if isinstance(card, Evaluation) else None)
    elif isinstance(result, PrivateLinearModel):
        text = page(result, Occasion(about=result.plan_.about.texts()))
    else:
        raise InputError(f"result={type(result).__name__} must be a fitted model, Evaluation, Description or Ledger.")
    write_text(Path(path), text, "path")
