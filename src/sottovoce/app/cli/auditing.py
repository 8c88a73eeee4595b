"""`sottovoce audit`."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.app.cli.console import AsJson, aside, out, print_json, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from sottovoce.lab.audit.games import Result


def audit(
    job: Annotated[
        Path | None, typer.Argument(metavar="[JOB]", help="A job whose plan is attacked.", show_default=False)
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Games whose names begin so, such as a solver's; may be repeated.")
    ] = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="20 times the runs: bounds nearer to the truth.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write claimed against measured as a picture (.svg, .png, .pdf).")
    ] = None,
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
    from sottovoce.app.runs import planned
    from sottovoce.estimators.progress import progress_bar
    from sottovoce.lab.audit import runner

    plan = None if job is None else planned(load_job(job)).plan
    start = time.perf_counter()
    with progress_bar("attacking", aside()) as advance:
        results = runner.run_audit(only or (), plan=plan, thorough=thorough, processes=processes, progress=advance)
    seconds = time.perf_counter() - start
    if plot is not None:
        runner.plot(results, plot)
    broken = [result.name for result in results if result.broken]
    if as_json:
        print_json({"seconds": seconds, "broken": broken, "games": [dataclasses.asdict(r) for r in results]})
    else:
        show_results(results, seconds, out())
        if plot is not None:
            out().print(f"plot: {plot}", soft_wrap=True)
    if broken:
        raise typer.Exit(1)


def show_results(results: Sequence[Result], seconds: float, console: Console) -> None:
    """One line for each game, those of one kind together, and what they say."""
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
