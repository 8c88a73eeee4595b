"""The command line. Heavy modules are imported inside the commands, so that help and ledgers are quick."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sottovoce import __version__
from sottovoce.app.cli import evidence, fitted, ledgers, models, parties, sites, starting, training
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
app.command(cls=training.SeveralEpsilons)(training.plan)
for command in (
    *(training.fit, fitted.predict, starting.schema, fitted.evaluate, fitted.card, fitted.coefficients),
    *(starting.solvers, sites.provision, sites.certificates, sites.request, sites.sign, sites.revoke, sites.pin),
    *(sites.doctor, parties.party, parties.dealer, parties.align, starting.demo, starting.example),
    *(evidence.audit, evidence.reproduce),
):
    app.command()(command)
for group, name in ((ledgers.app, "ledger"), (models.app, "models"), (sites.nvflare, "nvflare")):
    app.add_typer(group, name=name)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"sottovoce {__version__}")
        raise typer.Exit


@app.callback()
def _show_version_and_log(
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
