"""The command line. Heavy modules are imported inside the commands, so that help and ledgers are quick."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sottovoce import __version__
from sottovoce.app.cli import (
    aligning,
    auditing,
    cards,
    certificates,
    comparing,
    demonstration,
    evaluation,
    flare,
    inference,
    ledgers,
    models,
    parties,
    prediction,
    reproducing,
    schemas,
    sites,
    solving,
    training,
)
from sottovoce.app.cli.console import OUT_OF_MEMORY, complain, exit_code, show_log
from sottovoce.errors import SottovoceError

_EPILOG = """**Exit codes:** 0 done; 1 unexpected error; 2 bad input or usage; 3 refused by a budget or by a
party's policy; 4 trouble on the wire; 5 trouble with a ledger.

**First steps:** `sottovoce demo`, then `sottovoce plan job.toml` and `sottovoce fit job.toml`."""


class _Group(TyperGroup):
    """Errors that the package raises on purpose, and those of the system about files, become one line and a code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SottovoceError as error:
            complain(str(error))
            raise typer.Exit(exit_code(error)) from None
        except MemoryError:
            complain(OUT_OF_MEMORY)
            raise typer.Exit(2) from None
        except (ConnectionError, TimeoutError):
            raise
        except OSError as error:  # of a path that nothing else looked at, such as a name that is too long
            what = error.filename or "a file"
            complain(f"{what} cannot be read or written ({error.strerror or type(error).__name__}); give another path.")
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=_Group,
    name="sottovoce",
    help="Linear models under differential privacy: one place, or several parties that keep their records.",
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=comparing.SeveralEpsilons)(training.plan)
app.command()(training.fit)
app.command()(prediction.predict)
app.command()(schemas.schema)
app.command()(evaluation.evaluate)
app.command()(cards.card)
app.command()(inference.coefficients)
app.command()(solving.solvers)
app.add_typer(ledgers.app, name="ledger")
app.add_typer(models.app, name="models")
app.command()(sites.provision)
app.command()(certificates.certificates)
app.command()(certificates.request)
app.command()(certificates.sign)
app.command()(certificates.revoke)
app.command()(certificates.pin)
app.command()(sites.doctor)
app.command()(parties.party)
app.command()(parties.helper)
app.command()(aligning.align)
app.add_typer(flare.app, name="nvflare")
app.command()(demonstration.demo)
app.command()(demonstration.example)
app.command()(auditing.audit)
app.command()(reproducing.reproduce)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"sottovoce {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    show_log()


def main() -> None:
    """Run the command line."""
    try:
        app()
    except Exception as error:
        complain(f"unexpected {type(error).__name__}: {error}")
        sys.exit(1)
