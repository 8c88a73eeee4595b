"""What the commands share: where they write, in which form, and how they fail."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TextIO

import typer

from sottovoce.app.texts import harmless
from sottovoce.errors import BudgetError, InputError, LedgerError, RefusedError, SottovoceError, WireError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sottovoce.app.job_tables import ViewTable
    from sottovoce.app.jobs import Job
    from sottovoce.privacy.guarantee import PrivacyReport

JOB: Final = "SOTTOVOCE_JOB"  # the path of the job file, in the environment


def group(text: str) -> typer.Typer:
    """Commands below one name, with its help."""
    return typer.Typer(help=text, no_args_is_help=True, rich_markup_mode="markdown")


def argument(metavar: str, text: str) -> Any:
    """An argument of a command, with its name and help."""
    return typer.Argument(metavar=metavar, help=text, show_default=False)


def cli_option(text: str, *names: str, **settings: Any) -> Any:
    """An option of a command with its help, which names the default if it is not obvious."""
    return typer.Option(*names, help=text, show_default=False, **settings)


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
JobPath = Annotated[Path, argument("JOB", "A job file in TOML.")]
ModelPath = Annotated[Path, argument("MODEL", "A model file that `fit` wrote.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace output files that are there already.")]

ViewPort = Annotated[
    int | None,
    typer.Option(
        "--view", metavar="PORT", min=0, max=65535, help="Serve a page for operators at this port of 127.0.0.1; 0: any."
    ),
]
NoView = Annotated[bool, typer.Option("--no-view", help="Serve no page, no metrics and no health.")]
LogJson = Annotated[
    str | None,
    typer.Option(
        "--log-json",
        metavar="FILE",
        help="Append what happens as lines of JSON; -: to the standard output, without texts for people.",
    ),
]

OUT_OF_MEMORY: Final = (
    "out of memory: the machine, the control group or the limits of this process (ulimit -d, ulimit -v) leave it too "
    "little. Raise them, or stop other programs."
)

_CODES: Mapping[type[SottovoceError], int] = {
    InputError: 2,
    BudgetError: 3,
    RefusedError: 3,
    WireError: 4,
    LedgerError: 5,
}


class ViewOptions(NamedTuple):
    """What the command line says of the view; a file's table [view] says the rest."""

    port: int | None = None
    off: bool = False
    log: str | None = None

    def over(self, table: ViewTable) -> ViewTable:
        """The table with what the command line says in its place."""
        if self.off and self.port is not None:
            raise InputError("--view and --no-view: one serves the page and the other does not; leave one out.")
        said = {"port": self.port, "off": False if self.port is not None else self.off or None, "log": self.log}
        return table.model_copy(update={key: value for key, value in said.items() if value is not None})

    def of_fit(self, job: Job, *, quiet: bool) -> ViewTable:
        """The same for a fit: with the data here, or quietly, a page is served if it is asked for."""
        asked = self.port is not None or "port" in job.view.model_fields_set
        if not asked and (quiet or job.federation is None):
            return self._replace(off=True).over(job.view)
        return self.over(job.view)


def exit_code(error: SottovoceError) -> int:
    """2 bad input, 3 refused, 4 wire, 5 ledger, 1 anything else."""
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), 1)


def complain(text: str) -> None:
    """One line on the standard error."""
    typer.echo(f"error: {harmless(' '.join(text.split()))}", err=True)


def out() -> Console:
    """Text for people on the standard output."""
    return _console(sys.stdout)


def aside() -> Console:
    """Progress and remarks on the standard error."""
    return _console(sys.stderr)


def _console(stream: TextIO) -> Console:
    """All texts for people pass here: none of them, whoever wrote it, tells the terminal what to do."""
    from rich.console import Console

    if isinstance(stream, io.TextIOWrapper):
        with contextlib.suppress(OSError):  # of a stream that another was put in the place of
            stream.reconfigure(errors="backslashreplace")  # a letter that it cannot show stops nothing

    class Harmless(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            super().print(*(harmless(each) if isinstance(each, str) else each for each in objects), **options)

    return Harmless(highlight=False, emoji=False, markup=False, file=stream)


class _Remark(logging.Handler):
    """A log record as a line on the standard error, above a progress line if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        aside().print(record.getMessage(), soft_wrap=True)


def show_log() -> None:
    """Show what the package logs: warnings, and that loops are being compiled."""
    logging.getLogger("sottovoce.kernels").setLevel(logging.INFO)
    log = logging.getLogger("sottovoce")
    if not any(isinstance(handler, _Remark) for handler in log.handlers):
        log.addHandler(_Remark())


def print_result(value: Any, text: str, *, as_json: bool) -> None:
    """The result of a command: a JSON object, or a text for people."""
    if as_json:
        print_json(value)
    else:
        out().print(text, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON object; an infinite number is the text "inf"."""
    from sottovoce.app.model_file import plain

    typer.echo(json.dumps(plain(value), indent=2, allow_nan=False))


def table(*columns: str, title: str | None = None, rows: Iterable[Sequence[str]] = ()) -> Table:
    """A table that needs no colour. A column whose name ends with > is for numbers."""
    from rich import box
    from rich.table import Table

    class Harmless(Table):
        def add_row(self, *cells: Any, **options: Any) -> None:
            super().add_row(*(harmless(each) if isinstance(each, str) else each for each in cells), **options)

    made = Harmless(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    made.show_edge = False
    for column in columns:
        made.add_column(column.rstrip(">"), justify="right" if column.endswith(">") else "left")
    for row in rows:
        made.add_row(*row)
    return made


def show_promises(report: PrivacyReport, console: Console, *, several: bool = True) -> None:
    """The sentence against each adversary, one paragraph each; with all data in one place there is only the world."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 1))
    for view in report.views(several=several):
        grid.add_row("-", view.sentence())
    for remark in report.remarks():
        grid.add_row("-", remark)
    if report.assumptions:
        grid.add_row("-", f"This rests on: {'; '.join(report.assumptions)}.")
    console.print(grid)


def bar(share: float, console: Console, width: int | None = None) -> str:
    """The used part of a budget as a bar, shorter in a narrow terminal."""
    width = (20 if console.width >= 100 else 6) if width is None else width
    full, empty = ("█", "░") if console.encoding.startswith("utf") else ("#", ".")
    used = min(max(round(share * width), share > 0), width)
    return full * used + empty * (width - used)


def seconds_text(seconds: float) -> str:
    """A rough time, as people say it."""
    if seconds < 1:
        return "less than a second"
    if seconds < 90:
        return f"about {seconds:.0f} s"
    minutes = seconds / 60
    return f"about {minutes:.0f} min" if minutes < 90 else f"about {minutes / 60:.1f} h"
