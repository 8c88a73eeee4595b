"""`sottovoce audit` and `reproduce`: evidence for what the package claims."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.app.cli.console import AsJson, argument, aside, cli_option, out, print_json, table

if TYPE_CHECKING:
    from sottovoce.lab.audit.games import Result
    from sottovoce.lab.reproduce import PaperTable


def audit(
    job: Annotated[Path | None, argument("[JOB]", "A job whose plan is attacked.")] = None,
    only: Annotated[
        list[str] | None, cli_option("Games whose names begin so, such as a solver's; may be repeated.")
    ] = None,
    thorough: Annotated[bool, cli_option("20 times the runs: bounds nearer to the truth.", "--thorough")] = False,
    plot: Annotated[Path | None, cli_option("Write claimed against measured as a picture (.svg, .png, .pdf).")] = None,
    processes: Annotated[int, typer.Option(min=1, help="How many processes play.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Attack every algorithm, and show what was claimed beside what an attack proves.

    Each game plays an algorithm's own code on two data sets that differ in one record, again and again, and guesses
    which it was from what the adversary sees. The errors prove a lower bound of the privacy loss. For ours it must lie
    below the claim; for some published calibrations it lies above, as their claims do not hold. Takes three minutes.
    With a job, the plan of the job is attacked: its solver, bounds, rounds and calibration, on made-up records and with
    the noise of a mu of 2. No data file is read and nothing is charged.
    Ends with code 1 if a claim of ours is broken.

    - `sottovoce audit`
    - `sottovoce audit --only scd --only admm`
    - `sottovoce audit job.toml --thorough`
    - `sottovoce audit --plot audit.svg --json`
    """
    from sottovoce.app.jobs import load_job
    from sottovoce.app.previews import plan_job
    from sottovoce.estimators.progress import progress_bar
    from sottovoce.lab.audit import runner

    plan = None if job is None else plan_job(load_job(job)).plan
    start = time.perf_counter()
    with progress_bar("attacking", aside()) as advance:
        results = runner.run_audit(only or (), plan=plan, thorough=thorough, processes=processes, progress=advance)
    seconds = time.perf_counter() - start
    if plot is not None:
        runner.plot(results, plot)
    broken = [result.name for result in results if result.broken]
    if as_json:
        print_json({"seconds": seconds, "broken": broken, "games": [dataclasses.asdict(r) for r in results]})
        raise typer.Exit(1 if broken else 0)
    console = out()
    kinds: dict[str, list[Result]] = {}
    for result in results:
        measure = "mu" if result.measure == "mu" else f"epsilon at delta {result.delta:g}"
        kinds.setdefault(f"against the {result.adversary}, {result.relation}, {measure}", []).append(result)
    for kind, games in kinds.items():
        listing = table("algorithm", "claimed>", "measured>", "verdict")
        for result in games:
            listing.add_row(result.name, f"{result.claimed:.2f}", f"{result.measured:.2f}", result.verdict)
        console.print(f"\n{kind}", style="bold")
        console.print(listing)
    ours = [result for result in results if result.expected]
    held = sum(not result.broken for result in ours)
    console.print(f"\n{held} of {len(ours)} claims that should hold do, as far as these attacks see. {seconds:.0f} s.")
    others = [result for result in results if not result.expected]
    if others:
        shown = sum(result.measured > result.claimed for result in others)
        console.print(f"{shown} of {len(others)} published claims that cannot hold were broken.")
    if plot is not None:
        console.print(f"plot: {plot}", soft_wrap=True)
    if broken:
        raise typer.Exit(1)


def reproduce(
    name: Annotated[str, argument("NAME", "dp-cd, dp-scd, admm, frank-wolfe or sgd.")],
    quick: Annotated[bool, cli_option("Fewer runs and smaller sizes.", "--quick")] = False,
    only: Annotated[str | None, cli_option("One part; an unknown name lists the parts.")] = None,
    data: Annotated[
        Path | None, cli_option("The folder of data sets, else SOTTOVOCE_DATA, else they are downloaded.")
    ] = None,
    plot: Annotated[Path | None, cli_option("Draw the tables to this PNG file.")] = None,
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
        made = run_paper(name, setup, only=only, done=None if as_json else _show_table)
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


def _show_table(found: PaperTable) -> None:
    """One table; a setting is written where it changes."""
    from sottovoce.lab.reproduce import format_number

    console, of = out(), ("of",) if any(row.series for row in found.rows) else ()
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
