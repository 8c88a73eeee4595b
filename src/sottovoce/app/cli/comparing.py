"""`sottovoce plan --epsilon ...`: several budgets side by side."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typer.core import TyperCommand

from sottovoce.app.cli.console import aside, out, print_json, seconds_text, table
from sottovoce.app.cli.training import (
    CHARGE_COLUMNS,
    charge_rows,
    release_columns,
    release_rows,
    release_title,
    show_problem,
)
from sottovoce.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sottovoce.app.jobs import Job
    from sottovoce.app.previews import Preview
    from sottovoce.app.runs import PartyFacts
    from sottovoce.lab.simulation import SimulatedFits

_ALARMS: Final = 0.05  # false alarms of the test that a comparison shows


class SeveralEpsilons(TyperCommand):
    """`--epsilon 0.1 0.5 1` is `--epsilon 0.1 --epsilon 0.5 --epsilon 1`: the numbers behind it belong to it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before each further number."""
        spelled: list[str] = []
        inside = False
        for word in args:
            if inside and _is_number(word) and spelled[-1] != "--epsilon":
                spelled.append("--epsilon")
            inside = word.startswith("--epsilon") or (inside and _is_number(word))
            spelled.append(word)
        found: list[str] = super().parse_args(ctx, spelled)
        return found


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def compare(
    job: Job, epsilons: list[float], like: Path | None, plot: Path | None, *, overwrite: bool, as_json: bool
) -> None:
    """Several epsilons side by side, with simulated accuracy."""
    from sottovoce.estimators.plots import picture
    from sottovoce.estimators.progress import progress_bar
    from sottovoce.files import check_writable, write_data
    from sottovoce.privacy.guarantee import percent

    axes = None if plot is None else _axes(plot)
    if plot is not None:
        check_writable(plot, "--plot", overwrite=overwrite)
    (previews, work), beside = _plan_all(job, epsilons, like), aside()
    beside.print(f"{work.fits} fits of {sum(work.sizes):,} records, {seconds_text(work.seconds())}")
    with progress_bar("simulating", beside) as advance:
        simulated = work.run(advance)
    if axes is not None and plot is not None:
        drawn = picture(simulated.plot(axes).figure, plot.suffix.lower())
        write_data(plot, drawn, "--plot", overwrite=overwrite)
    if as_json:
        plans = [shown.to_dict() for shown in previews]
        print_json({"epsilon": list(work.epsilons), "plans": plans, "simulation": simulated.to_dict()})
        return
    console = out()
    _show_comparison(previews, work.epsilons, console)
    titles, rows = simulated.cells()
    listing = table("epsilon>", "found at most>", *(f"{title}>" for title in titles[1:]), title="Simulated")
    for row, shown in itertools.zip_longest(rows, previews):
        listing.add_row(row[0], percent(1.0 if shown is None else _detection_rate(shown)), *row[1:])
    console.print()
    console.print(listing)
    console.print(f"- found at most: how often a test with {percent(_ALARMS)} false alarms finds a given person")
    for remark in simulated.remarks:
        console.print(f"- {remark}")
    opened = any(shown.files_opened for shown in previews)
    console.print(f"\nNothing was charged{'' if opened else ' and no data file was opened'}.")


def _plan_all(job: Job, epsilons: Sequence[float], like: Path | None) -> tuple[list[Preview], SimulatedFits]:
    """The plans of a job at these epsilons, the smallest first, and the simulation to be run. No record is read."""
    from sottovoce.app.previews import plan_job
    from sottovoce.app.runs import read_facts
    from sottovoce.estimators.declarations import common_names
    from sottovoce.lab.made_up import LookAlike, MadeUp
    from sottovoce.lab.simulation import SimulatedFits, check_epsilons

    facts, notes = read_facts(job)
    budgets = check_epsilons(epsilons)
    jobs = [job.model_copy(update={"privacy": job.privacy.model_copy(update={"epsilon": each})}) for each in budgets]
    previews = [plan_job(each, (facts, notes)) for each in jobs]
    names = common_names({fact.party: vars(fact) for fact in facts}, job.split)
    schema, problem = job.known_schema, previews[0].plan
    if schema is not None and names:
        schema = schema.of_features(names)
    if like is None:
        source: Any = MadeUp.of(problem, schema)
    else:
        source = LookAlike.of(_read_look_alike(job, like, names, facts) if schema is None else like, schema)
    return previews, SimulatedFits(jobs[0].estimator(), problem, schema, source, budgets)


def _read_look_alike(job: Job, path: Path, names: Sequence[str], facts: Sequence[PartyFacts]) -> tuple[Any, Any]:
    """The numbers of a public file in the columns of the job, and its labels, the label as in the job's own files."""
    from sottovoce.data.files import format_of, read_table

    label = next((source.label for source in job.sources.values() if source.label is not None), -1)
    features = job.split.count_features([fact.features for fact in facts])
    table = read_table(path, label=label) if format_of(path).tabular else read_table(path, features=features)
    rows = table.X
    if names and set(names) <= set(table.feature_names):
        rows = rows[:, [table.feature_names.index(name) for name in names]]
    if rows.shape[1] != features:
        raise InputError(
            f"--like {path} has {rows.shape[1]} features and the job {features}; give a file with the same columns."
        )
    return rows, table.y


def _show_comparison(previews: Sequence[Preview], epsilons: Sequence[float], console: Console) -> None:
    """The releases and the ledgers of a job at several epsilons."""
    first = previews[0]
    show_problem(first.plan, console)
    if len({shown.plan.algorithm for shown in previews}) > 1:
        each = ", ".join(f"{shown.plan.algorithm} at {at:g}" for shown, at in zip(previews, epsilons, strict=True))
        console.print(f"solver: {each}")
    for place in range(len(first.plans)):  # every preview has as many
        console.print()
        console.print(_list_noises(previews, epsilons, place))
    if first.charges:
        listing = table("epsilon>", *CHARGE_COLUMNS, title="Ledgers, in epsilon")
        for shown, at in zip(previews, epsilons, strict=True):
            for row in charge_rows(shown, console):
                listing.add_row(f"{at:g}", *row)
        console.print()
        console.print(listing)
    for shown, at in zip(previews, epsilons, strict=True):
        for charge in shown.charges:
            if charge.refusal:
                console.print(f"refused by {charge.party} at {at:g}: {charge.refusal}")
    if first.report.weakest.computational:
        for shown, at in zip(previews, epsilons, strict=True):
            weakest = shown.report.weakest
            console.print(f"at {at:g} it {weakest.mark}. {weakest.if_broken}", soft_wrap=True)
    voids = [shown.report.weakest.void for shown in previews if shown.report.weakest.void is not None]
    for note in dict.fromkeys([*voids, *(note for shown in previews for note in shown.notes)]):
        console.print(f"note: {note}")


def _list_noises(previews: Sequence[Preview], epsilons: Sequence[float], place: int) -> Table:
    """What leaves under one of the plans of a fit, with its noise at each epsilon."""
    plans = previews[0].plans
    noises: dict[tuple[str, ...], dict[float, str]] = {}
    for shown, at in zip(previews, epsilons, strict=True):
        for *release, noise in release_rows(shown.plans[place]):
            noises.setdefault(tuple(release), {})[at] = noise
    columns = (*release_columns(plans[place])[:-1], *(f"noise at {at:g}>" for at in epsilons))
    listing = table(*columns, title=release_title(plans[place], plans))
    for row, noise_at in noises.items():
        listing.add_row(*row, *(noise_at.get(at, "") for at in epsilons))
    return listing


def _detection_rate(shown: Preview) -> float:
    """How often a test finds a person at most: always, where nothing is promised to one."""
    promise = shown.report.weakest
    return 1.0 if promise.void is not None or promise.unit == "feature" else promise.detected(_ALARMS)


def _axes(path: Path) -> Any:
    """Axes to draw into, for a file of that name."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("--plot needs matplotlib: install sottovoce[plots].") from None
    figure = Figure(layout="constrained")
    if path.suffix[1:].lower() not in (known := figure.canvas.get_supported_filetypes()):
        raise InputError(f"--plot {path} must end in one of .{', .'.join(sorted(known))}; .png is usual.")
    return figure.subplots()
