"""`sottovoce audit` and `reproduce`: evidence for what the package claims."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.app.cli.console import AsJson, argument, aside, cli_option, out, print_json, print_result, table
from sottovoce.errors import InputError
from sottovoce.files import write_text

if TYPE_CHECKING:
    from sottovoce.lab.audit.games import Result
    from sottovoce.lab.reproduce import PaperTable, Reproduction


def attack(
    job: Annotated[Path | None, argument("[JOB]", "A job whose plan is attacked.")] = None,
    only: Annotated[
        list[str] | None, cli_option("Games whose names begin so, such as a solver's; may be repeated.")
    ] = None,
    model: Annotated[
        Path | None, cli_option("A fitted model whose own releases are attacked, at their own noise.", "--plan")
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
    With `--plan` and a fitted model its own releases are played at the gate at their own noise, with the worst that a
    record may do to each: what guesses prove is shown beside what was promised, and written to NAME.audit.json, where
    `sottovoce card` finds it.
    Ends with code 1 if a claim of ours is broken.

    - `sottovoce audit`
    - `sottovoce audit --only scd --only admm`
    - `sottovoce audit job.toml --thorough`
    - `sottovoce audit --plan model.json`
    - `sottovoce audit --plot audit.svg --json`
    """
    from sottovoce.app.jobs import load_job
    from sottovoce.app.previews import plan_job
    from sottovoce.estimators.progress import progress_bar
    from sottovoce.lab.audit import runner

    if model is not None:
        if job is not None or only or plot is not None:
            raise InputError("--plan attacks a fitted model alone; leave JOB, --only and --plot out.")
        _attack_model(model, thorough=thorough, as_json=as_json)
        return
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


def _attack_model(path: Path, *, thorough: bool, as_json: bool) -> None:
    """The attack on a model's releases: beside it in a file, which a later one replaces."""
    from sottovoce.app.page import attack_of
    from sottovoce.estimators.model_file import load_model
    from sottovoce.lab.audit import releases, runner

    model = load_model(path)
    proved = releases.audit(model, games=releases.GAMES * (runner.THOROUGH if thorough else 1))
    broken, target = proved.epsilon > model.privacy_.epsilon, attack_of(path)
    found = {"model": model.charged_as_, **dataclasses.asdict(proved)}
    write_text(target, json.dumps(found, indent=2) + "\n", "the attack", overwrite=True)
    print_result({**found, "broken": broken, "written": str(target)}, model.privacy_.notes()[-1], as_json=as_json)
    if broken:
        raise typer.Exit(1)


def reproduce(
    name: Annotated[str, argument("NAME", "dp-cd, dp-scd, admm, frank-wolfe or sgd; all for one page of all.")],
    quick: Annotated[bool, cli_option("Fewer runs and smaller sizes.", "--quick")] = False,
    only: Annotated[str | None, cli_option("One part; an unknown name lists the parts.")] = None,
    figure: Annotated[str | None, cli_option("One figure or table, by its number in the paper: 1, 'table 2'.")] = None,
    data: Annotated[
        Path | None, cli_option("The folder of data sets, else SOTTOVOCE_DATA, else they are downloaded.")
    ] = None,
    plot: Annotated[
        Path | None, cli_option("Draw figures into this folder, with a page of them and of all verdicts: index.html.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a paper's experiments again and show our numbers beside the published ones, in minutes.

    Every figure and table of a paper is made again, and every claim that it makes is judged: it holds, holds with
    another constant, is false, or is not decided, with the numbers that show it.
    YearPredictionMSD and gisette are never downloaded: supply them as the last lines say.
    Noise comes from fixed seeds; nothing here protects anybody.

    - `sottovoce reproduce dp-cd`
    - `sottovoce reproduce dp-scd --figure 2 --plot figures`
    - `sottovoce reproduce admm --only gisette --data ~/data`
    - `sottovoce reproduce all --quick --plot papers`
    """
    from sottovoce.lab.reproduce import NAMES, Setup, paper, run_paper

    console, start = out(), time.perf_counter()
    names = NAMES if name == "all" else (name,)
    if name == "all" and (only or figure):
        raise InputError(f"--only={only!r}, --figure={figure!r}: parts and figures are of one paper; name it.")
    made = []
    for each in names:
        if not as_json:
            console.print(f"{each}: {paper(each).told['source']}\n")
        with aside().status(each) as status:
            setup = Setup(quick, data, status.update)
            made.append(run_paper(each, setup, only=only, figure=figure, done=None if as_json else _show_table))
        if not as_json:
            _show_verdicts(made[-1])
    if plot is not None:
        from sottovoce.app.papers import write_pages

        write_pages(plot, made, quick=quick)
    seconds = time.perf_counter() - start
    if as_json:
        print_json({"seconds": seconds, "papers": [paper.to_dict() for paper in made]})
        return
    console.print(f"{seconds:.0f} s{'' if plot is None else f'; the page: {plot}/index.html'}", soft_wrap=True)


def _show_verdicts(made: Reproduction) -> None:
    """What holds of a paper's claims, and what of it could not be made."""
    console = out()
    if made.claims:
        listing = table("where", "claim", "verdict", "measured", title="Claims")
        for claim in made.claims:
            listing.add_row(claim.where, claim.says, claim.verdict, claim.measured)
        console.print(listing)
    if made.not_reproduced:
        console.print("\nNot reproduced", style="bold")
    for text in made.not_reproduced:
        console.print(f"- {text}")
    console.print()


def _show_table(found: PaperTable) -> None:
    """One table; of a long curve some points."""
    heads, rows = found.cells(6)
    listing = table(*(f"{head}>" if head in found.heads else head for head in heads), title=found.title)
    for row in rows:
        listing.add_row(*row)
    out().print(listing)
    out().print(f"{found.measure}. {found.note}".strip() + "\n")
