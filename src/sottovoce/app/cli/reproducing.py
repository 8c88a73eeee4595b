"""`sottovoce reproduce`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.app.cli.console import AsJson, aside, out, print_json, table

if TYPE_CHECKING:
    from rich.console import Console

    from sottovoce.lab.reproduce import PaperTable

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="dp-cd, dp-scd, admm, frank-wolfe or sgd.", show_default=False)
]


def reproduce(
    name: Name,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer runs and smaller sizes.")] = False,
    only: Annotated[str | None, typer.Option(help="One part; an unknown name lists the parts.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="The folder of data sets, else SOTTOVOCE_DATA, else they are downloaded.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the tables to this PNG file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a paper's experiment again and show our numbers beside the published ones, in minutes.

    Papers without experiments have their claims measured: true epsilon against claimed, bytes against their growth.
    YearPredictionMSD and gisette are never downloaded: supply them as the last lines say.
    Noise comes from fixed seeds; nothing here protects anybody.

    - `sottovoce reproduce dp-cd`
    - `sottovoce reproduce admm --quick --plot admm.png`
    - `sottovoce reproduce admm --only gisette --data ~/data`
    """
    from sottovoce.lab.reproduce import Setup, draw_tables, paper, run_paper

    console, start = out(), time.perf_counter()
    source = paper(name).source
    if not as_json:
        console.print(f"{name}: {source}\n")
    with aside().status(name) as status:
        setup = Setup(quick, data, status.update)
        made = run_paper(name, setup, only=only, done=None if as_json else lambda found: show(found, console))
    if plot is not None:
        draw_tables(made, plot)
    seconds = time.perf_counter() - start
    if as_json:
        print_json({**made.to_dict(), "seconds": seconds})
        return
    if made.not_reproduced:
        console.print("Not reproduced", style="bold")
    for text in made.not_reproduced:
        console.print(f"- {text}")
    console.print(f"\n{seconds:.0f} s{'' if plot is None else f'; drawn to {plot}'}")


def show(found: PaperTable, console: Console) -> None:
    """One table; a setting is written where it changes."""
    from sottovoce.lab.reproduce import format_number

    of = ("of",) if any(row.series for row in found.rows) else ()
    listing = table(*of, found.axis, *(f"{head}>" for head in found.heads), "settings", title=found.title)
    before = ""
    for row in found.rows:
        at = row.at if isinstance(row.at, str) else format_number(row.at)
        ours = format_number(row.ours) if row.spread is None else f"{row.ours:.3g} ± {row.spread:.2g}"
        series = (row.series,) if of else ()
        listing.add_row(*series, at, format_number(row.published), ours, "" if row.how == before else row.how)
        before = row.how
    console.print(listing)
    console.print(f"{found.measure}. {found.note}".strip() + "\n")
