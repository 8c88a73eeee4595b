"""What the commands share: where they write, in which form, how a plan and a fit are shown, and how they fail."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

import typer
from typer.core import TyperGroup

from sottovoce import __version__
from sottovoce.app.texts import harmless, readable_size
from sottovoce.errors import BudgetError, InputError, LedgerError, RefusedError, SottovoceError, WireError
from sottovoce.numerals import number_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sottovoce.app.job_file import ViewTable
    from sottovoce.app.previews import Preview
    from sottovoce.estimators import PrivateLinearModel
    from sottovoce.plan.plan import Plan
    from sottovoce.privacy.guarantee import PrivacyReport

CHARGE_COLUMNS: Final = ("party", "account", "total>", "left now>", "left after>", "used after")
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
    cli_option(
        "Serve a page for operators at this port of 127.0.0.1; 0: any.", "--view", metavar="PORT", min=0, max=65535
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

_CODES: Final = {InputError: 2, BudgetError: 3, RefusedError: 3, WireError: 4, LedgerError: 5}  # 1 is anything else


def change_view(
    table: ViewTable, port: int | None = None, off: bool = False, log: str | None = None, *, if_asked: bool = False
) -> ViewTable:
    """A table [view] with what the command line says in its place; a page is served, or only `if_asked` for."""
    if off and port is not None:
        raise InputError("--view and --no-view: one serves the page and the other does not; leave one out.")
    said: dict[str, Any] = {} if log is None else {"log": log}
    if port is not None:
        said |= {"port": port, "off": False}
    elif off or (if_asked and "port" not in table.model_fields_set):
        said["off"] = True
    return table.model_copy(update=said)


class Commands(TyperGroup):
    """Errors that the package raises on purpose, and those of the system about files, become one line and a code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SottovoceError as error:
            complain(str(error))
            raise typer.Exit(next((code for kind, code in _CODES.items() if isinstance(error, kind)), 1)) from None
        except MemoryError:
            complain(OUT_OF_MEMORY)
            raise typer.Exit(2) from None
        except (ConnectionError, TimeoutError):
            raise
        except OSError as error:  # of a path that nothing else looked at, such as a name that is too long
            what = error.filename or "a file"
            complain(f"{what} cannot be read or written ({error.strerror or type(error).__name__}); give another path.")
            raise typer.Exit(2) from None


def complain(text: str) -> None:
    """One line on the standard error."""
    typer.echo(f"error: {harmless(' '.join(text.split()))}", err=True)


def out() -> Console:
    """Text for people on the standard output."""
    return _console(sys.stdout)


def aside() -> Console:
    """Progress and remarks on the standard error."""
    return _console(sys.stderr)


@functools.cache
def _harmless_classes() -> tuple[type[Console], type[Table]]:
    """All texts for people pass here: none of them, whoever wrote it, tells the terminal what to do."""
    from rich.console import Console
    from rich.table import Table

    def made_harmless(each: Any) -> Any:
        return harmless(each) if isinstance(each, str) else each

    class HarmlessConsole(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            super().print(*map(made_harmless, objects), **options)

    class HarmlessTable(Table):
        def add_row(self, *cells: Any, **options: Any) -> None:
            super().add_row(*map(made_harmless, cells), **options)

    return HarmlessConsole, HarmlessTable


def _console(stream: TextIO) -> Console:
    if isinstance(stream, io.TextIOWrapper):
        with contextlib.suppress(OSError):  # of a stream that another was put in the place of
            stream.reconfigure(errors="backslashreplace")  # a letter that it cannot show stops nothing
    return _harmless_classes()[0](highlight=False, emoji=False, markup=False, file=stream)


class _Remark(logging.Handler):
    """A log record as a line on the standard error, above a progress line if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        aside().print(record.getMessage(), soft_wrap=True)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"sottovoce {__version__}")
        raise typer.Exit


def show_log(
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Show what the package logs: warnings, and that loops are being compiled."""
    logging.getLogger("sottovoce.kernels").setLevel(logging.INFO)
    log = logging.getLogger("sottovoce")
    if _Remark not in map(type, log.handlers):
        log.addHandler(_Remark())


def print_result(value: Any, text: str, *, as_json: bool) -> None:
    """The result of a command: a JSON object, or a text for people."""
    if as_json:
        print_json(value)
    else:
        out().print(text, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON object; an infinite number is the text "inf"."""
    from sottovoce.estimators.model_file import plain

    typer.echo(json.dumps(plain(value), indent=2, allow_nan=False))


def table(*columns: str, title: str | None = None, rows: Iterable[Sequence[str]] = ()) -> Table:
    """A table that needs no colour. A column whose name ends with > is for numbers."""
    from rich import box

    look: Any = {"box": box.SIMPLE_HEAD, "title_justify": "left", "title_style": "bold"}
    made = _harmless_classes()[1](title=title, pad_edge=False, show_edge=False, **look)
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
    for remark in report.notes():
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


def show_preview(shown: Preview, console: Console, *, remarks: bool = True) -> None:
    """The guarantee, the releases, the cost and the ledgers of a plan; `remarks` adds refusals and notes."""
    show_problem(made := shown.plan, console)
    console.print("\nGuarantee", style="bold")
    show_promises(shown.report, console, several=made.split.several)
    if shown.first is not None:
        console.print(f"\n{shown.first}", soft_wrap=True)
    for each in shown.plans:
        if each.private:
            title, columns, rows = describe_releases(each, shown.plans)
            console.print()
            console.print(table(*columns, title=title, rows=rows))
    console.print()
    show_cost(shown, console)
    if shown.charges:
        console.print()
        console.print(table(*CHARGE_COLUMNS, title="Ledgers, in epsilon", rows=charge_rows(shown, console)))
        if made.split.same_people:
            console.print("A person is in every party, so each ledger is charged what all parties release together.")
    console.print(f"Solver: {made.algorithm}, {shown.why}")
    if shown.sums:
        console.print(f"Sums: {shown.sums}")
    for refusal in dict.fromkeys(charge.refusal for charge in shown.charges if charge.refusal and remarks):
        who = ", ".join(charge.party for charge in shown.charges if charge.refusal == refusal)
        console.print(f"refused by {who}: {refusal}")
    for note in shown.notes if remarks else ():
        console.print(f"note: {note}")


def show_cost(shown: Preview, console: Console) -> None:
    """Rounds, bytes, time and memory, and where prepared rows will be stored."""
    cost, parties = shown.cost, len(shown.plan.parties)
    if cost.rounds is None:
        console.print("Cost: without privacy the run stops when it has converged, which no plan can tell.")
        return
    up, down, dealt = cost.uplink_bytes or 0, cost.downlink_bytes or 0, cost.dealt_bytes or 0
    console.print(
        f"Cost: {cost.rounds} rounds, about {readable_size(up)} from the parties and {readable_size(down)} to them, "
        f"{seconds_text(cost.seconds or 0.0)} of {'reading and ' if cost.reading else ''}computing and about "
        f"{readable_size(cost.memory_bytes or 0)} of memory on this machine"
    )
    for rows in shown.prepared:
        place = f"{readable_size(rows.size)} {'on the device' if rows.where == 'device' else 'in memory'}"
        if rows.where == "file":
            place = f"{readable_size(rows.size)} in a file in {rows.folder}"
        elif rows.workers:
            place = f"at {rows.workers} workers of the cluster, {readable_size(rows.size / rows.workers)} each"
        console.print(f"prepared rows: {place}", soft_wrap=True)
    if shown.plan.channel.secure:
        text = f"Secure: a party sends about {readable_size(up / parties)} and gets {readable_size(down / parties)}"
        if dealt:
            share, dealer = readable_size(dealt / parties), shown.plan.channel.dealer
            text += f"; {share} of what it gets is dealt by {dealer}, {readable_size(dealt)} in all"
        console.print(text, soft_wrap=True)


def show_problem(made: Plan, console: Console) -> None:
    """What is fitted to how many records, and where they are."""
    where = f"at {len(made.parties)} parties, split by {made.split}" if made.split.several else "in one place"
    console.print(
        f"{made.loss.name} loss, penalty {made.regulariser.name}, solver {made.algorithm}: "
        f"{made.records:,} records, {made.features} features, {where}"
    )
    if made.split.same_people:
        from sottovoce.app.page import known_labels

        widths = ", ".join(f"{name} {count}" for (name, _), count in zip(made.parties, made.columns, strict=True))
        console.print(f"features: {widths}; labels: {known_labels(made)}")


def describe_releases(
    made: Plan, plans: Sequence[Plan]
) -> tuple[str, tuple[str, ...], list[tuple[str, str, str, str, str]]]:
    """What leaves under a private plan, as a table: its title, its columns, the noise last, and a row for each release.

    Of several plans of a fit the title says which one it is, and its share of the budget.
    """
    from sottovoce import algorithms
    from sottovoce.app.page import releases

    heading, rows = made.channel.leaves, []
    if len(plans) > 1:
        share = made.mu**2 / sum(each.mu**2 for each in plans)
        heading += f": {algorithms.of(made).title.partition(':')[0]}, {100 * share:.3g}% of mu squared"
    for title, release, times, moves in releases(made):
        part = "all records" if release.rate in (None, 1.0) else f"a secret {100 * release.rate:g}%"
        rows.append((title, f"{times}", part, f"{moves:.4g}", f"{release.std:.4g}"))
    return heading, ("release", "times>", "of", f"one {made.protects} moves it by>", "noise, std>"), rows


def charge_rows(shown: Preview, console: Console) -> Iterator[tuple[str, ...]]:
    """A row for each ledger."""
    for charge in shown.charges:
        row = (charge.party, charge.account, f"{charge.before.total:g}", f"{charge.before.left:.4g}")
        if charge.after is None:
            yield *row, "refused", ""
        else:
            yield *row, f"{charge.after.left:.4g}", bar(charge.after.share, console)


def show_summary(
    model: PrivateLinearModel, paths: dict[str, Path], left: dict[str, float], seconds: float, console: Console
) -> None:
    """What was done and where it is."""
    report: Any = model.privacy_
    sizes, weakest = model.communication_, report.weakest
    numbers = f"epsilon {number_text(weakest.epsilon)}, delta {number_text(weakest.delta)}"
    promise = f"{numbers}, {weakest.relation}"
    if weakest.void is not None or math.isinf(weakest.epsilon):
        promise = f"NONE. {weakest.void or 'The values that left had no noise.'}"
    elif weakest.unit == "feature":
        promise = f"NONE to a person; to a feature of one party {numbers}"
    console.print(
        f"trained in {seconds:.1f} s: {sizes.rounds} rounds, {readable_size(sizes.uplink_bytes)} from the parties, "
        f"{readable_size(sizes.downlink_bytes)} to them"
    )
    console.print(f"promise against everybody: {promise}")
    if weakest.promises and weakest.computational:
        more = f"and {len(weakest.assumes) - 1} further assumptions, which the page lists"
        console.print(f"which {weakest.mark}, {more}", soft_wrap=True)
        console.print(weakest.if_broken, soft_wrap=True)
    for party, rest in left.items():
        console.print(f"ledger of {party}: epsilon {rest:.4g} left")
    for key, path in paths.items():
        console.print(f"{key}: {path}", soft_wrap=True)
    if "model" in paths:
        console.print("next: `sottovoce predict`, `evaluate` and `card` take the model")
