"""The command line. Heavy modules are imported inside the commands, so that help and ledgers are quick."""

from __future__ import annotations

import sys

import typer

from sottovoce.app.cli import evidence, fitted, ledgers, parties, sites, starting, training
from sottovoce.app.cli.console import Commands, complain, show_log

_EPILOG = """**Exit codes:** 0 done; 1 unexpected error; 2 bad input or usage; 3 refused by a budget or by a
party's policy; 4 trouble on the wire; 5 trouble with a ledger.

**First steps:** with a table of your own `sottovoce schema`, `job`, `ledger create`, `plan`, `fit`, then `predict`,
`evaluate` and `card`; drafts and fits say what is next. Several organisations: `sottovoce demo`, then `provision`."""


app = typer.Typer(
    cls=Commands,
    name="sottovoce",
    help="Linear models under differential privacy: one place, or several parties that keep their records.",
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(starting.schema)
app.command(name="job")(starting.draft)
app.command(cls=training.SeveralEpsilons)(training.plan)
app.command("describe")(starting.describe_tables)
for command in (
    *(training.fit, fitted.predict, fitted.evaluate, fitted.card, fitted.sheet, fitted.coefficients),
    *(starting.solvers, sites.provision, sites.certificates, sites.request, sites.sign, sites.revoke, sites.pin),
    *(sites.doctor, parties.party, parties.dealer, parties.align, starting.demo, starting.example),
    *(evidence.audit, evidence.reproduce),
):
    app.command()(command)
for group, name in ((ledgers.app, "ledger"), (ledgers.models, "models"), (sites.nvflare, "nvflare")):
    app.add_typer(group, name=name)
app.callback()(show_log)


def main() -> None:
    """Run the command line."""
    try:
        app()
    except Exception as error:
        complain(f"unexpected {type(error).__name__}: {error}")
        sys.exit(1)
