"""`sottovoce models list | show | approve`: the parts of models over columns that a party keeps, and its sign-off."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.app.cli.console import AsJson, argument, cli_option, group, out, print_json, table
from sottovoce.errors import InputError

if TYPE_CHECKING:
    from sottovoce.federation.models import StoredModel

app = group("Models over columns that a party keeps beside its ledger: look at them, and approve them for predictions.")

LedgerPath = Annotated[Path, argument("LEDGER", "The ledger of the training.")]
PlanName = Annotated[str, argument("[PLAN]", "The plan's digest, or how it begins; default: of the last model.")]
PartyName = Annotated[str | None, cli_option("The party, where several share the ledger.", "--party")]


@app.command(name="list")
def list_models(ledger: LedgerPath, as_json: AsJson = False) -> None:
    """List the models that are kept beside a ledger, and whether their holder approved them.

    - `sottovoce models list lab.ledger`
    """
    models = [_summarise(kept) for kept in _read_kept(ledger)]
    if as_json:
        print_json({"ledger": str(ledger), "models": models})
        return
    if not models:
        out().print(f"{ledger}: no model is kept beside it", soft_wrap=True)
        return
    listing = table("plan", "kept", "party", "solver", "columns>", "doubts>", "approved")
    for model in models:
        names = (model["plan"][:12], model["kept"][:16].replace("T", " "), model["party"], model["solver"])
        listing.add_row(*names, f"{model['columns']}", f"{len(model['doubts'])}", "yes" if model["approved"] else "no")
    out().print(listing)


@app.command(name="show")
def show_model(ledger: LedgerPath, plan: PlanName = "", party: PartyName = None, as_json: AsJson = False) -> None:
    """Show the coefficients that a party keeps of a model, and what each column can add to a score.

    - `sottovoce models show lab.ledger`
    - `sottovoce models show lab.ledger 3f0c`
    """
    kept = _find_kept(ledger, plan, party)
    if as_json:
        print_json({**_summarise(kept), "coefficients": _list_columns(kept), "intercept": kept.model.intercept})
    else:
        _show_kept(kept)


@app.command()
def approve(
    ledger: LedgerPath,
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
        print_json({**_summarise(kept), "approved": True})
    else:
        out().print(f"approved: {kept.model.party} predicts with the model of plan {kept.digest.hex()[:12]}")


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
    told, console = _summarise(kept), out()
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
    console.print(table("column", "coefficient>", "adds to a score, at most>", rows=rows))
    console.print(f"intercept {kept.model.intercept:.17g}")
    for doubt in told["doubts"]:
        console.print(f"WARNING: {doubt}", soft_wrap=True)
    console.print(
        "The coordinator told these numbers, or could steer them. A score is exact: whoever knows them may read from "
        "it columns that have few values, such as yes or no, whatever the coefficients are.",
    )
