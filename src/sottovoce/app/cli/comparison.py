"""`sottovoce plan --epsilon ...`: several budgets side by side, with simulated accuracy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from sottovoce.app.cli import console as terminal
from sottovoce.app.jobs import Job
from sottovoce.app.previews import Preview, plan_job
from sottovoce.app.runs import read_facts
from sottovoce.data.files import format_of, read_table
from sottovoce.errors import InputError
from sottovoce.estimators.declarations import common_names
from sottovoce.estimators.plots import picture
from sottovoce.estimators.progress import progress_bar
from sottovoce.files import check_writable, write_data
from sottovoce.privacy.guarantee import percent

_ALARMS: Final = 0.05  # false alarms of the test that a comparison shows


def compare(
    job: Job, epsilons: list[float], like: Path | float | None, plot: Path | None, *, overwrite: bool, as_json: bool
) -> None:
    """Several epsilons side by side, with accuracy simulated on a public file, or on made-up records of a strength."""
    if plot is not None:
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise InputError("--plot needs matplotlib: install sottovoce[plots].") from None
        figure = Figure(layout="constrained")
        if plot.suffix[1:].lower() not in (known := figure.canvas.get_supported_filetypes()):
            raise InputError(f"--plot {plot} must end in one of .{', .'.join(sorted(known))}; .png is usual.")
        axes = figure.subplots()
        check_writable(plot, "--plot", overwrite=overwrite)
    (previews, work), beside = _plan_all(job, epsilons, like), terminal.aside()
    beside.print(f"{work.fits} fits of {sum(work.sizes):,} records, {terminal.seconds_text(work.seconds())}")
    with progress_bar("simulating", beside) as advance:
        simulated = work.run(advance)
    if plot is not None:
        drawn = picture(simulated.plot(axes), plot.suffix.lower())
        write_data(plot, drawn, "--plot", overwrite=overwrite)
    if as_json:
        plans = [shown.to_dict() for shown in previews]
        terminal.print_json({"epsilon": list(work.epsilons), "plans": plans, "simulation": simulated.to_dict()})
        return
    console = terminal.out()
    _show_comparison(previews, work.epsilons, console)
    titles, rows = simulated.cells()
    listing = terminal.table("epsilon>", "found at most>", *(f"{title}>" for title in titles[1:]), title="Simulated")
    for row, shown in itertools.zip_longest(rows, previews):
        rate = 1.0  # a person is found always, where nothing is promised to one
        if shown is not None and shown.report.weakest.void is None and shown.report.weakest.unit != "feature":
            rate = shown.report.weakest.detected(_ALARMS)
        listing.add_row(row[0], percent(rate), *row[1:])
    console.print()
    console.print(listing)
    console.print(f"- found at most: how often a test with {percent(_ALARMS)} false alarms finds a given person")
    for remark in simulated.remarks:
        console.print(f"- {remark}")
    if like is None:
        console.print("- nobody knows here how strong the effect is; --strength 0.6 simulates a weak one")
    opened = any(shown.files_opened for shown in previews)
    console.print(f"\nNothing was charged{'' if opened else ' and no data file was opened'}.")


def find_budget(job: Job, accuracy: float, like: Path | float | None, *, as_json: bool) -> None:
    """The least epsilon at which a simulated model of the job is so good."""
    from sottovoce.lab.needed_epsilon import find_epsilon

    (_, work), beside = _plan_all(job, [1.0], like), terminal.aside()
    metric = "r2" if work.problem.classes is None else "accuracy"
    found = find_epsilon(work, metric, accuracy, lambda epsilon: beside.print(f"simulating epsilon = {epsilon:g}"))
    if as_json:
        terminal.print_json(found.to_dict())
        return
    console = terminal.out()
    console.print(found.sentence(), style="bold", soft_wrap=True)
    titles, rows = found.simulation.cells()
    listing = terminal.table(*(f"{title}>" for title in titles), title="Simulated")
    for row in rows:
        listing.add_row(*row)
    console.print(listing)
    for remark in found.simulation.remarks:
        console.print(f"- {remark}")


def _plan_all(job: Job, epsilons: Sequence[float], like: Path | float | None) -> tuple[list[Preview], Any]:
    """The plans of a job at these epsilons, the smallest first, and the simulation to be run. No record is read."""
    from sottovoce.lab.simulation import SimulatedFits, check_epsilons
    from sottovoce.lab.synthetic import LookAlike, MadeUp

    facts, notes = read_facts(job)
    budgets = check_epsilons(epsilons)
    jobs = [job.model_copy(update={"privacy": job.privacy.model_copy(update={"epsilon": each})}) for each in budgets]
    previews = [plan_job(each, (facts, notes)) for each in jobs]
    names = common_names({fact.party: vars(fact) for fact in facts}, job.split)
    schema, problem = job.known_schema, previews[0].plan
    if schema is not None and names:
        schema = schema.of_features(names)
    source: Any = like if isinstance(like, Path) else MadeUp.of(problem, schema, like)
    if (
        isinstance(like, Path) and schema is None
    ):  # numbers in the columns of the job, the label as in the job's own files
        label = next((source.label for source in job.sources.values() if source.label is not None), -1)
        features = sum(fact.features for fact in facts) if job.split.same_people else facts[0].features
        table = read_table(like, label=label) if format_of(like).tabular else read_table(like, features=features)
        rows = table.X
        if names and set(names) <= set(table.feature_names):
            rows = rows[:, [table.feature_names.index(name) for name in names]]
        if rows.shape[1] != features:
            raise InputError(
                f"--like {like} has {rows.shape[1]} features and the job {features}; give a file with the same columns."
            )
        source = rows, table.y
    if isinstance(like, Path):
        source = LookAlike.of(source, schema)
    return previews, SimulatedFits(jobs[0].estimator(), problem, schema, source, budgets)


def _list_noises(previews: Sequence[Preview], epsilons: Sequence[float], place: int) -> Table:
    """What leaves under one of the plans of a fit, with its noise at each epsilon."""
    noises: dict[tuple[str, ...], dict[float, str]] = {}
    for shown, at in zip(previews, epsilons, strict=True):
        for *release, noise in terminal.describe_releases(shown.plans[place], shown.plans[:1])[2]:
            noises.setdefault(tuple(release), {})[at] = noise
    title, columns, _ = terminal.describe_releases(previews[0].plans[place], previews[0].plans)
    listing = terminal.table(*columns[:-1], *(f"noise at {at:g}>" for at in epsilons), title=title)
    for row, noise_at in noises.items():
        listing.add_row(*row, *(noise_at.get(at, "") for at in epsilons))
    return listing


def _show_comparison(previews: Sequence[Preview], epsilons: Sequence[float], console: Console) -> None:
    first = previews[0]
    terminal.show_problem(first.plan, console)
    if len({shown.plan.algorithm for shown in previews}) > 1:
        each = ", ".join(f"{shown.plan.algorithm} at {at:g}" for shown, at in zip(previews, epsilons, strict=True))
        console.print(f"solver: {each}")
    for place in range(len(first.plans)):  # every preview has as many
        console.print()
        console.print(_list_noises(previews, epsilons, place))
    if first.charges:
        listing = terminal.table("epsilon>", *terminal.CHARGE_COLUMNS, title="Ledgers, in epsilon")
        for shown, at in zip(previews, epsilons, strict=True):
            for row in terminal.charge_rows(shown, console):
                listing.add_row(f"{at:g}", *row)
        console.print()
        console.print(listing)
    for shown, at in zip(previews, epsilons, strict=True):
        for charge in shown.charges:
            if charge.refusal:
                console.print(f"refused by {charge.party} at {at:g}: {charge.refusal}")
    for shown, at in zip(previews, epsilons, strict=True) if first.report.weakest.computational else ():
        console.print(f"at {at:g} it {shown.report.weakest.mark}. {shown.report.weakest.if_broken}", soft_wrap=True)
    voids = [shown.report.weakest.void for shown in previews if shown.report.weakest.void is not None]
    for note in dict.fromkeys([*voids, *(note for shown in previews for note in shown.notes)]):
        console.print(f"note: {note}")
